"""Keeps the rows of one patient, or of whoever has several rows, together.

A model that has seen a patient knows more of the patient's other rows than of anybody else's, so a patient's rows lie
all in training, all in validation or all in a test part.  Patients are codes, one for each row.  One who is at several
clients is drawn at the one that has most of the rows.
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
    """A sentence on the first column that seems to say who is in a row; none where none does.

    Such a column is called as they are, and somebody has several rows.
    """
    for name, values in columns.items():
        if _WHO.fullmatch(name.strip()) and FEWEST < len(set(values)) < len(values):
            several = f"column {name!r} seems to say who is in a row, of whom some have several"
            return [f"{several}: name it with patient = {name!r}, so that nobody is in training and in testing"]
    return []


PatientIds = Literal["site", "network"]
"""Whose ids of patients are: each site's own, so that two sites' 17 are two people, or the network's."""


def coded(names: Sequence[str], clients: Sequence[str] | None, ids: PatientIds | None) -> Ints:
    """A code for each row's patient, by who it is and at which client.

    17 and 17.0 are one, and so are names that differ in spaces at their ends.

    Raises:
        DataError: If a name occurs at several clients, and `ids` does not say whether it is one person, or is neither.
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
        raise DataError(f"{n} at several sites, such as {such}: one person, patient_ids = 'network', or not, 'site'?")
    code: dict[tuple[str, str], int] = {}
    who = [("", name) if ids == "network" else (client, name) for client, name in pairs]
    return np.array([code.setdefault(one, len(code)) for one in who], np.int64)


def fewest_of_a_class(patients: Tensor, labels: Tensor, event: int | None = None) -> int:
    """The smallest number of patients that have a row of one class; those that have one of class `event`, if given."""
    kinds = set(labels.tolist()) if event is None else [event]
    return min(len(set(patients[labels == kind].tolist())) for kind in kinds)


def by_patient(rows: npt.NDArray[np.float64], patients: Ints | None) -> npt.NDArray[np.float64]:
    """A value of each patient in place of one of each row: their mean is that of the rows.

    Their variance over their number is that of the rows' mean where patients are drawn and not rows: with d_p the sum
    of a patient's differences from the mean, and m rows of a patient on average, the values are mean + d_p / m
    (linearised ratio estimator: W. G. Cochran, "Sampling Techniques", 3rd ed., 1977, section 9A.2).  Where each patient
    has one row, or patients are not known, it is the rows.

    >>> by_patient(np.array([1.0, 1.0, 0.0, 0.0]), np.array([5, 5, 8, 8]))
    array([1., 0.])
    """
    if patients is None or len(rows) == 0:
        return rows
    codes, of_row = np.unique(patients, return_inverse=True)
    mean = rows.mean()
    sums: npt.NDArray[np.float64] = mean + np.bincount(of_row, rows - mean) * (len(codes) / len(rows))
    return sums


def most_frequent(patients: Ints, values: Ints) -> Ints:
    """The value that most rows of each patient have, in the order of the codes; of equally many the smallest."""
    (_, of_row), (kinds, value) = (np.unique(of, return_inverse=True) for of in (patients, values))
    pairs, counts = np.unique(of_row * len(kinds) + value, return_counts=True)
    order = np.lexsort((pairs, -counts, pairs // len(kinds)))
    _, first = np.unique(pairs[order] // len(kinds), return_index=True)
    chosen: Ints = kinds[pairs[order][first] % len(kinds)]
    return chosen


def part_of(count: int, share: float) -> int:
    """The number that a share of so many patients, or rows, is: round(share * n), half up, and at least 1 is kept."""
    return max(min(int(share * count + 0.5), count - 1), 0)


def proportional(holders: Ints, labels: Ints, share: float) -> Bools:
    """True for round(share * n) of each holder's n rows, from each label as many as its share is, up to rounding.

    Half is rounded up, and at least 1 row is kept.  What whole numbers leave over goes to the labels of the largest
    fractions.  The first rows of each label are chosen: give them in an order drawn at random.
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
    """True for the rows of a share of each holder's patients, drawn evenly from those of each label."""
    codes, of_row = np.unique(patients, return_inverse=True)
    holder = np.zeros(len(codes), np.int64) if holders is None else most_frequent(patients, holders)
    order = key.numpy().permutation(len(codes))
    aside = np.zeros(len(codes), bool)
    aside[order] = proportional(holder[order], most_frequent(patients, labels)[order], share)
    chosen: Bools = aside[of_row]
    return chosen
