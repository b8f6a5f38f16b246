"""Starts Flower's programs and ends them: the only module that knows their command lines.

A server is a SuperLink on loopback with a SuperExec beside it, and a reverse proxy at the address that clients reach
(`unskew.deploy.proxy`), which lets them through to the one interface that asks for their keys.  A client is a SuperNode
with a SuperExec of its own, and a resident process of ours, so that PyTorch and the data are loaded once and not for
every message.  All run with process isolation, so that a task is only given to a process that knows the SuperExec's
secret; the SuperLink speaks TLS with the federation's certificate and accepts registered keys only.  Flower's home is a
private folder; its telemetry, its check for updates and its installation of dependencies are switched off.

Every process is a child of a `ProcessGroup`, which ends and waits for all of them when its `with` is left, for whatever
reason.  If this process is killed outright, Linux tells its children (setpriv), and a SuperExec notices by itself.
"""

import http.client
import json
import os
import re
import secrets
import shutil
import signal
import site
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from unskew.deploy import folders, versions
from unskew.deploy.certificates import check_node, check_server
from unskew.deploy.folders import CONNECTION
from unskew.deploy.settings import Address
from unskew.errors import DeployError
from unskew.runtime import resident

GRACE_S = 8.0
"""Time between SIGTERM and SIGKILL, seconds; an open connection can hold up a SuperLink for longer."""
HEALTHY_WITHIN_S = 90.0
REJOIN_S = 90.0
"""Time to keep trying with a refused key, seconds: Flower keeps a lost node's session for up to 60 s."""
LOOPBACK = "127.0.0.1"
LOOK_EVERY_S = 2.0
"""Interval between two looks at a SuperNode's log, seconds."""
AHEAD_S, BEHIND_S = 6.0, 300.0
"""Allowed difference between a client's clock and the server's: Flower allows 5 s and 305 s, in whole seconds."""

Say = Callable[[str], None]


# ---------------------------------------------------------------- environment and command lines
def environment(home: Path) -> dict[str, str]:
    """Environment for Flower's programs: ours without any FLWR_ setting, and with Flower's network features off."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FLWR_")}
    source = Path(__file__).parents[2]
    # Run from a checkout, the library is on this process's path only; an installed one is found anyway.
    paths = [] if str(source) in site.getsitepackages() else [str(source)]
    paths += [kept["PYTHONPATH"]] if kept.get("PYTHONPATH") else []
    local = ",".join(filter(None, [kept.get("NO_PROXY", kept.get("no_proxy", "")), "localhost", "127.0.0.1", "::1"]))
    return {
        **kept,
        **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {}),
        # A SuperExec starts its processes by name.
        "PATH": os.pathsep.join([str(versions.programs()), kept.get("PATH", os.defpath)]),
        "PYTHONUNBUFFERED": "1",
        "FLWR_HOME": str(home.absolute()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "NO_PROXY": local,
        "no_proxy": local,
    }


def superlink(server: Path, port: int, secret: Path) -> list[str]:
    """Command line of the SuperLink, which always listens on loopback: its Control API asks for no password."""
    return [
        "flower-superlink",
        *("--host", LOOPBACK, "--port", str(port)),
        *("--ssl-ca-certfile", str(server / "ca.crt")),
        *("--ssl-certfile", str(server / "server.crt")),
        *("--ssl-keyfile", str(server / "server.key")),
        "--enable-supernode-auth",
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
        "--disable-runtime-dependency-installation",
    ]


def proxy_program(server: Path, listen: Address, inner: int) -> list[str]:
    """Command line of the reverse proxy that listens at the server's address, in front of the SuperLink's port."""
    arguments = (str(server), listen.host, str(listen.port), str(inner))
    return [sys.executable, "-P", "-m", "unskew.deploy.proxy", *arguments]


def superexec(runtime: Address, secret: Path, root: Path | None, parent: int) -> list[str]:
    """Command line of a SuperExec; without a root certificate it speaks plainly, to its own machine only."""
    return [
        "flower-superexec",
        *("--runtime-api-address", str(runtime)),
        *(("--root-certificates", str(root)) if root else ("--insecure",)),
        *("--superexec-auth-secret-file", str(secret), "--parent-pid", str(parent)),
    ]


def supernode(client: Path, reached: Address, port: int, secret: Path, config: Path) -> list[str]:
    """Command line of a SuperNode; `port` is where its own SuperExec finds it, on loopback."""
    return [
        "flower-supernode",
        *("--superlink", str(reached)),
        *("--root-certificates", str(client / "ca.crt")),
        *("--auth-supernode-private-key", str(client / "node.key")),
        *("--node-config", str(config)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]


def resident_program(client: Path, socket: Path, allow_code: bool) -> list[str]:
    """Command line of a client's resident process; -P keeps it from importing what lies in the working directory."""
    safe, last = ([], ["--allow-code"]) if allow_code else (["-P"], [])
    return [sys.executable, *safe, "-m", "unskew.deploy.resident", str(client), str(socket), *last]


