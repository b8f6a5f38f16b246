"""Sweeps: many runs of one experiment with different settings, given as a grid, a list, or both.

    [sweep]
    grid = { "methods.0.mu" = [0.01, 0.1], "split.alpha" = [0.1, 1.0] }
    list = [ { "rounds" = 50, "local.lr" = 0.05 } ]

The points of the grid are all combinations, in the order written; those of the list follow.  A key is a dotted path
as for `--set`.  All points are checked before any is run.

    OUT/runs/001-mu=0.1,alpha=0.1/          the run folder of a point
    OUT/logs/001-mu=0.1,alpha=0.1.txt       the output of its processes, one after the other
    OUT/sweep.sqlite                        the queue, by which a sweep that was stopped goes on

Each point is a process, one per core, so by default it trains clients one after another on one thread.  Jobs of an
array each take a part of the points, by `shard`.
"""

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import MinLen

from unskew import machine, schema
from unskew.decide.cells import Crew, Failure, Outcome, QueuedCell, queue
from unskew.decide.cells import run as run_plans
from unskew.decide.crew import OnRay, Processes
from unskew.decide.runs import LoggedRuns, at_once, is_complete, run_cell
from unskew.errors import ConfigError, DataError, ProtocolError
from unskew.experiment import config
from unskew.experiment.config import Experiment
from unskew.run import setup as run_setup
from unskew.run.again import require_same
from unskew.run.folder import explained
from unskew.run.setup import Setup

Status = Literal["done", "failed", "open"]

LONGEST_NAME = 80


@dataclass(frozen=True, eq=False)
class Point:
    """One run of a sweep.

    Attributes:
        name: Number and settings; the name of its files.
        settings: Settings that differ from the sweep's experiment, by dotted path.
        experiment: The experiment of this point.
    """

    name: str
    settings: Mapping[str, Any]
    experiment: Experiment


@dataclass(frozen=True)
class PointResult:
    """Result of a point.

    Attributes:
        point: Name of the point.
        status: "open" if it was not started, was stopped before its end, or belongs to another shard.
        folder: Run folder.
        error: Error of a failed point.
    """

    point: str
    status: Status
    folder: Path
    error: str | None = None


# ---------------------------------------------------------------- from one file to many
_Grid = dict[str, Annotated[list[Any], MinLen(1)]]
_List = list[Annotated[dict[str, Any], MinLen(1)]]


@dataclass(frozen=True)
class _Table:
    """The table as it is written."""

    grid: _Grid = field(default_factory=dict)
    list: _List = field(default_factory=lambda: [])


def expand(path: Path, overrides: Sequence[str] = ()) -> tuple[str, tuple[Point, ...]]:
    """A sweep's name and points from its file.

    Raises:
        ConfigError: If there is no [sweep], it is empty, or a point is not a valid experiment; the message names it.
    """
    raw = config.override(config.read(path), overrides)
    table = raw.pop("sweep", None)
    if not isinstance(table, dict):
        raise ConfigError(f"{path} has no [sweep] table; write one with a grid or a list")
    name = raw.get("name", "experiment")
    given: _Table = schema.build(_Table, table, "sweep", str(path), owner="a sweep")
    grid = itertools.product(*given.grid.values()) if given.grid else ()
    combinations = [*(dict(zip(given.grid, values, strict=True)) for values in grid), *given.list]
    if not combinations:
        raise ConfigError(f"the sweep in {path} is empty: give sweep.grid or sweep.list at least one point")
    short = _short_names([key for settings in combinations for key in settings])
    points = tuple(
        _point(raw, settings, i, len(combinations), short, path) for i, settings in enumerate(combinations, start=1)
    )
    seen: dict[str, str] = {}
    for point in points:
        same = seen.setdefault(config.fingerprint(point.experiment), point.name)
        if same != point.name:
            raise ConfigError(f"points {same} and {point.name} of {path} are the same experiment; leave one out")
    return str(name), points


def _short_names(keys: Sequence[str]) -> dict[str, str]:
    """Last part of each path, or the whole path if two have the same last part."""
    last = {key: key.rpartition(".")[2] for key in keys}
    names = list(last.values())
    return {key: name if names.count(name) == 1 else key for key, name in last.items()}


def _point(
    raw: Mapping[str, Any], settings: Mapping[str, Any], number: int, count: int, short: Mapping[str, str], path: Path
) -> Point:
    label = ",".join(f"{short[key]}={_plain(value)}" for key, value in settings.items())
    digits = max(3, len(str(count)))
    name = f"{number:0{digits}d}-{''.join(c if c.isalnum() or c in '-_.+=,' else '-' for c in label)}"[:LONGEST_NAME]
    try:
        table = config.override(raw, settings)
        table["name"] = f"{table.get('name', 'experiment')} {label}"
        # One process per core: a point that took all cores would take them from the others.
        if isinstance(table.setdefault("runtime", {}), dict):
            table["runtime"].setdefault("executor", "sequential")
            table["runtime"].setdefault("threads", 1)
        parsed = config.parse(table, str(path), allow_code=True)
    except ConfigError as error:
        raise ConfigError(f"point {name}: {error}; nothing was run") from None
    return Point(name, dict(settings), parsed)


