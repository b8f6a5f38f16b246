"""A site: joins a federation by a token, then takes part in experiments that its own policy allows.

    SITE/                          made by `unskew site join`; only its owner can enter it
        site.toml  ca.crt  site.crt  site.key
        audit.jsonl                every experiment and request, with its answer
        experiments/NAME/          offer.json  experiment.toml  agreed.json  state/  models/
                                   answer: a person's decision, "accepted" or "refused"
                                   outcome: the last answer to the server, with the reason

The key is made here and never leaves.  Whether an experiment is refused is decided before reading what it names.
"""

import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import tomli_w

from unskew.deploy import certificates
from unskew.deploy.certificates import make_private
from unskew.deploy.offers import Token
from unskew.deploy.settings import ANSWER, Site, address, own_state, read_settings, text_of
from unskew.errors import DeployError
from unskew.files import PRIVATE, write_atomically

OFFER, OUTCOME = "offer.json", "outcome"
OFFERS = f"experiments/*/{OFFER}"


def sites() -> Path:
    """Folder of this user for sites."""
    return own_state() / "sites"


def chosen(folder: Path | None) -> Path:
    """The folder of a site; by default the only one that this user has."""
    if folder is not None:
        return folder
    known = sorted(path.parent for path in sites().glob("*/site.toml"))
    if len(known) != 1:
        names = ", ".join(str(path) for path in known) or "none"
        raise DeployError(f"name the site's folder with --folder (in {sites()}: {names})")
    return known[0]


def join(token: Token, folder: Path, site: Site) -> None:
    """Make a site's folder with a key; it requests its certificate when it starts.

    A site that joins again gets a new key, and keeps settings that `site` leaves open.  The folder of another site or
    federation is refused.
    """
    before = read_settings(folder / "site.toml", Site) if (folder / "site.toml").exists() else None
    if before is not None:
        if before.name != token.site or token.authority.encode() not in map(
            certificates.pem, certificates.load_all(folder / "ca.crt")
        ):
            raise DeployError(f"{folder} is the site {before.name} of a federation; join with another --folder")
        given = {name: value for name, value in asdict(site).items() if value != getattr(Site(), name)}
        site = replace(before, **given)
    make_private(folder)
    token.save(folder, trust=before is None)
    (folder / "new.key").unlink(missing_ok=True)
    write_atomically(folder / "new.key", certificates.private_pem(certificates.new_key()), PRIVATE)
    site = replace(site, name=token.site, host=token.host, port=token.port)
    settings = {name: value for name, value in asdict(site).items() if value is not None}
    write_atomically(folder / "site.toml", tomli_w.dumps(settings))


def admit(folder: Path, certify: Callable[[bytes], bytes]) -> bool:
    """Get the site's certificate by its invitation, which is then used up; False while approval is pending.

    Args:
        folder: The site's folder.
        certify: Sends a request for a certificate to the server; an invalid answer is refused.
    """
    if not (answer := certify(certificates.request(certificates.load_key(folder / "new.key")))):
        return False
    (folder / "new.key").replace(folder / "site.key")
    certificates.accept(folder, answer)
    forget_invitation(folder)
    certificates.check(folder, "site")
    return True


def forget_invitation(folder: Path) -> None:
    """Remove an invitation that was used or refused."""
    for name in ("invitation.crt", "invitation.key", "new.key"):
        (folder / name).unlink(missing_ok=True)


def answer(folder: Path, name: str, word: str) -> None:
    """Keep a person's decision on an offered experiment: "accepted" or "refused"."""
    place = folder / "experiments" / name
    if not (place / OFFER).exists():
        raise DeployError(f"{name} was not offered to this site; unskew site status lists what was")
    write_atomically(place / ANSWER, word)
    (place / OUTCOME).unlink(missing_ok=True)


def status(folder: Path) -> dict[str, Any]:
    """The site by its folder: settings, certificate, and experiments it was offered."""
    site = read_settings(folder / "site.toml", Site)
    certificate = folder / "site.crt"
    offered = sorted(folder.glob(OFFERS), key=lambda path: path.stat().st_mtime)
    return {
        "site": site.name,
        "server": address(site),
        "authority": certificates.fingerprint(certificates.load(folder / "ca.crt")),
        "certificate_days": int(certificates.days(certificate) // 1) if certificate.exists() else None,
        "data": site.data,
        "free_bytes": shutil.disk_usage(folder).free,
        "experiments": [
            {
                "name": path.parent.name,
                "answer": text_of(path.parent / OUTCOME) or text_of(path.parent / ANSWER),
                "models": str(path.parent / "models") if (path.parent / "models").is_dir() else None,
            }
            for path in offered
        ],
    }
