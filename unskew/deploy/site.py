"""A site: joins a federation by a token, then takes part in the experiments that its own policy allows.

    SITE/                          made by `unskew site join`; only its owner can enter it
        site.toml  ca.crt  site.crt  site.key
        audit.jsonl                every experiment and request, and what it was answered
        experiments/NAME/          offer.json  offer.sig  experiment.toml  state/  models/
                                   answer: what a person has said, "accepted" or "refused"

The key is made here and never leaves.  An experiment is refused, or not, before anything that it names is read.
"""

import shutil
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w

from unskew.deploy import certificates
from unskew.deploy.certificates import make_private
from unskew.deploy.offers import Token
from unskew.deploy.settings import Address, Site, own_state, read_settings
from unskew.errors import DeployError
from unskew.files import PRIVATE, write_atomically


def sites() -> Path:
    """Folder of this user in which sites lie."""
    return own_state() / "sites"


def found(folder: Path | None) -> Path:
    """The folder of a site; without one the only one that this user has.

    Raises:
        DeployError: If there is none, or several.
    """
    if folder is not None:
        return folder
    known = sorted(path.parent for path in sites().glob("*/site.toml"))
    if len(known) != 1:
        names = ", ".join(str(path) for path in known) or "none"
        raise DeployError(f"name the site's folder with --folder (in {sites()}: {names})")
    return known[0]


def join(token: Token, folder: Path, site: Site) -> None:
    """Make a site's folder, with a key of its own, which asks for its certificate when it starts.

    Raises:
        DeployError: If there is a site in it already, or it cannot be written.
    """
    if (folder / "site.toml").exists():
        raise DeployError(f"{folder} is a site already: unskew site start, or join with another --folder")
    try:
        make_private(folder)
        token.save(folder)
        if not (folder / "site.key").exists():
            key = certificates.private_pem(certificates.new_key())
            write_atomically(folder / "site.key", key, PRIVATE)
        settings = {name: value for name, value in asdict(site).items() if value is not None}
        where = {"name": token.site, "host": token.server.host, "port": token.server.port}
        write_atomically(folder / "site.toml", tomli_w.dumps({**settings, **where}))
    except OSError as error:
        raise DeployError(f"cannot write {error.filename}: {error.strerror}; choose another --folder") from None


def admitted(folder: Path, certificate: bytes) -> None:
    """Keep the site's first certificate; the invitation is of no more use."""
    write_atomically(folder / "site.crt", certificate)
    for name in ("invitation.crt", "invitation.key"):
        (folder / name).unlink(missing_ok=True)


def answer(folder: Path, name: str, said: str) -> None:
    """Keep what a person says of an experiment: "accepted" or "refused".

    Raises:
        DeployError: If it was not offered.
    """
    place = folder / "experiments" / name
    if not (place / "offer.json").exists():
        offered = ", ".join(sorted(path.parent.name for path in folder.glob("experiments/*/offer.json")))
        raise DeployError(f"{name} was not offered to this site (offered: {offered or 'none'})")
    write_atomically(place / "answer", said)


def status(folder: Path) -> dict[str, Any]:
    """The site as its folder has it: itself, its certificate, the experiments that it was offered."""
    site = read_settings(folder / "site.toml", Site)
    certificate = folder / "site.crt"
    offered = sorted(folder.glob("experiments/*/offer.json"), key=lambda path: path.stat().st_mtime)
    return {
        "site": site.name,
        "server": str(Address(site.host, site.port)),
        "authority": certificates.fingerprint(certificates.load(folder / "ca.crt")),
        "certificate_days": (certificates.ends(certificate) - datetime.now(UTC)).days if certificate.exists() else None,
        "data": site.data,
        "free_bytes": shutil.disk_usage(folder).free,
        "experiments": [
            {
                "name": path.parent.name,
                "answer": text_of(path.parent / "answer") or "waits for an answer",
                "models": str(path.parent / "models") if (path.parent / "models").is_dir() else None,
            }
            for path in offered
        ],
    }


def text_of(path: Path) -> str:
    """The content of a file; empty if there is none."""
    return path.read_text("utf-8") if path.exists() else ""
