"""The connection between clients and their server: real gRPC over loopback, cut, refused, resumed."""

import functools
import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unskew.deploy import certificates, channel
from unskew.deploy.channel import CHUNK, Away, Connection, GrpcServer, TurnedAway, credentials
from unskew.errors import DeployError, WireError
from unskew.runtime import message
from unskew.runtime.membership import Requests
from unskew.runtime.message import Envelope, Lost

from .conftest import issued


# ---------------------------------------------------------------- frames
@given(st.text(max_size=9), st.text(max_size=99), st.lists(st.binary(max_size=50), max_size=4))
def test_a_message_comes_back_as_it_was(action: str, head: str, parts: list[bytes]) -> None:
    got = message.decode(b"".join(message.encode(Envelope(action, head, tuple(parts)))))
    assert (got.action, got.head, got.parts) == (action, head, tuple(parts))


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with suppress(WireError):
        message.decode(data)


@given(st.binary(max_size=40), st.lists(st.integers(-5, 50), max_size=6))
def test_payloads_are_split_into_exactly_themselves(payload: bytes, sizes: list[int]) -> None:
    head = json.dumps(["ask", "{}", sizes]).encode()
    try:
        parts = message.decode(message._LENGTH.pack(len(head)) + head + payload).parts
    except WireError:
        assert min(sizes, default=0) < 0 or sum(sizes) != len(payload)
        return
    assert b"".join(parts) == payload
    assert [len(p) for p in parts] == sizes


@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=5), st.data())
def test_what_is_left_of_a_message_begins_where_it_stopped(pieces: list[bytes], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, channel.size_of(pieces)))
    _, *chunks = channel._frames(pieces, start)
    left = b"".join(chunk[1:] for chunk in chunks)
    assert left == b"".join(pieces)[start:]


# ---------------------------------------------------------------- a network
class Relay:
    """Passes bytes between clients and a server, and can cut the line after some bytes of an upload."""

    def __init__(self, port: int) -> None:
        self.to, self.cut_after, self.away_s, self.up = port, -1, 0.0, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.lines: list[socket.socket] = []
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for line in (self.listener, *self.lines):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.to))
                self.lines += [near, far]
                for a, b, up in ((near, far, True), (far, near, False)):
                    threading.Thread(target=self._pass, args=(a, b, up), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.up += len(data) * up
                if up and 0 <= self.cut_after < self.up:
                    self.cut_after = -1
                    time.sleep(self.away_s)
                    break
                target.sendall(data)
        for line in (source, target):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)


def signed(caller: bytes, request: bytes) -> bytes:
    """Answers with what it is asked, backwards, or refuses."""
    if request == b"wrong":
        raise DeployError("this is wrong")
    return request[::-1]


@dataclass
class Network:
    """A server's folder and a client's, with what is said."""

    folder: Path
    notes: list[str] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)

    def registered(self) -> dict[bytes, int]:
        return {certificates.public_key((self.folder / str(c) / "site.crt").read_bytes()): c for c in range(3)}

    def server(self) -> GrpcServer:
        own, known = functools.partial(credentials, self.folder, "server"), self.registered()
        server = GrpcServer("127.0.0.1:0", own, known.get, signed, self.notes.append)
        return self.stack.enter_context(server)

    def relay(self, server: GrpcServer) -> Relay:
        relay = Relay(server.port)
        self.stack.callback(relay.close)
        return relay

    def connection(self, number: int, port: int, answer: Callable[[Envelope], Envelope]) -> Connection:
        own = functools.partial(credentials, self.folder / str(number), "site")
        return Connection(f"127.0.0.1:{port}", own, answer, lambda: {"disk": 7})

    def client(self, number: int, port: int, answer: Callable[[Envelope], Envelope]) -> Connection:
        connection = self.connection(number, port, answer)

        def forever() -> None:
            with suppress(Exception):  # the server ends with the test
                list(channel.ends(connection.serve))

        threading.Thread(target=forever, daemon=True).start()
        return connection


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("federation")
    authority = certificates.authority("test")
    certificates.issue_server(authority, ["127.0.0.1"], folder)
    certificates.save_authority(authority, folder)
    for c in range(3):
        issued(authority, folder / str(c))
    return folder


@pytest.fixture
def network(folder: Path) -> Iterator[Network]:
    network = Network(folder)
    with network.stack:
        yield network


def turned(envelope: Envelope) -> Envelope:
    return Envelope(envelope.action, envelope.head, tuple(p[::-1] for p in envelope.parts))


def here(server: GrpcServer, number: int) -> None:
    until = time.monotonic() + 20.0
    while len(server.clients()) < number:
        assert time.monotonic() < until, "nobody came"
        time.sleep(0.01)


