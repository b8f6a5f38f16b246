"""Explains a trained model of a table: which columns matter, and how well it works for each group and site.

Reported after the last round of a run.

Effects     of a linear model: eta = x . theta, the log odds, log rate, log hazard, or the expected target itself.
            l      negative log-likelihood of all training rows at theta; squared errors over twice their variance
            I      information, the Hessian of l at theta;  C  a row of contrasts for each effect
            effect C theta, with standard error sqrt(diag(C I^+ C')), if the rows determine it                      (1)
            step   I^+ grad l, Newton's next step; training has converged where it is small beside the errors       (2)
            If patients have several rows, I^+ is the jackknife's covariance: the sum of the squares of what leaving
            each patient out changes at theta, (I - I_p)^-1 grad l_p, times 1 - 1 / patients; hazards have none     (3)
Importance  of a column, for other models: the headline's loss when the column is shuffled among the test rows
            (L. Breiman, "Random Forests", Machine Learning 45, 2001; A. Fisher et al., JMLR 20, 2019).
Sites       net benefit of acting from a probability t on (A. J. Vickers, E. B. Elkin, Med. Decision Making 26, 2006):
            true positives / n - false positives / n * t / (1 - t)                                                 (4)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import grad

from unskew.data.inputs import Column
from unskew.info import Effects, Importance, Info, SiteCurve, SiteCurves, Subgroup, Subgroups
from unskew.keys import Key
from unskew.local.executor import Columns, joined
from unskew.local.trainer import LocalTrainer
from unskew.models import loss_of
from unskew.protocol import ClientId, hook
from unskew.run import setup as run_setup
from unskew.run.cell import Cell, Evaluation
from unskew.tasks.kind import Loss
from unskew.tasks.odds import by_rank, cross_entropy
from unskew.tasks.regression import poisson, squared
from unskew.tasks.survival import cox
from unskew.tree import Params

Array = npt.NDArray[np.float64]
Ratio = Literal["odds", "rate", "hazard", ""]

LIKELIHOODS: dict[tuple[str, str], tuple[Loss, Ratio]] = {
    ("classification", "cross_entropy"): (cross_entropy, "odds"),  # of two classes, by the difference of their logits
    ("binary", "cross_entropy"): (cross_entropy, "odds"),
    ("regression", "poisson"): (poisson, "rate"),
    ("regression", "squared"): (squared, ""),
    ("survival", "cox"): (cox, "hazard"),
}
"""Losses that are negative log-likelihoods, by kind of task and name, and what a coefficient's exponential is."""

LINEAR = ("logistic", "one_logit")
"""Networks that are one linear layer; one of somebody's own may bend its inputs first."""

MOST_COLUMNS, MOST_CELLS = 100, 20_000_000
SHUFFLES = 5
FEWEST_ROWS, MOST_SITES = 20, 30
THRESHOLDS = tuple(k / 20 for k in range(1, 20))
MOST_VALUES = 8
"""Values of a number that are subgroups of their own; of more there are thirds."""


def explained(cell: Cell, model: Params | None, seen: Evaluation) -> Iterator[Info]:
    """Report on the global model and the clients' own models, if the data are a table.

    Empty for a method with differential privacy: its noise does not cover these results.
    """
    dataset, trainer = cell.fed.dataset, cell.sim.model.server_trainer
    inputs = dataset.inputs
    if not inputs.columns or cell.sim.clients.remote or hook(cell.method.method, "has_dp_noise"):
        return
    if model is not None and len(inputs.columns) <= MOST_COLUMNS:
        if (report := effects_of(cell, model)) is not None:
            yield report
        elif isinstance(trainer, LocalTrainer):
            yield importance(trainer, model, inputs.columns, dataset.x_test[:], dataset.y_test, Key(cell.seed))
    if seen.own and seen.all_own:
        if cell.experiment.by:
            yield Subgroups(groups=tuple(_subgroups(cell, seen.on_own_rows)))
        if curves := _site_curves(cell, seen):
            yield SiteCurves(thresholds=THRESHOLDS, sites=curves)


