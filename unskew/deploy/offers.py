"""What a coordinator gives to sites: a token to join with, and signed experiments."""

import base64
import json
import re
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography import x509

from unskew import schema
from unskew.deploy.certificates import Authority
from unskew.errors import ConfigError, DeployError, WireError
from unskew.files import PRIVATE, write_atomically

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
"""Names of sites and experiments, which are names of folders, too."""
MOST = 1 << 22
"""Largest experiment, bytes."""


def checked_name(name: str, what: str) -> str:
    """The name, if it can be a folder's; others are refused."""
    if NAME.fullmatch(name) is None:
        raise DeployError(f"{what} is called by letters, digits, and . _ + - between them, got {name[:80]!r}")
    return name


# ---------------------------------------------------------------- tokens
@dataclass(frozen=True)
class Token:
    """An invitation of one site, valid for one certificate.

    Attributes:
        site: Name of the site.
        host, port: Address of the server.
        authority: Certificate of the federation's authority, PEM.
        certificate, key: The invitation's own, PEM.
    """

    site: str
    host: str
    port: int
    authority: str
    certificate: str
    key: str

    def __str__(self) -> str:
        data = zlib.compress(json.dumps(asdict(self)).encode(), 9)
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    @classmethod
    def read(cls, text: str) -> "Token":
        """Read what `unskew fed invite` printed; anything else is refused."""
        try:
            data = base64.urlsafe_b64decode(text.strip() + "=" * (-len(text.strip()) % 4))
            packed = zlib.decompressobj()
            body: Any = json.loads(packed.decompress(data, MOST))
            token: Token = schema.build(cls, body, "")
            if not packed.eof:
                raise ValueError("it is cut")
            checked_name(token.site, "a site")
            for certificate in (token.authority, token.certificate):
                x509.load_pem_x509_certificate(certificate.encode())
        except (ValueError, TypeError, ConfigError, DeployError, zlib.error, RecursionError):
            raise DeployError("this is no token; copy the whole line that unskew fed invite printed") from None
        return token

    def save(self, folder: Path, trust: bool = True) -> None:
        """Write invitation.crt and invitation.key, and with `trust` the authority's certificate to ca.crt."""
        if trust:
            write_atomically(folder / "ca.crt", self.authority)
        write_atomically(folder / "invitation.crt", self.certificate)
        write_atomically(folder / "invitation.key", self.key, PRIVATE)


# ---------------------------------------------------------------- experiments
@dataclass(frozen=True)
class Offer:
    """An experiment offered to one site.

    Attributes:
        name: Name of the experiment in the federation.
        site: Name of the site.
        run: Random name of the run.
        client, clients: Number of the site in the experiment, from 0, and the number of sites.
        own_data: True if every site must have data of its own; else a site without uses its part of the split.
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
    def read(cls, data: bytes) -> "Offer":
        """Read an offer whose signature was checked; anything else is refused."""
        try:
            offer: Offer = schema.build(cls, json.loads(data), "")
            checked_name(offer.name, "an experiment")
        except (DeployError, ConfigError, ValueError, RecursionError) as error:
            raise WireError(str(error)) from None
        if not (offer.run.isalnum() and len(offer.run) <= 64 and 0 <= offer.client < offer.clients):
            raise WireError("an offer needs a run's name, and a client number below the number of clients")
        return offer
