"""CCVR: after each round the server retrains the head on features drawn from clients' means and covariances.

M. Luo, F. Chen, D. Hu, Y. Zhang, J. Liang, J. Feng, "No Fear of Heterogeneity: Classifier Calibration for Federated
Learning with Non-IID Data", NeurIPS 2021, section 4.  Equation numbers are this file's.

Notation   n_kc, mu_kc, S_kc   examples of class c at client k, mean and covariance of their features
Round      FedAvg; then every client of the cohort measures the features of the new model
Server     N_c = sum_k n_kc,  mu_c = sum_k n_kc mu_kc / N_c                                              (1)
           S_c = (sum_k (n_kc - 1) S_kc + sum_k n_kc mu_kc mu_kc^T - N_c mu_c mu_c^T) / (N_c - 1)        (2)
           head <- least cross-entropy over `draws` features of each class from N(mu_c, S_c)             (3)
Served     the model with the new head; training continues from FedAvg's
Departures The paper calibrates once, after training.  A plan does not know which round is the last, so each is
           calibrated; what is served is the same as if it had been the last.  Second moments travel instead of S_kc.
           Every class counts alike in (3), and a class that no client has keeps its row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from jaxtyping import Float, Int64
from torch import Tensor

from unskew.algorithms.fedavg import Averaging, FedAvgState, ModelMessage, ModelReply
from unskew.algorithms.parts import by_class, classifier
from unskew.keys import Key
from unskew.protocol import Batch, ClientId, Federation, Me, Plan, Step, ask, fold, sgd, step
from unskew.reduction import Each
from unskew.schema import Search
from unskew.tree import Params

STEPS = 100
"""Steps of L-BFGS on the head."""


@dataclass(frozen=True)
class CCVRState(FedAvgState):
    """The server's state: FedAvg's, and the tensors of the calibrated head."""

    head: Params = field(default_factory=dict)


@dataclass(frozen=True)
class FeatureMoments:
    """Counts, means and mean products of the features of a client's training examples, by class."""

    counts: Each[Int64[Tensor, "classes"]]
    means: Each[Float[Tensor, "classes features"]]
    products: Each[Float[Tensor, "classes features features"]]


@dataclass(frozen=True)
class CCVR(Averaging):
    """FedAvg whose head is calibrated with virtual features.

    Attributes:
        draws: Features of each class that the head is trained on.
        local, weighting, server: Settings as in FedAvg.
    """

    needs: ClassVar[tuple[str, ...]] = ("classes", "classifier", "features")

    draws: Annotated[int, Ge(1), Search(10, 1000, whole=True)] = 100

    def init(self, params: Params, fed: Federation) -> CCVRState:
        """Return the initial model.

        Raises:
            ConfigError: If the model's last layer is not linear.
        """
        classifier(fed.layout, params, fed.num_classes, "CCVR")
        start = super().init(params, fed)
        return CCVRState(start.params, start.moments)

    def round(self, state: FedAvgState, fed: Federation) -> Plan[CCVRState]:
        """Run FedAvg's round, then calibrate the head (eq. 1 to 3)."""
        after = yield from super().round(state, fed)
        replies = yield from ask(self.measure, dict.fromkeys(fed.sample(), ModelMessage(after.params)), at_least=0)
        if not replies:
            return CCVRState(after.params, after.moments)
        name = classifier(fed.layout, after.params, fed.num_classes, "CCVR")
        x, y = virtual([*replies.values()], self.draws, fed.key / "features")
        return CCVRState(after.params, after.moments, calibrated(after.params, name, x, y))

    @step
    def train(self, me: Me, msg: ModelMessage, memory: None) -> Step[tuple[ModelReply, None]]:
        """Train from the received model."""
        return ModelReply((yield from sgd(msg.params, self.local)), me.n), None

    @step
    def measure(self, me: Me, msg: ModelMessage, memory: None) -> Step[tuple[FeatureMoments, None]]:
        """Measure the features of this client's examples under the received model."""
        width = msg.params[classifier(me.layout, msg.params, len(me.histogram), "CCVR")].shape[1]
        zero = next(iter(msg.params.values())).new_zeros((len(me.histogram), width), dtype=torch.float64)
        sums, products = yield from fold(add_products, msg.params, (zero, zero[:, :, None] * zero[:, None, :]))
        products = products / me.histogram.clamp(min=1).to(products)[:, None, None]
        return FeatureMoments(me.histogram, by_class(sums, me.histogram), products), None

    def serve(self, state: CCVRState, client: ClientId | None) -> Params | None:
        """Return the calibrated model."""
        return {**state.params, **state.head}


def add_products(sums: tuple[Tensor, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
    """Add a batch to the sums of features, and of their products, by class."""
    f = batch.features.flatten(1).double() * batch.mask[:, None]
    return sums[0].index_add(0, batch.y, f), sums[1].index_add(0, batch.y, f[:, :, None] * f[:, None, :])


def pooled(replies: Sequence[FeatureMoments]) -> tuple[Tensor, Tensor, Tensor]:
    """Compute N_c, mu_c and S_c (eq. 1, 2), on the CPU."""
    n = torch.stack([r.counts for r in replies]).cpu().double()
    total = n.sum(0).clamp(min=1.0)
    weigh = [(k / total)[:, None] for k in n]
    mu = torch.stack([w * r.means.cpu().double() for w, r in zip(weigh, replies, strict=True)]).sum(0)
    second = torch.stack([w[:, None] * r.products.cpu().double() for w, r in zip(weigh, replies, strict=True)]).sum(0)
    spread = (total / (total - 1.0).clamp(min=1.0))[:, None, None]
    return n.sum(0), mu, spread * (second - mu[:, :, None] * mu[:, None, :])


def virtual(replies: Sequence[FeatureMoments], draws: int, key: Key) -> tuple[Tensor, Tensor]:
    """Draw features of each class that some client has, and their labels."""
    n, mu, s = pooled(replies)
    values, vectors = torch.linalg.eigh(s)
    root = vectors * values.clamp(min=0.0).sqrt()[:, None, :]
    noise = torch.randn(len(mu), draws, mu.shape[1], generator=key.generator(), dtype=torch.float64)
    x = mu[:, None, :] + noise @ root.mT
    held = (n > 0).nonzero()[:, 0]
    return x[held].flatten(0, 1), held.repeat_interleave(draws)


def calibrated(params: Params, name: str, x: Tensor, y: Tensor) -> Params:
    """Train the head on features (eq. 3); rows of classes without features stay."""
    bias = name.removesuffix("weight") + "bias"
    start = {n: params[n].double().cpu() for n in (name, bias) if n in params}
    head = {n: t.clone().requires_grad_() for n, t in start.items()}
    solver = torch.optim.LBFGS([*head.values()], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        solver.zero_grad()
        value = torch.nn.functional.cross_entropy(torch.nn.functional.linear(x, head[name], head.get(bias)), y)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    solver.step(loss)  # type: ignore[no-untyped-call]
    held = torch.zeros(len(start[name]), dtype=torch.bool).index_fill(0, y, True)
    kept = {n: torch.where(held if t.dim() == 1 else held[:, None], t.detach(), start[n]) for n, t in head.items()}
    return {n: t.to(params[n]) for n, t in kept.items()}
