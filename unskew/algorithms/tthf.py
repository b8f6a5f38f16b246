"""TT-HF: devices average with neighbours in their cluster, between rare global averages of one device per cluster.

F. P.-C. Lin, S. Hosseinalipour, S. S. Azam, C. G. Brinton, N. Michelusi, "Semi-Decentralized Federated Learning with
Cooperative D2D Local Model Aggregations", IEEE JSAC 2021.  Equation numbers are this file's.

Notation   w       global model, sent to all devices at the beginning of a round
           w_i     device i's model;  g_i its mini-batch gradient;  eta the learning rate in force
           c       cluster of s_c devices on a connected graph; V_c its mixing matrix, lambda_c the contraction of V_c
                   (server/graphs.py)
           tau     local steps or epochs of a round, as `local` counts them
           Gamma_c D2D exchanges of cluster c at one D2D instant
           Y_c     spread of the models of cluster c
Local      w_i <- w_i - eta g_i(w_i)                                                                 (1)
D2D        Z <- V_c^Gamma_c Z, row i of Z the model of device i, one exchange with the neighbours at a time     (2)
Adaptive   Gamma_c = max{0, ceil(log(eta phi / (s_c Y_c)) / log lambda_c)}                           (3)
           Y_c = max_i ||w_i||_inf - min_i ||w_i||_inf
Global     one device i_c of each cluster, drawn evenly;  w <- sum_c rho_c w_{i_c},  rho_c = s_c / sum s_c      (4)
Instants   Round r is t = (r - 1) tau + 1 .. r tau in the paper's time.  After every `d2d_every` of them is a D2D
           instant, except at t = r tau: that is the global one, where the paper does not average inside clusters before
           it draws.  tau = 20 and d2d_every = 5 give D2D after 5, 10 and 15, then training up to 20, then eq. 4.  What
           the paper broadcasts after the last instant of a round is sent at the beginning of the next.
Means      V_c is symmetric with rows that sum to 1: D2D keeps the cluster's mean.  The mean of eq. 4 over the draw is
           the mean over all devices, with equal weights.
Departures Several epochs may take the place of steps; `local` is a round's whole work, as in every other method, and
           each part of it shuffles anew and starts its optimiser afresh.  Clusters are cut from the round's cohort in
           the order of client numbers; with all devices in it, they are the same in every round.  gamma bounds eq. 3,
           which asks for ever more exchanges as Y_c grows; the published program applies eq. 3 after every step but the
           global one, which is `d2d_every = 1`.  Y_c is the published estimate, which is never above the
           largest distance between two models, so eq. 3 may ask for fewer exchanges than its derivation needs.
           Buffers are averaged with the rest; the paper's networks have none.
Losses     A device that does not reply at the beginning of a round is out of it, and rho_c counts the others.  Later, a
           device whose reply is lost keeps its model, also for its neighbours; then the cluster's mean moves.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from unskew.algorithms.fedavg import Weighting
from unskew.algorithms.parts import OneModel
from unskew.errors import ConfigError
from unskew.info import Exchanges
from unskew.keys import Key
from unskew.protocol import (
    Carried,
    ClientId,
    Federation,
    Keep,
    Me,
    Plan,
    SampleCount,
    SgdConfig,
    Step,
    ask,
    collect,
    require_rate,
    sgd,
    step,
)
from unskew.reduction import weighted_mean
from unskew.schema import Search
from unskew.server.graphs import Geometric, Graph, Links, Mixing, contraction, links, mixed, mixing_matrix
from unskew.tree import Params

DeviceCluster = tuple[ClientId, ...]


@dataclass(frozen=True)
class TTHFState:
    """The server's state.

    Attributes:
        params: The model.
        drawn: Devices whose models were averaged.
        exchanges: Gamma_c of each cluster at each D2D instant of the round.
        bounded: True if eq. 3 asked for more than that.
    """

    params: Params
    drawn: tuple[ClientId, ...] = ()
    exchanges: tuple[tuple[int, ...], ...] = ()
    bounded: bool = False


@dataclass(frozen=True)
class TTHFMessage:
    """A device's starting model, and its number of steps or epochs."""

    model: Carried
    units: int


@dataclass(frozen=True)
class TTHFReply:
    """A device's report: the handle of its model, its examples, and ||w_i||_inf if eq. 3 needs it."""

    model: Carried
    n: SampleCount
    height: float | None


@dataclass(frozen=True)
class ExchangeMessage:
    """A device's own model and its neighbours'."""

    own: Carried
    near: Links


@dataclass(frozen=True)
class ExchangeReply:
    """A device's model after an exchange; it stays on the device."""

    model: Carried


