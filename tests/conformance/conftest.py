"""A Ray cluster of two nodes on this machine, which the tests of a module share."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from two_nodes import STORE, open_cell

from unskew.local.executor import PoolParts
from unskew.local.ray import RayPool


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one core each; one that is lost is noticed within seconds."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'unskew[ray]'")
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
