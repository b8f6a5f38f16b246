"""Images generated from embeddings, beside the clients' own: what needs FedDistr's prior.

Images are generated again for the page, from the embeddings in its record and the experiment's prior, with other noise
than in the run, so a run folder is all that is needed.  Only unskew's own priors are used for that: a Stable Diffusion
pipeline takes minutes an image here, and may be remote.  Real images are shown beside them if the run was a simulation
whose data can still be read and have the same hash.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup
from PIL import Image
from torch import Tensor

from unskew import priors
from unskew.data.images import extremes
from unskew.data.sources import SCHEMES, load
from unskew.errors import ConfigError, DataError
from unskew.info import Embeddings
from unskew.keys import Key
from unskew.priors.builtin import CARD
from unskew.record.reader import Record, configured, holdings
from unskew.report.section import Chart

MOST_ROWS = 10  # of the gallery, each a label of a client
MOST_BLOCKS = 6  # embeddings of one row
MADE, REAL = 12, 5  # pictures in a row, about

Rows = Mapping[tuple[int, int], Sequence[int]]
"""Numbers of the embeddings of each client and label."""


def gallery_rows(sent: Embeddings) -> tuple[Rows, int]:
    """The gallery's rows, those with the most images behind them, and their number without the limit."""
    numbers: dict[tuple[int, int], list[int]] = {}
    for i, at in enumerate(zip(sent.owners, sent.labels, strict=True)):
        numbers.setdefault(at, []).append(i)
    largest = sorted(numbers, key=lambda at: (-sum(sent.counts[i] for i in numbers[at]), at))[:MOST_ROWS]
    return {at: numbers[at] for at in sorted(largest)}, len(numbers)


def gallery(record: Record, method: str, seed: int, sent: Embeddings, options: Mapping[str, Any]) -> Chart | str:
    """Images generated from a method's embeddings beside real ones of the same label and client, or why there are none.

    Args:
        record: The run.
        method, seed, sent: The method, and its embeddings under a seed.
        options: Its table in config.toml.
    """
    source = str(options.get("prior", priors.BUILT_IN))
    missing = f"No images are drawn for {method}: "
    if sent.coordinates != "embedding":
        return f"{missing}there were more embeddings than a run’s record holds whole."
    if source != priors.BUILT_IN and not (Path(source) / CARD).is_file():
        return f"{missing}they take the prior {source}, and here that is none of unskew’s own."
    rows, all_rows = gallery_rows(sent)
    blocks = min(MOST_BLOCKS, max(map(len, rows.values())))
    numbers = [i for row in rows.values() for i in row[:blocks]]
    v = torch.tensor([sent.embeddings[i] for i in numbers], dtype=torch.float32)
    count, key = max(2, min(6, MADE // blocks)), Key(seed) / "gallery"
    try:
        prior = priors.load(source)
        images = prior.sample(v, count, key, options.get("guidance"), options.get("sampling_steps"))
    except (ConfigError, DataError) as error:
        return f"{missing}{error}."
    real = real_images(record, seed, list(rows), prior.image_shape)
    lines = []
    for (client, label), row in rows.items():
        whose = f"client {client}, label {label}"
        beside = None if isinstance(real, str) else real[client, label]
        cells = [] if beside is None or not len(beside) else [_picture(beside, f"real images of {whose}", "real")]
        for i in row[:blocks]:
            notes = [f"n {sent.counts[i]}"] * bool(sent.counts[i]) + ["merged"] * (i not in sent.kept)
            made = images[numbers.index(i)]
            cells.append(_picture(made, f"made from embedding {i} of {whose}", ", ".join(notes)))
        lines.append(Markup("<tr><th scope=row>{}</th>{}</tr>").format(whose, Markup("").join(cells)))
    caption = (
        "Made again for this page, with other noise than in the run, from what the server knows: the embeddings"
        + " (n: images behind each)" * any(sent.counts)
        + ". Merged: another client’s was sent for it."
        + f" The {len(rows)} largest of {all_rows} rows." * (len(rows) < all_rows)
        + (f" No real images beside them: {real}." if isinstance(real, str) else "")
    )
    html = Markup('<table class="gallery">{}</table>').format(Markup("").join(lines))
    return Chart(f"What the embeddings of {method} say, seed {seed}", caption, None, wide=True, html=html)


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
    if record.deployed:
        return "the clients were real ones, and their images stay with them"
    task = configured(record).get("task", {})
    source, folder = str(task.get("data", "")), task.get("data_dir")
    kind, colon, _ = source.partition(":")
    if kind == "hub" or (colon and kind not in SCHEMES):
        return "a report downloads nothing and imports nothing"
    try:
        dataset = load(source, None if folder is None else Path(str(folder)), task.get("data_options"))
    except (DataError, ConfigError):
        return f"the data {source or 'of the run'} is not on this machine"
    partition = record.partitions.get(seed)
    if partition is None or dataset.sha256 != partition.dataset_sha256:
        return f"{dataset.name} is not what it was when the run was made"
    low, high = (0.0, 1.0) if dataset.levels else extremes(dataset.x_train)
    if dataset.x_train.dim() != 4 or not 0 <= low <= high <= 1:
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
