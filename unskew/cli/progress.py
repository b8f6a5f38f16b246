"""Progress of a run, on stderr: a live line on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as ProgressBar

from unskew.data import skew
from unskew.data.federated import FederatedData
from unskew.experiment.config import Experiment
from unskew.run.callbacks import Callback, NoCallback, Progress
from unskew.run.loop import setting
from unskew.run.setup import Setup

PLAIN_EVERY_S = 5.0


@contextmanager
def watching(quiet: bool, stream: TextIO | None = None) -> Iterator[Callback]:
    """What fits the stream: a live display on a terminal, lines in a log, nothing if asked to be quiet."""
    stream = stream or sys.stderr
    if quiet:
        yield NoCallback()
    elif stream.isatty():
        live = Live(Console(file=stream))
        try:
            yield live
        finally:  # however the run ends: a bar that goes on turning hides the cursor and the error
            live.close()
    else:
        yield Plain(stream)


def headline(experiment: Experiment, setup: Setup, feds: dict[int, FederatedData]) -> list[str]:
    """What is about to be run, and how far the clients' data disagree."""
    fed = next(iter(feds.values()))
    cohort = experiment.cohort(fed.num_clients)
    labels = ", ".join(m.label for m in experiment.methods)
    return [
        f"{experiment.name}: {setup.dataset.name}, {setting(experiment, fed)}, {cohort} per round, "
        f"{experiment.rounds} rounds, seeds {', '.join(map(str, experiment.seeds))}",
        f"model: {experiment.task.model}, {setup.parameters:,} parameters, on {setup.device} ({setup.executor})",
        f"methods: {labels}",
        f"split of seed {next(iter(feds))}: {how_skewed(skew.summary(fed.label_counts))}",
    ]


def how_skewed(found: skew.Skew) -> str:
    """The measures of a split in one line."""
    return (
        f"sizes {found.smallest} / {found.median:g} / {found.largest} (min / median / max), IID distance "
        f"{found.iid_distance:.2f}, Jensen-Shannon {found.js:.2f} bit, {found.effective_classes:.1f} effective classes"
    )


def describe(progress: Progress) -> str:
    """One round in one line."""
    accuracy = (
        ""
        if progress.accuracy is None
        else f"  {'own data' if progress.own else 'accuracy'} {100 * progress.accuracy:5.1f} %"
    )
    loss = "" if progress.loss is None else f"  loss {_number(progress.loss):>6}"
    return (
        f"{progress.method} (seed {progress.seed})  round {progress.round}/{progress.rounds}{accuracy}{loss}"
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
    """Of which round the numbers are, where it is not the one just done."""
    return (
        "" if progress.evaluated == progress.round or progress.accuracy is None else f"(round {progress.evaluated})  "
    )


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(75)
    '1 min 15 s'
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class Plain:
    """Lines: one when a method begins or ends, and one every few seconds between."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._said = stream, 0.0

    def start(self, experiment: Experiment, setup: Setup, feds: dict[int, FederatedData]) -> None:
        """Say what is run."""
        for line in headline(experiment, setup, feds):
            self.note(line)

    def progress(self, progress: Progress) -> None:
        """Say how far it is, not too often."""
        now = time.monotonic()
        if progress.round == progress.rounds or now - self._said >= PLAIN_EVERY_S:
            self._said = now
            self.note(describe(progress))

    def note(self, text: str) -> None:
        """A line."""
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
        )

    def start(self, experiment: Experiment, setup: Setup, feds: dict[int, FederatedData]) -> None:
        """Show what is run, and the bar."""
        self.close()
        for line in headline(experiment, setup, feds):
            self.note(line)
        total = len(experiment.methods) * len(experiment.seeds) * experiment.rounds
        self._task = self._progress.add_task("starting", total=total, numbers="")
        self._progress.start()

    def progress(self, progress: Progress) -> None:
        """Move the bar."""
        done = (progress.cell - 1) * progress.rounds + progress.round
        accuracy = (
            "" if progress.accuracy is None else f"{'own' if progress.own else 'acc'} {100 * progress.accuracy:.1f} %  "
        )
        loss = "" if progress.loss is None else f"loss {_number(progress.loss)}  "
        numbers = (
            f"{accuracy}{loss}{_when(progress)}{progress.clients_per_second:.0f} clients/s  "
            f"{progress.megabytes:.1f} MB  {duration(progress.left_s)} left"
        )
        self._progress.update(
            self._task, completed=done, description=f"{progress.method}/{progress.seed}", numbers=numbers
        )
        if progress.round == progress.rounds:
            self.note(describe(progress))

    def note(self, text: str) -> None:
        """A line above the bar."""
        self._console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        """Take the bar away."""
        self._progress.stop()
        for task in self._progress.task_ids:
            self._progress.remove_task(task)
