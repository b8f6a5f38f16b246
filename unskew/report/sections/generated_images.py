"""Images generated from embeddings: what needs FedDistr's prior.

Images are generated again for the page, from the embeddings in its record and the experiment's prior, with other noise
than in the run, so a run folder is all that is needed.  Only unskew's own priors are used for that: a Stable Diffusion
pipeline takes minutes an image here, and may be remote.
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
from unskew.errors import ConfigError, DataError
from unskew.info import Embeddings
from unskew.keys import Key
from unskew.priors.builtin import CARD
from unskew.report.section import Chart

MOST_ROWS = 10  # of the gallery, each a label of a client
MOST_BLOCKS = 6  # embeddings of one row
MADE = 12  # pictures in a row, about

Rows = Mapping[tuple[int, int], Sequence[int]]
"""Numbers of the embeddings of each client and label."""


def gallery_rows(sent: Embeddings) -> tuple[Rows, int]:
    """The gallery's rows, those with the most images behind them, and their number without the limit."""
    numbers: dict[tuple[int, int], list[int]] = {}
    for i, at in enumerate(zip(sent.owners, sent.labels, strict=True)):
        numbers.setdefault(at, []).append(i)
    largest = sorted(numbers, key=lambda at: (-sum(sent.counts[i] for i in numbers[at]), at))[:MOST_ROWS]
    return {at: numbers[at] for at in sorted(largest)}, len(numbers)


def gallery(method: str, seed: int, sent: Embeddings, options: Mapping[str, Any]) -> Chart | str:
    """Images generated from a method's embeddings, or why there are none; `options` are its table in config.toml."""
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
        images = priors.load(source).sample(v, count, key, options.get("guidance"), options.get("sampling_steps"))
    except (ConfigError, DataError) as error:
        return f"{missing}{error}."
    lines = []
    for (client, label), row in rows.items():
        whose, cells = f"client {client}, label {label}", []
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
    )
    html = Markup('<table class="gallery">{}</table>').format(Markup("").join(lines))
    return Chart(f"What the embeddings of {method} say, seed {seed}", caption, None, wide=True, html=html)


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
