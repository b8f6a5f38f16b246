"""What a reproduction comes to: rows with the paper's number beside ours, and claims with a verdict.

A claim is decided by paired differences over seeds with Student's 95 % interval: it holds if the whole interval is on
its side, does not hold if the whole interval is on the other, and is undecided otherwise.
"""

import dataclasses
import io
import json
import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.box import SIMPLE
from rich.table import Table
from scipy import stats

from unskew.api import History, history, of_all_seeds
from unskew.errors import DivergedError, RunError
from unskew.experiment import config
from unskew.files import write_atomically
from unskew.run import loop, models
from unskew.run.callbacks import Callback
from unskew.version import __version__


@dataclass(frozen=True, eq=False)
class Request:
    """What was asked for: which reproduction, how large, where its runs go, where data lie, who watches."""

    name: str
    scale: str
    folder: Path
    data_dir: Path | None
    callback: Callback


@dataclass(frozen=True)
class Row:
    """One number.

    Attributes:
        paper: The published value, or None where nothing was published.
        ours: Mean over seeds (or clients); None if there is none, and `note` says why.
        std: Spread over `spread_over`; None of fewer than two.
        seeds: The value of each seed.
        note: Why there is no value, such as "diverged in seed 1, round 3"; empty where there is one.
    """

    method: str
    setting: str
    metric: str
    paper: float | None
    ours: float | None
    std: float | None
    spread_over: Literal["seeds", "clients"]
    seeds: tuple[float, ...]
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """As `reproduce --json` prints it: a note only where there is no value."""
        return {name: value for name, value in asdict(self).items() if name != "note" or value}


def over_seeds(method: str, setting: str, metric: str, values: Sequence[float], paper: float | None = None) -> Row:
    """The mean and spread of a number's values, one of each seed."""
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Row(method, setting, metric, paper, float(np.mean(values)), std, "seeds", tuple(values))


def final(found: History, method: str, metric: str) -> tuple[float, ...] | None:
    """What a run's metric ended at, by seed; None if the method has none of that name."""
    rows = found.summary["rows"]
    return next((tuple(r["seeds"]) for r in rows if (r["method"], r["metric"]) == (method, metric)), None)


@dataclass(frozen=True)
class Claim:
    """A sentence that can be true, and what the numbers say of it."""

    text: str
    holds: bool | None
    evidence: str

    @property
    def verdict(self) -> str:
        """holds, does not hold, or undecided."""
        return {True: "holds", False: "does not hold", None: "undecided"}[self.holds]


@dataclass(frozen=True)
class Curve:
    """A line of the result's figure: its name, (x, mean over seeds), and the same for the lowest and highest seed."""

    name: str
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Result:
    """A reproduction that was run.

    Attributes:
        figures: SVG beside the curves, each with the name of its file, such as features.svg.
    """

    name: str
    scale: str
    seconds: float
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]
    about: str
    curves: tuple[Curve, ...] = ()
    axes: tuple[str, str] = ("round", "accuracy on the global test set, %")
    seeds: tuple[int, ...] = ()
    figures: tuple[tuple[str, bytes], ...] = ()
    made: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())

    def to_json(self) -> dict[str, Any]:
        """As `reproduce --json` prints it."""
        return {
            "name": self.name,
            "scale": self.scale,
            "seconds": self.seconds,
            "rows": [r.to_json() for r in self.rows],
            "claims": [
                {"text": c.text, "holds": "undecided" if c.holds is None else c.holds, "evidence": c.evidence}
                for c in self.claims
            ],
        }

    def table(self) -> Table:
        """The rows for people: methods down, metrics across."""
        heads, lines = pivot(self.rows)
        table = Table(title=f"{self.name} ({self.scale}), {self.seconds:.0f} s", box=SIMPLE, padding=(0, 1))
        for i, head in enumerate(heads):
            table.add_column(head, justify="right" if i else "left", overflow="fold")
        for line in lines:
            table.add_row(*line)
        return table

    def markdown(self) -> str:
        """The rows and claims as a page."""
        heads, lines = pivot(self.rows)
        page = [f"# {self.name} ({self.scale})", "", self.about, "", _provenance(self), ""]
        page += [*(["![the result's curves](plot.svg)", ""] if self.curves else [])]
        for file, _ in self.figures:
            page += [f"![{file.removesuffix('.svg')}]({file})", ""]
        page += ["| " + " | ".join(cells) + " |" for cells in (heads, ["---"] * len(heads), *lines)]
        page += ["", "| claim | verdict | evidence |", "|---|---|---|"]
        page += [f"| {c.text} | {c.verdict} | {c.evidence} |" for c in self.claims]
        return "\n".join([*page, ""])


