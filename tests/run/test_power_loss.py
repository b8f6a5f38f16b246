"""The plug is pulled, a disk fails, memory runs out: what is on the disk is the checkpoint before or the one after."""

import errno
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from unskew import wire
from unskew.errors import RunError
from unskew.experiment.config import Experiment
from unskew.files import write_atomically
from unskew.record import database
from unskew.record.database import Database
from unskew.run import cell, checkpoint, loop
from unskew.tree import Params

MOMENTS = 10
CHANGES = ("mkdir", "rename", "replace", "unlink", "rmdir")


# ---------------------------------------------------------------- the end of the process, or of the power
@pytest.mark.seconds
def test_a_run_that_is_killed_at_any_moment_ends_like_one_that_was_not(
    tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill -9 at moments that nobody chose, most of them while something is written; resumed and killed again."""
    monkeypatch.setattr(cell, "SAVE_AFTER_S", 0.0)  # a checkpoint after every round
    monkeypatch.setattr(cell, "SAVE_SHARE", 1.0)
    experiment = tiny("rounds=3", "seeds=[0, 1]", methods='[[methods]]\nname = "scaffold"\n')
    began = time.monotonic()
    whole = loop.start(experiment, tmp_path / "whole").summary["fingerprint"]
    took, draw, killed = time.monotonic() - began, random.Random(0), 0
    for moment in range(MOMENTS):
        folder = tmp_path / str(moment)
        child = os.fork()
        if not child:
            try:
                loop.start(experiment, folder)
            finally:
                os._exit(0)
        time.sleep(draw.uniform(0.0, took))
        os.kill(child, signal.SIGKILL)
        killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        if folder.exists():
            assert loop.resume(folder).summary["fingerprint"] == whole
            shutil.rmtree(folder)
    assert killed > MOMENTS / 2


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc to know which file is synced")
def test_the_files_of_a_checkpoint_are_on_the_disk_before_the_transaction_that_counts_on_them(
    tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, seen = set[Path](), [0]
    fsync, commit = os.fsync, Database.commit

    def sync(fd: int) -> None:
        synced.add(Path(os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    def committed(record: Database, position: str | None = None) -> None:
        if position is not None:
            at = json.loads(position)
            place = record.path.parent / checkpoint.FOLDER / str(at["number"])
            assert {place, place.parent, *(place / name for name in at["files"])} <= synced
            seen[0] += len(at["files"])
        commit(record, position)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Database, "commit", committed)
    loop.start(
        tiny("rounds=2", "runtime.checkpoint_every=1", methods='[[methods]]\nname = "scaffold"\n'), tmp_path / "run"
    )
    assert seen[0] >= 2


# ---------------------------------------------------------------- a disk, or a memory, that fails
@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with checkpoint 1."""
    folder = tmp_path / "run"
    folder.mkdir()
    database.new(folder / database.FILE)
    record = Database(folder, {})
    checkpoint.save(folder, checkpoint.encode_state(state(1), {0: state(10)}), checkpoint.Position(round=1), record)
    record.close()
    return folder


def state(value: int) -> Params:
    return {"w": torch.full((50,), float(value)), "b": torch.full((2,), float(value))}


def whole(folder: Path) -> int:
    """The round of the newest checkpoint, which must be whole."""
    saved = checkpoint.latest(folder)
    assert saved is not None
    t = saved.round
    of_server, memory = checkpoint.load(folder, saved, Params, Params, torch.device("cpu"))
    assert wire.encode(of_server) == wire.encode(state(t))
    assert wire.encode(memory[0]) == wire.encode(state(10 * t))
    return t


def save(folder: Path) -> None:
    """Save a second checkpoint beside the first."""
    number = json.loads(database.position(folder) or "")["number"]
    record = Database(folder, {})
    try:
        files = checkpoint.encode_state(state(2), {0: state(20)})
        checkpoint.save(folder, files, checkpoint.Position(round=2, number=number), record)
    finally:
        record.close()


def replace(folder: Path) -> None:
    write_atomically(folder / "summary.json", "new" * 1000)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), MemoryError(), KeyboardInterrupt()]
)
@pytest.mark.parametrize("writing", [save, replace])
def test_whatever_step_of_a_write_fails_the_older_one_or_the_new_one_is_there(
    writing: Callable[[Path], None], error: BaseException, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "summary.json").write_text("old")
    failures = 0
    while True:
        left = [failures]

        def before(left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == -1:
                raise error

        with monkeypatch.context() as patch:
            for name in ("fsync", *CHANGES, "open"):

                def change(*args: Any, _real: Any = getattr(os, name), **options: Any) -> Any:
                    before()
                    return _real(*args, **options)

                patch.setattr(os, name, change)
            try:
                writing(folder)
            except (RunError, OSError, MemoryError, KeyboardInterrupt):
                ended = False
            else:
                ended = True
        assert (folder / "summary.json").read_text() in ("old", "new" * 1000)
        assert whole(folder) in (1, 2)
        if ended and left[0] >= 0:
            break
        failures += 1
    assert failures >= 4
    assert not list(folder.rglob("*.tmp"))
