"""Targets: the forms that an example's label may have, and how it is read and refused.

    CLASS      a class, (N,) int64 from 0
    NUMBER     a number, (N,) float32, or several, (N, numbers), as of a forecast of several steps
    SURVIVAL   a time and whether the event happened then, (N, 2) float32: [time, 1.0] or, censored, [time, 0.0]
    LABELS     for each of several labels whether it applies, (N, labels) float32 of 0 and 1
    MAP        a class for each place, as a mask has for each pixel, (N, height, width) int64; `IGNORED` where none is
    TOKENS     the token that follows each of the last positions, (N, positions) int64; `IGNORED` where none is to learn

Data are divided, counted and drawn by **groups** of examples.  Groups are classes, or for other targets those of the
form (censored or not), the bins of `task.bins`, or one group of all.

A kind of task names the form of its targets; another form is your own `Targets`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from unskew.errors import DataError

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]


IGNORED = -100
"""The target of a position that counts nowhere, as PyTorch's cross-entropy leaves it out by default."""

LabelType = Literal["text", "integer", "boolean"]
"""The type of the labels that classes were named after."""

Label = str | int | bool

_INTEGER = re.compile("0|-?[1-9][0-9]{0,18}")
_TRUTHS: dict[str, Label] = {"False": False, "True": True}


def labels_of(names: Sequence[str], label_type: LabelType) -> tuple[Label, ...]:
    """The labels that these class names stand for.

    >>> labels_of(("0", "7"), "integer")
    (0, 7)
    """
    if label_type == "integer":
        return tuple(map(int, names))
    return tuple(_TRUTHS[name] for name in names) if label_type == "boolean" else tuple(names)


def mislabelled(names: Sequence[str], label_type: LabelType) -> str:
    """A sentence on the first name that is no label of this type; empty if all are."""
    if label_type == "text":
        return ""
    odd = next((n for n in names if not (_INTEGER.fullmatch(n) if label_type == "integer" else n in _TRUTHS)), None)
    what = "a whole number" if label_type == "integer" else "True or False"
    return "" if odd is None else f"the labels are of type {label_type}, and class {odd[:40]!r} is not {what}"


class RowError(DataError):
    """A target that is refused.

    Attributes:
        row: Its row.
        what: The problem, and what to do.
    """

    def __init__(self, where: str, row: int, what: str) -> None:
        super().__init__(f"{where}[{row}] {what}")
        self.row, self.what = row, what


def _not_read(where: str, values: Array) -> Array:
    raise AssertionError(f"{where}: classes are read with their names")


def _numbered(columns: int) -> tuple[str, ...]:
    return tuple(map(str, range(columns))) if columns > 1 else ("target",)


@dataclass(frozen=True, eq=False)
class Targets:
    """A form of targets.

    Attributes:
        name: Its name in messages and in files of data.
        what: The targets in words, as in "learns numbers".
        read: (place, values) to the targets as stored; raises `DataError`, or `RowError` for the first row refused.
        groups: Names of the groups by which examples are counted; for classes, the data's.
        group_of: The group of each target, (N,) int64; by default one group.
        outputs: Names of a network's outputs where the data have none, from the number of a target's columns.
        tokens: True if a target is a class at each of several places, or a token id if inputs are token ids.
    """

    name: str
    what: str
    read: Callable[[str, Array], Array] = _not_read
    groups: tuple[str, ...] = ("all",)
    group_of: Callable[[Array], Ints] | None = None
    outputs: Callable[[int], tuple[str, ...]] = _numbered
    tokens: bool = False

    @property
    def classes(self) -> bool:
        """True if a target is a class."""
        return self.name == "class"

    def counted(self, values: Array) -> Ints:
        """The group of each target, (N,) int64."""
        return np.zeros(len(values), np.int64) if self.group_of is None else self.group_of(values)


