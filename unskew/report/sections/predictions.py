"""Predictions of the global models: of numbers against the truth, of two classes as ROC, precision and calibration.

Drawn from what a kind of task makes of the global test set after the last round (`TaskKind.report`).  Of
classes there is a table of what is found of each.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import TypeVar

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unskew.info import Info, PredictedNumbers, RankedClasses, RecallByClass
from unskew.record.reader import DataSplit, Record, info_of
from unskew.report import figures, tables
from unskew.report.section import Chart, Section, SectionKind, Table, TableRow
from unskew.report.stats import Spread
from unskew.report.worth import FEW

T = TypeVar("T", bound=Info)

MOST_CLASSES = 20
"""Classes that the table has at most."""

MOST = 4
"""Methods whose predictions are drawn one beside the other."""


def section(record: Record, methods: Sequence[str], marks: Mapping[str, figures.LineStyle]) -> Section | None:
    """The section on what global models predict; None if no method's first seed has reported it."""
    numbers = _first(record, methods, PredictedNumbers)
    ranked = _first(record, methods, RankedClasses)
    charts = []
    if numbers:
        charts.append(_numbers_chart(numbers, marks))
    if ranked:
        partition = next(iter(record.partitions.values()), None)
        second = "the second class" if partition is None or not partition.classes else partition.label(1)
        charts += [
            _roc_chart(ranked, marks),
            _precision_chart(ranked, marks, second),
            _calibration_chart(ranked, marks, second),
        ]
    recall = _recall_table(record, methods)
    lead = "Predictions of the global models for the global test set after the last round"
    lead += f"{', the figures of the first seed' * bool(charts)}."
    if not charts and recall is None:
        return None
    return Section("Predictions", lead, tuple(charts), () if recall is None else (recall,))


def _recall_table(record: Record, methods: Sequence[str]) -> Table | None:
    """The share of each class that is found, over seeds, a column for each method; of many classes the lowest."""
    shares: dict[str, list[Spread | None]] = {}
    examples: tuple[int, ...] = ()
    for method in methods:
        seeds = tables.counted_seeds(record, method)
        of = [row.info for row in info_of(record, method, RecallByClass) if row.seed in seeds]
        if of:
            examples = of[0].examples
            by_class = [[i.found[k] / i.examples[k] for i in of if i.examples[k]] for k in range(len(examples))]
            shares[method] = [Spread(tuple(values)) if values else None for values in by_class]
    classes = [k for k, n in enumerate(examples) if n]
    if not classes:
        return None
    partition = next(iter(record.partitions.values()), None)
    caption = "Recall by class: the share of the class’s test examples that is found"
    fewest = min(classes, key=lambda k: examples[k])
    note = "Mean ± standard deviation over seeds. " * any(s and len(s.values) > 1 for of in shares.values() for s in of)
    if examples[fewest] < FEW:
        one = f"so that one more found is {100 / examples[fewest]:.1f} points"
        note += f"Test examples are few: of {_label(partition, fewest)} there are {examples[fewest]}, {one}."
    if len(classes) > MOST_CLASSES:
        caption += f"; {MOST_CLASSES} of {len(classes)} classes, those with the lowest mean over methods"
        classes.sort(key=lambda k: statistics.fmean(s.mean for of in shares.values() if (s := of[k]) is not None))
    entries = [
        TableRow(_label(partition, k), (f"{examples[k]:,}", *(tables.with_spread(of[k]) for of in shares.values())))
        for k in classes[:MOST_CLASSES]
    ]
    head = (("Class", ""), ("Test examples", ""), *((method, "%") for method in shares))
    return Table(caption, head, tuple(entries), note.strip())


def _label(partition: DataSplit | None, k: int) -> str:
    return f"class {k}" if partition is None or not partition.classes else partition.label(k)


def _first(record: Record, methods: Sequence[str], kind: type[T]) -> dict[str, T]:
    """Return what each method's first seed has reported."""
    reports: dict[str, T] = {}
    for method in methods:
        seeds = tables.counted_seeds(record, method)
        for seed, _, info in info_of(record, method, kind):
            if seeds and seed == seeds[0]:
                reports[method] = info
    return reports


