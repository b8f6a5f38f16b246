"""FedAvg inside given groups."""

from typing import Any

import pytest

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.grouped import Grouped
from unskew.errors import ConfigError
from unskew.protocol import SgdConfig

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.5)
HALF = SgdConfig(lr=0.5, local_steps=1, batch_size=None)


def test_a_group_is_fedavg_among_its_members(springs: Any, value: Any) -> None:
    """A step of .5 towards m from 0, members with 1 and 3 examples: (1 * 4 + 3 * 2) / 4 = 2.5 beside -4 alone.

    The second: 2.5 + .5 (8 - 2.5) = 5.25 and 2.5 + .5 (4 - 2.5) = 3.25, (5.25 + 3 * 3.25) / 4 = 3.75; -4 - 2 = -6.
    """
    world = springs(m=[8.0, -8.0, 4.0], n=[1, 1, 3])
    plays = [world.play(Grouped(((0, 2), (1,)), HALF), rounds) for rounds in (1, 2)]
    assert [[value(p.own(c)) for c in range(3)] for p in plays] == [[2.5, -4.0, 2.5], [3.75, -6.0, 3.75]]


def test_heads_stay_with_clients_and_bodies_with_groups(classes: Any, equal: Any) -> None:
    world = classes()
    play = world.play(Grouped(((0, 1, 2, 3),), SMALL, personal=("head",)))
    whole = world.play(FedAvg(SMALL, personal=("head",)))
    for c in range(4):
        equal(play.own(c), whole.own(c), atol=0.0)
    assert play.params == [None] * 4


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        (((0, 1), (1, 2, 3)), "groups must hold every client once, got client 1 more than once"),
        (((0, 0, 1), (2, 3)), "got client 0 more than once"),
        (((0, 1),), "groups must hold every client, clients 2, 3 in none"),
        ((), "clients 0, 1, 2, 3 in none"),
        (((0, 1, 2, 3, 4),), "groups must name clients, which are 0 to 3, got client 4"),
        (((-1, 0, 1), (2, 3)), "got client -1"),
        (((0, 1), (), (2, 3)), r"got an empty group in \[\[0, 1\], \[\], \[2, 3\]\]"),
    ],
)
def test_groups_that_are_no_division_of_the_clients_are_refused(classes: Any, groups: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        classes().play(Grouped(groups, SMALL), rounds=0)
