"""Actors of a Ray cluster: every algorithm ends with the bits of the sequential executor, also after failures."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from grid import GRID, one_network_each
from recipe import CASES, SEED, bits, make, recorded, rounds, simulator, world

from unskew.errors import WorkerError
from unskew.local import ray as ray_module
from unskew.local.executor import EvalJob, PoolParts
from unskew.local.ray import RayPool
from unskew.local.sequential import Sequential
from unskew.local.workers.executor import Workers
from unskew.local.workers.recipe import WorkerSetup

pytest.importorskip("ray", reason="Ray is not installed: pip install 'unskew[ray]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]
STORE = 200 << 20
machine_kind = ray_module.machine_kind


def open_cell(index: int) -> WorkerSetup:
    case, network = GRID[index]
    algorithm = make(case)
    population, trainer = world(network, bool(getattr(algorithm, "pooled", False)))
    return WorkerSetup(algorithm, trainer, population.me)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one core each, on this machine; a node that is lost is noticed within seconds."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    settings = {"health_check_period_ms": 500, "health_check_failure_threshold": 3, "health_check_timeout_ms": 500}
    head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False, "_system_config": settings}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    try:
        nodes.add_node(num_cpus=1, object_store_memory=STORE)
        ray.init(address=nodes.address, log_to_driver=False)
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


@pytest.fixture(scope="module")
def opened(cluster: Any) -> Iterator[list[RayPool]]:
    """The pool that tests share while none needs the cores."""
    pools: list[RayPool] = []
    yield pools
    for pool in pools:
        pool.close()


@pytest.fixture
def pool(opened: list[RayPool]) -> RayPool:
    if not opened:
        opened.append(RayPool(PoolParts(open_cell, 2, 1 << 12)))
    return opened[0]


@pytest.fixture
def free(cluster: Any, opened: list[RayPool]) -> Any:
    """The cluster, both cores free."""
    while opened:
        opened.pop().close()
    return cluster


def on(pool: RayPool, case: str, network: str) -> Any:
    sim = simulator(case, network, seed=SEED)
    sim.clients.executor = Workers(pool, GRID.index((case, network)), sim.algorithm)
    return sim


def check_bits(pool: RayPool, case: str, network: str, between: Callable[[int], None] = lambda t: None) -> None:
    sim = on(pool, case, network)
    for t, ((moment, trace), (_, state, same)) in enumerate(
        zip(recorded(case, network).rounds, rounds(sim), strict=True)
    ):
        assert bits(sim, state) == moment.bits
        assert same == trace
        between(t)


@one_network_each(CASES, variants=False)
def test_actors_on_two_nodes_end_with_the_bits_of_the_sequential_executor(
    case: str, network: str, pool: RayPool
) -> None:
    check_bits(pool, case, network)


def test_actors_evaluate_with_the_bits_of_the_sequential_executor(pool: RayPool) -> None:
    population, trainer = world("perceptron")
    jobs = [EvalJob(population.initial, "train")] * 2
    by_actors = Workers(pool, GRID.index(("fedavg", "perceptron")), make("fedavg")).evaluate(jobs)
    for ours, theirs in zip(by_actors, Sequential(trainer).evaluate(jobs), strict=True):
        assert [c.tolist() for c in ours] == [c.tolist() for c in theirs]


def test_a_kept_model_hops_without_passing_the_driver(pool: RayPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six clients hop twice and are collected once: six models are brought here, where hops alone move twelve."""
    brought: list[str] = []
    bring = RayPool._bring

    def counted(self: RayPool, kept: Any, path: str) -> Callable[[], bytes]:
        inner = bring(self, kept, path)
        return lambda: (brought.append(path), inner())[1]

    monkeypatch.setattr(RayPool, "_bring", counted)
    sim = on(pool, "relay", "perceptron")
    _, trace = sim.round(sim.start(), 1)
    hops = [t for t in trace.transfers if t.src != 0 and t.dst != 0]
    assert hops
    assert len(brought) == len([t for t in trace.transfers if t.dst == 0 and t.kind == "model"]) > 0


def test_a_killed_actor_is_begun_again_and_the_bits_stay(free: Any) -> None:
    import ray

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


def test_a_node_of_another_kind_is_refused_unless_mixing_is_allowed(free: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_module, "machine_kind", lambda: {**machine_kind(), "instructions": "AVX1024"})
    own = RayPool(PoolParts(open_cell, 1, 1 << 12))
    with pytest.raises(WorkerError, match=r"node .* is not like the one .*instructions .* here, AVX1024 there.*mixed"):
        check_bits(own, "fedavg", "perceptron")
    mixed = RayPool(PoolParts(open_cell, 1, 1 << 12), mixed=True)
    try:
        check_bits(mixed, "fedavg", "perceptron")
    finally:
        mixed.close()


def test_a_node_lost_in_the_middle_of_a_round_and_one_that_joins_change_no_bits(
    free: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node has one core, so one actor is on the node that goes, between two answers of the first exchange; it
    begins again on the one that comes."""
    import ray

    own = RayPool(PoolParts(open_cell, 2, 1 << 12))
    ray.get([w.started for w in own.workers], timeout=60)
    lost: list[int] = []
    answers = RayPool._answers

    def lose(self: RayPool, *given: Any) -> Iterator[Any]:
        if not lost:
            lost.append(len(self.workers))
            free.remove_node(free.list_all_nodes()[-1], allow_graceful=False)
            free.add_node(num_cpus=1, object_store_memory=STORE)
        yield from answers(self, *given)

    monkeypatch.setattr(RayPool, "_answers", lose)
    try:
        check_bits(own, "relay", "perceptron")
        assert lost == [2]
        ray.get([w.actor.pid.remote() for w in own.workers], timeout=60)
    finally:
        own.close()
