"""CFL: clusters split where their clients disagree, by the right clients, and only then."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unskew.algorithms import cfl
from unskew.algorithms.cfl import CFL, Cluster, bipartition, cosines
from unskew.algorithms.fedavg import ModelReply
from unskew.keys import Key
from unskew.protocol import SgdConfig
from unskew.tree import Params

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
@given(st.integers(3, 9), st.integers(0, 1000), st.data())
def test_whatever_happens_clusters_partition_the_clients(n: int, seed: int, data: st.DataObject) -> None:
    """I-29: any updates, any losses, three rounds in which everything that may split does."""
    method = CFL(eps1=1e6, eps2=0.0, after=0, min_size=2, linkage=data.draw(st.sampled_from(["complete", "single"])))

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
            halves, split = method.grown(cluster, came, fed)
            assert len(halves) == 1 + (split is not None)
            assert split is None or len(came) == len(cluster.members)
            new += halves
        state = new
        assert sorted(c for cluster in state for c in cluster.members) == list(range(n))
        assert all(cluster.members == tuple(sorted(cluster.members)) for cluster in state)


# ---------------------------------------------------------------- limits
def test_buffers_have_no_part_in_lengths_and_angles(classes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Running variances a million times as long as all weights change neither the rest nor the split."""
    seen: set[str] = set()
    plain = cosines

    def look(updates: list[Params]) -> Tensor:
        seen.update(*updates)
        return plain(updates)

    monkeypatch.setattr(cfl, "cosines", look)
    world, method = classes(norm=True), CFL(eps1=100.0, eps2=0.0, after=0, local=SMALL)
    before = world.play(method, 1).states[1]
    assert seen == set(world.task.layout.trainable)
    world.population.initial["bn.running_var"].mul_(1e6)
    after = world.play(method, 1).states[1]
    assert [c.members for c in before.clusters] == [c.members for c in after.clusters]
    assert len(after.clusters) == 2
    assert after.clusters[0].max_norm == before.clusters[0].max_norm < 10.0
    # but they are averaged within each half
    assert not torch.equal(after.clusters[0].params["bn.running_mean"], after.clusters[1].params["bn.running_mean"])


# ---------------------------------------------------------------- similarities
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


# ---------------------------------------------------------------- absence
def test_a_cluster_is_not_split_while_a_member_is_missing(springs: Any, cut: Any) -> None:
    """Round 1 of the first example without client 1: said, not done; in round 2 all are there."""
    method = CFL(eps1=2.0, eps2=1.0, after=0, local=STEP)
    play = springs(m=FOUR).play(method, 2, outage=cut((1, "train", 0, 1), how="late"))
    assert [len(s.clusters) for s in play.states] == [1, 1, 2]
    assert [len(method.info(s).warnings) for s in play.states] == [0, 1, 0]
    assert "not all of its members were there to compare" in method.info(play.states[1]).warnings[0]
