import dataclasses
import json
import math
import struct
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NewType, Optional

import pytest
import torch
from annotated_types import Ge
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jaxtyping import Float, Int
from torch import Tensor, nn

from unskew import wire
from unskew.errors import ProtocolError, WireError
from unskew.keys import Key
from unskew.protocol import Carried, Held, Keep, Me, Step, sgd, step
from unskew.tree import Params

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
Count = NewType("Count", int)


@dataclass(frozen=True)
class Weights:
    params: Params


@dataclass(frozen=True)
class Trained:
    params: Carried
    n: int
    loss: float = 0.0
    note: str | None = None


@dataclass(frozen=True)
class Other:
    rows: Tensor
    steps: Annotated[int, Ge(1)] | None = None


@dataclass(frozen=True)
class Nothing:
    pass


def same(a: Any, b: Any) -> bool:
    """Equal type and value, tensors by dtype, shape and bits, dictionaries by order too."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return (
            a.dtype == b.dtype and a.shape == b.shape and a.numpy(force=True).tobytes() == b.numpy().tobytes()
            if a.dtype != torch.bfloat16
            else a.dtype == b.dtype and torch.equal(a.view(torch.int16), b.view(torch.int16))
        )
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    return bool(a == b)


def there_and_back(value: Any, of: Any) -> None:
    data = wire.encode(value)
    assert wire.nbytes(value) == len(data)
    parts, text = wire._pack(value)
    if text is not None:  # byte for byte what safetensors itself writes
        assert data == message({name: t.clone() for name, t in parts.items()}, text)
    back = wire.decode(data, of)
    assert same(value, back), (value, back)
    assert wire.encode(back) == data


def test_neither_texts_of_messages_nor_the_many_tensors_of_a_checkpoint_are_kept_in_memory() -> None:
    """A method may have its clients remember a round's number: each checkpoint of them is another."""
    few, many, other = ({f"{i}/{k}": torch.zeros(1) for i in range(k)} for k in (2, 20_000, 19_999))
    for warm in ({"note": "", "params": few}, many):  # Python itself keeps some 300 kB of tuples
        wire.nbytes(warm)
    tracemalloc.start()
    try:
        for t in range(3):
            wire.nbytes({"note": f"{t}" * 1_000_000, "params": few})
        wire.nbytes(other)
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------- any value of any type
def tensors() -> st.SearchStrategy[Tensor]:
    def make(dtype: torch.dtype, shape: list[int], seed: int) -> Tensor:
        return torch.randint(-3 if dtype.is_signed else 0, 2, shape, generator=Key(seed).generator()).to(dtype)

    return st.builds(make, st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3), st.integers(0, 9))


# Surrogates are no text: they cannot be written as UTF-8.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
names = texts.filter(lambda t: "/" not in t and t != "__metadata__")

Typed = tuple[Any, st.SearchStrategy[Any]]
LEAVES: list[Typed] = [
    (int, st.integers(-(2**80), 2**80)),
    (float, st.floats()),
    (bool, st.booleans()),
    (str, texts),
    (bytes, st.binary(max_size=20)),
    (Tensor, tensors()),
    (Literal["a", "b"], st.sampled_from(["a", "b"])),
    (Count, st.integers(0, 5)),
    (Annotated[int, Ge(0)], st.integers(0, 5)),
    (Held, st.builds(Held, st.integers(0, 5), texts)),
    (None, st.none()),
    (Nothing, st.just(Nothing())),
]


