"""The auction's mathematics: values by definition, links, matchings against brute force, bids that are none."""

import itertools
import math
from typing import get_args

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
    valuations,
)
from unskew.server.distance import DistanceMetric, iid_distance, learn, shares

METRICS: tuple[DistanceMetric, ...] = get_args(DistanceMetric)


def counts(rows: int, classes: int) -> st.SearchStrategy[Tensor]:
    drawn = hnp.arrays("int64", (rows, classes), elements=st.integers(0, 40)).map(torch.from_numpy)
    return drawn.filter(lambda h: bool((h.sum(1) > 0).all()))


# ---------------------------------------------------------------- values
def test_a_missing_class_is_worth_its_distance_and_more_of_the_same_nothing() -> None:
    """psi (1, 0) of 10 examples is .7071 from uniform; 10 of the other class bring it to 0, 30 to (.25, .75): .3536."""
    target = torch.tensor([0.5, 0.5])
    clients = torch.tensor([[0, 10], [0, 30], [7, 0]])
    values = valuations(torch.tensor([[1.0, 0.0]]), torch.tensor([10.0]), clients, target)
    assert values[0].tolist() == [pytest.approx(0.707107, abs=1e-6), pytest.approx(0.353553, abs=1e-6), 0.0]


@given(counts(3, 4), counts(5, 4), counts(1, 4), st.sampled_from(METRICS))
def test_values_are_the_definition(models: Tensor, clients: Tensor, common: Tensor, metric: DistanceMetric) -> None:
    """Pair by pair: the distance before less that after (eq. 1); l2 goes another way (eq. 2) to the same place."""
    target = shares(common[0] + 1.0)
    psi, sizes = shares(models.double()), models.sum(1).double()
    values = valuations(psi, sizes, clients, target, metric)
    for m, n in itertools.product(range(3), range(5)):
        after, _ = learn(psi[m], sizes[m], clients[n])
        expected = iid_distance(psi[m], target.double(), metric) - iid_distance(after, target.double(), metric)
        assert values[m, n].item() == pytest.approx(expected.item(), abs=1e-7)


def test_a_reference_takes_the_place_of_the_present_distance() -> None:
    """A bid lagged by a move: (.5, .5) would be left for (2/3, 1/3) at .2357, but is counted from .7071."""
    psi, one = torch.tensor([[0.5, 0.5]]), torch.tensor([[10, 0]])
    now = valuations(psi, torch.tensor([20.0]), one, torch.tensor([0.5, 0.5]))
    lagged = valuations(psi, torch.tensor([20.0]), one, torch.tensor([0.5, 0.5]), reference=torch.tensor([0.707107]))
    assert [now.item(), lagged.item()] == pytest.approx([-0.235702, 0.471405], abs=1e-6)


def test_equal_shares_are_worth_exactly_nothing() -> None:
    """1e-17 of rounding above zero would send a model for nothing."""
    shares_alike = torch.tensor([[7, 21, 35], [11, 33, 55], [1, 3, 5]])
    target = torch.full((3,), 1.0 / 3.0)
    for metric in METRICS:
        values = valuations(shares(shares_alike.double()), shares_alike.sum(1), shares_alike, target, metric)
        assert not values.any()


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
        (torch.tensor([1, 0]), "bids must be floating-point numbers, got torch.int64"),
        (torch.tensor([math.nan, 0.1]), "a bid is NaN or infinite"),
        (torch.tensor([0.1, -math.inf]), "a bid is NaN or infinite"),
        (torch.tensor([0.1, 0.9]), "a bid of size 0.9 is impossible: no distance exceeds 0.707107"),
    ],
)
def test_what_cannot_be_a_bid_is_refused_and_the_others_stand(bid: Tensor, why: str) -> None:
    values, refused = bid_table({0: torch.tensor([0.7, -0.7]), 1: bid}, 2, 2, math.sqrt(0.5))
    assert refused == {1: why}
    assert values[:, 0].tolist() == pytest.approx([0.7, -0.7])
    assert bool(values[:, 1].isnan().all())
