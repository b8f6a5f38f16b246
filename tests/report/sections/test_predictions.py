"""The section on what global models predict."""

import numpy as np
import pytest

import unskew as us
from unskew.info import PredictedNumbers, RankedClasses
from unskew.record.reader import info_of, read
from unskew.report import figures
from unskew.report.sections import predictions
from unskew.tasks.binary import ranked
from unskew.tasks.regression import predicted

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


def test_of_many_numbers_five_hundred_are_kept_the_first_and_the_last_among_them() -> None:
    y = np.arange(1200.0)
    info = predicted(y[:, None] + 1, y)
    assert isinstance(info, PredictedNumbers)
    assert (len(info.true), info.true[0], info.true[-1], info.predicted[-1]) == (500, 0.0, 1199.0, 1200.0)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("kind", "titles"),
    [
        ("regression", ["Predicted against true"]),
        ("binary", ["ROC curve", "Precision and recall", "Calibration"]),
        ("survival", []),
    ],
)
def test_a_report_draws_what_its_kind_of_task_makes_of_predictions(
    kind: str, titles: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run") / "run"
    y = {"regression": X[:, 0], "binary": X[:, 0] > 0, "survival": np.stack([X[:, 0] ** 2, X[:, 1] > 0], 1)}[kind]
    us.simulate(METHODS, data=(X, y), task=kind, split=us.IID(num_clients=2), rounds=1, out=folder, progress=False)
    record = read(folder)
    marks = dict(zip(METHODS, figures.looks([False, False]), strict=True))
    section = predictions.section(record, list(METHODS), marks)
    assert [chart.title for chart in section.charts] == titles if section else not titles
    page = (folder / "report.html").read_text()
    assert all(title in page for title in titles)
    if kind == "regression":
        (shown,) = info_of(record, "FedAvg", PredictedNumbers)
        assert len(shown.info.true) == 16
