"""Turns per-client numbers into rows, and rows into the table of results.

Accuracies are fractions.  Every number has a weight: the examples it was measured on.  A spread over clients is the
population's (ddof 0), a spread over seeds the sample's (ddof 1).
"""

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from unskew.record.frame import Numbers
from unskew.record.logs import CLOCK, VIRTUAL_CLOCK, DivergedRow
from unskew.tasks.measure import Measure

Curves = Mapping[tuple[str, int], Mapping[int, float]]
"""(method, seed) -> {round: value}."""
REDUCTIONS = ("mean", "weighted", "std", "worst_decile")
LAST_FIFTH = "mean_last_fifth"
"""Ending of the name of `mean_of_last`."""


@dataclass(frozen=True)
class Metric:
    """One number of one round.

    Attributes:
        name: global.accuracy, personal.accuracy.mean, bytes.down, ...
        value: Fraction for accuracies, bytes for bytes.*, s for seconds.
        weight: Examples (or 1) behind the number.
        client: Number of the client; None if of no single client.
        clients: For a number over clients that not all define: over how many it is, and how many there are.
    """

    name: str
    value: float
    weight: float = 1.0
    client: int | None = None
    clients: tuple[int, int] | None = None


def reduce_clients(
    name: str, values: npt.ArrayLike, examples: npt.ArrayLike, higher: bool, of: int = 0
) -> list[Metric]:
    """Mean, sample-weighted mean, standard deviation over clients, and mean of the worst tenth.

    Args:
        name: personal.accuracy, personal.loss, ...
        values: The value of each client.
        examples: Examples it was measured on.
        higher: True if higher is better.
        of: Number of evaluated clients, where the measure is not defined for all; by default as many as `values`.
    """
    v, w = np.asarray(values), np.asarray(examples)
    if not len(v):
        return []
    worst_first = np.sort(v) if higher else -np.sort(-v)
    tenth = worst_first[: max(1, math.ceil(len(v) / 10))]
    with np.errstate(all="ignore"):  # of losses that are infinite, which their reader refuses
        reduced = (v.mean(), float((v * w).sum() / w.sum()), v.std(), tenth.mean())
    few = (len(v), of) if len(v) < of else None
    rows = zip(REDUCTIONS, reduced, strict=True)
    return [Metric(f"{name}.{r}", float(x), float(w.sum()), clients=few) for r, x in rows]


def sample_std(values: Sequence[float]) -> float | None:
    """Sample standard deviation (ddof 1); None for fewer than two values, or one that is not finite."""
    return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None


def result_row(method: str, setting: str, metric: str, values: Sequence[float]) -> dict[str, Any]:
    """A row of a table of results: mean of the seeds' values (at least one), and their standard deviation."""
    return {
        "method": method,
        "setting": setting,
        "metric": metric,
        "mean": float(np.mean(values)),
        "std": sample_std(values),
        "seeds": list(values),
    }


def last_value(by_round: Mapping[int, float], rounds: Collection[int] = ()) -> float | None:
    """The value of the last evaluated round; None if it is not defined there.

    Args:
        by_round: The values, {round: value}.
        rounds: The evaluated rounds, where the metric is not defined in all of them.
    """
    return by_round.get(max(rounds or by_round, default=0))


def mean_of_last(by_round: Mapping[int, float], rounds: Collection[int] = ()) -> float | None:
    """The mean of the last fifth of evaluations (rounded up).

    Rounds in which the metric is not defined are left out; None if none is left.  Round 0 counts only if it is the only
    one.  The arguments are those of `last_value`.

    >>> mean_of_last({0: 0.1, 1: 0.5, 2: 0.6, 3: 0.7, 4: 0.8, 5: 0.7, 6: 0.9})
    0.8
    """
    values = [by_round[t] for t in last_rounds(rounds or by_round) if t in by_round]
    return statistics.fmean(values) if values else None


def last_rounds(rounds: Iterable[int]) -> list[int]:
    """The evaluated rounds that `mean_of_last` averages."""
    evaluated = sorted(rounds)
    evaluated = [t for t in evaluated if t > 0] or evaluated
    return evaluated[-math.ceil(len(evaluated) / 5) :]


