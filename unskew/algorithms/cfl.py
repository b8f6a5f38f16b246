"""CFL: a cluster whose model has converged while its clients still pull in different directions is split in two.

F. Sattler, K.-R. Müller, W. Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization
Under Privacy Constraints", IEEE TNNLS 2020, Algorithms 1 and 2.  Equation numbers are this file's.

Notation   c, theta_c  a cluster, which is a set of clients, and its model; at first one cluster of all
           D_k         y_k - theta_c, client k's update; without buffers wherever lengths or angles are taken
           omega_k     weight of client k within its cluster, with the sum 1
Client     y_k = LocalSGD(theta_c; F_k)
Rest       ||sum_{k in c} omega_k D_k|| < eps1  and  max_{k in c} ||D_k|| > eps2                         (1)
Split      s_ij = cos(D_i, D_j); c1, c2 = the last two clusters of an agglomeration by complete linkage  (2)
           kept if sqrt((1 - max_{i in c1, j in c2} s_ij) / 2) > gamma_max                            (3)
Server     theta_c <- theta_c + sum_{k in c} omega_k D_k in each cluster, after the split                 (4)
Numbers    eps1 and eps2 are lengths of updates: they depend on the model, the learning rate and the local work.  The
           defaults are the authors'.  Rule of thumb: eps1 a tenth of the largest `mean_norm` of the first rounds,
           which the record of a run has; eps2 a few times eps1.  `eps1 = 0` never splits, which is FedAvg.
Linkage    The paper's split makes the largest similarity across as small as possible.  Complete linkage, which the
           authors' program uses, only tends to; "single" does it exactly.
Departures The authors' notebook takes the positions that clustering returns for client numbers, which is wrong from the
           second split on; here they are positions in the cluster's list of members.  An update of length 0 has no
           direction and counts as orthogonal to all others.  (3) is the paper's, not the program's; with
           gamma_max = 0 it keeps every split except one between equal directions.
Absence    Angles are between updates of the same round from the same model.  A cluster is split only in a round in
           which all of its members replied; until then it averages the replies.  With small cohorts it may never split.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Interval
from jaxtyping import Float
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from torch import Tensor

from unskew.algorithms.fedavg import ModelMessage, ModelReply, OwnParts, Weighting, only, weights_of, without
from unskew.errors import ConfigError
from unskew.info import Bisection, SplitGroups
from unskew.protocol import ClientId, Federation, Me, Plan, SgdConfig, Step, ask, sgd, step
from unskew.tree import Params, map_params, squared_norm, weighted_sum

Linkage = Literal["complete", "single"]


@dataclass(frozen=True)
class Cluster:
    """A cluster: its members, ascending, and their model.

    Attributes:
        members: Client numbers.
        params: The model.
        mean_norm: Norm of the last mean update, before a split; None if no member replied.
        max_norm: Norm of the largest single update.
        held: True if (1) held in the last round but members were missing.
    """

    members: tuple[int, ...]
    params: Params
    mean_norm: float | None = None
    max_norm: float | None = None
    held: bool = False


@dataclass(frozen=True)
class CFLState:
    """The server's state: the clusters, which contain every client once, and all splits that led to them."""

    clusters: tuple[Cluster, ...]
    splits: tuple[Bisection, ...] = ()


