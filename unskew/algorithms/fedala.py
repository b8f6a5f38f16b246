"""FedALA: before training, each client learns element by element how much of the global model to adopt.

J. Zhang, Y. Hua, H. Wang, T. Song, Z. Xue, R. Ma, H. Guan, "FedALA: Adaptive Local Aggregation for Personalized
Federated Learning", AAAI 2023, Algorithm 1.  Equation numbers are this file's.

Notation   Theta    global model as received;  Theta_k  client k's own model after its last training
           top      the layers that are mixed, `layers`; all others are Theta's
           W_k      weights of the top's parameters, each in [0, 1], 1 at first;  (.) the product by element
Before     Theta^ = Theta_k + (Theta - Theta_k) (.) W_k on top, Theta below                          (1)
           W_k <- clip(W_k - eta grad F_k(Theta^) (.) (Theta - Theta_k), 0, 1), batch by batch,      (2)
           Theta^ anew for each; one pass over `data_share` of an epoch's batches, and the first time several over the
           same ones, until the pass's loss has settled or `start_epochs` is reached
Client     Theta_k <- LocalSGD(Theta^; F_k)                                                          (3)
Server     FedAvg.
Own model  Theta^ computed from the global model by eq. 1 and 2, before any training, as in the paper and its code.
           Every client learns it anew at each evaluation and then discards it.
Gradients  A step of length 1 from Theta^ that changes only the top; its displacement is the gradient.  So eq. 2 trains
           like everything else, counts as work, and leaves the statistics of the layers below as received.
Memory     The top of Theta_k, and W_k: the rest of Theta_k would never be read.
Departures A client without a model of its own takes the global one.  The share of data is drawn as independent batches,
           so an example may occur twice.  The passes end when their mean loss has settled (standard deviation over ten
           passes below `settled`).  The published code looks at the last batch's loss, makes at least eleven, and may
           never stop.  While W_k is learned, BatchNorm normalises by the received statistics, in the published code by
           each batch's if the client has just trained.  A client that takes no part keeps Theta_k and W_k, as in
           Algorithm 1; in the published code every client replaces them by Theta^ and the new W_k in each round.
"""

import math
import statistics
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Interval

from unskew.algorithms.fedavg import Averaging, FedAvgState, ModelMessage, ModelReply
from unskew.errors import ConfigError
from unskew.protocol import Federation, Fitted, Layout, Me, Sgd, SgdConfig, Step, step
from unskew.tree import Params, map_params

PASSES = 10  # passes that must agree before W_k counts as settled


@dataclass(frozen=True)
class FedALAMemory:
    """A client's memory of the top's parameters.

    Attributes:
        own: The top of Theta_k.
        w: W_k; None until it has been learned once.
    """

    own: Params
    w: Params | None


@dataclass(frozen=True)
class FedALA(Averaging):
    """Adaptive local aggregation.

    Attributes:
        eta: Learning rate of W_k; 0 keeps it at 1, which is FedAvg.
        layers: The top: head, body, norm, all, or a layer's name.
        data_share: Batches in a pass over W_k, as a share of an epoch's, rounded up.
        start_epochs: Maximum number of passes when W_k is learned for the first time.
        settled: Standard deviation of ten passes' losses below which these passes end.
        local: The clients' optimisation; its batch size is that of W_k too.
        weighting, server: Settings as in FedAvg.

    Raises:
        ConfigError: In `init`, if `layers` name no parameter.
    """

    eta: Annotated[float, Ge(0.0)] = 1.0
    layers: tuple[str, ...] = ("head",)
    data_share: Annotated[float, Interval(gt=0.0, le=1.0)] = 0.8
    start_epochs: Annotated[int, Ge(1)] = 20
    settled: Annotated[float, Gt(0.0)] = 0.1

    def init(self, params: Params, fed: Federation) -> FedAvgState:
        """Return the initial model and the server rule's initial state."""
        if not self.top(fed.layout):
            raise ConfigError(
                f"FedALA's layers = {list(self.layers)} name no parameter of this model; name layers that it has, "
                "or use fedavg"
            )
        return super().init(params, fed)

    @step
    def train(
        self, me: Me, msg: ModelMessage, memory: FedALAMemory | None
    ) -> Step[tuple[ModelReply, FedALAMemory | None]]:
        """Mix, then train (eq. 1 to 3)."""
        start, w = yield from self.mix(me, msg.params, memory)
        fitted: Fitted = yield Sgd(start, self.local, draw=0)  # the same batches as FedAvg, however many came before
        return ModelReply(fitted.params, me.n), FedALAMemory({n: fitted.params[n] for n in self.top(me.layout)}, w)

    def mix(self, me: Me, received: Params, memory: FedALAMemory | None) -> Step[tuple[Params, Params | None]]:
        """Compute Theta^, and the W_k behind it (eq. 1, 2)."""
        if memory is None or not self.eta:
            return received, None
        w = map_params(torch.ones_like, memory.own) if memory.w is None else memory.w
        far = {n: received[n] - own for n, own in memory.own.items()}
        unit = SgdConfig(lr=1.0, local_steps=1, batch_size=self.local.batch_size, trainable=tuple(memory.own))
        losses: list[float] = []
        for _ in range(self.start_epochs if memory.w is None else 1):
            loss = 0.0
            for b in range(self.batches(me.n)):
                here = mixed(received, memory.own, w)
                moved: Fitted = yield Sgd(here, unit, draw=f"mix {b}")
                w = {n: (w[n] - self.eta * (here[n] - moved.params[n]) * d).clamp(0.0, 1.0) for n, d in far.items()}
                loss += moved.loss / self.batches(me.n)
            losses.append(loss)
            if len(losses) >= PASSES and statistics.pstdev(losses[-PASSES:]) < self.settled:
                break
        return mixed(received, memory.own, w), w

    def batches(self, n: int) -> int:
        """Number of batches in one pass over W_k for a client with `n` examples."""
        # .55 times 100 is 55.00000000000001.
        return max(1, math.ceil(self.data_share * math.ceil(n / (self.local.batch_size or n)) - 1e-9))

    def top(self, layout: Layout) -> tuple[str, ...]:
        """Names of the parameters that are mixed."""
        chosen = layout.select(self.layers)
        return tuple(n for n in layout.trainable if n in chosen)

    def personalise(self, me: Me, params: Params, memory: FedALAMemory | None) -> Step[Params]:
        """Return the global model, mixed with this client's own and not yet trained."""
        model, _ = yield from self.mix(me, params, memory)
        return model


def mixed(received: Params, own: Params, w: Params) -> Params:
    """Compute eq. 1: exactly `received` where w is 1, exactly `own` where it is 0."""
    return {n: torch.lerp(own[n], t, w[n]) if n in own else t for n, t in received.items()}
