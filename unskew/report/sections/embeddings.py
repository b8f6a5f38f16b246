"""The single round of FedDistr and of FedPFT: embeddings, their alignment, generated images, and privacy.

`unskew.algorithms.feddistr` has the equations, `unskew.server.alignment` the alignment.  Embeddings are drawn as the
server received them.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import altair as alt
import numpy as np

from unskew.info import Embeddings, Mixtures
from unskew.record.reader import Record, method_tables
from unskew.report import charts, tables
from unskew.report.section import Chart, Section, SectionKind, seen, table
from unskew.report.sections.generated_images import gallery
from unskew.server.alignment import purity
from unskew.words import counted, sentence

MOST_SHOWN = 2  # methods whose embeddings are drawn
MOST_NAMED = 120  # embeddings with their labels beside them
MOST_PAIRS = 40  # matches that are drawn, the nearest

JOINED, NEAR, FAR = "joined", "near, its set has that client", "too far apart"
_COLOURS = {JOINED: charts.COLOURS[0], NEAR: charts.COLOURS[1], FAR: charts.BOUND}


def section(record: Record, methods: Sequence[str], marks: Mapping[str, str]) -> Section | None:
    """The section on one-round methods; None if no counted seed got that far.

    Raises:
        RunError: If the info contradicts itself.
    """
    drawn, sentences, rows, shown = list[Chart | None](), list[str](), [], 0
    for method in methods:
        sent = {s: of[min(of)] for s, of in tables.reported(record, method, Embeddings).items()}
        mixed = {s: of[min(of)] for s, of in tables.reported(record, method, Mixtures).items()}
        if not sent and not mixed:
            continue
        weakest = max((info.privacy for of in (sent, mixed) for info in of.values()), key=lambda p: p.bound)
        nearest = min(((v, c) for of in sent.values() for c, v in of.closest.items() if v is not None), default=None)
        near = "not reported" if nearest is None else f"{nearest[0]:.2f} (client {nearest[1]})"
        seed, first = next(iter(sent.items()), (0, None))
        where = sentence(first.trained_at) if first is not None and first.trained_at else "–"
        rows.append((method, near, *seen(weakest), where))
        if first is not None and shown < MOST_SHOWN:
            shown, name = shown + 1, f"{method}, seed {seed}"
            images = gallery(method, seed, first, method_tables(record).get(method, {}), record.partitions.get(seed))
            drawn += [plane_chart(name, first), alignment_chart(name, first)]
            drawn += [] if isinstance(images, str) else [images]
            sentences += [aligned(name, first), images if isinstance(images, str) else ""]
    head = ["method", "nearest image | medians", "guarantee", "the server saw", "clients saw", "models were trained by"]
    note = "Nearest image: of a generated image to one of the client’s own. Near 0 it would be a copy."
    learned = table("What each party saw and trained", head, rows, note, [2, 3, 4, 5])
    lead, title = " ".join(filter(None, sentences)), "Embeddings and generated images"
    return Section.of(title, lead, drawn, [learned]) if rows else None


def aligned(name: str, sent: Embeddings) -> str:
    """The effect of the server's alignment, in a sentence."""
    start = f"{name}: {counted(sent.sent, 'embedding')} of {counted(len(set(sent.owners)), 'client')}"
    pairs, (pure, chance) = matched(sent), purity(sent.embeddings, sent.labels)
    close = sum(p["state"] == JOINED for p in pairs)
    alike = f"{close or 'none'} of {counted(len(pairs), 'matched pair')} taken for the same"
    near = f" For {100 * pure:.0f} % the nearest one has the same label, by chance {100 * chance:.0f} %."
    return f"{start}, {alike}.{near * bool(np.isfinite(pure))}"


