"""Methods that are another method at some settings: every client's model, round after round, of unequal clients.

What TABLE declares to be FedAvg is in tests/conformance/test_limits.py.
"""

import math
from dataclasses import replace
from typing import Any

import pytest

import unskew as us
from unskew.protocol import Exponential, SgdConfig
from unskew.server.graphs import Complete

LOCAL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.5)
FULL = replace(LOCAL, batch_size=None)
STEPS = SgdConfig(lr=0.1, local_steps=4, batch_size=3, momentum=0.9, weight_decay=0.01)
PLAIN = SgdConfig(0.2, local_epochs=3, batch_size=None, weight_decay=0.1, lr_schedule=Exponential(0.5))
ONCE = SgdConfig(lr=0.3, local_steps=1, batch_size=3)
BY_EXAMPLES, UNIFORM, ALONE = us.FedAvg(LOCAL), us.FedAvg(LOCAL, "uniform"), us.Independent(LOCAL)
TWO: dict[str, Any] = {"clients_per_round": 2}

# A method, the other one, how they are played, and by how much rounding may part them.
LIMITS: list[tuple[Any, Any, dict[str, Any], float]] = [
    (us.FedALA(eta=0.0, local=LOCAL), BY_EXAMPLES, {}, 0.0),
    (us.FedBABU(local=LOCAL, weighting="samples", fixed=(), finetune="none"), BY_EXAMPLES, {}, 0.0),
    (us.FedRep(head_epochs=0, local=LOCAL, personal=(), weighting="samples"), BY_EXAMPLES, {}, 0.0),
    (us.FedRep(head_epochs=0, local=LOCAL), us.FedBABU(local=LOCAL, finetune="none"), {}, 0.0),
    (us.FedPer(LOCAL, personal=("all",)), ALONE, {}, 0.0),
    (us.FedBN(LOCAL, personal=("all",)), ALONE, {}, 0.0),
    (us.FedDC(0.3, variates=False, local=LOCAL), us.FedDyn(0.3, local=LOCAL), TWO, 1e-9),
    (us.FedDC(0.3, variates=False, scaled=True, local=LOCAL), us.FedDyn(0.3, scaled=True, local=LOCAL), TWO, 1e-9),
    (us.FedDC(0.0, drift=False, local=LOCAL), us.SCAFFOLD(local=LOCAL), TWO, 1e-9),
    (us.SCAFFOLD(local=ONCE), us.FedAvg(ONCE, "uniform"), {}, 1e-9),
    (us.FedNova(local=STEPS), us.FedAvg(STEPS), TWO, 1e-9),
    (us.FedNova(mu=0.7, local=STEPS), us.FedProx(mu=0.7, local=STEPS), {}, 1e-9),
    (us.PerFedAvg(0.0, "exact", local=PLAIN), us.FedAvg(PLAIN, "uniform"), TWO, 1e-12),
    (us.QFedAvg(q=0.0, local=LOCAL), BY_EXAMPLES, {}, 1e-9),
    (us.STC(1.0, 1.0, False, True, LOCAL), UNIFORM, TWO, 1e-9),
    (us.FedSwap(1, weighting="samples", route="d2d", local=LOCAL), BY_EXAMPLES, TWO, 1e-9),
    (us.TTHF(1, gamma=0, local=LOCAL), UNIFORM, TWO, 1e-9),
    (us.Ditto(0.0, local=FULL), us.Independent(FULL), {}, 1e-12),
    (us.FedDistill(lam=0.0, local=LOCAL), ALONE, {}, 0.0),
    (us.FedDistillPlus(lam=0.0, local=LOCAL), BY_EXAMPLES, {}, 0.0),
    (us.FedProto(lam=0.0, local=LOCAL), ALONE, {}, 0.0),
    (us.CFL(eps1=0.0, local=LOCAL), UNIFORM, TWO, 1e-9),
    (us.IFCA(clusters=1, averaging="gradient", local=LOCAL), UNIFORM, TWO, 1e-9),
    (us.FLSC(clusters=1, memberships=1, local=LOCAL), UNIFORM, TWO, 1e-9),
    (us.FLSC(clusters=3, memberships=1, local=LOCAL), us.IFCA(clusters=3, local=LOCAL), {}, 1e-9),
    (us.Grouped(((3, 1, 0, 2),), LOCAL), BY_EXAMPLES, TWO, 0.0),
    (us.Grouped(((0,), (1,), (2,), (3,)), LOCAL), ALONE, {}, 1e-12),
    (us.HCCT(LOCAL, groups=1, warmup="global"), BY_EXAMPLES, TWO, 0.0),
    (us.HCCT(LOCAL, alpha=0.0), ALONE, {}, 0.0),
    (us.HCCT_P(local=LOCAL, groups=1, warmup="global"), us.FedPer(LOCAL), {}, 0.0),
    (us.MAXFL_HCCT(threshold=math.inf, warmup=1, local=LOCAL), BY_EXAMPLES, TWO, 1e-9),
    (us.MAXFL_HCCT(threshold=-math.inf, warmup=0, local=LOCAL), ALONE, {}, 0.0),
]


@pytest.mark.parametrize(("method", "other", "options", "atol"), LIMITS)
def test_it_is_the_other_method(
    method: Any, other: Any, options: dict[str, Any], atol: float, classes: Any, equal: Any
) -> None:
    world = classes(n=[4, 7, 9, 3], norm=True)
    ours, theirs = (world.play(m, **options) for m in (method, other))
    for client in range(4):
        equal(ours.own(client), theirs.own(client), atol)


def test_gossip_on_a_complete_graph_is_uniform_fedavg(classes: Any, equal: Any) -> None:
    """Metropolis weights are then 1 / n everywhere; in its last mixing every client gets FedAvg's model."""
    world = classes(n=[4, 7, 9, 3])
    plain = world.play(UNIFORM)
    for t in range(1, 4):
        equal(world.play(us.Gossip(Complete(), local=LOCAL), t).own(2), plain.params[t])
