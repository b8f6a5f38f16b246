"""FedDW and every method with its term: how near the classifier came to the soft labels, and what that told whom.

FedDW, the paper P004 of `unskew reproduce feddw/...`; figure numbers are the paper's.

Notation   SL       soft labels, (classes, classes): row c is the mean prediction for examples of class c
           CR       class relations, (classes, classes): row c is softmax((W W^T)_c), W the classifier's weight
           ||w_c||  length of row c of W, no unit

SL and CR side by side with ||SL - CR||_F by round are Fig. 8, ||w_c|| against the share of class c Fig. 4.  The share
is that of all clients' training examples, from partition.json; no method with the term gives it away or needs it.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.path import Path as Shape
from matplotlib.ticker import MaxNLocator

from unskew.report import figures, tables
from unskew.report.hcct import BLUE, in_rows, shade, shades
from unskew.report.record import Record, Row, facts_of
from unskew.report.section import Chart, Entry, Section, Table

KEYS = frozenset({"epsilon", "seen"})

MOST_SHOWN = 4  # methods whose matrices are drawn

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Relations:
    """SL, and CR beside it where the method has one global model; shares in [0, 1]."""

    round: int
    sl: Floats
    cr: Floats | None
    distance: float | None


@dataclass(frozen=True)
class Privacy:
    """What the uploads of the client asked most often told by the end: `epsilon` is None if nothing is guaranteed."""

    epsilon: float | None
    delta: float | None
    uploads: int | None
    covers: str
    server: str
    clients: str

    @property
    def words(self) -> str:
        """The guarantee in a sentence."""
        if self.epsilon is None:
            return "No guarantee."
        return (
            f"ε = {self.epsilon:.3g} at δ = {self.delta:g} after {self.uploads:,} uploads of the client asked most "
            f"often. Covers {self.covers}."
        )


@dataclass(frozen=True, eq=False)
class Term:
    """A method with FedDW's term, over a run.

    Attributes:
        distance: ||SL - CR||_F by round over seeds, None where there is no global model.
        seed: Of the matrices.
        shown: SL and CR at its first, middle and last round; fewer in a short run, none with many classes.
        classes: How many the matrices would have.
        norms: ||w_c|| in the last round, by seed.
        shares: Class shares of all training examples, by seed.
        told: The weakest guarantee over the seeds, and who saw what.
    """

    method: str
    distance: tables.Curve | None
    seed: int
    shown: tuple[Relations, ...]
    classes: int
    norms: Mapping[int, tuple[float, ...]]
    shares: Mapping[int, tuple[float, ...]]
    told: Privacy


@dataclass
class _Seed:
    """What is kept of a seed's rounds."""

    rounds: list[int] = field(default_factory=list)
    distance: dict[int, float] = field(default_factory=dict)
    norms: tuple[float, ...] = ()
    told: Privacy | None = None


