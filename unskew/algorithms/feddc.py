"""FedDC: each client keeps track of its drift, and the server averages models corrected for drift.

L. Gao, H. Fu, L. Li, Y. Chen, M. Xu, C.-Z. Xu, "FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling
and Correction", CVPR 2022.  Equation numbers are this file's.

Notation   w, y_i    global parameters; client i's parameters after K local steps at learning rate eta
           D_i       y_i - w
           h_i       client i's drift, the sum of its D_i, kept between rounds, 0 at first;  H  mean of all h_i
           c_i       mean gradient of client i's last visit, 0 at first;  c  mean of all c_i
           alpha     strength of the pull to the model without the drift
           S, M, N   clients that replied, their number, clients in total
           a         weight of each gradient in the displacement (fednova.py, eq. 2); ||a||_1 = K for plain steps
           omega_i   n_i over the mean of all n; 1 unless `scaled`
Client     y_i = LocalSGD(w; F_i + 1/omega_i [alpha/2 ||y + h_i - w||^2 + <y, c - c_i>])             (1)
           h_i <- h_i + D_i                                                                          (2)
           c_i <- c_i - c - omega_i D_i / (eta ||a||_1)                                              (3)
Server     c <- c + 1/N sum_{i in S} (c_i's change), H <- H + 1/N sum_{i in S} D_i                   (4)
           w <- 1/M sum_{i in S} y_i + H                                                             (5)
Kin        Without c it is FedDyn with the same alpha (h_i = -g_k / alpha there).  Without the drift and with alpha = 0
           it is SCAFFOLD, option II.  Without either it is FedAvg; alpha = 0 alone is not, H still enters (5).
Departures The paper writes the last term of (1) with parameter changes over eta K; c_i is kept in units of gradients,
           so a falling learning rate does not rescale it.  K is each client's own and eta the one in force;
           `divisor = "code"` takes one K for all, that of a client of mean size, and the learning rate of round 1, as
           the published numbers do.  Under momentum ||a||_1 stands for K, as in SCAFFOLD; "code" takes K there too.
           A client also remembers h_i and c_i from before its last reply, and the server says which reply it received
           last, as in SCAFFOLD: a lost reply has no effect, so c and H remain exact means.  Where a wrapper changes the
           upload on its way out (clipping, quantisation), h_i and c_i grow by what was really sent.
           `scaled` is the published code's alpha_i = alpha / omega_i and c / omega_i, where c = 1/N sum omega_i c_i;
           here c_i is kept in the unit in which c is its plain mean, also while sizes are still coming in.
           Buffers have no drift and take the mean.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from unskew.algorithms.fedavg import Weighting, mean_of
from unskew.algorithms.fednova import require_linear, work
from unskew.algorithms.parts import OneModel, SizeReply, acknowledged, corrected, share, sizes, steps_of
from unskew.protocol import (
    Aux,
    Federation,
    Fitted,
    Me,
    Model,
    Plan,
    SampleCount,
    SgdConfig,
    Step,
    Update,
    ask,
    fit,
    step,
)
from unskew.reduction import Moved, SumOf
from unskew.schema import Search
from unskew.tree import Params, map_params, zeros_like


@dataclass(frozen=True)
class FedDCState:
    """The server's state.

    Attributes:
        params: The model.
        c: Mean of all clients' c_i; empty without variates.
        drift: H, mean of all clients' h_i; empty without drift.
        heard: Round of each client's last reply; clients that never replied are missing.
        n: Training examples by client, as far as declared; empty unless they count.
    """

    params: Params
    c: Params
    drift: Params
    heard: dict[int, int]
    n: dict[int, int]


@dataclass(frozen=True)
class FedDCMessage:
    """Model and mean gradient for one client, the round of its last reply (0 is none), and the mean of all sizes."""

    params: Model
    c: Params
    heard: int
    mean_size: float | None


@dataclass(frozen=True)
class FedDCReply:
    """Displacement of a client's model (buffers included) and of its c, and its training examples."""

    dy: Update
    dc: Update
    n: SampleCount


@dataclass(frozen=True)
class DriftRecord:
    """A client's record of itself: its drift and its mean gradient."""

    h: Params
    c: Params


@dataclass(frozen=True)
class FedDCMemory:
    """A client's memory: its record, the one before, and the round between the two."""

    now: DriftRecord
    before: DriftRecord
    round: int


@dataclass(frozen=True)
class DriftTerm:
    """1/omega [alpha/2 ||y - (w - h)||^2 + <y, c - c_i>] (eq. 1)."""

    alpha: float

    def __call__(self, params: Params, aux: Aux) -> Tensor:
        """A scalar."""
        quadratic = [0.5 * self.alpha * (params[n] - t).square().sum() for n, t in aux["centre"].items() if self.alpha]
        linear = [(params[n] * t).sum() for n, t in aux["correction"].items()]
        value: Tensor = aux["share"] * torch.stack([*quadratic, *linear]).sum()
        return value

    def gradient(self, params: Params, aux: Aux) -> Params:
        """1/omega [alpha (y - (w - h)) + c - c_i]."""
        turn, scale = aux["correction"], aux["share"]
        return {
            n: (params[n] - t).mul_(self.alpha).add_(turn.get(n, 0.0)).mul_(scale) for n, t in aux["centre"].items()
        }


