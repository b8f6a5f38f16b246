"""A lock that a process loses when it ends, however it ends: `flock`, which Linux and macOS have."""

from typing import IO, Any

from unskew.errors import RunError

try:
    import fcntl
except ModuleNotFoundError:
    raise ImportError(
        "unskew runs on Linux and macOS, and this system has no file locks as they have (fcntl); on Windows, use WSL 2"
    ) from None


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
            f"{file.name} cannot be locked ({error.strerror}); take a folder on a file system that has locks, "
            "such as a local disk"
        ) from None
