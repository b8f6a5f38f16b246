"""What a message must be beyond its type: lengths of named dimensions, sane numbers, the same parts as others."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from unskew import wire
from unskew.algorithms.maxfl import Decided
from unskew.errors import WireError
from unskew.protocol import Held, Layout
from unskew.runtime.guard import Guard, odd_ones, sizes_of

MODEL = {"0.weight": torch.zeros(5, 4), "2.weight": torch.zeros(3, 5)}
LAYOUT = Layout(("0.weight", "2.weight"), head=("2.weight",), classifier="2.weight")
GUARD = Guard(MODEL, 1 << 20, sizes=sizes_of(3, LAYOUT, MODEL))


@dataclass(frozen=True)
class Table:
    rows: Float[Tensor, "known features"]
    counts: Int64[Tensor, "classes"] | None = None


@dataclass(frozen=True)
class Nested:
    first: Table
    several: tuple[Float[Tensor, "known classes"], ...]
    named: dict[int, Float[Tensor, "classes classes"]]
    other: Float[Tensor, "classes"] | Held


def passed(value: Any, of: Any) -> Any:
    return GUARD.decode(wire.encode(value), of)


def test_a_run_knows_its_classes_and_the_features_of_its_last_layer() -> None:
    assert sizes_of(3, LAYOUT, MODEL) == {"classes": 3, "features": 5}
    assert sizes_of(3, Layout(("0.weight",)), MODEL) == {"classes": 3}


def test_named_dimensions_have_the_run_s_lengths() -> None:
    counts = torch.tensor([1, 0, 2])
    assert passed(Table(torch.zeros(2, 5), counts), Table).rows.shape == (2, 5)
    assert passed(Table(torch.zeros(0, 5), None), Table).counts is None
    with pytest.raises(WireError, match=r"must have 5 features, got the shape \(2, 4\) for \(known, features\)"):
        passed(Table(torch.zeros(2, 4), counts), Table)
    with pytest.raises(WireError, match=r"must have 3 classes, got the shape \(4,\) for \(classes\) \(at /counts\)"):
        passed(Table(torch.zeros(2, 5), torch.zeros(4, dtype=torch.int64)), Table)
    with pytest.raises(WireError, match="a tensor must have 3 classes"):
        passed(torch.zeros(2, 2), dict[str, Tensor] | Float[Tensor, "valuations classes"])


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("several", (torch.zeros(2, 3), torch.zeros(1, 3))),
        ("named", {0: torch.zeros(3, 3), 1: torch.zeros(3, 4)}),
        ("other", torch.zeros(2)),
        ("first", Table(torch.zeros(1, 5))),
    ],
)
def test_another_name_is_one_length_in_all_of_a_message(place: str, value: Any) -> None:
    good = {
        "first": Table(torch.zeros(2, 5)),
        "several": (torch.zeros(2, 3), torch.zeros(2, 3)),
        "named": {0: torch.zeros(3, 3)},
        "other": torch.zeros(3),
    }
    passed(Nested(**good), Nested)
    passed(Nested(**{**good, "other": Held(1, "0/x")}), Nested)
    with pytest.raises(WireError):
        passed(Nested(**{**good, place: value}), Nested)


@pytest.mark.parametrize(("number", "text"), [(1e300, "at most"), (float("-inf"), "finite"), (float("nan"), "finite")])
def test_a_number_beyond_reason_is_refused(number: float, text: str) -> None:
    with pytest.raises(WireError, match=f"a number must be {text}"):
        GUARD.check({0: number})
    GUARD.check({0: 2.0**53})


def test_who_sends_no_model_where_it_may_is_not_odd() -> None:
    """MAXFL: two of five join and send models, three train alone; of the models, one lacks a part."""
    sent: dict[int, Any] = {c: Decided(MODEL if c < 2 else None, 4) for c in range(5)}
    assert odd_ones(sent) == {}
    part = {"0.weight": MODEL["0.weight"]}
    assert list(odd_ones({**sent, 2: Decided(part, 4)})) == [2]
    assert list(odd_ones({0: Decided(MODEL, 4), 1: Decided({}, 4)})) == [1]


def test_values_kept_on_clients_have_one_shape() -> None:
    assert odd_ones({0: torch.zeros(1, 3), 1: torch.zeros(1, 3), 2: torch.zeros(2, 3)}).keys() == {2}
    rows = {0: Table(torch.zeros(1, 5)), 1: Table(torch.zeros(2, 5)), 2: Table(torch.zeros(2, 5).double())}
    assert odd_ones(rows).keys() == {2}
