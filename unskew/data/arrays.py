"""Arrays in the plain layout (`unskew.data.sources`) become a `Dataset`: checked, divided, scaled.

What is refused is named by its row in the arrays as they were given, before a test part is set aside.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unskew.data.dataset import Dataset, check_plausible, check_range, checked
from unskew.data.images import NUMBERS, ByteImages, as_tensor
from unskew.data.inputs import (
    ROWS,
    Column,
    Inputs,
    RawTable,
    check_values,
    numbers_as_words,
    prepared,
    raw_table,
    standardised,
)
from unskew.data.latest import Cut, Latest, cut, moments
from unskew.data.lengths import check_words
from unskew.data.patients import PatientIds, check_together, coded, part_of, set_aside
from unskew.data.preprocess import ColumnRule, Preprocess, RawRows, check_gaps, fit
from unskew.data.text import tokens, vocabulary
from unskew.errors import ConfigError, DataError, did_you_mean
from unskew.keys import Key
from unskew.tasks.targets import CLASS, LabelType, Targets
from unskew.words import composed

TEST_FRACTION = 0.2
"""Share of each class that becomes the global test part where the source has none."""

LAYOUT = (
    "x_train", "y_train", "x_test", "y_test", "domain_train", "domain_test", "client_train", "client_test",
    "patient_train", "patient_test",
)  # fmt: skip
NAMES = ("classes", "domains", "clients", "features")


BYTES_FROM = 256 << 20
"""Bytes that images of your own would take as floats, from which on they stay bytes; below it, floats are faster."""

MANY = 100
"""Largest label up to which all integers below are classes, so that a client that lacks some agrees with the others."""

Array = npt.NDArray[Any]
Arrays = dict[str, Array]


def from_arrays(
    name: str,
    arrays: Arrays,
    test_key: Key,
    classes: tuple[str, ...] | None = None,
    test_fraction: float | None = None,
    own: bool = False,
    *,
    own_test: bool = False,
    rules: Preprocess | None = None,
    tables: Mapping[str, RawTable] | None = None,
    inputs: Inputs | None = None,
    targets: Targets = CLASS,
    newcomers: bool = False,
    files: Mapping[str, Sequence[str]] | None = None,
    constants: Sequence[tuple[float, float]] | None = None,
    label_type: LabelType | None = None,
    rows: Mapping[str, Array] | None = None,
    when: Mapping[str, Array] | None = None,
    one_client: bool = False,
    patient_ids: PatientIds | None = "network",
) -> Dataset:
    """The data set that arrays in the plain layout hold.

    Where `client_test` says whose the test rows are, they are also their clients' own test rows.  Where `patient_train`
    says who is in each row, nobody is in training and in testing.

    Args:
        name: Short name, for tables and manifests.
        arrays: By the keys of `LAYOUT` and `NAMES`.
        test_key: Draws the test part, where the arrays have none.
        classes: Names, where the arrays have none.
        test_fraction: Share that becomes the test part, where the arrays have none; a fifth by default.
        own: Keep large images as bytes.
        own_test: Rows that are set aside of each client are its own test rows, too.
        rules: Preprocessing of the columns of a table.
        tables: The columns themselves by part, train and test, where `x_train` and `x_test` hold the rows' numbers.
        inputs: The way from raw inputs, if the caller knows it.
        targets: The form of y_train and y_test.
        newcomers: Clients of test rows are others than those of training rows, and come after training: all their rows
            are theirs to divide.
        files: Where each row comes from, by part, train and test; for sentences.
        constants: Mean and deviation of each channel by which byte images, in [0, 1], are standardised; by default
            those of the training images.
        label_type: The type that labels had before they became words; by default that of the arrays' labels.
        rows: The row of each example in the data as they were given, by part; by default as they stand in the arrays.
        when: The place in time of each example, by part, which then has both parts; None where it is not known.
        one_client: The data are those of one client of several, which may lack a class.
        patient_ids: Whose the patients' numbers are; None to ask.

    Raises:
        ConfigError: If there are rules and the examples are no table, or as in `unskew.data.preprocess.fit`.
        DataError: If shapes, types or lengths do not fit, a value is NaN or infinite, a label is out of range, a
            patient is in training and in testing, or at two clients where it was not said whose numbers they are.
    """
    content = content_of(name, arrays, targets)
    content |= _told_apart(content, patient_ids)
    for key, what in (("domain_train", "domains"), ("client_train", "clients")):
        if key in content and names_of(name, what, arrays) is None:
            check_plausible(name, **{key: content[key]})  # here, where rows are still those of the source
    texts = _texts_among(name, content)
    sha256 = _sha256({**content, **texts} if tables is None else {**content, **_hashable(tables)})
    content |= {f"file_{part}": np.array(paths, object) for part, paths in (files or {}).items()}
    lengths = {part: len(content[f"y_{part}"]) for part in ("train", "test") if f"y_{part}" in content}
    content |= {f"row_{part}": np.arange(n) if rows is None else rows[part] for part, n in lengths.items()}
    time = None if when is None else when["train"]
    names = names_of(name, "classes", arrays) or classes
    if targets.classes:
        named = names is not None
        if label_type is None and content["y_train"].dtype.kind == "U":
            label_type = "text"
        content, names = _numbered(name, content, names)
        if label_type is None and not named and names is not None:
            label_type = "integer"
    if rules is not None and tables is None:
        content, tables = _as_tables(name, content, names_of(name, "features", arrays))
        for table in tables.values():
            check_gaps(rules, table)
    _check_rows(name, content, names, targets)
    client_names = names_of(name, "clients", arrays)
    fraction = TEST_FRACTION if test_fraction is None else test_fraction
    content = with_test_part(name, content, test_key, fraction, own_test, targets)
    if not newcomers:
        _check_test_clients(name, content, client_names)
    raw = None
    if tables is not None:
        raw = _raw_rows(rules or Preprocess("none"), content, tables, client_names)
        content, inputs = _preprocessed(raw, content)
    if texts:
        content, inputs = _read_texts(content)
    tensors = inputs_of(name, content["x_train"], content["x_test"], BYTES_FROM if own else None, constants)
    features = names_of(name, "features", arrays)
    if inputs is None and features is not None and tensors[0].dim() == 2:
        inputs = Inputs("table", columns=tuple(Column(feature) for feature in features))
    x, y, row = tensors[0], content["y_train"], content["row_train"]
    domain, client, theirs, patients, tested = (
        content.get(key) for key in ("domain_train", "client_train", "client_test", "patient_train", "patient_test")
    )
    if client is not None and theirs is not None:  # their rows come after all others
        if domain is not None:
            domain = np.concatenate([domain, _domains_of_test(name, content)])
        x, y, client = _joined(x, tensors[1]), np.concatenate([y, content["y_test"]]), np.concatenate([client, theirs])
        row = np.concatenate([row, content["row_test"]])
        time = None if when is None else np.concatenate([when["train"], when["test"]])
        patients = None if patients is None or tested is None else np.concatenate([patients, tested])
    later = np.unique(theirs) if newcomers and theirs is not None and client_names is not None else ()
    return checked(
        name,
        x,
        torch.from_numpy(y),
        tensors[1],
        torch.from_numpy(content["y_test"]),
        classes=names,
        domains=None if domain is None else torch.from_numpy(domain),
        domain_names=names_of(name, "domains", arrays),
        sha256=sha256,
        levels=tensors[2],
        inputs=inputs or tensors[3],
        owners=None if client is None else torch.from_numpy(client),
        client_names=client_names,
        own_test=None if theirs is None or newcomers else torch.arange(len(y)) >= len(content["y_train"]),
        never_train=tuple(client_names[i] for i in later) if client_names is not None else (),
        targets=targets,
        raw=raw if raw is None or theirs is None else _with_test_rows(raw),
        patients=None if patients is None else torch.from_numpy(patients),
        test_patients=None if tested is None else torch.from_numpy(tested),
        label_type=label_type,
        rows=torch.from_numpy(row),
        when=None if time is None else torch.from_numpy(time),
    )


def _told_apart(content: Arrays, ids: PatientIds | None) -> Arrays:
    """The codes of patients, where their numbers are not the network's."""
    parts = [part for part in ("train", "test") if f"patient_{part}" in content and ids != "network"]
    if not parts or "client_train" not in content:
        return {}

    def words(key: str) -> list[str] | None:
        return list(map(str, content[key].tolist())) if key in content else None

    codes = coded(*((words(f"patient_{part}") or [], words(f"client_{part}")) for part in parts), ids=ids)
    return {} if ids is None else {f"patient_{part}": of for part, of in zip(parts, codes, strict=True)}


