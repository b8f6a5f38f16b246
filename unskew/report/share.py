"""A copy of a run's folder for others: results without data, models, or anything about single examples.

Only what is listed here is copied.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import Any

import tomli_w

from unskew.errors import RunError
from unskew.info import AbandonedRound, ExampleBudget, PrivacyBudget
from unskew.record import database, logs
from unskew.record.reader import DataSplit, Record, configured, read
from unskew.report.page import write_report
from unskew.run.folder import create, read_json, require_done, taken

LOGS = ("metrics", "transfers", "work", "network", "diverged")
"""Tables that are copied row by row."""

INFO = {kind.__name__ for kind in (PrivacyBudget, ExampleBudget, AbandonedRound)}
"""What methods reported that is copied: no embeddings, targets or predictions, and no warnings, which name values."""

OF_RUN = (
    "schema", "run", "created", "unskew", "environment", "config_sha256", "parameters", "baseline",
    "measures", "until", "network_sha256", "cells",
)  # fmt: skip
OF_SPLIT = {f.name for f in fields(DataSplit)} | {"seed", "stats"}
OF_TASK = ("data_dir", "data_options")


def share(folder: Path, out: Path) -> Path:
    """Copy the shareable part of a run into a new folder, which is enough for reports and tables.

    It has results (also of each client), traffic, numbers of examples by client and class, and the report.  It lacks
    data and rows, models and checkpoints, results by test row, methods' reports except privacy spent, words and numbers
    of columns, paths and the command line.

    Args:
        folder: Folder of a finished run.
        out: The copy.

    Raises:
        RunError: If the run has not finished, cannot be read, or `out` exists or cannot be written.
    """
    require_done(folder)
    if taken(out):
        raise RunError(f"{out} exists already; give --share a new folder")
    record = read(folder)
    create(out, dict(_files(folder, record)))
    for empty in ("checkpoint", "models"):
        (out / empty).rmdir()
    write_report(out)
    return out


def _files(folder: Path, record: Record) -> Iterator[tuple[str, str | Callable[[Path], object]]]:
    """The files of the copy by name, each as its text or as a function that writes it."""
    card = {key: value for key, value in read_json(folder / "run.json").items() if key in OF_RUN}
    yield "run.json", json.dumps({**card, "command": ""}, indent=1)
    yield "config.toml", tomli_w.dumps(without_values(configured(record)))
    partition = read_json(folder / "partition.json")
    seeds = {seed: {key: of[key] for key in of.keys() & OF_SPLIT} for seed, of in partition["seeds"].items()}
    whole = {"schema": partition["schema"], "seeds": {seed: _sizes(of) for seed, of in seeds.items()}}
    yield "partition.json", json.dumps(whole)
    yield database.FILE, partial(_write_record, folder)
    yield "summary.json", partial(_write_summary, read_json(folder / "summary.json"))
    if record.predicted is not None:
        yield "plan.json", json.dumps(read_json(folder / "plan.json"))


def without_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without paths and trackers, and without words and numbers of the data's columns."""
    task = {key: value for key, value in settings.get("task", {}).items() if key not in OF_TASK}
    kind, colon, path = str(task.get("data", "")).partition(":")
    task["data"] = f"{kind}:{Path(path).name}" if colon else kind
    if isinstance(task.get("preprocess"), dict):
        task["preprocess"] = {key: value for key, value in task["preprocess"].items() if key != "columns"}
    kept = {key: value for key, value in settings.items() if key not in ("track", "track_options")}
    named: dict[str, Any] = _without_folders({**kept, "task": task})
    return named


def _without_folders(value: Any) -> Any:
    """Settings with the names of files in place of their paths; names and labels of methods may have a slash."""
    if isinstance(value, Mapping):
        return {key: of if key in ("name", "label") else _without_folders(of) for key, of in value.items()}
    if isinstance(value, list):
        return [_without_folders(of) for of in value]
    if not isinstance(value, str) or not {"/", "\\"} & {*value}:
        return value
    kind, colon, path = value.rpartition(":")
    return kind.rpartition("/")[2] + colon + PureWindowsPath(path).name  # it takes both kinds of slashes


def _sizes(split: dict[str, Any]) -> dict[str, Any]:
    """One seed's division without rows, and without a hash by which what is in them could be tried out."""
    unseen = {"unseen": {"sizes": split["unseen"]["sizes"]}} if "unseen" in split else {}
    return {**split, **unseen, "dataset_sha256": ""}


def _write_record(folder: Path, path: Path) -> None:
    tables = {name: logs.rows(folder, name) for name in LOGS}
    tables["metrics"] = database.as_written(folder)
    tables["info"] = (row for row in logs.rows(folder, "info") if row["type"] in INFO)
    # Why a client did not reply may name a path of its machine.
    hidden = "left out, as it names a path"
    reasons = ((row, row["reason"]) for row in logs.rows(folder, "failures"))
    tables["failures"] = (
        {**row, "at": None, "reason": f"{why.partition(':')[0]}: {hidden}" if {"/", "\\"} & {*why} else why}
        for row, why in reasons
    )
    database.write(path.parent, tables)


def _write_summary(summary: Mapping[str, Any], path: Path) -> None:
    path.write_text(json.dumps({**summary, "record_sha256": database.sha256(path.parent)}, indent=1))
