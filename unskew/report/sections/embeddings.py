"""The single round of FedDistr: its embeddings, their alignment, the images made from them, and the cost.

`unskew.algorithms.feddistr` has the equations, `unskew.server.alignment` the alignment.  FedPFT, its
cheap rival, is in the accuracy figure and in the table.

Embeddings in the plane are drawn as the server received them: the clients' images never reach it.  Figures that need
the prior are `generated_images`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib.path import Path as Shape
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from unskew.info import Embeddings, Mixtures
from unskew.record.reader import Record, method_tables
from unskew.report import figures, tables
from unskew.report.section import Chart, Section, SectionKind, Table, TableRow, in_rows
from unskew.report.sections.generated_images import gallery, latent_chart, latents
from unskew.report.sections.one_round import Match, OneRound, Uploads, one_round, principal
from unskew.units import MB
from unskew.words import counted, sentence

MOST_SHOWN = 2  # methods whose embeddings are drawn
MOST_NAMED = 120  # embeddings with their labels beside them
MOST_PAIRS = 18  # rows of the alignment


# ---------------------------------------------------------------- the section
def section(record: Record, methods: Sequence[str], marks: Mapping[str, figures.LineStyle]) -> Section | None:
    """The section on one-round methods; None if no seed that counts got that far.

    Raises:
        RunError: If the info contradicts itself.
    """
    runs = [r for m in methods if (r := one_round(record, m)) is not None]
    if not runs:
        return None
    charts: list[Chart | None] = [accuracy_chart(record, marks)]
    options, sentences = method_tables(record), []
    drawn = [(r, r.uploads) for r in runs if r.uploads is not None]
    for i, (r, uploads) in enumerate(drawn[:MOST_SHOWN]):
        name = f"{r.method}, seed {r.seed}"
        seen = latents(record, r, options.get(r.method, {}))
        charts += [] if isinstance(seen, str) else [latent_chart(f"latents{i}", name, seen)]
        sentences += [f"No latents are drawn for {r.method}: {seen}."] if isinstance(seen, str) else []
        charts += [plane_chart(f"plane{i}", name, uploads), alignment_chart(f"aligned{i}", name, uploads)]
        images = gallery(record, r, uploads, options.get(r.method, {}), f"gallery{i}")
        charts += [images] if isinstance(images, Chart) else []
        sentences += [_aligned(r, uploads)]
        sentences += [] if isinstance(images, Chart) else [images]
    sentences += [f"Embeddings are drawn for the first {MOST_SHOWN} methods."] if len(drawn) > MOST_SHOWN else []
    reached = against_rounds(record, [r.method for r in runs])
    return Section(
        "Embeddings and generated images",
        " ".join([*reached, *sentences]),
        in_rows([c for c in charts if c is not None]),
        (_privacy_table(runs, marks),),
    )


def against_rounds(record: Record, methods: Sequence[str]) -> list[str]:
    """Compare one-round methods with FedAvg's rounds, in sentences; empty without FedAvg or accuracies."""
    base = tables.reference(record)
    theirs = None if base is None else tables.cost_curve(record, base)
    if base is None or theirs is None or base in methods:
        return []
    by_round = tables.curve(record, base, record.headline.shared)
    assert by_round is not None, "what has a cost has rounds"
    first = next((k for k, x in enumerate(theirs.x) if x > 0), None)
    if first is None:  # of a run that was stopped before it was evaluated
        return []
    sentences = []
    for method in methods:
        mine = tables.cost_curve(record, method)
        if mine is None or not mine.x[-1]:
            continue
        end, sent = mine.mean[-1], mine.x[-1]
        text = (
            f"{method} is at {tables.percent(end)} % after one round, in which the server and all clients sent "
            f"{tables.amount(sent)} MB;"
        )
        at = next((k for k, a in enumerate(theirs.mean) if a >= end and k >= first), None)
        if at is None:
            sentences.append(
                f"{text} {base} never gets so far: it is at {tables.percent(theirs.mean[-1])} % after round "
                f"{by_round.x[-1]:g} and {tables.amount(theirs.x[-1])} MB."
            )
        else:
            sentences.append(
                f"{text} {base} is first as good after round {by_round.x[at]:g} and {tables.amount(theirs.x[at])} MB, "
                f"{_times(theirs.x[at] / sent)} as much."
            )
    if sentences:
        start = f"{tables.percent(theirs.mean[first])} % of the global test set"
        sentences.insert(0, f"After round {by_round.x[first]:g} {base} has {start} right.")
    return sentences


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.1f} times"


