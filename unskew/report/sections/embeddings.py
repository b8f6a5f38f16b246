"""The single round of FedDistr: its embeddings, their alignment, the images made from them, and the cost.

`unskew.algorithms.feddistr` has the equations, `unskew.server.alignment` the alignment.  FedPFT, its
cheap rival, is in the accuracy figure and in the table.

Embeddings in the plane are drawn as the server received them: the clients' images never reach it.  Images are
generated again for the page, from the embeddings in info.jsonl and the experiment's prior, with other noise than in the
run, so a run folder is all that is needed.  Only unskew's own priors are used for that: a Stable Diffusion pipeline
takes minutes an image here, and may be remote.  Real images, and their latents in the clusters the clients found, are
shown beside them if the run was a simulation whose data can still be read and have the same hash.  The server of a
deployed run has no images, and its report never looks for any.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from matplotlib.path import Path as Shape
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from torch import Tensor

from unskew import priors
from unskew.algorithms.feddistr import Disentangle, FedDistr
from unskew.data.dataset import Dataset
from unskew.data.images import ByteImages, extremes
from unskew.data.sources import SCHEMES, load
from unskew.errors import ConfigError, DataError
from unskew.info import Embeddings, Mixtures, Privacy
from unskew.keys import Key
from unskew.local import imagery
from unskew.local.imagery import TaskImagery
from unskew.priors.builtin import CARD
from unskew.record.reader import Record, configured, holdings, info_of
from unskew.report import figures, tables
from unskew.report.section import Chart, Section, SectionKind, Table, TableRow
from unskew.report.sections.groups import in_rows, settings
from unskew.server.kmeans import kmeans
from unskew.units import MB

MOST_SHOWN = 2  # methods whose embeddings are drawn
MOST_NAMED = 120  # embeddings with their labels beside them
MOST_PAIRS = 18  # rows of the alignment
MOST_ROWS = 10  # of the gallery, each a label of a client
MOST_BLOCKS = 6  # embeddings of one row
MADE, REAL = 12, 5  # pictures in a row, about
MOST_PANELS = 6  # clients whose latents are drawn
MOST_LATENTS = 6_000  # images that a page encodes
MOST_SPOKES = 100  # images drawn of a cluster


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Match:
    """Two embeddings of different clients that the alignment matched: their numbers and their distance."""

    i: int
    j: int
    distance: float


@dataclass(frozen=True, eq=False)
class Uploads:
    """The embeddings of a round, and the server's alignment of them.

    Attributes:
        v: The embeddings as the info holds them, (K, axes).
        whole: True if `v` holds the embeddings themselves, false if their principal coordinates.
        labels, counts, owners: Label, example count and client of each; the count is 0 if none was sent.
        sent: Number of embeddings sent; K is less if the info holds only the first.
        distance: Distance that the alignment used.
        threshold: Largest distance at which a match counts as the same.
        matches: All matches, nearest first.
        sets: Sets of embeddings, by number, that stand for one distribution.
        kept: The embedding of each set that was distributed.
    """

    v: Floats
    whole: bool
    labels: tuple[int, ...]
    counts: tuple[int, ...]
    owners: tuple[int, ...]
    sent: int
    distance: str
    threshold: float
    matches: tuple[Match, ...]
    sets: tuple[tuple[int, ...], ...]
    kept: frozenset[int]

    @property
    def place(self) -> dict[int, int]:
        """The set of each embedding."""
        return {i: s for s, members in enumerate(self.sets) for i in members}

    def joined(self, match: Match) -> bool:
        """True if the two ended in one set."""
        place = self.place
        return match.i in place and place[match.i] == place.get(match.j)


@dataclass(frozen=True, eq=False)
class OneRound:
    """A method of one round, over a run.

    Attributes:
        seed, uploads: Seed that is drawn, and its embeddings.
        privacy: The weakest guarantee over the seeds, and what each party saw.
        nearest: Least distance from a generated image to one of its client's own, in medians; None if not known.
        client: The client with that distance.
        trained: Who trained which model, on what; empty if not known.
    """

    method: str
    seed: int
    uploads: Uploads | None
    privacy: Privacy
    nearest: float | None
    client: int | None
    trained: str = ""


def one_round(record: Record, method: str) -> OneRound | None:
    """A method's info over a run; None if no seed that counts has any.

    Raises:
        RunError: If the info is not as a run writes it.
    """
    seeds = set(tables.counted(record, method))
    privacy: list[Privacy] = []
    nearest: list[tuple[float, int]] = []  # distance and client, the least of each seed
    drawn: tuple[int, Uploads | None] | None = None
    trained = ""
    reported: Iterable[tuple[int, int, Embeddings | Mixtures]] = chain(
        info_of(record, method, Embeddings), info_of(record, method, Mixtures)
    )
    for seed, _, info in reported:
        if seed not in seeds:
            continue
        if drawn is None:
            drawn = seed, uploads_of(info) if isinstance(info, Embeddings) else None
        privacy.append(info.privacy)
        if isinstance(info, Embeddings):
            nearest += sorted((v, c) for c, v in info.closest.items() if v is not None)[:1]
            trained = info.trained_at
    if drawn is None:
        return None
    distance, client = min(nearest, default=(None, None))
    return OneRound(method, *drawn, max(privacy, key=lambda p: p.bound), distance, client, trained)


def uploads_of(info: Embeddings) -> Uploads:
    """The embeddings of a round and the server's alignment of them."""
    return Uploads(
        v=np.array(info.embeddings),
        whole=info.coordinates == "embedding",
        labels=info.labels,
        counts=info.counts,
        owners=info.owners,
        sent=info.sent,
        distance=info.distance,
        threshold=info.threshold,
        matches=tuple(Match(i, j, d) for i, j, d in info.pairs if max(i, j) < len(info.embeddings)),
        sets=info.sets,
        kept=frozenset(info.kept),
    )


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
    options, sentences = settings(record), []
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
    start = f"{r.method}, seed {r.seed}: {uploads.sent} embeddings of {clients} clients"
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
                    nearest(r), r.privacy.guarantee, _sentence(r.privacy.server), _sentence(r.privacy.clients),
                    _sentence(r.trained) if r.trained else "–",
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


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}".removesuffix(".") + "."


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
        figure = Figure(figsize=(380 / 72, 270 / 72), layout="constrained")
        axes = figure.add_subplot()
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


