"""Trials of a method, proposed and pruned by Optuna: each is a cell of a runner.

The first trial has the method's present settings.  Each trains under the experiment's first seed on all folds but one
of the clients' rows, and is scored by the rows of that one, at five points of its way; at each it may be pruned.

Trials come in batches, the first of five, each other of four.  What a trial tries, and whether it is pruned, depends on
its number and on the trials of earlier batches, on nothing else: its cell has those, and Optuna is asked where it is
trained.
"""

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from unskew.decide.cells import Outcome, QueuedCell
from unskew.decide.forecast.measure import threads
from unskew.decide.sites import Sites, measurable
from unskew.decide.training import Training, TrainingWork, as_json
from unskew.decide.tuning.space import present, with_values
from unskew.errors import ConfigError, DataError, DivergedError, RunError
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
"""Trials of a batch after the first, which has those that are drawn at random."""


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

    def next(self, trials: "Sequence[Trial]") -> range:
        """Numbers of the trials to come next: the rest of a batch; of a budget in seconds one at a time."""
        done, end = len(trials), batch_of(len(trials)) + (BATCH if len(trials) >= RANDOM else RANDOM)
        if self.seconds is None:
            return range(done, min(end, self.trials or TRIALS))
        return range(done, done + (sum(t.seconds for t in trials) < self.seconds))

    def __str__(self) -> str:
        return f"{self.seconds:g} s" if self.seconds is not None else f"{self.trials or TRIALS} trials"


@dataclass(frozen=True)
class Trial:
    """Outcome of a trial.

    Attributes:
        values: Its hyperparameters.
        score: The headline on validation rows, mean over clients, at its end; None if it diverged.
        state: "complete", "pruned" before its last round, or "diverged".
        rounds: Rounds it took.
        seconds: Time it took.
        looks: Its scores on the way, in their order.
        rungs: What the pruner notes of it.
    """

    values: Mapping[str, float]
    score: float | None
    state: State
    rounds: int
    seconds: float
    looks: Sequence[float] = ()
    rungs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """True if it came to its end."""
        return self.state == "complete"


@dataclass(frozen=True, eq=False)
class Searched:
    """A method's search.

    Attributes:
        method: The method as it was.
        ranges: What was searched; empty if it has nothing to tune.
        trials: The trials that its budget pays for, in their order.
        best: Position of the best complete one; None if there is none.
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
) -> Generator[Sequence[QueuedCell], Sequence[Outcome], Searched]:
    """The plan of a method's search."""
    trials: list[Trial] = []
    fold = judging_fold(sites)
    while ranges and (numbers := budget.next(trials)):
        earlier = [{**vars(t), "seconds": 0.0} for t in trials[: batch_of(numbers[0])]]
        asked = {
            "do": "trial",
            "method": as_json(method),
            "ranges": {name: [r.low, r.high, r.log, r.whole] for name, r in ranges.items()},
            "fold": fold,
            "pruner": budget.pruner,
            "earlier": earlier,
        }
        outcomes = yield [QueuedCell({**asked, "number": n}) for n in numbers]
        trials += [Trial(**outcome) for outcome in outcomes]
        best = _best(trials, sites.measure.higher)
        score = "none is complete" if best is None else sites.measure.show(trials[best].score or 0.0)
        note(f"{method.label}: {len(trials)} trials, best {sites.measure.label} so far {score}")
    return Searched(method, ranges, tuple(trials), _best(trials, sites.measure.higher))


def batch_of(number: int) -> int:
    """The number of the first trial of a trial's batch.

    >>> [batch_of(n) for n in range(10)]
    [0, 0, 0, 0, 0, 5, 5, 5, 5, 9]
    """
    return 0 if number < RANDOM else RANDOM + (number - RANDOM) // BATCH * BATCH


def _best(trials: Sequence[Trial], higher: bool) -> int | None:
    """Return the position of the best complete trial, the first of equals; None if none is complete."""
    scores = {i: t.score if higher else -t.score for i, t in enumerate(trials) if t.complete and t.score is not None}
    return max(scores, key=lambda i: (scores[i], -i), default=None)


