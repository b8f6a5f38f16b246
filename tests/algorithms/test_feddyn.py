"""FedDyn: what the linear terms are, that h is their mean whatever is lost, and what its limits are not."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from unskew.algorithms.fedavg import FedAvg, ModelMessage, ModelReply
from unskew.algorithms.feddyn import DynamicRegulariser, FedDyn
from unskew.errors import ConfigError, QuorumError
from unskew.protocol import Aux, ClientId, Federation, Me, Plan, SgdConfig, Step, ask, sgd, step
from unskew.reduction import weighted_mean
from unskew.tree import Params, flat, map_params, zeros_like
from unskew.world.outage import Outage

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3)


def acknowledged(sim: Any, state: Any) -> Tensor:
    """Sum over all clients of the g that the server has heard of, from what clients remember."""
    total = torch.zeros_like(flat(state.h))
    for client in sim.population.clients:
        mine = sim.memory.get(client)
        if mine is not None:
            total += flat(mine.g if state.heard.get(client, 0) == mine.round else mine.before)
    return total


def test_the_term_pulls_to_w_and_leans_on_g() -> None:
    """d/dy 1/omega [alpha/2 (y - w)^2 - g y] = (alpha (y - w) - g) / omega = (3 (2 - 1) - 5) / 4 = -.5."""
    y, other = torch.tensor([2.0], requires_grad=True), torch.ones(1, requires_grad=True)
    aux = {
        "anchor": {"y": torch.tensor([1.0]), "other": torch.zeros(1)},
        "g": {"y": torch.tensor([5.0])},
        "share": torch.tensor(0.25),
    }
    DynamicRegulariser(3.0)({"y": y, "other": other}, aux).backward()
    assert y.grad is not None
    assert y.grad.tolist() == [-0.5]
    assert other.grad is None


def test_two_rounds_by_hand(springs: Any, value: Any) -> None:
    """F_k = (w - m_k)^2 / 2 with m = 4, 0; alpha 1, lr .5, 2 steps, from 0.

    Round 1, g = 0.  Client 0: gradient -4 + 0, y = 2; -2 + 2 = 0, y = 2; g_0 = -2.  Client 1 stays at 0; g_1 = 0.
             h = -1/2 (2 + 0) = -1; w = 1 + 1 = 2.
    Round 2. Client 0: gradient -2 + 0 + 2 = 0, y = 2; g_0 = -2.  Client 1: 2 + 0, y = 1; 1 - 1 = 0, y = 1; g_1 = 1.
             h = -1 - 1/2 (0 - 1) = -.5 = mean(-2, 1); w = 1.5 + .5 = 2, the optimum.
    """
    world = springs(m=[4.0, 0.0], n=[3, 1])
    play = world.play(FedDyn(1.0, local=SgdConfig(lr=0.5, local_steps=2, batch_size=None)), 2)
    assert [value(p) for p in play.params] == pytest.approx([0.0, 2.0, 2.0])
    assert [value(s.h) for s in play.states] == pytest.approx([0.0, -1.0, -0.5])
    assert [value(play.sim.memory.get(c).g) for c in (0, 1)] == pytest.approx([-2.0, 1.0])


# ---------------------------------------------------------------- the published form
@dataclass(frozen=True)
class Drifting:
    params: Params
    total: Params


@dataclass(frozen=True)
class FromDrift:
    """alpha/2 ||y - w + h_k||^2."""

    alpha: float

    def __call__(self, params: Params, aux: Aux) -> Tensor:
        return 0.5 * torch.stack([(params[n] - t).square().sum() for n, t in aux["centre"].items()]).sum() * self.alpha


@dataclass(frozen=True)
class DriftForm:
    """FedDyn as its published code writes it: h_k is the sum of client k's displacements.  No losses are foreseen."""

    alpha: float
    local: SgdConfig
    sizes: tuple[int, ...] = ()

    def init(self, params: Params, fed: Federation) -> Drifting:
        return Drifting(params, zeros_like(params))

    def round(self, state: Drifting, fed: Federation) -> Plan[Drifting]:
        replies = yield from ask(self.train, {c: ModelMessage(state.params) for c in fed.sample()})
        total = state.total
        for r in replies.values():
            total = map_params(lambda t, y, w: t + (y - w) / len(fed.clients), total, r.params, state.params)
        mean = weighted_mean([r.params for r in replies.values()], [1.0] * len(replies))
        return Drifting(map_params(torch.add, mean, total), total)

    @step
    def train(self, me: Me, msg: ModelMessage, memory: Params | None) -> Step[tuple[ModelReply, Params | None]]:
        h = memory or zeros_like(msg.params)
        alpha = self.alpha / (me.n * len(self.sizes) / sum(self.sizes)) if self.sizes else self.alpha
        y = yield from sgd(msg.params, self.local, FromDrift(alpha), centre=map_params(torch.sub, msg.params, h))
        return ModelReply(y, me.n), map_params(lambda h, y, w: h + y - w, h, y, msg.params)

    def serve(self, state: Drifting, client: ClientId | None) -> Params:
        return state.params


