"""The place of a row as its owner finds it: a line of a file, or its number in a table without lines."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

Place = Callable[[int], str]
"""The place of the row of that number."""


def by_number(row: int) -> str:
    """The place of a row of a table in memory, as its library counts: from 0."""
    return f"row {row}"


_place: ContextVar[Place] = ContextVar("place", default=by_number)


def place(row: int | np.int64) -> str:
    """The place of a row of the table that is being read.

    >>> place(3)
    'row 3'
    """
    return _place.get()(int(row))


@contextmanager
def rows_at(of: Place) -> Iterator[None]:
    """Within it rows are those of a table that says where they stand."""
    before = _place.set(of)
    try:
        yield
    finally:
        _place.reset(before)
