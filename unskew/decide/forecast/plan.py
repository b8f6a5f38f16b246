"""Costs of a run before it begins: bytes, time and memory; impossible runs are refused.

    bytes    the method's own plan is driven on made-up results (dry_run.py), through the code that counts real messages
    time     the requests of the dry run; each kind is timed on a few steps or examples
    memory   a sum whose parts are shown (memory.py)

Energy is not predicted: nothing here measures power.
"""

import dataclasses
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import fmean
from typing import Any, get_args

import torch

from unskew import machine
from unskew.decide.forecast.dry_run import MOVED, Code, DryRun, Kind, PreparedMethod, Requests, dry_run, prepare
from unskew.decide.forecast.measure import affine, threads
from unskew.decide.forecast.memory import device_limit, memory_parts, model_bytes
from unskew.decide.forecast.values import Forecast, MemoryPart, MethodCost, TrafficCertainty
from unskew.errors import ConfigError, ProtocolError, QuorumError, shortage
from unskew.experiment.config import Experiment, NamedMethod, Stop
from unskew.keys import Key
from unskew.ledger import DIRECTIONS
from unskew.local.data import steps_of_job
from unskew.local.trainer import LocalTrainer
from unskew.protocol import Sgd, hook
from unskew.run import setup as run_setup
from unskew.run.decide import FIRST
from unskew.run.setup import IN_PROCESS, PreparedRun, Setup
from unskew.server import privacy

JOBS = 2_000
"""Jobs that plans are driven for, over all methods, seeds and tries, beyond the first two rounds of a seed."""
MOST_BYTES = 4e9
"""Bytes of models that these jobs may make."""
TIME_S = 1.0
"""Seconds to spend on timing."""
KINDS = 2
"""Kinds of local training of a method that are timed; others take as long as the last of them."""
COPY_BYTES_PER_S = 2e9
EXACT: TrafficCertainty = "exact"
EVALUATION: Kind = ("evaluation",)
Line = tuple[float, float]
"""Seconds for one step or example, and for each more."""


@dataclass(frozen=True)
class ClusterShape:
    """A Ray cluster: machines, cores of each, and memory of each, bytes (None if unknown)."""

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
            raise ConfigError(f"a cluster is given as NODESxCORES or NODESxCORESxGB, such as 4x16x64, got {text!r}")
        nodes, cores, gigabytes = given.groups()
        return cls(int(nodes), int(cores), None if gigabytes is None else int(gigabytes) * 10**9)


def plan(experiment: Experiment, cluster: ClusterShape | None = None) -> Forecast:
    """Costs of an experiment; nothing is written, and only a few steps are trained to time them.

    Args:
        experiment: The experiment.
        cluster: The cluster, with cores as fast as here; None for this machine.

    Raises:
        ConfigError, DataError, ProtocolError: As a run would; ConfigError also if memory is too small.
        QuorumError: If `world.outage` leaves no early round enough replies.
    """
    if cluster is not None:
        options = experiment.runtime.executor_options if experiment.runtime.executor == "ray" else {}
        workers = cluster.nodes * cluster.cores
        runtime = dataclasses.replace(
            experiment.runtime, executor="ray", workers=workers, device="cpu", executor_options=options
        )
        experiment = dataclasses.replace(experiment, runtime=runtime)
    costs = forecast(run_setup.prepared(experiment, IN_PROCESS))
    if cluster is not None:
        costs = dataclasses.replace(costs, nodes=cluster.nodes, limit=cluster.memory)
    costs.refuse()
    return costs


def forecast(run: PreparedRun) -> Forecast:
    """Costs of a run.

    Raises:
        QuorumError, ProtocolError: If a plan refuses its settings; the text names the method.
        ConfigError: If one exchange takes nearly all memory.
    """
    experiment, setup = run.experiment, run.setup
    now, limit = machine.resident(), machine.available()
    workers = (experiment.runtime.workers or machine.cores()) if setup.executor_kind.processes else 1
    times = _Times(experiment, setup, workers, {})
    costs, parts, notes, around = [], [tuple[MemoryPart, ...]()], list[str](), 0.0
    for method in experiment.methods:
        driven = _drive(run, method, notes)
        if driven is None:
            costs.append(MethodCost(method.label))
            continue
        times.measure(driven)
        parts.append(memory_parts(experiment, setup, driven.prepared, driven.runs[0], now))
        costs.append(times.cost(driven))
        around += times.evaluation_s(driven.runs[0].evaluation) + driven.preparing_s
    seconds = [c.seconds for c in costs if c.seconds is not None]
    whole = Forecast(
        run=experiment.name,
        seeds=len(experiment.seeds),
        rounds=experiment.rounds,
        executor=setup.executor,
        workers=workers,
        costs=tuple(costs),
        parts=(),
        reached=machine.peak_resident(),
        limit=None if limit is None else limit + now,
        device_limit=device_limit(setup),
        seconds=len(experiment.seeds) * (sum(seconds) + around) if len(seconds) == len(costs) else None,
        notes=tuple(dict.fromkeys([*notes, *_notes(run)])),
        least=None if experiment.until is None else max(experiment.until.least, FIRST),
    )
    # The memory shown is that of the method that needs most: one that does not fit comes first.
    of_each = [dataclasses.replace(whole, parts=p) for p in parts]
    return max(of_each, key=lambda f: (bool(f.too_large), f.peak_of("device"), f.everything), default=whole)


