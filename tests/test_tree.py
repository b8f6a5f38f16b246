from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unskew.errors import ProtocolError
from unskew.keys import Key
from unskew.reduction import weighted_mean
from unskew.tree import (
    Params,
    check_unchanged,
    flat,
    leaves,
    map_leaves,
    map_params,
    marks,
    squared_norm,
    unflat,
    weighted_sum,
    zeros_like,
)


@dataclass(frozen=True)
class Pair:
    a: Tensor
    rest: dict[str, tuple[float, ...]]


def model(seed: int, dtype: torch.dtype = torch.float64) -> Params:
    g = Key(seed).generator()
    return {
        "w": torch.randn(3, 2, generator=g, dtype=dtype),
        "b": torch.randn(2, generator=g, dtype=dtype),
        "s": torch.randn((), generator=g, dtype=dtype),
    }


def test_a_sum_is_accumulated_in_the_order_given() -> None:
    """1e8 + 1 - 1e8 is 0 in float32 and 1e8 - 1e8 + 1 is 1."""
    big, one, minus = ({"w": torch.tensor([v])} for v in (1e8, 1.0, -1e8))
    assert weighted_sum([big, one, minus], [1.0, 1.0, 1.0])["w"].item() == 0.0
    assert weighted_sum([big, minus, one], [1.0, 1.0, 1.0])["w"].item() == 1.0


@pytest.mark.parametrize("w", [[0.0, 0.0], [1.0, -1.0], [1.0, float("nan")], [1.0, float("inf")], [-2.0, 1.0]])
def test_weights_without_a_positive_finite_sum_are_refused(w: list[float]) -> None:
    with pytest.raises(ValueError, match="positive, finite sum"):
        weighted_mean([model(0), model(1)], w)


@given(st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=5))
def test_flat_and_unflat_are_inverse(shapes: list[list[int]]) -> None:
    like = {f"t{i}": torch.randn(s, generator=Key(i).generator()) for i, s in enumerate(shapes)}
    vector = flat(like)
    assert vector.shape == (sum(t.numel() for t in like.values()),)
    back = unflat(vector, like)
    assert list(back) == list(like)
    torch.testing.assert_close(back, like, rtol=0, atol=0)


def test_unflat_makes_views_and_refuses_a_vector_of_another_length() -> None:
    like = model(0)
    vector = flat(like)
    unflat(vector, like)["b"].fill_(7.0)
    assert bool((vector[6:8] == 7.0).all())
    with pytest.raises(RuntimeError, match="split_with_sizes"):
        unflat(vector[:-1], like)


def test_squared_norm_by_hand() -> None:
    """3^2 + 4^2 + 2^2 = 29."""
    assert squared_norm({"a": torch.tensor([3.0, 4.0]), "b": torch.tensor(2.0)}).item() == 29.0


def test_leaves_come_in_field_insertion_and_position_order() -> None:
    t = torch.zeros(1)
    tree = Pair(t, {"z": (1.0, 2.0), "a": ()})
    assert list(leaves(tree)) == [("/a", t), ("/rest/z/0", 1.0), ("/rest/z/1", 2.0)]


def test_map_leaves_keeps_the_shape_of_the_tree() -> None:
    tree = Pair(torch.ones(2), {"z": (1.0, 2.0), "a": ()})
    doubled = map_leaves(lambda a, b: a + b, tree, tree)
    assert isinstance(doubled, Pair)
    assert doubled.rest == {"z": (2.0, 4.0), "a": ()}
    assert doubled.a.tolist() == [2.0, 2.0]


def test_map_params_takes_the_names_of_the_first_and_zeros_like_its_shapes() -> None:
    difference = map_params(torch.sub, model(0), {**model(0), "more": torch.zeros(1)})
    assert list(difference) == ["w", "b", "s"]
    torch.testing.assert_close(difference, zeros_like(model(0)), rtol=0, atol=0)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool]
)
def test_a_change_that_pytorch_does_not_count_is_found_by_content(dtype: torch.dtype) -> None:
    table = {"w": torch.tensor([[1.0, 0.0], [float("nan") if dtype.is_floating_point else 0.0, 1.0]]).to(dtype).T}
    plain, whole = marks(table), marks(table, content=True)
    check_unchanged(whole, table, "the step", "its message")
    table["w"].data[0, 0] = 0
    check_unchanged(plain, table, "the step", "its message")
    with pytest.raises(ProtocolError, match=r"^the step changes its message in place at 'w'"):
        check_unchanged(whole, table, "the step", "its message")
