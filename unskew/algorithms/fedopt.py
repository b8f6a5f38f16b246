"""FedAvgM, FedAdagrad, FedAdam, FedYogi: the mean update of a round is a gradient for a server optimiser.

T.-M. H. Hsu, H. Qi, M. Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019 (FedAvgM).  S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar,
H. B. McMahan, "Adaptive Federated Optimization", ICLR 2021, Algorithm 2 (the others).  Equation numbers are this
file's.

Notation   w      global trainable parameters
           y_k    client k's parameters after local training
           D      mean over the cohort of y_k - w
           m, v   first and second moment, one number per parameter
Round      D = sum_k n_k (y_k - w) / sum_k n_k                                          (1)
FedAvgM    m <- beta m + D;  w <- w + server_lr m                                       (2)
           nesterov: w <- w + server_lr (D + beta m)                                    (3)
Adaptive   m <- beta1 m + (1 - beta1) D                                                 (4)
           v <- v + D^2                                  Adagrad                        (5)
           v <- beta2 v + (1 - beta2) D^2                Adam                           (6)
           v <- v - (1 - beta2) D^2 sign(v - D^2)        Yogi                           (7)
           w <- w + server_lr m / (sqrt(v) + tau)                                       (8)
           m_0 = 0, v_0 = tau^2; no bias correction
Departures Buffers have no gradient: they pass the optimiser by and become the plain mean, as in FedAvg.  `v0` sets v_0,
           which other codes take to be 0.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Interval

from unskew.algorithms.fedavg import Trained, Weighting, Weights, average
from unskew.protocol import ClientId, Federation, Me, Plan, SgdConfig, Step, ask, sgd, step
from unskew.server.optimise import Rule, adaptive, momentum
from unskew.tree import Params, zeros_like

Decay = Annotated[float, Interval(ge=0.0, lt=1.0)]
Rate = Annotated[float, Gt(0.0)]


@dataclass(frozen=True)
class Rolling:
    """State of FedAvgM: the model, and the velocity of its trainable parameters."""

    params: Params
    m: Params


@dataclass(frozen=True)
class Adapting:
    """State of the adaptive methods: the model, and two moments of its trainable parameters."""

    params: Params
    m: Params
    v: Params


@dataclass(frozen=True)
class FedAvgM:
    """FedAvg with server momentum.

    Attributes:
        beta: Momentum; Hsu et al. tune it up to 0.997.
        server_lr: Server learning rate.  With `beta = 0` and `server_lr = 1` this is FedAvg.
        nesterov: Eq. 3 in place of eq. 2; the original's form.
        local: The clients' optimisation.
        weighting: "samples" weighs a client by its training examples, "uniform" weighs all alike.
    """

    beta: Decay = 0.9
    server_lr: Rate = 1.0
    nesterov: bool = False
    local: SgdConfig = SgdConfig()
    weighting: Weighting = "samples"

    def init(self, params: Params, fed: Federation) -> Rolling:
        """The initial model at rest."""
        return Rolling(params, zeros_like(trainable(params, fed)))

    def round(self, state: Rolling, fed: Federation) -> Plan[Rolling]:
        """Send the model to a cohort, roll on by the mean update."""
        replies = (yield from ask(self.train, {c: Weights(state.params) for c in fed.sample()})).values()
        mean = average([r.params for r in replies], [r.n for r in replies], self.weighting)
        direction, m = momentum(update(mean, state.params, fed), state.m, beta=self.beta, nesterov=self.nesterov)
        return Rolling(moved(mean, state.params, direction, self.server_lr), m)

    @step
    def train(self, me: Me, msg: Weights, mine: None) -> Step[tuple[Trained, None]]:
        """Train from the received model."""
        return Trained((yield from sgd(msg.params, self.local)), me.n), None

    def serve(self, state: Rolling, client: ClientId | None) -> Params | None:
        """The global model."""
        return state.params


@dataclass(frozen=True)
class FedAdaptive:
    """FedAdagrad, FedAdam or FedYogi; made by the functions below, which know each one's defaults.

    Attributes:
        rule: How the second moment follows (eq. 5 to 7).
        server_lr: Server learning rate.
        beta1, beta2: Decay of the two moments; Adagrad does not use beta2.
        tau: Degree of adaptivity.
        v0: Initial second moment; None is tau^2.
        local: The clients' optimisation.
        weighting: "samples" weighs a client by its training examples, "uniform" weighs all alike.
    """

    rule: Rule
    server_lr: float
    beta1: float
    beta2: float
    tau: float
    v0: float | None
    local: SgdConfig
    weighting: Weighting

    def init(self, params: Params, fed: Federation) -> Adapting:
        """The initial model, m = 0 and v = v0."""
        m = zeros_like(trainable(params, fed))
        v0 = self.tau**2 if self.v0 is None else self.v0
        return Adapting(params, m, {n: torch.full_like(t, v0) for n, t in m.items()})

    def round(self, state: Adapting, fed: Federation) -> Plan[Adapting]:
        """Send the model to a cohort, take the optimiser's step along the mean update."""
        replies = (yield from ask(self.train, {c: Weights(state.params) for c in fed.sample()})).values()
        mean = average([r.params for r in replies], [r.n for r in replies], self.weighting)
        delta = update(mean, state.params, fed)
        direction, m, v = adaptive(self.rule, delta, state.m, state.v, beta1=self.beta1, beta2=self.beta2, tau=self.tau)
        return Adapting(moved(mean, state.params, direction, self.server_lr), m, v)

    @step
    def train(self, me: Me, msg: Weights, mine: None) -> Step[tuple[Trained, None]]:
        """Train from the received model."""
        return Trained((yield from sgd(msg.params, self.local)), me.n), None

    def serve(self, state: Adapting, client: ClientId | None) -> Params | None:
        """The global model."""
        return state.params


