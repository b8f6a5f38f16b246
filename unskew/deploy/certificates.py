"""Keys and certificates of a federation: an authority of its own, which signs the server's and each client's.

All keys are ECDSA on the curve P-384.  Both sides trust this authority and no other.  A client takes part as long as
its certificate lies in the server's folder, too.  Whatever is private lies in files that only their owner can read.
"""

import ipaddress
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from unskew.errors import DeployError
from unskew.files import PRIVATE, write_atomically

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names in every server certificate, for clients on the same machine."""
AUTHORITY_DAYS, SERVER_DAYS = 3650, 397
_HOST = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")


@dataclass(frozen=True, eq=False)
class Authority:
    """The certificate authority of one federation, which signs server certificates."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


# ---------------------------------------------------------------- making
def authority(name: str) -> Authority:
    """Make a new authority, in memory."""
    key = ec.generate_private_key(ec.SECP384R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"unskew {name}"[:64])])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    signed = (
        _unsigned(who, who, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    return Authority(key, signed)


def _unsigned(who: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # A client whose clock is a little behind must not find it "not yet valid".
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
    )


def save_authority(who: Authority, folder: Path) -> None:
    """Write `ca.crt` and `ca.key`, which sign further server certificates and are kept away from the server."""
    write_atomically(folder / "ca.key", _private(who.key), PRIVATE)
    (folder / "ca.crt").write_bytes(pem(who.certificate))


def load_authority(folder: Path) -> Authority:
    """Load the authority that `save_authority` wrote.

    Raises:
        DeployError: If a file is missing or is not a key or certificate.
    """
    return Authority(_key(folder / "ca.key"), _certificate(folder / "ca.crt"))


def issue_server(who: Authority, hosts: Sequence[str], folder: Path, days: int = SERVER_DAYS) -> None:
    """Write `ca.crt`, `server.crt` and `server.key` for a server that is reached under these names or addresses.

    Args:
        who: Authority that signs.
        hosts: Names and IP addresses; loopback is always among them.
        folder: Folder to write to.
        days: Validity of the certificate, days.

    Raises:
        DeployError: If something is neither a host name nor an address.
    """
    names = x509.SubjectAlternativeName([_general_name(host) for host in dict.fromkeys((*hosts, *LOOPBACK))])
    _issue(who, (*hosts, *LOOPBACK)[0], folder, "server", days, names)


def issue_client(who: Authority, client: int, folder: Path, days: int = AUTHORITY_DAYS) -> None:
    """Write `ca.crt`, `client.crt` and `client.key` for a client."""
    _issue(who, f"client {client}", folder, "client", days)


def _issue(
    who: Authority, name: str, folder: Path, file: str, days: int, names: x509.SubjectAlternativeName | None = None
) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    usage = ExtendedKeyUsageOID.CLIENT_AUTH if names is None else ExtendedKeyUsageOID.SERVER_AUTH
    unsigned = (
        _unsigned(subject, who.certificate.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(who.key.public_key()), critical=False)
    )
    if names is not None:
        unsigned = unsigned.add_extension(names, critical=False)
    write_atomically(folder / f"{file}.key", _private(key), PRIVATE)
    write_atomically(folder / f"{file}.crt", pem(unsigned.sign(who.key, hashes.SHA384())))
    write_atomically(folder / "ca.crt", pem(who.certificate))


def names_of(path: Path) -> tuple[str, ...]:
    """Return the names and addresses that a certificate is valid for.

    Raises:
        DeployError: If it cannot be read.
    """
    try:
        alternative_names = _certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return (
        *alternative_names.get_values_for_type(x509.DNSName),
        *map(str, alternative_names.get_values_for_type(x509.IPAddress)),
    )


def is_host(text: str) -> bool:
    """True of a host name and of an IP address."""
    with suppress(ValueError):
        ipaddress.ip_address(text)
        return re.fullmatch(r"[\w.:%-]+", text, re.ASCII) is not None  # the name of an interface may follow
    return len(text) <= 253 and _HOST.fullmatch(text) is not None


def _general_name(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    if not is_host(host):
        raise DeployError(f"a server is reached under a host name or an IP address, got {host!r}")
    return x509.DNSName(host)


def pem(certificate: x509.Certificate) -> bytes:
    """The certificate as text."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, encryption)


# ---------------------------------------------------------------- files only their owner can read
def make_private(folder: Path) -> Path:
    """Return the folder, made if it does not exist, that only its owner can enter."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


def check_private(path: Path) -> None:
    """Refuse a secret that is missing, or that others can read.

    Raises:
        DeployError: If so.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise DeployError(f"cannot read {path}: {error.strerror}; it was written by unskew deploy pack") from None
    if mode & 0o077:
        raise DeployError(f"{path} may be read by others (mode {mode:04o}); chmod 600 {path}")


# ---------------------------------------------------------------- checking
def check_server(folder: Path, now: datetime | None = None) -> None:
    """Refuse a server's certificate that clients would refuse; the files are `ca.crt`, `server.crt`, `server.key`.

    Raises:
        DeployError: If it has expired, is not valid yet, belongs to another key or was signed by another authority.
    """
    _check(folder, "server", now, "sign another one where the federation was packed: unskew deploy pack --renew")


def check_client(folder: Path, now: datetime | None = None) -> None:
    """Refuse a client's certificate that the server would refuse; the files are `ca.crt`, `client.crt`, `client.key`.

    Raises:
        DeployError: As `check_server`.
    """
    _check(folder, "client", now, "ask the coordinator for a new folder")


def _check(folder: Path, name: str, now: datetime | None, remedy: str) -> None:
    check_private(folder / f"{name}.key")
    key, certificate = _key(folder / f"{name}.key"), _certificate(folder / f"{name}.crt")
    ca, moment = _certificate(folder / "ca.crt"), now or datetime.now(UTC)
    for what, path in ((certificate, folder / f"{name}.crt"), (ca, folder / "ca.crt")):
        if moment > what.not_valid_after_utc:
            raise DeployError(f"{path} expired on {what.not_valid_after_utc:%Y-%m-%d}; {remedy}")
        if moment < what.not_valid_before_utc:
            raise DeployError(
                f"{path} is not valid before {what.not_valid_before_utc:%Y-%m-%d %H:%M} UTC and the clock here says "
                f"{moment:%Y-%m-%d %H:%M}; set the clock"
            )
    if key.public_key() != certificate.public_key():
        raise DeployError(f"{folder / f'{name}.key'} is not the key of {name}.crt; copy both from one pack")
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        raise DeployError(f"{folder / f'{name}.crt'} was not signed by ca.crt; copy both from one pack") from None


def days_left(path: Path) -> int:
    """Whole days until a certificate expires.

    Raises:
        DeployError: If it cannot be read.
    """
    return (_certificate(path).not_valid_after_utc - datetime.now(UTC)).days


def public_key(certificate: bytes) -> bytes:
    """The public key of a PEM certificate, as bytes by which a client is known.

    Raises:
        DeployError: If it is none.
    """
    try:
        key = x509.load_pem_x509_certificate(certificate).public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise DeployError(f"not a certificate: {error}") from None
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.DER, form)


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DeployError(f"{path} is not a certificate: {error}; copy the folder again as it was packed") from None


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise DeployError(f"{path} is not a private key: {error}; copy the folder again as it was packed") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DeployError(f"{path} is not an ECDSA key; copy the folder again as it was packed")
    return key
