"""Every algorithm of the table, and a few variants of it, against what must be true of any of them."""

import dataclasses
from typing import Any

import pytest
import torch
from recipe import CASES, NETWORKS, bits, finite, make, rounds, simulator, world

from unskew import wire
from unskew.errors import QuorumError
from unskew.ledger import totals
from unskew.local.sequential import Sequential
from unskew.local.trainer import LocalTrainer
from unskew.protocol import Me, Sgd
from unskew.runtime.in_process import Simulator
from unskew.runtime.memory import Memory
from unskew.world.outage import Outage

pytestmark = [pytest.mark.parametrize("network", NETWORKS), pytest.mark.parametrize("case", CASES)]


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(case: str, network: str) -> None:
    ends = []
    for seed in (5, 5, 6):
        sim = simulator(case, network, seed=seed)
        *_, (_, state, _) = rounds(sim)
        ends.append(bits(sim, state))
        assert finite(state)
    assert ends[0] == ends[1]
    assert ends[0] != ends[2]


def test_a_run_through_the_codec_is_the_same_run(case: str, network: str) -> None:
    plain, coded = (simulator(case, network, codec=codec) for codec in (False, True))
    for (_, one, here), (_, two, there) in zip(rounds(plain), rounds(coded), strict=True):
        assert bits(plain, one) == bits(coded, two)
        assert here.transfers == there.transfers
        assert here.losses == there.losses


def test_a_resumed_run_is_the_straight_run(case: str, network: str) -> None:
    straight = simulator(case, network)
    kept: dict[int, dict[str, bytes]] = {}
    for t, state, trace in rounds(straight):
        kept[t] = bits(straight, state)
        end = trace
    algorithm = make(case)
    of = wire.memory_type(algorithm)
    saved = {c: wire.decode(kept[2][f"client {c}"], of) for c in straight.population.clients}
    resumed = simulator(case, network, algorithm=algorithm)
    resumed.memory = Memory(2, {c: v for c, v in saved.items() if v is not None})
    state, trace = resumed.round(wire.decode(kept[2]["state"], wire.state_type(algorithm)), 3)
    assert bits(resumed, state) == kept[3]
    assert trace.transfers == end.transfers
    assert trace.losses == end.losses


@pytest.mark.parametrize("outage", [Outage(unreachable=0.3), Outage(late=0.3), Outage(0.3, 0.3)], ids=str)
def test_lost_clients_are_survived_or_refused(case: str, network: str, outage: Outage) -> None:
    failures = 0
    for seed in range(4):
        sim = simulator(case, network, seed=seed, outage=outage, codec=True)
        state = sim.start()
        for t in range(1, 4):
            before = bits(sim, state)
            try:
                state, trace = sim.round(state, t)
            except QuorumError:
                assert bits(sim, state) == before
                failures += 1
                break
            failures += len(trace.failures)
            assert finite(state)
    assert failures


def test_the_ledger_holds_the_length_of_every_message(case: str, network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weighed without encoding, row for row the same as the length of the encoded bytes; and nothing is left out."""
    plain = [trace.transfers for _, _, trace in rounds(simulator(case, network))]
    lengths: list[int] = []

    def encoded(value: Any) -> int:
        lengths.append(len(wire.encode(value)))
        return lengths[-1]

    monkeypatch.setattr(wire, "nbytes", encoded)
    for (_, _, trace), expected in zip(rounds(simulator(case, network)), plain, strict=True):
        assert trace.transfers == expected
        assert {t.bytes for t in trace.transfers} == {n for n in lengths if n}
        assert sum(totals(trace.transfers).values()) == sum(t.bytes for t in trace.transfers)
        assert all(t.src != t.dst for t in trace.transfers)
        lengths.clear()


def test_a_round_leaves_the_state_it_was_given_and_the_global_generator_alone(case: str, network: str) -> None:
    sim = simulator(case, network)
    state, rng = sim.start(), torch.get_rng_state()
    initial = wire.encode(sim.population.initial)
    for t in range(1, 4):
        before = wire.encode(state)
        new, _ = sim.round(state, t)
        assert wire.encode(state) == before
        for c in sim.population.clients:
            sim.own_models(new, [c], t)
        state = new
    assert torch.equal(torch.get_rng_state(), rng)
    assert wire.encode(sim.population.initial) == initial


def test_state_and_memory_are_of_the_types_that_are_declared(case: str, network: str) -> None:
    sim = simulator(case, network)
    state_type, memory_type = wire.state_type(sim.algorithm), wire.memory_type(sim.algorithm)
    assert bits(sim, wire.decode(wire.encode(sim.start()), state_type)) == bits(sim, sim.start())
    for _, state, _ in rounds(sim):
        assert wire.encode(wire.decode(wire.encode(state), state_type)) == wire.encode(state)
        for c in sim.population.clients:
            saved = wire.encode(sim.memory.get(c))
            assert wire.encode(wire.decode(saved, memory_type)) == saved


def test_every_client_has_a_model_to_use(case: str, network: str) -> None:
    """Before the first round too; a global model, if there is one, is whole."""
    sim = simulator(case, network)
    everything = list(sim.population.initial)
    state = sim.start()
    for t in range(3):
        for c in sim.population.clients:
            own = sim.own_models(state, [c], t).get(c)
            assert own is not None
            assert list(own) == everything
        served = sim.algorithm.serve(state, None)
        assert served is None or list(served) == everything
        state, _ = sim.round(state, t + 1)


class Watching(LocalTrainer):
    """Writes down the optimisations that were asked for."""

    asked: list[Sgd]

    def answer(self, me: Me, index: int, request: object) -> Any:
        if isinstance(request, Sgd):
            self.asked.append(request)
        return super().answer(me, index, request)


def test_terms_and_configurations_are_values(case: str, network: str) -> None:
    """Equal by value and hashable: clients whose requests are equal can be trained in one call."""
    found = []
    for _ in range(2):
        algorithm = make(case)
        population, plain = world(network, bool(getattr(algorithm, "pooled", False)))
        trainer = Watching(plain.task, plain.device_data)
        trainer.asked = []
        sim = Simulator(algorithm, population, Sequential(trainer))
        list(rounds(sim, 2))
        assert trainer.asked
        found.append({(request.config, request.terms) for request in trainer.asked})
    assert found[0] == found[1]
    assert len(found[0]) <= 3, "requests of different clients should be equal but for start and aux"


def test_an_algorithm_is_a_frozen_value(case: str, network: str) -> None:
    one, two = make(case), make(case)
    assert one == two
    assert hash(one) == hash(two)
    names = [f.name for f in dataclasses.fields(one)]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(one, names[0], None)
