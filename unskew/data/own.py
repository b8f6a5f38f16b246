"""The door: whatever a user has in Python becomes one table and its roles, and then a data set.

    (x, y)                      NumPy arrays, tensors or lists; x may be a list or column of texts, or a DataFrame
    (x, y, patients)            the same with who is in each example, in words or whole numbers
    a DataFrame                 of pandas, Polars, Arrow, ...; `target` and `client` name columns
    {client: one of these}      the clients' names are kept; frames have the same columns at all clients
    a torch Dataset             of (input, label) pairs, the same whenever they are read
    a Hugging Face dataset      or a DatasetDict with "train" and "test"; columns as of a DataFrame
    a `Dataset`                 what `unskew.load` returns, as it is

Images of whole numbers 0..255 are standardised per channel with constants of the training part, floats stay as they
are, whole numbers in two dimensions are token ids, labels may be words.  Columns of a table become floats and are not
scaled, unless a preprocessing (`unskew.data.preprocess`) says what becomes of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from unskew.data import build, hub
from unskew.data.build import TEST_FRACTION
from unskew.data.columns import (
    Array,
    Frame,
    cells,
    check_column,
    composed_names,
    frame_of,
    is_frame,
    no_value,
    order_of,
    truths,
    type_name,
)
from unskew.data.dataset import Dataset
from unskew.data.images import as_tensor
from unskew.data.latest import Latest, check_gap, cut, moments
from unskew.data.patients import PatientIds
from unskew.data.preprocess import Preprocess
from unskew.data.table import LEFT_OUT, TEST, TRAIN, UNKNOWN, DataTable, joined, name_of_client, numbered
from unskew.errors import ConfigError, DataError
from unskew.keys import drawn_since, global_states
from unskew.tasks.targets import CLASS, Targets
from unskew.words import composed, some

FORMS = (
    "(x, y) or (x, y, patients), a DataFrame, {client: one of these}, a torch Dataset, a Hugging Face dataset, what "
    "us.load returns, or a name"
)

AGAIN = 64  # items that are read twice of data that seem to draw nothing


@dataclass(frozen=True)
class Roles:
    """Columns of a table by what they are; all others are inputs.

    Attributes:
        target: Columns of the labels.
        client, patient: Columns of the clients and of the patients; None if there are none.
        aside: Columns that are nothing of these, and no inputs.
        inputs: The input columns, if another table has set them.
        known: It is known what is learned, so that there must be a target.
        raw: Columns are to be preprocessed, so that words are categories and no texts.
    """

    target: tuple[str, ...] = ()
    client: str | None = None
    patient: str | None = None
    aside: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    known: bool = True
    raw: bool = False


def dataset(
    data: object,
    *,
    test_fraction: float = TEST_FRACTION,
    classes: Sequence[str] | None = None,
    targets: Targets = CLASS,
    preprocess: Preprocess | None = None,
    one_client: bool = False,
    **roles: Any,
) -> Dataset:
    """The data set that `data` holds.

    Args:
        data: One of the forms above.
        test_fraction: Share that becomes the global test part if there is none: of each client's rows, or patients, if
            clients are known, else of each class.  The same rows in every call; no client trains on them.
        classes: Names of all classes, in order; by default those that occur, in alphabetical order or in that of an
            ordered category.  Where all are whole numbers, labels that are numbers go by their names, otherwise by
            their order.
        targets: The form of the labels; by default they are classes.
        preprocess: What becomes of a table's columns.  Clients' own test rows are then fixed, too.
        one_client: The data are those of one client of several, which may lack a class.
        roles: As of `table`.

    Raises:
        ConfigError: If the preprocessing does not fit the columns.
        DataError: If the form is unknown, a column is missing or not named, or as in `unskew.data.build.dataset`.
    """
    if isinstance(data, Dataset):
        if preprocess is not None or any(role is not None for role in roles.values()):
            raise DataError(
                f"{data.name} is a data set with its own labels and test part; leave test, target, client, patient and "
                "preprocess out"
            )
        if classes is not None and tuple(classes) != data.outputs:
            raise DataError(f"{data.name} is a data set with its own classes, {some(data.outputs)}; leave classes out")
        return data if classes is None else replace(data, ordered=True)
    rows = table(
        data,
        fraction=test_fraction,
        rules=preprocess,
        kind=targets,
        declared=None if classes is None else tuple(map(composed, classes)),
        alone=one_client,
        **roles,
    )
    return build.dataset(rows, fraction=test_fraction)


def table(
    data: object,
    *,
    target: str | Sequence[str] | None = None,
    client: str | None = None,
    patient: str | None = None,
    patient_ids: PatientIds | None = None,
    test: object = None,
    leave_out: Sequence[str] = (),
    name: str | None = None,
    fraction: float = TEST_FRACTION,
    rules: Preprocess | None = None,
    kind: Targets = CLASS,
    declared: tuple[str, ...] | None = None,
    alone: bool = False,
    inputs: Array | None = None,
) -> DataTable:
    """One table, with its roles, of any form of data.

    Args:
        data: One of the forms above, or a table.
        target: Column of the labels; tables need it.  Several columns where a target has several, as time and event.
        client: Column of the clients; without it a table names no clients.
        patient: Column of the patients, or whoever has several rows.
        patient_ids: Whose the patients' names are, the "network"'s, each one person, or each "site"'s own; asked for
            where a name occurs at several clients.
        test: The global test part, in any of the forms; where it names its clients, its rows are their own test rows,
            too.  Or the column of a table that says which rows are test rows (true and false, 1 and 0, or
            "test" and "train"), or the share of each client's rows, or that they are the latest.
        leave_out: Columns that are not used.
        name: Name of the data.
        fraction: Share of the latest rows, where `test` says neither a share nor a date.
        rules, kind, declared, alone: As of a `DataTable`.
        inputs: Inputs (N, ...) of the rows, of which columns only say more; by default the other columns.

    Raises:
        DataError: If the form is unknown, or a column is missing or named twice.
    """
    targets = composed_names(tuple(target) if isinstance(target, list | tuple) else (target,) if target else ())
    client, patient = composed_names((client, patient))
    rule = test if isinstance(test, Latest) else None
    column = composed(test) if isinstance(test, str) else rule.column if rule is not None else None
    aside = (*map(composed, leave_out), *([column] if column is not None else []))
    _check_roles(targets, client, patient, column)
    roles = Roles(targets, client, patient, aside, known=kind is not UNKNOWN, raw=rules is not None)
    rows = _read(data, roles) if inputs is None else _of_frame(frame_of(data), roles, "", inputs)
    if any(name not in rows.aside for name in roles.aside if name != column):
        raise _no_table(data)
    share = float(test) if isinstance(test, int | float) and not isinstance(test, bool) else None
    if share is not None and not 0 < share < 1:
        raise DataError(f"test, as a share of the rows, must be above 0 and below 1, got {share:g}")
    if rows.part is not None and test is not None:
        raise DataError("the data have a test part of their own; leave test out")
    rows = replace(
        rows, name=name or rows.name, rules=rules, kind=kind, declared=declared, alone=alone, share=share,
        target=targets, client=client, patient=patient, patient_ids=patient_ids or rows.patient_ids,
    )  # fmt: skip
    if rule is not None:
        return cut_in_time(rows, rule, _times(data, rows, rule), fraction)
    if column is not None:
        if column not in rows.aside:
            raise _no_table(data)
        is_test = truths(rows.aside[column].tolist(), column, rows.place)
        return replace(rows, part=np.where(is_test, TEST, TRAIN).astype(np.int8))
    if test is not None and share is None:
        roles = replace(roles, inputs=tuple(rows.columns))
        return tested(rows, _read(test, roles, optional=True))
    return columns_of_arrays(rows)


def tested(rows: DataTable, test: DataTable) -> DataTable:
    """The rows for training, and those for testing behind them; where these name no clients, they are nobody's own."""
    if rows.owners is None:
        test = replace(test, owners=None, clients=())
    both = joined([columns_of_arrays(rows), columns_of_arrays(replace(test, rules=rows.rules))])
    part = np.where(np.arange(len(both)) < len(rows), TRAIN, TEST).astype(np.int8)
    return replace(both, part=part, common_test=test.owners is None)


