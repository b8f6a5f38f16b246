"""Tuned against default settings on test rows, under seeds that no trial has seen; and the tuned experiment."""

import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unskew.decide.cells import Cell, Outcome
from unskew.decide.follow_up import under_fresh_seeds
from unskew.decide.scores import Scores, gain
from unskew.decide.sites import Sites
from unskew.decide.training import Job, trained
from unskew.decide.tuning.search import Budget, Searched
from unskew.errors import shown
from unskew.experiment.config import Experiment
from unskew.report.gain import Gain, standing
from unskew.report.stats import CONFIDENCE
from unskew.report.worth import bracket
from unskew.tasks.measure import Measure
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
        """Say how often which settings diverged, as the end of a sentence about the method."""
        default, tuned = self.diverged
        each = f"{default}" if self.kept else f"{default} (default) and {tuned} (tuned)"
        return f"which diverged under {each} of {counted(seeds, 'fresh seed')}"

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
        m, groups = self.sites.measure, dict[str, list[str]]()
        for label, w in self.worth.items():
            if w.gain is None:
                groups.setdefault("cannot be compared for", []).append(f"{label}, {w.fate(len(self.seeds))}")
            elif w.kept:
                groups.setdefault("keeps the default settings of", []).append(label)
            elif w.verdict == "open":
                groups.setdefault("cannot be told apart from default settings for", []).append(label)
            else:
                what = "is better for" if w.verdict == "gains" else "is worse for"
                groups.setdefault(what, []).append(f"{label} ({bracket(w.gain, m)})")
        parts = [f"{what} {', '.join(labels)}" for what, labels in groups.items()]
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
    sites: Sites, searched: Searched, seeds: Sequence[int], note: Callable[[str], None]
) -> Generator[Sequence[Cell], Sequence[Outcome], TuningGain]:
    """The plan that trains a method as it was and as it is tuned, under fresh seeds, judged by test rows."""
    note(f"{searched.method.label}: default and tuned settings on test rows, {len(seeds)} fresh seeds")
    settings = [searched.method] if searched.tuned == searched.method else [searched.method, searched.tuned]
    rounds, enough = sites.experiment.rounds, sites.experiment.stop.megabytes
    jobs = [Job(m, seed, rounds, rounds, enough=enough) for m in settings for seed in seeds]
    results = yield from trained(sites, jobs)
    halves = [
        [r.scores for r in part if r.scores is not None] for part in (results[: len(seeds)], results[len(seeds) :])
    ]
    before, after = halves if len(settings) > 1 else (halves[0], halves[0])
    lost = len(seeds) - len(before), len(seeds) - len(after)
    both = [None if n else tuple(of) for of, n in zip((before, after), lost, strict=True)]
    kept = TuningGain(both[0], both[1], None, kept=len(settings) == 1, diverged=lost)
    if any(lost):
        return kept
    return dataclasses.replace(kept, gain=NO_GAIN if kept.kept else _at(kept, sites.measure)(CONFIDENCE))


def corrected(
    sites: Sites, searches: tuple[Searched, ...], worth: Sequence[TuningGain], budget: Budget, seeds: tuple[int, ...]
) -> Tuning:
    """The result, with verdicts corrected for the number of methods (Holm)."""
    by_label = {s.method.label: w for s, w in zip(searches, worth, strict=True)}
    tuned = {s.method.label: by_label[s.method.label] for s in searches if s.ranges}
    stand = standing({label: _at(w, sites.measure) for label, w in tuned.items() if w.gain is not None})
    by_label |= {label: dataclasses.replace(w, stands=label in stand) for label, w in tuned.items()}
    return Tuning(sites, searches, by_label, budget, seeds)


def _at(worth: TuningGain, measure: Measure) -> Callable[[float], Gain]:
    return lambda confidence: gain(worth.after or (), worth.before or (), measure, confidence)[0]
