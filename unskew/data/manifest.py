"""The record of a division: the training, validation and test examples of each client.

It is JSON.  Arrays are .npy files in base64, one for each part of all clients.
"""

import base64
import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Ge
from pydantic import TypeAdapter, ValidationError

from unskew.data.ragged import Ragged
from unskew.errors import DataError

SCHEMA = 1
PARTS = ("train", "val", "test")


Packed = dict[str, tuple[str, str]]
"""Each part of all clients: its examples end to end, and how many each client has, both as `as_text` writes them."""


@dataclass(frozen=True)
class _Unseen:
    parts: Packed


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
    parts: Packed
    unseen: _Unseen | None = None


def as_text(numbers: npt.NDArray[Any]) -> str:
    """Whole numbers as text, in the smallest type that fits.

    >>> from_text(as_text(np.array([[3, 5], [1, 0]]))).tolist()
    [[3, 5], [1, 0]]
    """
    file = io.BytesIO()
    signed = np.min_scalar_type(-1 - int(numbers.max(initial=0)))
    np.save(file, numbers.astype(signed))
    return base64.b64encode(file.getvalue()).decode()


def from_text(text: str) -> npt.NDArray[np.int64]:
    """Whole numbers from 0, as written by `as_text`.

    Raises:
        ValueError: If the text is something else.
    """
    numbers = np.load(io.BytesIO(base64.b64decode(text, validate=True)), allow_pickle=False)
    if numbers.dtype.kind != "i" or (numbers < 0).any():
        raise ValueError(f"it must hold whole numbers from 0, and holds {numbers.dtype}")
    return np.asarray(numbers, np.int64)


def parts_of(clients: Any) -> Packed:
    """The parts of clients for a manifest."""
    parts = {name: getattr(clients, name) for name in PARTS}
    return {name: (as_text(part.values.numpy()), as_text(part.sizes)) for name, part in parts.items()}


def part_in(parts: Packed, name: str) -> Ragged:
    """One part of all clients.

    Raises:
        ValueError, KeyError: If it was not written by `parts_of`.
    """
    rows, sizes = map(from_text, parts[name])
    if rows.ndim != 1 or sizes.ndim != 1 or sizes.sum() != len(rows):
        raise ValueError(f"the sizes of {name} must say how many of its rows each client has")
    return Ragged(torch.from_numpy(rows), sizes)


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
        if not isinstance(written.split.get("name"), str):
            raise ValueError("split.name is missing")
        both = (written, written.unseen)
        clients, unseen = ([] if one is None else [part_in(one.parts, name) for name in PARTS] for one in both)
    except OSError as error:
        raise DataError(f"the manifest {path.absolute()} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise DataError(f"the manifest {path} is none: {where}: {first['msg']}; write it anew") from None
    except (ValueError, KeyError, EOFError) as error:
        raise DataError(f"the manifest {path} is none: {error}") from error
    every = torch.cat([part.values for part in (*clients, *unseen)]).numpy()
    if not len(every) or every.max() >= written.n or len(np.unique(every)) < len(every):
        raise DataError(f"the manifest {path} must have each index in one place, and from 0 to {written.n - 1}")
    if not clients[0].sizes.all():
        raise DataError(f"the manifest {path} has a client without training examples")
    if (sha256 := sha256_of(*clients)) != written.sha256:
        raise DataError(f"the manifest {path} was changed after it was written: its indices have SHA-256 {sha256}")
    return written, clients, unseen
