"""Validates messages from other machines, beyond their type.

The codec decodes only the types of a step's signature.  This module refuses messages of the right type with wrong
tensors, NaN and infinity, absurd norms and counts, or too many bytes.  A server cannot count a client's examples, which
weight means, but it can hold the client to one number below a limit.
"""

import dataclasses
import itertools
import math
import operator
import statistics
import types
import typing
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NewType, TypeVar, Union, get_args, get_origin

import torch
from torch import Tensor

from unskew import wire
from unskew.errors import ProtocolError, WireError
from unskew.protocol import ClientId, Layout, SampleCount
from unskew.runtime.message import COUNT
from unskew.tree import Params, hints_of, is_record
from unskew.wrappers.uploads import at, uploads

_HOLDING = (tuple, list, dict, Mapping, Sequence)
K = TypeVar("K")
Kinds = Sequence[tuple[Any, tuple[Any, ...]]]
"""The members of a type, each with its `Annotated` metadata."""


@dataclass(frozen=True, eq=False)
class Validator:
    """Bounds on messages.

    Attributes:
        like: The model.  A table of named tensors must hold tensors of it, in its shapes and element types, except
            where the table's type names an element type (`Int8`) or a shape (`Float[Tensor, ""]`).
        max_bytes: Largest size of an encoded message, bytes.
        max_norm: Largest L2 norm of all floating-point tensors of a message together.
        least: Smallest whole number in a message: 0 in replies, which hold counts and choices.
        sizes: Lengths of the dimensions that types name, as in `Float[Tensor, "classes features"]`; a dimension of any
            other name must have one length throughout a message.
    """

    like: Params
    max_bytes: int
    max_norm: float = 1e6
    least: int = -COUNT
    sizes: Mapping[str, int] = field(default_factory=dict)

    def decode(self, data: bytes, of: Any) -> Any:
        """Decode and check a value of type `of`; any other is refused."""
        value = wire.decode(data, of, self.max_bytes)
        self.check(value, of)
        return value

    def _left_open(self, t: Tensor, kinds: Kinds) -> tuple[bool, bool]:
        """Say whether a tensor's type leaves its shape, and its element type, to the model."""
        named = _named(t, kinds)
        if named is None:
            return True, True
        fixed = all(d.isdecimal() or d in self.sizes for d in named.dim_str.split())
        return not fixed, not (isinstance(named.dtypes, list | tuple) and len(named.dtypes) == 1)

    def check(self, value: Any, of: Any = Any) -> None:
        """Refuse a value of type `of` that cannot be a message of this run; the error names the field."""
        for path, table, part_names, kinds in _tables(value, of):
            for name, t in table.items():
                if name in part_names:
                    continue
                model = self.like.get(name)
                if model is None or part_names:
                    raise WireError(
                        f"the model has no tensor {name!r} (at {path or 'top'}); the "
                        "part_names of its record must list the names of what is not the model's"
                    )
                shapes, dtypes = self._left_open(t, kinds)  # of what it declares, the codec has seen to the rest
                if (shapes and t.shape != model.shape) or (dtypes and t.dtype != model.dtype):
                    raise WireError(
                        f"tensor {name} must be {model.dtype} {tuple(model.shape)}, got {t.dtype} {tuple(t.shape)} "
                        f"(at {path or 'top'}); a table of anything else says so in its type, as "
                        'dict[str, Int8[Tensor, "..."]]'
                    )
        bound = dict(self.sizes)
        squares = 0.0
        for path, leaf, kinds in _declared(value, of):
            if isinstance(leaf, Tensor):
                squares += _square(leaf, path)
                dims = _named(leaf, kinds).dim_str.split() if _named(leaf, kinds) else []
                for name, length in _lengths(dims, leaf.shape if dims else ()):
                    if length != bound.setdefault(name, length):
                        raise WireError(
                            f"a tensor must have {bound[name]} {name}, got the shape {tuple(leaf.shape)} for "
                            f"({', '.join(dims)}) (at {path or 'top'})"
                        )
            elif isinstance(leaf, int | float):
                broken = [_broken(leaf, bounds) for m, bounds in kinds if m is type(leaf)]
                if broken and all(broken):
                    raise WireError(f"a number must be {broken[0]}, got {str(leaf)[:24]} (at {path or 'top'})")
                if isinstance(leaf, float) and not abs(leaf) <= COUNT:  # written so that NaN is refused too
                    wanted = "at most 2**53 in size" if math.isfinite(leaf) else "finite"
                    raise WireError(f"a number must be {wanted}, got {leaf:g} (at {path or 'top'})")
                if isinstance(leaf, int) and not self.least <= leaf <= COUNT:
                    wanted = f"{self.least} to 2**53"
                    raise WireError(f"a whole number must be {wanted}, got {str(leaf)[:24]} (at {path or 'top'})")
        # Written so that NaN, the norm of finite numbers whose squares overflow, is refused too.
        if not math.sqrt(squares) <= self.max_norm:
            raise WireError(f"tensors of norm {math.sqrt(squares):.3g} exceed the {self.max_norm:g} allowed")


