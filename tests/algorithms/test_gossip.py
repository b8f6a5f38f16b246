"""Gossip averaging: both orders by hand, the mean that is kept, FedAvg on a complete graph, and who sends to whom."""

from typing import Any

import pytest
import torch

from unskew import wire
from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.gossip import Gossip
from unskew.algorithms.independent import Independent
from unskew.keys import Key
from unskew.ledger import totals
from unskew.protocol import SgdConfig
from unskew.reduction import weighted_mean
from unskew.server.graphs import Complete, Edges, ErdosRenyi, Geometric, Ring
from unskew.world.outage import Outage

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


def test_two_rounds_in_the_published_order_by_hand(springs: Any, value: Any) -> None:
    """As above.  Round 1: all begin at 0, so there is nothing to mix: x = y = 3, 0, -6.

    Round 2: W x = (6 + 0)/3, (3 + 0 - 6)/3, -12/3 = 2, -1, -4; the step at x adds 1.5, 0, -3: 3.5, -1, -7.
    """
    world, together = springs(m=[6.0, 0.0, -12.0]), Gossip(PATH, order="together", local=STEP)
    assert own(world.play(together, 1), value) == pytest.approx([3, 0, -6])
    assert own(world.play(together, 2, codec=True), value) == pytest.approx([3.5, -1, -7])


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


def test_on_a_complete_graph_it_is_uniform_fedavg(classes: Any, equal: Any) -> None:
    """Metropolis weights are then 1 / n everywhere: every client has FedAvg's model, of unequal sizes too."""
    world = classes(n=[4, 7, 9, 3])
    plain = world.play(FedAvg(SMALL, "uniform"))
    for t in range(1, 4):
        play = world.play(Gossip(Complete(), local=SMALL), t)
        for client in range(4):
            equal(play.own(client), plain.params[t])
    ring = world.play(Gossip(local=SMALL), 3)
    with pytest.raises(AssertionError):
        equal(ring.own(0), plain.params[3])


def test_in_the_published_order_the_mean_of_a_first_round_is_fedavgs_and_of_a_second_is_not(
    classes: Any, equal: Any
) -> None:
    """From round 2 on the gradients are taken at n models, not at their mean."""
    world = classes()
    plain = world.play(FedAvg(SMALL, "uniform"), 2)
    for t, same in ((1, True), (2, False)):
        play = world.play(Gossip(Complete(), order="together", local=SMALL), t)
        mean = weighted_mean([play.own(c) for c in range(4)], [1.0] * 4)
        if same:
            equal(mean, plain.params[t])
        else:
            with pytest.raises(AssertionError):
                equal(mean, plain.params[t])


def test_alone_it_is_training_alone(classes: Any, equal: Any) -> None:
    """A cohort of one has no neighbours, and no model travels."""
    world = classes(n=[8])
    equal(world.play(Gossip(local=SMALL)).own(0), world.play(Independent(SMALL)).own(0), atol=0.0)


def test_neighbours_come_to_agree(springs: Any, value: Any) -> None:
    """Without a pull of their own (learning rate near 0) the models of a ring draw together."""
    world = springs(m=[6.0, 0.0, -12.0, 4.0, 1.0])
    still = SgdConfig(lr=1e-9, local_steps=1, batch_size=None)
    sim = world.simulator(Gossip(local=still))
    begin = {c: {"head.weight": torch.full((1, 1), float(c), dtype=torch.float64)} for c in range(5)}
    for c, model in begin.items():
        sim.memory.stage(c, model)
    state = sim.start()
    for t in range(1, 31):
        state, _ = sim.round(state, t)
    assert [value(sim.memory.get(c)) for c in range(5)] == pytest.approx([2.0] * 5, abs=1e-5)


@pytest.mark.parametrize("order", ["train-then-mix", "together"])
def test_models_travel_along_every_edge_and_nowhere_else(order: Any, classes: Any) -> None:
    """I-42: 2 e models from device to device, none down or up; the graph is the same in every round."""
    world = classes(n=[4] * 6, norm=True)
    play = world.play(Gossip(Geometric(0.4), order=order, local=SMALL))
    a = Geometric(0.4)(6, Key(0) / "graph")
    model = wire.nbytes(world.population.initial)
    for trace in play.traces:
        sent = [x for x in trace.transfers if x.kind == "model"]
        assert sorted((x.src - 1, x.dst - 1) for x in sent) == [tuple(e) for e in a.nonzero().tolist()]
        assert {x.bytes for x in sent} == {model}
        assert {x.direction for x in sent} == {"d2d"}
        sums = totals(trace.transfers)
        assert sums["d2d"] == int(a.sum()) * model
        # What is left are handles and weights: nothing of a model's size per client.
        assert 0 < sums["down"] + sums["up"] < 6 * 1200


def test_another_seed_has_another_random_graph(classes: Any) -> None:
    pairs = []
    for seed in (1, 2):
        play = classes(n=[4] * 8).play(Gossip(Geometric(0.3), local=SMALL), 1, seed=seed)
        pairs.append({(x.src, x.dst) for x in play.traces[0].transfers if x.kind == "model"})
    assert pairs[0] != pairs[1]


def test_absent_clients_keep_their_model(classes: Any) -> None:
    sim = classes(n=[4] * 6).simulator(Gossip(local=SMALL), clients_per_round=3)
    state, stayed = sim.start(), 0
    for t in range(1, 6):
        before = sim.memory.at(sim.memory.round)
        state, trace = sim.round(state, t)
        cohort = {w.client for w in trace.work}
        assert len(cohort) == 3
        assert all((sim.memory.get(c) is kept) == (c not in cohort) for c, kept in before.items())
        stayed += len(set(before) - cohort)
    assert stayed > 0


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


@pytest.mark.parametrize("order", ["train-then-mix", "together"])
def test_losing_everybody_is_no_failure(order: Any, classes: Any) -> None:
    """Nobody waits for anybody."""
    play = classes().play(Gossip(order=order, local=SMALL), outage=Outage(unreachable=1.0))
    assert [len(t.failures) for t in play.traces] == [4, 4, 4]


def test_variances_stay_positive_in_the_published_order(classes: Any) -> None:
    """Buffers are the client's own there: y + W x - x of a variance could be negative."""
    world = classes(n=[4, 8, 12, 6], norm=True)
    play = world.play(Gossip(Complete(), order="together", local=SMALL), 4)
    alone = world.play(Independent(SMALL), 1)
    assert all(bool((play.own(c)["bn.running_var"] > 0).all()) for c in range(4))
    first = world.play(Gossip(Complete(), order="together", local=SMALL), 1)
    assert torch.equal(first.own(2)["bn.running_var"], alone.own(2)["bn.running_var"])


def test_there_is_no_global_model(classes: Any, equal: Any) -> None:
    """Nobody sees all models; before any round a client's own is the initial one."""
    world = classes()
    assert world.play(Gossip(local=SMALL)).params == [None] * 4
    equal(world.play(Gossip(local=SMALL), 0).own(2), world.population.initial, atol=0.0)
