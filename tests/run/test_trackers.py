"""Trackers: what reaches them, what is refused, and that a run does not end with them.

TensorBoard is tried for real where it is installed; MLflow and Weights & Biases are made up from the part of their
interface that is used.
"""

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from unskew import api, history
from unskew.errors import ConfigError, RunError
from unskew.experiment import config
from unskew.experiment.config import Experiment
from unskew.record.logs import rows
from unskew.run import loop, trackers
from unskew.run.callbacks import NoCallback, Progress
from unskew.run.loop import Interrupted

Make = Callable[..., Experiment]
TWO = '[[methods]]\nname = "fedavg"\n[[methods]]\nname = "fedprox"\nlabel = "a/b"\n'


def module(name: str, **attributes: Any) -> ModuleType:
    made = ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None)
    made.__dict__.update(attributes)
    return made


@dataclass
class Recorder:
    """A tracker that remembers."""

    told: list[tuple[str, int, int, dict[str, float]]] = field(default_factory=list)
    closed: list[Any] = field(default_factory=list)

    def scalars(self, method: str, seed: int, round: int, values: Any) -> None:
        self.told.append((method, seed, round, dict(values)))

    def close(self, table: Any) -> None:
        self.closed.append(table)


class Notes(NoCallback):
    """A watcher that remembers the notes, and may interrupt a run."""

    def __init__(self, stop_at: int = 0) -> None:
        self.notes: list[str] = []
        self.ticks, self.stop_at = 0, stop_at

    def progress(self, progress: Progress) -> None:
        self.ticks += 1
        if self.ticks == self.stop_at:
            raise Interrupted("enough")

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """In TensorBoard's place."""
    made = Recorder()
    monkeypatch.setattr(trackers, "TensorBoard", lambda experiment, folder: made)
    return made


def tracked(tiny: Make, *overrides: str, methods: str = TWO, name: str = "tensorboard") -> Experiment:
    return replace(tiny("rounds=2", *overrides, methods=methods), track=(name,))


# ---------------------------------------------------------------- what reaches a tracker
def test_every_number_of_no_single_client_reaches_the_tracker_once(
    tiny: Make, tmp_path: Path, recorder: Recorder
) -> None:
    outcome = loop.start(tracked(tiny, "seeds=[3, 4]"), tmp_path / "run")
    written = [r for r in rows(outcome.folder, "metrics") if "client" not in r]
    told = [(m, s, t, name, value) for m, s, t, values in recorder.told for name, value in values.items()]
    assert told == [(r["method"], r["seed"], r["round"], r["name"], r["value"]) for r in written]
    assert list(dict.fromkeys((m, s) for m, s, _, _ in recorder.told)) == [
        ("fedavg", 3), ("a/b", 3), ("fedavg", 4), ("a/b", 4),
    ]  # fmt: skip
    assert recorder.closed == [outcome.summary["rows"]]


def test_rounds_arrive_while_the_run_goes_on(tiny: Make, tmp_path: Path, recorder: Recorder) -> None:
    seen: list[int] = []

    class Looking(NoCallback):
        def progress(self, progress: Progress) -> None:
            seen.append(recorder.told[-1][2])

    loop.start(tracked(tiny, methods=TWO), tmp_path / "run", Looking())
    assert seen == [1, 2, 1, 2]


def test_the_rounds_after_an_early_stop_are_not_lost(tiny: Make, tmp_path: Path, recorder: Recorder) -> None:
    """At 0.001 MB each method ends after round 1, of which eval_every = 2 leaves the evaluation to the end."""
    loop.start(tracked(tiny, "stop.megabytes=0.001", "eval_every=2"), tmp_path / "run")
    last = {(m, s): (t, values) for m, s, t, values in recorder.told if "global.accuracy" in values}
    assert [t for t, _ in last.values()] == [1, 1]


def test_a_resumed_run_tells_only_what_is_new(tiny: Make, tmp_path: Path, recorder: Recorder) -> None:
    experiment = tracked(tiny, "runtime.checkpoint_every=1", "rounds=3")
    with pytest.raises(Interrupted):
        loop.start(experiment, tmp_path / "run", Notes(stop_at=2))
    assert recorder.closed == [None], "an interrupted run has no table"
    before = len(recorder.told)
    loop.resume(tmp_path / "run")
    again = [(m, t) for m, _, t, _ in recorder.told[before:]]
    assert again[0] in (("fedavg", 2), ("fedavg", 3))
    assert again[-1] == ("a/b", 3)
    assert ("fedavg", 0) not in again
    assert recorder.closed[-1] is not None


