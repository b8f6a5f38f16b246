"""Trackers: copy a run's numbers to TensorBoard, MLflow or Weights & Biases, if the experiment asks for it.

    track = ["tensorboard"]            in the experiment

A tracker reads what the run has written, round by round: each metric that is not of a single client becomes a
scalar with the round as its step, under a run called METHOD/SEED; beside it the configuration and, at the end, the
table of results.  Nothing is imported unless asked for, and nothing goes over a network unless the user's
environment says so: TensorBoard writes into the run's folder, MLflow to MLFLOW_TRACKING_URI or else its own
local store, Weights & Biases into the run's folder unless WANDB_MODE says otherwise.

A tracker that fails during a run is dropped with a note; the run's own folder has every number.
After a resume the rest of an interrupted cell is, in MLflow and Weights & Biases, a second run of the same name.
"""

import importlib
import json
import os
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from unskew import schema
from unskew.errors import ConfigError, RunError
from unskew.experiment import config
from unskew.experiment.config import TRACKERS, Experiment
from unskew.record.database import rows
from unskew.record.logs import SummaryCard, document
from unskew.run.cell import Cell, LiveRun
from unskew.run.observers import Observer
from unskew.run.progress import importable

Scalars = Mapping[str, float]
Table = Sequence[Mapping[str, Any]]


class Tracker(Protocol):
    """Takes the numbers of one run.

    It is made by `(experiment, folder)` and its settings.  A class attribute `requires` names a package that has to be
    installed for it.
    """

    def scalars(self, method: str, seed: int, round: int, values: Scalars) -> None:
        """Log the numbers of one round of a cell; cells come one after the other."""
        ...

    def close(self, table: Table | None) -> None:
        """Log the table of results (the rows of summary.json; None if the run did not finish) and close."""
        ...


# ---------------------------------------------------------------- from the run's record to the trackers
def check(names: Sequence[str]) -> None:
    """Check that these trackers are installed.

    Raises:
        ConfigError: If one is not installed, with the line that installs it.
    """
    for name in names:
        requires = getattr(TRACKERS.resolve(name), "requires", None)
        if requires is not None and not importable(requires):
            raise ConfigError(f"track: {name} is not installed; pip install {requires}, or leave it out")


@contextmanager
def tracking(run: LiveRun) -> Iterator[list[Observer]]:
    """Yield an observer for the experiment's trackers, if it has any; they are closed at the end.

    Raises:
        ConfigError: As in `check`, or if a setting is not one of a tracker's own.
        RunError: If one cannot be opened: the user wants to know now, not after the last round.
    """
    if not run.experiment.track:
        yield []
        return
    tracked = _Tracked(run)
    try:
        tracked.open(run)
        yield [tracked]
    finally:
        tracked.close()


NEW = "id > ? AND client IS NULL"


class _Tracked(Observer):
    """Passes on the numbers that were recorded since its last look."""

    def __init__(self, run: LiveRun) -> None:
        self._folder, self._note, self._record = run.folder, run.callback.note, run.record
        self._seen = run.record.count("metrics")  # a resumed run has already passed them on
        self._trackers: dict[str, Tracker] = {}

    def open(self, run: LiveRun) -> None:
        """Open the trackers."""
        experiment = run.experiment
        check(experiment.track)
        for name in experiment.track:
            target, given = TRACKERS.resolve(name), experiment.track_options.get(name, {})
            skip = ("experiment", "folder")
            options = schema.checked(target, given, f"track_options.{name}", skip=skip, owner=name)
            try:
                self._trackers[name] = target(experiment, run.folder, **options)
            except Exception as error:  # a stranger's code, which raises what it likes
                raise RunError(
                    f"the tracker {name} could not be started: {_why(error)}; nothing has been trained; fix this and "
                    f"continue with: unskew run {self._folder}"
                ) from error

    def ended_round(self, cell: Cell) -> None:
        """Pass on the round."""
        self._pass_on(self._record.select("metrics", NEW, self._seen))
        self._seen = self._record.count("metrics")

    def close(self) -> None:
        """Pass on the remaining rows, and the table if there is one."""
        self._pass_on(rows(self._folder, "metrics", NEW, self._seen))
        summary = self._folder / "summary.json"
        table = document(summary, SummaryCard)["rows"] if summary.exists() else None
        self._call("close", table)

    def _pass_on(self, rows: Iterable[Mapping[str, Any]]) -> None:
        rounds: dict[tuple[str, int, int], dict[str, float]] = {}
        for row in rows:
            rounds.setdefault((row["method"], row["seed"], row["round"]), {})[row["name"]] = row["value"]
        for place, values in rounds.items():
            self._call("scalars", *place, values)

    def _call(self, method: str, *arguments: Any) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                getattr(tracker, method)(*arguments)
            except Exception as error:  # a stranger's code; hours of training must not end with it
                del self._trackers[name]
                self._note(f"the tracker {name} failed and is left out from here: {_why(error)}")


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")


