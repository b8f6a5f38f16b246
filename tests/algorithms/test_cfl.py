"""CFL: clusters split where their clients disagree, by the right clients, and only then."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unskew.algorithms import cfl
from unskew.algorithms.cfl import CFL, Cluster, bipartition, cosines
from unskew.algorithms.fedavg import FedAvg, ModelReply
from unskew.info import Bisection
from unskew.keys import Key
from unskew.protocol import SgdConfig
from unskew.tree import Params, flat
from unskew.world.outage import Outage

STEP = SgdConfig(lr=0.5, local_steps=1, batch_size=None)
SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3)
FOUR = [8.0, -8.0, 4.0, -4.0, 8.0, -8.0, 4.0, -4.0]


def vectors(n: int, d: int, seed: int) -> list[Params]:
    g = Key(seed).generator()
    return [
        {
            "a": torch.randn(d, generator=g, dtype=torch.float64),
            "b": torch.randn(2, 1, generator=g, dtype=torch.float64),
        }
        for _ in range(n)
    ]


# ---------------------------------------------------------------- splits
def test_two_successive_splits_by_hand(springs: Any, value: Any) -> None:
    """I-29.  F_k = (w - m_k)^2 / 2, one step of lr .5: D_k = (m_k - theta) / 2; eps1 = .2, eps2 = 1.

    m = 8, -8, 4, -4 and again.  Round 1 from 0: the mean is 0, the longest 4: split by sign, even and odd clients.
    Their models: 0 + (4 + 2 + 4 + 2) / 4 = 3, then 3 + 1.5 = 4.5, 5.25, 5.625 with means 1.5, .75, .375.
    Round 5: D = 1.1875 and -.8125, the mean .1875 is below eps1, the longest above eps2: each half splits in two.
    Positions in the even half are 0, 2 and 1, 3; as client numbers they would have put client 1 into two clusters.
    """
    play = springs(m=FOUR).play(CFL(eps1=0.2, eps2=1.0, after=0, local=STEP), 6)
    groups = [[list(c.members) for c in s.clusters] for s in play.states]
    assert groups[0] == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert groups[1] == groups[4] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert groups[5] == groups[6] == [[0, 4], [2, 6], [1, 5], [3, 7]]
    models = [[value(c.params) for c in s.clusters] for s in play.states]
    assert models[4] == pytest.approx([5.625, -5.625])
    assert models[5] == pytest.approx([5.625 + 1.1875, 5.625 - 0.8125, -5.625 - 1.1875, -5.625 + 0.8125])
    assert [value(play.own(c)) for c in range(4)] == pytest.approx(
        [value(play.states[6].clusters[i].params) for i in (0, 2, 1, 3)]
    )
    info = play.sim.algorithm.info(play.states[6])
    assert info.splits == (
        Bisection(1, ((0, 2, 4, 6), (1, 3, 5, 7)), -1.0),
        Bisection(5, ((0, 4), (2, 6)), -1.0),
        Bisection(5, ((1, 5), (3, 7)), -1.0),
    )
    assert info.groups == ((0, 4), (2, 6), (1, 5), (3, 7))
    assert info.warnings == ()


@given(st.integers(3, 9), st.integers(0, 1000), st.data())
def test_whatever_happens_clusters_partition_the_clients(n: int, seed: int, data: st.DataObject) -> None:
    """I-29: any updates, any losses, three rounds in which everything that may split does."""
    algorithm = CFL(eps1=1e6, eps2=0.0, after=0, min_size=2, linkage=data.draw(st.sampled_from(["complete", "single"])))

    class Fed:
        round = 1

        class layout:
            trainable = ("a", "b")

    state = [Cluster(tuple(range(n)), vectors(1, 3, seed)[0])]
    fed: Any = Fed
    for t in range(3):
        replies = {c: ModelReply(p, 1) for c, p in enumerate(vectors(n, 3, seed + 7 * t + 1))}
        here = data.draw(st.sets(st.integers(0, n - 1), max_size=1))
        new = []
        for cluster in state:
            came = {c: replies[c] for c in cluster.members if c not in here}
            halves, split = algorithm.grown(cluster, came, fed)
            assert len(halves) == 1 + (split is not None)
            assert split is None or len(came) == len(cluster.members)
            new += halves
        state = new
        assert sorted(c for cluster in state for c in cluster.members) == list(range(n))
        assert all(cluster.members == tuple(sorted(cluster.members)) for cluster in state)


def test_two_planted_distributions_are_found_and_not_split_further(classes: Any) -> None:
    """Odd clients' labels are the others', shifted: updates conflict between the halves, and agree within them.

    eps1 is a fifth of the first mean update's length, eps2 five times that.
    """
    world, local = classes(n=[40] * 8), SgdConfig(lr=0.3, local_epochs=2, batch_size=None)
    x = torch.randn(320, 4, generator=Key(3).generator(), dtype=torch.float64)
    y = x[:, :3].argmax(1)
    odd = torch.cat([world.device_data.train[c] for c in (1, 3, 5, 7)])
    y[odd] = (y[odd] + 1) % 3
    world.device_data.x.copy_(x)
    world.device_data.y.copy_(y)
    early = world.play(CFL(eps1=0.0, local=local), 1).states[1].clusters[0].mean_norm
    play = world.play(CFL(eps1=0.2 * early, eps2=early, after=5, local=local), 50)
    (split,) = play.states[-1].splits
    assert (split.first, split.second) == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert split.similarity < 0.0
    assert split.round > 5


def test_nothing_is_split_before_its_round_or_below_its_size(springs: Any) -> None:
    for options, expected in (({"after": 3}, 4), ({"after": 0}, 1), ({"after": 0, "min_size": 9}, None)):
        play = springs(m=FOUR).play(CFL(eps1=0.2, eps2=1.0, local=STEP, **options), 5)
        found = [s.round for s in play.states[-1].splits]
        assert (found[0] if found else None) == expected


@pytest.mark.parametrize(("eps1", "eps2"), [(0.2, 4.1), (0.0, 0.0)])
def test_without_rest_or_without_conflict_nothing_is_split(eps1: float, eps2: float, springs: Any) -> None:
    """The longest update of the first example is 4."""
    play = springs(m=FOUR).play(CFL(eps1=eps1, eps2=eps2, after=0, local=STEP), 3)
    assert [len(s.clusters) for s in play.states] == [1] * 4


def test_a_gap_that_is_too_small_keeps_a_cluster_together() -> None:
    """Two directions at right angles: the gap is sqrt(1/2) = .707; equal directions have none."""
    apart = [{"a": torch.tensor(v, dtype=torch.float64)} for v in ([1.0, 0.0], [2.0, 0.0], [0.0, 3.0])]
    found = CFL(gamma_max=0.7).split((4, 7, 9), apart, 1)
    assert found is not None
    assert (found.first, found.second, found.similarity) == ((4, 7), (9,), 0.0)
    assert CFL(gamma_max=0.71).split((4, 7, 9), apart, 1) is None
    assert CFL().split((4, 7), apart[:2], 1) is None


# ---------------------------------------------------------------- limits
def test_without_rest_it_is_uniform_fedavg(classes: Any, equal: Any) -> None:
    """I-29."""
    world = classes(n=[4, 7, 9], norm=True)
    ours = world.play(CFL(eps1=0.0, local=SMALL), clients_per_round=2)
    equal(ours.params, world.play(FedAvg(SMALL, "uniform"), clients_per_round=2).params)
    assert world.play(CFL(local=SMALL)).params == [None] * 4


def test_buffers_have_no_part_in_lengths_and_angles(classes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Running variances a million times as long as all weights change neither the rest nor the split."""
    seen: set[str] = set()
    plain = cosines

    def look(updates: list[Params]) -> Tensor:
        seen.update(*updates)
        return plain(updates)

    monkeypatch.setattr(cfl, "cosines", look)
    world, algorithm = classes(norm=True), CFL(eps1=100.0, eps2=0.0, after=0, local=SMALL)
    before = world.play(algorithm, 1).states[1]
    assert seen == set(world.task.layout.trainable)
    world.population.initial["bn.running_var"].mul_(1e6)
    after = world.play(algorithm, 1).states[1]
    assert [c.members for c in before.clusters] == [c.members for c in after.clusters]
    assert len(after.clusters) == 2
    assert after.clusters[0].max_norm == before.clusters[0].max_norm < 10.0
    # but they are averaged within each half
    assert not torch.equal(after.clusters[0].params["bn.running_mean"], after.clusters[1].params["bn.running_mean"])


