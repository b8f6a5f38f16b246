"""Keeps the rows of one patient (or of anybody with several rows) together.

A patient's rows are all in training, all in validation or all in a test part, since a model predicts other rows of a
known patient too well.  Patients are codes, one for each row.  A patient of several clients is drawn at the one with
most of the rows.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from torch import Tensor

from unskew.errors import DataError
from unskew.keys import Key
from unskew.words import composed, counted

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


_WHO = re.compile(r"(pat|patient|patienten|subject|person|case|fall)[ _.-]?(id|nr|no|num|number|nummer)?|pid|mrn", re.I)

FEWEST = 20
"""Names of people in a column are more than this; fewer are groups."""


def unnamed_patients(columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]]) -> list[str]:
    """A note on the first column that seems to identify patients; None without one.

    Such a column has a telling name and repeated values.
    """
    for name, values in columns.items():
        if _WHO.fullmatch(name.strip()) and FEWEST < len(set(values)) < len(values):
            several = f"column {name!r} seems to say who is in a row, of whom some have several"
            return [f"{several}: name it with patient = {name!r}, so that nobody is in training and in testing"]
    return []


PatientIds = Literal["site", "network"]
"""Whose ids of patients are: each site's own, so that two sites' 17 are two people, or the network's."""


def coded(names: Sequence[str], clients: Sequence[str] | None, ids: PatientIds | None) -> Ints:
    """A code of each row's patient, by name and client.

    17 and 17.0 are the same, and so are names that differ in spaces at their ends.

    Raises:
        DataError: If a name occurs at several clients and `ids` is not given, or invalid.
    """
    if ids not in (None, *get_args(PatientIds)):
        raise DataError(f"patient_ids must be 'network' or 'site', got {ids!r}")
    names = [composed(name.strip().removesuffix(".0")) for name in names]
    pairs = list(zip(clients or [""] * len(names), names, strict=True))
    at = Counter(name for _, name in dict.fromkeys(pairs))
    if ids is None and (several := [name for name, count in at.items() if count > 1]):
        where = list(dict.fromkeys(client for client, name in pairs if name == several[0]))
        n = f"{counted(len(several), 'patient id')} occur{'s' * (len(several) == 1)}"
        such = f"{several[0]} at {where[0]} and {where[1]}"
        raise DataError(f"{n} at several sites, such as {such}; patient_ids = 'network' for one person, else 'site'")
    code: dict[tuple[str, str], int] = {}
    who = [("", name) if ids == "network" else (client, name) for client, name in pairs]
    return np.array([code.setdefault(one, len(code)) for one in who], np.int64)


def fewest_of_a_class(patients: Tensor, labels: Tensor, event: int | None = None) -> int:
    """The smallest number of patients with a row of one class; with `event`, the number with a row of that class."""
    kinds = set(labels.tolist()) if event is None else [event]
    return min(len(set(patients[labels == kind].tolist())) for kind in kinds)


def by_patient(rows: npt.NDArray[np.float64], patients: Ints | None) -> npt.NDArray[np.float64]:
    """One value for each patient instead of each row, with the same mean.

    Their variance over their number estimates that of the mean when patients are sampled and not rows.  It is the
    jackknife's (J. W. Tukey, 1958): without patient p, whose m_p of M rows differ from the mean by d_p in sum, the mean
    is lower by d_p / (M - m_p).  A linear estimate is far too small where few patients have many of the rows.  Without
    patients, or with one row each, these are the rows.

    >>> by_patient(np.array([1.0, 1.0, 0.0, 0.0]), np.array([5, 5, 8, 8]))
    array([1., 0.])
    """
    if patients is None or len(rows) == 0:
        return rows
    _, of_row, m = np.unique(patients, return_inverse=True, return_counts=True)
    mean, others = rows.mean(), len(rows) - m
    without = np.divide(np.bincount(of_row, rows - mean), others, out=np.zeros(len(m)), where=others > 0)
    values: npt.NDArray[np.float64] = mean + (len(m) - 1) * (without - without.mean())
    return values


def most_frequent(patients: Ints, values: Ints) -> Ints:
    """The commonest value of each patient's rows, in the order of the codes; ties go to the smallest."""
    (_, of_row), (kinds, value) = (np.unique(of, return_inverse=True) for of in (patients, values))
    pairs, counts = np.unique(of_row * len(kinds) + value, return_counts=True)
    order = np.lexsort((pairs, -counts, pairs // len(kinds)))
    _, first = np.unique(pairs[order] // len(kinds), return_index=True)
    chosen: Ints = kinds[pairs[order][first] % len(kinds)]
    return chosen


def part_of(count: int, share: float) -> int:
    """round(share * count), half up, at most count - 1."""
    return max(min(int(share * count + 0.5), count - 1), 0)


def proportional(holders: Ints, labels: Ints, share: float) -> Bools:
    """Selects round(share * n) of each holder's n rows, in proportion to its labels up to rounding.

    Halves are rounded up, and at least 1 row is kept.  Remainders go to the labels with the largest fractions.  The
    first rows of each label are selected, so give them in random order.
    """
    (_, holder), (kinds, label) = (np.unique(of, return_inverse=True) for of in (holders, labels))
    _, first, group, size = np.unique(
        holder * len(kinds) + label, return_index=True, return_inverse=True, return_counts=True
    )
    count = np.minimum((share * size + 1e-9).astype(np.int64), size - 1)
    whose, whole = holder[first], np.bincount(holder)  # ascending: groups are in the order of their holders
    wanted = np.clip((share * whole + 0.5).astype(np.int64), 0, whole - 1)
    left_over = wanted - np.bincount(whose, count, len(whole)).astype(np.int64)
    ranked = np.lexsort((first, -(share * size - count).round(9), whose))
    count[ranked] += _place(whose) < left_over[whose]
    order = np.argsort(group, kind="stable")
    chosen = np.zeros(len(holders), bool)
    chosen[order] = _place(group[order]) < count[group[order]]
    return chosen


def _place(groups: Ints) -> Ints:
    """The place of each element among those of its group, from 0; those of a group stand together, ascending."""
    place: Ints = np.arange(len(groups)) - np.searchsorted(groups, groups)
    return place


def set_aside(patients: Ints, holders: Ints | None, labels: Ints, share: float, key: Key) -> Bools:
    """Selects the rows of a share of each holder's patients, drawn in proportion to their labels."""
    codes, of_row = np.unique(patients, return_inverse=True)
    holder = np.zeros(len(codes), np.int64) if holders is None else most_frequent(patients, holders)
    order = key.numpy().permutation(len(codes))
    aside = np.zeros(len(codes), bool)
    aside[order] = proportional(holder[order], most_frequent(patients, labels)[order], share)
    chosen: Bools = aside[of_row]
    return chosen
