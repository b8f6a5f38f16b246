"""The answer: whether, which sites, how and at what cost to federate, how sure that is, and an experiment."""

import dataclasses
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from unskew.decide.advice.check import CONFIDENCE_OF_TWO, Check
from unskew.decide.advice.race import ALONE, FEDAVG, POOLED, Race
from unskew.decide.follow_up import under_fresh_seeds
from unskew.decide.sites import Constraints, Sites
from unskew.decide.training import ASKED, Groups
from unskew.errors import shown
from unskew.experiment import config
from unskew.experiment.config import Experiment, NamedMethod
from unskew.protocol import ClientId
from unskew.report.page import Page, first_screen
from unskew.report.pictures import gains
from unskew.report.section import table
from unskew.report.stats import CONFIDENCE, Difference
from unskew.report.verdict import in_words
from unskew.report.worth import MOST_NAMED, READING, bracket, ranked
from unskew.run.progress import duration
from unskew.units import human_bytes
from unskew.words import counted, listed

Verdict = Literal["join", "alone", "undecided"]
Family = Literal["alone", "one model", "own models", "groups"]

WORTH = 0.01
"""Gain below which federation is not worth its cost: a point, or a hundredth of what sites have alone."""

EQUAL = 1e-9
"""Share of a constant's result by which a model may be ahead of it and still be no better: sums are rounded."""

GROUPED = ("grouped", "ifca", "flsc", "cfl", "hcct", "hcct_e", "hcct_p")
MORE_SEEDS = 5
SITE_COLUMNS = ("rows to train on", "rows tested", "alone", "with the others", "gain", "reading")
MOST_DRAWN = 40
"""Sites up to which each has a mark in the figure."""


