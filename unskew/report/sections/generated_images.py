"""Images generated from embeddings, beside the clients' own: what needs FedDistr's prior.

Images are generated again for the page, from the embeddings in its record and the experiment's prior, with other noise
than in the run, so a run folder is all that is needed.  Only unskew's own priors are used for that: a Stable Diffusion
pipeline takes minutes an image here, and may be remote.  Real images are shown beside them if the run was a simulation
whose data can still be read and have the same hash.  The server of a deployed run has no images, and its report never
looks for any.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup
from PIL import Image
from torch import Tensor

from unskew import priors
from unskew.data.dataset import Dataset
from unskew.data.images import ByteImages, extremes
from unskew.data.sources import SCHEMES, load
from unskew.errors import ConfigError, DataError
from unskew.keys import Key
from unskew.priors.builtin import CARD
from unskew.record.reader import Record, configured, holdings
from unskew.report.section import Chart
from unskew.report.sections.one_round import OneRound, Uploads

MOST_ROWS = 10  # of the gallery, each a label of a client
MOST_BLOCKS = 6  # embeddings of one row
MADE, REAL = 12, 5  # pictures in a row, about


def own(source: str) -> bool:
    """True if a prior is one of unskew's, which are small enough to sample from while a page is made."""
    return source == priors.BUILT_IN or (Path(source) / CARD).is_file()


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
