"""The one connection that a client makes to its server, and keeps: a gRPC stream over mutual TLS.

The server sends requests on it, each with a number, and gets one reply to each.  Messages go in chunks of 1 MB:

    client -> server   h {"process", "number", "have", "protocol", "library", "status"}        hello, after each break
    server -> client   h {"number", "size", "start", "have"}, then c CHUNK ...              a request, from byte `start`
    client -> server   h {"number", "size", "start"}, then c CHUNK ...                      its reply, from byte `start`
    client -> server   s {...}                                                              its status, now and then

After a break both continue from the last whole chunk.  A computed reply is kept until the next request, so nothing is
trained twice.  A client is identified by the key of its certificate.  A second call, with the certificate of an
invitation or of the client, requests a certificate.  gRPC uses the proxy in `https_proxy`.
"""

import json
import math
import queue
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import grpc

from unskew.deploy.certificates import public_key
from unskew.errors import DeployError, WireError
from unskew.runtime.log import printable
from unskew.runtime.message import (
    PROTOCOL,
    TOO_LARGE,
    Envelope,
    Lost,
    answer_to,
    encode,
    other_protocol,
    reply_of,
)
from unskew.version import __version__

CHUNK = 1 << 20
AWAY_S = 30.0
"""Time for which a client whose connection broke may come back before it counts as gone, seconds."""
LOOK_S = 0.25
MOST_SITES = 10_000
"""Connections at a time."""
MOST = 1 << 36
"""Largest request, bytes."""
PAUSE_S = 0.5
"""Pause before a connection is made anew, seconds."""
GONE = "client lost: it no longer answers the network; its process, its machine or the line to it is down"
METHOD, CERTIFY = "/unskew/Connect", "/unskew/Certify"
TELL_S = 15.0
"""Time after which a client says again how it is, seconds."""
Node = int
"""Number of a site in the federation; in an experiment it is a client of another number."""
Credentials = tuple[bytes, bytes, bytes]
"""Key, certificate and authority's certificate, PEM."""
OPTIONS = (
    ("grpc.max_receive_message_length", 2 * CHUNK),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 2 * CHUNK),  # what is on its way when a line breaks is sent again
)


def size_of(pieces: Sequence[bytes]) -> int:
    """Bytes of an encoded envelope."""
    return sum(map(len, pieces))


def _control(kind: bytes, **entries: Any) -> bytes:
    return kind + json.dumps(entries).encode()


def _frames(pieces: Sequence[bytes], start: int, **head: Any) -> Iterator[bytes]:
    """An encoded envelope as messages, from byte `start` on."""
    yield _control(b"h", size=size_of(pieces), start=start, **head)
    for piece in pieces:
        view = memoryview(piece)[start:]
        start = max(start - len(piece), 0)
        for i in range(0, len(view), CHUNK):
            yield b"".join((b"c", view[i : i + CHUNK]))


def _read(message: bytes, **kinds: type) -> dict[str, Any]:
    """Read a control message, which has these entries, of these types, or is refused."""
    entries: Any = None
    with suppress(ValueError, RecursionError):
        entries = json.loads(message[1:]) if message[:1] in b"hs" and len(message) <= CHUNK else None
    complete = isinstance(entries, dict) and all(type(entries.get(name)) is kind for name, kind in kinds.items())
    if not complete or any(type(value) is int and value < 0 for value in entries.values()):
        raise WireError(f"a message must say {', '.join(kinds)}, and no number below zero")
    return dict(entries)


Outgoing = queue.SimpleQueue[Iterator[bytes] | None]
"""What a connection sends; None ends it."""


