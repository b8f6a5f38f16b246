"""Preprocessing of raw inputs; stored with a trained model, so that it can be used on new data."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import time, timedelta
from decimal import Decimal as DecimalNumber
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unskew.data.columns import check_one_form, composed_names
from unskew.data.places import place
from unskew.data.text import FIRST_WORD, tokens
from unskew.errors import ConfigError, DataError, did_you_mean, warn
from unskew.words import composed, counted, some, with_article

_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([ T].*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}")

GAPS = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "null", "NULL", "None", "?")
"""Words of a CSV file that mean that there is no value."""

FAR_BEYOND = 20
"""Times that one part's largest pixel is another's, from which on they can hardly have been scaled alike."""

SUDDEN, NEVER = 5, 20
"""Rows from which on gaps in most are no chance where training had none, and gaps in all where it had some."""

ROWS = 4096
"""Examples that are checked or converted at a time, so that what is needed for it stays small."""

AXES = ("channels", "height", "width")
"""Dimensions of an image as networks take it."""

MOST_CHANNELS = 64
"""Length of the shorter of two dimensions up to which it is that of channels."""

Array = npt.NDArray[Any]
RawTable = Mapping[str, Array]
"""Columns by name, of one length: numbers as float64 with NaN for a gap, or words as objects with None for a gap."""


@dataclass(frozen=True)
class Column:
    """A column of a table, and what becomes of it: (value - mean) / sd, or a 0/1 column for each word.

    `fill`, `mean` and `sd` have one number, or one for each of `Inputs.clients`.

    Attributes:
        name: Its name in the table.
        kind: "number", or "category": words.
        fill: What takes the place of a gap, in the column's unit; empty if gaps are refused.
        mean, sd: Of the training rows; empty if the column keeps its scale.  Where sd is 0 the column becomes 0.
        gaps: Followed by a 0/1 column that says where a gap was.
        values: The words that have a column each, in order.
        other: A further column for words that are none of these; without it they are 0 in all.
        unlearnt: Those of `values` that no client had in training.  They count as none of these: nothing was learnt for
            their columns, which stay 0.
        gaps_unlearnt: No client had a gap in training, so the 0/1 column of gaps stays 0.
    """

    name: str
    kind: Literal["number", "category"] = "number"
    fill: tuple[float, ...] = ()
    mean: tuple[float, ...] = ()
    sd: tuple[float, ...] = ()
    gaps: bool = False
    values: tuple[str, ...] = ()
    other: bool = False
    unlearnt: tuple[str, ...] = ()
    gaps_unlearnt: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the network's inputs that the column becomes."""
        own = (self.name,) if self.kind == "number" else tuple(f"{self.name}={value}" for value in self.values)
        return (
            *own,
            *((f"{self.name}=other",) if self.other else ()),
            *((f"{self.name} missing",) if self.gaps else ()),
        )

    @property
    def by_client(self) -> bool:
        """True if each client's values are scaled or filled with numbers of its own."""
        return max(len(self.fill), len(self.mean)) > 1

    def contradiction(self, clients: int) -> str:
        """Say what cannot be in a file from elsewhere, where so many clients have numbers; empty if all fits."""
        if len(self.mean) != len(self.sd):
            return f"column {self.name!r} has {len(self.mean)} means and {len(self.sd)} deviations"
        for what, numbers in (("fill", self.fill), ("mean", self.mean)):
            if len(numbers) > 1 and len(numbers) != clients:
                return f"column {self.name!r} has {len(numbers)} numbers of {what} for {clients} clients"
        return ""

    def prepared(self, values: Array, client: npt.NDArray[np.int64] | int) -> npt.NDArray[np.float64]:
        """The network's inputs (N, features) from raw values (N,).

        Args:
            values: float64 or objects, as in a `RawTable`.
            client: Number of each row's client, or of all rows' client.

        Raises:
            DataError: If there is a gap and gaps are refused, or a number is infinite in float32.
        """
        missing = np.isnan(values) if self.kind == "number" else np.array([v is None for v in values], bool)
        gaps = [missing[:, None] & (not self.gaps_unlearnt)] if self.gaps else []
        if self.kind == "category":
            number = {value: i for i, value in enumerate(self.values) if value not in self.unlearnt}
            width = len(self.values)
            code = np.array([-1 if v is None else number.get(v, width if self.other else -1) for v in values], int)
            return np.concatenate([code[:, None] == np.arange(width + self.other), *gaps], 1, dtype=np.float64)
        with np.errstate(over="ignore"):  # networks take float32, in which larger numbers are infinite
            bad = np.flatnonzero(np.isinf(values.astype(np.float32)) | (missing & (not self.fill)))
        if len(bad):
            one = values[bad[0]]
            state = "has no value" if missing[bad[0]] else "is infinite" if np.isinf(one) else f"is {one:g}"
            raise DataError(f"column {self.name!r} {state} in {place(bad[0])}; correct it, or leave the row out")
        if self.fill:
            values = np.where(missing, _of_client(self.fill, client), values)
        if self.mean:
            sd = _of_client(self.sd, client)
            values = np.where(sd > 0, (values - _of_client(self.mean, client)) / np.where(sd > 0, sd, 1), 0)
        return np.concatenate([values[:, None], *gaps], 1, dtype=np.float64)


