"""Files of columns: numbers of very many clients, an array each, in one compressed NumPy archive (.npz).

    clients/METHOD-seed0.npz   the last round's number of each client: what metrics.jsonl has as rows for fewer
    partition-seed0.npz        examples of each client: what partition.json has as lists for fewer
    rows.npz                   row of each example in the data as they were given
    tested/METHOD-seed0.npz    the headline of each test row under its client's own model

A run writes the first two where there are more clients than its `client_rows`, the second also where examples of all
seeds are many, the last where clients are also trained
alone, and their test rows are few.
"""

import hashlib
import io
import itertools
import lzma
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unskew import machine
from unskew.errors import DataError, RunError
from unskew.files import check_text, readable, unlinked, write_atomically
from unskew.record.logs import refusal, unreadable

Array = npt.NDArray[Any]
FOLDER, TESTED = "clients", "tested"
_ROWS = ("client", "value", "weight")


@dataclass(frozen=True, eq=False)
class ClientColumns:
    """A metric of every client after one round.

    Attributes:
        name: personal.accuracy or personal_on_global.accuracy.
        client: Numbers of the clients, ascending.
        value: The metric's value for each.
        weight: Examples behind it.
    """

    method: str
    seed: int
    round: int
    name: str
    client: npt.NDArray[np.int64]
    value: npt.NDArray[np.float64]
    weight: npt.NDArray[np.float64]


def partition_file(seed: int) -> str:
    """The name of the file with the columns of one seed's division in partition.json."""
    return f"partition-seed{seed}.npz"


def write(path: Path, columns: Mapping[str, Array]) -> str:
    """Write columns, whole or not at all; written again, the file has the same bytes.

    Returns:
        SHA-256 of names and values.
    """
    digest, archive = hashlib.sha256(), io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name, column in columns.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asarray(column, order="C"), allow_pickle=False)
            digest.update(name.encode() + b"\0" + hashlib.sha256(member.getvalue()).digest())
            # ZipInfo has a fixed date, where NumPy's own archives have the time.
            file.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue(), zipfile.ZIP_DEFLATED, compresslevel=1)
    write_atomically(path, archive.getvalue())
    return digest.hexdigest()


ROOM, MOST_PACKED = 2**26, 100
"""Bytes that a column may unpack to, and how many more for each byte in the archive.

Tables of counts may unpack to more: of many classes nearly all counts are 0.  How large they are is in partition.json.
"""


# RuntimeError is also that of an encrypted member, of an unknown compression, and of a header nested too deeply.
_BROKEN = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
LONGEST_HEADER = 1000
"""Characters of a column's header, which says its type and shape in about a hundred."""


def read(path: Path, kinds: Mapping[str, str], optional: bool = False, values: int = 0) -> dict[str, Array]:
    """Columns by name, checked for their kinds: NumPy's letters, such as "i" for integers, "f", "U" for text.

    Args:
        path: The file.
        kinds: The kind of each column that is read.
        optional: Leave out those that are not there.
        values: Numbers that a column is known to have, however few bytes of the archive they are.

    Raises:
        RunError: If the file is missing or corrupt, a column is missing or of another kind, or there is no memory for
            that many values.
    """
    try:
        # Opened here: np.load leaves its own handle open when the archive is broken.
        with readable(path) as file, zipfile.ZipFile(file) as archive:
            there = set(archive.namelist())
            wanted = [name for name in kinds if not optional or f"{name}.npy" in there]
            columns = {name: _member(archive, name, values) for name in wanted}
    except FileNotFoundError:
        raise RunError(f"{path} is missing; restore it or run again") from None
    except KeyError as error:
        missing = next((name for name in kinds if f"{name}.npy" in str(error)), error)
        raise refusal(path, None, f"it has no column {missing}") from None
    except DataError as error:
        raise RunError(str(error)) from None
    except _BROKEN as error:
        why = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        raise refusal(path, None, f"it is not an archive of columns: {why}") from None
    for name, column in columns.items():
        if column.dtype.kind not in kinds[name]:
            raise refusal(path, None, f"column {name} is of the kind {column.dtype}")
    return columns


