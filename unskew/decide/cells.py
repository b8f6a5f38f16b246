"""Runs cells: each once, in this process, in several or on a cluster; outcomes are kept.

A *plan* chooses cells and reads their outcomes.  It is a generator: it yields cells, gets their outcomes in that order,
and returns its result.

    def better(methods):
        first = yield [QueuedCell({"method": m, "rounds": 5}) for m in methods]
        best = max(zip(first, methods))[1]
        (last,) = yield [QueuedCell({"method": best, "rounds": 50})]
        return best, last

A plan sees only outcomes, so its result is the same with any number of workers.  An interrupted plan is replayed from
its beginning with the outcomes in the queue.

The queue is a file of SQLite with one writer.  An outcome is on the disk before the plan sees it.
"""

import hashlib
import json
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from unskew.errors import RunError
from unskew.local.workers.pool import exception
from unskew.run.folder import locked
from unskew.run.loop import Interrupted
from unskew.signals import stop_requests

T = TypeVar("T")
Outcome = Any
"""What a cell came to: anything that JSON holds."""


@dataclass(frozen=True, eq=False)
class QueuedCell:
    """A unit of work.

    Attributes:
        asked: Input of the work, as JSON; equal inputs have equal outcomes.
        home: Cells of one home continue each other, and a worker keeps their state; empty for none.
        name: Its identity, if that is less than all of `asked`.
    """

    asked: Mapping[str, Any]
    home: str = ""
    name: str = ""

    @cached_property
    def key(self) -> str:
        """Its name, or a hash of `asked`."""
        return self.name or hashlib.sha256(json.dumps(self.asked, sort_keys=True).encode()).hexdigest()


Plan = Generator[Sequence[QueuedCell], Sequence[Outcome], T]


@dataclass(frozen=True)
class Failure:
    """The outcome of a failed cell, for a lenient plan.

    Attributes:
        kind: Name of the error, one of `unskew.errors`.
        text: Its message.
    """

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class CellWork(ABC):
    """The work on cells; each worker has its own."""

    @abstractmethod
    def train(self, asked: Mapping[str, Any]) -> Outcome:
        """The outcome of a cell."""

    def keep(self, homes: Collection[str]) -> None:  # noqa: B027 - many keep nothing
        """Drop the state of all other homes."""


class Crew(ABC):
    """Workers, each with one cell at a time."""

    count: int
    stops: bool = False
    """True if workers hear of a request to stop, save what they have, and end their cells."""

    @abstractmethod
    def send(self, worker: int, asked: Mapping[str, Any], homes: Collection[str]) -> None:
        """Give a cell to an idle worker."""

    @abstractmethod
    def receive(self) -> tuple[int, Outcome, list[str] | None]:
        """Wait for a worker: its number, and the outcome or a failure (kind, text, trace)."""

    def ask_to_stop(self) -> None:  # noqa: B027
        """Pass on a request to stop."""

    def close(self) -> None:  # noqa: B027
        """End the workers."""


# ---------------------------------------------------------------- the queue
@dataclass(eq=False)
class Queue:
    """The outcomes of cells, in a file or in memory; `queue` opens one to write to.

    Attributes:
        file: The file; None keeps nothing.
        about: What all its cells have in common, such as data and code; other outcomes do not count.
        known: Outcomes by the cell's key.
        failed: Why cells failed the last time.

    Raises:
        RunError: If the file is no queue.
    """

    file: Path | None = None
    about: str = ""
    known: dict[str, Outcome] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.about = hashlib.sha256(self.about.encode()).hexdigest()
        if self.file is None:
            self._db = None
            return
        with self._explained():
            self._db = sqlite3.connect(self.file, isolation_level=None)
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS cells (about TEXT, key TEXT, asked TEXT, outcome TEXT, failed TEXT, "
                "seconds REAL, PRIMARY KEY (about, key))"
            )
            rows = self._db.execute("SELECT key, outcome, failed FROM cells WHERE about = ?", (self.about,))
            for key, outcome, failed in rows.fetchall():
                if failed is None:
                    self.known[key] = json.loads(outcome)
                else:
                    self.failed[key] = str(failed)

    def put(self, cell: QueuedCell, outcome: Outcome, failed: str | None = None, seconds: float = 0.0) -> None:
        """Keep the outcome of a cell, or why it failed (it is then tried again another time)."""
        self.failed.pop(cell.key, None)
        (self.known if failed is None else self.failed)[cell.key] = outcome if failed is None else failed
        if self._db is not None:
            row = (self.about, cell.key, json.dumps(cell.asked), json.dumps(outcome), failed, seconds)
            with self._explained():
                self._db.execute("INSERT OR REPLACE INTO cells VALUES (?, ?, ?, ?, ?, ?)", row)

    def forget(self, cell: QueuedCell) -> None:
        """Forget an outcome, so that the cell runs again."""
        self.known.pop(cell.key, None)

    def close(self) -> None:
        """Close the file."""
        if self._db is not None:
            self._db.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise RunError(f"cannot write {self.file}: {error}; fix it, and give the same command again") from None
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            raise self.damaged(error) from None

    def damaged(self, why: object) -> RunError:
        """The error for a file with invalid content."""
        return RunError(f"{self.file} has no outcomes to go on from ({why}); delete it to begin again")


