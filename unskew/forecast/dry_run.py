"""A run without training: the method's real plan, driven by clients that make their results up.

The simulator, the wire and the evaluation are those of a run, so messages are weighed, cohorts drawn and models graded
by the same code; only the executor is an understudy.  It tells one of two fictions:

    stand_still   every optimisation ends where it began, every fold with the value it began with
    wander        every optimisation ends near its start, its loss is some number, folds and local code are really done

A plan whose traffic is the same under both does not let training decide what it sends, as far as two tries can tell.

What the server does on a device of its own (`Federation.work`) is answered in the same way.  Local code (`Run`) is
really done, since nobody else knows what comes of it, but once where that will do, and while there is time; a prior
that it asks for is an understudy as well (unpainted.py).
"""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from unskew import machine, wire
from unskew.data.federated import FederatedData
from unskew.errors import MemoryShortage
from unskew.experiment.config import Experiment, Method
from unskew.forecast.mock_prior import Asked, MockPrior
from unskew.keys import Key
from unskew.ledger import Direction, totals
from unskew.local import data, imagery
from unskew.local.executor import EvalJob, StepJob, StepResult, untrained
from unskew.local.trainer import LocalTrainer
from unskew.protocol import NOBODY, ClientId, Fitted, Fold, Imagery, Local, Me, Run, Sgd, SgdConfig, drive
from unskew.run import setup as run_setup
from unskew.run.evaluation import eval_set, evaluate
from unskew.run.setup import Setup
from unskew.runtime.in_process import Population, Simulator
from unskew.tree import Params, leaves
from unskew.units import human_bytes

Mock = Literal["stand_still", "wander"]

WANDER = 0.01
"""How far from its start a made-up result lies, relative to each value."""

CODE_S = 1.0
"""Seconds that a method's local code may take beside the time there is for driving; each kind is done once even so."""

KEPT_BYTES = 256 << 20
"""Of what local code came to, kept for when it is met again."""

ROOM = 0.9
"""Of the memory there is, what messages, memories and replies may take: a rehearsal holds them as the run would."""

Kind = tuple[str, Any, Any]
"""What makes two jobs cost the same on equally many examples.

("sgd", config, terms), or "sgd given" on examples that the step hands over; ("fold" or "run", name, None), or "work"
for local code of the server's; ("prior", what was asked, None) for that many images, latents or embeddings.
"""


@dataclass
class RoundRequests:
    """What one round, or one evaluation, asks for.

    Attributes:
        bytes: By direction.
        jobs: How many jobs of a kind were asked of clients with so many training examples.
        desk: The same of the server's own device.
        imagined: What priors were asked for: kind, for how many, what equal images are equal to, and whether by the
            server; and how often.
        papers: Examples of each model to be graded.
        gathered: Most examples that are copied for one of them.
        server_s: Seconds of everything but the jobs.
    """

    bytes: Mapping[Direction, int] = field(default_factory=dict)
    jobs: Counter[tuple[Kind, int]] = field(default_factory=Counter)
    desk: Counter[tuple[Kind, int]] = field(default_factory=Counter)
    imagined: Counter[tuple[Kind, int, Hashable, bool]] = field(default_factory=Counter)
    papers: list[int] = field(default_factory=list)
    gathered: int = 0
    server_s: float = 0.0


@dataclass(frozen=True)
class Pace:
    """What local code took where it was really done, without what it asked of a prior."""

    seconds: float = 0.0
    examples: int = 0
    calls: int = 0

    def seconds_for(self, n: int) -> float:
        """On `n` examples; of a call where none had any."""
        return n * self.seconds / self.examples if self.examples else self.seconds / max(self.calls, 1)


@dataclass(eq=False)
class Code:
    """What a method's local code came to: shared by both fictions, and in part by all seeds.

    Attributes:
        values: Of one seed, by step, kind, client and number within the step; as many as there is room for.
        first: The first value of each kind, of any seed.
        paces: By kind.
        imagines: Kinds that asked a prior: what they come to differs between the fictions.
        spent: Seconds it took.
    """

    values: dict[Hashable, Any] = field(default_factory=dict)
    first: dict[Kind, Any] = field(default_factory=dict)
    paces: dict[Kind, Pace] = field(default_factory=dict)
    imagines: set[Kind] = field(default_factory=set)
    spent: float = 0.0
    room: int = KEPT_BYTES

    def keep(self, key: Hashable, kind: Kind, value: Any) -> None:
        """Remember a value if there is room."""
        self.first.setdefault(kind, value)
        bytes_ = 0 if key in self.values else size([value])
        if bytes_ <= self.room:
            self.room -= bytes_
            self.values[key] = value

    def turn(self) -> None:
        """Another seed: other clients' values."""
        self.values.clear()
        self.room = KEPT_BYTES