@dataclass(frozen=True)
class FedDC(OneModel):
    """Local drift decoupling and correction.

    Attributes:
        alpha: Strength of the pull in eq. 1.
        drift: Keep h_i (eq. 2) and let the server correct for it (eq. 5).
        variates: Keep c_i and correct the local gradients by c - c_i.
        divisor: Divisor in eq. 3: a client's "own" steps at the learning rate in force, or the published "code"'s.
        scaled: Divide a client's regulariser by its relative size, which every client declares once.
        local: The clients' optimisation; with variates SGD, plain or with momentum, without clipping.  "code" allows
            clipping and Nesterov's momentum: the published runs clip.
        weighting: Weights of the mean in eq. 5: "uniform" as published, "samples" by training examples.

    Raises:
        ConfigError: If eq. 3 does not hold for the local optimiser.
    """

    counts_steps: ClassVar[bool] = True

    alpha: Annotated[float, Ge(0.0), Search(0.001, 1)] = 0.01
    drift: bool = True
    variates: bool = True
    divisor: Literal["own", "code"] = "own"
    scaled: bool = False
    local: SgdConfig = SgdConfig()
    weighting: Weighting = "uniform"

    def __post_init__(self) -> None:
        if self.variates:
            lenient = replace(self.local, clip_norm=None, nesterov=False)
            require_linear(self.local if self.divisor == "own" else lenient, "FedDC")

    def init(self, params: Params, fed: Federation) -> FedDCState:
        """Return the initial model, without drifts or gradients."""
        zero = self.blank(params, corrected(fed.layout, self.local))
        return FedDCState(params, zero.c, zero.h, {}, {})

    def round(self, state: FedDCState, fed: Federation) -> Plan[FedDCState]:
        """Send model and mean gradient to a cohort; update both, and the mean drift, from the replies (eq. 4, 5)."""
        counts = self.scaled or (self.variates and self.divisor == "code")
        n = (yield from sizes(self.declare, state.n, fed)) if counts else state.n
        mean_size = sum(n.values()) / len(n) if n else None
        to = {c: FedDCMessage(state.params, state.c, state.heard.get(c, 0), mean_size) for c in fed.sample()}
        moves = SumOf(Moved("dy", tuple(state.drift)))
        answer = yield from ask(self.train, to, reduce=(mean_of("dy", self.weighting), SumOf("dc"), moves))
        mean, dc, dh = answer.values
        # 1/N, not 1/M: absent clients keep theirs, and these are means of all.
        c = {m: t + dc[m] / len(fed.clients) for m, t in state.c.items()}
        drift = {m: t + dh[m] / len(fed.clients) for m, t in state.drift.items()}
        w = {m: t + mean[m] + drift[m] if m in drift else t + mean[m] for m, t in state.params.items()}
        return FedDCState(w, c, drift, {**state.heard, **dict.fromkeys(answer.replies, fed.round)}, n)

    @step
    def train(
        self, me: Me, msg: FedDCMessage, memory: FedDCMemory | None
    ) -> Step[tuple[FedDCReply, FedDCMemory | None]]:
        """Train with the correction, then compute a new drift and mean gradient (eq. 1 to 3)."""
        names = corrected(me.layout, self.local)
        log = self.log(names, msg, memory)
        centre = {n: msg.params[n] - log.h[n] if n in log.h else msg.params[n] for n in names}
        correction = map_params(torch.sub, msg.c, log.c)
        terms = (DriftTerm(self.alpha),) if self.alpha or correction else ()
        # A client's relative size belongs to `scaled`; without it the mean size is sent for the divisor only.
        fraction = share(me.n, msg.mean_size if self.scaled else None, msg.params)
        y = yield from fit(msg.params, self.local, *terms, centre=centre, correction=correction, share=fraction)
        dy = map_params(torch.sub, y.params, msg.params)
        scale = self.scale(y, msg.mean_size) * fraction if correction else fraction
        new = DriftRecord(
            {n: t + dy[n] for n, t in log.h.items()},
            {n: -t - dy[n] / scale for n, t in correction.items()},
        )
        return FedDCReply(dy, map_params(torch.sub, new.c, log.c), me.n), FedDCMemory(new, log, me.round)

    def amend(
        self, step: str, me: Me, msg: Any, reply: FedDCReply, sent: FedDCReply, memory: FedDCMemory
    ) -> FedDCMemory:
        """Remember the drift and mean gradient that the server's means contain, where a wrapper changed the upload."""
        if step != "train":
            return memory
        now = DriftRecord(
            {n: t + (sent.dy[n] - reply.dy[n]) for n, t in memory.now.h.items()},
            {n: t + (sent.dc[n] - reply.dc[n]) for n, t in memory.now.c.items()},
        )
        return replace(memory, now=now)

    @step
    def declare(self, me: Me, msg: None, memory: FedDCMemory | None) -> tuple[SizeReply, FedDCMemory | None]:
        """Say how many training examples this client has."""
        return SizeReply(me.n), memory

    def scale(self, y: Fitted, mean_size: float | None) -> float:
        """Return the divisor that turns a displacement into a mean gradient: eta ||a||_1 (eq. 3)."""
        if self.divisor == "own":
            return y.lr * work(y.steps, self.local.momentum)
        assert mean_size is not None  # the plan sends it for this divisor
        return self.local.lr * steps_of(self.local, mean_size)

    def log(self, names: tuple[str, ...], msg: FedDCMessage, memory: FedDCMemory | None) -> DriftRecord:
        """Return this client's drift and mean gradient as of the last reply the server received."""
        if memory is None:
            return self.blank(msg.params, names)
        return acknowledged(memory.now, memory.before, memory.round, msg.heard)

    def blank(self, params: Params, names: tuple[str, ...]) -> DriftRecord:
        """Return zero drift and gradient; a part that is switched off is not kept at all."""
        zero = zeros_like({n: params[n] for n in names})
        return DriftRecord(zero if self.drift else {}, zero if self.variates else {})
