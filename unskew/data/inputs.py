"""Preprocessing of raw inputs; it is stored with a trained model.

Texts become token ids, with a vocabulary from the training texts only.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unskew.data.columns import (
    GAPS,
    WRITTEN,
    Array,
    RawTable,
    cells,
    column,
    frame_of,
    gaps_in,
    is_frame,
    is_gap,
    no_value,
    value_of,
)
from unskew.data.places import by_number
from unskew.data.rows import ByteImages, blocks, padded, unpacked
from unskew.errors import ConfigError, DataError, did_you_mean, warn
from unskew.tasks.targets import RowError
from unskew.tree import Tree
from unskew.words import composed, counted, some

# ---------------------------------------------------------------- texts
VOCABULARY = 10_000
"""Token ids are 0 .. VOCABULARY - 1; an embedding needs this many rows."""
LENGTH = 200
"""Tokens per text, shorter texts padded and longer ones cut at the end."""
PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
OF_COLUMN = 500
"""Words that a column of texts beside others has, the commonest."""


class _BetweenWords(dict[int, int | str]):
    """A table for `str.translate`: all but letters with their marks, digits and apostrophes become spaces.

    Characters without a visible form, such as a soft hyphen, are left out: they stand within words.
    """

    def __missing__(self, code: int) -> int | str:
        char, category = chr(code), unicodedata.category(chr(code))
        kept = char == "'" or char.isalnum() or category[0] == "M"
        self[code] = code if kept else "" if category == "Cf" else " "
        return self[code]


_BETWEEN = _BetweenWords({ord("\u2019"): "'"})


def words(text: str) -> list[str]:
    """Lower-cased words (letters of any language, digits, apostrophes); HTML line breaks are spaces.

    >>> words("It's a Größe_2")
    ["it's", 'a', 'größe', '2']
    """
    plain = text.replace("<br />", " ").lower()
    return (plain if plain.isascii() else unicodedata.normalize("NFC", plain)).translate(_BETWEEN).split()


def vocabulary(texts: Sequence[str], size: int = VOCABULARY) -> dict[str, int]:
    """Ids from 2 on for the `size - 2` commonest words, commonest first, equally common ones in alphabetical order."""
    counts = Counter(word for text in texts for word in words(text))
    ranked = sorted(counts, key=lambda w: (-counts[w], w))[: size - 2]
    return {word: i for i, word in enumerate(ranked, start=FIRST_WORD)}


def tokens(texts: Sequence[str], ids: Mapping[str, int], length: int = LENGTH) -> Tensor:
    """Token ids, int64 (N, length); 0 is padding, 1 a word outside the vocabulary.

    >>> tokens(["Good, good film!"], {"good": 2}, length=4)
    tensor([[2, 2, 1, 0]])
    """
    rows = [[ids.get(word, UNKNOWN) for word in words(text)[:length]] for text in texts]
    return torch.tensor([row + [PADDING] * (length - len(row)) for row in rows], dtype=torch.int64).reshape(-1, length)


FAR_BEYOND = 20
"""Times that one part's largest pixel is another's, from which on they can hardly have been scaled alike."""

SUDDEN, NEVER = 5, 20
"""Rows from which on gaps in most are no chance where training had none, and gaps in all where it had some."""


@dataclass(frozen=True)
class Column:
    """A column of a table and its preprocessing: (value - mean) / sd, or a 0/1 column for each word.

    `fill`, `mean` and `sd` have one number, or one for each of `Inputs.clients`.

    Attributes:
        name: Its name in the table.
        kind: "number"; "category": words; or "text": texts, of which `values` are words.
        fill: Replaces a gap, in the column's unit; empty if gaps are refused.
        mean, sd: Of the training rows; empty if the column keeps its scale.  With sd 0 the column becomes 0.
        gaps: A 0/1 column for gaps follows.
        values: The words that have a column each, in order.
        unlearnt: Those of `values` that no client had in training; their columns stay 0, and they count as other words.
        gaps_unlearnt: No client had a gap in training, so the 0/1 column of gaps stays 0.
    """

    name: str
    kind: Literal["number", "category", "text"] = "number"
    fill: tuple[float, ...] = ()
    mean: tuple[float, ...] = ()
    sd: tuple[float, ...] = ()
    gaps: bool = False
    values: tuple[str, ...] = ()
    unlearnt: tuple[str, ...] = ()
    gaps_unlearnt: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the column's inputs to the network."""
        own = (self.name,) if self.kind == "number" else tuple(f"{self.name}={value}" for value in self.values)
        return (*own, *[f"{self.name} missing"] * self.gaps)

    @property
    def by_client(self) -> bool:
        """True if each client scales or fills with its own numbers."""
        return max(len(self.fill), len(self.mean)) > 1

    def prepared(self, values: Array, client: npt.NDArray[np.int64] | int) -> npt.NDArray[np.float64]:
        """The network's inputs (N, features) from raw values (N,); `client` is that of each row, or one for all.

        Raises:
            DataError: If there is a gap and gaps are refused, or a number is infinite in float32.
        """
        missing = gaps_in(values)
        gaps = [missing[:, None] & (not self.gaps_unlearnt)] if self.gaps else []
        if self.kind != "number":
            number = {value: i for i, value in enumerate(self.values) if value not in self.unlearnt}
            held = ([] if v is None else words(v) if self.kind == "text" else [v] for v in values.tolist())
            pairs = [(row, number[word]) for row, of in enumerate(held) for word in of if word in number]
            at = np.array(pairs, np.int64).reshape(-1, 2)
            known = np.zeros((len(values), len(self.values)))
            known[at[:, 0], at[:, 1]] = 1
            return np.concatenate([known, *gaps], 1, dtype=np.float64)
        with np.errstate(over="ignore"):  # networks take float32, in which larger numbers are infinite
            bad = np.flatnonzero(np.isinf(values.astype(np.float32)) | (missing & (not self.fill)))
        if len(bad):
            one = values[bad[0]]
            state = "has no value" if missing[bad[0]] else "is infinite" if np.isinf(one) else f"is {one:g}"
            raise RowError("inputs", int(bad[0]), f"{state} in column {self.name!r}; correct it, or leave the row out")
        if self.fill:
            values = np.where(missing, _of_client(self.fill, client), values)
        if self.mean:
            sd = _of_client(self.sd, client)
            values = np.where(sd > 0, (values - _of_client(self.mean, client)) / np.where(sd > 0, sd, 1), 0)
        return np.concatenate([values[:, None], *gaps], 1, dtype=np.float64)


