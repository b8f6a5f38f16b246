"""Local-only training."""

from typing import Any

import torch

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.independent import Independent
from unskew.protocol import SgdConfig

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.5)


def test_a_client_does_not_depend_on_the_others(classes: Any, equal: Any) -> None:
    """I-40: all other clients' data replaced."""
    one, other = classes(), classes()
    other.device_data.x[8:] = 7.0
    other.device_data.y[8:] = 2
    a, b = (w.play(Independent(SMALL)) for w in (one, other))
    equal(a.own(0), b.own(0), atol=0.0)
    assert not torch.equal(a.own(1)["fc.weight"], b.own(1)["fc.weight"])


def test_everybody_trains_in_every_round_whatever_the_cohort(classes: Any, equal: Any) -> None:
    """As much as a participant of FedAvg: the same losses are recorded for each client in round 1."""
    world = classes()
    play = world.play(Independent(SMALL), clients_per_round=1)
    assert [len(t.losses) for t in play.traces] == [4, 4, 4]
    equal(play.own(2), world.play(Independent(SMALL)).own(2), atol=0.0)
    assert play.traces[0].losses == world.play(FedAvg(SMALL), 1).traces[0].losses


def test_a_client_goes_on_from_its_own_model(springs: Any, value: Any) -> None:
    """A step of .5 towards m in each of three rounds, from 0: m (1 - 1/8)."""
    play = springs(m=[8.0, -8.0]).play(Independent(SgdConfig(lr=0.5, local_steps=1, batch_size=None)))
    assert [value(play.own(c)) for c in (0, 1)] == [7.0, -7.0]
