"""Measurements at sizes that take no time: what their rows say, and who trains how; how long it takes is no test."""

import json
import runpy
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from unskew.bench import engine
from unskew.bench.toolkit import Workload, paired_rows, seconds_row, speed_row
from unskew.cli.app import app


def called(*words: str) -> Result:
    return CliRunner().invoke(app, ["bench", *words])


# ---------------------------------------------------------------- rows
def test_rows_are_of_minima_with_medians_beside_them() -> None:
    """100 samples in 2, 4 and 10 s, beside 4, 5 and 30 s."""
    row = seconds_row("c", "round", [4.0, 2.0, 10.0], ratio=3.0)
    assert row == {
        "case": "c", "what": "round", "value": 2.0, "unit": "s", "ratio": 3.0, "median": 4.0, "slowest": 10.0
    }  # fmt: skip
    row = speed_row("c", "workers", 100, [4.0, 2.0, 10.0], [5.0, 4.0, 30.0], "L1")
    assert (row["value"], row["ratio"], row["against"]) == (50.0, 2.0, "L1")
    assert (row["median"], row["ratio_of_medians"], row["slowest"]) == (25.0, 1.25, 10.0)


def test_a_ratio_of_epochs_is_the_median_over_turns_and_the_middle_half_stands_beside_it() -> None:
    """1.1, 1.0, 1.2, .9, 1.3, so median 1.1, quartiles 1.0 and 1.2.  The minima are 2.0 and 2.2."""
    by = paired_rows("c", {"fedavg": [2.0, 4.0, 2.0, 3.0, 2.0], "feddw": [2.2, 4.0, 2.4, 2.7, 2.6]}, "fedavg")
    base, row = by["fedavg"], by["feddw"]
    assert (base["ratio"], base["low"], base["high"], base["ratio_of_minima"]) == (1, 1, 1, 1)
    assert (row["ratio"], row["low"], row["high"]) == pytest.approx((1.1, 1.0, 1.2))
    assert row["ratio_of_minima"] == pytest.approx(2.2 / 2.0)
    assert (row["value"], row["turns"]) == (2.6, 5)


def test_plain_pytorch_is_what_is_fastest_of_it_and_workers_have_a_bar() -> None:
    seconds = {"workers": [1.0], "local work": [0.5], "L1, 1 threads": [4.0], "L1, 2 threads": [2.0]}
    speeds = engine._rows("c", 100, seconds, 1.8)
    assert [(r["contender"], r["ratio"], r.get("bar")) for r in speeds] == [
        ("workers", 2.0, 1.8),
        ("local work", 4.0, None),
        ("L1", 1.0, None),
        ("workers", 2.0, 1.05),
    ]
    assert speeds[-1]["what"] == "round_over_local_work"


# ---------------------------------------------------------------- the command
def test_a_trial_measures_every_stage_of_two_populations_and_stdout_is_json(tmp_path: Path) -> None:
    printed = called("scale", "--quick", "--json", "--out", str(tmp_path / "rows.json"))
    assert printed.exit_code == 0, printed.output
    rows = json.loads(printed.stdout)["rows"]
    assert json.loads((tmp_path / "rows.json").read_text())["rows"] == rows
    measured = {(r["clients"], r["what"]) for r in rows if "clients" in r}
    assert measured == {(n, what) for n in (20, 60) for what in ("split", "round", "evaluation", "run", "folder")}
    assert all(r["value"] > 0 and r.get("peak_gb", 1) > 0.05 for r in rows if "clients" in r)


def test_robust_means_are_measured_without_and_with_an_attack(tmp_path: Path) -> None:
    """With nobody malicious a trimmed mean leaves nobody out; it was refused, as too few for twenty clients."""
    printed = called("security", "--quick", "--only", "backdoor", "--json", "--figures", str(tmp_path))
    assert printed.exit_code == 0, printed.output
    rows = json.loads(printed.stdout)["rows"]
    assert len({r["contender"] for r in rows}) == 6
    assert {(r["case"], r["what"]) for r in rows} == {
        ("digits/none/0", "balanced accuracy"), ("digits/backdoor/0.2", "balanced accuracy"),
        ("digits/backdoor/0.2", "attack success"),
    }  # fmt: skip
    lines = (tmp_path / "attacks-digits.md").read_text("utf-8").splitlines()
    assert [line.count("|") for line in lines] == [9] * 5


def test_the_gpus_check_finds_what_it_imports() -> None:
    check = Path(__file__).parents[2] / "bench" / "gpu_check.py"
    assert runpy.run_path(str(check), run_name="imported")["say"]


# ---------------------------------------------------------------- what is measured
def test_executors_are_measured_beside_plain_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "WORKLOADS", {"W": Workload("logistic", (1, 4, 4), 8)})
    monkeypatch.setattr(engine, "CASES", (("W", 4, 3, 2.0),))
    monkeypatch.setattr(engine, "cores", lambda: 1)
    rows = engine.measure(1, say=lambda _: None)
    assert [r["contender"] for r in rows] == [
        "workers", "sequential", "local work", "local work, at once", "L1", "workers"
    ]  # fmt: skip
    assert all(r["case"] == "W/b4/c3" and r["value"] > 0 for r in rows)