def register(key: Path) -> list[str]:
    """Command line that registers a public key with the SuperLink."""
    return ["flwr", "supernode", "register", str(key), CONNECTION, "--format", "json"]


def submit(app: Path) -> list[str]:
    """Command line that starts a run."""
    return ["flwr", "run", str(app), CONNECTION, "--format", "json"]


def status(run: int) -> list[str]:
    """Command line that asks for a run's status."""
    return ["flwr", "ls", CONNECTION, "--run-id", str(run), "--format", "json"]


# ---------------------------------------------------------------- ports
def free_ports(n: int) -> list[int]:
    """Choose different ports on loopback that no program listens on.

    They lie below those that the system gives to outgoing connections, so that none is taken before it is used.
    """
    ports: list[int] = []
    while len(ports) < n:
        port = 20000 + secrets.randbelow(12000)
        if port not in ports and is_free(Address("127.0.0.1", port)):
            ports.append(port)
    return ports


def is_free(listen: Address) -> bool:
    """True if a program could listen at this address now.

    Raises:
        DeployError: If none ever could: the address is not this machine's, or the port is reserved.
    """
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    with socket.socket(family) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((listen.host, listen.port))
            s.listen()
        except PermissionError:
            raise DeployError(f"port {listen.port} needs rights that this user lacks; choose one above 1023") from None
        except OSError as error:
            if error.errno in (98, 48):  # EADDRINUSE on Linux, macOS
                return False
            raise DeployError(
                f"cannot listen on {listen.host}: {error.strerror or error}; network.toml must name an address of this "
                "machine, or 0.0.0.0"
            ) from None
    return True


def check_port(listen: Address) -> None:
    """Refuse a port that is in use.

    Raises:
        DeployError: If so.
    """
    if not is_free(listen):
        raise DeployError(
            f"port {listen.port} of {listen.host} is in use by another program; stop that or choose another port in "
            "network.toml, here and with the clients"
        )


# ---------------------------------------------------------------- processes
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
        with _signals_ignored():
            # Clients end first: a SuperNode signs off while there is still a SuperLink.
            for depth in sorted({_depth(c) for c in self.children}, reverse=True):
                end([c for c in self.children if _depth(c) == depth])
            self.children.clear()
            self._folders.close()

    def folder(self) -> Path:
        """Make a private folder with a short path, for sockets; it is removed with the processes."""
        return Path(
            self._folders.enter_context(tempfile.TemporaryDirectory(prefix="unskew-", ignore_cleanup_errors=True))
        )

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
        line = [*_ended_with_parent(), path, *arguments]
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


def _depth(child: ChildProcess) -> int:
    return 1 if child.name.startswith("client") else 0


def _ended_with_parent() -> list[str]:
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


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """Ignore signals while processes are ended, which takes seconds."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = {s: signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for s, handler in old.items():
            signal.signal(s, handler)


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does: by leaving every open `with` block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def heard(number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    old = {s: signal.signal(s, heard) for s in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for s, handler in old.items():
            signal.signal(s, handler)


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
    ):
        if re.search(pattern, output):
            return f"{child.name} ended: {sentence} (log: {child.log})"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = f": {lines[-1][:200]}" if lines else ""
    return f"{child.name} ended with code {child.process.poll()}{last} (log: {child.log})"


REFUSED = (
    "the server refuses this client's key: it is not in the server's folder clients/, or another process uses it "
    "(two clients with one identity)"
)


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
    known = folders.keys(folder)
    inner = Address(LOOPBACK, free_ports(1)[0])
    secret, home, logs = folders.write_secret(folder), folders.write_home(folder, inner), folder / "logs"
    link = group.start(superlink(folder, inner.port, secret), home, logs / "superlink.log", "SuperLink")
    proxy = group.start(proxy_program(folder, listen, inner.port), home, logs / "proxy.log", "the server's proxy")
    wait_until(link, lambda: probe(inner, folder / "ca.crt"))
    here = (listen.here.host, listen.here.port)
    wait_until(proxy, lambda: socket.create_connection(here, 1.0).close())
    execute = superexec(inner, secret, folder / "ca.crt", os.getpid())
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
        asked = {c: _start_program(register(known[c]), home) for c in several}
        try:
            answers.update({c: _answer(p, f"register client {c}") for c, p in asked.items()})
        finally:
            for p in asked.values():
                p.kill()
                p.communicate()
    return answers


def start_run(server: ServerProcesses) -> int:
    """Start the run; Flower's number of it."""
    return int(call(submit(folders.write_app(server.folder)), server.home, "start the run")["run-id"])


