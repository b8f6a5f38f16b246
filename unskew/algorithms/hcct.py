"""HCCT: clients that benefit from each other form groups, and each group trains its own model.

Y. Sun, M. Kountouris, J. Zhang, "How to Collaborate", IEEE TMC 2024 (HCCT), Algorithms 1 and 2.  Equation numbers in
brackets are the paper's; server/cluster.py has the mathematics of the partition.

Notation   w_C     model of group C;  w_i  client i's model after local training;  D_i  its training examples
           g_i     gradient of client i: (w_C - w_i) / eta, the sum of its mini-batch gradients under plain SGD   (5)
           eta     learning rate, the same for all in a round, so that it cancels in every cosine; it is left out
Round t    1  groups: Algorithm 2 on the g of round t - 1; in round 1 every client alone
           2  w_C <- D-weighted mean of its members' present models                             (Algorithm 1, line 16)
           3  w_i <- LocalSGD(w_C; F_i) for every client
           4  w_C <- D-weighted mean of the w_i of its members that replied
              Evaluated is w_C after step 4, on each client's own data.
HCCT-E     Only the most informative layer counts in g: the one with the largest variance between clients relative to
           the square of the clients' mean, K being the Gram matrix of only that layer,
           score = mean_coordinates Var_i(g) / mean_coordinates Mean_i(g)^2 = N tr K / (1^T K 1) - 1    (in place of 19)
HCCT-P     `personal` tensors, the head, stay with each client: they are not sent, not averaged and not compared.
Alpha      "auto" is chosen in a pilot within round 1, and anew when other clients are present: each of some shares of
           the clients' mean number of examples is tried for a few rounds of the above, from where the groups stand,
           on four fifths of every client's training examples; the one whose models then do best on the fifth that was
           held out is taken, or the first, share 0, which is local training, if it gains no standard error on that.
           Shares with the same groups so far have the same models, trained once.  What it sends is in the ledger.
Arrivals  A client that is in no group trains, in the round it comes, from the mean of all present models, alone; its
           gradient places it in the next round in the group with the largest benefit, if that is positive (15), (16).
State      One model per group, and between rounds the Gram matrix: gradients are discarded when a round is over.
Absent     A client that was not asked, or was lost, goes where the larger part of its group (by examples) goes; its
group trains on without it.
Alone      A client whose training diverged reports it: it is not averaged, and is alone in the next partition.  So is
           one whose update is zero, but that counts in its group's mean, as in FedAvg.
Departures Algorithm 1 uses g^t before there is any: g^(t-1) decides.  Alpha is a hyperparameter there.  Its gradient is
           one of parameters; the released code compares whole state dictionaries, where BatchNorm's statistics and
           counters drown everything else (`include_buffers`), and its averages start from the first model of all and
           skip statistics, so that every group has the first client's, in its model and in the gradient that members
           are compared with (`group_buffers`).  HCCT-E's layer is chosen in round 1, whose gradients are taken at w^0
           anyway, with no pass of its own.  An optimiser other than plain SGD turns (5) into a direction that is not a
           sum of gradients; cosines are taken of it all the same.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from unskew.algorithms.fedavg import FedAvg, ModelMessage, Weighting, average, only, weight_of, without
from unskew.algorithms.presets import presets, variant
from unskew.errors import ConfigError, DivergedError, WireError
from unskew.info import Apart, GroupMerge, JudgedGroups, Placement, Refused, TriedAlpha
from unskew.protocol import (
    Batch,
    ClientId,
    Exponential,
    Federation,
    Fitted,
    Layout,
    Me,
    Plan,
    SampleCount,
    Sgd,
    SgdConfig,
    Step,
    ask,
    fold,
    step,
)
from unskew.reduction import Each, weighted_mean
from unskew.server import cluster
from unskew.server.cluster import Alpha, Products
from unskew.tree import Params

SHOWN = 100
"""Largest number of clients for which a round's info has all cosines, and the merges beyond the partition."""

MIDDLE = 0.25
"""Alpha of a fixed number of groups, or where a pilot cannot tell, as a share of the clients' mean examples."""

Groups = tuple[tuple[ClientId, ...], ...]


@dataclass(frozen=True)
class Arrivals:
    """Schedule of presence: at first clients below `start`; every `every` rounds `number` more arrive and `leaving` go.

    They arrive and leave in the order of their numbers.  At least one always stays.
    """

    start: Annotated[int, Ge(1)]
    every: Annotated[int, Ge(1)]
    number: Annotated[int, Ge(0)] = 1
    leaving: Annotated[int, Ge(0)] = 0

    def present(self, round: int, clients: Sequence[ClientId]) -> tuple[ClientId, ...]:
        """Return the clients that are present in a round, counted from 1."""
        times = max(round - 1, 0) // self.every
        came = min(len(clients), self.start + times * self.number)
        return tuple(clients[min(times * self.leaving, came - 1) : came])


@dataclass(frozen=True)
class Pilot:
    """Settings of the pilot that chooses alpha.

    Attributes:
        shares: Alphas to try, as shares of the clients' mean number of training examples.
        rounds: Number of rounds that each is tried for; groups first form in the second.
        hold_out: One of this many training examples is held out.
    """

    shares: tuple[Annotated[float, Ge(0.0)], ...] = (0.0, 0.1, 0.25, 0.5, 1.0)
    rounds: Annotated[int, Ge(2)] = 5
    hold_out: Annotated[int, Ge(3)] = 5

    def __post_init__(self) -> None:
        if not self.shares or tuple(sorted(set(self.shares))) != self.shares:
            raise ConfigError(f"pilot.shares must be different numbers in ascending order, got {list(self.shares)}")

    def is_held_out(self, n: int) -> Tensor:
        """Mark the examples held out of `n`, (n,) bool."""
        return torch.arange(1, n + 1) % self.hold_out == 0


