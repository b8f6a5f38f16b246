"""Results by test row of the clients' own models, from which a report tells a client's gain from chance.

The same rows are tested under every method, so what a difference of two methods owes to the choice of rows is known
only from both methods' results on each.
"""

import numpy as np

from unskew.data.patients import fewest_of_a_class
from unskew.record.columns import RowResults
from unskew.run.cell import Cell
from unskew.run.evaluation import OwnModels, on_own_rows
from unskew.tasks.measure import FEWEST

MOST_ROWS = 20_000
"""Test rows of all clients up to which results by row are kept: that is 300 kB for each method and seed."""


def tested_rows(cell: Cell, own: OwnModels) -> RowResults | None:
    """The headline of each test row under its client's own model; None where it has no value by row, or rows are many.

    A client whose test rows or patients are too few of a class, or with an event, for a variance is left out.
    """
    test, dataset, measure = cell.eval_set.test, cell.fed.dataset, cell.setup.task.headline
    patients = dataset.patients
    if test.sizes[list(own)].sum() > MOST_ROWS or not (measure.of_rows or measure.by_row is not None):
        return None
    rows, by_client = test.to("cpu"), {}
    for c, columns in on_own_rows(cell.sim, own, test):
        values = columns[0].double().cpu().numpy() if measure.of_rows else measure.rows_of(*columns[-2:])
        of = rows[c]
        event = 1 if measure.of_events else None
        few = patients is not None and fewest_of_a_class(patients[of], dataset.labels[of], event) < FEWEST
        if values is not None and (measure.of_rows or not few):
            by_client[c] = values
    clients = sorted(by_client)
    units = [(rows[c] if patients is None else patients[rows[c]]).numpy() for c in clients]
    return RowResults(
        np.array(clients, np.int64),
        np.array([len(by_client[c]) for c in clients], np.int64),
        np.concatenate([np.empty(0, np.int64), *units]),
        np.concatenate([np.empty(0), *(by_client[c] for c in clients)]),
        ranked=measure.each is None,
    )