@st.composite
def typed(draw: st.DrawFn, depth: int = 3) -> Typed:
    """A type and a strategy for its values."""
    shape = draw(st.sampled_from(["leaf", "record", "dict", "ints", "tuple", "pair", "list", "optional"]))
    if depth == 0 or shape == "leaf":
        return draw(st.sampled_from(LEAVES))
    of, values = draw(typed(depth - 1))
    if shape == "record":
        other, more = draw(typed(depth - 1))
        # A field may have any name that a keyword may have; make_dataclass asks for identifiers.
        cls = dataclasses.make_dataclass("Record", [("a", of), ("ä_b", other)], frozen=True)
        return cls, st.builds(cls, values, more)
    if shape == "dict":
        return dict[str, of], st.dictionaries(names, values, max_size=3)  # type: ignore[valid-type]
    if shape == "ints":
        return dict[int, of], st.dictionaries(st.integers(-9, 9), values, max_size=3)  # type: ignore[valid-type]
    if shape == "tuple":
        return tuple[of, ...], st.lists(values, max_size=3).map(tuple)  # type: ignore[valid-type]
    if shape == "pair":
        other, more = draw(typed(depth - 1))
        return tuple[of, other], st.tuples(values, more)  # type: ignore[valid-type]
    if shape == "list":
        return list[of], st.lists(values, max_size=3)  # type: ignore[valid-type]
    if of is None or type(None) in getattr(of, "__args__", ()) or of is Nothing:
        return of, values
    return of | None, st.none() | values


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, Any]:
    of, values = draw(typed())
    return of, draw(values)


@settings(max_examples=300)
@given(cases())
@pytest.mark.seconds
def test_every_value_of_every_type_comes_back_and_weighs_what_it_is(case: tuple[Any, Any]) -> None:
    of, value = case
    there_and_back(value, of)


@given(st.dictionaries(names, tensors(), min_size=1, max_size=5))
@example({'a"b': torch.zeros(1), "a\\b": torch.zeros(2), "\x00\x1f\x7f\n": torch.zeros(3), "äπ\u2028😀": torch.ones(1)})
@example({"b": torch.zeros(2), "a": torch.zeros(2, dtype=torch.int64), "": torch.zeros(0)})
def test_named_tensors_come_back_in_their_order(params: Params) -> None:
    there_and_back(params, dict[str, Tensor])
    there_and_back(Weights(params), Weights)


# ---------------------------------------------------------------- tensors, as memory holds them
def test_views_that_share_memory_travel_as_what_they_show() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    params = {
        "base": base,
        "same": base,
        "row": base[1],
        "column": base[:, 1],
        "turned": base.t(),
        "spread": base[:1, :1].expand(2, 3),
        "none": base[:0],
        "empty": torch.empty(0),
        "scalar": base[1, 1],
    }
    back = wire.decode(wire.encode(params), dict[str, Tensor])
    assert wire.nbytes(params) == len(wire.encode(params))
    for name, t in params.items():
        assert torch.equal(back[name], t), name
    back["base"].zero_()
    assert back["same"][0, 1] == 1.0  # no two received tensors share memory


def test_a_tensor_of_at_most_one_element_travels_whatever_its_strides() -> None:
    """PyTorch calls it contiguous, but does not show it as bytes."""
    rows = torch.arange(48.0)
    for value in (rows[::5][:1], rows[::5][:0], rows.view(6, 8)[:1, ::8], rows.double()[7::9][:1]):
        there_and_back({"w": value}, dict[str, Tensor])


def test_parameters_travel_without_their_graph() -> None:
    back = wire.decode(wire.encode({"w": nn.Parameter(torch.ones(2))}), dict[str, Tensor])
    assert type(back["w"]) is Tensor
    assert not back["w"].requires_grad


def test_a_tensor_whose_sign_is_only_noted_travels_with_its_sign() -> None:
    for value in (torch.tensor([1 + 2j, 3 - 4j]).conj().imag, torch._neg_view(torch.tensor([2.0, -4.0]))):
        assert value.is_neg()
        assert wire.decode(wire.encode(value), Tensor).tolist() == [-2.0, 4.0]


