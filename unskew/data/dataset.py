"""A data set in memory: tensors that have been checked once, so that nothing later has to."""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unskew.data.images import ByteImages, as_tensor, extremes
from unskew.data.inputs import AXES, Inputs, check_values, prepared
from unskew.data.preprocess import RawRows
from unskew.data.text import FIRST_WORD, UNKNOWN
from unskew.errors import DataError, obeyed, shown, writable
from unskew.tasks.targets import CLASS, IGNORED, LabelType, Targets, mislabelled

FEW = 1000
"""Classes, domains or clients that any data may have without naming them; more must be plausible for the examples."""

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test examples of one task; built by `checked`, which checks it.

    Attributes:
        name: Short name, for tables and manifests.
        x_train: Images (N, C, H, W) or rows (N, D), float32 and already normalised; or token ids (N, L), int64.  Many
            images of your own stay bytes, and their rows are float32.
        y_train: Targets, of the form `targets`: labels (N,), int64, 0 .. num_classes - 1, unless it is said otherwise.
        x_test: Global test examples, shaped as `x_train`.
        y_test: Their targets.
        classes: One name per class; of targets that are no classes one per group by which examples are counted.
        domains: Domain of each *training* example (N,), int64, or None where the data has no domains.
        domain_names: One name per domain.
        owners: Client of each *training* example (N,), int64, where the data come with their clients; None elsewhere.
        client_names: One name per such client.
        never_train: Names of those of them that come after training: a division by client sets them aside.
        patients: Patient of each *training* example, or whoever else has several, as a code (N,), int64; None where
            that is not known.  The examples of one stay together, and no two clients share one.
        test_patients: Patient of each test example.
        rows: Row of each *training* example in the data as they were given, counted from 0, within its client's where
            each client's are given by themselves (N,) int64; None where they are no rows, as images in folders.
        when: Place in time of each *training* example (N,), int64, equal where their times are; None where it is not
            known.  Validation and test examples are then the latest of a client's.
        label_type: The type of the labels that `outputs` were named after, which predictions have, too.
        own_test: True for *training* examples that are their client's own test examples (N,), which nobody trains on;
            None where clients draw theirs.
        sha256: Of the raw content before normalisation; the same on every load and in every file layout.
        levels: What black, and the brightest value of the training part, have become in each channel of images; None
            where that is not known.
        inputs: The way from raw inputs to `x_train`.
        targets: The form of the targets.
        outputs: Names of what the outputs of a network stand for: classes, labels, tokens, or the one number.
        groups: Group of each *training* example (N,), int64, where targets are no classes; None where they are.
        raw: The columns before their preprocessing; None where there was none.
        ordered: The classes stand in an order that somebody has declared, and not in that of the alphabet.
        doubts: Sentences on what is hardly meant in data of one's own; each was a warning when they were read.
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
    targets: Targets = CLASS
    outputs: tuple[str, ...] = ()
    groups: Tensor | None = None
    raw: RawRows | None = None
    doubts: tuple[str, ...] = ()
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
        """Number of classes (or groups), those without an example included."""
        return len(self.classes)

    @property
    def labels(self) -> Tensor:
        """Class of each training example, or the group by which it is counted, (N,) int64 in 0 .. num_classes - 1."""
        return self.y_train if self.groups is None else self.groups

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example, such as (3, 32, 32)."""
        return tuple(self.x_train.shape[1:])

    @property
    def nbytes(self) -> int:
        """Bytes of the examples in memory."""
        examples = sum(t.nbytes for t in (self.x_train, self.y_train, self.x_test, self.y_test))
        return examples + (0 if self.raw is None else self.raw.nbytes)


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
    targets: Targets = CLASS,
    raw: RawRows | None = None,
    patients: Tensor | None = None,
    test_patients: Tensor | None = None,
    label_type: LabelType | None = None,
    rows: Tensor | None = None,
    when: Tensor | None = None,
) -> Dataset:
    """A checked `Dataset`.

    Args:
        name, levels, inputs, never_train, targets, raw: As of a `Dataset`.
        x_train: Floating (N, D) or (N, C, H, W), cast to float32; int64 token ids (N, L), none negative; or images
            that stay bytes.
        y_train: Integer labels (N,), or targets of another form.
        x_test, y_test: The same of at least one test example.
        classes: Names; without them the classes are 0 .. the largest label.  Names of the labels where an example has
            several, of the vocabulary where targets are tokens.
        domains, owners: Integer domain and client of each training example, (N,).
        domain_names, client_names: Names; without them the domains and clients are 0 .. the largest.
        own_test: As of a `Dataset`; needs `owners`.
        patients, test_patients: Integer code of the patient of each training and each test example, (N,).
        sha256: Hash of the raw content; without it the tensors themselves are hashed.
        label_type: The type of the labels that classes are named after; by default whole numbers where classes have
            their numbers as names, and else text.
        rows: Row of each training example in the data as they were given (N,); by default as they stand here.
        when: As of a `Dataset`.

    Raises:
        DataError: If something is no tensor, shapes or lengths disagree, there is no example or no class, a value is
            NaN or infinite, or a label, domain or client is out of range; the first offending index is named.
    """
    _check_tensors(name, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, domains=domains)
    _check_tensors(name, owners=owners, own_test=own_test, patients=patients, test_patients=test_patients)
    _check_tensors(name, when=when)
    x_train, y_train = _part(name, "train", x_train, y_train, targets)
    x_test, y_test = _part(name, "test", x_test, y_test, targets)
    if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
        raise DataError(
            f"{name}: x_test must hold {x_train.dtype} examples of shape {tuple(x_train.shape[1:])} as x_train does, "
            f"got {x_test.dtype} of {tuple(x_test.shape[1:])}"
        )
    outputs = _outputs(name, classes, (x_train, x_test), (y_train, y_test), targets)
    if label_type is None:
        label_type = "integer" if _by_number(outputs, targets) else "text"
    if odd := mislabelled(outputs, label_type):
        raise DataError(f"{name}: {odd}; rename it, or leave label_type out")
    groups = None if targets.classes else torch.from_numpy(targets.counted(y_train.numpy()))
    domains, domain_names = _grouped(name, "domain", domains, domain_names, len(y_train))
    owners, client_names = _grouped(name, "client", owners, client_names, len(y_train))
    if own_test is not None and (owners is None or own_test.dtype != torch.bool or own_test.shape != owners.shape):
        raise DataError(f"{name}: own_test must be true or false for each training example of a known client")
    if patients is not None:
        patients = _whole(name, "patients", patients, len(y_train))
    if test_patients is not None:
        test_patients = _whole(name, "test_patients", test_patients, len(y_test))
    columns = [feature for column in inputs.columns for feature in column.features]
    called = {"class": outputs, "domain": domain_names, "client": client_names, "column": columns}
    for what, one in (("data set", name), *((what, one) for what, names in called.items() for one in names)):
        if not writable(one):
            raise DataError(f"{name}: the {what} name {one!r} cannot be written in UTF-8; rename it")
        # A vocabulary may have characters that are not printed.
        if what != "data set" and not (what == "class" and targets.tokens) and obeyed(one):
            raise DataError(f"{name}: the {what} name {one!r} has control characters, which terminals obey; rename it")
    for client in never_train:
        if client not in client_names:
            raise DataError(f"{name}: never_train names {client!r}, and there is no client of this name")
    if sha256 is None:
        known = [extra for extra in (domains, owners, patients, test_patients, when) if extra is not None]
        sha256 = _sha256(*_plain(x_train), y_train, *_plain(x_test), y_test, *known)
    return Dataset(
        name=name,
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        classes=outputs if targets.classes else targets.groups,
        domains=domains,
        domain_names=domain_names,
        sha256=sha256,
        levels=levels,
        owners=owners,
        client_names=client_names,
        inputs=_described(inputs, x_train),
        never_train=tuple(never_train),
        own_test=own_test,
        targets=targets,
        outputs=outputs,
        groups=groups,
        raw=raw,
        patients=patients,
        test_patients=test_patients,
        label_type=label_type,
        rows=torch.arange(len(y_train)) if rows is None else _whole(name, "rows", rows, len(y_train)),
        when=None if when is None else _whole(name, "when", when, len(y_train)),
    )


def _grouped(
    name: str, what: str, groups: Tensor | None, names: Sequence[str] | None, n: int
) -> tuple[Tensor | None, tuple[str, ...]]:
    """The domain, or the client, of each of n training examples, and the names of all."""
    if groups is None:
        if names:
            raise DataError(f"{name}: {len(names)} {what} names, but no {what} for the training examples")
        return None, ()
    groups = _whole(name, f"{what}s", groups, n)
    called = _names(name, f"{what} names", names, **{f"{what}s": groups})
    check_range(name, f"{what}s", groups.numpy(), len(called), f"{what}s")
    return groups, called


def _check_tensors(name: str, **values: object) -> None:
    """Refuse the first of these that is no tensor; images may stay bytes."""
    for what, value in values.items():
        if value is None or isinstance(value, Tensor) or (what.startswith("x_") and isinstance(value, ByteImages)):
            continue
        kind = "a NumPy array" if isinstance(value, np.ndarray) else f"a value of type {type(value).__name__}"
        raise DataError(f"{name}: {what} must be a tensor, got {kind}; torch.as_tensor({what}) makes one")


def _by_number(outputs: Sequence[str], targets: Targets) -> bool:
    """True if targets are numbers of classes or tokens, whose names are no others."""
    return (targets.classes or targets.tokens) and all(name == str(i) for i, name in enumerate(outputs))


def _described(inputs: Inputs, x: Tensor | ByteImages) -> Inputs:
    """The way from raw inputs, with what is known once there are examples."""
    if inputs.kind not in ("as given", "images"):
        return inputs
    shape = tuple(x.shape[1:])
    inputs = replace(inputs, shape=shape, axes=AXES if len(shape) == len(AXES) else ())
    if inputs.kind == "images":
        return inputs
    largest = max(map(abs, extremes(x))) if inputs.axes else None
    return replace(inputs, dtype=str(x.dtype).removeprefix("torch."), largest=largest)


def refitted(dataset: Dataset, train: npt.NDArray[np.int64], later: npt.NDArray[np.int64]) -> Dataset:
    """The data set with its inputs prepared by these training examples alone: a table's numbers, the words of texts.

    Args:
        dataset: Data whose columns were preprocessed (`Dataset.raw`), or texts; others come back as they are.
        train: Numbers of the examples that train.
        later: Those that clients which come after training have to adapt on.

    Raises:
        DataError: As in `unskew.data.preprocess.fit`.
    """
    if dataset.inputs.kind == "texts":
        return _with_words_of(dataset, torch.from_numpy(train))
    raw = dataset.raw
    if raw is None:
        return dataset
    inputs = raw.inputs(dataset.inputs, train, later)
    if inputs == dataset.inputs:
        return dataset
    x = torch.from_numpy(prepared(inputs.columns, raw.train, raw.owners))
    x_test = torch.from_numpy(prepared(inputs.columns, raw.test, raw.test_owners))
    check_values(dataset.name, "x_train", x.numpy())
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


def _outputs(
    name: str,
    given: Sequence[str] | None,
    inputs: tuple[Tensor | ByteImages, Tensor | ByteImages],
    values: tuple[Tensor, Tensor],
    targets: Targets,
) -> tuple[str, ...]:
    """The names of what a network's outputs stand for, and a check that targets are among them."""
    places = dict(zip(("y_train", "y_test"), values, strict=True))
    if targets.tokens:
        ids = {key: x for key, x in zip(("x_train", "x_test"), inputs, strict=True) if x.dtype == torch.int64}
        tokens = {key: as_tensor(part).amax(1) for key, part in {**places, **ids}.items()}
        outputs = _names(name, "classes", given, **tokens)
        for key, highest in tokens.items():
            check_range(name, key, highest.numpy(), len(outputs), "tokens of the vocabulary")
        noun = f"tokens of the vocabulary; a target of {IGNORED} counts nowhere"
        for key, part in places.items():
            lowest = part.where(part != IGNORED, 0).amin(1)
            check_range(name, key, lowest.numpy(), len(outputs), noun)
        return outputs
    if targets.classes:
        outputs = _names(name, "classes", given, **places)
        for key, labels in places.items():
            check_range(name, key, labels.numpy(), len(outputs), "classes")
        return outputs
    columns = [1 if y.dim() == 1 else y.shape[1] for y in values]
    if columns[0] != columns[1]:
        raise DataError(f"{name}: y_test must have {columns[0]} columns as y_train has, got {columns[1]}")
    outputs = targets.outputs(columns[0])
    if given is None:
        return outputs
    if len(given) != len(outputs):
        raise DataError(f"{name}: {len(given)} names for {len(outputs)} {targets.what}")
    return _names(name, "classes", given)


