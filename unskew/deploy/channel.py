"""The one connection that a client makes to its server, and keeps: a gRPC stream over mutual TLS.

The server sends requests on it, each with a number, and gets one reply to each.  Messages go in chunks of 1 MB:

    client -> server   h {"process", "server", "number", "have", "protocol", "library", "status"}
                                                                            who is here, what it has of which request
    server -> client   h {"server", "number", "size", "start", "have"}, then c CHUNK ...    a request, from byte `start`
    client -> server   h {"number", "size", "start"}, then c CHUNK ...                      its reply, from byte `start`
    client -> server   s {...}                                                              how it is, now and then
    client -> server   g                                                                    it does not come back

After a break both go on from the last whole chunk: the client says what it has of the request, the server what it has
of the reply.  A reply that was computed is kept until the next request: nothing is trained twice, nothing is lost.
A client is known by the key of its certificate.  Another call, with an invitation's certificate or the client's own,
hands in a request for a certificate.  gRPC goes through the proxy that `https_proxy` names.
"""

import asyncio
import json
import queue
import secrets
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from unskew.deploy.certificates import public_key
from unskew.errors import DeployError, WireError
from unskew.runtime.membership import printable
from unskew.runtime.message import PROTOCOL, Delivery, Envelope, Node, other_protocol, split
from unskew.version import __version__

CHUNK = 1 << 20
HEAD_BYTES = 1 << 23
"""Largest head of a frame: actions, heads and lengths of an envelope."""
AWAY_S = 30.0
"""Time for which a client whose connection broke may come back before it counts as gone, seconds."""
LOOK_S = 0.25
MOST = 1 << 36
"""Largest request, bytes."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
"""Pauses before a connection is made anew, seconds."""
TOO_LARGE = "its reply is larger than any of this run can be"
UNREADABLE = "its reply cannot be read"
GONE = "client lost: it no longer answers the network; its process, its machine or the line to it is down"
METHOD, CERTIFY, GOODBYE = "/unskew/Connect", "/unskew/Certify", b"g"
TELL_S = 15.0
"""Time after which a client says again how it is, seconds."""
Credentials = tuple[bytes, bytes, bytes]
"""Key, certificate and authority's certificate, PEM."""
OPTIONS = (
    ("grpc.max_receive_message_length", CHUNK + HEAD_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.so_reuseport", 0),
)
_LENGTH = struct.Struct("!I")


# ---------------------------------------------------------------- frames
def encode(envelope: Envelope) -> tuple[bytes, ...]:
    """The bytes of an envelope, in pieces: its payloads are not copied, and may be those of other envelopes, too."""
    head = json.dumps([envelope.action, envelope.head, [len(p) for p in envelope.parts]]).encode()
    return _LENGTH.pack(len(head)) + head, *envelope.parts


def decode(data: bytes | bytearray) -> Envelope:
    """Turn received bytes back into an envelope.

    Raises:
        WireError: If they are none.
    """
    try:
        (length,) = _LENGTH.unpack_from(data)
        action, head, sizes = json.loads(bytes(data[_LENGTH.size : _LENGTH.size + length]))
    except (struct.error, ValueError, TypeError, RecursionError):
        raise WireError("a message must begin with an action, a head and lengths") from None
    if not isinstance(action, str) or not isinstance(head, str):
        raise WireError("action and head of a message must be text")
    if not isinstance(sizes, list) or not all(type(n) is int for n in sizes):
        raise WireError("the lengths of a message's payloads must be a list of whole numbers")
    return Envelope(action, head, split(bytes(data[_LENGTH.size + length :]), sizes))


def size_of(pieces: Sequence[bytes]) -> int:
    """Bytes of an encoded envelope."""
    return sum(map(len, pieces))


def _control(kind: bytes, **entries: Any) -> bytes:
    return kind + json.dumps(entries).encode()


def _chunks(pieces: Sequence[bytes], start: int) -> Iterator[bytes]:
    """Cut an encoded envelope into messages, from byte `start` on."""
    for piece in pieces:
        view = memoryview(piece)[start:]
        start = max(start - len(piece), 0)
        for i in range(0, len(view), CHUNK):
            yield b"c" + bytes(view[i : i + CHUNK])


def _read(message: bytes, **kinds: type) -> dict[str, Any]:
    """Read a control message.

    Raises:
        WireError: If it has not these entries, of these types.
    """
    try:
        entries = json.loads(message[1:]) if message[:1] in b"hs" and len(message) <= CHUNK else None
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, dict) or any(type(entries.get(name)) is not kind for name, kind in kinds.items()):
        raise WireError(f"a message must say {', '.join(kinds)}")
    if any(type(value) is int and value < 0 for value in entries.values()):
        raise WireError("numbers in a message must not be negative")
    return entries


