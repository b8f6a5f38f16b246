"""A reproduction's result: rows with the paper's number beside ours, claims, curves, and the page written from them."""

import base64
import json
import platform
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch
from markupsafe import Markup

from unskew.files import write_atomically
from unskew.machine import cores
from unskew.papers.claims import Claim
from unskew.report import charts
from unskew.report.page import Page, markdown
from unskew.report.section import Chart, Section, table
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
        """The row as `reproduce --json` prints it; `note` only without a value."""
        return {name: value for name, value in asdict(self).items() if name != "note" or value}


def over_seeds(method: str, setting: str, metric: str, values: Sequence[float], paper: float | None = None) -> Row:
    """A row with the mean and spread of one value for each seed."""
    spread, mean = Spread(tuple(values)), statistics.fmean(values) if values else None
    return Row(method, setting, metric, paper, mean, spread.std, "seeds", spread.values, "" if values else "no value")


@dataclass(frozen=True)
class Result:
    """A finished reproduction.

    Attributes:
        seconds: Wall-clock time of all runs behind the numbers.
        about: A paragraph on what was run and how to read the numbers.
        curves: The lines of the result's figure, by name.
        axes: Labels of the curves' x and y.
        figures: SVG beside the curves, by file name, such as features.svg.
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

    def page(self) -> Page:
        """The result as a page: rows and curves; folded, its claims, what was run and the other figures."""
        heads, lines = pivot(self.rows)
        n = Counter(claim.verdict.partition(":")[0] for claim in self.claims)
        verdict = f"Claims: {', '.join(f'{count} {words}' for words, count in n.items()) or 'none'}."
        claims = [(claim.text, claim.verdict, claim.evidence) for claim in self.claims]
        figures = tuple(Chart(name, "", None, name, html=_image(name, svg)) for name, svg in self.figures)
        sections = (
            Section("Claims", "", (), (table("", ["claim", "verdict", "evidence"], claims, words=[1, 2]),)),
            Section("What was run", self.about),
            Section("Figures", "", figures),
        )
        kept = sections if figures else sections[:2]
        rows = table("", heads, [tuple(line) for line in lines])
        return Page(f"{self.name} ({self.scale})", _provenance(self), verdict, self._curves(), rows, sections=kept)

    def _curves(self) -> tuple[Chart, ...]:
        if not self.curves:
            return ()
        drawn = charts.curves(charts.of_curves(self.curves), charts.colours(list(self.curves)), *self.axes)
        alt = f"{self.axes[1]} by {self.axes[0]}: {', '.join(self.curves)}."
        return (Chart("Curves", "Mean over seeds, and their range.", drawn, alt),)

    def markdown(self) -> str:
        """The page in Markdown, beside `plot.svg` and the other figures."""
        files = {"Curves": "plot.svg"} | {name: name for name, _ in self.figures}
        return markdown(self.page(), files)


def _image(name: str, svg: bytes) -> Markup:
    data = base64.b64encode(svg).decode()
    return Markup('<img alt="{}" src="data:image/svg+xml;base64,{}">').format(name, data)


def pivot(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Heads and lines of a table with a line per method and setting and a column per metric.

    Accuracies, errors and their differences are in percent; a published number follows ours in brackets.  Other numbers
    have four significant digits, from a thousand on none after the point.
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
    return (
        f"Run on {result.date} with unskew {__version__}, PyTorch {torch.__version__}, "
        f"Python {platform.python_version()}, {cores()} cores ({platform.machine()}); "
        f"seeds {', '.join(map(str, result.seeds))}; {result.seconds:.0f} s; scale {result.scale}."
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


def plot(name: str, scale: str, curves: Mapping[str, Curve], axes: tuple[str, str]) -> bytes:
    """Curves as SVG on a white ground."""
    drawn = charts.curves(charts.of_curves(curves), charts.colours(list(curves)), *axes)
    return charts.document(drawn, f"{name} ({scale}): mean over seeds, and their range", width=640).encode()
