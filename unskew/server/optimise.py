"""Server rules: how the mean of a round's models changes the global model.

T.-M. H. Hsu, H. Qi, M. Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019 (momentum); S. J. Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2
(Adagrad, Adam, Yogi).  The equations are numbered in algorithms/fedopt.py.

Notation   w      global trainable parameters
           D      mean update of the round, mean(y) - w: it points towards progress
           m, v   first and second moment
           tau    degree of adaptivity; larger is less adaptive
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from unskew.registry import Registry
from unskew.tree import Params, map_params, zeros_like

Decay = Annotated[float, Interval(ge=0.0, lt=1.0)]
Rate = Annotated[float, Gt(0.0)]


@dataclass(frozen=True)
class Moments:
    """Memory of a server rule: moments of trainable parameters by name, empty where it keeps none."""

    m: Params = field(default_factory=dict)
    v: Params = field(default_factory=dict)


class Rule(Protocol):
    """A server rule: a frozen dataclass whose fields are its settings."""

    def start(self, params: Params) -> Moments:
        """Return the rule's memory before round 1 for the trainable parameters `params`."""
        ...

    def step(self, w: Params, mean: Params, moments: Moments) -> tuple[Params, Moments]:
        """Return the next `w` and the rule's memory, from trainable parameters and their mean over a round."""
        ...


@dataclass(frozen=True)
class Mean:
    """Server rule of FedAvg: the mean of the clients' models is the next global model."""

    name: Literal["mean"] = "mean"

    def start(self, params: Params) -> Moments:
        """Return empty moments."""
        return Moments()

    def step(self, w: Params, mean: Params, moments: Moments) -> tuple[Params, Moments]:
        """Return the mean."""
        return mean, moments


@dataclass(frozen=True)
class Momentum:
    """Heavy-ball momentum along the mean update, as in FedAvgM.

    Attributes:
        server_lr: Server learning rate.  With `beta = 0` and `server_lr = 1` the mean is taken as it is.
        beta: Momentum; Hsu et al. tune it up to 0.997.
        nesterov: True for Nesterov's direction, as in the original.
    """

    server_lr: Rate = 1.0
    beta: Decay = 0.9
    nesterov: bool = False
    name: Literal["momentum"] = "momentum"

    def start(self, params: Params) -> Moments:
        """Return a velocity of zero for each of the trainable parameters `params`."""
        return Moments(zeros_like(params))

    def step(self, w: Params, mean: Params, moments: Moments) -> tuple[Params, Moments]:
        """Return the model and its velocity after the round."""
        direction, m = momentum(map_params(torch.sub, mean, w), moments.m, beta=self.beta, nesterov=self.nesterov)
        return map_params(lambda t, d: t + self.server_lr * d, w, direction), Moments(m)


@dataclass(frozen=True)
class Adaptive(ABC):
    """A step along the first moment over the root of the second, without bias correction.

    `torch.optim` cannot do it: its Adam corrects for bias and starts at v = 0, and it has no Yogi.

    Attributes:
        server_lr: Server learning rate.
        beta1: Decay of the first moment.
        tau: Degree of adaptivity.
        v0: Initial second moment; None is tau^2.
    """

    server_lr: Rate = 0.03
    beta1: Decay = 0.9
    tau: Rate = 1e-3
    v0: Annotated[float, Ge(0.0)] | None = None

    @abstractmethod
    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Compute the next second moment from the square of the mean update."""

    def start(self, params: Params) -> Moments:
        """Return m = 0 and v = v0 for each of the trainable parameters `params`."""
        v0 = self.tau**2 if self.v0 is None else self.v0
        return Moments(zeros_like(params), {n: torch.full_like(t, v0) for n, t in params.items()})

    def direction(self, delta: Params, moments: Moments) -> tuple[Params, Moments]:
        """Compute `m / (sqrt(v) + tau)` and its moments: `m <- beta1 m + (1 - beta1) D`, v by the rule."""
        m = map_params(lambda m, d: self.beta1 * m + (1.0 - self.beta1) * d, moments.m, delta)
        v = map_params(lambda v, d: self.second(v, d.square()), moments.v, delta)
        return map_params(lambda m, v: m / (v.sqrt() + self.tau), m, v), Moments(m, v)

    def step(self, w: Params, mean: Params, moments: Moments) -> tuple[Params, Moments]:
        """Return the model and its moments after the round."""
        direction, moments = self.direction(map_params(torch.sub, mean, w), moments)
        return map_params(lambda t, d: t + self.server_lr * d, w, direction), moments


@dataclass(frozen=True)
class Adagrad(Adaptive):
    """Adagrad: v is the sum of all squared updates."""

    server_lr: Rate = 0.1
    beta1: Decay = 0.0
    name: Literal["adagrad"] = "adagrad"

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Compute `v + D^2`."""
        return v + square


@dataclass(frozen=True)
class Adam(Adaptive):
    """Adam without bias correction; `beta2` is the decay of the second moment."""

    beta2: Decay = 0.99
    name: Literal["adam"] = "adam"

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Compute `beta2 v + (1 - beta2) D^2`."""
        return self.beta2 * v + (1.0 - self.beta2) * square


@dataclass(frozen=True)
class Yogi(Adaptive):
    """Yogi: v moves by a step that does not depend on its size; `beta2` is one minus that step."""

    beta2: Decay = 0.99
    name: Literal["yogi"] = "yogi"

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Compute `v - (1 - beta2) D^2 sign(v - D^2)`."""
        return v - (1.0 - self.beta2) * square * torch.sign(v - square)


def _is_rule(kind: Any) -> bool:
    is_record = inspect.isclass(kind) and hasattr(kind, "__dataclass_fields__")
    return is_record and all(callable(getattr(kind, part, None)) for part in ("start", "step"))


RULES = Registry(
    "server rule",
    "unskew.server_rules",
    {rule.__name__.lower(): f"{__name__}:{rule.__name__}" for rule in (Mean, Momentum, Adagrad, Adam, Yogi)},
    "a frozen dataclass with start(params) and step(w, mean, moments)",
    _is_rule,
)
ServerRule = Annotated[Rule, RULES]
"""A server rule as a setting: in a file a table with the name of a registered one, or `module:attribute`."""


def step(rule: Rule, w: Params, mean: Params, moments: Moments, trainable: Sequence[str]) -> tuple[Params, Moments]:
    """Apply the rule to what is trained and shared; other tensors become the mean, or stay where there is none."""
    of, to = ({n: params[n] for n in trainable if n in mean} for params in (w, mean))
    new, moments = rule.step(of, to, moments)
    return {n: new.get(n, mean.get(n, t)) for n, t in w.items()}, moments


def momentum(delta: Params, m: Params, *, beta: float, nesterov: bool = False) -> tuple[Params, Params]:
    """Compute (direction, next m) of heavy-ball momentum, undamped: `m <- beta m + D`.

    The direction is m, or with `nesterov` `D + beta m`.
    """
    m = map_params(lambda m, d: beta * m + d, m, delta)
    return (map_params(lambda d, m: d + beta * m, delta, m) if nesterov else m), m
