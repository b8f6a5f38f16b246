"""Starts, resumes or reads the run of an experiment in a folder, whichever is left to do."""

from pathlib import Path

from unskew.errors import RunError
from unskew.experiment.config import Experiment, fingerprint
from unskew.run import loop
from unskew.run.cell import Observer
from unskew.run.loop import RunResult


def require_same(experiment: Experiment, folder: Path) -> None:
    """Refuse a folder with the run of another experiment, before its code is imported.

    Raises:
        RunError: If it has one.
    """
    if (folder / "run.json").exists() and fingerprint(folder / "config.toml") != fingerprint(experiment):
        raise RunError(f"{folder} holds a run of another experiment; remove it, or choose another --out")


def complete(experiment: Experiment, folder: Path, callback: Observer | None = None) -> RunResult:
    """Start or resume the run in a folder, or read its result.

    Raises:
        ConfigError, DataError: If the experiment is impossible.
        DivergedError: If every method diverged under every seed.
        RunError: If the folder has another experiment's run, or one that cannot be resumed; (Interrupted) if stopped.
    """
    require_same(experiment, folder)
    if not (folder / "run.json").exists():
        return loop.start(experiment, folder, callback)
    return loop.resume(folder, callback, allow_code=True)  # the code of an experiment that this process was given
