"""Adds seeds to a run that exists, by number or until its comparisons are decided.

Adding seeds because of a result invalidates Student's interval.  A run with `seeds = { until = ... }` therefore has
intervals that may be read after every seed from the sixth on.  The new run has a folder of its own.
"""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from unskew.errors import ConfigError, RunError
from unskew.experiment.config import Experiment, UntilDecided, load, to_toml, until_of
from unskew.record import database
from unskew.record.frame import Numbers
from unskew.run import checkpoint, decide, documents
from unskew.run.cell import LiveRun
from unskew.run.folder import DOCUMENTS, create, is_deployed, locked, read_json, refuse_links
from unskew.run.metrics import LAST_FIFTH, summarise
from unskew.run.setup import IN_PROCESS, prepared
from unskew.words import listed


def until(experiment: Experiment, width: float, most: int) -> Experiment:
    """The experiment with more seeds, until its comparisons are decided.

    Args:
        experiment: An experiment with consecutive seeds, or with such a rule, which is replaced.
        width, most: `until` and `most` of the rule.

    Raises:
        ConfigError: If its seeds are not consecutive, already as many as `most`, or nothing is to be decided.
    """
    seeds, rule = experiment.seeds, experiment.until
    if rule is None and seeds != tuple(range(seeds[0], seeds[0] + len(seeds))):
        raise ConfigError(
            f"seeds can be added to consecutive ones only, got {list(seeds)}; begin a run with seeds.until"
        )
    if most <= len(seeds):
        raise ConfigError(f"--most must be above the {len(seeds)} seeds that the run has, got {most}")
    kept = {"first": seeds[0]} if rule is None else asdict(rule)
    new = until_of({**kept, "until": width, "most": most})
    return replace(experiment, seeds=new.seeds, until=new)


def longer(experiment: Experiment, seeds: Sequence[int]) -> Experiment:
    """The experiment with these seeds added.

    Raises:
        ConfigError: If it has one of them already, or seeds until it is decided.
    """
    if experiment.until is not None or set(seeds) & set(experiment.seeds):
        raise ConfigError(
            f"--seed takes seeds that the run does not have, got {list(seeds)}; it has {experiment.seeds}"
        )
    return replace(experiment, seeds=(*experiment.seeds, *seeds))


def decided(run: LiveRun, index: int) -> str:
    """Why no seed is needed beyond those of earlier cells; empty while one is.

    It depends on the record alone, so that a resumed run stops at the same seed.
    """
    experiment, headline = run.experiment, run.setup.task.headline
    until, seeds = experiment.until, index // len(experiment.methods)
    if until is None or index % len(experiment.methods) or seeds < until.least:
        return ""
    gains = _differences(run, until)
    # A method that diverges under every seed is not compared, however many more seeds it is trained under.
    lost = [m for m in experiment.compared if sum(row["method"] == m for row in run.diverged) == seeds]
    if not (decide.is_settled(gains, until.until / headline.scale) if gains else lost):
        return ""
    return f"decided after {seeds} seeds" + f", but for {listed(lost)}, which diverged under each" * bool(lost)


def _differences(run: LiveRun, until: UntilDecided) -> dict[str, list[float]]:
    """The headline of each method that is not a reference run minus the baseline's, seed by seed.

    Of a method that is for the clients' own models, or has no global one, it is that of their own.
    """
    experiment, measure = run.experiment, run.setup.task.headline
    labels, base = [method.label for method in experiment.methods], experiment.baseline
    table = summarise(Numbers.read(run.folder), labels, experiment.seeds, "", base, measure, run.diverged)
    by_name = {(row["method"], row["metric"]): row["seeds"] for row in table}
    end = f".{LAST_FIFTH}" * (until.metric == "last_fifth") + f".minus_{base}"
    gains: dict[str, list[float]] = {}
    for method in experiment.methods:
        names = (measure.own, measure.shared) if method.kind == "personal" else (measure.shared, measure.own)
        known = [by_name[method.label, name + end] for name in names if (method.label, name + end) in by_name]
        if method.label in experiment.compared and known:
            gains[method.label] = known[0]
    return gains


def add(
    folder: Path, out: Path, more: Callable[[Experiment], Experiment], force: bool = False, *, allow_code: bool = False
) -> None:
    """Make a run folder `out` with the state of the run in `folder`, and more seeds to come.

    Args:
        folder: The folder of a run in one process, finished or stopped.
        out: The new folder.
        more: Adds seeds to its experiment: `until` or `longer`.
        force, allow_code: As in `loop.resume`.

    Raises:
        ConfigError: As `more`, or if the folder names code of your own and `allow_code` is not given.
        RunError: As `loop.resume`, or if `out` exists.
    """
    read_json(folder / "run.json")  # a folder without one is no run
    refuse_links(folder)
    if is_deployed(folder):
        raise RunError(f"{folder} is a run over a network; its clients know its seeds, so begin another")
    with locked(folder):
        was = documents.with_data_found(folder, load(folder / "config.toml", allow_code=allow_code))
        documents.require_same_settings(folder)
        saved = checkpoint.latest(folder)
        if saved is None:
            raise RunError(f"{folder} has no checkpoint to go on from; begin another")
        own = was.task.data.removeprefix("run:") if was.task.data.startswith("run:") else ""
        if own != Path(own).name:
            raise RunError(f"{folder / 'config.toml'}: task.data must name a file of the folder, got run:{own}")
        experiment = more(was)
        run = prepared(experiment, IN_PROCESS)
        documents.require_same_environment(folder, experiment, run.setup, force)
        texts = documents.of_run(out, run, " ".join(sys.argv))
        documents.require_same_data(folder, {seed: run.feds[seed] for seed in was.seeds})
        hashes = {name: hashlib.sha256(str(texts[name]).encode()).hexdigest() for name in DOCUMENTS}
        position = replace(saved, documents=hashes)

        def record(path: Path) -> None:
            database.copy(folder, path.parent, json.dumps(asdict(position)))

        if own:  # data that the run's folder holds move with it: without `data_dir` they are looked for there
            texts["config.toml"] = to_toml(replace(experiment, task=replace(experiment.task, data_dir=None)))
        kept = ("models", checkpoint.FOLDER, own)
        copies = {name: _copy(folder / name) for name in kept if name and (folder / name).exists()}
        create(out, {**texts, **copies, database.FILE: record})


def _copy(source: Path) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        if source.is_dir():
            shutil.copytree(source, path, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, path)

    return write