# ---------------------------------------------------------------- latents
@dataclass(frozen=True, eq=False)
class Latents:
    """Latents of a client's images under the prior's encoder, z (n, D), with the label and the cluster of each."""

    client: int
    z: Floats
    labels: npt.NDArray[np.int64]
    clusters: npt.NDArray[np.int64]


def latents(record: Record, r: OneRound, options: Mapping[str, Any]) -> list[Latents] | str:
    """The first clients' latents in the clusters they found in the run, or in words why these are not available.

    The clustering is repeated from the run's seed, so the clusters are the same.
    """
    source = str(options.get("prior", priors.BUILT_IN))
    if not own(source):
        return f"they take the prior {source}, and here that is none of unskew’s own"
    dataset = readable(record, r.seed)
    if isinstance(dataset, str):
        return dataset
    held = holdings(record, r.seed)[:MOST_PANELS]
    if (images := sum(map(len, held))) > MOST_LATENTS:
        return f"the first {len(held)} clients have {images:,} images, more than a page encodes"
    try:
        maker = imagery.of(source, torch.device("cpu"), dataset.input_shape, dataset.levels)
        clusters = Disentangle(source, options.get("m", FedDistr.m), 1, 1, None)
        return [_clustered(c, rows, dataset, maker, clusters, r.seed) for c, rows in enumerate(held) if rows]
    except (ConfigError, DataError) as error:
        return str(error)


