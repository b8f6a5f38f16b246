"""Tensors of several clients side by side: filled, read back, and sent between host and device."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unskew.local.optim import views


def by_name(rows: Tensor, names: Sequence[str], shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """The columns of each tensor, (clients, *shape)."""
    return dict(zip(names, views(rows, [shapes[n] for n in names]), strict=True))


def fill(stack: Tensor, tensors: Sequence[Tensor]) -> None:
    """Fill the first entries of a stack from one tensor each; a shared tensor is sent once."""
    into = stack[: len(tensors)]
    if all(t is tensors[0] for t in tensors):
        into.copy_(tensors[0])
    else:
        into.copy_(torch.stack(list(tensors)))


def to_table(table: Tensor, host: Tensor) -> None:
    """Copy from (clients, steps, ...) on the CPU to (steps, clients, ...) on the table's device."""
    table.copy_(to_device(table.device, host).transpose(0, 1))


def to_device(device: torch.device, host: Tensor) -> Tensor:
    """A copy of a CPU tensor on a device, without waiting if possible."""
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def to_host(vectors: Sequence[Tensor]) -> list[list[float]]:
    """The numbers of several vectors, in one transfer."""
    numbers: list[float] = torch.cat(list(vectors)).tolist()
    ends = list(itertools.accumulate(len(v) for v in vectors))
    return [numbers[end - len(v) : end] for end, v in zip(ends, vectors, strict=True)]


def copies(stack: Tensor) -> tuple[Tensor, ...]:
    """A copy of each entry of a stack, in memory of its own."""
    parts: Any = torch.unbind_copy  # its stub says that it returns nothing
    out: tuple[Tensor, ...] = parts(stack)
    return out


@functools.lru_cache(maxsize=1024)
def slots(sizes: tuple[int, ...], batch: int) -> tuple[Tensor, Tensor]:
    """Positions of the examples of batches of these sizes in rows of `batch`, and the weight of each in its mean."""
    places = torch.cat([torch.arange(n) + t * batch for t, n in enumerate(sizes)])
    counts = torch.tensor(sizes)
    return places, (1.0 / counts.double()).repeat_interleave(counts)
