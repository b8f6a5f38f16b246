"""Reports on models after the last round.

They say which classes a model recognises, and for which clients a constant prediction would be better.  They keep the
result of each test row under its client's own model, which tests a client's gain.
"""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from unskew.data.dataset import Dataset
from unskew.data.federated import FederatedData
from unskew.data.manifest import Ragged
from unskew.data.patients import fewest_of_a_class
from unskew.info import Info, OneClassModels, RankedClasses, RecallByClass, WorseThanConstant
from unskew.local.executor import Columns, EvalJob
from unskew.local.trainer import LocalTrainer
from unskew.protocol import ClientId
from unskew.record.frame import RowResults
from unskew.run.cell import Cell, Evaluation, Observer
from unskew.run.folder import explained
from unskew.tasks.classification import MISSED, only_class_found
from unskew.tasks.kind import TaskKind
from unskew.tasks.measure import FEWEST, Measure
from unskew.tasks.task import Task
from unskew.tree import Params
from unskew.words import some

CONFUSED = 20
"""Most classes of a confusion matrix."""
MOST_ROWS = 20_000
"""Test rows of all clients up to which results by row are kept: that is 300 kB for each method and seed."""
LITTLE = "says little; see balanced_accuracy or macro_f1 (evaluate), or set task.class_weights"


def right(task: Task, columns: Columns) -> Tensor:
    """Whether each example's class is predicted, (n,) bool, from the columns of an evaluation."""
    assert task.kind.correct is not None
    first = task.measures[0].each is task.kind.correct  # its column is there without the outputs
    return (columns[0] if first else task.kind.correct(*(column.clone() for column in columns[-2:]))).bool().cpu()


# ---------------------------------------------------------------- the global model
class GlobalPredictions(Observer):
    """Reports what the global model predicts for the global test set."""

    def evaluated(self, cell: Cell, seen: Evaluation) -> Iterator[Info]:
        """Report recall and confusion by class, or what the kind of task reports."""
        kind, dataset = cell.setup.task.kind, cell.setup.dataset
        wanted = seen.last and "global" in cell.experiment.evaluate and (kind.correct or kind.report)
        model = cell.sim.method.serve(seen.state, None) if wanted else None
        if model is None:
            return
        (predicted,) = cell.sim.executor.evaluate([EvalJob(model, "test")])
        if kind.correct is not None:
            y, classes, found = dataset.y_test, cell.setup.task.num_classes, right(cell.setup.task, predicted)
            recalled, examples = (tuple(rows.bincount(minlength=classes).tolist()) for rows in (y[found], y))
            yield RecallByClass(found=recalled, examples=examples, confused=_confusion(cell, model))
            if (only := only_class_found(found, y)) is not None:
                text = (
                    f"the global model is right on test examples of class "
                    f"{dataset.classes[only] if dataset.classes else only} only: its accuracy of "
                    f"{100 * float(found.double().mean()):.1f} % {LITTLE}"
                )
                yield Info(warnings=(text,))
        if kind.report is not None:
            outputs, targets = (column.cpu().numpy() for column in predicted[-2:])
            report = kind.report(outputs.astype(np.float64), targets)
            if isinstance(report, RankedClasses) and kind.probabilities is None:  # of another loss
                report = replace(report, likely=(), happened=())
            if report is not None:
                yield report


def _confusion(cell: Cell, model: Params) -> tuple[tuple[int, ...], ...]:
    """Examples of the global test set by class and predicted class; empty of many classes, or where it is not here."""
    trainer, classes = cell.sim.model.server_trainer, cell.setup.task.num_classes
    kind, dataset = cell.setup.task.kind, cell.setup.dataset
    if not kind.targets.classes or classes > CONFUSED or not isinstance(trainer, LocalTrainer):
        return ()
    parts = (kind.predict(of, range(classes)) for _, of in trainer.predict(model, trainer.device_data.x_test))
    predicted = torch.tensor([c for part in parts for c in part])
    counts = torch.bincount(dataset.y_test * classes + predicted, minlength=classes**2)
    return tuple(map(tuple, counts.view(classes, classes).tolist()))