# ---------------------------------------------------------------- similarities
@given(st.integers(1, 7), st.integers(0, 10_000))
def test_cosines_are_symmetric_with_a_unit_diagonal(n: int, seed: int) -> None:
    """I-29, and what they are."""
    updates = vectors(n, 4, seed)
    s = cosines(updates)
    assert torch.equal(s, s.T)
    assert s.diagonal().tolist() == [1.0] * n
    for i, j in itertools.product(range(n), repeat=2):
        a, b = flat(updates[i]), flat(updates[j])
        assert float(s[i, j]) == pytest.approx(float(a @ b) / math.sqrt(float(a @ a) * float(b @ b)), abs=1e-12)


def test_an_update_of_length_zero_is_orthogonal_to_all() -> None:
    s = cosines([*vectors(2, 3, 0), {k: torch.zeros_like(v) for k, v in vectors(1, 3, 0)[0].items()}])
    assert s[2].tolist() == [0.0, 0.0, 1.0]
    one, two = bipartition(s)
    assert sorted(one + two) == [0, 1, 2]


@given(st.integers(2, 7), st.integers(0, 10_000))
def test_single_linkage_makes_the_similarity_across_as_small_as_possible(n: int, seed: int) -> None:
    """Against all 2^(n-1) - 1 bipartitions; complete linkage gives one of them, never a better one."""
    s = cosines(vectors(n, 3, seed))

    def across(one: tuple[int, ...]) -> float:
        two = [i for i in range(n) if i not in one]
        return float(s[list(one)][:, two].max())

    halves = [h for k in range(1, n) for h in itertools.combinations(range(n), k)]
    best = min(across(h) for h in halves)
    one, two = bipartition(s, "single")
    assert across(tuple(one)) == best
    assert 0 in one
    assert sorted(one + two) == list(range(n))
    complete, _ = bipartition(s, "complete")
    assert across(tuple(complete)) >= best


