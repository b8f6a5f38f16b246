"""FedLC: logits are calibrated by how often a client has each class.

J. Zhang, Z. Li, B. Li, J. Xu, S. Wu, S. Ding, C. Wu, "Federated Learning with Label Distribution Skew via Logits
Calibration", ICML 2022, eq. (8).  Equation numbers are this file's.

Notation   z_c    logit of class c;  n_c  the client's training examples of it;  tau  strength
Local loss cross-entropy of z_c - tau n_c^(-1/4) instead of z_c                                          (1)
           A class that the client lacks counts as 1e-8 examples: it is all but left out.
Server     FedAvg.
Departures The paper's denominator leaves the true class out; public code takes the softmax over all, as here.  Class
           weights of the task stay with its own loss, to which the difference of the two is added.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge
from torch import Tensor

from unskew.algorithms.fedavg import Averaging, ModelMessage, ModelReply
from unskew.algorithms.parts import masked_mean
from unskew.protocol import Aux, Batch, Me, Step, sgd, step
from unskew.schema import Search
from unskew.tree import Params

FEWEST = 1e-8
"""Examples that a class without any counts as."""


@dataclass(frozen=True)
class Shifted:
    """Cross-entropy of the logits plus `aux["shift"]`, (classes,), less that of the logits alone (eq. 1)."""

    needs: ClassVar[tuple[str, ...]] = ("classes", "classifier")

    sees: ClassVar[Literal["features"]] = "features"

    def __call__(self, params: Params, aux: Aux, batch: Batch) -> Tensor:
        """A scalar."""
        plain, shifted = (z.log_softmax(1).gather(1, batch.y[:, None])[:, 0] for z in self.logits(aux, batch))
        return masked_mean(plain - shifted, batch.mask)

    def logits(self, aux: Aux, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the logits as they are, and shifted."""
        return batch.logits, batch.logits + aux["shift"]


def counts_of(me: Me, like: Params) -> Tensor:
    """Return n_c, (classes,), at least `FEWEST`."""
    return me.histogram.to(next(iter(like.values()))).clamp(min=FEWEST)


@dataclass(frozen=True)
class FedLC(Averaging):
    """Federated averaging with calibrated logits.

    Attributes:
        tau: Strength of the calibration; 0 is FedAvg.
        local, weighting, server: Settings as in FedAvg.
    """

    needs: ClassVar[tuple[str, ...]] = Shifted.needs

    tau: Annotated[float, Ge(0.0), Search(0.01, 10)] = 1.0

    @step
    def train(self, me: Me, msg: ModelMessage, memory: None) -> Step[tuple[ModelReply, None]]:
        """Train from the received model with calibrated logits (eq. 1)."""
        shift = -self.tau * counts_of(me, msg.params) ** -0.25
        terms = (Shifted(),) if self.tau else ()
        return ModelReply((yield from sgd(msg.params, self.local, *terms, shift=shift)), me.n), None
