"""Overlap of clients' distributions: FedDistr's entanglement, and shares with a given entanglement.

"Disentangling data distribution for Federated Learning" (FedDistr, 2024), Definitions 1 and 2.  Equation numbers in
brackets are the paper's, those with a dash this file's.

Notation   P_i      base distributions, m of them: a label, a domain, or a label in a domain
           pi_k     share of each base distribution that client k has, (m,);  K clients
           s_kl     <pi_k, pi_l> / (|pi_k| |pi_l|), the entanglement of two clients: 0 nothing in common, 1 the same
                    mixture                                                                            (7)
           xi       its average, or its maximum, over pairs: the paper defines the latter and reports the former
Blocks     every client owns as many base distributions as every other; every other client has r times
           its owner's share of each:  the owner 1 / (1 + (K - 1) r), any other client r / (1 + (K - 1) r)
           s = (2 r + (K - 2) r^2) / (1 + (K - 1) r^2) for all pairs                                   (1')
           r = s / (1 + sqrt(1 + s A)),  A = K - 2 - s (K - 1)                                         (2')
Departures The paper does not say how it obtained its entanglements.  If m is not a multiple of K, blocks differ by one,
           and r is found by bisection on the average.  Its odd values may be single Dirichlet draws: that is offered
           too, with alpha found by bisection.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unskew.errors import DataError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NARROW, WIDE = 1e-3, 1e3
"""Range of alphas in which a Dirichlet draw is looked for."""

STEPS = 60


@dataclass(frozen=True)
class Entanglement:
    """Over all pairs of clients: mean and largest s_kl."""

    average: float
    maximum: float


def coefficients(counts: npt.NDArray[np.int64] | Floats) -> Floats:
    """s_kl of all pairs (eq. 7), (clients, clients); 1 on the diagonal, 0 with a client that has nothing.

    Args:
        counts: Examples of each base distribution by client, or shares, (clients, bases).

    >>> coefficients(np.array([[1, 0], [0, 2], [3, 4]])).round(2)
    array([[1. , 0. , 0.6],
           [0. , 1. , 0.8],
           [0.6, 0.8, 1. ]])
    """
    table = np.asarray(counts, np.float64)
    norms = np.linalg.norm(table, axis=1, keepdims=True)
    unit = np.divide(table, norms, out=np.zeros_like(table), where=norms > 0)
    out = np.clip(unit @ unit.T, 0.0, 1.0)
    np.fill_diagonal(out, 1.0)
    return np.asarray(out)


def entanglement(counts: npt.NDArray[np.int64] | Floats) -> Entanglement:
    """Average and maximum over pairs of clients; 0 for one client.

    >>> entanglement(np.array([[1, 0], [0, 2], [3, 4]]))
    Entanglement(average=0.4667, maximum=0.8)
    """
    pairs = coefficients(counts)[np.triu_indices(len(counts), 1)]
    return Entanglement(round(_average(counts), 4), round(float(pairs.max(initial=0.0)), 4))


def bases_of(labels: Ints, domains: Ints | None, kind: str) -> Ints:
    """The base distribution of each example, (N,) from 0, in the order of labels and then domains.

    `kind` is "labels", "domains", or "both": a label in a domain, or only the label if there are no domains.

    Raises:
        DataError: If domains are asked for and there are none.
    """
    if kind == "domains" and domains is None:
        raise DataError('base distributions by "domains" need the domain of every example, and this data set has none')
    columns = [labels] * (kind != "domains") + ([] if kind == "labels" or domains is None else [domains])
    numbers: Ints = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return numbers


# ---------------------------------------------------------------- shares with a given entanglement
def ratio(xi: float, clients: int) -> float:
    """r at which blocks of equal size have entanglement `xi` (eq. 2').

    >>> round(ratio(0.057, 5), 6)
    0.027455
    """
    a = clients - 2 - xi * (clients - 1)
    return float(xi / (1.0 + np.sqrt(1.0 + xi * a)))


def blocks(owner: Ints, clients: int, r: float) -> Floats:
    """Shares of each base distribution by client, (clients, bases), columns sum to 1.

    `owner` is the client that owns each, (bases,), and `r` another client's share relative to the owner's.
    """
    out = np.full((clients, len(owner)), r)
    out[owner, np.arange(len(owner))] = 1.0
    return np.asarray(out / out.sum(0))


def block_shares(xi: float, owner: Ints, clients: int) -> Floats:
    """Shares by blocks with average entanglement `xi`: by eq. 2' if blocks are equally large, else by bisection.

    Raises:
        DataError: If a client owns nothing.
    """
    sizes = np.bincount(owner, minlength=clients)
    if sizes.min() == 0:
        raise DataError(f"{clients} clients need as many base distributions, not {len(owner)}; lower num_clients")
    if sizes.min() == sizes.max():
        return blocks(owner, clients, ratio(xi, clients))
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        r = 0.5 * (low + high)
        low, high = (r, high) if _average(blocks(owner, clients, r)) < xi else (low, r)
    return blocks(owner, clients, 0.5 * (low + high) if xi > 0 else 0.0)


def drawn_shares(xi: float, draw: Callable[[float], Floats]) -> Floats:
    """The draw with average entanglement nearest to `xi`, found by bisection on log alpha.

    `draw` gives the shares (clients, bases) at an alpha, from the same key each time.
    """
    low, high = float(np.log(NARROW)), float(np.log(WIDE))
    tried = [draw(NARROW), draw(WIDE)]
    for _ in range(STEPS // 2):
        middle = 0.5 * (low + high)
        tried.append(draw(float(np.exp(middle))))
        low, high = (middle, high) if _average(tried[-1]) < xi else (low, middle)
    return min(tried, key=lambda table: abs(_average(table) - xi))


def _average(table: npt.NDArray[np.int64] | Floats) -> float:
    pairs: Floats = coefficients(table)[np.triu_indices(len(table), 1)]
    return float(pairs.mean()) if len(pairs) else 0.0


def rounded(shares: Floats, stock: Ints, draws: Floats) -> Ints:
    """Whole examples, (clients, bases), columns sum to `stock`: each entry is rounded up or down, right on average.

    Args:
        shares: (clients, bases), columns sum to 1.
        stock: Examples of each base distribution, (bases,).
        draws: Uniform on [0, 1), (bases,).

    >>> rounded(np.array([[0.9], [0.05], [0.05]]), np.array([10]), np.array([0.7])).ravel()
    array([9, 1, 0])
    """
    edges = np.cumsum(shares, axis=0) * stock
    edges[-1] = stock  # a sum of shares is 1 up to rounding
    steps = np.floor(edges + draws).astype(np.int64)
    steps[-1] = stock
    return np.asarray(np.diff(steps, axis=0, prepend=0))
