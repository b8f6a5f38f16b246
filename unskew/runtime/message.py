"""Envelopes of a plan's messages between a server and its clients, and their transport.

An envelope is an action, a head in JSON and the encoded payloads, whose bytes the ledger counts.  A head has one of the
types below and is decoded like any message.
"""

import itertools
import json
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, NamedTuple, Protocol

from unskew import wire
from unskew.data.preprocess import ColumnRule, ColumnSums
from unskew.errors import WireError
from unskew.protocol import ClientId, Held
from unskew.version import __version__

HEAD_BYTES = 1 << 20
_LENGTH = struct.Struct("!I")
PROTOCOL = 2
"""Number of what is spoken here; the one before it is understood, too.  A field that a later one adds has a default:
who does not know it leaves it out, and reads over it.  2 has the reasons of refused replies, shapes of data and sums.
"""
COUNT = 1 << 53
"""Largest count in a message: a larger number is no longer exact as a float."""


# ---------------------------------------------------------------- requests
@dataclass(frozen=True)
class RoundContext:
    """The run, cell and round of a request.

    Attributes:
        run: Random name of the run.
        config: SHA-256 of the resolved experiment.
        cell: Index of the seed and method, counted from 0 in the run's order.
        round: Round, counted from 1.
        attempt: Random name of this attempt at the round, which may be run again.
    """

    run: str
    config: str
    cell: int
    round: int
    attempt: str = ""

    def answer(self, hop: int) -> str:
        """Name of a client's answer in exchange `hop`, which identifies its memory from then on."""
        return f"{self.round:06d}-{self.attempt}-{hop:04d}"


@dataclass(frozen=True)
class Hello:
    """Request for the client's `ClientInfo`, the first message to a new connection.

    Attributes:
        refused: Why the client's last introduction was refused, for its log; empty in a first message.
        agreed: Rules of all columns with the agreed numbers; None before.
    """

    run: str
    config: str
    refused: str = ""
    agreed: dict[str, ColumnRule] | None = None


@dataclass(frozen=True)
class StepRequest:
    """Request to run a step.  Payloads: the message, then the values that `moved` names.

    Attributes:
        context: Its place in the run.
        step: Name of the step.
        hop: Exchange of the round, counted from 0.
        index: Number of earlier requests for this step in this round.
        since: The answer whose memory counts (`RoundContext.answer`); empty for none.
        moved: Values in the message that other clients held.
        refused: Why the client's last reply was refused, for its log; empty if it was not.
    """

    context: RoundContext
    step: str
    hop: int
    index: int
    since: str
    moved: tuple[Held, ...]
    refused: str = ""


@dataclass(frozen=True)
class FetchRequest:
    """Request for held values.  No payload."""

    context: RoundContext
    held: tuple[Held, ...]


@dataclass(frozen=True)
class EvaluationRequest:
    """Request to evaluate the client's own model on its own data.  Payload: the model the server serves it, if any.

    Attributes:
        parts: Parts of the client's data to evaluate on: personal, val or both.
        since: Same as in `StepRequest`.
        last: True if training is over, so that the client keeps its model.
    """

    context: RoundContext
    parts: tuple[str, ...]
    since: str
    last: bool


# ---------------------------------------------------------------- replies
@dataclass(frozen=True)
class ClientInfo:
    """A client's description of itself; all but `client`, `library`, `data` and `examples` must match the server's.

    Attributes:
        client: Number of the client, from 0.
        num_clients: Number of clients in the federation.
        library: Version of unskew; a difference is noted, since numbers may differ.
        config: SHA-256 of the resolved experiment.
        classes: Names of the task's classes.
        layout: SHA-256 of the model's tensor names, shapes and element types.
        data: SHA-256 of the data and of the experiment's own splits, keyed with the client's secret.
        own: True if the client declared data of its own.
        examples: Number of its training examples by the experiment's seeds; empty if it keeps them to itself.
        columns: SHA-256 of its data's input columns, their kinds and their order; empty if they have no names.
        images: "bytes" or "floats" and the shape of its images; empty without images.
        scale: Exponent of the power of two next to the largest absolute value of its images; None for bytes.
        frozen: SHA-256 of its network's frozen tensors; empty if it has none.
        input, target: Type and shape of one input and of one target, for a server without data, as ("float32", "64").
        sums: Of its columns, while numbers are yet to be agreed on; it then knows neither inputs nor model.
    """

    client: ClientId
    num_clients: int
    library: str
    config: str
    classes: tuple[str, ...]
    layout: str
    data: str
    own: bool
    examples: tuple[int, ...] = ()
    columns: str = ""
    images: str = ""
    scale: int | None = None
    frozen: str = ""
    input: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    sums: dict[str, ColumnSums] | None = None


