"""unskew beside its peers, on one task, in one run: python bench/peers/run.py.

Every contender has its own environment (`contenders.py`) and reads the same data and the same first model.  A pass runs
all contenders one after the other, each pass beginning with another of them; passes follow each other, so that a busy
machine slows all.  In the first pass of a task memory is sampled, which costs time: its seconds are not used.  Nothing
here but the standard library.
"""

import argparse
import dataclasses
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from contenders import CONTENDERS, Contender, python_of
from job import Job
from watched import Watched, adopt, watch

from unskew.machine import processor

IN_PROCESS = Path(__file__).resolve().parent
ROOT = IN_PROCESS.parent.parent
CACHE = ROOT / ".cache" / "peers"
DOCS = ROOT / "docs" / "benchmarks"
# Accuracies are equal if the ranges of a contender's runs come so near; and whoever guesses is right one time in ten.
ACCURACY_MARGIN, LEARNED = 0.01, 0.2
PSS_BAR, START_BAR_S = 1.5, 1.0
# A contender whose pass takes longer is timed so often only, and its row says so.
LONG_S, OF_LONG = 150.0, 2


@dataclass(frozen=True)
class Setup:
    """How large a task is: the real one, or one to try the machinery with."""

    clients: int
    samples: int
    tasks: tuple[tuple[str, int, int], ...]  # model, clients per round, rounds


FULL = Setup(100, 500, (("mlp", 10, 20), ("mlp", 100, 10), ("cnn", 10, 10), ("cnn", 100, 3)))
SMALL = Setup(20, 100, (("mlp", 4, 3), ("mlp", 20, 3), ("cnn", 4, 3), ("cnn", 20, 3)))


@dataclass(frozen=True)
class Run:
    """One run of one contender.

    Attributes:
        failure: Why there is nothing to compare; None if there is.
        start_s: From the end of imports to the end of the first round: data, set-up, round.
        imports_s, first_s, total_s: Until imports were over; first round with set-up, data apart; the whole process.
        later_s: Each round after the first.
        steps, accuracy: Local steps counted, and of the final model on the common test set.
        pss_mb: Peak of the process tree; None where it was not sampled.
    """

    failure: str | None
    imports_s: float | None = None
    start_s: float | None = None
    first_s: float | None = None
    later_s: tuple[float, ...] = ()
    total_s: float | None = None
    steps: int | None = None
    accuracy: float | None = None
    pss_mb: float | None = None
    setting: str = ""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)


# ---------------------------------------------------------------- one run
def once(contender: Contender, job: Job, box_s: float, memory: bool) -> Run:
    """Run a contender once, in an environment made if need be."""
    try:
        python = python_of(contender, CACHE)
    except (RuntimeError, OSError) as error:
        return Run(f"not installed: {error}")
    journal = Path(job.out)
    for old in (journal, journal.with_suffix(".npz")):
        old.unlink(missing_ok=True)
    card = journal.with_suffix(".json")
    job.write(card)
    command = [str(python), str(IN_PROCESS / "task.py"), contender.name, str(card)]
    watched = watch(command, _environment(), box_s, journal.with_suffix(".log"), memory)
    lines = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    return _read(lines, watched, job)


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        # Ray's workers import the task by name; unskew may be a checkout that was not installed.
        "PYTHONPATH": os.pathsep.join((str(IN_PROCESS), str(ROOT))),
        "PYTHONWARNINGS": "ignore",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_HOME": str(CACHE / "flwr-home"),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


def _read(lines: Sequence[dict[str, Any]], watched: Watched, job: Job) -> Run:
    at = {line["what"]: line["at"] for line in lines}
    rounds = [line["at"] for line in lines if line["what"] == "round"]
    end = next((line for line in lines if line["what"] == "end"), {})
    failure = watched.failure
    if failure is not None and lines:
        failure += f" ({len(rounds)} of {job.rounds} rounds done)"
    elif failure is None and not end:
        failure = "ended without a result"
    elif failure is None and end["steps"] != job.steps:
        failure = f"took {end['steps']} local steps, {job.steps} expected"
    accuracy = None
    if failure is None:
        try:
            accuracy = _judge(job)
        except RuntimeError as error:
            failure = str(error)
    return Run(
        failure=failure,
        imports_s=at["imported"] - watched.began if "imported" in at else None,
        start_s=rounds[0] - at["imported"] if rounds else None,
        first_s=rounds[0] - at["loaded"] if rounds else None,
        later_s=tuple(b - a for a, b in itertools.pairwise(rounds)),
        total_s=watched.ended - watched.began,
        steps=end.get("steps"),
        accuracy=accuracy,
        pss_mb=watched.pss_mb,
        setting=end.get("setting", ""),
        versions=end.get("versions", {}),
    )


