"""A network may behave otherwise in training: what cannot be meant is refused, what is hardly meant is said."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unskew as us
from unskew.errors import ConfigError
from unskew.tasks.task import ends_in, make_task

X = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
Y = np.arange(60) % 3


class Net(nn.Module):
    """Three logits, and what `last` makes of them in a mode."""

    def __init__(self, last: str) -> None:
        super().__init__()
        self.last, self.norm, self.head = last, nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Any:
        z = self.head(self.norm(x))
        p = z.exp() / z.exp().sum(1, keepdim=True)  # softmax by hand
        if self.last == "two in training":
            return (z, z) if self.training else z
        if self.last == "fewer in training":
            return z[:, :2] if self.training else z
        if self.last == "softmax in evaluation":
            return z if self.training else p
        if self.last == "softmax in training":
            return p if self.training else z
        return {"softmax": p, "sigmoid": 1 / (1 + (-z).exp()), "relu": z.relu(), "nothing": z}[self.last]


@pytest.mark.parametrize(("last", "got"), [("two in training", "tuple"), ("fewer in training", r"float32 \(2, 2\)")])
def test_another_structure_in_training_is_refused(last: str, got: str) -> None:
    with pytest.raises(ConfigError, match=f"in evaluation, and {got} in training; return the same"):
        us.simulate("fedavg", data=(X, Y), model=lambda: Net(last), split=us.IID(2), rounds=1, progress=False)


@pytest.mark.parametrize(
    ("last", "told"),
    [
        ("softmax", "softmax"),
        ("sigmoid", "sigmoid"),
        ("softmax in evaluation", "softmax"),
        ("relu", None),
        ("nothing", None),
    ],
)
def test_probabilities_are_seen(last: str, told: str | None) -> None:
    assert ends_in(make_task(lambda: Net(last), 3), torch.from_numpy(X)) == told


@pytest.mark.parametrize(
    ("last", "loss", "told"), [("softmax", None, 1), ("nothing", None, 0), ("softmax", "multi_margin", 0)]
)
def test_a_run_says_that_its_loss_applies_softmax_once_more(last: str, loss: str | None, told: int) -> None:
    history = us.simulate(
        "fedavg", data=(X, Y), model=lambda: Net(last), loss=loss, split=us.IID(2), rounds=1, progress=False
    )
    assert sum("the network ends in softmax" in note.lower() for note in history.notes) == told
