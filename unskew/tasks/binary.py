"""Binary classification: one of two classes by one logit, that of the second class."""

import dataclasses
import math
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.info import Info, RankedClasses
from unskew.tasks.classification import CLASSIFICATION, Labels, Outputs, named, several
from unskew.tasks.kind import TaskKind
from unskew.tasks.measure import ACCURACY, FEWEST, Array, Measure
from unskew.tasks.targets import CLASS
from unskew.words import letters, some

_AT = re.compile(r"sensitivity_at_(\d{1,2})")


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Negative log-likelihood of each example, (batch,), from the log odds of class 1, (batch, 1)."""
    return F.binary_cross_entropy_with_logits(outputs[:, 0], y.to(outputs), reduction="none")


def predicted(outputs: Tensor) -> Tensor:
    """Class 1 where it is more likely, (n,) int64."""
    return (outputs[:, 0] > 0).long()


def correct(outputs: Tensor, y: Tensor) -> Tensor:
    """1 where the more likely class is the label's, (n,) bool."""
    return predicted(outputs) == y


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """Squared difference of the probability of class 1 and the label, (n,)."""
    return (outputs[:, 0].sigmoid() - y) ** 2


def auroc(outputs: Outputs, y: Labels) -> float:
    """Area under the curve of sensitivity against 1 - specificity; NaN for one class."""
    from sklearn.metrics import roc_auc_score  # a run that does not ask for it need not import it

    return float(roc_auc_score(y, outputs[:, 0])) if several(y) else float("nan")


def auroc_by_row(outputs: Outputs, y: Labels) -> npt.NDArray[np.float64] | None:
    """Values of the rows whose mean is the AUROC, and whose variance over n is its variance; None for few of a class.

    The structural components of E. R. DeLong, D. M. DeLong, D. L. Clarke-Pearson, "Comparing the areas under two or
    more correlated receiver operating characteristic curves", Biometrics 44, 1988: the share of the other class that a
    row is ranked correctly against.  Differences of two models' values on the same rows give DeLong's paired variance.
    """
    from scipy.stats import rankdata  # only advice needs it

    classes = [np.flatnonzero(y == 0), np.flatnonzero(y == 1)]
    if min(map(len, classes)) < FEWEST:
        return None
    signs = (-outputs[:, 0], outputs[:, 0])
    values = np.empty(len(y))
    for mine, others, scores in zip(classes, reversed(classes), signs, strict=True):
        below = (rankdata(scores)[mine] - rankdata(scores[mine])) / len(others)
        values[mine] = below.mean() + len(y) / math.sqrt(len(mine) * (len(mine) - 1)) * (below - below.mean())
    return values


def average_precision(outputs: Outputs, y: Labels) -> float:
    """Area under the precision-recall curve, as a sum of steps; NaN for one class."""
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(y, outputs[:, 0])) if several(y) else float("nan")


def two_logits(outputs: Outputs) -> Outputs:
    """A logit for each class, (n, 2), for classification measures; a tie goes to the first class."""
    return np.concatenate([-outputs, outputs], 1)


def _of_classification(name: str) -> Measure:
    """The measure of classification of this name, from one logit."""
    of = CLASSIFICATION.measure(name)
    whole, by_row = of.whole, of.by_row
    assert whole is not None
    assert by_row is not None
    return dataclasses.replace(
        of,
        whole=lambda outputs, y: whole(two_logits(outputs), y),
        by_row=lambda outputs, y: by_row(two_logits(outputs), y),
    )


def recall(outputs: Outputs, y: Labels, of: int) -> float:
    """Share of a class's examples that are found; NaN if there are none."""
    mine = y == of
    return float(((outputs[mine, 0] > 0) == of).mean()) if mine.any() else float("nan")


def sensitivity_at(outputs: Outputs, y: Labels, specificity: float) -> float:
    """Largest share of class 1 that a threshold finds at this specificity or higher; NaN for one class."""
    from sklearn.metrics import roc_curve

    if not several(y):
        return float("nan")
    false, true, _ = roc_curve(y, outputs[:, 0], drop_intermediate=False)
    return float(true[1 - false >= specificity - 1e-12].max())


