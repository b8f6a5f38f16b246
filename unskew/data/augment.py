"""Random changes to a batch of images while training; never applied to validation or test data.

A function takes a batch (B, C, H, W) and a keyed generator, and returns a new batch of the same shape; each example has
its own draw.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from unskew.errors import ConfigError, DataError
from unskew.keys import Key
from unskew.references import makes
from unskew.registry import Registry

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