def cut_in_time(name: str, arrays: Arrays, rule: Latest, times: Any) -> tuple[Arrays, Cut]:
    """The arrays of a training part, the latest of each client as the test part.

    Args:
        name: As for `from_arrays`.
        arrays: In the plain layout.
        rule: What is late.
        times: When each example was, (N,).

    Raises:
        DataError: If there is a test part, an array has another length, or as in `unskew.data.latest.cut`.
    """
    if "x_test" in arrays:
        raise DataError(f"{name} has a test part of its own, x_test, so none is cut off by time; leave test out")
    of = {key: array for key, array in arrays.items() if key.endswith("_train")}
    n = len(np.atleast_1d(of["y_train"]))
    for key, array in {**of, rule.column or "latest": np.asarray(times)}.items():
        if array.shape[:1] != (n,):
            raise DataError(f"{name}: {key} has {len(array) if array.ndim else 0} entries for {n} examples")
    clients, names = of.get("client_train"), names_of(name, "clients", arrays) or ()
    whose = None if clients is None else [names[i] if 0 <= i < len(names) else str(i) for i in clients.tolist()]
    parts = cut(rule, moments(times, rule.column or "latest"), TEST_FRACTION, whose, of.get("patient_train"))
    if parts.refusal:
        raise DataError(parts.refusal)
    late = {f"{key.removesuffix('_train')}_test": array[parts.test] for key, array in of.items()}
    return {**arrays, **{key: array[parts.train] for key, array in of.items()}, **late}, parts


