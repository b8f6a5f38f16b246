"""Reductions: the arithmetic, the same bits wherever a chunk is folded, and that no cohort is held."""

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recipe import simulator
from torch import Tensor

from unskew.errors import ProtocolError, QuorumError
from unskew.keys import Key
from unskew.reduction import CHUNK, ByClient, Each, Folding, MeanOf, SumOf, Within, reduced, remaining, weighted_mean
from unskew.tree import Params, leaves


@dataclass(frozen=True)
class Reply:
    params: Params
    n: int
    loss: Each[float] = 0.0
    group: Each[int] = 0


@dataclass(frozen=True)
class Wrapped:
    of: Reply
    noise: Each[int]


def reply(value: float, n: int = 1, **more: Any) -> Reply:
    return Reply({"w": torch.tensor([value, -value])}, n, **more)


def random_replies(count: int) -> dict[int, Reply]:
    draws = torch.randn(count, 50, generator=Key(0).generator())
    return {c: Reply({"w": row}, 1 + c % 7) for c, row in enumerate(draws)}


# ---------------------------------------------------------------- arithmetic
def test_a_mean_and_a_sum_by_hand() -> None:
    """(1 * 1 + 3 * 5) / 4 = 4, equally weighted 3; the sum of n w is 16.  The weights are 4, 2 and 4."""
    replies = {3: reply(1.0, 1), 1: reply(5.0, 3)}
    answer = reduced([MeanOf("params", "n"), MeanOf("params"), SumOf("params", "n")], replies)
    assert [value["w"].tolist() for value in answer.values] == [[4.0, -4.0], [3.0, -3.0], [16.0, -16.0]]
    assert answer.weights == (4.0, 2.0, 4.0)
    assert (answer.value, answer.weight) == (answer.values[0], 4.0)


def test_table_and_weight_may_be_functions_of_client_and_reply() -> None:
    """Tables 2 c and weights c + 1 for clients 0, 1, 2: (0 + 2 * 2 + 3 * 4) / 6 = 8 / 3."""
    mean = MeanOf(lambda c, r: {"t": torch.tensor(2.0 * c)}, lambda c, r: c + 1)
    assert float(reduced([mean], dict.fromkeys(range(3), reply(0.0))).value["t"]) == pytest.approx(8 / 3)


def test_groups_have_means_of_their_own_and_some_replies_are_in_none() -> None:
    replies = {c: reply(float(c), group=c % 2) for c in range(5)}
    answer = reduced([MeanOf("params", by=lambda c, r: None if c == 4 else r.group)], replies)
    assert {j: mean["w"][0].item() for j, mean in answer.value.items()} == {0: 1.0, 1: 2.0}
    assert answer.weight == {0: 2.0, 1: 2.0}
    assert reduced([MeanOf("params", by=lambda c, r: False)], replies).value == {}


def test_a_mean_of_one_is_that_one_and_not_its_memory() -> None:
    """x w / w need not be x: with w = 3 a third of all numbers change."""
    lone = random_replies(1)[0].params
    mean = weighted_mean([lone], [3.0])
    assert mean["w"].tolist() == lone["w"].tolist()
    assert mean["w"].data_ptr() != lone["w"].data_ptr()


@pytest.mark.parametrize("count", [2, 5, 40])
def test_a_mean_of_equal_tensors_is_that_tensor_and_others_beside_it_are_averaged(count: int) -> None:
    """In one chunk and over several; one client of 40 that differs is enough for a mean."""
    same, weights = torch.randn(1000), [float(3 + k % 7) for k in range(count)]
    tables = [{"same": same.clone(), "own": torch.randn(5)} for _ in range(count)]
    mean = weighted_mean(tables, weights)
    assert torch.equal(mean["same"], same)
    by_hand = sum(w * t["own"].double() for w, t in zip(weights, tables, strict=True)) / sum(weights)
    torch.testing.assert_close(mean["own"].double(), by_hand, atol=1e-6, rtol=0)
    tables[-1]["same"] = same + 1.0
    torch.testing.assert_close(weighted_mean(tables, weights)["same"], same + weights[-1] / sum(weights))


def test_half_precision_is_summed_in_single() -> None:
    """In half precision 2,048 + 1 is 2,048, and from there on a sum of ones and threes loses its ones.

    4,096 times a mean of 2 are 8,192, with weights of 1,000 more than half precision holds.
    """
    odd = {c: Reply({"w": torch.full((1,), 1.0 + 2 * (c % 2), dtype=torch.float16)}, 1000) for c in range(4096)}
    mean, total = (value["w"] for value in reduced([MeanOf("params", "n"), SumOf("params")], odd).values)
    assert (mean.dtype, mean.item()) == (torch.float16, 2.0)
    assert (total.dtype, total.item()) == (torch.float16, 8192.0)


