"""Reads data as people keep them: tables (CSV, Parquet) in one file or one for each client.

    csv:PATH, parquet:PATH      one file with a column of clients, or a folder with one file for each client

Tables are read by Polars (extra [tables]): one package reads both formats, and it tells a gap from a word in a column
of numbers, which matters here.  It is imported in this module only.
"""

import csv
import importlib
import mmap
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np

from unskew import machine
from unskew.data import own
from unskew.data.columns import check_width, composed_names, composed_test, with_composed_columns
from unskew.data.dataset import Dataset
from unskew.data.doubts import FEW_ROWS
from unskew.data.encodings import UTF8, Encoding, as_utf8, encoding_of, not_utf8
from unskew.data.image_folders import OF_SYSTEMS, is_image
from unskew.data.inputs import GAPS, Column, RawTable, check_known, gap_numbers, gaps_in, raw_column
from unskew.data.latest import Latest, column_named
from unskew.data.lengths import LONGEST, too_long
from unskew.data.numerals import (
    ANY,
    BETWEEN,
    Decimal,
    Notation,
    Thousands,
    decimal_of,
    declared,
    leading_zeros,
    lose_zeros,
    refused,
    value_of,
)
from unskew.data.own.clients import check_numbers, stacked
from unskew.data.own.frames import categories_in, check_column, column_of
from unskew.data.own.parts import cut_of
from unskew.data.own.values import truths
from unskew.data.patients import PatientIds
from unskew.data.places import Place, by_number, path_of, rows_at
from unskew.data.preprocess import ColumnSums, Preprocess, sums
from unskew.errors import ConfigError, DataError, did_you_mean, warn
from unskew.tasks.targets import CLASS, Targets
from unskew.words import composed, counted, some

INSTALL = "pip install 'unskew[tables]'"
ENDINGS = {"csv": (".csv", ".tsv"), "parquet": (".parquet", ".pq")}
OTHERS = (".xlsx", ".xls", ".ods", ".txt", ".sav", ".dta", ".rds")
"""Endings of tables that are not read."""


@dataclass(frozen=True)
class TableOptions:
    """The columns of a table.

    Attributes:
        target: Column of what is learned; several columns where a target has several, as time and event.
        client: Column of the clients; a folder with one file for each client needs none.
        patient: Column of the patients, or whoever has several rows, by default not known: nobody is in training and in
            testing then.
        patient_ids: Whose the names in it are: the "network"'s, each one person, or each "site"'s own.  It is asked for
            where a name occurs at several clients.
        test: Column that says which rows are test rows, a file or folder with the test rows, or the share of each
            client's rows; by default a fifth is set aside.  Of patients, a share of each client's patients.  Or a
            table: its `latest` names the column that says when each row was, and test rows are those that are later
            than `after`, or else the latest `share` of each client's.
        leave_out: Columns that are not used; of a folder some files may lack them.
        separator: Character between the columns of a CSV file; by default a tab in a .tsv file, elsewhere a comma, or
            the semicolon or tab of a first line that has no comma.
        thousands: Character between thousands in a CSV file; by default none.  "" says that whatever is no plain number
            is a word.
        decimal: Character before the decimals in a CSV file; by default a point, or a comma where a point is between
            thousands.
        encoding: Encoding of the CSV files that are not in UTF-8.
        gaps: Words of a CSV file that mean that there is no value, besides the usual ones.  A number means all its
            spellings.
        classes: Names of all classes, in order, where a client may lack some.
        alone: The file is one client's own: a column `client` is left out if it is there.
    """

    target: str | tuple[str, ...]
    client: str | None = None
    patient: str | None = None
    patient_ids: PatientIds | None = None
    test: str | float | Latest | None = None
    leave_out: tuple[str, ...] = ()
    separator: str | None = None
    thousands: Thousands | None = None
    decimal: Decimal | None = None
    encoding: Encoding | None = None
    gaps: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    alone: bool = False

    def __post_init__(self) -> None:
        """Write names of columns in one form of Unicode, as tables have them; `test` may be the path of a file."""
        for setting in ("target", "client", "patient", "leave_out"):
            object.__setattr__(self, setting, composed_names(getattr(self, setting)))


def column_or_path(test: Any, frame: Any) -> Any:
    """The setting `test` as the column's name, if it is one's in any form of Unicode; anything else as it is."""
    return composed_names(test) if composed_names(test) in frame.columns else test


def kind_of(path: str) -> str | None:
    """csv or parquet, by a path's ending; None for any other.

    >>> kind_of("patients.CSV"), kind_of("digits")
    ('csv', None)
    """
    ending = Path(path).suffix.lower()
    return next((kind for kind, endings in ENDINGS.items() if ending in endings), None)


def kind_at(source: str) -> str | None:
    """csv or parquet for `KIND:PATH`, or the path of such a file or of a folder of them; None for anything else."""
    kind, colon, _ = source.partition(":")
    if colon:
        return kind if kind in ENDINGS else None
    path = path_of(source)
    if not path.is_dir():
        return kind_of(source)
    endings = {file.suffix.lower() for file in path.iterdir() if not file.name.startswith(".")}
    return next((kind for kind, known in ENDINGS.items() if endings & set(known)), None)


def unreadable(source: str) -> str:
    """A sentence on the path of a file or folder that holds no table which is read; empty for anything else."""
    path = path_of(source)
    endings = ", ".join(ending for known in ENDINGS.values() for ending in known)
    if kind_at(source) is not None or source.startswith(("npz:", "folder:")):
        return ""
    if path.is_dir():
        images = any(is_image(Path(name)) for _, _, names in os.walk(path) for name in names)
        remedy = f"write images:{source} for the images in it" if images else "give one for each client"
        if (path / "x_train.npy").is_file():
            remedy = f"write folder:{source} for the arrays in it"
        return f"the folder {path.absolute()} holds no table ({endings}); {remedy}"
    if path.suffix.lower() in (".npz", ".npy"):
        way = f"write npz:{source}" if path.suffix.lower() == ".npz" else "write folder: and its folder's path"
        return f"{source} is a file of arrays and no table ({endings}); {way}"
    if not path.is_file() and path.suffix.lower() not in OTHERS:
        return ""
    return (
        f"{source} is no table of a kind that is read ({endings}); save it as CSV UTF-8, as Excel calls it, or read it "
        "in Python and give the DataFrame"
    )


