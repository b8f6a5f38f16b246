"""Every algorithm keeps its tensors on the device that its clients train on, as CUDA demands; emulated on a CPU."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import emulated
import pytest
import torch
from emulated import DEVICE, Emulated
from grid import network_of
from recipe import CASES, PROTECTED, rounds, simulator
from torch import nn

from unskew import wire
from unskew.runtime.in_process import Memory
from unskew.tree import moved

# One of each kind of state and message; the others wait for `make test-slow`.
NOW = (
    "scaffold",
    "fedadam",
    "feddw",
    "fedproto",
    "feddistill_plus",
    "hcct",
    "feddif, pooled",
    "cfl",
    "fedala",
    "relay",
)
NOW += ("scaffold+quantise", "fedavg+krum", "fedavg+secure_sum")

every_case = pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in NOW else pytest.mark.slow) for c in (*CASES, *PROTECTED)]
)


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(nn.Parameter, "__new__", staticmethod(emulated.parameter))
    monkeypatch.setattr(wire, "decode", functools.partial(emulated.arrived, wire.decode))
    with Emulated():
        yield


def test_what_cuda_refuses_is_refused(two_devices: None) -> None:
    there, here = torch.zeros(3, device=DEVICE), torch.ones(3)
    assert [t.device.type for t in (there + 1, there.cpu(), here.to(there.device), there[here > 0])] == [
        *(DEVICE, "cpu", DEVICE, DEVICE)
    ]
    for mixed in (lambda: there + here, lambda: torch.where(here > 0, there, 0.0), lambda: here[there > 0]):
        with pytest.raises(RuntimeError, match="to be on the same device"):
            mixed()
    with pytest.raises(TypeError, match="to numpy"):
        there.numpy()


@every_case
def test_every_algorithm_runs_on_a_device_resumed_and_through_bytes(case: str, two_devices: None) -> None:
    network = network_of(case) if case in CASES else "perceptron"
    options: dict[str, Any] = {"clients_per_round": 6} if "krum" in case else {}
    sim = simulator(case, network, device=DEVICE, **options)
    assert all(t.device.type == DEVICE for t in sim.population.initial.values())
    state, _ = sim.round(sim.start(), 1)
    state, _ = sim.round(state, 2)
    again = simulator(case, network, device=DEVICE, codec=True, **options)
    state = moved(wire.decode(wire.encode(state), wire.state_type(sim.algorithm)), DEVICE)
    kept = {c: wire.decode(wire.encode(sim.memory.get(c)), sim.clients.memory_type) for c in sim.population.clients}
    again.memory = Memory(2, {c: moved(m, DEVICE) for c, m in kept.items() if m is not None})
    state, _ = again.round(state, 3)
    again.own_models(state, again.population.clients, 3)


@every_case
def test_a_client_with_a_device_serves_a_server_without_one(case: str, two_devices: None, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    import loopback

    loopback.built.cache_clear()
    network = network_of(case) if case in CASES else "perceptron"
    options: dict[str, Any] = {"clients_per_round": 6} if "krum" in case else {}
    there = loopback.Deployed(case, network, tmp_path, client_device=DEVICE, **options)
    found = list(rounds(there.runtime, 3))
    for _, _, trace in found:
        assert trace.failures == []
        assert trace.abandoned == ""
    assert loopback.built(case, network, DEVICE)[2].device.type == DEVICE
    t, state, _ = found[-1]
    there.runtime.own_models(state, there.population.clients, t)
    loopback.built.cache_clear()
