"""Reads tables (CSV, Parquet) in one file, or one for each client.

    csv:PATH, parquet:PATH      one file with a column of clients, or a folder with one file for each client

Polars reads them by the given options; formats are not guessed.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from unskew import machine
from unskew.data import own
from unskew.data.columns import (
    GAPS,
    Array,
    Frame,
    composed_names,
    frame_of,
    gap_numbers,
)
from unskew.data.inputs import Column, Inputs, Notation, check_known
from unskew.data.latest import Latest
from unskew.data.patients import PatientIds
from unskew.data.places import Place, by_number, path_of
from unskew.data.preprocess import Preprocess
from unskew.data.table import DataTable
from unskew.errors import ConfigError, DataError, did_you_mean, shown
from unskew.tasks.targets import CLASS, Targets
from unskew.words import composed, counted, some

ENDINGS, OF_PANDAS = {"csv": (".csv", ".tsv"), "parquet": (".parquet", ".pq")}, "__index_level_0__"  # its row numbers
SHOWN = ", ".join(ending for known in ENDINGS.values() for ending in known)
OTHERS = (".xlsx", ".xls", ".ods", ".txt", ".sav", ".dta", ".rds")
"""Endings of tables that are not read."""


@dataclass(frozen=True)
class TableOptions(Notation):
    """The roles of a table's columns, as in `unskew.data.own.table`, and how a CSV file is written.

    Attributes:
        target: Column of the target; several columns for several targets, such as time and event.
        client: Column of the clients; a folder with one file for each client needs none.
        patient: Column of the patients (or anybody with several rows).  No patient is then in both training and
            testing.
        patient_ids: Whose the names in it are: the "network"'s, each one person, or each "site"'s own.  Needed if a
            name occurs at several clients.
        test: Column that says which rows are test rows; a file or folder with the test rows; or the share of each
            client's rows (or patients), by default a fifth.  Or a table: its `latest` names the column of times, and
            test rows are those later than `after`, or the latest `share` of each client's.
        leave_out: Columns to ignore; in a folder some files may lack them.
        classes: Names of all classes, in order, where a client may lack some.
        alone: The file is one client's own: a column `client` is left out if it is there.
    """

    target: str | tuple[str, ...]
    client: str | None = None
    patient: str | None = None
    patient_ids: PatientIds | None = None
    test: str | float | Latest | None = None
    leave_out: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    alone: bool = False

    def __post_init__(self) -> None:
        """Normalise names of columns to one form of Unicode (NFC).

        Raises:
            ConfigError: If one character is between thousands and before decimals.
        """
        if self.thousands == self.decimal:
            raise ConfigError(f"thousands and decimal are both {self.decimal!r}; a number has one of them for each")
        for setting in ("target", "client", "patient", "leave_out"):
            object.__setattr__(self, setting, composed_names(getattr(self, setting)))

    @property
    def names(self) -> tuple[str, ...]:
        """Columns of names and labels, in which leading zeros matter."""
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
    """Why a path has no table that can be read; empty for anything else."""
    path = path_of(source)
    if kind_at(source) or source.startswith("npz:") or not (path.exists() or path.suffix.lower() in OTHERS):
        return ""
    return f"{source} is no table that is read ({SHOWN}): save it as CSV, or write images:{source}, npz:{source}"


OF_SYSTEMS = ("thumbs.db", "desktop.ini", "__macosx", "@eadir", "#recycle", "$recycle.bin", "lost+found")
"""What Windows, macOS and servers of files write beside people's files, besides hidden ones."""


def visible(name: str) -> bool:
    """False for hidden files, and for those of operating systems."""
    return name[0] != "." and name.casefold() not in OF_SYSTEMS


