"""Faults of a real Ray cluster of two nodes: what is lost is done again, and the bits stay."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from two_nodes import STORE, LargeRelay, check_bits, open_cell

from unskew.errors import WorkerError
from unskew.experiment.config import Experiment, to_toml
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


def started(pool: RayPool, timeout: float = 60.0) -> None:
    ray.get([w.started for w in pool.workers], timeout=timeout)


# ---------------------------------------------------------------- actors and nodes
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
