"""Which ports are free, and what is taken for this federation's server."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="a deployment needs the extra [deploy]")

from unskew.deploy import certificates, reach
from unskew.deploy.settings import Address
from unskew.errors import DeployError

from .conftest import issued


# ---------------------------------------------------------------- looking at a server
@contextmanager
def listening(folder: Path | None) -> Iterator[Address]:
    """A server that shakes hands by TLS, if there is a folder with certificates."""
    server = socket.create_server(("0.0.0.0", 0))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if folder is not None:
        context.load_cert_chain(folder / "server.crt", folder / "server.key")

    def serve() -> None:
        with suppress(OSError):
            while True:
                line, _ = server.accept()
                with suppress(OSError), line:
                    if folder is None:
                        line.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                    else:
                        context.wrap_socket(line, server_side=True).close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield Address("127.0.0.1", server.getsockname()[1])
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    who = certificates.authority("test")
    certificates.issue_server(who, [], tmp_path)
    return issued(who, tmp_path)


def test_a_server_that_is_as_it_should_be_is_seen(pack: Path) -> None:
    with listening(pack) as address:
        reach.probe(address, pack, "site")


def test_what_is_not_this_federations_server_is_refused_in_words(pack: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    certificates.issue_server(certificates.authority("other"), [], other)
    with listening(other) as address, pytest.raises(DeployError, match="was not signed by this federation's authority"):
        reach.probe(address, pack, "site")
    with listening(pack) as address, pytest.raises(DeployError, match=r"is for other names than 127\.0\.0\.2"):
        reach.probe(Address("127.0.0.2", address.port), pack, "site")
    with listening(None) as address, pytest.raises(DeployError, match="does not speak TLS"):
        reach.probe(address, pack, "site")


def test_a_server_with_an_expired_certificate_is_refused(pack: Path) -> None:
    who = certificates.authority("test")
    certificates.issue_server(who, [], issued(who, pack), timedelta(0))
    with listening(pack) as address, pytest.raises(DeployError, match=r"has expired; the coordinator"):
        reach.probe(address, pack, "site")
