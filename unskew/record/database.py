"""The database of a run, `run.sqlite`: a table for each kind of row, and the position of the last checkpoint.

One process writes it, under the lock of the run's folder.  A checkpoint ends a transaction, so a killed process leaves
the last checkpoint; later rows are removed when the run goes on.  The journal is SQLite's plain one, which needs no
shared memory.  Readers see the last transaction.

Numbers of single clients are one row for each round and metric: `client`, `value` and `weight` are then arrays, as
bytes (int64 and float64, little-endian).  A folder may come from somebody else: a database with other tables, triggers
or views, links, or another process's journal is refused before anything is read.
"""

import hashlib
import itertools
import json
import math
import operator
import os
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from unskew.errors import RunError
from unskew.files import read_bytes, readable

T = TypeVar("T")

FILE = "run.sqlite"
LONGEST = 1 << 28
"""Bytes that a value may have: a method may report on each pair of clients."""
AT_ONCE = 50_000
"""Rows that are read at a time: no reader keeps the writer waiting."""
SHOWN_AFTER_S = 1.0
"""Seconds after which rows are there for readers, if no checkpoint was saved meanwhile."""
SYNCHRONOUS = "EXTRA"
"""How much of a transaction is on the disk when it ends: all, and that its journal is gone."""

CELL = ("method TEXT", "seed INTEGER", "round INTEGER")
TABLES = {
    "metrics": ("name TEXT", "value", "weight", "client BLOB", "clients TEXT", "at REAL"),
    "transfers": ("hop INTEGER", "src INTEGER", "dst INTEGER", "kind TEXT", "bytes INTEGER"),
    "work": ("hop INTEGER", "client INTEGER", "examples INTEGER"),
    "info": ("type TEXT", "info TEXT"),
    "failures": ("client INTEGER", "step TEXT", "reason TEXT", "at REAL"),
    "network": ("hop INTEGER", "client INTEGER", "way TEXT", "what TEXT", "payload INTEGER", "framing INTEGER"),
    "diverged": ("reason TEXT",),
    "resumed": ("changed TEXT",),
    "tested": ("client INTEGER", "unit INTEGER", "value REAL", "ranked INTEGER"),
}
"""The columns of each table, beside the number of the row and those of its cell and round, as SQL has them.

`at` is when a row was written, seconds since 1970; it is no result, and is read by SQL alone."""
SCHEMA = {
    **{
        table: f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, {', '.join((*CELL, *kinds))})"
        for table, kinds in TABLES.items()
    },
    "checkpoint": "CREATE TABLE checkpoint (id INTEGER PRIMARY KEY CHECK (id = 1), position TEXT NOT NULL)",
}
JSON = frozenset({"info", "changed", "clients"})
"""Columns that hold JSON."""


class Mark(NamedTuple):
    """The content of a table at a checkpoint: its rows, and their SHA-256."""

    rows: int
    sha256: str


EMPTY = Mark(0, hashlib.sha256().hexdigest())