def term(record: Record, method: str) -> Term | None:
    """Read a method's facts; None if no seed that counts has any.

    Raises:
        RunError: If a matrix is not square, holds what is no number, or a guarantee is incomplete.
    """
    counted = set(tables.counted(record, method))
    seeds: dict[int, _Seed] = {}
    for seed, at, facts in facts_of(record, method):
        if seed not in counted:
            continue
        kept = seeds.setdefault(seed, _Seed())
        kept.rounds.append(at)
        if "distance" in facts.values:
            kept.distance[at] = facts.number("distance")
        if "class_norms" in facts.values:
            kept.norms = _row(facts, "class_norms", facts.items("class_norms"))
        kept.told = read_privacy(facts)
    if not seeds:
        return None
    first = min(seeds)
    rounds = seeds[first].rounds
    wanted = {rounds[0], rounds[(len(rounds) - 1) // 2], rounds[-1]}
    # Read once more: matrices of all rounds are more than need be held.
    shown = [read_relations(at, row) for s, at, row in facts_of(record, method) if s == first and at in wanted]
    shares = {s: _shares(record, s) for s in seeds if s in record.partitions}
    return Term(
        method=method,
        distance=_curve([kept.distance for kept in seeds.values()]),
        seed=first,
        shown=tuple(r for r in shown if r is not None),
        classes=max((len(s) for s in shares.values()), default=0),
        norms={s: kept.norms for s, kept in seeds.items() if kept.norms},
        shares=shares,
        told=max((k.told for k in seeds.values() if k.told is not None), key=_weakness),
    )


def read_relations(at: int, facts: Row) -> Relations | None:
    """SL and CR of a round; None where the method has left them out.

    Raises:
        RunError: If one is not a square matrix of numbers, or they differ in size.
    """
    if "sl" not in facts.values:
        return None
    sl = _matrix(facts, "sl")
    cr = _matrix(facts, "cr") if "cr" in facts.values else None
    if cr is not None and cr.shape != sl.shape:
        raise facts.refuse(f"sl and cr must have one size, got {len(sl)} and {len(cr)} classes")
    return Relations(at, sl, cr, facts.number("distance") if "distance" in facts.values else None)


def read_privacy(facts: Row) -> Privacy:
    """The guarantee of a round's facts.

    Raises:
        RunError: If an epsilon stands without delta, uploads or what it covers.
    """
    seen = facts.inner("seen")
    server, clients = seen.text("server"), seen.text("clients")
    if isinstance(facts.values["epsilon"], str):
        return Privacy(None, None, None, "", server, clients)
    return Privacy(
        facts.number("epsilon"), facts.number("delta"), facts.whole("uploads"), facts.text("covers"), server, clients
    )


def _weakness(told: Privacy) -> float:
    return math.inf if told.epsilon is None else told.epsilon


def _row(facts: Row, name: str, items: Sequence[object]) -> tuple[float, ...]:
    found = []
    for value in items:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise facts.refuse(f"{name} must hold numbers, got {value!r:.60}")
        found.append(float(value))
    return tuple(found)


def _matrix(facts: Row, name: str) -> Floats:
    rows = []
    for items in facts.items(name):
        if not isinstance(items, list):
            raise facts.refuse(f"{name} must hold lists, got {items!r:.60}")
        rows.append(_row(facts, name, items))
    if not rows or any(len(row) != len(rows) for row in rows):
        raise facts.refuse(f"{name} must be a square matrix, got {len(rows)} rows")
    return np.array(rows)


def _shares(record: Record, seed: int) -> tuple[float, ...]:
    counts = np.array(record.partitions[seed].label_counts, dtype=np.float64).sum(axis=0)
    return tuple((counts / counts.sum()).tolist()) if counts.ndim and counts.sum() > 0 else ()


def _curve(seeds: Sequence[Mapping[int, float]]) -> tables.Curve | None:
    rounds = sorted(set.intersection(*(set(s) for s in seeds))) if seeds else []
    if not rounds:
        return None
    columns = [[s[t] for s in seeds] for t in rounds]
    return tables.Curve(
        tuple(map(float, rounds)),
        tuple(map(statistics.fmean, columns)),
        tuple(map(min, columns)),
        tuple(map(max, columns)),
        len(seeds),
    )


# ---------------------------------------------------------------- the section
def section(record: Record, methods: Sequence[str], marks: Mapping[str, figures.Look]) -> Section | None:
    """What FedDW's term adds to a report; None if there is no round that counts.

    Raises:
        RunError: If the facts contradict themselves.
    """
    found = [t for m in methods if (t := term(record, m)) is not None]
    if not found:
        return None
    charts = [_distance_chart(found, marks), _norms_chart(found, marks)]
    charts += [_relations_chart(t, f"relations{i}") for i, t in enumerate(found[:MOST_SHOWN])]
    drawn = in_rows([c for c in charts if c is not None])
    return Section("Soft labels and class relations", lead(found), drawn, (_told(found, marks),))


def lead(found: Sequence[Term]) -> str:
    """What came of the term, a sentence for each method, and what is not drawn."""
    said = [
        f"{t.method}: the distance between soft labels and class relations goes from {t.distance.mean[0]:.3f} in round "
        f"{t.distance.x[0]:g} to {t.distance.mean[-1]:.3f} in round {t.distance.x[-1]:g}."
        if t.distance is not None
        else f"{t.method}: no global model, so no class relations to hold against the soft labels."
        for t in found
    ]
    many = [t for t in found if not t.shown]
    if many:
        classes = max(t.classes for t in many)
        said.append(
            f"The matrices of {', '.join(t.method for t in many)} are not drawn: a run keeps them for up to 20 classes"
            + (f", and this one has {classes}." if classes else ".")
        )
    if len(found) > MOST_SHOWN:
        said.append(f"Matrices are drawn for the first {MOST_SHOWN} methods.")
    return " ".join(said)


def _told(found: Sequence[Term], marks: Mapping[str, figures.Look]) -> Table:
    return Table(
        "What each party learned from the soft labels, and what is guaranteed about them",
        (("Method", ""), ("Guarantee", ""), ("The server saw", ""), ("Clients saw", "")),
        tuple(
            Entry(t.method, (t.told.words, _sentence(t.told.server), _sentence(t.told.clients)),
                  figures.swatch(marks[t.method]))
            for t in found
        ),
        "The smaller ε, the less an upload tells; of several seeds the largest is given. Models and what else a method "
        "sends beside the soft labels have no guarantee.",
        frozenset({1, 2, 3}),
    )  # fmt: skip


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


# ---------------------------------------------------------------- figures
def _distance_chart(found: Sequence[Term], marks: Mapping[str, figures.Look]) -> Chart | None:
    lines = [figures.Line(t.method, marks[t.method], t.distance) for t in found if t.distance is not None]
    if not lines:
        return None
    title = "Soft labels against class relations by round"
    ends = "; ".join(f"{x.name} from {x.curve.mean[0]:.3f} to {x.curve.mean[-1]:.3f}" for x in lines)
    svg = figures.lines_chart("dw-distance", lines, "round", "distance ||SL − CR||, no unit", 1.0, f"{title}: {ends}.")
    band = "Band: lowest to highest seed." if max(x.curve.seeds for x in lines) > 1 else "One seed: no band."
    classes = max(t.classes for t in found)
    caption = (
        "How far the relations between classes in the global model’s last layer are from what the clients’ models say "
        "of each class: the Frobenius norm of the difference of the two matrices, 0 if they are equal"
        + (f" and at most {math.sqrt(2 * classes):.2f} for {classes} classes. " if classes else ". ")
        + f"The term pulls it down, soft labels that grow sharper push it up. {band}"
    )
    return Chart(title, caption, svg, tuple((x.name, figures.swatch(x.look)) for x in lines))


def _norms_chart(found: Sequence[Term], marks: Mapping[str, figures.Look]) -> Chart | None:
    drawn = [
        (t, [(s, n) for s, n in t.norms.items() if len(t.shares.get(s, ())) == len(n)])
        for t in found
    ]  # fmt: skip
    drawn = [(t, rows) for t, rows in drawn if rows]
    if not drawn:
        return None
    told, seeds = [], 0
    with figures.style("dw-norms"):
        figure = Figure(figsize=(380 / 72, 250 / 72), layout="constrained")
        axes = figure.add_subplot()
        axes.set_axisbelow(True)
        for t, rows in drawn:
            look, seeds = marks[t.method], max(seeds, len(rows))
            xs = [100 * v for s, _ in rows for v in t.shares[s]]
            ys = [v for _, norms in rows for v in norms]
            axes.plot(
                xs, ys, linestyle="none", marker=Shape(np.array(look.marker)), markersize=6.5, alpha=0.8, mew=0.8,
                markerfacecolor=look.colour if look.filled else "none", markeredgecolor=look.colour,
            )  # fmt: skip
            if len(drawn) == 1 and len(rows) == 1:
                for c, (x, y) in enumerate(zip(xs, ys, strict=True)):
                    axes.annotate(str(c), (x, y), (5, 3), textcoords="offset points", fontsize=9)
            r = correlation(xs, ys)
            told.append(f"{t.method} {'–' if r is None else _signed(r)}")
        axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.set_xlabel("share of all clients’ training examples, %")
        axes.set_ylabel("length of the class’s weights, no unit")
        title = "Weight of a class against its share"
        svg = figures.markup(figure, "dw-norms", f"{title}; correlation: {'; '.join(told)}.")
    caption = (
        "Each mark is a class: how long its row of the last layer is after the last round, against how much of all "
        "clients’ training data it makes up. A layer that favours frequent classes has its marks rise to the right. "
        f"Correlation: {', '.join(told)}." + (f" {seeds} seeds together." if seeds > 1 else "")
        + (" Numbers are the classes." if len(drawn) == 1 and seeds == 1 else "")
    )  # fmt: skip
    return Chart(title, caption, svg, tuple((t.method, figures.swatch(marks[t.method])) for t, _ in drawn))


def correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Pearson's; None where one of the two does not vary, or by no more than rounding."""
    a, b = (np.array(v) - np.mean(v) for v in (x, y))
    if min(float(np.abs(a).max()) / max(map(abs, x)), float(np.abs(b).max()) / max(*map(abs, y), 1e-30)) < 1e-9:
        return None
    return float(a @ b / math.sqrt(float(a @ a) * float(b @ b)))


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _relations_chart(t: Term, name: str) -> Chart | None:
    if not t.shown:
        return None
    both = any(r.cr is not None for r in t.shown)
    kinds = ("SL", "CR") if both else ("SL",)
    classes, columns = len(t.shown[0].sl), len(t.shown)
    # Two matrices above each other; of one round alone, or of SL alone, the figure stays as wide as its columns.
    width = figures.WIDE * columns / 3
    with figures.style(name):
        figure = Figure(figsize=(width / 72, (width / columns * len(kinds) * 0.94 + 30) / 72), layout="constrained")
        grid = np.atleast_1d(figure.subplots(len(kinds), columns)).reshape(len(kinds), columns)
        for i, kind in enumerate(kinds):
            for j, relations in enumerate(t.shown):
                axes = grid[i, j]
                matrix = relations.sl if kind == "SL" else relations.cr
                if matrix is None:
                    axes.set_axis_off()
                    continue
                axes.imshow(shades(figures.opacity(np.clip(matrix, 0, 1))), interpolation="none", origin="upper")
                axes.grid(visible=False)
                ticks = range(0, classes, max(1, math.ceil(classes / 10)))
                axes.set_xticks(ticks)
                axes.set_yticks(ticks)
                for spine in axes.spines.values():
                    spine.set_visible(True)
                if i == 0:
                    apart = "" if relations.distance is None else f", distance {relations.distance:.3f}"
                    axes.set_title(f"round {relations.round}{apart}", fontsize=11)
                if j == 0:
                    axes.set_ylabel(f"{kind}: class")
                if i == len(kinds) - 1:
                    axes.set_xlabel("as which class")
        told = "; ".join(_spelled(r) for r in t.shown)
        svg = figures.markup(figure, name, f"Soft labels and class relations of {t.method}, seed {t.seed}. {told}.")
    caption = (
        f"{t.method}, seed {t.seed}. SL: row c is what the clients’ models predict on average for their examples of "
        "class c, a perfect classifier’s is the diagonal alone."
        + (
            " CR: row c is how the weights of class c in the global model’s last layer relate to those of every class "
            "(softmax of their products). The term pulls CR towards SL."
            if both
            else " The method has no global model, so there are no class relations beside it."
        )
    )
    legend: tuple[tuple[str, Markup], ...] = tuple(
        (f"{100 * v:g} %", shade(BLUE, float(figures.opacity(v)))) for v in (0.0, 0.05, 0.25, 0.5, 1.0)
    )
    return Chart(f"Soft labels and class relations of {t.method}", caption, svg, legend, wide=columns > 1)


def _spelled(r: Relations) -> str:
    def on(m: Floats) -> str:
        return f"{float(np.diagonal(m).mean()):.2f}"

    beside = "" if r.cr is None else f", of CR {on(r.cr)}"
    apart = "" if r.distance is None else f", distance {r.distance:.3f}"
    return f"round {r.round}: mean diagonal of SL {on(r.sl)}{beside}{apart}"
