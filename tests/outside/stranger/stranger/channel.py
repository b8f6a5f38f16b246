"""Links that get worse round by round."""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor

from unskew.keys import Key


@dataclass(frozen=True)
class FadingAway:
    """Links that get worse round by round."""

    start: Annotated[float, Gt(0.0)] = 8.0
    name: str = "fading_away"

    def spectral_efficiency(self, key: Key, round: int, hop: int, nodes: int) -> Tensor:
        return torch.full((nodes, nodes), self.start / round)
