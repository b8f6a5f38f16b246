"""The costs of a run before it begins: bytes, time and memory, and a refusal of what cannot be.

    bytes    the method's own plan is driven on made-up results (dry_run.py), through the code that counts real messages
    time     what the dry run asked for, each kind tried on a few steps, examples or images, and multiplied
    memory   a sum whose parts are shown (memory.py)

Energy is not predicted: nothing here measures power.
"""

import dataclasses
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, get_args

import torch

from unskew import machine
from unskew.data.federated import FederatedData
from unskew.decide.forecast.dry_run import (
    KEY,
    MOVED,
    Code,
    DryRun,
    Kind,
    PreparedMethod,
    Requests,
    dry_run,
    prepare,
    prior_of,
)
from unskew.decide.forecast.measure import affine, timed
from unskew.decide.forecast.memory import device_limit, memory_parts, model_bytes
from unskew.decide.forecast.values import Forecast, MemoryPart, MethodCost, TrafficCertainty
from unskew.errors import ConfigError, ProtocolError, QuorumError, UnskewError, shortage
from unskew.experiment.config import Experiment, NamedMethod, Stop
from unskew.keys import Key
from unskew.ledger import DIRECTIONS
from unskew.local.data import steps_of_job
from unskew.local.trainer import LocalTrainer
from unskew.protocol import Sgd, hook
from unskew.run import setup as run_setup
from unskew.run.decide import FIRST
from unskew.run.setup import Setup
from unskew.server import privacy

COPY_BYTES_PER_S = 2e9
Line = tuple[float, float]
"""Seconds for one step, example or image, and for each more."""


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
            raise ConfigError(f"a cluster is given as NODESxCORES or NODESxCORESxGB, such as 4x16x64, got {text!r}")
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
    costs.refuse()
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
        patient: Time a step even if that alone takes longer than `time_s`, and a prior; otherwise no time is predicted
            then.

    Raises:
        QuorumError, ProtocolError: If a plan refuses whatever training brings; the text names the method.
        ConfigError: If one exchange takes nearly all the memory there is.
    """
    now, limit = machine.resident(), machine.available()
    processes = (experiment.runtime.workers or machine.cores()) if setup.executor_kind.processes else 1
    clock = _Clock(experiment, setup, processes, time_s, patient)
    costs, parts, notes = [], [tuple[MemoryPart, ...]()], list[str]()
    until, around = time.monotonic() + drive_s, 0.0
    for i, method in enumerate(experiment.methods):
        share = max(until - time.monotonic(), 0.0) / (len(experiment.methods) - i)
        driven = _Driven(experiment, setup, feds, method, time.monotonic() + share, notes)
        if driven.runs:
            clock.time(driven)
            parts.append(memory_parts(experiment, setup, driven.prepared, driven.first, now))
            around += clock.evaluation_s(driven) + driven.preparing_s
        costs.append(clock.cost(driven, notes))
    seconds = [c.seconds for c in costs if c.seconds is not None]
    run = Forecast(
        run=experiment.name,
        seeds=len(experiment.seeds),
        rounds=experiment.rounds,
        executor=setup.executor,
        workers=processes,
        costs=tuple(costs),
        parts=(),
        reached=machine.peak_resident(),
        limit=None if limit is None else limit + now,
        device_limit=device_limit(setup),
        seconds=len(experiment.seeds) * (sum(seconds) + around) if len(seconds) == len(costs) else None,
        notes=tuple(dict.fromkeys([*notes, *_notes(experiment, setup, feds)])),
        least=None if experiment.until is None else max(experiment.until.least, FIRST),
    )
    # The memory shown is that of the method that needs most: one that does not fit comes first.
    of_each = [dataclasses.replace(run, parts=p) for p in parts]
    return max(of_each, key=lambda f: (bool(f.too_large), f.peak_of("device"), f.everything))


def _notes(experiment: Experiment, setup: Setup, feds: Mapping[int, FederatedData]) -> list[str]:
    """Notes that follow from the run's settings, as of privacy."""
    clients = next(iter(feds.values())).num_clients
    given = experiment.rounds, clients, experiment.cohort(clients)
    planned = [(m.label, hook(m.method, "planned")) for m in experiment.methods]
    notes = [f"{label}: {of(*given)}" for label, of in planned if of is not None]
    noises = [(hook(m.method, "training_noise"), seed) for seed, m in run_setup.cells(experiment)]
    notes += privacy.together(of(seed, *given) for of, seed in noises if of is not None)
    if setup.executor_kind.together:
        notes.append(f"training was timed one client at a time; the {setup.executor} executor trains several at once")
    return notes + ["early stopping is on: these are the costs of all rounds"] * (experiment.stop != Stop())


