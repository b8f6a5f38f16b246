"""FedRep: each client fits its own head on the common body, then improves the body under that head.

L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai, "Exploiting Shared Representations for Personalized Federated
Learning", ICML 2021, Algorithm 1.  Equation numbers are this file's.

Notation   phi       body, common to all;  theta_k  head of client k, in its memory, the common initial one at first
           tau       epochs on the head
Client     theta_k <- tau epochs of SGD on F_k(phi, .), the body as received                         (1)
           phi_k   <- SGD on F_k(., theta_k) as `local` says, the head as eq. 1 left it              (2)
Server     phi <- mean of phi_k over the clients that replied                                        (3)
Own model  (phi, theta_k); `finetune_epochs` repeats eq. 1 before a model is used, as the authors' code does at the end.
Work       Eq. 1 is in addition to `local`: tau epochs more than FedAvg's, forward through the whole network.
Frozen     Eq. 1 and 2 are two optimisations, each with an optimiser of its own over the tensors that it may change: a
           gradient set to zero would leave momentum and weight decay at work.  In eq. 1 the body's BatchNorm layers use
           the received statistics and leave them as they are.
Departures None.  The mean is uniform as published; the authors' code weights by examples (`weighting = "samples"`).
"""

from dataclasses import dataclass, field, replace
from typing import Annotated

from annotated_types import Ge

from unskew.algorithms.fedavg import (
    Averaging,
    FedAvgState,
    ModelMessage,
    ModelReply,
    Weighting,
    completed,
    only,
    without,
)
from unskew.algorithms.parts import restricted, shares_something
from unskew.protocol import ClientId, Federation, Layout, Me, SgdConfig, Step, sgd, step
from unskew.schema import Search
from unskew.tree import Params


@dataclass(frozen=True)
class FedRep(Averaging):
    """Alternating optimisation of personal heads and a common body.

    Attributes:
        head_epochs: tau, passes over a client's data in eq. 1; 0 leaves the heads as they are.
        local: The optimisation of eq. 2; eq. 1 differs only in its epochs.
        weighting: "uniform" weights all bodies equally, "samples" by training examples.
        server: Server rule, as in FedAvg.
        personal: Tensors of the head, which stay with each client.
        finetune_epochs: Number of passes to train the head before a client uses its model.

    Raises:
        ConfigError: In `init`, if no tensor would be left to share.
    """

    head_epochs: Annotated[int, Ge(0), Search(1, 20, whole=True)] = 10
    weighting: Weighting = field(default="uniform", kw_only=True)
    personal: tuple[str, ...] = ("head",)
    finetune_epochs: Annotated[int, Ge(0)] = 0

    def init(self, params: Params, fed: Federation) -> FedAvgState:
        """Return the initial body and the server rule's initial state."""
        personal = shares_something(fed.layout, self.personal, "FedRep's personal", "independent")
        return super().init(without(params, personal), fed)

    @step
    def train(self, me: Me, msg: ModelMessage, memory: Params | None) -> Step[tuple[ModelReply, Params | None]]:
        """Train the head, then the body (eq. 1, 2)."""
        personal = me.layout.select(self.personal)
        w = yield from self.fit_head(me, completed(me, msg.params, personal, memory), self.head_epochs)
        w = yield from sgd(w, self.body(me.layout))
        return ModelReply(without(w, personal), me.n), only(w, personal)

    def fit_head(self, me: Me, start: Params, epochs: int) -> Step[Params]:
        """Train the head (eq. 1)."""
        config = restricted(self.local, me.layout, me.layout.select(self.personal))
        if not epochs or not set(config.trainable).intersection(me.layout.trainable):
            return start
        return (yield from sgd(start, replace(config, local_epochs=epochs, local_steps=None)))

    def body(self, layout: Layout) -> SgdConfig:
        """Return the optimisation of eq. 2."""
        personal = layout.select(self.personal)
        # Where no parameter is personal there is no eq. 1, and personal statistics follow the batches here.
        frozen = personal if personal.intersection(layout.trainable) else frozenset[str]()
        return restricted(self.local, layout, layout.select(("all",)) - frozen)

    def personalise(self, me: Me, params: Params, memory: Params | None) -> Step[Params]:
        """Return the common body with this client's head."""
        own = completed(me, params, me.layout.select(self.personal), memory)
        return (yield from self.fit_head(me, own, self.finetune_epochs))

    def serve(self, state: FedAvgState, client: ClientId | None) -> Params | None:
        """Return the body; there is no complete global model."""
        return None if client is None and self.personal else state.params
