"""IFCA: several models, and every client trains the one that fits its data best.

A. Ghosh, J. Chung, D. Yin, K. Ramchandran, "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020,
Algorithm 1.  Equation numbers are this file's.

Notation   theta_j  model of cluster j < K_c
           j_k      cluster that client k chooses;  S_j the clients that chose j, of the M that replied
           omega_k  weight of client k: 1, or its training examples
Client     j_k = argmin_j F_k(theta_j), in evaluation mode on its training data, ties to the lowest j     (1)
           y_k = LocalSGD(theta_{j_k}; F_k)                                                            (2)
Server     model      theta_j <- sum_{S_j} omega_k y_k / sum_{S_j} omega_k, unchanged if S_j is empty    (3)
           gradient   theta_j <- theta_j + sum_{S_j} omega_k (y_k - theta_j) / sum_{all M} omega_k       (4)
Starts     Independent draws: equal models would tie in (1), all clients would choose model 0, and from then on the
           others would win only where that one is worse than an untrained model.  Equal starts are refused;
           `start = "identical"` allows them, as in HCCT's released code, which produced the IFCA row of its tables.
Shared     With `clustered = ["head"]` clusters differ in their heads only; the rest is one body, averaged over all
           replies.  The authors' program for FEMNIST starts like that too, but then trains every cluster separately.
Departures The paper's gradient variant sends one gradient; with one full-batch local step (4) is that variant, with
           more steps it is (3) slowed down by the cluster's share.  The authors test a client on the cluster with the
           lowest test loss, which looks at labels; here a client uses the cluster of its last choice, made on training
           data.  A client that never replied is served the model that most clients chose.  Their CIFAR program redraws
           all starts until no cluster is small; here another seed does that.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge

from unskew.algorithms.fedavg import OwnParts, Weighting, mean_of, only, sent_part, weight_of, without
from unskew.algorithms.parts import train_losses
from unskew.errors import ConfigError, WireError
from unskew.info import ChosenGroups
from unskew.protocol import (
    ClientId,
    Federation,
    Layout,
    Me,
    Plan,
    SampleCount,
    SgdConfig,
    Step,
    ask,
    sgd,
    step,
)
from unskew.reduction import Each, Reduction, SumOf
from unskew.schema import Search
from unskew.tree import Params

InitialModels = Literal["distinct", "identical"]


@dataclass(frozen=True)
class IFCAState:
    """The server's state.

    Attributes:
        models: Complete model of each cluster.
        chosen: Last choice of every client that has replied so far.
        heard: Clients that replied in this round.
        tied: Clients among them for which the best models were equally good.
    """

    models: tuple[Params, ...]
    chosen: dict[int, int]
    heard: tuple[int, ...] = ()
    tied: tuple[int, ...] = ()


@dataclass(frozen=True)
class IFCAMessage:
    """All models: their shared tensors once, and each cluster's own."""

    shared: Params
    own: tuple[Params, ...]


@dataclass(frozen=True)
class IFCAReply:
    """A trained model, its training examples, the chosen cluster, and whether another was equally good."""

    params: Params
    n: SampleCount
    cluster: Each[int]
    tied: Each[bool]


