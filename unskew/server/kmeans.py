"""Clusters of points: scikit-learn's k-means from a key, and the choice of the number of clusters.

D. Arthur, S. Vassilvitskii, "k-means++", SODA 2007; the number of clusters by P. J. Rousseeuw, "Silhouettes", 1987.

Notation   x_i    point i, any shape;  c_j  centre of cluster j;  a(i)  the cluster of point i
Cost       sum_i ||x_i - c_a(i)||^2                                                                    (1)
Silhouette s(i) = (b - a) / max(a, b): a is the mean distance to the others of i's cluster, b the least mean distance
           to another cluster; 0 for a single point                                                    (2)
Departures All in float64 on one thread, so sums do not depend on the number of threads.  Clusters are numbered by size,
           largest first, so numbers do not depend on the draw.
"""

import torch
from torch import Tensor

from unskew.errors import DataError
from unskew.keys import Key

MOST_COMPARED = 1000
"""Maximum number of points for silhouettes, which need all pairs."""
RESTARTS = 4
"""Restarts of k-means, of which the cheapest counts (eq. 1)."""
LEAST_SILHOUETTE = 0.1
"""Silhouette below which there is one cluster."""


def kmeans(points: Tensor, clusters: int, key: Key) -> Tensor:
    """Assign each of the points (n, ...) to a cluster, (n,) int64 from 0; fewer clusters if fewer points differ.

    The key decides the first centres.

    Raises:
        DataError: If there is no point, a value is not finite, or no cluster is wanted.

    >>> kmeans(torch.tensor([[0.0], [9.0], [0.5], [0.2], [9.5]]), 2, Key(0)).tolist()
    [0, 1, 0, 0, 1]
    """
    from sklearn.cluster import KMeans  # a second to load
    from threadpoolctl import threadpool_limits

    if clusters < 1 or len(points) < 1 or not bool(points.isfinite().all()):
        raise DataError(
            f"k-means needs finite points and at least one cluster, got {len(points)} points and {clusters} clusters"
        )
    x = points.detach().cpu().flatten(1).double()
    clusters = min(clusters, len(torch.unique(x, dim=0)))
    with threadpool_limits(1):
        labels = KMeans(clusters, n_init=RESTARTS, random_state=key.number() % 2**32).fit(x.numpy()).labels_
    return _by_size(torch.unique(torch.from_numpy(labels), return_inverse=True)[1])


def _by_size(assignment: Tensor) -> Tensor:
    """Renumber clusters by size; among equally large ones the one with the earlier member comes first."""
    sizes = torch.bincount(assignment).tolist()
    first = [int((assignment == j).nonzero()[0]) for j in range(len(sizes))]
    order = sorted(range(len(sizes)), key=lambda j: (-sizes[j], first[j]))
    return torch.tensor([order.index(j) for j in range(len(sizes))])[assignment]


def silhouette(points: Tensor, assignment: Tensor) -> float:
    """Compute the mean silhouette of points (n, ...) in clusters (n,) (eq. 2), -1 to 1; 0 with a single cluster."""
    from sklearn.metrics import silhouette_score  # a second to load

    if not 1 <= int(assignment.max()) < len(points) - 1:
        return 0.0
    return float(silhouette_score(points.detach().cpu().flatten(1).double().numpy(), assignment.numpy()))


def count_by_silhouette(points: Tensor, key: Key, most: int = 5, at_least: int = 20) -> int:
    """Choose the number of clusters, 1 .. `most`, with the largest mean silhouette (eq. 2).

    A cluster has `at_least` points on average.  Of more than `MOST_COMPARED` points, (n, ...), that many are drawn.
    """
    if len(points) > MOST_COMPARED:
        points = points[torch.randperm(len(points), generator=(key / "drawn").generator())[:MOST_COMPARED]]
    best, count = LEAST_SILHOUETTE, 1
    for k in range(2, min(most, len(points) // at_least) + 1):
        score = silhouette(points, kmeans(points, k, key / k))
        if score > best:
            best, count = score, k
    return count
