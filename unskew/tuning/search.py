"""Trials of a method by Optuna: kept in a SQLite file, so that a search that was killed goes on with the next trial.

The first trial has the method's present settings.  Each trial trains under the experiment's first seed on all folds but
one of the clients' rows, and is scored by the rows of that one, at five points of its way; at each it may be pruned.
Draws of a trial follow from the seed and the number of trials before it: a search that went on has the trials of one
that never stopped (Hyperband also goes by Optuna's numbers, which count a trial that was killed twice).
"""

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from unskew.advice.training import Sites, Training
from unskew.errors import ConfigError, DivergedError, RunError
from unskew.experiment.config import Method, fingerprint
from unskew.keys import Key
from unskew.schema import Search
from unskew.tuning.space import present, with_values

Pruner = Literal["median", "hyperband", "none"]
State = Literal["complete", "pruned", "diverged"]

TRIALS = 20
LOOKS = 5
"""Points at which a trial is scored."""

RANDOM = 5
"""Trials of a search that are drawn at random before others are proposed from their results."""

ENDED = ("COMPLETE", "PRUNED")
"""States of trials that count."""

NAMES = "names"
"""Attribute where Optuna keeps the hyperparameters that a trial sets; the first sets only those that are in range."""


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

    def spent(self, trials: int, seconds: float) -> bool:
        """Return true if so much is all there is."""
        return seconds >= self.seconds if self.seconds is not None else trials >= (self.trials or TRIALS)

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
    """

    values: Mapping[str, float]
    score: float | None
    state: State
    rounds: int
    seconds: float

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
        trials: All trials in their order.
        best: Position of the best complete one; None if there is none.
    """

    method: Method
    ranges: Mapping[str, Search]
    trials: tuple[Trial, ...]
    best: int | None

    @property
    def tuned(self) -> Method:
        """The method with the best trial's values."""
        return self.method if self.best is None else with_values(self.method, self.trials[self.best].values)


def search(
    sites: Sites,
    method: Method,
    ranges: Mapping[str, Search],
    budget: Budget,
    folder: Path,
    note: Callable[[str], None],
) -> Searched:
    """Spend a method's budget, beginning after the trials that the folder has.

    Raises:
        RunError: If the trials cannot be kept, their file is damaged, or Optuna is missing.
    """
    if not ranges:
        return Searched(method, {}, (), None)
    optuna = optuna_module()
    higher = sites.measure.higher
    study, file = _study(optuna, sites, method, ranges, budget, folder)
    _ended(study, file, ranges)  # which is the first to look at them
    _take_back(optuna, study, present(method, ranges))
    ended = _ended(study, file, ranges)
    while not budget.spent(len(ended), sum(t.seconds for t in ended)):
        seed = (Key(sites.experiment.seeds[0]) / "tune" / method.label / len(ended)).number() % 2**32
        study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM, multivariate=True)
        try:
            trial = study.ask()
        except optuna.exceptions.OptunaError as error:
            raise _damaged(file, error.__cause__ or error) from error
        names = trial.user_attrs.get(NAMES, list(ranges))
        values = {n: _suggest(trial, n, ranges[n]) for n in ranges if n in names}
        _train(optuna, study, trial, with_values(method, values), sites)
        ended = _ended(study, file, ranges)
        best = _best(ended, higher)
        score = "none is complete" if best is None else sites.measure.show(ended[best].score or 0.0)
        note(f"{method.label}: trial {len(ended)} of {budget}, best {sites.measure.label} so far {score}")
    return Searched(method, ranges, ended, _best(ended, higher))


def _suggest(trial: Any, name: str, of: Search) -> float:
    if of.whole:
        whole: int = trial.suggest_int(name, int(of.low), int(of.high), log=of.log)
        return whole
    value: float = trial.suggest_float(name, of.low, of.high, log=of.log)
    return value


def _best(trials: Sequence[Trial], higher: bool) -> int | None:
    """Return the position of the best complete trial, the first of equals; None if none is complete."""
    scores = {i: t.score if higher else -t.score for i, t in enumerate(trials) if t.complete and t.score is not None}
    return max(scores, key=lambda i: (scores[i], -i), default=None)


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


