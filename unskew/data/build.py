"""Makes a data set from a table: checks, a test part, class numbers, tensors."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unskew.data import checks
from unskew.data.columns import Array
from unskew.data.dataset import Dataset
from unskew.data.inputs import Column, Inputs, standardised, tokens, vocabulary
from unskew.data.patients import part_of, set_aside
from unskew.data.preprocess import ColumnSums, Preprocess, RawRows, lacking
from unskew.data.rows import ByteImages, Items, Rows, are_items, arrays_of, blocks, extremes, joined, unpacked
from unskew.data.table import TEST, TRAIN, DataTable, label_name, names_of_numbers, names_to, numbered
from unskew.errors import ConfigError, DataError, warn
from unskew.keys import Key
from unskew.tasks.targets import IGNORED, TOKENS, LabelType, mislabelled
from unskew.tree import Tree
from unskew.words import some

TEST_FRACTION = 0.2
"""Share of each client's rows, or of each class, that becomes the global test part where the data have none."""

BYTES_FROM = 256 << 20
"""Bytes that images of your own would take as floats, from which on they stay bytes; below it, floats are faster."""


def dataset(table: DataTable, *, fraction: float = TEST_FRACTION) -> Dataset:
    """The data set of a table; without test rows `fraction` of the rows is set aside.

    Where patients are known, shares are of each client's patients, and no patient is in both parts.

    Raises:
        ConfigError: If rules do not fit the columns.
        DataError: If a check refuses the table (`unskew.data.checks.REFUSALS`), or no rows are left for testing.
    """
    checks.refuse(table)
    y, names, label_type = labels_of(table)
    sha256 = _sha256(table)
    drawn = table.part is None
    table = with_test_part(table, y, fraction)
    train, test = table.train, table.test
    if not len(train) or not len(test):
        raise DataError(f"{table.name} holds no {'test' if len(train) else 'training'} examples, at least 1 is needed")
    theirs = table.own_test or table.unseen
    rows = np.concatenate([train, test]) if theirs else train
    x, x_test, inputs, raw = _inputs(table, theirs)
    notes = checks.warned(table) if table.own and not table.testing else ()
    owners, patients, kind = table.owners, table.people, table.kind
    when = None if table.when is None else np.unique(table.when, return_inverse=True)[1]
    later = table.clients if table.unseen else ()

    def of(values: Array | None, chosen: Array = rows) -> Tensor | None:
        return None if values is None else torch.from_numpy(np.ascontiguousarray(values[chosen], np.int64))

    outputs = outputs_of(table, y, names)
    by_number = (kind.classes or kind.tokens) and all(name == str(i) for i, name in enumerate(outputs))
    data = Dataset(
        name=table.name,
        x_train=x,
        y_train=torch.from_numpy(y[rows]),
        x_test=x_test,
        y_test=torch.from_numpy(y[test]),
        classes=outputs if kind.classes else kind.groups,
        domains=of(table.domains),
        domain_names=table.domain_names,
        sha256=sha256,
        owners=of(owners),
        client_names=table.clients,
        inputs=inputs.read_as(table.way),
        never_train=tuple(later[i] for i in np.unique(owners[test]).tolist()) if later and owners is not None else (),
        own_test=torch.arange(len(rows)) >= len(train) if table.own_test and not table.unseen else None,
        targets=kind,
        outputs=outputs,
        groups=None if kind.classes else torch.from_numpy(kind.counted(y[rows])),
        raw=raw,
        notes=notes,
        ordered=kind.classes and bool(table.declared or table.order),
        patients=of(patients),
        test_patients=of(patients, test),
        label_type=label_type or ("integer" if by_number else "text"),
        rows=of(table.numbers),
        when=of(when),
    )
    if not (table.testing and drawn):
        return data
    # All are for testing; the training part holds clients' own test examples already.
    whole = (
        (x, data.y_train) if data.own_test is not None else (joined(x, x_test), torch.cat([data.y_train, data.y_test]))
    )
    return replace(data, x_test=whole[0], y_test=whole[1])


