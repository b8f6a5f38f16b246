"""Small functions on trees: nested dictionaries, tuples, lists and dataclasses; tensors and scalars are the leaves."""

import dataclasses
import functools
import itertools
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from unskew.errors import ProtocolError, WireError

Params = dict[str, Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class Tree:
    """Inputs of several parts: a tuple, or a dictionary by name, of tensors with a row for each example.

    A tuple enters a network as its positional arguments, a dictionary as its keyword arguments.

    >>> Tree({"ids": torch.zeros(3, 5), "mask": torch.ones(3, 5)})[:2].shapes
    {'ids': (5,), 'mask': (5,)}
    """

    parts: Any

    def map(self, fn: Callable[[Any], Any]) -> "Tree":
        """The same of what `fn` makes of each tensor."""
        return Tree(pytree.tree_map(fn, self.parts))

    @property
    def leaves(self) -> list[Any]:
        """The tensors, in order."""
        return pytree.tree_leaves(self.parts)

    @property
    def shapes(self) -> Any:
        """Shape of an example, part by part."""
        return self.map(lambda t: tuple(t.shape[1:])).parts

    def __len__(self) -> int:
        return len(self.leaves[0])

    def __getitem__(self, rows: Any) -> "Tree":
        return self.map(lambda t: t[rows])

    def to(self, *where: Any) -> "Tree":
        """The same on a device."""
        return self.map(lambda t: t.to(*where))

    def clone(self) -> "Tree":
        """A copy."""
        return self.map(torch.clone)


pytree.register_pytree_node(Tree, lambda tree: ([tree.parts], None), lambda parts, _: Tree(next(iter(parts))))


def is_record(value: object) -> bool:
    """True for a dataclass instance."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def is_record_type(of: Any) -> bool:
    """True for a dataclass, or a generic one with its parameters: `Informed[ModelMessage]`."""
    kind = get_origin(of) or of
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


@functools.cache
def hints_of(of: Any) -> dict[str, Any]:
    """Types of a record's fields, in order; those of a generic record with its parameters in place."""
    kind = get_origin(of) or of
    hints = get_type_hints(kind, include_extras=True)
    given = dict(zip(getattr(kind, "__parameters__", ()), get_args(of), strict=False))
    return {f.name: _filled_in(hints[f.name], given) for f in dataclasses.fields(kind)}


def _filled_in(hint: Any, given: dict[Any, Any]) -> Any:
    if hint in given:
        return given[hint]
    free = getattr(hint, "__parameters__", ())
    return hint[tuple(given.get(p, p) for p in free)] if given and free else hint


def map_leaves(fn: Callable[..., Any], *trees: Any) -> Any:
    """Apply `fn` to the leaves of trees of equal shape; the result has the shape of the first."""
    first = trees[0]
    if is_record(first):
        names = [f.name for f in dataclasses.fields(first)]
        return dataclasses.replace(first, **{n: map_leaves(fn, *(getattr(t, n) for t in trees)) for n in names})
    if isinstance(first, dict):
        return {k: map_leaves(fn, *(t[k] for t in trees)) for k in first}
    if isinstance(first, tuple | list):
        return type(first)(map_leaves(fn, *parts) for parts in zip(*trees, strict=True))
    return fn(*trees)


def moved(tree: Any, device: torch.device | str) -> Any:
    """Return the tree with its tensors on a device; those that are there are not copied."""
    return map_leaves(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, tree)


def map_params(fn: Callable[..., Tensor], *params: Mapping[str, Tensor]) -> Params:
    """Apply `fn` name by name; the names are those of the first table."""
    return {k: fn(*(p[k] for p in params)) for k in params[0]}


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, leaf) in a fixed order: field order, insertion order, position."""
    if is_record(tree):
        for f in dataclasses.fields(tree):
            yield from leaves(getattr(tree, f.name), f"{path}/{f.name}")
    elif isinstance(tree, dict):
        for k, v in tree.items():
            yield from leaves(v, f"{path}/{k}")
    elif isinstance(tree, tuple | list):
        for i, v in enumerate(tree):
            yield from leaves(v, f"{path}/{i}")
    else:
        yield path, tree


MOST_MARKED = 10_000
"""Leaves of a tree that are looked at; a table of as many numbers is no model."""

Marks = dict[str, tuple[Any, int, int | None]]
"""Leaves by path, each tensor with its version, which PyTorch counts up when it is changed in place, and a checksum."""


def marks(tree: Any, content: bool = False) -> Marks:
    """Note the leaves of a tree as they are.

    Args:
        tree: The tree.
        content: Compute a checksum of each tensor on the CPU, too, for changes through `.data` and `.numpy()`, which
            PyTorch does not count.
    """
    noted = _marks(tree)
    return {path: (t, n, _checksum(t)) for path, (t, n, _) in noted.items()} if content else noted


def _checksum(leaf: Any) -> int:
    """CRC-32 of a tensor's bytes; 0 on another device, where each would have to be waited for, or if it has none."""
    if not isinstance(leaf, Tensor) or leaf.device.type != "cpu" or leaf.layout != torch.strided or leaf.numel() == 0:
        return 0
    return zlib.crc32(leaf.detach().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8).numpy().data)


