"""FedFomo: a client weights the models of others by how much better they are on its own data.

M. Zhang, K. Sapra, S. Fidler, S. Yeung, J. M. Alvarez, "Personalized Federated Learning with First Order Model
Optimization", ICLR 2021, Algorithm 1.  Equation numbers are this file's.

Notation   w      client i's own model;  w_j  model of another client, as it last sent it;  F_i  its loss
           P_ij   affinity of client i to model j, the sum of the weights so far
Server     sends a client the `others` models it has most affinity to; one in `1 / epsilon` is drawn by chance instead
Client     x_j = max(0, F_i(w) - F_i(w_j)) / ||w_j - w||, shares x_j / sum x                             (1)
           w <- w + sum_j share_j (w_j - w), then w <- LocalSGD(w; F_i)                                  (2)
Server     P_ij <- P_ij + share_j
Departures F_i is the loss on one of `hold_out` training examples, on which the client does not train: on what it
           trains on its own model is always ahead.  A client with fewer examples has none held out.  P grows by the
           shares, which are between 0 and 1.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from annotated_types import Ge, Interval

from unskew.algorithms.fedexp import squares
from unskew.algorithms.parts import OwnModels
from unskew.protocol import Batch, ClientId, Federation, Fitted, Me, Plan, Sgd, SgdConfig, Step, ask, fold, step
from unskew.reduction import weighted_mean
from unskew.schema import Search
from unskew.tree import Params


@dataclass(frozen=True)
class FedFomoState:
    """The server's state: the clients' models, and each one's affinity to others."""

    models: dict[ClientId, Params]
    affinity: dict[ClientId, dict[ClientId, float]]


@dataclass(frozen=True)
class OthersMessage:
    """Models of other clients, and whose they are."""

    models: tuple[Params, ...]
    clients: tuple[ClientId, ...]


@dataclass(frozen=True)
class FomoReply:
    """A client's own model after local training, and the shares it gave to others' models, by client."""

    params: Params
    shares: dict[ClientId, Annotated[float, Interval(ge=0.0, le=1.0)]]


@dataclass(frozen=True)
class FedFomo(OwnModels):
    """First-order mixtures of other clients' models.

    Attributes:
        others: Models that a client is sent in a round.
        epsilon: Share of them that is drawn by chance.
        hold_out: One of this many training examples is held out.
        local: The clients' optimisation.
    """

    others: Annotated[int, Ge(0), Search(1, 10, whole=True)] = 5
    epsilon: Annotated[float, Interval(ge=0.0, le=1.0)] = 0.3
    hold_out: Annotated[int, Ge(2)] = 5
    local: SgdConfig = SgdConfig()

    def init(self, params: Params, fed: Federation) -> FedFomoState:
        """Return no models."""
        return FedFomoState({}, {})

    def round(self, state: FedFomoState, fed: Federation) -> Plan[FedFomoState]:
        """Send each client of a cohort models of others; keep what comes back."""
        chosen = {c: self.chosen(c, state, fed) for c in fed.sample()}
        to = {c: OthersMessage(tuple(state.models[j] for j in of), of) for c, of in chosen.items()}
        replies = yield from ask(self.train, to)
        affinity = dict(state.affinity)
        for c, reply in replies.items():
            before = affinity.get(c, {})
            affinity[c] = {**before, **{j: before.get(j, 0.0) + reply.shares.get(j, 0.0) for j in chosen[c]}}
        return FedFomoState({**state.models, **{c: r.params for c, r in replies.items()}}, affinity)

    def chosen(self, client: ClientId, state: FedFomoState, fed: Federation) -> tuple[ClientId, ...]:
        """Choose the clients whose models a client is sent, ascending."""
        there = [c for c in state.models if c != client]
        draw = torch.rand(2, len(there), generator=(fed.key / "others" / client).generator()).tolist()
        known = state.affinity.get(client, {})
        by_chance = {c: u for c, u, v in zip(there, *draw, strict=True) if v < self.epsilon}
        rank = {c: (c not in by_chance, -by_chance.get(c, 0.0), -known.get(c, 0.0), c) for c in there}
        few = sorted(by_chance, key=lambda c: rank[c])[: round(self.epsilon * self.others)]
        rest = sorted((c for c in there if c not in few), key=lambda c: (-known.get(c, 0.0), c))
        return tuple(sorted([*few, *rest][: self.others]))

    @step
    def train(self, me: Me, msg: OthersMessage, memory: Params | None) -> Step[tuple[FomoReply, Params]]:
        """Mix the models (eq. 1, 2), then train."""
        w = memory or me.initial
        shares = torch.zeros(len(msg.models), dtype=torch.float64)
        held = torch.arange(1, me.n + 1) % self.hold_out == 0
        every = self.hold_out if bool(held.any()) else 1
        if msg.models:
            mine, gains = (yield from held_out_loss(w, every, me.n)), []
            for other in msg.models:
                apart = float(squares({n: other[n] - w[n] for n in me.layout.trainable})) ** 0.5
                better = mine - (yield from held_out_loss(other, every, me.n))
                gains.append(max(better, 0.0) / apart if apart else 0.0)
            shares = torch.tensor(gains, dtype=torch.float64)
            shares = shares / shares.sum().clamp(min=1e-12)
            kept = 1.0 - float(shares.sum())
            w = weighted_mean([w, *msg.models], [max(kept, 0.0), *shares.tolist()])
        fitted: Fitted = yield Sgd(w, self.local, rows=(~held).nonzero()[:, 0] if every > 1 else None)
        return FomoReply(fitted.params, dict(zip(msg.clients, shares.tolist(), strict=True))), fitted.params

    def serve(self, state: FedFomoState, client: ClientId | None) -> Params | None:
        """Return a client's own model, or the mean of all for one that has none; there is no global one."""
        if client is None or not state.models:
            return None
        return state.models.get(client) or weighted_mean([*state.models.values()], [1.0] * len(state.models))


def held_out_loss(params: Params, every: int, n: int) -> Step[float]:
    """Compute F_i: the mean loss on one of `every` training examples, in evaluation mode."""
    _, total = yield from fold(partial(add_held_out, every), params, (0, 0.0))
    return float(total) / (n // every)


def add_held_out(every: int, tally: Any, batch: Batch) -> Any:
    """Add a batch to (examples seen, sum of the held-out ones' losses)."""
    seen, total = tally
    place = seen + (batch.mask > 0).cumsum(0)
    chosen = (batch.mask > 0) & (place % every == 0)
    return place[-1], total + torch.where(chosen, batch.loss.double(), 0.0).sum()
