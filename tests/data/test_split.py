import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unskew.data.skew import counts_of, effective_classes, iid_distance
from unskew.data.split import (
    IID,
    ByGroup,
    Dirichlet,
    HalfNormal,
    Pathological,
    Quantity,
    Shards,
    Split,
    TrainingExamples,
    _repair,
    largest_remainder,
    log_dirichlet,
)
from unskew.data.split import assign as assigned
from unskew.errors import DataError
from unskew.keys import Key

Labels = npt.NDArray[np.int64]


def assign(
    split: Split, labels: Labels, num_classes: int, key: Key, domains: Labels | None = None
) -> tuple[Labels, ...]:
    return assigned(split, TrainingExamples(labels, num_classes, domains), key)


def label_counts(clients: tuple[np.ndarray, ...], labels: np.ndarray, num_classes: int) -> np.ndarray:
    return counts_of(np.concatenate(clients), np.array(list(map(len, clients))), labels, num_classes)


ten_classes = np.arange(2000) % 10

seeds = st.integers(0, 2**32)
alphas = st.floats(1e-300, 1e6)


@st.composite
def labels(draw: st.DrawFn) -> tuple[Labels, int]:
    num_classes = draw(st.integers(1, 8))
    values = draw(st.lists(st.integers(0, num_classes - 1), min_size=1, max_size=150))
    return np.array(values), num_classes


