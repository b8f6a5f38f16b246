"""q-FedAvg: clients with a high loss count more, so that results differ less from client to client.

T. Li, M. Sanjabi, A. Beirami, V. Smith, "Fair Resource Allocation in Federated Learning", ICLR 2020, Algorithm 2.
Equation numbers are this file's.

Notation   w      global parameters
           F_k    mean loss on client k's training data, in evaluation mode
           y_k    client k's parameters after local training from w
           d_k    y_k - w over trainable parameters
           p_k    n_k / sum n over the clients that replied
           L      bound on the curvature of F_k, the same for all clients: 1 / eta, with eta the local learning rate
Aim        min_w sum_k p_k / (q + 1) F_k(w)^{q+1}                                                     (1)
Client     y_k = LocalSGD(w; F_k), and F_k(w)
Server     w <- w + sum_k p_k F_k^q d_k / sum_k p_k h_k                                               (2)
           h_k = q F_k^{q-1} L ||d_k||^2 + F_k^q                                                      (3)
           With -L d_k as client k's gradient, h_k L bounds the curvature of (1): a step of 1 / sum h_k
           needs no learning rate of its own, whatever q is.  q = 0 is FedAvg.
Departures The paper draws clients with probability p_k and adds them up alike; here all are drawn alike, and p_k is in
           (2).  Its L is tuned, by the best learning rate at q = 0; here it is 1 / `local.lr` unless it is given.  As
           in the released code 1e-10 is added to F_k, so that a power of no loss is a number.  Buffers take FedAvg's
           mean.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt, Interval
from jaxtyping import Float
from torch import Tensor

from unskew.algorithms.fedavg import ModelMessage, Weighting, weight_of, without
from unskew.algorithms.parts import OneModel, train_loss
from unskew.errors import ConfigError, WireError
from unskew.protocol import (
    Federation,
    Layout,
    Me,
    Model,
    Plan,
    SampleCount,
    SgdConfig,
    Step,
    ask,
    require_rate,
    sgd,
    step,
)
from unskew.reduction import MeanOf
from unskew.schema import Search
from unskew.tree import Params

LEAST_LOSS = 1e-10
"""Added to every loss."""


@dataclass(frozen=True)
class QFedAvgState:
    """The server's state: the global model."""

    params: Params


@dataclass(frozen=True)
class QFedAvgReply:
    """A trained model, its training examples, and the received model's loss on them, float64."""

    params: Model
    n: SampleCount
    loss: Float[Tensor, ""]  # not a float: its size on the wire depends on its digits


@dataclass(frozen=True)
class QFedAvg(OneModel):
    """Federated averaging that favours clients with a high loss.

    Attributes:
        q: Power of the losses, by which clients are weighted: 0 is FedAvg, the larger the more alike results become.
        lipschitz: L; None is 1 / `local.lr`.
        local: The clients' optimisation.
        weighting: p_k: "samples" by training examples, "uniform" all equal.
    """

    q: Annotated[float, Interval(ge=0.0, le=20.0), Search(0.1, 5)] = 1.0
    lipschitz: Annotated[float, Gt(0.0)] | None = None
    local: SgdConfig = SgdConfig()
    weighting: Weighting = "samples"

    def init(self, params: Params, fed: Federation) -> QFedAvgState:
        """Return the initial model."""
        return QFedAvgState(params)

    def round(self, state: QFedAvgState, fed: Federation) -> Plan[QFedAvgState]:
        """Send the model to a cohort; step towards the clients' models, weighted by their losses (eq. 2, 3)."""
        w, trainable = state.params, fed.layout.trainable

        def displacement(r: QFedAvgReply) -> Params:
            # In float64: powers of losses leave the range of float32, 1e-10 already at q = 5.
            return {n: r.params[n].double() - w[n].double() for n in trainable}

        answer = yield from ask(
            self.train,
            dict.fromkeys(fed.sample(), ModelMessage(w)),
            reduce=(
                MeanOf(lambda c, r: displacement(r), lambda c, r: self.weight(r) * self.power(r, self.q)),
                MeanOf(lambda c, r: self.scale(r, displacement(r)), lambda c, r: self.weight(r)),
                MeanOf(lambda c, r: without(r.params, trainable), lambda c, r: self.weight(r)),
            ),
        )
        direction, scale, buffers = answer.values
        rate = float(scale["power"] / scale["h"])
        moved = {n: (w[n].double() + rate * direction[n]).to(w[n]) for n in trainable}
        return QFedAvgState({n: moved[n] if n in moved else buffers[n] for n in w})

    def __post_init__(self) -> None:
        if self.lipschitz is None:
            require_rate(self.local, "L = 1 / local.lr of q-FedAvg")

    def weight(self, reply: QFedAvgReply) -> float:
        """Return p_k, up to a factor that is common to all."""
        return weight_of(reply.n, self.weighting)

    def power(self, reply: QFedAvgReply, exponent: float) -> float:
        """Return a power of F_k."""
        return float((float(reply.loss) + LEAST_LOSS) ** exponent)

    def scale(self, reply: QFedAvgReply, d: Params) -> Params:
        """Return F_k^q and h_k (eq. 3), float64."""
        squared = sum(float((t.double() ** 2).sum()) for t in d.values())
        lipschitz = 1.0 / self.local.lr if self.lipschitz is None else self.lipschitz
        power = self.power(reply, self.q)
        h = self.q * self.power(reply, self.q - 1.0) * lipschitz * squared + power
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in (("power", power), ("h", h))}

    @step
    def train(self, me: Me, msg: ModelMessage, memory: None) -> Step[tuple[QFedAvgReply, None]]:
        """Train from the received model, and evaluate it.

        Raises:
            ConfigError: If its loss is negative, which has no powers.
        """
        y = yield from sgd(msg.params, self.local)
        loss = 0.0 if self.q == 0.0 else (yield from train_loss(me, msg.params))
        if loss < 0.0:
            raise ConfigError(
                f"q-FedAvg raises losses to the power q, and a client's is negative, {loss:g}; choose a loss that "
                "cannot be, with task.loss, or another method"
            )
        return QFedAvgReply(y, me.n, torch.tensor(loss, dtype=torch.float64)), None

    def validate_reply(self, step: str, reply: QFedAvgReply, model: Params, layout: Layout) -> None:
        """Refuse a loss that is none."""
        if not 0.0 <= float(reply.loss) < float("inf"):
            raise WireError(f"a loss must be a number >= 0, got {float(reply.loss):g}")