@dataclass(eq=False)
class DryRun:
    """What a cell asks for, as far as it was driven.

    Attributes:
        rounds: One after the other, from the first.
        evaluation: Of the state after the last of them; None if it was not wanted.
        in_flight: Most bytes of messages, replies and states alive at once.
        parcel: Most bytes that one client is sent, remembers and answers in an exchange.
        memory_per_client: Bytes one client remembers, on average over those that remember something.
        clients: Who was asked.
        samples: One optimisation of each kind, to be timed.
        paces: Of folds and local code, which were really done.
        borrowed: Whether local code's value of another client or seed was taken for want of time.
        kept: Bytes of a checkpoint at the end.
    """

    rounds: list[RoundRequests]
    evaluation: RoundRequests | None
    in_flight: int
    parcel: int
    memory_per_client: float
    clients: frozenset[ClientId]
    samples: dict[Kind, Sgd]
    paces: dict[Kind, Pace]
    borrowed: bool
    kept: int


@dataclass(frozen=True, eq=False)
class Stage:
    """One method under one seed, ready to be driven or timed; `code` is what is known of the method's local code."""

    method: Method
    seed: int
    trainer: LocalTrainer
    population: Population
    pooled: bool
    code: Code = field(default_factory=Code)


def stage(
    experiment: Experiment, method: Method, setup: Setup, fed: FederatedData, seed: int, code: Code | None = None
) -> Stage:
    """The clients of one cell, as a run would make them; `code` is that of another seed's stage."""
    trainer, population, train = run_setup.clients(experiment, method, setup, fed, seed)
    if code is not None:
        code.turn()
    return Stage(method, seed, trainer, population, train is not fed, code or Code())


def rehearse(
    experiment: Experiment,
    cell: Stage,
    fed: FederatedData,
    fiction: Mock,
    rounds: int,
    *,
    until: float,
    evaluated: bool = False,
) -> DryRun:
    """Drive a cell for `rounds` rounds, or at least two if the clock passes `until` (`time.monotonic`) before.

    Raises:
        MemoryShortage: If an exchange takes nearly all the memory there is.
        UnskewError: What the plan itself refuses; what else it raises when results are made up goes through.
    """
    understudy = DryRunExecutor(cell.trainer, fiction, until, cell.code)
    sim: Simulator[Any] = Simulator(
        cell.method.algorithm,
        replace(cell.population, server_trainer=understudy),
        understudy,
        seed=cell.seed,
        clients_per_round=1 if cell.pooled else experiment.cohort(len(cell.population.clients)),
        outage=None if cell.pooled else experiment.world.outage,
        channel=experiment.world.channel,
    )
    state = sim.start()
    done: list[RoundRequests] = []
    for t in range(1, rounds + 1):
        if t > 2 and time.monotonic() > until:
            break
        bout = understudy.begin()
        began = time.monotonic()
        state, trace = sim.round(state, t)
        bout.server_s = time.monotonic() - began - understudy.spent
        # What pooling would send is not a method's cost, as in a run.
        bout.bytes = totals(() if cell.pooled else trace.transfers)
        done.append(bout)
    remembered = sim.memory.at(len(done))
    evaluation = understudy.begin() if evaluated else None
    if evaluation is not None:
        began = time.monotonic()
        found = eval_set(fed, cell.trainer.device)
        evaluate(sim, state, len(done), found, experiment.evaluate, last=False)
        evaluation.server_s = time.monotonic() - began - understudy.spent
    return DryRun(
        done,
        evaluation,
        understudy.in_flight + 2 * size([state]),
        understudy.parcel,
        size(remembered.values()) / max(len(remembered), 1),
        frozenset(understudy.clients),
        understudy.samples,
        cell.code.paces,
        understudy.borrowed,
        wire.nbytes(state) + sum(map(wire.nbytes, remembered.values())),
    )


