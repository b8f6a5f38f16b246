"""Child processes that are ended, and waited for, when the `with` block they were started in is left for any reason.

If this process is killed outright, Linux tells its children (setpriv), and a SuperExec notices by itself.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from unskew.deploy import versions
from unskew.deploy.commands import environment
from unskew.errors import DeployError
from unskew.signals import handled

GRACE_S = 8.0
"""Time between SIGTERM and SIGKILL, seconds; an open connection can hold up a SuperLink for longer."""

PREFIX = "unskew-"
"""Beginning of the names of temporary folders."""
LONGEST_SOCKET = 103
"""Longest path of a Unix socket on macOS, bytes; on Linux 107."""


@dataclass(frozen=True, eq=False)
class ChildProcess:
    """A program that was started, in a process group of its own.

    Attributes:
        name: Name of the program in messages to the user.
        process: The process.
        log: File with its output.
        begins: Size of the log when the program was started, bytes.
    """

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path
    begins: int

    def running(self) -> bool:
        """True if it has not ended."""
        return self.process.poll() is None

    def said(self) -> str:
        """All its output, without colours."""
        return self.news(0)[0]

    def news(self, since: int) -> tuple[str, int]:
        """Output from byte `since` on, without colours, and the position after its last complete line."""
        try:
            with self.log.open("rb") as f:
                f.seek(self.begins + since)
                data = f.read()
        except OSError:
            return "", since
        text = re.sub(r"\x1b\[[0-9;]*m", "", data.decode("utf-8", "replace"))
        return text, since + data.rfind(b"\n") + 1

    def signal(self, number: int) -> None:
        """Send a signal to it and to whatever it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


class ProcessGroup:
    """Child processes that never outlive the `with` block they were started in.

    Attributes:
        children: The processes.
        variables: Variables of the environment that they are given besides.
    """

    def __init__(self) -> None:
        self.children: list[ChildProcess] = []
        self.variables: dict[str, str] = {}
        self._folders = ExitStack()

    def __enter__(self) -> "ProcessGroup":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Ending processes takes seconds, in which no signal is to interrupt it.
        with handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), signal.SIG_IGN):
            # Clients end first: a SuperNode signs off while there is still a SuperLink.
            for depth in sorted({_depth(c) for c in self.children}, reverse=True):
                end([c for c in self.children if _depth(c) == depth])
            self.children.clear()
            self._folders.close()

    def folder(self) -> Path:
        """Make a private folder with a short path, for a socket; it is removed with the processes.

        Those of processes that were killed outright are removed, too.

        Raises:
            DeployError: As `place_for_sockets`.
        """
        place = place_for_sockets()
        remove_left_sockets(place)
        folder = tempfile.TemporaryDirectory(prefix=PREFIX, dir=place, ignore_cleanup_errors=True)
        return Path(self._folders.enter_context(folder))

    def start(self, command: Sequence[str], home: Path, log: Path, name: str = "") -> ChildProcess:
        """Start a program of Flower's.

        Args:
            command: Name and arguments of the program.
            home: Flower's home.
            log: File that its output is appended to.
            name: Name in messages to the user; by default the program's name.

        Raises:
            DeployError: If it cannot be started.
        """
        program, *arguments = command
        log.parent.mkdir(parents=True, exist_ok=True)
        path = program if Path(program).is_absolute() else str(versions.programs() / program)
        line = [*ended_with_parent(), path, *arguments]
        try:
            with log.open("ab") as out:
                begins = out.tell()
                process = subprocess.Popen(
                    line,
                    env={**environment(home), **self.variables},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise DeployError(f"cannot start {program}: {error.strerror}") from None
        child = ChildProcess(name or program, process, log, begins)
        self.children.append(child)
        return child

    def stop(self, *children: ChildProcess) -> None:
        """End some of the processes now."""
        end(children)
        self.children = [c for c in self.children if c not in children]


def place_for_sockets() -> Path:
    """The folder for temporary files if its path is short enough for sockets in it, else the system's usual one.

    Raises:
        DeployError: If neither can be used.
    """
    usual, room = Path(tempfile.gettempdir()), LONGEST_SOCKET - len(f"/{PREFIX}12345678/socket")
    for place in (usual, Path("/tmp")):
        if len(os.fsencode(place)) <= room and os.access(place, os.W_OK | os.X_OK):
            return place
    raise DeployError(
        f"a client needs a socket in a folder whose path has at most {room} bytes, {usual} is longer and /tmp cannot "
        "be written; set TMPDIR to a shorter folder"
    )


def remove_left_sockets(place: Path) -> None:
    """Remove folders of one's own whose socket nobody listens at: their processes were killed outright."""
    try:
        known = Path("/proc/net/unix").read_text(errors="replace")
    except OSError:  # not on Linux
        return
    for folder in place.glob(f"{PREFIX}????????"):
        path = folder / "socket"
        try:
            if path.lstat().st_uid != os.getuid() or not path.is_socket() or str(path) in known:
                continue
            with socket.socket(socket.AF_UNIX) as client:  # it may be of another network namespace
                client.connect(str(path))
        except ConnectionRefusedError:
            with suppress(OSError):
                path.unlink()
                folder.rmdir()
        except OSError:
            continue


def _depth(child: ChildProcess) -> int:
    return 1 if child.name.startswith("client") else 0


def ended_with_parent() -> list[str]:
    """Prefix of a command line that makes Linux end the child when this process is killed outright."""
    tool = shutil.which("setpriv")
    # The signal is sent when the *thread* that started the child ends, so only the main thread may ask for it.
    tie = tool and sys.platform == "linux" and threading.current_thread() is threading.main_thread()
    return [tool, "--pdeathsig", "TERM", "--"] if tool and tie else []


def end(children: Sequence[ChildProcess], grace_s: float = GRACE_S) -> None:
    """End programs and everything they started, by SIGTERM and after `grace_s` seconds by SIGKILL; wait for all."""
    for child in children:
        child.signal(signal.SIGTERM)
    until = time.monotonic() + grace_s
    for child in children:
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(max(until - time.monotonic(), 0.0))
    for child in children:
        child.signal(signal.SIGKILL)  # the group may have members left although its first process has ended
        child.process.wait()


def stoppable() -> AbstractContextManager[None]:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does: by leaving every open `with` block."""

    def heard(number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    return handled((signal.SIGTERM, signal.SIGHUP), heard)
