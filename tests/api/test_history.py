"""A history: a table, a figure, a frame, a report."""

import gc
import shutil
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from records import rewrite

import unskew as us
from unskew.errors import ConfigError, RunError
from unskew.record.logs import rows
from unskew.run.cell import Cell, Evaluation, Observer
from unskew.run.metrics import Metric

FAST = us.SgdConfig(lr=0.1, local_epochs=1, batch_size=64)
TINY: dict[str, Any] = {"split": us.IID(num_clients=3), "rounds": 2, "model": "logistic", "progress": False}


@pytest.fixture(scope="module")
def history() -> us.History:
    return us.simulate({"FedAvg": us.FedAvg(FAST), "<alone>": us.Independent(FAST)}, seeds=(0, 1), **TINY)


def test_a_table_is_a_frame_of_the_methods(history: us.History) -> None:
    pytest.importorskip("pandas")
    table = history.table()
    assert list(table["method"]) == ["FedAvg", "<alone>"]
    assert table["global"][0] == pytest.approx(history.value("FedAvg"))
    assert table["personal"][1] == pytest.approx(history.value("<alone>", "personal.accuracy.mean"))
    gain = next(row for row in history.gains() if row["client"] is None)
    assert table["gain"][0] == pytest.approx(gain["gain"])


def test_a_run_that_is_not_kept_is_gone_with_its_history() -> None:
    history = us.simulate(us.FedAvg(FAST), **TINY)
    folder = history.folder
    assert (folder / "run.sqlite").is_file()
    del history
    gc.collect()
    assert not folder.parent.exists()


@pytest.mark.usefixtures("undrawn")
def test_a_kept_run_has_its_report_and_one_that_was_removed_says_so(tmp_path: Path) -> None:
    history = us.simulate(us.FedAvg(FAST), **TINY, out=tmp_path / "r")
    assert (tmp_path / "r" / "report.html").is_file()
    (tmp_path / "r").rename(tmp_path / "elsewhere")
    with pytest.raises(RunError, match=r"the run's files are gone from .*r; run it again with out=FOLDER"):
        history.report(tmp_path / "page.html")


# ---------------------------------------------------------------- progress
def test_a_function_hears_every_number_of_every_round() -> None:
    heard: dict[int, dict[str, float]] = {}

    def hears(cell: Cell) -> None:
        heard[cell.round] = cell.metrics

    history = us.simulate({"FedAvg": us.FedAvg(FAST)}, **TINY, callback=hears)
    assert list(heard) == [1, 2]
    for name in ("global.accuracy", "personal.accuracy.mean", "train.loss", "bytes.up"):
        assert [metrics[name] for metrics in heard.values()] == [v for t, v in history.curve("FedAvg", name) if t], name


def test_ones_own_observer_adds_a_number_to_the_record() -> None:
    class Norm(Observer):
        def evaluated(self, cell: Cell, seen: Evaluation) -> list[Metric]:
            model = cell.sim.method.serve(seen.state, None) or {}
            return [Metric("global.norm", float(sum(t.norm().item() for t in model.values())))]

    history = us.simulate({"FedAvg": us.FedAvg(FAST)}, **TINY, callback=Norm())
    assert [t for t, _ in history.curve("FedAvg", "global.norm")] == [0, 1, 2]


# ---------------------------------------------------------------- from its folder
@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> us.History:
    out = tmp_path_factory.mktemp("kept") / "run"
    return us.simulate(
        {"FedAvg": us.FedAvg(FAST)}, out=out, evaluate=("global", "personal", "macro_f1"), **TINY | {"model": Net}
    )


class Net(torch.nn.Sequential):
    def __init__(self) -> None:
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 10))


def test_a_run_that_ended_is_the_same_history_from_its_folder(
    kept: us.History, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept.path is not None
    monkeypatch.chdir(kept.path.parent)
    again = us.load_run("run", network=Net)
    monkeypatch.chdir("/")
    assert (again.rows, again.summary, again.path) == (kept.rows, kept.summary, kept.path)
    assert str(again) == str(kept)
    assert again.client_values("FedAvg") == kept.client_values("FedAvg")
    assert again.rows_of("test").keys() == {0, 1, 2}
    for ours, theirs in zip(again.model("FedAvg").parameters(), kept.model("FedAvg").parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_run_from_its_folder_imports_no_network_without_permission(kept: us.History) -> None:
    with pytest.raises(ConfigError, match="give load_model the network"):
        us.load_run(kept.folder).model("FedAvg")


def test_no_history_is_read_of_a_run_that_goes_on_or_is_none(kept: us.History, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is not a run folder: it has no run\.json"):
        us.load_run(tmp_path)
    shutil.copytree(kept.folder, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(RunError, match=r"is not done.*unskew run"):
        us.load_run(tmp_path / "run")


def test_names_of_a_folder_from_elsewhere_do_not_reach_the_terminal_raw(kept: us.History, tmp_path: Path) -> None:
    shutil.copytree(kept.folder, tmp_path / "run")
    for name in ("run.json", "summary.json"):
        file = tmp_path / "run" / name
        file.write_text(file.read_text().replace('"FedAvg"', r'"\u001b[31mFedAvg"'))
    named = [{**row, "method": f"\x1b[31m{row['method']}"} for row in rows(kept.folder, "metrics")]
    rewrite(tmp_path / "run", metrics=named, info=())
    history = us.load_run(tmp_path / "run")
    assert "\x1b" not in f"{history}{history!r}"
    assert r"\x1b[31mFedAvg" in str(history)


def test_values_and_curves_are_of_all_seeds_or_of_one(history: us.History) -> None:
    for row in history.summary["rows"]:
        of_each = [history.value(row["method"], row["metric"], seed=seed) for seed in (0, 1)]
        assert of_each == pytest.approx(row["seeds"])
    curves = [history.curve("FedAvg", seed=seed) for seed in (0, 1)]
    assert [curve[-1][1] for curve in curves] == [history.value("FedAvg", seed=seed) for seed in (0, 1)]
    assert curves[0] != curves[1]
    for of in (history.value, history.curve):
        with pytest.raises(KeyError, match="no seed 7 in this run; it has 0, 1"):
            of("FedAvg", seed=7)


def test_a_metric_is_asked_for_under_one_name(history: us.History) -> None:
    asked: dict[str, Any] = {"method": "FedAvg", "metric": "personal.accuracy.mean"}
    assert history.curve(**asked)[-1][1] == pytest.approx(history.value(**asked))
    assert history.client_values(method="FedAvg", metric="personal.loss").keys() == {0, 1, 2}
    assert list(signature(us.load).parameters)[:3] == ["source", "data_dir", "data_options"]
