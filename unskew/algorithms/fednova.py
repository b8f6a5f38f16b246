"""FedNova: updates are normalised by the amount of local work before they are averaged.

J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization", NeurIPS 2020.  Equation numbers are this file's.

Notation   w      global trainable parameters
           y_k    client k's parameters after tau_k local steps at learning rate eta
           D_k    y_k - w = -eta sum_j a_kj g_kj, with g_kj the gradient of client k's step j         (1)
           rho    local momentum
           mu     strength of a proximal pull mu/2 ||y - w||^2, which is part of a, not of g
           p_k    n_k / sum n over the cohort
           d_k    D_k / ||a_k||_1, a client's displacement per unit of work: what it sends
Client     a_{tau-1-i} = r_i, the response after i further steps to one unit of gradient:             (2)
           r_0 = u_0 = 1;  u_{i+1} = rho u_i - eta mu r_i;  r_{i+1} = r_i + u_{i+1}
           ||a||_1 = tau                                             plain SGD
                     [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho)   momentum
                     [1 - (1 - eta mu)^tau] / (eta mu)                   proximal
Server     tau_eff = sum_k p_k ||a_k||_1                                                              (3)
           m <- gmf m + tau_eff sum_k p_k d_k;  w <- w + m                                            (4)
Departures Momentum and pull together: the published code chains the two recurrences, which counts each step twice;
           eq. 2 is what the steps do.  tau_eff is eq. 3 also with mu > 0, where the published code counts steps.  m is
           in units of parameters, so a falling learning rate does not rescale it.  Weight decay is part of g: what is
           minimised then is F_k + decay/2 ||y||^2.  Buffers have no d_k: their change is sent, and averaged with
           weights p_k.
Wrappers   act on d_k, which is what enters the mean: a bound on its norm is one on a single step of size eta, not on a
           round's displacement, and a robust mean of all d_k takes the place of sum_k p_k d_k.  tau_eff remains a mean.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Interval

from unskew.algorithms.fedavg import ModelMessage, Weighting, weight_of, without
from unskew.algorithms.fedprox import Proximal
from unskew.algorithms.parts import OneModel, steps_of
from unskew.errors import ConfigError, WireError
from unskew.protocol import Federation, Layout, Me, Plan, SampleCount, SgdConfig, Step, Update, ask, fit, step
from unskew.reduction import MeanOf
from unskew.server.optimise import momentum
from unskew.tree import Params, map_params, zeros_like


@dataclass(frozen=True)
class FedNovaState:
    """The server's state: the model, and the velocity of its trainable parameters."""

    params: Params
    m: Params


@dataclass(frozen=True)
class FedNovaReply:
    """Update of a client.

    Attributes:
        delta: d_k, and the change of each buffer.
        norm: ||a_k||_1, the amount of local work in units of plain gradient steps.
        n: Training examples.
    """

    delta: Update
    norm: float
    n: SampleCount


