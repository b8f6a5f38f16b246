"""STC: both ways, only the largest entries of updates travel, as signs and one magnitude; the rest is kept for later.

F. Sattler, S. Wiedemann, K.-R. Müller, W. Samek, "Robust and Communication-Efficient Federated Learning From Non-i.i.d.
Data", IEEE TNNLS 2020, Algorithm 2.  Equation numbers are this file's; server/ternary.py has the compression itself.

Notation   W      global parameters; every client that takes part has a replica of them
           D_k    W_k - W, client k's update
           A_k    client k's residual, not sent yet, kept between rounds, 0 at first;  A  the same on the server
           C_p    sparse ternary compression, which keeps a share p of the entries
           S, M   clients that replied, their number
Client     A_k <- A_k + D_k;  u_k = C_p_up(A_k);  A_k <- A_k - u_k                                   (1)
Server     A <- A + 1/M sum_{k in S} u_k;  u = C_p_down(A);  A <- A - u;  W <- W + u                 (2)
Replicas   W <- W + u on every client that gets u, with the same bits as on the server               (3)
Absentees  A client that missed updates is sent these, one by one, or the whole model, whichever is smaller.  (A sum of
           ternary updates is no longer ternary and takes more bits.)  The server keeps the last updates while together
           they are smaller than the model (payloads, without the wire's headers): about 1100 at p = 1/400.  Before
           round 1 each client builds its replica by itself.
Departures A lost reply has no effect: the client also remembers A_k from before, and the server says which reply it
           received last, as in SCAFFOLD; so (4) holds whatever is lost.
           sum of all u_k received + A_k = sum of all D_k of these replies;  sum of all u + A = sum of all means   (4)
           The model starts from fresh momentum in every round; the published simulator keeps it.
           The paper takes one mini-batch step a round, `local_steps = 1`; here `local` says, as for every method.
           Buffers are not compressed: they travel whole, down and up, and take the mean; the published code leaves them
           alone.  Tensors that are not trained do not travel.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from unskew.algorithms.fedavg import Weighting, mean_of
from unskew.algorithms.parts import OneModel, acknowledged, corrected
from unskew.errors import ProtocolError, WireError
from unskew.protocol import ClientId, Federation, Layout, Me, Plan, SampleCount, SgdConfig, Step, ask, sgd, step
from unskew.server.ternary import Scheme, Sparse, compress, decompress
from unskew.tree import Params, leaves, map_params, zeros_like

Share = Annotated[float, Interval(gt=0.0, le=1.0)]
NEVER = -1


@dataclass(frozen=True)
class STCState:
    """The server's state.

    Attributes:
        params: The model.
        residual: A, not sent yet.
        recent: The last updates, oldest first, as many as are together smaller than the model.
        version: Number of updates so far.
        heard: Version at which each client last replied; clients that never replied are missing.
    """

    params: Params
    residual: Params
    recent: tuple[Sparse, ...]
    version: int
    heard: dict[int, int]


@dataclass(frozen=True)
class STCMessage:
    """Message that brings a client's replica up to the server's model.

    Attributes:
        version: Version of the model.
        heard: Version at which this client last replied; -1 is never.
        updates: The last updates up to `version`, oldest first.
        whole: Uncompressed tensors: the buffers, and all others if they are smaller than the updates missed.
    """

    version: int
    heard: int
    updates: tuple[Sparse, ...]
    whole: Params


@dataclass(frozen=True)
class STCReply:
    """A client's compressed update, its buffers and its training examples."""

    update: Sparse
    buffers: Params
    n: SampleCount


@dataclass(frozen=True)
class STCMemory:
    """A client's memory.

    Attributes:
        params: The model at `version`.
        residual: A_k after the update of that version.
        before: A_k before it.
        version: Number of the server's updates in `params`.
    """

    params: Params
    residual: Params
    before: Params
    version: int


