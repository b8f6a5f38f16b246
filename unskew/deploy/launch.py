"""Starts Flower's programs as a server's or a client's, watches them, and says why one has ended.

A server is a SuperLink on loopback with a SuperExec beside it, and a reverse proxy at the address that clients reach
(`unskew.deploy.proxy`), which lets them through to the one interface that asks for their keys.  A client is a SuperNode
with a SuperExec of its own, and a resident process of ours, so that PyTorch and the data are loaded once and not for
every message.  Every process is a child of a `ProcessGroup`.
"""

import http.client
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from unskew.deploy import commands, folders, versions
from unskew.deploy.certificates import check_node, check_server, identity, openssh
from unskew.deploy.commands import LOOPBACK
from unskew.deploy.folders import CONNECTION
from unskew.deploy.processes import ChildProcess, ProcessGroup, ended_with_parent
from unskew.deploy.reach import Unreachable, check_port, free_ports, probe
from unskew.deploy.settings import CODE_PATH, Address, Site, code_path
from unskew.errors import DeployError
from unskew.runtime import resident

HEALTHY_WITHIN_S = 90.0
LONGEST = 600  # characters of a program's last line in an error
REJOIN_S = 90.0
"""Time to keep trying with a refused key, seconds: Flower keeps a lost node's session for up to 60 s."""
SESSION_S = 65.0
"""Time after which a client's last session is over, seconds."""
LOOK_EVERY_S = 2.0
"""Interval between two looks at a SuperNode's log, seconds."""
LONGEST_PAUSE_S = 60.0
"""Longest pause before a client's programs are started again, seconds."""

Say = Callable[[str], None]


# ---------------------------------------------------------------- why a program ended
def explain(child: ChildProcess) -> str:
    """Explain in one sentence why a program has ended."""
    output = child.said()
    for pattern, sentence in (
        (r"address already in use", "its port is in use by another program; choose another one in network.toml"),
        (r"\[code: 2004\]", REFUSED),
        (r"\[code: 2001\]", "the server admits registered keys only, and this client has shown none"),
        (r"Invalid SuperNode authentication", "the server does not accept its signature; compare the clocks of both"),
        (
            r"(?:RUNTIME_VERSION_INCOMPATIBLE|Exit Code: 606|[Ii]ncompatible.*version)",
            "server and client have different releases of Flower; install the same flwr on both",
        ),
        (r"CERTIFICATE_VERIFY_FAILED", "the server's certificate is not of this federation; copy ca.crt from its pack"),
        (r"No space left on device", "the disk is full; make room"),
        (r"SuperNode terminated gracefully", SERVER_ENDED),
    ):
        if re.search(pattern, output):
            return f"{child.name} ended: {sentence} (log: {child.log})"
    # At its end Flower's server in each program says that all is well.
    lines = [line.strip() for line in output.splitlines() if line.strip() and not re.match(r"INFO\s*:", line)]
    last = f": {_shortened(lines[-1])}" if lines else ""
    return f"{child.name} ended with code {child.process.poll()}{last} (log: {child.log})"


