"""What a run will cost, before anything trains: bytes, time and memory, and a refusal of what cannot be.

Bytes are counted by driving the method's own plan on made-up results (rehearsal.py), through the code that weighs real
messages.  Time is measured on a few real local steps and one real grading, and multiplied by how often the rehearsal
saw them asked for.  Memory is a sum whose parts are shown.  Energy is not predicted: nothing here measures power.
"""

import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from unskew import machine, wire
from unskew.data.federated import FederatedData
from unskew.errors import ConfigError, DivergedError, ProtocolError, QuorumError, UnskewError, shortage
from unskew.experiment.config import Experiment, Method
from unskew.forecast import mock_prior
from unskew.forecast.dry_run import (
    Code,
    DryRun,
    Kind,
    Mock,
    Pace,
    RoundRequests,
    Stage,
    prior_of,
    rehearse,
    stage,
    steps_of_job,
)
from unskew.keys import Key
from unskew.ledger import Direction
from unskew.local import imagery
from unskew.local.stacked.executor import Stacked
from unskew.local.trainer import LocalTrainer
from unskew.local.workers import memory
from unskew.protocol import Sgd, SgdConfig
from unskew.run import checkpoint
from unskew.run import setup as run_setup
from unskew.run.setup import Setup
from unskew.tree import Params
from unskew.units import human_bytes

SCHEMA = 1
DIRECTIONS: tuple[Direction, ...] = ("down", "up", "d2d")

Traffic = Literal["exact", "extrapolated", "estimated", "unknown"]
"""How sure the bytes are: every round was driven and results made up in two ways agree; they agree, and later rounds,
or what clients' own code comes to, are taken to be as far as there was time; they differ, so training decides; the plan
could not be driven at all."""

Place = Literal["main", "worker", "device"]
Phase = Literal["always", "training", "evaluation"]

# What a job costs the main process to hand over and take back: measured at 0.2 to 0.4 ms beside the copies.
HANDOVER_S = 3e-4
COPY_BYTES_PER_S = 2e9
# A forked worker's own pages beside what the arithmetic names: interpreter, allocator, library state.
WORKER_BYTES = 40_000_000


@dataclass(frozen=True)
class Cost:
    """One method, the mean over seeds.

    Attributes:
        method: Its label.
        bytes: Over the whole run, by direction; None if unknown.
        traffic: How sure they are.
        rounds_driven: How many rounds were driven without training, the fewest over seeds.
        training_s, server_s, evaluation_s: Seconds of one seed; None if nothing was timed.
    """

    method: str
    bytes: Mapping[Direction, float] | None
    traffic: Traffic
    rounds_driven: int
    training_s: float | None
    server_s: float | None
    evaluation_s: float | None

    @property
    def seconds(self) -> float | None:
        """Of one seed, all rounds."""
        parts = [s for s in (self.training_s, self.server_s, self.evaluation_s) if s is not None]
        return sum(parts) if len(parts) == 3 else None


@dataclass(frozen=True)
class Share:
    """A part of the memory.

    Attributes:
        what: Its name.
        bytes: Its size, in one process.
        how: The arithmetic behind it.
        place: The main process, each of the workers, or the CUDA device.
        phase: Training and evaluation do not happen at once; the larger of the two counts.
    """

    what: str
    bytes: int
    how: str
    place: Place
    phase: Phase


@dataclass(frozen=True)
class Forecast:
    """What a run will cost.

    Attributes:
        run: Its name.
        seeds, rounds: How often, and how long.
        executor: Chosen by the rule.
        workers: Processes that train; 1 is the main process alone.
        costs: One per method.
        shares: Memory, of the method that needs most.
        reached: The most bytes this process has held so far; reading data takes more than keeping them.
        limit: Bytes of memory there are for the run, what this process has already included; None if nobody tells.
        device_limit: The same of the CUDA device.
        seconds: The whole run; None if something was not timed.
        notes: What to know about these numbers.
    """

    run: str
    seeds: int
    rounds: int
    executor: str
    workers: int
    costs: tuple[Cost, ...]
    shares: tuple[Share, ...]
    reached: int
    limit: int | None
    device_limit: int | None
    seconds: float | None
    notes: tuple[str, ...]

    @property
    def peak(self) -> int:
        """Peak of the main process, bytes."""
        return max(self.reached, self.peak_of("main"))

    @property
    def everything(self) -> int:
        """Main process and workers together while they train or grade, bytes."""
        return self.peak_of("main") + (self.workers * self.peak_of("worker") if self.executor == "workers" else 0)

    def peak_of(self, place: Place) -> int:
        """Peak of one process or of the device: what is always there and the larger of the two phases, bytes."""
        sums: Counter[Phase] = Counter()
        for share in self.shares:
            if share.place == place:
                sums[share.phase] += share.bytes
        return sums["always"] + max(sums["training"], sums["evaluation"])