def _part(
    name: str, part: str, x: Tensor | ByteImages, y: Tensor, targets: Targets
) -> tuple[Tensor | ByteImages, Tensor]:
    n = len(x) if x.dim() else 0
    if targets.classes:
        y = _whole(name, f"y_{part}", y, n)
    else:
        y = torch.from_numpy(targets.read(f"{name}: y_{part}", y.detach().cpu().numpy()))
        if len(y) != n:
            raise DataError(f"{name}: y_{part} has {len(y)} entries for {n} examples")
    if len(y) == 0:
        raise DataError(f"{name}: x_{part} holds no examples, at least 1 is needed")
    if 0 in x.shape:
        raise DataError(f"{name}: examples of x_{part} are empty, shape {tuple(x.shape)}")
    if isinstance(x, ByteImages):
        return x, y
    if x.is_floating_point() and x.ndim in (2, 4, 5):
        x = x.to(torch.float32)
        check_values(name, f"x_{part}", x.detach().cpu().numpy())
    elif x.dtype == torch.int64 and x.ndim == 2:
        check_values(name, f"x_{part}", x.detach().cpu().numpy())
    else:
        raise DataError(
            f"{name}: x_{part} must be floating (N, D), (N, C, H, W) or volumes (N, C, D, H, W), or int64 token ids "
            f"(N, L), got {x.dtype} of shape {tuple(x.shape)}"
        )
    return x, y


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


