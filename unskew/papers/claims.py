"""Claims, decided by paired differences over seeds.

A claim that one number is above another holds if Student's 95 % interval lies above zero, and does not hold if it lies
below.  It does not hold either if the interval has zero in it but lies within LEVEL of zero: the two are *level*. All
else is undecided.  "Level" is a pair of one-sided tests of equivalence, at 2.5 % each, so that the printed interval
decides all verdicts.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import partial
from statistics import fmean
from typing import Annotated, Any, Literal, Self

from annotated_types import Gt

from unskew.report import stats
from unskew.report.stats import CONFIDENCE, Spread
from unskew.tasks.measure import Measure

SAME = 0.01
"""Two errors are called equal if the interval of their difference lies within one point of zero."""

LEVEL = 0.005
"""Differences of accuracies or errors that matter to nobody: below half a point, as in `seeds = { until = 0.5 }`."""

LEVEL_WORDS = f"level within {100 * LEVEL:g} points"

POINTS = "points"
"""Unit of the differences that LEVEL is about."""

HOLDS, FAILS, OPEN = VERDICTS = ("holds", "does not hold", "undecided")


# ---------------------------------------------------------------- numbers, and claims about them
@dataclass(frozen=True)
class Row:
    """One number.

    Attributes:
        paper: The published value; None if nothing was published.
        ours: Mean over seeds (or clients); None if there is none, and `note` says why.
        std: Spread over `spread_over`; None for fewer than two values.
        seeds: The value of each seed.
        note: Reason for missing values, such as "diverged in seed 1, round 3"; empty if there are all.
    """

    method: str
    setting: str
    metric: str
    paper: float | None
    ours: float | None
    std: float | None
    spread_over: Literal["seeds", "clients"]
    seeds: tuple[float, ...]
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """The row as `reproduce --json` prints it; `note` only without a value."""
        return {name: value for name, value in asdict(self).items() if name != "note" or value}


def over_seeds(method: str, setting: str, metric: str, values: Sequence[float], paper: float | None = None) -> Row:
    """A row with the mean and spread of one value for each seed."""
    spread, mean = Spread(tuple(values)), fmean(values) if values else None
    return Row(method, setting, metric, paper, mean, spread.std, "seeds", spread.values, "" if values else "no value")


@dataclass(frozen=True)
class Claim:
    """A claim and its evidence.

    Attributes:
        level: It does not hold because the two numbers it compares are level.
        seeds: Number of seeds behind it; 0 if it is not about seeds.
        interval: That of the difference, as the evidence shows it.
        published: The paper's difference, likewise.
    """

    text: str
    holds: bool | None
    evidence: str
    level: bool = False
    seeds: int = 0
    interval: Sequence[float] | None = None
    published: float | None = None

    @property
    def verdict(self) -> str:
        """holds, does not hold (level, if that is why), or undecided."""
        if self.level:
            return f"does not hold: {LEVEL_WORDS}"
        return {True: "holds", False: "does not hold", None: "undecided"}[self.holds]

    def __str__(self) -> str:
        return f"[{self.verdict}] {self.text}: {self.evidence}"

    @property
    def less(self) -> bool:
        """True if the paper's difference lies above the interval."""
        return self.interval is not None and self.published is not None and self.interval[1] < self.published

    def to_json(self) -> dict[str, Any]:
        """The claim as `reproduce --json` prints it; fields at their defaults are left out."""
        card = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}
        return {**card, "holds": "undecided" if self.holds is None else self.holds}

    @classmethod
    def of_json(cls, card: Mapping[str, Any]) -> Self:
        """The claim that was printed."""
        return cls(**{**card, "holds": None if card["holds"] == "undecided" else card["holds"]})


def counted(verdicts: Iterable[str]) -> Counter[str]:
    """How often each verdict was reached, whatever follows its colon."""
    return Counter(verdict.partition(":")[0] for verdict in verdicts)


def paired(these: Sequence[float], those: Sequence[float], margin: float = 0.0) -> list[float]:
    """Differences seed by seed, less a margin; empty if one of the two has no values because it diverged."""
    if not these or not those:
        return []
    return [a - b - margin for a, b in zip(these, those, strict=True)]


def interval(
    differences: Sequence[float], level: float = CONFIDENCE, sequential: bool = False
) -> tuple[float, float, float] | None:
    """Mean and interval of paired differences, as from `stats.interval`; None for too few, or if they do not vary."""
    bounds = stats.interval(differences, level, sequential)
    return None if bounds is None or bounds[0] == bounds[1] else (fmean(differences), *bounds)


