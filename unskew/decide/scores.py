"""Scores of the sites' models, and what a method gains over another.

A gain is a site's result minus its result alone, above zero where it is better off, and its interval is over seeds and
over the site's test rows together (`unskew.report.worth`).  Of a measure that is not a mean over rows, as AUROC, the
mean gain has the variance over sites in place of that over rows.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import PlainSerializer, PlainValidator

from unskew.data.patients import by_patient
from unskew.protocol import ClientId
from unskew.report.stats import CONFIDENCE
from unskew.report.worth import Floats, Gain, chance_in_mean, mean_gain, over_rows, pooled_variance
from unskew.report.worth import gain as gain_of
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
        values: The headline of each site; sites without rows, or for which it is not defined, are left out.
        each: Its value for each row, where it is a mean over rows.
        by_row: `Measure.by_row` of each site, where it has that.
        patients: Patient of each of these rows; empty where patients are not known.
        asked: Mean over sites of each metric that `evaluate` asks for, by name; of sites for which it is defined.
        tested: The number of each site's rows.
        by_fold: The headline of each site in each fold, of scores of several folds together.
    """

    values: Mapping[ClientId, float]
    each: Mapping[ClientId, Values]
    by_row: Mapping[ClientId, Values] = field(default_factory=dict)
    patients: Mapping[ClientId, Numbers] = field(default_factory=dict)
    asked: Mapping[str, float] = field(default_factory=dict)
    tested: Mapping[ClientId, int] = field(default_factory=dict)
    by_fold: Mapping[ClientId, Values] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """The mean over sites."""
        return statistics.fmean(self.values.values()) if self.values else math.nan


def together(folds: Sequence[Scores]) -> Scores:
    """The scores of several folds as one: rows side by side, or the mean where a measure is no mean over rows."""
    clients = sorted({c for scores in folds for c in scores.values})
    each = {
        c: np.concatenate([s.each[c] for s in folds if c in s.each]) for c in clients if any(c in s.each for s in folds)
    }
    by_fold = {c: np.array([s.values[c] for s in folds if c in s.values]) for c in clients}
    values = {c: float((each[c] if c in each else by_fold[c]).mean()) for c in clients}
    patients = {
        c: np.concatenate([s.patients[c] for s in folds if c in s.patients])
        for c in each
        if (any(c in s.patients for s in folds))
    }
    return Scores(values, each, patients=patients, by_fold=by_fold)


def difference(a: Scores, b: Scores, measure: Measure) -> tuple[float, float]:
    """Mean over sites of a minus b, above zero where a is better, and its standard error.

    The error is over each site's rows, or patients, where the measure is a mean over rows, otherwise over its folds.
    Its variance is pooled over sites; where each has one fold only, it is over sites.
    """
    sign = 1.0 if measure.higher else -1.0
    both = [c for c in a.values if c in b.values]
    mean = statistics.fmean(sign * (a.values[c] - b.values[c]) for c in both) if both else 0.0
    parts = [by_patient(a.each[c] - b.each[c], a.patients.get(c)) for c in both if c in a.each and c in b.each]
    if len(parts) < len(both):
        parts = [a.by_fold.get(c, np.array([a.values[c]])) - b.by_fold.get(c, np.array([b.values[c]])) for c in both]
    if sum(map(len, parts)) < 2:
        return mean, math.inf
    return mean, math.sqrt(pooled_variance(parts) * sum(1 / len(of) for of in parts)) / len(parts)


def gain(
    these: Sequence[Scores], those: Sequence[Scores], measure: Measure, confidence: float = CONFIDENCE
) -> tuple[Gain, dict[ClientId, Gain]]:
    """The gain of the mean over sites, and of each site, from the scores of each seed; of one seed without an interval.

    Where all sites have differences by row, the mean is over these very sites: what is drawn is each site's rows and
    the seeds.  Otherwise sites stand for others like them, and their gains, averaged over seeds, are what is drawn:
    their variance has each site's rows in it.  A seed moves all sites together, which neither variance shows; that is
    in the variance over seeds of the mean over sites, and is added in both cases.
    """
    sign = 1.0 if measure.higher else -1.0
    both = sorted(set.intersection(*(set(s.values) for s in (*these, *those))))
    means: dict[ClientId, list[float]] = {
        c: [sign * (a.values[c] - b.values[c]) for a, b in zip(these, those, strict=True)] for c in both
    }
    patients = these[0].patients if these else {}
    rows = _differences([s.each for s in these], [s.each for s in those], sign, patients)
    by_row = rows or _differences([s.by_row for s in these], [s.by_row for s in those], sign, patients)
    ranked, share = measure.by_row is not None and measure.link is None, measure.percent and measure.by_row is None
    rows = rows if ranked else by_row
    if len(these) < 2:
        by_row, rows = {}, {}
    of_sites = {
        c: gain_of(
            means[c],
            over_rows(by_row[c], share, ranked and c not in patients) if c in by_row else None,
            measure.percent,
            confidence,
        )
        for c in both
    }
    if not both:
        return gain_of((), None, measure.percent), of_sites
    tested = {c: these[0].tested.get(c, 0) for c in both}
    known, middles = [rows.get(c) for c in both], [statistics.fmean(means[c]) for c in both]
    _, chances = chance_in_mean(known, [None] * len(both), middles, list(tested.values()), measure)
    if len(these) < 2:
        chances = [None, None]
    of_seeds = [dict(zip(both, of_seed, strict=True)) for of_seed in zip(*means.values(), strict=True)]
    return mean_gain(of_seeds, [tested] * len(these), chances, measure.percent, confidence), of_sites


def _differences(
    these: Sequence[Mapping[ClientId, Floats]],
    those: Sequence[Mapping[ClientId, Floats]],
    sign: float,
    patients: Mapping[ClientId, npt.NDArray[np.int64]],
) -> dict[ClientId, Floats]:
    """Differences by row, or by patient, of the sites that have them under every seed, the mean over seeds."""
    return {
        c: by_patient(
            np.mean([sign * (a[c] - b[c]) for a, b in zip(these, those, strict=True)], axis=0), patients.get(c)
        )
        for c in set.intersection(*(set(s) for s in (*these, *those)))
    }