# ---------------------------------------------------------------- tables
def read_table(
    kind: str, path: Path, options: TableOptions, preprocess: Preprocess | None, targets: Targets = CLASS
) -> Dataset:
    """The data set in a table.

    Raises:
        ConfigError: If the options do not fit the columns.
        DataError: If Polars is not installed, a file is missing or cannot be read, or as in `unskew.data.own.dataset`.
    """
    several = (options.target,) if isinstance(options.target, str) else options.target
    apart = {*several, column_named(composed_test(options.test)), *(preprocess.categories if preprocess else ())}
    frame, client = frame_of(kind, path, options, apart=apart)
    test: Any = column_or_path(options.test, frame)
    options = replace(options, test=test)
    test_rows_at: Place = by_number
    if isinstance(test, str) and test not in frame.columns:
        columns = some(frame.columns)
        place = path_of(test, f"test is no column and no share (columns: {columns}), and the file {test!r}")
        if not place.exists():
            raise DataError(
                f"test must be a column, a file or a share, and {test!r} is none of them (columns: {columns}; no file "
                f"{place.absolute()})"
            )
        test, test_rows_at = frame_of(kind, place, options, apart=apart)[0], lines_of(kind, place, options)
    given = [path] if test is options.test else [path, path_of(str(options.test))]
    if kind == "csv" and targets.classes and len(several) == 1:
        frames = [frame] if test is options.test else [frame, test]
        frame, *others = labels_as_written(frames, given, options, several[0])
        test = others[0] if others else test
    taken = {*several, client, options.patient, column_named(test)}
    declared_kinds = {name for name, rule in (preprocess.columns if preprocess else {}).items() if rule.kind}
    frames = [frame] if len(given) == 1 else [frame, test]
    codes = codes_in_numbers(kind, frames, given, options, taken | declared_kinds) if several else []
    doubts = (*doubts_on(kind, given, options), *codes)
    for doubt in doubts:
        warn(doubt)
    with rows_at(lines_of(kind, path, options)):
        data = own.dataset(
            frame,
            target=options.target,
            client=client,
            patient=options.patient,
            patient_ids=options.patient_ids,
            test=test,
            preprocess=preprocess,
            targets=targets,
            name=path.stem,
            classes=options.classes,
            test_rows_at=test_rows_at,
            one_client=options.alone,
            by_client=[of for of, at in zip(("train", "test"), given, strict=False) if at.is_dir()],
        )
    inputs = data.inputs
    if kind == "csv":
        inputs = replace(
            inputs,
            gaps=options.gaps,
            thousands=options.thousands,
            decimal=options.decimal,
            encoding=options.encoding,
        )
    return replace(data, inputs=inputs, doubts=(*doubts, *data.doubts))


def labels_as_written(frames: Sequence[Any], paths: Sequence[Path], options: TableOptions, target: str) -> list[Any]:
    """The tables with labels as words if one of them would lose zeros as a number: 007 is not 7.

    They stay numbers where one number is written in two ways, in `classes` or by two sites: 7 and 007 are one class.

    Args:
        frames: The tables.
        paths: The CSV file of each, or the folder of its files.
        options: How they are written; `classes` that begin with a zero make words of labels, too.
        target: The column of the labels.
    """
    polars = _polars()
    if not any(target in frame.columns and frame[target].dtype.is_integer() for frame in frames):
        return list(frames)
    words = [polars.concat([_column(file, options, target) for file in _files_at("csv", path)]) for path in paths]
    written = {*(options.classes or ()), *(label for of in words for label in of.drop_nulls().unique())}
    if not lose_zeros(written):
        return list(frames)
    return [
        frame.with_columns(polars.when(polars.col(target).is_not_null()).then(of).alias(target))
        for frame, of in zip(frames, words, strict=True)
    ]


def _column(file: Path, options: TableOptions, name: str) -> Any:
    """A column of a CSV file as it is written."""
    head = _head(file, options)
    names = [composed(_bare(one)) for one in head.names]
    if name not in names:  # one that goes on in the next line
        return _read("csv", file, options, as_words=True, some_columns=True)[name]
    words = _polars().read_csv(
        _source(file, head),
        separator=head.separator,
        columns=[names.index(name)],
        null_values=[*GAPS, *options.gaps],
        infer_schema=False,
        skip_lines=head.above,
        glob=False,
    )
    words = words.filter(_rows_but(_empty_rows(file, head), words.height))
    return words.to_series().alias(name).str.strip_chars().str.replace(r'(?s)^"(.*)"$', "${1}")


def doubts_on(kind: str, paths: Sequence[Path], options: TableOptions) -> list[str]:
    """Sentences on files of folders that are not read, and on declared words for no value that stand in no field."""
    unread = filter(None, map(_left_out, filter(Path.is_dir, paths)))
    return [*unread, *_rows_left_out(kind, paths, options), *_unused_gaps(kind, paths, options)]


def _rows_left_out(kind: str, paths: Sequence[Path], options: TableOptions) -> list[str]:
    """Sentences on empty rows, which spreadsheets write below a table: how many each file has."""
    sentences = []
    for file in [file for path in paths for file in _files_at(kind, path)] if kind == "csv" else []:
        if rows := len(_empty_rows(file, _head(file, options))):
            has, was = ("has", "was") if rows == 1 else ("have", "were")
            sentences.append(f"{counted(rows, 'row')} of {file} {has} no value in any column, and {was} left out")
    return sentences


