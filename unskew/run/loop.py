"""The loop of a run: for each cell, for each round, ask the method, evaluate, record, perhaps stop; and resume.

A run is a list of cells, one for each seed and method, seeds outermost, so that methods can be compared early.  Between
two rounds a cell is the method's state, client memory and the round number.  A checkpoint holds these, and a resumed
run ends with the same bits as one that was never stopped.  What watches a run is an observer (`unskew.run.observers`).
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from unskew.errors import DivergedError, RunError, WorkerError
from unskew.experiment.config import Experiment
from unskew.info import Info
from unskew.ledger import totals
from unskew.local.executor import FIRST
from unskew.local.workers.pool import JobPool
from unskew.protocol import ClientId
from unskew.record.logs import CLOCK, VIRTUAL_CLOCK, DivergedRow, require_none_diverged, why_diverged
from unskew.run import attack, checkpoint, documents, failing, more_seeds, recording, trackers
from unskew.run import setup as run_setup
from unskew.run.cell import Cell, Evaluation, LiveRun, Observer
from unskew.run.evaluation import evaluate, evaluated_clients, needs_own_models, own_models
from unskew.run.folder import create, locked, read_json
from unskew.run.metrics import Metric
from unskew.run.notes import UNKEYED_METRICS, notes
from unskew.run.observers import UNKEYED, Observers, unkeyed
from unskew.run.setup import IN_PROCESS, Backend
from unskew.signals import stop_requests
from unskew.tree import check_unchanged, marks


class Interrupted(RunError):
    """The user stopped the run; it can be resumed from its checkpoint."""

    exit_code: ClassVar[int] = 130


@dataclass(frozen=True, eq=False)
class RunResult:
    """A finished run.

    Attributes:
        folder: Its folder.
        summary: The content of summary.json.
    """

    folder: Path
    summary: dict[str, Any]


# ---------------------------------------------------------------- start and resume
def start(
    experiment: Experiment,
    folder: Path,
    callback: Observer | None = None,
    command: str = "",
    backend: Backend = IN_PROCESS,
    stop: threading.Event | None = None,
) -> RunResult:
    """Run an experiment into a new folder.

    A method that diverges under a seed ends there and is named in `diverged` of the summary; over a network the run
    ends.

    Args:
        experiment: The experiment; an impossible one is refused before the folder is made.
        folder: The new folder.
        callback: Watches the run.
        command: Command line, for the record.
        backend: Runs the clients; by default this process.
        stop: Set it to end the run after the round in progress.

    Raises:
        ConfigError, DataError: If the experiment is impossible.
        DivergedError: If every method diverged under every seed.
        RunError: If the folder exists or cannot be written, or (Interrupted) the user stopped the run.
    """
    trackers.check(experiment.track)
    run = run_setup.prepared(experiment, backend)
    create(folder, documents.of_run(folder, run, command))
    with locked(folder):
        callback, stop = callback or Observer(), stop or threading.Event()
        return _Loop(LiveRun(experiment, run.setup, run.feds, folder, callback, stop, backend)).go()


def resume(
    folder: Path,
    callback: Observer | None = None,
    force: bool = False,
    backend: Backend = IN_PROCESS,
    *,
    allow_code: bool = False,
    settings: Sequence[str] = (),
    stop: threading.Event | None = None,
) -> RunResult:
    """Resume a run where it was stopped; the bits are the same if machine and versions are.

    Args:
        folder: The run's folder.
        callback: Watches the run.
        force: Resume although versions, device, threads or executor have changed; the bits may then differ.
        backend: Runs the clients; by default this process.
        allow_code: Import a method or network of your own that the folder names.  Never for a folder from elsewhere
            whose code you would not run.
        settings: Settings of `runtime` for the rest of the run, such as "runtime.workers=8".
        stop: As in `start`.

    Raises:
        ConfigError: If the folder names such code and `allow_code` is not given, or a setting is not of `runtime`.
        DivergedError: As in `start`.
        RunError: If the folder is not a run, was changed, has links in it, or needs another backend.
        EnvironmentChanged: If versions, device, threads or executor have changed.
    """
    documents.require_run(folder, backend, settings)
    with locked(folder):
        if (folder / "summary.json").exists():
            documents.require_same_settings(folder)
            return RunResult(folder, read_json(folder / "summary.json"))
        callback, stop = callback or Observer(), stop or threading.Event()
        return _Loop(documents.reopened(folder, callback, stop, backend, force, allow_code, settings)).go()


# ---------------------------------------------------------------- the run
class _Loop:
    """The loop of one run."""

    def __init__(self, run: LiveRun) -> None:
        self.run = run

    def go(self) -> RunResult:
        """Run the cells that are left, and write the summary."""
        run = self.run
        with self.listening():
            tracked: list[trackers.Tracked] = []
            try:
                # Before anything runs in parallel here: a display has a thread of its own.
                run.pool = self.workers()
                number = next(iter(run.feds.values())).num_clients
                for note in notes(run.experiment, run.setup, number):
                    run.callback.note(note)
                tracked = [trackers.Tracked(run)] if run.experiment.track else []
                self.observers = Observers(run, *tracked)
                for index in range(run.position.cell, len(run.cells)):
                    if decided := more_seeds.decided(run, index):
                        run.callback.note(decided)
                        break
                    self.train(Cell(run, index))
                if len(run.diverged) == len(run.position.done):
                    require_none_diverged(run.diverged)
            finally:
                for tracker in tracked:
                    tracker.close()
                if run.pool is not None:
                    run.pool.close()
                run.record.close()
            return RunResult(run.folder, recording.write_summary(run))

    def train(self, cell: Cell) -> None:
        """Train one method under one seed: round after round, until the last or a reason to stop."""
        run = self.run
        try:
            with failing.named(cell, self.save):
                self.begin(cell)
                while cell.round < cell.experiment.rounds:
                    if reason := self.observers.curve.reached(cell):
                        self.end_early(cell, reason)
                        break
                    if run.stop.is_set():
                        self.save(cell)
                        raise Interrupted(
                            f"stopped by request after round {cell.round} of {cell.method.label}, seed {cell.seed}; "
                            f"{failing.going_on(run)}"
                        )
                    self.one_round(cell)
                    if cell.is_due():
                        self.save(cell)
                self.end(cell)
        except DivergedError as error:
            row = DivergedRow(method=cell.method.label, seed=cell.seed, round=cell.at, reason=str(error))
            if cell.sim.clients.remote:
                require_none_diverged([row])
            self.end_diverged(cell, row)

    def one_round(self, cell: Cell) -> None:
        """Ask the method for the next state, evaluate and record it."""
        began, experiment, t = time.monotonic(), cell.experiment, cell.round + 1
        cell.at, last = t, t == experiment.rounds
        with unkeyed(cell, UNKEYED) as warnings:
            state, trace = cell.sim.attempt(cell.state, t, last)
        given = marks(state, content=True) if t <= FIRST else {}
        cell.clients_per_second = len(trace.work) / max(time.monotonic() - began, 1e-9)
        sent = totals(() if cell.pooled else trace.transfers)
        metrics = [Metric(f"bytes.{direction}", float(n)) for direction, n in sent.items()]
        metrics += [Metric(VIRTUAL_CLOCK, trace.clock)] if trace.clock else []
        reports: list[Info] = []
        if n := sum(k for k, _ in trace.losses):
            metrics.append(Metric("train.loss", sum(k * loss for k, loss in trace.losses) / n, float(n)))
        if last or t % experiment.eval_every == 0:
            with unkeyed(cell, UNKEYED_METRICS) as more:
                measured, reports = self.evaluate(cell, state, t, last)
            metrics += measured
            warnings += more
        spent = time.monotonic() - began
        parts = [*recording.reports(cell, state, warnings, trace.abandoned), *reports]
        if given:
            check_unchanged(given, state, "serve or info", "the state that it is given")
        metrics.append(Metric(CLOCK, spent))
        recording.record(cell, t, metrics, trace, parts)
        # The round is done: everything changes at once, so that a checkpoint can be taken at any moment.
        cell.state, cell.round = state, t
        cell.metrics = {m.name: m.value for m in metrics if m.client is None}
        cell.seconds, cell.bytes = cell.seconds + spent, cell.bytes + sum(sent.values())
        self.observers.ended_round(cell)

    def evaluate(self, cell: Cell, state: Any, t: int, last: bool) -> tuple[list[Metric], list[Info]]:
        """Measure a state; return all metrics, and what observers report."""
        which, clients, own = cell.experiment.evaluate, self.evaluated_clients(cell), None
        if last and not cell.sim.clients.remote and needs_own_models(cell.eval_set, which):
            own = own_models(cell.sim, state, t, clients)
        metrics = evaluate(cell.sim, state, t, cell.eval_set, which, last, own, clients)
        seen = Evaluation(state, t, last, metrics, own, all_own=len(clients) == cell.fed.num_clients, cell=cell)
        reports: list[Info] = []
        for more in self.observers.evaluated(cell, seen):
            metrics.append(more) if isinstance(more, Metric) else reports.append(more)
        return metrics, reports

    def evaluated_clients(self, cell: Cell) -> Sequence[ClientId]:
        """The clients whose own models are evaluated."""
        experiment, number = cell.experiment, cell.fed.num_clients
        clients = evaluated_clients(experiment.evaluate_clients, number, cell.seed)
        return attack.honest(experiment.world.attack, clients, number, cell.seed)

    # ------------------------------------------------------------ beginnings
    @contextmanager
    def listening(self) -> Iterator[None]:
        """Ctrl-C (or SIGTERM, SIGHUP) ends the run after the round in progress; a second one at once."""

        def on_request(times: int) -> None:
            if times > 1:
                raise KeyboardInterrupt
            self.run.stop.set()
            with suppress(Exception):  # the stream may be in use where the signal interrupts
                self.run.callback.note("stopping after this round; press Ctrl-C again to stop at once")

        with stop_requests(on_request):
            try:
                yield
            except KeyboardInterrupt:
                text = f"stopped in the middle of a round; {failing.going_on(self.run)}"
                raise Interrupted(text) from None

    def workers(self) -> JobPool | None:
        """Start the run's worker processes, if its executor has any."""
        run = self.run
        try:
            return run_setup.pool(run, run.callback.note)
        except WorkerError as error:
            raise WorkerError(f"{error}; {failing.going_on(run)}") from error

    def begin(self, cell: Cell) -> None:
        """Go on from the checkpoint if it is of this cell, else from the initial state."""
        cell.restore()
        began = time.monotonic()
        self.observers.start(cell)
        self.run.begun += time.monotonic() - began  # a plan made at the start is no part of the run it predicts
        if not cell.round:
            cell.state = cell.sim.start()
            metrics, reports = self.evaluate(cell, cell.state, 0, last=False)
            recording.record(cell, 0, metrics, parts=reports)

    # ------------------------------------------------------------ ends
    def end_early(self, cell: Cell, reason: str) -> None:
        """Evaluate and report on a cell that ends early as if this round had been its last."""
        run = self.run
        run.position = replace(run.position, stopped={**run.position.stopped, cell.name: reason})
        known = {row["name"] for row in cell.recorded("metrics", "round = ? AND client IS NULL", cell.round)}
        metrics, parts = self.evaluate(cell, cell.state, cell.round, last=True)
        new = [m for m in metrics if m.client is not None or m.name not in known]
        recording.record(cell, cell.round, new, parts=parts)
        self.observers.kept.ended_round(cell)

    def end(self, cell: Cell) -> None:
        """Save the models, note the final state's hash, and move to the start of the next cell."""
        if notes := getattr(cell.sim.executor, "notes", ()):
            self.run.callback.note(f"{cell.method.label}, seed {cell.seed}: {'; '.join(notes)}")
        memory = {c: checkpoint.without_secrets(m) for c, m in cell.sim.memory.at(cell.round).items()}
        done = checkpoint.digest(checkpoint.encode_state(cell.state, memory))
        self.observers.kept.save(cell)
        self.move_on(cell, done)

    def end_diverged(self, cell: Cell, row: DivergedRow) -> None:
        """Note that training diverged, keep its rounds before that, and move to the start of the next cell."""
        run = self.run
        run.diverged.append(row)
        run.callback.note(f"{why_diverged(row)}; its results are left out, and the run goes on")
        run.record.add("diverged", [row])
        self.move_on(cell, f"diverged in round {cell.at}")
        if run.pool is not None and not run.pool.workers:  # closed, since its other answers were not wanted
            run.pool = self.workers()

    def save(self, cell: Cell) -> None:
        """Save a checkpoint at the last finished round; before the first, the end of the previous cell is one."""
        if cell.round:
            cell.save()
            self.observers.kept.drop(cell)

    def move_on(self, cell: Cell, done: str) -> None:
        """Save a checkpoint at the start of the next cell."""
        done_so_far = (*cell.run.position.done, done)
        cell.run.save({}, cell=cell.index + 1, round=0, done=done_so_far, cell_seconds=0.0, cell_bytes=0, same=())
