"""Channels between nodes, which a plan may probe."""

from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import torch
from annotated_types import Gt
from torch import Tensor

from unskew.keys import Key


class Channel(Protocol):
    """A pure function of its arguments, so that any recorded run can be priced again under another channel."""

    def spectral_efficiency(self, key: Key, round: int, hop: int, nodes: int) -> Tensor:
        """Expected bit/s/Hz from each node to each, (nodes, nodes); node 0 is the base station.

        `key` is the run's; the channel decides what is redrawn each run, round or hop.
        """
        ...


@dataclass(frozen=True)
class Even:
    """The same efficiency on every link: the channel when no radio is modelled."""

    gamma: Annotated[float, Gt(0.0)] = 1.0
    name: Literal["even"] = "even"

    def spectral_efficiency(self, key: Key, round: int, hop: int, nodes: int) -> Tensor:
        """`gamma` between any two nodes."""
        return torch.full((nodes, nodes), self.gamma)