def column_notes(trained: Column, values: Array, known: str = "in training") -> list[str]:
    """Notes on new values that differ from the `known` ones: another unit, new words, or gaps."""
    rows, missing, sentences = len(values), int(gaps_in(values).sum()), []
    if values.dtype.kind == "f" and len(trained.sd) == 1 and trained.sd[0] and missing < rows:
        middle, mean, sd = float(np.nanmedian(values)), trained.mean[0], trained.sd[0]
        if abs(middle - mean) > FAR_BEYOND * sd:
            was = f"its mean {known} was {mean:g} (standard deviation {sd:g})"
            sentences.append(f"is about {middle:g} here, and {was}: is it in the same unit?")
    if trained.kind == "category":
        words = set(trained.values).difference(trained.unlearnt)
        strange = [one for one in column(values, category=True) if one is not None and one not in words]
        if strange:
            where = f"{len(strange):,} of {counted(rows, 'row')}: {some(sorted(set(strange)))}"
            sentences.append(f"holds words that were not {known}, in {where} (known: {some(trained.values)})")
    knows_gaps = trained.gaps and not trained.gaps_unlearnt
    if (missing == rows >= NEVER) if knows_gaps else (2 * missing > rows >= SUDDEN):
        sentences.append(f"has no value in {missing:,} of {counted(rows, 'row')}, and had some {known}")
    return [f"column {trained.name!r} {sentence}" for sentence in sentences]


def _of_client(numbers: tuple[float, ...], client: npt.NDArray[np.int64] | int) -> Any:
    return np.asarray(numbers)[client] if len(numbers) > 1 else numbers[0]


