"""Runs of the small world by the actors of a Ray cluster, held against those of the sequential executor."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from grid import GRID
from recipe import SEED, Relay, bits, make, recorded, rounds, simulator, world

from unskew import wire
from unskew.bench.toolkit import RandomClients, Workload, random_clients
from unskew.keys import Key
from unskew.local.executor import Executor, PoolParts
from unskew.local.ray import RayPool
from unskew.local.sequential import Sequential
from unskew.local.trainer import LocalTrainer
from unskew.local.workers.executor import Workers
from unskew.local.workers.worker import WorkerSetup
from unskew.protocol import SgdConfig
from unskew.runtime.in_process import Simulator

STORE = 200 << 20
RELAY = Relay(SgdConfig(0.05, batch_size=4, local_epochs=1))


@dataclass(frozen=True)
class LargeRelay:
    """Models that hop twice in a round and lie in the object stores: below 100 kB Ray keeps them with the driver.

    Attributes:
        clients: Number of clients, four images each.
        hidden: Units of the hidden layers.
    """

    clients: int
    hidden: tuple[int, ...]

    @cached_property
    def world(self) -> RandomClients:
        workload = Workload("fcn", (1, 28, 28), 4, (("hidden", self.hidden),))
        return random_clients(workload, self.clients, Key(5))

    def open_setup(self, _: int) -> WorkerSetup:
        return WorkerSetup(RELAY, LocalTrainer(self.world.task, self.world.data), self.world.population.me)

    def pool(self) -> RayPool:
        return RayPool(PoolParts(self.open_setup, 2, self.world.model_bytes))

    def states(self, own: RayPool | None = None, cell: int = 0) -> Iterator[bytes]:
        """The state after each round, by a pool's actors or in sequence."""
        trainer = LocalTrainer(self.world.task, self.world.data)
        executor: Executor = Workers(own, cell, RELAY) if own else Sequential(trainer)
        sim, t = Simulator(RELAY, self.world.population, executor), 0
        state = sim.start()
        while True:
            state, _ = sim.round(state, t := t + 1)
            yield wire.encode(state)


LARGE = LargeRelay(4, (60,))
LARGE_CELL = len(GRID)
"""Its number among the setups of `open_cell`, behind those of the grid."""


def open_cell(index: int) -> WorkerSetup:
    if index == LARGE_CELL:
        return LARGE.open_setup(0)
    case, network = GRID[index]
    method = make(case)
    population, trainer = world(network, bool(getattr(method, "pooled", False)))
    return WorkerSetup(method, trainer, population.me)


def on(pool: RayPool, case: str, network: str) -> Any:
    sim = simulator(case, network, seed=SEED)
    sim.clients.executor = Workers(pool, GRID.index((case, network)), sim.method)
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
