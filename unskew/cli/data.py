"""`unskew data`: a first look at data, before any model."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.cli.options import AsJson, DataDir, Settings, load_own, located, table_at, then
from unskew.cli.tables import width
from unskew.errors import ConfigError, shown


def data(
    source: Annotated[str, typer.Argument(metavar="FILE|NAME")],
    settings: Settings = None,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Write a page with figures here, as data.html.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what there is: sites, sizes, labels, gaps, how much sites disagree, and duplicate rows.

    FILE is a table, a folder with one for each site, or an experiment (.toml);
    NAME is a data set, such as images:PATH.  Nothing is trained.

    [dim]unskew data examples/hospitals.csv --target diagnosis --client hospital --out data.html[/]
    [dim]unskew data visits.csv --target ill --test '{ latest = "day", after = "2024-06-30" }'[/]
    [dim]unskew data heart[/]
    """
    given = located(settings, data_dir)
    name, own = _named(source, given)
    from unskew.data.look import describe

    seen = describe(name, data_dir=data_dir, **own)
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
    elif table_at(source):
        then("advise", *(word for word in sys.argv[2:] if not word.startswith("--out") and word != str(out)))


def _named(source: str, settings: list[str]) -> tuple[str, dict[str, Any]]:
    """The data and their options: as given, or those of an experiment, which a table is, too."""
    if source.endswith(".toml") or table_at(source):
        task = load_own(source, settings).task
        if task.data.startswith("run:"):
            raise ConfigError(f"{source} is of a run whose data were given as values; give the data themselves")
        return task.data, {"data_options": task.data_options, "preprocess": task.preprocess}
    from unskew.experiment.config import override

    table = override({}, settings)
    task = table.pop("task", {})
    if odd := [*table, *(key for key in task if key not in ("data_options", "data_dir"))]:
        raise ConfigError(f"{odd[0]} is for a run, and nothing is trained here; leave it out")
    return source, {"data_options": task.get("data_options", {})}
