"""Files are written whole or not at all."""

import errno
import os
import stat
from pathlib import Path

import pytest

from unskew.files import PRIVATE, appendable, read_bytes, readable, write_atomically
from unskew.lock import lock, lockable


def test_a_file_is_written_whole_from_text_bytes_or_pieces(tmp_path: Path) -> None:
    for content in ("é", "é".encode(), [b"\xc3", memoryview(b"\xa9")]):
        write_atomically(tmp_path / "file", content)
        assert (tmp_path / "file").read_text("utf-8") == "é"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_file_that_cannot_be_written_leaves_the_older_one_and_says_which_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomically(tmp_path / "file", "older")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_atomically(tmp_path / "file", "newer")
    assert caught.value.filename == str(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "older"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_file_in_no_folder_is_the_only_one_that_the_error_names(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_atomically(tmp_path / "no" / "file", "text")
    assert str(caught.value) == f"[Errno {errno.ENOENT}] No such file or directory: {str(tmp_path / 'no' / 'file')!r}"
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_atomically(tmp_path / "folder", "text")  # renaming fails, which has two names
    assert str(caught.value) == f"[Errno {errno.EISDIR}] Is a directory: {str(tmp_path / 'folder')!r}"


def test_a_request_to_stop_leaves_no_half_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(fd: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", impatient)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", "text")
    assert list(tmp_path.iterdir()) == []


def test_a_private_file_is_private_from_the_start_even_under_a_loose_umask(tmp_path: Path) -> None:
    (tmp_path / "secret.tmp").write_bytes(b"left by a process that was killed")
    old = os.umask(0)
    try:
        write_atomically(tmp_path / "secret", b"a", PRIVATE)
        write_atomically(tmp_path / "secret", b"b", PRIVATE)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert (tmp_path / "secret").read_bytes() == b"b"
    assert [p.name for p in tmp_path.iterdir()] == ["secret"]


@pytest.mark.parametrize("mode", [0o666, PRIVATE])
def test_a_link_in_a_folder_from_elsewhere_is_replaced_and_its_target_left_alone(tmp_path: Path, mode: int) -> None:
    """`report.html.tmp -> ~/.bashrc`, or `report.html -> ~/.bashrc`, in a run's folder that somebody sent."""
    target, folder = tmp_path / "bashrc", tmp_path / "run"
    target.write_text("mine")
    folder.mkdir()
    for name in ("report.html", "report.html.tmp"):
        (folder / name).symlink_to(target)
    write_atomically(folder / "report.html", "theirs", mode)
    assert target.read_text() == "mine"
    assert (folder / "report.html").read_text() == "theirs"
    assert not (folder / "report.html").is_symlink()
    assert [p.name for p in folder.iterdir()] == ["report.html"]


def test_a_file_to_lock_is_no_link_and_what_the_link_points_at_is_not_emptied(tmp_path: Path) -> None:
    target = tmp_path / "bashrc"
    target.write_text("mine")
    (tmp_path / ".lock").symlink_to(target)
    with pytest.raises(OSError, match="symbolic link"):
        lockable(tmp_path / ".lock")
    assert target.read_text() == "mine"
    with lockable(tmp_path / "own.lock") as file:
        lock(file)
        with lockable(tmp_path / "own.lock") as second, pytest.raises(BlockingIOError):
            lock(second)


def test_a_pipe_in_the_place_of_a_lock_does_not_keep_anyone_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(OSError, match="No such device"):
        lockable(tmp_path / ".lock")


@pytest.mark.parametrize("kind", ["link", "device", "pipe", "folder"])
def test_of_a_folder_from_elsewhere_only_regular_files_are_opened(kind: str, tmp_path: Path) -> None:
    """A link may lead to a secret, a device has no end, and opening a pipe waits for somebody at its other end."""
    path = tmp_path / "ledger.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "/etc/hostname")
    for use in (readable, read_bytes, appendable):
        with pytest.raises(
            OSError, match=r"symbolic links|a folder or a device, not a file|Is a directory|No such device"
        ):
            use(path)


def test_a_file_larger_than_it_may_be_is_not_read_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_bytes(tmp_path / "file", 4)
