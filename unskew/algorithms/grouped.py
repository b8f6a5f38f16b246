"""Grouped: FedAvg inside given groups, each with a model of its own.

It is not from a paper, but asks by hand the question of every clustered method: what if these clients trained
together?  Y. Sun, M. Kountouris, J. Zhang, "How to Collaborate: Towards Maximizing the Generalization Performance in
Cross-Silo Federated Learning", IEEE Transactions on Mobile Computing, 2024, compare five such patterns in Table II.

Notation   C    a group: the groups are disjoint, and every client is in one
           w_C  its parameters and buffers;  S the round's cohort;  n_k training examples of client k
Round      y_k = LocalSGD(w_C; F_k) for k in S, C the group of k
           w_C <- sum_k n_k y_k / sum_k n_k over the k of C that replied; unchanged if there is none
Limits     One group of all clients is FedAvg.  Every client in a group of its own, with full participation, is
           independent training.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from unskew.algorithms.fedavg import FedAvg, ModelMessage, ModelReply, OwnParts, Weighting, mean_of, sent_part
from unskew.errors import ConfigError
from unskew.info import ClientGroups
from unskew.protocol import ClientId, Federation, Me, Plan, SgdConfig, Step, ask, step
from unskew.tree import Params

Groups = tuple[tuple[ClientId, ...], ...]


@dataclass(frozen=True)
class GroupedState:
    """The server's state: the groups, and one model for each."""

    groups: Groups
    models: tuple[Params, ...]


@dataclass(frozen=True)
class Grouped(OwnParts):
    """FedAvg in each of several groups.

    Attributes:
        groups: Clients by number, such as ((0, 1), (2,)): from 0, in the order of the run's `client_names`.  None is
            one group of all.
        local: The clients' optimisation.
        weighting: In a group's mean "samples" weights a client by its training examples, "uniform" weights all equally.
        personal: Tensors that stay with each client: head, norm, buffers, body, or a layer's name.
    """

    groups: Groups | None = None
    local: SgdConfig = SgdConfig()
    weighting: Weighting = "samples"
    personal: tuple[str, ...] = ()

    def init(self, params: Params, fed: Federation) -> GroupedState:
        """Return the common initial model for every group.

        Raises:
            ConfigError: If the groups do not hold every client exactly once.
        """
        groups = (fed.clients,) if self.groups is None else self.groups
        check(groups, fed.clients)
        shared = sent_part(params, fed.layout, self.personal)
        return GroupedState(groups, (shared,) * len(groups))

    def round(self, state: GroupedState, fed: Federation) -> Plan[GroupedState]:
        """Send each client of a cohort its group's model, and average the replies within groups."""
        messages = [ModelMessage(model) for model in state.models]
        group = {c: j for j, members in enumerate(state.groups) for c in members}
        to = {c: messages[group[c]] for c in fed.sample()}
        means = yield from ask(self.train, to, reduce=mean_of("params", self.weighting, by=lambda c, r: group[c]))
        return GroupedState(state.groups, tuple(means.value.get(j, model) for j, model in enumerate(state.models)))

    @step
    def train(self, me: Me, msg: ModelMessage, memory: Params | None) -> Step[tuple[ModelReply, Params | None]]:
        """Train the group's model, as in FedAvg."""
        return (yield from self.plain.train(me, msg, memory))

    @property
    def plain(self) -> FedAvg:
        """Return the method that a client runs inside its group."""
        return FedAvg(self.local, self.weighting, personal=self.personal)

    def serve(self, state: GroupedState, client: ClientId | None) -> Params | None:
        """Return the model of a client's group; a global model only if there is just one group."""
        if client is None:
            return state.models[0] if len(state.groups) == 1 and not self.personal else None
        return next(w for members, w in zip(state.groups, state.models, strict=True) if client in members)

    def unseen_models(self, state: GroupedState) -> tuple[Params, ...]:
        """Return the models among which a client that comes after training chooses, one for each group."""
        return state.models

    def info(self, state: GroupedState) -> ClientGroups:
        """Report the groups."""
        return ClientGroups(groups=tuple(map(tuple, state.groups)))


def check(groups: Groups, clients: tuple[ClientId, ...]) -> None:
    """Refuse groups that do not hold every client exactly once.

    Raises:
        ConfigError: If a group is empty, or a client is unknown, in two groups, or in none.
    """
    if not all(groups):
        raise ConfigError(f"groups must have members, got an empty group in {_shown(groups)}; leave it out")
    times = Counter(c for members in groups for c in members)
    unknown = sorted(times.keys() - set(clients))
    if unknown:
        raise ConfigError(
            f"groups must name clients, which are 0 to {len(clients) - 1}, got {_listed(unknown)}; correct the number"
        )
    twice = sorted(c for c, n in times.items() if n > 1)
    if twice:
        raise ConfigError(f"groups must hold every client once, got {_listed(twice)} more than once; keep one of them")
    missing = sorted(set(clients) - times.keys())
    if missing:
        raise ConfigError(
            f"groups must hold every client, {_listed(missing)} in none; a client may be in a group of its own"
        )


def _shown(groups: Groups) -> str:
    return str([list(members) for members in groups])


def _listed(clients: Iterable[ClientId]) -> str:
    numbers = [str(c) for c in clients]
    return f"client{'s' * (len(numbers) > 1)} {', '.join(numbers)}"