def new(path: Path) -> None:
    """Make an empty database."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
        connection.executescript(";".join(("BEGIN", *SCHEMA.values(), "COMMIT")))


def columns(table: str) -> tuple[str, ...]:
    """The columns of a table, without the row number."""
    return tuple(column.partition(" ")[0] for column in (*CELL, *TABLES[table]))


# ---------------------------------------------------------------- reading
class MetricOfRound(NamedTuple):
    """A row of the metrics table: one number over all clients, or numbers of single clients.

    Attributes:
        client: The clients' numbers; None for a number over all.
        clients: Clients behind a number, and all evaluated ones, if these are more.
        at: When it was written, seconds since 1970.
    """

    method: str
    seed: int
    round: int
    name: str
    value: Any
    weight: Any
    client: npt.NDArray[np.int64] | None
    clients: list[int] | None
    at: float | None = None


@contextmanager
def opened(folder: Path) -> Iterator[sqlite3.Connection]:
    """A run's database for reading, also while another process writes it.

    Raises:
        RunError: If it is missing, damaged, of another version, or was changed after the run had finished.
    """
    path = folder / FILE
    with refusing(path), closing(connect(path, "query_only = ON")) as connection:
        _require_sound(connection, folder)
        yield connection


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the disk into RunError."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        what = error.strerror if isinstance(error, OSError) else str(error)
        raise RunError(f"{path} cannot be read: {what or error}; restore it or run again") from None


def select(connection: sqlite3.Connection, table: str, where: str = "1", *values: object) -> Iterator[dict[str, Any]]:
    """Rows of a table as they were given, in the order written; missing fields are left out.

    `where` is our own SQL, with `values` for its question marks.
    """
    if table == "metrics":
        yield from itertools.chain.from_iterable(map(expanded, metrics(connection, where, *values)))
        return
    names = columns(table)
    for _, *row in itertools.chain.from_iterable(_pages(connection, table, where, values)):
        kept = ((n, v) for n, v in zip(names, row, strict=True) if v is not None and n != "at")
        yield {n: json.loads(v) if n in JSON else v for n, v in kept}


def metrics(connection: sqlite3.Connection, where: str = "1", *values: object) -> Iterator[MetricOfRound]:
    """Rows of the metrics table; those of single clients hold arrays."""
    stored = itertools.chain.from_iterable(_pages(connection, "metrics", where, values))
    for _, method, seed, t, name, value, weight, client, clients, at in stored:
        if client is not None:
            client, value, weight = np.frombuffer(client, "<i8"), np.frombuffer(value), np.frombuffer(weight)
        if not (math.isfinite(value) if client is None else np.isfinite(value).all()):
            raise sqlite3.DatabaseError(f"a value of {name} is not a number")
        few = None if clients is None else json.loads(clients)
        yield MetricOfRound(method, seed, t, name, value, weight, client, few, at)


def expanded(m: MetricOfRound) -> Iterator[dict[str, Any]]:
    """A row for each number."""
    head = {"method": m.method, "seed": m.seed, "round": m.round, "name": m.name}
    if m.client is None:
        weight = {} if m.weight is None else {"weight": m.weight}
        yield {**head, "value": m.value, **weight, **({} if m.clients is None else {"clients": m.clients})}
        return
    for client, value, weight in zip(m.client.tolist(), m.value.tolist(), m.weight.tolist(), strict=True):
        yield {**head, "value": value, "weight": weight, "client": client}


def _pages(
    connection: sqlite3.Connection, table: str, where: str, values: Sequence[object]
) -> Iterator[list[tuple[Any, ...]]]:
    """Rows with their numbers, some at a time."""
    last, named = 0, ", ".join(columns(table))
    query = f"SELECT id, {named} FROM {table} WHERE id > ? AND ({where}) ORDER BY id LIMIT {AT_ONCE}"
    while page := connection.execute(query, (last, *values)).fetchall():
        yield page
        last = page[-1][0]


def rows(folder: Path, table: str, where: str = "1", *values: object) -> Iterator[dict[str, Any]]:
    """Rows of a run's table, as `select` gives them.

    Raises:
        RunError: As `opened`.
    """
    with opened(folder) as connection:
        yield from select(connection, table, where, *values)


def as_written(folder: Path) -> Iterator[dict[str, Any]]:
    """Rows of the metrics table as `write` takes them, single clients' together."""
    with opened(folder) as connection:
        yield from (m._asdict() for m in metrics(connection))


def position(folder: Path) -> str | None:
    """The position of the last checkpoint, as it was given; None if there was none."""
    with opened(folder) as connection:
        row = connection.execute("SELECT position FROM checkpoint").fetchone()
        return None if row is None else str(row[0])


def sha256(folder: Path) -> str:
    """The hash of a finished run's database."""
    with readable(folder / FILE) as file:
        content = hashlib.sha256()
        while piece := file.read(1 << 20):
            content.update(piece)
        return content.hexdigest()


