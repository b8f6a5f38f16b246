"""A race of methods on validation rows: local rates first, then successive halving.

K. Jamieson, A. Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016: all
methods train for a part of the rounds, the better half goes on for twice as long, and so on.  Sites alone, FedAvg and
pooled data are bounds: they are trained to the end, each at the local rate that did best on validation rows.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from unskew.advice.measure import MOST_SITES, Groups, SiteDisagreement
from unskew.advice.training import Clock, Constraints, Scores, Sites, Training, difference, together
from unskew.errors import ConfigError, DataError, DivergedError, ProtocolError, QuorumError
from unskew.experiment import config, from_python
from unskew.experiment.config import Method
from unskew.info import ClientGroups
from unskew.protocol import report_of
from unskew.tasks.measure import Measure
from unskew.words import listed, with_names

RATES = (1.0, math.sqrt(10.0), 1 / math.sqrt(10.0))
"""Factors on the experiment's local rate that are tried, its own first."""

MOST_FOLDS = 4
MOST_HELD = 50_000_000
"""Numbers in models of one method and all sites up to which more than one fold is in memory."""

SPARED = 4
"""Rounds before which no method is dropped."""

FOLD_SEEDS = 10_000
"""Distance of the seeds of two folds: a method that depends on a lucky start is found out."""

BOUNDS_UNTIL, RACE_UNTIL = 0.4, 0.75
"""Shares of the budget after which bounds and race are cut short."""

PILOT = {"rounds": 3}
"""HCCT's pilot in a race: half as long as by default, because two folds and more pay for it."""

AT_RATE = " at rate 0.000316"
"""Longest suffix that a label may get."""

ALONE, FEDAVG, POOLED = "each site alone", "FedAvg", "pooled data"

Impossible = (ConfigError, DataError, DivergedError, ProtocolError, QuorumError)


@dataclass(eq=False)
class Candidate:
    """A method in the race.

    Attributes:
        method: The method.
        order: Its place in the order of simplicity: of methods that are as good, the first is taken.
        groups: The groups it was given; empty if none.
        scores: Scores on validation rows by round.
        out: Reason why it left the race; empty for one that reached the end.
    """

    method: Method
    order: float
    groups: Groups = ()
    scores: dict[int, Scores] = field(default_factory=dict)
    out: str = ""
    trainings: list[Training] = field(default_factory=list)

    @property
    def at(self) -> int:
        """Rounds that all its trainings have done."""
        return min((t.at for t in self.trainings), default=0)

    @property
    def last(self) -> Scores:
        """Its last scores."""
        return self.scores[max(self.scores)]

    def rising(self, measure: Measure) -> tuple[int, int] | None:
        """The last two rounds it was scored at, if it did better at the later by a standard error; else None."""
        before, end = ([0, 0, *sorted(self.scores)])[-2:]
        if not before:
            return None
        gain, error = difference(self.scores[end], self.scores[before], measure)
        return (before, end) if gain > error else None


@dataclass(frozen=True, eq=False)
class Race:
    """The race as it ended.

    Attributes:
        rounds: Rounds of a federation; `planned` are those of the experiment within the limits.
        alone_rounds: Rounds' worth of training of each site alone.
        folds: Folds whose rows decided.
        bounds: Sites alone, FedAvg and pooled data, by label; those that could not be trained are left out.
        lost: Reasons why a bound could not be trained to the end, by label.
        rates: Factor on the local rate of each bound.
        entries: All methods, the best first.
        chosen: The simplest method that is within a standard error of the best; None if none could be trained.
        close: Labels of other methods within a standard error of the best.
        in_time: False if the budget cut the race short.
    """

    rounds: int
    planned: int
    alone_rounds: int
    folds: int
    bounds: dict[str, Candidate]
    lost: dict[str, str]
    rates: dict[str, float]
    entries: tuple[Candidate, ...]
    chosen: Candidate | None
    close: tuple[str, ...]
    in_time: bool


def local_of(sites: Sites) -> dict[str, Any]:
    """The settings of local training: those of the experiment's first method."""
    return from_python.local_of(sites.experiment.methods)


