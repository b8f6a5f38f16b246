"""Regression: a number, by squared or absolute error, or a rate by Poisson's likelihood."""

import math
from collections.abc import Sequence

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from unskew.info import Info, PredictedNumbers
from unskew.tasks.kind import TaskKind
from unskew.tasks.measure import FEWEST, Array, Measure
from unskew.tasks.targets import NUMBER


def squared(outputs: Tensor, y: Tensor) -> Tensor:
    """Squared error of each example, (batch,)."""
    return (outputs[:, 0] - y) ** 2


def absolute(outputs: Tensor, y: Tensor) -> Tensor:
    """Absolute error of each example, (batch,)."""
    return (outputs[:, 0] - y).abs()


def huber(outputs: Tensor, y: Tensor) -> Tensor:
    """Huber's loss of each example, (batch,): squared below an error of 1, linear above."""
    return F.huber_loss(outputs[:, 0], y.to(outputs), reduction="none")


def poisson(outputs: Tensor, y: Tensor) -> Tensor:
    """Negative log-likelihood of a Poisson rate exp(output), without its constant log y!, (batch,)."""
    return outputs[:, 0].exp() - y * outputs[:, 0]


def r2(outputs: Array, y: Array) -> float:
    """1 - squared error / variance; NaN where targets do not vary."""
    from sklearn.metrics import r2_score  # a run that does not ask for it need not import it

    return float(r2_score(y, outputs[:, 0])) if len(y) > 1 and np.ptp(y) > 0 else float("nan")


def root_by_row(outputs: Array, y: Array) -> Array | None:
    """Values of the rows whose mean is the root mean squared error, and whose variance over n is its variance.

    To first order, by the delta method; None for few rows, or without an error.
    """
    squares = (outputs[:, 0] - y) ** 2
    root = math.sqrt(squares.mean())
    return None if len(y) < FEWEST or root == 0 else root + (squares - root**2) / (2 * root)


def not_negative(targets: Array, names: Sequence[str], loss: str) -> str:
    """Return an error message if a rate is to be learned from a negative number."""
    low = float(targets.min())
    return f"with loss = 'poisson' needs targets of at least 0, got {low:g}" if loss == "poisson" and low < 0 else ""


def predicted(outputs: Array, y: Array) -> Info | None:
    """Truth and prediction of at most 500 examples, evenly taken, with a warning if their mean is a better guess."""
    some = np.linspace(0, len(y) - 1, min(len(y), 500)).round().astype(int)
    finite = np.isfinite(outputs[some, 0]).all()
    numbers = {"true": tuple(y[some].tolist()), "predicted": tuple(outputs[some, 0].tolist())}
    return PredictedNumbers(**numbers, warnings=_worse_than_the_mean(outputs, y)) if finite else None


def _worse_than_the_mean(outputs: Array, y: Array) -> tuple[str, ...]:
    error, variance = float(np.mean((y - outputs[:, 0]) ** 2)), float(np.var(y))
    if variance == 0 or not error > variance:  # nor where one of all the outputs is no number
        return ()
    return (
        "the global model is further from the targets of the test examples than their own mean (R² "
        f"{1 - error / variance:.2f}): train for more rounds, or at another rate",
    )


def mean(y: Tensor, width: int) -> Tensor:
    """The targets' mean, (1,), which is what a model has to beat."""
    return y.double().mean().reshape(1)


def scale(y: Tensor, loss: str) -> tuple[float, float]:
    """Mean and standard deviation of targets, or of a rate 0 and the mean; a constant target has scale 1."""
    middle, spread = float(y.double().mean()), float(y.double().std(correction=0))
    shift, by = (0.0, middle) if loss == "poisson" else (middle, spread)
    return shift, by if by > 1e-9 * abs(middle) else 1.0  # sums of one number's copies are rounded


REGRESSION = TaskKind(
    name="regression",
    targets=NUMBER,
    width=lambda num_outputs: 1,
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
    predict=lambda outputs, names: outputs[:, 0].tolist(),
    links={"poisson": lambda outputs: outputs.exp()},
    scale=scale,
    check=not_negative,
    report=predicted,
    constant=mean,
)
