"""FedDW and every method with its term: how near the classifier came to the soft labels, and what they reveal to whom.

`unskew.algorithms.feddw` has the citation; figure numbers are the paper's.

Notation   SL       soft labels, (classes, classes): row c is the mean prediction for examples of class c
           CR       class relations, (classes, classes): row c is softmax((W W^T)_c), W the classifier's weight
           ||w_c||  length of row c of W, no unit

SL and CR side by side with ||SL - CR||_F by round are Fig. 8, ||w_c|| against the share of class c Fig. 4.  The share
is that of all clients' training examples, from partition.json; no method with the term reveals or needs it.
Every report has accuracy by round, Fig. 7.

The last part is for reproductions, which have no run folder of their own: accuracy by mu, Fig. 6, and features in the
plane with the class weights among them, Fig. 5.  Their shares are of the clients that trained last.  Each function
turns numbers into a `Chart`, which `svg_file.document` turns into a file.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from matplotlib.path import Path as Shape
from matplotlib.ticker import MaxNLocator

from unskew.errors import ConfigError
from unskew.info import ClassRelations, Privacy
from unskew.keys import Key
from unskew.record.reader import Record, info_of
from unskew.report import figures, stats, tables
from unskew.report.section import Chart, Section, SectionKind, Table, TableRow, in_rows
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
        classes: Number of classes of the matrices.
        norms: ||w_c|| in the last round, by seed.
        shares: Class shares of all training examples, by seed.
        privacy: The weakest guarantee over the seeds, and what each party saw.
    """

    method: str
    distance: stats.Curve | None
    seed: int
    shown: tuple[Relations, ...]
    classes: int
    norms: Mapping[int, tuple[float, ...]]
    shares: Mapping[int, tuple[float, ...]]
    privacy: Privacy


@dataclass
class _Seed:
    """Statistics of one seed's rounds."""

    rounds: list[int] = field(default_factory=list)
    distance: dict[int, float] = field(default_factory=dict)
    norms: tuple[float, ...] = ()
    privacy: Privacy | None = None


