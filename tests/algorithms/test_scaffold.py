"""SCAFFOLD: what the control variates are, that they add up, and that nothing upsets the sum."""

from typing import Any

import pytest
import torch
from torch import Tensor

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.fednova import responses
from unskew.algorithms.scaffold import SCAFFOLD, Correction
from unskew.errors import ConfigError
from unskew.protocol import Exponential, SgdConfig
from unskew.reduction import weighted_mean
from unskew.tree import flat
from unskew.world.outage import Outage

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3)


def acknowledged(sim: Any, state: Any) -> Tensor:
    """Sum over all clients of the variates that the server has heard of, from what clients remember."""
    total = torch.zeros_like(flat(state.c))
    for client in sim.population.clients:
        mine = sim.memory.get(client)
        if mine is not None:
            total += flat(mine.c if state.heard.get(client, 0) == mine.round else mine.before)
    return total


def test_the_correction_adds_its_vector_to_the_gradient() -> None:
    """d/dy <y, (1, -2)> = (1, -2); parameters without a variate are left alone."""
    y, other = torch.ones(2, requires_grad=True), torch.ones(1, requires_grad=True)
    Correction()({"y": y, "other": other}, {"correction": {"y": torch.tensor([1.0, -2.0])}}).backward()
    assert y.grad is not None
    assert y.grad.tolist() == [1.0, -2.0]
    assert other.grad is None


def test_two_rounds_by_hand(springs: Any, value: Any) -> None:
    """F_k = (w - m_k)^2 / 2 with m = 4, 0, of 3 and 1 examples; lr .5, 2 steps, from 0; means are uniform.

    Round 1, no correction: y = 4 * .75 = 3 and 0, x = 1.5.  c_0 = (0 - 3) / (2 * .5) = -3, c_1 = 0, c = -1.5.
    Round 2, client 0: correction c - c_0 = 1.5; gradient -2.5 + 1.5 = -1, y = 2; -2 + 1.5 = -.5, y = 2.25.
             client 1: correction -1.5; 1.5 - 1.5 = 0 and again: y = 1.5.  x = 1.875.
             c_0 = -1.5 + (1.5 - 2.25) / 1 = -2.25 = mean of -2.5, -2; c_1 = 1.5 + 0 = mean of 1.5, 1.5; c = -.375.
    """
    world = springs(m=[4.0, 0.0], n=[3, 1])
    play = world.play(SCAFFOLD(local=SgdConfig(lr=0.5, local_steps=2, batch_size=None)), 2)
    assert [value(p) for p in play.params] == pytest.approx([0.0, 1.5, 1.875])
    assert [value(s.c) for s in play.states] == pytest.approx([0.0, -1.5, -0.375])
    assert [value(play.sim.memory.get(c).c) for c in (0, 1)] == pytest.approx([-2.25, 1.5])


def test_scaled_by_size_two_rounds_by_hand(springs: Any, value: Any) -> None:
    """As above with omega = 3/2, 1/2.  Round 1: x = 1.5, c_0 = -3, c_1 = 0 as before, c = (3/2 * -3 + 0) / 2 = -2.25.

    Round 2, client 0: correction .75; -2.5 + .75, y = 2.375; -1.625 + .75, y = 2.8125; c_0 = -.75 - 1.3125 = -2.0625.
             client 1: correction -2.25; 1.5 - 2.25, y = 1.875; 1.875 - 2.25, y = 2.0625; c_1 = 2.25 - .5625 = 1.6875.
             x = 2.4375; c = (3/2 * -2.0625 + 1/2 * 1.6875) / 2 = -1.125.
    """
    local = SgdConfig(lr=0.5, local_steps=2, batch_size=None)
    play = springs(m=[4.0, 0.0], n=[3, 1]).play(SCAFFOLD(local=local, scaled=True), 2)
    assert [value(p) for p in play.params] == pytest.approx([0.0, 1.5, 2.4375])
    assert [value(s.c) for s in play.states] == pytest.approx([0.0, -2.25, -1.125])
    assert [value(play.sim.memory.get(c).c) for c in (0, 1)] == pytest.approx([-2.0625, 1.6875])


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize(("scaled", "optimum"), [(False, 2.0), (True, 3.0)])
def test_the_weights_of_the_variates_decide_where_it_ends(
    scaled: bool, optimum: float, weighting: Any, springs: Any, value: Any
) -> None:
    """m = 4, 0 of 3 and 1 examples: the plain mean of losses is least at 2, the mean by examples at 3."""
    local = SgdConfig(lr=0.2, local_steps=3, batch_size=None)
    play = springs(m=[4.0, 0.0], n=[3, 1]).play(SCAFFOLD(local=local, weighting=weighting, scaled=scaled), 60)
    assert value(play.params[-1]) == pytest.approx(optimum, abs=1e-5)


