"""FedDif's auction: the value of a move, its cost, and the assignment of models to clients.

S. Ahn et al., "Communication-Efficient Diffusion Strategy for Performance Improvement of Federated Learning with
Non-IID Data" (FedDif).  (16b) to (18f) are constraints of the papers, other equation numbers are this file's.  Pure
functions of tensors, each for all models and clients at once.

Notation   M, N    models, clients;  m, n one of each
           psi, D  a model's degree of learning and the examples behind it;  h_n, D_n a client's histogram and its size
           W, t    IID distance and its target (distance.py)
           S       size of a model on the wire, bits
           gamma   expected spectral efficiency of a link, bit/s/Hz
Value      V[m, n] = W(psi_m) - W((D_m psi_m + h_n) / (D_m + D_n))                                   (1)
Cost       B = S / gamma, bandwidth for a second, Hz s                                               (2)
Weight     V / B, diffusion efficiency in 1/(Hz s), for pairs that are allowed; 0 for all others     (3)
           (16b)/(18b)  the model must gain: V > 0
           (16c)/(18c)  a client takes at most one model: matching
           (16d)/(18d)  a model has at most one next client, and none that had it before: matching, `blocked`
           (16e)/(18e)  gamma >= gamma_min, or outage at most 5 %
           (16f)/(18f)  bandwidth: `admit`
Outage     P = 1 - exp(-(2^gamma_min - 1) / SNR),  SNR = 2^gamma - 1                                 (4)
Departures A pair without a positive weight is not an edge: the assignment solver must match every model, and a move
           without gain would be a wasted transfer.  Eq. 4 as printed has the model's size in the exponent and is 1 for
           every link; with gamma_min it is a probability.  SNR is the mean under Rayleigh fading, which follows from a
           probe's expected gamma.  The second price is never computed.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

Feasibility = Literal["outage", "qos", "both", "none"]
Pair = tuple[int, int]
"""(model, client)."""

OUTAGE = 0.05
"""Largest outage probability of a link that may carry a model."""

ROUNDING = 1e-9
"""Largest gain that counts as rounding: two ways to compute the same distance."""


# ---------------------------------------------------------------- the value of a move
def gain(before: Tensor, after: Tensor) -> Tensor:
    """Compute the gain `before - after`; 0 where the difference is rounding."""
    return torch.nn.functional.hardshrink(before - after, ROUNDING)


# ---------------------------------------------------------------- permitted moves
def feasible(gamma: Tensor, gamma_min: float, rule: Feasibility) -> Tensor:
    """Find the links that may carry a model, shaped as `gamma` (16e, 18e); none without spectral efficiency."""
    least = gamma_min if rule in ("qos", "both") else 0.0
    if rule in ("outage", "both"):  # eq. 4 solved for gamma: one comparison instead of two exponentials
        least = max(least, math.log2(1.0 - (2.0**gamma_min - 1.0) / math.log1p(-OUTAGE)))
    return (gamma >= least) & (gamma > 0) if least else gamma > 0


def edge_weights(values: Tensor, gamma: Tensor, bits: float, blocked: Tensor) -> Tensor:
    """Compute the diffusion efficiency of every move, 1/(Hz s), float64 (eq. 3).

    Args:
        values: Bids, (models, clients); NaN where none was received.
        gamma: Spectral efficiency from each model's holder to each client, (models, clients), bit/s/Hz.
        bits: S.
        blocked: Forbidden pairs: holders, clients that had the model before, infeasible links.

    Returns:
        (models, clients), 0 where there is no edge.
    """
    weights = (values.double() * gamma).div_(bits)
    return weights.masked_fill_(blocked | ~(weights > 0) | ~(values > 0), 0.0)


# ---------------------------------------------------------------- the assignment
def match(weights: Tensor) -> list[Pair]:
    """Find a matching of largest total of weights (models, clients), in the order of models; no pair of weight 0."""
    table = weights.clamp(min=0.0).numpy()
    models, clients = table.shape
    # If every model gets a client, subtracting its best weight changes nothing, and likewise for clients.
    # With both subtracted the solver starts near the solution: three times as fast.
    cost = -table
    if models <= clients:
        cost -= cost.min(axis=1, keepdims=True, initial=np.inf)
    if clients <= models:
        cost -= cost.min(axis=0, initial=np.inf)
    pairs = zip(*(side.tolist() for side in linear_sum_assignment(cost)), strict=True)
    return [(m, n) for m, n in pairs if table[m, n] > 0]


def admit(pairs: Sequence[Pair], weights: Tensor, bandwidth: Tensor, budget: float | None) -> list[Pair]:
    """Select the pairs of a matching that fit a budget in Hz s, the most efficient first; the others wait (16f, 18f).

    Weights and bandwidth (eq. 2, Hz s) are (models, clients).  After the first that does not fit, none is admitted.
    """
    if budget is None:
        return list(pairs)
    admitted, spent = set(), 0.0
    for pair in sorted(pairs, key=lambda p: (-float(weights[p]), p)):
        spent += float(bandwidth[pair])
        if spent > budget:
            break
        admitted.add(pair)
    return [p for p in pairs if p in admitted]


# ---------------------------------------------------------------- valid bids
def bid_table(bids: Mapping[int, Tensor], models: int, clients: int, largest: float) -> tuple[Tensor, dict[int, str]]:
    """Collect the bids in a table, and explain invalid ones.

    Args:
        bids: Each client's upload, by number; a valid one has a bid for each model.
        models: Number of models on offer.
        clients: N.
        largest: Largest possible IID distance, which bounds how much closer or further a model can get.

    Returns:
        (values, refused): (models, clients) float64, NaN where no bid came or it was refused; reasons by client.
    """
    refused: dict[int, str] = {}
    for n, bid in bids.items():
        if tuple(bid.shape) != (models,):
            refused[n] = f"expected one bid for each of {models} models, got a tensor of shape {tuple(bid.shape)}"
    heard = [n for n in bids if n not in refused]
    values = torch.full((models, clients), torch.nan, dtype=torch.float64)
    if not heard or not models:
        return values, refused
    table = torch.stack([bids[n].double().cpu() for n in heard])  # the auction is held on the host
    worst = table.abs().amax(dim=1)
    for i in torch.nonzero(~(worst <= largest + 1e-6)).flatten().tolist():  # a NaN is not <= anything
        refused[heard[i]] = f"a bid of size {worst[i]:.6g} is impossible: no distance exceeds {largest:.6g}"
    kept = [i for i, n in enumerate(heard) if n not in refused]
    values[:, [heard[i] for i in kept]] = table[kept].T
    return values, refused
