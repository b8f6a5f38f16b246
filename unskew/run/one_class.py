"""Recall of each class by trained models, and warnings where only one is found: accuracy may be high and say little."""

import torch
from torch import Tensor

from unskew.info import OneClassModels, RecallByClass
from unskew.local.executor import Columns
from unskew.local.trainer import LocalTrainer
from unskew.run.cell import Cell
from unskew.run.evaluation import OwnModels, on_own_rows
from unskew.run.setup import Setup
from unskew.tasks.classification import MISSED, only_class_found
from unskew.tasks.task import Task
from unskew.tree import Params

CONFUSED = 20
"""Most classes of a confusion matrix."""
LITTLE = "says little; see balanced_accuracy or macro_f1 (evaluate), or set task.class_weights"
NAMED = 5
"""Clients that a warning names."""


def right(task: Task, columns: Columns) -> Tensor:
    """Tell which examples' class is found, (n,) bool, from the columns of an evaluation."""
    assert task.kind.correct is not None
    first = task.measures[0].each is task.kind.correct  # its column is there without the outputs
    return (columns[0] if first else task.kind.correct(*(column.clone() for column in columns[-2:]))).bool().cpu()


def of_global(setup: Setup, columns: Columns) -> str:
    """A warning if the global model finds test examples of one class only; empty if it does not."""
    dataset, found = setup.dataset, right(setup.task, columns)
    only_class = only_class_found(found, dataset.y_test)
    if only_class is None:
        return ""
    name = dataset.classes[only_class] if dataset.classes else str(only_class)
    return (
        f"the global model is right on test examples of class {name} only: its accuracy of "
        f"{100 * float(found.double().mean()):.1f} % {LITTLE}"
    )


def recalls(setup: Setup, columns: Columns, confused: tuple[tuple[int, ...], ...] = ()) -> RecallByClass:
    """Return what the global model finds of each class of the global test set."""
    y, classes = setup.dataset.y_test, setup.task.num_classes
    recalled, examples = (rows.bincount(minlength=classes).tolist() for rows in (y[right(setup.task, columns)], y))
    return RecallByClass(found=tuple(recalled), examples=tuple(examples), confused=confused)


def confusion(cell: Cell, model: Params) -> tuple[tuple[int, ...], ...]:
    """Examples of the global test set by class and predicted class; empty of many classes, or where it is not here."""
    trainer, classes = cell.sim.model.server_trainer, cell.setup.task.num_classes
    probabilities, dataset = cell.setup.task.kind.probabilities, cell.setup.dataset
    if probabilities is None or classes > CONFUSED or not isinstance(trainer, LocalTrainer):
        return ()
    x = dataset.x_test
    with torch.no_grad():
        parts = [
            probabilities(trainer.refer(x[rows].to(trainer.device), model)[1]).argmax(1).cpu()
            for rows in torch.split(torch.arange(len(x)), LocalTrainer.CHUNK)
        ]
    counts = torch.bincount(dataset.y_test * classes + torch.cat(parts), minlength=classes**2)
    return tuple(map(tuple, counts.view(classes, classes).tolist()))


def of_own(cell: Cell, own: OwnModels) -> OneClassModels | None:
    """The clients whose own models find examples of one class only, with a warning that names them; None without any.

    Where one model is everybody's it is the global one, which is judged on more rows.
    """
    if len({id(model) for model in own.values()}) < 2:
        return None
    y, rows, names = cell.setup.dataset.y_train, cell.eval_set.test.to("cpu"), cell.fed.client_names
    hits = {c: right(cell.setup.task, columns) for c, columns in on_own_rows(cell.sim, own, cell.eval_set.test)}
    alike = sorted(c for c in hits if only_class_found(hits[c], y[rows[c]]) is not None)
    if not alike:
        return None
    first = [names[c] if names else str(c) for c in alike[:NAMED]]
    more = ", ..." if len(alike) > NAMED else ""
    warning = (
        f"own models that are right on test examples of one class only, where at least {MISSED} are of others: "
        f"{', '.join(first)}{more} ({len(alike)} of {len(own)} clients); their accuracy {LITTLE}"
    )
    return OneClassModels(clients=tuple(alike), warnings=(warning,))
