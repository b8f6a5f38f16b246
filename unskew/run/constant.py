"""Clients whose own models do worse than a prediction that is always the same: better than useless is no gain."""

import statistics
from collections.abc import Mapping

from unskew.data.federated import FederatedData
from unskew.info import WorseThanConstant
from unskew.protocol import ClientId
from unskew.tasks.kind import TaskKind
from unskew.tasks.measure import Measure


def of_clients(kind: TaskKind, headline: Measure, fed: FederatedData) -> dict[ClientId, float]:
    """The headline on each client's own test rows of what its training rows would always say; empty where not known.

    Clients are left out for whose rows it is not defined, as the balanced accuracy of one class.

    Args:
        kind: The kind of task, whose measures see outputs without a link.
        headline: The measure by which the run compares models.
        fed: The division into clients.
    """
    measure = next((m for m in kind.measures if m.name == headline.name), None)
    if kind.constant is None or measure is None:
        return {}
    y, parts = fed.dataset.y_train, fed.clients
    width, values = kind.width(len(fed.dataset.outputs)), {}
    for c in range(fed.num_clients):
        train, test = y[parts.train[c]], y[parts.test[c]]
        if len(train) and len(test):
            outputs = kind.constant(train, width).expand(len(test), width)
            if measure.each is not None:
                values[c] = measure.of_mean(float(measure.each(outputs, test).double().mean()))
            elif measure.whole is not None:
                values[c] = measure.whole(outputs.double().numpy(), test.numpy())
    return {c: value for c, value in values.items() if value == value}


def beside(
    results: Mapping[ClientId, float], constants: Mapping[ClientId, float], measure: Measure
) -> WorseThanConstant | None:
    """The clients whose result is worse than the constant's, and whether the mean over clients is; None without any."""
    sign = 1.0 if measure.higher else -1.0
    ahead = {c: sign * (results[c] - constants[c]) for c in sorted(results.keys() & constants.keys())}
    worse = tuple(c for c, by in ahead.items() if by < -1e-9 * abs(constants[c]))
    if not worse:
        return None
    return WorseThanConstant(clients=worse, mean=statistics.fmean(ahead.values()) < 0)
