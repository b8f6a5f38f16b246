"""SGD, Adam and AdamW on one flat vector.

All tensors being trained are views of one vector, so an update is a handful of operations whatever the number of
layers.  The arithmetic is that of `torch.optim`, which the tests compare with.
"""

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
    velocity = torch.zeros_like(like) if momentum else None

    def update(w: Tensor, g: Tensor) -> None:
        if decay:
            g.add_(w, alpha=decay)
        if velocity is None:
            w.add_(g, alpha=-lr)
            return
        velocity.mul_(momentum).add_(g)
        w.add_(g.add_(velocity, alpha=momentum) if nesterov else velocity, alpha=-lr)

    return update


def _adam(config: SgdConfig, lr: float, like: Tensor) -> Update:
    decoupled, decay, (beta1, beta2) = config.optimizer == "adamw", config.weight_decay, config.betas
    mean, square = torch.zeros_like(like), torch.zeros_like(like)
    count = 0

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