def limit_bytes(like: Params, models: int) -> int:
    """Largest size of a message with `models` models, bytes: four times their size and a mebibyte."""
    return (1 << 20) + 4 * models * sum(t.numel() * t.element_size() for t in like.values())


def sizes_of(classes: int, layout: Layout, model: Params, public: int = 0) -> dict[str, int]:
    """Lengths of dimensions that both sides know: `classes`, `features` (inputs of the last layer), `public` (rows)."""
    last = model.get(layout.classifier) if layout.classifier is not None else None
    features = {"features": last.shape[1]} if last is not None and last.ndim == 2 else {}
    return {"classes": classes, **features, **({"public": public} if public else {})}


Outline = Mapping[str, tuple[str, ...]]
"""Structure of a reply: by path, the names in each table of tensors, or an element type and number of dimensions."""


def odd_ones(outlines: Mapping[K, Outline], sketched: Outline | None = None) -> dict[K, str]:
    """Replies whose structure differs from the others' to the same request, with the reason.

    A step sends the same parts of the model from every client, and in each field the same element type and number of
    dimensions.  A held tensor that is a whole value has the same shape on all clients.  The majority of those that fill
    a field decides; in a tie, the side with more tensors.  The `sketched` reply has a vote, too, so that a single
    client cannot leave out parts of the model.

    Args:
        outlines: `outline` of each client's reply.
        sketched: `outline` of the reply that the step makes without training.
    """
    sketched = sketched or {}
    odd: dict[K, str] = {}
    for path in dict.fromkeys(p for outline in outlines.values() for p in outline):
        present = {c: outline[path] for c, outline in outlines.items() if path in outline}
        others = Counter(present.values())
        votes = others + Counter([sketched[path]] if path in sketched else [])
        usual = max(votes, key=lambda o: (votes[o], len(o), o == sketched.get(path), o))
        for c, outline in present.items():
            if outline != usual:
                whose = f"those of {others[usual]} other clients" if others[usual] else "its step sends"
                odd.setdefault(c, f"its reply has other tensors than {whose}")
    return odd


def table_norms(reply: Any) -> dict[str, float]:
    """L2 norm of the floating-point tensors in each table or compressed upload of a reply, by path."""
    tables: dict[str, Iterable[Tensor]] = {path: table.values() for path, table, *_ in _tables(reply)}
    for upload in uploads(type(reply)):
        value = at(reply, upload.path)
        if isinstance(value, tuple):  # what a wrapper sends in place of a table
            tables["/".join(("", *upload.path))] = value
    return {
        path: math.sqrt(sum(float(t.double().square().sum()) for t in tensors if t.is_floating_point()))
        for path, tensors in tables.items()
    }


def by_path(norms: Mapping[ClientId, Mapping[str, float]]) -> dict[str, dict[ClientId, float]]:
    """Norms by client and path as norms by path and client."""
    turned: dict[str, dict[ClientId, float]] = {}
    for c, of_client in norms.items():
        for path, norm in of_client.items():
            turned.setdefault(path, {})[c] = norm
    return turned