# ---------------------------------------------------------------- the whole
def plan(experiment: Experiment) -> Forecast:
    """What the experiment will cost; nothing is written and nothing is trained but a few steps to time them.

    Raises:
        ConfigError, DataError, ProtocolError: As a run would; and ConfigError if it needs more memory than there is.
        QuorumError: If the losses of `world.outage` will leave a round with too few clients.
    """
    setup = run_setup.prepare(experiment)
    feds = {seed: run_setup.divide(experiment, setup.dataset, seed) for seed in experiment.seeds}
    first_look(experiment, setup, feds)
    for method in experiment.methods:
        run_setup.rehearse(experiment, method, setup, feds)
    found = forecast(experiment, setup, feds)
    refuse(found)
    return found


def first_look(experiment: Experiment, setup: Setup, feds: Mapping[int, FederatedData]) -> None:
    """Refuse a cohort whose models alone do not fit, before anything of that size is made.

    Raises:
        ConfigError: With the arithmetic.
    """
    model = _model_bytes(setup)
    cohort = max(experiment.cohort(fed.num_clients) for fed in feds.values())
    there = _device_limit(setup) if setup.device.type == "cuda" else machine.available()
    if there is not None and model * cohort > there:
        raise ConfigError(
            f"{cohort} clients per round x {human_bytes(model)} per model = {human_bytes(cohort * model)}, but "
            f"{human_bytes(there)} of memory can be had; lower clients_per_round or take a smaller task.model"
        )


def refuse(found: Forecast) -> None:
    """Refuse what does not fit into memory.

    Raises:
        ConfigError: With the sum and what to change.
    """
    text = too_large(found)
    if text is not None:
        raise ConfigError(text)


def too_large(found: Forecast) -> str | None:
    """Why the run does not fit into memory, with the sum and the remedy; None if it does."""
    sides: tuple[tuple[int | None, int, tuple[Place, ...]], ...] = (
        (found.limit, found.everything, ("main", "worker")),
        (found.device_limit, found.peak_of("device"), ("device",)),
    )
    for limit, needed, places in sides:
        if limit is None or needed <= limit:
            continue
        parts = [s for s in found.shares if s.place in places and s.bytes]
        sums = " + ".join(f"{_times(found, s)}{human_bytes(s.bytes)} {s.what}" for s in parts)
        largest = max((s for s in parts if s.what != NOW), key=lambda s: s.bytes, default=parts[0])
        memory = "CUDA memory" if places == ("device",) else "memory"
        return (
            f"the run needs {human_bytes(needed)} of {memory} ({sums}; training and evaluation do not add up), but "
            f"{human_bytes(limit)} can be had; {REMEDIES[largest.what]}"
        )
    return None


def _times(found: Forecast, share: Share) -> str:
    return f"{found.workers} x " if share.place == "worker" else ""


NOW, DATA, TRAINING, BATCHES, MESSAGES, MEMORY, EVALUATION, OWN, SHARED, PRIOR, IMAGES, DESK = (
    "so far", "data set", "training", "batches", "messages", "client memory", "evaluation", "worker's own", "shared",
    "prior", "images", "server's training",
)  # fmt: skip
REMEDIES = {
    NOW: "take a smaller data set",
    DATA: "take a smaller data set",
    TRAINING: "lower local.batch_size, runtime.workers or the size of task.model, or take runtime.executor = "
    "'sequential'",
    BATCHES: "give the clients fewer examples (split.num_clients), or lower runtime.workers",
    MESSAGES: "lower clients_per_round or take a smaller task.model",
    MEMORY: "lower split.num_clients, take a smaller task.model or a method whose clients remember less",
    EVALUATION: "leave personal_on_global out of evaluate, or take a smaller task.model",
    OWN: "lower runtime.workers",
    SHARED: "lower runtime.workers or take a smaller task.model",
    PRIOR: "make fewer images, lower the inversion's batch_size, or take a smaller prior",
    IMAGES: "make fewer images",
    DESK: "lower the server's batch_size or the size of task.model",
}


