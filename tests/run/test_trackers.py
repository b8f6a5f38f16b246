"""Trackers: what reaches them, what is refused, and that a run does not end with them.

TensorBoard is tried for real where it is installed; MLflow and Weights & Biases are made up from the part of their
interface that is used.
"""

import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from unskew.errors import ConfigError
from unskew.experiment import config
from unskew.experiment.config import Experiment
from unskew.record.logs import rows
from unskew.run import loop, trackers
from unskew.run.cell import Cell, Observer
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
    """A tracker that remembers: each cell, what it was told, and whether it finished."""

    told: list[tuple[str, int, int, dict[str, float]]] = field(default_factory=list)
    closed: list[tuple[str, bool]] = field(default_factory=list)

    def __call__(self, cell: Any) -> Any:
        return SimpleNamespace(
            log=lambda t, values: self.told.append((cell.method.label, cell.seed, t, dict(values))),
            close=lambda finished: self.closed.append((cell.name, finished)),
        )


class Notes(Observer):
    """A watcher that remembers the notes, and may interrupt a run."""

    def __init__(self, stop_at: int = 0) -> None:
        self.notes: list[str] = []
        self.ticks, self.stop_at = 0, stop_at

    def ended_round(self, cell: Cell) -> None:
        self.ticks += 1
        if self.ticks == self.stop_at:
            raise Interrupted("enough")

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """In TensorBoard's place."""
    made = Recorder()
    monkeypatch.setattr(trackers, "TensorBoard", lambda cell: made(cell))
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
    assert recorder.closed == [(f"{m}/{s}", True) for s in (3, 4) for m in ("fedavg", "a/b")]


def test_a_resumed_run_tells_only_what_is_new(tiny: Make, tmp_path: Path, recorder: Recorder) -> None:
    experiment = tracked(tiny, "runtime.checkpoint_every=1", "rounds=3")
    with pytest.raises(Interrupted):
        loop.start(experiment, tmp_path / "run", Notes(stop_at=2))
    assert recorder.closed == [("fedavg/0", False)]
    before = len(recorder.told)
    loop.resume(tmp_path / "run")
    again = [(m, t) for m, _, t, _ in recorder.told[before:]]
    assert again[0] in (("fedavg", 2), ("fedavg", 3))
    assert again[-1] == ("a/b", 3)
    assert ("fedavg", 0) not in again
    assert recorder.closed[1:] == [("fedavg/0", True), ("a/b/0", True)]


# ---------------------------------------------------------------- what goes wrong
@pytest.mark.parametrize("name", config.TRACKERS.ours)
def test_a_tracker_that_is_not_installed_is_refused_before_the_run(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"{name} is not installed; pip install {name}, or leave it out"):
        loop.start(tracked(tiny, name=name), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    failed: list[int] = []

    def log(t: int, values: Any) -> None:
        failed.append(t)
        raise ConnectionError("gone")

    notes = Notes()
    monkeypatch.setattr(trackers, "Wandb", lambda cell: SimpleNamespace(log=log))
    loop.start(replace(tracked(tiny), track=("wandb", "tensorboard")), tmp_path / "run", notes)
    assert notes.notes == ["the tracker wandb failed and is left out from here: ConnectionError: gone"]
    assert failed == [0]
    assert recorder.closed == [("fedavg/0", True), ("a/b/0", True)]


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
        assert "settings/text_summary" in found.Tags()["tensors"]


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
        }
        return SimpleNamespace(info=SimpleNamespace(run_id=made))

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        self.runs[run_id]["metrics"] += [(m.key, m.value, m.step) for m in metrics]
        self.runs[run_id]["params"].update({p.key: p.value for p in params})

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


def test_mlflow_has_a_run_for_each_cell(tiny: Make, tmp_path: Path, mlflow: type[Client]) -> None:
    outcome = loop.start(tracked(tiny, name="mlflow"), tmp_path / "run")
    cells = list(mlflow.runs.values())
    assert [(c["name"], c["of"], c["status"]) for c in cells] == [
        ("fedavg/0", "e0", "FINISHED"),
        ("a/b/0", "e0", "FINISHED"),
    ]
    assert cells[0]["tags"] == {"unskew.folder": str(tmp_path / "run")}
    accuracy = [(value, step) for name, value, step in cells[0]["metrics"] if name == "global.accuracy"]
    assert accuracy == [
        (r["value"], r["round"])
        for r in rows(outcome.folder, "metrics")
        if (r["method"], r["name"]) == ("fedavg", "global.accuracy")
    ]
    assert cells[1]["params"]["method.mu"] == "0.1"
    assert cells[1]["params"]["split.alpha"] == "0.5"
    assert "mu" not in cells[0]["params"]


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


def test_wandb_is_offline_and_has_a_run_for_each_cell(tiny: Make, tmp_path: Path, wandb: list[WandbRun]) -> None:
    loop.start(tracked(tiny, name="wandb"), tmp_path / "run")
    assert [r.settings["name"] for r in wandb] == ["fedavg/0", "a/b/0"]
    assert {r.settings["mode"] for r in wandb} == {"offline"}
    assert {r.settings["group"] for r in wandb} == {"tiny"}
    assert {r.settings["dir"] for r in wandb} == {str(tmp_path / "run")}
    assert [step for _, step in wandb[0].logged] == [0, 1, 2]
    assert "global.accuracy" in wandb[0].logged[0][0]
    assert wandb[1].settings["config"]["method.name"] == "fedprox"
    assert [r.code for r in wandb] == [0, 0]
