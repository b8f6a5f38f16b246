"""Privacy budgets of clients on the server: a client whose budget is spent is asked no more."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from unskew.protocol import Ask, Plan
from unskew.wrappers.base import through


class _Spent(Exception):
    """No client that a plan asks has budget left."""


def within_budget(
    plan: Any, asked: Mapping[int, int], most: int | None, costs: Callable[[Ask], bool]
) -> Plan[tuple[Any, dict[int, int]] | None]:
    """Run a method's plan with the clients that have budget left.

    Args:
        plan: The plan.
        asked: How often each client was asked so far for what its budget pays.
        most: How often a client may be asked; None is no limit.
        costs: True for a request that a client's budget pays.

    Returns:
        What the plan returns, and how often each client was asked from now on; None if no client has budget left.
    """
    counts = dict(asked)

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
        return None
    return done, counts
