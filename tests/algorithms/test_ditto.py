"""Ditto: FedAvg, and beside it models of the clients' own."""

from typing import Any

import pytest
import torch

from unskew.algorithms.ditto import Ditto
from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.independent import Independent
from unskew.protocol import SgdConfig
from unskew.tree import flat
from unskew.world.outage import Outage

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.5, weight_decay=0.01)
FULL = SgdConfig(lr=0.1, local_epochs=3, batch_size=None)


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_the_global_model_is_fedavgs_to_the_bit(lam: float, classes: Any, equal: Any) -> None:
    """Under partial participation too: own models take nothing from its draws."""
    world = classes(n=[4, 7, 9, 3], norm=True)
    ditto = world.play(Ditto(lam, personal_epochs=3, local=SMALL), clients_per_round=2)
    equal(ditto.params, world.play(FedAvg(SMALL), clients_per_round=2).params, atol=0.0)


def test_two_rounds_by_hand(springs: Any, value: Any) -> None:
    """F_k = (v - m_k)^2 / 2, m = 4, -2; lr .5, one step a round, lam 1: v <- v - .5 (v - m) - .5 (v - w) = (m + w) / 2.

    Round 1, w = 0: v = 2, -1; the global steps w / 2 + m / 2 = 2, -1, mean .5.
    Round 2, w = .5: v = 2.25, -.75; the global ones 2.25, -.75, mean .75.
    """
    play = springs(m=[4.0, -2.0]).play(Ditto(1.0, local=SgdConfig(lr=0.5, local_steps=1, batch_size=None)), 2)
    assert [value(p) for p in play.params] == pytest.approx([0.0, 0.5, 0.75])
    assert [value(play.own(c)) for c in (0, 1)] == pytest.approx([2.25, -0.75])


def test_an_own_model_settles_between_client_and_federation(springs: Any, value: Any) -> None:
    """min (v - m)^2 / 2 + lam/2 (v - w)^2 is at (m + lam w) / (1 + lam); m = 4, -2 gives w = 1 in the end, so with
    lam .5 v = 4.5 / 1.5 = 3 and -1.5 / 1.5 = -1.
    """
    play = springs(m=[4.0, -2.0]).play(Ditto(0.5, local=SgdConfig(lr=0.3, local_steps=5, batch_size=None)), 25)
    assert value(play.params[-1]) == pytest.approx(1.0, abs=1e-6)
    assert [value(play.own(c)) for c in (0, 1)] == pytest.approx([3.0, -1.0], abs=1e-6)


def test_without_a_pull_own_models_are_trained_alone(classes: Any, equal: Any) -> None:
    """lam = 0 and full batches, so that the draws do not matter."""
    world = classes(n=[4, 7, 9], norm=True)
    ditto, alone = world.play(Ditto(0.0, local=FULL)), world.play(Independent(FULL))
    for client in range(3):
        equal(ditto.own(client), alone.own(client), atol=1e-12)


def test_a_stronger_pull_stays_nearer(classes: Any) -> None:
    world = classes()
    far = []
    for lam in (0.0, 0.5, 5.0):
        play = world.play(Ditto(lam, local=FULL), 1)
        far.append(float((flat(play.own(0)) - flat(play.params[0])).norm()))
    assert far[0] > far[1] > far[2] > 0.0


def test_own_epochs_are_counted_apart(classes: Any) -> None:
    """8 examples: 2 epochs for the global model, 5 for the own one, 56 examples; with None 2 and 2, 32."""
    for epochs, examples in ((5, 56), (None, 32)):
        play = classes().play(Ditto(personal_epochs=epochs, local=SMALL), 1)
        assert [e.examples for e in play.traces[0].work] == [examples] * 4


def test_nothing_of_an_own_model_travels(classes: Any, spy: Any) -> None:
    """No message has a tensor of any client's memory; what goes up is the global part's result."""
    world = classes(norm=True)
    with spy() as messages:
        play = world.play(Ditto(0.1, local=SMALL), 2, codec=True)
    own = [play.sim.memory.get(c) for c in range(4)]
    for message in messages:
        assert set(message.params) == set(world.population.initial)
        assert not any(torch.equal(message.params[n], v[n]) for v in own for n in v)


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


def test_absentees_keep_their_models_and_lost_replies_are_their_clients_own(classes: Any) -> None:
    """A late client has trained its own model: that stays, though the federation never heard of the other one."""
    sim = classes(n=[5] * 6).simulator(Ditto(local=SMALL), clients_per_round=3, outage=Outage(late=0.3), seed=2)
    state, lost = sim.start(), 0
    for t in range(1, 6):
        before = sim.memory.at(sim.memory.round)
        state, trace = sim.round(state, t)
        reached = {x.dst - 1 for x in trace.transfers if x.direction == "down"}
        assert all((sim.memory.get(c) is before.get(c)) == (c not in reached) for c in range(6))
        lost += len(trace.failures)
    assert lost > 1