def forecast(
    experiment: Experiment,
    setup: Setup,
    feds: Mapping[int, FederatedData],
    *,
    drive_s: float = 5.0,
    time_s: float = 1.0,
    patient: bool = True,
) -> Forecast:
    """What the run of these parts will cost.

    Args:
        experiment, bench, feds: As a run has them.
        drive_s: Seconds to spend on driving plans beyond their first two rounds.
        time_s: Seconds to spend on timing.
        patient: Time a step even if that alone takes longer than `time_s`; otherwise no time is predicted then.

    Raises:
        QuorumError, ProtocolError: What a plan refuses whatever training brings, naming the method.
        ConfigError: If one exchange takes nearly all the memory there is.
    """
    now, reached = machine.resident(), machine.peak_resident()
    limit = machine.available()
    notes: list[str] = []
    ledger = _Ledger(experiment, setup)
    processes = (experiment.runtime.workers or machine.cores()) if setup.executor == "workers" else 1
    clock = _Clock(setup, processes, time_s, patient, len(experiment.methods))
    shares: list[tuple[Share, ...]] = []
    until = time.monotonic() + drive_s
    cells = run_setup.cells(experiment)
    begun: dict[str, tuple[DryRun, Traffic]] = {}
    unknown: set[str] = set()
    codes: dict[str, Code] = {}
    for i, (seed, method) in enumerate(cells):
        if method.label in unknown:
            continue
        fed = feds[seed]
        staging = time.monotonic()
        made = stage(experiment, method, setup, fed, seed, codes.get(method.label))
        staged_s = time.monotonic() - staging
        codes[method.label] = made.code
        share = time.monotonic() + max(until - time.monotonic(), 0.0) / (len(cells) - i)
        if method.label not in begun:
            opened = _open(experiment, made, fed, share, notes)
            if opened is None:
                unknown.add(method.label)
                continue
            model, driven, traffic = opened
            begun[method.label] = model, traffic
            clock.time(made, model)
            shares.append(_memory(experiment, setup, made, model, clock, now))
        elif begun[method.label][1] == "estimated" or time.monotonic() > share:
            continue  # as the seeds before it
        else:
            driven = rehearse(experiment, made, fed, "stand_still", experiment.rounds, until=share)
        ledger.add(method, driven, begun[method.label][0], made.pooled, staged_s)
    notes += clock.notes
    costs = tuple(
        ledger.cost(m, begun[m.label][1] if m.label in begun else "unknown", clock) for m in experiment.methods
    )
    whole = [c.seconds for c in costs if c.seconds is not None]
    around = [ledger.around_s(m, clock) for m in experiment.methods]
    complete = len(whole) == len(costs)
    if setup.executor not in ("sequential", "workers"):
        notes.append(f"training was timed one client at a time; the {setup.executor} executor trains several at once")
    stop = experiment.stop
    if stop.accuracy is not None or stop.megabytes is not None or stop.seconds is not None:
        notes.append("early stopping is on: these are the costs of all rounds")
    whole_run = Forecast(
        run=experiment.name,
        seeds=len(experiment.seeds),
        rounds=experiment.rounds,
        executor=setup.executor,
        workers=processes,
        costs=costs,
        shares=(),
        reached=reached,
        limit=None if limit is None else limit + now,
        device_limit=_device_limit(setup),
        seconds=len(experiment.seeds) * (sum(whole) + sum(around)) if complete else None,
        notes=tuple(dict.fromkeys(notes)),
    )
    # Of the method that needs most where it is scarce: what does not fit first, then by what is compared with a limit.
    of_each = [dataclasses.replace(whole_run, shares=s) for s in shares]
    return max(of_each, key=lambda f: (too_large(f) is not None, f.peak_of("device"), f.everything), default=whole_run)


def _open(
    experiment: Experiment, made: Stage, fed: FederatedData, until: float, notes: list[str]
) -> tuple[DryRun, DryRun, Traffic] | None:
    """A cell driven under both fictions: (two rounds of the livelier one, as many rounds as could be, how sure).

    None if the plan cannot do with made-up results.
    """
    label = made.method.label

    def attempt(fiction: Mock, rounds: int) -> DryRun | Exception:
        try:
            return rehearse(experiment, made, fed, fiction, rounds, until=until, evaluated=fiction == "wander")
        except Exception as error:  # a plan may well refuse numbers that no training would bring
            if (short := shortage(error)) is not None:
                raise ConfigError(f"{label}: {short}") from None
            return error

    lively, still = attempt("wander", min(2, experiment.rounds)), attempt("stand_still", experiment.rounds)
    for failure in (still, lively):
        # Losses are drawn beforehand and contracts are about types: no training would mend these.
        if isinstance(failure, QuorumError | ProtocolError):
            raise type(failure)(f"{label}: {failure}") from failure
    if isinstance(lively, Exception):
        why = f"{type(lively).__name__}: {lively}"
        notes.append(f"{label}: its costs are not known, its plan refuses made-up results ({why})")
        return None
    if isinstance(still, Exception) or _bytes(still.rounds[:2]) != _bytes(lively.rounds):
        longer = attempt("wander", experiment.rounds)
        driven = lively if isinstance(longer, Exception) else longer
        rounds = len(driven.rounds)
        notes.append(f"{label}: training decides what it sends, its bytes are an estimate from {rounds} rounds")
        return lively, driven, "estimated"
    whole = len(still.rounds) == experiment.rounds and not still.borrowed
    return lively, still, "exact" if whole else "extrapolated"