# ---------------------------------------------------------------- figures
def plane_chart(name: str, sent: Embeddings) -> Chart | None:
    """Embeddings in their two principal directions; None with fewer than three, or if all are equal."""
    v = np.array(sent.embeddings)
    centred = v - v.mean(0)
    if len(centred) < 3 or not np.abs(centred).max() > 0:
        return None
    _, lengths, axes = np.linalg.svd(centred, full_matrices=False)
    # A direction has no sign: the largest entry is made positive, so that equal input gives equal figures.
    axes *= np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(1)])[:, None]
    flat = centred @ axes[:2].T
    at = np.pad(flat, ((0, 0), (0, 2 - flat.shape[1]))).tolist()
    points = [
        {"x": x, "y": y, "client": str(owner), "label": str(label), "open": i not in sent.kept}
        for i, ((x, y), owner, label) in enumerate(zip(at, sent.owners, sent.labels, strict=True))
    ]
    lines = [
        {"x": at[i][0], "y": at[i][1], "x2": at[j][0], "y2": at[j][1]}
        for members in sent.sets
        for i, j in pairwise([i for i in members if i < len(at)])
    ]
    clients = sorted({str(owner) for owner in sent.owners}, key=int)
    colour = charts.by_name(charts.colours(clients), "client", legend=True)
    named = "label" if len(at) <= MOST_NAMED else ""
    drawn = charts.scatter(points, "first principal direction", "second principal direction", colour, named, lines)
    share = float((lengths[:2] ** 2).sum() / (lengths**2).sum())
    caption = (
        "A mark is one label’s cluster of images at one client. Lines join what was taken for the same; of these the "
        f"filled one was kept. The plane holds {100 * share:.0f} % of the variance."
    )
    return Chart(f"Embeddings by client, {name}", caption, drawn)


def matched(sent: Embeddings) -> list[dict[str, Any]]:
    """The matches as rows, by label and distance: the two clients, the distance, and the result."""
    place = {i: k for k, members in enumerate(sent.sets) for i in members}
    pairs = [pair for pair in sent.pairs if max(pair[:2]) < len(sent.labels)]
    return [
        {
            "pair": f"{sent.labels[i]}: {sent.owners[i]} and {sent.owners[j]} ({i}, {j})",
            "distance": distance,
            "state": JOINED if place.get(i, -1) == place.get(j, -2) else NEAR if distance <= sent.threshold else FAR,
        }
        for i, j, distance in sorted(pairs, key=lambda pair: (sent.labels[pair[0]], pair[2]))
    ]


def alignment_chart(name: str, sent: Embeddings) -> Chart | None:
    """The distances of matched embeddings beside the threshold; None without a match."""
    every = matched(sent)
    if not every:
        return None
    pairs = every[:MOST_PAIRS]
    axis = charts.over("distance", [0.0, sent.threshold, *(p["distance"] for p in pairs)])
    shown = {state: colour for state, colour in _COLOURS.items() if any(p["state"] == state for p in pairs)}
    dots = alt.Chart(charts.rows(pairs)).mark_point(filled=True, size=60, opacity=1).encode(
        x=alt.X("distance:Q", **axis), y=charts.names("pair"), color=charts.by_name(shown, "state", legend=True),
        tooltip=["pair:N", "state:N", alt.Tooltip("distance:Q", format=".3~g")],
    )  # fmt: skip
    drawn = charts.themed(alt.layer(charts.rule(sent.threshold), dots), height=alt.Step(18))
    of = "embeddings" if sent.distance == "l2" else "the noise predicted under them"
    some = f" The first {len(pairs)} of {len(every)} pairs." if len(pairs) < len(every) else ""
    caption = f"Label: matched clients, their embeddings. Distance of {of}; line: the threshold.{some}"
    text = "; ".join(f"{p['pair']} at {p['distance']:.3g} {p['state']}" for p in pairs)
    return Chart(f"What clients have in common, {name}", caption, drawn, f"Matches: {text}."[:1000])


KIND = SectionKind("one-round methods that send embeddings", (Embeddings, Mixtures), section)
