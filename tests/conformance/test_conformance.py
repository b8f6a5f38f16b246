"""Every method of the table, and a few variants of it, against what must be true of any of them."""

import dataclasses

import pytest
from grid import one_network_each
from recipe import CASES, SEED, bits, finite, make, recorded, rounds, simulator

from unskew import wire
from unskew.errors import QuorumError
from unskew.ledger import totals
from unskew.protocol import personalise_of
from unskew.runtime.memory import Memory
from unskew.world.pace import Outage


@one_network_each(CASES, variants=True)
def test_a_round_leaves_the_state_it_was_given_and_the_global_generator_alone(case: str, network: str) -> None:
    run = recorded(case, network)
    assert run.draws_alone
    assert wire.encode(run.simulator.population.initial) == run.initial
    for moment in run.moments:
        assert moment.state_later == moment.bits["state"]


@one_network_each(CASES, turn=(1, 3))
def test_the_same_seed_gives_the_same_bits(case: str, network: str) -> None:
    """Whether anybody asks for models between the rounds or nobody, and whether messages are encoded or counted."""
    one, two = recorded(case, network), recorded(case, network, models=False)
    assert [m.bits for m in one.moments] == [m.bits for m in two.moments]
    assert all(finite(m.state) for m in one.moments)


@one_network_each(CASES, turn=(0, 2))
def test_a_run_resumed_from_bytes_whose_messages_are_bytes_is_the_straight_run(case: str, network: str) -> None:
    *_, (before, _), (after, end) = recorded(case, network).rounds
    method = make(case)
    of = wire.memory_type(method)
    resumed = simulator(case, network, seed=SEED, method=method, codec=True)
    saved = {c: wire.decode(before.bits[f"client {c}"], of) for c in resumed.population.clients}
    resumed.memory = Memory(2, {c: v for c, v in saved.items() if v is not None})
    state, trace = resumed.round(wire.decode(before.bits["state"], wire.state_type(method)), 3)
    assert bits(resumed, state) == after.bits
    assert trace.transfers == end.transfers
    assert trace.losses == end.losses


@one_network_each(CASES, turn=(1, 3))
def test_lost_clients_are_survived_or_refused(case: str, network: str) -> None:
    sim, failures = simulator(case, network, seed=1, outage=Outage(0.3, 0.3), codec=True), 0
    state = sim.start()
    for t in range(1, 4):
        before = bits(sim, state)
        try:
            state, trace = sim.round(state, t)
        except QuorumError:
            assert bits(sim, state) == before
            return
        failures += len(trace.failures)
        assert finite(state)
    assert failures


@one_network_each(CASES, turn=(1, 3))
def test_the_ledger_holds_the_length_of_every_message(case: str, network: str) -> None:
    """Weighed without encoding, row for row the same as the length of the encoded bytes; and nothing is left out."""
    run, encoded = recorded(case, network), recorded(case, network, models=False)
    for (_, expected), (_, trace), lengths in zip(run.rounds, encoded.rounds, encoded.lengths, strict=True):
        assert trace.transfers == expected.transfers
        assert {t.bytes for t in trace.transfers} == lengths - {0}
        assert sum(totals(trace.transfers).values()) == sum(t.bytes for t in trace.transfers)
        assert all(t.src != t.dst for t in trace.transfers)


@one_network_each(CASES, variants=True)
def test_state_and_memory_are_of_the_types_that_are_declared(case: str, network: str) -> None:
    run = recorded(case, network)
    state_type, memory_type = wire.state_type(run.simulator.method), wire.memory_type(run.simulator.method)
    for moment in run.moments:
        for name, saved in moment.bits.items():
            assert wire.encode(wire.decode(saved, state_type if name == "state" else memory_type)) == saved


@one_network_each(CASES, variants=True)
def test_every_client_has_a_model_to_use(case: str, network: str) -> None:
    """Before the first round too; a global model, if there is one, is whole."""
    run = recorded(case, network)
    everything = list(run.simulator.population.initial)
    for moment in run.moments:
        assert moment.models == dict.fromkeys(run.simulator.population.clients, everything)
        assert moment.served is None or moment.served == everything


@one_network_each(CASES, turn=(1, 3))
def test_terms_and_configurations_are_values(case: str, network: str) -> None:
    """Equal by value and hashable: clients whose requests are equal can be trained in one call."""
    one, two = recorded(case, network).requests, recorded(case, network, models=False).requests
    assert one
    assert one == two
    assert len(two) <= 3, "requests of different clients should be equal but for start and aux"


@pytest.mark.parametrize("case", CASES)
def test_a_method_is_a_frozen_value(case: str) -> None:
    one, two = make(case), make(case)
    assert one == two
    assert hash(one) == hash(two)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(one, dataclasses.fields(one)[0].name, None)


@pytest.mark.parametrize(
    "case", [c for c in CASES if hasattr(make(c), "personalise") and personalise_of(make(c)) is None][::3]
)
def test_a_method_that_leaves_served_models_as_they_are_says_so_truly(case: str) -> None:
    sim = simulator(case, "normalised")
    for t, state, _ in rounds(sim, until=2):
        served = {c: sim.method.serve(state, c) for c in sim.population.clients}
        adapted = sim.clients.own_models(served, sim.method.personalise, t)
        assert {c: model is adapted[c] for c, model in served.items()} == dict.fromkeys(served, True)
        assert sim.own_models(state, sim.population.clients, t) == served
