"""A reproduction's result: rows with the paper's number beside ours, claims, curves, and the page written from them."""

import json
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from unskew.files import write_atomically
from unskew.machine import cores
from unskew.papers.claims import Claim, Row, counted, without_defaults
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
        what = {"name": self.name, "scale": self.scale, "seconds": self.seconds}
        return {**what, "rows": [*map(without_defaults, self.rows)], "claims": [*map(without_defaults, self.claims)]}

    def page(self) -> Page:
        """The result as a page: rows and the first figure; folded, its claims, what was run and the other figures."""
        n = counted(claim.verdict for claim in self.claims)
        verdict = f"Claims: {', '.join(f'{count} {words}' for words, count in n.items()) or 'none'}."
        claims = [(claim.text, claim.verdict, claim.evidence) for claim in self.claims]
        figures = tuple(self.files().values())
        sections = (
            Section("Claims", "", (), (table("", ["claim", "verdict", "evidence"], claims, words=[1, 2]),)),
            Section("What was run", self.about),
            Section("Figures", "", figures[1:]),
        )
        rows = table("", *pivot(self.rows), words=[1])
        return Page(f"{self.name} ({self.scale})", _provenance(self), verdict, figures[:1], rows, sections=sections)

    def files(self) -> dict[str, Chart]:
        """The figures by file name, that of the curves first."""
        every = (*((lines("Curves", self.curves, self.axes),) if self.curves else ()), *self.figures)
        return {re.sub(r"\W+", "-", c.title.lower()).strip("-") + ".svg": c for c in every}


def lines(title: str, curves: Mapping[str, Curve], axes: tuple[str, str]) -> Chart:
    """A figure of curves."""
    drawn = charts.curves(charts.of_curves(curves), charts.colours(list(curves)), *axes)
    return Chart(title, "Mean over seeds, and their range.", drawn, f"{axes[1]} by {axes[0]}: {', '.join(curves)}.")


def pivot(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Heads and lines of a table with a line per method and setting and a column per metric.

    Accuracies, errors and their differences are in percent; a published number follows ours in brackets.  Other numbers
    have four significant digits, from a thousand on none after the point.
    """
    metrics, settings = list(dict.fromkeys(r.metric for r in rows)), list(dict.fromkeys(r.setting for r in rows))
    cells = {(r.method, r.setting, r.metric): _cell(r) for r in rows}
    lines = sorted(dict.fromkeys((r.method, r.setting) for r in rows), key=lambda at: settings.index(at[1]))
    heads = [f"{metric}, {unit}" if (unit := _unit(metric)[0]) else metric for metric in metrics]
    return ["method", "setting", *heads], [[*at, *(cells.get((*at, m), "–") for m in metrics)] for at in lines]


def _unit(metric: str) -> tuple[str, float]:
    """The unit of a metric in tables, empty for none, and what its numbers are multiplied by."""
    if metric.startswith("bytes."):
        return "MB", 1e-6
    return ("%", 100.0) if "accuracy" in metric or metric.startswith("error") else ("", 1.0)


def _cell(r: Row) -> str:
    unit, factor = _unit(r.metric)

    def shown(value: float) -> str:
        value *= factor
        return f"{value:,.2f}" if unit else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"

    ours = r.note if r.ours is None else shown(r.ours)
    spread = "" if r.std is None or unit == "MB" else f" ± {shown(r.std)}"
    return ours + spread + ("" if r.paper is None else f" ({shown(r.paper)})")


def _provenance(result: Result) -> str:
    return (
        f"Run on {result.date} with unskew {__version__}, PyTorch {torch.__version__}, "
        f"Python {platform.python_version()}, {cores()} cores ({platform.machine()}); "
        f"seeds {', '.join(map(str, result.seeds)) or 'none'}; {result.seconds:.0f} s; scale {result.scale}."
    )


def keep(result: Result, root: Path) -> Path:
    """Write result.json, README.md and figures into `root/NAME/SCALE`; existing files are replaced one by one."""
    folder, files = root / result.name / result.scale, result.files()
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "result.json", json.dumps(result.to_json(), indent=1) + "\n")
    page = markdown(result.page(), {chart.title: name for name, chart in files.items()})
    write_atomically(folder / "README.md", page)
    for old in folder.glob("*.svg"):
        old.unlink()
    for name, chart in files.items():
        write_atomically(folder / name, charts.file(chart))
    return folder
