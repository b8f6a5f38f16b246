"""A reproduction's result: rows with the paper's number beside ours, claims, curves, and the page written from them."""

import json
import platform
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from unskew.files import write_atomically
from unskew.machine import cores
from unskew.papers.claims import Claim, Row, without_defaults
from unskew.report import charts
from unskew.report.page import Page, markdown
from unskew.report.section import Chart, Section, table
from unskew.report.stats import Curve
from unskew.version import __version__


@dataclass(frozen=True)
class Result:
    """A finished reproduction.

    Attributes:
        seconds: Wall-clock time of all runs behind the numbers.
        about: A paragraph on what was run and how to read the numbers.
        curves: The lines of the result's figure, by name.
        axes: Labels of the curves' x and y.
        figures: Those beside the curves; their titles name their files.
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
    figures: tuple[Chart, ...] = ()
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())

    def to_json(self) -> dict[str, Any]:
        """The result as `reproduce --json` prints it."""
        return {
            "name": self.name,
            "scale": self.scale,
            "seconds": self.seconds,
            "rows": [without_defaults(r) for r in self.rows],
            "claims": [c.to_json() for c in self.claims],
        }

    def page(self) -> Page:
        """The result as a page: rows and curves; folded, its claims, what was run and the other figures."""
        heads, lines = pivot(self.rows)
        n = Counter(claim.verdict.partition(":")[0] for claim in self.claims)
        verdict = f"Claims: {', '.join(f'{count} {words}' for words, count in n.items()) or 'none'}."
        claims = [(claim.text, claim.verdict, claim.evidence) for claim in self.claims]
        sections = (
            Section("Claims", "", (), (table("", ["claim", "verdict", "evidence"], claims, words=[1, 2]),)),
            Section("What was run", self.about),
            Section("Figures", "", self.figures),
        )
        rows = table("", heads, [tuple(line) for line in lines])
        return Page(f"{self.name} ({self.scale})", _provenance(self), verdict, self._first(), rows, sections=sections)

    def _first(self) -> tuple[Chart, ...]:
        return (lines("Curves", self.curves, self.axes),) if self.curves else ()

    def files(self) -> dict[str, Chart]:
        """The figures by file name."""
        return {re.sub(r"\W+", "-", c.title.lower()).strip("-") + ".svg": c for c in (*self._first(), *self.figures)}

    def markdown(self) -> str:
        """The page in Markdown, beside its figures."""
        return markdown(self.page(), {chart.title: name for name, chart in self.files().items()})


def lines(title: str, curves: Mapping[str, Curve], axes: tuple[str, str]) -> Chart:
    """A figure of curves."""
    drawn = charts.curves(charts.of_curves(curves), charts.colours(list(curves)), *axes)
    return Chart(title, "Mean over seeds, and their range.", drawn, f"{axes[1]} by {axes[0]}: {', '.join(curves)}.")


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
        f"seeds {', '.join(map(str, result.seeds)) or 'none'}; {result.seconds:.0f} s; scale {result.scale}."
    )


def keep(result: Result, root: Path) -> Path:
    """Write result.json, README.md and figures into `root/NAME/SCALE`; existing files are replaced one by one."""
    folder = root / result.name / result.scale
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "result.json", json.dumps(result.to_json(), indent=1) + "\n")
    write_atomically(folder / "README.md", result.markdown())
    for old in folder.glob("*.svg"):
        old.unlink()
    for name, chart in result.files().items():
        write_atomically(folder / name, charts.file(chart))
    return folder