def ask(
    server: GrpcServer, payload: bytes, nodes: int = 1, deadline_s: float = 30.0, most: int = 1 << 30
) -> dict[int, Any]:
    envelopes = {n: Envelope("ask", "{}", (payload,)) for n in range(nodes)}
    return Requests(server).exchange(envelopes, deadline_s, most)


def test_each_client_answers_what_it_was_asked_and_every_byte_is_counted(network: Network) -> None:
    server = network.server()
    for c in range(3):
        network.client(c, server.port, lambda e, c=c: Envelope(e.action, str(c), (e.parts[0][::-1],)))
    here(server, 3)
    for payload in (b"", b"ab", bytes(range(256)) * (CHUNK // 100)):
        came = ask(server, payload, 3)
        assert {n: (d.head, d.parts) for n, d in came.items()} == {n: (str(n), (payload[::-1],)) for n in range(3)}
        whole = message.encode(Envelope("ask", "0", (payload,)))
        assert {d.size for d in came.values()} == {channel.size_of(whole)}


def test_processes_that_are_begun_beside_a_connection_begin(network: Network) -> None:
    """Of those begun by a fork gRPC would make one in twenty crash, and Ray begins its own so."""
    server = network.server()
    network.client(0, server.port, turned)
    here(server, 1)
    assert not any(subprocess.run(["true"], preexec_fn=int).returncode for _ in range(80))


def test_a_line_that_is_cut_in_an_upload_goes_on_from_the_last_chunk_and_nothing_is_done_twice(
    network: Network,
) -> None:
    server, work = network.server(), []

    def answer(envelope: Envelope) -> Envelope:
        work.append(envelope.action)
        return turned(envelope)

    relay = network.relay(server)
    payload = bytes(range(256)) * 4096 * 20  # 20 MB
    network.client(0, relay.port, answer)
    here(server, 1)
    relay.cut_after, relay.up = 10 << 20, 0
    began = time.monotonic()
    (reply,) = ask(server, payload).values()
    assert reply.parts == (payload[::-1],)
    assert work == ["ask"]
    assert relay.up < len(payload) + (4 << 20), "the upload went on where it stood"
    assert time.monotonic() - began < 20.0


def test_a_client_that_works_while_its_line_breaks_is_not_asked_again(network: Network) -> None:
    server, work = network.server(), []

    def slow(envelope: Envelope) -> Envelope:
        work.append(envelope.action)
        time.sleep(1.0)
        return turned(envelope)

    relay = network.relay(server)
    network.client(0, relay.port, slow)
    here(server, 1)

    def cut() -> None:
        time.sleep(0.3)
        with suppress(OSError):
            relay.cut_after = 0

    threading.Thread(target=cut, daemon=True).start()
    (reply,) = ask(server, b"x" * 100).values()
    assert not isinstance(reply, Lost)
    assert work == ["ask"]


def test_who_is_silent_is_late_and_who_is_gone_is_lost(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "AWAY_S", 0.2)
    server = network.server()
    hold = threading.Event()
    network.client(0, server.port, lambda e: (hold.wait(20.0), turned(e))[1])
    here(server, 1)
    came = ask(server, b"x", 2, deadline_s=0.5)
    assert came[0].late
    assert came[0].reason == "late: no reply within 0.5 s"
    assert not came[1].sent
    assert came[1].reason == "client lost: it is not connected"
    hold.set()
    relay = network.relay(server)
    network.client(1, relay.port, turned)
    here(server, 2)
    relay.listener.shutdown(socket.SHUT_RDWR)
    relay.cut_after = 0
    lost = Requests(server).exchange({1: Envelope("ask", "{}", (b"x" * CHUNK,))}, 20.0, 1 << 30)[1]
    assert isinstance(lost, Lost)
    assert lost.reason.startswith("client lost: it no longer answers")


def test_a_reply_that_is_larger_than_any_can_be_is_refused_before_it_is_here(network: Network) -> None:
    server = network.server()
    network.client(0, server.port, lambda e: Envelope("ask", "{}", (bytes(5 << 20),)) if e.head == "{}" else turned(e))
    here(server, 1)
    assert ask(server, b"x", most=1 << 20)[0].reason == channel.TOO_LARGE
    after = Requests(server).exchange({0: Envelope("ask", "[]", (b"ab",))}, 20.0, 1 << 20)[0]
    assert not isinstance(after, Lost)
    assert after.parts == (b"ba",)


def test_a_key_that_is_taken_out_and_one_of_another_authority_take_no_part(network: Network, tmp_path: Path) -> None:
    server = network.server()
    known = network.registered()
    server.registered = {key: c for key, c in known.items() if c != 1}.get
    with pytest.raises(TurnedAway, match="its certificate is none of this federation's sites"):
        network.connection(1, server.port, turned).serve()
    issued(certificates.authority("other"), tmp_path / "c")
    (tmp_path / "c" / "ca.crt").write_bytes((network.folder / "ca.crt").read_bytes())
    stranger = functools.partial(credentials, tmp_path / "c", "site")
    with pytest.raises(Away):
        Connection(f"127.0.0.1:{server.port}", stranger, turned).serve()
    with pytest.raises(Away):
        channel.certify(f"127.0.0.1:{server.port}", stranger(), b"x", deadline_s=2.0)
    assert server.clients() == set()


def test_a_request_for_a_certificate_is_answered_or_refused_in_words(network: Network) -> None:
    server = network.server()
    address, own = f"127.0.0.1:{server.port}", credentials(network.folder / "0", "site")
    assert channel.certify(address, own, b"abc") == b"cba"
    with pytest.raises(TurnedAway, match="the server refuses this site: this is wrong"):
        channel.certify(address, own, b"wrong")


def test_a_client_that_is_dropped_does_not_come_back_and_says_how_it_is_while_it_is_there(network: Network) -> None:
    server = network.server()
    network.client(0, server.port, turned)
    here(server, 1)
    assert server.here()[0].status == {"disk": 7}
    assert server.here().keys() == {0}
    server.registered = {}.get
    server.drop(0)
    until = time.monotonic() + 5.0
    while server.clients():
        assert time.monotonic() < until
    time.sleep(1.0)
    assert server.clients() == set()


def test_a_second_process_with_a_clients_key_is_refused_and_told_of_once(network: Network) -> None:
    server = network.server()
    network.client(2, server.port, turned)
    here(server, 1)
    second = network.connection(2, server.port, turned)
    for _ in range(2):
        with pytest.raises(TurnedAway, match="another process takes part with this client's key"):
            second.serve()
    assert len(network.notes) == 1
    assert "node 2's key is tried by a second process" in network.notes[0]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 40), st.integers(0, 40)), max_size=8))
