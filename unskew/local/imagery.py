"""A prior at work on a client's inputs: standardised images go in, standardised images come out.

Inputs are what the task trains on, which a prior knows nothing of: it takes images in [0, 1] of its own size.  What
black and white have become in the inputs is known from where they were read (`Dataset.levels`); inputs that lie in
[0, 1] are taken as they are.
"""

import functools
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unskew import priors
from unskew.errors import DataError
from unskew.keys import Key
from unskew.priors import Inversion, Prior

Levels = tuple[tuple[float, float], ...]


def of(source: str, device: torch.device, shape: tuple[int, ...], levels: Levels | None) -> "TaskImagery":
    """The prior called `source` for inputs of `shape`.

    Raises:
        ConfigError, DataError: If it is not to be had, or inputs of that shape are no images.
    """
    prior = _loaded(source, str(device))
    return TaskImagery(prior, source, shape, levels, priors.how_fitted(shape, prior.image_shape))


# The weights stay as they are, so all clients of a process share them.
@functools.lru_cache(maxsize=4)
def _loaded(source: str, device: str) -> Prior:
    return priors.load(source, device)


@dataclass(frozen=True)
class _Wanted:
    """What images depend on, and nothing else.

    Attributes:
        embeddings: Bytes of float32 numbers, and how many one has.
        size: (C, H, W) of an image in the end.
    """

    source: str
    device: str
    embeddings: tuple[bytes, int]
    count: int
    key: Key
    guidance: float | None
    steps: int | None
    size: tuple[int, int, int]

    def make(self) -> Tensor:
        """Images in [0, 1] at the task's size, float32 (K x count, C, H, W), on the CPU."""
        data, width = self.embeddings
        table = torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(-1, width)
        prior = _loaded(self.source, self.device)
        images = prior.sample(table, self.count, self.key, self.guidance, self.steps)
        return priors.fitted(images.float().cpu().flatten(0, 1), self.size)


class _Images:
    """The images that were wanted last, so many bytes of them: clients of one process make the same ones once."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._kept: OrderedDict[_Wanted, Tensor] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __call__(self, wanted: _Wanted) -> Tensor:
        """Made, or as they were made before; not to be changed."""
        with self._lock:
            if wanted in self._kept:
                self._kept.move_to_end(wanted)
                return self._kept[wanted]
            made = wanted.make()
            self._kept[wanted] = made
            self._bytes += _size(made)
            while self._bytes > self.most_bytes:
                self._bytes -= _size(self._kept.popitem(last=False)[1])
            return made

    def cache_clear(self) -> None:
        """Keep nothing."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0


def _size(t: Tensor) -> int:
    return t.untyped_storage().nbytes()


MOST_KEPT = 256 << 20
"""Bytes of images that a process keeps for clients who want the same."""

_made = _Images(MOST_KEPT)


@dataclass(frozen=True, eq=False)
class TaskImagery:
    """What `Local.imagery` gives.

    Attributes:
        prior: The model itself.
        source: What it was called.
        shape: Of an input, (C, H, W).
        levels: What black and white have become in each channel.
        changes: What is done to images on the way in, in words.
    """

    prior: Prior
    source: str
    shape: tuple[int, ...]
    levels: Levels | None
    changes: str | None

    @property
    def width(self) -> int:
        """Numbers of an embedding."""
        return self.prior.width

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """Of a latent, (channels, height, width)."""
        return self.prior.latent_shape

    def start(self) -> Tensor:
        """Where every embedding begins, (width,), on the CPU."""
        return self.prior.start().detach().float().cpu()

    def check(self, x: Tensor) -> None:
        """Refuse inputs (n, C, H, W) in which it is not known what black and white are.

        Raises:
            DataError: If they are not from `levels` and do not lie in [0, 1].
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
        return priors.invert(self.prior, clusters, key, config=Inversion(steps, batch_size, lr)).embeddings.float()

    def sample(
        self, embeddings: Tensor, count: int, key: Key, guidance: float | None = None, steps: int | None = None
    ) -> Tensor:
        """`count` inputs for each embedding, (K, count, C, H, W), on the CPU."""
        table = embeddings.detach().float().cpu().contiguous()
        if table.ndim != 2 or table.shape[1] != self.width or len(table) == 0:
            raise DataError(f"embeddings must have shape (K, {self.width}), K >= 1, got {tuple(table.shape)}")
        data, device = (table.numpy().tobytes(), self.width), str(self.prior.device)
        wanted = _Wanted(self.source, device, data, count, key, guidance, steps, self._size)
        return self._inputs(_made(wanted)).reshape(len(embeddings), count, *self.shape)

    def distances(self, embeddings: Tensor, key: Key) -> Tensor:
        """How differently noise is predicted under two embeddings, (K, K)."""
        return priors.distances(self.prior, embeddings, key)

    @property
    def _size(self) -> tuple[int, int, int]:
        return self.shape[0], self.shape[1], self.shape[2]

    def _inputs(self, images: Tensor) -> Tensor:
        black, white = self._levels(None)
        return black + images * (white - black)

    def _levels(self, x: Tensor | None) -> tuple[Tensor, Tensor]:
        """Black and white, (C, 1, 1) each, where `x` is."""
        device = None if x is None else x.device
        if self.levels is not None:
            table = torch.tensor(self.levels, device=device)
            return table[:, 0, None, None], table[:, 1, None, None]
        if x is not None and len(x):
            low, high = (float(v) for v in torch.aminmax(x))
            if low < 0 or high > 1:
                raise DataError(
                    f"the inputs lie in [{low:.4g}, {high:.4g}] and it is not known what black and white are in them; "
                    "a prior needs images in [0, 1]: give uint8 images, or floating ones that are not standardised"
                )
        return torch.zeros(1, 1, 1, device=device), torch.ones(1, 1, 1, device=device)
