"""Tuning: every method gets the same budget in its own search space, judged on validation rows.

space.py    what is searched: ranges that stand beside hyperparameters, and the local learning rate
search.py   trials, proposed and pruned by Optuna
result.py   tuned against default settings on test rows, under fresh seeds; the experiment that follows
page.py     the page
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from unskew import api
from unskew.decide.cells import queue, run
from unskew.decide.crew import crew
from unskew.decide.identity import about
from unskew.decide.sites import sites_of
from unskew.decide.training import TrainingWork
from unskew.decide.tuning.page import PAGE, write_tuning
from unskew.decide.tuning.result import SEEDS, Tuning, compared, corrected
from unskew.decide.tuning.search import Budget, Pruner, judging_fold, optuna_module, search
from unskew.decide.tuning.space import ranges_of
from unskew.errors import ConfigError
from unskew.experiment.config import Experiment
from unskew.files import user_path
from unskew.local.ray import RAY
from unskew.run.folder import explained, require_own
from unskew.run.progress import watching
from unskew.run.setup import InMemoryInputs

TRIALS = "trials.sqlite"


def tune(
    methods: object,
    *,
    out: str | Path,
    trials: int | None = None,
    seconds: float | None = None,
    pruner: Pruner = "median",
    workers: int | None = None,
    ray: str | None = None,
    final_seeds: int = SEEDS,
    progress: bool = True,
    **given: Any,
) -> Tuning:
    """Tune methods at equal budgets, on validation rows of the clients that train.

    Tuned and default settings are then compared on test rows and unseen clients, which no choice has read, under fresh
    seeds.

    Args:
        methods: As in `simulate`.
        out: The folder; an interrupted search is resumed from its trials.  It gets the page, tuning.html, and the tuned
            experiment, tuned.toml.
        trials, seconds: Budget of each method: a number of trials (by default 20), or a time.
        pruner: How bad trials end early: "median", "hyperband", or "none".
        workers: Processes that train trials in parallel, by default 1; the trials do not depend on it.
        ray: Address of a Ray cluster: "auto", "local" or HOST:PORT; `workers` is then its number of actors, by default
            one a core.  By default it is the runtime's, if its executor is "ray".
        final_seeds: Number of fresh seeds of the comparison.
        progress: Show progress on stderr.
        given: Data, model and settings of the experiment: `data`, `target`, `rounds` and more, as in `simulate`.

    Raises:
        ConfigError, DataError: If the experiment or the budget is impossible.
        RunError: If `out` cannot be written or has other files, or Optuna (extra unskew[tune]) is missing.
        WorkerError: If a worker is lost, or there is no cluster at the address.
    """
    with api.torch_left_alone(), watching(not progress) as watcher:
        experiment, inputs = api.asked("tune", methods, given, "tuning")
        budget = Budget(trials, seconds, pruner)
        return tune_experiment(
            experiment, user_path(out), budget, final_seeds, watcher.note, inputs=inputs, workers=workers, ray=ray
        )


def tune_experiment(
    experiment: Experiment,
    folder: Path,
    budget: Budget,
    final_seeds: int = SEEDS,
    note: Callable[[str], None] = lambda text: None,
    *,
    inputs: InMemoryInputs = InMemoryInputs(),
    workers: int | None = None,
    ray: str | None = None,
) -> Tuning:
    """Tune the methods of an experiment, compare them with their defaults, and write all to a folder.

    Raises:
        ConfigError, DataError, RunError, WorkerError: As in `tune`.
    """
    if final_seeds < 1:
        raise ConfigError(f"final_seeds must be at least 1, got {final_seeds}")
    experiment.check_choice("unskew tune")
    require_own(folder, "tuning", (TRIALS, PAGE))
    chosen = [(m, ranges_of(m)) for m in experiment.methods]
    if not any(ranges for _, ranges in chosen):
        raise ConfigError("no method of the experiment has anything to tune, a learning rate or a range of its own")
    optuna_module()
    if ray is None and workers is None and experiment.runtime.executor == RAY.name:  # its cluster trains the trials
        ray, workers = experiment.runtime.executor_options.get("address", "local"), experiment.runtime.workers
    sites = sites_of(experiment, inputs, minimum=1)
    judging_fold(sites)
    file = folder / TRIALS
    with explained(folder, None):
        folder.mkdir(parents=True, exist_ok=True)
    first = max(experiment.seeds) + 1
    fresh = tuple(range(first, first + final_seeds))
    with queue(file, about(sites, file)) as kept, crew(TrainingWork(sites, threads=1), workers, ray) as at_work:
        searches = run([search(sites, m, ranges, budget, note) for m, ranges in chosen], kept, at_work)
        worth = run([compared(sites, s, fresh, note) for s in searches], kept, at_work)
    tuning = corrected(sites, searches, worth, budget, fresh)
    write_tuning(tuning, folder)
    return tuning


__all__ = ["Budget", "Tuning", "tune", "tune_experiment"]
