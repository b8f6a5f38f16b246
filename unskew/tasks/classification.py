"""Classification: one of several classes, a logit for each."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.nn.functional as F
from torch import Tensor

from unskew.tasks.kind import TaskKind
from unskew.tasks.measure import ACCURACY, FEWEST, Measure
from unskew.tasks.targets import CLASS


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Negative log-likelihood of each example, (batch,)."""
    return F.cross_entropy(logits, y, reduction="none")


def multi_margin(logits: Tensor, y: Tensor) -> Tensor:
    """Crammer and Singer's hinge of each example, (batch,): the linear SVM's loss."""
    return F.multi_margin_loss(logits, y, reduction="none")


def predicted(logits: Tensor) -> Tensor:
    """The class of the largest logit, (n,)."""
    return logits.argmax(1)


def correct(logits: Tensor, y: Tensor) -> Tensor:
    """1 where the largest logit is the label's, (n,) bool."""
    return predicted(logits) == y


Outputs = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def recalls(logits: Outputs, y: Labels) -> npt.NDArray[np.float64]:
    """Share of each occurring class's examples that are found, classes ascending."""
    _, of = np.unique(y, return_inverse=True)
    shares: npt.NDArray[np.float64] = np.bincount(of, logits.argmax(1) == y) / np.bincount(of)
    return shares


def several(y: Labels) -> bool:
    """True for labels of several classes; with only one, a constant model would be perfect."""
    return bool((y != y[0]).any())


def balanced_accuracy(logits: Outputs, y: Labels) -> float:
    """Mean share found over the classes that occur; NaN for one class."""
    return float(recalls(logits, y).mean()) if several(y) else float("nan")


def lowest_recall(logits: Outputs, y: Labels) -> float:
    """Share of examples found in the class with the lowest such share; NaN for one class."""
    return float(recalls(logits, y).min()) if several(y) else float("nan")


def macro_f1(logits: Outputs, y: Labels) -> float:
    """Mean F1 over the classes that occur or are predicted; NaN for one class."""
    from sklearn.metrics import f1_score  # a run that does not ask for it need not import it

    return float(f1_score(y, logits.argmax(1), average="macro", zero_division=0.0)) if several(y) else float("nan")


def area(scores: npt.NDArray[np.float64], positive: npt.NDArray[np.bool_]) -> float:
    """Share of the pairs of a positive and a negative that the scores rank correctly, ties half: the AUROC.

    Scikit-learn's takes thirty times as long for a client's few rows, which explanations measure a thousand times.
    """
    from scipy.stats import rankdata

    n = np.count_nonzero(positive)
    return float((rankdata(scores)[positive].sum() - n * (n + 1) / 2) / (n * (len(scores) - n)))


def auroc(logits: Outputs, y: Labels) -> float:
    """Mean one-vs-rest area under the curve over the classes that occur; NaN for one class.

    Scores are log-odds of the classes, which compare examples whatever the size of their logits.
    """
    odds = log_odds(logits)
    return float(np.mean([area(odds[:, c], y == c) for c in np.unique(y)])) if several(y) else float("nan")


def log_odds(logits: Outputs) -> Outputs:
    """Log-odds of each class against the others, (n, classes); unlike probabilities they never round to one.

    They stay finite where a logit of minus infinity rules out a class.

    >>> log_odds(np.array([[0.0, 0.0], [60.0, 0.0]])).tolist()
    [[0.0, 0.0], [60.0, -60.0]]
    """
    from scipy.special import logsumexp

    others = [logsumexp(np.delete(logits, c, 1), axis=1) for c in range(logits.shape[1])]
    odds: Outputs = np.nan_to_num(logits - np.stack(others, 1), nan=np.nan)
    return odds


def shares_by_row(logits: Outputs, y: Labels) -> npt.NDArray[np.float64] | None:
    """Values of the rows whose mean is the balanced accuracy, and whose variance over n is its variance.

    Rows of each class that occurs are drawn by themselves; None if there are few of one.
    """
    classes, counts = np.unique(y, return_counts=True)
    if len(classes) < 2 or counts.min() < FEWEST:
        return None
    hits = (logits.argmax(1) == y).astype(np.float64)
    whole = float(np.mean([hits[y == c].mean() for c in classes]))
    values = np.full(len(y), whole)
    for c, m in zip(classes, counts, strict=True):
        mine = hits[y == c]
        values[y == c] += len(y) / (len(classes) * math.sqrt(m * (m - 1))) * (mine - mine.mean())
    return values


def f1_by_row(logits: Outputs, y: Labels) -> npt.NDArray[np.float64] | None:
    """Values of the rows whose mean is the macro F1, and whose variance over n is its variance to first order.

    A class's F1 is a ratio of means over rows, 2 [both] over [either], with either = predicted + there.  By the delta
    method a row has (2 both - F1 either) / [either] beside the F1; None if there are few rows of a class.
    """
    predicted = logits.argmax(1)
    there, counts = np.unique(y, return_counts=True)
    if len(there) < 2 or counts.min() < FEWEST:
        return None
    of_classes = []
    for c in np.union1d(there, predicted):
        both = 2.0 * ((predicted == c) & (y == c))
        either = (predicted == c).astype(np.float64) + (y == c)
        f1 = both.sum() / either.sum()
        of_classes.append(f1 + (both - f1 * either) / either.mean())
    return np.asarray(np.mean(of_classes, axis=0))


MISSED = 5
"""Examples of other classes, none of which is found, from which on it is hardly chance."""


def only_class_found(right: Tensor, y: Tensor) -> int | None:
    """The only class that a model finds examples of, given which are right; None if there is none.

    With two classes it predicts nearly always that one; with more it may confuse the others.
    """
    classes: set[int] = set(y[right].tolist())
    if len(classes) != 1 or int((y != min(classes)).sum()) < MISSED:
        return None
    return min(classes)


def named(classes: Tensor, names: Sequence[Any]) -> list[Any]:
    """The name of each class, or of each row's classes."""
    return [[names[c] for c in row] if isinstance(row, list) else names[row] for row in classes.tolist()]


def most_frequent(y: Tensor, width: int) -> Tensor:
    """Logits of the most frequent class, (width,)."""
    return F.one_hot(y.mode().values, width).double()


CLASSIFICATION = TaskKind(
    name="classification",
    targets=CLASS,
    width=lambda num_classes: num_classes,
    losses={"cross_entropy": cross_entropy, "multi_margin": multi_margin},
    measures=(
        dataclasses.replace(ACCURACY, each=correct),
        Measure(
            "balanced_accuracy",
            "balanced accuracy",
            whole=balanced_accuracy,
            by_row=shares_by_row,
        ),
        Measure("macro_f1", "macro F1", whole=macro_f1, by_row=f1_by_row),
        Measure("auroc", "AUROC", percent=False, whole=auroc),
        Measure("lowest_recall", "lowest recall of a class", whole=lowest_recall),
    ),
    predict=lambda outputs, names: named(predicted(outputs), names),
    probabilities=lambda outputs: outputs.softmax(1),
    gives=frozenset({"classes", "classifier"}),
    correct=correct,
    constant=most_frequent,
)
