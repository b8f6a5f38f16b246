"""A client's packed folder, signed by the coordinator and checked by the participant, file by file.

    client-0/
        manifest.json        {"files": {"experiment.toml": SHA-256, ...}}
        manifest.sig         its Ed25519 signature by the coordinator
        coordinator.pub      the coordinator's public key, whose fingerprint the participant compares by telephone

The private key stays with the coordinator, in the federation's `authority/`.  A signature tells that the folder is as
the holder of that key packed it; whose key it is only the fingerprint tells, compared over another channel.

Some files are the participant's own to change (`OWN`), and some are made when a client runs (`MADE`).  The latter must
not come with the folder: noise drawn from a secret that somebody else chose would hide nothing.  Therefore a folder
with such files is accepted only with a secret that was made here, when it was accepted without them: the participant's
own record of accepted folders has its hash.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from unskew.deploy.certificates import make_private
from unskew.deploy.settings import EXPERIMENT
from unskew.errors import DeployError
from unskew.files import PRIVATE, read_bytes, unlinked, write_atomically
from unskew.runtime.client import SECRET, own_secret

MANIFEST, SIGNATURE, KEY = "manifest.json", "manifest.sig", "coordinator.pub"
OWN = frozenset({"network.toml"})
"""Files that a participant may change: where the server is."""
MADE = frozenset({"logs", "state", "models", ".lock", "audit.jsonl"})
"""Files and folders that a client makes when it runs."""
MOST = 1 << 26
"""Most bytes of a packed file."""
_SECRET = f"state/{SECRET}"


# ---------------------------------------------------------------- signing
def new_key() -> Ed25519PrivateKey:
    """Make a coordinator's key, in memory."""
    return Ed25519PrivateKey.generate()


def save_key(key: Ed25519PrivateKey, folder: Path) -> None:
    """Write `coordinator.key`, which signs folders and is kept away from clients and server."""
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    write_atomically(
        folder / "coordinator.key", key.private_bytes(serialization.Encoding.PEM, form, encryption), PRIVATE
    )


def sign(key: Ed25519PrivateKey, folder: Path) -> None:
    """Write manifest, signature and public key of a client's folder as it is now."""
    manifest = json.dumps({"files": {name: _sha256(folder / name) for name in _files(folder)}}, indent=1).encode()
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    write_atomically(folder / KEY, key.public_key().public_bytes(serialization.Encoding.PEM, form))
    write_atomically(folder / MANIFEST, manifest)
    write_atomically(folder / SIGNATURE, key.sign(manifest))


# ---------------------------------------------------------------- checking
@dataclass(frozen=True)
class Signed:
    """A folder that is as it was signed.

    Attributes:
        fingerprint: That of the coordinator's key, to compare by telephone.
        changed: Files of the participant's own that are not as they were packed.
    """

    fingerprint: str
    changed: tuple[str, ...]


def check(folder: Path, accepted: Path, remember: bool = True) -> Signed:
    """Refuse a client's folder that is not as its coordinator signed it.

    Args:
        folder: The client's folder.
        accepted: Folder of this participant in which accepted manifests are remembered.
        remember: False to remember nothing.

    Raises:
        DeployError: Naming the file that was changed, added or removed, or if the signature is not of this key, or
            nothing could be remembered.
    """
    key, manifest = _public_key(folder), _read(folder / MANIFEST)
    try:
        key.verify(_read(folder / SIGNATURE), manifest)
    except InvalidSignature:
        raise DeployError(
            f"{folder / MANIFEST} was not signed by the key of {KEY}; ask the coordinator for the folder again"
        ) from None
    files, changed = _signed_files(folder, manifest), []
    for name, digest in files.items():
        path = folder / name
        if not path.is_file():
            raise DeployError(f"{path} is missing; it was packed and signed, ask the coordinator for the folder again")
        if _sha256(path) != digest:
            if name not in OWN:
                raise DeployError(f"{path} was changed since it was packed; ask the coordinator for the folder again")
            changed.append(name)
    mark = accepted / hashlib.sha256(manifest).hexdigest()
    made_here = _marked(mark, remember)
    runs_here = made_here is not None and (not made_here or _secret_hash(folder) in made_here)
    for path in sorted(folder.iterdir()):
        known = path.name in {*files, MANIFEST, SIGNATURE, KEY} or path.name.removesuffix(".tmp") in MADE
        if not known and path.suffix != ".safetensors":
            raise DeployError(f"{path} was not packed; move it out of the folder, which holds what was signed alone")
    of_a_run = sorted(path.name for path in folder.iterdir() if path.name in MADE)
    if of_a_run and made_here and not runs_here:
        raise DeployError(
            f"{folder / _SECRET} is missing, or not the one with which this folder ran here. If you changed it, make "
            f"{mark} an empty file; else take no folder with a state from anybody"
        )
    if of_a_run and not runs_here:
        raise DeployError(
            f"{folder} has run before (it has {', '.join(of_a_run)}), but {mark.parent} has no record of it. If it is "
            f"yours, start it with its HOME or XDG_STATE_HOME, or make {mark} an empty file; else ask the coordinator "
            "for a fresh one"
        )
    if remember:
        own_secret(make_private(folder / "state"))
        hashes = (made_here or set()) | {_secret_hash(folder)}
        write_atomically(mark, "".join(f"{one}\n" for one in sorted(hashes)))
    return Signed(fingerprint(key), tuple(changed))


