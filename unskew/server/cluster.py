"""Partition of clients into HCCT's coalitions, from the Gram matrix of their gradients.

Y. Sun, M. Kountouris, J. Zhang, "How to Collaborate", IEEE TMC 2024 (HCCT), Algorithm 2.  Equation numbers in brackets
are the paper's; with a dash they are this file's.

Notation   g_i    gradient of client i, any length;  K = G G^T, K_ij = <g_i, g_j>;  D_i  its training examples
           C      a group;  D_C = sum_{i in C} D_i;  S_C = sum_{i in C} D_i g_i, the group's gradient times D_C
           alpha  cost of a small group, per client or one for all
Utility    u_i = -alpha_i / D_C + cos(S_C, g_i),  i in C                                          (9)
Benefit    B(A, B) = sum of u over A and B as one group, less the same as two                     (15)
Algorithm  Begin with every client alone; merge the two groups with the largest B while it is positive.
Gram       A cosine does not ask for the length of S_C, and <g_i, S_C> and |S_C|^2 are sums over K.  With

             R_AB = sum_{i in A, k in B} K_ik (D_k / |g_i| + D_i / |g_k|),  Q_AB = <S_A, S_B> = sum D_i D_k K_ik
             U_C  = -a_C / D_C + R_CC / (2 sqrt Q_CC),  a_C = sum_{i in C} alpha_i                (1')
             B    = -(a_A + a_B) / (D_A + D_B)
                    + (R_AA / 2 + R_BB / 2 + R_AB) / sqrt(Q_AA + Q_BB + 2 Q_AB) - U_A - U_B       (2')

           a benefit is O(1).  Merging adds rows and columns of R and Q, and only benefits with the new group change.
           So Algorithm 2 takes about N^2 operations after one Gram matrix, and gives the vectors' result.
Ties       Benefits within 1e-12 of each other are tied: the pair with the smallest first members is taken, a merge
           needs more than 1e-12.
Precision  Sums are float64.  A product of two float32 numbers is exact in float64, so K is right to some 1e-16 of |g_i|
           |g_j|.  Chunks and threads do not matter, and clients with equal gradients are ties, not noise.  Beyond 1e11
           products (`EXACT_UP_TO`) that is too slow: 16,384 columns at a time are then summed in float32, and these
           sums in float64.  The error of about 1e-7 then decides ties.
Departures beta of (9) is left out: a merge keeps the number of clients, so it cancels in (15).  A merge is tested
           before it is made (as printed, the best pair merges first and is tested after, so that N groups can never be
           the answer).  A client without a direction, its gradient zero or not finite, and one without examples stay
           alone.  Where the gradients of a group cancel, cosines with it are 0.
Copied     In the released code part of every group's gradient is not a mean but the first client's (`Products.copied`):
           with h_i, gradient i with that part replaced, S_C = sum D_i h_i, and (1'), (2') hold with <g_i, h_k> in R,
           <h_i, h_k> in Q and |h_i| in what cancels.
"""

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew.errors import ConfigError
from unskew.info import GroupMerge, Placement

Floats = NDArray[np.float64]
Alpha = float | tuple[float, ...] | Literal["size"]
"""Type of alpha in (9): one for all, one for each client, or alpha_i = D_i."""

TIE = 1e-12
CANCELLED = 1e-14
"""|S_C|^2 below this part of (sum D_i |g_i|)^2 is rounding, not a direction."""

EXACT_UP_TO = 10**11
SINGLE_COLUMNS = 16_384
CHUNK_BYTES = 1 << 26


