"""Images generated from embeddings, beside the clients' own, and latents: all that needs FedDistr's prior.

Images are generated again for the page, from the embeddings in its record and the experiment's prior, with other noise
than in the run, so a run folder is all that is needed.  Only unskew's own priors are used for that: a Stable Diffusion
pipeline takes minutes an image here, and may be remote.  Real images, and their latents in the clusters the clients
found, are shown beside them if the run was a simulation whose data can still be read and have the same hash.  The
server of a deployed run has no images, and its report never looks for any.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from matplotlib.path import Path as Shape
from torch import Tensor

from unskew import priors
from unskew.algorithms.feddistr import Disentangle, FedDistr
from unskew.data.dataset import Dataset
from unskew.data.images import ByteImages, extremes
from unskew.data.sources import SCHEMES, load
from unskew.errors import ConfigError, DataError
from unskew.keys import Key
from unskew.local import imagery
from unskew.local.imagery import TaskImagery
from unskew.priors.builtin import CARD
from unskew.record.reader import Record, configured, holdings
from unskew.report import figures
from unskew.report.section import Chart
from unskew.report.sections.one_round import Floats, OneRound, Uploads, principal
from unskew.server.kmeans import kmeans
from unskew.words import counted

MOST_ROWS = 10  # of the gallery, each a label of a client
MOST_BLOCKS = 6  # embeddings of one row
MADE, REAL = 12, 5  # pictures in a row, about
MOST_PANELS = 6  # clients whose latents are drawn
MOST_LATENTS = 6_000  # images that a page encodes
MOST_SPOKES = 100  # images drawn of a cluster


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
        return f"the first {counted(len(held), 'client')} have {images:,} images, more than a page encodes"
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
        figure = figures.sheet(12 + 190 * down, figures.WIDE)
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
            f"Latents of {len(every)} images of {counted(len(by_client), 'client')} in the plane, in {number} "
            f"clusters, {method}.",
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
    if record.deployed:
        return "the clients were real ones, and their images stay with them"
    partition = record.partitions.get(seed)
    if partition is None:
        return "the record does not say who had which"
    dataset = _data(record)
    if not isinstance(dataset, str) and dataset.sha256 != partition.dataset_sha256:
        return f"{dataset.name} is not what it was when the run was made"
    return dataset


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
