"""A network on the device whose trained tensors are views of one flat vector."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from unskew.errors import ConfigError
from unskew.local.kernels import tune
from unskew.local.optim import Views, views
from unskew.protocol import Layout
from unskew.tasks.kind import is_ours
from unskew.tasks.task import Task, of_type
from unskew.tree import Params, Tree

_OF_MODULES = frozenset(vars(nn.Module()))
_FIXED = (bool, int, float, complex, str, bytes, type(None), type, torch.dtype, torch.device, FunctionType)


class Attributes:
    """A network's plain attributes now; `restore` puts them back.

    A forward pass could change them, and results would depend on the order of clients.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parts = tuple(module.modules())
        self._memo = {id(part): part for part in (*self._parts, *module.parameters(), *module.buffers())}
        self._given = {at: self._copy(value) for at, value in self._now().items()}

    def _now(self) -> dict[tuple[int, str], Any]:
        parts = enumerate(self._parts)
        return {(i, name): value for i, part in parts for name, value in vars(part).items() if name not in _OF_MODULES}

    def _copy(self, value: Any) -> Any:
        """A copy that shares the network's own layers and tensors; the value itself if it has no copy."""
        if isinstance(value, _FIXED):
            return value
        try:
            return copy.deepcopy(value, dict(self._memo))
        except Exception:  # anybody's object
            return value

    def restore(self) -> None:
        """Restore them, and remove new ones."""
        for i, name in self._now().keys() - self._given.keys():
            del vars(self._parts[i])[name]
        for (i, name), value in self._given.items():
            vars(self._parts[i])[name] = self._copy(value)

    def changed(self) -> str:
        """Name of an attribute that is new or has another value; empty if there is none."""
        return next((at[1] for at, v in self._now().items() if not _alike(self._given.get(at, _OF_MODULES), v)), "")


def _alike(a: Any, b: Any) -> bool:
    """True for equal values; of two objects without an order or parts that is taken for granted."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.equal(a, b)
    if type(a) is type(b) and isinstance(a, list | tuple | dict):
        pairs = zip(a.items() if isinstance(a, dict) else a, b.items() if isinstance(b, dict) else b, strict=False)
        return len(a) == len(b) and all(_alike(x, y) for x, y in pairs)
    return type(a) is type(b) and (not isinstance(a, _FIXED) or a == b)


def placed(module: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The module on a device, its floats of this type."""
    return of_type(module.to(device), dtype)