def _far_from_training(column: Column, values: Array) -> str:
    """A sentence on numbers that are so far from those of training that their unit may be another; empty if none is."""
    if values.dtype.kind != "f" or len(column.sd) != 1 or not column.sd[0] or np.isnan(values).all():
        return ""
    middle, mean, sd = float(np.nanmedian(values)), column.mean[0], column.sd[0]
    if abs(middle - mean) <= FAR_BEYOND * sd:
        return ""
    return (
        f"column {column.name!r} is {'about ' * (len(values) > 1)}{middle:g} here, and had the mean {mean:g} (standard "
        f"deviation {sd:g}) in training: is it in the same unit?"
    )


def _words_unknown(column: Column, values: Array) -> str:
    """A sentence on words that training did not have; empty if all are known."""
    if column.kind != "category":
        return ""
    known = set(column.values).difference(column.unlearnt)
    words = _codes(values, column.values).tolist()
    unknown = Counter(one for one in words if one is not None and one not in known)
    if not unknown:
        return ""
    each = [f"{one!r} in {n:,}" if len(unknown) > 1 else repr(one) for one, n in unknown.most_common()]
    return (
        f"column {column.name!r} holds words here that training did not have, in {unknown.total():,} of "
        f"{counted(len(words), 'row')}, such as {some(each)}, and they "
        f"{'count as one other word' if column.other else 'say nothing to the model'} (known: {some(column.values)})"
    )


def _values_missing(column: Column, values: Array) -> str:
    """A sentence on a column without values in most rows, of whose gaps the model knows nothing, or in any row."""
    missing, rows = int(gaps_in(values).sum()), len(values)
    if column.gaps and not column.gaps_unlearnt:
        if missing < rows or rows < NEVER:
            return ""
        return f"column {column.name!r} has no value in any of {rows:,} rows: is it written elsewhere, or otherwise?"
    if 2 * missing <= rows or rows < SUDDEN:
        return ""
    instead = f"takes {column.fill[0]:g}" if column.fill else "takes none of the words"
    return (
        f"column {column.name!r} has no value in {missing:,} of {counted(rows, 'row')}, where the model {instead}, as "
        "it knows of no gaps in it: is it written elsewhere, or otherwise?"
    )


def _without_values(table: RawTable) -> str:
    """A sentence on rows that have no value in any column; empty if there are none."""
    gaps = [np.isnan(v) if v.dtype.kind == "f" else np.array([one is None for one in v], bool) for v in table.values()]
    rows = np.flatnonzero(np.logical_and.reduce(gaps))
    if not len(rows):
        return ""
    several = f" ({len(rows):,} such rows in all)" if len(rows) > 1 else ""
    return f"{place(rows[0])} has no value in any column{several}, and what is predicted of it says nothing"


def _of_client(numbers: tuple[float, ...], client: npt.NDArray[np.int64] | int) -> Any:
    return np.asarray(numbers)[client] if len(numbers) > 1 else numbers[0]


