"""Turns the user's data into a `Dataset`: arrays, tables, PyTorch's and Hugging Face's data sets.

    (x, y)                      NumPy arrays, tensors or lists
    {client: (x, y)}            the same for each client; the clients' names are kept
    a DataFrame                 of pandas or Polars; `target` names the column of labels, `client` that of clients
    a torch Dataset             of (input, label) pairs, read once from its first item to its last
    a Hugging Face dataset      or a DatasetDict with "train" and "test"; columns as of a DataFrame
    a `Dataset`                 what `unskew.load` returns, as it is

Everything is brought into the plain layout of `unskew.data.sources`, whose rules for files hold here too: images of
whole numbers 0..255 are standardised per channel with constants of the training part, floats stay as they are, whole
numbers in two dimensions are token ids, labels may be words.  Columns of a table are measurements: they become floats
and are not scaled.  No library but PyTorch is imported here: tables are recognised by their methods.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from unskew.data import hub
from unskew.data.arrays import from_arrays
from unskew.data.dataset import Dataset
from unskew.data.images import as_tensor
from unskew.errors import DataError, did_you_mean
from unskew.keys import Key

FORMS = (
    "(x, y), {client: (x, y)}, a pandas or Polars DataFrame, a torch Dataset, a Hugging Face dataset, what us.load "
    "returns, or a name"
)

_Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class _Examples:
    """Examples as they were given.

    Attributes:
        name: Name of the data in tables.
        x: Inputs, (N, ...).
        y: Labels (N,), numbers or words.
        clients: Name of each example's client, (N,); None if the data name no clients.
        client_names: Each client once, in order.
        classes: Names of the labels 0, 1, ..., if the data have them.
        columns: The input columns of a table, in order.
        test: The test part, if the data have one.
    """

    name: str
    x: _Array
    y: _Array
    clients: Sequence[str] | None = None
    client_names: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    columns: tuple[Any, ...] = ()
    test: "_Examples | None" = None


def dataset(
    data: object,
    *,
    target: str | None = None,
    client: str | None = None,
    test: object = None,
    test_fraction: float = 0.2,
) -> Dataset:
    """The data set that `data` holds.

    Args:
        data: One of the forms above.
        target: Column of the labels; tables and Hugging Face's data sets need it.
        client: Column of the clients; without it the data name no clients.
        test: The global test part, in any of the forms; its clients, if any, are ignored.
        test_fraction: Share of the rows that becomes the global test part if there is none: of each client's rows if
            clients are known, else of each class.  The same rows in every call; no client trains on them.

    Raises:
        DataError: If the form is unknown, a column is missing or not named, a label is not a class, an input is not a
            number, or the data do not pass `unskew.data.checked`.
    """
    if isinstance(data, Dataset):
        if test is not None or target is not None or client is not None:
            raise DataError(
                f"{data.name} is a data set with its own labels and test part; leave test, target and client out"
            )
        return data
    rows = _rows(data, target, client)
    held_out = rows.test if test is None else _rows(test, target, None, rows.columns)
    if held_out is None and not 0 < test_fraction < 1:
        raise DataError(
            f"the data have no test part and test_fraction is {test_fraction:g}; give test=(x, y) or a test_fraction "
            "above 0 and below 1"
        )
    parts = {"train": rows, **({} if held_out is None else {"test": held_out})}
    arrays: dict[str, _Array] = {}
    for key, part in parts.items():
        arrays |= {f"x_{key}": part.x, f"y_{key}": _classes_of(rows.name, part.y)}
    if rows.classes is not None:
        arrays["classes"] = np.array(rows.classes, np.str_)
    if rows.clients is not None:
        number = {name: i for i, name in enumerate(rows.client_names)}
        arrays["client_train"] = np.array([number[name] for name in rows.clients], np.int64)
        arrays["clients"] = np.array(rows.client_names, np.str_)
    return from_arrays(rows.name, arrays, Key(0) / "npz" / "test", test_fraction=test_fraction, own=True)


def _rows(data: Any, target: str | None, client: str | None, columns: tuple[Any, ...] = ()) -> _Examples:
    """The examples in `data`; `columns` are the columns a table must have, if another table has set them."""
    if isinstance(data, Mapping) and data and all(hasattr(part, "column_names") for part in data.values()):
        return _of_parts(data, target, client)
    if hasattr(data, "column_names") and hasattr(data, "features"):
        return _of_hugging_face(data, target, client)
    if hasattr(data, "collect") and not hasattr(data, "to_numpy"):
        raise DataError("data is a lazy frame; collect() it first")
    if hasattr(data, "columns") and hasattr(data, "to_numpy"):
        return _of_table(data, target, client, columns)
    if target is not None or client is not None:
        raise DataError(
            f"target and client name columns of a table, and {_kind(data)} has none; leave them out, and for clients "
            "give {client: (x, y)}"
        )
    if isinstance(data, Dataset):
        return _Examples(data.name, as_tensor(data.x_test).numpy(), data.y_test.numpy(), classes=data.classes)
    if isinstance(data, Mapping):
        return _of_clients(data)
    if isinstance(data, DataLoader | IterableDataset):
        raise DataError(
            f"{_kind(data)} has no fixed examples; give a data set with a length, such as the loader's .dataset"
        )
    if isinstance(data, TorchDataset):
        return _of_torch(data)
    if isinstance(data, tuple | list) and len(data) == 2:
        return _Examples("arrays", *_pair(data, "data"))
    raise DataError(f"data must be {FORMS}; got {_kind(data)}")


def _kind(data: object) -> str:
    if isinstance(data, np.ndarray | torch.Tensor):
        return f"one array of shape {tuple(data.shape)}"
    if isinstance(data, tuple | list):
        return f"a {type(data).__name__} of {len(data)}"
    return f"a {type(data).__name__}"


# ---------------------------------------------------------------- arrays
def _pair(pair: Any, place: str) -> tuple[_Array, _Array]:
    """Inputs and labels of equal length."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise DataError(f"{place} must be a pair (x, y), got {_kind(pair)}")
    x = (
        _measurements(pair[0], tuple(pair[0].columns))
        if hasattr(pair[0], "columns")
        else _array(pair[0], f"x of {place}")
    )
    y = _labels(pair[1], f"y of {place}")
    if x.ndim == 0 or len(x) != len(y):
        raise DataError(f"{place}: x has {len(x) if x.ndim else 0} examples, y has {len(y)} labels")
    return x, y


