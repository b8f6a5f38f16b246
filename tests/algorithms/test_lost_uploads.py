"""What an upload leaves out comes with a later one, whichever replies are lost (top_k.py, eq. 1)."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import unskew as us
from unskew import wire
from unskew.algorithms.fedavg import FedAvg, ModelMessage
from unskew.protocol import Federation, Me, Plan, SgdConfig, Update, ask, step
from unskew.tree import Params, map_params, zeros_like

SMALL = SgdConfig(lr=0.1, local_steps=1, batch_size=None)
METHODS = {
    "fedavg": FedAvg(local=SMALL),
    "scaffold": us.SCAFFOLD(local=SMALL),
    "feddyn": us.FedDyn(alpha=0.5, local=SMALL),
    "feddc": us.FedDC(alpha=0.5, local=SMALL),
}
STACKS = {
    "alone": (us.TopK(0.3),),
    "clipped before, quantised after": (us.ClipNorm(0.05), us.TopK(0.3), us.Quantise(4)),
}
CASES = list(zip(METHODS, [*STACKS] * 2, strict=True))
ROUNDS, CLIENTS = 4, 3
Losses = st.sets(st.tuples(st.integers(1, ROUNDS), st.integers(1, CLIENTS - 1)))
"""Rounds and clients whose replies are lost; client 0 keeps a round from being abandoned."""


# ---------------------------------------------------------------- (1) under any losses
@dataclass(frozen=True)
class Drawn:
    """A client's vector, and the same once more where no wrapper touches it."""

    vector: Update
    whole: Params


@dataclass(frozen=True)
class Sums:
    """What has been received, by step and client: as it arrived, and as it was."""

    zero: Params
    arrived: dict[str, dict[int, Params]]
    whole: dict[str, dict[int, Params]]


@dataclass(frozen=True)
class Adding:
    """Adds up vectors of whole numbers; one step is asked twice in a round."""

    def init(self, params: Params, fed: Federation) -> Sums:
        return Sums(zeros_like(params), {"once": {}, "twice": {}}, {"once": {}, "twice": {}})

    def round(self, state: Sums, fed: Federation) -> Plan[Sums]:
        arrived, whole = ({name: dict(of) for name, of in sums.items()} for sums in (state.arrived, state.whole))
        for name, begin in (("twice", self.twice), ("once", self.once), ("twice", self.twice)):
            replies = yield from ask(begin, dict.fromkeys(fed.sample(), ModelMessage(state.zero)), at_least=0)
            for c, r in replies.items():
                for sums, vector in ((arrived, r.vector), (whole, r.whole)):
                    sums[name][c] = map_params(torch.add, sums[name].get(c, state.zero), vector)
        return Sums(state.zero, arrived, whole)

    def serve(self, state: Sums, client: int | None) -> Params:
        return state.zero

    @step
    def once(self, me: Me, msg: ModelMessage, memory: None) -> tuple[Drawn, None]:
        return drawn(me, msg.params), None

    @step
    def twice(self, me: Me, msg: ModelMessage, memory: None) -> tuple[Drawn, None]:
        return drawn(me, msg.params), None


def drawn(me: Me, like: Params) -> Drawn:
    g = me.key.generator()
    vector = {n: torch.randint(-9, 10, t.shape, generator=g).to(t) for n, t in like.items()}
    return Drawn(vector, vector)


Asks = st.sets(st.tuples(st.integers(1, 4), st.sampled_from(["once", "twice"]), st.integers(0, 1), st.integers(0, 2)))


@given(lost=Asks, how=st.sampled_from(["unreachable", "late"]), cohort=st.integers(1, 3))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_has_arrived_and_what_is_left_add_up(lost: set[Any], how: str, cohort: int, bowls: Any, cut: Any) -> None:
    """Exactly, as all are whole numbers: by client and step, in cohorts of some or all, whatever is lost."""
    world = bowls(m=[[0.0] * 5] * 3, a=[[1.0] * 5] * 3)
    sim = world.simulator(us.wrap(Adding(), us.TopK(0.3)), clients_per_round=cohort, outage=cut(*lost, how=how))
    state = sim.start()
    for t in range(1, 5):
        state, _ = sim.round(state, t)
        for name, whole in state.of.whole.items():
            for c in whole:
                left = sim.memory.get(c).as_of(state.heard[c])[name]["0/head.weight"]
                assert torch.equal(state.of.arrived[name][c]["head.weight"] + left, whole[c]["head.weight"])


@pytest.mark.seconds
@pytest.mark.parametrize(("name", "by"), CASES)
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lost=Losses)
def test_a_lost_reply_is_one_that_was_never_made(name: str, by: str, lost: set[Any], bowls: Any, cut: Any) -> None:
    """To the bit, in all that the server knows, around methods that take back their own memory and around each other.

    The method sees a reply as lost where the wrapper does, or one of them would go back alone.
    """
    world = bowls(m=[[4.0, 1.0, -2.0, 3.0], [-1.0, 3.0, 1.0, 2.0], [2.0, 1.0, 5.0, -3.0]], a=[[1.0] * 4] * 3)
    asks = [(t, "train", 0, c) for t, c in lost]
    late, unasked = (
        world.play(us.wrap(METHODS[name], *STACKS[by]), ROUNDS, outage=cut(*asks, how=how))
        for how in ("late", "unreachable")
    )
    assert wire.encode(late.states[-1]) == wire.encode(unasked.states[-1])