def _marks(tree: Any) -> Marks:
    if tree is None:
        return {}
    if isinstance(tree, dict) and len(tree) <= MOST_MARKED and all(isinstance(t, Tensor) for t in tree.values()):
        return {f"/{name}": (t, _version(t), None) for name, t in tree.items()}  # a model: each client's step has three
    return {path: (leaf, _version(leaf), None) for path, leaf in itertools.islice(leaves(tree), MOST_MARKED)}


def _version(leaf: Any) -> int:
    return leaf._version if isinstance(leaf, Tensor) and not leaf.is_inference() else 0


def check_unchanged(before: Marks, tree: Any, who: str, what: str) -> None:
    """Refuse a tree that has been changed since its leaves were noted.

    Args:
        before: `marks` of the tree.
        tree: The tree now.
        who: Who may have changed it, for the sentence.
        what: What it is.

    Raises:
        ProtocolError: If so.
    """
    now = marks(tree, any(checksum is not None for _, _, checksum in before.values()))
    for path in dict.fromkeys((*before, *now)):
        old, new = before.get(path), now.get(path)
        if old is None or new is None or old[0] is not new[0] or old[1:] != new[1:]:
            where = f" at {path.lstrip('/')!r}" if path else ""
            raise ProtocolError(
                f"{who} changes {what} in place{where}, and others have the same object; make new tensors and tables "
                "instead, as in {n: t * 0.5 for n, t in params.items()}"
            )


def require_names(got: Collection[str], expected: Collection[str], what: str) -> None:
    """Refuse tables whose tensors are not the expected ones.

    Raises:
        WireError: If names are missing or superfluous; the message lists them.

    >>> require_names({"w"}, {"w", "b"}, "a model")
    Traceback (most recent call last):
    unskew.errors.WireError: a model has 2 tensors, got 1: without b
    """
    wrong = {
        "without": [n for n in expected if n not in got],
        "and besides": [n for n in got if n not in expected],
    }
    if any(wrong.values()):
        differences = ", ".join(f"{how} {', '.join(names)}" for how, names in wrong.items() if names)
        raise WireError(f"{what} has {len(expected)} tensors, got {len(got)}: {differences}")


def form_of(value: Any) -> str:
    """Name a tensor's element type and shape, for messages; of another value its type.

    >>> form_of(torch.zeros(2, 3)), form_of(1.5), form_of(None)
    ('float32 (2, 3)', 'float', 'nothing')
    """
    if not isinstance(value, Tensor):
        return "nothing" if value is None else type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


def zeros_like(params: Mapping[str, Tensor]) -> Params:
    """Zeros in the shapes of `params`."""
    return {k: torch.zeros_like(v) for k, v in params.items()}


def weighted_sum(trees: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Params:
    """`sum_i weights[i] * trees[i]`.

    Accumulated in the order given: floating-point addition is not associative, the same order gives the same bits.

    Raises:
        ValueError: If there is nothing to add, or the two lengths differ.
    """
    if not trees:
        raise ValueError("weighted_sum needs at least one tree, got none")
    if len(trees) != len(weights):
        raise ValueError(f"weighted_sum needs one weight per tree, got {len(weights)} weights for {len(trees)} trees")
    out = {k: v * weights[0] for k, v in trees[0].items()}
    for tree, w in zip(trees[1:], weights[1:], strict=True):
        for k, v in out.items():
            v.add_(tree[k], alpha=w)
    return out


def flat(params: Mapping[str, Tensor]) -> Tensor:
    """All entries in one vector, in the mapping's order."""
    return torch.cat([t.reshape(-1) for t in params.values()])


def unflat(vector: Tensor, like: Mapping[str, Tensor]) -> Params:
    """The inverse of `flat`: views into `vector` in the shapes of `like`."""
    parts = torch.split(vector, [t.numel() for t in like.values()])
    return {k: part.view(t.shape) for (k, t), part in zip(like.items(), parts, strict=True)}


def squared_norm(params: Mapping[str, Tensor]) -> Tensor:
    """Sum of squares over all entries, a scalar."""
    return torch.stack([t.square().sum() for t in params.values()]).sum()


def wide(t: Tensor) -> Tensor:
    """The tensor in at least single precision, in which sums over clients are kept."""
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t
