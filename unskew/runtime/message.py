"""What a server and its clients write to each other around a plan's messages, and what became of it.

A letter is an action, a head of plain JSON and the encoded payloads the ledger weighs.  A head is a record of the types
below and is built as one, like any message: nothing else can be in it.
"""

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from unskew import wire
from unskew.errors import WireError
from unskew.protocol import ClientId, Held

Node = int
HEAD_BYTES = 1 << 20
COUNT = 1 << 53
"""No count in a message may be larger: beyond it a number is no longer exact as a float."""


# ---------------------------------------------------------------- what is asked
@dataclass(frozen=True)
class Place:
    """Where in which run something is asked.

    Attributes:
        run: The run's random name.
        config: SHA-256 of the resolved experiment.
        cell: Which seed and method, counted from 0 in the run's order.
        begun: (attempt, its first round) of each start of a server in this cell, ascending; the last one asks.
        round: Counted from 1.
    """

    run: str
    config: str
    cell: int
    begun: tuple[tuple[int, int], ...]
    round: int

    @property
    def attempt(self) -> int:
        """Whose server asks."""
        return self.begun[-1][0]

    def counts(self, round: int, attempt: int) -> bool:
        """Whether what was done in `round` under `attempt` is part of the run: no later server began before it."""
        known = any(a == attempt for a, _ in self.begun)
        return known and all(round < first for a, first in self.begun if a > attempt)


@dataclass(frozen=True)
class Hello:
    """Who are you, and do we mean the same?"""

    run: str
    config: str
    nonce: str


@dataclass(frozen=True)
class Order:
    """Run a step.  Payloads: the message, then the values that `moved` names.

    Attributes:
        hop: Which exchange of the round, counted from 0.
        index: How often this step was asked for before in this round.
        since: The last round after which the server knows the client to remember something; 0 is none.
        moved: Values the message carries that other clients held.
    """

    place: Place
    step: str
    hop: int
    index: int
    since: int
    moved: tuple[Held, ...]
    nonce: str


@dataclass(frozen=True)
class Fetch:
    """Send these held values.  No payload."""

    place: Place
    held: tuple[Held, ...]
    nonce: str


@dataclass(frozen=True)
class Evaluate:
    """Test the model you use after this round on your own data.  Payload: the model you are served, if there is one.

    Attributes:
        parts: personal and val, what is asked for of them.
        served: Whether a model comes with it.
        since: As in `Order`.
        last: Whether training is over, so that the client keeps this model.
    """

    place: Place
    parts: tuple[str, ...]
    served: bool
    since: int
    last: bool
    nonce: str


# ---------------------------------------------------------------- what is answered
@dataclass(frozen=True)
class Introduction:
    """Who I am.  Everything but `client` and `data` must be the server's own.

    Attributes:
        data: SHA-256 of the data; with the experiment's own split, of data set and division.
        own: Whether it declared data of its own.
        layout: SHA-256 of the model's tensor names, shapes and element types.
    """

    client: ClientId
    num_clients: int
    library: str
    config: str
    classes: tuple[str, ...]
    layout: str
    data: str
    own: bool
    nonce: str


@dataclass(frozen=True)
class Answer:
    """The step is done.  Payload: the reply.

    Attributes:
        remembers: Whether the client keeps something for later rounds.
        n: Its training examples; 0 where it does not say.
        examples: Examples that went through its optimisations; 0 where it does not say.
        losses: Mean training loss of each optimisation; empty where it does not say.
    """

    remembers: bool
    n: int
    examples: int
    losses: tuple[float, ...]
    nonce: str


@dataclass(frozen=True)
class Fetched:
    """Payloads: the values, in the order asked."""

    nonce: str


class Score(NamedTuple):
    """Mean accuracy and loss on n examples."""

    accuracy: float
    loss: float
    n: float


@dataclass(frozen=True)
class Evaluated:
    """(part, accuracy, loss, examples) of each part that has examples."""

    scores: tuple[tuple[str, float, float, int], ...]
    nonce: str


@dataclass(frozen=True)
class Refused:
    """Not done, and why."""

    reason: str
    nonce: str


