"""HCCT's partition: the printed algorithm on vectors, brute force, limits, ties, and what cannot be compared."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unskew.keys import Key
from unskew.server.cluster import (
    CANCELLED,
    TIE,
    Floats,
    Products,
    alphas,
    displacements,
    gram,
    insert,
    leave,
    partition,
    restless,
    utilities,
)


def of(g: Tensor | Sequence[Sequence[float]]) -> Tensor:
    rows = torch.as_tensor(g, dtype=torch.float64)
    return gram([rows], len(rows))


def total(k: Tensor | Products, n: Sequence[int], alpha: Any, members: Sequence[int]) -> float:
    return sum(utilities(k, n, alpha, [members]).values())


def random_case(seed: int, clients: int, wide: int) -> tuple[Tensor, list[int]]:
    """Gradients around a common direction of random strength, so that small and large groups both occur."""
    g = (Key(seed) / "case").generator()
    common = torch.randn(wide, generator=g, dtype=torch.float64)
    strength = float(torch.randint(0, 4, (), generator=g))
    rows = torch.randn(clients, wide, generator=g, dtype=torch.float64) + strength * common
    return rows, torch.randint(1, 300, (clients,), generator=g).tolist()


# ---------------------------------------------------------------- equality with the paper
def naive(
    g: Floats, n: Sequence[int], alpha: Sequence[float], groups: int | None = None
) -> tuple[tuple[int, ...], ...]:
    """Algorithm 2 as printed, on the vectors themselves, except that a merge is tested before it is made."""

    def cosines(members: Sequence[int]) -> float:
        """Sum of the cosines of these members with their mean."""
        total = sum(n[k] for k in members)
        mean = sum(n[k] / total * g[k] for k in members)
        length = float(np.linalg.norm(mean))
        if length <= CANCELLED**0.5 * sum(n[k] / total * float(np.linalg.norm(g[k])) for k in members):
            return 0.0
        return sum(float(mean @ g[i]) / (length * float(np.linalg.norm(g[i]))) for i in members)

    def utility(members: Sequence[int]) -> float:
        return cosines(members) - sum(alpha[i] for i in members) / sum(n[k] for k in members)

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


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32),
    clients=st.integers(1, 5),
    wide=st.integers(1, 5),
    alpha=st.sampled_from([0.0, 0.1, 1.0, 10.0, 50.0, 100.0, 400.0, "size", "each"]),
    groups=st.one_of(st.none(), st.none(), st.integers(1, 5)),
)
@pytest.mark.seconds
def test_it_is_the_printed_algorithm_on_vectors(
    seed: int, clients: int, wide: int, alpha: Any, groups: int | None
) -> None:
    g, n = random_case(seed, clients, wide)
    if alpha == "each":
        alpha = tuple(torch.rand(clients, generator=(Key(seed) / "alpha").generator()).mul(200).tolist())
    groups = None if groups is None else min(groups, clients)
    found = partition(of(g), n, alpha, groups=groups, whole=seed % 2 == 0)
    assert found.groups == naive(g.numpy(), n, alphas(alpha, n).tolist(), groups)


@given(seed=st.integers(0, 2**32), alpha=st.sampled_from([1.0, 50.0, 1e3, 1e6]))
@settings(max_examples=30, deadline=None)
@pytest.mark.seconds
def test_benefits_that_are_kept_are_those_that_would_be_found_anew(seed: int, alpha: float) -> None:
    """Greedy on utilities from scratch, at sizes where groups grow large and most rows of benefits change."""
    g, n = random_case(seed, 16, 6)
    k = of(g)
    found = [[i] for i in range(16)]
    for merge in partition(k, n, alpha, groups=1).history:
        worth = [total(k, n, alpha, m) for m in found]
        benefit = {
            (x, y): total(k, n, alpha, [*found[x], *found[y]]) - worth[x] - worth[y]
            for x, y in itertools.combinations(range(len(found)), 2)
        }
        x, y = max(benefit, key=lambda p: benefit[p])
        assert merge.merge == (found[x][0], found[y][0])
        assert merge.benefit == pytest.approx(benefit[x, y], abs=1e-8)
        found[x] += found.pop(y)
        everybody = utilities(k, n, alpha, found)
        assert merge.utility == pytest.approx(sum(everybody.values()), rel=1e-9, abs=1e-6)


# ---------------------------------------------------------------- worked
def test_two_clients_merge_from_the_crossover_on() -> None:
    """Equal D and cosine c: each has cos = sqrt((1 + c) / 2) with the group, so B = alpha / D - (2 - sqrt(2 + 2c)).

    D = 100, c = .5: 100 (2 - sqrt 3) = 26.79.
    """
    k = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    assert partition(k, [100, 100], 26.79).groups == ((0,), (1,))
    assert partition(k, [100, 100], 26.80).groups == ((0, 1),)
    (merge,) = partition(k, [100, 100], 50.0).history
    assert merge.benefit == pytest.approx(0.5 - 2 + math.sqrt(3))
    assert merge.utility == pytest.approx(-0.5 + math.sqrt(3))


def test_opposite_gradients_leave_a_group_without_direction() -> None:
    """S = 0: cosines are 0, whatever rounding makes of |S|^2."""
    g = torch.randn(1, 50, generator=Key(3).generator(), dtype=torch.float64)
    k = of(torch.cat([g, -g / 3]))
    assert utilities(k, [10, 30], 0.0, [[0, 1]]) == {0: 0.0, 1: 0.0}
    assert partition(k, [10, 30], 1.0).groups == ((0,), (1,))


# ---------------------------------------------------------------- invariants
def test_identical_gradients_are_one_group_for_any_alpha_above_zero() -> None:
    k = of(torch.ones(7, 3))
    n = [3, 5, 8, 1, 9, 2, 4]
    assert partition(k, n, 1e-6).groups == (tuple(range(7)),)
    assert len(partition(k, n, 0.0).groups) == 7


# ---------------------------------------------------------------- ties, fixed groups, the whole tree
def test_ties_do_not_depend_on_rounding() -> None:
    """Equal gradients whose Gram entries differ in the last bits, as another order of summation leaves them."""
    k = of(torch.ones(5, 3) / 3)
    noise = 1e-15 * torch.randn(5, 5, generator=Key(1).generator(), dtype=torch.float64)
    first, second = (partition(t, [7] * 5, 5.0).history for t in (k, k + noise + noise.T))
    assert [m.merge for m in first] == [m.merge for m in second] == [(0, j) for j in range(1, 5)]


@pytest.mark.parametrize("groups", range(1, 9))
def test_so_many_groups_as_are_asked_for(groups: int) -> None:
    """Merging on where no merge gains, stopping short where one would: the same tree, cut elsewhere."""
    g, n = random_case(11, 8, 4)
    k = of(g)
    tree = partition(k, n, 60.0, whole=True)
    cut = partition(k, n, 60.0, groups=groups, whole=True)
    assert len(cut.groups) == groups
    assert cut.history + cut.beyond == tree.history + tree.beyond
    assert len(tree.history + tree.beyond) == 7
    assert all(m.benefit > TIE for m in tree.history)
    assert tree.beyond[0].benefit <= TIE
    assert partition(k, n, 60.0).beyond == ()


# ---------------------------------------------------------------- what cannot be compared
def test_who_cannot_be_compared_stays_alone_and_the_others_do_not_notice() -> None:
    good, n = random_case(2, 4, 3)
    bad = torch.zeros(7, 3, dtype=torch.float64)
    bad[[0, 2, 4, 6]] = good
    bad[1, 1], bad[5] = math.nan, torch.tensor([math.inf, 0.0, 1.0])
    sizes = [n[0], 50, n[1], 50, n[2], 50, n[3]]
    found = partition(of(bad), sizes, 100.0)
    alone = {1: "its update is not finite", 3: "its update is zero", 5: "its update is not finite"}
    assert found.alone == alone
    back = {0: 0, 2: 1, 4: 2, 6: 3}
    assert [tuple(back[i] for i in m) for m in found.groups if m[0] in back] == list(
        partition(of(good), n, 100.0).groups
    )
    assert all((i,) in found.groups for i in alone)


def by_definition(g: Tensor, h: Tensor, n: Sequence[int], alpha: float, members: Sequence[int]) -> list[float]:
    """(9) with the mean of the members' h for a group's gradient; a single client agrees with itself."""
    if len(members) == 1:
        return [1.0 - alpha / n[members[0]]]
    d = sum(n[i] for i in members)
    group = torch.stack([n[i] * h[i] for i in members]).sum(0) / d
    return [float(g[i] @ group / (g[i].norm() * group.norm())) - alpha / d for i in members]


@given(seed=st.integers(0, 2**32), clients=st.integers(2, 7), alpha=st.sampled_from([0.0, 10.0, 100.0]))
def test_a_part_of_every_groups_gradient_may_be_the_first_clients(seed: int, clients: int, alpha: float) -> None:
    g, n = random_case(seed, clients, 6)
    part = g.clone()
    part[:, 2:] = 0.0
    products = Products.copied(of(g), of(part))
    h = torch.cat([g[:1, :2].expand(clients, 2), g[:, 2:]], 1)
    result = partition(products, n, alpha)
    for members in (*result.groups, tuple(range(clients))):
        expected = by_definition(g, h, n, alpha, members)
        assert list(utilities(products, n, alpha, [members]).values()) == pytest.approx(expected, abs=1e-9)
    if result.history:
        of_all = sum(sum(by_definition(g, h, n, alpha, members)) for members in result.groups)
        assert result.history[-1].utility == pytest.approx(of_all, abs=1e-8)
    pairs = [(a, b) for a in result.groups for b in result.groups if a < b]
    for a, b in pairs:
        gain = total(products, n, alpha, [*a, *b]) - total(products, n, alpha, a) - total(products, n, alpha, b)
        assert gain <= 1e-9


def test_a_client_that_cannot_be_compared_is_not_the_first_whose_part_is_copied() -> None:
    g = torch.tensor([[torch.nan, 0.0], [1.0, 1.0], [1.0, 1.0]])
    products = Products.copied(of(g), of(g * torch.tensor([1.0, 0.0])))
    assert partition(products, [1, 1, 1], 1.0).groups == ((0,), (1, 2))


# ---------------------------------------------------------------- arrivals
@given(seed=st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_its_place_is_the_best_of_all_by_definition(seed: int) -> None:
    g, n = random_case(seed, 7, 3)
    k = of(g)
    old = partition(k[:6, :6], n[:6], 30.0).groups
    benefit = {m: total(k, n, 30.0, [*m, 6]) - total(k, n, 30.0, m) - total(k, n, 30.0, [6]) for m in old}
    best = max(benefit, key=lambda m: benefit[m])
    _, (placed,) = insert(k, n, 30.0, old, [6])
    assert placed.group == (best[0] if benefit[best] > TIE else None)
    if placed.group is not None:
        assert placed.benefit == pytest.approx(benefit[best], abs=1e-9)


def test_arrivals_may_join_each_other_and_bad_ones_nobody() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [math.nan, 0.0], [0.0, 0.0]])
    groups, placed = insert(of(rows), [10] * 5, 1.0, [[0]], [1, 2, 3, 4])
    assert groups == ((0,), (1, 2), (3,), (4,))
    assert [p.group for p in placed] == [None, 1, None, None]


def test_of_equal_groups_an_arrival_takes_the_one_with_the_smallest_member() -> None:
    groups, _ = insert(of(torch.ones(3, 2)), [10] * 3, 1.0, [[1], [0]], [2])
    assert groups == ((0, 2), (1,))


# ---------------------------------------------------------------- the Gram matrix
def models(clients: int, dtype: torch.dtype) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    g = Key(9).generator()
    start = {"a": torch.randn(7, 5, generator=g, dtype=dtype), "b": torch.randn(3, generator=g, dtype=dtype)}
    ends = [{k: v + torch.randn(v.shape, generator=g, dtype=dtype) for k, v in start.items()} for _ in range(clients)]
    return [start] * clients, ends


@pytest.mark.parametrize("clients", [1, 5, 600])
@pytest.mark.parametrize("chunk", [8, 5000, 1 << 26])
def test_the_gram_matrix_does_not_depend_on_chunks_or_bands(clients: int, chunk: int) -> None:
    starts, ends = models(clients, torch.float32)
    rows = torch.stack([torch.cat([(s[k] - e[k]).reshape(-1) for k in s]) for s, e in zip(starts, ends, strict=True)])
    k = gram(displacements(starts, ends, ["a", "b"], chunk_bytes=chunk * clients), clients)
    assert k.dtype == torch.float64
    torch.testing.assert_close(k, rows.double() @ rows.double().T, rtol=1e-6, atol=1e-5)
    assert torch.equal(k, k.T)


# ---------------------------------------------------------------- who would rather be elsewhere
@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**32),
    clients=st.integers(1, 6),
    alpha=st.sampled_from([0.0, 1.0, 20.0, 100.0, "size"]),
    cut=st.integers(0, 719),
)
def test_who_would_rather_be_elsewhere_is_found_by_asking_each(seed: int, clients: int, alpha: Any, cut: int) -> None:
    """Against the definition: the client's utility alone, and in every other group with it in it."""
    rows, n = random_case(seed, clients, 3)
    k, names = of(rows), [(cut // 6**i) % 3 for i in range(clients)]
    groups = [g for g in ([i for i in range(clients) if names[i] == name] for name in range(3)) if g]
    now = utilities(k, n, alpha, groups)

    def elsewhere(i: int) -> float:
        joined = (utilities(k, n, alpha, [[*g, i]])[i] for g in groups if i not in g)
        return max((utilities(k, n, alpha, [[i]])[i], *joined))

    assert restless(k, n, alpha, groups) == tuple(i for i in range(clients) if elsewhere(i) > now[i] + TIE)


def test_who_is_worse_off_than_alone_leaves() -> None:
    """Two equal gradients, (1, 0) and (1, 0), and (-1, 1) in one group, ten examples each, alpha 1.

    S = 10 (1, 1): cosines 1 / sqrt 2 = .707, .707 and 0, less 1 / 30; alone 1 - 1 / 10 = .9.  The third loses most and
    leaves; the first two then have cosine 1 and utility 1 - 1 / 20 > .9, and stay.
    """
    k = of([[1.0, 0.0], [1.0, 0.0], [-1.0, 1.0]])
    assert leave(k, [10, 10, 10], 1.0, [[0, 1, 2]]) == ([[0, 1], [2]], (2,))
    assert leave(k, [10, 10, 10], 1.0, [[0, 1], [2]]) == ([[0, 1], [2]], ())
