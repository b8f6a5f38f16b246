"""Keys and certificates of a federation, whose own authority signs those of the server and of each site.

Keys are ECDSA on the curve P-384, those of invitations on P-256, which makes tokens short.  Both sides trust this
authority only.  Its key also signs experiments.  Private keys are in files that only their owner can read.
"""

import base64
import hashlib
import ipaddress
import re
import stat
from collections.abc import Mapping, Sequence
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
"""Names in every server certificate, for sites on the same machine."""
AUTHORITY, LEAF = timedelta(days=3650), timedelta(days=397)
"""How long certificates are valid: the authority's, and those of server and sites."""
RENEWED = timedelta(days=60)
"""Time before its end from which a certificate is renewed; of a shorter one a third of its time."""
REQUEST_BYTES = 1 << 14
"""Largest certificate request."""
_HOST = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")
OFFER, TRUSTED = b"unskew experiment\n", b"unskew authorities\n"
"""What is signed with an experiment, and with authorities, so that no signature of one passes for the other."""


@dataclass(frozen=True, eq=False)
class Authority:
    """The certificate authority of one federation."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def sign(self, data: bytes, kind: bytes = OFFER) -> bytes:
        """Signature of an experiment, or of a list of trusted authorities."""
        return self.key.sign(kind + data, ec.ECDSA(hashes.SHA384()))


# ---------------------------------------------------------------- making
def authority(name: str, valid: timedelta = AUTHORITY) -> Authority:
    """A new authority, in memory."""
    key, who = new_key(), _name(f"unskew {name}")
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    usage = dict.fromkeys((*others, "decipher_only"), False)
    usage |= dict.fromkeys(("digital_signature", "key_cert_sign", "crl_sign"), True)
    extensions = {
        x509.BasicConstraints(ca=True, path_length=0): True,
        x509.KeyUsage(**usage): True,
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()): False,
    }
    return Authority(key, _signed(key, who, who, key.public_key(), datetime.now(UTC) + valid, extensions))


def new_key() -> ec.EllipticCurvePrivateKey:
    """A new key, in memory."""
    return ec.generate_private_key(ec.SECP384R1())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _leaf(
    who: Authority, name: str, key: ec.EllipticCurvePublicKey, valid: timedelta, hosts: Sequence[str] = ()
) -> x509.Certificate:
    """A certificate of a client, or of a server that is reached under these names."""
    extensions: dict[x509.ExtensionType, bool] = {
        x509.BasicConstraints(ca=False, path_length=None): True,
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH]): False,
        x509.AuthorityKeyIdentifier.from_issuer_public_key(who.key.public_key()): False,
    }
    if hosts:
        extensions[x509.SubjectAlternativeName([_general_name(host) for host in dict.fromkeys(hosts)])] = False
    end = min(datetime.now(UTC) + valid, who.certificate.not_valid_after_utc)
    return _signed(who.key, who.certificate.subject, _name(name), key, end, extensions)


def _signed(
    signer: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    end: datetime,
    extensions: Mapping[x509.ExtensionType, bool],
) -> x509.Certificate:
    """A certificate with these extensions, each of which is critical or not."""
    unsigned = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
    # A site whose clock is a little behind must not find it "not yet valid".
    unsigned = unsigned.not_valid_before(datetime.now(UTC) - timedelta(hours=1)).not_valid_after(end)
    for extension, critical in extensions.items():
        unsigned = unsigned.add_extension(extension, critical)
    return unsigned.sign(signer, hashes.SHA384())


def save_authority(who: Authority, folder: Path, name: str = "ca") -> None:
    """Write NAME.crt and NAME.key."""
    write_atomically(folder / f"{name}.key", private_pem(who.key), PRIVATE)
    write_atomically(folder / f"{name}.crt", pem(who.certificate))


def load_authority(folder: Path, name: str = "ca") -> Authority:
    """Load the authority that `save_authority` wrote."""
    return Authority(load_key(folder / f"{name}.key"), load(folder / f"{name}.crt"))


# ---------------------------------------------------------------- changing the authority
def answer(certificate: bytes, trusted: bytes, who: Authority) -> bytes:
    """A site's certificate and the authorities trusted from now on (PEM), with a signature by one of them."""
    return certificate + trusted + base64.b64encode(who.sign(trusted, TRUSTED)) + b"\n"


def accept(folder: Path, data: bytes) -> None:
    """Write such an answer to site.crt and ca.crt, if an authority that the site trusts has signed it."""
    try:
        certificate, *trusted = x509.load_pem_x509_certificates(data)
        signature = base64.b64decode(data.rpartition(b"-----")[2])
    except ValueError as error:
        raise DeployError(f"the server answers with no certificate: {error}") from None
    bundle = b"".join(map(pem, trusted))
    check_signed(load_all(folder / "ca.crt"), bundle, signature, TRUSTED)
    write_atomically(folder / "ca.crt", bundle)
    write_atomically(folder / "site.crt", pem(certificate))


def issue_server(who: Authority, hosts: Sequence[str], folder: Path, valid: timedelta = LEAF) -> None:
    """Write `server.crt` and `server.key` for a server with these names or addresses.

    Args:
        who: Authority that signs.
        hosts: Host names and IP addresses; loopback is always added.
        folder: Folder to write to.
        valid: Validity of the certificate.
    """
    key, names = new_key(), (*hosts, *LOOPBACK)
    signed = _leaf(who, names[0], key.public_key(), valid, names)
    write_atomically(folder / "server.key", private_pem(key), PRIVATE)
    write_atomically(folder / "server.crt", pem(signed))


