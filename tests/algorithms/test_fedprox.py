"""FedProx: the pull, and the paper's way of drawing a cohort."""

from typing import Any

import pytest
import torch

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.fedprox import FedProx, Proximal
from unskew.algorithms.parts import SizeReply
from unskew.algorithms.scaffold import Correction
from unskew.protocol import SgdConfig
from unskew.world.outage import Outage

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.5)


def test_the_pull_is_half_the_squared_distance() -> None:
    """mu/2 ((3-1)^2 + (0-2)^2) = 4 mu; its gradient is mu (2, -2).  At the anchor it is 0 with gradient 0, not NaN."""
    w = torch.tensor([3.0, 0.0], requires_grad=True)
    term = Proximal(0.25)
    pull = term({"w": w}, {"anchor": {"w": torch.tensor([1.0, 2.0])}})
    pull.backward()
    assert pull.item() == pytest.approx(1.0)
    assert w.grad is not None
    assert w.grad.tolist() == [0.5, -0.5]
    still = torch.ones(2, requires_grad=True)
    term({"w": still}, {"anchor": {"w": torch.ones(2)}}).backward()
    assert still.grad is not None
    assert still.grad.tolist() == [0.0, 0.0]


def test_with_one_step_the_pull_does_nothing(classes: Any, equal: Any) -> None:
    """I-6: a client that stands on its anchor is not pulled."""
    world, once = classes(n=[4, 7, 9]), SgdConfig(lr=0.3, local_steps=1, batch_size=3)
    equal(world.play(FedProx(mu=50.0, local=once)).params, world.play(FedAvg(once)).params)


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


def test_the_gradients_that_terms_write_out_are_autograds_bit_by_bit() -> None:
    g = torch.Generator().manual_seed(4)
    params, other = ({"a": torch.randn(5, 3, generator=g), "b": torch.randn(3, generator=g)} for _ in range(2))
    for term, aux in ((Proximal(0.37), {"anchor": other}), (Correction(), {"correction": other})):
        leaves = {n: w.clone().requires_grad_() for n, w in params.items()}
        term(leaves, aux).backward()  # type: ignore[no-untyped-call]
        written_out = term.gradient(params, aux)
        assert all(torch.equal(written_out[n], w.grad) for n, w in leaves.items())  # type: ignore[arg-type]
