"""The file that records a split: which training examples each client trains, validates and tests on."""

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unskew.errors import DataError

SCHEMA = 1
PARTS = ("train", "val", "test")

Parts = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Manifest:
    """A manifest as read and checked; `clients`, and `unseen` that take no part, hold (train, val, test) arrays."""

    dataset: str
    dataset_sha256: str
    n: int
    split: Mapping[str, Any]
    seed: int
    sha256: str
    clients: tuple[Parts, ...]
    unseen: tuple[Parts, ...] = ()


def index_sha256(clients: Iterable[Sequence[Sequence[int]]]) -> str:
    """SHA-256 of just the indices: JSON [[train, val, test], ...] without spaces, in client order."""
    digest, comma, clients = hashlib.sha256(b"["), b"", iter(clients)
    while some := list(itertools.islice(clients, 4096)):  # the text of a million clients is not made at once
        digest.update(comma + json.dumps(some, separators=(",", ":"))[1:-1].encode())
        comma = b","
    digest.update(b"]")
    return digest.hexdigest()


def read_manifest(path: Path) -> Manifest:
    """The manifest at `path`.

    Raises:
        DataError: If the file is missing, not JSON, of another schema, or incomplete; if an index is out of bounds or
            belongs to two clients or parts; if a client has no training example; or if the hash does not match.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"the manifest {path.absolute()} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"the manifest {path} is not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        got = content.get("schema") if isinstance(content, dict) else type(content).__name__
        raise DataError(f"the manifest {path} must be a JSON object of schema {SCHEMA}, got {got}")
    if "columns" in content:
        raise DataError(
            f"the manifest {path} has no lists of examples, they are in {content['columns']}; divide again with "
            "client_rows at the number of clients or above, and fewer seeds if there are more than 20 million examples "
            "in all, which keeps them as lists"
        )
    kinds = {
        "dataset": str,
        "dataset_sha256": str,
        "n": int,
        "split": dict,
        "seed": int,
        "sha256": str,
        "clients": list,
    }
    for name, kind in kinds.items():
        if type(content.get(name)) is not kind:
            got = type(content[name]).__name__ if name in content else "nothing"
            raise DataError(f"the manifest {path} must have {name} as {kind.__name__}, got {got}")
    if not isinstance(content["split"].get("name"), str):
        got = content["split"].get("name", "nothing")
        raise DataError(f"the manifest {path} must have split.name as a word for how it was divided, got {got!r}")
    owner = np.full(max(content["n"], 0), -1, np.int64)
    clients = _clients(path, content["clients"], owner)
    later = content.get("unseen")
    if later is not None and not (isinstance(later, dict) and isinstance(later.get("clients"), list)):
        raise DataError(f"the manifest {path} must have unseen.clients as a list")
    unseen = () if later is None else _clients(path, later["clients"], owner)
    sha256 = index_sha256([part.tolist() for part in parts] for parts in clients)
    if sha256 != content["sha256"]:
        raise DataError(
            f"the manifest {path} was changed after it was written: its indices have SHA-256 {sha256}, "
            f"it says {content['sha256']}"
        )
    return Manifest(
        content["dataset"],
        content["dataset_sha256"],
        content["n"],
        content["split"],
        content["seed"],
        sha256,
        clients,
        unseen,
    )


def _clients(path: Path, raw: list[Any], owner: npt.NDArray[np.int64]) -> tuple[Parts, ...]:
    """The clients' parts; `owner` has for each example a number of its client, and -1 where it has none."""
    if not raw:
        raise DataError(f"the manifest {path} has no clients")
    clients = []
    for i, client in enumerate(raw):
        if not isinstance(client, dict) or set(client) != set(PARTS):
            raise DataError(f"the manifest {path}: client {i} must have {', '.join(PARTS)} and nothing else")
        if not client["train"]:
            raise DataError(f"the manifest {path}: client {i} has no training examples")
        parts = tuple(_indices(path, i, name, client[name], owner) for name in PARTS)
        clients.append((parts[0], parts[1], parts[2]))
    return tuple(clients)


def _indices(path: Path, i: int, name: str, values: object, owner: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """One part as an array, marked in `owner` as client i's."""
    if not isinstance(values, list):
        raise DataError(f"the manifest {path}: {name} of client {i} must be a list")
    for v in values:
        if type(v) is not int or not 0 <= v < len(owner):
            raise DataError(
                f"the manifest {path}: {name} of client {i} has {v!r}, indices must be integers 0..{len(owner) - 1}"
            )
    part = np.array(values, dtype=np.int64)
    taken = part[owner[part] >= 0]
    if len(taken):
        raise DataError(
            f"the manifest {path}: example {taken[0]} belongs to client {owner[taken[0]]} and to {name} of client {i}"
        )
    owner[part] = i
    if len(np.unique(part)) != len(part):
        values, times = np.unique(part, return_counts=True)
        raise DataError(f"the manifest {path}: {name} of client {i} has example {values[times.argmax()]} twice")
    return part