@dataclass(frozen=True)
class Inputs:
    """The way from raw inputs to tensors.

    Attributes:
        kind: "images" are uint8 and standardised by channel, "texts" become token ids, a "table" is prepared column by
            column, anything else stays as given.
        mean, std: By which each channel of images, in [0, 1], is standardised; a deviation of 0 makes the channel 0.
        vocabulary: Words of the training texts, in the order of their token ids.
        columns: Columns of a table, in order.
        clients: Names of the clients whose numbers some columns have.
        gaps: Words of the table that mean that there is no value; a word that is a number means that number, too.
        thousands, decimal, encoding: How the table's file is written (`unskew.data.tables.TableOptions`).
        shape: Of one example as the network takes it; empty of texts and tables, and in files of older versions.
        axes: Names of the shape's dimensions, where these are images.
        dtype: "float32" or "int64", of inputs that stay as given; empty of others, and in files of older versions.
        largest: Largest absolute value of the training images, before they were standardised; None of others, and in
            files of older versions.
        made_grey: True if images with colours were made grey, so that a new one is made so, too.
    """

    kind: Literal["as given", "images", "texts", "table"] = "as given"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    vocabulary: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    clients: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    thousands: str = ""
    decimal: Literal[".", ","] = "."
    encoding: str = "utf-8"
    shape: tuple[int, ...] = ()
    axes: tuple[str, ...] = ()
    dtype: str = ""
    largest: float | None = None
    made_grey: bool = False

    def contradiction(self, shape: tuple[int, ...]) -> str:
        """Say what cannot be in a file from elsewhere, since a part does not fit another; empty if all fit.

        Args:
            shape: Of one example, as the network takes it.
        """
        if self.kind == "images":
            if not len(self.mean) == len(self.std) == (self.shape or shape or (0,))[0]:
                return f"images have {len(self.mean)} means and {len(self.std)} deviations, not one for each channel"
        elif self.kind == "table":
            if not self.columns:
                return "a table has no columns"
            return next(filter(None, (column.contradiction(len(self.clients)) for column in self.columns)), "")
        return ""

    def of(self, client: str | int | None) -> "Inputs":
        """The same with one client's own numbers alone, so that the others' stay where they are.

        Raises:
            DataError: If columns have clients' own numbers, and there are none of a client of this name.
        """
        if client is None or not self.clients:
            return self
        names, called = self.clients, client
        if client not in names and isinstance(client, str):
            names, called = tuple(map(composed, names)), composed(client)
        if called not in names:
            raise DataError(
                f"columns were scaled or filled with each client's own numbers, and there are none of {client!r}"
                f"{did_you_mean(str(client), self.clients)} (clients: {some(self.clients)})"
            )
        at = names.index(str(called))
        own = [
            replace(c, **{key: of[at : at + 1] for key in ("fill", "mean", "sd") if len(of := getattr(c, key)) > 1})
            for c in self.columns
        ]
        return replace(self, columns=tuple(own), clients=(self.clients[at],))

    def prepare(self, x: Any, client: str | int | None = None) -> Tensor:
        """The tensor a network takes for a batch of raw inputs.

        Args:
            x: Images (N, H, W), (N, H, W, channels) or (N, channels, H, W), with whole values from 0 to 255 or with
                floats, as in training; texts; an array of numbers; or a DataFrame, a mapping of columns, a row
                (mapping) or a list of rows, with the columns trained on.
            client: Name of the client whose rows they are, where each client's were scaled with its own numbers.

        Raises:
            DataError: If they are no such inputs, of another shape than those of training, or not finite.
        """
        if self.kind == "texts":
            return self._texts(x)
        if self.kind == "table":
            return self.of(client)._table(x)
        try:
            values = x.detach().cpu().numpy() if isinstance(x, Tensor) else as_array(x)
        except ValueError as error:
            raise DataError(
                "inputs must be a batch of numbers, got lists of different lengths; give rows of one length"
            ) from error
        first = values.flat[0] if values.dtype.kind in "OU" and values.size else None
        if isinstance(first, str | Path) and Path(first).suffix:
            raise DataError(
                f"give an array of numbers, as the model was trained on, got {str(first)!r}; of files, a model takes "
                "images where it was trained on images of whole numbers 0..255"
            )
        if values.dtype.kind not in "fiu" or values.ndim < 2:
            raise DataError(f"inputs must be a batch of numbers, got {values.dtype} of shape {values.shape}")
        prepared = self._images(values) if self.kind == "images" else self._as_given(values)
        if self.largest and values.size:
            reach = float(np.abs(values).max())
            if max(reach, self.largest) > FAR_BEYOND * min(reach, self.largest) > 0:
                warn(
                    f"pixels reach {reach:g}, and those the model was trained on {self.largest:g}; scale them as those "
                    "were",
                )
        return prepared

    def _as_given(self, x: npt.NDArray[Any]) -> Tensor:
        if self.dtype == "int64" and x.dtype.kind == "f":
            raise DataError(f"inputs must be whole numbers, like those the model was trained on, got {x.dtype}")
        images = len(self.shape) == len(AXES)
        if self.dtype == "float32" and x.dtype.kind != "f" and images:
            reach = "" if self.largest is None else f" (largest value {self.largest:g})"
            raise DataError(
                f"inputs must be images of floats, like those the model was trained on{reach}, got {x.dtype}; scale "
                "them as those were"
            )
        batch = _channels_first(x, self.shape)
        if batch.shape[1:] != self.shape if images or x.dtype.kind == "f" else batch.ndim != len(self.shape) + 1:
            self._refuse_shape(x)
        floats = self.dtype == "float32" or x.dtype.kind == "f"  # whole numbers in a row of a table are floats, too
        if x.dtype.kind == "f" or not floats:
            check_values("inputs", "x", batch)
        return torch.from_numpy(np.ascontiguousarray(batch, np.float32 if floats else np.int64))

    def _refuse_shape(self, x: npt.NDArray[Any]) -> None:
        """Refuse inputs of a shape that training did not have, if that is known."""
        if not self.shape:
            return
        images = len(self.shape) == len(AXES)
        channels, *size = self.shape
        forms = [(*size, channels), self.shape] if images and channels > 1 else [size] if images else [self.shape]
        wanted = " or ".join(f"({', '.join(map(str, ('N', *form)))})" for form in forms)
        remedy = "; bring them to it as those were" if images else ""
        if images and size[0] == size[1]:
            remedy += f", by Pillow's Image.resize where size = {size[0]} was set"
        what = "images of shape" if images else "of shape"
        raise DataError(f"inputs must be {what} {wanted}, like those the model was trained on, got {x.shape}{remedy}")

    def _images(self, x: npt.NDArray[Any]) -> Tensor:
        channels = len(self.mean)
        batch = x[..., None] if x.ndim == 3 else x
        if batch.ndim == 4 and batch.shape[1] == channels and batch.shape[3] not in (1, 3):  # as arrays are read
            batch = np.moveaxis(batch, 1, 3)
        if batch.ndim != 4 or batch.shape[3] != channels:
            self._refuse_shape(x)
            shape = "(N, H, W)" if channels == 1 else f"(N, H, W, {channels})"
            raise DataError(
                f"inputs must be images of shape {shape}, like those the model was trained on, got {x.shape}"
            )
        if batch.size and not (batch.min() >= 0 and batch.max() <= 255 and bool((batch == batch.round()).all())):
            raise DataError(
                "inputs must be images with whole values from 0 to 255, like those the model was trained on"
            )
        height, width = batch.shape[1:3]
        if (channels, height, width) != self.shape:
            self._refuse_shape(x)
        levels = batch.astype(np.uint8)
        scaled = torch.empty(len(levels), channels, *levels.shape[1:3])
        for c, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            scaled[:, c] = torch.from_numpy(standardised(mean, std)[levels[..., c]])
        return scaled

    def _table(self, x: Any) -> Tensor:
        if len(self.clients) > 1 and any(column.by_client for column in self.columns):
            raise DataError(
                "columns were scaled or filled with each client's own numbers: say whose rows these are, as in "
                f"client={self.clients[0]!r} (clients: {', '.join(self.clients[:8])})"
            )
        # A table that was trained on may have held the word itself; in a CSV file it meant a gap.
        gaps = {c.name: (*self.gaps, *(one for one in GAPS if one not in c.values)) for c in self.columns}
        table = raw_table(x, list(gaps), gaps)
        ready = torch.from_numpy(prepared(self.columns, table, 0))
        for column in self.columns:
            values = table[column.name]
            doubts = (
                _far_from_training(column, values) or _words_unknown(column, values),
                _values_missing(column, values),
            )
            for sentence in filter(None, doubts):
                warn(sentence, stacklevel=3)
        if sentence := _without_values(table):
            warn(sentence, stacklevel=3)
        return ready

    def _texts(self, x: Sequence[str]) -> Tensor:
        if hasattr(x, "columns") or isinstance(x, Mapping):
            raise DataError(
                f"inputs must be a list or column of texts, got {with_article(type(x).__name__)}; give its column of "
                "texts"
            )
        if isinstance(x, str) or not isinstance(x, Iterable):
            raise DataError(f"inputs must be a list of texts, got {type(x).__name__}")
        x = list(x)
        for i, text in enumerate(x):
            if not isinstance(text, str):
                raise DataError(f"inputs must be texts, got {text!r} in row {i}; give a text, or leave the row out")
        ready = tokens(x, {word: i for i, word in enumerate(self.vocabulary, start=FIRST_WORD)})
        strange = np.flatnonzero((ready < FIRST_WORD).all(1).numpy()).tolist()
        if strange:
            which = "row " if len(strange) == 1 else "rows "
            warn(
                f"{which}{some(list(map(str, strange)))} {'has' if len(strange) == 1 else 'have'} no word that was "
                "learnt: any such text is answered alike",
                stacklevel=3,
            )
        return ready


