"""`unskew leave-one-out`: what each site's taking part is worth to the others, and to itself."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unskew.cli.options import AsJson, DataDir, Quiet, Settings, as_file, load_own, located, silent, tell, then
from unskew.cli.tables import print_table

if TYPE_CHECKING:
    from unskew.decide.sweep import Point
    from unskew.tasks.measure import Measure


def leave_one_out(
    experiment: Annotated[str, typer.Argument()],
    settings: Settings = None,
    clients: Annotated[list[str] | None, typer.Option("--client", help="Leave this client out; repeat.")] = None,
    out: Annotated[Path | None, typer.Option(help="The runs' folder; default runs/NAME-leave-one-out.")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at once, a process each.")] = 1,
    plan: Annotated[bool, typer.Option("--plan", help="Say what it costs and run nothing.")] = False,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run an experiment once with all clients, and once without each of them.

    EXPERIMENT is a TOML file, or a name from [bold]unskew list experiments[/].
    The others' results with a client minus those without it are its contribution
    to them.  Its own result, with and without taking part, is what that is worth to
    itself.  It costs a run for each client, and one more.  The same command
    goes on with what was stopped.

    [dim]unskew leave-one-out my.toml --plan[/]
    [dim]unskew leave-one-out my.toml --client Cleveland[/]
    """
    from unskew.decide.leave_out import contributions, points
    from unskew.decide.sweep import run
    from unskew.errors import RunError
    from unskew.record.logs import require_none_diverged
    from unskew.report import read
    from unskew.report.worth import uncovered
    from unskew.run.folder import read_json

    chosen = load_own(experiment, located(settings, data_dir))
    left_out = points(chosen, clients or ())
    if plan:
        print(_cost(left_out))
        return
    folder = out or Path("runs") / f"{as_file(chosen.name)}-leave-one-out"
    say = silent if quiet else tell
    say(f"{chosen.name}: {len(left_out)} runs in {folder}")
    results = run([*left_out.values()], folder, jobs, say)
    for result in results:
        if result.status != "done":
            raise RunError(f"{result.point}: {result.error}; the same command goes on")
        require_none_diverged(read_json(result.folder / "summary.json").get("diverged", ()))
    records = {client: read(result.folder) for client, result in zip(left_out, results, strict=True)}
    whole = records[None]
    of = contributions(whole, {client: record for client, record in records.items() if client is not None})
    note = uncovered(whole)
    if as_json:
        head = {"run": chosen.name, "with_all": str(results[0].folder), "note": note}
        print(json.dumps({**head, "rows": of}))
        return
    m = whole.headline
    rows = [
        (c["client"], c["method"], *(_cell(c[name], m) for name in ("to_others", "to_itself", "unadapted"))) for c in of
    ]
    print_table(
        f"{chosen.name}: what a site's taking part is worth, {m.label}{', ' * bool(m.points)}{m.points}",
        ["site", "method", "to the others", "to itself", "to itself, as served"],
        rows,
        f"Means over seeds with 95 % intervals{m.turned}.  To the others: their results with it minus without it.  To "
        f"itself: its result minus what it gets as an unseen client, adapted on its own data, or as served.  {note}",
        words=[1],
    )
    then("show", results[0].folder)


def _cost(left_out: "Mapping[str | None, Point]") -> str:
    """The number of runs, and their time by the forecast of the one with all clients."""
    from unskew.decide.forecast.plan import plan as forecast_of
    from unskew.run.progress import duration

    forecast = forecast_of(left_out[None].experiment)
    runs = f"{len(left_out)} runs: one with all clients and one without each of {len(left_out) - 1}"
    if forecast.seconds is None:
        return f"{runs}; the time is not predicted"
    each = duration(max(forecast.seconds, 1.0))
    return f"{runs}; about {each} each, {duration(max(forecast.seconds, 1.0) * len(left_out))} in all"


def _cell(mean: Mapping[str, Any], measure: "Measure") -> str:
    return "–" if mean["mean"] is None else measure.with_interval(mean["mean"], mean["low"], mean["high"])
