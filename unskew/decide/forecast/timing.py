"""Seconds that a run will take: a few real local steps and one real evaluation, timed, and multiplied by how often the
dry run saw them asked for.
"""

import dataclasses
import time
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from unskew.decide.forecast import prior_trial
from unskew.decide.forecast.counts import CodeTiming, DryRun, JobKind, RoundRequests
from unskew.decide.forecast.dry_run import PreparedMethod
from unskew.decide.forecast.measure import affine
from unskew.decide.forecast.memory import model_bytes
from unskew.decide.forecast.mock_executor import prior_of
from unskew.errors import DivergedError, UnskewError
from unskew.keys import Key
from unskew.local.data import steps_of_job
from unskew.local.trainer import LocalTrainer
from unskew.protocol import Sgd, SgdConfig
from unskew.run.setup import Setup

COPY_BYTES_PER_S = 2e9


class Timer:
    """Times jobs, once per kind, and adds up what rounds will take.

    Args:
        setup: Network, data and executor.
        workers: Processes that train.
        budget_s: Seconds to spend in all.
        patient: True to time a step even if it takes longer than the budget by itself.
        methods: Number of methods that share the budget.
    """

    def __init__(self, setup: Setup, workers: int, budget_s: float, patient: bool, methods: int) -> None:
        self._setup, self._patient = setup, patient
        self._each = budget_s / max(methods, 1)
        self._budget = budget_s
        self._curves: dict[tuple[JobKind, bool], list[tuple[int, float]]] = {}
        self._timings: dict[JobKind, CodeTiming] = {}
        self._lines: dict[JobKind, tuple[float, float]] = {}
        self._refused: set[JobKind] = set()  # a note says why there is no time of these
        self.evaluation: tuple[float, float] | None = None
        self.workers = workers
        self.notes: list[str] = []

    def time(self, prepared: PreparedMethod, observed: DryRun) -> None:
        """Time the kinds of jobs of one method that no method before it had."""
        self._timings.update(observed.timings)
        threads = torch.get_num_threads()
        if self._setup.executor_kind.processes:
            torch.set_num_threads(1)  # as in a worker
        try:
            if self.evaluation is None:
                self.evaluation = evaluation_seconds(prepared.trainer, prepared.population.initial, self._budget)
            fresh = [(k, job) for k, job in observed.sample_jobs.items() if (k, prepared.pooled) not in self._curves]
            largest = _most_asked(observed)
            asked = [(k, n) for k, n in largest.items() if k not in self._lines]
            usual = {kind for b in observed.rounds[:2] for kind, _ in (*b.jobs, *b.server_jobs)}
            until = time.monotonic() + self._budget
            for kind, job in fresh:
                if kind not in usual and time.monotonic() > until:
                    continue  # each round may have a kind of its own
                self._time(prepared, kind, job, self._each / (len(fresh) + len(asked)))
            for kind, n in asked:
                self._time_prior(prepared, kind, n, self._each / (len(fresh) + len(asked)))
        finally:
            torch.set_num_threads(threads)

    def _time(self, prepared: PreparedMethod, kind: JobKind, job: Sgd, budget_s: float) -> None:
        sizes = prepared.population.histograms.sum(1)
        order = sizes.argsort(stable=True)
        chosen = list(dict.fromkeys(int(order[i]) for i in (0, len(order) // 2, len(order) - 1)))
        if not self._patient and (expected := self._step_s(job.config, int(sizes[order[-1]]))) > self._budget:
            self.notes.append(
                f"no time is predicted: one local step alone takes about {expected:.1f} s; unskew plan takes that time"
            )
            self._refused.add(kind)
            return
        try:
            if job.examples is None:
                points = [(int(sizes[c]), time_job(prepared, c, job, budget_s / len(chosen))) for c in chosen]
            else:  # the same for any client
                points = [(len(job.examples.rows), time_job(prepared, chosen[0], job, budget_s))]
        except DivergedError as error:
            self.notes.append(f"{prepared.method.label}: no time is predicted, its first steps diverge: {error}")
            self._refused.add(kind)
            return
        # Clients of equal size are one point; interpolation wants them ascending.
        self._curves[kind, prepared.pooled] = sorted(dict(points).items())

    def _time_prior(self, prepared: PreparedMethod, kind: JobKind, n: int, budget_s: float) -> None:
        asked = kind[1]
        try:
            real, x = prior_of(prepared.trainer, asked.source), prepared.trainer.device_data.x[:8]
            if not self._patient and (one := prior_trial.seconds_per_image(real)) > budget_s:
                self.notes.append(
                    f"no time is predicted: the prior {asked.source} takes {one:.1f} s for a single image; unskew plan "
                    "takes the time to try more"
                )
                self._refused.add(kind)
                return
            self._lines[kind] = prior_trial.seconds_of(asked, real, x, n, budget_s)
        except UnskewError as error:
            self.notes.append(f"{prepared.method.label}: no time is predicted, its prior refuses the data: {error}")
            self._refused.add(kind)

    def _step_s(self, config: SgdConfig, n: int) -> float:
        """Estimate the seconds of a step from those of evaluation: forward, and backward at twice that."""
        assert self.evaluation is not None
        first, per_example = self.evaluation
        return 3 * (first + per_example * min(config.batch_size or n, n))

    def tried(self, kind: JobKind) -> bool:
        """True if a prior was asked for this and could be timed."""
        return kind in self._lines

    def knows(self, label: str, rounds: Iterable[RoundRequests]) -> bool:
        """True if every job in these rounds of a method was timed; a note says why not."""
        timed = {kind for kind, _ in self._curves} | self._timings.keys() | self._lines.keys()
        untimed = {kind for b in rounds for kind, *_ in (*b.jobs, *b.server_jobs, *b.prior_calls)} - timed
        if untimed - self._refused:
            self.notes.append(f"{label}: no time is predicted, later rounds ask for work that there was no time to try")
        return not untimed

    def jobs(self, requests: RoundRequests, pooled: bool) -> float:
        """Seconds of all jobs of a round, spread over the workers; the longest is the least it takes.

        Equal images are made once in a process.
        """
        jobs = [(self._seconds(kind, n, pooled), times) for (kind, n), times in requests.jobs.items()]
        for (kind, n, same, at_server), times in requests.prior_calls.items():
            if not at_server:
                jobs.append((self._seconds(kind, n, pooled), times if same is None else min(times, self.workers)))
        total = sum(s * times for s, times in jobs)
        return max(total / self.workers, max((s for s, _ in jobs), default=0.0))

    def server_work(self, requests: RoundRequests) -> float:
        """Seconds of the server's own local work in a round."""
        seconds = sum(self._seconds(kind, n, False) * times for (kind, n), times in requests.server_jobs.items())
        by_clients = {same for _, _, same, at_server in requests.prior_calls if not at_server and same is not None}
        for (kind, n, same, at_server), times in requests.prior_calls.items():
            already_made = same in by_clients and not self._setup.executor_kind.processes  # in this process
            if at_server and not already_made:
                seconds += self._seconds(kind, n, False) * (times if same is None else 1)
        return seconds

    def evaluations(self, requests: RoundRequests) -> float:
        """Seconds of evaluating the models of one evaluation."""
        first, per_example = self.evaluation or (0.0, 0.0)
        return sum(first + per_example * n for n in requests.eval_sizes) / self.workers

    def handover(self, requests: RoundRequests) -> float:
        """Seconds the main process spends on giving jobs to workers."""
        kind = self._setup.executor_kind
        if not kind.processes:
            return 0.0
        return sum(requests.jobs.values()) * (kind.handover_s + 4 * model_bytes(self._setup) / COPY_BYTES_PER_S)

    def _seconds(self, kind: JobKind, n: int, pooled: bool) -> float:
        if kind in self._timings:
            return self._timings[kind].seconds_for(n)
        if kind in self._lines:
            first, more = self._lines[kind]
            return first + more * (n - 1) if n else 0.0
        curve = self._curves.get((kind, pooled), self._curves.get((kind, not pooled)))
        if curve is None:
            return 0.0
        if kind[0] == "sgd given":  # of one size
            ((size, seconds),), config = curve, kind[1]
            return seconds if config.steps else seconds * n / size
        return float(np.interp(n, [m for m, _ in curve], [s for _, s in curve]))


def time_job(prepared: PreparedMethod, client: int, job: Sgd, budget_s: float) -> float:
    """Seconds of an optimisation on a client's data, extrapolated from a few steps if all would take too long.

    Raises:
        DivergedError: If the loss of these steps is not finite.
    """
    trainer = prepared.trainer
    me = prepared.population.me(client, 1, Key(prepared.seed) / "timing" / client)
    steps = steps_of_job(job.config, me.n if job.examples is None else len(job.examples.rows), trainer.task.min_batch)

    def once(k: int) -> float:
        config = job.config if k >= steps else dataclasses.replace(job.config, local_epochs=None, local_steps=k)
        began = time.perf_counter()
        trainer.fit(me, dataclasses.replace(job, config=config), me.key)
        return time.perf_counter() - began

    once(1)  # the first builds the workspace and wakes the library
    one = once(1)
    if one * steps <= budget_s:
        began, seconds = time.perf_counter(), [once(steps)]
        while len(seconds) < 3 and time.perf_counter() - began + seconds[0] <= budget_s:
            seconds.append(once(steps))
        return float(np.median(seconds))
    some = min(int(budget_s / one), steps)
    return one * steps if some < 2 else one + (steps - 1) * max(once(some) - one, 0.0) / (some - 1)


def _most_asked(observed: DryRun) -> dict[JobKind, int]:
    """The most that a prior was asked for at once, by kind."""
    most: dict[JobKind, int] = {}
    for requests in observed.rounds:
        for kind, n, _, _ in requests.prior_calls:
            most[kind] = max(most.get(kind, 1), n)
    return most


def evaluation_seconds(trainer: LocalTrainer, params: Mapping[str, Tensor], budget_s: float) -> tuple[float, float]:
    """(seconds per model, seconds per example) of evaluation, from as large a part of a chunk as the budget allows."""

    def once(n: int) -> None:
        trainer.evaluate(dict(params), "test", torch.arange(n, device=trainer.device))[0].sum().item()

    return affine(once, min(trainer.size("test"), LocalTrainer.CHUNK), budget_s)
