"""Columns: frames of any library (by narwhals), lists, tensors and arrays become numbers, words and gaps."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import narwhals as nw
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unskew.data.places import Place, by_number
from unskew.errors import DataError, did_you_mean
from unskew.words import composed, with_article

Array = npt.NDArray[Any]
RawTable = Mapping[str, Array]
"""Columns by name, of one length: numbers as float64 with NaN for a gap, or words as objects with None for a gap."""

GAPS = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "null", "NULL", "None", "?")
"""Words of a CSV file that mean that there is no value."""

WRITTEN = "separator, decimal, thousands, encoding or gaps, which say how a CSV file is written"
"""What to set where numbers were read as words."""

_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([ T].*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}")
_PLAIN = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{0,30})?")
_LIKE_A_NUMBER = re.compile(r"[+-]?(?!0[0-9])[0-9.,'\u2019\s]*[0-9][0-9.,'\u2019\s]*([eE][+-]?[0-9]+)?")


# ---------------------------------------------------------------- values
def is_gap(value: object) -> bool:
    """True for a missing value: None, NaN, pandas' NA and NaT, NumPy's NaT, and blank text."""
    return (
        value is None
        or (isinstance(value, str) and not value.strip())
        or (isinstance(value, float | np.datetime64 | np.timedelta64) and value != value)
        or type(value).__name__ in ("NAType", "NaTType")
    )


def is_date(value: object) -> bool:
    """True for a date, and for text in the form of one."""
    return (
        hasattr(value, "year")
        or isinstance(value, np.datetime64)
        or (isinstance(value, str) and _DATE.fullmatch(value.strip()) is not None)
    )


def value_of(word: str) -> float | None:
    """The number in a short word with a decimal point; None for other words.

    >>> value_of("-99"), value_of("k.A.")
    (-99.0, None)
    """
    return float(word) if _PLAIN.fullmatch(word) else None


def word(number: float) -> str:
    """A numeric code as a word: 3.0 is "3"; True is "True"."""
    if isinstance(number, bool):
        return str(number)
    return str(int(number)) if float(number).is_integer() else repr(float(number))


def gap_numbers(gaps: Sequence[str]) -> list[float]:
    """The numbers among the words for a missing value."""
    return [value for word in gaps if (value := value_of(word)) is not None]


def gaps_in(values: Array) -> npt.NDArray[np.bool_]:
    """Where a column has no value, bool (N,)."""
    return np.isnan(values) if values.dtype.kind == "f" else np.array([v is None for v in values], bool)


def numbers_as_words(words: Iterable[str]) -> str:
    """A word of a column with more than ten different ones that are mostly numbers; empty for any other column."""
    known = sorted(set(words))
    like = [one for one in known if _LIKE_A_NUMBER.fullmatch(one.strip()) and not is_date(one)]
    if len(known) <= 10 or 2 * len(like) <= len(known):
        return ""
    return next((one for one in known if one not in like), next((w for w in like if value_of(w) is None), like[0]))


def natural(word: str) -> tuple[float, str]:
    """Sort key of words: numbers by size before all others."""
    number = value_of(word)
    return (float("inf") if number is None else number), word


# ---------------------------------------------------------------- columns
def cells(values: Any, what: str = "it") -> Array:
    """Values of a frame's column, a list, a tensor or an array: numbers, or objects with None for a gap.

    Masked values are gaps.  Decimals and NumPy scalars among objects become plain numbers.

    Raises:
        DataError: If it is something else.
    """
    if isinstance(values, Tensor):
        plain = values.detach().cpu()
        return np.asarray((plain.float() if plain.dtype is torch.bfloat16 else plain).numpy())  # which NumPy has not
    column = nw.from_native(values, series_only=True, pass_through=True)
    if isinstance(column, nw.Series):
        return _of_series(column)
    if isinstance(values, list | tuple) and any(isinstance(one, np.ma.MaskedArray) for one in values):
        values = np.ma.array(values)
    if np.ma.is_masked(values):
        numbers = values.dtype.kind in "fiub"
        array: Array = values.data.astype(np.result_type(values.dtype, np.float32) if numbers else object)
        array[np.ma.getmaskarray(values)] = np.nan if numbers else None
        return array if numbers else _objects(array)
    if isinstance(values, list | tuple) and any(isinstance(one, str) or is_gap(one) for one in values):
        return _objects(listed(values))  # of which NumPy would make words of gaps
    try:
        array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    except (TypeError, ValueError) as error:
        if isinstance(values, list | tuple):
            return listed([cells(one) for one in values])  # sequences, of several lengths
        raise DataError(f"{what} is not an array of numbers: {' '.join(str(error).split())}") from None
    return array if array.dtype.kind in "fiubU" else _objects(array)


def _of_series(column: "nw.Series[Any]") -> Array:
    kind = column.dtype
    if kind.is_decimal():
        column = column.cast(nw.Float64)
    if kind.is_numeric() or kind == nw.Boolean:
        array = np.asarray((column.cast(nw.Float64) if column.null_count() else column).to_numpy())
        if array.dtype.kind in "fiub":
            return array
    return _objects(listed(column.to_list()))


def listed(values: Sequence[Any]) -> Array:
    """The values as objects, (N,)."""
    array = np.empty(len(values), object)
    for i, value in enumerate(values):  # at once, NumPy would look into lists
        array[i] = value
    return array


def _objects(array: Array) -> Array:
    flat = np.fromiter(map(_plain, array.astype(object).flat), object, array.size)
    return flat.reshape(array.shape)


def _plain(value: Any) -> Any:
    if is_gap(value) and not isinstance(value, str):
        return None
    if isinstance(value, Decimal):
        return int(value) if value.is_finite() and value == value.to_integral_value() else float(value)
    # A span of time is a number to NumPy; one in nanoseconds would become a whole number.
    return value.item() if isinstance(value, np.generic) and value.dtype.kind in "biufcU" else value


def column(values: Any, gaps: Sequence[str] = (), category: bool = False) -> Array:
    """A column as float64 with NaN for a gap, or as words with None for a gap; true and false are 1 and 0.

    Other values stay, and checks name them.

    Args:
        values: The column.
        gaps: Words for a missing value; those that are numbers mean that number, too.
        category: Numbers are words, too.
    """
    array = cells(values)
    if array.dtype.kind in "fiub" and array.ndim == 1 and not category:
        numbers = array.astype(np.float64)
        return np.where(np.isin(numbers, gap_numbers(gaps)), np.nan, numbers) if gaps else numbers
    none = {*gaps, *gap_numbers(gaps)}
    plain = [None if is_gap(v) or (isinstance(v, str | int | float) and v in none) else v for v in array.tolist()]
    if category or any(isinstance(value, str) for value in plain):
        return listed([word(v) if isinstance(v, bool | int | float) else v for v in plain])
    if all(v is None or isinstance(v, bool | int | float) for v in plain):
        return np.array([np.nan if v is None else v for v in plain], np.float64)
    return listed(plain)


def no_value(name: str, values: Array, place: Place) -> str:
    """A sentence on a column with values other than numbers and words; else empty."""
    for i, value in enumerate(values.tolist() if values.dtype.kind == "O" else ()):
        if value is not None and not isinstance(value, str | int | float):
            what = with_article("date" if is_date(value) else type(value).__name__)
            return f"column {name!r} holds {what} in {place(i)}: make numbers of them, such as days since a day"
    return ""


def kind_of_values(values: Array) -> str:
    """Words, truths or numbers, by the first value that is not missing."""
    first = next((value for value in values.flat if value is not None and value == value), 0)
    return "words" if isinstance(first, str) else "truths" if isinstance(first, bool | np.bool_) else "numbers"


# ---------------------------------------------------------------- frames
INPUTS, LABELS, PATIENTS, CLIENT, NUMBER = "\0inputs", "\0labels", "\0patients", "\0client", "\0number"
GIVEN = frozenset((INPUTS, LABELS, PATIENTS, CLIENT, NUMBER))
"""Names of columns that come without one and tell their role: arrays beside one another, and rows that were joined."""


@dataclass(frozen=True, eq=False)
class Frame:
    """Columns by name, of one length, without roles.

    Attributes:
        columns: Cells by name (Unicode NFC), or by one of `GIVEN`: inputs (N, ...), labels, patient, client and row.
        categories: Names of columns that are categories by their type.
        orders: Labels in the order of a column's type.
        names: All values of a column, in order; some may not occur.
        clients: The clients in the order given; empty if they are to be sorted.
        part: What each row is for (`unskew.data.table.TRAIN`), (N,); None if unknown.
        place: Describes the place of a row.
        name: Name of the form.
    """

    columns: dict[str, Array]
    categories: frozenset[str] = frozenset()
    orders: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    clients: tuple[str, ...] = ()
    part: npt.NDArray[np.int8] | None = None
    place: Place = by_number
    name: str = "dataframe"

    def __len__(self) -> int:
        values = next(iter(self.columns.values()), None)
        return len(values) if values is not None and values.ndim else 0

    def column(self, name: str, gaps: Sequence[str] = ()) -> Array:
        """A column as an input."""
        return column(self.columns[name], gaps, name in self.categories)


def is_frame(data: object) -> bool:
    """True for a table of a library such as pandas, Polars or Arrow."""
    try:
        native = nw.from_native(data, pass_through=True)
    except nw.exceptions.DuplicateError:
        return True
    return isinstance(native, Frame | nw.DataFrame | nw.LazyFrame)


def frame_of(data: Any, what: str = "the table") -> Frame:
    """The frame of a table of any library, or of a mapping of columns.

    Raises:
        DataError: If it is lazy, empty, or has two columns of one name.
    """
    if isinstance(data, Frame):
        return data
    if hasattr(data, "collect"):
        raise DataError(f"{what} is a lazy frame; collect() it first")
    names = list(data if isinstance(data, Mapping) else getattr(data, "columns", getattr(data, "column_names", ())))
    name, count = Counter(composed(str(one)) for one in names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise DataError(f"{what} has {count} columns {name!r}; rename or remove all but one")
    frame = nw.from_native(data, pass_through=True)
    if not isinstance(frame, nw.DataFrame):
        return Frame({composed(str(name)): cells(data[name]) for name in names})
    if not names or not len(frame):
        raise DataError(f"{what} has no {'rows' if names else 'columns'}")
    columns, categories, orders = {}, set(), {}
    for native, series in zip(names, frame.iter_columns(), strict=True):
        name = composed(str(native))
        columns[name] = cells(series)
        if series.dtype in (nw.Categorical, nw.Enum):
            categories.add(name)
            if order := order_of(series.to_native()):
                orders[name] = order
    return Frame(columns, frozenset(categories), orders)


def order_of(labels: Any) -> tuple[Any, ...]:
    """The labels in the order of an ordered category of pandas, or of an Enum of Polars; empty for anything else.

    They are words, truths or whole numbers, as other numbers are no classes.
    """
    dtype: Any = getattr(labels, "dtype", None)
    known = dtype.categories.to_list() if getattr(dtype, "ordered", type(dtype).__name__ == "Enum") else []
    return tuple(known) if all(isinstance(one, str) or one % 1 == 0 for one in known) else ()


def check_column(columns: Collection[str], name: object, setting: str, holds: str = "values") -> None:
    """Refuse a setting that does not name a column.

    Raises:
        DataError: If it is missing, or there is no such column.
    """
    known = list(columns)
    some_of = f"columns: {', '.join(known[:8])}" + (f" and {len(known) - 8} more" if len(known) > 8 else "")
    if name is None:
        raise DataError(f"{setting} must name the column of the {holds}, as in {setting}={known[-1]!r} ({some_of})")
    if name not in known:
        raise DataError(f"{setting}: there is no column {name!r}{did_you_mean(str(name), known)} ({some_of})")


def composed_names(names: Any) -> Any:
    """Names of columns in one form of Unicode (NFC); anything else as it is.

    >>> composed_names(("äge", None)) == ("äge", None)
    True
    """
    if isinstance(names, list | tuple):
        return type(names)(map(composed_names, names))
    return composed(names) if isinstance(names, str) else names


def truths(values: Iterable[Any], column: str, place: Any) -> npt.NDArray[np.bool_]:
    """Which rows are test rows, by a column of true and false; `place` describes a row.

    Raises:
        DataError: If a value is neither true nor false, or all are the same.
    """
    words = [str(word(v) if isinstance(v, int | float) else v).strip().lower() for v in values]
    if (odd := next((i for i, one in enumerate(words) if one not in _TRUTHS), None)) is not None:
        raise DataError(f"column {column!r} must say test or train, or 1 or 0, got {words[odd]!r} in {place(odd)}")
    is_test = np.array([_TRUTHS[one] for one in words], bool)
    if is_test.all() or not is_test.any():
        raise DataError(f"column {column!r} calls {'all' if is_test.all() else 'none'} of the rows test rows")
    return is_test


_TRUTHS = dict.fromkeys(("true", "test", "1", "yes"), True) | dict.fromkeys(("false", "train", "0", "no"), False)


def type_name(data: object) -> str:
    """Type, and shape or length, of a value, for messages."""
    if isinstance(data, np.ndarray | Tensor):
        return f"one array of shape {tuple(data.shape)}"
    if isinstance(data, tuple | list):
        return f"{with_article(type(data).__name__)} of {len(data)}"
    return with_article(type(data).__name__)
