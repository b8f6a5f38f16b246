"""The driver of rounds: runs a method's plan on clients, wherever they are.

A plan asks for steps on clients, for values that they hold and for the state of the channel.  The driver checks each
request, draws which messages and replies are lost, moves held values, counts the bytes of every transfer, stages what
clients remember and counts who replied.  How a message reaches a client is up to the `Clients` of a run: those of
`in_process.py` and `network.py`.
"""

import math
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import GeneratorType
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from torch import Tensor

from unskew import wire
from unskew.errors import ConfigError, ProtocolError, QuorumError, SuspectError, WireError
from unskew.keys import Key
from unskew.ledger import SERVER, Transfer, node
from unskew.local.executor import FIRST, Executor, Stored, Trainer
from unskew.local.sequential import server_device
from unskew.protocol import (
    Arrived,
    Ask,
    AsTheyCome,
    Came,
    ClientId,
    Collect,
    Federation,
    Held,
    Layout,
    Method,
    Plan,
    Probe,
    UnderWay,
    drive,
    held_in,
    personalise_of,
    refuse_request,
    steps_of,
)
from unskew.reduction import Folding, Reduced
from unskew.runtime.memory import Memory
from unskew.runtime.message import Lost, NetworkTransfer, Score
from unskew.runtime.values import check_frozen, check_type
from unskew.tasks.measure import Measure
from unskew.tree import Marks, Params, check_unchanged, marks
from unskew.units import Bytes
from unskew.world.channel import Channel, Even, efficiency
from unskew.world.pace import Errand, Outage, Pace
from unskew.wrappers.base import name_of

S = TypeVar("S")
IN_A_ROW = 10
"""Rounds in a row that may have no result: in a simulation the first ones, of remote clients any."""


@dataclass(frozen=True, eq=False)
class ServerModel:
    """The server's view of the task and its model.

    Attributes:
        num_classes: Number of classes of the task.
        layout: Names of the model's tensors.
        initial: Initial model, which every client can build by itself.
        initialise: Makes a fresh model from a key.
        server_trainer: Does the server's own local training; None if it does none.
        measures: What remote clients report of their own models; without it no report is accepted.
        public: Number of public rows.
    """

    num_classes: int
    layout: Layout
    initial: Params
    initialise: Callable[[Key], Params]
    server_trainer: Trainer | None = None
    measures: tuple[Measure, ...] = ()
    public: int = 0


