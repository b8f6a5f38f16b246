"""Sparse ternary compression: an update's largest entries, as positions, signs and one magnitude.

F. Sattler, S. Wiedemann, K.-R. Müller, W. Samek, "Robust and Communication-Efficient Federated Learning From Non-i.i.d.
Data", IEEE TNNLS 2020, Algorithms 1, 3 and 4; S. W. Golomb, "Run-length encodings", 1966.  Equation numbers are this
file's.

Notation   T    a block of n numbers: one tensor of the update, or with `flatten` all of it
           p    the share of its entries that travels
           k    number of these entries, max(floor(n p), 1)
           b    Golomb parameter: a gap is its quotient by 2^b, in unary, and b bits of remainder
           phi  golden ratio, (1 + sqrt 5) / 2
Ternary    I = the k largest |T_i|;  mu = 1/k sum_I |T_i|;  the block becomes mu sign(T_i) on I, 0 elsewhere     (1)
Positions  the gaps between neighbours of I: their number of skipped entries, geometric if I is random
           b = 1 + floor(log2( log(phi - 1) / log(1 - q) )), with q = k / n                                    (2)
           bits per position  b + 1 / (1 - (1 - q)^(2^b)); at q = 1/400 b = 8, and 10.11 bits                  (3)
           bits per block     k (bits per position + 1) + 32                                                   (4)
On the wire Codewords are split into parts: all signs, all remainders, all quotients, padded with ones to a whole byte.
           As many bits, and no loop over entries on either side.
           k is agreed beforehand and does not travel; if a block has fewer nonzero entries, the numbers do.
Departures Exactly k entries: of equal ones the first are taken, where the published code takes all.  On the server ties
           are the rule, as entries that one client alone sent have one magnitude.
           An entry that is 0 is never sent: eq. 1 calls it 0, and a sign bit cannot.  Where fewer than k
           are left, mu is their mean; the paper still divides by k.
           b follows the block's own share q, not the nominal p: a tensor of ten entries sends one, q is .1.
           A block that is sent completely needs no positions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Interval
from torch import Tensor

from unskew.errors import DivergedError, WireError
from unskew.tree import Params, flat, unflat

Bits = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Scheme:
    """Settings of the compression; both sides know them.

    Attributes:
        p: Share of the entries that travels.
        ternary: One magnitude and a sign per entry; without it the values themselves.
        flatten: The update is one block; otherwise each tensor is one, and at least one of its entries travels.
    """

    p: Annotated[float, Interval(gt=0.0, le=1.0)]
    ternary: bool = True
    flatten: bool = False


@dataclass(frozen=True)
class Sparse:
    """A compressed update.

    Attributes:
        parts: "code", the bits of signs and positions, (bytes,) uint8, and either "mu", a magnitude per block,
            (blocks,), or "values", (entries,).  A table, so it counts as part of the model.
        counts: Entries of each block; () if every block has the agreed k.
    """

    parts: dict[str, Tensor]
    counts: tuple[int, ...]

    # Names that validation allows in `parts`, where it would otherwise expect tensors of the model.
    part_names = frozenset({"code", "mu", "values"})


# ---------------------------------------------------------------- choice of entries
def budget(n: int, p: float) -> int:
    """Compute k, the number of entries that travel of a block of `n`.

    >>> budget(1200, 1 / 400), budget(10, 1 / 400), budget(100, 0.29)
    (3, 1, 29)
    """
    return max(math.floor(n * p + 1e-9), 1)  # 0.29 * 100 is 28.999999999999996, but 29 entries are meant


def largest(block: Tensor, k: int) -> Positions:
    """Find the positions of the k largest nonzero magnitudes, ascending; of equal ones the first.

    Raises:
        DivergedError: If an entry is NaN or infinite.

    >>> largest(torch.tensor([1.0, -3.0, 0.0, 3.0, -3.0]), 2).tolist()
    [1, 3]
    """
    size = block.abs()
    if not bool(torch.isfinite(size).all()):
        raise DivergedError("an update that is to be compressed holds NaN or infinite entries; lower local.lr")
    least = torch.topk(size, k, sorted=False).values.min()
    above = torch.nonzero(size > least)[:, 0].cpu().numpy()
    if not float(least) > 0.0:
        return above
    level = torch.nonzero(size == least)[:, 0].cpu().numpy()
    return np.sort(np.concatenate([above, level[: k - len(above)]]))


# ---------------------------------------------------------------- positions as bits
def golomb_parameter(q: float) -> int:
    """Compute b for entries each chosen with probability q (eq. 2).

    >>> [golomb_parameter(q) for q in (1 / 400, 0.01, 0.1, 0.5)]
    [8, 6, 3, 0]
    """
    return max(1 + math.floor(math.log2(math.log((math.sqrt(5.0) - 1.0) / 2.0) / math.log1p(-q))), 0)


def pack(positions: Sequence[Positions], n: Sequence[int], signs: Bits | None = None) -> Bits:
    """Encode positions in blocks of sizes `n`, each ascending, and a sign bit per entry, as bytes."""
    quotients, remainders = [], []
    for at, size in zip(positions, n, strict=True):
        if 0 < len(at) < size:
            b = golomb_parameter(len(at) / size)
            gaps = np.diff(at, prepend=-1) - 1
            quotients.append(gaps >> b)
            remainders.append(((gaps[:, None] >> np.arange(b)[::-1]) & 1).astype(np.uint8).reshape(-1))
    ends = np.cumsum(np.concatenate([*quotients, np.empty(0, np.int64)]) + 1) - 1
    unary = np.ones(int(ends[-1]) + 1 if len(ends) else 0, np.uint8)
    unary[ends] = 0
    bits = np.concatenate([np.empty(0, np.uint8) if signs is None else signs, *remainders, unary])
    return np.packbits(np.concatenate([bits, np.ones(-len(bits) % 8, np.uint8)]))


def unpack(code: Bits, n: Sequence[int], counts: Sequence[int], signed: bool = True) -> tuple[list[Positions], Bits]:
    """Decode untrusted bytes of `pack`: positions in blocks of sizes `n`, `counts` in each, and signs, 1 for minus.

    Raises:
        WireError: If the bytes are not exactly such positions.
    """
    coded = [(size, k, golomb_parameter(k / size)) for size, k in zip(n, counts, strict=True) if 0 < k < size]
    entries = sum(k for _, k, _ in coded)
    signs = sum(counts) if signed else 0
    fixed = signs + sum(k * b for _, k, b in coded)
    # A block's quotients add up to at most n / 2^b: a longer message is refused before it is unpacked.
    most = fixed + entries + sum(size >> b for size, _, b in coded)
    if not -(-fixed // 8) <= len(code) <= -(-most // 8):
        raise WireError(
            f"{len(code)} bytes of positions cannot hold {sum(counts)} entries, expected {-(-fixed // 8)} to "
            f"{-(-most // 8)} bytes"
        )
    bits = np.unpackbits(code)
    ends = np.flatnonzero(bits[fixed:] == 0)
    if len(ends) != entries:
        raise WireError(f"expected the positions of {entries} entries, got {len(ends)}")
    used = fixed + (int(ends[-1]) + 1 if entries else 0)
    if len(code) != -(-used // 8):
        raise WireError(f"positions end after {used} bits, but {len(code)} bytes came")
    quotients = np.diff(ends, prepend=-1) - 1
    blocks: list[Positions] = []
    at, entry = signs, 0
    for size, k in zip(n, counts, strict=True):
        if not 0 < k < size:
            blocks.append(np.arange(k))
            continue
        b = golomb_parameter(k / size)
        digits = bits[at : at + k * b].reshape(k, b).astype(np.int64)
        gaps = (quotients[entry : entry + k] << b) + (digits << np.arange(b)[::-1]).sum(1)
        positions = np.cumsum(gaps + 1) - 1
        if gaps.max() >= size or positions[-1] >= size:
            raise WireError(f"a position lies outside its block of {size} entries")
        blocks.append(positions)
        at, entry = at + k * b, entry + k
    return blocks, bits[:signs]


# ---------------------------------------------------------------- updates
def compress(update: Params, scheme: Scheme) -> Sparse:
    """Compress an update for sending (eq. 1); `decompress` restores its values.

    Raises:
        DivergedError: If an entry is NaN or infinite.
    """
    blocks = _blocks(update, scheme)
    n = [len(t) for t in blocks]
    k = [budget(size, scheme.p) for size in n]
    # Where every value travels anyway, zeros are values like others, and no position is needed.
    dense = [not scheme.ternary and most == size for most, size in zip(k, n, strict=True)]
    positions = [
        np.arange(size) if every else largest(t, most) for t, size, most, every in zip(blocks, n, k, dense, strict=True)
    ]
    chosen = [t[torch.from_numpy(at).to(t.device)] for t, at in zip(blocks, positions, strict=True)]
    counts = [len(at) for at in positions]
    if scheme.ternary:
        # NumPy's sum: PyTorch's depends on the number of threads, and this one travels.
        mu = [float(t.abs().double().cpu().numpy().sum()) / max(len(t), 1) for t in chosen]
        signs = [(t < 0).cpu().numpy().astype(np.uint8) for t in chosen]
        code = pack(positions, n, np.concatenate([*signs, np.empty(0, np.uint8)]))
        name, values = "mu", torch.tensor(mu, dtype=_widest(blocks))
    else:
        code = pack(positions, n)
        name, values = "values", torch.cat([*(t.cpu() for t in chosen), torch.empty(0, dtype=_widest(blocks))])
    return Sparse({"code": torch.from_numpy(code), name: values}, () if counts == k else tuple(counts))


def decompress(sparse: Sparse, like: Params, scheme: Scheme) -> Params:
    """Decompress a received update, in the shapes and types of `like`.

    Raises:
        WireError: If this untrusted input is not an update of such tensors compressed by `scheme`.
    """
    blocks = _blocks(like, scheme)
    n = [len(t) for t in blocks]
    k = [budget(size, scheme.p) for size in n]
    counts = list(sparse.counts) if sparse.counts else k
    if len(counts) != len(k) or not all(0 <= c <= most for c, most in zip(counts, k, strict=True)):
        raise WireError(f"a compressed update of {len(k)} blocks has at most {k[:5]}... entries, got {counts[:5]}...")
    name, entries = ("mu", len(n)) if scheme.ternary else ("values", sum(counts))
    if sparse.parts.keys() != {"code", name}:
        raise WireError(f"a compressed update has the parts code and {name}, got {sorted(sparse.parts)}")
    code, values = sparse.parts["code"], sparse.parts[name]
    if code.dtype != torch.uint8 or code.ndim != 1:
        raise WireError(f"positions are bytes, got {code.dtype} {tuple(code.shape)}")
    if not values.is_floating_point() or values.shape != (entries,):
        raise WireError(f"expected {entries} numbers as {name}, got {values.dtype} {tuple(values.shape)}")
    if not bool(torch.isfinite(values).all()) or (scheme.ternary and bool((values < 0).any())):
        raise WireError(f"{name} of a compressed update must be finite{' and >= 0' if scheme.ternary else ''}")
    positions, minus = unpack(code.cpu().numpy(), n, counts, scheme.ternary)
    signs = 1.0 - 2.0 * torch.from_numpy(minus).to(values.dtype)
    out = []
    first = 0
    for i, (t, at) in enumerate(zip(blocks, positions, strict=True)):
        last = first + len(at)
        here = values[i].cpu() * signs[first:last] if scheme.ternary else values[first:last]
        dense = torch.zeros_like(t)
        dense[torch.from_numpy(at).to(t.device)] = here.to(t)
        out.append(dense)
        first = last
    if scheme.flatten:
        return unflat(out[0], like) if out else {}
    return {name: t.view(like[name].shape) for name, t in zip(like, out, strict=True)}


def _blocks(update: Params, scheme: Scheme) -> list[Tensor]:
    if scheme.flatten:
        return [flat(update)] if update else []
    return [t.reshape(-1) for t in update.values()]


def _widest(blocks: Sequence[Tensor]) -> torch.dtype:
    """Return a type that holds the numbers of all blocks."""
    dtype = torch.float32 if not blocks else blocks[0].dtype
    for t in blocks:
        dtype = torch.promote_types(dtype, t.dtype)
    return dtype
