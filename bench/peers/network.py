"""The two networks in plain PyTorch, for the contenders that train PyTorch networks, and their plain training loop."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


def network(model: str) -> nn.Sequential:
    """`mlp` (199,210 parameters) or `cnn` (878,538), with PyTorch's own initial values."""
    if model == "mlp":
        layers = [nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)]
        return nn.Sequential(nn.Flatten(), *layers)
    first = [nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(1600, 512), nn.ReLU(), nn.Linear(512, 10))


@torch.no_grad()
def fill(net: nn.Module, params: Sequence[np.ndarray]) -> None:
    """Set the parameters."""
    for mine, given in zip(net.parameters(), params, strict=True):
        mine.copy_(torch.from_numpy(given))


def values(net: nn.Module) -> list[np.ndarray]:
    """The parameters."""
    return [p.detach().numpy().copy() for p in net.parameters()]


def train(net: nn.Module, x: Tensor, y: Tensor, batch: int, lr: float) -> int:
    """One epoch of SGD over shuffled batches; the number of steps."""
    optimizer = torch.optim.SGD(net.parameters(), lr)
    order = torch.randperm(len(y))
    steps = 0
    for xb, yb in zip(torch.split(x[order], batch), torch.split(y[order], batch), strict=True):
        optimizer.zero_grad()
        F.cross_entropy(net(xb), yb).backward()
        optimizer.step()
        steps += 1
    return steps