def _channels_first(x: Array, shape: tuple[int, ...]) -> Array:
    """Images with their channels where the network has them, as when they were read; anything else as it is."""
    if x.ndim == 3 and shape == (1, *x.shape[1:]):
        return x[:, None]
    if x.ndim == 4 and x.shape[1:] != shape and np.moveaxis(x, 3, 1).shape[1:] == shape:
        return np.moveaxis(x, 3, 1)
    return x


def are_windows(shape: Sequence[int]) -> bool:
    """True for the shape of an example of floats that is no picture: its two dimensions differ."""
    sides = shape[1:] if len(shape) == 3 and shape[0] == 1 else shape
    return len(sides) == 2 and sides[0] != sides[1] and min(sides) <= MOST_CHANNELS


def constants_of(mean: Sequence[float] | None, std: Sequence[float] | None) -> tuple[tuple[float, float], ...] | None:
    """Return the mean and deviation of each channel that settings name; None if they name none.

    Raises:
        ConfigError: If they are not a finite mean and a deviation above 0 for each channel.
    """
    if mean is None and std is None:
        return None
    if (
        not mean
        or not std
        or len(mean) != len(std)
        or not all(map(math.isfinite, mean))
        or not all(0 < s < math.inf for s in std)
    ):
        raise ConfigError(
            "task.data_options: mean and std must have a finite number and one above 0 for each channel, of pixels in "
            f"[0, 1], as in mean = [0.5], std = [0.25], got {mean} and {std}"
        )
    return tuple(zip(mean, std, strict=True))