def _bytes(bouts: Iterable[RoundRequests]) -> list[Mapping[Direction, int]]:
    return [b.bytes for b in bouts]


class _Ledger:
    """Adds up, by method, what the rehearsals of its seeds asked for."""

    def __init__(self, experiment: Experiment, setup: Setup) -> None:
        self._experiment, self._bench = experiment, setup
        self._driven: dict[str, list[DryRun]] = {}
        self._evaluations: dict[str, RoundRequests | None] = {}
        self._pooled: dict[str, bool] = {}
        self._staged_s: dict[str, float] = {}

    def add(self, method: Method, driven: DryRun, model: DryRun, pooled: bool, staged_s: float) -> None:
        self._driven.setdefault(method.label, []).append(driven)
        self._evaluations[method.label] = model.evaluation
        self._pooled[method.label] = pooled
        self._staged_s[method.label] = staged_s

    def cost(self, method: Method, traffic: Traffic, clock: "_Clock") -> Cost:
        experiment, driven = self._experiment, self._driven.get(method.label, [])
        if not driven:
            return Cost(method.label, None, "unknown", 0, None, None, None)
        rounds = experiment.rounds
        sent = {d: float(np.mean([_over(r.rounds, rounds, _sent(d)) for r in driven])) for d in DIRECTIONS}
        fewest = min(len(r.rounds) for r in driven)
        short = fewest < rounds or len(driven) < len(experiment.seeds) or any(r.borrowed for r in driven)
        if traffic == "exact" and short:
            traffic = "extrapolated"
        pooled = self._pooled[method.label]
        training = [_over(r.rounds, rounds, lambda b: clock.jobs(b, pooled)) for r in driven]
        server = [_over(r.rounds, rounds, lambda b: b.server_s + clock.handover(b) + clock.desk(b)) for r in driven]
        times = sum(t % experiment.eval_every == 0 or t == rounds for t in range(1, rounds + 1))
        evaluation = self._evaluation_s(method, clock) * times
        timed = clock.knows(b for r in driven for b in r.rounds)
        return Cost(
            method.label,
            sent,
            traffic,
            fewest,
            float(np.mean(training)) if timed else None,
            float(np.mean(server)) if timed else None,
            evaluation if timed else None,
        )

    def around_s(self, method: Method, clock: "_Clock") -> float:
        """Seconds of a cell outside its rounds: it is made, its initial model graded, its final state hashed."""
        kept = [r.kept for r in self._driven.get(method.label, ())]
        made = self._staged_s.get(method.label, 0.0)
        return made + self._evaluation_s(method, clock) + clock.hashing * (float(np.mean(kept)) if kept else 0.0)

    def _evaluation_s(self, method: Method, clock: "_Clock") -> float:
        bout = self._evaluations.get(method.label)
        if bout is None or clock.grading is None:
            return 0.0
        return bout.server_s + clock.jobs(bout, self._pooled[method.label]) + clock.grades(bout)


def _sent(direction: Direction) -> Callable[[RoundRequests], float]:
    return lambda bout: bout.bytes[direction]


def _over(bouts: Sequence[RoundRequests], rounds: int, of: Callable[[RoundRequests], float]) -> float:
    """The sum over all rounds; those not driven are as the driven ones after the first."""
    values = [of(b) for b in bouts]
    tail = values[1:] or values
    return sum(values) + (rounds - len(values)) * sum(tail) / len(tail)