def judging_fold(sites: Sites) -> int:
    """The first fold in which the headline is defined for some client's rows, as AUROC is not for rows of one class.

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


# ---------------------------------------------------------------- a worker's side
@dataclass(eq=False)
class TuningWork(TrainingWork):
    """A worker's work: trials, each with one thread, and trainings under fresh seeds."""

    def train(self, asked: Mapping[str, Any]) -> Outcome:
        """Train a trial, or as `TrainingWork` does."""
        if asked["do"] != "trial":
            return super().train(asked)
        with threads(1):
            return self.trial(**{name: value for name, value in asked.items() if name != "do"})

    def trial(
        self,
        method: Sequence[Any],
        ranges: Mapping[str, Sequence[Any]],
        fold: int,
        pruner: Pruner,
        earlier: Sequence[Mapping[str, Any]],
        number: int,
    ) -> Outcome:
        """The outcome of a trial."""
        began, sites = time.monotonic(), self.sites
        rounds, seed, rows = sites.experiment.rounds, sites.experiment.seeds[0], sites.folds[fold].clients.val
        tried, searched = self.method(method), {name: Search(*of) for name, of in ranges.items()}
        trial, values = _asked(sites, tried, searched, pruner, [Trial(**of) for of in earlier], number)
        looks: list[float] = []
        state: State = "diverged"
        training: Training | None = None
        try:
            training = Training(
                with_values(tried, values),
                sites,
                rounds,
                seed,
                sites.folds[fold],
                enough=sites.experiment.stop.megabytes,
            )
            for until in sorted({max(1, math.ceil(rounds * k / LOOKS)) for k in range(1, LOOKS + 1)}):
                training.go_on(until)
                if not math.isfinite(score := training.scores(rows).mean):
                    break
                looks.append(score)
                trial.report(score, len(looks))
                if until == rounds:
                    state = "complete"
                elif trial.should_prune():
                    state = "pruned"
                    break
        except DivergedError:
            pass
        record = trial.study.trials[trial.number]
        return {
            "values": values,
            "score": looks[-1] if state != "diverged" else None,
            "state": state,
            "rounds": 0 if training is None else training.at,
            "seconds": time.monotonic() - began,
            "looks": looks,
            "rungs": {k: v for k, v in record.system_attrs.items() if k.startswith("completed_rung")},
        }


def _asked(
    sites: Sites,
    method: NamedMethod,
    ranges: Mapping[str, Search],
    pruner: Pruner,
    earlier: Sequence[Trial],
    number: int,
) -> tuple[Any, dict[str, float]]:
    """A trial of Optuna's, in a study that knows the trials of earlier batches and no others; and its values."""
    optuna = optuna_module()
    pruners = {
        "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=RANDOM, n_warmup_steps=2),
        "hyperband": lambda: optuna.pruners.HyperbandPruner(1, LOOKS, 2),
        "none": optuna.pruners.NopPruner,
    }
    seed = (Key(sites.experiment.seeds[0]) / "tune" / method.label / number).number() % 2**32
    study = optuna.create_study(
        study_name=method.label,  # Hyperband draws its brackets by it
        sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM, multivariate=True),
        pruner=pruners[pruner](),
        direction="maximize" if sites.measure.higher else "minimize",
    )
    states, create = optuna.trial.TrialState, optuna.trial.create_trial
    spans = {name: _span(optuna, of) for name, of in ranges.items()}
    study.add_trials(
        create(
            state=states.COMPLETE if t.complete else states.PRUNED,
            value=t.score if t.complete else None,
            params=dict(t.values),
            distributions={name: spans[name] for name in t.values},
            intermediate_values=dict(enumerate(t.looks, start=1)),
            system_attrs=dict(t.rungs),
        )
        for t in earlier
    )
    # Others of its batch are there by their number alone, which Hyperband goes by.
    study.add_trials([create(state=states.FAIL)] * (number - len(earlier)))
    if number == 0:
        values = present(method, ranges)
        spans = {name: spans[name] for name in values}
        study.enqueue_trial(values)
    trial = study.ask(spans)
    return trial, dict(trial.params)


def _span(optuna: Any, of: Search) -> Any:
    if of.whole:
        return optuna.distributions.IntDistribution(int(of.low), int(of.high), log=of.log)
    return optuna.distributions.FloatDistribution(of.low, of.high, log=of.log)


def optuna_module() -> Any:
    """Import Optuna, quiet.

    Raises:
        RunError: If it is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise RunError("tuning searches by Optuna, which is not installed; pip install 'unskew[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
