"""Compares tuned with default settings on test rows, under fresh seeds."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unskew.decide.cells import Plan
from unskew.decide.follow_up import under_fresh_seeds
from unskew.decide.scores import Scores, gain
from unskew.decide.sites import Sites
from unskew.decide.training import TrainingJob, scores_of, under_seeds
from unskew.decide.tuning.search import Budget, Searched
from unskew.errors import shown
from unskew.experiment.config import Experiment
from unskew.report import stats
from unskew.report.stats import CONFIDENCE, READING, At, Difference
from unskew.report.worth import bracket
from unskew.tasks.measure import Measure
from unskew.words import listed

SEEDS = 5
NO_GAIN = Difference(0.0, 0.0, 0.0, "seeds")
"""Of settings over themselves: no chance is in it."""


@dataclass(frozen=True, eq=False)
class TuningGain:
    """Gain from tuning a method.

    Attributes:
        before, after: Scores under each fresh seed with default and tuned settings; None where it diverged.
        gain: The gain, its verdict corrected for the number of methods; zero in every seed if the default was kept.
        kept: True if no trial was better than the default.
        diverged: Seeds under which default and tuned settings diverged.
    """

    before: tuple[Scores, ...] | None
    after: tuple[Scores, ...] | None
    gain: Difference | None
    kept: bool = False
    diverged: tuple[int, int] = (0, 0)

    @property
    def default_stays(self) -> bool:
        """True if the default is recommended: no trial was better, or tuned settings diverge more often."""
        default, tuned = self.diverged
        return self.kept or tuned > default

    @property
    def verdict(self) -> str:
        """The gain's verdict; empty without a gain."""
        return "" if self.gain is None else self.gain.verdict

    @property
    def reading(self) -> str:
        """The effect of tuning in few words."""
        if self.gain is None:
            fate = "diverged under {} (default) and {} (tuned) fresh seeds".format(*self.diverged)
            return f"{fate}, default kept" if self.default_stays else fate
        return "default kept" if self.kept else READING[self.gain.verdict]


@dataclass(frozen=True, eq=False, repr=False)
class Tuning:
    """Result of `tune`; `print` shows the gain of tuning.

    Attributes:
        sites: The clients and their rows.
        searches: Searches, by method.
        worth: Gains on test rows, by label.
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
        """The experiment with tuned methods, under seeds not used yet."""
        asked = self.sites.experiment
        methods = tuple(s.method if self.worth[s.method.label].default_stays else s.tuned for s in self.searches)
        tuned = dataclasses.replace(asked, name=f"{asked.name}, tuned", methods=methods, val_fraction=0.0)
        return under_fresh_seeds(tuned, max((*asked.seeds, *self.seeds)) + 1, SEEDS)

    def __str__(self) -> str:
        m = self.sites.measure
        parts = [
            f"{label} {worth.reading}" + ("" if worth.gain is None or worth.kept else f" ({bracket(worth.gain, m)})")
            for label, worth in self.worth.items()
        ]
        return f"Tuning, by {m.label} on test rows under {len(self.seeds)} fresh seeds: {'; '.join(parts)}."

    @property
    def headline(self) -> str:
        """The methods that gain significantly from tuning."""
        better = [label for label, worth in self.worth.items() if worth.verdict == "gains"]
        return f"Tuning helps {listed(better)}." if better else "Undecided: tuning is not shown to help any method."

    def __repr__(self) -> str:
        methods = listed([s.method.label for s in self.searches])
        return f"<Tuning of {shown(methods)}: {self.budget} each; print() says what it was worth>"

    def to_json(self) -> dict[str, Any]:
        """The tuned values, scores and gains."""

        def of(searched: Searched, worth: TuningGain) -> dict[str, Any]:
            best = None if searched.best is None else searched.trials[searched.best]
            return {
                "trials": len(searched.trials),
                "values": None if best is None else dict(best.values),
                "validation": None if best is None else best.score,
                "kept": worth.default_stays,
                "diverged": dict(zip(("default", "tuned"), worth.diverged, strict=True)),
                "verdict": worth.verdict,
                "gain": None if worth.gain is None else [worth.gain.mean, worth.gain.low, worth.gain.high],
            }

        methods = {s.method.label: of(s, self.worth[s.method.label]) for s in self.searches}
        return {"budget": str(self.budget), "seeds": list(self.seeds), "methods": methods}


def compared(sites: Sites, searched: Searched, seeds: Sequence[int], note: Callable[[str], None]) -> Plan[TuningGain]:
    """Plan: train a method with default and tuned settings under fresh seeds, judged by test rows."""
    kept, rounds = searched.tuned == searched.method, sites.experiment.rounds
    settings = {"default": searched.method} if kept else {"default": searched.method, "tuned": searched.tuned}
    enough = sites.experiment.stop.megabytes
    jobs = {name: TrainingJob(m, seeds[0], rounds, rounds, enough=enough) for name, m in settings.items()}
    results = yield from under_seeds(sites, jobs, seeds)
    note(f"{searched.method.label}: default and tuned settings compared under {len(seeds)} fresh seeds")
    halves = results["default"], results.get("tuned", results["default"])
    before, after = map(scores_of, halves)
    default, tuned = (sum(one.scores is None for one in half) for half in halves)
    worth = TuningGain(before, after, None, kept=kept, diverged=(default, tuned))
    if before is None or after is None:
        return worth
    return dataclasses.replace(worth, gain=NO_GAIN if kept else _at(worth, sites.measure)(CONFIDENCE))


def corrected(
    sites: Sites, searches: tuple[Searched, ...], worth: Sequence[TuningGain], budget: Budget, seeds: tuple[int, ...]
) -> Tuning:
    """The result, with verdicts corrected for the number of methods (Holm)."""
    by_label = {s.method.label: w for s, w in zip(searches, worth, strict=True)}
    tuned = {s.method.label: by_label[s.method.label] for s in searches if s.ranges}
    gains = stats.corrected({label: _at(w, sites.measure) for label, w in tuned.items() if w.gain is not None})
    by_label |= {k: dataclasses.replace(by_label[k], gain=of) for k, of in gains.items() if not by_label[k].kept}
    return Tuning(sites, searches, by_label, budget, seeds)


def _at(worth: TuningGain, measure: Measure) -> At:
    return lambda confidence: gain(worth.after or (), worth.before or (), measure, confidence)[0]
