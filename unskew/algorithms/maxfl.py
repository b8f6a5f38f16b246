"""MAXFL: a global model that is good enough for as many clients as possible.

Y. J. Cho, D. Jhunjhunwala, T. Li, V. Smith, G. Joshi, "To Federate or Not To Federate: Incentivizing Client
Participation in Federated Learning", arXiv 2205.14840 v1, 2022; later "Maximizing Global Model Appeal in Federated
Learning", TMLR 2024.  Equation numbers are this file's.

Notation   F_k      mean loss on client k's training data, in evaluation mode
           rho_k    client k's requirement: w appeals to it iff F_k(w) < rho_k
           what_k   a model that client k briefly trained by itself from the common initial one
           S        clients that replied;  sigma the logistic function
Aim        max_w of the number of clients to which w appeals, smoothed: min_w 1/N sum_k sigma(F_k(w) - rho_k)
`maxfl`    z_k = F_k(w) - rho_k at the received w,  q_k = sigma(z_k) (1 - sigma(z_k))                   (1)
           y_k = LocalSGD(w; F_k)
           w <- w + server_lr / (sum_S q_k + epsilon) sum_S q_k (y_k - w)                            (2)
           rho_k = F_k(what_k), with what_k trained when it is first needed, at the learning rate in force then,
           and kept on the client                                                                    (3)
           q_k is the derivative of sigma: clients far from their requirement on either side hardly count.  Early on
           they all may be far, and w would stay where it is, so the first `warmup` rounds are FedAvg.
`maxfl_hcct`  The baseline of HCCT's tables.  Each round a client takes the global model w and decides:
           F_k(w) < rho_k     it trains w and sends the result; w <- mean of what was sent, by examples (4)
           otherwise          it continues with its own model, which is w if it was in the group before
           rho_k is eq. 3, or a fixed loss, or as in HCCT's code ||what_k - w||^2, a squared distance  (5)
Departures What is open in the first paper: epsilon = .01, server_lr = 1, 5 rounds of warm-up and one round's worth of
           local training are ours.  Buffers take FedAvg's mean and do not count in (5); HCCT's code has them in it.
           HCCT's text says "a threshold" and leaves it open; (5) compares a loss with a distance, in other units.  Its
           code averages all clients in the first round, which is `warmup = 1`, and trains what_k as long as the whole
           run.  There all clients decide in every round; here the round's cohort does, the others stay as they were.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt
from jaxtyping import Float
from torch import Tensor

from unskew.algorithms.fedavg import Weighting, completed, mean_of, only, sent_part, without
from unskew.algorithms.oneshot import longer
from unskew.algorithms.parts import OneModel, train_loss
from unskew.errors import ConfigError, WireError
from unskew.info import Appeals, ChosenGroups, Refused
from unskew.protocol import ClientId, Federation, Layout, Me, Model, Plan, SampleCount, SgdConfig, Step, ask, sgd, step
from unskew.reduction import ByClient, Each, MeanOf, SumOf
from unskew.schema import Search
from unskew.tree import Params, require_names


@dataclass(frozen=True)
class MAXFLMessage:
    """The global model, and whether clients should evaluate it; during warm-up they do not."""

    params: Params
    judge: bool


@dataclass(frozen=True)
class Appeal:
    """Weight of the global model's loss at a client (eq. 1), float64, and whether the model is good enough."""

    q: Float[Tensor, ""]  # not a float: its size on the wire depends on its digits
    met: bool


# ---------------------------------------------------------------- as published
@dataclass(frozen=True)
class MAXFLState:
    """The server's state.

    Attributes:
        params: The model.
        appeals: Clients' evaluations of the previous model in this round.
        ignored: Clients that should have evaluated it and did not.
    """

    params: Params
    appeals: dict[int, Appeal]
    ignored: tuple[int, ...] = ()


@dataclass(frozen=True)
class MAXFLReply:
    """A trained model, its training examples, and the client's evaluation of the received model."""

    params: Model
    n: SampleCount
    appeal: Each[Appeal | None]


@dataclass(frozen=True)
class MAXFLMemory:
    """A client's memory: its requirement, and the model behind it if that is to be used."""

    rho: float
    model: Params | None


