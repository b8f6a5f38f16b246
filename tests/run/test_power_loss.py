"""The plug is pulled, a disk fails, memory runs out: what is on the disk is the checkpoint before or the one after."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from unskew import wire
from unskew.errors import RunError
from unskew.experiment.config import Experiment
from unskew.files import write_atomically
from unskew.record.reader import read
from unskew.run import checkpoint, loop
from unskew.run.folder import RunLogs
from unskew.tree import Params

# ---------------------------------------------------------------- a disk that drops what was not synced
Inode = int


@dataclass
class Disk:
    """What of a folder is on the disk for certain: files as they were last synced, and so the entries of folders.

    `before` is called before each change that is recorded.
    """

    top: Path
    before: Callable[[], None] = lambda: None
    files: dict[Inode, bytes] = field(default_factory=dict)
    folders: dict[Inode, dict[str, tuple[Inode, bool]]] = field(default_factory=dict)
    held: list[int] = field(default_factory=list)  # open, so that no inode is given to another file

    def sync(self, fd: int) -> None:
        """Stand in for fsync."""
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if not path.is_relative_to(self.top):
            return
        self.before()
        self.held.append(os.dup(fd))
        if path.is_dir():
            self.folders[os.fstat(fd).st_ino] = entries(path)
        else:
            self.files[os.fstat(fd).st_ino] = path.read_bytes()

    def left(self, entries_survive: bool) -> "Tree":
        """What is left: what was synced; or all entries, as after a rename that reached the disk before its data."""
        return dict(self._left(self.top, self.top.stat().st_ino, Path(), entries_survive))

    def _left(self, path: Path, inode: Inode, at: Path, entries_survive: bool) -> Iterator[tuple[Path, bytes | None]]:
        listed = entries_survive or path == self.top
        for name, (inner, is_folder) in (entries(path) if listed else self.folders.get(inode, {})).items():
            yield at / name, None if is_folder else self.files.get(inner, b"")
            if is_folder:
                yield from self._left(path / name, inner, at / name, entries_survive)


Tree = dict[Path, bytes | None]
"""The files of a folder by path; None is a folder, which stands before its files."""


def write(tree: Tree, top: Path) -> None:
    top.mkdir()
    for path, content in tree.items():
        (top / path).mkdir() if content is None else (top / path).write_bytes(content)


def entries(path: Path) -> dict[str, tuple[Inode, bool]]:
    return {e.name: (e.inode(), e.is_dir(follow_symlinks=False)) for e in os.scandir(path)}


CHANGES = ("mkdir", "rename", "replace", "unlink", "rmdir")


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk")
    monkeypatch.setattr(os, "fsync", disk.sync)
    for name in CHANGES:

        def change(*args: Any, _real: Any = getattr(os, name), **options: Any) -> Any:
            if Path(args[0]).is_relative_to(disk.top):
                disk.before()
            return _real(*args, **options)

        monkeypatch.setattr(os, name, change)
    yield disk
    for fd in disk.held:
        os.close(fd)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc to know which file is synced")
def test_a_run_that_loses_power_anywhere_resumes_from_a_whole_checkpoint(
    tiny: Callable[..., Experiment], disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before every sync, rename and removal, whether or not entries that were not synced have reached the disk."""
    run, real, returned = disk.top / "run", checkpoint.save, [0]
    states: dict[tuple[int, int], str] = {}
    crashes: list[tuple[Tree, int]] = []  # what is left, and the last checkpoint that had been written

    def save(folder: Path, files: Any, position: checkpoint.Position) -> Path:
        states[position.cell, position.round] = checkpoint.digest(files)
        path = real(folder, files, position)
        returned[0] = int(path.name)
        return path

    def pull() -> None:
        for entries_survive in (True, False):
            crash = disk.left(entries_survive), returned[0]
            if crash not in crashes:
                crashes.append(crash)

    monkeypatch.setattr(checkpoint, "save", save)
    disk.before = pull
    experiment = tiny("rounds=2", "runtime.checkpoint_every=1", methods='[[methods]]\nname = "scaffold"\n')
    final = loop.start(experiment, run)
    disk.before = lambda: None
    assert returned[0] == 2
    for entries_survive in (True, False):
        finished = tmp_path / f"finished-{entries_survive}"
        write(disk.left(entries_survive), finished)
        assert read(finished / "run").series, "the checksums that a finished run is read by are there, too"
    resumed: set[int] = set()
    for i, (tree, least) in enumerate(crashes):
        folder = tmp_path / f"after-{i}" / "run"
        write(tree, folder.parent)
        if not least and not folder.exists():
            continue  # nothing had been promised yet
        kept = checkpoint.latest(folder)
        number = int(kept.path.name) if kept else 0
        assert number >= least, "a checkpoint that was written is there"
        if kept is not None:
            files = {name: [(kept.path / name).read_bytes()] for name in kept.files}
            assert checkpoint.digest(files) == states[kept.position.cell, kept.position.round]
            RunLogs(folder, kept.position.logs).close()  # refuses logs that are not as the checkpoint saw them
        if number not in resumed:
            resumed.add(number)
            assert loop.resume(folder).summary["fingerprint"] == final.summary["fingerprint"]
    assert resumed == {0, 1, 2}