# ---------------------------------------------------------------- the server's side
@dataclass(eq=False)
class _Pending:
    """A request that a node has not answered."""

    number: int
    pieces: tuple[bytes, ...]
    payload: int
    most: int
    done: "queue.SimpleQueue[tuple[Node, Delivery]]"
    size: int = -1  # of the reply, once it is known
    reply: bytearray = field(default_factory=bytearray)
    sent: bool = False

    @property
    def framing(self) -> int:
        return size_of(self.pieces) - self.payload


@dataclass(eq=False)
class _Session:
    """A connection of a node: the process that made it, and what it had of a request when it came."""

    process: str
    server: str
    number: int
    have: int
    wake: asyncio.Event
    since: float = field(default_factory=time.time)


class Hub:
    """Gives requests to nodes and takes one reply to each.

    The plan's thread calls `nodes` and `exchange`, the network's thread the others.

    Args:
        watch: Called now and then by the plan's thread while it waits; what it raises ends the exchange.

    Attributes:
        status: By node, when it last said how it is, and what it said; it may have said anything.
    """

    def __init__(self, watch: Callable[[], None] = lambda: None) -> None:
        self.server, self.watch = secrets.token_hex(8), watch
        self._lock = threading.Lock()
        self._here: dict[Node, _Session] = {}
        self._left: dict[Node, float] = {}  # when the connection broke of those that may come back
        self._pending: dict[Node, _Pending] = {}
        self._numbers = 0
        self.status: dict[Node, tuple[float, dict[str, Any]]] = {}

    def wake(self, session: _Session) -> None:
        """Let the network's thread look for a request."""

    # ------------------------------------------------------------ the plan's thread
    def nodes(self) -> set[Node]:
        """Nodes that are connected, or were a moment ago."""
        self.watch()
        with self._lock:
            return {*self._here, *self._back()}

    def since(self) -> dict[Node, float]:
        """The nodes that are connected, and since when."""
        with self._lock:
            return {node: session.since for node, session in self._here.items()}

    def drop(self, node: Node) -> None:
        """End a node's connection; it does not come back."""
        with self._lock:
            session = self._here.pop(node, None)
            self._left.pop(node, None)
        if session is not None:
            self.wake(session)

    def exchange(
        self, envelopes: Mapping[Node, Envelope], deadline_s: float, most: int
    ) -> Iterator[tuple[Node, Delivery]]:
        """Send all envelopes together; yield each node's delivery as it comes, of at most `most` bytes."""
        done: queue.SimpleQueue[tuple[Node, Delivery]] = queue.SimpleQueue()
        end = time.monotonic() + deadline_s
        waiting: dict[Node, _Pending] = {}
        for node, envelope in envelopes.items():
            with self._lock:
                session = self._here.get(node)
                if session is None and node not in self._back():
                    done.put((node, Delivery(None, "client lost: it is not connected", sent=False)))
                self._numbers += 1
                pending = _Pending(self._numbers, encode(envelope), envelope.payload, most, done)
                waiting[node] = self._pending[node] = pending
            if session is not None:
                self.wake(session)
        try:
            while waiting:
                self.watch()
                left = end - time.monotonic()
                with suppress(queue.Empty):
                    node, delivery = done.get(timeout=min(max(left, 0.0), LOOK_S))
                    if waiting.pop(node, None) is not None:
                        yield node, delivery
                    continue
                if left <= 0.0:
                    break
                with self._lock:
                    gone = [n for n in waiting if n not in self._here and n not in self._back()]
                for node in gone:
                    pending = waiting.pop(node)
                    yield node, Delivery(None, GONE, sent=pending.sent, down=pending.framing)
            for node, pending in list(waiting.items()):
                lost = f"late: no reply within {deadline_s:g} s"
                yield node, Delivery(None, lost, down=pending.framing, late=True)
        finally:
            with self._lock:
                self._pending = {n: p for n, p in self._pending.items() if p.done is not done}

    def _back(self) -> set[Node]:
        """Nodes that may come back.  Called with the lock."""
        since = time.monotonic() - AWAY_S
        self._left = {n: t for n, t in self._left.items() if t > since}
        return set(self._left)

    # ------------------------------------------------------------ the network's thread
    def join(self, node: Node, process: str, server: str, number: int, have: int) -> _Session | None:
        """Take a connection in the place of the node's last one; None while another process has one."""
        with self._lock:
            other = self._here.get(node)
            if other is not None and other.process != process:
                return None
            session = self._here[node] = _Session(process, server, number, have, asyncio.Event())
            self._left.pop(node, None)
        if other is not None:
            other.wake.set()  # so that it ends
        return session

    def tell(self, node: Node, how: dict[str, Any]) -> None:
        """Keep what a node says of itself."""
        self.status[node] = time.time(), how

    def leave(self, node: Node, session: _Session, goodbye: bool) -> None:
        """Forget a connection; without a goodbye its node may come back."""
        with self._lock:
            if self._here.get(node) is session:
                del self._here[node]
                if not goodbye:
                    self._left[node] = time.monotonic()

    def current(self, node: Node, session: _Session) -> bool:
        """True if this is the node's connection."""
        with self._lock:
            return self._here.get(node) is session

    def request(self, node: Node, session: _Session, sent: int) -> tuple[_Pending, int] | None:
        """The request that a node should have, unless it is the one just sent, and the byte from which it lacks it."""
        with self._lock:
            pending = self._pending.get(node)
            if pending is None or pending.number == sent:
                return None
            same = session.server == self.server and session.number == pending.number
            pending.sent = True
            if not same:  # another process of the client, which knows nothing of an earlier reply
                pending.size, pending.reply = -1, bytearray()
            return pending, min(session.have, size_of(pending.pieces)) if same else 0

    def announce(self, node: Node, number: int, size: int, start: int) -> None:
        """Begin a reply, or go on with it.

        Raises:
            WireError: If it does not go on where it stood.
        """
        with self._lock:
            pending = self._pending.get(node)
            if pending is None or pending.number != number:
                return  # nobody waits for it any more
            if size > pending.most:
                self._finish(node, pending, Delivery(None, f"refused: {TOO_LARGE}", down=pending.framing))
            elif start != len(pending.reply) or pending.size not in (-1, size):
                raise WireError("a reply must go on where it stood")
            else:
                pending.size = size

    def take(self, node: Node, chunk: memoryview) -> None:
        """Take a chunk of the reply that was announced.

        Raises:
            WireError: If it is longer than was announced.
        """
        with self._lock:
            pending = self._pending.get(node)
            if pending is None or pending.size < 0:
                return
            pending.reply += chunk
            if len(pending.reply) > pending.size:
                raise WireError("a reply must not be longer than was announced")
            if len(pending.reply) < pending.size:
                return
            self._pending.pop(node)
        delivery = Delivery(None, f"refused: {UNREADABLE}", down=pending.framing)
        with suppress(WireError):
            reply = decode(pending.reply)
            delivery = Delivery(reply, down=pending.framing, up=len(pending.reply) - reply.payload)
        pending.done.put((node, delivery))

    def _finish(self, node: Node, pending: _Pending, delivery: Delivery) -> None:
        self._pending.pop(node, None)
        pending.done.put((node, delivery))


