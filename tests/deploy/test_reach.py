"""Which ports are free, and what is taken for this federation's server."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="a deployment needs the extra [deploy]")

from unskew.deploy import certificates, reach
from unskew.deploy.settings import Address
from unskew.errors import DeployError


# ---------------------------------------------------------------- ports
def test_free_ports_differ_and_can_be_had() -> None:
    ports = reach.free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        reach.check_port(Address("127.0.0.1", port))


def test_a_port_in_use_is_refused_with_the_remedy() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        with pytest.raises(DeployError, match=f"port {port} of 127.0.0.1 is in use by another program"):
            reach.check_port(Address("127.0.0.1", port))
    reach.check_port(Address("127.0.0.1", port))


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(DeployError, match=r"cannot listen on 192\.0\.2\.1"):
        reach.check_port(Address("192.0.2.1", 8443))


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
    certificates.issue_client(who, 0, tmp_path)
    return tmp_path


def test_a_server_that_is_as_it_should_be_is_seen(pack: Path) -> None:
    with listening(pack) as address:
        reach.probe(address, pack)


def test_what_is_not_this_federations_server_is_refused_in_words(pack: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    certificates.issue_server(certificates.authority("other"), [], other)
    with listening(other) as address, pytest.raises(DeployError, match="was not signed by this federation's authority"):
        reach.probe(address, pack)
    with listening(pack) as address, pytest.raises(DeployError, match=r"is for other names than 127\.0\.0\.2"):
        reach.probe(Address("127.0.0.2", address.port), pack)
    with listening(None) as address, pytest.raises(DeployError, match="does not speak TLS"):
        reach.probe(address, pack)


def test_a_server_with_an_expired_certificate_is_refused(pack: Path) -> None:
    who = certificates.authority("test")
    certificates.issue_client(who, 0, pack)
    certificates.issue_server(who, [], pack, days=0)
    with listening(pack) as address, pytest.raises(DeployError, match=r"has expired; the server needs .*--renew"):
        reach.probe(address, pack)


def test_nobody_and_nowhere_are_told_apart_from_a_refusal(pack: Path) -> None:
    with pytest.raises(reach.Unreachable, match=r"nobody answers at 127\.0\.0\.1"):
        reach.probe(Address("127.0.0.1", reach.free_ports(1)[0]), pack)
    with pytest.raises(reach.Unreachable, match=r"nobody answers at no\.such\.host\.invalid"):
        reach.probe(Address("no.such.host.invalid", 443), pack)
