"""What a federation of real processes does when things go wrong; the table at the end of the run says it in words."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="a deployment needs the extra [flower]")

from unskew.deploy import certificates, commands, folders, launch, operate, parity, processes, signing
from unskew.deploy.launch import ClientProcesses
from unskew.deploy.processes import ProcessGroup
from unskew.deploy.settings import Address, ServerConfig, Site
from unskew.errors import DeployError, RunError
from unskew.experiment.config import Experiment
from unskew.record.logs import FAILURES, METRICS, rows

from .conftest import Lines, processes_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
Outcome = Callable[[str, str, str], None]
# Five seconds of training on an idle machine, so that a client is caught at it two seconds after its program began.
LONG = ("local.local_steps=120000", "local.batch_size=8")


class Meddler:
    """Does something once, when a client's n-th ClientApp has been started: 1 is the hello, 2 the first round."""

    def __init__(self, node: ClientProcesses, nth: int, deed: Callable[[ClientProcesses], None]) -> None:
        self.node, self.nth, self.deed = node, nth, deed
        self.done = False

    def supervise(self) -> None:
        log = self.node.folder / "logs" / "superexec.log"
        started = log.read_text().count("Start `flwr-clientapp`") if log.exists() else 0
        if not self.done and started >= self.nth:
            self.done = True
            self.deed(self.node)


def signalled(number: int) -> Callable[[ClientProcesses], None]:
    def deed(node: ClientProcesses) -> None:
        time.sleep(2.0)  # it is importing or training by then
        for child in node.children:
            child.signal(number)

    return deed


def federation(
    experiment: Experiment,
    out: Path,
    meddle: Callable[[list[ClientProcesses]], Any],
    said: Lines,
    deadline_s: float = 120.0,
    restart: bool = True,
) -> Path:
    """Two clients, a server, and something that meddles."""
    deployment = operate.prepare(experiment, 2, out, ServerConfig(2, deadline_s, 300.0))
    with ProcessGroup() as group:
        server = launch.start_server(group, deployment / "server", folders.address(deployment / "server"))
        nodes = [
            ClientProcesses(group, folders.client_folder(deployment, c), said, f"client {c}", restart=restart)
            for c in (0, 1)
        ]
        meddler = meddle(nodes)
        operate.wait_for_end(server, operate.launch_run(server), said, [*nodes, meddler])
    assert meddler.done
    return operate.collect(deployment / "server" / "run", out)


def failures(run: Path) -> Counter[tuple[int, int]]:
    """How often (round, client) failed."""
    return Counter((r["round"], r["client"]) for r in rows(run, "failures"))


def uplinks(run: Path) -> set[tuple[int, int]]:
    """(round, client) of every transfer to the server that counted."""
    return {(r["round"], r["src"] - 1) for r in rows(run, "transfers") if r["dst"] == 0}


def reasons(run: Path) -> str:
    return "; ".join(dict.fromkeys(f"round {r['round']}: {r['reason'][:70]}" for r in rows(run, "failures")))


def test_a_client_killed_in_mid_training_is_missed_and_the_run_goes_on(
    small: Callable[..., Experiment], said: Lines, tmp_path: Path, outcome: Outcome
) -> None:
    run = federation(
        small("rounds=3", *LONG),
        tmp_path / "run",
        lambda nodes: Meddler(nodes[1], 2, signalled(signal.SIGKILL)),
        said,
        deadline_s=60.0,
        restart=False,
    )
    assert uplinks(run) >= {(1, 0), (2, 0), (3, 0)}
    assert not {(1, 1), (2, 1), (3, 1)} & uplinks(run)
    assert failures(run)[(1, 1)] == 1
    assert processes_of(tmp_path) == []
    outcome("client killed in mid-training", "went on", reasons(run))


def test_a_client_that_never_answers_is_given_up_at_the_deadline(
    small: Callable[..., Experiment], said: Lines, tmp_path: Path, outcome: Outcome
) -> None:
    run = federation(
        small("rounds=2", *LONG),
        tmp_path / "run",
        lambda nodes: Meddler(nodes[1], 2, signalled(signal.SIGSTOP)),
        said,
        deadline_s=60.0,
    )
    assert {(1, 0), (2, 0)} <= uplinks(run)
    assert (1, 1) not in uplinks(run)
    assert failures(run)[(1, 1)] == 1
    assert processes_of(tmp_path) == []
    outcome("client that never answers", "went on", reasons(run))


