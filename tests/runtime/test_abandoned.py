"""Rounds with too few replies: what stays of them, what is forgotten, and when a run ends for them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from grid import one_of_a_kind
from recipe import CASES, LOCAL, bits, simulator

import unskew as us
from unskew import wire
from unskew.algorithms.fedavg import FedAvg, FedAvgState, ModelMessage
from unskew.algorithms.feddw import DW, LabelNoise
from unskew.errors import QuorumError
from unskew.protocol import Federation, Plan, ask
from unskew.runtime.round import IN_A_ROW

NETWORK = "perceptron"
ALL = {"clients_per_round": 6}


@dataclass(frozen=True)
class Late(us.Outage):
    """In these rounds, replies to these exchanges of the round are late."""

    in_rounds: tuple[int, ...] = (2,)
    hops: tuple[int, ...] = tuple(range(100))

    def fate(self, key: Any, step: str = "", asked: int = 0) -> Any:
        (_, t, _, hop, _) = key.path
        return "late" if t in self.in_rounds and hop in self.hops else None


CONTENT_WITHOUT = {"cfa", "cfl", "flsc", "gossip", "ifca", "independent", "maxfl_hcct", "oneshot"}
"""Methods whose rounds have a result without any reply, or ask nobody in round 2."""


@pytest.mark.parametrize("case", one_of_a_kind(CASES))
def test_a_run_goes_on_as_if_a_round_without_replies_had_not_been(case: str) -> None:
    """The clients have trained in round 2, and forget it."""
    lossy, plain = (simulator(case, NETWORK, seed=4, outage=outage) for outage in (Late(), None))
    state, expected = lossy.start(), plain.start()
    for t in (1, 2, 3):
        after, trace = lossy.attempt(state, t)
        if t != 2:
            assert not trace.abandoned
            expected, _ = plain.round(expected, t)
        elif case.partition(",")[0] in CONTENT_WITHOUT:
            assert not trace.abandoned
            return
        else:
            assert trace.abandoned.startswith("round 2")
            assert after is state
            assert trace.failures
        state = after
        assert bits(lossy, state) == bits(plain, expected)


@pytest.mark.parametrize("case", ["fedavg", "scaffold", "relay", "fedper", "stc"])
def test_clients_over_a_network_forget_an_abandoned_round_too(case: str, tmp_path: Path) -> None:
    """Their answers to it are on their disks: to them it is as if another server went on from round 1."""
    pytest.importorskip("grpc")
    from loopback import Deployed

    options: Any = {"outage": Late(), **ALL}  # all are asked in round 3, so that none has its answer to round 2 last
    sim, there = simulator(case, NETWORK, seed=4, **options), Deployed(case, NETWORK, tmp_path, 4, **options)
    state, expected = there.runtime.start(), sim.start()
    for t in (1, 2, 3):
        state, found = there.runtime.attempt(state, t)
        expected, trace = sim.attempt(expected, t)
        assert bool(found.abandoned) == (t == 2)
        assert wire.encode(state) == wire.encode(expected)
        assert (found.transfers, found.failures, found.work) == (trace.transfers, trace.failures, trace.work)
    for c in sim.population.clients:
        assert there.remembered(c) == wire.encode(sim.memory.get(c))


@pytest.mark.parametrize(
    ("wrapper", "spent"),
    [
        (us.LocalDP(), lambda state: state.asked),
        (us.DPSGD(), lambda state: state.asked),
        (DW(mu=0.1, dp=LabelNoise(noise_multiplier=1.0)), lambda state: state.asked),
        (us.CentralDP(), lambda state: dict.fromkeys(range(6), state.releases)),
    ],
    ids=["LocalDP", "DPSGD", "DW", "CentralDP"],
)
def test_the_privacy_that_an_abandoned_round_spent_stays_spent(wrapper: Any, spent: Any) -> None:
    """The uploads were on their way: rounds 1 and 2 are both counted, and the model is that of round 1."""
    sim = simulator("fedavg", NETWORK, method=us.wrap(FedAvg(local=LOCAL), wrapper), outage=Late(), **ALL)
    one, _ = sim.attempt(sim.start(), 1)
    two, trace = sim.attempt(one, 2)
    assert trace.abandoned
    assert two.of is one.of
    assert (spent(one), spent(two)) == (dict.fromkeys(range(6), 1), dict.fromkeys(range(6), 2))


def test_compression_around_noise_goes_on_after_an_abandoned_round() -> None:
    """The noise inside counts three uploads, the compression outside the two that came."""
    method = us.wrap(FedAvg(local=LOCAL), us.LocalDP(), us.TopK(0.5))
    sim = simulator("fedavg", NETWORK, method=method, outage=Late(), **ALL)
    state: Any = sim.start()
    for t in (1, 2, 3):
        state, _ = sim.attempt(state, t)
    assert state.heard == dict.fromkeys(range(6), 2)
    assert state.of.asked == dict.fromkeys(range(6), 3)


@dataclass(frozen=True)
class Greedy(FedAvg):
    """A method that needs more replies than it asks for."""

    def round(self, state: FedAvgState, fed: Federation) -> Plan[FedAvgState]:
        yield from ask(self.train, {c: ModelMessage(state.params) for c in fed.clients}, at_least=7)
        return state


def test_a_method_that_asks_for_more_than_it_can_get_is_no_bad_luck() -> None:
    sim = simulator("fedavg", NETWORK, method=Greedy(local=LOCAL), **ALL)
    with pytest.raises(QuorumError, match="6 of 6 clients replied, 7 needed; lost: none"):
        sim.attempt(sim.start(), 1)


def test_a_simulation_ends_if_none_of_its_first_rounds_has_a_result() -> None:
    sim = simulator("fedavg", NETWORK, outage=Late(in_rounds=tuple(range(1, 99))), **ALL)
    state = sim.start()
    for t in range(1, IN_A_ROW):
        state, _ = sim.attempt(state, t)
    with pytest.raises(QuorumError, match=f"{IN_A_ROW} rounds in a row have no result: round {IN_A_ROW}, step 'train'"):
        sim.attempt(state, IN_A_ROW)
    assert {f.round for f in sim.drain_records()[0]} == {IN_A_ROW}
    short = simulator("fedavg", NETWORK, outage=Late(in_rounds=(1,)), **ALL)
    with pytest.raises(QuorumError, match="the only round has no result: round 1, step 'train'"):
        short.attempt(short.start(), 1, last=True)


def test_remote_clients_may_leave_so_many_rounds_without_a_result_and_no_more(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    from loopback import Deployed

    waits: list[int] = []
    outage = Late(in_rounds=tuple(range(2, 99)))
    there = Deployed("fedavg", NETWORK, tmp_path, outage=outage)
    there.runtime.clients.gather = lambda: waits.append(1)  # type: ignore[method-assign]
    state = there.runtime.start()
    for t in range(1, IN_A_ROW + 1):
        state, _ = there.runtime.attempt(state, t)
    assert len(waits) == IN_A_ROW - 2  # before each round that follows one without a result
    with pytest.raises(QuorumError, match=f"{IN_A_ROW} rounds in a row have no result: round {IN_A_ROW + 1}"):
        there.runtime.attempt(state, IN_A_ROW + 1)
