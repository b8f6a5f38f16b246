"""Actors of a Ray cluster: every method ends with the bits of the sequential executor."""

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from grid import GRID, network_of, one_network_each
from recipe import CASES, make, world
from two_nodes import LARGE, LARGE_CELL, check_bits, on

import unskew as us
from unskew.experiment.config import Experiment, to_toml
from unskew.local.executor import EvalJob
from unskew.local.ray import RayPool
from unskew.local.sequential import Sequential
from unskew.local.workers.executor import Workers
from unskew.tree import Params

pytest.importorskip("ray", reason="Ray is not installed: pip install 'unskew[ray]'")
pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]  # Ray's own
SMOKE = ("scaffold", "relay", "fedprox+dw")  # on one cluster


@pytest.mark.network
def test_two_nodes_train_evaluate_and_hop_with_the_bits_of_one_process(pool: RayPool) -> None:
    for case in SMOKE:
        check_bits(pool, case, network_of(case))
    check_evaluation(pool)
    check_hops(pool)
    check_hops_of_large_models(pool)


def check_evaluation(pool: RayPool) -> None:
    population, trainer = world("perceptron")
    jobs = [EvalJob(population.initial, "train")] * 2
    by_actors = Workers(pool, GRID.index(("fedavg", "perceptron")), make("fedavg")).evaluate(jobs)
    for ours, theirs in zip(by_actors, Sequential(trainer).evaluate(jobs), strict=True):
        assert [c.tolist() for c in ours] == [c.tolist() for c in theirs]


def check_hops(pool: RayPool) -> None:
    """Four clients get a model of 2 kB, hop twice and are collected once: Ray gives a small model to the driver with
    each of twelve answers, and the driver gives it on with eight hops; the first four are sent by it.

    Nothing else that passes has tensors; each of a model's four begins at a multiple of 64 bytes.
    """
    sim, before = on(pool, "relay", "perceptron"), pool.driver_bytes
    _, trace = sim.round(sim.start(), 1)
    assert len([t for t in trace.transfers if 0 not in (t.src, t.dst) and t.kind == "model"]) == 8
    assert pool.driver_bytes - before == (4 + 12 + 8) * aligned(sim.population.initial)


def check_hops_of_large_models(pool: RayPool) -> None:
    """As above with models of 0.2 MB: only the four that are sent and the four that are collected pass the driver."""
    before = pool.driver_bytes
    assert next(LARGE.states(pool, LARGE_CELL)) == next(LARGE.states())
    assert pool.driver_bytes - before == (4 + 4) * aligned(LARGE.world.population.initial)


def aligned(model: Params) -> int:
    return sum(-(-t.nbytes // 64) * 64 for t in model.values())


@pytest.mark.slow
@one_network_each(CASES)
def test_actors_on_two_nodes_end_with_the_bits_of_the_sequential_executor(
    case: str, network: str, pool: RayPool
) -> None:
    check_bits(pool, case, network)


# ---------------------------------------------------------------- every way in
MINE = """
from dataclasses import dataclass
from torch import nn
import unskew as us

@dataclass(frozen=True)
class Mine(us.FedAvg):
    pass

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
"""


@pytest.mark.slow
def test_simulate_takes_modules_and_data_of_ones_own_to_every_node(
    free: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method and a network from a module beside the script, one method from the script itself, and arrays."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    mine = importlib.import_module("mine")
    sgd = us.SgdConfig(0.1, batch_size=8)
    here = type("Here", (mine.Mine,), {"__module__": "__main__"})
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(120, 4, generator=draw), torch.randint(3, (120,), generator=draw)

    def by(executor: str) -> us.History:
        methods = {"mine": mine.Mine(sgd), "here": here(sgd)}
        runtime = us.Runtime(executor=executor)
        return us.simulate(methods, data=(x, y), model=mine.Net, rounds=2, progress=False, runtime=runtime)

    assert by("ray").summary["fingerprint"] == by("sequential").summary["fingerprint"]


@pytest.mark.slow
def test_the_points_of_a_sweep_take_turns_on_a_cluster(
    free: Any, tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    """Two at once, each with an actor for every core: the second waits for the first."""
    prints: list[str] = []
    by_ray = f'{{executor="ray", executor_options={{address="{free.address}"}}}}'
    for runtime in (by_ray, '{executor="sequential"}'):
        file, out = tmp_path / "sweep.toml", tmp_path / f"sweep{len(prints)}"
        file.write_text(to_toml(tiny("seeds=[4]")) + '\n[sweep.grid]\n"split.alpha" = [0.5, 1.0]\n')
        command = ["run", str(file), "--out", str(out), "--jobs", "2", "--json", "--set", f"runtime={runtime}"]
        done = subprocess.run([sys.executable, "-m", "unskew", *command], capture_output=True, timeout=240)
        assert done.returncode == 0, done.stderr.decode()
        prints.append(json.loads(done.stdout)["fingerprint"])
    assert prints[0] == prints[1]
