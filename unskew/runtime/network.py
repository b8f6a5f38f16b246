"""A plan whose clients are elsewhere: the server's half of a deployment, whatever the network.

It meets a plan's requests as the simulator does, with the same keys, the same hops and the same rows in the ledger, but
its clients are reached by letters.  The network is a star: a value held by one client and sent to another is fetched
and passed on.  The ledger keeps what the plan meant (device to device); what really went up and down is kept beside
it, as `Sent` rows.

A reply counts once it is known to answer this very letter, to be of the type the step declares and to be a message
this run can have (`guard.py`).  What is not is a failure of that client, as a reply that never came.
"""

import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from unskew import wire
from unskew.errors import ConfigError, ProtocolError, QuorumError, WireError
from unskew.keys import Key
from unskew.ledger import SERVER, Transfer, node
from unskew.local.executor import Executor, untrained
from unskew.local.sequential import server_work
from unskew.local.trainer import LocalTrainer
from unskew.protocol import (
    NOBODY,
    Algorithm,
    Ask,
    ClientId,
    Collect,
    Federation,
    Fold,
    Held,
    Keep,
    Layout,
    Me,
    Probe,
    Sgd,
    drive,
    held_at,
    map_held,
    map_keep,
    refuse_request,
    steps_of,
)
from unskew.runtime.in_process import Effort, Failure, Simulator, Trace
from unskew.runtime.membership import Membership, printable
from unskew.runtime.memory import Memory
from unskew.runtime.message import (
    ANSWERED,
    Answer,
    Envelope,
    Evaluate,
    Evaluated,
    Fetch,
    Fetched,
    Order,
    Outcome,
    Place,
    Refused,
    Score,
    Sent,
    read,
    write,
)
from unskew.runtime.validation import Validator, limit_bytes, odd_ones, sizes_of
from unskew.tree import Params
from unskew.units import Bytes
from unskew.world.channel import Channel, Even
from unskew.world.outage import Outage

S = TypeVar("S")
NO_HOP = -1


@dataclass(frozen=True, eq=False)
class Model:
    """What a server knows of the task.

    Attributes:
        num_classes: Of the task.
        layout: The model's tensor names.
        initial: The model every client can build for itself.
        initialise: A fresh model for a key.
        server_trainer: Does the server's own local work; None where it does none.
    """

    num_classes: int
    layout: Layout
    initial: Params
    initialise: Callable[[Key], Params]
    server_trainer: LocalTrainer | None = None


@dataclass(frozen=True)
class Terms:
    """How a deployment deals with its clients.

    Attributes:
        deadline_s: Seconds an exchange may take, unless the plan says otherwise.
        max_norm: Largest L2 norm of a reply's floating-point tensors.
        models: How many models a reply may be as large as, four times over.
    """

    deadline_s: float = 600.0
    max_norm: float = 1e6
    models: int = 8


