"""Runs made by hand: a record of a few numbers, and the files of a run's folder."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unskew.record.frame import Numbers
from unskew.record.reader import Bound, Record, RecordedCell
from unskew.tasks.measure import ACCURACY, Measure

Series = Mapping[tuple[str, int, str], Mapping[int, float]]
Clients = Mapping[tuple[str, int, str], Mapping[int, float]]
"""Results of single clients by method, seed, and part, as personal."""
SUMMARY: Any = {"run": "x", "fingerprint": "f", "seconds": 1.0, "rows": []}


def frame(
    series: Series, clients: Clients | None = None, tested: Clients | None = None, headline: Measure = ACCURACY
) -> Numbers:
    """Numbers of all clients, and of single ones by method, seed and part."""
    rows: list[dict[str, Any]] = [
        {"method": m, "seed": s, "round": t, "name": name, "value": v}
        for (m, s, name), curve in series.items()
        for t, v in curve.items()
    ]
    for (m, s, part), of in (clients or {}).items():
        at = {"method": m, "seed": s, "round": 1, "name": f"{part}.{headline.name}"}
        weights = (tested or {}).get((m, s, part), {})
        rows += [{**at, "client": c, "value": v, "weight": weights.get(c, 0.0)} for c, v in of.items()]
    return Numbers.of(rows)


def series(record: Record) -> dict[tuple[str, int, str], Mapping[int, float]]:
    """The curves of a record."""
    return {key: record.frame.curve(*key) for key in record.frame.keys}


def clients(record: Record, column: str = "value") -> dict[tuple[str, int, str], Mapping[int, float]]:
    """Results of single clients in a record."""
    parts = {n.name.partition(".")[0] for n in record.frame.numbers if n.client is not None}
    name = record.headline.name
    every = {(c.method, c.seed, p): record.frame.clients(c.method, c.seed, f"{p}.{name}", column)
             for c in record.cells for p in parts}  # fmt: skip
    return {at: of for at, of in every.items() if of}


def changed(
    record: Record, of: Series | None = None, clients_of: Clients | None = None, tested: Clients | None = None,
    **more: Any,
) -> Record:  # fmt: skip
    """The record with other curves, or results of single clients, or other fields."""
    of, own = of or series(record), clients_of or clients(record)
    numbers = frame(of, own, tested or clients(record, "weight"), more.get("headline", record.headline))
    return replace(record, frame=numbers, **more)


def record(
    series: Series, bounds: Mapping[str, Bound] | None = None, finished: bool = True, setting: str = "",
    clients: Clients | None = None, tested: Clients | None = None, **more: Any,
) -> Record:  # fmt: skip
    """A record with a cell for each method and seed that `series` names; `more` are other fields of it."""
    where = dict.fromkeys((m, s) for m, s, _ in series)
    plain: dict[str, Any] = {
        "folder": Path("runs/x"), "name": "x", "config": "", "partitions": {}, "failures": (),
        "card": {"command": "", "cells": []},
        "baseline": "FedAvg" if ("FedAvg", 0) in where else None, "summary": SUMMARY if finished else None,
        "frame": frame(series, clients, tested, more.get("headline", ACCURACY)),
        "cells": tuple(RecordedCell(m, setting, s, (bounds or {}).get(m)) for m, s in where),
    }  # fmt: skip
    return Record(**{**plain, **more})


def write(
    folder: Path, methods: Sequence[str], seeds: Sequence[int], counts: Sequence[Sequence[int]], config: str = "",
    bounds: Mapping[str, Bound] | None = None, split: Mapping[str, Any] | None = None,
    stats: Mapping[str, Any] | None = None, command: str = "unskew run",
    name: str = "made by hand", setting: str = "by hand",
) -> Path:  # fmt: skip
    """The files of a run's folder but its record: who ran what, and clients with these label counts.

    `split` and `stats` are further entries of each seed in partition.json.
    """
    folder.mkdir(parents=True)
    run = {
        "schema": 1, "run": name, "created": "2025-06-01T12:00:00+00:00", "command": command,
        "unskew": "0", "config_sha256": "c" * 64, "environment": {"device": "cpu"}, "parameters": 250,
        "baseline": "FedAvg" if "FedAvg" in methods else "",
        "cells": [
            {"method": m, "setting": setting, "seed": s, "bound": (bounds or {}).get(m)}
            for s in seeds for m in methods
        ],
    }  # fmt: skip
    skew = {
        "sizes": [sum(of) for of in counts], "label_counts": [list(of) for of in counts], "iid_distance": 0.7,
        "js": 0.3, "effective_classes": 1.0, **(stats or {}),
    }  # fmt: skip
    one = {
        "dataset": "made", "dataset_sha256": "d" * 64, "n": sum(map(sum, counts)), "split": {"name": "by hand"},
        "stats": skew, **(split or {}),
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "config.toml").write_text(config)
    (folder / "partition.json").write_text(
        json.dumps({"schema": 1, "seeds": {str(s): {**one, "seed": s, "sha256": str(s).rjust(64, "a")} for s in seeds}})
    )
    return folder
