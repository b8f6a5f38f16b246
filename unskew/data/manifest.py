"""The training, validation and test examples of each client: as index tensors of several lengths, and as JSON."""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Ge, Interval
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from unskew.errors import DataError


@dataclass(frozen=True, eq=False)
class Ragged(Sequence[Tensor]):
    """A sequence of int64 index tensors, stored end to end in one tensor.

    Attributes:
        values: All entries, (sum of sizes,).
        sizes: Length of each tensor.

    >>> parts = Ragged.of([torch.tensor([3, 5]), torch.tensor([1])])
    >>> parts[0], len(parts)
    (tensor([3, 5]), 2)
    """

    values: Tensor
    sizes: npt.NDArray[np.int64]

    @staticmethod
    def of(tensors: Sequence[Tensor]) -> "Ragged":
        """The tensors, packed."""
        nothing = torch.empty(0, dtype=torch.int64)
        return Ragged(torch.cat([nothing, *tensors]), np.array([len(t) for t in tensors], np.int64))

    @cached_property
    def bounds(self) -> npt.NDArray[np.int64]:
        """Start of each tensor, and the end of the last one."""
        return np.concatenate([np.zeros(1, np.int64), self.sizes.cumsum()])

    def tolist(self) -> list[list[int]]:
        """The entries of each tensor."""
        values = self.values.tolist()
        return [values[start:end] for start, end in itertools.pairwise(self.bounds.tolist())]

    def to(self, device: torch.device | str) -> "Ragged":
        """The same on a device."""
        return Ragged(self.values.to(device), self.sizes)

    def take(self, chosen: npt.NDArray[np.int64]) -> "Ragged":
        """The tensors of these numbers, in this order."""
        sizes = self.sizes[chosen]
        shift = np.repeat(self.bounds[:-1][chosen] - (sizes.cumsum() - sizes), sizes)
        rows = torch.from_numpy(np.arange(sizes.sum()) + shift)
        return Ragged(self.values[rows.to(self.values.device)], sizes)

    def where(self, kept: npt.NDArray[np.bool_]) -> "Ragged":
        """The same without the entries that are false in `kept`."""
        owner = np.repeat(np.arange(len(self)), self.sizes)[kept]
        return Ragged(self.values[torch.from_numpy(kept)], np.bincount(owner, minlength=len(self)))

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, i: int) -> Tensor:  # type: ignore[override]  # nobody takes slices
        i = range(len(self))[i]  # as a list counts and refuses
        return self.values[int(self.bounds[i]) : int(self.bounds[i + 1])]


# ---------------------------------------------------------------- the record of a division
SCHEMA = 1
PARTS = ("train", "val", "test")

Rows = list[list[Annotated[int, Interval(ge=0, lt=1 << 62)]]]
"""The examples of each client, in one part."""


@dataclass(frozen=True, eq=False)
class Parts:
    """The examples of each client."""

    train: Rows
    val: Rows
    test: Rows


@dataclass(frozen=True)
class _Unseen:
    parts: Parts


@dataclass(frozen=True, eq=False)
class Manifest:
    """A manifest as written; further entries are statistics."""

    schema: Literal[1]
    dataset: str
    dataset_sha256: str
    n: Annotated[int, Ge(1)]
    split: dict[str, Any]
    seed: int
    sha256: str
    parts: Parts
    unseen: _Unseen | None = None


def parts_of(clients: Any) -> dict[str, Rows]:
    """The parts of clients for a manifest."""
    return {name: getattr(clients, name).tolist() for name in PARTS}


def part_in(rows: Rows) -> Ragged:
    """One part of all clients, as `parts_of` has it."""
    values = np.fromiter(itertools.chain.from_iterable(rows), np.int64)
    return Ragged(torch.from_numpy(values), np.array([len(mine) for mine in rows], np.int64))


def sha256_of(*parts: Ragged) -> str:
    """SHA-256 of parts, equal where each client has the same examples in each."""
    digest = hashlib.sha256()
    for part in parts:
        for numbers in (part.sizes, part.values.numpy()):
            digest.update(np.ascontiguousarray(numbers, "<i8").tobytes())
    return digest.hexdigest()


def read_manifest(path: Path) -> tuple[Manifest, list[Ragged], list[Ragged]]:
    """The manifest at `path`, and the train, val and test parts of its clients, and of unseen clients if there are any.

    Raises:
        DataError: If the file is missing, not JSON, of another schema, or incomplete.  If an index is out of bounds or
            occurs twice, a client has no training example, or the hash does not match.
    """
    try:
        written = TypeAdapter(Manifest).validate_json(path.read_bytes(), strict=True)
    except OSError as error:
        raise DataError(f"the manifest {path.absolute()} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise DataError(f"{path} is not a valid manifest: {where}: {first['msg']}; write it again") from None
    if not isinstance(written.split.get("name"), str):
        raise DataError(f"{path} is not a valid manifest: split.name is missing; write it again")
    both = (written, written.unseen)
    clients, unseen = ([] if one is None else [part_in(getattr(one.parts, name)) for name in PARTS] for one in both)
    every = torch.cat([part.values for part in (*clients, *unseen)]).numpy()
    if not len(every) or every.max() >= written.n or len(np.unique(every)) < len(every):
        raise DataError(f"the manifest {path} must have each index in one place, and from 0 to {written.n - 1}")
    if not clients[0].sizes.all():
        raise DataError(f"the manifest {path} has a client without training examples")
    if (sha256 := sha256_of(*clients)) != written.sha256:
        raise DataError(f"the manifest {path} was changed after it was written: its indices have SHA-256 {sha256}")
    return written, clients, unseen
