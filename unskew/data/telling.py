"""Columns that say too much: who is in a row, which site it is of, or what is to be learnt."""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.stats import rankdata

from unskew.data.doubts import FEW_ROWS, MOST_CLASSES, Ints, TrainingRows
from unskew.data.inputs import Array, gaps_in
from unskew.data.patients import most_frequent

ENOUGH = 50
"""Rows of which more tell something of a column."""

BY_CHANCE, HUGE = 5, 1e6
"""Returns of whole numbers whose lack is no chance, and size above which different ones hardly measure."""

EXACT = 2.0**53
"""Whole numbers above which double precision has not all of them."""

TOO_GOOD, IN_STEP = 0.99, 0.999
"""AUROC and Spearman's correlation above which a column gives the target away."""


def identifies(table: TrainingRows) -> str | None:
    """Names columns that identify rows: words most of which differ, and whole numbers that hardly return at a site.

    Numbers drawn evenly from the range of a site's, and measurements all the more, would return ten times as often or
    more, or so would numbers that return at a site as they do at others; or they all differ and are huge.
    """
    return _named(
        [name for name, values in table.columns.items() if _hardly_return(values, table.owners)],
        "numbers or names the rows: nothing learnt from it holds for new ones",
    )


def names_the_site(table: TrainingRows) -> str | None:
    """Names columns that tell the site (`_tell`)."""
    if table.owners is None:
        return None
    here, owners = table.owners >= 0, table.owners
    return _named(
        [name for name, values in table.columns.items() if _tell(values[here], owners[here])],
        "tells the site by itself: nothing learnt from it holds at other sites",
    )


def gives_the_answer(table: TrainingRows) -> str | None:
    """Names columns that tell a target: two classes by an AUROC above .99, more as `_tell`, numbers by their order."""
    return _named(
        [name for name, of in table.columns.items() if any(_give(of, target) for target in table.targets)],
        "tells the target by itself: is it known only afterwards?",
    )


CHECKS: tuple[Callable[[TrainingRows], str | None], ...] = (identifies, names_the_site, gives_the_answer)


def notes(table: TrainingRows) -> list[str]:
    """Run the checks; few rows pass all of them."""
    rows = max((len(values) for values in table.columns.values()), default=0)
    return [note for check in CHECKS if (note := check(table))] if rows > ENOUGH else []


def _named(columns: Sequence[str], what: str) -> str | None:
    which = ", ".join(map(repr, columns[:5])) + (f" and {len(columns) - 5:,} more" if len(columns) > 5 else "")
    return f"column {which} {what}; leave it out by leave_out" if columns else None


def _hardly_return(values: Array, owners: Ints | None) -> bool:
    present = ~gaps_in(values)
    values, site = values[present], np.zeros(int(present.sum()), np.int64) if owners is None else owners[present]
    if values.dtype.kind == "O":
        return len(set(values.tolist())) > max(MOST_CLASSES, len(values) / 2)
    if len(values) <= ENOUGH or (values % 1 != 0).any():
        return False
    order = np.lexsort((values, site))
    values, (_, first, n) = values[order], np.unique(site[order], return_index=True, return_counts=True)
    again = np.diff(values) == 0
    again[first[1:] - 1] = False  # the first of the next site
    width = np.maximum.reduceat(values, first) - np.minimum.reduceat(values, first) + 1
    drawn = float((n + width * np.expm1(-n / width)).sum())  # evenly from a site's range
    runs = np.diff(np.flatnonzero(np.r_[True, ~again, True]))
    equal = _pairs(runs)  # within sites; and so many if as often as between them:
    between = _pairs(np.unique(values, return_counts=True)[1]) - equal
    alike = between * _pairs(n) / max(_pairs(np.array([len(values)])) - _pairs(n), 1.0)
    huge = bool(np.abs(values).min() > (EXACT if again.any() else HUGE))
    return huge or drawn >= max(BY_CHANCE, 10 * int(again.sum())) or alike >= max(BY_CHANCE, 10 * equal)


def _pairs(times: Array) -> float:
    return float((times * (times - 1)).sum()) / 2


def _codes(values: Array) -> tuple[Ints, Ints]:
    """The number of each row's value in their order, and how often it occurs."""
    words = values.astype(str) if values.dtype.kind == "O" else values
    _, code, times = np.unique(words, return_inverse=True, return_counts=True)
    return code, times[code]


def _tell(values: Array, kinds: Ints) -> bool:
    """True if a row is of the kind that most rows of its value are or, if no other has it, those of the next lower one.

    All rows are but 1 % and one for each kind, and that not for want of rows of other kinds than the commonest.
    """
    present = ~gaps_in(values)
    (code, times), kinds = _codes(values[present]), kinds[present]
    if len(kinds) <= ENOUGH:
        return False
    told = most_frequent(code, kinds)[np.where(times == 1, np.maximum(code - 1, 0), code)]
    n, wrong = np.bincount(kinds), int((told != kinds).sum())
    return bool(wrong <= (n > 0).sum() + len(kinds) / 100 and len(kinds) - n.max() >= max(ENOUGH, 10 * wrong))


def _give(values: Array, target: Array) -> bool:
    present = ~gaps_in(values) & ~gaps_in(target)
    values, of, words = values[present], _codes(target[present])[0], values.dtype.kind == "O"
    known, kinds = np.unique(of, return_inverse=True)
    if len(kinds) <= ENOUGH or len(known) < 2 or (min(np.bincount(kinds)) < FEW_ROWS and len(known) == 2):
        return False
    if len(known) > 2 and (len(known) <= MOST_CLASSES or target.dtype.kind not in "iuf"):
        return _tell(values, kinds)
    if len(known) > 2:
        return not words and len(set(values.tolist())) > 1 and abs(_correlation(values, kinds)) > IN_STEP
    code, times = _codes(values)
    event = kinds == 1
    # The share of events in other rows of the value: a row's own would tell of itself.
    others = (np.bincount(code, event)[code] - event) / np.maximum(times - 1, 1)
    by_value = _auroc(np.where(times > 1, others, event.mean()), event)
    by_order = 0.5 if words else _auroc(values, event)
    return max(by_value, by_order, 1 - by_order) > TOO_GOOD


def _auroc(scores: Array, event: Array) -> float:
    n = int(event.sum())
    return float((rankdata(scores)[event].sum() - n * (n + 1) / 2) / (n * (len(event) - n)))


def _correlation(one: Array, other: Array) -> float:
    return float(np.corrcoef(rankdata(one), rankdata(other))[0, 1])
