"""The first files of a run's folder: the experiment, the examples of each client, and the card of the run."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from unskew import wire
from unskew.data.federated import FederatedData, split_label, to_manifest
from unskew.experiment.config import Experiment, fingerprint, to_toml
from unskew.keys import Key
from unskew.record import database
from unskew.record.logs import SCHEMA
from unskew.references import IN_PYTHON
from unskew.run import setup as run_setup
from unskew.run.notes import notes
from unskew.run.setup import Setup
from unskew.version import __version__


def of_run(
    folder: Path, experiment: Experiment, setup: Setup, feds: dict[int, FederatedData], command: str
) -> dict[str, str | Callable[[Path], object]]:
    """The first files of a run's folder, each as its text or as a function that writes it."""
    return {
        "config.toml": to_toml(experiment),
        "partition.json": _partitions(feds),
        "run.json": _run_card(folder, experiment, setup, feds, command),
        database.FILE: database.new,
        **setup.inputs.files,
    }


def _partitions(feds: Mapping[int, FederatedData]) -> str:
    """Say who has which examples, but for clients that keep them to themselves, and which rows these were."""
    known = {seed: fed for seed, fed in feds.items() if fed.label_counts.any()}
    rows = next((given.tolist() for fed in known.values() if (given := fed.dataset.rows) is not None), None)
    card = {"schema": SCHEMA, "rows": rows, "seeds": {str(seed): to_manifest(fed) for seed, fed in known.items()}}
    return json.dumps({key: value for key, value in card.items() if value is not None})


def _run_card(folder: Path, experiment: Experiment, setup: Setup, feds: dict[int, FederatedData], command: str) -> str:
    cells = [
        {"method": m.label, "setting": split_label(feds[seed]), "seed": seed, "bound": m.bound}
        for seed in experiment.seeds
        for m in experiment.methods
    ]
    num_clients, names = next(iter(feds.values())).num_clients, next(iter(feds.values())).names
    card = {
        "schema": SCHEMA,
        "run": experiment.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command or " ".join(sys.argv),
        "begun_in": os.path.relpath(Path.cwd(), folder.resolve()),
        "unskew": __version__,
        "environment": run_setup.environment(experiment, setup),
        "config_sha256": fingerprint(experiment, portable=True),
        "network_sha256": network_sha256(setup, is_value(experiment)),
        "parameters": setup.parameters,
        "baseline": experiment.baseline or "",
        "measures": [measure.card() for measure in setup.task.measures],
        "cells": cells,
        **({"client_names": names} if names else {}),
        "notes": [*setup.dataset.notes, *notes(experiment, setup, num_clients)],
    }
    if experiment.until is not None:
        card["until"] = asdict(experiment.until)
    return json.dumps(card, indent=1)


def network_sha256(setup: Setup, start: bool) -> str:
    """Hash of the network's frozen tensors and, with `start`, of the weights it starts from under one key."""
    every = [{**(task.init(Key(0) / "init") if start else {}), **task.constants()} for task in setup.tasks]
    return wire.tensors_hash({f"{i or ''}{name}": t for i, own in enumerate(every) for name, t in own.items()})


def is_value(experiment: Experiment) -> bool:
    """True if a network was given as a value."""
    return any(of.model.startswith(IN_PYTHON) for of in experiment.task.models or (experiment.task,))