def own(source: str) -> bool:
    """True if a prior is one of unskew's, which are small enough to sample from while a page is made."""
    return source == priors.BUILT_IN or (Path(source) / CARD).is_file()


def _clustered(
    client: int, rows: Sequence[int], dataset: Dataset, maker: TaskImagery, disentangle: Disentangle, seed: int
) -> Latents:
    at = torch.tensor(rows, dtype=torch.int64)
    y, z = dataset.y_train[at], maker.encode(dataset.x_train[at])
    domains = None if dataset.domains is None else dataset.domains[at]
    cluster = torch.zeros_like(y)
    # Where the run drew from: the first function of the client's first step in round 1.
    key = Key(seed) / "round" / 1 / "client" / client / 0 / "run" / 0 / "clusters"
    for label in torch.unique(y).tolist():
        mine = y == label
        many = disentangle.count(z[mine], None if domains is None else domains[mine], key / label)
        cluster[mine] = kmeans(z[mine], many, key / label)
    return Latents(client, z.flatten(1).double().numpy(), y.numpy(), cluster.numpy())


def latent_chart(name: str, method: str, by_client: Sequence[Latents]) -> Chart | None:
    """Latents of the clients' images in one plane, a panel for each client; None if there are none that differ.

    Args:
        name: Prefix of the figure's ids, unique on its page.
        method: Source of the clusters, for the title: a method's label, and the seed.
        by_client: Latents of each client.
    """
    every = np.concatenate([f.z for f in by_client]) if by_client else np.empty((0, 0))
    if len(every) < 3 or not np.ptp(every, axis=0).max() > 0:
        return None
    middle = every.mean(0)
    plane, share = principal(every - middle)
    seen = sorted({int(y) for f in by_client for y in f.labels})
    looks = dict(zip(seen, figures.looks([False] * len(seen)), strict=True))
    across = min(3, len(by_client))
    down = math.ceil(len(by_client) / across)
    with figures.style(name):
        figure = Figure(figsize=(figures.WIDE / 72, (12 + 190 * down) / 72), layout="constrained")
        panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat
        for axes, f in zip(panels, by_client, strict=False):
            at = (f.z - middle) @ plane
            for label in sorted({int(y) for y in f.labels}):
                look = looks[label]
                for k in sorted({int(c) for c in f.clusters[f.labels == label]}):
                    points = at[(f.labels == label) & (f.clusters == k)]
                    centre, points = points.mean(0), points[:MOST_SPOKES]
                    # One line, out and back: a page is small.
                    spokes = np.stack([np.broadcast_to(centre, points.shape), points], axis=1).reshape(-1, 2)
                    axes.plot(*spokes.T, color=look.colour, linewidth=0.4, alpha=0.5)
                    axes.plot(
                        *points.T, linestyle="none", marker="o", markersize=2.2, mew=0, markerfacecolor=look.colour
                    )
                    axes.plot(
                        *centre[:, None], linestyle="none", marker=Shape(np.array(look.marker)), markersize=8, mew=1.2,
                        markerfacecolor=look.colour, markeredgecolor=figures.PAGE,
                    )  # fmt: skip
            axes.set_title(f"client {f.client}", fontsize=10)
        for axes in list(figure.axes)[len(by_client) :]:
            axes.set_visible(False)
        figure.supxlabel("first principal direction, no unit", fontsize=10)
        figure.supylabel("second, no unit", fontsize=10)
        number = sum(len(set(zip(f.labels.tolist(), f.clusters.tolist(), strict=True))) for f in by_client)
        svg = figures.markup(
            figure, name,
            f"Latents of {len(every)} images of {len(by_client)} clients in the plane, in {number} clusters, {method}.",
        )  # fmt: skip
    caption = (
        f"{method}: each dot is a training image of a client as the prior’s encoder sees it, each large mark the "
        "centre of a cluster, with a line to every image in it. A client clusters the images of each label by itself, "
        f"and one embedding is learned for each cluster. The plane holds {100 * share:.0f} % of the variance, so "
        "clusters that lie together may still be far apart. Drawn because this run was a simulation on data that lies "
        "on this machine: no server sees this."
    )
    legend = tuple((f"label {y}", figures.swatch(look, line=False)) for y, look in looks.items())
    return Chart(f"Latent clusters by client, {method}", caption, svg, legend, wide=True)