def codes_in_numbers(
    kind: str, frames: Sequence[Any], paths: Sequence[Path], options: TableOptions, taken: Collection[object]
) -> list[str]:
    """Sentences on inputs of a CSV file that lose zeros as numbers, such as the postal code 01000.

    Args:
        kind: csv, or parquet, whose types say what is a number.
        frames: The tables as they were read.
        paths: The file of each, or the folder of its files.
        options: How they are written.
        taken: Columns that are no inputs, or of which somebody has said what they are.
    """
    whole = {name for frame in frames for name in frame.columns if frame[name].dtype.is_integer()}
    files = [file for path in paths for file in _files_at(kind, path)] if kind == "csv" else []
    if not whole.difference(taken) or not any(_has_zeros(file, _head(file, options)) for file in files):
        return []
    words = [_read(kind, file, options, as_words=True, some_columns=True, may_lack=options.leave_out) for file in files]
    sentences = []
    for name in dict.fromkeys(name for frame in words for name in frame.columns if name in whole.difference(taken)):
        held = {word for frame in words if name in frame.columns for word in frame[name].drop_nulls().unique()}
        codes = sorted(word for word in held if leading_zeros(word) and value_of(word.strip()))
        if codes and lose_zeros(held):
            sentences.append(
                f"column {name!r} holds digits that begin with a zero, such as {codes[0]!r}, and is taken as a number, "
                f"{int(codes[0])}: if these are codes, declare preprocess.columns.{name}.kind = 'category', group them "
                "if they are many, or leave the column out"
            )
    return sentences


def _has_zeros(file: Path, head: "_Head") -> bool:
    """True if some word of a file may begin with a zero that a number would lose."""
    with _octets(file, head) as octets:
        return re.search(rb"(?<![0-9.])0[0-9]+(?![0-9.])", octets) is not None


def _left_out(folder: Path) -> str:
    """A sentence on files that are not read; "" if there are none."""
    endings = [ending for known in ENDINGS.values() for ending in known]
    left = [file.name for file in _visible(folder) if file.is_file() and file.suffix.lower() not in endings]
    if not left:
        return ""
    was = "was" if len(left) == 1 else "were"
    return (
        f"{counted(len(left), 'file')} in {folder} {was} not read: {some(left)}; if a client's rows are in there, save "
        f"them as a table ({', '.join(endings)})"
    )


def _unused_gaps(kind: str, paths: Sequence[Path], options: TableOptions) -> list[str]:
    if kind != "csv" or options.alone:  # one site of several may well lack a word of others
        return []
    files = [(file, _head(file, options)) for path in paths for file in _files_at(kind, path)]
    return [
        f"gaps: no field of {paths[0]} is {word!r}; how is a missing value written there?"
        for word in options.gaps
        if not any(_has_field(file, head, word) for file, head in files)
    ]


def _has_field(file: Path, head: "_Head", word: str) -> bool:
    zeros = r"" if value_of(word) is None else r"(?:[.,]0*)?"
    side = rf'[\s"{re.escape(head.separator)}]'
    field = re.compile(rf"(?:^|{side}){re.escape(word)}{zeros}(?:$|{side})".encode())
    with _octets(file, head) as octets:
        return field.search(octets) is not None


def training_sums(kind: str, path: Path, options: TableOptions, rules: Preprocess) -> dict[str, ColumnSums]:
    """Compute what a client with this file discloses to agree on a preprocessing: sums of training rows.

    Raises:
        ConfigError: If it is not said which rows are for testing.
        DataError: If the file cannot be read, sums would tell a row or a value because there is no other, or as in
            `unskew.data.preprocess.sums`.
    """
    frame, _ = frame_of(kind, path, replace(options, alone=True))
    test = column_or_path(options.test, frame)
    rule = test if isinstance(test, Latest) else None
    apart = rule.column if rule is not None else test if isinstance(test, str) and test in frame.columns else None
    if apart is None and not isinstance(options.test, str):
        raise ConfigError(
            "test must be a column or a file, or say that the latest rows are: the disclosed statistics must not "
            "include test rows; add a column to the file that says test or train, and name it in data_options.test of "
            "the experiment, too"
        )
    targets = [options.target] if isinstance(options.target, str) else list(options.target)
    for target in targets:
        check_column(frame.columns, target, "target")
    if options.patient is not None:
        check_column(frame.columns, options.patient, "patient", "patients")
    names = [column for column in frame.columns if column not in (*targets, options.patient, apart)]
    with rows_at(lines_of(kind, path, options)):
        tested = np.zeros(frame.height, bool)
        if rule is not None:
            tested = ~cut_of(frame, rule, None, options.patient).train
        elif apart is not None:
            tested = truths(column_of(frame, apart, "test"), apart)
        count = int((~tested).sum())
        if count == 1:
            raise DataError(f"{path} has one training row, and its mean is that row itself: add rows, or take no part")
        if count < FEW_ROWS:
            few = f"{path} has {count} training rows, fewer than {FEW_ROWS}: sums of so few tell much about each"
            warn(few)
        table = {name: raw_column(frame[name], name)[~tested] for name in names}
        by_column = sums(rules.with_categories(c for c in categories_in(frame) if c in table), table)
        single = [name for name, of in by_column.items() if of.n == 1]
        if single:
            raise DataError(
                f"{path} has one value in its training rows of {some(single)}, and its mean is that value itself: "
                "leave the column out at every site (--leave-out), fill its gaps, or empty it here"
            )
        for sentence in _of_few(path, table, by_column) if count >= FEW_ROWS else ():
            warn(sentence)
        return by_column


