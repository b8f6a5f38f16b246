"""The numbers of an advice: on test rows, under fresh seeds, after every choice is made.

A gain is a site's result minus its result alone, above zero where it is better off, and its interval is over seeds and
over the site's test rows together (`unskew.report.gain`).  Of a measure that is not a mean over rows, as AUROC, the
mean gain has the variance over sites in place of that over rows.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from unskew.advice.measure import Groups
from unskew.advice.race import ALONE, FEDAVG, POOLED, Candidate, Impossible, Race, groups_of
from unskew.advice.training import Constraints, OutOfTime, Scores, Sites, Training
from unskew.data.federated import FederatedData
from unskew.data.patients import by_patient
from unskew.experiment import config
from unskew.experiment.config import Method
from unskew.pricing import radio
from unskew.pricing.traffic import training as traffic_of
from unskew.protocol import ClientId
from unskew.record.logs import ADAPTED, SERVED
from unskew.report.gain import Floats, Gain, chance_in_mean, mean_gain, over_rows
from unskew.report.gain import gain as gain_of
from unskew.report.stats import CONFIDENCE
from unskew.run.unseen import newcomers_of
from unskew.tasks.measure import Measure
from unskew.words import with_names
from unskew.world import wireless
from unskew.world.wireless import Radio

CONFIDENCE_OF_TWO = 1 - (1 - CONFIDENCE) / 2
"""Confidence of FedAvg's interval where it stands in for the race's choice: it is the second method that could gain."""

SEEDS = 5
"""Fresh seeds, at least two for a verdict."""

MOST_LEFT_OUT = 8
"""Sites up to which each is left out by itself; more are left out a quarter at a time."""


@dataclass(frozen=True)
class TrainingCost:
    """Cost of one training with a method.

    Attributes:
        rounds: Its rounds.
        megabytes: Sent by all, 10^6 bytes; `up` is the clients' part.
        up: Sent by clients.
        per_site: Of these, by a site in a round it takes part in.
        seconds: On the air of a radio cell; `channel` says which.
        joules: Of the senders on the air.
        channel: "the experiment's own", or "paper", the cell of FedDif.
    """

    rounds: int
    megabytes: float
    up: float
    per_site: float
    seconds: float
    joules: float
    channel: str


@dataclass(frozen=True)
class Newcomer:
    """A site that came after training.

    Attributes:
        name: Its name.
        served: The headline of the model it is given.
        adapted: The same after training on its own rows.
        alone: Its result alone.
        joined: Its result as a member.
    """

    name: str
    served: float
    adapted: float
    alone: float | None
    joined: float | None


@dataclass(frozen=True)
class SetAside:
    """The race's choice, where it did not hold up on test rows and FedAvg stands in for it.

    Attributes:
        label: Its label.
        gain: Its gain over local training; None if it could not be trained under fresh seeds.
        over_fedavg: Its mean minus FedAvg's; None likewise.
    """

    label: str
    gain: Gain | None
    over_fedavg: Gain | None


@dataclass(frozen=True, eq=False)
class Check:
    """Results on test rows.

    Attributes:
        seeds: Seeds under which all methods were trained.
        results: Scores by label and seed.
        gains: Gain over local training by label, of the mean over sites; 95 % intervals, but of FedAvg one of 97.5 %
            where it stands in for the race's choice.
        by_site: The same for each site.
        over_pooled: The chosen method's mean minus that of pooled data; None if these could not be trained.
        groups: Groups in which the chosen method trained, where it has groups.
        cost: What the chosen method costs; None if nothing was trained.
        lost: Reasons why a method could not be trained under some seed, by label: it has no results then.
        chosen: Label of the method that the answer is about: the race's choice, or FedAvg where that is set aside.
        training: Its training under the first seed.
        set_aside: The race's choice, where it is set aside.
        cut: True if time ended before the last seed did: there are results then, and no gains.
    """

    seeds: tuple[int, ...]
    results: Mapping[str, tuple[Scores, ...]]
    gains: Mapping[str, Gain]
    by_site: Mapping[str, Mapping[ClientId, Gain]]
    over_pooled: Gain | None
    groups: Groups
    cost: TrainingCost | None
    lost: Mapping[str, str]
    chosen: str | None
    training: Training | None
    set_aside: SetAside | None = None
    cut: bool = False

    def answering(self, race: Race) -> Candidate | None:
        """The method that the answer is about, with its settings."""
        return race.chosen if self.set_aside is None else race.bounds[FEDAVG]


def check(sites: Sites, race: Race, limits: Constraints, say: Callable[[str], None], fresh_seeds: int = SEEDS) -> Check:
    """Train bounds and the chosen method anew, and score them on test rows."""
    chosen = race.chosen
    entries: dict[str, Candidate] = {
        label: race.bounds[label] for label in (ALONE, FEDAVG, POOLED) if label in race.bounds
    }
    if chosen is not None:
        entries[chosen.method.label] = chosen
    results: dict[str, list[Scores]] = {label: [] for label in entries}
    lost: dict[str, str] = {}
    kept: dict[str, Training] = {}
    seeds: list[int] = []
    first = max(sites.experiment.seeds) + 1
    for seed in range(first, first + fresh_seeds):
        of_seed: dict[str, Scores] = {}
        try:
            for label, entry in list(entries.items()):
                free = label in (ALONE, POOLED)
                rounds, cap = (sites.experiment.rounds, None) if free else (race.rounds, limits.megabytes)
                try:
                    training = Training(entry.method, sites, rounds, seed, sites.fed, cap)
                    training.go_on(rounds)
                    of_seed[label] = training.scores(sites.fed.clients.test)
                except Impossible as error:
                    lost[label] = f"under seed {seed}, {with_names(str(error), sites.names)}"
                    del entries[label], results[label]
                    continue
                if chosen is not None and label in (chosen.method.label, FEDAVG):
                    kept.setdefault(label, training)
        except OutOfTime:
            break
        if not entries:
            break
        seeds.append(seed)
        for label, scores in of_seed.items():
            results[label].append(scores)
        shown = ", ".join(f"{label} {sites.measure.with_unit(s.mean)}" for label, s in of_seed.items())
        say(f"seed {seed}, on test rows: {shown}")
    done = {label: tuple(scores) for label, scores in results.items() if scores}
    if sites.clock.cut:
        return Check(tuple(seeds), done, {}, {}, None, (), None, lost, None, None, cut=True)
    gains, by_site = {}, {}
    if ALONE in done:
        for label, of_seeds in done.items():
            if label != ALONE:
                gains[label], by_site[label] = gain(of_seeds, done[ALONE], sites.measure)
    raced = None if chosen is None else chosen.method.label
    aside = None if raced is None else set_aside(done, raced, sites.measure)
    name = FEDAVG if aside is not None else raced if raced in done else None
    if aside is not None:
        gains[FEDAVG], _ = gain(done[FEDAVG], done[ALONE], sites.measure, CONFIDENCE_OF_TWO)
    pooled = None
    if name is not None and POOLED in done:
        pooled, _ = gain(done[name], done[POOLED], sites.measure)
    training_of_it = kept.get(name or "")
    groups = () if name is None or training_of_it is None else groups_of(training_of_it, entries[name])
    cost = None if training_of_it is None else _cost(training_of_it, sites)
    return Check(tuple(seeds), done, gains, by_site, pooled, groups, cost, lost, name, training_of_it, aside)


def set_aside(done: Mapping[str, Sequence[Scores]], raced: str, measure: Measure) -> SetAside | None:
    """The race's choice if it does not hold up on test rows beside FedAvg, which no race has chosen; None if it does.

    It does not hold up if it is shown to be worse than FedAvg, if FedAvg is shown to gain over local training and it is
    not, or if it cannot be trained under fresh seeds.

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


