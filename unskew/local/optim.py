"""Optimisers on one flat vector: SGD written out, the others PyTorch's own.

All trained tensors are views of one vector, so an update is a handful of operations for any number of layers.  A few
optimisers look at shapes and get the views.  The arithmetic is that of `torch.optim`.

On a CPU an update with momentum goes through each vector once, by the private operator behind `torch.optim`'s
`fused=True`, in half the time.  `one_pass` says whether it exists; the equal public operations are beside it.

Plain SGD in `unskew.local.dense` has a step of its own, which adds each gradient to its weights at once.  Stacked
clients are rows, with a learning rate for each.
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from unskew.errors import ConfigError
from unskew.protocol import SgdConfig

Update = Callable[[Tensor, Tensor], None]
Views = Callable[[Tensor], list[Tensor]]
"""The tensors that lie in a vector."""

State = dict[str, Tensor]
"""Of an optimiser between two steps, by the names that PyTorch has; vectors of the size of what it changes, numbers."""

STACKED = ("sgd", "adam", "adamw")
"""Optimisers under which clients may be stacked."""

BY_SHAPE = ("adafactor", "muon", "sparseadam")
"""Optimisers that look at rows and columns of what they train."""

HISTORY = 10
"""Steps that L-BFGS remembers, two vectors each."""


def optimiser(config: SgdConfig, lr: float, like: Tensor, views: Views, state: State | None = None) -> Update:
    """A function `update(w, g)` that changes the vector `w` in place by one step; `g` may be overwritten.

    Args:
        config: The optimiser and its constants.
        lr: Learning rate in force.
        like: A vector of the size, type and device of `w`.
        views: The network's tensors as views of such a vector.
        state: State to begin with, changed in place; empty, or None, is fresh.

    Raises:
        ConfigError: At the first step, if PyTorch's optimiser does not train such tensors.
    """
    clip, state = config.clip_norm, {} if state is None else state
    rule = _sgd(config, lr, like, state) if config.optimizer == "sgd" else _of_torch(config, lr, views, state)

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
    def update(w: Tensor, g: Tensor, factor: float) -> None:
        if config.momentum:
            first = not state
            if first:  # made when it is first needed: `dense` has its own
                state["momentum_buffer"] = torch.empty_like(like)
            momentum_step(config, lr * factor, [w], [g], [state["momentum_buffer"]], first)
            return
        if config.weight_decay:
            g.add_(w, alpha=config.weight_decay)
        w.add_(g, alpha=-lr * factor)

    return update


def momentum_step(
    config: SgdConfig, lr: float, weights: list[Tensor], gradients: list[Tensor], velocities: list[Tensor], first: bool
) -> None:
    """One step of SGD with momentum on tensors and their velocities, in place; gradients may be overwritten.

    The first step sets the velocities, whatever they were.
    """
    momentum, decay, nesterov = config.momentum, config.weight_decay, config.nesterov
    if weights[0].device.type == "cpu" and one_pass():
        constants = {"weight_decay": decay, "momentum": momentum, "nesterov": nesterov}
        _fused_sgd(weights, gradients, velocities, lr=lr, is_first_step=first, **constants)
        return
    for w, g, v in zip(weights, gradients, velocities, strict=True):
        if decay:
            g.add_(w, alpha=decay)
        w.add_(momentum_direction(g, v, first, momentum, nesterov), alpha=-lr)


def _fused_sgd(weights: list[Tensor], gradients: list[Tensor], velocities: list[Tensor], **constants: Any) -> None:
    torch._fused_sgd_(weights, gradients, velocities, dampening=0.0, maximize=False, **constants)


def _of_torch(config: SgdConfig, lr: float, views: Views, state: State) -> Callable[[Tensor, Tensor, float], None]:
    name = config.optimizer
    parts = views if name in BY_SHAPE else lambda vector: [vector]
    solver: torch.optim.Optimizer | None = None

    def update(w: Tensor, g: Tensor, factor: float) -> None:
        nonlocal solver
        if solver is None:
            solver = _solver(config, lr, parts(w))
            for i, part in enumerate(solver.param_groups[0]["params"]):
                known = {n.partition(" ")[2]: t for n, t in state.items() if n.startswith(f"{i} ")}
                solver.state[part] = known
        solver.param_groups[0]["lr"] = lr * factor
        weights = solver.param_groups[0]["params"]
        for part, gradient in zip(weights, parts(g), strict=True):
            part.grad = gradient.to_sparse(1) if name == "sparseadam" else gradient
        solver.step()
        for i, part in enumerate(weights):
            part.grad = None
            state.update({f"{i} {n}": torch.as_tensor(t) for n, t in solver.state[part].items()})

    return update


def _solver(config: SgdConfig, lr: float, weights: list[Tensor]) -> torch.optim.Optimizer:
    """PyTorch's optimiser of these tensors, by the settings as written; of momentum and `eps` its own without one."""
    kinds = {name.lower(): kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    kind = kinds.get(config.optimizer)
    if kind is None:
        raise ConfigError(f"PyTorch {torch.__version__} has no optimiser {config.optimizer}; install a newer one")
    known = inspect.signature(kind).parameters
    written = {name: getattr(config, name) for name in ("momentum", "weight_decay", "betas", "eps") if name in known}
    given = {name: value for name, value in written.items() if value or name == "weight_decay"}
    if config.optimizer in ("adam", "adamw"):
        given["fused"] = weights[0].device.type == "cpu"  # in one pass, a quarter of the time
    try:
        solver: torch.optim.Optimizer = kind(weights, lr=lr, **given)
    except ValueError as error:
        raise ConfigError(f"PyTorch's {config.optimizer}: {error}; choose others by `trainable`") from None
    return solver


def views(vector: Tensor, shapes: Sequence[torch.Size], channels_last: bool = False) -> list[Tensor]:
    """Views of these shapes into a vector (P,), or into rows (clients, P); convolutions may be channels last."""
    rows, parts = vector.shape[:-1], []
    for part, shape in zip(torch.split(vector, [s.numel() for s in shapes], -1), shapes, strict=True):
        last = channels_last and len(shape) == 4
        order = (shape[0], *shape[2:], shape[1]) if last else shape
        parts.append(part.view(*rows, *order).movedim(-1, len(rows) + 1) if last else part.view(*rows, *order))
    return parts


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


class RowOptimiser:
    """SGD, Adam and AdamW on rows, (clients, P), clipped row by row."""

    def __init__(self, config: SgdConfig, like: Tensor) -> None:
        self._config = config
        adam = config.optimizer != "sgd"
        self.velocity = torch.zeros_like(like if config.momentum or adam else like[:0])
        self._square = torch.zeros_like(like if adam else like[:0])

    def reset(self) -> None:
        """Forget velocities and moments: they belong to the weights they moved."""
        self.velocity.zero_()
        self._square.zero_()

    def __call__(self, w: Tensor, g: Tensor, knobs: Tensor) -> None:
        """Change the first rows `w` by one step; `g` is overwritten."""
        config, k = self._config, len(w)
        rate, shrink, root = knobs[:, 0:1], knobs[:, 1:2], knobs[:, 2:3]
        if config.clip_norm is not None:
            norm = torch.linalg.vector_norm(g, dim=1, keepdim=True)
            clip_to(config.clip_norm, g, norm)
        if config.weight_decay and config.optimizer == "adamw":
            w.mul_(shrink)
        elif config.weight_decay:
            g.add_(w, alpha=config.weight_decay)
        v = self.velocity[:k]
        if config.optimizer == "sgd":
            if config.momentum:
                g = momentum_direction(g, v, False, config.momentum, config.nesterov)
            w.addcmul_(g, rate)
            return
        square = self._square[:k]
        v.lerp_(g, 1.0 - config.betas[0])
        square.mul_(config.betas[1]).addcmul_(g, g, value=1.0 - config.betas[1])
        w.addcmul_(v / square.sqrt().div_(root).add_(config.eps or 1e-8), rate)


@functools.cache
def one_pass() -> bool:
    """True if this PyTorch has the private one-pass update, with the signature used here."""
    a, b, c = torch.zeros(3, 1)
    try:
        _fused_sgd([a], [b], [c], weight_decay=0.0, momentum=0.9, lr=0.1, nesterov=False, is_first_step=True)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return True
