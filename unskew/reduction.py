"""Reductions: what a plan needs of many replies, computed one reply at a time so that none has to be kept.

A plan that needs a mean asks for a mean, `ask(self.train, to, reduce=MeanOf("params", weight="n"))`.  The runtime then
folds each reply into the result as it comes and drops it, so a round holds a few models however large the cohort.

Bits       Floating-point addition is not associative.  Replies are therefore folded in the order asked, in chunks of
           `CHUNK` places of that order, and the chunks are merged in their order: whoever folds a chunk, this process,
           a worker or another machine, the sum has the same bits.
Precision  Sums are kept in the tensors' own type, those of half precision in float32.

A plan sees the results, who replied, and of each reply the fields that its type marks with `Each`; everything else is
gone.  Another reduction is a class with the four functions of `Reduction`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Protocol, TypeVar, get_type_hints

import torch

from unskew.errors import ProtocolError, QuorumError
from unskew.tree import Params, is_record, wide

CHUNK = 16
"""Places, in the order asked, whose replies are summed before the sum joins those of the places before."""

T = TypeVar("T")
R = TypeVar("R")


class _EachMark:
    """Mark of a field that a plan may read of every single reply."""


EACH = _EachMark()
Each = Annotated[T, EACH]
"""Type of a field that a plan may read of every single reply, although it asks for a reduction: `loss: Each[float]`."""


class Reduction(Protocol):
    """A value computed from replies, one after the other."""

    def start(self) -> Any:
        """Return the partial result of no replies."""
        ...

    def add(self, partial: Any, client: int, reply: Any) -> Any:
        """Add one client's reply to a partial result, which may be changed in place."""
        ...

    def merge(self, partial: Any, later: Any) -> Any:
        """Combine the partial result of a chunk with that of the chunks before it, which may be changed in place."""
        ...

    def finish(self, partial: Any) -> tuple[Any, Any]:
        """Return the result, and the total weight behind it.

        Raises:
            QuorumError: If the replies do not make a result.
        """
        ...


@dataclass(frozen=True, eq=False)
class Reduced(Generic[R]):
    """Answer to a request that reduces.

    Attributes:
        values: Result of each reduction.
        weights: Total weight behind each result.
        replies: Replies by client, in the order asked, of which only fields marked with `Each` are left; others are
            None.
    """

    values: tuple[Any, ...]
    weights: tuple[Any, ...]
    replies: Mapping[int, R]

    @property
    def value(self) -> Any:
        """Result of the first reduction."""
        return self.values[0]

    @property
    def weight(self) -> Any:
        """Total weight behind the first result."""
        return self.weights[0]


# ---------------------------------------------------------------- sums and means
Take = str | Callable[[int, Any], Any]
"""A field of the reply by its name, or a function of client and reply."""


@dataclass(frozen=True, eq=False)
class Moved:
    """Movement of some tensors, as what a sum takes of a reply: a function that also says what it does.

    Attributes:
        field: Field of the reply with the tensors.
        names: Those that are taken.
        start: What they moved from; None where the field has movements already.
    """

    field: str
    names: tuple[str, ...]
    start: Params | None = None

    def __call__(self, client: int, reply: Any) -> Params:
        """Return the movement of a client's tensors."""
        table: Params = getattr(reply, self.field)
        return {n: table[n] if self.start is None else table[n] - self.start[n] for n in self.names}


def _take(what: Take, client: int, reply: Any) -> Any:
    if not isinstance(what, str):
        return what(client, reply)
    try:
        return getattr(reply, what)
    except AttributeError:
        has = ", ".join(f.name for f in dataclasses.fields(reply)) if is_record(reply) else "none"
        raise ProtocolError(
            f"a reduction takes the field {what!r} of every reply, and {type(reply).__name__} has the fields {has}; "
            "name one of these, or give a function of client and reply"
        ) from None


