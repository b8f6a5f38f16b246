"""A run without training: a method's real plan with made-up results of clients, and what it requests.

Simulator, wire and evaluation are those of a run, so the same code counts bytes, draws cohorts and chooses what is
evaluated.  Training returns its start, or a point near it; if both send the same, traffic is taken to be independent of
training.  Folds and local code (`Run`) really run, except with a prior: the costs of such a method are unknown.

How many rounds are driven depends on the number of jobs, never on the clock.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from unskew import machine
from unskew.data.federated import FederatedData
from unskew.errors import MemoryShortage, RunError
from unskew.experiment.config import Experiment, NamedMethod, World
from unskew.info import Passes, whole
from unskew.keys import Key
from unskew.ledger import Direction, totals
from unskew.local.data import steps_of_job
from unskew.local.executor import Columns, EvalJob, StepJob, StepResult, answer_untrained, untrained
from unskew.local.trainer import LocalTrainer
from unskew.protocol import SERVER_ID, ClientId, Fitted, Fold, Layout, Me, Run, Sgd, drive, report_of
from unskew.run import setup as run_setup
from unskew.run.evaluation import eval_set, evaluate, evaluated_clients
from unskew.run.setup import PreparedRun
from unskew.runtime.in_process import Population, Simulator
from unskew.runtime.round import Trace
from unskew.tree import Params, leaves
from unskew.units import human_bytes
from unskew.world.channel import Channel
from unskew.wrappers.robust import held_uploads

Kind = tuple[Any, ...]
"""Equal for two jobs that cost the same for equally much: ("sgd", config, terms), or ("code", name)."""

CODE_JOBS = 50
"""Jobs that a call of local code counts for: it really runs."""
MOVED = 0.01
"""Distance of a made-up result from its start, relative to each value; 0 in the other try."""
ROOM = 0.9
"""Share of the free memory that messages, memories and replies may take: a dry run holds them as the run would."""
PARTIAL_MEANS = 3
"""Models that a mean in the making takes: sums of this chunk and of those before, and a first reply."""
KEY = Key(0) / "rehearsal"


@dataclass
class Requests:
    """Requests of one round, or of one evaluation.

    Attributes:
        bytes: Bytes sent, by direction.
        jobs: Number of jobs by kind, by examples, and by whether the server asks.
        evaluated: Number of examples for each model to be evaluated.
        gathered: Most examples copied for one evaluation.
        server_s: Time of everything but the jobs, s.
    """

    bytes: Mapping[Direction, int] = field(default_factory=dict)
    jobs: Counter[tuple[Kind, int, bool]] = field(default_factory=Counter)
    evaluated: list[int] = field(default_factory=list)
    gathered: int = 0
    server_s: float = 0.0

    @property
    def work(self) -> int:
        """Number of jobs; local code counts as many."""
        return sum(k * (CODE_JOBS if kind[0] == "code" else 1) for (kind, _, _), k in self.jobs.items())


@dataclass(eq=False)
class Code:
    """Local code of a method: seconds and examples of each call, by kind."""

    times: dict[Kind, list[tuple[float, int]]] = field(default_factory=dict)

    def seconds(self, kind: Kind) -> float:
        """Seconds for an example, without the first call, which may import and build things."""
        times = self.times[kind][1:] or self.times[kind]
        return sum(s for s, _ in times) / max(sum(n for _, n in times), 1)


@dataclass(frozen=True, eq=False)
class PreparedMethod:
    """One method under one seed, ready to be driven or timed; `window` is the executor's."""

    method: NamedMethod
    seed: int
    trainer: LocalTrainer
    population: Population
    pooled: bool
    window: Callable[[int], int]


@dataclass(eq=False)
class DryRun:
    """Requests of one method under one seed, for the rounds that were driven.

    Attributes:
        rounds: Requests of each round, from the first.
        evaluation: Requests of an evaluation after the last of them; None if there was none.
        in_flight_bytes: Most bytes of messages, replies and states alive at once.
        client_bytes: Most bytes that one client receives, remembers and answers in an exchange.
        memory_per_client: Mean bytes of memory of clients that remember something.
        clients: Clients that were asked.
        samples: One optimisation of each kind, to be timed.
        abandoned: Number of rounds with too few replies for a result.
    """

    rounds: list[Requests]
    evaluation: Requests | None
    in_flight_bytes: int
    client_bytes: int
    memory_per_client: float
    clients: frozenset[ClientId]
    samples: dict[Kind, Sgd]
    abandoned: int


def prepare(run: PreparedRun, method: NamedMethod, seed: int) -> PreparedMethod:
    """A method's clients under a seed, as a run would make them."""
    trainer, population, train = run_setup.clients(run, method, seed)
    workers = run.experiment.runtime.workers or machine.cores()

    def window(model_bytes: int) -> int:
        return run.setup.executor_kind.window(model_bytes, workers, run.setup.device.type)

    return PreparedMethod(method, seed, trainer, population, train is not run.feds[seed], window)