def minus(ours: float | None, theirs: float | None) -> float | None:
    """The difference of two values; None if either is not defined."""
    return None if ours is None or theirs is None else ours - theirs


def peaks(curves: Curves, method: str, measure: Measure) -> dict[int, float]:
    """The best value of a method's curve, by seed; empty curves are left out."""
    return {seed: measure.best(curve.values()) for (m, seed), curve in curves.items() if m == method and curve}


def rounds_to(target: Mapping[int, float], curves: Curves, measure: Measure) -> dict[tuple[str, int], int | None]:
    """The first round in which each curve is at its seed's target or better; None if it never is."""
    return {
        (m, seed): min((t for t, value in curve.items() if measure.reaches(value, target[seed])), default=None)
        for (m, seed), curve in curves.items()
        if curve and seed in target  # others have nothing to reach, or no value
    }


def summarise(
    frame: Numbers,
    methods: Sequence[str],
    seeds: Sequence[int],
    setting: str,
    baseline: str | None,
    headline: Measure,
    diverged: Iterable[DivergedRow] = (),
) -> list[dict[str, Any]]:
    """The table of results: one row per method and metric, with the value of each seed.

    The result is the last round's.  `.best` is the best evaluation on the test set, and therefore optimistic.
    `.mean_last_fifth` averages the last fifth of evaluations.  `.minus_X` is the paired difference to method X.
    `undefined` counts seeds without a result: the metric is not defined in the last round, or the method diverged.
    `clients` says over how many clients a mean is, and of how many, where it is not over all.

    Args:
        frame: Every number.
        methods, seeds: In the run's order; a seed without such a number is left out of the row.
        setting: The run's setting, as its table names it.
        baseline: Label of the method the others are compared with, if the run has it.
        headline: The task's headline metric.
        diverged: Methods that diverged, each under its seed; their numbers are left out.
    """
    without = {(row["method"], row["seed"]) for row in diverged}
    frame = frame.where(lambda n: n.client is None and (n.method, n.seed) not in without)
    out: list[dict[str, Any]] = []

    def add(method: str, metric: str, per_seed: Mapping[int, float | None]) -> None:
        values = [value for value in per_seed.values() if value is not None]
        if values:
            lacks = len(per_seed) - len(values) + sum(of == method for of, _ in without)
            over = min(map(list, frame.few(metric, method)), default=None)
            notes = {"undefined": lacks or None, "clients": over}
            out.append(result_row(method, setting, metric, values) | {k: v for k, v in notes.items() if v is not None})

    def ends(method: str, name: str, pick: Callable[..., float | None]) -> dict[int, float | None]:
        rounds = {s: frame.evaluated(method, s, name) for s in seeds}
        return {s: pick(frame.curve(method, s, name), of) for s, of in rounds.items() if of}

    for m in methods:
        total = dict.fromkeys((s for s in seeds if frame.names(m, s)), 0.0)
        for name in frame.names():
            curves = {s: frame.curve(m, s, name) for s in seeds if (m, s, name) in frame.keys}
            if name.startswith("bytes.") or name in (CLOCK, VIRTUAL_CLOCK):
                sums = {s: float(sum(curve.values())) for s, curve in curves.items()}
                add(m, name, sums)
                if name.startswith("bytes."):
                    total |= {s: total[s] + n for s, n in sums.items()}
                continue
            last = ends(m, name, last_value)
            add(m, name, last)
            if name in (headline.shared, headline.own):
                add(m, f"{name}.best", {s: headline.best(curve.values()) for s, curve in curves.items()})
                steady = ends(m, name, mean_of_last)
                add(m, f"{name}.{LAST_FIFTH}", steady)
                if baseline is not None and m != baseline:
                    base, steady_base = ends(baseline, name, last_value), ends(baseline, name, mean_of_last)
                    add(m, f"{name}.minus_{baseline}", {s: minus(v, base.get(s)) for s, v in last.items()})
                    apart = {s: minus(v, steady_base.get(s)) for s, v in steady.items()}
                    add(m, f"{name}.{LAST_FIFTH}.minus_{baseline}", apart)
        add(m, "bytes.total", total)
    return out
