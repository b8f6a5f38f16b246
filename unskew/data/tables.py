"""Reads data as people keep them: tables (CSV, Parquet) in one file or one for each client.

    csv:PATH, parquet:PATH      one file with a column of clients, or a folder with one file for each client

Polars (extra [tables]) reads them by the options it is given: nothing is guessed of how a file is written.
"""

import csv
import importlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unskew import machine
from unskew.data import checks, own
from unskew.data.checks import FEW_ROWS
from unskew.data.columns import check_width, composed_names, with_composed_columns
from unskew.data.dataset import Dataset
from unskew.data.image_folders import OF_SYSTEMS, is_image
from unskew.data.inputs import GAPS, Column, RawTable, check_known, gap_numbers, gaps_in, raw_column
from unskew.data.latest import Latest
from unskew.data.own.clients import stacked
from unskew.data.own.frames import categories_in, check_column, column_of
from unskew.data.own.parts import cut_of
from unskew.data.own.values import truths
from unskew.data.patients import PatientIds
from unskew.data.places import Place, by_number, path_of, rows_at
from unskew.data.preprocess import ColumnSums, Preprocess, sums
from unskew.data.table import CheckedTable
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
        separator: Character between the columns of a CSV file; by default a comma, in a .tsv file a tab.
        decimal: Character before the decimals in a CSV file.
        thousands: Character between thousands in a CSV file; by default none.
        encoding: Encoding of the CSV files, as Python names it.
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
    decimal: Literal[".", ","] = "."
    thousands: str = ""
    encoding: str = "utf-8"
    gaps: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    alone: bool = False

    def __post_init__(self) -> None:
        """Write names of columns in one form of Unicode, as tables have them; `test` may be the path of a file.

        Raises:
            ConfigError: If one character is between thousands and before decimals.
        """
        if self.thousands == self.decimal:
            raise ConfigError(f"thousands and decimal are both {self.decimal!r}; a number has one of them for each")
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
    frame, client = frame_of(kind, path, options)
    test: Any = column_or_path(options.test, frame)
    given = [path]
    test_rows_at: Place = by_number
    if isinstance(test, str) and test not in frame.columns:
        columns = some(frame.columns)
        given.append(path_of(test, f"test is no column and no share (columns: {columns}), and the file {test!r}"))
        if not given[1].exists():
            raise DataError(
                f"test must be a column, a file or a share, and {test!r} is none of them (columns: {columns}; no file "
                f"{given[1].absolute()})"
            )
        test, test_rows_at = frame_of(kind, given[1], options)[0], lines_of(kind, given[1], options)
    doubts = unread_in(given)
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


def unread_in(paths: Sequence[Path]) -> list[str]:
    """Sentences on files of folders that are not read."""
    return list(filter(None, map(_left_out, filter(Path.is_dir, paths))))


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
        for name in by_column:
            for note in checks.spelt_alike(CheckedTable({name: table[name]})):
                warn(note)
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


def frame_of(kind: str, path: Path, options: TableOptions, every_row: bool = False) -> tuple[Any, str | None]:
    """The table in a file or folder, and its column of clients; without empty rows, unless `every_row` is asked for.

    Raises:
        ConfigError: If a column that is to be left out is not there.
        DataError: If Polars is not installed, a file is missing or cannot be read, or a column is of kinds that do not
            go together.
    """
    if path.is_dir():
        client = options.client or "client"
        frames = {file.stem: _read(kind, file, options) for file in _sites(kind, path, options)}
        _check_left_out(path, {name for frame in frames.values() for name in frame.columns}, options)
        return _stacked({stem: _named(stem, of, options) for stem, of in frames.items()}, client), client
    if not path.is_file():
        raise DataError(f"there is no file {path.absolute()}")
    frame = _read(kind, path, options, every_row=every_row)
    _check_left_out(path, frame.columns, options)
    frame = _named(path, frame, options)
    if options.alone:
        return frame.drop([column for column in frame.columns if column == options.client]), None
    return frame, options.client


def words_of(kind: str, path: Path, options: TableOptions, gaps: bool = True) -> dict[str, list[str | None]]:
    """The columns of a file as they are written, None where nothing is; `gaps` are None, too, or else words.

    Raises:
        DataError: If Polars is not installed, or the file cannot be read.
    """
    frame = _read(kind, path, options, as_words=True, gaps=gaps, every_row=not gaps)
    return {column.name: [None if v is None else str(v) for v in column.to_list()] for column in frame}


def columns_at(path: Path, options: TableOptions, columns: Sequence[Column]) -> dict[str, Any]:
    """The columns of a table that a model was trained on, as `predict` takes them, read as for training.

    Raises:
        DataError: If Polars is not installed, the file is missing, no table or cannot be read, or lacks a column.
    """
    frame = _read(_kind_of_file(path), path, options, every_row=True)
    for column in columns:
        check_known(f"{path} has", column.name, frame.columns)
    return {column.name: frame[composed(column.name)] for column in columns}