@dataclass(frozen=True)
class FedNova(OneModel):
    """Normalised averaging.

    Attributes:
        mu: Strength of the clients' pull towards the received model.
        gmf: Server momentum.
        local: The clients' optimisation: plain SGD or momentum, without clipping.
        weighting: "samples" weights a client by its training examples, "uniform" weights all equally.

    Raises:
        ConfigError: If the local optimiser does something that eq. 1 cannot describe.
    """

    mu: Annotated[float, Ge(0.0)] = 0.0
    gmf: Annotated[float, Interval(ge=0.0, lt=1.0)] = 0.0
    local: SgdConfig = SgdConfig()
    weighting: Weighting = "samples"

    def __post_init__(self) -> None:
        require_linear(self.local, "FedNova")

    def init(self, params: Params, fed: Federation) -> FedNovaState:
        """Return the initial model with zero velocity."""
        return FedNovaState(params, zeros_like(trainable(params, fed)))

    def round(self, state: FedNovaState, fed: Federation) -> Plan[FedNovaState]:
        """Send the model to a cohort; average the updates per unit of work, at the cohort's mean amount of work."""
        to = {c: ModelMessage(state.params) for c in fed.sample()}
        answer = yield from ask(
            self.train,
            to,
            reduce=(
                MeanOf(lambda c, r: trainable(r.delta, fed), lambda c, r: self.weight(r)),
                MeanOf(lambda c, r: {"norm": torch.tensor(r.norm, dtype=torch.float64)}, lambda c, r: self.weight(r)),
                MeanOf(lambda c, r: without(r.delta, fed.layout.trainable), lambda c, r: self.weight(r)),
            ),
        )
        per_unit, effective, buffers = answer.values
        direction, m = momentum({n: t * float(effective["norm"]) for n, t in per_unit.items()}, state.m, beta=self.gmf)
        return FedNovaState(map_params(torch.add, state.params, {**direction, **buffers}), m)

    def weight(self, reply: FedNovaReply) -> float:
        """Return a client's weight: p_k, up to a factor that is common to all."""
        return weight_of(reply.n, self.weighting)

    @step
    def train(self, me: Me, msg: ModelMessage, memory: None) -> Step[tuple[FedNovaReply, None]]:
        """Train from the received model, and divide the displacement by the work of the steps actually taken."""
        terms = (Proximal(self.mu),) if self.mu else ()
        done = yield from fit(msg.params, self.local, *terms, anchor=msg.params)
        norm = work(done.steps, self.local.momentum, done.lr * self.mu)
        moved = map_params(torch.sub, done.params, msg.params)
        delta = {n: t / norm if n in me.layout.trainable else t for n, t in moved.items()}
        return FedNovaReply(delta, norm, me.n), None

    def validate_reply(self, step: str, reply: FedNovaReply, model: Params, layout: Layout) -> None:
        """Refuse work of less than a step, or of more than the examples allow."""
        most = self.most(reply.n)
        if not 1.0 <= reply.norm <= most:
            raise WireError(
                f"local work on {reply.n} examples must be 1 to {most:g} gradient steps, got {reply.norm:g}"
            )

    def most(self, n: int) -> float:
        """Largest possible ||a||_1 for a client that reports `n` examples, with a margin for rounding.

        While gradient descent settles, eta mu <= 2 (1 + rho), no pull makes the a_i larger than they are without one:
        the closed form under momentum.  Under a stronger pull they grow without bound.
        """
        steps, rho = steps_of(self.local, n), self.local.momentum
        if self.local.lr * self.mu > 2.0 * (1.0 + rho):
            return math.inf
        return (1.0 + 1e-6) * (steps - rho * (1.0 - rho**steps) / (1.0 - rho)) / (1.0 - rho)


def trainable(params: Params, fed: Federation) -> Params:
    """Return the parameters; buffers have no gradient to normalise."""
    return {n: params[n] for n in fed.layout.trainable}


def responses(steps: int, momentum: float = 0.0, pull: float = 0.0) -> tuple[float, ...]:
    """Return the weights a_0 .. a_{steps-1} of eq. 2, by step; `pull` is eta mu.

    >>> responses(3, momentum=0.5)
    (1.75, 1.5, 1.0)
    >>> responses(3, pull=0.5)
    (0.25, 0.5, 1.0)
    """
    velocity = response = 1.0
    newest_first = []
    for _ in range(steps):
        newest_first.append(response)
        velocity = momentum * velocity - pull * response
        response += velocity
    return tuple(reversed(newest_first))


def work(steps: int, momentum: float = 0.0, pull: float = 0.0) -> float:
    """Compute ||a||_1: the number of plain gradient steps that a local optimisation amounts to."""
    return sum(map(abs, responses(steps, momentum, pull)))


def require_linear(local: SgdConfig, who: str) -> None:
    """Check that a client's displacement is a weighted sum of its gradients, as in eq. 1.

    Raises:
        ConfigError: If it is not, with the reason.
    """
    if local.optimizer != "sgd":
        raise ConfigError(
            f"{who} normalises each update by the weight that gradients have in it, which is not defined for "
            f"{local.optimizer}; set local.optimizer to 'sgd'"
        )
    if local.nesterov:
        raise ConfigError(
            f"{who} counts the weights of gradients under heavy-ball momentum, Nesterov's are others; "
            "leave local.nesterov out"
        )
    if local.clip_norm is not None:
        raise ConfigError(
            f"{who} reads a client's displacement as a sum of its gradients, which clipping shortens by amounts that "
            f"are not recorded, got local.clip_norm = {local.clip_norm:g}; leave it out and lower local.lr"
        )