@dataclass(frozen=True)
class StepReply:
    """Result of a step.  Payload: the step's reply.

    Attributes:
        remembers: True if the client keeps something for later rounds.
        n: Number of the client's training examples; 0 if it keeps that to itself.
        examples: Number of examples processed in training; 0 if the client keeps that to itself.
        losses: Mean training loss of each local optimisation; empty if the client keeps them to itself.
    """

    remembers: bool
    n: int
    examples: int
    losses: tuple[float, ...]


@dataclass(frozen=True)
class FetchReply:
    """Held values as payloads, in the order of the request."""


class Score(NamedTuple):
    """Values of the task's measures on n examples, in the task's order; NaN where one is not defined."""

    values: tuple[float, ...]
    n: float


@dataclass(frozen=True)
class EvaluationReply:
    """(part, values of the task's measures, number of examples) for each part that has examples.

    None is the value of a measure that is not defined there.
    """

    scores: tuple[tuple[str, tuple[float | None, ...], int], ...]


@dataclass(frozen=True)
class Refusal:
    """Answer of a client that refuses a request, or (waiting) needs permission first, with the reason."""

    reason: str


REQUESTS: Mapping[str, type] = {
    "hello": Hello,
    "ask": StepRequest,
    "fetch": FetchRequest,
    "evaluate": EvaluationRequest,
}
REPLIES: Mapping[str, type] = {
    "hello": ClientInfo,
    "ask": StepReply,
    "fetch": FetchReply,
    "evaluate": EvaluationReply,
    "refused": Refusal,
    "waiting": Refusal,
}


@dataclass(frozen=True, eq=False)
class Envelope:
    """One message on the network, in either direction.

    Attributes:
        action: hello, ask, fetch or evaluate; in a reply also refused or waiting.
        head: JSON of the head.
        parts: Encoded payloads.
    """

    action: str
    head: str
    parts: tuple[bytes, ...] = ()

    @property
    def payload(self) -> int:
        """Size of the encoded payloads, bytes."""
        return sum(map(len, self.parts))

    @property
    def framing(self) -> int:
        """Bytes around them on the network."""
        return len(encode(self)[0])

    @property
    def size(self) -> int:
        """All of its bytes on the network."""
        return self.framing + self.payload


def write(action: str, head: object, *parts: bytes) -> Envelope:
    """Make an envelope with this head and these payloads."""
    body, _ = wire.flatten(head)
    return Envelope(action, json.dumps(body, separators=(",", ":"), ensure_ascii=False), parts)


def read(envelope: Envelope, heads: Mapping[str, type]) -> Any:
    """The head of an envelope; one of another protocol version, or malformed, is refused."""
    if envelope.action not in heads:
        raise WireError(f"the action of a message must be one of {', '.join(heads)}, got {envelope.action[:40]!r}")
    if len(envelope.head) > HEAD_BYTES:
        raise WireError(
            f"the head of a message has {len(envelope.head)} characters, more than the {HEAD_BYTES} allowed"
        )
    try:
        body = json.loads(envelope.head, parse_constant=_refuse_constant)
        if "\\u" in envelope.head:
            json.dumps(body, ensure_ascii=False).encode()  # an escape can spell half a surrogate pair: no text
    except (ValueError, RecursionError) as error:
        raise WireError(f"the head of a message is not JSON: {str(error)[:100]}") from None
    of = heads[envelope.action]
    if isinstance(body, dict):
        known = {f.name: f.default for f in fields(of)}
        later = {name: wire.flatten(default)[0] for name, default in known.items() if default is not MISSING}
        body = {name: value for name, value in (later | body).items() if name in known}
    return wire.build(of, body, {})


def other_protocol(theirs: int, library: str) -> str:
    """Why another protocol version cannot be understood, and who must upgrade; empty if it can."""
    if abs(theirs - PROTOCOL) <= 1:
        return ""
    both = f"the site speaks protocol {theirs} (unskew {library}), the server {PROTOCOL} (unskew {__version__})"
    return f"{both}; upgrade the {'site' if theirs < PROTOCOL else 'server'}"


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


