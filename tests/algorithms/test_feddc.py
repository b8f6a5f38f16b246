"""FedDC: what drift and mean gradient are, that the server's means hold whatever is lost, and its kin."""

from typing import Any

import pytest
import torch

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.feddc import DriftTerm, FedDC
from unskew.algorithms.feddyn import FedDyn
from unskew.algorithms.fednova import responses
from unskew.algorithms.scaffold import SCAFFOLD
from unskew.errors import ConfigError
from unskew.protocol import Exponential, SgdConfig
from unskew.tree import Params, flat, map_params
from unskew.world.outage import Outage

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3)


def acknowledged(sim: Any, state: Any) -> tuple[Any, Any]:
    """Sums over all clients of drift and mean gradient as far as the server has heard of them."""
    h, c = torch.zeros_like(flat(state.drift)), torch.zeros_like(flat(state.c))
    for client in sim.population.clients:
        mine = sim.memory.get(client)
        if mine is not None:
            log = mine.now if state.heard.get(client, 0) == mine.round else mine.before
            h, c = h + flat(log.h), c + flat(log.c)
    return h, c


def assert_means(sim: Any, state: Any) -> None:
    n = len(sim.population.clients)
    h, c = acknowledged(sim, state)
    torch.testing.assert_close(h, n * flat(state.drift), rtol=0, atol=1e-9)
    torch.testing.assert_close(c, n * flat(state.c), rtol=0, atol=1e-9)


def test_the_term_pulls_to_the_model_without_the_drift() -> None:
    """d/dy 1/omega [alpha/2 (y - (w - h))^2 + (c - c_i) y] = (3 (2 - .5) + 1.5) / 2 = 3 with c - c_i = 1.5."""
    y, other = torch.tensor([2.0], requires_grad=True), torch.ones(1, requires_grad=True)
    aux = {
        "centre": {"y": torch.tensor([0.5])},
        "correction": {"y": torch.tensor([1.5])},
        "share": torch.tensor(0.5),
    }
    DriftTerm(3.0)({"y": y, "other": other}, aux).backward()
    assert y.grad is not None
    assert y.grad.tolist() == [3.0]
    assert other.grad is None


def test_two_rounds_by_hand(springs: Any, value: Any) -> None:
    """F_i = (w - m_i)^2 / 2 with m = 4, 0; alpha 1, lr .5, 2 steps, from 0.

    Round 1, h = c = 0.  Client 0: gradient -4 + 0, y = 2; -2 + 2 = 0, y = 2; h_0 = 2, c_0 = -2 / (2 * .5) = -2.
             Client 1 stays at 0.  H = 1, c = -1; w = 1 + 1 = 2.
    Round 2. Client 0: (y - 4) + (y + 2 - 2) + (-1 + 2) = 2 y - 3: from 2 to 1.5 and there; D = -.5,
             h_0 = 1.5, c_0 = -2 + 1 + .5 = -.5.
             Client 1: y + (y + 0 - 2) + (-1 - 0) = 2 y - 3: to 1.5; D = -.5, h_1 = -.5, c_1 = 0 + 1 + .5 = 1.5.
             H = 1 - .5 = .5 = mean(1.5, -.5); c = -1 + 1/2 (1.5 + 1.5) = .5 = mean(-.5, 1.5); w = 1.5 + .5 = 2.
    """
    play = springs(m=[4.0, 0.0], n=[3, 1]).play(FedDC(1.0, local=SgdConfig(lr=0.5, local_steps=2, batch_size=None)), 2)
    assert [value(p) for p in play.params] == pytest.approx([0.0, 2.0, 2.0])
    assert [value(s.drift) for s in play.states] == pytest.approx([0.0, 1.0, 0.5])
    assert [value(s.c) for s in play.states] == pytest.approx([0.0, -1.0, 0.5])
    logs = [play.sim.memory.get(c).now for c in (0, 1)]
    assert [value(log.h) for log in logs] == pytest.approx([1.5, -0.5])
    assert [value(log.c) for log in logs] == pytest.approx([-0.5, 1.5])


