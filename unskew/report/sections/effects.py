"""Columns that matter to a model of a table: effects of a linear model with intervals, or importances.

Over m seeds effects are combined like imputations (D. B. Rubin, "Multiple Imputation for Nonresponse in Surveys",
1987): the mean, with the mean of the squared errors plus (1 + 1 / m) times the variance between seeds.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from unskew.info import Effects, Importance
from unskew.record.reader import Record
from unskew.report import charts, tables
from unskew.report.section import Chart, Section, SectionKind, Table, table

Z = statistics.NormalDist().inv_cdf(0.975)
UNFINISHED = 0.1
"""Standard errors that a coefficient may be from the maximum of its likelihood without a word."""
LARGEST = math.log(1e6)
"""Log of the largest ratio that is drawn: one beyond it says that rows are too few."""
PER_SD = ", per standard deviation"
"""What the name of a column says that has no unit; an axis says it once where all names do."""
MOST = 40
"""Columns that are drawn."""


class Effect(NamedTuple):
    """An effect over seeds: its mean and 95 % interval on the scale of ratios or differences."""

    value: float
    low: float | None
    high: float | None


def section(record: Record, methods: Sequence[str], marks: Mapping[str, str]) -> Section | None:
    """The section on effects and importances; None if no method has reported them under a counted seed."""
    linear = reported(record, methods)
    others = {m: of for m in methods if (of := [*tables.last(record, m, Importance).values()])}
    lead, drawn = [], []
    if linear:
        lead.append("Of the linear models: coefficients with 95 % intervals, by the training rows of all clients")
        for m, step in ((m, max(report.step for report in reports)) for m, reports in linear.items()):
            short = f"{m} stopped short: a coefficient is {step:.2g} standard errors from the best fit to these rows"
            lead += [short] if step > UNFINISHED else []
        drawn.append(forest(*next(iter(linear.items()))))
    if others:
        lead.append("Of the other models: what shuffling a column among the test rows costs")
        drawn.append(_importances(record, others, marks))
    words = " ".join(f"{text}." for text in lead)
    return Section.of("Effects of columns", words, drawn, [_table(linear) if linear else None]) if lead else None


def reported(record: Record, methods: Sequence[str]) -> dict[str, list[Effects]]:
    """The effects of each linear method under each counted seed."""
    return {m: of for m in methods if (of := [*tables.last(record, m, Effects).values()])}


def combined(reports: Sequence[Effects]) -> dict[str, Effect]:
    """Effects over seeds, by name; ratios where the model has them."""
    effects: dict[str, Effect] = {}
    scale = (lambda v: math.exp(min(v, LARGEST))) if reports[0].ratio else float
    for name in dict.fromkeys(name for report in reports for name in report.names):
        known = [(r.estimates[k], r.errors[k]) for r in reports if name in r.names for k in [r.names.index(name)]]
        mean, m = statistics.fmean(e for e, _ in known), len(known)
        errors = [s for _, s in known if s is not None]
        between = statistics.variance(e for e, _ in known) if m > 1 else 0.0
        low = high = None
        if len(errors) == m:
            half = Z * math.sqrt(statistics.fmean(s * s for s in errors) + (1 + 1 / m) * between)
            low, high = scale(mean - half), scale(mean + half)
        effects[name] = Effect(scale(mean), low, high)
    return effects


def _what(reports: Sequence[Effects]) -> str:
    of = f" for {reports[0].of}" if reports[0].of else ""
    return f"{reports[0].ratio} ratio{of}" if reports[0].ratio else "difference in the target"


def _written(effect: Effect) -> str:
    if effect.low is None or effect.high is None:
        return "cannot be estimated"
    return f"{effect.value:.3g} [{effect.low:.3g}, {effect.high:.3g}]"


def _table(linear: Mapping[str, Sequence[Effects]]) -> Table:
    by_method = {m: combined(reports) for m, reports in linear.items()}
    every = dict.fromkeys(name for effects in by_method.values() for name in effects)
    entries = [(name, *(_written(of[name]) if name in of else "" for of in by_method.values())) for name in every]
    rows = next(iter(linear.values()))[0].rows
    note = f"Effects are per unit, unless the row says otherwise. Wald intervals, {rows:,} training rows."
    head = ["effect of", *(f"{m} | {_what(reports)}" for m, reports in linear.items())]
    return table("Effects, with 95 % intervals", head, entries, note)


def forest(method: str, reports: Sequence[Effects]) -> Chart:
    """The effects of one method, with the line of no effect; a ratio's axis is logarithmic."""
    known = {name: e for name, e in combined(reports).items() if e.low is not None}
    per = PER_SD if all(name.endswith(PER_SD) for name in known) else ""
    data = [{"name": name.removesuffix(per), **e._asdict()} for name, e in list(known.items())[:MOST]]
    text = "; ".join(f"{name} {_written(e)}" for name, e in known.items())
    drawn = charts.forest(data, _what(reports) + per, log=bool(reports[0].ratio))
    return Chart(f"Effects in {method}", "Mean and 95 % interval, by column.", drawn, f"{_what(reports)}: {text}.")


def _importances(record: Record, others: Mapping[str, Sequence[Importance]], marks: Mapping[str, str]) -> Chart:
    """Costs of each column's shuffles, over seeds, columns that cost most first."""
    m, costs = record.headline, dict[str, dict[str, list[float]]]()
    for method, reports in others.items():
        for name, lost in (pair for report in reports for pair in zip(report.names, report.lost, strict=True)):
            costs.setdefault(name, {}).setdefault(method, []).extend(m.scale * one for one in lost)
    means = {name: {method: statistics.fmean(v) for method, v in of.items()} for name, of in costs.items()}
    worst = {name: max(of.values()) for name, of in means.items()}
    order = sorted(worst, key=lambda name: -worst[name])[:MOST]
    data = [{"method": method, "row": name, "value": v} for name in order for method, v in means[name].items()]
    text = "; ".join(f"{name} {worst[name]:.3g}" for name in order)
    what = f"{m.label} lost{', ' * bool(m.points)}{m.points}"
    drawn = charts.dots(data, {k: marks[k] for k in others}, what)
    return Chart("Importance of columns", "Mean over shuffles and seeds.", drawn, f"{what}: {text}.")


KIND = SectionKind("coefficients of linear models, and the importance of columns", (Effects, Importance), section)
