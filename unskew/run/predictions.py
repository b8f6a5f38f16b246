"""Predictions for files: rows of a table, images, texts, or examples of an array.

    rows     FILE.csv, .tsv, .parquet, .pq with the columns of training, among any others; or FILE.npy, all in order
    images   files and folders of them, or FILE.npy: one array (N, H, W), (N, H, W, 3) or (N, C, H, W)
    texts    FILE.txt, a text a line
    numbers  FILE.npy, one array (N, ...)

Columns of a table are returned as they stand in the file.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from unskew import machine
from unskew.data import image_folders, tables
from unskew.data.inputs import Inputs, Notation
from unskew.data.places import Place, by_number
from unskew.errors import DataError, noted
from unskew.protocol import ClientId
from unskew.run import models
from unskew.tasks import kind_of
from unskew.tasks.targets import RowError

Row = dict[str, Any]
Read = tuple[list[Row], Any, Place]
"""What is shown of each row, the inputs of `predict`, and where a row stands."""


def predict_files(
    model: nn.Module,
    paths: Sequence[Path],
    notation: Notation,
    client: ClientId | str | None = None,
    probabilities: bool = False,
    threshold: float | None = None,
) -> list[Row]:
    """Predictions for each row, image, text or example, in order.

    Args:
        model: From `load_model`.
        paths: The files, of the kind that the model was trained on.
        notation: How a CSV file is written.
        client: As in `predict`.
        probabilities: Add the probability of every class.
        threshold: As in `predict`.

    Returns:
        A row for each.  It begins with the columns of the table, the `file` of an image, the `text`, or the `example`
        from 0.  Then comes `predicted` (of survival `log_relative_risk`), and with `probabilities` a column
        `probability of CLASS` for each.

    Raises:
        ConfigError: As in `predict`.
        DataError: As in `predict`, or if the files are of another kind or cannot be read.
    """
    card = models.card_of(model)
    read = {"table": _rows, "images": _images, "texts": _texts}.get(card.inputs.kind, _numbers)
    shown, x, place = read(card.inputs, paths, notation)
    if not shown:
        raise DataError(f"{paths[0]} is empty: there is nothing to predict")
    by_class: list[Row] = [{}] * len(shown)
    try:
        if probabilities:
            by_class = models.predict(model, x, client=client, probabilities=True)
        with noted() if probabilities else nullcontext():  # what is odd has been said
            predictions = models.predict(model, x, client=client, threshold=threshold)
    except RowError as error:
        raise DataError(f"{paths[0]}: {place(error.row)} {error.what}") from None
    added = [kind_of(card.task.kind).predicted, *(f"probability of {name}" for name in by_class[0])]
    twice = next((name for name in added if name in shown[0]), None)
    if twice is not None:
        trained = any(column.name == twice for column in card.inputs.columns)
        remedy = "use unskew.predict in Python, since the model takes it" if trained else "rename it there"
        raise DataError(f"{paths[0]} already has a column {twice!r}, where predictions go; {remedy}")
    return [
        {**row, **dict(zip(added, (one, *of.values()), strict=True))}
        for row, one, of in zip(shown, predictions, by_class, strict=True)
    ]


def _rows(inputs: Inputs, paths: Sequence[Path], notation: Notation) -> Read:
    if paths[0].suffix.lower() == ".npy":
        return _numbers(inputs, paths, notation)
    path = _one(paths, "one table (.csv, .tsv, .parquet, .pq)", tables.kind_of(str(paths[0])) is not None)
    return tables.for_model(path, notation, inputs.columns)


def _images(inputs: Inputs, paths: Sequence[Path], notation: Notation) -> Read:
    if paths[0].suffix.lower() == ".npy":
        return _numbers(inputs, paths, notation)
    files = [file for path in paths for file in (image_folders.images_below(path) if path.is_dir() else [path])]
    if not files:
        raise DataError(f"there is no image below {paths[0].absolute()}")
    return [{"file": str(file)} for file in files], files, by_number


def _texts(inputs: Inputs, paths: Sequence[Path], notation: Notation) -> Read:
    path = _one(paths, "one file of texts, a text a line (.txt)", paths[0].suffix.lower() == ".txt")
    try:
        # Not splitlines, for which form feeds and other characters of a text end lines, too.
        texts = path.read_text("utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not in UTF-8; save it so") from None
    except OSError as error:
        raise DataError(f"{path.absolute()} cannot be read: {error.strerror}") from None
    texts = [] if texts == [""] else texts
    return [{"text": text} for text in texts], texts, by_number


def _numbers(inputs: Inputs, paths: Sequence[Path], notation: Notation) -> Read:
    path = _one(paths, "one array of examples (.npy)", paths[0].suffix.lower() == ".npy")
    try:
        if not path.is_file():
            raise OSError("there is no such file")
        # Mapped, so that a file cannot announce more than it has.
        x = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(x, np.ndarray) or x.ndim == 0:
            raise ValueError("it is an archive or a single number")
        if x.dtype.kind not in "biuf" or (len(x) and not x.size):
            raise ValueError(f"it holds no numbers but {x.dtype} of shape {x.shape}")
        machine.require_room(x.nbytes, path)
        x = np.array(x)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path.absolute()} is not a readable array: {error}; write it with numpy.save") from None
    return [{"example": i} for i in range(len(x))], x, by_number


def _one(paths: Sequence[Path], what: str, right: bool) -> Path:
    if len(paths) > 1 or not right:
        raise DataError(f"give {what}, as the model was trained on, got {', '.join(map(str, paths))}")
    return paths[0]