# ---------------------------------------------------------------- the Gram matrix
def gram(chunks: Iterable[Tensor], n: int) -> Tensor:
    """Compute K = G G^T, (n, n) float64 on the CPU, from gradients that come some columns at a time, (n, width) each.

    Products are taken in their element type, of the upper half alone.  A row that is not finite affects its own row and
    column of K alone.
    """
    total: Tensor | None = None
    # Eight bands cost 9/16 of the whole product; below 256 rows a product is too small to be worth dividing.
    band = max(256, -(-n // 8))
    for x in chunks:
        if total is None:
            total = torch.zeros(n, n, dtype=torch.float64, device=x.device)
        for a in range(0, n, band):
            total[a : a + band, a:] += x[a : a + band] @ x[a:].T
    if total is None:
        return torch.zeros(n, n, dtype=torch.float64)
    for a in range(0, n, band):
        square = total[a : a + band, a : a + band]
        # A product's two halves may differ in the last bit.
        square.copy_(square.triu() + square.triu(1).T)
        total[a + band :, a : a + band] = total[a : a + band, a + band :].T
    return total.cpu()


def displacements(
    starts: Sequence[Mapping[str, Tensor]],
    ends: Sequence[Mapping[str, Tensor]],
    names: Sequence[str],
    *,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[Tensor]:
    """Yield clients' `starts - ends` over the named tensors, (clients, width) of at most `chunk_bytes` at a time."""
    n = len(ends)
    wide = sum(ends[0][k].numel() for k in names) if n else 0
    exact = n * n * wide <= EXACT_UP_TO
    dtype = torch.float64 if exact else torch.float32
    width = max(1, chunk_bytes // (n * dtype.itemsize)) if n else 1
    if not exact:
        width = min(width, SINGLE_COLUMNS)
    for name in names:
        pairs = [(s[name].reshape(-1), e[name].reshape(-1)) for s, e in zip(starts, ends, strict=True)]
        for i in range(0, len(pairs[0][0]), width):
            yield torch.stack([s[i : i + width].to(dtype) - e[i : i + width].to(dtype) for s, e in pairs])


def cosines(k: Tensor) -> Tensor:
    """Compute the cosine of every two gradients, (n, n); NaN where one has no direction."""
    length = k.diagonal().sqrt()
    length = torch.where(length.isfinite() & (length > 0), length, torch.nan)
    return (k / length / length[:, None]).clamp(-1.0, 1.0)


@dataclass(frozen=True)
class Products:
    """Inner products behind the utilities, (clients, clients) float64 each.

    Attributes:
        own: <g_i, g_k>, the Gram matrix of the gradients.
        toward: <g_i, h_k>, where h_k is what client k adds to its group's gradient.
        among: <h_i, h_k>.
    """

    own: Tensor
    toward: Tensor
    among: Tensor

    @classmethod
    def of(cls, gram: Tensor) -> "Products":
        """Return the paper's products: a client adds its gradient to its group's."""
        return cls(gram, gram, gram)

    @classmethod
    def copied(cls, gram: Tensor, part: Tensor) -> "Products":
        """Return the released code's products: a part of every group's gradient is the very first client's.

        Both are Gram matrices, of whole gradients and of that part; the first client is the first with finite entries.
        """
        averaged = gram - part
        finite = part.diagonal().isfinite().nonzero()
        first = int(finite[0]) if len(finite) else 0
        return cls(gram, averaged + part[:, first : first + 1], averaged + part[first, first])

    def rows(self, rows: Sequence[int]) -> "Products":
        """Return the products of some clients."""
        return Products(*(t[rows][:, rows] for t in (self.own, self.toward, self.among)))


# ---------------------------------------------------------------- results
@dataclass(frozen=True)
class Grouping:
    """Partition of the clients into groups.

    Attributes:
        groups: Members ascending, groups in the order of their smallest members.
        history: The merges that led there, first to last.
        beyond: The next merges, down to one group, if asked for: the rest of the dendrogram.
        alone: Clients that could not be compared, and why.
    """

    groups: tuple[tuple[int, ...], ...]
    history: tuple[GroupMerge, ...]
    beyond: tuple[GroupMerge, ...]
    alone: dict[int, str]


# ---------------------------------------------------------------- Algorithm 2
def partition(
    products: Tensor | Products,
    n: Sequence[int],
    alpha: Alpha,
    *,
    groups: int | None = None,
    whole: bool = False,
) -> Grouping:
    """Run Algorithm 2.

    Args:
        products: Gram matrix of the gradients, (clients, clients), or several inner products of them.
        n: Training examples of each client.
        alpha: alpha of (9); finite, >= 0.
        groups: Fixed number of groups to merge to, whatever the benefits; incomparable clients count, so there may be
            more.
        whole: Also report the merges beyond the result.

    Raises:
        ConfigError: If alpha is out of range.

    >>> k = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> partition(k, [10, 10, 10], 1.0).groups
    ((0, 1), (2,))
    """
    count, products = len(n), _products(products)
    weight = alphas(alpha, n)
    alone = {i: why for i in range(count) if (why := _no_direction(float(products.own[i, i]), n[i]))}
    used = np.array([i for i in range(count) if i not in alone], dtype=np.int64)
    if not len(used):
        return Grouping(tuple((i,) for i in range(count)), (), (), alone)
    rest = sum(_alone(weight[i], n[i]) for i in alone)
    state = _Groups(products.rows(used.tolist()), np.array([float(n[i]) for i in used]), weight[used])
    target = 1 if groups is None else max(1, groups - len(alone))
    merges, beyond = list[GroupMerge](), list[GroupMerge]()
    kept: list[list[int]] | None = None
    for left in range(len(used), 1, -1):
        i, j, benefit = state.best()
        if kept is None and (left <= target or (groups is None and benefit <= TIE)):
            kept = [[*g] for g in state.members]
            if not whole:
                break
        state.merge(i, j)
        merge = GroupMerge((int(used[i]), int(used[j])), benefit, rest + state.utility)
        (merges if kept is None else beyond).append(merge)
    together = (used[g].tolist() for g in kept or state.members if g)
    ordered = sorted([*([i] for i in alone), *map(sorted, together)])
    return Grouping(tuple(map(tuple, ordered)), tuple(merges), tuple(beyond), alone)


def insert(
    products: Tensor | Products,
    n: Sequence[int],
    alpha: Alpha,
    groups: Sequence[Sequence[int]],
    arrivals: Sequence[int],
) -> tuple[tuple[tuple[int, ...], ...], tuple[Placement, ...]]:
    """Place arrivals one by one into groups that otherwise stay unchanged (15), (16).

    Each joins the group with the largest benefit if that is positive, else it starts its own group, which the next may
    join.  Among benefits within 1e-12 of each other the group with the smallest member wins.  Groups with an
    incomparable member are not joined.

    Args:
        products, n, alpha: Arguments as in `partition`, for all clients.
        groups: Groups of row numbers.
        arrivals: Row numbers that are in no group.

    Returns:
        The groups with the arrivals in them, each in order, and the placement of each arrival.
    """
    products, weight = _products(products), alphas(alpha, n)
    own = products.own
    ordered = [sorted(g) for g in sorted(map(sorted, groups))]

    def total(members: Sequence[int]) -> float:
        return sum(utilities(products, n, weight, [members]).values())

    placed = []
    for c in arrivals:
        best, gain = None, TIE
        if not _no_direction(float(own[c, c]), n[c]):
            single = total([c])
            for g in sorted(ordered):
                if any(_no_direction(float(own[i, i]), n[i]) for i in g):
                    continue
                benefit = total([*g, c]) - total(g) - single
                if benefit > gain + (TIE if best is not None else 0.0):
                    best, gain = g, benefit
        placed.append(Placement(c, None if best is None else best[0], 0.0 if best is None else gain))
        if best is None:
            ordered.append([c])
        else:
            bisect.insort(best, c)
    return tuple(sorted(tuple(sorted(g)) for g in ordered)), tuple(placed)


def utilities(
    products: Tensor | Products,
    n: Sequence[int],
    alpha: "Alpha | Floats",
    groups: Iterable[Sequence[int]],
) -> dict[int, float]:
    """Compute the utility of each client in these groups by (9), as Algorithm 2 does; -inf without examples."""
    weight = alpha if isinstance(alpha, np.ndarray) else alphas(alpha, n)
    out: dict[int, float] = {}
    products = _products(products)
    squares, toward, among = products.own.diagonal().numpy(), products.toward.numpy(), products.among.numpy()
    for g in groups:
        rows = np.array(g, dtype=np.int64)
        if len(rows) == 1:  # a single client agrees with itself, whatever its gradient
            out[int(rows[0])] = _alone(weight[rows[0]], n[int(rows[0])])
            continue
        d = np.array([float(n[i]) for i in g])
        block, own = among[np.ix_(rows, rows)], squares[rows]
        scale = (d @ np.sqrt(block.diagonal())) ** 2
        similar = _similar(toward[np.ix_(rows, rows)] @ d, d @ block @ d, own, scale)
        out.update({int(i): float(s - weight[i] / d.sum()) for i, s in zip(rows, similar, strict=True)})
    return out


def restless(
    products: Tensor | Products, n: Sequence[int], alpha: "Alpha | Floats", groups: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """The clients with a larger utility in another group, or alone: the partition is not stable.

    Each is asked alone by (9), all others staying; the group that it left does not matter to it.

    >>> k = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> restless(k, [10, 10, 10], 1.0, [[0, 2], [1]])
    (0, 2)
    """
    products, weight = _products(products), alpha if isinstance(alpha, np.ndarray) else alphas(alpha, n)
    own, toward, among = products.own.diagonal().numpy(), products.toward.numpy(), products.among.numpy()
    d = np.array([float(k) for k in n])
    best = np.array([_alone(a, k) for a, k in zip(weight, n, strict=True)])
    for rows in (np.array(g, dtype=np.int64) for g in groups):
        inner = toward[:, rows] @ d[rows] + d * toward.diagonal()
        square = d[rows] @ among[np.ix_(rows, rows)] @ d[rows] + 2.0 * d * (among[:, rows] @ d[rows])
        square = square + d * d * among.diagonal()
        scale = (d[rows] @ np.sqrt(among.diagonal()[rows]) + d * np.sqrt(among.diagonal())) ** 2
        apart = np.isfinite(own) & (own > 0.0) & np.isfinite(inner) & np.isfinite(square)
        apart[rows] = False
        similar = _similar(inner[apart], square[apart], own[apart], scale[apart])
        best[apart] = np.maximum(best[apart], similar - weight[apart] / (d[rows].sum() + d[apart]))
    now = utilities(products, n, weight, groups)
    return tuple(sorted(i for i, u in now.items() if best[i] > u + TIE))


def leave(
    products: Tensor | Products,
    n: Sequence[int],
    alpha: Alpha,
    groups: Sequence[Sequence[int]],
) -> tuple[list[list[int]], tuple[int, ...]]:
    """Take clients worse off than alone out of their groups, the worst first, until none is left.

    Returns:
        The groups, each rational for all its members, and the clients that left, now alone.
    """
    kept, left, weight = [list(g) for g in groups], list[int](), alphas(alpha, n)
    for g in [g for g in kept if len(g) > 1]:
        while len(g) > 1:
            by = utilities(products, n, weight, [g])
            loss = {i: _alone(weight[i], n[i]) - u for i, u in by.items()}
            worst = max(loss, key=lambda i: loss[i])
            if loss[worst] <= TIE:
                break
            g.remove(worst)
            left.append(worst)
    return [*kept, *([i] for i in left)], tuple(left)


def _products(products: Tensor | Products) -> Products:
    return products if isinstance(products, Products) else Products.of(products.cpu())


def alphas(alpha: Alpha, n: Sequence[int]) -> Floats:
    """Return alpha_i of each client, (clients,).

    Raises:
        ConfigError: If one is negative or not finite, or their number is not the clients'.
    """
    check_alpha(alpha)
    if isinstance(alpha, str):
        return np.array([float(d) for d in n])
    if isinstance(alpha, tuple):
        if len(alpha) != len(n):
            raise ConfigError(f"alpha must be one number, or one for each of {len(n)} clients, got {len(alpha)}")
        return np.array(alpha, dtype=np.float64)
    return np.full(len(n), float(alpha))


def check_alpha(alpha: Any) -> None:
    """Refuse an invalid alpha.

    Raises:
        ConfigError: If one is negative or not finite, or a word other than "size".
    """
    if alpha == "size":
        return
    for value in alpha if isinstance(alpha, tuple) else (alpha,):
        if isinstance(value, str) or not (math.isfinite(value) and value >= 0.0):
            hint = '; the released code\'s -1 is alpha = "size"' if value == -1 else ""
            raise ConfigError(f"alpha must be finite and >= 0, got {value}{hint}")


def _no_direction(square: float, n: int) -> str | None:
    """Explain why a client cannot be compared with others, if it cannot."""
    if not math.isfinite(square):
        return "its update is not finite"
    if square <= 0.0:
        return "its update is zero"
    return None if n > 0 else "it has no training examples"


def _alone(alpha: float, n: int) -> float:
    return 1.0 - alpha / n if n > 0 else -math.inf


def _similar(inner: Any, square: Any, own: Any, scale: Any) -> Floats:
    """Compute the cosine of clients with their groups, elementwise.

    Args:
        inner: <g_i, S_C>.
        square: |S_C|^2.
        own: |g_i|^2.
        scale: (sum over C of D_k |g_k|)^2.
    """
    there = square > CANCELLED * scale
    cosines: Floats = np.where(there, inner / np.sqrt(own * np.where(there, square, 1.0)), 0.0)
    return cosines


class _Groups:
    """The groups of a partition under construction; each is identified by the row of its first member."""

    def __init__(self, products: Products, d: Floats, a: Floats) -> None:
        toward, among = products.toward.numpy(), products.among.numpy()
        length = np.sqrt(products.own.diagonal().numpy())
        self.members = [[i] for i in range(len(d))]
        self.a, self.d, self.there = a.copy(), d.copy(), np.ones(len(d), dtype=bool)
        self.length = d * np.sqrt(among.diagonal())  # sum of D_i |h_i|
        self.r = toward * (d[None, :] / length[:, None])
        self.r += self.r.T.copy()
        self.q = among * np.outer(d, d)
        # Diagonals apart from the matrices: read from them, every number would be in a cache line of its own.
        self.rr, self.qq = self.r.diagonal().copy(), self.q.diagonal().copy()
        self.own = np.ones(len(d)) - a / d
        self.benefit = np.full((len(d), len(d)), -np.inf)  # above the diagonal
        self.at, self.largest = np.full(len(d), -1), np.full(len(d), -np.inf)
        self.stale = np.zeros(len(d), dtype=bool)
        for i in range(len(d)):
            self.benefit[i, i + 1 :] = self.benefits(i)[i + 1 :]
            self.search(i)

    @property
    def utility(self) -> float:
        """Compute the sum of all utilities."""
        return float(self.own[self.there].sum())

    def benefits(self, i: int) -> Floats:
        """Compute B of group `i` with every group (2'); -inf with itself and former groups."""
        data = -(self.a[i] + self.a) / (self.d[i] + self.d)
        benefits: Floats = np.where(self.there, data + self.similar(i) - self.own[i] - self.own, -np.inf)
        benefits[i] = -np.inf
        return benefits

    def similar(self, i: int) -> Floats:
        """Compute the sum of members' cosines in the union of group `i` with every group."""
        inner = 0.5 * self.rr[i] + 0.5 * self.rr + self.r[i]
        square = self.qq[i] + self.qq + 2.0 * self.q[i]
        there = square > CANCELLED * (self.length[i] + self.length) ** 2
        cosines: Floats = np.where(there, inner / np.sqrt(np.where(there, square, 1.0)), 0.0)
        return cosines

    def best(self) -> tuple[int, int, float]:
        """Find the pair with the largest benefit, and that benefit; a tie goes to the smallest members."""
        while True:
            least = self.largest.max() - TIE
            if not len(rows := np.flatnonzero(self.stale & (self.largest >= least))):
                break
            for row in rows.tolist():
                self.search(row)
        i = int(np.argmax(self.largest >= least))
        j = int(np.argmax(self.benefit[i] >= least))
        return i, j, float(self.benefit[i, j])

    def merge(self, i: int, j: int) -> None:
        """Merge `j` into `i`, i < j."""
        self.own[i] += self.own[j] + self.benefit[i, j]
        for table in (self.r, self.q):
            table[i] += table[j]
            table[:, i] += table[:, j]
        self.rr[i], self.qq[i] = self.r[i, i], self.q[i, i]
        for vector in (self.a, self.d, self.length):
            vector[i] += vector[j]
        self.members[i] += self.members[j]
        self.members[j], self.there[j] = [], False
        self.benefit[j, :] = self.benefit[:j, j] = -np.inf
        new = self.benefits(i)
        self.benefit[i, i + 1 :] = new[i + 1 :]
        self.benefit[:i, i] = new[:i]
        # What a row whose largest benefit was with one of the two had is a bound on what it has now.
        self.stale |= (self.at == i) | (self.at == j)
        self.largest[:i] = np.maximum(self.largest[:i], new[:i])
        self.at[:i][new[:i] >= self.largest[:i]] = i
        self.search(i)
        self.search(j)

    def search(self, i: int) -> None:
        """Find the largest benefit of row `i`."""
        self.at[i] = i + np.argmax(self.benefit[i, i:])
        self.largest[i], self.stale[i] = self.benefit[i, self.at[i]], False
