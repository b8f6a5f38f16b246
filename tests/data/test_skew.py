import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from unskew.data.skew import counts_of, effective_classes, iid_distance, js_divergence


def test_labels_are_counted_per_client():
    counts = counts_of(np.array([0, 2, 1]), np.array([2, 1]), np.array([1, 0, 1]), 3)
    assert counts.tolist() == [[0, 2, 0], [1, 0, 0]]


def test_distance_to_uniform_by_hand():
    """(1, 0): ||(.5, -.5)|| = .7071; (3/4, 1/4): ||(.25, -.25)|| = .3536; (1/2, 1/2): 0."""
    assert iid_distance(np.array([[4, 0], [3, 1], [2, 2]])) == pytest.approx([0.7071, 0.3536, 0.0], abs=1e-4)


def test_divergence_from_the_pool_by_hand():
    """Clients (1, 0) and (0, 1), pool (.5, .5), middle (.75, .25): .8113 bit - (0 + 1) / 2 = .3113."""
    assert js_divergence(np.array([[4, 0], [0, 4]])) == pytest.approx([0.3113, 0.3113], abs=1e-4)


def test_effective_classes_by_hand():
    """(1/2, 1/4, 1/4): entropy 1.5 bit, 2^1.5 = 2.828."""
    assert effective_classes(np.array([[2, 1, 1], [0, 0, 9]])) == pytest.approx([2.8284, 1.0], abs=1e-4)


@given(arrays(np.int64, (4, 5), elements=st.integers(0, 1000)).filter(lambda c: (c.sum(1) > 0).all()))
def test_measures_keep_their_bounds(counts: np.ndarray):
    assert (iid_distance(counts) <= np.sqrt(0.8) + 1e-12).all()
    assert (js_divergence(counts) <= 1).all()
    assert (js_divergence(counts) >= 0).all()
    assert (effective_classes(counts) >= 1 - 1e-12).all()
    assert (effective_classes(counts) <= 5 + 1e-9).all()
