"""FedAsync: each model is mixed into the global one as it comes, with less weight if it is stale.

C. Xie, S. Koyejo, I. Gupta, "Asynchronous Federated Optimization", arXiv 1903.03934, 2019, Algorithm 1 and section
5.2.  Equation numbers are this file's.

Notation   w_t   global model after t steps of the server;  alpha  mixing weight
           y     a client's model after local training from the w_s that it was sent
           tau   t - s, the steps that the server has made since: the staleness
Local loss F_k(y) + rho/2 ||y - w_s||^2                                                                    (1)
Server     w_{t+1} = (1 - alpha_t) w_t + alpha_t y,  alpha_t = alpha s(tau)                                (2)
Staleness  s(tau) = 1, constant;  (1 + tau)^-a, polynomial;
           1 up to tau = b, then 1 / (a (tau - b) + 1), hinge                                              (3)
Departures A round is as many steps as the cohort has clients.  With one client at work and alpha = 1 it is FedAvg
           with cohorts of one: each model takes the place of the global one.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Interval

from unskew.algorithms.fedavg import ModelMessage, ModelReply
from unskew.algorithms.fedbuff import Flow, next_replies
from unskew.algorithms.fedprox import Proximal
from unskew.algorithms.parts import OneModel
from unskew.protocol import Federation, Me, Plan, SgdConfig, Step, sgd, step
from unskew.schema import Search
from unskew.tree import Params, map_params


@dataclass(frozen=True)
class FedAsync(OneModel):
    """Asynchronous averaging.

    Attributes:
        alpha: Weight of a fresh model.
        staleness: s: "constant", "polynomial" or "hinge".
        a, b: Its constants (eq. 3).
        rho: Strength of the pull to the received model (eq. 1).
        local: The clients' optimisation.
    """

    alpha: Annotated[float, Interval(gt=0.0, le=1.0), Search(0.1, 1)] = 0.6
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial"
    a: Annotated[float, Ge(0.0)] = 0.5
    b: Annotated[int, Ge(0)] = 4
    rho: Annotated[float, Ge(0.0)] = 0.005
    local: SgdConfig = SgdConfig()
    as_they_come: ClassVar[bool] = True

    def init(self, params: Params, fed: Federation) -> Flow[ModelReply]:
        """Return the initial model."""
        return Flow(params)

    def round(self, state: Flow[ModelReply], fed: Federation) -> Plan[Flow[ModelReply]]:
        """Mix in as many models as a cohort has clients, one by one (eq. 2)."""
        for i in range(fed.clients_per_round):
            arrived = yield from next_replies(self.train, state, fed, i, 1)
            (came,) = arrived.replies.values()
            alpha = self.alpha * self.share(state.steps - came.stamp)
            new = map_params(lambda w, y, alpha=alpha: (1 - alpha) * w + alpha * y, state.params, came.reply.params)
            state = Flow(new, state.steps + 1, arrived.under_way)
        return state

    def share(self, tau: int) -> float:
        """Compute s(tau) (eq. 3)."""
        if self.staleness == "hinge":
            return 1.0 / (self.a * max(tau - self.b, 0) + 1.0)
        return float((1 + tau) ** -self.a) if self.staleness == "polynomial" else 1.0

    @step
    def train(self, me: Me, msg: ModelMessage, memory: None) -> Step[tuple[ModelReply, None]]:
        """Train from the received model, pulled to it (eq. 1)."""
        terms = (Proximal(self.rho),) if self.rho else ()
        return ModelReply((yield from sgd(msg.params, self.local, *terms, anchor=msg.params)), me.n), None