def _array(values: Any, place: str) -> _Array:
    """An array of numbers."""
    if isinstance(values, torch.Tensor):
        plain = values.detach().cpu()
        return np.asarray((plain.float() if plain.dtype == torch.bfloat16 else plain).numpy())
    if hasattr(values, "toarray"):
        raise DataError(f"{place} is a sparse matrix; give {place}.toarray()")
    try:
        array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    except (TypeError, ValueError) as error:
        raise DataError(f"{place} is no array of numbers: {' '.join(str(error).split())}") from None
    if array.dtype.kind not in "fiub":
        raise DataError(f"{place} must hold numbers, got {array.dtype} of shape {array.shape}")
    return array


def _labels(values: Any, place: str) -> _Array:
    """Labels (N,), numbers or words."""
    if isinstance(values, torch.Tensor):
        labels = _array(values, place)
    else:
        labels = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise DataError(
            f"{place} must hold one label per example, got shape {labels.shape}; for one-hot labels give argmax(1)"
        )
    return labels


def _classes_of(name: str, labels: _Array) -> _Array:
    """Labels as words or whole numbers, as in the plain layout: booleans are words, whole floats are numbers."""
    if labels.dtype.kind == "i":
        return labels.astype(np.int64)
    plain = labels.tolist()
    for i, label in enumerate(plain):
        if label is None or not isinstance(label, str | bool | int | float) or label != label:
            raise DataError(f"{name}: the label of row {i} is missing; leave the row out")
        if isinstance(label, float) and not label.is_integer():
            raise DataError(f"{name}: the label of row {i} is {label:g}; labels are classes: words or whole numbers")
    words = [isinstance(label, str | bool) for label in plain]
    if any(words) and not all(words):
        raise DataError(f"{name}: some labels are words and some are numbers; make them all one or the other")
    return np.array([str(label) for label in plain]) if any(words) else np.array([int(v) for v in plain], np.int64)


