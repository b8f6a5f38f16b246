"""`unskew tune`: every method at its best, at equal budgets."""

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from unskew.cli.options import AsJson, DataDir, Quiet, Settings, as_file, load_own, located, tell, then
from unskew.cli.tables import print_page


def tune(
    experiment: Annotated[str, typer.Argument()] = "digits",
    settings: Settings = None,
    trials: Annotated[int | None, typer.Option(help="Trials of each method; 20 if no time is given.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Time for each method's trials, s.")] = None,
    pruner: Annotated[str, typer.Option(help="How bad trials end early: median, hyperband or none.")] = "median",
    workers: Annotated[
        int | None, typer.Option(help="Processes that train trials; the trials are the same with any number.")
    ] = None,
    ray: Annotated[str | None, typer.Option(help="Ray cluster that trains trials: auto, local or HOST:PORT.")] = None,
    final_seeds: Annotated[int, typer.Option(help="Fresh seeds of the comparison with default settings.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Folder; with trials in it the search goes on.")] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Tune each method of an experiment at the same budget, on validation rows.

    EXPERIMENT is a TOML file, or a name from [bold]unskew list experiments[/].
    It searches the local learning rate and the ranges that stand beside a
    method's hyperparameters.  The folder has the page, [bold]tuning.html[/], and the
    tuned experiment, [bold]tuned.toml[/]; given again as --out it goes on.

    [dim]unskew tune digits[/]
    [dim]unskew tune my.toml --trials 50 --pruner hyperband --out tuned[/]
    [dim]unskew tune my.toml --workers 8[/]
    """
    from typing import cast

    from unskew.decide.tuning import tune_experiment
    from unskew.decide.tuning.page import EXPERIMENT, PAGE, view
    from unskew.decide.tuning.search import Budget, Pruner
    from unskew.run.progress import watching

    budget = Budget(trials, seconds, cast(Pruner, pruner))
    chosen = load_own(experiment, located(settings, data_dir))
    folder = out or Path("runs") / f"{as_file(chosen.name)}-tuning-{datetime.now():%Y%m%d-%H%M%S}"
    with watching(quiet) as callback:
        tuning = tune_experiment(chosen, folder, budget, final_seeds, callback.note, workers=workers, ray=ray)
    if as_json:
        print(json.dumps(tuning.to_json()))
    else:
        print_page(view(tuning))
    tell(f"page: {folder / PAGE}")
    then("run", folder / EXPERIMENT)
