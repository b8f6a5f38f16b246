"""`unskew predict`, called as from a shell, gives what `unskew.predict` gives, beside the rows as they are written."""

import csv
import json
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import unskew as us
from unskew.cli.predict import _as_csv
from unskew.errors import ConfigError, DataWarning

from .conftest import Unskew

HOSPITALS = Path(__file__).parents[2] / "examples" / "hospitals.csv"
METHODS = {"FedAvg": us.FedAvg(), "alone": us.Independent()}


pytestmark = pytest.mark.usefixtures("unreported")
KEPT = tempfile.TemporaryDirectory()


def trained(data: Any = HOSPITALS, methods: Any = METHODS, **settings: Any) -> None:
    """Train two rounds into the folder `r`; what most tests want is trained once."""
    usual, kept = data is HOSPITALS and methods is METHODS and not settings, Path(KEPT.name, "r")
    if usual and kept.exists():
        shutil.copytree(kept, "r")
        return
    if data is HOSPITALS:
        settings = {"target": "diagnosis", "client": "hospital", "preprocess": True, **settings}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        us.simulate(methods, data=data, rounds=2, out="r", progress=False, **settings)
    if usual:
        shutil.copytree("r", kept)


def read(text: str, separator: str = ",") -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines(), delimiter=separator))


# ---------------------------------------------------------------- tables
def test_a_table_comes_back_with_a_column_more(here: Path, unskew: Unskew) -> None:
    trained()
    said = unskew("predict", "r", HOSPITALS, "--method", "FedAvg")
    assert said.code == 0, said.err
    table = pandas.read_csv(HOSPITALS)
    expected = us.predict(us.load_model("r", "FedAvg"), table)
    assert [row.pop("predicted") for row in read(said.out)] == expected
    (here / "back.csv").write_text(said.out, "utf-8")
    pandas.testing.assert_frame_equal(pandas.read_csv(here / "back.csv").drop(columns="predicted"), table)
    assert said.err.startswith(f"{len(table)} predictions: ")
    assert said.err.endswith("; global model of FedAvg, seed 0\n")
    assert all(f"{name} {expected.count(name)}" in said.err for name in set(expected))


def test_probabilities_have_a_column_each_and_one_sum(here: Path, unskew: Unskew) -> None:
    trained()
    said = unskew("predict", "r", HOSPITALS, "--method", "alone", "--client", "Bern", "--probabilities", "--json")
    rows = json.loads(said.out)["rows"]
    model = us.load_model("r", "alone", client="Bern")
    expected = us.predict(model, pandas.read_csv(HOSPITALS), probabilities=True)
    names = list(expected[0])
    assert [[row[f"probability of {name}"] for name in names] for row in rows] == [list(p.values()) for p in expected]
    assert all(sum(p.values()) == pytest.approx(1) for p in expected)
    assert [row["predicted"] for row in rows] == us.predict(model, pandas.read_csv(HOSPITALS))


