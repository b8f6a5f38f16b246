"""The auction's mathematics: links, matchings against brute force, bids that are none."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from unskew.server.auction import (
    Feasibility,
    admit,
    bid_table,
    edge_weights,
    feasible,
    match,
)


# ---------------------------------------------------------------- links
def test_one_bit_per_hertz_needs_12_90_db() -> None:
    """1 - exp(-1 / SNR) <= .05 is SNR >= -1 / ln .95 = 19.496, 12.8994 dB."""
    snr_db = torch.tensor([12.89, 12.8993, 12.8995, 12.90], dtype=torch.float64)
    gamma = torch.log2(1.0 + 10.0 ** (snr_db / 10.0))
    assert feasible(gamma, 1.0, "outage").tolist() == [False, False, True, True]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("none", [False, True, True, True]),
        ("qos", [False, False, True, True]),
        ("outage", [False, False, False, True]),
        ("both", [False, False, False, True]),
    ],
)
def test_which_links_may_carry_a_model(rule: Feasibility, expected: list[bool]) -> None:
    """At gamma_min 1: .5 is too little, 2 has an SNR of 3 and is out in 28 % of the fades, 5 has one of 31."""
    assert feasible(torch.tensor([0.0, 0.5, 2.0, 5.0]), 1.0, rule).tolist() == expected


def test_weights_are_gain_per_bandwidth_where_there_is_an_edge() -> None:
    """.1 over S / gamma = 4e7 / 4 Hz s is 1e-8; no edge for a loss, an unheard bid, a blocked pair, a dead link."""
    values = torch.tensor([[0.1, -0.1, math.nan, 0.1, 0.1, 0.0]])
    gamma = torch.tensor([[4.0, 4.0, 4.0, 4.0, 0.0, 4.0]])
    blocked = torch.tensor([[False, False, False, True, False, False]])
    weights = edge_weights(values, gamma, 4e7, blocked)
    assert weights[0].tolist() == [pytest.approx(1e-8), 0.0, 0.0, 0.0, 0.0, 0.0]


# ---------------------------------------------------------------- who gets what
def best(weights: Tensor) -> float:
    """Largest total weight of a matching, by trying all."""
    table = np.pad(weights.clamp(min=0.0).numpy(), ((0, 0), (0, len(weights))))  # room to stay unmatched
    rows = range(len(table))
    return max(sum(table[m, n] for m, n in zip(rows, order, strict=True)) for order in _orders(table.shape[1], rows))


def _orders(clients: int, rows: range) -> list[tuple[int, ...]]:
    return list(itertools.permutations(range(clients), len(rows)))


tables = st.tuples(st.integers(1, 3), st.integers(1, 4)).flatmap(
    lambda shape: hnp.arrays("float64", shape, elements=st.integers(-3, 9).map(float)).map(torch.from_numpy)
)


@given(tables)
def test_a_matching_is_the_best_there_is_and_has_no_worthless_pair(weights: Tensor) -> None:
    pairs = match(weights)
    assert sum(float(weights[p]) for p in pairs) == pytest.approx(best(weights))
    assert all(weights[p] > 0 for p in pairs)
    assert len({m for m, _ in pairs}) == len({n for _, n in pairs}) == len(pairs)
    assert [m for m, _ in pairs] == sorted(m for m, _ in pairs)
    assert match(weights) == pairs


def test_a_budget_admits_the_most_efficient_first_and_nobody_past_one_that_does_not_fit() -> None:
    """Weights 3, 2, 1 cost 4, 5, 1: with 6 the second does not fit, and the third waits behind it."""
    weights, cost = torch.diag(torch.tensor([1.0, 3.0, 2.0])), torch.diag(torch.tensor([1.0, 4.0, 5.0]))
    pairs = [(0, 0), (1, 1), (2, 2)]
    assert admit(pairs, weights, cost, 6.0) == [(1, 1)]
    assert admit(pairs, weights, cost, 9.0) == [(1, 1), (2, 2)]
    assert admit(pairs, weights, cost, 3.0) == []
    assert admit(pairs, weights, cost, None) == pairs


# ---------------------------------------------------------------- bids
def test_bids_stand_in_the_columns_of_who_made_them() -> None:
    values, refused = bid_table({3: torch.tensor([0.1, -0.2]), 0: torch.tensor([0.3, 0.0])}, 2, 4, 1.0)
    assert refused == {}
    assert values.isnan().tolist() == [[False, True, True, False]] * 2
    assert values[:, 0].tolist() == pytest.approx([0.3, 0.0])
    assert values[:, 3].tolist() == pytest.approx([0.1, -0.2])


@pytest.mark.parametrize(
    ("bid", "why"),
    [
        (torch.tensor([0.1, 0.2, 0.3]), "expected one bid for each of 2 models, got a tensor of shape (3,)"),
        (torch.tensor(0.1), "expected one bid for each of 2 models, got a tensor of shape ()"),
        (torch.tensor([math.nan, 0.1]), "a bid of size nan is impossible: no distance exceeds 0.707107"),
        (torch.tensor([0.1, -math.inf]), "a bid of size inf is impossible: no distance exceeds 0.707107"),
        (torch.tensor([0.1, 0.9]), "a bid of size 0.9 is impossible: no distance exceeds 0.707107"),
    ],
)
def test_what_cannot_be_a_bid_is_refused_and_the_others_stand(bid: Tensor, why: str) -> None:
    values, refused = bid_table({0: torch.tensor([0.7, -0.7]), 1: bid}, 2, 2, math.sqrt(0.5))
    assert refused == {1: why}
    assert values[:, 0].tolist() == pytest.approx([0.7, -0.7])
    assert bool(values[:, 1].isnan().all())
