"""A hostile message takes at most ten times its bytes of memory before it is refused.

Measured outside Python's own accounts, because safetensors and PyTorch allocate for themselves: the peak of a forked
process's resident memory.
"""

import ctypes
import gc
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unskew import wire
from unskew.errors import WireError
from unskew.runtime.validation import Validator
from unskew.tree import Params

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs Linux's /proc")
MOST, NOISE = 10, 1 << 20
SIZE = 2_000_000


@dataclass(frozen=True)
class One:
    """A record."""

    a: int


@dataclass(frozen=True)
class Nested:
    """A record that may hold itself."""

    deep: "dict[str, Nested]"


@dataclass(frozen=True)
class Halves:
    """Numbers of two bytes."""

    x: Tensor


SMALL_MESSAGE = wire.encode(Halves(torch.ones(8, dtype=torch.bfloat16)))


def resident(key: str) -> int:
    (line,) = (text for text in Path("/proc/self/status").read_text("ascii").splitlines() if text.startswith(key))
    return int(line.split()[1]) << 10


def peak(call: Callable[[], object]) -> tuple[int, str]:
    """Bytes that a call takes at its peak, and the error it ends with."""
    out, into = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            torch.set_num_threads(1)
            # A first message brings the pages of PyTorch's code into a new process.
            Validator({}, 1 << 40).decode(SMALL_MESSAGE, Halves)
            gc.freeze()  # a collection would copy every page of this process, which is half a gigabyte
            gc.disable()
            getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)(0)
            Path("/proc/self/clear_refs").write_text("5")
            before, ending = resident("VmRSS"), ""
            try:
                call()
            except WireError as error:
                ending = str(error)
            os.write(into, json.dumps([resident("VmHWM") - before, ending]).encode())
        finally:
            os._exit(0)
    os.close(into)
    with open(out, "rb") as pipe:
        taken, ending = json.loads(pipe.read())
    os.waitpid(pid, 0)
    return taken, ending


def file_of(text: str, entries: bytes = b"", body: bytes = b"") -> bytes:
    header = b'{"__metadata__":{"unskew":' + json.dumps(text, ensure_ascii=False).encode() + b"}" + entries + b"}"
    return len(header).to_bytes(8, "little") + header + body


def many(unit: str) -> str:
    return "[" + unit * (SIZE // len(unit.encode())) + unit.rstrip(",") + "]"


def crumbs(shape: str, size: int) -> bytes:
    entry = ',"%x":{"dtype":"U8","shape":[%s],"data_offsets":[%d,%d]}'
    n = SIZE // 60
    entries = "".join(entry % (i, shape, i * size, (i + 1) * size) for i in range(n)).encode()
    return file_of("null", entries, bytes(n * size))


SCALAR = b':{"dtype":"U8","shape":[],"data_offsets":[0,1]}'
LONG = "\N{GRINNING FACE}" + "a" * SIZE  # one wide letter makes every letter four bytes
BOMBS: dict[str, tuple[Callable[[], bytes], Any]] = {
    "tensors of a byte": (lambda: crumbs("", 1), Params),
    "tensors of nothing": (lambda: crumbs("0", 0), Params),
    "sides of a tensor": (
        lambda: file_of(
            "null", b',"":{"dtype":"U8","shape":[' + b"1," * (SIZE // 2) + b'1],"data_offsets":[0,1]}', b"0"
        ),
        Tensor,
    ),
    "one name many times": (
        lambda: file_of("null", b',"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' * (SIZE // 52)),
        Params,
    ),
    "tables in the header": (lambda: file_of("null", b',"w":[' + b"{}," * (SIZE // 3) + b"{}]"), Params),
    "metadata": (
        lambda: (lambda head: len(head).to_bytes(8, "little") + head)(
            b'{"__metadata__":{"unskew":"0"' + b"".join(b',"%x":""' % i for i in range(SIZE // 10)) + b"}}"
        ),
        int,
    ),
    "lists": (lambda: file_of(many("[],")), tuple[tuple[int, ...], ...]),
    "lists for a record": (lambda: file_of(many("[],")), One),
    "tables": (lambda: file_of(many("{},")), tuple[dict[str, int], ...]),
    "records": (lambda: file_of(many('{"a":0},')), tuple[One, ...]),
    "entries": (
        lambda: file_of("{" + ",".join(f'"{i}":0' for i in range(SIZE // 10)) + "}"),
        dict[int, int],
    ),
    "numbers": (lambda: file_of(many("300,")), tuple[float, ...]),
    "words": (lambda: file_of(many('"ab",')), tuple[str, ...]),
    "a long text": (lambda: file_of(f'"{LONG}"'), int),
    "a long text with an escape": (lambda: file_of(f'"\\u0001{LONG}"'), int),
    "a long key": (lambda: file_of(f'{{"{LONG}":0}}'), dict[str, dict[str, int]]),
    "a long name": (lambda: file_of("null", b',"' + LONG.encode() + b'"' + SCALAR, b"0"), One),
    "long keys in each other": (
        lambda: file_of('{"deep":{"%s":' % ("k" * (SIZE // 150)) * 150 + '{"deep":{}}' + "}}" * 150),
        Nested,
    ),
    "half floats": (lambda: wire.encode(Halves(torch.full((SIZE // 2,), 1e30, dtype=torch.bfloat16))), Halves),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_hostile_message_takes_at_most_ten_times_its_bytes(bomb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, of = BOMBS[bomb]
    data = make()
    monkeypatch.setattr(wire, "SMALL", 1 << 10)
    taken, ending = peak(lambda: Validator({}, 1 << 40).decode(data, of))
    assert ending
    assert len(ending) < 400, "a refusal is a sentence, whatever it refuses"
    assert taken < MOST * len(data) + NOISE


def test_bytes_of_one_s_own_are_not_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint may hold a row for each of many clients."""
    monkeypatch.setattr(wire, "SMALL", 0)
    rows = tuple({"n": i} for i in range(1000))
    data = wire.encode(rows)
    assert wire.decode(data, tuple[dict[str, int], ...]) == rows
    with pytest.raises(WireError, match=r"^message of \d+ bytes could take \d+ bytes of memory, more than"):
        wire.decode(data, tuple[dict[str, int], ...], 1 << 40)


def test_a_name_too_long_to_come_back_is_not_sent() -> None:
    with pytest.raises(WireError, match=r"a name of 5000 characters exceeds the 4096 allowed \(aaa"):
        wire.encode({"a" * 5000: torch.ones(1)})


@pytest.mark.parametrize(("text", "fits"), [(r"\\ud800", True), (r"\ud800", False), (r"\\\ud83d\ude00", False)])
def test_an_escape_of_half_a_character_is_told_from_a_backslash(text: str, fits: bool) -> None:
    data = file_of(f'"{text}"')
    if fits:
        assert wire.decode(data, str) == r"\ud800"
    else:
        with pytest.raises(WireError, match="half a character"):
            wire.decode(data, str)