@pytest.mark.parametrize(("cohort", "late"), [(2, 0.0), (5, 0.5)])
def test_scaled_variates_sum_to_the_servers_by_examples(cohort: int, late: float, classes: Any) -> None:
    """c is the mean of c_i by examples, also where half of the replies are lost, sizes among them."""
    n = [4, 7, 9, 3, 5]
    algorithm = SCAFFOLD(local=SMALL, scaled=True)
    sim = classes(n=n).simulator(algorithm, clients_per_round=cohort, outage=Outage(late=late), codec=True, seed=1)
    state = sim.start()
    for t in range(1, 9):
        state, _ = sim.round(state, t)
        heard = {c: sim.memory.get(c) for c in state.heard}
        mean_size = sum(state.n.values()) / len(state.n)
        total = sum(n[c] / mean_size * flat(m.c if m.round == state.heard[c] else m.before) for c, m in heard.items())
        torch.testing.assert_close(total / 5, flat(state.c), rtol=0, atol=1e-9)
    assert len(state.n) == 5


def test_option_one_takes_the_gradient_at_the_received_model(springs: Any, value: Any) -> None:
    """As above, round 1: c_0 = grad F_0(0) = -4, c_1 = 0, c = -2.  x = 1.5 as before.

    Round 2: client 0: -2.5 + 2 = -.5, y = 1.75; -2.25 + 2 = -.25, y = 1.875; client 1: 1.5 - 2 = -.5, y = 1.75;
    1.75 - 2 = -.25, y = 1.875.  c_0 = 1.5 - 4 = -2.5, c_1 = 1.5, c = -.5.
    """
    local = SgdConfig(lr=0.5, local_steps=2, batch_size=None)
    play = springs(m=[4.0, 0.0]).play(SCAFFOLD(option="I", local=local), 2)
    assert [value(p) for p in play.params] == pytest.approx([0.0, 1.5, 1.875])
    assert [value(s.c) for s in play.states] == pytest.approx([0.0, -2.0, -0.5])


@pytest.mark.seconds
def test_it_converges_where_fedavg_drifts(springs: Any, value: Any) -> None:
    """Curvatures 4 and 1 with m = 1, -1: the optimum is (4 - 1) / 5 = .6; five steps a round pull FedAvg off it."""
    world, local = springs(m=[1.0, -1.0], a=[4.0, 1.0]), SgdConfig(lr=0.1, local_steps=5, batch_size=None)
    for option in ("I", "II"):
        assert value(world.play(SCAFFOLD(option, local=local), 120).params[-1]) == pytest.approx(0.6, abs=1e-6)
    assert abs(value(world.play(FedAvg(local), 120).params[-1]) - 0.6) > 0.1


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_option_two_keeps_the_mean_of_the_raw_gradients(
    momentum: float, decay: float, springs: Any, value: Any
) -> None:
    """I-14, replayed step by step: under momentum the mean has weights a_j, under decay the gradient contains it."""
    lr, steps, m, slope = 0.1, 4, [3.0, -1.0, 0.5], [1.0, 2.0, 0.5]
    local = SgdConfig(lr=lr, local_steps=steps, batch_size=None, momentum=momentum, weight_decay=decay)
    play = springs(m=m, a=slope).play(SCAFFOLD(local=local), rounds=4)
    variates = [0.0] * 3
    a = responses(steps, momentum)
    for t in range(4):
        x, c = value(play.params[t]), value(play.states[t].c)
        for i in range(3):
            y, velocity, raw = x, 0.0, []
            for _ in range(steps):
                raw.append(slope[i] * (y - m[i]) + decay * y)
                velocity = momentum * velocity + raw[-1] - variates[i] + c
                y -= lr * velocity
            variates[i] = sum(w * g for w, g in zip(a, raw, strict=True)) / sum(a)
    assert [value(play.sim.memory.get(i).c) for i in range(3)] == pytest.approx(variates, abs=1e-9)