class _Sum:
    """Weighted sum of tables of tensors.

    Attributes:
        sums: Sum of weight times table; None before the first.
        alike: The first table as it came, without the tensors that a later table has otherwise: the mean of equal
            tensors is that tensor, to the bit, so that layers that nobody trains stay as they are.
        weight: Sum of the weights.
        kinds: Element types of the tables.
    """

    def __init__(self, table: Params, weight: float) -> None:
        self.sums = {k: wide(t) * weight for k, t in table.items()}
        self.alike = dict(table)
        self.weight = weight
        self.kinds = {k: t.dtype for k, t in table.items()}

    def add(self, table: Params, weight: float) -> None:
        for k, total in self.sums.items():
            total.add_(wide(table[k]), alpha=weight)
        self.weight += weight
        self.alike = {k: t for k, t in self.alike.items() if torch.equal(t, table[k])}  # unequal ones differ early

    def merge(self, later: "_Sum") -> None:
        for k, total in self.sums.items():
            total.add_(later.sums[k])
        self.weight += later.weight
        self.alike = {k: t for k, t in self.alike.items() if k in later.alike and torch.equal(t, later.alike[k])}

    def mean(self) -> Params:
        means = {k: t.div_(self.weight).to(self.kinds[k]) for k, t in self.sums.items() if k not in self.alike}
        # One of a single table may be a view of something large.
        return {k: self.alike[k].clone() if k in self.alike else means[k] for k in self.sums}

    def total(self) -> Params:
        return {k: t.to(self.kinds[k]) for k, t in self.sums.items()}


@dataclass(frozen=True)
class _Linear:
    """Sum of tables of tensors over clients, or over each group of them.

    Attributes:
        of: Table to add, a field of the reply or a function of client and reply.
        weight: Weight of a client, at least 0, likewise; None gives each the weight 1.  A weight of 0 leaves it out.
        by: Group of a client, likewise; there is then a result for each group.  None or False leaves a client out.
    """

    of: Take
    weight: Take | None = None
    by: Take | None = None

    def start(self) -> dict[Hashable, _Sum]:
        """Return no sums."""
        return {}

    def add(self, partial: dict[Hashable, _Sum], client: int, reply: Any) -> dict[Hashable, _Sum]:
        """Add a client's table to its group's."""
        group = "all" if self.by is None else _take(self.by, client, reply)
        if group is None or group is False:
            return partial
        weight = 1.0 if self.weight is None else float(_take(self.weight, client, reply))
        if not 0.0 <= weight < math.inf:  # a NaN, too
            raise ProtocolError(
                f"the weight of client {client} in a {type(self).__name__} must be a finite number >= 0, got "
                f"{weight:g}; a sign belongs to the table"
            )
        if weight > 0.0:
            table = _take(self.of, client, reply)
            if group in partial:
                partial[group].add(table, weight)
            else:
                partial[group] = _Sum(table, weight)
        return partial

    def merge(self, partial: dict[Hashable, _Sum], later: dict[Hashable, _Sum]) -> dict[Hashable, _Sum]:
        """Add the sums of a later chunk."""
        for group, its in later.items():
            if group in partial:
                partial[group].merge(its)
            else:
                partial[group] = its
        return partial

    def finish(self, partial: dict[Hashable, _Sum]) -> tuple[Any, Any]:
        """Return the result, or the results by group, and the weights.

        Raises:
            QuorumError: If there are no groups, and no client has a positive weight.
        """
        weights = {group: its.weight for group, its in partial.items()}
        results = {group: self.result(its) for group, its in partial.items()}
        if self.by is not None:
            return results, weights
        if not results:
            raise QuorumError("a mean needs one client with training examples, got none")
        return results["all"], weights["all"]

    def result(self, of_group: _Sum) -> Params:
        raise NotImplementedError


@dataclass(frozen=True)
class MeanOf(_Linear):
    """Weighted mean, sum_k w_k v_k / sum_k w_k; of equal tensors it is that tensor, to the bit."""

    def result(self, of_group: _Sum) -> Params:
        """Divide a sum by its weight."""
        return of_group.mean()


@dataclass(frozen=True)
class SumOf(_Linear):
    """Weighted sum, sum_k w_k v_k."""

    def result(self, of_group: _Sum) -> Params:
        """Return a sum as it is."""
        return of_group.total()


@dataclass(frozen=True)
class ByClient:
    """A small value of every reply, by client, where a mark at a field cannot name it.

    Attributes:
        of: The value, a field of the reply or a function of client and reply.
    """

    of: Take

    def start(self) -> dict[int, Any]:
        """Return no values."""
        return {}

    def add(self, partial: dict[int, Any], client: int, reply: Any) -> dict[int, Any]:
        """Add a client's value."""
        return {**partial, client: _take(self.of, client, reply)}

    def merge(self, partial: dict[int, Any], later: dict[int, Any]) -> dict[int, Any]:
        """Add the values of a later chunk."""
        return {**partial, **later}

    def finish(self, partial: dict[int, Any]) -> tuple[Any, Any]:
        """Return the values, and their number."""
        return partial, float(len(partial))


