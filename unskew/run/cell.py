"""A run in progress, its current cell (a method under a seed), and the observers that watch them.

An observer has three hooks; a plain function is called after every round.
"""

import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from unskew import wire
from unskew.errors import ConfigError
from unskew.info import AbandonedRound, Info
from unskew.local.executor import Columns
from unskew.protocol import ClientId, hook
from unskew.record.database import Database
from unskew.record.logs import DivergedRow
from unskew.run import checkpoint
from unskew.run import setup as run_setup
from unskew.run.checkpoint import BEGINNING
from unskew.run.evaluation import OwnModels, eval_set, on_own_rows
from unskew.run.folder import document_hashes
from unskew.run.metrics import Metric
from unskew.run.setup import Backend, PreparedRun
from unskew.runtime.memory import Memory
from unskew.runtime.round import Driver

SAVE_AFTER_S = 10.0
SAVE_SHARE = 0.05
"""Most of a run's time that checkpoints take: where clients' memories are gigabytes, one takes seconds."""


# ---------------------------------------------------------------- who watches
@dataclass(frozen=True, eq=False)
class Evaluation:
    """An evaluation of a cell.

    Attributes:
        state, round: The state that was evaluated, and its round.
        last: True if no round follows.
        metrics: What has been measured so far; observers add to it.
        own: The own models of the evaluated clients, after the last round of a simulation.
        all_own: True if these are all clients.
        cell: The cell.
    """

    state: Any
    round: int
    last: bool
    metrics: list[Metric]
    own: OwnModels | None
    all_own: bool
    cell: "Cell"

    @functools.cached_property
    def on_own_rows(self) -> dict[ClientId, Columns]:
        """Results on each client's test rows under its own model; clients without rows are left out."""
        return dict(on_own_rows(self.cell.sim, self.own or {}, self.cell.eval_set.test))


class Observer:
    """Watches the cells of a run, one after the other; the base class does nothing."""

    def start(self, cell: "Cell") -> None:
        """Called before the first round of a cell; in a resumed run, before the next round."""

    def evaluated(self, cell: "Cell", seen: Evaluation) -> Iterable[Metric | Info]:
        """Called after every evaluation; returns metrics and reports to add to the record of the round."""
        return ()

    def ended_round(self, cell: "Cell") -> None:
        """Called after every round, once it is recorded in `cell.metrics`."""

    def note(self, text: str) -> None:
        """Called with a line to show; only for the `callback` of the run."""


class Several(Observer):
    """Observers called one after the other; a function is called with the cell after every round.

    Raises:
        ConfigError: If one is neither an observer nor a function.
    """

    def __init__(self, *observers: Observer | Callable[["Cell"], object]) -> None:
        self.all = tuple(of if isinstance(of, Observer) else _hears(of) for of in observers)

    def start(self, cell: "Cell") -> None:
        """Call every `start`."""
        for observer in self.all:
            observer.start(cell)

    def evaluated(self, cell: "Cell", seen: Evaluation) -> Iterable[Metric | Info]:
        """Call every `evaluated`; each one sees what the ones before have added."""
        return itertools.chain.from_iterable(observer.evaluated(cell, seen) for observer in self.all)

    def ended_round(self, cell: "Cell") -> None:
        """Call every `ended_round`."""
        for observer in self.all:
            observer.ended_round(cell)

    def note(self, text: str) -> None:
        """Call every `note`."""
        for observer in self.all:
            observer.note(text)


def _hears(function: Callable[["Cell"], object]) -> Observer:
    """The observer with this third hook."""
    if not callable(function):
        raise ConfigError(f"callback must be a function of a run in progress, or an Observer, got {function!r:.80}")
    observer = Observer()
    observer.ended_round = function  # type: ignore[method-assign, assignment]
    return observer


