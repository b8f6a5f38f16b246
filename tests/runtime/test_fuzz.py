"""Whatever bytes come over a network: a value of the declared type or a refusal, in bounded memory."""

import functools
import json
import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recipe import CASES, rounds, simulator

from unskew import wire
from unskew.errors import WireError
from unskew.runtime.message import REPLIES, REQUESTS, Envelope, read, write
from unskew.runtime.validation import Validator

# Of Python objects for each byte of JSON: a list of empty lists is the worst, three bytes for 64 and a pointer.
FACTOR, FLOOR = 100, 1 << 20


@functools.cache
def traffic(case: str) -> tuple[tuple[bytes, Any], ...]:
    """Messages and replies of a round, each with its declared type."""
    seen: dict[tuple[Any, ...], tuple[bytes, Any]] = {}
    decode = wire.decode

    def looking(data: bytes, of: Any, max_bytes: int | None = None) -> Any:
        seen.setdefault((str(of), len(data)), (data, of))
        return decode(data, of, max_bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "decode", looking)
        for _ in rounds(simulator(case, "perceptron", seed=2, codec=True), 2):
            pass
    return tuple(seen.values())[:40]


def mutated(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """A message after one of the things that go wrong, or are made to."""
    out = bytearray(data or b"\0")
    kind = draw.randrange(7)
    at, end = sorted((draw.randrange(len(out)), draw.randrange(len(out) + 1)))
    if kind == 0:
        for _ in range(draw.randint(1, 8)):
            out[draw.randrange(len(out))] = draw.randrange(256)
    elif kind == 1:
        del out[at:end]
    elif kind == 2:
        out[at:at] = other[:end]
    elif kind == 3:
        out = bytearray(other[:at] + bytes(out[at:]))
    elif kind == 4:  # in the header: a number becomes another one
        digits = [i for i, b in enumerate(out[:4000]) if 48 <= b < 58]
        for i in draw.sample(digits, min(3, len(digits))):
            out[i] = 48 + draw.randrange(10)
    elif kind == 5:  # in the header: words and brackets
        head = int.from_bytes(out[:8], "little") if len(out) >= 8 else 0
        words = [b"F32", b"F64", b"I64", b"null", b"[]", b"{}", b"true", b"1e999", b"NaN", b'\\"', b"-1", b"\\ud800"]
        text = bytes(out[8 : 8 + min(head, len(out))])
        if text:
            where = draw.randrange(len(text))
            word = draw.choice(words)
            out[8 + where : 8 + where + len(word)] = word
    else:
        out[:8] = draw.choice([0, 1, 2, 1 << 20, 1 << 31, 1 << 62, (1 << 64) - 1]).to_bytes(8, "little")
    return bytes(out)


@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.slow if ", " in c else ()) for c in CASES])
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 32))
def test_a_mutilated_message_is_refused_or_of_its_type(case: str, seed: int) -> None:
    draw, messages = random.Random(seed), traffic(case)
    (data, of), (other, _) = draw.choice(messages), draw.choice(messages)
    bad = mutated(data, other, draw)
    validator = Validator(simulator_initial(), 1 << 22)
    try:
        value = validator.decode(bad, of)
    except WireError:
        return
    # What was let in is a value of the type: it travels again, and means the same.
    again = wire.encode(value)
    assert wire.encode(validator.decode(again, of)) == again


@functools.cache
def simulator_initial() -> Any:
    return simulator("fedavg", "perceptron").population.initial


@settings(max_examples=30)
@given(seed=st.integers(0, 1 << 32))
def test_refusing_takes_no_more_memory_than_the_message_is_worth(seed: int) -> None:
    draw = random.Random(seed)
    messages = traffic("feddw") + traffic("feddif") + traffic("stc")
    (data, of), (other, _) = draw.choice(messages), draw.choice(messages)
    assert peak(mutated(data, other, draw), of) < FLOOR + FACTOR * len(data + other)


def file_of(text: str, tensors: dict[str, Any] | None = None) -> bytes:
    header = json.dumps({"__metadata__": {"unskew": text}, **(tensors or {})}).encode()
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    "bomb",
    [
        file_of("[" + "[]," * 50_000 + "[]]"),
        file_of("[" * 100_000),
        file_of('{"a":' * 50_000),
        file_of("9" * 100_000),
        file_of("{}", {"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}),
        file_of("{}", {"w": {"dtype": "F32", "shape": [0, 1 << 60], "data_offsets": [0, 0]}}),
        file_of("{}", {f"w{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(5000)}),
        (1 << 40).to_bytes(8, "little") + b"{}",
        b"\xff" * 1000,
    ],
    ids=["lists", "depth", "nested tables", "digits", "promises", "empty giants", "crumbs", "long header", "noise"],
)
def test_small_bombs_do_not_go_off(bomb: bytes) -> None:
    (_, of), *_ = traffic("feddw")
    assert peak(bomb, of) < FLOOR + FACTOR * len(bomb)


def peak(data: bytes, of: Any) -> int:
    """Bytes of Python's memory at the worst moment of decoding; a refusal is expected or none, nothing else."""
    validator = Validator(simulator_initial(), 1 << 22)
    tracemalloc.start()
    try:
        validator.decode(data, of)
    except WireError:
        pass
    finally:
        worst = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return worst


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
HEADS = {name: list(of.__dataclass_fields__) for name, of in {**REQUESTS, **REPLIES}.items()}


@given(st.sampled_from([*REQUESTS, *REPLIES, "exec"]), st.data())
def test_any_head_is_refused_or_of_its_type(action: str, data: st.DataObject) -> None:
    fields = HEADS.get(action, ["a"])
    body = data.draw(st.fixed_dictionaries({name: json_values for name in fields}) | json_values)
    heads = {**REQUESTS, **REPLIES}
    try:
        head = read(Envelope(action, json.dumps(body)), heads)
    except WireError:
        return
    assert type(head) is heads[action]
    assert read(write(action, head), heads) == head


def test_half_a_surrogate_pair_is_no_text_wherever_a_head_holds_it() -> None:
    """A reply would hold it too, and could not be sent."""
    for action, fields in HEADS.items():
        for name in fields:
            body = dict.fromkeys(fields, 0) | {name: "\ud800"}
            with pytest.raises(WireError, match=r"the head of a message is not JSON: .*surrogates not allowed"):
                read(Envelope(action, json.dumps(body)), {**REQUESTS, **REPLIES})