def beside(table: DataTable, known: Dataset) -> tuple[Rows, Tensor | None]:
    """Further rows for the network of a data set, and their targets (None without).

    Raises:
        DataError: If the inputs do not fit, or a label is not one of the data set's.
    """
    x, names = table.inputs, None if table.inputs is None else table.inputs.dtype.names
    inputs = known.inputs.prepare(table.columns if x is None else {n: x[n] for n in names} if names else x)
    if not table.y.size:
        return inputs, None
    if known.targets.classes and (odd := {*map(label_name, table.y.reshape(-1).tolist())} - {*known.outputs}):
        raise DataError(
            f"{table.name}: {some(sorted(odd))} is no class of {known.name}, which has {some(known.outputs)}"
        )
    y, *_ = labels_of(replace(table, kind=known.targets, classes=None, declared=known.outputs, alone=True))
    return inputs, torch.from_numpy(y)


# ---------------------------------------------------------------- labels
def labels_of(table: DataTable) -> tuple[Array, tuple[str, ...] | None, LabelType | None]:
    """Targets for training, names of their classes, and the type of the labels.

    Classes are numbered as declared, in the order of an ordered category, or else alphabetically.  Whole numbers that
    are not names are class numbers already.
    """
    if not table.kind.classes:
        one_each = 1 < len(table.target) == len(table.kind.outputs(len(table.target)))
        names = table.declared or table.classes or (table.target if one_each else None)
        return table.kind.read(f"{table.name}: y", table.y), names, None
    y = table.y.reshape(len(table))
    labels, names = y.tolist(), table.declared or table.classes
    occur = set(map(label_name, labels))
    order = tuple(name for name in map(label_name, table.order) if name in occur)
    kind: LabelType = "boolean" if all(isinstance(label, bool) for label in labels) else "text"
    if not any(isinstance(label, str | bool) for label in labels):
        y, names, kind = y.astype(np.int64), table.classes or names, "integer"
        named = bool(names) and table.classes is None and not mislabelled(names or (), kind)
        if not named and (names or not (order or names_of_numbers(np.unique(y), table.of_table, table.alone))):
            return y, names, None  # numbers of classes
    codes, names = numbered(labels, names or order)
    return codes, names, None if mislabelled(names, kind) else kind


def outputs_of(table: DataTable, y: Array, named: Sequence[str] | None) -> tuple[str, ...]:
    """Names of what the network's outputs stand for: classes, labels, tokens, or the one number."""
    kind = table.kind
    if not (kind.classes or kind.tokens):
        outputs = kind.outputs(1 if y.ndim == 1 else y.shape[1])
        if named is not None and len(named) != len(outputs):
            raise DataError(f"{table.name}: {len(named)} names for {len(outputs)} {kind.what}; give one for each")
        return outputs if named is None else tuple(named)
    tokens = y.reshape(len(y), -1).max(1)
    for _, x in arrays_of(table.inputs) if kind is TOKENS and table.inputs is not None else ():
        tokens = np.maximum(tokens, x.max(1)) if x.dtype.kind in "iu" and x.ndim == 2 else tokens
    outputs = tuple(named) if named is not None else names_to(int(tokens.max()), len(y), f"{table.name}: y")
    if kind.tokens:
        lowest = np.where(y == IGNORED, 0, y).reshape(len(y), -1).min(1)
        if len(bad := np.flatnonzero((lowest < 0) | (tokens >= len(outputs)))):
            raise DataError(f"{table.name}: {table.place(int(bad[0]))} has a token beyond {len(outputs) - 1}")
    return outputs