def connect(path: Path, *pragmas: str, longest: int | None = None) -> sqlite3.Connection:
    """Connect to an existing database, in a folder that may be somebody else's."""
    _require_own(path)
    where = f"file:{quote(str(path.absolute()))}?mode=rw"  # a journal that a killed process left is rolled back
    connection = sqlite3.connect(where, uri=True, isolation_level=None, timeout=60.0, check_same_thread=False)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest or LONGEST)
    for pragma in ("trusted_schema = OFF", "cell_size_check = ON", *pragmas):
        connection.execute(f"PRAGMA {pragma}")
    return connection


_SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")


def _require_own(path: Path) -> None:
    """Refuse what SQLite would follow out of the folder: links, and journals that name other files.

    Files are not opened: to close one would end the locks that this process has on it.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OSError(0, "it is a link, a folder or a device, not a file")
    journal = path.with_name(f"{path.name}-journal")
    if any(path.with_name(f"{path.name}{end}").exists() for end in ("-wal", "-shm")):
        raise OSError(0, "it has a journal that no run writes")
    try:
        with readable(journal) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - 8))
            if size > 512 and file.read() == _SUPER_JOURNAL:  # a journal begins with the same bytes
                raise OSError(0, "its journal names another file, as that of no run does")
    except FileNotFoundError:
        pass


def _require_sound(connection: sqlite3.Connection, folder: Path) -> None:
    path = folder / FILE
    about, summary = path.stat(), folder / "summary.json"
    ended = summary.stat().st_mtime_ns if summary.is_file() else 0
    signature = (about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns, ended)
    if _SOUND.get(path) == signature:
        return
    if dict(connection.execute("SELECT name, sql FROM sqlite_master")) != SCHEMA:
        raise sqlite3.DatabaseError("it is not that of a run of this version of unskew")
    if connection.execute("PRAGMA journal_mode").fetchone() != ("delete",):
        raise sqlite3.DatabaseError("it has a journal that no run writes")
    (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if answer != "ok":
        raise sqlite3.DatabaseError(f"it is damaged: {answer}")
    if ended and (written := _sha256_written(folder)) is not None and written != sha256(folder):
        raise sqlite3.DatabaseError("its rows are not those that were written")
    _SOUND[path] = signature


def _sha256_written(folder: Path) -> object:
    """The hash that the summary of a run has; None if it has none, or is damaged, which its own reader says."""
    try:
        return json.loads(read_bytes(folder / "summary.json", LONGEST))["record_sha256"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None


_SOUND: dict[Path, tuple[int, ...]] = {}
"""Databases that were found to be sound, by what changes when they do."""


# ---------------------------------------------------------------- writing
def encoded(table: str, given: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """Rows as stored; numbers of single clients become lists, one row for all."""
    if table == "metrics":
        return ((*_number_or_numbers(row), row.get("at", time.time())) for row in given)
    names = columns(table)
    if "at" in names:
        given = ({"at": time.time(), **row} for row in given)
    if not JSON.isdisjoint(names) or "step" in names:
        return (tuple(_ENCODE(row[n]) if n in JSON else row.get(n) for n in names) for row in given)
    return map(operator.itemgetter(*names), given)  # of very many rows


_ENCODE = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def _number_or_numbers(row: Mapping[str, Any]) -> tuple[Any, ...]:
    head = row["method"], row["seed"], row["round"], row["name"]
    if (clients := row.get("client")) is not None:
        return *head, _bytes(row["value"], "<f8"), _bytes(row["weight"], "<f8"), _bytes(clients, "<i8"), None
    weight, few = row.get("weight"), row.get("clients")
    value = float(row["value"]) + 0.0  # SQLite has no -0.0
    return *head, value, None if weight is None else float(weight), None, None if few is None else _ENCODE(few)


def _bytes(numbers: Sequence[float], kind: str) -> bytes:
    return np.array(numbers, kind).tobytes()


class Database:
    """The open database of the run that this process writes.

    Args:
        folder: The run's folder.
        marks: The tables at the last checkpoint; later rows are removed.

    Raises:
        RunError: If a table has changed since the checkpoint, or this is no database of a run.
    """

    def __init__(self, folder: Path, marks: Mapping[str, Mark]) -> None:
        self.path = folder / FILE
        with refusing(self.path):
            # What is not committed stays in memory, so that readers are never kept waiting.
            self._connection = connect(
                self.path, "journal_mode = DELETE", f"synchronous = {SYNCHRONOUS}", "cache_spill = OFF"
            )
            try:
                _require_sound(self._connection, folder)
                self._hashes = {name: self._verified(name, marks.get(name, EMPTY)) for name in TABLES}
                self._counts = {name: marks.get(name, EMPTY).rows for name in TABLES}
                self._connection.execute("BEGIN IMMEDIATE")
                for name, count in self._counts.items():
                    self._connection.execute(f"DELETE FROM {name} WHERE id > ?", (count,))
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.close()
                raise
        self._shown_at = time.monotonic()

    def _verified(self, table: str, mark: Mark) -> "hashlib._Hash":
        content, count = hashlib.sha256(), 0
        query = f"SELECT {', '.join(columns(table))} FROM {table} WHERE id <= ? ORDER BY id"
        stored = self._connection.execute(query, (mark.rows,))
        while page := stored.fetchmany(AT_ONCE):
            content.update("".join(map(repr, page)).encode())
            count += len(page)
        if count != mark.rows or content.hexdigest() != mark.sha256:
            raise sqlite3.DatabaseError(f"the rows of {table} are not those that were written")
        return content

    def add(self, table: str, given: Iterable[Mapping[str, Any]]) -> None:
        """Add rows to a table."""
        stored = list(encoded(table, given))
        if stored:
            self._begin()
            named = ", ".join(columns(table))
            places = ", ".join("?" * len(columns(table)))
            self._connection.executemany(f"INSERT INTO {table} ({named}) VALUES ({places})", stored)
            self._hashes[table].update("".join(map(repr, stored)).encode())
            self._counts[table] += len(stored)

    def select(self, table: str, where: str = "1", *values: object) -> Iterator[dict[str, Any]]:
        """Rows of a table, including this transaction's."""
        return select(self._connection, table, where, *values)

    def count(self, table: str) -> int:
        """The number of a table's rows."""
        return self._counts[table]

    def marks(self) -> dict[str, Mark]:
        """Number and hash of each table's rows; empty tables are left out."""
        return {n: Mark(count, self._hashes[n].hexdigest()) for n, count in self._counts.items() if count}

    def commit(self, position: str | None = None) -> None:
        """End the transaction; with a position, at a checkpoint that survives a power cut."""
        if position is not None:
            self._begin()
            self._connection.execute("INSERT OR REPLACE INTO checkpoint VALUES (1, ?)", (position,))
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")
        self._shown_at = time.monotonic()

    def show(self) -> None:
        """End the transaction if readers have seen nothing new for a while."""
        if time.monotonic() - self._shown_at >= SHOWN_AFTER_S:
            self.commit()

    def close(self) -> None:
        """Close it; uncommitted rows are lost."""
        self._connection.close()

    def _begin(self) -> None:
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")


def write(folder: Path, tables: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
    """Write a database with these rows by table, as for a copy of a run.

    Raises:
        OSError, sqlite3.Error: If the disk refuses.
    """
    new(folder / FILE)
    database = Database(folder, {})
    try:
        for table, given in tables.items():
            database.add(table, given)
        database.commit()
    finally:
        database.close()


def copy(folder: Path, to: Path, position: str) -> None:
    """Copy a run's database as of its last transaction, for another run at this position.

    Raises:
        RunError: As `opened`.
        OSError, sqlite3.Error: If the disk refuses.
    """
    with opened(folder) as connection, closing(sqlite3.connect(to / FILE, isolation_level=None)) as other:
        connection.backup(other)
        other.execute("UPDATE checkpoint SET position = ?", (position,))