def heavy_ones(norms: Mapping[ClientId, Mapping[str, float]], ratio: float, scale: float) -> dict[ClientId, str]:
    """Replies with a table of tensors far larger than the others', with the reason.

    Models and updates of honest clients do not differ by orders of magnitude.

    Args:
        norms: `table_norms` of each client's reply.
        ratio: Largest norm allowed, in multiples of the median of all replies (of two, the smaller).
        scale: Norm of the model: always allowed, and the median if there is one reply only.
    """
    heavy: dict[ClientId, str] = {}
    for sizes in by_path(norms).values():
        median = statistics.median_low(sizes.values()) if len(sizes) > 1 else scale
        for c, size in sizes.items():
            if size > max(ratio * median, scale):
                whose = "the round's median" if len(sizes) > 1 else "the model's"
                heavy.setdefault(c, f"its tensors have the norm {size:.3g}, and {whose} is {median:.3g}")
    return heavy


def outline(reply: Any) -> Outline:
    """The structure of a reply, without its numbers."""
    return dict(_outline(reply))


def _outline(reply: Any, path: str = "", exact: bool = False) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield by path the names in each table of tensors, and element type and dimensions of each other tensor.

    Lengths count where the reply itself is one tensor, and in `sealed` records, whose tensors are added up as they are.
    """
    if isinstance(reply, Tensor):
        yield path, (str(reply.dtype), str(tuple(reply.shape)) if exact or not path else f"{reply.ndim} dimensions")
    elif is_record(reply):
        for f in dataclasses.fields(reply):
            yield from _outline(getattr(reply, f.name), f"{path}/{f.name}", getattr(reply, "sealed", False))
    else:
        yield from ((where, tuple(sorted(table))) for where, table, *_ in _tables(reply, path=path))


def _square(t: Tensor, path: str) -> float:
    if not t.is_floating_point() or not t.numel():
        return 0.0
    if not bool(torch.isfinite(t).all()):
        raise WireError(f"a tensor must be finite, got NaN or infinity (at {path or 'top'})")
    # In pieces: doubles of a whole tensor of half floats would take eight times its bytes.
    return sum((float(piece.double().square().sum()) for piece in torch.split(t.reshape(-1), 1 << 18)), 0.0)


def _kinds(of: Any, bounds: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    if get_origin(of) is Annotated:
        inner, *own = get_args(of)
        yield from _kinds(inner, (*bounds, *own))
    elif isinstance(of, NewType):
        yield from _kinds(of.__supertype__, bounds)
    elif get_origin(of) in (Union, types.UnionType):
        for member in get_args(of):
            yield from _kinds(member, bounds)
    else:
        yield of, bounds


def _named(t: Tensor, kinds: Kinds) -> Any:
    """Return the type of a tensor that names element types and dimensions; None if it is a plain tensor."""
    return next((m for m, _ in kinds if hasattr(m, "dim_str") and isinstance(t, m)), None)


def _inner(value: Any, of: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield what a record, sequence or table holds: field, place or key, value and declared type, Any if unknown."""
    kinds = [m for m, _ in _kinds(of)]
    if is_record(value):
        kind: Any = next((m for m in kinds if get_origin(m) is type(value)), type(value))
        hints = hints_of(kind)
        yield from ((name, getattr(value, name), hint) for name, hint in hints.items())
        return
    types = next((get_args(m) for m in kinds if get_origin(m) in _HOLDING), ()) or (Any, ...)
    for i, (k, v) in enumerate(value.items() if isinstance(value, dict) else enumerate(value)):
        fixed = isinstance(value, tuple) and Ellipsis not in types
        yield k, v, types[i] if fixed else types[-1 if isinstance(value, dict) else 0]


def _tables(
    value: Any, of: Any = Any, path: str = "", part_names: frozenset[str] = frozenset()
) -> Iterator[tuple[str, Mapping[str, Tensor], frozenset[str], Kinds]]:
    """Yield tables of tensors by name, with paths and the type of their tensors; tables with other keys are not models.

    A record that keeps something else in such a table declares it by an attribute `part_names`, the names allowed.
    """
    if isinstance(value, dict) and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items()):
        members = [get_args(m)[-1] for m, _ in _kinds(of) if get_origin(m) in _HOLDING]
        yield path, value, part_names, [kind for m in members for kind in _kinds(m)]
    elif is_record(value) or isinstance(value, tuple | list | dict):
        allowed: frozenset[str] = getattr(value, "part_names", frozenset()) if is_record(value) else frozenset()
        for k, v, hint in _inner(value, of):
            yield from _tables(v, hint, f"{path}/{k}", allowed)