@dataclass(frozen=True)
class MAXFL(OneModel):
    """MAXFL as published.

    Attributes:
        rho: The clients' requirement: "local_loss" is eq. 3, a number the same loss for all.
        solo_rounds: Amount of local work behind eq. 3, in rounds.
        warmup: Number of initial rounds of FedAvg.
        server_lr: Server learning rate of the parameters.
        epsilon: Added to the sum of weights.
        preferred: Let each client use the better, on its training data, of the global model and its locally trained
            one.
        local: The clients' optimisation.

    Raises:
        ConfigError: If clients are asked to prefer a model that they do not train.
    """

    rho: float | Literal["local_loss"] = "local_loss"
    solo_rounds: Annotated[int, Ge(1)] = 1
    warmup: Annotated[int, Ge(0)] = 5
    server_lr: Annotated[float, Gt(0.0), Search(0.1, 2)] = 1.0
    epsilon: Annotated[float, Gt(0.0)] = 0.01
    preferred: bool = False
    local: SgdConfig = SgdConfig()

    def __post_init__(self) -> None:
        if self.preferred and self.rho != "local_loss":
            raise ConfigError(
                f"preferred needs the model each client trains alone, which rho = {self.rho:g} does not; "
                "set rho to 'local_loss' or leave preferred out"
            )

    def init(self, params: Params, fed: Federation) -> MAXFLState:
        """Return the initial model."""
        return MAXFLState(params, {})

    def round(self, state: MAXFLState, fed: Federation) -> Plan[MAXFLState]:
        """Send the model to a cohort; follow mostly clients for which it is nearly good enough (eq. 2)."""
        judge = fed.round > self.warmup

        def move(c: ClientId, r: MAXFLReply) -> Params:
            return {n: r.params[n] - state.params[n] for n in fed.layout.trainable}

        answer = yield from ask(
            self.train,
            dict.fromkeys(fed.sample(), MAXFLMessage(state.params, judge)),
            reduce=(
                MeanOf("params", "n", by=lambda c, r: r.appeal is not None or not judge),
                SumOf(move, lambda c, r: r.appeal.q, by=lambda c, r: r.appeal is not None),
            ),
        )
        means, moved = answer.values
        appeals = {c: r.appeal for c, r in answer.replies.items() if r.appeal is not None}
        ignored = tuple(c for c in answer.replies if c not in appeals) if judge else ()
        if not means:
            return MAXFLState(state.params, {}, ignored)
        if not judge:
            return MAXFLState(means[True], {})
        scale = self.server_lr / (sum(float(a.q) for a in appeals.values()) + self.epsilon)
        change = moved.get(True) or {n: torch.zeros_like(state.params[n]) for n in fed.layout.trainable}
        params = {n: state.params[n] + scale * change[n] if n in change else t for n, t in means[True].items()}
        return MAXFLState(params, appeals, ignored)

    @step
    def train(
        self, me: Me, msg: MAXFLMessage, memory: MAXFLMemory | None
    ) -> Step[tuple[MAXFLReply, MAXFLMemory | None]]:
        """Train from the received model, and evaluate it (eq. 1)."""
        y = yield from sgd(msg.params, self.local)
        if not msg.judge:
            return MAXFLReply(y, me.n, None), memory
        if self.rho == "local_loss":
            if memory is None:
                alone = yield from sgd(me.initial, longer(self.local, self.solo_rounds))
                memory = MAXFLMemory((yield from train_loss(me, alone)), alone if self.preferred else None)
            rho = memory.rho
        else:
            rho = self.rho
        z = (yield from train_loss(me, msg.params)) - rho
        return MAXFLReply(y, me.n, Appeal(torch.tensor(slope(z), dtype=torch.float64), z < 0.0)), memory

    def validate_reply(self, step: str, reply: MAXFLReply, model: Params, layout: Layout) -> None:
        """Refuse a weight that is not a slope of the logistic function."""
        if reply.appeal is not None and not 0.0 <= float(reply.appeal.q) <= 0.25:
            raise WireError(f"a weight must be 0 to 0.25, got {float(reply.appeal.q):g}")

    def personalise(self, me: Me, params: Params, memory: MAXFLMemory | None) -> Step[Params]:
        """Return the global model; with `preferred` this client's own if that is no worse."""
        if memory is None or memory.model is None:
            return params
        return params if (yield from train_loss(me, params)) < memory.rho else memory.model

    def info(self, state: MAXFLState) -> Appeals:
        """Report the weight of each client that replied, and the share for which the model was good enough."""
        a = state.appeals
        total = sum(float(appeal.q) for appeal in a.values())
        warnings = []
        if a and total < self.epsilon:
            warnings.append(
                f"the weights of MAXFL's clients sum to less than epsilon = {self.epsilon:g}: the global model is far "
                "from what they require and hardly moves; lower epsilon or warm up longer"
            )
        return Appeals(
            weights={c: float(appeal.q) / (total + self.epsilon) for c, appeal in a.items()},
            met={c: appeal.met for c, appeal in a.items()},
            appeal=sum(appeal.met for appeal in a.values()) / len(a) if a else None,
            ignored=tuple(Refused(c, "train", "did not judge the model") for c in state.ignored),
            warnings=tuple(warnings),
        )


