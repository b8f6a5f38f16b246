"""IFCA: everybody trains what fits best; models that begin apart find the groups, and others are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unskew.algorithms.ifca import IFCA, IFCAReply, nearest
from unskew.errors import WireError
from unskew.protocol import Layout


# ---------------------------------------------------------------- invariants
@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=1, max_size=6), st.data())
def test_the_nearest_are_the_best_with_ties_to_the_lowest(losses: list[float], data: st.DataObject) -> None:
    n = data.draw(st.integers(1, len(losses)))
    ids = nearest(losses, n)
    assert len(set(ids)) == n
    assert list(ids) == sorted(ids)
    for i in ids:
        for j in set(range(len(losses))) - set(ids):
            assert (losses[i], i) < (losses[j], j)


# ---------------------------------------------------------------- wire, losses, absence
@pytest.mark.parametrize("cluster", [-1, 2])
def test_a_reply_for_no_cluster_is_refused(cluster: int) -> None:
    with pytest.raises(WireError, match=f"a cluster must be 0 to 1, got {cluster}"):
        IFCA(clusters=2).validate_reply("train", IFCAReply({}, 5, cluster, False), {}, Layout(()))