def test_a_client_that_comes_back_takes_part_again_with_what_it_remembered(
    small: Callable[..., Experiment], said: Lines, tmp_path: Path, outcome: Outcome
) -> None:
    run = federation(
        small("rounds=6", 'methods.0.name="fedper"', 'methods.0.personal=["head.bias"]', *LONG),
        tmp_path / "run",
        lambda nodes: Meddler(nodes[1], 3, signalled(signal.SIGKILL)),
        said,
        deadline_s=60.0,
    )
    assert (1, 1) in uplinks(run)
    assert failures(run)[(2, 1)] == 1
    assert (6, 1) in uplinks(run)
    back = min(t for t, c in uplinks(run) if c == 1 and t > 2)
    outcome("client that rejoins", "went on", f"away in round 2, back in round {back}; {reasons(run)}")


def test_without_enough_clients_the_run_ends_with_the_quorum_sentence(
    small: Callable[..., Experiment], said: Lines, tmp_path: Path, outcome: Outcome
) -> None:
    def meddle(nodes: list[ClientProcesses]) -> Meddler:
        def deed(_: ClientProcesses) -> None:
            for node in nodes:
                for child in node.children:
                    child.signal(signal.SIGKILL)

        return Meddler(nodes[1], 2, deed)

    experiment = small("rounds=2", *LONG)
    with pytest.raises(RunError, match=r"QuorumError: .*0 of 2 clients replied, 1 needed; lost: 0, 1") as refused:
        federation(experiment, tmp_path / "run", meddle, said, deadline_s=30.0, restart=False)
    assert processes_of(tmp_path) == []
    assert "QuorumError" in (tmp_path / "run" / "deploy" / "server" / "logs" / "serverapp.log").read_text()
    outcome("all clients lost", "refused", str(refused.value).split(" (log")[0])


def test_a_server_that_was_killed_goes_on_from_its_checkpoint_to_the_same_end(
    small: Callable[..., Experiment], tmp_path: Path, outcome: Outcome
) -> None:
    from unskew.experiment.config import to_toml

    experiment = small("rounds=3", 'methods.0.name="scaffold"')
    (tmp_path / "small.toml").write_text(to_toml(experiment))
    out = tmp_path / "run"
    command = [sys.executable, "-m", "unskew", "deploy", "small.toml", "--local", "2", "--out", "run", "--no-report"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    first = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    try:
        server = out / "deploy" / "server" / "run"
        until = time.monotonic() + 300
        while not METRICS.fresh(server, 0)[0][-1:] and time.monotonic() < until:
            assert first.poll() is None, first.communicate()
            time.sleep(0.2)
        time.sleep(3.0)  # in the middle of round 2
        first.kill()
    finally:
        first.kill()
        first.communicate()
    if processes.ended_with_parent():
        until = time.monotonic() + 60
        while processes_of(tmp_path) and time.monotonic() < until:
            time.sleep(0.2)
    assert processes_of(tmp_path) == []
    again = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    assert again.returncode == 0, again.stderr
    (found,) = parity.compare(out, parity.simulate(experiment, tmp_path / "simulated"))
    assert found.equal, found
    outcome("server killed and started again", "went on", f"differs from a simulation by {found.max_abs_diff:g}")


# ---------------------------------------------------------------- a client's disk
class FullDisk:
    """A client's disk that is full from its first answer on until two of its rounds have failed.

    It is a file system of 256 kB, and a file that fills it.
    """

    def __init__(self, node: ClientProcesses, run: Path) -> None:
        self.state, self.run, self.done = node.folder / "state", run, False
        self.filler = self.state / "filler"
        self.state.mkdir(mode=0o700, exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(self.state)]
        if subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("no file system can be mounted here")

    def supervise(self) -> None:
        if self.done:
            return
        if self.filler.exists():
            if FAILURES.fresh(self.run, 0)[1] >= 2:
                self.filler.unlink()
                self.done = True
        elif any(self.state.glob("*/0/000001-*-0000")):
            with suppress(OSError), open(self.filler, "wb", buffering=0) as f:
                while True:
                    f.write(bytes(256))

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.state)], capture_output=True, check=False)


def test_a_client_whose_disk_is_full_says_so_and_takes_part_again_when_there_is_room(
    small: Callable[..., Experiment], said: Lines, tmp_path: Path, outcome: Outcome
) -> None:
    experiment = small("rounds=8", 'methods.0.name="fedper"', 'methods.0.personal=["head.bias"]')
    disks: list[FullDisk] = []

    def meddle(nodes: list[ClientProcesses]) -> FullDisk:
        disks.append(FullDisk(nodes[1], tmp_path / "run" / "deploy" / "server" / "run"))
        return disks[0]

    try:
        run = federation(experiment, tmp_path / "run", meddle, said)
    finally:
        for disk in disks:
            disk.unmount()
    failed = failures(run)
    assert failed == {(t, 1): 1 for t in range(2, 2 + len(failed))}
    assert 2 <= len(failed) < 7
    assert {c for t, c in uplinks(run) if t in (1, 8)} == {0, 1}
    assert {(t, 0) for t, _ in failed} <= uplinks(run)
    (why,) = {re.sub(r"00000\d-", "000002-", r["reason"]) for r in rows(run, "failures")}
    assert re.fullmatch(
        r"client error: cannot use state/\w+/0/000002-0001-0000: No space left on device; make room on this client's "
        "disk, and it takes part again",
        why,
    )
    log = run / "deploy" / "client-1" / "logs" / "resident.log"
    assert log.read_text().count("client 1 cannot use state/") == len(failed)
    outcome("disk full on a client", "went on", reasons(run))


