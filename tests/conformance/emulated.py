"""A second device on a machine without one: its tensors lie on the CPU, and are kept apart as CUDA's are.

Under `Emulated` a tensor that was sent to "xpu" belongs there, as does what is computed from it; a tensor made without
a device, or brought back by `cpu()`, belongs to the host.  What mixes the two is refused where PyTorch would refuse it
with CUDA.  Of a tensor whose making could not be seen (inside `vmap`, say) nothing is known, and nothing is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from unskew.tree import map_leaves

DEVICE = "xpu"

_FREE = {  # these take tensors of both
    Tensor.copy_,
    Tensor.to,
    Tensor.type_as,
    Tensor.data.__set__,  # type: ignore[attr-defined]
    Tensor.grad.__set__,  # type: ignore[attr-defined]
    Tensor.set_,
    torch._has_compatible_shallow_copy_type,
}
_MADE_OF = (torch.stack, torch.cat)  # here numbers without dimensions count, too
_ON_HOST = (Tensor.numpy, Tensor.__array__)


class Emulated(TorchFunctionMode):
    """Keeps apart tensors of the host and of the emulated device."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.device, torch._C._nn._parse_to):  # which device is meant
            return func(*args, **kwargs)
        given = list(_tensors((args, kwargs)))
        if func == Tensor.device.__get__:  # type: ignore[attr-defined]
            return torch.device(DEVICE if place(args[0]) else "cpu")
        if func is Tensor.__iter__:
            return iter([_put(t, place(args[0])) for t in args[0].unbind(0)])
        if func in _ON_HOST and place(args[0]):
            raise TypeError(f"can't convert {DEVICE} device type tensor to numpy; use Tensor.cpu() first")
        asked = _asked(args, kwargs)
        if func not in _FREE:
            _check(func, given, args)
        if func is Tensor.cpu:
            asked = False
        elif func in (Tensor.to, Tensor.type_as) and asked is None and len(given) > 1:
            asked = place(given[1])
        args, kwargs = _at_home(args), _at_home(kwargs)
        out = func(*args, **kwargs)
        if func in (Tensor.data.__set__, Tensor.set_):  # type: ignore[attr-defined]
            _put(args[0], place(args[1]))
            return out
        if func in (Tensor.copy_, Tensor.__setitem__):
            return out
        where = asked if asked is not None else _together([place(t) for t in given]) if given else False
        moved = asked is not None and bool(given)
        return _mapped(out, lambda t: _put(t.clone() if moved and any(t is g for g in given) else t, where))


def place(t: Tensor) -> bool | None:
    """True on the emulated device, False on the host, None where that is not known."""
    where: bool | None = t.__dict__.get("_emulated")
    return where


def _put(t: Tensor, where: bool | None) -> Tensor:
    t.__dict__["_emulated"] = where
    return t


def _together(places: Sequence[bool | None]) -> bool | None:
    return True if True in places else None if None in places else False


def _check(func: Any, given: Sequence[Tensor], args: Sequence[Any]) -> None:
    if func in (Tensor.__getitem__, Tensor.__setitem__):
        target, index, *values = (tuple(_tensors(a)) for a in args)
        # A device's tensor may be indexed by the host's, and what a slice gets is copied from anywhere.
        wrong = place(target[0]) is False and any(place(t) for t in index)
        if _chosen(args[1]):
            wrong |= {True, False} <= {place(t) for v in (target, *values) for t in v if t.dim()}
    else:
        places = [place(t) for t in given if t.dim() or func in _MADE_OF]
        wrong = True in places and False in places
    if wrong:
        raise RuntimeError(f"Expected all tensors to be on the same device, but {func} got {DEVICE}:0 and cpu")


def _chosen(index: Any) -> bool:
    """Whether an index chooses entries by a list or a tensor, whose values must lie on the tensor's own device."""
    return any(isinstance(i, list | range | Tensor) for i in (index if isinstance(index, tuple) else (index,)))


def _asked(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool | None:
    wanted = [kwargs["device"]] if kwargs.get("device") is not None else []
    wanted += [a for a in args if isinstance(a, torch.device)] + [a for a in args[1:2] if a in ("cpu", DEVICE)]
    return None if not wanted else torch.device(wanted[0]).type == DEVICE


def _at_home(value: Any) -> Any:
    """The same arguments with the CPU in place of the emulated device."""
    if isinstance(value, dict):
        return {k: torch.device("cpu") if k == "device" and v is not None else _at_home(v) for k, v in value.items()}
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(_at_home(v) for v in value)
    return (
        torch.device("cpu")
        if isinstance(value, torch.device) or (isinstance(value, str) and value == DEVICE)
        else value
    )


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for v in value.values():
            yield from _tensors(v)
    elif isinstance(value, list | tuple):
        for v in value:
            yield from _tensors(v)


def _mapped(out: Any, change: Any) -> Any:
    if isinstance(out, Tensor):
        return change(out)
    if type(out) in (list, tuple):
        return type(out)(_mapped(v, change) for v in out)
    if isinstance(out, tuple):  # a named tuple of PyTorch's
        for v in _tensors(out):
            change(v)
    return out


_new = nn.Parameter.__new__


def parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
    """In place of `nn.Parameter.__new__`, whose tensor lies where its data lie."""
    made = _new(cls, data, requires_grad)
    return made if data is None else _put(made, place(data))


def arrived(decode: Any, *args: Any, **kwargs: Any) -> Any:
    """In place of `wire.decode`, whose tensors lie on the host."""
    return map_leaves(lambda leaf: _put(leaf, False) if isinstance(leaf, Tensor) else leaf, decode(*args, **kwargs))
