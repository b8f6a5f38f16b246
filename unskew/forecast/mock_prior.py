"""A prior that learns nothing and paints nothing: what a step that imagines is handed while a plan is driven.

Latents, embeddings and images are made up in the shapes of the real ones, and it is noted how many of what were asked
for; the real prior is tried on a few, for seconds and bytes.
"""

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from unskew.keys import Key
from unskew.local.imagery import TaskImagery

KEY = Key(0) / "rehearsal"
PROBES = 16
"""Latents that go through the prior for each embedding whose predictions are compared."""


@dataclass(frozen=True)
class Asked:
    """What a prior was asked to do: equal ones cost the same for equally many images, latents or embeddings.

    Attributes:
        source: The prior.
        what: Named after the methods of `Imagery`.
        steps, batch_size: Of an inversion; `steps` of sampling too, None is what suits the prior.
        guided: Whether sampling asks the prior twice in each step.
    """

    source: str
    what: Literal["encode", "decode", "invert", "sample", "distances"]
    steps: int | None = None
    batch_size: int = 1
    guided: bool = True


Note = Callable[[Asked, int, Hashable], None]
"""Is told what was asked, for how many, and what images are equal to: some executors make equal ones once."""


class MockPrior:
    """An `Imagery` whose results are made up.

    Args:
        real: Knows the shapes.
        shape: Of an input.
        client: Whose it is; what it learns lies in a direction of its own.
        length: Of the way from where an embedding begins to where it ends, relative to the former's.
        note: Is told of everything that takes time.
    """

    def __init__(self, real: TaskImagery, shape: tuple[int, ...], client: int, length: float, note: Note) -> None:
        self._real, self._shape, self._client, self._length, self._note = real, shape, client, length, note
        self.width, self.latent_shape, self.changes = real.width, real.latent_shape, real.changes
        self._learned = 0

    def start(self) -> Tensor:
        """Where every embedding begins, (width,): the real place."""
        return self._real.start()

    def encode(self, x: Tensor) -> Tensor:
        """Normal numbers, as many as latents would have, (n, *latent_shape)."""
        self._note(Asked(self._real.source, "encode"), len(x), None)
        made = torch.randn(len(x), *self.latent_shape, generator=(KEY / "latents").generator())
        return made.to(x.device)

    def decode(self, latents: Tensor) -> Tensor:
        """Zeros in the shape of inputs, (n, ...)."""
        self._note(Asked(self._real.source, "decode"), len(latents), None)
        return torch.zeros(len(latents), *self._shape)

    def invert(
        self, clusters: Sequence[Tensor], key: Key, *, steps: int, batch_size: int, lr: float | None = None
    ) -> Tensor:
        """Places around the start, every cluster of every client another, (K, width)."""
        self._note(Asked(self._real.source, "invert", steps, batch_size), len(clusters), None)
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
        self._note(Asked(self._real.source, "sample", steps, guided=guidance != 1), len(embeddings) * count, same)
        return torch.zeros(len(embeddings), count, *self._shape)

    def distances(self, embeddings: Tensor, key: Key) -> Tensor:
        """Those of the embeddings themselves, (K, K)."""
        self._note(Asked(self._real.source, "distances"), len(embeddings), None)
        v = embeddings.detach().cpu().double()
        return torch.stack([(v - one).square().sum(1).sqrt() for one in v]).float()


# ---------------------------------------------------------------- what the real one takes
def trial(asked: Asked, real: TaskImagery, x: Tensor) -> Callable[[int], Any]:
    """Does it for so many; of `asked.steps` the first, where there are steps.

    Args:
        asked: What to try.
        real: The prior.
        x: A few inputs, (n, ...), n >= 1.
    """
    key = KEY / "trial"
    if asked.what == "encode":
        return lambda n: real.encode(x[torch.arange(n) % len(x)])
    if asked.what == "decode":
        return lambda n: real.decode(torch.zeros(n, *real.latent_shape))
    if asked.what == "distances":
        return lambda n: real.distances(real.start().repeat(n, 1), key)
    if asked.what == "sample":
        return lambda n: _sampled(asked, real, n, 1)
    latent = torch.zeros(1, *real.latent_shape)
    return lambda n: real.invert([latent] * n, key, steps=1, batch_size=asked.batch_size)


def _sampled(asked: Asked, real: TaskImagery, n: int, steps: int | None) -> Tensor:
    # Not through the imagery, which keeps what it made.
    return real.prior.sample(real.start()[None], n, KEY / "trial", None if asked.guided else 1.0, steps)


def at_once(asked: Asked, real: TaskImagery) -> int:
    """For how many it is done together at most; more are done one lot after the other."""
    each = asked.batch_size if asked.what == "invert" else PROBES if asked.what == "distances" else 1
    return max(1, real.prior.at_once // each)


def seconds_of(asked: Asked, real: TaskImagery, x: Tensor, most: int, budget_s: float) -> tuple[float, float]:
    """(seconds for one, seconds for each more), tried on up to `most` as far as the budget allows."""
    one, more = affine(trial(asked, real, x), min(most, at_once(asked, real)), budget_s)
    steps: float = asked.steps or 1
    if asked.what == "sample" and asked.steps is None:
        # What suits the prior is its own affair: as many as one image takes longer.
        steps = max(1.0, _timed(lambda: _sampled(asked, real, 1, None)) / one)
    return one * steps, more * steps


def image_s(real: TaskImagery) -> float:
    """Seconds to decode one latent: what is more takes longer."""
    return _timed(lambda: real.decode(torch.zeros(1, *real.latent_shape)))


def working_bytes(asked: Asked, real: TaskImagery, x: Tensor, n: int) -> int:
    """Bytes of what layers put out while it is done for `n`, by the plan's rule for networks.

    Twice the sum of all layers' where gradients are wanted, else the most that two layers in turn put out.
    """
    found = outputs(lambda: trial(asked, real, x)(1))
    each = 2 * sum(found) if asked.what == "invert" else max((a + b for a, b in pairwise([0, *found])), default=0)
    return each * min(n, at_once(asked, real))


def outputs(forward: Callable[[], Any]) -> list[int]:
    """Bytes that each layer puts out, in the order in which they are called."""
    found: list[int] = []

    def note(layer: nn.Module, _inputs: Any, out: Any) -> None:
        first = out[0] if isinstance(out, tuple) else out  # recurrent layers give their state, too
        if not any(layer.children()) and isinstance(first, Tensor):
            found.append(first.nbytes)

    handle = register_module_forward_hook(note)
    try:
        forward()
    finally:
        handle.remove()
    return found


def affine(once: Callable[[int], Any], most: int, budget_s: float) -> tuple[float, float]:
    """(seconds for one, seconds for each more) of something done for `n` at once, n as large as the budget allows.

    Large parts cost more for each than small ones: what layers put out no longer fits the processor's cache.
    """
    once(1)  # wakes the library
    one = _timed(lambda: once(1))
    if one < budget_s:
        one = min(_timed(lambda: once(1)) for _ in range(3))
    n, many = 1, one
    while n < most and many * (more := min(4 * n, most)) / n <= budget_s:
        n, many = more, _timed(lambda n=more: once(n))  # type: ignore[misc]
    # One that could not be put beside others is taken to be no cheaper in company.
    return one, max(many - one, 0.0) / (n - 1) if n > 1 else one


def _timed(do: Callable[[], Any]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began