class GrpcServer(Hub):
    """A hub whose nodes are connected by gRPC; it listens as long as the `with` block goes on.

    Args:
        listen: "host:port"; port 0 takes a free one, which `port` then says.
        credentials: The server's own; asked again by `renew`.
        registered: The node that a public key belongs to, if it may take part; asked at each connection.
        certify: Answers (caller's certificate, its request) with a certificate, or nothing if that has to wait; what it
            raises is told.  Called in the network's thread.
        note: Called with a line, in the network's thread, when two processes use one key.
    """

    def __init__(
        self,
        listen: str,
        credentials: Callable[[], Credentials],
        registered: Callable[[bytes], Node | None],
        certify: Callable[[bytes, bytes], bytes],
        note: Callable[[str], None] = lambda text: None,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(watch)
        self.listen, self.registered, self.certify, self.note, self.port = listen, registered, certify, note, 0
        self._own = credentials
        self._noted: set[tuple[Node, str]] = set()

    def __enter__(self) -> "GrpcServer":
        ready: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(ready)), daemon=True)
        self._thread.start()
        if ready.get() is not None:
            raise DeployError(
                f"cannot listen at {self.listen}: another program does, or it is not this machine's; stop that one, or "
                "choose another --listen"
            )
        return self

    def __exit__(self, *of_error: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def wake(self, session: _Session) -> None:
        """Let the network's thread look for a request."""
        self._loop.call_soon_threadsafe(session.wake.set)

    def renew(self) -> None:
        """Listen with the credentials that there are now; connections are made anew, and nothing is lost."""
        self._loop.call_soon_threadsafe(self._again.set)

    async def _run(self, ready: "queue.SimpleQueue[Exception | None]") -> None:
        self._loop, self._over, self._again = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        handlers = {
            "Connect": grpc.stream_stream_rpc_method_handler(self._connected),
            "Certify": grpc.unary_unary_rpc_method_handler(self._certified),
        }
        listened = False
        while not self._over.is_set():
            try:
                server = grpc.aio.server(options=OPTIONS)
                server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("unskew", handlers),))
                key, certificate, root = self._own()
                own = grpc.ssl_server_credentials([(key, certificate)], root, require_client_auth=True)
                at = f"{self.listen.rpartition(':')[0]}:{self.port}" if self.port else self.listen
                self.port = server.add_secure_port(at, own)
                await server.start()
            except Exception as error:  # gRPC has no common class for what a port may refuse
                ready.put(error)
                if not listened:
                    return
                await asyncio.sleep(LOOK_S)  # whoever has the port may leave it
                continue
            ready.put(None)
            listened = True
            await _either(self._over, self._again)
            self._again.clear()
            await server.stop(0.5)

    async def _connected(self, incoming: AsyncIterator[bytes], context: Any) -> None:
        """One connection, from its introduction to its end."""
        node, goodbye = self._known(context.auth_context()), False
        if node is None:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "its certificate is none of this federation's sites")
            return
        messages = aiter(incoming)
        try:
            place = {"process": str, "server": str, "number": int, "have": int}
            first = _read(await anext(messages), **place, protocol=int, library=str, status=dict)
        except (StopAsyncIteration, WireError):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a connection must begin with an introduction")
            return
        if odd := other_protocol(first["protocol"], printable(first["library"], 40)):
            self._once(node, f"node {node} is refused: {odd}")
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, odd)
            return
        session = self.join(node, first["process"], first["server"], first["number"], first["have"])
        if session is None:
            self._once(
                node,
                f"node {node}'s key is tried by a second process, which is refused. Ask that site whether they started "
                "two; if not, remove it and invite it anew",
            )
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, "another process takes part with this client's key")
            return
        self.tell(node, first["status"])
        parts = (self._send(node, session, context), self._receive(node, messages), _either(self._over, self._again))
        tasks = {asyncio.create_task(part) for part in parts}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            goodbye = any(task.exception() is None and task.result() is GOODBYE for task in done)
        finally:
            for task in tasks:
                task.cancel()
            self.leave(node, session, goodbye)

    def _once(self, node: Node, text: str) -> None:
        """Note something once, however often a node tries."""
        if (node, text) not in self._noted:
            self._noted.add((node, text))
            self.note(text)

    async def _receive(self, node: Node, messages: AsyncIterator[bytes]) -> bytes | None:
        """Take a node's replies until it says goodbye, or its line breaks."""
        async for message in messages:
            if message == GOODBYE:
                return GOODBYE
            if message[:1] == b"c":
                self.take(node, memoryview(message)[1:])
            elif message[:1] == b"s":
                self.tell(node, _read(message))
            else:
                head = _read(message, number=int, size=int, start=int)
                self.announce(node, head["number"], head["size"], head["start"])
        return None

    async def _send(self, node: Node, session: _Session, context: Any) -> None:
        """Send a node whatever is asked of it, until another connection takes the place of this one."""
        sent = -1
        while self.current(node, session):
            if (request := self.request(node, session, sent)) is not None:
                pending, start = request
                sent, size, have = pending.number, size_of(pending.pieces), len(pending.reply)
                await context.write(_control(b"h", server=self.server, number=sent, size=size, start=start, have=have))
                for chunk in _chunks(pending.pieces, start):
                    await context.write(chunk)
            await session.wake.wait()
            session.wake.clear()

    async def _certified(self, request: bytes, context: Any) -> bytes:
        try:
            return self.certify(context.auth_context().get("x509_pem_cert", [b""])[0], request)
        except DeployError as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            raise

    def _known(self, auth: Mapping[str, Sequence[bytes]]) -> Node | None:
        with suppress(DeployError):
            return self.registered(public_key(auth.get("x509_pem_cert", [b""])[0]))
        return None


