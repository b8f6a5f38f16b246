"""Examples of each client by its name: {client: (x, y)}, {client: a DataFrame}."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unskew.data.inputs import is_category, raw_column
from unskew.data.own.arrays import of_arrays
from unskew.data.own.classes import classes_of, kinds_of_labels, order_at_clients
from unskew.data.own.frames import is_frame, is_frames
from unskew.data.own.given import GivenExamples, Roles
from unskew.data.own.values import Array, name_of_client
from unskew.data.patients import PatientIds
from unskew.data.places import Place, by_number, rows_at
from unskew.errors import DataError

CLIENT = "client"
"""Column of the clients' names in a table that is joined of theirs."""


def one_table(data: Any, client: str | None, target: object = None) -> tuple[Any, str | None]:
    """One DataFrame of {client: DataFrame}, and its column of clients; anything else as it is, with its column.

    Args:
        data: The frames.
        client: Column of the clients.
        target: Column of the labels.

    Raises:
        DataError: If the frames are of several libraries, differ in columns or have one of clients, or one is empty,
            or those whose target is an ordered category differ in its order.
    """
    if not is_frames(data):
        return data, client
    libraries = {_library(frame) for frame in data.values()}
    if len(libraries) > 1:
        raise DataError(f"clients' tables are of {' and '.join(sorted(libraries))}; give all of one")
    if empty := [str(name) for name, frame in data.items() if len(frame) == 0]:
        raise DataError(f"client {empty[0]} has no rows; leave it out")
    first, *others = data
    columns = list(data[first].columns)
    for name, frame in data.items():
        known = list(frame.columns)
        if twice := [column for column in known if known.count(column) > 1]:
            raise DataError(f"the table of client {name} has {known.count(twice[0])} columns {twice[0]!r}; rename one")
    for name in others:
        if odd := sorted(map(str, set(columns) ^ set(data[name].columns))):
            raise DataError(f"the tables of clients {first} and {name} differ in columns: {', '.join(odd)}")
    if client not in (None, CLIENT) or CLIENT in columns:
        raise DataError(
            f"every client has a table of its own, so no column names the clients; leave client out, and rename a "
            f"column {CLIENT!r}"
        )
    names = distinct_names(data)
    library = importlib.import_module(libraries.pop())
    order = order_at_clients(
        f"column {target!r}", {i: frame[target] for i, frame in data.items()} if target in columns else {}
    )
    if library.__name__ == "polars":
        table = stacked(library, {names[i]: frame for i, frame in data.items()}, columns, CLIENT)
        return (table.with_columns(table[target].cast(library.Enum(order))) if order else table), CLIENT
    parts = [frame[columns].assign(**{CLIENT: names[i]}) for i, frame in data.items()]
    table = library.concat(parts, ignore_index=True)
    coded = {c: "category" for c in columns if any(is_category(frame[c]) for frame in data.values())}
    table = table.astype(coded)  # as numbers they would count where clients' categories differ
    if order:
        table[target] = library.Categorical(table[target], order, ordered=True)
    return table, CLIENT


def check_test_of(data: Mapping[Any, Any], test: object) -> None:
    """Refuse one table as the test part of clients that have a table each.

    Raises:
        DataError: If it is one.
    """
    if is_frame(test):
        first = next(iter(data))
        raise DataError(
            "every client has a table of its own, and the test part is one table for all: give each client's, as in "
            f"test={{{first!r}: ...}}, the name of a column that says which rows are for testing, or a share"
        )


def _library(frame: Any) -> str:
    """The library of a DataFrame, of which a user's may be a subclass."""
    known = [of.__module__.partition(".")[0] for of in type(frame).__mro__]
    return next((name for name in known if name in ("pandas", "polars")), known[0])


