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
from unskew.data.federated import FederatedData, split_label
from unskew.experiment.config import Experiment
from unskew.run.callbacks import Callback, NoCallback, Progress
from unskew.run.setup import Setup
from unskew.words import counted

PLAIN_EVERY_S = 5.0


@contextmanager
def watching(quiet: bool, stream: TextIO | None = None) -> Iterator[Callback]:
    """A callback that fits the stream: a bar in a terminal or a notebook, lines in a log, nothing if quiet.

    What is shown is no part of a run: once the stream cannot be written, as its reader or its terminal is gone, nothing
    more is.
    """
    stream = cast("TextIO", _WhileWritable(stream or sys.stderr))
    console = Console(file=stream)
    # In a notebook Rich draws into a widget; without ipywidgets it would warn at every refresh and draw nothing.
    widgets = console.is_jupyter and importable("ipywidgets")
    if quiet:
        yield NoCallback()
    elif widgets or (stream.isatty() and not console.is_jupyter):
        live = Live(console)
        try:
            yield live
        finally:  # however the run ends: a bar that goes on turning hides the cursor and the error
            live.close()
    else:
        yield Plain(stream)


def importable(name: str) -> bool:
    """True if there is a package of this name."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def headline(experiment: Experiment, setup: Setup, feds: dict[int, FederatedData]) -> list[str]:
    """A few lines on the run about to start and on how much the clients' data differ."""
    fed = next(iter(feds.values()))
    cohort = experiment.cohort(fed.num_clients)
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
        f"split of seed {next(iter(feds))}: {how_skewed(skew.summary(fed.label_counts), fed.dataset.targets.classes)}",
    ]


def how_skewed(measured: skew.Skew, classes: bool) -> str:
    """The measures of a split in one line; of targets that are no classes the sizes alone."""
    sizes = f"sizes {measured.smallest} / {measured.median:g} / {measured.largest} (min / median / max)"
    if not classes:
        return sizes
    distances = f"IID distance {measured.iid_distance:.2f}, Jensen-Shannon {measured.js:.2f} bit"
    return f"{sizes}, {distances}, {measured.effective_classes:.1f} effective classes"


def describe(progress: Progress) -> str:
    """One round in one line."""
    label = "own data" if progress.own else progress.headline.label
    value = "" if progress.value is None else f"  {label} {progress.headline.with_unit(progress.value):>7}"
    loss = "" if progress.loss is None else f"  loss {_number(progress.loss):>6}"
    return (
        f"{progress.method} (seed {progress.seed})  round {progress.round}/{progress.rounds}{value}{loss}"
        f"  {_when(progress)}{progress.clients_per_second:6.0f} clients/s  {progress.megabytes:8.2f} MB  "
        f"{duration(progress.left_s)} left"
    )


def _number(loss: float) -> str:
    """Three decimals, or an exponent where a run diverges.

    >>> _number(2.30259), _number(3e33)
    ('2.303', '3.0e+33')
    """
    return f"{loss:.3f}" if abs(loss) < 1e4 else f"{loss:.1e}"


def _when(progress: Progress) -> str:
    """The last evaluated round, if it is not the one just finished."""
    return "" if progress.evaluated == progress.round or progress.value is None else f"(round {progress.evaluated})  "


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


class Plain:
    """Lines: one when a method begins or ends, and one every few seconds between."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._shown_at = stream, 0.0

    def start(self, experiment: Experiment, setup: Setup, feds: dict[int, FederatedData]) -> None:
        """Print the headline of the run."""
        for line in headline(experiment, setup, feds):
            self.note(line)

    def progress(self, progress: Progress) -> None:
        """Print how far the run is, not too often."""
        now = time.monotonic()
        if progress.round == progress.rounds or now - self._shown_at >= PLAIN_EVERY_S:
            self._shown_at = now
            self.note(describe(progress))

    def note(self, text: str) -> None:
        """Print a line."""
        print(text, file=self._stream, flush=True)


class Live:
    """A bar over all rounds of all methods, and a line for each method that is done."""

    def __init__(self, console: Console) -> None:
        self._console = console
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

    def start(self, experiment: Experiment, setup: Setup, feds: dict[int, FederatedData]) -> None:
        """Show the headline of the run, and the bar."""
        self.close()
        for line in headline(experiment, setup, feds):
            self.note(line)
        total = len(experiment.methods) * len(experiment.seeds) * experiment.rounds
        self._task = self._progress.add_task("starting", total=total, numbers="")
        self._progress.start()

    def progress(self, progress: Progress) -> None:
        """Move the bar."""
        done = (progress.cell - 1) * progress.rounds + progress.round
        label = "own" if progress.own else progress.headline.label[:3]
        value = "" if progress.value is None else f"{label} {progress.headline.with_unit(progress.value)}  "
        loss = "" if progress.loss is None else f"loss {_number(progress.loss)}  "
        numbers = (
            f"{value}{loss}{_when(progress)}{progress.clients_per_second:.0f} clients/s  "
            f"{progress.megabytes:.1f} MB  {duration(progress.left_s)} left"
        )
        self._progress.update(
            self._task, completed=done, description=f"{progress.method}/{progress.seed}", numbers=numbers
        )
        if progress.round == progress.rounds:
            self.note(describe(progress))

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        """Take the bar away."""
        self._progress.stop()
        for task in self._progress.task_ids:
            self._progress.remove_task(task)