class Remote(Generic[S]):
    """One algorithm on clients that are elsewhere; used as `Simulator` is.

    Client memory stays with the clients.  Here is only, by client, the last round after which it remembered something;
    a client that no longer does is refused by itself, in words.

    Args:
        algorithm: What to run.
        model: What it is run on.
        num_clients: Of the federation, present or not.
        roll: Who is there.
        executor: Grades the global model; trains nothing.
        begin: (first round) -> the starts of a server in this cell, this one included: `Place.begun`.
        cell: Which seed and method, counted from 0.
        seed: Root of all randomness.
        clients_per_round: Cohort size.
        outage: Losses on top of the real ones.
        channel: Answers `Probe`.
        terms: Deadlines and bounds.

    Raises:
        ProtocolError: If a step's annotations do not say what it receives, returns and keeps.
        ConfigError: If the cohort is nobody, or the method pools all data in one place.
    """

    def __init__(
        self,
        algorithm: Algorithm[S],
        model: Model,
        num_clients: int,
        membership: Membership,
        executor: Executor,
        *,
        begin: Callable[[int], tuple[tuple[int, int], ...]],
        cell: int = 0,
        seed: int = 0,
        clients_per_round: int | None = None,
        outage: Outage | None = None,
        channel: Channel | None = None,
        terms: Terms | None = None,
    ) -> None:
        if clients_per_round is not None and clients_per_round < 1:
            raise ConfigError(f"clients_per_round must be >= 1, got {clients_per_round}")
        if getattr(algorithm, "pooled", False) and num_clients > 1:
            raise ConfigError("a method that pools all clients' data cannot be deployed: data stay where they are")
        self.algorithm, self.model, self.membership, self.executor = algorithm, model, membership, executor
        self.clients = tuple(range(num_clients))
        self.key, self.cell = Key(seed), cell
        self.cohort = clients_per_round or num_clients
        self.outage, self.channel, self.terms = outage or Outage(), channel or Even(), terms or Terms()
        self.memory, self.memory_type = Memory(), int
        self._begin = begin
        self._begun: tuple[tuple[int, int], ...] = ()
        self._steps = steps_of(algorithm)
        self._signatures = wire.signatures(algorithm)
        self._held_type = wire.held_type(algorithm)
        wire.memory_type(algorithm)
        limit, sizes = (
            limit_bytes(model.initial, self.terms.models),
            sizes_of(model.num_classes, model.layout, model.initial),
        )
        self._guard = Validator(model.initial, limit, self.terms.max_norm, 0, sizes)
        self._admit: Callable[[str, Any, Params, Layout], None] | None = getattr(algorithm, "admit", None)
        self._failures: list[Failure] = []
        self._sent: list[Sent] = []

    # ------------------------------------------------------------------ rounds
    def start(self) -> S:
        """The state before round 1."""
        return self.algorithm.init(self.model.initial, self._federation(0))

    def round(self, state: S, t: int) -> tuple[S, Trace]:
        """Round `t`, counted from 1: the next state, and what happened.

        Raises:
            QuorumError: If too few clients replied, or one that holds what the plan collects is gone.
        """
        self.membership.call()
        exchange = _Round(self, t)
        try:
            new: S = drive(self.algorithm.round(state, self._federation(t)), exchange.answer)
            self.memory.commit(t)
        except BaseException:
            self.memory.discard()
            raise
        return new, exchange.trace

    def evaluate_on_clients(
        self, state: S, t: int, parts: Sequence[str], last: bool = False
    ) -> dict[str, dict[ClientId, Score]]:
        """Scores of each client's own model on its own data after round `t`, by part: personal, val.

        A client tests itself; one that does not answer is absent, and among the failures.  After the last round it
        keeps the model.
        """
        place = self._place(t, t + 1)
        envelopes, nonces = {}, {}
        for c in self.clients:
            served = self.algorithm.serve(state, c)
            nonces[c] = secrets.token_hex(16)
            head = Evaluate(place, tuple(parts), served is not None, self.known(c), last, nonces[c])
            envelopes[c] = write("examine", head, *([] if served is None else [wire.encode(served)]))
        found: dict[str, dict[ClientId, Score]] = {part: {} for part in parts}
        for c, outcome in self.transport("examine", t, NO_HOP, envelopes, self.terms.deadline_s).items():
            try:
                head = self.opened(outcome, "examine", Evaluated, nonces[c], 0)
                self._guard.check(head)
                scores = {name: Score(a, loss, float(n)) for name, a, loss, n in head.scores}
                if not scores.keys() <= set(parts) or any(not 0 <= s.accuracy <= 1 or s.n < 1 for s in scores.values()):
                    raise WireError("scores must be accuracies in [0, 1] on at least one example of what was asked for")
            except WireError as error:
                self._failures.append(Failure(t, c, "examine", printable(str(error))))
                continue
            for name, score in scores.items():
                found[name][c] = score
        return found

    def apart(self) -> tuple[list[Failure], list[Sent]]:
        """What happened beside the plan since this was last asked: failures, and letters that were really sent."""
        failures, sent = self._failures, self._sent
        self._failures, self._sent = [], []
        return failures, sent

    # ------------------------------------------------------------------ letters
    def transport(
        self, what: str, t: int, hop: int, envelopes: Mapping[ClientId, Envelope], deadline_s: float
    ) -> dict[ClientId, Outcome]:
        """Send letters and note what went to and fro."""
        failed = [Failure(t, c, "hello", reason) for c, reason in self.membership.refused()]
        self._failures.extend(failed)
        outcomes = self.membership.exchange(envelopes, deadline_s)
        for c, outcome in outcomes.items():
            if outcome.sent:
                self._sent.append(Sent(t, hop, c, "down", what, envelopes[c].payload, outcome.down))
            if outcome.reply is not None:
                self._sent.append(Sent(t, hop, c, "up", what, outcome.reply.payload, outcome.up))
        return outcomes

    def opened(self, outcome: Outcome, action: str, of: type, nonce: str, parts: int) -> Any:
        """The head of the reply to a letter.

        Raises:
            WireError: If there is none, it is a refusal, or it is no reply to this letter.
        """
        if outcome.reply is None:
            raise WireError(outcome.lost)
        head = read(outcome.reply, {action: of, "refused": ANSWERED["refused"]})
        if head.nonce != nonce:
            raise WireError("refused: a reply to another letter, sent again")
        if isinstance(head, Refused):
            raise WireError(f"client error: {printable(head.reason)}")
        if len(outcome.reply.parts) != parts:
            raise WireError(f"refused: expected {parts} payloads, got {len(outcome.reply.parts)}")
        return head

    def known(self, client: ClientId) -> int:
        """The last round after which the client is known to remember something; 0 is none."""
        return int(self.memory.get(client) or 0)

    def _place(self, t: int, first: int) -> Place:
        if not self._begun:
            self._begun = self._begin(first)
        return Place(self.membership.run, self.membership.expected.config, self.cell, self._begun, t)

    def _federation(self, t: int) -> Federation:
        return Federation(
            clients=self.clients,
            num_classes=self.model.num_classes,
            layout=self.model.layout,
            round=t,
            key=self.key / "server" / t,
            clients_per_round=self.cohort,
            initialise=self.model.initialise,
            work=server_work(
                self.model.server_trainer, self.key, t, self.model.num_classes, self.model.layout, self.model.initial
            ),
        )


