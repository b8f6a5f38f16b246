"""Metrics of classification, by hand, and in a run."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unskew as us
from unskew.tasks import odds
from unskew.tasks.classification import (
    auroc,
    balanced_accuracy,
    f1_by_row,
    log_odds,
    lowest_recall,
    macro_f1,
    only_class_found,
    shares_by_row,
)

LOGITS = np.array([[2.0, 0.0], [1.0, 0.0], [0.5, 0.0], [0.0, 1.0]])


def test_metrics_by_hand() -> None:
    """Predictions 0, 0, 0, 1 of 0, 0, 1, 1: recalls 1 and 1/2, precisions 2/3 and 1, so F1 4/5 and 2/3.

    Scores of class 1 fall with the first logit: both ones stand above both zeros, so no pair is in the wrong order.
    """
    y = np.array([0, 0, 1, 1])
    assert balanced_accuracy(LOGITS, y) == 0.75
    assert lowest_recall(LOGITS, y) == 0.5
    assert macro_f1(LOGITS, y) == pytest.approx((4 / 5 + 2 / 3) / 2)
    assert auroc(LOGITS, y) == 1.0
    assert auroc(LOGITS, y[::-1]) == 0.0


def test_scores_that_are_certain_keep_their_order() -> None:
    """Log-odds 60, 50, 45, -10 of ones and zeros are in the right order; as probabilities three of them are one."""
    odds, y = np.array([60.0, 50.0, 45.0, -10.0]), np.array([1, 1, 0, 0])
    assert auroc(np.stack([np.zeros(4), odds], 1), y) == 1.0
    logits = np.random.default_rng(0).normal(size=(20, 4)) * 3
    each = [logits[:, c] - np.log(np.exp(np.delete(logits, c, 1)).sum(1)) for c in range(4)]
    np.testing.assert_allclose(log_odds(logits), np.stack(each, 1), atol=1e-12)
    ruled_out = log_odds(np.array([[2.0, -np.inf], [1.0, 0.0]]))
    assert np.isfinite(ruled_out).all()
    assert ruled_out[0, 0] > 1e300 > -1e300 > ruled_out[0, 1]


@pytest.mark.parametrize("metric", [auroc, balanced_accuracy, lowest_recall, macro_f1])
def test_of_one_class_no_metric_of_several_is_defined(metric: Callable[[Any, Any], float]) -> None:
    """Whoever says 0 of everything would have 100 % of zeros alone."""
    assert math.isnan(metric(LOGITS, np.zeros(4, np.int64)))


@pytest.mark.parametrize(
    ("right", "y", "expected"),
    [
        ([True, True, *[False] * 5], [1, 1, *[0] * 5], 1),
        ([True, False, *[False] * 5], [1, 1, *[0] * 5], 1),
        ([True, True, *[False] * 4], [1, 1, *[0] * 4], None),  # four may be missed by chance
        ([True, True, True, *[False] * 5], [1, 1, 0, *[0] * 5], None),
        ([True, True, True], [1, 1, 1], None),  # nothing else was to be found
        ([False] * 7, [1, 1, *[0] * 5], None),
        ([True, True, *[False] * 6], [1, 1, 0, 0, 0, 2, 2, 2], 1),  # it may tell 0 from 2, always wrongly
    ],
)
def test_a_model_that_finds_one_class_only_is_found(right: list[bool], y: list[int], expected: int | None) -> None:
    assert only_class_found(torch.tensor(right), torch.tensor(y)) == expected


# ---------------------------------------------------------------- headlines
UNEQUAL = np.repeat(np.arange(4), (10, 15, 30, 90))
BY_ROW = {
    "balanced_accuracy": (shares_by_row, balanced_accuracy),
    "macro_f1": (f1_by_row, macro_f1),
}


def _guess(rng: np.random.Generator, y: np.ndarray[Any, Any], right: float) -> np.ndarray[Any, Any]:
    return np.where(rng.random(len(y)) < right, y, rng.integers(0, 4, len(y)))


@pytest.mark.parametrize("name", BY_ROW)
def test_the_values_of_rows_have_the_measure_as_their_mean(name: str) -> None:
    by_row, whole = BY_ROW[name]
    rng = np.random.default_rng(0)
    found = _guess(rng, UNEQUAL, 0.5)
    found = np.eye(4)[found]
    values = by_row(found, UNEQUAL)
    assert values is not None
    assert values.mean() == pytest.approx(whole(found, UNEQUAL))
    assert by_row(found[1:], UNEQUAL[1:]) is None  # nine rows of a class
    assert by_row(found[-90:], UNEQUAL[-90:]) is None  # one class
    two = {m.name: m for m in odds.BINARY.measures}[name]
    logits, y = rng.normal(size=(40, 1)), np.arange(40) % 2
    assert two.by_row is not None
    assert two.whole is not None
    rows = two.by_row(logits, y)
    assert rows is not None
    assert rows.mean() == pytest.approx(two.whole(logits, y))


def _unequal(classes: bool) -> dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    rng, sites = np.random.default_rng(0), {}
    for site in ("Bern", "Chur"):
        x = rng.normal(size=(400, 3)).astype(np.float32)
        value = x[:, 0] + 0.5 * rng.normal(size=400)
        sites[site] = (x, (value > 0.5).astype(int) if classes else value.astype(np.float32))
    return sites


@pytest.mark.usefixtures("unreported")
@pytest.mark.parametrize(
    ("kind", "headline"),
    [
        ("classification", "balanced_accuracy"),
        ("classification", "macro_f1"),
        ("binary", "balanced_accuracy"),
        ("regression", "rmse"),
        ("regression", "mae"),
    ],
)
def test_a_run_goes_by_the_headline_that_is_chosen(kind: str, headline: str, tmp_path: Path) -> None:
    """A level of it ends FedAvg early, and gains, of single clients too, are of it and have intervals."""
    level = 0.9 if kind == "regression" else 0.55
    history = us.simulate(
        {"alone": us.Independent(), "FedAvg": us.FedAvg()}, data=_unequal(kind != "regression"),
        task=us.TaskConfig(kind=kind, headline=headline), model="mlp", local=us.SgdConfig(lr=0.1), rounds=4,
        stop=us.Stop(metric=level), out=tmp_path, progress=False,
    )  # fmt: skip
    assert history.headline.name == headline
    rows = {row["client"]: row for row in history.gains()}
    assert rows["Bern"]["low"] is not None
    alone, fedavg = (history.client_values(method)["Bern"] for method in ("alone", "FedAvg"))
    assert rows["Bern"]["gain"] == pytest.approx((fedavg - alone) * (1 if history.headline.higher else -1))
    assert max(row["round"] for row in history.rows if row["method"] == "FedAvg") < 4