def _texts_among(name: str, content: Arrays) -> Arrays:
    """A short name of each text, for the parts whose inputs are texts, which are objects; both parts are, or none.

    Raises:
        DataError: If one part alone has texts.
    """
    of = {key: content[key] for key in ("x_train", "x_test") if key in content}
    texts = {key: x for key, x in of.items() if x.dtype.kind == "O"}
    if 0 < len(texts) < len(of):
        raise DataError(f"{name}: {next(iter(texts))} holds texts and the other part does not; give texts for both")
    return {
        key: np.array([hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() for text in x], object)
        for key, x in texts.items()
    }


def _read_texts(content: Arrays) -> tuple[Arrays, Inputs]:
    """The content with token ids for texts, and how they came about."""
    texts = {key: content[key].tolist() for key in ("x_train", "x_test")}
    ids = vocabulary(texts["x_train"])
    read = {key: tokens(of, ids).numpy() for key, of in texts.items()}
    return {**content, **read}, Inputs("texts", vocabulary=tuple(ids))


def _domains_of_test(name: str, content: Arrays) -> Array:
    """The domain of each test row: as given, or that of its client."""
    if "domain_test" in content:
        return content["domain_test"]
    domain_of = dict(zip(content["client_train"].tolist(), content["domain_train"].tolist(), strict=True))
    if [domain_of[client] for client in content["client_train"].tolist()] != content["domain_train"].tolist():
        raise DataError(f"{name}: a client's rows lie in several domains, so domain_test must say those of test rows")
    return np.array([domain_of[client] for client in content["client_test"].tolist()], np.int64)


def all_for_testing(data: Dataset) -> Dataset:
    """The data set with all its examples as the test part; those it had for training still give its constants."""
    if data.own_test is not None:  # the training part holds clients' own test examples already
        return replace(data, x_test=data.x_train, y_test=data.y_train)
    return replace(data, x_test=_joined(data.x_train, data.x_test), y_test=torch.cat([data.y_train, data.y_test]))


