"""Seeds until it is decided: an interval of paired differences that may be looked at after every seed.

Student's interval is meant for a number of seeds that was fixed beforehand.  Whoever looks at it after each of 30 seeds
and stops where it excludes zero calls two equal methods different in 23 % of runs.  The interval here is a
confidence sequence: with probability 1 - alpha it covers the true difference after *every* seed, so that a run may
stop, go on or be stopped at any of them, for whatever reason.

Notation   x_1, ..., x_n   differences of two methods, seed by seed; mean m, standard deviation s (ddof 1)
           t               sqrt(n) (m - mu) / s
           u               t^2 / (n - 1)
           g               variance of delta, the difference in standard deviations, under the alternative

If delta = 0 is set against delta ~ N(0, g), with the right Haar measure on the standard deviation, the likelihood ratio
of x - mu up to scale is

    B_n(mu) = (1 + n g)^(-1/2) [(1 + u) / (1 + u / (1 + n g))]^(n / 2)

and a martingale of mean one for normal differences around mu, whatever their spread (H. Wang and A. Ramdas,
"Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance", arXiv 2310.03722, after
T. L. Lai, "On confidence sequences", Annals of Statistics 4, 1976).  By Ville's inequality it ever reaches 1 / alpha
with probability at most alpha.  The interval after n seeds is the set of all mu with B_n(mu) < 1 / alpha, that is

    m +- s sqrt((n - 1) / n (K - 1) / (1 - K / (1 + n g))),   K = ((1 + n g) / alpha^2)^(1 / n),

and the whole line where K >= 1 + n g.  With g = 1 it is finite from five seeds on.

Why not alpha spending: its boundaries hold for looks and a largest number of seeds that were fixed beforehand; they
test, and give no interval at the seed where a run stops, which the rule "or narrower than so many points" needs.  The
price is a wider interval: after 30 seeds 1.6 times Student's.

What it assumes: differences of about normal shape.  Heavy tails make it more careful, not less; strong skewness, and
differences that take two values only, make it less careful (tests/run/test_decide.py has the numbers).
"""

import math
import statistics
from collections.abc import Mapping, Sequence

ALPHA = 0.05
SPREAD = 1.0
"""g: a difference of about one standard deviation over seeds is expected where there is one."""

FIRST = 5
"""The fewest seeds after which an interval is finite."""


def interval(values: Sequence[float], alpha: float = ALPHA) -> tuple[float, float] | None:
    """The confidence sequence after these differences, in their order.

    None while it is the whole line, with a value that is not finite, or when all are equal but not zero: without spread
    the formula would claim certainty from the resolution of a small test set.

    >>> low, high = interval([0.01, 0.02, 0.03, 0.02, 0.01, 0.02])
    >>> f"{low:.4f} {high:.4f}"
    '0.0016 0.0351'
    """
    n = len(values)
    if n < 2 or not all(map(math.isfinite, values)):
        return None
    mean, s = statistics.fmean(values), statistics.stdev(values)
    # Values that differ only by rounding have no spread.
    if s <= 1e-12 * max(1.0, max(map(abs, values))):
        return (0.0, 0.0) if abs(mean) < 1e-12 else None
    a = 1.0 + n * SPREAD
    k = (a / alpha**2) ** (1.0 / n)
    if k >= a:
        return None
    half = s * math.sqrt((n - 1) / n * (k - 1.0) / (1.0 - k / a))
    return mean - half, mean + half


def p_value(values: Sequence[float]) -> float | None:
    """A p-value that holds at whatever seed the run stopped: `1 / B_n(0)`, at most one; below alpha just where the
    interval excludes zero.  None if there is none: fewer than two values, or no spread but a difference.

    >>> f"{p_value([0.01, 0.02, 0.03, 0.02, 0.01, 0.02]):.4f}"
    '0.0406'
    """
    n = len(values)
    if n < 2 or not all(map(math.isfinite, values)):
        return None
    mean, s = statistics.fmean(values), statistics.stdev(values)
    if s <= 1e-12 * max(1.0, max(map(abs, values))):
        return 1.0 if abs(mean) < 1e-12 else None
    a, u = 1.0 + n * SPREAD, n * (mean / s) ** 2 / (n - 1)
    return min(1.0, math.exp(0.5 * (math.log(a) - n * (math.log1p(u) - math.log1p(u / a)))))


def is_decided(values: Sequence[float], until: float) -> bool:
    """True if the interval excludes zero, or is narrower than `until`, in the unit of the values."""
    ends = interval(values)
    return ends is not None and (ends[0] > 0.0 or ends[1] < 0.0 or ends[1] - ends[0] < until)


def is_settled(differences: Mapping[str, Sequence[float]], until: float) -> bool:
    """True if every comparison, by name, is decided: then no further seed is needed."""
    return all(is_decided(values, until) for values in differences.values())
