"""Columns of tables: how many there may be, and their names in one form of Unicode, also in settings."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from unskew.errors import DataError
from unskew.words import composed

MOST = 1 << 16
"""Most columns of a table: each is looked at by itself, which takes half a millisecond."""


def check_width(columns: int, what: str) -> None:
    """Refuse a table of more columns than can be looked at, one by one.

    Raises:
        DataError: If so.
    """
    if columns > MOST:
        raise DataError(
            f"{what} has {columns:,} columns, and a table has {MOST:,} at most; keep fewer, or give an array (npz:PATH)"
        )


def composed_names(names: Any) -> Any:
    """A name of a column, or several, composed; anything else as it is.

    >>> composed_names(("a\u0308ge", None)) == ("\u00e4ge", None)
    True
    """
    if isinstance(names, list | tuple):
        return type(names)(map(composed_names, names))
    return composed(names) if isinstance(names, str) else names


def with_composed_columns(data: Any, what: str = "the table") -> Any:
    """A table, or data that hold some, with columns whose names are composed; anything else as it is.

    Args:
        data: A DataFrame or a Hugging Face dataset, a mapping of such, or a tuple that begins with one.
        what: What it is called in an error.

    Raises:
        DataError: If two columns of a table are then one, or there are too many.
    """
    if isinstance(data, Mapping):
        parts = {key: with_composed_columns(of, f"the table of {key}") for key, of in data.items()}
        return parts if any(parts[key] is not of for key, of in data.items()) else data
    if isinstance(data, tuple | list):
        first = with_composed_columns(data[0], what) if len(data) in (2, 3) else None
        return data if first is None or first is data[0] else (first, *data[1:])
    of_hugging_face = hasattr(data, "column_names") and hasattr(data, "features")
    if not of_hugging_face and not (hasattr(data, "to_numpy") and hasattr(data, "columns")):
        return data
    known = list(data.column_names if of_hugging_face else data.columns)
    check_width(len(known), what)
    changed = {name: composed(name) for name in known if composed_names(name) != name}
    if not changed:
        return data
    check_one_form(known, what)
    if of_hugging_face:
        return data.rename_columns(changed)
    return data.rename(changed) if type(data).__module__.startswith("polars") else data.rename(columns=changed)


def composed_test(test: Any) -> Any:
    """The setting `test` of data at hand: a column's name, or tables, composed; rows of numbers or texts as they are.

    Raises:
        DataError: As in `with_composed_columns`.
    """
    return composed(test) if isinstance(test, str) else with_composed_columns(test, "test")


def check_one_form(names: Any, what: str) -> None:
    """Refuse two names of columns that differ in their form of Unicode alone.

    Raises:
        DataError: If there are such names.
    """
    different = dict.fromkeys(names)
    name, count = Counter(map(composed_names, different)).most_common(1)[0] if different else ("", 0)
    if count > 1:
        raise DataError(
            f"{what} has {count} columns {name!r}, which differ in their form of Unicode alone (an é is one character, "
            "or two as macOS writes it); rename or remove all but one"
        )
