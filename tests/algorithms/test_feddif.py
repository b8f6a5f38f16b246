"""FedDif: what travels, who may know it, where models go and when they stop."""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.feddif import (
    EFFICIENCY,
    Bids,
    CallForBids,
    Drift,
    FedDif,
    FedDifMessage,
    FedDifReply,
    SharedDrift,
)
from unskew.errors import QuorumError
from unskew.info import DiffusionHop, DiffusionMove, DiffusionRound, adapter, row
from unskew.keys import Key
from unskew.local.executor import EvalJob, StepJob, StepResult
from unskew.protocol import ClientId, Fitted, Held, Layout, Me, SgdConfig, drive
from unskew.runtime import round as round_driver
from unskew.runtime.in_process import Population, Simulator
from unskew.server.distance import iid_distance, shares
from unskew.tree import Params, leaves
from unskew.world.pace import Outage

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3)


# ---------------------------------------------------------------- clients whose training leaves a footprint
@dataclasses.dataclass
class Footprints:
    """Each training by client c adds 1 to coordinate c of the model; `forge` may change what a client replies."""

    clients: int
    forge: Callable[[StepJob, Any], Any] = lambda work, reply: reply
    name: str = "footprints"
    done: list[tuple[StepJob, Any]] = dataclasses.field(default_factory=list)

    def window(self, model_bytes: int) -> int:
        return 1

    def complete(self, work: Mapping[ClientId, StepJob]) -> Iterator[tuple[ClientId, StepResult]]:
        for c, w in work.items():

            def answer(request: Any, c: int = c) -> Fitted:
                step = torch.nn.functional.one_hot(torch.tensor(c), self.clients).double()
                return Fitted({"w": request.start["w"] + step}, 1, request.config.lr, 0.0)

            reply, memory = drive(w.begin(w.me, w.message, w.memory), answer)
            reply = self.forge(w, reply)
            self.done.append((w, reply))
            yield c, StepResult((reply, memory))

    def evaluate(self, papers: Sequence[EvalJob]) -> list[tuple[Tensor, Tensor]]:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, eq=False)
class Links:
    """The same given spectral efficiencies [src, dst] between clients in every hop."""

    gamma: Tensor

    def spectral_efficiency(self, key: Key, round: int, hop: int, nodes: int) -> Tensor:
        full = torch.zeros(nodes, nodes, dtype=self.gamma.dtype)
        full[1:, 1:] = self.gamma
        return full


class Game:
    """Rounds of an algorithm over clients with these histograms."""

    def __init__(self, method: FedDif, histograms: Any, gamma: Any = None, **settings: Any) -> None:
        counts = torch.as_tensor(histograms)
        n = len(counts)
        forge = settings.pop("forge", lambda work, reply: reply)
        params: Params = {"w": torch.zeros(n, dtype=torch.float64)}
        population = Population(counts, Layout(("w",)), params, lambda _: params)
        self.method, self.histograms, self.executor = method, counts, Footprints(n, forge)
        if gamma is not None:
            settings["channel"] = Links(torch.as_tensor(gamma, dtype=torch.float64))
        self.sim = Simulator(method, population, self.executor, **settings)
        self.state: Any = self.sim.start()
        self.trace: Any = None
        self.t = 0

    def play(self, rounds: int = 1) -> DiffusionRound:
        for _ in range(rounds):
            self.t += 1
            self.state, self.trace = self.sim.round(self.state, self.t)
        info: DiffusionRound = self.method.info(self.state)
        return info


def chains(info: DiffusionRound) -> list[list[int]]:
    found = [[c] for c in info.starts]
    for hop in info.hops:
        for move in hop.moves:
            assert found[move.model][-1] == move.src
            found[move.model].append(move.dst)
    return found


def me(histogram: Sequence[int], seed: int = 0, id: int = 0) -> Me:
    counts = torch.tensor(histogram)
    return Me(id, int(counts.sum()), counts, 1, Key(seed) / "me", Layout(("w",)), {}, Key(seed), Key(seed) / id)