def _of_few(path: Path, table: RawTable, by_column: Mapping[str, ColumnSums]) -> list[str]:
    """Sentences on what the sums of a column tell about a few rows: its only values, and words that hardly any has."""
    few = [f"{name} ({of.n})" for name, of in by_column.items() if 0 < of.n < FEW_ROWS]
    words = [
        f"{word!r} ({name})"
        for name, of in by_column.items()
        if of.words is not None
        for word, rows in Counter(map(str, table[name][~gaps_in(table[name])].tolist())).items()
        if rows < FEW_ROWS
    ]
    return [
        f"{path} has fewer than {FEW_ROWS} {what} in its training rows: {some(names)}; {why}, so leave the column out "
        f"at every site (--leave-out), or {instead}, unless others may know"
        for what, names, why, instead in (
            ("values", few, "sums of so few tell much about each", "empty it here"),
            ("rows each of some words", words, "words are disclosed as they are", "group rare ones"),
        )
        if names
    ]


def frame_of(
    kind: str, path: Path, options: TableOptions, every_row: bool = False, apart: Collection[str | None] = ()
) -> tuple[Any, str | None]:
    """The table in a file or folder, and its column of clients; without empty rows, unless `every_row` is asked for.

    Words and numbers of a folder's Parquet files go together in the columns `apart`, and in that of patients.

    Raises:
        ConfigError: If a column that is to be left out is not there.
        DataError: If Polars is not installed, a file is missing or cannot be read, or a column is of kinds that do not
            go together.
    """
    if path.is_dir():
        files = _files(kind, path)
        if not files:
            raise DataError(f"{path.absolute()} has no {' or '.join(ENDINGS[kind])} file; give one for each client")
        if options.alone:
            raise DataError(
                f"{path.absolute()} is a folder, and one client's own data are one table; name the file in it "
                f"({some([file.name for file in files])})"
            )
        _check_each_a_client(kind, path, files)
        client = options.client or "client"
        names = {file: _names(kind, file, options) for file in files}
        for file in files if options.separator is not None else ():
            if len(names[file]) == 1 and any(other in names[file][0] for other in ",;\t"):
                raise DataError(
                    f"{file} has one column only, {names[file][0][:60]!r}, where separator is {options.separator!r}: "
                    "leave separator out, and each file of a folder has that of its first line"
                )
        known = {name for of in names.values() for name in of}

        def read(file: Path, as_words: bool = False) -> Any:
            return _read(kind, file, options, as_words, may_lack=known)

        frames = {file.stem: read(file) for file in files}
        if kind == "csv":
            frames = _as_numbers(frames, path, options, lambda: {file.stem: read(file, True) for file in files})
        return _stacked(frames, client, None if kind == "csv" else {*apart, options.patient}), client
    if not path.is_file():
        raise DataError(f"there is no file {path.absolute()}")
    frame = _read(kind, path, options, every_row=every_row)
    if kind == "csv":
        words = partial(_read, kind, path, options, as_words=True, every_row=every_row)
        frame = _as_numbers({"": frame}, path, options, lambda: {"": words()})[""]
    if options.alone:
        return frame.drop([column for column in frame.columns if column == options.client]), None
    return frame, options.client


def words_of(kind: str, path: Path, options: TableOptions) -> dict[str, list[str | None]]:
    """The columns of a file as they are written, so that 007 is not 7; None for a gap.

    Raises:
        DataError: If Polars is not installed, or the file cannot be read.
    """
    polars = _polars()
    frame = _read(kind, path, options, as_words=True, some_columns=True)
    return {column.name: column.cast(polars.String).to_list() for column in frame}


def columns_at(path: Path, options: TableOptions, columns: Sequence[Column]) -> dict[str, Any]:
    """The columns of a table that a model was trained on, as `predict` takes them.

    Numbers are read as for training.  Words of a CSV file are those that are written: 250.00 and 007 are no numbers,
    and NA is a word where training had it.

    Raises:
        ConfigError: If the declared notation of numbers is none.
        DataError: If Polars is not installed, the file is missing, no table or cannot be read, or lacks a column.
    """
    kind = _kind_of_file(path)
    words = written(path, options) if kind == "csv" else {}
    names = list(words) if kind == "csv" else list(map(composed, _schema(path)))
    for column in columns:
        check_known(f"{path} has", column.name, names)
    read = {composed(c.name) for c in columns if c.kind == "number" or kind != "csv"}
    notation = _notation(options)
    frame = (
        frame_of(kind, path, replace(options, leave_out=tuple(n for n in names if n not in read)), every_row=True)[0]
        if read
        else {}
    )

    def values(column: Column) -> Any:
        name = composed(column.name)
        if name in read:
            return frame[name]
        known = set(column.values)
        none = set(options.gaps) - known

        def code(word: str | None) -> str | None:
            if word is None or word in none:
                return None
            return notation.plain(word) if word not in known and re.match(notation.pattern, word) else word

        return np.array(list(map(code, words[name])), object)

    return {column.name: values(column) for column in columns}


def written(path: Path, options: TableOptions) -> dict[str, list[str | None]]:
    """The columns of a table as they are written, gaps as the words they are; None where nothing is written.

    Raises:
        DataError: If Polars is not installed, or the file is missing, no table or cannot be read.
    """
    kind = _kind_of_file(path)
    frame = _read(kind, path, options, as_words=True, some_columns=True, gaps=False, every_row=True)
    return {column.name: [None if v is None else str(v) for v in column.to_list()] for column in frame}


def _kind_of_file(path: Path) -> str:
    kind = kind_of(str(path))
    if kind is None:
        raise DataError(f"{path} is no table (.csv, .tsv, .parquet, .pq), like that the model was trained on")
    if not path.is_file():
        raise DataError(f"{path.absolute()} is a folder" if path.is_dir() else f"there is no file {path.absolute()}")
    return kind


def _schema(path: Path) -> list[str]:
    polars = _polars()
    try:
        return list(polars.read_parquet_schema(path))
    except (polars.exceptions.PolarsError, OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} is not a readable parquet file: {_reason(error, None, path)}") from None


