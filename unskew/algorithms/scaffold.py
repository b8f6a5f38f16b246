"""SCAFFOLD: control variates remove the client's own drift from each local step.

S. P. Karimireddy, S. Kale, M. Mohri, S. Reddi, S. Stich, A. T. Suresh, "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning", ICML 2020, Algorithm 1.  Equation numbers are this file's.

Notation   x      global trainable parameters;  c    server's control variate, the mean of all clients'
           y_i    client i's parameters;        c_i  its control variate, kept between rounds, 0 at first
           g_i    mini-batch gradient of client i
           N, M   clients in total; clients that replied
           omega_i  n_i over the mean of all n; 1 unless `scaled`
           a      weight of each gradient in the displacement (fednova.py, eq. 2); ||a||_1 = K for K plain steps
Client     y_i <- y_i - eta (g_i(y_i) - c_i + c), K times from x                                   (1)
           option I   c_i+ = grad F_i(x), one more pass over the data                              (2)
           option II  c_i+ = c_i - c + (x - y_i) / (eta ||a||_1)                                   (3)
Server     x <- x + server_lr / M sum_i (y_i - x)                                                  (4)
           c <- c + 1/N sum_i omega_i (c_i+ - c_i)                                                 (5)
Means      Uniform, as published; `weighting = "samples"` weights eq. 4 by examples.  Where training ends is not up to
           eq. 4 but to c, which is zero there: at the optimum of the plain mean of the clients' losses, with `scaled`
           at that of their mean by examples, which is FedAvg's.  The code published with FedDyn scales eq. 5 so; beside
           that it divides c by omega_i in eq. 1, which ends at the same point.
Departures Every client declares n_i once; until all have, omega_i is over the mean of those known.
           Under momentum the paper's divisor K eta would inflate c_i; ||a||_1 makes eq. 3 a mean of gradients again.
           A client also remembers its variate from before its last reply, and the server says which it received last:
           a lost reply has no effect, so c = mean(c_i) holds whatever is lost (one integer per message).
           Where a wrapper changes the upload on its way out (clipping, quantisation), c_i+ is c_i plus what was really
           sent, for the same reason.
           Weight decay: in eq. 3 the gradient contains decay * y, c_i then belongs to F_i + decay/2 ||y||^2; eq. 2 has
           only grad F_i.  The steps contain the decay either way, once: from c - c_i the common part cancels.
           Eq. 2 is taken in evaluation mode.  Buffers have no variate and take the uniform mean.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt
from torch import Tensor

from unskew.algorithms.fedavg import Weighting, mean_of
from unskew.algorithms.fednova import require_linear, work
from unskew.algorithms.parts import OneModel, SizeReply, acknowledged, corrected, sizes
from unskew.errors import WireError
from unskew.protocol import (
    Aux,
    Federation,
    Layout,
    Local,
    Me,
    Model,
    Plan,
    SampleCount,
    SgdConfig,
    Step,
    Update,
    ask,
    fit,
    run,
    step,
)
from unskew.reduction import SumOf
from unskew.schema import Search
from unskew.tree import Params, map_params, require_names, zeros_like


@dataclass(frozen=True)
class SCAFFOLDState:
    """The server's state.

    Attributes:
        params: The model.
        c: Mean of the clients' control variates.
        heard: Round of each client's last reply; clients that never replied are missing.
        n: Training examples by client, as far as declared; empty unless `scaled`.
    """

    params: Params
    c: Params
    heard: dict[int, int]
    n: dict[int, int]


@dataclass(frozen=True)
class SCAFFOLDMessage:
    """Model and control variate for one client, and the round of its last reply; 0 is none."""

    params: Model
    c: Params
    heard: int


@dataclass(frozen=True)
class SCAFFOLDReply:
    """Changes of a client's model (buffers included) and control variate, and its examples if means use them."""

    dy: Update
    dc: Update
    n: SampleCount | None = None


@dataclass(frozen=True)
class SCAFFOLDMemory:
    """A client's memory: its control variate, the one before, and the round between the two."""

    c: Params
    before: Params
    round: int


@dataclass(frozen=True)
class Correction:
    """<y, c - c_i>: its gradient turns g_i into g_i - c_i + c (eq. 1)."""

    def __call__(self, params: Params, aux: Aux) -> Tensor:
        """A scalar."""
        return torch.stack([(params[n] * d).sum() for n, d in aux["correction"].items()]).sum()

    def gradient(self, params: Params, aux: Aux) -> Params:
        """c - c_i."""
        correction: Params = aux["correction"]
        return correction


