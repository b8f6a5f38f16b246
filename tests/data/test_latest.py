"""Test rows that are the latest of each client: nothing trains on what came after a row that judges."""

import itertools
import warnings
from datetime import date
from typing import Any

import numpy as np
import polars
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unskew.data import own
from unskew.data.dataset import Dataset
from unskew.data.federated import federate
from unskew.data.latest import Latest, latest
from unskew.data.preprocess import Preprocess
from unskew.data.split import IID, Natural
from unskew.errors import DataError, DataWarning
from unskew.keys import Key

COLUMNS: dict[str, Any] = {"target": "sick", "client": "site", "patient_ids": "site"}


def stays(days: int = 10, **columns: list[Any]) -> polars.DataFrame:
    """Admissions to two sites, one on each day of June 2024 from the 1st, in mixed order; `x` is the day."""
    day = np.tile(np.random.default_rng(0).permutation(days) + 1, 2)
    rows = {
        "site": ["Basel"] * days + ["Bern"] * days,
        "admitted": [date(2024, 6, int(d)) for d in day],
        "x": day.astype(float).tolist(),
        "sick": ["no", "yes"] * days,
    }
    return polars.DataFrame({**rows, **columns})


def days_of(data: Dataset, val: float = 0.0, test: float = 0.2) -> list[list[list[float]]]:
    """The days of each client's rows in train, val and test."""
    split = IID(num_clients=2) if data.owners is None else Natural()
    parts = federate(data, split, Key(0), test, val).clients
    x = data.x_train
    assert isinstance(x, torch.Tensor)
    return [[sorted(x[rows, 0].tolist()) for rows in (c.train, c.val, c.test)] for c in parts]


# ---------------------------------------------------------------- one client
@pytest.mark.parametrize(
    ("when", "share", "late"),
    [
        ([1, 2, 3, 4, 5], 0.2, [5]),
        ([1, 2, 3, 5, 5], 0.2, [5, 5]),  # two of five is nearer to a fifth than none
        ([1, 2, 3, 4], 0.375, [3, 4]),  # 1.5 rows: half is rounded up
        ([1, 5, 5, 5, 5], 0.2, []),  # four of five is not
        ([7, 7, 7], 0.5, []),
        ([1, 2], 0.2, []),
        ([1, 2], 0.9, [2]),  # one time stays
    ],
)
def test_the_latest_are_as_near_to_the_share_as_ties_allow(when: list[int], share: float, late: list[int]) -> None:
    times = np.array(when)
    chosen, others = latest(times, share)
    assert times[chosen].tolist() == late
    assert (others == ~chosen).all()


def test_earlier_rows_of_somebody_who_comes_again_are_in_no_part() -> None:
    """A fifth of five rows is the last, of patient 1, whose first row is then left out."""
    late, early = latest(np.arange(5), 0.2, np.array([1, 0, 2, 3, 1]))
    assert np.flatnonzero(late).tolist() == [4]
    assert np.flatnonzero(early).tolist() == [1, 2, 3]


def test_where_everybody_comes_again_nothing_is_set_aside() -> None:
    late, early = latest(np.arange(4), 0.5, np.array([0, 1, 0, 1]))
    assert not late.any()
    assert early.all()


# ---------------------------------------------------------------- tables
@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(0, 4)), min_size=6, max_size=40),
    share=st.floats(0.1, 0.8),
    val=st.floats(0, 0.6),
    people=st.booleans(),
)
def test_nothing_trains_on_what_came_after_a_row_that_judges(
    rows: list[tuple[int, int, int]], share: float, val: float, people: bool
) -> None:
    """Of every client: train before val before test, no time in two parts, nobody in two parts, and no row lost."""
    site, day, who = map(list, zip(*rows, strict=True))
    table = polars.DataFrame({"site": site, "day": day, "x": day, "y": [i % 2 for i in range(len(rows))], "who": who})
    if not people:
        table = table.drop("who")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            data = own.dataset(
                table,
                target="y",
                client="site",
                patient="who" if people else None,
                patient_ids="site",
                test=Latest("day", share=share),
            )
        except DataError:  # such as one site, one time, or everybody coming again
            return
        fed = federate(data, Natural(), Key(0), 0.2, val)
    x = np.asarray(data.x_train)[:, 0]
    for client in fed.clients:
        parts = [x[rows.numpy()] for rows in (client.train, client.val, client.test)]
        assert len(parts[0])
        held = [of for of in parts if len(of)]
        assert all(earlier.max() < later.min() for earlier, later in itertools.pairwise(held))
        if data.patients is not None:
            codes = [set(data.patients[rows].tolist()) for rows in (client.train, client.val, client.test)]
            assert sum(map(len, codes)) == len(set().union(*codes))
    if not people:
        assert sum(sum(map(len, (c.train, c.val, c.test))) for c in fed.clients) == len(rows)


def test_a_patient_on_both_sides_tests_and_does_not_train() -> None:
    """Patient 0 of Basel comes on days 1 and 10, and patient 0 of Bern, who is somebody else, on day 1 alone."""
    who = stays()["x"].cast(polars.Int64).to_list()
    who = [0 if (i < 10 and w == 10) or w == 1 else w for i, w in enumerate(who)]
    said = "1 patient with rows before and after the cut in time: 1 earlier row left out"
    with pytest.warns(DataWarning, match=said):
        data = own.dataset(stays(who=who), patient="who", test=Latest("admitted", after="2024-06-07"), **COLUMNS)
    basel, bern = days_of(data)
    assert basel == [[2, 3, 4, 5, 6, 7], [], [8, 9, 10]]
    assert bern == [[1, 2, 3, 4, 5, 6, 7], [], [8, 9, 10]]


def test_numbers_are_prepared_without_the_later_rows() -> None:
    """Days 1 to 7 train: mean 4."""
    data = own.dataset(
        stays(), test=Latest("admitted", after="2024-06-07"), preprocess=Preprocess(scale="agreed"), **COLUMNS
    )
    assert data.inputs.columns[0].mean == pytest.approx((4,))
