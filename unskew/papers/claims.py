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
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
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


def over_seeds(
    method: str, setting: str, metric: str, values: Sequence[float], paper: float | None = None, note: str = ""
) -> Row:
    """A row with the mean and spread of one value for each seed; the note is on seeds that have none."""
    spread, mean, note = Spread(tuple(values)), fmean(values) if values else None, note or "no value" * (not values)
    return Row(method, setting, metric, paper, mean, spread.std, "seeds", spread.values, note)


@dataclass(frozen=True)
class Claim:
    """A claim and its evidence.

    Attributes:
        holds: None if it is undecided.
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
            return f"{FAILS}: level within {100 * LEVEL:g} points"
        return {True: HOLDS, False: FAILS, None: OPEN}[self.holds]

    def __str__(self) -> str:
        return f"[{self.verdict}] {self.text}: {self.evidence}"


def without_defaults(card: Row | Claim) -> dict[str, Any]:
    """The fields of a row or a claim that are not at their defaults."""
    return {f.name: value for f in fields(card) if (value := getattr(card, f.name)) != f.default}


def counted(verdicts: Iterable[str]) -> Counter[str]:
    """How often each verdict was reached, whatever follows its colon."""
    return Counter(verdict.partition(":")[0] for verdict in verdicts)


def paired(these: Sequence[float], those: Sequence[float]) -> list[float]:
    """Differences seed by seed; empty if one of the two has no values because it diverged."""
    return [a - b for a, b in zip(these, those, strict=True)] if these and those else []


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
    n = len(differences)
    constant = n > 1 and max(differences) - min(differences) < 1e-12  # but for rounding
    bounds = None if constant else stats.interval(differences, confidence, sequential)
    low, high = bounds or (-math.inf, math.inf)
    if constant and (counts or within is not None or differences[0] == least):
        low = high = differences[0]
    level = within is None and unit == POINTS and not least and -LEVEL < low <= 0 <= high < LEVEL
    if within is None:
        holds = True if low > least else False if high <= least or level else None
    else:
        holds = True if -within <= low and high <= within else False if low > within or high < -within else None
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


def every(text: str, steps: Mapping[str, Sequence[float]], **how: Any) -> Claim:
    """The claim that several paired differences are all above zero, or as further arguments of `decide` have it.

    It holds if every 95 % interval is.  It does not hold if one lies on the other side, widened for their number
    (Bonferroni).  Differences that do not vary decide by themselves.  The evidence is the worst that decides.
    """
    if not steps:
        return Claim(text, None, "nothing to compare")
    how, within, n = {**how, "counts": True}, how.get("within"), len(steps)
    single, wide = ({name: decide(text, apart, **how, confidence=1.0 - (1.0 - CONFIDENCE) / of)
                     for name, apart in steps.items()} for of in (1, n))  # fmt: skip
    wrong = [name for name, claim in wide.items() if claim.holds is False]
    open_ = [name for name, claim in single.items() if not claim.holds]

    means = {name: fmean(apart) if len(apart) > 1 else math.inf for name, apart in steps.items()}
    worst = min(wrong or open_ or steps, key=lambda name: means[name] if within is None else -abs(means[name]))
    evidence = f"{worst}: {single[worst].evidence}"
    if n > 1:
        ends = ", ".join(f"{end:{how.get('form', '+.2f')}}" for end in wide[worst].interval or ())
        evidence += f", [{ends}] for {n} comparisons" if ends else ""
        evidence += f"; the {'smallest' if within is None else 'largest'} of {n}"
        evidence += f", {len(wrong)} refuted" * bool(wrong)
    return Claim(text, False if wrong else None if open_ else True, evidence, seeds=single[worst].seeds)


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
        above, below: Patterns of the methods' labels; the first may repeat the second as {below}.  Without the second
            it is about the number of one method in place of a difference.
        metric: What is compared, where {headline} is the task's measure; by default that of the global model.
        against: The metric of the second, where it is another.
        where: Pattern of the runs of the first.
        base: Pattern of the runs of the second, where it is not the same; may have {ground}.
        better: The first's is to be the better number: the smaller one where that is better.
        beyond: The difference is to be greater than this.
        within: In place of above: the difference must be within this of zero.
        share: The difference is a share of the first's number; of one method, it is that from its published number.
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
    better: bool = False
    beyond: float = 0.0
    within: Annotated[float, Gt(0.0)] | None = None
    share: bool = False
    published: bool = False
    unit: str = POINTS
    factor: float = 100.0
    form: str = "+.2f"

    def pairs(self, rows: Sequence[Row], where: str) -> Iterator[tuple[Row, Row]]:
        """The rows that it compares, of which the first is of this run; twice the same if it is about one method."""
        base = self.base.format(ground=where.partition(", ")[0]) or where
        first = [r for r in rows if (r.setting, r.metric) == (where, self.metric) and fits(where, self.where)]
        second = [r for r in rows if r.metric == (self.against or self.metric) and fits(r.setting, base)]
        others = [(a, b) for a, b in itertools.product(first, second) if a is not b and fits(b.method, self.below)]
        for a, b in others if self.below else zip(first, first, strict=True):
            claimed = not self.published or (self.gain(a, b) or 0.0) > 0
            if claimed and fits(a.method, self.above.format(below=b.method)):
                yield a, b

    def gain(self, a: Row, b: Row) -> float | None:
        """What was published: the difference of two rows, as from `differences`, or one method's number."""
        if a.paper is None or b.paper is None:
            return None
        return self.differences([a.paper], [b.paper])[0] if self.below else a.paper

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
        for few, many in (sorted((len(a.seeds), len(b.seeds))) for a, b in pairs):
            if 0 < few < many:
                return Claim(text, None, f"in {few} of {many} seeds alone")
        apart = [self.differences(a.seeds, b.seeds, self.gain(a, b)) for a, b in pairs]
        if len(pairs) == 1:
            published = self.gain(*pairs[0]) if self.below and self.within is None else None
            return decide(text, apart[0], published=published, sequential=sequential, **self.rule)
        names = [(a.method, b.method, *(row.setting.rpartition(", ")[2] for row in (a, b))) for a, b in pairs]
        vary = [i for i, of in enumerate(zip(*names, strict=True)) if len(set(of)) > 1]
        labels = [", ".join(dict.fromkeys(each[i] for i in vary)) for each in names]
        if len(set(labels)) < len(pairs):  # settings of one name on several grounds
            labels = [f"{a.method} ({a.setting}), {b.method} ({b.setting})" for a, b in pairs]
        return every(text, dict(zip(labels, apart, strict=True)), sequential=sequential, **self.rule)

    def differences(
        self, these: Sequence[float], those: Sequence[float], published: float | None = None
    ) -> list[float]:
        """What is decided, seed by seed: differences, or one method's numbers or their distance from the published."""
        if not self.below:
            return [v / published - 1.0 for v in these if published] if self.share else list(these)
        apart = paired(those, these) if self.better else paired(these, those)
        return [d / a for d, a in zip(apart, these, strict=bool(apart))] if self.share else apart

    @property
    def rule(self) -> dict[str, Any]:
        """How the differences are decided and shown: further arguments of `decide`."""
        within = None if self.within is None else self.within / self.factor
        margins = {"within": within, "least": self.beyond / self.factor, "counts": not self.below}
        return {"unit": self.unit, "factor": self.factor, "form": self.form, **margins}


def fits(name: str, patterns: str) -> bool:
    """True if a name fits one of the patterns between |."""
    return any(fnmatchcase(name, pattern) for pattern in patterns.split("|"))
