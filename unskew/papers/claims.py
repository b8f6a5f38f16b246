"""Claims, decided by paired differences over seeds.

A claim that one number is above another holds if Student's 95 % interval lies above zero, and does not hold if it lies
below.  It does not hold either if the interval has zero in it but lies within LEVEL of zero: the two are *level*. All
else is undecided.  "Level" is a pair of one-sided tests of equivalence, at 2.5 % each, so that the printed interval
decides all verdicts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Annotated, Any

from annotated_types import Gt

from unskew.report import stats
from unskew.report.stats import CONFIDENCE

SAME = 0.01
"""Two errors are called equal if the interval of their difference lies within one point of zero."""

LEVEL = 0.005
"""Differences of accuracies or errors that matter to nobody: below half a point, as in `seeds = { until = 0.5 }`."""

LEVEL_WORDS = f"level within {100 * LEVEL:g} points"

POINTS = "points"
"""Unit of the differences that LEVEL is about."""


@dataclass(frozen=True)
class Claim:
    """A claim and its evidence.

    Attributes:
        level: It does not hold because the two numbers it compares are level.
    """

    text: str
    holds: bool | None
    evidence: str
    level: bool = False

    @property
    def verdict(self) -> str:
        """holds, does not hold (level, if that is why), or undecided."""
        if self.level:
            return f"does not hold: {LEVEL_WORDS}"
        return {True: "holds", False: "does not hold", None: "undecided"}[self.holds]

    def to_json(self) -> dict[str, Any]:
        """The claim as `reproduce --json` prints it; `level` only if true."""
        card = {"text": self.text, "holds": "undecided" if self.holds is None else self.holds}
        return {**card, "evidence": self.evidence, **({"level": True} if self.level else {})}


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
) -> Claim:
    """The claim that the paired differences are above zero.

    Args:
        text: The claim.
        differences: One for each seed.  If all are zero, the claim does not hold.
        unit, factor, form: The evidence shows the differences times `factor`, formatted by `form`.  Points may be
            level.
        published: The paper's difference; the evidence says if the interval excludes it.
        sequential: Use a confidence sequence, as seeds were added until the claim was decided.
    """
    bounds, n = interval(differences, sequential=sequential), len(differences)
    printed = "" if published is None else f"{PUBLISHED}{factor * published:{form}}"
    if not n:
        return Claim(text, None, f"no interval{printed}")
    if bounds is None:
        equal = n > 1 and not any(differences)
        average = f"{factor * fmean(differences):{form}} {unit}"
        difference = f"{average} in {'each of ' if equal or _constant(differences) else ''}{n} seed{'s' * (n > 1)}"
        return Claim(text, False if equal else None, f"{difference}, no interval{printed}", equal and unit == POINTS)
    mean, low, high = (factor * v for v in bounds)
    level = unit == POINTS and -LEVEL < bounds[1] <= 0 <= bounds[2] < LEVEL
    holds = True if low > 0 else False if high < 0 or level else None
    between = f"[{low:{form}}, {high:{form}}]"
    evidence = (
        f"{mean:{form}} {unit}, 95 % {'confidence sequence' if sequential else 'interval'} {between} over {n} seeds"
    )
    if published is not None:
        printed += ", within" if bounds[1] <= published <= bounds[2] else ", excluded"
    return Claim(text, holds, evidence + printed, level)


PUBLISHED = "; published "
"""Text that precedes a published difference in the evidence."""


def counted(text: str, differences: Sequence[float], unit: str, factor: float = 1.0, form: str = "+.1f") -> Claim:
    """`decide` for counts and bounds: differences that are all equal decide by their sign."""
    claim = decide(text, differences, unit, factor, form)
    if len(differences) > 1 and interval(differences) is None:
        return replace(claim, holds=differences[0] > 0)
    return claim


def same(
    text: str,
    differences: Sequence[float],
    margin: float = SAME,
    unit: str = POINTS,
    factor: float = 100.0,
    sequential: bool = False,
) -> Claim:
    """The claim that paired differences are within a margin of zero: the interval must lie there."""
    bounds = interval(differences, sequential=sequential)
    low, high = (differences[0],) * 2 if _constant(differences) else (-math.inf, math.inf) if not bounds else bounds[1:]
    holds = True if -margin <= low and high <= margin else False if low > margin or high < -margin else None
    evidence = decide(text, differences, unit, factor, sequential=sequential).evidence
    return Claim(text, holds, f"{evidence}, {factor * margin:g} allowed")


def _constant(differences: Sequence[float]) -> bool:
    """True of several that differ by rounding alone."""
    return len(differences) > 1 and max(differences) - min(differences) < 1e-12


def near(text: str, values: Sequence[float], published: float, margin: float) -> Claim:
    """The claim that every value is within `margin` of the published one, as a share of it."""
    off = [100 * (v / published - 1.0) for v in values]
    evidence = f"{fmean(values):.2f}; {min(off):+.1f} to {max(off):+.1f} % over {len(off)} seeds"
    return Claim(text, max(map(abs, off)) <= 100 * margin, evidence)


def within(text: str, steps: Mapping[str, Sequence[float]], margin: float) -> Claim:
    """The claim that several paired differences are all within a margin of zero; the largest that decides is evidence.

    It holds if every interval lies within, does not hold if one lies outside, and is undecided otherwise.
    """
    claims = [same(name, differences, margin) for name, differences in steps.items()]
    holds = _all([c.holds for c in claims])
    largest = max((c for c in claims if c.holds is holds), key=lambda c: abs(fmean(steps[c.text])))
    return Claim(text, holds, f"of {len(steps)} differences the largest: {largest.text} {largest.evidence}")


def ordered(text: str, steps: Mapping[str, Sequence[float]]) -> Claim:
    """The claim that several paired differences are all above zero; the evidence is the smallest of them.

    It holds if every 95 % interval is above zero.  It does not hold if one lies below, widened for their number
    (Bonferroni).  Differences that do not vary decide by their sign.
    """
    level, verdicts, measured = 1.0 - (1.0 - CONFIDENCE) / max(len(steps), 1), list[bool | None](), []
    for name, differences in steps.items():
        claim, wide = counted(name, differences, POINTS, 100.0, "+.2f"), interval(differences, level)
        verdicts.append(claim.holds if claim.holds or wide is None or wide[2] < 0 else None)
        evidence = f"{name} {claim.evidence}"
        if wide is not None and len(steps) > 1:
            evidence += f", [{100 * wide[1]:+.2f}, {100 * wide[2]:+.2f}] for {len(steps)} comparisons"
        measured.append((fmean(differences) if len(differences) > 1 else math.inf, evidence))
    below = f", {verdicts.count(False)} of them below zero," if False in verdicts else ""
    least = f"of {len(steps)} differences{below} the smallest: {min(measured)[1]}" if measured else "nothing to compare"
    return Claim(text, _all(verdicts), least)


def _all(verdicts: Sequence[bool | None]) -> bool | None:
    return False if False in verdicts else True if verdicts and all(verdicts) else None


# ---------------------------------------------------------------- claims as data
@dataclass(frozen=True)
class Comparison:
    """The claim that one method's number is above another's, seed by seed, or with `within` that they are level.

    Attributes:
        text: The claim, where {above}, {below} and {where} stand for the two methods and the run, {setting} for the
            last part of its name.
        above, below: Labels of the methods.  * matches any part, which {below} repeats; each matching pair is a claim.
        metric: What is compared; by default the headline of the global model.
        within: In place of above: the difference must be within this of zero.
        where: The settings in which it is claimed; * matches any.
        published: It is claimed only where the paper has the first above the second.
        unit, factor, form: How a difference is shown.
    """

    text: str
    above: str
    below: str
    metric: str = ""
    within: Annotated[float, Gt(0.0)] | None = None
    where: str = "*"
    published: bool = False
    unit: str = POINTS
    factor: float = 100.0
    form: str = "+.2f"

    def fits(self, above: str, below: str, where: str, gain: float | None) -> bool:
        """True if it is about these two methods; `gain` is the published difference."""
        names = ((above, self.above.format(below=below)), (below, self.below), (where, self.where))
        wanted = above != below and all(fnmatchcase(name, pattern) for name, pattern in names)
        return wanted and (not self.published or (gain is not None and gain > 0))

    def said(self, above: str, below: str, where: str) -> str:
        """Its text for two methods in a run."""
        setting = where.partition(":")[0].rpartition(", ")[2]
        return self.text.format(above=above, below=below, where=where, setting=setting)

    def claim(
        self,
        text: str,
        these: Sequence[float],
        those: Sequence[float],
        published: float | None = None,
        sequential: bool = False,
    ) -> Claim:
        """The claim decided by the methods' values, one for each seed."""
        apart = paired(these, those)
        if self.within is not None:
            return same(text, apart, self.within / self.factor, self.unit, self.factor, sequential)
        return decide(text, apart, self.unit, self.factor, self.form, published, sequential)
