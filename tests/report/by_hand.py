"""Runs made by hand: a record of a few numbers, and the files of a run's folder."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unskew.record.reader import Bound, Record, RecordedCell, Summary

Series = Mapping[tuple[str, int, str], Mapping[int, float]]


def record(
    series: Series, bounds: Mapping[str, Bound] | None = None, finished: bool = True, setting: str = "", **more: Any
) -> Record:
    """A record with a cell for each method and seed that `series` names; `more` are other fields of it."""
    where = dict.fromkeys((m, s) for m, s, _ in series)
    plain: dict[str, Any] = {
        "folder": Path("runs/x"), "name": "x", "created": "", "command": "", "version": "", "environment": {},
        "config_sha256": "", "config": "", "clients": {}, "flows": {}, "partitions": {}, "failures": (),
        "summary": Summary("f", 1.0, {}, None) if finished else None,
        "cells": tuple(RecordedCell(m, setting, s, (bounds or {}).get(m)) for m, s in where),
    }  # fmt: skip
    return Record(series=series, **{**plain, **more})


def write(
    folder: Path, methods: Sequence[str], seeds: Sequence[int], counts: Sequence[Sequence[int]], config: str = "",
    bounds: Mapping[str, Bound] | None = None, split: Mapping[str, Any] | None = None,
    stats: Mapping[str, Any] | None = None, command: str = "unskew run",
) -> Path:  # fmt: skip
    """The files of a run's folder but its record: who ran what, and clients with these label counts.

    `split` and `stats` are further entries of each seed in partition.json.
    """
    folder.mkdir(parents=True)
    run = {
        "schema": 1, "run": "made by hand", "created": "2025-06-01T12:00:00+00:00", "command": command,
        "unskew": "0", "config_sha256": "c" * 64, "environment": {"device": "cpu"}, "parameters": 250,
        "cells": [
            {"method": m, "setting": "by hand", "seed": s, "bound": (bounds or {}).get(m)}
            for s in seeds for m in methods
        ],
    }  # fmt: skip
    skew = {
        "sizes": [sum(of) for of in counts], "label_counts": [list(of) for of in counts], "iid_distance": 0.7,
        "js": 0.3, "effective_classes": 1.0, **(stats or {}),
    }  # fmt: skip
    one = {
        "dataset": "made", "dataset_sha256": "d" * 64, "n": sum(map(sum, counts)), "split": {"name": "by hand"},
        "sha256": "a" * 64, "stats": skew, **(split or {}),
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "config.toml").write_text(config)
    (folder / "partition.json").write_text(json.dumps({"schema": 1, "seeds": {str(s): one for s in seeds}}))
    return folder
