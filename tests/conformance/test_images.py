"""What the conformance suite asks of every method, asked of those whose clients need images, on a toy prior."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from recipe import bits
from toy_prior import clients, played, same_deployed, simulator, toy

from unskew import wire
from unskew.algorithms.feddistr import FedDistr
from unskew.algorithms.fedpft import FedPFT
from unskew.errors import QuorumError
from unskew.local.stacked.executor import Stacked
from unskew.local.workers.executor import Workers
from unskew.local.workers.pool import Pool
from unskew.local.workers.worker import WorkerSetup
from unskew.protocol import SgdConfig
from unskew.runtime.in_process import Simulator
from unskew.runtime.memory import Memory
from unskew.tree import leaves
from unskew.world.pace import Outage

QUICK = SgdConfig(0.02, local_steps=3, batch_size=16, optimizer="adam")
METHODS: list[Any] = [FedDistr(steps=4, images=4, classifier=QUICK), FedPFT(images=6, classifier=QUICK)]

each_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)


@pytest.fixture(autouse=True)
def _toy() -> Iterator[None]:
    with toy():
        yield


@each_method
def test_a_run_through_bytes_and_a_resumed_one_are_the_same_run_and_another_seed_another(method: Any) -> None:
    sim, states, traces = played(method, rounds=2)
    coded, again, there = played(method, rounds=2, codec=True)
    _, other, _ = played(method, rounds=2, seed=1)
    saved = bits(sim, states[1])
    assert saved == bits(coded, again[1])
    assert [t.transfers for t in traces] == [t.transfers for t in there]
    assert wire.encode(states[1]) != wire.encode(other[1])
    of = wire.memory_type(method)
    resumed: Simulator[Any] = simulator(method)
    resumed.memory = Memory(1, {c: wire.decode(saved[f"client {c}"], of) for c in sim.population.clients})
    state, _ = resumed.round(wire.decode(saved["state"], wire.state_type(method)), 2)
    assert bits(resumed, state) == bits(sim, states[2])


@each_method
def test_workers_end_with_its_bits_and_stacked_clients_up_to_rounding(method: Any) -> None:
    alone, states, traces = played(method)
    population, trainer = clients()
    stacked: Simulator[Any] = Simulator(method, population, Stacked(trainer))
    state, _ = stacked.round(stacked.start(), 1)
    for one, two in ((states[-1], state), *((alone.memory.get(c), stacked.memory.get(c)) for c in range(4))):
        for (_, a), (_, b) in zip(leaves(one), leaves(two), strict=True):
            assert torch.allclose(a, b, 1e-3, 1e-4) if isinstance(a, torch.Tensor) else b == pytest.approx(a, rel=1e-3)
    pool = Pool(lambda _: WorkerSetup(method, trainer, population.me), workers=2, model_bytes=1 << 12)
    try:
        many: Simulator[Any] = simulator(method)
        many.clients.executor = Workers(pool, 0, method)
        state, trace = many.round(many.start(), 1)
    finally:
        pool.close()
    assert bits(many, state) == bits(alone, states[-1])
    assert trace == traces[0]


@each_method
def test_a_deployed_run_is_the_simulated_one(method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same_deployed(type(method).__name__, method, tmp_path, monkeypatch)


@each_method
def test_lost_clients_are_survived_or_refused(method: Any) -> None:
    failures = 0
    for seed in range(3):
        sim: Simulator[Any] = simulator(dataclasses.replace(method), seed=seed, outage=Outage(0.3, 0.3))
        try:
            state, trace = sim.round(sim.start(), 1)
        except QuorumError:
            failures += 1
            continue
        failures += len(trace.failures)
        assert len(sim.own_models(state, sim.population.clients, 1)) == 4
    assert failures
