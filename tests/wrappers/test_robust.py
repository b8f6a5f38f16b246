"""Robust means: each against its equation, by what no attacker can do to it, and around methods that ask for means."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe import LOCAL, simulator

from unskew.algorithms.fedavg import FedAvg, ModelReply
from unskew.errors import ConfigError, QuorumError
from unskew.wrappers.base import wrap
from unskew.wrappers.robust import Centre, GeometricMedian, Krum, Median, MultiKrum, NormBound, TrimmedMean
from unskew.wrappers.uploads import uploads_of

UNIFORM = FedAvg(local=LOCAL, weighting="uniform")
NONE: frozenset[str] = frozenset()


def centre(rule: Centre, rows: list[list[float]]) -> list[float]:
    values: list[float] = rule.centre({"w": torch.tensor(rows, dtype=torch.float64)}, NONE)["w"].tolist()
    return values


# ---------------------------------------------------------------- worked examples
def test_the_median_of_each_coordinate() -> None:
    """Columns (1, 2, 9) and (5, 4, -7): medians 2 and 4.  Of (1, 2, 9, 4) the middle two are 2 and 4, their mean 3."""
    assert centre(Median(), [[1, 5], [2, 4], [9, -7]]) == [2, 4]
    assert centre(Median(), [[1], [2], [9], [4]]) == [3]


def test_a_trimmed_mean_leaves_out_as_many_at_each_end() -> None:
    """Of (0, 1, 2, 3, 100) a fifth is one: (1 + 2 + 3) / 3 = 2.  .29 * 100 is 28.999999999999996, and means 29."""
    assert centre(TrimmedMean(0.2), [[0], [1], [2], [3], [100]]) == [2]
    assert centre(TrimmedMean(0.29), [[1000.0]] * 29 + [[0.0]] * 71) == [0.0]


def test_krum_takes_the_client_with_the_least_distance_to_its_neighbours() -> None:
    """Updates 0, 1, 3, 4.5, 50 and f = 1: each has 5 - 1 - 2 = 2 neighbours.

    Scores: 0: 1 + 9 = 10; 1: 1 + 4 = 5; 3: 4 + 2.25 = 6.25; 4.5: 2.25 + 12.25 = 14.5; 50: 45.5^2 + 47^2.
    The two least are 1 and 3, their mean 2; without m the four least, (0 + 1 + 3 + 4.5) / 4 = 2.125.
    """
    rows = [[0.0], [1.0], [3.0], [4.5], [50.0]]
    scores = Krum(1).scores({"w": torch.tensor(rows)}, NONE).tolist()
    assert scores == pytest.approx([10, 5, 6.25, 14.5, 45.5**2 + 47**2])
    assert centre(Krum(1), rows) == [1]
    assert centre(MultiKrum(1, m=2), rows) == [2]
    assert centre(MultiKrum(1), rows) == [2.125]


def test_the_geometric_median_is_the_point_with_the_least_sum_of_distances() -> None:
    """On a line it is the median.  Of the corners (0, 0), (1, 0), (0, 1) it is the point that sees each side at 120
    degrees: (t, t) with t = (3 - sqrt 3) / 6 = .2113."""
    assert centre(GeometricMedian(), [[0], [1], [100]]) == [pytest.approx(1, abs=1e-3)]
    t = (3 - math.sqrt(3)) / 6
    assert centre(GeometricMedian(), [[0, 0], [1, 0], [0, 1]]) == pytest.approx([t, t], abs=1e-4)


def test_a_distance_below_the_smoothing_counts_as_that() -> None:
    """Distances 1, 1, 2 from the mean 1 of 0, 0, 3: of at least 1.5 their weights are 2/3, 2/3, 1/2, so v = 9/11.

    Of at least 2 all are alike, and the mean stays, however often it is weighted.
    """
    assert centre(GeometricMedian(nu=1.5, iterations=1), [[0], [0], [3]]) == [pytest.approx(9 / 11)]
    assert centre(GeometricMedian(nu=2.0), [[0], [0], [3]]) == [pytest.approx(1.0)]


def test_an_update_that_is_too_long_is_scaled_to_the_bound() -> None:
    """Norms 1, 2 and 10; the median is 2: the last becomes (1.2, 1.6), the others stay the same objects."""
    updates = {c: {"w": torch.tensor(v)} for c, v in enumerate([[1.0, 0.0], [0.0, 2.0], [6.0, 8.0]])}
    bounded = NormBound().change(updates, NONE, None)  # type: ignore[arg-type]
    assert all(bounded[c] is updates[c] for c in (0, 1))
    assert bounded[2]["w"].tolist() == pytest.approx([1.2, 1.6])
    bounded = NormBound(bound=5.0).change(updates, NONE, None)  # type: ignore[arg-type]
    assert bounded[2]["w"].tolist() == pytest.approx([3.0, 4.0])


def test_of_an_even_number_of_norms_the_lower_middle_one_bounds() -> None:
    """Norms 1, 2, 8 and 10: half of the clients cannot raise the bound to a norm of their own."""
    updates = {c: {"w": torch.tensor([size])} for c, size in enumerate([8.0, 1.0, 2.0, 10.0])}
    bounded = NormBound().change(updates, NONE, None)  # type: ignore[arg-type]
    assert [float(u["w"]) for u in bounded.values()] == pytest.approx([2, 1, 2, 2])


def test_parameters_and_statistics_are_bounded_apart() -> None:
    """Statistics are a hundred times as far away: together with them ten times the median's step would be no news."""
    updates = {
        c: {"w": torch.tensor([w]), "var": torch.tensor([v])}
        for c, (w, v) in enumerate([(1, 90.0), (10, 100.0), (1, 800.0)])
    }
    bounded = NormBound().change(updates, frozenset({"w"}), None)  # type: ignore[arg-type]
    assert [u["w"].tolist() for u in bounded.values()] == [[1], [1], [1]]
    assert [u["var"].tolist() for u in bounded.values()] == [[90], [100], [100]]
    bounded = NormBound(bound=5.0).change(updates, frozenset({"w"}), None)  # type: ignore[arg-type]
    assert [u["w"].tolist() for u in bounded.values()] == [[1], [5], [1]]
    assert [u["var"].tolist() for u in bounded.values()] == [[90], [100], [100]]