def written(path: Path, options: TableOptions) -> dict[str, list[str | None]]:
    """The columns of a table as they are written, gaps as the words they are; None where nothing is written.

    Raises:
        DataError: If Polars is not installed, or the file is missing, no table or cannot be read.
    """
    return words_of(_kind_of_file(path), path, options, gaps=False)


def _kind_of_file(path: Path) -> str:
    kind = kind_of(str(path))
    if kind is None:
        raise DataError(f"{path} is no table (.csv, .tsv, .parquet, .pq), like that the model was trained on")
    if not path.is_file():
        raise DataError(f"{path.absolute()} is a folder" if path.is_dir() else f"there is no file {path.absolute()}")
    return kind


def separator_of(path: Path, options: TableOptions) -> str:
    """The character between the columns of a CSV file."""
    return options.separator or ("\t" if path.suffix.lower() == ".tsv" else ",")


def lines_of(kind: str, path: Path, options: TableOptions, every_row: bool = False) -> Place:
    """The places of the rows that `frame_of` reads: lines of a CSV file, or of the files of a folder."""
    if kind != "csv":
        return by_number
    none = {*GAPS, *options.gaps}

    def line(row: int) -> str:
        left = row
        for file in _files(kind, path) if path.is_dir() else [path]:
            with _text(file, options) as lines, suppress(csv.Error):  # a field may be too long
                records = csv.reader(lines, delimiter=separator_of(file, options))
                width, before = len(next(records, ())), records.line_num
                for record in records:
                    empty = not every_row and width > 1 and none.issuperset(map(str.strip, record))
                    if left == 0 and not empty:
                        return f"line {before + 1}" + (f" of {file.name}" if path.is_dir() else "")
                    left, before = left - (not empty), records.line_num
        return by_number(row)

    return line


def _text(file: Path, options: TableOptions) -> Any:
    encoding = "utf-8-sig" if options.encoding == "utf-8" else options.encoding
    return file.open(encoding=encoding, errors="replace", newline="")


def _sites(kind: str, folder: Path, options: TableOptions) -> list[Path]:
    """The tables in a folder, each a client's.

    Raises:
        DataError: If there are none, some of the other kind, which would be left out, or two of one client's name; or
            if one client's data are asked for.
    """
    files = _files(kind, folder)
    others = [file.name for other in ENDINGS if other != kind for file in _files(other, folder)]
    if not files:
        raise DataError(f"{folder.absolute()} has no {' or '.join(ENDINGS[kind])} file; give one for each client")
    if options.alone:
        raise DataError(
            f"{folder.absolute()} is a folder, and one client's own data are one table; name the file in it "
            f"({some([file.name for file in files])})"
        )
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
    return files


def _files(kind: str, folder: Path) -> list[Path]:
    """The tables in a folder."""
    return [file for file in _visible(folder) if file.suffix.lower() in ENDINGS[kind]]


def _visible(folder: Path) -> list[Path]:
    """Files and folders in a folder; hidden ones are copies and locks of editors, and some are what systems write."""
    names = (path for path in folder.iterdir() if path.name[0] != "." and path.name.casefold() not in OF_SYSTEMS)
    return sorted(names)


def _check_left_out(where: Path, columns: Iterable[str], options: TableOptions) -> None:
    """Refuse columns that are to be left out and are not there.

    Raises:
        ConfigError: Naming the first.
    """
    known = sorted(columns)
    if lacking := [column for column in options.leave_out if column not in known]:
        nearest = did_you_mean(lacking[0], known)
        raise ConfigError(f"leave_out: {where} has no column {lacking[0]!r}{nearest} (columns: {', '.join(known)})")


def _named(where: object, frame: Any, options: TableOptions) -> Any:
    """The table without the columns that are to be left out.

    Raises:
        DataError: If another has no name.
    """
    frame = frame.drop(list(options.leave_out), strict=False)
    if "" in frame.columns:
        raise DataError(
            f"{where} has a column without a name, such as the row numbers that pandas writes; name it, or leave it "
            "out with leave_out = ['']"
        )
    return frame


def _stacked(frames: Mapping[str, Any], client: str) -> Any:
    """One table of several, each file's name in a column of clients."""
    first, columns = next((name, frame.columns) for name, frame in frames.items())
    for name, frame in frames.items():
        if client in frame.columns:
            raise DataError(
                f"{name} has a column {client!r}, and each file of the folder is a client; name the file's own column "
                "in leave_out, or put all into one file"
            )
        if odd := sorted(set(frame.columns) ^ set(columns)):
            raise DataError(
                f"{name} and {first} differ in columns: {', '.join(odd)}; give all sites the same ones, or name in "
                "leave_out what only some have"
            )
    return stacked(_polars(), frames, columns, client)


