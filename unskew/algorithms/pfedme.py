"""pFedMe: own models near a client's copy of the global one, which moves towards them.

C. T. Dinh, N. H. Tran, T. D. Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020,
Algorithm 1.  Equation numbers are this file's.

Notation   w      global model as received, then client k's copy of it;  theta  its own model
           lam    strength of the pull;  eta  rate of w;  R  local rounds, K  steps of theta in each
Client     R times:  theta <- K steps on F_k(theta) + lam/2 ||theta - w||^2                              (1)
                     w     <- w - eta lam (w - theta)                                                    (2)
Server     w <- mean of the clients' w, uniform as published; the paper's beta is a `server` with that rate
Own model  theta after the last local round
Departures Each of the K steps has a batch of its own; the paper takes them on one.  R is the number of steps that
           FedAvg would take, so that w moves as often.  BatchNorm's statistics are theta's.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated

from annotated_types import Ge, Gt

from unskew.algorithms.fedavg import Averaging, ModelMessage, ModelReply, Weighting
from unskew.algorithms.fedprox import Proximal
from unskew.algorithms.parts import OwnModels, steps_of
from unskew.protocol import Me, Step, require_rate, sgd, step
from unskew.schema import Search
from unskew.tree import Params


@dataclass(frozen=True)
class PFedMe(Averaging, OwnModels):
    """Personalised models by Moreau envelopes.

    Attributes:
        lam: lambda, strength of the pull; with `local.lr` below 1 / lam, or steps overshoot.  The paper takes 15, and
            learning rates of .005.
        eta: Rate of the client's copy; at 1 / lam it becomes theta.
        inner_steps: K.
        local: Optimisation of theta; its epochs or steps say how many local rounds there are.
        weighting: "uniform" as published, "samples" by training examples.
        server: Server rule, as in FedAvg.
    """

    lam: Annotated[float, Gt(0.0), Search(0.1, 30)] = 5.0
    eta: Annotated[float, Gt(0.0), Search(0.001, 0.1)] = 0.05
    inner_steps: Annotated[int, Ge(1)] = 5
    weighting: Weighting = field(default="uniform", kw_only=True)

    def __post_init__(self) -> None:
        require_rate(self.local, "pFedMe")

    @step
    def train(self, me: Me, msg: ModelMessage, memory: Params | None) -> Step[tuple[ModelReply, Params]]:
        """Train theta and the copy in turn (eq. 1, 2)."""
        inner = replace(self.local, local_epochs=None, local_steps=self.inner_steps)
        w = theta = msg.params
        for _ in range(steps_of(self.local, me.n)):
            theta = yield from sgd(theta, inner, Proximal(self.lam), anchor=w)
            rate = self.eta * self.lam
            w = {n: w[n] - rate * (w[n] - t) if n in me.layout.trainable else t for n, t in theta.items()}
        return ModelReply(w, me.n), theta
