"""Survival: who has the event earlier, learned from times, some right-censored.

D. R. Cox, "Regression models and life-tables", Journal of the Royal Statistical Society B 34, 1972; ties after
N. Breslow, Biometrics 30, 1974.  F. E. Harrell et al., "Evaluating the yield of medical tests", JAMA 247, 1982.

Notation   eta  output of the network, the log of the relative hazard: the higher, the earlier
           t    time, d 1 if the event happened then and 0 if the example was censored
Departures Risk sets are within the batch, as mini-batches and clients allow no others: the larger a batch, the nearer
           the loss is to Cox's.
"""

import numpy as np
import torch
from torch import Tensor

from unskew.tasks.kind import TaskKind, batchwise
from unskew.tasks.measure import FEWEST, Array, Measure
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

    A pair is comparable if the earlier time is an event.  At equal times, an event and a censored example are
    comparable: the latter lived longer.  Equal risks count one half.  NaN if no pair is comparable.
    """
    pairs, agreeing = _pairs_by_row(outputs, y)
    return float(agreeing.sum() / pairs.sum()) if pairs.any() else float("nan")


def _pairs_by_row(outputs: Array, y: Array) -> tuple[Array, Array]:
    """The comparable pairs that each row is in, and how many of these agree, (n,) each."""
    risk, time, event = outputs[:, 0], y[:, 0], y[:, 1] == 1
    pairs, agreeing = np.zeros(len(time)), np.zeros(len(time))
    failed = np.flatnonzero(event)
    for some in np.array_split(failed, max(1, len(failed) * len(time) // _AT_ONCE)):
        later = (time[None, :] > time[some, None]) | ((time[None, :] == time[some, None]) & ~event[None, :])
        higher = risk[some, None] - risk[None, :]
        for totals, part, of in ((pairs, 1.0, later), (agreeing, 1.0, higher > 0), (agreeing, 0.5, higher == 0)):
            of &= later
            totals += part * np.count_nonzero(of, axis=0)
            totals[some] += part * np.count_nonzero(of, axis=1)
    return pairs, agreeing


def concordance_by_row(outputs: Array, y: Array) -> Array | None:
    """Values of the rows whose mean is Harrell's index, and whose variance over n is its variance; None for few events.

    The index is C = A / P, a ratio of two U-statistics over pairs of rows: P is the share of comparable pairs, A of
    those that also agree.  By Hoeffding's projection a row moves a U-statistic by 2 / n times the mean over its own
    pairs minus the overall mean: a_i - A and p_i - P.  By the delta method it moves C by

        psi_i / n,  psi_i = 2 ((a_i - A) - C (p_i - P)) / P = 2 (a_i - C p_i) / P,

    whose sum is zero.  The variance of C is that of psi over n, times n (n - 1) / (n - 2)^2.  This is the jackknife's
    of a U-statistic (J. N. Arvesen, Annals of Mathematical Statistics 40, 1969): a_i and p_i are means over rows that
    are drawn themselves.  Two models' indices on the same rows differ by the mean of their values' differences, whose
    variance accounts for the pairing, as in L. Kang et al., Statistics in Medicine 34, 2015.
    """
    n = len(y)
    if int((y[:, 1] == 1).sum()) < FEWEST:
        return None
    pairs, agreeing = _pairs_by_row(outputs, y)
    if not pairs.any():
        return None
    index = agreeing.sum() / pairs.sum()
    psi = 2 * (agreeing - index * pairs) / pairs.mean()
    values: Array = index + psi * (np.sqrt(n * (n - 1)) / (n - 2))
    return values


SURVIVAL = TaskKind(
    name="survival",
    targets=TIMES,
    width=lambda num_outputs: 1,
    losses={"cox": cox},
    measures=(
        Measure("concordance", "concordance index", percent=False, whole=concordance, by_row=concordance_by_row),
    ),
    predict=lambda outputs, names: outputs[:, 0].tolist(),
    predicted="log_relative_risk",
    meaning="the log of the relative risk: the higher, the earlier the event",
    check=lambda y, names, loss: (
        "" if y[:, 1].any() else f"needs an event, and none of {len(y)} training examples has one"
    ),
    needs_all_clients=True,
)
