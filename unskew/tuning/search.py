"""Trials of a method by Optuna: kept in a SQLite file, so that a search that was killed goes on with the next trial.

The first trial has the method's present settings.  Each trial trains under the experiment's first seed on all folds but
one of the clients' rows, and is scored by the rows of that one, at five points of its way; at each it may be pruned.

Trials come in batches, the first of five, each other of four.  What a trial tries, and whether it is pruned, depends on
its number and on the trials of earlier batches, on nothing else: trials of a batch can train side by side, and a search
has the same trials with one worker or many, stopped or not, whatever ends first.
"""

import hashlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from unskew.advice.training import Sites
from unskew.errors import ConfigError, RunError
from unskew.experiment.config import Method, fingerprint
from unskew.keys import Key
from unskew.run.documents import network_sha256
from unskew.schema import Search
from unskew.tuning.identity import code_sha256
from unskew.tuning.space import present, with_values
from unskew.tuning.trainers import Step, StepOutcome, Trainers

Pruner = Literal["median", "hyperband", "none"]
State = Literal["complete", "pruned", "diverged"]

TRIALS = 20
LOOKS = 5
"""Points at which a trial is scored."""

RANDOM = 5
"""Trials of a search that are drawn at random before others are proposed from their results."""

BATCH = 4
"""Trials of a batch after the first, which has those that are drawn at random."""

ENDED = ("COMPLETE", "PRUNED")
"""States of trials that count."""

NUMBER = "number"
"""Attribute where Optuna keeps the number of a trial, which is not the order in which trials end."""


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

    def within(self, trials: "Sequence[Trial]") -> "tuple[Trial, ...]":
        """The first of a method's trials that it pays for: a folder may have more, of a search with a larger budget."""
        before = itertools.accumulate((t.seconds for t in trials), initial=0.0)
        return tuple(t for i, (t, spent) in enumerate(zip(trials, before, strict=False)) if not self.spent(i, spent))

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
        trials: The trials that its budget pays for, in their order.
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
    chosen: Sequence[tuple[Method, Mapping[str, Search]]],
    budget: Budget,
    folder: Path,
    trainers: Trainers,
    note: Callable[[str], None],
) -> tuple[Searched, ...]:
    """Spend each method's budget, beginning after the trials that the folder has; `chosen` are methods and ranges.

    Raises:
        RunError: If the trials cannot be kept, their file is damaged, or Optuna is missing.
        WorkerError: If a worker was lost.
    """
    optuna = optuna_module() if any(ranges for _, ranges in chosen) else None
    network = network_sha256(sites.setup, True)
    searches = [_Search(optuna, sites, network, m, ranges, budget, folder) if ranges else None for m, ranges in chosen]
    for of in searches:
        if of is not None and (count := len(of.trials)) < len(of.ended):
            kept = f"{len(of.ended)} trials are there, of which the first {count} count"
            note(f"{of.method.label}: {kept}, for {budget} each")
        if of is not None and not of.ended and len(of.optuna.get_all_study_names(f"sqlite:///{of.file}")) > 1:
            note(f"{of.method.label}: the trials there are of other data, code or settings, so that it begins anew")
    free = list(range(trainers.count))
    while True:
        for i, of in enumerate(searches):
            while of is not None and free and (step := of.begin(i)) is not None:
                trainers.send(free.pop(0), step)
        if len(free) == trainers.count:
            break
        worker, reached = trainers.receive()
        of = searches[reached.search]
        assert of is not None
        if (step := of.took(reached)) is not None:
            trainers.send(worker, step)
            continue
        free.append(worker)
        best, trials = _best(of.trials, sites.measure.higher), of.trials
        score = "none is complete" if best is None else sites.measure.show(trials[best].score or 0.0)
        note(f"{of.method.label}: trial {len(trials)} of {budget}, best {sites.measure.label} so far {score}")
    return tuple(
        Searched(m, {}, (), None)
        if of is None
        else Searched(m, ranges, of.trials, _best(of.trials, sites.measure.higher))
        for (m, ranges), of in zip(chosen, searches, strict=True)
    )


def batch_of(number: int) -> int:
    """The number of the first trial of a trial's batch.

    >>> [batch_of(n) for n in range(10)]
    [0, 0, 0, 0, 0, 5, 5, 5, 5, 9]
    """
    return 0 if number < RANDOM else RANDOM + (number - RANDOM) // BATCH * BATCH


