"""FedBABU: the head is one value for ever, the body is FedAvg's, and clients fine-tune on their own."""

from typing import Any

import pytest
import torch

from unskew.algorithms.fedbabu import FedBABU
from unskew.protocol import SgdConfig
from unskew.tree import Params

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.9, weight_decay=0.1)
HEAD = {"head.weight", "head.bias"}
NORM = {"bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"}
FC = {"fc.weight", "fc.bias"}


def changed(before: Params, after: Params) -> set[str]:
    return {n for n in before if not torch.equal(before[n], after[n])}


@pytest.mark.parametrize(
    ("finetune", "moved"), [("none", set()), ("head", HEAD), ("body", FC | NORM), ("all", HEAD | FC | NORM)]
)
def test_finetuning_moves_what_it_was_told_and_nothing_is_remembered(
    finetune: Any, moved: set[str], classes: Any
) -> None:
    world = classes(norm=True)
    play = world.play(FedBABU(finetune, 3, local=SMALL), 2)
    own = {c: play.own(c) for c in range(4)}
    assert all(changed(play.params[-1], model) == moved for model in own.values())
    assert len({model["head.bias"][0].item() for model in own.values()}) == (4 if "head.bias" in moved else 1)
    assert all(play.sim.memory.get(c) is None for c in range(4))