def columns_of_arrays(rows: DataTable, names: Sequence[str] | None = None) -> DataTable:
    """Rows of numbers as columns, where rules say what becomes of them, or they have names."""
    x = rows.inputs
    if x is None or x.ndim != 2 or x.dtype.kind != "f" or (rows.rules is None and names is None):
        return rows
    names = names or tuple(f"x{i}" for i in range(x.shape[1]))
    if len(names) != x.shape[1]:
        raise DataError(f"{rows.name}: features has {len(names)} names for {x.shape[1]} columns")
    return replace(rows, inputs=None, columns={name: x[:, i].astype(np.float64) for i, name in enumerate(names)})


def cut_in_time(rows: DataTable, rule: Latest, times: Any, fraction: float) -> DataTable:
    """The table with its latest rows for testing.

    Raises:
        DataError: If a row has no time, or as in `unskew.data.latest.cut`.
    """
    rows = columns_of_arrays(rows)
    if len(times) != len(rows):
        raise DataError(f"{rule.where} has {len(times)} times for {len(rows)} examples")
    check_gap(rule, rows.alone or rows.owners is not None)
    when = moments(times, rule.where, rows.place)
    whose = None if rows.owners is None else [rows.clients[i] if i >= 0 else "no client" for i in rows.owners]
    train, test, notes, refusal = cut(rule, when, fraction, whose, rows.people)
    part = np.where(test, TEST, np.where(train, TRAIN, LEFT_OUT)).astype(np.int8)
    refusals = (*rows.refusals, *filter(None, [refusal]))
    return replace(rows, part=part, when=when, notes=(*rows.notes, *notes), refusals=refusals)


