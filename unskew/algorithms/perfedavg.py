"""Per-FedAvg: an initial model that is good after one step on any client's data.

A. Fallah, A. Mokhtari, A. Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020, Algorithm 1.  Equation numbers are this file's.

Notation   A(w; D)   the inner step w - alpha g(w; D), g the gradient of F_k on a batch D
           D, D', D''  independent batches;  H the Hessian of F_k on D''
           alpha     inner learning rate;  beta the outer one, that of `local`
Objective  mean over clients of F_k(A(w))
Client     w^ = A(w; D),  v = g(w^; D'),  w <- w - beta J v                                          (1)
           first         J v = v                                                                     (2)
           hessian_free  J v = [A(w + delta v; D'') - A(w - delta v; D'')] / (2 delta),              (3)
                         which is v - alpha [g(w + delta v; D'') - g(w - delta v; D'')] / (2 delta)
           exact         J v = v - alpha H v                                                         (4)
Server     w <- mean of the clients' w, uniform as published
Own model  A(w), `adapt_steps` inner steps on the client's training data; with none it is w itself, which is not yet
           adapted.  Each is on a batch as in training: with `batch_size` unset on all of the data, as in the paper.
Steps      tau of eq. 1.  `local_steps` counts them; `local_epochs` are as many as FedAvg would take.  Every batch is
           drawn afresh and full, or all of the data where that is less, so none can be half empty.  A step sees two
           batches of examples, under eq. 3 and 4 four times a batch.
Second     Eq. 3 is a difference of two models whose distance is 2 delta |v|: rounding of float32 costs it about
order      1e-8 / delta in each entry.  H v of eq. 4 is what the term <grad F_k, v> adds to an inner step, taken as half
           the difference between v and -v; both forms take D'' twice.  On a quadratic they agree whatever delta.
Departures The optimiser is plain SGD, as published: a velocity has no meaning across w and w^.  Weight decay belongs to
           F_k, in the inner step and in the outer.  BatchNorm's statistics follow the batches D and D'; those of D''
           are dropped, as they belong to models that are not kept.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from unskew.algorithms.fedavg import Averaging, ModelMessage, ModelReply, Weighting
from unskew.algorithms.parts import require_plain, steps_of
from unskew.errors import ConfigError, ProtocolError
from unskew.protocol import (
    Aux,
    Batch,
    Constant,
    Fitted,
    Me,
    Sgd,
    SgdConfig,
    Step,
    Term,
    sgd,
    step,
)
from unskew.schema import Search
from unskew.tree import Params


@dataclass(frozen=True)
class Curvature:
    """<grad F(w), v> over the batch, v fixed in `aux`: its gradient is H v."""

    sees: ClassVar[Literal["features"]] = "features"

    def __call__(self, params: Params, aux: Aux, batch: Batch) -> Tensor:
        """A scalar.

        Raises:
            ProtocolError: Where clients are trained side by side, which keeps no graph to differentiate twice.
        """
        if not batch.loss.requires_grad:
            raise ProtocolError("Per-FedAvg with order = 'exact' cannot be stacked; set order = 'hessian_free'")
        v = {n: d for n, d in aux["direction"].items() if params[n].requires_grad}
        loss = (batch.loss * batch.mask).sum() / batch.mask.sum()
        gradients = torch.autograd.grad(loss, [params[n] for n in v], create_graph=True, materialize_grads=True)
        return torch.stack([(g * d).sum() for g, d in zip(gradients, v.values(), strict=True)]).sum()


@dataclass(frozen=True)
class PerFedAvg(Averaging):
    """Model-agnostic meta-learning by federated averaging.

    Attributes:
        alpha: Learning rate of the inner step; 0 is FedAvg on the batches D'.
        order: "first" leaves the second derivative out, "hessian_free" takes it by differences, "exact" by autograd.
        delta: Length of the differences, relative to v.
        adapt_steps: Number of inner steps before a client uses the model.
        local: Plain SGD; its learning rate is beta.
        weighting: "uniform" weights all clients equally, "samples" by training examples.
        server: Server rule, as in FedAvg.

    Raises:
        ConfigError: If `local` is not plain SGD, or in bfloat16 where gradients are subtracted.
    """

    alpha: Annotated[float, Ge(0.0), Search(0.001, 0.3)] = 0.01
    order: Literal["first", "hessian_free", "exact"] = "first"
    delta: Annotated[float, Gt(0.0)] = 0.01
    adapt_steps: Annotated[int, Ge(0)] = 1
    weighting: Weighting = field(default="uniform", kw_only=True)

    def __post_init__(self) -> None:
        require_plain(self.local, "Per-FedAvg")
        if self.order == "hessian_free" and self.local.precision != "float32":
            raise ConfigError(
                "order = 'hessian_free' takes differences of gradients at models that lie 2 delta apart, which "
                f"{self.local.precision} rounds away; set order = 'exact', or local.precision = 'float32'"
            )

    @step
    def train(self, me: Me, msg: ModelMessage, memory: None) -> Step[tuple[ModelReply, None]]:
        """Take tau meta-steps (eq. 1)."""
        outer, beta = replace(self.local, local_epochs=None, local_steps=1), self.local.lr_at(me.round)
        w = msg.params
        for s in range(steps_of(self.local, me.n)):
            ahead = yield from self.ahead(w, f"{s} D")
            end: Fitted = yield Sgd(ahead, outer, draw=f"{s} D'")
            move = {n: ahead[n] - end.params[n] for n in me.layout.trainable}  # beta v
            if self.alpha and self.order != "first":
                v = {n: m / beta for n, m in move.items()}
                pulled = yield from (self.differenced if self.order == "hessian_free" else self.exact)(w, v, f"{s} D''")
                move = {n: beta * p for n, p in pulled.items()}
            w = {n: w[n] - move[n] if n in move else statistic for n, statistic in end.params.items()}
        return ModelReply(w, me.n), None

    # ------------------------------------------------------------------ the inner step and its Jacobian
    @property
    def inner(self) -> SgdConfig:
        """Return the optimisation of the inner step."""
        return replace(self.local, lr=self.alpha, lr_schedule=Constant(), local_epochs=None, local_steps=1)

    def ahead(self, w: Params, draw: str, *terms: Term, **aux: Params) -> Step[Params]:
        """Compute A(w; D)."""
        if not self.alpha:
            return w
        fitted: Fitted = yield Sgd(w, self.inner, terms, aux, draw=draw)
        return fitted.params

    def differenced(self, w: Params, v: Params, draw: str) -> Step[Params]:
        """Compute J v by differences (eq. 3)."""
        up = yield from self.ahead({**w, **{n: w[n] + self.delta * d for n, d in v.items()}}, draw)
        down = yield from self.ahead({**w, **{n: w[n] - self.delta * d for n, d in v.items()}}, draw)
        return {n: (up[n] - down[n]) / (2.0 * self.delta) for n in v}

    def exact(self, w: Params, v: Params, draw: str) -> Step[Params]:
        """Compute J v by a second derivative (eq. 4)."""
        # Both with the term, so that both are met in the same way: other dropout masks would be taken for curvature.
        up = yield from self.ahead(w, draw, Curvature(), direction={n: -d for n, d in v.items()})
        down = yield from self.ahead(w, draw, Curvature(), direction=v)
        decay = 1.0 - self.alpha * self.local.weight_decay
        return {n: decay * d - (up[n] - down[n]) / 2.0 for n, d in v.items()}

    # ------------------------------------------------------------------ use
    def personalise(self, me: Me, params: Params, memory: None) -> Step[Params]:
        """Return A(w) on this client's training data."""
        if not self.alpha or not self.adapt_steps:
            return params
        return (yield from sgd(params, replace(self.inner, local_steps=self.adapt_steps)))
