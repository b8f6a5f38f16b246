"""IID distances by hand and against other definitions; degrees of learning and their recursion."""

import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from unskew.server.distance import (
    DistanceMetric,
    iid_distance,
    largest_distance,
    learn,
    project,
    shares,
)

METRICS: tuple[DistanceMetric, ...] = get_args(DistanceMetric)
UNIFORM = torch.full((3,), 1.0 / 3.0, dtype=torch.float64)


def tensors(low: float, high: float, shape: tuple[int, ...]) -> st.SearchStrategy[Tensor]:
    floats = st.floats(low, high, allow_nan=False, allow_subnormal=False)
    return hnp.arrays("float64", shape, elements=floats).map(torch.from_numpy)


def histograms(clients: int, classes: int) -> st.SearchStrategy[Tensor]:
    """Of clients with at least one example each."""
    counts = hnp.arrays("int64", (clients, classes), elements=st.integers(0, 50)).map(torch.from_numpy)
    return counts.filter(lambda h: bool((h.sum(1) > 0).all()))


simplex = histograms(1, 4).map(lambda h: shares(h[0].double()))


@pytest.mark.parametrize(
    ("metric", "expected"),
    [("l2", 0.454606), ("l1", 0.733333), ("tv", 0.366667), ("kl", 0.296794), ("js", 0.074806), ("w1", 0.6)],
)
def test_distances_by_hand(metric: DistanceMetric, expected: float) -> None:
    """psi = (.7, .2, .1) from thirds: differences .3667, -.1333, -.2333.

    l2 sqrt(.13444 + .01778 + .05444); l1 their sizes; tv half of that; kl .7 ln 2.1 + .2 ln .6 + .1 ln .3;
    w1 cumulated .3667 + .2333.  js with m = (.51667, .26667, .21667): KL(psi || m) = .7 (.30368) + .2 (-.28768)
    + .1 (-.77319) = .07772, KL(t || m) = (-.43825 + .22314 + .43078) / 3 = .07189, half of the sum is .07481.
    """
    psi = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    assert iid_distance(psi, UNIFORM, metric).item() == pytest.approx(expected, abs=2e-6)
    assert iid_distance(torch.stack([psi, UNIFORM]), UNIFORM, metric).tolist() == pytest.approx([expected, 0], abs=2e-6)


@given(simplex, simplex, st.sampled_from(METRICS))
def test_no_distribution_is_further_than_the_largest_distance(
    psi: Tensor, target: Tensor, metric: DistanceMetric
) -> None:
    distance = float(iid_distance(psi, target, metric))
    assert 0.0 <= distance <= largest_distance(target, metric) + 1e-12


def test_divergences_at_zeros() -> None:
    """kl needs the target's classes only where psi has some; js is ln 2 at most, reached without a common class."""
    left, right = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    assert iid_distance(left, torch.tensor([0.5, 0.5]), "kl").item() == pytest.approx(math.log(2))
    assert iid_distance(left, right, "kl").item() == math.inf
    assert iid_distance(left, right, "js").item() == pytest.approx(math.log(2))


@given(tensors(-2.0, 2.0, (3, 5)))
def test_projected_noise_is_a_distribution(noisy: Tensor) -> None:
    psi = project(noisy)
    assert bool((psi >= 0).all())
    torch.testing.assert_close(psi.sum(-1), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(project(psi), psi)


@given(histograms(6, 4))
def test_the_recursion_is_the_class_shares_of_the_chain(chain: Tensor) -> None:
    """Eq. 1, client after client, stays on the simplex and ends at the shares of all examples together."""
    psi, size = shares(chain[0].double()), chain[0].sum().double()
    for h in chain[1:]:
        psi, size = learn(psi, size, h)
        assert bool((psi >= 0).all())
        assert psi.sum().item() == pytest.approx(1.0)
    torch.testing.assert_close(psi, shares(chain.sum(0).double()))
    assert size.item() == chain.sum().item()


@given(histograms(6, 4), simplex)
def test_lemma_2_is_the_distance_at_the_end_of_the_chain(chain: Tensor, target: Tensor) -> None:
    """After a chain of clients K: || sum_{i in K} (h_i - D_i t) ||_2 / sum_{i in K} D_i."""
    psi, size = shares(chain[0].double()), chain[0].sum().double()
    for k, h in enumerate(chain[1:], start=2):
        psi, size = learn(psi, size, h)
        met = chain[:k].double()
        closed = (met - met.sum(-1, keepdim=True) * target).sum(0).norm() / met.sum()
        torch.testing.assert_close(closed, iid_distance(psi, target), rtol=1e-9, atol=1e-12)
