"""The answer: whether to federate, for whom, with whom, how, at what cost, and how sure that is; and its experiment."""

import dataclasses
import html
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from unskew.advice.check import CONFIDENCE_OF_TWO, Check, Newcomer
from unskew.advice.follow_up import under_fresh_seeds
from unskew.advice.measure import Groups, SiteDisagreement, inside_and_across
from unskew.advice.race import ALONE, FEDAVG, POOLED, Race, at_edge
from unskew.advice.training import ASKED, Constraints, Sites
from unskew.data.patients import number_of
from unskew.errors import shown
from unskew.experiment import config
from unskew.experiment.config import Experiment, Method
from unskew.info import WorseThanConstant
from unskew.protocol import ClientId
from unskew.report import render
from unskew.report.gain import Gain, ranked
from unskew.report.section import Table, TableRow
from unskew.report.stats import CONFIDENCE
from unskew.report.worth import MOST_NAMED, bracket, no_verdict, one_class_alone, per_test_row, who_gains
from unskew.run import constant
from unskew.run.progress import duration
from unskew.run.remarks import FROM_ONE, large_target, weighted_accuracy
from unskew.tasks.measure import FEWEST
from unskew.words import beginning, counted, listed, sentence, separate_classes, spelling_variants

Verdict = Literal["join", "alone", "undecided"]
Family = Literal["alone", "one model", "own models", "groups"]

WORTH = 0.01
"""Gain below which federation is not worth its cost: a point, or a hundredth of what sites have alone."""

GROUPED = ("grouped", "ifca", "flsc", "cfl", "hcct", "hcct_e", "hcct_p")
MORE_SEEDS = 5
SITE_COLUMNS = ("rows to train on", "rows tested", "alone", "with the others", "gain", "reading")
SITES_SHOWN = 10
"""Sites from the top, and from the bottom, in a notebook."""
MOST_OF_BOTH = 10
"""Times as many rows, or sites, and seeds up to which more of both are suggested."""
MOST_TIMES = 100
"""Times as many rows, sites or seeds up to which more of one alone is suggested."""