# ---------------------------------------------------------------- gains
def gain(
    these: Sequence[Scores], those: Sequence[Scores], measure: Measure, confidence: float = CONFIDENCE
) -> tuple[Gain, dict[ClientId, Gain]]:
    """The gain of the mean over sites, and of each site, from the scores of each seed; of one seed without an interval.

    Where all sites have differences by row, the mean is over these very sites: what is drawn is each site's rows and
    the seeds.  Otherwise sites stand for others like them, and their gains, averaged over seeds, are what is drawn:
    their variance has each site's rows in it.  A seed moves all sites together, which neither variance shows; that is
    in the variance over seeds of the mean over sites, and is added in both cases.
    """
    sign = 1.0 if measure.higher else -1.0
    both = sorted(set.intersection(*(set(s.values) for s in (*these, *those))))
    means: dict[ClientId, list[float]] = {
        c: [sign * (a.values[c] - b.values[c]) for a, b in zip(these, those, strict=True)] for c in both
    }
    patients = these[0].patients if these else {}
    rows = _differences([s.each for s in these], [s.each for s in those], sign, patients)
    by_row = rows or _differences([s.by_row for s in these], [s.by_row for s in those], sign, patients)
    ranked, share = measure.by_row is not None and measure.link is None, measure.percent and measure.by_row is None
    rows = rows if ranked else by_row
    if len(these) < 2:
        by_row, rows = {}, {}
    of_sites = {
        c: gain_of(
            means[c],
            over_rows(by_row[c], share, ranked and c not in patients) if c in by_row else None,
            measure.percent,
            confidence,
        )
        for c in both
    }
    if not both:
        return gain_of((), None, measure.percent), of_sites
    tested = {c: these[0].tested.get(c, 0) for c in both}
    known, middles = [rows.get(c) for c in both], [statistics.fmean(means[c]) for c in both]
    _, chances = chance_in_mean(known, [None] * len(both), middles, list(tested.values()), measure)
    if len(these) < 2:
        chances = [None, None]
    of_seeds = [dict(zip(both, of_seed, strict=True)) for of_seed in zip(*means.values(), strict=True)]
    return mean_gain(of_seeds, [tested] * len(these), chances, measure.percent, confidence), of_sites


