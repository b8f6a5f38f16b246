"""Checkpoints: the state of a run between two rounds, in files that hold no code.

A checkpoint is a folder `checkpoints/000042/` of safetensors files (state, client memory in shards) and a manifest: its
position in the run, lengths and hashes of the logs, what must be equal to continue, and the SHA-256 of every file.  It
is written under another name, synced and renamed; the last two are kept.
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

from unskew import wire
from unskew.errors import RunError, WireError
from unskew.files import read_bytes, sync_folder, write_synced
from unskew.protocol import ClientId
from unskew.run.folder import LogMark, explained, remove
from unskew.tree import leaves, map_leaves, moved

SCHEMA = 2
SHARD = 256


@dataclass(frozen=True)
class Position:
    """The position of a run between two rounds, and what must be equal for it to continue.

    Attributes:
        cell: Number of the (seed, method) being run, from 0 in the run's order.
        round: Finished rounds of that cell.
        done: Hash of the final state of each finished cell.
        stopped: Reasons for which cells ended early, by label and seed.
        logs: Length and hash of each log.
        documents: SHA-256 of run.json and partition.json.
        seconds: Wall-clock time of the run so far, s.
        cell_seconds: Wall-clock time of this cell, s.
        cell_bytes: Bytes this cell has sent.
        config_sha256: SHA-256 of the resolved experiment.
        environment: Versions, device and executor that bits depend on.
        notes: Exceptions to the executor's usual way, with reasons, by label and seed.
        same: Groups of paths in state and memory at which there is one tensor, as `same_tensors` has them.
    """

    cell: int
    round: int
    done: tuple[str, ...]
    stopped: Mapping[str, str]
    logs: Mapping[str, LogMark]
    documents: Mapping[str, str]
    seconds: float
    cell_seconds: float
    cell_bytes: int
    config_sha256: str
    environment: Mapping[str, str]
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    same: tuple[tuple[str, ...], ...] = ()


BEGINNING = Position(0, 0, (), {}, {}, {}, 0.0, 0.0, 0, "", {})


@dataclass(frozen=True, eq=False)
class Saved:
    """A checkpoint on disk, its files verified and its values not yet built.

    Attributes:
        path: Its folder.
        position: The position in the run at which it was taken.
        files: Names of its files.
    """

    path: Path
    position: Position
    files: tuple[str, ...]

    def values(self, state: Any, memory: Any, device: torch.device) -> tuple[Any, dict[ClientId, Any]]:
        """The method's state and the clients' memory on a device, of the types that `init` returns and steps keep."""
        kept: dict[ClientId, Any] = {}
        for name in self.files:
            if name.startswith("memory-"):
                kept.update(self._decode(name, dict[int, memory]))
        of_server = moved(self._decode("state.safetensors", state), device)
        return shared_again(of_server, moved(kept, device), self.position.same)

    def _decode(self, name: str, of: Any) -> Any:
        try:
            return wire.decode(read_bytes(self.path / name), of)
        except WireError as error:
            raise RunError(f"{self.path / name} does not fit the method that runs now: {error}") from None


Pieces = Sequence[bytes | memoryview]


def encode_state(state: Any, memory: Mapping[ClientId, Any]) -> dict[str, Pieces]:
    """The files of a checkpoint: name -> content in pieces, valid as long as the state is unchanged."""
    files: dict[str, Pieces] = {"state.safetensors": wire.pieces(state)}
    clients = sorted(memory)
    for i in range(0, len(clients), SHARD):
        files[f"memory-{i // SHARD:04d}.safetensors"] = wire.pieces({c: memory[c] for c in clients[i : i + SHARD]})
    return files


def same_tensors(state: Any, memory: Mapping[ClientId, Any]) -> tuple[tuple[str, ...], ...]:
    """Groups of paths in a state and the clients' memory at which there is one tensor, not several that are equal.

    Clients that share their model are tested in one pass, which rounds otherwise than a pass for each.  The files have
    a copy for each path, so that what was shared has to be noted.
    """
    paths: dict[int, list[str]] = {}
    for path, leaf in leaves((state, dict(memory))):
        if isinstance(leaf, Tensor):
            paths.setdefault(id(leaf), []).append(path)
    return tuple(tuple(of) for of in paths.values() if len(of) > 1)


def shared_again(
    state: Any, memory: dict[ClientId, Any], same: Sequence[Sequence[str]]
) -> tuple[Any, dict[ClientId, Any]]:
    """State and memory with one tensor at paths where there was one; where there are different ones, they stay."""
    both = list(leaves((state, memory)))
    by_path = {path: leaf for path, leaf in both if isinstance(leaf, Tensor)}
    first = {path: by_path[of[0]] for of in same for path in of if _alike(by_path.get(of[0]), by_path.get(path))}
    order = iter([path for path, _ in both])
    joined: tuple[Any, dict[ClientId, Any]] = map_leaves(lambda leaf: first.get(next(order), leaf), (state, memory))
    return joined


def _alike(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and a.dtype == b.dtype and torch.equal(a, b)


def without_secrets(memory: Any) -> Any:
    """Empty the secrets of a client's memory, which no two runs share: fields with metadata={"secret": True}.

    The secret of a secure sum that was lost is still there at the end, and no result depends on it.
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


