"""Methods in training on the sites that are advised, and how their models do there.

A site's rows are divided once, under the experiment's first seed, and the division stays: test rows, which nothing
reads before all choices are made, and folds of the others.  A choice trains on all folds but one and is judged by the
rows of that one, for as many folds as there is time for (cross-validation).
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from unskew.data.federated import ClientIndex, ClientIndices, FederatedData, apart
from unskew.data.latest import latest
from unskew.data.patients import by_patient, fewest_of_a_class, most_frequent
from unskew.data.ragged import Ragged
from unskew.errors import ConfigError, DataError, DivergedError
from unskew.experiment.config import Experiment, Method
from unskew.keys import Key
from unskew.ledger import Transfer
from unskew.local.executor import Columns, EvalJob
from unskew.protocol import ClientId
from unskew.report.gain import Floats, pooled_variance
from unskew.run import constant
from unskew.run import setup as run_setup
from unskew.run.evaluation import own_models
from unskew.run.one_class import right
from unskew.run.setup import InMemoryInputs, Setup
from unskew.runtime.in_process import Simulator
from unskew.runtime.round import Effort
from unskew.tasks import kind_of
from unskew.tasks.classification import only_class_found
from unskew.tasks.measure import FEWEST, Measure
from unskew.tasks.task import Task
from unskew.words import listed

ASKED = 2
"""Place from which on a task's measures are those that `evaluate` asks for: headline and loss come first."""

VALIDATION = 0.25
"""Share of a site's rows in a fold, where the experiment does not say."""


class OutOfTime(Exception):
    """The time that advice may take is over."""


