"""Files are written whole or not at all."""

import errno
import os
import stat
import time
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unskew import files
from unskew.files import PRIVATE, appendable, from_toml, read_bytes, readable, temporary_folder, write_atomically
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


# ---------------------------------------------------------------- TOML
SOUP = st.text(st.sampled_from("\"'\\.#ab \n=[]{},"), max_size=12)
"""What ends a string or a comment too early, or too late, for whoever does not read it as TOML does."""
PARTS = st.sampled_from(["a", "-1", '"!"', "'.'", '"\\""', "'\\'", '"#"', "'\"'", '""', '"a.b"'])
VALUES = st.one_of(
    SOUP.map(lambda s: '"' + s.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'),
    SOUP.map(lambda s: "'" + s.replace("'", "").replace("\n", "") + "'"),
    SOUP.map(lambda s: '"""' + s.replace("\\", "\\\\") + '"""'),
    SOUP.map(lambda s: "'''" + s + "'''"),
    SOUP.map(lambda s: "1 #" + s.replace("\n", "")),
    st.just("[1.5, 2.5]"),
)


def accepted(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


LINES = st.lists(VALUES, max_size=4).map(
    lambda values: "".join(f"k{i} = {value}\n" for i, value in enumerate(v for v in values if accepted(f"v = {v}")))
)


@given(LINES)
def test_what_toml_means_is_what_is_read(text: str) -> None:
    assert from_toml(text) == tomllib.loads(text)


@given(LINES, st.lists(PARTS, min_size=1, max_size=5), st.sampled_from([".", " . ", "\t."]), st.integers(0, 3))
def test_a_key_of_too_many_parts_never_reaches_the_parser(text: str, parts: list[str], dot: str, place: int) -> None:
    """However its parts are quoted, and whatever strings and comments stand before it."""
    key = dot.join(parts * 101)
    line = (f"{key} = 1", f"[{key}]", f"x = {{{key} = 1}}", f"[[{key}]]")[place]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files.tomllib, "loads", lambda text: pytest.fail("it was parsed"))
        with pytest.raises(RecursionError, match="nested too deeply"):
            from_toml(f"{text}{line}\n")


def test_a_temporary_folder_is_nobody_elses_and_is_removed_unless_it_is_renamed(tmp_path: Path) -> None:
    with temporary_folder(tmp_path / "above" / "run") as one, temporary_folder(tmp_path / "above" / "run") as other:
        assert one != other
        assert [stat.S_IMODE(path.stat().st_mode) for path in (one, other)] == [0o700, 0o700]
        one.rename(tmp_path / "above" / "run")
    assert [p.name for p in (tmp_path / "above").iterdir()] == ["run"]


def test_quotes_do_not_hide_a_key_that_takes_minutes() -> None:
    """The attack that worked: `"!"."!"...`, 6 s for 80 kB; and what would keep a slow guard busy instead."""
    begun = time.process_time()
    for text in (".".join(['"!"'] * 20_000) + " = 1", '\\"' * 80_000, '"' * 160_000, "'''" * 50_000, "a . " * 40_000):
        with pytest.raises((RecursionError, tomllib.TOMLDecodeError)):
            from_toml(text)
    assert time.process_time() - begun < 1.0


def test_short_keys_in_tables_in_tables_are_nested_too_deeply_as_well() -> None:
    """The attack that worked: 2.4 kB that tomllib reads, and on which whatever walks a table runs out of stack."""
    inner = "a." * 60 + "b = "
    assert from_toml(f"{inner}1")
    with pytest.raises(RecursionError, match="nested too deeply"):
        from_toml(f"{inner}{{{inner}{{{inner}1}}}}")