# ---------------------------------------------------------------- kin
@pytest.mark.parametrize("scaled", [False, True])
def test_without_variates_it_is_feddyn(scaled: bool, classes: Any, equal: Any) -> None:
    """I-17: h_i = -g_i / alpha."""
    world, local = classes(n=[4, 7, 9, 3], norm=True), SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.6)
    one = world.play(FedDC(0.3, variates=False, scaled=scaled, local=local), 5, clients_per_round=2)
    two = world.play(FedDyn(0.3, scaled=scaled, local=local), 5, clients_per_round=2)
    equal(one.params, two.params)
    equal(one.states[-1].drift, {n: t / -0.3 for n, t in two.states[-1].h.items()})
    assert one.states[-1].c == {}


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_without_drift_and_pull_it_is_scaffold(momentum: float, weighting: Any, classes: Any, equal: Any) -> None:
    """I-17: option II at server rate 1."""
    world, local = classes(n=[4, 7, 9], norm=True), SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=momentum)
    one = world.play(FedDC(0.0, drift=False, local=local, weighting=weighting), 4, clients_per_round=2)
    two = world.play(SCAFFOLD(local=local, weighting=weighting), 4, clients_per_round=2)
    equal(one.params, two.params)
    equal(one.states[-1].c, two.states[-1].c)
    assert one.bytes[1] - two.bytes[1] < 1000  # no drift travels


def test_without_all_three_it_is_fedavg(classes: Any, equal: Any) -> None:
    """I-17."""
    world = classes(n=[4, 7, 9], norm=True)
    for weighting in ("uniform", "samples"):
        ours = world.play(FedDC(0.0, False, False, local=SMALL, weighting=weighting), clients_per_round=2)
        equal(ours.params, world.play(FedAvg(SMALL, weighting), clients_per_round=2).params)


def test_alpha_zero_alone_is_not_fedavg(classes: Any, equal: Any) -> None:
    """The drift still enters the server's step: with everybody w is 2 mean(y) - w after the first round."""
    w, mean = classes().play(FedAvg(SMALL, "uniform"), 1).params
    ours = classes().play(FedDC(0.0, local=SMALL), 1).params[1]
    equal(ours, map_params(lambda w, y: 2 * y - w, w, mean))


# ---------------------------------------------------------------- where it goes
@pytest.mark.seconds
def test_it_converges_where_fedavg_drifts(springs: Any, value: Any) -> None:
    """Curvatures 4 and 1 with m = 1, -1: optimum .6."""
    world, local = springs(m=[1.0, -1.0], a=[4.0, 1.0]), SgdConfig(lr=0.1, local_steps=8, batch_size=None)
    assert value(world.play(FedDC(0.5, local=local), 80).params[-1]) == pytest.approx(0.6, abs=1e-5)
    assert abs(value(world.play(FedAvg(local), 80).params[-1]) - 0.6) > 0.1


@pytest.mark.parametrize(("scaled", "c"), [(False, -2.0), (True, -3.0)])
def test_mean_gradients_count_by_size_where_it_counts(scaled: bool, c: float, springs: Any, value: Any) -> None:
    """F_i = (w - m_i)^2 / 2 with m = 4, 0; a step of .5 from 0 moves by D = 2, 0, whose gradients are -4, 0.

    c_i is -omega_i D_i / .5 (eq. 3), with 3 and 1 examples omega = 1.5, .5: c = (-6 + 0) / 2, without sizes -4 / 2.
    """
    local = SgdConfig(lr=0.5, local_steps=1, batch_size=None)
    play = springs(m=[4.0, 0.0], n=[3, 1]).play(FedDC(0.5, scaled=scaled, local=local), 1)
    assert value(play.states[1].c) == pytest.approx(c)


