"""Server optimisers: the rules by hand, and the methods made of them."""

import inspect
from typing import Any

import pytest

from unskew.algorithms import TABLE, resolve
from unskew.protocol import SgdConfig
from unskew.server.optimise import Adagrad, Adam, Mean, Moments, Momentum, Yogi
from unskew.tree import Params, map_params


class Half(Mean):
    """A rule of one's own, for every tensor that it is given."""

    def step(self, w: Params, mean: Params, moments: Moments) -> tuple[Params, Moments]:
        return map_params(lambda a, b: a + (b - a) / 2, w, mean), moments


# ---------------------------------------------------------------- any client rule with any server rule
RULES = [Mean(), Half(), Momentum(0.7, 0.5, nesterov=True), Adagrad(), Adam(server_lr=0.05, v0=0.0), Yogi()]
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
    for rule in RULES if name == "fedavg" else RULES[1:5:3]:
        after = states(rule)[1]
        here, there = ({n: of[n] for n in moving} for of in (before, mean))  # no buffer
        expected, moments = rule.step(here, there, rule.start(here))
        equal(after.params, {n: expected.get(n, before[n] if n in fixed else mean[n]) for n in before}, 0.0)
        equal(after.moments.m, moments.m, 0.0)
        equal(after.moments.v, moments.v, 0.0)