@pytest.mark.seconds
def test_weight_decay_leads_to_the_regularised_optimum(springs: Any, value: Any) -> None:
    """Both options: sum_k (4 (w - 1) + (w + 1)) + 2 * .5 w = 0 gives 3 / 6 = .5."""
    local = SgdConfig(lr=0.1, local_steps=3, batch_size=None, weight_decay=0.5)
    for option in ("I", "II"):
        play = springs(m=[1.0, -1.0], a=[4.0, 1.0]).play(SCAFFOLD(option, local=local), 200)
        assert value(play.params[-1]) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("cohort", [1, 2, 5])
def test_the_variates_sum_to_n_times_the_servers(option: Any, cohort: int, classes: Any) -> None:
    """I-14: after every round, for any participation; 1/M in place of 1/N would break it for cohorts below 5."""
    sim = classes(n=[4, 7, 9, 3, 5], norm=True).simulator(SCAFFOLD(option, local=SMALL), clients_per_round=cohort)
    state = sim.start()
    for t in range(1, 6):
        state, _ = sim.round(state, t)
        assert flat(state.c).abs().max() > 1e-3
        torch.testing.assert_close(acknowledged(sim, state), 5 * flat(state.c), rtol=0, atol=1e-9)


def test_a_lost_reply_never_happened(classes: Any) -> None:
    """I-14 where half of the replies are lost: a client whose reply was lost goes back to what the server knows."""
    sim = classes(n=[4] * 5).simulator(SCAFFOLD(local=SMALL), outage=Outage(late=0.5), codec=True, seed=1)
    state, rolled_back = sim.start(), 0
    for t in range(1, 9):
        state, trace = sim.round(state, t)
        torch.testing.assert_close(acknowledged(sim, state), 5 * flat(state.c), rtol=0, atol=1e-9)
        lost = {f.client for f in trace.failures}
        assert all(state.heard[c] == t for c in range(5) if c not in lost)
        assert all(state.heard.get(c, 0) < t for c in lost)
        rolled_back += len(lost)
    assert rolled_back > 5


def test_absent_clients_keep_their_variates(classes: Any) -> None:
    """I-14."""
    sim = classes().simulator(SCAFFOLD(local=SMALL), clients_per_round=2)
    state, stayed = sim.start(), 0
    for t in range(1, 6):
        before = sim.memory.at(sim.memory.round)
        state, trace = sim.round(state, t)
        cohort = {x.src - 1 for x in trace.transfers if x.direction == "up"}
        assert all((sim.memory.get(c) is kept) == (c not in cohort) for c, kept in before.items())
        stayed += len(set(before) - cohort)
    assert stayed > 0


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_its_first_round_is_fedavg_of_the_same_weighting(weighting: Any, classes: Any, equal: Any) -> None:
    """I-14: all variates are 0.  From round 2 on they are not."""
    world = classes(n=[4, 7, 9], norm=True)
    methods = (SCAFFOLD(local=SMALL, weighting=weighting), FedAvg(SMALL, weighting))
    ours, plain = (world.play(a, 2, clients_per_round=2) for a in methods)
    equal(ours.params[1], plain.params[1])
    with pytest.raises(AssertionError):
        equal(ours.params[2], plain.params[2])


