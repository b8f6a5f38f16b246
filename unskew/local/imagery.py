"""Applies a prior to a client's inputs: standardised images in, standardised images out.

A prior takes images in [0, 1] of its own size.  The values of black and white in the inputs are known from reading the
data (`Inputs.levels`); inputs in [0, 1] are used unchanged.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unskew import priors
from unskew.data.rows import ByteImages, extremes
from unskew.errors import DataError
from unskew.keys import Key
from unskew.priors import Prior

Levels = tuple[tuple[float, float], ...]


def of(source: str, device: torch.device, shape: tuple[int, ...], levels: Levels | None) -> "TaskImagery":
    """The prior called `source` for inputs of `shape`.

    Raises:
        ConfigError, DataError: If there is no such prior, or inputs of that shape are not images.
    """
    prior = _loaded(source, str(device))
    return TaskImagery(prior, source, shape, levels, priors.how_fitted(shape, prior.image_shape))


# The weights stay as they are, so all clients of a process share them.
@functools.lru_cache(maxsize=4)
def _loaded(source: str, device: str) -> Prior:
    return priors.load(source, device)


@functools.lru_cache(maxsize=2)
def _made(
    source: str,
    device: str,
    data: bytes,
    width: int,
    count: int,
    key: Key,
    guidance: float | None,
    steps: int | None,
    size: tuple[int, int, int],
) -> Tensor:
    """Images in [0, 1] of shape `size`, float32 (K x count, C, H, W), on the CPU, not to be changed.

    Clients of one process ask for the same ones, which are made once.  `data` are the bytes of K embeddings, float32.
    """
    table = torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(-1, width)
    images = _loaded(source, device).sample(table, count, key, guidance, steps)
    return priors.fitted(images.float().cpu().flatten(0, 1), size)


@dataclass(frozen=True, eq=False)
class TaskImagery:
    """A prior for the inputs of a task, returned by `Local.imagery`.

    Attributes:
        prior: The model itself.
        source: Name of the prior.
        shape: Shape of an input, (C, H, W).
        levels: Values of black and white in each channel; None if unknown.
        changes: What is done to images first, in words; None if nothing.
    """

    prior: Prior
    source: str
    shape: tuple[int, ...]
    levels: Levels | None
    changes: str | None

    @property
    def width(self) -> int:
        """Numbers in an embedding."""
        return self.prior.width

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """Shape of a latent, (channels, height, width)."""
        return self.prior.latent_shape

    def start(self) -> Tensor:
        """Start of every embedding, (width,), on the CPU."""
        return self.prior.start().detach().float().cpu()

    def check(self, x: Tensor | ByteImages) -> None:
        """Refuse inputs (n, C, H, W) with unknown values of black and white.

        Raises:
            DataError: If there are no `levels` and inputs are not in [0, 1].
        """
        self._levels(x)

    def encode(self, x: Tensor) -> Tensor:
        """Latents of inputs (n, C, H, W)."""
        black, white = self._levels(x)
        # Half a level of rounding is no reason to refuse an image.
        unit = (x.float() - black) / (white - black)
        return self.prior.encode(torch.where((unit > -1e-4) & (unit < 1 + 1e-4), unit.clamp(0, 1), unit))

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Inputs of latents, (n, C, H, W), on the CPU."""
        return self._inputs(priors.fitted(self.prior.decode(latents).float().cpu(), self._size))

    def invert(
        self, clusters: Sequence[Tensor], key: Key, *, steps: int, batch_size: int, lr: float | None = None
    ) -> Tensor:
        """The embedding of each cluster of latents, (K, width), on the CPU."""
        return priors.invert(self.prior, clusters, key, steps, batch_size, lr).float()

    def sample(
        self, embeddings: Tensor, count: int, key: Key, guidance: float | None = None, steps: int | None = None
    ) -> Tensor:
        """`count` inputs for each embedding, (K, count, C, H, W), on the CPU."""
        table = embeddings.detach().float().cpu().contiguous()
        if table.ndim != 2 or table.shape[1] != self.width or len(table) == 0:
            raise DataError(f"embeddings must have shape (K, {self.width}), K >= 1, got {tuple(table.shape)}")
        data, device = table.numpy().tobytes(), str(self.prior.device)
        images = _made(self.source, device, data, self.width, count, key, guidance, steps, self._size)
        return self._inputs(images).reshape(len(embeddings), count, *self.shape)

    def distances(self, embeddings: Tensor, key: Key) -> Tensor:
        """Difference between the noise predicted under two embeddings, (K, K)."""
        return priors.distances(self.prior, embeddings, key)

    @property
    def _size(self) -> tuple[int, int, int]:
        return self.shape[0], self.shape[1], self.shape[2]

    def _inputs(self, images: Tensor) -> Tensor:
        black, white = self._levels(None)
        return black + images * (white - black)

    def _levels(self, x: Tensor | ByteImages | None) -> tuple[Tensor, Tensor]:
        """Values of black and white, (C, 1, 1) each, on the device of `x`."""
        device = None if x is None else x.device
        if self.levels is not None:
            table = torch.tensor(self.levels, device=device)
            return table[:, 0, None, None], table[:, 1, None, None]
        if x is not None and len(x):
            low, high = extremes(x)
            if low < 0 or high > 1:
                raise DataError(
                    f"a prior needs images in [0, 1], and the inputs lie in [{low:.4g}, {high:.4g}]; give uint8 "
                    "images, or floating ones that are not standardised"
                )
        return torch.zeros(1, 1, 1, device=device), torch.ones(1, 1, 1, device=device)
