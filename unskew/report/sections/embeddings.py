"""The single round of FedDistr: its embeddings, their alignment, and the images made from them.

`unskew.algorithms.feddistr` has the equations, `unskew.server.alignment` the alignment.  FedPFT, its cheap rival, is in
the table.

Embeddings in the plane are drawn as the server received them: the clients' images never reach it.  Figures that need
the prior are `generated_images`.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import altair as alt
import numpy as np

from unskew.info import Embeddings, Mixtures
from unskew.record.reader import Record, method_tables
from unskew.report import charts
from unskew.report.section import Chart, Section, SectionKind, Table, TableRow, table
from unskew.report.sections.generated_images import gallery
from unskew.report.sections.one_round import Match, OneRound, Uploads, one_round, principal
from unskew.words import counted, sentence

MOST_SHOWN = 2  # methods whose embeddings are drawn
MOST_NAMED = 120  # embeddings with their labels beside them
MOST_PAIRS = 40  # matches that are drawn, the nearest

_STATES = {
    "joined": charts.COLOURS[0],
    "near, its set has that client": charts.COLOURS[1],
    "too far apart": charts.BOUND,
}


def section(record: Record, methods: Sequence[str], marks: Mapping[str, str]) -> Section | None:
    """The section on one-round methods; None if no seed that counts got that far.

    Raises:
        RunError: If the info contradicts itself.
    """
    runs = [r for m in methods if (r := one_round(record, m)) is not None]
    if not runs:
        return None
    drawn: list[Chart | None] = []
    options, sentences = method_tables(record), []
    shown = [(r, r.uploads) for r in runs if r.uploads is not None]
    for r, uploads in shown[:MOST_SHOWN]:
        name, images = f"{r.method}, seed {r.seed}", gallery(record, r, uploads, options.get(r.method, {}))
        drawn += [plane_chart(name, uploads), alignment_chart(name, uploads)]
        drawn += [] if isinstance(images, str) else [images]
        sentences += [aligned(r, uploads), *([images] if isinstance(images, str) else [])]
    title = "Embeddings and generated images"
    return Section(title, " ".join(sentences), tuple(filter(None, drawn)), (_privacy_table(runs, marks),))


def aligned(r: OneRound, uploads: Uploads) -> str:
    """The effect of the server's alignment, in a sentence."""
    clients = len(set(uploads.owners))
    start = f"{r.method}, seed {r.seed}: {counted(uploads.sent, 'embedding')} of {counted(clients, 'client')}"
    if not uploads.matches:
        return f"{start}; no two clients sent one of the same label."
    close = sum(uploads.joined(m) for m in uploads.matches)
    return f"{start}, {close or 'none'} of {counted(len(uploads.matches), 'matched pair')} taken for the same."


def _privacy_table(runs: Sequence[OneRound], marks: Mapping[str, str]) -> Table:
    rows = [
        TableRow(
            r.method,
            (
                "not reported" if r.nearest is None else f"{r.nearest:.2f} (client {r.client})",
                r.privacy.guarantee, sentence(r.privacy.server), sentence(r.privacy.clients),
                sentence(r.trained) if r.trained else "–",
            ),
            charts.swatch(marks[r.method]),
        )
        for r in runs
    ]  # fmt: skip
    head = ["Method", "Nearest image | medians", "Guarantee", "The server saw", "Clients saw", "Models were trained by"]
    note = (
        "Nearest image: least distance from a generated image to one of the client’s own, divided by the median from "
        "one of its own to the next. Near 0 it would be a copy."
    )
    return table("What each party saw and trained", head, rows, note, [2, 3, 4, 5])