def at_specificity(name: str) -> Measure | None:
    """`sensitivity_at_90` is the sensitivity at a specificity of 90 %; None for other names.

    The threshold is chosen on the evaluated examples, so methods are compared at one specificity.
    """
    if (match := _AT.fullmatch(name)) is None:
        return None
    label, share = f"sensitivity at {match[1]} % specificity", int(match[1]) / 100
    return Measure(name, label, whole=lambda outputs, y: sensitivity_at(outputs, y, share), of_positives=True)


def two_classes(targets: Array, names: Sequence[str], loss: str) -> str:
    """Return an error message if there are not two classes."""
    if len(names) == 2:
        return ""
    numbers = [name for name in names if re.fullmatch(r"-?[0-9.]+", name)]
    mixed = 0 < len(numbers) < len(names) or len(set(map(letters, names))) < len(names)
    way = "use classification"
    if mixed:
        way = (
            "write each in one way, in numbers or in words, at all clients, or, if all are classes, use classification"
        )
    return f"needs a target of two values, got {len(names)} ({some(names)}); {way}"


def ranked(outputs: Outputs, y: Labels) -> Info | None:
    """ROC, precision by recall, and calibration in tenths; None for one class."""
    from sklearn.metrics import precision_recall_curve, roc_curve

    scores = outputs[:, 0]
    if not several(y) or not np.isfinite(scores).all():
        return None
    false, detected, _ = roc_curve(y, scores)
    precision, recall_, _ = precision_recall_curve(y, scores)
    tenths = by_rank(scores, 10)
    likely = 1 / (1 + np.exp(-np.clip(scores, -700, 700)))
    return RankedClasses(
        false_alarms=_some(false),
        found=_some(detected),
        recall=_some(recall_[::-1]),
        precision=_some(precision[::-1]),
        likely=tuple(float(likely[part].mean()) for part in tenths),
        happened=tuple(float(y[part].mean()) for part in tenths),
        area=auroc(outputs, y),
        average_precision=average_precision(outputs, y),
        share=float(y.mean()),
    )


def by_rank(scores: Array, parts: int) -> list[npt.NDArray[np.intp]]:
    """Examples in so many parts by their ranks; equal scores share their middle rank, so no order parts them."""
    ends = [np.searchsorted(np.sort(scores), scores, side) for side in ("left", "right")]
    part = parts * (ends[0] + ends[1]) // (2 * len(scores))
    return [np.flatnonzero(part == k) for k in np.unique(part)]


def _some(values: Array) -> tuple[float, ...]:
    """Choose at most 200 of the values, the first and the last among them."""
    some = np.linspace(0, len(values) - 1, min(len(values), 200)).round().astype(int)
    return tuple(values[some].tolist())


def share(y: Tensor, width: int) -> Tensor:
    """The log odds of class 1 among the targets, (1,), with half an example more of each class."""
    positive = y.double().sum() + 0.5
    return (positive / (len(y) + 1 - positive)).log().reshape(1)


BINARY = TaskKind(
    name="binary",
    targets=CLASS,
    width=lambda num_outputs: 1,
    losses={"cross_entropy": cross_entropy},
    measures=(
        Measure("auroc", "AUROC", percent=False, whole=auroc, by_row=auroc_by_row),
        Measure("average_precision", "average precision", percent=False, whole=average_precision, of_positives=True),
        Measure("brier", "Brier score", "lower", percent=False, each=squared_error),
        dataclasses.replace(ACCURACY, each=correct),
        _of_classification("balanced_accuracy"),
        _of_classification("macro_f1"),
        Measure("sensitivity", "sensitivity", whole=lambda outputs, y: recall(outputs, y, 1), of_positives=True),
        Measure("specificity", "specificity", whole=lambda outputs, y: recall(outputs, y, 0), of_positives=True),
        *filter(None, [at_specificity("sensitivity_at_90")]),
    ),
    predict=lambda outputs, names: named(predicted(outputs), names),
    probabilities=lambda outputs: torch.cat([-outputs, outputs], 1).sigmoid(),
    gives=frozenset({"classes"}),
    correct=correct,
    family=at_specificity,
    check=two_classes,
    report=ranked,
    constant=share,
)
