"""Tensors of several lengths, stored as one."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Ragged(Sequence[Tensor]):
    """A sequence of int64 index tensors, stored end to end in one tensor.

    Attributes:
        values: All entries, (sum of sizes,).
        sizes: Length of each tensor.

    >>> parts = Ragged.of([torch.tensor([3, 5]), torch.tensor([1])])
    >>> parts[0], len(parts)
    (tensor([3, 5]), 2)
    """

    values: Tensor
    sizes: npt.NDArray[np.int64]

    @staticmethod
    def of(tensors: Sequence[Tensor]) -> "Ragged":
        """The tensors, packed."""
        nothing = torch.empty(0, dtype=torch.int64)
        return Ragged(torch.cat([nothing, *tensors]), np.array([len(t) for t in tensors], np.int64))

    @cached_property
    def bounds(self) -> npt.NDArray[np.int64]:
        """Start of each tensor, and the end of the last one."""
        return np.concatenate([np.zeros(1, np.int64), self.sizes.cumsum()])

    def tolist(self) -> list[list[int]]:
        """The entries of each tensor."""
        values = self.values.tolist()
        return [values[start:end] for start, end in itertools.pairwise(self.bounds.tolist())]

    def to(self, device: torch.device | str) -> "Ragged":
        """The same on a device."""
        return Ragged(self.values.to(device), self.sizes)

    def take(self, chosen: npt.NDArray[np.int64]) -> "Ragged":
        """The tensors of these numbers, in this order."""
        sizes = self.sizes[chosen]
        shift = np.repeat(self.bounds[:-1][chosen] - (sizes.cumsum() - sizes), sizes)
        rows = torch.from_numpy(np.arange(sizes.sum()) + shift)
        return Ragged(self.values[rows.to(self.values.device)], sizes)

    def where(self, kept: npt.NDArray[np.bool_]) -> "Ragged":
        """The same without the entries that are false in `kept`."""
        owner = np.repeat(np.arange(len(self)), self.sizes)[kept]
        return Ragged(self.values[torch.from_numpy(kept)], np.bincount(owner, minlength=len(self)))

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, i: int) -> Tensor:  # type: ignore[override]  # nobody takes slices
        i = range(len(self))[i]  # as a list counts and refuses
        return self.values[int(self.bounds[i]) : int(self.bounds[i + 1])]