# ---------------------------------------------------------------- driven
class _Driven:
    """A method driven in both ways under as many seeds as there is time for.

    Attributes:
        runs: What counts of each seed; empty if the plan refuses made-up results.
        first: The first of them, with an evaluation.
        prepared: The method under its first seed.
        code: Its local code.
        traffic: Certainty of its bytes.
    """

    def __init__(
        self,
        experiment: Experiment,
        setup: Setup,
        feds: Mapping[int, FederatedData],
        method: NamedMethod,
        until: float,
        notes: list[str],
    ) -> None:
        self.experiment, self.method, self.code, self.runs = experiment, method, Code(), list[DryRun]()
        self.traffic: TrafficCertainty = "exact"
        count, lost = len(experiment.seeds), 0
        for i, seed in enumerate(experiment.seeds):
            began = time.monotonic()
            if i and began > until:
                self._at_best("extrapolated")
                break
            prepared = prepare(experiment, method, setup, feds[seed], seed)
            if not i:
                self.prepared, self.preparing_s = prepared, time.monotonic() - began
            end = began + max(until - began, 0.0) / (count - i)
            moved, still = (
                self._try(
                    prepared, feds[seed], moved=far, until=began + part * (end - began), evaluated=not i and far > 0
                )
                for far, part in ((MOVED, 0.5), (0.0, 1.0))
            )
            if isinstance(moved, Exception):
                self.traffic, self.runs = "unknown", []
                why = f"{type(moved).__name__}: {moved}"
                notes.append(f"{method.label}: its costs are not known, its plan refuses made-up results ({why})")
                return
            if isinstance(still, Exception) or any(
                a.bytes != b.bytes for a, b in zip(moved.rounds, still.rounds, strict=False)
            ):
                self._at_best("estimated")
                notes.append(f"{method.label}: training decides what it sends, its bytes are an estimate")
            else:
                compared = min(len(moved.rounds), len(still.rounds))
                whole = compared == experiment.rounds and not (moved.reused or still.reused)
                self._at_best("exact" if whole else "extrapolated")
            self.runs.append(moved)
            lost += moved.abandoned
        self.first = self.runs[0]
        if lost:
            of = sum(len(r.rounds) for r in self.runs)
            notes.append(
                f"{method.label}: {lost} of {of} rounds have too few replies for a result and leave the model as it was"
            )

    def _at_best(self, traffic: TrafficCertainty) -> None:
        self.traffic = max(self.traffic, traffic, key=get_args(TrafficCertainty).index)

    def _try(self, prepared: PreparedMethod, fed: FederatedData, **how: Any) -> DryRun | Exception:
        label = prepared.method.label
        try:
            return dry_run(self.experiment, prepared, fed, self.code, **how)
        except (QuorumError, ProtocolError) as error:  # no training would mend these
            raise type(error)(f"{label}: {error}") from error
        except Exception as error:  # a plan may well refuse numbers that no training would bring
            if (short := shortage(error)) is not None:
                raise ConfigError(f"{label}: {short}") from None
            return error

    def mean(self, cost: Callable[[Requests], float]) -> float:
        """The sum of a cost over all rounds, mean over seeds; rounds not driven are as those after the first."""
        return fmean(_over([cost(r) for r in run.rounds], self.experiment.rounds) for run in self.runs)


def _over(values: Sequence[float], rounds: int) -> float:
    return sum(values) + (rounds - len(values)) * fmean(values[1:] or values)