def dry_run(
    experiment: Experiment,
    prepared: PreparedMethod,
    fed: FederatedData,
    code: Code,
    *,
    moved: float = MOVED,
    jobs: float = 0,
    evaluated: bool = False,
) -> DryRun:
    """Drive a method for all rounds, or for as many (at least two) as `jobs` jobs take.

    Raises:
        MemoryShortage: If an exchange takes nearly all memory.
        UnskewError: If the plan refuses its settings; other errors from made-up results are passed on.
    """
    executor = _DryExecutor(prepared, moved, code)
    cohort = 1 if prepared.pooled else experiment.cohort(len(prepared.population.clients))
    world = World() if prepared.pooled else experiment.world
    sim: Simulator[Any] = Simulator(
        prepared.method.method,
        replace(prepared.population, server_trainer=executor),
        executor,
        seed=prepared.seed,
        clients_per_round=cohort,
        outage=world.outage,
        channel=world.channel,
        pace=world.pace,
    )
    state = sim.start()
    driven, abandoned = list[Requests](), 0
    for t in range(1, experiment.rounds + 1):
        if t > 2 and sum(r.work for r in driven) >= jobs:
            break
        with executor.counting() as requests:
            state, trace = sim.attempt(state, t, t == experiment.rounds)
        abandoned += bool(trace.abandoned)
        # What pooling would send is not a method's cost, as in a run.
        requests.bytes = totals(() if prepared.pooled else trace.transfers)
        driven.append(requests)
    remembered = sim.memory.at(len(driven))
    evaluation: Requests | None = None
    for _ in range(2 if evaluated else 0):  # the first imports what metrics need, which a run does once
        with executor.counting() as requests:
            examples = eval_set(prepared.trainer.task, fed, prepared.trainer.device)
            clients = evaluated_clients(experiment.evaluate_clients, fed.num_clients, prepared.seed)
            evaluate(sim, state, len(driven), examples, experiment.evaluate, last=False, clients=clients)
        evaluation = requests
    means = PARTIAL_MEANS + cohort * held_uploads(prepared.method.method)
    return DryRun(
        driven,
        evaluation,
        executor.in_flight_bytes + 2 * size([state]) + means * size([prepared.population.initial]),
        executor.client_bytes,
        size(remembered.values()) / max(len(remembered), 1),
        frozenset(executor.remembered),
        executor.samples,
        abandoned,
    )


# ---------------------------------------------------------------- the executor
class _DryExecutor:
    """An executor, and the server's trainer, that trains and evaluates nothing, but counts what is asked for."""

    name = "dry run"

    def __init__(self, prepared: PreparedMethod, moved: float, code: Code) -> None:
        self.window, self.trainer = prepared.window, prepared.trainer
        self.moved, self.code = moved, code
        self.requests, self.spent = Requests(), 0.0
        self.noise: dict[str, Tensor] = {}
        self.room = machine.available() if self.trainer.device.type == "cpu" else None
        self.in_flight_bytes = self.client_bytes = 0
        self.remembered: dict[ClientId, int] = {}  # bytes, by client
        self.samples: dict[Kind, Sgd] = {}

    @contextmanager
    def counting(self) -> Iterator[Requests]:
        """Count another round, or an evaluation."""
        self.requests, self.spent = Requests(), 0.0
        began = time.monotonic()
        yield self.requests
        self.requests.server_s = time.monotonic() - began - self.spent

    def complete(self, jobs: Mapping[ClientId, StepJob]) -> Iterator[tuple[ClientId, StepResult]]:
        """Run every step to its end; what it asks of its trainer is made up."""
        results: dict[ClientId, StepResult] = {}
        held: dict[int, int] = {}
        elsewhere = sum(n for c, n in self.remembered.items() if c not in jobs)
        for c, job in jobs.items():
            value = self._value(job)
            results[c] = StepResult(value)
            own = _storages((job.message, job.memory, value))
            held |= own
            self.client_bytes = max(self.client_bytes, sum(own.values()))
            self.remembered[c] = size([value[1:]]) if isinstance(value, tuple) else 0
            if self.room is not None and sum(held.values()) + elsewhere > ROOM * self.room:
                raise MemoryShortage(
                    f"step {job.step!r}: what {len(results)} clients are sent, remember and answer is more than "
                    f"{ROOM:g} of the {human_bytes(self.room)} of memory; lower clients_per_round or use a smaller "
                    "task.model"
                )
        self.in_flight_bytes = max(self.in_flight_bytes, sum(held.values()))
        return iter(results.items())

    def evaluate(self, jobs: Sequence[EvalJob]) -> list[Columns]:
        """Return zeros for every example."""
        sizes = [self.trainer.size(job.part) if job.rows is None else len(job.rows) for job in jobs]
        gathered = [n for n, job in zip(sizes, jobs, strict=True) if job.rows is not None]
        self.requests.evaluated += sizes
        self.requests.gathered = max([self.requests.gathered, *gathered])
        task = self.trainer.task
        one = task.columns(torch.zeros(1, task.width), self.trainer.device_data.y[:1].cpu())
        return [tuple(column.new_zeros(n, *column.shape[1:]) for column in one) for n in sizes]

    def _value(self, job: StepJob) -> Any:
        counts: Counter[type] = Counter()

        def answer(request: object) -> Any:
            counts[type(request)] += 1
            return self.answer(job.me, counts[type(request)] - 1, request)

        return drive(job.begin(job.me, job.message, job.memory), answer)

    def answer(self, me: Me, index: int, request: object) -> Any:
        """Answer a request of a client's step, or of the server's own."""
        began = time.monotonic()
        at_server = me.id == SERVER_ID
        try:
            if isinstance(request, Sgd) and (not at_server or request.examples is not None):
                return self._sgd(me, request)
            if isinstance(request, Run) or (isinstance(request, Fold) and not at_server):
                return self._code(me, index, request)
            return self.trainer.answer(me, index, request)  # refuses it
        finally:
            self.spent += time.monotonic() - began

    def _sgd(self, me: Me, request: Sgd) -> Any:
        rows = request.rows if request.examples is None else request.examples.rows
        n, kind = me.n if rows is None else len(rows), ("sgd", request.config, request.terms)
        self.requests.jobs[kind, n, me.id == SERVER_ID] += 1
        self.samples.setdefault(kind, replace(request, rows=None))
        steps = steps_of_job(request.config, n, self.trainer.task.min_batch)
        if not self.moved:
            return untrained(request, me.round, steps)
        params = {name: self._near(me, name, t) for name, t in request.start.items()}
        return Fitted(params, steps, request.config.lr_at(me.round), 0.6931471805599453)

    def _near(self, me: Me, name: str, t: Tensor) -> Tensor:
        noise = self.noise.get(name)
        if noise is None or noise.shape != t.shape:
            draw = torch.randn(t.shape, generator=(KEY / name).generator())
            noise = self.noise[name] = self.moved * draw.to(t)
        return t * (1.0 + noise.roll(me.id))  # another direction for every client

    def _code(self, me: Me, index: int, request: Run | Fold) -> Any:
        kind = ("code", str(getattr(request.fn, "__qualname__", type(request.fn).__qualname__)))
        self.requests.jobs[kind, me.n, me.id == SERVER_ID] += 1
        if isinstance(request, Fold) and not self.moved:
            return request.init
        began = time.monotonic()
        if isinstance(request, Fold):
            value = self.trainer.answer(me, index, request)
        else:
            value = request.fn(_WithoutPrior(self.trainer.local(me, index)), *request.args)
        self.code.times.setdefault(kind, []).append((time.monotonic() - began, me.n))
        return value