def test_statistics_of_normalisation_layers_follow_the_clients_that_parameters_choose() -> None:
    """By w alone client 1 is in the middle; its running mean 70 is far from the others' 0."""
    statistics = torch.tensor([[0.0], [70.0], [0.0], [0.0], [0.0]])
    stacks = {"w": torch.tensor([[0.0], [1.0], [2.5], [40.0], [60.0]]), "mean": statistics}
    assert Krum(1).centre(stacks, frozenset({"w"}))["mean"].tolist() == [70.0]


# ---------------------------------------------------------------- properties
RULES = (Median(), TrimmedMean(0.4), Krum(1), MultiKrum(1), GeometricMedian())
ROWS = st.lists(st.lists(st.integers(-20, 20), min_size=2, max_size=2), min_size=5, max_size=9)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@settings(max_examples=15)
@given(ROWS, st.randoms(use_true_random=False))
def test_a_centre_does_not_depend_on_the_order_of_clients(rule: Centre, rows: list[list[float]], random: Any) -> None:
    if isinstance(rule, MultiKrum):  # equal scores are decided by the order
        rows = [[x + 0.1234567 * i**3, y - 0.0517 * i**2] for i, (x, y) in enumerate(rows)]
    other = random.sample(rows, len(rows))
    assert centre(rule, other) == pytest.approx(centre(rule, rows), abs=1e-4)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@settings(max_examples=15)
@given(ROWS, st.integers(-100, 100))
def test_a_centre_moves_with_its_clients(rule: Centre, rows: list[list[float]], by: int) -> None:
    moved = centre(rule, [[x + by, y + by] for x, y in rows])
    assert moved == pytest.approx([x + by for x in centre(rule, rows)], abs=1e-4)


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(0.4)], ids=("median", "trimmed"))
@given(
    st.lists(st.integers(-20, 20), min_size=3, max_size=6),
    st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=2),
)
def test_a_minority_of_attackers_stays_in_the_honest_range(rule: Centre, honest: list[int], forged: list[int]) -> None:
    """Of 5 to 8 values 0.4 is at least 2 at each end, as many as there are malicious clients."""
    while len(honest) + len(forged) < 5:
        honest = [*honest, honest[0]]
    assert min(honest) <= centre(rule, [[v] for v in (*honest, *forged)])[0] <= max(honest)


@pytest.mark.parametrize("rule", [Krum(1), MultiKrum(1), GeometricMedian()], ids=("krum", "multi", "geometric"))
@given(st.lists(st.integers(-20, 20), min_size=6, max_size=8), st.integers(10**4, 10**9))
def test_one_far_attacker_among_seven_hardly_moves_a_centre(rule: Centre, honest: list[int], forge: int) -> None:
    """RFA: with a share q < 1/2 of attackers the median is within 2 (1 - q) / (1 - 2 q) honest radii; 2.4."""
    assert abs(centre(rule, [[v] for v in (*honest, forge)])[0]) <= 2.4 * 40 + 1e-3


# ---------------------------------------------------------------- around methods
def test_a_rule_says_how_many_clients_it_needs() -> None:
    """Krum 2f + 3; a trimmed mean as many as make one in .2 of them: of four it would leave nobody out."""
    for rule, needs in ((Krum(3), 9), (TrimmedMean(0.2), 5)):
        sim = simulator("fedavg", "perceptron", method=wrap(UNIFORM, rule))
        with pytest.raises(ConfigError, match=f"needs {needs} clients_per_round, got 4"):
            sim.start()
        with pytest.raises(QuorumError, match=f"needs {needs} replies, got 4"):
            rule.change({c: {"w": torch.zeros(1)} for c in range(4)}, NONE, sim.federation(1))


def test_a_reply_of_numbers_that_are_not_finite_is_left_out() -> None:
    """Client 1 sends NaN, client 2 an infinite number: the mean of the others' 1 and 3 is 2."""
    sent = {0: 1.0, 1: math.nan, 2: math.inf, 3: 3.0}
    replies = {c: ModelReply({"w": torch.tensor([x])}, 1) for c, x in sent.items()}
    models = {c: {"w": torch.zeros(1)} for c in replies}
    fed = simulator("fedavg", "perceptron").federation(1)
    new = dict(TrimmedMean(0.0).changed(uploads_of(UNIFORM, "train"), models, fed, replies))
    assert {c: reply.params["w"].tolist() for c, reply in new.items()} == {0: [2.0], 3: [2.0]}