# ---------------------------------------------------------------- time
@dataclass(eq=False)
class _Clock:
    """Tries each kind of job once, on as much of it as there is time for, and adds up what rounds will take.

    `lines` has what each kind takes; without a line of its own a kind takes what the last one like it does.
    """

    experiment: Experiment
    setup: Setup
    workers: int
    budget_s: float
    patient: bool
    lines: dict[Kind, Line] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    evaluation: Line | None = None

    def time(self, driven: _Driven) -> None:
        """Time the kinds of jobs of one method that no method before it had."""
        threads = torch.get_num_threads()
        if self.setup.executor_kind.processes:
            torch.set_num_threads(1)  # as in a worker
        try:
            self._time(driven)
        except UnskewError as error:
            self.refused[driven.method.label] = str(error)
        finally:
            torch.set_num_threads(threads)

    def _time(self, driven: _Driven) -> None:
        prepared, samples = driven.prepared, driven.first.samples
        trainer = prepared.trainer
        if self.evaluation is None:
            most = min(trainer.size("test"), LocalTrainer.CHUNK)
            self.evaluation = affine(evaluated(prepared), most, self.budget_s)
        for kind in driven.code.times:
            self.lines[kind] = (driven.code.seconds(kind),) * 2
        asked = {kind: n for r in driven.first.rounds for kind, n, _ in r.jobs if kind not in self.lines}
        each = self.budget_s / len(self.experiment.methods) / max(len(asked), 1)
        until = time.monotonic() + self.budget_s
        for i, (kind, n) in enumerate(asked.items()):
            if kind[0] == "sgd" and (i < 2 or time.monotonic() < until):
                first, more = self.evaluation
                batch = min(samples[kind].config.batch_size or n, n)
                if not self.patient and (step := 3 * (first + more * batch)) > self.budget_s:  # forward, and backward
                    raise UnskewError(f"one local step alone takes about {step:.1f} s; unskew plan takes that time")
                once, steps = trained(prepared, samples[kind])
                self.lines[kind] = affine(once, steps, each)
            elif kind[0] == "prior":
                if not self.patient:
                    raise UnskewError(f"the prior {kind[1]} is not tried as a run begins; unskew plan does")
                self.lines[kind] = of_prior(prepared, kind, n, each)

    def cost(self, driven: _Driven, notes: list[str]) -> MethodCost:
        """The cost of a method."""
        label, runs = driven.method.label, driven.runs
        if not runs:
            return MethodCost(label)
        sent = {d: driven.mean(lambda r, d=d: r.bytes[d]) for d in DIRECTIONS}  # type: ignore[misc]
        known = MethodCost(label, driven.traffic, sent, min(len(r.rounds) for r in runs))
        if label in self.refused:
            notes.append(f"{label}: no time is predicted: {self.refused[label]}")
            return known
        rounds, every = self.experiment.rounds, self.experiment.eval_every
        times = sum(t % every == 0 or t == rounds for t in range(1, rounds + 1))
        return dataclasses.replace(
            known,
            training_s=driven.mean(self._clients_s),
            server_s=driven.mean(lambda r: r.server_s + self._server_s(r)),
            evaluation_s=times * self.evaluation_s(driven),
        )

    def evaluation_s(self, driven: _Driven) -> float:
        """Seconds of one evaluation."""
        requests = driven.first.evaluation
        if requests is None or self.evaluation is None:
            return 0.0
        first, more = self.evaluation
        models = sum(first + more * n for n in requests.evaluated) / self.workers
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
    """Training of the largest client for a number of steps, and the most steps it takes."""
    client = int(prepared.population.histograms.sum(1).argmax())
    me = prepared.population.me(client, 1, Key(prepared.seed) / "timing" / client)
    n = me.n if job.examples is None else len(job.examples.rows)

    def once(steps: int) -> None:
        config = dataclasses.replace(job.config, local_epochs=None, local_steps=steps)
        prepared.trainer.fit(me, dataclasses.replace(job, config=config), me.key)

    return once, steps_of_job(job.config, n, prepared.trainer.task.min_batch)


def evaluated(prepared: PreparedMethod) -> Callable[[int], Any]:
    """Evaluation of a number of test examples."""
    trainer, params = prepared.trainer, dict(prepared.population.initial)
    return lambda n: trainer.evaluate(params, "test", torch.arange(n, device=trainer.device))[0].sum().item()


def of_prior(prepared: PreparedMethod, kind: Kind, most: int, budget_s: float) -> Line:
    """Seconds of a prior's work for one, and for each more."""
    _, source, what, steps = kind
    real, x = prior_of(prepared.trainer, source), prepared.trainer.device_data.x[:1]

    def sample(n: int, steps: int | None = 1) -> Any:  # not through the imagery, which keeps what it made
        return real.prior.sample(real.start()[None], n, KEY, None, steps)

    tried: dict[str, Callable[[int], Any]] = {
        "encode": lambda n: real.encode(x.expand(n, *x.shape[1:])),
        "decode": lambda n: real.decode(torch.zeros(n, *real.latent_shape)),
        "distances": lambda n: real.distances(real.start().repeat(n, 1), KEY),
        "invert": lambda n: real.invert([torch.zeros(1, *real.latent_shape)] * n, KEY, steps=1, batch_size=1),
        "sample": sample,
    }
    one, more = affine(tried[what], min(most, real.prior.at_once), budget_s)
    times = max(1.0, timed(lambda: sample(1, None)) / one) if steps is None else steps
    return one * times, more * times