def standardised(mean: float, std: float) -> npt.NDArray[np.float32]:
    """Standardised value of each of the 256 levels of a channel; a constant channel is 0 throughout."""
    if std == 0.0:
        return np.zeros(256, np.float32)
    return np.asarray((np.arange(256) / 255 - mean) / std, np.float32)


def check_values(name: str, what: str, x: npt.NDArray[Any]) -> None:
    """Refuse the first example with a value that is not a finite float32, or with a negative token id.

    Raises:
        DataError: Naming its row; or if they are no numbers.
    """
    if x.dtype.kind not in "fiub":
        raise DataError(f"{name}: {what} must hold numbers, got {x.dtype} of shape {x.shape}")
    for start in range(0, len(x), ROWS):
        rows = x[start : start + ROWS].reshape(len(x[start : start + ROWS]), -1)
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
            bad = ~np.isfinite(rows.astype(np.float32)) if x.dtype.kind == "f" else rows < 0
        if bad.any():
            i = start + int(np.flatnonzero(bad.any(1))[0])
            if x.dtype.kind != "f":
                raise DataError(f"{name}: {what}[{i}] has a negative token id")
            finite = x[i][np.isfinite(x[i])]
            if finite.size == x[i].size:
                beyond = finite.flat[int(np.abs(finite).argmax())]
                raise DataError(
                    f"{name}: {what}[{i}] has the value {beyond:g}, and networks take float32, at most 3.4e38; scale "
                    "the data or leave the example out"
                )
            of_window = ~np.isfinite(x[i]).reshape(x.shape[-2:]) if are_windows(x.shape[1:]) else None
            channel = "" if of_window is None else _channel_of(of_window)
            total = sum(
                int((~np.isfinite(x[at : at + ROWS])).reshape(len(x[at : at + ROWS]), -1).any(1).sum())
                for at in range(0, len(x), ROWS)
            )
            several = f" ({total:,} of {counted(len(x), 'example')})" if total > 1 else ""
            raise DataError(
                f"{name}: {what}[{i}]{channel} has a NaN or infinite value; clean the data or leave the example out"
                f"{several}"
            )


