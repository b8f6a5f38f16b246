"""FedDW and methods with its term: distance of the classifier from the soft labels, and what these reveal.

`unskew.algorithms.feddw` has the citation; figure numbers are the paper's.

Notation   SL       soft labels, (classes, classes): row c is the mean prediction for examples of class c
           CR       class relations, (classes, classes): row c is softmax((W W^T)_c), W the classifier's weight
           ||w_c||  length of row c of W, no unit

SL and CR with ||SL - CR||_F by round are Fig. 8, ||w_c|| against the share of class c Fig. 4.  The share is over all
clients' training examples, from partition.json; no method reveals it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import numpy.typing as npt

from unskew.info import ClassRelations
from unskew.record.reader import Record
from unskew.report import charts, stats, tables
from unskew.report.section import Chart, Section, SectionKind, seen, table

MOST_SHOWN = 4  # methods whose matrices are drawn

Floats = npt.NDArray[np.float64]
Shared = tuple[Sequence[float], Sequence[float]]
"""Share and ||w_c|| of each class, under a seed."""


def section(record: Record, methods: Sequence[str], marks: Mapping[str, str]) -> Section | None:
    """The section on FedDW's term; None without a counted round.

    Raises:
        RunError: If the info contradicts itself.
    """
    every = {m: seeds for m in methods if (seeds := tables.reported(record, m, ClassRelations))}
    if not every:
        return None
    by_round = {
        m: [{t: i.distance for t, i in rounds.items() if i.distance is not None} for rounds in seeds.values()]
        for m, seeds in every.items()
    }
    lines = {m: curve for m, values in by_round.items() if (curve := stats.curve_by_round(values)) is not None}
    norms = {m: pairs for m, seeds in every.items() if (pairs := _norms(record, seeds))}
    drawn = []
    if lines:
        title, caption = "Soft labels against class relations", "0 if they are equal. The term pulls it down."
        drawn.append(charts.lines(title, caption, lines, marks, "round", "‖SL − CR‖", log=True))
    drawn += [norms_chart(norms, "training examples", marks)] if norms else []
    for m, seeds in list(every.items())[:MOST_SHOWN]:
        seed, rounds = next(iter(seeds.items()))
        if shown := first_middle_last(rounds):
            drawn.append(relations_chart(f"{m}, seed {seed}", shown))
    without = ", ".join(m for m in every if m not in lines)
    lead = f"No class relations for {without}: no global model." if without else ""
    last = {m: [rounds[max(rounds)].privacy for rounds in seeds.values()] for m, seeds in every.items()}
    rows = [(m, *seen(max(of, key=lambda p: p.bound))) for m, of in last.items()]
    head = ["method", "guarantee", "the server saw", "clients saw"]
    note = "The largest ε of several seeds. It is about soft labels; models are covered only where they are named."
    learned = table("What each party learned from the soft labels", head, rows, note, [1, 2, 3])
    return Section("Soft labels and class relations", lead, tuple(drawn), (learned,))


def first_middle_last(rounds: Mapping[int, ClassRelations]) -> dict[int, ClassRelations]:
    """The first, the middle and the last round that have matrices (with many classes none has)."""
    every = sorted(rounds)
    drawn = dict.fromkeys((every[0], every[(len(every) - 1) // 2], every[-1]))
    return {t: rounds[t] for t in drawn if rounds[t].sl is not None}


def _norms(record: Record, seeds: Mapping[int, Mapping[int, ClassRelations]]) -> list[Shared]:
    """Shares and lengths of each seed, in the last round that has lengths."""
    pairs: list[Shared] = []
    for seed, rounds in seeds.items():
        norms = next((i.class_norms for _, i in sorted(rounds.items(), reverse=True) if i.class_norms), ())
        counts = np.array(record.partitions[seed].label_counts if seed in record.partitions else ()).sum(axis=0)
        if norms and counts.shape == (len(norms),) and counts.sum() > 0:
            pairs.append(((counts / counts.sum()).tolist(), norms))
    return pairs


# ---------------------------------------------------------------- figures
def norms_chart(drawn: Mapping[str, Sequence[Shared]], whose: str, marks: Mapping[str, str] | None = None) -> Chart:
    """Length of a class's weights by its share (Fig. 4), a mark for each class and seed.

    Args:
        drawn: Values of each seed, by method; at least one.
        whose: Whose shares they are, in words.
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
    return Chart(title, caption, chart)


def correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Pearson's correlation; None if one of the two is constant up to rounding."""
    if any(np.ptp(v) <= 1e-9 * max(*map(abs, v), 1e-30) for v in (x, y)):
        return None
    return float(np.corrcoef(x, y)[0, 1])


def relations_chart(method: str, rounds: Mapping[int, ClassRelations]) -> Chart:
    """SL and CR side by side, a row of panels for each round (Fig. 8); only SL if there is no CR.

    Args:
        method: Title of the matrices: a method's label, and the seed.
        rounds: The rounds, at least one, each with soft labels.
    """
    panels = {
        f"{name}, round {t}": np.array(matrix)
        for t, info in rounds.items()
        for name, matrix in (("SL", info.sl), ("CR", info.cr))
        if matrix is not None
    }
    cells = [
        {"panel": panel, "as": str(b), "class": str(a), "value": float(v)}
        for panel, matrix in panels.items()
        for (a, b), v in np.ndenumerate(np.clip(matrix, 0, 1))
    ]
    both = len(panels) > len(rounds)
    caption = "SL: row c is what the clients’ models predict on average for class c. Stronger colour is more. "
    caption += " CR: how its weights relate to those of each class. " * both
    caption += "; ".join(f"{name}: mean diagonal {np.diagonal(m).mean():.2f}" for name, m in panels.items())
    order = [str(c) for c in range(len(next(iter(panels.values()))))]
    shade = alt.Opacity("value:Q", legend=None, scale=alt.Scale(type="sqrt", domain=[0, 1], range=[0, 1]))
    squares = alt.Chart(charts.rows(cells)).mark_rect(color=charts.COLOURS[0]).encode(
        x=alt.X("as:N", sort=order, title="as which class"), y=alt.Y("class:N", sort=order, title="class"),
        opacity=shade, tooltip=["panel:N", "as:N", "class:N", "value:Q"],
    )  # fmt: skip
    drawn = charts.faceted(squares, list(panels), 2 if both else 3)
    return Chart(f"Soft labels and class relations of {method}", f"{caption}.", drawn, wide=True)


KIND = SectionKind("FedDW's relations between classes", (ClassRelations,), section)
