"""Trackers: copy a run's numbers to TensorBoard, MLflow or Weights & Biases, if the experiment asks for it.

    track = ["tensorboard"]            in the experiment

A tracker has a run for each method and seed, called METHOD/SEED, with all its settings.  Metrics that are not of a
single client become scalars with the round as step.  TensorBoard writes into the run's folder, MLflow to
MLFLOW_TRACKING_URI or its local store, Weights & Biases into the run's folder unless WANDB_MODE is set.

A tracker that fails during a run is dropped with a note.  After a resume the rest of an interrupted cell is, in MLflow
and Weights & Biases, a second run of the same name.
"""

import importlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote

from unskew import schema
from unskew.errors import ConfigError, RunError
from unskew.experiment.config import TRACKERS, resolved
from unskew.run.cell import Cell, LiveRun, Observer
from unskew.run.progress import importable


class Tracker(Protocol):
    """Takes the numbers of one method under one seed.

    It is made from a cell, whose `round` is the last one logged, and its settings.  The class attribute `requires`
    names a package that must be installed.
    """

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Log the numbers of a round."""
        ...

    def close(self, finished: bool) -> None:
        """End the run; `finished` is false if training was stopped."""
        ...


def check(names: Sequence[str]) -> None:
    """Check that these trackers are installed.

    Raises:
        ConfigError: If one is not installed, with the line that installs it.
    """
    for name in names:
        requires = getattr(TRACKERS.resolve(name), "requires", None)
        if requires is not None and not importable(requires):
            raise ConfigError(f"track: {name} is not installed; pip install {requires}, or leave it out")


class Tracked(Observer):
    """Passes new numbers on to the trackers."""

    def __init__(self, run: LiveRun) -> None:
        self.run, self.left = run, list(run.experiment.track)
        self.seen = run.record.count("metrics")  # a resumed run has already passed them on
        self.cell: Cell | None = None
        self.open: dict[str, Tracker] = {}

    def start(self, cell: Cell) -> None:
        """End the run of the last cell, and open one for this.

        Raises:
            ConfigError: If a tracker does not have a setting.
            RunError: If one cannot be opened for the first cell.
        """
        self.close()
        for name in tuple(self.left):
            target, given = TRACKERS.resolve(name), cell.experiment.track_options.get(name, {})
            options = schema.checked(target, given, f"track_options.{name}", skip=("cell",), owner=name)
            try:
                self.open[name] = target(cell, **options)
            except Exception as error:  # a stranger's code, which raises what it likes
                if self.cell is not None:
                    self.drop(name, error)
                    continue
                way = f"nothing has been trained; fix this and continue with: unskew run {self.run.folder}"
                raise RunError(f"the tracker {name} could not be started: {_why(error)}; {way}") from error
        self.cell = cell

    def ended_round(self, cell: Cell) -> None:
        """Pass on the numbers of new rounds."""
        rounds: dict[int, dict[str, float]] = {}
        for row in cell.recorded("metrics", "id > ? AND client IS NULL", self.seen):
            rounds.setdefault(row["round"], {})[row["name"]] = row["value"]
        self.seen = self.run.record.count("metrics")
        for t, values in rounds.items():
            self.call("log", t, values)

    def close(self) -> None:
        """End the runs of the last cell."""
        if self.cell is not None:
            self.ended_round(self.cell)
            self.call("close", self.run.position.cell > self.cell.index)
        self.open = {}

    def call(self, part: str, *arguments: Any) -> None:
        """Call a method of each tracker; one that fails is dropped."""
        for name, tracker in list(self.open.items()):
            try:
                getattr(tracker, part)(*arguments)
            except Exception as error:  # a stranger's code; hours of training must not end with it
                self.drop(name, error)

    def drop(self, name: str, error: Exception) -> None:
        """Stop using a tracker."""
        self.left.remove(name)
        self.open.pop(name, None)
        self.run.callback.note(f"the tracker {name} failed and is left out from here: {_why(error)}")


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")


def settings_of(cell: Cell) -> dict[str, Any]:
    """Every setting of a cell under its dotted path; those of its method begin with `method`."""
    table = resolved(cell.experiment)
    method = next(m for m in table.pop("methods") if m["label"] == cell.method.label)
    return {**_flat(table, ""), **_flat(method, "method"), "seed": cell.seed}


def _flat(value: Mapping[str, Any], path: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, held in value.items():
        place = f"{path}.{key}" if path else key
        flat.update(_flat(held, place) if isinstance(held, Mapping) else {place: held})
    return flat


# ---------------------------------------------------------------- the trackers
class TensorBoard:
    """Writes event files into the folder `tensorboard` of the run: `tensorboard --logdir runs`."""

    requires = "tensorboard"

    def __init__(self, cell: Cell) -> None:
        place = cell.run.folder / "tensorboard" / quote(cell.method.label, safe=" ()=,+") / str(cell.seed)
        # Rounds after the last checkpoint come again when a run is resumed: the earlier ones are to be forgotten.
        again = {"purge_step": cell.round + 1 if cell.round else 0} if place.exists() else {}
        self.writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(log_dir=str(place), **again)
        self.writer.add_text("settings", "".join(f"    {key} = {value}\n" for key, value in settings_of(cell).items()))

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Write scalars; `global.accuracy` becomes `global/accuracy`, so that TensorBoard groups it."""
        for name, value in values.items():
            self.writer.add_scalar(name.replace(".", "/", 1), value, global_step=round)
        self.writer.flush()

    def close(self, finished: bool) -> None:
        """Close the file."""
        self.writer.close()


class MLflow:
    """A run for each method and seed, in the experiment of that name."""

    requires = "mlflow"

    def __init__(self, cell: Cell) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when mlflow is imported
        self.mlflow = importlib.import_module("mlflow")
        self.client = self.mlflow.MlflowClient()
        known = self.client.get_experiment_by_name(cell.experiment.name)
        number = known.experiment_id if known else self.client.create_experiment(cell.experiment.name)
        tags = {"unskew.folder": str(cell.run.folder.absolute())}
        self.run = self.client.create_run(number, run_name=cell.name, tags=tags).info.run_id
        param = self.mlflow.entities.Param
        self.client.log_batch(self.run, params=[param(key, str(v)[:500]) for key, v in settings_of(cell).items()])

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Log a round in one request."""
        metric, now = self.mlflow.entities.Metric, int(1000 * time.time())
        self.client.log_batch(self.run, metrics=[metric(name, v, now, round) for name, v in values.items()])

    def close(self, finished: bool) -> None:
        """End the run."""
        self.client.set_terminated(self.run, "FINISHED" if finished else "KILLED")


class Wandb:
    """A run for each method and seed, all in one group; offline unless WANDB_MODE says otherwise."""

    requires = "wandb"

    def __init__(self, cell: Cell) -> None:
        wandb = importlib.import_module("wandb")
        self.run = wandb.init(
            project="unskew",
            group=cell.experiment.name,
            name=cell.name,
            config=settings_of(cell),
            dir=str(cell.run.folder),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(silent=True, console="off"),  # stdout is for results only
        )

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Log a round as one entry."""
        self.run.log(dict(values), step=round)

    def close(self, finished: bool) -> None:
        """End the run."""
        self.run.finish(exit_code=0 if finished else 1)
