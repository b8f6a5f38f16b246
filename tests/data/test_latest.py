"""Test rows that are the latest of each client: nothing trains on what came after a row that judges."""

import itertools
import tomllib
import warnings
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import unskew as us
from unskew.data import load, own, saved, tables
from unskew.data.dataset import Dataset
from unskew.data.federated import federate
from unskew.data.latest import Latest, latest, moments
from unskew.data.preprocess import Preprocess
from unskew.data.split import IID, Natural
from unskew.errors import ConfigError, DataError, DataWarning
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


# ---------------------------------------------------------------- times
@pytest.mark.parametrize(
    "values",
    [
        ["2024-06-01", "2024-06-02T06:00"],
        [date(2024, 6, 1), datetime(2024, 6, 2, 6)],
        np.array(["2024-06-01", "2024-06-02T06"], "datetime64[ns]"),
        pandas.Series(pandas.to_datetime(["2024-06-01 00:00", "2024-06-02 06:00"])),
        polars.Series([datetime(2024, 6, 1), datetime(2024, 6, 2, 6)]),
        [datetime(2024, 6, 1, tzinfo=UTC), "2024-06-02T08:00+02:00"],
    ],
)
def test_dates_are_read_alike_in_every_form(values: Any) -> None:
    assert moments(values, "column 'day'").tolist() == [datetime(2024, 6, 1), datetime(2024, 6, 2, 6)]


