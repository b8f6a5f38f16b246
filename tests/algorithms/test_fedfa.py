"""FedFA: what a client weighs, by hand and at the edges, and which way the momentum goes."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unskew.algorithms.fedfa import FedFA

ACCURACIES = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8)


# ---------------------------------------------------------------- weights
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