@pytest.mark.parametrize("sizes", [(), (4, 7, 9, 3, 5)], ids=["alike", "scaled"])
@pytest.mark.parametrize("cohort", [2, 5])
def test_the_gradient_form_is_the_drift_form(sizes: tuple[int, ...], cohort: int, classes: Any, equal: Any) -> None:
    """I-15: h_k = -g_k / alpha; per-client alpha_k = alpha / omega_k when scaled."""
    world, local = classes(n=[4, 7, 9, 3, 5]), dataclasses.replace(SMALL, momentum=0.5)
    ours = world.play(FedDyn(0.3, scaled=bool(sizes), local=local), 5, clients_per_round=cohort)
    theirs = world.play(DriftForm(0.3, local, sizes), 5, clients_per_round=cohort)
    equal(ours.params, theirs.params)
    h = {n: -0.3 * t for n, t in theirs.states[-1].total.items()}
    equal(ours.states[-1].h, h)


# ---------------------------------------------------------------- where it goes
@pytest.mark.seconds
def test_it_converges_where_fedavg_drifts(springs: Any, value: Any) -> None:
    """I-15: curvatures 4 and 1 with m = 1, -1, optimum (4 - 1) / 5 = .6; 25 steps solve almost exactly."""
    world, local = springs(m=[1.0, -1.0], a=[4.0, 1.0]), SgdConfig(lr=0.2, local_steps=25, batch_size=None)
    assert value(world.play(FedDyn(1.0, local=local), 25).params[-1]) == pytest.approx(0.6, abs=1e-7)
    assert abs(value(world.play(FedAvg(local), 25).params[-1]) - 0.6) > 0.4


@pytest.mark.parametrize(("scaled", "optimum"), [(False, 2.0), (True, 3.0)])
@pytest.mark.seconds
def test_scaling_by_size_is_for_the_mean_by_examples(scaled: bool, optimum: float, springs: Any, value: Any) -> None:
    """m = 4, 0 of 3 and 1 examples: the plain mean of losses is least at 2, the mean by examples at 3."""
    local = SgdConfig(lr=0.2, local_steps=15, batch_size=None)
    play = springs(m=[4.0, 0.0], n=[3, 1]).play(FedDyn(0.5, scaled=scaled, local=local), 40)
    assert value(play.params[-1]) == pytest.approx(optimum, abs=1e-5)
    assert value(play.states[-1].h) == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("cohort", [2, 4])
def test_as_alpha_vanishes_it_steps_twice_as_far_as_fedavg(cohort: int, classes: Any, equal: Any) -> None:
    """I-16: after round 1 the server has mean(y) + M/N (mean(y) - w), with everybody 2 mean(y) - w; no FedAvg."""
    world = classes(n=[4, 7, 9, 3])
    w, mean = world.play(FedAvg(SMALL, "uniform"), 1, clients_per_round=cohort).params
    ours = world.play(FedDyn(1e-9, local=SMALL), 1, clients_per_round=cohort).params[1]
    equal(ours, map_params(lambda w, y: y + cohort / 4 * (y - w), w, mean), atol=1e-8)


def test_without_pull_and_correction_it_is_fedavg(classes: Any, equal: Any) -> None:
    """I-16."""
    world = classes(n=[4, 7, 9], norm=True)
    for weighting in ("uniform", "samples"):
        ours = world.play(FedDyn(0.0, False, local=SMALL, weighting=weighting), clients_per_round=2)
        equal(ours.params, world.play(FedAvg(SMALL, weighting), clients_per_round=2).params)


def test_without_correction_alpha_is_still_felt(classes: Any, equal: Any) -> None:
    world = classes()
    with pytest.raises(AssertionError):
        equal(world.play(FedDyn(0.5, False, local=SMALL)).params, world.play(FedAvg(SMALL, "uniform")).params)


