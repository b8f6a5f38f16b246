"""Methods that are another method at some settings: every client's model, round after round, of unequal clients.

What TABLE declares to be FedAvg is in tests/conformance/test_limits.py.
"""

import math
from dataclasses import replace
from typing import Any

import pytest

from unskew.algorithms.cfl import CFL
from unskew.algorithms.ditto import Ditto
from unskew.algorithms.fedala import FedALA
from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.fedbabu import FedBABU
from unskew.algorithms.fedbn import FedBN
from unskew.algorithms.feddc import FedDC
from unskew.algorithms.feddistill import FedDistill, FedDistillPlus
from unskew.algorithms.feddyn import FedDyn
from unskew.algorithms.fednova import FedNova
from unskew.algorithms.fedper import FedPer
from unskew.algorithms.fedproto import FedProto
from unskew.algorithms.fedprox import FedProx
from unskew.algorithms.fedrep import FedRep
from unskew.algorithms.fedswap import FedSwap
from unskew.algorithms.flsc import FLSC
from unskew.algorithms.gossip import Gossip
from unskew.algorithms.grouped import Grouped
from unskew.algorithms.hcct import HCCT, HCCT_P
from unskew.algorithms.ifca import IFCA
from unskew.algorithms.independent import Independent
from unskew.algorithms.maxfl import MAXFL_HCCT
from unskew.algorithms.perfedavg import PerFedAvg
from unskew.algorithms.qfedavg import QFedAvg
from unskew.algorithms.scaffold import SCAFFOLD
from unskew.algorithms.stc import STC
from unskew.algorithms.tthf import TTHF
from unskew.protocol import Exponential, SgdConfig
from unskew.server.graphs import Complete

LOCAL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.5)
FULL = replace(LOCAL, batch_size=None)
STEPS = SgdConfig(lr=0.1, local_steps=4, batch_size=3, momentum=0.9, weight_decay=0.01)
PLAIN = SgdConfig(0.2, local_epochs=3, batch_size=None, weight_decay=0.1, lr_schedule=Exponential(0.5))
ONCE = SgdConfig(lr=0.3, local_steps=1, batch_size=3)
BY_EXAMPLES, UNIFORM, ALONE = FedAvg(LOCAL), FedAvg(LOCAL, "uniform"), Independent(LOCAL)
TWO: dict[str, Any] = {"clients_per_round": 2}

# A method, the other one, how they are played, and by how much rounding may part them.
LIMITS: list[tuple[Any, Any, dict[str, Any], float]] = [
    (FedALA(eta=0.0, local=LOCAL), BY_EXAMPLES, {}, 0.0),
    (FedBABU(local=LOCAL, weighting="samples", fixed=(), finetune="none"), BY_EXAMPLES, {}, 0.0),
    (FedRep(head_epochs=0, local=LOCAL, personal=(), weighting="samples"), BY_EXAMPLES, {}, 0.0),
    (FedRep(head_epochs=0, local=LOCAL), FedBABU(local=LOCAL, finetune="none"), {}, 0.0),
    (FedPer(LOCAL, personal=("all",)), ALONE, {}, 0.0),
    (FedBN(LOCAL, personal=("all",)), ALONE, {}, 0.0),
    (FedDC(0.3, variates=False, local=LOCAL), FedDyn(0.3, local=LOCAL), TWO, 1e-9),
    (FedDC(0.3, variates=False, scaled=True, local=LOCAL), FedDyn(0.3, scaled=True, local=LOCAL), TWO, 1e-9),
    (FedDC(0.0, drift=False, local=LOCAL), SCAFFOLD(local=LOCAL), TWO, 1e-9),
    (SCAFFOLD(local=ONCE), FedAvg(ONCE, "uniform"), {}, 1e-9),
    (FedNova(local=STEPS), FedAvg(STEPS), TWO, 1e-9),
    (FedNova(mu=0.7, local=STEPS), FedProx(mu=0.7, local=STEPS), {}, 1e-9),
    (PerFedAvg(0.0, "exact", local=PLAIN), FedAvg(PLAIN, "uniform"), TWO, 1e-12),
    (QFedAvg(q=0.0, local=LOCAL), BY_EXAMPLES, {}, 1e-9),
    (STC(1.0, 1.0, False, True, LOCAL), UNIFORM, TWO, 1e-9),
    (FedSwap(1, weighting="samples", route="d2d", local=LOCAL), BY_EXAMPLES, TWO, 1e-9),
    (TTHF(1, gamma=0, local=LOCAL), UNIFORM, TWO, 1e-9),
    (Ditto(0.0, local=FULL), Independent(FULL), {}, 1e-12),
    (FedDistill(lam=0.0, local=LOCAL), ALONE, {}, 0.0),
    (FedDistillPlus(lam=0.0, local=LOCAL), BY_EXAMPLES, {}, 0.0),
    (FedProto(lam=0.0, local=LOCAL), ALONE, {}, 0.0),
    (CFL(eps1=0.0, local=LOCAL), UNIFORM, TWO, 1e-9),
    (IFCA(clusters=1, averaging="gradient", local=LOCAL), UNIFORM, TWO, 1e-9),
    (FLSC(clusters=1, memberships=1, local=LOCAL), UNIFORM, TWO, 1e-9),
    (FLSC(clusters=3, memberships=1, local=LOCAL), IFCA(clusters=3, local=LOCAL), {}, 1e-9),
    (Grouped(((3, 1, 0, 2),), LOCAL), BY_EXAMPLES, TWO, 0.0),
    (Grouped(((0,), (1,), (2,), (3,)), LOCAL), ALONE, {}, 1e-12),
    (HCCT(LOCAL, groups=1, warmup="global"), BY_EXAMPLES, TWO, 0.0),
    (HCCT(LOCAL, alpha=0.0), ALONE, {}, 0.0),
    (HCCT_P(local=LOCAL, groups=1, warmup="global"), FedPer(LOCAL), {}, 0.0),
    (MAXFL_HCCT(threshold=math.inf, warmup=1, local=LOCAL), BY_EXAMPLES, TWO, 1e-9),
    (MAXFL_HCCT(threshold=-math.inf, warmup=0, local=LOCAL), ALONE, {}, 0.0),
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
        equal(world.play(Gossip(Complete(), local=LOCAL), t).own(2), plain.params[t])