@dataclass(frozen=True, kw_only=True)
class Notation:
    """How a CSV file is written.

    Attributes:
        separator: Character between the columns; by default a comma, in a .tsv file a tab.
        decimal: Character before the decimals.
        thousands: Character between thousands; by default none.
        encoding: Encoding, as Python names it.
        gaps: Words for a missing value, besides the usual ones.  A number means all its spellings.
    """

    separator: str | None = None
    decimal: Literal[".", ","] = "."
    thousands: str = ""
    encoding: str = "utf-8"
    gaps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inputs:
    """The way from raw inputs to tensors.

    Attributes:
        kind: "images" are uint8 and standardised by channel, "texts" become token ids, a "table" is prepared by column,
            a "tree" by part; anything else stays.
        mean, std: Standardise each channel of images in [0, 1]; a deviation of 0 makes the channel 0.
        vocabulary: Words of the training texts, in the order of their token ids.
        columns: Columns of a table, in order.
        clients: Names of the clients with numbers of their own in some columns.
        notation: Of the table's file.
        shape: Of one example as the network takes it; empty for texts and tables.
        dtype: "float32" or "int64", of inputs that stay as given; else empty.
        largest: Largest absolute value of the raw training images; else None.
        made_grey: True if images with colours were made grey; new ones are made grey, too.
        parts: Names of the parts of a tree, and the inputs of each; for a tuple 0, 1, ...
    """

    kind: Literal["as given", "images", "texts", "table", "tree"] = "as given"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    vocabulary: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    clients: tuple[str, ...] = ()
    notation: Notation = Notation()
    shape: tuple[int, ...] = ()
    dtype: str = ""
    largest: float | None = None
    made_grey: bool = False
    parts: tuple[tuple[str, "Inputs"], ...] = ()

    @property
    def are_images(self) -> bool:
        """True if an example has channels, a height and a width."""
        return len(self.shape) == 3

    @property
    def levels(self) -> tuple[tuple[float, float], ...] | None:
        """Black and the largest training value of each channel, after standardisation; None if unknown."""
        if self.kind != "images" or self.largest is None or not all(self.std):  # a constant channel has lost its level
            return None
        tables = [standardised(mean, std) for mean, std in zip(self.mean, self.std, strict=True)]
        return tuple((float(of[0]), float(of[int(self.largest)])) for of in tables) if self.largest else None

    def read_as(self, other: "Inputs") -> "Inputs":
        """The same, for raw inputs in the format of `other`: of a file, or in colour or grey."""
        return replace(self, notation=other.notation, made_grey=other.made_grey)

    def of(self, client: str | int | None) -> "Inputs":
        """The same with the numbers of one client only, so that those of others are not disclosed.

        Raises:
            DataError: If columns have clients' own numbers, and none for this client.
        """
        if client is None or not self.clients:
            return self
        names, called = tuple(map(composed, self.clients)), composed(str(client))
        if not isinstance(client, str) or called not in names:
            raise DataError(f"there are no numbers of {client!r}{did_you_mean(called, names)} (clients: {some(names)})")
        at = names.index(called)
        own = [
            replace(c, **{key: of[at : at + 1] for key in ("fill", "mean", "sd") if len(of := getattr(c, key)) > 1})
            for c in self.columns
        ]
        return replace(self, columns=tuple(own), clients=(self.clients[at],))

    def prepare(self, x: Any, client: str | int | None = None) -> Tensor | Tree:
        """The tensor a network takes for a batch of raw inputs.

        Args:
            x: Images (N, H, W), (N, H, W, channels) or (N, channels, H, W), as whole values 0 to 255 or floats, as in
                training.  Texts; or an array of numbers.  A DataFrame, a mapping of columns, a row (mapping) or a list
                of rows, with the columns of training.  Several parts are a tuple or a mapping.
            client: Name of the client whose rows they are, where each client has its own scale.

        Raises:
            DataError: If they are other inputs, of another shape than in training, or not finite.
        """
        if self.kind == "tree":
            names = [name for name, _ in self.parts]
            given = {str(i): part for i, part in enumerate(x)} if isinstance(x, tuple) else x
            if not isinstance(given, Mapping) or set(names) - given.keys():
                raise DataError(f"inputs must have the parts {some(names)}, as in training, got {type(x).__name__}")
            return Tree(unpacked({name: way.prepare(given[name]) for name, way in self.parts}))
        if self.kind == "texts":
            return self._texts(x)
        return self.of(client)._table(x) if self.kind == "table" else self._numbers(padded(cells(x)))

    def _numbers(self, x: Array) -> Tensor:
        if x.dtype.kind not in "fiub" or x.ndim <= min(len(self.shape), 1):
            raise DataError(f"inputs must be a batch of numbers, got {x.dtype} of shape {x.shape}")
        bytes_, floats = self.kind == "images", self.dtype != "int64"
        if not bytes_ and (x.dtype.kind == "f") != floats and (self.are_images or not floats):
            raise DataError(f"inputs must be {self.dtype}, as in training, got {x.dtype}; scale them as those were")
        batch, whole = _channels_first(x, self.shape), bytes_ or self.are_images or x.dtype.kind == "f"
        if batch.shape[1:] != self.shape if whole else batch.ndim != len(self.shape) + 1:
            remedy = ", by Pillow's Image.resize where size was set" if self.are_images else ""
            wanted = ", ".join(map(str, self.shape))
            raise DataError(f"inputs must be of shape (N, {wanted}), as in training, got {x.shape}{remedy}")
        if bytes_ and batch.size and not (0 <= batch.min() <= batch.max() <= 255 and (batch == batch.round()).all()):
            raise DataError("inputs must be images with whole values from 0 to 255, as in training")
        if self.largest and x.size:
            reach = float(np.abs(x).max())
            if max(reach, self.largest) > FAR_BEYOND * min(reach, self.largest) > 0:
                warn(f"pixels reach {reach:g}, and those of training {self.largest:g}; scale them as those were")
        if bytes_:
            tables = np.stack([standardised(mean, std) for mean, std in zip(self.mean, self.std, strict=True)])
            levels = np.ascontiguousarray(np.moveaxis(batch, 1, 3), np.uint8)
            return ByteImages(torch.from_numpy(levels), torch.from_numpy(tables))[:]
        bad = refused_row(batch)  # of whole numbers there is none
        if bad:
            raise DataError(f"inputs: x[{bad[0]}] {bad[1]}")
        return torch.from_numpy(np.ascontiguousarray(batch, np.float32 if floats else np.int64))

    def _table(self, x: Any) -> Tensor:
        if len(self.clients) > 1 and any(column.by_client for column in self.columns):
            raise DataError(f"clients' rows are scaled apart: name whose these are, as in client={self.clients[0]!r}")
        # A table that was trained on may have held the word itself; in a CSV file it meant a gap.
        gaps = {c.name: (*self.notation.gaps, *(one for one in GAPS if one not in c.values)) for c in self.columns}
        table = raw_table(x, list(gaps), gaps)
        ready = torch.from_numpy(prepared(self.columns, table, 0))
        for one in self.columns:
            for sentence in column_notes(one, table[one.name]):
                warn(sentence, stacklevel=3)
        return ready

    def _texts(self, x: Sequence[str]) -> Tensor:
        if is_frame(x) and len(columns := frame_of(x).columns) == 1:
            x = next(iter(columns.values())).tolist()
        texts = list(x) if hasattr(x, "__iter__") and not (isinstance(x, str | Mapping) or is_frame(x)) else []
        if not texts or not all(isinstance(text, str) for text in texts):
            raise DataError("inputs must be a list or column of texts, none of them missing")
        ready = tokens(texts, {word: i for i, word in enumerate(self.vocabulary, start=FIRST_WORD)})
        if strange := np.flatnonzero((ready < FIRST_WORD).all(1).numpy()).tolist():
            rows = some(list(map(str, strange)))
            warn(f"no word was learnt of row {rows}: all such are answered alike", stacklevel=3)
        return ready


