"""Trains methods on the sites, as cells of the runner."""

import hashlib
import json
import math
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter

from unskew.data.federated import ClientIndices, FederatedData
from unskew.data.manifest import Ragged
from unskew.decide.cells import CellWork, Outcome, Plan, QueuedCell
from unskew.decide.forecast.measure import threads
from unskew.decide.scores import Scores
from unskew.decide.sites import Sites, divided_as
from unskew.errors import ConfigError, DataError, DivergedError, ProtocolError, QuorumError
from unskew.experiment import config
from unskew.experiment.config import NamedMethod
from unskew.info import ClientGroups
from unskew.local.executor import EvalJob
from unskew.protocol import ClientId, report_of
from unskew.record.logs import ADAPTED, SERVED
from unskew.run import setup as run_setup
from unskew.run.evaluation import own_models
from unskew.run.final import by_row
from unskew.run.unseen import UnseenClients
from unskew.runtime.in_process import Simulator

MOST_HELD = 50_000_000
"""Numbers in models of trainings that go on side by side up to which several are in memory."""

ASKED = 2
"""Place from which on a task's measures are those that `evaluate` asks for: headline and loss come first."""

Impossible = (ConfigError, DataError, DivergedError, ProtocolError, QuorumError)
Groups = tuple[tuple[ClientId, ...], ...]


def _mean(values: Sequence[float]) -> float:
    """The mean of those that are defined; NaN without any."""
    known = [value for value in values if not math.isnan(value)]
    return statistics.fmean(known) if known else math.nan


