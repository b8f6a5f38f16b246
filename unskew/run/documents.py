"""The files that a run's folder begins with: the experiment, who has which examples, and the card of the run."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from unskew import wire
from unskew.data.federated import FederatedData, split_label, to_columns, to_manifest
from unskew.experiment.config import Experiment, fingerprint, to_toml
from unskew.keys import Key
from unskew.record import columns, database
from unskew.record.logs import SCHEMA
from unskew.references import IN_PYTHON
from unskew.run import setup as run_setup
from unskew.run.remarks import remarks
from unskew.run.setup import Setup
from unskew.version import __version__

MOST_NUMBERS = 20_000_000
"""Numbers that lists in partition.json have at most: ten bytes each, of all seeds together."""


def of_run(
    folder: Path, experiment: Experiment, setup: Setup, feds: dict[int, FederatedData], command: str
) -> dict[str, str | Callable[[Path], object]]:
    """The files that a run's folder begins with, each as its text or as a function that writes it."""
    return {
        "config.toml": to_toml(experiment),
        "partition.json": partition(feds, experiment.client_rows),
        **_partition_columns(feds, experiment.client_rows),
        **_given_rows(feds),
        "run.json": _run_card(folder, experiment, setup, feds, command),
        database.FILE: database.new,
        **setup.inputs.files,
    }


def _known(feds: Mapping[int, FederatedData]) -> dict[int, FederatedData]:
    """The divisions that are known: nothing is of the examples of clients that keep their data to themselves."""
    return {seed: fed for seed, fed in feds.items() if fed.label_counts.any()}


def partition(feds: Mapping[int, FederatedData], client_rows: int) -> str:
    """The text of partition.json: who has which examples, in columns beside it where clients or examples are many."""
    in_columns = _in_columns(feds, client_rows)
    seeds = {
        str(seed): to_manifest(fed, columns.partition_file(seed) if seed in in_columns else None)
        for seed, fed in _known(feds).items()
    }
    return json.dumps({"schema": SCHEMA, "seeds": seeds})


def _in_columns(feds: Mapping[int, FederatedData], client_rows: int) -> dict[int, FederatedData]:
    """The divisions that are too large for lists: of more than `client_rows` clients, or all, with many examples."""
    known = _known(feds)
    numbers = (len(fed.dataset.y_train) + 2 * fed.num_clients * fed.dataset.num_classes for fed in known.values())
    many = sum(numbers) > MOST_NUMBERS
    return {seed: fed for seed, fed in known.items() if many or fed.num_clients > client_rows}


def _partition_columns(feds: Mapping[int, FederatedData], client_rows: int) -> dict[str, Callable[[Path], None]]:
    """The files with the examples of clients that are too many for lists in partition.json."""

    def writer(fed: FederatedData) -> Callable[[Path], None]:
        def write(path: Path) -> None:
            columns.write(path, to_columns(fed))

        return write

    return {columns.partition_file(seed): writer(fed) for seed, fed in _in_columns(feds, client_rows).items()}


def _given_rows(feds: Mapping[int, FederatedData]) -> dict[str, Callable[[Path], object]]:
    """The file with the row of each example in the data as they were given, where these are rows."""
    rows = next((fed.dataset.rows for fed in _known(feds).values()), None)
    if rows is None:
        return {}
    return {columns.ROWS_FILE: lambda path: columns.write(path, {"rows": rows.numpy()})}


def _run_card(folder: Path, experiment: Experiment, setup: Setup, feds: dict[int, FederatedData], command: str) -> str:
    cells = [
        {"method": m.label, "setting": split_label(feds[seed]), "seed": seed, "bound": m.bound}
        for seed in experiment.seeds
        for m in experiment.methods
    ]
    num_clients = next(iter(feds.values())).num_clients
    card = {
        "schema": SCHEMA,
        "run": experiment.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command or " ".join(sys.argv),
        "begun_in": os.path.relpath(Path.cwd(), folder.resolve()),
        "unskew": __version__,
        "environment": run_setup.environment(experiment, setup),
        "config_sha256": fingerprint(experiment),
        "portable_sha256": fingerprint(experiment, portable=True),
        "network_sha256": network_sha256(setup, is_value(experiment)),
        "parameters": setup.parameters,
        "baseline": experiment.baseline or "",
        "measures": [measure.card() for measure in setup.task.measures],
        "cells": cells,
        "remarks": [*setup.dataset.doubts, *remarks(experiment, setup, num_clients)],
    }
    if experiment.until is not None:
        card["until"] = asdict(experiment.until)
    return json.dumps(card, indent=1)


def network_sha256(setup: Setup, start: bool) -> str:
    """The hash of the network's frozen tensors and, if asked, of the weights that it starts from under one key."""
    weights = setup.task.init(Key(0) / "init") if start else {}
    return wire.tensors_hash({**weights, **setup.task.constants()})


def is_value(experiment: Experiment) -> bool:
    """True if the network was given as a value, which may start from any weights."""
    return experiment.task.model.startswith(IN_PYTHON)
