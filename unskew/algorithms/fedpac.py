"""FedPAC: features are aligned with common prototypes, and each client gets the mix of heads that suits it.

J. Xu, X. Tong, S.-L. Huang, "Personalized Federated Learning with Feature Alignment and Classifier Collaboration",
ICLR 2023, Algorithm 1.  Equation numbers are this file's.

Notation   f      features;  p_c, mu_c  share and mean features of class c at a client, n its training examples
           h_i    rows p_c mu_c, (classes, features)
           v_i    (sum_c p_c mean ||f||^2 - sum_c p_c^2 ||mu_c||^2) / n
           P^c    common prototype of class c: mean of the clients' mu_c by their examples of it
Client     trains the head it was sent, the body fixed; then the body, the head fixed, on
           F_i + lam / d ||f - P^y||^2, mean over the batch                                              (1)
Server     body: mean by examples;  head of client i: sum_j a_j head_j with a >= 0, sum_j a_j = 1 of least
           ||h_i - sum_j a_j h_j||^2 + sum_j v_j a_j^2,  j over the clients that replied                 (2)
Departures h, v and prototypes are those of the trained body; the paper takes h and v before training.  (2) is solved
           as non-negative least squares.  A client that has not replied yet is served the mean of all heads.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Ge
from jaxtyping import Float, Int64
from scipy.optimize import nnls
from torch import Tensor

from unskew.algorithms.fedavg import mean_of
from unskew.algorithms.fedproto import PrototypePull, Prototypes
from unskew.algorithms.parts import by_class, classifier, mean_by_class, restricted
from unskew.protocol import (
    Batch,
    ClientId,
    Federation,
    Me,
    Model,
    Plan,
    SampleCount,
    SgdConfig,
    Step,
    ask,
    fold,
    sgd,
    step,
)
from unskew.reduction import Each, weighted_mean
from unskew.schema import Search
from unskew.tree import Params

HEAVY = 1e4
"""Weight of the shares' sum in the least squares, over the largest other number."""


@dataclass(frozen=True)
class FedPACState:
    """The server's state: body and mean head, each client's own head, and the prototypes."""

    params: Params
    heads: dict[ClientId, Params]
    prototypes: Prototypes


@dataclass(frozen=True)
class FedPACMessage:
    """The body with the head for this client, and the prototypes."""

    params: Model
    prototypes: Prototypes


@dataclass(frozen=True)
class FedPACReply:
    """A trained model, the client's mean features and counts by class, and its variance v."""

    params: Model
    n: SampleCount
    head: Each[Params]
    means: Each[Float[Tensor, "classes features"]]
    counts: Each[Int64[Tensor, "classes"]]
    variance: Each[Annotated[float, Ge(0.0)]]


