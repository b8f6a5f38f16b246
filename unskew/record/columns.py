"""Examples of each client, in arrays beside partition.json, where clients or examples are too many for its lists.

    partition-seed0.safetensors    examples of each client in each part, and counts by class
    rows.safetensors               row of each example in the data as they were given

The format has no code in it and is not compressed: a file is as large as what is read of it.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from unskew.files import read_bytes, write_atomically
from unskew.record.logs import refusal, unreadable

Array = npt.NDArray[Any]
ROWS_FILE = "rows.safetensors"
"""The file with the row of each example in the data as they were given."""


def partition_file(seed: int) -> str:
    """The name of the file with the columns of one seed's division in partition.json."""
    return f"partition-seed{seed}.safetensors"


def write(path: Path, columns: Mapping[str, Array]) -> None:
    """Write columns of whole numbers, all or nothing, each in the smallest type that holds it."""
    small = {name: np.ascontiguousarray(_small(column)) for name, column in columns.items()}
    write_atomically(path, safetensors.numpy.save(small))


def _small(column: Array) -> Array:
    fits = (kind for kind in (np.int8, np.int16, np.int32) if np.array_equal(column.astype(kind), column))
    return column.astype(next(fits, column.dtype)) if column.dtype.kind == "i" else column


def read(path: Path, *names: str) -> list[Array]:
    """Columns of whole numbers; one that the file lacks is empty.

    Raises:
        RunError: If the file is missing, or is none of columns of whole numbers from 0.
    """
    try:
        columns = safetensors.numpy.load(read_bytes(path))
    except OSError as error:
        raise unreadable(path, error) from None
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise refusal(path, f"it has no columns: {str(error).partition(chr(10))[0]}") from None
    wanted = [columns.get(name, np.empty(0, np.int64)) for name in names]
    if any(column.dtype.kind != "i" or (column < 0).any() for column in wanted):
        raise refusal(path, "its columns must have whole numbers from 0")
    return wanted


def partition_columns(folder: Path, seed: int) -> dict[str, Array]:
    """One seed's division, from the columns beside partition.json.

    Training and test examples by client and class, and the domain of each client of one domain; empty where not known.
    Raises as `read`.
    """
    names = ("label_counts", "test_counts", "domains")
    return dict(zip(names, read(folder / partition_file(seed), *names), strict=True))


def part_rows(folder: Path, seed: int, part: str) -> Iterator[list[int]]:
    """Indices of each client's examples in a part, train, val or test, from the columns beside partition.json.

    Raises:
        RunError: If the file is not as a run writes it.
    """
    path = folder / partition_file(seed)
    rows, sizes = read(path, part, f"{part}_sizes")
    if sizes.sum() != len(rows):
        raise refusal(path, f"{part}_sizes must say how many of {part} each client has")
    ends = sizes.cumsum(dtype=np.int64).tolist()
    return (rows[a:b].tolist() for a, b in itertools.pairwise([0, *ends]))


def given_rows(folder: Path) -> npt.NDArray[np.int64]:
    """Row of each example of the data set in the data as they were given.  Raises as `read`."""
    (rows,) = read(folder / ROWS_FILE, "rows")
    return rows.astype(np.int64)


@dataclass(frozen=True, eq=False)
class RowResults:
    """The headline of each test row under its client's own model.

    Attributes:
        by_client: {client: what is drawn by chance, for each row, and the row's value}.  A row's patient is drawn, by
            its number, or the row itself, by its own in the data; the values' mean is the client's headline.
        ranked: True for an AUROC's values, which are DeLong's.
    """

    by_client: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]
    ranked: bool

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row of the record for each test row."""
        for client, (units, values) in self.by_client.items():
            for unit, value in zip(units.tolist(), values.tolist(), strict=True):
                yield {"client": client, "unit": unit, "value": value, "ranked": int(self.ranked)}
