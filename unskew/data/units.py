"""Doubts about the unit of a column or a target at some sites, by comparison with the others.

In another unit, g/dL and not g/L, both the middle of the numbers and their spread are so many times those of others.
Sites differ in themselves, too.  So the gap between two groups of sites must be wider than either group.  It is doubted
where one group's numbers are `TIMES` the other's, or where they lie wholly apart and a known conversion makes them
alike; which group has the larger numbers makes no difference.

Of sites with log-normal medians of a deviation of 0.5, fewer than 1 of 100 data sets is doubted where sites' numbers
themselves deviate by 0.5 or more.  Where these deviate by 0.2, the sites hardly overlap, and a gap that happens to be
that of a conversion is doubted in up to a quarter of data sets of 2 or 3 sites, in 1 of 12 of five, and in none of 200
of ten; where the medians deviate by 0.1, in none of any number.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from unskew.words import some

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

TIMES = 10
"""Times that numbers are larger at some sites than at others, from which on they may be in another unit."""

ENOUGH_TO_COMPARE = 10
"""Rows of a site from which on its numbers are compared."""

MOST_COMPARED = 100
"""Sites up to which each one's numbers are compared with those of the others in data that are at hand."""

APART = 1.7
"""Standard deviations around the middle in which 90 % of normal numbers lie: beyond, two groups are wholly apart."""

ALIKE, SPREAD_ALIKE = 0.75, 1.6
"""Standard deviations between two middles, and times between two spreads, up to which they are alike."""

WIDER = 2
"""Times that the gap is as wide as either group where a conversion below `TIMES` is to explain it."""

NEAR = 0.15
"""Difference of logarithms up to which a conversion is named."""

CONVERSIONS = (
    (1.8, 32.0, "degrees Fahrenheit and Celsius"),
    (1.0, 273.15, "kelvins and degrees Celsius"),
    (2.2046, 0.0, "pounds and kilograms"),
    (2.54, 0.0, "centimetres and inches"),
    (10.0, 0.0, "g/L and g/dL"),
    (18.016, 0.0, "mg/dL and mmol/L of glucose"),
    (24.0, 0.0, "hours and days"),
    (30.44, 0.0, "days and months"),
    (38.67, 0.0, "mg/dL and mmol/L of cholesterol"),
    (39.37, 0.0, "inches and metres"),
    (60.0, 0.0, "minutes and hours"),
    (88.42, 0.0, "µmol/L and mg/dL of creatinine"),
    (100.0, 0.0, "centimetres and metres"),
    (365.25, 0.0, "days and years"),
    (1000.0, 0.0, "mg and g"),
)
"""Factors, and numbers that are added, of the larger numbers of two units."""


@dataclass(frozen=True)
class Typical:
    """Numbers of one site in short.

    Attributes:
        middle: Their median or mean.
        size: The same without signs.
        spread: Their standard deviation, which is estimated from the quartiles where there are rows.
    """

    middle: float
    size: float
    spread: float


def typical(values: npt.NDArray[Any], owners: npt.NDArray[Any] | None, sites: Sequence[str]) -> dict[str, Typical]:
    """Numbers of each site that has enough, and not the same one in most rows, in short.

    Args:
        values: Of each row; those that are 0 say nothing of a unit.
        owners: Number of each row's site, -1 where it has none; None if there are no sites.
        sites: Their names; of a great many nothing is compared.
    """
    if owners is None or values.dtype.kind not in "iuf" or len(sites) > MOST_COMPARED:
        return {}
    own = {site: of_rows(values[owners == i]) for i, site in enumerate(sites)}
    return {site: of for site, of in own.items() if of}


def of_rows(values: npt.NDArray[Any]) -> Typical | None:
    """Numbers of one site in short; None of few, and where most are the same.

    Args:
        values: Of each row; those that are 0 say nothing of a unit.
    """
    own = values[np.isfinite(values) & (values != 0)]
    if len(own) < ENOUGH_TO_COMPARE:
        return None
    low, middle, high = np.quantile(own, [0.25, 0.5, 0.75]).tolist()
    return Typical(middle, float(np.median(np.abs(own))), (high - low) / 1.349) if high > low else None


