"""A watchdog over workers: it reports one that makes no progress, and gives up one that stays stopped.

A stopped process (SIGSTOP, SIGTSTP) neither ends nor answers, so a run would wait for it silently and for ever.  A slow
worker is left alone: only one that the system calls stopped is given up.  One that is alive but uses no processor time
may be waiting for a disk, a lock or another machine, so it is reported and left to the user.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Thread

from unskew.local.workers.process import Process


@dataclass(frozen=True)
class Patience:
    """Time that a worker is given, seconds.

    Attributes:
        every_s: Between two looks at the workers.
        stopped_s: Until a stopped worker is reported.
        replace_s: Until a stopped worker is replaced.
        idle_s: Until a worker with work that uses no processor time is reported.
        again_s: Until it is reported again.
    """

    every_s: float = 1.0
    stopped_s: float = 5.0
    replace_s: float = 60.0
    idle_s: float = 120.0
    again_s: float = 1800.0


class Watch:
    """Observations of one worker: how long it has been stopped or idle, and what was last reported of it.

    Time is counted in looks, not by a clock: while the main process is stopped itself, it runs for nobody.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._state, self._cpu_s = "", float("nan")
        self._looks, self._report_at = 0, 0.0
        self.given_up = False

    def look(self, process: Process, busy: bool) -> str:
        """Look at the worker's process once more: a clause to report, with its remedy; empty if there is none."""
        if self.given_up:
            return ""
        before, cpu_s = self._cpu_s, process.cpu_s()
        self._cpu_s = cpu_s
        state = "" if not busy else "stopped" if process.stopped() else "idle" if cpu_s == before else ""
        if state != self._state:
            self._state, self._looks = state, 0
            self._report_at = self._patience.stopped_s if state == "stopped" else self._patience.idle_s
        if not state:
            return ""
        self._looks += 1
        seconds = self._looks * self._patience.every_s
        if state == "stopped" and seconds >= self._patience.replace_s:
            self.given_up = True
            return f"has been stopped for {seconds:.3g} s and is replaced; its work is done again"
        if seconds < self._report_at:
            return ""
        self._report_at += self._patience.again_s
        if state == "stopped":
            return (
                f"has been stopped for {seconds:.3g} s; kill -CONT {process.pid} lets it go on, else it is "
                f"replaced after {self._patience.replace_s:g} s"
            )
        return (
            f"has used no processor time for {seconds:.3g} s and may be waiting for a disk or a lock; if it "
            f"does not go on, kill -KILL {process.pid} ends the run, which unskew run continues"
        )


class Watchdog:
    """A thread that calls a function at intervals until it is closed.

    A thread, because the main process may be in the middle of a pipe whose other end does not move.
    """

    def __init__(self, look: Callable[[], None], every_s: float) -> None:
        self._closing = Event()

        def watch() -> None:
            while not self._closing.wait(every_s):
                look()

        self._thread = Thread(target=watch, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and wait until it has ended."""
        self._closing.set()
        self._thread.join()
