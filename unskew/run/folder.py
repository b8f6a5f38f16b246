"""The folder of a run: its files, and writing them atomically.

    run.json          command, versions, machine and data of the run: written once at the start
    config.toml       the resolved experiment
    data.npz          the examples, where they were given as values and no file names them
    partition.json    examples of each client, per seed, with hashes; and their rows in the data as they were given
    run.sqlite        every number, transfer, training, failure and report, by round (record/database.py)
    checkpoint/       the state at the end of the last checkpoint
    models/           the final models of each method and seed: the global one, and every client's own
    summary.json      the table of results: written once at the end
    report.html       the same for people

Only its owner may read the folder, since it holds client memory.
"""

import hashlib
import itertools
import os
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from unskew.errors import RunError
from unskew.files import rename_folder, temporary_folder, write_atomically
from unskew.lock import lock, lockable
from unskew.record import database
from unskew.record.logs import deployed, document, read_text, why_diverged

DOCUMENTS = ("run.json", "partition.json")
FOLDERS = ("models", "checkpoint", "tensorboard")
"""Folders in a run's folder that a run writes to."""


@contextmanager
def explained(path: Path, folder: Path | None) -> Iterator[None]:
    """Turn a disk error into a RunError that says how to continue: with the run in `folder`, or by a new command."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        then = (
            "give the same command again, or choose another --out"
            if folder is None
            else f"nothing before the last checkpoint is lost; fix that and continue with: unskew run {folder}"
        )
        what = error.strerror if isinstance(error, OSError) else str(error)
        raise RunError(f"cannot write {path}: {what or error}; {then}") from None


def create(folder: Path, files: Mapping[str, str | Callable[[Path], object]]) -> None:
    """Create the run's folder with its first files atomically: under another name, then renamed.

    A file is given as its text, or as a function that writes it.

    Raises:
        RunError: If the path exists, or the disk refuses.
    """
    if folder.is_symlink():  # a rename would have to replace it
        folder = folder.resolve()
    try:
        if taken(folder):
            raise RunError(f"{folder} exists already; choose another --out, or continue it with unskew run")
        with temporary_folder(folder) as temporary:
            for part in ("checkpoint", "models"):
                (temporary / part).mkdir()
            for name, content in files.items():
                if isinstance(content, str):
                    write_atomically(temporary / name, content)
                else:
                    content(temporary / name)
            rename_folder(temporary, folder)
    except (OSError, sqlite3.Error) as error:
        what = error.strerror if isinstance(error, OSError) else str(error)
        raise RunError(
            f"cannot make the run folder {folder}: {what or error}; choose another --out, or fix this"
        ) from None


def taken(folder: Path) -> bool:
    """True if the path exists and is not an empty folder."""
    return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))


def refuse_links(folder: Path) -> None:
    """Refuse a run's folder with links or devices in it, before anything is read, written or copied.

    Raises:
        RunError: Naming the first.
    """
    for path in itertools.chain(folder.iterdir(), *((folder / name).rglob("*") for name in FOLDERS)):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise RunError(f"{path} is a symbolic link or a device, which no run writes; put the file itself there")


def require_own(folder: Path, what: str, marks: Collection[str]) -> None:
    """Refuse to write into a folder with files of others: it must be empty or have one of the names in `marks`.

    Raises:
        RunError: If it has files and none of these, or is a file.
    """
    try:
        names = {p.name for p in folder.iterdir()} - {".lock"} if folder.exists() else set()
    except OSError as error:
        raise RunError(f"{folder} cannot be written to: {error.strerror or error}; choose another --out") from None
    if names.isdisjoint(marks) and names:
        has = "a run" if "run.json" in names else min(names)
        raise RunError(f"{folder} has other files already ({has}), and no {what}; choose another --out")


# A lock lives as long as any process holds the open file: forked workers must close it at once, or a run that was
# killed could not be resumed before they have ended.
_LOCKS: set[IO[bytes]] = set()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: [f.close() for f in _LOCKS])


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder, so that no second process writes to it.

    Raises:
        RunError: If another process writes to it, or the file system has no locks.
    """
    with explained(folder / ".lock", folder):
        f = lockable(folder / ".lock")
    with f:
        try:
            lock(f)
        except BlockingIOError:
            raise RunError(f"{folder} is in use by another process; wait for it or stop it") from None
        _LOCKS.add(f)
        try:
            yield
        finally:
            _LOCKS.discard(f)


def document_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each file that is written once, at the start of a run.

    Raises:
        RunError: If one cannot be read.
    """
    return {name: hashlib.sha256(read_text(folder / name).encode()).hexdigest() for name in DOCUMENTS}


def require_done(folder: Path) -> None:
    """Refuse a folder without a finished run.

    Raises:
        RunError: Naming what is wrong.
    """
    if not (folder / "summary.json").exists():
        cells = read_json(folder / "run.json").get("cells", ())
        diverged = list(database.rows(folder, "diverged")) if (folder / database.FILE).exists() else []
        if diverged and len(diverged) == len(cells):
            first = why_diverged(diverged[0])
            raise RunError(f"the run in {folder} has no results: all diverged, first {first}; start a new run")
        way = f"unskew run {folder} or unskew.resume() goes on; load_run(..., unfinished=True) reads it so far"
        raise RunError(f"the run in {folder} is not done: it has no summary.json; {way}")


def is_deployed(folder: Path) -> bool:
    """True if the folder is of a run over a network.

    Raises:
        RunError: If it is not a run's folder.
    """
    return deployed(folder, str(read_json(folder / "run.json").get("command", "")))


def refuse_deployed(folder: Path) -> None:
    """Refuse to resume a run over a network in one process: its clients have the data and memory.

    Raises:
        RunError: If it is one, or not a run's folder.
    """
    if (folder / "deploy" / "authority").is_dir() or is_deployed(folder):
        way = "give the command that began it again, unskew fed run or unskew fed try"
        raise RunError(f"{folder} is a run over a network, which only its server and clients can continue: {way}")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of the run.

    Raises:
        RunError: If it is missing, or not a JSON object.
    """
    if not os.path.lexists(path):
        raise RunError(f"{path.parent} is not a run folder: it has no {path.name}")
    return document(path)


def remove(path: Path) -> None:
    """Remove a folder written by unskew; files that cannot be removed stay."""
    shutil.rmtree(path, ignore_errors=True)