def test_alpha_zero_is_refused_where_it_divides() -> None:
    with pytest.raises(
        ConfigError, match="which must be > 0, got 0; set correction = false as well if FedAvg is meant"
    ):
        FedDyn(0.0)


# ---------------------------------------------------------------- what is remembered
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("cohort", [1, 2, 5])
def test_h_is_the_mean_of_all_g(cohort: int, scaled: bool, classes: Any) -> None:
    """I-15: after every round, for any participation."""
    algorithm = FedDyn(0.2, scaled=scaled, local=SMALL)
    sim = classes(n=[4, 7, 9, 3, 5], norm=True).simulator(algorithm, clients_per_round=cohort)
    state = sim.start()
    for t in range(1, 6):
        state, _ = sim.round(state, t)
        assert flat(state.h).abs().max() > 1e-3
        torch.testing.assert_close(acknowledged(sim, state), 5 * flat(state.h), rtol=0, atol=1e-9)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_lost_reply_never_happened(scaled: bool, classes: Any) -> None:
    """I-15 where half of the replies are lost, sizes among them; memory goes back to what the server knows."""
    algorithm = FedDyn(0.2, scaled=scaled, local=SMALL)
    sim = classes(n=[4, 7, 9, 3, 5]).simulator(algorithm, outage=Outage(late=0.5), codec=True, seed=1)
    state, rolled_back = sim.start(), 0
    for t in range(1, 9):
        state, trace = sim.round(state, t)
        torch.testing.assert_close(acknowledged(sim, state), 5 * flat(state.h), rtol=0, atol=1e-9)
        lost = {f.client for f in trace.failures if f.step == "train"}
        assert all(state.heard[c] == t for c in range(5) if c not in lost)
        assert all(state.heard.get(c, 0) < t for c in lost)
        rolled_back += len(lost)
    assert rolled_back > 5


def test_absent_clients_keep_their_g(classes: Any) -> None:
    sim = classes().simulator(FedDyn(local=SMALL), clients_per_round=2)
    state, stayed = sim.start(), 0
    for t in range(1, 6):
        before = sim.memory.at(sim.memory.round)
        state, trace = sim.round(state, t)
        cohort = {x.src - 1 for x in trace.transfers if x.direction == "up"}
        assert all((sim.memory.get(c) is kept) == (c not in cohort) for c, kept in before.items())
        stayed += len(set(before) - cohort)
    assert stayed > 0


def test_sizes_are_declared_once_and_asked_for_again_if_lost(classes: Any) -> None:
    """Every size is known in the end, and once all are, nobody is asked; without `scaled` nobody ever is."""
    algorithm = FedDyn(scaled=True, local=SMALL)
    sim = classes(n=[4, 7, 9, 3, 5, 6]).simulator(algorithm, outage=Outage(late=0.4), seed=2)
    state, known = sim.start(), []
    for t in range(1, 8):
        complete = len(state.n) == 6
        state, trace = sim.round(state, t)
        told = sum(x.kind == "control" and x.direction == "up" for x in trace.transfers)
        untold = sum(f.step == "declare" for f in trace.failures)
        assert (told + untold > 0) == (not complete)
        known.append(len(state.n))
    assert known[0] < 6
    assert complete
    assert sorted(state.n.items()) == list(enumerate([4, 7, 9, 3, 5, 6]))
    with pytest.raises(QuorumError, match="step 'declare': 0 of 4"):
        classes().play(algorithm, 1, outage=Outage(late=1.0))
    assert classes().play(FedDyn(local=SMALL), 1).states[1].n == {}


def test_any_optimiser_will_do(classes: Any) -> None:
    """Nothing divides by steps or rates: h is the mean of the g under Adam and clipping too."""
    for local in (SgdConfig(lr=0.01, optimizer="adam", local_epochs=2), SgdConfig(clip_norm=0.5, local_epochs=2)):
        play = classes().play(FedDyn(0.2, local=local), 3, clients_per_round=3)
        torch.testing.assert_close(
            acknowledged(play.sim, play.states[-1]), 4 * flat(play.states[-1].h), rtol=0, atol=1e-9
        )


def test_only_what_is_trained_has_a_correction(classes: Any) -> None:
    local = SgdConfig(lr=0.1, local_epochs=1, trainable=("body",))
    play = classes(norm=True).play(FedDyn(local=local), 2, codec=True)
    assert set(play.states[-1].h) == {"fc.weight", "fc.bias", "bn.weight", "bn.bias"}
    torch.testing.assert_close(play.params[-1]["head.weight"], play.params[0]["head.weight"], rtol=0, atol=1e-12)
