"""What a message must be beyond its type: lengths of named dimensions, sane numbers, the same parts as others."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NewType

import pytest
import torch
from annotated_types import Ge, Gt, Interval, Le, Lt
from jaxtyping import Float, Int8, Int64
from torch import Tensor

from unskew import wire
from unskew.algorithms.maxfl import MAXFLGroupReply
from unskew.errors import ProtocolError, WireError
from unskew.protocol import Held, Layout, Me, SampleCount, step
from unskew.runtime.validation import Validator, outline, sizes_of
from unskew.runtime.validation import odd_ones as odd_outlines

MODEL = {"0.weight": torch.zeros(5, 4), "2.weight": torch.zeros(3, 5)}
LAYOUT = Layout(("0.weight", "2.weight"), head=("2.weight",), classifier="2.weight")
GUARD = Validator(MODEL, 1 << 20, sizes=sizes_of(3, LAYOUT, MODEL))


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


@pytest.mark.parametrize(
    ("of", "good", "bad"),
    [
        (Float[Tensor, "... classes"], [(3,), (2, 3), (4, 2, 3)], [(4,), (3, 2), ()]),
        (Float[Tensor, "classes ..."], [(3,), (3, 2)], [(2, 3)]),
        (Float[Tensor, "features *rest classes"], [(5, 3), (5, 1, 2, 3)], [(3, 5), (5, 1, 2)]),
        (Float[Tensor, "_ _"], [(2, 3), (3, 2)], [(2,)]),
        (Float[Tensor, "_rows classes"], [(2, 3), (9, 3)], [(3, 2)]),
        (Float[Tensor, "2 classes"], [(2, 3)], [(3, 3), (2, 2)]),
        (Float[Tensor, "rows=2 classes"], [(2, 3)], [(3, 3), (2, 2)]),
        (Float[Tensor, ""], [()], [(1,)]),
        (Float[Tensor, "..."], [(), (2, 2)], []),
    ],
)
def test_dimensions_are_read_as_jaxtyping_writes_them(of: Any, good: Any, bad: Any) -> None:
    for shape in good:
        assert passed(torch.zeros(shape), of).shape == shape
    for shape in bad:
        with pytest.raises(WireError, match="must "):
            passed(torch.zeros(shape), of)


@pytest.mark.parametrize("dims", ["2*classes", "classes+1", "#classes", "*#classes", "?classes"])
def test_a_dimension_that_one_tensor_cannot_be_held_to_is_refused_when_the_step_is_read(dims: str) -> None:
    def train(me: Me, msg: None, memory: None) -> Any: ...

    train.__annotations__["return"] = tuple[Float[Tensor, dims], None]
    with pytest.raises(ProtocolError, match=r"must be a name, a number, _, \.\.\. or \*name, got"):
        wire.signature(step(train))


Place = NewType("Place", int)


@dataclass(frozen=True)
class Counted:
    n: SampleCount = 1
    share: Annotated[float, Interval(ge=0.0, lt=1.0)] = 0.5
    height: Annotated[float, Gt(0.0), Le(2.0)] | None = None
    either: Annotated[int, Lt(3)] | Annotated[float, Ge(5.0)] = 0
    several: tuple[Annotated[int, Ge(-1)], ...] = ()
    place: Annotated[Place, Le(9)] = Place(0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"n": 0}, r"at least 1, got 0 \(at /n\)"),
        ({"n": -(10**400)}, r"at least 1, got -1000000"),
        ({"share": 1.0}, r"less than 1, got 1.0 \(at /share\)"),
        ({"share": float("nan")}, "at least 0, got nan"),
        ({"height": 0.0}, "more than 0, got 0"),
        ({"height": 2.5}, "at most 2, got 2.5"),
        ({"either": 3}, "less than 3, got 3"),
        ({"either": 4.0}, "at least 5, got 4"),
        ({"place": Place(10)}, r"at most 9, got 10 \(at /place\)"),
        ({"several": (0, -2)}, r"at least -1, got -2 \(at /several/1\)"),
    ],
)
def test_a_number_outside_the_bounds_of_its_type_is_refused(value: dict[str, Any], text: str) -> None:
    passed(Counted(), Counted)
    passed(Counted(7, 0.0, 2.0, 5.0, (-1,)), Counted)
    with pytest.raises(WireError, match=f"a number must be {text}"):
        passed(Counted(**value), Counted)


@pytest.mark.parametrize(("number", "text"), [(1e300, "at most"), (float("-inf"), "finite"), (float("nan"), "finite")])
def test_a_number_beyond_reason_is_refused(number: float, text: str) -> None:
    with pytest.raises(WireError, match=f"a number must be {text}"):
        GUARD.check({0: number})
    GUARD.check({0: 2.0**53})


@dataclass(frozen=True)
class Signs:
    sign: dict[str, Int8[Tensor, "..."]]
    scale: dict[str, Float[Tensor, ""]]
    rows: dict[str, Float[Tensor, "classes"]] | None = None
    wide: dict[str, Float[Tensor, "any other"]] | dict[str, Int8[Tensor, "..."]] | None = None


def signs(**other: Any) -> Signs:
    sign = {n: t.to(torch.int8) for n, t in MODEL.items()}
    return Signs(**{"sign": sign, "scale": {n: t.sum() for n, t in MODEL.items()}, **other})


def test_a_table_s_type_says_what_its_tensors_are() -> None:
    passed(signs(), Signs)
    passed(signs(rows={"0.weight": torch.zeros(3)}, wide={"0.weight": MODEL["0.weight"]}), Signs)
    passed(signs(wide=signs().sign), Signs)
    GUARD.check(signs(), Signs)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"sign": MODEL}, r"at sign.*must be|int8"),  # the codec refuses it
        ({"sign": {"0.weight": torch.zeros(9, 9, dtype=torch.int8)}}, r"got torch.int8 \(9, 9\) \(at /sign\)"),
        ({"sign": {"other": torch.zeros(5, 4, dtype=torch.int8)}}, r"no tensor 'other' \(at /sign\); the part_names"),
        ({"scale": {"0.weight": torch.zeros(10**4)}}, "Float"),
        ({"scale": {"0.weight": torch.tensor(1.0, dtype=torch.float64)}}, r"got torch.float64 \(\) \(at /scale\)"),
        ({"wide": {"0.weight": torch.zeros(500, 500)}}, r"got torch.float32 \(500, 500\) \(at /wide\)"),
        ({"scale": {"0.weight": torch.tensor(float("nan"))}}, "finite"),
        ({"rows": {"0.weight": torch.zeros(4)}}, "must have 3 classes"),
    ],
)
def test_a_table_s_type_opens_no_other_names_shapes_or_numbers(other: Any, text: str) -> None:
    with pytest.raises(WireError, match=text):
        passed(signs(**other), Signs)


def test_a_table_without_such_a_type_is_of_the_model() -> None:
    for table in (signs().sign, signs().scale, {n: t.half() for n, t in MODEL.items()}):
        with pytest.raises(
            WireError, match=r"tensor 0.weight must be torch.float32 \(5, 4\), got .* says so in its type"
        ):
            passed(table, dict[str, Tensor])
        with pytest.raises(WireError, match=r"tensor 0.weight must be torch.float32 \(5, 4\), got"):
            GUARD.check(table)


def odd_ones(replies: dict[int, Any], sketch: Any = None) -> dict[int, str]:
    return odd_outlines({c: outline(r) for c, r in replies.items()}, outline(sketch))


@dataclass(frozen=True)
class Sealed:
    sealed: ClassVar[bool] = True
    numbers: Tensor


def test_what_is_added_up_unseen_has_one_length() -> None:
    """Tensors of other records may differ in length: they have as many rows as a client has clusters, for example."""
    long, short = torch.zeros(3), torch.zeros(2)
    assert list(odd_ones({c: Sealed(short if c == 1 else long) for c in range(3)})) == [1]
    assert odd_ones({0: Table(torch.zeros(2, 5)), 1: Table(torch.zeros(1, 5)), 2: Table(torch.zeros(1, 5))}) == {}


def test_who_sends_no_model_where_it_may_is_not_odd() -> None:
    """MAXFL: two of five join and send models, three train alone; of the models, one lacks a part."""
    sent: dict[int, Any] = {c: MAXFLGroupReply(MODEL if c < 2 else None, 4) for c in range(5)}
    assert odd_ones(sent) == {}
    part = {"0.weight": MODEL["0.weight"]}
    assert list(odd_ones({**sent, 2: MAXFLGroupReply(part, 4)})) == [2]
    assert list(odd_ones({0: MAXFLGroupReply(MODEL, 4), 1: MAXFLGroupReply({}, 4)})) == [1]


def test_a_sketch_of_the_reply_decides_where_nobody_else_has_sent_one() -> None:
    """One against one is a tie: the larger part wins, and of equal ones the sketch."""
    part = {"0.weight": MODEL["0.weight"]}
    assert odd_ones({4: MAXFLGroupReply(part, 1)}) == {}
    assert odd_ones({4: MAXFLGroupReply(part, 1)}, MAXFLGroupReply(MODEL, 1)) == {
        4: "its reply has other tensors than its step sends"
    }
    assert odd_ones({4: MAXFLGroupReply(MODEL, 1)}, MAXFLGroupReply(part, 1)) == {}
    assert odd_ones({4: MAXFLGroupReply(None, 1)}, MAXFLGroupReply(MODEL, 1)) == {}
    assert odd_ones({4: torch.zeros(2, 3)}, torch.zeros(1, 3)).keys() == {4}
    assert odd_ones({4: MAXFLGroupReply(part, 1), 5: MAXFLGroupReply(part, 1)}, MAXFLGroupReply(MODEL, 1)) == {}
