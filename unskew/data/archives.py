"""Reads npz archives that may be broken or hostile: nothing is unpickled, and errors name the file.

A `Dataset` is saved as one in a run's folder, and loaded with the same bits.  Tensors and columns are arrays of the
file; all else is JSON under the key `about`.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.npyio import NpzFile
from pydantic import TypeAdapter

from unskew import machine
from unskew.data.dataset import Dataset
from unskew.data.inputs import Inputs
from unskew.data.preprocess import Preprocess, RawRows
from unskew.data.rows import ByteImages, from_one, in_one
from unskew.errors import DataError, UnskewError
from unskew.tasks.targets import LabelType, Targets


# ---------------------------------------------------------------- archives that may be broken or hostile
def corrupt(path: Path, why: object) -> DataError:
    """The error for a file that cannot be read, with its size and hash, and what to do."""
    try:
        with path.open("rb") as file:
            mark = f"{path.stat().st_size:,} bytes, SHA-256 {hashlib.file_digest(file, 'sha256').hexdigest()}"
    except OSError as error:
        return DataError(f"there is no file {path.absolute()}, or it cannot be opened: {error.strerror}")
    reason = " ".join(str(why).split()) or type(why).__name__
    if "allow_pickle" in reason:  # NumPy's text advises to load it unsafely
        reason = "it is no NumPy file, or it holds pickled objects, which are never loaded"
    return DataError(f"{path} is not a readable data file: {reason} ({mark}); replace it with a whole copy")


@contextmanager
def archive_of(path: Path) -> Iterator[NpzFile]:
    """Open an npz file.

    Raises:
        DataError: If it cannot be read.
    """
    try:
        # Opened here: np.load leaves its own handle open when the archive is broken.
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, NpzFile):
                raise ValueError("one bare array, an npz archive with x_train and y_train is needed")
            # A megabyte of an archive can hold a gigabyte of zeros; it says so before it is unpacked.
            assert archive.zip is not None
            machine.require_room(sum(part.file_size for part in archive.zip.infolist()), path)
            with archive:
                yield archive
    except UnskewError:
        raise
    except Exception as error:  # a broken file, or a hostile one, can make its readers fail in any way
        raise corrupt(path, error) from error


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
    """Write a data set as one npz file."""
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
    """Hash of the data set in a file of `save`, without reading its examples.

    Raises:
        DataError: If the file cannot be read, or is not of `save`.
    """
    _check_saved(path)
    with archive_of(path) as archive:
        return _ABOUT.validate_json(str(archive["about"])).sha256


def load_saved(path: Path, targets: Targets) -> Dataset:
    """The data set in a file of `save`, with the same bits.

    Raises:
        DataError: If the file cannot be read, or is not of `save`.
    """
    _check_saved(path)
    with archive_of(path) as archive:
        arrays = dict(archive)
        about = _ABOUT.validate_json(str(arrays["about"]))  # what it refuses is a ValueError
        keys = [key for key in (*OF_TRAINING, "x_train", "x_test", "y_test", "test_patients", "table") if key in arrays]
        parts: dict[str, Any] = {"domains": None, "owners": None, **{key: from_one(arrays[key]) for key in keys}}
        if (table := parts.pop("table", None)) is not None:
            parts |= {key: ByteImages(parts[key], table) for key in ("x_train", "x_test")}
        y = arrays["y_train"] if targets.classes else targets.read("y_train", arrays["y_train"])
        return Dataset(
            **parts,
            **{key: getattr(about, key) for key in _About.__dataclass_fields__ if key != "raw"},
            classes=about.outputs if targets.classes else targets.groups,
            targets=targets,
            groups=None if targets.classes else torch.from_numpy(targets.counted(y)),
            raw=None if about.raw is None else _raw(arrays, *about.raw),
        )


def _raw(arrays: dict[str, _Array], rules: Preprocess, names: tuple[str, ...], clients: tuple[str, ...]) -> RawRows:
    """The columns before their preprocessing."""
    columns, owners = {name: arrays[f"raw_{i}"] for i, name in enumerate(names)}, arrays["raw_owners"]
    for name, values in columns.items():
        if values.dtype.kind == "U":
            columns[name] = np.array([str(v) or None for v in values], object)
    return RawRows(rules, columns, owners, clients, len(arrays["x_train"]))


def _check_saved(path: Path) -> None:
    """Refuse a file that a run's folder names and does not hold."""
    if path.is_symlink() or not path.is_file():
        raise DataError(f"the run's data are gone: there is no file {path.absolute()}, or it is a link")
