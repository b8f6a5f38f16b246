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
           local ("buffers").
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from unskew.errors import QuorumError
from unskew.protocol import ClientId, Federation, Me, Plan, SampleCount, SgdConfig, Step, Term, ask, sgd, step
from unskew.tree import Params, weighted_sum

Weighting = Literal["samples", "uniform"]


@dataclass(frozen=True)
class Weights:
    """A model: the state of FedAvg, and its message to a client."""

    params: Params


@dataclass(frozen=True)
class Trained:
    """A client's model after local training, and the examples it was trained on."""

    params: Params
    n: SampleCount


@dataclass(frozen=True)
class FedAvg:
    """Federated averaging.

    Attributes:
        local: The clients' optimisation.
        weighting: "samples" weighs a client by its training examples, "uniform" weighs all alike.
        terms: What is added to the clients' loss.
        personal: Tensors that stay with each client: head, norm, buffers, body, or the start of a name.
    """

    local: SgdConfig = SgdConfig()
    weighting: Weighting = "samples"
    terms: tuple[Term, ...] = ()
    personal: tuple[str, ...] = ()

    def init(self, params: Params, fed: Federation) -> Weights:
        """The initial model, without what stays on clients."""
        return Weights(without(params, fed.layout.select(self.personal)))

    def round(self, state: Weights, fed: Federation) -> Plan[Weights]:
        """Send the model to a cohort, average what comes back."""
        replies = (yield from ask(self.train, {c: state for c in fed.sample()})).values()
        return Weights(average([r.params for r in replies], [r.n for r in replies], self.weighting))

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

    def serve(self, state: Weights, client: ClientId | None) -> Params | None:
        """The global model; as long as parts of it live on clients there is none for the world at large."""
        return None if client is None and self.personal else state.params


def average(models: Sequence[Params], n: Sequence[int], weighting: Weighting) -> Params:
    """Mean of models, weighted by examples or alike.

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