def _study(
    optuna: Any, sites: Sites, method: Method, ranges: Mapping[str, Search], budget: Budget, folder: Path
) -> tuple[Any, Path]:
    """Open a method's study, or make it; return it with its file.

    Raises:
        RunError: If its file is damaged, or of another Optuna.
    """
    from sqlalchemy.exc import DBAPIError  # Optuna's own

    trials = folder / "trials"
    trials.mkdir(exist_ok=True)
    safe = "".join(c if c.isalnum() else "-" for c in method.label)
    # Other data, rounds, ranges or settings are another study.
    of = f"{method.options} {dict(ranges)} {fingerprint(sites.experiment)} {sites.setup.dataset.sha256} {budget.pruner}"
    pruners = {
        "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=RANDOM, n_warmup_steps=2),
        "hyperband": lambda: optuna.pruners.HyperbandPruner(1, LOOKS, 2),
        "none": optuna.pruners.NopPruner,
    }
    file = (trials / f"{safe}.db").resolve()
    try:
        study = optuna.create_study(
            storage=f"sqlite:///{file}",
            study_name=f"{method.label} {hashlib.sha256(of.encode()).hexdigest()[:16]}",
            pruner=pruners[budget.pruner](),
            direction="maximize" if sites.measure.higher else "minimize",
            load_if_exists=True,
        )
    except (DBAPIError, optuna.exceptions.OptunaError) as error:
        raise _damaged(file, error.__cause__ or error) from error
    return study, file


def _damaged(file: Path, why: object) -> RunError:
    return RunError(f"{file} is not a file of trials to continue from ({why}); delete it to start again")


def _take_back(optuna: Any, study: Any, first: Mapping[str, float]) -> None:
    """Have the values of a trial that was killed tried again; with none that ended, begin with these."""
    states = optuna.trial.TrialState
    killed = study.get_trials(deepcopy=False, states=(states.RUNNING,))
    for trial in killed:
        study.tell(trial.number, state=states.FAIL)
    ended = any(t.state.name in ENDED for t in study.get_trials(deepcopy=False))
    again = next((t.params for t in killed if t.params), None) if ended else first
    if again is not None and not study.get_trials(deepcopy=False, states=(states.WAITING,)):
        _enqueue(study, again)


def _enqueue(study: Any, values: Mapping[str, float]) -> None:
    study.enqueue_trial(dict(values), user_attrs={NAMES: list(values)})


def _train(optuna: Any, study: Any, trial: Any, method: Method, sites: Sites) -> None:
    """Train a trial to its end, or until it is pruned or diverges, and tell the study."""
    began, rounds = time.monotonic(), sites.experiment.rounds
    fold = sites.folds[0]
    looks = sorted({max(1, math.ceil(rounds * k / LOOKS)) for k in range(1, LOOKS + 1)})
    state: State = "complete"
    score, at = math.nan, 0
    try:
        training = Training(method, sites, rounds, sites.experiment.seeds[0], fold, sites.experiment.stop.megabytes)
        for look, until in enumerate(looks, 1):
            training.go_on(until)
            score, at = training.scores(fold.clients.val).mean, training.at
            trial.report(score, look)
            if look < len(looks) and trial.should_prune():
                state = "pruned"
                break
    except DivergedError:
        state = "diverged"
    if not math.isfinite(score):
        state = "diverged"
    trial.set_user_attr("rounds", at)
    trial.set_user_attr("score", None if state == "diverged" else score)
    trial.set_user_attr("state", state)
    trial.set_user_attr("seconds", time.monotonic() - began)
    if state == "complete":
        study.tell(trial, score)
    else:
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)


def _ended(study: Any, file: Path, ranges: Mapping[str, Search]) -> tuple[Trial, ...]:
    """List the trials that have ended, in their order.

    Raises:
        RunError: If the file says what no search of ours wrote.
    """
    try:
        ended = [t for t in study.get_trials(deepcopy=False) if t.state.name in ENDED]
        return tuple(_sound(dict(t.params), t.user_attrs, ranges) for t in ended)
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(file, error) from error


def _sound(values: dict[str, float], told: Mapping[str, Any], ranges: Mapping[str, Search]) -> Trial:
    """Check a trial as it was read.

    Raises:
        ValueError, KeyError, TypeError: If it is none.
    """
    score, state, rounds, seconds = (told[name] for name in ("score", "state", "rounds", "seconds"))
    for name, value in values.items():
        if not ranges[name].low <= value <= ranges[name].high:
            raise ValueError(f"a trial has {name} = {value:g}, out of its range")
    if state not in get_args(State) or not (score is None or math.isfinite(score)) or not 0.0 <= seconds < math.inf:
        raise ValueError(f"a trial has state {state!r}, score {score!r} and seconds {seconds!r}")
    return Trial(values, score, state, int(rounds), seconds)