def _read(
    kind: str, path: Path, options: TableOptions, as_words: bool = False, gaps: bool = True, every_row: bool = False
) -> Any:
    """One file; `as_words` leaves numbers as they are written, and without `gaps` words for them are words.

    Rows that are empty in every column of several are left out, unless `every_row` is asked for.
    """
    polars = _polars()
    none = [*GAPS, *options.gaps] if gaps else []
    try:
        if kind == "parquet":
            # A kilobyte can hold a column of a billion equal values; the footer has their number.
            rows = int(polars.scan_parquet(path, glob=False).select(polars.len()).collect().item())
            machine.require_room(8 * rows * len(polars.read_parquet_schema(path)), path)
            frame = polars.read_parquet(path, glob=False)
        else:
            frame = polars.read_csv(
                path,
                separator=separator_of(path, options),
                decimal_comma=options.decimal == ",",
                encoding=options.encoding,
                null_values=none,
                infer_schema=not as_words,
                infer_schema_length=None,
                glob=False,
            ).rename(str.strip)
    except LookupError as error:
        raise ConfigError(f"encoding: {error}; name one that Python knows, such as 'cp1252'") from None
    except (polars.exceptions.PolarsError, OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} is not a readable {kind} file: {_reason(error, options)}") from None
    check_width(len(frame.columns), str(path))
    if kind == "csv":
        frame = _tidy(frame, path, options, none, as_words, every_row)
    if frame.height == 0:
        raise DataError(f"{path} has no rows")
    frame = with_composed_columns(frame, str(path))
    wide = [name for name, of in frame.schema.items() if isinstance(of, polars.Decimal) or of == polars.Int128]
    return frame.with_columns(polars.col(name).cast(polars.Float64) for name in wide)  # NumPy has no such numbers


def _reason(error: Exception, options: TableOptions) -> str:
    """Say what is wrong with a file, in a sentence a user can act on."""
    reason = " ".join(str(error).split()).partition(". ")[0].rstrip(".") or type(error).__name__
    if "invalid utf-8" in reason or isinstance(error, UnicodeDecodeError):
        return f"it is not in {options.encoding}; set encoding, such as encoding = 'cp1252', which is usual in Windows"
    if "more fields than defined" in reason:
        return "a row has more values than the first line has columns; set separator, such as separator = ';'"
    return reason[:200]


def _tidy(frame: Any, path: Path, options: TableOptions, none: Sequence[str], as_words: bool, every_row: bool) -> Any:
    """The table of a CSV file without spaces beside words, empty rows, and empty columns that have no name.

    Words that are numbers in the declared notation become numbers.

    Raises:
        DataError: If there is one column only, or two have one name, of which Polars renames one.
    """
    polars, first = _polars(), frame.columns[0]
    if frame.width == 1 and any(other in first for other in ",;\t"):
        raise DataError(f"{path} has one column only, {first[:60]!r}: set separator, such as separator = ';'")
    if twice := [name for name in frame.columns if f"{name}_duplicated_0" in frame.columns]:
        which = f"called {twice[0]!r}" if twice[0] else "without a name"
        raise DataError(f"{path} has two columns {which}; rename or remove one")
    if "" in frame.columns and frame[""].null_count() == frame.height:
        frame = frame.drop("")
    words = frame.select(polars.selectors.string())
    words = words.select(polars.all().str.strip_chars())
    words = words.select(polars.when(~polars.all().is_in(none)).then(polars.all()))
    frame = frame.with_columns(words)
    if not every_row and frame.width > 1:
        frame = frame.filter(~polars.all_horizontal(polars.all().is_null()))
    if as_words:
        return frame
    bare = (
        words.select(polars.all().str.replace_all(options.thousands, "", literal=True)) if options.thousands else words
    )
    bare = bare.select(polars.all().str.replace(options.decimal, ".", literal=True))
    numbers = bare.select(polars.all().cast(polars.Float64, strict=False))
    fit = [name for name in words.columns if words[name].null_count() == numbers[name].null_count() < frame.height]
    frame = frame.with_columns(numbers[name] for name in fit)
    numeric = polars.selectors.numeric()
    missing = gap_numbers(options.gaps)
    return (
        frame.with_columns(polars.when(~numeric.cast(polars.Float64).is_in(missing)).then(numeric))
        if missing
        else frame
    )


def _polars() -> Any:
    try:
        return importlib.import_module("polars")
    except ImportError as error:
        raise DataError(
            f"CSV and Parquet files are read by Polars, which cannot be imported ({error}); {INSTALL}"
        ) from error
