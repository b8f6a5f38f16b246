"""How Flower's programs are started, watched and ended; here they are small scripts under the same names."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="a deployment needs the extra [flower]")

from unskew.deploy import certificates, commands, folders, launch, processes, versions
from unskew.deploy.settings import Address
from unskew.errors import DeployError
from unskew.runtime import resident

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that stand in for Flower's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(versions, "programs", lambda: folder)
    script(folder, "resident", "exec sleep 60")
    monkeypatch.setattr(commands, "resident_program", lambda client, socket, site: ["resident"])
    return folder


def script(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return name


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def eventually(what: Callable[[], object], within_s: float = 60.0) -> bool:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if what():
            return True
        time.sleep(0.02)
    return bool(what())


# ---------------------------------------------------------------- command lines
def test_a_superlink_is_on_loopback_speaks_tls_admits_known_keys_isolates_and_installs_nothing(tmp_path: Path) -> None:
    line = commands.superlink(tmp_path, 8443, tmp_path / "s")
    assert line[0] == "flower-superlink"
    assert "--insecure" not in line
    assert {"--enable-supernode-auth", "--disable-runtime-dependency-installation"} < set(line)
    pairs = dict(itertools.pairwise(line))
    assert pairs["--isolation"] == "process"
    assert pairs["--superexec-auth-secret-file"] == str(tmp_path / "s")
    assert pairs["--ssl-certfile"] == str(tmp_path / "server.crt")
    assert (pairs["--host"], pairs["--port"]) == ("127.0.0.1", "8443")


def test_a_supernode_verifies_the_server_shows_its_key_and_listens_on_loopback_only(tmp_path: Path) -> None:
    line = commands.supernode(tmp_path, Address("::1", 1), 9, tmp_path / "s", tmp_path / "node.toml")
    pairs = dict(itertools.pairwise(line))
    assert "--insecure" not in line
    assert pairs["--superlink"] == "[::1]:1"
    assert pairs["--root-certificates"] == str(tmp_path / "ca.crt")
    assert pairs["--auth-supernode-private-key"] == str(tmp_path / "node.key")
    assert (pairs["--host"], pairs["--port"], pairs["--isolation"]) == ("127.0.0.1", "9", "process")


def test_only_the_superexec_beside_a_supernode_speaks_plainly_and_it_ends_with_its_parent(tmp_path: Path) -> None:
    beside_server = commands.superexec(Address("127.0.0.1", 1), tmp_path / "s", tmp_path / "ca.crt", 7)
    beside_client = commands.superexec(Address("127.0.0.1", 1), tmp_path / "s", None, 7)
    assert "--insecure" not in beside_server
    assert "--insecure" in beside_client
    for line in (beside_server, beside_client):
        assert dict(itertools.pairwise(line))["--parent-pid"] == "7"


def test_flower_is_given_a_home_of_its_own_and_no_setting_of_the_user_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.setenv("FLWR_INTERNAL_GRPC_FLEET_API", "1")
    monkeypatch.setenv("NO_PROXY", "intern")
    env = commands.environment(tmp_path / "home")
    assert {k: v for k, v in env.items() if k.startswith("FLWR_")} == {
        "FLWR_HOME": str(tmp_path / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    assert env["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert env["NO_PROXY"] == env["no_proxy"] == "intern,localhost,127.0.0.1,::1"


# ---------------------------------------------------------------- a family of processes
def test_children_end_with_the_block_that_started_them_even_if_they_resist(
    bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(bin, "polite", "exec sleep 60")
    script(bin, "stubborn", f"trap '' TERM\n: > {tmp_path}/trapped\nwhile :; do sleep 60 & wait $!; done")
    monkeypatch.setattr(processes.end, "__defaults__", (0.3,))
    children: list[processes.ChildProcess] = []

    def work() -> None:
        with processes.ProcessGroup() as group:
            children.extend(group.start([n], tmp_path, tmp_path / "log") for n in ("polite", "stubborn"))
            assert eventually((tmp_path / "trapped").exists)
            assert all(c.running() for c in children)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert [c.process.returncode for c in children] == [-signal.SIGTERM, -signal.SIGKILL]


def test_what_a_child_has_started_ends_with_it(bin: Path, tmp_path: Path) -> None:
    script(bin, "parent", f"sleep 60 & echo $! > {tmp_path}/pid; exit 0")
    with processes.ProcessGroup() as group:
        child = group.start(["parent"], tmp_path, tmp_path / "log")
        assert child.process.wait(10) == 0
        pid = int((tmp_path / "pid").read_text())
        assert alive(pid)
    assert eventually(lambda: not alive(pid))


def test_sockets_lie_in_a_short_folder_although_that_for_temporary_files_is_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(processes.tempfile, "tempdir", str(deep))
    with processes.ProcessGroup() as group:
        place = group.folder()
        resident.listen(place / "socket").close()
        assert place.stat().st_mode & 0o777 == 0o700
    assert not place.exists()
    monkeypatch.setattr(processes.os, "access", lambda path, mode: False)
    with pytest.raises(DeployError, match=r"at most 80 bytes, .*/d{100} is longer and .*; set TMPDIR to a shorter"):
        processes.place_for_sockets()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/net/unix")
def test_sockets_of_processes_that_were_killed_are_removed_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes.tempfile, "tempdir", str(tmp_path))
    for name in ("gone1234", "live1234", "file1234"):
        (tmp_path / f"unskew-{name}").mkdir()
    resident.listen(tmp_path / "unskew-gone1234/socket").close()
    (tmp_path / "unskew-file1234/socket").write_text("no socket")
    assert (tmp_path / "unskew-gone1234/socket").is_socket()
    with resident.listen(tmp_path / "unskew-live1234/socket"), processes.ProcessGroup() as group:
        made = group.folder()
        left = {folder.name for folder in tmp_path.iterdir()}
    assert left == {"unskew-live1234", "unskew-file1234", made.name}


WORKING = """
import os, sys, time
from pathlib import Path
from unskew.deploy import processes, versions
versions.programs = lambda: Path(sys.argv[1])
for folder in map(Path, sys.argv[2:]):
    if os.fork() == 0:
        with processes.stoppable(), processes.ProcessGroup() as group:
            child = group.start(["polite"], folder, folder / "log")
            (folder / "pids.tmp").write_text(f"{os.getpid()} {child.process.pid}")
            (folder / "pids.tmp").rename(folder / "pids")
            time.sleep(60)
        os._exit(0)
