"""Columns become inputs: gaps, scales and words, with numbers from training rows alone."""

from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import unskew as us
from unskew.data import own
from unskew.data.federated import FederatedData, federate
from unskew.data.inputs import Inputs
from unskew.data.preprocess import (
    ColumnSums,
    Preprocess,
    RawRows,
    agreed,
)
from unskew.data.split import IID, Natural
from unskew.errors import DataError, DataWarning
from unskew.keys import Key

NAN = float("nan")
TRAIN: dict[str, Any] = {
    "age": np.array([10.0, 30.0, 50.0, NAN]),
    "smokes": np.array(["yes", "no", None, "no"], object),
    "grade": np.array([1.0, 2.0, 2.0, 3.0]),
}
OWNERS, NAMES = np.array([0, 0, 1, 1]), ("Basel", "Bern")


def fit(rules: Preprocess, table: dict[str, Any], owners: Any, clients: tuple[str, ...]) -> Inputs:
    n = len(owners)
    return RawRows(rules, table, owners, clients, n).inputs(np.arange(n), np.empty(0, np.int64))


def prepared(inputs: Inputs, client: str | None = None, **columns: Any) -> list[list[float]]:
    rows: list[list[float]] = inputs.prepare(columns, client).tolist()
    return rows


def test_agreed_numbers_are_those_of_all_training_rows_together() -> None:
    """Ages 10, 30, 50: mean 30, deviation (400 + 0 + 400) / 2 = 20^2.  Grades 1, 2, 2, 3: mean 2, variance 2 / 3."""
    inputs = fit(Preprocess(), TRAIN, OWNERS, NAMES)
    age, smokes, grade = inputs.columns
    assert (age.mean, age.sd, age.fill, age.gaps) == ((30.0,), (20.0,), (30.0,), True)
    assert (smokes.kind, smokes.values, smokes.gaps) == ("category", ("no", "yes"), True)
    assert (grade.mean, grade.gaps) == ((2.0,), False)
    assert inputs.clients == ()
    assert age.features + smokes.features == ("age", "age missing", "smokes=no", "smokes=yes", "smokes missing")
    row = prepared(inputs, age=[50.0, None], smokes=["no", None], grade=[2, 2])
    assert row == [[1.0, 0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]]


def test_each_sites_own_numbers_scale_its_rows() -> None:
    """Basel: 10 and 30, mean 20, deviation sqrt(200).  Bern has one age, 50: no spread, so all its ages become 0."""
    inputs = fit(Preprocess(scale="site"), TRAIN, OWNERS, NAMES)
    age = inputs.columns[0]
    assert (age.mean, age.fill) == ((20.0, 50.0), (20.0, 50.0))
    assert age.sd == pytest.approx((np.sqrt(200), 0.0))
    one: dict[str, Any] = {"age": [30.0], "smokes": ["no"], "grade": [2.0]}
    assert prepared(inputs, "Basel", **one)[0][0] == pytest.approx(10 / np.sqrt(200))
    assert prepared(inputs, "Bern", **one)[0][0] == 0
    with pytest.raises(DataError, match="name whose these are, as in client='Basel'"):
        prepared(inputs, **one)
    with pytest.raises(DataError, match="there are no numbers of 'Bermn'; did you mean Bern"):
        prepared(inputs, "Bermn", **one)
    alone = inputs.of("Bern")
    assert (alone.columns[0].mean, alone.clients) == ((50.0,), ("Bern",))
    assert prepared(alone, **one) == prepared(inputs, "Bern", **one)


def test_a_word_that_no_training_row_had_is_none_of_them() -> None:
    one: dict[str, Any] = {"age": [30.0], "smokes": ["pipe"], "grade": [2.0]}
    with pytest.warns(DataWarning, match=r"'smokes' holds words that were not in training, .*: pipe .known: no, yes"):
        assert prepared(fit(Preprocess(), TRAIN, OWNERS, NAMES), **one)[0][2:5] == [0, 0, 0]


def test_a_sites_median_fills_its_gaps() -> None:
    table = {"a": np.array([1.0, 2.0, 30.0, NAN, 5.0, 5.0])}
    rules = Preprocess(scale="none", missing="site median")
    inputs = fit(rules, table, np.array([0, 0, 0, 0, 1, 1]), NAMES)
    assert prepared(inputs, "Basel", a=[NAN, 4.0]) == [[2.0, 1.0], [4.0, 0.0]]


