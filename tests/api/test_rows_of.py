"""A history says which rows of the data each client trained, validated and tested with."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pytest

import unskew as us
from unskew.api import described
from unskew.data.images import as_tensor
from unskew.errors import ConfigError, DataError, DataWarning, RunError
from unskew.run import loop
from unskew.run.setup import InProcess

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


def test_arrays_that_are_divided_have_clients_by_number() -> None:
    x = TABLE[["age", "weight"]].to_numpy()
    history = run((x, TABLE["y"].to_numpy()), split=us.IID(4), val_fraction=0.1)
    assert list(parts(history)) == [0, 1, 2, 3]
    used = [row for of in parts(history).values() for part in of for row in part]
    assert len(used) == len(set(used)) == N - round(0.2 * N)
    test = history.rows_of("test")
    model = history.model("fedavg")
    for number, rows in test.items():
        right = np.array(us.predict(model, x[rows])) == TABLE["y"].to_numpy()[rows]
        assert right.mean() == pytest.approx(history.client_values("fedavg")[int(number)])


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


def test_gains_call_clients_as_their_values_do() -> None:
    x, y = TABLE[["age", "weight"]].to_numpy(), TABLE["y"].to_numpy()
    for data, how in (((x, y), {"split": us.IID(3)}), (TABLE, {"target": "y", "client": "site"})):
        history = us.simulate(["fedavg", "independent"], data=data, rounds=1, progress=False, **how)
        mean, _per_row, *clients = history.gains()
        assert mean["client"] is None
        assert [row["client"] for row in clients] == list(history.client_values("fedavg"))
        assert {row["seed"] for row in clients} == {None}


def test_newcomers_are_called_by_name_too() -> None:
    history = run(TABLE, target="y", client="site", unseen=["Basel"])
    assert set(history.client_values("fedavg", "unseen.accuracy")) == {"Basel"}
    assert history.client_names == ("Aarau", "Bern")


@pytest.mark.parametrize("form", ["arrays", "frames", "Polars", "files"])
def test_rows_of_clients_with_data_of_their_own_are_counted_there(form: str, tmp_path: Path) -> None:
    tables = {site: TABLE[TABLE["site"] == site].drop(columns="site") for site in ("Bern", "Aarau", "Basel")}
    options: dict[str, Any] = {"target": "y"}
    data: Any = {
        "arrays": {site: (of[["age", "weight"]].to_numpy(), of["y"].to_numpy()) for site, of in tables.items()},
        "frames": tables,
        "Polars": {site: polars.from_pandas(of.reset_index(drop=True)) for site, of in tables.items()},
        "files": tmp_path,
    }[form]
    for site, of in tables.items():
        of.to_csv(tmp_path / f"{site}.csv", index=False)
    history = run(data, **({} if form == "arrays" else options))
    model = history.model("fedavg")
    for site in history.client_names:
        rows = [row for part in parts(history)[site] for row in part]
        assert len(rows) == len(set(rows))
        assert max(rows) < len(tables[site])
        tested = tables[site].iloc[history.rows_of("test")[site]]
        found = us.predict(model, tested[["age", "weight"]].to_numpy() if form == "arrays" else tested)
        assert np.mean(found == tested["y"]) == pytest.approx(history.client_values("fedavg")[site])


def test_test_rows_that_were_given_by_themselves_are_counted_there() -> None:
    """As whole tables are: the last row of each site's is in its part."""
    train, test = TABLE.iloc[:80].reset_index(drop=True), TABLE.iloc[80:].reset_index(drop=True)
    history = run(train, target="y", client="site", test=test, preprocess=True)
    for name, (rows, _, tested) in parts(history).items():
        assert rows == np.flatnonzero(train["site"] == name).tolist()
        assert tested == np.flatnonzero(test["site"] == name).tolist()


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


@pytest.mark.parametrize("form", ["a table", "tables", "arrays"])
def test_test_rows_that_name_nobody_are_nobodys_own(form: str) -> None:
    train = of_sites(TABLE[~LATER], form)
    test: Any = TABLE[LATER].drop(columns="site")
    columns = {"a table": {"target": "y", "client": "site"}, "tables": {"target": "y"}, "arrays": {}}[form]
    if form == "arrays":
        test = (test[["age", "weight"]].to_numpy(), test["y"].to_numpy())
    history = run(train, test=test, **columns)
    assert sum(len(of) for part in parts(history).values() for of in part) == (~LATER).sum()


