"""A gain: one method's results minus another's on the same test rows, and its interval, over seeds and over test rows.

Two kinds of chance are in a gain: seeds, which stand for initial models, cohorts and batches, and the client's test
rows, which are often the same under every seed, so that more seeds do not make up for few rows.  The variance of the
mean over k seeds is that over seeds, divided by k, plus that over rows of their differences, averaged over seeds; the
half-width is Student's t times the root of the sum, with the degrees of freedom of B. L. Welch, "The generalization of
'Student's' problem when several different population variances are involved", Biometrika 34, 1947.  Where a part has a
single degree of freedom, as with two seeds, that is too narrow (9 % of intervals miss instead of 5 %); the squares of
both parts' half-widths are added instead, as they are where seeds were added until a comparison was decided.  Chance of
a row under one seed is in both variances: if there is little else, the interval is wider than it has to be.

Where patients are known, and some have several rows, what is drawn is patients and not rows: each patient counts as a
row, with the sum of its rows' differences (`unskew.data.patients.by_patient`).

For shares of rows the rows' interval is the adjusted one of A. Agresti, Y. Min, "Simple improved confidence intervals
for comparing matched proportions", Statistics in Medicine 24, 2005: half an observation more in each of the four cells,
so that few rows never look certain, neither of a client nor, client by client, in the mean over them.  For an
AUROC it is DeLong's of two correlated ones.  A gain without a variance over rows has no interval at all: seeds alone do
not tell whether a client gains.  With one seed, chance of seeds is not known, and the interval leaves it out.

Used by reports and by advice, so that both decide by the same interval.
"""

import math
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import special

from unskew.report.stats import CONFIDENCE, interval
from unskew.tasks.measure import Measure

K = TypeVar("K", bound=Hashable)
Floats = npt.NDArray[np.float64]
Over = Literal["seeds", "test examples", ""]
Verdict = Literal["gains", "loses", "open"]
Beside = Literal["test examples", "clients", ""]
"""What the interval of a mean over clients is over beside seeds."""


@dataclass(frozen=True)
class Gain:
    """A gain over another method, fractions for accuracies: above zero is better whatever the measure's direction.

    Attributes:
        mean: Mean over seeds.
        low, high: Its 95 % interval; None if there is none.
        over: What the interval is over, or most of it; empty without one.
        part: The part of the interval's variance that is from `over`.
        per_row: Of a mean over sites, the mean in which each test row counts alike; None where their number is unknown.
    """

    mean: float
    low: float | None
    high: float | None
    over: Over
    part: float = 1.0
    per_row: "Gain | None" = None

    @property
    def verdict(self) -> Verdict:
        """The interval's verdict."""
        if self.low is None or self.high is None:
            return "open"
        return "gains" if self.low > 0 else "loses" if self.high < 0 else "open"


def ranked(of: Mapping[K, Gain]) -> list[K]:
    """Sort gains: shown to gain, undecided, shown to lose; in each part by their means."""
    # By means alone the first and the last of many would be those with the fewest test rows.
    return sorted(of, key=lambda k: (("gains", "open", "loses").index(of[k].verdict), -of[k].mean))


@dataclass(frozen=True)
class Chance:
    """A part of the chance in a mean: its variance, and the degrees of freedom of that; inf is a normal's.

    `shift` is from the mean to the middle of its interval, as an adjusted interval's is nearer to zero; `beyond` is how
    much farther its ends are from there than chance alone has them.
    """

    variance: float
    freedom: float = math.inf
    shift: float = 0.0
    beyond: float = 0.0