@pytest.mark.parametrize(
    "tensor", [torch.zeros(2, dtype=torch.complex64), torch.eye(3).to_sparse(), torch.zeros(2, device="meta")]
)
def test_tensors_that_have_no_plain_bytes_are_refused(tensor: Tensor) -> None:
    for weigh in (wire.encode, wire.nbytes):
        with pytest.raises(WireError, match=r"cannot travel \(at params/w\)"):
            weigh(Weights({"w": tensor}))


# ---------------------------------------------------------------- what cannot be written
class Foreign:
    pass


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Foreign(), "Foreign cannot travel"),
        ({"a": {1, 2}}, r"set cannot travel \(at a\)"),
        (Trained(Keep({}), 1), "a Keep reached the wire"),
        ("\ud800", "surrogates not allowed"),
        ({"\udfff": torch.zeros(1)}, "surrogates not allowed"),
        ({"x": {"y/z": torch.zeros(1)}, "x/y": {"z": torch.zeros(1)}}, "two tensors .* x/y/z"),
        ({"__metadata__": torch.zeros(1)}, "__metadata__"),
        ({1: 1.0, "1": 2.0}, "two entries .* '1'"),
        ({1: torch.zeros(1), "1": torch.zeros(1)}, "two entries .* '1'"),
        pytest.param(10**5000, "digits", id="5000 digits"),
    ],
)
def test_what_could_not_come_back_as_it_was_is_refused(value: Any, text: str) -> None:
    for weigh in (wire.encode, wire.nbytes):
        with pytest.raises(WireError, match=text):
            weigh(value)


# ---------------------------------------------------------------- nothing is no bytes
@pytest.mark.parametrize(("value", "of"), [(None, type(None)), (None, Params | None), (Nothing(), Nothing)])
def test_a_message_without_content_is_no_bytes(value: Any, of: Any) -> None:
    assert wire.encode(value) == b""
    there_and_back(value, of)


@pytest.mark.parametrize(
    ("value", "of"),
    [({}, Params), ({}, Params | None), ((), tuple[int, ...] | None), (0, int), (False, bool), ("", str)],
)
def test_emptiness_and_absence_are_different_things(value: Any, of: Any) -> None:
    there_and_back(value, of)


# ---------------------------------------------------------------- unions
@pytest.mark.parametrize(
    ("value", "of"),
    [
        (Held(3, "0/params"), Carried),
        ({"a": torch.zeros(1)}, Carried),
        ({"a": torch.zeros(1), "b": torch.zeros(1)}, Held | Params),
        ({}, Carried),
        (Trained({"w": torch.ones(2)}, 3), Trained | Other),
        (Other(torch.ones(2), 4), Trained | Other),
        (Other(torch.ones(2)), Trained | Other | None),
        ({"a": torch.zeros(1), "b": None}, dict[str, Tensor | None]),
        ({"a": torch.zeros(1)}, dict[str, Tensor | None]),
        ({"a": torch.zeros(1)}, dict[str, Tensor | float]),
        ({"a": torch.zeros(1)}, dict[str, float] | dict[str, Tensor]),
        ({"a": 1.0}, dict[str, Tensor] | dict[str, float]),
        ({3: torch.zeros(1)}, dict[int, Tensor]),
        (1, int | float),
        (1, float | int),
        (1.0, int | float),
        (True, int | bool),
        (3, Count | None),
        ("b", Literal["a", "b"] | None),
        ((1, 2), Sequence[int] | None),
        ({"a": 1}, Mapping[str, int] | None),
        ((1, "x"), tuple[int, str] | tuple[str, int]),
        (("x", 1), tuple[int, str] | tuple[str, int]),
        (torch.ones(2), Float[Tensor, " n"] | Int[Tensor, " n"]),
        (torch.ones(2, dtype=torch.int64), Float[Tensor, " n"] | Int[Tensor, " n"]),
        (b"abc", bytes | None),
    ],
)
def test_the_right_member_of_a_union_comes_back(value: Any, of: Any) -> None:
    there_and_back(value, of)


@dataclass(frozen=True)
class Metres:
    value: float


@dataclass(frozen=True)
class Feet:
    value: float


