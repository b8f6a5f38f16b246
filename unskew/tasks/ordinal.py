"""Ordinal: ordered grades, such as a severity from 0 to 4, by an output for each step between grades.

E. Frank, M. Hall, "A Simple Approach to Ordinal Classification", ECML 2001; trained as one network, as in Z. Niu, M.
Zhou, L. Wang, X. Gao, G. Hua, "Ordinal Regression with Multiple Output CNN for Age Estimation", CVPR 2016.

Notation   K     grades 0, ..., K - 1;  y  the grade of an example;  z_k  output k of K - 1, the log odds of y > k
Loss       mean over k of the negative log-likelihood of 1[y > k] under sigmoid(z_k)                    (1)
Model      P(y > k) = min over j <= k of sigmoid(z_j), so that it never rises with k                    (2)
Prediction the number of k with P(y > k) > 1/2                                                          (3)
"""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.tasks.classification import named, several
from unskew.tasks.kind import TaskKind
from unskew.tasks.measure import ACCURACY, Array, Measure
from unskew.tasks.targets import CLASS
from unskew.words import some

_NUMBER = re.compile("-?[0-9]+")


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Negative log-likelihood of each example, the mean over the steps (eq. 1), (batch,)."""
    above = y[:, None] > torch.arange(outputs.shape[1], device=y.device)
    return F.binary_cross_entropy_with_logits(outputs, above.to(outputs), reduction="none").mean(1)


def predicted(outputs: Tensor) -> Tensor:
    """The grade of each example (eq. 3), (n,)."""
    return (outputs.cummin(1).values > 0).sum(1)


def steps_off(outputs: Tensor, y: Tensor) -> Tensor:
    """Distance of each prediction from the truth in grades, (n,)."""
    return (predicted(outputs) - y).abs().to(outputs)


def correct(outputs: Tensor, y: Tensor) -> Tensor:
    """1 where the grade is found, (n,) bool."""
    return predicted(outputs) == y


def probabilities(outputs: Tensor) -> Tensor:
    """Probability of each grade (eq. 2), (n, K)."""
    above = F.pad(F.pad(outputs.sigmoid().cummin(1).values, (1, 0), value=1.0), (0, 1), value=0.0)
    return above[:, :-1] - above[:, 1:]


def quadratic_kappa(outputs: Array, y: Array) -> float:
    """Cohen's kappa with quadratic weights; NaN for one grade."""
    from sklearn.metrics import cohen_kappa_score  # a run that does not ask for it need not import it

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
