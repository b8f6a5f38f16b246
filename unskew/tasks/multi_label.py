"""Multi-label: any number of several labels applies to an example, a logit for each."""

from functools import partial

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from unskew.tasks.kind import TaskKind
from unskew.tasks.measure import Array, Measure
from unskew.tasks.targets import LABELS


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean over the labels of the negative log-likelihood, (batch,)."""
    return F.binary_cross_entropy_with_logits(outputs, y.to(outputs), reduction="none").mean(1)


def of_labels(score: str, outputs: Array, y: Array) -> float:
    """Mean of scikit-learn's score over labels that some examples have and others lack; NaN without one."""
    from sklearn import metrics  # a run that does not ask for it need not import it

    used = np.flatnonzero(y.any(0) & (1 - y).any(0))
    each = [getattr(metrics, score)(y[:, label], outputs[:, label]) for label in used]
    return float(np.mean(each)) if each else float("nan")


mean_average_precision = partial(of_labels, "average_precision_score")
macro_auroc = partial(of_labels, "roc_auc_score")


def micro_f1(outputs: Array, y: Array) -> float:
    """Harmonic mean of precision and recall over all labels of all examples, at a probability of one half; NaN where
    no label applies.
    """
    from sklearn.metrics import f1_score

    return float(f1_score(y, outputs > 0, average="micro")) if y.any() else float("nan")


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
    predict=lambda outputs, names: [
        [name for name, has in zip(names, row, strict=True) if has] for row in (outputs > 0).tolist()
    ],
    probabilities=lambda outputs: outputs.sigmoid(),
)