def _of_clients(data: Mapping[Any, Any]) -> _Examples:
    """Examples from {client: (x, y)}, clients in the order given."""
    if not data:
        raise DataError("data is {} and has no client; give {client: (x, y)}")
    pairs = {str(name): _pair(pair, f"client {name}") for name, pair in data.items()}
    shapes = {name: x.shape[1:] for name, (x, _) in pairs.items()}
    first = next(iter(shapes))
    for name, shape in shapes.items():
        if shape != shapes[first]:
            raise DataError(f"examples of client {name} have shape {shape}, those of client {first} {shapes[first]}")
        if len(pairs[name][1]) == 0:
            raise DataError(f"client {name} has no examples; leave it out")
    clients = [name for name, (_, y) in pairs.items() for _ in range(len(y))]
    x, y = (np.concatenate(part) for part in zip(*pairs.values(), strict=True))
    return _Examples("arrays", x, y, clients, tuple(pairs))


# ---------------------------------------------------------------- tables
def _of_table(frame: Any, target: str | None, client: str | None, columns: tuple[Any, ...] = ()) -> _Examples:
    """Examples from a DataFrame: every column except the labels and the clients is a measurement."""
    _named(frame.columns, target, "target", "labels")
    if client is not None:
        _named(frame.columns, client, "client", "clients")
    columns = columns or tuple(c for c in frame.columns if c not in (target, client))
    for column in columns:
        _named(frame.columns, column, "test", "a measurement")
    if not columns:
        raise DataError(f"no column is left to learn from beside {target!r}" + (f" and {client!r}" if client else ""))
    clients, names = (None, ()) if client is None else _owners(frame[client].to_numpy().tolist(), client)
    labels = _labels(frame[target], f"column {target!r}")
    return _Examples("dataframe", _measurements(frame, columns), labels, clients, names, columns=columns)


def _named(columns: Any, name: object, setting: str, holds: str) -> None:
    """Refuse a setting that does not name a column."""
    known = [str(column) for column in columns]
    some = f"columns: {', '.join(known[:8])}" + (f" and {len(known) - 8} more" if len(known) > 8 else "")
    if name is None:
        raise DataError(f"{setting} must name the column of the {holds}, as in {setting}={known[-1]!r} ({some})")
    if name not in list(columns):
        raise DataError(f"{setting}: there is no column {name!r}{did_you_mean(str(name), known)} ({some})")


def _owners(values: Sequence[Any], column: str) -> tuple[list[str], tuple[str, ...]]:
    """The client of each row as a name, and all of them in order: numbers by size, others by name."""
    for i, value in enumerate(values):
        if value is None or not isinstance(value, str | int | float) or value != value:
            raise DataError(f"column {column!r} names no client in row {i}; fill it, or leave the row out")
    distinct = set(values)
    ordered = sorted(distinct) if not any(isinstance(v, str) for v in distinct) else sorted(distinct, key=str)
    return [str(value) for value in values], tuple(str(value) for value in ordered)


def _measurements(frame: Any, columns: tuple[Any, ...]) -> _Array:
    """Columns of numbers as floats (N, columns)."""
    return np.column_stack([_measurement(frame[column].to_numpy(), column) for column in columns])


