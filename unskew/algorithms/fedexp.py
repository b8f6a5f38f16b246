"""FedExP: the server's step is the longer, the more the clients' updates disagree.

D. Jhunjhunwala, S. Wang, G. Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation", ICLR 2023,
Algorithm 1.  Equation numbers are this file's.

Notation   w      global parameters;  y_k  client k's after local training;  d_k = y_k - w
           p_k    weights of the clients that replied, with the sum 1
Server     w <- w + eta sum_k p_k d_k,                                                                   (1)
           eta = max(1, sum_k p_k ||d_k||^2 / (2 (||sum_k p_k d_k||^2 + epsilon)))                       (2)
Departures p_k may be by examples; the paper's are equal.  Buffers take FedAvg's mean.  The paper evaluates the mean
           of the last two models, which swing where eta is large; here it is the last one.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt

from unskew.algorithms.fedavg import ModelMessage, ModelReply, Weighting, mean_of
from unskew.algorithms.parts import OneModel
from unskew.protocol import Federation, Me, Plan, SgdConfig, Step, ask, sgd, step
from unskew.reduction import Moved
from unskew.schema import Search
from unskew.tree import Params


@dataclass(frozen=True)
class FedExPState:
    """The server's state: the global model, and eta of the last round."""

    params: Params
    eta: float = 1.0


@dataclass(frozen=True)
class FedExP(OneModel):
    """Federated averaging with extrapolation.

    Attributes:
        epsilon: Added to the squared norm of the mean update; a large one is FedAvg.
        local: The clients' optimisation.
        weighting: p_k: "uniform" as published, "samples" by training examples.
    """

    epsilon: Annotated[float, Gt(0.0), Search(1e-5, 0.1)] = 1e-3
    local: SgdConfig = SgdConfig()
    weighting: Weighting = "uniform"

    def init(self, params: Params, fed: Federation) -> FedExPState:
        """Return the initial model."""
        return FedExPState(params)

    def round(self, state: FedExPState, fed: Federation) -> Plan[FedExPState]:
        """Send the model to a cohort; step along the mean update (eq. 1, 2)."""
        w, update = state.params, Moved("params", fed.layout.trainable, state.params)
        squared = mean_of(lambda c, r: {"square": squares(update(c, r))}, self.weighting)
        to = dict.fromkeys(fed.sample(), ModelMessage(w))
        answer = yield from ask(self.train, to, reduce=(mean_of("params", self.weighting), squared))
        mean, square = answer.values
        d = {n: mean[n] - w[n] for n in fed.layout.trainable}
        eta = max(1.0, float(square["square"]) / (2.0 * (float(squares(d)) + self.epsilon)))
        if eta == 1.0:
            return FedExPState(mean)
        return FedExPState({n: w[n] + eta * d[n] if n in d else t for n, t in mean.items()}, eta)

    @step
    def train(self, me: Me, msg: ModelMessage, memory: None) -> Step[tuple[ModelReply, None]]:
        """Train from the received model."""
        return ModelReply((yield from sgd(msg.params, self.local)), me.n), None


def squares(params: Params) -> torch.Tensor:
    """Compute the squared L2 norm, float64."""
    return torch.stack([t.double().square().sum() for t in params.values()]).sum()
