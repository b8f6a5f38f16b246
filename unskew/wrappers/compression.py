"""Smaller uploads: clipped to a norm, quantised to a few bits a number, or their largest entries alone.

`ClipNorm`  H. B. McMahan, D. Ramage, K. Talwar, L. Zhang, "Learning Differentially Private Recurrent Language Models",
ICLR 2018, section 2.3, flat clipping.  `Quantise`  D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, "QSGD:
Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS 2017, section 3.1, with the largest
magnitude as norm (its section 4).  `TopK`  S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory",
NeurIPS 2018, Algorithm 1, with a client's update in place of a gradient.

Notation   u_k  an upload of client k, as a difference from the model that it was sent;  m_k its memory, 0 at first
           v  a tensor of an upload;  |v| its largest magnitude;  s = 2^(bits - 1) - 1 levels on each side of zero
ClipNorm   u_k <- u_k min(1, S / |u_k|),  u_k all parameters in one vector, S the bound
Quantise   v_i <- |v| q_i / s with an integer q_i in [-s, s]: s v_i / |v| rounded up or down at random, so that
           E[v_i as received] = v_i
TopK       sent  g_k = top_k(m_k + u_k): the entries of largest magnitude, as they are
           kept  m_k <- m_k + u_k - g_k
           sum of all g_k received + m_k = sum of all u_k of these replies                                         (1)
Departures Statistics of normalisation layers are not clipped, and travel whole: they may move a hundred times as far as
           the parameters, which would then hardly move.  Clipping alone gives no privacy: that needs noise, too.
           Levels travel as integers of `bits` bits each instead of Elias code, with one scale a tensor.  Draws follow
           from the round's key, so a run can be repeated.
           k is a share of each tensor's entries, at least one, so no layer starves; `flatten` takes the largest of all
           together.  Positions travel as Golomb code (server/ternary.py), not as numbers.  A lost reply has no effect:
           the client also keeps the previous m_k, and each message tells it how many of its replies came (one integer).
           So (1) holds whatever is lost, as in STC.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from annotated_types import Gt, Interval
from torch import Tensor

from unskew.errors import DivergedError, WireError
from unskew.protocol import Me, UploadMark
from unskew.server.ternary import Scheme, Sparse, compress, decompress
from unskew.tree import Params, map_params, squared_norm
from unskew.wrappers.uploads import Names, Residuals, UploadWrapper

M = TypeVar("M")


@dataclass(frozen=True)
class ClipNorm(UploadWrapper):
    """Bound on the L2 norm of the parameters in a client's reply, as an update.

    Attributes:
        norm: The bound, S.
    """

    norm: Annotated[float, Gt(0.0)] = 1.0

    def encode(self, me: Me, updates: Params, residual: Params | None) -> tuple[Params, Params]:
        """Scale updates down to the bound; smaller ones stay bit-identical."""
        moved = {key: t for key, t in updates.items() if key.partition("/")[2] not in me.layout.buffers}
        size = float(squared_norm(map_params(lambda t: t.double(), moved)).sqrt()) if moved else 0.0
        if size <= self.norm:
            return updates, {}
        return updates | {key: t * (self.norm / size) for key, t in moved.items()}, {}


# ---------------------------------------------------------------- a few bits a number
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


# ---------------------------------------------------------------- the largest entries
@dataclass(frozen=True)
class Largest:
    """The largest entries of uploads.

    Attributes:
        code: Their positions, bits in bytes, uint8.
        counts: Entries of each tensor; () if each has the agreed share.
        values: Their values, one vector in a tuple; a later wrapper may change it, as any upload.
    """

    code: Tensor
    counts: tuple[int, ...]
    values: Annotated[tuple[Tensor, ...], UploadMark("update")]


@dataclass(frozen=True)
class TopKReply(Generic[M]):
    """The method's reply without its uploads, the names of their tensors, and their largest entries."""

    of: M
    names: Names
    sent: Largest


@dataclass(frozen=True)
class TopK(UploadWrapper):
    """Uploads of the largest entries only; the rest is remembered and added to the next upload.

    Attributes:
        share: Share of the entries that travels.
        flatten: Take the largest entries of all tensors together instead of each.
    """

    Reply: ClassVar[Any] = TopKReply
    Memory: ClassVar[Any] = Residuals

    share: Annotated[float, Interval(gt=0.0, le=1.0)] = 0.01
    flatten: bool = False

    @property
    def scheme(self) -> Scheme:
        """Form in which entries travel."""
        return Scheme(self.share, False, self.flatten)

    def encode(self, me: Me, updates: Params, residual: Params | None) -> tuple[Largest, Params]:
        """Choose the largest entries of the update plus what was left out before."""
        whole = {name: t + residual[name] if residual and name in residual else t for name, t in updates.items()}
        sparse = compress(whole, self.scheme)
        sent = decompress(sparse, whole, self.scheme)
        values = sparse.parts["values"]
        return Largest(sparse.parts["code"], sparse.counts, (values,)), {n: t - sent[n] for n, t in whole.items()}

    def decode(self, sent: Largest, like: Params) -> Params:
        """Put the entries back in their places, zeros elsewhere.

        Raises:
            WireError: If positions and values do not belong together.
        """
        values = sent.values[0] if sent.values else torch.empty(0)
        return decompress(Sparse({"code": sent.code, "values": values}, sent.counts), like, self.scheme)
