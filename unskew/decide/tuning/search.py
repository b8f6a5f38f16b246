"""Trials of a method, proposed and pruned by Optuna.

The first trial has the method's present settings.  Each trains under the experiment's first seed on all folds but one.
It is scored by the rows of that one at five looks, and may be pruned at each.

Trials are proposed in batches, so they do not depend on the number of workers.  A resumed search asks Optuna again.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from unskew.decide.cells import Plan
from unskew.decide.sites import Sites, measurable
from unskew.decide.training import MOST_HELD, TrainingJob, trained
from unskew.decide.tuning.space import present, with_values
from unskew.errors import ConfigError, DataError, RunError
from unskew.experiment.config import NamedMethod
from unskew.keys import Key
from unskew.schema import Search

Pruner = Literal["median", "hyperband", "none"]
State = Literal["complete", "pruned", "diverged"]

TRIALS = 20
LOOKS = 5
"""Points at which a trial is scored."""

RANDOM = 5
"""Trials of a search that are drawn at random before others are proposed from their results."""

BATCH = 4


@dataclass(frozen=True)
class Budget:
    """Budget of each method: a number of trials or a time, the same for all.

    Raises:
        ConfigError: If both are given, or one is not above zero.
    """

    trials: int | None = None
    seconds: float | None = None
    pruner: Pruner = "median"

    def __post_init__(self) -> None:
        if self.trials is not None and self.seconds is not None:
            raise ConfigError("give each method a number of trials or a time in seconds, not both")
        for name, value in (("trials", self.trials), ("seconds", self.seconds)):
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be above zero, got {value:g}")
        if self.pruner not in ("median", "hyperband", "none"):
            raise ConfigError(f'pruner must be "median", "hyperband" or "none", got {self.pruner!r}')

    def next(self, trials: "Sequence[Trial]", batch: int = BATCH) -> int:
        """Number of trials to come next; with a budget in seconds one at a time."""
        if self.seconds is None:
            return min(batch, (self.trials or TRIALS) - len(trials))
        return int(sum(t.seconds for t in trials) < self.seconds)

    def __str__(self) -> str:
        return f"{self.seconds:g} s" if self.seconds is not None else f"{self.trials or TRIALS} trials"


@dataclass
class Trial:
    """A trial, in progress or finished.

    Attributes:
        values: Its hyperparameters.
        score: The headline on validation rows, mean over clients, at its last look; None if it diverged.
        state: "complete", "pruned" before its last round, or "diverged"; None while it is in training.
        rounds: Rounds it took.
        seconds: Time it took.
    """

    values: Mapping[str, float]
    score: float | None = None
    state: State | None = None
    rounds: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class Searched:
    """A method's search.

    Attributes:
        method: The method with its default settings.
        ranges: The search space; empty if there is nothing to tune.
        trials: The trials within the budget, in order.
        best: Index of the best complete one; None if there is none.
    """

    method: NamedMethod
    ranges: Mapping[str, Search]
    trials: tuple[Trial, ...]
    best: int | None

    @property
    def tuned(self) -> NamedMethod:
        """The method with the best trial's values."""
        return self.method if self.best is None else with_values(self.method, self.trials[self.best].values)


def search(
    sites: Sites, method: NamedMethod, ranges: Mapping[str, Search], budget: Budget, note: Callable[[str], None]
) -> Plan[Searched]:
    """The plan of a method's search."""
    trials: list[Trial] = []
    if not ranges:
        return Searched(method, ranges, (), None)
    study, fold, optuna = _study(sites, method, budget.pruner), judging_fold(sites), optuna_module()
    spans = {name: _span(optuna, of) for name, of in ranges.items()}
    held = BATCH * sites.setup.parameters * sites.fed.num_clients
    while (count := budget.next(trials, 1 if held > MOST_HELD else BATCH)) > 0:
        first = present(method, ranges)
        if not trials:
            study.enqueue_trial(first)
        asked = [study.ask(spans if trials or i else {name: spans[name] for name in first}) for i in range(count)]
        trials += yield from _batch(sites, method, fold, study, asked)
        best = _best(trials, sites.measure.higher)
        score = "none is complete" if best is None else sites.measure.show(trials[best].score or 0.0)
        note(f"{method.label}: {len(trials)} trials, best {sites.measure.label} so far {score}")
    return Searched(method, ranges, tuple(trials), _best(trials, sites.measure.higher))


