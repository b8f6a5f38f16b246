"""Sweeps: many runs of one experiment with different settings, given as a grid, a list, or both.

    [sweep]
    grid = { "methods.0.mu" = [0.01, 0.1], "split.alpha" = [0.1, 1.0] }
    list = [ { "rounds" = 50, "local.lr" = 0.05 } ]

The points of the grid are all combinations, in the order written; those of the list follow.  A key is a dotted path as
for `--set`.  Every point becomes a file of its own, and all of them are checked before any is run.

    OUT/points/001-mu=0.01,alpha=0.1.toml    the experiment of a point
    OUT/runs/001-mu=0.01,alpha=0.1/          its run folder
    OUT/logs/001-mu=0.01,alpha=0.1.txt       the output of its processes, one after the other
    OUT/sweep.json                           the result of each point

Each point is a process of its own, one per core, so it trains one client after another on one thread unless the file
says otherwise.  A sweep that was stopped continues when it is started again: points that are done, including their
report, are not run again.

Several sweeps may work in one folder, on several machines too.  Who runs a point has the lock of its log, and its
process inherits that: a point is in use as long as either of them lives, and nobody else begins it.
"""

import itertools
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Literal

import tomli_w

from unskew.errors import ConfigError, DataError, ProtocolError, RunError, UnskewError
from unskew.experiment import config
from unskew.experiment.config import Experiment
from unskew.files import appendable, write_atomically
from unskew.lock import lock, lockable
from unskew.machine import cores
from unskew.run import setup as run_setup
from unskew.run.folder import explained, in_use, read_json
from unskew.run.loop import Interrupted
from unskew.run.setup import Setup
from unskew.signals import stop_requests
from unskew.tasks.measure import described

Status = Literal["done", "failed", "open"]

SCHEMA = 1
LONGEST_NAME = 80
POLL_S = 0.1
ELSEWHERE_S = 1.0
"""How often a point that another process runs is looked at."""
_ERROR = re.compile(r"[A-Za-z_.]*(?:Error|Exception|Interrupt|Interrupted|MemoryShortage)\b.*")
"""A line with which a process ends that fails."""
COMPLETE = ("summary.json", "report.html")
"""Files that a run writes last."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, eq=False)
class Point:
    """One run of a sweep.

    Attributes:
        name: Number and settings; the name of its files.
        settings: Settings that differ from the sweep's experiment, by dotted path.
        experiment: The experiment of this point.
        text: Content of its TOML file.
    """

    name: str
    settings: Mapping[str, Any]
    experiment: Experiment
    text: str


@dataclass(frozen=True)
class PointResult:
    """Result of a point.

    Attributes:
        point: Name of the point.
        status: "open" if the point was not started, was stopped before its end, or is run by another process.
        folder: Run folder.
        seconds: Duration of the whole run, over all its processes; of this process if the run did not end; 0 if it was
            not started.
        error: Of a failed point, the last error in its output, or what ended its process.
    """

    point: str
    status: Status
    folder: Path
    seconds: float
    error: str | None = None


# ---------------------------------------------------------------- from one file to many
def expand(path: Path, overrides: Sequence[str] = ()) -> tuple[str, tuple[Point, ...]]:
    """Read a sweep's name and points from its file.

    Raises:
        ConfigError: If there is no [sweep], it is empty, or a point is not a valid experiment; names the point.
    """
    raw = config.override(config.read(path), overrides)
    table = raw.pop("sweep", None)
    if not isinstance(table, dict):
        raise ConfigError(
            f"{path} has no [sweep] table; write one with a grid or a list, give one as in "
            """--set 'sweep.grid={"split.alpha"=[0.1,1.0]}', or use unskew run"""
        )
    name = raw.get("name", "experiment")
    combinations = [*_grid(table, path), *_list(table, path)]
    unknown = sorted(table.keys() - {"grid", "list"})
    if unknown:
        raise ConfigError(f"unknown key sweep.{unknown[0]} (sweep has: grid, list) ({path})")
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


def _grid(table: Mapping[str, Any], path: Path) -> Iterator[dict[str, Any]]:
    grid = table.get("grid")
    if grid is None:
        return
    if not isinstance(grid, dict) or not grid:
        raise ConfigError(f'sweep.grid must be a table such as {{ "local.lr" = [0.1, 0.01] }}, got {grid!r} ({path})')
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            inner = next(iter(values), None) if isinstance(values, dict) else None
            hint = f'; write the path in quotes: "{key}.{inner}"' if inner else ""
            raise ConfigError(f"sweep.grid: {key} must be a list of at least one value, got {values!r}{hint} ({path})")
    for combination in itertools.product(*grid.values()):
        yield dict(zip(grid, combination, strict=True))


def _list(table: Mapping[str, Any], path: Path) -> Iterator[dict[str, Any]]:
    entries = table.get("list", [])
    if not isinstance(entries, list):
        raise ConfigError(f"sweep.list must be a list of tables, got {entries!r} ({path})")
    for entry in entries:
        if not isinstance(entry, dict) or not entry:
            raise ConfigError(f"sweep.list must hold tables of at least one setting, got {entry!r} ({path})")
        yield entry


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
        table = config.override(raw, [f"{key}={_toml(value)}" for key, value in settings.items()])
        table["name"] = f"{table.get('name', 'experiment')} {label}"
        # One process per core: a point that took all cores would take them from the others.
        if isinstance(table.setdefault("runtime", {}), dict):
            table["runtime"].setdefault("executor", "sequential")
            table["runtime"].setdefault("threads", 1)
        parsed = config.parse(table, str(path), allow_code=True)
    except ConfigError as error:
        raise ConfigError(f"point {name}: {error}; nothing was run") from None
    return Point(name, dict(settings), parsed, tomli_w.dumps(table))


def _plain(value: Any) -> str:
    """Write a value for people; of a table its name, then its other settings."""
    if isinstance(value, dict):
        others = [f"{key}={_plain(of)}" for key, of in value.items() if key != "name"]
        return ",".join([_plain(value["name"]), *others] if "name" in value else others)
    return value if isinstance(value, str) else json.dumps(value, default=str).strip('"')


def _toml(value: Any) -> str:
    """Write a value as TOML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return tomli_w.dumps({"v": value}).partition("=")[2].strip()


