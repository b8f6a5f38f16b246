"""Seeds until it is decided: an interval of paired differences that may be looked at after every seed.

Student's interval is meant for a number of seeds that was fixed beforehand.  Checked after each of 30 seeds, from the
fifth on, it calls two equal methods different in 23 % of runs.  The interval here is a confidence sequence: with
probability 1 - alpha it covers the true difference after *every* seed.  So a run may stop at any of them.

Notation   x_1, ..., x_n   differences of two methods, seed by seed; mean m, standard deviation s (ddof 1)
           c               their skewness, sum (x_i - m)^3 / n over (sum (x_i - m)^2 / n)^(3/2)
           t               sqrt(n) (m - mu) / s
           u               t^2 / (n - 1)
           g               variance of delta, the difference in standard deviations, under the alternative

Test delta = 0 against delta ~ N(0, g), with the right Haar measure on the standard deviation.  The likelihood ratio of
x - mu up to scale is

    B_n(mu) = (1 + n g)^(-1/2) [(1 + u) / (1 + u / (1 + n g))]^(n / 2)

and a martingale of mean one for normal differences around mu, whatever their spread (H. Wang and A. Ramdas,
"Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance", arXiv 2310.03722, after
T. L. Lai, "On confidence sequences", Annals of Statistics 4, 1976).  By Ville's inequality it ever reaches 1 / alpha
with probability at most alpha.  The interval after n seeds is the set of all mu with B_n(mu) < 1 / alpha, that is

    |t| < t* = sqrt((n - 1) (K - 1) / (1 - K / (1 + n g))),   K = ((1 + n g) / alpha^2)^(1 / n),

and the whole line where K >= 1 + n g.  It is given from six seeds on: five symmetric differences of similar size have
one sign in 6 % of runs.

Few draws of skewed differences rarely show the long tail, and t errs towards it.  To first order its quantile is off by
c (1 + 2 t^2) / (6 sqrt(n)) (P. Hall, "On the removal of skewness by transformation", Journal of the Royal Statistical
Society B 54, 1992).  The interval is widened on the side of the tail by twice as much, because c is underestimated from
few differences:

    t* + |c| (1 + 2 t*^2) / (3 sqrt(n)).

It is never narrower than without this correction.

Assumptions, and why it is not alpha spending: docs/decisions/0017-seeds-until-decided.md.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

ALPHA = 0.05
SPREAD = 1.0
"""g: a difference of about one standard deviation over seeds is expected where there is one."""

FIRST = 6
"""The fewest seeds after which there is an interval."""


def interval(values: Sequence[float], alpha: float = ALPHA) -> tuple[float, float] | None:
    """The confidence sequence after these differences, in their order.

    None while it is unbounded, with a value that is not finite, or when all are equal but not zero.  Equal values come
    from the resolution of a small test set, and do not show certainty.

    >>> low, high = interval([0.01, 0.02, 0.03, 0.02, 0.01, 0.02])
    >>> f"{low:.4f} {high:.4f}"
    '0.0016 0.0408'
    """
    n = len(values)
    if n < 2 or not all(map(math.isfinite, values)):
        return None
    mean, s = statistics.fmean(values), statistics.stdev(values)
    if has_no_spread(values, s):
        return (0.0, 0.0) if abs(mean) < 1e-12 else None
    a = 1.0 + n * SPREAD
    k = (a / alpha**2) ** (1.0 / n)
    if n < FIRST or k >= a:
        return None
    bound = math.sqrt((n - 1) * (k - 1.0) / (1.0 - k / a))
    second, third = (math.fsum((v - mean) ** k for v in values) / n for k in (2, 3))
    c, unit = third / math.pow(second, 1.5), s / math.sqrt(n)
    more = abs(c) / (3.0 * math.sqrt(n)) * (1.0 + 2.0 * bound**2)
    return mean - unit * (bound + more * (c < 0)), mean + unit * (bound + more * (c > 0))


def has_no_spread(values: Sequence[float], s: float) -> bool:
    """Return true if values differ only by rounding, as 0.3 - 0.1 and 0.4 - 0.2 do."""
    return s <= 1e-12 * max(1.0, max(map(abs, values)))


def is_decided(values: Sequence[float], until: float) -> bool:
    """True if the interval excludes zero, or is narrower than `until` (in the unit of the values)."""
    ends = interval(values)
    return ends is not None and (ends[0] > 0.0 or ends[1] < 0.0 or ends[1] - ends[0] < until)


def is_settled(differences: Mapping[str, Sequence[float]], until: float) -> bool:
    """True if every comparison is decided, so that no further seed is needed."""
    return all(is_decided(values, until) for values in differences.values())