@dataclass(frozen=True)
class Deep:
    inside: tuple[dict[str, Metres | Feet], ...]


@pytest.mark.parametrize(
    "of",
    [
        Metres | Feet,
        Metres | dict[str, float],
        Tensor | bytes,
        tuple[int, ...] | list[int],
        tuple[Metres | Feet | None, ...],
        Deep,
    ],
)
def test_a_union_whose_members_look_alike_on_the_wire_is_refused_when_the_signature_is_read(of: Any) -> None:
    def ask(self, me: Me, msg: of, memory: None) -> Step[tuple[int, None]]:
        yield from ()
        return 1, None

    with pytest.raises(ProtocolError, match=r"ask.* look the same on the wire"):
        wire.signature(ask)


@pytest.mark.parametrize("of", [Any, object, set[int], Tensor | Any, dict[tuple[int, int], Tensor], Foreign])
def test_a_type_that_the_wire_cannot_build_is_refused_when_the_signature_is_read(of: Any) -> None:
    def ask(self, me: Me, msg: int, memory: of) -> Step[tuple[int, of]]:
        yield from ()
        return 1, memory

    with pytest.raises(ProtocolError, match=r"ask.* cannot build"):
        wire.signature(ask)


# ---------------------------------------------------------------- hostile bytes
def message(tensors: dict[str, Tensor], body: str, extra: dict[str, str] | None = None) -> bytes:
    """A well-formed file with any JSON in it."""
    import safetensors.torch

    return bytes(safetensors.torch.save(tensors, metadata={"unskew": body, **(extra or {})}))


VALUE = Trained({"w": torch.arange(4.0), "b": torch.zeros(())}, 3, 0.5, "x")
BODY = {"params": ["w", "b"], "n": 3, "loss": 0.5, "note": "x"}
TENSORS = {"params/w": torch.arange(4.0), "params/b": torch.zeros(())}


@dataclass(frozen=True)
class Nest:
    inner: "Nest | None"


@dataclass(frozen=True)
class Share:
    part: float

    def __post_init__(self) -> None:
        if not 0 <= self.part <= 1:
            raise ValueError("a share lies between 0 and 1")


CHANGES: list[dict[str, Any]] = [
    *({"n": n} for n in (True, 3.0, "3", None, [3])),
    *({"loss": loss} for loss in (True, "0.5", 10**400)),
    *({"note": note} for note in (1, ["x"], "\ud800")),
    *({"params": names} for names in (["w"], ["w", "b", "b"], ["w", "c"], ["w", 1], {"w": None, "b": None}, None)),
    *({"params": packed} for packed in ([1, "w"], [True, "w"], [1, "w", 2])),
    {"extra": 1},
]
OTHERS = [int, float, str, bool, Tensor, bytes, Weights, tuple[int, ...], Held]
KEYS = [(int, "1.5"), (int, "x"), (int, " 1"), (int, "1_0"), (int, "01"), (bool, "False"), (float, "1")]
NO_BYTES = (torch.tensor([1.5, 2.0]), torch.zeros(2, 2, dtype=torch.uint8), torch.tensor([300]))
HOSTILE: list[tuple[bytes, Any, str]] = [
    *((message(TENSORS, json.dumps({**BODY, **change})), Trained, "") for change in CHANGES),
    (message({**TENSORS, "params/more": torch.zeros(1)}, json.dumps(BODY)), Trained, "does not name: params/more"),
    (message(TENSORS, json.dumps(BODY), {"note": "smuggled"}), Trained, "not a message"),
    *((wire.encode(VALUE), of, "") for of in (*OTHERS, Other, None)),
    *((b"", of, "") for of in (*OTHERS, Params)),
    *((message({}, json.dumps({text: 1})), dict[key, int], "") for key, text in KEYS),  # type: ignore[valid-type]
    *((message({"": wrong}, "null"), bytes, "") for wrong in NO_BYTES),
    # One byte for a truth value: 2 would make a tensor that is neither true nor false.
    (wire.encode({"m": torch.tensor([True, False])})[:-1] + b"\x02", dict[str, Tensor], "neither"),
    (struct.pack("<Q", 2**62) + b"{}", Trained, ""),
    *((message({}, '{"inner":' * depth + "null" + "}" * depth), Nest, "") for depth in (2_000, 200_000)),
    (message({}, '{"part":2.0}'), Share, "Share at top refuses its values: a share lies between 0 and 1"),
    (message({}, "1" + "0" * 400), float, "expected float"),
]


