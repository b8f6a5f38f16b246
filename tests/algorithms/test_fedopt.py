"""Server optimisers: the rules by hand, and the methods made of them."""

import inspect
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unskew.algorithms import TABLE, resolve
from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from unskew.algorithms.fedprox import FedProx
from unskew.algorithms.moon import MOON
from unskew.errors import ConfigError, ProtocolError
from unskew.experiment import config, from_python
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


@given(st.floats(0.01, 10.0), st.floats(0.0, 10.0).filter(lambda v: v == 0.0 or v > 1e-3))
def test_adam_and_yogi_agree_at_first_when_v_starts_at_zero(d: float, v0: float) -> None:
    """I-13: Adam less Yogi is (1 - beta2) (D^2 - v + D^2 sign(v - D^2)): 0 from v = 0.

    Elsewhere only if v happens to be D^2 or 2 D^2.
    """
    results = [
        r(beta1=0.0, beta2=0.99, tau=1e-3).direction(one(d), Moments(one(0.0), one(v0)))[1].v["w"] for r in (Adam, Yogi)
    ]
    same = any(abs(v0 - crossing) < 1e-9 for crossing in (0.0, d * d, 2 * d * d))
    assert torch.allclose(results[0], results[1], rtol=0, atol=1e-12) == same


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
    assert set(still.states[1].moments.m) == set(weights)


def test_frozen_parameters_stay_where_they_are(classes: Any, equal: Any) -> None:
    """Their mean update is 0, so are their moments, for the adaptive methods 0 / (sqrt(v) + tau) too."""
    local = SgdConfig(lr=0.1, local_epochs=1, trainable=("body",))
    play = classes().play(FedYogi(local=local))
    head = ("head.weight", "head.bias")
    for after in play.params[1:]:
        torch.testing.assert_close(after["head.weight"], play.params[0]["head.weight"], rtol=0, atol=1e-15)
    assert all(not play.states[-1].moments.m[n].any() for n in head)
    assert not torch.equal(play.params[-1]["fc.weight"], play.params[0]["fc.weight"])


# ---------------------------------------------------------------- any client rule with any server rule
RULES = [Mean(), Momentum(server_lr=0.7, beta=0.5, nesterov=True), Adagrad(), Adam(server_lr=0.05, v0=0.0), Yogi()]
TAKERS = [n for n in TABLE if "server" in inspect.signature(resolve(n)).parameters]


def test_what_takes_fedavgs_round_takes_any_server_rule() -> None:
    assert TAKERS == [
        "fedavg", "fedprox", "feddw", "moon", "feduv", "fedper", "fedbn", "fedrep", "fedbabu", "fedala", "perfedavg",
        "ditto", "oneshot",
    ]  # fmt: skip


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


def test_moon_with_adam_on_the_server_is_one_line_of_a_file(classes: Any) -> None:
    table = {"name": "moon", "mu": 5.0, "server": {"name": "adam", "server_lr": 0.1}}
    method = config.parse({"rounds": 1, "method": table}).methods[0]
    assert method.algorithm == MOON(mu=5.0, server=Adam(server_lr=0.1))
    assert config.method(method.name, method.options) == method
    with pytest.raises(
        ConfigError, match=r"method.server.name: unknown server rule 'sgd' .there are: mean, momentum, "
    ):
        config.method("moon", {"server": {"name": "sgd"}})
    with pytest.raises(ConfigError, match=r"unknown key method.server.server_rl; did you mean server_lr\?"):
        config.method("moon", {"server": {"name": "adam", "server_rl": 1.0}})
    with pytest.raises(ConfigError, match=r"method.server.beta1 must be < 1, got 1"):
        config.method("moon", {"server": {"name": "adam", "beta1": 1.0}})


@dataclass(frozen=True)
class PartWay:
    share: float = 0.5

    def start(self, params: Params) -> Moments:
        return Moments()

    def step(self, w: Params, mean: Params, moments: Moments) -> tuple[Params, Moments]:
        return {n: t + self.share * (mean[n] - t) for n, t in w.items()}, moments


def test_fedavg_with_a_rule_of_ones_own_is_not_the_fedavg_that_others_are_compared_with() -> None:
    """The rule has `start` and `step`, and need not have a name."""
    table = {"name": "fedavg", "server": {"name": f"{__name__}:PartWay", "share": 0.25}}
    experiment = config.parse({"rounds": 1, "methods": [table, {"name": "fedprox"}]}, allow_code=True)
    assert (experiment.methods[0].is_fedavg, experiment.baseline) == (False, None)


def test_a_rule_of_ones_own_stands_in_python_and_in_a_file() -> None:
    table = {"name": "fedprox", "server": {"name": f"{__name__}:PartWay", "share": 0.25}}
    method = config.parse({"rounds": 1, "method": table}, allow_code=True).methods[0]
    assert method.algorithm == FedProx(server=PartWay(0.25))
    made = from_python.method_of(method.algorithm)
    assert (made.name, made.options["server"]) == ("fedprox", method.options["server"])
    assert config.method(made.name, made.options).algorithm == method.algorithm
    with pytest.raises(ConfigError, match=r"^method.server.name names code .*:PartWay.*pass --allow-code"):
        config.parse({"rounds": 1, "method": table})


def test_a_rule_that_no_file_can_name_works_in_python() -> None:
    class Inside(PartWay):
        """A class with no address."""

    made = from_python.method_of(FedProx(server=Inside()), "inside")
    assert (made.label, made.algorithm) == ("inside", FedProx(server=Inside()))
    assert made.name == "made in Python:FedAvg"


def test_a_method_made_in_python_is_called_what_says_it_shortest() -> None:
    made = [
        FedAvg(), FedAdam(), FedAvgM(0.3, 0.4, True), FedYogi(4.0, 0.1, 0.2, 0.3, 0.4), FedAvg(personal=("norm",)),
        FedAvg(STEP, server=Adagrad(), personal=("head",)), MOON(server=Adam()),
    ]  # fmt: skip
    methods = [from_python.method_of(method) for method in made]
    assert [m.name for m in methods] == ["fedavg", "fedadam", "fedavgm", "fedyogi", "fedbn", "fedper", "moon"]
    assert [m.algorithm for m in methods] == made
    assert [m.is_fedavg for m in methods] == [True] + [False] * 6
    assert not config.method("fedavg", {"server": {"name": "adam"}}).is_fedavg