Runtime = Simulator[Any] | Remote[Any]
"""Whoever answers a plan."""


class _Round:
    """The requests of one round."""

    def __init__(self, remote: Remote[Any], t: int) -> None:
        self.remote, self.t = remote, t
        self.place = remote._place(t, t)
        self.trace = Trace()
        self.hop = 0
        self.asked: Counter[str] = Counter()
        self.sketched: dict[str, Any] = {}

    def answer(self, want: object) -> Any:
        if isinstance(want, Ask):
            return self.ask(want)
        if isinstance(want, Collect):
            return self.collect(want)
        if isinstance(want, Probe):
            return self.probe(want)
        return refuse_request("plan", want)

    # ------------------------------------------------------------------ Ask
    def ask(self, want: Ask) -> dict[ClientId, Any]:
        remote, t = self.remote, self.t
        if want.step not in remote._steps:
            raise ProtocolError(
                f"the plan asks for {want.step!r}, which is not marked @step; known: {list(remote._steps)}"
            )
        strangers = [c for c in want.to if c not in range(len(remote.clients))]
        if strangers:
            raise ProtocolError(f"round {t}, step {want.step!r}: no such client: {strangers[:5]}")
        lost: dict[ClientId, str] = {}
        fates = {c: self.fate(want.step, c) for c in want.to}
        reached = {c: m for c, m in want.to.items() if fates[c] != "unreachable"}
        deadline_s = remote.terms.deadline_s if want.timeout_s is None else want.timeout_s
        moving = {c: _held_elsewhere(m, c) for c, m in reached.items()}
        values = self.fetch([h for held in moving.values() for h in held], deadline_s)
        encoded = {i: wire.encode(m) for i, m in {id(m): m for m in reached.values()}.items()}
        envelopes, nonces = {}, {}
        for c, m in reached.items():
            gone = [str(values[h]) for h in moving[c] if isinstance(values[h], WireError)]
            if gone:
                lost[c] = f"what it was to be sent could not be fetched: {gone[0]}"
                continue
            nonces[c] = secrets.token_hex(16)
            head = Order(self.place, want.step, self.hop, self.asked[want.step], remote.known(c), moving[c], nonces[c])
            envelopes[c] = write("ask", head, encoded[id(m)], *(values[h].data for h in moving[c]))
        outcomes = remote.transport("ask", t, self.hop, envelopes, deadline_s)
        for c in envelopes:
            if outcomes[c].sent:
                message = reached[c]
                self.charge(SERVER, node(c), len(encoded[id(message)]), wire.kind(message))
                for h in moving[c]:
                    self.charge(node(h.owner), node(c), len(values[h].data), values[h].kind)
        replies: dict[ClientId, Any] = {}
        for c in envelopes:
            try:
                reply, size = self.receive(want.step, c, outcomes[c], nonces[c])
            except WireError as error:
                lost[c] = printable(str(error))  # it may quote the client
                continue
            if fates[c] is None:
                replies[c] = reply
                self.charge(node(c), SERVER, size, wire.kind(reply))
        sketch = self.sketch(want.step, next(iter(reached.values()))) if replies else None
        for c, reason in odd_ones(replies, sketch).items():
            del replies[c]
            lost[c] = f"refused: {reason}"
        lost = {c: lost.get(c) or str(fates[c]) for c in want.to if c in lost or fates[c] is not None}
        self.trace.failures.extend(Failure(t, c, want.step, reason) for c, reason in lost.items())
        self.asked[want.step] += 1
        self.hop += 1
        if len(replies) < want.at_least:
            absent = ", ".join(map(str, lost)) or "none"
            raise QuorumError(
                f"round {t}, step {want.step!r}: {len(replies)} of {len(want.to)} clients replied, "
                f"{want.at_least} needed; lost: {absent}"
            )
        return replies

    def fate(self, step: str, client: ClientId) -> Any:
        key = self.remote.key / "round" / self.t / "outage" / step / self.asked[step] / client
        return self.remote.outage.fate(key)

    def receive(self, step: str, client: ClientId, outcome: Outcome, nonce: str) -> tuple[Any, int]:
        """A reply and its length, once it is one; what the client says of its work is noted.

        Raises:
            WireError: If it is lost or refused, and why.
        """
        remote = self.remote
        head = remote.opened(outcome, "ask", Answer, nonce, 1)
        assert outcome.reply is not None
        (data,) = outcome.reply.parts
        try:
            remote._guard.check(head)
            reply = remote._guard.decode(data, remote._signatures[step].reply)
            for path, held in held_at(reply).items():
                self.own(held, client, path)
            if remote._admit is not None:
                remote._admit(step, reply, remote.model.initial, remote.model.layout)
        except WireError as error:
            raise WireError(f"refused: {error}") from None
        self.trace.losses.extend((head.n, loss) for loss in head.losses)
        if head.examples:
            self.trace.work.append(Effort(self.t, self.hop, client, head.examples))
        if head.remembers:
            remote.memory.stage(client, self.t)
        return reply, len(data)

    def own(self, held: Held, client: ClientId, path: str) -> None:
        """A client may hold values for itself only, made in this very exchange, and each in its own place."""
        if held != Held(client, f"{self.hop}{path}"):
            raise WireError(
                f"client {client} claims to hold {held.key[:40]!r} of client {held.owner} (at {path or 'top'})"
            )

    def sketch(self, step: str, message: Any) -> Any:
        """A reply as the step makes it of training that ends where it began; None where that cannot be told.

        Nobody has sent it, and of its numbers nothing is used: it says which tensors such a reply has.
        """
        remote = self.remote
        classes = remote.model.num_classes
        key = remote.key / "sketch"
        me = Me(
            NOBODY,
            classes,
            torch.ones(classes, dtype=torch.int64),
            self.t,
            key,
            remote.model.layout,
            remote.model.initial,
            key,
            key,
        )
        try:
            message = map_held(lambda h: self.sketched[h.key], message)
            reply, _ = drive(remote._steps[step](me, message, None), partial(_untrained, round=self.t))
        except Exception:
            # Local code without data, a memory that is not there: then other clients' replies must do.
            return None

        def keep(value: Keep, path: str) -> Held:
            key = f"{self.hop}{path}"
            self.sketched[key] = value.value
            return Held(NOBODY, key)

        return map_keep(keep, reply)

    # ------------------------------------------------------------------ held values
    def fetch(self, held: Sequence[Held], deadline_s: float) -> dict[Held, Any]:
        """The encoded values, all owners asked together; a `WireError` in the place of one that did not come.

        Nothing is kept beyond the exchange that needs it: a hop's models are all the server ever holds of them.
        """
        remote = self.remote
        by_owner: dict[ClientId, list[Held]] = {}
        for h in dict.fromkeys(held):
            by_owner.setdefault(h.owner, []).append(h)
        if not by_owner:
            return {}
        nonces = {c: secrets.token_hex(16) for c in by_owner}
        envelopes = {c: write("fetch", Fetch(self.place, tuple(mine), nonces[c])) for c, mine in by_owner.items()}
        outcomes = remote.transport("fetch", self.t, self.hop, envelopes, deadline_s)
        values: dict[Held, Any] = {}
        for c, mine in by_owner.items():
            try:
                remote.opened(outcomes[c], "fetch", Fetched, nonces[c], len(mine))
                reply = outcomes[c].reply
                assert reply is not None
                for h, data in zip(mine, reply.parts, strict=True):
                    values[h] = self.kept(data)
            except WireError as error:
                self.missing(values, mine, printable(str(error)))
        # What stood in the same field of their replies.
        alike: dict[str, dict[int, Any]] = {}
        sketches: dict[str, Any] = {}
        everything = list(values)
        for i, h in enumerate(everything):
            if isinstance(values[h], _Value):
                field = h.key.partition("/")[2]
                alike.setdefault(field, {})[i] = values[h].value
                sketches[field] = self.sketched.get(h.key)
        for field, same in alike.items():
            for i, why in odd_ones(same, sketches[field]).items():
                self.missing(values, [everything[i]], f"refused: {why}")
        return values

    def kept(self, data: bytes) -> "_Value":
        try:
            value = self.remote._guard.decode(data, self.remote._held_type)
        except WireError as error:
            raise WireError(f"refused: {error}") from None
        return _Value(value, data, wire.kind(value))

    def missing(self, values: dict[Held, Any], held: Sequence[Held], why: str) -> None:
        """Note that what one client holds did not come."""
        owner = held[0].owner
        values.update(dict.fromkeys(held, WireError(f"client {owner}: {why}")))
        self.trace.failures.append(Failure(self.t, owner, "held value", why))

    # ------------------------------------------------------------------ Collect, Probe
    def collect(self, want: Collect) -> list[Any]:
        values = self.fetch(want.held, self.remote.terms.deadline_s)
        lost = {h.owner: v for h, v in values.items() if isinstance(v, WireError)}
        came = sum(isinstance(values[h], _Value) for h in want.held)
        if lost and (want.at_least is None or came < want.at_least):
            raise QuorumError(
                f"round {self.t}: {len(want.held)} held values are collected, and those of clients "
                f"{', '.join(map(str, sorted(lost)))} did not come ({next(iter(lost.values()))})"
            )
        for h in want.held:
            if isinstance(values[h], _Value):
                self.charge(node(h.owner), SERVER, len(values[h].data), values[h].kind)
        self.hop += 1
        return [values[h].value if isinstance(values[h], _Value) else None for h in want.held]

    def probe(self, want: Probe) -> Tensor:
        """Client-to-client block of the modelled channel: a deployment does not measure its links."""
        remote = self.remote
        nodes = len(remote.clients) + 1
        gamma = remote.channel.spectral_efficiency(remote.key / "channel", self.t, want.hop, nodes)
        return torch.as_tensor(gamma)[1:, 1:]

    def charge(self, src: int, dst: int, size: int, kind: Any) -> None:
        if size:
            self.trace.transfers.append(Transfer(self.t, self.hop, src, dst, kind, Bytes(size)))


@dataclass(frozen=True, eq=False)
class _Value:
    """A held value on its way: checked, and as the bytes it came in."""

    value: Any
    data: bytes
    kind: str


def _untrained(request: Any, round: int) -> Any:
    if isinstance(request, Sgd):
        return untrained(request, round)
    if isinstance(request, Fold):
        return request.init
    raise ProtocolError(f"without data there is no {type(request).__name__}")


def _held_elsewhere(message: Any, client: ClientId) -> tuple[Held, ...]:
    """Values in a message that another client holds, each once."""
    found: dict[Held, None] = {}

    def look(h: Held) -> Held:
        if h.owner != client:
            found[h] = None
        return h

    map_held(look, message)
    return tuple(found)