def gain(
    of_seeds: Sequence[float],
    rows: Chance | None,
    share: bool,
    confidence: float = CONFIDENCE,
    sequential: bool = False,
) -> Gain:
    """The gain from that of each seed, with its interval over seeds and over test rows, or over clients.

    Without a variance over rows it has no interval, nor where neither seeds nor rows differ.

    Args:
        of_seeds: The gain of each seed.
        rows: The chance in their mean that is not from seeds.
        share: True for a share of rows, which changes by one at most.
        confidence: The interval's.
        sequential: True if it may be looked at after every seed (`unskew.run.decide`).
    """
    if not of_seeds or rows is None:
        return Gain(statistics.fmean(of_seeds) if of_seeds else math.nan, None, None, "")
    mean = statistics.fmean(of_seeds)
    ends = interval(of_seeds, confidence, sequential=True) if sequential else (mean, mean)
    seeds = spread(of_seeds) or Chance(0.0)
    both = rows.variance + seeds.variance
    if ends is None or not both > 0.0:
        return Gain(mean, None, None, "")
    middle = mean + rows.shift
    if sequential:
        half = _half([rows], confidence)
        low, high = middle - math.hypot(mean - ends[0], half), middle + math.hypot(ends[1] - mean, half)
    else:
        half = _half([rows, seeds], confidence)
        low, high = middle - half, middle + half
    low, high = low - rows.beyond, high + rows.beyond
    if share:
        low, high = max(low, -1.0), min(high, 1.0)
    over: Over = "seeds" if seeds.variance > rows.variance else "test examples"
    return Gain(mean, low, high, over, max(rows.variance, seeds.variance) / both)


def mean_gain(
    of_seeds: Sequence[Mapping[K, float]],
    tested: Sequence[Mapping[K, float]],
    chances: Sequence[Chance | None],
    share: bool,
    confidence: float = CONFIDENCE,
    sequential: bool = False,
) -> Gain:
    """The gain of the mean over sites, with that in which each test row counts alike.

    Args:
        of_seeds: The gains of each seed's sites.
        tested: Their test rows under each seed; 0 where not known.
        chances: The chance in the mean that is not from seeds, of sites alike and of rows alike.
    """

    def weighted(by: Sequence[Mapping[K, float]], chance: Chance | None) -> Gain:
        means = [statistics.fmean(v.values(), [w[k] for k in v]) for v, w in zip(of_seeds, by, strict=True)]
        return gain(means, chance, share, confidence, sequential)

    whole = weighted([dict.fromkeys(v, 1.0) for v in of_seeds], chances[0])
    known = all(w.get(k) for v, w in zip(of_seeds, tested, strict=True) for k in v)
    return replace(whole, per_row=weighted(tested, chances[1])) if known else whole


def chance_in_mean(
    rows: Sequence[Floats | None],
    each: Sequence[Chance | None],
    means: Sequence[float],
    tested: Sequence[float],
    measure: Measure,
) -> tuple[Beside, list[Chance | None]]:
    """The chance in a mean over sites that is not from seeds, of sites alike and of rows alike; and what it is over.

    Where all sites have differences by row, or a share of rows with a known chance, the mean is of these very sites;
    otherwise they stand for others like them, and their mean gains are what is drawn.
    """
    n = np.maximum(tested, 1.0)
    weights = np.full(len(n), 1 / len(n)), n / n.sum()
    differences, chances = [r for r in rows if r is not None], [c for c in each if c is not None]
    if len(differences) == len(rows):
        return "test examples", [over_all_rows(differences, measure.percent, w) for w in weights]
    if len(chances) == len(rows) and measure.name == "accuracy":
        variances = [c.variance for c in chances]
        return "test examples", [in_mean(chances, sum(w**2 * variances), w) for w in weights]
    return "clients", [spread(means, w) for w in weights]


def standing(gains: Mapping[str, Callable[[float], Gain]]) -> frozenset[str]:
    """The gains, each a function of its confidence, that exclude zero when corrected for their number (S. Holm, 1979).

    Of k gains those that exclude zero at 1 - .05 / k stand; then of the rest those that do at theirs; and so on.
    """
    stand: frozenset[str] = frozenset()
    while left := gains.keys() - stand:
        level = 1.0 - (1.0 - CONFIDENCE) / len(left)
        more = {label for label in left if gains[label](level).verdict != "open"}
        if not more:
            break
        stand |= more
    return stand