def _joined(x: Tensor | ByteImages, test: Tensor | ByteImages) -> Tensor | ByteImages:
    if isinstance(x, ByteImages) and isinstance(test, ByteImages):
        return ByteImages(torch.cat([x.levels, test.levels]), x.table)
    return torch.cat([as_tensor(x), as_tensor(test)])


def _check_test_clients(name: str, content: Arrays, names: tuple[str, ...] | None) -> None:
    """Refuse clients with test rows only."""
    if "client_test" not in content:
        return
    if "client_train" not in content:
        raise DataError(f"{name}: client_test is given, and client_train is missing; give both")
    strangers = np.setdiff1d(content["client_test"], content["client_train"])
    if len(strangers):
        who = names[strangers[0]] if names is not None and strangers[0] < len(names) else strangers[0]
        nearest = (
            "" if names is None else did_you_mean(str(who), [names[i] for i in np.unique(content["client_train"])])
        )
        raise DataError(
            f"{name}: client {who} has test rows and none to train on{nearest}; give it some, or leave it out"
            + (f" ({len(strangers)} such clients in all)" if len(strangers) > 1 else "")
        )


def _as_tables(name: str, content: Arrays, features: tuple[str, ...] | None) -> tuple[Arrays, dict[str, RawTable]]:
    """The columns of rows of numbers, and the content with the rows' numbers in their place."""
    x = content["x_train"]
    if x.ndim != 2 or x.dtype.kind != "f":
        raise ConfigError(f"preprocess is for columns of a table, and {name} holds none; leave it out")
    names = features or tuple(f"x{i}" for i in range(x.shape[1]))
    if len(names) != x.shape[1]:
        raise DataError(f"{name}: features has {len(names)} names for {x.shape[1]} columns")
    parts = [part for part in ("train", "test") if f"x_{part}" in content]
    tables: dict[str, RawTable] = {part: raw_table(content[f"x_{part}"], names) for part in parts}
    return {**content, **{f"x_{part}": np.arange(len(content[f"x_{part}"])) for part in parts}}, tables


def _raw_rows(
    rules: Preprocess, content: Arrays, tables: Mapping[str, RawTable], clients: tuple[str, ...] | None
) -> RawRows:
    """The columns of the content, which holds the rows' numbers in them."""
    train = {column: values[content["x_train"]] for column, values in tables["train"].items()}
    source = tables.get("test", tables["train"])
    test = {column: source[column][content["x_test"]] for column in train}
    owners = content.get("client_train", np.zeros(len(content["x_train"]), np.int64))
    theirs = content.get("client_test", np.zeros(len(content["x_test"]), np.int64))
    names = clients or tuple(map(str, range(int(owners.max()) + 1)))
    return RawRows(rules, train, test, owners, theirs, names if "client_train" in content else ("all",))


def _with_test_rows(raw: RawRows) -> RawRows:
    """The columns with the test rows behind the training rows, too."""
    both = {column: np.concatenate([values, raw.test[column]]) for column, values in raw.train.items()}
    return replace(raw, train=both, owners=np.concatenate([raw.owners, raw.test_owners]))


def _preprocessed(raw: RawRows, content: Arrays) -> tuple[Arrays, Inputs]:
    """The content with the network's inputs in place of the rows' numbers, and how they came about."""
    for name, values in raw.train.items():
        rule = raw.rules.columns.get(name, ColumnRule())
        if values.dtype.kind != "O" or rule.kind is not None or rule.mean is not None:  # `fit` names what no mean fits
            continue
        if sentence := numbers_as_words(name, [v for v in [*values, *raw.test[name]] if v is not None]):
            raise DataError(sentence)
    inputs = fit(raw.rules, raw.train, raw.owners, raw.clients)
    if inputs.clients and "client_test" not in content:
        which = next(column.name for column in inputs.columns if column.by_client)
        raise ConfigError(
            f"preprocess scales or fills column {which!r} with each client's own numbers, and the test rows belong to "
            "no client; name the test rows' clients, or choose agreed numbers"
        )
    x, x_test = (
        prepared(inputs.columns, table, owners)
        for table, owners in ((raw.train, raw.owners), (raw.test, raw.test_owners))
    )
    return {**content, "x_train": x, "x_test": x_test}, inputs


