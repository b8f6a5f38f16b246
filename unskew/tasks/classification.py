"""Classification: one of several classes, a logit for each."""

import dataclasses

import torch.nn.functional as F
from torch import Tensor

from unskew.tasks.kind import TaskKind
from unskew.tasks.measure import ACCURACY


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


CLASSIFICATION = TaskKind(
    name="classification",
    targets="class",
    width=lambda num_classes: num_classes,
    losses={"cross_entropy": cross_entropy, "multi_margin": multi_margin},
    measures=(dataclasses.replace(ACCURACY, each=correct),),
    predict=predicted,
)
