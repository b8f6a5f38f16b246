"""FedRep: what each phase may touch, and what each leaves."""

from typing import Any

import pytest
import torch

from unskew.algorithms.fedrep import FedRep
from unskew.local.sequential import Sequential
from unskew.local.trainer import LocalTrainer
from unskew.protocol import Fitted, Me, Sgd, SgdConfig
from unskew.runtime.in_process import Simulator
from unskew.tree import Params

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.9, weight_decay=0.1)
HEAD = {"head.weight", "head.bias"}
NORM = {"bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"}


class Watching(LocalTrainer):
    """Keeps every optimisation and what came of it."""

    seen: list[tuple[int, Sgd, Fitted]]

    def answer(self, me: Me, index: int, request: object) -> Any:
        value = super().answer(me, index, request)
        if isinstance(request, Sgd):
            self.seen.append((me.id, request, value))
        return value


def watched(world: Any, method: Any, rounds: int = 2, **settings: Any) -> list[tuple[int, Sgd, Fitted]]:
    trainer = Watching(world.task, world.device_data, dtype=torch.float64)
    trainer.seen = []
    sim = Simulator(method, world.population, Sequential(trainer), **settings)
    state = sim.start()
    for t in range(1, rounds + 1):
        state, _ = sim.round(state, t)
    return trainer.seen


def changed(before: Params, after: Params) -> set[str]:
    return {n for n in before if not torch.equal(before[n], after[n])}


@pytest.mark.parametrize("personal", [("head",), ("head", "norm")])
def test_each_phase_leaves_the_others_tensors_as_they_are(personal: tuple[str, ...], classes: Any) -> None:
    """I-21: bit-equal under momentum and weight decay; the body's BatchNorm belongs to the body."""
    world = classes(norm=True)
    own = HEAD | (NORM if "norm" in personal else set())
    everything = set(world.population.initial)
    seen = watched(world, FedRep(head_epochs=3, local=SMALL, personal=personal))
    assert len(seen) == 2 * 4 * 2
    for (client, first, head), (same, second, body) in zip(seen[::2], seen[1::2], strict=True):
        assert client == same
        assert changed(first.start, head.params) == own
        assert second.start is head.params
        assert changed(second.start, body.params) == everything - own
        assert (head.steps, body.steps) == (3 * 3, 2 * 3)


def test_finetuning_moves_the_head_alone_and_is_forgotten(classes: Any) -> None:
    """As the authors' code does after the last round."""
    world = classes(norm=True)
    plain, tuned = (world.play(FedRep(2, local=SMALL, finetune_epochs=k), 2) for k in (0, 4))
    for client in range(4):
        assert changed(plain.own(client), tuned.own(client)) == HEAD
    assert torch.equal(tuned.own(0)["head.bias"], tuned.own(0)["head.bias"])
    assert changed(plain.sim.memory.get(0), tuned.sim.memory.get(0)) == set()
