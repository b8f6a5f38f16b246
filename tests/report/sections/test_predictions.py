"""The section on what global models predict."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from torch import Tensor

import unskew as us
from unskew.info import PredictedNumbers, RankedClasses, RecallByClass
from unskew.record.reader import info_of, read
from unskew.report import charts, write_report
from unskew.report.section import Table
from unskew.report.sections import predictions
from unskew.tasks.odds import ranked

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 3)).astype(np.float32)
METHODS = {"FedAvg": us.FedAvg(), "FedProx": us.FedProx(mu=0.1)}


def test_points_of_two_classes_by_hand() -> None:
    """Scores -1, 0, 1, 2 of classes 0, 1, 0, 1: thresholds find 1 of 2 with no false alarm, and both with one."""
    info = ranked(np.array([[-1.0], [0], [1], [2]]), np.array([0, 1, 0, 1]))
    assert isinstance(info, RankedClasses)
    assert (0.0, 0.5) in set(zip(info.false_alarms, info.found, strict=True))
    assert (0.5, 1.0) in set(zip(info.false_alarms, info.found, strict=True))
    assert (info.area, info.share) == (0.75, 0.5)
    assert info.happened == (0.0, 1.0, 0.0, 1.0)
    assert info.likely[1] == 0.5
    assert ranked(np.zeros((2, 1)), np.array([1, 1])) is None


def hinge(outputs: Tensor, y: Tensor) -> Tensor:
    """A loss whose outputs are no log odds, so that no calibration is drawn of them."""
    return (1 - (2 * y - 1) * outputs[:, 0]).clamp(min=0)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("kind", "titles"),
    [
        ("regression", ["Predicted against true"]),
        ("binary", ["ROC curve", "Precision and recall", "Calibration", "Confusion, FedAvg"]),
        ("binary, hinge", ["ROC curve", "Precision and recall", "Confusion, FedAvg"]),
        ("survival", []),
    ],
)
def test_a_report_draws_what_its_kind_of_task_makes_of_predictions(
    kind: str, titles: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    kind, _, loss = kind.partition(", ")
    folder = tmp_path_factory.mktemp("run") / "run"
    y = {"regression": X[:, 0], "binary": X[:, 0] > 0, "survival": np.stack([X[:, 0] ** 2, X[:, 1] > 0], 1)}[kind]
    us.simulate(METHODS, data=(X, y), task=kind, loss=hinge if loss else None, split=us.IID(num_clients=2), rounds=1,
                out=folder, progress=False)  # fmt: skip
    record = read(folder)
    section = predictions.section(record, list(METHODS), charts.colours(list(METHODS)))
    assert [chart.title for chart in section.charts] == titles if section else not titles
    page = (folder / "report.html").read_text()
    assert all(title in page for title in titles)
    if kind == "regression":
        (shown,) = info_of(record, "FedAvg", PredictedNumbers)
        assert len(shown.info.true) == 16


# ---------------------------------------------------------------- recall by class
def _recalls(monkeypatch: pytest.MonkeyPatch, *of: tuple[str, int, RecallByClass]) -> Table | None:
    """The table of a run whose methods reported this, by method and seed."""
    methods = list(dict.fromkeys(method for method, _, _ in of))

    def reported(record: object, method: str, kind: type) -> dict[int, dict[int, object]]:
        return {s: {1: i} for m, s, i in of if m == method and s in (0, 1)}

    monkeypatch.setattr(predictions.tables, "reported", reported)
    split = SimpleNamespace(classes=(), label=str)
    return predictions._recall_table(cast(Any, SimpleNamespace(partitions={0: split})), methods)


def test_recall_by_class_is_a_mean_over_seeds_and_few_test_examples_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 40 of class 0 20 and 30, so 62.5 +- 17.7 %; of 5 of class 2 one, under both seeds; class 1 has none.

    What a seed reported that is not counted, since it diverged, is left out.
    """
    seeds = [RecallByClass(found=(n, 0, 1), examples=(40, 0, 5)) for n in (20, 30, 0)]
    table = _recalls(monkeypatch, *(("A", s, i) for s, i in enumerate(seeds)))
    assert table is not None
    assert [(row.name, *row.cells) for row in table.entries] == [
        ("class 0", "40", "62.5 ± 17.7"), ("class 2", "5", "20.0 ± 0.0")
    ]  # fmt: skip
    assert table.note.endswith("Test examples are few: of class 2 there are 5, so that one more found is 20.0 points.")


@pytest.mark.parametrize(("task", "edges"), [("classification", [0.5]), ("ordinal", [-0.5, 0.5])])
def test_a_run_reports_what_its_global_models_find_of_each_class(task: str, edges: list[float], tmp_path: Path) -> None:
    """By hand from the model's predictions; costs are in a report only of a run that reports more."""
    y, classes = np.digitize(X[:, 0], edges), range(len(edges) + 1)
    history = us.simulate(METHODS, data=(X, y), test=(-X, y), task=task, split=us.IID(num_clients=2), seeds=(0, 1),
                          rounds=2, out=tmp_path / "run", progress=False)  # fmt: skip
    predicted = np.array(us.predict(history.model("FedAvg", seed=1), -X))
    first, second = info_of(read(tmp_path / "run"), "FedAvg", RecallByClass)
    assert (first.seed, second.seed, second.round) == (0, 1, 2)
    assert second.info.examples == tuple(np.bincount(y))
    assert second.info.confused == tuple(
        tuple(((predicted == taken) & (y == c)).sum() for taken in classes) for c in classes
    )
    assert second.info.found == tuple(row[k] for k, row in enumerate(second.info.confused))
    for types, costs in (({RecallByClass}, False), ({RecallByClass, RankedClasses}, True)):
        info = {"FedAvg": frozenset(of.__name__ for of in types)}
        page = write_report(replace(read(tmp_path / "run"), info=info), tmp_path / "page.html").read_text()
        assert "Recall by class: the share" in page
        assert ("Cost to target" in page) == costs
