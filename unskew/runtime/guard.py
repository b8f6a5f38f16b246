"""What a message from outside must be beyond its type, before anything is done with it.

The codec builds only what a step's signature names.  This module refuses what has the right type and is still no
message of this run: tensors that are not the model's, NaN and infinity, norms and counts beyond reason, too many bytes.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unskew import wire
from unskew.errors import WireError
from unskew.protocol import ClientId
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
    """

    like: Params
    max_bytes: int
    max_norm: float = 1e6
    least: int = -COUNT

    def decode(self, data: bytes, of: Any) -> Any:
        """The value of type `of` that `data` holds.

        Raises:
            WireError: If the bytes are no such value, or it is one that may not be.
        """
        value = wire.decode(data, of, self.max_bytes)
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """Refuse a value that has the right type and is yet no message of this run.

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
        squares = 0.0
        for path, leaf in leaves(value):
            if isinstance(leaf, Tensor):
                squares += _square(leaf, path)
            elif isinstance(leaf, float) and not math.isfinite(leaf):
                raise WireError(f"a number must be finite, got {leaf} (at {path or 'top'})")
            elif isinstance(leaf, int) and not self.least <= leaf <= COUNT:
                got = leaf if abs(leaf) <= COUNT else f"one of {leaf.bit_length()} bits"
                raise WireError(f"a whole number must be {self.least} to 2**53, got {got} (at {path or 'top'})")
        # Written so that NaN, the norm of finite numbers whose squares overflow, is refused too.
        if not math.sqrt(squares) <= self.max_norm:
            raise WireError(f"tensors of norm {math.sqrt(squares):.3g} exceed the {self.max_norm:g} allowed")


def limit_bytes(like: Params, models: int) -> int:
    """Bytes allowed to a message that may carry so many models: four times their size and a mebibyte."""
    return (1 << 20) + 4 * models * sum(t.numel() * t.element_size() for t in like.values())


def odd_ones(replies: Mapping[ClientId, Any]) -> dict[ClientId, str]:
    """Whose reply has another outline than the other replies to the same ask, and what is odd about it.

    One step sends the same parts of the model from every client, and in each field tensors of one element type and
    number of dimensions; a reply that does not was made by something else, and averaged it would end the round.  The
    majority decides; between equal parties, the one that names more.
    """
    outlines = {c: _outline(r) for c, r in replies.items()}
    if len(set(outlines.values())) < 2:
        return {}
    votes = Counter(outlines.values())
    usual = max(votes, key=lambda outline: (votes[outline], sum(len(parts) for _, parts in outline), outline))
    return {
        c: f"its reply has other tensors than those of {votes[usual]} other clients"
        for c, outline in outlines.items()
        if outline != usual
    }


def _outline(reply: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Names in each table of tensors; element type and dimensions of each tensor that is a field of its own."""
    tables = [(path, tuple(sorted(table))) for path, table, _ in _tables(reply)]
    fields_of = {f.name: getattr(reply, f.name) for f in dataclasses.fields(reply)} if is_record(reply) else {}
    tensors = [(name, (str(t.dtype), f"{t.ndim} dimensions")) for name, t in fields_of.items() if isinstance(t, Tensor)]
    return (*tables, *tensors)


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
        if value and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items()):
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
