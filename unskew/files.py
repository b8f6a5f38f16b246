"""Files that are written whole or not at all, and that survive a power cut once they are."""

import errno
import json
import os
import re
import shutil
import stat
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from unskew.errors import DataError

Content = bytes | str | Iterable[bytes | memoryview]
"""A file's content, whole or in pieces; text becomes UTF-8."""
LINK = "symbolic links are not followed here"
DEEPEST = 100
"""Levels of tables and lists that a file in TOML may have: none that is meant has so many."""
_QUOTED = re.compile(
    r"""\#[^\n]*
    |"{3}(?:(?!"{3})(?:[^\\]|\\.))*(?:"{3,5}|\\?\Z) | '{3}(?:(?!'{3}).)*(?:'{3,5}|\Z)
    |"(?:[^"\\\n]|\\.)*"? | '[^'\n]*'?""",
    re.VERBOSE | re.DOTALL,
)
"""Comments and strings in TOML, of several lines and of one; what is not closed ends where the parser gives up.

Each alternative ends wherever it stops, so that nothing is tried twice.  Python 3.11.2 has no right possessive groups.
"""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{DEEPEST}}}")
PRIVATE = 0o600
"""Permissions of a file that only its owner may read."""


def user_path(written: str | Path) -> Path:
    """The path that a user has written, ~ for the home folder.

    Raises:
        DataError: If it is the home folder of somebody who is not here.
    """
    try:
        return Path(written).expanduser()
    except RuntimeError:
        raise DataError(f"{written}: there is no home folder of that user here; write the whole path") from None


def write_atomically(path: Path, content: Content, mode: int = 0o666) -> None:
    """Write a file whole or not at all: under another name, synced, then renamed; an older one is replaced.

    Args:
        path: The file.
        content: What it will hold.
        mode: Permissions, less what the user's umask takes away; a private file is never readable by anybody else, not
            even for a moment.

    Raises:
        OSError: If the disk refuses; its `filename` is `path`, and an older file is as it was.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        # One left by a process that was killed keeps its permissions; a link, in somebody's folder, leads elsewhere.
        temporary.unlink(missing_ok=True)
        write_synced(temporary, content, mode)
        temporary.replace(path)
    except BaseException as error:  # a second Ctrl-C, too, leaves nothing half-written
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):  # what fails in writing does not say where
            error.filename = str(path)
            del error.filename2  # None would be named as a second file
        raise
    sync_folder(path.parent)


def write_synced(path: Path, content: Content, mode: int = 0o666) -> None:
    """Write a file in place, and put it on the disk; it may be no link, and a private one must not be there yet."""
    pieces = [content.encode()] if isinstance(content, str) else [content] if isinstance(content, bytes) else content
    older = os.O_EXCL if mode == PRIVATE else os.O_TRUNC
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | older, mode), "wb") as f:
        f.writelines(pieces)
        f.flush()
        os.fsync(f.fileno())


def appendable(path: Path) -> IO[bytes]:
    """Open a file to append to it; it is made if it is missing, and may be no link: its folder may be somebody else's.

    Raises:
        OSError: If it cannot be opened, or is a link or a device.
    """
    return open(path, "ab", opener=_open_regular)


def readable(path: Path) -> IO[bytes]:
    """Open a file of a folder that may be somebody else's, to read it.

    A link could lead to a secret that is then shown, a device has no end, and a pipe keeps its reader waiting.

    Raises:
        OSError: If it cannot be opened, or is a link or a device.
    """
    return open(path, "rb", opener=_open_regular)


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """The content of a file of a folder that may be somebody else's, of at most so many bytes.

    Raises:
        OSError: As of `readable`, or if there is more in it.
    """
    with readable(path) as f:
        # Its size is asked for, since reading a number of bytes makes room for as many.
        if most is not None and os.fstat(f.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
        return f.read()


def unlinked(path: Path) -> Path:
    """Return a folder that lies in one that may be somebody else's, and whose files are about to be read.

    Raises:
        OSError: If it is a link.
    """
    if path.is_symlink():
        raise OSError(errno.ELOOP, LINK, str(path))
    return path


def _open_regular(name: str, flags: int, mode: int = 0o666) -> int:
    try:
        fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            error.strerror = LINK
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is a folder or a device, not a file", name)
    return fd


def from_toml(text: str) -> dict[str, Any]:
    """The table that a text in TOML describes.

    Raises:
        ValueError: If it is not TOML, or has an integer of thousands of digits.
        RecursionError: If it is nested more deeply than any file that is meant.
    """
    # tomllib takes time by the square of a key's parts, minutes for 40 kB; a quoted part may hold anything, dots too.
    if _LONG_KEY.search(_QUOTED.sub("q", text)):
        raise RecursionError("it is nested too deeply")
    table = tomllib.loads(text)
    level: list[Any] = [table]
    for _ in range(DEEPEST):
        level = [v for of in level for v in (of.values() if isinstance(of, dict) else of) if isinstance(v, dict | list)]
    if level:  # short keys in tables in tables: whoever walks through them runs out of stack
        raise RecursionError("it is nested too deeply")
    return table


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row to a file of JSON lines, on the disk when this returns; only its owner can read a new file.

    Raises:
        OSError: If the disk refuses, or the file is a link or a device: its folder may be somebody else's.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = _open_regular(str(path), os.O_RDWR | os.O_CREAT | os.O_APPEND, PRIVATE)
    with os.fdopen(fd, "r+b", buffering=0) as f:
        size = f.seek(0, os.SEEK_END)
        if size and os.pread(f.fileno(), 1, size - 1) != b"\n":
            f.write(b"\n")  # a row that a power cut tore stays a line of its own
        line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        if f.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(f.fileno())


@contextmanager
def temporary_folder(final: Path) -> Iterator[Path]:
    """A new folder beside `final` that only its owner can enter, to be filled and renamed; else it is removed.

    Its name is nobody else's: not that of a process that was killed, nor of one in another container.

    Raises:
        OSError: If the disk refuses.
    """
    final = final.absolute()
    if not final.parent.exists():
        final.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def rename_folder(temporary: Path, final: Path) -> None:
    """Give a folder that is written whole its name, so that it survives a power cut.

    Raises:
        OSError: If the disk refuses.
    """
    temporary.rename(final)
    sync_folder(final.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename in the folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