def _aligned(r: OneRound, uploads: Uploads) -> str:
    clients = len(set(uploads.owners))
    start = f"{r.method}, seed {r.seed}: {counted(uploads.sent, 'embedding')} of {counted(clients, 'client')}"
    if not uploads.matches:
        return f"{start}; no two clients sent one of the same label, so nothing was matched and all were kept."
    close = sum(uploads.joined(m) for m in uploads.matches)
    return (
        f"{start}, {len(uploads.matches)} pairs of equal label matched, {close or 'none'} of them taken for the same; "
        f"{len(uploads.kept)} embeddings were sent to everybody."
    )


def _privacy_table(runs: Sequence[OneRound], marks: Mapping[str, figures.LineStyle]) -> Table:
    def nearest(r: OneRound) -> str:
        return "not reported" if r.nearest is None else f"{r.nearest:.2f} (client {r.client})"

    return Table(
        "What each party saw and trained, and the distance from generated images to real ones",
        (
            ("Method", ""), ("Nearest image", "medians"), ("Guarantee", ""), ("The server saw", ""),
            ("Clients saw", ""), ("Models were trained by", ""),
        ),
        tuple(
            TableRow(
                r.method,
                (
                    nearest(r), r.privacy.guarantee, sentence(r.privacy.server), sentence(r.privacy.clients),
                    sentence(r.trained) if r.trained else "–",
                ),
                figures.swatch(marks[r.method]),
            )
            for r in runs
        ),
        "Nearest image: each client looks for the generated image that is nearest to one of its own, and divides that "
        "distance by the median distance from one of its own images to the next; the least over clients and seeds is "
        "given. Near 0 it would be a copy of a private image; at 1 it is no nearer than the client’s own images are to "
        "each other.",
        frozenset({2, 3, 4, 5}),
    )  # fmt: skip