def _channels_first(x: Array, shape: tuple[int, ...]) -> Array:
    """Images with their channels where the network has them, as when they were read; anything else as it is."""
    if x.ndim == 3 and shape == (1, *x.shape[1:]):
        return x[:, None]
    if x.ndim == 4 and x.shape[1:] != shape and np.moveaxis(x, 3, 1).shape[1:] == shape:
        return np.moveaxis(x, 3, 1)
    return x


def constants_of(mean: Sequence[float] | None, std: Sequence[float] | None) -> tuple[tuple[float, float], ...] | None:
    """The mean and deviation of each channel in the settings; None if there are none.

    Raises:
        ConfigError: If they are not a finite mean and a deviation above 0 for each channel.
    """
    if mean is None and std is None:
        return None
    pairs = tuple(zip(mean or (), std or (), strict=False))
    fits = len(pairs) == len(mean or ()) == len(std or ()) > 0
    if not fits or not all(math.isfinite(m) and 0 < s < math.inf for m, s in pairs):
        raise ConfigError(f"task.data_options: mean and std must have a number for each channel, got {mean} and {std}")
    return pairs


def standardised(mean: float, std: float) -> npt.NDArray[np.float32]:
    """Standardised value of each of the 256 levels of a channel; all 0 for a constant channel."""
    if std == 0.0:
        return np.zeros(256, np.float32)
    return np.asarray((np.arange(256) / 255 - mean) / std, np.float32)


