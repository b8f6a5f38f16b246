"""Batches: the examples of each step of a client's local training, and random changes to images.

Validation and test data are never changed.  A change takes a batch (B, C, H, W) and a keyed generator, and returns a
new batch of the same shape; each example has its own draw.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from unskew.errors import ConfigError, DataError
from unskew.keys import Key
from unskew.references import makes
from unskew.registry import Registry


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


# ---------------------------------------------------------------- random changes to images
Augment = Callable[[Tensor, Generator], Tensor]
Transform = Callable[[Tensor], Tensor]
"""From one example's input to another of its shape, drawing from any global generator."""

PAD = 4
"""Pixels of border that `crop` adds on each side, as is usual for CIFAR."""


def unchanged(x: Tensor, generator: Generator) -> Tensor:
    """The batch itself; nothing is drawn."""
    return x


def crop(x: Tensor, generator: Generator) -> Tensor:
    """A window of the original size from each image after a border of `PAD` zeros; zero is the training mean.

    Raises:
        DataError: If `x` is not a batch of images.
    """
    b, c, h, w = _image_shape(x, "crop")
    padded = F.pad(x, (PAD, PAD, PAD, PAD))
    corner = torch.randint(2 * PAD + 1, (2, b, 1), generator=generator, device=generator.device).to(x.device)
    rows = corner[0] + torch.arange(h, device=x.device)
    columns = corner[1] + torch.arange(w, device=x.device)
    pixel = (rows[:, :, None] * (w + 2 * PAD) + columns[:, None, :]).reshape(b, 1, h * w)
    return padded.flatten(2).gather(2, pixel.expand(b, c, h * w)).reshape(b, c, h, w)


def flip(x: Tensor, generator: Generator) -> Tensor:
    """Each image mirrored left to right with probability one half.

    Raises:
        DataError: If `x` is not a batch of images.
    """
    b, *_ = _image_shape(x, "flip")
    mirrored = torch.rand(b, 1, 1, 1, generator=generator, device=generator.device).to(x.device) < 0.5
    return torch.where(mirrored, x.flip(3), x)


def crop_and_flip(x: Tensor, generator: Generator) -> Tensor:
    """`crop`, then `flip`."""
    return flip(crop(x, generator), generator)


_OURS: dict[str, Augment] = {"none": unchanged, "crop": crop, "flip": flip, "crop+flip": crop_and_flip}

AUGMENTS = Registry(
    "augmentation",
    "unskew.augmentations",
    {name: f"{__name__}:{of.__name__}" for name, of in _OURS.items()},
    "a torch.nn.Module, or a function annotated to return a Tensor, from one example's input to another of its shape",
    lambda one: isinstance(one, nn.Module) or makes(lambda kind: kind is Tensor, one),
)


def augmentation(given: str | Transform) -> Augment | None:
    """The augmentation of that name, or one that applies a transform to each example; None for none.

    Raises:
        ConfigError: If there is none of that name.
    """
    if isinstance(given, str) and given in _OURS:
        return None if given == "none" else _OURS[given]
    return _each(AUGMENTS.resolve(given) if isinstance(given, str) else given)


def _each(transform: Transform) -> Augment:
    def changed(x: Tensor, generator: Generator) -> Tensor:
        number = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        try:
            with Key(number).ambient(x.device):
                new = [torch.as_tensor(transform(one)) for one in x.clone()]
        except Exception as error:
            raise ConfigError(f"transform failed on a training example: {type(error).__name__}: {error}") from error
        if odd := [tuple(one.shape) for one in new if one.shape != x.shape[1:]]:
            raise ConfigError(f"transform must keep the shape {tuple(x.shape[1:])} of an input, got {odd[0]}")
        return torch.stack(new).to(x)

    return changed


def _image_shape(x: Tensor, what: str) -> tuple[int, int, int, int]:
    if x.ndim != 4:
        raise DataError(f"{what} needs images (B, C, H, W), got shape {tuple(x.shape)}; set the augmentation to none")
    b, c, h, w = x.shape
    return b, c, h, w
