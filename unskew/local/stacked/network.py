"""Properties of a network that decide whether clients can be stacked, found by trying it on three examples.

    draws      it draws random numbers that cannot be keyed by client, or counts batches: one client at a time
    padded     the examples of a training batch do not interact, so a short batch may be padded and masked
    stacks     `torch.func.vmap` has a rule for everything in it

A trial works for any network.
"""

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from unskew.data.rows import ByteImages
from unskew.keys import Key
from unskew.local.workspace import Attributes
from unskew.tasks.probe import same_values
from unskew.tasks.task import Task, of_type

# Constants of SplitMix64 (Steele, Lea, Flood 2014), as signed 64-bit integers.
_GOLDEN, _MIX_1, _MIX_2 = (c - 2**64 for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_BITS = 62


def scatter(place: Tensor) -> Tensor:
    """Sixty-two random bits for each place: SplitMix64's finaliser, int64 to int64 in [0, 2^62)."""
    z: Tensor = place * _GOLDEN
    z = (z ^ ((z >> 30) & (2**34 - 1))) * _MIX_1
    z = (z ^ ((z >> 27) & (2**37 - 1))) * _MIX_2
    return z.bitwise_xor((z >> 31) & (2**33 - 1)).bitwise_and(2**_BITS - 1)


class KeyedDropout(nn.Module):
    """Dropout whose mask depends only on `seed` and on each number's place in the batch.

    A client's masks do not depend on the others trained with it.  They are not those of `nn.Dropout` under the same
    key: with dropout a stacked run equals a sequential one in distribution only.

    Args:
        p: Probability of zero.
        whole_maps: Drop channels of (batch, channels, ...) instead of single numbers.
    """

    seed: Tensor

    def __init__(self, p: float, whole_maps: bool) -> None:
        super().__init__()
        self.p, self.whole_maps = p, whole_maps
        self.register_buffer("seed", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Drop numbers or channels as `nn.Dropout` does."""
        if not self.training or self.p == 0.0:
            return x
        if self.p == 1.0:
            return x * 0.0
        shape = (*x.shape[:2], *(1 for _ in x.shape[2:])) if self.whole_maps else x.shape
        place = torch.arange(math.prod(shape), device=x.device).view(shape)
        keep = scatter(self.seed + place) >= int(self.p * 2**_BITS)
        return x * (keep.to(x.dtype) / (1.0 - self.p))


def with_keyed_dropout(module: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """The module with every dropout layer replaced, in place, and the names of their seeds."""
    names = []
    for name, part in list(module.named_modules()):
        if isinstance(part, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
            owner, _, last = name.rpartition(".")
            new = KeyedDropout(part.p, whole_maps=not isinstance(part, nn.Dropout)).train(part.training)
            setattr(module.get_submodule(owner), last, new)
            names.append(f"{name}.seed")
    return module, tuple(names)


@dataclass(frozen=True, eq=False)
class NetworkTraits:
    """Properties of a network; see the module's docstring.

    Attributes:
        task: The network and its loss.
        x, y: The examples of the trial, on the CPU.
        draws: Reason why its randomness cannot be keyed by client, or None.
        drops: True if it has dropout.
        padded: True if a training batch may be padded.
        apart: True if examples do not interact in evaluation mode.
        activations: Numbers that the forward pass of one example makes.
    """

    task: Task
    x: Tensor
    y: Tensor
    draws: str | None
    drops: bool
    padded: bool
    apart: bool
    activations: int

    @cached_property
    def refuses(self) -> str | None:
        """Why `vmap` cannot take the network's forward pass, loss and gradient; None if it can."""
        module, _ = with_keyed_dropout(self.task.module().double().train())
        names = (*self.task.layout.trainable, *self.task.layout.buffers)
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        stack = {n: torch.stack([tensors[n].detach()] * 2) for n in names}
        for n in self.task.layout.trainable:
            stack[n].requires_grad_()

        def loss(params: dict[str, Tensor], x: Tensor) -> Tensor:
            logits: Tensor = functional_call(module, dict(params), (x,), strict=False)
            return self.task.loss(logits, self.y).sum()

        x = torch.stack([self.x] * 2)
        try:
            with warnings.catch_warnings(), torch.enable_grad():
                warnings.simplefilter("error")  # a missing rule is a warning, and a loop over the clients
                value = vmap(loss)(stack, x)
                torch.autograd.grad(value.sum(), [stack[n] for n in self.task.layout.trainable], allow_unused=True)
                module.eval()
                vmap(loss)(stack, x)
                vmap(loss, in_dims=(0, None))(stack, self.x)  # models are evaluated on rows that they share
        except Exception as error:
            return str(error).strip().partition("\n")[0][:200]
        return None


def probe(task: Task, inputs: Tensor | ByteImages, y: Tensor, dtype: torch.dtype = torch.float64) -> NetworkTraits:
    """Try the network on the first three of these examples, in this precision if possible."""
    pick = torch.arange(3) % len(y)
    x, y = inputs[pick.to(inputs.device)].cpu(), y[pick.to(y.device)].cpu()
    x, y = (t.to(dtype) if t.is_floating_point() else t for t in (x, y))
    module, seeds = with_keyed_dropout(of_type(task.module(), dtype))
    attributes = Attributes(module)
    try:
        with torch.no_grad(), Key(0).ambient():
            before, state = {n: b.clone() for n, b in module.named_buffers()}, torch.get_rng_state()
            activations = _count(module.train(), x)
            drew = not torch.equal(torch.get_rng_state(), state)
            after = dict(module.named_buffers())
            moved = [n for n in before if not same_values(before[n], after[n])]
            counted = [n for n in moved if not before[n].is_floating_point()]
            apart = [_apart(module.train(mode), x) for mode in (True, False)]
    except RuntimeError:  # its forward pass makes tensors of its own
        if dtype == task.dtype:
            raise
        return probe(task, inputs, y, task.dtype)
    draws = "its forward pass draws random numbers of its own" if drew else None
    if name := attributes.changed():
        draws = f"its forward pass changes its attribute {name}"
    if counted:
        draws = f"{counted[0]} counts batches"
    return NetworkTraits(
        task,
        x,
        y,
        draws,
        bool(seeds),
        not moved and apart[0] and not task.batch_norm and not task.batchwise,
        apart[1],
        activations,
    )


def _apart(module: nn.Module, x: Tensor) -> bool:
    """True if two examples give the same outputs without the third."""
    return torch.allclose(module(x)[:2], module(x[:2]), rtol=1e-9, atol=1e-12)


def _count(module: nn.Module, x: Tensor) -> int:
    """Numbers that layers put out for one example."""
    sizes: list[int] = []

    def note(_layer: nn.Module, _inputs: Any, out: Any) -> None:
        sizes.extend(t.numel() for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, Tensor))

    handles = [m.register_forward_hook(note) for m in module.modules() if not list(m.children())]
    module(x)
    for handle in handles:
        handle.remove()
    return sum(sizes) // len(x) + 1