@st.composite
def splits(draw: st.DrawFn, n: int) -> Split:
    """Any split over labels that `n` samples are enough for."""
    num_clients = draw(st.integers(1, n))
    min_samples = draw(st.integers(1, n // num_clients))
    shards = st.integers(1, n // num_clients)
    return draw(
        st.one_of(
            st.just(IID(num_clients, min_samples)),
            st.just(HalfNormal(num_clients, min_samples)),
            st.builds(Quantity, alphas, st.just(num_clients), st.just(min_samples)),
            st.builds(
                Dirichlet,
                alphas,
                st.sampled_from(["class", "capped", "client"]),
                st.just(num_clients),
                st.just(min_samples),
            ),
            st.builds(Shards, shards, st.just(num_clients), st.just(min_samples)),
        )
    )


def assert_partition(clients: tuple[Labels, ...], n: int) -> None:
    assert sorted(np.concatenate(clients).tolist()) == list(range(n))
    for indices in clients:
        assert indices.dtype == np.int64
        assert (np.diff(indices) > 0).all()


# properties


@given(st.data(), labels(), seeds)
def test_a_split_loses_nothing_and_gives_everyone_enough(data: st.DataObject, drawn: tuple[Labels, int], seed: int):
    y, num_classes = drawn
    split = data.draw(splits(len(y)))
    clients = assign(split, y, num_classes, Key(seed))
    assert_partition(clients, len(y))
    assert len(clients) == split.num_clients
    assert min(map(len, clients)) >= split.min_samples


@given(st.data(), labels(), seeds)
def test_the_same_key_gives_the_same_split(data: st.DataObject, drawn: tuple[Labels, int], seed: int):
    y, num_classes = drawn
    split = data.draw(splits(len(y)))
    first, second = (assign(split, y, num_classes, Key(seed)) for _ in range(2))
    assert [c.tolist() for c in first] == [c.tolist() for c in second]


@given(labels(), st.integers(1, 20), st.integers(1, 8), seeds)
def test_a_pathological_split_keeps_its_word_or_refuses(drawn: tuple[Labels, int], num_clients: int, k: int, seed: int):
    y, num_classes = drawn
    try:
        clients = assign(Pathological(k, num_clients, min_samples=1), y, num_classes, Key(seed))
    except DataError:
        return
    assert_partition(clients, len(y))
    counts = label_counts(clients, y, num_classes)
    assert (counts > 0).sum(1).max() <= k
    assert counts.sum(1).min() >= 1


@given(st.integers(1, 6), st.integers(1, 4), st.integers(2, 20), seeds)
def test_a_client_has_one_domain(domains: int, per_group: int, n: int, seed: int):
    groups = np.repeat(np.arange(domains), n + per_group)
    clients = assign(ByGroup(per_group, min_samples=1), np.zeros(len(groups), int), 1, Key(seed), groups)
    assert_partition(clients, len(groups))
    assert [set(groups[c].tolist()) for c in clients] == [{g} for g in range(domains) for _ in range(per_group)]


@pytest.mark.parametrize(
    "split",
    [
        IID(),
        Dirichlet(),
        Dirichlet(by="capped"),
        Dirichlet(by="client"),
        Pathological(),
        Shards(),
        Quantity(),
        ByGroup(2),
    ],
    ids=repr,
)
def test_different_keys_give_different_splits(split: Split):
    groups = np.arange(2000) // 1000
    a, b = (assign(split, ten_classes, 10, Key(seed), groups) for seed in (1, 2))
    assert [c.tolist() for c in a] != [c.tolist() for c in b]


@given(st.lists(st.floats(0, 1e6), min_size=1).filter(lambda w: sum(w) > 1e-3), st.integers(0, 10**6))
def test_rounding_is_exact_and_never_off_by_one_whole(weights: list[float], total: int):
    w = np.array(weights)
    whole = largest_remainder(w, total)
    assert whole.sum() == total
    assert (np.abs(whole - w / w.sum() * total) < 1 + 1e-6).all()


@given(st.floats(5e-324, 1e300), seeds)
def test_a_dirichlet_draw_is_a_distribution_at_any_alpha(alpha: float, seed: int):
    p = np.exp(log_dirichlet(alpha, (3, 5), Key(seed)))
    assert p.sum(1) == pytest.approx(np.ones(3))


def test_a_dirichlet_draw_has_the_right_moments():
    """Dirichlet(a 1_n): mean 1/n, variance (n - 1) / (n^2 (n a + 1)); n 4, a .5: 3 / 48 = .0625."""
    p = np.exp(log_dirichlet(0.5, (20_000, 4), Key(0)))
    assert p.mean(0) == pytest.approx(np.full(4, 0.25), abs=0.01)
    assert p.var(0) == pytest.approx(np.full(4, 0.0625), abs=0.002)


# worked examples


def test_iid_sizes_differ_by_one():
    """11 over 3: 4, 4, 3."""
    assert [len(c) for c in assign(IID(3), np.zeros(11, int), 1, Key(0))] == [4, 4, 3]


def test_mixtures_by_client_keep_equal_sizes():
    clients = assign(Dirichlet(0.1, by="client"), ten_classes, 10, Key(0))
    assert [len(c) for c in clients] == [200] * 10


def test_a_small_alpha_skews_and_a_large_one_does_not():
    """alpha to 0: one class each, distance to uniform sqrt(1 - 1/10) = .949; alpha to infinity: 0."""
    for by in ("class", "capped", "client"):
        hard = label_counts(assign(Dirichlet(1e-9, by, min_samples=1), ten_classes, 10, Key(0)), ten_classes, 10)
        soft = label_counts(assign(Dirichlet(1e9, by), ten_classes, 10, Key(0)), ten_classes, 10)
        assert iid_distance(hard).max() == pytest.approx(math.sqrt(0.9), abs=1e-3)
        assert iid_distance(soft).max() < 0.01


def test_pathological_clients_share_their_classes_equally():
    """10 clients x 2 classes = 20 places, 2 for each of 10 classes of 200: 100 samples a place, 200 a client."""
    counts = label_counts(assign(Pathological(2), ten_classes, 10, Key(0)), ten_classes, 10)
    assert ((counts == 100) | (counts == 0)).all()
    assert (counts > 0).sum(1).tolist() == [2] * 10
    assert (counts > 0).sum(0).tolist() == [2] * 10


def test_each_shard_is_one_run_of_the_sorted_labels():
    """20 shards of 100 over classes of 200: each shard has one class, so a client has two at most and 200 samples."""
    counts = label_counts(assign(Shards(2), ten_classes, 10, Key(0)), ten_classes, 10)
    assert counts.sum(1).tolist() == [200] * 10
    assert (counts % 100 == 0).all()
    assert (counts > 0).sum(1).max() <= 2


def test_quantity_splits_differ_in_size_and_not_in_labels():
    for split in (Quantity(0.5, min_samples=100), HalfNormal(min_samples=100)):
        clients = assign(split, ten_classes, 10, Key(3))
        held = [len(c) for c in clients]
        assert max(held) > 2 * min(held)
        assert effective_classes(label_counts(clients, ten_classes, 10)).min() > 9


def test_repair_stays_within_a_pathological_clients_classes():
    """Class 0 has 1 sample and two holders: the one without it cannot be served by class 1's holders."""
    y = np.array([0] + [1] * 9)
    with pytest.raises(DataError, match="can have only 0 examples of its classes"):
        assign(Pathological(1, 4, min_samples=1), y, 2, Key(0))


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (IID(2001, 1), "2001 clients x at least 1 examples = 2001, but there are 2000 examples"),
        (
            Pathological(2, num_clients=4),
            "10 classes for 4 clients with 2 each: raise num_clients or classes_per",
        ),
        (ByGroup(3), "group 1 has 5 examples, not 3 x 2"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_the_arithmetic(split: Split, message: str):
    groups = np.array([0] * 1995 + [1] * 5)
    with pytest.raises(DataError, match=message):
        assign(split, ten_classes, 10, Key(0), groups)


def test_a_client_that_has_its_even_share_gets_nothing_of_later_classes() -> None:
    """Ten classes of 100 for five clients: the even share is 200.  Nobody passes it by more than one class's 100.

    Uncapped, the same draw (alpha 0.1) leaves somebody with far more.
    """
    labels = np.repeat(np.arange(10), 100)
    sizes = {
        by: [max(map(len, assign(Dirichlet(0.1, by=by, num_clients=5), labels, 10, Key(s)))) for s in range(20)]  # type: ignore[arg-type]
        for by in ("class", "capped")
    }
    assert max(sizes["capped"]) < 300
    assert max(sizes["class"]) > 300
    counts = np.stack(
        [
            np.bincount(labels[c], minlength=10)
            for c in assign(Dirichlet(0.1, by="capped", num_clients=5, min_samples=1), labels, 10, Key(3))
        ]
    )
    before = np.cumsum(counts, axis=1) - counts
    assert not counts[before >= 200].any()


# ---------------------------------------------------------------- clients that fall short
def repaired_by_search(counts: np.ndarray, wanted: np.ndarray, minimum: int, fixed: bool) -> np.ndarray | None:
    """Every move from the richest client that can give, searched among all; None if nobody can."""
    counts, sizes = counts.copy(), counts.sum(1)
    for i in np.flatnonzero(sizes < minimum):
        allowed = np.flatnonzero(wanted[i] > 0) if fixed else np.arange(counts.shape[1])
        while sizes[i] < minimum:
            spare = np.minimum(sizes - minimum, counts[:, allowed].sum(1))
            spare[i] = 0
            donor = int(np.argmax(np.where(spare > 0, sizes, -1)))
            if spare[donor] <= 0:
                return None
            left = min(int(minimum - sizes[i]), int(spare[donor]))
            for c in sorted(allowed, key=lambda c: (-wanted[i, c], -counts[donor, c], c)):
                take = min(left, counts[donor, c])
                counts[donor, c], counts[i, c], left = counts[donor, c] - take, counts[i, c] + take, left - take
            sizes = counts.sum(1)
    return counts


@given(st.integers(0, 10_000), st.integers(1, 6), st.booleans())
def test_a_client_that_falls_short_is_given_to_by_the_richest_who_can(seed: int, minimum: int, fixed: bool):
    """Up to a dozen clients, many of them equally rich or empty, four classes, some of which nobody wants."""
    rng = (Key(seed) / "table").numpy()
    counts = rng.integers(0, 6, (int(rng.integers(2, 13)), 4)) * (rng.random((1, 4)) < 0.8)
    counts *= rng.random((len(counts), 1)) < 0.6
    wanted = rng.integers(0, 3, counts.shape).astype(float)
    expected = repaired_by_search(counts, wanted, minimum, fixed)
    if expected is None:
        with pytest.raises(DataError, match="lower min_samples"):
            _repair(counts, wanted, minimum, fixed)
    else:
        _repair(counts, wanted, minimum, fixed)
        assert counts.tolist() == expected.tolist()
