"""A child process: how it is started where forking is not possible, whether it moves, and how it ended."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection

from unskew.local.workers.recipe import Recipe


class Process:
    """A child process, forked or started."""

    def __init__(self, pid: int, popen: subprocess.Popen[bytes] | None = None) -> None:
        self.pid, self._popen = pid, popen
        self._ending: str | None = None  # the system reports it only once

    def ended(self) -> str | None:
        """Description of how it ended; None while it runs."""
        if self._ending is None:
            self._ending = self._poll()
        return self._ending

    def _poll(self) -> str | None:
        if self._popen is not None:
            code = self._popen.poll()
            return None if code is None else _in_words(code)
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return "it is gone"
        return _in_words(os.waitstatus_to_exitcode(status)) if pid else None

    def stopped(self) -> bool:
        """True if a signal has stopped it; False where the system cannot say (macOS before Python 3.13)."""
        if self._ending is not None or not hasattr(os, "waitid"):
            return False
        try:  # WNOWAIT: how it ends is for `ended` to collect
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return False

    def cpu_s(self) -> float:
        """Processor time it has used, seconds; NaN where there is no /proc."""
        try:
            with open(f"/proc/{self.pid}/stat", encoding="ascii", errors="replace") as stat:
                # Its name comes second, in brackets, and may hold spaces and brackets itself.
                fields = stat.read().rpartition(")")[2].split()
        except OSError:
            return math.nan
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """End it without waiting."""
        if self._ending is None:  # its number may be another process's by now
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """End it and wait until it is gone."""
        if self.ended() is not None:  # its number may be another process's by now
            return
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait()
            return
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


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


def start(recipe: Recipe, pipe: Connection) -> Process:
    """Start a worker as a new Python process that answers at this end of a pipe."""
    os.set_inheritable(pipe.fileno(), True)
    order = json.dumps({"fd": pipe.fileno(), "target": recipe.target, "arguments": recipe.arguments})
    # It imports from where this process does: the working directory, which -c would put first, can be anybody's folder.
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from unskew.local.workers.worker import started; started(sys.argv[1])"
    )
    child = subprocess.Popen([sys.executable, "-P", "-c", code, order], pass_fds=[pipe.fileno()])
    return Process(child.pid, child)


def _in_words(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"
