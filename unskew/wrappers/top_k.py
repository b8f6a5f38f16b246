"""Sparsification with memory: clients send the largest entries of their updates, and the rest later.

S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, Algorithm 1, with a client's update
in place of a gradient.

Notation   u_k  an upload of client k, as a difference from the model that it was sent;  m_k its memory, 0 at first
Client     sent  g_k = top_k(m_k + u_k): the entries of largest magnitude, as they are
           kept  m_k <- m_k + u_k - g_k
Departures k is a share of each tensor's entries, at least one, so no layer starves; `flatten` takes the largest of all
           together.  Positions travel as Golomb code (server/ternary.py), not as numbers.
           Statistics of normalisation layers travel whole.
           A lost reply has no effect: the client also keeps the previous m_k, and each message tells it how many of its
           replies came (one integer).  So (1) holds whatever is lost, as in STC.
           sum of all g_k received + m_k = sum of all u_k of these replies                                         (1)
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import torch
from annotated_types import Interval
from torch import Tensor

from unskew.protocol import Me, UploadMark
from unskew.server.ternary import Scheme, Sparse, compress, decompress
from unskew.tree import Params
from unskew.wrappers.uploads import Names, Residuals, UploadWrapper

M = TypeVar("M")


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
