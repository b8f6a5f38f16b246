"""An executor that trains and evaluates nothing: clients' results are made up, and what they ask for is counted.

The simulator, the wire and the evaluation around it are those of a run, so the same code counts bytes, draws cohorts
and chooses what is evaluated.  Results are made up in one of two ways:

    unchanged   every optimisation ends where it began, every fold with the value it began with
    perturbed   every optimisation ends near its start, its loss is some number, folds and local code really run

A plan whose traffic is the same under both does not let training decide what it sends, as far as two tries can tell.

The server's own requests (`Federation.run_on_server`) are answered in the same way.  Local code (`Run`) really runs,
since no one else knows its result, but only once where that suffices, and while there is time; a prior that it asks for
is mocked as well (mock_prior.py).
"""

import itertools
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from unskew import machine
from unskew.decide.forecast.counts import CodeTiming, JobKind, RoundRequests
from unskew.decide.forecast.mock_prior import MockPrior, PriorRequest
from unskew.errors import MemoryShortage
from unskew.keys import Key
from unskew.local import imagery
from unskew.local.data import steps_of_job
from unskew.local.executor import Columns, EvalJob, StepJob, StepResult, untrained
from unskew.local.trainer import LocalTrainer
from unskew.protocol import SERVER_ID, ClientId, Fitted, Fold, Imagery, Local, Me, Run, Sgd, drive
from unskew.tree import Params, leaves
from unskew.units import human_bytes

Mock = Literal["unchanged", "perturbed"]
PERTURBATION = 0.01
"""Distance of a made-up result from its start, relative to each value."""
CODE_S = 1.0
"""Seconds that a method's local code may take in addition to the time for driving; each kind is run at least once."""
AGAIN_S = 5.0
"""Seconds up to which the first call of a kind is timed again: it may have imported and built what the others use."""
KEPT_BYTES = 256 << 20
"""Bytes of results of local code that are kept for when it is met again."""
ROOM = 0.9
"""Share of the free memory that messages, memories and replies may take: a dry run holds them as the run would."""


@dataclass(eq=False)
class CodeResults:
    """Results of a method's local code: shared by both mocks, and in part by all seeds.

    Attributes:
        values: Results of one seed, by step, kind, client and number within the step; as many as there is room for.
        first: The first result of each kind, of any seed.
        timings: Time taken, by kind.
        uses_prior: Kinds that asked a prior: their results differ between the mocks.
        spent: Time it took in all, seconds.
        room: Bytes of results that may still be kept.
    """

    values: dict[Hashable, Any] = field(default_factory=dict)
    first: dict[JobKind, Any] = field(default_factory=dict)
    timings: dict[JobKind, CodeTiming] = field(default_factory=dict)
    uses_prior: set[JobKind] = field(default_factory=set)
    spent: float = 0.0
    room: int = KEPT_BYTES

    def keep(self, key: Hashable, kind: JobKind, value: Any) -> None:
        """Remember a value if there is room."""
        self.first.setdefault(kind, value)
        bytes_ = 0 if key in self.values else size([value])
        if bytes_ <= self.room:
            self.room -= bytes_
            self.values[key] = value

    def next_seed(self) -> None:
        """Forget results that another seed's clients would not have."""
        self.values.clear()
        self.room = KEPT_BYTES


