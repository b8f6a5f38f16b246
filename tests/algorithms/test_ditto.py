"""Ditto: FedAvg, and beside it models of the clients' own."""

from typing import Any

import pytest
import torch

from unskew.algorithms.ditto import Ditto
from unskew.protocol import SgdConfig
from unskew.tree import flat

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.5, weight_decay=0.01)


def test_two_rounds_by_hand(springs: Any, value: Any) -> None:
    """F_k = (v - m_k)^2 / 2, m = 4, -2; lr .5, one step a round, lam 1: v <- v - .5 (v - m) - .5 (v - w) = (m + w) / 2.

    Round 1, w = 0: v = 2, -1; the global steps w / 2 + m / 2 = 2, -1, mean .5.
    Round 2, w = .5: v = 2.25, -.75; the global ones 2.25, -.75, mean .75.
    """
    play = springs(m=[4.0, -2.0]).play(Ditto(1.0, local=SgdConfig(lr=0.5, local_steps=1, batch_size=None)), 2)
    assert [value(p) for p in play.params] == pytest.approx([0.0, 0.5, 0.75])
    assert [value(play.own(c)) for c in (0, 1)] == pytest.approx([2.25, -0.75])


def test_own_epochs_are_counted_apart(classes: Any) -> None:
    """8 examples: 2 epochs for the global model, 5 for the own one, 56 examples; with None 2 and 2, 32."""
    for epochs, examples in ((5, 56), (None, 32)):
        play = classes().play(Ditto(personal_epochs=epochs, local=SMALL), 1)
        assert [e.examples for e in play.traces[0].work] == [examples] * 4


def test_who_never_took_part_uses_the_global_model(classes: Any) -> None:
    """And who joins late starts at what it receives, not at the initial model of long ago."""
    world = classes(n=[6] * 5)
    sim = world.simulator(Ditto(1.0, local=SgdConfig(lr=1e-9, batch_size=None)), clients_per_round=2, seed=4)
    state, late = sim.start(), 0
    for t in range(1, 6):
        known = {c for c in range(5) if sim.memory.get(c) is not None}
        received = state.params
        state, trace = sim.round(state, t)
        cohort = {x.src - 1 for x in trace.transfers if x.direction == "up"}
        for c in cohort - known:
            torch.testing.assert_close(flat(sim.memory.get(c)), flat(received), rtol=0, atol=1e-7)
            late += t > 1
        for c in set(range(5)) - cohort - known:
            assert sim.own_models(state, [c], t)[c] is state.params
    assert late > 0
