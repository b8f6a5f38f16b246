"""`unskew plan`: the expected cost of an experiment."""

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from unskew.cli.options import AsJson, DataDir, Settings, load_own, located
from unskew.cli.text import escape
from unskew.ledger import DIRECTIONS
from unskew.units import human_bytes
from unskew.words import counted

if TYPE_CHECKING:
    from unskew.decide.forecast.values import Forecast


def plan(
    experiment: Annotated[str, typer.Argument()] = "digits",
    settings: Settings = None,
    data_dir: DataDir = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="NODESxCORES[xGB]", help="Predict for a Ray cluster of that shape, not for this machine."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict what an experiment will cost: bytes, time and memory; refuse one that cannot run.

    EXPERIMENT is a TOML file, or a name from [bold]unskew list experiments[/].
    Bytes come from the methods' own plans, driven without training; time from
    a few real steps on this machine.

    [dim]unskew plan[/]
    [dim]unskew plan my.toml --set clients_per_round=50[/]
    [dim]unskew plan my.toml --cluster 4x16x64[/]
    """
    from unskew.decide.forecast.plan import ClusterShape
    from unskew.decide.forecast.plan import plan as forecast_of
    from unskew.decide.forecast.values import to_json

    shape = None if cluster is None else ClusterShape.parse(cluster)
    forecast = forecast_of(load_own(experiment, located(settings, data_dir)), shape)
    if as_json:
        print(json.dumps(to_json(forecast)))
    else:
        show(forecast, Console())


def show(forecast: "Forecast", console: Console) -> None:
    """Print the forecast as two tables and a few lines."""
    console.print(_costs(forecast))
    console.print(_memory(forecast))
    trained = f"in {forecast.workers} worker processes" if forecast.in_processes else "in this process"
    if forecast.nodes > 1:
        trained = f"by {forecast.workers} actors on {forecast.nodes} machines, cores as fast as here"
    time = "not predicted" if forecast.seconds is None else _duration(forecast.seconds)
    seeds = counted(forecast.seeds, "seed")
    if forecast.least is not None:
        seeds = f"{forecast.least} to {forecast.seeds} seeds, until it is decided"
        if forecast.least_seconds is not None:
            least = _duration(forecast.least_seconds)
            time = time if least == time else f"{least} to {time}"
    limit = "" if forecast.limit is None else f" of {human_bytes(forecast.limit)} to be had"
    peak = human_bytes(max(forecast.peak, forecast.everything))
    for line in (
        f"whole run: {time} ({seeds}, {counted(forecast.rounds, 'round')}, {trained})",
        f"peak memory{' of a machine' * (forecast.nodes > 1)}: {peak}{limit}; training and evaluation do not add up",
        "energy: not predicted, nothing here measures power",
        *forecast.notes,
    ):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    from unskew.run.progress import duration

    return f"about {duration(seconds)}" if seconds >= 1 else "less than a second"


def _costs(forecast: "Forecast") -> Table:
    from unskew.report.results import SURE

    table = Table(
        title=f"{escape(forecast.run)}: what one seed will cost", box=SIMPLE, padding=(0, 1), caption_justify="left"
    )
    table.add_column("method", overflow="fold")
    for heading in ("MB down", "MB up", "MB d2d", "s", "of it training"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("bytes are")
    for cost in forecast.costs:
        sent = ["–"] * 3 if cost.bytes is None else [f"{cost.bytes[d] / 1e6:.3f}" for d in DIRECTIONS]
        times = ["–" if s is None else f"{s:.1f}" for s in (cost.seconds, cost.training_s)]
        table.add_row(escape(cost.method), *sent, *times, SURE[cost.traffic])
    return table


def _memory(forecast: "Forecast") -> Table:
    table = Table(title="memory of the method that needs most", box=SIMPLE, padding=(0, 1))
    table.add_column("part", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("where", no_wrap=True)
    table.add_column("why", overflow="fold")
    for part in forecast.parts:
        where = f"{forecast.workers} workers, each" if part.place == "worker" else part.place
        table.add_row(part.what, human_bytes(part.bytes), where, part.how)
    return table