@dataclass(frozen=True)
class CFL(OwnParts):
    """Clustered federated learning by recursive bipartition.

    Attributes:
        eps1: A cluster has converged when the norm of its mean update is below this.
        eps2: Its clients disagree when the norm of some client's update is above this.
        gamma_max: Smallest gap that a split must have, by eq. 3.
        after: Number of rounds before the first split.
        min_size: Size of the smallest cluster that is split.
        linkage: "complete" as in the authors' program, "single" for the least similarity between the halves.
        local: The clients' optimisation.
        weighting: "uniform" as published, "samples" by training examples.
        personal: Tensors that stay with each client, as in FedAvg; they are not compared.
    """

    eps1: Annotated[float, Ge(0.0)] = 0.4
    eps2: Annotated[float, Ge(0.0)] = 1.6
    gamma_max: Annotated[float, Interval(ge=0.0, lt=1.0)] = 0.0
    after: Annotated[int, Ge(0)] = 20
    min_size: Annotated[int, Ge(2)] = 3
    linkage: Linkage = "complete"
    local: SgdConfig = SgdConfig(momentum=0.9)
    weighting: Weighting = "uniform"
    personal: tuple[str, ...] = ()

    def init(self, params: Params, fed: Federation) -> CFLState:
        """Return one cluster with the initial model.

        Raises:
            ConfigError: If no trained tensor is left to compare.
        """
        shared = without(params, fed.layout.select(self.personal))
        if not any(name in shared for name in fed.layout.trainable):
            raise ConfigError(
                f"CFL compares trainable tensors that are sent, and personal = {list(self.personal)} leaves none; "
                "choose others"
            )
        return CFLState((Cluster(fed.clients, shared),))

    def round(self, state: CFLState, fed: Federation) -> Plan[CFLState]:
        """Send each client of a cohort its cluster's model; average, or split and average."""
        home: dict[ClientId, ModelMessage] = {}
        for cluster in state.clusters:
            home.update(dict.fromkeys(cluster.members, ModelMessage(cluster.params)))
        replies = yield from ask(self.train, {c: home[c] for c in fed.sample()}, at_least=0)
        clusters: list[Cluster] = []
        splits = list(state.splits)
        for cluster in state.clusters:
            came = {c: replies[c] for c in cluster.members if c in replies}
            halves, split = self.grown(cluster, came, fed)
            clusters += halves
            splits += [split] if split else []
        return CFLState(tuple(clusters), tuple(splits))

    @step
    def train(self, me: Me, msg: ModelMessage, memory: Params | None) -> Step[tuple[ModelReply, Params | None]]:
        """Train from the cluster's model, with this client's own tensors in their place."""
        personal = me.layout.select(self.personal)
        y = yield from sgd(self.own(me, msg.params, memory), self.local)
        return ModelReply(without(y, personal), me.n), only(y, personal)

    def grown(
        self, cluster: Cluster, replies: Mapping[ClientId, ModelReply], fed: Federation
    ) -> tuple[list[Cluster], Bisection | None]:
        """Update a cluster after a round: return it, or its halves and the split (eq. 1 to 4)."""
        if not replies:
            return [replace(cluster, mean_norm=None, max_norm=None, held=False)], None
        delta = {c: map_params(torch.sub, r.params, cluster.params) for c, r in replies.items()}
        n = {c: r.n for c, r in replies.items()}
        pulls = {c: {name: d[name] for name in fed.layout.trainable if name in d} for c, d in delta.items()}
        mean_norm = math.sqrt(float(squared_norm(self.mean(pulls, n))))
        max_norm = math.sqrt(max(float(squared_norm(p)) for p in pulls.values()))
        rests = mean_norm < self.eps1 and max_norm > self.eps2
        old_enough = fed.round > self.after and len(cluster.members) >= self.min_size
        split = None
        if rests and old_enough and len(replies) == len(cluster.members):
            split = self.split(cluster.members, list(pulls.values()), fed.round)
        parts = split.halves if split else (cluster.members,)
        held = rests and old_enough and len(replies) < len(cluster.members)
        return [
            Cluster(
                part,
                map_params(torch.add, cluster.params, self.mean({c: delta[c] for c in part if c in delta}, n)),
                mean_norm,
                max_norm,
                held,
            )
            for part in parts
        ], split

    def split(self, members: Sequence[ClientId], updates: Sequence[Params], round: int) -> Bisection | None:
        """Split a cluster in two by its members' updates; None if they are too similar (eq. 2, 3)."""
        s = cosines(updates)
        one, two = bipartition(s, self.linkage)
        similarity = float(s[one][:, two].max())
        if not math.sqrt((1.0 - similarity) / 2.0) > self.gamma_max:
            return None
        return Bisection(round, (tuple(members[i] for i in one), tuple(members[i] for i in two)), similarity)

    def mean(self, updates: Mapping[ClientId, Params], n: Mapping[ClientId, int]) -> Params:
        """Compute sum_k omega_k D_k."""
        return weighted_sum(list(updates.values()), weights_of([n[c] for c in updates], self.weighting))

    def serve(self, state: CFLState, client: ClientId | None) -> Params | None:
        """Return the model of this client's cluster; a global model only if there can never be a second cluster."""
        if client is None:
            return state.clusters[0].params if self.eps1 == 0.0 and not self.personal else None
        return next(cluster.params for cluster in state.clusters if client in cluster.members)

    def unseen_models(self, state: CFLState) -> tuple[Params, ...]:
        """Return the models among which a client that comes after training chooses, one for each cluster."""
        return tuple(cluster.params for cluster in state.clusters)

    def info(self, state: CFLState) -> SplitGroups:
        """Report the clusters, the norms that eq. 1 tests, and every split so far."""
        held = any(cluster.held for cluster in state.clusters)
        return SplitGroups(
            groups=tuple(cluster.members for cluster in state.clusters),
            mean_norm=tuple(cluster.mean_norm for cluster in state.clusters),
            max_norm=tuple(cluster.max_norm for cluster in state.clusters),
            splits=state.splits,
            warnings=(_HELD,) if held else (),
        )


_HELD = (
    "a cluster of CFL's was due to be split, but not all of its members were there to compare; "
    "let everybody take part in every round"
)


def cosines(updates: Sequence[Params]) -> Float[Tensor, "n n"]:
    """Compute s_ij of eq. 2, float64 on the CPU: symmetric, 1 on the diagonal, 0 elsewhere for an update of length 0.

    This is done tensor by tensor, so that no copy of all updates is made.
    """
    gram = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for name in updates[0]:
        rows = torch.stack([u[name].reshape(-1) for u in updates]).double()
        gram += (rows @ rows.T).cpu()
    length = gram.diagonal().sqrt()
    scale = torch.where(length > 0.0, 1.0 / length, 0.0)
    s = (gram * scale[:, None] * scale[None]).clamp(-1.0, 1.0)
    s = (s + s.T) / 2.0
    s.fill_diagonal_(1.0)
    return s


def bipartition(s: Float[Tensor, "n n"], linkage: Linkage = "complete") -> tuple[list[int], list[int]]:
    """Divide the rows of `s` into two halves, ascending, row 0's first: the last two clusters of an agglomeration.

    Args:
        s: Similarities, symmetric; at least two rows.
        linkage: Distance of clusters: that of their least similar members ("complete"), or most similar ("single").

    >>> bipartition(torch.tensor([[1.0, -0.5, 0.9], [-0.5, 1.0, -0.4], [0.9, -0.4, 1.0]]))
    ([0, 2], [1])
    """
    distance = (1.0 - s).fill_diagonal_(0.0).numpy()
    tree = hierarchy.to_tree(hierarchy.linkage(squareform(distance, checks=False), linkage))
    one, two = sorted((sorted(tree.left.pre_order()), sorted(tree.right.pre_order())))
    return one, two
