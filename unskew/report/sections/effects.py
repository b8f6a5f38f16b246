"""Columns that a model of a table goes by: effects of a linear model with intervals, or the importance of its columns.

Over m seeds effects are combined as imputations are (D. B. Rubin, "Multiple Imputation for Nonresponse in Surveys",
1987): the mean, with the mean of the squared errors plus (1 + 1 / m) times the variance between seeds.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from unskew.info import Effects, Importance
from unskew.record.reader import Record
from unskew.report import charts, tables
from unskew.report.section import Chart, Section, SectionKind, Table, TableRow, table

Z = statistics.NormalDist().inv_cdf(0.975)
UNFINISHED = 0.1
"""Standard errors that a coefficient may be from the maximum of its likelihood without a word."""
LARGEST = math.log(1e6)
"""Log of the largest ratio that is drawn: one beyond it says that rows are too few."""
MOST = 40
"""Columns that are drawn."""


class Effect(NamedTuple):
    """An effect over seeds: its mean and 95 % interval on the scale of ratios or differences."""

    value: float
    low: float | None
    high: float | None


def section(record: Record, methods: Sequence[str], marks: Mapping[str, str]) -> Section | None:
    """The section on what models go by; None if no method has reported it under a seed that counts."""
    linear = reported(record, methods)
    others = {m: last for m in methods if (last := _last(record, m, Importance))}
    if not linear and not others:
        return None
    lead = []
    if linear:
        lead.append("Of the linear models: coefficients with 95 % intervals, by the training rows of all clients")
        lead += [_unfinished(m, reports) for m, reports in linear.items()]
    if others:
        lead.append("Of the other models: what shuffling a column among the test rows costs")
    drawn = [forest(*next(iter(linear.items())))] if linear else []
    if others:
        drawn.append(_importances(record, others, marks))
    return Section(
        "What the models go by",
        " ".join(f"{text}." for text in lead if text),
        tuple(drawn),
        (_table(linear),) if linear else (),
    )


def reported(record: Record, methods: Sequence[str]) -> dict[str, list[Effects]]:
    """The effects of each linear method under each seed that counts."""
    return {m: last for m in methods if (last := _last(record, m, Effects))}


def _last(record: Record, method: str, kind: type[Any]) -> list[Any]:
    """The last report of each seed of a method."""
    return [rounds[max(rounds)] for rounds in tables.reported(record, method, kind).values()]


def _unfinished(method: str, reports: Sequence[Effects]) -> str:
    step = max(report.step for report in reports)
    if step <= UNFINISHED:
        return ""
    return f"{method} stopped short: a coefficient is {step:.2g} standard errors from the best fit to these rows"


def combined(reports: Sequence[Effects]) -> dict[str, Effect]:
    """Effects over seeds, by name; a ratio where the model has one."""
    effects: dict[str, Effect] = {}
    for name in dict.fromkeys(name for report in reports for name in report.names):
        known = [(r.estimates[k], r.errors[k]) for r in reports for k in [r.names.index(name)] if name in r.names]
        mean, m = statistics.fmean(e for e, _ in known), len(known)
        errors = [s for _, s in known if s is not None]
        between = statistics.variance(e for e, _ in known) if m > 1 else 0.0
        half = None
        if len(errors) == m:
            half = Z * math.sqrt(statistics.fmean(s * s for s in errors) + (1 + 1 / m) * between)
        scale = (lambda v: math.exp(min(v, LARGEST))) if reports[0].ratio else float
        effects[name] = Effect(
            scale(mean), *((None, None) if half is None else (scale(mean - half), scale(mean + half)))
        )
    return effects


def _what(reports: Sequence[Effects]) -> str:
    return f"{reports[0].ratio} ratio" if reports[0].ratio else "difference in the target"


def _written(effect: Effect) -> str:
    if effect.low is None or effect.high is None:
        return "cannot be estimated"
    return f"{effect.value:.3g} [{effect.low:.3g}, {effect.high:.3g}]"


def _table(linear: Mapping[str, Sequence[Effects]]) -> Table:
    by_method = {m: combined(reports) for m, reports in linear.items()}
    every = dict.fromkeys(name for effects in by_method.values() for name in effects)
    entries = [
        TableRow(name, tuple(_written(of[name]) if name in of else "" for of in by_method.values())) for name in every
    ]
    rows = next(iter(linear.values()))[0].rows
    note = f"For one unit more of a number, or a word beside another. Wald intervals, {rows:,} training rows."
    data = {
        "method": [m for m, of in by_method.items() for _ in of],
        "name": [name for of in by_method.values() for name in of],
        **{key: [getattr(e, key) for of in by_method.values() for e in of.values()] for key in Effect._fields},
    }
    head = ["Effect of", *(f"{m} | {_what(reports)}" for m, reports in linear.items())]
    return table("Effects, with 95 % intervals", head, entries, note, data=data)


def forest(method: str, reports: Sequence[Effects]) -> Chart:
    """The effects of one method, with the line of no effect; a ratio's axis is logarithmic."""
    ratio = bool(reports[0].ratio)
    known = {name: e for name, e in combined(reports).items() if e.low is not None}
    data = [{"name": name, **e._asdict()} for name, e in list(known.items())[:MOST]]
    text = "; ".join(f"{name} {_written(e)}" for name, e in known.items())
    drawn = charts.forest(data, _what(reports), log=ratio)
    return Chart(f"Effects in {method}", "Mean and 95 % interval, by column.", drawn, f"{_what(reports)}: {text}.")


def _importances(record: Record, others: Mapping[str, Sequence[Importance]], marks: Mapping[str, str]) -> Chart:
    """Costs of each column's shuffles, over seeds, columns that cost most first."""
    m = record.headline
    costs: dict[tuple[str, str], list[float]] = {}
    for method, reports in others.items():
        for report in reports:
            for name, lost in zip(report.names, report.lost, strict=True):
                costs.setdefault((name, method), []).extend(m.scale * one for one in lost)
    worst = {name: max(statistics.fmean(v) for (n, _), v in costs.items() if n == name) for name, _ in costs}
    order = sorted(worst, key=lambda name: -worst[name])[:MOST]
    data = [
        {"method": method, "row": name, "value": statistics.fmean(costs[name, method])}
        for name in order
        for method in others
        if (name, method) in costs
    ]
    text = "; ".join(f"{name} {worst[name]:.3g}" for name in order)
    what = f"{m.label} lost{', ' * bool(m.points)}{m.points}"
    drawn = charts.dots(data, {k: marks[k] for k in others}, what)
    return Chart("Importance of columns", "Mean over shuffles and seeds.", drawn, f"{what}: {text}.")


KIND = SectionKind("coefficients of linear models, and the importance of columns", (Effects, Importance), section)
