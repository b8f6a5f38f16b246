"""q-FedAvg: losses weigh, by their power q, and set the length of the step."""

from typing import Any

import pytest
import torch

from unskew.algorithms.qfedavg import LEAST_LOSS, QFedAvg, QFedAvgReply, QFedAvgState
from unskew.protocol import SgdConfig
from unskew.reduction import Reduced

STEP = SgdConfig(lr=0.5, local_steps=1, batch_size=None)


def test_a_round_by_hand(springs: Any, value: Any) -> None:
    """F_k = (w - m_k)^2 / 2 with m = 2, -4, of 1 and 9 examples: at 0 losses 2 and 8, one step of lr .5 to 1 and -2.

    q = 1, L = 2: sum n F d = 2 - 9 * 8 * 2 = -142;  h = 2 * 1 + 2 = 4 and 2 * 4 + 8 = 16;  sum n h = 4 + 144 = 148.
    """
    world = springs(m=[2.0, -4.0], n=[1, 9])
    play = world.play(QFedAvg(q=1.0, local=STEP), 1)
    assert value(play.params[1]) == pytest.approx(-142 / 148)
    uniform = world.play(QFedAvg(q=1.0, local=STEP, weighting="uniform"), 1)
    assert value(uniform.params[1]) == pytest.approx((2 - 16) / (4 + 16))
    steeper = world.play(QFedAvg(q=1.0, lipschitz=4.0, local=STEP), 1)
    assert value(steeper.params[1]) == pytest.approx(-142 / (4 + 2 + 9 * (16 + 8)))


@pytest.mark.parametrize("q", [0.0, 3.0])
def test_it_ends_at_the_minimum_of_its_aim(springs: Any, value: Any, q: float) -> None:
    """Eq. 1: sum n F^q F' = 0, so (2 - w)^{2q+1} = 9 (w + 4)^{2q+1}: w = (2 - 4 r) / (1 + r) with r = 9^{1 / (2q+1)}.

    The larger q, the nearer to -1, where both clients have the same loss.
    """
    r = 9 ** (1 / (2 * q + 1))
    play = springs(m=[2.0, -4.0], n=[1, 9]).play(QFedAvg(q=q, local=STEP), 40)
    assert value(play.params[-1]) == pytest.approx((2 - 4 * r) / (1 + r), abs=1e-6)


@pytest.mark.parametrize(("q", "losses"), [(5.0, (0.0, 0.0)), (10.0, (1e-5, 1.2e-5)), (20.0, (0.0044, 0.0044))])
def test_powers_of_losses_may_leave_the_range_of_float32(
    springs: Any, value: Any, q: float, losses: tuple[float, float]
) -> None:
    """Of equal losses F the step is d F^q / h, h = q F^{q-1} L d^2 + F^q: with d = 1, L = 2 it is 1 / (2 q / F + 1)."""
    sim = springs(m=[1.0, 1.0]).simulator(QFedAvg(q=q, local=STEP))
    w = {n: t.float() for n, t in sim.population.initial.items()}
    plan = sim.method.round(QFedAvgState(w), sim.federation(1))
    request = next(plan)
    partials = [r.start() for r in request.reduce]
    for c, loss in enumerate(losses):
        reply = QFedAvgReply({n: t + 1.0 for n, t in w.items()}, 1, torch.tensor(loss, dtype=torch.float64))
        partials = [r.add(p, c, reply) for r, p in zip(request.reduce, partials, strict=True)]
    values, weights = zip(*(r.finish(p) for r, p in zip(request.reduce, partials, strict=True)), strict=True)
    with pytest.raises(StopIteration) as ended:
        plan.send(Reduced(values, weights, 2))
    step = 1.0 / (2.0 * q / (sum(losses) / 2 + LEAST_LOSS) + 1.0)
    assert value(ended.value.value.params) == pytest.approx(step, rel=0.1)