def _plain(value: Any) -> str:
    """Write a value for people; of a table its name, then its other settings."""
    if isinstance(value, dict):
        others = [f"{key}={_plain(of)}" for key, of in value.items() if key != "name"]
        return ",".join([_plain(value["name"]), *others] if "name" in value else others)
    return value if isinstance(value, str) else json.dumps(value, default=str).strip('"')


def check(points: Sequence[Point]) -> None:
    """Raise the errors that a point's run would raise before its first round.

    Raises:
        ConfigError, DataError, ProtocolError: Naming the point.
    """
    setups: dict[str, Setup] = {}
    for point in points:
        experiment = point.experiment
        try:
            # Points that differ in methods or splits only share data and network.
            key = repr((experiment.task, experiment.runtime))
            if key not in setups:
                setups.clear()
                setups[key] = run_setup.prepare(experiment)
            setup = setups[key]
            feds = {seed: run_setup.divide(experiment, setup.dataset, seed) for seed in experiment.seeds}
            for method in experiment.methods:
                run_setup.check_method(run_setup.PreparedRun(experiment, setup, feds), method)
        except (ConfigError, DataError, ProtocolError) as error:
            raise type(error)(f"point {point.name}: {error}; nothing was run") from None


def shard(points: Sequence[Point], part: str) -> tuple[Point, ...]:
    """The points of job I of N: every N-th, beginning with the I-th; empty if there are fewer than I.

    Raises:
        ConfigError: If `part` is not I/N.
    """
    numbers = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", part)
    if numbers is None or not 1 <= (i := int(numbers[1])) <= (n := int(numbers[2])):
        raise ConfigError(f"--shard must be I/N with I from 1 to N, such as 3/16, got {part!r}")
    return tuple(points[i - 1 :: n])


# ---------------------------------------------------------------- running
def run(
    points: Sequence[Point],
    out: Path,
    jobs: int | None,
    say: Callable[[str], None],
    part: str | None = None,
    ray: str | None = None,
) -> list[PointResult]:
    """Run points to their ends, each in a process; a failed point is a result, too.

    Args:
        points: All points, in the order in which they are started.
        out: Folder of the sweep.
        jobs: Number of processes at a time; by default one a core.
        say: Called with a line whenever a point ends.
        part: The part of them to run, as in `shard`; by default all.
        ray: Address of a Ray cluster to run on; the folder must be shared with its machines.

    Returns:
        The results of all points in the folder so far.

    Raises:
        ConfigError: If `jobs` is below one.
        RunError: If the folder holds another sweep, or (Interrupted) the user stopped; the same command resumes.
    """
    jobs = machine.cores() if jobs is None else jobs
    if jobs < 1:
        raise ConfigError(f"--jobs must be at least 1, got {jobs}")
    own = points if part is None else shard(points, part)
    for point in points:
        require_same(point.experiment, folder_of(point, out))
    place = out if part is None else out / f"shard-{part.replace('/', '-of-')}"
    with explained(place, None):
        place.mkdir(parents=True, exist_ok=True)
    cells = {run_cell(p.experiment, f"runs/{p.name}"): p for p in own}
    by_key = {cell.key: point for cell, point in cells.items()}
    counted = iter(range(1, len(own) + 1))

    def ended(cell: QueuedCell, outcome: Outcome) -> None:
        point = by_key[cell.key]
        what = f"FAILED: {outcome}" if isinstance(outcome, Failure) else "done"
        say(f"[{next(counted)}/{len(own)}] {point.name}: {what}")

    with queue(place / "sweep.sqlite") as kept:
        for cell, point in cells.items():
            if not is_complete(folder_of(point, out)):
                kept.forget(cell)
            else:  # by whomever
                kept.put(cell, {})
                say(f"[{next(counted)}/{len(own)}] {point.name}: was done already")
        if any(cell.key not in kept.known for cell in cells):
            if ray is None:
                crew: Crew = Processes(
                    LoggedRuns(out.absolute()), min(jobs, len(own)), new=True, threads=max(1, machine.cores() // jobs)
                )
            else:
                crew = OnRay(LoggedRuns(out.absolute()), ray, jobs)
            with closing(crew):
                run_plans([at_once([*cells])], kept, crew, lenient=True, ended=ended)
        failed = {by_key[key].name: why for key, why in kept.failed.items() if key in by_key}
    results = []
    for p in points:
        done, error = is_complete(folder_of(p, out)), failed.get(p.name)
        status: Status = "done" if done else "failed" if error else "open"
        results.append(PointResult(p.name, status, folder_of(p, out), None if done else error))
    return results


def folder_of(point: Point, out: Path) -> Path:
    """A point's run folder."""
    return out / "runs" / point.name
