"""The run of an experiment in a folder: begun, gone on with, or read, whichever is left to do."""

from pathlib import Path

from unskew.errors import RunError
from unskew.experiment.config import Experiment, fingerprint
from unskew.run import loop
from unskew.run.cell import Observer
from unskew.run.loop import RunResult


def require_same(experiment: Experiment, folder: Path) -> None:
    """Refuse a folder with another experiment's run: its numbers would be believed, its code imported.

    Raises:
        RunError: If it has one.
    """
    if (folder / "run.json").exists() and fingerprint(folder / "config.toml") != fingerprint(experiment):
        raise RunError(f"{folder} holds a run of another experiment; remove it, or choose another --out")


def complete(experiment: Experiment, folder: Path, callback: Observer | None = None) -> RunResult:
    """Complete the run in the folder, whatever is left of it.

    Raises:
        ConfigError, DataError: If the experiment is impossible.
        DivergedError: If every method diverged under every seed.
        RunError: As `require_same`, or if it cannot be gone on with, or (Interrupted) the user stopped it.
    """
    require_same(experiment, folder)
    if not (folder / "run.json").exists():
        return loop.start(experiment, folder, callback)
    return loop.resume(folder, callback, allow_code=True)  # the code of an experiment that this process was given
