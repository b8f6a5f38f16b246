"""A child process: how it is started where forking is not possible, and how it ended."""

import json
import os
import signal
import subprocess
import sys
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

    def end(self) -> None:
        """Stop it and wait until it is gone."""
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


def start(recipe: Recipe, pipe: Connection) -> Process:
    """Start a worker as a new Python process that answers at this end of a pipe."""
    os.set_inheritable(pipe.fileno(), True)
    order = json.dumps({"fd": pipe.fileno(), "target": recipe.target, "arguments": recipe.arguments})
    code = "import sys; from unskew.local.workers.worker import started; started(sys.argv[1])"
    child = subprocess.Popen([sys.executable, "-c", code, order], pass_fds=[pipe.fileno()])
    return Process(child.pid, child)


def _in_words(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"