@dataclass(frozen=True, eq=False, repr=False)
class Advice:
    """An answer and its evidence; `print` shows its sentences, a notebook the page's first screen.

    Attributes:
        sites: The sites.
        limits: Limits of a federation.
        race: How the method was chosen, on validation rows.
        check: Results on test rows under fresh seeds.
        seconds: Time it took.
    """

    sites: Sites
    limits: Constraints
    race: Race
    check: Check
    seconds: float

    # ------------------------------------------------------------------ decisions
    @property
    def gain(self) -> Difference | None:
        """The mean gain over training alone of the answer's method."""
        return self.check.wider or self.check.gains.get(self.check.chosen or "")

    @property
    def confidence(self) -> float:
        """The confidence of the interval of `gain`: above 0.95 if FedAvg replaces the race's choice."""
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
        """Verdict on whether the sites should federate; `why` has the reason."""
        return self._decision[0]

    @property
    def why(self) -> str:
        """Reason for the verdict, unless it is the interval of the gain."""
        return self._decision[1]

    @cached_property
    def _decision(self) -> tuple[Verdict, str]:
        """The verdict and its reason.

        Training alone is advised only if FedAvg, which no race has chosen, is not worth it either, and neither method
        was lost; or if nothing fits the limits.
        """
        gain, lost = self.gain, self._lost
        if gain is None:
            untrained = self.race.chosen is None and ALONE in self.check.results
            if untrained and self.limits != Constraints():
                return "alone", "no method could be trained within the limits"
            return "undecided", self.too_little or lost or "nothing could be compared with training alone"
        if self.too_little:
            return "undecided", self.too_little
        if all(ahead and statistics.fmean(ahead.values()) <= EQUAL for ahead in self._over_constant):
            return "undecided", "models are no better than what training rows alone would always say"
        fedavg = self.check.wider or self.check.gains.get(FEDAVG, gain)
        not_worth_it = all(g.high is not None and g.high < self.margin for g in (gain, fedavg))
        joins = gain.low is not None and gain.low > 0 and not not_worth_it
        if not_worth_it:
            return ("undecided", lost) if lost else ("alone", "")
        return ("join" if joins else "undecided"), ""

    @property
    def too_little(self) -> str:
        """Why one seed decides nothing; empty with more."""
        return "one seed is too few; give it two fresh seeds or more" if len(self.check.seeds) == 1 else ""

    @property
    def _lost(self) -> str:
        """Trainings that could not be had, and why; empty if all could."""
        chosen, lost = self.race.chosen, {**self.race.lost, **self.check.lost}
        if self.limits.megabytes is not None:  # that it sends too much is known
            lost = {**lost, FEDAVG: self.check.lost.get(FEDAVG, "")}
        labels = dict.fromkeys((*([] if chosen is None else [chosen.method.label]), FEDAVG, ALONE))
        return "; ".join(f"{label} could not be trained {lost[label]}" for label in labels if lost.get(label))

    @cached_property
    def useless(self) -> frozenset[ClientId]:
        """Sites whose models, alone and with the answer's method, are both no better than a constant."""
        return frozenset(c for c in self.by_site if all(ahead.get(c, 1.0) <= EQUAL for ahead in self._over_constant))

    @cached_property
    def _over_constant(self) -> tuple[dict[ClientId, float], ...]:
        """Leads of sites alone, and with the method of the answer, ahead of what their rows would always say."""
        sign, constants = 1.0 if self.sites.measure.higher else -1.0, self.sites.constants
        results = (self.check.results.get(label, ()) for label in (ALONE, self.check.chosen or ""))
        every = ({c: [s.values[c] for s in scores if c in s.values] for c in constants} for scores in results)
        return tuple(
            {c: sign * (statistics.fmean(v) - constants[c]) / (abs(constants[c]) or 1.0) for c, v in site.items() if v}
            for site in every
        )

    @property
    def method(self) -> NamedMethod:
        """The recommended method: the answer's, unless sites are better off alone."""
        chosen = self.check.answering(self.race)
        if self.verdict == "alone" or chosen is None:
            bound = self.race.bounds.get(ALONE)
            return config.method("independent", {}, ALONE) if bound is None else bound.method
        return chosen.method

    @property
    def cost(self) -> dict[str, Any] | None:
        """Rounds of one training, 10^6 bytes sent by all, and by a site in a round it takes part in."""
        done = self.check.training
        if done is None:
            return None
        per_site = done.up / 1e6 / max(done.at, 1) / self.sites.experiment.cohort(self.sites.fed.num_clients)
        return {"rounds": done.at, "megabytes": done.sent / 1e6, "per_site": per_site}

    @property
    def family(self) -> Family:
        """The kind of the recommended method."""
        name = self.method.name.partition("+")[0]
        if name in ("independent", *GROUPED):
            return "groups" if name in GROUPED else "alone"
        return "own models" if self.method.kind == "personal" else "one model"

    @property
    def groups(self) -> Groups:
        """Groups of the recommended method, by site number; empty if all train together or alone."""
        return self.check.groups if self.family == "groups" else ()

    @cached_property
    def by_site(self) -> dict[ClientId, Difference]:
        """Each site's gain with the chosen method."""
        return dict(self.check.by_site.get(self.check.chosen or "", {}))

    @property
    def unjudged(self) -> tuple[str, ...]:
        """Sites without a measurable result, for example without test rows."""
        return tuple(name for c, name in enumerate(self.sites.names) if self.by_site and c not in self.by_site)

    @cached_property
    def unseen(self) -> dict[str, tuple[float, float]]:
        """The headline of each site that came after training, as served and once adapted, under the first seed."""
        later, training = self.sites.fed.unseen, self.check.training
        if later is None or training is None:
            return {}
        names = later.client_names or tuple(f"unseen {k}" for k in range(later.num_clients))
        return {names[k]: of for k, of in training.unseen.items()}

    @property
    def by_themselves(self) -> frozenset[ClientId]:
        """Sites that train alone under the chosen method."""
        return frozenset(g[0] for g in self.check.groups if len(g) == 1)

    def reading(self, c: ClientId) -> str:
        """A site's gain in few words."""
        if c in self.by_themselves:
            return "by itself"
        return "no better than a constant" if c in self.useless else READING[self.by_site[c].verdict]

    # ------------------------------------------------------------------ words
    @property
    def headline(self) -> str:
        """The answer in a sentence."""
        label, gain, why = self.check.chosen, "", self.why
        if self.gain is not None:
            m = self.sites.measure
            gain = f"{label} {in_words(self.gain, m, self.confidence)} over training alone{m.turned}"
        answer = {"join": "Federate", "alone": "Train alone", "undecided": "Undecided"}[self.verdict]
        return f"{answer}: {'; '.join(filter(None, (gain, why)))}."

    @property
    def warnings(self) -> list[str]:
        """What a reader must not miss: a choice that test rows overruled, and trainings that failed."""
        aside = self.check.set_aside
        text = "{}, chosen on validation rows, did not hold up on test rows; FedAvg stands in for it."
        lost = [f"{label} is left out: {why}." for label, why in self.check.lost.items()]
        return [*([] if aside is None else [text.format(aside.label)]), *lost]

    def sentences(self) -> tuple[tuple[str, str], ...]:
        """Questions and answers, in reading order."""
        check, race, gain, m, cost = self.check, self.race, self.gain, self.sites.measure, self.cost
        drawn, aside = self.sites.drawn if m.of_rows else "sites", check.set_aside
        local = self.method.options.get("local", {})
        federated = race.rounds if cost is None else cost["rounds"]
        settings = [f"local rate {local['lr']:g}"] if "lr" in local else []
        epochs = local.get("local_epochs")
        settings += [f"{epochs:g} local epoch{'s' * (epochs != 1)}"] if epochs is not None else []
        settings += [counted(self.sites.experiment.rounds if self.family == "alone" else federated, "round")]
        known = race.chosen is not None or self.verdict != "undecided"
        came = [m.with_unit(statistics.fmean(v)) for v in zip(*self.unseen.values(), strict=True)]
        tested, seeds = sum(len(self.sites.fed.clients.test[c]) for c in self.by_site), len(check.seeds)
        asked: tuple[tuple[str, Sequence[object]], ...] = (
            ("Is it worth it?", (self.headline, *self.warnings)),
            ("How good are they?", tuple(self._levels())),
            ("Which sites benefit?", (self._for_whom(),)),
            ("Who should train with whom?", (self._with_whom(),)),
            ("Which method and settings?", (
                known and f"{self.method.label} ({', '.join(settings)}).",
                known and race.close and not aside and f"As good on validation rows: {listed(race.close)}.")),
            ("What does it cost?", (
                cost and f"{check.chosen} sends {human_bytes(1e6 * cost['megabytes'])} in all, a site "
                f"{human_bytes(1e6 * cost['per_site'])} a round.",)),
            ("What about a new site?", (
                f"{counted(len(self.unseen), 'unseen site')}, one seed: as served {came[0]}, once adapted {came[1]}."
                if came else "unskew leave-one-out measures it for each of these sites.",)),
            ("How certain is this?", (
                gain and f"{100 * self.confidence:g} % intervals over {counted(seeds, 'fresh seed')} and {drawn}; no "
                f"choice has seen these {tested:,} rows.",)),
            ("What would help?", (
                gain and gain.high is not None
                and f"More {'seeds' if gain.over == 'seeds' else drawn} would narrow the interval.",)),
        )  # fmt: skip
        return tuple((question, " ".join(str(p) for p in parts if p)) for question, parts in asked if any(parts))

    def _levels(self) -> Iterator[str]:
        """The means of each training by the headline and by the metrics that were asked for."""
        for i, m in enumerate(self.sites.setup.task.measures):
            levels = {
                label: statistics.fmean(s.asked.get(m.name, math.nan) if i else s.mean for s in scores)
                for label, scores in self.check.results.items()
                if i == 0 or i >= ASKED
            }
            known = [f"{label} {m.with_unit(level)}" for label, level in levels.items() if not math.isnan(level)]
            if known:
                yield f"Mean {m.label} on test rows: {', '.join(known)}."

    def _for_whom(self) -> str:
        if not self.by_site or self.too_little:
            return self.too_little and f"No verdict on any site: {self.too_little}."
        readings: dict[str, list[str]] = {}
        for c in ranked(self.by_site):
            readings.setdefault(self.reading(c), []).append(self.sites.names[c])
        some = {
            w: listed(names) if len(names) <= MOST_NAMED else f"{len(names):,} sites" for w, names in readings.items()
        }
        parts = [f"{words} {names}" for words, names in some.items()]
        parts += [f"not measurable {listed(self.unjudged)}"] if self.unjudged else []
        return f"With {self.check.chosen}: {'; '.join(parts)}."

    def _with_whom(self) -> str:
        if self.family == "alone":
            return "With nobody." if self.verdict == "alone" else ""
        groups = "; ".join(listed([self.sites.names[c] for c in g]) for g in self.groups)
        text = {"one model": "all together, one model", "own models": "all together, each site with a model of its own"}
        how = text.get(self.family, f"in groups: {groups}")
        return f"If at all, {how}." if self.verdict == "undecided" else f"{how[0].upper()}{how[1:]}."

    def to_json(self) -> dict[str, Any]:
        """The answer as JSON."""
        names = self.sites.names
        return {
            "verdict": self.verdict,
            "method": self.method.label,
            "family": self.family,
            "gain": None if self.gain is None else dataclasses.asdict(self.gain),
            "confidence": self.confidence,
            "set_aside": None if self.check.set_aside is None else dataclasses.asdict(self.check.set_aside),
            "sites": {names[c]: dataclasses.asdict(g) for c, g in self.by_site.items()},
            "no_verdict": list(self.unjudged),
            "no_better_than_constant": [names[c] for c in sorted(self.useless)],
            "groups": [[names[c] for c in g] for g in self.groups],
            "cost": self.cost,
            "unseen": self.unseen,
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

    @property
    def screen(self) -> Page:
        """The first screen of its page: the verdict, two pictures of gains, and the other answers."""
        sites, m, order = self.sites, self.sites.measure, ranked(self.by_site)
        by_site = {sites.names[c]: self.by_site[c] for c in order if len(order) <= MOST_DRAWN}
        answers = self.sentences()[1:]
        drawn = gains("Gain over training alone", self.check.gains, m), gains("Gain of each site", by_site, m)
        return Page(
            f"{sites.experiment.name}: should they train together?",
            f"{sites.fed.num_clients} sites of {sites.setup.dataset.name}, {sites.experiment.task.model}, "
            f"{self.race.rounds} rounds; {sites.clock.rounds:,} rounds of training in {duration(self.seconds)}",
            self.headline,
            list(filter(None, drawn)),
            table("", ["question", "answer"], answers, words=[-1]) if answers else None,
            self.warnings,
        )

    def _repr_html_(self) -> str:
        return first_screen(self.screen)

    def site_row(self, c: ClientId) -> tuple[str, ...]:
        """A site's row in a table: a cell for each of `SITE_COLUMNS`."""
        m, fed = self.sites.measure, self.sites.fed.clients
        alone, joined = (self.check.results[label] for label in (ALONE, self.check.chosen or ""))
        sizes = (f"{len(fed.train[c]):,}", f"{len(fed.test[c]):,}")
        means = [m.show(statistics.fmean(s.values[c] for s in scores)) for scores in (alone, joined)]
        return (*sizes, *means, bracket(self.by_site[c], m), self.reading(c))

    # ------------------------------------------------------------------ the experiment
    def experiment(self) -> Experiment:
        """The recommended experiment, with the bounds, under unused seeds."""
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
        advised = dataclasses.replace(
            asked,
            name=advised_name(asked),
            methods=tuple(by_label[label] for label in labels if label in by_label),
            rounds=rounds,
            stop=dataclasses.replace(asked.stop, megabytes=most or asked.stop.megabytes),
            val_fraction=0.0,
            until=None,
        )
        if advised.baseline is not None and len(advised.compared) > 1:  # what a rule for adding seeds compares
            advised = dataclasses.replace(advised, until=asked.until)
        return under_fresh_seeds(advised, max(seeds) + 1, MORE_SEEDS)


def advised_name(asked: Experiment) -> str:
    """The name of the recommended experiment."""
    return f"{asked.name}, as advised"


def _longer(method: NamedMethod, factor: float) -> NamedMethod:
    """The method with so many times the local work in a round."""
    local = dict(method.options["local"])
    unit = "local_steps" if "local_steps" in local else "local_epochs"
    local[unit] = math.ceil(factor * local.get(unit, 1))
    return config.method(method.name, {**method.options, "local": local}, method.label)
