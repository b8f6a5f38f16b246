"""`unskew predict`, called as from a shell, gives what `unskew.predict` gives, beside the rows as they are written."""

import csv
import dataclasses
import json
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import unskew as us
from unskew.cli.predict import _as_csv
from unskew.data.inputs import Inputs
from unskew.errors import ConfigError, DataWarning

from .conftest import Unskew

HOSPITALS = Path(__file__).parents[2] / "examples" / "hospitals.csv"
METHODS = {"FedAvg": us.FedAvg(), "alone": us.Independent()}


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


@pytest.mark.parametrize(("mark", "end"), [(b"\xef\xbb\xbf", b"\r\n"), (b"", b"\n")])
def test_a_file_keeps_its_byte_order_mark_and_line_ends(here: Path, unskew: Unskew, mark: bytes, end: bytes) -> None:
    trained()
    lines = HOSPITALS.read_bytes().splitlines()[:4]
    (here / "new.csv").write_bytes(mark + b"".join(line + end for line in lines))
    result = unskew("predict", "r", "new.csv", "--method", "FedAvg", "--out", "back.csv")
    assert result.code == 0, result.err
    back = (here / "back.csv").read_bytes()
    assert back.startswith(mark + lines[0] + b",predicted" + end)
    assert (back.count(end), back.count(b"\n"), back.count(b"\xef\xbb\xbf")) == (4, 4, bool(mark))


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


@pytest.mark.parametrize(
    ("task", "y", "why"),
    [
        ("classification", np.arange(60) % 3, "of two classes, .* of 3 outputs"),
        ("regression", np.arange(60) / 7.0, "regression with the loss squared, which gives no probabilities"),
        ("multi_label", np.eye(2)[np.arange(60) % 2], "of two classes"),
    ],
)
def test_a_threshold_is_refused_where_there_are_not_two_classes(task: str, y: npt.NDArray[Any], why: str) -> None:
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    split = us.IID(num_clients=2)
    history = us.simulate("fedavg", data=(x, y), task=task, rounds=1, split=split, model="logistic", progress=False)
    with pytest.raises(ConfigError, match=why):
        us.predict(history.model("fedavg"), x, threshold=0.2)


def test_a_class_of_somebody_s_model_is_no_formula_and_the_own_table_stays_as_it_is() -> None:
    rows = [{"=own": "=2+2", "predicted": name, "probability of =1": 0.5} for name in ("=1", "@x", "+1+1", "-a")]
    text = _as_csv(rows, "predicted", ",", ".")
    assert [row["predicted"] for row in read(text)] == ["'=1", "'@x", "'+1+1", "'-a"]
    assert {row["=own"] for row in read(text)} == {"=2+2"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--out", "answers.parquet"), "--out is a CSV file, got answers.parquet; name it with .csv at its end"),
        (("--out", "answers.csv", "--json"), "--out is a JSON file, got answers.csv; name it with .json at its end"),
    ],
)
def test_predictions_are_not_written_under_another_ending(
    arguments: tuple[str, ...], sentence: str, here: Path, unskew: Unskew
) -> None:
    """A name that promises Parquet had CSV in it."""
    said = unskew("predict", "r", str(HOSPITALS), *arguments)
    assert said.code != 0
    assert sentence in " ".join(said.err.split())


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


def test_columns_that_were_not_trained_on_may_be_anything(here: Path, unskew: Unskew) -> None:
    trained()
    table = pandas.read_csv(HOSPITALS).drop(columns=["diagnosis", "hospital"])
    table.assign(note="x" * 5000, day="2026-13-45", other="1.5 mg").to_csv("new.csv", index=True)  # a nameless column
    said = unskew("predict", "r", "new.csv", "--method", "FedAvg")
    assert said.code == 0, said.err
    assert [row["predicted"] for row in read(said.out)] == us.predict(us.load_model("r", "FedAvg"), table)


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (["nix.csv"], "there is no table (.csv, .tsv, .parquet, .pq) "),
        (["few.csv"], "few.csv has no column 'smoker', which the model was trained on (columns: age, sex, chol"),
        (["case.csv"], "case.csv has no column 'age', which the model was trained on; did you mean AGE? (columns: hos"),
        (["twice.csv"], "twice.csv has a column 'predicted' already"),
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