def _notes(run: PreparedRun) -> list[str]:
    """Notes that follow from the run's settings, as of privacy."""
    experiment, clients = run.experiment, next(iter(run.feds.values())).num_clients
    given = experiment.rounds, clients, experiment.cohort(clients)
    planned = [(m.label, hook(m.method, "planned")) for m in experiment.methods]
    notes = [f"{label}: {of(*given)}" for label, of in planned if of is not None]
    noises = [(hook(m.method, "training_noise"), seed) for seed, m in run_setup.cells(experiment)]
    notes += privacy.together(of(seed, *given) for of, seed in noises if of is not None)
    if run.setup.executor_kind.together:
        several = f"the {run.setup.executor} executor trains several at once"
        notes.append(f"training was timed one client at a time; {several}")
    return notes + ["early stopping is on: these are the costs of all rounds"] * (experiment.stop != Stop())


# ---------------------------------------------------------------- bytes
@dataclass(frozen=True, eq=False)
class _Driven:
    """A method driven: its dry runs by seed, the method under the first, its local code, and how sure all that is."""

    method: NamedMethod
    prepared: PreparedMethod
    preparing_s: float
    runs: list[DryRun]
    code: Code
    traffic: TrafficCertainty

    def mean(self, cost: Callable[[Requests], float], rounds: int) -> float:
        """The sum of a cost over all rounds, mean over seeds; rounds not driven are as those after the first."""
        values = [[cost(r) for r in run.rounds] for run in self.runs]
        return fmean(sum(v) + (rounds - len(v)) * fmean(v[1:] or v) for v in values)


def _drive(run: PreparedRun, method: NamedMethod, notes: list[str]) -> _Driven | None:
    """Drive a method in both ways under as many seeds as its share of the jobs allows; None if its plan refuses."""
    code, runs, sure, label = Code(), list[DryRun](), {EXACT}, method.label
    experiment, feds = run.experiment, run.feds
    left = min(JOBS, MOST_BYTES / model_bytes(run.setup)) / len(experiment.methods)
    first: tuple[PreparedMethod, float] | None = None
    for i, seed in enumerate(experiment.seeds):
        if i and left <= 0:
            sure.add("extrapolated")
            break
        began = time.monotonic()
        prepared = prepare(run, method, seed)
        first = first or (prepared, time.monotonic() - began)
        share = left / (len(experiment.seeds) - i) / 2
        moved, still = (
            _try(experiment, prepared, feds[seed], code, moved=far, jobs=share, evaluated=not i and far > 0)
            for far in (MOVED, 0.0)
        )
        if isinstance(moved, Exception):
            notes.append(f"{label}: its costs are not known ({type(moved).__name__}: {moved})")
            return None
        runs.append(moved)
        left -= sum(2 * r.work for r in moved.rounds)
        pairs = [] if isinstance(still, Exception) else list(zip(moved.rounds, still.rounds, strict=False))
        if not pairs or any(a.bytes != b.bytes for a, b in pairs):
            sure.add("estimated")
            notes.append(f"{label}: training decides what it sends, its bytes are an estimate")
        elif len(pairs) < experiment.rounds:
            sure.add("extrapolated")
    if lost := sum(run.abandoned for run in runs):
        count = sum(len(run.rounds) for run in runs)
        notes.append(
            f"{label}: {lost} of {count} rounds have too few replies for a result and leave the model as it was"
        )
    assert first is not None
    return _Driven(method, *first, runs, code, max(sure, key=get_args(TrafficCertainty).index))


def _try(experiment: Experiment, prepared: PreparedMethod, *args: Any, **how: Any) -> DryRun | Exception:
    label = prepared.method.label
    try:
        return dry_run(experiment, prepared, *args, **how)
    except (QuorumError, ProtocolError) as error:  # no training would mend these
        raise type(error)(f"{label}: {error}") from error
    except Exception as error:  # a plan may well refuse numbers that no training would bring
        if (short := shortage(error)) is not None:
            raise ConfigError(f"{label}: {short}") from None
        return error


