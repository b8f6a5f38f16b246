"""SCAFFOLD: what the control variates are, that they add up, and that nothing upsets the sum."""

from typing import Any

import pytest
import torch

from unskew.algorithms.fednova import responses
from unskew.algorithms.scaffold import SCAFFOLD, Correction
from unskew.protocol import Exponential, SgdConfig
from unskew.reduction import weighted_mean

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3)


def test_the_correction_adds_its_vector_to_the_gradient() -> None:
    """d/dy <y, (1, -2)> = (1, -2); parameters without a variate are left alone."""
    y, other = torch.ones(2, requires_grad=True), torch.ones(1, requires_grad=True)
    Correction()({"y": y, "other": other}, {"correction": {"y": torch.tensor([1.0, -2.0])}}).backward()
    assert y.grad is not None
    assert y.grad.tolist() == [1.0, -2.0]
    assert other.grad is None


def test_two_rounds_by_hand(springs: Any, value: Any) -> None:
    """F_k = (w - m_k)^2 / 2 with m = 4, 0, of 3 and 1 examples; lr .5, 2 steps, from 0; means are uniform.

    Round 1, no correction: y = 4 * .75 = 3 and 0, x = 1.5.  c_0 = (0 - 3) / (2 * .5) = -3, c_1 = 0, c = -1.5.
    Round 2, client 0: correction c - c_0 = 1.5; gradient -2.5 + 1.5 = -1, y = 2; -2 + 1.5 = -.5, y = 2.25.
             client 1: correction -1.5; 1.5 - 1.5 = 0 and again: y = 1.5.  x = 1.875.
             c_0 = -1.5 + (1.5 - 2.25) / 1 = -2.25 = mean of -2.5, -2; c_1 = 1.5 + 0 = mean of 1.5, 1.5; c = -.375.
    """
    world = springs(m=[4.0, 0.0], n=[3, 1])
    play = world.play(SCAFFOLD(local=SgdConfig(lr=0.5, local_steps=2, batch_size=None)), 2)
    assert [value(p) for p in play.params] == pytest.approx([0.0, 1.5, 1.875])
    assert [value(s.c) for s in play.states] == pytest.approx([0.0, -1.5, -0.375])
    assert [value(play.sim.memory.get(c).c) for c in (0, 1)] == pytest.approx([-2.25, 1.5])


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_option_two_keeps_the_mean_of_the_raw_gradients(
    momentum: float, decay: float, springs: Any, value: Any
) -> None:
    """I-14, replayed step by step: under momentum the mean has weights a_j, under decay the gradient contains it."""
    lr, steps, m, slope = 0.1, 4, [3.0, -1.0, 0.5], [1.0, 2.0, 0.5]
    local = SgdConfig(lr=lr, local_steps=steps, batch_size=None, momentum=momentum, weight_decay=decay)
    play = springs(m=m, a=slope).play(SCAFFOLD(local=local), rounds=4)
    variates = [0.0] * 3
    a = responses(steps, momentum)
    for t in range(4):
        x, c = value(play.params[t]), value(play.states[t].c)
        for i in range(3):
            y, velocity, raw = x, 0.0, []
            for _ in range(steps):
                raw.append(slope[i] * (y - m[i]) + decay * y)
                velocity = momentum * velocity + raw[-1] - variates[i] + c
                y -= lr * velocity
            variates[i] = sum(w * g for w, g in zip(a, raw, strict=True)) / sum(a)
    assert [value(play.sim.memory.get(i).c) for i in range(3)] == pytest.approx(variates, abs=1e-9)


def test_the_divisor_is_the_learning_rate_in_force(springs: Any, value: Any) -> None:
    """lr .5, then .25; one client, one step a round: c_1 is the gradient at x each time.  x = 0, 2: -4, then -2."""
    local = SgdConfig(lr=0.5, local_steps=1, batch_size=None, lr_schedule=Exponential(0.5))
    play = springs(m=[4.0]).play(SCAFFOLD(local=local), 2)
    assert [value(s.c) for s in play.states] == pytest.approx([0.0, -4.0, -2.0])
    assert [value(p) for p in play.params] == pytest.approx([0.0, 2.0, 2.5])


def test_the_server_learning_rate_scales_parameters_not_buffers(classes: Any, equal: Any) -> None:
    """x + .5 (mean(y) - x) for parameters; the uniform mean for BatchNorm's statistics."""
    world = classes(norm=True)
    half, full = (world.play(SCAFFOLD(server_lr=lr, local=SMALL), 1).params for lr in (0.5, 1.0))
    trainable, buffers = world.task.layout.trainable, world.task.layout.buffers
    middle = weighted_mean([full[0], full[1]], [0.5, 0.5])
    equal({n: half[1][n] for n in trainable}, {n: middle[n] for n in trainable})
    equal({n: half[1][n] for n in buffers}, {n: full[1][n] for n in buffers})
