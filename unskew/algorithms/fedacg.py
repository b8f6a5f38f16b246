"""FedACG: clients train from the model moved ahead by the server's momentum.

G. Kim, J. Kim, B. Han, "Communication-Efficient Federated Learning with Accelerated Client Gradient", CVPR 2024,
Algorithm 1.  Equation numbers are this file's.

Notation   w, m   global parameters and the server's momentum;  y_k  client k's parameters after local training
Server     sends v = w + lam m                                                                           (1)
Client     F_k(y) + beta/2 ||y - v||^2, from v                                                           (2)
Server     m <- lam m + mean_k (y_k - v),  w <- w + m, which is w <- mean_k y_k and m <- its movement    (3)
Departures The mean may be by examples; the paper's is uniform.  Buffers have no momentum: they are sent as they are.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from unskew.algorithms.fedavg import FedAvgState, ModelMessage, ModelReply, Weighting, mean_of
from unskew.algorithms.fedprox import Proximal
from unskew.algorithms.parts import OneModel
from unskew.protocol import Federation, Me, Plan, SgdConfig, Step, ask, sgd, step
from unskew.schema import Search
from unskew.server.optimise import Decay, Moments
from unskew.tree import Params, zeros_like


@dataclass(frozen=True)
class FedACG(OneModel):
    """Federated averaging with accelerated client gradients.

    Attributes:
        lam: lambda, decay of the momentum; the paper takes .75 to .9.
        beta: Strength of the pull to the received model; 0 for both is FedAvg.
        local: The clients' optimisation.
        weighting: "uniform" as published, "samples" by training examples.
    """

    lam: Annotated[Decay, Search(0.5, 0.95)] = 0.85
    beta: Annotated[float, Ge(0.0), Search(0.001, 1)] = 0.01
    local: SgdConfig = SgdConfig()
    weighting: Weighting = "uniform"

    def init(self, params: Params, fed: Federation) -> FedAvgState:
        """Return the initial model, without momentum."""
        return FedAvgState(params, Moments(zeros_like({n: params[n] for n in fed.layout.trainable})))

    def round(self, state: FedAvgState, fed: Federation) -> Plan[FedAvgState]:
        """Send the model ahead of its momentum (eq. 1), and take the mean (eq. 3)."""
        w, m = state.params, state.moments.m
        ahead = {n: t + self.lam * m[n] if n in m else t for n, t in w.items()}
        to = dict.fromkeys(fed.sample(), ModelMessage(ahead))
        mean = (yield from ask(self.train, to, reduce=mean_of("params", self.weighting))).value
        return FedAvgState(mean, Moments({n: mean[n] - w[n] for n in m}))

    @step
    def train(self, me: Me, msg: ModelMessage, memory: None) -> Step[tuple[ModelReply, None]]:
        """Train from the received model, pulled to it (eq. 2)."""
        terms = (Proximal(self.beta),) if self.beta else ()
        return ModelReply((yield from sgd(msg.params, self.local, *terms, anchor=msg.params)), me.n), None
