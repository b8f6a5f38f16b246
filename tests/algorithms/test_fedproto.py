"""FedProto: the pull, the prototypes, and classes that nobody has."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from unskew.algorithms.fedproto import FedProto, PrototypePull
from unskew.protocol import Batch, SgdConfig

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.5)


def own_prototypes(play: Any, client: int) -> dict[int, Tensor]:
    """Mean features of a client's classes under the model it keeps."""
    rows = play.sim.executor.trainer.device_data.train[client]
    device_data = play.sim.executor.trainer.device_data
    r, _ = play.sim.executor.trainer.refer(device_data.x[rows], play.own(client))
    return {c: r[device_data.y[rows] == c].mean(0) for c in set(device_data.y[rows].tolist())}


def test_the_pull_by_hand() -> None:
    """d = 2: (3, 1) to (1, 1) is 4 / 2 = 2, (0, 0) of an unknown class 0: mean 1, times lam = 3; no padding."""
    features = torch.tensor([[3.0, 1.0], [0.0, 0.0], [50.0, 50.0]])
    y, mask = torch.tensor([0, 1, 0]), torch.tensor([1.0, 1.0, 0.0])
    batch = Batch(features, y, mask, features, features, mask, lambda p: (features, features))
    aux = {"prototypes": torch.tensor([[1.0, 1.0], [9.0, 9.0]]), "known": torch.tensor([1.0, 0.0])}
    assert PrototypePull(3.0)({}, aux, batch).item() == pytest.approx(3.0)


def test_a_class_held_by_one_client_has_that_clients_mean(classes: Any) -> None:
    """I-23: class 2 is client 1's; class 0 is shared 1 to 3 and weighed by examples, or alike."""
    world = classes(n=[4, 4]).labelled([[0, 1, 1, 1], [0, 0, 0, 2]])
    for averaging, share in (("examples", 0.25), ("clients", 0.5)):
        play = world.play(FedProto(averaging=averaging, local=SMALL), rounds=1)
        first, second = own_prototypes(play, 0), own_prototypes(play, 1)
        got = play.states[1].spread()
        torch.testing.assert_close(got[2], second[2])
        torch.testing.assert_close(got[1], first[1])
        torch.testing.assert_close(got[0], share * first[0] + (1 - share) * second[0])
        assert play.states[1].counts.tolist() == [4, 3, 1]


def test_a_class_nobody_reports_keeps_its_prototype_and_an_unseen_one_stays_absent(classes: Any) -> None:
    """I-23."""
    world = classes(n=[4, 4]).labelled([[0, 0, 0, 0], [1, 1, 1, 1]])
    play = world.play(FedProto(local=SMALL), rounds=8, clients_per_round=1)
    cohorts = [next(t.src - 1 for t in x.transfers if t.direction == "up") for x in play.traces]
    assert set(cohorts) == {0, 1}
    for before, after, client in zip(play.states, play.states[1:], cohorts, strict=False):
        other = 1 - client
        assert int(after.counts[2]) == 0
        assert torch.equal(after.spread()[other], before.spread()[other])
        assert not torch.equal(after.spread()[client], before.spread()[client])
    assert len(play.states[-1].rows) == 2


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
