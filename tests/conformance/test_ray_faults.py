"""Faults of a real Ray cluster of two nodes: what is lost is done again, and the bits stay."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from two_nodes import STORE, LargeRelay, check_bits, open_cell

from unskew.errors import WorkerError
from unskew.experiment.config import Experiment, to_toml
from unskew.local import ray as ray_module
from unskew.local.executor import PoolParts, Stored
from unskew.local.ray import RayPool
from unskew.local.workers.pool import ToWorker
from unskew.run import loop

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'unskew[ray]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]
machine_kind = ray_module.machine_kind


def started(pool: RayPool, timeout: float = 60.0) -> None:
    ray.get([w.started for w in pool.workers], timeout=timeout)


# ---------------------------------------------------------------- actors and nodes


def test_a_pool_waits_for_cores_that_another_has_and_says_so(free: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two points of a sweep on one cluster: the second begins when the first ends, however long that takes."""
    first = RayPool(PoolParts(open_cell, 2, 1 << 12))
    noted: list[str] = []
    started(first)
    monkeypatch.setattr(ray_module, "STARTING_S", 0.5)

    def note(text: str) -> None:
        noted.append(text)
        first.close()

    try:
        second = RayPool(PoolParts(open_cell, 2, 1 << 12, note=note))
    finally:
        first.close()
    try:
        check_bits(second, "fedavg", "perceptron")
        assert noted == ["no core of the Ray cluster is free; this run begins when one is (see: ray status)"]
    finally:
        second.close()


def test_a_killed_actor_is_begun_again_and_the_bits_stay(free: Any) -> None:
    own = RayPool(PoolParts(open_cell, 1, 1 << 12))
    victims: list[int] = []

    def kill(t: int) -> None:
        if not victims:
            victims.append(ray.get(own.workers[0].actor.pid.remote()))
            os.kill(victims[0], signal.SIGKILL)

    try:
        check_bits(own, "scaffold", "perceptron", kill)
        assert ray.get(own.workers[0].actor.pid.remote()) != victims[0]
    finally:
        own.close()


def stores_of(references: Sequence[Any], timeout: float = 60.0) -> set[str]:
    """The nodes in whose stores values lie, each in one; Ray learns of it a moment after they are made."""
    until = time.monotonic() + timeout
    while True:
        places = [p["node_ids"] for p in ray.experimental.get_local_object_locations(references).values()]
        if len(places) == len(references) and all(places):
            return {node for nodes in places for node in nodes}
        assert time.monotonic() < until, places
        time.sleep(0.1)


