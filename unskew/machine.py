"""Memory of this machine and this process, and its cores: how many, and of what kind."""

import os
import platform
import re
import sys
from contextlib import suppress
from pathlib import Path

from unskew.errors import DataError

with suppress(ModuleNotFoundError):  # elsewhere unskew does not run, but its doctor must be able to say so
    import resource

# Where container runtimes put a limit below what the machine has: version 2 of control groups, then version 1.
_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)

WHILE_READ = 3
"""Times their size that data take while they are read: as decoded, divided into parts, and a part in work."""


def cores() -> int:
    """Cores this process may use: those it is bound to, and at most OMP_NUM_THREADS."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    most = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # a list has a number for each nesting
    return min(bound, int(most)) if most.isdecimal() and int(most) else bound


def processor() -> str:
    """The processor's name, with family and model where it tells: "AMD EPYC" alone is several generations."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    fields = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", text, re.MULTILINE))
    numbers = [f"{what} {fields[key]}" for what, key in (("family", "cpu family"), ("model", "model")) if key in fields]
    return ", ".join([fields.get("model name", "unknown"), *numbers])


def resident() -> int:
    """Bytes this process holds in memory now; the peak so far where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return peak_resident()
    return pages * resource.getpagesize()


def peak_resident() -> int:
    """The most bytes this process has held in memory so far, its workers not counted."""
    # Linux counts in KiB, macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def total() -> int | None:
    """Bytes of memory of this machine; None where the system does not tell."""
    return _meminfo("MemTotal")


def available() -> int | None:
    """Bytes that can still be taken without swapping, a container's limit included; None where nobody tells."""
    limits = [n for n in (_meminfo("MemAvailable"), _below_limit()) if n is not None]
    return min(limits, default=None)


def require_room(size: int, what: object) -> None:
    """Refuse data that would not fit into memory, before they are unpacked.

    Args:
        size: Bytes that they take as they are kept.
        what: Their name, for the sentence.

    Raises:
        DataError: If that is more than can be taken.
    """
    room = available()
    if room is not None and WHILE_READ * size > room:
        raise DataError(
            f"{what} holds {size / 1e9:,.1f} GB when it is unpacked, which takes {WHILE_READ} times that, and "
            f"{room / 1e9:,.1f} GB can be taken; give part of it, or use a larger machine"
        )


def _meminfo(name: str) -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


def _below_limit() -> int | None:
    for limit, usage in _LIMITS:
        try:
            return max(int(Path(limit).read_text()) - int(Path(usage).read_text()), 0)
        except (OSError, ValueError):  # not there, or "max"
            continue
    return None
