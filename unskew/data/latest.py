"""Sets the latest rows of each client aside for testing, so that no model is trained on rows later than its test rows.

Validation rows are the latest of the others.  Rows of equal times are on one side of a cut.  Of a patient (or machine)
with rows on both sides, the later ones are test rows and the earlier ones are left out.
"""

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from unskew.data.places import Place, by_number
from unskew.errors import ConfigError, DataError
from unskew.words import composed, counted

Bools = npt.NDArray[np.bool_]
Times = npt.NDArray[Any]

ISO = "as in 2024-06-30 or 2024-06-30T14:00"


@dataclass(frozen=True)
class Latest:
    """Test rows are each client's latest; in a file `test = { latest = "admitted", after = "2024-06-30" }`.

    Attributes:
        latest: Column of the time of each row, in dates or numbers; it is no input.  Beside (x, y) an array of times,
            beside {client: (x, y)} one for each client.
        after: The last date, or number, of training: a year, a month, a day or a time.  Test rows are all later ones.
        share: Share of each client's rows, if no date is given; by default `test_fraction`.
        gap: Days (or units of numbers) that are in no part: those after the date, or those before a client's first test
            row.  It needs clients of the data's own.
    """

    latest: Any
    after: date | str | float | None = None
    share: float | None = None
    gap: float = 0.0

    def __post_init__(self) -> None:
        """Normalise the column's name (Unicode NFC), and write a date as text.

        Raises:
            ConfigError: If there are both a date and a share, one is invalid, or the gap is no length.
        """
        if isinstance(self.latest, str):
            object.__setattr__(self, "latest", composed(self.latest))
        if isinstance(self.after, date):
            object.__setattr__(self, "after", self.after.isoformat())
        if self.after is not None and self.share is not None:
            raise ConfigError("after and share exclude each other; leave one out")
        if self.share is not None and not 0 < self.share < 1:
            raise ConfigError(f"share must be above 0 and below 1, got {self.share:g}")
        if not 0 <= self.gap < math.inf:
            raise ConfigError(f"gap must be a number of days, 0 or more, got {self.gap!r}")
        if isinstance(self.after, bool) or (isinstance(self.after, str) and _border(self.after) is None):
            raise ConfigError(f"after must be a date, {ISO} without a time zone, or a number, got {self.after!r}")

    @property
    def column(self) -> str | None:
        """The column of a table; None where times are given directly."""
        return self.latest if isinstance(self.latest, str) else None

    @property
    def where(self) -> str:
        """What holds the times, for messages."""
        return "latest" if self.column is None else f"column {self.column!r}"

    def is_after(self, when: Times, gap: float = 0.0) -> Bools:
        """Which rows are later than `after`, by more than a gap if there is one.

        Raises:
            DataError: If one is a date and the other a number.
        """
        dates = when.dtype.kind == "M"
        after = self.after if isinstance(self.after, str) else written(self.after)
        border = _border(after) if dates else _number(after)  # a bare year is either
        if border is None:
            kind, way = ("dates", f"one, {ISO}") if dates else ("numbers", "one")
            given, held = f"test.after is {self.after!r}", f"{kind}, such as {written(when[0])}"
            raise DataError(f"{given}, and {self.where} holds {held}; give {way}")
        later: Bools = when > border + _length(gap, when)
        return later


def _border(after: str) -> np.datetime64 | None:
    """The last moment of a year, a month, a day, or a minute; None for anything else."""
    with suppress(ValueError):
        if re.fullmatch(r"\d{4}(-\d\d(-\d\d([T ][\d:.]+)?)?)?", after):
            end: np.datetime64 = (np.datetime64(after) + 1).astype("datetime64[us]") - np.timedelta64(1, "us")
            return end
    return None


def _length(gap: float, when: Times) -> Any:
    """A length of time that can be added to times like these: days, of numbers the number."""
    return np.timedelta64(round(gap * 86_400_000_000), "us") if when.dtype.kind == "M" else gap


def _number(after: str) -> float | None:
    with suppress(ValueError):
        return float(after)
    return None


def moments(values: Any, where: str, place: Place = by_number) -> Times:
    """Times of the rows: from dates, times, ISO text, or numbers.

    They are in microseconds UTC, or numbers.  `where` names their source in a message.

    Raises:
        DataError: If a row has none, or something else, or kinds are mixed.
    """
    listed = values.tolist() if hasattr(values, "numpy") else list(values)  # of datetime64 NumPy lists numbers
    read = list(map(_moment, listed))
    if (bad := next((i for i, moment in enumerate(read) if moment is None), None)) is not None:
        got = f"{str(listed[bad])!r} in {place(bad)}"
        raise DataError(f"{where} must hold dates in ISO form, {ISO}, or numbers, got {got}")
    kinds = [(type(moment), isinstance(moment, datetime) and moment.tzinfo is not None) for moment in read]
    if other := next((i for i, kind in enumerate(kinds) if kind != kinds[0]), None):
        one, two = (f"{str(listed[i])!r} in {place(i)}" for i in (0, other))
        raise DataError(f"{where} holds {one} and {two}: give all as dates, all with a time zone, or all as numbers")
    if not kinds or kinds[0][0] is float:
        return np.array(read, np.float64)
    plain = [moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment for moment in read]
    return np.array(plain, "datetime64[us]")


