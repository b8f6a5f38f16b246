"""A data set in memory: tensors that have been checked once, so that nothing later has to."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unskew.data.images import ByteImages
from unskew.data.inputs import Inputs
from unskew.errors import DataError

ROWS = 4096
"""Examples that are checked or converted at a time, so that what is needed for it stays small."""

FEW = 1000
"""Classes, domains or clients that any data may have without naming them; more must be plausible for the examples."""

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test examples of one classification task; built by `checked`, which checks it.

    Attributes:
        name: Short name, for tables and manifests.
        x_train: Images (N, C, H, W) or rows (N, D), float32 and already normalised; or token ids (N, L), int64.  Many
            images of your own stay bytes, and their rows are float32.
        y_train: Labels (N,), int64, 0 .. num_classes - 1.
        x_test: Global test examples, shaped as `x_train`.
        y_test: Their labels.
        classes: One name per class.
        domains: Domain of each *training* example (N,), int64, or None where the data has no domains.
        domain_names: One name per domain.
        owners: Client of each *training* example (N,), int64, where the data come with their clients; None elsewhere.
        client_names: One name per such client.
        never_train: Names of those of them that come after training: a division by client sets them aside.
        own_test: True for *training* examples that are their client's own test examples (N,), which nobody trains on;
            None where clients draw theirs.
        sha256: Of the raw content before normalisation; the same on every load and in every file layout.
        levels: What black, and the brightest value of the training part, have become in each channel of images; None
            where that is not known.
        inputs: The way from raw inputs to `x_train`.
    """

    name: str
    x_train: Tensor | ByteImages
    y_train: Tensor
    x_test: Tensor | ByteImages
    y_test: Tensor
    classes: tuple[str, ...]
    domains: Tensor | None
    domain_names: tuple[str, ...]
    sha256: str
    levels: tuple[tuple[float, float], ...] | None = None
    owners: Tensor | None = None
    client_names: tuple[str, ...] = ()
    inputs: Inputs = Inputs()
    never_train: tuple[str, ...] = ()
    own_test: Tensor | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes, those without an example included."""
        return len(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example, such as (3, 32, 32)."""
        return tuple(self.x_train.shape[1:])

    @property
    def nbytes(self) -> int:
        """Bytes of the examples in memory."""
        return sum(t.nbytes for t in (self.x_train, self.y_train, self.x_test, self.y_test))


def checked(
    name: str,
    x_train: Tensor | ByteImages,
    y_train: Tensor,
    x_test: Tensor | ByteImages,
    y_test: Tensor,
    *,
    classes: Sequence[str] | None = None,
    domains: Tensor | None = None,
    domain_names: Sequence[str] | None = None,
    sha256: str | None = None,
    levels: tuple[tuple[float, float], ...] | None = None,
    owners: Tensor | None = None,
    client_names: Sequence[str] | None = None,
    inputs: Inputs = Inputs(),
    own_test: Tensor | None = None,
    never_train: Sequence[str] = (),
) -> Dataset:
    """A checked `Dataset`.

    Args:
        name: Short name, for tables and manifests.
        x_train: Floating (N, D) or (N, C, H, W), cast to float32; int64 token ids (N, L), none negative; or images
            that stay bytes.
        y_train: Integer labels (N,).
        x_test: As `x_train`, at least one example.
        y_test: As `y_train`.
        classes: Names; without them the classes are 0 .. the largest label.
        domains: Integer domain of each training example (N,).
        domain_names: Names; without them the domains are 0 .. the largest of `domains`.
        sha256: Hash of the raw content; without it the tensors themselves are hashed.
        levels: What black and white have become in each channel, if that is known.
        owners: Integer client of each training example (N,).
        client_names: Names; without them the clients are 0 .. the largest of `owners`.
        inputs: The way from raw inputs to `x_train`; by default they are the same.
        own_test: True for training examples that are their client's own test examples (N,); needs `owners`.
        never_train: Names of clients that come after training.

    Raises:
        DataError: If shapes or lengths disagree, there is no example or no class, a value is NaN or infinite, or a
            label, domain or client is out of range; the first offending index is named.
    """
    x_train, y_train = _part(name, "train", x_train, y_train)
    x_test, y_test = _part(name, "test", x_test, y_test)
    if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
        raise DataError(
            f"{name}: x_test must hold {x_train.dtype} examples of shape {tuple(x_train.shape[1:])} as x_train does, "
            f"got {x_test.dtype} of {tuple(x_test.shape[1:])}"
        )
    classes = _names(name, "classes", classes, y_train=y_train, y_test=y_test)
    check_range(name, "y_train", y_train.numpy(), len(classes), "classes")
    check_range(name, "y_test", y_test.numpy(), len(classes), "classes")
    if domains is not None:
        domains = _whole(name, "domains", domains, len(y_train))
        domain_names = _names(name, "domain_names", domain_names, domains=domains)
        check_range(name, "domains", domains.numpy(), len(domain_names), "domains")
    elif domain_names:
        raise DataError(f"{name}: {len(domain_names)} domain names, but no domain for the training examples")
    if owners is not None:
        owners = _whole(name, "clients", owners, len(y_train))
        client_names = _names(name, "client names", client_names, clients=owners)
        check_range(name, "clients", owners.numpy(), len(client_names), "clients")
    elif client_names:
        raise DataError(f"{name}: {len(client_names)} client names, but no client for the training examples")
    if own_test is not None and (owners is None or own_test.dtype != torch.bool or own_test.shape != owners.shape):
        raise DataError(f"{name}: own_test must be true or false for each training example of a known client")
    for client in never_train:
        if client not in (client_names or ()):
            raise DataError(f"{name}: never_train names {client!r}, and there is no client of this name")
    if sha256 is None:
        known = [extra for extra in (domains, owners) if extra is not None]
        sha256 = _sha256(*_plain(x_train), y_train, *_plain(x_test), y_test, *known)
    return Dataset(
        name,
        x_train,
        y_train,
        x_test,
        y_test,
        classes,
        domains,
        tuple(domain_names or ()),
        sha256,
        levels,
        owners,
        tuple(client_names or ()),
        inputs,
        never_train=tuple(never_train),
        own_test=own_test,
    )