@dataclass(eq=False)
class _Search:
    """A method's search in progress.

    Attributes:
        network: Hashes of what the network starts from, and of what is frozen in it.
        ended: Optuna's record of each trial that has ended, by its number.
        running: Those in training: Optuna's trial in a study of its own, and what it has taken so far.
    """

    optuna: Any
    sites: Sites
    network: str
    method: Method
    ranges: Mapping[str, Search]
    budget: Budget
    folder: Path
    ended: dict[int, Any] = field(default_factory=dict)
    running: dict[int, "_Running"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rounds = self.sites.experiment.rounds
        self.looks = sorted({max(1, math.ceil(rounds * k / LOOKS)) for k in range(1, LOOKS + 1)})
        self.study, self.file = self._open()
        self.ended = _kept(self.study, self.file, self.ranges)

    def _open(self) -> tuple[Any, Path]:
        """Open the study, or make it; return it with its file.

        Raises:
            RunError: If its file is damaged, of another Optuna, or nobody can tell what its trials were of.
        """
        from sqlalchemy.exc import DBAPIError  # Optuna's own

        optuna, method = self.optuna, self.method
        safe = "".join(c if c.isalnum() else "-" for c in method.label)
        file = (self.folder / "trials" / f"{safe}.db").resolve()
        file.parent.mkdir(exist_ok=True)
        pruners = {
            "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=RANDOM, n_warmup_steps=2),
            "hyperband": lambda: optuna.pruners.HyperbandPruner(1, LOOKS, 2),
            "none": optuna.pruners.NopPruner,
        }
        try:
            study = optuna.create_study(
                storage=f"sqlite:///{file}",
                study_name=f"{method.label} {hashlib.sha256(self._of(file).encode()).hexdigest()[:16]}",
                pruner=pruners[self.budget.pruner](),
                direction="maximize" if self.sites.measure.higher else "minimize",
                load_if_exists=True,
            )
        except (DBAPIError, optuna.exceptions.OptunaError) as error:
            raise _damaged(file, error.__cause__ or error) from error
        return study, file

    def _of(self, file: Path) -> str:
        """Text of what the trials are of: other data, network, code, rounds, ranges or settings are another study.

        Raises:
            RunError: If it cannot be told whether those of the file are of the same.
        """
        sites, method = self.sites, self.method
        task = sites.setup.task
        try:
            code = code_sha256(method.algorithm, task.module(), task.loss, task.headline)
        except ConfigError as error:
            if file.exists():
                raise RunError(
                    f"{file} has trials, and nobody can tell whether they are of this method, network and loss, which "
                    f"were given as values ({error}); give another folder"
                ) from error
            code = ""
        runtime = replace(sites.experiment.runtime, executor=sites.setup.executor, workers=None, executor_options={})
        trained = fingerprint(replace(sites.experiment, runtime=runtime, until=None))
        # Trials in batches, by number: those of an earlier search of ours were asked for otherwise.
        return (
            f"{BATCH} {method.options} {dict(self.ranges)} {trained} {sites.setup.dataset.sha256} {sites.fed.sha256} "
            f"{self.network} {code} {self.budget.pruner}"
        )

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials that have ended and count, in their order."""
        ended = [_sound(dict(t.params), t.user_attrs, self.ranges) for _, t in sorted(self.ended.items())]
        return self.budget.within(ended)

    def begin(self, search: int) -> Step | None:
        """Begin the next trial; None if there is none, or it waits for those of an earlier batch."""
        number = next(n for n in range(len(self.ended) + len(self.running) + 1) if not self._has(n))
        first = batch_of(number)
        spent = self.budget.spent(number, sum(t.user_attrs["seconds"] for t in self.ended.values()))
        if spent or any(n not in self.ended for n in range(first)):
            return None
        trial, values = self._ask(number, first)
        self.running[number] = _Running(trial, values)
        return self._step(search, number)

    def took(self, reached: StepOutcome) -> Step | None:
        """Take the outcome of a step; the next one, or None if the trial has ended."""
        number, run = reached.trial, self.running[reached.trial]
        run.look += 1
        run.seconds += reached.seconds
        state: State | None = "complete" if run.look == len(self.looks) else None
        if reached.score is None:
            state = "diverged"
        else:
            run.trial.report(reached.score, run.look)
            if state is None and run.trial.should_prune():
                state = "pruned"
        if state is None:
            return self._step(reached.search, number)
        del self.running[number]
        outcome = {"rounds": reached.rounds, "score": reached.score, "state": state, "seconds": run.seconds}
        self._keep(number, run.trial, outcome)
        return None

    def _has(self, number: int) -> bool:
        return number in self.ended or number in self.running

    def _step(self, search: int, number: int) -> Step:
        run = self.running[number]
        return Step(search, number, run.values, self.looks[run.look], run.look == len(self.looks) - 1)

    def _ask(self, number: int, first: int) -> tuple[Any, dict[str, float]]:
        """Ask for a trial's values, in a study that knows the trials of earlier batches and no others."""
        seed = (Key(self.sites.experiment.seeds[0]) / "tune" / self.method.label / number).number() % 2**32
        study = self.optuna.create_study(
            study_name=self.study.study_name,
            sampler=self.optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM, multivariate=True),
            pruner=self.study.pruner,
            direction=self.study.direction,
        )
        study.add_trials([self.ended[n] for n in range(first)])
        # Others of its batch are there by their number alone, which Hyperband goes by.
        failed = self.optuna.trial.create_trial(state=self.optuna.trial.TrialState.FAIL)
        study.add_trials([failed] * (number - first))
        names = list(self.ranges)
        if number == 0:
            values = present(self.method, self.ranges)
            names = list(values)
            study.enqueue_trial(values)
        trial = study.ask()
        return trial, {n: _suggest(trial, n, self.ranges[n]) for n in names}

    def _keep(self, number: int, trial: Any, outcome: dict[str, Any]) -> None:
        """Write a trial that has ended into the file."""
        states = self.optuna.trial.TrialState
        asked = trial.study.trials[trial.number]
        complete = outcome["state"] == "complete"
        record = self.optuna.trial.create_trial(
            state=states.COMPLETE if complete else states.PRUNED,
            value=outcome["score"] if complete else None,
            params=asked.params,
            distributions=asked.distributions,
            intermediate_values=asked.intermediate_values,
            user_attrs={NUMBER: number, **outcome},
            system_attrs={k: v for k, v in asked.system_attrs.items() if k.startswith("completed_rung")},
        )
        try:
            self.study.add_trial(record)
        except (KeyError, self.optuna.exceptions.OptunaError) as error:
            raise _damaged(self.file, error.__cause__ or error) from error
        self.ended[number] = record


