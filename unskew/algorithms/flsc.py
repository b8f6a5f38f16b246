"""FLSC: IFCA whose clients are in several clusters at once.

C. Li, G. Li, P. K. Varshney, "Federated Learning With Soft Clustering", IEEE Internet of Things Journal 2022.  Only its
abstract was at hand; the rest is HCCT's description of it and the re-implementations that are public.  Equation numbers
are this file's.

Notation   theta_j  model of cluster j < K_c
           a_k      the N_g clusters that client k is in
Client     a_k = the N_g clusters with the smallest F_k(theta_j), as in ifca.py, ties to the lowest j      (1)
           y_k = LocalSGD(1/N_g sum_{j in a_k} theta_j; F_k)                                            (2)
Server     theta_j <- mean of y_k over {k : j in a_k}, unchanged if there is none                       (3)
Used       1/N_g sum_{j in a_k} theta_j after (3): the fused model of the clusters a client's model went into.
Order      `ids = "current"` trains and averages with the a_k of this round.  With "previous" a client trains and is
           averaged with the a_k it found last time, at first N_g different clusters at random, and meanwhile finds the
           next ones: the other reading, in which choosing and training can run concurrently.
Departures HCCT's program starts all models identical (`start = "identical"`), tests the models before (3), never decays
           the learning rate, and weights by examples; only the first and the last of these are options here.  Drawing
           the first a_k with replacement, as a port does, can leave fewer than N_g.  A client that never replied is
           served the fusion of the N_g clusters most clients are in; one that comes after training uses eq. 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge

from unskew.algorithms.fedavg import Weighting, completed, mean_of, only, sent_part, without
from unskew.algorithms.ifca import InitialModels, identical_starts, most_common, nearest, starts
from unskew.algorithms.parts import train_losses
from unskew.errors import ConfigError, WireError
from unskew.info import ChosenGroups
from unskew.protocol import ClientId, Federation, Layout, Me, Plan, SampleCount, SgdConfig, Step, ask, sgd, step
from unskew.reduction import Each, MeanOf, weighted_mean
from unskew.schema import Search
from unskew.tree import Params

Ids = tuple[int, ...]


@dataclass(frozen=True)
class FLSCState:
    """The server's state.

    Attributes:
        models: Model of each cluster.
        ids: Clusters that each client's last model went into, for every client that has replied so far.
        heard: Clients that replied in this round.
    """

    models: tuple[Params, ...]
    ids: dict[int, Ids]
    heard: tuple[int, ...] = ()


@dataclass(frozen=True)
class FLSCMessage:
    """The models of all clusters."""

    models: tuple[Params, ...]


@dataclass(frozen=True)
class FLSCReply:
    """A trained model, its training examples, and the clusters it is for, ascending."""

    params: Params
    n: SampleCount
    ids: Each[Ids]


@dataclass(frozen=True)
class FLSCMemory:
    """A client's memory: its next clusters if it trains with previous ones, and its own tensors, if any."""

    ids: Ids | None
    own: Params | None