# ---------------------------------------------------------------- records of a round
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
        losses: (number of examples, mean training loss) of every local optimisation whose reply arrived and counts.
        abandoned: Reason why the round has no result, a sentence; empty if it has one.
        clock: Simulated seconds that it took; 0 where clients have no pace.
    """

    transfers: list[Transfer] = field(default_factory=list)
    work: list[Effort] = field(default_factory=list)
    failures: list[LostReply] = field(default_factory=list)
    losses: list[tuple[int, float]] = field(default_factory=list)
    abandoned: str = ""
    clock: float = 0.0


# ---------------------------------------------------------------- the clients of a run
class Size(NamedTuple):
    """Size of an encoded message, and its kind in the ledger."""

    bytes: Bytes
    kind: Literal["model", "control"]


def size_of(message: Any) -> Size:
    """Size and kind of a message as it would be encoded."""
    return Size(Bytes(wire.nbytes(message)), wire.kind(message))


@dataclass(frozen=True, eq=False)
class HeldValue:
    """A value that a client held, on its way to another client or the server.

    Attributes:
        value: The value, or its place.
        size: Its size and kind.
        data: Its received bytes; empty in one process.
    """

    value: Any
    size: Size
    data: bytes = b""

    def read(self) -> Any:
        """The value, fetched if it lies elsewhere."""
        return self.value.read() if isinstance(self.value, Stored) else self.value


@dataclass(frozen=True, eq=False)
class Answer:
    """A client's answer to a request for a step.

    Attributes:
        reply: The reply, with references in place of the values that stay on the client; None once it is folded.
        size: Its size and kind.
        memory: The server's knowledge of the client's memory from now on, which is staged.
        n: Number of the client's training examples.
        examples: Number of examples processed in training.
        losses: Mean training loss of each local optimisation.
        refused: Why a received reply does not count.
    """

    reply: Any
    size: Size
    memory: Any
    n: int
    examples: int
    losses: tuple[float, ...]
    refused: str = ""


@dataclass(frozen=True, eq=False)
class Exchange:
    """One request of a plan for a step, without unreachable clients.

    Attributes:
        hop: Exchange of the round, counted from 0.
        step: Name of the step.
        index: Number of earlier requests for this step in this round.
        messages: Message by client; many clients may share one object.
        moving: Values in a client's message that other clients hold, each once.
        values: All those values.
        timeout_s: Longest time the plan allows, seconds; None is the deployment's.
        folds: True if the driver folds and drops each reply at once, so that few should be in memory.
        first: Remote replies to wait for among all pending ones; None waits for all to these messages.
    """

    hop: int
    step: str
    index: int
    messages: Mapping[ClientId, Any]
    moving: Mapping[ClientId, tuple[Held, ...]]
    values: Mapping[Held, HeldValue]
    timeout_s: float | None
    folds: bool = False
    first: int | None = None


class ClientsInRound(Protocol):
    """The clients during one round, in which they hold values."""

    def run(self, exchange: Exchange) -> Iterator[tuple[ClientId, Answer | Lost]]:
        """Run the step on every client of `exchange.messages`, and yield their answers in that order.

        Remote answers are yielded as they come if `first` is set, with those of earlier exchanges.
        """
        ...

    def suspects(self, before: Params | None, after: Params | None) -> Mapping[ClientId, str]:
        """Clients whose replies made the global model diverge, with the reason; empty if it did not.

        In one process no client is malicious, and divergence is the method's own.

        Raises:
            DivergedError: If it did and no reply stands out.
        """
        return {}

    def fetch(self, held: Sequence[Held], hop: int, timeout_s: float | None) -> Mapping[Held, HeldValue | Lost]:
        """Fetch held values.

        Raises:
            ProtocolError: If the plan asks for a value that no client can hold.
        """
        ...


class Clients(Protocol):
    """The clients of a run; the defaults here are for clients in one process.

    Attributes:
        ids: All clients, ascending.
        remote: True if data and models stay with the clients, which evaluate by themselves.
        memory: The server's knowledge of what clients remember: in one process the memory itself.
        memory_type: Type of a client's entry in `memory`, for checkpoints.
        executor: Evaluates models on the server; in one process it does the clients' work, too.
        rounds_begun: Number of rounds begun, with repeated ones; 0 where a repeated round is identical.
        under_way: Remote clients whose replies may come in a later round.
    """

    ids: tuple[ClientId, ...]
    remote: bool
    memory: Memory
    memory_type: Any
    executor: Executor
    rounds_begun: int
    under_way: Collection[ClientId] = ()

    def begin(self, t: int) -> ClientsInRound:
        """Open round `t`."""
        ...

    def restart(self, t: int) -> None:
        """Prepare to repeat round `t`, or to continue without it."""
        return

    def gather(self) -> None:
        """Wait until enough clients are connected for a round.

        Raises:
            QuorumError: If they do not come.
        """
        return

    def own_models(
        self, served: Mapping[ClientId, Params | None], personalise: Callable[..., Any] | None, t: int
    ) -> dict[ClientId, Params]:
        """The models the clients would use, from those they are served; empty for remote clients."""
        return {}

    def evaluate(
        self, served: Mapping[ClientId, Params | None], t: int, parts: Sequence[str], last: bool
    ) -> dict[str, dict[ClientId, Score]]:
        """Let remote clients evaluate their own models; empty for others."""
        return {}

    def drain_warnings(self) -> tuple[str, ...]:
        """Notes for the user about the clients, since the last call."""
        return ()

    def drain_records(self) -> tuple[list[LostReply], list[NetworkTransfer]]:
        """Failures outside the plan, and all network transfers, since the last call."""
        return [], []


# ---------------------------------------------------------------- the driver
class Driver(Generic[S]):
    """Runs one method's rounds.

    Args:
        method: Method to run.
        model: Task and model it is run on.
        clients: Clients it is run on.
        seed: Root of all randomness.
        clients_per_round: Cohort size.
        outage: Probabilities of lost messages.
        channel: Answers `Probe`.
        pace: Simulated seconds that clients take; None is no clock.

    Attributes:
        abandoned_last: Number of consecutive rounds, up to the last one, that `attempt` abandoned.
        left_out: Remote clients that are no longer asked, and why.

    Raises:
        ProtocolError: If the method is no frozen dataclass, or a step's annotations do not say what it receives,
            returns and keeps.
        ConfigError: If the cohort is empty.
    """

    def __init__(
        self,
        method: Method[S],
        model: ServerModel,
        clients: Clients,
        *,
        seed: int = 0,
        clients_per_round: int | None = None,
        outage: Outage | None = None,
        channel: Channel | None = None,
        pace: Pace | None = None,
    ) -> None:
        if clients_per_round is not None and clients_per_round < 1:
            raise ConfigError(f"clients_per_round must be >= 1, got {clients_per_round}")
        check_frozen(method)
        self.method, self.model, self.clients = method, model, clients
        self.key = Key(seed)
        self.cohort = clients_per_round or len(clients.ids)
        self.outage, self.channel = outage or Outage(), channel or Even()
        self.pace = pace
        self.steps = steps_of(method)
        self._failures: list[LostReply] = []  # of rounds that raised
        self.abandoned_last = 0
        self.left_out: dict[ClientId, str] = {}

    @property
    def executor(self) -> Executor:
        """The server's executor."""
        return self.clients.executor

    @property
    def memory(self) -> Memory:
        """The server's knowledge of what clients remember."""
        return self.clients.memory

    @memory.setter
    def memory(self, memory: Memory) -> None:
        self.clients.memory = memory

    def start(self) -> S:
        """The state before round 1.

        Raises:
            ProtocolError: If it is not of the annotated type, or the initial model was changed.
        """
        who, initial = f"init of {name_of(self.method)}", marks(self.model.initial, content=True)
        state = self.method.init(self.model.initial, self.federation(0))
        if isinstance(state, GeneratorType):
            raise ProtocolError(f"{who} has a yield in it and may ask nobody; leave that to round")
        check_unchanged(initial, self.model.initial, who, "the model it is given")
        check_type(state, wire.state_type(self.method), f"the state that {who} returns")
        return state

    def plan(self, state: S, t: int) -> Plan[S]:
        """Begin the plan of a round, which must be a generator."""
        plan = self.method.round(state, self.federation(t))
        if not isinstance(plan, GeneratorType):
            raise ProtocolError(
                f"{type(self.method).__name__}.round is no generator, so it asks no client; write "
                '"replies = yield from ask(...)"'
            )
        return plan

    def round(self, state: S, t: int) -> tuple[S, Trace]:
        """Run round `t`, counted from 1: return the next state, and a record of the round.

        A round that fails or diverges because of a few remote clients is repeated without them.  Any exception leaves
        client memory unchanged, and the failures to `drain_records`.

        Raises:
            QuorumError: If too few clients replied, or one that holds what the plan collects is gone.
            DivergedError: If the model diverged and no reply stands out.
            ProtocolError: If the plan asks for what does not exist.
        """
        trace = Trace()
        with self._failing(trace):
            return self._run(state, t, trace), trace

    def attempt(self, state: S, t: int, last: bool = False) -> tuple[S, Trace]:
        """Run round `t` like `round`, but abandon it if too few clients replied: the model then stays.

        What was sent and computed stays in the record; clients forget it.

        Args:
            state: State before the round.
            t: Round, counted from 1.
            last: True if no round follows.

        Raises:
            QuorumError: If a simulation lost no reply, so that the method asks for too many.  If no round so far has a
                result and this is the last or the `IN_A_ROW`th.  If too few remote clients are left, or that many
                rounds in a row had no result.
            DivergedError, ProtocolError: As `round`.
        """
        if self.abandoned_last:
            self.clients.gather()
        trace = Trace()
        with self._failing(trace):
            try:
                new = self._run(state, t, trace)
                self.abandoned_last = 0
            except QuorumError as error:
                if not (trace.failures or self.clients.remote):
                    raise
                self.abandoned_last += 1
                none = self.abandoned_last == t and (last or t == IN_A_ROW)
                if none or (self.clients.remote and self.abandoned_last >= IN_A_ROW):
                    n = self.abandoned_last
                    what = "the only round has" if n == t == 1 else f"{n} rounds in a row have"
                    raise QuorumError(f"{what} no result: {error}") from error
                trace.abandoned = str(error)
                new = error.after(state)
                self.clients.restart(t)
                self.memory.commit(t)
        return new, trace

    @contextmanager
    def _failing(self, trace: Trace) -> Iterator[None]:
        """Keep what failed in a round that raises."""
        try:
            yield
        except BaseException:
            self._failures.extend(trace.failures)
            raise

    def _run(self, state: S, t: int, trace: Trace) -> S:
        """Run round `t`, as often as clients have to be left out of it."""
        left_out = dict(self.left_out)
        while True:
            exchanges = _Round(self, t, trace, left_out)
            given = marks(state, content=True) if t <= FIRST else None
            try:
                new: S = drive(self.plan(state, t), exchanges.answer)
                if new is None and state is not None:
                    raise ProtocolError(
                        f"{type(self.method).__name__}.round returned nothing in round {t}; it must return the next "
                        "state"
                    )
                if given is not None:
                    who = f"round of {name_of(self.method)}"
                    check_unchanged(given, state, who, "the state it is given")
                    check_type(new, wire.state_type(self.method), f"the state that {who} returns in round {t}")
                    for client, (memory, before) in exchanges.remembered.items():
                        check_unchanged(before, memory, who, f"what client {client} remembers of its reply")
                suspects = {
                    c: f"with its reply the model diverged; {why}"
                    for c, why in self.suspects(exchanges, state, new).items()
                }
                if not suspects:
                    self.memory.commit(t)
                    return new
            except BaseException as error:
                suspects = error.suspects if isinstance(error, SuspectError) and self.clients.remote else {}
                if isinstance(error, SuspectError) and not error.again:
                    self.left_out |= {c: f"refused: {why}" for c, why in suspects.items()}
                    raise
                if not suspects.keys() - left_out.keys():
                    raise
            finally:
                self.memory.discard()
            # What the first try sent and computed stays in the record: it has been spent.
            trace.failures.clear()
            trace.losses.clear()
            left_out |= {c: f"refused: {why}" for c, why in suspects.items()}
            self.clients.restart(t)

    def suspects(self, exchanges: "_Round", before: S, after: S) -> Mapping[ClientId, str]:
        """Remote clients whose replies made the global model diverge."""
        if not self.clients.remote:
            return {}
        return exchanges.clients.suspects(self.method.serve(before, None), self.method.serve(after, None))

    def federation(self, t: int) -> Federation:
        """The plan's view of the federation in round `t`."""
        m = self.model
        return Federation(
            clients=self.clients.ids,
            num_classes=m.num_classes,
            layout=m.layout,
            round=t,
            key=self.key / "server" / t,
            clients_per_round=self.cohort,
            initialise=m.initialise,
            run_on_server=server_device(m.server_trainer, self.key, t, m.num_classes, m.layout, m.initial),
            # A fresh one each time: a round run once more with the same noise would reveal how its two sums differ.
            secret=Key(secrets.randbits(256)) if self.clients.remote else None,
            rounds_begun=self.clients.rounds_begun,
        )

    def own_models(self, state: S, clients: Sequence[ClientId], t: int) -> dict[ClientId, Params]:
        """The models these clients would use after round `t`; clients without a model are left out.

        Each is the served model, adapted by `personalise` if there is one.  Nothing is added to the ledger or
        remembered.  Models of remote clients stay with them.
        """
        served = {c: self.method.serve(state, c) for c in clients}
        return self.clients.own_models(served, personalise_of(self.method), t)

    def evaluate_on_clients(
        self, state: S, t: int, parts: Sequence[str], last: bool = False, clients: Sequence[ClientId] | None = None
    ) -> dict[str, dict[ClientId, Score]]:
        """Let remote clients, by default all, evaluate their own models after round `t`; scores by part: personal, val.

        A client that does not answer is left out, and among the failures.  After the last round clients keep their
        models.
        """
        served = {c: self.method.serve(state, c) for c in (self.clients.ids if clients is None else clients)}
        return self.clients.evaluate(served, t, parts, last)

    def drain_warnings(self) -> tuple[str, ...]:
        """Notes for the user about the clients, since the last call."""
        return self.clients.drain_warnings()

    def drain_records(self) -> tuple[list[LostReply], list[NetworkTransfer]]:
        """Failures outside the plan, and all network transfers, since the last call."""
        failures, sent = self.clients.drain_records()
        raised, self._failures = self._failures, []
        return [*raised, *failures], sent


