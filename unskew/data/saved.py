"""Data sets that a run's folder keeps: a whole `Dataset` in one npz file, and back, bit for bit."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import TypeAdapter
from torch import Tensor

from unskew.data.archives import archive_of, array_of
from unskew.data.arrays import LAYOUT, names_of
from unskew.data.dataset import Dataset, checked
from unskew.data.images import ByteImages, stored
from unskew.data.inputs import Inputs
from unskew.data.preprocess import Preprocess, RawRows
from unskew.errors import DataError
from unskew.tasks.targets import LabelType, Targets

_Array = npt.NDArray[Any]
_Arrays = dict[str, _Array]


def save(dataset: Dataset, path: Path) -> None:
    """Write a data set as it is, rows divided and inputs scaled (or bytes, and their table), as one npz."""
    content: dict[str, Any] = {
        "name": dataset.name,
        "sha256": dataset.sha256,
        "x_train": stored(dataset.x_train),
        "y_train": dataset.y_train,
        "x_test": stored(dataset.x_test),
        "y_test": dataset.y_test,
        "classes": dataset.outputs,
        "domain_train": dataset.domains,
        "domains": dataset.domain_names or None,
        "client_train": dataset.owners,
        "patient_train": dataset.patients,
        "patient_test": dataset.test_patients,
        "clients": dataset.client_names or None,
        "levels": dataset.levels,
        "table": dataset.x_train.table if isinstance(dataset.x_train, ByteImages) else None,
        "own_test": dataset.own_test,
        "never_train": dataset.never_train or None,
        "inputs": json.dumps(asdict(dataset.inputs)),
        "label_type": dataset.label_type,
        "rows": dataset.rows,
        "when": dataset.when,
        **({} if dataset.raw is None else _columns_saved(dataset.raw)),
    }
    with path.open("wb") as file:
        arrays: dict[str, Any] = {key: np.asarray(value) for key, value in content.items() if value is not None}
        np.savez(file, **arrays)


def _columns_saved(raw: RawRows) -> dict[str, Any]:
    """Columns before their preprocessing, as arrays: numbers as they are, words with a mark where there is none."""
    content: dict[str, Any] = {"preprocess": json.dumps(asdict(raw.rules)), "raw_names": list(raw.train)}
    content |= {"raw_owners": raw.owners, "raw_test_owners": raw.test_owners, "raw_clients": raw.clients}
    for part, table in (("train", raw.train), ("test", raw.test)):
        for i, values in enumerate(table.values()):
            words = values.dtype.kind == "O"
            content[f"raw_{part}_{i}"] = (
                np.array(["" if v is None else v for v in values], np.str_) if words else values
            )
            if words:
                content[f"raw_{part}_{i}_gap"] = np.array([v is None for v in values], bool)
    return content


def _columns_of(arrays: _Arrays, rows: int, test_rows: int) -> RawRows | None:
    """Read what `_columns_saved` wrote; None if there were no such columns.

    Raises:
        ValueError: If something is missing, or of another kind or length.
    """
    if "preprocess" not in arrays:
        return None
    names = [str(name) for name in arrays["raw_names"]]
    clients = tuple(map(str, arrays["raw_clients"]))

    def column(part: str, i: int, length: int) -> _Array:
        values = arrays[f"raw_{part}_{i}"]
        if values.shape != (length,) or values.dtype.kind not in "fU":
            raise ValueError(f"raw_{part}_{i} is not a column of {length} values")
        if values.dtype.kind == "f":
            return values.astype(np.float64)
        gaps = arrays[f"raw_{part}_{i}_gap"].tolist()
        return np.array([None if gap else str(v) for v, gap in zip(values, gaps, strict=True)], object)

    def owners(key: str, length: int) -> npt.NDArray[np.int64]:
        values = arrays[key].astype(np.int64, casting="safe")
        if values.shape != (length,) or not ((values >= 0) & (values < len(clients))).all():
            raise ValueError(f"{key} must have one of {len(clients)} clients for each of {length} rows")
        return values

    try:
        return RawRows(
            TypeAdapter(Preprocess).validate_json(str(arrays["preprocess"])),
            {name: column("train", i, rows) for i, name in enumerate(names)},
            {name: column("test", i, test_rows) for i, name in enumerate(names)},
            owners("raw_owners", rows),
            owners("raw_test_owners", test_rows),
            clients,
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"the columns are broken: {error}") from None


def _check_saved(path: Path) -> None:
    """Refuse a file that a run's folder names and does not hold: the folder may be somebody else's.

    Raises:
        DataError: If it is missing, a link or a device.
    """
    if path.is_symlink() or not path.is_file():
        raise DataError(f"the run's data are gone: there is no file {path.absolute()}, or it is a link")


def saved_sha256(path: Path) -> str:
    """Hash of the data set that `save` wrote, without reading its examples.

    Raises:
        DataError: If the file cannot be read, or is not of `save`.
    """
    _check_saved(path)
    with archive_of(path) as archive:
        if "sha256" not in archive.files:
            raise ValueError("it has no sha256")
        return str(array_of(archive, "sha256"))


def load_saved(path: Path, targets: Targets) -> Dataset:
    """The data set that `save` wrote, bit for bit."""
    _check_saved(path)
    with archive_of(path) as archive:
        arrays = {key: array_of(archive, key) for key in archive.files}
        lacking = [
            key for key in ("name", "sha256", "inputs", "x_train", "y_train", "x_test", "y_test") if key not in arrays
        ]
        if lacking:
            raise ValueError(f"it has no {', '.join(lacking)}")
        inputs = TypeAdapter(Inputs).validate_json(str(arrays["inputs"]))  # what it refuses is a ValueError
        raw = _columns_of(arrays, len(arrays["x_train"]), len(arrays["x_test"]))
        label_type: LabelType = TypeAdapter(LabelType).validate_python(str(arrays.get("label_type", "text")))
        numbers = [key for key in (*LAYOUT, "table", "own_test", "rows", "when") if key in arrays]
        if odd := [key for key in numbers if arrays[key].dtype.kind not in "biuf"]:
            raise ValueError(f"{odd[0]} must hold numbers, and is of type {arrays[odd[0]].dtype}")
        if "rows" in arrays and arrays["rows"].min(initial=0) < 0:
            raise ValueError("rows must be 0 or more")
    tensors = {key: torch.from_numpy(arrays[key]) for key in numbers}
    x: dict[str, Tensor | ByteImages] = {key: tensors[key] for key in ("x_train", "x_test")}
    if "table" in tensors:
        x = {key: ByteImages(tensors[key], tensors["table"]) for key in x}
    name = str(arrays["name"])
    dataset = checked(
        name,
        x["x_train"],
        tensors["y_train"],
        x["x_test"],
        tensors["y_test"],
        classes=names_of(name, "classes", arrays),
        domains=tensors.get("domain_train"),
        domain_names=names_of(name, "domains", arrays),
        sha256=str(arrays["sha256"]),
        levels=tuple((float(black), float(white)) for black, white in arrays["levels"]) if "levels" in arrays else None,
        owners=tensors.get("client_train"),
        patients=tensors.get("patient_train"),
        test_patients=tensors.get("patient_test"),
        client_names=names_of(name, "clients", arrays),
        inputs=inputs,
        own_test=tensors.get("own_test"),
        never_train=tuple(map(str, arrays.get("never_train", ()))),
        targets=targets,
        raw=raw,
        label_type=label_type,
        rows=tensors.get("rows"),
        when=tensors.get("when"),
    )
    return dataset if "rows" in tensors else replace(dataset, rows=None)