def slope(z: float) -> float:
    """Compute sigma'(z) = sigma(z) (1 - sigma(z)): 1/4 at 0, even, without overflow (eq. 1).

    >>> slope(0.0), slope(1000.0)
    (0.25, 0.0)
    """
    small = math.exp(-abs(z))
    return small / (1.0 + small) ** 2


# ---------------------------------------------------------------- as in HCCT's tables
@dataclass(frozen=True)
class MAXFLGroupState:
    """The server's state.

    Attributes:
        params: The group's model.
        joined: True for each client that was in the group in its last round; has every client that has replied.
        heard: Clients that replied in this round.
        judged: True if they had a choice.
    """

    params: Params
    joined: dict[int, bool]
    heard: tuple[int, ...] = ()
    judged: bool = False


@dataclass(frozen=True)
class MAXFLGroupReply:
    """A trained model for the group, or nothing from a client outside it; and its training examples."""

    params: Model | None
    n: SampleCount


@dataclass(frozen=True)
class MAXFLGroupMemory:
    """A client's memory.

    Attributes:
        own: Its model while it is outside the group; inside, its own tensors, if it has any.
        rho: Its requirement by eq. 3, once known.
        prior: Model it trained by itself at first, for eq. 5.
        alone: True while it is outside the group.
    """

    own: Params | None
    rho: float | None
    prior: Params | None
    alone: bool = False


