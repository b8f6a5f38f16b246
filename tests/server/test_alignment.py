"""Which embeddings of different clients belong together, and which uploads are no embeddings."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unskew.keys import Key
from unskew.server.alignment import Alignment, Pair, align, fair, faults, lengths_apart, matched, threshold


def on_a_line(*places: float) -> Tensor:
    return lengths_apart(torch.tensor(places)[:, None])


# ---------------------------------------------------------------- worked examples
def test_two_clients_that_share_one_of_two_distributions() -> None:
    """Client 0 has label 0 at 0 and at 10, client 1 at 0.4 and at 30.

    Matching: 0 - 0.4 and 10 - 30, together 20.4; the other way it is 30 + 9.6.  Distances within a client are 10 and
    29.6, median 19.8, so tau is 9.9: the first pair is parallel, the second is not.  Counts 5 and 7: client 1's stands
    for both, with 12 examples behind it.
    """
    found = align(on_a_line(0.0, 10.0, 0.4, 30.0), [0] * 4, [5, 3, 7, 2], [0, 0, 1, 1])
    assert found.sets == ((0, 2), (1,), (3,))
    assert found.kept == (2, 1, 3)
    assert found.counts == (12, 3, 2)
    assert found.tau == pytest.approx(9.9)
    assert [(p.i, p.j) for p in found.pairs] == [(0, 2), (1, 3)]
    assert [p.distance for p in found.pairs] == pytest.approx([0.4, 20.0])


def test_without_a_threshold_a_matching_would_pair_strangers() -> None:
    """DI-B1: the disentangled case.  One embedding each, 50 apart: paired by the matching, kept apart by tau."""
    distances = on_a_line(0.0, 50.0)
    assert matched(distances, [0, 0], [0, 1]) == (Pair(0, 1, 50.0),)
    assert align(distances, [0, 0], [1, 1], [0, 1]).sets == ((0,), (1,))
    assert align(distances, [0, 0], [1, 1], [0, 1], tau=60.0).sets == ((0, 1),)


def test_equal_places_of_different_labels_are_different_distributions() -> None:
    found = align(on_a_line(0.0, 0.0, 5.0, 5.0), [0, 1, 0, 1], [1] * 4, [0, 1, 2, 3], tau=1.0)
    assert found.sets == ((0,), (1,), (2,), (3,))
    assert {(p.i, p.j) for p in found.pairs} == {(0, 2), (1, 3)}


def test_a_chain_does_not_bring_two_of_one_client_together() -> None:
    """Client 0 at 0 and 3, client 1 at 1, client 2 at 2; tau = 2.

    Matched: 0 - 1, 3 - 2 and 1 - 2, all at distance 1.  With the first two joined the third would put 0 and 3 together,
    which client 0 told apart itself.
    """
    found = align(on_a_line(0.0, 3.0, 1.0, 2.0), [0] * 4, [1] * 4, [0, 0, 1, 2], tau=2.0)
    assert [(p.i, p.j) for p in found.pairs] == [(0, 2), (1, 3), (2, 3)]
    assert found.sets == ((0, 2), (1, 3))


def test_the_threshold_by_hand() -> None:
    """Client 0 has label 0 at 0, 2 and 10, label 1 at 100: same-label distances 2, 8, 10, median 8, tau 4.

    Without two of a label, distances over labels count: 0 - 100, median 100, tau 50; without two of a client nothing.
    """
    places = on_a_line(0.0, 2.0, 10.0, 100.0)
    assert threshold(places, [0, 0, 0, 1], [0, 0, 0, 0]) == pytest.approx(4.0)
    assert threshold(on_a_line(0.0, 100.0), [0, 1], [0, 0]) == pytest.approx(50.0)
    assert threshold(on_a_line(0.0, 100.0), [0, 0], [0, 1]) == 0.0


def test_every_client_has_one_vote_in_the_threshold() -> None:
    """Medians of each client's distances: 2, 4, and 100 of ten; half of the median 4."""
    table = torch.zeros(14, 14)
    owners = [0, 0, 1, 1] + [2] * 10
    table[0, 1] = table[1, 0] = 2.0
    table[2, 3] = table[3, 2] = 4.0
    table[4:, 4:] = 100.0 * (1 - torch.eye(10))
    assert threshold(table, [0] * 14, owners) == pytest.approx(2.0)


