"""Regression: a number, or several, by squared or absolute error, or a rate by Poisson's likelihood."""

import math
from collections.abc import Sequence

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from unskew.info import Info, PredictedNumbers
from unskew.tasks.kind import Scale, TaskKind
from unskew.tasks.measure import FEWEST, Array, Measure
from unskew.tasks.targets import NUMBER


def squared(outputs: Tensor, y: Tensor) -> Tensor:
    """Squared error of each example, the mean over its numbers, (batch,)."""
    return ((outputs - y.view(outputs.shape)) ** 2).mean(1)


def absolute(outputs: Tensor, y: Tensor) -> Tensor:
    """Absolute error of each example, (batch,)."""
    return (outputs - y.view(outputs.shape)).abs().mean(1)


def huber(outputs: Tensor, y: Tensor) -> Tensor:
    """Huber's loss of each example, (batch,): squared below an error of 1, linear above."""
    return F.huber_loss(outputs, y.reshape(outputs.shape).to(outputs), reduction="none").mean(1)


def poisson(outputs: Tensor, y: Tensor) -> Tensor:
    """Negative log-likelihood of a Poisson rate exp(output), without its constant log y!, (batch,)."""
    return (outputs.exp() - y.reshape(outputs.shape) * outputs).mean(1)


def r2(outputs: Array, y: Array) -> float:
    """1 - squared error / variance, the mean over the numbers; NaN if one does not vary."""
    from sklearn.metrics import r2_score  # a run that does not ask for it need not import it

    y = y.reshape(outputs.shape)
    return float(r2_score(y, outputs)) if len(y) > 1 and np.ptp(y, axis=0).all() else float("nan")


def root_by_row(outputs: Array, y: Array) -> Array | None:
    """Values of the rows whose mean is the root mean squared error, and whose variance over n is its variance.

    To first order, by the delta method; None for few rows, or without an error.
    """
    squares = ((outputs - y.reshape(outputs.shape)) ** 2).mean(1)
    root = math.sqrt(squares.mean())
    return None if len(y) < FEWEST or root == 0 else root + (squares - root**2) / (2 * root)


def not_negative(targets: Array, names: Sequence[str], loss: str) -> str:
    """Return an error message if a rate has a negative target."""
    low = float(targets.min())
    return f"with loss = 'poisson' needs targets of at least 0, got {low:g}" if loss == "poisson" and low < 0 else ""


def predicted(outputs: Array, y: Array) -> Info | None:
    """Truth and prediction of up to 500 numbers, evenly spaced, with a warning if their mean is a better guess."""
    shown, truth = outputs.reshape(-1), y.reshape(-1)
    some = np.linspace(0, len(truth) - 1, min(len(truth), 500)).round().astype(int)
    numbers = {"true": tuple(truth[some].tolist()), "predicted": tuple(shown[some].tolist())}
    warnings = _worse_than_the_mean(outputs, y.reshape(outputs.shape))
    return PredictedNumbers(**numbers, warnings=warnings) if np.isfinite(shown[some]).all() else None


def _worse_than_the_mean(outputs: Array, y: Array) -> tuple[str, ...]:
    error, variance = float(np.mean((y - outputs) ** 2)), float(np.var(y, axis=0).mean())
    if variance == 0 or not error > variance:  # nor where one of all the outputs is no number
        return ()
    return (
        "the global model is further from the targets of the test examples than their own mean (R² "
        f"{1 - error / variance:.2f}): train for more rounds, or at another rate",
    )


def mean(y: Tensor, width: int) -> Tensor:
    """The targets' mean, (width,), which a model has to beat."""
    return y.double().reshape(len(y), width).mean(0)


def scale(y: Tensor, loss: str) -> Scale:
    """Mean and standard deviation of targets, or for a rate 0 and the mean; a constant target has scale 1.

    Each of several numbers has its own.
    """
    if y.dim() > 1:
        pairs = [scale(column, loss) for column in y.unbind(1)]
        return tuple(shift for shift, _ in pairs), tuple(by for _, by in pairs)  # type: ignore[return-value]
    middle, spread = float(y.double().mean()), float(y.double().std(correction=0))
    shift, by = (0.0, middle) if loss == "poisson" else (middle, spread)
    return shift, by if by > 1e-9 * abs(middle) else 1.0  # sums of one number's copies are rounded


REGRESSION = TaskKind(
    name="regression",
    targets=NUMBER,
    width=lambda num_outputs: num_outputs,
    losses={"squared": squared, "absolute": absolute, "huber": huber, "poisson": poisson},
    measures=(
        Measure(
            "rmse",
            "root mean squared error",
            "lower",
            high=None,
            percent=False,
            each=squared,
            link=math.sqrt,
            by_row=root_by_row,
        ),
        Measure("mse", "mean squared error", "lower", high=None, percent=False, each=squared),
        Measure("mae", "mean absolute error", "lower", high=None, percent=False, each=absolute),
        Measure("r2", "R²", low=None, percent=False, whole=r2),
    ),
    predict=lambda outputs, names: (outputs[:, 0] if outputs.shape[1] == 1 else outputs).tolist(),
    links={"poisson": lambda outputs: outputs.exp()},
    scale=scale,
    check=not_negative,
    report=predicted,
    constant=mean,
)