def _batch(sites: Sites, method: NamedMethod, fold: int, study: Any, asked: Sequence[Any]) -> Plan[list[Trial]]:
    """The plan of trials that train side by side, from look to look; Optuna's study is told what they come to."""
    rounds, seed, enough = sites.experiment.rounds, sites.experiment.seeds[0], sites.experiment.stop.megabytes
    batch = [Trial(dict(of.params)) for of in asked]
    for look, until in enumerate(sorted({max(1, math.ceil(rounds * k / LOOKS)) for k in range(1, LOOKS + 1)}), 1):
        going = [(of, trial) for of, trial in zip(asked, batch, strict=True) if trial.state is None]
        methods = [with_values(method, trial.values) for _, trial in going]
        jobs = [TrainingJob(m, seed, rounds, until, fold, enough=enough) for m in methods]
        results = yield from trained(sites, jobs)
        for (of, trial), result in zip(going, results, strict=True):
            trial.rounds, trial.seconds = result.at, trial.seconds + result.seconds
            trial.score = None if result.scores is None else result.scores.mean
            if trial.score is None or not math.isfinite(trial.score):
                trial.score, trial.state = None, "diverged"
            else:
                of.report(trial.score, look)
                trial.state = "complete" if until == rounds else "pruned" if of.should_prune() else None
            if trial.state == "complete":
                study.tell(of, trial.score)
            elif trial.state is not None:
                study.tell(of, state=optuna_module().trial.TrialState.PRUNED)
    return batch


def _best(trials: Sequence[Trial], higher: bool) -> int | None:
    """Return the position of the best complete trial, the first of equals; None if none is complete."""
    scores = {i: t.score for i, t in enumerate(trials) if t.state == "complete" and t.score is not None}
    return max(scores, key=lambda i: (scores[i] if higher else -scores[i], -i), default=None)


def judging_fold(sites: Sites) -> int:
    """The first fold in which the headline is defined for some client's rows (AUROC needs two classes).

    Raises:
        DataError: If there is none.
    """
    for k, fold in enumerate(sites.folds):
        if any(measurable(sites.setup.task, fold.dataset.y_train[rows]) for rows in fold.clients.val):
            return k
    raise DataError(
        f"{sites.measure.label} is defined for no client's validation rows in any of {len(sites.folds)} folds; give "
        "another task.headline, or a larger val_fraction, up to 0.5"
    )


def _study(sites: Sites, method: NamedMethod, pruner: Pruner) -> Any:
    optuna = optuna_module()
    pruners = {
        "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=RANDOM, n_warmup_steps=2),
        "hyperband": lambda: optuna.pruners.HyperbandPruner(1, LOOKS, 2),
        "none": optuna.pruners.NopPruner,
    }
    seed = (Key(sites.experiment.seeds[0]) / "tune" / method.label).number() % 2**32
    return optuna.create_study(
        study_name=method.label,  # Hyperband draws its brackets by it
        sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM, multivariate=True),
        pruner=pruners[pruner](),
        direction="maximize" if sites.measure.higher else "minimize",
    )


def _span(optuna: Any, search: Search) -> Any:
    if search.whole:
        return optuna.distributions.IntDistribution(int(search.low), int(search.high), log=search.log)
    return optuna.distributions.FloatDistribution(search.low, search.high, log=search.log)


def optuna_module() -> Any:
    """Optuna, with its log silenced.

    Raises:
        RunError: If it is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise RunError("tuning searches by Optuna, which is not installed; pip install 'unskew[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
