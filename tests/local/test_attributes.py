"""What a network stores in plain attributes in its forward pass stays with one client's training."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unskew as us
from unskew.local.workspace import Attributes

TRAINED: list[Any] = ["sequential", "workers", "stacked"]


class Counts(nn.Module):
    """Its outputs depend on how often it was called, on a running mean, and on what it has collected."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.calls, self.mean, self.seen = nn.Linear(64, 10), 0, torch.zeros(64), [0.0]
        self.layers = [self.head]

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        self.calls += 1
        self.mean.mul_(0.5).add_(0.5 * x.detach().mean(0))
        self.seen.append(float(self.calls))
        if not hasattr(self, "first"):
            self.first = x.detach().mean()
        out: Tensor = self.layers[0](x - self.mean) * (1.0 + 0.1 * len(self.seen) + self.first)
        return out


def test_training_does_not_depend_on_the_executor_or_on_other_clients() -> None:
    runs = [
        us.simulate("fedavg", data="digits", model=Counts, split=us.IID(3), rounds=2, progress=False,
                    runtime=us.Runtime(executor=executor, threads=1))
        for executor in TRAINED
    ]  # fmt: skip
    assert runs[0].curve("fedavg") == runs[1].curve("fedavg")
    ends = [[value for _, value in run.curve("fedavg")] for run in runs]
    assert ends[0] == pytest.approx(ends[2])


def test_attributes_are_put_back_and_share_the_networks_own_layers() -> None:
    module = Counts()
    given = Attributes(module)
    assert given.changed() == ""
    module(torch.ones(2, 64))
    assert given.changed() in ("calls", "mean", "seen", "first")
    given.restore()
    assert given.changed() == ""
    assert module.layers[0] is module.head
    assert (module.calls, module.seen, hasattr(module, "first")) == (0, [0.0], False)
    assert not module.mean.any()
