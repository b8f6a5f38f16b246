"""A task: a network, its loss, and which tensors play which part.  No data, no device, no optimiser."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unskew.errors import ConfigError
from unskew.keys import Key
from unskew.protocol import Layout
from unskew.tree import Params

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Negative log-likelihood of each example, (batch,)."""
    return F.cross_entropy(logits, y, reduction="none")


def multi_margin(logits: Tensor, y: Tensor) -> Tensor:
    """Crammer and Singer's hinge of each example, (batch,): the linear SVM's loss."""
    return F.multi_margin_loss(logits, y, reduction="none")


LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy, "multi_margin": multi_margin}

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


@dataclass(frozen=True, eq=False)
class Task:
    """A network to train.

    Attributes:
        build: Makes a fresh network, drawing its initial values from PyTorch's ambient generator.
        loss: Loss of each example from (logits, labels), (batch,).
        num_classes: Width of the logits.
        head: Name of the classification layer inside the network.
        layout: The tensors' names by role.
        batch_norm: True if some layer takes statistics over the batch, so that a batch needs two examples.
        random: True if training draws random numbers (dropout).
    """

    build: Callable[[], nn.Module]
    loss: Loss
    num_classes: int
    head: str
    layout: Layout
    batch_norm: bool
    random: bool

    @property
    def min_batch(self) -> int:
        """Smallest number of examples that a batch may have."""
        return 2 if self.batch_norm else 1

    def module(self) -> nn.Module:
        """A network whose values are about to be replaced."""
        with Key(0).ambient():
            return _without_counters(self.build())

    def init(self, key: Key) -> Params:
        """Initial parameters and buffers for a key, in module order."""
        with key.ambient():
            module = self.build()
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return {n: tensors[n].detach().clone() for n in (*self.layout.trainable, *self.layout.buffers)}


def make_task(
    build: Callable[[], nn.Module],
    num_classes: int,
    *,
    loss: str | Loss = "cross_entropy",
    head: str | None = None,
) -> Task:
    """Read a network's parts.

    Args:
        build: Makes a fresh network; called under a keyed generator.
        num_classes: Width of the logits.
        loss: A name in LOSSES, or a function from (logits, labels) to the loss of each example.
        head: Name of the classification layer; by default the network's last linear layer.

    Raises:
        ConfigError: If the loss or the head is unknown, or a tensor is shared between two names.
    """
    if isinstance(loss, str) and loss not in LOSSES:
        raise ConfigError(f"task.loss must be one of {', '.join(LOSSES)}, got {loss!r}")
    with Key(0).ambient():
        module = _without_counters(build())
    modules = dict(module.named_modules())
    linear = [n for n, m in modules.items() if isinstance(m, nn.Linear)]
    if head is None:
        if not linear:
            raise ConfigError(
                f"{type(module).__name__} has no linear layer to be its head; say with task.head which layer makes the "
                f"logits (it has {', '.join(filter(None, modules))})"
            )
        head = linear[-1]
    elif head not in modules:
        raise ConfigError(
            f"task.head: {type(module).__name__} has no layer {head!r}; it has {', '.join(filter(None, modules))}"
        )
    first: dict[int, str] = {}
    for n, t in (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)):
        if first.setdefault(id(t), n) != n:
            raise ConfigError(
                f"{first[id(t)]} and {n} are one tensor of {type(module).__name__}, and only one of them would be "
                "trained; give each layer its own"
            )
    trainable = tuple(n for n, p in module.named_parameters() if p.requires_grad)
    buffers = tuple(n for n, b in module.named_buffers() if b.is_floating_point())
    frozen = [n for n, p in module.named_parameters() if not p.requires_grad]
    if frozen:
        raise ConfigError(
            f"{type(module).__name__} has frozen parameters ({', '.join(frozen[:3])}); register them as buffers, or "
            "leave them free and choose what is trained with local.trainable"
        )
    norm_layers = [n for n, m in modules.items() if isinstance(m, _NORMS)]
    every = (*trainable, *buffers)
    layout = Layout(
        trainable,
        buffers,
        head=tuple(n for n in every if n.startswith(f"{head}.")),
        norm=tuple(n for n in every if n.rpartition(".")[0] in norm_layers),
        classifier=f"{head}.weight" if f"{head}.weight" in trainable else None,
    )
    return Task(
        build,
        LOSSES[loss] if isinstance(loss, str) else loss,
        num_classes,
        head,
        layout,
        batch_norm=any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in modules.values()),
        random=any(_draws(m) for m in modules.values()),
    )


def check_network(task: Task, examples: Tensor) -> None:
    """Refuse a network that cannot take the data or does not return logits, by one forward pass.

    Args:
        task: The network, as `make_task` has read it.
        examples: One or two examples as training sees them, (batch, *input_shape).

    Raises:
        ConfigError: If so; names the network, the shape of the examples, and what the network did instead.
    """
    module = task.module().eval()
    name, wanted = type(module).__name__, (len(examples), task.num_classes)
    shapes = f"examples of shape {tuple(examples.shape[1:])}"
    try:
        with torch.no_grad(), Key(0).ambient():
            logits = module(examples)
    except Exception as error:  # the network may be user code
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{name} cannot take {shapes} and {examples.dtype}: {type(error).__name__}: {reason}; give its first layer "
            "the width of the data, or reshape in its forward"
        ) from error
    if not isinstance(logits, Tensor):
        raise ConfigError(
            f"{name} must return logits of shape {wanted} for {len(examples)} {shapes}, got {type(logits).__name__}; "
            "return one tensor"
        )
    if tuple(logits.shape) != wanted or not logits.is_floating_point():
        raise ConfigError(
            f"{name} must return floating logits of shape {wanted} for {len(examples)} {shapes} and "
            f"{task.num_classes} classes, got {logits.dtype} of shape {tuple(logits.shape)}; give its last layer "
            f"{task.num_classes} outputs" + (", two classes need two" if task.num_classes == 2 else "")
        )


def _draws(m: nn.Module) -> bool:
    """True for a layer that draws random numbers in training.  Draws of a network's own forward pass cannot be seen."""
    if isinstance(m, nn.modules.dropout._DropoutNd):
        return m.p > 0
    if isinstance(m, nn.RNNBase | nn.MultiheadAttention):
        return m.dropout > 0
    return isinstance(m, nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d)


def _without_counters(module: nn.Module) -> nn.Module:
    """Drop BatchNorm's integer counters: nothing reads them at a fixed momentum, and averages of them mean nothing."""
    for m in module.modules():
        if isinstance(m, nn.modules.batchnorm._NormBase) and m.momentum is not None:
            m.num_batches_tracked = None
    return module


def parameter_count(params: Params, layout: Layout) -> int:
    """Trainable numbers in `params`."""
    return sum(params[n].numel() for n in layout.trainable)


def accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """1 where the largest logit is the label's, (batch,) bool."""
    return logits.argmax(1) == y
