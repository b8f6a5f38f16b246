"""Facts learnt by running a network on a few examples: its head, and the buffers that training changes.

A run shows what names and types of layers cannot: a head may be registered first, a layer may be unused, and a floating
buffer is a statistic in one layer and a mask in another.
"""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unskew.keys import Key, drawn_since, global_states


# ---------------------------------------------------------------- what makes the outputs
class _Flow(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows examples and parameters through a forward pass, memory by memory, as views share it.

    An operation on what comes from the examples and on parameters is a layer's, and what came before it are features.
    A vector that is no longer than the outputs, such as a bias or a temperature, only adjusts what a layer has made.
    """

    def __init__(self, module: nn.Module, examples: Tensor, width: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        parameters = dict(module.named_parameters())
        self.adjusting = {n for n, p in parameters.items() if p.dim() < 2 and p.numel() <= width}
        # What came from examples has the parameters that made it last, all else those that it is made of.
        self.makers: dict[object, frozenset[str]] = {_memory(examples): frozenset()}
        self.parts = {_memory(p): frozenset((n,)) for n, p in parameters.items()}
        self.kept: list[Tensor] = [examples]  # or memory would be used again under the same address

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given, results = _memories((args, kwargs)), _memories(out)
        own = _union(self.parts.get(m) for m in given if m not in self.makers)
        from_examples = not given.isdisjoint(self.makers)
        self.kept += (t for t in tree_leaves(out) if isinstance(t, Tensor))
        for m in results - (given if func.is_view else set()):
            if from_examples:
                self.makers[m] = own if own - self.adjusting else own | _union(map(self.makers.get, given))
            elif own:
                self.parts[m] = own
        return out


def _memory(t: Tensor) -> object:
    return t.untyped_storage()._cdata if t.layout == torch.strided else id(t)


def _union(sets: Iterable[frozenset[str] | None]) -> frozenset[str]:
    return frozenset[str]().union(*filter(None, sets))


def _memories(tree: Any) -> set[object]:
    return {_memory(t) for t in tree_leaves(tree) if isinstance(t, Tensor)}


def head_of(module: nn.Module, examples: Tensor, width: int) -> tuple[str, ...]:
    """The layers, or parameters beside layers, that make the `width` outputs last; none if a run does not show them.

    The network takes the examples, (batch, *input_shape), in evaluation mode, and stays in it.
    """
    examples = examples.clone()
    flow = _Flow(module.eval(), examples, width)
    try:
        # Without gradients some layers of PyTorch's take another path, which shows less.
        with _quietly(), torch.enable_grad(), flow:
            outputs = module(examples)
    except Exception:  # the network may be user code; `check_network` says what it cannot take
        return ()
    makers = _union(map(flow.makers.get, _memories(outputs)))
    return tuple(dict.fromkeys(_part(module, n) for n, _ in module.named_parameters() if n in makers))


def _part(module: nn.Module, parameter: str) -> str:
    """The layer that a parameter belongs to; of a layer that holds others, the parameter itself."""
    outer, parametrized, _ = f".{parameter}".partition(".parametrizations.")
    alone = parameter.rpartition(".")[0] if parametrized else parameter
    layer = outer[1:] if parametrized else parameter.rpartition(".")[0]
    inside = (part for name, part in module.get_submodule(layer).named_children() if name != "parametrizations")
    return alone if any(True for part in inside for _ in part.parameters()) else layer


# ---------------------------------------------------------------- what training changes
PASSES = 4
"""Passes in which a buffer that training changes is changed: some wait for a warm-up, or for every second one."""


def statistics_of(module: nn.Module, examples: Tensor) -> frozenset[str]:
    """Buffers that passes in training mode change, or write to in a layer where they change another.

    A mean may stay zero by chance beside a variance, and a mask may be computed anew.  All floating buffers, if the
    network cannot take the examples, (batch, *input_shape).  Their values are then as before, and the mode is that of
    training.
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


def class_values(module: nn.Module) -> dict[str, str]:
    """The plain attributes of a network's own classes, as text."""
    kinds = {kind for m in module.modules() for kind in type(m).__mro__ if not kind.__module__.startswith("torch.")}
    kept = {
        f"{kind.__name__}.{name}": value for kind in kinds for name, value in vars(kind).items() if name[:2] != "__"
    }
    return {name: repr(v) for name, v in kept.items() if isinstance(v, int | float | list | dict | set | Tensor)}


def draws_in_evaluation(module: nn.Module, examples: Tensor) -> list[str]:
    """Global generators that a pass in evaluation mode draws from, as `global_states` names them."""
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
