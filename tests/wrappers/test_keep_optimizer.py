"""Rounds of one step with an optimiser that is kept are the steps of one optimiser."""

import copy

import pytest
import torch
from torch import nn

import unskew as us

KINDS = {
    "sgd": (us.SgdConfig(lr=0.1, momentum=0.9, batch_size=None), lambda p: torch.optim.SGD(p, 0.1, 0.9)),
    "adam": (us.SgdConfig(lr=0.01, optimizer="adam", batch_size=None), lambda p: torch.optim.Adam(p, 0.01)),
    "nadam": (us.SgdConfig(lr=0.01, optimizer="nadam", batch_size=None), lambda p: torch.optim.NAdam(p, 0.01)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kept_optimiser_goes_on_from_round_to_round(kind: str) -> None:
    """One client with all its data in a batch: three rounds of one step are three steps of PyTorch's optimiser."""
    x = torch.randn(40, 4, generator=us.Key(1).generator())
    y, net = (x[:, 0] > 0).long(), nn.Linear(4, 2)
    theirs, (local, make) = copy.deepcopy(net), KINDS[kind]
    optimizer = make(theirs.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(theirs(x), y).backward()
        optimizer.step()
    methods = {"fresh": us.FedAvg(local), "kept": us.wrap(us.FedAvg(local), us.KeepOptimizer())}
    data = {"data": {"one": (x, y)}, "test": (x[:4] + 1, y[:4]), "test_fraction": 0.0}
    history = us.simulate(methods, model=net, rounds=3, progress=False, **data)
    kept, fresh = (history.model(name).state_dict()["weight"] for name in ("kept", "fresh"))
    torch.testing.assert_close(kept, theirs.weight.detach())  # Adam in one pass rounds otherwise
    assert not torch.allclose(fresh, kept, atol=1e-6)
