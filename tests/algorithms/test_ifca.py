"""IFCA: everybody trains what fits best; models that begin apart find the groups, and others are refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unskew.algorithms.ifca import IFCA, IFCAReply, nearest
from unskew.errors import WireError
from unskew.protocol import Layout, SgdConfig

STEP = SgdConfig(lr=0.5, local_steps=1, batch_size=None)
SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3)


# ---------------------------------------------------------------- one round by hand
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [2.5, -5.0]),
        ({"weighting": "samples"}, [2.75, -5.0]),
        ({"averaging": "gradient"}, [5 / 3, -3.0]),
        ({"averaging": "gradient", "weighting": "samples"}, [11 / 6, -3.0]),
    ],
)
def test_a_round_by_hand(options: dict[str, Any], expected: list[float], springs: Any, value: Any) -> None:
    """F_k = (w - m_k)^2 / 2 with m = 4, 6, -8 of 1, 3, 2 examples; models 0 and -2, one step of lr .5.

    Losses at 0 and -2: 8, 18; 18, 32; 32, 18.  So y = 2, 3 for model 0 and -5 for model 1.
    Means: (2 + 3) / 2, (2 + 3 * 3) / 4.  Gradients: 0 + (2 + 3) / 3 and -2 - 3 / 3; (2 + 9) / 6 and -2 - 2 * 3 / 6.
    """
    world = springs(m=[4.0, 6.0, -8.0], n=[1, 3, 2]).beginning(0.0, -2.0)
    play = world.play(IFCA(clusters=2, local=STEP, **options), 1)
    state = play.states[-1]
    assert [value(m) for m in state.models] == pytest.approx(expected)
    assert state.chosen == {0: 0, 1: 0, 2: 1}
    assert [value(play.own(c)) for c in range(3)] == pytest.approx([expected[0], expected[0], expected[1]])
    info = play.sim.method.info(state)
    assert info.groups == ((0, 1), (2,))
    assert info.chosen == {0: 0, 1: 0, 2: 1}
    assert info.warnings == info.ties == ()


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