def principal(centred: Floats) -> tuple[Floats, float]:
    """The two directions in which rows vary most, (D, 2), and their share of the variance.

    A principal direction has no sign: the largest entry of each is made positive, so equal input gives equal figures.
    """
    _, lengths, axes_of = np.linalg.svd(centred, full_matrices=False)
    signs = np.sign(axes_of[np.arange(len(axes_of)), np.abs(axes_of).argmax(1)])
    plane = (axes_of[:2] * signs[:2, None]).T
    plane = np.pad(plane, ((0, 0), (0, 2 - plane.shape[1])))
    return plane, float((lengths[:2] ** 2).sum() / (lengths**2).sum())


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
        figure = Figure(figsize=(380 / 72, 340 / 72), layout="constrained")
        axes = figure.add_subplot()
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
            f"{len(at)} embeddings of {method} in the plane, of {len(clients)} clients and "
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
        figure = Figure(figsize=(380 / 72, height / 72), layout="constrained")
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


# ---------------------------------------------------------------- pictures
@dataclass(frozen=True)
class GalleryRow:
    """A row of the gallery: a client's label, and the numbers of its embeddings."""

    client: int
    label: int
    numbers: tuple[int, ...]


def gallery_rows(uploads: Uploads) -> tuple[tuple[GalleryRow, ...], int]:
    """The gallery's rows, client by client, and their number without the limit.

    If there are more, the clients take turns, each with its most frequent label first.
    """
    numbers: dict[tuple[int, int], list[int]] = {}
    for i, at in enumerate(zip(uploads.owners, uploads.labels, strict=True)):
        numbers.setdefault(at, []).append(i)

    def weight(at: tuple[int, int]) -> int:
        return sum(uploads.counts[i] for i in numbers[at])

    turns = {
        at: turn
        for c in sorted({c for c, _ in numbers})
        for turn, at in enumerate(sorted((at for at in numbers if at[0] == c), key=lambda at: (-weight(at), at)))
    }
    chosen = sorted(numbers, key=lambda at: (turns[at], at))[:MOST_ROWS]
    return tuple(GalleryRow(*at, tuple(numbers[at])) for at in sorted(chosen)), len(numbers)