def test_a_mean_of_nothing_is_refused_and_a_weight_of_nothing_is_left_out() -> None:
    with pytest.raises(QuorumError, match="one client with training examples"):
        reduced([MeanOf("params", "n")], {})
    with pytest.raises(QuorumError, match="one client with training examples"):
        reduced([MeanOf("params", "n")], {0: reply(1.0, 0)})
    assert reduced([MeanOf("params", "n")], {0: reply(1.0, 0), 1: reply(2.0, 1)}).value["w"][0] == 2.0


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [MeanOf, SumOf])
def test_a_weight_that_is_none_is_refused_and_leaves_nobody_out(kind: Any, weight: float) -> None:
    with pytest.raises(ProtocolError, match=rf"weight of client 3 in a {kind.__name__} must be .*, got {weight:g}; a"):
        reduced([kind("params", lambda c, r: weight)], {3: reply(1.0, 1)})


@given(st.lists(st.tuples(st.floats(-1e6, 1e6, width=32), st.integers(1, 1 << 20)), min_size=1, max_size=70))
def test_a_mean_is_the_mean_and_lies_between_the_smallest_and_the_largest(pairs: list[tuple[float, int]]) -> None:
    values, n = zip(*pairs, strict=True)
    mean = float(weighted_mean([{"w": torch.tensor([v])} for v in values], n)["w"])
    size = max(map(abs, values))
    assert mean == pytest.approx(np.average(values, weights=n), rel=1e-4, abs=1e-4 * size)
    assert min(values) - 1e-4 * size <= mean <= max(values) + 1e-4 * size


# ---------------------------------------------------------------- the bits
@pytest.mark.parametrize("count", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
@pytest.mark.parametrize("reduction", [MeanOf("params", "n"), SumOf("params"), MeanOf("params", by="group")])
def test_a_chunk_that_is_folded_elsewhere_gives_the_same_bits(reduction: Any, count: int) -> None:
    """As a worker or another machine would: partial results by chunk, merged in their order."""
    replies = random_replies(count)
    total = None
    for first in range(0, count, CHUNK):
        partial = reduction.start()
        for c in range(first, min(first + CHUNK, count)):
            partial = reduction.add(partial, c, replies[c])
        total = partial if total is None else reduction.merge(total, partial)
    here, there = reduced([reduction], replies).value, reduction.finish(total)[0]
    torch.testing.assert_close(there, here, rtol=0, atol=0)


def test_who_is_lost_moves_nobody_into_another_chunk() -> None:
    """Chunks are places among those asked: without client 0 all others are summed with the same neighbours."""
    replies = random_replies(2 * CHUNK)
    folding, second = Folding([SumOf("params")]), Folding([SumOf("params")])
    for c, r in replies.items():
        if c != 0:
            folding.add(c, c, r)
        if c >= CHUNK:
            second.add(c, c, r)
    first = reduced([SumOf("params")], {c: r for c, r in replies.items() if 0 < c < CHUNK}).value["w"]
    assert folding.finish().value["w"].tolist() == (first + second.finish().value["w"]).tolist()


# ---------------------------------------------------------------- what a plan sees
def test_only_marked_fields_of_single_replies_are_left_also_inside_another_record() -> None:
    left = remaining(Wrapped(reply(1.0, 5, loss=0.25), 7))
    assert left == Wrapped(Reply(None, None, 0.25, 0), 7)  # type: ignore[arg-type]
    assert remaining({"w": torch.ones(1)}) is None
    answer = reduced([Within(MeanOf("params", "n"), lambda c, r: r.of)], {4: Wrapped(reply(1.0, 5), 7)})
    assert answer.value["w"].tolist() == [1.0, -1.0]
    assert list(answer.replies) == [4]
    assert answer.replies[4].of.params is None


def test_a_small_value_of_every_reply_is_listed_by_client() -> None:
    replies = {c: reply(float(c)) for c in range(CHUNK + 2)}
    answer = reduced([ByClient(lambda c, r: r.params["w"][0].item() > 1.0)], replies)
    assert answer.value == {c: c > 1 for c in range(CHUNK + 2)}
    assert answer.weight == CHUNK + 2


# ---------------------------------------------------------------- a round
MEANS = (
    "fedavg", "fedprox", "fedadam", "fednova", "scaffold", "feddyn", "feddc", "stc", "feduv", "fedper", "fedrep",
    "fedbabu", "perfedavg", "ditto", "oneshot", "maxfl", "ifca, heads", "scaffold+quantise", "fednova+top_k+quantise",
)  # fmt: skip
"""Methods that take means, and leave nothing of a reply on its client."""


@pytest.mark.parametrize("case", MEANS)
def test_a_round_of_means_holds_two_replies_however_many_clients_it_has(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is folded and the first of a chunk; before, there were as many as clients."""
    replies: list[list[weakref.ref[Tensor]]] = []
    most = 0
    add = Folding.add

    def watched(self: Folding, place: int, client: int, reply: Any) -> None:
        nonlocal most
        replies.append([weakref.ref(t) for _, t in leaves(reply) if isinstance(t, Tensor) and t.ndim])
        add(self, place, client, reply)
        most = max(most, sum(any(t() is not None for t in reply) for reply in replies))

    monkeypatch.setattr(Folding, "add", watched)
    sim = simulator(case, "perceptron", clients_per_round=6)
    sim.round(sim.start(), 1)
    assert len(replies) == 6
    assert 0 < most <= 2
