"""The folder of a run, written so that nothing is lost or half written.

    run.json          command, versions, machine and data of the run: written once at the start
    config.toml       the resolved experiment
    data.npz          the examples, where they were given as values and no file names them
    partition.json    examples of each client, per seed, with hashes
    metrics.jsonl     {"method", "seed", "round", "name", "value", "weight", "client"?}
    ledger.jsonl      {"method", "seed", "round", "hop", "src", "dst", "kind", "bytes"}
    failures.jsonl    {"method", "seed", "round", "client", "step", "reason"}
    work.jsonl        {"method", "seed", "round", "hop", "client", "examples"}: local training
    info.jsonl        {"method", "seed", "round", "type", "info"}: what a method reports
    network.jsonl     of a deployed run only: {"method", "seed", "round", "hop", "client", "way", "what", "payload",
                      "framing"}: messages that really crossed the network
    checkpoints/      the last two, each a folder of its own
    models/           the final models of each method and seed: the global one, and every client's own
    summary.json      the table of results: written once at the end
    report.html       the same for people

The logs are append-only; a checkpoint records how long they were, and resuming cuts them to that length.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from unskew.errors import RunError
from unskew.files import sync_folder, write_atomically
from unskew.lock import lock

LOGS = ("metrics", "ledger", "failures", "work", "info")
# Created with the first row: not every run has one.
RARE = ("network",)


@contextmanager
def explained(path: Path, folder: Path | None) -> Iterator[None]:
    """Turn a disk error into one sentence that says how to continue: with the run in `folder`, or by a new command."""
    try:
        yield
    except OSError as error:
        then = (
            "give the same command again, or choose another --out"
            if folder is None
            else f"nothing before the last checkpoint is lost; mend that and continue with: unskew resume {folder}"
        )
        raise RunError(f"cannot write {path}: {error.strerror or error}; {then}") from None


def create(folder: Path, files: Mapping[str, str | Callable[[Path], None]]) -> None:
    """Make the run's folder with its first files atomically: under another name, then renamed.

    A file is given as its text, or as a function that writes it.

    Raises:
        RunError: If the path exists already, or the disk refuses.
    """
    temporary = folder.absolute().with_name(f".{folder.absolute().name}.{os.getpid()}")
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunError(f"{folder} exists already; continue it with unskew resume {folder}, or choose another --out")
        for part in ("checkpoints", "models"):
            (temporary / part).mkdir(parents=True)
        for name, content in files.items():
            if isinstance(content, str):
                write_atomically(temporary / name, content)
            else:
                content(temporary / name)
        temporary.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise RunError(
            f"cannot make the run folder {folder}: {error.strerror or error}; choose another --out, or fix this"
        ) from None
    finally:
        remove(temporary)


# One encoder for all rows: `json.dumps` makes one for each, a third of the time that a row takes.
_ENCODE = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode

# A lock lives as long as any process holds the open file: forked workers must close it at once, or a run that was
# killed could not be resumed before they have ended.
_LOCKS: set[IO[str]] = set()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: [f.close() for f in _LOCKS])


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder, so that no second process writes to it.

    Raises:
        RunError: If another process writes to it, or the file system has no locks.
    """
    with explained(folder / ".lock", folder):
        f = (folder / ".lock").open("w")
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


class RunLogs:
    """The append-only logs of one run; the rows of a round are written together at its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, IO[bytes]] = {}
        self._whole: dict[str, int] = {}  # lengths at the end of the last round
        with explained(folder / "metrics.jsonl", folder):
            for name in (*LOGS, *(rare for rare in RARE if (folder / f"{rare}.jsonl").exists())):
                self._files[name] = (folder / f"{name}.jsonl").open("ab")
                self._whole[name] = self._files[name].tell()

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows to a log."""
        lines = "".join(f"{_ENCODE(row)}\n" for row in rows)
        if lines:
            path = self.folder / f"{name}.jsonl"
            with explained(path, self.folder):
                if name not in self._files:
                    self._files[name] = path.open("ab")
                self._files[name].write(lines.encode())

    def flush(self) -> None:
        """End a round: pass its rows to the operating system, where they survive the death of this process."""
        for name, f in self._files.items():
            with explained(self.folder / f"{name}.jsonl", self.folder):
                f.flush()
                self._whole[name] = f.tell()

    def sync(self) -> dict[str, int]:
        """Sync all logs to the disk; return the length of each at the end of the last round, bytes."""
        for name, f in self._files.items():
            with explained(self.folder / f"{name}.jsonl", self.folder):
                os.fsync(f.fileno())
        return dict(self._whole)

    def close(self) -> None:
        """Close the files."""
        for f in self._files.values():
            with suppress(OSError):
                f.close()


def cut(folder: Path, lengths: Mapping[str, int]) -> None:
    """Cut the logs to the lengths that a checkpoint recorded.

    Raises:
        RunError: If a log is shorter than that, so that rows are missing.
    """
    for name in (*LOGS, *RARE):
        path = folder / f"{name}.jsonl"
        have = path.stat().st_size if path.exists() else 0
        want = lengths.get(name, 0)
        if have < want:
            raise RunError(
                f"{path} has {have} bytes, the checkpoint saw {want}: rows were removed; this run cannot be continued"
            )
        if have > want:
            with explained(path, folder):
                os.truncate(path, want)


def require_done(folder: Path) -> None:
    """Refuse a folder without a run, or with a run that is not done.

    Raises:
        RunError: Naming which of the two it is.
    """
    if not (folder / "summary.json").exists():
        read_json(folder / "run.json")
        raise RunError(f"the run in {folder} is not done: it has no summary.json; run unskew resume {folder}")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of the run.

    Raises:
        RunError: If it is missing, or not a JSON object.
    """
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path.parent} is no run folder: it has no {path.name}") from None
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from None
    if not isinstance(value, dict):
        raise RunError(f"{path} holds no JSON object; it was changed by another program")
    return value


def remove(path: Path) -> None:
    """Remove a folder written by unskew; files that cannot be removed are left."""
    shutil.rmtree(path, ignore_errors=True)
