"""Server optimisers: the rules by hand, and the methods made of them."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unskew.algorithms import resolve
from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from unskew.protocol import SgdConfig
from unskew.server.optimise import Rule, adaptive, momentum
from unskew.tree import Params

STEP = SgdConfig(lr=0.5, local_steps=1, batch_size=None)


def one(x: float) -> Params:
    return {"w": torch.tensor([x], dtype=torch.float64)}


def test_momentum_by_hand() -> None:
    """beta .5, updates 1 then 2: m = 1, then .5 + 2 = 2.5; Nesterov's direction is 2 + .5 * 2.5 = 3.25."""
    direction, m = momentum(one(1.0), one(0.0), beta=0.5)
    assert (direction["w"].item(), m["w"].item()) == (1.0, 1.0)
    assert momentum(one(2.0), m, beta=0.5)[0]["w"].item() == 2.5
    direction, m = momentum(one(2.0), m, beta=0.5, nesterov=True)
    assert (direction["w"].item(), m["w"].item()) == (3.25, 2.5)


@pytest.mark.parametrize(
    ("rule", "beta2", "v"), [("adagrad", 0.0, 5.0), ("adam", 0.75, 1.75), ("yogi", 0.75, 2.0), ("yogi", 0.0, 5.0)]
)
def test_second_moments_by_hand(rule: Rule, beta2: float, v: float) -> None:
    """D = 2 and v = 1: 1 + 4; .75 + .25 * 4; 1 + .25 * 4; 1 + 4.  m = .5 * 3 + .5 * 2 = 2.5; no correction."""
    direction, m, now = adaptive(rule, one(2.0), one(3.0), one(1.0), beta1=0.5, beta2=beta2, tau=0.1)
    assert m["w"].item() == pytest.approx(2.5)
    assert now["w"].item() == pytest.approx(v)
    assert direction["w"].item() == pytest.approx(2.5 / (v**0.5 + 0.1))


def test_yogi_falls_by_the_squared_update_and_adam_by_its_own_size() -> None:
    """v = 100, D = 1, beta2 .9: Yogi 100 - .1 = 99.9, Adam 90.1."""
    rules: tuple[Rule, Rule] = ("yogi", "adam")
    yogi, adam = (adaptive(r, one(1.0), one(0.0), one(100.0), beta1=0, beta2=0.9, tau=1)[2]["w"].item() for r in rules)
    assert yogi == pytest.approx(99.9)
    assert adam == pytest.approx(90.1)


@given(st.floats(0.01, 10.0), st.floats(0.0, 10.0).filter(lambda v: v == 0.0 or v > 1e-3))
def test_adam_and_yogi_agree_at_first_when_v_starts_at_zero(d: float, v0: float) -> None:
    """I-13: Adam less Yogi is (1 - beta2) (D^2 - v + D^2 sign(v - D^2)): 0 from v = 0.

    Elsewhere only if v happens to be D^2 or 2 D^2.
    """
    results = [
        adaptive(r, one(d), one(0.0), one(v0), beta1=0.0, beta2=0.99, tau=1e-3)[2]["w"] for r in ("adam", "yogi")
    ]
    same = any(abs(v0 - crossing) < 1e-9 for crossing in (0.0, d * d, 2 * d * d))
    assert torch.allclose(results[0], results[1], rtol=0, atol=1e-12) == same


def test_server_momentum_over_two_rounds(springs: Any, value: Any) -> None:
    """F = (w - 1)^2 / 2, one client step of .5: D = (1 - w) / 2.  beta .5, server_lr 2.

    w1 = 2 * .5 = 1; D = 0, m = .25, w2 = 1.5.  Nesterov: w1 = 2 (.5 + .25) = 1.5; D = -.25, m = .25 - .25 = 0,
    w2 = 1.5 + 2 * -.25 = 1.
    """
    world = springs(m=[1.0])
    plain = world.play(FedAvgM(beta=0.5, server_lr=2.0, local=STEP), 2)
    assert [value(p) for p in plain.params] == pytest.approx([0.0, 1.0, 1.5])
    nesterov = world.play(FedAvgM(beta=0.5, server_lr=2.0, nesterov=True, local=STEP), 2)
    assert [value(p) for p in nesterov.params] == pytest.approx([0.0, 1.5, 1.0])


