"""Preprocessing of raw inputs; stored with a trained model, so that it can be used on new data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unskew.data.text import FIRST_WORD, tokens
from unskew.errors import DataError


@dataclass(frozen=True)
class Inputs:
    """The way from raw inputs to tensors.

    Attributes:
        kind: "images" are uint8 and standardised by channel, "texts" become token ids, anything else stays as given.
        mean, std: Of each channel of the training images, in units of 255; a deviation of 0 makes the channel 0.
        vocabulary: Words of the training texts, in the order of their token ids.
    """

    kind: Literal["as given", "images", "texts"] = "as given"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    vocabulary: tuple[str, ...] = ()

    def prepare(self, x: Any) -> Tensor:
        """The tensor a network takes for a batch of raw inputs.

        Args:
            x: Images (N, H, W) or (N, H, W, channels) with whole values from 0 to 255; texts; or an array of numbers.

        Raises:
            DataError: If they are no such inputs.
        """
        if self.kind == "texts":
            return self._texts(x)
        values = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
        if values.dtype.kind not in "fiu" or values.ndim < 2:
            raise DataError(f"inputs must be a batch of numbers, got {values.dtype} of shape {values.shape}")
        if self.kind == "images":
            return self._images(values)
        return torch.from_numpy(np.ascontiguousarray(values, np.float32 if values.dtype.kind == "f" else np.int64))

    def _images(self, x: npt.NDArray[Any]) -> Tensor:
        channels = len(self.mean)
        batch = x[..., None] if x.ndim == 3 else x
        if batch.ndim != 4 or batch.shape[3] != channels:
            shape = "(N, H, W)" if channels == 1 else f"(N, H, W, {channels})"
            raise DataError(f"inputs must be images of shape {shape}, as those that were trained on, got {x.shape}")
        if batch.size and not (batch.min() >= 0 and batch.max() <= 255 and bool((batch == batch.round()).all())):
            raise DataError("inputs must be images with whole values from 0 to 255, as those that were trained on")
        levels = batch.astype(np.uint8)
        scaled = torch.empty(len(levels), channels, *levels.shape[1:3])
        for c, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            scaled[:, c] = torch.from_numpy(standardised(mean, std)[levels[..., c]])
        return scaled

    def _texts(self, x: Sequence[str]) -> Tensor:
        if isinstance(x, str) or not all(isinstance(text, str) for text in x):
            raise DataError(f"inputs must be a list of texts, got {type(x).__name__}")
        return tokens(x, {word: i for i, word in enumerate(self.vocabulary, start=FIRST_WORD)})


def standardised(mean: float, std: float) -> npt.NDArray[np.float32]:
    """Standardised value of each of the 256 levels of a channel; a constant channel is 0 throughout."""
    if std == 0.0:
        return np.zeros(256, np.float32)
    return np.asarray((np.arange(256) / 255 - mean) / std, np.float32)
