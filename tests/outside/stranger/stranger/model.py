"""A network of one hidden layer."""

from torch import nn


def wide(input_shape: tuple[int, ...], num_classes: int, width: int = 8) -> nn.Module:
    """One hidden layer."""
    return nn.Sequential(nn.Linear(input_shape[0], width), nn.ReLU(), nn.Linear(width, num_classes))
