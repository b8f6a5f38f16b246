"""The costs of a run before it begins: bytes, time and memory, and a refusal of what cannot be.

    bytes    the method's own plan is driven on made-up results (dry_run.py), through the code that counts real messages
    time     a few real local steps and one real evaluation are timed, and multiplied (timing.py)
    memory   a sum whose parts are shown (memory.py)

Energy is not predicted: nothing here measures power.
"""

import dataclasses
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from unskew import machine
from unskew.data.federated import FederatedData
from unskew.decide.forecast.counts import DryRun, RoundRequests
from unskew.decide.forecast.dry_run import PreparedMethod, dry_run, prepare
from unskew.decide.forecast.memory import device_limit, memory_parts, refuse, too_large
from unskew.decide.forecast.mock_executor import CodeResults, Mock
from unskew.decide.forecast.timing import Timer
from unskew.decide.forecast.values import Forecast, MemoryPart, MethodCost, TrafficCertainty
from unskew.errors import ConfigError, ProtocolError, QuorumError, shortage
from unskew.experiment.config import Experiment, Method, Stop
from unskew.ledger import DIRECTIONS, Direction
from unskew.protocol import hook
from unskew.run import setup as run_setup
from unskew.run.decide import FIRST
from unskew.run.setup import Setup
from unskew.server import privacy
from unskew.world.outage import Outage

CERTAINTIES: tuple[TrafficCertainty, ...] = get_args(TrafficCertainty)


@dataclass(frozen=True)
class ClusterShape:
    """The shape of a Ray cluster: machines, cores of each, and memory of each, bytes; None if it is not known."""

    nodes: int
    cores: int
    memory: int | None = None

    @classmethod
    def parse(cls, text: str) -> "ClusterShape":
        """Read NODESxCORES or NODESxCORESxGB.

        Raises:
            ConfigError: If it is neither.

        >>> ClusterShape.parse("4x16x64")
        ClusterShape(nodes=4, cores=16, memory=64000000000)
        """
        given = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,3})(?:x([1-9]\d{0,4}))?", text, re.ASCII)
        if given is None:
            raise ConfigError(
                f"a cluster is given as NODESxCORES or NODESxCORESxGB, got {text!r}; four machines of 16 cores and 64 "
                "GB are 4x16x64"
            )
        nodes, cores, gigabytes = given.groups()
        return cls(int(nodes), int(cores), None if gigabytes is None else int(gigabytes) * 10**9)


def plan(experiment: Experiment, cluster: ClusterShape | None = None) -> Forecast:
    """Costs of an experiment; nothing is written and nothing is trained but a few steps to time them.

    Args:
        experiment: The experiment.
        cluster: Shape of the cluster it would run on; None for this machine.  Its cores are taken to be as fast as
            those here.

    Raises:
        ConfigError, DataError, ProtocolError: As a run would; and ConfigError if it needs more memory than there is.
        QuorumError: If the losses of `world.outage` leave no round of the first ones enough replies.
    """
    if cluster is not None:
        options = experiment.runtime.executor_options if experiment.runtime.executor == "ray" else {}
        workers = cluster.nodes * cluster.cores
        runtime = dataclasses.replace(
            experiment.runtime, executor="ray", workers=workers, device="cpu", executor_options=options
        )
        experiment = dataclasses.replace(experiment, runtime=runtime)
    setup = run_setup.prepare(experiment)
    feds = {seed: run_setup.divide(experiment, setup.dataset, seed) for seed in experiment.seeds}
    for method in experiment.methods:
        run_setup.check_method(experiment, method, setup, feds)
    costs = forecast(experiment, setup, feds)
    if cluster is not None:
        costs = dataclasses.replace(costs, nodes=cluster.nodes, limit=cluster.memory)
    refuse(costs)
    return costs