async def _either(*events: asyncio.Event) -> None:
    waiting = {asyncio.create_task(event.wait()) for event in events}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


# ---------------------------------------------------------------- the client's side
class Away(DeployError):
    """The connection to the server could not be made, or broke; it may be made later."""


class TurnedAway(DeployError):
    """The server does not take this client, with the reason that it gives."""


class Connection:
    """A client's connection: it is made anew whenever it breaks, and answers one request after another.

    Args:
        address: "host:port" of the server.
        credentials: The client's own; asked at each connection, since certificates are renewed.
        answer: Answers a request; it is called in a thread of its own, so that a line that breaks while it trains is
            made anew meanwhile.
        status: Says how the client is, for the server's status.
    """

    def __init__(
        self,
        address: str,
        credentials: Callable[[], Credentials],
        answer: Callable[[Envelope], Envelope],
        status: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self._credentials, self._status = credentials, status
        self._address, self._answer, self._process = address, answer, secrets.token_hex(8)
        self._lock = threading.Lock()
        self._server, self._number, self._size = "", 0, 0  # of the last request
        self._request = bytearray()
        self._reply: tuple[bytes, ...] | None = None
        self._out: tuple[queue.SimpleQueue[Iterator[bytes] | None], int] | None = None
        self._work: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
        threading.Thread(target=self._worker, daemon=True).start()

    def serve(self) -> None:
        """Take part until the connection ends.

        Raises:
            Away: If it could not be made, or broke.
            TurnedAway: If the server does not take this client.
        """
        out: queue.SimpleQueue[Iterator[bytes] | None] = queue.SimpleQueue()
        with self._lock:
            have, number, server = len(self._request), self._number, self._server
        own = {"process": self._process, "protocol": PROTOCOL, "library": __version__, "status": self._status()}
        out.put(iter([_control(b"h", server=server, number=number, have=have, **own)]))

        def outgoing() -> Iterator[bytes]:
            due = time.monotonic() + TELL_S
            while True:
                try:
                    messages = out.get(timeout=max(due - time.monotonic(), 0.0))
                except queue.Empty:
                    due = time.monotonic() + TELL_S
                    messages = iter([_control(b"s", **self._status())])
                if messages is None:
                    return
                yield from messages

        try:
            with _channel(self._address, self._credentials()) as channel:
                try:
                    for message in channel.stream_stream(METHOD)(outgoing()):
                        self._take(message, out)
                except KeyboardInterrupt:
                    out.put(iter([GOODBYE]))
                    time.sleep(LOOK_S)  # in which the goodbye leaves
                    raise
        except WireError as error:
            raise Away(f"the server at {self._address} sends what no server does: {error}") from None
        except grpc.RpcError as error:
            raise _failed(self._address, error) from None
        finally:
            with self._lock:
                self._out = None
            out.put(None)
        raise Away(f"the server at {self._address} has ended the connection")

    def _take(self, message: bytes, out: "queue.SimpleQueue[Iterator[bytes] | None]") -> None:
        with self._lock:
            if message[:1] == b"c":
                self._request += memoryview(message)[1:]
            else:
                head = _read(message, server=str, number=int, size=int, start=int, have=int)
                if (self._server, self._number) != (head["server"], head["number"]):
                    self._server, self._number = head["server"], head["number"]
                    self._request, self._reply = bytearray(), None
                elif head["start"] == head["size"]:  # it has all of it, and works on it, or has done so
                    self._out = out, head["have"]
                    self._send()
                    return
                if head["start"] != len(self._request) or head["size"] > MOST:
                    raise WireError(f"a request must go on where it stood and have at most {MOST} bytes")
                self._size, self._out = head["size"], (out, head["have"])
            if len(self._request) > self._size:
                raise WireError("a request must not be longer than was announced")
            if len(self._request) == self._size:
                self._work.put(self._request)

    def _worker(self) -> None:
        while True:
            request = self._work.get()
            try:
                envelope = decode(request)
            except WireError as error:
                envelope = Envelope(f"unreadable: {error}", "")  # so that the answer is a refusal with this text
            reply = encode(self._answer(envelope))
            with self._lock:
                if request is self._request:
                    self._reply = reply
                    self._send()

    def _send(self) -> None:
        """Send the reply, if there is one and a connection that waits for it.  Called with the lock."""
        if self._reply is None or self._out is None:
            return
        (out, start), self._out = self._out, None
        head = _control(b"h", number=self._number, size=size_of(self._reply), start=start)
        out.put(iter([head]))
        out.put(_chunks(self._reply, start))


def _channel(address: str, credentials: Credentials) -> Any:
    key, certificate, root = credentials
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(root, key, certificate), options=OPTIONS)