def _marked(mark: Path, make: bool) -> set[str] | None:
    """Hashes of the secrets that were made where this folder was accepted; None if it never was.

    They are unknown, an empty set, where an older version or a participant who has moved a folder left an empty file.

    Args:
        mark: The file that remembers it.
        make: Make the folder of such files if it is missing.

    Raises:
        DeployError: If the file cannot be read, or none could be written.
    """
    try:
        if make:
            mark.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=next(p for p in mark.parents if p.exists())).close()
        return set(mark.read_text().split()) if mark.exists() else None
    except OSError as error:
        raise DeployError(
            f"the record of accepted folders cannot be kept in {mark.parent}: {error.strerror}; make that folder "
            "writable, or set HOME, or XDG_STATE_HOME, to one that is"
        ) from None


def _secret_hash(folder: Path) -> str:
    """SHA-256 of the secret in a client's folder; empty if there is none, or a link in its place."""
    try:
        return hashlib.sha256(read_bytes(unlinked(folder / "state") / SECRET, 32)).hexdigest()
    except OSError:
        return ""


def _signed_files(folder: Path, manifest: bytes) -> dict[str, str]:
    """Read the SHA-256 of each signed file; whoever signed it may have written anything."""
    try:
        files = json.loads(manifest)["files"]
    except (ValueError, TypeError, KeyError, RecursionError):
        files = None
    if (
        not isinstance(files, dict)
        or not all(isinstance(v, str) and _is_inside(k) for k, v in files.items())
        or not {"client.toml", EXPERIMENT} <= files.keys()  # which are read next
    ):
        raise DeployError(f"{folder / MANIFEST} is not a list of files; ask the coordinator for the folder again")
    return dict(files)


def _is_inside(name: str) -> bool:
    """True if this can be the name of a file in a packed folder."""
    parts = name.split("/")
    return (
        name.isprintable() and all(0 < len(p.encode()) < 256 for p in parts) and ".." not in parts and len(name) < 1024
    )


def fingerprint_of(folder: Path) -> str:
    """Return the fingerprint of the key that a folder says it was signed with.

    Raises:
        DeployError: If it holds no such key.
    """
    return fingerprint(_public_key(folder))


def fingerprint(key: Ed25519PublicKey) -> str:
    """First 128 bits of the SHA-256 of a public key, in groups that can be read aloud."""
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    digest = hashlib.sha256(raw).hexdigest()[:32]
    return " ".join(digest[i : i + 4] for i in range(0, 32, 4))


def _public_key(folder: Path) -> Ed25519PublicKey:
    try:
        key = serialization.load_pem_public_key(_read(folder / KEY))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise DeployError(f"{folder / KEY} is no Ed25519 key; ask the coordinator for the folder again")
    return key


def _files(folder: Path) -> Iterator[str]:
    return (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file())


def _sha256(path: Path) -> str:
    return hashlib.sha256(_read(path)).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path, MOST)
    except OSError as error:
        raise DeployError(
            f"cannot read {path}: {error.strerror}; a packed folder is signed and has this file"
        ) from None