def bids(method: FedDif, dols: Sequence[Any], histogram: Sequence[int]) -> list[float]:
    reply, _ = method.bid(me(histogram), CallForBids(tuple(torch.tensor(d) for d in dols), None), None)
    found: list[float] = reply.values.tolist()
    return found


# ---------------------------------------------------------------- a round by hand
def test_two_clients_swap_their_models() -> None:
    """(10, 0) and (0, 10): each model is .7071 from uniform and at 0 with the other's data, so both move, once.

    S is the model's two float64, 128 bits: efficiency (.7071 * 2 + .7071 * 3) / 128 / 2.  Both chains have 20 examples;
    each model was at both clients, so their mean has (1, 1).
    """
    game = Game(FedDif(), [[10, 0], [0, 10]], [[9.0, 2.0], [3.0, 9.0]])
    info = game.play()
    assert info == DiffusionRound(
        starts=(0, 1),
        hops=(
            DiffusionHop(
                1,
                pytest.approx(0.5**0.5 * 5 / 128 / 2),
                (
                    DiffusionMove(0, 0, 1, pytest.approx(0.5**0.5), 2.0),
                    DiffusionMove(1, 1, 0, pytest.approx(0.5**0.5), 3.0),
                ),
                exchange=2,
            ),
        ),
        sizes=(20, 20),
        models=2,
        iterations=2,
    )
    assert game.state.params["w"].tolist() == [1.0, 1.0]
    assert adapter(DiffusionRound).validate_json(json.dumps(row(info)["info"]), strict=True) == info


def test_a_model_may_come_back_where_re_training_is_allowed() -> None:
    """(10, 0) and (0, 20): the first's model is .707 from uniform, at (1/3, 2/3) .236 with the other's data, and at 0
    when its first client trains it again.  The second's is at .236 with the other's, and would be further with its own.
    """
    histograms = [[10, 0], [0, 20]]
    assert chains(Game(FedDif(), histograms).play()) == [[0, 1], [1, 0]]
    info = Game(FedDif(retrain=True), histograms).play()
    assert chains(info) == [[0, 1, 0], [1, 0]]
    assert info.sizes == (40, 30)


# ---------------------------------------------------------------- what travels, and who sees it
def everything_the_plan_gets(game: Game, monkeypatch: pytest.MonkeyPatch, rounds: int = 2) -> list[Any]:
    got: list[Any] = []
    answer = round_driver._Round.answer

    def watched(self: Any, want: object) -> Any:
        got.append(answer(self, want))
        return got[-1]

    with monkeypatch.context() as patch:
        patch.setattr(round_driver._Round, "answer", watched)
        game.play(rounds)
    return got


SKEWED = [[30, 0, 0, 1, 0, 0, 2], [0, 20, 0, 0, 0, 3, 0], [0, 0, 25, 0, 9, 0, 0], [4, 4, 0, 4, 4, 0, 4]]


