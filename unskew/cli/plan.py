"""`unskew plan`: the expected cost of an experiment."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from unskew.cli.options import AsJson, DataDir, Settings, load_own, located, then
from unskew.cli.tables import print_table
from unskew.errors import DataError, shown
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
    from unskew.deploy.settings import is_elsewhere

    shape = None if cluster is None else ClusterShape.parse(cluster)
    chosen = load_own(experiment, located(settings, data_dir))
    if is_elsewhere(chosen.task.data):
        raise DataError(
            f"{chosen.task.data} is not on this machine; time is measured on rows, so name some like them in task.data"
        )
    forecast = forecast_of(chosen, shape)
    if as_json:
        print(json.dumps(forecast.to_json()))
    else:
        show(forecast)
        then("run", experiment, *(word for setting in settings or () for word in ("--set", setting)))


def show(forecast: "Forecast") -> None:
    """Print the forecast as two tables and a few lines."""
    from unskew.report.results import SURE

    costs = []
    for cost in forecast.costs:
        sent = ["–"] * 3 if cost.bytes is None else [f"{cost.bytes[d] / 1e6:.3f}" for d in DIRECTIONS]
        times = ["–" if s is None else f"{s:.1f}" for s in (cost.seconds, cost.training_s)]
        costs.append((cost.method, *sent, *times, SURE[cost.traffic]))
    head = ["method", "down | MB", "up | MB", "d2d | MB", "time | s", "of it training | s", "bytes are"]
    print_table(f"{forecast.run}: what one seed will cost", head, costs, words=[-1])
    places = {"worker": f"{forecast.workers} workers, each"}
    parts = [(p.what, human_bytes(p.bytes), places.get(p.place, p.place), p.how) for p in forecast.parts]
    print_table("memory of the method that needs most", ["part", "size", "where", "why"], parts, words=[2, 3])
    inside = not any(part.place == "worker" for part in forecast.parts)
    trained = "in this process" if inside else f"in {forecast.workers} worker processes"
    if forecast.nodes > 1:
        trained = f"by {forecast.workers} actors on {forecast.nodes} machines, cores as fast as here"
    seeds = counted(forecast.seeds, "seed")
    if forecast.least is not None:
        seeds = f"{forecast.least} to {forecast.seeds} seeds, until it is decided"
    known = [_duration(s) for s in (forecast.least_seconds, forecast.seconds) if s is not None]
    limit = "" if forecast.limit is None else f" of {human_bytes(forecast.limit)} to be had"
    peak = human_bytes(max(forecast.peak, forecast.everything))
    for line in (
        f"whole run: {' to '.join(dict.fromkeys(known)) or 'not predicted'} ({seeds}, "
        f"{counted(forecast.rounds, 'round')}, {trained})",
        f"peak memory{' of a machine' * (forecast.nodes > 1)}: {peak}{limit}; training and evaluation do not add up",
        *forecast.notes,
    ):
        print(shown(line))


def _duration(seconds: float) -> str:
    from unskew.run.progress import duration

    return f"about {duration(seconds)}" if seconds >= 1 else "less than a second"
