"""Ditto: besides the global model, each client trains a model of its own that is pulled towards it.

T. Li, S. Hu, A. Beirami, V. Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021,
Algorithm 1, with FedAvg for the global model.  Equation numbers are this file's.

Notation   w      global model as received;  v_k  client k's own model, in its memory
           lam    lambda, strength of the pull
Global     FedAvg, to the bit: v_k plays no part in it                                               (1)
Own        v_k <- LocalSGD(v_k; F_k + lam/2 ||v_k - w||^2), w fixed                                  (2)
Limits     lam = 0 is local training.  Under plain SGD a pull with lr lam above 1 overshoots, from 2 on it diverges.
Work       A client trains twice in a round.
Departures The paper starts every v_k at w^0.  Here v_k starts at the first model its client receives, which is the same
           if all take part in round 1, and a client that never took part uses the global model, since all it would have
           is the untrained w^0.  BatchNorm statistics belong to v_k and are not pulled.
"""

from dataclasses import dataclass, replace
from typing import Annotated

from annotated_types import Ge

from unskew.algorithms.fedavg import Averaging, ModelMessage, ModelReply
from unskew.algorithms.fedprox import Proximal
from unskew.algorithms.parts import OwnModels
from unskew.protocol import Fitted, Me, Sgd, SgdConfig, Step, step
from unskew.schema import Search
from unskew.tree import Params


@dataclass(frozen=True)
class Ditto(Averaging, OwnModels):
    """A global model, and a personal model for every client.

    Attributes:
        lam: Strength of the pull; 0 trains v_k alone.  The paper chooses from .05, .1, .2, 1 and 2.
        personal_epochs: Passes over a client's data for v_k; None does as much work as `local`.
        local: The clients' optimisation, of both models.
        weighting, server: Settings of the global model's average, as in FedAvg.
    """

    lam: Annotated[float, Ge(0.0), Search(0.01, 10)] = 1.0
    personal_epochs: Annotated[int, Ge(1)] | None = None

    @step
    def train(self, me: Me, msg: ModelMessage, memory: Params | None) -> Step[tuple[ModelReply, Params | None]]:
        """Train this client's own model (eq. 2), then the received one."""
        terms = (Proximal(self.lam),) if self.lam else ()
        v: Fitted = yield Sgd(memory or msg.params, self.own, terms, {"anchor": msg.params}, draw="own")
        w: Fitted = yield Sgd(msg.params, self.local, draw=0)  # FedAvg's batches
        return ModelReply(w.params, me.n), v.params

    @property
    def own(self) -> SgdConfig:
        """Return the optimisation of eq. 2."""
        if self.personal_epochs is None:
            return self.local
        return replace(self.local, local_epochs=self.personal_epochs, local_steps=None)
