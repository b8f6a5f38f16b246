"""Faster forms of common layers on a CPU, with the same mathematics.

The network's layers and the processor decide, never a timing.  Every form equals PyTorch's layers within rounding, and
a missing private operator is replaced by the public one.

    channels last   convolutions read and write memory in the order oneDNN's kernels want
    pool, then ReLU max(relu(x)) = relu(max(x)), on a quarter of the numbers
    linear layers   through oneDNN on AMD from Zen 5 on, where MKL takes its slow path (unskew/local/dense.py)
    small blocks    forward passes without gradients take blocks whose layers' outputs stay in the cache
"""

from typing import Any

import torch
from torch import Tensor, nn

from unskew.local.dense import ONEDNN_FROM, onednn, onednn_is_faster
from unskew.models.network import Network


def wants_channels_last(module: nn.Module) -> bool:
    """True if convolutions are faster channels last: always, except with group norm, which has no such kernel."""
    parts = list(module.modules())
    has_conv = any(isinstance(m, nn.Conv2d) for m in parts)
    return has_conv and not any(isinstance(m, nn.GroupNorm) for m in parts)


def forward_block(module: nn.Module) -> int | None:
    """Most examples for one forward pass without gradients; None if it does not matter.

    Convolutions and recurrent layers put out far more than they read: for 1000 images hundreds of megabytes.
    """
    grows = any(isinstance(m, nn.Conv2d | nn.RNNBase) for m in module.modules())
    return 125 if grows else None


def tune(module: nn.Module) -> None:
    """Rewrite a network in place; parameters keep their names and shapes."""
    if type(module) is Network:  # a user's forward pass may iterate over its layers, and then their order matters
        for part in module.modules():
            if type(part) is nn.Sequential:
                _pool_first(part)
    if onednn_is_faster():
        for part in module.modules():
            if type(part) is nn.Linear:
                part.__class__ = _Linear


def _pool_first(sequence: nn.Sequential) -> None:
    children = list(sequence._modules.items())
    if len({id(child) for _, child in children}) < len(children):  # a layer in two places keeps both
        return
    for i in range(len(children) - 1):
        if type(children[i][1]) is nn.ReLU and type(children[i + 1][1]) is nn.MaxPool2d:
            children[i], children[i + 1] = children[i + 1], children[i]
    for name, _ in children:
        del sequence._modules[name]
    sequence._modules.update(children)


class _Linear(nn.Linear):
    """A linear layer that goes through oneDNN where the product is large enough."""

    def forward(self, x: Tensor) -> Tensor:
        """The product, and the bias added."""
        if torch.is_autocast_enabled(x.device.type):
            return super().forward(x)
        if x.dim() != 2 or x.dtype is not torch.float32 or len(x) * self.weight.numel() < ONEDNN_FROM:
            return super().forward(x)
        out: Tensor = _Product.apply(x, self.weight)  # type: ignore[no-untyped-call]
        return out if self.bias is None else out + self.bias


class _Product(torch.autograd.Function):
    """`x @ w.T` and its two gradients through oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return onednn(x, w)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w = ctx.saved_tensors
        g = grads[0].contiguous()
        # Products like any other, so that they have gradients of their own: the operator itself has none, and would
        # leave a second derivative zero.
        dx = _Product.apply(g, w.t()) if ctx.needs_input_grad[0] else None  # type: ignore[no-untyped-call]
        dw = _Product.apply(g.t(), x.t()) if ctx.needs_input_grad[1] else None  # type: ignore[no-untyped-call]
        return dx, dw