# ---------------------------------------------------------------- messages and state
@dataclass(frozen=True)
class TrialMessage:
    """A group's model in the pilot.

    Attributes:
        params: The model.
        source: Number of the trial whose own tensors a client goes on from; 0 are those of the run.
        trial: Number of the trial that they are kept for.
    """

    params: Params
    source: int
    trial: int


@dataclass(frozen=True)
class ScoreReply:
    """A client's held-out examples, those its model was right on, None without classes, and the sum of their losses."""

    held_out: Each[int]
    right: Each[int | None]
    loss: Each[float]


@dataclass(frozen=True)
class HCCTMemory:
    """A client's own tensors: of the run, and of each trial of a pilot."""

    own: Params | None
    trials: dict[int, Params]


@dataclass(frozen=True)
class HCCTReply:
    """A client's model after local training, the examples it was trained on, and the number of mini-batch steps.

    If training diverged, `steps` is None and the model the one it was sent.
    """

    params: Params
    n: SampleCount
    steps: int | None


@dataclass(frozen=True)
class Evidence:
    """Evidence from a round about the similarity of clients.

    Attributes:
        clients: Clients that replied, ascending.
        n: Their training examples.
        gram: Gram matrix of their gradients, (clients, clients) float64; NaN for replies that could not be used.
        copied: Gram matrix of the part that a group's gradient has from the first client; None where there is none.
        unusable: Reasons why they could not, by client.
        new: Members of `clients` that were in no group.
    """

    clients: tuple[ClientId, ...]
    n: tuple[int, ...]
    gram: Tensor
    copied: Tensor | None
    unusable: dict[int, str]
    new: tuple[ClientId, ...]

    def products(self) -> Products:
        """Return the inner products that decide who gains from whom."""
        gram = self.gram.cpu()  # of a state that was put on a device to go on
        return Products.of(gram) if self.copied is None else Products.copied(gram, self.copied.cpu())


