"""A run without training: the method's real plan, driven by clients that make their results up.

The simulator, the wire and the evaluation are those of a run, so messages are weighed, cohorts drawn and models graded
by the same code; only the executor is an understudy.  It tells one of two fictions:

    stand_still   every optimisation ends where it began, every fold with the value it began with
    wander        every optimisation ends near its start, its loss is some number, folds and local code are really done

A plan whose traffic is the same under both does not let training decide what it sends, as far as two tries can tell.
"""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from unskew.data.batches import num_steps
from unskew.data.federated import FederatedData
from unskew.keys import Key
from unskew.ledger import Direction, totals
from unskew.local.executor import Done, Paper, Work
from unskew.local.solo import Solo
from unskew.protocol import ClientId, Fitted, Fold, Me, Run, Sgd, SgdConfig, drive
from unskew.run import assemble
from unskew.run.assemble import Bench
from unskew.run.config import Experiment, Method
from unskew.run.evaluate import evaluate, exam
from unskew.runtime.simulate import Population, Simulator
from unskew.tree import leaves

Fiction = Literal["stand_still", "wander"]

WANDER = 0.01
"""How far from its start a made-up result lies, relative to each value."""

Kind = tuple[str, Any, Any]
"""What makes two jobs cost the same on equally many examples: ("sgd", config, terms), ("fold" or "run", name, None)."""


@dataclass
class Bout:
    """What one round, or one evaluation, asks for.

    Attributes:
        bytes: By direction.
        jobs: How many jobs of a kind were asked of clients with so many training examples.
        papers: Examples of each model to be graded.
        gathered: Most examples that are copied for one of them.
        server_s: Seconds of everything but the jobs.
    """

    bytes: Mapping[Direction, int] = field(default_factory=dict)
    jobs: Counter[tuple[Kind, int]] = field(default_factory=Counter)
    papers: list[int] = field(default_factory=list)
    gathered: int = 0
    server_s: float = 0.0


@dataclass(eq=False)
class Rehearsal:
    """What a cell asks for, as far as it was driven.

    Attributes:
        rounds: One after the other, from the first.
        evaluation: Of the state after the last of them; None if it was not wanted.
        in_flight: Most bytes of messages, replies and states alive at once.
        memory_per_client: Bytes one client remembers, on average over those that remember something.
        clients: Who was asked.
        samples: One optimisation of each kind, to be timed.
        seconds_per_example: Of folds and local code, which were really done.
    """

    rounds: list[Bout]
    evaluation: Bout | None
    in_flight: int
    memory_per_client: float
    clients: frozenset[ClientId]
    samples: dict[Kind, Sgd]
    seconds_per_example: dict[Kind, float]


@dataclass(frozen=True, eq=False)
class Stage:
    """One method under one seed, ready to be driven or timed."""

    method: Method
    seed: int
    solo: Solo
    population: Population
    pooled: bool


def stage(experiment: Experiment, method: Method, bench: Bench, fed: FederatedData, seed: int) -> Stage:
    """The clients of one cell, as a run would make them."""
    solo, population, train = assemble.clients(experiment, method, bench, fed, seed)
    return Stage(method, seed, solo, population, train is not fed)


def rehearse(
    experiment: Experiment,
    cell: Stage,
    fed: FederatedData,
    fiction: Fiction,
    rounds: int,
    *,
    until: float,
    evaluated: bool = False,
) -> Rehearsal:
    """Drive a cell for `rounds` rounds, or at least two if the clock passes `until` (`time.monotonic`) before.

    Raises:
        UnskewError: What the plan itself refuses; what else it raises when results are made up goes through.
    """
    understudy = Understudy(cell.solo, fiction, until)
    sim: Simulator[Any] = Simulator(
        cell.method.algorithm,
        cell.population,
        understudy,
        seed=cell.seed,
        clients_per_round=1 if cell.pooled else experiment.cohort(len(cell.population.clients)),
        outage=None if cell.pooled else experiment.world.outage,
        channel=experiment.world.channel,
    )
    state = sim.start()
    done: list[Bout] = []
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
        found = exam(fed, cell.solo.device)
        evaluate(sim, state, len(done), found, experiment.evaluate, last=False)
        evaluation.server_s = time.monotonic() - began - understudy.spent
    return Rehearsal(
        done,
        evaluation,
        understudy.in_flight + 2 * size([state]),
        size(remembered.values()) / max(len(remembered), 1),
        frozenset(understudy.clients),
        understudy.samples,
        {kind: spent / max(n, 1) for kind, (spent, n) in understudy.really.items()},
    )


