"""The in-process runtime: answers a plan's requests from clients that live in this process.

It does what a network would do and no more: a message reaches one client, a reply comes back or is lost, a held value
moves when a message carries it, and the bytes of every transfer are counted.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import GeneratorType
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from unskew import wire
from unskew.errors import ConfigError, ProtocolError, QuorumError
from unskew.keys import Key
from unskew.ledger import SERVER, Transfer, node
from unskew.local.executor import Executor, StepJob, StepResult, Trainer
from unskew.local.sequential import server_device
from unskew.protocol import (
    Algorithm,
    Ask,
    ClientId,
    Collect,
    Federation,
    Held,
    Keep,
    Layout,
    Me,
    Probe,
    drive,
    map_held,
    map_keep,
    refuse_request,
    steps_of,
)
from unskew.runtime.memory import Memory
from unskew.runtime.message import NetworkTransfer
from unskew.tree import Params
from unskew.units import Bytes
from unskew.world.channel import Channel, Even
from unskew.world.outage import Outage

S = TypeVar("S")


@dataclass(frozen=True, eq=False)
class Population:
    """The clients of a run as the runtime knows them.

    Attributes:
        histograms: Training examples by client and class, (clients, classes) int64.
        layout: Names of the model's tensors.
        initial: Initial model, which every client can build by itself.
        initialise: Makes a fresh model from a key.
        server_trainer: Does the server's own local training; None if it does none.
    """

    histograms: Tensor
    layout: Layout
    initial: Params
    initialise: Callable[[Key], Params]
    server_trainer: Trainer | None = None

    @cached_property
    def clients(self) -> tuple[ClientId, ...]:
        """All clients, ascending."""
        return tuple(range(len(self.histograms)))

    @cached_property
    def _examples(self) -> list[int]:
        counts: list[int] = self.histograms.sum(1).tolist()
        return counts

    def me(self, client: ClientId, round: int, key: Key) -> Me:
        """The client's view of itself when it runs a step."""
        lasting = Key(key.seed) / "client" / client / "lasting"
        n, histogram = self._examples[client], self.histograms[client]
        return Me(client, n, histogram, round, key, self.layout, self.initial, key, lasting)


@dataclass(frozen=True)
class LostReply:
    """A reply that was lost or refused."""

    round: int
    client: ClientId
    step: str
    reason: str


class Effort(NamedTuple):
    """Local training of one client in one exchange: the number of examples it processed."""

    round: int
    hop: int
    client: ClientId
    examples: int


@dataclass
class Trace:
    """Record of one round.

    Attributes:
        transfers: All messages, in the order sent.
        work: All local training, in the order requested.
        failures: All replies that were lost.
        losses: (number of examples, mean training loss) of every local optimisation.
    """

    transfers: list[Transfer] = field(default_factory=list)
    work: list[Effort] = field(default_factory=list)
    failures: list[LostReply] = field(default_factory=list)
    losses: list[tuple[int, float]] = field(default_factory=list)


