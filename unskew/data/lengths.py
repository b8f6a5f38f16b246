"""Refuses words that are too long to be labels, names or categories.

NumPy keeps every word of an array as wide as the longest: with one of a million characters, 500 labels take 2 GB.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from unskew.data.places import place
from unskew.errors import DataError

LONGEST = 1000
"""Characters that a label, a category or the name of a client or class has at most."""


def check_words(values: Iterable[object], what: str) -> None:
    """Refuse a column with a word that is too long; what is no word is not looked at.

    Raises:
        DataError: Naming its row.
    """
    for i, value in enumerate(values):
        if isinstance(value, str | bytes) and len(value) > LONGEST:
            raise too_long(what, len(value), i)


def too_long(what: str, length: int, row: int) -> DataError:
    """The error for a word of a column that is too long."""
    return DataError(
        f"{what} holds a text of {length:,} characters in {place(row)}, and a label, a name or a category has at most "
        f"{LONGEST:,}; shorten it, or leave the column or the row out"
    )


def names_array(names: Sequence[str], what: str) -> npt.NDArray[np.str_]:
    """Names as an array.

    Raises:
        DataError: If one is too long.
    """
    for i, name in enumerate(names):
        if len(name) > LONGEST:
            raise _too_long_name(f"{what}[{i}]", len(name))
    return np.array(names, np.str_)


def check_array(values: npt.NDArray[np.str_], what: str) -> None:
    """Refuse an array with a word that is too long.

    Raises:
        DataError: Naming its entry.
    """
    if values.dtype.itemsize <= 4 * LONGEST or values.size == 0:
        return
    lengths = np.char.str_len(values)
    i = int(lengths.argmax())
    if lengths.flat[i] > LONGEST:
        raise _too_long_name(f"{what}[{i}]", int(lengths.flat[i]))


def _too_long_name(which: str, length: int) -> DataError:
    return DataError(f"{which} has {length:,} characters, and a label or a name has at most {LONGEST:,}; shorten it")
