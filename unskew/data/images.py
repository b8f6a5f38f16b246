"""Images that stay bytes in memory, a quarter of their size as floats, and become floats where they are gathered."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

NUMBERS = 1 << 22
"""Numbers that are converted at once: each takes four bytes more while it is."""


@dataclass(frozen=True, eq=False)
class ByteImages:
    """Images of whole numbers 0..255 which read as standardised images: float32, (N, C, H, W).

    Rows of it are the same to the last bit as rows of the tensor that all of it would make.

    Attributes:
        levels: The images, uint8 (N, H, W, C).
        table: Standardised value of each level of each channel, float32 (C, 256), ascending.
    """

    levels: Tensor
    table: Tensor

    @property
    def shape(self) -> torch.Size:
        """Shape as floats, (N, C, H, W)."""
        n, height, width, channels = self.levels.shape
        return torch.Size((n, channels, height, width))

    @property
    def dtype(self) -> torch.dtype:
        """Type of the rows."""
        return self.table.dtype

    @property
    def device(self) -> torch.device:
        """Device of images and rows."""
        return self.levels.device

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return self.levels.nbytes + self.table.nbytes

    def dim(self) -> int:
        """Number of dimensions."""
        return self.levels.dim()

    def element_size(self) -> int:
        """Bytes of a number of the rows."""
        return self.table.element_size()

    def __len__(self) -> int:
        return len(self.levels)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        return self._floats(self.levels[rows])

    def index_select(self, dim: int, rows: Tensor) -> Tensor:
        """Rows by their numbers, as of a tensor; `dim` is 0."""
        return self._floats(self.levels.index_select(dim, rows))

    def to(self, device: torch.device) -> "ByteImages":
        """The same on a device."""
        return ByteImages(self.levels.to(device), self.table.to(device))

    def extremes(self) -> tuple[float, float]:
        """Smallest and largest value."""
        ends = []
        for c, values in enumerate(self.table.tolist()):
            low, high = torch.aminmax(self.levels[..., c])
            ends.append((values[int(low)], values[int(high)]))
        return min(low for low, _ in ends), max(high for _, high in ends)

    def _floats(self, levels: Tensor) -> Tensor:
        images = levels.flatten(0, -4)
        n, height, width, channels = images.shape
        floats = torch.empty(n, channels, height, width, dtype=self.dtype, device=self.device)
        at_once = max(1, NUMBERS // max(1, height * width * channels))
        for start in range(0, n, at_once):
            places = images[start : start + at_once].movedim(-1, -3).to(torch.int32) + self._starts
            values = self.table.view(-1).index_select(0, places.flatten())
            floats[start : start + at_once] = values.view(places.shape)
        return floats.view(*levels.shape[:-3], channels, height, width)

    @cached_property
    def _starts(self) -> Tensor:
        """Positions where each channel's values begin in the table, (C, 1, 1)."""
        starts = torch.arange(0, self.table.numel(), self.table.shape[1], dtype=torch.int32, device=self.device)
        return starts[:, None, None]


def as_tensor(x: Tensor | ByteImages) -> Tensor:
    """All inputs as one tensor."""
    return x if isinstance(x, Tensor) else x[:]


def stored(x: Tensor | ByteImages) -> Tensor:
    """All inputs as they are held: of images that stay bytes their levels, uint8 (N, H, W, C)."""
    return x.levels if isinstance(x, ByteImages) else x


def extremes(x: Tensor | ByteImages) -> tuple[float, float]:
    """Smallest and largest value of inputs, of which there is at least one."""
    if isinstance(x, ByteImages):
        return x.extremes()
    low, high = torch.aminmax(x)
    return float(low), float(high)
