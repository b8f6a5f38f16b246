"""Channels between nodes, which a plan may probe: even links, or a radio cell.

The system model of S. Ahn, S. Kim, Y. Kwon, J. Park, J. Youn, S. Cho, "Communication-Efficient Diffusion Strategy for
Performance Improvement of Federated Learning with Non-IID Data", arXiv 2207.07493, with its released code's constants.
Equation numbers are this file's.

Notation   d       length of a link, metres, heights included
           beta    large-scale gain, dB;  beta0 at d0
           h       small-scale fading, CN(0, 1), so |h|^2 is exponential with mean 1
           gamma   spectral efficiency, bit/s/Hz
Gain       beta = beta0 - 10 kappa log10(d / d0)                                                    (1)
SNR        snr = P 10^(beta / 10) / (N0 W + I)                                                      (2)
           I of a link between devices under an underlay: the mean power that its receiver hears from the cellular
           users, of whom one sends on each part of the band; else 0
Efficiency expected       gamma = log2(1 + snr), what a plan may probe                              (3)
           instantaneous  gamma = log2(1 + snr |h|^2), what a transfer costs                        (4)
Departures The paper prints g = sqrt(beta) h with beta in dB, the root of a negative number; the root of the
           linear gain is meant.
           Fades deeper than `deepest_fade_db` are waited out: 1 / gamma has no mean under (4) down to |h| = 0.  The
           exponential has no memory, so |h|^2 is that floor plus an exponential; the waiting is not charged.
           Nodes closer than d0 are treated as d0 apart: (1) does not hold there, and would gain power.
Power and noise are both the whole band's: a transfer on part of the band uses that part of either, at the same
signal-to-noise ratio.
"""

import inspect
import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from unskew.errors import ProtocolError
from unskew.keys import Key
from unskew.registry import Registry
from unskew.tree import form_of
from unskew.units import ratio, watt

Array = npt.NDArray[np.float64]
Nodes = npt.NDArray[np.int64]


class Channel(Protocol):
    """A pure function of its arguments, so any recorded run can be priced again under another channel.

    A channel is a frozen dataclass whose fields are settings; it is registered by its field `name`.
    """

    def spectral_efficiency(self, key: Key, round: int, hop: int, nodes: int) -> Tensor:
        """Expected bit/s/Hz from each node to each, (nodes, nodes); node 0 is the base station.

        `key` is the run's; the channel decides what is redrawn each run, round or hop.
        """
        ...


@dataclass(frozen=True)
class Even:
    """The same efficiency on every link: the channel when no radio is modelled."""

    gamma: Annotated[float, Gt(0.0)] = 1.0
    name: Literal["even"] = "even"

    def spectral_efficiency(self, key: Key, round: int, hop: int, nodes: int) -> Tensor:
        """`gamma` between any two nodes."""
        return torch.full((nodes, nodes), self.gamma)


def efficiency(channel: Channel, key: Key, round: int, hop: int, nodes: int) -> Tensor:
    """The channel's spectral efficiency [src, dst], bit/s/Hz, (nodes, nodes), as a method sees it.

    Raises:
        ProtocolError: If the channel gives another shape, or numbers that are negative or not finite.
    """
    given = channel.spectral_efficiency(key, round, hop, nodes)
    with suppress(TypeError, ValueError, RuntimeError):  # of what has no order, or is no array
        gamma = torch.as_tensor(given)
        if gamma.shape == (nodes, nodes) and bool((gamma.isfinite() & (gamma >= 0)).all()):
            return gamma
    got = form_of(given) if isinstance(given, Tensor) else type(given).__name__
    raise ProtocolError(
        f"round {round}, hop {hop}: the channel {getattr(channel, 'name', type(channel).__name__)!r} must give numbers "
        f">= 0, (nodes, nodes) = {(nodes, nodes)}, got {got}; correct its spectral_efficiency"
    )


