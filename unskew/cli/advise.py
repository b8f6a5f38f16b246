"""`unskew advise`: is federation worth it here, for whom, with whom, how, and at what cost."""

import json
import math
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from unskew.cli.options import AsJson, DataDir, Quiet, Settings, as_file, load_own, located, tell, then
from unskew.cli.tables import width
from unskew.errors import shown


def advise(
    experiment: Annotated[str, typer.Argument()] = "digits",
    settings: Settings = None,
    fresh_seeds: Annotated[int, typer.Option(help="Seeds under which the numbers are measured.")] = 5,
    minutes: Annotated[
        float | None, typer.Option(help="The most time; what was trained in it is kept. Default: no limit.")
    ] = None,
    max_rounds: Annotated[int | None, typer.Option(help="The most communication rounds of a federation.")] = None,
    max_megabytes: Annotated[
        float | None, typer.Option(help="Most megabytes that server and sites together may send in one training.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that train; the answer is the same with any number.")
    ] = None,
    ray: Annotated[str | None, typer.Option(help="Ray cluster that trains: auto, local or HOST:PORT.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the page; advice that was stopped goes on there.")] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Say whether sites should train together: for whom, with whom, how, and what it costs.

    EXPERIMENT is a TOML file, a name from [bold]unskew list experiments[/], or a table.
    Each site trains alone, FedAvg and other methods race on validation rows,
    and the chosen one is measured on test rows that no choice has seen.  The folder
    has the page, [bold]advice.html[/], and what it recommends, [bold]advised.toml[/].

    [dim]unskew advise visits.csv --target diagnosis --client hospital[/]
    [dim]unskew advise my.toml --minutes 10 --max-megabytes 50[/]
    """
    from unskew.decide.advice import advise_experiment
    from unskew.decide.advice.page import EXPERIMENT, require_place, screen, write_advice
    from unskew.run.progress import watching

    chosen = load_own(experiment, located(settings, data_dir))
    folder = out or Path("runs") / f"{as_file(chosen.name)}-advice-{datetime.now():%Y%m%d-%H%M%S}"
    require_place(folder, chosen)
    with watching(quiet) as callback:
        limit = math.inf if minutes is None else minutes
        advice = advise_experiment(
            chosen, limit, max_rounds, max_megabytes, callback.note, fresh_seeds=fresh_seeds,
            folder=folder, workers=workers, ray=ray,
        )  # fmt: skip
    page = write_advice(advice, folder)
    if as_json:
        print(json.dumps(advice.to_json()))
    else:
        print(shown(screen(advice, width())))
    tell(f"page: {page}")
    then("run", folder / EXPERIMENT)