# ---------------------------------------------------------------- clients that mean something else
def test_clients_with_other_classes_or_another_model_are_named_and_the_others_go_on_without(
    small: Callable[..., Experiment], said: Lines, tmp_path: Path, outcome: Outcome
) -> None:
    from unskew.experiment.config import to_toml

    experiment, out = small("rounds=2", "split.num_clients=3"), tmp_path / "run"
    deployment = operate.prepare(experiment, 3, out, ServerConfig(1, 120.0, 300.0))
    x = np.random.default_rng(0).integers(0, 17, (40, 8, 8), np.uint8)  # bytes to 16, as the experiment's digits
    np.savez(tmp_path / "own.npz", x_train=x, y_train=np.arange(40) % 7)
    sites = (Site(), Site(f"npz:{tmp_path / 'own.npz'}"), Site())
    other = small("rounds=2", "split.num_clients=3", 'task.model="mlp"')
    (deployment / "client-2" / "experiment.toml").write_text(to_toml(other))
    with ProcessGroup() as group:
        server = launch.start_server(group, deployment / "server", folders.address(deployment / "server"))
        nodes = [
            ClientProcesses(group, folders.client_folder(deployment, c), said, f"client {c}", site=sites[c])
            for c in (0, 1, 2)
        ]
        until = time.monotonic() + 120
        while not all((n.folder / "logs" / "supernode.log").exists() and connected(n) for n in nodes):
            for node in nodes:
                node.supervise()
            assert time.monotonic() < until
            time.sleep(0.2)
        operate.wait_for_end(server, operate.launch_run(server), said, nodes)
    run = operate.collect(deployment / "server" / "run", out)
    assert {c for _, c in uplinks(run)} == {0}
    hello = {r["client"]: r["reason"] for r in rows(run, "failures") if r["step"] == "hello"}
    assert hello[1].startswith("the classes of its data must be 0, 1, 2, 3")
    assert hello[1].endswith("got 0, 1, 2, 3, 4, 5, 6")
    assert hello[2].startswith("the experiment (SHA-256 of its resolved form) must be ")
    assert processes_of(tmp_path) == []
    outcome("client with other classes", "went on", f"without it: {hello[1]}")
    outcome("client with another model", "went on", f"without it: {hello[2]}")


def connected(node: ClientProcesses) -> bool:
    """Whether a client's SuperNode has been let in."""
    return bool(node.children) and "SuperNode ID" in node.children[1].said()


# ---------------------------------------------------------------- the network
class Wire:
    """Passes TCP connections on, until it is cut.

    Cut, it is either silent, as a line that is down, or hangs up on everybody, as a proxy whose server is away.
    """

    def __init__(self, to: Address) -> None:
        self.to, self.silent, self.hangs_up = to, threading.Event(), False
        self.open: set[socket.socket] = set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self.listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, hang_up: bool) -> None:
        if not hang_up:
            self.silent.set()
            return
        self.hangs_up = True
        for s in list(self.open):
            with suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self.silent.clear()
        self.hangs_up = False

    def close(self) -> None:
        self.mend()
        self.cut(hang_up=True)
        self.listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            if self.hangs_up:
                near.close()
                continue
            try:
                far = socket.create_connection((self.to.host, self.to.port))
            except OSError:
                near.close()
                continue
            self.open |= {near, far}
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(a, b), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                while self.silent.is_set():
                    time.sleep(0.05)
                sink.sendall(data)
        for s in (source, sink):
            self.open.discard(s)
            with suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
            s.close()


class Cutter(Meddler):
    """Cuts a client's wire while it trains, and mends it after some seconds."""

    def __init__(self, node: ClientProcesses, nth: int, wires: list[Wire], seconds: float, hang_up: bool) -> None:
        super().__init__(node, nth, lambda _: self.wire.cut(hang_up))
        self.wire, self.seconds, self.since = Wire(node.reached), seconds, 0.0
        node.reached = self.wire.address
        wires.append(self.wire)

    def supervise(self) -> None:
        before = self.done
        super().supervise()
        if self.done and not before:
            self.since = time.monotonic()
        if self.done and time.monotonic() - self.since > self.seconds:
            self.wire.mend()


@pytest.fixture
def wires() -> Iterator[list[Wire]]:
    made: list[Wire] = []
    yield made
    for wire in made:
        wire.close()