# ---------------------------------------------------------------- accuracy by numbers sent
def accuracy_chart(record: Record, marks: Mapping[str, figures.LineStyle]) -> Chart | None:
    """Accuracy by numbers sent, on a logarithmic axis: a mark for each evaluated round in which something travelled."""
    lines, flat, phrases = [], [], []
    scale, show = record.headline.scale, record.headline.with_unit
    for method in record.methods:
        curve = tables.cost_curve(record, method)
        if curve is not None and curve.x[-1] > 0:
            # Before the first round nothing was sent, after its only one a method sends nothing: it has one mark.
            new = [k for k, x in enumerate(curve.x) if x > (curve.x[k - 1] if k else 0.0)]
            lines.append((method, curve, new))
            phrases.append(f"{method} {show(curve.mean[new[-1]])} at {_short(curve.x[new[-1]] * MB / 4)} numbers")
            continue
        level = tables.curve(record, method, record.headline.shared) or tables.curve(
            record, method, f"personal_on_global.{record.headline.name}.mean"
        )
        if level is not None:
            flat.append((method, level.mean[-1]))
            phrases.append(f"{method} {show(level.mean[-1])} without sending any")
    if not lines:
        return None
    with figures.style("one-round"):
        figure, axes = figures.chart(270)
        axes.set_axisbelow(True)
        for method, curve, at in lines:
            look = marks[method]
            xs = [curve.x[k] * MB / 4 for k in at]
            low, high = ([scale * side[k] for k in at] for side in (curve.low, curve.high))
            if curve.seeds > 1 and len(at) > 1:
                axes.fill_between(xs, low, high, color=look.colour, alpha=0.16, linewidth=0)
            elif curve.seeds > 1:
                axes.plot(xs * 2, [low[0], high[0]], color=look.colour, linewidth=1.6)
            drawn = figures.drawn(look)
            axes.plot(
                xs, [scale * curve.mean[k] for k in at],
                **{**drawn, "markersize": 9 if len(at) == 1 else 4.5, "linewidth": 1.2},
                markevery=max(1, len(at) // 60),
            )  # fmt: skip
        for method, value in flat:
            axes.axhline(scale * value, **{**figures.drawn(marks[method]), "marker": ""})
        axes.set_xscale("log")
        axes.margins(x=0.08)
        xs = [curve.x[k] for _, curve, at in lines for k in at]
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if max(xs) < 60 * min(xs) else (1.0,), numticks=8))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: _short(v)))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("numbers sent up to that round (bytes / 4), log scale")
        axes.set_ylabel(f"global test {record.headline.axis}")
        svg = figures.markup(figure, "one-round", f"Accuracy by numbers sent: {'; '.join(phrases)}.")
    own = [m for m, _ in flat if tables.curve(record, m, record.headline.shared) is None]
    seeds = max(curve.seeds for _, curve, _ in lines)
    caption = (
        "Each mark is an evaluated round in which something travelled; a method of one round has one. Further left is "
        "cheaper, further up is better. Sent: by the server and all clients together, counted on the wire."
        + (f" Level: {', '.join(m for m, _ in flat)}, which sends nothing." if flat else "")
        + (f" Of {', '.join(own)} it is the mean of the clients’ own models on the global test set." if own else "")
        + (" Mean over seeds; bands and bars from the lowest to the highest." if seeds > 1 else " One seed.")
    )  # fmt: skip
    legend = tuple((m, figures.swatch(marks[m])) for m in (*(m for m, _, _ in lines), *(m for m, _ in flat)))
    return Chart("Accuracy against what was sent", caption, svg, legend)


def _short(value: float) -> str:
    """A count in short form: 2 k, 1.5 M.

    >>> _short(1500), _short(100.0), _short(2.5e9)
    ('1.5 k', '100', '2.5 G')
    """
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


# ---------------------------------------------------------------- embeddings
def plane_chart(name: str, method: str, uploads: Uploads) -> Chart | None:
    """Embeddings in the two directions in which they vary most; None with fewer than three, or none that differ.

    Args:
        name: Prefix of the figure's ids, unique on its page.
        method: Source of the embeddings, for the title: a method's label, and the seed.
        uploads: The embeddings.
    """
    centred = uploads.v - uploads.v.mean(0)
    if len(centred) < 3 or not np.abs(centred).max() > 0:
        return None
    plane, kept_of_variance = principal(centred)
    at = centred @ plane
    clients = sorted(set(uploads.owners))
    looks = dict(zip(clients, figures.looks([False] * len(clients)), strict=True))
    with figures.style(name):
        figure, axes = figures.chart(340)
        axes.set_axisbelow(True)
        for members in uploads.sets:
            here = [i for i in members if i < len(at)]
            for i, j in pairwise(here):
                axes.plot(*at[[i, j]].T, color=figures.INK, linewidth=0.9)
        for i, (x, y) in enumerate(at):
            look = looks[uploads.owners[i]]
            axes.plot(
                [x], [y], linestyle="none", marker=Shape(np.array(look.marker)), markersize=7, mew=1.2,
                markerfacecolor=look.colour if i in uploads.kept else figures.PAGE, markeredgecolor=look.colour,
            )  # fmt: skip
            if len(at) <= MOST_NAMED:
                axes.annotate(
                    str(uploads.labels[i]), (x, y), (5, 3), textcoords="offset points", fontsize=9, color=look.colour
                )
        axes.margins(0.08)
        axes.set_xlabel("first principal direction, no unit")
        axes.set_ylabel("second principal direction, no unit")
        dropped = len(at) - sum(i in uploads.kept for i in range(len(at)))
        svg = figures.markup(
            figure, name,
            f"{counted(len(at), 'embedding')} of {method} in the plane, of {counted(len(clients), 'client')} and "
            f"{len(set(uploads.labels))} labels; {dropped} were merged into others.",
        )  # fmt: skip
    caption = (
        f"{method}: each mark is one embedding, a cluster of one label’s images at one client, as the server got it. "
        + ("Numbers are labels. " if len(at) <= MOST_NAMED else "")
        + (
            "Lines join what was taken for the same distribution; of these the filled one was kept. "
            if dropped
            else "None was taken for the same as another’s. "
        )
        + f"The plane holds {100 * kept_of_variance:.0f} % of the embeddings’ variance, so marks that lie together "
        "may still be far apart."
        + (f" The first {len(at)} of {uploads.sent} embeddings." if len(at) < uploads.sent else "")
    )
    legend = tuple((f"client {c}", figures.swatch(look, line=False)) for c, look in looks.items())
    return Chart(f"Embeddings by client, {method}", caption, svg, legend)


