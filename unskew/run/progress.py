"""Progress of a run, on stderr: a bar in a terminal or a notebook, a few lines in a log."""

import importlib.util
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as ProgressBar

from unskew.data import skew
from unskew.data.federated import split_label
from unskew.run.cell import Cell, LiveRun, Observer
from unskew.words import counted

PLAIN_EVERY_S = 5.0


@contextmanager
def watching(quiet: bool, stream: TextIO | None = None) -> Iterator[Observer]:
    """An observer that fits the stream: a bar in a terminal or a notebook, lines in a log, nothing if quiet.

    If the stream can no longer be written, the run goes on in silence.
    """
    stream = cast("TextIO", _WhileWritable(stream or sys.stderr))
    console = Console(file=stream)
    # In a notebook Rich draws into a widget; without ipywidgets it would warn at every refresh and draw nothing.
    widgets = console.is_jupyter and importable("ipywidgets")
    if quiet:
        yield Observer()
        return
    lines = Lines(console, widgets or (stream.isatty() and not console.is_jupyter))
    try:
        yield lines
    finally:  # however the run ends: a bar that goes on turning hides the cursor and the error
        lines.close()


def importable(name: str) -> bool:
    """True if there is a package of this name."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def headline(run: LiveRun) -> list[str]:
    """A few lines on the run about to start, and on how much the clients' data differ."""
    experiment, setup, fed = run.experiment, run.setup, next(iter(run.feds.values()))
    cohort = experiment.cohort(fed.num_clients)
    measured = skew.summary(fed.label_counts)
    labels = ", ".join(m.label for m in experiment.methods)
    seeds = ", ".join(map(str, experiment.seeds))
    if experiment.until is not None:
        seeds = f"{experiment.seeds[0]} to at most {experiment.seeds[-1]}, until it is decided"
    frozen = f" ({counted(len(setup.task.layout.frozen), 'tensor')} frozen)" if setup.task.layout.frozen else ""
    return [
        f"{experiment.name}: {setup.dataset.name}, {split_label(fed)}, {cohort} per round, "
        f"{counted(experiment.rounds, 'round')}, seeds {seeds}",
        f"model: {experiment.task.model}, {setup.parameters:,} parameters{frozen}, "
        f"on {setup.device} ({setup.executor})",
        f"methods: {labels}",
        f"clients: {measured.smallest} to {measured.largest} examples, IID distance {measured.iid_distance:.2f}",
    ]


def evaluated(cell: Cell) -> str:
    """The headline and the loss of a round, or the clients' mean without a global model; empty if there are none."""
    headline, metrics = cell.setup.task.headline, cell.metrics
    shared = headline.shared in metrics
    value = metrics.get(headline.shared, metrics.get(headline.own))
    loss = metrics.get("global.loss", metrics.get("personal.loss.mean"))
    label = headline.label if shared else "own data"
    text = "" if value is None else f"{label} {headline.with_unit(value)}  "
    return text if loss is None else f"{text}loss {loss:.4g}  "


def duration(seconds: float) -> str:
    """A duration in words.

    >>> duration(75)
    '1 min 15 s'
    """
    total_s = round(seconds)
    if total_s < 60:
        return f"{total_s} s"
    if total_s < 3600:
        return f"{total_s // 60} min {total_s % 60} s"
    return f"{total_s // 3600} h {total_s % 3600 // 60} min"


class _WhileWritable:
    """A stream that takes everything, and shows nothing more once it could not be written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._gone = stream, False

    def write(self, text: str) -> int:
        if not self._gone:
            try:
                self._stream.write(text)
                self._stream.flush()
            except OSError:
                self._gone = True
        return len(text)

    def flush(self) -> None:  # each piece is flushed when it is written
        return

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Lines(Observer):
    """Lines when a run or a method begins or ends; between them a bar over all rounds, or a line every few seconds."""

    def __init__(self, console: Console, bar: bool) -> None:
        self._console, self._bar, self._shown_at = console, bar, 0.0
        self._run: LiveRun | None = None
        self._progress = ProgressBar(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=console,
            transient=True,
            # A notebook's cell shows printed text by itself; redirected, the bar could end up printing itself.
            redirect_stdout=not console.is_jupyter,
            redirect_stderr=not console.is_jupyter,
        )

    def start(self, cell: Cell) -> None:
        """Show the headline of a run at its first method here, and the bar."""
        self._said, self._said_of = "", 0
        if self._run is cell.run:
            return
        self.close()
        self._run, self._has_pace = cell.run, False
        self._since = time.monotonic(), cell.index * cell.experiment.rounds + cell.round
        for line in headline(cell.run):
            self.note(line)
        if self._bar:
            total = len(cell.run.cells) * cell.experiment.rounds
            self._task = self._progress.add_task("starting", total=total, numbers="")
            self._progress.start()

    def ended_round(self, cell: Cell) -> None:
        """Show how far the run is: by the bar, or by lines now and then."""
        rounds, now = cell.experiment.rounds, time.monotonic()
        done, due = cell.index * rounds + cell.round, cell.round == rounds
        if text := evaluated(cell):
            self._said, self._said_of = text, cell.round
        at = f"(round {self._said_of})  " if self._said and self._said_of != cell.round else ""
        left_s = (now - self._since[0]) / (done - self._since[1]) * (len(cell.run.cells) * rounds - done)
        if (
            not self._has_pace
        ):  # what is done once, as starting workers, is in the first round: the others tell the pace
            self._since, self._has_pace = (now, done), True
        speed = f"{cell.clients_per_second:.0f} clients/s  {cell.bytes / 1e6:.2f} MB  {duration(left_s)} left"
        if self._bar:
            self._progress.update(self._task, completed=done, description=cell.name, numbers=self._said + at + speed)
        elif now - self._shown_at >= PLAIN_EVERY_S:
            self._shown_at, due = now, True
        if due:
            where = f"{cell.method.label} (seed {cell.seed})  round {cell.round}/{rounds}"
            self.note(f"{where}  {self._said}{at}{speed}")

    def note(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        if self._bar:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:  # in a notebook Rich would draw it
            self._console.file.write(f"{text}\n")

    def close(self) -> None:
        """Take the bar away."""
        if not self._bar:  # which would print an empty line
            return
        self._progress.stop()
        for task in self._progress.task_ids:
            self._progress.remove_task(task)
