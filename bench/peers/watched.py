"""A command under a time box, with the memory of its whole process tree.  Linux: it reads /proc."""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

EVERY_S = 0.1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Watched:
    """What became of a command.

    Attributes:
        began, ended: On the monotonic clock.
        failure: Why it did not end well; None if it did.
        pss_mb: Most memory its tree held at one moment, MB, pages shared by k processes counted 1/k each; None if not
            asked for.
    """

    began: float
    ended: float
    failure: str | None
    pss_mb: float | None


def adopt() -> None:
    """Make orphans of what is started here children of this process, so that no daemon gets out of sight."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def watch(command: Sequence[str], env: dict[str, str], box_s: float, said: Path, memory: bool) -> Watched:
    """Run a command to its end or to the end of its box; whatever it leaves behind is killed."""
    peak = 0.0
    with said.open("wb") as out:
        began = time.monotonic()
        process = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        failure = None
        while True:
            try:
                code = process.wait(EVERY_S if memory else max(began + box_s - time.monotonic(), 0))
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() - began >= box_s:
                    code, failure = None, f"did not finish in its box of {box_s:.0f} s"
                    break
                if memory:
                    peak = max(peak, sum(map(_pss_mb, _descendants())))
        ended = time.monotonic()
    _kill_the_rest()
    if code:
        lines = [line.strip() for line in said.read_text(errors="replace").splitlines() if line.strip()]
        failure = f"exit code {code}: {' '.join(lines[-1:])[-300:] or 'it said nothing'}"
    return Watched(began, ended, failure, peak if memory else None)


def _descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # pid (name) state ppid ...; a name may hold spaces and brackets.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [os.getpid()]
    while queue:
        mine = children.get(queue.pop(), [])
        found += mine
        queue += mine
    return found


def _pss_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it ended a moment ago
        return 0.0
    return next((int(line.split()[1]) / 1e3 for line in lines if line.startswith("Pss:")), 0.0)


def _kill_the_rest() -> None:
    until = time.monotonic() + 10
    while (left := _descendants()) and time.monotonic() < until:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                break
        time.sleep(0.05)
