"""Turns what a user gave for inputs and labels into arrays, or says why it cannot be one."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from unskew.data.image_folders import check_no_files
from unskew.data.inputs import (
    column_values,
    is_category,
    is_date,
    is_gap,
    no_number,
    numbers_as_words,
    plain_value,
    several_values,
)
from unskew.data.lengths import check_words
from unskew.data.places import place
from unskew.errors import DataError, warn
from unskew.words import composed, some, with_article

Array = npt.NDArray[Any]


def type_name(data: object) -> str:
    """Name what was given, for messages: its type, and its shape or length."""
    if isinstance(data, np.ndarray | torch.Tensor):
        return f"one array of shape {tuple(data.shape)}"
    if isinstance(data, tuple | list):
        return f"{with_article(type(data).__name__)} of {len(data)}"
    return with_article(type(data).__name__)


def check_index(x: Any, other: Any, name: str, place: str) -> None:
    """Refuse what stands beside `x` under other labels of rows: that rows belong together by position is a guess then.

    Rows that are numbered from 0 have no labels, unless the other's are these numbers in another order, or numbers in
    equal steps: those are rather two slices of one table than rows that were numbered anew.

    Raises:
        DataError: If the labels differ.
    """
    mine: Any = getattr(x, "index", None)
    its: Any = getattr(other, "index", None)
    if not (hasattr(mine, "equals") and hasattr(its, "equals")) or len(mine) != len(its) or mine.equals(its):
        return
    same = set(mine) == set(its)
    numbered = any(np.array_equal(np.asarray(index), np.arange(len(index))) for index in (mine, its))
    if numbered and not same and not (_in_steps(mine) and _in_steps(its)):
        return
    one_of = next((tuple(map(plain_value, two)) for two in zip(mine, its, strict=True) if two[0] != two[1]), None)
    if one_of is None:  # alike but for their types
        return
    differ = "the labels of that of x in another order" if same else "other labels than that of x"
    way = f"{name}.loc[x.index], or both with" if same else "both with"
    raise DataError(
        f"{place}: the index of {name} has {differ} ({one_of[1]!r} beside {one_of[0]!r}), and rows are paired by "
        f"position; give {way} .reset_index(drop=True) if they are in one order"
    )


def _in_steps(index: Any) -> bool:
    """True for the labels of a slice of a table whose rows are numbered: whole numbers, each as far from the next."""
    labels = np.asarray(index)
    return labels.dtype.kind in "iu" and len(np.unique(np.diff(labels))) <= 1


def is_text(frame: Any) -> bool:
    """True for one column alone, of texts."""
    return len(frame.columns) == 1 and _begins_with_text(frame[frame.columns[0]])


def inputs_of(values: Any, place: str) -> Array:
    """Inputs of one client or of all: texts as objects, or numbers."""
    listed = values.to_list() if hasattr(values, "to_list") else values
    if isinstance(listed, np.ndarray) and listed.dtype.kind in "OU" and listed.ndim == 1:
        listed = listed.tolist()
    if isinstance(listed, list | tuple):
        check_no_files(listed, place)
    if not isinstance(listed, list | tuple) or not _begins_with_text(listed):
        return array_of(values, place)
    for i, text in enumerate(listed):
        if not isinstance(text, str):
            raise DataError(f"{place} holds texts, and {text!r} in row {i}; give a text, or leave the row out")
    texts = np.empty(len(listed), object)
    texts[:] = listed
    return texts


def _begins_with_text(values: Iterable[Any]) -> bool:
    """True if the first value that is there is a text."""
    return isinstance(next((value for value in values if not is_gap(value)), None), str)


def array_of(values: Any, place: str) -> Array:
    """An array of numbers."""
    if isinstance(values, torch.Tensor):
        plain = values.detach().cpu()
        return np.asarray((plain.float() if plain.dtype == torch.bfloat16 else plain).numpy())
    if hasattr(values, "toarray"):
        raise DataError(f"{place} is a sparse matrix; give {place}.toarray()")
    try:
        array = column_values(values)
    except (TypeError, ValueError) as error:
        raise DataError(f"{place} is not an array of numbers: {' '.join(str(error).split())}") from None
    if array.dtype.kind not in "fiub":
        check_no_files(array.reshape(-1).tolist(), place)
        raise DataError(f"{place} must hold numbers, got {array.dtype} of shape {array.shape}")
    return array


def labels_of(values: Any, place: str) -> Array:
    """Labels (N,), numbers or words; or a row of several numbers for each example."""
    if isinstance(values, torch.Tensor):
        labels = array_of(values, place)
    else:
        if isinstance(values, list | tuple):
            check_words(values, place)
            if any(isinstance(value, str) for value in values):  # an array of words would make a word of a gap
                for i, value in enumerate(values):
                    if is_gap(value):
                        raise DataError(f"{place}: the label of row {i} is missing; leave the row out")
        labels = column_values(values)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    return labels


_WORDS = {True: True, False: False, "true": True, "false": False, "test": True, "train": False, "1": True, "0": False}
_WORDS |= dict.fromkeys(("yes", "oui", "vrai", "ja", "wahr"), True)  # as Excel writes truths elsewhere
_WORDS |= dict.fromkeys(("no", "non", "faux", "nein", "falsch"), False)


def truths(values: Sequence[Any], column: str) -> npt.NDArray[np.bool_]:
    """True for test rows, by a column that says so.

    Raises:
        DataError: If a value is neither true nor false, or all are the same.
    """
    flags = []
    for i, value in enumerate(values):
        key = value.strip().lower() if isinstance(value, str) else value
        if not isinstance(key, bool | int | float | str | np.bool_) or key not in _WORDS:
            raise DataError(
                f"column {column!r} must say test or train, true or false, yes or no, or 1 or 0, got {value!r} in "
                f"{place(i)}"
            )
        flags.append(_WORDS[key])
    is_test = np.array(flags, bool)
    if is_test.all() or not is_test.any():
        raise DataError(f"column {column!r} calls {'all' if is_test.all() else 'none'} of the rows test rows")
    return is_test


def name_of_client(value: Any) -> str:
    """A client's name as text: 3.0, as pandas writes a column with gaps, is client 3."""
    return composed(str(int(value) if isinstance(value, float) and value.is_integer() else value))