class DryRunExecutor:
    """An executor, and the server's trainer, that trains and evaluates nothing, but counts what is asked for.

    Args:
        trainer: Does folds and local code where the mock wants them done.
        mock: Way in which results are made up.
        until: After this moment (`time.monotonic`) slow work is done once and its result used again.
        code: Results of local code so far; this executor adds its own.
        window: `Executor.window` of the executor that the run has.
    """

    name = "dry run"

    def __init__(
        self, trainer: LocalTrainer, mock: Mock, until: float, code: CodeResults, window: Callable[[int], int]
    ) -> None:
        self.window = window
        self._trainer, self._mock, self._until, self._code = trainer, mock, until, code
        self._noise: dict[str, Tensor] = {}
        self._room = machine.available() if trainer.device.type == "cpu" else None
        self.begin()
        self.in_flight_bytes = self.client_bytes = 0
        self.clients: set[ClientId] = set()
        self._remembered: dict[ClientId, int] = {}  # bytes by client
        self.sample_jobs: dict[JobKind, Sgd] = {}
        self.reused = False

    def begin(self) -> RoundRequests:
        """Begin to count another round, or an evaluation."""
        self.requests, self.spent = RoundRequests(), 0.0
        return self.requests

    # ------------------------------------------------------------------ as an executor
    def complete(self, jobs: Mapping[ClientId, StepJob]) -> Iterator[tuple[ClientId, StepResult]]:
        """Run every step to its end; what it asks of its trainer is made up."""
        results: dict[ClientId, StepResult] = {}
        counted: set[int] = set()
        total = sum(n for c, n in self._remembered.items() if c not in jobs)
        for c, job in jobs.items():
            results[c] = self._run(job)
            storages = _storages((job.message, job.memory, results[c].value))
            total += sum(n for at, n in storages.items() if at not in counted)
            counted |= storages.keys()
            self._remembered[c] = size([results[c].value[1:]]) if isinstance(results[c].value, tuple) else 0
            if self._room is not None and total > ROOM * self._room:
                raise MemoryShortage(
                    f"step {job.step!r}: what the first {len(self._remembered)} clients are sent, remember and answer "
                    f"is {human_bytes(total)}, more than {ROOM:g} of the {human_bytes(self._room)} of memory that can "
                    "be had; lower clients_per_round or use a smaller task.model"
                )
        self.clients.update(jobs)
        if self._mock == "perturbed":
            values = [(job.message, job.memory, results[c].value) for c, job in jobs.items()]
            self.in_flight_bytes = max(self.in_flight_bytes, size(part for client in values for part in client))
            self.client_bytes = max([self.client_bytes, *(size(client) for client in values[:10])])
        return iter(results.items())

    def evaluate(self, jobs: Sequence[EvalJob]) -> list[Columns]:
        """Return zeros for every example."""
        sizes = [self._trainer.size(job.part) if job.rows is None else len(job.rows) for job in jobs]
        gathered = [n for n, job in zip(sizes, jobs, strict=True) if job.rows is not None]
        self.requests.eval_sizes += sizes
        self.requests.gathered_rows = max([self.requests.gathered_rows, *gathered])
        task = self._trainer.task
        one = task.columns(torch.zeros(1, task.width), self._trainer.device_data.y[:1].cpu())
        return [tuple(column.new_zeros(n, *column.shape[1:]) for column in one) for n in sizes]

    def _run(self, job: StepJob) -> StepResult:
        counts = {kind: itertools.count() for kind in (Sgd, Fold, Run)}

        def answer(request: Any) -> Any:
            return self._timed(job.step, job.me, next(counts.get(type(request), counts[Run])), request)

        return StepResult(drive(job.begin(job.me, job.message, job.memory), answer))

    # ------------------------------------------------------------------ as the server's trainer
    def answer(self, me: Me, index: int, request: object) -> Any:
        """Answer a request of the server's own step."""
        return self._timed("work", me, index, request)

    # ------------------------------------------------------------------ either
    def _timed(self, step: str, me: Me, index: int, request: object) -> Any:
        began = time.monotonic()
        try:
            return self._answer(step, me, index, request)
        finally:
            self.spent += time.monotonic() - began

    def _answer(self, step: str, me: Me, index: int, request: object) -> Any:
        if isinstance(request, Sgd) and (me.id != SERVER_ID or request.examples is not None):
            return self._answer_sgd(me, request)
        if isinstance(request, Run):
            return self._answer_run(step, me, index, request)
        if isinstance(request, Fold) and me.id != SERVER_ID:
            return self._answer_fold(me, index, request)
        return self._trainer.answer(me, index, request)  # refuses it

    def _answer_fold(self, me: Me, index: int, request: Fold) -> Any:
        kind: JobKind = ("fold", _name(request.fn), None)
        self.requests.jobs[kind, me.n] += 1
        if self._mock == "unchanged":
            return request.init
        if kind in self._code.first and time.monotonic() >= self._until:
            return self._code.first[kind]
        value = self._measured(kind, me, lambda _: self._trainer.answer(me, index, request))
        self._code.first[kind] = value
        return value

    def _answer_run(self, step: str, me: Me, index: int, request: Run) -> Any:
        code, at_server = self._code, me.id == SERVER_ID
        kind: JobKind = ("work" if at_server else "run", _name(request.fn), None)
        (self.requests.server_jobs if at_server else self.requests.jobs)[kind, me.n] += 1
        mock = self._mock if kind in code.uses_prior else None
        key = (step, kind, me.id, index, mock)
        known, time_left = key in code.values, time.monotonic() < self._until or code.spent < CODE_S
        # The server's code, without a prior's work, is short; the shape of its result follows from its arguments.
        time_left |= at_server and kind in code.uses_prior
        if kind not in code.first or (time_left and (self._mock == "perturbed" or not known)):

            def work(requests: RoundRequests) -> tuple[Any, tuple[tuple[JobKind, int, Hashable], ...]]:
                local = _WatchedLocal(self._trainer, me, index, self._mock, requests)
                return request.fn(local, *request.args), tuple(local.asked)

            value, asked = self._measured(kind, me, work)
            if asked:
                code.uses_prior.add(kind)
                key = (step, kind, me.id, index, self._mock)
            code.keep(key, kind, (value, asked))
            return value
        self.reused |= not known
        # The same client's result under the other mock has at least the right shape.
        other = (step, kind, me.id, index, "perturbed")
        value, asked = code.values[key] if known else code.values.get(other, code.first[kind])
        for call in asked:
            self.requests.prior_calls[(*call, at_server)] += 1
        return value

    def _measured(self, kind: JobKind, me: Me, do: Callable[[RoundRequests], Any]) -> Any:
        """Result of local code, whose time is noted; `do` takes the counts that its requests of priors go to."""
        began = time.monotonic()
        value = do(self.requests)
        spent = time.monotonic() - began
        timing = self._code.timings.get(kind)
        if timing is None and spent < AGAIN_S:
            self._code.spent += spent
            began = time.monotonic()
            do(RoundRequests())
            spent = time.monotonic() - began
        timing = timing or CodeTiming()
        self._code.timings[kind] = CodeTiming(timing.seconds + spent, timing.examples + me.n, timing.calls + 1)
        self._code.spent += spent
        return value

    def _answer_sgd(self, me: Me, request: Sgd) -> Fitted:
        given = request.examples
        kind: JobKind = ("sgd" if given is None else "sgd given", request.config, request.terms)
        rows = request.rows if given is None else given.rows
        n = me.n if rows is None else len(rows)
        (self.requests.server_jobs if me.id == SERVER_ID else self.requests.jobs)[kind, n] += 1
        steps = steps_of_job(request.config, n, self._trainer.task.min_batch)
        lr = request.config.lr_at(me.round)
        if self._mock == "unchanged":
            return untrained(request, me.round, steps)
        self.sample_jobs.setdefault(kind, replace(request, rows=None))
        return Fitted({n: self._perturbed(me, n, t) for n, t in request.start.items()}, steps, lr, 0.6931471805599453)

    def _perturbed(self, me: Me, name: str, t: Tensor) -> Tensor:
        noise = self._noise.get(name)
        if noise is None or noise.shape != t.shape:
            draw = torch.randn(t.shape, generator=(Key(0) / "rehearsal" / name).generator())
            noise = self._noise[name] = PERTURBATION * draw.to(t)
        return t * (1.0 + noise.roll(me.id))  # another direction for every client