def stacked(polars: Any, frames: Mapping[str, Any], columns: Sequence[str], client: str) -> Any:
    """One table of several of Polars', each one's name in a column of clients.

    Args:
        polars: The library.
        frames: By name.
        columns: Those of all.
        client: Name of the new column.

    Raises:
        DataError: If a column is of kinds that do not go together.
    """
    for column in columns:
        kinds = {name: f[column].dtype for name, f in frames.items() if f[column].null_count() < f.height}
        dates = [name for name, kind in kinds.items() if kind.is_temporal()]
        others = [name for name in kinds if name not in dates]
        if dates and others:  # Polars would count days
            raise DataError(
                f"column {column!r} holds dates in {dates[0]}, and none in {others[0]}; write them alike, or leave the "
                "column out"
            )
    # A column without a value has no kind, whatever its reader says.
    void = {n: [c for c in columns if f[c].null_count() == f.height] for n, f in frames.items()}
    coded = polars.selectors.by_dtype(polars.Categorical, polars.Enum)  # whose lists of words may differ
    named = [
        frame.select(columns)
        .with_columns(coded.cast(polars.String))
        .with_columns(*(polars.lit(None).alias(column) for column in void[name]), polars.lit(name).alias(client))
        for name, frame in frames.items()
    ]
    categories = [c for c in columns if any(is_category(frame[c]) for frame in frames.values())]
    try:
        table = polars.concat(named, how="vertical_relaxed")
        return table.with_columns(polars.col(categories).cast(polars.Categorical))
    except polars.exceptions.PolarsError:
        raise DataError(f"the columns of {', '.join(frames)} are not of the same kinds") from None


def row_of_client(frames: Mapping[Any, Any], part: str = "") -> Place:
    """The places of the rows of {client: DataFrame}, of the part named, in the table that is joined of them."""

    def of(row: int) -> str:
        for name, frame in frames.items():
            if row < len(frame):
                return f"{by_number(row)} of {name}{part and f', {part}'}"
            row -= len(frame)
        return by_number(row)

    return of


def row_at(client: str) -> Place:
    """Name a row of a client's own data, for messages."""
    return lambda row: f"{by_number(row)} of {client}"


def of_clients(data: Mapping[Any, Any], roles: Roles, part: str = "") -> GivenExamples:
    """Examples from {client: (x, y)} or {client: (x, y, patients)}, clients in the order given; `part` as for `_rows`.

    Raises:
        DataError: If a client has none, or they do not go together.
    """
    if not data:
        raise DataError("data is {} and has no client; give {client: (x, y)}")
    names = distinct_names(data)
    of = {}
    for name, arrays in data.items():
        with rows_at(row_at(f"{names[name]}{part}")):
            of[names[name]] = of_arrays(arrays, f"client {name}{part}", roles)
    first, *_ = of
    for name, its in of.items():
        shape, shape_of_first = its.x.shape[1:], of[first].x.shape[1:]
        if shape != shape_of_first:
            raise DataError(f"examples of client {name} have shape {shape}, those of client {first} {shape_of_first}")
        if len(its.y) == 0:
            raise DataError(f"client {name}{part} has no examples; leave it out")
        if (its.patients is None) != (of[first].patients is None):
            with_them, without = (name, first) if of[first].patients is None else (first, name)
            raise DataError(f"client {with_them} names its patients and client {without} does not; name all or none")
        if bool(its.columns) != bool(of[first].columns):
            with_them, without = (name, first) if its.columns else (first, name)
            raise DataError(
                f"the columns of client {with_them} have names and those of client {without} have none; give both as "
                "DataFrames"
            )
        _check_alike(first, of[first], name, its)
    _check_columns({name: its.columns for name, its in of.items() if its.columns})
    clients = [name for name, its in of.items() for _ in range(len(its.y))]
    patients = [who for its in of.values() for who in its.patients or ()]
    x, y = (np.concatenate(part) for part in ([its.x for its in of.values()], [its.y for its in of.values()]))
    table = None
    if tables := [its.table for its in of.values() if its.table is not None]:
        table = {c: raw_column(np.concatenate([t[c].astype(object) for t in tables]), c) for c in tables[0]}
        x = np.arange(len(y))
    numbers = np.concatenate([np.arange(len(its.y)) for its in of.values()])
    return GivenExamples(
        "arrays",
        x,
        y,
        clients,
        tuple(of),
        patients or None,
        columns=of[first].columns,
        table=table,
        numbers=numbers,
        order=order_at_clients("y", {names[name]: arrays[1] for name, arrays in data.items()}),
    )