def history(record: Record, method: str) -> DWHistory | None:
    """A method's info over a run; None if no seed that counts has any.

    Raises:
        RunError: If the info is not as a run writes it.
    """
    counted = set(tables.counted_seeds(record, method))
    seeds: dict[int, _Seed] = {}
    for seed, at, info in info_of(record, method, ClassRelations):
        if seed not in counted:
            continue
        kept = seeds.setdefault(seed, _Seed())
        kept.rounds.append(at)
        if info.distance is not None:
            kept.distance[at] = info.distance
        kept.norms = info.class_norms or kept.norms
        kept.privacy = info.privacy
    if not seeds:
        return None
    first = min(seeds)
    rounds = seeds[first].rounds
    wanted = {rounds[0], rounds[(len(rounds) - 1) // 2], rounds[-1]}
    # Read the info again: matrices of all rounds are too many to hold.
    matrices = [
        relations(at, info) for s, at, info in info_of(record, method, ClassRelations) if s == first and at in wanted
    ]
    shares = {s: _shares(record, s) for s in seeds if s in record.partitions}
    return DWHistory(
        method=method,
        distance=stats.curve_by_round([kept.distance for kept in seeds.values()]),
        seed=first,
        shown=tuple(r for r in matrices if r is not None),
        classes=max((len(s) for s in shares.values()), default=0),
        norms={s: kept.norms for s, kept in seeds.items() if kept.norms},
        shares=shares,
        privacy=max((k.privacy for k in seeds.values() if k.privacy is not None), key=lambda p: p.bound),
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
def section(record: Record, methods: Sequence[str], marks: Mapping[str, figures.LineStyle]) -> Section | None:
    """The section on FedDW's term; None if there is no round that counts.

    Raises:
        RunError: If the info contradicts itself.
    """
    histories = [t for m in methods if (t := history(record, m)) is not None]
    if not histories:
        return None
    charts = [_distance_chart(histories, marks), _norms_chart(histories, marks)]
    charts += [
        relations_chart(f"relations{i}", f"{t.method}, seed {t.seed}", t.shown)
        for i, t in enumerate(histories[:MOST_SHOWN])
        if t.shown
    ]
    drawn = in_rows([c for c in charts if c is not None])
    return Section("Soft labels and class relations", lead(histories), drawn, (_privacy_table(histories, marks),))


def lead(histories: Sequence[DWHistory]) -> str:
    """Summarise the effect of the term in a sentence for each method, and name the figures left out."""
    sentences = [
        f"{t.method}: the distance between soft labels and class relations goes from {t.distance.mean[0]:.3f} in round "
        f"{t.distance.x[0]:g} to {t.distance.mean[-1]:.3f} in round {t.distance.x[-1]:g}."
        if t.distance is not None
        else f"{t.method}: no global model, so no class relations to hold against the soft labels."
        for t in histories
    ]
    many = [t for t in histories if not t.shown]
    if many:
        classes = max(t.classes for t in many)
        sentences.append(
            f"The matrices of {', '.join(t.method for t in many)} are not drawn: a run keeps them for up to 20 classes"
            + (f", and this one has {classes}." if classes else ".")
        )
    if len(histories) > MOST_SHOWN:
        sentences.append(f"Matrices are drawn for the first {MOST_SHOWN} methods.")
    return " ".join(sentences)


def _privacy_table(histories: Sequence[DWHistory], marks: Mapping[str, figures.LineStyle]) -> Table:
    return Table(
        "What each party learned from the soft labels, and what is guaranteed about them",
        (("Method", ""), ("Guarantee", ""), ("The server saw", ""), ("Clients saw", "")),
        tuple(
            TableRow(t.method, (t.privacy.guarantee, sentence(t.privacy.server), sentence(t.privacy.clients)),
                  figures.swatch(marks[t.method]))
            for t in histories
        ),
        "The smaller ε, the less an upload tells; of several seeds the largest is given. Models and what else a method "
        "sends beside the soft labels have a guarantee only where it is named.",
        frozenset({1, 2, 3}),
    )  # fmt: skip


# ---------------------------------------------------------------- figures
def _distance_chart(histories: Sequence[DWHistory], marks: Mapping[str, figures.LineStyle]) -> Chart | None:
    lines = [figures.Line(t.method, marks[t.method], t.distance) for t in histories if t.distance is not None]
    if not lines:
        return None
    title = "Soft labels against class relations by round"
    ends = "; ".join(f"{x.name} from {x.curve.mean[0]:.3f} to {x.curve.mean[-1]:.3f}" for x in lines)
    svg = figures.lines_chart("dw-distance", lines, "round", "distance ||SL − CR||, no unit", 1.0, f"{title}: {ends}.")
    band = "Band: lowest to highest seed." if max(x.curve.seeds for x in lines) > 1 else "One seed: no band."
    classes = max(t.classes for t in histories)
    caption = (
        "How far the relations between classes in the global model’s last layer are from what the clients’ models say "
        "of each class: the Frobenius norm of the difference of the two matrices, 0 if they are equal"
        + (f" and at most {math.sqrt(2 * classes):.2f} for {classes} classes. " if classes else ". ")
        + f"The term pulls it down, soft labels that grow sharper push it up. {band}"
    )
    return Chart(title, caption, svg, tuple((x.name, figures.swatch(x.look)) for x in lines))


def _norms_chart(histories: Sequence[DWHistory], marks: Mapping[str, figures.LineStyle]) -> Chart | None:
    drawn = {
        t.method: [(t.shares[s], n) for s, n in t.norms.items() if len(t.shares.get(s, ())) == len(n)]
        for t in histories
    }
    drawn = {method: rows for method, rows in drawn.items() if rows}
    return norms_chart("dw-norms", drawn, "all clients’ training examples", marks) if drawn else None


Shared = tuple[Sequence[float], Sequence[float]]
"""Share and ||w_c|| of each class, under a seed."""


def norms_chart(
    name: str, drawn: Mapping[str, Sequence[Shared]], whose: str, marks: Mapping[str, figures.LineStyle] | None = None
) -> Chart:
    """Length of a class's weights against its share (Fig. 4), a mark for each class and seed.

    Args:
        name: Prefix of the figure's ids, unique on its page.
        drawn: Values of each seed, by method; at least one.
        whose: Owner of the shares, in words.
        marks: Looks of the methods; distinct ones by default.
    """
    marks = marks or dict(zip(drawn, figures.looks([False] * len(drawn)), strict=True))
    correlations, seeds = [], max(map(len, drawn.values()))
    with figures.style(name):
        figure, axes = figures.chart(250)
        axes.set_axisbelow(True)
        for method, rows in drawn.items():
            look = marks[method]
            xs = [100 * v for shares, _ in rows for v in shares]
            ys = [v for _, norms in rows for v in norms]
            axes.plot(
                xs, ys, linestyle="none", marker=Shape(np.array(look.marker)), markersize=6.5, alpha=0.8, mew=0.8,
                markerfacecolor=look.colour if look.filled else "none", markeredgecolor=look.colour,
            )  # fmt: skip
            if len(drawn) == 1 and len(rows) == 1:
                for c, (x, y) in enumerate(zip(xs, ys, strict=True)):
                    axes.annotate(str(c), (x, y), (5, 3), textcoords="offset points", fontsize=9)
            r = correlation(xs, ys)
            correlations.append(f"{method} {'–' if r is None else _signed(r)}")
        axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.set_xlabel(f"share of {whose}, %")
        axes.set_ylabel("length of the class’s weights, no unit")
        title = "Weight of a class against its share"
        svg = figures.markup(figure, name, f"{title}; correlation: {'; '.join(correlations)}.")
    caption = (
        "Each mark is a class: how long its row of the last layer is after the last round, against how much of "
        f"{whose} it makes up. A layer that favours frequent classes has its marks rise to the right. "
        f"Correlation: {', '.join(correlations)}." + (f" {seeds} seeds together." if seeds > 1 else "")
        + (" Numbers are the classes." if len(drawn) == 1 and seeds == 1 else "")
    )  # fmt: skip
    return Chart(title, caption, svg, tuple((method, figures.swatch(marks[method])) for method in drawn))


def correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Pearson's correlation; None if one of the two does not vary by more than rounding."""
    a, b = (np.array(v) - np.mean(v) for v in (x, y))
    if min(float(np.abs(a).max()) / max(map(abs, x)), float(np.abs(b).max()) / max(*map(abs, y), 1e-30)) < 1e-9:
        return None
    return float(a @ b / math.sqrt(float(a @ a) * float(b @ b)))


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def relations_chart(name: str, method: str, matrices: Sequence[Relations]) -> Chart:
    """SL and CR side by side, a row for each round (Fig. 8); only SL if there is no CR.

    Args:
        name: Prefix of the figure's ids, unique on its page.
        method: Title of the matrices: a method's label, and the seed.
        matrices: Matrices to draw, at least one, all with the same number of classes.
    """
    both = any(r.cr is not None for r in matrices)
    # SL is drawn beside its CR; without CR, the rounds are drawn side by side.
    panels: list[tuple[str, Floats | None]] = []
    for r in matrices:
        panels.append((f"SL, round {r.round}", r.sl))
        apart = "" if r.distance is None else f", distance {r.distance:.3f}"
        panels += [(f"CR{apart}", r.cr)] if both else []
    classes, rows = len(matrices[0].sl), math.ceil(len(panels) / 2)
    with figures.style(name):
        figure = figures.sheet(180 * rows + 16)
        grid = figure.subplots(rows, 2, squeeze=False)
        for k, axes in enumerate(grid.flat):
            title, matrix = panels[k] if k < len(panels) else ("", None)
            if matrix is None:
                axes.set_axis_off()
                continue
            axes.imshow(figures.shades(figures.opacity(np.clip(matrix, 0, 1))), interpolation="none", origin="upper")
            axes.grid(visible=False)
            ticks = range(0, classes, max(1, math.ceil(classes / 10)))
            axes.set_xticks(ticks)
            axes.set_yticks(ticks)
            axes.tick_params(labelsize=9)
            for spine in axes.spines.values():
                spine.set_visible(True)
            axes.set_title(title, fontsize=10)
            if k % 2 == 0:
                axes.set_ylabel("class")
            if k + 2 >= len(panels):
                axes.set_xlabel("as which class")
        description = "; ".join(_matrices_in_words(r) for r in matrices)
        svg = figures.markup(figure, name, f"Soft labels and class relations of {method}. {description}.")
    caption = (
        "SL: row c is what the clients’ models predict on average for their examples of class c, a perfect "
        "classifier’s is the diagonal alone."
        + (
            " CR: row c is how the weights of class c in the global model’s last layer relate to those of every class "
            "(softmax of their products). The term pulls CR towards SL; their distance is 0 if they are equal."
            if both
            else " The method has no global model, so there are no class relations beside it."
        )
    )
    steps = (0.0, 0.05, 0.25, 0.5, 1.0)
    legend = tuple((f"{100 * v:g} %", figures.shade(figures.BLUE, float(figures.opacity(v)))) for v in steps)
    return Chart(f"Soft labels and class relations of {method}", caption, svg, legend)


def _matrices_in_words(r: Relations) -> str:
    def on(m: Floats) -> str:
        return f"{float(np.diagonal(m).mean()):.2f}"

    relation_text = "" if r.cr is None else f", of CR {on(r.cr)}"
    apart = "" if r.distance is None else f", distance {r.distance:.3f}"
    return f"round {r.round}: mean diagonal of SL {on(r.sl)}{relation_text}{apart}"


# ---------------------------------------------------------------- for reproductions
def mu_chart(name: str, curves: Mapping[str, Mapping[float, Sequence[float]]]) -> Chart:
    """Accuracy by the weight of the term (Fig. 6), with mu = 0, the method without it, at the left end.

    Args:
        name: Prefix of the figure's ids, unique on its page.
        curves: Name of a line, such as a data set -> {mu: accuracy of each seed}; accuracies are fractions.

    Raises:
        ConfigError: If there is no line, a mu is negative or not finite, or one has no accuracy.
    """
    values = [v for by in curves.values() for v in by]
    if not values or any(not 0 <= v < math.inf for v in values):
        raise ConfigError(f"mu must be finite and >= 0, with a line that has one, got {sorted(set(values))!r:.60}")
    for line, by in curves.items():
        empty = [mu for mu, seeds in by.items() if not seeds]
        if empty:
            raise ConfigError(f"every mu needs the accuracy of a seed, {line} has none at mu {empty[0]:g}")
    mus = sorted(set(values))
    powers = [math.log10(v) for v in mus if v > 0]
    # Zero has no logarithm: it is drawn a decade left of the smallest.
    at = {v: math.log10(v) if v > 0 else min(powers, default=0.0) - 1 for v in mus}
    marks = dict(zip(curves, figures.looks([False] * len(curves)), strict=True))
    most = max(len(seeds) for by in curves.values() for seeds in by.values())
    with figures.style(name):
        figure, axes = figures.chart(250)
        axes.set_axisbelow(True)
        for line, by in curves.items():
            own = sorted(by)
            xs, means = [at[v] for v in own], [100 * statistics.fmean(by[v]) for v in own]
            low, high = ([100 * end(by[v]) for v in own] for end in (min, max))
            if most > 1:
                axes.fill_between(xs, low, high, color=marks[line].colour, alpha=0.16, linewidth=0)
            axes.plot(xs, means, **figures.drawn(marks[line]))
        axes.set_xticks(list(at.values()), [f"{v:g}" for v in mus])
        axes.set_xlabel("weight of the term mu, no unit, log scale" + (" (0: without it)" if 0 in mus else ""))
        axes.set_ylabel("global test accuracy, %")
        ends = "; ".join(f"{line} {_best(by)}" for line, by in curves.items())
        svg = figures.markup(figure, name, f"Accuracy by the weight of FedDW’s term, mean over seeds: {ends}.")
    caption = (
        "Accuracy on the global test set in the last round by how much the term counts in the loss. Where a line is "
        "flat, the choice does not matter there"
        + ("; right of 0 and above it, the term helps. " if 0 in mus else ". ")
        + f"Best: {ends}. "
        + ("Line: mean over seeds; band: lowest to highest seed." if most > 1 else "One seed: no band.")
    )
    legend = tuple((line, figures.swatch(look)) for line, look in marks.items())
    return Chart("How much the weight of the term matters", caption, svg, legend)


def help_chart(name: str, apart: Mapping[str, Sequence[float]]) -> Chart:
    """Gain of methods from the term (Table IV), with the interval of each mean.

    Args:
        name: Prefix of the figure's ids, unique on its page.
        apart: Method -> global test accuracy with the term minus that without it, by seed; fractions.

    Raises:
        ConfigError: If there is no method, or one has no seed.
    """
    if not apart or not all(apart.values()):
        raise ConfigError(f"help_chart needs a method, with a seed each, got {dict(apart)!r:.60}")
    marks = dict(zip(apart, figures.looks([False] * len(apart)), strict=True))
    rows = [tables.difference(method, dict(enumerate(values))) for method, values in apart.items()]
    gains = "; ".join(f"{row.method} {tables.bracket(row)}" for row in rows)
    svg = figures.differences_chart(
        name, rows, marks, "that without the term", f"Accuracy with FedDW’s term minus that without it: {gains}."
    )
    caption = (
        "Accuracy on the global test set in the last round with the term, minus that of the same method and seed "
        "without it. Marker: mean; bar: 95 % interval, where there is one; ticks: seeds. A bar clear of zero is a "
        "difference."
    )
    return Chart("What the term adds", caption, svg)


def _best(by: Mapping[float, Sequence[float]]) -> str:
    mu = max(by, key=lambda v: statistics.fmean(by[v]))
    return f"{100 * statistics.fmean(by[mu]):.1f} % at mu {mu:g}"


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
        ConfigError: If the shapes do not fit, there are fewer than three features, or a number is not finite.
    """
    from sklearn.manifold import TSNE  # an import that no report needs

    x, w = (np.asarray(v, dtype=np.float64) for v in (features, weights))
    if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[1] or len(labels) != len(x) or len(x) < 3:
        raise ConfigError(
            "features (examples, dimensions), at least 3, need a label each and weights (classes, dimensions) of as "
            f"many dimensions, got {x.shape}, {len(labels)} labels and {w.shape}"
        )
    if not (np.isfinite(x).all() and np.isfinite(w).all()):
        raise ConfigError("features and weights must be finite numbers; a model that diverged has no such figure")
    both = np.concatenate([x, w])
    laid = TSNE(
        n_components=2, metric="cosine", init="pca", perplexity=min(30.0, (len(both) - 1) / 3),
        random_state=key.number() % 2**32,
    ).fit_transform(both)  # fmt: skip
    return Plane(np.asarray(laid[: len(x)], dtype=np.float64), np.asarray(labels), np.asarray(laid[len(x) :], float))


def features_chart(name: str, planes: Mapping[str, Plane]) -> Chart:
    """Features in the plane, coloured by class, and each class's weight as its number (Fig. 5).

    Args:
        name: Prefix of the figure's ids, unique on its page.
        planes: Title of a panel, such as a method -> its features; all with the same number of classes.

    Raises:
        ConfigError: If there is no panel, or they differ in classes.
    """
    sizes = sorted({len(p.weights) for p in planes.values()})
    if len(sizes) != 1:
        raise ConfigError(f"planes must be of one number of classes, got {sizes or 'no plane'}")
    looks, columns = figures.looks([False] * sizes[0]), min(3, len(planes))
    rows = math.ceil(len(planes) / columns)
    width = 380 if columns == 1 else figures.WIDE
    with figures.style(name):
        figure = figures.sheet((0.85 * width / columns + 20) * rows, width)
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in grid.flat[len(planes) :]:
            axes.set_axis_off()
        for axes, (title, p) in zip(grid.flat, planes.items(), strict=False):
            for c, look in enumerate(looks):
                mine = p.points[p.labels == c]
                axes.plot(
                    mine[:, 0], mine[:, 1], linestyle="none", marker=Shape(np.array(look.marker)), markersize=4,
                    alpha=0.6, mew=0, color=look.colour,
                )  # fmt: skip
            for c, look in enumerate(looks):
                axes.annotate(
                    str(c), p.weights[c], ha="center", va="center", fontsize=11, fontweight="bold", color=look.colour,
                    annotation_clip=False,
                    bbox={
                        "boxstyle": "circle,pad=0.25", "facecolor": figures.PAGE, "edgecolor": figures.INK, "alpha": 0.7
                    },
                )  # fmt: skip
            axes.update_datalim(p.weights)  # an annotation makes no room for itself
            axes.set_xticks([])
            axes.set_yticks([])
            axes.margins(0.08)
            axes.grid(visible=False)
            for spine in axes.spines.values():
                spine.set_visible(True)
            axes.set_title(title, fontsize=11)
        shares = "; ".join(f"{title} {100 * nearest(p):.0f} %" for title, p in planes.items())
        sentence = f"Examples whose nearest class weight in the plane is that of their class: {shares}."
        svg = figures.markup(figure, name, f"Features by class with the class weights among them. {sentence}")
    caption = (
        "Each mark is a test example where t-SNE places what the last layer gets of it, in its class’s colour; each "
        "circled number is that class’s weight in the last layer. Who is near whom has a meaning (by angle), axes and "
        "the size of gaps have none. A layer in accord with its features has every number in its class’s cloud; "
        f"numbers in one place are weights of nearly one direction. {sentence}"
    )
    legend = tuple((str(c), figures.swatch(look, line=False)) for c, look in enumerate(looks))
    return Chart("Features with the weights of the classes", caption, svg, legend, wide=columns > 1)


def nearest(p: Plane) -> float:
    """Share of the examples whose nearest class weight in the plane is that of their own class."""
    gaps = np.linalg.norm(p.points[:, None] - p.weights, axis=2)
    return float((gaps.argmin(axis=1) == p.labels).mean())


KIND = SectionKind("FedDW's relations between classes", (ClassRelations,), section)