@contextmanager
def queue(file: Path | None, about: str = "") -> Iterator[Queue]:
    """A queue to write to, for one process at a time.

    Raises:
        RunError: As in `Queue`, or if another process has it.
    """
    with nullcontext() if file is None else locked(file.parent), closing(Queue(file, about)) as opened:
        yield opened


# ---------------------------------------------------------------- the runner
def run(
    plans: Sequence[Plan[T]],
    kept: Queue,
    crew: Crew,
    *,
    lenient: bool = False,
    ended: Callable[[QueuedCell, Outcome], None] = lambda cell, outcome: None,
) -> tuple[T, ...]:
    """Run plans side by side to their ends, and return their results.  Cells of earlier plans go first.

    Args:
        plans: The plans.
        kept: Earlier outcomes; new ones are added.
        crew: The workers.
        lenient: Give a plan a `Failure` for a failed cell; otherwise a failure ends everything.
        ended: Called with each new cell and its outcome.

    Raises:
        RunError: If the queue cannot be written, or (Interrupted) the user asked to stop.
        UnskewError: The error of a failed cell.
    """
    return _Play(plans, kept, crew, lenient, ended).go()


@dataclass(eq=False)
class _Play:
    """Plans in progress; `batches` are the cells that each waits for, `homes` says which worker has what of a home."""

    plans: Sequence[Plan[Any]]
    kept: Queue
    crew: Crew
    lenient: bool
    ended: Callable[[QueuedCell, Outcome], None]
    batches: dict[int, Sequence[QueuedCell]] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    homes: dict[str, int] = field(default_factory=dict)
    running: dict[int, tuple[QueuedCell, float]] = field(default_factory=dict)
    stops: int = 0

    def go(self) -> tuple[Any, ...]:
        with stop_requests(self.stop) if self.crew.stops else nullcontext():
            for number in range(len(self.plans)):
                self.advance(number, None)
            while self.hand_out():
                self.receive()
        if self.stops:
            raise Interrupted("stopped by request; the same command goes on")
        return tuple(self.results[number] for number in range(len(self.plans)))

    def advance(self, number: int, outcomes: Sequence[Outcome] | None) -> None:
        """Play a plan on, through whatever the queue knows."""
        plan = self.plans[number]
        try:
            while True:
                batch = next(plan) if outcomes is None else plan.send(outcomes)
                if not all(map(self.is_known, batch)):
                    self.batches[number] = batch
                    return
                outcomes = self.outcomes(batch)
        except StopIteration as end:
            self.batches.pop(number, None)
            self.results[number] = end.value

    def is_known(self, cell: QueuedCell) -> bool:
        return cell.key in self.kept.known or cell.key in self.failures

    def outcomes(self, batch: Sequence[QueuedCell]) -> list[Outcome]:
        return [self.kept.known[c.key] if c.key in self.kept.known else self.failures[c.key] for c in batch]

    def hand_out(self) -> bool:
        """Give each idle worker a cell; false if nobody has one."""
        waiting = {c.key: c for _, batch in sorted(self.batches.items()) for c in batch if not self.is_known(c)}
        homes = {c.home for batch in self.batches.values() for c in batch if c.home}
        self.homes = {home: worker for home, worker in self.homes.items() if home in homes}
        for cell, _ in self.running.values():
            waiting.pop(cell.key, None)
        for worker in range(self.crew.count) if not self.stops else ():
            if worker in self.running:
                continue
            mine = (c for c in waiting.values() if c.home and self.homes.get(c.home) == worker)
            free = (c for c in waiting.values() if self.homes.get(c.home, worker) == worker)
            if (chosen := next(mine, None) or next(free, None)) is not None:
                del waiting[chosen.key]
                if chosen.home:
                    self.homes[chosen.home] = worker
                self.running[worker] = chosen, time.monotonic()
                self.crew.send(worker, chosen.asked, homes)
        return bool(self.running)

    def receive(self) -> None:
        """Take an outcome, and play on the plans that have all they asked for."""
        worker, outcome, failure = self.crew.receive()
        cell, began = self.running.pop(worker)
        if failure is None:
            self.kept.put(cell, outcome, seconds=time.monotonic() - began)
        elif self.stops:
            return
        elif self.lenient:
            outcome = self.failures[cell.key] = Failure(*failure[:2])
            self.kept.put(cell, None, str(outcome))
        else:
            raise exception(*failure)
        self.ended(cell, outcome)
        for number, batch in sorted(self.batches.items()):
            if all(map(self.is_known, batch)):
                self.advance(number, self.outcomes(batch))

    def stop(self, times: int) -> None:
        self.stops = times
        self.crew.ask_to_stop()