@pytest.mark.parametrize("form", ["a table", "tables", "arrays"])
@pytest.mark.parametrize("entry", ["simulate", "advise", "tune", "describe"])
def test_test_rows_of_clients_that_the_data_do_not_have_are_refused(form: str, entry: str, tmp_path: Path) -> None:
    if entry == "tune":
        pytest.importorskip("optuna", reason="optuna is not installed (extra [tune])")
    late = TABLE[LATER].assign(site=TABLE["site"].str.lower())
    columns = {"a table": {"target": "y", "client": "site"}, "tables": {"target": "y"}, "arrays": {}}[form]
    given: dict[str, Any] = {"data": of_sites(TABLE[~LATER], form), "test": of_sites(late, form), **columns}
    more: dict[str, Any] = {"simulate": {"methods": "fedavg"}, "tune": {"methods": "fedavg", "out": tmp_path / "t"}}
    sentence = (
        "test rows name client 'aarau', which has none to train on; did you mean Aarau? (clients: Aarau, Basel, Bern): "
        "give it some, leave it out, or give test rows that are nobody's own"
    )
    if entry == "describe":
        assert f"{sentence[0].upper()}{sentence[1:]}." in us.describe(**given).warnings
    else:
        with pytest.raises(DataError, match=re.escape(sentence)):
            getattr(us, entry)(**given, **more.get(entry, {}))


def test_clients_without_test_rows_among_those_that_are_given_are_named() -> None:
    test = of_sites(TABLE[LATER & (TABLE["site"] != "Bern")], "arrays")
    with pytest.warns(DataWarning, match="Bern has no test rows: a result there cannot be measured"):
        described(us.FedAvg(), {"name": "few", "rounds": 1}, data=of_sites(TABLE[~LATER], "arrays"), test=test)


def test_clients_that_come_after_training_have_rows_too() -> None:
    history = run(TABLE, target="y", client="site", unseen=["Basel"])
    assert list(parts(history)) == ["Aarau", "Bern", "Basel"]
    assert {TABLE["site"][row] for part in parts(history)["Basel"] for row in part} == {"Basel"}


def test_rows_of_many_clients_are_those_of_few(tmp_path: Path) -> None:
    """Beyond `client_rows` their examples are columns of a file."""
    few = run(TABLE, target="y", client="site", val_fraction=0.2)
    settings = {"name": "many", "rounds": 2, "val_fraction": 0.2, "client_rows": 2}
    experiment, inputs = described(us.FedAvg(), settings, data=TABLE, model="logistic", target="y", client="site")
    loop.start(experiment, tmp_path / "r", backend=InProcess(inputs))
    assert (tmp_path / "r" / "partition-seed0.npz").exists()
    assert parts(us.History([], {}, tmp_path / "r")) == parts(few)


def test_a_run_that_is_resumed_from_its_own_data_has_the_rows(tmp_path: Path) -> None:
    history = run(TABLE, target="y", client="site", out=tmp_path / "r")
    data = us.load("run:data.npz", tmp_path / "r")
    assert data.rows is not None
    rows = history.rows_of("train")["Bern"]
    assert np.allclose(
        np.sort(as_tensor(data.x_train).numpy()[np.isin(data.rows.numpy(), rows), 0]), np.sort(TABLE["age"][rows])
    )


def test_what_has_no_rows_is_said(tmp_path: Path) -> None:
    history = run(TABLE, target="y", client="site", out=tmp_path / "r")
    with pytest.raises(ConfigError, match="part must be one of train, val, test, got 'tests'"):
        history.rows_of("tests")  # type: ignore[arg-type]
    with pytest.raises(RunError, match=r"has no seed 7 \(seeds: 0\)"):
        history.rows_of("test", seed=7)
    shutil.copytree(tmp_path / "r", tmp_path / "odd")
    partition = json.loads((tmp_path / "odd" / "partition.json").read_text())
    partition["seeds"]["0"]["clients"][0]["test"] = [N]
    (tmp_path / "odd" / "partition.json").write_text(json.dumps(partition))
    with pytest.raises(RunError, match="have examples that the data have not"):
        us.History([], {}, tmp_path / "odd").rows_of("test")
    (tmp_path / "odd" / "rows.npz").unlink()
    with pytest.raises(RunError, match="no rows of tables or arrays, as images in folders without a table of la"):
        us.History([], {}, tmp_path / "odd").rows_of("test")


def test_a_kept_folder_says_that_it_holds_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All rows, test rows among them; without the file the folder is read as before."""
    x, y = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32), np.arange(60) % 2
    us.simulate(us.FedAvg(), data=(x, y), split=us.IID(2), model="logistic", rounds=1, out=tmp_path / "kept")
    assert f"{tmp_path / 'kept' / 'data.npz'} holds all rows of the data" in capsys.readouterr().err
    with np.load(tmp_path / "kept" / "data.npz") as kept:
        assert len(kept["x_train"]) + len(kept["x_test"]) == 60
    (tmp_path / "kept" / "data.npz").unlink()
    assert us.load_run(tmp_path / "kept").value("fedavg") is not None
    us.simulate(us.FedAvg(), data="digits", model="logistic", rounds=1, out=tmp_path / "named")
    assert not (tmp_path / "named" / "data.npz").exists()
    assert "data.npz" not in capsys.readouterr().err