def gallery(record: Record, r: OneRound, uploads: Uploads, options: Mapping[str, Any], name: str) -> Chart | str:
    """Images generated from a method's embeddings beside real ones of the same label and client, or why there are none.

    Args:
        record: The run.
        r: The method.
        uploads: Its embeddings.
        options: Its table in config.toml.
        name: Prefix of the figure's ids, unique on its page.
    """
    source = str(options.get("prior", priors.BUILT_IN))
    missing = f"No images are drawn for {r.method}: "
    if not uploads.whole:
        return f"{missing}there were more embeddings than a run’s record holds whole."
    if not own(source):
        return f"{missing}they take the prior {source}, and here that is none of unskew’s own."
    rows, all_rows = gallery_rows(uploads)
    blocks = min(MOST_BLOCKS, max(len(s.numbers) for s in rows))
    count = max(2, min(6, MADE // blocks))
    try:
        prior = priors.load(source)
        images = dict(
            zip(
                (numbers := [i for s in rows for i in s.numbers[:blocks]]),
                prior.sample(
                    torch.tensor(uploads.v[numbers], dtype=torch.float32), count, Key(r.seed) / "gallery",
                    options.get("guidance"), options.get("sampling_steps"),
                ),
                strict=True,
            )
        )  # fmt: skip
    except (ConfigError, DataError) as error:
        return f"{missing}{error}."
    real = real_images(record, r.seed, [(s.client, s.label) for s in rows], prior.image_shape)
    return _gallery_chart(name, r, uploads, rows, all_rows, images, real)


def real_images(
    record: Record, seed: int, wanted: Sequence[tuple[int, int]], image_shape: tuple[int, int, int]
) -> dict[tuple[int, int], Tensor] | str:
    """The first images of each client and label, brought to `image_shape`; or why there are none, in words.

    Args:
        record: The run.
        seed: Seed of the division of the data.
        wanted: Clients and labels.
        image_shape: (C, H, W).

    Returns:
        (client, label) -> (at most `REAL`, C, H, W) in [0, 1].
    """
    dataset = readable(record, seed)
    if isinstance(dataset, str):
        return dataset
    if dataset.x_train.dim() != 4 or (dataset.levels is None and not _is_unit(dataset.x_train)):
        return "it is not known what black and white are in them"
    levels = torch.tensor(dataset.levels or [(0.0, 1.0)] * dataset.x_train.shape[1])[:, :, None, None]
    held = holdings(record, seed)
    images = {}
    for client, label in wanted:
        rows = torch.tensor(held[client], dtype=torch.int64)
        rows = rows[dataset.y_train[rows] == label][:REAL]
        x = (dataset.x_train[rows] - levels[:, 0]) / (levels[:, 1] - levels[:, 0])
        images[client, label] = priors.fitted(x.clamp(0, 1), image_shape)
    return images


def readable(record: Record, seed: int) -> Dataset | str:
    """The run's data if it was a simulation and they can be read unchanged; otherwise why not, in words."""
    if deployed(record):
        return "the clients were real ones, and their images stay with them"
    partition = record.partitions.get(seed)
    if partition is None:
        return "the record does not say who had which"
    dataset = _data(record)
    if not isinstance(dataset, str) and dataset.sha256 != partition.dataset_sha256:
        return f"{dataset.name} is not what it was when the run was made"
    return dataset


def deployed(record: Record) -> bool:
    """True if the run's clients were separate processes, whose data a report must not read."""
    return record.command.startswith("unskew deploy") or (record.folder / "network.jsonl").exists()


def _data(record: Record) -> Dataset | str:
    """The run's data, read again, or why not."""
    task = _task(record)
    source, folder = str(task.get("data", "")), task.get("data_dir")
    if source.startswith("hub:"):
        return "a report downloads nothing"
    if ":" in source and source.partition(":")[0] not in SCHEMES:
        return "a report imports nothing that a file names"
    try:
        return load(source, None if folder is None else Path(str(folder)), task.get("data_options"))
    except (DataError, ConfigError):
        return f"the data {source or 'of the run'} is not on this machine"


def _task(record: Record) -> Mapping[str, Any]:
    table = configured(record).get("task", {})
    return table if isinstance(table, dict) else {}


def _is_unit(x: Tensor | ByteImages) -> bool:
    low, high = extremes(x)
    return low >= 0 and high <= 1


_GAP, _BAND, _HEAD = 9, 14, 16  # pixels between blocks, above a row for its words, above all for the heads


def _gallery_chart(
    name: str,
    r: OneRound,
    uploads: Uploads,
    rows: Sequence[GalleryRow],
    all_rows: int,
    generated: Mapping[int, Tensor],
    real: Mapping[tuple[int, int], Tensor] | str,
) -> Chart:
    count, channels, tall, wide = next(iter(generated.values())).shape
    cell, blocks = wide + 1, max(sum(i in generated for i in s.numbers) for s in rows)
    real_by_row = {} if isinstance(real, str) else real
    start = (REAL * cell + 2 * _GAP) if real_by_row else 0
    step = tall + _BAND
    canvas = np.zeros((_HEAD + step * len(rows), start + blocks * (count * cell + _GAP), 4), dtype=np.uint8)

    def put(images: Tensor, top: int, left: int) -> None:
        for k, image in enumerate(images):
            pixels = (255 * image.clamp(0, 1)).round().byte().permute(1, 2, 0).numpy()
            place = canvas[top : top + tall, left + k * cell : left + k * cell + wide]
            place[..., :3], place[..., 3] = pixels, 255  # grey goes to all three

    words: list[tuple[int, float, str]] = []
    for k, s in enumerate(rows):
        top = _HEAD + k * step + _BAND
        put(real_by_row.get((s.client, s.label), torch.empty(0, channels, tall, wide)), top, 0)
        for b, i in enumerate(i for i in s.numbers if i in generated):
            left = start + b * (count * cell + _GAP)
            put(generated[i], top, left)
            n = uploads.counts[i]
            notes = [f"n {n}"] * bool(n) + ["merged"] * (i not in uploads.kept)
            words.append((left, top - 5.5, ", ".join(notes)))
    height, width = canvas.shape[:2]
    margin = 84.0
    scale = (figures.WIDE - margin - 10) / max(width, 17 * cell)
    with figures.style(name):
        full = (figures.WIDE, height * scale + 6)
        figure = Figure(figsize=(full[0] / 72, full[1] / 72))
        axes = figure.add_axes((margin / full[0], 3 / full[1], width * scale / full[0], height * scale / full[1]))
        axes.imshow(canvas, interpolation="none", origin="upper", extent=(0, width, height, 0), aspect="auto")
        axes.set_axis_off()
        heads = [(0.0, "real, the client’s own")] if real_by_row else []
        heads.append((float(start), "made from its embeddings, one block each"))
        for x, text in heads:
            axes.annotate(text, (x, _HEAD - 8), va="center", fontsize=10, fontweight="bold", annotation_clip=False)
        for x, y, text in words:
            axes.annotate(text, (x, y), va="center", fontsize=9, annotation_clip=False)
        for k, s in enumerate(rows):
            middle = _HEAD + k * step + _BAND + tall / 2
            axes.annotate(
                f"client {s.client}\nlabel {s.label}", (0, middle), (-8, 0), textcoords="offset points", ha="right",
                va="center", fontsize=10, annotation_clip=False,
            )  # fmt: skip
        svg = figures.markup(
            figure, name,
            f"Images made from the embeddings of {r.method}, seed {r.seed}, for {len(rows)} labels of clients"
            + (", beside real ones of the same client and label." if real_by_row else "."),
        )  # fmt: skip
    merged = any("merged" in text for _, _, text in words)
    hidden = max(len(s.numbers) for s in rows) - blocks
    caption = (
        f"{r.method}, seed {r.seed}: each row is a label of a client. "
        + (
            f"Left, its first {REAL} training images of that label, {wide} x {tall} pixels as the prior sees them; "
            "right, "
            if real_by_row
            else ""
        )
        + f"{count} images that the prior makes from each embedding"
        + (" (n: images behind it)" if any(uploads.counts) else "")
        + ". They are made again for this page, with other noise than in the run, from what the server knows: the "
        "embeddings, and no image."
        + (" Merged: another client’s embedding was sent for it." if merged else "")
        + (f" Of more than {blocks} embeddings the first are drawn." if hidden > 0 else "")
        + (f" The {len(rows)} largest of {all_rows} rows, every client in turn." if len(rows) < all_rows else "")
        + (
            f" No real images beside them: {real}."
            if isinstance(real, str)
            else " The real ones are here because this run was a simulation on data that lies on this machine: think "
            "before passing the page on."
        )
    )
    return Chart(f"What the embeddings say, {r.method}", caption, svg, wide=True)


KIND = SectionKind("one-round methods that send embeddings", (Embeddings, Mixtures), section)