def _measurement(values: Any, column: object) -> _Array:
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        for i, value in enumerate(array.tolist()):
            if isinstance(value, str):
                raise DataError(
                    f"column {column!r} holds words, such as {value!r} in row {i}; make numbers of them, or leave the "
                    "column out"
                )
            if value is not None and not isinstance(value, bool | int | float) and value == value:
                raise DataError(
                    f"column {column!r} holds a {type(value).__name__} in row {i}; make numbers of them, or leave the "
                    "column out"
                )
        array = np.array([v if isinstance(v, bool | int | float) else np.nan for v in array.tolist()], np.float64)
    array = array.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(array))
    if len(bad):
        state = "is infinite" if np.isinf(array[bad[0]]) else "has no value"
        raise DataError(f"column {column!r} {state} in row {bad[0]}; fill it, or leave the row out")
    return array


# ---------------------------------------------------------------- data sets of other libraries
def _of_torch(data: Any) -> _Examples:
    """Examples from a torch Dataset of (input, label) pairs; each item is read, and any transform drawn, once."""
    inputs, labels = [], []
    for i in range(len(data)):
        item = data[i]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"item {i} of {type(data).__name__} must be a pair (input, label), got {_kind(item)}")
        inputs.append(np.asarray(item[0]) if hasattr(item[0], "convert") else _array(item[0], f"the input of item {i}"))
        labels.append(item[1].item() if isinstance(item[1], torch.Tensor | np.generic) else item[1])
        if inputs[i].shape != inputs[0].shape:
            raise DataError(
                f"item {i} of {type(data).__name__} has shape {inputs[i].shape}, item 0 has {inputs[0].shape}; bring "
                "all to one size"
            )
    if not inputs:
        raise DataError(f"{type(data).__name__} holds no examples, at least 1 is needed")
    names = getattr(data, "classes", getattr(getattr(data, "dataset", None), "classes", None))
    classes = tuple(map(str, names)) if isinstance(names, list | tuple) and names else None
    return _Examples(type(data).__name__, np.stack(inputs), np.array(labels), classes=classes)


def _of_parts(parts: Mapping[str, Any], target: str | None, client: str | None) -> _Examples:
    """Examples from the parts "train" and "test" of a DatasetDict."""
    if "train" not in parts:
        raise DataError(
            f'the data have the parts {", ".join(parts)}; give one of them, or a dict with "train" and "test"'
        )
    rows = _of_hugging_face(parts["train"], target, client)
    return replace(rows, test=_of_hugging_face(parts["test"], target, None, client)) if "test" in parts else rows


def _of_hugging_face(part: Any, target: str | None, client: str | None, ignored: str | None = None) -> _Examples:
    """Examples from a Hugging Face dataset: its image column, or else all its columns of numbers."""
    names = list(part.column_names)
    _named(names, target, "target", "labels")
    if client is not None:
        _named(names, client, "client", "clients")
    left = [name for name in names if name not in (target, client, ignored)]
    if not left:
        raise DataError(f"no column is left to learn from beside {target!r}")
    images = [name for name in left if _holds_images(part, name)]
    if len(images) > 1:
        raise DataError(f"{', '.join(images)} all hold images; leave one, with remove_columns")
    if images:
        x: _Array = hub.images(part[images[0]], None, "data", images[0])
    else:
        x = np.column_stack([_measurement(np.array(list(part[name]), object), name) for name in left])
    clients, known = (None, ()) if client is None else _owners(_values(part, client), str(client))
    own = getattr((getattr(part, "features", None) or {}).get(target), "names", None)
    labels = np.array(_values(part, target), dtype=object)
    return _Examples("dataset", x, labels, clients, known, None if own is None else tuple(map(str, own)), tuple(left))


def _values(part: Any, name: str | None) -> list[Any]:
    return [value.item() if hasattr(value, "item") else value for value in part[name]]


def _holds_images(part: Any, name: str) -> bool:
    first = next(iter(part[name]), None)
    return hasattr(first, "convert") or (isinstance(first, np.ndarray | torch.Tensor | list) and np.ndim(first) >= 2)