def separator_of(path: Path, options: TableOptions) -> str:
    """The character between the columns of a CSV file.

    Raises:
        DataError: If it is no text in UTF-8 or the declared encoding.
    """
    return _head(path, options).separator


def lines_of(kind: str, path: Path, options: TableOptions, every_row: bool = False) -> Place:
    """The places of the rows that `frame_of` reads: lines of a CSV file, or of the files of a folder."""
    if kind != "csv":
        return by_number

    def line(row: int) -> str:
        left = row
        for file in _files_at(kind, path):
            head = _head(file, options)
            with file.open(encoding=head.encoding, newline="") as lines, suppress(csv.Error):  # a field may be too long
                for _ in range(head.above):
                    next(lines)
                records = csv.reader(lines, delimiter=head.separator)
                next(records, None)
                before = records.line_num
                for record in records:
                    empty = not every_row and _is_empty(record, head)
                    if left == 0 and not empty:
                        line = before + 1 + head.above
                        return f"line {line}" + (f" of {file.name}" if path.is_dir() else "")
                    left, before = left - (not empty), records.line_num
        return by_number(row)

    return line


def _is_empty(record: Sequence[str], head: "_Head") -> bool:
    """True if a row of several columns has nothing in any; in one column an empty line is a gap."""
    return len(head.names) > 1 and not any(map(str.strip, record))


def _empty_rows(file: Path, head: "_Head") -> list[int]:
    """The numbers of rows of a CSV file that have nothing in any column."""
    blank = rb'[ \t"%b]' % re.escape(head.separator.encode())
    line = rb"\n(?:%b*\r?\n|%b+\Z)" % (blank, blank)
    with _octets(file, head) as octets:
        if re.search(line, octets) is None:
            return []
    rows: list[int] = []
    with file.open(encoding=head.encoding, newline="") as lines, suppress(csv.Error):  # a field may be too long
        for _ in range(head.above):
            next(lines)
        records = csv.reader(lines, delimiter=head.separator)
        next(records, None)
        rows += [i for i, record in enumerate(records) if _is_empty(record, head)]
    return rows


def _rows_but(left_out: Sequence[int], rows: int) -> Any:
    """Truths for Polars' filter: which of so many rows stay."""
    stay = np.ones(rows, bool)
    stay[[row for row in left_out if row < rows]] = False
    return _polars().Series(stay)


def _check_each_a_client(kind: str, folder: Path, files: Sequence[Path]) -> None:
    """Refuse a folder with tables of the other kind, which would be left out, or with two of one client's name."""
    others = [file.name for other in ENDINGS if other != kind for file in _files(other, folder)]
    if others:
        raise DataError(
            f"{folder} holds tables of two kinds, {some([file.name for file in files])} and {some(others)}: save all "
            "clients' in one kind, or move away what is no client's"
        )
    by_stem = {file.stem: file for file in files}
    twice = next((file for file in files if by_stem[file.stem] is not file), None)
    if twice is not None:
        raise DataError(
            f"{folder} holds both {twice.name} and {by_stem[twice.stem].name}, and a file's name is its client's: "
            "rename one, or move away what is no client's"
        )


def _names(kind: str, file: Path, options: TableOptions) -> list[str]:
    """The names of a file's columns."""
    names = _head(file, options).names if kind == "csv" else _schema(file)
    return [composed(_bare(name) if kind == "csv" else name) for name in names]


def _files(kind: str, folder: Path) -> list[Path]:
    """The tables in a folder."""
    return [file for file in _visible(folder) if file.suffix.lower() in ENDINGS[kind]]


def _visible(folder: Path) -> list[Path]:
    """Files and folders in a folder; hidden ones are copies and locks of editors, and some are what systems write."""
    names = (path for path in folder.iterdir() if path.name[0] != "." and path.name.casefold() not in OF_SYSTEMS)
    return sorted(names)


def _files_at(kind: str, path: Path) -> list[Path]:
    return _files(kind, path) if path.is_dir() else [path]


def _stacked(frames: Mapping[str, Any], client: str, apart: Collection[str | None] | None) -> Any:
    """One table of several, each file's name in a column of clients; `apart` as in `check_numbers`, None without."""
    polars = _polars()
    first, columns = next((name, frame.columns) for name, frame in frames.items())
    for name, frame in frames.items():
        if client in frame.columns:
            raise DataError(
                f"{name} has a column {client!r}, and each file of the folder is a client; name the file's own column "
                "in leave_out, or put all into one file"
            )
        if sorted(frame.columns) != sorted(columns):
            odd = sorted(set(frame.columns) ^ set(columns))
            raise DataError(
                f"{name} and {first} differ in columns: {', '.join(odd)}; give all sites the same ones, or name in "
                "leave_out what only some have"
            )
    if apart is not None:
        check_numbers(frames, columns, apart)
    return stacked(polars, frames, columns, client)


