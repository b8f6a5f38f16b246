"""Layers that `local.trainable` leaves out have the bits they began with, whatever a server adds up."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unskew as us
from unskew.experiment.config import method

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 6)).astype(np.float32)
Y = (X @ RNG.normal(size=(6, 3))).argmax(1)
LOCAL = {"lr": 0.1, "trainable": ["head"], "batch_size": 8, "weight_decay": 0.01}
NAMES = ["fedadam", "fednova", "feddyn", "stc", "ditto", "hcct"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x).relu())
        return logits


@pytest.mark.parametrize("name", NAMES)
def test_what_nobody_trains_keeps_its_bits(name: str) -> None:
    net = Net()
    history = us.simulate(
        {name: method(name, {"local": LOCAL}).method}, data=(X, Y), model=net, split=us.IID(5), rounds=4,
        progress=False,
    )  # fmt: skip
    alone = name in ("ditto", "hcct")
    after = history.model(name, client=0 if alone else None).state_dict()
    for layer, before in net.state_dict().items():
        assert torch.equal(after[layer], before) == layer.startswith("body"), layer