@pytest.mark.parametrize("target", ["uniform", "pooled"])
@pytest.mark.parametrize("sigma", [0.0, 0.05])
def test_the_station_never_sees_a_degree_of_learning(
    target: Any, sigma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven classes, four clients: whatever the plan is given with seven numbers would be about classes.

    The pooled shares are: once, the sum over everybody, and nothing of anybody.
    """
    got = everything_the_plan_gets(Game(FedDif(target=target, sigma=sigma), SKEWED), monkeypatch)
    replies = [r for value in got if isinstance(value, dict) for r in value.values()]
    trained = [r for r in replies if isinstance(r, FedDifReply)]
    assert len(trained) > 8
    assert all(isinstance(r.model, Held) and isinstance(r.dol, Held) and isinstance(r.n, int) for r in trained)
    offered = [r.values for r in replies if isinstance(r, Bids)]
    assert offered
    assert all(b.shape == (k,) for b in offered for k in [len(b)] if k <= 4)
    about_classes = [t for value in got for _, t in leaves(value) if isinstance(t, Tensor) and 7 in t.shape]
    totals = [torch.tensor(SKEWED).sum(0).tolist()] if target == "pooled" else []
    assert [t.tolist() for t in about_classes] == totals


# ---------------------------------------------------------------- what must hold of any round
counts = st.integers(3, 5).flatmap(
    lambda n: hnp.arrays("int64", (n, 3), elements=st.integers(0, 12)).filter(lambda h: bool((h.sum(1) > 0).all()))
)
gammas = hnp.arrays("float64", (5, 5), elements=st.sampled_from([0.0, 0.5, 1.0, 3.0, 6.0]))
rules = st.fixed_dictionaries(
    {
        "epsilon": st.sampled_from([0.0, 0.05, 0.2]),
        "stop": st.sampled_from(["iid_distance", "efficiency", "decrement"]),
        "valuation": st.sampled_from(["current", "lagged"]),
        "feasibility": st.sampled_from(["outage", "qos", "both", "none"]),
        "filtering": st.sampled_from(["weights", "after_matching"]),
        "gamma_min": st.sampled_from([0.0, 1.0]),
        "metric": st.sampled_from(["l2", "tv", "kl", "js", "w1"]),
        "target": st.sampled_from(["uniform", "pooled"]),
        "bits": st.sampled_from([None, 4e7]),
    }
)
LOSSES = st.sampled_from([Outage(), Outage(), Outage(unreachable=0.3), Outage(late=0.4)])


@given(counts, gammas, rules, LOSSES, st.integers(0, 9))
def test_whatever_happens_a_round_keeps_the_rules(h: Any, g: Any, options: Any, outage: Outage, seed: int) -> None:
    """No client has a model twice, or two models in a diffusion round; no move without gain or over a dead link;
    what a model weighs and where it was is what its chain says, whatever is lost on the way."""
    method, n = FedDif(**options), len(h)
    game = Game(method, h, g[:n, :n], outage=outage, seed=seed, codec=True)
    try:
        info = game.play()
    except QuorumError:
        if outage == Outage():
            raise
        return  # nobody was heard
    paths = chains(info)
    assert all(len(set(path)) == len(path) for path in paths)
    for hop in info.hops:
        moves = hop.moves
        assert len({v.dst for v in moves}) == len({v.model for v in moves}) == len(moves)
        assert all(v.bid > 0 and v.gamma > 0 for v in moves)
        if method.stop == "decrement":
            assert all(v.bid >= method.epsilon for v in moves)
        if method.feasibility in ("qos", "both"):
            assert all(v.gamma >= method.gamma_min for v in moves)
        if method.feasibility in ("outage", "both") and method.gamma_min == 1.0:
            assert all(v.gamma == 6.0 for v in moves)
        if method.stop == "efficiency":
            assert hop.efficiency * EFFICIENCY > method.epsilon
    assert len(info.hops) <= 2 * n
    assert list(info.sizes) == [int(game.histograms[path].sum()) for path in paths]
    was = torch.stack([torch.nn.functional.one_hot(torch.tensor(path), n).sum(0) for path in paths]).double()
    weights = torch.tensor(info.sizes, dtype=torch.float64)
    torch.testing.assert_close(game.state.params["w"], (weights @ was) / weights.sum())


@given(counts, st.sampled_from(["l2", "l1", "kl", "js", "w1"]), st.sampled_from([0.0, 0.1]))
def test_each_move_brings_a_model_nearer_by_its_bid_until_it_is_near_enough(
    h: Any, metric: Any, epsilon: float
) -> None:
    """Under the papers' rules, with every client connected to every other: replayed from the histograms."""
    game = Game(FedDif(epsilon=epsilon, metric=metric), h)
    info = game.play()
    target = torch.full((3,), 1.0 / 3.0, dtype=torch.float64)
    seen = [game.histograms[c].double() for c in info.starts]
    for hop in info.hops:
        for v in hop.moves:
            before = iid_distance(shares(seen[v.model]), target, metric)
            seen[v.model] = seen[v.model] + game.histograms[v.dst]
            after = iid_distance(shares(seen[v.model]), target, metric)
            assert float(before) > epsilon
            assert v.bid == pytest.approx(float(before - after), abs=1e-9)


# ---------------------------------------------------------------- stopping, bids, links
def test_a_lagged_bid_is_too_high_by_the_last_gain() -> None:
    """Now (10, 10), before its last move (10, 0): (10, 0) more is a loss of .2357, and counts as a gain of .4714."""
    dol = [[[10.0, 10.0], [10.0, 0.0]]]
    assert bids(FedDif(stop="efficiency", valuation="lagged"), dol, [10, 0]) == pytest.approx([0.471405], abs=1e-6)
    assert bids(FedDif(stop="efficiency"), [[[10.0, 10.0]]], [10, 0]) == pytest.approx([-0.235702], abs=1e-6)


def test_a_pair_that_is_dropped_after_matching_costs_the_model_its_turn() -> None:
    """Client 1 is worth most, but over gamma .5; inside the weights the model takes client 2 instead."""
    values = torch.tensor([[math.nan, 0.7, 0.1]], dtype=torch.float64)
    links = torch.tensor([[9.0, 0.5, 2.0]], dtype=torch.float64)
    blocked = torch.tensor([[True, False, False]])
    inside = FedDif(feasibility="qos", gamma_min=1.0)
    after = dataclasses.replace(inside, filtering="after_matching")
    assert inside.schedule(values, links, 4e7, blocked)[0] == [(0, 2)]
    assert after.schedule(values, links, 4e7, blocked)[0] == []
    small = dataclasses.replace(after, gamma_min=0.1, stop="decrement", epsilon=0.8)
    assert small.schedule(values, links, 4e7, blocked)[0] == []


def test_where_nobody_can_send_it_is_fedavg_to_the_bit_and_says_so(classes: Any, equal: Any) -> None:
    world = classes(n=[4, 7, 9, 5])
    ours = world.play(FedDif(SMALL, gamma_min=1.0), clients_per_round=3)
    theirs = world.play(FedAvg(SMALL), clients_per_round=3)
    equal(ours.params, theirs.params, atol=0.0)
    info = ours.sim.method.info(ours.states[-1])
    assert info.iterations == 1
    assert info.warnings == (
        "no link can carry a model under gamma_min = 1 bit/s/Hz and feasibility 'outage': FedDif is FedAvg; lower "
        "gamma_min, or give the world a better channel",
    )
    assert ours.bytes != theirs.bytes


def test_the_hop_limit_and_the_budget_hold() -> None:
    """Three models over gamma 2: each costs S / 2 = 96 Hz s (three float64), so 200 has room for two."""
    histograms, gamma = [[10, 0, 0], [0, 10, 0], [0, 0, 10]], torch.full((3, 3), 2.0)
    assert Game(FedDif(max_hops=0), histograms).play().iterations == 1
    assert Game(FedDif(max_hops=1), histograms).play().iterations == 2
    free = Game(FedDif(), histograms, gamma).play()
    tight = Game(FedDif(budget=200.0), histograms, gamma).play()
    assert [len(h.moves) for h in free.hops] == [3, 3]
    assert max(len(h.moves) for h in tight.hops) == 2
    none = Game(FedDif(budget=95.0), histograms, gamma).play()
    assert none.iterations == 1
    assert none.warnings == ("budget = 95 Hz s has no room for the best move: FedDif is FedAvg",)


# ---------------------------------------------------------------- what cannot be
def test_a_client_without_data_trains_nothing_and_wins_nothing() -> None:
    """Its model starts with weight 0 and may learn elsewhere; nobody sends it one."""
    game = Game(FedDif(), [[10, 0], [0, 0], [0, 10]])
    info = game.play()
    paths = chains(info)
    assert all(1 not in path[1:] for path in paths)
    assert game.state.params["w"][1].item() == 0.0
    assert info.sizes[1] == int(game.histograms[paths[1]].sum())


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (lambda v: v[:1], "expected one bid for each of 4 models, got a tensor of shape (1,)"),
        (lambda v: v * math.nan, "a bid of size nan is impossible"),
        (lambda v: v + 5.0, "is impossible: no distance exceeds 0.92582"),
    ],
)
def test_forged_bids_are_ignored_and_recorded(values: Callable[[Tensor], Tensor], why: str) -> None:
    """Client 3, who has every class and would win, sends what cannot be; it gets no model and the rest goes on."""

    def forge(work: StepJob, reply: Any) -> Any:
        return Bids(values(reply.values)) if work.step == "bid" and work.me.id == 3 else reply

    honest = Game(FedDif(), SKEWED).play()
    info = Game(FedDif(), SKEWED, forge=forge).play()
    assert 3 in {v.dst for hop in honest.hops for v in hop.moves}
    assert 3 not in {v.dst for hop in info.hops for v in hop.moves}
    assert len(info.hops) > 0
    assert {(i.client, i.step) for i in info.ignored} == {(3, "bid")}
    assert info.ignored[0].reason.startswith("diffusion round 1: ")
    assert why in info.ignored[0].reason


