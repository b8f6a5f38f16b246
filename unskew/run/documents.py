"""The first files of a run's folder: the experiment, the examples of each client, and the card of the run."""

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from unskew import schema, wire
from unskew.data.federated import FederatedData, split_label, to_manifest
from unskew.data.sources import FILES
from unskew.errors import ConfigError, RunError
from unskew.experiment.config import Experiment, Runtime, fingerprint, load, override, to_toml
from unskew.keys import Key
from unskew.record import database
from unskew.record.logs import SCHEMA
from unskew.references import IN_PYTHON
from unskew.run import checkpoint
from unskew.run import setup as run_setup
from unskew.run.cell import LiveRun, Observer
from unskew.run.folder import document_hashes, explained, read_json, refuse_deployed, refuse_links
from unskew.run.notes import notes
from unskew.run.setup import IN_PROCESS, Backend, PreparedRun, Setup
from unskew.version import __version__


def of_run(folder: Path, run: PreparedRun, command: str) -> dict[str, str | Callable[[Path], object]]:
    """The first files of a run's folder, each as its text or as a function that writes it."""
    return {
        "config.toml": to_toml(run.experiment),
        "partition.json": _partitions(run.feds),
        "run.json": _run_card(folder, run, command),
        database.FILE: database.new,
        **run.setup.inputs.files,
    }


def _partitions(feds: Mapping[int, FederatedData]) -> str:
    """Say who has which examples, but for clients that keep them to themselves, and which rows these were."""
    known = {seed: fed for seed, fed in feds.items() if fed.label_counts.any()}
    rows = next((given.tolist() for fed in known.values() if (given := fed.dataset.rows) is not None), None)
    card = {"schema": SCHEMA, "rows": rows, "seeds": {str(seed): to_manifest(fed) for seed, fed in known.items()}}
    return json.dumps({key: value for key, value in card.items() if value is not None})


def _run_card(folder: Path, run: PreparedRun, command: str) -> str:
    experiment, setup, feds = run.experiment, run.setup, run.feds
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


# ---------------------------------------------------------------- the same when a run is resumed
SAME_BITS = frozenset({"sequential", "workers", "ray"})
"""Executors that train each client by itself, in one process or several: the same bits, if each has one thread.

Ray is none of them on GPUs or machines of several kinds, with which its name in the environment is longer.
"""


class EnvironmentChanged(RunError):
    """The run was started with other versions, device or executor, so its bits may differ."""


def require_run(folder: Path, backend: Backend = IN_PROCESS, settings: Sequence[str] = ()) -> None:
    """Refuse a folder whose run this backend cannot resume with these settings.

    Raises:
        ConfigError: If a setting is not of `runtime`.
        RunError: If something is missing, a link is in the folder, or the run was over a network.
    """
    if not folder.exists():
        raise RunError(f"there is no folder {folder}; give the command that began its run again")
    if not backend.remote and not (folder / "summary.json").exists():
        refuse_deployed(folder)
    read_json(folder / "run.json")  # a folder without one is no run
    refuse_links(folder)
    if others := [setting for setting in settings if not setting.strip().startswith("runtime.")]:
        raise ConfigError(f"only runtime settings may change within a run, got {others[0]}; start a new run")


def reopened(
    folder: Path,
    callback: Observer,
    stop: threading.Event,
    backend: Backend,
    force: bool,
    allow_code: bool,
    settings: Sequence[str],
) -> LiveRun:
    """Open a stopped run to resume it, and record what has changed since it began.

    The arguments are those of `unskew.run.loop.resume`.

    Raises:
        ConfigError: If the folder names code of your own and `allow_code` is not given, or a setting is impossible.
        RunError: If the folder was changed.
        EnvironmentChanged: If the environment has changed.
    """
    experiment = load(folder / "config.toml", allow_code=allow_code)
    require_same_settings(folder)
    given = {key: value for key, value in asdict(experiment.runtime).items() if value is not None}
    runtime = override({"runtime": given}, settings)["runtime"]
    experiment = replace(experiment, runtime=schema.build(Runtime, runtime, "runtime"))
    if not backend.remote:
        experiment = with_data_found(folder, experiment)
    saved = checkpoint.latest(folder)
    setup = backend.prepare(experiment)
    changed = require_same_environment(folder, experiment, setup, force)
    require_same_network(folder, experiment, setup)
    feds = {seed: backend.divide(experiment, setup, seed) for seed in experiment.seeds}
    require_same_data(folder, feds)
    for name, sha256 in document_hashes(folder).items():
        _require(saved is None or saved.documents.get(name) == sha256, folder / name)
    named = {f"runtime.{change.partition(' ')[0]}" for change in changed}
    other = [setting for setting in settings if setting.partition("=")[0].strip() not in named]
    run = LiveRun(experiment, setup, feds, folder, callback, stop, backend, saved)
    _record_resumed(run, [*changed, *other])
    return run


