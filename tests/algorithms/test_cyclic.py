"""Cyclic weight transfer: who is visited in which order, what it costs, and that a lost visit is survived."""

from typing import Any

import pytest
import torch

from unskew.algorithms.cyclic import Cyclic
from unskew.keys import Key
from unskew.protocol import SgdConfig
from unskew.runtime import round as round_driver

STEP = SgdConfig(lr=0.5, local_steps=1, batch_size=None)
ROUTES = ["d2d", "server"]


def test_the_order_is_drawn_for_each_round_and_decides_the_model(springs: Any, value: Any) -> None:
    """Of m = 4 and 0: ending at client 1 gives 1, ending at client 0 gives 2; both come about."""
    ends = {}
    for seed in range(12):
        play = springs(m=[4.0, 0.0]).play(Cyclic(local=STEP), 1, seed=seed)
        order = torch.randperm(2, generator=(Key(seed) / "server" / 1 / "order").generator()).tolist()
        ends[order[-1]] = value(play.params[1])
    assert ends == pytest.approx({0: 2.0, 1: 1.0})


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Loses the replies of given clients, the work being done."""

    def lose(*lost: int) -> None:
        monkeypatch.setattr(round_driver._Round, "fate", lambda self, step, client: "late" if client in lost else None)

    return lose


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("lost", "end"), [((1,), 5.0), ((2,), 1.0), ((0,), 4.0), ((0, 2), 0.0), ((1, 2), 2.0)])
def test_a_lost_client_is_passed_over(
    route: Any, lost: tuple[int, ...], end: float, losing: Any, springs: Any, value: Any
) -> None:
    """m = 4, 0, 8 in this order, halfway each: without 1: 2, 5; without 2: 2, 1; without 0: 0, 4; and so on."""
    losing(*lost)
    play = springs(m=[4.0, 0.0, 8.0]).play(Cyclic("fixed", route, STEP), 1, codec=True)
    assert value(play.params[1]) == pytest.approx(end)
    assert len(play.traces[0].failures) == len(lost)
