"""Privacy budgets of clients on the server: a client whose budget is spent is asked no more."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from unskew.errors import QuorumError
from unskew.protocol import Ask, Plan
from unskew.wrappers.base import through

S = TypeVar("S")


@dataclass(frozen=True)
class BudgetState(Generic[S]):
    """The state of a method whose clients have budgets.

    Attributes:
        of: The method's state.
        asked: How often each client was asked for what its budget pays.
        stopped: True if no client that was asked had any of it left.
    """

    of: S
    asked: Mapping[int, int]
    stopped: bool


class _Spent(Exception):
    """No client that a plan asks has budget left."""


def within_budget(
    plan: Any, state: BudgetState[Any], most: int | None, costs: Callable[[Ask], bool]
) -> Plan[BudgetState[Any]]:
    """Run a method's plan with the clients that have budget left, and return the state after it.

    Args:
        plan: The plan.
        state: The state before it.
        most: How often a client may be asked; None is no limit.
        costs: True for a request that a client's budget pays.

    Raises:
        QuorumError: If the plan does; its `state` counts what clients were asked for.
    """
    counts = dict(state.asked)

    def change_request(request: Any) -> Any:
        if not isinstance(request, Ask) or not costs(request):
            return request
        to = {c: m for c, m in request.to.items() if most is None or counts.get(c, 0) < most}
        if request.to and not to:
            raise _Spent
        for c in to:
            counts[c] = counts.get(c, 0) + 1
        return replace(request, to=to)

    try:
        done = yield from through(plan, change_request, lambda _, got: got)
    except _Spent:
        return replace(state, stopped=True)
    except QuorumError as error:
        error.state = BudgetState(error.after(state.of), counts, False)
        raise
    return BudgetState(done, counts, False)