def test_who_alone_has_two_of_a_label_is_held_to_what_all_say_of_any() -> None:
    """A liar at 0 and 1000, both label 0; two honest clients with labels 1 and 2, 6 apart: half of 6, not of 1000."""
    places = on_a_line(0.0, 1000.0, 0.0, 6.0, 0.0, 6.0)
    assert threshold(places, [0, 0, 1, 2, 1, 2], [9, 9, 0, 0, 1, 1]) == pytest.approx(3.0)


@given(
    st.lists(st.lists(st.floats(0, 100), min_size=2, max_size=4), min_size=3, max_size=6),
    st.lists(st.floats(0, 1e6), min_size=0, max_size=64),
)
def test_one_liar_moves_the_threshold_no_further_than_honest_ones_disagree(
    honest: list[list[float]], lie: list[float]
) -> None:
    """Whatever it sends, and however much of it, tau is between what two of the honest would have come to alone."""
    places = [p for some in honest for p in some] + lie
    owners = [c for c, some in enumerate(honest) for _ in some] + [99] * len(lie)
    each = [threshold(on_a_line(*some), [0] * len(some), [0] * len(some)) for some in honest]
    tau = threshold(on_a_line(*places), [0] * len(places), owners)
    assert min(each) - 1e-9 <= tau <= max(each) + 1e-9


def test_a_tie_goes_to_the_lowest_client() -> None:
    found = align(on_a_line(0.0, 0.0, 0.0), [0] * 3, [4, 4, 1], [2, 1, 0], tau=0.0)
    assert found == Alignment(((0, 1, 2),), (1,), (9,), 0.0, (Pair(0, 1, 0.0), Pair(0, 2, 0.0), Pair(1, 2, 0.0)))


# ---------------------------------------------------------------- properties
@st.composite
def uploads(draw: st.DrawFn) -> tuple[Tensor, list[int], list[int], list[int], float]:
    number = draw(st.integers(1, 14))
    v = torch.tensor(draw(st.lists(st.integers(-40, 40), min_size=2 * number, max_size=2 * number)))
    return (
        lengths_apart(v.reshape(number, 2).float()),
        draw(st.lists(st.integers(0, 2), min_size=number, max_size=number)),
        draw(st.lists(st.integers(1, 9), min_size=number, max_size=number)),
        draw(st.lists(st.integers(0, 4), min_size=number, max_size=number)),
        draw(st.floats(0, 60)),
    )


@given(uploads())
def test_sets_are_a_partition_of_one_label_and_of_different_clients(drawn: tuple[Tensor, ...]) -> None:
    distances, labels, counts, owners, tau = drawn
    found = align(distances, labels, counts, owners, tau)  # type: ignore[arg-type]
    assert sorted(i for s in found.sets for i in s) == list(range(len(labels)))
    for s, kept, count in zip(found.sets, found.kept, found.counts, strict=True):
        assert kept in s
        assert len({owners[i] for i in s}) == len(s)
        assert len({labels[i] for i in s}) == 1
        assert counts[kept] == max(counts[i] for i in s)
        assert count == sum(counts[i] for i in s)
        assert len(s) == 1 or any(p.distance <= tau for p in found.pairs if p.i in s)


@given(uploads(), st.integers(0, 100))
def test_the_order_of_clients_does_not_matter(drawn: tuple[Tensor, ...], seed: int) -> None:
    """Invariant 9 of the specification, where no two distances are equal."""
    distances, labels, counts, owners, tau = drawn
    wobble = torch.rand(distances.shape, generator=Key(seed).generator(), dtype=torch.float64).triu(1)
    distances = distances + 0.01 * (wobble + wobble.T)
    order = torch.randperm(len(labels), generator=(Key(seed) / "order").generator()).tolist()

    def sets(places: list[int]) -> set[frozenset[int]]:
        table = distances[places][:, places]
        found = align(table, *([values[i] for i in places] for values in (labels, counts, owners)), float(tau))
        return {frozenset(places[i] for i in s) for s in found.sets}

    assert sets(list(range(len(labels)))) == sets(order)