def repeated(points: Sequence[Point]) -> str:
    """A sentence on methods that train the same in several points, as none of their settings differs; empty if none."""
    seen: set[str] = set()
    labels: dict[str, None] = {}
    total = again = 0
    for experiment in (p.experiment for p in points):
        if experiment.until is not None:  # how many seeds there will be depends on all methods
            return ""
        table = config.resolved(experiment)
        table.pop("name")
        for method in table.pop("methods"):
            key = repr((table, method))
            total += 1
            if key in seen:
                again += 1
                labels[method["label"]] = None
            seen.add(key)
    if not again:
        return ""
    return (
        f"{again} of {total} trainings of a method repeat{'s' * (again == 1)} that of another point, because the "
        f"points differ in settings of other methods only ({', '.join(labels)}); to train these once, leave them "
        "out of the sweep, give them a run of their own, and set it beside the points with unskew show"
    )


def check(points: Sequence[Point]) -> None:
    """Refuse points that a run would refuse before its first round: data, splits, cohorts, networks, local steps.

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
                run_setup.check_method(experiment, method, setup, feds)
        except (ConfigError, DataError, ProtocolError) as error:
            raise type(error)(f"point {point.name}: {error}; nothing was run") from None


def shard(points: Sequence[Point], part: str) -> tuple[Point, ...]:
    """The points of one job of several: of I/N every N-th, beginning with the I-th; none if there are fewer than I.

    Raises:
        ConfigError: If `part` is not such a pair of numbers.
    """
    numbers = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", part)
    if numbers is None or not 1 <= (i := int(numbers[1])) <= (n := int(numbers[2])):
        raise ConfigError(f"--shard must be I/N with I from 1 to N, such as 3/16, got {part!r}")
    return tuple(points[i - 1 :: n])


def write_points(points: Sequence[Point], out: Path) -> dict[str, Path]:
    """Write each point's file; return the files by point.

    Raises:
        RunError: If the folder holds files of another sweep.
    """
    folder = out / "points"
    with explained(folder, None):
        folder.mkdir(parents=True, exist_ok=True)
    files = {p.name: folder / f"{p.name}.toml" for p in points}
    strangers = sorted(set(folder.glob("*.toml")) - set(files.values()))
    changed = [f for p in points if (f := files[p.name]).exists() and f.read_text("utf-8") != p.text]
    if strangers or changed:
        raise RunError(
            f"{out} holds another sweep ({(changed or strangers)[0].name} is not of this one); choose another --out; "
            "points can be added at the end of sweep.list, since they are numbered in order"
        )
    for point in points:
        if not files[point.name].exists():
            with explained(files[point.name], None):
                write_atomically(files[point.name], point.text)
    return files


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Write to the folder of a sweep while no other process does: wait for those that do.

    Raises:
        RunError: If the disk refuses, or the file system has no locks.
    """
    with explained(out / ".lock", None):
        f = lockable(out / ".lock")
    with f:
        while True:
            try:
                lock(f)
                break
            except BlockingIOError:
                time.sleep(POLL_S)
        yield