def _finite(where: str, values: Array) -> npt.NDArray[np.float64]:
    """Numbers as floats, none of them missing.

    Raises:
        DataError: Naming the first row that is not a number.
    """
    if values.dtype.kind not in "fiub":
        for i, row in enumerate(values):
            for value in np.ravel(row).tolist():
                if value is None:
                    raise RowError(where, i, "has no value; leave the row out")
                if isinstance(value, timedelta | np.timedelta64):
                    way = "make a number of it, such as days by .dt.total_seconds() / 86400"
                    raise RowError(where, i, f"is the span of time {value}; {way}, in one unit at all sites")
                if not isinstance(value, bool | int | float):
                    raise RowError(where, i, f"is {value!r}, a number is needed")
        values = values.astype(np.float64)
    with np.errstate(over="ignore"):
        bad = np.flatnonzero(~np.isfinite(values.astype(np.float32)).reshape(len(values), -1).all(1))
    if len(bad):
        state = "has no value" if np.isnan(values[bad[0]]).any() else "is infinite"
        raise RowError(where, int(bad[0]), f"{state}; leave the row out")
    return np.asarray(values, np.float64)


def _read_numbers(where: str, values: Array) -> Array:
    numbers = _finite(where, values).astype(np.float32).reshape(len(values), -1)
    return numbers[:, 0] if numbers.shape[1] == 1 else numbers


def _read_times(where: str, values: Array) -> Array:
    for i, event in enumerate(values[:, 1].tolist() if values.ndim == 2 and values.shape[1] == 2 else ()):
        if isinstance(event, str):
            raise RowError(where, i, f"has the event {event!r}, must be 1 (it happened) or 0 (censored)")
    times = _finite(where, values.reshape(len(values), -1))
    if times.shape[1] != 2:
        raise DataError(f"{where} must have two columns, time and event, got {times.shape[1]}")
    odd = np.flatnonzero((times[:, 1] != 0) & (times[:, 1] != 1))
    if len(odd):
        raise RowError(
            where,
            int(odd[0]),
            f"has the event {times[odd[0], 1]:g}, must be 1 (it happened) or 0 (censored); the columns are time, then "
            "event",
        )
    early = np.flatnonzero(times[:, 0] < 0)
    if len(early):
        raise RowError(where, int(early[0]), f"has the time {times[early[0], 0]:g}, must be at least 0")
    return times.astype(np.float32)


def _read_labels(where: str, values: Array) -> Array:
    labels = _finite(where, values)
    if labels.ndim != 2:
        raise DataError(f"{where} must have the shape (N, labels), got {labels.shape}")
    odd = np.flatnonzero(((labels != 0) & (labels != 1)).any(1))
    if len(odd):
        raise RowError(where, int(odd[0]), f"must have a 0 or 1 for each label, got {labels[odd[0]].tolist()}")
    return labels.astype(np.float32)


def _read_tokens(where: str, values: Array) -> Array:
    if values.dtype.kind not in "iu" or values.ndim not in (1, 2):
        raise DataError(f"{where} must be whole numbers, (N, positions) or (N,), got {values.dtype} {values.shape}")
    return _not_all_ignored(where, np.ascontiguousarray(values.reshape(len(values), -1), np.int64))


def _not_all_ignored(where: str, places: Array) -> Array:
    if len(nothing := np.flatnonzero((places == IGNORED).reshape(len(places), -1).all(1))):
        raise RowError(where, int(nothing[0]), f"is {IGNORED} everywhere, and nothing is learned of it; leave it out")
    return places


def _read_map(where: str, values: Array) -> Array:
    places = _finite(where, values)
    if places.ndim == 4 and 1 in (places.shape[1], places.shape[3]):
        places = places[:, 0] if places.shape[1] == 1 else places[..., 0]
    if places.ndim < 2 or (places % 1).any():
        raise DataError(f"{where} must be whole numbers, a class for each pixel, got {values.dtype} of {values.shape}")
    black_and_white = places.size and set(np.unique(places).tolist()) == {0.0, 255.0}  # as masks are kept in files
    return _not_all_ignored(where, (places / 255 if black_and_white else places).astype(np.int64))


CLASS = Targets("class", "classes")
NUMBER = Targets("number", "numbers", _read_numbers)
SURVIVAL = Targets(
    "survival",
    "times and events",
    _read_times,
    groups=("censored", "event"),
    group_of=lambda values: values[:, 1].astype(np.int64),
    outputs=lambda columns: ("risk",),
)
LABELS = Targets("labels", "several labels an example", _read_labels, outputs=_numbered)
MAP = Targets("map", "a class for each place", _read_map, tokens=True)
TOKENS = Targets("tokens", "the next token", _read_tokens, tokens=True)
