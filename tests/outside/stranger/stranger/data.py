"""Points around a centre for each class."""

from typing import Annotated

import torch
from annotated_types import Ge

from unskew.data import Dataset, checked


def blobs(n: Annotated[int, Ge(20)] = 60, classes: Annotated[int, Ge(2)] = 3) -> Dataset:
    """Points around a centre for each class."""
    generator = torch.Generator().manual_seed(7)
    y = torch.arange(n) % classes
    x = torch.eye(classes, 4)[y] * 3 + torch.randn(n, 4, generator=generator)
    test = torch.arange(n) % 5 == 0
    return checked("blobs", x[~test], y[~test], x[test], y[test])