@dataclass(frozen=True)
class _Rung:
    """A row of the alignment's drawing: the embeddings on the left and right, and the match between them."""

    label: int
    left: int | None
    right: int | None
    match: Match | None


def closest_clients(uploads: Uploads) -> tuple[int, int] | None:
    """The two clients with most matches in one set, then with most matches, then with the nearest; None without any."""
    pairs: dict[tuple[int, int], list[Match]] = {}
    for m in uploads.matches:
        a, b = sorted((uploads.owners[m.i], uploads.owners[m.j]))
        pairs.setdefault((a, b), []).append(m)
    if not pairs:
        return None

    def rank(pair: tuple[int, int]) -> tuple[int, int, float, tuple[int, int]]:
        matches = pairs[pair]
        return -sum(map(uploads.joined, matches)), -len(matches), min(m.distance for m in matches), pair

    return min(pairs, key=rank)


def rungs(uploads: Uploads, pair: tuple[int, int]) -> tuple[list[_Rung], int]:
    """The rows for two clients, matches beside each other, and the number of matches left out for lack of space."""
    a, b = pair
    mine = [m for m in uploads.matches if {uploads.owners[m.i], uploads.owners[m.j]} == {a, b}]
    chosen = sorted(mine, key=lambda m: (not uploads.joined(m), m.distance))[:MOST_PAIRS]
    rows = []
    for y in sorted({uploads.labels[m.i] for m in chosen}):
        for m in sorted((m for m in chosen if uploads.labels[m.i] == y), key=lambda m: m.distance):
            left, right = (m.i, m.j) if uploads.owners[m.i] == a else (m.j, m.i)
            rows.append(_Rung(y, left, right, m))
        if len(chosen) == len(mine):
            matched = {i for m in mine for i in (m.i, m.j)}
            for i, (label, owner) in enumerate(zip(uploads.labels, uploads.owners, strict=True)):
                if label == y and owner in pair and i not in matched and len(rows) < MOST_PAIRS:
                    rows.append(_Rung(y, i if owner == a else None, i if owner == b else None, None))
    return rows, len(mine) - len(chosen)