@dataclass(eq=False)
class Line:
    """One end of the exchange between a site and the server, which outlives broken connections.

    Attributes:
        out: The connection; None without one.
        number: Number of the current request.
        own: What this end sends, encoded: the request at the server, the reply at the site; None if there is none.
        have: Bytes of it that the other side has.
        size, data: What this end receives: its size, and the bytes so far.
    """

    out: Outgoing | None = None
    number: int = 0
    own: tuple[bytes, ...] | None = None
    have: int = 0
    size: int = -1
    data: bytearray = field(default_factory=bytearray)

    def begin(self, number: int, own: tuple[bytes, ...] | None = None) -> None:
        """Begin the exchange of another request."""
        self.number, self.own, self.have, self.size, self.data = number, own, 0, -1, bytearray()

    def send(self) -> None:
        """Send what the other side lacks, and say how much of its message is here."""
        if self.out is not None and self.own is not None:
            self.out.put(_frames(self.own, self.have, number=self.number, have=len(self.data)))

    def announce(self, size: int, start: int) -> None:
        """Accept the announcement of a message; it must continue at the byte reached."""
        if start != len(self.data) or self.size not in (-1, size):
            raise WireError("a message must continue at the byte reached")
        self.size = size

    def take(self, chunk: memoryview) -> bytearray | None:
        """Take a chunk; return the message once it is complete.  More bytes than announced are refused."""
        if len(self.data) + len(chunk) > self.size:
            raise WireError("a message must not be longer than was announced")
        self.data += chunk
        return self.data if len(self.data) == self.size else None


# ---------------------------------------------------------------- the server's side
@dataclass(eq=False)
class Peer(Line):
    """A site at the server, whether it is connected or not.

    Attributes:
        process: Random name of the process that made the connection.
        most: Largest reply to the request, bytes.
        sent: True if the request has left.
        since, heard: When it connected, and when its last status came, seconds since 1970.
        status: Its last status; any content is possible.
        left: When its last connection broke, by the clock of this process.
    """

    process: str = ""
    most: int = 0
    sent: bool = False
    since: float = 0.0
    heard: float = 0.0
    status: dict[str, Any] = field(default_factory=dict)
    left: float = -math.inf

    @property
    def known(self) -> bool:
        """True if it is connected, or may reconnect."""
        return self.out is not None or self.left > time.monotonic() - AWAY_S


