"""Whole runs as cells: each in a folder of its own, started, resumed or read."""

import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unskew.decide.cells import CellWork, Outcome, QueuedCell
from unskew.decide.planning import Planning
from unskew.experiment import config
from unskew.experiment.config import Experiment
from unskew.files import appendable, from_toml
from unskew.run.again import complete
from unskew.run.cell import Observer, Several
from unskew.run.folder import read_json
from unskew.run.progress import watching

COMPLETE = ("summary.json", "report.html")
"""Files that a run of a sweep writes last."""


def run_cell(experiment: Experiment, folder: str) -> QueuedCell:
    """The cell of a run; its folder is inside that of the work."""
    return QueuedCell({"experiment": config.to_toml(experiment), "folder": folder})


def is_complete(folder: Path) -> bool:
    """True if a run is finished and its report written."""
    return all((folder / name).exists() for name in COMPLETE)


@dataclass(eq=False)
class RunWork(CellWork):
    """The work of a cell: a run.

    Attributes:
        root: Folder of the run folders.
        callback: Watches each run.
        cwd: Folder that paths of experiments are relative to.
    """

    root: Path
    callback: Observer = field(default_factory=Observer)
    cwd: str = field(default_factory=os.getcwd)

    def train(self, asked: Mapping[str, Any]) -> Outcome:
        """Complete a run and return its time."""
        folder = self.root / asked["folder"]
        os.chdir(self.cwd)
        return self.outcome(config.parse(from_toml(asked["experiment"]), allow_code=True), folder)

    def outcome(self, experiment: Experiment, folder: Path) -> Outcome:
        """Complete a run and return its time."""
        complete(experiment, folder, self.callback)
        return {"seconds": float(read_json(folder / "summary.json")["seconds"])}


class LoggedRuns(RunWork):
    """Runs with their reports, in a process of their own; each run's output goes to a file."""

    def train(self, asked: Mapping[str, Any]) -> Outcome:
        """Complete a run with its plan, and write its report."""
        from unskew.report import write_report

        folder = self.root / asked["folder"]
        with _output_to(self.root / "logs" / f"{folder.name}.txt"), watching(False) as watcher:
            self.callback = Several(Planning(), watcher)
            try:
                outcome = super().train(asked)
                write_report(folder)
            except BaseException:
                traceback.print_exc()
                raise
        return outcome


@contextmanager
def _output_to(file: Path) -> Iterator[None]:
    """Append what this process and those it starts say to a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    before = [os.dup(fd) for fd in (1, 2)]
    with appendable(file) as log:
        for fd in (1, 2):
            os.dup2(log.fileno(), fd)
    try:
        yield
    finally:
        for stream, fd, old in zip((sys.stdout, sys.stderr), (1, 2), before, strict=True):
            stream.flush()
            os.dup2(old, fd)
            os.close(old)


def at_once(cells: Sequence[QueuedCell]) -> Any:
    """Plan: outcomes of independent cells."""
    return (yield cells)
