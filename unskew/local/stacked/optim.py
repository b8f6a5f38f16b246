"""SGD, Adam and AdamW on rows of clients: the arithmetic of `unskew.local.optim`, with a learning rate per row."""

import torch
from torch import Tensor

from unskew.local.optim import clip_to, momentum_direction, update_moments
from unskew.protocol import SgdConfig


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
        update_moments(v, square, g, config.betas)
        w.addcmul_(v / square.sqrt().div_(root).add_(config.eps), rate)
