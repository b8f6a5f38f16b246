"""A mock prior, which neither learns nor generates, for local code that uses a prior in a dry run.

Latents, embeddings and images are made up in the shapes of the real ones, and every request is noted; the real prior is
tried on a few of them, for seconds and bytes (prior_trial.py).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unskew.keys import Key
from unskew.local.imagery import TaskImagery

KEY = Key(0) / "rehearsal"


@dataclass(frozen=True)
class PriorRequest:
    """A request to a prior: equal ones cost the same for equally many images, latents or embeddings.

    Attributes:
        source: Name of the prior.
        what: Name of the method of `Imagery`.
        steps: Steps of an inversion or of sampling; None leaves them to the prior.
        batch_size: Latents in a batch of an inversion.
        guided: True if sampling asks the prior twice in each step.
    """

    source: str
    what: Literal["encode", "decode", "invert", "sample", "distances"]
    steps: int | None = None
    batch_size: int = 1
    guided: bool = True


Note = Callable[[PriorRequest, int, Hashable], None]
"""Called with a request, for how many, and a value equal for equal images: some executors make equal ones once."""


class MockPrior:
    """An `Imagery` whose results are made up.

    Args:
        real: The real prior, which knows the shapes.
        shape: Shape of an input.
        client: Client that asks; its embeddings move in a direction of their own.
        length: Distance that an embedding moves, relative to the size of its start.
        note: Called with everything that takes time.
    """

    def __init__(self, real: TaskImagery, shape: tuple[int, ...], client: int, length: float, note: Note) -> None:
        self._real, self._shape, self._client, self._length, self._note = real, shape, client, length, note
        self.width, self.latent_shape, self.changes = real.width, real.latent_shape, real.changes
        self._learned = 0

    def start(self) -> Tensor:
        """Start of every embedding, (width,): the real one."""
        return self._real.start()

    def encode(self, x: Tensor) -> Tensor:
        """Normal numbers, as many as latents would have, (n, *latent_shape)."""
        self._note(PriorRequest(self._real.source, "encode"), len(x), None)
        latents = torch.randn(len(x), *self.latent_shape, generator=(KEY / "latents").generator())
        return latents.to(x.device)

    def decode(self, latents: Tensor) -> Tensor:
        """Zeros in the shape of inputs, (n, ...)."""
        self._note(PriorRequest(self._real.source, "decode"), len(latents), None)
        return torch.zeros(len(latents), *self._shape)

    def invert(
        self, clusters: Sequence[Tensor], key: Key, *, steps: int, batch_size: int, lr: float | None = None
    ) -> Tensor:
        """Points around the start, another for every cluster of every client, (K, width)."""
        self._note(PriorRequest(self._real.source, "invert", steps, batch_size), len(clusters), None)
        start = self.start()
        draw = (KEY / "embeddings" / max(self._client, 0) / self._learned).generator()
        self._learned += 1
        moved = torch.randn(len(clusters), self.width, generator=draw)
        return start + self._length * start.square().mean().sqrt().clamp(min=1e-3) * moved

    def sample(
        self, embeddings: Tensor, count: int, key: Key, guidance: float | None = None, steps: int | None = None
    ) -> Tensor:
        """Zeros in the shape of inputs, (K, count, ...)."""
        table = embeddings.detach().float().cpu().contiguous()
        same = (self._real.source, table.numpy().tobytes(), count, key, guidance, steps)
        self._note(
            PriorRequest(self._real.source, "sample", steps, guided=guidance != 1), len(embeddings) * count, same
        )
        return torch.zeros(len(embeddings), count, *self._shape)

    def distances(self, embeddings: Tensor, key: Key) -> Tensor:
        """Distances of the embeddings themselves, (K, K)."""
        self._note(PriorRequest(self._real.source, "distances"), len(embeddings), None)
        v = embeddings.detach().cpu().double()
        return torch.stack([(v - other).square().sum(1).sqrt() for other in v]).float()
