"""MOON: the local representation stays near the global model's and away from the client's own previous one.

Q. Li, B. He, D. Song, "Model-Contrastive Federated Learning", CVPR 2021.  Equation numbers are this file's.

Notation   z      features of an example under the model being trained;  z_g  under the received model
           z_p    under one of this client's own earlier models, as it left its last trainings
           T, mu  temperature and strength
Local loss F_k + mu mean over the batch of
           l = -log( e^{cos(z, z_g) / T} / (e^{cos(z, z_g) / T} + sum_p e^{cos(z, z_p) / T}) )        (1)
           written as the cross-entropy of the similarities, so that no exponential overflows
Server     FedAvg.
Departures The paper appends a projection head (two layers, to 256) to the encoder and contrasts its output.  Features
           here are what enters the network's classification layer: a projection head is the last part of a network's
           body, if it has one.  Methods must be compared on one network either way.
           A client without a model of its own trains as in FedAvg: with z_p = z_g the gradient is zero as well.
           A client whose reply is lost keeps its model: it is its own, whether or not the server received it.
           Reference models run in evaluation mode, on received BatchNorm statistics, and are never changed.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import cosine_similarity

from unskew.algorithms.fedavg import Averaging, ModelMessage, ModelReply
from unskew.algorithms.parts import masked_mean
from unskew.protocol import Aux, Batch, Me, Step, sgd, step
from unskew.schema import Search
from unskew.tree import Params


@dataclass(frozen=True)
class MOONMemory:
    """A client's memory: its own models, the latest last."""

    models: tuple[Params, ...]


@dataclass(frozen=True)
class Contrast:
    """mu times the mean of l over the batch (eq. 1); `aux` has the received model and the earlier ones."""

    mu: float
    temperature: float
    sees: ClassVar[Literal["features"]] = "features"

    def __call__(self, params: Params, aux: Aux, batch: Batch) -> Tensor:
        """A scalar."""
        others = [batch.forward(model)[0] for model in (aux["received"], *aux["past"])]
        z = batch.features.flatten(1)
        near = torch.stack([cosine_similarity(z, o.flatten(1), 1) for o in others], 1) / self.temperature
        return self.mu * masked_mean(-near.log_softmax(1)[:, 0], batch.mask)


@dataclass(frozen=True)
class MOON(Averaging):
    """Model-contrastive learning.

    Attributes:
        mu: Strength; 0 is FedAvg.  The paper takes 5 on CIFAR-10 and 1 on CIFAR-100.
        temperature: T.
        buffer: Number of its own models that a client remembers; the paper has one.
        local, weighting, server: Settings as in FedAvg.
    """

    needs: ClassVar[tuple[str, ...]] = ("features",)

    mu: Annotated[float, Ge(0.0), Search(0.01, 10)] = 1.0
    temperature: Annotated[float, Gt(0.0), Search(0.1, 2)] = 0.5
    buffer: Annotated[int, Ge(1)] = 1

    @step
    def train(self, me: Me, msg: ModelMessage, memory: MOONMemory | None) -> Step[tuple[ModelReply, MOONMemory | None]]:
        """Train in contrast to this client's earlier models, and remember the new one."""
        if self.mu == 0.0:
            return ModelReply((yield from sgd(msg.params, self.local)), me.n), None
        if memory is None:
            w = yield from sgd(msg.params, self.local)
            return ModelReply(w, me.n), MOONMemory((w,))
        term = Contrast(self.mu, self.temperature)
        w = yield from sgd(msg.params, self.local, term, received=msg.params, past=memory.models)
        return ModelReply(w, me.n), MOONMemory((*memory.models, w)[-self.buffer :])
