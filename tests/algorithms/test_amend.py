"""What clients remember is what the server received, where a wrapper changes their uploads on the way out."""

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import pytest
import torch
from torch import Tensor

import unskew as us
from unskew.protocol import Me, SgdConfig, Step
from unskew.tree import flat
from unskew.wrappers.base import Wrapper, running, wrap
from unskew.wrappers.malicious import IndependentAttack

M = TypeVar("M")
SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3)
METHODS = {
    "scaffold": us.SCAFFOLD(local=SMALL),
    "scaffold by gradients": us.SCAFFOLD("I", local=SMALL),
    "feddyn": us.FedDyn(alpha=0.5, local=SMALL),
    "feddc": us.FedDC(alpha=0.5, local=SMALL),
}


@dataclass(frozen=True)
class Counted(Generic[M]):
    """A memory with a number beside the method's."""

    of: M
    times: int


class Counts(Wrapper):
    """Remembers how often a client trained."""

    Memory: ClassVar[Any] = Counted

    def work(self, method: Any, name: str, begin: Any, me: Me, msg: Any, memory: Any) -> Step[tuple[Any, Any]]:
        reply, kept = yield from running(begin(me, msg, None if memory is None else memory.of))
        return reply, Counted(kept, 1 if memory is None else memory.times + 1)


WRAPPERS = {
    "nothing": (),
    "clipped": (us.ClipNorm(0.05),),
    "quantised": (us.Quantise(4),),
    "noised": (us.LocalDP(clip=0.5, noise_multiplier=0.1),),
    "clipped, quantised": (us.ClipNorm(0.05), us.Quantise(3)),
    "quantised, scales clipped": (us.Quantise(4), us.ClipNorm(0.05)),
    "counted, clipped": (Counts(), us.ClipNorm(0.05)),
}


def kept_by_clients(memory: Any, heard: int) -> Tensor:
    """What a client remembers of the server's means, as of the last reply that the server received."""
    latest = heard == memory.round
    if hasattr(memory, "now"):
        record = memory.now if latest else memory.before
        return torch.cat([flat(record.c), flat(record.h)])
    new = memory.g if hasattr(memory, "g") else memory.c
    return flat(new if latest else memory.before)


def kept_by_server(state: Any) -> Tensor:
    """The means of what clients remember."""
    if hasattr(state, "drift"):
        return torch.cat([flat(state.c), flat(state.drift)])
    return flat(state.h if hasattr(state, "h") else state.c)


def of(wrapped: Any) -> Any:
    """The method's own state or memory."""
    while hasattr(wrapped, "of"):
        wrapped = wrapped.of
    return wrapped


# Every method by itself, and every wrapper around one of them.
PAIRS = [*((name, "nothing") for name in METHODS), *zip([*METHODS] * 2, [*WRAPPERS][1:], strict=False)]


@pytest.mark.parametrize(("name", "by"), PAIRS)
def test_the_server_s_means_are_those_of_what_clients_remember(name: str, by: str, classes: Any) -> None:
    """c = mean c_i, h = mean g_k, H = mean h_i to float precision, in cohorts of 4 of 5 of which some are lost."""
    method = wrap(METHODS[name], *WRAPPERS[by])
    sim = classes(n=[4, 7, 9, 3, 5]).simulator(method, clients_per_round=4, outage=us.Outage(late=0.3), seed=1)
    state = sim.start()
    for t in range(1, 7):
        state, _ = sim.round(state, t)
        server = kept_by_server(of(state))
        total = torch.zeros_like(server)
        for client in sim.population.clients:
            memory = sim.memory.get(client)
            if memory is not None:
                total += kept_by_clients(of(memory), of(state).heard.get(client, 0))
        assert server.abs().max() > 1e-4
        torch.testing.assert_close(total / 5, server, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "feddc"])
def test_entries_that_a_secure_sum_rounds_are_rounded_in_memory_too(name: str, classes: Any) -> None:
    """All numbers are whole multiples of 2^-24."""
    sim = classes(n=[4, 7, 9]).simulator(wrap(METHODS[name], us.SecureSum()))
    state = sim.start()
    for t in range(1, 4):
        state, _ = sim.round(state, t)
        remembered = [kept_by_clients(of(sim.memory.get(c)), t) for c in sim.population.clients]
        torch.testing.assert_close(torch.stack(remembered).mean(0), kept_by_server(of(state)), rtol=0, atol=1e-12)


def test_a_client_that_lies_remembers_the_truth(classes: Any) -> None:
    """What it knows is its own variate; a lie would otherwise be taken for it and grow from round to round."""
    world = classes(n=[4, 7, 9])
    lies = IndependentAttack(us.SignFlip(fraction=0.5, scale=3.0), frozenset({1}))
    plain, attacked = (world.play(m, 1) for m in (METHODS["scaffold"], wrap(METHODS["scaffold"], lies)))
    mine, same = (play.sim.memory.get(1) for play in (attacked, plain))
    torch.testing.assert_close(mine.c, same.c, rtol=0, atol=0)
