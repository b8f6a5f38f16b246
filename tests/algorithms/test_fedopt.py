"""Server optimisers: the rules by hand, and the methods made of them."""

import inspect
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from unskew.algorithms import TABLE, resolve
from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from unskew.errors import ProtocolError
from unskew.protocol import SgdConfig
from unskew.server.optimise import Adagrad, Adam, Mean, Moments, Momentum, Yogi, momentum
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
    ("rule", "beta2", "v"), [(Adagrad, None, 5.0), (Adam, 0.75, 1.75), (Yogi, 0.75, 2.0), (Yogi, 0.0, 5.0)]
)
def test_second_moments_by_hand(rule: Any, beta2: float | None, v: float) -> None:
    """D = 2 and v = 1: 1 + 4; .75 + .25 * 4; 1 + .25 * 4; 1 + 4.  m = .5 * 3 + .5 * 2 = 2.5; no correction."""
    how = rule(beta1=0.5, tau=0.1) if beta2 is None else rule(beta1=0.5, tau=0.1, beta2=beta2)
    direction, now = how.direction(one(2.0), Moments(one(3.0), one(1.0)))
    assert now.m["w"].item() == pytest.approx(2.5)
    assert now.v["w"].item() == pytest.approx(v)
    assert direction["w"].item() == pytest.approx(2.5 / (v**0.5 + 0.1))


def test_yogi_falls_by_the_squared_update_and_adam_by_its_own_size() -> None:
    """v = 100, D = 1, beta2 .9: Yogi 100 - .1 = 99.9, Adam 90.1."""
    before = Moments(one(0.0), one(100.0))
    yogi, adam = (r(beta1=0.0, beta2=0.9, tau=1.0).direction(one(1.0), before)[1].v["w"].item() for r in (Yogi, Adam))
    assert yogi == pytest.approx(99.9)
    assert adam == pytest.approx(90.1)


@dataclass(frozen=True)
class Wrong:
    """A server rule that returns what `how` makes of the mean."""

    how: Any
    name: str = "wrong"

    def start(self, params: Params) -> Moments:
        return Moments()

    def step(self, w: Params, mean: Params, moments: Moments) -> Any:
        return self.how(mean)


@pytest.mark.parametrize(
    ("how", "got"),
    [
        (
            lambda mean: ({n: t.half() for n, t in mean.items()}, Moments()),
            r"'head.weight' as float16 \(1, 1\) instead of float64",
        ),
        (
            lambda mean: ({n: t[:0] for n, t in mean.items()}, Moments()),
            r"'head.weight' as float64 \(0, 1\) instead of .* \(1, 1\)",
        ),
        (lambda mean: ({n: 1.0 for n in mean}, Moments()), "'head.weight' as float instead of float64"),
        (lambda mean: ({}, Moments()), "'head.weight' as nothing instead of float64"),
        (lambda mean: ({**mean, "v": mean["head.weight"]}, Moments()), r"'v' as float64 \(1, 1\) instead of nothing"),
        (lambda mean: mean, "got one dict"),
        (lambda mean: None, "got one NoneType"),
        (lambda mean: (mean,), r"got \(dict\)"),
        (lambda mean: (mean, None), r"got \(dict, NoneType\)"),
    ],
)
def test_what_a_server_rule_returns_is_checked(springs: Any, how: Any, got: str) -> None:
    with pytest.raises(ProtocolError, match=f"round 1: step of the server rule 'wrong' must return a pair: .*{got}"):
        springs(m=[1.0]).play(FedAvg(server=Wrong(how), local=STEP), 1)


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
        assert value(play.states[0].moments.v) == pytest.approx(0.01)
        assert value(play.states[1].moments.v) == pytest.approx(v)
        assert value(play.params[1]) == pytest.approx(m / (v**0.5 + 0.1))


def test_buffers_pass_the_optimiser_by(classes: Any, equal: Any) -> None:
    """With a server that moves nothing else, BatchNorm's statistics still follow the clients; they have no moment."""
    world = classes(norm=True, n=[4, 7, 9])
    local = SgdConfig(lr=0.1, local_epochs=1, batch_size=None)
    still = world.play(FedAvgM(beta=0.9, server_lr=1e-30, local=local), rounds=1)
    plain = world.play(FedAvg(local), rounds=1)
    buffers, weights = world.task.layout.buffers, world.task.layout.trainable
    equal({n: still.params[1][n] for n in buffers}, {n: plain.params[1][n] for n in buffers}, atol=0.0)
    equal({n: still.params[1][n] for n in weights}, {n: still.params[0][n] for n in weights}, atol=1e-12)
    assert set(still.states[1].moments.m) == set(weights)


# ---------------------------------------------------------------- any client rule with any server rule
RULES = [Mean(), Momentum(server_lr=0.7, beta=0.5, nesterov=True), Adagrad(), Adam(server_lr=0.05, v0=0.0), Yogi()]
TAKERS = [n for n in TABLE if "server" in inspect.signature(resolve(n)).parameters]


@pytest.mark.parametrize("name", TAKERS)
@pytest.mark.seconds
def test_a_server_rule_steps_from_the_mean_that_the_method_would_have_taken(
    name: str, classes: Any, equal: Any
) -> None:
    """Round 1 of a method under a rule is the rule's step from w^0 to the method's own mean, to the bit."""
    world, local = classes(norm=True, n=[4, 7, 9]), SgdConfig(lr=0.1, local_epochs=1, batch_size=3)

    def states(server: Any) -> list[Any]:
        found = world.play(resolve(name)(local=local, server=server), 1).states
        return [state.of if name == "feddw" else state for state in found]

    before, mean = (state.params for state in states(Mean()))
    fixed = set(world.task.layout.head) if name == "fedbabu" else set()
    moving = [n for n in world.task.layout.trainable if n in before and n not in fixed]
    for rule in RULES if name == "fedavg" else RULES[1:4:2]:
        after = states(rule)[1]
        expected, moments = rule.step(before, mean, rule.start({n: before[n] for n in moving}))
        equal(after.params, {n: before[n] if n in fixed else t for n, t in expected.items()}, 0.0)
        equal(after.moments.m, moments.m, 0.0)
        equal(after.moments.v, moments.v, 0.0)