@dataclass(frozen=True)
class FedPAC:
    """Feature alignment and mixed heads.

    Attributes:
        lam: Strength of the alignment.
        head_epochs: Passes over a client's data in which it trains its head.
        local: Optimisation of the body; that of the head differs in its epochs.
    """

    needs: ClassVar[tuple[str, ...]] = ("classes", "classifier", "features")

    lam: Annotated[float, Ge(0.0), Search(0.01, 10)] = 1.0
    head_epochs: Annotated[int, Ge(1), Search(1, 10, whole=True)] = 1
    local: SgdConfig = SgdConfig()

    def init(self, params: Params, fed: Federation) -> FedPACState:
        """Return the initial model, without heads and prototypes.

        Raises:
            ConfigError: If the model's last layer is not linear.
        """
        weight = params[classifier(fed.layout, params, fed.num_classes, "FedPAC")]
        counts = torch.zeros(fed.num_classes, dtype=torch.int64)
        return FedPACState(params, {}, Prototypes(weight.new_zeros((0, weight.shape[1])), counts))

    def round(self, state: FedPACState, fed: Federation) -> Plan[FedPACState]:
        """Send body, prototypes and each client's head; mix the heads that come back (eq. 2)."""
        to = {c: FedPACMessage(self.model(state, c), state.prototypes) for c in fed.sample()}
        answer = yield from ask(self.train, to, reduce=mean_of("params", "samples"))
        replies = list(answer.replies.values())
        shares = mixes([h_of(r) for r in replies], [r.variance for r in replies])
        of_all = [r.head for r in replies]
        heads = {c: weighted_mean(of_all, of.tolist()) for c, of in zip(answer.replies, shares, strict=True)}
        rows, known = mean_by_class([r.means for r in replies], [r.counts for r in replies], "examples")
        before, old = state.prototypes.spread(), state.prototypes.counts.cpu()
        counts = torch.where(known.cpu(), torch.stack([r.counts for r in replies]).sum(0).cpu(), old)
        merged = torch.where(known[:, None], rows, before.to(rows))[counts > 0]
        return FedPACState(answer.value, {**state.heads, **heads}, Prototypes(merged, counts))

    def model(self, state: FedPACState, client: ClientId) -> Params:
        """Return the body with a client's head, or the mean head."""
        return {**state.params, **state.heads.get(client, {})}

    @step
    def train(self, me: Me, msg: FedPACMessage, memory: None) -> Step[tuple[FedPACReply, None]]:
        """Train the head, then the aligned body (eq. 1); then take the features' statistics."""
        head = me.layout.select(("head",))
        of_head = restricted(self.local, me.layout, head)
        w = yield from sgd(msg.params, replace(of_head, local_epochs=self.head_epochs, local_steps=None))
        known = (msg.prototypes.counts > 0).to(msg.prototypes.rows)
        terms = (PrototypePull(self.lam),) if self.lam and len(msg.prototypes.rows) else ()
        rest = restricted(self.local, me.layout, me.layout.select(("all",)) - head)
        w = yield from sgd(w, rest, *terms, prototypes=msg.prototypes.spread(), known=known)
        zero = msg.prototypes.rows.new_zeros((len(me.histogram), msg.prototypes.rows.shape[1]))
        sums, square = yield from fold(add_moments, w, (zero, zero.new_zeros(())))
        means = by_class(sums, me.histogram)
        p = (me.histogram / me.n).to(means)
        variance = float(square / me.n - (p.square() * means.square().sum(1)).sum()) / me.n
        own = {n: w[n] for n in w if n in head}
        return FedPACReply(w, me.n, own, means, me.histogram, max(variance, 0.0)), None

    def serve(self, state: FedPACState, client: ClientId | None) -> Params | None:
        """Return the body with a client's head; with the mean head for one that has none, and as the global model."""
        return state.params if client is None else self.model(state, client)


def add_moments(sums: tuple[Tensor, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
    """Add a batch to the sums of features by class, and of their squared norms."""
    f = batch.features.flatten(1) * batch.mask[:, None]
    return sums[0].index_add(0, batch.y, f), sums[1] + f.square().sum()


def h_of(reply: FedPACReply) -> Tensor:
    """Compute h, (classes, features), float64."""
    counts = reply.counts.double().cpu()
    return (counts / counts.sum())[:, None] * reply.means.double().cpu()


def mixes(h: list[Tensor], v: list[float]) -> list[np.ndarray]:
    """Compute each client's shares of all heads (eq. 2); equal ones where what clients say has no least squares."""
    columns = torch.stack([t.flatten() for t in h], 1).numpy()
    spread = np.diag(np.sqrt(np.array(v)))
    heavy = HEAVY * max(np.abs(columns).max(), spread.max(), 1e-6)
    a = np.concatenate([columns, spread, np.full((1, len(h)), heavy)])
    if not np.isfinite(a).all():
        return [np.full(len(h), 1.0 / len(h))] * len(h)
    shares = (
        nnls(a, np.concatenate([columns[:, i], np.zeros(len(h)), [heavy]]), maxiter=100 * len(h))[0]
        for i in range(len(h))
    )
    return [x / x.sum() for x in shares]