def _moment(value: Any) -> Any:
    """A date or a time as Python's datetime, or a number; None for anything else."""
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    text = value.isoformat() if isinstance(value, date) else value  # pandas' has nanoseconds, which are cut off
    if isinstance(text, str):
        with suppress(ValueError):
            return datetime.fromisoformat(text.strip())
        value = _number(text)
    if not isinstance(value, int | float | np.number) or isinstance(value, bool | np.timedelta64):
        return None
    return float(value) if np.isfinite(value) else None


def written(moment: Any) -> str:
    """A time as text: without hours at midnight, a whole number without decimals."""
    if not isinstance(moment, np.datetime64):
        return str(int(moment)) if float(moment).is_integer() else repr(float(moment))
    return str(moment).removesuffix(".000000").removesuffix("T00:00:00")


def latest(when: npt.NDArray[Any], share: float, patients: npt.NDArray[np.int64] | None = None) -> tuple[Bools, Bools]:
    """Which of one client's rows are the latest, and which of the others may be trained on.

    The share is met as nearly as possible, half rounded up: rows of equal times stay together, and one time stays for
    training.  Earlier rows of patients among the latest are in neither; if no row were left to train on, nothing is set
    aside.

    >>> latest(np.array([3, 1, 2, 3, 0]), 0.2)[0]
    array([ True, False, False,  True, False])
    """
    if not len(when):
        return np.zeros(0, bool), np.zeros(0, bool)
    _, of_row, counts = np.unique(when, return_inverse=True, return_counts=True)
    later = len(when) - counts.cumsum()  # rows after each time
    late = of_row > np.abs(later - share * len(when)).argmin()
    early = _new(late, patients)
    return (late, early) if early.any() else (np.zeros_like(late), np.ones_like(late))


def _new(late: Bools, patients: npt.NDArray[np.int64] | None) -> Bools:
    """True for the rows that are not late, of patients who are not there later."""
    return ~late if patients is None else ~late & ~np.isin(patients, patients[late])


def cut(
    rule: Latest,
    when: Times,
    fraction: float,
    clients: Sequence[str] | None = None,
    patients: npt.NDArray[np.int64] | None = None,
) -> tuple[Bools, Bools, list[str], str]:
    """Cut the rows of all clients, by the time, client and patient of each; no two clients share a patient.

    A `fraction` of each client's rows is late, unless the rule has a date or a share.

    Returns:
        Which rows are for training and which for testing, bool (N,).  Then notes on what is left out, and an error if
        the cut is impossible (empty if not).

    Raises:
        DataError: If a number is given for dates, or a date for numbers.
    """
    names, owner = np.unique(np.array(clients or ["the table"] * len(when), object), return_inverse=True)
    rows = {str(name): np.flatnonzero(owner == i) for i, name in enumerate(names)}
    test = np.zeros(len(when), bool) if rule.after is None else rule.is_after(when, rule.gap)
    early = ~test if rule.after is None else ~rule.is_after(when)
    for of in rows.values() if rule.after is None else ():
        test[of], _ = latest(when[of], fraction if rule.share is None else rule.share)
        early[of] = ~test[of]
        if rule.gap and test[of].any():
            early[of] = when[of] < when[of][test[of]].min() - _length(rule.gap, when)
    train = _new(test, patients) & early
    refusal, notes = "", list[str]()
    where = "the cut in time" if rule.after is None else str(rule.after)
    for name, of in rows.items():
        ends = f"its rows are from {written(when[of].min())} to {written(when[of].max())}"
        if not train[of].any() and not refusal:
            later = ", and everybody there comes again later" * bool(early[of].any())
            refusal = f"{name} has nothing to train on before {where} ({ends}{later}): cut later, or leave it out"
        elif not test[of].any():
            notes.append(f"{name} has no row after {where}, so none tests there ({ends}): cut earlier, or by a share")
    if not test.any() and not refusal:
        refusal, notes = notes[0], []
    if patients is not None and (again := early & ~train).any():
        notes.append(
            f"{counted(len(np.unique(patients[again])), 'patient')} with rows before and after the cut in time: "
            f"{counted(int(again.sum()), 'earlier row')} left out, so that nobody is in training and in testing"
        )
    return train, test, notes, refusal
