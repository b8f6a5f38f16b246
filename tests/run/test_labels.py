"""Models answer in the type of the labels that they were trained on."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import unskew as us
from unskew.data.archives import save
from unskew.data.own import dataset
from unskew.data.sources import load

N = 60
AGE = np.random.default_rng(0).normal(size=N)
OLD = AGE + 0.4 * np.random.default_rng(1).normal(size=N) > 0  # not told by age alone
TABLE = pandas.DataFrame({"age": AGE, "site": np.repeat(["Bern", "Basel", "Aarau"], N // 3)})
METHOD = us.FedAvg(local=us.SgdConfig(lr=1.0))

FORMS: dict[str, tuple[Any, type]] = {
    "whole numbers": (OLD.astype(int), int),
    "whole floats": (OLD.astype(float), int),
    "codes": (np.where(OLD, 7, -3), int),
    "codes beyond all rows": (np.where(OLD, 100_000, 5), int),
    "true and false": (OLD, bool),
    "words": (np.where(OLD, "old", "young"), str),
    "digits as words": (np.where(OLD, "1", "0"), str),
    "true and false as words": (np.where(OLD, "True", "False"), str),
    "pandas' whole numbers": (pandas.array(OLD.astype(int), "Int64"), int),
    "pandas' true and false": (pandas.array(OLD, "boolean"), bool),
    "categories of numbers": (pandas.Categorical(OLD.astype(int)), int),
    "objects that are NumPy's numbers": (pandas.Series(list(OLD.astype(int)), dtype=object), int),
    "objects that are NumPy's truths": (pandas.Series(list(OLD), dtype=object), bool),
}


def trained(data: Any, **options: Any) -> us.History:
    return us.simulate(METHOD, data=data, model="logistic", rounds=3, progress=False, **options)


@pytest.mark.parametrize("form", FORMS)
def test_predictions_have_the_type_of_the_target(form: str) -> None:
    y, kind = FORMS[form]
    table = TABLE.assign(y=y)
    model = trained(table, target="y", client="site").model("fedavg")
    answers = us.predict(model, table)
    assert set(map(type, answers)) == {kind}
    assert (answers == table["y"]).mean() > 0.8
    likely = [max(of, key=lambda label: of[label]) for of in us.predict(model, table, probabilities=True)]
    assert likely == answers


@pytest.mark.parametrize("whole", [True, False], ids=["a file", "a file for each site"])
@pytest.mark.parametrize(
    ("no", "yes", "answers"),
    [
        ("0", "1", {0, 1}),
        ("-3", "7", {-3, 7}),
        ("0.0", "1.0", {0, 1}),
        ("007", "100", {"007", "100"}),
        ("false", "true", {False, True}),
        ("no", "yes", {"no", "yes"}),
    ],
)
def test_labels_of_a_csv_file_that_are_numbers_are_answered_as_such(
    no: str, yes: str, answers: set[Any], whole: bool, tmp_path: Path
) -> None:
    table = TABLE.assign(y=np.where(OLD, yes, no))
    table.to_csv(tmp_path / "all.csv", index=False)
    (tmp_path / "sites").mkdir()
    for site, rows in table.groupby("site"):
        rows.drop(columns="site").to_csv(tmp_path / "sites" / f"{site}.csv", index=False)
    options = {"client": "site"} if whole else {}
    history = trained(tmp_path / ("all.csv" if whole else "sites"), target="y", **options)
    found = us.predict(history.model("fedavg"), tmp_path / "all.csv")
    assert {(one, type(one)) for one in found} == {(one, type(one)) for one in answers}


def test_a_runs_own_data_keep_the_type_of_their_labels(tmp_path: Path) -> None:
    data = dataset(TABLE.assign(y=np.where(OLD, 7, -3)), target="y", client="site")
    save(data, tmp_path / "data.npz")
    assert load("run:data.npz", tmp_path).label_type == data.label_type == "integer"