def decide(
    text: str,
    differences: Sequence[float],
    unit: str = POINTS,
    factor: float = 100.0,
    form: str = "+.2f",
    published: float | None = None,
    sequential: bool = False,
    within: float | None = None,
    least: float = 0.0,
    counts: bool = False,
    confidence: float = CONFIDENCE,
) -> Claim:
    """The claim that the paired differences are above zero, or another number, or within a margin of zero.

    Args:
        text: The claim.
        differences: One for each seed.  All zero they are not above it; all equal they say nothing else.
        unit, factor, form: The evidence shows the differences times `factor`, formatted by `form`.  Points may be
            level.
        published: The paper's difference; the evidence says if the interval excludes it.
        sequential: Use a confidence sequence, as seeds were added until the claim was decided.
        within: The margin: the interval must lie within it.
        least: The number that they are to be above.
        counts: Differences that are all equal decide, as those of counts may be; within a margin they do anyway.
        confidence: Level of the interval.
    """
    bounds, n = interval(differences, confidence, sequential), len(differences)
    constant = n > 1 and max(differences) - min(differences) < 1e-12  # but for rounding
    low, high = -math.inf, math.inf
    if bounds is not None:
        _, low, high = bounds
    elif constant and (counts or within is not None or differences[0] == least):
        low = high = differences[0]
    if within is not None:
        level = False
        holds = True if -within <= low and high <= within else False if low > within or high < -within else None
    else:
        level = unit == POINTS and not least and -LEVEL < low <= 0 <= high < LEVEL
        holds = True if low > least else False if high <= least or level else None
    evidence, shown = f"{factor * fmean(differences):{form}} {unit}" if n else "no interval", None
    if bounds is not None:
        shown = factor * low, factor * high
        name = "confidence sequence" if sequential else "interval"
        evidence += f", {100 * confidence:.4g} % {name} [{shown[0]:{form}}, {shown[1]:{form}}] over {n} seeds"
    elif n:
        evidence += f" in {'each of ' if constant else ''}{n} seed{'s' * (n > 1)}, no interval"
    if within is not None:
        evidence += f", {factor * within:g} allowed"
    if published is not None:
        evidence += f"; published {factor * published:{form}}"
        evidence += "" if bounds is None else ", within" if low <= published <= high else ", excluded"
    return Claim(text, holds, evidence, level, n, shown, None if published is None else factor * published)


def every(
    text: str,
    steps: Mapping[str, Sequence[float]],
    within: float | None = None,
    least: float = 0.0,
    sequential: bool = False,
) -> Claim:
    """The claim that several paired differences are all above zero, or another number, or all within a margin of zero.

    It holds if every 95 % interval is.  It does not hold if one lies on the other side, widened for their number
    (Bonferroni).  Differences that do not vary decide by themselves.  The evidence is the worst that decides.
    """
    single = partial(decide, within=within, least=least, sequential=sequential, counts=True)
    widened = partial(single, confidence=1.0 - (1.0 - CONFIDENCE) / max(len(steps), 1))
    each, wide = ({name: of(name, apart) for name, apart in steps.items()} for of in (single, widened))
    wrong = [name for name, claim in wide.items() if claim.holds is False]
    open_ = [name for name, claim in each.items() if not claim.holds]
    if not steps:
        return Claim(text, None, "nothing to compare")

    def room(name: str) -> float:
        mean = fmean(steps[name]) if len(steps[name]) > 1 else math.inf
        return mean if within is None else within - abs(mean)

    worst = min(wrong or open_ or steps, key=room)
    evidence = f"{worst}: {each[worst].evidence}"
    if len(steps) > 1:
        bounds = wide[worst].interval
        evidence += "" if bounds is None else f", [{bounds[0]:+.2f}, {bounds[1]:+.2f}] for {len(steps)} comparisons"
        evidence += f"; the {'smallest' if within is None else 'largest'} of {len(steps)}"
        evidence += f", {len(wrong)} refuted" * bool(wrong)
    return Claim(text, False if wrong else None if open_ else True, evidence, seeds=each[worst].seeds)