@pytest.mark.parametrize("task", ["classification", "binary"])
def test_the_second_of_two_classes_is_predicted_from_a_threshold_on(here: Path, unskew: Unskew, task: str) -> None:
    table = pandas.read_csv(HOSPITALS)
    columns = {"target": "diagnosis", "client": "hospital", "test": 0.25, "preprocess": True, "task": task}
    history = us.simulate("fedavg", data=table, rounds=1, out="t", model="logistic", progress=False, **columns)
    model = history.model("fedavg")
    second = [p["sick"] for p in us.predict(model, table, probabilities=True)]
    between = sorted(second)[len(second) // 4]
    expected = ["sick" if p >= between else "healthy" for p in second]
    assert us.predict(model, table, threshold=between) == expected
    assert us.predict(model, table, threshold=0.5) == us.predict(model, table)
    rows = json.loads(unskew("predict", "t", HOSPITALS, "--threshold", str(between), "--json").out)["rows"]
    assert [row["predicted"] for row in rows] == expected
    with pytest.raises(ConfigError, match=r"threshold must be above 0 and below 1, .* got 1"):
        us.predict(model, table, threshold=1.0)
    with pytest.raises(ConfigError, match=r"of two classes, without probabilities; got 0\.2"):
        us.predict(model, table, threshold=0.2, probabilities=True)


def test_a_class_of_somebody_s_model_is_no_formula_and_the_own_table_stays_as_it_is() -> None:
    rows = [{"=own": "=2+2", "predicted": name, "probability of =1": 0.5} for name in ("=1", "@x", "+1+1", "-a")]
    text = _as_csv(rows, "predicted", ",", ".")
    assert [row["predicted"] for row in read(text)] == ["'=1", "'@x", "'+1+1", "'-a"]
    assert {row["=own"] for row in read(text)} == {"=2+2"}


def test_another_notation_is_read_and_written(here: Path, unskew: Unskew) -> None:
    trained()
    table = pandas.read_csv(HOSPITALS)
    expected = us.predict(us.load_model("r", "FedAvg"), table.assign(age=table["age"] + 0.5), probabilities=True)
    table.assign(age=table["age"] + 0.5).to_csv(
        "new.csv", sep=";", decimal=",", na_rep="unknown", index=False, encoding="utf-16"
    )
    said = unskew(
        "predict", "r", "new.csv", "--method", "FedAvg", "--decimal", ",", "--gaps", "unknown", "--probabilities",
        "--encoding", "utf-16", "--separator", ";", "--out", "answers.csv",
    )  # fmt: skip
    assert (said.code, said.out) == (0, ""), said.err
    rows = read((here / "answers.csv").read_text("utf-8"), ";")
    name = next(iter(expected[0]))
    told = [float(row[f"probability of {name}"].replace(",", ".")) for row in rows]
    assert told == pytest.approx([p[name] for p in expected], abs=1e-5)
    assert rows[0]["age"] == f"{table['age'][0]},5"


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (["nix.csv"], "there is no table (.csv, .tsv, .parquet, .pq) "),
        (["few.csv"], "few.csv has no column 'smoker', which the model was trained on (columns: age, sex, chol"),
        (["case.csv"], "case.csv has no column 'age', which the model was trained on; did you mean AGE? (columns: hos"),
        (["twice.csv"], "twice.csv already has a column 'predicted'"),
        (["empty.csv"], "empty.csv has no rows"),
        (["words.csv"], "column 'age' must hold numbers, as in training, got 'old'"),
        (["tiny.toml"], "give one table (.csv, .tsv, .parquet, .pq), as the model was trained on, got tiny.toml"),
        (["x.npz"], "give one table (.csv, .tsv, .parquet, .pq), as the model was trained on, got x.npz"),
        (["few.csv", "twice.csv"], "give one table (.csv, .tsv, .parquet, .pq), as the model was trained on, got few"),
    ],
)
def test_files_that_do_not_fit_are_refused(here: Path, unskew: Unskew, files: list[str], sentence: str) -> None:
    trained()
    table = pandas.read_csv(HOSPITALS)
    table.drop(columns=["smoker", "hospital", "diagnosis"]).to_csv("few.csv", index=False)
    table.rename(columns={"age": "AGE"}).to_csv("case.csv", index=False)
    table.assign(predicted="sick").to_csv("twice.csv", index=False)
    table[:0].to_csv("empty.csv", index=False)
    table.astype({"age": object}).assign(age="old").to_csv("words.csv", index=False)
    said = unskew("predict", "r", *files, "--method", "FedAvg")
    assert (said.code, said.out) == (2, "")
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_nothing_is_overwritten(here: Path, unskew: Unskew) -> None:
    trained()
    (here / "mine.csv").write_text("kept")
    said = unskew("predict", "r", HOSPITALS, "--method", "FedAvg", "--out", "mine.csv")
    assert (said.code, (here / "mine.csv").read_text()) == (2, "kept")
    assert unskew("predict", "r", HOSPITALS, "--method", "FedAvg", "--out", "no/where.csv").code == 2


# ---------------------------------------------------------------- images, texts, numbers
def test_an_array_that_would_run_code_is_not_loaded(here: Path, unskew: Unskew) -> None:
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    trained((x, (x[:, 0] > 0).astype(int)), us.FedAvg(), split=us.IID(num_clients=3))
    np.save("x.npy", x[:5])
    rows = json.loads(unskew("predict", "r", "x.npy", "--json").out)["rows"]
    assert rows == [{"example": i, "predicted": p} for i, p in enumerate(us.predict(us.load_model("r"), x[:5]))]
    np.save("bad.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    said = unskew("predict", "r", "bad.npy")
    assert (said.code, said.out) == (2, "")
    assert "bad.npy is not a readable array" in said.err
    assert unskew("predict", "r", HOSPITALS).code == 2
    for shape in ("(3000000000, 0)", "(3000000000, 400)"):  # announced, and not there
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
        (here / "bomb.npy").write_bytes(b"\x93NUMPY\x01\x00\x76\x00" + header.encode())
        said = unskew("predict", "r", "bomb.npy")
        assert (said.code, said.out) == (2, "")
        assert "bomb.npy is not a readable array" in said.err
    os.mkfifo("pipe.npy")
    assert "there is no such file" in unskew("predict", "r", "pipe.npy").err
