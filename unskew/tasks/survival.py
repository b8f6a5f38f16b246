"""Survival: who has the event earlier, learned from times of which some are censored on the right.

D. R. Cox, "Regression models and life-tables", Journal of the Royal Statistical Society B 34, 1972; ties after
N. Breslow, Biometrics 30, 1974.  F. E. Harrell et al., "Evaluating the yield of medical tests", JAMA 247, 1982.

Notation   eta  output of the network, the log of the relative hazard: the higher, the earlier
           t    time, d 1 if the event happened then and 0 if the example was censored
Departures Risk sets are those of the batch, as mini-batches and clients allow no others: the more examples a batch has,
           the nearer the loss is to Cox's.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from unskew.tasks.kind import TaskKind, batchwise
from unskew.tasks.measure import Array, Measure
from unskew.tasks.targets import SURVIVAL as TIMES

_AT_ONCE = 1 << 22


@batchwise
def cox(outputs: Tensor, y: Tensor) -> Tensor:
    """Negative log partial likelihood of each example, (batch,): -d (eta - log sum over t' >= t of exp eta').

    >>> cox(torch.zeros(2, 1), torch.tensor([[1.0, 1.0], [2.0, 1.0]]))  # one of two fails first, then one of one
    tensor([0.6931, 0.0000])
    """
    eta, time, event = outputs[:, 0], y[:, 0], y[:, 1].to(outputs)
    if len(y) ** 2 <= _AT_ONCE:
        at_risk = time[None, :] >= time[:, None]
        below = torch.full((), -torch.inf, dtype=eta.dtype, device=eta.device)
        return event * (torch.where(at_risk, eta[None, :], below).logsumexp(1) - eta)
    later, order = time.sort(descending=True)
    sums = eta[order].logcumsumexp(0)
    last = torch.searchsorted(-later, -time, right=True) - 1  # of those that are at risk at each time
    return event * (sums[last] - eta)


def concordance(outputs: Array, y: Array) -> float:
    """Harrell's index: share of comparable pairs in which the one with the earlier event has the higher risk.

    A pair is comparable if the earlier time is an event's; of equal times, if one is an event and one is censored, who
    lived longer.  Equal risks count one half.  NaN where no pair is comparable.
    """
    risk, time, event = outputs[:, 0], y[:, 0], y[:, 1] == 1
    pairs, agreeing = 0, 0.0
    failed = np.flatnonzero(event)
    for some in np.array_split(failed, max(1, len(failed) * len(time) // _AT_ONCE)):
        later = (time[None, :] > time[some, None]) | ((time[None, :] == time[some, None]) & ~event[None, :])
        higher = risk[some, None] - risk[None, :]
        pairs += int(later.sum())
        agreeing += float((later & (higher > 0)).sum()) + 0.5 * float((later & (higher == 0)).sum())
    return agreeing / pairs if pairs else float("nan")


def some_event(targets: Array, names: Sequence[str], loss: str) -> str:
    """Return an error message if no event ever happens."""
    return "" if targets[:, 1].any() else f"needs an event, and none of {len(targets)} training examples has one"


SURVIVAL = TaskKind(
    name="survival",
    targets=TIMES,
    width=lambda num_outputs: 1,
    losses={"cox": cox},
    measures=(Measure("concordance", "concordance index", percent=False, whole=concordance),),
    predict=lambda outputs, names: outputs[:, 0].tolist(),
    predicted="log_relative_risk",
    meaning="the log of the relative risk: the higher, the earlier the event",
    check=some_event,
    needs_all_clients=True,
)
