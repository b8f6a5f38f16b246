"""FedDW and every method with its term: how near the classifier came to the soft labels, and what they reveal to whom.

`unskew.algorithms.feddw` has the citation; figure numbers are the paper's.

Notation   SL       soft labels, (classes, classes): row c is the mean prediction for examples of class c
           CR       class relations, (classes, classes): row c is softmax((W W^T)_c), W the classifier's weight
           ||w_c||  length of row c of W, no unit

SL and CR with ||SL - CR||_F by round are Fig. 8, ||w_c|| against the share of class c Fig. 4.  The share is that of all
clients' training examples, from partition.json; no method with the term reveals or needs it.

The last part is for reproductions: accuracy by mu, Fig. 6, and features in the plane with the class weights among them,
Fig. 5.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import numpy.typing as npt

from unskew.info import ClassRelations, Privacy
from unskew.keys import Key
from unskew.record.reader import Record, info_of
from unskew.report import charts, stats, tables
from unskew.report.section import Chart, Section, SectionKind, TableRow, table
from unskew.words import sentence

MOST_SHOWN = 4  # methods whose matrices are drawn

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Relations:
    """SL, and CR beside it where the method has one global model; shares in [0, 1]."""

    round: int
    sl: Floats
    cr: Floats | None
    distance: float | None


@dataclass(frozen=True, eq=False)
class DWHistory:
    """A method with FedDW's term, over a run.

    Attributes:
        distance: ||SL - CR||_F by round over seeds, None where there is no global model.
        seed: Seed of the matrices.
        shown: SL and CR at its first, middle and last round; fewer in a short run, none with many classes.
        norms: ||w_c|| in the last round, by seed.
        shares: Class shares of all training examples, by seed.
        privacy: The weakest guarantee over the seeds, and what each party saw.
    """

    method: str
    distance: stats.Curve | None
    seed: int
    shown: tuple[Relations, ...]
    norms: Mapping[int, tuple[float, ...]]
    shares: Mapping[int, tuple[float, ...]]
    privacy: Privacy


def history(record: Record, method: str) -> DWHistory | None:
    """A method's info over a run; None if no seed that counts has any.

    Raises:
        RunError: If the info is not as a run writes it.
    """
    counted = tables.counted_seeds(record, method)
    distance: dict[int, dict[int, float]] = {}
    last: dict[int, ClassRelations] = {}
    norms: dict[int, tuple[float, ...]] = {}
    rounds: list[int] = []
    for seed, at, info in info_of(record, method, ClassRelations):
        if seed in counted:
            rounds += [at] if seed == next(iter(last), seed) else []
            last[seed], norms[seed] = info, info.class_norms or norms.get(seed, ())
            distance.setdefault(seed, {}).update({} if info.distance is None else {at: info.distance})
    if not last:
        return None
    first, wanted = next(iter(last)), {rounds[0], rounds[(len(rounds) - 1) // 2], rounds[-1]}
    # Read the info again: matrices of all rounds are too many to hold.
    again = (relations(t, i) for s, t, i in info_of(record, method, ClassRelations) if s == first and t in wanted)
    return DWHistory(
        method,
        stats.curve_by_round(list(distance.values())),
        first,
        tuple(r for r in again if r is not None),
        {s: of for s, of in norms.items() if of},
        {s: _shares(record, s) for s in last if s in record.partitions},
        max((info.privacy for info in last.values()), key=lambda p: p.bound),
    )


def relations(at: int, info: ClassRelations) -> Relations | None:
    """SL and CR of a round; None if the method left them out."""
    if info.sl is None:
        return None
    return Relations(at, np.array(info.sl), None if info.cr is None else np.array(info.cr), info.distance)


def _shares(record: Record, seed: int) -> tuple[float, ...]:
    counts = np.array(record.partitions[seed].label_counts, dtype=np.float64).sum(axis=0)
    return tuple((counts / counts.sum()).tolist()) if counts.ndim and counts.sum() > 0 else ()


# ---------------------------------------------------------------- the section
def section(record: Record, methods: Sequence[str], marks: Mapping[str, str]) -> Section | None:
    """The section on FedDW's term; None if there is no round that counts.

    Raises:
        RunError: If the info contradicts itself.
    """
    histories = [t for m in methods if (t := history(record, m)) is not None]
    if not histories:
        return None
    every = {
        t.method: [(t.shares[s], n) for s, n in t.norms.items() if len(t.shares.get(s, ())) == len(n)]
        for t in histories
    }
    norms = {method: pairs for method, pairs in every.items() if pairs}
    drawn = [distance_chart(histories, marks)] if any(t.distance for t in histories) else []
    drawn += [norms_chart(norms, "training examples", marks)] if norms else []
    drawn += [relations_chart(f"{t.method}, seed {t.seed}", t.shown) for t in histories[:MOST_SHOWN] if t.shown]
    without = ", ".join(t.method for t in histories if t.distance is None)
    lead = f"No class relations for {without}: no global model." if without else ""
    rows = [
        TableRow(
            t.method,
            (t.privacy.guarantee, sentence(t.privacy.server), sentence(t.privacy.clients)),
            charts.swatch(marks[t.method]),
        )
        for t in histories
    ]
    head = ["Method", "Guarantee", "The server saw", "Clients saw"]
    note = "The largest ε of several seeds. It is about soft labels; models are covered only where they are named."
    learned = table("What each party learned from the soft labels", head, rows, note, [1, 2, 3])
    return Section("Soft labels and class relations", lead, tuple(drawn), (learned,))


# ---------------------------------------------------------------- figures
def distance_chart(histories: Sequence[DWHistory], marks: Mapping[str, str]) -> Chart:
    """The distance of SL and CR, by round."""
    lines = {t.method: t.distance for t in histories if t.distance is not None}
    title = "Soft labels against class relations"
    drawn = charts.curves(charts.of_curves(lines), marks, "round", "‖SL − CR‖", log=True)
    return Chart(title, "0 if they are equal. The term pulls it down.", drawn, charts.ends(title, lines))


Shared = tuple[Sequence[float], Sequence[float]]
"""Share and ||w_c|| of each class, under a seed."""


def norms_chart(drawn: Mapping[str, Sequence[Shared]], whose: str, marks: Mapping[str, str] | None = None) -> Chart:
    """Length of a class's weights against its share (Fig. 4), a mark for each class and seed.

    Args:
        drawn: Values of each seed, by method; at least one.
        whose: What the shares are of, in words.
        marks: Colours of the methods; distinct ones by default.
    """
    points: list[dict[str, Any]] = [
        {"method": method, "class": str(c), "x": 100 * share, "y": norm}
        for method, pairs in drawn.items()
        for pair in pairs
        for c, (share, norm) in enumerate(zip(*pair, strict=True))
    ]
    parts = []
    for method in drawn:
        r = correlation(*([p[k] for p in points if p["method"] == method] for k in "xy"))
        parts.append(f"{method} {'–' if r is None else f'{r:+.2f}'.replace('-', '−')}")
    title, text = "Weight of a class against its share", f"Correlation: {', '.join(parts)}."
    colour = charts.by_name({m: (marks or charts.colours(list(drawn)))[m] for m in drawn}, legend=len(drawn) > 1)
    alone = len(drawn) == 1 and len(points) == len({p["class"] for p in points})
    chart = charts.scatter(points, f"share of the {whose}, %", "length of the class’s weights", colour, "class" * alone)
    caption = f"A mark is a class. A layer that favours frequent classes has its marks rise to the right. {text}"
    return Chart(title, caption, chart, f"{title}. {text}")


def correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Pearson's correlation; None if one of the two does not vary by more than rounding."""
    if any(np.ptp(v) <= 1e-9 * max(*map(abs, v), 1e-30) for v in (x, y)):
        return None
    return float(np.corrcoef(x, y)[0, 1])