# ---------------------------------------------------------------- the clients' own models
class OneClassFound(Observer):
    """Names clients whose own models recognise one class only.

    Methods with one model for all are left out: it is judged on the global test set.
    """

    def evaluated(self, cell: Cell, seen: Evaluation) -> Iterator[Info]:
        """A note that names them."""
        own, task, names = seen.own or {}, cell.setup.task, cell.fed.client_names
        if not seen.all_own or task.kind.correct is None or len({id(model) for model in own.values()}) < 2:
            return
        y, rows = cell.setup.dataset.y_train, cell.fed.clients.test
        hits = {c: right(task, columns) for c, columns in seen.on_own_rows.items()}
        alike = sorted(c for c in hits if only_class_found(hits[c], y[rows[c]]) is not None)
        if not alike:
            return
        called = some([names[c] if names else str(c) for c in alike])
        warning = (
            f"own models right on test examples of one class only, though at least {MISSED} are of others: "
            f"{called} ({len(alike)} of {len(own)} clients); their accuracy {LITTLE}"
        )
        yield OneClassModels(clients=tuple(alike), warnings=(warning,))


class TrainedAlone(Observer):
    """Records what is needed to test clients' gains over training alone, and over a constant prediction.

    The same rows are tested under every method, so a difference of two methods is tested row by row.
    """

    def __init__(self) -> None:
        self.constants: dict[int, Mapping[ClientId, float]] = {}

    def evaluated(self, cell: Cell, seen: Evaluation) -> Iterator[Info]:
        """Record results by row, and the clients for which a constant is better."""
        if seen.own is None or not any(method.bound == "lower" for method in cell.experiment.methods):
            return
        task, record, where = cell.setup.task, cell.run.record, {**cell.where, "round": seen.round}
        rows, by_rows = cell.fed.clients.test, task.headline.of_rows or task.headline.by_row is not None
        if by_rows and rows.sizes[list(seen.own)].sum() <= MOST_ROWS:
            results = by_row(seen.on_own_rows, rows, cell.fed.dataset, task.headline)
            with explained(record.path, cell.run.folder):
                record.add("tested", ({**where, **row} for row in results.rows()))
        if cell.seed not in self.constants:
            self.constants[cell.seed] = of_constants(task.kind, task.headline, cell.fed)
        name = f"personal.{task.headline.name}"
        values = {m.client: m.value for m in seen.metrics if m.client is not None and m.name == name}
        if worse := below(values, self.constants[cell.seed], task.headline):
            yield worse


def by_row(measured: Mapping[ClientId, Columns], rows: Ragged, dataset: Dataset, measure: Measure) -> RowResults:
    """The headline on each of the clients' rows, if it is defined row by row.

    A client with too few rows or patients (of a class, or with an event) for a variance is left out.
    """
    patients, event = dataset.patients, 1 if measure.of_events else None
    by_client = {}
    for c, columns in sorted(measured.items()):
        values = columns[0].double().cpu().numpy() if measure.of_rows else measure.rows_of(*columns[-2:])
        units = rows[c] if patients is None else patients[rows[c]]
        few = patients is not None and fewest_of_a_class(units, dataset.labels[rows[c]], event) < FEWEST
        if values is not None and (measure.of_rows or not few):
            by_client[c] = units.numpy(), values
    return RowResults(by_client, ranked=measure.each is None)


def of_constants(kind: TaskKind, headline: Measure, fed: FederatedData) -> dict[ClientId, float]:
    """The headline of the best constant prediction from each client's training rows, on its test rows; empty if
    unknown.

    Clients for whose rows it is not defined are left out, such as balanced accuracy of one class.

    Args:
        kind: The kind of task, whose measures see outputs without a link.
        headline: The measure by which the run compares models.
        fed: The division into clients.
    """
    measure = next((m for m in kind.measures if m.name == headline.name), None)
    if kind.constant is None or measure is None:
        return {}
    y, width, values = fed.dataset.y_train, kind.width(len(fed.dataset.outputs)), {}
    for c in range(fed.num_clients):
        train, test = y[fed.clients.train[c]], y[fed.clients.test[c]]
        if len(train) and len(test):
            outputs = kind.constant(train, width).expand(len(test), width)
            if measure.each is not None:
                values[c] = measure.of_mean(float(measure.each(outputs, test).double().mean()))
            elif measure.whole is not None:
                values[c] = measure.whole(outputs.double().numpy(), test.numpy())
    return {c: value for c, value in values.items() if value == value}


def below(
    results: Mapping[ClientId, float], constants: Mapping[ClientId, float], measure: Measure
) -> WorseThanConstant | None:
    """The clients whose result is worse than the constant's, and whether the mean over clients is; None without any."""
    sign = 1.0 if measure.higher else -1.0
    ahead = {c: sign * (results[c] - constants[c]) for c in sorted(results.keys() & constants.keys())}
    worse = tuple(c for c, by in ahead.items() if by < -1e-9 * abs(constants[c]))
    return WorseThanConstant(clients=worse, mean=statistics.fmean(ahead.values()) < 0) if worse else None
