"""Sparse ternary compression: which entries, how many bits; bytes from anywhere are decoded or refused."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unskew.errors import WireError
from unskew.keys import Key
from unskew.server.ternary import (
    Scheme,
    Sparse,
    budget,
    compress,
    decompress,
    golomb_parameter,
    largest,
    pack,
    unpack,
)
from unskew.tree import Params


def random_update(*sizes: int, seed: int = 0) -> Params:
    return {
        f"t{i}": torch.randn(n, generator=(Key(seed) / i).generator(), dtype=torch.float64) for i, n in enumerate(sizes)
    }


# ---------------------------------------------------------------- which entries
def test_a_tensor_by_hand() -> None:
    """T = (.1, -4, 2, .5), p = .5: k = 2, the entries -4 and 2, mu = (4 + 2) / 2 = 3 (eq. 1)."""
    update, scheme = {"w": torch.tensor([[0.1, -4.0], [2.0, 0.5]])}, Scheme(0.5)
    assert decompress(compress(update, scheme), update, scheme)["w"].tolist() == [[0.0, -3.0], [3.0, 0.0]]
    values = Scheme(0.5, ternary=False)
    assert decompress(compress(update, values), update, values)["w"].tolist() == [[0.0, -4.0], [2.0, 0.0]]


def test_of_equal_entries_the_first_are_taken() -> None:
    """Exactly k, on any machine: magnitudes 2 at 1 and 4, then 1 at 0, 2, 3, 5."""
    block = torch.tensor([1.0, 2.0, -1.0, 1.0, -2.0, 1.0])
    assert [largest(block, k).tolist() for k in range(1, 7)] == [
        [1],
        [1, 4],
        [0, 1, 4],
        [0, 1, 2, 4],
        [0, 1, 2, 3, 4],
        [0, 1, 2, 3, 4, 5],
    ]


def test_an_entry_that_is_zero_is_never_sent() -> None:
    """Else mu, here 6 / 1, would be spread over entries that eq. 1 calls 0; the number of entries is then told."""
    update, scheme = {"w": torch.tensor([0.0, -6.0, 0.0, 0.0]), "v": torch.ones(4)}, Scheme(0.75)
    sparse = compress(update, scheme)
    assert sparse.counts == (1, 3)
    assert decompress(sparse, update, scheme)["w"].tolist() == [0.0, -6.0, 0.0, 0.0]
    nothing = compress({"w": torch.zeros(4)}, scheme)
    assert nothing.counts == (0,)
    assert decompress(nothing, {"w": torch.zeros(4)}, scheme)["w"].tolist() == [0.0] * 4


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    p=st.floats(0.001, 1.0),
    seed=st.integers(0, 99),
    flatten=st.booleans(),
)
def test_every_block_has_k_entries_of_one_magnitude(sizes: list[int], p: float, seed: int, flatten: bool) -> None:
    """I-34: values in {-mu, 0, mu}, k of them, k mu = the sum of the magnitudes they stand for, and the right signs."""
    update, scheme = random_update(*sizes, seed=seed), Scheme(p, flatten=flatten)
    sparse = compress(update, scheme)
    assert sparse.counts == ()
    sent = decompress(sparse, update, scheme)
    pairs = list(zip(update.values(), sent.values(), strict=True))
    if flatten:
        pairs = [(torch.cat(list(update.values())), torch.cat(list(sent.values())))]
    for t, s in pairs:
        mask = s != 0
        assert int(mask.sum()) == budget(len(t), p)
        assert len(s[mask].abs().unique()) == 1
        assert float(s.abs().sum()) == pytest.approx(float(t[mask].abs().sum()), rel=1e-12)
        assert torch.equal(s[mask].sign(), t[mask].sign())
        assert not bool((~mask).any()) or float(t[mask].abs().min()) >= float(t[~mask].abs().max())


def test_everything_without_ternary_is_the_update_itself() -> None:
    """p = 1: no bit is spent on positions, and zeros are values like others."""
    update = {"w": torch.tensor([[0.0, -1.5], [2.0, 0.0]]), "b": torch.tensor(3.0)}
    for flatten in (False, True):
        scheme = Scheme(1.0, ternary=False, flatten=flatten)
        sparse = compress(update, scheme)
        assert len(sparse.parts["code"]) == 0
        got = decompress(sparse, update, scheme)
        assert all(torch.equal(got[n], t) for n, t in update.items())


# ---------------------------------------------------------------- bits
def test_the_code_by_hand() -> None:
    """Positions 2, 3, 9 of 10 with signs + - +: q = .3, log(.618) / log(.7) = 1.349, b = 1 + floor(.432) = 1.

    Gaps 2, 0, 5 are quotients 1, 0, 2 and remainders 0, 0, 1.  Signs 010, remainders 001, quotients 10 0 110, padded
    with ones: 01000110 01101111.
    """
    code = pack([np.array([2, 3, 9])], [10], np.array([0, 1, 0], np.uint8))
    assert golomb_parameter(0.3) == 1
    assert code.tolist() == [0b01000110, 0b01101111]
    (positions,), signs = unpack(code, [10], [3])
    assert positions.tolist() == [2, 3, 9]
    assert signs.tolist() == [0, 1, 0]


def test_the_golomb_parameter_is_sattlers() -> None:
    """p = 1/400: log(.618) / log(.9975) = 192.2, log2 of it 7.59, b = 8 (eq. 2)."""
    assert golomb_parameter(1 / 400) == 8


@st.composite
def supports(draw: Any) -> tuple[list[list[int]], list[int]]:
    n = draw(st.lists(st.integers(1, 400), min_size=1, max_size=4))
    return [sorted(draw(st.sets(st.integers(0, size - 1), max_size=size))) for size in n], n


@given(support=supports(), seed=st.integers(0, 9), signed=st.booleans())
def test_any_support_comes_back(support: tuple[list[list[int]], list[int]], seed: int, signed: bool) -> None:
    found, n = support
    counts = [len(s) for s in found]
    signs = Key(seed).numpy().integers(0, 2, sum(counts), np.uint8)
    code = pack([np.array(s, np.int64) for s in found], n, signs if signed else None)
    positions, minus = unpack(code, n, counts, signed)
    assert [p.tolist() for p in positions] == found
    assert minus.tolist() == (signs.tolist() if signed else [])


# ---------------------------------------------------------------- bytes from anywhere
LIKE = {"w": torch.zeros(40), "b": torch.zeros(3)}
SCHEME = Scheme(0.2)
GOOD = compress(random_update(40, 3), SCHEME)


def altered(counts: tuple[int, ...] = (), **parts: Any) -> Sparse:
    return Sparse({**GOOD.parts, **parts}, counts)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (altered(counts=(8,)), "2 blocks"),
        (altered(counts=(8, 1, 1)), "2 blocks"),
        (altered(counts=(9, 1)), r"at most \[8, 1\]"),
        (altered(counts=(-1, 1)), r"got \[-1, 1\]"),
        (altered(counts=(7, 1)), "entries"),
        (Sparse({"code": GOOD.parts["code"]}, ()), "parts code and mu"),
        (Sparse({**GOOD.parts, "more": torch.zeros(1)}, ()), "parts code and mu"),
        (Sparse({"code": GOOD.parts["code"], "values": torch.zeros(9)}, ()), "parts code and mu"),
        (altered(code=GOOD.parts["code"].to(torch.int64)), "positions are bytes"),
        (altered(code=GOOD.parts["code"][None]), "positions are bytes"),
        (altered(code=GOOD.parts["code"][:-1]), "entries"),
        (altered(code=torch.cat([GOOD.parts["code"], torch.tensor([255], dtype=torch.uint8)])), "bytes"),
        (altered(code=torch.zeros(10**6, dtype=torch.uint8)), "1000000 bytes of positions cannot hold 9 entries"),
        (altered(code=torch.empty(0, dtype=torch.uint8)), "0 bytes of positions"),
        (altered(code=torch.zeros_like(GOOD.parts["code"])), "positions of 9 entries"),
        (altered(mu=torch.ones(3)), "expected 2 numbers as mu"),
        (altered(mu=torch.ones(2, dtype=torch.int64)), "expected 2 numbers as mu"),
        (altered(mu=torch.tensor([1.0, math.nan])), "must be finite and >= 0"),
        (altered(mu=torch.tensor([1.0, math.inf])), "must be finite and >= 0"),
        (altered(mu=torch.tensor([1.0, -1.0])), "must be finite and >= 0"),
    ],
)
def test_what_is_no_such_update_is_refused(message: Sparse, why: str) -> None:
    with pytest.raises(WireError, match=why):
        decompress(message, LIKE, SCHEME)


@given(data=st.binary(max_size=12), counts=st.tuples(st.integers(0, 8), st.integers(0, 1)))
def test_any_bytes_are_decoded_or_refused(data: bytes, counts: tuple[int, int]) -> None:
    """Nothing but WireError; and what is accepted is within bounds and is written as the same bytes."""
    code = np.frombuffer(data, np.uint8)
    try:
        positions, signs = unpack(code, [40, 3], list(counts))
    except WireError:
        return
    for at, n, k in zip(positions, (40, 3), counts, strict=True):
        assert len(at) == len(set(at.tolist())) == k
        assert all(0 <= i < n for i in at.tolist())
    assert pack(positions, [40, 3], signs).tobytes() == data