@pytest.mark.parametrize(("data", "of", "text"), HOSTILE)
def test_what_no_honest_sender_writes_is_refused(data: bytes, of: Any, text: str) -> None:
    with pytest.raises(WireError, match=text or "."):
        wire.decode(data, of)


@given(st.integers(0, 400))
def test_a_message_cut_short_is_refused(keep: int) -> None:
    data = wire.encode(VALUE)
    with pytest.raises(WireError):
        wire.decode(data[: min(keep, len(data) - 1)], Trained)
    with pytest.raises(WireError):
        wire.decode(data + b"\x00", Trained)


def allowed(value: Any) -> bool:
    """Whether every part of a decoded `ModelReply` is what its annotations allow."""
    params = isinstance(value.params, Held) or (
        isinstance(value.params, dict)
        and all(isinstance(k, str) and type(t) is Tensor and t.dtype in DTYPES for k, t in value.params.items())
    )
    scalars = type(value.n) is int and type(value.loss) is float and (value.note is None or type(value.note) is str)
    return type(value) is Trained and params and scalars


@settings(max_examples=400)
@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bits_bring_a_refusal_or_a_value_of_the_type(flips: list[tuple[int, int]]) -> None:
    """There is no checksum: a flipped mantissa is a value.  What must not come out is anything else."""
    data = bytearray(wire.encode(VALUE))
    for at, bits in flips:
        data[at % len(data)] ^= bits
    try:
        value = wire.decode(bytes(data), Trained)
    except WireError:
        return
    assert allowed(value)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        wire.decode(b"\x01" + data, Trained)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["params", "n", "w"]), inner),
    max_leaves=6,
)


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(list(BODY)), json_values), st.sampled_from([Trained, Trained | Other | None]))
@pytest.mark.seconds
def test_any_json_in_a_well_formed_file_brings_a_refusal_or_a_value_of_the_type(change: Any, of: Any) -> None:
    try:
        value = wire.decode(message(TENSORS, json.dumps({**BODY, **change})), of)
    except WireError:
        return
    assert allowed(value)


def test_a_message_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(WireError, match="message of 64 bytes exceeds the 63 allowed"):
        wire.decode(b"\xff" * 64, Trained, max_bytes=63)
    data = wire.encode(VALUE)
    assert wire.decode(data, Trained, max_bytes=len(data)).n == 3


def test_a_message_nested_as_deeply_as_json_can_be_is_refused_where_its_type_may_be() -> None:
    """The parser takes a depth that building, which needs several calls a level, does not."""
    body: Any = None
    for _ in range(5_000):
        body = {"inner": body}
    with pytest.raises(WireError, match="message is nested too deeply"):
        wire.build(Nest, body, {})


def test_a_whole_number_may_stand_for_a_float() -> None:
    value = wire.decode(message({}, "3"), float)
    assert (type(value), value) == (float, 3.0)


# ---------------------------------------------------------------- annotations of shape
@dataclass(frozen=True)
class Table:
    rows: Float[Tensor, "classes classes"]
    count: Int[Tensor, " classes"]