def _hashable(tables: Mapping[str, RawTable]) -> Arrays:
    return {
        f"{part} {column}": values if values.dtype.kind == "f" else np.array([v or "" for v in values], object)
        for part, table in tables.items()
        for column, values in table.items()
    }


def content_of(name: str, arrays: Arrays, targets: Targets = CLASS) -> Arrays:
    """The examples among the arrays, labels as int64 or words, other targets as read; lengths fit together."""
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DataError(f"{name}: x_test and y_test must be there together or not at all")
    content: Arrays = {k: arrays[k] for k in LAYOUT if k in arrays}
    for key in LAYOUT:
        if key.startswith("x_") or key not in content:
            continue
        if key.startswith("y_") and not targets.classes:
            content[key] = targets.read(f"{name}: {key}", content[key])
        elif key.startswith("y_") and content[key].dtype.kind == "U" and content[key].ndim == 1:
            check_words(content[key], f"{name}: {key}")
        else:
            content[key] = _integers(name, key, content[key])
    for key, array in content.items():
        if array.size == 0:
            raise DataError(f"{name}: {key} is empty, shape {array.shape}")
    x, y = content["x_train"], content["y_train"]
    if x.ndim == 0 or len(x) != len(y):
        raise DataError(f"{name}: y_train has {len(y)} entries for {len(x) if x.ndim else 0} examples")
    for key in LAYOUT[4:]:
        rows = len(content.get("y_test" if key.endswith("test") else "y_train", ()))
        if key in content and len(content[key]) != rows:
            raise DataError(f"{name}: {key} has {len(content[key])} entries for {rows} examples")
    _check_patients(name, content)
    return content


def _check_patients(name: str, content: Arrays) -> None:
    """Refuse patients that are known of one part only, have no number, or are in both parts."""
    known = [key for key in ("patient_train", "patient_test") if key in content]
    if not known:
        return
    wanted = ("patient_train", "patient_test") if "x_test" in content else ("patient_train",)
    if lacking := [key for key in wanted if key not in content]:
        raise DataError(f"{name}: {known[0]} is given, and {lacking[0]} is missing; give both")
    for key in known:
        unknown = np.flatnonzero(content[key] < 0)
        if len(unknown):
            raise DataError(
                f"{name}: {key}[{unknown[0]}] is {content[key][unknown[0]]}, and patients are numbers from 0; say who "
                "it is, or leave the row out"
            )
    if "patient_test" in content:
        remedy = "put all rows of one into one part, or leave x_test out, and a part is drawn by patient"
        check_together(name, content["patient_train"], content["patient_test"], remedy)


def _numbered(name: str, content: Arrays, classes: tuple[str, ...] | None) -> tuple[Arrays, tuple[str, ...] | None]:
    """The content with labels 0, 1, ..., and the names of the classes, where labels say them.

    Words are numbered in alphabetical order, or as `classes` has them.  So are whole numbers of which fewer than half
    occur up to a largest beyond `MANY`: {1, 999} are two classes, not a thousand.
    """
    labels: Arrays = {key: content[key] for key in ("y_train", "y_test") if key in content}
    if len({y.dtype.kind == "U" for y in labels.values()}) > 1:
        raise DataError(f"{name}: y_train and y_test must both be words or both be integers")
    known = np.unique(np.concatenate(list(labels.values())))
    words = known.dtype.kind == "U"
    if words and any(composed(word) != word for word in known.tolist()):
        labels = {key: np.array(list(map(composed, y.tolist()))) for key, y in labels.items()}
        known = np.unique(np.concatenate(list(labels.values())))
    if not words and (classes is not None or known[0] < 0 or known[-1] < max(MANY, 2 * len(known))):
        return content, classes
    if words and classes is not None:
        classes = tuple(map(composed, classes))
        number = {word: i for i, word in enumerate(classes)}
        for key, y in labels.items():
            unknown = np.flatnonzero(~np.isin(y, classes))
            if len(unknown):
                i, word = int(unknown[0]), str(y[unknown[0]])
                raise DataError(
                    f"{name}: {key}[{i}] is {word!r}, none of the {len(classes)} classes{did_you_mean(word, classes)}"
                )
            labels[key] = np.array([number[str(word)] for word in y], np.int64)
        return {**content, **labels}, classes
    numbered: Arrays = {key: np.searchsorted(known, y).astype(np.int64) for key, y in labels.items()}
    return {**content, **numbered}, tuple(str(label) for label in known)