@dataclass(frozen=True, eq=False, repr=False)
class Advice:
    """An answer, and everything it stands on; `print` gives its sentences, a notebook these and a table by site.

    Attributes:
        sites: The sites.
        limits: What a federation must keep to.
        measured: How much they disagree.
        race: How the method was chosen, on validation rows.
        check: The numbers, on test rows under fresh seeds.
        newcomers: Sites that came after training.
        seconds: Time it took.
    """

    sites: Sites
    limits: Constraints
    measured: SiteDisagreement
    race: Race
    check: Check
    newcomers: tuple[Newcomer, ...]
    seconds: float

    # ------------------------------------------------------------------ decisions
    @property
    def gain(self) -> Gain | None:
        """The gain over local training, of the mean over sites, of the method that the answer is about."""
        return self.check.gains.get(self.check.chosen or "")

    @property
    def confidence(self) -> float:
        """The confidence of the interval of `gain`: more than 0.95 where FedAvg stands in for the race's choice."""
        return CONFIDENCE if self.check.set_aside is None else CONFIDENCE_OF_TWO

    @property
    def margin(self) -> float:
        """The gain below which federation is not worth its cost."""
        results = self.check.results.get(ALONE)
        if self.sites.measure.percent or not results:
            return WORTH
        return WORTH * abs(statistics.fmean(s.mean for s in results))

    @property
    def verdict(self) -> Verdict:
        """Verdict on whether the sites should federate.

        Training alone is advised only if FedAvg, which no race has chosen, is not worth it either, if the accuracy of
        some site's own model says something, and if neither method was lost; or if nothing fits the limits.
        """
        gain = self.gain
        if gain is None:
            too_tight = self.race.chosen is None and self.limits.tight and not self.check.cut
            return "alone" if too_tight and ALONE in self.check.results else "undecided"
        if self.too_little or self._no_use:
            return "undecided"
        if self._not_worth_it:
            return "undecided" if self._all_of_one_class or self._lost else "alone"
        return "join" if gain.low is not None and gain.low > 0 else "undecided"

    @property
    def too_little(self) -> str:
        """The reason why nothing is decided: time ended before the work did, or there is one seed; else empty."""
        clock = self.sites.clock
        if self.check.cut:
            rounds = f"{clock.rounds:,} of about {clock.planned:,} rounds of training"
            return f"{duration(clock.seconds)} were enough for {rounds}; give it more minutes"
        return "one seed is too few; give it two fresh seeds or more" if len(self.check.seeds) == 1 else ""

    @cached_property
    def _no_use(self) -> bool:
        """True if sites' models, alone and with the method of the answer, are worse on average than a constant."""
        return bool(self.by_site) and all(mean and mean.mean for mean in self._beside_constant)

    @cached_property
    def useless(self) -> frozenset[ClientId]:
        """Sites whose models, alone and with the method of the answer, are both worse than a constant."""
        return frozenset.intersection(*(frozenset(of.clients) if of else frozenset() for of in self._beside_constant))

    @cached_property
    def _beside_constant(self) -> tuple[WorseThanConstant | None, ...]:
        """Comparisons of sites alone, and of the method of the answer, with what training rows would always say."""
        return tuple(
            constant.beside(
                {
                    c: statistics.fmean(of)
                    for c in self.by_site
                    if (of := [s.values[c] for s in scores if c in s.values])
                },
                self.sites.constants,
                self.sites.measure,
            )
            for scores in (self.check.results.get(label, ()) for label in (ALONE, self.check.chosen or ""))
        )

    @property
    def _all_of_one_class(self) -> bool:
        return len(self._without_gain) == len(self.by_site) > 0

    @property
    def _not_worth_it(self) -> bool:
        """True if the intervals of the method of the answer and of FedAvg, as far as there are any, are too low."""
        measured = (self.gain, self.check.gains.get(FEDAVG, self.gain))
        return all(g is not None and g.high is not None and g.high < self.margin for g in measured)

    @property
    def _lost(self) -> str:
        """Say which of the race's choice and FedAvg could not be trained, and why; empty if both could."""
        chosen, lost = self.race.chosen, dict(self.check.lost)
        if self.limits.megabytes is None and FEDAVG in self.race.lost:
            lost[FEDAVG] = f"at any rate: {self.race.lost[FEDAVG]}"
        labels = (FEDAVG,) if chosen is None else dict.fromkeys((chosen.method.label, FEDAVG))
        return "; ".join(f"{label} could not be trained {lost[label]}" for label in labels if label in lost)

    @property
    def method(self) -> Method:
        """The method that is recommended: that of the answer, unless sites are better off alone."""
        chosen = self.check.answering(self.race)
        if self.verdict == "alone" or chosen is None:
            return self._alone
        return chosen.method

    @property
    def _alone(self) -> Method:
        bound = self.race.bounds.get(ALONE)
        return config.method("independent", {}, ALONE) if bound is None else bound.method

    @property
    def family(self) -> Family:
        """The kind of the recommended method."""
        name = self.method.name.partition("+")[0]
        if name == "independent":
            return "alone"
        if name in GROUPED:
            return "groups"
        return "own models" if self.method.kind == "personal" else "one model"

    @property
    def groups(self) -> Groups:
        """The groups that the recommended method trains, by site number; empty where all train together or alone."""
        return self.check.groups if self.family == "groups" else ()

    @property
    def apart(self) -> tuple[str, ...]:
        """Sites that are to train by themselves while others train together."""
        if not any(len(g) > 1 for g in self.groups):
            return ()
        return tuple(self.sites.names[g[0]] for g in self.groups if len(g) == 1)

    @cached_property
    def by_site(self) -> dict[ClientId, Gain]:
        """Each site's gain with the chosen method."""
        return dict(self.check.by_site.get(self.check.chosen or "", {}))

    @property
    def unjudged(self) -> tuple[str, ...]:
        """Sites whose results cannot be measured, as without test rows."""
        return tuple(name for c, name in enumerate(self.sites.names) if self.by_site and c not in self.by_site)

    @property
    def of_one_class(self) -> frozenset[ClientId]:
        """Sites that would be called better off alone, were it not that alone they find one class only."""
        alone = self.verdict == "alone"
        return frozenset(c for c in self._without_gain if alone or self.by_site[c].verdict == "loses")

    @property
    def _without_gain(self) -> frozenset[ClientId]:
        """Sites that are not shown to gain, and whose model, trained alone, finds one class only under some seed."""
        alone = frozenset(c for scores in self.check.results.get(ALONE, ()) for c in scores.of_one_class)
        return frozenset(c for c, g in self.by_site.items() if c in alone and g.verdict != "gains")

    @property
    def by_themselves(self) -> frozenset[ClientId]:
        """Sites that the chosen method lets train by themselves."""
        return frozenset(g[0] for g in self.check.groups if len(g) == 1)

    # ------------------------------------------------------------------ words
    @property
    def headline(self) -> str:
        """The answer in a sentence."""
        m, gain = self.sites.measure, self.gain
        if gain is None:
            if self.verdict == "undecided":
                if self.check.cut:
                    return f"Undecided: {self.too_little}."
                lost = {**self.check.lost, **self.race.lost}
                if ALONE in lost:
                    large = large_target(self.sites.experiment.task, self.sites.setup, FROM_ONE)
                    return f"Undecided: sites could not be trained alone: {lost[ALONE]}{large and f'; {large}'}."
                if self._lost:
                    return f"Undecided: {self._lost}."
                return "Undecided: nothing could be compared with local training."
            return "Train alone: no method could be trained within the limits."
        label = self.check.chosen
        unit = f" {m.points}" if m.points else f" of {m.label}"
        percent = f"{100 * self.confidence:g} %"
        over = f" ({percent} interval over {self._over(gain)})" if gain.over else ""
        if over and len(self.check.seeds) > 1:
            over = f" ({percent} interval over seeds and {self._beside_seeds}, mostly {self._over(gain)})"
        sure = f"{bracket(gain, m)}{unit} over local training{m.turned}{over}{per_test_row(gain, m)}"
        if self.verdict == "join":
            return f"Federate, with {label}: {sure}."
        if self.verdict == "alone":
            return f"Train alone: federation is not worth it here. The best method, {label}, gains only {sure}."
        if self.too_little:
            return f"Undecided: {label} gains {sure}, but {self.too_little}."
        if self._no_use:
            text = f"Undecided: {label} gains {sure}, but both are worse than what training rows alone would always say"
            constants = statistics.fmean(self.sites.constants[c] for c in self.by_site if c in self.sites.constants)
            return f"{text} ({m.with_unit(constants)})."
        if self._all_of_one_class:
            return f"Undecided: {label} gains {sure}, but {one_class_alone('every site')}."
        if self._not_worth_it:
            return f"Undecided: {label} gains only {sure}, but {self._lost}."
        return f"Undecided: {label} gains {sure}, which may be chance."

    @property
    def _beside_seeds(self) -> str:
        """The name of what the interval of a mean gain is over beside seeds."""
        return self.sites.drawn if self.sites.measure.of_rows else "sites"

    @property
    def _tested(self) -> int:
        """The number of test rows of the sites with a result, or of patients in them."""
        fed = self.sites.fed
        rows, patients = [fed.clients.test[c] for c in self.by_site], fed.dataset.patients
        return sum(len(of) if patients is None else number_of(patients[of]) for of in rows)

    def _over(self, gain: Gain) -> str:
        """Name what most of the interval of a mean gain is over."""
        return "seeds" if gain.over == "seeds" else self._beside_seeds

    def sentences(self) -> tuple[tuple[str, str], ...]:
        """Question and answer, in the order in which one asks."""
        asked = (
            ("Is it worth it?", self._worth()),
            ("Are the labels right?", self._labels()),
            ("Which sites benefit?", self._for_whom()),
            ("Who should train with whom?", self._with_whom()),
            ("Which method and settings?", self._with_what()),
            ("What does it cost?", self._cost()),
            ("What about a new site?", self._newcomer()),
            ("How certain is this?", self._sure()),
            ("What would make it more certain?", self._surer()),
        )
        return tuple((question, answer) for question, answer in asked if answer)

    def _worth(self) -> str:
        m, results = self.sites.measure, self.check.results
        means = {label: statistics.fmean(s.mean for s in scores) for label, scores in results.items()}
        levels = ", ".join(f"{label} {m.with_unit(value)}" for label, value in means.items())
        text = " ".join(filter(None, (self.headline, self._set_aside())))
        text += f" Mean over sites on test rows: {levels}." if levels else ""
        text += "".join(f" {sentence(line)}" for line in (*self._asked(), self._on_purpose()) if line)
        pooled = self.check.over_pooled
        if pooled is not None:
            verdict = {"gains": "better than", "loses": "worse than", "open": "not to be told apart from"}[
                pooled.verdict
            ]
            text += f" With {self.check.chosen} the mean is {verdict} that of pooled data ({bracket(pooled, m)})."
        return text

    def _asked(self) -> Iterator[str]:
        """The metrics that `evaluate` asks for, each with its mean over sites of every method."""
        for measure in self.sites.setup.task.measures[ASKED:]:
            levels = [
                f"{label} {measure.with_unit(statistics.fmean(s.asked[measure.name] for s in scores))}"
                for label, scores in self.check.results.items()
                if scores and all(measure.name in s.asked for s in scores)
            ]
            if levels:
                yield f"{beginning(measure.label)}: {', '.join(levels)}"

    def _on_purpose(self) -> str:
        """Say that class weights lower the accuracy that is compared; empty if they do not."""
        return weighted_accuracy(self.sites.experiment.task, self.sites.measure)

    def _set_aside(self) -> str:
        """Say why the answer is about FedAvg and not about the race's choice, and with what interval; may be empty."""
        m, aside = self.sites.measure, self.check.set_aside
        if aside is None:
            return ""
        why = "it could not be trained under fresh seeds"
        if aside.over_fedavg is not None and aside.over_fedavg.verdict == "loses":
            why = f"on test rows it is worse than FedAvg ({bracket(aside.over_fedavg, m)})"
        elif aside.gain is not None:
            why = f"on test rows it is not shown to gain over local training ({bracket(aside.gain, m)})"
        return (
            f"{aside.label}, chosen on validation rows, is set aside: {why}. As the second of two methods that were "
            f"held against local training, FedAvg has an interval of {100 * self.confidence:g} %."
        )

    def _labels(self) -> str:
        named = "classes" in self.sites.experiment.task.data_options
        text = "" if named else separate_classes(spelling_variants(self.sites.setup.dataset.classes))
        return text and sentence(text)

    def _for_whom(self) -> str:
        if not self.by_site or self.too_little:
            return self.too_little and f"No verdict on any site: {self.too_little}."
        m, names = self.sites.measure, self.sites.names
        none = {c for c in self.useless if self.by_site[c].verdict == "gains"}
        joined = {
            names[c]: dataclasses.replace(g, low=None, high=None) if c in none else g
            for c, g in self.by_site.items()
            if c not in self.by_themselves
        }
        text = f"With {self.check.chosen}, {who_gains(joined, m, 'site')}"
        if self.by_themselves:
            lone = [names[c] for c in sorted(self.by_themselves)]
            verb = "trains by itself" if len(lone) == 1 else "train by themselves"
            text += f"; {listed(lone)} {verb}" if len(lone) <= MOST_NAMED else f"; {len(lone)} sites {verb}"
        text += "."
        return " ".join(
            filter(
                None,
                (
                    beginning(text),
                    self._worse_than_constant(),
                    self._saying_little(),
                    self._without(),
                    no_verdict(self.unjudged, m),
                ),
            )
        )

    def _worse_than_constant(self) -> str:
        """A sentence on sites that are better off neither way, with the number of their training rows' constant."""
        names = [self.sites.names[c] for c in sorted(self.useless)]
        if not names:
            return ""
        shown = f"At {listed(names) if len(names) <= MOST_NAMED else f'{len(names):,} sites'}"
        return (
            f"{shown} both, alone and with {self.check.chosen}, are worse than what training rows would always say, so "
            "nobody is better off there."
        )

    def _saying_little(self) -> str:
        """A sentence on sites that are not to be called better off alone, though they do not gain."""
        names = [self.sites.names[c] for c in sorted(self.of_one_class)]
        if not names:
            return ""
        shown = listed(names) if len(names) <= MOST_NAMED else f"{len(names):,} sites"
        return f"{beginning(one_class_alone(shown, many=len(names) > 1))}."

    def _without(self) -> str:
        """A sentence on sites whose gain has no interval: what is open there is not a matter of its size."""
        m = self.sites.measure
        names = [self.sites.names[c] for c, g in self.by_site.items() if g.low is None]
        if not names:
            return ""
        if m.by_row is None and not m.of_rows:
            return f"Of single sites nothing is said: there is no interval over {self.sites.drawn} for {m.label}."
        drawn = self.sites.drawn
        few = (
            f"a single {drawn.removesuffix('s')}"
            if m.of_rows
            else f"fewer than {FEWEST} {drawn} {'with an event' if m.of_events else 'of one class'}"
        )
        shown = listed(names) if len(names) <= MOST_NAMED else f"{len(names):,} sites"
        have, their = ("has", "its") if len(names) == 1 else ("have", "their")
        return f"{shown} {have} {few}, too few to tell {their} gain from chance."

    def _with_whom(self) -> str:
        names, cosines = self.sites.names, self.measured.cosines
        if self.family == "alone":
            text = "With nobody." if self.verdict == "alone" else ""
        elif self.groups:
            together = [g for g in self.groups if len(g) > 1]
            shown = [f"{i}: {listed([names[c] for c in g])}" for i, g in enumerate(together, 1)]
            in_groups = f"In {counted(len(together), 'group')}: {'; '.join(shown)}"
            text = f"{in_groups.removesuffix('.')}." if together else ""
            if self.apart:
                text += f" {listed(self.apart)} by {'itself' if len(self.apart) == 1 else 'themselves'}"
                text += ": its updates disagree with the others', so check its data." if len(self.apart) == 1 else "."
        elif self.family == "own models":
            text = "All together, each site with a model of its own."
        else:
            text = "All together, one model."
        if text and self.verdict == "undecided" and self.family != "alone":
            text = f"Whether with anybody is undecided; if so: {text[:1].lower()}{text[1:]}"
        if cosines is None:
            return f"{text} {sentence(self.measured.why)}".strip() if self.measured.why else text
        inside, across = inside_and_across(cosines, self.groups or (tuple(range(len(names))),))
        if self.groups and inside is not None and across is not None:
            text += (
                f" Updates point in similar directions within groups (mean cosine {_cosine(inside)}) and in different "
                f"ones across groups ({_cosine(across)})."
            )
        elif inside is not None:
            mean = (cosines.sum(1) - 1) / max(len(names) - 1, 1)
            least = int(mean.argmin())
            text += (
                f" The mean cosine between two sites' updates is {_cosine(inside)}; {names[least]} "
                f"agrees least with the others ({_cosine(float(mean[least]))})."
            )
        return text.strip()

    def _with_what(self) -> str:
        method, race = self.method, self.race
        if race.chosen is None and self.verdict == "undecided":
            return ""
        local = method.options.get("local", {})
        settings = [f"local rate {local['lr']:g}"] if "lr" in local else []
        if "local_epochs" in local:
            settings.append(counted(local["local_epochs"], "local epoch"))
        cost = self.check.cost
        rounds = (
            self.sites.experiment.rounds if self.family == "alone" else race.rounds if cost is None else cost.rounds
        )
        settings.append(counted(rounds, "round"))
        text = f"{method.label} ({', '.join(settings)})."
        tried = sum(bool(e.scores) for e in race.entries)
        if race.chosen is None:
            return text
        text += f" {tried} methods were tried on validation rows"
        if self.check.set_aside is not None:
            text += f"; {self.check.set_aside.label}, which was chosen there, is set aside"
        elif race.close:
            verb = "does" if len(race.close) == 1 else "do"
            text += f"; {listed(race.close)} {verb} as well there, within a standard error"
        return f"{text}."

    def _cost(self) -> str:
        cost = self.check.cost
        if cost is None:
            return ""
        on_air = ""
        if cost.channel != "paper":  # the default, which is nobody's wish
            on_air = f"; over the radio link {_amount(cost.seconds)} s of air time and {_amount(cost.joules)} J"
        text = (
            f"{self.check.chosen} sends {_amount(cost.megabytes)} MB in total; a site uploads "
            f"{_amount(1000 * cost.per_site)} kB per round{on_air}."
        )
        return f"Nothing if sites train alone. {text}" if self.family == "alone" else text

    def _newcomer(self) -> str:
        m = self.sites.measure
        if not self.newcomers:
            return ""
        served, adapted = (
            statistics.fmean(v) for v in zip(*((n.served, n.adapted) for n in self.newcomers), strict=True)
        )
        known = [n.alone for n in self.newcomers if n.alone is not None]
        local_text = (
            f"; local training gives them {m.with_unit(statistics.fmean(known))}"
            if len(known) == len(self.newcomers)
            else ""
        )
        k = len(self.newcomers)
        how = (
            "left out of training"
            if self.sites.fed.unseen is None
            else ("which comes later" if k == 1 else "which come later")
        )
        who = f"{self.newcomers[0].name}, {how}," if k == 1 else f"{k} sites, {how},"
        return (
            f"{who} would be served {m.with_unit(served)}, and have {m.with_unit(adapted)} after training that "
            f"model on rows of {'its' if k == 1 else 'their'} own{local_text}. One seed."
        )

    def _sure(self) -> str:
        if self.gain is None:
            return self._left_out
        n = sum(len(self.sites.fed.clients.test[c]) for c in self.by_site)
        seeds = len(self.check.seeds)
        fresh = counted(seeds, "fresh seed")
        of = "" if self.sites.fed.dataset.patients is None else f" of {self._tested:,} patients"
        rows = f"{n:,} test rows{of} that no choice has seen"
        named = sum(g.low is not None for g in self.by_site.values())
        if self.sites.measure.of_rows:
            text = f"95 % intervals over {fresh} and {rows}, both together."
        else:
            text = f"On {rows}: of the mean 95 % intervals over {fresh} and over sites together"
            text += ", of a site over seeds and its test rows." if named else "."
        if named > 1:
            text += f" Of {named} sites about {0.05 * named:.2g} would be reported to gain or lose by chance alone."
        return f"{text} {self._left_out}".strip()

    @property
    def _left_out(self) -> str:
        return " ".join(f"{label} is left out: {why}." for label, why in self.check.lost.items())

    def _surer(self) -> str:
        gain = self.gain
        more = []
        if gain is None or gain.high is None:
            return ""
        if self._no_use:
            large = large_target(self.sites.experiment.task, self.sites.setup, FROM_ONE)
            return sentence(
                "; ".join(filter(None, ("models that do better than a constant", large, *self._settings())))
            )
        if self._all_of_one_class:
            weighted = self.sites.experiment.task.class_weights is not None
            what = "more rows of the classes that are not found" if weighted else 'task.class_weights = "balanced"'
            return f"Models that find every class: {what}."
        if self._not_worth_it and self._lost:
            more.append("methods that can be trained under every seed, as at a lower local rate")
        elif self.verdict == "undecided":
            more.append(self._to_decide())
        elif gain.over == "test examples":
            what = f"{self.sites.drawn} at each site" if self.sites.measure.of_rows else "sites"
            more.append(f"more {what}: they, not seeds, make the interval wide")
        else:
            more.append(f"more seeds: unskew run on the file below has {MORE_SEEDS} further ones")
        more += self._settings()
        return sentence("; ".join(more))

    def _to_decide(self) -> str:
        """Say how many more test rows, sites or seeds may decide an open question, by the side that must shrink."""
        open_gain, wide = self._widest_to_decide()
        what = self._over(open_gain)
        n = {self.sites.drawn: self._tested, "sites": len(self.by_site), "seeds": len(self.check.seeds)}[what]
        # Of the squared width of a side this part shrinks with more of `what`, the rest stays as it is.
        left = wide**-2 - (1 - open_gain.part)
        times = open_gain.part / left if wide < 10 and left > 0 else math.inf
        if math.isfinite(times) and math.ceil(times * n) <= MOST_TIMES * n:
            return f"more {what}: about {max(math.ceil(times * n), n + 1):,} instead of {n:,}"
        if wide**2 < MOST_OF_BOTH:
            other = self._beside_seeds if what == "seeds" else "seeds"
            return f"more {what} and more {other}: about {max(wide**2, 1.1):.2g} times as many of each"
        return f"many times more {what}, or none: what it brings may be too little to matter"

    def _widest_to_decide(self) -> tuple[Gain, float]:
        """The gain whose interval stands in the way of an answer, and how many times too wide its side is for that.

        For *join* the lower side of the answer's gain must not reach zero; for *alone* the upper sides of that and of
        FedAvg's must not reach the margin.  Of the two the nearer counts: what is too wide by less.
        """
        gain = self.gain
        assert gain is not None
        measured = {id(g): g for g in (gain, self.check.gains.get(FEDAVG, gain))}.values()
        join = (gain, _times_too_wide(gain.low, gain.mean, 0.0))
        alone = max(((g, _times_too_wide(g.high, g.mean, self.margin)) for g in measured), key=lambda of: of[1])
        return min(join, alone, key=lambda of: of[1])

    def _settings(self) -> list[str]:
        """Say what the measured curves and rates suggest about more rounds and other local rates."""
        race, m, chosen = self.race, self.sites.measure, self.check.answering(self.race)
        entries = {e.method.label: e for e in (chosen, *race.bounds.values()) if e is not None}
        entries.pop(POOLED, None)
        compared = [e for label, e in entries.items() if e is chosen or label == ALONE]
        parts = []
        longer = self.limits.rounds is None
        for edge, what in (
            ("highest", f"higher local rates{', or more rounds' * longer}"),
            ("lowest", "lower local rates"),
        ):
            some = [e.method for e in compared if at_edge(e.method, self.sites) == edge]
            if some:
                rate = some[0].options["local"]["lr"]
                parts.append(f"{what}: {rate:g}, the {edge} tried, did best for {listed([s.label for s in some])}")
        rises = next((e for e in entries.values() if e.rising(m)), None)
        if rises is not None and longer:
            ends = rises.rising(m) or (0, 0)
            first, last = (m.with_unit(rises.scores[r].mean) for r in ends)
            parts.append(
                f"more rounds than {race.rounds}: {rises.method.label} went from {first} on validation rows after "
                f"round {ends[0]} to {last} after round {ends[1]}"
            )
        return parts

    def to_json(self) -> dict[str, Any]:
        """The answer as JSON holds it."""
        return {
            "verdict": self.verdict,
            "method": self.method.label,
            "family": self.family,
            "gain": None if self.gain is None else dataclasses.asdict(self.gain),
            "confidence": self.confidence,
            "set_aside": None if self.check.set_aside is None else dataclasses.asdict(self.check.set_aside),
            "sites": {
                self.sites.names[c]: {**dataclasses.asdict(g), "verdict": g.verdict} for c, g in self.by_site.items()
            },
            "no_verdict": list(self.unjudged),
            "worse_than_constant": [self.sites.names[c] for c in sorted(self.useless)],
            "one_class_alone": [self.sites.names[c] for c in sorted(self.of_one_class)],
            "groups": [[self.sites.names[c] for c in g] for g in self.groups],
            "cost": None if self.check.cost is None else dataclasses.asdict(self.check.cost),
            "newcomers": [dataclasses.asdict(n) for n in self.newcomers],
            "seeds": list(self.check.seeds),
            "rounds": self.race.rounds,
            "rounds_trained": self.sites.clock.rounds,
            "seconds": self.seconds,
            "answers": dict(self.sentences()),
        }

    def __str__(self) -> str:
        return "\n".join(f"{question} {answer}" for question, answer in self.sentences())

    def __repr__(self) -> str:
        return f"<Advice: {shown(self.headline)} print() says more>"

    def _repr_html_(self) -> str:
        """The sentences and a table by site, as a notebook shows them."""
        answers = "".join(
            f"<dt><b>{html.escape(question)}</b></dt><dd>{html.escape(answer)}</dd>"
            for question, answer in self.sentences()
        )
        return f"<dl>{answers}</dl>{self._sites_as_html()}"

    def _sites_as_html(self) -> str:
        if not self.by_site:
            return ""
        order = ranked(self.by_site)
        left = len(order) - 2 * SITES_SHOWN
        order = [*order[:SITES_SHOWN], *order[-SITES_SHOWN:]] if left > 0 else order
        title = f"Each site alone and with {self.check.chosen}, {self.sites.measure.axis}"
        title += f"; {left:,} in the middle are left out" if left > 0 else ""
        rows = tuple(TableRow(self.sites.names[c], self.site_row(c)) for c in order)
        return str(render.html(Table(title, tuple((head, "") for head in ("site", *SITE_COLUMNS)), rows)))

    def site_row(self, c: ClientId) -> tuple[str, ...]:
        """A site's row in a table: a cell for each of `SITE_COLUMNS`."""
        m, checked = self.sites.measure, self.check
        alone, joined = (checked.results[label] for label in (ALONE, checked.chosen or ""))
        return (
            f"{self.measured.sizes[c]:,}",
            f"{len(self.sites.fed.clients.test[c]):,}",
            m.show(float(np.mean([s.values[c] for s in alone]))),
            m.show(float(np.mean([s.values[c] for s in joined]))),
            bracket(self.by_site[c], m),
            self._of_site(c),
        )

    def _of_site(self, c: ClientId) -> str:
        if c in self.by_themselves:
            return "by itself"
        if c in self.useless:
            return "worse than a constant"
        return "one class alone" if c in self.of_one_class else reading(self.by_site[c])

    # ------------------------------------------------------------------ the experiment
    def experiment(self) -> Experiment:
        """The experiment that is recommended, with the bounds, under seeds not used so far."""
        asked = self.sites.experiment
        seeds = self.check.seeds or asked.seeds
        labels = dict.fromkeys((self.method.label, self.check.chosen or "", ALONE, FEDAVG, POOLED))
        by_label = {label: bound.method for label, bound in self.race.bounds.items()}
        chosen = self.check.answering(self.race)
        by_label |= {} if chosen is None else {chosen.method.label: chosen.method}
        by_label |= {self.method.label: self.method}
        rounds = asked.rounds if self.limits.rounds is None else min(asked.rounds, self.limits.rounds)
        training, most = self.check.training, self.limits.megabytes
        if most is not None and training is not None and training.sent:  # a run stops only once it has sent so much
            within = training.at if training.ended else int(most * 1e6 * training.at / training.sent)
            rounds = min(rounds, max(within, 1))
        if rounds < asked.rounds:  # what travels nowhere is not bound to few rounds
            by_label |= {m: _longer(by_label[m], asked.rounds / rounds) for m in (ALONE, POOLED) if m in by_label}
        stop = dataclasses.replace(asked.stop, megabytes=self.limits.megabytes or asked.stop.megabytes)
        advised = dataclasses.replace(
            asked,
            name=advised_name(asked),
            methods=tuple(by_label[label] for label in labels if label in by_label),
            rounds=rounds,
            stop=stop,
            val_fraction=0.0,
            until=None,
        )
        if advised.baseline is not None and len(advised.compared) > 1:  # what a rule for adding seeds compares
            advised = dataclasses.replace(advised, until=asked.until)
        return under_fresh_seeds(advised, max(seeds) + 1, MORE_SEEDS)


