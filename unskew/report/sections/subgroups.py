"""Results by values of a column, and by client calibration and net benefit."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from unskew.info import SiteCurves, Subgroups
from unskew.record.reader import Record
from unskew.report import charts, tables
from unskew.report.section import Chart, Section, SectionKind, Table, TableRow, table
from unskew.report.stats import Spread

MOST_SITES = 8
"""Clients whose curves are drawn."""


def section(record: Record, methods: Sequence[str], marks: Mapping[str, str]) -> Section | None:
    """The section on subgroups and sites; None if no method has reported them under a seed that counts."""
    groups = {m: tables.reported(record, m, Subgroups) for m in methods}
    groups = {m: seeds for m, seeds in groups.items() if seeds}
    shown = tables.leader(record) or next(iter(methods), None)
    curves = {m: tables.reported(record, m, SiteCurves) for m in methods}
    curves = {m: seeds for m, seeds in curves.items() if seeds}
    if not groups and not curves:
        return None
    method = shown if shown in curves else next(iter(curves), None)
    drawn = [] if method is None else _site_charts(record, method, _first(curves[method]))
    lead = "Each client’s own model on its held-out rows, after the last round."
    return Section("For whom the models work", lead, tuple(drawn), (_table(record, groups),) if groups else ())


def _first(seeds: Mapping[int, Mapping[int, Any]]) -> Any:
    """The last report of the first seed."""
    rounds = seeds[min(seeds)]
    return rounds[max(rounds)]


def _table(record: Record, groups: Mapping[str, Mapping[int, Mapping[int, Subgroups]]]) -> Table:
    """The headline by values of columns, over seeds, a column for each method."""
    results: dict[tuple[str, str], dict[str, list[float]]] = {}
    rows: dict[tuple[str, str], list[int]] = {}
    for method, seeds in groups.items():
        for rounds in seeds.values():
            for group in rounds[max(rounds)].groups:
                key = (group.by, group.value)
                rows.setdefault(key, []).append(group.rows)
                if group.result is not None:
                    results.setdefault(key, {}).setdefault(method, []).append(group.result)
    m = record.headline
    entries = [
        TableRow(
            f"{by}: {value}",
            (
                f"{statistics.fmean(counts):,.0f}",
                *(
                    tables.with_spread(Spread(tuple(of)), m) if (of := results.get((by, value), {}).get(k)) else "–"
                    for k in groups
                ),
            ),
        )
        for (by, value), counts in rows.items()
    ]
    head = ["Rows with", "Held-out rows", *(f"{k} | {m.axis}" for k in groups)]
    note = "Mean ± standard deviation over seeds. The fewer rows, the less a difference says."
    return table(f"Own {m.label} by values of {', '.join(dict.fromkeys(by for by, _ in rows))}", head, entries, note)


def _site_charts(record: Record, method: str, curves: SiteCurves) -> list[Chart]:
    """Calibration by client, and the net benefit of the clients together beside acting on everybody and on nobody."""
    partition = next(iter(record.partitions.values()))
    sites = {partition.client(site.client): site for site in curves.sites[:MOST_SITES]}
    colours = charts.colours(list(sites))
    points = [
        {"method": name, "x": x, "y": y}
        for name, site in sites.items()
        for x, y in zip(site.likely, site.happened, strict=True)
    ]
    ranks = [
        {"method": name, "x": x, "y": y}
        for name, site in sites.items()
        for x, y in zip(site.false_alarms, site.found, strict=True)
    ]
    calibration = charts.square(points, colours, "predicted probability", f"share of {partition.label(1)}", dotted=True)
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
    best = [t for t, own, all_ in zip(curves.thresholds, lines[method], lines["act on all"], strict=True)
            if own > max(all_, 0.0)]  # fmt: skip
    useful = f"useful from {min(best):.0%} to {max(best):.0%}" if best else "useful at no threshold"
    drawn = charts.curves(benefit, charts.colours(list(lines)), "probability from which on one acts", "net benefit")
    return [
        Chart(
            f"Calibration by client, {method}",
            "On the line probabilities are right. First seed, the clients with most rows.",
            calibration,
            f"Calibration of {', '.join(sites)}: predicted against observed shares of {partition.label(1)}.",
        ),
        Chart(
            f"ROC curve by client, {method}",
            "Up and left is better. First seed, the clients with most rows.",
            charts.square(ranks, colours, "1 − specificity", "sensitivity"),
            f"ROC curves of {', '.join(sites)}.",
        ),
        Chart(
            f"Decision curve, {method}",
            f"Above both lines the model helps: it is {useful}. First seed, all clients together.",
            drawn,
            f"Net benefit of {method} by threshold: {useful}.",
        ),
    ]


KIND = SectionKind("results by values of a column, calibration and net benefit", (Subgroups, SiteCurves), section)
