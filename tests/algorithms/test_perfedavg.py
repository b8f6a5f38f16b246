"""Per-FedAvg: the meta-gradient in its three forms, on independent batches, and what it leads to."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

import unskew as us
from unskew.algorithms.parts import steps_of
from unskew.algorithms.perfedavg import PerFedAvg
from unskew.local.sequential import Sequential
from unskew.local.trainer import LocalTrainer
from unskew.protocol import SgdConfig
from unskew.runtime.in_process import Simulator

ONCE = SgdConfig(lr=0.5, local_steps=1, batch_size=None)
SECOND: tuple[Any, ...] = ("hessian_free", "exact")


@pytest.mark.parametrize("delta", [1e-3, 0.1, 100.0])
def test_on_a_quadratic_differences_are_exact_whatever_their_length(delta: float, springs: Any, equal: Any) -> None:
    """I-25: a difference of linear functions."""
    world, local = springs(m=[3.0, -1.0], a=[2.0, 0.5]), SgdConfig(lr=0.2, local_steps=4, batch_size=None)
    exact = world.play(PerFedAvg(0.3, "exact", local=local)).params
    equal(world.play(PerFedAvg(0.3, "hessian_free", delta, local=local)).params, exact, atol=1e-11)


def test_batches_are_independent_and_both_sides_of_a_difference_see_the_same(classes: Any) -> None:
    """In each meta-step D, D', D'', D'': 30 examples, batches of 4; no two of the first three alike."""
    world, seen = classes(n=[30]), []

    def note(x: Tensor, draws: torch.Generator) -> Tensor:
        seen.append((tuple(x[:, 0].tolist()), torch.rand((), generator=draws).item()))
        return x

    for order in SECOND:
        seen.clear()
        trainer = LocalTrainer(world.task, dataclasses.replace(world.device_data, augment=note), dtype=torch.float64)
        local = SgdConfig(0.1, local_steps=3, batch_size=4)
        sim: Any = Simulator(PerFedAvg(0.1, order, local=local), world.population, Sequential(trainer))
        sim.round(sim.start(), 1)
        assert len(seen) == 3 * 4
        for s in range(3):
            d, d1, up, down = seen[4 * s : 4 * s + 4]
            assert up == down
            assert len({d, d1, up}) == 3
        assert len({batch for batch, _ in seen}) == 9


def test_steps_are_as_many_as_fedavgs_and_of_one_rate() -> None:
    """A client smaller than a batch still takes part where the last is dropped; single steps have no schedule."""
    for drop, steps in ((False, [2, 2, 6]), (True, [2, 2, 4])):
        assert [steps_of(SgdConfig(local_epochs=2, batch_size=4, drop_last=drop), n) for n in (1, 4, 9)] == steps
    with pytest.raises(us.ConfigError, match="leave step_schedule = Exponential"):
        PerFedAvg(local=SgdConfig(step_schedule=us.Exponential(0.5)))


def test_a_client_uses_the_model_after_inner_steps_on_its_own_data(springs: Any, value: Any) -> None:
    """a = 2, m = 3, alpha .2: each step leaves .6 of the gap; with none it is the meta-model itself."""
    world = springs(m=[3.0, -1.0], a=[2.0, 2.0])
    for steps in (0, 1, 3):
        play = world.play(PerFedAvg(0.2, adapt_steps=steps, local=ONCE), 2)
        w = value(play.params[-1])
        assert [value(play.own(c)) for c in (0, 1)] == pytest.approx([m + 0.6**steps * (w - m) for m in (3.0, -1.0)])
    plain = world.play(PerFedAvg(adapt_steps=0, local=ONCE), 1)
    assert plain.sim.own_models(plain.states[-1], [0], 1)[0] is plain.states[-1].params