def _declared(value: Any, of: Any, path: str = "") -> Iterator[tuple[str, Any, Kinds]]:
    """Yield leaves with their paths and declared types."""
    if is_record(value) or isinstance(value, tuple | list | dict):
        for k, v, hint in _inner(value, of):
            yield from _declared(v, hint, f"{path}/{k}")
    else:
        yield path, value, list(_kinds(of))


def _lengths(dims: Sequence[str], shape: Sequence[int]) -> list[tuple[str, int]]:
    """Pair the named dimensions of a tensor of this type with their lengths; `...` and `*name` have none."""
    left = list(itertools.takewhile(lambda d: d != "..." and d[0] != "*", dims))
    right = dims[len(left) + 1 :]
    pairs = [*zip(left, shape, strict=False), *zip(right[::-1], shape[::-1], strict=False)]
    return [(name, length) for name, length in pairs if name.isidentifier() and not name.startswith("_")]


_BOUNDS = (
    ("ge", operator.ge, "at least"),
    ("gt", operator.gt, "more than"),
    ("le", operator.le, "at most"),
    ("lt", operator.lt, "less than"),
)


def _broken(number: float, bounds: Sequence[Any]) -> str | None:
    """Describe the first declared bound that a number violates; None if it violates none."""
    for bound in bounds:
        for name, holds, words in _BOUNDS:
            limit = getattr(bound, name, None)
            if limit is not None and not holds(number, limit):
                return f"{words} {limit:g}"
    return None


# ---------------------------------------------------------------- numbers of examples
def counts_in(reply: Any) -> Iterator[int]:
    """Numbers of examples in a reply, as its types declare: counts, and sums of counts by class."""
    if not is_record(reply):
        return
    of: type = type(reply)
    for name, hint in hints_of(of).items():
        value = getattr(reply, name)
        if hint == SampleCount or SampleCount in typing.get_args(hint):
            if value is not None:
                yield value
        elif isinstance(value, Tensor) and _counts_classes(hint):
            values = value.tolist()
            if min(values, default=0) < 0:
                raise WireError(f"a class has at least 0 examples, got {min(values)}")
            yield sum(values)  # in Python's numbers, which do not wrap around
        elif isinstance(value, tuple):
            for part in value:
                yield from counts_in(part)
        else:
            yield from counts_in(value)


def _counts_classes(hint: Any) -> bool:
    """True for the type of counts by class without noise; those that may stay with a client are masked."""
    hint = hint.__origin__ if typing.get_origin(hint) is typing.Annotated else hint
    (of, *others) = [m for m in (typing.get_args(hint) or (hint,)) if m is not type(None)]
    return not others and getattr(of, "dim_str", "") == "classes" and of.dtypes == ("int64",)


def taken_apart(step: str, value: Any, n: int) -> tuple[Any, Any]:
    """Reply and memory that a step has returned.

    Args:
        step: Name of the step, for messages.
        value: Its result.
        n: The client's number of training examples.

    Raises:
        ProtocolError: If it is no such pair, or the reply has another number of examples.
    """
    if not isinstance(value, tuple) or len(value) != 2:
        raise ProtocolError(f"step {step!r} must return (reply, memory), got {type(value).__name__}")
    reply, memory = value
    if any(count != n for count in counts_in(reply)):  # which one it is the server is not to learn
        raise ProtocolError(
            f"step {step!r} replies with another number of examples than its client's own: a SampleCount is me.n, and "
            "counts by class add up to it; annotate another number as int"
        )
    return reply, memory


def check_count(counts: Iterable[int], declared: int | None, most: int) -> int | None:
    """The number of examples that a client reports; None if it reports none.

    Args:
        counts: All such numbers in its reply and around it.
        declared: The number it gave when it joined, or in its first reply; None if it never did.
        most: The largest allowed.

    Raises:
        WireError: If there are several, or it is another than before or too large.
    """
    numbers = sorted(set(counts))
    if len(numbers) > 1:
        raise WireError(f"a reply gives one number of examples, got {numbers}")
    for n in numbers:
        if declared is not None and n != declared:
            raise WireError(
                f"it reports {n} examples but declared {declared} earlier; a client's count must not change"
            )
        if n > most:
            raise WireError(f"it says it has {n} examples, and max_examples = {most} allows fewer")
    return numbers[0] if numbers else None
