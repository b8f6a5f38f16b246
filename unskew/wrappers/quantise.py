"""Quantisation: each number of an upload travels as a few bits, right on average.

D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, "QSGD: Communication-Efficient SGD via Gradient Quantization and
Encoding", NeurIPS 2017, section 3.1, with the largest magnitude as norm (its section 4).

Notation   v  a tensor of an upload;  |v| its largest magnitude;  s = 2^(bits - 1) - 1 levels on each side of zero
Client     v_i <- |v| q_i / s with an integer q_i in [-s, s]: s v_i / |v| rounded up or down at random, so that
           E[v_i as received] = v_i
Departures The levels travel as integers of `bits` bits each instead of Elias code, with one scale a tensor.  Draws
           follow from the round's key, so a run can be repeated.  Statistics of normalisation layers travel whole.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from annotated_types import Interval
from torch import Tensor

from unskew.errors import DivergedError, WireError
from unskew.protocol import Me, UploadMark
from unskew.tree import Params
from unskew.wrappers.uploads import Names, UploadWrapper

M = TypeVar("M")


@dataclass(frozen=True)
class Levels:
    """Uploads as levels.

    Attributes:
        code: All tensors' levels, `bits` bits each, uint8.
        scales: Largest magnitude of each tensor, one vector in a tuple; a later wrapper may change it, as any upload.
    """

    code: Tensor
    scales: Annotated[tuple[Tensor, ...], UploadMark("update")]


@dataclass(frozen=True)
class QuantisedReply(Generic[M]):
    """The method's reply without its uploads, the names of their tensors, and their levels."""

    of: M
    names: Names
    sent: Levels


@dataclass(frozen=True)
class Quantise(UploadWrapper):
    """Uploads of a few bits a number, rounded at random to be right on average.

    Attributes:
        bits: Bits of each number: 2 sends its sign or zero, 8 one of 255 levels.
    """

    Reply: ClassVar[Any] = QuantisedReply

    bits: Annotated[int, Interval(ge=2, le=8)] = 8

    @property
    def levels(self) -> int:
        """Levels on each side of zero, s."""
        return int(2 ** (self.bits - 1) - 1)

    def encode(self, me: Me, updates: Params, residual: Params | None) -> tuple[Levels, Params]:
        """Round every number to a level."""
        scales: list[Tensor] = []
        levels: list[Tensor] = []
        for name, t in updates.items():
            scale = t.abs().max() if t.numel() else t.new_zeros(())
            if not bool(torch.isfinite(scale)):
                raise DivergedError("an update to quantise has NaN or infinite entries; lower local.lr")
            exact = t.reshape(-1) * (self.levels / scale if scale > 0 else 0.0)
            exact = exact.clamp(-self.levels, self.levels)  # |v| s / |v| may be rounded to more than s
            up = torch.rand(exact.shape, generator=(me.key / "quantise" / name).generator())
            level = exact.floor()
            levels.append((level + (up.to(exact) < exact - level) + self.levels).to(torch.uint8).cpu())
            scales.append(scale)
        code = packed(torch.cat(levels) if levels else torch.empty(0, dtype=torch.uint8), self.bits)
        return Levels(code, (torch.stack(scales),) if scales else ()), {}

    def decode(self, sent: Levels, like: Params) -> Params:
        """Turn levels back into numbers.

        Raises:
            WireError: If their number is not the uploads', or a level is out of range.
        """
        sizes = [t.numel() for t in like.values()]
        scales = sent.scales[0] if sent.scales else torch.empty(0)
        if tuple(scales.shape) != (len(sizes),):
            raise WireError(f"{len(sizes)} quantised tensors need a scale each, got the shape {tuple(scales.shape)}")
        levels = unpacked(sent.code, self.bits, sum(sizes))
        if len(levels) and int(levels.max()) > 2 * self.levels:
            raise WireError(f"a level must be at most {2 * self.levels}, got {int(levels.max())}")
        parts = torch.split(levels, sizes)
        return {
            name: ((part.to(t) - self.levels) * (scales[i].to(t) / self.levels)).view(t.shape)
            for i, ((name, t), part) in enumerate(zip(like.items(), parts, strict=True))
        }


def packed(numbers: Tensor, bits: int) -> Tensor:
    """Write numbers of so many bits one after the other, uint8.

    >>> packed(torch.tensor([1, 2, 3], dtype=torch.uint8), 2).tolist()
    [108]
    """
    table = np.unpackbits(numbers.numpy()[:, None], axis=1)[:, 8 - bits :]
    return torch.from_numpy(np.packbits(table.reshape(-1)))


def unpacked(code: Tensor, bits: int, count: int) -> Tensor:
    """Read `count` numbers of so many bits; the inverse of `packed`.

    Raises:
        WireError: If there are more or fewer.
    """
    if code.dtype != torch.uint8 or tuple(code.shape) != (-(-count * bits // 8),):
        raise WireError(f"{count} levels of {bits} bits are {-(-count * bits // 8)} bytes, got {tuple(code.shape)}")
    table = np.unpackbits(code.cpu().numpy())[: count * bits].reshape(count, bits)
    padded = np.zeros((count, 8), dtype=np.uint8)
    padded[:, 8 - bits :] = table
    return torch.from_numpy(np.packbits(padded, axis=1).reshape(-1))