# ---------------------------------------------------------------- claims as data
@dataclass(frozen=True)
class Comparison:
    """The claim that one method's number is above another's, seed by seed, or with `within` that they are level.

    Pairs that it puts in the same words are one claim about all of them (`every`).  A pattern is names between |, in
    which * matches any part.

    Attributes:
        text: The claim, where {above}, {below} and {where} stand for the two methods and the first's run, {ground} and
            {setting} for the first and the last part of its name, {base} for the second's, {paper} for the published
            number of the first.
        above, below: Patterns of the methods' labels; the first may repeat the second as {below}.
        metric: What is compared, where {headline} is the task's measure; by default that of the global model.
        against: The metric of the second, where it is another.
        where: Pattern of the runs of the first.
        base: Pattern of the runs of the second, where it is not the same; may have {ground}.
        over: In place of a second method: a number that the first's is to be above.
        near: In place of a second method: the share of its published number that the first's is to be within.
        better: The first's is to be the better number: the smaller one where that is better.
        beyond: The difference is to be greater than this.
        within: In place of above: the difference must be within this of zero.
        share: The difference is a share of the first's number.
        published: It is claimed only where the paper has the first above the second.
        unit, factor, form: How a difference is shown, where the metric is no measure of models.
    """

    text: str
    above: str
    below: str = "*"
    metric: str = "global.{headline}"
    against: str = ""
    where: str = "*"
    base: str = ""
    over: float | None = None
    near: Annotated[float, Gt(0.0)] | None = None
    better: bool = False
    beyond: float = 0.0
    within: Annotated[float, Gt(0.0)] | None = None
    share: bool = False
    published: bool = False
    unit: str = POINTS
    factor: float = 100.0
    form: str = "+.2f"

    @property
    def alone(self) -> bool:
        """True if it is about one method."""
        return self.over is not None or self.near is not None

    def pairs(self, rows: Sequence[Row], where: str) -> Iterator[tuple[Row, Row]]:
        """The rows that it compares, of which the first is of this run; twice the same if it is about one method."""
        ground = where.partition(", ")[0]
        first = [r for r in rows if (r.setting, r.metric) == (where, self.metric) and fits(where, self.where)]
        if self.alone:
            yield from ((r, r) for r in first if fits(r.method, self.above))
            return
        base = self.base.format(ground=ground) or where
        second = [r for r in rows if r.metric == (self.against or self.metric) and fits(r.setting, base)]
        for a, b in itertools.product(first, second):
            another = (a.method, a.metric, a.setting) != (b.method, b.metric, b.setting)
            named = fits(b.method, self.below) and fits(a.method, self.above.format(below=b.method))
            if another and named and (not self.published or (published_gain(a, b) or 0.0) > 0):
                yield a, b

    def about(self, measures: Sequence[Measure]) -> Self:
        """The claim about a task with these measures, the headline first; `better` stays where less is better."""
        metric, against = (name.format(headline=measures[0].name) for name in (self.metric, self.against))
        shown = next((m for m in measures if m.name in metric.split(".")), None)
        if shown is None:  # such as bytes.up
            return replace(self, metric=metric, against=against, better=False)
        form = "+.3f" if shown.bounded and not shown.percent else self.form
        better, unit = self.better and not shown.higher, POINTS if shown.percent else shown.label
        return replace(self, metric=metric, against=against, better=better, unit=unit, factor=shown.scale, form=form)

    def said(self, a: Row, b: Row) -> str:
        """Its text for two rows."""
        ground, setting = a.setting.partition(", ")[0], a.setting.partition(":")[0].rpartition(", ")[2]
        names = {"above": a.method, "below": b.method, "where": a.setting, "base": b.setting, "paper": a.paper}
        return self.text.format(ground=ground, setting=setting, **names)

    def of(self, text: str, pairs: Sequence[tuple[Row, Row]], sequential: bool = False) -> Claim:
        """The claim about pairs that have the same text; undecided where seeds cannot be paired."""
        if lacking := [row for pair in pairs for row in pair if row.note and row.seeds]:
            return Claim(text, None, f"{lacking[0].method} is {lacking[0].note}")
        if len(pairs) == 1:
            ((a, b),) = pairs
            gain = a.paper if self.alone else published_gain(a, b)
            return self.claim(text, a.seeds, b.seeds, gain, sequential)
        parts = [(a.method, b.method, a.setting.rpartition(", ")[2]) for a, b in pairs]
        vary = [i for i, of in enumerate(zip(*parts, strict=True)) if len(set(of)) > 1 and (i != 1 or not self.base)]
        steps = {
            ", ".join(names[i] for i in vary): self.differences(a.seeds, b.seeds, a.paper)
            for names, (a, b) in zip(parts, pairs, strict=True)
        }
        return every(text, steps, self.margin, self.over or 0.0, sequential)

    @property
    def margin(self) -> float | None:
        """Margin of zero that the differences are to be within; None for no margin."""
        return self.near if self.near is not None else None if self.within is None else self.within / self.factor

    def differences(self, these: Sequence[float], those: Sequence[float], published: float | None) -> list[float]:
        """What is to be above zero, or above `over`, or within a margin, seed by seed; `published` is the first's."""
        if self.over is not None:
            return list(these)
        if self.near is not None:
            return [v / published - 1.0 for v in these] if published else []
        if self.better:
            these, those = those, these
        apart = paired(these, those, self.beyond / self.factor)
        return [d / a for d, a in zip(apart, these, strict=bool(apart))] if self.share else apart

    def claim(
        self,
        text: str,
        these: Sequence[float],
        those: Sequence[float],
        published: float | None = None,
        sequential: bool = False,
    ) -> Claim:
        """The claim decided by the methods' values, one for each seed; `published` is their difference.

        Where it is about one method, that is the published number.
        """
        if these and those and len(these) != len(those) and not self.alone:
            return Claim(text, None, f"in {min(len(these), len(those))} of {max(len(these), len(those))} seeds alone")
        apart = self.differences(these, those, published)
        how = partial(decide, text, apart, within=self.margin, sequential=sequential)
        if self.near is not None:
            return how("%", form="+.1f")
        if self.over is not None:
            return how(self.unit, self.factor, self.form, least=self.over, counts=True)
        gain = -published if self.better and published is not None else published
        return how(self.unit, self.factor, self.form, gain if self.within is None else None)


def fits(name: str, patterns: str) -> bool:
    """True if a name fits one of the patterns between |."""
    return any(fnmatchcase(name, pattern) for pattern in patterns.split("|"))


def published_gain(a: Row, b: Row) -> float | None:
    """The published difference."""
    return None if a.paper is None or b.paper is None else a.paper - b.paper
