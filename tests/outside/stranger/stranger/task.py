"""Classification by the Brier score."""

from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from unskew.tasks.classification import named
from unskew.tasks.kind import TaskKind
from unskew.tasks.measure import Measure
from unskew.tasks.targets import CLASS


def brier(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.softmax(1) - one_hot(y, outputs.shape[1])).square().sum(1)


CAUTIOUS = TaskKind(
    name="cautious",
    targets=CLASS,
    width=lambda num_classes: num_classes,
    losses={"cross_entropy": lambda outputs, y: cross_entropy(outputs, y, reduction="none")},
    measures=(Measure("brier", "Brier score", "lower", 0.0, 2.0, percent=False, each=brier),),
    predict=lambda outputs, names: named(outputs.argmax(1), names),
    gives=frozenset({"classes", "classifier"}),
)