def test_models_that_were_held_by_a_lost_node_are_made_again(free: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six models of 0.2 MB lie on two nodes when one goes, before they hop: what they came from is trained again."""
    relay = LargeRelay(6, (60,))
    own = relay.pool()
    started(own)
    exchanges: list[int] = []
    run = RayPool.run

    def lose(self: RayPool, requests: Any, where: str) -> Iterator[Any]:
        values = [v.value for request in requests.values() for v in request.values() if isinstance(v, ToWorker)]
        held = [value.place[0].reference for value in values if isinstance(value, Stored)]
        exchanges.append(len(held))
        if len(exchanges) == 2:
            second = free.list_all_nodes()[-1]
            assert stores_of(held) == {node.node_id for node in free.list_all_nodes()}
            free.remove_node(second, allow_graceful=False)
            free.add_node(num_cpus=1, object_store_memory=STORE)
        yield from run(self, requests, where)

    monkeypatch.setattr(RayPool, "run", lose)
    try:
        by_actors = list(islice(relay.states(own), 2))
    finally:
        own.close()
    assert by_actors == list(islice(relay.states(), 2))


# ---------------------------------------------------------------- memory
# ---------------------------------------------------------------- the driver
RUN = ("seeds=[4]", "rounds=6", "runtime.checkpoint_every=1", "runtime.executor=ray", "runtime.workers=2")


def unskew(*arguments: str | Path, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "unskew", *map(str, arguments)], **options)


DYING = """
import os, signal
from unskew import cli
from unskew.run import checkpoint

save, saved = checkpoint.save, []

def dying(*given):
    saved.append(save(*given))
    if len(saved) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return saved[-1]

checkpoint.save = dying
cli.main()
"""


def test_a_killed_driver_is_resumed_on_the_same_cluster(
    free: Any, tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    """It is killed between two rounds, while its actors hold both cores."""
    address = f'runtime.executor_options={{address="{free.address}"}}'
    file, folder = tmp_path / "experiment.toml", tmp_path / "run"
    file.write_text(to_toml(tiny(*RUN, address)))
    alone = loop.start(tiny(*RUN[:3], "runtime.executor=sequential"), tmp_path / "alone")
    with (tmp_path / "killed.log").open("wb") as log:
        command = [sys.executable, "-c", DYING, "run", str(file), "--out", str(folder), "--quiet"]
        killed = subprocess.run(command, stdout=log, stderr=log, timeout=180).returncode
    assert killed == -signal.SIGKILL, (tmp_path / "killed.log").read_text()
    assert not (folder / "summary.json").exists()
    resumed = unskew("run", folder, "--quiet")
    assert resumed.wait(timeout=180) == 0
    assert json.loads((folder / "summary.json").read_text())["fingerprint"] == alone.summary["fingerprint"]


@contextmanager
def ray_start(*arguments: str, log: Path, env: dict[str, str]) -> Iterator[None]:
    """`ray start` as long as the block lasts; ended by itself, since `ray stop` ends every Ray of the machine."""
    command = [str(Path(sys.executable).parent / "ray"), "start", "--block", "--num-cpus=1", *arguments]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=env, start_new_session=True)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.mark.parametrize("token", ["none", "asked for"])
def test_two_nodes_begun_by_the_command_line_run_an_experiment(
    token: str, tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the guide has it: ray start, ray start, unskew run.

    Without Ray's token the cluster is found by "auto", with it by its address.
    """
    monkeypatch.setenv("HOME", str(tmp_path))  # where Ray keeps a token
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    secret = tmp_path / ".ray" / "auth_token"
    secret.parent.mkdir()
    if token != "none":
        secret.write_text("0123456789abcdef" * 4)
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
    port, store = free_port(), f"--object-store-memory={STORE}"
    joined = f"127.0.0.1:{port}"
    address = "auto" if token == "none" else joined
    file = tmp_path / "experiment.toml"
    file.write_text(to_toml(tiny(*RUN, "rounds=3", f'runtime.executor_options={{address="{address}"}}')))
    alone = loop.start(tiny(*RUN[:3], "rounds=3", "runtime.executor=sequential"), tmp_path / "alone")
    with ExitStack() as stack:
        short = stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))  # a socket's path has 107 characters
        monkeypatch.setenv("RAY_TMPDIR", short)  # where "auto" looks for the cluster begun last
        env = dict(os.environ)
        head = ("--head", f"--port={port}", "--include-dashboard=false", store)
        stack.enter_context(ray_start(*head, log=tmp_path / "head", env=env))
        wait_for(Path(short) / "ray" / "ray_current_cluster")
        stack.enter_context(ray_start(f"--address={joined}", store, log=tmp_path / "second", env=env))
        assert unskew("run", file, "--out", tmp_path / "run", "--quiet").wait(timeout=180) == 0
        if token == "none":
            secret.write_text("0123456789abcdef" * 4)  # as a Ray of another project leaves it
            late = unskew("run", file, "--out", tmp_path / "late", "--quiet", stderr=subprocess.PIPE)
            refusal = "begun without the token that this process has; begin it again, or set RAY_AUTH_MODE=disabled"
        else:
            bare = env | {"RAY_AUTH_MODE": "disabled"}
            late = unskew("run", file, "--out", tmp_path / "late", env=bare, stderr=subprocess.PIPE)
            refusal = "InvalidAuthToken, set RAY_AUTH_MODE=token and copy"
        assert refusal in late.communicate(timeout=120)[1].decode()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["fingerprint"] == alone.summary["fingerprint"]


def wait_for(file: Path) -> None:
    until = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < until, f"{file} is not there"
        time.sleep(0.2)


# ---------------------------------------------------------------- GPUs
def test_actors_share_the_gpus_that_there_are(free: Any) -> None:
    """A node that claims one GPU has room for two actors of half a GPU; without CUDA the first job says so."""
    node = free.add_node(num_cpus=3, num_gpus=1, object_store_memory=STORE)
    try:
        own = RayPool(PoolParts(open_cell, None, 1 << 12), num_gpus=0.5)
        try:
            started(own)
            assert ray.get([w.actor.gpus.remote() for w in own.workers]) == [[0], [0]]
            if not torch.cuda.is_available():
                with pytest.raises(WorkerError, match=r"has a GPU by Ray's account, and PyTorch finds none"):
                    check_bits(own, "fedavg", "perceptron")
        finally:
            own.close()
    finally:
        free.remove_node(node)
