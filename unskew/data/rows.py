"""Forms of the inputs of many examples: a tensor, bytes, several parts, or items read when needed.

    Tensor       (N, ...)
    ByteImages   images of whole numbers 0..255, in a quarter of the memory of floats
    Tree         several of these, by name or in order (`unskew.tree`)
    Items        items of a torch Dataset that are random, or too many for memory

A batch of rows is a tensor, or a tree of tensors.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from unskew.data.columns import Array, cells, listed
from unskew.errors import DataError
from unskew.keys import Key
from unskew.tree import Tree

NUMBERS = 1 << 22
"""Numbers that are converted at once: each takes four bytes more while it is."""


def blocks(x: Any) -> Iterator[slice]:
    """Slices of the rows of an array or a tensor, of about `NUMBERS` numbers each."""
    at_once = max(1, NUMBERS // max(1, math.prod(x.shape[1:])))
    return (slice(start, start + at_once) for start in range(0, len(x), at_once))


@dataclass(frozen=True, eq=False)
class ByteImages:
    """Images of whole numbers 0..255 that read as standardised images: float32, (N, C, H, W), with the same bits.

    Attributes:
        levels: The images, uint8 (N, H, W, C).
        table: Standardised value of each level of each channel, float32 (C, 256), ascending.
    """

    levels: Tensor
    table: Tensor

    @property
    def shape(self) -> torch.Size:
        """Shape as floats, (N, C, H, W)."""
        n, height, width, channels = self.levels.shape
        return torch.Size((n, channels, height, width))

    @property
    def dtype(self) -> torch.dtype:
        """Type of the rows."""
        return self.table.dtype

    @property
    def device(self) -> torch.device:
        """Device of images and rows."""
        return self.levels.device

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.levels.nbytes + self.table.nbytes

    def __len__(self) -> int:
        return len(self.levels)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        return self._floats(self.levels[rows])

    def index_select(self, dim: int, rows: Tensor) -> Tensor:
        """Rows by their numbers, as in a tensor; `dim` is 0."""
        return self._floats(self.levels.index_select(dim, rows))

    def to(self, device: torch.device) -> "ByteImages":
        """The same on a device."""
        return ByteImages(self.levels.to(device), self.table.to(device))

    def _floats(self, levels: Tensor) -> Tensor:
        images = levels.flatten(0, -4)
        n, height, width, channels = images.shape
        floats = torch.empty(n, channels, height, width, dtype=self.dtype, device=self.device)
        for rows in blocks(images):
            places = images[rows].movedim(-1, -3).to(torch.int32) + self._starts
            values = self.table.view(-1).index_select(0, places.flatten())
            floats[rows] = values.view(places.shape)
        return floats.view(*levels.shape[:-3], channels, height, width)

    @cached_property
    def _starts(self) -> Tensor:
        """Positions where each channel's values begin in the table, (C, 1, 1)."""
        starts = torch.arange(0, self.table.numel(), self.table.shape[1], dtype=torch.int32, device=self.device)
        return starts[:, None, None]


# ---------------------------------------------------------------- read when they are needed
@dataclass(frozen=True, eq=False, slots=True)
class Item:
    """A row that is an item of a torch Dataset; `draws` if reading it is random."""

    source: Any
    number: int
    draws: bool

    def read(self, anew: bool = False) -> Any:
        """The item's input, in its parts; a random one is drawn the same way each time, unless `anew`."""
        keyed = self.draws and not anew
        with (Key(0) / "item" / self.number).ambient() if keyed else nullcontext():
            return parted(self.source[self.number])[0]