def _shortened(text: str) -> str:
    """Cut a long text at a word; a start error names several things, and ends with what to do."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3].rsplit(' ', 1)[0]}..."


REFUSED = (
    "the server refuses this client's key: it is not in the server's folder clients/, or another process uses it "
    "(two clients with one identity)"
)

# A SuperNode ends itself, with code 0, when a server that was started again no longer knows its session.
SERVER_ENDED = "the server ended the connection, as it does when it was started again"


# ---------------------------------------------------------------- server
@dataclass(frozen=True, eq=False)
class ServerProcesses:
    """A server's SuperLink, the reverse proxy in front of it and the SuperExec beside it.

    Attributes:
        folder: The server's folder.
        home: Flower's home.
        children: All three.
    """

    folder: Path
    home: Path
    children: tuple[ChildProcess, ...]

    def check(self) -> None:
        """Make sure that all are running.

        Raises:
            DeployError: Naming the one that ended, and the reason if it is known.
        """
        for child in self.children:
            if not child.running():
                raise DeployError(explain(child))


def start_server(group: ProcessGroup, folder: Path, listen: Address) -> ServerProcesses:
    """Start a server, with every key of `clients/` registered and nodes.json written.

    Raises:
        DeployError: If certificate, port or keys cannot be used, or a program ends.
    """
    check_server(folder)
    check_port(listen)
    group.variables[CODE_PATH] = code_path()  # Flower starts the run's program itself, with an environment like ours
    known = folders.keys(folder)
    inner = Address(LOOPBACK, free_ports(1)[0])
    secret, home, logs = folders.write_secret(folder), folders.write_home(folder, inner), folder / "logs"
    link = group.start(commands.superlink(folder, inner.port, secret), home, logs / "superlink.log", "SuperLink")
    proxy = group.start(
        commands.proxy_program(folder, listen, inner.port), home, logs / "proxy.log", "the server's proxy"
    )
    wait_until(link, lambda: probe(inner, folder / "ca.crt"))
    here = (listen.here.host, listen.here.port)
    wait_until(proxy, lambda: socket.create_connection(here, 1.0).close())
    execute = commands.superexec(inner, secret, folder / "ca.crt", os.getpid())
    server = ServerProcesses(
        folder, home, (link, proxy, group.start(execute, home, logs / "superexec.log", "the server's SuperExec"))
    )
    folders.write_nodes(folder, {c: int(answer["node-id"]) for c, answer in _register(known, home).items()})
    return server


def _register(known: Mapping[int, Path], home: Path) -> dict[int, dict[str, Any]]:
    """Register all keys; Flower's answer for each.  Four at a time, since each takes a program that starts slowly."""
    answers: dict[int, dict[str, Any]] = {}
    clients = list(known)
    for several in (clients[i : i + 4] for i in range(0, len(clients), 4)):
        asked = {c: _start_program(commands.register(known[c]), home) for c in several}
        try:
            answers.update({c: _answer(p, f"register client {c}") for c, p in asked.items()})
        finally:
            for p in asked.values():
                p.kill()
                p.communicate()
    return answers


def start_run(server: ServerProcesses, force: bool = False) -> int:
    """Start the run, or go on with it, if `force` under other versions, too; Flower's number of it."""
    return int(call(commands.submit(folders.write_app(server.folder, force)), server.home, "start the run")["run-id"])


def run_status(server: ServerProcesses, run: int) -> tuple[str, str]:
    """Ask Flower for (status, details) of a run: pending, starting, running, finished:completed, ..."""
    answer = call(commands.status(run), server.home, "ask for the run's status")
    entry = answer["runs"][0]
    return str(entry["status"]), str(entry.get("status-details", ""))


def printed(server: ServerProcesses, run: int) -> str:
    """Output of a run's server program, as Flower keeps it."""
    process = _start_program(["flwr", "log", str(run), CONNECTION, "--show"], server.home)
    try:
        return process.communicate(timeout=HEALTHY_WITHIN_S)[0]
    except subprocess.TimeoutExpired:
        return ""
    finally:
        process.kill()
        process.communicate()


def call(command: Sequence[str], home: Path, purpose: str) -> dict[str, Any]:
    """Run one of Flower's programs and return the JSON it prints.

    Raises:
        DeployError: If it fails or prints something else.
    """
    process = _start_program(command, home)
    try:
        return _answer(process, purpose)
    finally:
        process.kill()
        process.communicate()