class Simulator(Generic[S]):
    """Runs one method on clients in this process.

    Args:
        algorithm: Method to run.
        population: Clients to run it on.
        executor: Meets the clients' local work.
        seed: Root of all randomness.
        clients_per_round: Cohort size.
        outage: Model of the asks and replies that are lost.
        channel: Answers `Probe`.
        codec: Send every message through the wire's bytes and back, as a network would.

    Raises:
        ProtocolError: If a step's annotations do not say what it receives, returns and keeps.
        ConfigError: If the cohort is empty.
    """

    def __init__(
        self,
        algorithm: Algorithm[S],
        population: Population,
        executor: Executor,
        *,
        seed: int = 0,
        clients_per_round: int | None = None,
        outage: Outage | None = None,
        channel: Channel | None = None,
        codec: bool = False,
    ) -> None:
        if clients_per_round is not None and clients_per_round < 1:
            raise ConfigError(f"clients_per_round must be >= 1, got {clients_per_round}")
        self.algorithm, self.population, self.executor = algorithm, population, executor
        self.key = Key(seed)
        self.cohort = clients_per_round or len(population.clients)
        self.outage, self.channel, self.codec = outage or Outage(), channel or Even(), codec
        self.memory = Memory()
        self._steps = steps_of(algorithm)
        self._signatures = wire.signatures(algorithm)
        self.memory_type = wire.memory_type(algorithm)

    # ------------------------------------------------------------------ rounds
    def start(self) -> S:
        """Return the state before round 1."""
        return self.algorithm.init(self.population.initial, self._federation(0))

    def round(self, state: S, t: int) -> tuple[S, Trace]:
        """Run round `t`, counted from 1: return the next state, and a record of what happened.

        Any exception leaves client memory as it was before the round.
        """
        exchange = _Round(self, t)
        try:
            new: S = drive(self.algorithm.round(state, self._federation(t)), exchange.answer)
            self.memory.commit(t)
        except BaseException:
            self.memory.discard()
            raise
        return new, exchange.trace

    def personal(self, state: S, clients: Sequence[ClientId], t: int) -> dict[ClientId, Params]:
        """Return the models these clients would use after round `t`; a client without a model is absent.

        Each is the model served to the client, adapted by `personalise` if there is one.  It is for evaluation: nothing
        is charged and nothing remembered.
        """
        served = {c: self.algorithm.serve(state, c) for c in clients}
        personalise = getattr(self.algorithm, "personalise", None)
        own: dict[ClientId, Params | None] = dict(served)
        if personalise is not None:
            at = {c: self.key / "round" / t / "client" / c / "personalise" for c in clients}
            work = {
                c: StepJob("personalise", personalise, self.population.me(c, t, at[c]), served[c], self.memory.get(c))
                for c in clients
            }
            alone = {c: _without_local_work(w) for c, w in work.items()}
            done = dict(self.executor.complete({c: work[c] for c, (finished, _) in alone.items() if not finished}))
            own = {c: done[c].value if c in done else alone[c][1] for c in clients}
        return {c: model for c, model in own.items() if model is not None}

    def drain_records(self) -> tuple[list[LostReply], list[NetworkTransfer]]:
        """Return records of events outside the plan; in one process there are none."""
        return [], []

    def _federation(self, t: int) -> Federation:
        p = self.population
        return Federation(
            clients=p.clients,
            num_classes=p.histograms.shape[1],
            layout=p.layout,
            round=t,
            key=self.key / "server" / t,
            clients_per_round=self.cohort,
            initialise=p.initialise,
            run_on_server=server_device(p.server_trainer, self.key, t, p.histograms.shape[1], p.layout, p.initial),
        )


def _without_local_work(work: StepJob) -> tuple[bool, Any]:
    """Return (True, result) of a step without local work: most personal models are put together, not trained."""
    step = work.begin(work.me, work.message, work.memory)
    if not isinstance(step, GeneratorType):
        return True, step
    try:
        next(step)
    except StopIteration as stop:
        return True, stop.value
    step.close()
    return False, None