def _differences(
    these: Sequence[Mapping[ClientId, Floats]],
    those: Sequence[Mapping[ClientId, Floats]],
    sign: float,
    patients: Mapping[ClientId, npt.NDArray[np.int64]],
) -> dict[ClientId, Floats]:
    """Differences by row, or by patient, of the sites that have them under every seed, the mean over seeds."""
    return {
        c: by_patient(
            np.mean([sign * (a[c] - b[c]) for a, b in zip(these, those, strict=True)], axis=0), patients.get(c)
        )
        for c in set.intersection(*(set(s) for s in (*these, *those)))
    }


# ---------------------------------------------------------------- cost
def _cost(training: Training, sites: Sites) -> TrainingCost:
    channel = sites.experiment.world.channel
    own = isinstance(channel, Radio)
    sent = traffic_of(training.method.label, training.seed, training.transfers, training.work)
    priced = radio.summed(radio.price([sent], channel if isinstance(channel, Radio) else wireless.PAPER))
    numbers = [radio.measures(cost) for cost in priced.values()]
    up = sum(t.bytes for t in training.transfers if t.direction == "up") / 1e6
    cohort = sites.experiment.cohort(sites.fed.num_clients)
    return TrainingCost(
        training.at,
        training.sent / 1e6,
        up,
        up / max(training.at, 1) / cohort,
        sum(n.get("seconds", 0.0) for n in numbers),
        sum(n.get("joules.transmit", 0.0) for n in numbers),
        "the experiment's own" if own else "paper",
    )


# ---------------------------------------------------------------- newcomers
def newcomers(
    sites: Sites, race: Race, checked: Check, limits: Constraints, say: Callable[[str], None]
) -> tuple[Newcomer, ...]:
    """Sites set aside to come later; or else sites left out, one by one or a quarter at a time."""
    chosen, n = checked.answering(race), sites.fed.num_clients
    if chosen is None or checked.chosen is None or checked.training is None:
        return ()
    if (later := sites.fed.unseen) is not None:
        names = later.client_names or tuple(f"newcomer {k}" for k in range(later.num_clients))
        return tuple(
            Newcomer(names[k], served, adapted, None, None)
            for k, (served, adapted) in _scored(checked.training, sites.fed).items()
        )
    if n < 3:
        return ()
    folds = [[c] for c in range(n)] if n <= MOST_LEFT_OUT else [list(range(k, n, 4)) for k in range(4)]
    results: list[Newcomer] = []
    try:
        for fold in folds:
            results += _left_out(sites, chosen.method, race.rounds, fold, limits, checked)
    except OutOfTime:
        say("newcomers: there was no time for all")
    except Impossible as error:
        say(f"newcomers: {error}")
    return tuple(results)


def _left_out(
    sites: Sites,
    method: Method,
    rounds: int,
    fold: list[int],
    limits: Constraints,
    checked: Check,
) -> list[Newcomer]:
    stay = [c for c in range(sites.fed.num_clients) if c not in fold]
    without = replace(_part(sites.fed, stay), unseen=_part(sites.fed, fold))
    per_round = sites.experiment.clients_per_round
    fewer = replace(sites.experiment, clients_per_round=None if per_round is None else min(per_round, len(stay)))
    training = Training(
        _renumbered(method, stay), replace(sites, experiment=fewer), rounds, checked.seeds[0], without, limits.megabytes
    )
    training.go_on(rounds)
    results = checked.results
    return [
        Newcomer(
            sites.names[fold[k]],
            served,
            adapted,
            results[ALONE][0].values.get(fold[k]) if ALONE in results else None,
            results[checked.chosen or ""][0].values.get(fold[k]),
        )
        for k, (served, adapted) in _scored(training, without).items()
    ]


def _scored(training: Training, fed: FederatedData) -> dict[int, tuple[float, float]]:
    """The headline of newcomers as they are served and after adapting, by their place among those of `fed`."""
    task, epochs = training.sites.setup.task, training.sites.experiment.unseen.adapt_epochs
    came = newcomers_of(training.sim, task, fed, training.seed, epochs)
    assert came is not None
    by_part = came.scores(training.state, training.at)
    served, adapted = (
        dict(zip(scores.clients.tolist(), scores.values[:, 0].tolist(), strict=True))
        for scores in (by_part[part] for part in (SERVED, ADAPTED))
    )
    both = (c for c in served if c in adapted and not math.isnan(served[c] + adapted[c]))
    return {c - fed.num_clients: (served[c], adapted[c]) for c in both}


def _part(fed: FederatedData, clients: Sequence[int]) -> FederatedData:
    """Some of the clients."""
    some = fed.clients.take(np.array(clients, np.int64))
    return replace(fed, clients=some, sha256=some.sha256, unseen=None)


def _renumbered(method: Method, stay: Sequence[int]) -> Method:
    """The same method for the clients that stay, which are numbered anew: groups that it was given name them."""
    if "groups" not in method.options or not isinstance(method.options["groups"], list):
        return method
    number = {c: i for i, c in enumerate(stay)}
    groups: Any = [[number[c] for c in g if c in number] for g in method.options["groups"]]
    return config.method(method.name, {**method.options, "groups": [g for g in groups if g]}, method.label)
