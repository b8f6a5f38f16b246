"""Tables that several commands print, and their format of names and numbers."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table

from unskew.cli.text import escape
from unskew.errors import RunError

if TYPE_CHECKING:
    from unskew.record.reader import Record


def results_json(summary: dict[str, Any]) -> str:
    """The results of a run or comparison as `--json` prints them; differences have their interval."""
    from unskew.report.stats import interval

    def whole(row: dict[str, Any]) -> dict[str, Any]:
        if ".minus_" not in row["metric"]:
            return row
        # A summary names its seeds only if they were added until differences were decided.
        low, high = interval(row["seeds"], sequential="seeds" in summary) or (None, None)
        return {**row, "low": low, "high": high}

    rows = list(map(whole, summary["rows"]))
    keys = ("run", "fingerprint", "seconds", "comparable", "reasons", "same_test_rows")  # the last three of comparisons
    diverged = {"diverged": summary["diverged"]} if summary.get("diverged") else {}
    return json.dumps({key: summary[key] for key in keys if key in summary} | {"rows": rows} | diverged)


def comparability(records: "Sequence[Record]", names: Sequence[str]) -> dict[str, Any]:
    """Say for `--json` whether runs can be compared, and why not."""
    from unskew.report.tables import incomparable

    reasons = incomparable(records, names) if records else ()
    return {"comparable": not reasons, "reasons": list(reasons)}


NAME_WIDTH = 10
"""Least width of a column of names, which is folded beyond."""


def print_fitting(console: Console, make: Callable[[int], Table]) -> None:
    """Print the largest of a table's forms that fits, of `make(3)` to `make(0)`.

    3 has all standard deviations, 2 the headline's, 1 fewer columns and the headline's, 0 fewer columns and none.
    Where that does not fit either, names keep their width, and of the other cells some words go below.
    """
    for form in (3, 2, 1, 0):
        if _width(table := make(form)) <= console.width:
            break
    else:
        for column in table.columns:
            column.width = None if column.no_wrap else _width_of(column)
            column.no_wrap, column.overflow = False, "fold"
    console.print(table)


def _width(table: Table) -> int:
    """The width below which a table's cells would be cut off."""
    gap = 2 if table.collapse_padding else 3
    return sum(map(_width_of, table.columns)) + gap * (len(table.columns) - 1) + (4 if table.pad_edge else 2)


def _width_of(column: Column) -> int:
    lines = (line for cell in (column.header, *column.cells) for line in str(cell).split("\n"))
    width = max(map(cell_len, lines))
    return width if column.no_wrap else min(width, NAME_WIDTH)


