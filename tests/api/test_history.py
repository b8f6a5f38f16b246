"""A history: a table, a figure, a frame, a report."""

import gc
import html
import re
import shutil
import sys
from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from records import rewrite
from rich.console import Console

import unskew as us
from unskew.errors import ConfigError, RunError
from unskew.record.logs import rows
from unskew.record.reader import read
from unskew.report import verdict, worth
from unskew.run.cell import Cell, Evaluation, Observer
from unskew.run.metrics import Metric

FAST = us.SgdConfig(lr=0.1, local_epochs=1, batch_size=64)
TINY: dict[str, Any] = {"split": us.IID(num_clients=3), "rounds": 2, "model": "logistic", "progress": False}


@pytest.fixture(scope="module")
def history() -> us.History:
    return us.simulate({"FedAvg": us.FedAvg(FAST), "<alone>": us.Independent(FAST)}, seeds=(0, 1), **TINY)


def test_its_text_is_the_table_and_the_verdict(history: us.History) -> None:
    assert repr(history) == str(history)
    lines = str(history).splitlines()
    assert [line.split()[0] for line in lines[1:6] if line.strip("─ ")][::2] == ["method", "FedAvg"]
    assert verdict.verdict(read(history.folder)) in " ".join(str(history).split())
    assert max(map(len, lines)) <= 110


@pytest.mark.usefixtures("drawn")
def test_a_notebook_shows_the_first_screen_without_a_script(history: us.History) -> None:
    page = history._repr_html_()
    assert "<script" not in page
    assert "&lt;alone&gt;" in page
    assert page.count("<svg") == 2
    assert "var(--" not in page
    assert html.escape(verdict.verdict(read(history.folder)), quote=False) in html.unescape(page)


def test_plots_are_altair_charts(history: us.History) -> None:
    curves = history.plot.curves().to_dict()
    assert curves["layer"][0]["encoding"]["x"]["title"] == "round"
    values = [row for rows in curves["datasets"].values() for row in rows] if "datasets" in curves else []
    data = values or [row for layer in curves["layer"] for row in layer.get("data", {}).get("values", [])]
    drawn = {
        row["x"]: row["mean"]
        for row in data or curves["data"]["values"]
        if row.get("method") == "FedAvg" and "mean" in row
    }
    assert drawn == {t: pytest.approx(100 * value, rel=1e-4) for t, value in history.curve("FedAvg")}
    assert history.plot.curves(by="traffic").to_dict()["layer"][0]["encoding"]["x"]["title"] == "sent so far, MB"
    for chart in (history.plot.curves("personal.accuracy.mean"), history.plot.differences(), history.plot.clients()):
        assert chart.to_dict()["layer"]
    with pytest.raises(KeyError, match=r"no method has global\.acuracy; did you mean global\.accuracy"):
        history.plot.curves("global.acuracy")
    with pytest.raises(KeyError, match=r"no method has xx; there are global\.accuracy, global\.loss, personal"):
        history.plot.curves("xx")
    with pytest.raises(KeyError, match="no method 'x' has gains"):
        history.plot.clients("x")
    with pytest.raises(RunError, match="no method of this run forms groups"):
        history.plot.groups()


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
def test_a_log_gets_a_few_lines_and_no_one_who_asks_for_silence(capsys: pytest.CaptureFixture[str]) -> None:
    us.simulate(us.FedAvg(FAST), **TINY)
    assert capsys.readouterr() == ("", "")
    us.simulate(us.FedAvg(FAST), **{**TINY, "progress": True})
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(r"^simulation: digits, iid, 3 clients, 3 per round, 2 rounds, seeds 0$", err, re.M)
    assert re.search(r"^fedavg \(seed 0\)  round 2/2  accuracy", err, re.M)
    assert len(err.splitlines()) < 8


def test_a_function_hears_every_number_of_every_round() -> None:
    heard: dict[int, dict[str, float]] = {}

    def hears(cell: Cell) -> None:
        heard[cell.round] = cell.metrics

    history = us.simulate({"FedAvg": us.FedAvg(FAST)}, **TINY, callback=hears)
    assert list(heard) == [1, 2]
    for name in ("global.accuracy", "personal.accuracy.mean", "train.loss", "bytes.up"):
        assert [metrics[name] for metrics in heard.values()] == [v for t, v in history.curve("FedAvg", name) if t], name