def _require(same: bool, what: object) -> None:
    if not same:
        raise RunError(f"{what} was changed since the run began; restore it or start a new run")


def require_same_settings(folder: Path) -> None:
    """Refuse other settings than the run began with, by the text of config.toml; nothing in it is imported.

    Raises:
        RunError: If the settings differ.
    """
    config = folder / "config.toml"
    _require(fingerprint(config, portable=True) == read_json(folder / "run.json").get("config_sha256"), config)


def with_data_found(folder: Path, experiment: Experiment) -> Experiment:
    """The experiment with its data in the folder where the run was begun, if they are not in this one.

    That folder is found relative to the run's, so both may have moved together.
    """
    kind, _, path = experiment.task.data.partition(":")
    place = (folder / str(read_json(folder / "run.json").get("begun_in", "."))).resolve() / path
    if kind not in FILES or Path(path).expanduser().exists() or not place.exists():
        return experiment
    return replace(experiment, task=replace(experiment.task, data=f"{kind}:{place}"))


def require_same_environment(folder: Path, experiment: Experiment, setup: Setup, force: bool) -> list[str]:
    """Refuse other versions, device, executor or code than the run began with, unless forced.

    Another build of the same version is allowed, and noted.

    Returns:
        The changes, as `run_setup.differences` lists them.

    Raises:
        EnvironmentChanged: If one differs.
    """
    then = read_json(folder / "run.json").get("environment", {})
    now = run_setup.environment(experiment, setup)
    changed = run_setup.differences(then, now)
    executors = {then.get("executor"), now["executor"]}
    # Workers have a thread each, and sums over several threads are rounded otherwise.
    neutral = executors <= SAME_BITS and ("sequential" not in executors or now["threads"] == "1")
    noted = {run_setup.BUILD, "cores", *(["executor"] if neutral else [])}
    telling = [of for of in changed if of.partition(" ")[0] not in noted]
    if telling and not force:
        raise EnvironmentChanged(
            f"{folder} was started in another environment ({'; '.join(telling)}), so results may differ; "
            "use --force (in Python force=True) to continue anyway"
        )
    return changed


def require_same_network(folder: Path, experiment: Experiment, setup: Setup) -> None:
    """Refuse another network than the run was given as a value, or other frozen tensors.

    Raises:
        RunError: If it starts from other weights.
    """
    now = network_sha256(setup, is_value(experiment))
    same = read_json(folder / "run.json").get("network_sha256") == now
    _require(same, f"the network {experiment.task.model} of {folder}, or its weights (frozen, or to start from),")


def require_same_data(folder: Path, feds: Mapping[int, FederatedData]) -> None:
    """Refuse another data set or split than the run had under these seeds.

    Raises:
        RunError: If they differ.
    """
    begun = read_json(folder / "partition.json").get("seeds", {})
    for seed, fed in feds.items():
        then = begun.get(str(seed), {})
        hashes = then.get("dataset_sha256"), then.get("sha256"), (then.get("unseen") or {}).get("sha256")
        now = fed.dataset.sha256, fed.sha256, None if fed.unseen is None else fed.unseen.sha256
        _require(hashes == now if fed.label_counts.any() else not then, f"the data set of {folder}, or its split,")


def _record_resumed(run: LiveRun, changed: Sequence[str]) -> None:
    """Note from which round on versions or machine are others than at the start, or are the same again."""
    before: list[str] = next((row["changed"] for row in reversed(list(run.record.select("resumed")))), [])
    if list(changed) != before and run.position.cell < len(run.cells):
        seed, method = run.cells[run.position.cell]
        where = {"method": method.label, "seed": seed, "round": run.position.round + 1}
        with explained(run.record.path, run.folder):
            run.record.add("resumed", [{**where, "changed": list(changed)}])
            run.record.commit()