@dataclass(eq=False)
class GrpcServer:
    """Sends requests to nodes and takes one reply to each; it listens inside a `with` block.

    The plan's thread calls `clients`, `send`, `receive` and `forget`; each connection has two threads of its own.

    Attributes:
        listen: "host:port"; port 0 takes a free one, and `port` has it.
        credentials: The server's own; called at each connection, since certificates are renewed.
        registered: The node with a public key, if it may take part; called at each connection.
        certify: Answers (caller's certificate, its request) with a certificate, or b"" while approval is pending.
        note: Called with a line when two processes use one key, or a site must be upgraded.
        watch: Called now and then by the plan's thread while it waits; an error it raises ends the exchange.
    """

    listen: str
    credentials: Callable[[], Credentials]
    registered: Callable[[bytes], Node | None]
    certify: Callable[[bytes, bytes], bytes]
    note: Callable[[str], None] = lambda text: None
    watch: Callable[[], None] = lambda: None
    port: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._peers: defaultdict[Node, Peer] = defaultdict(Peer)
        self._done: queue.SimpleQueue[tuple[Node, int, Envelope | Lost]] = queue.SimpleQueue()
        self._numbers = secrets.randbits(52)  # so that no request has the number of another server's
        self._noted: set[tuple[Node, str]] = set()

    def __enter__(self) -> "GrpcServer":
        self._grpc = grpc.server(ThreadPoolExecutor(MOST_SITES), options=OPTIONS)
        connect = grpc.stream_stream_rpc_method_handler(self._connected)
        certify = grpc.unary_unary_rpc_method_handler(self._certified)
        every = grpc.method_handlers_generic_handler("unskew", {"Connect": connect, "Certify": certify})
        self._grpc.add_generic_rpc_handlers((every,))
        own = grpc.dynamic_ssl_server_credentials(self._configuration(), self._configuration, True)
        try:
            self.port = self._grpc.add_secure_port(self.listen, own)
        except RuntimeError:
            raise DeployError(
                f"cannot listen at {self.listen}: another program does, or it is not this machine's; stop that one, or "
                "choose another --listen"
            ) from None
        self._grpc.start()
        return self

    def __exit__(self, *of_error: object) -> None:
        self._grpc.stop(0.5).wait()

    def _configuration(self) -> Any:
        key, certificate, root = self.credentials()
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root)

    # ------------------------------------------------------------ the plan's thread
    def clients(self) -> set[Node]:
        """Sites that are connected, or were until a moment ago."""
        self.watch()
        with self._lock:
            return {node for node, peer in self._peers.items() if peer.known}

    def here(self) -> dict[Node, Peer]:
        """Sites that are connected."""
        with self._lock:
            return {node: peer for node, peer in self._peers.items() if peer.out is not None}

    def drop(self, node: Node) -> None:
        """End a node's connection for good."""
        with self._lock:
            peer = self._peers[node]
            if peer.out is not None:
                peer.out.put(None)
            peer.out, peer.left = None, -math.inf

    def send(self, node: Node, envelope: Envelope, deadline_s: float, most: int) -> bool:
        """Send a request to a site, now or when it reconnects; False if it is gone."""
        with self._lock:
            peer = self._peers[node]
            self._numbers += 1
            if peer.known:
                peer.begin(self._numbers, encode(envelope))
                peer.most, peer.sent = most, peer.out is not None
                peer.send()
            return peer.known

    def receive(self, seconds: float) -> Iterator[tuple[Node, Envelope | Lost]]:
        """Replies that have come, each within its size limit, and sites that are gone."""
        self.watch()
        with suppress(queue.Empty):
            node, number, came = self._done.get(timeout=min(seconds, LOOK_S))
            if self._peers[node].number == number:  # else it was forgotten
                yield node, came
            return
        with self._lock:
            gone = {node: peer.sent for node, peer in self._peers.items() if peer.own and not peer.known}
        for node, sent in gone.items():
            self.forget(node)
            yield node, Lost(GONE, sent=sent)

    def forget(self, node: Node, late: str = "") -> None:
        """Stop waiting for a site's reply."""
        with self._lock:
            self._peers[node].begin(0)

    # ------------------------------------------------------------ a connection's threads
    def join(self, node: Node, process: str, number: int, have: int) -> Outgoing | None:
        """Replace the node's last connection; None while another process has one."""
        with self._lock:
            peer = self._peers[node]
            if peer.out is not None:
                if peer.process != process:
                    return None
                peer.out.put(None)
            peer.out, peer.since, peer.process = queue.SimpleQueue(), time.time(), process
            if number != peer.number:  # another process, which knows nothing of an earlier request or reply
                peer.begin(peer.number, peer.own)
            elif peer.own is not None:
                peer.have = min(have, size_of(peer.own))
            peer.sent = True
            peer.send()
            return peer.out

    def tells(self, node: Node, status: dict[str, Any]) -> None:
        """Keep a site's status."""
        self._peers[node].heard, self._peers[node].status = time.time(), status

    def leave(self, node: Node, out: Outgoing) -> None:
        """Forget a connection; its node may reconnect."""
        with self._lock:
            if (peer := self._peers[node]).out is out:
                peer.out, peer.left = None, time.monotonic()

    def take(self, node: Node, out: Outgoing, message: bytes) -> None:
        """Take a message of a reply: first its announcement, then its chunks."""
        head = None if message[:1] == b"c" else _read(message, number=int, size=int, start=int)
        with self._lock:
            peer, whole = self._peers[node], None
            if peer.own is None or peer.out is not out:
                return  # nobody waits for it any more
            if head is not None:
                if head["number"] != peer.number:
                    return
                if head["size"] <= peer.most:
                    peer.announce(head["size"], head["start"])
                    return
            elif peer.size < 0 or (whole := peer.take(memoryview(message)[1:])) is None:
                return
            number = peer.number
            peer.begin(number)
        self._done.put((node, number, Lost(TOO_LARGE) if whole is None else reply_of(whole)))

    def _connected(self, incoming: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """One connection, from its introduction to its end."""
        abort: Callable[[grpc.StatusCode, str], NoReturn] = context.abort
        node = self.registered(public_key(context.auth_context()["x509_pem_cert"][0]))
        if node is None:
            abort(grpc.StatusCode.PERMISSION_DENIED, "its certificate is none of this federation's sites")
        try:
            place = {"process": str, "number": int, "have": int}
            first = _read(next(incoming), **place, protocol=int, library=str, status=dict)
        except (StopIteration, WireError):
            abort(grpc.StatusCode.INVALID_ARGUMENT, "a connection must begin with an introduction")
        if odd := other_protocol(first["protocol"], printable(first["library"], 40)):
            self._once(node, f"node {node} is refused: {odd}")
            abort(grpc.StatusCode.PERMISSION_DENIED, odd)
        out = self.join(node, **{name: first[name] for name in place})
        if out is None:
            self._once(
                node,
                f"node {node}'s key is tried by a second process, which is refused. Ask that site whether they started "
                "two; if not, remove it and invite it anew",
            )
            abort(grpc.StatusCode.ALREADY_EXISTS, "another process takes part with this client's key")
        self.tells(node, first["status"])
        context.add_callback(lambda: out.put(None))
        threading.Thread(target=self._receive, args=(node, out, incoming), daemon=True).start()
        try:
            while (frames := out.get()) is not None:
                yield from frames
        finally:
            self.leave(node, out)

    def _receive(self, node: Node, out: Outgoing, incoming: Iterator[bytes]) -> None:
        """Take a node's replies until its line breaks."""
        with suppress(WireError, grpc.RpcError):
            for message in incoming:
                if message[:1] == b"s":
                    self.tells(node, _read(message))
                else:
                    self.take(node, out, message)
        out.put(None)

    def _once(self, node: Node, text: str) -> None:
        """Note something once, however often a node tries."""
        if (node, text) not in self._noted:
            self._noted.add((node, text))
            self.note(text)

    def _certified(self, request: bytes, context: Any) -> bytes:
        try:
            return self.certify(context.auth_context()["x509_pem_cert"][0], request)
        except DeployError as error:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))  # which raises
            raise


