"""Arrays in the plain layout, as one npz file, become one table.

    x_train, x_test            images of whole numbers 0..255 or of floats, (N, H, W), (N, H, W, C) or (N, C, H, W);
                               floats (N, D); or token ids, int32 or int64 (N, L)
    y_train, y_test            labels (N,): integers from 0, or words; or as unskew/tasks/targets.py says
    client_train, clients      integer client of each training example (N,) and the clients' names; optional
    client_test                client of each test example, which is then its client's own; optional
    patient_train, patient_test  integer patient of each example, optional.  No patient is in both training and
                               testing
    features                   names of the columns of x (N, D); optional
    domain_train, domains      integer domain of each training example (N,) and the domains' names; optional
    classes                    names; optional

Without x_test and y_test a fixed fifth of the training part is set aside as the test part.  npz files may code colour
images as d_train, d_test (differences modulo 256), for a smaller file.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from unskew.data import build
from unskew.data.archives import archive_of
from unskew.data.columns import CLIENT, INPUTS, LABELS, PATIENTS, Array, Frame
from unskew.data.dataset import Dataset
from unskew.data.inputs import constants_of
from unskew.data.own import columns_of_arrays, tested, told
from unskew.data.patients import PatientIds
from unskew.data.table import DataTable, names_to
from unskew.errors import DataError, did_you_mean
from unskew.tasks.targets import CLASS, Targets
from unskew.words import composed, some

ROLES = {"x": INPUTS, "y": LABELS, "patient": PATIENTS}
"""Arrays that have an entry for each example, beside numbers of its client and its domain."""

LAYOUT = tuple(f"{role}_{part}" for role in (*ROLES, "client", "domain") for part in ("train", "test"))
NAMES = ("classes", "domains", "clients", "features")

MISSPELT = 0.82
"""Likeness from which on an unknown key is a misspelt one; recipient_train is not client_train."""

Arrays = dict[str, Array]


@dataclass(frozen=True)
class ArrayOptions:
    """Options of your own arrays.

    Attributes:
        mean, std: Numbers of each channel that standardise byte images, for pixels in [0, 1]; by default those of the
            training images.
        alone: The arrays are one client's own, which may lack a class.
        patient_ids: Whose the numbers of patients are, as for a table.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    alone: bool = False
    patient_ids: PatientIds | None = None


def read(path: Path, options: ArrayOptions, **known: Any) -> DataTable:
    """The table in an npz file; `known` are further attributes of it.

    Raises:
        DataError: If it cannot be read, a key is misspelt, or as in `table`.
    """
    known |= {"alone": options.alone, "patient_ids": options.patient_ids}
    return table(path.stem, npz(path), constants=constants_of(options.mean, options.std), **known)


def table(name: str, arrays: Mapping[str, Array], classes: tuple[str, ...] | None = None, **known: Any) -> DataTable:
    """The table in arrays of the plain layout.

    Args:
        name: Name of the data.
        arrays: The arrays; keys other than `LAYOUT` and `NAMES` are ignored.
        classes: Names of the classes, where the arrays have none.
        known: Further attributes of the table.  By default patients' numbers are the network's.

    Raises:
        DataError: If shapes, types or lengths do not fit.
    """
    frames = {}
    for part in ("train", "test"):
        roles = (*ROLES, "client", "domain")
        held = {role: arrays[f"{role}_{part}"] for role in roles if f"{role}_{part}" in arrays}
        if held and not {"x", "y"} <= held.keys():
            raise DataError(f"{name}: x_{part} and y_{part} must be there together")
        for role, values in held.items():
            if values.ndim == 0 or len(values) != np.atleast_1d(held["y"]).shape[0]:
                raise DataError(f"{name}: {role}_{part} and y_{part} must have one length, got {values.shape}")
            if role not in "xy" and (values.dtype.kind not in "iu" or values.ndim > 1 or (values < 0).any()):
                raise DataError(f"{name}: {role}_{part} must be integers from 0 of shape (N,), got {values.dtype}")
        if held:
            frames[part] = Frame({of: held[role] for role, of in ROLES.items() if role in held}, name=name)
    rows = told(tested(frames["train"], frames["test"], CLIENT) if len(frames) > 1 else frames["train"])

    names = {key: tuple(composed(str(v)) for v in arrays[key].reshape(-1)) for key in NAMES if key in arrays}

    def numbered(role: str) -> tuple[Any, tuple[str, ...]]:
        """The number of each row's client or domain, and their names."""
        if f"{role}_train" not in arrays:
            return None, ()
        values = np.concatenate([arrays.get(f"{role}_{part}", np.full(len(of), -1)) for part, of in frames.items()])
        largest, known = int(values.max(initial=-1)), names.get(f"{role}s", ())
        if known and largest >= len(known):
            at = rows.place(int(values.argmax()))
            raise DataError(f"{name}: {role} of {at} is {largest}, must be 0..{len(known) - 1}")
        return values, known or names_to(largest, len(rows), f"{name}: {role}_train")

    (owners, clients), (domains, domain_names) = numbered("client"), numbered("domain")
    rows = replace(
        rows,
        owners=owners,
        clients=clients,
        domains=domains,
        domain_names=domain_names,
        classes=names.get("classes", classes),
        order=names.get("classes", ()),
        **{"patient_ids": "network", **known},
    )
    return columns_of_arrays(rows, names.get("features"))


