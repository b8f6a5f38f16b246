"""A server rule that goes part of the way to the mean."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt, Le

from unskew.server.optimise import Moments
from unskew.tree import Params


@dataclass(frozen=True)
class PartWay:
    """A share of the way to the mean."""

    share: Annotated[float, Gt(0), Le(1)] = 0.5

    def start(self, params: Params) -> Moments:
        return Moments()

    def step(self, w: Params, mean: Params, moments: Moments) -> tuple[Params, Moments]:
        return {n: t + self.share * (mean[n] - t) for n, t in w.items()}, moments
