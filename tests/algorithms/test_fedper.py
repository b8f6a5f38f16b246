"""FedPer and FedBN: FedAvg of a part."""

from typing import Any

import pytest
import torch

import unskew as us
from unskew.reduction import weighted_mean
from unskew.runtime.memory import Memory
from unskew.tree import Params

SMALL = us.SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.5)
HEAD = {"head.weight", "head.bias"}
NORM = {"bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"}


def part(params: Params, names: set[str]) -> Params:
    return {n: t for n, t in params.items() if n in names}


@pytest.mark.parametrize(("make", "stays"), [(us.FedPer, HEAD), (us.FedBN, NORM)])
def test_a_round_averages_the_rest_and_keeps_what_stays(make: Any, stays: set[str], classes: Any, equal: Any) -> None:
    """Round 1 starts alike everywhere, so each client trains as it would alone; the own part is what that left."""
    world = classes(n=[4, 7, 9], norm=True)
    play, alone = world.play(make(SMALL), 1), world.play(us.Independent(SMALL), 1)
    mean = weighted_mean([alone.own(c) for c in range(3)], [4.0, 7.0, 9.0])
    for c in range(3):
        own = play.own(c)
        equal(part(own, stays), part(alone.own(c), stays), atol=0.0)
        equal(part(own, set(own) - stays), part(mean, set(own) - stays), atol=1e-12)


def test_the_own_head_goes_on_from_where_it_was(classes: Any, equal: Any) -> None:
    """Two rounds by hand: in round 2 a client trains (mean body, its own head of round 1)."""
    world = classes(n=[5, 5], norm=False)
    local = us.SgdConfig(lr=0.2, local_epochs=1, batch_size=None)
    one, two = world.play(us.FedPer(local), 1), world.play(us.FedPer(local), 2)
    start = one.own(1)
    module = world.task.build().double()
    module.load_state_dict(start)
    rows = world.device_data.train[1]
    torch.nn.functional.cross_entropy(module(world.device_data.x[rows]), world.device_data.y[rows]).backward()
    after = {n: (p - 0.2 * p.grad).detach() for n, p in module.named_parameters() if p.grad is not None}
    equal(part(two.own(1), HEAD), part(after, HEAD), atol=1e-12)


# ---------------------------------------------------------------- inside groups
OWN: dict[str, Any] = {"local": SMALL, "weighting": "samples", "personal": ("head",)}
ONE_GROUP: dict[str, Any] = {
    "grouped": us.Grouped(None, **OWN),
    "hcct": us.HCCT(**OWN, warmup="global", groups=1),
    "hcct_e": us.HCCT_E(**OWN, warmup="global", groups=1),
    "ifca": us.IFCA(clusters=1, **OWN),
    "flsc": us.FLSC(clusters=1, memberships=1, **OWN),
    "cfl": us.CFL(eps1=0.0, **OWN),
    "maxfl_hcct": us.MAXFL_HCCT(float("inf"), **OWN),
}


@pytest.mark.parametrize("name", ONE_GROUP)
def test_in_one_group_of_all_any_clustered_method_with_own_heads_is_fedper(name: str, classes: Any, equal: Any) -> None:
    """Also what travels: no head."""
    world = classes(n=[4, 7, 9])
    play, plain = world.play(ONE_GROUP[name]), world.play(us.FedPer(SMALL))
    for client in range(3):
        equal(play.own(client), plain.own(client), atol=1e-12)
    assert play.sim.method.serve(play.states[-1], None) is None
    up = [t.bytes for t in play.traces[-1].transfers if t.direction == "up"]
    whole = [t.bytes for t in world.play(us.FedAvg(SMALL), 1).traces[-1].transfers if t.direction == "up"]
    assert max(up) < min(whole)


def test_a_client_s_own_head_goes_with_it_from_the_group_and_back(classes: Any, equal: Any) -> None:
    """Threshold -inf: after the warm-up both leave, the group's body under their own heads.  Threshold inf: back."""
    world = classes(n=[4, 7])
    method = us.MAXFL_HCCT(float("-inf"), warmup=1, **OWN)
    sim = world.simulator(method)
    state, _ = sim.round(sim.start(), 1)
    inside = [sim.memory.get(c) for c in (0, 1)]
    assert all(set(m.own) == HEAD and not m.alone for m in inside)
    state, trace = sim.round(state, 2)
    outside = [sim.memory.get(c) for c in (0, 1)]
    assert all(set(m.own) == set(world.population.initial) and m.alone for m in outside)
    assert all(t.kind == "control" for t in trace.transfers if t.direction == "up")
    again = world.simulator(us.MAXFL_HCCT(float("inf"), warmup=1, **OWN))
    again.memory = Memory(2, dict(enumerate(outside)))
    start = {c: again.own_models(state, [c], 3)[c] for c in (0, 1)}
    for c in (0, 1):
        equal(start[c], outside[c].own, atol=0.0)
    again.round(state, 3)
    assert all(set(again.memory.get(c).own) == HEAD and not again.memory.get(c).alone for c in (0, 1))