def _channel_of(bad: npt.NDArray[np.bool_]) -> str:
    """The channel of a window that has all its bad values, in words; empty if several have some."""
    at = np.flatnonzero(bad.any(1 if bad.shape[0] < bad.shape[1] else 0))
    return f", channel {at[0]}," if len(at) == 1 else ""


# ---------------------------------------------------------------- tables
def prepared(
    columns: Sequence[Column], table: RawTable, client: npt.NDArray[np.int64] | int
) -> npt.NDArray[np.float32]:
    """The network's inputs (N, features) from raw columns; `client` as in `Column.prepared`."""
    parts = [column.prepared(_as(column, table[column.name]), client) for column in columns]
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, which is refused where it is checked
        return np.ascontiguousarray(np.concatenate(parts, 1), np.float32)


def raw_table(x: Any, names: Sequence[str], gaps: Mapping[str, Sequence[str]] | None = None) -> dict[str, Array]:
    """Named columns of a DataFrame, a mapping of columns, rows (mappings), one row, or an array (N, columns) by place.

    Args:
        x: The rows.
        names: Their columns.
        gaps: Those of each column, as in `raw_column`; by default none.

    Raises:
        DataError: If there is no such column, or a value is neither a number nor a word.
    """
    of = gaps or {}
    if is_lazy(x):
        raise DataError("inputs are a lazy frame; collect() it first")
    if isinstance(x, Mapping) and x and all(isinstance(v, str) or not hasattr(v, "__len__") for v in x.values()):
        x = [x]  # one row
    if isinstance(x, list | tuple) and x and all(isinstance(row, Mapping) for row in x):
        rows = [{composed_names(name): value for name, value in row.items()} for row in x]
        x = {name: [row.get(name) for row in rows] for name in map(composed, names) if any(name in row for row in rows)}
    if not hasattr(x, "columns") and not isinstance(x, Mapping):
        values = as_array(x.detach().cpu() if isinstance(x, Tensor) else x)
        if values.ndim != 2 or values.shape[1] != len(names):
            raise DataError(
                f"inputs must be rows of {len(names)} columns ({', '.join(names)}), got shape {values.shape}"
            )
        return {name: raw_column(values[:, i], name, of.get(name, ())) for i, name in enumerate(names)}
    given = list(x.columns if hasattr(x, "columns") else x)
    check_one_form(map(str, given), "the table")
    known = {composed(str(name)): name for name in given}
    for name in names:
        check_known("inputs have", name, known)
    return {name: raw_column(x[known[composed(name)]], name, of.get(name, ())) for name in names}


def check_known(where: str, name: str, known: Collection[str]) -> None:
    """Refuse rows without a column that the model was trained on; `where` are they, as in "new.csv has".

    `known` are composed; the model may be of a version that left names as they were.

    Raises:
        DataError: If it is not among those that are there.
    """
    if composed(name) not in known:
        nearest = did_you_mean(name, known)
        raise DataError(
            f"{where} no column {name!r}, which the model was trained on{nearest} (columns: {', '.join(known)})"
        )


def raw_column(values: Any, name: object, gaps: Sequence[str] = ()) -> Array:
    """A column as float64 with NaN for a gap, or as words with None for a gap; truths are 0 and 1.

    A column of pandas that is declared a category holds words, even if its categories are numbers.

    Args:
        values: The column.
        name: Its name.
        gaps: Words that mean that there is no value, and so do the numbers among them.

    Raises:
        DataError: If a value is neither a number nor a word.
    """
    array = column_values(values)
    if array.ndim != 1 and not hasattr(values, "columns"):
        raise several_values(name)
    if array.ndim != 1:
        raise DataError(f"there are {array.shape[1]} columns {name!r}; rename or remove all but one")
    if is_category(values) and array.dtype.kind in "fiubO":
        array = np.array(list(map(in_words, array.tolist())), object)
    if array.dtype.kind in "fiub":
        numbers = array.astype(np.float64)
        return np.where(np.isin(numbers, gap_numbers(gaps)), np.nan, numbers) if gaps else numbers
    none = {*gaps, *gap_numbers(gaps)}
    plain = [
        None if is_gap(value) or (isinstance(value, str | int | float) and value in none) else value
        for value in array.astype(object).tolist()
    ]
    for i, value in enumerate(plain):
        if value is not None and not isinstance(value, bool | int | float | str):
            raise no_number(name, i, value)
    if any(isinstance(value, str) for value in plain):
        return np.array([None if v is None else v if isinstance(v, str) else word(v) for v in plain], object)
    return np.array([np.nan if value is None else value for value in plain], np.float64)