# ---------------------------------------------------------------- effects
def effects_of(cell: Cell, model: Params) -> Effects | None:
    """The effects of a cell's global model; None if it is not linear, or its loss is no likelihood."""
    task, config, dataset = cell.setup.task, cell.experiment.task, cell.fed.dataset
    loss = loss_of(config.model, config.loss, task.kind) or next(iter(task.kind.losses))
    plain = cell.setup.inputs.loss is None and config.class_weights is None  # weighted, it is no likelihood
    known = LIKELIHOODS.get((task.kind.name, loss)) if plain else None
    rows, width = cell.fed.clients.train.values, dataset.input_shape[0]
    theta = linear_predictor(model) if known is not None and config.model in LINEAR else None
    texts = any(column.kind == "text" for column in dataset.inputs.columns)  # of whose words no one stands alone
    several = dataset.y_train.dim() > 1 and loss != "cox"  # numbers, each with effects of its own
    if known is None or theta is None or len(rows) * width > MOST_CELLS or several or texts:
        return None
    bias = torch.full((len(rows), 1), float(len(model) > 1), dtype=torch.float64)
    x = torch.cat([dataset.x_train[rows].double(), bias], 1)
    scale: Any = run_setup.target_scale(config, cell.setup, cell.fed) or (0.0, 1.0)
    shift, by = scale
    if loss == "poisson":
        theta[-1] += np.log(by)
    elif loss == "squared":
        theta = by * theta
        theta[-1] += shift
    names, matrix = contrasts(dataset.inputs.columns)
    who = None if dataset.patients is None else np.unique(dataset.patients[rows].numpy(), return_inverse=True)[1]
    patients = torch.from_numpy(who) if who is not None and len(who) > who.max() + 1 else None
    report = effects(theta, x, dataset.y_train[rows], names, matrix, *known, patients) if names else None
    return replace(report, of=dataset.outputs[1]) if report and report.ratio == "odds" else report


def linear_predictor(model: Params) -> Tensor | None:
    """Weights and bias, (inputs + 1,), of a model of one linear layer; None for any other, or more than two classes."""
    weight = next(t for t in model.values() if t.dim() == 2)
    bias = next((t for t in model.values() if t.dim() == 1), None)
    if len(weight) > 2:
        return None
    whole = torch.cat([weight, weight.new_zeros(len(weight), 1) if bias is None else bias[:, None]], 1).double().cpu()
    return whole[0].clone() if len(whole) == 1 else whole[1] - whole[0]


def contrasts(columns: Sequence[Column]) -> tuple[list[str], Tensor]:
    """Names of the effects of a table's columns, and the combination of inputs of each, (effects, inputs + 1).

    The effect of a number is that of one unit, or of one standard deviation where each client scales by its own.  A
    category has an effect for each word after the first.
    """
    names: list[str] = []
    rows: list[dict[int, float]] = []
    at = 0
    for column in columns:
        if column.kind == "number":
            own = len(column.sd) > 1
            sd = 1.0 if own or not column.sd else column.sd[0]
            if sd > 0:
                names.append(f"{column.name}, per standard deviation" if own else column.name)
                rows.append({at: 1 / sd})
        else:
            known = [k for k, word in enumerate(column.values) if word not in column.unlearnt]
            for k in known[1:]:
                names.append(f"{column.name}: {column.values[k]} vs {column.values[known[0]]}")
                rows.append({at + k: 1.0, at + known[0]: -1.0})
        at += len(column.features)
        if column.gaps and not column.gaps_unlearnt:
            names.append(f"{column.name} missing")
            rows.append({at - 1: 1.0})
    matrix = torch.zeros(len(rows), at + 1, dtype=torch.float64)
    for row, entries in enumerate(rows):
        for place, value in entries.items():
            matrix[row, place] = value
    return names, matrix


