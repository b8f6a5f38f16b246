"""Clients' numbers of examples, which weight means: declared when a client joins, and checked in every reply.

A server cannot count a client's examples, but it can hold the client to one number below a limit.
"""

import typing
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from unskew.errors import ProtocolError, WireError
from unskew.protocol import SampleCount
from unskew.tree import hints_of, is_record


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
