"""Places of data: the path that a user has written, and the place of a row as its owner finds it.

A row's place is a line of a file, or its number in a table without lines.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import numpy as np

from unskew.errors import DataError


def path_of(written: str | Path) -> Path:
    """The path that a user has written, ~ for the home folder; there may be nothing at it.

    Raises:
        DataError: If it cannot be the path of anything, or may not be looked at.
    """
    try:
        path = Path(written).expanduser()
        path.exists()
    except RuntimeError:
        raise DataError(f"{written}: there is no home folder of that user here; write the whole path") from None
    except OSError as error:
        raise DataError(f"{str(written)[:200]} cannot be looked at: {error.strerror}; give another path") from None
    # Path.exists is merely false for it, and whatever opens it fails.
    if "\0" in str(path):
        raise DataError(f"the path {str(written)[:200]!r} has a NUL character in it, which no path has; remove it")
    return path


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
    """Name rows by where they stand in their table, within the block."""
    before = _place.set(of)
    try:
        yield
    finally:
        _place.reset(before)
