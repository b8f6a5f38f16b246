"""A method that diverges: the others and its other seeds are run, and nothing shows its mean as one over all seeds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import unskew
from unskew.errors import DivergedError, RunError
from unskew.experiment.config import Experiment
from unskew.pricing.radio import price
from unskew.pricing.summary import cost_summary
from unskew.pricing.traffic import read
from unskew.record.logs import rows
from unskew.run import loop
from unskew.run.cell import Observer

METHODS = """
[[methods]]
name = "fedavg"
[[methods]]
name = "fedprox"
label = "hot"
[[methods]]
name = "fedprox"
label = "hopeless"
local = { lr = 1e30 }
"""
WHEN = [{"method": "hot", "seed": 1, "round": 2}, {"method": "hopeless", "seed": 0, "round": 1},
        {"method": "hopeless", "seed": 1, "round": 1}]  # fmt: skip
one_round = loop._Loop.one_round


def hot(self: Any, cell: Any) -> None:
    """A round, except that "hot" diverges in the second one under seed 1."""
    if (cell.method.label, cell.seed, cell.round) == ("hot", 1, 1):
        cell.at = 2
        raise DivergedError("round 2: global.loss became inf; lower lr or server_lr")
    one_round(self, cell)


@pytest.fixture(scope="module")
def experiment(tiny: Callable[..., Experiment]) -> Experiment:
    return tiny("rounds=2", "seeds=[0, 1]", methods=METHODS)


@pytest.fixture(scope="module")
def folder(experiment: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop._Loop, "one_round", hot)
        return loop.start(experiment, tmp_path_factory.mktemp("diverged") / "run").folder


def test_the_other_methods_and_seeds_are_run_and_the_lost_ones_are_recorded(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    by_seed = sorted(rows(folder, "diverged"), key=lambda row: (row["method"] != "hot", row["seed"]))
    assert [{k: row[k] for k in WHEN[0]} for row in by_seed] == WHEN
    assert summary["diverged"] == list(rows(folder, "diverged"))
    assert by_seed[0]["reason"] == "round 2: global.loss became inf; lower lr or server_lr"
    results = {r["method"]: r for r in summary["rows"] if r["metric"] == "global.accuracy"}
    assert "undefined" not in results["fedavg"]
    assert (len(results["hot"]["seeds"]), results["hot"]["undefined"]) == (1, 1)
    assert "hopeless" not in {r["method"] for r in summary["rows"]}


def test_what_diverged_has_no_price(folder: Path) -> None:
    run = read(folder)
    costs = cost_summary(run, price(run.trainings))
    seeds = {row["method"]: len(row["seeds"]) for row in costs.rows if row["metric"] == "megabytes"}
    assert seeds == {"fedavg": 2, "hot": 1}, "as in the table of results"
    assert "hot, seed 1: round 2: global.loss became inf; lower lr or server_lr; its costs are left out" in costs.notes


def test_resuming_gives_the_same_results_and_says_nothing_is_lost(
    folder: Path, experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(self: Any, cell: Any) -> None:
        hot(self, cell)
        if (cell.method.label, cell.seed, cell.round) == ("hot", 1, 1):  # before it diverges
            cell.run.stop.set()

    monkeypatch.setattr(loop._Loop, "one_round", stopped)
    with pytest.raises(loop.Interrupted):
        loop.start(experiment, tmp_path / "run")
    assert len(list(rows(tmp_path / "run", "diverged"))) == 1
    monkeypatch.setattr(loop._Loop, "one_round", hot)
    notes: list[str] = []
    watcher = type("Watcher", (Observer,), {"note": lambda self, text: notes.append(text)})()
    summary = loop.resume(tmp_path / "run", watcher).summary
    assert summary["fingerprint"] == json.loads((folder / "summary.json").read_text())["fingerprint"]
    assert not [note for note in notes if "has no model" in note]
    assert [note for note in notes if note.startswith("hot, seed 1: round 2: ")]


def test_seeds_are_not_added_for_a_method_that_diverges_under_all(
    tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    notes: list[str] = []
    watcher = type("Watcher", (Observer,), {"note": lambda self, text: notes.append(text)})()
    hopeless = METHODS.replace('[[methods]]\nname = "fedprox"\nlabel = "hot"\n', "")
    experiment = tiny("rounds=1", "seeds={ until = 0.1, least = 2, most = 5 }", methods=hopeless)
    summary = loop.start(experiment, tmp_path / "run", watcher).summary
    assert summary["seeds"] == [0, 1]
    assert "decided after 2 seeds, but for hopeless, which diverged under each" in notes


def test_a_run_in_which_everything_diverged_has_no_result_and_is_not_one_to_resume(
    tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    with pytest.raises(DivergedError, match=r"^fedavg, seed 0: round 1, client ") as caught:
        loop.start(tiny("local.lr=1e30", "seeds=[0, 1]"), tmp_path / "run")
    assert caught.value.where == ("fedavg", 0, 1)
    with pytest.raises(RunError, match="has no results: all diverged, first fedavg, seed 0"):
        unskew.load_run(tmp_path / "run")
    so_far = unskew.load_run(tmp_path / "run", unfinished=True)
    assert so_far.summary["rows"] == []
    assert so_far.notes[0] == "This run has no results: every method diverged under every seed."
    assert "fedavg diverged under 2 of 2 seeds" in " ".join(str(so_far).split())
