"""FedProto: the pull, the prototypes, and classes that nobody has."""

import dataclasses
from typing import Any

import torch

from unskew.algorithms.fedproto import FedProto
from unskew.protocol import SgdConfig

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.5)


def test_classes_may_be_numbered_otherwise(classes: Any) -> None:
    """I-23: with the classes and the rows of the head exchanged, prototypes are exchanged and nothing else."""
    labels, turn = [[0, 1, 2, 1], [2, 2, 0, 1]], [2, 0, 1]
    base = classes(n=[4, 4])
    one = base.labelled(labels).play(FedProto(local=SMALL), rounds=3)
    initial = dict(base.population.initial)
    for name in ("head.weight", "head.bias"):
        initial[name] = torch.empty_like(initial[name])
        for old, new in enumerate(turn):
            initial[name][new] = base.population.initial[name][old]
    moved = dataclasses.replace(base, population=dataclasses.replace(base.population, initial=initial))
    other = moved.labelled([[turn[c] for c in part] for part in labels]).play(FedProto(local=SMALL), rounds=3)
    torch.testing.assert_close(other.states[3].spread()[turn], one.states[3].spread(), rtol=0, atol=1e-12)