def test_a_network_that_is_down_for_seconds_loses_nothing(
    small: Callable[..., Experiment], said: Lines, tmp_path: Path, outcome: Outcome, wires: list[Wire]
) -> None:
    experiment = small("rounds=3", *LONG)
    run = federation(experiment, tmp_path / "run", lambda nodes: Cutter(nodes[1], 3, wires, 12.0, hang_up=False), said)
    assert list(rows(run, "failures")) == []
    (found,) = parity.compare(run, parity.simulate(experiment, tmp_path / "simulated"))
    assert found.equal, found
    outcome("network down for 12 seconds", "went on", f"differs from a simulation by {found.max_abs_diff:g}")


def test_a_client_whose_connections_break_is_back_after_its_last_session_is_over(
    small: Callable[..., Experiment], said: Lines, tmp_path: Path, outcome: Outcome, wires: list[Wire]
) -> None:
    run = federation(
        small("rounds=6", *LONG),
        tmp_path / "run",
        lambda nodes: Cutter(nodes[1], 3, wires, 12.0, hang_up=True),
        said,
        deadline_s=60.0,
    )
    assert {(1, 1), (6, 1)} <= uplinks(run)
    assert {(t, 0) for t in range(1, 7)} <= uplinks(run)
    outcome("connections broken for 12 seconds", "went on", reasons(run) or "nothing was lost")


# ---------------------------------------------------------------- identities
def test_an_unknown_key_and_a_second_client_with_one_identity_are_refused_by_flower_itself(
    small: Callable[..., Experiment], said: Lines, tmp_path: Path, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "REJOIN_S", 20.0)
    deployment = operate.prepare(small(), 2, tmp_path / "run")
    server, one, two = (deployment / name for name in ("server", "client-0", "client-1"))
    twin = Path(shutil.copytree(one, tmp_path / "twin"))
    stranger = Path(shutil.copytree(two, tmp_path / "stranger"))
    certificates.issue_node(stranger, "client-1")

    def until_refused(group: ProcessGroup, folder: Path) -> str:
        node = ClientProcesses(group, folder, said)

        def live() -> None:
            while True:
                node.supervise()
                time.sleep(0.1)

        with pytest.raises(DeployError, match=r"refuses this client's key: .*two clients with one identity") as refused:
            live()
        return str(refused.value).split(" (log")[0]

    with ProcessGroup() as group:
        launch.start_server(group, server, folders.address(server))
        first = ClientProcesses(group, one, said)
        first.supervise()
        until = time.monotonic() + 60
        while not connected(first) and time.monotonic() < until:
            time.sleep(0.1)
        sentence = until_refused(group, twin)
        assert first.children[1].running()
        until_refused(group, stranger)
    outcome("unknown key, or two clients with one", "refused", sentence)


# ---------------------------------------------------------------- certificates
@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("expired certificate", "has expired; the server needs a new one: unskew deploy pack --renew"),
        ("foreign certificate", "was not signed by this federation's authority"),
    ],
)
def test_a_client_does_not_speak_to_a_server_whose_certificate_is_not_good(
    fault: str, text: str, small: Callable[..., Experiment], tmp_path: Path, outcome: Outcome
) -> None:
    deployment = operate.prepare(small(), 2, tmp_path / "run")
    server, client = deployment / "server", deployment / "client-0"
    who = certificates.authority("another")
    if fault == "expired certificate":
        certificates.issue_server(who, [], server, days=0)
        shutil.copy(server / "ca.crt", client / "ca.crt")
        for name in (signing.KEY, signing.MANIFEST, signing.SIGNATURE):
            (client / name).unlink()
        signing.sign(signing.new_key(), client, 0)  # as packed by that authority
    else:
        certificates.issue_server(who, [], server)
    listen = folders.address(server)
    with ProcessGroup() as group:
        # Started as `start_server` would, which refuses to serve with an expired certificate.
        line = commands.superlink(server, listen.port, folders.write_secret(server))
        link = group.start(
            line, folders.write_home(server, listen.here), server / "logs" / "superlink.log", "SuperLink"
        )
        until = time.monotonic() + 120
        while not answers(listen) and time.monotonic() < until:
            assert link.running(), link.said()
            time.sleep(0.2)
        command = [sys.executable, "-m", "unskew", "deploy", "client", str(client)]
        found = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=180
        )
    assert found.returncode == 2
    assert text in found.stderr
    assert "Traceback" not in found.stderr
    assert not (client / "logs").exists()  # nothing of Flower's was started
    outcome(fault, "refused", " ".join(found.stderr.split())[:150])


def answers(listen: Address) -> bool:
    """Whether somebody listens there."""
    with suppress(OSError), socket.create_connection((listen.host, listen.port), timeout=5):
        return True
    return False
