"""What a message from outside must be beyond its type, before anything is done with it.

The codec builds only what a step's signature names.  This module refuses what has the right type and is still no
message of this run: tensors that are not the model's, NaN and infinity, norms and counts beyond reason, too many bytes.
"""

import dataclasses
import math
import types
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Union, get_args, get_origin

import torch
from torch import Tensor

from unskew import wire
from unskew.errors import WireError
from unskew.protocol import ClientId, Layout
from unskew.runtime.letter import COUNT
from unskew.tree import Params, is_record, leaves


@dataclass(frozen=True, eq=False)
class Guard:
    """What messages may be.

    Attributes:
        like: The model; a table of named tensors must hold tensors of it, in its shapes and element types.
        max_bytes: Length of an encoded message.
        max_norm: L2 norm of all floating-point tensors of a message together.
        least: Smallest whole number in a message: 0 in replies, which hold counts and choices.
        sizes: Lengths of the dimensions that types name, as in `Float[Tensor, "classes features"]`; of another name
            only that it is one length in all of a message.
    """

    like: Params
    max_bytes: int
    max_norm: float = 1e6
    least: int = -COUNT
    sizes: Mapping[str, int] = field(default_factory=dict)

    def decode(self, data: bytes, of: Any) -> Any:
        """The value of type `of` that `data` holds.

        Raises:
            WireError: If the bytes are no such value, or it is one that may not be.
        """
        value = wire.decode(data, of, self.max_bytes)
        self.check(value, of)
        return value

    def check(self, value: Any, of: Any = Any) -> None:
        """Refuse a value of type `of` that is yet no message of this run.

        Raises:
            WireError: Naming the place and what is wrong there.
        """
        for path, table, part_names in _tables(value):
            for name, t in table.items():
                if name in part_names:
                    continue
                model = self.like.get(name)
                if model is None or part_names:
                    raise WireError(f"the model has no tensor {name!r} (at {path or 'top'})")
                if (t.shape, t.dtype) != (model.shape, model.dtype):
                    raise WireError(
                        f"tensor {name} must be {model.dtype} {tuple(model.shape)}, got {t.dtype} {tuple(t.shape)} "
                        f"(at {path or 'top'})"
                    )
        bound = dict(self.sizes)
        for path, t, names in _declared(value, of):
            for name, found in zip(names, t.shape, strict=True):
                if found != bound.setdefault(name, found):
                    raise WireError(
                        f"a tensor must have {bound[name]} {name}, got the shape {tuple(t.shape)} for "
                        f"({', '.join(names)}) (at {path or 'top'})"
                    )
        squares = 0.0
        for path, leaf in leaves(value):
            if isinstance(leaf, Tensor):
                squares += _square(leaf, path)
            elif isinstance(leaf, float) and not abs(leaf) <= COUNT:  # written so that NaN is refused too
                wanted = "at most 2**53 in size" if math.isfinite(leaf) else "finite"
                raise WireError(f"a number must be {wanted}, got {leaf:g} (at {path or 'top'})")
            elif isinstance(leaf, int) and not self.least <= leaf <= COUNT:
                got = leaf if abs(leaf) <= COUNT else f"one of {leaf.bit_length()} bits"
                raise WireError(f"a whole number must be {self.least} to 2**53, got {got} (at {path or 'top'})")
        # Written so that NaN, the norm of finite numbers whose squares overflow, is refused too.
        if not math.sqrt(squares) <= self.max_norm:
            raise WireError(f"tensors of norm {math.sqrt(squares):.3g} exceed the {self.max_norm:g} allowed")


def limit_bytes(like: Params, models: int) -> int:
    """Bytes allowed to a message that may carry so many models: four times their size and a mebibyte."""
    return (1 << 20) + 4 * models * sum(t.numel() * t.element_size() for t in like.values())


def sizes_of(classes: int, layout: Layout, model: Params) -> dict[str, int]:
    """What both sides know of the lengths of dimensions: `classes`, and `features` that the last layer sees."""
    last = model.get(layout.classifier) if layout.classifier is not None else None
    return {"classes": classes, **({"features": last.shape[1]} if last is not None and last.ndim == 2 else {})}


