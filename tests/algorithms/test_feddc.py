"""FedDC: what drift and mean gradient are, that the server's means hold whatever is lost, and its kin."""

from typing import Any

import pytest

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.feddc import FedDC
from unskew.protocol import Exponential, SgdConfig
from unskew.tree import map_params

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3)


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
