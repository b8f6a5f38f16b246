"""A test of whether sites differ: its p is right for alike sites, small ones included, and it sees what there is."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from unskew.data.look import SiteDifference
from unskew.data.look import differs as measured
from unskew.keys import Key

UM, IU, UK, CASE = 164, 413, 22, 3


def differs(values: Any, site: Any) -> SiteDifference | None:
    return measured(values, site, "abcdefghij", ("no", "yes") if values.dtype.kind == "i" else ())


def of_counts(*counts: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Classes 0 and 1, and the site of each row."""
    values = np.concatenate([np.repeat([0, 1], count) for count in counts])
    return values, np.repeat(np.arange(len(counts)), [sum(count) for count in counts])


def test_two_sites_of_four_rows_differ_by_the_share_of_squares_between_them() -> None:
    """Of 1 to 8, means 2.5 and 6.5 about 4.5: 8 x 2^2 of the 42 that squares sum to."""
    seen = differs(np.arange(1.0, 9.0), np.repeat([0, 1], 4))
    assert seen is not None
    assert seen.levels == "6.5 at b, 2.5 at a"
    assert seen.share == pytest.approx(32 / 42)


def test_sites_of_a_trial_differ_although_tiny_ones_swamp_a_mean_over_sites() -> None:
    """22 % against 10 % of 164 and 413 rows; the 22 and the 3 rows of the others, a twentieth of all, count as one."""
    values, site = of_counts((UM - 36, 36), (IU - 41, 41), (UK - 2, 2), (CASE, 0))
    table = [[UM - 36, 36], [IU - 41, 41], [UK + CASE - 2, 2]]
    known = stats.chi2_contingency(table)
    seen = differs(values, site)
    assert seen is not None
    assert seen.p == pytest.approx(known.pvalue, abs=0.004)
    assert seen.share == pytest.approx(known.statistic / len(values))
    assert seen.levels == "yes 22% at a, 10% at b"
    assert seen.chance == pytest.approx(2 / 601)


def test_p_is_that_of_pearson_and_fisher() -> None:
    """31 % against 6 % of 2,000 rows each; and two means a deviation apart, whose F SciPy has."""
    values, site = of_counts((1380, 620), (1880, 120))
    seen = differs(values, site)
    assert seen is not None
    assert seen.p == pytest.approx(stats.chi2_contingency([[1380, 620], [1880, 120]], correction=False).pvalue)
    numbers = np.random.default_rng(0).normal(size=400) + np.repeat([0.0, 1.0], 200)
    of_numbers = differs(numbers, np.repeat([0, 1], 200))
    assert of_numbers is not None
    assert of_numbers.p == pytest.approx(stats.f_oneway(numbers[:200], numbers[200:]).pvalue, rel=1e-6)


def test_one_of_three_rare_rows_at_a_small_site_is_chance() -> None:
    """Of 1,090 rows 90 are at three small sites, and some of three rows in 23 % of all orders; Pearson says 2 %."""
    values, site = of_counts((998, 2), (29, 1), (30, 0), (30, 0))
    for each in (values, values.astype(float)):
        seen = differs(each, site)
        assert seen is not None
        assert seen.p > 0.05
    assert (two_pairs := differs(np.array([0.0, 0.0, 1.0, 1.0]), np.array([0, 0, 1, 1]))) is not None
    assert two_pairs.p > 0.05  # it is so in two of six orders


SIZES = np.array([400, 150, 30, 5, 3, 3, 2, 1, 1, 1])
RUNS = 200


def share_below(level: float, effect: float, kind: str) -> float:
    """Of data sets whose first two sites differ so, the share in which p is below the level."""
    site, below = np.repeat(np.arange(len(SIZES)), SIZES), 0
    shift = effect * ((site == 0) * 0.5 - (site == 1) * 0.5)
    for run in range(RUNS):
        rng = (Key(run) / "test").numpy()
        if kind == "classes":
            values = (rng.random(len(site)) < 0.15 + shift).astype(np.int64)
        else:
            values = rng.lognormal(0, 1.5, len(site)) if kind == "heavy tails" else rng.normal(size=len(site))
            values += 3 * shift
        seen = differs(values, site)
        below += seen is not None and seen.p < level
    return below / RUNS


@pytest.mark.parametrize("kind", ["classes", "normal", "heavy tails"])
def test_alike_sites_are_said_to_differ_in_one_of_twenty_data_sets(kind: str) -> None:
    """Of 200, 10 on average and 3.1 in deviation: at most 20, three more than that in 1 of 1,000."""
    assert share_below(0.05, 0, kind) <= 0.10


def test_nothing_differs_where_there_is_nothing_to_compare() -> None:
    assert differs(np.zeros(9, int), np.arange(9) % 3) is None
    assert differs(np.arange(9.0), np.zeros(9, int)) is None
    assert differs(np.array([1.0, np.nan, 2.0]), np.array([0, 1, -1])) is None
    each_one_row = differs(np.arange(9.0), np.arange(9))
    assert each_one_row is not None
    assert each_one_row.p == 1
