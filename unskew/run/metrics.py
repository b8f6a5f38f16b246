"""Turns per-client numbers into rows, and rows into the table of results.

Accuracies are fractions.  Every number carries its weight (the examples it was measured on), and numbers are combined
here and nowhere else.  A spread over clients is the population's (ddof 0: these are all the clients there are); a
spread over seeds is the sample's (ddof 1).
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from unskew.ledger import DIRECTIONS
from unskew.record.logs import MetricRow
from unskew.tasks.measure import Measure

REDUCTIONS = ("mean", "weighted", "std", "worst_decile")


@dataclass(frozen=True)
class Metric:
    """One number of one round.

    Attributes:
        name: global.accuracy, personal.accuracy.mean, bytes.down, ...
        value: Fractions for accuracies, bytes for bytes.*, seconds for seconds.
        weight: Examples (or 1) behind the number.
        client: Number of the client, for per-client numbers.
    """

    name: str
    value: float
    weight: float = 1.0
    client: int | None = None


def reduce_clients(name: str, values: npt.ArrayLike, examples: npt.ArrayLike, higher: bool) -> list[Metric]:
    """Mean, sample-weighted mean, standard deviation over clients, and mean of the worst tenth.

    Args:
        name: personal.accuracy, personal.loss, ...
        values: The value of each client.
        examples: Examples it was measured on.
        higher: True if higher is better.
    """
    v, w = np.asarray(values), np.asarray(examples)
    if not len(v):
        return []
    worst_first = np.sort(v) if higher else -np.sort(-v)
    tenth = worst_first[: max(1, math.ceil(len(v) / 10))]
    reduced = (v.mean(), float((v * w).sum() / w.sum()), v.std(), tenth.mean())
    return [Metric(f"{name}.{r}", float(x), float(w.sum())) for r, x in zip(REDUCTIONS, reduced, strict=True)]


def sample_std(values: Sequence[float]) -> float | None:
    """Sample standard deviation (ddof 1); None for fewer than two values, or one that is not finite."""
    return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None


def result_row(method: str, setting: str, metric: str, values: Sequence[float]) -> dict[str, Any]:
    """Return a row of a table of results: the mean of the seeds' values, at least one, and their standard deviation."""
    return {
        "method": method,
        "setting": setting,
        "metric": metric,
        "mean": float(np.mean(values)),
        "std": sample_std(values),
        "seeds": list(values),
    }


def first_reached(curve: Mapping[int, float], level: float, measure: Measure) -> int | None:
    """Return the first round in which a curve, {round: value}, is at a level or better; None if it never is."""
    return min((t for t, value in curve.items() if measure.reaches(value, level)), default=None)


def summarise(
    rows: Iterable[MetricRow],
    methods: Sequence[str],
    seeds: Sequence[int],
    setting: str,
    mean_last: int,
    baseline: str | None,
    headline: Measure,
) -> list[dict[str, Any]]:
    """The table of results: one row per method and metric, with the value of each seed.

    The result is the last round's; `.best` is the best evaluation on the test set and therefore optimistic;
    `.mean_last_k` averages the last k evaluations; `.minus_X` is the paired difference to method X, seed by seed.

    Args:
        rows: Rows of metrics.jsonl.
        methods, seeds: In the run's order; a seed is left out of a method's row if it has no such number.
        setting: The run's setting, as its table names it.
        mean_last: k.
        baseline: Label of the method the others are compared with, if the run has it.
        headline: The task's headline metric.
    """
    series: dict[tuple[str, int, str], list[float]] = {}
    for row in rows:
        if "client" not in row:
            series.setdefault((row["method"], row["seed"], row["name"]), []).append(row["value"])
    names = list(dict.fromkeys(name for _, _, name in series))
    out: list[dict[str, Any]] = []

    def add(method: str, metric: str, per_seed: Mapping[int, float]) -> None:
        if per_seed:
            out.append(result_row(method, setting, metric, list(per_seed.values())))

    for m in methods:
        for name in names:
            by_seed = {s: series[m, s, name] for s in seeds if (m, s, name) in series}
            if name.startswith("bytes."):
                add(m, name, {s: float(sum(v)) for s, v in by_seed.items()})
            elif name == "seconds":
                add(m, "seconds", {s: float(sum(v)) for s, v in by_seed.items()})
            else:
                add(m, name, {s: v[-1] for s, v in by_seed.items()})
                if name in (headline.shared, headline.own):
                    add(m, f"{name}.best", {s: headline.best(v) for s, v in by_seed.items()})
                    add(
                        m,
                        f"{name}.mean_last_{mean_last}",
                        {s: float(np.mean(v[-mean_last:])) for s, v in by_seed.items()},
                    )
                    if baseline is not None and m != baseline:
                        base = {s: series[baseline, s, name] for s in by_seed if (baseline, s, name) in series}
                        add(m, f"{name}.minus_{baseline}", {s: by_seed[s][-1] - base[s][-1] for s in base})
        total = {s: sum(sum(series.get((m, s, f"bytes.{d}"), [])) for d in DIRECTIONS) for s in seeds}
        add(m, "bytes.total", {s: float(v) for s, v in total.items() if any((m, s, n) in series for n in names)})
    return out