# ---------------------------------------------------------------- envelopes as bytes
def encode(envelope: Envelope) -> tuple[bytes, ...]:
    """The bytes of an envelope, in pieces; payloads are not copied."""
    head = json.dumps([envelope.action, envelope.head, [len(p) for p in envelope.parts]]).encode()
    return _LENGTH.pack(len(head)) + head, *envelope.parts


def decode(data: object) -> Envelope:
    """An envelope from received bytes; anything else is refused."""
    if not isinstance(data, bytes | bytearray):
        raise WireError(f"a message must be bytes, got {type(data).__name__}")
    view = memoryview(data)
    try:
        end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        action, head, sizes = json.loads(bytes(view[_LENGTH.size : end]))
    except (struct.error, ValueError, TypeError, RecursionError):
        raise WireError("a message must begin with an action, a head and lengths") from None
    if not isinstance(action, str) or not isinstance(head, str):
        raise WireError("action and head of a message must be text")
    if not isinstance(sizes, list) or not all(type(n) is int and n >= 0 for n in sizes):
        raise WireError("the lengths of a message's payloads must be a list of whole numbers")
    if sum(sizes) != len(view) - end:
        raise WireError(f"payloads of {str(sizes)[:80]} bytes were announced, {max(len(view) - end, 0)} bytes arrived")
    ends = itertools.accumulate(sizes, initial=end)
    return Envelope(action, head, tuple(bytes(view[start : start + n]) for start, n in zip(ends, sizes, strict=False)))


def answer_to(data: object, answer: Callable[[Envelope], Envelope]) -> tuple[bytes, ...]:
    """The encoded answer to an encoded request, which may be malformed."""
    try:
        envelope = decode(data)
    except WireError as error:
        envelope = Envelope(f"unreadable: {error}", "")  # so that the answer is a refusal with this text
    return encode(answer(envelope))


# ---------------------------------------------------------------- delivery
AWAY = "client lost: it is not connected"
TOO_LARGE = "refused: its reply is larger than any of this run can be"


@dataclass(frozen=True)
class Lost:
    """Stands for a reply or a held value that did not come, or cannot be used.

    Attributes:
        reason: Reason, a sentence without its client.
        sent: False if the request never left the server.
        late: True if there was no answer in time.
    """

    reason: str
    sent: bool = True
    late: bool = False


class Transport(Protocol):
    """A star network: the server sends to any client and gets one reply; clients do not reach each other.

    The network authenticates clients, by a key or otherwise.
    """

    def clients(self) -> set[ClientId]:
        """Clients that are connected now."""
        ...

    def send(self, client: ClientId, envelope: Envelope, deadline_s: float, most: int) -> bool:
        """Send a request to a client without a pending one; False if it cannot be reached.

        After `deadline_s` its reply is no longer wanted; a reply of more than `most` bytes is refused before it is in
        memory.
        """
        ...

    def receive(self, seconds: float) -> Iterable[tuple[ClientId, Envelope | Lost]]:
        """Replies that have come, or reasons why not; waits for the first at most `seconds`."""
        ...

    def forget(self, client: ClientId, late: str = "") -> None:
        """Stop waiting for a client's reply; `late` says why, if it is late."""
        ...


def reply_of(data: object, most: float = math.inf) -> Envelope | Lost:
    """A received reply, which may be malformed or too large."""
    if isinstance(data, bytes | bytearray) and len(data) > most:
        return Lost(TOO_LARGE)
    try:
        return decode(data)
    except WireError as error:
        return Lost(f"refused: {error}")


class NetworkTransfer(NamedTuple):
    """One envelope that really crossed the network: a row of the record.

    Attributes:
        round, hop: Exchange it belongs to; the hop is -1 for evaluations, and before the first round.
        client: Client that received or sent it.
        way: down to the client, or up to the server.
        what: ask, fetch (a held value relayed by the server), evaluate, or sums (by which numbers are agreed on).
        payload: Size of the encoded payloads, bytes: for ask and fetch, what the ledger counts.
        framing: Bytes around them: the head and the network's own records.
    """

    round: int
    hop: int
    client: ClientId
    way: Literal["down", "up"]
    what: str
    payload: int
    framing: int


Note = Callable[[str], None]