# ---------------------------------------------------------------- uploads
def upload(v: Tensor, y: list[int], n: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    return v, torch.tensor(y, dtype=torch.int64), torch.tensor(n, dtype=torch.int64)


GOOD = upload(torch.ones(2, 4), [0, 2], [5, 6])


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (upload(torch.ones(2, 5), [0, 1], [1, 1]), "width 5, expected 4"),
        (upload(torch.tensor([[1.0, torch.nan, 0, 0]]), [0], [1]), "NaN or infinite"),
        (upload(torch.full((1, 4), torch.inf), [0], [1]), "NaN or infinite"),
        (upload(torch.ones(1, 4), [3], [1]), r"label 3 is outside the task's 0\.\.2"),
        (upload(torch.ones(1, 4), [-1], [1]), "label -1 is outside"),
        (upload(torch.ones(1, 4), [0], [-1]), "a count is negative: -1"),
        (upload(torch.ones(1, 4), [0], [1 << 60]), r"a count is above 2\*\*53: 1152921504606846976"),
        (upload(1e4 * torch.ones(1, 4), [0], [1]), "20 times the median of 2"),
        (upload(torch.full((1, 4), 3e38), [0], [1]), "20 times the median of 2"),
        (upload(torch.ones(65, 4), [1] * 65, [1] * 65), "65 embeddings of one label, 64 are allowed"),
    ],
)
def test_a_useless_upload_is_refused_by_itself(bad: tuple[Tensor, Tensor, Tensor], why: str) -> None:
    found = faults({0: GOOD, 1: GOOD, 2: bad, 3: GOOD}, classes=3)
    assert list(found) == [2]
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(found[2])


def test_what_the_server_knows_outvotes_one_liar_of_two_and_a_single_one() -> None:
    """Embeddings of length 9 and a start of 8; a liar's are a billion times as long, or as short."""
    honest, long, short = (
        (torch.full((2, 9), scale), torch.tensor([0, 1]), torch.tensor([3, 4])) for scale in (3.0, 3e9, 3e-9)
    )
    for lie in (long, short):
        assert set(faults({0: honest, 1: lie}, 3, length=8.0)) == ({1} if lie is long else set())
    assert set(faults({0: long}, 3, length=8.0)) == {0}
    assert faults({0: honest}, 3, length=8.0) == {}
    assert faults({0: long}, 3) == {}  # with nothing to compare it with


# ---------------------------------------------------------------- counts
def test_counts_just_beyond_twice_the_next_are_scaled_down() -> None:
    """30 and 61: at most 60, so 31 and 30 become 31 * 60 // 61 = 30 and 29; 60 stay as they are."""
    assert fair({0: torch.tensor([10, 20]), 1: torch.tensor([31, 30])})[1].tolist() == [30, 29]
    assert fair({0: torch.tensor([10, 20]), 1: torch.tensor([31, 29])})[1].tolist() == [31, 29]


@given(st.lists(st.lists(st.integers(0, 1 << 53), max_size=5), min_size=1, max_size=5))
def test_nobody_counts_for_more_than_twice_the_next(counts: list[list[int]]) -> None:
    before = {c: torch.tensor(n, dtype=torch.int64) for c, n in enumerate(counts)}
    after = fair(before)
    said = {c: sum(n) for c, n in enumerate(counts)}
    for c, n in after.items():
        others = [t for other, t in said.items() if other != c]
        assert n.dtype == torch.int64
        assert sum(n.tolist()) <= (2 * max(others) if others else said[c])
        if not others or said[c] <= 2 * max(others):
            assert n.tolist() == counts[c]
