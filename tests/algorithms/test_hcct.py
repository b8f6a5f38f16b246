"""HCCT: rounds by hand, limits, who goes where when somebody is missing, comes or goes, and what is compared."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from unskew.algorithms.hcct import (
    HCCT,
    HCCT_E,
    Arrivals,
    HCCTReply,
    HCCTState,
    published_score,
    telling,
)
from unskew.algorithms.independent import Independent
from unskew.info import Apart, GroupMerge, Refused
from unskew.keys import Key
from unskew.protocol import Federation, Layout, SgdConfig, drive
from unskew.tree import Params

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3)
ONE = SgdConfig(lr=0.5, local_steps=1, batch_size=None)
HUGE = 1e9


# ---------------------------------------------------------------- rounds without training
def federation(clients: int, round: int, layout: Layout, cohort: int | None = None) -> Federation:
    return Federation(tuple(range(clients)), 2, layout, round, Key(0) / round, cohort or clients, lambda key: {})


@dataclasses.dataclass
class Server:
    """Drives rounds with gradients of our choice: a client asked in round t moves by minus its gradient."""

    method: HCCT
    clients: int
    layout: Layout = dataclasses.field(default_factory=lambda: Layout(("w",)))
    wide: int = 2
    n: int = 10

    def __post_init__(self) -> None:
        self.t = 0
        self.state = self.method.init({"w": torch.zeros(self.wide)}, federation(self.clients, 0, self.layout))
        self.sent: dict[int, Params] = {}

    def round(self, gradients: Mapping[int, Any], cohort: int | None = None) -> HCCTState:
        """Clients that are asked and have no gradient here are lost."""
        self.t += 1

        def answer(want: Any) -> Any:
            self.sent = {c: m.params for c, m in want.to.items()}
            return {
                c: g if isinstance(g, HCCTReply) else HCCTReply({"w": self.sent[c]["w"] - torch.tensor(g)}, self.n, 1)
                for c in want.to
                if (g := gradients.get(c)) is not None
            }

        fed = federation(self.clients, self.t, self.layout, cohort)
        self.state = drive(self.method.round(self.state, fed), answer)
        return self.state


RIGHT, UP, LEFT = [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]


# ---------------------------------------------------------------- worked
def test_two_rounds_by_hand(springs: Any, value: Any) -> None:
    """F_k = (w - m_k)^2 / 2, m = 4, 5, -4, ten examples each; lr .5, one step, alpha = 1.

    Round 1, everybody alone from 0: 2, 2.5, -2; gradients -4, -5, 4.
    Round 2: 0 and 1 point the same way, benefit alpha (2/10 - 2/20) = .1 with cosines 1; 2 points the other way.
    Groups {0, 1} from (2 + 2.5) / 2 = 2.25 and {2} from -2: 2.25 + .5 * 1.75 = 3.125, 2.25 + .5 * 2.75 = 3.625, mean
    3.375; -2 - .5 * 2 = -3.
    """
    world = springs(m=[4.0, 5.0, -4.0], n=[10, 10, 10])
    play = world.play(HCCT(ONE, alpha=1.0), 2)
    first, second = play.states[1:]
    assert first.groups == ((0,), (1,), (2,))
    assert [value(m) for m in first.models] == pytest.approx([2.0, 2.5, -2.0])
    assert second.groups == ((0, 1), (2,))
    assert [value(m) for m in second.models] == pytest.approx([3.375, -3.0])
    assert value(second.mean) == pytest.approx((2 * 3.375 - 3.0) / 3)
    info = play.sim.method.info(second)
    assert info.history == (GroupMerge((0, 1), pytest.approx(0.1), pytest.approx(2.8)),)
    assert info.utility == pytest.approx([0.95, 0.95, 0.9])
    assert info.similarity == ((1.0, 1.0, -1.0), (1.0, 1.0, -1.0), (-1.0, -1.0, 1.0))


# ---------------------------------------------------------------- when groups are made
def test_groups_follow_the_gradients_of_the_round_before() -> None:
    server = Server(HCCT(alpha=1.0), 3)
    assert server.round({0: RIGHT, 1: RIGHT, 2: UP}).groups == ((0,), (1,), (2,))
    assert server.round({0: RIGHT, 1: UP, 2: UP}).groups == ((0, 1), (2,))
    assert server.round({0: RIGHT, 1: RIGHT, 2: RIGHT}).groups == ((0,), (1, 2))
    assert server.round({0: RIGHT, 1: UP, 2: LEFT}).groups == ((0, 1, 2),)


@pytest.mark.parametrize(("how", "due"), [({"recluster_every": 2}, [2, 4, 6]), ({"one_shot": True}, [2])])
def test_partitions_are_made_when_they_are_due(how: dict[str, Any], due: list[int]) -> None:
    """Gradients change sides in every round, so groups change exactly when a partition is made."""
    server = Server(HCCT(alpha=1.0, **how), 3)
    sides = [{0: RIGHT, 1: RIGHT, 2: UP}, {0: RIGHT, 1: UP, 2: UP}]
    made = []
    before: Any = None
    for t in range(1, 8):
        state = server.round(sides[t % 2])
        if server.method.info(state).history:
            made.append(t)
        if t > 2 and t not in due:
            assert state.groups == before
        before = state.groups
    assert made == due


# ---------------------------------------------------------------- who is missing
def test_an_absent_client_goes_where_most_of_its_group_goes() -> None:
    server = Server(HCCT(alpha=1.0, warmup="global"), 5)
    server.round({0: RIGHT, 1: UP, 2: UP, 3: RIGHT})
    assert server.round({0: RIGHT, 1: UP}).groups == ((0, 3, 4), (1, 2))  # 20 to 20 examples: the smaller number
    state = server.round({0: RIGHT, 1: RIGHT})
    assert state.groups == ((0, 3, 4), (1, 2))
    assert server.round({c: RIGHT for c in range(5)}).groups == ((0, 1, 2, 3, 4),)


def test_a_group_nobody_of_which_was_heard_stays_as_it_is() -> None:
    server = Server(HCCT(alpha=1.0), 4)
    server.round({0: RIGHT, 1: RIGHT, 2: UP, 3: UP})
    server.round({0: RIGHT, 1: RIGHT})
    before = server.state
    state = server.round({0: RIGHT})
    assert state.groups == before.groups == ((0, 1), (2, 3))
    assert state.models[1] is before.models[1]


# ---------------------------------------------------------------- updates that are none
def test_an_update_that_is_not_finite_is_not_averaged_and_its_client_stays_alone() -> None:
    server = Server(HCCT(alpha=HUGE), 3)
    good = {0: RIGHT, 1: RIGHT, 2: RIGHT}
    server.round(good)
    state = server.round({**good, 1: [math.nan, 0.0]})
    assert state.groups == ((0, 1, 2),)
    assert state.models[0]["w"].tolist() == [-2.0, 0.0]
    assert server.method.info(state).ignored == (Refused(1, "train", "its update is not finite"),)
    state = server.round(good)
    assert state.groups == ((0, 2), (1,))
    assert state.models[1]["w"].tolist() == [-3.0, 0.0]  # it went on from its group's model
    assert server.method.info(state).alone == (Apart(1, "its update is not finite"),)
    assert server.round(good).groups == ((0, 1, 2),)


def test_a_client_whose_training_diverges_says_so_and_stays_alone(springs: Any) -> None:
    """Curvature 1e200 at rate .5: w is of the order of 1e200 after a step, and infinite after the next."""
    method = HCCT(SgdConfig(lr=0.5, local_steps=3), alpha=HUGE, warmup="global")
    play = springs([1.0, 1.0, 1.0], a=[1.0, 1e200, 1.0]).play(method, 2)
    first, second = (method.info(s) for s in play.states[1:])
    assert first.groups == ((0, 1, 2),)
    assert first.ignored == (Refused(1, "train", "its training diverged"),)
    assert play.states[1].models[0]["head.weight"].item() == 0.875  # of the others: 1 - .5^3
    assert second.groups == ((0, 2), (1,))
    assert second.alone == (Apart(1, "its training diverged"),)
    assert play.states[2].models[1]["head.weight"].item() == 0.875
    assert [len(t.losses) for t in play.traces] == [2, 2]
    assert not any(t.failures for t in play.traces)


# ---------------------------------------------------------------- arrivals
def test_arrivals_come_and_others_go_in_their_rounds() -> None:
    """Three at the start, two more and one fewer after every second round, of eight."""
    who = Arrivals(start=3, every=2, number=2, leaving=1)
    there = [who.present(t, range(8)) for t in range(1, 9)]
    expected = [range(3), range(3), range(1, 5), range(1, 5), range(2, 7), range(2, 7), range(3, 8), range(3, 8)]
    assert there == [tuple(r) for r in expected]
    assert Arrivals(2, 1, 0, 1).present(99, range(8)) == (1,)


def test_an_arrival_trains_from_the_mean_and_is_placed_in_the_next_round() -> None:
    """Groups {0, 1} and {2}; 3 comes in round 3 and resembles 2 more than anybody."""
    server = Server(HCCT(alpha=1.0, arrivals=Arrivals(3, 2)), 4)
    old = {0: RIGHT, 1: RIGHT, 2: UP}
    server.round(old)
    before = server.round(old)
    assert 3 not in server.sent
    assert server.method.serve(before, 3) is before.mean
    state = server.round({**old, 3: [0.01, 1.0]})
    assert server.sent[3] is before.mean
    assert state.groups == ((0, 1), (2,), (3,))
    state = server.round({**old, 3: [0.01, 1.0]})
    assert state.groups == ((0, 1), (2, 3))
    (placed,) = server.method.info(state).placed
    assert (placed.client, placed.group) == (3, 2)
    assert placed.benefit == pytest.approx(0.1, abs=1e-4)


def test_placing_leaves_the_others_where_they_would_be_without_the_arrival() -> None:
    """An arrival between two groups draws them into one partition by Algorithm 2, but only joins one of them."""
    gradients = {0: RIGHT, 1: UP, 2: [1.0, 1.0]}
    ends = {}
    for placement in ("greedy", "recluster"):
        server = Server(HCCT(alpha=5.0, placement=placement, arrivals=Arrivals(2, 2)), 3)
        for _ in range(4):
            state = server.round(gradients)
        ends[placement] = state.groups
    assert ends == {"greedy": ((0, 2), (1,)), "recluster": ((0, 1, 2),)}


# ---------------------------------------------------------------- what is compared
TWO = Layout(("body.weight", "body.bias", "head.weight"), ("bn.running_mean", "bn.running_var"), ("head.weight",))


def evidence(method: HCCT, moves: Sequence[Params], steps: Sequence[int] | None = None) -> tuple[HCCTState, Tensor]:
    """State and Gram matrix after one round from zero, with these displacements turned round."""
    method = dataclasses.replace(method, alpha=100.0)
    zero = {n: torch.zeros_like(t) for n, t in moves[0].items()}
    fed = federation(len(moves), 1, TWO)
    replies = {c: HCCTReply({n: -t for n, t in m.items()}, 10, steps[c] if steps else 1) for c, m in enumerate(moves)}
    state: HCCTState = drive(method.round(method.init(zero, federation(len(moves), 0, TWO)), fed), lambda want: replies)
    assert state.evidence is not None
    return state, state.evidence.gram


def moves(clients: int = 3, seed: int = 1) -> list[Params]:
    g = Key(seed).generator()
    shapes = {
        "body.weight": (4, 2),
        "body.bias": (4,),
        "head.weight": (3,),
        "bn.running_mean": (4,),
        "bn.running_var": (4,),
    }
    return [{n: torch.randn(s, generator=g) for n, s in shapes.items()} for _ in range(clients)]


def inner(of: Sequence[Params], names: Sequence[str]) -> Tensor:
    rows = torch.stack([torch.cat([m[n].reshape(-1) for n in names]) for m in of]).double()
    return rows @ rows.T


def test_gradients_are_of_parameters_only() -> None:
    _, k = evidence(HCCT(), moves())
    torch.testing.assert_close(k, inner(moves(), TWO.trainable))


def test_published_gradients_have_buffers_and_batch_counters_in_them() -> None:
    """One BatchNorm layer: its counter goes up by the steps, the displacement start - end is minus that."""
    _, k = evidence(HCCT(include_buffers=True), moves(), [2, 3, 5])
    counter = torch.tensor([2.0, 3.0, 5.0], dtype=torch.float64)
    torch.testing.assert_close(k, inner(moves(), [*TWO.trainable, *TWO.buffers]) + torch.outer(counter, counter))


def test_a_mean_gradient_is_divided_by_its_steps() -> None:
    _, k = evidence(HCCT(normalize="mean"), moves(), [1, 2, 4])
    scaled = [{n: t / s for n, t in m.items()} for m, s in zip(moves(), [1, 2, 4], strict=True)]
    torch.testing.assert_close(k, inner(scaled, TWO.trainable))


@pytest.mark.parametrize(("common", "chosen"), [("head.weight", "body"), ("body.weight", "head")])
def test_the_telling_layer_is_the_one_in_which_clients_differ(common: str, chosen: str) -> None:
    """A large common part in one layer makes the variance small beside the mean there, at whatever scale."""
    for scale in (1e-4, 1.0, 1e4):
        of = [{n: scale * t + (100.0 * scale if n == common else 0.0) for n, t in m.items()} for m in moves(6)]
        state, k = evidence(HCCT_E(), of)
        assert state.layer == chosen
        names = [n for n in TWO.trainable if n.startswith(chosen)]
        torch.testing.assert_close(k, inner(of, names), rtol=1e-5, atol=0.0)


def test_the_score_is_variance_over_squared_mean() -> None:
    """(1, 3) and (3, 5): coordinates have variance 1, 1 and means 2, 4: 1 / ((4 + 16) / 2) = .1."""
    g = torch.tensor([[1.0, 3.0], [3.0, 5.0]], dtype=torch.float64)
    assert telling(g @ g.T) == pytest.approx(0.1)
    assert telling(1e6 * (g @ g.T)) == pytest.approx(0.1)
    assert telling(torch.zeros(3, 3, dtype=torch.float64)) == 0.0
    opposite = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    assert telling(opposite) == pytest.approx(1e12)


def test_the_published_score_is_signed_and_over_all_entries() -> None:
    """Weight entries 1, 3, 3, 5: mean 3, variance 2; bias entries -1, -3: mean -2, variance 1: 2/3 - 1/2."""
    starts = [{"w": torch.zeros(2), "b": torch.zeros(1)}] * 2
    ends = [
        {"w": torch.tensor([-1.0, -3.0]), "b": torch.tensor([1.0])},
        {"w": torch.tensor([-3.0, -5.0]), "b": torch.tensor([3.0])},
    ]
    assert published_score(starts, ends, ["w", "b"]) == pytest.approx(2 / 3 - 1 / 2)
    assert published_score(starts, starts, ["w", "b"]) == 0.0


def test_statistics_of_a_group_are_the_mean_or_the_first_clients(classes: Any, equal: Any) -> None:
    world = classes(n=[4, 8], norm=True)
    runs = {
        how: world.play(HCCT(SMALL, groups=1, warmup="global", group_buffers=how), 1).params[1]
        for how in ("mean", "first")
    }
    alone = world.play(Independent(SMALL), 1).own(0)
    for name in world.task.layout.trainable:
        assert torch.equal(runs["mean"][name], runs["first"][name])
    for name in world.task.layout.buffers:
        assert torch.equal(runs["first"][name], alone[name])
        assert not torch.equal(runs["mean"][name], alone[name])