def test_ones_own_callback_hears_of_every_round_beside_the_display(capsys: pytest.CaptureFixture[str]) -> None:
    class Heard(Observer):
        def __init__(self) -> None:
            self.rounds: list[int] = []

        def ended_round(self, cell: Cell) -> None:
            self.rounds.append(cell.round)

    heard = Heard()
    us.simulate(us.FedAvg(FAST), **{**TINY, "progress": True}, callback=heard)
    assert heard.rounds == [1, 2]
    assert "round 2/2" in capsys.readouterr().err


def test_ones_own_observer_adds_a_number_to_the_record() -> None:
    class Norm(Observer):
        def evaluated(self, cell: Cell, seen: Evaluation) -> list[Metric]:
            model = cell.sim.method.serve(seen.state, None) or {}
            return [Metric("global.norm", float(sum(t.norm().item() for t in model.values())))]

    history = us.simulate({"FedAvg": us.FedAvg(FAST)}, **TINY, callback=Norm())
    assert [t for t, _ in history.curve("FedAvg", "global.norm")] == [0, 1, 2]


def test_a_notebook_without_widgets_gets_lines_and_no_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich draws its bar into a widget of ipywidgets and warns at every refresh where there is none."""
    monkeypatch.setattr("unskew.run.progress.Console", partial(Console, force_jupyter=True))
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    us.simulate(us.FedAvg(FAST), **{**TINY, "progress": True})
    assert "round 2/2" in capsys.readouterr().err


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


@pytest.mark.parametrize("table", ["metrics", "transfers", "work"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda rows: [*rows[:4], {**rows[4], "round": rows[4]["round"] + 1}, *rows[5:]],
        lambda rows: [*rows[:4], *rows[5:]],
        lambda rows: [*rows[:4], *rows[:3:-1]],
        lambda rows: [],
        lambda rows: [*rows, rows[-1]],
    ],
    ids=["changed", "removed", "moved", "empty", "added"],
)
def test_a_record_of_a_finished_run_that_was_changed_is_refused(
    kept: us.History, tmp_path: Path, table: str, damage: Callable[[list[Any]], list[Any]]
) -> None:
    folder = shutil.copytree(kept.folder, tmp_path / "run")
    summary = (folder / "summary.json").read_text()
    rewrite(folder, **{table: damage(list(rows(folder, table)))})
    (folder / "summary.json").write_text(summary)
    for reads in (read, us.load_run):
        with pytest.raises(RunError, match=r"run\.sqlite cannot be read: its rows are not those that were written"):
            reads(folder)


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


def one_class_found(**settings: Any) -> us.History:
    """A run whose model finds nobody sick: one row in six is, and no column says which."""
    x = torch.zeros(240, 2)
    return us.simulate(
        us.FedAvg(FAST), data=(x, ["sick" if i % 6 == 0 else "healthy" for i in range(240)]), **(TINY | settings)
    )


def test_a_note_on_a_number_stands_below_the_table(tmp_path: Path) -> None:
    note = "fedavg: the global model is right on test examples of class healthy only"
    history = one_class_found(out=tmp_path / "r", progress=True)
    for of in (history, us.load_run(tmp_path / "r")):
        (said,) = of.notes
        assert said.startswith(note)
        assert f"- {said}" in " ".join(str(of).split())


def test_a_note_is_said_once_without_progress(capsys: pytest.CaptureFixture[str]) -> None:
    """Warnings are errors here: notes on data, settings and methods stand below the table, and nowhere else."""
    doubled = np.concatenate([np.random.default_rng(0).normal(size=(30, 2))] * 2), np.arange(60) % 30 % 2
    weights = us.TaskConfig(class_weights=(5.0, 9.0))
    history = us.simulate(
        us.FedAvg(FAST), data=doubled, task=weights, split=us.IID(num_clients=2), rounds=1, progress=False
    )
    print(history)
    said = " ".join("".join(capsys.readouterr()).split())
    assert len(history.notes) >= 2
    assert all(said.count(note) == 1 for note in history.notes)


def test_notes_are_shown_before_the_first_round(capsys: pytest.CaptureFixture[str]) -> None:
    class Trained(Exception):
        pass

    class Raises(Observer):
        def ended_round(self, cell: Cell) -> None:
            raise Trained

    x = torch.rand(60, 2)
    network = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Sigmoid())
    tiny: dict[str, Any] = TINY | {"model": network, "task": "binary", "callback": Raises(), "progress": True}
    with pytest.raises(Trained):
        us.simulate(us.FedAvg(FAST), data=(x, torch.arange(60) % 2), **tiny)
    assert "the network ends in sigmoid" in capsys.readouterr().err


def test_whom_federation_serves_is_had_as_rows_and_said_below_the_table(history: us.History) -> None:
    rows = history.gains()
    (of,) = worth.worths(read(history.folder))
    of_seeds = [(client, seed) for seed in (0, 1) for client in history.client_values("FedAvg", seed=seed)]
    assert [(row["method"], row["client"], row["seed"]) for row in rows] == [
        *[("FedAvg", None, None)] * 2, *(("FedAvg", *client) for client in of_seeds)
    ]  # fmt: skip
    mean, _per_row, first = rows[:3]
    assert (mean["gain"], mean["low"], mean["high"]) == (of.whole.mean, of.whole.low, of.whole.high)
    assert (first["gain"], first["verdict"], first["why"]) == (of.clients[0].gain.mean, of.clients[0].gain.verdict, "")


def test_an_answer_is_had_without_reading_what_was_sent(history: us.History, tmp_path: Path) -> None:
    folder = shutil.copytree(history.folder, tmp_path / "run")
    rewrite(folder, transfers=(), work=())
    of_copy = us.load_run(folder)
    assert str(of_copy) == str(history)
    assert of_copy.gains() == history.gains()


def test_a_run_without_local_training_says_what_gains_need(kept: us.History) -> None:
    with pytest.raises(RunError, match=r"no method trains every client alone; .*bounds=True"):
        kept.gains()


def test_a_metric_of_ones_own_that_is_never_a_number_is_named_once() -> None:
    def never(outputs: Any, targets: Any) -> float:
        return float("nan")

    said = "never was not a number (NaN) in any round, so no table has it."
    history = us.simulate([us.FedAvg(FAST), us.Independent(FAST)], evaluate=["global", "personal", never], **TINY)
    assert " ".join(str(history).split()).count(said) == 1
    for ask in (partial(history.value, "fedavg"), partial(history.curve, "fedavg"), history.plot.curves):
        with pytest.raises(KeyError, match=r"no .*global\.never.*: it was measured, and was not a number \(NaN\)"):
            ask("global.never")
    with pytest.raises(KeyError, match=r"no global\.never of independent; there are personal\.accuracy"):
        history.value("independent", "global.never")  # it has no global model: there was nothing to measure


@pytest.mark.parametrize("preprocess", [True, False])
def test_the_table_says_where_all_seeds_have_the_same_test_rows(preprocess: bool) -> None:
    """With preprocessing each site's test rows are drawn once; without it, each seed draws them."""
    pandas, rng = pytest.importorskip("pandas"), np.random.default_rng(0)
    data = pandas.DataFrame(rng.normal(size=(60, 2)), columns=["a", "b"])
    data = data.assign(y=np.arange(60) % 2, site=np.repeat(["u", "v"], 30))
    history = us.simulate(
        us.FedAvg(), data=data, target="y", client="site", model="logistic", preprocess=preprocess, val_fraction=0.2,
        rounds=1, seeds=(0, 1), progress=False,
    )  # fmt: skip
    same = np.array_equal(history.rows_of("test", 0)["u"], history.rows_of("test", 1)["u"])
    assert same is preprocess
    assert ("All seeds share the same test rows" in history._repr_html_()) is same
