"""One-shot averaging: clients train once, for long, and their models are averaged once.

N. Guha, A. Talwalkar, V. Smith, "One-Shot Federated Learning", 2019; the averaging among its variants.

Notation   w    the common initial model: averaging models from different starts is meaningless
           S    the cohort, n_k training examples of client k
           R    amount of local work that is done at once, in rounds
Round 1    y_k = LocalSGD(w; F_k) for k in S, R times as long;  w <- sum_k n_k y_k / sum_k n_k
Later      Nothing: the experiment may go on for other methods, but this one has ended.
Departures The paper trains to convergence; R makes that a budget, to compare with R rounds of other methods.  Its main
           variant is an ensemble of the clients' outputs, which is not one set of parameters and so nothing that a
           method here can serve; it and its distillation are left out.
"""

from dataclasses import dataclass, replace
from typing import Annotated

from annotated_types import Ge

from unskew.algorithms.fedavg import Averaging, FedAvgState, ModelMessage, ModelReply
from unskew.protocol import Federation, Me, Plan, SgdConfig, Step, sgd, step


@dataclass(frozen=True)
class OneShot(Averaging):
    """FedAvg of a single round with long local training.

    Attributes:
        rounds_worth: Factor on the epochs or steps of `local`; 1 is FedAvg with a single round.
        local, weighting, server: Settings as in FedAvg.
    """

    rounds_worth: Annotated[int, Ge(1)] = 20

    def round(self, state: FedAvgState, fed: Federation) -> Plan[FedAvgState]:
        """Run FedAvg's round, once; later rounds change nothing."""
        return state if fed.round > 1 else (yield from super().round(state, fed))

    @step
    def train(self, me: Me, msg: ModelMessage, memory: None) -> Step[tuple[ModelReply, None]]:
        """Train from the common model."""
        return ModelReply((yield from sgd(msg.params, longer(self.local, self.rounds_worth))), me.n), None


def longer(local: SgdConfig, times: int) -> SgdConfig:
    """Multiply the epochs or steps of `local` by `times`."""
    if local.local_steps is not None:
        return replace(local, local_steps=times * local.local_steps)
    return replace(local, local_epochs=times * (local.local_epochs or 1))
