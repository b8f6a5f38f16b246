"""A data set in memory: tensors of a table that has been checked."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from unskew.data.inputs import FIRST_WORD, UNKNOWN, Inputs
from unskew.data.preprocess import RawRows
from unskew.data.rows import Items, Rows, as_tensor
from unskew.errors import ConfigError, DataError, did_you_mean, shown
from unskew.tasks.targets import CLASS, LabelType, Targets
from unskew.tree import Tree
from unskew.words import some


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test examples of one task; built by `unskew.data.build` after all checks.

    Attributes:
        name: Short name, for tables and manifests.
        x_train: Images (N, C, H, W) or rows (N, D), normalised float32; token ids (N, L), int64; or another form of
            `unskew.data.rows`.
        y_train: Targets of the form `targets`; by default labels (N,), int64, 0 .. num_classes - 1.
        x_test: Global test examples, shaped as `x_train`.
        y_test: Their targets.
        classes: One name per class; without classes one per group (`groups`).
        domains: Domain of each *training* example (N,), int64; None without domains.
        domain_names: One name per domain.
        owners: Client of each *training* example (N,), int64; None where the data have no clients.
        client_names: One name per such client.
        never_train: Names of those clients that come after training.
        patients: Patient of each *training* example, as a code (N,), int64; None where unknown.  The examples of a
            patient stay together, at one client.
        test_patients: Patient of each test example.
        rows: Row of each *training* example in the data as given, from 0, (N,) int64.  It counts within a client if
            clients' data are given one by one.  None where there are no rows, as with images in folders.
        when: Rank in time of each *training* example (N,), int64; equal for equal times; None where unknown.
            Validation and test examples are then the latest of a client.
        label_type: The type of the given labels, which predictions have, too.
        own_test: True for *training* examples that are their client's own test examples (N,), and never trained on;
            None where clients draw theirs.
        sha256: Hash of the raw content before normalisation; the same for every file layout.
        inputs: The way from raw inputs to `x_train`.
        targets: The form of the targets.
        outputs: Names of what a network's outputs stand for: classes, labels, tokens, or the one number.
        groups: Group of each *training* example (N,), int64, where targets are no classes; else None.
        raw: The columns before preprocessing; None without.
        ordered: The order of the classes was declared, and is not alphabetical.
        notes: Notes on your own data, which were shown when they were read.
    """

    name: str
    x_train: Rows
    y_train: Tensor
    x_test: Rows
    y_test: Tensor
    classes: tuple[str, ...]
    domains: Tensor | None
    domain_names: tuple[str, ...]
    sha256: str
    owners: Tensor | None = None
    client_names: tuple[str, ...] = ()
    inputs: Inputs = Inputs()
    never_train: tuple[str, ...] = ()
    own_test: Tensor | None = None
    targets: Targets = CLASS
    outputs: tuple[str, ...] = ()
    groups: Tensor | None = None
    raw: RawRows | None = None
    notes: tuple[str, ...] = ()
    ordered: bool = False
    patients: Tensor | None = None
    test_patients: Tensor | None = None
    label_type: LabelType = "text"
    rows: Tensor | None = None
    when: Tensor | None = None

    def __repr__(self) -> str:
        sizes = f"{len(self.y_train):,} training and {len(self.y_test):,} test examples"
        of = f" of {len(self.classes):,} classes" if self.classes and self.groups is None else ""
        return f"<Dataset {shown(self.name)}: {sizes}{of}>"

    @property
    def num_classes(self) -> int:
        """Number of classes (or groups), also those without an example."""
        return len(self.classes)

    @property
    def labels(self) -> Tensor:
        """Class (or group) of each training example, (N,) int64 in 0 .. num_classes - 1."""
        return self.y_train if self.groups is None else self.groups

    @property
    def input_shape(self) -> Any:
        """Shape of one example, such as (3, 32, 32); of several parts a tree of shapes."""
        x = self.x_train.first if isinstance(self.x_train, Items) else self.x_train
        return x.shapes if isinstance(x, Tree) else tuple(x.shape[1:])

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column of a table's training rows as given, (N,).

        Raises:
            ConfigError: If the data are no table, or have no input of that name.
        """
        names = [column.name for column in self.inputs.columns]
        if name not in names:
            raise ConfigError(f"{self.name} has no column {name!r}{did_you_mean(name, names)} (it has {some(names)})")
        if self.raw is not None:
            return self.raw.columns[name][: self.raw.train]
        at = sum(len(column.features) for column in self.inputs.columns[: names.index(name)])
        rows: Any = self.x_train  # a table is a tensor
        values: npt.NDArray[Any] = rows[:, at].double().numpy()
        return values

    @property
    def nbytes(self) -> int:
        """Bytes of the examples in memory."""
        held = pytree.tree_leaves((self.x_train, self.y_train, self.x_test, self.y_test))
        held += [] if self.raw is None else self.raw.columns.values()
        return sum(getattr(part, "nbytes", 0) for part in held)


def refitted(dataset: Dataset, train: npt.NDArray[np.int64], later: npt.NDArray[np.int64]) -> Dataset:
    """The data set with its inputs fitted to these training examples: scales of columns, vocabulary of texts.

    `later` are the examples on which unseen clients adapt.  Data without preprocessing are returned as they are.

    Raises:
        DataError: As in `unskew.data.preprocess.RawRows.inputs`.
    """
    if dataset.inputs.kind == "texts":
        return _with_words_of(dataset, torch.from_numpy(train))
    raw = dataset.raw
    if raw is None:
        return dataset
    inputs = raw.inputs(train, later, dataset.inputs)
    if inputs == dataset.inputs:
        return dataset
    x, x_test = raw.tensors(inputs)
    return replace(dataset, x_train=x, x_test=x_test, inputs=inputs)


def _with_words_of(dataset: Dataset, train: Tensor) -> Dataset:
    """The texts with ids of the words that these training examples have; all others are words nobody knows."""
    x, x_test = as_tensor(dataset.x_train), as_tensor(dataset.x_test)
    words = dataset.inputs.vocabulary
    known = torch.zeros(FIRST_WORD + len(words), dtype=torch.bool)
    known[:FIRST_WORD] = True
    known[x[train].flatten()] = True
    if known.all():
        return dataset
    ids = (known.cumsum(0) - 1).where(known, UNKNOWN)
    kept = tuple(word for word, of_train in zip(words, known[FIRST_WORD:].tolist(), strict=True) if of_train)
    return replace(dataset, x_train=ids[x], x_test=ids[x_test], inputs=replace(dataset.inputs, vocabulary=kept))


def forms(dataset: Dataset) -> Iterator[Dataset]:
    """The data set in each form that a network may take.

    These are: unchanged; whole numbers as floats (no embedding); and two-dimensional images without a channel
    (sequences).
    """
    yield dataset
    inputs, shape = dataset.inputs, dataset.input_shape
    changes: dict[str, Callable[[Tensor], Tensor]] = {}
    if inputs.kind == "as given" and inputs.dtype == "int64":
        changes["float32"] = torch.Tensor.float
    if inputs.kind == "as given" and inputs.dtype == "float32" and len(shape) == 3 and shape[0] == 1:
        changes["float32"], shape = partial(torch.squeeze, dim=1), shape[1:]
    for dtype, change in changes.items():
        both = [
            replace(x, change=change) if isinstance(x, Items) else change(as_tensor(x))
            for x in (dataset.x_train, dataset.x_test)
        ]
        way = replace(inputs, dtype=dtype, shape=shape, largest=None)
        yield replace(dataset, x_train=both[0], x_test=both[1], inputs=way)


def binned(dataset: Dataset, bins: int | Sequence[float], allow_empty: bool = False) -> Dataset:
    """The data set with its examples counted by bins of their target, which must be a number.

    Bins are ascending edges (a target on an edge belongs above it), or a number of bins between quantiles of all
    training targets.  `allow_empty` keeps bins without an example, as one client may have.

    Raises:
        DataError: If the targets are not numbers, or a bin has no training example.
    """
    if dataset.targets.name != "number":
        raise DataError(f"task.bins needs targets that are numbers, and {dataset.name} has {dataset.targets.what}")
    y = dataset.y_train.double().numpy()
    if y.ndim > 1:
        raise DataError(f"task.bins divide one number, and {dataset.name} has {y.shape[1]} a row; leave bins out")
    edges = np.quantile(y, np.arange(1, bins) / bins) if isinstance(bins, int) else np.array(bins, np.float64)
    groups = np.searchsorted(edges, y, side="right")
    empty = np.flatnonzero(np.bincount(groups, minlength=len(edges) + 1) == 0)
    ends = ["-inf", *(f"{edge:.4g}" for edge in edges), "inf"]
    names = tuple(f"{low} to {high}" for low, high in itertools.pairwise(ends))
    if len(empty) and not allow_empty:
        raise DataError(f"task.bins: no training target is in the bin {names[empty[0]]}; give fewer, or other edges")
    return replace(dataset, classes=names, groups=torch.from_numpy(groups.astype(np.int64)))