class DryRunExecutor:
    """An executor, and the server's device, that trains nothing and grades nothing, but takes notes.

    Args:
        solo: Does folds and local code where the fiction wants them done.
        fiction: Which results are made up.
        until: After this moment (`time.monotonic`) what takes time is done once and its value used again.
        code: What local code came to before, and will have come to.
    """

    name = "understudy"

    def __init__(self, trainer: LocalTrainer, fiction: Mock, until: float, code: Code) -> None:
        self._solo, self._fiction, self._until, self._code = trainer, fiction, until, code
        self._noise: dict[str, Tensor] = {}
        self._room = machine.available() if trainer.device.type == "cpu" else None
        self.begin()
        self.in_flight = self.parcel = 0
        self.clients: set[ClientId] = set()
        self.samples: dict[Kind, Sgd] = {}
        self.borrowed = False

    def begin(self) -> RoundRequests:
        """Take notes on a new sheet."""
        self.bout, self.spent = RoundRequests(), 0.0
        return self.bout

    # ------------------------------------------------------------------ as an executor
    def complete(self, work: Mapping[ClientId, StepJob]) -> Iterator[tuple[ClientId, StepResult]]:
        """Drive every step to its end; what it asks of its device is made up."""
        done: dict[ClientId, StepResult] = {}
        seen: set[int] = set()
        held = 0
        for c, w in work.items():
            done[c] = self._alone(w)
            found = _storages((w.message, w.memory, done[c].value))
            held += sum(n for at, n in found.items() if at not in seen)
            seen |= found.keys()
            if self._room is not None and held > ROOM * self._room:
                raise MemoryShortage(
                    f"step {w.step!r}: what the first {len(done)} of {len(work)} clients are sent, remember and answer "
                    f"is {human_bytes(held)}, more than {ROOM:g} of the {human_bytes(self._room)} of memory that can "
                    "be had; lower clients_per_round or take a smaller task.model"
                )
        self.clients.update(work)
        if self._fiction == "wander":
            values = [part for c, w in work.items() for part in (w.message, w.memory, done[c].value)]
            self.in_flight = max(self.in_flight, size(values))
            self.parcel = max([self.parcel, *(size(values[i : i + 3]) for i in range(0, min(len(values), 30), 3))])
        return iter(done.items())

    def evaluate(self, papers: Sequence[EvalJob]) -> list[tuple[Tensor, Tensor]]:
        """Everything wrong, at no loss."""
        sizes = [self._solo.size(p.part) if p.rows is None else len(p.rows) for p in papers]
        self.bout.papers += sizes
        self.bout.gathered = max(
            [self.bout.gathered, *(n for n, p in zip(sizes, papers, strict=True) if p.rows is not None)]
        )
        return [(torch.zeros(n, dtype=torch.bool), torch.zeros(n)) for n in sizes]

    def _alone(self, work: StepJob) -> StepResult:
        counts = {kind: itertools.count() for kind in (Sgd, Fold, Run)}

        def answer(request: Any) -> Any:
            return self._timed(work.step, work.me, next(counts.get(type(request), counts[Run])), request)

        return StepResult(drive(work.begin(work.me, work.message, work.memory), answer))

    # ------------------------------------------------------------------ as the server's device
    def answer(self, me: Me, index: int, request: object) -> Any:
        """What the server asks of its own device."""
        return self._timed("work", me, index, request)

    # ------------------------------------------------------------------ either
    def _timed(self, step: str, me: Me, index: int, request: object) -> Any:
        began = time.monotonic()
        try:
            return self._answer(step, me, index, request)
        finally:
            self.spent += time.monotonic() - began

    def _answer(self, step: str, me: Me, index: int, request: object) -> Any:
        if isinstance(request, Sgd) and (me.id != NOBODY or request.examples is not None):
            return self._fitted(me, request)
        if isinstance(request, Run):
            return self._ran(step, me, index, request)
        if isinstance(request, Fold) and me.id != NOBODY:
            return self._folded(me, index, request)
        return self._solo.answer(me, index, request)  # refuses it

    def _folded(self, me: Me, index: int, request: Fold) -> Any:
        kind: Kind = ("fold", _name(request.fn), None)
        self.bout.jobs[kind, me.n] += 1
        if self._fiction == "stand_still":
            return request.init
        if kind in self._code.first and time.monotonic() >= self._until:
            return self._code.first[kind]
        value = self._done(kind, me, lambda: self._solo.answer(me, index, request))
        self._code.first[kind] = value
        return value

    def _ran(self, step: str, me: Me, index: int, request: Run) -> Any:
        code, at_server = self._code, me.id == NOBODY
        kind: Kind = ("work" if at_server else "run", _name(request.fn), None)
        (self.bout.desk if at_server else self.bout.jobs)[kind, me.n] += 1
        fiction = self._fiction if kind in code.imagines else None
        key = (step, kind, me.id, index, fiction)
        known, time_left = key in code.values, time.monotonic() < self._until or code.spent < CODE_S
        # The server's, without a prior's work, is short; its shape follows from what it is given.
        time_left |= at_server and kind in code.imagines
        if kind not in code.first or (time_left and (self._fiction == "wander" or not known)):
            local = _Watched(self._solo, me, index, self._fiction, self.bout)
            value = self._done(kind, me, lambda: request.fn(local, *request.args))
            if local.asked:
                code.imagines.add(kind)
                key = (step, kind, me.id, index, self._fiction)
            code.keep(key, kind, (value, tuple(local.asked)))
            return value
        self.borrowed |= not known
        # The same client's under the other fiction has at least the right shape.
        other = (step, kind, me.id, index, "wander")
        value, asked = code.values[key] if known else code.values.get(other, code.first[kind])
        for one in asked:
            self.bout.imagined[(*one, at_server)] += 1
        return value

    def _done(self, kind: Kind, me: Me, do: Callable[[], Any]) -> Any:
        began = time.monotonic()
        value = do()
        spent = time.monotonic() - began
        pace = self._code.paces.get(kind, Pace())
        self._code.paces[kind] = Pace(pace.seconds + spent, pace.examples + me.n, pace.calls + 1)
        self._code.spent += spent
        return value

    def _fitted(self, me: Me, request: Sgd) -> Fitted:
        given = request.examples
        kind: Kind = ("sgd" if given is None else "sgd given", request.config, request.terms)
        n = me.n if given is None else len(given.rows)
        (self.bout.desk if me.id == NOBODY else self.bout.jobs)[kind, n] += 1
        steps = steps_of_job(request.config, n, self._solo)
        lr = request.config.lr_at(me.round)
        if self._fiction == "stand_still":
            return untrained(request, me.round, steps)
        self.samples.setdefault(kind, request)
        return Fitted({n: self._wandered(me, n, t) for n, t in request.start.items()}, steps, lr, 0.6931471805599453)

    def _wandered(self, me: Me, name: str, t: Tensor) -> Tensor:
        noise = self._noise.get(name)
        if noise is None or noise.shape != t.shape:
            draw = torch.randn(t.shape, generator=(Key(0) / "rehearsal" / name).generator())
            noise = self._noise[name] = WANDER * draw.to(t)
        return t * (1.0 + noise.roll(me.id))  # another direction for every client