@pytest.mark.parametrize(("scaled", "optimum"), [(False, 2.0), (True, 3.0)])
@pytest.mark.seconds
def test_scaling_by_size_is_for_the_mean_by_examples(scaled: bool, optimum: float, springs: Any, value: Any) -> None:
    """m = 4, 0 of 3 and 1 examples: the plain mean of losses is least at 2, the mean by examples at 3."""
    local = SgdConfig(lr=0.2, local_steps=5, batch_size=None)
    play = springs(m=[4.0, 0.0], n=[3, 1]).play(FedDC(0.5, scaled=scaled, local=local), 120)
    assert value(play.params[-1]) == pytest.approx(optimum, abs=1e-4)


# ---------------------------------------------------------------- the divisor
@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_c_is_the_mean_gradient_of_loss_and_pull(momentum: float, springs: Any, value: Any) -> None:
    """Replayed step by step: c_i is the mean of g_i(y) + alpha (y + h_i - w), under momentum with weights a_j."""
    lr, steps, alpha, m, slope = 0.1, 4, 0.4, [3.0, -1.0, 0.5], [1.0, 2.0, 0.5]
    local = SgdConfig(lr=lr, local_steps=steps, batch_size=None, momentum=momentum)
    play = springs(m=m, a=slope).play(FedDC(alpha, local=local), rounds=4)
    drifts, variates = [0.0] * 3, [0.0] * 3
    a = responses(steps, momentum)
    for t in range(4):
        w, c = value(play.params[t]), value(play.states[t].c)
        for i in range(3):
            y, velocity, raw = w, 0.0, []
            for _ in range(steps):
                raw.append(slope[i] * (y - m[i]) + alpha * (y + drifts[i] - w))
                velocity = momentum * velocity + raw[-1] + c - variates[i]
                y -= lr * velocity
            drifts[i] += y - w
            variates[i] = sum(u * g for u, g in zip(a, raw, strict=True)) / sum(a)
    logs = [play.sim.memory.get(i).now for i in range(3)]
    assert [value(log.c) for log in logs] == pytest.approx(variates, abs=1e-9)
    assert [value(log.h) for log in logs] == pytest.approx(drifts, abs=1e-9)


@pytest.mark.parametrize(("divisor", "steps", "rate"), [("own", (1, 3), 0.1), ("code", (2, 2), 0.2)])
def test_the_divisor_is_each_clients_own_or_as_published(
    divisor: Any, steps: tuple[int, int], rate: float, springs: Any, value: Any
) -> None:
    """Sizes 1 and 3 in batches of 1, lr .2 halved in round 2: own 1 and 3 steps at .1; the code 2 steps each at .2.

    In round 2 eq. 3 is c_i+ = c_i - c - D_i / (eta K), and dc_i + c = -D_i / (eta K).
    """
    local = SgdConfig(lr=0.2, local_epochs=1, batch_size=1, lr_schedule=Exponential(0.5))
    sim = springs(m=[4.0, -3.0], n=[1, 3]).simulator(FedDC(0.1, divisor=divisor, local=local))
    first, _ = sim.round(sim.start(), 1)
    sim.round(first, 2)
    for client in (0, 1):
        mine = sim.memory.get(client)
        moved = value(mine.now.h) - value(mine.before.h)
        renewed = value(mine.now.c) - value(mine.before.c) + value(first.c)
        assert renewed == pytest.approx(-moved / (rate * steps[client]), abs=1e-12)
        assert abs(moved) > 0.01


def test_sizes_are_asked_for_only_if_they_count(classes: Any) -> None:
    world = classes(n=[4, 7, 9])
    for options, known in (
        ({}, {}),
        ({"scaled": True}, {0: 4, 1: 7, 2: 9}),
        ({"divisor": "code"}, {0: 4, 1: 7, 2: 9}),
        ({"divisor": "code", "variates": False}, {}),
    ):
        assert world.play(FedDC(local=SMALL, **options), 1, codec=True).states[1].n == known


