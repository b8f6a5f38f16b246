"""CFA: consensus before training, weighed by data, on what the neighbours had before."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unskew.algorithms.cfa import CFA, consensus
from unskew.algorithms.fedavg import FedAvg
from unskew.keys import Key
from unskew.protocol import Exponential, SgdConfig
from unskew.reduction import weighted_mean
from unskew.server.graphs import Complete, Edges, ErdosRenyi

STEP = SgdConfig(lr=0.5, local_steps=1, batch_size=None)
SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3)
PATH = Edges(((0, 1), (1, 2)))


def own(play: Any, value: Any) -> list[float]:
    return [value(play.own(c)) for c in play.sim.population.clients]


def test_two_rounds_by_hand(springs: Any, value: Any) -> None:
    """A step of .5 towards m = 6, 0, -12 on a path; 3, 1 and 1 examples, epsilon .5.

    Round 1: psi = 0, W = 3, 0, -6.
    Round 2: psi_0 = 3 + .5 (0 - 3) = 1.5; psi_1 = 0 + .5 (3/4 * 3 - 1/4 * 6) = .375; psi_2 = -6 + .5 * 6 = -3, all from
             the models of round 1; W = (psi + m) / 2 = 3.75, .1875, -7.5.
    """
    world = springs(m=[6.0, 0.0, -12.0], n=[3, 1, 1])
    assert own(world.play(CFA(PATH, local=STEP), 1), value) == pytest.approx([3, 0, -6])
    assert own(world.play(CFA(PATH, local=STEP), 2, codec=True), value) == pytest.approx([3.75, 0.1875, -7.5])


def test_epsilon_falls_with_its_schedule(springs: Any, value: Any) -> None:
    """As above with epsilon .25 in round 2: psi = 2.25, .1875, -4.5; W = 4.125, .09375, -8.25."""
    method = CFA(PATH, epsilon_schedule=Exponential(0.5), local=STEP)
    play = springs(m=[6.0, 0.0, -12.0], n=[3, 1, 1]).play(method, 2)
    assert own(play, value) == pytest.approx([4.125, 0.09375, -8.25])


@given(n=st.integers(2, 12), examples=st.integers(1, 50))
def test_on_a_complete_graph_with_equal_data_it_can_be_the_mean(n: int, examples: int) -> None:
    """I-39: alpha = 1 / (N - 1) and epsilon = (N - 1) / N make every weight 1 / N."""
    v = consensus(Complete()(n, Key(0)), torch.full((n,), float(examples)), (n - 1) / n)
    torch.testing.assert_close(v, torch.full((n, n), 1.0 / n, dtype=torch.float64))


@given(
    n=st.lists(st.integers(0, 40), min_size=1, max_size=10),
    seed=st.integers(0, 50),
    epsilon=st.floats(0.01, 1.0),
)
def test_weights_go_by_data_and_sum_to_epsilon(n: list[int], seed: int, epsilon: float) -> None:
    """Devices without examples stand for those that were not heard of: they neither give nor take."""
    a = ErdosRenyi(0.4)(len(n), Key(seed))
    v = consensus(a, torch.tensor(n, dtype=torch.float64), epsilon)
    torch.testing.assert_close(v.sum(1), torch.ones(len(n), dtype=torch.float64))
    for k, row in enumerate(v.tolist()):
        near = [i for i in range(len(n)) if a[k, i] and n[i] > 0] if n[k] > 0 else []
        total = sum(n[i] for i in near)
        expected = [epsilon * n[i] / total if i in near else 0.0 for i in range(len(n))]
        expected[k] = 1.0 - epsilon if near else 1.0
        assert row == pytest.approx(expected, abs=1e-12)


def test_full_consensus_with_equal_data_is_uniform_fedavg_in_the_mean(classes: Any, equal: Any) -> None:
    """I-39: every psi is the mean, and the mean of what is trained from it is FedAvg's next model."""
    world = classes()
    plain = world.play(FedAvg(SMALL, "uniform"))
    for t in range(1, 4):
        play = world.play(CFA(Complete(), epsilon=0.75, local=SMALL), t)
        equal(weighted_mean([play.own(c) for c in range(4)], [1.0] * 4), plain.params[t])
    part = world.play(CFA(Complete(), epsilon=0.5, local=SMALL))
    with pytest.raises(AssertionError):
        equal(weighted_mean([part.own(c) for c in range(4)], [1.0] * 4), plain.params[3])


def test_a_neighbour_not_heard_of_leaves_its_share_to_the_others(springs: Any, value: Any, cut: Any) -> None:
    """Round 2 of the first test without device 2: psi_1 = 0 + .5 (3 - 0) = 1.5, W_1 = .75; device 2 trains on alone."""
    world = springs(m=[6.0, 0.0, -12.0], n=[3, 1, 1])
    play = world.play(CFA(PATH, local=STEP), 2, outage=cut((2, "show", 0, 2)))
    assert own(play, value) == pytest.approx([3.75, 0.75, -9])
