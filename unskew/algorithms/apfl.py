"""APFL: a client uses a mixture of the global model and one of its own, in a share that it learns.

Y. Deng, M. M. Kamani, M. Mahdavi, "Adaptive Personalized Federated Learning", 2020, Algorithm 1.  Equation numbers
are this file's.

Notation   w      global model as received, then client k's copy;  v  its own model;  a  share of v
           g      gradient of F_k on a batch;  eta  learning rate
Mixture    u = a v + (1 - a) w                                                                           (1)
Client     each step on one batch:  w <- w - eta g(w)                                                    (2)
                                    v <- v - eta a g(u), with u of before the step                       (3)
           before each round's steps   a <- a - eta <v - w, g(u)>, kept in [0, 1]                        (4)
Server     w <- mean of the clients' w
Own model  the mixture
Departures (4) is taken with the first batch of a round.  The optimiser is plain SGD.  Each step draws a batch of its
           own, so an example may occur twice in a pass.  BatchNorm's statistics of the mixture are its own, those of w
           the copy's.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Interval

from unskew.algorithms.fedavg import Averaging, ModelMessage, ModelReply
from unskew.algorithms.parts import require_plain, steps_of
from unskew.protocol import Me, Sgd, Step, step
from unskew.schema import Search
from unskew.tree import Params


@dataclass(frozen=True)
class APFLMemory:
    """A client's memory: its own model, and the share of it in the mixture."""

    own: Params
    share: float


@dataclass(frozen=True)
class APFL(Averaging):
    """Adaptive mixtures of a global and an own model.

    Attributes:
        share: a at first; 0 that stays is FedAvg.
        adaptive: Let clients learn their share (eq. 4).
        local: Plain SGD.
        weighting, server: Settings of the global model's average, as in FedAvg.

    Raises:
        ConfigError: If `local` is not plain SGD.
    """

    share: Annotated[float, Interval(ge=0.0, le=1.0), Search(0.1, 0.9)] = 0.5
    adaptive: bool = True

    def __post_init__(self) -> None:
        require_plain(self.local, "APFL")

    @step
    def train(self, me: Me, msg: ModelMessage, memory: APFLMemory | None) -> Step[tuple[ModelReply, APFLMemory]]:
        """Train the copy and the own model side by side (eq. 2 to 4)."""
        w, one = msg.params, replace(self.local, local_epochs=None, local_steps=1)
        v, share = (w, self.share) if memory is None else (memory.own, memory.share)
        for s in range(steps_of(self.local, me.n)):
            u = mixed(v, w, share)
            end = (yield Sgd(u, one, draw=s)).params
            move = {n: u[n] - end[n] for n in me.layout.trainable}  # eta g(u)
            if s == 0 and self.adaptive:
                slope = torch.stack([((v[n] - w[n]) * g).double().sum() for n, g in move.items()]).sum()
                share = min(max(share - float(slope), 0.0), 1.0)
            w = (yield Sgd(w, one, draw=s)).params
            v = {n: v[n] - share * move[n] if n in move else t for n, t in end.items()}
        return ModelReply(w, me.n), APFLMemory(v, share)

    def personalise(self, me: Me, params: Params, memory: APFLMemory | None) -> Step[Params]:
        """Return the mixture (eq. 1), of which the global part is the model as served."""
        yield from ()
        return params if memory is None else mixed(memory.own, params, memory.share)


def mixed(v: Params, w: Params, share: float) -> Params:
    """Compute a v + (1 - a) w."""
    return {n: share * v[n] + (1.0 - share) * t for n, t in w.items()}