@dataclass(frozen=True)
class Within:
    """A reduction of a part of each reply, `part(client, reply)`: of a method's own reply in that of a wrapper.

    Attributes:
        reduction: The reduction.
        part: Function that finds the part.
    """

    reduction: Reduction
    part: Callable[[int, Any], Any]

    def start(self) -> Any:
        """Begin the reduction."""
        return self.reduction.start()

    def add(self, partial: Any, client: int, reply: Any) -> Any:
        """Add the part of a reply."""
        return self.reduction.add(partial, client, self.part(client, reply))

    def merge(self, partial: Any, later: Any) -> Any:
        """Merge as the reduction does."""
        return self.reduction.merge(partial, later)

    def finish(self, partial: Any) -> tuple[Any, Any]:
        """End the reduction."""
        return self.reduction.finish(partial)


# ---------------------------------------------------------------- folding
class Folding:
    """Replies to one request on their way into its reductions; they must come in the order asked.

    Args:
        reductions: Reductions to compute, side by side.
    """

    def __init__(self, reductions: Sequence[Reduction]) -> None:
        self.reductions = tuple(reductions)
        self._totals: list[Any] = [None for _ in self.reductions]
        self._chunk: list[Any] = []
        self._number = -1
        self._replies: dict[int, Any] = {}

    def add(self, place: int, client: int, reply: Any) -> None:
        """Fold in the reply of the client at `place`, counted from 0, among those asked."""
        if place // CHUNK != self._number:
            self._close()
            self._chunk, self._number = [r.start() for r in self.reductions], place // CHUNK
        self._chunk = [r.add(p, client, reply) for r, p in zip(self.reductions, self._chunk, strict=True)]
        self._replies[client] = remaining(reply)

    def _close(self) -> None:
        for i, (reduction, partial) in enumerate(zip(self.reductions, self._chunk, strict=False)):
            total = self._totals[i]
            self._totals[i] = partial if total is None else reduction.merge(total, partial)
        self._chunk = []

    def __len__(self) -> int:
        return len(self._replies)

    def finish(self) -> Reduced[Any]:
        """Return the results.

        Raises:
            QuorumError: If the replies do not make one.
        """
        self._close()
        ends = [
            r.finish(r.start() if total is None else total)
            for r, total in zip(self.reductions, self._totals, strict=True)
        ]
        return Reduced(tuple(value for value, _ in ends), tuple(weight for _, weight in ends), self._replies)


def reduced(reductions: Sequence[Reduction], replies: Mapping[int, Any]) -> Reduced[Any]:
    """Reduce replies that are all here, in their order."""
    folding = Folding(reductions)
    for place, (client, reply) in enumerate(replies.items()):
        folding.add(place, client, reply)
    return folding.finish()


def weighted_mean(tables: Sequence[Params], weights: Sequence[float]) -> Params:
    """Compute `sum_i w_i t_i / sum_i w_i`, with the bits that `MeanOf` gives for the same tables in this order.

    Raises:
        ValueError: If the weights do not have a positive, finite sum, or the two lengths differ.
    """
    total = float(sum(weights))
    if not (0.0 < total < float("inf")):
        raise ValueError(f"weights of a mean must have a positive, finite sum, got {total}")
    pairs = dict(enumerate(zip(tables, weights, strict=True)))
    mean: Params = reduced([MeanOf(lambda i, pair: pair[0], lambda i, pair: pair[1])], pairs).value
    return mean


def remaining(reply: R) -> R:
    """Return a reply with None in place of all fields but those marked `Each`, in it and in records it holds.

    >>> @dataclass(frozen=True)
    ... class Trained:
    ...     params: Params
    ...     loss: Each[float]
    >>> remaining(Trained({}, 0.5))
    Trained(params=None, loss=0.5)
    """
    if not is_record(reply):
        return None  # type: ignore[return-value]
    marked = _marked(type(reply))  # type: ignore[arg-type]  # mypy takes a type[R] for unhashable
    left = object.__new__(type(reply))
    for f in dataclasses.fields(reply):  # type: ignore[arg-type]
        value = getattr(reply, f.name)
        kept = value if f.name in marked else remaining(value) if is_record(value) else None
        object.__setattr__(left, f.name, kept)
    return left


@functools.cache
def _marked(of: type) -> frozenset[str]:
    hints = get_type_hints(of, include_extras=True)
    return frozenset(name for name, hint in hints.items() if EACH in getattr(hint, "__metadata__", ()))