def forecast(
    experiment: Experiment,
    setup: Setup,
    feds: Mapping[int, FederatedData],
    *,
    drive_s: float = 5.0,
    time_s: float = 1.0,
    patient: bool = True,
) -> Forecast:
    """Costs of a run of these parts.

    Args:
        experiment, setup, feds: Parts of a run.
        drive_s: Seconds to spend on driving plans beyond their first two rounds.
        time_s: Seconds to spend on timing.
        patient: Time a step even if that alone takes longer than `time_s`; otherwise no time is predicted then.

    Raises:
        QuorumError, ProtocolError: If a plan refuses whatever training brings; the text names the method.
        ConfigError: If one exchange takes nearly all the memory there is.
    """
    now, reached = machine.resident(), machine.peak_resident()
    limit = machine.available()
    notes: list[str] = []
    totals = _Totals(experiment, setup)
    processes = (experiment.runtime.workers or machine.cores()) if setup.executor_kind.processes else 1
    timer = Timer(setup, processes, time_s, patient, len(experiment.methods))
    parts: list[tuple[MemoryPart, ...]] = []
    until = time.monotonic() + drive_s
    cells = run_setup.cells(experiment)
    models: dict[str, DryRun] = {}
    certainty: dict[str, TrafficCertainty] = {}
    codes: dict[str, CodeResults] = {}
    abandoned: dict[str, tuple[int, int]] = {}  # rounds without a result, of those that were driven
    for i, (seed, method) in enumerate(cells):
        if certainty.get(method.label) in ("estimated", "unknown"):
            continue  # as the seeds before it
        fed = feds[seed]
        began = time.monotonic()
        prepared = prepare(experiment, method, setup, fed, seed, codes.get(method.label))
        preparing_s = time.monotonic() - began
        codes[method.label] = prepared.code
        deadline = time.monotonic() + max(until - time.monotonic(), 0.0) / (len(cells) - i)
        first = method.label not in models
        if not first and time.monotonic() > deadline:
            continue
        driven_twice = _drive(experiment, prepared, fed, deadline, notes, first)
        if driven_twice is None:
            certainty[method.label] = "unknown"
            continue
        model, driven, traffic = driven_twice
        certainty[method.label] = max(traffic, certainty.get(method.label, traffic), key=CERTAINTIES.index)
        if first:
            models[method.label] = model
            timer.time(prepared, model)
            parts.append(memory_parts(experiment, setup, prepared, model, timer.tried, now))
        lost, of = abandoned.get(method.label, (0, 0))
        abandoned[method.label] = lost + driven.abandoned, of + len(driven.rounds)
        totals.add(method, driven, models[method.label], prepared.pooled, preparing_s)
    for label, (lost, of) in abandoned.items():
        if lost:
            notes.append(
                f"{label}: {lost} of {of} rounds have too few replies for a result and leave the model as it was"
            )
    clients = next(iter(feds.values())).num_clients
    for method in experiment.methods:
        planned = hook(method.algorithm, "planned")
        if planned is not None:
            notes.append(f"{method.label}: {planned(experiment.rounds, clients, experiment.cohort(clients))}")
    noises = ((hook(method.algorithm, "training_noise"), seed) for seed, method in cells)
    cohort = experiment.cohort(clients)
    notes += privacy.together(of(seed, experiment.rounds, clients, cohort) for of, seed in noises if of is not None)
    costs = tuple(totals.cost(m, certainty[m.label], timer) for m in experiment.methods)
    notes += timer.notes
    timed = [c.seconds for c in costs if c.seconds is not None]
    around = [totals.around_s(m, timer) for m in experiment.methods]
    complete = len(timed) == len(costs)
    if setup.executor_kind.together:
        notes.append(f"training was timed one client at a time; the {setup.executor} executor trains several at once")
    if experiment.stop != Stop():
        notes.append("early stopping is on: these are the costs of all rounds")
    run = Forecast(
        run=experiment.name,
        seeds=len(experiment.seeds),
        rounds=experiment.rounds,
        executor=setup.executor,
        workers=processes,
        costs=costs,
        parts=(),
        reached=reached,
        limit=None if limit is None else limit + now,
        device_limit=device_limit(setup),
        seconds=len(experiment.seeds) * (sum(timed) + sum(around)) if complete else None,
        notes=tuple(dict.fromkeys(notes)),
        least=None if experiment.until is None else max(experiment.until.least, FIRST),
    )
    # The memory shown is that of the method that needs most: one that does not fit comes first.
    of_each = [dataclasses.replace(run, parts=p) for p in parts]
    return max(of_each, key=lambda f: (too_large(f) is not None, f.peak_of("device"), f.everything), default=run)


