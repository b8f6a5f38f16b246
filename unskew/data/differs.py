"""Tests whether sites differ in a column or a target; it weighs sites by size.

    classes   X2 = sum (O - E)^2 / E, O rows of a class at a site, E the expected number (K. Pearson, 1900)
    numbers   SSB = sum n_k (mean_k - mean)^2 within F of one-way analysis of variance (R. A. Fisher, 1925)

Both are sum S_k^2 / n_k of sums S_k over a site's rows of standardised values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import special

Ints = npt.NDArray[np.int64]

TINY = 0.05
"""Share of the rows that the smallest sites have together which count as one: each has a degree of freedom."""

ALPHA = 0.05
"""Level at which sites are said to differ."""


@dataclass(frozen=True)
class SiteDifference:
    """Difference between sites in a column or a target.

    Attributes:
        share: SSB over the total sum of squares; for classes Cramér's V squared, X2 / (n (min(sites, classes) - 1)).
        chance: Mean of this share over all permutations of the rows.
        p: P-value.
        levels: Mean, or share of a class, at the sites with the most and the least for their size.
    """

    share: float
    chance: float
    p: float
    levels: str

    def __str__(self) -> str:
        if self.p < ALPHA:
            return f"differs between sites by more than chance ({shown_p(self.p)}): {self.levels}"
        return f"is not shown to differ between sites ({shown_p(self.p)}; {self.levels})"


def shown_p(p: float) -> str:
    """A p-value in words.

    >>> shown_p(0.0134), shown_p(1e-9)
    ('p = 0.013', 'p < 0.001')
    """
    return f"p = {p:.2g}" if p >= 0.001 else "p < 0.001"


def differs(
    values: npt.NDArray[Any], site: Ints, sites: Sequence[str], classes: Sequence[object] = ()
) -> SiteDifference | None:
    """How far sites differ; None if fewer than two have a value, or all values are equal.

    Values are indices into `classes` (-1 for a gap), or without classes floats (NaN for a gap).  `site` are indices
    into `sites` (-1 for none), (N,).
    """
    here = (site >= 0) & (values >= 0 if classes else ~np.isnan(values))
    values, (numbers, owner) = values[here], np.unique(site[here], return_inverse=True)
    if len(numbers) < 2 or (values == values[0]).all():
        return None
    smallest_first = np.argsort(np.bincount(owner), kind="stable")
    tiny = smallest_first[np.cumsum(np.bincount(owner)[smallest_first]) <= TINY * len(values)]
    if len(tiny) > 1 and len(numbers) - len(tiny) > 1:
        kept, owner = np.unique(np.where(np.isin(owner, tiny), tiny[0], owner), return_inverse=True)
        numbers = np.where(kept == tiny[0], -1, numbers[kept])
    rows, n, k = np.bincount(owner), len(values), len(numbers)

    # Sums of standardised values over each site's rows, (sites, classes).
    if classes:
        kinds = np.unique(values)
        kinds = kinds[np.argsort([(values == kind).sum() for kind in kinds], kind="stable")]  # a rarer one is named
        place = np.zeros(len(classes), np.int64)
        place[kinds] = np.arange(len(kinds))
        coded, c = place[values], len(kinds)
        level = np.bincount(coded) / n
        sums = (np.bincount(owner * c + coded, minlength=k * c).reshape(k, c) - np.outer(rows, level)) / np.sqrt(level)
        seen, residual = float((sums**2 / rows[:, None]).sum()), np.sqrt(1 - level)
        p = special.chdtrc((k - 1) * (c - 1), seen)
    else:
        coded, c, residual = (values - values.mean()) / values.std(), 1, np.ones(1)
        sums = np.asarray(np.bincount(owner, coded)[:, None], np.float64)
        seen = float((sums**2 / rows[:, None]).sum())
        within = max(n - seen, 0.0)
        f = np.inf if within <= 1e-12 * n else seen / within * (n - k) / (k - 1)
        p = special.fdtrc(k - 1, n - k, f) if n > k else 1.0

    named = np.flatnonzero(numbers >= 0)
    residuals = (sums / np.sqrt(rows * (1 - rows / n))[:, None] / residual)[named]
    at = int(np.ptp(residuals, axis=0).round(9).argmax())
    most, least = named[[residuals[:, at].argmax(), residuals[:, at].argmin()]].tolist()
    levels = np.bincount(owner, coded == at if classes else values) / rows
    what, form = (f"{classes[kinds[at]]} ", ".0%") if classes else ("", ".3g")
    apart = what + ", ".join(f"{levels[i]:{form}} at {sites[numbers[i]]}" for i in (most, least))
    free = max(c - 1, 1) / (width := max(min(k, c) - 1, 1))
    apart = "alike everywhere" if most == least else apart
    return SiteDifference(seen / n / width, free * (k - 1) / (n - 1), float(p), apart)


Name = TypeVar("Name")


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """P-values corrected for their number (S. Holm, Scandinavian Journal of Statistics 6, 1979), by name.

    Of k values the smallest counts k times, the next k - 1 times, and so on, never less than the one before.  The
    probability of any false difference at 0.05 is at most 5 %, however the tests depend.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    corrected: dict[Name, float] = {}
    largest = 0.0
    for i, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, (len(p_values) - i) * p_values[name]))
        corrected[name] = largest
    return corrected