def _read(
    kind: str,
    path: Path,
    options: TableOptions,
    as_words: bool = False,
    some_columns: bool = False,
    gaps: bool = True,
    may_lack: Collection[str] = (),
    every_row: bool = False,
) -> Any:
    """One file; `as_words` leaves numbers as they are written, and without `gaps` words for them are words.

    Rows that are empty in every column of several are left out, unless `every_row` is asked for.

    Where only `some_columns` are used, others may be without a name, and hold long texts.  Columns that are left out
    must be there, unless they are among those that it `may_lack`.
    """
    polars = _polars()
    none = [*GAPS, *options.gaps] if gaps else []
    head = _head(path, options) if kind == "csv" else None
    try:
        check_width(len(polars.read_parquet_schema(path) if head is None else head.names), str(path))
        if head is None:
            # A kilobyte can hold a column of a billion equal values; the footer has their number.
            rows = int(polars.scan_parquet(path, glob=False).select(polars.len()).collect().item())
            machine.require_room(8 * rows * len(polars.read_parquet_schema(path)), path)
            _check_words(polars.scan_parquet(path, glob=False), kind, path, options, any_length=some_columns)
            frame = polars.read_parquet(path, glob=False)
        else:
            frame = polars.read_csv(
                _source(path, head),
                separator=head.separator,
                decimal_comma=_notation(options).decimal == ",",
                null_values=none,
                infer_schema=not as_words,
                infer_schema_length=None,
                skip_lines=head.above,
                glob=False,
            )
    except (polars.exceptions.PolarsError, OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} is not a readable {kind} file: {_reason(error, head, path)}") from None
    if head is not None and not every_row and (empty := _empty_rows(path, head)):
        frame = frame.filter(_rows_but(empty, frame.height))
    if frame.height == 0:
        raise DataError(f"{path} has no rows")
    if len(frame.columns) == 1 and ";" in frame.columns[0]:
        raise DataError(f"{path} has one column only, {frame.columns[0][:60]!r}: set separator = ';'")
    if head is not None:
        frame = _named(frame, head, path, none)
    frame = with_composed_columns(frame, str(path))
    lacking = [column for column in options.leave_out if column not in frame.columns and column not in may_lack]
    if lacking:
        nearest = did_you_mean(lacking[0], frame.columns)
        raise ConfigError(
            f"leave_out: {path} has no column {lacking[0]!r}{nearest} (columns: {', '.join(frame.columns)})"
        )
    frame = frame.drop(list(options.leave_out), strict=False)
    if "" in frame.columns and not some_columns:
        raise DataError(
            f"{path} has a column without a name, such as the row numbers that pandas writes; name it, or leave it out "
            "with leave_out = ['']"
        )
    if head is not None and not some_columns:
        _check_words(frame.lazy(), kind, path, options)
    if head is not None and not as_words:
        when = options.test.column if isinstance(options.test, Latest) else None  # words that are to be in ISO form
        frame = _dated(frame, path, when)
    wide = [name for name, of in frame.schema.items() if isinstance(of, polars.Decimal) or of == polars.Int128]
    return frame.with_columns(polars.col(name).cast(polars.Float64) for name in wide)  # NumPy has no such numbers


def _check_words(frame: Any, kind: str, path: Path, options: TableOptions, any_length: bool = False) -> None:
    """Refuse a column with a word that is too long, and words that have no room in memory.

    Equal words are one in Parquet and in Polars, and each a text of its own in Python.

    Args:
        frame: The table, lazy.
        kind, path, options: What is read.
        any_length: Words may be long.

    Raises:
        DataError: Naming the first column's first row with such a word.
    """
    polars = _polars()
    schema = {name: of for name, of in frame.collect_schema().items() if composed(name) not in options.leave_out}
    lengths = {name: polars.col(name).bin.size() for name, of in schema.items() if of == polars.Binary}
    for name, of in schema.items():
        if of in (polars.String, polars.Categorical, polars.Enum):
            lengths[name] = polars.col(name).cast(polars.String).str.len_chars()
    if not lengths:
        return
    # All columns at once: polars looks through its list of them for each request.
    asked = [(x.max(), (x > LONGEST).arg_true().first(), x.cast(polars.Int64).sum()) for x in lengths.values()]
    lengths_of = frame.select(x.alias(str(i)) for i, x in enumerate(chain(*asked))).collect().row(0)
    for name, most, row in zip(lengths, lengths_of[::3], lengths_of[1::3], strict=True):
        if not any_length and (most or 0) > LONGEST:
            with rows_at(lines_of(kind, path, options)):
                raise too_long(f"{path}: column {name!r}", most, row)
    machine.require_room(sum(lengths_of[2::3]), path)


def _dated(frame: Any, path: Path, but: str | None = None) -> Any:
    """The table with columns of words, `but` one, that are dates or times as such, as Polars reads them.

    It tries every pattern on every word, a second for 30,000, so it is asked only about columns that begin with one.

    Raises:
        DataError: If the dates of a column are written in several ways.
    """
    polars = _polars()
    cs = polars.selectors

    def read(words: Any) -> Any:
        text = words.write_csv(null_value=GAPS[-1]).encode()
        return polars.read_csv(text, null_values=GAPS[-1], infer_schema_length=None, try_parse_dates=True)

    # By number: Polars reads a name with a quote in it differently from how it writes it.
    names = {
        str(i): column.name for i, column in enumerate(frame) if column.dtype == polars.String and column.name != but
    }
    words = frame.select(
        polars.col(name).alias(i) for i, name in names.items() if frame[name].null_count() < len(frame)
    )
    begin = words.select(polars.all().drop_nulls().first())
    like = read(begin).select(cs.temporal()).columns if begin.width else []
    for i in like:
        try:
            frame = frame.with_columns(read(words.select(i)).select(cs.temporal()).rename(names, strict=False))
        except polars.exceptions.PolarsError as error:
            odd = re.search(r"could not parse `(.*?)` as|values: \[\"(.*?)\"", str(error))
            other = f" and {(odd[1] or odd[2])!r}" if odd else ""
            raise DataError(
                f"{path}, column {names[i]!r}, holds dates or times, written in several ways, such as {begin[i][0]!r}"
                f"{other}: make numbers of them, or leave it out with leave_out"
            ) from None
    return frame


def _notation(options: TableOptions) -> Notation:
    """The notation of a table's numbers.

    Raises:
        ConfigError: If one character is between thousands and before decimals.
    """
    notation = declared(options.thousands, options.decimal)
    if notation.thousands == notation.decimal:
        raise ConfigError(f"thousands and decimal are both {notation.decimal!r}; a number has them for one of the two")
    return notation


