"""The file that records a split: which training examples each client trains, validates and tests on."""

import hashlib
import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Len
from pydantic import TypeAdapter, ValidationError

from unskew.errors import DataError

SCHEMA = 1
PARTS = ("train", "val", "test")

Parts = tuple[npt.NDArray[np.int64], ...]


@dataclass(frozen=True)
class _Client:
    train: Annotated[list[int], Len(1)]
    val: list[int]
    test: list[int]


@dataclass(frozen=True)
class _Unseen:
    clients: list[_Client]


@dataclass(frozen=True, eq=False)
class Manifest:
    """A manifest as it is written; what else is in it says what was measured."""

    schema: Literal[1]
    dataset: str
    dataset_sha256: str
    n: Annotated[int, Ge(1)]
    split: dict[str, Any]
    seed: int
    sha256: str
    clients: Annotated[list[_Client], Len(1)]
    unseen: _Unseen | None = None
    columns: None = None  # a file beside it that has the examples of a run with many clients: no division to use again


def index_sha256(clients: Iterable[Sequence[Sequence[int]]]) -> str:
    """SHA-256 of just the indices: JSON [[train, val, test], ...] without spaces, in client order."""
    digest, comma, clients = hashlib.sha256(b"["), b"", iter(clients)
    while some := list(itertools.islice(clients, 4096)):  # the text of a million clients is not made at once
        digest.update(comma + json.dumps(some, separators=(",", ":"))[1:-1].encode())
        comma = b","
    digest.update(b"]")
    return digest.hexdigest()


def read_manifest(path: Path) -> tuple[Manifest, list[Parts], list[Parts]]:
    """The manifest at `path`, and the (train, val, test) of its clients and of the unseen ones.

    Raises:
        DataError: If the file is missing, not JSON, of another schema, or incomplete; if an index is out of bounds or
            belongs to two clients or parts; if a client has no training example; or if the hash does not match.
    """
    try:
        written = TypeAdapter(Manifest).validate_json(path.read_bytes(), strict=True)
        if not isinstance(written.split.get("name"), str):
            raise ValueError("split.name is missing")
    except OSError as error:
        raise DataError(f"the manifest {path.absolute()} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise DataError(f"the manifest {path} is none: {where}: {first['msg']}; write it anew") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"the manifest {path} is none: {error}") from error
    later = () if written.unseen is None else written.unseen.clients
    parts = [tuple(np.array(getattr(one, name), np.int64) for name in PARTS) for one in (*written.clients, *later)]
    every = np.concatenate([part for of_client in parts for part in of_client])
    if every.min() < 0 or every.max() >= written.n or len(np.unique(every)) < len(every):
        raise DataError(f"the manifest {path} must have each index in one place, and from 0 to {written.n - 1}")
    clients, unseen = parts[: len(written.clients)], parts[len(written.clients) :]
    sha256 = index_sha256([part.tolist() for part in of_client] for of_client in clients)
    if sha256 != written.sha256:
        raise DataError(f"the manifest {path} was changed after it was written: its indices have SHA-256 {sha256}")
    return written, clients, unseen
