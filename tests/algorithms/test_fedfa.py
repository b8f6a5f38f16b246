"""FedFA: what a client weighs, by hand and at the edges, and which way the momentum goes."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unskew.algorithms.fedfa import FedFA
from unskew.protocol import SgdConfig

STEP = SgdConfig(lr=0.5, local_steps=1, batch_size=None)
ACCURACIES = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8)


# ---------------------------------------------------------------- weights
def test_weights_by_hand() -> None:
    """Accuracies 1/2 and 1/4 have 1 and 2 bits: 1/3, 2/3.  Their shares 2/3 and 1/3 have log2(1.5) and log2(3) bits.

    Visits 1 and 3 of 4 leave 3/4 and 1/4: log2(4/3) and 2 bits.  30 and 10 examples are 3/4 and 1/4.
    """
    acc, visits, n = [0.5, 0.25], [1, 3], [30, 10]
    assert FedFA(preset="hcct").weights(acc, visits, n) == pytest.approx([1 / 3, 2 / 3])
    share = math.log2(1.5) / (math.log2(1.5) + math.log2(3))
    often = math.log2(4 / 3) / (math.log2(4 / 3) + 2)
    assert FedFA(alpha=1.0, beta=0.0).weights(acc, visits, n) == pytest.approx([share, 1 - share])
    assert FedFA(alpha=0.0, beta=1.0).weights(acc, visits, n) == pytest.approx([often, 1 - often])
    assert FedFA().weights(acc, visits, n) == pytest.approx([(share + often) / 2, 1 - (share + often) / 2])
    assert FedFA(alpha=0.0, beta=0.0).weights(acc, visits, n) == [0.75, 0.25]
    some = FedFA(alpha=0.5, beta=0.25).weights(acc, visits, n)
    assert some[0] == pytest.approx(0.5 * share + 0.25 * often + 0.25 * 0.75)


@given(ACCURACIES, st.sampled_from(["share", "itself"]), st.data())
def test_weights_are_a_mean_and_fall_with_accuracy(acc: list[float], accuracy: Any, data: st.DataObject) -> None:
    """I-31: the sum is 1, none is negative, and at equal visits the worse model weighs at least as much."""
    visits = data.draw(st.lists(st.integers(1, 50), min_size=len(acc), max_size=len(acc)))
    omega = FedFA(accuracy=accuracy).weights(acc, visits, [1] * len(acc))
    assert sum(omega) == pytest.approx(1.0)
    assert all(math.isfinite(w) and w >= 0.0 for w in omega)
    fair = FedFA(accuracy=accuracy).weights(acc, [4] * len(acc), [1] * len(acc))
    for i in range(len(acc)):
        for j in range(len(acc)):
            assert acc[i] >= acc[j] or fair[i] >= fair[j] - 1e-12


def test_the_edges() -> None:
    """A perfect client weighs nothing; one at 0 counts as at 1e-7; a single one has all the weight."""
    assert FedFA(preset="hcct").weights([1.0, 0.5], [1, 1], [1, 1]) == [0.0, 1.0]
    zero, half = FedFA(preset="hcct").weights([0.0, 0.5], [1, 1], [1, 1])
    assert zero / half == pytest.approx(-math.log2(1e-7))
    for method in (FedFA(), FedFA(preset="hcct"), FedFA(alpha=0.0, beta=0.0)):
        assert method.weights([0.0], [7], [3]) == [1.0]
        assert method.weights([1.0], [7], [3]) == [1.0]


# ---------------------------------------------------------------- rounds
@pytest.mark.parametrize(
    ("sign", "server_lr", "expected"),
    [("accelerate", 1.0, [0.55, 0.8425]), ("damp", 1.0, [0.45, 0.6525]), ("accelerate", None, [0.525, 0.796875])],
)
def test_two_rounds_by_hand(
    sign: Any, server_lr: float | None, expected: list[float], springs: Any, value: Any
) -> None:
    """F_k = (w - m_k)^2 / 2 with m = 4, -2: a regression, nothing is ever accurate, so weights are uniform.

    One step of lr .5 takes the mean from w to (w + 1) / 2: from 0 to wbar = .5.  gamma = .9.
    Accelerated  G = 0 - .5, m = -.05, w = .5 + .05.  wbar = .775, G = -.225, m = -.045 - .0225, w = .775 + .0675.
    Damped       G = .5 - 0, m = .05, w = .5 - .05.  wbar = .725, G = .275, m = .045 + .0275, w = .725 - .0725.
    By default   eta is the clients' .5: w = .525.  wbar = .7625, G = -.2375, m = -.045 - .02375, w = .7625 + .034375.
    """
    method = FedFA(server_momentum_sign=sign, server_lr=server_lr, local=STEP)
    play = springs(m=[4.0, -2.0]).play(method, 2)
    assert [value(p) for p in play.params[1:]] == pytest.approx(expected)
