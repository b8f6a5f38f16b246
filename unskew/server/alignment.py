"""Alignment of different clients' embeddings of the same distribution, as in FedDistr.

"Disentangling data distribution for Federated Learning" (FedDistr, 2024), eq. (13) and the text around it.  Equation
numbers are this file's.  Pure functions.

Notation   v_i, y_i, n_i, k_i   embedding i, its label, the examples behind it, its client;  d_ij  how far two are apart
Assignment for each pair of clients and each label: the matching of as many pairs as can be, of least total d (Kuhn-
           Munkres)                                                                                    (1)
Threshold  a matched pair is parallel if d_ij <= tau;
           tau = 1/2 median over clients of the median d_ij of its own pairs of one label               (2)
           but no more than the same of its own pairs of any labels
Sets       parallel pairs, nearest first, join their sets, unless that would join two embeddings of one client
Kept       of each set the embedding with the largest n; the set's count is the sum of n               (3)
           a set of one is orthogonal to all others
Departures (13) has no threshold, and a matching pairs as many as it can: of two clients with nothing in common one
           would lose its embeddings.  One client's embeddings are clusters that it separated itself, so half their
           distance is a yardstick.  If no client has two of one label, one client's two with any labels count; if none
           has two, nothing is parallel.  The paper matches client 1 with every other; here all pairs are matched, and
           no set has a client twice.  A missed parallel pair costs generation time, a wrong one loses a distribution,
           so no unsure pair is made.
Votes      In medians over clients each has one vote, whatever it sends.  A client that alone has two of a label can
           lower tau, even to 0, where nothing is parallel; all clients' values over any labels bound it from above.  It
           sets tau alone only if no other client has two at all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

MOST_PER_LABEL = 64
"""Maximum number of embeddings of one label from a client, where the method sets no bound."""

ABSURD = 20.0
"""Largest length of an embedding, in multiples of the median over clients of each client's median length."""

AHEAD = 2
"""Largest total count of a client, in multiples of the largest total of any other."""


class Pair(NamedTuple):
    """Two matched embeddings of different clients, the smaller number first, and their distance."""

    i: int
    j: int
    distance: float


@dataclass(frozen=True)
class Alignment:
    """Result of the alignment.

    Attributes:
        sets: Numbers of the embeddings of each set, ascending; every embedding is in one.
        kept: The embedding kept from each set.
        counts: Examples behind each set.
        tau: The threshold in force.
        pairs: All matched pairs, parallel or not.
    """

    sets: tuple[tuple[int, ...], ...]
    kept: tuple[int, ...]
    counts: tuple[int, ...]
    tau: float
    pairs: tuple[Pair, ...]


def align(
    distances: Tensor,
    labels: Sequence[int],
    counts: Sequence[int],
    owners: Sequence[int],
    tau: float | None = None,
    share: float = 0.5,
) -> Alignment:
    """Find the sets of parallel embeddings, and the embedding kept from each (eq. 1 to 3).

    Args:
        distances: (K, K), symmetric, at least 0.
        labels, counts, owners: y, n and k of each embedding.
        tau: The threshold; None is eq. 2.
        share: Share of the median in eq. 2.

    Returns:
        Sets in the order of their first members.  The embedding of largest count is kept, in a tie the lowest client's.
    """
    pairs = matched(distances, labels, owners)
    tau = threshold(distances, labels, owners, share) if tau is None else tau
    sets = joined([p for p in pairs if p.distance <= tau], owners)
    kept = tuple(min(s, key=lambda i: (-counts[i], owners[i], i)) for s in sets)
    return Alignment(sets, kept, tuple(sum(counts[i] for i in s) for s in sets), tau, pairs)


def matched(distances: Tensor, labels: Sequence[int], owners: Sequence[int]) -> tuple[Pair, ...]:
    """Return the matched pairs of each two clients and label (eq. 1), nearest first."""
    by_label: dict[int, dict[int, list[int]]] = {}
    for i, (y, k) in enumerate(zip(labels, owners, strict=True)):
        by_label.setdefault(y, {}).setdefault(k, []).append(i)
    table = distances.double().numpy()
    pairs = []
    for members in by_label.values():
        for a, b in combinations(sorted(members), 2):
            rows, columns = members[a], members[b]
            for r, c in zip(*linear_sum_assignment(table[rows][:, columns]), strict=True):
                i, j = sorted((rows[r], columns[c]))
                pairs.append(Pair(i, j, float(table[i, j])))
    return tuple(sorted(pairs, key=lambda p: (p.distance, p.i, p.j)))


def threshold(distances: Tensor, labels: Sequence[int], owners: Sequence[int], share: float = 0.5) -> float:
    """Compute tau (eq. 2): `share` of the usual distance of one client's embeddings; 0 if no client has two."""
    table = distances.double()
    alike: list[Tensor] = []
    any_label: list[Tensor] = []
    for k in sorted(set(owners)):
        mine = torch.tensor([i for i, owner in enumerate(owners) if owner == k])
        y = torch.tensor([labels[i] for i in mine.tolist()])
        rows, columns = torch.triu_indices(len(mine), len(mine), 1)
        between, same = table[mine[rows], mine[columns]], y[rows] == y[columns]
        alike.append(between[same])
        any_label.append(between)
    medians = [usual(votes) for votes in (alike, any_label)]
    return share * min((median for median in medians if median is not None), default=0.0)