def _numbers_chart(numbers: Mapping[str, PredictedNumbers], marks: Mapping[str, figures.LineStyle]) -> Chart:
    """Predicted against true, a panel for each method, all with the same axes."""
    shown = dict(list(numbers.items())[:MOST])
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    values = [v for n in shown.values() for v in (*n.true, *n.predicted)]
    low, high = min(values), max(values)
    room = 0.04 * (high - low) or 1.0
    with figures.style("predicted"):
        figure = figures.sheet(200 * rows)
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axes, (method, info) in zip(grid.flat, shown.items(), strict=False):
            axes.set_axisbelow(True)
            axes.plot([low, high], [low, high], color=figures.INK, linewidth=0.8)
            axes.plot(info.true, info.predicted, "o", color=marks[method].colour, markersize=2.5, alpha=0.6, mew=0)
            axes.set_xlim(low - room, high + room)
            axes.set_ylim(low - room, high + room)
            axes.set_title(method, fontsize=10)
        for axes in list(grid.flat)[len(shown) :]:
            axes.set_visible(False)
        figure.supxlabel("true", fontsize=10)
        figure.supylabel("predicted", fontsize=10)
        worst = "; ".join(f"{m}: {_error(i):.3g}" for m, i in shown.items())
        svg = figures.markup(figure, "predicted", f"Predicted against true; mean absolute error {worst}.")
    caption = (
        "A dot is a test example; on the line the prediction is right."
        + (f" The first {MOST} of {len(numbers)} methods." if len(numbers) > MOST else "")
        + (" At most 500 examples." if any(len(i.true) == 500 for i in shown.values()) else "")
    )
    return Chart("Predicted against true", caption, svg)


def _error(info: PredictedNumbers) -> float:
    return sum(abs(p - t) for p, t in zip(info.predicted, info.true, strict=True)) / len(info.true)


def _square(x: str, y: str) -> tuple[Figure, Axes]:
    figure, axes = figures.chart(300)
    axes.set_axisbelow(True)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def _roc_chart(ranked: Mapping[str, RankedClasses], marks: Mapping[str, figures.LineStyle]) -> Chart:
    with figures.style("roc"):
        figure, axes = _square("1 − specificity", "sensitivity")
        axes.plot([0, 1], [0, 1], color=figures.INK, linewidth=0.8)
        for method, info in ranked.items():
            axes.plot(info.false_alarms, info.found, **{**figures.drawn(marks[method]), "marker": ""})
        areas = "; ".join(f"{m} {i.area:.3f}" for m, i in ranked.items())
        svg = figures.markup(figure, "roc", f"ROC curves; area under the curve {areas}.")
    return Chart("ROC curve", "Up and left is better; the diagonal is chance.", svg, _legend(ranked, marks))


def _precision_chart(ranked: Mapping[str, RankedClasses], marks: Mapping[str, figures.LineStyle], second: str) -> Chart:
    with figures.style("precision"):
        figure, axes = _square("recall", "precision")
        for method, info in ranked.items():
            axes.plot(info.recall, info.precision, **{**figures.drawn(marks[method]), "marker": ""})
        share = next(iter(ranked.values())).share
        axes.axhline(share, color=figures.INK, linewidth=0.8)
        precision = "; ".join(f"{m} {i.average_precision:.3f}" for m, i in ranked.items())
        svg = figures.markup(figure, "precision", f"Precision by recall; average precision {precision}.")
    caption = f"Up and right is better; the level is the share of {second}, {100 * share:.1f} %."
    return Chart("Precision and recall", caption, svg, _legend(ranked, marks))


def _calibration_chart(
    ranked: Mapping[str, RankedClasses], marks: Mapping[str, figures.LineStyle], second: str
) -> Chart:
    with figures.style("calibration"):
        figure, axes = _square("predicted probability", "share that is of the class")
        axes.plot([0, 1], [0, 1], color=figures.INK, linewidth=0.8)
        for method, info in ranked.items():
            axes.plot(info.likely, info.happened, **figures.drawn(marks[method]))
        points = "; ".join(f"{m} {len(i.likely)} points" for m, i in ranked.items())
        svg = figures.markup(figure, "calibration", f"Calibration: {points}.")
    caption = (
        f"A point is a tenth of the test examples, ordered by predicted probability of {second}; on the line the "
        "probabilities are right."
    )
    return Chart("Calibration", caption, svg, _legend(ranked, marks))


def _legend(
    ranked: Mapping[str, RankedClasses], marks: Mapping[str, figures.LineStyle]
) -> tuple[tuple[str, Markup], ...]:
    return tuple((method, figures.swatch(marks[method])) for method in ranked)


KIND = SectionKind(
    "predictions of global models: regression, binary, recall by class",
    (PredictedNumbers, RankedClasses, RecallByClass),
    section,
)
