"""Statistics over seeds: spread, Student's interval of a mean, and curves with their lowest and highest seed.

Reports and reproductions use the same intervals.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from scipy import special

from unskew.run import decide
from unskew.run.metrics import sample_std

CONFIDENCE = 0.95

Over = Literal["seeds", "test examples", ""]
Verdict = Literal["gains", "loses", "level", "open"]

READING: dict[Verdict, str] = {"gains": "better", "loses": "worse", "level": "level", "open": "undecided"}
UNCORRECTED = "its interval excludes zero, but not when corrected for the number of methods (Holm)"


@dataclass(frozen=True)
class Difference:
    """The mean difference of two methods, its interval, and a verdict; fractions for accuracies.

    Attributes:
        mean: Mean over seeds.
        low, high: Its interval, by default of 95 %; None without.
        over: What mainly varies in the interval; empty without one.
        per_row: For a mean over sites, the mean with equal weight for each test row; None if their number is unknown.
        verdict: gains, loses, level or open.
        why: Why it has no interval, or no verdict despite one; empty if none is needed.
    """

    mean: float
    low: float | None
    high: float | None
    over: Over = ""
    per_row: "Difference | None" = None
    verdict: Verdict = "open"
    why: str = ""


At = Callable[[float], Difference]
"""A difference, by the confidence of its interval."""


@dataclass(frozen=True)
class Spread:
    """Values over seeds; `undefined` is the number of further seeds without one."""

    values: tuple[float, ...]
    undefined: int = 0

    @property
    def mean(self) -> float:
        """Arithmetic mean."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float | None:
        """Standard deviation, ddof 1; None for a single seed, or a value that is not finite."""
        return sample_std(self.values)


@dataclass(frozen=True)
class Curve:
    """A quantity over seeds: `x`, the mean, the lowest and the highest seed, all of the same length."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    seeds: int


def curve(x: Iterable[float], columns: Sequence[Sequence[float]], seeds: int) -> Curve:
    """A curve from the seeds' values at each `x`, at least one each.

    >>> curve((1, 2), [(0.25, 0.75), (0.5, 1.0)], 2)
    Curve(x=(1.0, 2.0), mean=(0.5, 0.75), low=(0.25, 0.5), high=(0.75, 1.0), seeds=2)
    """
    return Curve(
        tuple(map(float, x)),
        tuple(map(statistics.fmean, columns)),
        tuple(map(min, columns)),
        tuple(map(max, columns)),
        seeds,
    )


def curve_by_round(by_seed: Sequence[Mapping[int, float]]) -> Curve | None:
    """A curve from {round: value} of each seed, at the rounds that all seeds have; None if there are none."""
    rounds = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
    return curve(rounds, [[values[t] for values in by_seed] for t in rounds], len(by_seed)) if rounds else None


def interval(
    values: Sequence[float], confidence: float = CONFIDENCE, sequential: bool = False
) -> tuple[float, float] | None:
    """Student's t interval of the mean: `mean ± t_{(1 + confidence)/2, n-1} s / sqrt(n)`.

    With `sequential` it is a confidence sequence, valid after every seed (`unskew.run.decide`).  None with fewer than
    two values, with one that is not finite, or when all are equal but not zero.  Equal values come from the resolution
    of a small test set, and do not show certainty.

    >>> low, high = interval([0.01, 0.02, 0.03])
    >>> f"{low:.4f} {high:.4f}"
    '-0.0048 0.0448'
    """
    if sequential:
        return decide.interval(values, 1.0 - confidence)
    n = len(values)
    if n < 2 or not all(map(math.isfinite, values)):
        return None
    mean, s = statistics.fmean(values), statistics.stdev(values)
    if decide.has_no_spread(values, s):
        return (0.0, 0.0) if abs(mean) < 1e-12 else None
    half = float(special.stdtrit(n - 1, (1 + confidence) / 2)) * s / math.sqrt(n)
    return mean - half, mean + half


Ends = tuple[float, float]


def reading(ends: Ends, lower: bool = False, narrow: float = 0.0) -> Verdict:
    """Verdict from an interval: it excludes zero, it has zero in it and is narrower than `narrow`, or neither.

    With `lower`, below zero is better.
    """
    low, high = ends
    if low <= 0.0 <= high:
        return "level" if high - low < narrow else "open"
    return "gains" if (low > 0.0) != lower else "loses"


def standing(effects: Mapping[str, Callable[[float], Ends | None]]) -> frozenset[str]:
    """The effects whose interval excludes zero after correction for their number (S. Holm, 1979).

    Each is a function from the confidence to its interval.  Of k effects, those that exclude zero at 1 - .05 / k stand;
    then the same for the rest.
    """
    stand: frozenset[str] = frozenset()
    while left := effects.keys() - stand:
        level = 1.0 - (1.0 - CONFIDENCE) / len(left)
        more = {name for name in left if (ends := effects[name](level)) and (ends[0] > 0.0 or ends[1] < 0.0)}
        if not more:
            break
        stand |= more
    return stand


def corrected(differences: Mapping[str, At]) -> dict[str, Difference]:
    """Differences with Holm's correction: those whose interval excludes zero only without it become open."""
    every = {name: at(CONFIDENCE) for name, at in differences.items()}

    def ends(at: At, confidence: float) -> Ends | None:
        of = at(confidence)
        return None if of.low is None or of.high is None else (of.low, of.high)

    stand = standing({k: partial(ends, differences[k]) for k, of in every.items() if of.low is not None})
    return {
        name: of
        if name in stand or of.verdict not in ("gains", "loses")
        else replace(of, verdict="open", why=of.why or UNCORRECTED)
        for name, of in every.items()
    }


def welch(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]], drawn_anew: bool = True
) -> tuple[float, float] | None:
    """Welch's 95 % interval of the difference of two means over clients, averaged over seeds; None below two clients.

    With variances s^2 and t^2 of n and m clients, a seed's squared standard error is s^2/n + t^2/m.  That of the mean
    over k seeds is their sum divided by k^2.  Degrees of freedom are Welch and Satterthwaite's.  If seeds share clients
    (`drawn_anew` false), it is as wide as a seed's on average.

    >>> for drawn_anew in (True, False):
    ...     low, high = welch(2 * [((0.8, 0.9), (0.5, 0.7))], drawn_anew)
    ...     print(f"{low:.3f} {high:.3f}")
    -0.004 0.504
    -0.442 0.942
    """
    if not drawn_anew:
        each = [ends for pair in pairs if (ends := welch([pair])) is not None]
        complete = bool(each) and len(each) == len(pairs)
        return (statistics.fmean(e[0] for e in each), statistics.fmean(e[1] for e in each)) if complete else None
    if not pairs or any(min(len(a), len(b)) < 2 for a, b in pairs):
        return None
    difference = statistics.fmean(statistics.fmean(a) - statistics.fmean(b) for a, b in pairs)
    parts = [(statistics.variance(clients) / len(clients), len(clients)) for pair in pairs for clients in pair]
    total = sum(v for v, _ in parts)
    if not total > 0.0:
        return None
    freedom = total**2 / sum(v**2 / (n - 1) for v, n in parts)
    half = float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(total) / len(pairs)
    return difference - half, difference + half
