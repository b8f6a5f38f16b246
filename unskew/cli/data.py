"""`unskew data`: a first look at data, before any model."""

import dataclasses
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.cli.options import (
    AsJson,
    Client,
    DataDir,
    Decimal,
    Encoding,
    Gaps,
    Separator,
    Target,
    Thousands,
    load_own,
    table_at,
    then,
)
from unskew.cli.tables import width
from unskew.errors import ConfigError, shown


def data(
    source: Annotated[str, typer.Argument(metavar="FILE|NAME")],
    target: Target = None,
    client: Client = None,
    patient: Annotated[str | None, typer.Option(help="Column of who is in the row; patients are counted.")] = None,
    patient_ids: Annotated[
        str | None, typer.Option(help="network: an id is one person at all sites; site: each site has ids of its own.")
    ] = None,
    test: Annotated[str | None, typer.Option(help="Column that says which are test rows, or a file of them.")] = None,
    latest: Annotated[
        str | None, typer.Option(help="Column of when each row was; the test rows are each site's latest fifth.")
    ] = None,
    after: Annotated[
        str | None, typer.Option(help="Beside --latest: test rows are all after this date or number, as in 2024-06-30.")
    ] = None,
    separator: Separator = None,
    thousands: Thousands = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    gaps: Gaps = None,
    leave_out: Annotated[list[str] | None, typer.Option(help="A column to leave out; may be repeated.")] = None,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Write a page with figures here, as data.html.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what there is: sites, sizes, labels, gaps, how much sites disagree, and duplicate rows.

    FILE is a table, a folder with one for each site, or an experiment (.toml);
    NAME is a data set, such as images:PATH.  Nothing is trained.

    [dim]unskew data examples/hospitals.csv --target diagnosis --client hospital --out data.html[/]
    [dim]unskew data heart[/]
    """
    options: dict[str, Any] = {
        "target": target[0] if target is not None and len(target) == 1 else target or None,
        "client": client,
        "patient": patient,
        "patient_ids": patient_ids,
        "test": test if latest is None and after is None else _latest(latest, after, test),
        "separator": separator,
        "thousands": thousands,
        "decimal": decimal,
        "encoding": encoding,
        "gaps": gaps or None,
        "leave_out": leave_out or None,
    }
    options = {key: value for key, value in options.items() if value is not None}
    name, settings = _named(source, options)
    from unskew.data.look import describe

    seen = describe(name, data_dir=data_dir, **settings)
    from unskew.report.data_page import screen, write_look

    if out is not None:
        write_look(seen, out)
    if as_json:
        print(json.dumps(dataclasses.asdict(seen)))
        return
    print(shown(screen(seen, width())))
    if out is not None:
        print(f"page: {out}", file=sys.stderr)
    if out is None and not source.endswith(".toml"):
        then(*sys.argv[1:], "--out", "data.html")
    elif options.keys() <= {"target", "client"} and table_at(source):
        columns = [word for name in target or () for word in ("--target", name)]
        then("advise", source, *columns, *(["--client", client] if client else ()))


def _latest(column: str | None, after: str | None, test: str | None) -> dict[str, Any]:
    """The setting `test` that says that the latest rows are for testing."""
    if column is None:
        raise ConfigError("--after needs --latest, the column of when each row was")
    if test is not None:
        raise ConfigError("--latest and --test both say which rows are for testing; leave one out")
    date: str | float | None = after
    with suppress(ValueError):
        date = None if after is None else float(after)
    return {"latest": column, **({} if date is None else {"after": date})}


def _named(source: str, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The data and their columns: as given, or as an experiment's file has them."""
    if not source.endswith(".toml"):
        return source, {"data_options": dict(given)}
    task = load_own(source, []).task
    if task.data.startswith("run:"):
        raise ConfigError(f"{source} is of a run whose data were given as values; give the data themselves")
    return task.data, {"data_options": {**task.data_options, **given}, "preprocess": task.preprocess}