class _WithoutPrior:
    """A client's real data and tools, but for a prior, which would take as long as in the run."""

    def __init__(self, local: Any) -> None:
        self._local = local

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def imagery(self, source: str) -> Any:
        raise RunError(f"it works with the prior {source}")


def size(trees: Iterable[Any]) -> int:
    """Bytes of all tensors, shared ones counted once."""
    return sum(_storages(trees).values())


def _storages(trees: Iterable[Any]) -> dict[int, int]:
    """Bytes of each piece of memory that holds tensors, by its address."""
    tensors = (leaf for tree in trees for _, leaf in leaves(tree) if isinstance(leaf, Tensor))
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


# ---------------------------------------------------------------- class counts only
def untrained_rounds(
    method: Any,
    histograms: Tensor,
    count: int,
    *,
    seed: int = 0,
    channel: Channel | None = None,
    parameters: int = 1,
) -> Iterator[tuple[Passes, Trace]]:
    """Rounds of a method whose clients return the model unchanged: models and passes it reports, and its messages.

    Args:
        method: Method to run; its clients may ask only for local training.
        histograms: Examples of each class by client, (clients, classes) int64.
        count: Number of communication rounds.
        seed, channel: Settings of a run.
        parameters: Size of the model, one vector.

    Raises:
        ProtocolError: If a client's step asks for more than local training.
    """
    params: Params = {"w": torch.zeros(parameters)}
    population = Population(histograms, Layout(("w",)), params, lambda _: params)
    sim: Simulator[Any] = Simulator(method, population, _Untrained(), seed=seed, channel=channel)
    state = sim.start()
    for t in range(1, count + 1):
        state, trace = sim.round(state, t)
        yield (whole(report_of(method, state), Passes) or Passes()), trace


class _Untrained:
    """An executor whose clients' training ends where it began; everything else they do is real."""

    name = "untrained"

    def window(self, model_bytes: int) -> int:
        return 1

    def complete(self, jobs: Mapping[ClientId, StepJob]) -> Iterator[tuple[ClientId, StepResult]]:
        for c, job in jobs.items():
            answer = partial(answer_untrained, round=job.me.round)
            yield c, StepResult(drive(job.begin(job.me, job.message, job.memory), answer))

    def evaluate(self, jobs: Sequence[EvalJob]) -> list[Columns]:
        raise NotImplementedError(f"{len(jobs)} models cannot be evaluated: nothing was trained")