# ---------------------------------------------------------------- the client's side
class Away(DeployError):
    """The connection to the server failed or broke; trying again may help."""


class TurnedAway(DeployError):
    """The server refuses this client, with a reason."""


@dataclass(eq=False)
class Connection:
    """A client's connection, which answers one request after another.

    Attributes:
        address: "host:port" of the server.
        credentials: The client's own; called at each connection, since certificates are renewed.
        answer: Answers a request, in a thread of its own, so that the connection can be renewed while it trains.
        status: The client's status, for the server.
    """

    address: str
    credentials: Callable[[], Credentials]
    answer: Callable[[Envelope], Envelope]
    status: Callable[[], dict[str, Any]] = dict

    def __post_init__(self) -> None:
        self._lock, self._line, self._process = threading.Lock(), Line(), secrets.token_hex(8)
        self._work: queue.SimpleQueue[tuple[int, bytearray]] = queue.SimpleQueue()
        threading.Thread(target=self._worker, daemon=True).start()

    def serve(self) -> None:
        """Take part until the connection ends.

        Raises:
            Away: If it failed or broke.
            TurnedAway: If the server refuses this client.
        """
        out: Outgoing = queue.SimpleQueue()
        with self._lock:
            have, number = len(self._line.data), self._line.number
        own = {"process": self._process, "protocol": PROTOCOL, "library": __version__, "status": self.status()}
        out.put(iter([_control(b"h", number=number, have=have, **own)]))

        def outgoing() -> Iterator[bytes]:
            due = time.monotonic() + TELL_S
            while True:
                try:
                    messages = out.get(timeout=max(due - time.monotonic(), 0.0))
                except queue.Empty:
                    due = time.monotonic() + TELL_S
                    messages = iter([_control(b"s", **self.status())])
                if messages is None:
                    return
                yield from messages

        try:
            with _channel(self.address, self.credentials()) as channel:
                for message in channel.stream_stream(METHOD)(outgoing()):
                    self._take(message, out)
        except WireError as error:
            raise Away(f"the server at {self.address} sent an invalid message: {error}") from None
        except grpc.RpcError as error:
            raise _failed(self.address, error) from None
        finally:
            with self._lock:
                self._line.out = None
            out.put(None)
        raise Away(f"the server at {self.address} has ended the connection")

    def _take(self, message: bytes, out: Outgoing) -> None:
        with self._lock:
            line = self._line
            if message[:1] == b"c":
                if (whole := line.take(memoryview(message)[1:])) is not None:
                    self._work.put((line.number, whole))
                return
            head = _read(message, number=int, size=int, start=int, have=int)
            if line.number != head["number"]:
                line.begin(head["number"])
            if head["size"] > MOST:
                raise WireError(f"a request must have at most {MOST} bytes")
            line.announce(head["size"], head["start"])
            line.out, line.have = out, head["have"]
            line.send()  # the reply to a request that was here already

    def _worker(self) -> None:
        while True:
            number, request = self._work.get()
            reply = answer_to(request, self.answer)
            with self._lock:
                if number == self._line.number:
                    self._line.own = reply
                    self._line.send()