Head = Hello | Order | Fetch | Evaluate | Introduction | Answer | Fetched | Evaluated | Refused
ASKED: Mapping[str, type] = {"hello": Hello, "ask": Order, "fetch": Fetch, "examine": Evaluate}
ANSWERED: Mapping[str, type] = {
    "hello": Introduction,
    "ask": Answer,
    "fetch": Fetched,
    "examine": Evaluated,
    "refused": Refused,
}


@dataclass(frozen=True, eq=False)
class Envelope:
    """One message on the network, in either direction; whoever received it has built nothing of it yet.

    Attributes:
        action: hello, ask, fetch, examine; of a reply also refused.
        head: JSON.
        parts: Encoded payloads.
    """

    action: str
    head: str
    parts: tuple[bytes, ...] = ()

    @property
    def payload(self) -> int:
        """Bytes of the encoded payloads."""
        return sum(map(len, self.parts))


def write(action: str, head: Head, *parts: bytes) -> Envelope:
    """A letter with this head and these payloads."""
    body, _ = wire.flatten(head)
    return Envelope(action, json.dumps(body, separators=(",", ":"), ensure_ascii=False), parts)


def read(envelope: Envelope, heads: Mapping[str, type]) -> Any:
    """The head of a letter that somebody else wrote.

    Raises:
        WireError: If it is not the head its action calls for, or holds a number that no head may hold.
    """
    if envelope.action not in heads:
        raise WireError(f"a letter must be one of {', '.join(heads)}, got {envelope.action[:40]!r}")
    if len(envelope.head) > HEAD_BYTES:
        raise WireError(f"the head of a letter has {len(envelope.head)} characters, more than the {HEAD_BYTES} allowed")
    try:
        body = json.loads(envelope.head, parse_constant=_refuse_constant)
        if "\\u" in envelope.head:
            json.dumps(body, ensure_ascii=False).encode()  # an escape can spell half a surrogate pair: no text
    except (ValueError, RecursionError) as error:
        raise WireError(f"the head of a letter is no JSON: {str(error)[:100]}") from None
    return wire.build(heads[envelope.action], body, {})


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def split(payload: bytes, sizes: list[int]) -> tuple[bytes, ...]:
    """The payloads of a letter that were joined to one array of bytes.

    Raises:
        WireError: If the sizes are not those of its parts.
    """
    if any(n < 0 for n in sizes) or sum(sizes) != len(payload):
        raise WireError(f"payloads of {str(sizes)[:80]} bytes were announced, {len(payload)} bytes came")
    ends = itertools.accumulate(sizes)
    return tuple(payload[end - n : end] for end, n in zip(ends, sizes, strict=True))


# ---------------------------------------------------------------- how it is carried
@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of a letter.

    Attributes:
        reply: What came back; None if nothing did.
        lost: Why nothing did.
        sent: Whether the letter left at all.
        down, up: Bytes the network put around letter and reply.
    """

    reply: Envelope | None
    lost: str = ""
    sent: bool = True
    down: int = 0
    up: int = 0


class Transport(Protocol):
    """A star: the server can write to every node and get one reply; nodes cannot write to each other."""

    def nodes(self) -> set[Node]:
        """Who is connected now."""
        ...

    def exchange(self, envelopes: Mapping[Node, Envelope], deadline_s: float) -> dict[Node, Outcome]:
        """Send all letters together and wait for the replies, at most `deadline_s` seconds."""
        ...


class Sent(NamedTuple):
    """One letter that was put on the network, for the record.

    Attributes:
        round, hop: Of the exchange it belongs to; the hop is -1 for evaluations.
        client: Who got or wrote it.
        way: down to the client, or up to the server.
        what: ask, fetch (a held value on its way through the server) or examine.
        payload: Bytes of encoded payload: for ask and fetch, what the ledger counts.
        framing: Bytes around it: head and the network's own records.
    """

    round: int
    hop: int
    client: ClientId
    way: Literal["down", "up"]
    what: str
    payload: int
    framing: int


Note = Callable[[str], None]
