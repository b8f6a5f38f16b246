"""Checks that a method does not change its arguments, and that its results have the annotated types.

A simulation shares objects, while a network, a worker process and a checkpoint copy bytes.  Both give the same results
only under these two conditions.  They are checked in a run's first rounds: each step for changes
(`unskew.local.executor`), and the first client of each exchange for types.
"""

import itertools
import json
from typing import Any

from unskew import wire
from unskew.errors import ProtocolError, WireError
from unskew.tree import MOST_MARKED, leaves
from unskew.wrappers.base import Wrapped


def check_type(value: Any, of: Any, what: str) -> None:
    """Refuse a value that does not survive encoding as the annotated type; values with very many parts are not checked.

    Args:
        value: The value.
        of: Its annotated type.
        what: What it is, and whose, for the message.

    Raises:
        ProtocolError: If so.
    """
    if next(itertools.islice(leaves(value), MOST_MARKED, None), None) is not None:
        return  # a second for every hundred thousand numbers
    try:
        body, tensors = wire.flatten(value)
        wire.build(of, json.loads(json.dumps(body)), tensors)  # as text, where a number of NumPy's is a number
    except WireError as error:
        raise ProtocolError(
            f"{what} is not of the type that is annotated, so it could not be saved or sent: {error}; change the "
            "annotation or the value"
        ) from None


def check_frozen(method: Any) -> None:
    """Refuse a method that is no frozen dataclass, also inside wrappers.

    Raises:
        ProtocolError: If so.
    """
    while isinstance(method, Wrapped):
        method = method.of
    kind = type(method)
    parameters = getattr(kind, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        raise ProtocolError(
            f"{kind.__name__} is no frozen dataclass, and what a method keeps in itself is lost when a run is resumed. "
            "Write @dataclass(frozen=True) above it, and keep what changes in its state or in the clients' memory"
        )