class _Round:
    """The requests of one round."""

    def __init__(self, simulator: Simulator[Any], t: int) -> None:
        self.sim, self.t = simulator, t
        self.trace = Trace()
        self.hop = 0
        self.asked: Counter[str] = Counter()
        self.held: dict[Held, Any] = {}
        self.sizes: dict[Held, _Size] = {}

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
        if want.step not in self.sim._steps:
            raise ProtocolError(
                f"the plan asks for {want.step!r}, which is not marked @step; known: {list(self.sim._steps)}"
            )
        known = range(len(self.sim.population.clients))
        strangers = [c for c in want.to if c not in known]
        if strangers:
            raise ProtocolError(f"round {self.t}, step {want.step!r}: no such client: {strangers[:5]}")
        fates = {c: self.fate(want.step, c) for c in want.to}
        reached = {c: m for c, m in want.to.items() if fates[c] != "unreachable"}
        # What many clients are sent is one object, looked through once.
        packed = {i: self.pack(m) for i, m in {id(m): m for m in reached.values()}.items()}
        work = {c: self.begin(want.step, c, packed[id(m)]) for c, m in reached.items()}
        # Looked through as they end, while others are still at work; recorded in the order asked.
        ended = {
            c: self.receive(want.step, c, done) if fates[c] is None else self.miss(want.step, done)
            for c, done in self.sim.executor.complete(work)
        }
        replies: dict[ClientId, Any] = {}
        for c in work:
            r = ended[c]
            self.trace.losses.extend((work[c].me.n, loss) for loss in r.done.losses)
            if r.done.examples:
                self.trace.work.append(Effort(self.t, self.hop, c, r.done.examples))
            self.sim.memory.stage(c, r.memory)
            if r.size is not None:
                self.held.update(r.kept)
                self.charge(node(c), SERVER, r.size)
                replies[c] = r.reply
        lost = [LostReply(self.t, c, want.step, str(fate)) for c, fate in fates.items() if fate is not None]
        self.trace.failures.extend(lost)
        self.asked[want.step] += 1
        self.hop += 1
        if len(replies) < want.at_least:
            absent = ", ".join(str(f.client) for f in lost) or "none"
            raise QuorumError(
                f"round {self.t}, step {want.step!r}: {len(replies)} of {len(want.to)} clients replied, "
                f"{want.at_least} needed; lost: {absent}"
            )
        return replies

    def fate(self, step: str, client: ClientId) -> Any:
        key = self.sim.key / "round" / self.t / "outage" / step / self.asked[step] / client
        return self.sim.outage.fate(key)

    def pack(self, message: Any) -> "_Packed":
        held: list[Held] = []

        def look(h: Held) -> Any:
            held.append(h)
            return self.value(h)

        delivered = map_held(look, message)
        # A value that a message names twice travels once.
        return _Packed(message, _size_of(message), delivered, tuple(dict.fromkeys(held)))

    def begin(self, step: str, client: ClientId, packed: "_Packed") -> StepJob:
        """Deliver a message: charge it and the held values it carries, and prepare the client's step."""
        sim = self.sim
        self.charge(SERVER, node(client), packed.size)
        for h in packed.held:
            if h.owner != client:
                self.charge(node(h.owner), node(client), self.size_of(h))
        message = packed.delivered
        if sim.codec:
            message = wire.decode(wire.encode(packed.sent), sim._signatures[step].message)
            message = map_held(self.value, message)
        # The step's name is not part of the address: methods that name their step differently still draw alike.
        key = sim.key / "round" / self.t / "client" / client / self.asked[step]
        me = sim.population.me(client, self.t, key)
        return StepJob(step, sim._steps[step], me, message, sim.memory.get(client))

    def size_of(self, held: Held) -> "_Size":
        """Size and kind of a held value, computed once however many clients receive it."""
        if held not in self.sizes:
            self.sizes[held] = _size_of(self.held[held])
        return self.sizes[held]

    def value(self, held: Held) -> Any:
        if held not in self.held:
            raise ProtocolError(
                f"round {self.t}: client {held.owner} holds no value {held.key!r}; held values live for one round, "
                "what must outlive it belongs in the client's memory"
            )
        return self.held[held]

    def checked(self, step: str, result: Any) -> tuple[Any, Any]:
        if not isinstance(result, tuple) or len(result) != 2:
            raise ProtocolError(f"step {step!r} must return (reply, memory), got {type(result).__name__}")
        return result

    def miss(self, step: str, done: StepResult) -> "_Received":
        """Record a reply that is lost on its way: only its client knows of it."""
        _, memory = self.checked(step, done.value)
        return _Received(None, None, memory, {}, done)

    def receive(self, step: str, client: ClientId, done: StepResult) -> "_Received":
        """Take a reply apart: kept values stay on the client, the bytes of the rest are counted."""
        reply, memory = self.checked(step, done.value)
        values: dict[Held, Any] = {}

        def keep(kept: Keep, path: str) -> Held:
            held = Held(client, f"{self.hop}{path}")
            values[held] = kept.value
            return held

        reply = map_keep(keep, reply)
        size = _size_of(reply)
        if self.sim.codec:
            reply = wire.decode(wire.encode(reply), self.sim._signatures[step].reply)
        return _Received(reply, size, memory, values, done)

    # ------------------------------------------------------------------ Collect, Probe
    def collect(self, want: Collect) -> list[Any]:
        values = []
        for held in want.held:
            value = self.value(held)
            self.charge(node(held.owner), SERVER, self.size_of(held))
            values.append(value)
        self.hop += 1
        return values

    def probe(self, want: Probe) -> Tensor:
        """Client-to-client block of the channel."""
        nodes = len(self.sim.population.clients) + 1
        gamma = self.sim.channel.spectral_efficiency(self.sim.key / "channel", self.t, want.hop, nodes)
        return torch.as_tensor(gamma)[1:, 1:]

    def charge(self, src: int, dst: int, size: "_Size") -> None:
        if size.bytes:
            self.trace.transfers.append(Transfer(self.t, self.hop, src, dst, size.kind, size.bytes))


class _Size(NamedTuple):
    """Size of a message, and its kind in the ledger."""

    bytes: Bytes
    kind: Literal["model", "control"]


class _Received(NamedTuple):
    """A reply and its size, None if it is lost; the client's memory and held values; the result of its step."""

    reply: Any
    size: _Size | None
    memory: Any
    kept: dict[Held, Any]
    done: StepResult


class _Packed(NamedTuple):
    """A message as the plan sent it, its size, the same with held values in it, and the references to those."""

    sent: Any
    size: _Size
    delivered: Any
    held: tuple[Held, ...]


def _size_of(message: Any) -> _Size:
    return _Size(Bytes(wire.nbytes(message)), wire.kind(message))
