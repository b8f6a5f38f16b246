"""Batches: the examples of each step of a client's local training."""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from unskew.errors import ConfigError, DataError
from unskew.keys import Key


@dataclass(frozen=True, eq=False)
class Batches:
    """All steps of one local training, in compact form.

    Attributes:
        order: Positions 0 .. n - 1 in the client's training data, the steps end to end, int64 (sum of sizes,).
        sizes: Batch size of each step.
        steps_per_epoch: Steps before the data are shuffled again; the last epoch may be shorter.
    """

    order: Tensor
    sizes: tuple[int, ...]
    steps_per_epoch: int

    def epochs(self) -> Iterator[tuple[Tensor, tuple[int, ...]]]:
        """Each epoch's part of `order` (a view) and its sizes: gather once, then split by the sizes."""
        start = 0
        for step in range(0, len(self.sizes), self.steps_per_epoch):
            sizes = self.sizes[step : step + self.steps_per_epoch]
            yield self.order[start : start + sum(sizes)], sizes
            start += sum(sizes)

    def steps(self) -> tuple[Tensor, ...]:
        """The positions of each step, as views."""
        return torch.split(self.order, list(self.sizes))


def plan(
    n: int,
    *,
    batch_size: int | None,
    epochs: float | None = None,
    steps: int | None = None,
    key: Key,
    min_batch: int = 1,
    drop_last: bool = False,
) -> Batches:
    """The batches of `epochs` passes over n examples, or of `steps` steps; part of a pass has its first batches.

    Each epoch is shuffled under its own key.  A last batch below `min_batch` (2 with BatchNorm) joins the one before
    it, so a batch may exceed `batch_size` by `min_batch - 1`.  With `drop_last` a last, incomplete batch is left out
    unless it is the only one.  Without a `batch_size` a step takes all examples, in their original order.

    Raises:
        ConfigError: If epochs or steps are below 1, or batch_size < min_batch.
        DataError: If n is 0 or below `min_batch`.
    """
    layout = _layout(n, batch_size, min_batch, drop_last)
    count = num_steps(n, batch_size=batch_size, epochs=epochs, steps=steps, min_batch=min_batch, drop_last=drop_last)
    begun = -(-count // len(layout))
    sizes = (layout * begun)[:count]
    if batch_size is None:
        order = torch.arange(n).repeat(begun)
    else:
        kept = sum(layout)
        shuffles = (torch.randperm(n, generator=(key / "epoch" / e).generator())[:kept] for e in range(begun))
        order = torch.cat(list(shuffles))[: sum(sizes)]
    return Batches(order, sizes, len(layout))


def num_steps(
    n: int,
    *,
    batch_size: int | None,
    epochs: float | None = None,
    steps: int | None = None,
    min_batch: int = 1,
    drop_last: bool = False,
) -> int:
    """Number of steps in `plan` with the same arguments; it raises the same errors."""
    layout = _layout(n, batch_size, min_batch, drop_last)
    if steps is None:
        steps = math.ceil(round((epochs or 0) * len(layout), 6))  # .1 * 30 is a little above 3
    if steps < 1:
        raise ConfigError(f"epochs and steps must be > 0, got {steps if epochs is None else epochs}")
    return steps


@functools.cache  # asked for thousands of times with the same few numbers
def _layout(n: int, batch_size: int | None, min_batch: int, drop_last: bool) -> tuple[int, ...]:
    """Batch sizes of one epoch."""
    if batch_size is not None and batch_size < min_batch:
        raise ConfigError(f"batch_size must be >= {min_batch}, the smallest batch the model can take, got {batch_size}")
    if n < min_batch:
        raise DataError(f"a client has {n} training examples, a batch needs at least {min_batch}; raise min_samples")
    if batch_size is None:
        return (n,)
    full, rest = divmod(n, batch_size)
    if rest == 0:
        return (batch_size,) * full
    if full and drop_last:
        return (batch_size,) * full
    if full and rest < min_batch:
        return (*(batch_size,) * (full - 1), batch_size + rest)
    return (*(batch_size,) * full, rest)