class FeatureNetwork(nn.Module):
    """The network with two results: the input of its head (of width 0 unless that is one layer), and its output.

    In evaluation mode each pass begins with the network's original attributes; `restore` is for training.
    """

    def __init__(self, module: nn.Module, head: Sequence[str]) -> None:
        super().__init__()
        self.module = module
        self._features: Tensor | None = None
        self._attributes = None if is_ours(module) else Attributes(module)
        layer = dict(module.named_modules()).get(head[0]) if len(head) == 1 else None
        if layer is not None:
            layer.register_forward_pre_hook(self._catch, with_kwargs=True)

    def _catch(self, _layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._features = next((t for t in (*inputs, *named.values()) if isinstance(t, Tensor)), None)

    def forward(self, x: Tensor | Tree) -> tuple[Tensor, Tensor]:
        """(features, logits) of a batch; features of the last call of a head that is called again."""
        if not self.training:
            self.restore()
        logits: Tensor = self.module(x)
        features, self._features = self._features, None
        return logits.new_zeros(len(logits), 0) if features is None else features, logits

    def restore(self) -> None:
        """Restore the network's original attributes."""
        if self._attributes is not None:
            self._attributes.restore()


@dataclass(eq=False)
class Workspace:
    """A network whose trained tensors are views of `vector`; one for each choice of trained tensors."""

    network: FeatureNetwork
    names: tuple[str, ...]
    vector: Tensor
    gradient: Tensor
    parameters: dict[str, Tensor]
    # Owner, name and address of each trained parameter.
    views: dict[str, tuple[nn.Module, str, int]]
    # Buffers by owner and name: a forward pass may replace a tensor by a new one.
    buffers: dict[str, tuple[nn.Module, str]]
    counters: tuple[tuple[nn.Module, str, Tensor], ...]
    flatten: Callable[[Tensor], Tensor]
    # The trained tensors that lie in such a vector.
    tensors: Views

    @cached_property
    def gradients(self) -> dict[str, Tensor]:
        """`gradient` by name."""
        return dict(zip(self.names, self.tensors(self.gradient), strict=True))

    @cached_property
    def velocities(self) -> dict[str, Tensor]:
        """Velocities of SGD with momentum by name, for one optimisation at a time."""
        return dict(zip(self.names, self.tensors(torch.empty_like(self.gradient)), strict=True))

    @torch.no_grad()
    def load(self, start: Params) -> None:
        """Load these parameters and buffers."""
        for name, t in self.parameters.items():
            t.copy_(start[name])
        for name, (owner, last) in self.buffers.items():
            getattr(owner, last).copy_(start[name])
        for owner, last, value in self.counters:
            setattr(owner, last, value.clone())
        self.network.restore()

    @torch.no_grad()
    def take(self) -> Params:
        """A copy of the parameters and buffers.

        Raises:
            ConfigError: If the network has replaced a parameter, so that its training was lost.
        """
        for name, (owner, last, address) in self.views.items():
            if getattr(owner, last) is not self.parameters[name] or self.parameters[name].data_ptr() != address:
                raise ConfigError(
                    f"the network replaces its parameter {name} while it is trained, and what it learns is lost; "
                    "change the parameter in place, as with `.data.copy_(...)`"
                )
        tensors = {**self.parameters, **{name: getattr(*place) for name, place in self.buffers.items()}}
        return {name: t.detach().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}


def make_workspace(
    task: Task,
    chosen: frozenset[str],
    freeze: bool,
    device: torch.device,
    dtype: torch.dtype,
    tuned: bool,
    channels_last: bool,
) -> Workspace:
    """A workspace in which the tensors named in `chosen` are trained.

    Args:
        task: Task with the network.
        chosen: Names of the tensors that may change.
        freeze: Keep all running statistics as they are.
        device, dtype: Device and type of all tensors.
        tuned: Rewrite the network's layers (`local/kernels.py`).
        channels_last: Lay convolutions out channels last.

    Raises:
        ConfigError: If nothing would be trained.
    """
    layout = task.layout
    names = tuple(n for n in layout.trainable if n in chosen)
    if not names:
        raise ConfigError("local.trainable selects no parameter; there would be nothing to train")
    module = placed(task.module(), device, dtype)
    for layer in module.modules():
        if isinstance(layer, nn.RNNBase):
            # On a CUDA device its next pass would move the weights out of `vector`, into memory of its own.
            layer.flatten_parameters = lambda: None  # type: ignore[method-assign]
    if tuned:
        tune(module)
    old, places = dict(module.named_parameters()), dict[int, list[tuple[nn.Module, str]]]()
    for n, p in module.named_parameters(remove_duplicate=False):  # layers may share it
        places.setdefault(id(p), []).append(_place_of(module, n))
    flatten = _channels_last_order if channels_last else torch.flatten
    vector = torch.cat([flatten(old[n].detach()) for n in names])
    tensors = partial(views, shapes=[old[n].shape for n in names], channels_last=channels_last)
    trained = dict(zip(names, tensors(vector), strict=True))
    for n in layout.trainable:
        new = nn.Parameter(trained.get(n, old[n].detach()), requires_grad=n in trained)
        for owner, last in places[id(old[n])]:
            setattr(owner, last, new)
    set_modes(module, layout, chosen, freeze)
    parameters = dict(module.named_parameters())
    return Workspace(
        FeatureNetwork(module, task.head),
        names,
        vector,
        torch.empty_like(vector),
        {n: parameters[n] for n in layout.trainable},
        {n: (*_place_of(module, n), parameters[n].data_ptr()) for n in names},
        {n: _place_of(module, n) for n in layout.buffers},
        tuple((*_place_of(module, n), b.clone()) for n, b in module.named_buffers() if n not in layout.buffers),
        flatten,
        tensors,
    )


def set_modes(module: nn.Module, layout: Layout, chosen: frozenset[str], freeze: bool) -> None:
    """Put layers into training mode, except those with frozen running statistics."""
    module.train()
    for name, layer in module.named_modules():
        # Statistics follow the batches only where the layer itself may change: a frozen body keeps its own.
        statistics = [b for b in layout.buffers if b.rpartition(".")[0] == name]
        if statistics and (freeze or not chosen.intersection(statistics)):
            layer.eval()


def _channels_last_order(t: Tensor) -> Tensor:
    """The numbers of a tensor in a row, those of convolutions channels last."""
    return (t.permute(0, 2, 3, 1) if t.dim() == 4 else t).reshape(-1)


def _place_of(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The layer that holds the tensor `name`, and its name inside the layer."""
    path, _, last = name.rpartition(".")
    return module.get_submodule(path), last
