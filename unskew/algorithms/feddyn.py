"""FedDyn: a linear term per client makes the clients' optima agree with the global one.

D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama, "Federated Learning Based on
Dynamic Regularization", ICLR 2021, Algorithm 1.  Equation numbers are this file's.

Notation   w, y_k    global parameters; client k's parameters after local training
           g_k       client k's estimate of its gradient at the optimum, kept between rounds, 0 at first
           h         server's mean of all g_k
           alpha     strength of the pull to w
           S, M, N   clients that replied, their number, clients in total
           omega_k   n_k over the mean of all n; 1 unless `scaled`
Client     y_k = LocalSGD(w; F_k + 1/omega_k [alpha/2 ||y - w||^2 - <g_k, y>])                      (1)
           g_k <- g_k - alpha (y_k - w)                                                             (2)
Server     h <- h - alpha/N sum_{k in S} (y_k - w), so that h = 1/N sum_k g_k over all N            (3)
           w <- 1/M sum_{k in S} y_k - h / alpha                                                    (4)
Why        An exact solution of (1) has omega_k grad F_k(y_k) = g_k - alpha (y_k - w), the new g_k.  Where nothing moves
           any more h is 0, and sum_k omega_k grad F_k(w) = 0: the optimum of the plain mean of the F_k, or with
           `scaled` of their mean by examples.
Drift form The published code keeps h_k = -g_k / alpha, the sum of all displacements, and takes
           alpha/2 ||y - w + h_k||^2 and w <- mean y + mean h_k: the same steps.
alpha -> 0 is not FedAvg.  h / alpha does not depend on alpha: after the first round with all clients w is
           2 mean(y) - w_0.  FedAvg is alpha = 0 with `correction` off.
Departures A client also remembers its g_k from before its last reply, and the server says which reply it received
           last, as in SCAFFOLD: a lost reply has no effect, so (3) holds whatever is lost.  Where a wrapper changes the
           upload on its way out (clipping, quantisation), y_k in (2) is what was really sent.
           `scaled` is what the published code does with clients of unequal size, alpha_k = alpha / omega_k there; here
           g_k is kept in a unit in which (3) holds also while sizes are still coming in.
           Nothing in (2) divides by steps or learning rates, so any local optimiser will do, clipping included; with
           one that stops far from its optimum g_k is a poor estimate.  The quadratic is part of the loss: hidden in the
           weight decay, as published, it would be wrong for Adam.
           Buffers have no g and take the mean.  What is served is w of (4), which the published code calls cloud model.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor

from unskew.algorithms.fedavg import ModelReply, Weighting, mean_of
from unskew.algorithms.parts import OneModel, SizeReply, acknowledged, corrected, share, sizes
from unskew.errors import ConfigError
from unskew.protocol import Aux, Federation, Me, Plan, SgdConfig, Step, ask, sgd, step
from unskew.reduction import Moved, SumOf
from unskew.schema import Search
from unskew.tree import Params, zeros_like


@dataclass(frozen=True)
class FedDynState:
    """The server's state.

    Attributes:
        params: The model.
        h: Mean of all clients' g.
        heard: Round of each client's last reply; clients that never replied are missing.
        n: Training examples by client, as far as declared; empty unless `scaled`.
    """

    params: Params
    h: Params
    heard: dict[int, int]
    n: dict[int, int]


@dataclass(frozen=True)
class FedDynMessage:
    """The model for one client, the round of its last reply (0 is none), and the mean of all sizes."""

    params: Params
    heard: int
    mean_size: float | None


@dataclass(frozen=True)
class FedDynMemory:
    """A client's memory: its g, the one before, and the round between the two."""

    g: Params
    before: Params
    round: int


@dataclass(frozen=True)
class DynamicRegulariser:
    """1/omega [alpha/2 ||y - w||^2 - <g, y>] over what local training may change (eq. 1)."""

    alpha: float

    def __call__(self, params: Params, aux: Aux) -> Tensor:
        """A scalar."""
        w = aux["anchor"]
        parts = [
            0.5 * self.alpha * (params[n] - w[n]).square().sum() - (params[n] * g).sum() for n, g in aux["g"].items()
        ]
        value: Tensor = aux["share"] * torch.stack(parts).sum()
        return value

    def gradient(self, params: Params, aux: Aux) -> Params:
        """1/omega [alpha (y - w) - g]."""
        w, scale = aux["anchor"], aux["share"]
        return {n: (params[n] - w[n]).mul_(self.alpha).sub_(g).mul_(scale) for n, g in aux["g"].items()}