def _member(archive: zipfile.ZipFile, name: str, values: int) -> Array:
    about = archive.getinfo(f"{name}.npy")
    if about.file_size > ROOM + MOST_PACKED * about.compress_size:
        if about.file_size > 8 * values + LONGEST_HEADER:
            raise ValueError(f"column {name} would unpack to {about.file_size:,} bytes from {about.compress_size:,}")
        machine.require_room(about.file_size, f"column {name} of {archive.filename}")
    with archive.open(f"{name}.npy") as member:
        if np.lib.format.read_magic(member) != (1, 0):
            raise ValueError(f"column {name} is of another version")
        try:
            shape, _, dtype = np.lib.format.read_array_header_1_0(member, LONGEST_HEADER)
        except MemoryError:  # of Python's parser, whose stack is full
            raise ValueError(f"the header of column {name} is nested too deeply") from None
        content = member.read()
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(content):  # NumPy would make room for it first
        raise ValueError(f"column {name} has not the {shape} values of {dtype} that it says")
    column = np.frombuffer(content, dtype).reshape(shape)
    check_text(f"column {name}", column)
    return column


def write_clients(
    path: Path, method: str, seed: int, round: int, metrics: Mapping[str, tuple[Array, Array, Array]]
) -> str:
    """Write metrics of clients after a round, each as the clients' numbers, values and weights; return their hash."""
    path.parent.mkdir(exist_ok=True)
    cell = {"method": np.array(method), "seed": np.array(seed), "round": np.array(round)}
    columns = {
        f"{name}.{row}": column for name, rows in metrics.items() for row, column in zip(_ROWS, rows, strict=True)
    }
    return write(path, {**cell, "metrics": np.array(list(metrics)), **columns})


def client_columns(folder: Path) -> Iterator[ClientColumns]:
    """Metrics of the clients of a run that wrote them as columns, a method, seed and metric at a time.

    Raises:
        RunError: If a file is not as a run writes it.
    """
    for path in _archives(folder / FOLDER):
        head = read(path, {"method": "U", "seed": "i", "round": "i", "metrics": "U"})
        if any(head[name].shape != () for name in ("method", "seed", "round")) or head["metrics"].ndim != 1:
            raise refusal(path, None, "method, seed and round must be one each, and metrics a list")
        for name in head["metrics"].tolist():
            rows = read(path, {f"{name}.client": "i", f"{name}.value": "f", f"{name}.weight": "f"}).values()
            client, value, weight = rows
            if not client.ndim == 1 or len({column.shape for column in rows}) > 1:
                raise refusal(path, None, f"{name} must have as many values and weights as clients")
            if not (np.isfinite(value).all() and np.isfinite(weight).all()):
                raise refusal(path, None, f"{name} has a value or weight that is not a number")
            if len(client) and (client[0] < 0 or (np.diff(client) <= 0).any()):
                raise refusal(path, None, f"{name} must have its clients in ascending order, each once")
            cell = (str(head["method"]), int(head["seed"]), int(head["round"]))
            yield ClientColumns(*cell, name, client, value, weight)


@dataclass(frozen=True, eq=False)
class RowResults:
    """The headline of each test row under its client's own model, rows of all clients end to end.

    Attributes:
        client: Numbers of the clients, ascending.
        sizes: Number of test rows of each.
        unit: What is drawn by chance, for each row: its patient's number, or its own in the data.
        value: The row's value; those of a client's rows have its headline as their mean.
        ranked: True for an AUROC's values, which are DeLong's.
    """

    client: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    unit: npt.NDArray[np.int64]
    value: npt.NDArray[np.float64]
    ranked: bool

    def by_client(self) -> dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
        """Units and values of each client's rows."""
        ends = self.sizes.cumsum()[:-1]
        parts = zip(np.split(self.unit, ends), np.split(self.value, ends), strict=True)
        return dict(zip(self.client.tolist(), parts, strict=True)) if len(self.client) else {}


def write_tested(path: Path, method: str, seed: int, tested: RowResults) -> None:
    """Write results by test row of a method and seed."""
    path.parent.mkdir(exist_ok=True)
    cell = {"method": np.array(method), "seed": np.array(seed), "ranked": np.array(tested.ranked)}
    write(path, {**cell, **{name: getattr(tested, name) for name in ("client", "sizes", "unit", "value")}})