# ---------------------------------------------------------------- noise
def noisy(method: FedDif, histogram: Sequence[int], dol: Tensor | None = None, **who: int) -> Tensor:
    """The degree of learning after training there."""
    step = method.train(me(histogram, **who), FedDifMessage({"w": torch.zeros(1)}, dol, 0, None), None)
    reply, _ = drive(step, lambda request: Fitted(request.start, 1, 0.1, 0.0))
    found: Tensor = reply.dol.value
    return found


def test_noise_hides_the_first_trainers_shares_and_keeps_the_size() -> None:
    plain, hidden = noisy(FedDif(), [8, 0, 2]), noisy(FedDif(sigma=0.05), [8, 0, 2])
    assert plain.tolist() == [[8.0, 0.0, 2.0]]
    assert bool((hidden >= 0).all())
    assert hidden.sum().item() == pytest.approx(10.0, rel=1e-6)
    assert 0.01 < (hidden - plain).abs().max().item() < 3.0


def test_noise_is_drawn_once_for_a_client_and_run() -> None:
    """Another client or run has other noise; the same client shows the same again, so that it does not average out."""
    method = FedDif(sigma=0.05)
    first = noisy(method, [8, 0, 2])
    assert noisy(method, [8, 0, 2]).tolist() == first.tolist()
    assert noisy(method, [8, 0, 2], id=1).tolist() != first.tolist()
    assert noisy(method, [8, 0, 2], seed=1).tolist() != first.tolist()


