"""Reads data as people keep them: tables (CSV, Parquet) in one file or one for each client.

    csv:PATH, parquet:PATH      one file with a column of clients, or a folder with one file for each client

Polars (extra [tables]) reads them by the options it is given: nothing is guessed of how a file is written.
"""

import csv
import importlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unskew import machine
from unskew.data import build, checks, own
from unskew.data.columns import GAPS, Frame, check_width, composed_names, frame_of, gap_numbers, gaps_in
from unskew.data.dataset import Dataset
from unskew.data.inputs import Column, check_known
from unskew.data.latest import Latest
from unskew.data.patients import PatientIds
from unskew.data.places import Place, by_number, path_of
from unskew.data.preprocess import ColumnSums, Preprocess, sums
from unskew.data.table import DataTable
from unskew.errors import ConfigError, DataError, did_you_mean, shown, warn
from unskew.tasks.targets import CLASS, Targets
from unskew.words import composed, counted, some

INSTALL = "pip install 'unskew[tables]'"
ENDINGS = {"csv": (".csv", ".tsv"), "parquet": (".parquet", ".pq")}
SHOWN = ", ".join(ending for known in ENDINGS.values() for ending in known)
OF_SYSTEMS = (
    "thumbs.db", "desktop.ini", "__macosx", "@eadir", "#recycle", "$recycle.bin", "system volume information",
    "lost+found",
)  # fmt: skip
"""What Windows, macOS and servers of files write beside people's files, besides hidden ones."""

OTHERS = (".xlsx", ".xls", ".ods", ".txt", ".sav", ".dta", ".rds")
"""Endings of tables that are not read."""