def checked(
    name: str,
    x_train: Tensor,
    y_train: Tensor,
    x_test: Tensor,
    y_test: Tensor,
    *,
    classes: Sequence[str] | None = None,
    targets: Targets = CLASS,
    **more: Any,
) -> Dataset:
    """A data set from tensors, checked like arrays of the plain layout: for a data function of your own.

    Args:
        name: Short name, for tables and manifests.
        x_train, x_test: Inputs as in `LAYOUT`.
        y_train, y_test: Labels (N,), or other targets.
        classes: Their names; by default 0 to the largest label.
        targets: The form of the targets.
        more: Further keys of the layout, such as `domain_train`, `client_train` and `patient_train`, with the names
            `domains` and `clients`.

    Raises:
        DataError: As in `table`, and in `unskew.data.build.dataset`.
    """
    content = {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test, **more}
    if odd := [key for key in content if key not in (*LAYOUT, *NAMES)]:
        raise DataError(f"{name}: there is no {odd[0]!r}{did_you_mean(odd[0], (*LAYOUT, *NAMES))}")
    given = {key: np.asarray(value) for key, value in content.items()}
    return build.dataset(table(name, given, None if classes is None else tuple(classes), kind=targets, own=False))


# ---------------------------------------------------------------- files
def npz(path: Path) -> Arrays:
    """The arrays of the plain layout in one npz file; coded images are decoded.

    Raises:
        DataError: If an array is missing or misspelt, or the file is broken.
    """
    with archive_of(path) as archive:
        present = archive.files
        arrays = {key: archive[key] for key in (*LAYOUT, *NAMES) if key in present}
        for part in ("train", "test"):
            if f"x_{part}" not in arrays and f"d_{part}" in present:
                arrays[f"x_{part}"] = _decoded(archive[f"d_{part}"])
    known = (*LAYOUT, *NAMES, "d_train", "d_test")
    # Another letter, as in CIFAR-100's c_train of coarse classes, is no misspelling.
    for key in (key for key in present if key not in known):
        if not re.fullmatch("[a-wz]_(train|test)", key) and (meant := did_you_mean(key.lower(), known, MISSPELT)):
            raise DataError(f"{path} has an unknown key {key}{meant} rename it, or leave it out")
    if missing := [key for key in ("x_train", "y_train") if key not in arrays]:
        raise DataError(f"{path} must have {missing[0]} (it has: {some(present) or 'none'})")
    return arrays


def batches(path: Path) -> Arrays:
    """Coded training batches train_1.npz, train_2.npz, ... and test.npz, each with images d and labels y."""
    train = sorted(path.glob("train_*.npz"), key=lambda f: (len(f.name), f.name))
    x, y = zip(*map(_batch, train), strict=True)
    x_test, y_test = _batch(path / "test.npz")
    return {"x_train": np.concatenate(x), "y_train": np.concatenate(y), "x_test": x_test, "y_test": y_test}


def _batch(path: Path) -> tuple[Array, Array]:
    with archive_of(path) as archive:
        return _decoded(archive["d"]), archive["y"]


def _decoded(d: Array) -> npt.NDArray[np.uint8]:
    """Coded (N, 3, H, W) to RGB (N, H, W, 3).

    The code: red and blue minus green, then differences down the columns and along the rows, all modulo 256.
    """
    if d.dtype != np.uint8 or d.ndim != 4 or d.shape[1] != 3:
        raise ValueError(f"coded images must be uint8 (N, 3, H, W), got {d.dtype} of shape {d.shape}")
    x = d.cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
    x[:, 0] += x[:, 1]
    x[:, 2] += x[:, 1]
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))