def reading(gain: Gain | None) -> str:
    """A gain's verdict in words; empty without a gain."""
    return "" if gain is None else {"gains": "better off", "loses": "worse off", "open": "open"}[gain.verdict]


def advised_name(asked: Experiment) -> str:
    """The name of the experiment that is recommended in place of the one that was asked about."""
    return f"{asked.name}, as advised"


def _longer(method: Method, factor: float) -> Method:
    """The method with so many times the local work in a round."""
    local = dict(method.options["local"])
    unit = "local_steps" if "local_steps" in local else "local_epochs"
    local[unit] = math.ceil(factor * local.get(unit, 1))
    return config.method(method.name, {**method.options, "local": local}, method.label)


def _times_too_wide(end: float | None, mean: float, limit: float) -> float:
    """Return how many times too wide a side of an interval is: for its end not to pass a limit.

    It is infinite where the mean is beyond the limit.

    >>> _times_too_wide(-0.75, 0.25, 0.0), _times_too_wide(0.5, 0.25, 0.0)
    (4.0, inf)
    """
    if end is None or (mean - limit) * (mean - end) <= 0:
        return math.inf
    return (mean - end) / (mean - limit)


def _cosine(value: float) -> str:
    text = f"{value:.2f}"
    return "0.00" if float(text) == 0 else text.replace("-", "−")


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