@pytest.mark.parametrize(
    "values", [[3, 4.5], ["3", "4.5"], np.array([3, 4.5]), torch.tensor([3, 4.5]), pandas.Series([3, 4.5])]
)
def test_numbers_are_times_too(values: Any) -> None:
    assert moments(values, "latest").tolist() == [3, 4.5]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["2024-06-01", "01.06.2024"], r"column 'day' must hold dates in ISO form.*'01.06.2024' in row 1"),
        (["2024-06-01", None], "column 'day' says of row 1 no date"),
        ([3.0, float("nan")], "of row 1 no date"),
        ([3.0, float("inf")], "got 'inf' in row 1"),
        ([True, False], "got 'True' in row 0"),
        (["2024-06-01", 5], "a date in row 0, '2024-06-01', and a number in row 1, '5'; write all alike"),
        (["2024-06-01", "2024-06-01T00:00Z"], "a time with its zone in row 1"),
    ],
)
def test_what_is_no_date_is_refused_by_row_and_column(values: list[Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        moments(values, "column 'day'")


@pytest.mark.parametrize(
    ("after", "late"),
    [
        ("2024-06-30", [False, False, True]),  # the day is over at midnight
        (date(2024, 6, 30), [False, False, True]),
        ("2024-06", [False, False, True]),
        ("2024-06-30T12:00", [False, True, True]),
        ("2023", [True, True, True]),
        (2024, [False, False, False]),
    ],
)
def test_after_a_day_is_after_its_end(after: Any, late: list[bool]) -> None:
    when = moments(["2024-06-30", "2024-06-30T23:59", "2024-07-01"], "")
    assert Latest("day", after=after).is_after(when).tolist() == late


@pytest.mark.parametrize("after", ["30.06.2024", "2024-13", "soon", "2024-06-30T12:00Z", True])
def test_a_border_that_is_no_date_is_refused(after: Any) -> None:
    with pytest.raises(ConfigError, match=r"^after must be a date"):
        Latest("day", after=after)


def test_a_date_for_numbers_is_refused() -> None:
    with pytest.raises(DataError, match="column 'day' holds numbers, such as 3; give one"):
        Latest("day", after="2024-06-30").is_after(np.array([3.0]))
    with pytest.raises(DataError, match="column 'day' holds dates, such as 2024-06-01; give one"):
        Latest("day", after=12.5).is_after(moments(["2024-06-01"], ""))


def test_a_rule_without_a_column_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^latest must name the column of when each row was, got 3"):
        Latest(3)


@pytest.mark.parametrize(("settings", "said"), [({"share": 1.0}, "share"), ({"share": 0.2, "after": 3}, "exclude")])
def test_a_rule_that_says_nothing_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Latest("day", **settings)


# ---------------------------------------------------------------- tables
def test_a_date_cuts_every_sites_rows() -> None:
    """Days 1 to 10, of which 8 and later test, and the latest two of seven validate."""
    data = own.dataset(stays(), test=Latest("admitted", after="2024-06-07"), **COLUMNS)
    assert days_of(data, val=0.3) == [[[1, 2, 3, 4, 5], [6, 7], [8, 9, 10]]] * 2
    assert [column.name for column in data.inputs.columns] == ["x"]


def test_without_a_date_it_is_a_share_of_each_sites_rows() -> None:
    """Bern's rows are a year later, and its training rows later than Basel's test rows."""
    later = polars.when(polars.col("site") == "Bern").then(polars.col("admitted").dt.offset_by("1y"))
    table = stays().with_columns(admitted=later.otherwise("admitted"))
    data = own.dataset(table, test=Latest("admitted", share=0.3), **COLUMNS)
    assert days_of(data) == [[[1, 2, 3, 4, 5, 6, 7], [], [8, 9, 10]]] * 2


def test_without_sites_the_latest_are_the_global_test_set() -> None:
    """Each client's own test rows are the latest of those it then draws."""
    data = own.dataset(stays().drop("site"), target="sick", test=Latest("admitted", after="2024-06-07"))
    assert sorted(np.asarray(data.x_test)[:, 0].tolist()) == [8, 8, 9, 9, 10, 10]
    for train, _, test in days_of(data, test=0.3):
        assert max(train) <= min(test) <= max(test) <= 7


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
    said = "1 patient has rows before and after the cut in time: 1 earlier row is left out"
    with pytest.warns(DataWarning, match=said):
        data = own.dataset(stays(who=who), patient="who", test=Latest("admitted", after="2024-06-07"), **COLUMNS)
    basel, bern = days_of(data)
    assert basel == [[2, 3, 4, 5, 6, 7], [], [8, 9, 10]]
    assert bern == [[1, 2, 3, 4, 5, 6, 7], [], [8, 9, 10]]


def test_machines_that_all_run_on_are_told_the_way() -> None:
    with pytest.raises(DataError, match=r"Basel, Bern have nothing to train on before .*: everybody"):
        own.dataset(
            stays(who=[0] * 20),
            patient="who",
            test=Latest("admitted", after="2024-06-07"),
            **COLUMNS,
        )


def test_a_site_without_rows_on_one_side_is_named() -> None:
    table = stays()
    early = table.filter((polars.col("site") == "Basel") | (polars.col("x") < 6))
    with pytest.warns(DataWarning, match="Bern has no row after 2024-06-07.*Bern ends with 2024-06-05; say an earlier"):
        data = own.dataset(early, test=Latest("admitted", after="2024-06-07"), **COLUMNS)
    assert days_of(data)[1] == [[1, 2, 3, 4, 5], [], []]
    late = table.filter((polars.col("site") == "Basel") | (polars.col("x") > 8))
    with pytest.raises(DataError, match="Bern has nothing to train on before 2024-06-07: Bern begins with 2024-06-09"):
        own.dataset(late, test=Latest("admitted", after="2024-06-07"), **COLUMNS)
    with pytest.raises(DataError, match="Basel, Bern have no row after 2025"):
        own.dataset(table, test=Latest("admitted", after="2025"), **COLUMNS)


def test_numbers_are_prepared_without_the_later_rows() -> None:
    """Days 1 to 7 train: mean 4."""
    data = own.dataset(
        stays(), test=Latest("admitted", after="2024-06-07"), preprocess=Preprocess(scale="agreed"), **COLUMNS
    )
    assert data.inputs.columns[0].mean == pytest.approx((4,))


# ---------------------------------------------------------------- arrays
def test_times_stand_beside_arrays() -> None:
    x, y = np.arange(20.0).reshape(10, 2), np.arange(10) % 2
    data = own.dataset((x, y), test=Latest(np.arange(10), after=6))
    assert np.asarray(data.x_test)[:, 0].tolist() == [14, 16, 18]
    days = {"A": ["2024-06-01"] * 8 + ["2024-06-02"] * 2, "B": [f"2024-05-{d:02}" for d in range(1, 11)]}
    data = own.dataset({"A": (x, y), "B": (x, y)}, test=Latest(days, share=0.2))
    assert days_of(data) == [[x[:8, 0].tolist(), [], x[8:, 0].tolist()]] * 2


# ---------------------------------------------------------------- files
def test_a_file_is_cut_by_words_in_iso_form(tmp_path: Path) -> None:
    path = tmp_path / "stays.csv"
    stays().write_csv(path)
    options = {**COLUMNS, "test": {"latest": "admitted", "after": "2024-06-07"}}
    data = load(f"csv:{path}", None, options)
    assert days_of(data) == [[[1, 2, 3, 4, 5, 6, 7], [], [8, 9, 10]]] * 2
    stays(admitted=["07/06/2024"] * 20).write_csv(path)
    with pytest.raises(DataError, match=r"column 'admitted' must hold dates in ISO form.*'07/06/2024' in line 2"):
        load(f"csv:{path}", None, options)
    with pytest.raises(ConfigError, match=r"test: after must be a date"):
        load(f"csv:{path}", None, {**COLUMNS, "test": {"latest": "admitted", "after": "June"}})
    of_toml = tomllib.loads('test = { latest = "admitted", after = 2024-06-07 }')
    stays().write_csv(path)
    assert days_of(load(f"csv:{path}", None, {**COLUMNS, **of_toml})) == days_of(data)


@pytest.mark.parametrize("kind", ["npz", "folder"])
def test_arrays_in_a_file_have_their_times_beside_them(kind: str, tmp_path: Path) -> None:
    """They are cut as the table is, whatever the array of times is called, and rows keep their numbers."""
    table = stays()
    arrays = {
        "x_train": table["x"].to_numpy()[:, None],
        "y_train": (table["sick"] == "yes").to_numpy().astype(int),
        "client_train": (table["site"] == "Bern").to_numpy().astype(int),
        "time_train": np.array(list(map(str, table["admitted"]))),
    }
    if kind == "npz":
        np.savez(tmp_path / "a.npz", **arrays)
    for key, array in arrays.items():
        np.save(tmp_path / f"{key}.npy", array)
    source = f"npz:{tmp_path / 'a.npz'}" if kind == "npz" else f"folder:{tmp_path}"
    rule = {"latest": "time_train", "after": "2024-06-07"}
    data = load(source, None, {"test": rule})
    assert days_of(data, val=0.3) == [[[1, 2, 3, 4, 5], [6, 7], [8, 9, 10]]] * 2
    by_hand = us.simulate("fedavg", data=source, test=Latest(**rule), rounds=1, progress=False)
    assert sorted(table["x"].gather(by_hand.rows_of("test")["1"]).to_list()) == [8, 9, 10]
    for seen in (us.describe(source, test=Latest(**rule)), us.describe(source, data_options={"test": rule})):
        assert [site.test_span for site in seen.sites] == [("2024-06-08", "2024-06-10")] * 2
    with pytest.raises(ConfigError, match="test is an argument and in data_options, too; give it once"):
        us.describe(source, test=Latest(**rule), data_options={"test": rule})
    with pytest.raises(ConfigError, match="go with a table"):
        us.simulate("fedavg", data=source, test=Latest(list(range(20))), progress=False)
    share = load(source, None, {"test": {"latest": "time_train", "share": 0.2, "gap": 2.0}})
    assert days_of(share) == [[[1, 2, 3, 4, 5, 6], [], [9, 10]]] * 2


def test_after_the_number_0_is_a_date_like_another(tmp_path: Path) -> None:
    halves = {"x_train": np.ones((8, 1)), "y_train": np.arange(8) % 2, "client_train": np.arange(8) // 4}
    np.savez(tmp_path / "a.npz", **halves, year=np.tile([-2, -1, 0, 1], 2))
    seen = us.describe(f"npz:{tmp_path / 'a.npz'}", test=Latest("year", after=0))
    assert [site.test_span for site in seen.sites] == [("1", "1")] * 2


def test_days_of_a_gap_are_in_no_part() -> None:
    after = own.dataset(stays(), test=Latest("admitted", after="2024-06-05", gap=2), **COLUMNS)
    assert days_of(after) == [[[1, 2, 3, 4, 5], [], [8, 9, 10]]] * 2
    share = own.dataset(stays(), test=Latest("admitted", share=0.2, gap=2), **COLUMNS)
    assert days_of(share) == [[[1, 2, 3, 4, 5, 6], [], [9, 10]]] * 2
    with pytest.raises(DataError, match="Basel, Bern have nothing to train on before the cut in time and a gap of 30"):
        own.dataset(stays(), test=Latest("admitted", gap=30), **COLUMNS)
    with pytest.raises(DataError, match="no row after 2024-06-05 and a gap of 30"):
        own.dataset(stays(), test=Latest("admitted", after="2024-06-05", gap=30), **COLUMNS)
    with pytest.raises(ConfigError, match="gap must be a number of days, 0 or more, got -1"):
        Latest("admitted", gap=-1)


def test_a_gap_needs_clients_of_the_data_s_own(tmp_path: Path) -> None:
    """A split would cut off each client's own test rows right after its training rows; a site alone has no split."""
    rows = (np.ones((20, 1)), np.arange(20) % 2)
    rule = Latest(np.arange(20), gap=3)
    np.savez(tmp_path / "a.npz", x_train=rows[0], y_train=rows[1], time=np.arange(20))
    options = {"latest": "time", "gap": 3.0}
    sentence = r"test\.gap is 3, and the data name no clients, so that a split .*: name the clients, or leave gap out"
    with pytest.raises(DataError, match=sentence):
        own.dataset(rows, test=rule)
    with pytest.raises(DataError, match=sentence):
        load(f"npz:{tmp_path / 'a.npz'}", None, {"test": options})
    alone = load(f"npz:{tmp_path / 'a.npz'}", None, {"test": options, "alone": True})
    assert [len(data.y_train) for data in (own.dataset(rows, test=rule, one_client=True), alone)] == [13, 13]


def test_a_patient_of_a_gap_alone_is_not_said_to_come_again() -> None:
    """Patient 12 comes in the gap and later; patient 1, who comes before and after, is left out and counted."""
    days = stays(12)["x"]
    who = days.replace_strict({10.0: 1, 8.0: 12}, default=days, return_dtype=polars.Int64)
    rule = Latest("admitted", after="2024-06-06", gap=2)
    with pytest.warns(DataWarning, match="2 patients have rows before and after the cut in time: 2 earlier rows are"):
        data = own.dataset(stays(12, who=who.to_list()), patient="who", test=rule, **COLUMNS)
    assert days_of(data) == [[[2, 3, 4, 5, 6], [], [9, 10, 11, 12]]] * 2


def test_the_order_in_time_is_kept_with_a_runs_data(tmp_path: Path) -> None:
    data = own.dataset(stays(), test=Latest("admitted", after="2024-06-07"), **COLUMNS)
    saved.save(data, tmp_path / "data.npz")
    again = load("run:data.npz", tmp_path)
    assert days_of(again, val=0.3) == days_of(data, val=0.3)


def test_sums_are_of_the_earlier_rows(tmp_path: Path) -> None:
    path = tmp_path / "bern.csv"
    stays().filter(polars.col("site") == "Bern").write_csv(path)
    rule = Latest("admitted", after="2024-06-07")
    sums = tables.training_sums("csv", path, tables.TableOptions("sick", "site", test=rule), Preprocess())
    assert (sums["x"].n, sums["x"].mean) == (7, 4)
    assert set(sums) == {"x"}


# ---------------------------------------------------------------- runs and looks
def test_a_run_by_file_and_by_table_agree_and_go_on(tmp_path: Path) -> None:
    path = tmp_path / "stays.csv"
    stays().write_csv(path)
    rule = us.Latest("admitted", after="2024-06-07")
    same: dict[str, Any] = {**COLUMNS, "test": rule, "rounds": 2, "val_fraction": 0.3, "progress": False}
    by_file = us.simulate("fedavg", data=path, out=tmp_path / "run", **same)
    by_table = us.simulate("fedavg", data=stays(), **same)
    again = us.resume(tmp_path / "run", progress=False)
    for part, days in {"train": range(1, 6), "val": (6, 7), "test": (8, 9, 10)}.items():
        for history in (by_file, by_table, again):
            rows = history.rows_of(part)
            assert [sorted(stays()["x"].gather(rows[site]).to_list()) for site in rows] == [[*days]] * 2


def test_a_look_says_the_times_of_each_site() -> None:
    seen = us.describe(stays(), test=Latest("admitted", after="2024-06-07"), **COLUMNS)
    basel, bern = seen.sites
    assert basel.train_span == bern.train_span == ("2024-06-01", "2024-06-07")
    assert basel.test_span == ("2024-06-08", "2024-06-10")
    assert (
        "6 of them for testing (from 2024-06-08 to 2024-06-10; the others from 2024-06-01 to 2024-06-07)" in seen.size
    )
    assert not [note for note in seen.notes if "admitted" in note]


def test_a_look_says_what_a_run_would_refuse() -> None:
    late = stays().filter((polars.col("site") == "Basel") | (polars.col("x") > 8))
    seen = us.describe(late, test=Latest("admitted", after="2024-06-07"), **COLUMNS)
    assert seen.sites[1].train_span is None
    assert any("Bern has nothing to train on before 2024-06-07" in note for note in seen.notes)


def test_rows_that_are_left_out_are_not_looked_at() -> None:
    """Patient 1 comes on the first and on the last day; places stay those of the whole table."""
    table = (
        stays()
        .sort("site", "x")
        .with_columns(who=polars.Series([1, *range(2, 10), 1] * 2), x=polars.Series([*map(float, range(9)), 3e50] * 2))
    )
    for frame in (table, pandas.DataFrame(table.to_dict(as_series=False))):
        seen = us.describe(frame, patient="who", test=Latest("admitted", after="2024-06-09"), **COLUMNS)
        assert (seen.rows, seen.test_rows) == (18, 2)
        assert any("2 patients have rows before and after" in note for note in seen.notes)
        assert any("column 'x' is 3e+50 in row 9" in note for note in seen.notes)
