"""FedSAM: clients take gradients at the worst point nearby, so that they end in flat places.

Z. Qu, X. Li, R. Duan, Y. Liu, B. Tang, Z. Lu, "Generalized Federated Learning via Sharpness Aware Minimization", ICML
2022, Algorithm 1; P. Foret et al., ICLR 2021, for one machine.  Equation numbers are this file's.

Notation   g(w)   gradient of F_k on a batch;  rho  radius;  eta  learning rate
Client     each step on one batch:  w~ = w + rho g(w) / ||g(w)||                                         (1)
                                    w <- w - eta g(w~)                                                   (2)
Server     FedAvg.
Work       Two passes over each batch.
Departures The optimiser is plain SGD.  Each step draws a batch of its own, so an example may occur twice in a pass.
           BatchNorm's statistics follow the batches at w~.  Weight decay belongs to F_k.
"""

from dataclasses import dataclass, replace
from typing import Annotated

from annotated_types import Ge

from unskew.algorithms.fedavg import Averaging, ModelMessage, ModelReply
from unskew.algorithms.fedexp import squares
from unskew.algorithms.parts import require_plain, steps_of
from unskew.protocol import Me, Sgd, Step, sgd, step
from unskew.schema import Search


@dataclass(frozen=True)
class FedSAM(Averaging):
    """Federated averaging with sharpness-aware clients.

    Attributes:
        rho: Radius; 0 is FedAvg.
        local: Plain SGD.
        weighting, server: Settings as in FedAvg.

    Raises:
        ConfigError: If `local` is not plain SGD.
    """

    rho: Annotated[float, Ge(0.0), Search(0.005, 0.5)] = 0.05

    def __post_init__(self) -> None:
        if self.rho:
            require_plain(self.local, "FedSAM")

    @step
    def train(self, me: Me, msg: ModelMessage, memory: None) -> Step[tuple[ModelReply, None]]:
        """Take steps from the worst point nearby (eq. 1, 2)."""
        if not self.rho:
            return ModelReply((yield from sgd(msg.params, self.local)), me.n), None
        w, one = msg.params, replace(self.local, local_epochs=None, local_steps=1)
        for s in range(steps_of(self.local, me.n)):
            there = (yield Sgd(w, one, draw=s)).params
            g = {n: w[n] - there[n] for n in me.layout.trainable}  # eta g(w)
            length = squares(g).sqrt().clamp(min=1e-12)
            up = {n: t + self.rho * (g[n] / length).to(t) if n in g else t for n, t in w.items()}
            end = (yield Sgd(up, one, draw=s)).params
            w = {n: w[n] - (up[n] - t) if n in g else t for n, t in end.items()}
        return ModelReply(w, me.n), None
