"""Reproductions on natural clients: FLamby's numbers, its model as two logits, and what the claims decide."""

import statistics
import warnings
from pathlib import Path

import numpy as np
import pytest

from unskew import papers
from unskew.errors import DataWarning
from unskew.papers import natural
from unskew.record.reader import part_of
from unskew.run.cell import Observer


def test_means_agree_if_the_interval_of_their_difference_is_within_two_points() -> None:
    """Of .70, .72, .74 and .73, .75, .77: difference .03, errors .02 / sqrt 3, .0163 together, t(4) 2.776: .0453.

    It has zero in it, from which "by no more than chance" was concluded, and reaches 7.5 points away.
    """
    wide = natural.agreement("m", (0.70, 0.72, 0.74), (0.73, 0.75, 0.77))
    assert wide.holds is None
    assert "-3.00 ∓ 4.53" in wide.evidence
    assert natural.agreement("m", (0.70, 0.72, 0.74), (0.76, 0.78, 0.80)).holds is None
    assert natural.agreement("m", (0.70, 0.72, 0.74), (0.80, 0.82, 0.84)).holds is False
    assert natural.agreement("m", (0.700, 0.702, 0.704), (0.703, 0.705, 0.707)).holds is True
    assert natural.agreement("m", (0.5, 0.5), (0.5, 0.5)).holds is True
    assert natural.agreement("m", (0.5, 0.5), (0.6, 0.6)).holds is False


def test_heart_runs_by_flambys_protocol_on_its_patients(tmp_path: Path) -> None:
    """Two seeds of one round of two steps: every row is there, with FLamby's number beside it where it has one."""
    few = {"local": {"local_steps": 2}}
    changes = {
        "experiment": {"seeds": [0, 1], "rounds": 1, "eval_every": 1},
        "federated": few,
        **{part: {"local": {"local_epochs": 1}} for part in ("alone", "pooled")},
    }
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", DataWarning)
        result = papers.reproduce("natural/heart", "small", tmp_path, None, Observer(), changes)
    for text in ("Switzerland has training rows of one class only", "column 'chol' has one value only at Switzerland"):
        assert any(text in str(note.message) for note in notes)  # in FLamby's part
    rows = {(r.method, r.metric): r for r in result.rows}
    assert rows["FedAvg", "mean accuracy"].paper == pytest.approx(0.685, abs=5e-4)
    assert rows["alone", "accuracy, Cleveland"].paper == pytest.approx(0.746, abs=5e-4)
    assert rows["Cleveland's model", "mean accuracy"].paper == pytest.approx(0.722, abs=5e-4)
    assert rows["Cyclic at .01", "mean accuracy"].paper is None
    hospitals = ("Cleveland", "Hungary", "Switzerland", "Long Beach V.A.")
    whole = [rows["FedAvg", f"accuracy, {name}"].ours or 0.0 for name in hospitals]
    assert rows["FedAvg", "mean accuracy"].ours == pytest.approx(statistics.fmean(whole))
    assert rows["alone", "accuracy, Cleveland"].ours == rows["Cleveland's model", "accuracy, Cleveland"].ours
    card, tested = part_of(tmp_path / "federated", "test")
    assert card["stats"]["sizes"] == [199, 172, 30, 85]
    assert tested.sizes.tolist() == [104, 89, 16, 45]


# ---------------------------------------------------------------- suites
def landmine(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"field": np.repeat(np.arange(29), 12), "y": rng.integers(0, 2, 348), "x": rng.normal(size=(348, 9))}


def test_a_suite_runs_as_it_is_described(tmp_path: Path) -> None:
    """Random rows in the layout of landmine's file: it is the settings that are tried, one round long."""
    np.savez(tmp_path / "landmine.npz", **landmine(np.random.default_rng(0)))
    quick = {"experiment": {"rounds": 1, "eval_every": 1, "seeds": [0, 1], "local": {"local_epochs": 1}}}
    result = papers.reproduce("natural/landmine", "small", tmp_path / "out", tmp_path, Observer(), quick)
    methods = {"alone", "FedAvg", "Ditto", "HCCT", "pooled"}
    assert methods <= {r.method for r in result.rows}
    worth = {f"{m} is worth it against training alone for clients that trained" for m in methods - {"alone", "pooled"}}
    assert worth <= {c.text for c in result.claims}
    card, tested = part_of(tmp_path / "out" / "run", "test")
    assert len(card["unseen"]["client_names"]) == 6
    assert set(tested.sizes.tolist()) == {6}