class Clock:
    """Counts rounds of training, and ends them when their time is over.

    `rounds` were begun, of about so many `planned`; `cut` is true once time was over before they were.

    Args:
        seconds: The most time; without a limit nothing depends on the clock.
        now: Tells the time, s.
    """

    def __init__(self, seconds: float = math.inf, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._now, self._begun = seconds, now, now()
        self.rounds, self.planned, self.cut = 0, 0, False

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return self._now() - self._begun

    def count(self) -> None:
        """Count a round that is about to begin.

        Raises:
            OutOfTime: If the time is over.
        """
        self.cut = self.cut or self.spent > self.seconds
        if self.cut:
            raise OutOfTime
        self.rounds += 1


@dataclass(frozen=True)
class Constraints:
    """Limits that a federation must keep to.

    Attributes:
        rounds: The most communication rounds.
        megabytes: The most that all clients and the server send in one training, 10^6 bytes.
    """

    rounds: int | None = None
    megabytes: float | None = None

    @property
    def tight(self) -> bool:
        """True if there is a limit."""
        return self.rounds is not None or self.megabytes is not None


@dataclass(frozen=True, eq=False)
class Sites:
    """The sites that are advised, and the task they share.

    Attributes:
        experiment: What they would run; it says model, rounds and local training.
        setup: Task, network and data.
        fed: Division into sites, and of each site's rows into training and test rows.
        clock: Counts the rounds of all trainings on them.
    """

    experiment: Experiment
    setup: Setup
    fed: FederatedData
    clock: Clock = field(default_factory=Clock)

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each site."""
        return self.fed.client_names or tuple(f"client {k}" for k in range(self.fed.num_clients))

    @property
    def measure(self) -> Measure:
        """The measure that decides."""
        return self.setup.task.headline

    @property
    def drawn(self) -> str:
        """The name of what stands for future ones: test rows, or the patients whose rows they are."""
        return "test rows" if self.fed.dataset.patients is None else "test patients"

    @cached_property
    def constants(self) -> Mapping[ClientId, float]:
        """The headline on each site's test rows of what its training rows would always say; empty where not known."""
        return constant.of_clients(kind_of(self.experiment.task.kind), self.measure, self.fed)

    @cached_property
    def folds(self) -> tuple[FederatedData, ...]:
        """The sites without test rows, and with a fold of their rows for validation: a division for each fold.

        A site of one row has it for training in all of them.  Where patients are known, all rows of one are in one
        fold, and so it is with a site of one patient.  Where it is known when rows were, folds follow one another in
        time, the latest first, each is judged after training on what was before it, and the earliest only trains.
        """
        count = max(round(1 / self.experiment.val_fraction), 2)
        if self.fed.dataset.when is not None:
            return self._in_time(count)
        key = Key(self.experiment.seeds[0]) / "advice" / "folds"
        train = self.fed.clients.train
        units, owner = _units(self.fed, train.values), np.repeat(np.arange(len(train)), train.sizes)
        home = most_frequent(units, owner)  # of a patient of several sites, the one that has most rows
        fold = np.full(len(home), -1)
        order = np.argsort(home, kind="stable")
        for client, mine in enumerate(np.split(order, np.searchsorted(home[order], np.arange(1, len(train))))):
            drawn = (key / client).numpy().permutation(len(mine))
            for number, chosen in enumerate(np.array_split(drawn, count)):
                fold[mine[chosen[: len(mine) - 1]]] = number
        of_row = np.split(fold[units], np.cumsum(train.sizes)[:-1])

        def divided(number: int) -> ClientIndices:
            val = [torch.from_numpy(of == number) for of in of_row]
            parts = zip(train, val, strict=True)
            return ClientIndices.of([ClientIndex(rows[~chosen], rows[chosen], rows[:0]) for rows, chosen in parts])

        return tuple(_with(self.fed, divided(number)) for number in range(count))

    def _in_time(self, count: int) -> tuple[FederatedData, ...]:
        data = self.fed.dataset
        folds, left = [], list(self.fed.clients.train)
        for k in range(count - 1):
            clients = []
            for client, rows in enumerate(left):
                when, patients = (None if of is None else of[rows].numpy() for of in (data.when, data.patients))
                assert when is not None
                late, early = (torch.from_numpy(part) for part in latest(when, 1 / (count - k), patients))
                clients.append(ClientIndex(rows[early], rows[late], rows[:0]))
                left[client] = rows[~late]
            known = None if data.patients is None else data.patients.numpy()
            folds.append(_with(self.fed, ClientIndices.of(apart(clients, known))))
        return tuple(fold for fold in folds if fold.clients.val.sizes.any())


def _units(fed: FederatedData, rows: torch.Tensor) -> npt.NDArray[np.int64]:
    """The patient of each of these rows, counted from 0; where patients are not known, each row by itself."""
    patients = fed.dataset.patients
    if patients is None:
        return np.arange(len(rows))
    return np.unique(patients[rows].numpy(), return_inverse=True)[1]


def _none(part: Ragged) -> Ragged:
    return Ragged(part.values[:0], np.zeros(len(part), np.int64))


def _with(fed: FederatedData, clients: ClientIndices) -> FederatedData:
    return replace(fed, clients=clients, sha256=clients.sha256)


def sites_of(experiment: Experiment, inputs: InMemoryInputs = InMemoryInputs(), minimum: int = 2) -> Sites:
    """Read the data and divide them.

    Raises:
        ConfigError, DataError: If the experiment is impossible, there are fewer than `minimum` sites, or none
            has rows to choose by, or to test on, from which the headline can be measured.
    """
    early = [f"stop.{name}" for name in ("metric", "patience", "seconds") if getattr(experiment.stop, name) is not None]
    if early:
        raise ConfigError(
            f"{listed(early)} would be ignored: methods are chosen and tuned by trainings that take all their rounds; "
            "leave it out, and give as many rounds as a training should have (stop.megabytes may stay)"
        )
    share = experiment.val_fraction or VALIDATION
    experiment = replace(experiment, val_fraction=0.0)
    setup = run_setup.prepare(experiment, inputs)
    if setup.executor_kind.processes:  # several methods are in training at a time, and workers serve one
        here = replace(experiment.runtime, executor="sequential", executor_options={})
        executor, kind = run_setup.choose_executor(here, setup.device, setup.parameters, 0.0)
        setup = replace(setup, executor=executor, executor_kind=kind)
    fed = run_setup.divide(experiment, setup.dataset, experiment.seeds[0])
    if fed.num_clients < minimum:
        raise ConfigError(f"advice needs at least two sites, got {fed.num_clients}")
    if not fed.clients.test.sizes.any():
        raise DataError("no site has test rows; raise test_fraction, or give the sites more rows")
    if not any(measurable(setup.task, fed.dataset.y_train[rows]) for rows in fed.clients.test):
        raise DataError(
            f"no site has test rows from which {setup.task.headline.label} can be measured, as rows of one class or "
            "without events; give a site others, or choose another task.headline"
        )
    if fed.clients.train.sizes.max() < 2:
        raise DataError("no site has two rows to train on, one of which could decide; give the sites more rows")
    if all(len(rows) == 0 or _units(fed, rows).max() == 0 for rows in fed.clients.train):
        raise DataError("no site has two patients to train on, one of whom could decide; give the sites more patients")
    sites = Sites(replace(experiment, val_fraction=share), setup, fed)
    if not sites.folds:
        raise DataError("no site has training rows of two times, the later of which could decide; give the sites more")
    return sites


def measurable(task: Task, y: torch.Tensor) -> bool:
    """Return true if the headline can be measured with these targets; no model changes that."""
    if task.headline.whole is None or not len(y):
        return len(y) > 0
    outputs = torch.linspace(-1.0, 1.0, len(y) * task.width).reshape(len(y), task.width)
    return not math.isnan(task.whole(task.headline, (outputs, y)))


# ---------------------------------------------------------------- scores
@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of the sites' models on rows of their own.

    Attributes:
        values: The headline of each site; sites without rows, or for which it is not defined, are left out.
        each: Its value for each row, where it is a mean over rows.
        by_row: `Measure.by_row` of each site, where it has that.
        patients: Patient of each of these rows; empty where patients are not known.
        asked: Mean over sites of each metric that `evaluate` asks for, by name; of sites for which it is defined.
        of_one_class: Sites whose model finds rows of one class only, where the headline, accuracy, does not show that.
        tested: The number of each site's rows.
        by_fold: The headline of each site in each fold, of scores of several folds together.
    """

    values: Mapping[ClientId, float]
    each: Mapping[ClientId, Floats]
    by_row: Mapping[ClientId, Floats] = field(default_factory=dict)
    patients: Mapping[ClientId, npt.NDArray[np.int64]] = field(default_factory=dict)
    of_one_class: frozenset[ClientId] = frozenset()
    asked: Mapping[str, float] = field(default_factory=dict)
    tested: Mapping[ClientId, int] = field(default_factory=dict)
    by_fold: Mapping[ClientId, Floats] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """The mean over sites."""
        return statistics.fmean(self.values.values()) if self.values else math.nan


def together(folds: Sequence[Scores]) -> Scores:
    """The scores of several folds as one: rows side by side, or the mean of what is no mean over rows."""
    clients = sorted({c for scores in folds for c in scores.values})
    each = {
        c: np.concatenate([s.each[c] for s in folds if c in s.each]) for c in clients if any(c in s.each for s in folds)
    }
    by_fold = {c: np.array([s.values[c] for s in folds if c in s.values]) for c in clients}
    values = {c: float((each[c] if c in each else by_fold[c]).mean()) for c in clients}
    patients = {
        c: np.concatenate([s.patients[c] for s in folds if c in s.patients])
        for c in each
        if (any(c in s.patients for s in folds))
    }
    return Scores(values, each, patients=patients, by_fold=by_fold)


def difference(a: Scores, b: Scores, measure: Measure) -> tuple[float, float]:
    """Mean over sites of a minus b, above zero where a is better, and its standard error.

    The error is over each site's rows, or patients, where the measure is a mean over rows, otherwise over its folds.
    Its variance is pooled over sites; where each has one fold only, it is over sites.
    """
    sign = 1.0 if measure.higher else -1.0
    both = [c for c in a.values if c in b.values]
    mean = statistics.fmean(sign * (a.values[c] - b.values[c]) for c in both) if both else 0.0
    parts = [by_patient(a.each[c] - b.each[c], a.patients.get(c)) for c in both if c in a.each and c in b.each]
    if len(parts) < len(both):
        parts = [a.by_fold.get(c, np.array([a.values[c]])) - b.by_fold.get(c, np.array([b.values[c]])) for c in both]
    if sum(map(len, parts)) < 2:
        return mean, math.inf
    return mean, math.sqrt(pooled_variance(parts) * sum(1 / len(of) for of in parts)) / len(parts)


def _mean(values: Sequence[float]) -> float:
    """The mean of those that are defined; NaN without any."""
    known = [value for value in values if not math.isnan(value)]
    return statistics.fmean(known) if known else math.nan


# ---------------------------------------------------------------- training
@dataclass(eq=False)
class Training:
    """A method under one seed, some rounds on.

    Attributes:
        method: The method.
        sites: The sites.
        rounds: Rounds it may take.
        seed: Seed of everything that is drawn.
        fed: Division it trains on, one of `Sites.folds`, or `Sites.fed`; nothing trains on its validation rows.
        megabytes: What it may send, 10^6 bytes; None is no limit.
        enough: What it has sent when it stops, 10^6 bytes, as a run by `stop.megabytes`; None is never.
        at: Rounds done.
        sent: Bytes sent so far.
        transfers, work: Messages and local training, as `unskew.pricing` takes them.
        ended: Reason why it goes no further, before its last round; empty if there is none.
    """

    method: Method
    sites: Sites
    rounds: int
    seed: int
    fed: FederatedData
    megabytes: float | None = None
    enough: float | None = None
    at: int = 0
    sent: int = 0
    transfers: list[Transfer] = field(default_factory=list)
    work: list[Effort] = field(default_factory=list)
    ended: str = ""

    def __post_init__(self) -> None:
        sites = self.sites
        parts = self.fed.clients
        # Pooled data would have the validation rows among them.
        fed = _with(self.fed, ClientIndices(parts.train, _none(parts.val), parts.test))
        run_setup.check_method(sites.experiment, self.method, sites.setup, {self.seed: fed})
        self.sim: Simulator[Any]
        self.sim, train = run_setup.simulator(sites.experiment, self.method, sites.setup, fed, self.seed)
        self.pooled = train is not fed
        self.state: Any = self.sim.start()

    def go_on(self, rounds: int) -> None:
        """Train up to a round, or to its own end.

        Raises:
            DivergedError: If it diverged.
            OutOfTime: If there was no time to get there.
            QuorumError: If none of its first rounds had enough replies.
        """
        while self.at < min(rounds, self.rounds) and not self.ended:
            per_round = self.sent / self.at if self.at else 0.0
            if self.megabytes is not None and self.sent + per_round > self.megabytes * 1e6:
                self.ended = f"{self.sent / 1e6:.2f} of {self.megabytes:g} MB were sent after round {self.at}"
                break
            if self.enough is not None and self.sent >= self.enough * 1e6:
                self.ended = f"{self.sent / 1e6:.2f} >= {self.enough:g} MB were sent after round {self.at}"
                break
            self.sites.clock.count()
            self.state, trace = self.sim.attempt(self.state, self.at + 1, self.at + 1 == self.rounds)
            self.at += 1
            if not self.pooled:  # what pooling sends is not part of a method's cost
                self.transfers += trace.transfers
                self.work += trace.work
                self.sent += sum(t.bytes for t in trace.transfers)
            if any(not math.isfinite(loss) for _, loss in trace.losses):
                raise DivergedError(f"its training loss is not finite in round {self.at}")

    @property
    def within(self) -> bool:
        """True if it sent no more than it may."""
        return self.megabytes is None or self.sent <= self.megabytes * 1e6

    def scores(self, rows: Ragged) -> Scores:
        """Evaluate the sites' models, as they are now, on rows of each."""
        task, clients = self.sites.setup.task, [int(c) for c in np.flatnonzero(rows.sizes)]
        models = own_models(self.sim, self.state, self.at, clients)
        jobs = {c: EvalJob(models[c], "train", rows[c].to(self.sites.setup.device)) for c in clients if c in models}
        measured = dict(zip(jobs, self.sim.executor.evaluate(list(jobs.values())), strict=True))
        every = {c: task.values(columns) for c, columns in measured.items()}
        values = {c: of[0] for c, of in every.items()}
        headline = self.sites.measure
        each = {c: columns[0].double().cpu().numpy() for c, columns in measured.items()} if headline.of_rows else {}
        if any(math.isinf(v) or (math.isnan(v) and headline.each is not None) for v in values.values()):
            raise DivergedError(f"its {headline.label} is not finite after round {self.at}")
        patients = self.fed.dataset.patients
        by_row = {c: headline.rows_of(*columns[-2:]) for c, columns in measured.items() if headline.by_row is not None}
        if patients is not None:  # a class of one patient's many rows says as little as one row
            labels, event = self.fed.dataset.labels, 1 if headline.of_events else None
            by_row = {
                c: of
                for c, of in by_row.items()
                if fewest_of_a_class(patients[rows[c]], labels[rows[c]], event) >= FEWEST
            }
        return Scores(
            {c: v for c, v in values.items() if not math.isnan(v)},
            each,
            {c: rows for c, rows in by_row.items() if rows is not None},
            {} if patients is None else {c: patients[rows[c]].numpy() for c in values},
            frozenset(self._of_one_class(measured, rows)) if headline.name == "accuracy" else frozenset(),
            {m.name: _mean([of[i] for of in every.values()]) for i, m in enumerate(task.measures) if i >= ASKED},
            {c: len(rows[c]) for c in values},
        )

    def _of_one_class(self, measured: Mapping[ClientId, Columns], rows: Ragged) -> Iterator[ClientId]:
        """Sites whose model finds only one of the classes of these rows."""
        task, y = self.sites.setup.task, self.fed.dataset.y_train
        if task.kind.correct is not None:
            for c, columns in measured.items():
                if only_class_found(right(task, columns), y[rows[c]]) is not None:
                    yield c
