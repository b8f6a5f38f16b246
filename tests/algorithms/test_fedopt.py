"""Server optimisers: the rules by hand, and the methods made of them."""

import inspect
from typing import Any

import pytest
import torch

from unskew.algorithms import TABLE, resolve
from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.fedopt import FedAvgM
from unskew.protocol import SgdConfig
from unskew.server.optimise import Adagrad, Adam, Mean, Moments, Momentum, Yogi, momentum
from unskew.tree import Params


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

    named = {"ffalora": {"fixed": ("head",)}, "fedsalora": {"personal": ("head",)}}.get(name, {})

    def states(server: Any) -> list[Any]:
        found = world.play(resolve(name)(local=local, server=server, **named), 1).states
        return [state.of if name == "feddw" else state for state in found]

    before, mean = (state.params for state in states(Mean()))
    fixed = set(world.task.layout.head) if name in ("fedbabu", "ffalora") else set()
    moving = [n for n in world.task.layout.trainable if n in before and n not in fixed]
    for rule in RULES if name == "fedavg" else RULES[1:4:2]:
        after = states(rule)[1]
        expected, moments = rule.step(before, mean, rule.start({n: before[n] for n in moving}))
        equal(after.params, {n: before[n] if n in fixed else t for n, t in expected.items()}, 0.0)
        equal(after.moments.m, moments.m, 0.0)
        equal(after.moments.v, moments.v, 0.0)
