"""Permutation test of whether sites differ in a column or a target; it weighs sites by size.

    classes   X2 = sum (O - E)^2 / E, O rows of a class at a site, E those expected of alike sites (K. Pearson, 1900)
    numbers   SSB = sum n_k (mean_k - mean)^2, which orders permutations as F of one-way analysis of variance does

Values are permuted over rows, the sites' sizes fixed (E. J. G. Pitman, "Significance tests which may be applied to
samples from any populations", 1937).  Of classes, rows at sites are then multivariate hypergeometric.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from scipy import special

from unskew.keys import Key

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

TIMES, FEWEST = 999, 19
"""Permutations, and the number that there is time for below which the analytic p is taken."""

WORK = 20_000_000
"""Values that are permuted for all columns of a table: some seconds."""

TINY = 0.05
"""Share of the rows that the smallest sites have together which count as one: each has a degree of freedom."""


@dataclass(frozen=True)
class SiteEffect:
    """Difference between sites.

    Attributes:
        p: Chance that alike sites differ as much; where no permutation does, the analytic p if that is smaller.
        share: SSB over all squares; of classes Cramér's V squared, X2 / (n (min(sites, classes) - 1)).
        chance: The mean of this share over all permutations.
        pair: The sites that have the most and the least for their size, by standardised residuals.
        kind: The class in which these are the furthest apart; None of numbers.
        levels: The means of the two sites, or their shares of that class.
    """

    p: float
    share: float
    chance: float
    pair: tuple[int, int]
    kind: int | None
    levels: tuple[float, float]


def differs(values: npt.NDArray[np.generic], site: Ints, columns: int = 1) -> SiteEffect | None:
    """Measure how far sites differ; None if fewer than two have a value, or all values are equal.

    Args:
        values: Numbers of classes, or floats with NaN for a gap, (N,).
        site: Number of each value's site, (N,), -1 where it has none.
        columns: Columns of the table, which share the time for permutations.
    """
    here = site >= 0
    here &= ~np.isnan(values) if values.dtype.kind == "f" else here
    values, (sites, owner) = values[here], np.unique(site[here], return_inverse=True)
    if len(sites) < 2 or (values == values[0]).all():
        return None
    rows = np.bincount(owner)
    smallest_first = np.argsort(rows, kind="stable")
    tiny = smallest_first[np.cumsum(rows[smallest_first]) <= TINY * len(values)]
    if len(tiny) > 1 and len(sites) - len(tiny) > 1:
        kept, owner = np.unique(np.where(np.isin(owner, tiny), tiny[0], owner), return_inverse=True)
        sites, rows = np.where(kept == tiny[0], -1, sites[kept]), np.bincount(owner)
    rng = (Key(0) / "differs").numpy()
    times = min(TIMES, WORK // (columns * len(values)))
    times = times if times >= FEWEST else 0
    if values.dtype.kind == "f":
        seen = _of_numbers(values.astype(np.float64)[np.argsort(owner, kind="stable")], rows, times, rng)
        kinds: tuple[int | None, ...] = (None,)
    else:
        known, kind = np.unique(values, return_inverse=True)
        counts = np.bincount(owner * len(known) + kind, minlength=len(sites) * len(known)).reshape(len(sites), -1)
        rarest_first = np.argsort(counts.sum(0), kind="stable")  # of two classes the rarer one is named
        seen = _of_classes(counts[:, rarest_first], times, rng)
        kinds = tuple(known[rarest_first].tolist())
    statistic, share, levels, residuals, analytic, drawn = seen
    as_much = sum(one >= statistic * (1 - 1e-9) for one in drawn)
    named = np.flatnonzero(sites >= 0)
    furthest = int(np.ptp(residuals[named], axis=0).round(9).argmax())
    pair = [int(named[of(residuals[named, furthest])]) for of in (np.argmax, np.argmin)]
    of_kinds = (len(kinds) - 1) / (min(len(kinds), len(sites)) - 1) if len(kinds) > 1 else 1.0
    p = (1 + as_much) / (1 + times) if as_much else min(analytic, 1 / (1 + times))
    return SiteEffect(
        p,
        share,
        of_kinds * (len(sites) - 1) / (len(values) - 1),
        (int(sites[pair[0]]), int(sites[pair[1]])),
        kinds[furthest],
        (float(levels[pair[0], furthest]), float(levels[pair[1], furthest])),
    )


_Seen = tuple[float, float, Floats, Floats, float, Iterator[float]]
"""Statistic, share, levels and residuals (sites, classes), analytic p, and the statistic of each permutation."""


def _of_numbers(values: Floats, rows: Ints, times: int, rng: np.random.Generator) -> _Seen:
    """Statistic of numbers that stand site by site."""
    n, k, starts = len(values), len(rows), np.cumsum(rows) - rows
    mean = values.mean()
    centred = values - mean
    squares = float((centred**2).sum())

    def sums(of: Floats) -> Floats:
        return np.asarray(np.add.reduceat(of, starts))

    between = float((sums(centred) ** 2 / rows).sum())
    residuals = sums(centred) / np.sqrt(rows * (1 - rows / n) * squares / (n - 1))
    within = max(squares - between, 0.0)
    f = np.inf if within <= 1e-12 * squares else between / within * (n - k) / (k - 1)
    drawn = (float((sums(rng.permutation(centred)) ** 2 / rows).sum()) for _ in range(times))
    analytic = float(special.fdtrc(k - 1, n - k, f)) if n > k else 1.0
    return between, between / squares, (mean + sums(centred) / rows)[:, None], residuals[:, None], analytic, drawn


def _of_classes(counts: Ints, times: int, rng: np.random.Generator) -> _Seen:
    """Statistic of counts of rows, (sites, classes)."""
    rows, of_class = counts.sum(1), counts.sum(0)
    n, (k, c) = int(rows.sum()), counts.shape
    expected = np.outer(rows, of_class) / n
    x2 = float(((counts - expected) ** 2 / expected).sum())
    residuals = (counts - expected) / np.sqrt(expected * np.outer(1 - rows / n, 1 - of_class / n))

    def drawn() -> Iterator[float]:
        from scipy.stats import random_table  # slow to import

        tables, at_once = random_table(rows, of_class), max(1, 1_000_000 // counts.size)
        for start in range(0, times, at_once):
            several = tables.rvs(min(at_once, times - start), random_state=rng)
            yield from ((several - expected) ** 2 / expected).sum((1, 2)).tolist()

    analytic = float(special.chdtrc((k - 1) * (c - 1), x2))
    return x2, x2 / n / (min(k, c) - 1), counts / rows[:, None], residuals, analytic, drawn()


Name = TypeVar("Name")


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """P-values corrected for their number (S. Holm, Scandinavian Journal of Statistics 6, 1979), by name.

    Of k values the smallest counts k times, the next k - 1 times, and so on, never less than the one before.  Calling
    different what is then at most 0.05 errs anywhere with a probability of at most 5 %, however the tests depend.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    corrected: dict[Name, float] = {}
    largest = 0.0
    for i, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, (len(p_values) - i) * p_values[name]))
        corrected[name] = largest
    return corrected