class _Watched:
    """What `Run` hands its function, but for the prior; notes what is asked of that."""

    def __init__(self, trainer: LocalTrainer, me: Me, index: int, fiction: Mock, bout: RoundRequests) -> None:
        self._solo, self._me, self._fiction, self._bout = trainer, me, fiction, bout
        self._local: Local = trainer.local(me, index)
        self.x, self.y, self.groups, self.key = self._local.x, self._local.y, self._local.groups, self._local.key
        self.asked: list[tuple[Kind, int, Hashable]] = []

    def imagery(self, source: str) -> Imagery:
        """The prior's understudy; the real one is loaded all the same, for its shapes."""
        length = WANDER if self._fiction == "wander" else 0.0
        return MockPrior(
            prior_of(self._solo, source), self._solo.device_data.x.shape[1:], self._me.id, length, self._note
        )

    def forward(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Really done."""
        return self._local.forward(params, x)

    def gradient(self, params: Params) -> Params:
        """Really done."""
        return self._local.gradient(params)

    def _note(self, asked: Asked, n: int, same: Hashable) -> None:
        one: tuple[Kind, int, Hashable] = (("prior", asked, None), n, same)
        self.asked.append(one)
        self._bout.imagined[(*one, self._me.id == NOBODY)] += 1


def prior_of(trainer: LocalTrainer, source: str) -> imagery.TaskImagery:
    """The real prior for a stage's inputs."""
    return imagery.of(source, trainer.device, tuple(trainer.device_data.x.shape[1:]), trainer.device_data.levels)


def steps_of_job(config: SgdConfig, n: int, trainer: LocalTrainer) -> int:
    """Mini-batch steps of a client with `n` training examples."""
    return data.steps_of_job(config, n, trainer.task.min_batch)


def size(trees: Iterable[Any]) -> int:
    """Bytes of all tensors, those that are in several places counted once."""
    return sum(_storages(trees).values())


def _storages(trees: Iterable[Any]) -> dict[int, int]:
    """Where tensors lie, and how many bytes there."""
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for tree in trees for t in _tensors(tree)}


def _tensors(tree: Any) -> Iterable[Tensor]:
    return (leaf for _, leaf in leaves(tree) if isinstance(leaf, Tensor))


def _name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__qualname__", type(fn).__qualname__))