@dataclass(frozen=True)
class IFCA(OwnParts):
    """The iterative federated clustering algorithm.

    Attributes:
        clusters: Number of models, K_c.
        clustered: Tensors that each cluster has of its own; the others are shared by all.
        averaging: "model" is eq. 3, "gradient" eq. 4.
        start: "distinct" draws every model, "identical" copies one; see above.
        local: The clients' optimisation.
        weighting: "uniform" as published, "samples" by training examples, as in HCCT's tables.
        personal: Tensors that stay with each client, as in FedAvg; a client evaluates every cluster with its own.
    """

    clusters: Annotated[int, Ge(1), Search(2, 8, whole=True)] = 4
    clustered: tuple[str, ...] = ("all",)
    averaging: Literal["model", "gradient"] = "model"
    start: InitialModels = "distinct"
    local: SgdConfig = SgdConfig()
    weighting: Weighting = "uniform"
    personal: tuple[str, ...] = ()

    def init(self, params: Params, fed: Federation) -> IFCAState:
        """Return one model per cluster; the first is the common initial model.

        Raises:
            ConfigError: If two of them are the same though they should not be, or all stays with clients.
        """
        params = sent_part(params, fed.layout, self.personal)
        return IFCAState(starts(params, fed, self.clusters, self.start, fed.layout.select(self.clustered), "IFCA"), {})

    def round(self, state: IFCAState, fed: Federation) -> Plan[IFCAState]:
        """Send all models to a cohort; average the replies within their clusters (eq. 3, 4)."""
        shared = shared_names(fed.layout, self.clustered)
        first, *_ = state.models
        menu = IFCAMessage({n: first[n] for n in first if n in shared}, tuple(without(m, shared) for m in state.models))
        answer = yield from ask(
            self.train,
            dict.fromkeys(fed.sample(), menu),
            at_least=0,
            reduce=(
                mean_of(lambda c, r: only(r.params, shared) or {}, self.weighting, by=lambda c, r: True),
                self.change(state.models, shared),
            ),
        )
        replies = answer.replies
        if not replies:
            return IFCAState(state.models, state.chosen)
        (common, changes), (of_all, _) = answer.values, answer.weights
        models = tuple(
            self.moved(model, common[True], changes.get(j, {}), of_all[True]) for j, model in enumerate(state.models)
        )
        chosen = {**state.chosen, **{c: r.cluster for c, r in replies.items()}}
        return IFCAState(models, chosen, tuple(replies), tuple(c for c, r in replies.items() if r.tied))

    @step
    def train(self, me: Me, msg: IFCAMessage, memory: Params | None) -> Step[tuple[IFCAReply, Params | None]]:
        """Choose a model and train it (eq. 1, 2), with this client's own tensors in their place."""
        personal = me.layout.select(self.personal)
        models_sent = [{**msg.shared, **own} for own in msg.own]
        models = [{n: m[n] for n in me.initial} for m in (self.own(me, w, memory) for w in models_sent)]
        losses = yield from train_losses(me, models)
        (j,) = nearest(losses, 1)
        y = yield from sgd(models[j], self.local)
        return IFCAReply(without(y, personal), me.n, j, losses.count(losses[j]) > 1), only(y, personal)

    def validate_reply(self, step: str, reply: IFCAReply, model: Params, layout: Layout) -> None:
        """Refuse a client that chose none of the clusters."""
        if not 0 <= reply.cluster < self.clusters:
            raise WireError(f"a cluster must be 0 to {self.clusters - 1}, got {reply.cluster}")

    def change(self, models: Sequence[Params], shared: Collection[str]) -> Reduction:
        """Return the reduction to what becomes of each cluster's own tensors: their mean, or the sum of moves."""

        def cluster(c: ClientId, r: IFCAReply) -> int:
            return r.cluster

        if self.averaging == "model":
            return mean_of(lambda c, r: without(r.params, shared), self.weighting, cluster)

        def move(c: ClientId, r: IFCAReply) -> Params:
            return {n: y - models[r.cluster][n] for n, y in r.params.items() if n not in shared}

        return SumOf(move, lambda c, r: weight_of(r.n, self.weighting), cluster)

    def moved(self, model: Params, common: Params, change: Params, of_all: float) -> Params:
        """Update a cluster's model from the shared tensors' mean and its own tensors' change (eq. 3, 4)."""
        if self.averaging == "model":
            return {n: common.get(n, change.get(n, t)) for n, t in model.items()}
        return {n: common.get(n, t + change[n] / of_all if n in change else t) for n, t in model.items()}

    def serve(self, state: IFCAState, client: ClientId | None) -> Params | None:
        """Return the model that this client chose last; a global model only if there is just one."""
        if client is None:
            return state.models[0] if self.clusters == 1 and not self.personal else None
        (popular,) = most_common(state.chosen.values(), 1)
        return state.models[state.chosen.get(client, popular)]

    def unseen_models(self, state: IFCAState) -> tuple[Params, ...]:
        """Return the models among which a client that comes after training chooses, as clients do in a round."""
        return state.models

    def info(self, state: IFCAState) -> ChosenGroups:
        """Report the clusters by last choice, the clients that replied, and ties."""
        warnings = identical_starts(self.start, self.clusters, "IFCA")
        if self.clusters > 1 and len(state.chosen) > 1 and len(set(state.chosen.values())) == 1:
            warnings.append(
                f"all clients heard from chose the same of IFCA's {self.clusters} models, so it is FedAvg on that one; "
                "try other seeds or fewer clusters"
            )
        clients = sorted(state.chosen)
        return ChosenGroups(
            groups=tuple(tuple(c for c in clients if state.chosen[c] == j) for j in range(self.clusters)),
            chosen={c: state.chosen[c] for c in clients},
            heard=tuple(state.heard),
            ties=tuple(state.tied),
            warnings=tuple(warnings),
        )


# ---------------------------------------------------------------- choosing
def nearest(losses: Sequence[float], n: int) -> tuple[int, ...]:
    """Return the `n` models with the smallest losses, ascending; ties go to the lowest number, NaN comes last.

    >>> nearest([0.5, 0.2, 0.2, 0.1], 2), nearest([math.nan, 0.5], 1)
    ((1, 3), (1,))
    """
    return tuple(sorted(sorted(range(len(losses)), key=lambda j: (math.isnan(losses[j]), losses[j], j))[:n]))


def most_common(choices: Iterable[int], n: int) -> tuple[int, ...]:
    """Return the `n` models chosen most often, ascending; ties, and choices of none, go to the lowest number.

    >>> most_common([2, 2, 1], 2)
    (1, 2)
    >>> most_common([], 2)
    (0, 1)
    """
    count = Counter(choices)
    every = range(max([*count, n - 1]) + 1)
    return tuple(sorted(sorted(every, key=lambda j: (-count[j], j))[:n]))


# ---------------------------------------------------------------- initial models
def starts(
    params: Params, fed: Federation, clusters: int, start: InitialModels, clustered: Collection[str], who: str
) -> tuple[Params, ...]:
    """Make initial models: the common one, then others that differ from it in the `clustered` tensors.

    Raises:
        ConfigError: If two are the same though they should not be.
    """
    if start == "identical":
        return (params,) * clusters
    models = [params]
    for j in range(1, clusters):
        drawn = fed.initialise(fed.key / "cluster" / j)
        models.append({n: drawn[n] if n in clustered else t for n, t in params.items()})
    for j, model in enumerate(models):
        twin = next((i for i in range(j) if all(torch.equal(models[i][n], t) for n, t in model.items())), None)
        if twin is not None:
            raise ConfigError(
                f"{who} needs clusters that start apart, but the initial models of clusters {twin} and {j} are "
                "identical. Choose a network that draws what is clustered, cluster more of it, or set clusters = 1"
            )
    return tuple(models)


def shared_names(layout: Layout, clustered: Sequence[str]) -> frozenset[str]:
    """Return the names of tensors that are the same in all clusters."""
    return layout.select(("all",)) - layout.select(clustered)


def identical_starts(start: InitialModels, clusters: int, who: str) -> list[str]:
    """Return a warning about models that began as copies."""
    if start == "distinct" or clusters == 1:
        return []
    return [
        f"{who}'s {clusters} models start identical, as in HCCT's released code; this is not {who} as published. Ties "
        "go to the lowest number, and models without clients do not change"
    ]