def test_later_trainers_add_noise_if_asked_to() -> None:
    """With noise for the first only, the difference of two degrees of learning is the second trainer's histogram."""
    before = torch.tensor([[5.0, 5.0, 0.0]])
    assert (noisy(FedDif(sigma=0.05), [8, 0, 2], before) - before).tolist() == [[8.0, 0.0, 2.0]]
    added = noisy(FedDif(sigma=0.05, noise="every"), [8, 0, 2], before) - before
    assert added.tolist() != [[8.0, 0.0, 2.0]]
    assert added.sum().item() == pytest.approx(10.0, rel=1e-6)


# ---------------------------------------------------------------- the pooled target
def test_no_client_sees_anothers_counts_in_the_sum() -> None:
    """Each is handed a sum under the first client's mask: uniform integers of 64 bits, other ones in every run."""
    sums = []
    for seed in (0, 1):
        game = Game(FedDif(target="pooled"), SKEWED, seed=seed)
        game.play()
        sums.append(
            [w.message.counts for w, _ in game.executor.done if w.step == "tally" and w.message.mask is None][1:]
        )
    assert all(bool((counts.abs() > 1 << 40).any()) for run in sums for counts in run)
    assert not any(torch.equal(a, b) for a, b in zip(*sums, strict=True))


def test_a_sum_whose_owner_is_lost_is_tried_again() -> None:
    """Client 1 begins in round 1 and is lost when it should take its mask off; in round 2 it is client 2's turn."""

    class Once(Outage):
        def fate(self, key: Key, step: str, asked: int) -> Any:
            return "late" if (key.path[1], step, asked, key.path[-1]) == (1, "tally", 4, 1) else None

    game = Game(FedDif(target="pooled"), SKEWED, outage=Once())
    info = game.play()
    assert game.state.target is None
    assert info.warnings == ("the pooled class shares did not arrive: target is uniform until they do",)
    assert game.play().warnings == ()
    torch.testing.assert_close(game.state.target, shares(torch.tensor(SKEWED).sum(0).double()))


def _tallied(game: "Game") -> list[int]:
    return [w.me.id for w, _ in game.executor.done if w.step == "tally"]