def _times(data: object, rows: DataTable, rule: Latest) -> Any:
    """The time of each row: of a table's column, of an array beside (x, y), or of one for each client."""
    if rule.column is not None:
        if rule.column not in rows.aside:
            raise _no_table(data)
        return rows.aside[rule.column]
    if not isinstance(data, Mapping):
        return cells(rule.latest)
    given = rule.latest if isinstance(rule.latest, Mapping) else {}
    times = {name_of_client(name): cells(of) for name, of in given.items()}
    for name, n in zip(rows.clients, rows.count().tolist(), strict=True):
        if len(times.get(name, ())) != n:
            raise DataError(f"latest must have {n} times of client {name}, in a dict like data")
    if len({one.dtype.kind for one in times.values()}) > 1:
        raise DataError("latest holds dates of some clients and numbers of others; give all alike")
    return np.concatenate([times[name] for name in rows.clients])


def _check_roles(targets: Sequence[Any], client: Any, patient: Any, test: Any) -> None:
    """Refuse names of columns that are no words, and one column for two roles."""
    named: dict[str, str] = {}
    for role, name in (*(("target", one) for one in targets), ("client", client), ("patient", patient), ("test", test)):
        if name is not None and not isinstance(name, str):
            raise DataError(f"{role} must name a column by a word, got {name!r}")
        if name is not None and name in named:
            raise DataError(f"column {name!r} is named twice, as {named[name]} and as {role}; name every column once")
        if name is not None:
            named[name] = role


def _no_table(data: object) -> DataError:
    return DataError(
        f"target, client, patient and test name columns of a table, and {type_name(data)} has none; for clients give "
        "{client: (x, y)}, for patients (x, y, patients), for times test=us.Latest(times)"
    )


# ---------------------------------------------------------------- forms
def _read(data: Any, roles: Roles, optional: bool = False) -> DataTable:
    """The table that one of the forms holds; `optional` columns of clients and patients may be missing."""
    if isinstance(data, DataTable):
        return data
    hugging_face = hasattr(data, "column_names") and hasattr(data, "features")
    if hugging_face or is_frame(data):
        if optional:
            known = set(data.column_names if hugging_face else frame_of(data).columns)
            client, patient = (one if one in known else None for one in (roles.client, roles.patient))
            roles = replace(roles, client=client, patient=patient, aside=())
        return _of_hugging_face(data, roles) if hugging_face else _of_frame(frame_of(data), roles, "dataframe")
    if isinstance(data, Mapping):
        return _of_clients(data, roles, optional)
    if roles.target or roles.client or roles.patient:
        raise _no_table(data)
    if isinstance(data, Dataset):
        return DataTable(data.name, data.y_test.numpy(), as_tensor(data.x_test).numpy(), classes=data.classes)
    if isinstance(data, DataLoader | IterableDataset):
        raise DataError(
            f"{type_name(data)} has no fixed examples; give a data set with a length, such as the loader's .dataset"
        )
    if isinstance(data, TorchDataset):
        return _of_torch(data)
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        return _of_arrays(data, roles)
    call = f"; call it, data={data.__name__}(...)" if callable(data) and hasattr(data, "__name__") else ""
    raise DataError(f"data must be {FORMS}; got {type_name(data)}{call}")


