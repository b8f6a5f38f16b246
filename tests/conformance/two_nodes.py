"""Runs of the small world by the actors of a Ray cluster, held against those of the sequential executor."""

from collections.abc import Callable
from typing import Any

from grid import GRID
from recipe import SEED, bits, make, recorded, rounds, simulator, world

from unskew.local.ray import RayPool
from unskew.local.workers.executor import Workers
from unskew.local.workers.recipe import WorkerSetup

STORE = 200 << 20


def open_cell(index: int) -> WorkerSetup:
    case, network = GRID[index]
    algorithm = make(case)
    population, trainer = world(network, bool(getattr(algorithm, "pooled", False)))
    return WorkerSetup(algorithm, trainer, population.me)


def on(pool: RayPool, case: str, network: str) -> Any:
    sim = simulator(case, network, seed=SEED)
    sim.clients.executor = Workers(pool, GRID.index((case, network)), sim.algorithm)
    return sim


def check_bits(pool: RayPool, case: str, network: str, between: Callable[[int], None] = lambda t: None) -> None:
    """Hold a run's rounds against the recorded ones; `between` is called after each."""
    sim = on(pool, case, network)
    for t, ((moment, trace), (_, state, same)) in enumerate(
        zip(recorded(case, network).rounds, rounds(sim), strict=True)
    ):
        assert bits(sim, state) == moment.bits
        assert same == trace
        between(t)
