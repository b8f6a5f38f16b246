"""A lock that a process loses when it ends, however it ends: `flock`, which Linux and macOS have."""

import os
from pathlib import Path
from typing import IO, Any

from unskew.errors import RunError

try:
    import fcntl
except ModuleNotFoundError:
    raise ImportError(
        "unskew runs on Linux and macOS, and this system has no file locks as they have (fcntl); on Windows, use WSL 2"
    ) from None


def lockable(path: Path) -> IO[bytes]:
    """Open a file that is there only to be locked; it is made if it is missing.

    A folder from elsewhere may have a link in its place: what that points at is neither opened nor emptied.

    Raises:
        OSError: If it cannot be opened, or is a link.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    return open(path, "wb", opener=lambda name, _: os.open(name, flags, 0o666))


def lock(file: IO[Any]) -> None:
    """Take a file's lock without waiting for it.

    Raises:
        BlockingIOError: If another process has it.
        RunError: If the file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        raise RunError(
            f"{file.name} cannot be locked ({error.strerror}); use a folder on a file system that has locks, "
            "such as a local disk"
        ) from None