def _start_program(command: Sequence[str], home: Path) -> "subprocess.Popen[str]":
    program, *arguments = command
    line = [*ended_with_parent(), str(versions.programs() / program), *arguments]
    return subprocess.Popen(
        line,
        env=commands.environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _answer(process: "subprocess.Popen[str]", purpose: str) -> dict[str, Any]:
    try:
        out, err = process.communicate(timeout=HEALTHY_WITHIN_S)
    except subprocess.TimeoutExpired:
        raise DeployError(
            f"Flower took more than {HEALTHY_WITHIN_S:.0f} s to {purpose}; this machine is overloaded"
        ) from None
    try:
        answer = json.loads(out)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or answer.get("success") is not True:
        output = str(answer.get("error-message", "")) if isinstance(answer, dict) else out + err
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        raise DeployError(f"Flower could not {purpose}: {' '.join(lines)[-300:] or f'code {process.returncode}'}")
    return answer


def wait_until(program: ChildProcess, answers: Callable[[], object]) -> None:
    """Wait until a program answers, which it does once `answers` raises no error of a network.

    Raises:
        DeployError: If it ends, or takes too long.
    """
    until = time.monotonic() + HEALTHY_WITHIN_S
    while time.monotonic() < until:
        if not program.running():
            raise DeployError(explain(program))
        with suppress(OSError, http.client.HTTPException, Unreachable):
            answers()
            return
        time.sleep(0.05)
    raise DeployError(f"{program.name} did not answer within {HEALTHY_WITHIN_S:.0f} s (log: {program.log})")


class SharedKeys:
    """Notices in a SuperLink's log that a client's key is tried while another process uses it.

    A client that was started anew is refused, too, until its last session is over: who is refused for longer is a
    second process.

    Args:
        link: The SuperLink.
        keys: The clients' public keys, as `folders.keys` has them.
    """

    def __init__(self, link: ChildProcess, keys: Mapping[int, Path]) -> None:
        self.link = link
        self.clients = {identity(path): client for client, path in keys.items()}
        self.read = 0
        self.refused: dict[int, tuple[float, float]] = {}  # times of the first and the last refusal in a row
        self.told: set[int] = set()

    def new_lines(self) -> Iterator[str]:
        """Yield a line for each client whose key is found to be in use twice; to be called often."""
        output, self.read = self.link.news(self.read)
        now = time.monotonic()
        for client in {self.clients[key] for key in keys_in_use(output) if key in self.clients}:
            first, last = self.refused.get(client, (now, now))
            if now - last > REJOIN_S:
                first = now
                self.told.discard(client)
            self.refused[client] = first, now
            if now - first > SESSION_S and client not in self.told:
                self.told.add(client)
                yield (
                    f"client {client}'s key is tried by a second process, which is refused while the first one takes "
                    "part: ask that participant whether they started two; if not, the key is known to somebody else: "
                    "give them a new one"
                )


def keys_in_use(output: str) -> Iterator[str]:
    """Yield the public keys, in OpenSSH's form, that a SuperLink refused because they are in use."""
    for text in re.findall(r"\[ApiError:2004\][^\n]*?b'(-----BEGIN PUBLIC KEY-----[^'\n]*)'", output):
        with suppress(ValueError, UnsupportedAlgorithm):
            key = serialization.load_pem_public_key(text.replace("\\n", "\n").encode())
            if isinstance(key, ec.EllipticCurvePublicKey):
                yield openssh(key)


# ---------------------------------------------------------------- client
class ClientProcesses:
    """A client's resident process, SuperNode and SuperExec, restarted when one of them ends.

    Args:
        group: Group that the processes belong to.
        folder: The client's folder.
        say: Called with a line when something happens.
        name: Name of the client in messages to the user.
        restart: False to leave the client stopped when one of its processes has ended.
        site: What the participant says of its data.
        progress: True to say also how far the run is, which the server of this machine says otherwise.

    Raises:
        DeployError: If the folder's keys cannot be used.
    """

    def __init__(
        self,
        group: ProcessGroup,
        folder: Path,
        say: Say,
        name: str = "client",
        restart: bool = True,
        site: Site = Site(),
        progress: bool = True,
    ) -> None:
        check_node(folder)
        self.site, self.progress = site, progress
        self.group, self.folder, self.say, self.name, self.restart = group, folder, say, name, restart
        self.reached = folders.address(folder)
        self.children: tuple[ChildProcess, ...] = ()
        self.config, self.home = folders.write_node_config(folder), folders.write_home(folder)
        self.secret = folders.write_secret(folder)
        self.socket = folders.write_resident(folder, group.folder() / "socket")
        self.due: float | None = 0.0
        self.refused_since: float | None = None
        self.failures = 0
        self.started = self.look_at = 0.0
        self.read = self.told = 0

    def start(self) -> None:
        """Start all three."""
        logs, port = self.folder / "logs", free_ports(1)[0]
        node = commands.supernode(self.folder, self.reached, port, self.secret, self.config)
        execute = commands.superexec(Address(LOOPBACK, port), self.secret, None, os.getpid())
        self.children = (
            self.group.start(
                commands.resident_program(self.folder, self.socket, self.site),
                self.home,
                logs / "resident.log",
                f"{self.name}'s resident",
            ),
            self.group.start(node, self.home, logs / "supernode.log", f"{self.name}'s SuperNode"),
            self.group.start(execute, self.home, logs / "superexec.log", f"{self.name}'s SuperExec"),
        )
        self.started, self.due, self.read = time.monotonic(), None, 0
        self.told = self.children[0].begins

    def supervise(self) -> None:
        """Start what is due and notice what has ended; to be called often.

        Raises:
            DeployError: If the server keeps refusing the key, settings or data cannot be used, or the programs end
                whenever they are started.
        """
        now = time.monotonic()
        if self.due is not None:
            if now >= self.due:
                self.start()
            return
        self._tell()
        ended = next((c for c in self.children if not c.running()), None)
        given_up = None if ended else self._lost_connection(now)
        if ended is None and given_up is None:
            if now - self.started > REJOIN_S:
                self.refused_since, self.failures = None, 0
            return
        self.group.stop(*self.children)
        why = given_up or explain(ended or self.children[1])
        if ended is self.children[0] and ended.process.returncode == resident.UNUSABLE:
            raise DeployError(why)
        self.children = ()
        if not self.restart:
            self.due = float("inf")
            self.say(f"{why}; it is not restarted")
        elif REFUSED in why:
            self._retry_after_refusal(now, why)
        else:
            self._restart(now, why, away=given_up is not None)

    def _tell(self) -> None:
        """Say what the resident process says of the client: its rounds, that the server refuses it, its full disk."""
        lines, self.told = folders.fresh_lines(self.children[0].log, self.told)
        for line in map(resident.untimed, lines):
            of_run = line.startswith(resident.PROGRESS)
            line = line.removeprefix(resident.PROGRESS)
            if re.match(r"client \d+\b", line) and (self.progress or not of_run):
                self.say(line)

    def _lost_connection(self, now: float) -> str | None:
        """Explain why the SuperNode has given up its connection; None if it has not.

        It does not retry a connection that breaks in the middle of the TLS handshake, as behind a proxy whose server is
        away, although its process keeps running.
        """
        if now < self.look_at:
            return None
        self.look_at = now + LOOK_EVERY_S
        node = self.children[1]
        output, self.read = node.news(self.read)
        # An error with an exit code ends the process by itself.
        errors = re.findall(r"^ERROR\s*:\s*(?!\s|Exit Code)(.+)$", output, re.M)
        if not errors:
            return None
        return f"{node.name} gave up its connection: {_shortened(errors[-1].strip())} (log: {node.log})"

    def _retry_after_refusal(self, now: float, why: str) -> None:
        if self.refused_since is None:
            self.refused_since = now
            self.say(f"{self.name} is refused for now: its last session may not be over; trying for {REJOIN_S:.0f} s")
        if now - self.refused_since > REJOIN_S:
            raise DeployError(why)
        self.due = now + 3.0

    def _restart(self, now: float, why: str, away: bool) -> None:
        """Start the programs again after a pause; a server that is away may come back at any time."""
        self.failures = self.failures + 1 if now - self.started < REJOIN_S else 1
        if self.failures > 5 and not away:
            raise DeployError(why)
        pause = min(2.0 ** (self.failures - 1), LONGEST_PAUSE_S)
        self.say(f"{why}; {'it is tried again' if SERVER_ENDED in why else 'restarting'} in {pause:.0f} s")
        self.due = now + pause
