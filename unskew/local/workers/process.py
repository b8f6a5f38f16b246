"""A child process: how it is forked, and how it ended."""

import os
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection


class Process:
    """A forked process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ending: str | None = None  # the system reports it only once

    def ended(self) -> str | None:
        """Description of how it ended; None while it runs."""
        if self._ending is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self._ending = _in_words(os.waitstatus_to_exitcode(status)) if pid else None
            except ChildProcessError:
                self._ending = "it is gone"
        return self._ending

    def end(self) -> None:
        """End it and wait until it is gone."""
        if self.ended() is None:  # else its number may be another process's by now
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)


def fork(child: Callable[[], object], close: Iterable[Connection]) -> Process:
    """Fork a process that does its work and ends.

    Args:
        child: Its work.
        close: Ends of pipes that are not its own: an inherited one would keep a pipe open when the parent dies.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Process(pid)
    try:  # the child never returns from here
        for pipe in close:
            pipe.close()
        child()
    finally:
        os._exit(0)


def _in_words(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"
