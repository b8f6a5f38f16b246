"""FedDistill and FedDistill+: the divergence, the teacher, and FedDW's variant of it."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import kl_div

from unskew.algorithms.feddistill import ClassOutputs, Distil, FedDistill, Reward, Teacher, taught
from unskew.algorithms.parts import mean_by_class
from unskew.keys import Key
from unskew.protocol import Batch, SgdConfig

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.5)


def batch(logits: Tensor, y: Any, mask: Tensor | None = None) -> Batch:
    n = len(logits)
    mask = torch.ones(n, dtype=logits.dtype) if mask is None else mask
    return Batch(logits, torch.tensor(y), mask, logits, logits, torch.zeros(n), lambda p: (logits, logits))


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=Key(seed).generator(), dtype=torch.float64)


def known(*flags: float) -> Tensor:
    return torch.tensor(flags, dtype=torch.float64)


# ---------------------------------------------------------------- eq. 1
def test_the_divergence_by_hand() -> None:
    """Teacher (3/4, 1/4), student (1/2, 1/2): .75 ln 1.5 + .25 ln .5 = .13081; the second example's row is unknown."""
    z = torch.tensor([[math.log(3.0), 0.0], [5.0, -5.0]], dtype=torch.float64)
    value = Distil(2.0)({}, {"z": z, "known": known(1, 0)}, batch(torch.zeros(2, 2, dtype=torch.float64), [0, 1]))
    assert value.item() == pytest.approx(2.0 * 0.13081 / 2, abs=1e-4)


def test_the_published_variant_is_a_reward() -> None:
    """PyTorch's kl_div given probabilities where it wants their logarithms: the same gradient, -Z_y / B in them."""
    logits, z, y = normal(5, 3).requires_grad_(), normal(3, 3, seed=2).softmax(1), [0, 1, 2, 2, 1]
    (ours,) = torch.autograd.grad(Reward(1.0)({}, {"z": z}, batch(logits, y)), logits)
    (theirs,) = torch.autograd.grad(kl_div(logits.softmax(1), z[y], reduction="batchmean"), logits)
    torch.testing.assert_close(ours, theirs)


# ---------------------------------------------------------------- eq. 2
def test_the_mean_is_over_those_who_hold_the_class() -> None:
    """Class 0: client 0 says 1 (3 examples), client 1 says 5 (1): mean 3, by examples 2.  Class 1: client 1 alone."""
    means = [torch.tensor([[1.0], [0.0]]), torch.tensor([[5.0], [7.0]])]
    counts = [torch.tensor([3, 0]), torch.tensor([1, 2])]
    alike, held = mean_by_class(means, counts, "clients")
    assert (alike.tolist(), held.tolist()) == ([[3.0], [7.0]], [True, True])
    assert mean_by_class(means, counts, "examples")[0].tolist() == [[2.0], [7.0]]


def test_a_class_nobody_reports_keeps_its_row_and_stays_unknown_if_it_was() -> None:
    old = Teacher(torch.tensor([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [0.0, 0.0, 0.0]]), torch.tensor([True, True, False]))
    said = ClassOutputs(torch.tensor([[4.0, 4.0, 4.0], [0.0] * 3, [0.0] * 3]), torch.tensor([2, 0, 0]))
    new = taught(old, [said], "clients")
    assert new.z.tolist() == [[4.0] * 3, [2.0] * 3, [0.0] * 3]
    assert new.known.tolist() == [True, True, False]


def test_what_a_client_says_are_its_trained_models_mean_logits(classes: Any) -> None:
    """In evaluation mode, with the model that it keeps."""
    world = classes(n=[5, 8], norm=True)
    play = world.play(FedDistill(local=SMALL), rounds=1)
    trainer = play.sim.executor.trainer
    means, counts = [], []
    for c in (0, 1):
        rows = world.device_data.train[c]
        _, logits = trainer.refer(world.device_data.x[rows], play.own(c))
        y = world.device_data.y[rows]
        counts.append(torch.bincount(y, minlength=3))
        means.append(torch.stack([logits[y == k].sum(0) / max(int((y == k).sum()), 1) for k in range(3)]))
    expected, held = mean_by_class(means, counts, "clients")
    torch.testing.assert_close(play.states[1].z, expected, rtol=0, atol=1e-12)
    assert torch.equal(play.states[1].known, held)