def _of_clients(data: Mapping[Any, Any], roles: Roles, optional: bool) -> DataTable:
    """One table of {client: ...}, or of the parts "train" and "test" of a DatasetDict."""
    if not data:
        raise DataError("data is {} and has no client; give {client: (x, y)}")
    if all(hasattr(part, "column_names") for part in data.values()) and "train" in data:
        rows = _read(data["train"], roles)
        if "test" not in data:
            return rows
        return tested(rows, _read(data["test"], replace(roles, inputs=tuple(rows.columns)), optional=True))
    if not {"test", "validation"}.isdisjoint(data) and all(hasattr(part, "column_names") for part in data.values()):
        raise DataError(f'the data have the parts {some(list(data))}, and no part "train"; give that, too')
    if roles.client is not None:
        raise DataError("every client has data of its own, so no column names the clients; leave client out")
    names: dict[str, Any] = {}
    for name in data:
        if (twin := names.setdefault(name_of_client(name), name)) is not name:
            raise DataError(f"clients {twin!r} and {name!r} have one name when written out; rename one of them")
    parts = []
    for text, name in names.items():
        try:
            parts.append(_read(data[name], roles, optional))
        except DataError as error:
            raise DataError(f"client {text}: {error}") from None
    if not len(parts[0]):
        raise DataError(f"client {next(iter(names))} has no examples; leave it out")
    rows = joined(parts, list(names))
    if not any(map(is_frame, data.values())):
        return rows
    if len(parts) == 1 and roles.known and not optional:
        raise DataError(f"{rows.clients[0]!r} is the only client; give its table itself")
    assert rows.owners is not None
    owners, clients = numbered([rows.clients[i] for i in rows.owners])  # in the order that a column of them would have
    return replace(rows, owners=owners, clients=clients)


def _of_frame(frame: Frame, roles: Roles, name: str, images: Array | None = None) -> DataTable:
    """The rows of a frame: every column except labels, clients, patients and what is left out is an input."""
    known = list(frame.columns)
    for column in roles.target or ((None,) if roles.known else ()):
        check_column(known, column, "target", "labels")
    others = (("client", roles.client), ("patient", roles.patient), *(("test", one) for one in roles.aside))
    for setting, column in others:
        if column is not None:
            check_column(known, column, setting)
    taken = (*roles.target, roles.client, roles.patient, *roles.aside)
    left = roles.inputs or tuple(column for column in known if column not in taken)
    for column in left:
        check_column(known, column, "test", "inputs")
    if not left and images is None:
        raise DataError(f"no column is left to learn from beside {', '.join(map(repr, filter(None, taken)))}")
    labels = [frame.columns[column] for column in roles.target]
    n = len(next(iter(frame.columns.values())))
    y = labels[0] if len(labels) == 1 else np.column_stack(labels) if labels else np.empty((n, 0))
    if roles.client is not None and (odd := no_value(roles.client, frame.columns[roles.client], frame.place)):
        raise DataError(odd)
    owners, clients = (None, ()) if roles.client is None else numbered(frame.columns[roles.client].tolist())
    return DataTable(
        name,
        y,
        images,
        {} if images is not None else {column: frame.column(column) for column in left},
        owners=owners,
        clients=clients,
        patients=None if roles.patient is None else frame.columns[roles.patient],
        order=frame.orders.get(roles.target[0], ()) if len(labels) == 1 else (),
        categories=frame.categories.intersection(left),
        aside={column: frame.columns[column] for column in roles.aside},
        place=frame.place,
        notes=frame.notes,
    )


def _of_hugging_face(part: Any, roles: Roles) -> DataTable:
    """The rows of a Hugging Face dataset: its image column, or else all its columns."""
    taken = {*roles.target, roles.client, roles.patient, *roles.aside}
    images = [name for name in part.column_names if name not in taken and _holds_images(part, name)]
    if len(images) > 1:
        raise DataError(f"{', '.join(images)} all hold images; leave one, with remove_columns")
    frame = frame_of({name: list(part[name]) for name in part.column_names if name not in images})
    pixels = None
    if images:
        pixels = hub.images(part[images[0]], None, "data", images[0])
        drawn = (getattr(part, "format", None) or {}).get("type") == "custom"  # a function of the user's makes rows
        if drawn and not np.array_equal(pixels, hub.images(part[images[0]], None, "data", images[0])):
            raise _drawing("the data set")
    rows = _of_frame(frame, roles, "dataset", pixels)
    feature = (getattr(part, "features", None) or {}).get(roles.target[0] if roles.target else None)
    names = getattr(feature, "names", None)
    return replace(rows, classes=None if names is None else tuple(map(str, names)))


def _holds_images(part: Any, name: str) -> bool:
    first = next(iter(part[name]), None)
    return hasattr(first, "convert") or (isinstance(first, np.ndarray | torch.Tensor | list) and np.ndim(first) >= 2)


