"""FedGen: the server trains a generator of features that the clients' heads agree on, and clients train on them.

Z. Zhu, J. Hong, J. Zhou, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML 2021,
Algorithm 1.  Equation numbers are this file's.

Notation   G      generator: (class, noise) to features, one hidden layer
           n_kc   training examples of class c at client k;  p_c  their share of the cohort's
           h_k    client k's head as it came back
Server     G <- least over y ~ p, z ~ N(0, 1) of  sum_k n_ky / sum_k n_ky  CE(h_k(G(y, z)), y)           (1)
Client     F_k + beta mean over `draws` generated features of CE(h(G(y, z)), y), y ~ p                        (2)
Server     FedAvg of the models
Precision  G is trained in float64: Adam makes large steps of small differences.
Departures The paper's G also maximises the distance between what it makes of different noise, to keep it from
           collapsing; `spread` is the strength of that.  Its code adds a pull between outputs on real and on generated
           features, which is left out.  The features of (2) are drawn once a round, the same on all clients.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from jaxtyping import Int64
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, one_hot

from unskew.algorithms.fedavg import Weighting, mean_of
from unskew.algorithms.parts import OneModel, classifier
from unskew.keys import Key
from unskew.protocol import (
    Aux,
    Federation,
    Me,
    Model,
    Plan,
    SampleCount,
    SgdConfig,
    Step,
    ask,
    sgd,
    step,
)
from unskew.reduction import Each
from unskew.schema import Search
from unskew.tree import Params

NOISE, HIDDEN, BATCH, RATE = 32, 64, 64, 1e-3
"""Sizes of the generator's noise, hidden layer and batches, and its learning rate (Adam)."""


@dataclass(frozen=True)
class FedGenState:
    """The server's state: the global model, the generator, and the classes' shares."""

    params: Params
    generator: Params
    shares: Tensor


@dataclass(frozen=True)
class FedGenMessage:
    """The model that a client is sent, and features with their labels."""

    params: Model
    features: Tensor
    labels: Int64[Tensor, "generated"]


@dataclass(frozen=True)
class FedGenReply:
    """A trained model, its training examples, its head and the counts of classes."""

    params: Model
    n: SampleCount
    head: Each[Params]
    counts: Each[Int64[Tensor, "classes"]]


@dataclass(frozen=True)
class OnGenerated:
    """beta times the cross-entropy of the head on generated features (eq. 2); `aux` has these and their labels."""

    beta: float
    weight: str

    def __call__(self, params: Params, aux: Aux) -> Tensor:
        """A scalar."""
        return self.beta * cross_entropy(head(params, self.weight, aux["generated"]), aux["labels"])