def test_complete_linkage_can_miss_the_best_split() -> None:
    """Why `linkage` is an option: directions at 0, 40, 80, 125 degrees, of which 80 is nearer to 40 than to 125.

    Complete linkage joins 0 and 40 first, then 80 and 125, for they span 45 degrees and 0 to 80 spans 80; 40 and 80
    come to lie apart, 40 degrees from each other.  Cutting before 125 leaves 45.
    """
    angles = torch.tensor([0.0, 40.0, 80.0, 125.0], dtype=torch.float64).deg2rad()
    s = cosines([{"a": torch.stack([a.cos(), a.sin()])} for a in angles])
    assert bipartition(s, "complete") == ([0, 1], [2, 3])
    assert bipartition(s, "single") == ([0, 1, 2], [3])


# ---------------------------------------------------------------- absence
def test_a_cluster_is_not_split_while_a_member_is_missing(springs: Any, cut: Any) -> None:
    """Round 1 of the first example without client 1: said, not done; in round 2 all are there."""
    algorithm = CFL(eps1=2.0, eps2=1.0, after=0, local=STEP)
    play = springs(m=FOUR).play(algorithm, 2, outage=cut((1, "train", 0, 1), how="late"))
    assert [len(s.clusters) for s in play.states] == [1, 1, 2]
    assert [len(algorithm.info(s).warnings) for s in play.states] == [0, 1, 0]
    assert "not all of its members were there to compare" in algorithm.info(play.states[1]).warnings[0]


def test_a_cluster_nobody_replied_from_stays_as_it_was(springs: Any, value: Any, cut: Any) -> None:
    asks = [(2, "train", 0, c) for c in (0, 2, 4, 6)]
    play = springs(m=FOUR).play(CFL(eps1=0.2, eps2=1.0, after=0, local=STEP), 2, outage=cut(*asks))
    assert [value(c.params) for c in play.states[2].clusters] == pytest.approx([3.0, -4.5])
    assert play.states[2].clusters[0].mean_norm is None


def test_losing_everybody_is_no_failure(classes: Any, equal: Any) -> None:
    play = classes().play(CFL(local=SMALL), outage=Outage(late=1.0), codec=True)
    equal(play.own(0), play.sim.population.initial, atol=0.0)
