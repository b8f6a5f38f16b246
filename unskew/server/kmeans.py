"""Clusters of points: k-means from a key, and the choice of the number of clusters.

S. P. Lloyd, "Least squares quantization in PCM", 1982; D. Arthur, S. Vassilvitskii, "k-means++", SODA 2007; the number
of clusters by P. J. Rousseeuw, "Silhouettes", 1987.  Equation numbers are this file's.

Notation   x_i    point i, any shape;  c_j  centre of cluster j;  a(i)  the cluster of point i
Cost       sum_i ||x_i - c_a(i)||^2                                                                    (1)
Silhouette s(i) = (b - a) / max(a, b): a is the mean distance to the others of i's cluster, b the least mean distance
           to another cluster; 0 for a single point                                                    (2)
Departures All in float64, and the cheapest of a few restarts.  A cluster that runs empty is left out.  Clusters are
           numbered by size, the largest first, so that the numbers do not depend on the draw.
"""

import torch
from torch import Tensor

from unskew.errors import DataError
from unskew.keys import Key

MOST_COMPARED = 1000
"""Maximum number of points for silhouettes, which need all pairs."""
RESTARTS = 4
"""Restarts of k-means, of which the cheapest counts (eq. 1)."""
ITERATIONS = 100
"""Maximum number of Lloyd's iterations."""
LEAST_SILHOUETTE = 0.1
"""Silhouette below which there is one cluster."""


def kmeans(points: Tensor, clusters: int, key: Key) -> Tensor:
    """Assign each point to a cluster, (n,) int64 from 0; fewer clusters if fewer points differ.

    Args:
        points: Points, (n, ...), n >= 1.
        clusters: Maximum number of clusters.
        key: Key for the first centres.

    Raises:
        DataError: If there is no point, a value is not finite, or no cluster is asked for.

    >>> kmeans(torch.tensor([[0.0], [9.0], [0.5], [0.2], [9.5]]), 2, Key(0)).tolist()
    [0, 1, 0, 0, 1]
    """
    if clusters < 1 or len(points) < 1 or not bool(points.isfinite().all()):
        raise DataError(
            f"k-means needs finite points and at least one cluster, got {len(points)} points and {clusters} clusters"
        )
    x = points.detach().cpu().flatten(1).double()
    clusters = min(clusters, len(torch.unique(x, dim=0)))
    if clusters == 1:
        return torch.zeros(len(x), dtype=torch.int64)
    assignments = [_lloyd(x, _spread(x, clusters, key / r)) for r in range(RESTARTS)]
    costs = [float(torch.cdist(x, _centres(x, a)).square().gather(1, a[:, None]).sum()) for a in assignments]
    return _by_size(assignments[costs.index(min(costs))])


def _spread(x: Tensor, clusters: int, key: Key) -> Tensor:
    """Draw first centres, each in proportion to the squared distance from those before it."""
    g = key.generator()
    chosen = [int(torch.randint(len(x), (1,), generator=g))]
    nearest = (x - x[chosen[0]]).square().sum(1)
    while len(chosen) < clusters:
        # Distinct points are left, so some distance is positive and a chosen point is not drawn again.
        chosen.append(int(torch.multinomial(nearest, 1, generator=g)))
        nearest = torch.minimum(nearest, (x - x[chosen[-1]]).square().sum(1))
    return x[chosen]


def _lloyd(x: Tensor, centres: Tensor) -> Tensor:
    before = torch.full((len(x),), -1)
    for _ in range(ITERATIONS):
        now = torch.unique(torch.cdist(x, centres).argmin(1), return_inverse=True)[1]
        if torch.equal(now, before):
            break
        before, centres = now, _centres(x, now)
    return before


def _centres(x: Tensor, assignment: Tensor) -> Tensor:
    return torch.stack([x[assignment == j].mean(0) for j in range(int(assignment.max()) + 1)])


def _by_size(assignment: Tensor) -> Tensor:
    """Renumber clusters by size; among equally large ones the one with the earlier member comes first."""
    sizes = torch.bincount(assignment).tolist()
    first = [int((assignment == j).nonzero()[0]) for j in range(len(sizes))]
    order = sorted(range(len(sizes)), key=lambda j: (-sizes[j], first[j]))
    return torch.tensor([order.index(j) for j in range(len(sizes))])[assignment]


def silhouette(points: Tensor, assignment: Tensor) -> float:
    """Compute the mean silhouette of a clustering (eq. 2), between -1 and 1; 0 with a single cluster.

    Args:
        points: Points, (n, ...).
        assignment: Cluster of each point, (n,) int64 from 0, no number without a point.
    """
    from sklearn.metrics import silhouette_score  # a second to load

    if not 1 <= int(assignment.max()) < len(points) - 1:
        return 0.0
    return float(silhouette_score(points.detach().cpu().flatten(1).double().numpy(), assignment.numpy()))


def count_by_silhouette(points: Tensor, key: Key, most: int = 5, at_least: int = 20) -> int:
    """Choose the number of clusters, 1 .. `most`, with the largest mean silhouette (eq. 2).

    Args:
        points: Points, (n, ...); from more than `MOST_COMPARED` that many are drawn.
        key: Key for the draw and for k-means.
        most: Maximum number of clusters.
        at_least: Minimum number of points per cluster, on average.
    """
    if len(points) > MOST_COMPARED:
        points = points[torch.randperm(len(points), generator=(key / "drawn").generator())[:MOST_COMPARED]]
    best, count = LEAST_SILHOUETTE, 1
    for k in range(2, min(most, len(points) // at_least) + 1):
        score = silhouette(points, kmeans(points, k, key / k))
        if score > best:
            best, count = score, k
    return count
