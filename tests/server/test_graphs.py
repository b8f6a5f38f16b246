"""Graphs and mixing matrices: connected, symmetric, and what an exchange does to what the nodes have."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unskew.errors import ConfigError
from unskew.keys import Key
from unskew.server.graphs import (
    Complete,
    Edges,
    ErdosRenyi,
    Geometric,
    Graph,
    Ring,
    Torus,
    contraction,
    laplacian,
    links,
    metropolis,
    mixed,
    mixing_matrix,
    require_connected,
)

PATH = Edges(((0, 1), (1, 2)))
GRAPHS = st.one_of(
    st.just(Complete()),
    st.just(Ring()),
    st.just(Torus()),
    st.floats(0.01, 1.5).map(Geometric),
    st.floats(0.0, 1.0).map(ErdosRenyi),
)
NODES = st.integers(1, 30)


def degrees(graph: Graph, n: int, seed: int = 0) -> list[int]:
    found: list[int] = graph(n, Key(seed)).sum(0).tolist()
    return found


# ---------------------------------------------------------------- graphs
@given(graph=GRAPHS, n=NODES, seed=st.integers(0, 50))
def test_every_graph_is_symmetric_without_loops_and_connected(graph: Graph, n: int, seed: int) -> None:
    a = graph(n, Key(seed))
    assert a.shape == (n, n)
    assert a.dtype == torch.bool
    assert torch.equal(a, a.T)
    assert not bool(a.diagonal().any())
    require_connected(a)
    assert torch.equal(a, graph(n, Key(seed)))


@pytest.mark.parametrize(
    ("graph", "n", "expected"),
    [
        (Ring(), 1, [0]),
        (Ring(), 2, [1, 1]),
        (Ring(), 5, [2] * 5),
        (Complete(), 4, [3] * 4),
        (Torus(), 9, [4] * 9),
        (Torus(), 12, [4] * 12),  # 3 x 4
        (Torus(), 6, [3] * 6),  # 2 x 3: up and down are the same neighbour
        (Torus(), 7, [2] * 7),  # a prime makes a ring
        (PATH, 3, [1, 2, 1]),
        (Geometric(2.0), 6, [5] * 6),  # the square's diagonal is shorter
        (ErdosRenyi(1.0), 6, [5] * 6),
    ],
)
def test_everybody_has_the_neighbours_the_shape_says(graph: Graph, n: int, expected: list[int]) -> None:
    assert degrees(graph, n) == expected


def test_a_radius_that_is_too_small_grows_until_nobody_is_cut_off_and_no_further() -> None:
    """The longest edge is then the one that joins two parts: without it the graph falls apart."""
    for seed in range(5):
        a = Geometric(0.001)(12, Key(seed))
        at = torch.rand(12, 2, dtype=torch.float64, generator=(Key(seed) / "positions").generator())
        longest = torch.where(a, (at[:, None] - at[None]).square().sum(-1), 0.0)
        with pytest.raises(ConfigError, match="must be connected"):
            require_connected(a & (longest < longest.max()))


# ---------------------------------------------------------------- mixing matrices
def test_laplacian_weights_of_a_path() -> None:
    """L = [[1, -1, 0], [-1, 2, -1], [0, -1, 1]], D_max = 2, delta = 1/4 in the middle of (0, 1/2)."""
    expected = [[0.75, 0.25, 0.0], [0.25, 0.5, 0.25], [0.0, 0.25, 0.75]]
    assert laplacian(PATH(3, Key(0))).tolist() == expected


def test_metropolis_weights_of_a_path() -> None:
    """Degrees 1, 2, 1: both edges weigh 1 / (1 + 2)."""
    v = metropolis(PATH(3, Key(0)))
    torch.testing.assert_close(v, torch.tensor([[2, 1, 0], [1, 1, 1], [0, 1, 2]], dtype=torch.float64) / 3)


def test_contractions_that_are_known() -> None:
    """Complete with Metropolis: one exchange is the mean, 0.  Ring of four: V = circ(1, 1, 0, 1) / 3 has eigenvalues 1,
    1/3, -1/3, 1/3.  Path, Laplacian with step 1/4: L has 0, 1, 3, so V has 1, 3/4, 1/4.
    """
    assert contraction(metropolis(Complete()(7, Key(0)))) == pytest.approx(0.0, abs=1e-12)
    assert contraction(metropolis(Ring()(4, Key(0)))) == pytest.approx(1 / 3)
    assert contraction(laplacian(PATH(3, Key(0)))) == pytest.approx(0.75)
    assert contraction(laplacian(Ring()(1, Key(0)))) == 0.0


@settings(deadline=None)
@given(
    graph=GRAPHS,
    n=NODES,
    rule=st.sampled_from(["laplacian", "metropolis"]),
    seed=st.integers(0, 50),
    k=st.integers(1, 6),
)
def test_an_exchange_keeps_the_mean_the_range_and_contracts_the_spread(
    graph: Graph, n: int, rule: Any, seed: int, k: int
) -> None:
    """I-37: V is symmetric, not negative, with rows that sum to 1; ||Z - mean|| falls by lambda^k in k exchanges."""
    v = mixing_matrix(graph(n, Key(seed)), rule)
    torch.testing.assert_close(v, v.T)
    torch.testing.assert_close(v.sum(1), torch.ones(n, dtype=torch.float64))
    assert float(v.min()) > -1e-12
    rate = contraction(v)
    assert 0.0 <= rate < 1.0
    z = torch.randn(n, 3, dtype=torch.float64, generator=Key(seed).generator())
    after = torch.linalg.matrix_power(v, k) @ z
    torch.testing.assert_close(after.mean(0), z.mean(0))
    assert float((after - z.mean(0)).norm()) <= rate**k * float((z - z.mean(0)).norm()) + 1e-12
    assert bool((after <= z.max(0).values + 1e-12).all())
    assert bool((after >= z.min(0).values - 1e-12).all())


# ---------------------------------------------------------------- an exchange, as clients see it
def by_links(v: Tensor, z: Tensor, present: list[int]) -> dict[int, Tensor]:
    """One exchange, client by client."""
    models = {10 * i: {"w": z[i]} for i in present}
    found = links(v, [10 * i for i in range(len(v))], models)
    return {c // 10: mixed(models[c], near)["w"] for c, near in found.items()}


def test_whoever_is_missing_is_left_out_on_both_sides_and_the_mean_of_the_others_is_kept() -> None:
    """Ring of four, weights 1/3, node 2 missing: node 1 has 1/3 z_0 + 2/3 z_1, node 3 has 1/3 z_0 + 2/3 z_3."""
    z = torch.tensor([[3.0], [6.0], [99.0], [0.0]], dtype=torch.float64)
    got = by_links(metropolis(Ring()(4, Key(0))), z, [0, 1, 3])
    assert {i: float(w) for i, w in got.items()} == {0: pytest.approx(3), 1: pytest.approx(5), 3: pytest.approx(1)}


@given(n=st.integers(2, 12), seed=st.integers(0, 50), missing=st.sets(st.integers(0, 11)))
def test_losses_never_break_the_mean_of_those_who_take_part(n: int, seed: int, missing: set[int]) -> None:
    present = [i for i in range(n) if i not in missing]
    z = torch.randn(n, 2, dtype=torch.float64, generator=Key(seed).generator())
    got = by_links(metropolis(ErdosRenyi(0.4)(n, Key(seed))), z, present)
    assert sorted(got) == present
    if present:
        torch.testing.assert_close(torch.stack(list(got.values())).mean(0), z[present].mean(0))
