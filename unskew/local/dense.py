"""Gradients of fully connected networks by hand.

For a stack of linear layers with ReLU between them and cross-entropy on top, autograd's bookkeeping costs more than the
arithmetic.  Written out, with A_0 the batch, (B, d_0), and W_l of shape (d_l, d_{l-1}),

    forward    Z_l = A_{l-1} W_l^T + b_l        A_l = max(Z_l, 0)                                     (1)
    at the top G_L = (softmax(Z_L) - onehot(y)) / B                                                   (2)
    backward   dW_l = G_l^T A_{l-1}             db_l = column sums of G_l                             (3)
               G_{l-1} = (G_l W_l) * [A_{l-1} > 0]                                                    (4)

and under plain SGD (3) is added to the weights directly, with the division in (2).  With momentum one pass moves
weights and velocities.  Losses are computed from the logits of many steps at once.  Equal to autograd within rounding;
`kernel` returns None for any other network or loss.
"""

import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from unskew.local.optim import momentum_step
from unskew.models.network import Network
from unskew.protocol import SgdConfig
from unskew.tasks.classification import cross_entropy
from unskew.tasks.task import Task

# Below this many multiply-adds a oneDNN call costs more than it saves.
ONEDNN_FROM = 1_250_000

ZEN5 = 26  # AMD's number of that family

Accumulate = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Layer:
    """Names of a linear layer's tensors, and whether a ReLU follows."""

    weight: str
    bias: str | None
    relu: bool


def kernel(task: Task) -> tuple[Layer, ...] | None:
    """The network as a stack of trainable linear layers; None if it is anything else, or has another loss."""
    module = task.module()
    if task.loss is not cross_entropy or type(module) is not Network or module.softmax or task.layout.frozen:
        return None
    body = {"": module.body} if isinstance(module.body, nn.Flatten) else dict(module.body.named_children())
    layers: list[Layer] = []
    for name, part in body.items():
        if isinstance(part, nn.Linear):
            if layers and not layers[-1].relu:
                return None
            layers.append(Layer(f"body.{name}.weight", f"body.{name}.bias" if part.bias is not None else None, False))
        elif isinstance(part, nn.ReLU) and layers and not layers[-1].relu:
            layers[-1] = Layer(layers[-1].weight, layers[-1].bias, True)
        elif not (isinstance(part, nn.Flatten) and not layers):
            return None
    if not isinstance(module.head, nn.Linear) or (layers and not layers[-1].relu):
        return None
    return (*layers, Layer("head.weight", "head.bias" if module.head.bias is not None else None, False))