def as_array(values: Any) -> Array:
    """The array of such values; what is masked is a gap, NaN among numbers and None among others."""
    values = values.to_numpy() if hasattr(values, "to_numpy") else values
    if isinstance(values, list | tuple) and any(isinstance(one, np.ma.MaskedArray) for one in values):
        values = np.ma.array(values)
    if not np.ma.is_masked(values):
        return np.asarray(values)
    gap, dtype = (np.nan, np.result_type(values.dtype, np.float32)) if values.dtype.kind in "fiub" else (None, object)
    array: Array = values.data.astype(dtype)
    array[np.ma.getmaskarray(values)] = gap
    return array


def column_values(values: Any) -> Array:
    """A column of a DataFrame, or a list, as an array; decimals, as databases give them, are plain numbers in it.

    So are NumPy's single numbers and truths among objects.  Dates and spans of time stay what they are, whatever their
    unit: as objects, None where there is none.
    """
    array = as_array(values)
    if array.dtype.kind in "mM":  # of those in nanoseconds NumPy would make whole numbers
        return np.fromiter((None if is_gap(one) else one for one in array.flat), object, array.size).reshape(
            array.shape
        )
    if array.dtype.kind != "O" or not any(isinstance(value, _NOT_PLAIN) for value in array.flat):
        return array
    return np.fromiter(map(plain_value, array.flat), object, array.size).reshape(array.shape)


def in_words(value: Any) -> Any:
    """A number as a word; a gap, and what is no number, as it is."""
    return word(value) if isinstance(value, bool | int | float) and not is_gap(value) else value


def is_lazy(frame: Any) -> bool:
    """True for a lazy frame of Polars, which has no values yet."""
    return hasattr(frame, "collect") and not hasattr(frame, "to_numpy")


def several_values(column: object) -> DataError:
    """Say that a column has several values in a row."""
    return DataError(f"column {column!r} holds several values in a row; make a column of each, or leave it out")


def is_category(values: Any) -> bool:
    """True for a column of pandas or Polars that is declared a category."""
    return str(getattr(values, "dtype", "")).partition("(")[0] in ("category", "Categorical", "Enum")


_NOT_PLAIN = (DecimalNumber, np.number, np.bool_)


def plain_value(value: Any) -> Any:
    """A decimal as the nearest whole number or float, one of NumPy's as Python's, anything else as it is."""
    if not isinstance(value, DecimalNumber):
        # A span of time is a number to NumPy.
        return value.item() if isinstance(value, np.number | np.bool_) and not is_span(value) else value
    return int(value) if value.is_finite() and value == value.to_integral_value() else float(value)


_PLAIN = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{0,30})?")


def value_of(word: str) -> float | None:
    """The number that a short word with a decimal point is; None for other words.

    >>> value_of("-99"), value_of("k.A.")
    (-99.0, None)
    """
    return float(word) if _PLAIN.fullmatch(word) else None


WRITTEN = "of a CSV file decimal, thousands and gaps say how numbers are written"
"""What to do about numbers that were read as words."""

_LIKE_A_NUMBER = re.compile(r"[+-]?(?!0[0-9])[0-9.,'\u2019\s]*[0-9][0-9.,'\u2019\s]*([eE][+-]?[0-9]+)?")


def numbers_as_words(name: object, words: Iterable[str], few: int = 10) -> str:
    """A sentence on a column of more than a `few` different words most of which are numbers; empty for any other."""
    known = sorted(set(words))
    like = [one for one in known if _LIKE_A_NUMBER.fullmatch(one.strip()) and not is_date(one)]
    if len(known) <= few or 2 * len(like) <= len(known):
        return ""
    odd = next((one for one in known if one not in like), next((w for w in like if value_of(w) is None), like[0]))
    return (
        f"column {name!r} holds numbers as words, such as {odd!r}: correct it, or declare "
        f"preprocess.columns.{name}.kind = 'category'; {WRITTEN}"
    )


