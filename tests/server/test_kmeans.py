"""Clusters, and how many there should be."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unskew.keys import Key
from unskew.server.kmeans import count_by_silhouette, kmeans, silhouette

points = st.integers(1, 40).flatmap(
    lambda n: st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=n, max_size=n)
)


def blobs(sizes: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Groups of points around (0, 0), (20, 0), (40, 0), ..., each within about 2 of its middle."""
    g = Key(seed).generator()
    return torch.cat([torch.randn(n, 2, generator=g) / 2 + torch.tensor([20.0 * i, 0.0]) for i, n in enumerate(sizes)])


def test_separate_groups_are_found_and_numbered_by_size() -> None:
    x = blobs((10, 30, 20))
    assert kmeans(x, 3, Key(1)).tolist() == [2] * 10 + [0] * 30 + [1] * 20


@given(points, st.integers(1, 6), st.integers(0, 50))
def test_every_point_has_a_cluster_and_no_cluster_is_empty(rows: list[tuple[int, int]], k: int, seed: int) -> None:
    x = torch.tensor(rows, dtype=torch.float32)
    found = kmeans(x, k, Key(seed))
    sizes = torch.bincount(found).tolist()
    assert len(found) == len(rows)
    assert 1 <= len(sizes) <= min(k, len(set(rows)))
    assert all(sizes)
    assert sizes == sorted(sizes, reverse=True)
    assert torch.equal(found, kmeans(x, k, Key(seed)))


def test_fewer_different_points_than_clusters_make_fewer_clusters() -> None:
    assert kmeans(torch.zeros(5, 2), 3, Key(0)).tolist() == [0] * 5
    assert kmeans(torch.tensor([[0.0], [1.0], [0.0]]), 3, Key(0)).tolist() == [0, 1, 0]


def test_a_silhouette_by_hand() -> None:
    """0, 1 | 10: for 0 a = 1, b = 10, s = .9; for 1 a = 1, b = 9, s = 8/9; 10 is alone, 0.  Mean 1.7889 / 3."""
    found = silhouette(torch.tensor([[0.0], [1.0], [10.0]]), torch.tensor([0, 0, 1]))
    assert found == pytest.approx((0.9 + 8 / 9) / 3)


@pytest.mark.parametrize("groups", [2, 3, 4])
def test_the_number_of_separate_groups_is_found(groups: int) -> None:
    assert count_by_silhouette(blobs((40,) * groups), Key(0)) == groups


def test_points_in_many_dimensions_without_groups_are_one_cluster() -> None:
    """All pairs are about equally far apart, so no clustering has a silhouette of 0.1."""
    assert count_by_silhouette(torch.randn(120, 64, generator=Key(2).generator()), Key(0)) == 1


def test_a_cluster_needs_enough_points() -> None:
    """Two clear groups of 15: 30 points are one cluster if each needs 20."""
    assert count_by_silhouette(blobs((15, 15)), Key(0)) == 1
    assert count_by_silhouette(blobs((15, 15)), Key(0), at_least=10) == 2