def _check_rows(name: str, content: Arrays, classes: tuple[str, ...] | None, targets: Targets) -> None:
    """Refuse values and labels by the rows of the arrays as they were given."""
    for part in ("train", "test"):
        if f"x_{part}" in content:
            x, y = content[f"x_{part}"], content[f"y_{part}"]
            if targets.classes and classes is not None:
                check_range(name, f"y_{part}", y, len(classes), "classes")
            elif targets.classes and len(bad := np.flatnonzero(y < 0)):
                known = len(np.unique(np.concatenate([of for key, of in content.items() if key.startswith("y_")])))
                raise DataError(
                    f"{name}: y_{part}[{bad[0]}] is {y[bad[0]]}, and classes are numbered from 0; number the {known} "
                    "that occur 0, 1, ..., give words as labels, or leave out rows whose label is not known"
                )
            if x.dtype.kind == "f" or x.ndim == 2:
                check_values(name, f"x_{part}", x)


def with_test_part(
    name: str,
    content: Arrays,
    test_key: Key,
    fraction: float = TEST_FRACTION,
    own_test: bool = False,
    targets: Targets = CLASS,
) -> Arrays:
    """The content with a test part, set aside of each client, and of its classes or groups, where there is none.

    With `own_test` the part of each client stays known as its own.  Where patients are known, it is a share of them.
    """
    if "x_test" in content:
        return content
    y = content["y_train"]
    labels = y if targets.classes else targets.counted(y)
    patients, holders = content.get("patient_train"), content.get("client_train")
    if patients is None and holders is None:
        aside = _of_each(labels, fraction, test_key)
    else:
        aside = set_aside(np.arange(len(y)) if patients is None else patients, holders, labels, fraction, test_key)
    train, test = np.flatnonzero(~aside), np.flatnonzero(aside)
    if len(test) == 0 and patients is not None:
        of_one = np.zeros(len(y), np.int64) if holders is None else holders
        most = max(len(np.unique(patients[of_one == one])) for one in np.unique(of_one))
        raise DataError(
            f"{name}: there are at most {most} patients{'' if holders is None else ' of one client'}, of whom a share "
            f"of {fraction:g} is nobody; say which rows are for testing"
        )
    if len(test) == 0:
        raise DataError(f"{name}: {len(y)} examples are too few to set a test part aside; give x_test and y_test")
    whose = {"client_test": holders[test]} if own_test and holders is not None else {}
    if patients is not None:
        whose["patient_test"] = patients[test]
    whose |= {f"{of}_test": content[f"{of}_train"][test] for of in ("file", "row") if f"{of}_train" in content}
    return {
        **{key: array[train] for key, array in content.items()},
        "x_test": content["x_train"][test],
        "y_test": y[test],
        **whose,
    }


def _integers(name: str, key: str, values: Array) -> npt.NDArray[np.int64]:
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise DataError(f"{name}: {key} must be integers of shape (N,), got {values.dtype} of shape {values.shape}")
    return np.ascontiguousarray(values, dtype=np.int64)


def names_of(name: str, key: str, arrays: Arrays) -> tuple[str, ...] | None:
    """The names under a key of `NAMES`; None where there are none.

    Raises:
        DataError: If they are no words.
    """
    if key not in arrays:
        return None
    values = arrays[key]
    if values.dtype.kind != "U" or values.ndim != 1 or len(values) == 0:
        raise DataError(f"{name}: {key} must be a list of names, got {values.dtype} of shape {values.shape}")
    check_words(values, f"{name}: {key}")
    return tuple(composed(str(v)) for v in values)


def _of_each(labels: npt.NDArray[np.int64], fraction: float, key: Key) -> npt.NDArray[np.bool_]:
    """True for round(fraction * n), half up, of the n examples of each label, of which at least 1 is kept."""
    rng = key.numpy()
    aside = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        aside[members[: part_of(len(members), fraction)]] = True
    return aside