@dataclass(frozen=True)
class HCCTInfo:
    """Record of how the groups of a round were formed.

    Attributes:
        basis: Evidence they are based on; None in the first round.
        history: Merges of Algorithm 2, if it ran, by client number.
        beyond: Merges it stopped before.
        placed: Arrivals.
        alone: Clients that could not be compared, and why.
        warnings: Messages to the user.
    """

    basis: Evidence | None = None
    history: tuple[GroupMerge, ...] = ()
    beyond: tuple[GroupMerge, ...] = ()
    placed: tuple[Placement, ...] = ()
    alone: dict[int, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class HCCTState:
    """The server's state.

    Attributes:
        groups: Members ascending, groups in the order of their smallest members; clients that never replied are in
            none.
        models: One model for each group.
        mean: Weighted mean of all clients' models: an arrival's initial model.
        initial: w^0, if arrivals start from it.
        n: Training examples of each client that has replied.
        evidence: Evidence from the last round; it decides the next groups.
        layer: Layer that HCCT-E chose.
        clients: Number of all clients.
        info: Record of the last round.
        share: Alpha that a pilot chose, as a share of the clients' mean number of training examples.
        piloted: Clients present at that pilot.
        tried: Results of that pilot.
    """

    groups: Groups
    models: tuple[Params, ...]
    mean: Params
    initial: Params | None
    n: dict[int, int]
    evidence: Evidence | None
    layer: str | None
    clients: int
    info: HCCTInfo
    share: float | None = None
    piloted: tuple[ClientId, ...] = ()
    tried: tuple[TriedAlpha, ...] = ()


# ---------------------------------------------------------------- presets
Preset = Literal["paper", "code"]

PRESETS: dict[str, Mapping[str, Any]] = {
    # Table III; alpha, local epochs and rounds depend on the task and are set in addition to the preset.
    "paper": {"local": SgdConfig(lr=0.1, lr_schedule=Exponential(0.995), batch_size=64)},
    "code": {
        "local": SgdConfig(lr=0.1, lr_schedule=Exponential(0.995), batch_size=64),
        "warmup": "global",  # iteration 0 has one group of all, Algorithm 1 has singletons
        "include_buffers": True,  # the gradient is the whole state dictionary's difference
        "group_buffers": "first",  # every average copies BatchNorm's statistics from the first client of all
        "averaged_heads": True,  # HCCT-P's heads are averaged at the start of the next round
        "score": "published",  # HCCT-E: variance over signed mean of all entries
        "placement": "recluster",  # an arrival's gradient joins the list, and all clients are partitioned anew
        "arrival_start": "initial",  # an arrival's gradient is taken at w^0, other clients' are not
    },
}


# ---------------------------------------------------------------- the method
@presets(PRESETS)
@dataclass(frozen=True)
class HCCT:
    """Hierarchical coalitions of clients.

    Attributes:
        local: The clients' optimisation.
        alpha: Cost of a small group, in examples: two clients of D examples whose gradients have cosine c merge from
            alpha = D (2 - sqrt(2 + 2 c)) on.  One for all, one for each client, "size" for alpha_i = D_i, or "auto".
            A pilot chooses "auto"; with a fixed number of `groups` it is a quarter of the clients' mean D.
        pilot: Settings of that pilot.
        groups: Fixed number of groups to merge to; None lets the benefits decide.
        warmup: Groups of round 1: "singletons" (the paper) or one "global" group (the code).
        recluster_every: Number of rounds between two partitions, the first in round 2.
        one_shot: True for no partition after the first.
        weighting: Weights of models in a group's mean: by "samples" or "uniform".  Utilities always count samples.
        layer: Tensors to compare: "all" trainable parameters, those of the most "telling" layer (HCCT-E), or tensors
            by a word of `Layout.select` or their layer's name.
        score: Score that finds the telling layer: "scale_free", or as "published", the signed variance over mean of all
            entries, of convolutions and linear layers only.
        include_buffers: Compare BatchNorm's statistics and batch counters too, where `layer` is "all".
        group_buffers: BatchNorm's statistics of a group: its members' "mean", or those of the "first" client of all,
            whatever group that is in.  With `include_buffers` its gradient has them, too.
        normalize: g_i as the "sum" of mini-batch gradients, or their "mean", which does not give weight to more steps.
        rational: A client that would be worse off in its group than alone leaves it, after a partition.
        personal: Tensors that stay with each client: head, norm, buffers, body, or a layer's name.
        averaged_heads: True to average and compare `personal` tensors like all others; a client's own are then only
            for its use of the model.
        arrivals: Schedule of the clients' presence; None keeps all clients present.
        placement: Arrivals join a group by (15), (16), "greedy", or wait for the next partition, "recluster".
        arrival_start: Model that an arrival first trains: the present "average" model, or the "initial" one.
        preset: Base settings: "paper" is Algorithm 1 with the paper's optimiser, "code" the released code; None is
            Algorithm 1 with the experiment's optimiser.

    Raises:
        ConfigError: If alpha is negative or not finite.
    """

    local: SgdConfig = SgdConfig()
    alpha: Alpha | Literal["auto"] = "auto"
    pilot: Pilot = Pilot()
    groups: Annotated[int, Ge(1)] | None = None
    warmup: Literal["singletons", "global"] = "singletons"
    recluster_every: Annotated[int, Ge(1)] = 1
    one_shot: bool = False
    weighting: Weighting = "samples"
    layer: str = "all"
    score: Literal["scale_free", "published"] = "scale_free"
    include_buffers: bool = False
    group_buffers: Literal["mean", "first"] = "mean"
    normalize: Literal["sum", "mean"] = "sum"
    rational: bool = False
    personal: tuple[str, ...] = ()
    averaged_heads: bool = False
    arrivals: Arrivals | None = None
    placement: Literal["greedy", "recluster"] = "greedy"
    arrival_start: Literal["average", "initial"] = "average"
    preset: Preset | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.alpha != "auto":
            cluster.check_alpha(self.alpha)

    # ------------------------------------------------------------------ the server
    def init(self, params: Params, fed: Federation) -> HCCTState:
        """Return the initial model.

        Raises:
            ConfigError: If there are more groups than clients, or not as many alphas; if `arrivals` starts with too
                many clients; or if no tensor is left to compare.
        """
        n = len(fed.clients)
        if self.groups is not None and self.groups > n:
            raise ConfigError(f"groups must be at most the number of clients, {n}, got {self.groups}")
        if isinstance(self.alpha, tuple):
            cluster.alphas(self.alpha, [1] * n)
        if self.arrivals is not None and self.arrivals.start > n:
            raise ConfigError(f"arrivals.start must be at most the number of clients, {n}, got {self.arrivals.start}")
        shared = params if self.averaged_heads else without(params, fed.layout.select(self.personal))
        if not self.compared(fed.layout, shared, None):
            kept = f", personal keeps {', '.join(self.personal)}" if self.personal else ""
            raise ConfigError(
                f"HCCT compares trainable tensors that are sent, and layer = {self.layer!r} leaves none{kept}; choose "
                "others"
            )
        first: Groups = (self.present(fed),) if self.warmup == "global" else ()
        models = (shared,) * len(first)
        initial = shared if self.arrival_start == "initial" else None
        return HCCTState(first, models, shared, initial, {}, None, None, n, HCCTInfo())

    def round(self, state: HCCTState, fed: Federation) -> Plan[HCCTState]:
        """Regroup by the last round's gradients, train every group's model, average within groups."""
        present = self.present(fed)
        if self.pilots and present != state.piloted:
            state = yield from self.choose_alpha(state, fed, present)
        groups, info = self.regroup(state, fed.round, present)
        return (yield from self.train_groups(state, groups, info, fed, present))

    def train_groups(
        self,
        state: HCCTState,
        groups: Groups,
        info: HCCTInfo,
        fed: Federation,
        present: tuple[ClientId, ...],
        trial: tuple[int, int] | None = None,
    ) -> Plan[HCCTState]:
        """Train every group's model and average within groups; in a pilot `trial` is its number, and its source's."""
        models = self.carried(state, groups, fed.layout)
        group_of = {c: k for k, members in enumerate(groups) for c in members}
        pack = ModelMessage if trial is None else partial(TrialMessage, source=trial[0], trial=trial[1])
        to_group = [pack(model) for model in models]
        to_arrival = pack(state.initial or state.mean)
        to = {c: to_group[group_of[c]] if c in group_of else to_arrival for c in self.cohort(fed, present)}
        work: Any = self.train if trial is None else self.try_out
        replies = yield from ask(work, to)
        unusable = {c: why for c, r in replies.items() if (why := _unusable(r))}
        fits = [r for r in replies.values() if r.n > 0]
        if trial is None and fits and all(r.steps is None for r in fits):
            raise DivergedError(
                f"round {fed.round}: the training of every client that was asked diverged at learning rate "
                f"{self.local.lr:g}; lower lr or set clip_norm"
            )
        heard = {c: r for c, r in replies.items() if c not in unusable}
        layer, gram, copied = self.compare(state, fed.layout, heard, {c: to[c].params for c in heard})

        n = {**state.n, **{c: r.n for c, r in heard.items()}}
        models_of_groups = []
        for members, model in zip(groups, models, strict=True):
            mine = {c: heard[c] for c in members if c in heard}
            models_of_groups.append((members, self.mean_of(mine, heard, fed.layout) if mine else model))
        new = tuple(c for c in replies if c not in group_of)
        models_of_groups += [((c,), self.mean_of({c: heard[c]}, heard, fed.layout)) for c in new if c in heard]
        models_of_groups.sort(key=lambda group: group[0])
        after = tuple(members for members, _ in models_of_groups)
        means = tuple(model for _, model in models_of_groups)
        asked = list(replies)
        evidence = Evidence(
            tuple(asked),
            tuple(replies[c].n for c in asked),
            _spread(gram, asked, heard),
            None if copied is None else _spread(copied, asked, heard),
            unusable,
            new,
        )
        mean = self.mean_model(after, means, n, state.mean)
        return replace(state, groups=after, models=means, mean=mean, n=n, evidence=evidence, layer=layer, info=info)

    # ------------------------------------------------------------------ alpha
    @property
    def pilots(self) -> bool:
        """True if a pilot chooses alpha."""
        return self.alpha == "auto" and self.groups is None

    def choose_alpha(self, state: HCCTState, fed: Federation, present: tuple[ClientId, ...]) -> Plan[HCCTState]:
        """Try each share for a few rounds, and take the one whose models do best on held-out training examples."""
        trials = {0: state}
        last = dict.fromkeys(self.pilot.shares, 0)  # the trial that a share has come to
        number = 0
        for again in range(1, self.pilot.rounds + 1):
            branches: dict[tuple[int, Groups], list[float]] = {}
            for s, source in last.items():
                at = again if state.evidence is None else again + 1
                groups, _ = self.regroup(replace(trials[source], share=s), at, present)
                branches.setdefault((source, groups), []).append(s)
            trained: dict[int, HCCTState] = {}
            for (source, groups), shares in sorted(branches.items(), key=lambda branch: branch[0][0]):
                number += 1
                trained[number] = yield from self.train_groups(
                    trials[source], groups, HCCTInfo(), fed, present, (source, number)
                )
                last |= dict.fromkeys(shares, number)
            trials = trained
        scores: dict[int, dict[ClientId, ScoreReply]] = {}
        for trial, after in trials.items():
            to = {c: TrialMessage(self.model_of(after, c), trial, trial) for c in self.cohort(fed, present)}
            scores[trial] = yield from ask(self.evaluate_trial, to)
        mean = self.mean_size(trials[number].n)
        tried = tuple(TriedAlpha(s * mean, len(trials[t].groups), *_means(scores[t])) for s, t in last.items())
        chosen = best_trial([scores[t] for t in last.values()])
        share = None if chosen is None else self.pilot.shares[chosen]
        return replace(state, share=share, piloted=present, tried=tried)

    def cost(self, state: HCCTState, clients: Sequence[ClientId]) -> Alpha:
        """Return alpha of (9) for some clients."""
        if isinstance(self.alpha, tuple):
            return tuple(self.alpha[c] for c in clients)
        if self.alpha != "auto":
            return self.alpha
        return self.by_share(state)

    def by_share(self, state: HCCTState) -> float:
        """Return the alpha that a pilot chose, in examples."""
        return (MIDDLE if state.share is None else state.share) * self.mean_size(state.n)

    def mean_size(self, n: Mapping[int, int]) -> float:
        """Return the mean number of examples of the clients that have replied, 0 if none has."""
        return sum(n.values()) / len(n) if n else 0.0

    def model_of(self, state: HCCTState, client: ClientId) -> Params:
        """Return a client's group's model, or the mean of all for a client in no group."""
        at = next((k for k, members in enumerate(state.groups) if client in members), None)
        return state.mean if at is None else state.models[at]

    def present(self, fed: Federation) -> tuple[ClientId, ...]:
        """Return the clients present in this round."""
        return fed.clients if self.arrivals is None else self.arrivals.present(fed.round, fed.clients)

    def cohort(self, fed: Federation, present: tuple[ClientId, ...]) -> tuple[ClientId, ...]:
        """Return the clients to ask: the members of the round's cohort that are present."""
        if len(present) == len(fed.clients):
            return fed.sample()
        there = set(present)
        return fed.sample(min(fed.clients_per_round, len(there)), [float(c in there) for c in fed.clients])

    # ------------------------------------------------------------------ groups
    def regroup(self, state: HCCTState, round: int, present: tuple[ClientId, ...]) -> tuple[Groups, HCCTInfo]:
        """Form the groups of this round, with a record of how."""
        there = set(present)
        before = tuple(g for g in (tuple(c for c in g if c in there) for g in state.groups) if g)
        basis = state.evidence
        if basis is None:
            return before, HCCTInfo()
        known = {c for g in before for c in g}
        rows = [i for i, c in enumerate(basis.clients) if c in known]
        clients = [basis.clients[i] for i in rows]
        products, n = basis.products().rows(rows), [basis.n[i] for i in rows]
        alpha = self.cost(state, clients)
        due = round == 2 or (not self.one_shot and (round - 2) % self.recluster_every == 0)
        came = set(basis.new)
        new = [i for i, c in enumerate(clients) if c in came]
        settled = [i for i, c in enumerate(clients) if c not in came]
        alone = {c: why for c, why in basis.unusable.items() if c in there} if due else {}
        if not clients:
            return before, HCCTInfo(basis, alone=alone)
        history: tuple[GroupMerge, ...] = ()
        beyond: tuple[GroupMerge, ...] = ()
        placed: tuple[Placement, ...] = ()
        if due:
            chosen = settled if self.placement == "greedy" and settled else list(range(len(clients)))
            partition = cluster.partition(
                products.rows(chosen),
                [n[i] for i in chosen],
                tuple(alpha[i] for i in chosen) if isinstance(alpha, tuple) else alpha,
                groups=None if self.groups is None else min(self.groups, len(chosen)),
                whole=len(chosen) <= SHOWN,
            )
            by_row = [[chosen[i] for i in g] for g in partition.groups]
            name = [clients[i] for i in chosen]
            history, beyond = _named(partition.history, name), _named(partition.beyond, name)
            alone = {**{name[i]: why for i, why in partition.alone.items()}, **alone}
            if self.rational:
                by_row, left = cluster.leave(products, n, alpha, by_row)
                alone |= {clients[i]: "it would be worse off in its group" for i in left}
        else:
            row_of = {c: i for i, c in enumerate(clients)}
            # A client that cannot be compared stays where it is: see `_with_absent`.
            usable = {c for c in clients if c not in came and bool(products.own[row_of[c], row_of[c]] > 0)}
            by_row = [g for g in ([row_of[c] for c in g if c in usable] for g in before) if g]
            chosen = settled
        asked = set(chosen)
        waiting = [i for i in new if i not in asked]
        if waiting and self.placement == "greedy":
            rowwise, inserted = cluster.insert(products, n, alpha, by_row, waiting)
            by_row = [list(g) for g in rowwise]
            at = [None if p.group is None else clients[p.group] for p in inserted]
            placed = tuple(Placement(clients[p.client], c, p.benefit) for p, c in zip(inserted, at, strict=True))
        else:
            by_row += [[i] for i in waiting]
        fresh = [[clients[i] for i in g] for g in by_row]
        groups = _with_absent(before, sorted(fresh), state.n)
        warnings = self.warnings(groups, len(clients), state.tried) if due else ()
        return groups, HCCTInfo(basis, history, beyond, placed, alone, warnings)

    def warnings(self, groups: Groups, compared: int, tried: tuple[TriedAlpha, ...]) -> tuple[str, ...]:
        """Return warnings about settings that the user may not have meant, or a pilot that found no gain."""
        if self.groups is not None or compared < 2:
            return ()
        if self.alpha == "auto":
            return (_no_gain(tried),) if tried and all(len(g) == 1 for g in groups) else ()
        if len(groups) == 1:
            return ("all clients are in one group: HCCT is FedAvg in such a round; a smaller alpha would split it",)
        if all(len(g) == 1 for g in groups):
            return (_NOBODY_GAINS,)
        return ()

    def carried(self, state: HCCTState, groups: Groups, layout: Layout) -> tuple[Params, ...]:
        """Return the model of each group: the mean of its members' present models (Algorithm 1, line 16)."""
        old = {c: k for k, members in enumerate(state.groups) for c in members}
        out = []
        for members in groups:
            weight: dict[int, float] = {}
            for c in members:
                weight[old[c]] = weight.get(old[c], 0.0) + self.weight(state.n, c)
            mean = self.blend([state.models[k] for k in weight], list(weight.values()))
            out.append(self.with_buffers(mean, state.models[0], layout))  # the first group is the first client's
        return tuple(out)

    def blend(self, models: Sequence[Params], weights: list[float]) -> Params:
        """Average models; a single one is returned as it is, and weights are equal if no client has ever replied."""
        if len(models) == 1:
            return models[0]
        return weighted_mean(models, weights if any(weights) else [1.0] * len(models))

    def mean_of(
        self, replies: Mapping[ClientId, HCCTReply], of_all: Mapping[ClientId, HCCTReply], layout: Layout
    ) -> Params:
        """Return a group's model after local training, from its members' replies and those of all groups."""
        mean = average([r.params for r in replies.values()], [r.n for r in replies.values()], self.weighting)
        return self.with_buffers(mean, next(iter(of_all.values())).params, layout)

    def with_buffers(self, mean: Params, first: Params, layout: Layout) -> Params:
        """Return the mean, with the first client's buffers if the settings ask for them."""
        if self.group_buffers == "mean":
            return mean
        return {name: first[name] if name in layout.buffers else t for name, t in mean.items()}

    def weight(self, n: Mapping[int, int], client: ClientId) -> float:
        """Return the weight of a client's model in means; a client that never replied has none."""
        return weight_of(n[client], self.weighting) if client in n else 0.0

    def mean_model(self, groups: Groups, models: tuple[Params, ...], n: Mapping[int, int], before: Params) -> Params:
        """Return the mean of all clients' models."""
        weights = [sum(self.weight(n, c) for c in members) for members in groups]
        if len(models) == 1:
            return models[0]
        return weighted_mean(models, weights) if any(weights) else before

    # ------------------------------------------------------------------ gradients
    def compare(
        self,
        state: HCCTState,
        layout: Layout,
        heard: Mapping[ClientId, HCCTReply],
        starts: Mapping[ClientId, Params],
    ) -> tuple[str | None, Tensor, Tensor | None]:
        """Return the layer HCCT-E uses, and Gram matrices of gradients and copied parts, in the order of `heard`."""
        ends = [r.params for r in heard.values()]
        froms = [starts[c] for c in heard]
        if not ends:
            return state.layer, torch.zeros(0, 0, dtype=torch.float64), None
        steps = torch.tensor([float(max(r.steps or 1, 1)) for r in heard.values()], dtype=torch.float64)
        scale = (1.0 / steps if self.normalize == "mean" else torch.ones_like(steps))[:, None]

        def gram_of(names: Sequence[str]) -> Tensor:
            return cluster.gram(cluster.displacements(froms, ends, names), len(ends)) * scale * scale.T

        layer = state.layer
        if self.layer == "telling" and layer is None and len(ends) > 1:
            best = -math.inf
            chosen = None
            for name, names in self.candidates(layout, ends[0]).items():
                gram = gram_of(names)
                score = telling(gram) if self.score == "scale_free" else published_score(froms, ends, names)
                if score > best or chosen is None:  # of NaN, the first
                    best, layer, chosen = score, name, gram
            assert chosen is not None
            return layer, chosen, None
        gram = gram_of(self.compared(layout, ends[0], layer))
        if not self.compares_buffers:
            return layer, gram, None
        buffers = [name for name in layout.buffers if name in ends[0]]
        # Integer counters do not travel; each BatchNorm layer's has gone up by one with every step.
        counters = sum(name.endswith("running_mean") for name in buffers)
        counted = -(steps[:, None] * scale)
        part = gram_of(buffers) + counters * (counted @ counted.T)
        return layer, gram + part, part if self.copies else None

    @property
    def compares_buffers(self) -> bool:
        """True if BatchNorm's statistics count in a gradient."""
        return self.include_buffers and self.layer == "all"

    @property
    def copies(self) -> bool:
        """True if part of a group's gradient is the first client's."""
        return self.compares_buffers and self.group_buffers == "first"

    def compared(self, layout: Layout, shared: Params, layer: str | None) -> tuple[str, ...]:
        """Return the tensors whose displacements make up a gradient; `layer` is HCCT-E's, once known."""
        if layer is not None:
            return self.layers(layout, shared)[layer]
        if self.layer in ("all", "telling"):
            wanted = frozenset(layout.trainable)
        else:
            wanted = layout.select((self.layer,)) & frozenset(layout.trainable)
        return tuple(name for name in shared if name in wanted)

    def layers(self, layout: Layout, shared: Params) -> dict[str, tuple[str, ...]]:
        """Group trainable tensors by the module they belong to."""
        by_module: dict[str, tuple[str, ...]] = {}
        for name in layout.trainable:
            if name in shared:
                module = name.rpartition(".")[0]
                by_module[module] = (*by_module.get(module, ()), name)
        return by_module

    def candidates(self, layout: Layout, shared: Params) -> dict[str, tuple[str, ...]]:
        """Return the layers HCCT-E chooses from; the released code has no normalisations among them."""
        layers = self.layers(layout, shared)
        matrices = {layer: names for layer, names in layers.items() if any(shared[k].dim() > 1 for k in names)}
        return matrices if self.score == "published" and matrices else layers

    # ------------------------------------------------------------------ the clients
    @step
    def train(self, me: Me, msg: ModelMessage, memory: HCCTMemory | None) -> Step[tuple[HCCTReply, HCCTMemory | None]]:
        """Train the group's model, with this client's own tensors in their place."""
        reply, own = yield from self.trained(me, msg.params, memory.own if memory else None, None)
        return reply, None if own is None else HCCTMemory(own, {})

    @step
    def try_out(
        self, me: Me, msg: TrialMessage, memory: HCCTMemory | None
    ) -> Step[tuple[HCCTReply, HCCTMemory | None]]:
        """Train as `train` does, without the examples that are held out and with the trial's own tensors."""
        held_out = self.pilot.is_held_out(me.n)
        reply, own = yield from self.trained(me, msg.params, _own(memory, msg.source), (~held_out).nonzero()[:, 0])
        if own is None:
            return reply, memory
        known = memory or HCCTMemory(None, {})
        # Trials end in the order of their numbers: what no other goes on from is not kept.
        trials = {t: params for t, params in known.trials.items() if t >= msg.source}
        return reply, HCCTMemory(known.own, {**trials, msg.trial: own})

    def trained(
        self, me: Me, params: Params, own: Params | None, rows: Tensor | None
    ) -> Step[tuple[HCCTReply, Params | None]]:
        """Train a model on the examples in `rows`; None is all of them."""
        personal = me.layout.select(self.personal)
        start = params if self.averaged_heads else self.plain.own(me, params, own)
        done: Fitted | None = yield Sgd(start, self.local, rows=rows, may_diverge=True)
        if done is None:
            return HCCTReply(params, me.n, None), own
        travels = done.params if self.averaged_heads else without(done.params, personal)
        return HCCTReply(travels, me.n, done.steps), only(done.params, personal)

    @step
    def evaluate_trial(
        self, me: Me, msg: TrialMessage, memory: HCCTMemory | None
    ) -> Step[tuple[ScoreReply, HCCTMemory | None]]:
        """Evaluate a trial's model on the examples that are held out."""
        params = yield from self.personalised(me, msg.params, _own(memory, msg.source))
        tally = yield from fold(partial(_add_held_out, self.pilot.hold_out, len(me.histogram)), params, (0, 0, 0, 0.0))
        return ScoreReply(int(tally[1]), None if tally[2] is None else int(tally[2]), float(tally[3])), memory

    def validate_reply(self, step: str, reply: Any, model: Params, layout: Layout) -> None:
        """Refuse an impossible score."""
        if step == "evaluate_trial" and not 0 <= (reply.right or 0) <= reply.held_out < 1 << 53:
            raise WireError(f"expected right answers on at most {reply.held_out} held-out examples, got {reply.right}")

    @property
    def personalises(self) -> bool:
        """True if some tensors stay with the clients."""
        return bool(self.personal)

    def personalise(self, me: Me, params: Params, memory: HCCTMemory | None) -> Step[Params]:
        """Return the group's model with this client's own tensors in their place."""
        return (yield from self.personalised(me, params, memory.own if memory else None))

    def personalised(self, me: Me, params: Params, own: Params | None) -> Step[Params]:
        """Return a model with `own` tensors in their place."""
        yield from ()
        if self.averaged_heads:
            return {**params, **own} if own else params
        return self.plain.own(me, params, own)

    @property
    def plain(self) -> FedAvg:
        """Return the method that a client runs inside its group."""
        return FedAvg(self.local, self.weighting, personal=self.personal)

    def serve(self, state: HCCTState, client: ClientId | None) -> Params | None:
        """Return a client's group's model, or the mean of all for a client in no group; a global one only if unique."""
        if client is None:
            one = self.groups == 1 and self.warmup == "global" and self.arrivals is None
            return state.mean if one and (self.averaged_heads or not self.personal) else None
        return self.model_of(state, client)

    def unseen_models(self, state: HCCTState) -> tuple[Params, ...]:
        """Return the models among which a client that comes after training chooses, the groups' and their mean."""
        return (state.mean, *state.models)

    # ------------------------------------------------------------------ info
    def info(self, state: HCCTState) -> JudgedGroups:
        """Report the groups of the last round, and their basis: the gradients of the round before.

        The utility is that of (9) that decides, None for clients without evidence.
        """
        last, basis = state.info, state.info.basis
        utility: list[float | None] = [None] * state.clients
        similarity: tuple[tuple[float | None, ...], ...] = ()
        restless: tuple[ClientId, ...] = ()
        if basis is not None:
            row = {c: i for i, c in enumerate(basis.clients)}
            alpha = self.cost(state, basis.clients)
            # A client that does not move agrees with no other, and is in a larger group only until the next partition.
            moved = {c for c, i in row.items() if bool(basis.gram[i, i] > 0)}
            groups = [[row[c] for c in g if c in (moved if len(g) > 1 else row)] for g in state.groups]
            judged = basis.products(), basis.n, alpha, [g for g in groups if g]
            for i, value in cluster.utilities(*judged).items():
                utility[basis.clients[i]] = _finite(value)
            restless = tuple(basis.clients[i] for i in cluster.restless(*judged))
            if state.clients <= SHOWN:
                cosines = cluster.cosines(basis.gram).tolist()
                similarity = tuple(tuple(_finite(v, 4) for v in values) for values in cosines)
        refused = state.evidence.unusable if state.evidence is not None else {}
        return JudgedGroups(
            groups=tuple(map(tuple, state.groups)),
            history=last.history,
            beyond=last.beyond,
            placed=last.placed,
            alone=tuple(Apart(c, why) for c, why in sorted(last.alone.items())),
            layer=state.layer,
            compared=() if basis is None else tuple(basis.clients),
            similarity=similarity,
            utility=tuple(utility),
            restless=restless,
            warnings=tuple(last.warnings),
            alpha=None if self.alpha != "auto" or basis is None else self.by_share(state),
            tried=state.tried,
            ignored=tuple(Refused(c, "train", why) for c, why in refused.items()),
        )


_NOBODY_GAINS = (
    "no two clients gain from training together, so every client trains alone; raise alpha. Two clients of D examples "
    "whose gradients have cosine c merge from alpha = D (2 - sqrt(2 + 2 c)) on"
)


def _no_gain(tried: Sequence[TriedAlpha]) -> str:
    """Say what a pilot found of training together, when every client trains alone."""
    alone, *together = tried
    beyond = ""
    if alone.accuracy is not None and together:
        best: TriedAlpha = max(together, key=lambda t: t.accuracy or 0.0)
        pilot_result = f"accuracy {alone.accuracy:.1%} alone and at most {best.accuracy or 0.0:.1%} in groups"
        beyond = " beyond chance" if (best.accuracy or 0.0) > alone.accuracy else ""
    elif alone.loss is not None and together:
        best = min(together, key=lambda t: math.inf if t.loss is None else t.loss)
        pilot_result = f"a loss of {alone.loss:.4g} alone and at least {best.loss or math.nan:.4g} in groups"
        beyond = " beyond chance" if (best.loss or math.inf) < alone.loss else ""
    else:
        return "every client trains alone: no client has enough examples to hold some out in a pilot"
    return (
        f"nobody gains{beyond}: the pilot has, on held-out training examples, {pilot_result} (alpha {best.alpha:.3g})"
    )


def telling(gram: Tensor) -> float:
    """Score how well a layer distinguishes clients: N tr K / (1^T K 1) - 1, >= 0, whatever the gradients' scale.

    >>> telling(torch.eye(2, dtype=torch.float64))
    1.0
    """
    n, trace, whole = len(gram), float(gram.diagonal().sum()), max(float(gram.sum()), 0.0)
    if trace <= 0.0:
        return 0.0
    square = whole / n**2  # of the clients' mean gradient
    between = max(trace / n - square, 0.0)
    # Where the mean is negligible beside the differences, their ratio is capped at a trillion.
    return between / max(square, 1e-12 * (between + square))


def published_score(starts: Sequence[Params], ends: Sequence[Params], names: Sequence[str]) -> float:
    """Compute the released code's score of a layer: for each tensor the signed variance over mean of all entries.

    Under cross-entropy the last layer's gradients sum to zero over the classes.  Their mean is a rounding error then,
    and the score huge and of either sign.
    """
    score = 0.0
    for name in names:
        total = square = count = 0.0
        for x in cluster.displacements(starts, ends, [name]):
            total, square, count = total + float(x.sum()), square + float(x.double().square().sum()), count + x.numel()
        mean = total / count
        score += (square / count - mean * mean) / mean if mean != 0.0 else 0.0
    return score


def _own(memory: HCCTMemory | None, trial: int) -> Params | None:
    """Return a client's own tensors of a trial; the run's, if it has not taken part in that."""
    return None if memory is None else memory.trials.get(trial, memory.own)


def _add_held_out(hold_out: int, classes: int, tally: Any, batch: Batch) -> Any:
    """Add a batch's held-out examples to (examples seen, held out, right, sum of losses)."""
    seen, held_out, right, loss = tally
    real = batch.mask > 0
    chosen = real & ((seen + real.cumsum(0)) % hold_out == 0)
    hit = _is_right(batch, classes)
    return (
        seen + real.sum(),
        held_out + chosen.sum(),
        None if hit is None else right + (hit & chosen).sum(),
        loss + torch.where(chosen, batch.loss.double(), 0.0).sum(),
    )


def _is_right(batch: Batch, classes: int) -> Tensor | None:
    """Mark the examples whose class was found, (batch,) bool; None if logits are of no classes, as those of grades."""
    if batch.y.dim() != 1 or batch.y.is_floating_point() or batch.logits.shape[1:] not in ((1,), (classes,)):
        return None
    return (batch.logits.argmax(1) if batch.logits.shape[1] > 1 else (batch.logits[:, 0] > 0).long()) == batch.y


def best_trial(scores: Sequence[Mapping[ClientId, ScoreReply]]) -> int | None:
    """Return the position of the trial that does best on held-out examples, of equals the first.

    It is the first of all if none gains more than a standard error on that, |sum d_i| <= sqrt(sum d_i^2).  There d_i is
    the difference of client i's right answers, or without classes of its losses.  None if nothing was held out.
    """
    heard = [c for c in scores[0] if scores[0][c].held_out and all(c in of for of in scores)]
    merits = [[-of[c].loss if (right := of[c].right) is None else float(right) for c in heard] for of in scores]
    if not heard or not all(math.isfinite(m) for of in merits for m in of):
        return None
    sums = [sum(of) for of in merits]
    best = sums.index(max(sums))
    apart = [a - b for a, b in zip(merits[best], merits[0], strict=True)]
    return best if sum(apart) > math.sqrt(sum(d * d for d in apart)) else 0


def _means(replies: Mapping[ClientId, ScoreReply]) -> tuple[float | None, float | None]:
    """Return accuracy, where there are classes, and mean loss on all clients' held-out examples."""
    heard = list(replies.values())
    count = sum(r.held_out for r in heard)
    loss = _finite(sum(r.loss for r in heard) / count) if count else None
    right = [r.right for r in heard if r.right is not None]
    return (sum(right) / count if count and len(right) == len(heard) else None), loss


def _unusable(reply: HCCTReply) -> str | None:
    """Explain why a reply cannot be averaged, if it cannot."""
    if reply.steps is None:
        return "its training diverged"
    if not all(bool(torch.isfinite(t).all()) for t in reply.params.values()):
        return "its update is not finite"
    return None if reply.n > 0 else "it has no training examples"


def _spread(gram: Tensor, clients: Sequence[ClientId], heard: Mapping[ClientId, HCCTReply]) -> Tensor:
    """Extend the Gram matrix by rows and columns of NaN for the others that replied."""
    if len(heard) == len(clients):
        return gram
    at = [i for i, c in enumerate(clients) if c in heard]
    out = torch.full((len(clients), len(clients)), torch.nan, dtype=torch.float64)
    out[torch.tensor(at, dtype=torch.int64)[:, None], torch.tensor(at, dtype=torch.int64)] = gram
    return out


def _with_absent(before: Groups, fresh: list[list[ClientId]], n: Mapping[int, int]) -> Groups:
    """Add clients that were not compared to new groups: each goes where most of its group went, by examples."""
    where = {c: k for k, members in enumerate(fresh) for c in members}
    for members in before:
        absent = [c for c in members if c not in where]
        went: dict[int, int] = {}
        for c in members:
            if c in where:
                went[where[c]] = went.get(where[c], 0) + n.get(c, 0)
        if absent and went:
            fresh[max(went, key=lambda k: (went[k], -k))] += absent
        elif absent:
            fresh.append(absent)
    return tuple(sorted(tuple(sorted(members)) for members in fresh))


def _named(merges: Sequence[GroupMerge], clients: Sequence[ClientId]) -> tuple[GroupMerge, ...]:
    return tuple(
        GroupMerge((clients[m.merge[0]], clients[m.merge[1]]), _finite(m.benefit), _finite(m.utility)) for m in merges
    )


def _finite(value: float | None, digits: int | None = None) -> float | None:
    """Return the number if JSON can hold it."""
    if value is None or not math.isfinite(value):
        return None
    return value if digits is None else round(value, digits)


# ---------------------------------------------------------------- variants
HCCT_E = variant(
    HCCT, "HCCT_E", "HCCT-E: HCCT that compares one layer, by default the one that tells clients apart most.",
    layer="telling",
)  # fmt: skip
HCCT_P = variant(HCCT, "HCCT_P", "HCCT-P: HCCT whose heads stay with the clients.", personal=("head",))
