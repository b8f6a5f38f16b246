"""A first look at data of any form that `simulate` takes (`unskew.data.look` says what is measured)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unskew import schema
from unskew.data import own, sources, tables
from unskew.data.columns import composed_names, composed_test, with_composed_columns
from unskew.data.dataset import Dataset
from unskew.data.inputs import is_lazy
from unskew.data.latest import Cut, Latest
from unskew.data.look import Look, Rows, look, of_arrays, of_dataset, of_frame
from unskew.data.own.clients import check_test_of, client_arrays, one_table, row_of_client
from unskew.data.own.frames import check_column, check_frame, column_of, is_frames
from unskew.data.own.given import check_roles, share_of
from unskew.data.own.parts import cut_of, strangers_of
from unskew.data.own.values import truths
from unskew.data.patients import PatientIds
from unskew.data.places import Place, by_number, path_of, rows_among, rows_at
from unskew.data.preprocess import Preprocess, rules_of
from unskew.errors import ConfigError, DataError, noted, warn
from unskew.words import with_article


def describe(
    data: object,
    *,
    target: str | Sequence[str] | None = None,
    client: str | None = None,
    patient: str | None = None,
    patient_ids: PatientIds | None = None,
    test: object = None,
    separator: str | None = None,
    thousands: str | None = None,
    decimal: Literal[".", ","] | None = None,
    encoding: str | None = None,
    gaps: Sequence[str] = (),
    leave_out: str | Sequence[str] = (),
    preprocess: Preprocess | bool | None = None,
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
        patient_ids: Whose the patients' names are, as for `simulate`.
        test: Column that says which rows are test rows, a table of them, or `Latest`, that they are the latest.
        separator, thousands, decimal, encoding, gaps: How a CSV file is written (`unskew.data.tables.TableOptions`).
        leave_out: Columns of a table that are not looked at.
        preprocess: What will become of a table's columns, as for `simulate`; what it does is not advised.
        data_dir: Folder of named data sets.
        data_options: Settings of data that are named, as for `simulate`; those of a file that are arguments here may be
            given in either way.

    Raises:
        ConfigError: If a setting is unknown, is given twice, or says nothing about such data.
        DataError: If the data cannot be read, or a column is missing.
    """
    rules = rules_of(preprocess)
    data = str(data) if isinstance(data, Path) else data
    leave_out = (leave_out,) if isinstance(leave_out, str) else leave_out
    target, client, patient, leave_out = map(composed_names, (target, client, patient, leave_out))
    data, test = with_composed_columns(data), test if isinstance(data, str) else composed_test(test)
    columns: dict[str, Any] = {"target": target, "client": client, "patient": patient, "test": test}
    columns["patient_ids"] = patient_ids
    of_file: dict[str, Any] = {"separator": separator, "thousands": thousands, "decimal": decimal, "encoding": encoding}
    of_file["gaps"] = list(gaps) or None
    written = {key: value for key, value in of_file.items() if value is not None}
    given = {key: value for key, value in columns.items() if value is not None} | written
    given |= {"leave_out": list(leave_out)} if leave_out else {}
    if isinstance(data, str) and (kind := tables.kind_at(data)) is not None:
        return _of_file(kind, data, given, data_options or {}, rules)
    if isinstance(data, str):
        rule = {key: of for key, of in vars(test).items() if of is not None} if isinstance(test, Latest) else test
        if data.startswith(("npz:", "folder:")) and isinstance(rule, Mapping) and isinstance(rule.get("latest"), str):
            if "test" in (data_options or {}):
                raise ConfigError("test is an argument and in data_options, too; give it once")
            data_options = {**(data_options or {}), "test": rule}
            given.pop("test")
        if given:
            if sentence := tables.unreadable(data):
                raise DataError(sentence)
            raise ConfigError(
                f"{', '.join(given)} say{'s' * (len(given) == 1)} what is in a table, and {data!r} names none; leave "
                f"{'it' if len(given) == 1 else 'them'} out"
            )
        arrays = sources.arrays_of(data, data_dir, data_options)
        if arrays is not None:
            return _of_plain(*arrays)
        return _of_dataset(lambda: sources.load(data, data_dir, data_options))
    if ignored := [*written, *(["data_options"] if data_options else [])]:
        raise ConfigError(
            f"{', '.join(ignored)} {'is' if len(ignored) == 1 else 'are'} for data that are named, and these are given "
            f"as values; leave {'it' if len(ignored) == 1 else 'them'} out"
        )
    if is_frames(data):
        check_test_of(data, test)
        table, column = one_table(data, client)
        later = one_table(test, client)[0]
        test_rows = row_of_client(test) if is_frames(test) else by_number
        with rows_at(_one_after_the_other(row_of_client(data), len(table), test_rows, "test")):
            return describe(
                table,
                target=target,
                client=column,
                patient=patient,
                patient_ids=patient_ids,
                test=later,
                leave_out=leave_out,
                preprocess=rules,
            )
    if hasattr(data, "to_numpy") and hasattr(data, "columns"):  # a lazy frame would warn of the latter
        whole: Any = data
        for column in leave_out:
            check_column(whole.columns, column, "leave_out")
        left = whole[[column for column in whole.columns if column not in leave_out]] if leave_out else whole
        return _look_at(left, "dataframe", target, client, patient, patient_ids, test, rules)
    if leave_out and not is_lazy(data):
        raise ConfigError("leave_out names columns of a table, and the data are none; leave it out")
    if isinstance(data, Mapping) and all(of is None for of in (target, client, patient, test)):
        by_client = client_arrays(data, patient_ids)
        if by_client is not None:
            return look(of_arrays("arrays", by_client))
    return _of_dataset(lambda: data if isinstance(data, Dataset) else own.dataset(data, **columns))