@dataclass(frozen=True)
class _Head:
    """The first line of a CSV file: names of the columns, and the character between them.

    Attributes:
        names: As they are written.
        separator: The character.
        above: Lines above it: 1 if the file begins with a line `sep=;`, as Excel reads it.
        padded: Spaces stand beside the separator, and belong to no name or word.
        encoding: How the file is encoded.
    """

    names: tuple[str, ...]
    separator: str
    above: int = 0
    padded: bool = False
    encoding: str = UTF8


_SEP = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)


def _head(path: Path, options: TableOptions) -> _Head:
    """The first line; without names if it cannot be read.

    Raises:
        DataError: If it is no text in UTF-8 or the declared encoding.
    """
    separator, encoding = options.separator, UTF8
    try:
        encoding = encoding_of(path, options.encoding)
        with path.open(encoding=encoding, newline="") as file:
            line = file.readline(1 << 24)
            sep_line = _SEP.fullmatch(line)
            line = file.readline(1 << 24) if sep_line else line
        by_name = "\t" if path.suffix.lower() == ".tsv" else _between_names(line)
        chosen = separator or (sep_line[1] if sep_line else by_name)
        names = tuple(next(csv.reader([line], delimiter=chosen), ()))
        return _Head(names, chosen, 1 if sep_line else 0, any(name != name.strip() for name in names), encoding)
    except UnicodeDecodeError:
        if encoding != UTF8:
            as_utf8(path, encoding)  # names the line
        raise DataError(f"{path} is not a readable csv file: {not_utf8(path)}") from None
    except (OSError, ValueError, TypeError, csv.Error):
        return _Head((), separator or ",", encoding=encoding)


def _source(path: Path, head: _Head) -> Path | bytes:
    """Return what Polars reads, which knows UTF-8 only."""
    return path if head.encoding == UTF8 else as_utf8(path, head.encoding)


@contextmanager
def _octets(path: Path, head: _Head) -> Iterator[mmap.mmap | bytes]:
    """The content of a CSV file in UTF-8."""
    if head.encoding != UTF8:
        yield as_utf8(path, head.encoding)
        return
    with path.open("rb") as content, mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as octets:
        yield octets


def _between_names(line: str) -> str:
    bare = re.sub(r'"[^"]*"', "", line)
    return next((one for one in ";\t" if one in bare and "," not in bare), ",")


def _reason(error: Exception, head: _Head | None, path: Path) -> str:
    """Say what is wrong with a file, in a sentence a user can act on."""
    reason = " ".join(str(error).split()).partition(". ")[0].rstrip(".") or type(error).__name__
    if "invalid utf-8" in reason:
        return not_utf8(path)
    if head is not None and "more fields than defined" in reason:
        return (
            f"a row has more values than the first line has columns ({len(head.names)}, between them "
            f"{head.separator!r}); set separator, quote values that hold it, or remove lines above the columns' names"
        )
    return reason[:200]


def _named(frame: Any, head: _Head, path: Path, none: Sequence[str]) -> Any:
    """The table without spaces beside the separators, and without columns that have neither name nor value.

    Such columns come of a separator at the end of lines.

    Raises:
        DataError: If two others have one name, of which Polars would rename one.
    """
    polars, names = _polars(), head.names
    if len(names) != len(frame.columns):  # a name that goes on in the next line
        return frame
    if head.padded:
        names = tuple(_bare(name) for name in names)
        words = polars.col(polars.String).str.strip_chars().str.replace(r'(?s)^"(.*)"$', "${1}")
        frame = frame.with_columns(polars.when(~words.is_in(list(none))).then(words))
    left = [i for i, name in enumerate(names) if name.strip() or frame[:, i].null_count() < frame.height]
    known = [names[i] for i in left]
    count = Counter(known)
    twice = next((name for name in known if count[name] > 1), None)
    if twice is not None:
        which = f"called {twice!r}" if twice else "without a name"
        raise DataError(f"{path} has {count[twice]} columns {which}; rename or remove all but one")
    given = frame.columns
    chosen = frame.select(given[i] for i in left)
    return chosen.rename(dict(zip(chosen.columns, known, strict=True))) if head.padded else chosen


def _bare(name: str) -> str:
    return re.sub(r'(?s)^"(.*)"$', r"\1", name.strip())


def _as_numbers(
    frames: Mapping[str, Any], where: Path, options: TableOptions, words: Callable[[], Mapping[str, Any]]
) -> dict[str, Any]:
    """The tables with numbers in place of words that are numbers in the declared notation.

    Args:
        frames: By name of the file; "" for one that stands alone.
        where: The file or folder.
        options: What is known of it.
        words: Reads the tables again, numbers as they are written.

    Raises:
        ConfigError: If the declared notation is none.
        DataError: If numbers are in another notation, or can be read in two ways.
    """
    polars, notation = _polars(), _notation(options)
    declared_here = options.thousands is not None or options.decimal is not None
    shared = set.intersection(*(set(frame.columns) for frame in frames.values()))
    again: Mapping[str, Any] | None = None
    converted: dict[str, list[Any]] = {file: [] for file in frames}
    thousands = set().union(*map(_like_thousands, frames.values()))
    for name in next(iter(frames.values())).columns:
        columns = {file: frame[name] for file, frame in frames.items()} if name in shared else {}
        in_words = any(column.dtype == polars.String for column in columns.values())
        like = name in thousands and name in shared
        if not in_words and (declared_here or not like):
            continue
        if not in_words or like:
            again = words() if again is None else again
            columns = {file: frame[name] for file, frame in again.items()}
        sites = _by_site(columns, frames, options)
        if sentence := refused(name, where, sites, options.thousands, options.decimal):
            if len(frames) == 1:
                raise DataError(sentence)
            again = words() if again is None else again
            if not declared_here and (by_file := _each_as_written(frames, where, options, again)):
                return by_file
            first = [_number_with(mark, again, where, options, name) for mark in ",."]
            raise DataError(f"{sentence} ({', '.join(filter(None, first))})" if any(first) else sentence)
        for file, frame in frames.items():
            if frame[name].dtype == polars.String:
                converted[file].append(_converted(frame[name], notation, options.gaps))
    changed = {file: frame.with_columns(converted[file]) for file, frame in frames.items()}
    if none := gap_numbers(options.gaps):
        numbers = polars.selectors.numeric()
        whole = polars.when(~numbers.cast(polars.Float64).is_in(none)).then(numbers)
        changed = {file: frame.with_columns(whole) for file, frame in changed.items()}
    return changed