@given(
    st.lists(
        st.lists(st.floats(-1e6, 1e6).map(lambda v: round(v, 3)) | st.just(NAN), max_size=12), min_size=1, max_size=5
    )
)
def test_what_sites_agree_on_is_the_mean_and_deviation_of_all_rows(sites: list[list[float]]) -> None:
    """The property that lets sums stand for rows, for any division into sites, empty ones and gaps included."""
    together = agreed([ColumnSums.of(np.array(site, np.float64)) for site in sites])
    rows = np.array([v for site in sites for v in site if v == v])
    assert together.n == len(rows)
    if len(rows):
        assert together.mean == pytest.approx(rows.mean(), abs=1e-6)
    if len(rows) > 1:
        assert together.m2 == pytest.approx(((rows - rows.mean()) ** 2).sum(), rel=1e-9, abs=1e-6)


def test_far_from_zero_a_small_spread_is_not_lost() -> None:
    """Sums of squares of values about 1e9 have 18 digits; with deviations from the mean the spread of 1 survives."""
    parts = [ColumnSums.of(1e9 + np.array(p)) for p in ([0.0, 1.0], [1.0, 2.0])]
    assert agreed(parts).sd == pytest.approx(np.std([0, 1, 1, 2], ddof=1))


# ---------------------------------------------------------------- through a data set
def frame(n: int = 40) -> polars.DataFrame:
    rng = np.random.default_rng(3)
    age = np.where(np.arange(n) % 10 == 3, None, np.round(rng.normal(60, 10, n), 1))
    return polars.DataFrame(
        {
            "site": ["Basel", "Bern"] * (n // 2),
            "age": list(age),
            "smokes": ["yes", "no", "no", None] * (n // 4),
            "part": (["train"] * 3 + ["test"] * 2 + ["train"] * 3) * (n // 8),  # of both sites
            "sick": ["no", "no", "yes", "yes", "yes"] * (n // 5),
        },
        strict=False,
    )


def test_test_rows_have_no_say_in_any_number() -> None:
    """Whatever the test rows hold, inputs of the training rows and what is recorded stay the same."""
    table = frame()
    wild = table.with_columns(
        age=polars.when(polars.col("part") == "test").then(1e6).otherwise(polars.col("age")),
        smokes=polars.when(polars.col("part") == "test").then(polars.lit("pipe")).otherwise(polars.col("smokes")),
    )
    for scale in ("agreed", "site"):
        columns: dict[str, Any] = {"target": "sick", "client": "site", "preprocess": Preprocess(scale=scale)}
        one, two = (own.dataset(t, test="part", **columns) for t in (table, wild))
        train = torch.tensor([row == "train" for row in table["part"]]).sum()
        assert torch.equal(one.x_train[:train], two.x_train[:train])
        assert one.inputs == two.inputs
        assert not torch.equal(one.x_test, two.x_test)


def wild(table: polars.DataFrame, rows: polars.Expr) -> polars.DataFrame:
    """The table with other ages and another word in these rows."""
    return table.with_columns(
        age=polars.when(rows).then(1e6).otherwise(polars.col("age")),
        smokes=polars.when(rows).then(polars.lit("pipe")).otherwise(polars.col("smokes")),
    )


def four_sites() -> polars.DataFrame:
    return frame().with_columns(site=polars.Series(["Basel", "Bern", "Chur", "Davos"] * 10))


def by_feature(whole: FederatedData, part: FederatedData) -> dict[str, torch.Tensor]:
    """Inputs of the training rows of a part's clients, by name."""
    names = [feature for column in whole.dataset.inputs.columns for feature in column.features]
    x = torch.as_tensor(whole.dataset.x_train)[part.clients.train.values]
    return dict(zip(names, x.T, strict=True))


silent_sites = pytest.mark.filterwarnings("ignore:column .* has no value at ")


@silent_sites
@pytest.mark.filterwarnings("ignore:column 'age' has the mean", "ignore:4 of 12 test rows stand in training")
@pytest.mark.parametrize("scale", ["agreed", "site"])
@pytest.mark.parametrize("unseen", [("Davos",), 0.25])
def test_no_number_of_those_who_train_depends_on_clients_that_come_later(scale: Any, unseen: Any) -> None:
    """Whoever comes later: with other ages and a word of its own, the others' inputs stay the same to the bit.

    The word "pipe" makes an input of its own, so that all seeds have one network; it stays 0, as for a word unknown.
    """
    table, columns = four_sites(), {"target": "sick", "client": "site", "test": 0.25}
    data = own.dataset(table, **columns, preprocess=Preprocess(scale=scale))
    fed = federate(data, Natural(), Key(5), unseen=unseen)
    assert fed.unseen is not None
    assert fed.unseen.client_names is not None
    (later,) = fed.unseen.client_names
    other = own.dataset(wild(table, polars.col("site") == later), **columns, preprocess=Preprocess(scale=scale))
    again = federate(other, Natural(), Key(5), unseen=unseen)
    mine, theirs = (by_feature(f, f) for f in (fed, again))
    assert not theirs.pop("smokes=pipe").any()
    gap = mine.pop("smokes missing")  # Davos alone has gaps among its words, and "pipe" in their place
    assert not gap.any() or (theirs.pop("smokes missing") == gap).all()
    assert {name: x.tolist() for name, x in mine.items()} == {
        name: x.tolist() for name, x in theirs.items() if name in mine
    }
    assert again.unseen is not None
    assert again.unseen.dataset is again.dataset
    unseen = by_feature(again, again.unseen)
    assert not unseen["smokes=pipe"].any()  # nothing was learnt for it
    age = again.dataset.inputs.columns[0]
    if scale == "agreed":
        assert unseen["age"].max() > 1e4
        rows = [row for i, row in enumerate(table.iter_rows(named=True)) if row["site"] != later]
        assert age.fill[0] < max(row["age"] for row in rows if row["age"] is not None)
    else:
        assert abs(float(unseen["age"].mean())) < 1e-5  # by its own mean, as every site by its own


def test_test_rows_that_a_seed_draws_have_no_say() -> None:
    """Without sites in the data a split makes clients, whose test rows are drawn by the seed; they are left out."""
    data = own.dataset(frame().drop("site", "part"), target="sick", preprocess=Preprocess())
    fed = federate(data, IID(num_clients=4), Key(1))
    assert data.raw is not None
    rows = np.sort(fed.clients.train.values.numpy())
    ages = data.raw.columns["age"][rows]
    assert fed.dataset.inputs.columns[0].mean == (pytest.approx(np.nanmean(ages)),)
    assert fed.dataset.inputs.columns[0].sd == (pytest.approx(np.nanstd(ages, ddof=1)),)
    assert fed.dataset.inputs != data.inputs


@pytest.mark.usefixtures("unreported")
@silent_sites
@pytest.mark.filterwarnings("ignore:row 1 has no value in any column")
def test_an_exported_model_prepares_raw_rows_as_training_did(tmp_path: Path) -> None:
    table = frame(200)
    history = us.simulate(
        us.FedAvg(),
        data=table,
        target="sick",
        client="site",
        test="part",
        preprocess=Preprocess(scale="site"),
        model="logistic",
        rounds=1,
        progress=False,
        out=tmp_path / "run",
    )
    assert len(history.client_names) == 2
    rows = table.filter(polars.col("site") == "Bern").drop("site", "part", "sick")
    whole, mine = (us.load_model(tmp_path / "run", "FedAvg", client=client) for client in (None, "Bern"))
    data = us.load("run:data.npz", tmp_path / "run")
    at = [i for i, owner in enumerate(data.owners.tolist()) if data.client_names[owner] == "Bern"]  # type: ignore[union-attr]
    by_value = sorted(data.x_train[at].tolist())
    assert sorted(mine.unskew.inputs.prepare(rows).tolist()) == by_value
    assert "Basel" not in mine.unskew.inputs.clients  # what was Basel's stays there
    assert us.predict(whole, rows, client="Bern") == us.predict(mine, rows)
    assert us.predict(mine, rows.to_dicts()[:3]) == us.predict(mine, rows)[:3]
    assert us.predict(mine, rows.to_dicts()[0]) == us.predict(mine, rows)[:1]  # one row
    with pytest.raises(DataError, match=r"inputs\[1\] is 1e\+300 in column 'age'; correct it"):
        us.predict(mine, [rows.to_dicts()[0], rows.to_dicts()[1] | {"age": 1e300}])