@functools.cache
def onednn_is_faster() -> bool:
    """True if linear layers should use oneDNN: on AMD from Zen 5 on.  A rule, not a timing.

    On AMD, MKL multiplies 256 bits at a time and oneDNN 512.  Zen 4 and older process these in two halves, and there
    MKL is level for large products and ahead for small ones; Zen 5 processes them whole.
    """
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text()
        torch.ops.mkldnn._linear_pointwise(torch.ones(2, 2), torch.ones(2, 2), None, "none", [], "")
    except (OSError, AttributeError, RuntimeError):
        return False
    family = re.search(r"^cpu family\s*: (\d+)$", cpuinfo, re.MULTILINE)
    wide = "AuthenticAMD" in cpuinfo and family is not None and int(family[1]) >= ZEN5
    return wide and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def onednn(a: Tensor, b: Tensor, bias: Tensor | None = None, then: Literal["none", "relu"] = "none") -> Tensor:
    """`a @ b.T + bias` and the activation after it, by oneDNN; strided views are allowed."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, bias, then, [], "")
    return out


def stepper(
    layers: tuple[Layer, ...],
    tensors: Mapping[str, Tensor],
    gradient: Mapping[str, Tensor],
    velocity: Callable[[], Mapping[str, Tensor]],
    config: SgdConfig,
    lr: float,
    update: Callable[[], None],
    extra: Callable[[], None] | None,
) -> Accumulate:
    """A function `step(x, targets)` that takes one step in place and returns the logits, (classes, batch).

    `targets` are one-hot rows, (batch, classes).  Call it without recording gradients.

    Args:
        layers: The network.
        tensors: Its parameters; changed in place.
        gradient: Memory for the gradient of each; a bias without one is not trained.
        velocity: Returns memory for the velocity of each, if there is one; its content does not matter.
        config, lr: The optimisation, which decides whether gradients can go straight into the weights.
        update: Applies the optimiser to parameters and gradients, where they cannot.
        extra: Adds the gradient of the terms to `gradient`; None if there are no terms.
    """
    weights = [tensors[layer.weight].data for layer in layers]
    biases = [tensors[layer.bias].data if layer.bias else None for layer in layers]
    d_weights = [gradient[layer.weight] for layer in layers]
    d_biases = [gradient.get(layer.bias) if layer.bias else None for layer in layers]
    relu = [layer.relu for layer in layers]
    straight = (
        config.optimizer == "sgd"
        and config.clip_norm is None
        and not config.weight_decay
        and not config.nesterov
        and extra is None
    )
    plain = straight and not config.momentum
    # The last layer first, as gradients are found.
    moving = [n for layer in reversed(layers) for n in (layer.weight, layer.bias) if n and n in gradient]
    moved, first = [tensors[n].data for n in moving], True
    velocities = [velocity()[n] for n in moving] if straight and not plain else []
    fast = weights[0].dtype is torch.float32 and onednn_is_faster()
    size = [w.numel() for w in weights]
    top = None if biases[-1] is None else biases[-1][:, None]

    small = [False] * len(size)

    def step(x: Tensor, targets: Tensor) -> Tensor:
        nonlocal first
        n = targets.shape[0]
        big = [n * k >= ONEDNN_FROM for k in size] if fast else small
        a = x if x.dim() == 2 else x.reshape(n, -1)
        inputs = []
        for w, b, r, large in zip(weights, biases, relu, big, strict=True):  # (1)
            inputs.append(a)
            if w is weights[-1]:  # classes by examples: a tall, narrow product is MKL's slowest
                break
            if large:
                a = onednn(a, w, b, "relu" if r else "none")
                continue
            a = a @ w.t() if b is None else torch.addmm(b, a, w.t())
            if r:
                a.relu_()
        logits = weights[-1] @ a.t() if top is None else torch.addmm(top, weights[-1], a.t())
        across = torch.softmax(logits, 0).sub_(targets.t())  # G^T of (2), but for the division
        if not plain:
            across.div_(n)
        gradients: list[Tensor] = []
        for i in range(len(weights) - 1, -1, -1):
            w, b, a, d_b = weights[i], biases[i], inputs[i], d_biases[i]
            below = None
            if i:  # (4), before the weights move
                g = across.t()
                below = torch.ops.aten.threshold_backward(onednn(g, w.t()) if big[i] else g @ w, a, 0)
            if plain:  # (3), times -lr and with the division, added where it belongs
                if big[i]:
                    w.add_(onednn(across, a.t()), alpha=-lr / n)
                else:
                    w.addmm_(across, a, alpha=-lr / n)
                if b is not None and d_b is not None:
                    b.sub_(across.sum(1), alpha=lr / n)
            elif straight:
                gradients.append(onednn(across, a.t()) if big[i] else across @ a)
                if d_b is not None:
                    gradients.append(across.sum(1))
            else:
                if big[i]:
                    d_weights[i].copy_(onednn(across, a.t()))
                else:
                    torch.mm(across, a, out=d_weights[i])
                if d_b is not None:
                    torch.sum(across, 1, out=d_b)
            if below is not None:
                across = below.t()
        if gradients:
            momentum_step(config, lr, moved, gradients, velocities, first)
            first = False
        if not straight:
            if extra is not None:
                extra()
            update()
        return logits

    return step


def losses(steps: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Sum of the mean losses of batches: (logits (classes, batch), targets (batch, classes)) of each."""
    logits, targets = torch.cat([z for z, _ in steps], 1), torch.cat([y for _, y in steps])
    each = (torch.log_softmax(logits, 0) * targets.t()).sum(0)
    # Batches of one size lie side by side.
    runs = [(n, n * len(list(several))) for n, several in itertools.groupby(len(y) for _, y in steps)]
    parts = torch.split(each, [total for _, total in runs])
    return torch.stack([part.sum() / -n for part, (n, _) in zip(parts, runs, strict=True)]).sum()