@dataclass(eq=False)
class Training:
    """A method under one seed, after some rounds.

    Attributes:
        method: The method.
        sites: The sites.
        rounds: Most rounds.
        seed: Root of all draws.
        fed: The division, one of `Sites.folds`, or `Sites.fed`; validation rows are not trained on.
        megabytes: Most it may send, 10^6 bytes; None for no limit.
        enough: Traffic at which it stops, 10^6 bytes, like `stop.megabytes`; None for never.
        at, begun: Rounds done, and begun.
        sent, up: Bytes sent so far, in all and by sites.
        ended: True if it ended before its last round.
    """

    method: NamedMethod
    sites: Sites
    rounds: int
    seed: int
    fed: FederatedData
    megabytes: float | None = None
    enough: float | None = None
    at: int = 0
    begun: int = 0
    sent: int = 0
    up: int = 0
    ended: bool = False

    def __post_init__(self) -> None:
        sites = self.sites
        parts = self.fed.clients
        nobody = Ragged(parts.val.values[:0], np.zeros(len(parts.val), np.int64))
        # Pooled data would have the validation rows among them.
        fed = divided_as(self.fed, ClientIndices(parts.train, nobody, parts.test))
        run = run_setup.PreparedRun(sites.experiment, sites.setup, {self.seed: fed})
        run_setup.check_method(run, self.method)
        self.sim: Simulator[Any]
        self.sim, train = run_setup.simulator(run, self.method, self.seed)
        self.pooled = train is not fed
        self.state: Any = self.sim.start()

    def go_on(self, rounds: int) -> None:
        """Train up to a round, or to its own end.

        Raises:
            DivergedError: If it diverged.
            RunError: If time ended first.
            QuorumError: If none of its first rounds had enough replies.
        """
        while self.at < min(rounds, self.rounds) and not self.ended:
            per_round = self.sent / self.at if self.at else 0.0
            too_much = self.megabytes is not None and self.sent + per_round > self.megabytes * 1e6
            if too_much or (self.enough is not None and self.sent >= self.enough * 1e6):
                self.ended = True
                break
            self.sites.clock.require_time()
            self.begun += 1
            self.state, trace = self.sim.attempt(self.state, self.at + 1, self.at + 1 == self.rounds)
            self.at += 1
            if not self.pooled:  # what pooling sends is not part of a method's cost
                self.sent += sum(t.bytes for t in trace.transfers)
                self.up += sum(t.bytes for t in trace.transfers if t.direction == "up")
            if any(not math.isfinite(loss) for _, loss in trace.losses):
                raise DivergedError(f"its training loss is not finite in round {self.at}")

    @property
    def within(self) -> bool:
        """True if it kept to its limit of traffic."""
        return self.megabytes is None or self.sent <= self.megabytes * 1e6

    def scores(self, rows: Ragged) -> Scores:
        """Scores of the sites' present models on rows of each."""
        task, clients = self.sites.setup.task, [int(c) for c in np.flatnonzero(rows.sizes)]
        models = own_models(self.sim, self.state, self.at, clients)
        jobs = {c: EvalJob(models[c], "train", rows[c].to(self.sites.setup.device), c) for c in clients if c in models}
        measured = dict(zip(jobs, self.sim.executor.evaluate(list(jobs.values())), strict=True))
        every = {c: task.values(columns) for c, columns in measured.items()}
        values = {c: of[0] for c, of in every.items()}
        headline = self.sites.measure
        if any(math.isinf(v) or (math.isnan(v) and headline.each is not None) for v in values.values()):
            raise DivergedError(f"its {headline.label} is not finite after round {self.at}")
        return Scores(
            {c: v for c, v in values.items() if not math.isnan(v)},
            by_row(measured, rows, self.fed.dataset, headline).by_client,
            self.fed.dataset.patients is not None,
            {m.name: _mean([of[i] for of in every.values()]) for i, m in enumerate(task.measures) if i >= ASKED},
            {c: len(rows[c]) for c in values},
        )

    @property
    def groups(self) -> Groups:
        """The groups of the last round, if the method reports them."""
        for part in report_of(self.sim.method, self.state):
            if isinstance(part, ClientGroups):
                return tuple(tuple(g) for g in part.groups if g)
        return ()

    def unseen(self) -> dict[int, tuple[float, float]]:
        """The headline of unseen clients before and after adapting, by their index."""
        fed, epochs = self.fed, self.sites.experiment.unseen.adapt_epochs
        if fed.unseen is None:
            return {}
        came = UnseenClients(self.sim, self.sites.setup.task, fed, self.seed, epochs)
        by_part = came.scores(self.state, self.at)
        served, adapted = (
            dict(zip(scores.clients.tolist(), scores.values[:, 0].tolist(), strict=True))
            for scores in (by_part[part] for part in (SERVED, ADAPTED))
        )
        both = (c for c in served if c in adapted and not math.isnan(served[c] + adapted[c]))
        return {c - fed.num_clients: (served[c], adapted[c]) for c in both}


# ---------------------------------------------------------------- cells
@dataclass(frozen=True)
class TrainingJob:
    """A training to be done.

    Attributes:
        method, seed, rounds, megabytes, enough: As in `Training`.
        until: Round up to which to train now.
        fold: The fold whose rows judge it; None trains on all, judged by test rows.
    """

    method: NamedMethod
    seed: int
    rounds: int
    until: int
    fold: int | None = None
    megabytes: float | None = None
    enough: float | None = None

    def cell(self) -> QueuedCell:
        """Its cell; cells that differ only in `until` continue each other."""
        table = {**vars(self), "method": as_json(self.method)}
        home = hashlib.sha256(json.dumps({**table, "until": None}, sort_keys=True).encode())
        return QueuedCell({"do": "score", **table}, home.hexdigest())


@dataclass(frozen=True, eq=False)
class Trained:
    """The outcome of a training.

    Attributes:
        at, begun: Rounds done, and begun.
        sent, up: Bytes sent, in all and by sites.
        seconds: Time of this part of it.
        within: True if it kept to its limit of traffic.
        ended: True if it ended before its last round.
        why: Why it could not be trained; empty if it could.
        scores: Its scores; None if it could not be trained.
        groups: Groups of the last round, as the method reports them.
        unseen: Results of unseen clients, (before, after adapting), at its end.
    """

    at: int
    begun: int
    sent: int = 0
    up: int = 0
    within: bool = True
    ended: bool = False
    why: str = ""
    scores: Scores | None = None
    groups: Groups = ()
    unseen: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    seconds: float = 0.0