@dataclass(frozen=True)
class FedGen(OneModel):
    """Federated averaging with a generator of features.

    Attributes:
        beta: Strength on the clients; 0 is FedAvg.
        spread: Strength with which features of different noise are kept apart.
        steps: The generator's steps in a round.
        draws: Features that clients are sent in a round.
        local: The clients' optimisation.
        weighting: Weights of the models, as in FedAvg.
    """

    needs: ClassVar[tuple[str, ...]] = ("classes", "classifier")

    beta: Annotated[float, Ge(0.0), Search(0.01, 10)] = 1.0
    spread: Annotated[float, Ge(0.0)] = 1.0
    steps: Annotated[int, Ge(1)] = 50
    draws: Annotated[int, Ge(1)] = 64
    local: SgdConfig = SgdConfig()
    weighting: Weighting = "samples"

    def init(self, params: Params, fed: Federation) -> FedGenState:
        """Return the initial model, and a generator that was not trained.

        Raises:
            ConfigError: If the model's last layer is not linear.
        """
        width = params[classifier(fed.layout, params, fed.num_classes, "FedGen")].shape[1]
        sizes = {"hidden": (HIDDEN, fed.num_classes + NOISE), "out": (width, HIDDEN)}
        draw = (fed.key / "generator").generator()
        layers = {n: torch.randn(r, c, generator=draw, dtype=torch.float64) / c**0.5 for n, (r, c) in sizes.items()}
        return FedGenState(params, layers, torch.zeros(fed.num_classes, dtype=torch.float64))

    def round(self, state: FedGenState, fed: Federation) -> Plan[FedGenState]:
        """Send the model with generated features to a cohort; average the models, train the generator (eq. 1)."""
        name = classifier(fed.layout, state.params, fed.num_classes, "FedGen")
        features, labels = torch.zeros(0, state.params[name].shape[1]), torch.zeros(0, dtype=torch.int64)
        generator = {n: t.cpu() for n, t in state.generator.items()}  # of a run that goes on it is where the model is
        if self.beta and state.shares.sum() > 0:
            features, labels = generated(generator, state.shares.cpu(), self.draws, fed.key / "sent")
        message = FedGenMessage(state.params, features.to(state.params[name]), labels.to(state.params[name].device))
        answer = yield from ask(
            self.train, dict.fromkeys(fed.sample(), message), reduce=mean_of("params", self.weighting)
        )
        replies = list(answer.replies.values())
        shares = torch.stack([r.counts for r in replies]).sum(0).double().cpu()
        if self.beta and shares.sum() > 0:
            taught = self.taught(generator, replies, name, shares, fed.key / "taught")
            generator = taught if all(bool(t.isfinite().all()) for t in taught.values()) else generator
        return FedGenState(answer.value, generator, shares)

    def taught(self, generator: Params, replies: Sequence[FedGenReply], name: str, shares: Tensor, key: Key) -> Params:
        """Train the generator on what the clients' heads say (eq. 1)."""
        layers = {n: t.clone().requires_grad_() for n, t in generator.items()}
        optimiser = torch.optim.Adam([*layers.values()], lr=RATE)
        counts = torch.stack([r.counts for r in replies]).double().cpu()
        heads = [{n: t.double().cpu() for n, t in r.head.items()} for r in replies]
        for s in range(self.steps):
            x, y = generated(layers, shares, BATCH, key / s)
            weight = counts[:, y] / counts[:, y].sum(0)
            each = torch.stack([cross_entropy(head(h, name, x), y, reduction="none") for h in heads])
            apart = torch.exp(-(x - x.roll(1, 0)).abs().mean(1)).mean()
            optimiser.zero_grad()
            ((weight * each).sum(0).mean() + self.spread * apart).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return {n: t.detach() for n, t in layers.items()}

    @step
    def train(self, me: Me, msg: FedGenMessage, memory: None) -> Step[tuple[FedGenReply, None]]:
        """Train from the received model, the head on generated features too (eq. 2)."""
        name = classifier(me.layout, msg.params, len(me.histogram), "FedGen")
        terms = (OnGenerated(self.beta, name),) if len(msg.labels) else ()
        w = yield from sgd(msg.params, self.local, *terms, generated=msg.features, labels=msg.labels)
        own = {n: t for n, t in w.items() if n in (name, bias_of(name))}
        return FedGenReply(w, me.n, own, me.histogram), None


def bias_of(weight: str) -> str:
    """Name of the bias beside a layer's weight."""
    return weight.removesuffix("weight") + "bias"


def head(params: Params, weight: str, x: Tensor) -> Tensor:
    """Compute the outputs of the last layer, (n, classes)."""
    return linear(x, params[weight], params.get(bias_of(weight)))


def generated(generator: Params, shares: Tensor, n: int, key: Key) -> tuple[Tensor, Tensor]:
    """Make features, (n, features), and their labels, drawn by the classes' shares."""
    draw = key.generator()
    y = torch.multinomial(shares, n, replacement=True, generator=draw)
    given = torch.cat([one_hot(y, len(shares)), torch.randn(n, NOISE, generator=draw, dtype=torch.float64)], 1)
    return linear(linear(given, generator["hidden"]).relu(), generator["out"]), y
