"""The answer: whether to federate, for whom, with whom, how, at what cost, and how sure that is; and its experiment."""

import dataclasses
import html
import math
import statistics
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from unskew.data.patients import number_of
from unskew.decide.advice.check import CONFIDENCE_OF_TWO, Check, Newcomer
from unskew.decide.advice.measure import SiteDisagreement, inside_and_across
from unskew.decide.advice.race import ALONE, FEDAVG, POOLED, Race, at_edge
from unskew.decide.follow_up import under_fresh_seeds
from unskew.decide.pages import reading
from unskew.decide.sites import Constraints, Sites
from unskew.decide.training import ASKED, Groups
from unskew.errors import shown
from unskew.experiment import config
from unskew.experiment.config import Experiment, Method
from unskew.history import html_table
from unskew.info import WorseThanConstant
from unskew.protocol import ClientId
from unskew.report.gain import Gain, ranked
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
        gain, label = self.gain, self.check.chosen
        if self.verdict == "undecided":
            return f"Undecided: {self._open}."
        if gain is None:
            return "Train alone: no method could be trained within the limits."
        if self.verdict == "join":
            return f"Federate, with {label}: {self._measured(gain)}."
        return f"Train alone: the best method, {label}, gains only {self._measured(gain)}."

    @property
    def _open(self) -> str:
        """Why nothing is decided."""
        gain, lost, task = self.gain, {**self.check.lost, **self.race.lost}, self.sites.experiment.task
        if gain is None:
            alone = ""
            if ALONE in lost:
                large = large_target(task, self.sites.setup, FROM_ONE)
                alone = f"sites could not be trained alone: {lost[ALONE]}{large and f'; {large}'}"
            cut = self.too_little if self.check.cut else ""
            return cut or alone or self._lost or "nothing could be compared with local training"
        but = "which may be chance"
        if self.too_little:
            but = f"but {self.too_little}"
        elif self._no_use:
            constants = statistics.fmean(self.sites.constants[c] for c in self.by_site if c in self.sites.constants)
            always = f"what training rows alone would always say ({self.sites.measure.with_unit(constants)})"
            but = f"but both are worse than {always}"
        elif self._all_of_one_class:
            but = f"but {one_class_alone('every site')}"
        elif self._not_worth_it:
            but = f"but {self._lost}"
        return f"{self.check.chosen} gains {self._measured(gain)}, {but}"

    def _measured(self, gain: Gain) -> str:
        """A gain with its interval, and what that is over."""
        m, percent, over = self.sites.measure, f"{100 * self.confidence:g} %", ""
        if gain.over:
            both = f"seeds and {self._beside_seeds}, mostly " if len(self.check.seeds) > 1 else ""
            over = f" ({percent} interval over {both}{self._over(gain)})"
        unit = f" {m.points}" if m.points else f" of {m.label}"
        return f"{bracket(gain, m)}{unit} over local training{m.turned}{over}{per_test_row(gain, m)}"

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
        text += "".join(
            f" {sentence(line)}" for line in (*self._asked(), weighted_accuracy(self.sites.experiment.task, m)) if line
        )
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
        useless = {c for c in self.useless if self.by_site[c].verdict == "gains"}
        joined = {
            names[c]: dataclasses.replace(g, low=None, high=None) if c in useless else g
            for c, g in self.by_site.items()
            if c not in self.by_themselves
        }
        text = f"With {self.check.chosen}, {who_gains(joined, m, 'site')}"
        if self.by_themselves:
            text += f"; {self._named(self.by_themselves)} train on their own"
        parts = [f"{beginning(text)}."]
        if self.useless:
            parts.append(f"Worse than a constant, alone and together: {self._named(self.useless)}.")
        if self.of_one_class:
            many = len(self.of_one_class) > 1
            parts.append(f"{beginning(one_class_alone(self._named(self.of_one_class), many=many))}.")
        if too_few := {c for c, g in self.by_site.items() if g.low is None}:
            without = m.by_row is None and not m.of_rows
            why = f"{m.label} has none of a site" if without else f"there are too few {self.sites.drawn}"
            parts.append(f"No interval, as {why}: {self._named(too_few)}.")
        return " ".join(filter(None, (*parts, no_verdict(self.unjudged, m))))

    def _named(self, clients: Collection[ClientId]) -> str:
        """Sites by name, or if they are many their number."""
        names = [self.sites.names[c] for c in sorted(clients)]
        return listed(names) if len(names) <= MOST_NAMED else f"{len(names):,} sites"

    def _with_whom(self) -> str:
        names, cosines, together = self.sites.names, self.measured.cosines, [g for g in self.groups if len(g) > 1]
        text = {"alone": "With nobody." * (self.verdict == "alone"), "one model": "All together, one model."}.get(
            self.family, "All together, each site with a model of its own."
        )
        if self.groups:
            of_each = "; ".join(f"{i}: {listed([names[c] for c in g])}" for i, g in enumerate(together, 1))
            text = f"In {counted(len(together), 'group')}: {of_each}." if together else ""
            lone = [names[g[0]] for g in self.groups if len(g) == 1 and together]
            text += f" {listed(lone)} on {'its' if len(lone) == 1 else 'their'} own." if lone else ""
        if text and self.verdict == "undecided" and self.family != "alone":
            text = f"Whether with anybody is undecided; if so: {text[:1].lower()}{text[1:]}"
        if cosines is None:
            return f"{text} {sentence(self.measured.why)}".strip() if self.measured.why else text
        inside, across = inside_and_across(cosines, self.groups or (tuple(range(len(names))),))
        if inside is not None and across is not None:
            text += f" Mean cosine of updates within groups {_cosine(inside)}, across them {_cosine(across)}."
        elif inside is not None:
            mean = (cosines.sum(1) - 1) / max(len(names) - 1, 1)
            least = int(mean.argmin())
            text += f" Mean cosine of two sites' updates {_cosine(inside)}"
            text += f", least of {names[least]} ({_cosine(mean[least])})."
        return text.strip()

    def _with_what(self) -> str:
        method, race, cost = self.method, self.race, self.check.cost
        if race.chosen is None and self.verdict == "undecided":
            return ""
        local = method.options.get("local", {})
        rounds = race.rounds if cost is None else cost.rounds
        settings = (
            f"local rate {local['lr']:g}" if "lr" in local else "",
            counted(local["local_epochs"], "local epoch") if "local_epochs" in local else "",
            counted(self.sites.experiment.rounds if self.family == "alone" else rounds, "round"),
        )
        text = f"{method.label} ({', '.join(filter(None, settings))})."
        if race.chosen is None:
            return text
        text += f" {sum(bool(e.scores) for e in race.entries)} methods were tried on validation rows"
        if self.check.set_aside is not None:
            return f"{text}; {self.check.set_aside.label}, which was chosen there, is set aside."
        return f"{text}{'; as good there: ' * bool(race.close)}{listed(race.close)}."

    def _cost(self) -> str:
        cost = self.check.cost
        if cost is None:
            return ""
        # The paper's cell is the default, and nobody's wish.
        on_air = f"; {_amount(cost.seconds)} s of air time and {_amount(cost.joules)} J" * (cost.channel != "paper")
        text = (
            f"{self.check.chosen} sends {_amount(cost.megabytes)} MB in total; a site uploads "
            f"{_amount(1000 * cost.per_site)} kB per round{on_air}."
        )
        return f"Nothing if sites train alone. {text}" if self.family == "alone" else text

    def _newcomer(self) -> str:
        if not self.newcomers:
            return ""
        m, known = self.sites.measure, [n.alone for n in self.newcomers if n.alone is not None]
        served, adapted = (
            statistics.fmean(of) for of in zip(*((n.served, n.adapted) for n in self.newcomers), strict=True)
        )
        alone = f", alone {m.with_unit(statistics.fmean(known))}" if len(known) == len(self.newcomers) else ""
        how = "left out of training" if self.sites.fed.unseen is None else "to come later"
        return (
            f"{counted(len(self.newcomers), 'site')} {how}: as served {m.with_unit(served)}, after training that model "
            f"on own rows {m.with_unit(adapted)}{alone}. One seed."
        )

    def _sure(self) -> str:
        lost = [f"{label} is left out: {why}." for label, why in self.check.lost.items()]
        if self.gain is None:
            return " ".join(lost)
        n, fresh = sum(len(self.sites.fed.clients.test[c]) for c in self.by_site), len(self.check.seeds)
        of = "" if self.sites.fed.dataset.patients is None else f" of {self._tested:,} patients"
        named = sum(g.low is not None for g in self.by_site.values())
        over = f"95 % intervals over {counted(fresh, 'fresh seed')} and"
        parts = [f"{over} {n:,} test rows{of} that no choice has seen, both together."]
        if not self.sites.measure.of_rows:
            of_site = ", of a site over seeds and its test rows" * bool(named)
            rows = f"On {n:,} test rows{of} that no choice has seen"
            parts = [f"{rows}: of the mean {over} over sites together{of_site}."]
        if named > 1:
            parts.append(f"Of {named} sites about {0.05 * named:.2g} would be called better or worse by chance alone.")
        return " ".join((*parts, *lost))

    def _surer(self) -> str:
        gain, task = self.gain, self.sites.experiment.task
        if gain is None or gain.high is None:
            return ""
        if self._no_use:
            large = large_target(task, self.sites.setup, FROM_ONE)
            more = [f"models that do better than a constant{large and f'; {large}'}"]
        elif self._all_of_one_class:
            weights = "" if task.class_weights is not None else ': task.class_weights = "balanced"'
            return f"Models that find every class{weights}."
        elif self._not_worth_it and self._lost:
            more = ["methods that can be trained under every seed, as at a lower local rate"]
        else:
            more = [self._more_of(gain)]
        return sentence("; ".join([*more, *self._settings()]))

    def _more_of(self, gain: Gain) -> str:
        """Say how many more seeds, test rows or sites may decide, by the side of the interval that must shrink."""
        what = self._over(gain)
        if self.verdict != "undecided":
            return f"more {what}: they make the interval wide"
        # For *join* the lower side must not reach zero, for *alone* no upper side the margin: the nearer counts.
        join = (_times_too_wide(gain.low, gain.mean, 0.0), gain)
        upper = [(_times_too_wide(g.high, g.mean, self.margin), g) for g in (gain, self.check.gains.get(FEDAVG, gain))]
        wide, gain = min(join, max(upper, key=lambda of: of[0]), key=lambda of: of[0])
        what = self._over(gain)
        # Of the squared width of a side this part shrinks with more of it, the rest stays as it is.
        left = wide**-2 - (1 - gain.part)
        n = {self.sites.drawn: self._tested, "sites": len(self.by_site), "seeds": len(self.check.seeds)}[what]
        if left > 0 and (times := gain.part / left) <= MOST_TIMES:
            return f"more {what}: about {max(math.ceil(times * n), n + 1):,} instead of {n:,}"
        return f"many times more {what}, and of what else is drawn, or none: it may be too little to matter"

    def _settings(self) -> list[str]:
        """Say where the best local rate is the last that was tried, and where a curve still rises."""
        race, m, chosen = self.race, self.sites.measure, self.check.answering(self.race)
        entries = [e for e in (chosen, race.bounds.get(ALONE)) if e is not None]
        parts = []
        for edge, what in (("highest", "higher"), ("lowest", "lower")):
            if some := [e.method for e in entries if at_edge(e.method, self.sites) == edge]:
                rate, labels = some[0].options["local"]["lr"], listed([one.label for one in some])
                parts.append(f"{what} local rates: {rate:g}, the {edge} tried, did best for {labels}")
        rising = next((e for e in (*entries, *race.bounds.values()) if e.method.label != POOLED and e.rising(m)), None)
        if rising is not None and self.limits.rounds is None:
            parts.append(f"more rounds than {race.rounds}: {rising.method.label} was still rising on validation rows")
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
        order, most = ranked(self.by_site), 2 * SITES_SHOWN
        shown = order if len(order) <= most else [*order[:SITES_SHOWN], *order[-SITES_SHOWN:]]
        title = f"Each site alone and with {self.check.chosen}, {self.sites.measure.axis}"
        title += f"; {len(order) - most:,} in the middle are left out" * (len(order) > most)
        rows = [(self.sites.names[c], *self.site_row(c)) for c in shown]
        return f"<dl>{answers}</dl>{html_table(title, [('site', *SITE_COLUMNS), *rows]) if rows else ''}"

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