def run_status(server: ServerProcesses, run: int) -> tuple[str, str]:
    """Ask Flower for (status, details) of a run: pending, starting, running, finished:completed, ..."""
    answer = call(status(run), server.home, "ask for the run's status")
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
    line = [*_ended_with_parent(), str(versions.programs() / program), *arguments]
    return subprocess.Popen(
        line,
        env=environment(home),
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


def wait_until(program: ChildProcess, answers: Callable[[], object], within_s: float = HEALTHY_WITHIN_S) -> None:
    """Wait until a program answers, which it does once `answers` raises no error of a network.

    Raises:
        DeployError: If it ends, or takes too long.
    """
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if not program.running():
            raise DeployError(explain(program))
        with suppress(OSError, http.client.HTTPException, Unreachable):
            answers()
            return
        time.sleep(0.05)
    raise DeployError(f"{program.name} did not answer within {within_s:.0f} s (log: {program.log})")


# ---------------------------------------------------------------- client
class Unreachable(DeployError):
    """No server answers at an address; it may do so later."""


def probe(reached: Address, root: Path, timeout_s: float = 10.0) -> float:
    """Connect to a SuperLink as a client would; the time this clock is ahead of the server's, seconds.

    Raises:
        Unreachable: If there is no answer.
        DeployError: If the answer is not from this federation's server, its certificate has expired, or clocks differ
            by more than Flower allows.
    """
    context = ssl.create_default_context(cafile=root)
    connection = http.client.HTTPSConnection(reached.host, reached.port, timeout=timeout_s, context=context)
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        now = datetime.now(UTC)
        date = answer.getheader("Date")
        answer.read()
    except ssl.SSLCertVerificationError as error:
        raise DeployError(_distrust(error, reached)) from None
    except ssl.SSLError as error:
        raise DeployError(
            f"{reached} does not speak TLS as a SuperLink does ({error.reason}); is it the right port?"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise Unreachable(f"nobody answers at {reached}: {why}") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise Unreachable(f"{reached} answers {answer.status}, not as a SuperLink does")
    ahead = (now - parsedate_to_datetime(date)).total_seconds() if date else 0.0
    if ahead > AHEAD_S or ahead < -BEHIND_S:
        raise DeployError(
            f"this machine's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's; Flower "
            f"accepts 5 s ahead and 300 s behind; set the clock, for example with NTP"
        )
    return ahead


def _distrust(error: ssl.SSLCertVerificationError, reached: Address) -> str:
    # Numbers are OpenSSL's X509_V_ERR_*.
    if error.verify_code == 10:
        return f"the certificate of {reached} has expired; the server needs a new one: unskew deploy pack --renew"
    if error.verify_code == 9:
        return f"the certificate of {reached} is not valid yet, or the clock here is behind; compare both clocks"
    if error.verify_code in (62, 64):
        return (
            f"the certificate of {reached} is for other names than {reached.host}; use one of its names in "
            "network.toml, or sign another certificate with --renew --name"
        )
    return (
        f"the certificate of {reached} was not signed by this federation's authority; is ca.crt of the same pack, and "
        f"the address right? ({error.verify_message})"
    )


class ClientProcesses:
    """A client's resident process, SuperNode and SuperExec, restarted when one of them ends.

    Args:
        group: Group that the processes belong to.
        folder: The client's folder.
        say: Called with a line when something happens.
        name: Name of the client in messages to the user.
        restart: False to leave the client stopped when one of its processes has ended.
        allow_code: True to import code that the coordinator's experiment names.

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
        allow_code: bool = False,
    ) -> None:
        check_node(folder)
        self.allow_code = allow_code
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
        node = supernode(self.folder, self.reached, port, self.secret, self.config)
        execute = superexec(Address("127.0.0.1", port), self.secret, None, os.getpid())
        self.children = (
            self.group.start(
                resident_program(self.folder, self.socket, self.allow_code),
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
            self._restart(now, why)

    def _tell(self) -> None:
        """Say what the resident process says of the client: that the server refuses it, that its disk is full."""
        lines, self.told = folders.fresh_lines(self.children[0].log, self.told)
        for line in lines:
            if re.match(r"client \d+\b", line):
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
        return f"{node.name} gave up its connection: {errors[-1].strip()[:200]} (log: {node.log})"

    def _retry_after_refusal(self, now: float, why: str) -> None:
        if self.refused_since is None:
            self.refused_since = now
            self.say(f"{self.name} is refused for now: its last session may not be over; trying for {REJOIN_S:.0f} s")
        if now - self.refused_since > REJOIN_S:
            raise DeployError(why)
        self.due = now + 3.0

    def _restart(self, now: float, why: str) -> None:
        self.failures = self.failures + 1 if now - self.started < REJOIN_S else 1
        if self.failures > 5:
            raise DeployError(why)
        pause = 2.0 ** (self.failures - 1)
        self.say(f"{why}; restarting in {pause:.0f} s")
        self.due = now + pause