@pytest.mark.parametrize("metric", ["l2", "kl"])
def test_a_client_that_is_never_heard_is_left_out_for_good_and_it_is_said(metric: Any) -> None:
    """Asked in a later round, the difference of the two sums would be its counts.  Under kl nothing is unmasked."""

    class Never(Outage):
        def fate(self, key: Key, step: str, asked: int) -> Any:
            first = key.path[:2] == ("round", 1)
            return "unreachable" if first and (step, key.path[-1]) == ("tally", 3) else None

    game = Game(FedDif(target="pooled", metric=metric), SKEWED, outage=Never())
    without = [row for c, row in enumerate(SKEWED) if c != 3]
    (said,) = game.play().warnings
    if metric == "kl":
        assert said == "the pooled class shares did not arrive: target is uniform until they do"
        assert not any(isinstance(w.message.mask, torch.Tensor) for w, _ in game.executor.done if w.step == "tally")
        assert game.play().warnings == ()
        torch.testing.assert_close(game.state.target, shares(torch.tensor(SKEWED).sum(0).double()))
        return
    assert said == "the pooled class shares are without client 3, not heard in 3 tries"
    torch.testing.assert_close(game.state.target, shares(torch.tensor(without).sum(0).double()))
    before = _tallied(game)
    assert game.play().warnings == ()
    assert _tallied(game) == before


# ---------------------------------------------------------------- drift
def test_at_the_target_the_pull_is_clamped() -> None:
    """psi uniform has W = 0; r stays at .1 * 2 * .001 / 2 = 1e-4, so the scale is .01 / 2e-4 = 50, not infinite."""
    method = FedDif(SgdConfig(lr=0.1), drift=Drift())
    shared = SharedDrift({"w": torch.zeros(1)}, 0, None)
    offer, asked = FedDifMessage({"w": torch.zeros(1)}, torch.tensor([[1.0, 0.0]]), 1, shared), []

    def answer(request: Any) -> Fitted:
        asked.append(request)
        return Fitted(request.start, 1, 0.1, 0.0)

    drive(method.train(me([0, 1]), offer, None), answer)
    assert asked[0].aux["scale"].item() == pytest.approx(50.0)


@pytest.mark.parametrize("outage", [Outage(), Outage(late=0.4), Outage(0.2, 0.2)], ids=str)
@pytest.mark.seconds
def test_the_station_knows_the_means_of_what_clients_remember(outage: Outage, classes: Any) -> None:
    """Drifts from the models it collects, gradient states from their changes; a reply that was lost never happened."""
    world = classes(n=[4, 7, 9, 5, 6])
    method = FedDif(SMALL, epsilon=0.01, drift=Drift(0.001, 0.1, 0.05))
    sim = world.simulator(method, outage=outage, clients_per_round=3, seed=3)
    state, lost = sim.start(), 0
    for t in range(1, 5):
        state, trace = sim.round(state, t)
        lost += sum(f.step == "train" for f in trace.failures)
        assert any(h.moves for h in method.info(state).hops)
        for part in ("h", "s"):
            expected = {n: torch.zeros_like(w) for n, w in getattr(state.means, part).items()}
            for c in sim.population.clients:
                mine = sim.memory.get(c)
                if mine is not None:
                    known = mine.now if state.heard.get(c, 0) == mine.trainings else mine.before
                    for n, v in getattr(known, part).items():
                        expected[n] += v / 5
            torch.testing.assert_close(getattr(state.means, part), expected, rtol=0, atol=1e-9)
    assert (lost > 0) == (outage != Outage())


# ---------------------------------------------------------------- learning rate within a round
def test_the_cosine_within_a_round() -> None:
    """k = 0: 1; k = 10: a half; k = 19: .5 (1 + cos(.95 pi)) = .00616, and no less."""
    method = FedDif(SgdConfig(lr=2.0), lr_within_round="cosine")
    assert [method.local_at(k).lr for k in (0, 10, 19, 20, 40)] == pytest.approx(
        [2.0, 1.0, 0.0123117, 0.0123117, 0.0123117], abs=1e-6
    )
    assert FedDif(SgdConfig(lr=2.0)).local_at(10).lr == 2.0