def test_trackers_change_neither_the_numbers_nor_the_configuration_s_hash(
    tiny: Make, tmp_path: Path, recorder: Recorder
) -> None:
    with_it, without = tracked(tiny), replace(tracked(tiny), track=())
    assert config.fingerprint(with_it) == config.fingerprint(without)
    a, b = loop.start(with_it, tmp_path / "a"), loop.start(without, tmp_path / "b")
    assert a.summary["fingerprint"] == b.summary["fingerprint"]
    assert recorder.told


# ---------------------------------------------------------------- what goes wrong
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            '["tensorbord"]',
            r"unknown tracker 'tensorbord'; did you mean tensorboard\? \(there are: tensorboard, mlflow",
        ),
        ('["x"]', r"unknown tracker 'x' \(there are"),
        ('["mlflow", "mlflow"]', "must name a tracker once, got mlflow, mlflow"),
        ('"tensorboard"', 'track must be a list, got "tensorboard"'),
    ],
)
def test_an_unknown_tracker_is_refused_with_the_nearest_name(tiny: Make, given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny(f"track={given}")


@pytest.mark.parametrize("name", config.TRACKERS.ours)
def test_a_tracker_that_is_not_installed_is_refused_before_the_run(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ConfigError, match=rf"{name} is not installed; pip install {name} .*pip install 'unskew\[track\]'"
    ):
        loop.start(tracked(tiny, name=name), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_cannot_be_opened_stops_the_run_before_its_first_round(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(experiment: Any, folder: Any) -> Any:
        raise OSError("no server\nthere")

    monkeypatch.setattr(trackers, "MLflow", fail)
    with pytest.raises(
        RunError, match=r"mlflow could not be started: OSError: no server there; nothing has been trained"
    ):
        loop.start(tracked(tiny, name="mlflow"), tmp_path / "run")
    monkeypatch.setattr(trackers, "MLflow", lambda experiment, folder: Recorder())
    assert loop.resume(tmp_path / "run").summary["rows"]


def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    class Failing(Recorder):
        def scalars(self, method: str, seed: int, round: int, values: Any) -> None:
            super().scalars(method, seed, round, values)
            raise ConnectionError("gone")

    failing, notes = Failing(), Notes()
    monkeypatch.setattr(trackers, "Wandb", lambda experiment, folder: failing)
    outcome = loop.start(replace(tracked(tiny), track=("wandb", "tensorboard")), tmp_path / "run", notes)
    assert notes.notes == ["the tracker wandb failed and is left out from here: ConnectionError: gone"]
    assert len(failing.told) == 1
    assert failing.closed == []
    assert recorder.closed == [outcome.summary["rows"]]


def test_nothing_is_imported_unless_asked_for() -> None:
    code = (
        "import sys, unskew, unskew.run.loop, unskew.data.hub\n"
        "theirs = {'tensorboard', 'torch.utils.tensorboard', 'mlflow', 'wandb', 'pandas', 'datasets'}\n"
        "assert not theirs & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_name_of_the_table_is_a_tracker() -> None:
    assert all(config.TRACKERS.fits(config.TRACKERS.resolve(name)) for name in config.TRACKERS.ours)


# ---------------------------------------------------------------- TensorBoard
@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its own
def test_tensorboard_s_files_hold_the_numbers_of_every_cell(tiny: Make, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    outcome = loop.start(tracked(tiny), tmp_path / "run")
    written = list(rows(outcome.folder, "metrics"))
    for label, place in (("fedavg", "fedavg"), ("a/b", "a%2Fb")):
        found = EventAccumulator(str(tmp_path / "run" / "tensorboard" / place / "0"))
        found.Reload()
        mine = [r for r in written if r["method"] == label and "client" not in r]
        assert set(found.Tags()["scalars"]) == {r["name"].replace(".", "/", 1) for r in mine}
        shown = [(e.step, e.value) for e in found.Scalars("global/accuracy")]
        want = [(r["round"], r["value"]) for r in mine if r["name"] == "global.accuracy"]
        assert [step for step, _ in shown] == [t for t, _ in want] == [0, 1, 2]
        assert [value for _, value in shown] == pytest.approx([value for _, value in want])
    whole = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    whole.Reload()
    assert {"config/text_summary", "results/text_summary"} <= set(whole.Tags()["tensors"])


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its own
def test_tensorboard_shows_a_resumed_round_once(tiny: Make, tmp_path: Path) -> None:
    """Killed after round 2 with a checkpoint at round 1: round 2 is told twice and must be shown once."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = trackers.TensorBoard(tiny(), tmp_path)
    for t in (0, 1, 2):
        board.scalars("fedavg", 0, t, {"global.accuracy": 0.1 * t})
    board.close(None)
    board = trackers.TensorBoard(tiny(), tmp_path)
    for t in (2, 3):
        board.scalars("fedavg", 0, t, {"global.accuracy": 0.1 * t})
    board.close(None)
    found = EventAccumulator(str(tmp_path / "tensorboard" / "fedavg" / "0"))
    found.Reload()
    assert [e.step for e in found.Scalars("global/accuracy")] == [0, 1, 2, 3]


# ---------------------------------------------------------------- MLflow
class Client:
    """MlflowClient over dictionaries."""

    experiments: dict[str, str]
    runs: dict[str, dict[str, Any]]

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id=self.experiments[name]) if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        self.experiments[name] = f"e{len(self.experiments)}"
        return self.experiments[name]

    def create_run(self, experiment_id: str, run_name: str, tags: dict[str, str]) -> Any:
        made = f"r{len(self.runs)}"
        self.runs[made] = {
            "name": run_name,
            "tags": tags,
            "of": experiment_id,
            "metrics": [],
            "params": {},
            "files": {},
        }
        return SimpleNamespace(info=SimpleNamespace(run_id=made))

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        self.runs[run_id]["metrics"] += [(m.key, m.value, m.step) for m in metrics]
        self.runs[run_id]["params"].update({p.key: p.value for p in params})

    def log_text(self, run_id: str, text: str, artifact_file: str) -> None:
        self.runs[run_id]["files"][artifact_file] = text

    def set_terminated(self, run_id: str, status: str) -> None:
        assert "status" not in self.runs[run_id], "ended twice"
        self.runs[run_id]["status"] = status


@dataclass(frozen=True)
class Metric:
    key: str
    value: float
    timestamp: int
    step: int


@dataclass(frozen=True)
class Param:
    key: str
    value: str


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    made = type("MlflowClient", (Client,), {"experiments": {}, "runs": {}})
    entities = SimpleNamespace(Metric=Metric, Param=Param)
    monkeypatch.setitem(sys.modules, "mlflow", module("mlflow", MlflowClient=made, entities=entities))
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "")
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY")
    return made


def test_mlflow_has_a_run_for_each_cell_under_one_for_the_experiment(
    tiny: Make, tmp_path: Path, mlflow: type[Client]
) -> None:
    outcome = loop.start(tracked(tiny, name="mlflow"), tmp_path / "run")
    whole, *cells = mlflow.runs.values()
    assert [c["name"] for c in cells] == ["fedavg/0", "a/b/0"]
    assert all(c["tags"] == {"mlflow.parentRunId": "r0"} for c in cells)
    assert [c["status"] for c in (whole, *cells)] == ["FINISHED"] * 3
    accuracy = [(value, step) for name, value, step in cells[0]["metrics"] if name == "global.accuracy"]
    assert accuracy == [
        (r["value"], r["round"])
        for r in rows(outcome.folder, "metrics")
        if (r["method"], r["name"]) == ("fedavg", "global.accuracy")
    ]
    assert cells[1]["params"]["method.mu"] == "0.1"
    assert cells[1]["params"]["split.alpha"] == "0.5"
    assert "mu" not in cells[0]["params"]
    assert whole["files"]["config.toml"] == (tmp_path / "run" / "config.toml").read_text()
    assert json.loads(whole["files"]["results.json"]) == outcome.summary["rows"]
    assert "| fedavg |" in whole["files"]["results.md"]


def test_mlflow_s_telemetry_is_off_unless_the_environment_says_otherwise(
    tiny: Make, tmp_path: Path, mlflow: type[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    trackers.MLflow(tiny(), tmp_path)
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "false")
    trackers.MLflow(tiny(), tmp_path)
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "false"
    assert len(mlflow.experiments) == 1, "an experiment of that name is used again"


def test_an_interrupted_run_is_killed_in_mlflow(tiny: Make, tmp_path: Path, mlflow: type[Client]) -> None:
    with pytest.raises(Interrupted):
        loop.start(tracked(tiny, name="mlflow"), tmp_path / "run", Notes(stop_at=3))
    assert {r["name"]: r["status"] for r in mlflow.runs.values()} == {
        "tiny": "KILLED", "fedavg/0": "FINISHED", "a/b/0": "KILLED",
    }  # fmt: skip


# ---------------------------------------------------------------- Weights & Biases
@dataclass
class WandbRun:
    settings: dict[str, Any]
    logged: list[tuple[dict[str, Any], int | None]] = field(default_factory=list)
    code: int | None = None

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        assert self.code is None, "finished already"
        self.logged.append((values, step))

    def finish(self, exit_code: int) -> None:
        self.code = exit_code


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> list[WandbRun]:
    runs: list[WandbRun] = []

    def init(**settings: Any) -> WandbRun:
        assert all(r.code is not None for r in runs), "one run at a time"
        runs.append(WandbRun(settings))
        return runs[-1]

    made = module("wandb", init=init, Settings=SimpleNamespace, Table=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "wandb", made)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return runs


def test_wandb_is_offline_and_has_a_run_for_each_cell_and_one_for_the_table(
    tiny: Make, tmp_path: Path, wandb: list[WandbRun]
) -> None:
    outcome = loop.start(tracked(tiny, name="wandb"), tmp_path / "run")
    assert [r.settings["name"] for r in wandb] == ["fedavg/0", "a/b/0", "results"]
    assert {r.settings["mode"] for r in wandb} == {"offline"}
    assert {r.settings["group"] for r in wandb} == {"tiny"}
    assert {r.settings["dir"] for r in wandb} == {str(tmp_path / "run")}
    assert [step for _, step in wandb[0].logged] == [0, 1, 2]
    assert "global.accuracy" in wandb[0].logged[0][0]
    assert wandb[1].settings["config"]["method.name"] == "fedprox"
    ((shown, _),) = wandb[2].logged
    assert len(shown["results"].data) == len(outcome.summary["rows"])
    assert [r.code for r in wandb] == [0, 0, 0]


def test_wandb_is_online_only_if_the_environment_says_so(
    tiny: Make, tmp_path: Path, wandb: list[WandbRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    trackers.Wandb(tiny(), tmp_path).scalars("fedavg", 0, 0, {})
    monkeypatch.setenv("WANDB_MODE", "online")
    wandb[-1].finish(0)
    trackers.Wandb(tiny(), tmp_path).scalars("fedavg", 0, 0, {})
    assert [r.settings["mode"] for r in wandb] == ["offline", "online"]


# ---------------------------------------------------------------- the history
def test_simulate_tracks_what_is_kept_and_refuses_what_is_not(tmp_path: Path, recorder: Recorder) -> None:
    with pytest.raises(ConfigError, match=r"track needs the run's folder.*add out=FOLDER"):
        api.simulate("fedavg", rounds=1, track=("tensorboard",))
    api.simulate("fedavg", rounds=1, track=("tensorboard",), out=tmp_path / "run")
    assert {t for _, _, t, _ in recorder.told} == {0, 1}


MADE = history.History(
    rows=[
        {"method": "a", "seed": 0, "round": 0, "name": "global.accuracy", "value": 0.5, "weight": 9.0},
        {"method": "a", "seed": 0, "round": 1, "name": "personal.accuracy", "value": 1.0, "weight": 3.0, "client": 2},
    ],
    summary={
        "rows": [
            {"method": "<a>", "metric": "global.accuracy", "mean": 0.5, "std": 0.01, "seeds": [0.49, 0.51]},
            {"method": "<a>", "metric": "bytes.total", "mean": 2.5e6, "std": 0.0, "seeds": [2.5e6, 2.5e6]},
        ]
    },
    path=None,
)


def test_the_history_goes_into_a_frame_with_a_row_for_each_number() -> None:
    import pandas

    frame = MADE.to_frame()
    assert list(frame.columns) == ["method", "seed", "round", "name", "value", "weight", "client", "client_name"]
    assert len(frame) == 2
    assert pandas.isna(frame["client"][0])
    assert frame["client"][1] == 2
    assert frame[frame["name"] == "global.accuracy"]["value"].tolist() == [0.5]


def test_without_pandas_a_frame_is_of_polars_and_without_either_the_pip_line_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert MADE.to_frame().shape == (2, 8)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ConfigError, match=r"needs pandas or Polars; pip install pandas, or use history.rows"):
        MADE.to_frame()


def test_what_pytorch_is_set_to_is_put_back_only_if_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.use_deterministic_algorithms imports PyTorch's compiler, more than a second, even if nothing changes."""
    asked: list[tuple[bool, bool]] = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda mode, warn_only: asked.append((mode, warn_only)))
    with api.torch_left_alone():
        pass
    assert asked == []
    with api.torch_left_alone():
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert asked == [(False, False)]


def test_the_command_adds_a_tracker_and_refuses_an_unknown_one(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():  # Typer 0.20 imports what click 8.5 calls deprecated; not ours to mend
        warnings.filterwarnings("ignore", message="'click", category=DeprecationWarning)
        from unskew.cli import main

        for tracker, code in (("tensorboard", 0), ("tensorbord", 2)):
            words = [
                "run",
                "--set",
                f'track=["{tracker}"]',
                "--set",
                "rounds=1",
                "--seed",
                "0",
                "--set",
                "runtime.executor='sequential'",
                "--no-report",
            ]
            monkeypatch.setattr(sys, "argv", ["unskew", *words, "--out", f"run-{code}", "--quiet"])
            with pytest.raises(SystemExit) as ended:
                main()
            assert (ended.value.code or 0) == code
    assert "did you mean tensorboard?" in capsys.readouterr().err
    assert {seed for _, seed, _, _ in recorder.told} == {0}
    assert recorder.closed[0] is not None
    assert not Path("run-2").exists()