@dataclass(frozen=True)
class STC(OneModel):
    """Sparse ternary compression with error feedback, both ways.

    Attributes:
        p_up, p_down: Share of the entries that travels to and from the server.
        ternary: Send one magnitude for all entries of a block; without it their values.  `p = 1` without it is FedAvg.
        flatten: Compress the whole update as one block; without it each tensor, with at least one entry each.
        local: The clients' optimisation, any.
        weighting: "uniform" as published, "samples" by training examples.
    """

    p_up: Share = 1 / 400
    p_down: Share = 1 / 400
    ternary: bool = True
    flatten: bool = False
    local: SgdConfig = SgdConfig()
    weighting: Weighting = "uniform"

    @property
    def up(self) -> Scheme:
        """Compression of the clients' updates."""
        return Scheme(self.p_up, self.ternary, self.flatten)

    @property
    def down(self) -> Scheme:
        """Compression of the server's updates."""
        return Scheme(self.p_down, self.ternary, self.flatten)

    def init(self, params: Params, fed: Federation) -> STCState:
        """Return the initial model, of which every client has a replica."""
        return STCState(params, zeros_like(self.compressed(params, fed.layout)), (), 0, {})

    def round(self, state: STCState, fed: Federation) -> Plan[STCState]:
        """Bring a cohort up to date; compress the mean of the replies, to be sent next time (eq. 2).

        Raises:
            WireError: If a reply is not a compressed update; names the client.
        """
        cohort = fed.sample()
        # Clients at the same version are sent the same object, which is counted once.
        news = {at: self.news(state, at, fed.layout) for at in {state.heard.get(c, NEVER) for c in cohort}}
        like = state.residual
        updates = mean_of(lambda c, r: self.received(r.update, like, c, fed.round), self.weighting)
        to = {c: news[state.heard.get(c, NEVER)] for c in cohort}
        answer = yield from ask(self.train, to, reduce=(updates, mean_of("buffers", self.weighting)))
        mean, buffers = answer.values
        total = map_params(torch.add, state.residual, mean)
        update = compress(total, self.down)
        sent = decompress(update, like, self.down)
        return STCState(
            {name: buffers.get(name, t) for name, t in applied(state.params, sent).items()},
            map_params(torch.sub, total, sent),
            kept((*state.recent, update), payload(like)),
            state.version + 1,
            {**state.heard, **dict.fromkeys(answer.replies, state.version)},
        )

    @step
    def train(self, me: Me, msg: STCMessage, memory: STCMemory | None) -> Step[tuple[STCReply, STCMemory | None]]:
        """Train the updated replica, then compress the update (eq. 1, 3)."""
        w = self.updated(me, msg, memory)
        before = self.residual(me, msg, memory)
        y = yield from sgd(w, self.local)
        total = {n: a + (y[n] - w[n]) for n, a in before.items()}
        update = compress(total, self.up)
        residual = map_params(torch.sub, total, decompress(update, total, self.up))
        buffers = {n: y[n] for n in me.layout.buffers}
        return STCReply(update, buffers, me.n), STCMemory(w, residual, before, msg.version)

    def news(self, state: STCState, heard: int, layout: Layout) -> STCMessage:
        """Return the message for a client that last replied at version `heard`."""
        missed = state.version - max(heard, 0)
        buffers = {n: state.params[n] for n in layout.buffers} if state.version else {}
        if missed > len(state.recent):
            return STCMessage(state.version, heard, (), {n: state.params[n] for n in (*state.residual, *buffers)})
        updates = state.recent[len(state.recent) - missed :]
        return STCMessage(state.version, heard, updates, buffers)

    def updated(self, me: Me, msg: STCMessage, memory: STCMemory | None) -> Params:
        """Bring this client's replica to the server's version (eq. 3).

        Raises:
            ProtocolError: If the message does not lead there from this client's version.
        """
        params, version = (me.initial, 0) if memory is None else (memory.params, memory.version)
        compressed = self.compressed(params, me.layout)
        # A client whose last reply was lost is ahead of what the server knows, and has some of the updates already.
        news = msg.updates[len(msg.updates) - min(msg.version - version, len(msg.updates)) :]
        if version + len(news) != msg.version and not msg.whole.keys() >= compressed.keys():
            raise ProtocolError(
                f"client {me.id} has the model of version {version} and was sent {len(msg.updates)} updates up to "
                f"version {msg.version}; its memory was lost, or is that of another run"
            )
        for update in news:
            params = applied(params, decompress(update, compressed, self.down))
        return {n: msg.whole.get(n, t) for n, t in params.items()}

    def residual(self, me: Me, msg: STCMessage, memory: STCMemory | None) -> Params:
        """Return A_k as of the last reply the server received."""
        if memory is None:
            return zeros_like(self.compressed(me.initial, me.layout))
        return acknowledged(memory.residual, memory.before, memory.version, msg.heard)

    def received(self, update: Sparse, like: Params, client: ClientId, round: int) -> Params:
        """Decompress a client's update, with checks, since it comes from another machine."""
        try:
            return decompress(update, like, self.up)
        except WireError as error:
            raise WireError(f"round {round}, client {client}: {error}") from None

    def validate_reply(self, step: str, reply: STCReply, model: Params, layout: Layout) -> None:
        """Refuse replies that cannot be decompressed, or lack buffers, before the plan uses them."""
        decompress(reply.update, self.compressed(model, layout), self.up)
        if reply.buffers.keys() != set(layout.buffers):
            raise WireError(f"an upload brings the buffers {list(layout.buffers)}, got {list(reply.buffers)}")

    def compressed(self, params: Params, layout: Layout) -> Params:
        """Return the tensors that are compressed: parameters that local training may change."""
        return {n: params[n] for n in corrected(layout, self.local)}


def applied(params: Params, update: Params) -> Params:
    """Add an update of some tensors to `params`."""
    return {n: t + update[n] if n in update else t for n, t in params.items()}


def kept(updates: tuple[Sparse, ...], limit: int) -> tuple[Sparse, ...]:
    """Return the last updates, as many as have together less than `limit` bytes."""
    total = 0
    for i, update in enumerate(reversed(updates)):
        total += payload(update)
        if total >= limit:
            return updates[len(updates) - i :]
    return updates


def payload(message: Sparse | Params) -> int:
    """Count the bytes of a message's tensors."""
    return sum(t.numel() * t.element_size() for _, t in leaves(message) if isinstance(t, Tensor))
