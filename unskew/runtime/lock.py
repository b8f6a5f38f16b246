"""A lock that a process loses when it ends, however it ends: `flock`, which Linux and macOS have."""

from typing import IO, Any

try:
    import fcntl
except ModuleNotFoundError:
    raise ImportError(
        "unskew runs on Linux and macOS, and this system has no file locks as they have (fcntl); on Windows, use WSL 2"
    ) from None


def lock(file: IO[Any]) -> None:
    """Take a file's lock without waiting for it.

    Raises:
        OSError: If another process has it.
    """
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