def pivot(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Heads and lines of a table with a line per method and setting and a column per metric.

    Accuracies, errors and their differences are shown in percent; a published number stands behind ours in brackets.
    The rest has four significant digits, or is whole from a thousand on.
    """
    settings = list(dict.fromkeys(r.setting for r in rows))
    metrics = list(dict.fromkeys(r.metric for r in rows))
    by = {(r.method, r.setting, r.metric): r for r in rows}
    lines = [
        [method, *([setting] if len(settings) > 1 else []), *(_cell(by.get((method, setting, m))) for m in metrics)]
        for setting in settings
        for method in dict.fromkeys(r.method for r in rows if r.setting == setting)
    ]
    return ["method", *(["setting"] if len(settings) > 1 else []), *map(_head, metrics)], lines


def _head(metric: str) -> str:
    if metric.startswith("bytes."):
        return metric.replace("bytes.", "MB ")
    return f"{metric}, %" if _is_share(metric) else metric


def _cell(r: Row | None) -> str:
    if r is None:
        return "–"
    factor = 100.0 if _is_share(r.metric) else 1e-6 if r.metric.startswith("bytes.") else 1.0
    spread = "" if r.std is None or r.metric.startswith("bytes.") else f" ± {_number(factor * r.std, r.metric)}"
    paper = "" if r.paper is None else f" ({_number(factor * r.paper, r.metric)})"
    if r.ours is None:
        return r.note + paper
    return _number(factor * r.ours, r.metric) + spread + paper


def _number(value: float, metric: str) -> str:
    if _is_share(metric) or metric.startswith("bytes."):
        return f"{value:,.2f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _is_share(metric: str) -> bool:
    return "accuracy" in metric or metric.startswith("error")


def _provenance(result: Result) -> str:
    seeds = ", ".join(map(str, result.seeds))
    return (
        f"Made on {result.made} with unskew {__version__}, PyTorch {torch.__version__}, "
        f"Python {platform.python_version()}, {os.cpu_count()} cores ({platform.machine()}); "
        f"seeds {seeds}; {result.seconds:.0f} s; scale {result.scale}."
    )


SAME = 0.01
"""Two errors are called equal if the interval of their difference lies within one point of zero."""


def interval(differences: Sequence[float], level: float = 0.95) -> tuple[float, float, float] | None:
    """Mean and Student's interval of paired differences; None of fewer than two, or if they do not vary."""
    d = np.asarray(differences)
    # 0.3 - 0.1 and 0.4 - 0.2 are not quite the same; what only rounding tells apart has no spread.
    if len(d) < 2 or np.ptp(d) <= 1e-12 * max(1.0, float(np.abs(d).max())):
        return None
    half = float(stats.t.ppf(0.5 + level / 2, len(d) - 1)) * float(d.std(ddof=1)) / len(d) ** 0.5
    return float(d.mean()), float(d.mean()) - half, float(d.mean()) + half


def decide(
    text: str, differences: Sequence[float], unit: str = "points", factor: float = 100.0, digits: int = 2
) -> Claim:
    """The claim that the paired differences are above zero; the evidence has them times `factor`."""
    found = interval(differences)
    form = f"+.{digits}f"
    if found is None:
        n = len(differences)
        if not n:
            return Claim(text, None, "no interval")
        each = f"{factor * differences[0]:{form}} {unit} in {'each of ' if n > 1 else ''}{n} seed{'s' * (n > 1)}"
        return Claim(text, None, f"{each}, no interval")
    mean, low, high = (factor * v for v in found)
    holds = True if low > 0 else False if high < 0 else None
    between = f"[{low:{form}}, {high:{form}}]"
    return Claim(text, holds, f"{mean:{form}} {unit}, 95 % interval {between} over {len(differences)} seeds")


def same(text: str, differences: Sequence[float], margin: float = SAME) -> Claim:
    """The claim that paired differences are zero within a margin: it is the interval that has to lie there."""
    found = interval(differences)
    n = len(differences)
    if found is None:
        if n < 2:
            return Claim(text, None, f"{n} seed{'s' * (n != 1)}, no interval")
        at = 100 * differences[0]
        return Claim(text, abs(differences[0]) <= margin, f"{at:+.2f} points in each of {n} seeds")
    mean, low, high = found
    holds = True if -margin <= low and high <= margin else False if low > margin or high < -margin else None
    return Claim(text, holds, f"{_points(mean, low, high)} over {n} seeds, {100 * margin:g} allowed")


def ordered(text: str, steps: Mapping[str, Sequence[float]]) -> Claim:
    """The claim that all of several paired differences are above zero; the evidence has the smallest of them.

    It holds if the 95 % interval of every one is above zero: all have to be, so their number makes that no easier.  It
    does not hold if one lies below even when its interval is widened for the number of them (Bonferroni): of many
    intervals one in forty lies below zero by chance.  Differences that do not vary decide by their sign.
    """
    level = 1.0 - 0.05 / max(len(steps), 1)
    verdicts: list[bool | None] = []
    shown: list[tuple[float, str]] = []
    for name, differences in steps.items():
        plain, wide = interval(differences), interval(differences, level)
        if plain is not None and wide is not None:
            mean, low, high = plain
            verdicts.append(True if low > 0 else False if wide[2] < 0 else None)
            said = f"{name} {_points(mean, low, high)}"
            if len(steps) > 1:
                said += f", [{100 * wide[1]:+.2f}, {100 * wide[2]:+.2f}] for {len(steps)} comparisons"
            shown.append((mean, said))
        elif len(differences) > 1:
            mean = differences[0]
            verdicts.append(None if mean == 0 else mean > 0)
            shown.append((mean, f"{name} {100 * mean:+.2f} points in each of {len(differences)} seeds"))
        else:
            verdicts.append(None)
            shown.append((math.inf, f"{name} {len(differences)} seed, no interval"))
    holds = False if False in verdicts else True if verdicts and all(verdicts) else None
    below = f", {verdicts.count(False)} of them below zero," if False in verdicts else ""
    least = f"of {len(steps)} differences{below} the smallest: {min(shown)[1]}" if shown else "nothing to compare"
    return Claim(text, holds, least)


def _points(mean: float, low: float, high: float) -> str:
    return f"{100 * mean:+.2f} points, 95 % interval [{100 * low:+.2f}, {100 * high:+.2f}]"


def ran(experiment: config.Experiment, folder: Path, callback: Callback) -> History:
    """The experiment's run in `folder`: begun, gone on with where it was stopped, or read where it had ended.

    Raises:
        ConfigError, DataError: If the experiment is impossible.
        RunError: If the folder holds another run, or cannot be gone on with.
    """
    if not (folder / "run.json").exists():
        return history(loop.start(experiment, folder, callback))
    if config.fingerprint(config.load(folder / "config.toml")) != config.fingerprint(experiment):
        raise RunError(f"{folder} holds a run of another experiment than {experiment.name}; give another --out")
    return history(loop.resume(folder, callback))


@dataclass(frozen=True, eq=False)
class Ended:
    """What is left of an experiment.

    Attributes:
        history: The run of the methods that came to their end under all seeds.
        folder: Where it lies.
        diverged: By label, of the other methods, when they did: "diverged in seed 1, round 3".
    """

    history: History
    folder: Path
    diverged: Mapping[str, str]


def ended(experiment: config.Experiment, folder: Path, callback: Callback) -> Ended:
    """As `ran`, but a method that diverges costs the others nothing but time.

    The others are run once more without it, from the start, in a folder beside the first, `NAME without METHOD`; what a
    method comes to does not depend on the methods beside it.

    Raises:
        ConfigError, DataError, RunError: As `ran`.
    """
    diverged: dict[str, str] = {}
    methods, at = experiment.methods, folder
    while methods:
        left = dataclasses.replace(experiment, methods=methods)
        try:
            return Ended(ran(left, at, callback), at, diverged)
        except DivergedError as error:
            if error.where is None:
                raise
            label, seed, at_round = error.where
            callback.note(f"{error}; {experiment.name} goes on without {label}")
        diverged[label] = f"diverged in seed {seed}, round {at_round}"
        methods = tuple(m for m in methods if m.label != label)
        at = folder.with_name(" without ".join([folder.name, *map(models.file_name, diverged)]))
    return Ended(History([], {"rows": [], "seconds": 0.0}, None), folder, diverged)


def rows_of(
    history: History, metrics: Sequence[str], paper: dict[tuple[str, str], float] | None = None
) -> tuple[Row, ...]:
    """The chosen metrics of a run as rows."""
    published = paper or {}
    return tuple(
        Row(
            r["method"],
            r["setting"],
            r["metric"],
            published.get((r["method"], r["metric"])),
            r["mean"],
            r["std"],
            "seeds",
            tuple(r["seeds"]),
        )
        for r in history.summary["rows"]
        if r["metric"] in metrics
    )


def curves_of(history: History, name: str = "global.accuracy", factor: float = 100.0) -> tuple[Curve, ...]:
    """One curve per method, of rounds that all seeds came to: the mean over seeds, and the lowest and highest seed."""
    values: dict[str, dict[int, list[float]]] = {}
    for row in history.rows:
        if row["name"] == name and "client" not in row:
            values.setdefault(row["method"], {}).setdefault(row["round"], []).append(factor * row["value"])
    curves = []
    for method, by in values.items():
        common = of_all_seeds(by)
        curves.append(
            Curve(
                method,
                tuple(map(float, common)),
                tuple(float(np.mean(by[t])) for t in common),
                tuple(min(by[t]) for t in common),
                tuple(max(by[t]) for t in common),
            )
        )
    return tuple(curves)


def keep(result: Result, root: Path) -> Path:
    """Write result.json, README.md and figures into `root/NAME/SCALE`; what lay there is replaced, file by file."""
    folder = root / result.name / result.scale
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "result.json", json.dumps(result.to_json(), indent=1) + "\n")
    write_atomically(folder / "README.md", result.markdown())
    drawn = {**({"plot.svg": plot(result)} if result.curves else {}), **dict(result.figures)}
    for name, svg in drawn.items():
        write_atomically(folder / name, svg)
    for old in folder.glob("*.svg"):
        if old.name not in drawn:
            old.unlink()
    return folder