def effects(
    theta: Tensor,
    x: Tensor,
    y: Tensor,
    names: Sequence[str],
    matrix: Tensor,
    loss: Loss,
    ratio: Ratio,
    patients: Tensor | None = None,
) -> Effects | None:
    """Effects with standard errors, by (1) and (2); None if a number is infinite, as in a fit without errors.

    Args:
        theta: Coefficients, (d,) float64.
        x, y: The training rows (N, d) float64, and their targets.
        names, matrix: Effects and their contrasts, (effects, d).
        loss: Negative log-likelihood of each row from its linear predictor, (N, 1), or squared errors.
        ratio: As in `Effects`.
        patients: Number of each row's patient from 0, (N,), where some have several rows (3).
    """
    slope: Callable[[Tensor], Tensor] = grad(lambda t: loss(x @ t[:, None], y).sum())
    units = torch.eye(len(theta), dtype=theta.dtype)
    information = torch.stack([grad(lambda t, unit=unit: slope(t) @ unit)(theta) for unit in units])
    if not information.isfinite().all():
        return None
    values, vectors = torch.linalg.eigh((information + information.T) / 2)
    seen = values > 1e-10 * values.max()  # a category's columns add up to the bias's: what the rows say nothing of
    # Squared errors are in units of half a variance, which the rows tell but for the directions that were fitted.
    variance = 1.0 if ratio else 2 * float(loss(x @ theta[:, None], y).sum()) / max(len(x) - int(seen.sum()), 1)
    if not variance > 0.0:
        return None
    unknown = (matrix @ vectors[:, ~seen]).abs().sum(1) > 1e-6
    inverse = vectors[:, seen] / values[seen] @ vectors[:, seen].T
    if patients is None:
        covariance = variance * inverse
    else:
        covariance, alone = _over_patients(theta, x, y, loss, vectors[:, seen] / values[seen].sqrt(), patients)
        unknown |= (matrix @ alone).abs().sum(1) > 1e-6
    errors = (matrix @ covariance * matrix).sum(1).clamp(min=0).sqrt()
    unknown |= (errors == 0) | (patients is not None and ratio == "hazard")
    step = (matrix @ inverse @ slope(theta)).abs() / errors
    return Effects(
        names=tuple(names),
        estimates=tuple((matrix @ theta).tolist()),
        errors=tuple(None if none else error for none, error in zip(unknown.tolist(), errors.tolist(), strict=True)),
        ratio=ratio,
        rows=len(x),
        step=max(step[~unknown].tolist(), default=0.0),
    )


def _over_patients(
    theta: Tensor, x: Tensor, y: Tensor, loss: Loss, root: Tensor, patients: Tensor
) -> tuple[Tensor, Tensor]:
    """The covariance (3), and directions of which all but one of the patients say nothing, (d, any).

    `root` has orthogonal columns, whose outer products add up to I^+.
    """
    slope: Callable[[Tensor], Tensor] = grad(lambda eta: loss(eta, y).sum())
    eta, z = x @ theta[:, None], x @ root
    r, curvature = slope(eta), grad(lambda eta: slope(eta).sum())(eta)
    moved, alone = [], [z.new_zeros(z.shape[1], 0)]
    for rows in torch.split(patients.argsort(), patients.bincount().tolist()):
        others, vectors = torch.linalg.eigh(torch.eye(z.shape[1]).to(z) - (curvature[rows] * z[rows]).T @ z[rows])
        known = others > 1e-6
        moved.append(vectors[:, known] / others[known] @ vectors[:, known].T @ (z[rows].T @ r[rows]))
        alone.append(vectors[:, ~known])
    each = root @ torch.cat(moved, 1)
    return (1 - 1 / len(moved)) * each @ each.T, root @ torch.cat(alone, 1)


# ---------------------------------------------------------------- importance
def importance(
    trainer: LocalTrainer, model: Params, columns: Sequence[Column], x: Tensor, y: Tensor, key: Key
) -> Importance:
    """Loss of the headline when one column after the other is shuffled among the test rows.

    Args:
        trainer: Evaluates the model.
        model: Its tensors.
        columns: Columns of the table, in the order of the inputs.
        x, y: Test rows (N, inputs) and targets.
        key: Root of the shuffles; the same for all methods of a seed.
    """
    headline, device = trainer.task.headline, trainer.device
    x, y = x.to(device), y.to(device)
    whole = trainer.task.values(trainer.evaluate_on(model, x, y))[0]
    lost: list[tuple[float, ...]] = []
    at = 0
    for column in columns:
        place = slice(at, at := at + len(column.features))
        costs: list[float] = []
        for k in range(SHUFFLES):
            order = torch.randperm(len(x), generator=(key / "importance" / column.name / k).generator()).to(device)
            mixed = x.clone()
            mixed[:, place] = x[order, place]
            change = trainer.task.values(trainer.evaluate_on(model, mixed, y))[0] - whole
            costs.append(-change if headline.higher else change)
        lost.append(tuple(costs))
    kept = [k for k, costs in enumerate(lost) if np.isfinite(costs).all()]
    return Importance(names=tuple(columns[k].name for k in kept), lost=tuple(lost[k] for k in kept))


