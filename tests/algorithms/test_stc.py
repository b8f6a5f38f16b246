"""STC: what is left out is not lost, replicas are the server's model to the bit, and absentees catch up."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from unskew.algorithms.stc import STC, STCMessage, STCState, kept, payload
from unskew.errors import ProtocolError
from unskew.local.sequential import Sequential
from unskew.local.trainer import LocalTrainer
from unskew.protocol import Me, Sgd, SgdConfig
from unskew.runtime.in_process import Simulator
from unskew.server.ternary import Sparse, compress
from unskew.tree import Params, map_params, zeros_like
from unskew.world.pace import Outage

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3)
COARSE = STC(0.1, 0.2, local=SMALL)


class Watching(LocalTrainer):
    """Writes down where each client's training began and how far it went."""

    seen: dict[int, tuple[Params, Params]]

    def answer(self, me: Me, index: int, request: object) -> Any:
        got = super().answer(me, index, request)
        if isinstance(request, Sgd):
            self.seen[me.id] = request.start, map_params(torch.sub, got.params, request.start)
        return got


Watch = Callable[..., tuple[Simulator[Any], Watching]]


@pytest.fixture
def watched() -> Watch:
    def make(world: Any, method: STC, **settings: Any) -> tuple[Simulator[Any], Watching]:
        trainer = Watching(world.task, world.device_data, dtype=torch.float64)
        trainer.seen = {}
        sim = world.simulator(method, **settings)
        sim.clients.executor = Sequential(trainer)
        return sim, trainer

    return make


# ---------------------------------------------------------------- replicas
@pytest.mark.parametrize("ternary", [True, False])
@pytest.mark.seconds
def test_every_client_trains_from_the_servers_model(ternary: bool, classes: Any, watched: Watch, spy: Any) -> None:
    """I-35, bit for bit, also after absences and lost replies, by updates as well as by whole models.

    Two updates of values, at p = .4, are smaller than the model; of ternary ones so many that nobody needs it whole.
    """
    world, method = classes(n=[4, 7, 9, 3, 5, 6], norm=True), STC(0.1, 0.4, ternary, local=SMALL)
    sim, trainer = watched(world, method, clients_per_round=3, outage=Outage(0.2, 0.2), codec=True, seed=8)
    state = sim.start()
    ways = {"up to date": 0, "updates": 0, "whole": 0}
    for t in range(1, 11):
        trainer.seen.clear()
        before = state
        with spy() as messages:
            state, _ = sim.round(state, t)
        assert trainer.seen
        for start, _ in trainer.seen.values():
            assert list(start) == list(before.params)
            assert all(torch.equal(start[n], before.params[n]) for n in start)
        for m in messages:
            if isinstance(m, STCMessage):
                ways["whole" if "fc.weight" in m.whole else "updates" if m.updates else "up to date"] += 1
                assert payload(m.whole) + sum(map(payload, m.updates)) <= payload(before.params)
    assert min(ways["up to date"], ways["updates"]) > 0
    assert (ways["whole"] > 0) == (not ternary)


def test_the_server_keeps_as_many_updates_as_are_smaller_than_the_model() -> None:
    """Updates of 3 bytes, a model of 10: three fit, four do not; a model of 9 is no larger than three."""
    updates = tuple(Sparse({"code": torch.full((3,), i, dtype=torch.uint8)}, ()) for i in range(5))
    assert payload(updates[0]) == 3
    assert kept(updates, 10) == updates[2:]
    assert kept(updates, 9) == updates[3:]
    assert kept(updates, 3) == ()
    assert kept(updates, 100) == updates


def test_a_client_that_missed_rounds_gets_what_it_missed(classes: Any) -> None:
    """Of five updates: the last two to one heard at version 3, all five to one never heard; one too many: whole."""
    world = classes()
    method, params, layout = STC(local=SMALL), world.population.initial, world.task.layout
    five = tuple(compress(map_params(lambda t, i=i: t + i, params), method.down) for i in range(5))
    state = STCState(params, zeros_like(params), five, 5, {})
    assert method.news(state, 3, layout) == STCMessage(5, 3, five[3:], {})
    assert method.news(state, 5, layout).updates == ()
    assert method.news(state, -1, layout).updates == five
    assert method.news(dataclasses.replace(state, version=6), -1, layout) == STCMessage(6, -1, (), params)


def test_a_client_whose_memory_was_lost_says_so(classes: Any) -> None:
    sim = classes().simulator(COARSE)
    state, _ = sim.round(sim.start(), 1)
    state, _ = sim.round(state, 2)
    sim.memory.stage(1, None)
    with pytest.raises(
        ProtocolError, match="client 1 has the model of version 0 and was sent 1 updates up to version 2"
    ):
        sim.round(state, 3)
