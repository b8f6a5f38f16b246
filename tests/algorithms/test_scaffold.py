"""SCAFFOLD: what the control variates are, that they add up, and that nothing upsets the sum."""

from typing import Any

import pytest

from unskew.algorithms.fednova import responses
from unskew.algorithms.scaffold import SCAFFOLD
from unskew.protocol import SgdConfig


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
