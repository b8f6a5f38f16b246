"""FedDC: what drift and mean gradient are, that the server's means hold whatever is lost, and its kin."""

from typing import Any

import pytest
import torch

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.feddc import DriftTerm, FedDC
from unskew.protocol import Exponential, SgdConfig
from unskew.tree import map_params

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3)


def test_the_term_pulls_to_the_model_without_the_drift() -> None:
    """d/dy 1/omega [alpha/2 (y - (w - h))^2 + (c - c_i) y] = (3 (2 - .5) + 1.5) / 2 = 3 with c - c_i = 1.5."""
    y, other = torch.tensor([2.0], requires_grad=True), torch.ones(1, requires_grad=True)
    aux = {
        "centre": {"y": torch.tensor([0.5])},
        "correction": {"y": torch.tensor([1.5])},
        "share": torch.tensor(0.5),
    }
    DriftTerm(3.0)({"y": y, "other": other}, aux).backward()
    assert y.grad is not None
    assert y.grad.tolist() == [3.0]
    assert other.grad is None


def test_two_rounds_by_hand(springs: Any, value: Any) -> None:
    """F_i = (w - m_i)^2 / 2 with m = 4, 0; alpha 1, lr .5, 2 steps, from 0.

    Round 1, h = c = 0.  Client 0: gradient -4 + 0, y = 2; -2 + 2 = 0, y = 2; h_0 = 2, c_0 = -2 / (2 * .5) = -2.
             Client 1 stays at 0.  H = 1, c = -1; w = 1 + 1 = 2.
    Round 2. Client 0: (y - 4) + (y + 2 - 2) + (-1 + 2) = 2 y - 3: from 2 to 1.5 and there; D = -.5,
             h_0 = 1.5, c_0 = -2 + 1 + .5 = -.5.
             Client 1: y + (y + 0 - 2) + (-1 - 0) = 2 y - 3: to 1.5; D = -.5, h_1 = -.5, c_1 = 0 + 1 + .5 = 1.5.
             H = 1 - .5 = .5 = mean(1.5, -.5); c = -1 + 1/2 (1.5 + 1.5) = .5 = mean(-.5, 1.5); w = 1.5 + .5 = 2.
    """
    play = springs(m=[4.0, 0.0], n=[3, 1]).play(FedDC(1.0, local=SgdConfig(lr=0.5, local_steps=2, batch_size=None)), 2)
    assert [value(p) for p in play.params] == pytest.approx([0.0, 2.0, 2.0])
    assert [value(s.drift) for s in play.states] == pytest.approx([0.0, 1.0, 0.5])
    assert [value(s.c) for s in play.states] == pytest.approx([0.0, -1.0, 0.5])
    logs = [play.sim.memory.get(c).now for c in (0, 1)]
    assert [value(log.h) for log in logs] == pytest.approx([1.5, -0.5])
    assert [value(log.c) for log in logs] == pytest.approx([-0.5, 1.5])


# ---------------------------------------------------------------- kin


def test_alpha_zero_alone_is_not_fedavg(classes: Any, equal: Any) -> None:
    """The drift still enters the server's step: with everybody w is 2 mean(y) - w after the first round."""
    w, mean = classes().play(FedAvg(SMALL, "uniform"), 1).params
    ours = classes().play(FedDC(0.0, local=SMALL), 1).params[1]
    equal(ours, map_params(lambda w, y: 2 * y - w, w, mean))


# ---------------------------------------------------------------- the divisor


@pytest.mark.parametrize(("divisor", "steps", "rate"), [("own", (1, 3), 0.1), ("code", (2, 2), 0.2)])
def test_the_divisor_is_each_clients_own_or_as_published(
    divisor: Any, steps: tuple[int, int], rate: float, springs: Any, value: Any
) -> None:
    """Sizes 1 and 3 in batches of 1, lr .2 halved in round 2: own 1 and 3 steps at .1; the code 2 steps each at .2.

    In round 2 eq. 3 is c_i+ = c_i - c - D_i / (eta K), and dc_i + c = -D_i / (eta K).
    """
    local = SgdConfig(lr=0.2, local_epochs=1, batch_size=1, lr_schedule=Exponential(0.5))
    sim = springs(m=[4.0, -3.0], n=[1, 3]).simulator(FedDC(0.1, divisor=divisor, local=local))
    first, _ = sim.round(sim.start(), 1)
    sim.round(first, 2)
    for client in (0, 1):
        mine = sim.memory.get(client)
        moved = value(mine.now.h) - value(mine.before.h)
        renewed = value(mine.now.c) - value(mine.before.c) + value(first.c)
        assert renewed == pytest.approx(-moved / (rate * steps[client]), abs=1e-12)
        assert abs(moved) > 0.01
