"""FedDyn: what the linear terms are, that h is their mean whatever is lost, and what its limits are not."""

from typing import Any

import pytest
import torch

from unskew.algorithms.feddyn import DynamicRegulariser, FedDyn
from unskew.errors import QuorumError
from unskew.protocol import SgdConfig
from unskew.world.outage import Outage

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3)


def test_the_term_pulls_to_w_and_leans_on_g() -> None:
    """d/dy 1/omega [alpha/2 (y - w)^2 - g y] = (alpha (y - w) - g) / omega = (3 (2 - 1) - 5) / 4 = -.5."""
    y, other = torch.tensor([2.0], requires_grad=True), torch.ones(1, requires_grad=True)
    aux = {
        "anchor": {"y": torch.tensor([1.0]), "other": torch.zeros(1)},
        "g": {"y": torch.tensor([5.0])},
        "share": torch.tensor(0.25),
    }
    DynamicRegulariser(3.0)({"y": y, "other": other}, aux).backward()
    assert y.grad is not None
    assert y.grad.tolist() == [-0.5]
    assert other.grad is None


def test_two_rounds_by_hand(springs: Any, value: Any) -> None:
    """F_k = (w - m_k)^2 / 2 with m = 4, 0; alpha 1, lr .5, 2 steps, from 0.

    Round 1, g = 0.  Client 0: gradient -4 + 0, y = 2; -2 + 2 = 0, y = 2; g_0 = -2.  Client 1 stays at 0; g_1 = 0.
             h = -1/2 (2 + 0) = -1; w = 1 + 1 = 2.
    Round 2. Client 0: gradient -2 + 0 + 2 = 0, y = 2; g_0 = -2.  Client 1: 2 + 0, y = 1; 1 - 1 = 0, y = 1; g_1 = 1.
             h = -1 - 1/2 (0 - 1) = -.5 = mean(-2, 1); w = 1.5 + .5 = 2, the optimum.
    """
    world = springs(m=[4.0, 0.0], n=[3, 1])
    play = world.play(FedDyn(1.0, local=SgdConfig(lr=0.5, local_steps=2, batch_size=None)), 2)
    assert [value(p) for p in play.params] == pytest.approx([0.0, 2.0, 2.0])
    assert [value(s.h) for s in play.states] == pytest.approx([0.0, -1.0, -0.5])
    assert [value(play.sim.memory.get(c).g) for c in (0, 1)] == pytest.approx([-2.0, 1.0])


# ---------------------------------------------------------------- what is remembered


def test_sizes_are_declared_once_and_asked_for_again_if_lost(classes: Any) -> None:
    """Every size is known in the end, and once all are, nobody is asked; without `scaled` nobody ever is."""
    method = FedDyn(scaled=True, local=SMALL)
    sim = classes(n=[4, 7, 9, 3, 5, 6]).simulator(method, outage=Outage(late=0.4), seed=2)
    state, known = sim.start(), []
    for t in range(1, 8):
        complete = len(state.n) == 6
        state, trace = sim.round(state, t)
        told = sum(x.kind == "control" and x.direction == "up" for x in trace.transfers)
        untold = sum(f.step == "declare" for f in trace.failures)
        assert (told + untold > 0) == (not complete)
        known.append(len(state.n))
    assert known[0] < 6
    assert complete
    assert sorted(state.n.items()) == list(enumerate([4, 7, 9, 3, 5, 6]))
    with pytest.raises(QuorumError, match="step 'declare': 0 of 4"):
        classes().play(method, 1, outage=Outage(late=1.0))
    assert classes().play(FedDyn(local=SMALL), 1).states[1].n == {}