def relations_chart(method: str, matrices: Sequence[Relations]) -> Chart:
    """SL and CR side by side, a row of panels for each round (Fig. 8); only SL if there is no CR.

    Args:
        method: Title of the matrices: a method's label, and the seed.
        matrices: Matrices to draw, at least one, all with the same number of classes.
    """
    panels = {
        f"{name}, round {r.round}": matrix
        for r in matrices
        for name, matrix in (("SL", r.sl), ("CR", r.cr))
        if matrix is not None
    }
    cells = [
        {"panel": panel, "as": str(b), "class": str(a), "value": float(v)}
        for panel, matrix in panels.items()
        for (a, b), v in np.ndenumerate(np.clip(matrix, 0, 1))
    ]
    both = any(r.cr is not None for r in matrices)
    text = "; ".join(f"round {r.round}: mean diagonal of SL {float(np.diagonal(r.sl).mean()):.2f}" for r in matrices)
    caption = "SL: row c is what the clients’ models predict on average for class c. Darker is more."
    caption += " CR: how its weights relate to those of each class." * both
    order = [str(c) for c in range(len(matrices[0].sl))]
    shade = alt.Opacity("value:Q", legend=None, scale=alt.Scale(type="sqrt", domain=[0, 1], range=[0, 1]))
    squares = alt.Chart(charts.rows(cells)).mark_rect(color=charts.COLOURS[0]).encode(
        x=alt.X("as:N", sort=order, title="as which class"), y=alt.Y("class:N", sort=order, title="class"),
        opacity=shade, tooltip=["panel:N", "as:N", "class:N", "value:Q"],
    )  # fmt: skip
    drawn = charts.faceted(squares, list(panels), 2 if both else 3)
    title = f"Soft labels and class relations of {method}"
    return Chart(title, caption, drawn, f"{title}. {text}.", wide=True)