# ---------------------------------------------------------------- running
class SweepRunner:
    """Runs the points of a sweep, each in a process of its own.

    Points that another process runs are left to it.  Whoever ends last has written the results of all.

    Args:
        points: Points, in the order they are started.
        out: Folder of the sweep.
        jobs: Number of processes at a time.
        say: Called with a line whenever a point ends.
        command: Command line of `unskew`.
        own: Points to run, if these are not all; the others are run by other processes, which are not waited for.
    """

    def __init__(
        self,
        points: Sequence[Point],
        out: Path,
        jobs: int,
        say: Callable[[str], None],
        command: Sequence[str] = (sys.executable, "-m", "unskew"),
        *,
        own: Sequence[Point] | None = None,
    ) -> None:
        if jobs < 1:
            raise ConfigError(f"--jobs must be at least 1, got {jobs}")
        if out.exists() and not out.is_dir():
            raise RunError(f"{out} is a file, not the folder of a sweep; choose another --out")
        self.points, self.out, self.jobs, self.say, self.command = points, out, jobs, say, command
        self.own = points if own is None else own
        self.results: dict[str, PointResult] = {}
        self._before: dict[str, Mapping[str, Any]] = {}
        self._elsewhere: set[str] = set()
        self._stops = 0

    def run(self) -> list[PointResult]:
        """Run every point to its end; a failed point is a result too, and the others go on.

        Raises:
            Interrupted: If the user stopped the sweep; its points can be continued from their checkpoints.
            RunError: If the folder holds another sweep.
        """
        with explained(self.out, None):
            self.out.mkdir(parents=True, exist_ok=True)
        with alone(self.out):
            files = write_points(self.points, self.out)
        for part in ("runs", "logs"):
            with explained(self.out / part, None):
                (self.out / part).mkdir(exist_ok=True)
        self._before = self._recorded()
        waiting = deque(p for p in self.own if not self._was_done(p))
        elsewhere: list[Point] = []
        running: dict[str, _PointProcess] = {}
        look_again = 0.0
        with self._forwarding_signals(running):
            while running or ((waiting or elsewhere) and not self._stops):
                if elsewhere and time.monotonic() >= look_again:
                    waiting.extend(elsewhere)
                    elsewhere.clear()
                while waiting and len(running) < self.jobs and not self._stops:
                    point = waiting.popleft()
                    child = self._begin(point, files[point.name])
                    if child is not None:
                        running[point.name] = child
                    elif point.name not in self.results:
                        elsewhere.append(point)
                        look_again = time.monotonic() + ELSEWHERE_S
                self._forward_stops(running)
                for name in [n for n, child in running.items() if child.process.poll() is not None]:
                    child = running.pop(name)
                    self._end(child)
                    if name not in self.results:
                        elsewhere.append(child.point)
                        look_again = time.monotonic() + ELSEWHERE_S
                time.sleep(POLL_S)
        results = self._write()
        if self._stops:
            done = sum(r.status == "done" for r in results)
            raise Interrupted(
                f"stopped by request, {done} of {len(results)} points done in {self.out}; give the same command again"
            )
        return results

    def collected(self) -> list[PointResult]:
        """The results of all points in the folder so far, whoever ran them."""
        recorded = self._recorded()
        return [self._result(point, recorded.get(point.name, {})) for point in self.points]

    def _result(self, point: Point, recorded: Mapping[str, Any]) -> PointResult:
        folder, own = self._folder(point), self.results.get(point.name)
        if own is not None and own.status == "done":
            return own
        if _is_done(folder):
            return PointResult(point.name, "done", folder, _run_seconds(folder))
        if own is None and recorded.get("status") == "failed" and not self._runs(point):
            return self._failure(point, recorded)
        return own or PointResult(point.name, "open", folder, 0.0)

    def _failure(self, point: Point, recorded: Mapping[str, Any]) -> PointResult:
        seconds, error = float(recorded.get("seconds", 0.0)), str(recorded.get("error"))
        return PointResult(point.name, "failed", self._folder(point), seconds, error)

    def _runs(self, point: Point) -> bool:
        """True if a process runs the point now."""
        log = self._claimed(point)
        if log is not None:
            log.close()
        return log is None

    def _recorded(self) -> dict[str, Mapping[str, Any]]:
        """The rows of `sweep.json`, by point; none if it is not there yet."""
        path = self.out / "sweep.json"
        rows = read_json(path).get("points", []) if path.exists() else []
        return {row["point"]: row for row in rows if isinstance(row, dict) and "point" in row}

    def _folder(self, point: Point) -> Path:
        return self.out / "runs" / point.name

    def _was_done(self, point: Point, how: str = "was done already") -> bool:
        folder = self._folder(point)
        if (folder / "run.json").exists():
            same = read_json(folder / "run.json").get("config_sha256") == config.fingerprint(point.experiment)
            if not same and not config.is_written_in(folder / "config.toml", point.experiment):
                raise RunError(f"{folder} is the run of another experiment; choose another --out")
        if not _is_done(folder):
            return False
        self.results[point.name] = PointResult(point.name, "done", folder, _run_seconds(folder))
        self.say(f"{self._counter()} {point.name}: {how}")
        return True

    def _failed_elsewhere(self, point: Point) -> bool:
        """True if another process tried the point since this sweep was started, so that it is not tried again."""
        row = self._recorded().get(point.name, {})
        if row.get("status") != "failed" or row == self._before.get(point.name):
            return False
        result = self.results[point.name] = self._failure(point, row)
        self.say(f"{self._counter()} {point.name}: FAILED in another process: {result.error}")
        return True

    def _begin(self, point: Point, file: Path) -> "_PointProcess | None":
        """Start a point's process; None if another process runs the point, or has run it."""
        folder, log = self._folder(point), self._claimed(point)
        if log is None:
            # What outlives a run that is done, as a tracker's process, may still hold the lock.
            if not self._was_done(point, "done by another process"):
                self._left(point)
            return None
        try:
            # Only now nobody else can end it between this look and its start.
            if self._was_done(point, "done by another process") or self._failed_elsewhere(point):
                log.close()
                return None
            if (folder / "run.json").exists():
                order = ["resume", "--allow-code", str(folder)]  # the code of the sweep's own file
            else:
                order = ["run", str(file), "--out", str(folder)]
            heading = f"== {datetime.now():%Y-%m-%d %H:%M:%S} on {platform.node()}: {shlex.join(['unskew', *order])}\n"
            with explained(Path(log.name), None):
                log.write(heading.encode())
                log.flush()
            share = max(point.experiment.runtime.threads or 1, cores() // self.jobs)
            threads = dict.fromkeys(THREAD_VARIABLES, str(share))
            start = log.tell()
            process = subprocess.Popen(
                [*self.command, *order],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **threads},
                # Ctrl-C in a terminal would reach the whole group at once; children get it from us, once.
                start_new_session=True,
            )
        except BaseException:
            log.close()
            raise
        self._elsewhere.discard(point.name)
        return _PointProcess(point, process, log, start, time.monotonic())

    def _claimed(self, point: Point) -> IO[bytes] | None:
        """The log of a point, locked for this process and the one it starts; None if the point is in use elsewhere."""
        path = self.out / "logs" / f"{point.name}.txt"
        with explained(path, None):
            log = appendable(path)
        try:
            lock(log)
            if not in_use(self._folder(point)):  # by a run that no sweep started
                return log
        except BlockingIOError:
            pass
        except BaseException:
            log.close()
            raise
        log.close()
        return None

    def _left(self, point: Point) -> None:
        """Say, once, that a point is left to another process."""
        if point.name not in self._elsewhere:
            self._elsewhere.add(point.name)
            self.say(f"{point.name}: runs in another process, which is waited for")

    def _end(self, child: "_PointProcess") -> None:
        """Record the result of a process; none if it gave way to another one, which uses the run's folder."""
        seconds = time.monotonic() - child.begun
        point, folder = child.point, self._folder(child.point)
        try:
            # Of a run in which a method diverged it is 1: the others have results.
            if child.process.returncode in (0, 1) and _is_done(folder):
                seconds = _run_seconds(folder)
                self.results[point.name] = PointResult(point.name, "done", folder, seconds)
                self.say(f"{self._counter()} {point.name}: done in {seconds:.0f} s{_best(folder)}")
            elif self._stops:
                self.results[point.name] = PointResult(point.name, "open", folder, seconds)
                self.say(f"{self._counter()} {point.name}: stopped")
            elif in_use(folder):
                self._left(point)
            elif not self._was_done(point, "done by another process"):
                error = child.error()
                self.results[point.name] = PointResult(point.name, "failed", folder, seconds, error)
                self.say(f"{self._counter()} {point.name}: FAILED after {seconds:.0f} s: {error}")
            self._write()
        finally:
            child.log.close()  # after the result is written: whoever begins the point next knows of it

    def _counter(self) -> str:
        return f"[{len(self.results)}/{len(self.own)}]"

    def _write(self) -> list[PointResult]:
        """Write the results of all points in the folder so far, and return them."""
        path = self.out / "sweep.json"
        with alone(self.out):
            results = self.collected()
            rows = [
                {
                    "point": p.name,
                    "settings": p.settings,
                    "status": r.status,
                    "run": str(r.folder.relative_to(self.out)),
                    "seconds": r.seconds,
                    "error": r.error,
                }
                for p, r in zip(self.points, results, strict=True)
            ]
            with explained(path, None):
                write_atomically(path, json.dumps({"schema": SCHEMA, "points": rows}, indent=1, default=str))
        return results

    def _forward_stops(self, running: Mapping[str, "_PointProcess"]) -> None:
        """Forward requests to stop: a run stops after its round at the first signal, and at once at the second."""
        for child in running.values():
            while child.stops_sent < self._stops:
                child.process.send_signal(signal.SIGINT)
                child.stops_sent += 1

    @contextmanager
    def _forwarding_signals(self, running: Mapping[str, "_PointProcess"]) -> Iterator[None]:
        """Forward Ctrl-C (or SIGTERM, SIGHUP) to the children, which save and end; a second one ends them at once."""

        def asked(times: int) -> None:
            self._stops = times
            if times == 1:
                self.say("stopping after the rounds in progress; press Ctrl-C again to stop at once")

        with stop_requests(asked):
            try:
                yield
            finally:
                if running:  # only if something went wrong here
                    self._stops = max(self._stops, 1)
                while any(child.process.poll() is None for child in running.values()):
                    self._forward_stops(running)
                    time.sleep(POLL_S)
                for child in running.values():
                    child.log.close()


