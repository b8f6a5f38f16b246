"""FedMD: clients with any networks agree on the class scores of public data.

D. Li, J. Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", NeurIPS workshop on Federated Learning,
2019, Algorithm 1.  Equation numbers are this file's.

Notation   D0     public rows, which all clients and the server have; x_i their inputs
           f_k    client k's network: its scores of the classes, before the softmax
           F      consensus, (rows of D0, classes)
Start      f_k <- LocalSGD(f_k; D0), with the labels of D0, if it has any, in a client's first round
Client     digest   f_k <- LocalSGD of the mean over D0 of H(softmax(F_i), softmax(f_k(x_i))), cross-entropy        (1)
           revisit  f_k <- LocalSGD(f_k; F_k), on its own data;  then its scores f_k(x_i) of all of D0
Server     F <- mean of f_k(x_i) over the clients that replied                                                     (2)
Wire       |D0| C floats each way for each participant, from the second round on down, too.  D0 itself never travels.
Departures The paper's round ends with digest and revisit; here they begin the next one, so that it is one exchange.
           Scores are of all of D0 in every round, where the paper may draw some.  Eq. 1 is about the softmax of both;
           the authors' code takes the mean absolute difference of scores.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from unskew.algorithms.parts import OwnNetworks
from unskew.protocol import Examples, Federation, Fitted, Local, Me, Plan, Sgd, SgdConfig, Step, ask, run, step
from unskew.tree import Params


@dataclass(frozen=True)
class Consensus:
    """F, (public rows, classes), None before the first round; the state and the message."""

    scores: Float[Tensor, "public classes"] | None = None


@dataclass(frozen=True)
class PublicScores:
    """A client's scores of the public rows, (public rows, classes)."""

    scores: Float[Tensor, "public classes"]


def score(local: Local, params: Params) -> Tensor:
    """Compute f_k(x_i) of the public rows."""
    return local.forward(params, local.public[0])[1]


@dataclass(frozen=True)
class FedMD(OwnNetworks):
    """Federated model distillation.

    Attributes:
        start: Optimisation on the public rows and their labels, in a client's first round.
        digest: Optimisation towards the consensus (eq. 1).
        local: The clients' optimisation on their own data.
    """

    needs: ClassVar[tuple[str, ...]] = ("classes", "classifier")
    needs_public: ClassVar[bool] = True

    start: SgdConfig = SgdConfig()
    digest: SgdConfig = SgdConfig()
    local: SgdConfig = SgdConfig()

    def init(self, params: Params, fed: Federation) -> Consensus:
        """Return no scores."""
        return Consensus()

    def round(self, state: Consensus, fed: Federation) -> Plan[Consensus]:
        """Send the consensus to a cohort; the mean of its scores is the next (eq. 2)."""
        replies = yield from ask(self.train, dict.fromkeys(fed.sample(), state))
        return Consensus(torch.stack([r.scores for r in replies.values()]).mean(0))

    @step
    def train(self, me: Me, msg: Consensus, memory: Params | None) -> Step[tuple[PublicScores, Params | None]]:
        """Begin on the public rows, or digest the consensus; revisit this client's own rows; score the public ones."""
        x, y = yield from run(lambda local: local.public)
        w, rows = memory or me.initial, torch.arange(len(x))
        if memory is None and y is not None:
            begun: Fitted = yield Sgd(w, self.start, draw="start", examples=Examples(x, y, rows))
            w = begun.params
        if msg.scores is not None:
            digested: Fitted = yield Sgd(
                w, self.digest, draw="digest", examples=Examples(x, msg.scores.softmax(1), rows)
            )
            w = digested.params
        revisited: Fitted = yield Sgd(w, self.local, draw=0)
        return PublicScores((yield from run(score, revisited.params))), revisited.params