def _of_arrays(arrays: Sequence[Any], roles: Roles) -> DataTable:
    """The rows of (x, y) or (x, y, patients), of equal lengths."""
    x, y, patients = arrays[0], _cells(arrays[1], "y"), None
    frame = frame_of(x, "x") if is_frame(x) else None
    columns = {} if frame is None else frame.columns
    if frame is not None and not roles.raw and len(columns) == 1 and _are_texts(next(iter(columns.values()))):
        x, frame = next(iter(columns.values())), None
    inputs = _cells(x, "x") if frame is None else None
    if inputs is not None:
        inputs = inputs.astype(object) if inputs.dtype.kind == "U" and inputs.ndim == 1 else inputs
    n = len(next(iter(columns.values()))) if inputs is None else len(inputs) if inputs.ndim else 0
    if n != len(y):
        raise DataError(f"x has {n} examples, y has {len(y)} labels")
    for name, other in zip(("y", "patients"), arrays[1:], strict=False):
        _check_index(arrays[0], other, name)
    if len(arrays) == 3:
        patients = _cells(arrays[2], "patients")
        if patients.shape != (n,):
            raise DataError(
                f"the third array must name one patient for each of {n} examples, got shape {patients.shape}"
            )
    if frame is None:
        rows = DataTable("arrays", y, inputs)
    else:
        rows = replace(_of_frame(frame, Roles(known=False, inputs=roles.inputs), "arrays"), y=y)
    return replace(rows, patients=patients, order=order_of(arrays[1]))


def _cells(values: Any, what: str) -> Array:
    try:
        return cells(values)
    except DataError as error:
        raise DataError(f"{what}: {error}") from None


def _are_texts(values: Array) -> bool:
    return values.dtype.kind in "OU" and isinstance(next((v for v in values.tolist() if v is not None), None), str)


def _check_index(x: Any, other: Any, name: str) -> None:
    """Refuse what stands beside `x` under other labels of rows: that rows belong together by position is a guess."""
    mine: Any = getattr(x, "index", None)
    its: Any = getattr(other, "index", None)
    if hasattr(mine, "equals") and hasattr(its, "equals") and list(mine) != list(its):
        raise DataError(
            f"the index of {name} has other labels, or another order, than that of x, and rows are paired by position; "
            "give both with .reset_index(drop=True)"
        )


def _of_torch(data: Any) -> DataTable:
    """The rows of a torch Dataset of (input, label) pairs, each of which must be the same whenever it is read."""
    name, inputs, labels = type(data).__name__, [], []
    before = global_states()
    for i in range(len(data)):
        item = data[i]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"item {i} of {name} must be a pair (input, label), got {type_name(item)}")
        inputs.append(_input(item[0], i))
        labels.append(item[1].item() if isinstance(item[1], torch.Tensor | np.generic) else item[1])
        if inputs[i].shape != inputs[0].shape:
            raise DataError(
                f"item {i} of {name} has shape {inputs[i].shape}, item 0 has {inputs[0].shape}; bring all to one size"
            )
    if not inputs:
        raise DataError(f"{name} holds no examples, at least 1 is needed")
    # Whoever draws from no global generator has one of its own, or none.
    again = range(len(data) if drawn_since(before) else min(len(data), AGAIN))
    if not all(np.array_equal(inputs[i], _input(data[i][0], i), equal_nan=True) for i in again):
        raise _drawing(name)
    names = getattr(data, "classes", getattr(getattr(data, "dataset", None), "classes", None))
    classes = tuple(map(str, names)) if isinstance(names, list | tuple) and names else None
    return DataTable(name, cells(labels), np.stack(inputs), classes=classes)


def _input(given: Any, i: int) -> Array:
    # A copy: an item may be changed in place when it is read again.
    return np.array(given if hasattr(given, "convert") else _cells(given, f"the input of item {i}"))


def _drawing(name: str) -> DataError:
    return DataError(
        f"items of {name} are others each time they are read; give its random transform to transform=, which changes "
        "training examples only"
    )


def names_of_classes(names: object, targets: Targets) -> tuple[str, ...] | None:
    """The names of all classes as `task.data_options.classes` lists them for data that are values; None without.

    Raises:
        ConfigError: If it is no list of different words, or targets are no classes.
    """
    if names is None:
        return None
    words = tuple(names) if isinstance(names, list | tuple) and targets.classes else ()
    if not words or not all(isinstance(word, str) and word for word in words) or len(set(words)) < len(words):
        raise ConfigError(f"task.data_options.classes must list classes as different words, got {names!r}")
    return words
