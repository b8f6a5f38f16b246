"""FedSwap: who trains which model, what it costs, and that a lost leg is survived."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unskew.algorithms.fedswap import FedSwap, permuted
from unskew.keys import Key
from unskew.protocol import SgdConfig
from unskew.runtime import round as round_driver

STEP = SgdConfig(lr=0.5, local_steps=1, batch_size=None)
ROUTES = ["server", "d2d"]


# ---------------------------------------------------------------- permutations
@given(n=st.integers(0, 30), seed=st.integers(0, 500))
def test_orders_are_permutations_of_their_kind(n: int, seed: int) -> None:
    """I-38: no model is lost or doubled; a derangement leaves none, a pairing exactly n mod 2 in its place."""
    for kind in ("uniform", "derangement", "pairing"):
        order = permuted(kind, n, Key(seed))
        assert sorted(order) == list(range(n))
        assert order == permuted(kind, n, Key(seed))
        stay = sum(i == j for i, j in enumerate(order))
        if kind == "derangement":
            assert stay == (1 if n == 1 else 0)
        if kind == "pairing":
            assert stay == n % 2
            assert all(order[j] == i for i, j in enumerate(order))


@pytest.mark.parametrize(("kind", "count"), [("uniform", 24), ("derangement", 9), ("pairing", 3)])
def test_all_orders_of_a_kind_are_drawn_alike(kind: Any, count: int) -> None:
    """Of 4: 4! orders, 9 derangements, 3 pairings; 2,400 draws, each within five standard deviations of its share."""
    seen: dict[tuple[int, ...], int] = {}
    for seed in range(2400):
        order = tuple(permuted(kind, 4, Key(seed)))
        seen[order] = seen.get(order, 0) + 1
    share = 1 / count
    slack = 5 * (2400 * share * (1 - share)) ** 0.5
    assert len(seen) == count
    assert all(abs(times - 2400 * share) < slack for times in seen.values())


# ---------------------------------------------------------------- losses
@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Loses the replies of given (leg, client), the work being done."""

    def lose(*lost: tuple[int, int]) -> None:
        def fate(self: Any, step: str, client: int) -> Any:
            return "late" if (self.asked[step], client) in lost else None

        monkeypatch.setattr(round_driver._Round, "fate", fate)

    return lose


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("lost", "end"),
    [
        # Leg 1 gives 2 and 0.  Model 0 goes to client 1 and is lost there: 2 remains; model 1 becomes 2 on client 0.
        ([(1, 1)], 2.0),
        # Model 1 was not trained in leg 1 and is still w = 0: 2 after client 0.  Model 0 becomes 1 on client 1.
        ([(0, 1)], 1.5),
        # Model 1 was never trained: left out.  Model 0 becomes 1.
        ([(0, 1), (1, 0)], 1.0),
        # Only leg 2 came back: 0 * .5 = 0 on client 1, 2 on client 0.
        ([(0, 0), (0, 1)], 1.0),
    ],
)
def test_a_lost_leg_is_not_fatal(
    route: Any, lost: list[tuple[int, int]], end: float, losing: Any, springs: Any, value: Any
) -> None:
    """As by hand above; whoever had the model before has it still."""
    losing(*lost)
    play = springs(m=[4.0, 0.0]).play(FedSwap(2, "derangement", "uniform", route, STEP), 1, codec=True)
    assert value(play.params[1]) == pytest.approx(end)
    assert len(play.traces[0].failures) == len(lost)