def _part(name: str, part: str, x: Tensor | ByteImages, y: Tensor) -> tuple[Tensor | ByteImages, Tensor]:
    y = _whole(name, f"y_{part}", y, len(x) if x.dim() else 0)
    if len(y) == 0:
        raise DataError(f"{name}: x_{part} holds no examples, at least 1 is needed")
    if 0 in x.shape:
        raise DataError(f"{name}: examples of x_{part} are empty, shape {tuple(x.shape)}")
    if isinstance(x, ByteImages):
        return x, y
    if x.is_floating_point() and x.ndim in (2, 4):
        x = x.to(torch.float32)
        check_values(name, f"x_{part}", x.detach().cpu().numpy())
    elif x.dtype == torch.int64 and x.ndim == 2:
        check_values(name, f"x_{part}", x.detach().cpu().numpy())
    else:
        raise DataError(
            f"{name}: x_{part} must be floating (N, D) or (N, C, H, W), or int64 token ids (N, L), "
            f"got {x.dtype} of shape {tuple(x.shape)}"
        )
    return x, y


def check_values(name: str, what: str, x: npt.NDArray[Any]) -> None:
    """Refuse the first example with a value that is no finite float32, or with a negative token id.

    Raises:
        DataError: Naming its row.
    """
    for start in range(0, len(x), ROWS):
        rows = x[start : start + ROWS].reshape(len(x[start : start + ROWS]), -1)
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
            bad = ~np.isfinite(rows.astype(np.float32)) if x.dtype.kind == "f" else rows < 0
        if bad.any():
            i = start + int(np.flatnonzero(bad.any(1))[0])
            if x.dtype.kind != "f":
                raise DataError(f"{name}: {what}[{i}] has a negative token id")
            raise DataError(f"{name}: {what}[{i}] has a NaN or infinite value; clean the data or leave the example out")


def _whole(name: str, what: str, values: Tensor, n: int) -> Tensor:
    if values.dtype not in _INTEGERS or values.ndim != 1:
        raise DataError(
            f"{name}: {what} must be integers of shape (N,), got {values.dtype} of shape {tuple(values.shape)}"
        )
    if len(values) != n:
        raise DataError(f"{name}: {what} has {len(values)} entries for {n} examples")
    return values.to(torch.int64)


def _names(name: str, what: str, given: Sequence[str] | None, **values: Tensor) -> tuple[str, ...]:
    """The names that were given; without them 0 .. the largest value, which must be plausible for so many examples."""
    if given is None:
        check_plausible(name, **{key: array.numpy() for key, array in values.items()})
        return tuple(str(i) for i in range(int(max(v.max() for v in values.values())) + 1))
    if not given:
        raise DataError(f"{name}: {what} is empty, at least 1 is needed")
    if len(set(given)) != len(given):
        raise DataError(f"{name}: {what} must differ, got {', '.join(given)}")
    return tuple(given)


def check_plausible(name: str, **values: npt.NDArray[np.int64]) -> None:
    """Refuse a number far beyond what so many examples can have: a corrupt one would make a name for each below it.

    Raises:
        DataError: Naming its row.
    """
    n = sum(map(len, values.values()))
    limit = max(FEW, 2 * n)
    for key, array in values.items():
        row = int(array.argmax())
        if array[row] >= limit:
            raise DataError(
                f"{name}: {key}[{row}] is {array[row]}, and {n} examples without names have numbers below {limit}; "
                "correct that entry"
            )


def check_range(name: str, what: str, values: npt.NDArray[np.int64], count: int, noun: str) -> None:
    """Refuse the first value that is not one of 0 .. count - 1.

    Raises:
        DataError: Naming its row.
    """
    bad = np.flatnonzero((values < 0) | (values >= count))
    if len(bad):
        i = int(bad[0])
        raise DataError(f"{name}: {what}[{i}] is {int(values[i])}, must be 0..{count - 1} ({count} {noun})")


def _plain(x: Tensor | ByteImages) -> tuple[Tensor, ...]:
    return (x.levels, x.table) if isinstance(x, ByteImages) else (x,)


def _sha256(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for t in tensors:
        digest.update(f"{t.dtype} {tuple(t.shape)};".encode())
        digest.update(t.detach().cpu().contiguous().numpy().data.cast("B"))
    return digest.hexdigest()
