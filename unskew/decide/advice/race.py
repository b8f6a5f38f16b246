"""A race of methods on validation rows: local rates first, then successive halving.

K. Jamieson, A. Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016: all
methods train for a part of the rounds, the better half goes on for twice as long, and so on.  Sites alone, FedAvg and
pooled data are bounds: they are trained to the end, each at the local rate that did best on validation rows.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from unskew.decide.advice.measure import MOST_SITES
from unskew.decide.cells import Plan
from unskew.decide.scores import Scores, difference, together
from unskew.decide.sites import Constraints, Sites
from unskew.decide.training import MOST_HELD, Groups, Trained, TrainingJob, trained
from unskew.experiment import config, from_python
from unskew.experiment.config import NamedMethod
from unskew.tasks.measure import Measure
from unskew.words import listed, with_names

T = TypeVar("T")

RATES = (1.0, math.sqrt(10.0), 1 / math.sqrt(10.0))
"""Factors on the experiment's local rate that are tried, its own first."""

FOLDS = 2
"""Folds whose rows decide."""

SPARED = 4
"""Rounds before which no method is dropped."""

CLEARLY = 2.0
"""Standard errors by which a method must be better than FedAvg on validation rows to take its place."""

FOLD_SEEDS = 10_000
"""Distance of the seeds of two folds: a method that depends on a lucky start is found out."""

PILOT = {"rounds": 3}
"""HCCT's pilot in a race: half as long as by default, because two folds and more pay for it."""

LONGEST_SUFFIX = len(", as HCCT")
ALONE, FEDAVG, POOLED = "each site alone", "FedAvg", "pooled data"


@dataclass(eq=False)
class Candidate:
    """A method in the race.

    Attributes:
        method: The method.
        groups: Its given groups; empty without.
        scores: Scores on validation rows by round.
        out: Why it left the race; empty if it reached the end.
        at: Rounds that all its trainings have done.
        found: Its given groups, or those it reports in the first fold.
    """

    method: NamedMethod
    groups: Groups = ()
    scores: dict[int, Scores] = field(default_factory=dict)
    out: str = ""
    at: int = 0
    found: Groups = ()

    @property
    def last(self) -> Scores:
        """Its last scores."""
        return self.scores[max(self.scores)]


def local_of(sites: Sites) -> dict[str, Any]:
    """The settings of local training: those of the experiment's first method."""
    return from_python.local_of(sites.experiment.methods)


def race(
    sites: Sites,
    proposals: Sequence[Groups],
    limits: Constraints,
    say: Callable[[str], None],
    folds: int = FOLDS,
) -> Plan["Race"]:
    """Train bounds and methods on all folds but one, and choose by the rows of that one."""
    local, rounds = local_of(sites), sites.experiment.rounds
    rounds = rounds if limits.rounds is None else min(rounds, limits.rounds)
    held = sites.setup.parameters * sites.fed.num_clients
    here = Race(sites, rounds, 1 if held > MOST_HELD else min(folds, len(sites.folds)), limits, say)
    yield from here.train_bounds(local)
    one, own = (
        here.bounds[label].method.options["local"] if label in here.bounds else local for label in (FEDAVG, ALONE)
    )
    yield from here.halving(candidates(sites, one, own, proposals, limits))
    yield from here.given_groups()
    here.chosen, here.close = choose([e for e in here.entries if e.scores and not e.out], sites)
    here.entries = here.ranked()
    return here


def rated_local(local: dict[str, Any], factor: float) -> dict[str, Any]:
    """Settings of local training with the rate multiplied by `factor`."""
    return local if factor == 1.0 or "lr" not in local else {**local, "lr": float(f"{local['lr'] * factor:.3g}")}


def _method(name: str, label: str, local: dict[str, Any], **options: Any) -> NamedMethod:
    return config.method(name, {"local": local, **options}, label)


