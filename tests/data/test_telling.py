"""Columns that identify rows, name the site, or give the target away are named, and ordinary ones are not."""

from typing import Any

import numpy as np
import pytest

from unskew.data import telling
from unskew.data.doubts import TrainingRows

RNG = np.random.default_rng(5)
N = 360
SITE = np.repeat(np.arange(3), 120)
ILL = RNG.integers(0, 2, N)
COST = RNG.lognormal(size=N)
AGE = RNG.integers(20, 80, N).astype(float)


def of(values: Any, targets: Any = ()) -> TrainingRows:
    values = np.asarray(values)
    column = values.astype(np.float64) if values.dtype.kind in "iuf" else values.astype(object)
    return TrainingRows({"x": column}, targets, SITE, ("A", "B", "C"))


IDS = {
    "row numbers": np.arange(N),
    "numbers of each site": np.arange(N) % 120,
    "every eighth of a site's range": SITE * 1000 + np.concatenate([RNG.permutation(900)[:120] for _ in range(3)]),
    "ten digits": RNG.permutation(10**6)[:N] * 1000 + 5_000_000_000,
    "customers of two sites": np.where(SITE < 2, np.arange(N) % 120 * 997, 10_000_000 + np.arange(N) * 991),
    "too large to be told apart": np.full(N, 1e17),
    "words": np.array([f"p{i}" for i in RNG.permutation(N)]),
}
NONE = {
    "ages": AGE,
    "grams": RNG.normal(3500, 500, N).round(),
    "money": (COST * 10000).round(),
    "measured": COST,
    "two": ILL,
    "one": np.ones(N),
    "wards": np.array(["a", "b", "c"])[RNG.integers(0, 3, N)],
}


@pytest.mark.parametrize("name", IDS)
def test_identifiers_are_named(name: str) -> None:
    """Of 120 numbers from 900, 120 - 900 (1 - e^-.133) = 7.6 would return: that none does is no chance."""
    assert telling.identifies(of(IDS[name]))


@pytest.mark.parametrize("name", NONE)
def test_measurements_and_groups_are_not(name: str) -> None:
    assert telling.notes(of(NONE[name], (RNG.integers(0, 2, N), RNG.normal(size=N)))) == []


def test_a_few_gaps_and_rows_that_return_make_no_difference() -> None:
    ids = IDS["every eighth of a site's range"].astype(np.float64)
    ids[:2] = np.nan
    ids[5] = ids[6]
    assert telling.identifies(of(ids))


SITES = {
    "a number for each": SITE * 7.0,
    "two words for each": np.array(["a", "b", "c", "d", "e", "f"])[2 * SITE + RNG.integers(0, 2, N)],
    "ranges": SITE * 1000 + RNG.integers(0, 900, N),
    "measured far apart": SITE * 50 + RNG.normal(size=N),
    "ranges and one slip": np.where(np.arange(N) == 130, 3500, SITE * 1000 + RNG.integers(0, 900, N)),
}


@pytest.mark.parametrize("name", SITES)
def test_columns_that_tell_the_site_are_named(name: str) -> None:
    assert telling.names_the_site(of(SITES[name]))


@pytest.mark.parametrize("name", NONE)
def test_columns_that_do_not_are_not(name: str) -> None:
    """Nor is a mean that differs by two deviations, or a value that one site alone has."""
    assert telling.names_the_site(of(NONE[name])) is None
    assert telling.names_the_site(of(np.where(SITE == 1, 0.0, COST))) is None
    assert telling.names_the_site(of(RNG.normal(size=N) + 2 * SITE)) is None


def auroc_of(apart: float) -> Any:
    """Normal scores of two classes: AUROC is Phi(apart / sqrt(2)), 3.5 deviations .9933 and 3 of them .983."""
    return np.random.default_rng(1).normal(size=N) + apart * ILL


MORE = RNG.integers(0, 4, N)
AWAY = {
    "a score": (auroc_of(4.5), ILL),
    "a score the other way": (-auroc_of(4.5), ILL),
    "the same in words": (np.where(ILL == 1, "yes", "no"), ILL),
    "codes of it": (np.where(ILL == 1, np.array([1, 3])[AGE.astype(int) % 2], 2), ILL),
    "one of four": (np.array(["w", "x", "y", "z"])[MORE], MORE),
    "numbers of four": (MORE * 10 + RNG.random(N), MORE),
    "another unit of a number": (COST * 24, COST),
    "a function of it": (-np.log(COST), COST),
}


@pytest.mark.parametrize("name", AWAY)
def test_columns_that_give_the_target_away_are_named(name: str) -> None:
    values, target = AWAY[name]
    assert telling.gives_the_answer(of(values, (target,)))


def test_good_columns_are_not() -> None:
    for values, target in (
        (auroc_of(2.5), ILL),
        (AGE, ILL),
        (COST + 0.2 * RNG.normal(size=N), COST),
        (np.where(RNG.random(N) < 0.95, ILL, 1 - ILL), ILL),
        (np.array([f"p{i % 180}" for i in range(N)]), ILL),
    ):
        assert telling.gives_the_answer(of(values, (target,))) is None