def test_an_adaptive_round_by_hand(springs: Any, value: Any) -> None:
    """D = .5, tau .1, v_0 = .01: Adagrad v = .26; Adam .99 * .01 + .01 * .25 = .0124; Yogi .01 + .01 * .25 = .0125.

    m = .1 * .5 = .05, Adagrad .5; w1 = server_lr m / (sqrt(v) + .1), server_lr 1.
    """
    world = springs(m=[1.0])
    for make, m, v in ((FedAdagrad, 0.5, 0.26), (FedAdam, 0.05, 0.0124), (FedYogi, 0.05, 0.0125)):
        play = world.play(make(server_lr=1.0, tau=0.1, local=STEP), 1)
        assert value(play.states[0].v) == pytest.approx(0.01)
        assert value(play.states[1].v) == pytest.approx(v)
        assert value(play.params[1]) == pytest.approx(m / (v**0.5 + 0.1))


def test_the_first_adaptive_step_does_not_depend_on_scale(springs: Any, value: Any) -> None:
    """m / sqrt(v) = .1 D / (.1 D) once D^2 is far above v_0 and tau: each parameter moves server_lr, whatever D."""
    ends = [value(springs(m=[m]).play(FedAdam(server_lr=0.3, local=STEP), 1).params[1]) for m in (10.0, 1000.0)]
    assert ends == pytest.approx([0.3, 0.3], rel=2e-2)


@pytest.mark.parametrize("name", ["fedavgm", "fedadagrad", "fedadam", "fedyogi"])
def test_the_mean_update_leads_downhill(name: str, springs: Any, value: Any) -> None:
    """The sign of D: two clients at 1 and 3 meet at 2, from 0 upwards."""
    ends = [value(p) for p in springs(m=[1.0, 3.0]).play(resolve(name)(local=STEP), rounds=30).params]
    assert ends[1] > 0.0
    assert abs(ends[-1] - 2.0) < abs(ends[0] - 2.0)


def test_buffers_pass_the_optimiser_by(classes: Any, equal: Any) -> None:
    """With a server that moves nothing else, BatchNorm's statistics still follow the clients; they have no moment."""
    world = classes(norm=True, n=[4, 7, 9])
    local = SgdConfig(lr=0.1, local_epochs=1, batch_size=None)
    still = world.play(FedAvgM(beta=0.9, server_lr=1e-30, local=local), rounds=1)
    plain = world.play(FedAvg(local), rounds=1)
    buffers, weights = world.task.layout.buffers, world.task.layout.trainable
    equal({n: still.params[1][n] for n in buffers}, {n: plain.params[1][n] for n in buffers}, atol=0.0)
    equal({n: still.params[1][n] for n in weights}, {n: still.params[0][n] for n in weights}, atol=1e-12)
    assert set(still.states[1].m) == set(weights)


def test_frozen_parameters_stay_where_they_are(classes: Any, equal: Any) -> None:
    """Their mean update is 0, so are their moments, for the adaptive methods 0 / (sqrt(v) + tau) too."""
    local = SgdConfig(lr=0.1, local_epochs=1, trainable=("body",))
    play = classes().play(FedYogi(local=local))
    head = ("head.weight", "head.bias")
    for after in play.params[1:]:
        torch.testing.assert_close(after["head.weight"], play.params[0]["head.weight"], rtol=0, atol=1e-15)
    assert all(not play.states[-1].m[n].any() for n in head)
    assert not torch.equal(play.params[-1]["fc.weight"], play.params[0]["fc.weight"])
