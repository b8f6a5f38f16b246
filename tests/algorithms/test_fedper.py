"""FedPer and FedBN: FedAvg of a part."""

from typing import Any

import pytest

import unskew as us
from unskew.runtime.memory import Memory

SMALL = us.SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.5)
HEAD = {"head.weight", "head.bias"}


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