# ---------------------------------------------------------------- for reproductions
def mu_chart(lines: Mapping[str, Mapping[float, Sequence[float]]]) -> Chart:
    """Accuracy by the weight of the term (Fig. 6), with mu = 0, the method without it, at the left end.

    Args:
        lines: Name of a line, such as a data set -> {mu: accuracy of each seed}; accuracies are fractions.
    """
    values = sorted({v for by in lines.values() for v in by})
    points: list[dict[str, Any]] = [
        {"method": line, "x": values.index(mu), "mu": f"{mu:g}", "mean": 100 * statistics.fmean(seeds),
         "low": 100 * min(seeds), "high": 100 * max(seeds)}
        for line, by in lines.items() for mu, seeds in sorted(by.items())
    ]  # fmt: skip
    best = {line: max((p for p in points if p["method"] == line), key=lambda p: p["mean"]) for line in lines}
    text = "Best: " + "; ".join(f"{line} {p['mean']:.1f} % at mu {p['mu']}" for line, p in best.items()) + "."
    ticks, x = [f"{mu:g}" for mu in values], "weight of the term mu"
    chart = charts.curves(points, charts.colours(list(lines)), x, "global test accuracy, %", ticks=ticks)
    caption = f"In the last round; 0 is the method without the term. {text}"
    return Chart("How much the weight of the term matters", caption, chart, f"Accuracy by mu. {text}")


def help_chart(apart: Mapping[str, Sequence[float]]) -> Chart:
    """Gain of methods from the term (Table IV), with the interval of each mean.

    Args:
        apart: Method -> global test accuracy with the term minus that without it, by seed; fractions.
    """
    every = [tables.difference(method, dict(enumerate(values))) for method, values in apart.items()]
    rows = [{**charts.interval(d.method, d, 100.0), "seeds": [100 * v for v in d.values]} for d in every]
    chart = charts.forest(rows, "accuracy with the term minus without it, points", charts.colours(list(apart)))
    text = "; ".join(f"{d.method} {tables.bracket(d)}" for d in every)
    caption = "Last round, seed by seed. Mark: mean; bar: 95 % interval; ticks: seeds."
    return Chart("What the term adds", caption, chart, f"Accuracy with the term minus without it: {text}.")


@dataclass(frozen=True, eq=False)
class Plane:
    """Features and class weights in the plane; coordinates have no unit, and only nearness has a meaning.

    Attributes:
        points: Features, (examples, 2).
        labels: Their classes, (examples,).
        weights: The rows of the classifier's weight, (classes, 2).
    """

    points: Floats
    labels: npt.NDArray[np.int64]
    weights: Floats

    @property
    def nearest(self) -> float:
        """Share of the examples whose nearest class weight in the plane is that of their own class."""
        gaps = np.linalg.norm(self.points[:, None] - self.weights, axis=2)
        return float((gaps.argmin(axis=1) == self.labels).mean())


def plane(features: Floats, labels: npt.NDArray[np.int64], weights: Floats, key: Key) -> Plane:
    """Features and class weights laid out together by t-SNE.

    Distances are those of directions (cosine): features and weights differ much in length, and a linear layer without
    bias looks at their angle.

    Args:
        features: Input of the last layer, (examples, dimensions); at least three examples.
        labels: Classes of the examples, (examples,).
        weights: Weight of the last layer, (classes, dimensions).
        key: Randomness of t-SNE.

    Raises:
        ValueError: If the shapes do not fit, or a number is not finite, as in a model that diverged.
    """
    from sklearn.manifold import TSNE  # an import that no report needs

    both = np.concatenate([features, weights])
    tsne = TSNE(
        n_components=2, metric="cosine", init="pca", perplexity=min(30.0, (len(both) - 1) / 3),
        random_state=key.number() % 2**32,
    )  # fmt: skip
    laid, n = np.asarray(tsne.fit_transform(both), dtype=np.float64), len(features)
    return Plane(laid[:n], np.asarray(labels), laid[n:])


def features_chart(planes: Mapping[str, Plane]) -> Chart:
    """Features in the plane, coloured by class, and each class's weight as its number (Fig. 5).

    Args:
        planes: Title of a panel, such as a method -> its features; all with the same number of classes.
    """
    classes = range(len(next(iter(planes.values())).weights))
    points = [
        {"panel": title, "class": str(c), "x": x, "y": y, "weight": weight}
        for title, p in planes.items()
        for weight, of, places in ((False, p.labels, p.points), (True, classes, p.weights))
        for c, (x, y) in zip(of, places.tolist(), strict=True)
    ]
    shares = "; ".join(f"{title} {100 * p.nearest:.0f} %" for title, p in planes.items())
    text = f"Examples whose nearest class weight in the plane is that of their class: {shares}."
    colour = charts.by_name(charts.colours([str(c) for c in classes]), "class")
    base = alt.Chart(charts.rows(points)).encode(x=charts.bare("x"), y=charts.bare("y"), color=colour)
    marks = base.transform_filter("!datum.weight").mark_point(filled=True, size=14, opacity=0.6)
    numbers = base.transform_filter("datum.weight").mark_text(fontSize=16, fontWeight="bold", stroke=charts.PAGE,
                                                              strokeWidth=0.4).encode(text="class:N")  # fmt: skip
    drawn = charts.faceted(alt.layer(marks, numbers), list(planes), 3, height=240)
    caption = f"A mark is a test example where t-SNE puts it, a number the weight of that class. {text}"
    return Chart("Features with the weights of the classes", caption, drawn, text, wide=len(planes) > 1)


KIND = SectionKind("FedDW's relations between classes", (ClassRelations,), section)
