"""Skew between clients: measures on a table of label counts, (clients, classes)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def counts_of(indices: Counts, sizes: Counts, labels: Counts, num_classes: int) -> Counts:
    """Count each client's examples of each class, (clients, classes); indices lie end to end, `sizes` for each."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    counted = np.bincount(owner * num_classes + labels[indices], minlength=len(sizes) * num_classes)
    return counted.reshape(len(sizes), num_classes)


def shares(counts: Counts) -> Floats:
    """Class shares per client, rows sum to 1; each has an example."""
    return np.asarray(counts / counts.sum(1, keepdims=True))


def iid_distance(counts: Counts) -> Floats:
    """L2 norm of class shares minus 1/C, per client: 0 is uniform, sqrt(1 - 1/C) one class only (FedDif, eq. 13).

    The reference is uniform, whatever the shares in the pooled data.

    >>> iid_distance(np.array([[5, 5], [10, 0]])).round(4)
    array([0.    , 0.7071])
    """
    p = shares(counts)
    return np.asarray(np.linalg.norm(p - 1 / p.shape[1], axis=1))


def js_divergence(counts: Counts) -> Floats:
    """Jensen-Shannon divergence between each client's class shares and the pooled ones, base 2: 0 equal .. 1 disjoint.

    >>> js_divergence(np.array([[4, 4], [8, 8]]))
    array([0., 0.])
    """
    p = shares(counts)
    pooled = counts.sum(0) / counts.sum()
    middle = (p + pooled) / 2
    divergence = _entropy(middle) - (_entropy(p) + _entropy(pooled[None])) / 2
    return np.asarray(np.clip(divergence / np.log(2), 0, 1))  # rounding can leave -1e-17


def effective_classes(counts: Counts) -> Floats:
    """exp of the entropy of the class shares, per client: the number of equally common classes with that entropy.

    >>> effective_classes(np.array([[5, 5, 0], [9, 0, 0]]))
    array([2., 1.])
    """
    return np.asarray(np.exp(_entropy(shares(counts))))


def _entropy(p: Floats) -> Floats:
    """Natural entropy of each row."""
    return np.asarray(-np.sum(p * np.log(np.where(p > 0, p, 1)), axis=1))


@dataclass(frozen=True)
class Skew:
    """A split in six numbers; distances are unweighted means over clients."""

    num_clients: int
    smallest: int
    largest: int
    iid_distance: float
    js: float
    effective_classes: float


def summary(counts: Counts) -> Skew:
    """The summary of a table of label counts."""
    sizes = counts.sum(1)
    return Skew(
        len(sizes),
        int(sizes.min()),
        int(sizes.max()),
        float(iid_distance(counts).mean()),
        float(js_divergence(counts).mean()),
        float(effective_classes(counts).mean()),
    )