def race(
    sites: Sites,
    measured: SiteDisagreement,
    limits: Constraints,
    clock: Clock,
    say: Callable[[str], None],
    most_folds: int = MOST_FOLDS,
) -> Race:
    """Train bounds and methods on all folds but one, and choose by the rows of that one."""
    local = local_of(sites)
    rounds, folds = affordable(sites, local, clock, most_folds)
    most = sites.experiment.rounds if limits.rounds is None else min(sites.experiment.rounds, limits.rounds)
    here = _Race(sites, min(rounds, most), rounds, folds, limits, clock, say)
    bounds, rates = here.bounds(local)
    one, own = (_rated(local, rates.get(label, 1.0)) for label in (FEDAVG, ALONE))
    here.halving(candidates(sites, one, own, measured.proposals, limits, rounds), bounds.get(FEDAVG))
    here.other_rates(local)
    here.given_groups()
    entries = here.ranked()
    chosen, close = choose([e for e in entries if not e.out], sites)
    lost, in_time = here.lost, not here.cut
    return Race(here.rounds, most, rounds, folds, bounds, lost, rates, entries, chosen, close, in_time)


def affordable(sites: Sites, local: dict[str, Any], clock: Clock, most_folds: int) -> tuple[int, int]:
    """The rounds that the budget has time for, at most the experiment's, and the folds."""
    rounds = sites.experiment.rounds
    most = min(most_folds, len(sites.folds))
    if sites.setup.parameters * sites.fed.num_clients > MOST_HELD:
        most = 1
    if math.isinf(clock.seconds):
        return rounds, most
    probe = Training(config.method("fedavg", {"local": local}), sites, 3, sites.experiment.seeds[0], sites.folds[0])
    probe.go_on(1)
    first = probe.seconds
    probe.go_on(3)
    each = rounds * max((probe.seconds - first) / 2, 1e-4)
    trainings = (clock.seconds - clock.spent) / each
    n = sites.fed.num_clients
    of_a_fold, of_the_end = work(n / sites.experiment.cohort(n))
    folds = min(int((trainings - of_the_end) / of_a_fold), most)
    if folds >= 1:
        return rounds, folds
    return max(int(rounds * trainings / (of_a_fold + of_the_end)), min(rounds, 2)), 1


def work(everyone: float) -> tuple[float, float]:
    """Compute the work of one fold and of what follows the race, in trainings with FedAvg.

    A fold: rates of FedAvg, sites alone and pooled data, 5/3 each, a race of 12, and HCCT's pilot.  The end: three
    seeds of the same and of the chosen method, and newcomers.  Alone and pooled, `everyone` trains in a round: so many
    cohorts.

    >>> work(1.0)
    (19.0, 15.0)
    """
    return 5 / 3 * (1 + 2 * everyone) + 14, 3 * (2 + 2 * everyone) + 3


def _rated(local: dict[str, Any], factor: float) -> dict[str, Any]:
    return local if factor == 1.0 or "lr" not in local else {**local, "lr": float(f"{local['lr'] * factor:.3g}")}


def at_edge(method: Method, sites: Sites) -> Literal["highest", "lowest", ""]:
    """Return whether a method's local rate is the highest or lowest of those that are tried; empty if neither."""
    local, rate = local_of(sites), method.options.get("local", {}).get("lr")
    tried = [_rated(local, factor)["lr"] for factor in RATES] if "lr" in local else []
    if rate is None or len(tried) < 2:
        return ""
    return "highest" if rate >= max(tried) else "lowest" if rate <= min(tried) else ""


def _method(name: str, label: str, local: dict[str, Any], **options: Any) -> Method:
    return config.method(name, {"local": local, **options}, label)