# ---------------------------------------------------------------- time
class _Clock:
    """Times what was asked for, once per kind of job.

    Args:
        bench: Network, data and executor.
        workers: Processes that train.
        budget_s: Seconds to spend in all.
        patient: Whether a step that alone takes longer is timed.
        methods: How many will want a part of the budget.
    """

    def __init__(self, setup: Setup, workers: int, budget_s: float, patient: bool, methods: int) -> None:
        self._bench, self._patient = setup, patient
        self._each = budget_s / max(methods, 1)
        self._budget = budget_s
        self._curves: dict[tuple[Kind, bool], list[tuple[int, float]]] = {}
        self._paces: dict[Kind, Pace] = {}
        self._lines: dict[Kind, tuple[float, float]] = {}
        self.grading: tuple[float, float] | None = None
        self.hashing = 0.0
        self.workers = workers
        self.notes: list[str] = []

    def time(self, made: Stage, seen: DryRun) -> None:
        """Time the kinds of jobs of one method that no method before it had."""
        self._paces.update(seen.paces)
        threads = torch.get_num_threads()
        if self._bench.executor == "workers":
            torch.set_num_threads(1)  # as in a worker
        try:
            if self.grading is None:
                self.grading = _grading(made.trainer, made.population.initial, self._budget)
                self.hashing = _hashing(made.population.initial)
            fresh = [(k, job) for k, job in seen.samples.items() if (k, made.pooled) not in self._curves]
            largest = _largest(seen)
            asked = [(k, n) for k, n in largest.items() if k not in self._lines]
            for kind, job in fresh:
                self._time(made, kind, job, self._each / (len(fresh) + len(asked)))
            for kind, n in asked:
                self._time_prior(made, kind, n, self._each / (len(fresh) + len(asked)))
        finally:
            torch.set_num_threads(threads)

    def _time(self, made: Stage, kind: Kind, job: Sgd, budget_s: float) -> None:
        sizes = made.population.histograms.sum(1)
        order = sizes.argsort(stable=True)
        chosen = list(dict.fromkeys(int(order[i]) for i in (0, len(order) // 2, len(order) - 1)))
        if not self._patient and (expected := self._step_s(job.config, int(sizes[order[-1]]))) > self._budget:
            self.notes.append(
                f"no time is predicted: one local step alone takes about {expected:.1f} s; unskew plan takes that time"
            )
            return
        try:
            if job.examples is None:
                points = [(int(sizes[c]), time_job(made, c, job, budget_s / len(chosen))) for c in chosen]
            else:  # the same whoever is given them
                points = [(len(job.examples.rows), time_job(made, chosen[0], job, budget_s))]
        except DivergedError as error:
            self.notes.append(f"{made.method.label}: no time is predicted, its first steps diverge: {error}")
            return
        # Clients of equal size are one point; interpolation wants them ascending.
        self._curves[kind, made.pooled] = sorted(dict(points).items())

    def _time_prior(self, made: Stage, kind: Kind, n: int, budget_s: float) -> None:
        asked = kind[1]
        try:
            real, x = prior_of(made.trainer, asked.source), made.trainer.device_data.x[:8]
            if not self._patient and (one := mock_prior.image_s(real)) > budget_s:
                self.notes.append(
                    f"no time is predicted: the prior {asked.source} takes {one:.1f} s for a single image; unskew plan "
                    "takes the time to try more"
                )
                return
            self._lines[kind] = mock_prior.seconds_of(asked, real, x, n, budget_s)
        except UnskewError as error:
            self.notes.append(f"{made.method.label}: no time is predicted, its prior refuses the data: {error}")

    def _step_s(self, config: SgdConfig, n: int) -> float:
        """A step's cost from that of grading: forward, and backward at twice that."""
        assert self.grading is not None
        first, per_example = self.grading
        return 3 * (first + per_example * min(config.batch_size or n, n))

    def tried(self, kind: Kind) -> bool:
        """Whether a prior was asked for this and could be timed."""
        return kind in self._lines

    def knows(self, bouts: Iterable[RoundRequests]) -> bool:
        """Whether every job in these rounds can be priced."""
        timed = {kind for kind, _ in self._curves} | self._paces.keys() | self._lines.keys()
        return all(kind in timed for b in bouts for kind, *_ in (*b.jobs, *b.desk, *b.imagined))

    def jobs(self, bout: RoundRequests, pooled: bool) -> float:
        """Seconds of all jobs of a round, spread over the workers; the longest is the least it takes.

        Equal images are made once in a process.
        """
        priced = [(self._price(kind, n, pooled), times) for (kind, n), times in bout.jobs.items()]
        for (kind, n, same, at_server), times in bout.imagined.items():
            if not at_server:
                priced.append((self._price(kind, n, pooled), times if same is None else min(times, self.workers)))
        whole = sum(s * times for s, times in priced)
        return max(whole / self.workers, max((s for s, _ in priced), default=0.0))

    def desk(self, bout: RoundRequests) -> float:
        """Seconds of the server's own local work in a round."""
        priced = sum(self._price(kind, n, False) * times for (kind, n), times in bout.desk.items())
        by_clients = {same for _, _, same, at_server in bout.imagined if not at_server and same is not None}
        for (kind, n, same, at_server), times in bout.imagined.items():
            made_before = same in by_clients and self._bench.executor != "workers"  # in this process
            if at_server and not made_before:
                priced += self._price(kind, n, False) * (times if same is None else 1)
        return priced

    def grades(self, bout: RoundRequests) -> float:
        """Seconds of grading an evaluation's models."""
        first, per_example = self.grading or (0.0, 0.0)
        return sum(first + per_example * n for n in bout.papers) / self.workers

    def handover(self, bout: RoundRequests) -> float:
        """Seconds the main process spends on giving jobs to workers."""
        if self._bench.executor != "workers":
            return 0.0
        return sum(bout.jobs.values()) * (HANDOVER_S + 4 * _model_bytes(self._bench) / COPY_BYTES_PER_S)

    def _price(self, kind: Kind, n: int, pooled: bool) -> float:
        if kind in self._paces:
            return self._paces[kind].seconds_for(n)
        if kind in self._lines:
            first, more = self._lines[kind]
            return first + more * (n - 1) if n else 0.0
        curve = self._curves.get((kind, pooled), self._curves.get((kind, not pooled)))
        if curve is None:
            return 0.0
        if kind[0] == "sgd given":  # of one size
            ((size, seconds),), config = curve, kind[1]
            return seconds if config.local_steps else seconds * n / size
        return float(np.interp(n, [m for m, _ in curve], [s for _, s in curve]))


def time_job(made: Stage, client: int, job: Sgd, budget_s: float) -> float:
    """Seconds of an optimisation on a client's data, extrapolated from a few steps if all would take too long.

    Raises:
        DivergedError: If the loss of these steps is not finite.
    """
    trainer = made.trainer
    me = made.population.me(client, 1, Key(made.seed) / "timing" / client)
    steps = steps_of_job(job.config, me.n if job.examples is None else len(job.examples.rows), trainer)

    def once(k: int) -> float:
        config = job.config if k >= steps else dataclasses.replace(job.config, local_epochs=None, local_steps=k)
        began = time.perf_counter()
        trainer.fit(me, dataclasses.replace(job, config=config), me.key)
        return time.perf_counter() - began

    once(1)  # the first builds the workspace and wakes the library
    one = once(1)
    if one * steps <= budget_s:
        began, found = time.perf_counter(), [once(steps)]
        while len(found) < 3 and time.perf_counter() - began + found[0] <= budget_s:
            found.append(once(steps))
        return float(np.median(found))
    some = min(int(budget_s / one), steps)
    return one * steps if some < 2 else one + (steps - 1) * max(once(some) - one, 0.0) / (some - 1)


def _largest(seen: DryRun) -> dict[Kind, int]:
    """For how many at most a prior was asked at once, by kind."""
    found: dict[Kind, int] = {}
    for bout in seen.rounds:
        for kind, n, _, _ in bout.imagined:
            found[kind] = max(found.get(kind, 1), n)
    return found


def _grading(trainer: LocalTrainer, params: Mapping[str, Tensor], budget_s: float) -> tuple[float, float]:
    """(seconds per model, seconds per example) of grading, from as large a part of a chunk as the budget allows.

    Large parts cost more per example than small ones: what layers put out no longer fits the processor's cache.
    """

    def once(n: int) -> float:
        rows = torch.arange(n, device=trainer.device)
        began = time.perf_counter()
        trainer.evaluate(dict(params), "test", rows)[1].sum().item()
        return time.perf_counter() - began

    once(1)  # wakes the library
    one = many = min(once(1) for _ in range(3))
    n, most = 1, min(trainer.size("test"), LocalTrainer.CHUNK)
    while n < most and many * (more := min(4 * n, most)) / n <= budget_s:
        n, many = more, once(more)
    return one, max(many - one, 0.0) / max(n - 1, 1)


def _hashing(params: Params) -> float:
    """Seconds per byte of laying out and hashing what a checkpoint holds."""
    began = time.perf_counter()
    checkpoint.digest(checkpoint.encode_state(params, {}))
    return (time.perf_counter() - began) / max(wire.nbytes(params), 1)


# ---------------------------------------------------------------- memory
def _memory(
    experiment: Experiment, setup: Setup, made: Stage, seen: DryRun, clock: _Clock, now: int
) -> tuple[Share, ...]:
    """The parts of a method's memory."""
    inside: Place = "device" if setup.device.type == "cuda" else "worker" if setup.executor == "workers" else "main"
    store: Place = "device" if setup.device.type == "cuda" else "main"
    data = setup.dataset
    example = data.x_train[0].numel() * data.x_train.element_size()
    largest = int(made.population.histograms.sum(1).max())
    outputs = _outputs(setup)
    widest = max((a + b for a, b in itertools.pairwise([0, *outputs])), default=0)
    clients = len(made.population.clients)
    reachable = clients if experiment.rounds > len(seen.rounds) else len(seen.clients)
    remembered = int(seen.memory_per_client * (reachable + min(len(seen.clients), reachable)))
    evaluation = seen.evaluation or RoundRequests()
    chunk = min(LocalTrainer.CHUNK, max(evaluation.papers, default=0))
    stacked = Stacked(made.trainer) if setup.executor == "stacked" else None
    if stacked is not None and evaluation.papers:
        chunk = stacked.examples_at_once(evaluation.papers)
    dataset = sum(t.nbytes for t in (data.x_train, data.y_train, data.x_test, data.y_test))
    desk_kinds = {kind for bout in seen.rounds for kind, _ in bout.desk}
    client_kinds = {kind for bout in seen.rounds for kind, _ in bout.jobs}
    needs = {kind: _training(experiment, setup, made, job, stacked, outputs) for kind, job in seen.samples.items()}
    training = max((need for kind, need in needs.items() if kind in client_kinds), default=_Need(0, "nobody trains", 1))
    side = training.width if stacked is not None else 1
    copied = 2 * side * training.batch if stacked is not None else 2 * largest
    batches = (
        f"{side} x batch of {training.batch} examples" if side > 1 else f"{largest} examples of the largest client"
    )
    shares = [
        Share(NOW, now, f"this process with its libraries and the data set ({human_bytes(dataset)}), measured",
              "main", "always"),
        Share(TRAINING, training.bytes, training.how, inside, "training"),
        Share(BATCHES, copied * example, f"2 x {batches} x {human_bytes(example)}", inside, "training"),
        Share(MESSAGES, seen.in_flight, "messages, replies and states of one round, those shared counted once",
              store, "training"),
        Share(EVALUATION, widest * chunk + evaluation.gathered * example,
              f"{human_bytes(widest)} of layer outputs x {chunk} examples at once + {evaluation.gathered} examples x "
              f"{human_bytes(example)}", inside, "evaluation"),
    ]  # fmt: skip
    if remembered:
        how = f"{human_bytes(seen.memory_per_client)} x {reachable} clients, and the round before of those asked"
        shares.append(Share(MEMORY, remembered, how, store, "always"))
    if setup.device.type == "cuda":
        shares.append(Share(DATA, dataset, "training and test examples", "device", "always"))
    shares += _imagining(made, seen, clock, example, inside, together=stacked is not None)
    if inside == "worker":
        at_desk = max((need for kind, need in needs.items() if kind in desk_kinds), default=None)
        if at_desk is not None:
            shares.append(Share(DESK, at_desk.bytes, at_desk.how, "main", "training"))
        shares += _worker(_model_bytes(setup), seen)
    return tuple(shares)


@dataclass(frozen=True, order=True)
class _Need:
    """What an optimisation takes: bytes, their arithmetic, examples in a batch, clients side by side."""

    bytes: int
    how: str
    batch: int
    width: int = 1


def _training(
    experiment: Experiment, setup: Setup, made: Stage, job: Sgd, stacked: Stacked | None, outputs: Sequence[int]
) -> _Need:
    """Of the largest client, or of as many as are trained side by side."""
    sizes = made.population.histograms.sum(1)
    largest = int(sizes.max()) if job.examples is None else len(job.examples.rows)
    batch = min(job.config.batch_size or largest, largest)
    vectors = 6 + {"sgd": int(job.config.momentum > 0), "adam": 2, "adamw": 2}[job.config.optimizer]
    model, both = _model_bytes(setup), sum(outputs)
    how = (
        f"{vectors} x {human_bytes(model)} (model, gradient, optimiser) + 2 x {human_bytes(both)} of layer outputs x "
        f"batch of {batch}"
    )
    each = vectors * model + 2 * both * batch
    cohort = 1 if made.pooled else experiment.cohort(len(sizes))
    width = stacked.width(job, batch, cohort) if stacked is not None and job.examples is None else 1
    return _Need(each * width, f"{width} clients side by side x ({how})" if width > 1 else how, batch, width)


def _imagining(made: Stage, seen: DryRun, clock: _Clock, example: int, inside: Place, together: bool) -> list[Share]:
    """What a prior needs, where it was tried: beside its weights, which are there already.

    `together`: Whether clients that ask alike are answered at once.
    """
    shares = []
    apart = inside == "worker"  # else the server's work is done where the clients' is, one after the other
    for place in dict.fromkeys((inside, "main" if apart else inside)):
        here = (place == "main",) if apart else (False, True)
        asked = [(k, n, same) for b in seen.rounds for k, n, same, at_server in b.imagined if at_server in here]
        asked = [one for one in asked if clock.tried(one[0])]
        needs = []
        for kind in dict.fromkeys(k for k, _, _ in asked):
            n = max(m for k, m, _ in asked if k == kind)
            if together and kind[1].what == "invert":
                n = max(sum(m * times for (k, m, *_), times in b.imagined.items() if k == kind) for b in seen.rounds)
            real = prior_of(made.trainer, kind[1].source)
            working = mock_prior.working_bytes(kind[1], real, made.trainer.device_data.x[:1], n)
            images = 2 * n * example if kind[1].what in ("sample", "decode") else 0
            how = f"{human_bytes(working)} of layer outputs, to {kind[1].what} {n} by the prior {kind[1].source}"
            needs.append((working + images, how + (f", + 2 x {n} x {human_bytes(example)}" if images else "")))
        if needs:
            largest, how = max(needs)
            shares.append(Share(PRIOR, largest, how, place, "training"))
        if sizes := {same: n * example for _, n, same in asked if same is not None}:
            how = f"made, for who wants the same again, {human_bytes(imagery.MOST_KEPT)} at most"
            shares.append(Share(IMAGES, min(sum(sizes.values()), imagery.MOST_KEPT), how, place, "always"))
    return shares


def _worker(model: int, seen: DryRun) -> list[Share]:
    """What a worker has beside its training: pages of its own, and the part of its slots that is ever written."""
    how = (
        f"{memory.SLOTS} slots of {human_bytes(memory.slot_bytes(model))}, as far as clients that are sent, remember "
        f"and answer {human_bytes(seen.parcel)} fill them"
    )
    common = min(memory.common_bytes(model), seen.in_flight)
    return [
        Share(OWN, WORKER_BYTES, "pages a worker does not share with the main process", "worker", "always"),
        Share(SHARED, memory.written_bytes(model, seen.parcel), how, "worker", "always"),
        Share(SHARED, common, "what several clients are sent, seen by all workers", "main", "always"),
    ]


def _model_bytes(setup: Setup) -> int:
    return sum(t.nbytes for t in setup.task.init(Key(0)).values())


def _outputs(setup: Setup) -> list[int]:
    """Bytes that each layer puts out for one example, in the order of the forward pass."""
    found: list[int] = []

    def note(_layer: nn.Module, _inputs: Any, out: Any) -> None:
        first = out[0] if isinstance(out, tuple) else out  # recurrent layers give their state, too
        if isinstance(first, Tensor):
            found.append(first.nbytes // 2)

    module = setup.task.module().eval()
    for layer in module.modules():
        if not any(layer.children()):
            layer.register_forward_hook(note)
    with torch.no_grad(), Key(0).ambient():
        module(setup.dataset.x_train[:2])
    return found


def _device_limit(setup: Setup) -> int | None:
    return torch.cuda.mem_get_info(setup.device)[0] if setup.device.type == "cuda" else None


# ---------------------------------------------------------------- as JSON
def to_json(found: Forecast) -> dict[str, Any]:
    """The forecast as plan.json and `unskew plan --json` have it; bytes and seconds."""
    return {
        "schema": SCHEMA,
        "run": found.run,
        "seeds": found.seeds,
        "rounds": found.rounds,
        "executor": found.executor,
        "workers": found.workers,
        "methods": [
            {
                "method": c.method,
                "traffic": c.traffic,
                "rounds_driven": c.rounds_driven,
                "bytes": None if c.bytes is None else dict(c.bytes),
                "seconds": c.seconds,
                "training_s": c.training_s,
                "server_s": c.server_s,
                "evaluation_s": c.evaluation_s,
            }
            for c in found.costs
        ],
        "seconds": found.seconds,
        "memory": {
            "peak": found.peak,
            "everything": found.everything,
            "limit": found.limit,
            "device": found.peak_of("device"),
            "device_limit": found.device_limit,
            "parts": [dataclasses.asdict(s) for s in found.shares],
        },
        "energy_j": None,
        "notes": [*found.notes, "energy is not predicted: nothing here measures power"],
    }
