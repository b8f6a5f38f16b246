"""The carrier of a cell and the electronics of its devices: what transfers and training take of time and energy.

Numerology of 5G New Radio: a resource block (RB) is 12 subcarriers, a sub-frame 1 ms.  The cell also serves cellular
users; what they leave is min(Poisson(free_rbs), rbs) resource blocks in each sub-frame.

    need of a link      r_i = bits / (RB bandwidth * sub-frame * gamma_i), in RBs                   (1)
    to and from the     in sub-frame s link i gets N_s u_si / sum_j u_sj, u ~ U(0.2, 1.2), j over
    base station        the links and the cellular users, done or not; all end when the last does   (2)
    device to device    one queue, first come first served: the smallest k, N_1 + ... + N_k >= sum_i ceil(r_i)  (3)

This is how FedDif's released code counts.  Shares are drawn anew in every sub-frame.  There is no spatial reuse, and a
message to many devices is one transfer for each.

Energy of sending, receiving and computing:

    transmit   E = P / eta * B / W        B = bits / gamma in Hz·s                                  (4)
    receive    E = P_rx * B / W           devices only                                              (5)
    compute    E = c f^2 kappa n          n examples, forward and backward                          (6)

Eq. 4 and 5 are power times time on air, where B / W is a transfer's time on the whole band W.  Power is spread evenly
over the band (channel.py): a share x of the band takes 1/x as long at x times the power.  So the joules do not depend
on the schedule.

Eq. 6, its kappa and the order of c are those of Z. Yang, M. Chen, W. Saad, C. S. Hong, M. Shikh-Bahaei, "Energy
Efficient Federated Learning Over Wireless Communication Networks", IEEE Trans. Wireless Communications 20(6), 2021:
kappa = 1e-28, c between 1e4 and 3e4 cycles.  The other defaults are assumptions, not measurements.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
from annotated_types import Ge, Gt, Interval

from unskew.errors import ConfigError
from unskew.keys import Key
from unskew.world.channel import Array

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
        """Links of the base station, in parallel (eq. 2), that need so many resource blocks (eq. 1), (links,)."""
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
        used = before + (np.ceil(needed - before) if self.last_chunk == "counted" else 0.0)
        return Airtime(int(ends.max()), math.ceil(used.sum()))

    def queued(self, key: Key, needed: Array) -> Airtime:
        """Links between devices, one after the other (eq. 3), that need so many resource blocks (eq. 1), (links,)."""
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


@dataclass(frozen=True)
class Energy:
    """Power and energy of a device's electronics.

    Attributes:
        amplifier_efficiency: eta, radiated over consumed power; 1 counts only the radiated power, an assumption.
        receive_w: P_rx, power of a receiving device, watt; 0 leaves receiving out, an assumption.
        capacitance: kappa, effective switched capacitance, J/(Hz^2 cycle); Yang et al.
        clock_hz: f, cycles per second; an assumption.
        cycles_per_example: c, of one training example; Yang et al.  It grows with the network: set it for yours.
        joules_per_example: Replaces eq. 6 if given, for example by a measurement.
    """

    amplifier_efficiency: Annotated[float, Interval(gt=0.0, le=1.0)] = 1.0
    receive_w: Annotated[float, Ge(0.0)] = 0.0
    capacitance: Annotated[float, Gt(0.0)] = 1e-28
    clock_hz: Annotated[float, Gt(0.0)] = 1e9
    cycles_per_example: Annotated[float, Gt(0.0)] = 2e4
    joules_per_example: Annotated[float, Ge(0.0)] | None = None

    def transmit_j(self, power_w: Array, hz_s: Array, bandwidth_hz: float) -> Array:
        """Energy of transfers (eq. 4), joules, by their senders' power over the whole band, (links,) each."""
        return power_w / self.amplifier_efficiency * hz_s / bandwidth_hz

    def receive_j(self, hz_s: Array, bandwidth_hz: float) -> Array:
        """Energy of receiving transfers (eq. 5), joules, (links,)."""
        return self.receive_w * hz_s / bandwidth_hz

    def compute_j(self, examples: float) -> float:
        """Energy of training on a number of examples (eq. 6), joules."""
        if self.joules_per_example is not None:
            return self.joules_per_example * examples
        return self.capacitance * self.clock_hz**2 * self.cycles_per_example * examples