# ---------------------------------------------------------------- what is watched
@dataclass(eq=False)
class LiveRun(PreparedRun):
    """A run in progress.

    Attributes:
        folder: The run's folder.
        callback: Observer given by the caller; it also gets notes.
        stop: Set by a request to stop.
        backend: Runs the clients.
        saved: The checkpoint it was resumed from.
        record: Its database.
        position: Cells that are done, for the next checkpoint.
        diverged: Cells that diverged.
        begun: Start of the run on the monotonic clock, without its pauses, s.
        noted: Notes already shown.
    """

    folder: Path
    callback: Observer
    stop: threading.Event
    backend: Backend
    saved: checkpoint.Position | None = None
    noted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.cells = run_setup.cells(self.experiment)
        self.position = replace(self.saved or BEGINNING, documents=document_hashes(self.folder))
        self.begun = time.monotonic() - self.position.seconds
        self.record = Database(self.folder, self.position.marks)
        self.diverged = cast("list[DivergedRow]", list(self.record.select("diverged")))

    def seconds(self) -> float:
        """Wall-clock time of the run so far."""
        return time.monotonic() - self.begun

    def save(self, files: Mapping[str, checkpoint.Pieces], **changes: Any) -> None:
        """Save a checkpoint: the files of the state, and `changes` to the position."""
        position = replace(self.position, seconds=self.seconds(), **changes)
        self.position = checkpoint.save(self.folder, files, position, self.record)

    def note_once(self, text: str, about: str = "") -> None:
        """Show a note that holds for all cells, only once; `about` identifies it if its text varies."""
        if (about or text) not in self.noted:
            self.noted.add(about or text)
            self.callback.note(text)


class Cell:
    """One method under one seed.

    Attributes:
        index, seed, method: Its place in the run, its seed and its method.
        sim: Runs the method's rounds.
        pooled: True if it trains one client on all data.
        eval_set: What clients' own models are tested on.
        state, round: The state after the last finished round, and that round.
        at: The round in progress.
        seconds, bytes: Totals over its rounds.
        metrics: Every number of the last round, without those of single clients.
        clients_per_second: Client trainings per second in that round.
        save_at: When the next checkpoint is due.
        warned: Notes already shown.
    """

    def __init__(self, run: LiveRun, index: int) -> None:
        self.run, self.index = run, index
        self.seed, self.method = run.cells[index]
        self.experiment, self.setup, self.fed = run.experiment, run.setup, run.feds[self.seed]
        self.sim: Driver[Any]
        self.sim, train = run.backend.runtime(run, index)
        elsewhere = self.sim.clients.remote and self.experiment.val_fraction > 0.0
        self.eval_set = eval_set(self.setup.task, self.fed, self.setup.device, validates=elsewhere)
        self.pooled = train is not self.fed
        self.state: Any = None
        self.round = self.at = self.bytes = 0
        self.seconds = self.clients_per_second = 0.0
        self.metrics: dict[str, float] = {}
        self.warned: set[str] = set()

    @property
    def name(self) -> str:
        """METHOD/SEED."""
        return f"{self.method.label}/{self.seed}"

    @property
    def where(self) -> dict[str, Any]:
        """The columns that identify the cell in a row."""
        return {"method": self.method.label, "seed": self.seed}

    def recorded(self, table: str, where: str = "1", *values: object) -> Iterator[dict[str, Any]]:
        """Its rows of a table, in the order written, as from `database.select`."""
        here = f"method = ? AND seed = ? AND ({where})"
        return self.run.record.select(table, here, self.method.label, self.seed, *values)

    def restore(self) -> None:
        """Load the run's checkpoint, if it belongs to this cell."""
        position, sim = self.run.saved, self.sim
        self.save_at = time.monotonic() + SAVE_AFTER_S
        if position is None or position.cell != self.index or not position.round:
            return
        types = wire.state_type(self.method.method), sim.clients.memory_type
        self.state, memory = checkpoint.load(self.run.folder, position, *types, self.setup.device)
        sim.memory = Memory(position.round, memory)
        self.round = self.at = position.round
        self.seconds, self.bytes = position.cell_seconds, position.cell_bytes
        if not sim.clients.remote:  # a server that was started again has as many tries as before
            lost = {row["round"] for row in self.recorded("info", "type = ?", AbandonedRound.__name__)}
            sim.abandoned_last = next(n for n in itertools.count() if self.round - n not in lost)

    def is_due(self) -> bool:
        """True if a checkpoint is due after this round; at the end of a cell one is always saved."""
        every = self.experiment.runtime.checkpoint_every
        if self.round >= self.experiment.rounds:
            return False
        if self.sim.clients.remote and hook(self.sim.method, "binding") is not None:
            return True  # clients may do no finished round again
        return self.round % every == 0 if every else time.monotonic() >= self.save_at

    def save(self) -> None:
        """Save a checkpoint at this round."""
        began, memory = time.monotonic(), self.sim.memory.at(self.round)
        self.run.save(
            checkpoint.encode_state(self.state, memory),
            cell=self.index,
            round=self.round,
            cell_seconds=self.seconds,
            cell_bytes=self.bytes,
            same=checkpoint.same_tensors(self.state, memory),
        )
        ended = time.monotonic()
        self.save_at = ended + max(SAVE_AFTER_S, (ended - began) * (1.0 / SAVE_SHARE - 1.0))