@dataclass(frozen=True)
class TableOptions:
    """The columns of a table, as of `unskew.data.own.table`, and how a CSV file is written.

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

    @property
    def names(self) -> tuple[str, ...]:
        """Columns of names and labels, whose zeros before other digits tell something."""
        targets = (self.target,) if isinstance(self.target, str) else self.target
        return tuple(name for name in (*targets, self.client, self.patient) if name)


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
    return next((kind for kind in ENDINGS if _files(kind, path)), None)


def unreadable(source: str) -> str:
    """A sentence on the path of a file or folder that holds no table which is read; empty for anything else."""
    path = path_of(source)
    known = kind_at(source) is not None or source.startswith("npz:")
    if known or not (path.exists() or path.suffix.lower() in OTHERS):
        return ""
    return (
        f"{source} is no table that is read ({SHOWN}): save it as CSV UTF-8, or give the DataFrame; write "
        f"images:{source} for images, npz:{source} for arrays"
    )


# ---------------------------------------------------------------- tables
def table(
    kind: str,
    path: Path,
    options: TableOptions,
    rules: Preprocess | None = None,
    targets: Targets = CLASS,
) -> DataTable:
    """The table in a file or folder, with its roles.

    Raises:
        ConfigError: If a column that is to be left out is not there.
        DataError: If Polars is not installed, a file is missing or cannot be read, or as in `unskew.data.own.table`.
    """
    data = _frames(kind, path, options)
    columns = {name: None for frame in ([data] if isinstance(data, Frame) else data.values()) for name in frame.columns}
    if lacking := [column for column in options.leave_out if column not in columns]:
        nearest = did_you_mean(lacking[0], columns)
        raise ConfigError(f"leave_out: {path} has no column {lacking[0]!r}{nearest} (columns: {', '.join(columns)})")
    left_out, client, given = options.leave_out, options.client, [path]
    if client is not None and (options.alone or path.is_dir()):
        left_out, client = (*left_out, *([client] if client in columns else [])), None
    test: Any = options.test
    if isinstance(test, str) and composed(test) not in columns:
        given.append(path_of(test, f"test is no column and no share, and the file {test!r}"))
        if not given[1].exists():
            raise DataError(
                f"test must be a column, a file or a share, and {test!r} is none of them (columns: "
                f"{some(list(columns))}; no file {given[1].absolute()})"
            )
        test = _without(_frames(kind, given[1], options), left_out)
    rows = own.table(
        _without(data, left_out),
        target=options.target,
        client=client,
        patient=options.patient,
        patient_ids=options.patient_ids,
        test=test,
        name=path.stem,
        rules=rules,
        kind=targets,
        declared=options.classes,
        alone=options.alone,
    )
    return replace(rows, notes=(*(note for one in given for note in unread(one, _others(one), SHOWN)), *rows.notes))


def _without(data: Any, columns: Collection[str]) -> Any:
    """Frames without these columns."""
    if isinstance(data, Mapping):
        return {name: _without(frame, columns) for name, frame in data.items()}
    return replace(data, columns={name: of for name, of in data.columns.items() if name not in columns})


def read_table(
    kind: str, path: Path, options: TableOptions, preprocess: Preprocess | None, targets: Targets = CLASS
) -> Dataset:
    """The data set in a table, as `table` reads it."""
    data = build.dataset(table(kind, path, options, preprocess, targets))
    if kind != "csv":
        return data
    written = {key: getattr(options, key) for key in ("gaps", "thousands", "decimal", "encoding")}
    return replace(data, inputs=replace(data.inputs, **written))


def training_sums(kind: str, path: Path, options: TableOptions, rules: Preprocess) -> dict[str, ColumnSums]:
    """Compute what a client with this file discloses to agree on a preprocessing: sums of training rows.

    Raises:
        ConfigError: If it is not said which rows are for testing.
        DataError: If the file cannot be read, sums would tell a row or a value because there is no other, or as in
            `unskew.data.preprocess.sums`.
    """
    rows = table(kind, path, replace(options, alone=True), rules)
    if rows.part is None:
        raise ConfigError(
            "test must be a column or a file, or say that the latest rows are: the disclosed statistics must not "
            "include test rows. Name it in data_options.test of the experiment, too"
        )
    rows = rows.take(rows.train)
    by_column = sums(rules.with_categories(rows.categories), rows.columns)
    for note in checks.spelt_alike(replace(rows, y=np.empty((len(rows), 0)))):
        warn(note)
    if len(rows) == 1 or any(of.n == 1 for of in by_column.values()):
        single = some([name for name, of in by_column.items() if of.n == 1] or list(by_column))
        raise DataError(
            f"{path} has one value in its training rows of {single}, and its mean is that value itself: leave the "
            "column out at every site (--leave-out), or take no part"
        )
    few = [f"{name} ({of.n})" for name, of in by_column.items() if 0 < of.n < checks.FEW_ROWS]
    for name, of in by_column.items():
        words = Counter(map(str, rows.columns[name][~gaps_in(rows.columns[name])].tolist())) if of.words else {}
        few += [f"{word!r} ({name})" for word, n in words.items() if n < checks.FEW_ROWS]
    if few:
        warn(
            f"{path} has fewer than {checks.FEW_ROWS} training rows with a value or a word in {some(few)}: sums of so "
            "few tell much about each. Words are disclosed as they are; leave such columns out at every site"
        )
    return by_column


# ---------------------------------------------------------------- for a model
def columns_at(path: Path, options: TableOptions, columns: Sequence[Column]) -> dict[str, Any]:
    """The columns of a table that a model was trained on, as `predict` takes them, read as for training.

    Raises:
        DataError: If Polars is not installed, the file is missing, no table or cannot be read, or lacks a column.
    """
    frame = read(_kind_of_file(path), path, options, every_row=True).columns
    for column in columns:
        check_known(f"{path} has", column.name, list(frame))
    return {column.name: frame[composed(column.name)] for column in columns}


def written(path: Path, options: TableOptions) -> dict[str, list[str | None]]:
    """The columns of a table as they are written, gaps as the words they are; None where nothing is written.

    Raises:
        DataError: If Polars is not installed, or the file is missing, no table or cannot be read.
    """
    frame = _text(_kind_of_file(path), path, options, gaps=False)
    return {column.name: [None if v is None else str(v) for v in column.to_list()] for column in frame}


def _kind_of_file(path: Path) -> str:
    kind = kind_of(str(path))
    if kind is None or not path.is_file():
        raise DataError(f"there is no table ({SHOWN}) {path.absolute()}, like that of training")
    return kind


# ---------------------------------------------------------------- files
def separator_of(path: Path, options: TableOptions) -> str:
    """The character between the columns of a CSV file."""
    return options.separator or ("\t" if path.suffix.lower() == ".tsv" else ",")


def lines_of(kind: str, path: Path, options: TableOptions, every_row: bool = False) -> Place:
    """The places of the rows of a file: lines of a CSV file."""
    if kind != "csv":
        return by_number
    none = {*GAPS, *options.gaps}
    encoding = "utf-8-sig" if options.encoding == "utf-8" else options.encoding

    def line(row: int) -> str:
        left = row
        with path.open(encoding=encoding, errors="replace", newline="") as lines, suppress(csv.Error):
            records = csv.reader(lines, delimiter=separator_of(path, options))
            width, before = len(next(records, ())), records.line_num
            for record in records:
                empty = not every_row and width > 1 and none.issuperset(map(str.strip, record))
                if left == 0 and not empty:
                    return f"line {before + 1}"
                left, before = left - (not empty), records.line_num
        return by_number(row)

    return line


def _frames(kind: str, path: Path, options: TableOptions) -> Frame | dict[str, Frame]:
    """The frame in a file, or those of a folder by the files' names."""
    if not path.is_dir():
        if not path.is_file():
            raise DataError(f"there is no file {path.absolute()}")
        return read(kind, path, options)
    files = _files(kind, path)
    others = [file.name for other in ENDINGS if other != kind for file in _files(other, path)]
    if not files or others or options.alone or len({file.stem for file in files}) < len(files):
        what = "one file of each client, all of one kind and of different names"
        raise DataError(
            f"{path.absolute()} must hold {'one table, as it is one client' if options.alone else what}, and has "
            f"{some([file.name for file in files] + others) or 'none'}"
        )
    return {file.stem: read(kind, file, options) for file in files}


