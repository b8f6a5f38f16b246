"""SGD, Adam and AdamW on one flat vector.

All tensors being trained are views of one vector, so an update is a handful of operations whatever the number of
layers.  The arithmetic is that of `torch.optim`, which the tests compare with.

On a CPU an update with a memory goes through each vector once, by the private operators behind `torch.optim`'s
`fused=True`: half of SGD's time with momentum, a quarter of Adam's.  `one_pass` says whether they are there; the
public operations they stand for are written out beside them.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from unskew.protocol import SgdConfig

Update = Callable[[Tensor, Tensor], None]


def optimiser(config: SgdConfig, lr: float, like: Tensor) -> Update:
    """A function `update(w, g)` that changes the vector `w` in place by one step; `g` may be overwritten.

    Args:
        config: Which optimiser, with its constants.
        lr: Learning rate in force.
        like: A vector of the size, type and device of `w`.
    """
    clip = config.clip_norm
    rule = _sgd(config, lr, like) if config.optimizer == "sgd" else _adam(config, lr, like)

    def update(w: Tensor, g: Tensor) -> None:
        if clip is not None:
            g.mul_((clip / (torch.linalg.vector_norm(g) + 1e-6)).clamp_(max=1.0))
        rule(w, g)

    return update


def _sgd(config: SgdConfig, lr: float, like: Tensor) -> Update:
    decay, momentum, nesterov = config.weight_decay, config.momentum, config.nesterov
    velocity: Tensor | None = None  # made when it is first needed: `dense` has its own

    def update(w: Tensor, g: Tensor) -> None:
        nonlocal velocity
        if momentum:
            first = velocity is None
            velocity = torch.empty_like(like) if velocity is None else velocity
            momentum_step([w], [g], [velocity], first, lr, momentum, decay, nesterov)
            return
        if decay:
            g.add_(w, alpha=decay)
        w.add_(g, alpha=-lr)

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

    The first sets velocities, whatever they were.
    """
    if weights[0].device.type == "cpu" and one_pass():
        _momentum_at_once(weights, gradients, velocities, first, lr, momentum, decay, nesterov)
        return
    for w, g, v in zip(weights, gradients, velocities, strict=True):
        if decay:
            g.add_(w, alpha=decay)
        if first:
            v.copy_(g)
        else:
            v.mul_(momentum).add_(g)
        w.add_(g.add_(v, alpha=momentum) if nesterov else v, alpha=-lr)


def _momentum_at_once(
    weights: list[Tensor],
    gradients: list[Tensor],
    velocities: list[Tensor],
    first: bool,
    lr: float,
    momentum: float,
    decay: float,
    nesterov: bool,
) -> None:
    torch._fused_sgd_(
        weights,
        gradients,
        velocities,
        weight_decay=decay,
        momentum=momentum,
        lr=lr,
        dampening=0.0,
        nesterov=nesterov,
        maximize=False,
        is_first_step=first,
    )


def _adam(config: SgdConfig, lr: float, like: Tensor) -> Update:
    decoupled, decay, (beta1, beta2) = config.optimizer == "adamw", config.weight_decay, config.betas
    mean, square = torch.zeros_like(like), torch.zeros_like(like)
    count = 0
    if like.device.type == "cpu" and one_pass():
        return _adam_at_once(config, lr, mean, square)

    def update(w: Tensor, g: Tensor) -> None:
        nonlocal count
        count += 1
        if decay and decoupled:
            w.mul_(1.0 - lr * decay)
        elif decay:
            g.add_(w, alpha=decay)
        mean.lerp_(g, 1.0 - beta1)
        square.mul_(beta2).addcmul_(g, g, value=1.0 - beta2)
        scale = square.sqrt().div_((1.0 - beta2**count) ** 0.5).add_(config.eps)
        w.addcdiv_(mean, scale, value=-lr / (1.0 - beta1**count))

    return update


def _adam_at_once(config: SgdConfig, lr: float, mean: Tensor, square: Tensor) -> Update:
    (beta1, beta2), count = config.betas, torch.zeros(())
    step = torch._fused_adamw_ if config.optimizer == "adamw" else torch._fused_adam_

    def update(w: Tensor, g: Tensor) -> None:
        count.add_(1)
        step(
            [w],
            [g],
            [mean],
            [square],
            [],
            [count],
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            weight_decay=config.weight_decay,
            eps=config.eps,
            amsgrad=False,
            maximize=False,
        )

    return update


@functools.cache
def one_pass() -> bool:
    """Whether this PyTorch has its private one-pass updates, in the form in which they are called here."""
    a, b, c, d = torch.zeros(4, 1)
    try:
        _momentum_at_once([a], [b], [c], True, 0.1, 0.9, 0.0, False)
        for name in ("adam", "adamw"):
            _adam_at_once(SgdConfig(optimizer=name), 0.1, a, b)(c, d)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return True