def test_whatever_a_client_sends_no_more_is_kept_than_was_allowed(messages: list[tuple[bool, int, int, int]]) -> None:
    server = GrpcServer("", lambda: (b"", b"", b""), {}.get, signed)
    out = server.join(0, "p", 0, 0)
    assert out is not None
    peer = server._peers[0]
    peer.begin(7, (b"x",))
    peer.most = 30
    for control, number, size, start in messages:
        head = channel._control(b"h", number=number, size=size, start=start)
        with suppress(WireError):
            server.take(0, out, head if control else b"c" + bytes(size))
    assert len(peer.data) <= 30
    assert server._done.qsize() <= 1


def test_a_server_that_a_site_does_not_trust_is_named_with_the_reason(network: Network, tmp_path: Path) -> None:
    def said(folder: Path, host: str, own: Path = tmp_path) -> str:
        server = network.stack.enter_context(
            GrpcServer("0.0.0.0:0", functools.partial(credentials, folder, "server"), {}.get, signed)
        )
        with pytest.raises((Away, TurnedAway)) as error:
            channel.certify(f"{host}:{server.port}", credentials(own, "site"), b"x", deadline_s=5.0)
        return str(error.value)

    who = certificates.authority("test")
    issued(who, tmp_path)
    for name, authority, valid in (("other", certificates.authority("other"), 9), ("old", who, 0), ("right", who, 9)):
        certificates.save_authority(authority, certificates.make_private(tmp_path / name))
        certificates.issue_server(authority, [], tmp_path / name, timedelta(days=valid))
    assert "is not of this federation" in said(tmp_path / "other", "127.0.0.1")
    assert "has expired; the coordinator has to start unskew fed serve" in said(tmp_path / "old", "127.0.0.1")
    assert "is for other names" in said(tmp_path / "right", "127.0.0.2")
    with socket.create_server(("127.0.0.1", 0)) as plain:

        def answer() -> None:
            with plain.accept()[0] as line:
                line.sendall(b"HTTP/1.1 400 no\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(Away, match="does not speak TLS"):
            channel.certify(f"127.0.0.1:{plain.getsockname()[1]}", credentials(tmp_path, "site"), b"x")
        port = plain.getsockname()[1]
    with pytest.raises(Away, match="nobody answers at"):
        channel.certify(f"127.0.0.1:{port}", credentials(tmp_path, "site"), b"x")