def _files(kind: str, folder: Path) -> list[Path]:
    """The tables in a folder; hidden files are copies and locks of editors."""
    return sorted(f for f in folder.iterdir() if f.name[0] != "." and f.suffix.lower() in ENDINGS[kind])


def unread(folder: Path, left: Sequence[Path], what: str) -> tuple[str, ...]:
    """A sentence on files of a folder that are not read; none if there are none."""
    if not left:
        return ()
    names = some(sorted(str(file.relative_to(folder)) for file in left))
    return (shown(f"{counted(len(left), 'file')} in {folder} not read: {names}; what is read: {what}"),)


def _others(folder: Path) -> list[Path]:
    """Files of a folder that are no tables, hidden ones and those of systems apart."""
    files = folder.iterdir() if folder.is_dir() else ()
    return [
        f
        for f in files
        if f.is_file() and f.name[0] != "." and f.name.casefold() not in OF_SYSTEMS and kind_of(f.name) is None
    ]


def read(kind: str, path: Path, options: TableOptions, every_row: bool = False, words: Sequence[str] = ()) -> Frame:
    """One file, numbers in the declared notation as numbers, but in columns of `words`.

    Raises:
        DataError: If Polars is not installed, or the file cannot be read.
    """
    text = _text(kind, path, options, every_row=every_row)
    native = _typed(text, options) if kind == "csv" else text
    native = native.with_columns(text[name].cast(_polars().String) for name in words if name in text.columns)
    return replace(frame_of(native, str(path)), place=lines_of(kind, path, options, every_row))


