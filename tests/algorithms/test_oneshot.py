"""One-shot averaging."""

from typing import Any

import pytest

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.oneshot import OneShot, longer
from unskew.protocol import SgdConfig

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.5)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_it_is_the_first_round_of_fedavg(weighting: Any, classes: Any, equal: Any) -> None:
    """I-41."""
    world, long = classes(n=[4, 7, 9], norm=True), SgdConfig(lr=0.1, local_epochs=6, batch_size=3, momentum=0.5)
    ours = world.play(OneShot(local=SMALL, rounds_worth=3, weighting=weighting), 1, clients_per_round=2)
    equal(ours.params, world.play(FedAvg(long, weighting), 1, clients_per_round=2).params, atol=0.0)


def test_after_its_round_it_rests(classes: Any, equal: Any) -> None:
    """No bytes, no work, the same model."""
    play = classes().play(OneShot(local=SMALL), rounds=3)
    assert play.bytes[0] > 0
    assert play.bytes[1:] == [0, 0]
    assert [len(t.losses) for t in play.traces] == [4, 0, 0]
    equal(play.params[1], play.params[3], atol=0.0)


@pytest.mark.parametrize(
    ("local", "long"),
    [
        (SgdConfig(), SgdConfig(local_epochs=5)),
        (SgdConfig(local_epochs=3), SgdConfig(local_epochs=15)),
        (SgdConfig(local_steps=3, lr=0.5), SgdConfig(local_steps=15, lr=0.5)),
    ],
)
def test_its_budget_is_that_of_many_rounds(local: SgdConfig, long: SgdConfig) -> None:
    assert longer(local, 5) == long


def test_one_step_worth_many_rounds_by_hand(springs: Any, value: Any) -> None:
    """Three steps of .5 towards 8 and -4, from 0: 7 and -3.5, the mean is 1.75."""
    local = SgdConfig(lr=0.5, local_steps=1, batch_size=None)
    play = springs(m=[8.0, -4.0]).play(OneShot(local=local, rounds_worth=3), rounds=2)
    assert [value(p) for p in play.params] == [0.0, 1.75, 1.75]
