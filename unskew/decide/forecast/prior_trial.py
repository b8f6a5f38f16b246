"""A real prior tried on a few inputs, for the seconds and bytes that its work will take."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from unskew.decide.forecast.measure import affine, outputs, timed
from unskew.decide.forecast.mock_prior import KEY, PriorRequest
from unskew.local.imagery import TaskImagery

PROBES = 16
"""Latents that go through the prior for each embedding whose predictions are compared."""


def trial(asked: PriorRequest, real: TaskImagery, x: Tensor) -> Callable[[int], Any]:
    """Return a function that answers the request for a given number of inputs, with one step if there are steps.

    Args:
        asked: The request to try.
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


def _sampled(asked: PriorRequest, real: TaskImagery, n: int, steps: int | None) -> Tensor:
    # Not through the imagery, which keeps what it made.
    return real.prior.sample(real.start()[None], n, KEY / "trial", None if asked.guided else 1.0, steps)


def at_once(asked: PriorRequest, real: TaskImagery) -> int:
    """Most inputs, embeddings or clusters that are worked on together; more are done one lot after the other."""
    each = asked.batch_size if asked.what == "invert" else PROBES if asked.what == "distances" else 1
    return max(1, real.prior.at_once // each)


def seconds_of(asked: PriorRequest, real: TaskImagery, x: Tensor, most: int, budget_s: float) -> tuple[float, float]:
    """(seconds for one, seconds for each more), tried on up to `most` as far as the budget allows."""
    one, more = affine(trial(asked, real, x), min(most, at_once(asked, real)), budget_s)
    steps: float = asked.steps or 1
    if asked.what == "sample" and asked.steps is None:
        # The prior chooses its number of steps: so many times longer than one step does one image take.
        steps = max(1.0, timed(lambda: _sampled(asked, real, 1, None)) / one)
    return one * steps, more * steps


def seconds_per_image(real: TaskImagery) -> float:
    """Seconds to decode one latent: anything more takes longer."""
    return timed(lambda: real.decode(torch.zeros(1, *real.latent_shape)))


def working_bytes(asked: PriorRequest, real: TaskImagery, x: Tensor, n: int) -> int:
    """Bytes of layer outputs while a request for `n` is answered.

    Twice the sum over all layers where gradients are wanted, else the most that two layers in turn put out.
    """
    sizes = outputs(lambda: trial(asked, real, x)(1))
    each = 2 * sum(sizes) if asked.what == "invert" else max((a + b for a, b in pairwise([0, *sizes])), default=0)
    return each * min(n, at_once(asked, real))
