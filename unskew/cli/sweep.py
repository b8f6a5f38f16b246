"""`unskew sweep`: the points of a [sweep] table, one process per core, and one comparison at the end."""

import hashlib
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from unskew.cli.options import (
    AsJson,
    DataDir,
    Quiet,
    Settings,
    as_file,
    find_experiment,
    find_own_code,
    located,
    silent,
    tell,
)
from unskew.cli.tables import comparability, in_lines, in_seconds, print_fitting
from unskew.cli.text import escape
from unskew.errors import shown
from unskew.words import counted

if TYPE_CHECKING:
    from unskew.decide.sweep import Point, PointResult

NO_CHOICE = (
    "These are results on test data, and the best of many points looks better than it is: do not choose settings by "
    "them. unskew tune chooses on validation rows, at equal budgets."
)
"""What the page of a sweep is not for."""
WIDE = 1000
"""Width of a table in a file: more than any has."""


def sweep(
    experiment: Annotated[str, typer.Argument()],
    settings: Settings = None,
    data_dir: DataDir = None,
    jobs: Annotated[int | None, typer.Option(help="Points at once; default one per core.")] = None,
    out: Annotated[Path | None, typer.Option(help="The sweep's folder; default runs/NAME-sweep.")] = None,
    part: Annotated[
        str | None, typer.Option("--shard", metavar="I/N", help="Run every N-th point only, from the I-th.")
    ] = None,
    ray: Annotated[str | None, typer.Option(help="Ray cluster that runs them: auto, local or HOST:PORT.")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    r"""Run every point of a \[sweep] table, one process per core, and compare them.

    EXPERIMENT is a TOML file with a grid, a list or both, such as
    [dim]sweep = { grid = { "split.alpha" = \[0.1, 1.0] } }[/]
    or a name from unskew list experiments with a table of that kind in --set.

    All points are checked before the first is run.  A sweep that was stopped
    goes on when the same command is given again.  A point that fails is named
    at the end, with exit code 1; the others are run all the same.

    With [bold]--shard[/] the jobs of an array have points of their own in one folder;
    the table and the page are of all points that are done.  Where a method
    diverged, it is named at the end, and the exit code is 1.

    [dim]unskew sweep my.toml --jobs 4[/]
    [dim]unskew sweep digits --set 'sweep.grid={"split.alpha"=\[0.1,1.0]}'[/]
    """
    from unskew.decide.sweep import check, expand, run, shard
    from unskew.record.logs import why_diverged
    from unskew.run.folder import read_json

    find_own_code()
    name, points = expand(find_experiment(experiment), located(settings, data_dir))
    folder = out or Path("runs") / f"{as_file(name)}-sweep"
    own = points if part is None else shard(points, part)
    say = silent if quiet else tell
    check(points)
    share = "" if part is None else f", {len(own)} of them in shard {part}"
    say(f"{name}: {counted(len(points), 'point')} in {folder}{share}")
    results = run(points, folder, jobs, say, part, ray)
    done = [r for r in results if r.status == "done"]
    summaries = {r.point: read_json(r.folder / "summary.json") for r in done}
    if as_json:
        print(json.dumps(_as_json(name, points, results, summaries)))
    elif done:
        _print_table(name, points, summaries)
    if len(done) > 1:
        from unskew.report import write_comparison

        labels = [r.point for r in done]
        page = write_comparison([r.folder for r in done], folder / "comparison.html", labels, NO_CHOICE)
        print(f"comparison: {page}", file=sys.stderr)
    failed = [r for r in results if r.status == "failed"]
    for result in failed:
        print(f"failed: {result.point}: {result.error}", file=sys.stderr)
    lost = {point: summary["diverged"] for point, summary in summaries.items() if summary.get("diverged")}
    for point, rows in lost.items():
        for row in rows:
            print(f"diverged: {shown(f'{point}: {why_diverged(row)}')}", file=sys.stderr)
    if missing := len(results) - len(done) - len(failed):
        say(f"{counted(missing, 'point')} of other shards not done yet; the last shard to end writes the page of all")
    if {*lost, *(r.point for r in failed)} & {p.name for p in own}:
        raise typer.Exit(1)


def _as_json(
    name: str, points: "Sequence[Point]", results: "Sequence[PointResult]", summaries: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    from unskew.report import read

    settings = {p.name: dict(p.settings) for p in points}
    done = [r for r in results if r.point in summaries]
    prints = "\n".join(f"{point} {s['fingerprint']}" for point, s in summaries.items())
    return {
        "run": name,
        "fingerprint": hashlib.sha256(prints.encode()).hexdigest(),
        "seconds": sum(s["seconds"] for s in summaries.values()),
        **comparability([read(r.folder) for r in done], [r.point for r in done]),
        "rows": [{**row, "method": f"{point}/{row['method']}"} for point, s in summaries.items() for row in s["rows"]],
        "points": [
            {
                "point": r.point,
                "settings": settings[r.point],
                "status": r.status,
                "run": str(r.folder),
                "error": r.error,
                "diverged": summaries.get(r.point, {}).get("diverged", []),
            }
            for r in results
        ],
    }


def _print_table(name: str, points: "Sequence[Point]", summaries: dict[str, dict[str, Any]]) -> None:
    """Print the table of a sweep, at full width where the output is no terminal."""
    console = Console()
    if console.is_terminal:
        print_fitting(console, partial(_table, name, points, summaries))
    else:
        Console(width=WIDE).print(_table(name, points, summaries, whole=True))


def _table(
    name: str, points: "Sequence[Point]", summaries: dict[str, dict[str, Any]], form: int = 3, whole: bool = False
) -> Table:
    """A row for each point and method: its settings and the numbers of the last round.

    Names are folded unless they are to be `whole`; `form` as in `print_fitting`, always with all columns.
    """
    from unskew.run.metrics import with_spread
    from unskew.tasks.measure import described

    cards = [s.get("headline") for s in summaries.values()]
    measure = described(cards[0] if cards else None)
    unit = "percent, " if measure.percent else ""
    table = Table(
        title=f"{escape(name)}: {unit}mean{' ± standard deviation' * (form > 0)} over seeds, last round",
        box=SIMPLE,
        padding=(0, 1),
    )
    for heading in ("point", "method"):
        table.add_column(heading, overflow="fold", min_width=6, no_wrap=whole)
    for heading in (escape(measure.label), "own data", "worst 1/10", "MB", "s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for point in (p for p in points if p.name in summaries):
        summary = summaries[point.name]
        by = {(r["method"], r["metric"]): r for r in summary["rows"]}
        lost = (r["method"] for r in summary.get("diverged", ()))
        for method in dict.fromkeys((*(m for m, _ in by), *lost)):
            sent, seconds = by.get((method, "bytes.total")), by.get((method, "seconds"))
            table.add_row(
                escape(point.name if whole else in_lines(point.name)),
                escape(method),
                *(
                    with_spread(by.get((method, name)), measure, spread=form == 3 or i < min(form, 1))
                    for i, name in enumerate((measure.shared, measure.own, measure.worst))
                ),
                f"{sent['mean'] / 1e6:.2f}" if sent else "",
                in_seconds(seconds["mean"]) if seconds else "",
            )
    return table
