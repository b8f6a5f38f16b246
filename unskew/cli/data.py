"""`unskew data`: a first look at data, before any model."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from unskew.cli.options import AsJson, DataDir, load_own
from unskew.errors import ConfigError

if TYPE_CHECKING:
    from unskew.data.look import Look
    from unskew.report.section import Table as ReportTable

MOST_PRINTED = 30


def data(
    source: Annotated[str, typer.Argument(metavar="FILE|NAME")],
    target: Annotated[str | None, typer.Option(help="Column of what is to be predicted.")] = None,
    client: Annotated[str | None, typer.Option(help="Column of the sites.")] = None,
    test: Annotated[str | None, typer.Option(help="Column that says which are test rows, or a file of them.")] = None,
    separator: Annotated[str | None, typer.Option(help="Between columns of a CSV file; default a comma.")] = None,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Write a page with figures here, as data.html.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what there is: sites, sizes, labels, gaps, how much sites disagree, and rows that stand twice.

    FILE is a table (.csv, .parquet), a folder with one for each site, or an
    experiment (.toml); NAME is a data set, as in task.data.  Nothing is trained.

    [dim]unskew data examples/hospitals.csv --target diagnosis --client hospital --out data.html[/]
    [dim]unskew data heart[/]
    """
    options = {"target": target, "client": client, "test": test, "separator": separator}
    name, settings = _named(source, {key: value for key, value in options.items() if value is not None})
    from unskew.data.describe import describe

    seen = describe(name, data_dir=data_dir, **settings)
    if out is not None:
        from unskew.report.data_page import write_look

        write_look(seen, out)
    if as_json:
        print(json.dumps(dataclasses.asdict(seen)))
        return
    _print(seen)
    if out is not None:
        Console(stderr=True).print(f"page: {out}", markup=False, highlight=False, soft_wrap=True)


def _named(source: str, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The data and their columns: as given, or as an experiment's file has them."""
    if not source.endswith(".toml"):
        return source, dict(given)
    task = load_own(source, []).task
    if task.data.startswith("run:"):
        raise ConfigError(f"{source} is of a run whose data were given as values; give the data themselves")
    known = {
        key: value
        for key, value in task.data_options.items()
        if key in ("target", "client", "test", "separator", "leave_out")
    }
    return task.data, {**known, **given}


def _print(look: "Look") -> None:
    from unskew.report import data_page

    console = Console()
    console.print(f"[bold]{escape(look.name)}[/]: {escape(data_page.lead(look))}", highlight=False)
    tables = [data_page.sites_table(look)] if look.sites else []
    tables += [data_page.disagreement_table(look)] if look.disagreement else []
    tables += [data_page.columns_table(look, MOST_PRINTED)] if look.columns else []
    for table in tables:
        console.print(_drawn(table, MOST_PRINTED))
    for sentence in (*look.leaks, *look.notes):
        console.print(f"- {sentence}", markup=False, highlight=False)


def _drawn(table: "ReportTable", most: int) -> Table:
    drawn = Table(title=table.caption, box=SIMPLE, padding=(0, 1), pad_edge=False, collapse_padding=True)
    for i, (title, unit) in enumerate(table.head):
        left = i == 0 or i in table.text
        drawn.add_column(
            escape(f"{title}\n{unit}" if unit else title), justify="left" if left else "right", overflow="fold"
        )
    for entry in table.entries[:most]:
        drawn.add_row(escape(entry.name), *map(escape, entry.cells))
    if len(table.entries) > most:
        drawn.add_row(f"and {len(table.entries) - most:,} more", *[""] * (len(table.head) - 1))
    drawn.caption = table.note or None
    return drawn