def usual(values: Sequence[Tensor], known: float | None = None) -> float | None:
    """Compute the median over clients of the median of each client's values; None if there are no values.

    Each client has one vote: however many values it sends, it moves the result only as far as its neighbours' values.
    The `known` value votes too, which outvotes a single dishonest client, or one of two.

    >>> usual([torch.tensor([1.0]), torch.tensor([1e9])], known=2.0)
    2.0
    """
    votes = [v.double().median() for v in values if len(v)]
    if not votes:
        return None
    if known is None:
        return float(torch.stack(votes).quantile(0.5))
    return float(torch.stack([*votes, torch.tensor(known, dtype=torch.float64)]).quantile(0.5, interpolation="lower"))


def fair(counts: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Scale clients' counts, int64 (K,), 0 to 2**53, down so that no total exceeds twice the next largest.

    >>> fair({0: torch.tensor([10, 20]), 1: torch.tensor([900, 300])})[1].tolist()
    [45, 15]
    """
    totals = {c: sum(n.tolist()) for c, n in counts.items()}
    out = {}
    for c, n in counts.items():
        most = AHEAD * max((t for other, t in totals.items() if other != c), default=totals[c])
        whole = n.tolist()
        out[c] = torch.tensor([v * most // totals[c] for v in whole]) if totals[c] > most else n
    return out


def joined(parallel: Sequence[Pair], owners: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Join parallel pairs into sets, in the order given, no client in one twice."""
    place = list(range(len(owners)))
    members = {i: {i} for i in place}
    for i, j, _ in parallel:
        a, b = place[i], place[j]
        if a == b or {owners[x] for x in members[a]} & {owners[x] for x in members[b]}:
            continue
        members[a] |= members.pop(b)
        for x in members[a]:
            place[x] = a
    return tuple(sorted(tuple(sorted(m)) for m in members.values()))


def lengths_apart(embeddings: Tensor) -> Tensor:
    """Compute Euclidean distances of embeddings (K, width), (K, K) float64; exactly 0 for equal ones."""
    v = embeddings.double()
    return torch.stack([(v - one).square().sum(1).sqrt() for one in v]) if len(v) else v.new_empty(0, 0)


def purity(embeddings: Sequence[Sequence[float]], labels: Sequence[int]) -> tuple[float, float]:
    """Compute how often the nearest other has the same label, and how often by chance; NaN if no label repeats."""
    y = torch.tensor(labels)
    others = (y[:, None] == y).sum(1).double() - 1
    near, again = lengths_apart(torch.tensor(embeddings)).fill_diagonal_(torch.inf).argmin(1), others > 0
    return float((y[near] == y)[again].double().mean()), float(others[again].mean() / (len(y) - 1))


# ---------------------------------------------------------------- what an upload may be
def faults(
    uploads: Mapping[int, tuple[Tensor, Tensor, Tensor]],
    classes: int,
    width: int | None = None,
    most: int = MOST_PER_LABEL,
    length: float | None = None,
) -> dict[int, str]:
    """Explain why some clients' uploads cannot be used, by client.

    Args:
        uploads: (embeddings, labels, counts) of each client, (K, width) finite, (K,) and (K,) int64.
        classes: Number of classes of the task.
        width: Width of an embedding; None takes the one most clients sent, in a tie the lowest client's.
        most: Most embeddings of one label from a client.
        length: Plausible length of an embedding; it votes on the usual length like a client.  Of two middle votes the
            smaller counts.
    """
    reasons: dict[int, str] = {}
    for c, (v, y, n) in uploads.items():
        if not bool(v.isfinite().all()):
            reasons[c] = "an embedding is NaN or infinite"
        elif bool(((y < 0) | (y >= classes)).any()):
            wrong = int(y[(y < 0) | (y >= classes)][0])
            reasons[c] = f"label {wrong} is outside the task's 0..{classes - 1}"
        elif bool((n < 0).any()):
            reasons[c] = f"a count is negative: {int(n.min())}"
        elif bool((n > 1 << 53).any()):  # sums over clients could overflow
            reasons[c] = f"a count is above 2**53: {int(n.max())}"
        elif len(y) and int(torch.bincount(y).max()) > most:
            reasons[c] = f"{int(torch.bincount(y).max())} embeddings of one label, {most} are allowed"
    widths = [int(v.shape[1]) for c, (v, _, _) in sorted(uploads.items()) if c not in reasons and len(v)]
    if widths:
        expected = max(widths, key=widths.count) if width is None else width
        for c, (v, _, _) in uploads.items():
            if c not in reasons and len(v) and v.shape[1] != expected:
                reasons[c] = f"embeddings of width {v.shape[1]}, expected {expected}: they belong to another prior"
    norms = {c: v.double().norm(dim=1) for c, (v, _, _) in uploads.items() if c not in reasons and len(v)}
    middle = usual(list(norms.values()), length)
    if middle is not None:
        for c, norm in norms.items():
            if float(norm.max()) > ABSURD * max(middle, 1e-6):
                reasons[c] = (
                    f"an embedding of length {float(norm.max()):.4g}, {ABSURD:g} times the median of {middle:.4g}"
                )
    return reasons
