"""Results of an advice on test rows, under fresh seeds, after all choices are made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from unskew.decide.advice.race import ALONE, FEDAVG, POOLED, Candidate, Race
from unskew.decide.cells import Plan
from unskew.decide.scores import Scores, gain
from unskew.decide.sites import Constraints, Sites
from unskew.decide.training import Groups, Trained, TrainingJob, scores_of, under_seeds
from unskew.protocol import ClientId
from unskew.report.stats import CONFIDENCE, Difference
from unskew.tasks.measure import Measure
from unskew.words import with_names

CONFIDENCE_OF_TWO = 1 - (1 - CONFIDENCE) / 2
"""Confidence of FedAvg's interval where it stands in for the race's choice: it is the second method that could gain."""

SEEDS = 5
"""Fresh seeds, at least two for a verdict."""


@dataclass(frozen=True)
class SetAside:
    """The race's choice, if FedAvg replaces it because of test rows.

    Attributes:
        label: Its label.
        gain: Its gain over training alone; None if it could not be trained under fresh seeds.
        over_fedavg: Its mean minus FedAvg's; None likewise.
    """

    label: str
    gain: Difference | None
    over_fedavg: Difference | None


@dataclass(frozen=True, eq=False)
class Check:
    """Results on test rows.

    Attributes:
        seeds: Seeds under which all methods were trained.
        results: Scores by label and seed.
        gains: Gain over training alone of the mean over sites, by label, with 95 % intervals.
        by_site: The same for each site.
        groups: Groups of the chosen method, if any.
        lost: Why a method could not be trained under some seed, by label; it has no results then.
        chosen: Label of the answer's method: the race's choice, or FedAvg.
        training: Its training under the first seed.
        set_aside: The race's choice, if FedAvg replaces it.
        wider: FedAvg's gain with an interval of 97.5 % then.
    """

    seeds: tuple[int, ...] = ()
    results: Mapping[str, tuple[Scores, ...]] = field(default_factory=dict)
    gains: Mapping[str, Difference] = field(default_factory=dict)
    by_site: Mapping[str, Mapping[ClientId, Difference]] = field(default_factory=dict)
    groups: Groups = ()
    lost: Mapping[str, str] = field(default_factory=dict)
    chosen: str | None = None
    training: Trained | None = None
    set_aside: SetAside | None = None
    wider: Difference | None = None

    def answering(self, race: Race) -> Candidate | None:
        """The answer's method, with its settings."""
        return race.chosen if self.set_aside is None else race.bounds[FEDAVG]


def check(
    sites: Sites, race: Race, limits: Constraints, say: Callable[[str], None], fresh_seeds: int = SEEDS
) -> Plan[Check]:
    """Plan: train bounds and the chosen method again, and score them on test rows."""
    chosen = race.chosen
    entries = {label: race.bounds[label] for label in (ALONE, FEDAVG, POOLED) if label in race.bounds}
    if chosen is not None:
        entries[chosen.method.label] = chosen
    first = max(sites.experiment.seeds) + 1
    seeds = tuple(range(first, first + fresh_seeds))
    jobs = {}
    for label, entry in entries.items():
        free = label in (ALONE, POOLED)
        rounds, most = (sites.experiment.rounds, None) if free else (race.rounds, limits.megabytes)
        jobs[label] = TrainingJob(entry.method, first, rounds, rounds, megabytes=most)
    results = yield from under_seeds(sites, jobs, seeds)
    done: dict[str, tuple[Scores, ...]] = {}
    lost: dict[str, str] = {}
    for label, of_seeds in results.items():
        if (scores := scores_of(of_seeds)) is None:
            seed, why = next((seed, of.why) for seed, of in zip(seeds, of_seeds, strict=True) if of.why)
            lost[label] = f"under seed {seed}, {with_names(why, sites.names)}"
        else:
            done[label] = scores
            say(f"{label}: {sites.measure.with_unit(fmean(s.mean for s in scores))} on test rows")
    gains, by_site = {}, {}
    if ALONE in done:
        for label, scores in done.items():
            if label != ALONE:
                gains[label], by_site[label] = gain(scores, done[ALONE], sites.measure)
    raced = None if chosen is None else chosen.method.label
    aside = None if raced is None else set_aside(done, raced, sites.measure)
    name = FEDAVG if aside is not None else raced if raced in done else None
    wider = None if aside is None else gain(done[FEDAVG], done[ALONE], sites.measure, CONFIDENCE_OF_TWO)[0]
    of_it = None if name is None else results[name][0]
    groups = () if name is None or of_it is None else entries[name].groups or of_it.groups
    return Check(seeds, done, gains, by_site, groups, lost, name, of_it, aside, wider)


def set_aside(done: Mapping[str, Sequence[Scores]], raced: str, measure: Measure) -> SetAside | None:
    """The race's choice, if it does not hold up on test rows beside FedAvg; else None.

    It does not hold up if it is significantly worse than FedAvg, if only FedAvg gains significantly over training
    alone, or if it cannot be trained under fresh seeds.

    Args:
        done: Scores of each seed by label.
        raced: Label of the race's choice.
        measure: The measure of the scores.
    """
    if raced == FEDAVG or not {FEDAVG, ALONE} <= done.keys():
        return None
    if raced not in done:
        return SetAside(raced, None, None)
    chosen, fedavg = (gain(done[label], done[ALONE], measure)[0] for label in (raced, FEDAVG))
    over_fedavg, _ = gain(done[raced], done[FEDAVG], measure)
    holds = over_fedavg.verdict != "loses" and (chosen.verdict == "gains" or fedavg.verdict != "gains")
    return None if holds else SetAside(raced, chosen, over_fedavg)