def _text(kind: str, path: Path, options: TableOptions, gaps: bool = True, every_row: bool = False) -> Any:
    """One file, of a CSV file as words; rows without any value are left out, unless every row is asked for."""
    polars = _polars()
    none = [*GAPS, *options.gaps] if gaps else []
    try:
        if kind == "parquet":
            # A kilobyte can hold a column of a billion equal values; the footer has their number.
            rows = int(polars.scan_parquet(path, glob=False).select(polars.len()).collect().item())
            machine.require_room(8 * rows * len(polars.read_parquet_schema(path)), path)
            frame = polars.read_parquet(path, glob=False)
        else:
            encoding, separator = options.encoding, separator_of(path, options)
            with path.open("rb") as file:
                check_width(file.readline().count(separator.encode()) + 1, str(path))
            frame = polars.read_csv(path, separator=separator, encoding=encoding, infer_schema=False, glob=False)
            frame = frame.rename(str.strip)
    except LookupError as error:
        raise ConfigError(f"encoding: {error}; name one that Python knows, such as 'cp1252'") from None
    except (polars.exceptions.PolarsError, OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} is not a readable {kind} file: {_reason(error, options)}") from None
    if kind == "csv":
        first = frame.columns[0]
        if frame.width == 1 and any(other in first for other in ",;\t"):
            raise DataError(f"{path} has one column only, {first[:60]!r}: set separator, such as separator = ';'")
        if twice := [name for name in frame.columns if f"{name}_duplicated_0" in frame.columns]:
            raise DataError(f"{path} has two columns {twice[0]!r}; rename or remove one")
        words = frame.select(polars.all().str.strip_chars())
        frame = words.select(polars.when(~polars.all().is_in(none)).then(polars.all())) if gaps else words
        if "" in frame.columns and frame[""].null_count() == frame.height:
            frame = frame.drop("")
        if gaps and not every_row and frame.width > 1:
            frame = frame.filter(~polars.all_horizontal(polars.all().is_null()))
    if frame.height == 0:
        raise DataError(f"{path} has no rows")
    if "" in frame.columns and gaps and not every_row and "" not in options.leave_out:
        raise DataError(
            f"{path} has a column without a name, such as the row numbers that pandas writes; name it, or leave it "
            "out with leave_out = ['']"
        )
    return frame


def _reason(error: Exception, options: TableOptions) -> str:
    """Say what is wrong with a file, in a sentence a user can act on."""
    reason = " ".join(str(error).split()).partition(". ")[0].rstrip(".")[:200] or type(error).__name__
    if "invalid utf-8" in reason or isinstance(error, UnicodeDecodeError):
        return f"it is not in {options.encoding}; set encoding, such as encoding = 'cp1252', which is usual in Windows"
    wide = "more fields than defined" in reason
    return "a row has more values than there are columns; set separator, such as separator = ';'" if wide else reason


def _typed(frame: Any, options: TableOptions) -> Any:
    """Words as numbers where all of a column are, in the declared notation, and as truths where all are these.

    Names and labels with zeros before other digits stay words, which 007 is and 7 is not.

    Raises:
        DataError: If groups between the declared separators of thousands have other than three digits.
    """
    polars, decimal, thousands = _polars(), re.escape(options.decimal), re.escape(options.thousands)
    grouped = rf"^[+-]?\d{{1,3}}({thousands}\d{{3}})*({decimal}\d*)?$"
    none, typed = gap_numbers(options.gaps), []
    for name in frame.columns:
        words = frame[name]
        known = words.drop_nulls()
        if not len(known) or (name in options.names and known.str.contains(r"^[+-]?0\d").any()):
            continue
        if known.str.to_lowercase().is_in(["true", "false"]).all():
            typed.append(words.str.to_lowercase() == "true")
            continue
        bare = words.str.replace_all(options.thousands, "", literal=True) if options.thousands else words
        if options.decimal != ".":
            if bare.str.contains(".", literal=True).any():
                continue
            bare = bare.str.replace(options.decimal, ".", literal=True)
        numbers = bare.cast(polars.Float64, strict=False)
        if numbers.null_count() > words.null_count():
            continue
        separated = (
            known.filter(known.str.contains(options.thousands, literal=True)) if options.thousands else known[:0]
        )
        if len(odd := separated.filter(~separated.str.contains(grouped))):
            raise DataError(
                f"column {name!r} holds {odd[0]!r}, which has no groups of three digits between {options.thousands!r}: "
                f"set decimal = {options.thousands!r}, or leave thousands out"
            )
        whole = bare.cast(polars.Int64, strict=False)
        numbers = whole if whole.null_count() == words.null_count() else numbers
        is_gap = numbers.cast(polars.Float64).is_in(none)
        typed.append(numbers.to_frame().select(polars.when(~is_gap).then(polars.all())).to_series())
    return frame.with_columns(typed)


def _polars() -> Any:
    try:
        return importlib.import_module("polars")
    except ImportError as error:
        raise DataError(
            f"CSV and Parquet files are read by Polars, which cannot be imported ({error}); {INSTALL}"
        ) from error