@dataclass(frozen=True)
class TTHF(OneModel):
    """Two-timescale hybrid learning.

    Attributes:
        cluster_size: Devices per cluster; where they do not divide the cohort, sizes differ by one and none is larger.
        d2d_every: Steps or epochs, as `local` counts them, between D2D instants; None is a quarter of the round, as
            published (5 of 20 steps).
        gamma: Number of D2D exchanges at each such instant; with `phi` their maximum.  0 leaves D2D out.
        phi: Tolerance of eq. 3, which then chooses the exchanges of each cluster; None takes `gamma`.
        d2d_before_global: Average inside clusters at the global instant too, which the paper does not.
        graph: Graph of the devices in a cluster.
        mixing: "laplacian", as published, or "metropolis".
        weighting: "uniform" weights a cluster by its devices, "samples" by their training examples.
        local: A round's local work, tau.

    Raises:
        ConfigError: If D2D is enabled but no D2D instant falls into a round.
    """

    cluster_size: Annotated[int, Ge(1)] = 5
    d2d_every: Annotated[int, Ge(1)] | None = None
    gamma: Annotated[int, Ge(0), Search(1, 10, whole=True)] = 1
    phi: Annotated[float, Gt(0.0)] | None = None
    d2d_before_global: bool = False
    graph: Graph = Geometric()
    mixing: Mixing = "laplacian"
    weighting: Weighting = "uniform"
    local: SgdConfig = SgdConfig(local_steps=20)

    def __post_init__(self) -> None:
        require_rate(self.local, "TT-HF")
        if self.gamma and not self.d2d_before_global and len(self.parts()) == 1:
            tau, unit = self.work()
            raise ConfigError(
                f"TT-HF needs d2d_every below a round's local {unit}, got {tau} and d2d_every = "
                f"{self.d2d_every or tau}. Raise local.local_{unit}, or set d2d_before_global = true, or gamma = 0"
            )

    def init(self, params: Params, fed: Federation) -> TTHFState:
        """Return the initial model."""
        return TTHFState(params)

    def round(self, state: TTHFState, fed: Federation) -> Plan[TTHFState]:
        """Train in parts, with D2D in between; then draw a device of each cluster and average their models."""
        cohort = fed.sample()
        clusters = divide(cohort, self.cluster_size)
        # The run's key, not the round's: devices stay where they are.
        place = Key(fed.key.seed) / "graph"
        v = [mixing_matrix(self.graph(len(c), place / i), self.mixing) for i, c in enumerate(clusters)]
        parts = self.parts()
        held = yield from ask(self.train, dict.fromkeys(cohort, TTHFMessage(state.params, parts[0])))
        exchanges: list[tuple[int, ...]] = []
        bounded = False
        for part in range(1, len(parts) + 1):
            if self.gamma and (part < len(parts) or self.d2d_before_global):
                wanted = self.exchanges(clusters, v, held, self.local.lr_at(fed.round))
                exchanges.append(tuple(min(g, self.gamma) for g in wanted))
                bounded = bounded or any(g > self.gamma for g in wanted)
                held = yield from self.consensus(clusters, v, held, exchanges[-1])
            if part < len(parts):
                to = {c: TTHFMessage(mine.model, parts[part]) for c, mine in held.items()}
                held = {**held, **(yield from ask(self.train, to, at_least=0))}
        present = [p for p in (tuple(c for c in cluster if c in held) for cluster in clusters) if p]
        drawn = draw(present, fed.key / "drawn")
        models = yield from collect([held[c].model for c in drawn], at_least=1)
        weights = [sum(held[c].n if self.weighting == "samples" else 1 for c in p) for p in present]
        came = [i for i, w in enumerate(models) if w is not None]
        params = weighted_mean([models[i] for i in came], [weights[i] for i in came])
        return TTHFState(params, tuple(drawn[i] for i in came), tuple(exchanges), bounded)

    def consensus(
        self,
        clusters: Sequence[DeviceCluster],
        v: Sequence[Tensor],
        held: Mapping[ClientId, TTHFReply],
        exchanges: Sequence[int],
    ) -> Plan[dict[ClientId, TTHFReply]]:
        """Apply V_c^Gamma_c in each cluster (eq. 2), one exchange of all clusters at a time."""
        now = dict(held)
        for done in range(max(exchanges)):
            models = {c: mine.model for c, mine in now.items()}
            to = {
                c: ExchangeMessage(models[c], near)
                for cluster, v_c, wanted in zip(clusters, v, exchanges, strict=True)
                if done < wanted
                for c, near in links(v_c, cluster, models).items()
                if near.models
            }
            if to:  # a device that is a cluster of its own has no neighbours
                replies = yield from ask(self.exchange, to, at_least=0)
                now.update({c: replace(now[c], model=r.model) for c, r in replies.items()})
        return now

    def exchanges(
        self, clusters: Sequence[DeviceCluster], v: Sequence[Tensor], held: Mapping[ClientId, TTHFReply], eta: float
    ) -> list[int]:
        """Return Gamma_c, before it is bounded."""
        if self.phi is None:
            return [self.gamma] * len(clusters)
        wanted = []
        for cluster, v_c in zip(clusters, v, strict=True):
            heights = [h for c in cluster if c in held and (h := held[c].height) is not None]
            gap = max(heights) - min(heights) if heights else 0.0
            wanted.append(adaptive(eta * self.phi, len(cluster), gap, contraction(v_c)))
        return wanted

    @step
    def train(self, me: Me, msg: TTHFMessage, memory: None) -> Step[tuple[TTHFReply, None]]:
        """Do a part of the round's local work (eq. 1)."""
        assert isinstance(msg.model, dict)
        in_steps = self.local.local_steps is not None
        local = replace(self.local, local_steps=msg.units) if in_steps else replace(self.local, local_epochs=msg.units)
        w = yield from sgd(msg.model, local)
        height = None if self.phi is None else max(float(w[n].abs().max()) for n in me.layout.trainable)
        return TTHFReply(Keep(w), me.n, height), None

    @step
    def exchange(self, me: Me, msg: ExchangeMessage, memory: None) -> tuple[ExchangeReply, None]:
        """Average with the neighbours once (eq. 2)."""
        assert isinstance(msg.own, dict)
        return ExchangeReply(Keep(mixed(msg.own, msg.near))), None

    def work(self) -> tuple[int, Literal["steps", "epochs"]]:
        """Return tau and its unit."""
        if self.local.local_steps is not None:
            return self.local.local_steps, "steps"
        epochs = self.local.local_epochs or 1
        if epochs != int(epochs):
            raise ConfigError(f"TT-HF divides whole local epochs, got {epochs:g}; set local_steps, or whole ones")
        return int(epochs), "epochs"

    def parts(self) -> tuple[int, ...]:
        """List the steps or epochs between instants; the global instant ends the last.

        >>> TTHF(local=SgdConfig(local_steps=20)).parts()
        (5, 5, 5, 5)
        >>> TTHF(d2d_every=2, local=SgdConfig(local_epochs=5)).parts()
        (2, 2, 1)
        """
        tau, _ = self.work()
        every = tau if self.gamma == 0 else self.d2d_every or -(-tau // 4)
        return (every,) * (tau // every) + ((tau % every,) if tau % every else ())

    def info(self, state: TTHFState) -> Exchanges:
        """Report the devices drawn, and the exchanges of each cluster at each D2D instant."""
        bounded = f"TT-HF's phi asked for more D2D exchanges than gamma = {self.gamma} allows"
        return Exchanges(
            drawn=tuple(state.drawn),
            exchanges=tuple(map(tuple, state.exchanges)),
            warnings=(bounded,) if state.bounded else (),
        )


def divide(cohort: Sequence[ClientId], size: int) -> tuple[DeviceCluster, ...]:
    """Divide devices into clusters of consecutive numbers: as few as `size` allows, with sizes as equal as possible.

    >>> divide((0, 1, 2, 3, 4, 5, 6), 3)
    ((0, 1, 2), (3, 4), (5, 6))
    """
    clusters = -(-len(cohort) // size)
    small, larger = divmod(len(cohort), clusters)
    ends = [(i + 1) * small + min(i + 1, larger) for i in range(clusters)]
    return tuple(tuple(cohort[a:b]) for a, b in zip([0, *ends], ends, strict=False))


def draw(clusters: Sequence[DeviceCluster], key: Key) -> DeviceCluster:
    """Draw one device of each cluster, all equally likely (eq. 4)."""
    picks = [torch.randint(len(c), (), generator=(key / i).generator()) for i, c in enumerate(clusters)]
    return tuple(c[int(pick)] for c, pick in zip(clusters, picks, strict=True))


def adaptive(tolerance: float, size: int, gap: float, contraction: float) -> int:
    """Compute Gamma_c (eq. 3): the number of exchanges after which s_c Y_c has shrunk to the tolerance.

    Args:
        tolerance: eta phi.
        size: s_c.
        gap: Y_c.
        contraction: lambda_c, below 1.

    >>> adaptive(0.1, 5, 0.16, 0.5)
    3
    """
    if size * gap <= tolerance:
        return 0
    if contraction <= 0.0:  # one exchange is the mean
        return 1
    return math.ceil(math.log(tolerance / (size * gap)) / math.log(contraction))