def save(folder: Path, files: Mapping[str, Pieces], position: Position) -> Path:
    """Write a checkpoint completely or not at all, then remove all but the last two.

    Raises:
        RunError: If the disk refuses; the earlier checkpoints stay.
    """
    root = folder / "checkpoints"
    existing = _list(root)
    number = int(existing[-1].name) + 1 if existing else 1
    final, temporary = root / f"{number:06d}", root / f"{number:06d}.tmp"
    manifest = {
        "schema": SCHEMA,
        **dataclasses.asdict(position),
        "files": {name: _sha256(content).hexdigest() for name, content in files.items()},
    }
    body = json.dumps(manifest, indent=1).encode()
    seal = json.dumps({"manifest_sha256": hashlib.sha256(body).hexdigest()}).encode()
    with explained(final, folder):
        remove(temporary)
        try:
            temporary.mkdir(parents=True)
            for name, content in {**files, "manifest.json": [body], "seal.json": [seal]}.items():
                write_synced(temporary / name, content)
            sync_folder(temporary)
            temporary.rename(final)
        except BaseException:  # a second Ctrl-C, too, leaves nothing half-written
            remove(temporary)
            raise
        sync_folder(root)
    for old in existing[:-1]:
        remove(old)
    return final


def _list(root: Path) -> list[Path]:
    return sorted(p for p in root.glob("[0-9]*") if p.is_dir() and p.name.isdigit())


def latest(folder: Path) -> Saved | None:
    """The newest checkpoint, verified; None if the run was stopped before its first.

    Raises:
        RunError: If a file of it is missing or differs from what was written, naming the file and the way out.
    """
    existing = _list(folder / "checkpoints")
    if not existing:
        return None
    path = existing[-1]
    before = f"continue from {existing[-2].name}" if len(existing) > 1 else "begin again from round 0"
    try:
        return _read(path)
    except RunError as error:
        raise RunError(f"{error}; remove {path} to {before}") from None


def _read(path: Path) -> Saved:
    seal = _object(path, "seal.json")
    manifest = _object(path, "manifest.json", str(seal.get("manifest_sha256")))
    if manifest.get("schema") != SCHEMA:
        raise RunError(f"{path} was written by another version of unskew, with schema {manifest.get('schema')}")
    names = {f.name for f in dataclasses.fields(Position)}
    try:
        files = pydantic.TypeAdapter(dict[str, str]).validate_python(manifest.get("files"))
        position = pydantic.TypeAdapter(Position).validate_python({k: v for k, v in manifest.items() if k in names})
    except pydantic.ValidationError as error:
        raise RunError(f"{path / 'manifest.json'} is not a manifest: {error.errors()[0]['msg']}") from None
    for name, sha256 in files.items():
        _content(path, name, sha256)
    return Saved(path, position, tuple(files))


def _object(path: Path, name: str, sha256: str | None = None) -> dict[str, Any]:
    try:
        value = json.loads(_content(path, name, sha256))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path / name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RunError(f"{path / name} holds no JSON object")
    return value


def _content(path: Path, name: str, sha256: str | None) -> bytes:
    try:
        data = read_bytes(path / name)
    except OSError as error:
        raise RunError(f"checkpoint {path} lacks {name} ({error.strerror})") from None
    actual = hashlib.sha256(data).hexdigest()
    if sha256 is not None and actual != sha256:
        raise RunError(
            f"{path / name} is damaged or was changed: its SHA-256 is {actual[:16]}..., {sha256[:16]}... was written"
        )
    return data
