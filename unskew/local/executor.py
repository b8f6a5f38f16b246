"""How many clients' steps are brought to their end.

Every executor answers the same requests with the same values; `Sequential` is the reference the others must equal.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor

from unskew.local.solo import Solo
from unskew.protocol import ClientId, Fitted, Fold, Me, Run, Sgd, drive
from unskew.tree import Params

Observer = Callable[[Me, Fitted], None]


class Executor(Protocol):
    """Runs the steps of the clients asked in one exchange."""

    name: str

    def complete(self, steps: Mapping[ClientId, tuple[Me, Any]], seen: Observer) -> dict[ClientId, Any]:
        """Drive every step to its end; answered by what each returned, in the order given.

        `seen` is told of every optimisation, for the record only.
        """
        ...

    def evaluate(self, params: Params, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(correct, loss) of each example, (n,) bool and (n,)."""
        ...


class Sequential:
    """One client after the other, in this process."""

    name = "sequential"

    def __init__(self, solo: Solo) -> None:
        self._solo = solo

    def complete(self, steps: Mapping[ClientId, tuple[Me, Any]], seen: Observer) -> dict[ClientId, Any]:
        """Drive every step to its end, one after the other."""
        return {c: self._one(me, step, seen) for c, (me, step) in steps.items()}

    def _one(self, me: Me, step: Any, seen: Observer) -> Any:
        counts = {kind: itertools.count() for kind in (Sgd, Fold, Run)}

        def answer(request: Any) -> Any:
            kind = type(request)
            value = self._solo.answer(me, next(counts[kind]) if kind in counts else 0, request)
            if isinstance(value, Fitted):
                seen(me, value)
            return value

        return drive(step, answer)

    def evaluate(self, params: Params, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(correct, loss) of each example."""
        return self._solo.evaluate(params, x, y)