def FedAdagrad(
    server_lr: Rate = 0.1,
    beta1: Decay = 0.0,
    tau: Rate = 1e-3,
    v0: Annotated[float, Ge(0.0)] | None = None,
    local: SgdConfig = SgdConfig(),
    weighting: Weighting = "samples",
) -> FedAdaptive:
    """Adagrad on the server: v is the sum of all squared updates (eq. 5)."""
    return FedAdaptive("adagrad", server_lr, beta1, 0.0, tau, v0, local, weighting)


def FedAdam(
    server_lr: Rate = 0.03,
    beta1: Decay = 0.9,
    beta2: Decay = 0.99,
    tau: Rate = 1e-3,
    v0: Annotated[float, Ge(0.0)] | None = None,
    local: SgdConfig = SgdConfig(),
    weighting: Weighting = "samples",
) -> FedAdaptive:
    """Adam on the server, without bias correction (eq. 6)."""
    return FedAdaptive("adam", server_lr, beta1, beta2, tau, v0, local, weighting)


def FedYogi(
    server_lr: Rate = 0.03,
    beta1: Decay = 0.9,
    beta2: Decay = 0.99,
    tau: Rate = 1e-3,
    v0: Annotated[float, Ge(0.0)] | None = None,
    local: SgdConfig = SgdConfig(),
    weighting: Weighting = "samples",
) -> FedAdaptive:
    """Yogi on the server: v moves by a step that does not depend on its size (eq. 7)."""
    return FedAdaptive("yogi", server_lr, beta1, beta2, tau, v0, local, weighting)


def trainable(params: Params, fed: Federation) -> Params:
    """What has a gradient: everything but the buffers."""
    return {n: params[n] for n in fed.layout.trainable}


def update(mean: Params, w: Params, fed: Federation) -> Params:
    """D of eq. 1: how far the trainable parameters went on average."""
    return {n: mean[n] - w[n] for n in fed.layout.trainable}


def moved(mean: Params, w: Params, direction: Params, lr: float) -> Params:
    """`w + lr direction`; what has no direction, the buffers, becomes the mean."""
    return {n: w[n] + lr * direction[n] if n in direction else t for n, t in mean.items()}
