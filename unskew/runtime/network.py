"""The server's half of a deployment: runs a plan on clients that are reached over a network, whatever the network.

It answers a plan's requests as the simulator does, with the same keys, the same hops and the same rows in the ledger,
but it reaches its clients by messages.  The network is a star: a value held by one client and sent to another is
fetched and passed on.  The ledger records what the plan meant (device to device); what really went up and down is
recorded beside it, as `NetworkTransfer` rows.

A reply counts if it answers this very request, has the type that the step declares and can be a message of this run
(`validation.py`).  Any other reply is a failure of that client, like a reply that never came.
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
from unskew.local.sequential import server_device
from unskew.local.trainer import LocalTrainer
from unskew.protocol import (
    SERVER_ID,
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
from unskew.runtime.in_process import Effort, LostReply, Simulator, Trace
from unskew.runtime.membership import Membership, printable
from unskew.runtime.memory import Memory
from unskew.runtime.message import (
    REPLIES,
    Delivery,
    Envelope,
    EvaluationReply,
    EvaluationRequest,
    FetchReply,
    FetchRequest,
    NetworkTransfer,
    Refusal,
    RoundContext,
    Score,
    StepReply,
    StepRequest,
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
class ServerModel:
    """The server's view of the task and its model.

    Attributes:
        num_classes: Number of classes of the task.
        layout: Names of the model's tensors.
        initial: Initial model, which every client can build by itself.
        initialise: Makes a fresh model from a key.
        server_trainer: Does the server's own local training; None if it does none.
    """

    num_classes: int
    layout: Layout
    initial: Params
    initialise: Callable[[Key], Params]
    server_trainer: LocalTrainer | None = None


@dataclass(frozen=True)
class Limits:
    """Bounds on what clients may do.

    Attributes:
        deadline_s: Longest time for an exchange unless the plan sets its own, seconds.
        max_norm: Largest L2 norm of a reply's floating-point tensors.
        models: Number of models that a reply may carry (see `limit_bytes`).
    """

    deadline_s: float = 600.0
    max_norm: float = 1e6
    models: int = 8


class NetworkRuntime(Generic[S]):
    """Runs one method on clients that are reached over a network; used like `Simulator`.

    Client memory stays with the clients.  The server only keeps, by client, the last round after which it remembered
    something; a client that has lost its memory refuses to take part and says so.

    Args:
        algorithm: Method to run.
        model: Task and model it is run on.
        num_clients: Number of clients of the federation, connected or not.
        membership: Clients that are connected.
        executor: Evaluates the global model; trains nothing.
        begin: (first round) -> server processes that have worked on this cell, including this one:
            `RoundContext.starts`.
        cell: Index of seed and method, counted from 0.
        seed: Root of all randomness.
        clients_per_round: Cohort size.
        outage: Losses on top of the real ones.
        channel: Answers `Probe`.
        limits: Deadlines and bounds.

    Raises:
        ProtocolError: If a step's annotations do not say what it receives, returns and keeps.
        ConfigError: If the cohort is empty, or the method pools all data in one place.
    """

    def __init__(
        self,
        algorithm: Algorithm[S],
        model: ServerModel,
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
        limits: Limits | None = None,
    ) -> None:
        if clients_per_round is not None and clients_per_round < 1:
            raise ConfigError(f"clients_per_round must be >= 1, got {clients_per_round}")
        if getattr(algorithm, "pooled", False) and num_clients > 1:
            raise ConfigError("a method that pools all clients' data cannot be deployed: data stay where they are")
        self.algorithm, self.model, self.membership, self.executor = algorithm, model, membership, executor
        self.clients = tuple(range(num_clients))
        self.key, self.cell = Key(seed), cell
        self.cohort = clients_per_round or num_clients
        self.outage, self.channel, self.limits = outage or Outage(), channel or Even(), limits or Limits()
        self.memory, self.memory_type = Memory(), int
        self._begin = begin
        self._begun: tuple[tuple[int, int], ...] = ()
        self._steps = steps_of(algorithm)
        self._signatures = wire.signatures(algorithm)
        self._held_type = wire.held_type(algorithm)
        wire.memory_type(algorithm)
        limit, sizes = (
            limit_bytes(model.initial, self.limits.models),
            sizes_of(model.num_classes, model.layout, model.initial),
        )
        self._validator = Validator(model.initial, limit, self.limits.max_norm, 0, sizes)
        self._admit: Callable[[str, Any, Params, Layout], None] | None = getattr(algorithm, "validate_reply", None)
        self._failures: list[LostReply] = []
        self._sent: list[NetworkTransfer] = []

    # ------------------------------------------------------------------ rounds
    def start(self) -> S:
        """The state before round 1."""
        return self.algorithm.init(self.model.initial, self._federation(0))

    def round(self, state: S, t: int) -> tuple[S, Trace]:
        """Run round `t`, counted from 1; the next state, and a record of what happened.

        Raises:
            QuorumError: If too few clients replied, or one that holds what the plan collects is gone.
        """
        self.membership.call()
        exchange = _NetworkRound(self, t)
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
        """Let each client evaluate its own model on its own data after round `t`; scores by part: personal, val.

        A client that does not answer is absent from the scores, and among the failures.  After the last
        round the client keeps its model.
        """
        context = self._place(t, t + 1)
        envelopes, nonces = {}, {}
        for c in self.clients:
            served = self.algorithm.serve(state, c)
            nonces[c] = secrets.token_hex(16)
            head = EvaluationRequest(context, tuple(parts), served is not None, self.known(c), last, nonces[c])
            envelopes[c] = write("evaluate", head, *([] if served is None else [wire.encode(served)]))
        by_part: dict[str, dict[ClientId, Score]] = {part: {} for part in parts}
        for c, delivery in self.transport("evaluate", t, NO_HOP, envelopes, self.limits.deadline_s).items():
            try:
                head = self.open_reply(delivery, "evaluate", EvaluationReply, nonces[c], 0)
                self._validator.check(head)
                scores = {name: Score(a, loss, float(n)) for name, a, loss, n in head.scores}
                if not scores.keys() <= set(parts) or any(not 0 <= s.accuracy <= 1 or s.n < 1 for s in scores.values()):
                    raise WireError("scores must be accuracies in [0, 1] on at least one example of what was asked for")
            except WireError as error:
                self._failures.append(LostReply(t, c, "evaluate", printable(str(error))))
                continue
            for name, score in scores.items():
                by_part[name][c] = score
        return by_part

    def drain_records(self) -> tuple[list[LostReply], list[NetworkTransfer]]:
        """Return failures outside the plan, and all network transfers, since the last call."""
        failures, sent = self._failures, self._sent
        self._failures, self._sent = [], []
        return failures, sent

    # ------------------------------------------------------------------ messages
    def transport(
        self, what: str, t: int, hop: int, envelopes: Mapping[ClientId, Envelope], deadline_s: float
    ) -> dict[ClientId, Delivery]:
        """Send envelopes, and record what went to and fro."""
        self._failures.extend(LostReply(t, c, "hello", reason) for c, reason in self.membership.refused())
        deliveries = self.membership.exchange(envelopes, deadline_s)
        for c, delivery in deliveries.items():
            if delivery.sent:
                self._sent.append(NetworkTransfer(t, hop, c, "down", what, envelopes[c].payload, delivery.down))
            if delivery.reply is not None:
                self._sent.append(NetworkTransfer(t, hop, c, "up", what, delivery.reply.payload, delivery.up))
        return deliveries

    def open_reply(self, delivery: Delivery, action: str, of: type, nonce: str, parts: int) -> Any:
        """Decode the head of the reply to a request.

        Raises:
            WireError: If there is no reply, it is a refusal, or it answers another request.
        """
        if delivery.reply is None:
            raise WireError(delivery.lost)
        head = read(delivery.reply, {action: of, "refused": REPLIES["refused"]})
        if head.nonce != nonce:
            raise WireError("refused: a reply to another request, sent again")
        if isinstance(head, Refusal):
            raise WireError(f"client error: {printable(head.reason)}")
        if len(delivery.reply.parts) != parts:
            raise WireError(f"refused: expected {parts} payloads, got {len(delivery.reply.parts)}")
        return head

    def known(self, client: ClientId) -> int:
        """Last round after which the client is known to remember something; 0 is none."""
        return int(self.memory.get(client) or 0)

    def _place(self, t: int, first: int) -> RoundContext:
        if not self._begun:
            self._begun = self._begin(first)
        return RoundContext(self.membership.run, self.membership.expected.config, self.cell, self._begun, t)

    def _federation(self, t: int) -> Federation:
        return Federation(
            clients=self.clients,
            num_classes=self.model.num_classes,
            layout=self.model.layout,
            round=t,
            key=self.key / "server" / t,
            clients_per_round=self.cohort,
            initialise=self.model.initialise,
            run_on_server=server_device(
                self.model.server_trainer, self.key, t, self.model.num_classes, self.model.layout, self.model.initial
            ),
        )


Runtime = Simulator[Any] | NetworkRuntime[Any]
"""Runs plans: in this process, or over a network."""


class _NetworkRound:
    """Answers the requests of one round's plan."""

    def __init__(self, runtime: NetworkRuntime[Any], t: int) -> None:
        self.runtime, self.t = runtime, t
        self.context = runtime._place(t, t)
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
        runtime, t = self.runtime, self.t
        if want.step not in runtime._steps:
            raise ProtocolError(
                f"the plan asks for {want.step!r}, which is not marked @step; known: {list(runtime._steps)}"
            )
        strangers = [c for c in want.to if c not in range(len(runtime.clients))]
        if strangers:
            raise ProtocolError(f"round {t}, step {want.step!r}: no such client: {strangers[:5]}")
        lost: dict[ClientId, str] = {}
        fates = {c: self.fate(want.step, c) for c in want.to}
        reached = {c: m for c, m in want.to.items() if fates[c] != "unreachable"}
        deadline_s = runtime.limits.deadline_s if want.timeout_s is None else want.timeout_s
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
            head = StepRequest(
                self.context, want.step, self.hop, self.asked[want.step], runtime.known(c), moving[c], nonces[c]
            )
            envelopes[c] = write("ask", head, encoded[id(m)], *(values[h].data for h in moving[c]))
        deliveries = runtime.transport("ask", t, self.hop, envelopes, deadline_s)
        for c in envelopes:
            if deliveries[c].sent:
                message = reached[c]
                self.charge(SERVER, node(c), len(encoded[id(message)]), wire.kind(message))
                for h in moving[c]:
                    self.charge(node(h.owner), node(c), len(values[h].data), values[h].kind)
        replies: dict[ClientId, Any] = {}
        for c in envelopes:
            try:
                reply, size = self.receive(want.step, c, deliveries[c], nonces[c])
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
        self.trace.failures.extend(LostReply(t, c, want.step, reason) for c, reason in lost.items())
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
        key = self.runtime.key / "round" / self.t / "outage" / step / self.asked[step] / client
        return self.runtime.outage.fate(key)

    def receive(self, step: str, client: ClientId, delivery: Delivery, nonce: str) -> tuple[Any, int]:
        """Check a reply and return it with its size in bytes; the client's report of its work goes into the trace.

        Raises:
            WireError: If the reply is lost or refused, with the reason.
        """
        runtime = self.runtime
        head = runtime.open_reply(delivery, "ask", StepReply, nonce, 1)
        assert delivery.reply is not None
        (data,) = delivery.reply.parts
        try:
            runtime._validator.check(head)
            reply = runtime._validator.decode(data, runtime._signatures[step].reply)
            for path, held in held_at(reply).items():
                self.own(held, client, path)
            if runtime._admit is not None:
                runtime._admit(step, reply, runtime.model.initial, runtime.model.layout)
        except WireError as error:
            raise WireError(f"refused: {error}") from None
        self.trace.losses.extend((head.n, loss) for loss in head.losses)
        if head.examples:
            self.trace.work.append(Effort(self.t, self.hop, client, head.examples))
        if head.remembers:
            runtime.memory.stage(client, self.t)
        return reply, len(data)

    def own(self, held: Held, client: ClientId, path: str) -> None:
        """Refuse a held value that is not the client's own, from this very exchange, and in its own field."""
        if held != Held(client, f"{self.hop}{path}"):
            raise WireError(
                f"client {client} claims to hold {held.key[:40]!r} of client {held.owner} (at {path or 'top'})"
            )

    def sketch(self, step: str, message: Any) -> Any:
        """Make the reply that the step would give if training changed nothing; None if that cannot be done here.

        None of its numbers are used: it only tells which tensors such a reply has.
        """
        runtime = self.runtime
        classes = runtime.model.num_classes
        key = runtime.key / "sketch"
        me = Me(
            SERVER_ID,
            classes,
            torch.ones(classes, dtype=torch.int64),
            self.t,
            key,
            runtime.model.layout,
            runtime.model.initial,
            key,
            key,
        )
        try:
            message = map_held(lambda h: self.sketched[h.key], message)
            reply, _ = drive(runtime._steps[step](me, message, None), partial(_untrained, round=self.t))
        except Exception:
            # The step runs code on data or memory that is not here: only the other replies can be compared then.
            return None

        def keep(value: Keep, path: str) -> Held:
            key = f"{self.hop}{path}"
            self.sketched[key] = value.value
            return Held(SERVER_ID, key)

        return map_keep(keep, reply)

    # ------------------------------------------------------------------ held values
    def fetch(self, held: Sequence[Held], deadline_s: float) -> dict[Held, Any]:
        """Fetch held values, from all owners at once; a `WireError` stands for a value that did not come.

        Values are dropped after the exchange that needs them, so the server never holds more than one hop's models.
        """
        runtime = self.runtime
        by_owner: dict[ClientId, list[Held]] = {}
        for h in dict.fromkeys(held):
            by_owner.setdefault(h.owner, []).append(h)
        if not by_owner:
            return {}
        nonces = {c: secrets.token_hex(16) for c in by_owner}
        envelopes = {
            c: write("fetch", FetchRequest(self.context, tuple(mine), nonces[c])) for c, mine in by_owner.items()
        }
        deliveries = runtime.transport("fetch", self.t, self.hop, envelopes, deadline_s)
        values: dict[Held, Any] = {}
        for c, mine in by_owner.items():
            try:
                runtime.open_reply(deliveries[c], "fetch", FetchReply, nonces[c], len(mine))
                reply = deliveries[c].reply
                assert reply is not None
                for h, data in zip(mine, reply.parts, strict=True):
                    values[h] = self.checked(data)
            except WireError as error:
                self.missing(values, mine, printable(str(error)))
        # Values that were in the same field of different clients' replies are compared.
        alike: dict[str, dict[int, Any]] = {}
        sketches: dict[str, Any] = {}
        everything = list(values)
        for i, h in enumerate(everything):
            if isinstance(values[h], _FetchedValue):
                field = h.key.partition("/")[2]
                alike.setdefault(field, {})[i] = values[h].value
                sketches[field] = self.sketched.get(h.key)
        for field, same in alike.items():
            for i, why in odd_ones(same, sketches[field]).items():
                self.missing(values, [everything[i]], f"refused: {why}")
        return values

    def checked(self, data: bytes) -> "_FetchedValue":
        try:
            value = self.runtime._validator.decode(data, self.runtime._held_type)
        except WireError as error:
            raise WireError(f"refused: {error}") from None
        return _FetchedValue(value, data, wire.kind(value))

    def missing(self, values: dict[Held, Any], held: Sequence[Held], why: str) -> None:
        """Record that values held by one client did not come."""
        owner = held[0].owner
        values.update(dict.fromkeys(held, WireError(f"client {owner}: {why}")))
        self.trace.failures.append(LostReply(self.t, owner, "held value", why))

    # ------------------------------------------------------------------ Collect, Probe
    def collect(self, want: Collect) -> list[Any]:
        values = self.fetch(want.held, self.runtime.limits.deadline_s)
        lost = {h.owner: v for h, v in values.items() if isinstance(v, WireError)}
        came = sum(isinstance(values[h], _FetchedValue) for h in want.held)
        if lost and (want.at_least is None or came < want.at_least):
            raise QuorumError(
                f"round {self.t}: {len(want.held)} held values are collected, and those of clients "
                f"{', '.join(map(str, sorted(lost)))} did not come ({next(iter(lost.values()))})"
            )
        for h in want.held:
            if isinstance(values[h], _FetchedValue):
                self.charge(node(h.owner), SERVER, len(values[h].data), values[h].kind)
        self.hop += 1
        return [values[h].value if isinstance(values[h], _FetchedValue) else None for h in want.held]

    def probe(self, want: Probe) -> Tensor:
        """Client-to-client block of the modelled channel; a deployment does not measure its links."""
        runtime = self.runtime
        nodes = len(runtime.clients) + 1
        gamma = runtime.channel.spectral_efficiency(runtime.key / "channel", self.t, want.hop, nodes)
        return torch.as_tensor(gamma)[1:, 1:]

    def charge(self, src: int, dst: int, size: int, kind: Any) -> None:
        if size:
            self.trace.transfers.append(Transfer(self.t, self.hop, src, dst, kind, Bytes(size)))


@dataclass(frozen=True, eq=False)
class _FetchedValue:
    """A fetched value, checked, with the bytes it came in."""

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
    """Find the values in a message that other clients hold, each once."""
    elsewhere: dict[Held, None] = {}

    def collect(h: Held) -> Held:
        if h.owner != client:
            elsewhere[h] = None
        return h

    map_held(collect, message)
    return tuple(elsewhere)
