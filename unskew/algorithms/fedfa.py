"""FedFA: a client's weight grows with the model's error on its data and with the number of its trainings.

W. Huang, T. Li, D. Wang, S. Du, J. Zhang, "Fairness and Accuracy in Federated Learning", arXiv 2012.10069, 2020.  Only
its abstract was at hand; the formulas are those of the port in easyFL.  Another method called FedFA, which augments
features, has nothing to do with it.  Equation numbers are this file's.

Notation   acc_k        accuracy of the received model on client k's training data, in evaluation mode
           f_k          number of trainings of client k so far, this round included
           S, M         clients that replied, their number
           alpha, beta  shares of the two kinds of information;  eta  server learning rate;  gamma  momentum
Weights    A_k = -log2(acc_k / sum_S acc_j),   B_k = -log2(1 - f_k / sum_S f_j)                         (1)
           omega_k = alpha A_k / sum A + beta B_k / sum B + (1 - alpha - beta) n_k / sum n              (2)
Server     wbar = sum_k omega_k y_k,  G = w - wbar,  m <- gamma m + (1 - gamma) G,  w <- wbar - eta m   (3)
Client     Local SGD with momentum: `local.momentum`, which need not be gamma.
HCCT's     Preset "hcct", the form of HCCT's tables: omega_k = -log2 acc_k / sum_j -log2 acc_j with the accuracies
           themselves, no frequencies, no momentum on either side.                                      (4)
Edges      A single reply has weight 1.  An accuracy of 0 counts as 1e-7, as in HCCT's code.  Where all information of
           a kind is 0, as when all accuracies in (4) are 1, that kind is uniform.
Departures The port has G = wbar - w, with which (3) undoes a part of every step; a pseudo-gradient is w - wbar, and
           momentum along it continues in the direction of the last steps.  `server_momentum_sign` has both.  eta is not
           stated; None takes the clients' learning rate in force.  In the paper alpha + beta = 1; the rest goes to the
           clients' examples, so that alpha = beta = 0 with gamma = 1 is FedAvg.  Buffers play no part in fairness:
           they take FedAvg's mean, and have no momentum.  HCCT's released code (`preset = "hcct"`) takes the first
           round's accuracies in training mode; here all are in evaluation mode.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Gt, Interval
from torch import Tensor

from unskew.algorithms.fedavg import average
from unskew.algorithms.parts import OneModel
from unskew.algorithms.presets import presets
from unskew.errors import ConfigError
from unskew.info import ClientWeights
from unskew.protocol import (
    Batch,
    Federation,
    Me,
    Model,
    Plan,
    SampleCount,
    SgdConfig,
    Step,
    ask,
    fold,
    require_rate,
    sgd,
    step,
)
from unskew.tree import Params, weighted_sum, zeros_like

FLOOR = 1e-7
"""Accuracy that replaces 0."""

Share = Annotated[float, Interval(ge=0.0, le=1.0)]


@dataclass(frozen=True)
class ClientScore:
    """A client's weight and its basis: accuracy of the received model, and number of trainings so far."""

    accuracy: float
    trained: int
    weight: float


@dataclass(frozen=True)
class FedFAState:
    """The server's state: the model, its momentum, and this round's weights by client."""

    params: Params
    m: Params
    reports: dict[int, ClientScore]


@dataclass(frozen=True)
class FedFAMessage:
    """The model as sent to a client."""

    params: Params


@dataclass(frozen=True)
class FedFAReply:
    """A trained model, its training examples, the received model's accuracy on them, and trainings so far."""

    params: Model
    n: SampleCount
    accuracy: Share
    trained: Annotated[int, Interval(ge=1, lt=1 << 31)]


Preset = Literal["paper", "hcct"]

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "hcct": {"alpha": 1.0, "beta": 0.0, "accuracy": "itself", "server_momentum": 1.0, "local": SgdConfig()},
}