def of_moments(mean: float, sd: float) -> Typical:
    """The same of a mean and a standard deviation."""
    return Typical(mean, max(abs(mean), sd), sd)


def another_unit(what: str, of_sites: Mapping[str, Typical]) -> str:
    """A sentence on sites whose numbers may be in another unit than at most; empty if there are none.

    Args:
        what: The column or the target.
        of_sites: Numbers of each site in short.
    """
    names, (few, others, of, why) = list(of_sites), _in_two_units([*of_sites.values()])
    if not len(few):
        return ""
    ours, theirs = (float(f"{np.median(of[group]):.3g}") for group in (few, others))
    rest = names[others[0]] if len(others) == 1 else "the others"
    return (
        f"{what} is about {ours:g} at {some([names[i] for i in few])} and {theirs:g} at {rest}{why}: is it in the "
        f"same unit {'there' if len(others) > 1 else 'at both'}?"
    )


def another_unit_here(values: npt.NDArray[Any], mean: float, sd: float) -> tuple[bool, str]:
    """True if rows may be in another unit than those of this mean and deviation, and how far apart units are so."""
    here = of_rows(values)
    few, *_, why = _in_two_units([of_moments(mean, sd), here] if here and sd > 0 else [])
    return len(few) > 0, why


def _in_two_units(sites: Sequence[Typical]) -> tuple[Ints, Ints, Floats, str]:
    """The fewer sites, the others, their numbers, and what two units are so far apart; no sites if all may be alike."""
    none = np.zeros(0, np.int64)
    if len(sites) < 2:
        return none, none, np.zeros(0), ""
    middle, size, spread = (np.array([getattr(of, name) for of in sites]) for name in ("middle", "size", "spread"))
    low, high = _groups(np.log(size), 1)
    if len(low) and _times(size, low, high) >= TIMES and _times(spread, low, high) >= math.sqrt(TIMES):
        log = math.log(_times(size, low, high))
        near = [why for factor, added, why in CONVERSIONS if not added and abs(log - math.log(factor)) < NEAR]
        return *_fewer_first(low, high), size, _as_far(near)
    explained = {}
    for factor, added, why in CONVERSIONS:
        low, high = _groups(middle if added else np.log(size), WIDER)
        ends = [float(np.median(x[of])) for x in (middle, spread) for of in (low, high) if len(of)]
        if ends and _explains(factor, added, *ends):
            explained[why] = low, high
    if not explained:
        return none, none, size, ""
    return *_fewer_first(*next(iter(explained.values()))), middle, _as_far(list(explained))


def _fewer_first(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    return (low, high) if len(low) <= len(high) else (high, low)


def _as_far(why: Sequence[str]) -> str:
    return f", as far apart as {' or '.join(why)}" if why else ""


def _groups(at: Floats, wider: float) -> tuple[Ints, Ints]:
    """Sites below and above the widest gap, if that is so many times as wide as either group; none otherwise."""
    order = np.argsort(at)
    gap = np.diff(at[order])
    cut = int(gap.argmax()) + 1
    low, high = order[:cut], order[cut:]
    return (low, high) if gap[cut - 1] >= wider * max(np.ptp(at[low]), np.ptp(at[high])) else (order[:0], order[:0])


def _times(of: Floats, low: Ints, high: Ints) -> float:
    return float(np.median(of[high]) / np.median(of[low]))


def _explains(factor: float, added: float, low: float, high: float, spread: float, of_high: float) -> bool:
    """True if numbers around two middles lie wholly apart, and a conversion of the lower ones makes them alike."""
    apart = abs(high - low) > APART * (spread + of_high)
    alike = abs(factor * low + added - high) < ALIKE * (factor * spread + of_high) / 2
    return apart and alike and 1 / SPREAD_ALIKE < factor * spread / of_high < SPREAD_ALIKE