@dataclass(frozen=True)
class SCAFFOLD(OneModel):
    """Stochastic controlled averaging.

    Attributes:
        option: Update of a client's variate: "II" from its displacement, "I" by a full gradient at the received model.
            "I" costs a pass over the data and works with any optimiser.
        server_lr: Server learning rate.
        local: The clients' optimisation; option II needs SGD, plain or with momentum, without clipping.
        weighting: Weights of the models: "uniform" as published, or "samples".
        scaled: Weight the variates in c by examples, which every client declares once (eq. 5).

    Raises:
        ConfigError: If option II is used with an optimiser whose displacement is not a sum of gradients.
    """

    option: Literal["I", "II"] = "II"
    server_lr: Annotated[float, Gt(0.0), Search(0.1, 2)] = 1.0
    local: SgdConfig = SgdConfig()
    weighting: Weighting = "uniform"
    scaled: bool = False

    def __post_init__(self) -> None:
        if self.option == "II":
            require_linear(self.local, "SCAFFOLD's option II")

    def init(self, params: Params, fed: Federation) -> SCAFFOLDState:
        """Return the initial model, c = 0."""
        return SCAFFOLDState(params, zeros_like({n: params[n] for n in corrected(fed.layout, self.local)}), {}, {})

    def round(self, state: SCAFFOLDState, fed: Federation) -> Plan[SCAFFOLDState]:
        """Send model and variate to a cohort; update both from the replies (eq. 4, 5)."""
        n = (yield from sizes(self.declare, state.n, fed)) if self.scaled else state.n
        to = {c: SCAFFOLDMessage(state.params, state.c, state.heard.get(c, 0)) for c in fed.sample()}
        variates = SumOf("dc", "n" if self.scaled else None)
        answer = yield from ask(self.train, to, reduce=(mean_of("dy", self.weighting), variates))
        mean, dc = answer.values
        x = {n: w + (self.server_lr if n in fed.layout.trainable else 1.0) * mean[n] for n, w in state.params.items()}
        # 1/N, not 1/M: absent clients keep their variates, and c is the mean of all.
        before, now = (sum(known.values()) / len(known) if known else 1.0 for known in (state.n, n))
        c = {m: before / now * t + dc[m] / (now * len(fed.clients)) for m, t in state.c.items()}
        return SCAFFOLDState(x, c, {**state.heard, **dict.fromkeys(answer.replies, fed.round)}, n)

    @step
    def train(
        self, me: Me, msg: SCAFFOLDMessage, memory: SCAFFOLDMemory | None
    ) -> Step[tuple[SCAFFOLDReply, SCAFFOLDMemory | None]]:
        """Train with the correction, then compute a new variate (eq. 1 to 3)."""
        c_i = self.variate(msg, memory)
        correction = map_params(torch.sub, msg.c, c_i)
        y = yield from fit(msg.params, self.local, Correction(), correction=correction)
        dy = map_params(torch.sub, y.params, msg.params)
        if self.option == "I":
            gradient = yield from run(full_gradient, msg.params)
            new = {n: gradient[n] for n in c_i}
        else:
            scale = y.lr * work(y.steps, self.local.momentum)
            new = {n: -correction[n] - dy[n] / scale for n in c_i}
        n = me.n if self.says_examples else None
        return SCAFFOLDReply(dy, map_params(torch.sub, new, c_i), n), SCAFFOLDMemory(new, c_i, me.round)

    @step
    def declare(self, me: Me, msg: None, memory: SCAFFOLDMemory | None) -> tuple[SizeReply, SCAFFOLDMemory | None]:
        """Say how many training examples this client has."""
        return SizeReply(me.n), memory

    @property
    def says_examples(self) -> bool:
        """True if replies say how many examples are behind them."""
        return self.scaled or self.weighting == "samples"

    def amend(
        self, step: str, me: Me, msg: Any, reply: SCAFFOLDReply, sent: SCAFFOLDReply, memory: SCAFFOLDMemory
    ) -> SCAFFOLDMemory:
        """Remember the variate that the server can know, where a wrapper changed its difference."""
        if step != "train":
            return memory
        return replace(memory, c={n: t + (sent.dc[n] - reply.dc[n]) for n, t in memory.c.items()})

    def validate_reply(self, step: str, reply: Any, model: Params, layout: Layout) -> None:
        """Refuse incomplete models, variates of other tensors, and missing example counts if means use them."""
        if step != "train":
            return
        require_names(reply.dy, model, "how far a model went")
        require_names(reply.dc, corrected(layout, self.local), "how far a variate went")
        if self.says_examples and reply.n is None:
            raise WireError("a reply must say how many examples are behind it, got none")

    def variate(self, msg: SCAFFOLDMessage, memory: SCAFFOLDMemory | None) -> Params:
        """Return this client's variate as of the last reply the server received."""
        if memory is None:
            return zeros_like(msg.c)
        return acknowledged(memory.c, memory.before, memory.round, msg.heard)


def full_gradient(local: Local, params: Params) -> Params:
    """Compute grad F_i(x) (eq. 2)."""
    return local.gradient(params)
