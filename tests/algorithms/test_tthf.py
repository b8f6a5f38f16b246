"""TT-HF: when clusters average, what the draw expects, what consensus keeps, and what travels."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unskew.algorithms.tthf import TTHF, ExchangeReply, TTHFReply, adaptive, divide
from unskew.keys import Key
from unskew.protocol import Ask, SgdConfig, drive, map_keep
from unskew.server.graphs import Complete, Geometric, Ring, contraction, mixing_matrix

TWO = SgdConfig(lr=0.5, local_steps=2, batch_size=None)


def outcomes(world: Any, method: TTHF, value: Any, seeds: int = 12, **settings: Any) -> set[float]:
    """What a first round can lead to: full batches, so that only the draw depends on the seed."""
    found = set()
    for seed in range(seeds):
        found.add(round(value(world.play(method, 1, seed=seed, **settings).params[1]), 9))
    return found


# ---------------------------------------------------------------- a round
def test_full_consensus_after_every_step_is_one_step_on_averaged_gradients(springs: Any, value: Any) -> None:
    """I-37: m = 8, 0, -2, mean 2.  Complete with Metropolis weights averages at once: 4, 0, -1 -> 1; 4.5, .5, -.5 ->
    1.5.  That is gradient descent on the mean, 0 -> 1 -> 1.5.  The third step ends at the global instant, which draws
    one of 4.75, .75, -.25.
    """
    three = SgdConfig(lr=0.5, local_steps=3, batch_size=None)
    whole = TTHF(cluster_size=3, d2d_every=1, graph=Complete(), mixing="metropolis", local=three)
    assert outcomes(springs(m=[8.0, 0.0, -2.0]), whole, value) == {4.75, 0.75, -0.25}


# ---------------------------------------------------------------- the draw
@given(n=st.integers(1, 60), size=st.integers(1, 12))
def test_clusters_divide_the_cohort_evenly(n: int, size: int) -> None:
    clusters = divide(tuple(range(100, 100 + n)), size)
    assert [c for cluster in clusters for c in cluster] == list(range(100, 100 + n))
    sizes = [len(c) for c in clusters]
    assert len(sizes) == -(-n // size)
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1


# ---------------------------------------------------------------- consensus
@settings(deadline=None)
@given(n=st.integers(1, 12), size=st.integers(1, 6), gamma=st.integers(1, 5), seed=st.integers(0, 30), data=st.data())
def test_consensus_keeps_every_clusters_mean_and_contracts_its_spread(
    n: int, size: int, gamma: int, seed: int, data: Any
) -> None:
    """I-37: by lambda_c ^ Gamma_c at least, as many exchanges as each cluster was given, by messages alone."""
    mixing = data.draw(st.sampled_from(["laplacian", "metropolis"]))
    method = TTHF(size, gamma=gamma, graph=Geometric(0.4), mixing=mixing)
    clusters = divide(range(n), size)
    v = [mixing_matrix(method.graph(len(c), Key(seed) / i), mixing) for i, c in enumerate(clusters)]
    wanted = [data.draw(st.integers(0, gamma)) for _ in clusters]
    z = torch.randn(n, 4, dtype=torch.float64, generator=Key(seed).generator())
    held = {c: TTHFReply({"w": z[c]}, 1, None) for c in range(n)}

    def answer(want: Ask) -> dict[int, ExchangeReply]:
        return {c: map_keep(lambda kept, _: kept.value, method.exchange(None, m, None)[0]) for c, m in want.to.items()}

    after = drive(method.consensus(clusters, v, held, wanted), answer)
    got = torch.stack([after[c].model["w"] for c in range(n)])
    for cluster, v_c, rounds in zip(clusters, v, wanted, strict=True):
        rows = list(cluster)
        torch.testing.assert_close(got[rows], torch.linalg.matrix_power(v_c, rounds) @ z[rows])
        mean = z[rows].mean(0)
        torch.testing.assert_close(got[rows].mean(0), mean)
        assert float((got[rows] - mean).norm()) <= contraction(v_c) ** rounds * float((z[rows] - mean).norm()) + 1e-12


# ---------------------------------------------------------------- adaptive exchanges
@given(tolerance=st.floats(1e-4, 1.0), size=st.integers(2, 20), gap=st.floats(0.0, 5.0), rate=st.floats(0.01, 0.99))
def test_the_adaptive_rule_asks_for_as_few_exchanges_as_reach_the_tolerance(
    tolerance: float, size: int, gap: float, rate: float
) -> None:
    """s_c Y_c lambda_c^Gamma <= eta phi, and one exchange less does not do."""
    wanted = adaptive(tolerance, size, gap, rate)
    assert size * gap * rate**wanted <= tolerance * (1 + 1e-9)
    if wanted:
        assert size * gap * rate ** (wanted - 1) > tolerance * (1 - 1e-9)


def test_gamma_bounds_the_rule_and_the_run_says_so(springs: Any) -> None:
    """Path-like ring of four with lambda = .5 (Laplacian, delta = 1/4: eigenvalues 1, .5, .5, 0) and Y = 4, s = 4.

    eta phi = .5 * .01: ceil(log(.005 / 16) / log .5) = ceil(11.64) = 12 exchanges; 3 are allowed.
    """
    ring = TTHF(4, d2d_every=1, gamma=3, phi=0.01, graph=Ring(), local=TWO)
    world = springs(m=[8.0, 0.0, 0.0, 0.0])
    bounded, free = (world.play(replace(ring, gamma=g), 1) for g in (3, 20))
    assert bounded.states[1].exchanges == ((3,),)
    assert free.states[1].exchanges == ((12,),)
    assert bounded.sim.method.info(bounded.states[1]).warnings == (
        "TT-HF's phi asked for more D2D exchanges than gamma = 3 allows",
    )
    assert free.sim.method.info(free.states[1]).warnings == ()


# ---------------------------------------------------------------- instants
@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"local": SgdConfig(local_steps=20)}, (5, 5, 5, 5)),
        ({"local": SgdConfig(local_steps=20), "d2d_every": 8}, (8, 8, 4)),
        ({"local": SgdConfig(local_steps=20), "gamma": 0}, (20,)),
        ({"local": SgdConfig(local_epochs=2)}, (1, 1)),
        ({"local": SgdConfig(local_epochs=5)}, (2, 2, 1)),
        ({"local": SgdConfig(), "d2d_before_global": True}, (1,)),
        ({"local": SgdConfig(local_steps=4), "d2d_every": 9, "d2d_before_global": True}, (4,)),
    ],
)
def test_a_round_is_cut_at_its_d2d_instants(options: dict[str, Any], parts: tuple[int, ...]) -> None:
    assert TTHF(**options).parts() == parts