# ---------------------------------------------------------------- tables
def table(
    kind: str, path: Path, options: TableOptions, rules: Preprocess | None = None, targets: Targets = CLASS
) -> DataTable:
    """The table in a file or folder, with its roles.

    Raises:
        ConfigError: If a column to be left out is not there.
        DataError: If Polars is not installed, a file is missing or cannot be read, or as in `unskew.data.own.table`.
    """
    data, test = _frames(kind, path, options), options.test
    frames = [data] if isinstance(data, Frame) else list(data.values())
    columns = list(dict.fromkeys(name for frame in frames for name in frame.columns))
    if lacking := [column for column in options.leave_out if column not in columns]:
        nearest = did_you_mean(lacking[0], columns)
        raise ConfigError(f"leave_out: {path} has no column {lacking[0]!r}{nearest} (columns: {', '.join(columns)})")
    left_out, client, notes = options.leave_out, options.client, unread(path)
    if client is not None and (options.alone or path.is_dir()):
        left_out, client = (*left_out, client), None
    if isinstance(test, str) and composed(test) not in columns:
        file = path_of(test, f"test is no column and no share, and the file {test!r}")
        if not file.exists():
            raise DataError(f"test must be a column, a file or a share, and {test!r} is none of these")
        test, notes = _without(_frames(kind, file, options), left_out), (*notes, *unread(file))
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
    notation = Notation(**{of.name: getattr(options, of.name) for of in fields(Notation)})
    return replace(rows, notes=(*notes, *rows.notes), way=Inputs(notation=notation) if kind == "csv" else Inputs())


def _without(data: Any, columns: Collection[str]) -> Any:
    """Frames without these columns."""
    if isinstance(data, Mapping):
        return {name: _without(frame, columns) for name, frame in data.items()}
    return replace(data, columns={name: of for name, of in data.columns.items() if name not in columns})


# ---------------------------------------------------------------- for a model
def for_model(
    path: Path, notation: Notation, columns: Sequence[Column]
) -> tuple[list[dict[str, str | None]], dict[str, Any], Place]:
    """Input of `predict` from a table: rows as written, the columns of training, and each row's place.

    Raises:
        DataError: If Polars is not installed, the file cannot be read, or lacks a column.
    """
    kind = kind_of(str(path))
    if kind is None or not path.is_file():
        raise DataError(f"there is no table ({SHOWN}) {path.absolute()}, like that of training")
    native, lines = _native(kind, path, notation)
    frame = frame_of(_typed(native, notation) if kind == "csv" else native, str(path)).columns
    for column in columns:
        check_known(f"{path} has", column.name, list(frame))
    written = [{name: None if of is None else str(of) for name, of in row.items()} for row in native.rows(named=True)]
    return written, {column.name: frame[composed(column.name)] for column in columns}, _place(lines)


# ---------------------------------------------------------------- files
def separator_of(path: Path, notation: Notation) -> str:
    """The character between the columns of a CSV file."""
    return notation.separator or ("\t" if path.suffix.lower() == ".tsv" else ",")


def _frames(kind: str, path: Path, options: TableOptions) -> Frame | dict[str, Frame]:
    """The frame in a file, or those of a folder by the files' names."""
    if not path.is_dir():
        if not path.is_file():
            raise DataError(f"there is no file {path.absolute()}")
        return read(kind, path, options)
    files = [file for of in ENDINGS for file in _files(of, path)]
    odd = not files or any(kind_of(file.name) != kind for file in files)
    if odd or options.alone or len({file.stem for file in files}) < len(files):
        what = "one table, as it is one client" if options.alone else "a file of each client, all of one kind"
        raise DataError(f"{path.absolute()} must hold {what}, and has {some([file.name for file in files]) or 'none'}")
    return {file.stem: read(kind, file, options) for file in files}


def _files(kind: str, folder: Path) -> list[Path]:
    """The tables in a folder; hidden files are copies and locks of editors."""
    return sorted(f for f in folder.iterdir() if visible(f.name) and f.suffix.lower() in ENDINGS[kind])


def unread(folder: Path, left: Sequence[Path] | None = None, what: str = SHOWN) -> tuple[str, ...]:
    """A note on files of a folder that are not read, by default those that are no tables; none without any."""
    if left is None:
        files = [file for file in (folder.iterdir() if folder.is_dir() else ()) if file.is_file()]
        left = [f for f in files if visible(f.name) and not kind_of(f.name)]
    if not left:
        return ()
    names = some(sorted(str(file.relative_to(folder)) for file in left))
    return (shown(f"{counted(len(left), 'file')} in {folder} not read: {names}; what is read: {what}"),)