# ---------------------------------------------------------------- the trackers
class TensorBoard:
    """Event files in the folder `tensorboard` of the run: `tensorboard --logdir runs`."""

    requires = "tensorboard"

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self._writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self._root, self._cell = folder / "tensorboard", ("", -1)
        self._open: Any = None
        self._whole = self._writer(log_dir=str(self._root))
        # Markdown shows indented text unchanged.
        self._whole.add_text("config", textwrap.indent(config.to_toml(experiment), "    "))
        self._whole.flush()

    def scalars(self, method: str, seed: int, round: int, values: Scalars) -> None:
        """Write to the cell's own file; `global.accuracy` becomes `global/accuracy`, so that TensorBoard groups it."""
        if (method, seed) != self._cell:
            self._end()
            place = self._root / quote(method, safe=" ()=,+") / str(seed)
            # Rounds after the last checkpoint come again when a run is resumed: the earlier ones are to be forgotten.
            again = {"purge_step": round} if place.exists() else {}
            self._cell, self._open = (method, seed), self._writer(log_dir=str(place), **again)
        for name, value in values.items():
            self._open.add_scalar(name.replace(".", "/", 1), value, global_step=round)
        self._open.flush()

    def close(self, table: Table | None) -> None:
        """Log the table as text."""
        self._end()
        if table is not None:
            self._whole.add_text("results", _markdown(table))
        self._whole.close()

    def _end(self) -> None:
        if self._open is not None:
            self._open.close()


class MLflow:
    """A run for the experiment with configuration and table, and under it one for each cell."""

    requires = "mlflow"

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when mlflow is imported
        self._mlflow = importlib.import_module("mlflow")
        self._client = self._mlflow.MlflowClient()
        self._settings, self._options = _settings(experiment)
        existing = self._client.get_experiment_by_name(experiment.name)
        self._experiment_id = existing.experiment_id if existing else self._client.create_experiment(experiment.name)
        self._whole = self._begin(experiment.name, {"unskew.folder": str(folder.absolute())})
        self._client.log_text(self._whole, config.to_toml(experiment), "config.toml")
        self._cell, self._open = ("", -1), ""

    def _begin(self, name: str, tags: Mapping[str, str]) -> str:
        run = self._client.create_run(self._experiment_id, run_name=name, tags=dict(tags))
        return str(run.info.run_id)

    def scalars(self, method: str, seed: int, round: int, values: Scalars) -> None:
        """Log a round in one request."""
        if (method, seed) != self._cell:
            self._end("FINISHED")
            self._cell, self._open = (
                (method, seed),
                self._begin(f"{method}/{seed}", {"mlflow.parentRunId": self._whole}),
            )
            settings = {**self._settings, **self._options[method], "seed": seed}
            param = self._mlflow.entities.Param
            params = [param(key, str(value)[:500]) for key, value in settings.items()]
            self._client.log_batch(self._open, params=params)
        metric, now = self._mlflow.entities.Metric, int(1000 * time.time())
        self._client.log_batch(self._open, metrics=[metric(name, v, now, round) for name, v in values.items()])

    def close(self, table: Table | None) -> None:
        """Store the table as results.json and results.md."""
        status = "KILLED" if table is None else "FINISHED"
        self._end(status)
        if table is not None:
            self._client.log_text(self._whole, json.dumps(list(table), indent=1), "results.json")
            self._client.log_text(self._whole, _markdown(table), "results.md")
        self._client.set_terminated(self._whole, status)

    def _end(self, status: str) -> None:
        if self._open:
            self._client.set_terminated(self._open, status)


class Wandb:
    """A run for each cell, all in one group, and one with the table; offline unless WANDB_MODE says otherwise."""

    requires = "wandb"

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self._wandb = importlib.import_module("wandb")
        self._folder, self._group = folder, experiment.name
        self._settings, self._options = _settings(experiment)
        self._cell: tuple[str, int] = ("", -1)
        self._open: Any = None

    def _begin(self, name: str, settings: Mapping[str, Any]) -> Any:
        return self._wandb.init(
            project="unskew",
            group=self._group,
            name=name,
            config=dict(settings),
            dir=str(self._folder),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=self._wandb.Settings(silent=True, console="off"),  # stdout is for results only
        )

    def scalars(self, method: str, seed: int, round: int, values: Scalars) -> None:
        """Log a round as one entry."""
        if (method, seed) != self._cell:
            self._end(0)
            settings = {**self._settings, **self._options[method], "seed": seed}
            self._cell, self._open = (method, seed), self._begin(f"{method}/{seed}", settings)
        self._open.log(dict(values), step=round)

    def close(self, table: Table | None) -> None:
        """Log the table as a table."""
        self._end(1 if table is None else 0)
        if table is not None:
            run = self._begin("results", self._settings)
            rows = [[row[key] for key in _COLUMNS] for row in table]
            run.log({"results": self._wandb.Table(columns=list(_COLUMNS), data=rows)})
            run.finish(exit_code=0)

    def _end(self, code: int) -> None:
        if self._open is not None:
            self._open.finish(exit_code=code)


_COLUMNS = ("method", "setting", "metric", "mean", "std")


def _settings(experiment: Experiment) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Every setting under its dotted path: settings shared by all methods, and each method's own, by label."""
    settings = config.resolved(experiment)
    methods = {m["label"]: _flat(m, "method") for m in settings.pop("methods")}
    return _flat(settings, ""), methods


def _flat(value: Mapping[str, Any], path: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, held in value.items():
        place = f"{path}.{key}" if path else key
        flat.update(_flat(held, place) if isinstance(held, Mapping) else {place: held})
    return flat


def _markdown(table: Table) -> str:
    lines = [_COLUMNS, ("---",) * len(_COLUMNS)]
    for row in table:
        cells = [row[key] for key in _COLUMNS]
        texts = ("–" if c is None else f"{c:.6g}" if isinstance(c, float) else str(c) for c in cells)
        lines.append(tuple(cell.replace("|", "\\|") for cell in texts))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
