"""Server optimisers: the mean update of a round is treated as a (negative) gradient.

T.-M. H. Hsu, H. Qi, M. Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019 (momentum); S. J. Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2
(Adagrad, Adam, Yogi).  Pure functions of trees; what they return as direction is multiplied by the server's learning
rate and added to the model.

Notation   D      mean update of the round, mean(y) - w: it points towards progress
           m, v   first and second moment
           tau    degree of adaptivity; larger is less adaptive
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from unskew.tree import Params, map_params

Rule = Literal["adagrad", "adam", "yogi"]


def momentum(delta: Params, m: Params, *, beta: float, nesterov: bool = False) -> tuple[Params, Params]:
    """(direction, next m) of heavy-ball momentum, undamped: `m <- beta m + D`.

    The direction is m, or with `nesterov` `D + beta m`.
    """
    m = map_params(lambda m, d: beta * m + d, m, delta)
    return (map_params(lambda d, m: d + beta * m, delta, m) if nesterov else m), m


def adaptive(
    rule: Rule, delta: Params, m: Params, v: Params, *, beta1: float, beta2: float, tau: float
) -> tuple[Params, Params, Params]:
    """(direction, next m, next v): `m <- beta1 m + (1 - beta1) D`, v by the rule, direction `m / (sqrt(v) + tau)`.

    Neither moment is corrected for its start, unlike in `torch.optim.Adam`.  Adagrad does not look at `beta2`.
    """
    follow = _SECOND[rule]
    m = map_params(lambda m, d: beta1 * m + (1.0 - beta1) * d, m, delta)
    v = map_params(lambda v, d: follow(v, d.square(), beta2), v, delta)
    return map_params(lambda m, v: m / (v.sqrt() + tau), m, v), m, v


def _adagrad(v: Tensor, square: Tensor, _beta2: float) -> Tensor:
    return v + square


def _adam(v: Tensor, square: Tensor, beta2: float) -> Tensor:
    return beta2 * v + (1.0 - beta2) * square


def _yogi(v: Tensor, square: Tensor, beta2: float) -> Tensor:
    return v - (1.0 - beta2) * square * torch.sign(v - square)


_SECOND: dict[Rule, Callable[[Tensor, Tensor, float], Tensor]] = {"adagrad": _adagrad, "adam": _adam, "yogi": _yogi}