@dataclass(frozen=True)
class MAXFL_HCCT:
    """MAXFL as HCCT compares with it: those whose requirement the global model meets train it, the others their own.

    Attributes:
        threshold: "local_loss" is eq. 3, "sqdist" eq. 5, a number a loss that is the same for all; infinity, which a
            file cannot express, puts all clients in the group, and minus infinity none.
        solo_rounds: Amount of local work behind eq. 3 and 5, in rounds.
        warmup: Number of initial rounds in which all clients are in the group.
        local: The clients' optimisation.
        weighting: Weights of the group's models: "samples" by training examples, "uniform" all equal.
        personal: Tensors that stay with each client, as in FedAvg, also from joining to leaving and back.
    """

    threshold: float | Literal["local_loss", "sqdist"] = "local_loss"
    solo_rounds: Annotated[int, Ge(1)] = 1
    warmup: Annotated[int, Ge(0)] = 5
    local: SgdConfig = SgdConfig()
    weighting: Weighting = "samples"
    personal: tuple[str, ...] = ()

    def init(self, params: Params, fed: Federation) -> MAXFLGroupState:
        """Return the initial model, without the tensors that stay on clients."""
        return MAXFLGroupState(sent_part(params, fed.layout, self.personal), {})

    def round(self, state: MAXFLGroupState, fed: Federation) -> Plan[MAXFLGroupState]:
        """Offer the model to a cohort; average the models of the clients that join (eq. 4)."""
        judge = fed.round > self.warmup

        def joins(c: ClientId, r: MAXFLGroupReply) -> bool:
            return r.params is not None

        answer = yield from ask(
            self.train,
            dict.fromkeys(fed.sample(), MAXFLMessage(state.params, judge)),
            at_least=0,
            reduce=(mean_of("params", self.weighting, by=joins), ByClient(joins)),
        )
        means, joined = answer.values
        params = means.get(True, state.params)
        return MAXFLGroupState(params, {**state.joined, **joined}, tuple(answer.replies), judge)

    @step
    def train(
        self, me: Me, msg: MAXFLMessage, memory: MAXFLGroupMemory | None
    ) -> Step[tuple[MAXFLGroupReply, MAXFLGroupMemory | None]]:
        """Decide, then train the group's model or this client's own."""
        personal = me.layout.select(self.personal)
        memory = memory or MAXFLGroupMemory(None, None, None)
        offered = completed(me, msg.params, personal, memory.own)
        joins = True
        if msg.judge:
            memory = yield from self.with_requirement(me, memory)
            joins = (yield from train_loss(me, offered)) < self.requirement(me, offered, memory)
        y = yield from sgd(memory.own if memory.alone and memory.own and not joins else offered, self.local)
        kept = only(y, personal) if joins else y
        sent = without(y, personal) if joins else None
        return MAXFLGroupReply(sent, me.n), MAXFLGroupMemory(kept, memory.rho, memory.prior, not joins)

    def validate_reply(self, step: str, reply: MAXFLGroupReply, model: Params, layout: Layout) -> None:
        """Refuse incomplete models: if only one client joins, no other model shows which parts are missing."""
        if reply.params is not None:
            require_names(reply.params, without(model, layout.select(self.personal)), "a model")

    def with_requirement(self, me: Me, memory: MAXFLGroupMemory) -> Step[MAXFLGroupMemory]:
        """Return this client's memory, completed by the basis of its requirement."""
        if not isinstance(self.threshold, str) or memory.rho is not None or memory.prior is not None:
            return memory
        alone = yield from sgd(me.initial, longer(self.local, self.solo_rounds))
        if self.threshold == "sqdist":
            return MAXFLGroupMemory(memory.own, None, alone, memory.alone)
        return MAXFLGroupMemory(memory.own, (yield from train_loss(me, alone)), None, memory.alone)

    def requirement(self, me: Me, params: Params, memory: MAXFLGroupMemory) -> float:
        """Return rho_k: a number, or by eq. 3 or 5."""
        if memory.prior is not None:
            return squared_distance(memory.prior, params, me.layout.trainable)
        return memory.rho if memory.rho is not None else float(self.threshold)

    def personalise(self, me: Me, params: Params, memory: MAXFLGroupMemory | None) -> Step[Params]:
        """Return the group's model, or this client's own while it is outside the group."""
        yield from ()
        if memory is not None and memory.alone and memory.own is not None:
            return memory.own
        return completed(me, params, me.layout.select(self.personal), memory.own if memory else None)

    def serve(self, state: MAXFLGroupState, client: ClientId | None) -> Params | None:
        """Return the group's model; None for the server itself while parts of the model live on clients."""
        return None if client is None and self.personal else state.params

    def info(self, state: MAXFLGroupState) -> ChosenGroups:
        """Report the group first, then every client outside it, by their last decisions."""
        together = tuple(c for c in sorted(state.joined) if state.joined[c])
        groups = (together, *((c,) for c in sorted(state.joined) if not state.joined[c]))
        warnings = []
        if state.judged and state.heard and not together:
            warnings.append(
                "MAXFL's global model meets nobody's requirement, so nobody trains it any more: it is local training "
                "from here on; raise the threshold or warm up longer"
            )
        return ChosenGroups(
            groups=groups,
            chosen={c: j for j, members in enumerate(groups) for c in members},
            heard=tuple(state.heard),
            judged=state.judged,
            warnings=tuple(warnings),
        )


def squared_distance(a: Mapping[str, Any], b: Mapping[str, Any], names: tuple[str, ...]) -> float:
    """Compute ||a - b||^2 over the named tensors."""
    return float(sum((a[n] - b[n]).double().square().sum() for n in names))
