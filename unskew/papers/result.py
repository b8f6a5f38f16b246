"""A reproduction's result: rows with the paper's number beside ours, claims, curves, and the page written from them."""

import io
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import matplotlib
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.box import SIMPLE
from rich.table import Table

from unskew.files import write_atomically
from unskew.machine import cores
from unskew.papers.claims import Claim
from unskew.report.stats import Curve, Spread
from unskew.version import __version__


@dataclass(frozen=True)
class Row:
    """One number.

    Attributes:
        paper: The published value; None if nothing was published.
        ours: Mean over seeds (or clients); None if there is none, and `note` says why.
        std: Spread over `spread_over`; None for fewer than two values.
        seeds: The value of each seed.
        note: Reason for a missing value, such as "diverged in seed 1, round 3"; empty if there is a value.
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
        """The row as `reproduce --json` prints it, with a note only where there is no value."""
        return {name: value for name, value in asdict(self).items() if name != "note" or value}


def over_seeds(method: str, setting: str, metric: str, values: Sequence[float], paper: float | None = None) -> Row:
    """A row of one value for each seed: their mean and spread."""
    spread = Spread(tuple(values))
    return Row(method, setting, metric, paper, spread.mean, spread.std, "seeds", spread.values)


@dataclass(frozen=True)
class Result:
    """A reproduction that was run.

    Attributes:
        seconds: Wall-clock time of all runs behind the numbers.
        about: A paragraph on what was run and how to read the numbers.
        curves: The lines of the result's figure, by name.
        axes: Labels of the curves' x and y.
        figures: SVG beside the curves, each with the name of its file, such as features.svg.
        date: Date of the computation, as in 2026-01-31.
    """

    name: str
    scale: str
    seconds: float
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]
    about: str
    curves: Mapping[str, Curve] = field(default_factory=dict)
    axes: tuple[str, str] = ("round", "accuracy on the global test set, %")
    seeds: tuple[int, ...] = ()
    figures: tuple[tuple[str, bytes], ...] = ()
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())

    def to_json(self) -> dict[str, Any]:
        """The result as `reproduce --json` prints it."""
        return {
            "name": self.name,
            "scale": self.scale,
            "seconds": self.seconds,
            "rows": [r.to_json() for r in self.rows],
            "claims": [c.to_json() for c in self.claims],
        }

    def table(self) -> Table:
        """The rows as a table to print: methods down, metrics across."""
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

    Accuracies, errors and their differences are shown in percent; a published number follows ours in brackets.
    The rest has four significant digits, or none after the point from a thousand on.
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
        f"Run on {result.date} with unskew {__version__}, PyTorch {torch.__version__}, "
        f"Python {platform.python_version()}, {cores()} cores ({platform.machine()}); "
        f"seeds {seeds}; {result.seconds:.0f} s; scale {result.scale}."
    )


def keep(result: Result, root: Path) -> Path:
    """Write result.json, README.md and figures into `root/NAME/SCALE`; existing files are replaced one by one."""
    folder = root / result.name / result.scale
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "result.json", json.dumps(result.to_json(), indent=1) + "\n")
    write_atomically(folder / "README.md", result.markdown())
    figures = dict(result.figures)
    if result.curves:
        figures["plot.svg"] = plot(result.name, result.scale, result.curves, result.axes)
    for name, svg in figures.items():
        write_atomically(folder / name, svg)
    for old in folder.glob("*.svg"):
        if old.name not in figures:
            old.unlink()
    return folder


STYLES = ("-", "--", "-.", ":")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#7F7F7F")


def plot(name: str, scale: str, curves: Mapping[str, Curve], axes: tuple[str, str], log: bool = False) -> bytes:
    """Curves as SVG on a white ground, so that it reads on any page; with `log` the first axis is logarithmic.

    Where curves meet, the first one is on top.  With more than six, only the means are drawn: their bands would hide
    each other.
    """
    many = len(curves) > 6
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(8.0, 4.5), layout="constrained", facecolor="white")
        plane = figure.subplots()
        for i, (label, c) in enumerate(curves.items()):
            # Colour and style return together only after thirty-two lines.
            colour, style = COLOURS[i % len(COLOURS)], STYLES[(i + i // len(COLOURS)) % len(STYLES)]
            (line,) = plane.plot(c.x, c.mean, label=label, linewidth=1.6, color=colour, linestyle=style)
            dot = "." if len(c.x) == 1 else ""  # a line of one point is none
            line.set(marker=dot, markersize=9, zorder=3.0 - i / len(curves))
            if not many:
                plane.fill_between(c.x, c.low, c.high, color=colour, alpha=0.12, linewidth=0)
        if log:
            plane.set_xscale("log")
        else:
            plane.xaxis.set_major_locator(MaxNLocator(integer=True))
        plane.set_xlabel(axes[0])
        plane.set_ylabel(axes[1])
        bands = "" if many else ", band from lowest to highest seed"
        plane.set_title(f"{name} ({scale}): mean over seeds{bands}", fontsize=10)
        plane.grid(alpha=0.25)
        if many:
            figure.legend(fontsize=8, loc="outside right upper")
        else:
            plane.legend(fontsize=8, ncols=2)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
