"""Conditions on which a stopped run goes on: the same settings, data, network and environment."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from unskew import schema
from unskew.data.federated import FederatedData
from unskew.data.sources import FILES
from unskew.errors import ConfigError, RunError
from unskew.experiment.config import Experiment, Runtime, fingerprint, load, override
from unskew.run import checkpoint, documents
from unskew.run import setup as run_setup
from unskew.run.cell import LiveRun, Observer
from unskew.run.folder import document_hashes, explained, read_json, refuse_deployed, refuse_links
from unskew.run.setup import IN_PROCESS, Backend, Setup

SAME_BITS = frozenset({"sequential", "workers", "ray"})
"""Executors that train each client by itself, in one process or several: the same bits, if each has one thread.

Ray is none of them on GPUs or machines of several kinds, with which its name in the environment is longer.
"""


class EnvironmentChanged(RunError):
    """The run was started with other versions, on another device or by another executor: its bits may differ."""


def require_run(folder: Path, backend: Backend = IN_PROCESS, settings: Sequence[str] = ()) -> None:
    """Refuse a folder that is not that of a run which such a backend can go on with, with other settings or without.

    Raises:
        ConfigError: If a setting is of something else than its `runtime`.
        RunError: Naming what it lacks, a link to another folder in it, or that it is a run over a network.
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
    """Prepare to go on with a run that was stopped, and note in its folder what has changed since it began.

    The arguments are those of `unskew.run.loop.resume`.

    Raises:
        ConfigError: If the folder names code of one's own and `allow_code` is not given, or a setting is impossible.
        RunError: If the folder was changed, or (EnvironmentChanged) the environment has changed.
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
    """Refuse to go on with other settings than a run began with; nothing that its config.toml names is imported.

    The data may lie elsewhere by now; whether they are the same is seen when they are read (`require_same_data`).  What
    counts is the file as it was written: read by a later version it has that version's settings, too.

    Raises:
        RunError: If they differ.
    """
    config = folder / "config.toml"
    _require(fingerprint(config, portable=True) == read_json(folder / "run.json").get("config_sha256"), config)


def with_data_found(folder: Path, experiment: Experiment) -> Experiment:
    """The experiment with the path of its data in the folder where its run was begun, if they are not in this one.

    That folder is found from the run's, with which it may have been moved.
    """
    kind, _, path = experiment.task.data.partition(":")
    place = (folder / str(read_json(folder / "run.json").get("begun_in", "."))).resolve() / path
    if kind not in FILES or Path(path).expanduser().exists() or not place.exists():
        return experiment
    return replace(experiment, task=replace(experiment.task, data=f"{kind}:{place}"))


def require_same_environment(folder: Path, experiment: Experiment, setup: Setup, force: bool) -> list[str]:
    """Refuse to go on, unless forced, under other versions, device, executor or code than a run began with.

    Another build of the same version is no refusal: most change no run, and what it changes is in a run's notes.

    Returns:
        What has changed, as `run_setup.differences` has it.

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
    """Refuse to go on with another network than the one that a run was given as a value, or other frozen tensors.

    Raises:
        RunError: If it starts from other weights.
    """
    now = documents.network_sha256(setup, documents.is_value(experiment))
    same = read_json(folder / "run.json").get("network_sha256") == now
    _require(same, f"the network {experiment.task.model} of {folder}, or its weights (frozen, or to start from),")


def require_same_data(folder: Path, feds: Mapping[int, FederatedData]) -> None:
    """Refuse to go on with another data set or split than a run had under these seeds.

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
