"""MOON: what is contrasted with what, and whose previous model that is."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from unskew.algorithms.moon import MOON, Contrast
from unskew.protocol import Batch, SgdConfig

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.5)


def batch(z: Tensor, mask: Tensor | None = None) -> Batch:
    """Features `z`; another model's features are what its tensor "z" says."""
    n = len(z)
    mask = torch.ones(n, dtype=z.dtype) if mask is None else mask
    zeros = torch.zeros(n, dtype=torch.int64)
    return Batch(z, zeros, mask, z, z, torch.zeros(n), lambda params: (params["z"], params["z"]))


def test_every_earlier_model_is_in_the_denominator() -> None:
    """Three at the same angle: log 3."""
    z = torch.tensor([[1.0, 0.0]])
    alike = {"z": torch.tensor([[0.0, 1.0]])}
    value = Contrast(1.0, 0.5)({}, {"received": alike, "past": (alike, alike)}, batch(z))
    assert value.item() == pytest.approx(math.log(3.0))


def test_extreme_similarities_stay_finite() -> None:
    """exp(1 / .001) overflows; the cross-entropy of the similarities does not."""
    z, g = torch.tensor([[1.0, 0.0]]), {"z": torch.tensor([[-1.0, 0.0]])}
    value = Contrast(1.0, 1e-3)({}, {"received": g, "past": ({"z": z},)}, batch(z))
    assert value.item() == pytest.approx(2000.0)


def test_a_client_remembers_its_own_last_models_through_absence(classes: Any, spy: Any) -> None:
    """Cohorts of two of four; buffers of two; who was absent keeps what it had."""
    world = classes()
    sim = world.simulator(MOON(mu=1.0, buffer=2, local=SMALL), clients_per_round=2)
    state = sim.start()
    trained: dict[int, list[Any]] = {c: [] for c in range(4)}
    for t in range(1, 7):
        with spy() as messages:
            state, trace = sim.round(state, t)
        cohort = sorted(x.src - 1 for x in trace.transfers if x.direction == "up")
        replies = [m for m in messages if hasattr(m, "n")]
        for c, reply in zip(cohort, replies, strict=True):
            trained[c].append(reply.params)
        for c in range(4):
            mine = sim.memory.get(c)
            kept = [] if mine is None else list(mine.models)
            assert len(kept) == min(2, len(trained[c]))
            assert all(
                a is b or all(torch.equal(a[n], b[n]) for n in a) for a, b in zip(kept, trained[c][-2:], strict=True)
            )
    assert max(map(len, trained.values())) > 2