class Understudy:
    """An executor that trains nothing and grades nothing, but takes notes.

    Args:
        solo: Does folds and local code where the fiction wants them done.
        fiction: Which results are made up.
        until: After this moment (`time.monotonic`) what takes time is done once and its value used again.
    """

    name = "understudy"

    def __init__(self, solo: Solo, fiction: Fiction, until: float) -> None:
        self._solo, self._fiction, self._until = solo, fiction, until
        self._noise: dict[str, Tensor] = {}
        self._values: dict[Kind, Any] = {}
        self.begin()
        self.in_flight = 0
        self.clients: set[ClientId] = set()
        self.samples: dict[Kind, Sgd] = {}
        self.really: dict[Kind, tuple[float, int]] = {}

    def begin(self) -> Bout:
        """Take notes on a new sheet."""
        self.bout, self.spent = Bout(), 0.0
        return self.bout

    def complete(self, work: Mapping[ClientId, Work]) -> Iterator[tuple[ClientId, Done]]:
        """Drive every step to its end; what it asks of its device is made up."""
        done = {c: self._alone(w) for c, w in work.items()}
        self.clients.update(work)
        if self._fiction == "wander":
            values = [part for c, w in work.items() for part in (w.message, w.memory, done[c].value)]
            self.in_flight = max(self.in_flight, size(values))
        return iter(done.items())

    def grade(self, papers: Sequence[Paper]) -> list[tuple[Tensor, Tensor]]:
        """Everything wrong, at no loss."""
        sizes = [self._solo.size(p.part) if p.rows is None else len(p.rows) for p in papers]
        self.bout.papers += sizes
        self.bout.gathered = max(
            [self.bout.gathered, *(n for n, p in zip(sizes, papers, strict=True) if p.rows is not None)]
        )
        return [(torch.zeros(n, dtype=torch.bool), torch.zeros(n)) for n in sizes]

    def _alone(self, work: Work) -> Done:
        counts = {kind: itertools.count() for kind in (Sgd, Fold, Run)}

        def answer(request: Any) -> Any:
            began = time.monotonic()
            try:
                return self._answer(work.me, next(counts.get(type(request), counts[Run])), request)
            finally:
                self.spent += time.monotonic() - began

        return Done(drive(work.begin(work.me, work.message, work.memory), answer))

    def _answer(self, me: Me, index: int, request: Any) -> Any:
        if isinstance(request, Sgd):
            return self._fitted(me, request)
        if not isinstance(request, Fold | Run):
            return self._solo.answer(me, index, request)  # refuses it
        kind: Kind = ("fold" if isinstance(request, Fold) else "run", _name(request.fn), None)
        self.bout.jobs[kind, me.n] += 1
        if isinstance(request, Fold) and self._fiction == "stand_still":
            return request.init
        if kind not in self._values or (self._fiction == "wander" and time.monotonic() < self._until):
            began = time.monotonic()
            self._values[kind] = self._solo.answer(me, index, request)
            spent, n = self.really.get(kind, (0.0, 0))
            self.really[kind] = (spent + time.monotonic() - began, n + me.n)
        return self._values[kind]

    def _fitted(self, me: Me, request: Sgd) -> Fitted:
        kind: Kind = ("sgd", request.config, request.terms)
        n = me.n if request.examples is None else len(request.examples.rows)
        self.bout.jobs[kind, n] += 1
        steps = steps_of_job(request.config, n, self._solo)
        lr = request.config.lr_at(me.round)
        if self._fiction == "stand_still":
            return Fitted(request.start, steps, lr, 0.0)
        self.samples.setdefault(kind, request)
        return Fitted({n: self._wandered(me, n, t) for n, t in request.start.items()}, steps, lr, 0.6931471805599453)

    def _wandered(self, me: Me, name: str, t: Tensor) -> Tensor:
        noise = self._noise.get(name)
        if noise is None or noise.shape != t.shape:
            draw = torch.randn(t.shape, generator=(Key(0) / "rehearsal" / name).generator())
            noise = self._noise[name] = WANDER * draw.to(t)
        return t * (1.0 + noise.roll(me.id))  # another direction for every client


def steps_of_job(config: SgdConfig, n: int, solo: Solo) -> int:
    """Mini-batch steps of a client with `n` training examples."""
    return num_steps(
        n,
        batch_size=config.batch_size,
        epochs=config.epochs,
        steps=config.local_steps,
        min_batch=2 if solo.task.batch_norm else 1,
        drop_last=config.drop_last,
    )


def size(trees: Iterable[Any]) -> int:
    """Bytes of all tensors, those that are in several places counted once."""
    found = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for tree in trees for t in _tensors(tree)}
    return sum(found.values())


def _tensors(tree: Any) -> Iterable[Tensor]:
    return (leaf for _, leaf in leaves(tree) if isinstance(leaf, Tensor))


def _name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__qualname__", type(fn).__qualname__))
