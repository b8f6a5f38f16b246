"""Refuses words that are too long to be labels, names or categories.

NumPy keeps every word of an array as wide as the longest: with one of a million characters, 500 labels take 2 GB.
"""

from collections.abc import Iterable

from unskew.data.places import place
from unskew.errors import DataError

LONGEST = 1000
"""Characters that a label, a category or the name of a client or class has at most."""


def check_words(values: Iterable[object], what: str) -> None:
    """Refuse a column, or names, with a word that is too long; what is no word is not looked at.

    Raises:
        DataError: Naming its row.
    """
    for i, value in enumerate(values):
        if isinstance(value, str | bytes) and len(value) > LONGEST:
            raise DataError(
                f"{what} holds a text of {len(value):,} characters in {place(i)}, and a label, a name or a category "
                f"has at most {LONGEST:,}; shorten it, or leave the column or the row out"
            )
