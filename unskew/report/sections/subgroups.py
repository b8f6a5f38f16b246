"""Results by values of a column; calibration and net benefit by client."""

import statistics
from collections.abc import Mapping, Sequence

from unskew.info import SiteCurves, Subgroups
from unskew.record.reader import Record
from unskew.report import charts, tables
from unskew.report.section import Chart, Section, SectionKind, Table, table
from unskew.report.sections.predictions import calibration_chart, roc_chart
from unskew.report.stats import Spread

MOST_SITES = 8
"""Clients whose curves are drawn."""


def section(record: Record, methods: Sequence[str], marks: Mapping[str, str]) -> Section | None:
    """The section on subgroups and sites; None if no method has reported them under a counted seed."""
    groups = {m: of for m in methods if (of := [*tables.last(record, m, Subgroups).values()])}
    curves = tables.of_first_seed(record, methods, SiteCurves)
    if not groups and not curves:
        return None
    shown = tables.leader(record) or methods[0]
    method = shown if shown in curves else next(iter(curves), None)
    drawn = [] if method is None else _site_charts(record, method, curves[method])
    lead = "Each client’s own model on its held-out rows, after the last round."
    return Section.of("Subgroups and sites", lead, drawn, [_table(record, groups)])


def _table(record: Record, groups: Mapping[str, Sequence[Subgroups]]) -> Table:
    """The headline by values of columns, over seeds, a column for each method."""
    results: dict[tuple[str, str], dict[str, list[float]]] = {}
    counts: dict[tuple[str, str], list[int]] = {}
    for method, seeds in groups.items():
        for group in (group for of in seeds for group in of.groups):
            at = (group.by, group.value)
            counts.setdefault(at, []).append(group.rows)
            known = results.setdefault(at, {}).setdefault(method, [])
            known += [] if group.result is None else [group.result]
    m = record.headline
    rows = []
    for (by, value), of in counts.items():
        cells = (results[by, value].get(k) for k in groups)
        spreads = (tables.with_spread(Spread(tuple(known)) if known else None, m) for known in cells)
        rows.append((f"{by}: {value}", f"{statistics.fmean(of):,.0f}", *spreads))
    head = ["rows with", "held-out rows", *(f"{k} | {m.axis}" for k in groups)]
    note = (
        "Mean ± standard deviation over seeds. Rows of all clients together, so that a difference may be one between "
    )
    note += "clients; the fewer rows, the less it says."
    return table(f"Own {m.label} by values of {', '.join(dict.fromkeys(by for by, _ in counts))}", head, rows, note)


def _site_charts(record: Record, method: str, curves: SiteCurves) -> list[Chart]:
    """Calibration and ROC curve by client, and the decision curve of all of them together."""
    second = tables.class_name(record, 1)
    sites = {next(iter(record.partitions.values())).client(s.client): s for s in curves.sites[:MOST_SITES]}
    marks, which = charts.colours(list(sites)), "First seed, the clients with most rows."
    return [
        calibration_chart(sites, marks, second, f"Calibration by client, {method}", which),
        roc_chart(sites, marks, f"ROC curve by client, {method}", which),
        _decision_curve(method, curves, second),
    ]


def _decision_curve(method: str, curves: SiteCurves, second: str) -> Chart:
    """Net benefit of the clients together, beside acting on everybody and on nobody."""
    total = sum(site.rows for site in curves.sites)
    share = sum(site.rows * site.share for site in curves.sites) / total
    lines = {
        method: [sum(s.rows * s.benefit[k] for s in curves.sites) / total for k in range(len(curves.thresholds))],
        "act on all": [share - (1 - share) * t / (1 - t) for t in curves.thresholds],
        "act on none": [0.0 for _ in curves.thresholds],
    }
    benefit = [
        {"method": name, "x": t, **dict.fromkeys(("mean", "low", "high"), max(value, -0.05))}
        for name, values in lines.items()
        for t, value in zip(curves.thresholds, values, strict=True)
    ]
    both = zip(curves.thresholds, lines[method], lines["act on all"], strict=True)
    best = [t for t, own, others in both if own > max(others, 0.0)]
    useful = f"from {min(best):.0%} to {max(best):.0%}" if best else "nowhere"
    drawn = charts.curves(benefit, charts.colours(list(lines)), f"probability of {second} to act from", "net benefit")
    caption = f"Above both lines the model helps: here {useful}, in the first seed and without an interval."
    return Chart(f"Decision curve, {method}", caption, drawn)


KIND = SectionKind("results by values of a column, calibration and net benefit", (Subgroups, SiteCurves), section)