def inputs_of(
    name: str,
    train: Array,
    test: Array,
    bytes_from: int | None = None,
    constants: Sequence[tuple[float, float]] | None = None,
) -> tuple[Tensor | ByteImages, Tensor | ByteImages, tuple[tuple[float, float], ...] | None, Inputs]:
    """Convert both parts of the inputs, and return what black and white became in each channel of byte images.

    Images that would take `bytes_from` bytes as floats stay bytes.  They are standardised by `constants`, the mean and
    deviation of each channel, by default those of the training part.
    """
    train, test = _shaped(train), _shaped(test)
    if constants is not None and not (train.ndim in (3, 4) and train.dtype.kind in "iu"):
        raise ConfigError(
            f"task.data_options: mean and std are for images of whole numbers 0..255, and {name} has {train.dtype} of "
            f"shape {train.shape}, which stay as they are; leave them out"
        )
    if train.dtype == test.dtype == np.int64 and max(train.ndim, test.ndim) < 3:
        return torch.from_numpy(train), torch.from_numpy(test), None, Inputs()
    *sides, last = train.shape[1:] or (0,)
    if train.dtype.kind == "f" and len(sides) > 1 and last < min(sides) and (last <= 4 or len(set(sides)) == 1):
        raise DataError(
            f"{name}: x_train of shape {train.shape} seems to have its channels last, and floats have them first, "
            "(N, C, H, W); give np.moveaxis(x, -1, 1)"
        )
    if train.dtype.kind == "f" and test.dtype.kind == "f":
        with np.errstate(over="ignore"):  # float64 beyond float32 becomes inf, which `checked` refuses by its index
            x, x_test = np.ascontiguousarray(train, np.float32), np.ascontiguousarray(test, np.float32)
        return torch.from_numpy(x), torch.from_numpy(x_test), None, Inputs()
    kinds = train.dtype.kind, test.dtype.kind
    if kinds.count("f") == 1 and set(kinds) <= set("fiu"):
        raise DataError(
            f"{name}: x_train and x_test must be of one kind, floats or whole numbers, on one scale, got {train.dtype} "
            f"and {test.dtype}; bring the one to the other"
        )
    for key, x in (("x_train", train), ("x_test", test)):
        if x.ndim in (3, 4) and x.dtype.kind in "iu" and not (x.min() >= 0 and x.max() <= 255):
            raise DataError(
                f"{name}: {key} must be images of whole numbers 0..255 or of floats, got {x.dtype} from {x.min()} to "
                f"{x.max()}; divide them by the largest value they can have, the same at all sites, which gives floats "
                "of 0 to 1, or bring them to bytes of 0 to 255"
            )
        if not is_images(x):
            raise DataError(
                f"{name}: {key} must be images of whole numbers 0..255, (N, H, W) or (N, H, W, 3), or floating (N, D), "
                f"(N, C, H, W) or (N, C, D, H, W), or token ids of int32 or int64 (N, L), got {x.dtype} of shape "
                f"{x.shape}{_remedy(x)}"
            )
    train, test = (x[..., None] if x.ndim == 3 else x for x in (train, test))
    if train.shape[1:] != test.shape[1:]:
        raise DataError(f"{name}: training images are {train.shape[1:]}, test images {test.shape[1:]} (H, W, C)")
    channels = range(train.shape[3])
    if constants is not None and len(constants) != len(channels):
        raise ConfigError(
            f"task.data_options: mean and std must have a number for each of {len(channels)} channels of {name}, got "
            f"{len(constants)}"
        )
    moments = constants or [_moments(train[..., c]) for c in channels]
    tables = np.stack([standardised(mean, std) for mean, std in moments])
    brightest = int(train.max())  # scikit-learn's digits end at 16
    levels = [(float(table[0]), float(table[brightest])) for table in tables]
    kept = bytes_from is not None and tables.itemsize * (train.size + test.size) >= bytes_from
    convert = _as_bytes if kept else _as_floats
    known = all(black < white for black, white in levels)  # a constant channel has lost its level
    means, deviations = (tuple(m[i] for m in moments) for i in (0, 1))
    inputs = Inputs("images", means, deviations, largest=float(brightest))
    return convert(train, tables), convert(test, tables), tuple(levels) if known else None, inputs