class _WatchedLocal:
    """A client's real data and tools with a mock prior; notes what is asked of that."""

    def __init__(self, trainer: LocalTrainer, me: Me, index: int, mock: Mock, requests: RoundRequests) -> None:
        self._trainer, self._me, self._mock, self._requests = trainer, me, mock, requests
        self._local: Local = trainer.local(me, index)
        self.y, self.domains, self.key = self._local.y, self._local.domains, self._local.key
        self.asked: list[tuple[JobKind, int, Hashable]] = []

    @property
    def x(self) -> Tensor:
        """The client's training inputs."""
        return self._local.x

    def imagery(self, source: str) -> Imagery:
        """A mock of the prior; the real one is loaded all the same, for its shapes."""
        length = PERTURBATION if self._mock == "perturbed" else 0.0
        return MockPrior(
            prior_of(self._trainer, source), self._trainer.device_data.x.shape[1:], self._me.id, length, self._note
        )

    def forward(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """(features, logits), really computed."""
        return self._local.forward(params, x)

    def gradient(self, params: Params) -> Params:
        """The gradient, really computed."""
        return self._local.gradient(params)

    def example_gradients(self, params: Params, names: Sequence[str], rows: Tensor, key: Key) -> tuple[Params, Tensor]:
        """Gradients of single examples and their losses, really computed."""
        return self._local.example_gradients(params, names, rows, key)

    def _note(self, asked: PriorRequest, n: int, same: Hashable) -> None:
        call: tuple[JobKind, int, Hashable] = (("prior", asked, None), n, same)
        self.asked.append(call)
        self._requests.prior_calls[(*call, self._me.id == SERVER_ID)] += 1


def prior_of(trainer: LocalTrainer, source: str) -> imagery.TaskImagery:
    """The real prior called `source`, for a trainer's inputs."""
    return imagery.of(source, trainer.device, tuple(trainer.device_data.x.shape[1:]), trainer.device_data.levels)


def size(trees: Iterable[Any]) -> int:
    """Bytes of all tensors, those that are in several places counted once."""
    return sum(_storages(trees).values())


def _storages(trees: Iterable[Any]) -> dict[int, int]:
    """Bytes of each piece of memory that holds tensors, by its address."""
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for tree in trees for t in _tensors(tree)}


def _tensors(tree: Any) -> Iterable[Tensor]:
    return (leaf for _, leaf in leaves(tree) if isinstance(leaf, Tensor))


def _name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__qualname__", type(fn).__qualname__))