def refused_row(x: Array) -> tuple[int, str] | None:
    """The first example with a value that is not a finite float32, and the value in words."""
    for part in blocks(x) if x.dtype.kind == "f" else ():
        rows = x[part].reshape(len(x[part]), -1)
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
            bad = ~np.isfinite(rows.astype(np.float32))
        if bad.any():
            i = int(bad.any(1).argmax())
            row, value = part.start + i, rows[i][bad[i]][0]
            if np.isfinite(value):
                return row, f"has the value {value:g}, and networks take float32: scale the data, or leave it out"
            return row, "has a NaN or infinite value; clean the data or leave the example out"
    return None


# ---------------------------------------------------------------- tables
def prepared(
    columns: Sequence[Column], table: RawTable, client: npt.NDArray[np.int64] | int
) -> npt.NDArray[np.float32]:
    """The network's inputs (N, features) from raw columns; `client` as in `Column.prepared`."""
    parts = [column.prepared(_as(column, table[column.name]), client) for column in columns]
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, which is refused where it is checked
        return np.ascontiguousarray(np.concatenate(parts, 1), np.float32)


def raw_table(x: Any, names: Sequence[str], gaps: Mapping[str, Sequence[str]]) -> dict[str, Array]:
    """Named columns of a DataFrame, a mapping of columns, one row or several, or an array (N, columns).

    Rows are mappings, and columns of an array go by position.  `gaps` are each column's words for a missing value.

    Raises:
        DataError: If there is no such column, or a value is neither a number nor a word.
    """
    if isinstance(x, Mapping) and x and all(isinstance(v, str) or not hasattr(v, "__len__") for v in x.values()):
        x = [x]  # one row
    if isinstance(x, list | tuple) and x and all(isinstance(row, Mapping) for row in x):
        rows = [{composed(str(name)): value for name, value in row.items()} for row in x]
        x = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
    if not isinstance(x, Mapping) and not is_frame(x):
        values = cells(x)
        if values.ndim != 2 or values.shape[1] != len(names):
            raise DataError(f"inputs must be rows of {len(names)} columns ({some(names)}), got shape {values.shape}")
        return {name: column(values[:, i], gaps[name]) for i, name in enumerate(names)}
    frame, table = frame_of(x, "inputs"), {}
    for name in names:
        check_known("inputs have", name, list(frame.columns))
        table[name] = frame.column(composed(name), gaps[name])
        if sentence := no_value(name, table[name], by_number):
            raise DataError(sentence)
    return table


def check_known(where: str, name: str, known: Sequence[str]) -> None:
    """Refuse rows without a column of training; `where` begins the message, as in "new.csv has".

    Raises:
        DataError: If `name` is not in `known`.
    """
    if composed(name) not in known:
        nearest = did_you_mean(name, known)
        raise DataError(f"{where} no column {name!r}, which the model was trained on{nearest} (columns: {some(known)})")


def _as(trained: Column, values: Array) -> Array:
    """The column as the kind it was trained as: numbers that are codes become words.

    Raises:
        DataError: If a word stands where numbers are learned from.
    """
    if trained.kind == "category":
        return column(values, category=True)
    if trained.kind == "text":
        return np.array([None if is_gap(value) else str(value) for value in values.tolist()], object)
    if values.dtype.kind == "O":
        known = [value for value in values if value is not None]
        one = next((value for value in known if value_of(value) is None), None)
        if one is not None:
            raise DataError(f"column {trained.name!r} must hold numbers, as in training, got {one!r}; set {WRITTEN}")
        # Of a column with a gap that it does not know, a reader makes words.
        return np.array([np.nan if value is None else value_of(value) for value in values], np.float64)
    return values
