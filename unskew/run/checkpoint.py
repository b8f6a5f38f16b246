"""Checkpoints: the state of a run between two rounds, in files that hold no code.

A checkpoint is a position in the run's database and, in a folder `checkpoint/42/`, safetensors files: the state, and
client memory in shards.  The position names the folder and the SHA-256 of each file.  It is written last, in the
transaction with the rounds' rows, so the previous checkpoint stays valid until then.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pydantic
import torch
from torch import Tensor

from unskew import info, wire
from unskew.errors import RunError, WireError
from unskew.files import read_bytes, sync_folder, write_synced
from unskew.protocol import ClientId
from unskew.record import database
from unskew.record.database import Database, Mark
from unskew.record.logs import refusal, sentence, unreadable
from unskew.run.folder import explained, remove
from unskew.tree import leaves, map_leaves, moved

FOLDER = "checkpoint"
SHARD = 256


@dataclass(frozen=True)
class Position:
    """The position of a run between two rounds, and what must be equal to resume it.

    Attributes:
        cell: Number of the current (seed, method), from 0 in the run's order.
        round: Finished rounds of that cell.
        done: Hash of the final state of each finished cell.
        stopped: Reasons for which cells ended early, by label and seed.
        marks: State of each table of the record.
        documents: SHA-256 of run.json and partition.json.
        seconds: Wall-clock time of the run so far, s.
        cell_seconds: Wall-clock time of this cell, s.
        cell_bytes: Bytes this cell has sent.
        same: Paths in state and memory that share one tensor, from `same_tensors`.
        number: Number of the checkpoint, which names its folder.
        files: SHA-256 of each file in that folder.
    """

    cell: int = 0
    round: int = 0
    done: tuple[str, ...] = ()
    stopped: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[str, Mark] = field(default_factory=dict)
    documents: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    cell_seconds: float = 0.0
    cell_bytes: int = 0
    same: tuple[tuple[str, ...], ...] = ()
    number: int = 0
    files: Mapping[str, str] = field(default_factory=dict)


BEGINNING = Position()


Pieces = Sequence[bytes | memoryview]


def encode_state(state: Any, memory: Mapping[ClientId, Any]) -> dict[str, Pieces]:
    """The files of a checkpoint, name -> content in pieces; valid while the state is unchanged."""
    files: dict[str, Pieces] = {"state.safetensors": wire.pieces(state)}
    clients = sorted(memory)
    for i in range(0, len(clients), SHARD):
        files[f"memory-{i // SHARD:04d}.safetensors"] = wire.pieces({c: memory[c] for c in clients[i : i + SHARD]})
    return files


def same_tensors(state: Any, memory: Mapping[ClientId, Any]) -> tuple[tuple[str, ...], ...]:
    """Groups of paths in the state and the clients' memory that share one tensor object.

    The files hold a copy for each path.  Sharing is kept because clients with one model are tested in one pass, and
    separate passes would round differently.
    """
    paths: dict[int, list[str]] = {}
    for path, leaf in leaves((state, dict(memory))):
        if isinstance(leaf, Tensor):
            paths.setdefault(id(leaf), []).append(path)
    return tuple(tuple(of) for of in paths.values() if len(of) > 1)


def shared_again(
    state: Any, memory: dict[ClientId, Any], same: Sequence[Sequence[str]]
) -> tuple[Any, dict[ClientId, Any]]:
    """State and memory with shared tensors restored; paths whose tensors differ by now are left alone."""
    both = list(leaves((state, memory)))
    by_path = {path: leaf for path, leaf in both if isinstance(leaf, Tensor)}
    first = {path: by_path[of[0]] for of in same for path in of if _alike(by_path.get(of[0]), by_path.get(path))}
    order = iter([path for path, _ in both])
    joined: tuple[Any, dict[ClientId, Any]] = map_leaves(lambda leaf: first.get(next(order), leaf), (state, memory))
    return joined


def _alike(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and a.dtype == b.dtype and torch.equal(a, b)


def without_secrets(memory: Any) -> Any:
    """A client's memory with its secrets emptied: the fields with metadata={"secret": True}.

    Secrets of a secure sum differ between any two runs, and no result depends on them.
    """
    if not dataclasses.is_dataclass(memory) or isinstance(memory, type):
        return memory
    values = {f.name: getattr(memory, f.name) for f in dataclasses.fields(memory)}
    emptied = {
        f.name: type(values[f.name])() if f.metadata.get("secret") else without_secrets(values[f.name])
        for f in dataclasses.fields(memory)
    }
    changed = {name: value for name, value in emptied.items() if value is not values[name]}
    return dataclasses.replace(memory, **changed) if changed else memory


def digest(files: Mapping[str, Pieces]) -> str:
    """One SHA-256 of a checkpoint's content."""
    combined = hashlib.sha256()
    for name in sorted(files):
        combined.update(name.encode() + b"\0" + _sha256(files[name]).digest())
    return combined.hexdigest()


def _sha256(pieces: Pieces) -> "hashlib._Hash":
    content = hashlib.sha256()
    for piece in pieces:
        content.update(piece)
    return content


def save(folder: Path, files: Mapping[str, Pieces], position: Position, record: Database) -> Position:
    """Write a checkpoint atomically, remove the previous one, and return its position.

    Raises:
        RunError: If the disk refuses; the previous checkpoint stays.
    """
    root = folder / FOLDER
    place = root / str(position.number + 1)
    hashes = {name: _sha256(content).hexdigest() for name, content in files.items()}
    position = dataclasses.replace(position, marks=record.marks(), number=position.number + 1, files=hashes)
    with explained(place, folder):
        remove(place)  # of a process that was killed
        place.mkdir(parents=True)
        for name, content in files.items():
            write_synced(place / name, content)
        sync_folder(place)
        sync_folder(root)
        record.commit(json.dumps(dataclasses.asdict(position)))
    for other in root.iterdir():
        if other != place:
            remove(other)
    return position


def latest(folder: Path) -> Position | None:
    """The position of a run's checkpoint, its files verified; None if there is none yet.

    Raises:
        RunError: If it cannot be read, or a file is missing or has changed.
    """
    text = database.position(folder)
    if text is None:
        return None
    try:
        position: Position = info.adapter(Position).validate_json(text)
    except pydantic.ValidationError as error:
        raise refusal(folder / database.FILE, f"its position is invalid: {sentence(error)}") from None
    place = folder / FOLDER / str(position.number)
    for name, sha256 in position.files.items():
        try:
            content = read_bytes(place / name)
        except OSError as error:
            raise unreadable(place / name, error) from None
        if hashlib.sha256(content).hexdigest() != sha256:
            raise refusal(place / name, "it changed since it was written")
    return position


def load(
    folder: Path, position: Position, state: Any, memory: Any, device: torch.device
) -> tuple[Any, dict[ClientId, Any]]:
    """The method's state and the clients' memory of a checkpoint, as the types of the initial state and memory.

    Raises:
        RunError: If the types differ.
    """

    def decoded(name: str, of: Any) -> Any:
        path = folder / FOLDER / str(position.number) / name
        try:
            return moved(wire.decode(read_bytes(path), of), device)
        except WireError as error:
            raise RunError(f"{path} does not fit the method that runs now: {error}") from None

    kept: dict[ClientId, Any] = {}
    for name in position.files:
        if name.startswith("memory-"):
            kept.update(decoded(name, dict[int, memory]))
    return shared_again(decoded("state.safetensors", state), kept, position.same)