def distinct_names(data: Mapping[Any, Any]) -> dict[Any, str]:
    """The clients' names as text; two that are written alike are refused."""
    names: dict[str, Any] = {}
    for name in data:
        if (twin := names.setdefault(name_of_client(name), name)) is not name:
            raise DataError(f"clients {twin!r} and {name!r} have one name when written out; rename one of them")
    return {name: text for text, name in names.items()}


def _check_columns(columns: Mapping[str, Any]) -> None:
    """Refuse clients' frames whose columns are others, or stand in another order."""
    named = {client: [str(column) for column in of] for client, of in columns.items()}
    first = next(iter(named), "")
    for client, of in named.items():
        if odd := sorted(set(of) ^ set(named[first])):
            raise DataError(f"the tables of clients {first} and {client} differ in columns: {', '.join(odd)}")
        for i, (one, other) in enumerate(zip(of, named[first], strict=True)):
            if one != other:
                raise DataError(
                    f"column {i} of client {client} is {one!r}, and of client {first} {other!r}; give all clients the "
                    "same columns in one order"
                )


def client_arrays(data: Mapping[Any, Any], patient_ids: PatientIds | None = None) -> dict[str, Array] | None:
    """All rows of {client: (x, y)} in the plain layout, none set aside; None if they are of another form.

    Raises:
        DataError: If a client has no examples, or clients do not go together.
    """
    if not all(isinstance(pair, tuple | list) for pair in data.values()):
        return None
    rows = replace(of_clients(data, Roles()), patient_ids=patient_ids)
    if rows.y.ndim != 1:
        return None
    number = {name: i for i, name in enumerate(rows.client_names)}
    owners = np.array([number[name] for name in rows.clients or ()], np.int64)
    codes, plain = rows.patient_codes, rows.y.dtype.kind in "biu"
    y = rows.y if plain or rows.y.dtype.kind == "f" else classes_of(rows.name, rows.y)
    return {
        "x_train": rows.x,
        "y_train": y,
        "client_train": owners,
        "clients": np.array(rows.client_names, np.str_),
        **({} if codes is None else {"patient_train": codes}),
        **({"features": np.array(tuple(map(str, rows.columns)), np.str_)} if rows.columns else {}),
    }


def _check_alike(first: str, of_first: GivenExamples, name: str, of_name: GivenExamples) -> None:
    """Refuse two clients whose inputs or labels are of different kinds, which one array would hide.

    Whole numbers beside others are refused where they are bytes or images: one client's pixels then reach from 0 to
    255 and another's, in all likelihood, from 0 to 1.
    """
    x, y, x_name, y_name = of_first.x, of_first.y, of_name.x, of_name.y
    if (x.dtype.kind == "O") != (x_name.dtype.kind == "O"):
        raise DataError(f"one of the clients {first} and {name} has texts and the other numbers; give all the same")
    if (x.dtype.kind == "f") != (x_name.dtype.kind == "f") and (x.ndim > 2 or np.uint8 in (x.dtype, x_name.dtype)):
        raise DataError(
            f"examples of client {first} are {_range(x)}, those of client {name} {_range(x_name)}; bring "
            "all to one scale"
        )
    kinds, kinds_name = kinds_of_labels(y), kinds_of_labels(y_name)
    if len(kinds) == len(kinds_name) == 1 and kinds != kinds_name:
        (one,), (other,) = kinds, kinds_name
        raise DataError(
            f"labels of client {first} are {one}, such as {y.flat[0]}, those of client {name} {other}, such as "
            f"{y_name.flat[0]}; write them alike"
        )


def _range(x: Array) -> str:
    what = "numbers" if x.dtype.kind == "f" else "whole numbers"
    return f"{what} ({x.dtype}) from {x.min():g} to {x.max():g}" if x.size else f"{what} ({x.dtype})"