# ---------------------------------------------------------------- embeddings
def plane_chart(method: str, uploads: Uploads) -> Chart | None:
    """Embeddings in the two directions in which they vary most; None with fewer than three, or none that differ.

    Args:
        method: Source of the embeddings, for the title: a method's label, and the seed.
        uploads: The embeddings.
    """
    centred = uploads.v - uploads.v.mean(0)
    if len(centred) < 3 or not np.abs(centred).max() > 0:
        return None
    plane, share = principal(centred)
    at = (centred @ plane).tolist()
    points = [
        {"x": x, "y": y, "client": str(owner), "label": str(label), "open": i not in uploads.kept}
        for i, ((x, y), owner, label) in enumerate(zip(at, uploads.owners, uploads.labels, strict=True))
    ]
    lines = [
        {"x": at[i][0], "y": at[i][1], "x2": at[j][0], "y2": at[j][1]}
        for members in uploads.sets
        for i, j in pairwise([i for i in members if i < len(at)])
    ]
    clients = sorted({str(p["client"]) for p in points}, key=int)
    colour = charts.by_name(charts.colours(clients), "client", legend=True)
    text = "label" if len(at) <= MOST_NAMED else ""
    drawn = charts.scatter(points, "first principal direction", "second principal direction", colour, text, lines)
    merged = sum(bool(p["open"]) for p in points)
    caption = (
        "A mark is one label’s cluster of images at one client. Lines join what was taken for the same; of these the "
        f"filled one was kept. The plane holds {100 * share:.0f} % of the variance."
    )
    told = f"{counted(len(at), 'embedding')} of {method}, of {counted(len(clients), 'client')}; {merged} were merged."
    return Chart(f"Embeddings by client, {method}", caption, drawn, told)


def matched(uploads: Uploads) -> list[dict[str, Any]]:
    """The nearest matches as rows: label, the two clients, distance, and what came of it."""

    def state(m: Match) -> str:
        joined, near, far = _STATES
        return joined if uploads.joined(m) else near if m.distance <= uploads.threshold else far

    return [
        {
            "pair": f"label {uploads.labels[m.i]}: {uploads.owners[m.i]} and {uploads.owners[m.j]} ({m.i}, {m.j})",
            "distance": m.distance,
            "state": state(m),
        }
        for m in sorted(uploads.matches, key=lambda m: (uploads.labels[m.i], m.distance))[:MOST_PAIRS]
    ]


def alignment_chart(method: str, uploads: Uploads) -> Chart | None:
    """The distances of matched embeddings beside the threshold; None without a match.

    Args:
        method: Source of the alignment, for the title: a method's label, and the seed.
        uploads: The embeddings and their matches.
    """
    if not uploads.matches:
        return None
    pairs = matched(uploads)
    axis = charts.over("distance", [0.0, uploads.threshold, *(m.distance for m in uploads.matches)])
    shown = {state: colour for state, colour in _STATES.items() if any(p["state"] == state for p in pairs)}
    dots = alt.Chart(charts.rows(pairs)).mark_point(filled=True, size=60, opacity=1).encode(
        x=alt.X("distance:Q", **axis), y=charts.names("pair"), color=charts.by_name(shown, "state", legend=True),
        tooltip=["pair:N", "state:N", alt.Tooltip("distance:Q", format=".3~g")],
    )  # fmt: skip
    threshold = charts.rule(uploads.threshold)
    drawn = charts.themed(alt.layer(threshold, dots).properties(height=alt.Step(18)))
    of = "embeddings" if uploads.distance == "l2" else "the noise predicted under them"
    some = f" The first {len(pairs)} of {len(uploads.matches)} pairs." if len(pairs) < len(uploads.matches) else ""
    caption = (
        f"Pairs of two clients’ clusters that the server matched: distance of {of}; the line is the threshold.{some}"
    )
    told = "; ".join(f"{p['pair']} at {p['distance']:.3g} {p['state']}" for p in pairs)
    return Chart(f"What clients have in common, {method}", caption, drawn, f"Matches: {told}."[:1000])


KIND = SectionKind("one-round methods that send embeddings", (Embeddings, Mixtures), section)