def test_with_one_step_and_everybody_it_is_fedavg(classes: Any, equal: Any) -> None:
    """I-14: the corrections of one step cancel in the mean."""
    world, once = classes(n=[4, 7, 9]), SgdConfig(lr=0.3, local_steps=1, batch_size=3)
    equal(world.play(SCAFFOLD(local=once)).params, world.play(FedAvg(once, "uniform")).params)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_alone_it_is_sgd(momentum: float, classes: Any, equal: Any) -> None:
    """I-14: c = c_1, so there is nothing to correct."""
    world, local = classes(n=[9]), SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=momentum)
    equal(world.play(SCAFFOLD(local=local), 4).params, world.play(FedAvg(local), 4).params)


def test_every_client_twice_changes_nothing(springs: Any, equal: Any) -> None:
    """I-14: at full participation, with full batches so that twins do the same."""
    local = SgdConfig(lr=0.1, local_steps=3, batch_size=None)
    once = springs(m=[3.0, -1.0], a=[1.0, 2.0]).play(SCAFFOLD(local=local), 4)
    twice = springs(m=[3.0, -1.0, 3.0, -1.0], a=[1.0, 2.0, 1.0, 2.0]).play(SCAFFOLD(local=local), 4)
    equal(once.params, twice.params, atol=1e-12)


def test_the_divisor_is_the_learning_rate_in_force(springs: Any, value: Any) -> None:
    """lr .5, then .25; one client, one step a round: c_1 is the gradient at x each time.  x = 0, 2: -4, then -2."""
    local = SgdConfig(lr=0.5, local_steps=1, batch_size=None, lr_schedule=Exponential(0.5))
    play = springs(m=[4.0]).play(SCAFFOLD(local=local), 2)
    assert [value(s.c) for s in play.states] == pytest.approx([0.0, -4.0, -2.0])
    assert [value(p) for p in play.params] == pytest.approx([0.0, 2.0, 2.5])


def test_the_server_learning_rate_scales_parameters_not_buffers(classes: Any, equal: Any) -> None:
    """x + .5 (mean(y) - x) for parameters; the uniform mean for BatchNorm's statistics."""
    world = classes(norm=True)
    half, full = (world.play(SCAFFOLD(server_lr=lr, local=SMALL), 1).params for lr in (0.5, 1.0))
    trainable, buffers = world.task.layout.trainable, world.task.layout.buffers
    middle = weighted_mean([full[0], full[1]], [0.5, 0.5])
    equal({n: half[1][n] for n in trainable}, {n: middle[n] for n in trainable})
    equal({n: half[1][n] for n in buffers}, {n: full[1][n] for n in buffers})


def test_only_what_is_trained_has_a_variate(classes: Any) -> None:
    for option in ("I", "II"):
        local = SgdConfig(lr=0.1, local_epochs=1, trainable=("body",))
        play = classes(norm=True).play(SCAFFOLD(option, local=local), 2, codec=True)
        assert set(play.states[-1].c) == {"fc.weight", "fc.bias", "bn.weight", "bn.bias"}
        torch.testing.assert_close(play.params[-1]["head.weight"], play.params[0]["head.weight"], rtol=0, atol=0)


def test_option_one_takes_any_optimiser(classes: Any) -> None:
    """The gradient does not come from the displacement; c is of the gradients' size, not of the steps'."""
    world = classes()
    play = world.play(SCAFFOLD("I", local=SgdConfig(lr=0.01, optimizer="adam", local_epochs=2, clip_norm=1.0)), 2)
    plain = world.play(SCAFFOLD("I", local=SgdConfig(lr=0.01, local_epochs=2)), 1)
    torch.testing.assert_close(flat(play.states[1].c), flat(plain.states[1].c), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("local", "why"),
    [
        (SgdConfig(optimizer="adam"), "which is not defined for adam"),
        (SgdConfig(optimizer="adamw"), "which is not defined for adamw"),
        (SgdConfig(momentum=0.9, nesterov=True), "leave local.nesterov out"),
        (SgdConfig(clip_norm=10.0), "got local.clip_norm = 10"),
    ],
)
def test_option_two_refuses_displacements_that_are_no_sums_of_gradients(local: SgdConfig, why: str) -> None:
    with pytest.raises(ConfigError, match=f"SCAFFOLD's option II .*{why}"):
        SCAFFOLD(local=local)
    assert SCAFFOLD("I", local=local).local == local