def test_a_file_is_one_model_and_no_other(here: Path, unskew: Unskew) -> None:
    trained()
    assert unskew("show", "r", "--method", "alone", "--client", "Bern", "--model", "m.safetensors").code == 0
    for words in (("--client", "Basel"), ("--method", "FedAvg"), ("--seed", "0")):
        said = unskew("predict", "m.safetensors", HOSPITALS, *words)
        assert (said.code, said.out) == (2, "")
        assert "m.safetensors is one model; leave method, client, seed and round out" in said.err
    assert unskew("predict", "m.safetensors", HOSPITALS).code == 0
    said = unskew("predict", "m.safetensors", HOSPITALS, "--rows-of", "Bern")
    assert "scales all clients' rows alike: leave --rows-of out" in said.err


# ---------------------------------------------------------------- images, texts, numbers
@pytest.fixture
def scans(here: Path) -> npt.NDArray[Any]:
    """Images of three patients, in a folder for each, and `notes.txt`, which is none."""
    images = np.round(load_digits().images[:6] * 15).astype(np.uint8)
    for i, image in enumerate(images):
        (here / "scans" / f"patient-{i // 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(here / "scans" / f"patient-{i // 2}" / f"{i}.png")
    (here / "scans" / "notes.txt").write_text("")
    return images


def test_images_are_found_below_a_folder(here: Path, unskew: Unskew, scans: npt.NDArray[Any]) -> None:
    x, y = np.round(load_digits().images * 15).astype(np.uint8), load_digits().target
    trained({f"site {i}": (x[i::3], y[i::3]) for i in range(3)}, us.FedAvg())
    expected = [str(one) for one in us.predict(us.load_model("r"), scans)]
    left = "scans not read: notes.txt; what is read: images ending in .png, "
    with warnings.catch_warnings():
        warnings.simplefilter("always", DataWarning)
        said = unskew("predict", "r", "scans")
    assert said.code == 0, said.err
    assert f"Warning: 1 file in {left}" in said.err
    rows = read(said.out)
    assert [row["file"] for row in rows] == [f"scans/patient-{i // 2}/{i}.png" for i in range(6)]
    assert [row["predicted"] for row in rows] == expected
    one = read(unskew("predict", "r", "scans/patient-1", "scans/patient-0/1.png").out)
    assert [row["predicted"] for row in one] == [expected[2], expected[3], expected[1]]
    with pytest.warns(DataWarning, match=left):
        assert list(map(str, us.predict(us.load_model("r"), here / "scans"))) == expected
    np.save("scans.npy", scans)
    assert [row["predicted"] for row in read(unskew("predict", "r", "scans.npy").out)] == expected
    (here / "nothing").mkdir()
    assert "there is no image below" in unskew("predict", "r", "nothing").err
    for missing in ("nope.csv", "nope.png"):
        assert unskew("predict", "r", missing).err == f"DataError: there is no file {here / missing}\n"
    (here / "rows.csv").write_text("a,b\n1,2\n")
    assert unskew("predict", "r", "rows.csv").err.startswith("DataError: rows.csv is not a readable image: ")


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


def test_texts_stand_a_line_each(here: Path, unskew: Unskew) -> None:
    words, tokens = ("a", "bad", "film", "good"), np.random.default_rng(0).integers(2, 6, (40, 3))
    trained((tokens, np.array([1, 0] * 20)), us.FedAvg(), split=us.IID(num_clients=2), model="bilstm")
    model = us.load_model("r")
    task = dataclasses.replace(model.unskew.task, inputs=Inputs("texts", vocabulary=words))
    model.unskew = dataclasses.replace(model.unskew, task=task)
    us.save_model(model, "m.safetensors")
    (here / "new.txt").write_text("a good film\nbad\n", "utf-8")
    rows = json.loads(unskew("predict", "m.safetensors", "new.txt", "--json").out)["rows"]
    found = us.predict(model, ["a good film", "bad"])
    assert rows == [{"text": "a good film", "predicted": found[0]}, {"text": "bad", "predicted": found[1]}]
    (here / "new.txt").write_text("a\u2028b\x0cc\r\nbad\n\n", "utf-8", newline="")
    with warnings.catch_warnings():
        warnings.simplefilter("always", DataWarning)
        answer = unskew("predict", "m.safetensors", "new.txt", "--json")
    assert "Warning: no word was learnt of row 2" in answer.err
    rows = json.loads(answer.out)["rows"]
    assert [row["text"] for row in rows] == ["a\u2028b\x0cc", "bad", ""]
    (here / "new.txt").write_bytes("schön".encode("latin-1"))
    assert "new.txt is not in UTF-8; save it so" in unskew("predict", "m.safetensors", "new.txt").err
    (here / "new.txt").write_text("")
    assert "new.txt is empty: there is nothing to predict" in unskew("predict", "m.safetensors", "new.txt").err
