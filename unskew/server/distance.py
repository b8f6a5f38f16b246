"""Degrees of learning, and their distances from IID.

S. Ahn et al., "Communication-Efficient Diffusion Strategy for Performance Improvement of Federated Learning with
Non-IID Data" (FedDif).  Equation numbers are this file's.  Pure functions, on clients and server alike.

Notation   h_i   class histogram of client i, counts;  D_i = sum(h_i);  d_i = h_i / D_i
           psi   degree of learning (DoL) of a model: class shares of the data it was trained on, (classes,)
           D     number of those examples
           t     the distribution that counts as IID: uniform, or that of all clients' data
Learning   psi <- (D psi + h_i) / (D + D_i),  D <- D + D_i                                           (1)
Distance   l2    || psi - t ||_2                                                                     (2)
           l1    sum |psi - t|
           tv    half of it: the 1-Wasserstein distance over classes with ground metric 0 or 1
           kl    sum psi ln(psi / t), nats
           js    (KL(psi || m) + KL(t || m)) / 2 with m = (psi + t) / 2, nats, at most ln 2
           w1    the 1-Wasserstein distance over classes with ground metric |i - j|: sum_c |Psi_c - T_c| of the
                 cumulated shares, for ordered classes
Departures The papers write W1 and mean eq. 2: their proofs and their code take the L2 norm.  The released code's EMD
           treats the shares themselves as samples on a line; it is l1 / classes and is left out.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from unskew.errors import ConfigError

DistanceMetric = Literal["l2", "l1", "tv", "kl", "js", "w1"]


def _kl(p: Tensor, q: Tensor) -> Tensor:
    # xlogy(0, anything) is 0; clamped, because rounding leaves a distance of nothing slightly below it.
    return (torch.xlogy(p, p) - torch.xlogy(p, q)).sum(-1).clamp(min=0.0)


def _js(p: Tensor, q: Tensor) -> Tensor:
    middle = 0.5 * (p + q)
    return 0.5 * (_kl(p, middle) + _kl(q.expand_as(p), middle))


METRICS: dict[DistanceMetric, Callable[[Tensor, Tensor], Tensor]] = {
    "l2": lambda psi, t: (psi - t).square().sum(-1).sqrt(),
    "l1": lambda psi, t: (psi - t).abs().sum(-1),
    "tv": lambda psi, t: 0.5 * (psi - t).abs().sum(-1),
    "kl": _kl,
    "js": _js,
    "w1": lambda psi, t: (psi - t).cumsum(-1)[..., :-1].abs().sum(-1),
}


def iid_distance(psi: Tensor, target: Tensor, metric: DistanceMetric = "l2") -> Tensor:
    """Compute the distances (...) of class shares (..., classes) from those that count as IID, (classes,) (eq. 2).

    They are infinite under kl where `psi` has a class that `target` lacks.

    Raises:
        ConfigError: If there is no such metric.

    >>> iid_distance(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5])).item()
    0.7071067690849304
    """
    if metric not in METRICS:
        raise ConfigError(f"metric must be one of {', '.join(METRICS)}, got {metric!r}")
    return METRICS[metric](psi, target)


def largest_distance(target: Tensor, metric: DistanceMetric = "l2") -> float:
    """Compute the largest distance of any distribution; all metrics are convex in psi, so one class has it."""
    return float(iid_distance(torch.eye(len(target), dtype=target.dtype), target, metric).max())


def shares(counts: Tensor) -> Tensor:
    """Turn counts into class shares, (..., classes); uniform where all counts are 0."""
    total = counts.sum(-1, keepdim=True)
    return torch.where(total > 0, counts / total.clamp(min=torch.finfo(counts.dtype).tiny), 1.0 / counts.shape[-1])


def project(noisy: Tensor) -> Tensor:
    """Project noisy class shares, (..., classes), back onto the simplex: clip at 0 and divide by the sum.

    Uniform where nothing positive is left.

    >>> project(torch.tensor([0.6, -0.2, 0.6]))
    tensor([0.5000, 0.0000, 0.5000])
    """
    return shares(noisy.clamp(min=0.0))


def learn(psi: Tensor, size: Tensor, histogram: Tensor) -> tuple[Tensor, Tensor]:
    """Update (psi, D) for training on a client's data (eq. 1): psi (..., classes), D (...,), `histogram` (classes,)."""
    now = size + histogram.sum(-1)
    return shares(size.unsqueeze(-1) * psi + histogram), now
