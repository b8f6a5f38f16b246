"""One-shot averaging: clients train to the end once, their models are averaged once.

N. Guha, A. Talwalkar, V. Smith, "One-Shot Federated Learning", 2019; the averaging among its variants.

Notation   w    the common initial model: averaging models from different starts is meaningless
           S    the cohort, n_k training examples of client k
           R    how many rounds' worth of local work is done at once
Round 1    y_k = LocalSGD(w; F_k) for k in S, R times as long;  w <- sum_k n_k y_k / sum_k n_k
Later      Nothing: the experiment may go on for the sake of others, this method has ended.
Departures The paper trains to convergence; R makes that a budget, to compare with R rounds of other methods.  Its main
           variant is an ensemble of the clients' outputs, which is not one set of parameters and so nothing that a
           method here can serve; it and its distillation are left out.
"""

from dataclasses import dataclass, replace
from typing import Annotated

from annotated_types import Ge

from unskew.algorithms.fedavg import Trained, Weighting, Weights, average
from unskew.protocol import ClientId, Federation, Me, Plan, SgdConfig, Step, ask, sgd, step
from unskew.tree import Params


@dataclass(frozen=True)
class OneShot:
    """FedAvg of a single round with long local training.

    Attributes:
        local: The clients' optimisation.
        rounds_worth: How many times the epochs or steps of `local` are trained; 1 is FedAvg with a single round.
        weighting: "samples" weighs a client by its training examples, "uniform" weighs all alike.
    """

    local: SgdConfig = SgdConfig()
    rounds_worth: Annotated[int, Ge(1)] = 20
    weighting: Weighting = "samples"

    def init(self, params: Params, fed: Federation) -> Weights:
        """The initial model."""
        return Weights(params)

    def round(self, state: Weights, fed: Federation) -> Plan[Weights]:
        """In round 1 train and average, later rest."""
        if fed.round > 1:
            return state
        replies = (yield from ask(self.train, {c: state for c in fed.sample()})).values()
        return Weights(average([r.params for r in replies], [r.n for r in replies], self.weighting))

    @step
    def train(self, me: Me, msg: Weights, mine: None) -> Step[tuple[Trained, None]]:
        """Train from the common model."""
        return Trained((yield from sgd(msg.params, longer(self.local, self.rounds_worth))), me.n), None

    def serve(self, state: Weights, client: ClientId | None) -> Params | None:
        """The global model."""
        return state.params


def longer(local: SgdConfig, times: int) -> SgdConfig:
    """`local` with `times` as many epochs or steps."""
    if local.local_steps is not None:
        return replace(local, local_steps=times * local.local_steps)
    return replace(local, local_epochs=times * (local.local_epochs or 1))