def binned(dataset: Dataset, bins: int | Sequence[float], allow_empty: bool = False) -> Dataset:
    """The data set with its examples counted by bins of their target, which must be a number.

    Args:
        dataset: Data whose targets are numbers.
        bins: Edges between bins, ascending; a target on an edge belongs above it.  Or a number of bins, whose edges are
            quantiles of all training targets.
        allow_empty: Keep bins without an example, as a single client may have.

    Raises:
        DataError: If the targets are no numbers, or a bin has no training example.
    """
    if dataset.targets.name != "number":
        raise DataError(f"task.bins needs targets that are numbers, and {dataset.name} has {dataset.targets.what}")
    y = dataset.y_train.double().numpy()
    edges = np.quantile(y, np.arange(1, bins) / bins) if isinstance(bins, int) else np.array(bins, np.float64)
    groups = np.searchsorted(edges, y, side="right")
    empty = np.flatnonzero(np.bincount(groups, minlength=len(edges) + 1) == 0)
    ends = ["-inf", *(f"{edge:.4g}" for edge in edges), "inf"]
    names = tuple(f"{low} to {high}" for low, high in itertools.pairwise(ends))
    if len(empty) and not allow_empty:
        raise DataError(
            f"task.bins: no training target of {dataset.name} lies in the bin {names[empty[0]]} (they range from "
            f"{y.min():.4g} to {y.max():.4g}); give fewer bins, or other edges"
        )
    return replace(dataset, classes=names, groups=torch.from_numpy(groups.astype(np.int64)))


def _plain(x: Tensor | ByteImages) -> tuple[Tensor, ...]:
    return (x.levels, x.table) if isinstance(x, ByteImages) else (x,)


def _sha256(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for t in tensors:
        digest.update(f"{t.dtype} {tuple(t.shape)};".encode())
        digest.update(t.detach().cpu().contiguous().numpy().data.cast("B"))
    return digest.hexdigest()