# ---------------------------------------------------------------- a disk, or a memory, that fails
@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with checkpoint 1."""
    (tmp_path / "run").mkdir()
    checkpoint.save(tmp_path / "run", checkpoint.encode_state(state(1), {0: state(10)}), position(1))
    return tmp_path / "run"


def state(value: int) -> Params:
    return {"w": torch.full((50,), float(value)), "b": torch.full((2,), float(value))}


def position(round: int) -> checkpoint.Position:
    return checkpoint.Position(0, round, (), {}, {}, {}, 0.0, 0.0, 0, "config", {})


def whole(folder: Path) -> int:
    """The round of the newest checkpoint, which must be whole."""
    saved = checkpoint.latest(folder)
    assert saved is not None
    t = saved.position.round
    of_server, memory = saved.values(Params, Params, torch.device("cpu"))
    assert wire.encode(of_server) == wire.encode(state(t))
    assert wire.encode(memory[0]) == wire.encode(state(10 * t))
    return t


def save(folder: Path) -> None:
    checkpoint.save(folder, checkpoint.encode_state(state(2), {0: state(20)}), position(2))


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
        shutil.rmtree(folder / "checkpoints" / "000002", ignore_errors=True)
    assert failures >= 4
    assert not list(folder.rglob("*.tmp"))


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("writing", [save, replace])
def test_whatever_allocation_of_a_write_fails_the_older_one_or_the_new_one_is_there(
    writing: Callable[[Path], None], every: int, folder: Path
) -> None:
    """CPython's own hook lets one allocation fail, each in turn; in a child, so that nothing else meets it."""
    memory = pytest.importorskip("_testcapi", reason="this Python was built without its test module")
    child = os.fork()
    if not child:
        failures = 0
        try:
            writing(folder)  # what is imported or kept for later is no part of it
            for i in range(0, 100_000, every):
                (folder / "summary.json").write_text("old")
                shutil.rmtree(folder / "checkpoints" / "000002", ignore_errors=True)
                memory.set_nomemory(i, i + 1)
                try:
                    writing(folder)
                except Exception:  # a MemoryError, or whatever a library makes of it
                    memory.remove_mem_hooks()
                    failures, last = failures + 1, i
                finally:
                    memory.remove_mem_hooks()
                if (folder / "summary.json").read_text() not in ("old", "new" * 1000) or whole(folder) not in (1, 2):
                    os._exit(1)
                if failures and i > last + 100:
                    os._exit(0)  # it needs no more allocations than that
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