def read(kind: str, path: Path, options: TableOptions, words: Sequence[str] = ()) -> Frame:
    """One file, with numbers in the declared format, except in columns of `words`; empty rows are left out.

    Raises:
        DataError: If the file cannot be read.
    """
    import polars  # takes a tenth of a second, and most runs read no table

    native, lines = _native(kind, path, options)
    frame = _typed(native, options, words, options.names) if kind == "csv" else native
    frame = frame.with_columns(frame[name].cast(polars.String) for name in words if name in frame.columns)
    if "" in frame.columns and frame[""].null_count() == frame.height:
        frame = frame.drop("")
    if kind == "csv" and frame.width > 1:
        empty = frame.select(polars.all_horizontal(polars.all().is_null())).to_series()
        frame, lines = frame.filter(~empty), lines[~empty.to_numpy()]
    if "" in frame.columns and "" not in options.leave_out:
        raise DataError(f"{path} has a column without a name; name it, or leave it out with leave_out = ['']")
    return replace(frame_of(frame, str(path)), place=_place(lines))


def _place(lines: Array) -> Place:
    return lambda row: f"line {lines[row]}" if len(lines) else by_number(row)


def _native(kind: str, path: Path, notation: Notation) -> tuple[Any, Array]:
    """One file as Polars has it, of a CSV file as words, and the line in which each row begins."""
    import polars

    try:
        if kind == "parquet":
            # A kilobyte can hold a column of a billion equal values; the footer has their number.
            rows = int(polars.scan_parquet(path, glob=False).select(polars.len()).collect().item())
            machine.require_room(8 * rows * len(polars.read_parquet_schema(path)), path)
            return polars.read_parquet(path, glob=False).drop(OF_PANDAS, strict=False), np.empty(0)
        how = {"separator": separator_of(path, notation), "encoding": notation.encoding}
        frame = polars.read_csv(path, **how, infer_schema=False, glob=False)
    except LookupError as error:
        raise ConfigError(f"encoding: {error}; name one that Python knows, such as 'cp1252'") from None
    except (polars.exceptions.PolarsError, OSError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split()).partition(". ")[0].rstrip(".")[:200] or type(error).__name__
        remedy = "; say how it is written, such as separator = ';' or encoding = 'cp1252'" if kind == "csv" else ""
        raise DataError(f"{path} is not a readable {kind} file: {reason}{remedy}") from None
    frame = frame.rename(str.strip)
    if frame.width == 1 and any(other in frame.columns[0] for other in ",;\t"):
        raise DataError(f"{path} has one column only, {frame.columns[0][:60]!r}: set separator")
    if twice := [name for name in frame.columns if f"{name}_duplicated_0" in frame.columns]:
        raise DataError(f"{path} has two columns {twice[0]!r}; rename or remove one")
    more = frame.select(polars.sum_horizontal(polars.all().str.count_matches("\n"))).to_series()
    more = more.fill_null(0).cast(polars.Int64).to_numpy()
    lines = np.arange(2, frame.height + 2) + np.cumsum(more) - more  # a cell may have several
    return frame.select(polars.all().str.strip_chars()), lines


def _typed(frame: Any, notation: Notation, words: Sequence[str] = (), names: Sequence[str] = ()) -> Any:
    """A CSV file's words as numbers where all of a column are, in the declared notation, or as truths; gaps as nulls.

    Names and labels with zeros before other digits stay words, which 007 is and 7 is not; so do numbers with other than
    three digits between the separators of thousands, and columns of `words`.
    """
    import polars

    decimal, thousands = re.escape(notation.decimal), re.escape(notation.thousands)
    grouped = rf"^[+-]?\d{{1,3}}({thousands}\d{{3}})*({decimal}\d*)?$"
    frame, typed = frame.select(polars.when(~polars.all().is_in([*GAPS, *notation.gaps])).then(polars.all())), []
    for column in frame:
        known, named = column.drop_nulls(), column.name in names
        if not len(known) or column.name in words or (named and known.str.contains(r"^[+-]?0\d").any()):
            continue
        if known.str.to_lowercase().is_in(["true", "false"]).all():
            typed.append(column.str.to_lowercase() == "true")
            continue
        if notation.thousands and known.filter(known.str.contains(thousands)).str.contains(grouped).all():
            column = column.str.replace_all(notation.thousands, "", literal=True)
        if notation.decimal != ".":
            if column.str.contains(".", literal=True).any():
                continue
            column = column.str.replace(notation.decimal, ".", literal=True)
        numbers = column.cast(polars.Int64, strict=False)
        if numbers.null_count() > column.null_count():
            numbers = column.cast(polars.Float64, strict=False)
        if numbers.null_count() == column.null_count():
            is_gap = np.isin(numbers.cast(polars.Float64).to_numpy(), gap_numbers(notation.gaps))
            typed.append(numbers.set(polars.Series(is_gap), None))
    return frame.with_columns(typed)