# ---------------------------------------------------------------- a test part
def with_test_part(table: DataTable, y: Array, fraction: float) -> DataTable:
    """The table with a share of each client's rows, or patients, and of each class or group, set aside for testing.

    A table with test rows is returned as it is.  `y` are the stored targets.

    Raises:
        DataError: If the share is out of range.
    """
    if table.part is not None:
        return table
    share = fraction if table.share is None else table.share
    if not 0 < share < 1:
        raise DataError(f"the data have no test part and test_fraction is {share:g}; give test=(x, y)")
    labels = y if table.kind.classes else table.kind.counted(y)
    patients = table.people
    if patients is None and table.owners is None:
        aside = _of_each(labels, share, table.key)
    else:
        aside = set_aside(np.arange(len(y)) if patients is None else patients, table.owners, labels, share, table.key)
    apart = table.apart or table.rules is not None or table.share is not None
    owners = table.owners if apart or table.owners is None else np.where(aside, -1, table.owners)
    return replace(table, part=np.where(aside, TEST, TRAIN).astype(np.int8), owners=owners)


def _of_each(labels: npt.NDArray[np.int64], fraction: float, key: Key) -> npt.NDArray[np.bool_]:
    """True for round(fraction * n), half up, of the n examples of each label, of which at least 1 is kept."""
    rng = key.numpy()
    aside = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        aside[members[: part_of(len(members), fraction)]] = True
    return aside


# ---------------------------------------------------------------- what a client tells before training
def sums(table: DataTable) -> dict[str, ColumnSums]:
    """Sums of training rows that a client sends to agree on numbers of columns; {} if none are missing.

    Raises:
        ConfigError: If a column has texts, and no words are declared.
        DataError: If a check refuses the table, or a sum is of one value, which it would disclose.
    """
    checks.refuse(table)
    rules, rows = table.rules or Preprocess(), with_test_part(table, labels_of(table)[0], TEST_FRACTION)
    rows, by_name, few, lacks_any = rows.take(rows.train), dict[str, ColumnSums](), list[str](), False
    for name, values in rows.columns.items():
        own = ColumnSums.of(values, table.rule(name).kind == "category")
        lacks = lacking(rules, name, own.words is not None)
        lacks_any = lacks_any or bool(lacks)
        if "words" in lacks and table.of_texts(name):
            raise ConfigError(f"column {name!r} holds texts: declare their words, task.preprocess.columns.{name}.words")
        if not lacks & {"mean", "sd"}:
            own = ColumnSums(0, 0.0, 0.0, own.gaps and "gaps" in lacks, own.words if "words" in lacks else None)
        if own.n == 1 or (lacks and len(rows) == 1):
            raise DataError(f"column {name!r} has one value, and its mean is that value: leave it out")
        times = Counter(value for value in values.tolist() if value is not None) if own.words else {}
        few += [name] * (0 < own.n < checks.FEW_ROWS)
        few += [f"{str(word)!r} ({name})" for word, n in times.items() if n < checks.FEW_ROWS]
        by_name[name] = own
    if few:
        warn(
            f"fewer than {checks.FEW_ROWS} training rows have a value or a word in {some(few)}: sums of so few tell "
            "much about each, and words are sent as they are"
        )
    return by_name if lacks_any else {}


# ---------------------------------------------------------------- inputs
_Tensors = tuple[Rows, Rows, Inputs]


def _inputs(table: DataTable, theirs: bool) -> tuple[*_Tensors, RawRows | None]:
    """Inputs of both parts as tensors, and how they came about; with `theirs` test rows follow training rows, too."""
    train, test, x = table.train, table.test, table.inputs
    if x is None:
        return _prepared(table, np.concatenate([train, test]) if theirs else train)
    if table.rules is not None:
        raise ConfigError(f"preprocess is for columns of a table, and {table.name} holds none; leave it out")
    x_train, x_test, inputs = _read(table, x)
    return joined(x_train, x_test) if theirs else x_train, x_test, inputs, None