def odd_ones(replies: Mapping[ClientId, Any]) -> dict[ClientId, str]:
    """Whose reply has another outline than the other replies to the same ask, and what is odd about it.

    One step sends the same parts of the model from every client, and in each field tensors of one element type and
    number of dimensions; a reply that does not was made by something else, and averaged it would end the round.  A
    tensor that is the whole value, one that was kept on a client, has one shape on all.  The majority of those who fill
    a field decides; between equal parties, the one that names more.
    """
    outlines = {c: dict(_outline(r)) for c, r in replies.items()}
    odd: dict[ClientId, str] = {}
    for path in dict.fromkeys(p for outline in outlines.values() for p in outline):
        found = {c: outline[path] for c, outline in outlines.items() if path in outline}
        votes = Counter(found.values())
        usual = max(votes, key=lambda outline: (votes[outline], len(outline), outline))
        for c, outline in found.items():
            if outline != usual:
                odd.setdefault(c, f"its reply has other tensors than those of {votes[usual]} other clients")
    return odd


def _outline(reply: Any, path: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    """By place: the names in each table of tensors; element type and dimensions of each tensor in a record's field."""
    if isinstance(reply, Tensor):
        yield path, (str(reply.dtype), f"{reply.ndim} dimensions" if path else str(tuple(reply.shape)))
    elif is_record(reply):
        for f in dataclasses.fields(reply):
            yield from _outline(getattr(reply, f.name), f"{path}/{f.name}")
    else:
        yield from ((where, tuple(sorted(table))) for where, table, _ in _tables(reply, path))


def _square(t: Tensor, path: str) -> float:
    if not t.is_floating_point() or not t.numel():
        return 0.0
    if not bool(torch.isfinite(t).all()):
        raise WireError(f"a tensor must be finite, got NaN or infinity (at {path or 'top'})")
    return float(t.double().square().sum())


def _tables(
    value: Any, path: str = "", part_names: frozenset[str] = frozenset()
) -> Iterator[tuple[str, Mapping[str, Tensor], frozenset[str]]]:
    """Tables of tensors by name with their paths; tables with other keys are no models.

    A record that keeps something else in such a table says so with an attribute `part_names`, the names it may have.
    """
    if isinstance(value, dict):
        if all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items()):
            yield path, value, part_names
        else:
            for k, v in value.items():
                yield from _tables(v, f"{path}/{k}")
    elif isinstance(value, tuple | list):
        for i, v in enumerate(value):
            yield from _tables(v, f"{path}/{i}")
    elif is_record(value):
        for f in dataclasses.fields(value):
            yield from _tables(getattr(value, f.name), f"{path}/{f.name}", getattr(value, "part_names", frozenset()))


def _declared(value: Any, of: Any, path: str = "") -> Iterator[tuple[str, Tensor, list[str]]]:
    """Tensors whose type names their dimensions, with those names; numbers in the place of names say it all."""
    members = get_args(of) if get_origin(of) in (Union, types.UnionType) else (of,)
    if isinstance(value, Tensor):
        fitting = [m for m in members if hasattr(m, "dim_str") and isinstance(value, m)]
        if fitting:
            yield path, value, fitting[0].dim_str.split()
    elif is_record(value):
        kind: type = type(value)
        for name, hint in wire.hints_of(kind).items():
            yield from _declared(getattr(value, name), hint, f"{path}/{name}")
    elif isinstance(value, tuple | list | dict):
        inner = next((get_args(m) for m in members if get_origin(m) in (tuple, list, dict)), ())
        for i, (k, v) in enumerate(value.items() if isinstance(value, dict) else enumerate(value)):
            if inner:
                fixed = isinstance(value, tuple) and Ellipsis not in inner
                part = inner[i] if fixed else inner[-1 if isinstance(value, dict) else 0]
                yield from _declared(v, part, f"{path}/{k}")
