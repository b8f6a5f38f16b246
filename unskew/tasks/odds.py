"""Tasks whose outputs are log odds: of the second of two classes, of steps between grades, of each of several labels.

Binary classification is the first with a single step.  Ordinal grades, such as a severity from 0 to 4: E. Frank, M.
Hall, "A Simple Approach to Ordinal Classification", ECML 2001; trained as one network, as in Z. Niu, M. Zhou, L. Wang,
X. Gao, G. Hua, "Ordinal Regression with Multiple Output CNN for Age Estimation", CVPR 2016.

Notation   K     grades 0, ..., K - 1;  y  the grade of an example;  z_k  output k of K - 1, the log odds of y > k
Loss       mean over k of the negative log-likelihood of 1[y > k] under sigmoid(z_k)                    (1)
Model      P(y > k) = min over j <= k of sigmoid(z_j), so that it never rises with k                    (2)
Prediction the number of k with P(y > k) > 1/2                                                          (3)
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.info import Info, RankedClasses
from unskew.tasks.classification import CLASSIFICATION, Labels, Outputs, area, named, several
from unskew.tasks.kind import TaskKind
from unskew.tasks.measure import ACCURACY, FEWEST, Array, Measure
from unskew.tasks.targets import CLASS, LABELS
from unskew.words import letters, some

_AT = re.compile(r"sensitivity_at_(\d{1,2})")
_NUMBER = re.compile("-?[0-9]+")


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Negative log-likelihood of each example, the mean over the steps (eq. 1), (batch,)."""
    above = y[:, None] > torch.arange(outputs.shape[1], device=y.device)
    return F.binary_cross_entropy_with_logits(outputs, above.to(outputs), reduction="none").mean(1)


def predicted(outputs: Tensor) -> Tensor:
    """The class or grade of each example (eq. 3), (n,) int64."""
    return (outputs.cummin(1).values > 0).sum(1)


def correct(outputs: Tensor, y: Tensor) -> Tensor:
    """1 where the class or grade is found, (n,) bool."""
    return predicted(outputs) == y


# ---------------------------------------------------------------- one of two classes
def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """Squared difference of the probability of class 1 and the label, (n,)."""
    return (outputs[:, 0].sigmoid() - y) ** 2


def auroc(outputs: Outputs, y: Labels) -> float:
    """Area under the curve of sensitivity against 1 - specificity; NaN for one class."""
    return area(outputs[:, 0], y == 1) if several(y) else float("nan")


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
    from sklearn.metrics import average_precision_score  # a run that does not ask for it need not import it

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


# ---------------------------------------------------------------- grades
def steps_off(outputs: Tensor, y: Tensor) -> Tensor:
    """Distance of each prediction from the truth in grades, (n,)."""
    return (predicted(outputs) - y).abs().to(outputs)


def probabilities(outputs: Tensor) -> Tensor:
    """Probability of each grade (eq. 2), (n, K)."""
    above = F.pad(F.pad(outputs.sigmoid().cummin(1).values, (1, 0), value=1.0), (0, 1), value=0.0)
    return above[:, :-1] - above[:, 1:]


def quadratic_kappa(outputs: Array, y: Array) -> float:
    """Cohen's kappa with quadratic weights; NaN for one grade."""
    from sklearn.metrics import cohen_kappa_score

    if not several(y):
        return float("nan")
    grades = predicted(torch.from_numpy(outputs)).numpy()
    return float(cohen_kappa_score(y, grades, labels=np.arange(outputs.shape[1] + 1), weights="quadratic"))


def graded(targets: Array, names: Sequence[str], loss: str) -> str:
    """Return an error message if there are fewer than three grades, or their order is not known."""
    if words := [name for name in names if not _NUMBER.fullmatch(name)]:
        return (
            f"needs grades in an order, and words such as {words[0]!r} have none. Number them, list them in order in "
            "data_options.classes (in a file of arrays: classes), or give an ordered pandas.Categorical"
        )
    if (grades := list(map(int, names))) != sorted(set(grades)):
        return (
            f"needs grades in their order, got {some(names)}; give them as whole numbers, or list them in order in "
            "data_options.classes (in a file of arrays: classes)"
        )
    if len(names) < 3:
        return f"needs three grades or more, got {len(names)} ({', '.join(names)}); use binary"
    return ""


ORDINAL = TaskKind(
    name="ordinal",
    targets=CLASS,
    width=lambda num_outputs: num_outputs - 1,
    losses={"cross_entropy": cross_entropy},
    measures=(
        Measure("grade_error", "mean error in grades", "lower", high=None, percent=False, each=steps_off),
        Measure("quadratic_kappa", "quadratic kappa", low=-1.0, percent=False, whole=quadratic_kappa),
        dataclasses.replace(ACCURACY, each=correct),
    ),
    predict=lambda outputs, names: named(predicted(outputs), names),
    probabilities=probabilities,
    gives=frozenset({"classes"}),
    correct=correct,
    check=graded,
    ordered=True,
)


# ---------------------------------------------------------------- several labels
def of_each_label(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean over the labels of the negative log-likelihood, (batch,)."""
    return F.binary_cross_entropy_with_logits(outputs, y.to(outputs), reduction="none").mean(1)


def of_labels(score: str, outputs: Array, y: Array) -> float:
    """Mean of scikit-learn's score over labels that some examples have and others lack; NaN without one."""
    from sklearn import metrics

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
    losses={"cross_entropy": of_each_label},
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
