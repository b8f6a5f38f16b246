"""Multi-label: any number of several labels applies to an example, a logit for each."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from unskew.tasks.kind import TaskKind
from unskew.tasks.measure import Array, Measure
from unskew.tasks.targets import LABELS


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean over the labels of the negative log-likelihood, (batch,)."""
    return F.binary_cross_entropy_with_logits(outputs, y.to(outputs), reduction="none").mean(1)


def mean_average_precision(outputs: Array, y: Array) -> float:
    """Mean over the labels that some examples have and others lack of the area under the precision-recall curve; NaN
    without one.
    """
    from sklearn.metrics import average_precision_score  # a run that does not ask for it need not import it

    used = np.flatnonzero(y.any(0) & (1 - y).any(0))
    if not len(used):
        return float("nan")
    return float(np.mean([average_precision_score(y[:, label], outputs[:, label]) for label in used]))


def macro_auroc(outputs: Array, y: Array) -> float:
    """Mean over the labels that some examples have and others lack of the area under the curve; NaN without one."""
    from sklearn.metrics import roc_auc_score

    used = np.flatnonzero(y.any(0) & (1 - y).any(0))
    if not len(used):
        return float("nan")
    return float(np.mean([roc_auc_score(y[:, label], outputs[:, label]) for label in used]))


def micro_f1(outputs: Array, y: Array) -> float:
    """Harmonic mean of precision and recall over all labels of all examples, at a probability of one half; NaN where
    no label applies.
    """
    from sklearn.metrics import f1_score

    return float(f1_score(y, outputs > 0, average="micro")) if y.any() else float("nan")


def _predict(outputs: Tensor, names: Sequence[Any]) -> list[Any]:
    return [[name for name, has in zip(names, row, strict=True) if has] for row in (outputs > 0).tolist()]


MULTI_LABEL = TaskKind(
    name="multi_label",
    targets=LABELS,
    width=lambda num_outputs: num_outputs,
    losses={"cross_entropy": cross_entropy},
    measures=(
        Measure("mean_average_precision", "mean average precision", percent=False, whole=mean_average_precision),
        Measure("macro_auroc", "macro AUROC", percent=False, whole=macro_auroc),
        Measure("micro_f1", "micro F1", whole=micro_f1),
    ),
    predict=_predict,
    probabilities=lambda outputs: outputs.sigmoid(),
)