@dataclass(frozen=True)
class FLSC:
    """Federated learning with soft clustering.

    Attributes:
        clusters: Number of models, K_c.
        memberships: Number of clusters each client is in, N_g; 1 is IFCA.
        ids: Train and average with the clusters found in this round, or with those found the time before.
        start: "distinct" draws every model, "identical" copies one, as HCCT's released code does.
        local: The clients' optimisation.
        weighting: "uniform" as published, "samples" by training examples, as in HCCT's tables.
        personal: Tensors that stay with each client, as in FedAvg; a client evaluates every cluster with its own.

    Raises:
        ConfigError: If a client would be in more clusters than there are.
    """

    clusters: Annotated[int, Ge(1), Search(2, 8, whole=True)] = 4
    memberships: Annotated[int, Ge(1)] = 2
    ids: Literal["current", "previous"] = "current"
    start: InitialModels = "distinct"
    local: SgdConfig = SgdConfig()
    weighting: Weighting = "uniform"
    personal: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.memberships > self.clusters:
            raise ConfigError(
                f"memberships must be at most the number of clusters, {self.clusters}, got {self.memberships}; "
                "lower it or raise clusters"
            )

    def init(self, params: Params, fed: Federation) -> FLSCState:
        """Return one model per cluster; the first is the common initial model.

        Raises:
            ConfigError: If two of them are the same though they should not be, or all stays with clients.
        """
        params = sent_part(params, fed.layout, self.personal)
        return FLSCState(starts(params, fed, self.clusters, self.start, list(params), "FLSC"), {})

    def round(self, state: FLSCState, fed: Federation) -> Plan[FLSCState]:
        """Send all models to a cohort; average each reply into its clusters (eq. 3)."""
        to = dict.fromkeys(fed.sample(), FLSCMessage(state.models))
        means = tuple(self.mean(j) for j in range(self.clusters))
        answer = yield from ask(self.train, to, at_least=0, reduce=means)
        models = tuple(mean.get(True, model) for mean, model in zip(answer.values, state.models, strict=True))
        ids = {**state.ids, **{c: r.ids for c, r in answer.replies.items()}}
        return FLSCState(models, ids, tuple(answer.replies))

    @step
    def train(self, me: Me, msg: FLSCMessage, memory: FLSCMemory | None) -> Step[tuple[FLSCReply, FLSCMemory | None]]:
        """Find this client's clusters and train their mean (eq. 1, 2), with its own tensors in their place."""
        personal, own = me.layout.select(self.personal), memory.own if memory else None
        models = [completed(me, model, personal, own) for model in msg.models]
        closest = nearest((yield from train_losses(me, models)), self.memberships)
        if self.ids == "current":
            ids, following = closest, None
        else:
            ids, following = (memory and memory.ids) or self.drawn(me), closest
        y = yield from sgd(completed(me, fused(msg.models, ids), personal, own), self.local)
        stays = only(y, personal)
        kept = FLSCMemory(following, stays) if following or stays else None
        return FLSCReply(without(y, personal), me.n, ids), kept

    def personalise(self, me: Me, params: Params, memory: FLSCMemory | None) -> Step[Params]:
        """Return the fused model with this client's own tensors in their place."""
        yield from ()
        return completed(me, params, me.layout.select(self.personal), memory.own if memory else None)

    def drawn(self, me: Me) -> Ids:
        """Draw the first clusters where there are no previous ones: different ones, at random."""
        order = torch.randperm(self.clusters, generator=(me.key / "clusters").generator()).tolist()
        return tuple(sorted(order[: self.memberships]))

    def mean(self, cluster: int) -> MeanOf:
        """Return the mean of the models that a cluster's members send, by the group True: none if it has none."""
        return mean_of("params", self.weighting, lambda c, r: cluster in r.ids)

    def validate_reply(self, step: str, reply: FLSCReply, model: Params, layout: Layout) -> None:
        """Refuse a model that is not for N_g different clusters."""
        if not len(set(reply.ids)) == len(reply.ids) == self.memberships or {*reply.ids} - {*range(self.clusters)}:
            raise WireError(f"expected {self.memberships} different clusters below {self.clusters}, got {reply.ids}")

    def serve(self, state: FLSCState, client: ClientId | None) -> Params | None:
        """Return the fused model of this client's clusters; a global model only if there is just one cluster."""
        if client is None:
            return state.models[0] if self.clusters == 1 and not self.personal else None
        everybodys = most_common((j for ids in state.ids.values() for j in ids), self.memberships)
        return fused(state.models, state.ids.get(client, everybodys))

    def unseen_models(self, state: FLSCState) -> tuple[Params, ...]:
        """Return the models among which a client that comes after training chooses (eq. 1)."""
        return state.models

    @property
    def unseen_memberships(self) -> int:
        """The number of them that it fuses."""
        return self.memberships

    def info(self, state: FLSCState) -> ChosenGroups:
        """Report the clusters and their members, which overlap, and the clients that replied."""
        return ChosenGroups(
            groups=tuple(tuple(c for c in sorted(state.ids) if j in state.ids[c]) for j in range(self.clusters)),
            chosen={c: tuple(state.ids[c]) for c in sorted(state.ids)},
            heard=tuple(state.heard),
            warnings=tuple(identical_starts(self.start, self.clusters, "FLSC")),
        )


def fused(models: Sequence[Params], ids: Ids) -> Params:
    """Average some models: the start of training (eq. 2), and the model that is used."""
    return models[ids[0]] if len(ids) == 1 else weighted_mean([models[j] for j in ids], [1.0] * len(ids))