def alignment_chart(name: str, method: str, uploads: Uploads) -> Chart | None:
    """The matching of two clients as a bipartite drawing, and the distances with the threshold; None without a match.

    Args:
        name: Prefix of the figure's ids, unique on its page.
        method: Source of the alignment, for the title: a method's label, and the seed.
        uploads: The embeddings and their matches.
    """
    pair = closest_clients(uploads)
    if pair is None:
        return None
    rows, left_out = rungs(uploads, pair)
    same, near, apart = figures.looks([False, False, True])

    def look_of(m: Match) -> figures.LineStyle:
        return same if uploads.joined(m) else near if m.distance <= uploads.threshold else apart

    def label_of(i: int) -> str:
        n = uploads.counts[i]
        return f"{uploads.labels[i]}" + (f" (n {n})" if n else "")

    height = 74 + 19 * len(rows)
    with figures.style(name):
        figure = figures.sheet(height)
        ladder, gaps = figure.subplots(1, 2, sharey=True, width_ratios=(1.25, 1))
        for k, row in enumerate(rows):
            if row.match is not None:
                look = look_of(row.match)
                width = 2.0 if look is same else 1.2
                ladder.plot([0, 1], [k, k], **{**figures.drawn(look), "marker": "", "linewidth": width})
                gaps.plot([row.match.distance], [k], **{**figures.drawn(look), "linestyle": "none", "markersize": 7})
            for i, x, side in ((row.left, 0, "right"), (row.right, 1, "left")):
                if i is None:
                    continue
                ladder.plot(
                    [x], [k], "o", markersize=7, markeredgecolor=figures.INK, mew=1.0, clip_on=False,
                    markerfacecolor=figures.INK if i in uploads.kept else figures.PAGE,
                )  # fmt: skip
                ladder.annotate(
                    label_of(i), (x, k), (-8 if x == 0 else 8, 0), textcoords="offset points", ha=side, va="center",
                    fontsize=9, annotation_clip=False,
                )  # fmt: skip
        for k, (row, after) in enumerate(pairwise(rows)):
            if row.label != after.label:
                for axes in (ladder, gaps):
                    axes.axhline(k + 0.5, color=figures.BOUND, linewidth=0.5, alpha=0.6)
        gaps.axvline(uploads.threshold, color=figures.INK, linewidth=1.1, linestyle=(0, (4, 2)))
        most = max([uploads.threshold, *(r.match.distance for r in rows if r.match is not None)])
        gaps.set_xlim(0, 1.12 * most if most > 0 else 1.0)
        gaps.annotate(
            f"threshold {uploads.threshold:.3g}", (uploads.threshold, -0.75), ha="center", va="bottom", fontsize=9,
            annotation_clip=False,
        )  # fmt: skip
        gaps.grid(axis="y", visible=False)
        gaps.tick_params(axis="y", length=0, labelleft=False)
        gaps.set_xlabel("distance, no unit")
        ladder.set_ylim(len(rows) - 0.4, -0.6)
        ladder.set_xlim(-0.75, 1.75)
        ladder.grid(visible=False)
        ladder.tick_params(length=0, labelleft=False, labelbottom=False)
        ladder.spines[:].set_visible(False)
        for x, client in enumerate(pair):
            ladder.annotate(
                f"client {client}", (x, -0.75), ha="center", va="bottom", fontsize=10, annotation_clip=False
            )
        matched = [r.match for r in rows if r.match is not None]
        matches_text = "; ".join(
            f"label {r.label} at {r.match.distance:.3g} {'joined' if uploads.joined(r.match) else 'apart'}"
            for r in rows
            if r.match is not None
        )
        svg = figures.markup(
            figure,
            name,
            f"Alignment of clients {pair[0]} and {pair[1]}, threshold {uploads.threshold:.3g}: {matches_text}.",
        )
    joined = sum(map(uploads.joined, matched))
    through = any(uploads.joined(m) and m.distance > uploads.threshold for m in matched)
    shares = sum(map(uploads.joined, uploads.matches))
    caption = (
        f"{method}: left and right the embeddings of two clients, by label (n: images behind each); a line is a pair "
        "that the matching of least total distance puts together, its distance stands in the same row. "
        + (
            f"Of all clients these two share most: {joined} of the pairs drawn were joined. "
            if shares
            else "No pair of any two clients was near enough to be joined; these two have most in common. "
        )
        + "Filled: sent to everybody. Open: another of its set was sent for it. "
        + ("Distance of the embeddings." if uploads.distance == "l2" else "Distance of the noise predicted under them.")
        + (" Two beyond the threshold are joined through a third client’s." if through else "")
        + (f" The {len(matched)} nearest of {len(matched) + left_out} pairs." if left_out else "")
    )
    legend = [("joined", figures.swatch(same)), ("matched, too far apart", figures.swatch(apart))]
    if any(look_of(m) is near for m in matched):
        legend.append(("near, but its set has that client already", figures.swatch(near)))
    return Chart(f"What two clients have in common, {method}", caption, svg, tuple(legend))


KIND = SectionKind("one-round methods that send embeddings", (Embeddings, Mixtures), section)
