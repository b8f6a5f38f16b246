"""Gossip averaging: both orders by hand, the mean that is kept, FedAvg on a complete graph, and who sends to whom."""

from typing import Any

import pytest
import torch

from unskew.algorithms.gossip import Gossip
from unskew.algorithms.independent import Independent
from unskew.protocol import SgdConfig
from unskew.server.graphs import Complete, Edges, ErdosRenyi, Geometric, Ring

STEP = SgdConfig(lr=0.5, local_steps=1, batch_size=None)
SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3)
PATH = Edges(((0, 1), (1, 2)))


def own(play: Any, value: Any) -> list[float]:
    return [value(play.own(c)) for c in play.sim.population.clients]


def test_two_rounds_by_hand(springs: Any, value: Any) -> None:
    """A step of .5 towards m = 6, 0, -12 on a path, whose Metropolis weights are [[2, 1, 0], [1, 1, 1], [0, 1, 2]] / 3.

    Round 1: y = 3, 0, -6; x = (6 + 0)/3, (3 + 0 - 6)/3, (0 - 12)/3 = 2, -1, -4.
    Round 2: y = 4, -.5, -8; x = (8 - .5)/3, (4 - .5 - 8)/3, (-.5 - 16)/3 = 2.5, -1.5, -5.5.
    """
    world = springs(m=[6.0, 0.0, -12.0])
    assert own(world.play(Gossip(PATH, local=STEP), 1), value) == pytest.approx([2, -1, -4])
    assert own(world.play(Gossip(PATH, local=STEP), 2, codec=True), value) == pytest.approx([2.5, -1.5, -5.5])


@pytest.mark.parametrize("order", ["train-then-mix", "together"])
@pytest.mark.parametrize("mixing", ["metropolis", "laplacian"])
@pytest.mark.parametrize("graph", [Ring(), Geometric(0.4), ErdosRenyi(0.2)], ids=lambda g: g.name)
def test_averaging_keeps_the_mean_of_what_training_made(
    graph: Any, mixing: Any, order: Any, springs: Any, value: Any
) -> None:
    """On springs of equal strength the mean moves a step of .5 towards the mean of m, whoever is next to whom."""
    m = [6.0, 0.0, -12.0, 4.0, 1.0, 7.0]
    play = springs(m=m).play(Gossip(graph, mixing, order, STEP), 4)
    assert sum(own(play, value)) == pytest.approx(sum(m) * (1 - 0.5**4))


def test_a_client_not_heard_of_is_left_out_and_the_mean_of_the_others_is_kept(
    springs: Any, value: Any, cut: Any
) -> None:
    """Complete, weights 1/3, y = 3, 0, -6; without client 1: (2*3 - 6)/3, 0 as it was, (3 - 2*6)/3 = 0, 0, -3."""
    world = springs(m=[6.0, 0.0, -12.0])
    play = world.play(Gossip(Complete(), local=STEP), 1, outage=cut((1, "train", 0, 1)))
    assert own(play, value) == pytest.approx([0, 0, -3])
    assert play.sim.memory.get(1) is None


def test_a_client_that_cannot_be_reached_to_mix_stays_where_it_is_and_the_mean_moves(
    springs: Any, value: Any, cut: Any
) -> None:
    """Complete: the others are at the mean (3 + 0 - 6)/3 = -1, client 0 at y = 3; the mean is 1/3, not -1.

    If only its answer is lost it has mixed like everybody.
    """
    world = springs(m=[6.0, 0.0, -12.0])
    ask = (1, "mix", 0, 0)
    assert own(world.play(Gossip(Complete(), local=STEP), 1, outage=cut(ask)), value) == pytest.approx([3, -1, -1])
    late = world.play(Gossip(Complete(), local=STEP), 1, outage=cut(ask, how="late"))
    assert own(late, value) == pytest.approx([-1, -1, -1])


def test_variances_stay_positive_in_the_published_order(classes: Any) -> None:
    """Buffers are the client's own there: y + W x - x of a variance could be negative."""
    world = classes(n=[4, 8, 12, 6], norm=True)
    play = world.play(Gossip(Complete(), order="together", local=SMALL), 4)
    alone = world.play(Independent(SMALL), 1)
    assert all(bool((play.own(c)["bn.running_var"] > 0).all()) for c in range(4))
    first = world.play(Gossip(Complete(), order="together", local=SMALL), 1)
    assert torch.equal(first.own(2)["bn.running_var"], alone.own(2)["bn.running_var"])
