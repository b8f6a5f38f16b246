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
           local ("buffers"); `terms` are added to the local loss, as in FedProx; `server` takes the mean for a step of
           an optimiser, as in FedAdam (server/optimise.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from unskew.errors import QuorumError
from unskew.protocol import ClientId, Federation, Layout, Me, Plan, SampleCount, SgdConfig, Step, Term, ask, sgd, step
from unskew.server.optimise import Mean, Moments, ServerRule
from unskew.tree import Params, weighted_sum

Weighting = Literal["samples", "uniform"]


@dataclass(frozen=True)
class Weights:
    """The model that a client is sent."""

    params: Params


@dataclass(frozen=True)
class Trained:
    """A client's model after local training, and the examples it was trained on."""

    params: Params
    n: SampleCount


ClientRule = Callable[[Me, Weights, Any], Step[tuple[Trained, Any]]]


@dataclass(frozen=True)
class Averaged:
    """The server's state: the global model, and what the server rule remembers of earlier rounds."""

    params: Params
    moments: Moments = field(default_factory=Moments)


@dataclass(frozen=True, kw_only=True)
class Averaging(ABC):
    """FedAvg's round for any client rule and any server rule: a cohort trains the model, the server takes the mean.

    Attributes:
        local: The clients' optimisation.
        weighting: Of the clients' models in the mean: "samples" by training examples, "uniform" all alike.
        server: What the mean does to the global model.
    """

    local: SgdConfig = SgdConfig()
    weighting: Weighting = "samples"
    server: ServerRule = Mean()

    def init(self, params: Params, fed: Federation) -> Averaged:
        """The initial model, and a server at rest."""
        travelling = self.shared(params, fed.layout)
        return Averaged(params, self.server.start({n: params[n] for n in fed.layout.trainable if n in travelling}))

    def round(self, state: Averaged, fed: Federation) -> Plan[Averaged]:
        """Send the model to a cohort, average what comes back."""
        return (yield from self.meet(fed.sample(), state, fed))

    def meet(
        self, cohort: Sequence[ClientId], state: Averaged, fed: Federation, train: ClientRule | None = None
    ) -> Plan[Averaged]:
        """One round with the clients of `cohort`; `train` takes the place of the method's own step."""
        message = Weights(self.shared(state.params, fed.layout))
        replies = (yield from ask(train or self.train, dict.fromkeys(cohort, message))).values()
        mean = average([r.params for r in replies], [r.n for r in replies], self.weighting)
        return Averaged(*self.server.step(state.params, mean, state.moments))

    def shared(self, params: Params, layout: Layout) -> Params:
        """The part of the global model that clients are sent and send back."""
        return params

    @abstractmethod
    def train(self, me: Me, msg: Weights, mine: Any) -> Step[tuple[Trained, Any]]:
        """The client rule: train from the received model; a step of each method's own."""

    def serve(self, state: Averaged, client: ClientId | None) -> Params | None:
        """The global model."""
        return state.params


@dataclass(frozen=True)
class FedAvg(Averaging):
    """Federated averaging.

    Attributes:
        local: The clients' optimisation.
        weighting: "samples" weights a client by its training examples, "uniform" weights all alike.
        terms: What is added to the clients' loss.
        personal: Tensors that stay with each client: head, norm, buffers, body, or the start of a name.
        server: What the mean does to the global model: replaces it, or is a step of momentum, Adagrad, Adam or Yogi.
    """

    local: SgdConfig = SgdConfig()
    weighting: Weighting = "samples"
    terms: tuple[Term, ...] = ()
    personal: tuple[str, ...] = ()

    def init(self, params: Params, fed: Federation) -> Averaged:
        """The initial model, without what stays on clients."""
        return super().init(without(params, fed.layout.select(self.personal)), fed)

    @step
    def train(self, me: Me, msg: Weights, mine: Params | None) -> Step[tuple[Trained, Params | None]]:
        """Train from the received model, with this client's own tensors in their place."""
        personal = me.layout.select(self.personal)
        start = self.own(me, msg.params, mine)
        w = yield from sgd(start, self.local, *self.terms, anchor=start)
        return Trained(without(w, personal), me.n), only(w, personal)

    def personalise(self, me: Me, params: Params, mine: Params | None) -> Step[Params]:
        """The served model with this client's own tensors in their place."""
        yield from ()
        return self.own(me, params, mine)

    def own(self, me: Me, params: Params, mine: Params | None) -> Params:
        """`params` completed by what this client keeps: its memory, or at first the common initial values."""
        return completed(me, params, me.layout.select(self.personal), mine)

    def serve(self, state: Averaged, client: ClientId | None) -> Params | None:
        """The global model; as long as parts of it live on clients there is none for the world at large."""
        return None if client is None and self.personal else state.params


def average(models: Sequence[Params], n: Sequence[int], weighting: Weighting) -> Params:
    """Mean of models, weighted by training examples or alike.

    Raises:
        QuorumError: If there is no model, or no example behind any.
    """
    return weighted_sum(models, weights_of(n, weighting))


def weights_of(n: Sequence[int], weighting: Weighting) -> list[float]:
    """Weights of clients with so many examples in a mean, with the sum 1: by examples, or alike.

    Raises:
        QuorumError: If there is no client, or none has examples where they count.
    """
    weights = [float(k) for k in n] if weighting == "samples" else [1.0] * len(n)
    total = sum(weights)
    if not total > 0.0:
        raise QuorumError(f"a mean needs one client with training examples, got {len(n)} clients and {sum(n)} examples")
    return [w / total for w in weights]


def only(params: Params, names: Collection[str]) -> Params | None:
    """The named tensors, in order; None if there are none."""
    return {n: t for n, t in params.items() if n in names} or None


def completed(me: Me, params: Params, names: Collection[str], mine: Params | None) -> Params:
    """`params` with the named tensors from this client's memory, or at first from the common initial values."""
    if not names:
        return params
    return {n: (mine or me.initial)[n] if n in names else params[n] for n in me.initial}


def without(params: Params, names: Collection[str]) -> Params:
    """All but the named tensors."""
    return {n: t for n, t in params.items() if n not in names}