# ---------------------------------------------------------------- time
@dataclass(eq=False)
class _Times:
    """Times of each kind of job, tried once on as much of it as there is time for, and what rounds of them take.

    A kind without a line of its own takes what the last one like it does.
    """

    experiment: Experiment
    setup: Setup
    workers: int
    lines: dict[Kind, Line]

    def measure(self, driven: _Driven) -> None:
        """Time the kinds of jobs of one method that no method before it had."""
        with threads(1) if self.setup.executor_kind.processes else nullcontext():  # as in a worker
            trainer, samples = driven.prepared.trainer, driven.runs[0].samples
            if EVALUATION not in self.lines:
                most = min(trainer.size("test"), LocalTrainer.CHUNK)
                self.lines[EVALUATION] = affine(evaluated(driven.prepared), most, TIME_S)
            self.lines |= {kind: (driven.code.seconds(kind),) * 2 for kind in driven.code.times}
            fresh = [kind for kind in samples if kind not in self.lines][:KINDS]
            for kind in fresh:
                once, steps = trained(driven.prepared, samples[kind])
                self.lines[kind] = affine(once, steps, TIME_S / len(self.experiment.methods) / len(fresh))

    def cost(self, driven: _Driven) -> MethodCost:
        """The cost of a method."""
        rounds, every = self.experiment.rounds, self.experiment.eval_every
        sent = {d: driven.mean(lambda r, d=d: r.bytes[d], rounds) for d in DIRECTIONS}  # type: ignore[misc]
        times = sum(t % every == 0 or t == rounds for t in range(1, rounds + 1))
        return MethodCost(
            driven.method.label,
            driven.traffic,
            sent,
            min(len(r.rounds) for r in driven.runs),
            training_s=driven.mean(self._clients_s, rounds),
            server_s=driven.mean(lambda r: r.server_s + self._server_s(r), rounds),
            evaluation_s=times * self.evaluation_s(driven.runs[0].evaluation),
        )

    def evaluation_s(self, requests: Requests | None) -> float:
        """Seconds of one evaluation."""
        if requests is None:
            return 0.0
        models = sum(self._job_s(EVALUATION, n) for n in requests.evaluated) / self.workers
        return requests.server_s + self._clients_s(requests) + models

    def _clients_s(self, requests: Requests) -> float:
        """Seconds of the clients' jobs, spread over the workers; the longest is the least it takes."""
        jobs = [(self._job_s(kind, n), k) for (kind, n, at_server), k in requests.jobs.items() if not at_server]
        return max(sum(s * k for s, k in jobs) / self.workers, max((s for s, _ in jobs), default=0.0))

    def _server_s(self, requests: Requests) -> float:
        """Seconds of the server's own jobs, and of handing jobs to workers."""
        kind, jobs = self.setup.executor_kind, requests.jobs.items()
        own = sum(self._job_s(kind, n) * k for (kind, n, at_server), k in jobs if at_server)
        if not kind.processes:
            return own
        return own + requests.jobs.total() * (kind.handover_s + 4 * model_bytes(self.setup) / COPY_BYTES_PER_S)

    def _job_s(self, kind: Kind, n: int) -> float:
        like = kind if kind in self.lines else next((k for k in reversed(self.lines) if k[0] == kind[0]), None)
        if like is None or not n:
            return 0.0
        if kind[0] == "sgd":
            n = steps_of_job(kind[1], n, self.setup.task.min_batch)
        first, more = self.lines[like]
        return first + more * (n - 1)


def trained(prepared: PreparedMethod, job: Sgd) -> tuple[Callable[[int], Any], int]:
    """Train the largest client for a number of steps; and the most steps it takes."""
    client = int(prepared.population.histograms.sum(1).argmax())
    me = prepared.population.me(client, 1, Key(prepared.seed) / "timing" / client)
    n = me.n if job.examples is None else len(job.examples.rows)

    def once(steps: int) -> None:
        config = dataclasses.replace(job.config, local_epochs=None, local_steps=steps)
        job_here = dataclasses.replace(job, config=config, start=me.initial)  # its network may be another
        prepared.trainer.of(client).fit(me, job_here, me.key)

    return once, steps_of_job(job.config, n, prepared.trainer.task.min_batch)


def evaluated(prepared: PreparedMethod) -> Callable[[int], Any]:
    """Evaluate a number of test examples."""
    trainer, params = prepared.trainer, dict(prepared.population.initial)
    return lambda n: trainer.evaluate(params, "test", torch.arange(n, device=trainer.device))[0].sum().item()