@presets(PRESETS)
@dataclass(frozen=True)
class FedFA(OneModel):
    """Fair and accurate federated learning.

    Attributes:
        alpha: Share of the accuracies in a client's weight.
        beta: Share of the frequencies; the rest of 1 goes to the clients' examples.
        accuracy: Take the information of shares of accuracy (eq. 1), or of the accuracies themselves (eq. 4).
        server_momentum: gamma; 1 switches it off, m then stays 0.
        server_momentum_sign: "accelerate" continues along the last steps, "damp" undoes a part of them, as in the port.
        server_lr: eta; None is the clients' learning rate in force.
        local: The clients' optimisation.
        preset: Base settings: "paper" has the defaults, "hcct" computes weights from accuracies only, without momentum
            (eq. 4).

    Raises:
        ConfigError: If alpha + beta is more than 1.
    """

    needs: ClassVar[tuple[str, ...]] = (
        "classes",
        "classifier",
    )

    alpha: Share = 0.5
    beta: Share = 0.5
    accuracy: Literal["share", "itself"] = "share"
    server_momentum: Share = 0.9
    server_momentum_sign: Literal["accelerate", "damp"] = "accelerate"
    server_lr: Annotated[float, Gt(0.0)] | None = None
    local: SgdConfig = SgdConfig(momentum=0.9)
    preset: Preset | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.server_lr is None:
            require_rate(self.local, "FedFA's server_lr = local.lr")
        if self.alpha + self.beta > 1.0 + 1e-12:
            raise ConfigError(
                f"alpha + beta must be at most 1, got {self.alpha:g} + {self.beta:g}; they are shares of a weight"
            )

    def init(self, params: Params, fed: Federation) -> FedFAState:
        """Return the initial model with zero momentum."""
        return FedFAState(params, zeros_like({n: params[n] for n in fed.layout.trainable}), {})

    def round(self, state: FedFAState, fed: Federation) -> Plan[FedFAState]:
        """Send the model to a cohort; weight the replies, and take a step (eq. 1 to 3)."""
        replies = yield from ask(self.train, dict.fromkeys(fed.sample(), FedFAMessage(state.params)))
        y, n = [r.params for r in replies.values()], [r.n for r in replies.values()]
        omega = self.weights([r.accuracy for r in replies.values()], [r.trained for r in replies.values()], n)
        mean = weighted_sum([{name: p[name] for name in state.m} for p in y], omega)
        sign = 1.0 if self.server_momentum_sign == "accelerate" else -1.0
        gamma, eta = self.server_momentum, self.server_lr or self.local.lr_at(fed.round)
        m = {k: gamma * v + (1.0 - gamma) * sign * (state.params[k] - mean[k]) for k, v in state.m.items()}
        plain = average([{name: t for name, t in p.items() if name not in m} for p in y], n, "samples")
        params = {k: mean[k] - eta * m[k] if k in m else plain[k] for k in state.params}
        reports = {c: ClientScore(r.accuracy, r.trained, w) for (c, r), w in zip(replies.items(), omega, strict=True)}
        return FedFAState(params, m, reports)

    @step
    def train(self, me: Me, msg: FedFAMessage, memory: int | None) -> Step[tuple[FedFAReply, int | None]]:
        """Evaluate the received model, then train from it."""
        start: Tensor | int = 0
        accuracy = int((yield from fold(add_correct, msg.params, start))) / me.n
        y = yield from sgd(msg.params, self.local)
        trained = (memory or 0) + 1
        return FedFAReply(y, me.n, accuracy, trained), trained

    def weights(self, accuracies: Sequence[float], trained: Sequence[int], n: Sequence[int]) -> list[float]:
        """Compute omega_k (eq. 2, 4): non-negative, with the sum 1.

        Args:
            accuracies: Accuracy of the received model, in [0, 1], by client.
            trained: Trainings so far, at least 1.
            n: Training examples.
        """
        if len(accuracies) == 1:
            return [1.0]
        accuracies, trained = [max(a, FLOOR) for a in accuracies], [max(f, 1) for f in trained]
        whole, visits = sum(accuracies) if self.accuracy == "share" else 1.0, sum(trained)
        a = shares(lambda acc: -math.log2(acc / whole), accuracies)
        b = shares(lambda f: -math.log2(1.0 - f / visits), trained)
        rest = max(1.0 - self.alpha - self.beta, 0.0)
        return [self.alpha * a[i] + self.beta * b[i] + rest * n[i] / sum(n) for i in range(len(n))]

    def info(self, state: FedFAState) -> ClientWeights:
        """Report weight, accuracy of the received model and number of trainings of every client that replied."""
        reports = state.reports.items()
        return ClientWeights(
            weights={c: r.weight for c, r in reports},
            accuracy={c: r.accuracy for c, r in reports},
            trained={c: r.trained for c, r in reports},
        )


def shares(information: Callable[[float], float], values: Sequence[float]) -> list[float]:
    """Divide the information of each value by its sum; uniform where there is none at all.

    >>> shares(lambda p: -math.log2(p), [0.5, 0.125])
    [0.25, 0.75]
    """
    bits = [max(information(v), 0.0) for v in values]
    total = sum(bits)
    return [x / total for x in bits] if total > 0.0 else [1.0 / len(bits)] * len(bits)


def add_correct(count: Tensor | int, batch: Batch) -> Tensor | int:
    """Add a batch to the number of correctly classified examples."""
    right = (batch.logits.argmax(1) == batch.y) & (batch.mask > 0)
    return count + torch.count_nonzero(right)