def candidates(
    sites: Sites,
    local: dict[str, Any],
    own: dict[str, Any],
    proposals: Sequence[Groups],
    limits: Constraints,
    alone_rounds: int,
) -> list[Candidate]:
    """The methods that race: the experiment's own, and ours for skew, groups, malicious clients, and limits.

    Methods with one model take the settings `local`, those with several, or with long local training, `own`: where
    sites contradict each other, the rate that is best for one model of all is too low for those who agree.
    """
    n = sites.fed.num_clients
    entries = [Candidate(_method("fedavg", FEDAVG, local), 0)]
    if limits.tight:
        often = {**local, "local_epochs": 4 * local.get("local_epochs", 1)}
        entries += [
            Candidate(_method("oneshot", "OneShot", own, rounds_worth=alone_rounds), 0),
            Candidate(_method("oneshot", "OneShot, a quarter", own, rounds_worth=max(alone_rounds // 4, 1)), 0),
        ]
        if "local_steps" not in local:
            entries.append(Candidate(_method("fedavg", "FedAvg, 4 times the epochs", often), 0))
    if limits.megabytes is not None:
        bits = {"bits": 4}
        entries += [
            Candidate(_method("fedavg+quantise", "FedAvg in 4 bits", local, quantise=bits), 1),
            Candidate(_method("stc", "STC", local), 1),
            Candidate(
                _method("oneshot+quantise", "OneShot in 4 bits", own, rounds_worth=alone_rounds, quantise={"bits": 4}),
                1,
            ),
        ]
    entries += [
        Candidate(_method("fedprox", "FedProx", local, mu=0.1), 1),
        Candidate(_method("scaffold", "SCAFFOLD", local), 1),
        Candidate(_method("fedavgm", "FedAvgM", local, beta=0.5), 1),
        Candidate(_method("ditto", "Ditto", own), 2),
    ]
    layout = sites.setup.task.layout
    if layout.head and not set(layout.trainable) <= set(layout.head):  # otherwise nothing would travel
        entries.append(Candidate(_method("fedper", "FedPer", own), 2))
    if sites.setup.task.batch_norm:
        entries.append(Candidate(_method("fedbn", "FedBN", own), 2))
    if n >= 5:
        entries.append(Candidate(_method("fedavg+median", "median", local), 2))
    for groups in proposals:
        label = _name_of(groups, sites.names)
        entries.append(
            Candidate(_method("grouped", label, own, groups=[list(g) for g in groups]), 1.5 + len(groups) / 4, groups)
        )
    if n >= 4:
        entries.append(Candidate(_method("ifca", "IFCA, 2 groups", own, clusters=2), 3))
    if 4 <= n <= MOST_SITES and limits.rounds is None:  # its pilot takes more rounds than it is given
        entries.append(Candidate(_method("hcct", "HCCT", own, pilot=PILOT), 3.5))
    ours = {_apart_from_rate(e.method) for e in entries}
    labels = {e.method.label for e in entries} | {ALONE, POOLED}
    for m in sites.experiment.methods:
        if m.name not in ("independent", "centralised") and _apart_from_rate(m) not in ours:
            label = m.label if m.label not in labels else f"{m.label}, as in the file"
            entries.append(Candidate(replace(m, label=label), 2))
    return entries


def _apart_from_rate(method: Method) -> str:
    """Return what identifies a method apart from its local rate: entries that differ in that only are one."""
    local = {key: value for key, value in method.options.get("local", {}).items() if key != "lr"}
    return repr((method.name, sorted({**method.options, "local": sorted(local.items())}.items())))


def _name_of(groups: Groups, names: Sequence[str]) -> str:
    """A label for groups: who trains together, or who does not, whichever is said more shortly; or their sizes."""
    apart = [names[g[0]] for g in groups if len(g) == 1]
    together = [g for g in groups if len(g) > 1]
    text = f"groups of {listed([str(len(g)) for g in sorted(groups, key=len, reverse=True)])}"
    if len(together) == 1:
        inside = [names[c] for c in together[0]]
        text = f"all but {listed(apart)}" if len(apart) < len(inside) else f"only {listed(inside)}"
    return text if len(text) <= config.LONGEST_LABEL - len(AT_RATE) else f"{len(groups)} groups"


@dataclass(eq=False)
class _Race:
    """A race in progress."""

    sites: Sites
    rounds: int
    alone_rounds: int
    folds: int
    limits: Constraints
    clock: Clock
    say: Callable[[str], None]
    cut: bool = False
    lost: dict[str, str] = field(default_factory=dict)
    entries: list[Candidate] = field(default_factory=list)

    def train(self, entry: Candidate, until: int, rounds: int, share: float, limited: bool = True) -> bool:
        """Train an entry up to a round and score it; false if it is out."""
        sites = self.sites
        try:
            if not entry.trainings:
                cap, seed = self.limits.megabytes if limited else None, sites.experiment.seeds[0]
                entry.trainings = [
                    Training(entry.method, sites, rounds, seed + k * FOLD_SEEDS, sites.folds[k], cap)
                    for k in range(self.folds)
                ]
            if not all(t.go_on(until, lambda: self.clock.over(share)) for t in entry.trainings):
                self.cut, entry.out = True, f"no time after round {entry.at}"
            elif not all(t.within for t in entry.trainings):
                entry.out = f"a round sends {entry.trainings[0].sent / 1e6:.3g} MB, more than is allowed"
            else:
                entry.scores[entry.at] = together([t.scores(t.fed.clients.val) for t in entry.trainings])
                if all(_all_alone(groups_of(t, entry)) for t in entry.trainings):
                    entry.out = "it lets every site train by itself"
        except Impossible as error:
            entry.out = with_names(str(error), sites.names).removeprefix(f"{entry.method.label}: ")
        if entry.out:
            entry.trainings = []
        return not entry.out

    def bounds(self, local: dict[str, Any]) -> tuple[dict[str, Candidate], dict[str, float]]:
        """Sites alone, FedAvg and pooled data, each at its best rate."""
        bounds: dict[str, Candidate] = {}
        rates: dict[str, float] = {}
        parts = ((ALONE, "independent", False), (FEDAVG, "fedavg", True), (POOLED, "centralised", False))
        for label, name, limited in parts:
            rounds = self.rounds if limited else self.alone_rounds
            factors = RATES if "lr" in local else RATES[:1]
            third = math.ceil(rounds / 3)
            tried = {f: Candidate(_method(name, label, _rated(local, f)), 0) for f in factors}
            # Without the first two there is no answer: at the experiment's own rate they are trained in any case.
            always = math.inf if label != POOLED else BOUNDS_UNTIL
            share = {f: always if f == 1.0 else BOUNDS_UNTIL for f in factors}
            running = {f: e for f, e in tried.items() if self.train(e, third, rounds, share[f], limited)}
            if not running:
                self.lost[label] = tried[1.0].out
                self.say(f"{label}: {tried[1.0].out}")
                continue
            rate = _best_rate(running, self.sites)
            if not self.train(running[rate], rounds, rounds, always, limited):
                self.lost[label] = running[rate].out
                self.say(f"{label}: {running[rate].out}")
            rates[label] = rate
            if running[rate].scores:
                bounds[label] = running[rate]
                score_text = self.sites.measure.with_unit(bounds[label].last.mean)
                self.say(f"{label}: {score_text} on validation rows, local rate times {rate:.2g}")
        return bounds, rates

    def halving(self, entries: list[Candidate], fedavg: Candidate | None) -> None:
        """Successive halving; FedAvg is a bound and was trained already."""
        if fedavg is not None:
            entries = [fedavg if e.method.label == FEDAVG else e for e in entries]
        self.entries = entries
        running, until = list(entries), min(max(math.ceil(self.rounds / 4), SPARED), self.rounds)
        while True:
            at_end = until >= self.rounds
            rest = [e for e in running if e is not fedavg]
            running = [e for e in rest if self.train(e, until, self.rounds, RACE_UNTIL)]
            if not running:
                break
            running.sort(key=lambda e: -self.merit(e))
            best = running[0]
            score_text = self.sites.measure.with_unit(best.last.mean)
            self.say(f"round {until} of {self.rounds}: {len(running)} methods, best {best.method.label} {score_text}")
            if at_end:
                break
            keep = max(math.ceil(len(running) / 2), 2)
            for e in running[keep:]:
                e.out, e.trainings = f"behind after round {until}", []
            running, until = running[:keep], min(2 * until, self.rounds)

    def other_rates(self, local: dict[str, Any]) -> None:
        """Train the two best to the end at the other rates, too."""
        if "lr" not in local:
            return
        finalists = sorted((e for e in self.entries if e.scores and not e.out), key=lambda e: -self.merit(e))[:2]
        for best in finalists:
            theirs = best.method.options.get("local", {})
            for rate in (_rated(local, factor)["lr"] for factor in RATES):
                if "lr" not in theirs or rate == theirs["lr"] or best.method.label == FEDAVG:
                    continue  # FedAvg's rates were tried as a bound's
                label = f"{best.method.label[: config.LONGEST_LABEL - len(AT_RATE)]} at rate {rate:g}"
                options = {**best.method.options, "local": {**theirs, "lr": rate}}
                entry = Candidate(config.method(best.method.name, options, label), best.order + 0.5, best.groups)
                self.entries.append(entry)
                self.train(entry, self.rounds, self.rounds, RACE_UNTIL)

    def given_groups(self) -> None:
        """Give the groups that IFCA or HCCT found to FedAvg in groups: from another start IFCA may find none, and HCCT
        pays for its pilot each time."""
        for finder in [e for e in self.entries if e.method.name in ("ifca", "hcct") and e.scores and not e.out]:
            groups = tuple(sorted(groups_of(finder.trainings[0], finder)))
            same = [e for e in self.entries if e.groups and set(e.groups) == set(groups) and not e.out]
            if len(groups) > 1 and not same:
                label = f"{_name_of(groups, self.sites.names)}, as {finder.method.name.upper()}"
                options = {"local": finder.method.options["local"], "groups": [list(g) for g in groups]}
                same = [Candidate(config.method("grouped", options, label), 1.5 + len(groups) / 4, groups)]
                self.entries += same
                self.train(same[0], self.rounds, self.rounds, RACE_UNTIL)
            if any(e.scores and not e.out for e in same):
                finder.out = f"its groups are those of {same[0].method.label}"

    def ranked(self) -> tuple[Candidate, ...]:
        """All entries: those that reached the end, then those that came furthest, the best first."""
        scored = [e for e in self.entries if e.scores]
        scored.sort(key=lambda e: (bool(e.out), -max(e.scores) if e.out else 0, -self.merit(e)))
        return (*scored, *(e for e in self.entries if not e.scores))

    def merit(self, entry: Candidate) -> float:
        """Its last mean on validation rows, higher is better."""
        return entry.last.mean if self.sites.measure.higher else -entry.last.mean


def groups_of(training: Training, entry: Candidate) -> Groups:
    """The groups of the last round: those that the method was given, or those that it reports."""
    if entry.groups:
        return entry.groups
    for part in report_of(training.sim.algorithm, training.state):
        if isinstance(part, ClientGroups):
            return tuple(tuple(g) for g in part.groups if g)
    return ()


def _all_alone(groups: Groups) -> bool:
    return bool(groups) and all(len(g) == 1 for g in groups)


def _best_rate(running: dict[float, Candidate], sites: Sites) -> float:
    """The rate that does best; the experiment's own unless another is better by more than a standard error."""
    first = next(iter(running))
    best = sites.measure.first({str(f): e.last.mean for f, e in running.items()})
    factor = next(f for f in running if str(f) == best)
    gain, error = difference(running[factor].last, running[first].last, sites.measure)
    return factor if gain > error else first


def choose(finished: Sequence[Candidate], sites: Sites) -> tuple[Candidate | None, tuple[str, ...]]:
    """The simplest method within a standard error of the best on validation rows, and the labels of the others."""
    if not finished:
        return None, ()
    sign = 1.0 if sites.measure.higher else -1.0
    best = max(finished, key=lambda e: sign * e.last.mean)

    def close(entry: Candidate) -> bool:
        gap, error = difference(best.last, entry.last, sites.measure)
        return gap <= error

    near = [e for e in finished if e is best or close(e)]
    chosen = min(near, key=lambda e: (e.order, -sign * e.last.mean))
    return chosen, tuple(e.method.label for e in near if e is not chosen)
