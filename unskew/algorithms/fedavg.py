"""FedAvg: average locally trained models.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017, Algorithm 1.

Notation   w    global parameters and buffers
           S_t  the cohort of round t
           n_k  training examples of client k
Round      y_k = LocalSGD(w; F_k) for k in S_t
           w  <- sum_k n_k y_k / sum_k n_k,  both sums over the clients that replied
Departures None.  `weighting = "uniform"` averages with 1/M, as SCAFFOLD, FedDyn and others do; `personal` keeps
           tensors on the clients, which makes FedPer ("head"), FedBN ("norm") or BatchNorm statistics that stay
           local ("buffers"); `terms` are added to the local loss, as in FedProx; `server` treats the mean as a step of
           an optimiser, as in FedAdam (server/optimise.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from unskew.algorithms.parts import OneModel, shares_something
from unskew.errors import QuorumError
from unskew.protocol import (
    ClientId,
    Federation,
    Layout,
    Me,
    Model,
    Plan,
    SampleCount,
    SgdConfig,
    Step,
    Term,
    ask,
    refuse_terms,
    sgd,
    step,
)
from unskew.reduction import MeanOf, Take, weighted_mean
from unskew.server import optimise
from unskew.server.optimise import Mean, Moments, ServerRule
from unskew.tree import Params
from unskew.words import counted

Weighting = Literal["samples", "uniform"] | Callable[[int], float]
"""Weights of clients in a mean: by their numbers of examples, all equal, or a function of that number."""


@dataclass(frozen=True)
class ModelMessage:
    """The model that a client is sent."""

    params: Params


@dataclass(frozen=True)
class ModelReply:
    """A client's model after local training, and the examples it was trained on."""

    params: Model
    n: SampleCount


ClientRule = Callable[[Me, ModelMessage, Any], Step[tuple[ModelReply, Any]]]


@dataclass(frozen=True)
class FedAvgState:
    """The server's state: the global model, and the server rule's memory of earlier rounds."""

    params: Params
    moments: Moments = field(default_factory=Moments)


@dataclass(frozen=True, kw_only=True)
class Averaging(OneModel, ABC):
    """FedAvg's round for any client rule and any server rule: a cohort trains the model, the server averages.

    Attributes:
        local: The clients' optimisation.
        weighting: Weights of the clients' models in the mean: "samples" by training examples, "uniform" all equal, or a
            function of a client's number of examples, as math.sqrt.
        server: Server rule, which applies the mean to the global model.
    """

    local: SgdConfig = SgdConfig()
    weighting: Weighting = "samples"
    server: ServerRule = Mean()

    def init(self, params: Params, fed: Federation) -> FedAvgState:
        """Return the initial model and the server rule's initial state."""
        travelling = self.shared(params, fed.layout)
        return FedAvgState(params, self.server.start({n: params[n] for n in fed.layout.trainable if n in travelling}))

    def round(self, state: FedAvgState, fed: Federation) -> Plan[FedAvgState]:
        """Send the model to a cohort and average the replies."""
        return (yield from self.meet(fed.sample(), state, fed))

    def meet(
        self, cohort: Sequence[ClientId], state: FedAvgState, fed: Federation, train: ClientRule | None = None
    ) -> Plan[FedAvgState]:
        """Run one round with the clients of `cohort`; `train` replaces the method's own step."""
        message = ModelMessage(self.shared(state.params, fed.layout))
        to = dict.fromkeys(cohort, message)
        mean = yield from ask(train or self.train, to, reduce=mean_of("params", self.weighting))
        return FedAvgState(*optimise.step(self.server, state.params, mean.value, state.moments, fed.layout.trainable))

    def shared(self, params: Params, layout: Layout) -> Params:
        """Return the part of the global model that travels to clients and back."""
        return params

    @abstractmethod
    def train(self, me: Me, msg: ModelMessage, memory: Any) -> Step[tuple[ModelReply, Any]]:
        """Train from the received model: the client rule, which each method defines as a step."""


class OwnParts:
    """The part of a method that lets the tensors in `personal` stay with each client, which remembers them."""

    personal: tuple[str, ...]

    @property
    def personalises(self) -> bool:
        """True if some tensors stay with the clients."""
        return bool(self.personal)

    def personalise(self, me: Me, params: Params, memory: Params | None) -> Step[Params]:
        """Return the served model with this client's own tensors in their place."""
        yield from ()
        return self.own(me, params, memory)

    def own(self, me: Me, params: Params, memory: Params | None) -> Params:
        """Complete `params` with this client's own tensors: its memory, or at first the common initial values."""
        return completed(me, params, me.layout.select(self.personal), memory)