def candidates(
    sites: Sites,
    local: dict[str, Any],
    own: dict[str, Any],
    proposals: Sequence[Groups],
    limits: Constraints,
) -> list[Candidate]:
    """The methods that race: the experiment's own, and ours for skew, groups, malicious clients, and limits.

    Methods with one model use the settings `local`.  Those with several models, or long local training, use `own`:
    their best rate is often higher.
    """
    n, rounds, layout = sites.fed.num_clients, sites.experiment.rounds, sites.setup.task.layout
    limited, tight = limits.megabytes is not None, limits != Constraints()
    often = {**local, "local_epochs": 4 * local.get("local_epochs", 1)}
    four = {"quantise": {"bits": 4}}
    # A head is personal only if something else travels; HCCT's pilot takes more rounds than it may be given.
    head = bool(layout.head) and not set(layout.trainable) <= set(layout.head or ())
    rows: list[tuple[bool, str, str, dict[str, Any], dict[str, Any]]] = [
        (True, "fedavg", FEDAVG, local, {}),
        (tight, "oneshot", "OneShot", own, {"rounds_worth": rounds}),
        (tight, "oneshot", "OneShot, a quarter", own, {"rounds_worth": max(rounds // 4, 1)}),
        (tight and "local_steps" not in local, "fedavg", "FedAvg, 4 times the epochs", often, {}),
        (limited, "fedavg+quantise", "FedAvg in 4 bits", local, four),
        (limited, "stc", "STC", local, {}),
        (limited, "oneshot+quantise", "OneShot in 4 bits", own, {"rounds_worth": rounds, **four}),
        (True, "fedprox", "FedProx", local, {"mu": 0.1}),
        (True, "scaffold", "SCAFFOLD", local, {}),
        (True, "fedavgm", "FedAvgM", local, {"beta": 0.5}),
        (True, "ditto", "Ditto", own, {}),
        (head, "fedper", "FedPer", own, {}),
        (bool(sites.setup.task.batch_norm), "fedbn", "FedBN", own, {}),
        (n >= 5, "fedavg+median", "median", local, {}),
    ]
    entries = [Candidate(_method(name, label, of, **options)) for fits, name, label, of, options in rows if fits]
    for groups in proposals:
        label = _name_of(groups, sites.names)
        entries.append(Candidate(_method("grouped", label, own, groups=[list(g) for g in groups]), groups))
    if n >= 4:
        entries.append(Candidate(_method("ifca", "IFCA, 2 groups", own, clusters=2)))
    if 4 <= n <= MOST_SITES and limits.rounds is None:
        entries.append(Candidate(_method("hcct", "HCCT", own, pilot=PILOT)))
    ours = {_apart_from_rate(e.method) for e in entries}
    labels = {e.method.label for e in entries} | {ALONE, POOLED}
    for m in sites.experiment.methods:
        if m.name not in ("independent", "centralised") and _apart_from_rate(m) not in ours:
            label = m.label if m.label not in labels else f"{m.label}, as in the file"
            entries.append(Candidate(replace(m, label=label)))
    return entries


def _apart_from_rate(method: NamedMethod) -> str:
    """Return what identifies a method apart from its local rate: entries that differ in that only are one."""
    local = {key: value for key, value in method.options.get("local", {}).items() if key != "lr"}
    return repr((method.name, sorted({**method.options, "local": sorted(local.items())}.items())))


def _name_of(groups: Groups, names: Sequence[str]) -> str:
    """A label for groups: who trains together or who does not, whichever is shorter; or their sizes."""
    apart = [names[g[0]] for g in groups if len(g) == 1]
    together = [g for g in groups if len(g) > 1]
    text = f"groups of {listed([str(len(g)) for g in sorted(groups, key=len, reverse=True)])}"
    if len(together) == 1:
        inside = [names[c] for c in together[0]]
        text = f"all but {listed(apart)}" if len(apart) < len(inside) else f"only {listed(inside)}"
    return text if len(text) <= config.LONGEST_LABEL - LONGEST_SUFFIX else f"{len(groups)} groups"


@dataclass(eq=False)
class Race:
    """A race, in progress or finished.

    Attributes:
        sites: The sites.
        rounds: Rounds of a federation: the experiment's, within the limits.
        folds: Number of folds for validation.
        limits: Limits of a federation.
        say: Called with a line for each stage.
        bounds: Sites alone, FedAvg and pooled data, by label, each at its best rate.
        lost: Why a bound could not be trained to the end at any rate, by label.
        entries: All methods, at the end the best first.
        chosen: The best method, or FedAvg unless that is clearly better; None if none could be trained.
        close: Labels of other methods that are as good.
    """

    sites: Sites
    rounds: int
    folds: int
    limits: Constraints
    say: Callable[[str], None]
    bounds: dict[str, Candidate] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    entries: list[Candidate] = field(default_factory=list)
    chosen: Candidate | None = None
    close: tuple[str, ...] = ()

    def train(
        self, entries: Sequence[Candidate], until: int, rounds: int, limited: bool = True
    ) -> Plan[list[Candidate]]:
        """Train entries up to a round and score them; return those still in the race."""
        sites, folds = self.sites, range(self.folds)
        cap, seed = self.limits.megabytes if limited else None, sites.experiment.seeds[0]
        jobs = [TrainingJob(e.method, seed + k * FOLD_SEEDS, rounds, until, k, cap) for e in entries for k in folds]
        results = yield from trained(sites, jobs)
        for i, entry in enumerate(entries):
            self.take(entry, results[i * self.folds : (i + 1) * self.folds])
        return [e for e in entries if not e.out]

    def take(self, entry: Candidate, results: Sequence[Trained]) -> None:
        """Record an entry's results in each fold."""
        why = next((r.why for r in results if r.why), "")
        entry.at = min(r.at for r in results)
        entry.found = entry.groups or results[0].groups
        if why:
            entry.out = with_names(why, self.sites.names).removeprefix(f"{entry.method.label}: ")
        elif not all(r.within for r in results):
            entry.out = f"a round sends {results[0].sent / 1e6:.3g} MB, more than is allowed"
        else:
            entry.scores[entry.at] = together([r.scores for r in results if r.scores is not None], self.sites.measure)
            if all({1} == {*map(len, entry.groups or r.groups)} for r in results):
                entry.out = "it lets every site train by itself"

    def train_bounds(self, local: dict[str, Any]) -> Plan[None]:
        """Train sites alone, FedAvg and pooled data to the end at each rate, and keep the best rate of each."""
        for label, name, limited in (
            (ALONE, "independent", False),
            (FEDAVG, "fedavg", True),
            (POOLED, "centralised", False),
        ):
            rounds = self.rounds if limited else self.sites.experiment.rounds
            factors = RATES if "lr" in local else RATES[:1]
            tried = ended = [Candidate(_method(name, label, rated_local(local, factor))) for factor in factors]
            for look in sorted({math.ceil(rounds / 2), rounds}):
                ended = yield from self.train(ended, look, rounds, limited)
            if not ended:
                self.lost[label] = tried[0].out
                self.say(f"{label}: {tried[0].out}")
                continue
            best = self.bounds[label] = max(ended, key=lambda e: merit(e, self.sites.measure))
            rate = f", local rate {best.method.options['local']['lr']:g}" if "lr" in local else ""
            self.say(f"{label}: {self.sites.measure.with_unit(best.last.mean)} on validation rows{rate}")

    def halving(self, entries: list[Candidate]) -> Plan[None]:
        """Successive halving; FedAvg is a bound and already trained."""
        for e in entries:
            e.out = self.lost.get(e.method.label, "")
        self.entries = [self.bounds.get(e.method.label, e) for e in entries]
        running = [e for e in entries if e.method.label != FEDAVG]
        until = min(max(math.ceil(self.rounds / 4), SPARED), self.rounds)
        while running := (yield from self.train(running, until, self.rounds)):
            running.sort(key=lambda e: -merit(e, self.sites.measure))
            best = f"{running[0].method.label} {self.sites.measure.with_unit(running[0].last.mean)}"
            self.say(f"round {until} of {self.rounds}: {len(running)} methods, best {best}")
            if until >= self.rounds:
                break
            keep = max(math.ceil(len(running) / 2), 2)
            for e in running[keep:]:
                e.out = f"behind after round {until}"
            running, until = running[:keep], min(2 * until, self.rounds)

    def given_groups(self) -> Plan[None]:
        """Add FedAvg in the groups that IFCA or HCCT found, which another start could miss."""
        for finder in [e for e in self.entries if e.method.name in ("ifca", "hcct") and e.scores and not e.out]:
            groups = tuple(sorted(finder.found))
            same = [e for e in self.entries if e.groups and set(e.groups) == set(groups) and not e.out]
            if len(groups) > 1 and not same:
                label = f"{_name_of(groups, self.sites.names)}, as {finder.method.name.upper()}"
                options = {"local": finder.method.options["local"], "groups": [list(g) for g in groups]}
                same = [Candidate(config.method("grouped", options, label), groups)]
                self.entries += same
                yield from self.train(same, self.rounds, self.rounds)
            if any(e.scores and not e.out for e in same):
                finder.out = f"its groups are those of {same[0].method.label}"

    def ranked(self) -> list[Candidate]:
        """All entries, the best first: those that reached the end, then those that came furthest."""
        scored = [e for e in self.entries if e.scores]
        scored.sort(key=lambda e: (bool(e.out), -max(e.scores) if e.out else 0, -merit(e, self.sites.measure)))
        return [*scored, *(e for e in self.entries if not e.scores)]


def merit(entry: Candidate, measure: Measure) -> float:
    """Its last mean on validation rows, higher is better; -inf where not defined."""
    mean = entry.last.mean if measure.higher else -entry.last.mean
    return -math.inf if math.isnan(mean) else mean


def choose(finished: Sequence[Candidate], sites: Sites) -> tuple[Candidate | None, tuple[str, ...]]:
    """The best method on validation rows, or FedAvg unless that is clearly better; and labels of others as good.

    The best of many is partly chance, so it replaces FedAvg only if it is better by `CLEARLY` standard errors of their
    difference.  Others are as good if they are within one standard error of the best.
    """
    if not finished:
        return None, ()
    best = max(finished, key=lambda e: merit(e, sites.measure))
    behind = {e.method.label: difference(best.last, e.last, sites.measure) for e in finished}
    chosen = next((e for e in finished if e.method.label == FEDAVG), best)
    gap, error = behind[chosen.method.label]
    if gap > CLEARLY * error:
        chosen = best
    near = [label for label, (gap, error) in behind.items() if gap <= error]
    return chosen, tuple(label for label in near if label != chosen.method.label)