@dataclass(frozen=True)
class Radio:
    """One cell: a base station and devices that reach it and each other.

    Nodes are numbered as in the ledger; 0 is the server: the base station, or a device.  Large-scale gain is the same
    both ways, but not efficiency between base station and device, as they send with different power.  Fading is drawn
    per direction.

    Attributes:
        bandwidth_hz: W, over which power and noise are spread.
        noise_dbm_hz: N0, dBm per Hertz; -174 is thermal noise at room temperature.
        ue_dbm, bs_dbm: Transmit power of a device, whatever the receiver, and of the base station, dBm.
        beta0_db: Gain at `d0_m`, dB.
        kappa: Path-loss exponent.
        d0_m: Reference distance, metres.
        bs_height_m: Height of the base station's antenna above a device's, metres.
        d2d_height_offset: Height difference between devices, metres; 0 on one level.  The released code uses the base
            station's 23.5 m.
        server: The node that gathers and averages: the base "station", or one more "device", so that all links are
            between devices.
        underlay: Cellular users who send to the base station in the band of the links between devices, placed as these
            are; 0 is a band of the links' own.
        cell_radius_m: Radius of the cell, metres.
        inner: Share of the radius around the base station without devices.
        placement: "radius" as in the released code, "area" for a uniform density.
        redeploy: How often all devices are placed anew.
        fading: none, or rayleigh: drawn anew for every direction, round and hop.
        deepest_fade_db: Under rayleigh, fades deeper than this are waited out; -20 dB leaves out 1 % of them.
    """

    bandwidth_hz: Annotated[float, Gt(0.0)] = 20e6
    noise_dbm_hz: Annotated[float, Interval(ge=-250.0, le=100.0)] = -174.0
    ue_dbm: Annotated[float, Interval(ge=-100.0, le=100.0)] = 23.0
    bs_dbm: Annotated[float, Interval(ge=-100.0, le=100.0)] = 43.0
    beta0_db: Annotated[float, Interval(ge=-200.0, le=100.0)] = -30.0
    kappa: Annotated[float, Interval(gt=0.0, le=10.0)] = 3.75
    d0_m: Annotated[float, Gt(0.0)] = 1.0
    bs_height_m: Annotated[float, Ge(0.0)] = 23.5
    d2d_height_offset: Annotated[float, Ge(0.0)] = 0.0
    server: Literal["station", "device"] = "station"
    underlay: Annotated[int, Ge(0)] = 0
    cell_radius_m: Annotated[float, Gt(0.0)] = 250.0
    inner: Annotated[float, Interval(ge=0.0, lt=1.0)] = 0.1
    placement: Literal["radius", "area"] = "radius"
    redeploy: Literal["never", "round", "hop"] = "hop"
    fading: Literal["none", "rayleigh"] = "none"
    deepest_fade_db: Annotated[float, Interval(ge=-100.0, le=0.0)] = -20.0
    name: Literal["radio"] = "radio"

    def spectral_efficiency(self, key: Key, round: int, hop: int, nodes: int) -> Tensor:
        """Expected efficiency [src, dst] (eq. 3), bit/s/Hz, (nodes, nodes); 0 from a node to itself."""
        src, dst = np.divmod(np.arange(nodes * nodes), nodes)
        gamma = np.log2(1.0 + self.snr(key, round, hop, src, dst)).reshape(nodes, nodes)
        np.fill_diagonal(gamma, 0.0)
        return torch.from_numpy(gamma).to(torch.get_default_dtype())

    def links(self, key: Key, round: int, hop: int, src: Nodes, dst: Nodes) -> Array:
        """Instantaneous efficiency of the links `src[i] -> dst[i]` (eq. 4), bit/s/Hz, (links,)."""
        snr = self.snr(key, round, hop, src, dst)
        if self.fading == "rayleigh":
            snr = snr * self._fades(key / "fading" / round / hop, src, dst)
        efficiency: Array = np.log2(1.0 + snr)
        return efficiency

    def snr(self, key: Key, round: int, hop: int, src: Nodes, dst: Nodes) -> Array:
        """Mean ratio of signal to noise and interference of the links (eq. 2), (links,)."""
        noise = np.full(len(src), watt(self.noise_dbm_hz) * self.bandwidth_hz)
        if self.underlay:
            heard = self._heard(key, round, hop, 1 + int(max(src.max(initial=0), dst.max(initial=0))))
            noise += np.where(self.station(src) | self.station(dst), 0.0, heard[dst])
        ratios: Array = self.power_w(src) / noise * self.gain(self.distance(key, round, hop, src, dst))
        return ratios

    def _heard(self, key: Key, round: int, hop: int, nodes: int) -> Array:
        """Mean power that each node hears from the cellular users, watt, (nodes,)."""
        users = self.positions(key / "underlay", round, hop, 1 + self.underlay)[1:]
        lengths = np.sqrt(((self.positions(key, round, hop, nodes)[:, None] - users) ** 2).sum(2))
        heard: Array = watt(self.ue_dbm) * self.gain(np.hypot(lengths, self.d2d_height_offset)).mean(1)
        return heard

    def gain(self, distance_m: Array) -> Array:
        """Large-scale power gain over a distance (eq. 1), a ratio, not dB."""
        gains: Array = ratio(self.beta0_db) * (np.maximum(distance_m, self.d0_m) / self.d0_m) ** -self.kappa
        return gains

    def distance(self, key: Key, round: int, hop: int, src: Nodes, dst: Nodes) -> Array:
        """Length of the links, metres, heights included, (links,)."""
        at = self.positions(key, round, hop, 1 + int(max(src.max(initial=0), dst.max(initial=0))))
        height = np.where(self.station(src) | self.station(dst), self.bs_height_m, self.d2d_height_offset)
        lengths: Array = np.sqrt(((at[src] - at[dst]) ** 2).sum(1) + height**2)
        return lengths

    def positions(self, key: Key, round: int, hop: int, nodes: int) -> Array:
        """Positions of the nodes in this round and hop, metres, (nodes, 2); a base station is at (0, 0)."""
        when = key / "place"
        when = {"never": when, "round": when / round, "hop": when / round / hop}[self.redeploy]
        at = self._placed(when, nodes)
        if self.server == "device":
            at[0] = self._placed(when / "server", 2)[1]
        return at

    def _placed(self, key: Key, nodes: int) -> Array:
        """Positions of devices around a first node at (0, 0); one's does not depend on the number of others.

        The angle is uniform, and under "radius" the distance from the middle too, which crowds devices there.
        """
        u = key.numpy().random((nodes - 1, 2))
        angle = 2.0 * math.pi * u[:, 0]
        if self.placement == "radius":
            r = self.cell_radius_m * (self.inner + (1.0 - self.inner) * u[:, 1])
        else:
            r = self.cell_radius_m * np.sqrt(self.inner**2 + (1.0 - self.inner**2) * u[:, 1])
        return np.concatenate([np.zeros((1, 2)), np.stack([r * np.cos(angle), r * np.sin(angle)], axis=1)])

    def station(self, nodes: Nodes) -> npt.NDArray[np.bool_]:
        """True for each node that is a base station, (nodes,)."""
        is_one: npt.NDArray[np.bool_] = (nodes == 0) & (self.server == "station")
        return is_one

    def power_w(self, src: Nodes) -> Array:
        """Transmit power of these nodes, watt."""
        return np.where(self.station(src), watt(self.bs_dbm), watt(self.ue_dbm))

    def _fades(self, key: Key, src: Nodes, dst: Nodes) -> Array:
        """|h|^2 of the links, at least its floor; a link's draw does not depend on the other links asked for."""
        outer, inner = np.maximum(src, dst), np.minimum(src, dst)
        down = src < dst
        u = np.empty(len(src))
        # Pairs are counted in shells of equal maximum, so the number of nodes does not matter; the base station's links
        # are counted apart, because they are often the only ones.
        for at, among, index in (
            (inner == 0, "cell", 2 * outer + down),
            (inner > 0, "d2d", outer**2 + inner + np.where(down, outer + 1, 0)),
        ):
            if at.any():
                u[at] = (key / among).numpy().random(int(index[at].max()) + 1)[index[at]]
        powers: Array = ratio(self.deepest_fade_db) - np.log1p(-u)
        return powers


CHANNELS = Registry(
    "channel",
    "unskew.channels",
    {"even": "unskew.world.channel:Even", "radio": "unskew.world.channel:Radio"},
    "a frozen dataclass with a field name and a method spectral_efficiency(key, round, hop, nodes)",
    lambda kind: inspect.isclass(kind) and callable(getattr(kind, "spectral_efficiency", None)),
)
