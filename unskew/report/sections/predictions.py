"""Predictions of the global models: numbers against the truth; ROC, precision and calibration of two classes.

Drawn from the task's report on the global test set after the last round (`TaskKind.report`), with a table of recall by
class.
"""

import statistics
from collections.abc import Mapping, Sequence

import altair as alt

from unskew.info import PredictedNumbers, RankedClasses, RecallByClass, SiteCurve
from unskew.record.reader import Record
from unskew.report import charts, tables
from unskew.report.section import Chart, Section, SectionKind, Table, table
from unskew.report.stats import Spread
from unskew.report.worth import FEW

MOST_CLASSES = 20
"""Classes that the table has at most."""

MOST = 4
"""Methods whose predictions are drawn one beside the other."""


def section(record: Record, methods: Sequence[str], marks: Mapping[str, str]) -> Section | None:
    """The section on predictions of global models; None without a report of a first seed."""
    numbers = tables.of_first_seed(record, methods, PredictedNumbers)
    ranked = tables.of_first_seed(record, methods, RankedClasses)
    drawn = [numbers_chart(numbers, marks)] if numbers else []
    drawn += ranked_charts(ranked, marks, tables.class_name(record, 1)) if ranked else []
    confused = {m: of for m, of in tables.of_first_seed(record, methods, RecallByClass).items() if of.confused}
    if confused:
        best = tables.leader(record)
        shown = best if best in confused else next(iter(confused))
        names = [tables.class_name(record, k) for k in range(len(confused[shown].examples))]
        drawn.append(confusion_chart(shown, confused[shown], names))
    recall = _recall_table(record, methods)
    lead = f"Global models on the global test set, last round{', first seed' * bool(drawn)}."
    return Section.of("Predictions", lead, drawn, [recall]) if drawn or recall else None


def _recall_table(record: Record, methods: Sequence[str]) -> Table | None:
    """The share of each class that is found, over seeds, a column for each method; of many classes the lowest."""
    every = {m: [*tables.last(record, m, RecallByClass).values()] for m in methods}
    infos = {m: of for m, of in every.items() if of}
    examples = next(iter(infos.values()))[0].examples if infos else ()
    classes = [k for k, n in enumerate(examples) if n]
    if not classes:
        return None
    shares = {
        m: {k: Spread(tuple(i.found[k] / i.examples[k] for i in of if i.examples[k])) for k in classes}
        for m, of in infos.items()
    }
    names = {k: tables.class_name(record, k) for k in classes}
    caption = "Recall by class: the share of the class’s test examples that is found"
    fewest = min(classes, key=lambda k: examples[k])
    note = "Mean ± standard deviation over seeds. " * any(len(of) > 1 for of in infos.values())
    if examples[fewest] < FEW:
        one = f"so that one more found is {100 / examples[fewest]:.1f} points"
        note += f"Test examples are few: of {names[fewest]} there are {examples[fewest]}, {one}."
    if len(classes) > MOST_CLASSES:
        caption += f"; {MOST_CLASSES} of {len(classes)} classes, those with the lowest mean over methods"
        classes.sort(key=lambda k: statistics.fmean(by[k].mean for by in shares.values()))
    rows = [
        (names[k], f"{examples[k]:,}", *(tables.with_spread(by[k]) for by in shares.values()))
        for k in classes[:MOST_CLASSES]
    ]
    return table(caption, ["class", "test examples", *(f"{method} | %" for method in shares)], rows, note.strip())


def confusion_chart(method: str, info: RecallByClass, names: Sequence[str]) -> Chart:
    """Shares of each class's test examples by the class that is predicted."""
    cells = [
        {"column": names[k], "row": names[c], "value": n / max(info.examples[c], 1)}
        for c, of in enumerate(info.confused)
        for k, n in enumerate(of)
    ]
    wrong = [(n, names[c], names[k]) for c, of in enumerate(info.confused) for k, n in enumerate(of) if k != c]
    most, true, taken = max(wrong)
    alt = f"Most often “{true}” is taken for “{taken}”, {most} times." if most else "No class is taken for another."
    drawn = charts.matrix(cells, "predicted", "class", "share of the class’s examples")
    return Chart(f"Confusion, {method}", f"Stronger colour: a larger share of the row’s class. {alt}", drawn)


def numbers_chart(numbers: Mapping[str, PredictedNumbers], marks: Mapping[str, str]) -> Chart:
    """Predicted against true, a panel for each method, with equal axes."""
    shown = dict(list(numbers.items())[:MOST])
    points = [
        {"panel": method, "x": t, "y": p}
        for method, info in shown.items()
        for t, p in zip(info.true, info.predicted, strict=True)
    ]
    axis = charts.over("", [v for info in shown.values() for v in (*info.true, *info.predicted)])
    guides = [{"panel": m, "x": v, "y": v, "guide": True} for m in shown for v in axis["scale"].domain]
    base = alt.Chart(charts.rows([*points, *guides])).encode(
        x=alt.X("x:Q", **{**axis, "title": "true"}), y=alt.Y("y:Q", **{**axis, "title": "predicted"})
    )
    diagonal = base.transform_filter("datum.guide").mark_line(color=charts.INK, strokeWidth=1)
    dots = base.transform_filter("!datum.guide").mark_point(filled=True, size=14, opacity=0.6, tooltip=True)
    colour = charts.by_name({m: marks[m] for m in shown}, "panel")
    drawn = charts.faceted(alt.layer(diagonal, dots.encode(color=colour)), list(shown), 2, height=220)
    return Chart("Predicted against true", "A dot is a test example; on the line the prediction is right.", drawn)


def ranked_charts(ranked: Mapping[str, RankedClasses], marks: Mapping[str, str], second: str) -> list[Chart]:
    """ROC curve, precision and recall, and calibration of two classes by method; `second` is the positive class."""
    areas = "; ".join(f"{m} {i.area:.3f}" for m, i in ranked.items())
    precise = "; ".join(f"{m} {i.average_precision:.3f}" for m, i in ranked.items())
    share = next(iter(ranked.values())).share
    precision = charts.square(charts.points(ranked, "recall", "precision"), marks, "recall", "precision", level=share)
    level = f"Up and right is better; the line is the share of {second}, {100 * share:.1f} %. Average: {precise}."
    drawn = [roc_chart(ranked, marks, "ROC curve", f"Area: {areas}."), Chart("Precision and recall", level, precision)]
    if any(i.likely for i in ranked.values()):
        words = "A point is a tenth of the examples."
        drawn.append(calibration_chart(ranked, marks, second, "Calibration", words))
    return drawn


def roc_chart(
    curves: Mapping[str, RankedClasses | SiteCurve], marks: Mapping[str, str], title: str, words: str
) -> Chart:
    """ROC curves by method, or by client."""
    points = charts.points(curves, "false_alarms", "found")
    drawn = charts.square(points, marks, "1 − specificity", "sensitivity")
    return Chart(title, f"Up and left is better. {words}", drawn)


def calibration_chart(
    curves: Mapping[str, RankedClasses | SiteCurve], marks: Mapping[str, str], second: str, title: str, words: str
) -> Chart:
    """Calibration by method, or by client."""
    points = charts.points(curves, "likely", "happened")
    drawn = charts.square(points, marks, "predicted probability", f"share of {second}", dotted=True)
    return Chart(title, f"On the line probabilities of {second} are right. {words}", drawn)


KIND = SectionKind(
    "predictions of global models: regression, binary, recall by class",
    (PredictedNumbers, RankedClasses, RecallByClass),
    section,
)