def _of_plain(name: str, arrays: Mapping[str, Any], parts: Cut | None) -> Look:
    """Look at arrays in the plain layout, of which the latest may have been cut off as the test part."""
    if parts is None:
        return look(of_arrays(name, arrays))
    rows = np.concatenate([parts.rows["train"], parts.rows["test"]])
    with rows_among(rows):
        seen = of_arrays(name, arrays)
        return look(replace(seen, when=parts.when[rows], doubts=(*seen.doubts, *parts.doubts)))


def _of_dataset(read: Callable[[], Dataset]) -> Look:
    """Look at the data set that this reads, and warn of what reading doubts and the look does not say, too."""
    with noted() as notes:
        dataset = read()
    seen = look(of_dataset(dataset))
    for note in notes:
        if note not in seen.notes:
            warn(note, stacklevel=3)
    return seen


def _of_file(
    kind: str, source: str, given: Mapping[str, Any], data_options: Mapping[str, Any], rules: Preprocess | None
) -> Look:
    """Look at a table in a file or folder, with the settings that were arguments and those of data_options."""
    if twice := [key for key in given if key in data_options]:
        raise ConfigError(f"{twice[0]} is an argument and in data_options, too; give it once")
    settings = {**data_options, **given}
    target, test = composed_names(settings.get("target")), settings.pop("test", None)
    options = schema.build(tables.TableOptions, {**settings, "target": ""}, "", owner=source)
    if isinstance(test, Mapping):
        test = schema.build(Latest, test, "test", owner=source)
    options = replace(options, test=test if isinstance(test, Latest) else None)
    path = path_of(source.removeprefix(f"{kind}:"))
    frame, client = tables.frame_of(kind, path, options)
    frames, files, lines = [frame], [path], tables.lines_of(kind, path, options)
    test = tables.column_or_path(test, frame)
    if isinstance(test, str | Path) and test not in frame.columns:
        files.append(path_of(test))
        frames.append(tables.frame_of(kind, files[1], options)[0])
        lines = _one_after_the_other(lines, len(frame), tables.lines_of(kind, files[1], options), files[1].name)
    with rows_at(lines):
        tested = frames[1] if len(frames) > 1 else test
        seen = _look_at(frames[0], path.stem, target, client, options.patient, options.patient_ids, tested, rules)
    return replace(seen, notes=(*seen.notes, *tables.unread_in(files)))


def _one_after_the_other(first: Place, rows: int, then: Place, name: str) -> Place:
    return lambda row: first(row) if row < rows else f"{then(row - rows)} of {name}"


def _targets(target: str | Sequence[str] | None) -> tuple[str, ...]:
    several = () if target is None else target if isinstance(target, list | tuple) else (target,)
    return tuple(several)


def _look_at(
    frame: Any,
    name: str,
    target: str | Sequence[str] | None,
    client: str | None,
    patient: str | None,
    patient_ids: PatientIds | None,
    test: object,
    rules: Preprocess | None,
) -> Look:
    if not isinstance(test, Latest):
        return look(_of_frame(frame, name, target, client, patient, patient_ids, test), rules)
    check_frame(frame, "the table")
    parts = cut_of(frame, test, client, patient, patient_ids)
    stay = np.flatnonzero(parts.train | parts.test)
    left = [column for column in frame.columns if column != test.column]
    table = frame[left]
    if len(stay) < len(frame):
        table = table.iloc[stay] if hasattr(table, "iloc") else table[stay]
    with rows_among(stay):
        rows = replace(
            _of_frame(table, name, target, client, patient, patient_ids, None),
            test=parts.test[stay],
            when=parts.when[stay],
        )
        sentences = filter(None, (*parts.doubts, parts.refusal))
        return look(replace(rows, doubts=(*rows.doubts, *sentences)), rules)


def _of_frame(
    frame: Any,
    name: str,
    target: str | Sequence[str] | None,
    client: str | None,
    patient: str | None,
    patient_ids: PatientIds | None,
    test: object,
) -> Rows:
    check_frame(frame, "the table")
    targets = _targets(target)
    check_roles(targets or (None,), client, patient, test)
    for setting, column in (*(("target", one) for one in targets), ("client", client), ("patient", patient)):
        if column is not None:
            check_column(frame.columns, column, setting)
    if isinstance(test, str):
        is_test = truths(column_of(frame, test, "test"), test)
        left = [c for c in frame.columns if c != test]
        return of_frame(frame[left], name, targets, client, is_test, patient, patient_ids)
    if test is None or share_of(test) is not None:
        return of_frame(frame, name, targets, client, None, patient, patient_ids)
    check_frame(test, "test")
    if not hasattr(test, "columns"):
        raise DataError(
            f"test must be a column, a table or a share of the rows, got {with_article(type(test).__name__)}"
        )
    for column in targets:
        check_column(test.columns, column, "test", "labels")
    shared = [column for column in frame.columns if column in test.columns]
    joined = {c: [*column_of(frame, c, "column"), *column_of(test, c, "test")] for c in shared}
    is_test = np.arange(len(joined[shared[0]])) >= len(frame)
    rows = of_frame(
        _Columns(joined), name, targets, client, is_test, patient if patient in shared else None, patient_ids
    )
    if rows.clients is None:
        return rows
    tested, trained = (
        [rows.client_names[i] for i in np.unique(of[of >= 0])] for of in (rows.clients[is_test], rows.clients[~is_test])
    )
    strangers = strangers_of(tested, trained, client)
    return replace(rows, doubts=(*rows.doubts, strangers)) if strangers else rows


class _Columns(dict[str, list[Any]]):
    """Columns as a table: just enough of one."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self)

    def __len__(self) -> int:
        return len(next(iter(self.values()), []))