@dataclass(frozen=True)
class FedAvg(OwnParts, Averaging):
    """Federated averaging.

    Attributes:
        local: The clients' optimisation.
        weighting: Weights by training examples, "samples", by a function of their number, or equal, "uniform".
        terms: Terms added to the clients' loss.
        personal: Tensors that stay with each client: head, norm, buffers, body, or a layer's name.
        server: Server rule: the mean replaces the global model, or is a step of momentum, Adagrad, Adam or Yogi.

    Raises:
        ConfigError: If `terms` is no tuple of terms.
    """

    local: SgdConfig = SgdConfig()
    weighting: Weighting = "samples"
    terms: tuple[Term, ...] = ()
    personal: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        refuse_terms("FedAvg", self.terms)

    def init(self, params: Params, fed: Federation) -> FedAvgState:
        """Return the initial model, without the tensors that stay on clients."""
        return super().init(sent_part(params, fed.layout, self.personal), fed)

    @step
    def train(self, me: Me, msg: ModelMessage, memory: Params | None) -> Step[tuple[ModelReply, Params | None]]:
        """Train from the received model, with this client's own tensors in their place."""
        personal = me.layout.select(self.personal)
        start = self.own(me, msg.params, memory)
        w = yield from sgd(start, self.local, *self.terms, anchor=start)
        return ModelReply(without(w, personal), me.n), only(w, personal)

    def common(self, params: Params, layout: Layout) -> Params | None:
        """Return what clients' networks must have alike: what travels, unless that is the whole of them."""
        return sent_part(params, layout, self.personal) if self.personal else None

    def serve(self, state: FedAvgState, client: ClientId | None) -> Params | None:
        """Return the global model; None for `client=None` while parts of the model stay on clients."""
        return None if client is None and self.personal else state.params


def mean_of(of: Take, weighting: Weighting, by: Take | None = None) -> MeanOf:
    """Return the mean of clients' tables, weighted by the field `n` of their replies or equally; `by` group if given.

    `of` and `by` are names of fields, or functions of client and reply.
    """
    if weighting in ("samples", "uniform"):
        return MeanOf(of, "n" if weighting == "samples" else None, by)
    return MeanOf(of, lambda c, r: weight_of(r.n, weighting), by)


def weight_of(n: int, weighting: Weighting) -> float:
    """Return the weight of a client with `n` examples, up to a factor that is common to all."""
    if callable(weighting):
        return float(weighting(n))
    return float(n) if weighting == "samples" else 1.0


def average(models: Sequence[Params], n: Sequence[int], weighting: Weighting) -> Params:
    """Average models, weighted by training examples or equally.

    Raises:
        QuorumError: If there is no model, or none has training examples.
    """
    weights_of(n, weighting)  # refuses what has no mean
    return weighted_mean(models, [weight_of(k, weighting) for k in n])


def weights_of(n: Sequence[int], weighting: Weighting) -> list[float]:
    """Return the weights of clients in a mean, with the sum 1: by their numbers of examples, or equal.

    Raises:
        QuorumError: If there is no client, or none has examples although weights depend on them.
    """
    weights = [weight_of(k, weighting) for k in n]
    total = sum(weights)
    if not total > 0.0:
        raise QuorumError(
            f"a mean needs one client with training examples, got {counted(len(n), 'client')} and "
            f"{counted(sum(n), 'example')}"
        )
    return [w / total for w in weights]


def only(params: Params, names: Collection[str]) -> Params | None:
    """Return the named tensors, in order; None if there are none."""
    return {n: t for n, t in params.items() if n in names} or None


def completed(me: Me, params: Params, names: Collection[str], memory: Params | None) -> Params:
    """Complete `params` with the named tensors from this client's memory, or at first from the initial values."""
    if not names:
        return params
    return {n: (memory or me.initial)[n] if n in names else params[n] for n in me.initial}


def sent_part(params: Params, layout: Layout, personal: tuple[str, ...]) -> Params:
    """Return the tensors that do not stay with clients: none if `personal` is "all".

    Raises:
        ConfigError: If everything trainable would stay although `personal` is not "all", as with a network of one
            layer.
    """
    if personal and "all" not in personal:
        shares_something(layout, personal, "personal", "independent")
    return without(params, layout.select(personal))


def without(params: Params, names: Collection[str]) -> Params:
    """Return all tensors except the named ones."""
    return {n: t for n, t in params.items() if n not in names}
