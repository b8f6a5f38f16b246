"""Communication graphs, and how neighbours average their models.

L. Xiao, S. Boyd, "Fast Linear Iterations for Distributed Averaging", Systems & Control Letters 2004 (eq. 1, 3);
L. Xiao, S. Boyd, S. Lall, "A Scheme for Robust Distributed Sensor Fusion Based on Average Consensus", IPSN 2005
(eq. 2).  Equation numbers are this file's.  Pure functions; randomness comes from a given key.

Notation   A       adjacency, (n, n) bool: symmetric, without loops
           d_i     degree of node i;  D_max the largest;  L = diag(d) - A the graph's Laplacian
           V       mixing matrix, (n, n) float64: z_i <- sum_j V_ij z_j in one exchange
           lambda  contraction of V
Laplacian  V = I - delta L,  0 < delta < 1 / D_max                                                   (1)
Metropolis V_ij = 1 / (1 + max(d_i, d_j)) for neighbours, V_ii = 1 - sum_{j != i} V_ij               (2)
Spread     lambda = || V - 1 1^T / n ||_2                                                            (3)

Eq. 1 and 2 are symmetric, their rows sum to 1, and no entry is negative.  An exchange keeps the mean over the nodes,
stays within their range, and shrinks their distance to the mean by a factor of at most lambda.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Interval
from jaxtyping import Bool, Float
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from torch import Tensor

from unskew.errors import ConfigError
from unskew.keys import Key
from unskew.protocol import Carried, ClientId
from unskew.tree import Params, weighted_sum
from unskew.words import some

Mixing = Literal["laplacian", "metropolis"]


# ---------------------------------------------------------------- graphs: called with n and a key, they give A
@dataclass(frozen=True)
class Complete:
    """The complete graph: all nodes are neighbours."""

    name: Literal["complete"] = "complete"

    def __call__(self, n: int, key: Key) -> Bool[Tensor, "n n"]:
        """Return A on n nodes; the key is not used."""
        return ~torch.eye(n, dtype=torch.bool)


@dataclass(frozen=True)
class Ring:
    """A ring: each node has two neighbours; two nodes are a pair."""

    name: Literal["ring"] = "ring"

    def __call__(self, n: int, key: Key) -> Bool[Tensor, "n n"]:
        """Return A on n nodes; the key is not used."""
        return _ring(n)


@dataclass(frozen=True)
class Torus:
    """A grid with opposite borders joined, as square as n allows; a prime number of nodes makes a ring."""

    name: Literal["torus"] = "torus"

    def __call__(self, n: int, key: Key) -> Bool[Tensor, "n n"]:
        """Return A on n nodes, row by row; the key is not used."""
        rows = max(r for r in range(1, math.isqrt(n) + 1) if n % r == 0)
        down, across = _ring(rows), _ring(n // rows)
        return _kron(down, torch.eye(n // rows)) | _kron(torch.eye(rows), across)


@dataclass(frozen=True)
class Geometric:
    """Nodes drawn uniformly from a unit square; those within `radius` of each other are neighbours.

    If that leaves the graph disconnected, the radius is the smallest that connects it.
    """

    radius: Annotated[float, Gt(0.0)] = 0.5
    name: Literal["geometric"] = "geometric"

    def __call__(self, n: int, key: Key) -> Bool[Tensor, "n n"]:
        """Return A on n nodes; the key decides where they are."""
        at = torch.rand(n, 2, dtype=torch.float64, generator=(key / "positions").generator())
        return _within(torch.linalg.vector_norm(at[:, None] - at[None], dim=-1), self.radius)


@dataclass(frozen=True)
class ErdosRenyi:
    """Each pair of nodes is joined with probability `p`, independently.

    If that leaves the graph disconnected, p is the smallest that connects it with these draws; for a small p, redrawing
    until connected would not end.
    """

    p: Annotated[float, Interval(ge=0.0, le=1.0)] = 0.3
    name: Literal["erdos_renyi"] = "erdos_renyi"

    def __call__(self, n: int, key: Key) -> Bool[Tensor, "n n"]:
        """Return A on n nodes; the key decides which pairs are joined."""
        u = torch.rand(n, n, dtype=torch.float64, generator=(key / "pairs").generator()).triu(1)
        return _within(u + u.T, self.p)


@dataclass(frozen=True)
class Edges:
    """A given graph: its edges as pairs of nodes, counted from 0."""

    edges: tuple[tuple[Annotated[int, Ge(0)], Annotated[int, Ge(0)]], ...]
    name: Literal["edges"] = "edges"

    def __call__(self, n: int, key: Key) -> Bool[Tensor, "n n"]:
        """Return A on n nodes; the key is not used.

        Raises:
            ConfigError: If an edge leads outside or back to its own node, or the graph is not connected.
        """
        a = torch.zeros(n, n, dtype=torch.bool)
        for i, j in self.edges:
            if not (0 <= i < n and 0 <= j < n and i != j):
                raise ConfigError(
                    f"an edge joins two different nodes out of 0 to {n - 1}, got [{i}, {j}]; "
                    "a graph that is written down needs the same number of participants in every round"
                )
            a[i, j] = a[j, i] = True
        require_connected(a)
        return a


Graph = Complete | Ring | Torus | Geometric | ErdosRenyi | Edges


def _ring(n: int) -> Tensor:
    a = torch.zeros(n, n, dtype=torch.bool)
    here = torch.arange(n)
    a[here, (here + 1) % n] = True
    return (a | a.T).fill_diagonal_(False)


def _kron(a: Tensor, b: Tensor) -> Tensor:
    return torch.kron(a.double(), b.double()).bool()


def _within(distance: Tensor, limit: float) -> Tensor:
    """Return pairs at most `limit` apart, or at most the limit that connects all nodes if that is larger."""
    return (distance <= max(limit, _bottleneck(distance))).fill_diagonal_(False)


def _bottleneck(distance: Tensor) -> float:
    """Find the smallest limit that connects all nodes: the longest edge of a minimum spanning tree."""
    return float(minimum_spanning_tree(distance.numpy()).max()) if len(distance) > 1 else 0.0


def require_connected(a: Bool[Tensor, "n n"]) -> None:
    """Check that the graph is connected.

    Raises:
        ConfigError: If not; names the nodes cut off.
    """
    _, part = connected_components(a.numpy(), directed=False)
    if off := [str(node) for node in (part != part[:1]).nonzero()[0]]:
        raise ConfigError(
            f"a graph of {len(a)} nodes must be connected, got one where no path leads from node 0 to "
            f"{some(off)}; add edges"
        )


# ---------------------------------------------------------------- mixing matrices
def laplacian(a: Bool[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """Compute V = I - delta L (eq. 1) in the middle of delta's range, where V has no negative eigenvalue."""
    degree = a.sum(0).double()
    largest = float(degree.max())
    if largest == 0.0:  # one node
        return torch.eye(len(a), dtype=torch.float64)
    return torch.eye(len(a), dtype=torch.float64) - 0.5 / largest * (torch.diag(degree) - a.double())


