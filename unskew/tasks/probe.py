"""What a run of a network on a few examples shows: its head, and the buffers that training changes.

Names and types of layers do not show this.  A head may be registered first, a layer may be unused, and a floating
buffer is a statistic in one layer and a mask in another.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from unskew.keys import Key, drawn_since, global_states
from unskew.protocol import is_part
from unskew.tree import Tree


def head_of(module: nn.Module, examples: Tensor | Tree, width: int) -> tuple[str, ...]:
    """The layer that makes the `width` outputs; none if a run does not show one.

    It is the last layer called that has parameters, and its weight has a row for each output.  A test shows that its
    outputs stay linear: they double with its parameters, and not with those of a layer around it.  The network takes
    the examples, (batch, *input_shape), in evaluation mode, and stays in it.
    """
    called: list[tuple[str, nn.Module]] = []
    hooks = [
        layer.register_forward_hook(lambda layer, *_, name=name: called.append((name, layer)))
        for name, layer in module.eval().named_modules()
        if any(True for _ in layer.parameters(recurse=False))
    ]

    def outputs() -> Tensor:
        with _quietly(), torch.no_grad():
            out: Tensor = module(examples.clone())
        return out

    def makes(layer: nn.Module, once: Tensor) -> bool:
        own = list(layer.parameters(recurse=False))
        with torch.no_grad():
            for p in own:
                p.mul_(2.0)
            try:
                return torch.allclose(outputs(), 2.0 * once, rtol=1e-3, atol=1e-5)
            finally:
                for p in own:
                    p.div_(2.0)

    try:
        once = outputs()
        calls = called[::-1]
        around = [layer for name, layer in calls if any(is_part(other, name) and other != name for other, _ in calls)]
        name, layer = next((name, layer) for name, layer in calls if layer not in around)
        weight = layer.weight
        if not isinstance(weight, Tensor) or weight.dim() < 2 or len(weight) not in (1, width):
            return ()
        return (name,) if makes(layer, once) and not any(makes(outer, once) for outer in around) else ()
    except Exception:  # the network may be user code; `check_network` says what it cannot take
        return ()
    finally:
        for hook in hooks:
            hook.remove()


# ---------------------------------------------------------------- what training changes
PASSES = 4
"""Passes in which a buffer that training changes is changed: some wait for a warm-up, or for every second one."""


def statistics_of(module: nn.Module, examples: Tensor | Tree) -> frozenset[str]:
    """Buffers that training passes change, or write to in a layer where they change another.

    A mean may stay zero by chance beside a variance, and a mask may be recomputed.  All floating buffers, if the
    network cannot take the examples, (batch, *input_shape).  Buffers are then restored; the network is in training
    mode.
    """
    before = {n: (b, b._version, b.clone()) for n, b in module.named_buffers()}
    try:
        with _quietly(), torch.enable_grad():
            for _ in range(PASSES):
                outputs = tree_leaves(module.train()(examples.clone()))
                torch.autograd.backward([t.sum() for t in outputs if isinstance(t, Tensor) and t.requires_grad])
        module.zero_grad()
        after = dict(module.named_buffers())
        changed = {n for n in before if n not in after or not same_values(after[n], before[n][2])}
        written = {n for n, (b, version, _) in before.items() if after.get(n) is not b or b._version != version}
    except Exception:  # as BatchNorm's of a single example
        changed = written = {n for n, (b, _, _) in before.items() if b.is_floating_point()}
    layers = {n.rpartition(".")[0] for n in changed}
    for n, (b, _, value) in before.items():
        layer, _, name = n.rpartition(".")
        owner = module.get_submodule(layer)
        setattr(owner, name, b if same_values(b, value) else b.copy_(value))
        # PyTorch's normalisation does not count what it writes.
        if layer in layers and (n in written or isinstance(owner, nn.modules.batchnorm._NormBase)):
            changed.add(n)
    return frozenset(changed)


def draws_in_evaluation(module: nn.Module, examples: Tensor | Tree) -> list[str]:
    """Global generators that an evaluation pass draws from, as `global_states` names them."""
    with _quietly(), torch.no_grad():
        before = global_states()
        with suppress(Exception):  # the network may be user code; `check_network` says what it cannot take
            module.eval()(examples.clone())
        return drawn_since(before)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without warnings, which the run gives again, and without a trace in the process's random numbers."""
    with Key(0).ambient(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def same_values(one: Tensor, other: Tensor) -> bool:
    """True if two tensors have equal numbers in equal places; NaN equals NaN."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())
