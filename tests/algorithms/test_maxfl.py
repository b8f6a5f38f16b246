"""MAXFL: who counts for the global model, and in HCCT's form who trains it at all."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unskew.algorithms.maxfl import (
    MAXFL,
    MAXFL_HCCT,
    slope,
)
from unskew.protocol import SgdConfig
from unskew.world.pace import Outage

STEP = SgdConfig(lr=0.5, local_steps=1, batch_size=None)


# ---------------------------------------------------------------- the original
@given(st.floats(-1e6, 1e6))
def test_the_weight_is_the_derivative_of_the_logistic_function(z: float) -> None:
    """I-30: 0 <= q <= 1/4 and even; sigma itself, which a port found in the wild takes, is neither."""
    assert 0.0 <= slope(z) <= 0.25
    assert slope(z) == slope(-z)
    if abs(z) < 30:
        h = 1e-5
        sigma = [1.0 / (1.0 + math.exp(-v)) for v in (z - h, z + h)]
        assert slope(z) == pytest.approx((sigma[1] - sigma[0]) / (2 * h), abs=1e-9)


def test_a_round_by_hand(springs: Any, value: Any) -> None:
    """F_k = (w - m_k)^2 / 2 with m = 2, -4: losses 2 and 8 at 0; all require 2, so z = 0, 6; one step of lr .5.

    q = 1/4 and sigma'(6) = .0024665; y = 1, -2; w = (.25 * 1 - .0024665 * 2) / (.2524665 + .01).
    """
    method = MAXFL(rho=2.0, warmup=0, local=STEP)
    play = springs(m=[2.0, -4.0], n=[1, 9]).play(method, 1)
    q = math.exp(-6) / (1 + math.exp(-6)) ** 2
    assert q == pytest.approx(0.0024665, abs=1e-7)
    assert value(play.params[1]) == pytest.approx((0.25 - 2 * q) / (0.25 + q + 0.01))
    info = method.info(play.states[1])
    assert info.weights == pytest.approx({0: 0.25 / (0.26 + q), 1: q / (0.26 + q)})
    assert info.met == {0: False, 1: False}  # 2 is not below 2
    assert info.appeal == 0.0
    assert method.info(play.sim.round(play.states[1], 2)[0]).met[0] is True


# ---------------------------------------------------------------- HCCT's form
def test_a_lost_reply_is_no_member_and_losing_all_is_no_failure(springs: Any, value: Any, cut: Any) -> None:
    """Client 0's model does not arrive: the group is client 1 alone.  It holds itself for a member, and uses w."""
    method = MAXFL_HCCT(threshold=50.0, warmup=0, local=STEP)
    play = springs(m=[2.0, -6.0]).play(method, 1, outage=cut((1, "train", 0, 0), how="late"))
    assert value(play.params[1]) == -3.0
    assert play.states[1].joined == {1: True}
    assert value(play.own(0)) == -3.0
    lost = springs(m=[2.0, -6.0]).play(method, 2, outage=Outage(unreachable=1.0))
    assert value(lost.params[-1]) == 0.0