def _judge(job: Job) -> float:
    data, final = Path(job.data) / f"{job.model}.npz", Path(job.out).with_suffix(".npz")
    command = [sys.executable, str(IN_PROCESS / "judge.py"), job.model, str(data), str(final)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"its final model cannot be judged: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout)


# ---------------------------------------------------------------- a task
def measure(job: Job, who: Sequence[Contender], repeats: int, box_s: float) -> dict[str, list[Run]]:
    """All runs of a task by contender; the first of each is the one whose memory was sampled.

    A contender that fails is not asked again.
    """
    case = f"{job.model}-{job.cohort}"
    jobs = {c.name: dataclasses.replace(job, out=str(CACHE / "runs" / f"{case}-{c.name}.jsonl")) for c in who}
    for c in who:
        if c.scan is not None:
            jobs[c.name] = _best(c, jobs[c.name], c.scan, box_s)
    runs: dict[str, list[Run]] = {c.name: [] for c in who}
    for number in range(repeats + 1):
        for c in (*who[number % len(who) :], *who[: number % len(who)]):
            mine = runs[c.name]
            if mine and (mine[-1].failure or (len(mine) > OF_LONG and max(r.total_s or 0.0 for r in mine) > LONG_S)):
                continue
            mine.append(once(c, jobs[c.name], box_s, memory=number == 0))
            said = mine[-1].failure or f"{mine[-1].total_s:.1f} s, accuracy {mine[-1].accuracy:.3f}"
            print(f"{case} pass {number} of {repeats}: {c.name}: {said}", file=sys.stderr, flush=True)
    return runs


def _best(contender: Contender, job: Job, what: str, box_s: float) -> Job:
    """The job with as many threads or slots as were fastest in two rounds."""
    found: list[tuple[float, Job]] = []
    # Halves of the cores: what does not divide them leaves some idle.
    for number in [
        n for n in range(1, job.cores + 1) if job.cores % n == 0 and (what == "slots" or n in (1, job.cores))
    ]:
        fewer = dataclasses.replace(job, rounds=2, **{what: number})
        tried = once(contender, fewer, box_s, memory=False)
        said = tried.failure or f"{tried.later_s[0]:.3f} s/round"
        print(f"{job.model}-{job.cohort} {contender.name}, {what} {number}: {said}", file=sys.stderr, flush=True)
        if tried.failure is None:
            found.append((tried.later_s[0], dataclasses.replace(job, **{what: number})))
    return min(found, key=lambda pair: pair[0])[1] if found else job


# ---------------------------------------------------------------- the table
def row(name: str, runs: Sequence[Run], ours: Sequence[Run], job: Job) -> dict[str, Any]:
    """What a contender's runs come to; ratios only where it did the same work as unskew, and as well."""
    failure = next((r.failure for r in runs if r.failure), None)
    out: dict[str, Any] = {"case": case_of(job), "contender": name, "failure": failure}
    timed = [r for r in runs[1:] if r.failure is None]
    later = [s for r in timed for s in r.later_s]
    sampled = runs[0].pss_mb if runs and runs[0].failure is None else None
    out |= {
        "setting": next((r.setting for r in runs if r.setting), ""),
        "versions": next((r.versions for r in runs if r.versions), {}),
        "pss_mb": sampled,
        "runs": [dataclasses.asdict(r) for r in runs],
    }
    if failure or not later:
        return out
    for what in ("imports_s", "start_s", "first_s", "total_s", "accuracy"):
        values = [getattr(r, what) for r in timed]
        out[what] = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    out["later_s"] = {"median": statistics.median(later), "min": min(later), "max": max(later), "n": len(later)}
    samples = job.cohort * job.samples
    out["samples_per_second"] = {"median": samples / statistics.median(later), "best": samples / min(later)}
    base = [s for r in ours[1:] if r.failure is None for s in r.later_s]
    if not base:
        out["not_compared"] = "unskew has no result"
        return out
    accuracies = [r.accuracy for r in ours[1:] if r.failure is None]
    reference = statistics.median(accuracies)
    reached = out["accuracy"]["median"]
    if min(reached, reference) < LEARNED:
        whose = "it" if reached < LEARNED else "unskew"
        out["not_compared"] = f"{whose} learned nothing: accuracy {min(reached, reference):.3f}"
        return out
    low, high = out["accuracy"]["min"], out["accuracy"]["max"]
    if max(low - max(accuracies), min(accuracies) - high) > ACCURACY_MARGIN:
        out["not_compared"] = f"accuracy {_range(low, high)}, unskew {_range(min(accuracies), max(accuracies))}"
        return out
    out["times_unskew"] = {
        "of_minima": min(later) / min(base),
        "of_medians": statistics.median(later) / statistics.median(base),
    }
    return out


def _range(low: float, high: float) -> str:
    return f"{low:.3f}" if f"{low:.3f}" == f"{high:.3f}" else f"{low:.3f} to {high:.3f}"


def case_of(job: Job) -> str:
    """What tables call the task."""
    return f"{job.model}, {job.cohort}/round"


def line(rows: Sequence[dict[str, Any]]) -> str:
    """One task on one line, unskew first."""
    parts = []
    for r in rows:
        if r["failure"] or "later_s" not in r:
            parts.append(f"{r['contender']} failed: {r['failure'] or 'no second round'}")
            continue
        ratio = (
            f"{r['times_unskew']['of_minima']:.2f}x of minima, {r['times_unskew']['of_medians']:.2f}x of medians"
            if "times_unskew" in r
            else f"not compared: {r['not_compared']}"
        )
        seconds = f"{r['later_s']['median']:.3f} s/round, start {r['start_s']['median']:.2f} s"
        parts.append(f"{r['contender']} {seconds}" + ("" if r["contender"] == "unskew" else f" ({ratio})"))
    return f"{rows[0]['case']}: " + " | ".join(parts)


def started(rows: Iterable[dict[str, Any]]) -> float | None:
    """Seconds from unskew's imports to the end of its first round, median; None if it has no result."""
    return next((r["start_s"]["median"] for r in rows if r["contender"] == "unskew" and "start_s" in r), None)


def verdict(value: float, bar: float) -> str:
    """Whether a bar that must not be passed was kept to."""
    return f"bar {bar}: {'met' if value <= bar else 'not met'}"


def pss_ratio(rows: Iterable[dict[str, Any]]) -> float | None:
    """Peak PSS of unskew over pfl-research's; None if one of them has none."""
    pss = {r["contender"]: r["pss_mb"] for r in rows}
    mine, theirs = pss.get("unskew"), pss.get("pfl")
    return mine / theirs if mine and theirs else None


def machine() -> dict[str, str]:
    """What the seconds depend on."""
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
    return {
        "cpu": processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory:.1f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_before": f"{os.getloadavg()[0]:.2f}",
    }


def page(document: dict[str, Any]) -> str:
    """The generated part of docs/benchmarks/peers.md."""
    rows, m = document["rows"], document["machine"]
    settings: dict[str, str] = {}
    versions: dict[str, dict[str, str]] = {}
    for r in rows:
        if r["setting"] and r["setting"] not in settings.get(r["contender"], ""):
            settings[r["contender"]] = "; ".join(filter(None, (settings.get(r["contender"]), r["setting"])))
        versions.setdefault(r["contender"], r["versions"])
    where = f"{m['cpu']}, {m['cores']} cores, {m['memory']}, {m['system']}, Python {m['python']}"
    out = [
        f"Measured {document['date']} on {where}; load {m['load_before']} before the run.",
        f"{document['repeats']} timed runs of each contender, taking turns, after one whose memory was sampled; "
        f"{OF_LONG} of one whose run takes more than {LONG_S:.0f} s.",
        "",
        "| task | contender | runs | start s | later rounds s: median (min-max) | x unskew: minima / medians "
        "| samples/s | whole run s | peak PSS MB | accuracy |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        pss = f"{r['pss_mb']:,.0f}" if r["pss_mb"] else ""
        if "later_s" not in r:
            out.append(f"| {r['case']} | {r['contender']} | | | {_cell(r['failure'])} | | | | {pss} | |")
            continue
        s, x = r["later_s"], r.get("times_unskew")
        ratio = f"{x['of_minima']:.2f} / {x['of_medians']:.2f}" if x else f"not compared: {r['not_compared']}"
        out.append(
            f"| {r['case']} | {r['contender']} | {len(r['runs']) - 1} | {r['start_s']['median']:.2f} "
            f"| {s['median']:.3f} ({s['min']:.3f}-{s['max']:.3f}) | {ratio} "
            f"| {r['samples_per_second']['median']:,.0f} | {r['total_s']['median']:.1f} | {pss} "
            f"| {r['accuracy']['median']:.3f} |"
        )
    out += ["", "| task | peak PSS, unskew / pfl-research | unskew's start s |", "|---|---|---|"]
    for case, ratio in document["pss_unskew_over_pfl"].items():
        start = document["unskew_start_s"].get(case)
        pss = f"{ratio:.2f} ({verdict(ratio, PSS_BAR)})" if ratio else "not measured"
        began = f"{start:.2f} ({verdict(start, START_BAR_S)})" if start is not None else "not measured"
        out.append(f"| {case} | {pss} | {began} |")
    out += ["", "| contender | setting | versions |", "|---|---|---|"]
    for name, found in versions.items():
        listed = ", ".join(f"{package} {v}" for package, v in found.items())
        out.append(f"| {name} | {settings.get(name, '')} | {listed} |")
    return "\n".join(out) + "\n"


def _cell(failure: str | None) -> str:
    return (failure or "no second round").replace("|", "/")


BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"


def write(document: dict[str, Any], folder: Path) -> None:
    """peers.json, and the table into peers.md between its two marks."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "peers.json").write_text(json.dumps(document, indent=1) + "\n")
    path = folder / "peers.md"
    text = path.read_text() if path.exists() else BEGIN + END
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path} has lost the two lines between which the table goes: {BEGIN.strip()} {END.strip()}")
    path.write_text(head + BEGIN + page(document) + END + tail)


# ---------------------------------------------------------------- the command
def _data(setup: Setup) -> Path:
    """The folder of the task's data, written anew when what writes it has changed."""
    folder = CACHE / f"data-{setup.clients}x{setup.samples}"
    stamp = folder / "made-by"
    made_by = "".join((IN_PROCESS / name).read_text() for name in ("make_data.py", "network.py"))
    if not stamp.exists() or stamp.read_text() != made_by:
        command = [
            sys.executable,
            str(IN_PROCESS / "make_data.py"),
            str(folder),
            str(setup.clients),
            str(setup.samples),
        ]
        subprocess.run(command, check=True)
        stamp.write_text(made_by)
    return folder


def main() -> None:
    """Measure what was asked for; print a line per task, write JSON and table: of a part to .cache, of all to docs."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--repeats", type=int, default=5, help="timed runs of each contender")
    arguments.add_argument("--box", type=float, default=600.0, help="seconds a single run may take")
    arguments.add_argument("--only", nargs="+", metavar="TASK", help="such as mlp-10 cnn-100")
    arguments.add_argument("--contenders", nargs="+", choices=[c.name for c in CONTENDERS])
    arguments.add_argument("--small", action="store_true", help="try the machinery on little data")
    asked = arguments.parse_args()
    setup = SMALL if asked.small else FULL
    tasks = [t for t in setup.tasks if not asked.only or f"{t[0]}-{t[1]}" in asked.only]
    who = [c for c in CONTENDERS if not asked.contenders or c.name in asked.contenders]
    if not tasks or asked.repeats < 1:
        raise SystemExit(f"nothing to do: tasks are {[f'{m}-{n}' for m, n, _ in setup.tasks]}, repeats at least 1")
    # Rows of another day or machine are not replaced by a part of them.
    folder = CACHE / "part" if asked.small or asked.only or asked.contenders else DOCS
    adopt()
    (CACHE / "runs").mkdir(parents=True, exist_ok=True)
    data = _data(setup)
    document: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "repeats": asked.repeats,
        "box_s": asked.box,
        "task": "FedAvg, batch 50, 1 local epoch, SGD lr 0.05; see docs/benchmarks/peers.md",
        "rows": [],
        "pss_unskew_over_pfl": {},
        "unskew_start_s": {},
    }
    cores = len(os.sched_getaffinity(0))
    for model, cohort, rounds in tasks:
        job = Job(model, setup.clients, setup.samples, cohort, rounds, 50, 0.05, cores, cores, cores, str(data), "")
        runs = measure(job, who, asked.repeats, asked.box)
        rows = [row(c.name, runs[c.name], runs.get("unskew", ()), job) for c in who]
        document["rows"] += rows
        document["pss_unskew_over_pfl"][case_of(job)] = ratio = pss_ratio(rows)
        print(line(rows))
        if ratio:
            print(f"  peak PSS, unskew / pfl-research: {ratio:.2f} ({verdict(ratio, PSS_BAR)})", flush=True)
        document["unskew_start_s"][case_of(job)] = start = started(rows)
        if start is not None:
            print(f"  unskew's start: {start:.2f} s ({verdict(start, START_BAR_S)})", flush=True)
        write(document, folder)  # after each task: a run that is cut off keeps these


if __name__ == "__main__":
    main()
