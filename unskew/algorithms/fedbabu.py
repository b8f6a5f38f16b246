"""FedBABU: only the body is trained; all clients share one random head until they fine-tune.

J. Oh, S. Kim, S.-Y. Yun, "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022,
Algorithm 1.

Notation   phi      body;  theta^0  head, as it was initialised
Client     phi_k = LocalSGD(phi; F_k(., theta^0))
Server     phi <- mean of phi_k over the clients that replied
Use        the global model is (phi, theta^0), the paper's "initial" accuracy; a client's own model is fine-tuned from
           it on the client's training data, the paper's "personalized" accuracy
Wire       Only the body.  theta^0 never travels: every client makes it from the run's seed.
Departures Fine-tuning is of the head unless `finetune` says otherwise; the paper compares head, body and all, and
           fine-tunes all in its later tables.  The head is outside the optimisation, where the authors' code gives it
           a learning rate of zero; the value is the same, also under weight decay.  The mean is uniform, as in their
           code; clients of unequal size may be weighted by `weighting = "samples"`.  Fine-tuning starts from the global
           model at each evaluation, and its result is discarded afterwards.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from annotated_types import Ge

from unskew.algorithms.fedavg import Averaging, FedAvgState, ModelMessage, ModelReply, Weighting, completed, without
from unskew.algorithms.parts import restricted, shares_something
from unskew.protocol import Federation, Layout, Me, Step, sgd, step
from unskew.tree import Params


@dataclass(frozen=True)
class FedBABU(Averaging):
    """Body aggregation, body update.

    Attributes:
        finetune: Tensors a client fine-tunes before it uses the model; "none" uses the global model as it is.
        finetune_epochs: Number of passes over its training data to fine-tune.
        local: The clients' optimisation; fine-tuning differs in its epochs and in the tensors it trains.
        weighting: "uniform" weights all bodies equally, "samples" by training examples.
        server: Server rule, as in FedAvg.
        fixed: Tensors that stay at their initial values; without any it is FedAvg.

    Raises:
        ConfigError: In `init`, if nothing would be left to learn.
    """

    finetune: Literal["head", "body", "all", "none"] = "head"
    finetune_epochs: Annotated[int, Ge(1)] = 5
    weighting: Weighting = field(default="uniform", kw_only=True)
    fixed: tuple[str, ...] = ("head",)

    def init(self, params: Params, fed: Federation) -> FedAvgState:
        """Return the initial model, including theta^0, and the server rule's initial state."""
        shares_something(fed.layout, self.fixed, "FedBABU's fixed", "fedavg with personal")
        return super().init(params, fed)

    def shared(self, params: Params, layout: Layout) -> Params:
        """Return the body; theta^0 never travels."""
        return without(params, layout.select(self.fixed))

    @step
    def train(self, me: Me, msg: ModelMessage, memory: None) -> Step[tuple[ModelReply, None]]:
        """Train the body under theta^0."""
        fixed = me.layout.select(self.fixed)
        learned = me.layout.select(("all",)) - fixed
        w = yield from sgd(completed(me, msg.params, fixed, None), restricted(self.local, me.layout, learned))
        return ModelReply(without(w, fixed), me.n), None

    def personalise(self, me: Me, params: Params, memory: None) -> Step[Params]:
        """Return the global model, fine-tuned on this client's data."""
        if self.finetune == "none":
            return params
        config = replace(self.local, local_epochs=self.finetune_epochs, local_steps=None, trainable=(self.finetune,))
        return (yield from sgd(params, config))
