"""Images generated from embeddings, beside the clients' own, and latents: all that needs FedDistr's prior.

Images are generated again for the page, from the embeddings in its record and the experiment's prior, with other noise
than in the run, so a run folder is all that is needed.  Only unskew's own priors are used for that: a Stable Diffusion
pipeline takes minutes an image here, and may be remote.  Real images, and their latents in the clusters the clients
found, are shown beside them if the run was a simulation whose data can still be read and have the same hash.  The
server of a deployed run has no images, and its report never looks for any.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import numpy.typing as npt
import torch
from markupsafe import Markup
from PIL import Image
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
from unskew.report import charts
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


def latent_chart(method: str, by_client: Sequence[Latents]) -> Chart | None:
    """Latents of the clients' images in one plane, a panel for each client; None if there are none that differ.

    Args:
        method: Source of the clusters, for the title: a method's label, and the seed.
        by_client: Latents of each client.
    """
    every = np.concatenate([f.z for f in by_client]) if by_client else np.empty((0, 0))
    if len(every) < 3 or not np.ptp(every, axis=0).max() > 0:
        return None
    middle = every.mean(0)
    plane, share = principal(every - middle)
    points: list[dict[str, object]] = []
    for f in by_client:
        at = (f.z - middle) @ plane
        for y, k in sorted(set(zip(f.labels.tolist(), f.clusters.tolist(), strict=True))):
            own = at[(f.labels == y) & (f.clusters == k)]
            where = {"panel": f"client {f.client}", "label": str(y), "cx": own[:, 0].mean(), "cy": own[:, 1].mean()}
            points += [{**where, "x": x, "y": y} for x, y in own[:MOST_SPOKES].tolist()]
    labels = sorted({str(p["label"]) for p in points}, key=int)
    base = alt.Chart(charts.rows(points)).encode(
        x=charts.bare("x"), y=charts.bare("y"),
        color=charts.by_name(charts.colours(labels), "label", legend=True), tooltip="label:N",
    )  # fmt: skip
    spokes = base.mark_rule(opacity=0.3, strokeWidth=0.6).encode(x2="cx:Q", y2="cy:Q")
    layers = alt.layer(spokes, base.mark_point(filled=True, size=8, opacity=0.8))
    drawn = charts.faceted(layers, list(dict.fromkeys(str(p["panel"]) for p in points)), 3, height=200)
    caption = (
        "A dot is a training image as the prior’s encoder sees it, joined to its cluster’s centre. The plane holds "
        f"{100 * share:.0f} % of the variance. No server sees this: the run was a simulation."
    )
    told = f"Latents of {len(every)} images of {counted(len(by_client), 'client')} in the plane, {method}."
    return Chart(f"Latent clusters by client, {method}", caption, drawn, told, wide=True)


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


def gallery(record: Record, r: OneRound, uploads: Uploads, options: Mapping[str, Any]) -> Chart | str:
    """Images generated from a method's embeddings beside real ones of the same label and client, or why there are none.

    Args:
        record: The run.
        r: The method.
        uploads: Its embeddings.
        options: Its table in config.toml.
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
    return _gallery_chart(r, uploads, rows, all_rows, images, real)


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


def _gallery_chart(
    r: OneRound,
    uploads: Uploads,
    rows: Sequence[GalleryRow],
    all_rows: int,
    generated: Mapping[int, Tensor],
    real: Mapping[tuple[int, int], Tensor] | str,
) -> Chart:
    """A table of pictures: a row for each label of a client, its real images, and a cell for each embedding."""
    lines = []
    for s in rows:
        whose = f"client {s.client}, label {s.label}"
        beside = None if isinstance(real, str) else real.get((s.client, s.label))
        cells = [] if beside is None or not len(beside) else [_picture(beside, f"real images of {whose}", "real")]
        for i in (i for i in s.numbers if i in generated):
            notes = [f"n {uploads.counts[i]}"] * bool(uploads.counts[i]) + ["merged"] * (i not in uploads.kept)
            cells.append(_picture(generated[i], f"made from embedding {i} of {whose}", ", ".join(notes)))
        lines.append(Markup("<tr><th scope=row>{}</th>{}</tr>").format(whose, Markup("").join(cells)))
    table = Markup('<table class="gallery">{}</table>').format(Markup("").join(lines))
    caption = (
        "Made again for this page, with other noise than in the run, from what the server knows: the embeddings"
        + (" (n: images behind each)" if any(uploads.counts) else "")
        + ". Merged: another client’s was sent for it."
        + (f" The {len(rows)} largest of {all_rows} rows." if len(rows) < all_rows else "")
        + (
            f" No real images beside them: {real}."
            if isinstance(real, str)
            else " Think before passing on real images."
        )
    )
    return Chart(f"What the embeddings of {r.method} say, seed {r.seed}", caption, None, wide=True, html=table)


def _picture(images: Tensor, what: str, below: str) -> Markup:
    """Images, (n, C, H, W) in [0, 1], side by side as one picture in a cell, with words below it."""
    strip = torch.cat(list(torch.nn.functional.pad(images.clamp(0, 1), (0, 1), value=1.0)), dim=2)
    pixels = (255 * strip.expand(3, -1, -1) if strip.shape[0] == 1 else 255 * strip).round().byte().permute(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(file, "png")
    high, wide = (max(1, 32 // images.shape[2]) * side for side in strip.shape[1:])
    return Markup(
        '<td><img alt="{}" width="{}" height="{}" src="data:image/png;base64,{}"><small>{}</small></td>'
    ).format(what, wide, high, base64.b64encode(file.getvalue()).decode(), below)