def _each_as_written(
    frames: Mapping[str, Any], folder: Path, options: TableOptions, words: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The tables of a folder with numbers in place of words, where some files have decimal points and others commas.

    Args:
        frames, folder, options: As for `_as_numbers`.
        words: The tables as they are written.

    Returns:
        None if not both are certain (`unskew.data.numerals.decimal_of`).

    Raises:
        DataError: If they are, and a further file's numbers are not certainly written in one of the two ways.
    """
    polars = _polars()
    files = {file.stem: file for file in _files("csv", folder)}
    numbers = {
        stem: [column.alias("number") for column in frame if _numbers_in(column)] for stem, frame in words.items()
    }
    together = {stem: polars.concat(of) for stem, of in numbers.items() if of}
    marks = {stem: decimal_of(of.filter(of.str.contains(ANY))) for stem, of in together.items()}
    if not {".", ","} <= set(marks.values()):
        return None
    comma, point = (next(stem for stem, one in marks.items() if one == mark) for mark in (",", "."))
    for stem in (stem for stem, mark in marks.items() if mark is None):
        alone = {stem: words[stem]}
        if held := list(filter(None, (_number_with(mark, alone, folder, options) for mark in ",.' "))):
            raise DataError(
                f"{files[comma].name} in {folder} writes decimals with commas, {files[point].name} with points, and "
                f"{files[stem].name} not certainly in one of the two ways: it holds {', '.join(held)}; write "
                "nothing between thousands there and one mark before decimals, in some numbers before other than "
                "three of them, or save all files alike"
            )
    return {
        stem: _as_numbers(
            {"": frame}, files[stem], replace(options, decimal=marks.get(stem)), partial(dict, {"": words[stem]})
        )[""]
        for stem, frame in frames.items()
    }


def _number_with(
    mark: str, words: Mapping[str, Any], folder: Path, options: TableOptions, column: str | None = None
) -> str:
    """The first number with this mark in a column, or in any, and its place; empty if there is none."""
    for file in (file for file in _files("csv", folder) if file.stem in words):
        for name, of in words[file.stem].to_dict().items():
            row = (of.str.contains(ANY) & of.str.contains(BETWEEN[mark])).arg_true().first()
            if row is not None and (_numbers_in(of) if column is None else name == column):
                place = lines_of("csv", file, options)(row)
                return f"{of[row]!r}{f' of column {name!r}' if column is None else ''} in {place} of {file.name}"
    return ""


def _numbers_in(words: Any) -> bool:
    """True if most words of a column are numbers in some notation."""
    words = words.drop_nulls()
    return bool(2 * words.str.contains(ANY).sum() > len(words))


def _like_thousands(frame: Any) -> set[str]:
    """Names of columns whose numbers, as they were read, may have had a point between thousands."""
    floats = frame.select(_polars().selectors.float())
    like: set[str] = set()
    for start in range(0, floats.width, 1000):  # together: a call for each takes half a second for a thousand
        some_columns = floats[:, start : start + 1000]
        values = some_columns.to_numpy()
        finite = np.isfinite(values)
        values = np.where(finite, np.abs(values), 1.0)
        broken = np.where(values % 1 != 0, values * 1000, 1000.0)
        fits = (np.abs(broken - np.round(broken)) < 1e-6) & (broken >= 1000) & (broken < 1e6)
        like.update(compress(some_columns.columns, finite.any(0) & fits.all(0)))
    return like


def _by_site(columns: Mapping[str, Any], frames: Mapping[str, Any], options: TableOptions) -> dict[str, Any]:
    """The words of each site: of each file, or of each client in one file."""
    polars = _polars()
    whole = {file: column.cast(polars.String).alias("word") for file, column in columns.items()}
    frame = frames.get("")
    if frame is None or options.client is None or options.client not in frame.columns or options.alone:
        return {file: words.drop_nulls() for file, words in whole.items()}
    if 2 * whole[""].str.contains(ANY).sum() <= len(whole[""]):
        return {"": whole[""].drop_nulls()}
    table = polars.DataFrame(
        {"site": frame[options.client].cast(polars.String).fill_null("no site"), "word": whole[""]}
    ).drop_nulls()
    return {str(site): words["word"] for (site,), words in table.group_by("site", maintain_order=True)}


def _converted(words: Any, notation: Notation, gaps: Sequence[str]) -> Any:
    """The column as numbers if all its words are, which spaces or separators kept Polars from reading."""
    polars = _polars()
    bare = words.str.strip_chars()
    bare = bare.to_frame().select(polars.when(~bare.is_in([*GAPS, *gaps])).then(bare))[words.name]
    if not bare.str.contains(notation.pattern).all() or bare.null_count() == len(bare):
        return words
    for char, plain in ((BETWEEN[notation.thousands], ""), (BETWEEN[notation.decimal], ".")):
        bare = bare.str.replace_all(char, plain) if char else bare
    whole = bare.str.contains(r"^[+-]?[0-9]{1,18}$").all()
    numbers = bare.str.strip_prefix("+").cast(polars.Int64 if whole else polars.Float64, strict=False)
    return numbers if numbers.null_count() == bare.null_count() else words


def _polars() -> Any:
    try:
        return importlib.import_module("polars")
    except ImportError as error:
        raise DataError(
            f"CSV and Parquet files are read by Polars, which cannot be imported ({error}); {INSTALL}"
        ) from error
