"""FedRoD: one network with two heads, a balanced one for all and one more for each client.

H.-Y. Chen, W.-L. Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification", ICLR 2022,
section 4.  Equation numbers are this file's.

Notation   z      features;  G  the common head, P_k  client k's own;  n_c  its training examples of class c
Generic    FedAvg on the cross-entropy of G z + log n_c, balanced softmax                                (1)
Own        P_k <- LocalSGD of the cross-entropy of (G + P_k) z, everything else fixed                    (2)
Own model  the network with the head G + P_k
Departures P_k is trained after a client's generic training, not beside it: it has no influence on that either way,
           since its loss does not reach the features.  The heads' outputs are summed, so that both are one layer of
           G + P_k.  The variant that makes P_k by a hypernetwork is left out.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from unskew.algorithms.fedavg import Averaging, ModelMessage, ModelReply
from unskew.algorithms.fedlc import Shifted, counts_of
from unskew.protocol import Me, Step, sgd, step
from unskew.tree import Params


@dataclass(frozen=True)
class FedRoD(Averaging):
    """A generic model by balanced softmax, and a head more for each client.

    Attributes:
        local: The clients' optimisation, of both parts.
        weighting, server: Settings of the generic model's average, as in FedAvg.
    """

    needs: ClassVar[tuple[str, ...]] = Shifted.needs

    @step
    def train(self, me: Me, msg: ModelMessage, memory: Params | None) -> Step[tuple[ModelReply, Params]]:
        """Train the generic model (eq. 1), then this client's own head (eq. 2)."""
        w = yield from sgd(msg.params, self.local, Shifted(), shift=counts_of(me, msg.params).log())
        head = replace(self.local, trainable=("head",), buffers="freeze")
        own = yield from sgd(with_head(w, memory), head)
        return ModelReply(w, me.n), {n: t - w[n] for n, t in own.items() if n in me.layout.select(("head",))}

    def personalise(self, me: Me, params: Params, memory: Params | None) -> Step[Params]:
        """Return the generic model with this client's own head added."""
        yield from ()
        return with_head(params, memory)


def with_head(params: Params, own: Params | None) -> Params:
    """Return the model with the head G + P_k."""
    return params if own is None else {n: t + own[n] if n in own else t for n, t in params.items()}
