"""Time to partition clients into groups: HCCT's Algorithm 2 from the Gram matrix, and as printed.

`naive` is Algorithm 2 on the vectors themselves: every pass tries every pair of groups, averages its gradients again
and takes every cosine.  Tests also compare the fast form with it.  Gradients are simulated: groups of ten clients
around a common direction.  They are made in chunks, which is not timed, as a thousand clients of a million parameters
do not fit into memory.
"""

import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from unskew.bench.toolkit import BenchRow, Say, threads
from unskew.decide.forecast.measure import timed
from unskew.keys import Key
from unskew.machine import cores, peak_resident
from unskew.server.cluster import CANCELLED, CHUNK_BYTES, EXACT_UP_TO, SINGLE_COLUMNS, TIE, Floats, gram, partition

ALPHA = 100.0
NAIVE = (32, 20_000)
"""Clients and parameters at which the printed algorithm ends in some seconds."""


def naive(
    g: Floats, n: Sequence[int], alpha: Sequence[float], groups: int | None = None, leave_one_out: bool = False
) -> tuple[tuple[int, ...], ...]:
    """Algorithm 2 as printed, except that a merge is tested before it is made.

    Args:
        g: Gradients, (clients, parameters).
        n: Training examples of each client.
        alpha: alpha_i of each client.
        groups: Number of groups to go on merging to, or to stop at.
        leave_one_out: Compare each client with the others of its group.
    """

    def cosines(members: Sequence[int], of: Sequence[int]) -> float:
        """Sum of the cosines of some clients with the mean of these members."""
        total = sum(n[k] for k in members)
        mean = sum(n[k] / total * g[k] for k in members)
        length = float(np.linalg.norm(mean))
        if length <= CANCELLED**0.5 * sum(n[k] / total * float(np.linalg.norm(g[k])) for k in members):
            return 0.0
        return sum(float(mean @ g[i]) / (length * float(np.linalg.norm(g[i]))) for i in of)

    def utility(members: Sequence[int]) -> float:
        if leave_one_out and len(members) > 1:
            similar = sum(cosines([k for k in members if k != i], [i]) for i in members)
        else:
            similar = cosines(members, members)
        return similar - sum(alpha[i] for i in members) / sum(n[k] for k in members)

    merged: list[list[int]] = [[i] for i in range(len(n))]
    while len(merged) > 1:
        best, pair = -np.inf, (0, 1)
        for x in range(len(merged)):
            for y in range(x + 1, len(merged)):
                benefit = utility([*merged[x], *merged[y]]) - utility(merged[x]) - utility(merged[y])
                if benefit > best + TIE:
                    best, pair = benefit, (x, y)
        if (len(merged) <= groups) if groups is not None else (best <= TIE):
            break
        merged[pair[0]] += merged.pop(pair[1])
    return tuple(sorted(tuple(sorted(members)) for members in merged))


def made_up(clients: int, parameters: int, width: int, dtype: torch.dtype, noise: float = 1.0) -> Iterator[Tensor]:
    """Columns of gradients, (clients, width): ten clients around each of `clients / 10` directions."""
    centre = torch.arange(clients) % max(1, clients // 10)
    for start in range(0, parameters, width):
        key, here = Key(0) / "gradients" / start, min(width, parameters - start)
        middles = torch.randn(int(centre.max()) + 1, here, generator=(key / "middle").generator())
        own = torch.randn(clients, here, generator=(key / "own").generator())
        yield own.mul_(noise).add_(middles[centre]).to(dtype)


def sizes(clients: int) -> list[int]:
    """Made-up training examples: 50 to 500."""
    return torch.randint(50, 501, (clients,), generator=(Key(0) / "sizes").generator()).tolist()


def measure(clients: int = 1000, parameters: int = 1_000_000, say: Say = print) -> list[BenchRow]:
    """Measure, as rows of the benchmark's JSON, the given size, and one at which the printed algorithm ends."""
    with threads(cores()):
        return [*_ours(clients, parameters, say), *_beside_naive(say)]


def _ours(clients: int, parameters: int, say: Say) -> list[BenchRow]:
    case = f"n{clients}/m{parameters}"
    exact = clients**2 * parameters <= EXACT_UP_TO
    dtype = torch.float64 if exact else torch.float32
    width = max(1, CHUNK_BYTES // (clients * dtype.itemsize))
    width = width if exact else min(width, SINGLE_COLUMNS)
    making = 0.0

    def chunks() -> Iterator[Tensor]:
        nonlocal making
        began = time.perf_counter()
        for chunk in made_up(clients, parameters, width, dtype):
            making += time.perf_counter() - began
            yield chunk
            began = time.perf_counter()

    began = time.perf_counter()
    k = gram(chunks(), clients)
    spent = time.perf_counter() - began - making
    began = time.perf_counter()
    chosen = partition(k, sizes(clients), ALPHA)
    agglomeration = time.perf_counter() - began
    say(
        f"{case}: Gram matrix {spent:.2f} s ({'float64' if exact else 'float32 products, float64 sums'}), "
        f"partition {agglomeration:.3f} s, {len(chosen.groups)} groups; the gradients took {making:.1f} s to make"
    )
    row = {"case": case, "unit": "s", "contender": "gram"}
    return [
        {**row, "what": "gram", "value": spent},
        {**row, "what": "partition", "value": agglomeration},
        {**row, "what": "gram_and_partition", "value": spent + agglomeration},
        {**row, "what": "groups", "value": float(len(chosen.groups)), "unit": "1"},
        {**row, "what": "peak_resident", "value": peak_resident() / 1e6, "unit": "MB"},
    ]


def _beside_naive(say: Say) -> list[BenchRow]:
    clients, parameters = NAIVE
    case, n = f"n{clients}/m{parameters}", sizes(clients)
    g = torch.cat(list(made_up(clients, parameters, parameters, torch.float64)), dim=1)
    ours, theirs = partition(gram([g], clients), n, ALPHA).groups, naive(g.numpy(), n, [ALPHA] * clients)
    if ours != theirs:
        raise AssertionError(f"the partition of {case} is {ours}, printed Algorithm 2 finds {theirs}")
    fast = min(timed(lambda: partition(gram([g], clients), n, ALPHA)) for _ in range(5))
    slow = min(timed(lambda: naive(g.numpy(), n, [ALPHA] * clients)) for _ in range(2))
    say(f"{case}: {fast:.4f} s, as printed {slow:.1f} s, the same {len(theirs)} groups")
    row = {"case": case, "what": "gram_and_partition", "unit": "s", "against": "naive"}
    return [
        {**row, "contender": "naive", "value": slow, "ratio": 1.0},
        {**row, "contender": "gram", "value": fast, "ratio": slow / fast},
    ]
