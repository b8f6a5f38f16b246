"""FedProx: the pull, and the paper's way of drawing a cohort."""

from typing import Any

import pytest

from unskew.algorithms.fedprox import FedProx
from unskew.algorithms.parts import SizeReply
from unskew.protocol import SgdConfig
from unskew.world.pace import Outage

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.5)


def test_sizes_are_asked_for_once_and_weighed(springs: Any, spy: Any) -> None:
    """The question has no content, so no bytes; the answers are 4 messages in round 1 and none later."""
    with spy() as messages:
        play = springs(m=[1.0, 2.0, 3.0, 4.0], n=[1, 2, 3, 4]).play(
            FedProx(sampling="size", local=SMALL), rounds=3, clients_per_round=2, codec=True
        )
    assert [m.n for m in messages if isinstance(m, SizeReply)] == [1, 2, 3, 4]
    assert play.states[-1].n == {0: 1, 1: 2, 2: 3, 3: 4}
    assert [len([x for x in t.transfers if x.direction == "up"]) for t in play.traces] == [6, 2, 2]
    assert play.bytes[0] > play.bytes[1]


def test_large_clients_are_drawn_more_often_and_averaged_alike(springs: Any, value: Any) -> None:
    """One client per round of sizes 1 and 9: over 200 rounds the large one is drawn about 180 times.

    The standard deviation of the count is sqrt(200 * .9 * .1) = 4.2, the bounds are five of them.
    """
    local = SgdConfig(lr=1.0, local_steps=1, batch_size=None)
    play = springs(m=[-1.0, 1.0], n=[1, 9]).play(FedProx(local=local, sampling="size"), 200, clients_per_round=1)
    ends = [value(p) for p in play.params[1:]]
    assert 158 < sum(v == pytest.approx(1.0) for v in ends) < 199
    both = springs(m=[-1.0, 1.0], n=[1, 9]).play(FedProx(local=local, sampling="size"), 1)
    assert value(both.params[1]) == pytest.approx(0.0, abs=1e-12)


def test_a_client_whose_size_is_unknown_is_asked_again(springs: Any) -> None:
    """Some declarations are lost in round 1; nobody of unknown size is drawn, all are known in the end."""
    sim = springs(m=[1.0] * 8, n=[2] * 8).simulator(
        FedProx(sampling="size", local=SMALL), outage=Outage(unreachable=0.4)
    )
    state, known = sim.start(), []
    for t in range(1, 8):
        state, trace = sim.round(state, t)
        cohort = {x.dst - 1 for x in trace.transfers if x.kind == "model" and x.direction == "down"}
        assert cohort <= set(state.n)
        known.append(len(state.n))
    assert known[0] < 8
    assert known[-1] == 8
