"""A first look at data of any form that `simulate` takes (`unskew.data.look` says what is measured)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data import own, sources, tables
from unskew.data.dataset import Dataset
from unskew.data.look import Look, Rows, look, of_arrays, of_dataset, of_frame
from unskew.data.numerals import Decimal, Thousands
from unskew.data.places import Place, by_number, path_of, rows_at
from unskew.errors import ConfigError, DataError


def describe(
    data: object,
    *,
    target: str | Sequence[str] | None = None,
    client: str | None = None,
    patient: str | None = None,
    test: object = None,
    separator: str | None = None,
    thousands: Thousands | None = None,
    decimal: Decimal | None = None,
    gaps: Sequence[str] = (),
    leave_out: Sequence[str] = (),
    data_dir: Path | str | None = None,
    data_options: Mapping[str, Any] | None = None,
) -> Look:
    """Look at data: sites, sizes, labels, columns, gaps, disagreement, and rows that stand twice.

    Args:
        data: A DataFrame, the path of a table, (x, y), (x, y, patients), {client: one of these but a path}, what
            `unskew.load` returns, or a name.
        target, client: Columns of a table; both may be left out.  Several targets are named in a list, as for
            `simulate`.
        patient: Column of a table that says who is in the row: patients are counted, and those in two parts named.
        test: Column that says which rows are test rows, or a table of them.
        separator, thousands, decimal, gaps: How a CSV file is written (`unskew.data.tables.TableOptions`).
        leave_out: Columns that are not looked at.
        data_dir: Folder of named data sets.
        data_options: Settings of data that are named and no table, as of `images:PATH`.

    Raises:
        ConfigError, DataError: If the data cannot be read, or a column is missing.
    """
    if isinstance(data, str | Path) and (kind := tables.kind_at(str(data))) is not None:
        path = path_of(str(data).removeprefix(f"{kind}:"))
        options = tables.TableOptions(
            "",
            client,
            leave_out=tuple(leave_out),
            separator=separator,
            thousands=thousands,
            decimal=decimal,
            gaps=tuple(gaps),
        )
        frame, client = tables.frame_of(kind, path, options)
        later = isinstance(test, str) and test not in frame.columns
        lines = tables.lines_of(kind, path, options)
        tested = path_of(str(test)) if later else path
        if later:
            test = tables.frame_of(kind, tested, options)[0]
            lines = _one_after_the_other(lines, len(frame), tables.lines_of(kind, tested, options), tested.name)
        if kind == "csv":
            for name in _targets(target):
                given = [(path, frame), (tested, test)] if later else [(path, frame)]
                frame, *rest = tables.labels_as_written([of for _, of in given], [at for at, _ in given], options, name)
                test = rest[0] if rest else test
        with rows_at(lines):
            seen = look(_of_frame(frame, path.stem, target, client, patient, test))
        return replace(seen, notes=(*seen.notes, *tables.doubts_on(kind, [path, tested] if later else [path], options)))
    if own.is_frames(data):
        own.check_test_of(data, test)
        table, column = own.joined(data, client)
        later = own.joined(test, client)[0]
        test_rows = own.row_of_client(test) if own.is_frames(test) else by_number
        with rows_at(_one_after_the_other(own.row_of_client(data), len(table), test_rows, "test")):
            return describe(table, target=target, client=column, patient=patient, test=later, leave_out=leave_out)
    if hasattr(data, "to_numpy") and hasattr(data, "columns"):  # a lazy frame would warn of the latter
        whole: Any = data
        for column in leave_out:
            own.check_column(whole.columns, column, "leave_out")
        left = whole[[column for column in whole.columns if column not in leave_out]] if leave_out else whole
        return look(_of_frame(left, "dataframe", target, client, patient, test))
    if isinstance(data, str):
        if any(of is not None for of in (target, client, patient)) or isinstance(test, str):
            if sentence := tables.unreadable(data):
                raise DataError(sentence)
            raise ConfigError(
                f"target, client, patient and test name columns of a table, and {data!r} names none; leave them out"
            )
        arrays = sources.arrays_of(data, data_dir)
        if arrays is not None:
            return look(of_arrays(*arrays))
        return look(of_dataset(sources.load(data, data_dir, data_options)))
    if isinstance(data, Mapping) and all(of is None for of in (target, client, patient, test)):
        by_client = own.client_arrays(data)
        if by_client is not None:
            return look(of_arrays("arrays", by_client))
    columns: dict[str, Any] = {"target": target, "client": client, "patient": patient, "test": test}
    return look(of_dataset(data if isinstance(data, Dataset) else own.dataset(data, **columns)))


def _one_after_the_other(first: Place, rows: int, then: Place, name: str) -> Place:
    return lambda row: first(row) if row < rows else f"{then(row - rows)} of {name}"


def _targets(target: str | Sequence[str] | None) -> tuple[str, ...]:
    several = () if target is None else target if isinstance(target, list | tuple) else (target,)
    return tuple(several)


def _of_frame(
    frame: Any,
    name: str,
    target: str | Sequence[str] | None,
    client: str | None,
    patient: str | None,
    test: object,
) -> Rows:
    own.check_frame(frame, "the table")
    targets = _targets(target)
    own.check_roles(targets or (None,), client, patient, test)
    for setting, column in (*(("target", one) for one in targets), ("client", client), ("patient", patient)):
        if column is not None:
            own.check_column(frame.columns, column, setting)
    if isinstance(test, str):
        is_test = own.truths(own.column_of(frame, test, "test"), test)
        left = [c for c in frame.columns if c != test]
        return of_frame(frame[left], name, targets, client, is_test, patient)
    if test is None or not hasattr(test, "columns"):
        return of_frame(frame, name, targets, client, patient=patient)
    for column in targets:
        own.check_column(test.columns, column, "test", "labels")
    shared = [column for column in frame.columns if column in test.columns]
    joined = {c: [*own.column_of(frame, c, "column"), *own.column_of(test, c, "test")] for c in shared}
    is_test = np.arange(len(joined[shared[0]])) >= len(frame)
    return of_frame(_Columns(joined), name, targets, client, is_test, patient if patient in shared else None)


class _Columns(dict[str, list[Any]]):
    """Columns as a table: just enough of one."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self)

    def __len__(self) -> int:
        return len(next(iter(self.values()), []))