_TRAINED = TypeAdapter(Trained)


def trained(sites: Sites, jobs: Sequence[TrainingJob]) -> Plan[list[Trained]]:
    """Part of a plan: do these trainings."""
    cells = [job.cell() for job in jobs]
    results = [_TRAINED.validate_python(outcome) for outcome in (yield cells)]
    for cell, result in zip(cells, results, strict=True):
        sites.clock.counted[cell.home] = result.begun
    return results


def under_seeds(sites: Sites, jobs: Mapping[str, TrainingJob], seeds: Sequence[int]) -> Plan[dict[str, list[Trained]]]:
    """Part of a plan: do each training under every seed."""
    results = yield from trained(sites, [replace(job, seed=seed) for job in jobs.values() for seed in seeds])
    return {label: results[i * len(seeds) : (i + 1) * len(seeds)] for i, label in enumerate(jobs)}


def scores_of(trainings: Sequence[Trained]) -> tuple[Scores, ...] | None:
    """The scores of these trainings; None if one of them failed."""
    known = tuple(one.scores for one in trainings if one.scores is not None)
    return known if len(known) == len(trainings) else None


def as_json(method: NamedMethod) -> list[Any]:
    """A method as JSON, for a cell."""
    return [method.name, dict(method.options), method.label]


@dataclass(eq=False)
class TrainingWork(CellWork):
    """The work of a cell: train; trainings are kept by the home of their cells.

    Attributes:
        sites: The sites.
        threads: PyTorch threads of each, by default those of this process; sums depend on them.
    """

    sites: Sites
    threads: int = field(default_factory=torch.get_num_threads)
    trainings: dict[str, Training] = field(default_factory=dict)

    def keep(self, homes: Collection[str]) -> None:
        """Drop other trainings."""
        self.trainings = {home: training for home, training in self.trainings.items() if home in homes}

    def train(self, asked: Mapping[str, Any]) -> Outcome:
        """Train up to a round and score."""
        began = time.monotonic()
        with threads(self.threads):
            outcome = self.score(TrainingJob(**{k: v for k, v in asked.items() if k != "do"}))
        return {**_TRAINED.dump_python(outcome, mode="json"), "seconds": time.monotonic() - began}

    def method(self, table: Sequence[Any]) -> NamedMethod:
        """The method of a cell: the experiment's, which may be a value, or one by name."""
        name, options, label = table
        own = (m for m in self.sites.experiment.methods if (m.name, m.options) == (name, options))
        return next((replace(m, label=label) for m in own), None) or config.method(name, options, label)

    def score(self, asked: TrainingJob) -> Trained:
        """Train up to a round and score."""
        job = replace(asked, method=self.method(asked.method))  # type: ignore[arg-type]
        home = job.cell().home
        began: Training | None = self.trainings.pop(home, None)
        try:
            training = began = began or self.begin(job)
            training.go_on(job.until)
            groups, parts = training.groups, training.fed.clients
            rows = parts.test if job.fold is None else parts.val
            scores = training.scores(rows)
            last = training.fed.unseen is not None and job.fold is None and job.until == job.rounds
            unseen = training.unseen() if last else {}
        except Impossible as error:
            at, begun = (0, 0) if began is None else (began.at, began.begun)
            return Trained(at, begun, why=str(error))
        if job.until < job.rounds:  # else nothing goes on from it
            self.trainings[home] = training
        done = (training.at, training.begun, training.sent, training.up, training.within, training.ended)
        return Trained(*done, "", scores, groups, unseen)

    def begin(self, job: TrainingJob) -> Training:
        """A training at its start."""
        fed = self.sites.fed if job.fold is None else self.sites.folds[job.fold]
        return Training(job.method, self.sites, job.rounds, job.seed, fed, job.megabytes, job.enough)