def gap_numbers(gaps: Sequence[str]) -> list[float]:
    """The numbers among words that mean that there is no value."""
    return [value for word in gaps if (value := value_of(word)) is not None]


def gaps_in(values: Array) -> npt.NDArray[np.bool_]:
    """True where a column of a `RawTable` has no value, (N,)."""
    return np.isnan(values) if values.dtype.kind == "f" else np.array([v is None for v in values], bool)


def is_gap(value: object) -> bool:
    """True for what stands where there is no value: None, NaN, pandas' NA and NaT, NumPy's NaT, and a blank text."""
    return (
        value is None
        or (isinstance(value, str) and not value.strip())
        or (isinstance(value, float | np.datetime64 | np.timedelta64) and value != value)
        or type(value).__name__ in ("NAType", "NaTType")
    )


def is_date(value: object) -> bool:
    """True for a date, and for a word that is written as one."""
    return (
        hasattr(value, "year")
        or isinstance(value, np.datetime64)
        or (isinstance(value, str) and _DATE.fullmatch(value.strip()) is not None)
    )


def is_span(value: object) -> bool:
    """True for a span of time."""
    return isinstance(value, timedelta | np.timedelta64)


_CLOCK = re.compile(r"\s*-?([0-9]+ days?,? )?[+-]?[0-9]{1,4}:[0-5][0-9](:[0-5][0-9](\.[0-9]+)?)?\s*")


def is_clock(value: object) -> bool:
    """True for a word for a span of time or a time of day.

    >>> [is_clock(word) for word in ("5 days 21:46:00", "141:46", "0:00:00.028", "1:2")]
    [True, True, True, False]
    """
    return isinstance(value, str) and _CLOCK.fullmatch(value) is not None


def kind_of_time(value: object) -> tuple[str, str]:
    """A date, a span of time or a time of day in words, and numbers that can be made of it; else both empty."""
    if is_gap(value):
        return "", ""
    if is_span(value):
        return "span of time", "such as hours"
    if isinstance(value, time):
        return "time of day", "such as hours since midnight"
    return ("date", "such as days since a day that all agree on") if is_date(value) else ("", "")


def no_number(column: object, row: int, value: object) -> DataError:
    """The error for a value that is neither a number nor a word."""
    kind, numbers = kind_of_time(value)
    way = f", {numbers}," if numbers else ","
    kind = kind or type(value).__name__
    return DataError(
        f"column {column!r} holds {with_article(kind)} in {place(row)}; make numbers of them{way} or leave the "
        "column out"
    )


def word(number: float) -> str:
    """A number that is a code, as a word: 3.0 is "3"; True is "True"."""
    if isinstance(number, bool):
        return str(number)
    return str(int(number)) if float(number).is_integer() else repr(float(number))


def _as(column: Column, values: Array) -> Array:
    """The column as the kind it was trained as: numbers that are codes become words.

    Raises:
        DataError: If a word stands where numbers are learned from.
    """
    if column.kind == "category":
        return _codes(values, column.values)
    if values.dtype.kind == "O":
        known = [value for value in values if value is not None]
        one = next((value for value in known if value_of(value) is None), None)
        if one is not None:
            raise DataError(
                f"column {column.name!r} must hold numbers, like those the model was trained on, got {one!r}; {WRITTEN}"
            )
        # Of a column with a gap that it does not know, a reader makes words.
        return np.array([np.nan if value is None else value_of(value) for value in values], np.float64)
    return values


def _codes(values: Array, known: Sequence[str]) -> Array:
    """Words, as training had them, of a column of codes; None for a gap.

    A reader makes numbers of codes that look like them, 007 or 250.00, where a table holds no others, and truths of
    true and false: such a number is the known word that is this number, unless several are.
    """
    words, of_number = set(known), {}
    for one in known:
        number = {"true": 1.0, "false": 0.0}.get(one.lower(), value_of(one))
        if number is not None:
            of_number[number] = None if number in of_number else one

    def code(value: Any) -> str | None:
        if value is None or value != value:
            return None
        if isinstance(value, str):
            number = {"true": 1.0, "false": 0.0}.get(value.lower(), value_of(value))
            return value if value in words or number is None or word(number) not in words else word(number)
        return word(value) if word(value) in words else of_number.get(value) or word(value)

    return np.array([code(value) for value in values.tolist()], object)
