"""Images generated from embeddings with FedDistr's prior.

A page has no real image.  Images are generated for the page, with other noise than in the run, from the embeddings in
its record.  Only unskew's own priors are used, since Stable Diffusion takes minutes an image and may be remote.
"""

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup
from PIL import Image
from torch import Tensor

from unskew import priors
from unskew.errors import ConfigError, DataError
from unskew.info import Embeddings
from unskew.keys import Key
from unskew.priors.builtin import CARD
from unskew.record.reader import DataSplit
from unskew.report.section import Chart

MOST_ROWS = 10  # of the gallery, each a class
MOST_BLOCKS = 6  # embeddings of one row
MADE = 12  # pictures in a row, about


def by_label(sent: Embeddings) -> tuple[dict[int, list[int]], int]:
    """Indices of each label's embeddings, those with the most images behind them; and the number of all labels."""
    numbers: dict[int, list[int]] = {}
    for i, label in enumerate(sent.labels):
        numbers.setdefault(label, []).append(i)
    largest = sorted(numbers, key=lambda label: (-sum(sent.counts[i] for i in numbers[label]), label))[:MOST_ROWS]
    most = {label: sorted(numbers[label], key=lambda i: -sent.counts[i])[:MOST_BLOCKS] for label in sorted(largest)}
    return most, len(numbers)


def gallery(
    method: str, seed: int, sent: Embeddings, options: Mapping[str, Any], division: DataSplit | None = None
) -> Chart | str:
    """Images generated from a method's embeddings, a row for each class, or why there are none.

    `options` are the method's table in config.toml; `division` has the names of classes and clients.
    """
    source = str(options.get("prior", priors.BUILT_IN))
    missing = f"No images are drawn for {method}: "
    if sent.coordinates != "embedding":
        return f"{missing}there were more embeddings than a run’s record holds whole."
    if source != priors.BUILT_IN and not (Path(source) / CARD).is_file():
        return f"{missing}they take the prior {source}, and here that is none of unskew’s own."
    rows, labels = by_label(sent)
    numbers = [i for row in rows.values() for i in row]
    v = torch.tensor([sent.embeddings[i] for i in numbers], dtype=torch.float32)
    count, key = max(2, min(6, MADE // max(map(len, rows.values())))), Key(seed) / "gallery"
    try:
        images = priors.load(source).sample(v, count, key, options.get("guidance"), options.get("sampling_steps"))
    except (ConfigError, DataError) as error:
        return f"{missing}{error}."
    lines = []
    for label, row in rows.items():
        name, cells = division.label(label) if division else str(label), []
        for i in row:
            whose = f"client {division.client(sent.owners[i]) if division else sent.owners[i]}"
            notes = [whose, *[f"n {sent.counts[i]}"] * bool(sent.counts[i]), *["merged"] * (i not in sent.kept)]
            made = images[numbers.index(i)]
            cells.append(_picture(made, f"generated images of class {name}, {whose}", ", ".join(notes)))
        lines.append(Markup("<tr><th scope=row>{}</th>{}</tr>").format(name, Markup("").join(cells)))
    caption = (
        "No client’s image is here: these were generated for the page, with other noise than in the run, from what "
        "the server knows."
        + " n: images behind an embedding." * any(sent.counts)
        + " Merged: another client’s was sent for it."
        + f" The {len(rows)} largest of {labels} classes." * (len(rows) < labels)
    )
    html = Markup('<table class="gallery">{}</table>').format(Markup("").join(lines))
    return Chart(
        f"Images by class, generated from the embeddings of {method}, seed {seed}", caption, None, wide=True, html=html
    )


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