@dataclass(eq=False)
class _Running:
    """A trial in training: Optuna's, its values, the looks it has had, and its time, s."""

    trial: Any
    values: dict[str, float]
    look: int = 0
    seconds: float = 0.0


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


def _damaged(file: Path, why: object) -> RunError:
    return RunError(f"{file} is not a file of trials to continue from ({why}); delete it to start again")


def _kept(study: Any, file: Path, ranges: Mapping[str, Search]) -> dict[int, Any]:
    """Read the trials that have ended, by their number.

    Raises:
        RunError: If the file says what no search of ours wrote.
    """
    try:
        ended = [t for t in study.get_trials(deepcopy=False) if t.state.name in ENDED]
        for t in ended:
            _sound(dict(t.params), t.user_attrs, ranges)
        return {int(t.user_attrs[NUMBER]): t for t in ended}
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(file, error) from error


def _sound(values: dict[str, float], outcome: Mapping[str, Any], ranges: Mapping[str, Search]) -> Trial:
    """Check a trial as it was read.

    Raises:
        ValueError, KeyError, TypeError: If it is none.
    """
    score, state, rounds, seconds = (outcome[name] for name in ("score", "state", "rounds", "seconds"))
    for name, value in values.items():
        if not ranges[name].low <= value <= ranges[name].high:
            raise ValueError(f"a trial has {name} = {value:g}, out of its range")
    if state not in get_args(State) or not (score is None or math.isfinite(score)) or not 0.0 <= seconds < math.inf:
        raise ValueError(f"a trial has state {state!r}, score {score!r} and seconds {seconds!r}")
    return Trial(values, score, state, int(rounds), seconds)
