"""Tuned against default settings on test rows, under seeds that no trial has seen; and the tuned experiment."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from unskew.advice.check import gain
from unskew.advice.training import Scores, Sites, Training
from unskew.errors import DivergedError
from unskew.experiment.config import Experiment, Method
from unskew.report.worth import Gain
from unskew.tuning.search import Budget, Searched

SEEDS = 5


@dataclass(frozen=True, eq=False)
class Worth:
    """Gain from tuning a method: scores under each fresh seed, None where one diverged, and the gain."""

    before: tuple[Scores, ...] | None
    after: tuple[Scores, ...] | None
    gain: Gain | None


@dataclass(frozen=True, eq=False)
class Tuning:
    """Result of `tune`.

    Attributes:
        sites: The clients and their rows.
        searches: What was tried, by method.
        worth: What it was worth on test rows, by label.
        budget: Budget of each method.
        seeds: The fresh seeds.
    """

    sites: Sites
    searches: tuple[Searched, ...]
    worth: Mapping[str, Worth]
    budget: Budget
    seeds: tuple[int, ...]

    @property
    def experiment(self) -> Experiment:
        """The experiment with tuned methods, under seeds that are fresh once more."""
        asked = self.sites.experiment
        first = max((*asked.seeds, *self.seeds)) + 1
        return dataclasses.replace(
            asked,
            name=f"{asked.name}, tuned",
            methods=tuple(s.tuned for s in self.searches),
            seeds=tuple(range(first, first + SEEDS)),
            val_fraction=0.0,
        )

    def to_json(self) -> dict[str, Any]:
        """The tuned values, scores and gains."""
        return {
            "budget": str(self.budget),
            "seeds": list(self.seeds),
            "methods": {
                s.method.label: {
                    "trials": len(s.trials),
                    "values": None if s.best is None else dict(s.trials[s.best].values),
                    "validation": None if s.best is None else s.trials[s.best].score,
                    "gain": None if (g := self.worth[s.method.label].gain) is None else [g.mean, g.low, g.high],
                }
                for s in self.searches
            },
        }


def compared(
    sites: Sites, searches: tuple[Searched, ...], budget: Budget, seeds: int, note: Callable[[str], None]
) -> Tuning:
    """Train each method as it was and as it is tuned, under fresh seeds, and evaluate both on test rows."""
    first = max(sites.experiment.seeds) + 1
    fresh = tuple(range(first, first + seeds))
    worth = {}
    for s in searches:
        label = s.method.label
        note(f"{label}: default and tuned settings on test rows, {seeds} fresh seeds")
        before = _scores(sites, s.method, fresh)
        after = before if s.tuned == s.method else _scores(sites, s.tuned, fresh)
        both = before is not None and after is not None
        worth[label] = Worth(before, after, gain(after or (), before or (), sites.measure)[0] if both else None)
    return Tuning(sites, searches, worth, budget, fresh)


def _scores(sites: Sites, method: Method, seeds: tuple[int, ...]) -> tuple[Scores, ...] | None:
    """Scores on test rows under each seed; None if a run diverged."""
    scores = []
    for seed in seeds:
        try:
            training = Training(
                method, sites, sites.experiment.rounds, seed, sites.fed, sites.experiment.stop.megabytes
            )
            training.go_on(sites.experiment.rounds)
            scores.append(training.scores(sites.fed.clients.test))
        except DivergedError:
            return None
    return tuple(scores)
