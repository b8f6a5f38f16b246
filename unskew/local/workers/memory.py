"""Values in memory that the main process and a worker share."""

import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unskew import wire

ALIGNMENT = 64  # bytes: where tensors begin
JOBS_IN_FLIGHT = 2  # per worker: one being done, one waiting, so that no worker waits for the main process
SLOTS = 2 * JOBS_IN_FLIGHT  # of a worker: one for the requests and one for the answers of each job in flight
MODELS_PER_SLOT = 8  # room in a slot for messages and memories, or replies, in models
MOST_CLIENTS = 8  # in one job


class SharedBuffer:
    """A piece of memory that the main process and a forked worker both see."""

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    @property
    def size(self) -> int:
        """Its size, bytes."""
        return len(self._bytes)

    def put(self, tensors: Mapping[str, Tensor], at: int, end: int) -> tuple[list[Any], int] | None:
        """Write tensors from offset `at`: their index and their end; None for both if that is beyond `end`."""
        index, at = places(tensors, at)
        if at > end:  # the memory behind belongs to another job
            return None
        write(self._bytes, tensors, index)
        return index, at

    def views(self, index: Sequence[Any]) -> dict[str, Tensor]:
        """The tensors of an index, without copying."""
        return views(self._bytes, index, 0)

    def copy(self, start: int, end: int) -> Tensor:
        """A copy of a part of the memory."""
        return self._bytes[start:end].clone()


def places(tensors: Mapping[str, Tensor], at: int) -> tuple[list[Any], int]:
    """The index of tensors when written from offset `at`, and their end."""
    index: list[Any] = []
    for name, t in tensors.items():
        index.append([name, wire.DTYPES[t.dtype], list(t.shape), at])
        at += -(-t.numel() * t.element_size() // ALIGNMENT) * ALIGNMENT
    return index, at


def write(octets: Tensor, tensors: Mapping[str, Tensor], index: Sequence[Any]) -> None:
    """Write tensors into bytes at the places of their index."""
    for t, (_, _, _, start) in zip(tensors.values(), index, strict=True):
        if n := t.numel() * t.element_size():
            octets[start : start + n].view(t.dtype).view(t.shape).copy_(t.detach())


def views(octets: Tensor, index: Sequence[Any], start: int) -> dict[str, Tensor]:
    """The tensors of an index in bytes that begin at offset `start` of its memory."""
    out = {}
    for name, dtype, shape, at in index:
        kind = wire.BY_NAME[dtype]
        n = math.prod(shape) * kind.itemsize
        out[name] = octets[at - start : at - start + n].view(kind).view(shape) if n else torch.empty(shape, dtype=kind)
    return out


@dataclass(eq=False)
class Slot:
    """A part of a buffer that holds the values of one job."""

    buffer: SharedBuffer
    start: int
    size: int

    def put(self, value: Any, at: int) -> tuple[Any, list[Any], int] | None:
        """Write a value's tensors from offset `at`: its JSON part, their index and their end; None if too large."""
        body, tensors = wire.flatten(value)
        placed = self.buffer.put(tensors, at, self.start + self.size)
        return None if placed is None else (body, *placed)


# ---------------------------------------------------------------- how much
def slot_bytes(model_bytes: int) -> int:
    """Size of a slot."""
    return -(-(MODELS_PER_SLOT * model_bytes + (1 << 20)) // ALIGNMENT) * ALIGNMENT


def written_bytes(model_bytes: int, client_bytes: int) -> int:
    """Bytes of a worker's slots that are ever written, if a client's message, memory and reply are `client_bytes`."""
    return SLOTS * min(slot_bytes(model_bytes), clients_per_job(model_bytes) * client_bytes)


def common_bytes(model_bytes: int) -> int:
    """Size of the shared memory for messages to several clients."""
    return MODELS_PER_SLOT * model_bytes + (8 << 20)


def clients_per_job(model_bytes: int) -> int:
    """Most clients of a job that fit into a slot, at four models each."""
    return min(MOST_CLIENTS, slot_bytes(model_bytes) // (4 * max(model_bytes, 1)))