# ---------------------------------------------------------------- what is remembered
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("cohort", [1, 2, 5])
def test_drift_and_gradient_of_the_server_are_means_of_all(cohort: int, scaled: bool, classes: Any) -> None:
    """I-17: after every round, for any participation."""
    algorithm = FedDC(0.2, scaled=scaled, local=SMALL)
    sim = classes(n=[4, 7, 9, 3, 5], norm=True).simulator(algorithm, clients_per_round=cohort)
    state = sim.start()
    for t in range(1, 6):
        state, _ = sim.round(state, t)
        assert min(flat(state.drift).abs().max(), flat(state.c).abs().max()) > 1e-3
        assert_means(sim, state)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_lost_reply_never_happened(scaled: bool, classes: Any) -> None:
    """I-17 where half of the replies are lost, sizes among them."""
    algorithm = FedDC(0.2, scaled=scaled, local=SMALL)
    sim = classes(n=[4, 7, 9, 3, 5]).simulator(algorithm, outage=Outage(late=0.5), codec=True, seed=1)
    state, rolled_back = sim.start(), 0
    for t in range(1, 9):
        state, trace = sim.round(state, t)
        assert_means(sim, state)
        lost = {f.client for f in trace.failures if f.step == "train"}
        assert all(state.heard.get(c, 0) < t for c in lost)
        rolled_back += len(lost)
    assert rolled_back > 5


def test_absent_clients_keep_drift_and_gradient(classes: Any) -> None:
    """I-17."""
    sim = classes().simulator(FedDC(local=SMALL), clients_per_round=2)
    state, stayed = sim.start(), 0
    for t in range(1, 6):
        before = sim.memory.at(sim.memory.round)
        state, trace = sim.round(state, t)
        cohort = {x.src - 1 for x in trace.transfers if x.direction == "up"}
        assert all((sim.memory.get(c) is kept) == (c not in cohort) for c, kept in before.items())
        stayed += len(set(before) - cohort)
    assert stayed > 0


def test_only_what_is_trained_has_drift_and_gradient(classes: Any) -> None:
    local = SgdConfig(lr=0.1, local_epochs=1, trainable=("body",))
    play = classes(norm=True).play(FedDC(local=local), 2, codec=True)
    body = {"fc.weight", "fc.bias", "bn.weight", "bn.bias"}
    assert set(play.states[-1].c) == set(play.states[-1].drift) == body
    torch.testing.assert_close(play.params[-1]["head.weight"], play.params[0]["head.weight"], rtol=0, atol=0)


def test_each_part_that_is_off_does_not_travel(classes: Any, spy: Any, floats: Any) -> None:
    """I-42: P = 53; two vectors each way, one without variates, three clients."""
    for options, models in (({}, 2), ({"variates": False}, 1), ({"drift": False}, 2)):
        with spy() as messages:
            classes().play(FedDC(local=SMALL, **options), 1, clients_per_round=3)
        assert sum(map(floats, messages)) == 2 * 3 * models * 43


# ---------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("local", "why", "published"),
    [
        (SgdConfig(optimizer="adam"), "which is not defined for adam", False),
        (SgdConfig(optimizer="adamw"), "which is not defined for adamw", False),
        (SgdConfig(momentum=0.9, nesterov=True), "leave local.nesterov out", True),
        (SgdConfig(clip_norm=10.0), "got local.clip_norm = 10", True),
    ],
)
def test_displacements_that_are_no_sums_of_gradients_are_refused(local: SgdConfig, why: str, published: bool) -> None:
    """The published code clips at 10; what it cannot mean is Adam.  Without variates nothing divides."""
    with pytest.raises(ConfigError, match=f"FedDC .*{why}"):
        FedDC(local=local)
    if published:
        assert FedDC(divisor="code", local=local).local == local
    else:
        with pytest.raises(ConfigError, match=f"FedDC .*{why}"):
            FedDC(divisor="code", local=local)
    assert FedDC(variates=False, local=local).local == local


def test_published_settings_run(classes: Any) -> None:
    local = SgdConfig(
        lr=0.1, lr_schedule=Exponential(0.998), local_epochs=5, batch_size=3, weight_decay=1e-3, clip_norm=10.0
    )
    play = classes(n=[4, 7, 9]).play(FedDC(0.01, divisor="code", scaled=True, local=local), 3, clients_per_round=2)
    last: Params = play.params[-1]
    assert all(bool(torch.isfinite(t).all()) for t in last.values())
    assert_means(play.sim, play.states[-1])
