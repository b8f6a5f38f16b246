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
from unskew.world.outage import Outage

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


def test_the_requirement_is_the_loss_of_a_model_trained_alone_once(springs: Any) -> None:
    """m = 4, -2: two steps of lr .5 from 0 lead to 3 and -1.5, where the losses are .5 and .125.

    Each client trains 2 + 1 steps in the first round that judges and 1 in the next; a round's worth is one step.
    """
    play = springs(m=[4.0, -2.0]).play(MAXFL(warmup=1, solo_rounds=2, local=STEP), 3)
    assert [play.sim.memory.get(c).rho for c in (0, 1)] == pytest.approx([0.5, 0.125])
    assert [play.sim.memory.get(c).model for c in (0, 1)] == [None, None]
    assert [[w.examples for w in t.work] for t in play.traces] == [[1, 1], [3, 3], [1, 1]]


def test_a_client_may_prefer_what_it_trained_alone(springs: Any, value: Any) -> None:
    """m = 4, -2, 1; three steps alone lead to 3.5, -1.75, .875.  FedAvg's warm-up leads to 1.

    There F = 4.5, 4.5, 0, against .125, .031, .008 alone: only the third prefers w, which in the one round that is
    judged hardly moves, for the first two are far from what they require on the same side, and pull apart.
    """
    world = springs(m=[4.0, -2.0, 1.0])
    play = world.play(MAXFL(warmup=12, solo_rounds=3, preferred=True, local=STEP), 13)
    w = value(play.params[-1])
    assert w == pytest.approx(1.0, abs=0.01)
    assert [value(play.own(c)) for c in range(3)] == pytest.approx([3.5, -1.75, w])
    plain = world.play(MAXFL(warmup=12, solo_rounds=3, local=STEP), 13)
    assert [value(plain.own(c)) for c in range(3)] == [w] * 3


# ---------------------------------------------------------------- HCCT's form
def test_two_rounds_of_hccts_form_by_hand(springs: Any, value: Any) -> None:
    """m = 2, -6 and threshold 5: losses 2 and 18, so client 0 trains w to 1 and client 1 its own to -3.

    Round 2: .5 and 24.5; w = 1.5, and client 1 goes on from -3 to -4.5.
    """
    method = MAXFL_HCCT(threshold=5.0, warmup=0, local=STEP)
    play = springs(m=[2.0, -6.0]).play(method, 2)
    assert [value(p) for p in play.params] == [0.0, 1.0, 1.5]
    assert [value(play.own(c)) for c in (0, 1)] == [1.5, -4.5]
    info = method.info(play.states[2])
    assert info.groups == ((0,), (1,))
    assert info.chosen == {0: 0, 1: 1}
    assert info.warnings == ()


def test_who_leaves_the_group_goes_on_from_its_model(springs: Any, value: Any) -> None:
    """Warm-up: y = 1, -3, w = -1.  Then losses 4.5 and 12.5 at threshold 5: client 1 leaves with w, to -3.5.

    Client 0 goes from -1 to .5; in round 3 losses are 1.125 and 21.125; w = 1.25, client 1 at -4.75.
    """
    play = springs(m=[2.0, -6.0]).play(MAXFL_HCCT(threshold=5.0, warmup=1, local=STEP), 3)
    assert [value(p) for p in play.params] == [0.0, -1.0, 0.5, 1.25]
    assert [value(play.own(c)) for c in (0, 1)] == [1.25, -4.75]
    assert [s.joined for s in play.states[1:]] == [{0: True, 1: True}, *[{0: True, 1: False}] * 2]


def test_the_two_published_thresholds(springs: Any) -> None:
    """m = 4, at w = 0, F = 8, what = m (1 - 2^-s) after s steps of lr .5.

    Squared distance: s = 1 gives 4, not above 8; s = 3 gives 12.25, above 8.  The solo loss m^2 2^-2s / 2 is 2 and 1/8.
    """
    world = springs(m=[4.0])
    for threshold, trainer, joins in (("sqdist", 1, False), ("sqdist", 3, True), ("local_loss", 1, False)):
        method = MAXFL_HCCT(threshold=threshold, solo_rounds=trainer, warmup=0, local=STEP)
        play = world.play(method, 1)
        assert play.states[1].joined == {0: joins}
        kept = play.sim.memory.get(0)
        assert (kept.rho, kept.prior is None) == ((2.0, True) if threshold == "local_loss" else (None, False))
    # w after three rounds of FedAvg is what three steps alone lead to; a fourth makes it better than them.
    play = world.play(MAXFL_HCCT(solo_rounds=3, warmup=4, local=STEP), 5)
    assert play.states[5].joined == {0: True}


def test_a_lost_reply_is_no_member_and_losing_all_is_no_failure(springs: Any, value: Any, cut: Any) -> None:
    """Client 0's model does not arrive: the group is client 1 alone.  It holds itself for a member, and uses w."""
    method = MAXFL_HCCT(threshold=50.0, warmup=0, local=STEP)
    play = springs(m=[2.0, -6.0]).play(method, 1, outage=cut((1, "train", 0, 0), how="late"))
    assert value(play.params[1]) == -3.0
    assert play.states[1].joined == {1: True}
    assert value(play.own(0)) == -3.0
    lost = springs(m=[2.0, -6.0]).play(method, 2, outage=Outage(unreachable=1.0))
    assert value(lost.params[-1]) == 0.0
