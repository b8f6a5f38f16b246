"""Clients that learn and say that they did not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Interval

from unskew.keys import Key
from unskew.tree import Params
from unskew.world.attack import Attack


@dataclass(frozen=True)
class Stubborn(Attack):
    """Malicious clients send no change."""

    uploads = True
    fraction: Annotated[float, Interval(ge=0.0, le=1.0)] = 0.5
    name: str = "stubborn"

    def forge(self, update: Params, honest: Sequence[Params], malicious: int, key: Key) -> Params:
        return {n: torch.zeros_like(t) for n, t in update.items()}
