"""An outsider with a client's `ca.crt`: through the server's port nothing answers that asks for no key."""

import http.client
import socket
import ssl
import threading
import time
import tomllib
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="a deployment needs the extra [flower]")

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from unskew.deploy import certificates, folders, launch, processes, proxy, reach
from unskew.deploy.settings import Address
from unskew.experiment.config import Experiment

CONTROL = "/v1/control/list-nodes"
KEY = ec.generate_private_key(ec.SECP384R1())


def own_address() -> str:
    """An address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(s.getsockname()[0])


def signed(key: ec.EllipticCurvePrivateKey, age_s: float = 0.0) -> dict[str, str]:
    """Headers of a call as Flower's client signs it."""
    timestamp = (now() - timedelta(seconds=age_s)).isoformat()
    return {
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(key.public_key())).decode(),
        TIMESTAMP_HEADER: timestamp,
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(key, timestamp.encode())).decode(),
    }


def ask(
    at: Address,
    root: Path,
    path: str,
    body: bytes = b"",
    method: str = "POST",
    version: ssl.TLSVersion | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, bytes]:
    context = ssl.create_default_context(cafile=root)
    if version is not None:
        context.maximum_version = version
    connection = http.client.HTTPSConnection(at.host, at.port, timeout=30, context=context)
    try:
        connection.request(
            method, path, body, {"Content-Type": "application/protobuf", "X-Key": "k", **(headers or {})}
        )
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


class SuperLink(BaseHTTPRequestHandler):
    """Answers whatever it is asked, with what it was asked."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        text = f"{self.command} {self.path} {self.headers['X-Key']} ".encode() + body
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PUT = answer

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Address, Path]]:
    """A proxy at this machine's own address before something that answers everything; the authority's certificate."""
    folder, host = tmp_path_factory.mktemp("server"), own_address()
    certificates.issue_server(certificates.authority("test"), [host], folder)
    (folder / "clients").mkdir()
    (folder / "clients" / "0.pub").write_text(certificates.openssh(KEY.public_key()))
    inner = ThreadingHTTPServer(("127.0.0.1", 0), SuperLink)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    inner.socket = context.wrap_socket(inner.socket, server_side=True)
    outer = proxy.server(folder, "0.0.0.0", port := reach.free_ports(1)[0], inner.server_address[1])
    threads = [threading.Thread(target=inner.serve_forever, args=(0.01,)), threading.Thread(target=outer.run)]
    for thread in threads:
        thread.start()
    try:
        while not outer.started:
            assert threads[1].is_alive()
            time.sleep(0.01)
        yield Address(host, port), folder / "ca.crt"
    finally:
        outer.should_exit = True
        inner.shutdown()
        for thread in threads:
            thread.join()
        inner.server_close()


def test_a_client_s_calls_reach_the_superlink_whole_and_come_back(served: tuple[Address, Path]) -> None:
    body = bytes(range(256)) * 20000
    answer = ask(*served, "/v1/fleet/push-object", body, headers=signed(KEY))
    assert answer == (200, b"POST /v1/fleet/push-object k " + body)
    assert ask(*served, "/health", method="GET") == (200, b"GET /health k ")


@pytest.mark.parametrize(
    "path",
    [
        CONTROL,
        "/v1/runtime/acquire-task",
        "/v1/fleet/../control/list-nodes",
        "/v1/fleet/%2e%2e/control/list-nodes",
        "/v1/fleet%2f..%2fcontrol%2flist-nodes",
        "/v1/fleet/..%2fcontrol/list-nodes",
        "/v1/fleet/get-run/../../control/list-nodes",
        "//v1/control/list-nodes",
        "/v1/Control/list-nodes",
        "/v1/fleet/get-run?x=/v1/control/list-nodes",
        "/v1/fleet/",
        "/docs",
    ],
)
def test_an_outsider_gets_nothing_but_a_refusal(served: tuple[Address, Path], path: str) -> None:
    status, text = ask(*served, path)
    assert (status, text) == (403, b"only /v1/fleet/ is served here")


def test_a_request_beyond_all_bounds_is_cut_off(served: tuple[Address, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "LARGEST", 1000)
    assert ask(*served, "/v1/fleet/push-object", b"x" * 1000, headers=signed(KEY))[0] == 200
    assert ask(*served, "/v1/fleet/push-object", b"x" * 1001, headers=signed(KEY))[0] == 413


def test_what_no_registered_key_has_signed_is_short(served: tuple[Address, Path]) -> None:
    """Flower takes all of a call into memory before it looks at the signature: a stranger could fill the server's."""
    long, short = b"x" * (proxy.LARGEST_OF_STRANGERS + 1), b"x" * 1000
    forged = {**signed(KEY), TIMESTAMP_HEADER: now().isoformat()}
    for headers in (
        {},
        signed(ec.generate_private_key(ec.SECP384R1())),
        signed(KEY, 400.0),
        forged,
        {FLEET_HTTP_PUBLIC_KEY_HEADER: "?"},
    ):
        assert ask(*served, "/v1/fleet/push-object", short, headers=headers)[0] == 200  # the refusal is Flower's
        assert ask(*served, "/v1/fleet/push-object", long, headers=headers)[0] == 413
    assert ask(*served, "/v1/fleet/push-object", long, headers=signed(KEY))[0] == 200


def test_a_key_that_is_added_is_known_without_a_restart(tmp_path: Path) -> None:
    assert proxy.registered(tmp_path) == frozenset()
    (tmp_path / "clients").mkdir()
    assert proxy.registered(tmp_path) == frozenset()
    (tmp_path / "clients" / "0.pub").write_text(certificates.openssh(KEY.public_key()))
    assert proxy.is_signed(signed(KEY), proxy.registered(tmp_path))


def test_only_tls_1_3_is_spoken(served: tuple[Address, Path]) -> None:
    with pytest.raises(ssl.SSLError):
        ask(*served, "/health", version=ssl.TLSVersion.TLSv1_2)


@pytest.mark.network
@pytest.mark.timeout(120)
def test_an_outsider_can_neither_list_nodes_nor_start_a_program(
    small: Callable[..., Experiment], tmp_path: Path
) -> None:
    """The attack that worked: the port of a packed server answered the Control API to whoever had `ca.crt`."""
    host = own_address()
    listen = Address("0.0.0.0", reach.free_ports(1)[0])
    folders.pack(tmp_path / "f", small(), 2, listen, Address(host, listen.port), portable=False)
    server = tmp_path / "f" / "server"
    with processes.ProcessGroup() as group:
        started = launch.start_server(group, server, listen)
        table = tomllib.loads((started.home / "config.toml").read_text())
        inner = int(table["superlink"]["federation"]["address"].rpartition(":")[2])
        root = tmp_path / "f" / "client-0" / "ca.crt"
        assert reach.probe(Address(host, listen.port), root) < 60
        for path in (CONTROL, "/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task"):
            assert ask(Address(host, listen.port), root, path)[0] == 403
        # A client without a key is refused by Flower itself; the SuperLink's own port answers on loopback only.
        assert ask(Address(host, listen.port), root, "/v1/fleet/pull-messages")[0] in (400, 401, 403)
        with pytest.raises(ConnectionRefusedError):
            ask(Address(host, inner), root, CONTROL)
        assert ask(Address("127.0.0.1", inner), root, CONTROL)[0] == 200
