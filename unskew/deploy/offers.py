"""A coordinator's word to sites: a token that lets one join, and an experiment with the authority's signature."""

import base64
import json
import re
import time
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from unskew import schema
from unskew.deploy import certificates
from unskew.deploy.certificates import Authority, pem, private_pem
from unskew.deploy.settings import Address
from unskew.errors import ConfigError, DeployError, WireError
from unskew.files import PRIVATE, from_toml, write_atomically

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
"""Names of sites and experiments, which are names of folders, too."""
MOST = 1 << 22
"""Largest experiment, bytes."""


def checked_name(name: str, what: str) -> str:
    """Return a name that can be a folder's.

    Raises:
        DeployError: If it cannot.
    """
    if NAME.fullmatch(name) is None:
        raise DeployError(f"{what} is called by letters, digits, and . _ + - between them, got {name[:80]!r}")
    return name


# ---------------------------------------------------------------- tokens
@dataclass(frozen=True, eq=False)
class Token:
    """An invitation of one site, good for one certificate.

    Attributes:
        site: Name of the site.
        server: Where the server is reached.
        until: Time after which it is no longer taken, seconds since 1970.
        authority: The federation's authority.
        certificate: Certificate of the invitation's own key.
        key: That key.
    """

    site: str
    server: Address
    until: float
    authority: x509.Certificate
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def __str__(self) -> str:
        where = [self.site, self.server.host, self.server.port, int(self.until)]
        files = [pem(self.authority), pem(self.certificate), private_pem(self.key)]
        data = zlib.compress(json.dumps([*where, *(file.decode() for file in files)]).encode(), 9)
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    @classmethod
    def read(cls, text: str) -> "Token":
        """Read what `unskew fed invite` printed.

        Raises:
            DeployError: If it is no token, or has expired by the clock here.
        """
        try:
            data = base64.urlsafe_b64decode(text.strip() + "=" * (-len(text.strip()) % 4))
            packed = zlib.decompressobj()
            content = json.loads(packed.decompress(data, MOST))
            if not packed.eof:
                raise ValueError("it is cut")
            site, host, port, until, authority, certificate, secret = content
            key = serialization.load_pem_private_key(secret.encode(), None)
            if not isinstance(key, ec.EllipticCurvePrivateKey):
                raise ValueError("it has another kind of key")
            token = cls(
                checked_name(str(site), "a site"),
                Address(str(host), int(port)),
                float(until),
                x509.load_pem_x509_certificate(authority.encode()),
                x509.load_pem_x509_certificate(certificate.encode()),
                key,
            )
        except (ValueError, TypeError, AttributeError, zlib.error, RecursionError, UnsupportedAlgorithm):
            raise DeployError("this is no token; copy the whole line that unskew fed invite printed") from None
        if time.time() > token.until:
            at = time.strftime("%Y-%m-%d %H:%M", time.localtime(token.until))
            raise DeployError(f"the token expired on {at}; ask the coordinator for a new one, and compare the clocks")
        return token

    def save(self, folder: Path, trust: bool = True) -> None:
        """Write invitation.crt and invitation.key, and ca.crt if its authority is to be trusted from now on."""
        if trust:
            write_atomically(folder / "ca.crt", pem(self.authority))
        write_atomically(folder / "invitation.crt", pem(self.certificate))
        write_atomically(folder / "invitation.key", private_pem(self.key), PRIVATE)


# ---------------------------------------------------------------- experiments
@dataclass(frozen=True)
class Offer:
    """An experiment as it is offered to one site.

    Attributes:
        name: Name of the experiment in the federation.
        site: Name of the site.
        run: Random name of the run.
        client, clients: Number of the site in the experiment, from 0, and how many there are.
        own_data: Every site has data of its own; else one without takes its part of the experiment's split.
        toml: The experiment.
    """

    name: str
    site: str
    run: str
    client: int
    clients: int
    own_data: bool
    toml: str

    def signed(self, who: Authority) -> tuple[bytes, bytes]:
        """The offer as bytes, and their signature by the federation's authority."""
        data = json.dumps(asdict(self)).encode()
        return data, who.sign(data)

    @classmethod
    def read(cls, data: bytes, signature: bytes, trusted: Sequence[x509.Certificate]) -> "Offer":
        """Read an offer that came over the network.

        Raises:
            WireError: If the authority has not signed it, or it is none.
        """
        if len(data) > MOST:
            raise WireError(f"the experiment has {len(data)} bytes, more than the {MOST} allowed")
        try:
            certificates.check_signed(trusted, data, signature)
        except DeployError as error:
            raise WireError(str(error)) from None
        return cls.parse(data)

    @classmethod
    def parse(cls, data: bytes) -> "Offer":
        """Read an offer whose signature was checked when it came.

        Raises:
            WireError: If it is none.
        """
        try:
            body: Any = json.loads(data)
            offer: Offer = schema.build(cls, body, "")
            checked_name(offer.name, "an experiment")
        except (DeployError, ConfigError, ValueError, RecursionError) as error:
            raise WireError(str(error)) from None
        if not (offer.run.isalnum() and len(offer.run) <= 64 and 0 <= offer.client < offer.clients):
            raise WireError("the experiment's place in the federation cannot be")
        return offer

    def table(self) -> dict[str, Any]:
        """The experiment's table, of which nothing is known.

        Raises:
            WireError: If it is not TOML.
        """
        try:
            return from_toml(self.toml)
        except (ValueError, RecursionError):
            raise WireError("the experiment is not TOML") from None
