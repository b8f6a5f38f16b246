"""Statistics over seeds: spread, Student's interval of a mean, and curves with their lowest and highest seed.

Used by reports and by reproductions, so that both decide by the same interval.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scipy import special

from unskew.run.metrics import sample_std

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """Values over seeds."""

    values: tuple[float, ...]

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
    """A curve from the values at each `x`, at least one each.

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


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Student's t interval of the mean: `mean ± t_{(1 + confidence)/2, n-1} s / sqrt(n)`.

    None with fewer than two values, with one that is not finite, or when all are equal but not zero: without spread
    the formula would claim certainty from the resolution of a small test set.

    >>> low, high = interval([0.01, 0.02, 0.03])
    >>> f"{low:.4f} {high:.4f}"
    '-0.0048 0.0448'
    """
    n = len(values)
    if n < 2 or not all(map(math.isfinite, values)):
        return None
    mean, s = statistics.fmean(values), statistics.stdev(values)
    # 0.3 - 0.1 and 0.4 - 0.2 are not quite the same; values that differ only by rounding have no spread.
    if s <= 1e-12 * max(1.0, max(map(abs, values))):
        return (0.0, 0.0) if abs(mean) < 1e-12 else None
    half = float(special.stdtrit(n - 1, (1 + confidence) / 2)) * s / math.sqrt(n)
    return mean - half, mean + half
