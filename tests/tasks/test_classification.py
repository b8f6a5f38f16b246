"""Metrics of classification, by hand, and in a run."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unskew as us
from unskew.errors import ConfigError
from unskew.experiment.config import Experiment
from unskew.record.logs import METRICS
from unskew.record.reader import read
from unskew.report import verdict
from unskew.report.gain import gain, over_rows
from unskew.run import loop
from unskew.tasks import binary, kind_of, regression
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
from unskew.tasks.measure import Measure

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


def test_a_class_that_does_not_occur_does_not_count() -> None:
    three = np.concatenate([LOGITS, np.full((4, 1), -9.0)], 1)
    y = np.array([0, 0, 1, 1])
    assert balanced_accuracy(three, y) == 0.75
    assert auroc(three, y) == 1.0


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


def test_metrics_that_are_asked_for_stand_beside_the_headline(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    """Whatever the executor; clients of one class have neither AUROC nor macro F1, and are left out of the means."""
    rows = {}
    for executor in ("sequential", "stacked"):
        experiment = tiny(
            "rounds=1",
            "evaluate=['global', 'personal', 'macro_f1', 'auroc']",
            f"runtime.executor={executor}",
            "split={name='shards', num_clients=10, shards_per_client=1}",
        )
        folder = loop.start(experiment, tmp_path / executor).folder
        rows[executor] = {r["name"]: r for r in METRICS.rows(folder) if r["round"] == 1 and "client" not in r}
        assert set(rows[executor]) >= {"global.accuracy", "global.macro_f1", "global.auroc", "personal.macro_f1.mean"}
        for name in ("macro_f1", "auroc"):
            of, all_rows = (rows[executor][f"personal.{metric}.mean"]["weight"] for metric in (name, "accuracy"))
            assert 0 < of < all_rows
    for name in ("global.auroc", "personal.macro_f1.worst_decile"):
        assert rows["stacked"][name]["value"] == pytest.approx(rows["sequential"][name]["value"], abs=1e-6)


def test_a_model_of_one_class_is_a_warning_in_the_first_lines_of_the_report(tmp_path: Path) -> None:
    """Inputs that are all alike: the model can only learn that one example in five is positive."""
    x, y = np.ones((200, 4), np.float32), np.arange(200) % 5 == 0
    two, data = us.IID(num_clients=2), (x, y.astype(int))
    history = us.simulate("fedavg", data=data, model="logistic", rounds=2, split=two, out=tmp_path / "run")
    (warned,) = read(tmp_path / "run").warned
    share = 100 * history.value("fedavg")
    assert f"is right on test examples of class 0 only: its accuracy of {share:.1f} %" in warned.text
    page = history.report(tmp_path / "page.html").read_text()
    assert page.index("is right on test examples of class 0 only") < page.index("<table")


@pytest.mark.parametrize(
    ("given", "helps"),
    [
        ({}, "says little; see balanced_accuracy or macro_f1 (evaluate), or set task.class_weights"),
        ({"evaluate": ["global", "macro_f1"]}, "says little; set task.class_weights"),
        (
            {"task": us.TaskConfig(class_weights=(1.0, 1.0))},
            "says little; see balanced_accuracy or macro_f1 (evaluate)",
        ),
        (
            {"task": us.TaskConfig(class_weights=(1.0, 1.0)), "evaluate": ["global", "personal", "lowest_recall"]},
            "says little",
        ),
    ],
)
def test_the_warning_names_only_what_is_not_set(given: dict[str, Any], helps: str, tmp_path: Path) -> None:
    data = (np.ones((200, 4), np.float32), (np.arange(200) % 5 == 0).astype(int))
    split = us.IID(num_clients=2)
    us.simulate("fedavg", data=data, model="logistic", rounds=1, split=split, out=tmp_path / "run", **given)
    assert read(tmp_path / "run").warned[0].text.endswith(f" % {helps}")


def test_own_models_of_one_class_are_a_warning_that_names_the_sites(tmp_path: Path) -> None:
    """At two of three sites inputs are all alike, and one example in three is positive."""
    rng = np.random.default_rng(0)
    told = rng.normal(size=(100, 4)).astype(np.float32)
    blind, rare = np.ones((100, 4), np.float32), (np.arange(100) % 3 == 0).astype(int)
    sites = {"Bern": (blind, rare), "Chur": (told, (told[:, 0] > 0).astype(int)), "Sion": (blind, rare)}
    us.simulate("independent", data=sites, model="logistic", rounds=2, test=0.4, out=tmp_path / "run")
    texts = [w.text for w in read(tmp_path / "run").warned]
    (text,) = [t for t in texts if "own models" in t]
    assert "are right on test examples of one class only" in text
    assert "Bern, Sion (2 of 3 clients)" in text


def test_a_site_whose_own_model_finds_one_class_is_not_said_to_be_better_off_alone(tmp_path: Path) -> None:
    """At Sion nine in ten are positive, of which its inputs tell nothing; what the others learn is the reverse."""
    rng = np.random.default_rng(0)

    def site(share: float, sign: float, n: int = 400) -> tuple[Any, Any]:
        y = (rng.random(n) < share).astype(int)
        return (sign * (2 * y[:, None] - 1) + rng.normal(size=(n, 4))).astype(np.float32), y

    blind = (rng.normal(size=(400, 4)).astype(np.float32) - 1.0, (rng.random(400) < 0.9).astype(int))
    sites = {"Bern": site(0.5, 1.0), "Chur": site(0.5, 1.0), "Sion": blind}
    us.simulate(["independent", "fedavg"], data=sites, model="logistic", rounds=3, test=0.4, out=tmp_path / "run")
    notes = verdict.notes(read(tmp_path / "run"))
    assert "Alone Sion finds examples of one class only, so that its accuracy says little." in notes


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
    values = by_row(found, UNEQUAL)
    assert values is not None
    assert values.mean() == pytest.approx(whole(np.eye(4)[found], UNEQUAL))
    assert by_row(found[1:], UNEQUAL[1:]) is None  # nine rows of a class
    assert by_row(found[-90:], UNEQUAL[-90:]) is None  # one class
    two = {m.name: m for m in binary.BINARY.measures}[name]
    logits, y = rng.normal(size=(40, 1)), np.arange(40) % 2
    assert two.by_row is not None
    assert two.whole is not None
    rows = two.by_row(logits, y)
    assert rows is not None
    assert rows.mean() == pytest.approx(two.whole(logits, y))


@pytest.mark.parametrize("name", BY_ROW)
def test_an_interval_by_rows_misses_about_one_gain_in_twenty(name: str) -> None:
    """Two models of 80 and 50 % of right answers; the gain over 4,000 times the rows is the true one."""
    by_row, whole = BY_ROW[name]
    rng = np.random.default_rng(1)
    many = np.repeat(UNEQUAL, 4000)
    truth = [whole(np.eye(4)[_guess(rng, many, right)], many) for right in (0.8, 0.5)]
    missed = 0
    for _ in range(400):
        a, b = (by_row(_guess(rng, UNEQUAL, right), UNEQUAL) for right in (0.8, 0.5))
        assert a is not None
        assert b is not None
        of = gain([float(a.mean() - b.mean())], over_rows(a - b, share=False, ranked=True), share=True)
        assert of.low is not None
        assert of.high is not None
        missed += not of.low <= truth[0] - truth[1] <= of.high
    assert 0.02 < missed / 400 < 0.09


def test_the_rows_of_a_root_mean_squared_error_have_it_as_their_mean_and_miss_one_in_twenty() -> None:
    rng, y, missed = np.random.default_rng(0), np.zeros(40), 0
    for _ in range(400):
        a, b = (regression.root_by_row(rng.normal(size=(40, 1)), y) for _ in range(2))
        assert a is not None
        assert b is not None
        of = gain([float(a.mean() - b.mean())], over_rows(a - b, share=False), share=False)
        assert of.low is not None
        assert of.high is not None
        missed += not of.low <= 0 <= of.high
    assert 0.02 < missed / 400 < 0.09
    outputs = rng.normal(size=(40, 1))
    rows = regression.root_by_row(outputs, y)
    assert rows is not None
    assert rows.mean() == pytest.approx(math.sqrt((outputs**2).mean()))


def _unequal(classes: bool) -> dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    rng, sites = np.random.default_rng(0), {}
    for site in ("Bern", "Chur"):
        x = rng.normal(size=(400, 3)).astype(np.float32)
        value = x[:, 0] + 0.5 * rng.normal(size=400)
        sites[site] = (x, (value > 0.5).astype(int) if classes else value.astype(np.float32))
    return sites


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


def test_a_headline_that_a_kind_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"task\.headline of classification must be one of accuracy, .*, got 'mse'"):
        us.TaskConfig(headline="mse").check()
    assert us.TaskConfig(headline="macro_f1").check().headline.name == "macro_f1"
    assert us.TaskConfig(kind="binary", headline="sensitivity_at_80").check().headline.name == "sensitivity_at_80"
    assert kind_of("classification").led_by(None).headline.name == "accuracy"
    assert isinstance(kind_of("regression").led_by("mae").headline, Measure)