def _drive(
    experiment: Experiment, prepared: PreparedMethod, fed: FederatedData, until: float, notes: list[str], first: bool
) -> tuple[DryRun, DryRun, TrafficCertainty] | None:
    """A method driven under both mocks, as many rounds as there is time for: (perturbed, that to count, how sure).

    None if the plan refuses made-up results.  Only under the first seed the first of these has an evaluation.
    """
    label = prepared.method.label if first else f"{prepared.method.label}, seed {prepared.seed}"
    halfway = (time.monotonic() + until) / 2
    calm = dataclasses.replace(experiment, world=dataclasses.replace(experiment.world, outage=Outage()))

    def attempt(mock: Mock, until: float, of: Experiment = experiment) -> DryRun | Exception:
        evaluated = first and mock == "perturbed"
        try:
            return dry_run(of, prepared, fed, mock, experiment.rounds, until=until, evaluated=evaluated)
        except Exception as error:  # a plan may well refuse numbers that no training would bring
            if (short := shortage(error)) is not None:
                raise ConfigError(f"{label}: {short}") from None
            return error

    perturbed, unchanged = attempt("perturbed", halfway), attempt("unchanged", until)
    for failure in (unchanged, perturbed):
        # Losses are drawn beforehand and contracts are about types: no training would mend these.
        if isinstance(failure, QuorumError | ProtocolError):
            raise type(failure)(f"{label}: {failure}") from failure
    if isinstance(perturbed, Exception):
        why = f"{type(perturbed).__name__}: {perturbed}"
        notes.append(f"{label}: its costs are not known, its plan refuses made-up results ({why})")
        return None
    model = perturbed
    if first and perturbed.abandoned:  # such rounds take less time and memory than the others
        whole_rounds = attempt("perturbed", halfway, calm)
        if not isinstance(whole_rounds, Exception):
            jobs = {**perturbed.sample_jobs, **whole_rounds.sample_jobs}
            model = dataclasses.replace(whole_rounds, sample_jobs=jobs)
    rounds = len(perturbed.rounds)
    if isinstance(unchanged, Exception) or any(
        a.bytes != b.bytes for a, b in zip(perturbed.rounds, unchanged.rounds, strict=False)
    ):
        notes.append(f"{label}: training decides what it sends, its bytes are an estimate from {rounds} rounds")
        return model, perturbed, "estimated"
    compared = min(rounds, len(unchanged.rounds))
    return model, unchanged, "exact" if compared == experiment.rounds and not unchanged.reused else "extrapolated"


class _Totals:
    """Adds up, by method, what the dry runs of its seeds asked for."""

    def __init__(self, experiment: Experiment, setup: Setup) -> None:
        self._experiment, self._setup = experiment, setup
        self._driven: dict[str, list[DryRun]] = {}
        self._evaluations: dict[str, RoundRequests | None] = {}
        self._pooled: dict[str, bool] = {}
        self._preparing_s: dict[str, float] = {}

    def add(self, method: Method, driven: DryRun, model: DryRun, pooled: bool, preparing_s: float) -> None:
        self._driven.setdefault(method.label, []).append(driven)
        self._evaluations[method.label] = model.evaluation
        self._pooled[method.label] = pooled
        self._preparing_s[method.label] = preparing_s

    def cost(self, method: Method, traffic: TrafficCertainty, timer: Timer) -> MethodCost:
        experiment, driven = self._experiment, self._driven.get(method.label, [])
        if traffic == "unknown":
            return MethodCost(method.label, None, "unknown", 0, None, None, None)
        rounds = experiment.rounds
        sent = {d: float(np.mean([_over(r.rounds, rounds, _sent(d)) for r in driven])) for d in DIRECTIONS}
        fewest = min(len(r.rounds) for r in driven)
        short = fewest < rounds or len(driven) < len(experiment.seeds) or any(r.reused for r in driven)
        if traffic == "exact" and short:
            traffic = "extrapolated"
        pooled = self._pooled[method.label]
        training = [_over(r.rounds, rounds, lambda b: timer.jobs(b, pooled)) for r in driven]
        server = [
            _over(r.rounds, rounds, lambda b: b.server_s + timer.handover(b) + timer.server_work(b)) for r in driven
        ]
        times = sum(t % experiment.eval_every == 0 or t == rounds for t in range(1, rounds + 1))
        evaluation = self._evaluation_s(method, timer) * times
        timed = timer.knows(method.label, (b for r in driven for b in r.rounds))
        return MethodCost(
            method.label,
            sent,
            traffic,
            fewest,
            float(np.mean(training)) if timed else None,
            float(np.mean(server)) if timed else None,
            evaluation if timed else None,
        )

    def around_s(self, method: Method, timer: Timer) -> float:
        """Seconds outside the rounds: preparing, and evaluating the initial model."""
        return self._preparing_s.get(method.label, 0.0) + self._evaluation_s(method, timer)

    def _evaluation_s(self, method: Method, timer: Timer) -> float:
        requests = self._evaluations.get(method.label)
        if requests is None or timer.evaluation is None:
            return 0.0
        return requests.server_s + timer.jobs(requests, self._pooled[method.label]) + timer.evaluations(requests)


def _sent(direction: Direction) -> Callable[[RoundRequests], float]:
    return lambda requests: requests.bytes[direction]


def _over(driven: Sequence[RoundRequests], rounds: int, cost: Callable[[RoundRequests], float]) -> float:
    """The sum of a cost over all rounds; those not driven are as the driven ones after the first."""
    values = [cost(b) for b in driven]
    tail = values[1:] or values
    return sum(values) + (rounds - len(values)) * sum(tail) / len(tail)
