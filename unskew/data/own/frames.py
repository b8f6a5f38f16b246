"""Columns of the user's tables: pandas and Polars, recognised by their methods."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from unskew.data.inputs import RawTable, column_values, is_category, is_gap, is_lazy, kind_of_time, raw_column
from unskew.data.lengths import check_words
from unskew.data.own.classes import order_of
from unskew.data.own.given import GivenExamples, Roles
from unskew.data.own.values import Array, labels_of, measurements, name_of_client
from unskew.data.patients import names_of_patients
from unskew.data.places import place
from unskew.data.preprocess import check_size
from unskew.errors import DataError, did_you_mean


def is_frames(data: object) -> TypeGuard[Mapping[Any, Any]]:
    """True for {client: DataFrame}."""
    return isinstance(data, Mapping) and bool(data) and all(is_frame(of) for of in data.values())


def categories_in(data: Any) -> list[str]:
    """The columns that are categories by their type, of a table, of x in (x, y), or of each client's."""
    parts = data.values() if isinstance(data, Mapping) else [data]
    frames = [part[0] if isinstance(part, tuple | list) and part else part for part in parts]
    return [str(column) for f in filter(is_frame, frames) for column in f.columns if is_category(f[column])]


def is_frame(data: object) -> bool:
    """True for a table of pandas or Polars."""
    return hasattr(data, "columns") and hasattr(data, "to_numpy")


def of_table(frame: Any, roles: Roles) -> GivenExamples:
    """Examples from a DataFrame: every column except labels, clients and patients is a measurement."""
    patients, left = beside_inputs(frame, frame.columns, roles)
    columns = columns_named(frame, roles.inputs or left)
    client, several = roles.client, list(roles.targets)
    clients, names = (None, ()) if client is None else owners_of(column_values(frame[client]).tolist(), client)
    labels = labels_of(frame[several if len(several) > 1 else several[0]], f"column {roles.target!r}")
    x, table = read_columns(frame, columns, roles.raw)
    order = () if len(several) > 1 else order_of(frame[several[0]])
    return GivenExamples("dataframe", x, labels, clients, names, patients, columns=columns, table=table, order=order)


def beside_inputs(data: Any, columns: Any, roles: Roles) -> tuple[list[str] | None, tuple[Any, ...]]:
    """The patient of each row, if that is known, and the columns that are left to be inputs.

    Raises:
        DataError: If a column is missing, or none is left.
    """
    for name in roles.targets:
        check_column(columns, name, "target", "labels")
    if roles.client is not None:
        check_column(columns, roles.client, "client", "clients")
    patients = None if roles.patient is None else patients_in(data, roles.patient)
    taken = (*roles.targets, roles.client, roles.patient, *roles.ignored)
    left = tuple(column for column in columns if column not in taken)
    if not left and not roles.inputs:
        also = f" and {roles.client!r}" if roles.client else ""
        raise DataError(f"no column is left to learn from beside {roles.target!r}{also}")
    return patients, left


def check_frame(frame: Any, what: str) -> None:
    """Refuse a table of which nothing can be read; anything else than a table passes.

    Raises:
        DataError: If it is lazy, has no columns or no rows, or has two columns of one name.
    """
    if is_lazy(frame):
        raise DataError(f"{what} is a lazy frame; collect() it first")
    if not is_frame(frame):
        return
    times = Counter(map(str, frame.columns))
    if not times or len(frame) == 0:
        raise DataError(f"{what} has no {'rows' if times else 'columns'}")
    name, count = times.most_common(1)[0]
    if count > 1:
        raise DataError(f"{what}: there are {count} columns {name!r}; rename or remove all but one")


def columns_named(frame: Any, columns: tuple[Any, ...]) -> tuple[Any, ...]:
    """These columns, all of which the table has, each once.

    Raises:
        DataError: If it lacks one, or has two of one name.
    """
    known, times = set(frame.columns), Counter(map(str, frame.columns))
    for column in columns:
        if column not in known:
            check_column(frame.columns, column, "test", "a measurement")
        if times[str(column)] > 1:
            raise DataError(f"there are {times[str(column)]} columns {str(column)!r}; rename or remove all but one")
    return columns


def read_columns(frame: Any, columns: tuple[Any, ...], raw: bool) -> tuple[Array, RawTable | None]:
    """Columns as floats (N, columns); or, `raw`, the rows' numbers, and the columns as they are."""
    if not raw:
        return measurements(frame, columns), None
    table = {str(column): raw_column(frame[column], column) for column in columns}
    for column, values in table.items():
        check_words(values, f"column {column!r}")
        check_size(values, column)
    return np.arange(len(frame)), table


def patients_in(table: Any, column: str) -> list[str]:
    """The patient of each row of a table or of a Hugging Face dataset.

    Raises:
        DataError: If there is no such column, or a row names nobody.
    """
    values = column_of(table, column, "patient", "patients")
    return names_of_patients(values, f"column {column!r}")


def column_of(data: Any, name: str, setting: str, holds: str = "test rows") -> list[Any]:
    """The values of a column of a table or of a Hugging Face dataset.

    Raises:
        DataError: If there is no such column.
    """
    known = list(data.column_names if hasattr(data, "column_names") else getattr(data, "columns", ()))
    check_column(known, name, setting, holds)
    column = data[name]
    return list(column.to_list() if hasattr(column, "to_list") else column)


def check_column(columns: Any, name: object, setting: str, holds: str = "values") -> None:
    """Refuse a setting that does not name a column.

    Raises:
        DataError: If it is missing, or there is no such column.
    """
    known = [str(column) for column in columns]
    some = f"columns: {', '.join(known[:8])}" + (f" and {len(known) - 8} more" if len(known) > 8 else "")
    if name is None:
        raise DataError(f"{setting} must name the column of the {holds}, as in {setting}={known[-1]!r} ({some})")
    if name not in list(columns):
        if name in known:
            raise DataError(
                f"{setting}: column {name} is called by a number and not by a word; rename the columns, in pandas with "
                "table.columns = table.columns.astype(str)"
            )
        raise DataError(f"{setting}: there is no column {name!r}{did_you_mean(str(name), known)} ({some})")


def owners_of(values: Sequence[Any], column: str) -> tuple[list[str], tuple[str, ...]]:
    """The client of each row as a name, and all of them in order: numbers by size, others by name.

    A number is its own name, 1.0 that of 1, which a column with gaps has made of it.
    """
    for i, value in enumerate(values):
        if is_gap(value) or not isinstance(value, str | int | float):
            if kind := kind_of_time(value)[0]:
                raise DataError(
                    f"column {column!r} must name clients by words or numbers, and holds a {kind} in {place(i)}; name "
                    "another column"
                )
            raise DataError(f"column {column!r} names no client in {place(i)}; fill it, or leave the row out")
    check_words(values, f"column {column!r}")
    names = list(map(name_of_client, values))
    numbers = all(re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", name) for name in set(names))
    return names, tuple(sorted(set(names), key=lambda name: (float(name) if numbers else 0, name)))