def test_shape_annotations_are_checked() -> None:
    there_and_back(Table(torch.eye(3), torch.arange(3)), Table)
    for wrong in (
        Table(torch.eye(3, dtype=torch.int64), torch.arange(3)),
        Table(torch.ones(2, 3), torch.arange(3)),
        Table(torch.ones(3), torch.arange(3)),
        Table(torch.eye(3), torch.arange(3.0)),
    ):
        with pytest.raises(WireError, match=r"tensor at (rows|count) must be"):
            wire.decode(wire.encode(wrong), Table)


# ---------------------------------------------------------------- kinds and signatures
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Weights({"w": torch.zeros(1)}), "model"),
        (({"a": 1},), "control"),
        ((1, Trained({"w": torch.zeros(1)}, 1)), "model"),
        ({"x": {"w": torch.zeros(1)}}, "model"),
        (torch.zeros(3), "control"),
        (Trained(Held(1, "k"), 1), "control"),
        (Weights({}), "control"),
        (None, "control"),
    ],
)
def test_what_carries_parameters_by_name_is_a_model(value: Any, expected: str) -> None:
    assert wire.kind(value) == expected


class Good:
    @step
    def train(self, me: Me, msg: Weights, memory: Params | None) -> Step[tuple[Trained, Params | None]]:
        w = yield from sgd(msg.params, None)  # type: ignore[arg-type]
        return Trained(w, me.n), memory

    @step
    def count(self, me: Me, msg: None, memory: None) -> tuple[int, None]:
        return me.n, None

    def init(self, params: Params, fed: object) -> Weights:
        return Weights(params)


class Disagreeing(Good):
    @step
    def other(self, me: Me, msg: None, memory: int | None) -> tuple[int, int | None]:
        return me.n, None


class SaidTwice(Good):
    @step
    def other(self, me: Me, msg: None, memory: Params | None) -> "tuple[int, Optional[Params]]":  # noqa: UP045
        return me.n, memory


class Untyped:
    @step
    def train(self, me, msg, memory):  # type: ignore[no-untyped-def]
        return 1, None

    def init(self, params, fed):  # type: ignore[no-untyped-def]
        return params


class HalfTyped:
    @step
    def train(self, me: Me, msg: int, memory: None) -> Step[int]:
        yield from ()
        return 1


def test_types_follow_from_annotations() -> None:
    found = wire.signatures(Good())
    assert found["train"] == wire.Signature(Weights, Trained, Params | None)
    assert found["count"] == wire.Signature(type(None), int, type(None))
    assert wire.memory_type(Good()) == Params | None
    assert wire.state_type(Good()) is Weights


@pytest.mark.parametrize("method", [Untyped(), HalfTyped()])
def test_a_step_without_types_is_refused(method: Any) -> None:
    with pytest.raises(ProtocolError, match=r"train must be annotated as \(self, me: Me, msg: M"):
        wire.signatures(method)


def test_a_state_without_a_type_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"Untyped\.init must be annotated"):
        wire.state_type(Untyped())


def test_steps_must_agree_on_what_a_client_remembers() -> None:
    with pytest.raises(ProtocolError, match="steps of Disagreeing keep different memories"):
        wire.memory_type(Disagreeing())
    assert wire.memory_type(SaidTwice()) == Params | None


@dataclass(frozen=True)
class Kept:
    model: Params | Held | Keep
    level: Tensor | Held | Keep | None
    inner: "tuple[Kept, ...]"


@dataclass(frozen=True)
class Keeps:
    @step
    def keep(self, me: Me, msg: Params, memory: None) -> tuple[Kept, None]:
        raise NotImplementedError


def test_a_value_that_stays_on_a_client_is_what_may_stand_beside_its_keep() -> None:
    """A table of tensors or a tensor, wherever in the reply; without a Keep nothing may stay."""
    of = wire.held_type(Keeps())
    for value in ({"w": torch.ones(2)}, torch.ones(3)):
        torch.testing.assert_close(wire.decode(wire.encode(value), of), value)
    with pytest.raises(WireError):
        wire.decode(wire.encode((torch.ones(3),)), of)
    assert wire.held_type(object()) is type(None)