def plot(result: Result, log: bool = False) -> bytes:
    """The curves as SVG on a white ground, so that it reads on any page; with `log` the first axis is logarithmic.

    Of curves that meet the first in the list is on top.  Of more than six only the means are drawn: their bands would
    hide each other.
    """
    many = len(result.curves) > 6
    with matplotlib.rc_context({"svg.hashsalt": result.name, "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(8.0, 4.5), layout="constrained", facecolor="white")
        axes = figure.subplots()
        styles = ["-", "--", "-.", ":"]
        colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#7F7F7F"]
        for i, c in enumerate(result.curves):
            # Colour and style return together only after thirty-two lines.
            colour, style = colours[i % len(colours)], styles[(i + i // len(colours)) % len(styles)]
            dot = "." if len(c.x) == 1 else ""  # a line of one point is none
            (line,) = axes.plot(c.x, c.mean, label=c.name, linewidth=1.6, color=colour, linestyle=style)
            line.set(marker=dot, markersize=9, zorder=3.0 - i / len(result.curves))
            if not many:
                axes.fill_between(c.x, c.low, c.high, color=colour, alpha=0.12, linewidth=0)
        if log:
            axes.set_xscale("log")
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(result.axes[0])
        axes.set_ylabel(result.axes[1])
        axes.set_title(
            f"{result.name} ({result.scale}): mean over seeds{'' if many else ', band from lowest to highest seed'}",
            fontsize=10,
        )
        axes.grid(alpha=0.25)
        if many:
            figure.legend(fontsize=8, loc="outside right upper")
        else:
            axes.legend(fontsize=8, ncols=2)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def clock() -> float:
    """Seconds on a clock that only goes forward."""
    return time.monotonic()
