"""FedNTD: distillation from the received model, over all classes but an example's own.

G. Lee, M. Jeong, Y. Shin, S. Bae, S.-Y. Yun, "Preservation of the Global Knowledge by Not-True Distillation in
Federated Learning", NeurIPS 2022, eq. (3) to (5).  Equation numbers are this file's.

Notation   z, z_g   logits under the model being trained, and under the received one
           q, q_g   their softmax at temperature tau over all classes but the example's own
Local loss F_k + beta tau^2 mean over the batch of KL(q_g || q)                                          (1)
Server     FedAvg.
Departures The received model runs in evaluation mode.  Of two classes only one is not true, so that the term is zero.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from unskew.algorithms.fedavg import Averaging, ModelMessage, ModelReply
from unskew.algorithms.parts import masked_mean
from unskew.protocol import Aux, Batch, Me, Step, sgd, step
from unskew.schema import Search
from unskew.tree import Params


@dataclass(frozen=True)
class NotTrue:
    """beta tau^2 KL(q_g || q), mean over the batch (eq. 1); `aux` has the received model."""

    needs: ClassVar[tuple[str, ...]] = ("classes", "classifier")

    beta: float
    tau: float
    sees: ClassVar[Literal["features"]] = "features"

    def __call__(self, params: Params, aux: Aux, batch: Batch) -> Tensor:
        """A scalar."""
        true = torch.nn.functional.one_hot(batch.y, batch.logits.shape[1]).bool()
        own, received = (
            (z / self.tau).masked_fill(true, torch.finfo(z.dtype).min / 4).log_softmax(1)
            for z in (batch.logits, batch.forward(aux["received"])[1])
        )
        divergence = (received.exp() * (received - own)).sum(1)
        return self.beta * self.tau**2 * masked_mean(divergence, batch.mask)


@dataclass(frozen=True)
class FedNTD(Averaging):
    """Federated averaging with not-true distillation.

    Attributes:
        beta: Strength; 0 is FedAvg.
        tau: Temperature.
        local, weighting, server: Settings as in FedAvg.
    """

    needs: ClassVar[tuple[str, ...]] = NotTrue.needs

    beta: Annotated[float, Ge(0.0), Search(0.01, 10)] = 1.0
    tau: Annotated[float, Gt(0.0), Search(0.3, 5)] = 1.0

    @step
    def train(self, me: Me, msg: ModelMessage, memory: None) -> Step[tuple[ModelReply, None]]:
        """Train from the received model, and keep what it says of other classes (eq. 1)."""
        terms = (NotTrue(self.beta, self.tau),) if self.beta else ()
        return ModelReply((yield from sgd(msg.params, self.local, *terms, received=msg.params)), me.n), None