@dataclass(frozen=True)
class FedDyn(OneModel):
    """Federated learning with dynamic regularisation.

    Attributes:
        alpha: Strength of the pull; 0 only without `correction`.
        correction: Let the server step by h / alpha (eq. 4); without it w is the mean.
        scaled: Divide a client's regulariser by its relative size, which every client declares once.
        local: The clients' optimisation, any.
        weighting: Weights of the mean in eq. 4: "uniform" as published, "samples" by training examples.

    Raises:
        ConfigError: If alpha is 0 where eq. 4 divides by it.
    """

    alpha: Annotated[float, Ge(0.0), Search(0.001, 1)] = 0.01
    correction: bool = True
    scaled: bool = False
    local: SgdConfig = SgdConfig()
    weighting: Weighting = "uniform"

    def __post_init__(self) -> None:
        if self.correction and not self.alpha > 0.0:
            raise ConfigError(
                f"FedDyn's server divides by alpha, which must be > 0, got {self.alpha:g}; "
                "set correction = false as well if FedAvg is meant"
            )

    def init(self, params: Params, fed: Federation) -> FedDynState:
        """Return the initial model, h = 0."""
        return FedDynState(params, zeros_like({n: params[n] for n in corrected(fed.layout, self.local)}), {}, {})

    def round(self, state: FedDynState, fed: Federation) -> Plan[FedDynState]:
        """Send the model to a cohort; update h and the model from the replies (eq. 3, 4)."""
        n = (yield from sizes(self.declare, state.n, fed)) if self.scaled else state.n
        mean_size = sum(n.values()) / len(n) if n else None
        to = {c: FedDynMessage(state.params, state.heard.get(c, 0), mean_size) for c in fed.sample()}
        moves = SumOf(Moved("params", tuple(state.h), state.params))
        answer = yield from ask(self.train, to, reduce=(mean_of("params", self.weighting), moves))
        w, moved = answer.values
        # 1/N, not 1/M: absent clients keep their g, and h is the mean of all.
        h = {m: t - self.alpha / len(fed.clients) * moved[m] for m, t in state.h.items()}
        if self.correction:
            w = {m: t - h[m] / self.alpha if m in h else t for m, t in w.items()}
        return FedDynState(w, h, {**state.heard, **dict.fromkeys(answer.replies, fed.round)}, n)

    @step
    def train(
        self, me: Me, msg: FedDynMessage, memory: FedDynMemory | None
    ) -> Step[tuple[ModelReply, FedDynMemory | None]]:
        """Train with the regulariser, then compute a new g (eq. 1, 2)."""
        g = self.last_g(me, msg, memory)
        terms = (DynamicRegulariser(self.alpha),) if self.alpha else ()
        fraction = share(me.n, msg.mean_size, msg.params)
        y = yield from sgd(msg.params, self.local, *terms, anchor=msg.params, g=g, share=fraction)
        new = {n: t - self.alpha * (y[n] - msg.params[n]) for n, t in g.items()}
        return ModelReply(y, me.n), FedDynMemory(new, g, me.round)

    def amend(
        self, step: str, me: Me, msg: Any, reply: ModelReply, sent: ModelReply, memory: FedDynMemory
    ) -> FedDynMemory:
        """Remember the g that the server's h contains, where a wrapper changed the model (eq. 2)."""
        if step != "train":
            return memory
        g = {n: t - self.alpha * (sent.params[n] - reply.params[n]) for n, t in memory.g.items()}
        return replace(memory, g=g)

    @step
    def declare(self, me: Me, msg: None, memory: FedDynMemory | None) -> tuple[SizeReply, FedDynMemory | None]:
        """Say how many training examples this client has."""
        return SizeReply(me.n), memory

    def last_g(self, me: Me, msg: FedDynMessage, memory: FedDynMemory | None) -> Params:
        """Return this client's g as of the last reply the server received."""
        if memory is None:
            return zeros_like({n: msg.params[n] for n in corrected(me.layout, self.local)})
        return acknowledged(memory.g, memory.before, memory.round, msg.heard)