def tested_rows(folder: Path) -> Iterator[tuple[str, int, RowResults]]:
    """Method, seed and results by test row, of a run that kept these.

    Raises:
        RunError: If a file is not as a run writes it.
    """
    for path in _archives(folder / TESTED):
        kinds = {"method": "U", "seed": "i", "ranked": "b", "client": "i", "sizes": "i", "unit": "i", "value": "f"}
        of = read(path, kinds)
        if any(of[name].shape != () for name in ("method", "seed", "ranked")):
            raise refusal(path, None, "method, seed and ranked must be one each")
        client, sizes, unit, value = (of[name] for name in ("client", "sizes", "unit", "value"))
        if any(column.ndim != 1 for column in (client, sizes, unit, value)) or len(client) != len(sizes):
            raise refusal(path, None, "client and sizes must be lists, as long as each other")
        if (sizes < 1).any() or not sizes.sum() == len(unit) == len(value):
            raise refusal(path, None, "sizes must say how many of unit and of value each client has")
        if not np.isfinite(value).all():
            raise refusal(path, None, "value has one that is not a number")
        if len(client) and (client[0] < 0 or (np.diff(client) <= 0).any()):
            raise refusal(path, None, "client must be in ascending order, each once")
        yield str(of["method"]), int(of["seed"]), RowResults(client, sizes, unit, value, bool(of["ranked"]))


def _archives(folder: Path) -> list[Path]:
    """The archives of columns in a folder, if it is there.

    Raises:
        RunError: If it cannot be read.
    """
    try:
        return sorted(unlinked(folder).glob("*.npz"))
    except OSError as error:
        raise unreadable(folder, error) from None


@dataclass(frozen=True, eq=False)
class PartitionColumns:
    """One seed's division: training examples by client and class, and the domain of each client of one domain.

    Test examples by client and class are empty in folders that were written without them.
    """

    label_counts: npt.NDArray[np.int64]
    test_counts: npt.NDArray[np.int64]
    domains: npt.NDArray[np.int64]


def partition_columns(folder: Path, seed: int, stats: Mapping[str, Any] | None = None) -> PartitionColumns:
    """The statistics of one seed's clients, from the columns beside partition.json, whose `stats` say how many.

    Raises:
        RunError: If the file is not as a run writes it.
    """
    path, stats = folder / partition_file(seed), stats or {}
    counts = stats.get("num_clients", 0) * len(stats.get("labels", ()))
    label_counts = read(path, {"label_counts": "i"}, values=counts)["label_counts"]
    tested = read(path, {"test_counts": "i"}, optional=True, values=counts)
    test_counts = tested.get("test_counts", np.empty((0, 0), np.int64))
    domains = read(path, {"domains": "i"}, optional=True).get("domains", np.empty(0, np.int64))
    if label_counts.ndim != 2 or (label_counts < 0).any() or len(domains) not in (0, len(label_counts)):
        raise refusal(path, None, "label_counts must be a table of counts, and domains one for each of its rows")
    if test_counts.ndim != 2 or len(test_counts) not in (0, len(label_counts)):
        raise refusal(path, None, "test_counts must be a table with a row for each client")
    return PartitionColumns(label_counts, test_counts, domains)


def part_rows(folder: Path, seed: int, part: str) -> Iterator[list[int]]:
    """Indices of each client's examples in a part, train, val or test, from the columns beside partition.json.

    Raises:
        RunError: If the file is not as a run writes it.
    """
    path = folder / partition_file(seed)
    rows, sizes = read(path, {part: "i", f"{part}_sizes": "i"}).values()
    if rows.ndim != 1 or sizes.ndim != 1 or (sizes < 0).any() or sizes.sum() != len(rows):
        raise refusal(path, None, f"{part}_sizes must say how many of {part} each client has")
    ends = sizes.cumsum().tolist()
    return (rows[a:b].tolist() for a, b in itertools.pairwise([0, *ends]))


ROWS_FILE = "rows.npz"
"""The file with the row of each example in the data as they were given."""


def given_rows(folder: Path) -> npt.NDArray[np.int64]:
    """Row of each example of the data set in the data as they were given, from the columns beside partition.json.

    Raises:
        RunError: If the file is missing or not as a run writes it.
    """
    rows = read(folder / ROWS_FILE, {"rows": "i"})["rows"]
    if rows.ndim != 1 or (rows < 0).any():
        raise refusal(folder / ROWS_FILE, None, "rows must be a list of numbers from 0")
    return rows.astype(np.int64)