# ---------------------------------------------------------------- subgroups and sites
def _subgroups(cell: Cell, columns: Mapping[ClientId, Columns]) -> Iterator[Subgroup]:
    dataset, task = cell.fed.dataset, cell.setup.task
    rows = torch.cat([cell.fed.clients.test[c] for c in columns]).numpy()
    whole = joined(list(columns.values()))
    for by in cell.experiment.by:
        for value, chosen in values_of(dataset.column(by), rows):
            places = torch.from_numpy(np.flatnonzero(chosen))
            result = task.values([part[places.to(part.device)] for part in whole])[0] if len(places) else float("nan")
            yield Subgroup(by, value, len(places), result if np.isfinite(result) else None)


def values_of(column: npt.NDArray[Any], rows: npt.NDArray[np.int64]) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Values of a column with the rows that have each, (rows,) bool; a number with many values is cut in thirds."""
    values = column[rows]
    if column.dtype.kind != "f":
        missing = np.array([v is None for v in values], bool)
        for word in sorted({v for v in column if v is not None}):
            yield str(word), values == word
    else:
        missing = np.isnan(values)
        several = np.unique(column[~np.isnan(column)])
        if len(several) <= MOST_VALUES:
            for number in several:
                yield f"{number:g}", values == number
        else:
            low, high = np.nanquantile(column, [1 / 3, 2 / 3])
            yield f"below {low:.3g}", values < low
            yield f"{low:.3g} to {high:.3g}", (values >= low) & (values <= high)
            yield f"above {high:.3g}", values > high
    if missing.any():
        yield "missing", missing


def _site_curves(cell: Cell, seen: Evaluation) -> tuple[SiteCurve, ...]:
    """Draw curves of the clients with most held-out rows, of two classes whose probabilities are known."""
    task, sizes = cell.setup.task, cell.fed.clients.test.sizes
    probabilities = task.kind.probabilities
    if probabilities is None or task.num_classes != 2:
        return ()
    sites = sorted((c for c in seen.own or () if sizes[c] >= FEWEST_ROWS), key=lambda c: (-sizes[c], c))[:MOST_SITES]
    last = {c: [part.double().cpu() for part in seen.on_own_rows[c][-2:]] for c in sites}
    return tuple(site_curve(c, probabilities(outputs)[:, 1].numpy(), y.numpy()) for c, (outputs, y) in last.items())


def site_curve(client: ClientId, p: Array, y: Array) -> SiteCurve:
    """Calibration in fifths and net benefit (4) of probabilities `p` of the second class, (N,), with `y` 0 or 1.

    >>> site_curve(0, np.array([0.9, 0.8, 0.1, 0.2]), np.array([1.0, 0.0, 0.0, 0.0])).benefit[9]  # t = 1/2
    0.0
    """
    from sklearn.metrics import roc_curve

    false, detected, _ = roc_curve(y, p) if 0 < y.sum() < len(y) else ((), (), ())
    fifths = by_rank(p, 5)
    benefit = [float((y[p >= t].sum() - (1 - y)[p >= t].sum() * t / (1 - t)) / len(y)) for t in THRESHOLDS]
    return SiteCurve(
        client,
        len(y),
        tuple(float(p[part].mean()) for part in fifths),
        tuple(float(y[part].mean()) for part in fifths),
        float(y.mean()),
        tuple(benefit),
        tuple(map(float, false)),
        tuple(map(float, detected)),
    )