@dataclass(eq=False)
class _PointProcess:
    """A point's process, its log and where in it it begins, when it was started, and the stop signals sent to it."""

    point: Point
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    start: int
    begun: float
    stops_sent: int = 0

    def error(self) -> str:
        """Why the process failed, in one line."""
        code = self.process.returncode
        if code < 0:
            killed = "; the system does so if memory runs out" if code == -signal.SIGKILL else ""
            return f"its process was ended by signal {-code}, {signal.strsignal(-code)}{killed}"
        with open(self.log.name, "rb") as f:
            f.seek(self.start)
            lines = [line.strip() for line in f.read().decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if _ERROR.match(line)]
        return (errors or lines or [f"exit code {code}"])[-1]


def _is_done(folder: Path) -> bool:
    # The report comes last: a run that was stopped before it has still to write it.
    return all((folder / name).exists() for name in COMPLETE)


def _run_seconds(folder: Path) -> float:
    return float(read_json(folder / "summary.json").get("seconds", 0.0))


def _best(folder: Path) -> str:
    """Describe the headline metric of the best method; empty if no model was evaluated."""
    try:
        summary = read_json(folder / "summary.json")
    except UnskewError:
        return ""
    measure = described(summary.get("headline"))
    rows = (r for r in summary["rows"] if r["metric"] == measure.shared and not r.get("undefined"))
    means = {r["method"]: r["mean"] for r in rows}
    if not means:
        return ""
    best = measure.first(means)
    return f", {best} {measure.with_unit(means[best])}"
