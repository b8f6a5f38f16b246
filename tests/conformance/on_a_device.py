"""What every method does on a device, CUDA's or an emulated one, beside ending where it ends on a CPU."""

from pathlib import Path
from typing import Any

from grid import network_of
from recipe import CASES, rounds, simulator

from unskew import wire
from unskew.runtime.in_process import Memory
from unskew.tree import moved


def run_resumed(case: str, device: str) -> None:
    """Run two rounds; write state and memory down, and run a third from what was read, its messages as bytes."""
    network, options = _network(case), _options(case)
    sim = simulator(case, network, device=device, **options)
    assert all(t.device.type == device for t in sim.population.initial.values())
    state, _ = sim.round(sim.start(), 1)
    state, _ = sim.round(state, 2)
    again = simulator(case, network, device=device, codec=True, **options)
    state = moved(wire.decode(wire.encode(state), wire.state_type(sim.method)), device)
    kept = {c: wire.decode(wire.encode(sim.memory.get(c)), sim.clients.memory_type) for c in sim.population.clients}
    held = {c: moved(m, device) for c, m in kept.items() if m is not None}
    again.memory = Memory(2, held)
    state, _ = again.round(state, 3)
    again.own_models(state, again.population.clients, 3)


def serve_from(case: str, device: str, folder: Path) -> None:
    """Run three rounds of clients with the device behind Flower and a server without one; nothing fails."""
    import loopback  # needs Flower

    loopback.built.cache_clear()
    there = loopback.Deployed(case, _network(case), folder, client_device=device, **_options(case))
    served = list(rounds(there.runtime, 3))
    for _, _, trace in served:
        assert trace.failures == []
        assert trace.abandoned == ""
    assert loopback.built(case, _network(case), device)[2].device.type == device
    t, state, _ = served[-1]
    there.runtime.own_models(state, there.population.clients, t)
    loopback.built.cache_clear()


def _network(case: str) -> str:
    return network_of(case) if case in CASES else "perceptron"


def _options(case: str) -> dict[str, Any]:
    return {"clients_per_round": 6} if "krum" in case or "trimmed" in case else {}
