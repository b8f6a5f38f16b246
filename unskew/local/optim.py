"""Optimisers on one flat vector: SGD written out, the others PyTorch's own.

All tensors being trained are views of one vector, so an update is a handful of operations whatever the number of
layers.  The arithmetic is that of `torch.optim`, which the tests compare with.

On a CPU an update with momentum goes through each vector once, by the private operator behind `torch.optim`'s
`fused=True`, in half the time.  `one_pass` says whether it is there; the public operations it stands for are written
out beside it.

Two steps are written elsewhere, because other operations would round differently: plain SGD in `unskew.local.dense`
adds each gradient to its weights as it is found, and `unskew.local.stacked.optim` has a learning rate for every client.
"""

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unskew.protocol import SgdConfig

Update = Callable[[Tensor, Tensor], None]
State = dict[str, Tensor]
"""Of an optimiser between two steps, by the names that PyTorch has; vectors of the size of what it changes, numbers."""

STACKED = ("sgd", "adam", "adamw")
"""Optimisers under which clients may be stacked."""

HISTORY = 10
"""Steps that L-BFGS remembers, two vectors each."""


def optimiser(config: SgdConfig, lr: float, like: Tensor, state: State | None = None) -> Update:
    """A function `update(w, g)` that changes the vector `w` in place by one step; `g` may be overwritten.

    Args:
        config: The optimiser and its constants.
        lr: Learning rate in force.
        like: A vector of the size, type and device of `w`.
        state: State to begin with, changed in place; empty, or None, is fresh.
    """
    clip = config.clip_norm
    rule = (_sgd if config.optimizer == "sgd" else _of_torch)(config, lr, like, {} if state is None else state)

    steps = itertools.count(1)

    def update(w: Tensor, g: Tensor) -> None:
        if clip is not None:
            clip_to(clip, g, torch.linalg.vector_norm(g))
        rule(w, g, config.step_schedule(next(steps)))

    return update


def solve(config: SgdConfig, w: Tensor, g: Tensor, value: Callable[[], Tensor]) -> None:
    """Minimise `value()`, which leaves the gradient in `g`, over the vector `w` in place, by L-BFGS."""
    iterations = config.local_steps or 100
    w.grad = g
    try:
        solver = torch.optim.LBFGS(
            [w],
            lr=1.0,
            max_iter=iterations,
            max_eval=25 * iterations,  # as many as a line search may take
            tolerance_grad=config.tolerance,
            tolerance_change=0.0,
            history_size=HISTORY,
            line_search_fn="strong_wolfe",
        )
        solver.step(value)  # type: ignore[no-untyped-call]
    finally:
        w.grad = None


def _sgd(config: SgdConfig, lr: float, like: Tensor, state: State) -> Callable[[Tensor, Tensor, float], None]:
    decay, momentum, nesterov = config.weight_decay, config.momentum, config.nesterov

    def update(w: Tensor, g: Tensor, factor: float) -> None:
        if momentum:
            first = not state
            if first:  # made when it is first needed: `dense` has its own
                state["momentum_buffer"] = torch.empty_like(like)
            buffer = state["momentum_buffer"]
            momentum_step([w], [g], [buffer], first, lr * factor, momentum, decay, nesterov)
            return
        if decay:
            g.add_(w, alpha=decay)
        w.add_(g, alpha=-lr * factor)

    return update


def momentum_step(
    weights: list[Tensor],
    gradients: list[Tensor],
    velocities: list[Tensor],
    first: bool,
    lr: float,
    momentum: float,
    decay: float = 0.0,
    nesterov: bool = False,
) -> None:
    """One step of SGD with momentum on tensors and their velocities, in place; gradients may be overwritten.

    The first step sets the velocities, whatever they were.
    """
    if weights[0].device.type == "cpu" and one_pass():
        _fused_sgd(
            weights,
            gradients,
            velocities,
            weight_decay=decay,
            momentum=momentum,
            lr=lr,
            nesterov=nesterov,
            is_first_step=first,
        )
        return
    for w, g, v in zip(weights, gradients, velocities, strict=True):
        if decay:
            g.add_(w, alpha=decay)
        w.add_(momentum_direction(g, v, first, momentum, nesterov), alpha=-lr)


def _fused_sgd(weights: list[Tensor], gradients: list[Tensor], velocities: list[Tensor], **constants: Any) -> None:
    torch._fused_sgd_(weights, gradients, velocities, dampening=0.0, maximize=False, **constants)


def _of_torch(config: SgdConfig, lr: float, like: Tensor, state: State) -> Callable[[Tensor, Tensor, float], None]:
    kinds = {name.lower(): kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    kind = kinds[config.optimizer]
    known = inspect.signature(kind).parameters
    settings = ("momentum", "weight_decay", "betas", "eps")
    given = {n: getattr(config, n) for n in settings if n in known and getattr(config, n) != getattr(SgdConfig, n)}
    if config.optimizer in ("adam", "adamw"):
        given["fused"] = like.device.type == "cpu"  # in one pass, a quarter of the time
    solver: torch.optim.Optimizer | None = None

    def update(w: Tensor, g: Tensor, factor: float) -> None:
        nonlocal solver
        if solver is None:
            solver = kind([w], lr=lr, **given)
            solver.state[w] = state
        solver.param_groups[0]["lr"] = lr * factor
        w.grad = g
        solver.step()
        w.grad = None

    return update


# ---------------------------------------------------------------- for one vector, or for rows of many clients
def clip_to(most: float, g: Tensor, norm: Tensor) -> None:
    """Scale a gradient in place so that its norm is at most `most`."""
    g.mul_((most / (norm + 1e-6)).clamp_(max=1.0))


def momentum_direction(g: Tensor, v: Tensor, first: bool, momentum: float, nesterov: bool) -> Tensor:
    """Update the velocity `v` in place and give the direction of the step; `g` may be overwritten.

    The first step sets the velocity, whatever it was.
    """
    if first:
        v.copy_(g)
    else:
        v.mul_(momentum).add_(g)
    return g.add_(v, alpha=momentum) if nesterov else v


def update_moments(mean: Tensor, square: Tensor, g: Tensor, betas: tuple[float, float]) -> None:
    """Update Adam's moving means of the gradient and of its square, in place."""
    mean.lerp_(g, 1.0 - betas[0])
    square.mul_(betas[1]).addcmul_(g, g, value=1.0 - betas[1])


@functools.cache
def one_pass() -> bool:
    """True if this PyTorch has the private one-pass update, with the signature used here."""
    a, b, c = torch.zeros(3, 1)
    try:
        _fused_sgd([a], [b], [c], weight_decay=0.0, momentum=0.9, lr=0.1, nesterov=False, is_first_step=True)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return True