def _read(table: DataTable, x: Array) -> _Tensors:
    """Both parts of inputs as tensors, and the way to them; each of several parts is read as if it were alone.

    Large images of a user's own stay bytes.  They are standardised by the table's constants, by default by those of the
    training part.
    """
    if names := x.dtype.names:
        parts = {name: _read(table, x[name]) for name in names}
        one, other = (Tree(unpacked({name: of[i] for name, of in parts.items()})) for i in (0, 1))
        return one, other, Inputs("tree", parts=tuple((name, of[2]) for name, of in parts.items()))
    alone = x is table.inputs  # a part of several is as it is given
    if alone or x.dtype == np.uint8:
        x = _shaped(x)
    elif x.dtype.kind in "iub":
        x = x.astype(np.int64)
    whole = replace(table, inputs=x)  # of which views are taken where rows follow one another
    train, test = (np.asarray(whole.take(rows).inputs) for rows in (table.train, table.test))
    are_bytes = x.dtype == np.uint8 and (x.ndim == 3 or x.shape[3:] in ((1,), (3,)))
    if table.constants is not None and not (are_bytes and len(table.constants) == np.prod(x.shape[3:])):
        raise ConfigError(f"mean and std need a number for each channel of images of bytes, got {x.dtype} {x.shape}")
    if are_items(x):
        items = Items(train)
        return items, Items(test), _as_read(items.first, Inputs())
    if x.dtype.kind == "O":
        ids = vocabulary(train.tolist())
        return tokens(train.tolist(), ids), tokens(test.tolist(), ids), Inputs("texts", vocabulary=tuple(ids))
    if are_bytes:
        return _of_bytes(table, train, test)
    *sides, last = x.shape[1:] or (0,)
    if x.dtype.kind == "f":
        if alone and len(sides) > 1 and last < min(sides) and (last <= 4 or len(set(sides)) == 1):
            raise DataError(f"{table.name}: {x.shape} seems to have channels last; give np.moveaxis(x, -1, 1)")
        with np.errstate(over="ignore"):  # float64 beyond float32 becomes inf, which checks have refused
            train, test = np.ascontiguousarray(train, np.float32), np.ascontiguousarray(test, np.float32)
    elif x.dtype != np.int64 or (alone and x.ndim > 2):
        got = f"{x.dtype} of shape {x.shape} from {x.min()} to {x.max()}"
        raise DataError(f"{table.name}: inputs are images 0..255, (N, H, W) or (N, H, W, 3), floats or ids, got {got}")
    x_train = torch.from_numpy(train)
    return x_train, torch.from_numpy(test), _as_read(x_train, Inputs())


def _of_bytes(table: DataTable, train: Array, test: Array) -> _Tensors:
    train, test = (x[..., None] if x.ndim == 3 else x for x in (train, test))
    moments = table.constants or [_moments(train[..., c]) for c in range(train.shape[3])]
    tables = np.stack([standardised(mean, std) for mean, std in moments])
    kept = table.own and tables.itemsize * (train.size + test.size) >= BYTES_FROM
    means, deviations = (tuple(m[i] for m in moments) for i in (0, 1))
    inputs = Inputs("images", means, deviations, largest=float(train.max()))  # scikit-learn's digits end at 16
    # PyTorch takes no array that runs backwards or is read-only; others are not copied.
    bytes_ = [np.require(x, np.uint8, ["C", "W"]) for x in (train, test)]
    one, other = (ByteImages(torch.from_numpy(of), torch.from_numpy(tables)) for of in bytes_)
    return one if kept else one[:], other if kept else other[:], _as_read(one, inputs)


def _as_read(x: Any, inputs: Inputs) -> Inputs:
    """The way from raw inputs, with what is known once there are examples."""
    if isinstance(x, Tree):
        fields = x.parts if isinstance(x.parts, dict) else {str(i): part for i, part in enumerate(x.parts)}
        return Inputs("tree", parts=tuple((name, _as_read(part, inputs)) for name, part in fields.items()))
    inputs = replace(inputs, shape=tuple(x.shape[1:]))
    if inputs.kind == "images":
        return inputs
    largest = max(map(abs, extremes(x))) if inputs.are_images else None
    return replace(inputs, dtype=str(x.dtype).removeprefix("torch."), largest=largest)


