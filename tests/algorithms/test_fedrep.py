"""FedRep: what each phase may touch, and what each leaves."""

from typing import Any

import torch

from unskew.algorithms.fedrep import FedRep
from unskew.protocol import SgdConfig
from unskew.tree import Params

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.9, weight_decay=0.1)
HEAD = {"head.weight", "head.bias"}


def changed(before: Params, after: Params) -> set[str]:
    return {n for n in before if not torch.equal(before[n], after[n])}


def test_finetuning_moves_the_head_alone_and_is_forgotten(classes: Any) -> None:
    """As the authors' code does after the last round."""
    world = classes(norm=True)
    plain, tuned = (world.play(FedRep(2, local=SMALL, finetune_epochs=k), 2) for k in (0, 4))
    for client in range(4):
        assert changed(plain.own(client), tuned.own(client)) == HEAD
    assert torch.equal(tuned.own(0)["head.bias"], tuned.own(0)["head.bias"])
    assert changed(plain.sim.memory.get(0), tuned.sim.memory.get(0)) == set()
