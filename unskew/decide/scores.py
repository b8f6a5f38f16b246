"""Scores of the sites' models, and gains of a method over another.

A gain is a site's result minus its result alone, positive if better.  Its interval is over seeds and over the site's
test rows (`unskew.report.worth`).  For measures that are no mean over rows, such as AUROC, the variance over sites
replaces that over rows.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import PlainSerializer, PlainValidator

from unskew.data.patients import by_patient
from unskew.protocol import ClientId
from unskew.report import worth
from unskew.report.stats import CONFIDENCE, Difference
from unskew.report.worth import Client, Floats, pooled_variance
from unskew.tasks.measure import Measure


def _listed(array: npt.NDArray[Any]) -> list[Any]:
    return array.tolist()  # type: ignore[no-any-return]


Values = Annotated[Floats, PlainValidator(lambda of: np.asarray(of, np.float64)), PlainSerializer(_listed)]
Numbers = Annotated[
    npt.NDArray[np.int64], PlainValidator(lambda of: np.asarray(of, np.int64)), PlainSerializer(_listed)
]
"""Arrays that JSON holds as lists."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of the sites' models on rows of their own.

    Attributes:
        values: The headline of each site; sites for which it is not defined are left out.
        rows: For each site the sampling unit (patient or row) and value of each row, if the headline is a mean over
            rows.
        people: True if patients are known.
        asked: Mean over sites of each metric that `evaluate` asks for, by name.
        tested: Number of each site's rows.
        by_fold: The headline of each site in each fold, for scores of several folds.
    """

    values: Mapping[ClientId, float]
    rows: Mapping[ClientId, tuple[Numbers, Values]] = field(default_factory=dict)
    people: bool = False
    asked: Mapping[str, float] = field(default_factory=dict)
    tested: Mapping[ClientId, int] = field(default_factory=dict)
    by_fold: Mapping[ClientId, Values] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """The mean over sites."""
        return statistics.fmean(self.values.values()) if self.values else math.nan


def together(folds: Sequence[Scores], measure: Measure) -> Scores:
    """The scores of several folds as one: rows side by side, or the mean of a measure that is no mean over rows."""
    clients = sorted({c for scores in folds for c in scores.values})
    by_fold = {c: np.array([s.values[c] for s in folds if c in s.values]) for c in clients}
    rows = {}
    for c in clients if measure.of_rows else ():
        units, values = zip(*(s.rows[c] for s in folds if c in s.rows), strict=True)
        rows[c] = np.concatenate(units), np.concatenate(values)
    means = {c: float((rows[c][1] if c in rows else by_fold[c]).mean()) for c in clients}
    return Scores(means, rows, by_fold=by_fold)


def difference(a: Scores, b: Scores, measure: Measure) -> tuple[float, float]:
    """Mean over sites of a minus b (positive if a is better), and its standard error.

    The error is over each site's rows (or patients), or else over its folds, with the variance pooled over sites; with
    one fold only, it is over sites.
    """
    sign = 1.0 if measure.higher else -1.0
    both = [c for c in a.values if c in b.values]
    mean = statistics.fmean(sign * (a.values[c] - b.values[c]) for c in both) if both else 0.0
    if measure.of_rows:
        parts = [by_patient(a.rows[c][1] - b.rows[c][1], a.rows[c][0]) for c in both]
    else:
        parts = [a.by_fold.get(c, np.array([a.values[c]])) - b.by_fold.get(c, np.array([b.values[c]])) for c in both]
    if sum(map(len, parts)) < 2:
        return mean, math.inf
    return mean, math.sqrt(pooled_variance(parts) * sum(1 / len(of) for of in parts)) / len(parts)


def gain(
    these: Sequence[Scores], those: Sequence[Scores], measure: Measure, confidence: float = CONFIDENCE
) -> tuple[Difference, dict[ClientId, Difference]]:
    """The gain of the mean over sites, and of each site; without an interval for one seed.

    If all sites have values by row, the mean is over these sites, and rows and seeds vary.  Otherwise sites vary, by
    their gains averaged over seeds.  In both cases the variance over seeds of the mean is added, since a seed moves all
    sites together.
    """
    both = sorted(set.intersection(*(set(s.values) for s in (*these, *those))))
    if not both:
        return worth.gain((), None, measure.percent), {}
    clients = []
    for c in both:
        patients = len(np.unique(these[0].rows[c][0])) if these[0].people and c in these[0].rows else 0
        n = these[0].tested.get(c, 0)
        clients.append((Client(number=c, label=c, seed=None, examples=n, patients=patients), range(len(these))))
    pairs = [{c: (a.values[c], b.values[c]) for c in both} for a, b in zip(these, those, strict=True)]
    rows = [(a.rows, b.rows) for a, b in zip(these, those, strict=True)]
    tested = [{c: these[0].tested.get(c, 0) for c in both}] * len(these)
    ranked = measure.by_row is not None and measure.link is None
    sites, _, whole = worth.gained(clients, pairs, rows, tested, measure, ranked)
    gains = whole(confidence), {c.number: c.gain for c in sites}
    return gains if len(these) > 1 else _without_intervals(*gains)


def _without_intervals(
    whole: Difference, by_site: Mapping[ClientId, Difference]
) -> tuple[Difference, dict[ClientId, Difference]]:
    def bare(of: Difference) -> Difference:
        per_row = None if of.per_row is None else bare(of.per_row)
        return replace(of, low=None, high=None, over="", per_row=per_row, verdict="open")

    return bare(whole), {c: bare(of) for c, of in by_site.items()}