def results(summary: dict[str, Any], form: int = 3, bounds: Mapping[str, str] | None = None) -> Table:
    """The table of results to print: last round first, best labelled as such.

    `form` is as in `print_fitting`; `bounds` says what those methods are that do not compete.
    """
    from unskew.record.logs import ADAPTED, SERVED
    from unskew.run.metrics import fewer_clients, steadier, with_spread
    from unskew.tasks.measure import described

    by = {(r["method"], r["metric"]): r for r in summary["rows"]}
    measure = described(summary.get("headline"))
    metric, last = steadier(summary["rows"], measure.shared) or ("", "")
    short = last.replace("fifth", "1/5")
    columns = [
        (measure.label, measure.shared),
        *([(short, metric)] if metric else []),
        ("best*", f"{measure.shared}.best"),
        ("own data", measure.own),
        ("worst 1/10", measure.worst),
    ]
    later = any(name.startswith(f"{SERVED}.") for _, name in by)
    if later:
        columns += [("unseen", f"{SERVED}.{measure.name}.mean"), ("adapted", f"{ADAPTED}.{measure.name}.mean")]
    averaged = f"; {short}: mean of the {last} of evaluations" if metric else ""
    alone = (metric, f"{measure.shared}.best")  # their spreads would not fit into eighty columns
    more = f"{averaged}; *best round on the test set, optimistic"
    if form < 2:
        columns, more = [column for column in columns if column[1] not in alone], ""
    with_std = [name for _, name in columns if name not in alone][: (0, 1, 1, len(columns))[form]]
    unit = "percent, " if measure.percent else ""
    apart = "" if summary.get("comparable", True) else ", not comparable"
    seeds = sorted({len(r["seeds"]) for r in summary["rows"]}) or [0]
    table = Table(
        title=f"{escape(summary['run'])}{apart}: {unit}mean{' ± standard deviation' * (form > 0)} over "
        f"{' to '.join(map(str, seeds[:1] + seeds[1:][-1:]))} seed{'s' * (seeds[-1] != 1)}",
        caption=f"{measure.label}{', ' * bool(measure.way)}{measure.way}: last round, global test set{more}; own data: "
        f"each client's model on its own test data{fewer_clients(summary['rows'], measure.own)}"
        + ("; unseen: the same of clients that took no part, as served and adapted" if later else "")
        + "; worst 1/10: mean of the worst tenth of the clients; MB: sent in all; s: by the clock, in all",
        box=SIMPLE,
        padding=(0, 1),
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("method", overflow="fold", min_width=8)
    for heading, _ in columns:
        table.add_column(escape(heading), justify="right", no_wrap=True)
    table.add_column("MB", justify="right", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    lost = (r["method"] for r in summary.get("diverged", ()))
    for method in dict.fromkeys((*(r["method"] for r in summary["rows"]), *lost)):
        cells = [with_spread(by.get((method, m)), measure, spread=m in with_std) for _, m in columns]
        sent, seconds = by.get((method, "bytes.total")), by.get((method, "seconds"))
        mark = f"\n[dim]{bounds[method]}[/]" if bounds and method in bounds else ""
        table.add_row(
            escape(in_lines(method)) + mark,
            *cells,
            f"{sent['mean'] / 1e6:.2f}" if sent else "",
            in_seconds(seconds["mean"]) if seconds else "",
        )
    return table


def asked(record: "Record", width: int) -> list[Table]:
    """Tables of the metrics that `evaluate` asks for, each with as many of them as fit into the width."""
    from unskew.report import tables

    parts = []
    for of in tables.asked(record):
        heads = [fill(head, 14) for head in of.heads]
        rows = [
            (method, [tables.with_spread(v, m) for v, m in zip(values, of.measures, strict=True)])
            for method, values in of.rows
        ]
        first = 0
        while first < len(heads):
            last = first + 1
            table = _asked(of.where, heads[first:last], rows, first)
            while last < len(heads) and _width(more := _asked(of.where, heads[first : last + 1], rows, first)) <= width:
                table, last = more, last + 1
            parts.append(table)
            first = last
    return parts


def _asked(where: str, heads: list[str], rows: list[tuple[str, list[str]]], first: int) -> Table:
    """The columns of these heads, which are those from `first` on."""
    title = f"last round, {where}" if first == 0 else None
    table = Table(title=title, box=SIMPLE, padding=(0, 1), pad_edge=False, collapse_padding=True)
    table.add_column("method", overflow="fold", min_width=8)
    for head in heads:
        table.add_column(escape(head), justify="right", no_wrap=True)
    for method, cells in rows:
        table.add_row(escape(in_lines(method)), *cells[first : first + len(heads)])
    return table


def run_names(folders: list[Path]) -> list[str]:
    """Names of the runs: their folders' names, or the paths where two folders have the same name."""
    places = [folder.resolve() for folder in folders]
    twice = next((folder for folder, place in zip(folders, places, strict=True) if places.count(place) > 1), None)
    if twice is not None:
        raise RunError(f"{twice} is given twice; a run cannot be compared with itself")
    names = [place.name for place in places]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def in_lines(name: str) -> str:
    """Break a long name after `/` and `,` rather than at the end of a column.

    >>> in_lines("one/fedavg"), in_lines("a-run-of-yesterday/fedprox")
    ('one/fedavg', 'a-run-of-yesterday/\\nfedprox')
    """
    return name if len(name) <= 16 else name.replace("/", "/\n").replace(",", ",\n")


def in_seconds(value: float) -> str:
    """Seconds for a table, with more digits for small values.

    >>> in_seconds(0.0456), in_seconds(12.34)
    ('0.05', '12.3')
    """
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"
