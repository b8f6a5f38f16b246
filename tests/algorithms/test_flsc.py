"""FLSC: clients in several clusters, between IFCA at one end and FedAvg from the mean of all starts at the other."""

from typing import Any

import pytest

from unskew.algorithms.flsc import FLSC, FLSCReply
from unskew.errors import WireError
from unskew.protocol import Layout, SgdConfig

STEP = SgdConfig(lr=0.5, local_steps=1, batch_size=None)
SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3)


def test_previous_ids_are_those_found_a_round_before(classes: Any) -> None:
    """Round 1 draws, round 2 uses what round 1's losses said, and so on; what is found waits on the clients."""
    world, method = classes(n=[8] * 6), FLSC(clusters=4, memberships=2, ids="previous", local=SMALL)
    sim = world.simulator(method, codec=True)
    state, _ = sim.round(sim.start(), 1)
    first = state.ids
    assert len(set(first.values())) > 1  # drawn by client
    assert all(len(set(ids)) == 2 and ids == tuple(sorted(ids)) for ids in first.values())
    current = world.play(FLSC(clusters=4, memberships=2, local=SMALL), 1).states[1].ids
    found = {c: sim.memory.get(c).ids for c in range(6)}
    assert found == current != first  # from the same models, the initial ones
    state, _ = sim.round(state, 2)
    assert state.ids == found


# ---------------------------------------------------------------- bad input, wire, losses
@pytest.mark.parametrize("ids", [(1,), (1, 1), (0, 3), (-1, 0), (0, 1, 2)])
def test_a_reply_for_other_clusters_is_refused(ids: tuple[int, ...]) -> None:
    with pytest.raises(WireError, match="expected 2 different clusters below 3"):
        FLSC(clusters=3, memberships=2).validate_reply("train", FLSCReply({}, 5, ids), {}, Layout(()))