def _prepared(table: DataTable, rows: Array) -> tuple[*_Tensors, RawRows | None]:
    """A table's columns, as they are or by its rules; `rows` are those of the data set's training part."""
    both = np.concatenate([rows, table.test])
    columns = {name: values[both] for name, values in table.columns.items()}
    owners = np.zeros(len(both), np.int64) if table.owners is None else np.maximum(table.owners[both], 0)
    raw = RawRows(table.rules or Preprocess(), columns, owners, table.clients or ("all",), len(rows))
    if table.rules is None:
        inputs = Inputs("table", columns=tuple(map(Column, columns)))
        return *raw.tensors(inputs), inputs, None
    inputs = raw.inputs(np.arange(len(table.train)), np.empty(0, np.int64))
    if inputs.clients and not table.own_test:
        which = next(column.name for column in inputs.columns if column.by_client)
        raise ConfigError(f"column {which!r} is scaled by each client, and test rows name none; name theirs, or agree")
    return *raw.tensors(inputs), inputs, raw


def _shaped(x: Array) -> Array:
    """Inputs in the one shape of their kind; what is of no kind stays as it is.

    Images of whole numbers are uint8, channels last or absent; images of floats are (N, C, H, W); whole numbers of one
    or two dimensions are int64.  A dimension of 1 or 3 is that of the channels.
    """
    channels_first = x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[3] not in (1, 3)
    channels_last = x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3)
    if x.dtype.kind == "f":
        return x[:, None] if x.ndim == 3 else np.moveaxis(x, 3, 1) if channels_last else x
    if x.dtype.kind not in "iub":
        return x
    if x.ndim < 3:
        return np.ascontiguousarray(x, np.int64)
    if x.ndim in (3, 4) and x.dtype != np.uint8 and x.size and x.min() >= 0 and x.max() <= 255:
        x = x.astype(np.uint8)
    return np.moveaxis(x, 1, 3) if channels_first else x


def _moments(channel: npt.NDArray[np.uint8]) -> tuple[float, float]:
    """Mean and standard deviation of a channel's values, in units of 255."""
    counts = np.zeros(256, np.int64)
    for rows in blocks(channel):  # bincount widens to int64
        counts += np.bincount(channel[rows].reshape(-1), minlength=256)
    level = np.arange(256) / 255
    mean = np.average(level, weights=counts)
    # One level only: its deviation is rounding, which must not be blown up to a signal.
    if np.count_nonzero(counts) == 1:
        return float(mean), 0.0
    return float(mean), float(np.sqrt(np.average((level - mean) ** 2, weights=counts)))


def _sha256(table: DataTable) -> str:
    """Hash of what the rows hold and of their roles, before anything is drawn or scaled."""
    digest = hashlib.sha256()
    x = table.inputs
    held = {} if x is None else {"inputs": np.arange(len(x))} if are_items(x) else dict(arrays_of(x, "inputs"))
    roles: Mapping[str, Array | None] = {
        **held,
        **{f"column {name}": values for name, values in table.columns.items()},
        "y": table.y,
        "client": table.owners,
        "patient": table.people,
        "domain": table.domains,
        "part": table.part,
    }
    for role, values in roles.items():
        if values is None:
            continue
        digest.update(f"{role} {values.dtype.kind} {values.shape};".encode("utf-8", "surrogatepass"))
        for rows in blocks(values):
            part = np.ascontiguousarray(values[rows]).reshape(-1)
            words = "\0".join("" if v is None else str(v) for v in part) if part.dtype.kind in "OU" else None
            digest.update(part.view(np.uint8).data if words is None else words.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
