"""Tuned against default settings on test rows, under seeds that no trial has seen; and the tuned experiment."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from unskew.advice.check import gain
from unskew.advice.follow_up import under_fresh_seeds
from unskew.advice.training import Scores, Sites, Training
from unskew.errors import DivergedError, shown
from unskew.experiment.config import Experiment, Method
from unskew.report.gain import Gain, standing
from unskew.report.stats import CONFIDENCE
from unskew.report.worth import bracket
from unskew.tasks.measure import Measure
from unskew.tuning.search import Budget, Searched
from unskew.words import counted, listed

SEEDS = 5
NO_GAIN = Gain(0.0, 0.0, 0.0, "seeds")
"""Of settings over themselves: no chance is in it."""


@dataclass(frozen=True, eq=False)
class TuningGain:
    """Gain from tuning a method.

    Attributes:
        before, after: Scores under each fresh seed with default and tuned settings; None where it diverged under one.
        gain: The gain, with an interval of its own; zero in every seed where the default was kept.
        stands: True if its verdict stands when it is corrected for the number of methods.
        kept: True if no trial was better than the default, so that it is compared with itself.
        diverged: Seeds under which default and tuned settings diverged.
    """

    before: tuple[Scores, ...] | None
    after: tuple[Scores, ...] | None
    gain: Gain | None
    stands: bool = True
    kept: bool = False
    diverged: tuple[int, int] = (0, 0)

    @property
    def falls_back(self) -> bool:
        """True if tuned settings diverged under more seeds than the default, which stays for that."""
        default, tuned = self.diverged
        return tuned > default

    @property
    def default_stays(self) -> bool:
        """True if the default settings are recommended."""
        return self.kept or self.falls_back

    def fate(self, seeds: int) -> str:
        """Say which settings diverged, as the end of a sentence about the method."""
        default, tuned = self.diverged
        if self.kept:
            return f"whose settings, which are kept, diverged under {default} of {counted(seeds, 'fresh seed')}"
        each = [f"{of} settings under {n}" for of, n in (("default", default), ("tuned", tuned)) if n]
        return (
            f"which diverged with {listed(each)} of {counted(seeds, 'fresh seed')}, so that "
            f"{'the default is kept' if self.falls_back else 'the tuned ones are taken'}"
        )

    @property
    def verdict(self) -> str:
        """The gain's verdict, corrected for the number of methods; empty without a gain."""
        return "" if self.gain is None else self.gain.verdict if self.stands else "open"


@dataclass(frozen=True, eq=False, repr=False)
class Tuning:
    """Result of `tune`; `print` says what tuning was worth.

    Attributes:
        sites: The clients and their rows.
        searches: What was tried, by method.
        worth: What it was worth on test rows, by label.
        budget: Budget of each method.
        seeds: The fresh seeds.
    """

    sites: Sites
    searches: tuple[Searched, ...]
    worth: Mapping[str, TuningGain]
    budget: Budget
    seeds: tuple[int, ...]

    @property
    def experiment(self) -> Experiment:
        """The experiment with tuned methods, under seeds that are fresh once more."""
        asked = self.sites.experiment
        methods = tuple(s.method if self.worth[s.method.label].default_stays else s.tuned for s in self.searches)
        tuned = dataclasses.replace(asked, name=f"{asked.name}, tuned", methods=methods, val_fraction=0.0)
        return under_fresh_seeds(tuned, max((*asked.seeds, *self.seeds)) + 1, SEEDS)

    @property
    def lead(self) -> str:
        """A sentence on what tuning was worth."""
        m = self.sites.measure
        gains = {label: w.gain for label, w in self.worth.items() if w.gain is not None}
        verdicts = {label: w.verdict for label, w in self.worth.items()}
        better = [f"{label} ({bracket(g, m)})" for label, g in gains.items() if verdicts[label] == "gains"]
        worse = [f"{label} ({bracket(g, m)})" for label, g in gains.items() if verdicts[label] == "loses"]
        parts = [f"is better for {', '.join(better)}"] if better else []
        parts += [f"is worse for {', '.join(worse)}"] if worse else []
        alike = [label for label in gains if verdicts[label] == "open" and not self.worth[label].kept]
        parts += [f"cannot be told apart from default settings for {', '.join(alike)}"] if alike else []
        kept = [label for label in gains if self.worth[label].kept]
        parts += [f"keeps the default settings of {', '.join(kept)}"] if kept else []
        lost = [(label, w.fate(len(self.seeds))) for label, w in self.worth.items() if w.gain is None]
        parts += [f"cannot be compared for {label}, {fate}" for label, fate in lost]
        how = f"{self.over}, verdicts corrected for the number of methods"
        return f"Tuning {'; '.join(parts)}: {m.label} on test rows, mean over clients, {how}."

    @property
    def over(self) -> str:
        """Unit that intervals are over; of one seed there are none."""
        n, drawn = len(self.seeds), self.sites.drawn if self.sites.measure.of_rows else "clients"
        return (
            "one fresh seed, without intervals"
            if n == 1
            else f"95 % intervals over {n} fresh seeds and {drawn} together"
        )

    def __str__(self) -> str:
        return self.lead

    def __repr__(self) -> str:
        methods = listed([s.method.label for s in self.searches])
        return f"<Tuning of {shown(methods)}: {self.budget} each; print() says what it was worth>"

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
                    "kept": self.worth[s.method.label].default_stays,
                    "diverged": dict(zip(("default", "tuned"), self.worth[s.method.label].diverged, strict=True)),
                    "verdict": self.worth[s.method.label].verdict,
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
        kept, (before, lost) = s.tuned == s.method, _scores(sites, s.method, fresh)
        after, lost_too = (before, lost) if kept else _scores(sites, s.tuned, fresh)
        worth[label] = of = TuningGain(before, after, None, kept=kept, diverged=(lost, lost_too))
        if before is not None and after is not None:
            worth[label] = dataclasses.replace(of, gain=NO_GAIN if kept else _at(of, sites.measure)(CONFIDENCE))
    tuned = {s.method.label: worth[s.method.label] for s in searches if s.ranges}
    stand = standing({label: _at(w, sites.measure) for label, w in tuned.items() if w.gain is not None})
    worth |= {label: dataclasses.replace(w, stands=label in stand) for label, w in tuned.items()}
    return Tuning(sites, searches, worth, budget, fresh)


def _at(worth: TuningGain, measure: Measure) -> Callable[[float], Gain]:
    return lambda confidence: gain(worth.after or (), worth.before or (), measure, confidence)[0]


def _scores(sites: Sites, method: Method, seeds: tuple[int, ...]) -> tuple[tuple[Scores, ...] | None, int]:
    """Scores on test rows under each seed, None if it diverged under one; and the number of those."""
    scores = []
    for seed in seeds:
        try:
            training = Training(
                method, sites, sites.experiment.rounds, seed, sites.fed, enough=sites.experiment.stop.megabytes
            )
            training.go_on(sites.experiment.rounds)
            scores.append(training.scores(sites.fed.clients.test))
        except DivergedError:
            pass
    return (tuple(scores) if len(scores) == len(seeds) else None), len(seeds) - len(scores)