class _Round:
    """Answers the requests of one round's plan; clients that are `left_out` are not asked."""

    def __init__(self, driver: Driver[Any], t: int, trace: Trace, left_out: Mapping[ClientId, str]) -> None:
        self.driver, self.t, self.trace, self.left_out = driver, t, trace, left_out
        self.clients = driver.clients.begin(t)
        self.hop = 0
        self.asked: Counter[str] = Counter()
        self.remembered: dict[ClientId, tuple[Any, Marks]] = {}
        """Memory of one client of each exchange, which the plan must not change."""

    def answer(self, request: object) -> Any:
        if isinstance(request, Ask):
            return self.ask(request)
        if isinstance(request, AsTheyCome):
            return self.as_they_come(request)
        if isinstance(request, Collect):
            return self.collect(request)
        if isinstance(request, Probe):
            return self.probe(request)
        return refuse_request("plan", request)

    # ------------------------------------------------------------------ Ask, AsTheyCome
    def ask(self, request: Ask) -> dict[ClientId, Any] | Reduced[Any]:
        places = {c: place for place, c in enumerate(request.to)}
        folding = Folding(request.reduce) if request.reduce else None
        replies: dict[ClientId, Any] = {}

        def take(c: ClientId, answer: Answer, seconds: float) -> None:
            if folding is None:
                replies[c] = answer.reply
            else:
                folding.add(places[c], c, answer.reply)

        lost, waited = self.run(request, take, request.timeout_s, folds=folding is not None)
        self.trace.clock += waited
        self.hop += 1
        count = len(replies if folding is None else folding)
        self.require(request, count, request.at_least, lost)
        return replies if folding is None else folding.finish()

    def as_they_come(self, request: AsTheyCome) -> Arrived[Any]:
        """Run the step on clients: in a simulation at once, and hold each reply until the clock is there."""
        remote, at_work = self.driver.clients.remote, self.driver.clients.under_way
        under_way = {c: u for c, u in request.under_way.items() if not remote or c in at_work}
        request = replace(request, to={c: m for c, m in request.to.items() if c not in under_way})
        under_way |= {c: UnderWay(request.stamp) for c in request.to}
        came: list[ClientId] = []

        def take(c: ClientId, answer: Answer, seconds: float) -> None:
            if held_in(answer.reply):
                raise ProtocolError("a reply that may come in a later round holds no value; leave Keep out")
            if c in under_way:  # the plan may have given it up
                came.append(c)
                under_way[c] = UnderWay(under_way[c].stamp, seconds, answer.n, answer.losses, answer.reply)

        lost, waited = self.run(request, take, None, first=request.first)
        for c in lost:
            under_way.pop(c, None)
        key = self.driver.key / "round" / self.t / "arrival" / self.hop
        due = sorted(under_way, key=lambda c: (under_way[c].left_s, (key / c).number()))[: request.first]
        order = came if remote else due
        passed = max([waited * (len(order) < request.first), *(under_way[c].left_s for c in order)])
        self.trace.clock += passed
        for c in order:
            self.charge(node(c), SERVER, size_of(under_way[c].reply))
            self.trace.losses.extend((under_way[c].n, loss) for loss in under_way[c].losses)
        self.hop += 1
        self.require(request, len(order), 1, lost)
        replies = {c: Came(u.stamp, u.reply) for c in order for u in [under_way.pop(c)]}
        return Arrived(replies, {c: replace(u, left_s=u.left_s - passed) for c, u in under_way.items()})

    def run(
        self,
        request: Ask | AsTheyCome,
        take: Callable[[ClientId, Answer, float], None],
        timeout_s: float | None,
        *,
        folds: bool = False,
        first: int | None = None,
    ) -> tuple[dict[ClientId, str], float]:
        """Run a step on clients, and hand `take` each reply that comes, with the simulated seconds that it took.

        Replies that `folds` are dropped as they come; those that come later than they are made, if only the `first`
        are waited for, are charged then.

        Returns:
            The clients that are lost and why, and the seconds until the last reply or the deadline.
        """
        self.check(request)
        fates = {c: self.fate(request.step, c) for c in request.to}
        lost = {c: self.left_out[c] for c in request.to if c in self.left_out}
        reached = {c: m for c, m in request.to.items() if fates[c] != "unreachable" and c not in lost}
        exchange = replace(self.prepare(request, reached, lost, timeout_s, folds), first=first)
        sizes = {i: size_of(m) for i, m in {id(m): m for m in exchange.messages.values()}.items()}
        limit = timeout_s or getattr(self.driver.pace, "deadline_s", None) or math.inf
        waited = 0.0
        answers: dict[ClientId, Answer | Lost] = {}
        try:
            for c, answer in self.clients.run(exchange):
                answers[c] = answer
                if isinstance(answer, Answer):
                    answers[c] = replace(answer, reply=None)
                    seconds = 0.0
                    if self.driver.pace is not None:
                        seconds = self.seconds(exchange, c, sizes[id(exchange.messages[c])].bytes, answer)
                    fates.setdefault(c, None)  # of a client of an earlier exchange
                    if fates[c] is None and seconds > limit:
                        fates[c] = "late"
                    waited = max(waited, seconds if fates[c] is None or limit == math.inf else limit)
                    # Of a reply that is lost on its way only its client knows.
                    if answer.refused or fates[c] is not None:
                        continue
                    take(c, answer, seconds)
                del answer  # while the next client trains, this reply is gone
        except (ProtocolError, WireError) as error:  # a method's code is refused here; over a network clients do that
            if self.driver.clients.remote:
                raise
            raise type(error)(f"{error} (round {self.t}, step {request.step!r})") from error
        self.charge_messages(exchange, answers, sizes)
        self.record_answers(answers, fates, lost, later=first is not None)
        asked = dict.fromkeys((*request.to, *lost))
        lost = {c: lost.get(c) or str(fates[c]) for c in asked if c in lost or fates[c] is not None}
        self.trace.failures.extend(LostReply(self.t, c, request.step, reason) for c, reason in lost.items())
        self.asked[request.step] += 1
        return lost, waited

    def seconds(self, exchange: Exchange, client: ClientId, down: int, answer: Answer) -> float:
        """Simulated time of a client's part: what other clients hold for it is sent to the server first."""
        moved: Counter[ClientId] = Counter()
        for h in exchange.moving[client]:
            moved[h.owner] += exchange.values[h].size.bytes
        waits = max((self.spent(owner, 0, 0, sent) for owner, sent in moved.items()), default=0.0)
        return waits + self.spent(client, answer.examples, down + moved.total(), answer.size.bytes)

    def spent(self, client: ClientId, examples: int, down: int, up: int) -> float:
        """Simulated time of one errand in this exchange, seconds."""
        pace, key = self.driver.pace, self.driver.key / "pace"
        return 0.0 if pace is None else pace.seconds(key, Errand(self.t, self.hop, client, examples, down, up))

    def require(self, request: Ask | AsTheyCome, count: int, at_least: int, lost: Mapping[ClientId, str]) -> None:
        """Refuse too few replies."""
        if count < at_least:
            first = next((f" (client {c}: {reason})" for c, reason in lost.items()), "")
            raise QuorumError(
                f"round {self.t}, step {request.step!r}: {count} of {len(request.to)} clients replied, "
                f"{at_least} needed; lost: {', '.join(map(str, lost)) or 'none'}{first}"
            )

    def check(self, request: Ask | AsTheyCome) -> None:
        """Refuse a request for a step or a client that does not exist."""
        steps, known = self.driver.steps, range(len(self.driver.clients.ids))
        if request.step not in steps:
            raise ProtocolError(f"the plan asks for {request.step!r}, which is not marked @step; known: {list(steps)}")
        strangers = [c for c in request.to if c not in known]
        if strangers:
            raise ProtocolError(f"round {self.t}, step {request.step!r}: no such client: {strangers[:5]}")

    def fate(self, step: str, client: ClientId) -> Any:
        """Draw whether the client is reached and its reply comes back.

        The step's name is not part of the address: methods whose steps are named differently lose the same clients.
        """
        key = self.driver.key / "round" / self.t / "outage" / self.hop / client
        return self.driver.outage.fate(key, step, self.asked[step])

    def prepare(
        self,
        request: Ask | AsTheyCome,
        reached: Mapping[ClientId, Any],
        lost: dict[ClientId, str],
        timeout_s: float | None,
        folds: bool,
    ) -> Exchange:
        """Bring the values that messages need; a client whose values did not come is lost and left out."""
        # What many clients are sent is one object, looked through once.
        references = {i: held_in(m) for i, m in {id(m): m for m in reached.values()}.items()}
        moving = {c: tuple(h for h in references[id(m)] if h.owner != c) for c, m in reached.items()}
        values, missing = self.fetch([h for held in moving.values() for h in held], timeout_s)
        for c, held in moving.items():
            gone = [missing[h] for h in held if h in missing]
            if gone:
                lost[c] = f"what it was to be sent could not be fetched: {gone[0]}"
        messages = {c: m for c, m in reached.items() if c not in lost}
        index = self.asked[request.step]
        return Exchange(self.hop, request.step, index, messages, moving, values, timeout_s, folds)

    def charge_messages(
        self, exchange: Exchange, answers: Mapping[ClientId, Answer | Lost], sizes: Mapping[int, Size]
    ) -> None:
        """Charge every message that was sent, and the values that came with it from their owners."""
        for c, m in exchange.messages.items():
            answer = answers.get(c)  # which may come later
            if isinstance(answer, Lost) and not answer.sent:
                continue
            self.charge(SERVER, node(c), sizes[id(m)])
            for h in exchange.moving[c]:
                self.charge(node(h.owner), node(c), exchange.values[h].size)

    def record_answers(
        self,
        answers: Mapping[ClientId, Answer | Lost],
        fates: Mapping[ClientId, Any],
        lost: dict[ClientId, str],
        later: bool,
    ) -> None:
        """Record each client's work and memory, and charge the replies that arrived, unless that is for later."""
        looked = False
        for c, answer in answers.items():
            if isinstance(answer, Lost):
                lost[c] = answer.reason
                continue
            if answer.examples:
                self.trace.work.append(Effort(self.t, self.hop, c, answer.examples))
            self.driver.memory.stage(c, answer.memory)
            if self.t <= FIRST and c not in self.remembered and not looked and answer.memory is not None:
                self.remembered[c], looked = (answer.memory, marks(answer.memory, content=True)), True
            if fates[c] is None:
                if not later:
                    self.charge(node(c), SERVER, answer.size)
                if answer.refused:
                    lost[c] = f"refused: {answer.refused}"
                elif not later:
                    self.trace.losses.extend((answer.n, loss) for loss in answer.losses)

    # ------------------------------------------------------------------ Collect, Probe
    def collect(self, request: Collect) -> list[Any]:
        values, missing = self.fetch(request.held, None)
        came = sum(h in values for h in request.held)
        if missing and (request.at_least is None or came < request.at_least):
            owners = ", ".join(map(str, sorted({h.owner for h in missing})))
            raise QuorumError(
                f"round {self.t}: {len(request.held)} held values are collected, and those of clients {owners} did "
                f"not come ({next(iter(missing.values()))})"
            )
        sent: Counter[ClientId] = Counter()
        for h in request.held:
            if h in values:
                self.charge(node(h.owner), SERVER, values[h].size)
                sent[h.owner] += values[h].size.bytes
        self.trace.clock += max((self.spent(owner, 0, 0, n) for owner, n in sent.items()), default=0.0)
        self.hop += 1
        return [values[h].read() if h in values else None for h in request.held]

    def fetch(self, held: Collection[Held], timeout_s: float | None) -> tuple[dict[Held, HeldValue], dict[Held, str]]:
        """Bring held values, from all owners at once: those that came, and the reasons why others did not.

        Values are dropped after the exchange that needs them, so the server never holds more than one hop's models.
        """
        if not held:
            return {}, {}
        values_by_handle = self.clients.fetch(list(dict.fromkeys(held)), self.hop, timeout_s)
        values = {h: v for h, v in values_by_handle.items() if isinstance(v, HeldValue)}
        lost = {h: v.reason for h, v in values_by_handle.items() if isinstance(v, Lost)}
        for owner, reason in dict.fromkeys((h.owner, reason) for h, reason in lost.items()):
            self.trace.failures.append(LostReply(self.t, owner, "held value", reason))
        return values, {h: f"client {h.owner}: {reason}" for h, reason in lost.items()}

    def probe(self, request: Probe) -> Tensor:
        """Client-to-client block of the modelled channel; a deployment does not measure its links."""
        driver = self.driver
        nodes = len(driver.clients.ids) + 1
        return efficiency(driver.channel, driver.key / "channel", self.t, request.hop, nodes)[1:, 1:]

    def charge(self, src: int, dst: int, size: Size) -> None:
        if size.bytes:
            self.trace.transfers.append(Transfer(self.t, self.hop, src, dst, size.kind, size.bytes))