def _failed(address: str, error: grpc.RpcError) -> Away | TurnedAway:
    """Say in words why a connection failed."""
    code, details = error.code(), str(error.details())
    if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.ALREADY_EXISTS):
        return TurnedAway(f"the server refuses this site: {details}")
    why = "cannot be made, or broke" if code == grpc.StatusCode.UNAVAILABLE else f"ended: {details or code.name}"
    return Away(f"the connection to {address} {why}")


def certify(address: str, credentials: Credentials, request: bytes, deadline_s: float = 10.0) -> bytes:
    """Ask the server for a certificate, as the holder of an invitation or of a certificate that is to be renewed.

    Returns:
        The certificate, PEM; empty if the coordinator has yet to approve it.

    Raises:
        Away: If the server cannot be reached.
        TurnedAway: If it refuses, with its reason.
    """
    try:
        with _channel(address, credentials) as channel:
            answer: bytes = channel.unary_unary(CERTIFY)(request, timeout=deadline_s)
            return answer
    except grpc.RpcError as error:
        raise _failed(address, error) from None


def stay_connected(connection: Connection, lost: Callable[[DeployError, float], None]) -> None:
    """Make a connection again and again, for ever; `lost` gets the reason for each end, and the seconds it had held."""
    pause = 0.0
    while True:
        began = time.monotonic()
        try:
            connection.serve()
        except (Away, TurnedAway) as error:
            held = time.monotonic() - began
            pause = FIRST_PAUSE_S if held > LONGEST_PAUSE_S else min(2 * pause + FIRST_PAUSE_S, LONGEST_PAUSE_S)
            time.sleep(pause)
            lost(error, held)


def credentials(folder: Path, name: str) -> Credentials:
    """Read NAME.key, NAME.crt and ca.crt of a folder.

    Raises:
        DeployError: If one cannot be read.
    """
    key, certificate, root = (folder / file for file in (f"{name}.key", f"{name}.crt", "ca.crt"))
    try:
        return key.read_bytes(), certificate.read_bytes(), root.read_bytes()
    except OSError as error:
        raise DeployError(f"cannot read {error.filename}: {error.strerror}; restore it from a backup") from None