def over_rows(rows: Floats, share: bool, ranked: bool = False) -> Chance | None:
    """The chance in the mean of a client's differences by row, or by patient; None if it cannot be told.

    Args:
        rows: The differences.
        share: True for a share of rows.
        ranked: True for DeLong's values of an AUROC, whose degrees of freedom are in them.  Of an AUROC over patients
            they are not: it has as many as there are patients, less one (N. A. Obuchowski, "Nonparametric analysis of
            clustered ROC curve data", Biometrics 53, 1997).
    """
    n = len(rows)
    if ranked:
        return Chance(float(rows.var()) / n)
    if share:
        return _of_share(rows)
    return Chance(float(rows.var(ddof=1)) / n, n - 1) if n > 1 else None


def _of_share(rows: Floats) -> Chance:
    """Agresti and Min's adjusted chance: as if each method had one row more right that the other has wrong."""
    n = len(rows)
    middle = float(rows.sum()) / (n + 2)
    return Chance(((float((rows**2).sum()) + 1) / (n + 2) - middle**2) / (n + 2), shift=middle - float(rows.mean()))


def over_all_rows(known: Sequence[Floats], share: bool, weights: Floats | None = None) -> Chance:
    """The chance in the mean over clients, from the differences by row of each, by default alike.

    The variance of a row is pooled over clients; where those of few rows differ most that is too small for them, so the
    sum of each client's own counts where it is larger.  Of shares these are adjusted, as is the interval's middle: a
    client's only row, or rows that all agree, would look certain.
    """
    w = np.full(len(known), 1 / len(known)) if weights is None else weights
    pooled = pooled_variance(known) * sum(w**2 / [len(r) for r in known])
    freedom = sum(len(r) - 1 for r in known) or math.inf
    if share:
        each = [_of_share(r) for r in known]
        return in_mean(each, max(pooled, sum(w**2 * [c.variance for c in each])), w, freedom)
    own = sum(w**2 * [float(r.var(ddof=1)) / len(r) if len(r) > 1 else 0.0 for r in known])
    return Chance(float(max(pooled, own)), freedom)


def in_mean(each: Sequence[Chance], variance: float, weights: Floats, freedom: float = math.inf) -> Chance:
    """The chance in the mean over clients, of a given variance, where each client's interval has a shifted middle.

    Shifts are smaller than chance, but add up over clients, as chance does not.  So the interval ends towards zero as
    one around the shifted mean, and away from zero as one around the mean itself, which it could leave out otherwise.
    """
    shift = float(weights @ [c.shift for c in each])
    return Chance(float(variance), freedom, shift / 2, abs(shift) / 2)


def pooled_variance(rows: Sequence[Floats]) -> float:
    """The variance of rows around their clients' means; around the mean of all where clients have a row each."""
    freedom = sum(len(r) - 1 for r in rows)
    if freedom > 0:
        return float(sum(((r - r.mean()) ** 2).sum() for r in rows)) / freedom
    return float(np.concatenate(rows).var())


def spread(values: Sequence[float], weights: Floats | None = None) -> Chance | None:
    """The chance in a mean of independent values, by default alike; None where Student's interval has none.

    With weights the variance is unbiased where that of the values is one, and as many count as weigh alike (L. Kish).
    """
    if interval(values) is None:
        return None
    w, v = np.full(len(values), 1 / len(values)) if weights is None else weights, np.array(values)
    return Chance(float(w**2 @ ((v - w @ v) ** 2 / (1 - 2 * w + w @ w))), max(float(1 / (w @ w)) - 1, 1.0))


def _half(parts: Sequence[Chance], confidence: float) -> float:
    """Half the width of an interval over parts that are independent of each other."""

    def t(freedom: float) -> float:
        return float(special.stdtrit(freedom, (1 + confidence) / 2))

    if min(part.freedom for part in parts) <= 1:
        return math.sqrt(sum(t(part.freedom) ** 2 * part.variance for part in parts))
    variance = sum(part.variance for part in parts)
    below = sum(part.variance**2 / part.freedom for part in parts)
    return t(variance**2 / below if below else math.inf) * math.sqrt(variance)
