"""FedAMP: each client is pulled to a mean of all clients' models, in which those near its own count more.

Y. Huang, L. Chu, Z. Zhou, L. Wang, J. Liu, J. Pei, Y. Zhang, "Personalized Cross-Silo Federated Learning on Non-IID
Data", AAAI 2021, Algorithm 1.  Equation numbers are this file's.

Notation   w_i    client i's own model, which the server has, too
           alpha  step of the message passing;  sigma  width of the attention;  lam  strength of the pull
Server     xi_ij = alpha / sigma exp(-||w_i - w_j||^2 / sigma), j other than i                           (1)
           u_i   = (1 - sum_j xi_ij) w_i + sum_j xi_ij w_j                                               (2)
Client     w_i <- LocalSGD of F_i(w) + lam / (2 alpha) ||w - u_i||^2, from w_i                           (3)
Departures Where the xi_ij of a client sum to more than 1, they are divided by their sum: (2) stays a mean.  Clients
           that have not trained yet are in no mean.  Every client's model is kept by the server, one each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt

from unskew.algorithms.fedavg import ModelMessage
from unskew.algorithms.fedexp import squares
from unskew.algorithms.fedprox import Proximal
from unskew.algorithms.parts import OwnModels
from unskew.protocol import ClientId, Federation, Me, Model, Plan, SampleCount, SgdConfig, Step, ask, sgd, step
from unskew.reduction import weighted_mean
from unskew.schema import Search
from unskew.tree import Params


@dataclass(frozen=True)
class FedAMPState:
    """The server's state: the initial model, and the models of clients that have trained."""

    initial: Params
    models: dict[ClientId, Params]


@dataclass(frozen=True)
class OwnModel:
    """A client's own model after local training, and its training examples."""

    params: Model
    n: SampleCount


@dataclass(frozen=True)
class FedAMP(OwnModels):
    """Attentive message passing between the clients' own models.

    Attributes:
        lam: lambda, strength of the pull; with a small one every client trains alone.
        alpha: Step of the message passing.
        sigma: Width of the attention, a squared distance of models.
        local: The clients' optimisation.
    """

    lam: Annotated[float, Gt(0.0), Search(0.01, 10)] = 1.0
    alpha: Annotated[float, Gt(0.0), Search(0.1, 100)] = 1.0
    sigma: Annotated[float, Gt(0.0), Search(0.1, 1000)] = 10.0
    local: SgdConfig = SgdConfig()

    def init(self, params: Params, fed: Federation) -> FedAMPState:
        """Return the initial model; no client has trained."""
        return FedAMPState(params, {})

    def round(self, state: FedAMPState, fed: Federation) -> Plan[FedAMPState]:
        """Send each client of a cohort its mean (eq. 1, 2); keep what comes back."""
        to = {c: ModelMessage(self.near(c, state)) for c in fed.sample()}
        replies = yield from ask(self.train, to)
        return FedAMPState(state.initial, {**state.models, **{c: r.params for c, r in replies.items()}})

    def near(self, client: ClientId, state: FedAMPState) -> Params:
        """Compute u_i (eq. 1, 2); for a client that has not trained the mean of all."""
        own, others = state.models.get(client), {c: w for c, w in state.models.items() if c != client}
        if own is None or not others:
            return own or mean(state)
        apart = (float(squares({n: w[n] - t for n, t in own.items()})) for w in others.values())
        xi = self.alpha / self.sigma * torch.exp(-torch.tensor([*apart], dtype=torch.float64) / self.sigma)
        xi = xi / xi.sum().clamp(min=1.0)
        return weighted_mean([own, *others.values()], [max(0.0, 1.0 - float(xi.sum())), *xi.tolist()])

    @step
    def train(self, me: Me, msg: ModelMessage, memory: Params | None) -> Step[tuple[OwnModel, Params]]:
        """Train this client's own model, pulled to the mean (eq. 3)."""
        pull = Proximal(self.lam / self.alpha)
        w = yield from sgd(memory or msg.params, self.local, pull, anchor=msg.params)
        return OwnModel(w, me.n), w

    def serve(self, state: FedAMPState, client: ClientId | None) -> Params | None:
        """Return a client's own model, or the mean of all for one that has not trained; there is no global one."""
        return None if client is None else state.models.get(client) or mean(state)


def mean(state: FedAMPState) -> Params:
    """Compute the mean of all clients' models; at first the initial model."""
    models: Mapping[ClientId, Params] = state.models
    return weighted_mean([*models.values()], [1.0] * len(models)) if models else state.initial