def _channel(address: str, credentials: Credentials) -> Any:
    key, certificate, root = credentials
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(root, key, certificate), options=OPTIONS)


_UNTRUSTED = "the server at {} cannot be trusted: its certificate "
_FAILED = (
    ("certificate has expired", _UNTRUSTED + "has expired; the coordinator has to start unskew fed serve again"),
    ("not yet valid", _UNTRUSTED + "is not valid yet, or the clock here is behind; compare both clocks"),
    ("Hostname", _UNTRUSTED + "is for other names; name one of these as host in site.toml"),
    ("VERIFY_FAILED", _UNTRUSTED + "is not of this federation: another authority signed it; check the address"),
    ("WRONG_VERSION_NUMBER", "{} does not speak TLS; is it the right port?"),
    ("refused", "nobody answers at {}"),
)
"""What gRPC says of a connection that failed, and what it means."""


def _failed(address: str, error: grpc.RpcError) -> Away | TurnedAway:
    """Say in words why a connection failed."""
    code, details = error.code(), str(error.details())
    if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.ALREADY_EXISTS):
        return TurnedAway(f"the server refuses this site: {details}")
    for words, meaning in _FAILED:
        if words in details:
            kind = TurnedAway if meaning.startswith(_UNTRUSTED) else Away
            return kind(meaning.format(address))
    why = "cannot be made, or broke" if code == grpc.StatusCode.UNAVAILABLE else f"ended: {details or code.name}"
    return Away(f"the connection to {address} {why}")


def certify(address: str, credentials: Credentials, request: bytes, deadline_s: float = 60.0) -> bytes:
    """Request a certificate from the server, with an invitation or a certificate to be renewed.

    Returns it (PEM), or b"" while the coordinator has yet to approve it.

    Raises:
        Away, TurnedAway: As `Connection.serve`.
    """
    try:
        with _channel(address, credentials) as channel:
            answer: bytes = channel.unary_unary(CERTIFY)(request, timeout=deadline_s)
            return answer
    except grpc.RpcError as error:
        raise _failed(address, error) from None


def ends(serve: Callable[[], None]) -> Iterator[Away | TurnedAway]:
    """Reconnect for ever; yield the reason of each end."""
    while True:
        try:
            serve()
        except (Away, TurnedAway) as error:
            yield error
            time.sleep(PAUSE_S)


def credentials(folder: Path, name: str) -> Credentials:
    """Read NAME.key, NAME.crt and ca.crt of a folder."""
    key, certificate, root = (folder / file for file in (f"{name}.key", f"{name}.crt", "ca.crt"))
    return key.read_bytes(), certificate.read_bytes(), root.read_bytes()
