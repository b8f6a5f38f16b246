"""Sub-frames and resource blocks: the time that a cell needs for a set of transfers.

Numerology of 5G New Radio: a resource block (RB) is 12 subcarriers, a sub-frame 1 ms.  The cell also serves cellular
users; what they leave is min(Poisson(free_rbs), rbs) resource blocks in each sub-frame.

    need of a link      r_i = bits / (RB bandwidth * sub-frame * gamma_i), in RBs                   (1)
    to and from the     in sub-frame s link i gets N_s u_si / sum_j u_sj, u ~ U(0.2, 1.2), j over
    base station        the links and the cellular users, done or not; all end when the last does   (2)
    device to device    one queue, first come first served: the smallest k, N_1 + ... + N_k >= sum_i ceil(r_i)  (3)

This is how FedDif's released code counts.  Shares are drawn anew in every sub-frame.  There is no spatial reuse, and a
message to many devices is one transfer for each.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
from annotated_types import Ge, Gt

from unskew.errors import ConfigError
from unskew.keys import Key
from unskew.world.place import Array

DRAWS = 1 << 18
"""Most numbers drawn for one exchange; transfers still unfinished then go on at the mean rate."""

CHUNK = 1 << 13
"""Numbers drawn at a time."""


class Airtime(NamedTuple):
    """Cost of an exchange: sub-frames until its last transfer is done, and resource blocks given to transfers."""

    subframes: int
    rbs: int


@dataclass(frozen=True)
class Spectrum:
    """A carrier, and its other users.

    Attributes:
        subcarrier_hz: Subcarrier spacing.
        subcarriers: Subcarriers of a resource block.
        subframe_s: Length of a sub-frame, seconds.
        rbs: Resource blocks in a sub-frame: 106 for 20 MHz at 15 kHz (3GPP TS 38.101-1, table 5.3.2-1).
        free_rbs: Mean of the Poisson-distributed number of blocks that cellular users leave; 86 is 81 % of 106, P001's
            ratio.
        cellular_users: Cellular users that still share the free blocks, on links to and from the base station.
        share: Bounds of the uniform weight by which sub-frames are shared.
        whole_rbs: Round each share up to whole resource blocks, as the released code does; the shares then exceed the
            total.
        last_chunk: The released code counts no resource blocks for the end of a transfer ("lost"); sub-frames are the
            same either way.
        min_efficiency: Minimum quality of service, bit/s/Hz; transfers below it are counted, not refused, as they did
            happen.
    """

    subcarrier_hz: Annotated[float, Gt(0.0)] = 15e3
    subcarriers: Annotated[int, Ge(1)] = 12
    subframe_s: Annotated[float, Gt(0.0)] = 1e-3
    rbs: Annotated[int, Ge(1)] = 106
    free_rbs: Annotated[float, Gt(0.0)] = 86.0
    cellular_users: Annotated[int, Ge(0)] = 10
    share: tuple[Annotated[float, Gt(0.0)], Annotated[float, Gt(0.0)]] = (0.2, 1.2)
    whole_rbs: bool = False
    last_chunk: Literal["counted", "lost"] = "counted"
    min_efficiency: Annotated[float, Ge(0.0)] = 0.0

    def __post_init__(self) -> None:
        if self.share[0] > self.share[1]:
            raise ConfigError(f"share must be (lowest, highest), got {self.share[0]:g}, {self.share[1]:g}")

    @property
    def rb_hz_s(self) -> float:
        """Bandwidth times time of one resource block, Hz·s; times gamma, the bits it carries."""
        return self.subcarrier_hz * self.subcarriers * self.subframe_s

    def shared(self, key: Key, needed: Array) -> Airtime:
        """Links of the base station, in parallel (eq. 2).

        Args:
            key: Address of the exchange.
            needed: Resource blocks of each link (eq. 1), (links,), positive, in a fixed order.
        """
        if not len(needed):
            return Airtime(0, 0)
        free, weights = (key / "free").numpy(), (key / "shares").numpy()
        low, high = self.share
        links, users = len(needed), len(needed) + self.cellular_users

        def draw(n: int) -> Array:
            u = low + (high - low) * weights.random((n, users))
            parts: Array = self._free(free, n)[:, None] * u[:, :links] / u.sum(1, keepdims=True)
            return np.ceil(parts) if self.whole_rbs else parts

        ends, before = _until(needed, draw, max(DRAWS // users, 1))
        used = np.maximum(before, 0.0) + (np.ceil(needed - before) if self.last_chunk == "counted" else 0.0)
        return Airtime(int(ends.max()), math.ceil(used.sum()))

    def queued(self, key: Key, needed: Array) -> Airtime:
        """Links between devices, one after the other (eq. 3).  Arguments as for `shared`."""
        if not len(needed):
            return Airtime(0, 0)
        free = (key / "free").numpy()
        total = float(np.ceil(needed).sum())
        ends, _ = _until(np.array([total]), lambda n: self._free(free, n)[:, None], DRAWS)
        return Airtime(int(ends[0]), int(total))

    def _free(self, free: np.random.Generator, n: int) -> Array:
        return np.minimum(free.poisson(self.free_rbs, n), self.rbs).astype(np.float64)


def _until(needed: Array, draw: Callable[[int], Array], most: int) -> tuple[Array, Array]:
    """Find when the sums of drawn rows reach `needed`: (rows, sum before the last of them), each (links,).

    After `most` rows the sums go on at the mean of the rows drawn: by then the spread of a sum is small beside it.
    The rows drawn do not depend on `needed`, so a link that needs less is never done later.
    """
    sums, ends, before = np.zeros_like(needed), np.zeros_like(needed), np.zeros_like(needed)
    some = max(CHUNK // len(needed), 1)
    for start in range(0, most, some):
        path = sums + draw(min(some, most - start)).cumsum(0)
        reached = path >= needed
        fresh = np.flatnonzero((ends == 0) & reached[-1])
        first = reached[:, fresh].argmax(0)
        ends[fresh] = start + first + 1
        before[fresh] = np.where(first > 0, path[first - 1, fresh], sums[fresh])
        sums = path[-1]
        if (ends > 0).all():
            return ends, before
    rate = max(float(sums.mean()) / most, 1.0 / DRAWS)
    rest = ends == 0
    more = np.ceil((needed - sums) / rate)
    return np.where(rest, most + more, ends), np.where(rest, sums + (more - 1.0) * rate, before)


# ---------------------------------------------------------------- presets
PAPER = Spectrum(min_efficiency=1.0)
"""A sub-frame as 5G has it, and the paper's base setting gamma_min = 1."""

P001 = Spectrum(rbs=1484, free_rbs=1200.0, whole_rbs=True, last_chunk="lost", min_efficiency=1.0)
"""P001's Table II.  1484 = 106 RBs x 14 symbols is a slip of units: costs come out about 14 times too low."""

P000 = Spectrum(rbs=1484, free_rbs=1200.0, whole_rbs=True, last_chunk="lost")
"""The code behind P000: as P001, without a minimum quality of service."""