def measurements(frame: Any, columns: tuple[Any, ...]) -> Array:
    """Columns of numbers as floats (N, columns)."""
    if coded := [str(column) for column in columns if is_category(frame[column]) and _all_numbers(frame[column])]:
        are, them = ("is a category", "it") if len(coded) == 1 else ("are categories", "them")
        warn(
            f"column{'s' * (len(coded) > 1)} {some(coded)} {are} of numbers, and taken as numbers: preprocess makes "
            f"0/1 columns of {them}",
        )
    return np.column_stack([measurement(column_values(frame[column]), column) for column in columns])


def _all_numbers(column: Any) -> bool:
    categories = getattr(column.cat, "categories", None)  # those of Polars are words
    return categories is not None and all(isinstance(value, int | float) for value in categories.tolist())


def measurement(values: Any, column: object) -> Array:
    """One column of numbers as floats (N,).

    Raises:
        DataError: If it holds something else, naming the first row that does.
    """
    array = np.asarray(values)
    if array.ndim != 1:
        raise several_values(column)
    if array.dtype.kind not in "fiub":
        if sentence := numbers_as_words(column, (v for v in array.tolist() if isinstance(v, str)), few=0):
            raise DataError(sentence)
        for i, value in enumerate(array.tolist()):
            if isinstance(value, str) and not is_date(value) and not is_gap(value):
                raise DataError(
                    f"column {column!r} holds words, such as {str(value)!r} in {place(i)}; make numbers of them, "
                    "which preprocess does, or leave the column out"
                )
            if not is_gap(value) and not isinstance(value, bool | int | float):
                raise no_number(column, i, value)
        array = np.array([v if isinstance(v, bool | int | float) else np.nan for v in array.tolist()], np.float64)
    array = array.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(array))
    if np.isnan(array).all():
        raise DataError(f"column {column!r} has no value in any row; leave it out")
    if len(bad):
        wrong = "is infinite" if np.isinf(array[bad[0]]) else "has no value"
        way = "correct it" if np.isinf(array[bad[0]]) else "fill it, which preprocess does"
        raise DataError(f"column {column!r} {wrong} in {place(bad[0])}; {way}, or leave the row out")
    return array
