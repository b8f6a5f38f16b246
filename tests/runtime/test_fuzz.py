"""Whatever bytes come over a network: a value of the declared type or a refusal (memory: `test_amplification`)."""

import functools
import json
import random
from typing import Any

import pytest
from grid import one_of_a_kind
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recipe import CASES, rounds, simulator

from unskew import wire
from unskew.errors import WireError
from unskew.runtime.message import REPLIES, REQUESTS, Envelope, read, write
from unskew.runtime.validation import Validator


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


@pytest.mark.parametrize("case", one_of_a_kind(CASES))
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