def _as_floats(images: Array, tables: npt.NDArray[np.float32]) -> Tensor:
    scaled = torch.empty(len(images), images.shape[3], *images.shape[1:3])
    for c, table in enumerate(tables):
        for start in range(0, len(images), ROWS):  # an index widens to int64: in slices it stays small
            scaled[start : start + ROWS, c] = torch.from_numpy(table[images[start : start + ROWS, ..., c]])
    return scaled


def _as_bytes(images: Array, tables: npt.NDArray[np.float32]) -> ByteImages:
    # PyTorch takes no array that runs backwards or is read-only; others are not copied.
    levels = np.require(images, np.uint8, ["C", "W"])
    return ByteImages(torch.from_numpy(levels), torch.from_numpy(tables))


def _shaped(x: Array) -> Array:
    """Inputs in the one shape of their kind; what is of no kind stays as it is.

    Images of whole numbers are uint8, channels last or absent; images of floats are (N, C, H, W); whole numbers in two
    dimensions are token ids, int64.  A dimension of 1 or 3 is that of the channels.
    """
    channels_first = x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[3] not in (1, 3)
    channels_last = x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3)
    if x.dtype.kind == "f":
        return x[:, None] if x.ndim == 3 else np.moveaxis(x, 3, 1) if channels_last else x
    if x.dtype.kind not in "iu":
        return x
    if x.ndim == 2 and x.dtype.itemsize >= 4:
        return np.ascontiguousarray(x, np.int64)
    if x.ndim in (3, 4) and x.dtype != np.uint8 and x.size and x.min() >= 0 and x.max() <= 255:
        x = x.astype(np.uint8)
    return np.moveaxis(x, 1, 3) if channels_first else x


def _remedy(x: Array) -> str:
    """Say what makes inputs of arrays that are nearly some; empty for others."""
    if x.dtype.kind == "b":
        return "; give x.astype('float32')"
    if x.dtype.kind in "iu" and x.ndim == 4 and 4 in (x.shape[1], x.shape[3]):
        if x.shape[3] == 4:  # floats of this shape would be taken for images with their channels first
            floats = "with the channels first, np.moveaxis(x, 3, 1).astype('float32')"
            return f"; drop the alpha channel, as x[..., :3], or give floats {floats}"
        return "; drop the alpha channel, as x[:, :3], or give floats"
    return "; give floats" if x.dtype.kind in "iu" and x.ndim > 3 else ""


def is_images(x: Array) -> bool:
    """True for uint8 images, (N, H, W) or with one or three channels last."""
    return x.dtype == np.uint8 and (x.ndim == 3 or (x.ndim == 4 and x.shape[3] in (1, 3)))


def _moments(channel: npt.NDArray[np.uint8]) -> tuple[float, float]:
    """Mean and standard deviation of a channel's values, in units of 255."""
    counts = np.zeros(256, np.int64)
    at_once = max(1, NUMBERS // channel[0].size)  # bincount widens to int64: in slices it stays small
    for start in range(0, len(channel), at_once):
        counts += np.bincount(channel[start : start + at_once].reshape(-1), minlength=256)
    level = np.arange(256) / 255
    mean = np.average(level, weights=counts)
    # One level only: its deviation is rounding, which must not be blown up to a signal.
    if np.count_nonzero(counts) == 1:
        return float(mean), 0.0
    return float(mean), float(np.sqrt(np.average((level - mean) ** 2, weights=counts)))


def _sha256(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for key in sorted(arrays):
        array = np.ascontiguousarray(arrays[key])
        words = array.dtype.kind == "O"
        dtype = np.dtype((np.str_, max(1, *map(len, array)))) if words else array.dtype
        digest.update(f"{key} {dtype.str} {array.shape};".encode())
        # Words in slices: as one array of text, all would be as wide as the longest.
        for start in range(0, len(array), ROWS) if words else (0,):
            part = array[start : start + ROWS].astype(dtype) if words else array
            digest.update(part.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
