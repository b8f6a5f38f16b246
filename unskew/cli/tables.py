"""Tables that several commands print, and their format of names and numbers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.table import Table

from unskew.cli.text import escape
from unskew.errors import RunError

if TYPE_CHECKING:
    from unskew.tasks.measure import Measure


def results_json(summary: dict[str, Any]) -> str:
    """The results of a run or comparison as the JSON document that `--json` prints."""
    return json.dumps({key: summary[key] for key in ("run", "fingerprint", "seconds", "rows")})


def results(summary: dict[str, Any]) -> Table:
    """The table of results to print: last round first, best labelled as such."""
    from unskew.record.logs import ADAPTED, SERVED
    from unskew.run.metrics import steadier
    from unskew.tasks.measure import described

    by = {(r["method"], r["metric"]): r for r in summary["rows"]}
    measure = described(summary.get("headline"))
    metric, last = steadier(summary["rows"], measure.shared) or ("", "last fifth")
    short = last.replace("fifth", "1/5")
    columns = [
        (measure.label, measure.shared),
        (short, metric),
        ("best*", f"{measure.shared}.best"),
        ("own data", measure.own),
        ("worst 1/10", measure.worst),
    ]
    alone = (metric, f"{measure.shared}.best")  # their spreads would not fit into eighty columns
    later = any(name.startswith(f"{SERVED}.") for _, name in by)
    if later:
        columns += [("unseen", f"{SERVED}.{measure.name}.mean"), ("adapted", f"{ADAPTED}.{measure.name}.mean")]
    unit = "percent, " if measure.percent else ""
    seeds = max((len(r["seeds"]) for r in summary["rows"]), default=0)
    table = Table(
        title=f"{escape(summary['run'])}: {unit}mean ± standard deviation over {seeds} seed{'s' * (seeds != 1)}",
        caption=f"{measure.label}: last round, global test set; {short}: mean of the {last} of evaluations; "
        "*best round on the test set, optimistic; own data: each client's model on its own test data"
        + ("; unseen: the same of clients that took no part, as served and adapted" if later else ""),
        box=SIMPLE,
        padding=(0, 1),
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("method", overflow="fold")
    for heading, _ in columns:
        table.add_column(escape(heading), justify="right", no_wrap=True)
    table.add_column("MB", justify="right", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    for method in dict.fromkeys(r["method"] for r in summary["rows"]):
        cells = [with_spread(by.get((method, m)), measure, spread=m not in alone) for _, m in columns]
        sent, seconds = by.get((method, "bytes.total")), by.get((method, "seconds"))
        table.add_row(
            escape(in_lines(method)),
            *cells,
            f"{sent['mean'] / 1e6:.2f}" if sent else "",
            in_seconds(seconds["mean"]) if seconds else "",
        )
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


def with_spread(row: Mapping[str, Any] | None, measure: "Measure", spread: bool = True) -> str:
    """A row's mean ± standard deviation for a table, or the mean alone; a dash if not measured."""
    if row is None:
        return "–"
    return measure.show(row["mean"]) + (
        "" if row.get("std") is None or not spread else f" ± {measure.show(row['std'])}"
    )
