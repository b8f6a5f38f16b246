"""Data sets that a run's folder keeps: a whole `Dataset` in one npz file, and back, bit for bit.

Tensors and columns are arrays of the file; all else is the JSON under the key `about`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import TypeAdapter

from unskew.data.archives import archive_of, array_of
from unskew.data.dataset import Dataset
from unskew.data.inputs import Inputs
from unskew.data.preprocess import Preprocess, RawRows
from unskew.data.rows import ByteImages, from_one, in_one
from unskew.errors import DataError
from unskew.tasks.targets import LabelType, Targets

_Array = npt.NDArray[Any]

OF_TRAINING = ("y_train", "domains", "owners", "patients", "own_test", "rows", "when")
"""Tensors that have an entry for each training example."""


@dataclass(frozen=True)
class _About:
    """The part of a data set beside its tensors, under the names that `Dataset` has for it.

    Of columns before their preprocessing, `raw`, it has the rules, and the names of the columns and of the clients.
    """

    name: str
    sha256: str
    outputs: tuple[str, ...]
    domain_names: tuple[str, ...]
    client_names: tuple[str, ...]
    never_train: tuple[str, ...]
    label_type: LabelType
    ordered: bool
    inputs: Inputs
    raw: tuple[Preprocess, tuple[str, ...], tuple[str, ...]] | None


_ABOUT = TypeAdapter(_About)


def save(dataset: Dataset, path: Path) -> None:
    """Write a data set as it is, rows divided and inputs scaled (or bytes, and their table), as one npz."""
    content: dict[str, Any] = {
        "x_train": in_one(dataset.x_train),
        "x_test": in_one(dataset.x_test),
        "table": dataset.x_train.table if isinstance(dataset.x_train, ByteImages) else None,
        **{key: getattr(dataset, key) for key in (*OF_TRAINING, "y_test", "test_patients")},
    }
    about = {key: getattr(dataset, key) for key in _About.__dataclass_fields__}
    if (raw := dataset.raw) is not None:
        about["raw"] = (raw.rules, tuple(raw.columns), raw.clients)
        content["raw_owners"] = raw.owners
        for i, values in enumerate(raw.columns.values()):
            words = values.dtype.kind == "O"  # a gap becomes the empty word, which no column holds
            content[f"raw_{i}"] = np.array([v or "" for v in values], np.str_) if words else values
    content["about"] = _ABOUT.dump_json(_About(**about)).decode()
    with path.open("wb") as file:
        arrays: dict[str, Any] = {key: np.asarray(value) for key, value in content.items() if value is not None}
        np.savez(file, **arrays)


def saved_sha256(path: Path) -> str:
    """Hash of the data set that `save` wrote, without reading its examples.

    Raises:
        DataError: If the file cannot be read, or is not of `save`.
    """
    _check_saved(path)
    with archive_of(path) as archive:
        return _ABOUT.validate_json(str(array_of(archive, "about"))).sha256


def load_saved(path: Path, targets: Targets) -> Dataset:
    """The data set that `save` wrote, bit for bit.

    Raises:
        DataError: If the file cannot be read, is not of `save`, or its parts do not fit together.
    """
    _check_saved(path)
    with archive_of(path) as archive:
        arrays = {key: array_of(archive, key) for key in archive.files}
        if lacking := {"about", "x_train", "y_train", "x_test", "y_test"} - arrays.keys():
            raise ValueError(f"it has no {min(lacking)}")
        about = _ABOUT.validate_json(str(arrays["about"]))  # what it refuses is a ValueError
        keys = [key for key in (*OF_TRAINING, "x_train", "x_test", "y_test", "test_patients", "table") if key in arrays]
        if odd := [key for key in keys if arrays[key].dtype.kind not in "biuf" + "V" * key.startswith("x_")]:
            raise ValueError(f"{odd[0]} must hold numbers, and is of type {arrays[odd[0]].dtype}")
        parts: dict[str, Any] = {"domains": None, "owners": None, **{key: from_one(arrays[key]) for key in keys}}
        if (table := parts.pop("table", None)) is not None:
            parts |= {key: ByteImages(parts[key], table) for key in ("x_train", "x_test")}
        y = arrays["y_train"] if targets.classes else targets.read("y_train", arrays["y_train"])
        dataset = Dataset(
            **parts,
            **{key: getattr(about, key) for key in _About.__dataclass_fields__ if key != "raw"},
            classes=about.outputs if targets.classes else targets.groups,
            targets=targets,
            groups=None if targets.classes else torch.from_numpy(targets.counted(y)),
            raw=None if about.raw is None else _raw(arrays, *about.raw),
        )
        _check_fits(dataset)
    return dataset


def _raw(arrays: dict[str, _Array], rules: Preprocess, names: tuple[str, ...], clients: tuple[str, ...]) -> RawRows:
    """The columns before their preprocessing."""
    columns, owners = {name: arrays[f"raw_{i}"] for i, name in enumerate(names)}, arrays["raw_owners"]
    for name, values in columns.items():
        if values.dtype.kind not in "fU" or len(values) != len(owners) or owners.dtype != np.int64:
            raise ValueError(f"column {name!r} holds neither numbers nor words, a row for each of its clients' numbers")
        if values.dtype.kind == "U":
            columns[name] = np.array([str(v) or None for v in values], object)
    return RawRows(rules, columns, owners, clients, len(arrays["x_train"]))


def _check_fits(data: Dataset) -> None:
    """Refuse parts of different lengths, and numbers that stand for nothing: the folder may be somebody else's."""
    n, m, raw = len(data.x_train), len(data.x_test), data.raw
    classes = len(data.outputs) if data.targets.classes else None
    kinds = {"y_train": classes, "domains": len(data.domain_names), "owners": len(data.client_names)}
    parts: list[tuple[str, Any, int, int | None]] = [(k, getattr(data, k), n, kinds.get(k)) for k in OF_TRAINING]
    parts += [("y_test", data.y_test, m, classes), ("test_patients", data.test_patients, m, None)]
    if raw is not None:
        parts.append(("owners of rows", raw.owners, n + m, len(raw.clients)))
    for key, values, rows, count in parts:
        if values is not None and len(values) != rows:
            raise ValueError(f"{key} has {len(values)} entries for {rows} examples")
        if values is not None and count is not None and len(values) and not 0 <= values.min() <= values.max() < count:
            raise ValueError(f"{key} must be numbers from 0 to {count - 1}")
    if not n or not m:
        raise ValueError("x_train or x_test has no examples")


def _check_saved(path: Path) -> None:
    """Refuse a file that a run's folder names and does not hold."""
    if path.is_symlink() or not path.is_file():
        raise DataError(f"the run's data are gone: there is no file {path.absolute()}, or it is a link")