@dataclass(frozen=True, eq=False)
class Items:
    """Inputs that are read item by item; byte images become floats from 0 to 1.

    Attributes:
        items: An `Item` for each row, (N,).
        change: Applied to what is read, for the network.
        device: Device of the rows.
    """

    items: Array
    change: Callable[[Tensor], Tensor] = torch.Tensor.contiguous
    device: torch.device = torch.device("cpu")

    @cached_property
    def first(self) -> Any:
        """The first row, (1, ...)."""
        return self[:1]

    @property
    def shape(self) -> torch.Size:
        """(N, ...), if rows are tensors."""
        return torch.Size((len(self), *as_tensor(self.first).shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        """Type of the rows, if they are tensors."""
        return as_tensor(self.first).dtype

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, rows: Tensor | slice) -> Any:
        return self.read(rows)

    def read(self, rows: Tensor | slice, anew: bool = False) -> Any:
        """The rows; with `anew`, random ones are drawn from the global generators, as in each epoch of training."""
        chosen = self.items[rows if isinstance(rows, slice) else rows.cpu().numpy()]
        read = [item.read(anew) for item in chosen.tolist()]
        return pytree.tree_map(lambda *parts: self._tensor(collated(parts)), *(read or [self.items[0].read()]))

    def _tensor(self, values: Array) -> Tensor:
        if values.dtype == np.uint8 and values.ndim > 2:
            first = np.moveaxis(values, 3, 1) if values.ndim == 4 and values.shape[3] in (1, 3) else values
            values = np.ascontiguousarray(first if first.ndim == 4 else first[:, None], np.float32) / 255
        kind = np.float32 if values.dtype.kind == "f" else np.int64
        return self.change(torch.from_numpy(np.ascontiguousarray(values, kind)).to(self.device))

    def to(self, device: torch.device) -> "Items":
        """The same on a device."""
        return replace(self, device=device)


Rows = Any
"""Inputs of many examples in one of these forms; `rows[numbers]` is a batch, for a network that takes such."""

LABEL = ("labels", "label", "targets", "target", "y")
"""Names of an item's label in a dictionary."""


def parted(item: Any) -> tuple[Any, Any]:
    """Input and label (None without) of an item: (input, label), (input, input, ..., label), or a dictionary.

    An input of several parts is a `Tree` of arrays.
    """
    inputs, label = item, None
    if isinstance(item, Mapping):
        named = next((name for name in LABEL if name in item), None)
        inputs, label = {name: of for name, of in item.items() if name != named}, item.get(named)
    elif isinstance(item, tuple | list) and len(item) > 1:
        inputs, label = item[0] if len(item) == 2 else tuple(item[:-1]), item[-1]
    parts = list(inputs.values()) if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple) else [inputs]
    if len(parts) == 1:
        return _array(parts[0]), label
    return Tree(pytree.tree_map(_array, dict(inputs) if isinstance(inputs, Mapping) else inputs)), label


def _array(given: Any) -> Array:
    # A copy: an item may be changed in place when it is read again.
    return np.array(given if hasattr(given, "convert") else cells(given))


def collated(parts: Sequence[Any], fill: int = 0) -> Array:
    """Arrays as one, (N, ...); sequences of several lengths are padded at their ends.

    Raises:
        DataError: If they differ in more than their length.
    """
    arrays = [np.asarray(part) for part in parts]
    if len({of.shape for of in arrays}) == 1:
        return np.stack(arrays)
    if len({of.shape[1:] for of in arrays if of.ndim}) > 1 or not all(of.ndim for of in arrays):
        shapes = sorted({of.shape for of in arrays})
        raise DataError(f"examples have shapes from {shapes[0]} to {shapes[-1]}; give all one, but for their length")
    out = np.full((len(arrays), max(map(len, arrays)), *arrays[0].shape[1:]), fill, np.result_type(*arrays))
    for row, of in zip(out, arrays, strict=True):
        row[: len(of)] = of
    return out


# ---------------------------------------------------------------- parts and sequences, as one array of the door
def of_sequences(x: Array) -> bool:
    """True for a column of lists or arrays."""
    first = next((one for one in x if one is not None), None) if x.dtype.kind == "O" and x.ndim == 1 else None
    return isinstance(first, list | np.ndarray)


def padded(x: Array, fill: int = 0) -> Array:
    """Sequences as one array (N, longest, ...), part by part; anything else unchanged."""
    if x.dtype.names:
        return packed({name: padded(x[name]) for name in x.dtype.names})
    return collated(list(x), fill) if of_sequences(x) else x


def together(parts: Sequence[Array]) -> Array:
    """Rows of several arrays, one after the other; as objects if some are words or truths and others are not."""
    if names := parts[0].dtype.names:
        return packed({name: together([part[name] for part in parts]) for name in names})
    if any(map(of_sequences, parts)):
        return listed([row for part in parts for row in part])
    if len({part.dtype.kind in "iuf" or part.dtype.kind for part in parts}) > 1:
        parts = [part.astype(object) for part in parts]
    return np.concatenate(parts)


def packed(parts: Mapping[str, Array], what: str = "x") -> Array:
    """Arrays of one length as one structured array, (N,), with a field for each; fields of a tuple are 0, 1, ...

    Raises:
        DataError: If they have several lengths.
    """
    lengths = {name: len(part) for name, part in parts.items()}
    if len(set(lengths.values())) != 1:
        raise DataError(f"{what}: its parts must have one length, got {lengths}")
    fields = [(name, of.dtype, of.shape[1:]) for name, of in parts.items()]
    out = np.empty(next(iter(lengths.values())), fields)
    for name, of in parts.items():
        out[name] = of
    return out