def request(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A site's request for a certificate (PEM), signed with its key, which stays at the site."""
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(_name("site"))
        .sign(key, hashes.SHA384())
        .public_bytes(serialization.Encoding.PEM)
    )


def requested(data: bytes) -> ec.EllipticCurvePublicKey:
    """The key of a request for a certificate; the request must be signed with it."""
    try:
        asked = x509.load_pem_x509_csr(data[:REQUEST_BYTES])
        key = asked.public_key()
        sound = asked.is_signature_valid
    except (ValueError, UnsupportedAlgorithm):
        raise DeployError("this is no request for a certificate") from None
    if not sound or not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != ec.SECP384R1.name:
        raise DeployError("a request for a certificate must be signed with its own key on P-384")
    return key


def issue_site(who: Authority, name: str, key: ec.EllipticCurvePublicKey, valid: timedelta = LEAF) -> bytes:
    """A site's certificate, PEM."""
    return pem(_leaf(who, name, key, valid))


def invitation(who: Authority, name: str, valid: timedelta) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A one-time key and certificate with which a site may request its own."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key, _leaf(who, f"invitation of {name}", key.public_key(), valid)


def _general_name(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    if len(host) > 253 or not _HOST.fullmatch(host):
        raise DeployError(f"a server is reached under a host name or an IP address, got {host!r}")
    return x509.DNSName(host)


def pem(certificate: x509.Certificate) -> bytes:
    """The certificate as text."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The private key as text."""
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, encryption)


# ---------------------------------------------------------------- files only their owner can read
def make_private(folder: Path) -> Path:
    """The folder, made if needed, that only its owner can enter."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


def check_private(path: Path) -> None:
    """Refuse a secret that others can read."""
    if (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
        raise DeployError(f"{path} may be read by others (mode {mode:04o}); chmod 600 {path}")


# ---------------------------------------------------------------- checking
def check(folder: Path, name: str, now: datetime | None = None) -> None:
    """Refuse a certificate that the other side would refuse (expired, wrong key or authority): `ca.crt` and NAME.*."""
    check_private(folder / f"{name}.key")
    key, certificate = load_key(folder / f"{name}.key"), load(folder / f"{name}.crt")
    trusted, moment = load_all(folder / "ca.crt"), now or datetime.now(UTC)
    issuer = next((ca for ca in trusted if _issued(certificate, ca)), None)
    for what, path in ((certificate, folder / f"{name}.crt"), (issuer or trusted[0], folder / "ca.crt")):
        if moment > what.not_valid_after_utc:
            remedy = "join anew, by a new invitation" if name == "site" else "make a new federation"
            raise DeployError(f"{path} expired on {what.not_valid_after_utc:%Y-%m-%d}; {remedy}")
        if moment < what.not_valid_before_utc:
            raise DeployError(
                f"{path} is not valid before {what.not_valid_before_utc:%Y-%m-%d %H:%M} UTC and the clock here says "
                f"{moment:%Y-%m-%d %H:%M}; set the clock"
            )
    if key.public_key() != certificate.public_key():
        raise DeployError(f"{folder / f'{name}.key'} is not the key of {name}.crt; restore both from one backup")
    if issuer is None:
        raise DeployError(f"{folder / f'{name}.crt'} was not signed by ca.crt; restore both from one backup")


def _issued(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    with suppress(ValueError, TypeError, InvalidSignature):
        certificate.verify_directly_issued_by(ca)
        return True
    return False


def check_signed(trusted: Sequence[x509.Certificate], data: bytes, signature: bytes, kind: bytes = OFFER) -> None:
    """Refuse an experiment, or new authorities, without a signature by a trusted authority."""
    for ca in trusted:
        key = ca.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        with suppress(InvalidSignature):
            key.verify(signature, kind + data, ec.ECDSA(hashes.SHA384()))
            return
    raise DeployError(f"the {kind.decode().split()[1]} is not signed by the federation's authority")


def fingerprint(certificate: x509.Certificate) -> str:
    """First 128 bits of the SHA-256 of a certificate's public key, in groups to read aloud."""
    digest = hashlib.sha256(public_bytes(certificate.public_key())).hexdigest()[:32]
    return " ".join(digest[i : i + 4] for i in range(0, 32, 4))


def days(path: Path) -> float:
    """Days until a certificate expires."""
    return (load(path).not_valid_after_utc - datetime.now(UTC)) / timedelta(days=1)


def is_due(path: Path, now: datetime | None = None) -> bool:
    """True if a certificate must be renewed."""
    certificate = load(path)
    whole = certificate.not_valid_after_utc - certificate.not_valid_before_utc - timedelta(hours=1)
    return certificate.not_valid_after_utc - (now or datetime.now(UTC)) < min(RENEWED, whole / 3)


def public_key(certificate: bytes) -> bytes:
    """The public key of a PEM certificate, as bytes."""
    return public_bytes(x509.load_pem_x509_certificate(certificate).public_key())


def public_bytes(key: object) -> bytes:
    """A public key as bytes."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    data: bytes = key.public_bytes(serialization.Encoding.DER, form)  # type: ignore[attr-defined]
    return data


def load(path: Path) -> x509.Certificate:
    """Load the first certificate of a file."""
    return load_all(path)[0]


def load_all(path: Path) -> list[x509.Certificate]:
    """Load all certificates of a file, at least one."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DeployError(f"{path} is not a certificate: {error}; restore it from a backup") from None


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Load a private key."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise DeployError(f"{path} is not a private key: {error}; restore it from a backup") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DeployError(f"{path} is not an ECDSA key; restore it from a backup")
    return key