while True:
    os.wait()
"""


def test_no_signal_leaves_a_child_behind(bin: Path, tmp_path: Path) -> None:
    numbers = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]
    if processes.ended_with_parent():  # without setpriv nobody tells the children of a process that was killed
        numbers.append(signal.SIGKILL)
    script(bin, "polite", "exec sleep 60")
    (tmp_path / "work.py").write_text(WORKING)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    folders = [tmp_path / number.name for number in numbers]
    for folder in folders:
        folder.mkdir()
    line = [sys.executable, tmp_path / "work.py", bin, *folders]
    process = subprocess.Popen(line, env=env, stderr=subprocess.DEVNULL)
    try:
        for number, folder in zip(numbers, folders, strict=True):
            assert eventually((folder / "pids").exists, 60)
            one, child = map(int, (folder / "pids").read_text().split())
            assert alive(child)
            os.kill(one, number)
            assert eventually(lambda pids=(one, child): not any(map(alive, pids)), 20), number.name
    finally:
        process.kill()
        process.wait()


# ---------------------------------------------------------------- a client's programs
@pytest.fixture
def client(tmp_path: Path) -> Path:
    folder = tmp_path / "client-0"
    folder.mkdir()
    certificates.issue_node(folder, "client-0")
    folders.write_address(folder, Address("127.0.0.1", 8443))
    return folder


def keep_until(node: launch.ClientProcesses, done: Callable[[], object], within_s: float = 10.0) -> None:
    def probe() -> bool:
        node.supervise()
        return bool(done())

    assert eventually(probe, within_s)


def test_a_node_that_ends_is_started_again_with_growing_pauses_and_at_last_given_up(
    bin: Path, client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(bin, "flower-supernode", "echo no luck; exit 1")
    script(bin, "flower-superexec", "exec sleep 60")
    said: list[str] = []
    monkeypatch.setattr(launch.time, "sleep", lambda s: None)
    now = [0.0]
    monkeypatch.setattr(launch.time, "monotonic", lambda: now[0])
    with processes.ProcessGroup() as group:
        node = launch.ClientProcesses(group, client, said.append)

        def live() -> None:
            for _ in range(100):
                node.supervise()
                if node.children:
                    node.children[1].process.wait(10)
                now[0] += 0.5

        with pytest.raises(DeployError, match="no luck"):
            live()
    assert [line.split()[-2] for line in said] == ["1", "2", "4", "8", "16"]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_client_of_which_one_process_dies_is_started_afresh_whole(bin: Path, client: Path, which: int) -> None:
    script(bin, "flower-supernode", "exec sleep 60")
    script(bin, "flower-superexec", "exec sleep 60")
    with processes.ProcessGroup() as group:
        node = launch.ClientProcesses(group, client, lambda text: None)
        node.supervise()
        first = node.children
        first[which].signal(signal.SIGKILL)
        keep_until(node, lambda: node.children and node.children != first)
        assert not any(c.running() for c in first)
        assert all(c.running() for c in node.children)


@pytest.fixture
def unconnected(bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SuperNode that has given up its connection, and lives on."""
    monkeypatch.setattr(launch, "LOOK_EVERY_S", 0.0)
    script(bin, "flower-supernode", r"printf 'INFO : fine\n\033[91mERROR \033[0m:     SSL error\n'; exec sleep 60")
    script(bin, "flower-superexec", "exec sleep 60")


@pytest.mark.usefixtures("unconnected")
def test_a_supernode_that_lives_on_without_a_connection_is_started_afresh(client: Path) -> None:
    said: list[str] = []
    with processes.ProcessGroup() as group:
        node = launch.ClientProcesses(group, client, said.append)
        node.supervise()
        first = node.children
        keep_until(node, lambda: node.children and node.children != first)
        assert not any(c.running() for c in first)
    assert said[0].startswith("client's SuperNode gave up its connection: SSL error (log: ")
    assert said[0].endswith("; restarting in 1 s")


def test_a_client_whose_data_cannot_be_used_is_not_started_again(bin: Path, client: Path) -> None:
    script(bin, "resident", "echo 'DataError: own.npz is not there'; exit 2")
    script(bin, "flower-supernode", "exec sleep 60")
    script(bin, "flower-superexec", "exec sleep 60")
    with processes.ProcessGroup() as group:
        node = launch.ClientProcesses(group, client, lambda text: None)
        with pytest.raises(DeployError, match=r"client's resident ended with code 2: DataError: own\.npz is not there"):
            keep_until(node, lambda: False)


def test_a_client_with_another_s_key_never_starts(client: Path) -> None:
    other = client / "other"
    other.mkdir()
    certificates.issue_node(other, "x")
    (client / "node.pub").write_bytes((other / "node.pub").read_bytes())
    with processes.ProcessGroup() as group, pytest.raises(DeployError, match="copy both from one pack"):
        launch.ClientProcesses(group, client, lambda text: None)