def metropolis(a: Bool[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """Compute V of Metropolis weights (eq. 2); on a complete graph one exchange is the mean."""
    degree = a.sum(0).double()
    v = a / (1.0 + torch.maximum(degree[:, None], degree[None]))
    return v + torch.diag(1.0 - v.sum(1))


def mixing_matrix(a: Bool[Tensor, "n n"], rule: Mixing) -> Float[Tensor, "n n"]:
    """Compute V by eq. 1, in the middle of its range, or eq. 2."""
    return laplacian(a) if rule == "laplacian" else metropolis(a)


def contraction(v: Float[Tensor, "n n"]) -> float:
    """Compute lambda (eq. 3): below 1 for a connected graph, the second largest modulus of an eigenvalue if V = V^T.

    >>> round(contraction(metropolis(Ring()(4, Key(0)))), 6)
    0.333333
    """
    return float(torch.linalg.matrix_norm(v - 1.0 / len(v), 2))


# ---------------------------------------------------------------- an exchange, as clients see it
@dataclass(frozen=True)
class Links:
    """Models that a client receives from its neighbours, and their weights; its own has the rest of 1."""

    models: tuple[Carried, ...]
    weights: tuple[float, ...]


def links(
    v: Float[Tensor, "n n"], nodes: Sequence[ClientId], models: Mapping[ClientId, Carried]
) -> dict[ClientId, Links]:
    """Return the exchange V among clients with a model to offer; the client at node i is `nodes[i]`.

    A pair with a client without a model drops out on both sides, and each keeps the weight.  For a symmetric V the
    result is symmetric too and preserves the participants' mean.
    """
    links: dict[ClientId, Links] = {}
    for me, row in zip(nodes, v.tolist(), strict=True):
        if me in models:
            near = [(models[c], w) for c, w in zip(nodes, row, strict=True) if w != 0.0 and c != me and c in models]
            links[me] = Links(tuple(m for m, _ in near), tuple(w for _, w in near))
    return links


def mixed(own: Params, near: Links) -> Params:
    """Compute sum_j V_ij z_j from the models that arrived."""
    arrived = [m for m in near.models if isinstance(m, dict)]
    assert len(arrived) == len(near.models), "a step is given models, never the handles of models"
    return weighted_sum([own, *arrived], [1.0 - math.fsum(near.weights), *near.weights])