def records(examples: Sequence[Any]) -> Array:
    """Examples as one array; sequences of several lengths are padded, parts are fields as in `packed`.

    Raises:
        DataError: If parts or shapes do not fit together.
    """
    first = examples[0]
    if isinstance(first, Tree | dict | tuple):
        inner = [one.parts if isinstance(one, Tree) else one for one in examples]
        named = [of if isinstance(of, dict) else {str(i): part for i, part in enumerate(of)} for of in inner]
        if odd := [i for i, of in enumerate(named) if of.keys() != named[0].keys()]:
            raise DataError(f"item {odd[0]} has the parts {', '.join(named[odd[0]])}, item 0 {', '.join(named[0])}")
        return packed({name: records([of[name] for of in named]) for name in named[0]})
    whole = collated(examples)
    return whole if all(of.shape == first.shape for of in examples) else listed(examples)


def unpacked(fields: Mapping[str, Any]) -> Any:
    """A dictionary of fields, or a tuple if they are 0, 1, ..."""
    return tuple(fields.values()) if list(fields) == [str(i) for i in range(len(fields))] else dict(fields)


def in_one(x: Rows) -> Array:
    """Rows in memory as one array, parts as fields; the inverse of `from_one`."""
    if isinstance(x, Tree):
        named = x.parts if isinstance(x.parts, dict) else {str(i): part for i, part in enumerate(x.parts)}
        return packed({name: in_one(part[:] if isinstance(part, ByteImages) else part) for name, part in named.items()})
    return stored(x).numpy()


def from_one(x: Array) -> Rows:
    """Rows from one array, the inverse of `in_one`."""
    if x.dtype.names:
        return Tree(unpacked({name: from_one(x[name]) for name in x.dtype.names}))
    return torch.from_numpy(np.ascontiguousarray(x))


def arrays_of(x: Array, name: str = "x") -> list[tuple[str, Array]]:
    """The plain arrays of inputs, by name; none for items, which are not read."""
    if x.dtype.names:
        return [one for field in x.dtype.names for one in arrays_of(x[field], f"{name}[{field!r}]")]
    return [] if are_items(x) else [(name, x)]


def are_items(x: Array) -> bool:
    """True for inputs that are read when needed."""
    return x.dtype.kind == "O" and x.ndim == 1 and len(x) > 0 and isinstance(x[0], Item)


# ---------------------------------------------------------------- as a whole
def at_once(x: Rows, most: int) -> int:
    """How many rows to take at once: `most`, or for items as many as have 64 MiB as floats."""
    # Less than 32 MiB comes from the heap, which the results that are kept between the rows would hold.
    numbers = sum(t.numel() for t in pytree.tree_leaves(x.first)) if isinstance(x, Items) else 1
    return max(1, min(most, (1 << 24) // max(1, numbers)))


def as_tensor(x: Rows) -> Tensor:
    """All inputs as one tensor.

    Raises:
        DataError: If they have several parts, or are items.
    """
    if not isinstance(x, Tensor | ByteImages):
        raise DataError("this needs inputs that are one array in memory, not of several parts or read by item")
    return x if isinstance(x, Tensor) else x[:]


def stored(x: Rows) -> Tensor:
    """All inputs as stored: for byte images their levels, uint8 (N, H, W, C)."""
    return x.levels if isinstance(x, ByteImages) else as_tensor(x)


def joined(x: Any, other: Any) -> Any:
    """The rows of `x`, then those of `other`, in the same form."""
    if isinstance(x, ByteImages) and isinstance(other, ByteImages):
        return ByteImages(torch.cat([x.levels, other.levels]), x.table)
    if isinstance(x, Items) and isinstance(other, Items):
        return replace(x, items=np.concatenate([x.items, other.items]))
    if isinstance(x, Tree):
        return pytree.tree_map(joined, x, other)
    return torch.cat([as_tensor(x), as_tensor(other)])


def extremes(x: Rows) -> tuple[float, float]:
    """Smallest and largest value of inputs with at least one value."""
    if isinstance(x, ByteImages):
        ends = [torch.stack(torch.aminmax(x.levels[..., c])).long() for c in range(len(x.table))]
        x = torch.stack([values[of] for values, of in zip(x.table, ends, strict=True)])
    low, high = torch.aminmax(as_tensor(x))
    return float(low), float(high)
