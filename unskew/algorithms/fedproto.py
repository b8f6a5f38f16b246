"""FedProto: clients exchange the mean features of their classes instead of weights.

Y. Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022.  Equation numbers are
this file's.

Notation   r_i    features of an example: what enters the classification layer, (d,)
           C_k^j  prototype of class j on client k: the mean of r over its n_kj examples of class j
           P^j    global prototype of class j
           lam    strength
Client     F_k + lam mean over the batch of 1/d ||r_i - P^{y_i}||^2; an example whose class has no P adds 0       (1)
           then one pass over its training data in evaluation mode: C_k^j of the classes it holds
Server     P^j <- sum_k n_kj C_k^j / sum_k n_kj over the clients heard that hold j; otherwise P^j stays           (2)
Models     Each client has its own and there is no global one.  Evaluation uses models, so predictions are those of a
           client's own head; the paper also classifies by the nearest prototype, which is left out.
Departures The paper's term sums, over a client's classes, the distance between its mean features and P^j; eq. 1 is its
           code's, a mean over examples, which also draws a class's examples together.
           The paper's eq. 2 divides by the number of clients once more on top of the counts, which would shrink the
           prototypes; public code takes the plain mean over clients, which is `averaging = "clients"`.  Prototypes are
           taken after training, with the final model, not during it.  Classes that no client has reported are
           absent, not zero: a zero would pull features to the origin.  A network without a linear classification layer
           is refused: the width of its features is not known before it has run.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from jaxtyping import Float, Int64
from torch import Tensor

from unskew.algorithms.parts import (
    OwnModels,
    TeacherMean,
    by_class,
    classifier,
    masked_mean,
    mean_by_class,
)
from unskew.errors import WireError
from unskew.protocol import Aux, Batch, Federation, Layout, Me, Plan, SgdConfig, Step, ask, fold, sgd, step
from unskew.schema import Search
from unskew.tree import Params


@dataclass(frozen=True)
class Prototypes:
    """Prototypes of some classes, and the examples behind each; the server's state, message and reply.

    Attributes:
        rows: Prototypes of the known classes, in order, (known classes, features).
        counts: Number of examples of each class, (classes,) int64; 0 where there is no row.
    """

    rows: Float[Tensor, "known features"]
    counts: Int64[Tensor, "classes"]

    def spread(self) -> Tensor:
        """Return a row for every class, (classes, features); zero where there is no prototype."""
        full = self.rows.new_zeros((len(self.counts), self.rows.shape[1]))
        full[self.counts > 0] = self.rows
        return full


@dataclass(frozen=True)
class PrototypePull:
    """lam / d ||r_i - P^{y_i}||^2, mean over the batch (eq. 1)."""

    lam: float
    sees: ClassVar[Literal["features"]] = "features"

    def __call__(self, params: Params, aux: Aux, batch: Batch) -> Tensor:
        """A scalar."""
        gap = (batch.features.flatten(1) - aux["prototypes"][batch.y]).square().mean(1)
        return self.lam * masked_mean(gap * aux["known"][batch.y], batch.mask)


def add_features(sums: Tensor, batch: Batch) -> Tensor:
    """Add a batch to the sums of features by class, (classes, features)."""
    return sums.index_add(0, batch.y, batch.features.flatten(1) * batch.mask[:, None])


@dataclass(frozen=True)
class FedProto(OwnModels):
    """Federated prototypes.

    Attributes:
        lam: Strength; at 0 every client trains by itself.
        averaging: "examples" weights a client's prototype by its examples of the class (eq. 2), "clients" weights all
            equally.
        local: The clients' optimisation.
    """

    needs: ClassVar[tuple[str, ...]] = (
        "classes",
        "classifier",
        "features",
    )

    lam: Annotated[float, Ge(0.0), Search(0.01, 10)] = 1.0
    averaging: TeacherMean = "examples"
    local: SgdConfig = SgdConfig()

    def init(self, params: Params, fed: Federation) -> Prototypes:
        """Return no prototypes.

        Raises:
            ConfigError: If the model's last layer is not linear, or there is one class in all.
        """
        weight = params[classifier(fed.layout, params, fed.num_classes, "FedProto")]
        counts = torch.zeros(fed.num_classes, dtype=torch.int64, device=weight.device)
        return Prototypes(weight.new_zeros((0, weight.shape[1])), counts)

    def round(self, state: Prototypes, fed: Federation) -> Plan[Prototypes]:
        """Send the prototypes to a cohort; pool those that come back (eq. 2)."""
        replies = list((yield from ask(self.train, {c: state for c in fed.sample()})).values())
        new, held = mean_by_class([r.spread() for r in replies], [r.counts for r in replies], self.averaging)
        everything = torch.where(held[:, None], new, state.spread())
        heard = torch.stack([r.counts for r in replies]).sum(0).to(held.device)
        counts = torch.where(held, heard, state.counts)
        return Prototypes(everything[counts > 0], counts)

    @step
    def train(self, me: Me, msg: Prototypes, memory: Params | None) -> Step[tuple[Prototypes, Params | None]]:
        """Train this client's own model, pulled towards the prototypes; then compute its own prototypes."""
        prototypes, known = msg.spread(), (msg.counts > 0).to(msg.rows)
        terms = (PrototypePull(self.lam),) if self.lam and len(msg.rows) else ()
        w = yield from sgd(memory or me.initial, self.local, *terms, prototypes=prototypes, known=known)
        sums = yield from fold(add_features, w, torch.zeros_like(prototypes))
        return Prototypes(by_class(sums, me.histogram)[me.histogram > 0], me.histogram), w

    def validate_reply(self, step: str, reply: Prototypes, model: Params, layout: Layout) -> None:
        """Refuse prototypes that are not one for each class with examples."""
        held = int((reply.counts > 0).sum())
        if len(reply.rows) != held:
            raise WireError(f"expected a prototype for each of {held} classes with examples, got {len(reply.rows)}")

    def common(self, params: Params, layout: Layout) -> Params:
        """Return an example's features: their width is that of the prototypes."""
        return {"features": params[layout.classifier][0]} if layout.classifier in params else {}
