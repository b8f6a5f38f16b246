"""What a method becomes where it should become FedAvg, and when its clients are numbered otherwise."""

import dataclasses
from typing import Any

import torch
from grid import one_network_each
from recipe import CASES, LOCAL, SEED, VARIANTS, make, recorded, rounds, simulator

from unskew.algorithms import TABLE
from unskew.protocol import hook
from unskew.tree import Params

LIMITS = {name: dict(entry.limit) for name, entry in TABLE.items() if entry.limit is not None}
# Where models travel from client to client, it matters who stands next to whom.
NEIGHBOURS = {"relay", "fedswap", "fedswap, d2d", "cyclic", "cyclic, server", "tthf", "tthf, adaptive", "cfa", "gossip"}
# What these draw for a client, they draw by its number; arrivals come by theirs, and given groups name it.
DRAWN = {
    "scaffold+quantise",
    "fednova+top_k+quantise",
    "flsc, previous",
    "flsc, own norms",
    "hcct, arrivals",
    "grouped",
    "grouped, own heads",
    "fedasync",
}
# What these keep with a client, a network without normalisation does not have: there they are FedAvg.
# The pooled bound knows one client only.
NUMBERED = [case for case in CASES if case not in NEIGHBOURS | DRAWN and not getattr(make(case), "pooled", False)]
ORDER = (3, 0, 5, 1, 4, 2)


@one_network_each(list(LIMITS))
def test_at_its_declared_limit_a_method_is_fedavg(case: str, network: str) -> None:
    one = simulator(case, network, method=make(case, **LIMITS[case]), seed=SEED)
    two = recorded("fedavg", network)
    for (_, state, here), (moment, there) in zip(rounds(one), two.rounds, strict=True):
        ours, theirs = one.method.serve(state, None), two.simulator.method.serve(moment.state, None)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
        sizes = [[n for n, _ in trace.losses] for trace in (here, there)]
        if hook(one.method, "as_they_come"):  # replies of one time come in a drawn order
            sizes = [sorted(of) for of in sizes]
        assert sizes[0] == sizes[1]


@one_network_each(NUMBERED, turn=(0, 5))
def test_other_numbers_for_the_same_clients_change_nothing_beyond_rounding(case: str, network: str) -> None:
    """Whole batches and whole cohorts: shuffles and cohorts are drawn by client number."""
    own = VARIANTS[case][1].get("local", LOCAL)
    method = make(case, local=dataclasses.replace(own, batch_size=None, local_epochs=3))
    options: dict[str, Any] = {"method": method, "dtype": torch.float64, "clients_per_round": None}
    before, after = simulator(case, network, **options), simulator(case, network, order=ORDER, **options)
    for (t, one, _), (_, two, _) in zip(rounds(before, 2), rounds(after, 2), strict=True):
        assert_close(before.method.serve(one, None), after.method.serve(two, None))
        for new, old in enumerate(ORDER):
            assert_close(before.own_models(one, [old], t)[old], after.own_models(two, [new], t)[new])


def assert_close(one: Params | None, two: Params | None) -> None:
    assert (one is None) == (two is None)
    if one is not None and two is not None:
        assert list(one) == list(two)
        torch.testing.assert_close(two, one, rtol=1e-8, atol=1e-10)
