"""Which ports are free, and what is taken for this federation's server; here that is a small HTTPS server."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta, tzinfo
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="a deployment needs the extra [flower]")

from unskew.deploy import certificates, reach
from unskew.deploy.settings import Address
from unskew.errors import DeployError


# ---------------------------------------------------------------- looking at a server
@contextmanager
def superlink(
    folder: Path | None,
    date: datetime | str | None = None,
    code: int = 200,
    endless: bool = False,
    text: bytes = b"",
) -> Iterator[Address]:
    """A server that answers as a SuperLink does, over TLS if there is a folder with certificates."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(code if self.path == "/health" else 404)
            says = date if isinstance(date, str) else format_datetime(date or datetime.now(UTC), usegmt=True)
            self.send_header("Date", says)
            if not endless:
                self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
            with suppress(OSError):  # the client has hung up
                while endless:
                    self.wfile.write(bytes(1 << 16))

        def log_message(self, *args: object) -> None:
            pass

    class Quiet(HTTPServer):
        def handle_error(self, *args: object) -> None:
            pass

    server = Quiet(("0.0.0.0", 0), Answer)
    if folder is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield Address("127.0.0.1", server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    certificates.issue_server(certificates.authority("test"), [], tmp_path)
    return tmp_path


def test_a_server_that_is_as_it_should_be_is_seen(pack: Path) -> None:
    with superlink(pack) as address:
        assert abs(reach.probe(address, pack / "ca.crt")) < 3


def test_a_server_with_an_expired_certificate_is_refused(pack: Path) -> None:
    certificates.issue_server(certificates.authority("test"), [], pack, days=0)
    with superlink(pack) as address, pytest.raises(DeployError, match=r"has expired; .*--renew"):
        reach.probe(address, pack / "ca.crt")


def test_a_server_of_another_authority_is_refused(pack: Path) -> None:
    other = pack / "other"
    other.mkdir()
    certificates.issue_server(certificates.authority("other"), [], other)
    with superlink(other) as address, pytest.raises(DeployError, match="not signed by this federation's authority"):
        reach.probe(address, pack / "ca.crt")


def test_a_server_under_a_name_that_is_not_in_its_certificate_is_refused(pack: Path) -> None:
    with superlink(pack) as address, pytest.raises(DeployError, match=r"is for other names than 127\.0\.0\.2"):
        reach.probe(Address("127.0.0.2", address.port), pack / "ca.crt")


def test_what_speaks_no_tls_or_is_no_superlink_is_not_taken_for_one(pack: Path) -> None:
    with superlink(None) as address, pytest.raises(DeployError, match="is it the right port"):
        reach.probe(address, pack / "ca.crt")
    with superlink(pack, code=502) as address, pytest.raises(reach.Unreachable, match="answers 502"):
        reach.probe(address, pack / "ca.crt")


def test_an_answer_without_an_end_is_not_read_whole(pack: Path) -> None:
    with superlink(pack, endless=True) as address:
        assert abs(reach.probe(address, pack / "ca.crt")) < 3


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> datetime:
    """The time this machine's clock shows, however long a test takes."""
    moment = datetime.now(UTC).replace(microsecond=0)

    class Stopped(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "datetime":  # type: ignore[override]
            return moment

    monkeypatch.setattr(reach, "datetime", Stopped)
    return moment


@pytest.mark.parametrize(("ahead_s", "says"), [(30, "30 s ahead of"), (-400, "400 s behind")])
def test_clocks_that_flower_would_not_forgive_are_refused_in_words(
    pack: Path, now: datetime, ahead_s: int, says: str
) -> None:
    with superlink(pack, now - timedelta(seconds=ahead_s)) as address, pytest.raises(DeployError, match=says):
        reach.probe(address, pack / "ca.crt")
