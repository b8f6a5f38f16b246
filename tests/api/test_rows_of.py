"""A history says which rows of the data each client trained, validated and tested with."""

from typing import Any

import numpy as np
import pandas
import pytest

import unskew as us

N = 120
RNG = np.random.default_rng(0)
TABLE = pandas.DataFrame(
    {
        "age": RNG.normal(size=N),
        "weight": RNG.normal(size=N),
        "site": RNG.choice(["Bern", "Basel", "Aarau"], N),
    }
)
WHO = TABLE["site"] + (TABLE.groupby("site").cumcount() // 2).astype(str)
"""Names of patients, of two rows each."""
TABLE["y"] = (TABLE["age"] + TABLE["weight"] > 0).astype(int)
SITES = ("Aarau", "Basel", "Bern")


def run(data: Any, **options: Any) -> us.History:
    return us.simulate(us.FedAvg(), **{"data": data, "model": "logistic", "rounds": 2, "progress": False} | options)


def parts(history: us.History, seed: int | None = None) -> dict[int | str, tuple[list[int], list[int], list[int]]]:
    train, val, test = (history.rows_of(part, seed) for part in ("train", "val", "test"))
    return {name: (train[name].tolist(), val[name].tolist(), test[name].tolist()) for name in train}


def check_tested(history: us.History, x: pandas.DataFrame, y: Any) -> None:
    """The share that the model gets right of these rows is the one that the run measured."""
    model = history.model("fedavg")
    for name, rows in history.rows_of("test").items():
        right = np.array(us.predict(model, x.iloc[rows])) == np.asarray(y)[rows]
        assert right.mean() == pytest.approx(history.client_values("fedavg")[name]), name


def test_a_column_of_test_rows_is_found_again_as_it_was_given() -> None:
    """Rows in the test column are test rows of the site that they name, and all others train: nothing is drawn."""
    table = TABLE.assign(part=np.arange(N) % 4 == 1)
    history = run(table, target="y", client="site", test="part", preprocess=True)
    for name, (train, val, test) in parts(history).items():
        own = np.flatnonzero(table["site"] == name)
        assert test == [i for i in own if i % 4 == 1]
        assert train == [i for i in own if i % 4 != 1]
        assert val == []
    check_tested(history, table, table["y"])


@pytest.mark.parametrize("preprocess", [False, True])
@pytest.mark.parametrize("patient", [None, "who"])
def test_shares_that_are_drawn_are_those_that_were_measured(patient: str | None, preprocess: bool) -> None:
    """No row is in two parts; what is left over is the global test set, or, with a preprocessing, nothing is."""
    table = TABLE if patient is None else TABLE.assign(who=WHO)
    options = {"target": "y", "client": "site", "patient": patient, "test_fraction": 0.25, "val_fraction": 0.2}
    history = run(table, preprocess=preprocess, seeds=(3, 4), **options)
    assert parts(history) == parts(history, 3)
    assert parts(history, 3) != parts(history, 4)
    assert tuple(parts(history)) == history.client_names == SITES
    used = [row for of in parts(history).values() for part in of for row in part]
    assert len(used) == len(set(used))
    assert (len(used) == N) == preprocess
    for name, of in parts(history).items():
        assert {TABLE["site"][row] for part in of for row in part} == {name}
        assert all(of)
        people = [set(WHO[part]) for part in of]
        assert patient is None or not (people[0] & people[1] or people[0] & people[2] or people[1] & people[2])
    check_tested(history, table, TABLE["y"])


def test_rows_are_positions_whatever_the_index_says_and_rows_that_were_left_out_are_not_counted() -> None:
    """A table whose rows without a target were dropped is the table that was given."""
    whole = TABLE.assign(y=np.where(np.arange(N) % 5 == 0, None, TABLE["y"]))
    left = whole.dropna(subset="y")
    history = run(left.astype({"y": int}), target="y", client="site")
    for name, of in parts(history).items():
        rows = [row for part in of for row in part]
        assert set(left.iloc[rows]["site"]) == {name}
        assert all(label % 5 for label in left.index[rows])
    check_tested(history, left, left["y"].astype(int))


def test_a_number_by_site_is_that_of_the_site_of_this_name() -> None:
    """Sites 1, 2 and 10 as words are 1, 10 and 2, so that the second in order would be site 10."""
    number = TABLE["site"].map({"Aarau": 1, "Basel": 2, "Bern": 10})
    table = TABLE.drop(columns="site").assign(ward=number)
    of = {key: part.drop(columns="ward") for key, part in table.groupby("ward")}
    words = {str(key): part for key, part in of.items()}
    for data, column in ((of, None), (words, None), (table, "ward"), (table.astype({"ward": float}), "ward")):
        history = run(data, target="y", client=column)
        assert history.client_names == ("1", "2", "10")
        values = history.client_values("fedavg")
        assert list(values) == ["1", "2", "10"]
        rows = history.rows_of("test")["10"]
        tested = (of[10] if column is None else table).iloc[rows]
        right = np.array(us.predict(history.model("fedavg", client=10), tested)) == tested["y"]
        assert right.mean() == pytest.approx(values["10"])
        frame = history.to_frame()
        last = frame[(frame["name"] == "personal.accuracy") & (frame["round"] == 2)]
        assert dict(zip(last["client_name"], last["value"], strict=True)) == values
        assert frame[frame["client"].isna()]["client_name"].isna().all()


LATER = TABLE["age"].rank(pct=True) > 0.7


def of_sites(rows: pandas.DataFrame, form: str) -> Any:
    if form == "a table":
        return rows
    each = {site: of.drop(columns="site") for site, of in rows.groupby("site")}
    if form == "tables":
        return each
    return {site: (of[["age", "weight"]].to_numpy(), of["y"].to_numpy()) for site, of in each.items()}


@pytest.mark.parametrize(
    ("form", "preprocess"),
    [("a table", None), ("a table", True), ("tables", None), ("tables", True), ("arrays", None)],
)
def test_test_rows_that_name_their_clients_are_their_own(form: str, preprocess: bool | None) -> None:
    """Nothing else is set aside, and the rows of all are the global test set."""
    train, test = of_sites(TABLE[~LATER], form), of_sites(TABLE[LATER], form)
    columns = {"a table": {"target": "y", "client": "site"}, "tables": {"target": "y"}, "arrays": {}}[form]
    history = run(train, test=test, preprocess=preprocess, evaluate=["global", "personal"], **columns)
    for name, (rows, val, tested) in parts(history).items():
        theirs = [(TABLE[of]["site"] == name).to_numpy() for of in (~LATER, LATER)]
        numbers = [np.flatnonzero(of).tolist() if form == "a table" else list(range(of.sum())) for of in theirs]
        assert (rows, val, tested) == (numbers[0], [], numbers[1])
    weighted = history.value("fedavg", "personal.accuracy.weighted")
    assert history.value("fedavg", "global.accuracy") == pytest.approx(weighted)
