"""Advice: is federation worth it for these sites, for which of them, how, and at what cost?

The amount of training never depends on the clock, so the same question has the same answer on any machine.  If time
ends first, there is no answer yet.

measure.py    how the sites' training disagrees, and groups that this suggests
race.py       local rates, bounds, and successive halving of methods, all on validation rows
check.py      test rows, under fresh seeds: gains, cost
answer.py     the decision, its words, and the experiment that it recommends
page.py       the page
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from unskew import api
from unskew.decide.advice.answer import Advice
from unskew.decide.advice.check import SEEDS, check
from unskew.decide.advice.measure import AdviceWork, proposed
from unskew.decide.advice.page import CELLS, require_place, write_advice
from unskew.decide.advice.race import FOLDS, local_of, race
from unskew.decide.cells import Plan, queue, run
from unskew.decide.crew import crew
from unskew.decide.identity import about
from unskew.decide.sites import Clock, Constraints, Sites, sites_of
from unskew.errors import ConfigError
from unskew.experiment import config
from unskew.experiment.config import Experiment
from unskew.files import user_path
from unskew.run.folder import explained
from unskew.run.progress import duration, watching
from unskew.run.setup import InMemoryInputs


def advise(
    data: object = ...,
    *,
    methods: object = None,
    fresh_seeds: int = SEEDS,
    minutes: float = math.inf,
    max_rounds: int | None = None,
    max_megabytes: float | None = None,
    out: str | Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    progress: bool = True,
    **given: Any,
) -> Advice:
    """Answer whether these sites should train together, which of them, and how.

    It measures how much the sites disagree.  It trains each site alone, FedAvg and pooled data, and lets methods race
    by successive halving on validation rows.  The chosen method is then measured on test rows, under fresh seeds.

    Args:
        data: As in `simulate`, or the path of an experiment's file (.toml), which then has all other settings.
        methods: Methods that race beside ours, as in `simulate`, by default FedAvg; the first one's local training is
            that of all.
        fresh_seeds: Seeds of the final measurement; with one there is no verdict.
        minutes: Time limit; none by default.
        max_rounds: Most communication rounds of a federation.
        max_megabytes: Most that all sites and the server together may send in one training, 10^6 bytes.
        out: Folder for the page, advice.html, and the recommended experiment, advised.toml.  Interrupted advice is
            resumed from there.
        workers: Processes that train in parallel, by default 1; the answer does not depend on it.
        ray: Address of a Ray cluster whose cores train, as in `tune`.
        progress: Show progress on stderr.
        given: Model and settings of the experiment: `model`, `target`, `rounds` and more, as in `simulate`.

    Raises:
        ConfigError, DataError: If the experiment or a limit is impossible, or there are fewer than two sites.
        RunError: If time ends first, `out` cannot be written, or `out` has other files.
        WorkerError: If a worker is lost, or there is no cluster at the address.
    """
    with api.torch_left_alone(), watching(not progress) as watcher:
        if isinstance(data, str | Path) and str(data).endswith(".toml"):
            if given or methods is not None:
                raise ConfigError(f"{data} says everything about the experiment; leave the other settings out")
            experiment, inputs = config.load(user_path(data), allow_code=True), InMemoryInputs()
        else:
            methods = "fedavg" if methods is None else methods
            experiment, inputs = api.asked("advise", methods, {"data": data, **given}, "advice")
        if out is not None:
            require_place(user_path(out), experiment, inputs.dataset)
        advice = advise_experiment(
            experiment, minutes, max_rounds, max_megabytes, watcher.note, fresh_seeds=fresh_seeds, inputs=inputs,
            folder=None if out is None else user_path(out), workers=workers, ray=ray,
        )  # fmt: skip
    if out is not None:
        write_advice(advice, user_path(out))
    return advice


def advise_experiment(
    experiment: Experiment,
    minutes: float = math.inf,
    max_rounds: int | None = None,
    max_megabytes: float | None = None,
    note: Callable[[str], None] = lambda text: None,
    *,
    inputs: InMemoryInputs = InMemoryInputs(),
    fresh_seeds: int = SEEDS,
    folds: int = FOLDS,
    clock: Clock | None = None,
    folder: Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
) -> Advice:
    """Advice for an experiment.

    Args:
        experiment, minutes, max_rounds, max_megabytes, fresh_seeds, workers, ray: As in `advise`.
        note: Called with a line for each stage.
        inputs: Data and networks given as values.
        folds: Number of folds for validation.
        clock: Time limit, instead of `minutes`.
        folder: Keeps outcomes, to resume from.

    Raises:
        ConfigError, DataError, RunError, WorkerError: As in `advise`.
    """
    experiment.check_choice("unskew advise")
    given = {"minutes": minutes, "max_rounds": max_rounds, "max_megabytes": max_megabytes, "fresh_seeds": fresh_seeds}
    for name, value in given.items():
        whole = name in ("max_rounds", "fresh_seeds")
        if value is not None and (not value > 0 or (whole and value != int(value))):
            raise ConfigError(f"{name} must be above zero, got {value:g}")
    clock, limits = clock or Clock(60 * minutes), Constraints(max_rounds, max_megabytes or experiment.stop.megabytes)

    def say(text: str) -> None:
        note(f"[{duration(clock.spent)}, round {clock.rounds:,}] {text}")

    sites = replace(sites_of(experiment, inputs), clock=clock)
    file = None if folder is None else folder / CELLS
    if folder is not None:
        with explained(folder, None):
            folder.mkdir(parents=True, exist_ok=True)
    with queue(file, "" if file is None else about(sites, file)) as kept, crew(AdviceWork(sites), workers, ray) as team:
        (advice,) = run([_plan(sites, limits, say, folds, fresh_seeds)], kept, team)
    return advice


def _plan(sites: Sites, limits: Constraints, say: Callable[[str], None], folds: int, fresh_seeds: int) -> Plan[Advice]:
    which = f"{sites.fed.num_clients} sites of {sites.setup.dataset.name}"
    say(f"{sites.experiment.name}: {which}; measuring how they differ")
    groups = yield from proposed(sites, local_of(sites))
    raced = yield from race(sites, groups, limits, say, folds)
    if raced.chosen is not None:
        say(f"chosen: {raced.chosen.method.label}; now test rows")
    checked = yield from check(sites, raced, limits, say, fresh_seeds)
    return Advice(sites, limits, raced, checked, sites.clock.spent)


__all__ = ["Advice", "advise", "advise_experiment"]
