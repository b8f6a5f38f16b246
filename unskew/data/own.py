"""Reads data from Python: any of these forms becomes columns, then a table with roles, then a data set.

    (x, y)                      NumPy arrays, tensors or lists; x may be a list or column of texts, a DataFrame, or
                                several of these, as a tuple or a dictionary; sequences of several lengths are padded
    (x, y, patients)            the same with the patient of each example, in words or whole numbers
    a DataFrame                 of pandas, Polars, Arrow, ...; `target` and `client` name columns
    {client: one of these}      the clients' names are kept; frames have the same columns at all clients
    a torch Dataset             of (input, label), (input, input, label) or dictionaries with "label"; one that draws at
                                random is read anew in each epoch, one larger than `IN_MEMORY` by item
    a Hugging Face dataset      or a DatasetDict with "train" and "test"; columns as in a DataFrame
    a `Dataset`                 the result of `unskew.load`

`read` makes a `Frame` of each form, and `joined` one frame of several clients or parts.  `table` assigns the roles of
columns.  Images of whole numbers 0..255 are standardised per channel with constants of the training part.  Floats are
unchanged, whole numbers in two dimensions are token ids, and labels may be words.  Columns of a table become unscaled
floats, unless there is a preprocessing (`unskew.data.preprocess`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from unskew.data import build, hub
from unskew.data.build import TEST_FRACTION
from unskew.data.columns import (
    CLIENT,
    GIVEN,
    INPUTS,
    LABELS,
    NUMBER,
    PATIENTS,
    Array,
    Frame,
    cells,
    check_column,
    composed_names,
    frame_of,
    is_frame,
    kind_of_values,
    listed,
    order_of,
    truths,
    type_name,
)
from unskew.data.dataset import Dataset
from unskew.data.latest import Latest, cut, moments
from unskew.data.places import by_number
from unskew.data.preprocess import Preprocess
from unskew.data.rows import (
    Item,
    are_items,
    arrays_of,
    as_tensor,
    of_sequences,
    packed,
    padded,
    parted,
    records,
    together,
)
from unskew.data.table import LEFT_OUT, TEST, TRAIN, UNKNOWN, DataTable, label_name, numbered
from unskew.errors import DataError
from unskew.keys import drawn_since, global_states
from unskew.tasks.targets import CLASS, IGNORED, Targets
from unskew.words import composed, some

FORMS = (
    "(x, y) or (x, y, patients), a DataFrame, a torch Dataset, a Hugging Face dataset, a dict or list of these by "
    "client, what us.load returns, or a name"
)

AGAIN = 64  # items that are read twice, to see whether they are drawn at random

DRAWN = (
    "inputs are drawn at random: in training anew in each epoch, in tests always alike; for tests without it give the "
    "change as transform="
)

IN_MEMORY = 1 << 30
"""Bytes that a torch Dataset's inputs may take, to be read once and kept."""


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
    """The data set in `data`.

    Args:
        data: One of the forms above.
        test_fraction: Share for the global test part if there is none: of each client's rows, or patients, if clients
            are known, else of each class.  Every call takes the same rows; no client trains on them.
        classes: Names of all classes, in order; by default those that occur, alphabetically or in the order of an
            ordered category.  If all are whole numbers, numeric labels go by name, otherwise by position.
        targets: The form of the labels; by default classes.
        preprocess: Preprocessing of a table's columns.  Clients' own test rows are then fixed, too.
        one_client: The data are of one client of several, which may lack a class.
        roles: As in `table`.

    Raises:
        ConfigError: If the preprocessing does not fit the columns.
        DataError: If the form is unknown, a column is missing or not named, or as in `unskew.data.build.dataset`.
    """
    declared = None if classes is None else tuple(map(composed, classes))
    if isinstance(data, Dataset):
        if preprocess is not None or any(role is not None for role in roles.values()):
            raise DataError(f"{data.name} is a data set with its own labels and test part; leave test, target, ... out")
        if declared not in (None, data.outputs):
            raise DataError(f"{data.name} is a data set with its own classes, {some(data.outputs)}; leave classes out")
        return data if classes is None else replace(data, ordered=True)
    how: Any = {"fraction": test_fraction, "rules": preprocess, "kind": targets, "declared": declared}
    return build.dataset(table(data, **how, alone=one_client, **roles), fraction=test_fraction)


def table(
    data: object,
    *,
    target: str | Sequence[str] | None = None,
    client: str | None = None,
    patient: str | None = None,
    test: object = None,
    leave_out: Sequence[str] = (),
    name: str | None = None,
    fraction: float = TEST_FRACTION,
    **known: Any,
) -> DataTable:
    """The table, with roles, of data in any form.

    Args:
        data: One of the forms above, or a frame.
        target, client, patient, leave_out: Columns, as in `unskew.data.tables.TableOptions`.
        test: The same; or the global test part, in any form.  If it names its clients, its rows are their own test
            rows.
        name: Name of the data.
        fraction: Share of the latest rows, if `test` has neither a share nor a date.
        known: Further attributes of the `DataTable`: `patient_ids`, `rules`, `kind`, `declared`, `alone`.

    Raises:
        DataError: If the form is unknown, or a column is missing or named twice.
    """
    targets = tuple(target) if isinstance(target, list | tuple) else () if target is None else (target,)
    targets, client, patient, left_out = composed_names((targets, client, patient, tuple(leave_out)))
    rule, share = test if isinstance(test, Latest) else None, test if isinstance(test, int | float) else None
    column = composed(test) if isinstance(test, str) else None if rule is None else rule.column
    rules, kind = known.get("rules"), known.get("kind", CLASS)
    roles = [*(("target", one) for one in targets), ("client", client), ("patient", patient), ("test", column)]
    frame = read(data, rules is not None, left_out)
    named = [(role, of) for role, of in roles if of is not None]
    _check_roles(data, frame, named, left_out, needs_target=not (kind is UNKNOWN or kind.tokens))
    if client is not None and isinstance(data, Mapping) and CLIENT in frame.columns:
        raise DataError("every client has data of its own, so no column names the clients; leave client out")
    if frame.part is not None and test is not None:
        raise DataError("the data have a test part of their own; leave test out")
    if test is not None and share is None and column is None and rule is None:
        frame = tested(frame, read(test, rules is not None, left_out), client or CLIENT)
    rows = told(frame, targets, client, patient, column)
    if rules is not None:
        known["rules"] = rules.with_categories([name for name in rows.columns if name in frame.categories])
    rows = replace(rows, name=name or rows.name, share=share, **known)
    rows = columns_of_arrays(rows) if rules is not None else text_of(rows)
    if kind.tokens and rows.inputs is not None:
        rows = replace(rows, y=following(rows.inputs, rows.y))
    if rows.inputs is not None and are_items(rows.inputs) and any(item.draws for item in rows.inputs):
        rows = replace(rows, notes=(*rows.notes, DRAWN))
    if rule is not None:
        return _cut_in_time(rows, rule, _times(data, frame, rows, rule), fraction)
    if column is not None:
        is_test = truths(frame.columns[column].tolist(), column, rows.place)
        return replace(rows, part=np.where(is_test, TEST, TRAIN).astype(np.int8))
    return rows


def beside(data: object, target: str | Sequence[str] | None = None) -> DataTable:
    """A server's own rows, in any form, with labels if there are any."""
    frame = read(data)
    names = {composed(name) for name in ([target] if isinstance(target, str) else target or ())}
    return table(frame, target=target if names <= frame.columns.keys() else None, kind=UNKNOWN)


def _check_roles(
    data: object, frame: Frame, named: Sequence[tuple[str, str]], left_out: Sequence[str], needs_target: bool
) -> None:
    """Refuse roles of what has no columns, names that are none of them, and one column for two roles."""
    columns = [name for name in frame.columns if name not in GIVEN]
    if LABELS in frame.columns and (named or left_out):
        way = "give {client: (x, y)}, (x, y, patients) or test=us.Latest(times)"
        raise DataError(f"target, client, patient and test name columns, and {type_name(data)} has none; {way}")
    if needs_target and LABELS not in frame.columns and "target" not in dict(named):
        check_column(columns, None, "target", "labels")
    for role, name in named:
        check_column(columns, name, role)
        if (twice := [other for other, one in named if one == name])[1:]:
            raise DataError(f"column {name!r} is named twice, as {' and as '.join(twice)}; name every column once")


def told(
    frame: Frame,
    targets: tuple[str, ...] = (),
    client: str | None = None,
    patient: str | None = None,
    of_test: str | None = None,
) -> DataTable:
    """The table of a frame; every column without another role is an input."""
    held, n = frame.columns, len(frame)
    taken = {*GIVEN, *targets, client, patient, of_test}
    left = [column for column in held if column not in taken]
    if INPUTS not in held and not left:
        raise DataError(f"no column is left to learn from beside {', '.join(map(repr, taken - GIVEN - {None}))}")
    inputs = held.get(INPUTS)
    if inputs is None and any(held[column].ndim > 1 or of_sequences(held[column]) for column in left):
        inputs = packed({column: held[column] for column in left}) if len(left) > 1 else held[left[0]]
    labels = [held[column] for column in targets]
    y = held[LABELS] if LABELS in held else labels[0] if len(labels) == 1 else None
    whose, called = client or CLIENT, targets[0] if len(targets) == 1 else LABELS
    owners, clients = None, tuple[str, ...]()
    if whose in held:
        owners, clients = numbered(held[whose].tolist(), frame.clients)
    return DataTable(
        frame.name,
        (np.column_stack(labels) if labels else np.empty((n, 0))) if y is None else padded(y, IGNORED),
        None if inputs is None else padded(inputs),
        {} if inputs is not None else {column: frame.column(column) for column in left},
        target=targets,
        client=client,
        patient=patient,
        owners=owners,
        clients=clients,
        patients=held.get(PATIENTS if patient is None else patient),
        part=frame.part,
        classes=frame.names.get(called),
        order=frame.orders.get(called, ()),
        numbers=held.get(NUMBER, np.arange(n)),
        place=frame.place,
    )


def columns_of_arrays(rows: DataTable, names: Sequence[str] | None = None) -> DataTable:
    """Rows of numbers as columns, if there are rules or names for them."""
    x = rows.inputs
    if x is None or x.ndim != 2 or x.dtype.kind != "f" or (rows.rules is None and names is None):
        return rows
    names = names or tuple(f"x{i}" for i in range(x.shape[1]))
    if len(names) != x.shape[1]:
        raise DataError(f"{rows.name}: features has {len(names)} names for {x.shape[1]} columns")
    return replace(rows, inputs=None, columns={name: x[:, i].astype(np.float64) for i, name in enumerate(names)})


def following(x: Array, y: Array) -> Array:
    """The next token at each position, for sequences without targets, or whose targets are the inputs.

    >>> following(np.array([[5, 6, 7]]), np.empty((1, 0))).tolist()
    [[6, 7, -100]]
    """
    names = x.dtype.names or ()
    ids = x["input_ids"] if "input_ids" in names else x
    if ids.dtype.kind not in "iu" or ids.ndim != 2:
        return y
    there = x["attention_mask"] != 0 if "attention_mask" in names else np.ones(ids.shape, bool)
    if y.size and not (y.shape == ids.shape and (y == ids)[there & (y != IGNORED)].all()):
        return y
    after = np.where(there, ids if not y.size else y, IGNORED)[:, 1:]
    return np.concatenate([after, np.full((len(ids), 1), IGNORED)], 1)


def text_of(rows: DataTable) -> DataTable:
    """The table with its only column as text, if it has more entries than categories have, mostly of several words."""
    only = rows.inputs is None and len(rows.columns) == 1 and rows.of_texts(*rows.columns)
    return replace(rows, inputs=next(iter(rows.columns.values())).astype(object), columns={}) if only else rows


def _cut_in_time(rows: DataTable, rule: Latest, times: Any, fraction: float) -> DataTable:
    """The table with its latest rows for testing."""
    if len(times) != len(rows):
        raise DataError(f"{rule.where} has {len(times)} times for {len(rows)} examples")
    if rule.gap and rows.owners is None and not rows.alone:  # a split makes the clients, and leaves out nothing
        raise DataError(f"test.gap is {rule.gap:g}, and the data name no clients. Name the clients, or leave gap out")
    when = moments(times, rule.where, rows.place)
    whose = None if rows.owners is None else [rows.clients[i] if i >= 0 else "no client" for i in rows.owners]
    train, test, notes, refusal = cut(rule, when, fraction, whose, rows.people)
    part = np.where(test, TEST, np.where(train, TRAIN, LEFT_OUT)).astype(np.int8)
    refusals = (*rows.refusals, *filter(None, [refusal]))
    return replace(rows, part=part, when=when, notes=(*rows.notes, *notes), refusals=refusals)


def _times(data: object, frame: Frame, rows: DataTable, rule: Latest) -> Any:
    """The time of each row: of a table's column, of an array beside (x, y), or of one for each client."""
    if rule.column is not None:
        return frame.columns[rule.column]
    if not isinstance(data, Mapping):
        return cells(rule.latest)
    times = {label_name(name): cells(of) for name, of in dict(rule.latest).items()}
    for name, n in zip(rows.clients, rows.count().tolist(), strict=True):
        if len(times.get(name, ())) != n:
            raise DataError(f"latest must have {n} times of client {name}, in a dict like data")
    return together([times[name] for name in rows.clients])


# ---------------------------------------------------------------- several as one
def joined(parts: Mapping[str, Frame], optional: Collection[str] | None = None) -> Frame:
    """One frame of several, one after the other; keys name them in messages.

    All have the same columns.  With `optional`, later ones may lack these columns (gaps) and have others (left out).

    Raises:
        DataError: If columns, shapes, scales or kinds of labels do not fit together, or only some name patients.
    """
    called, first = next(iter(parts.items()))
    frames = []
    for name, part in parts.items():
        if not len(part):
            raise DataError(f"{name} has no examples; leave it out")
        if optional is not None:
            held = {column: values for column, values in part.columns.items() if column in {*first.columns, PATIENTS}}
            gaps = {column: np.full(len(part), None) for column in optional if column not in held}
            part = replace(part, columns=held | {column: of for column, of in gaps.items() if column in first.columns})
        if what := _apart(first, part):
            raise DataError(f"{called} and {name} differ in {what}; give all alike")
        frames.append(part)
    ends = np.cumsum([len(frame) for frame in frames])
    suffix = ["", " of the test rows"] if optional else [f" of {name.removeprefix('client ')}" for name in parts]

    def place(row: int) -> str:
        i = int(np.searchsorted(ends, row, side="right"))
        return frames[i].place(row - int(ends[i]) + len(frames[i])) + suffix[i]

    numbers = [frame.columns.get(NUMBER, np.arange(len(frame))) for frame in frames]
    columns = {name: together([frame.columns[name] for frame in frames]) for name in first.columns if name != NUMBER}
    return replace(
        first,
        columns={**columns, NUMBER: np.concatenate(numbers)},
        categories=frozenset[str]().union(*(frame.categories for frame in frames)),
        names={name: tuple(dict.fromkeys(of for f in frames for of in f.names.get(name, ()))) for name in first.names},
        place=place,
    )


def tested(rows: Frame, test: Frame, whose: str) -> Frame:
    """Training rows followed by test rows; `whose` is the column of the clients, if there is one."""
    both = joined({rows.name: rows, "test": test}, (whose,))
    part = np.where(np.arange(len(both)) < len(rows), TRAIN, TEST).astype(np.int8)
    return replace(both, part=part)


def _apart(first: Frame, part: Frame) -> str:
    """In what two frames do not go together, which one array would hide; empty if they do.

    Whole numbers beside others are refused where they are bytes or images: one site's pixels then reach from 0 to
    255 and another's, in all likelihood, from 0 to 1.
    """
    if odd := sorted((first.columns.keys() ^ part.columns.keys()) - {NUMBER}):
        named = "whether they have names" if INPUTS in odd else ", ".join(odd)
        return "whether patients are named" if PATIENTS in odd else f"columns: {named}"
    mine, its = (dict(arrays_of(frame.columns[INPUTS])) if INPUTS in first.columns else {} for frame in (first, part))
    if mine.keys() != its.keys():
        return "the parts of an example"
    for x, y in ((x, its[name]) for name, x in mine.items()):
        kinds = {of.dtype.kind if of.dtype.kind in "fO" else "iu" for of in (x, y)}
        if not (of_sequences(x) or of_sequences(y)) and x.shape[1:] != y.shape[1:]:
            return f"the shape of an example, {x.shape[1:]} and {y.shape[1:]}"
        if len(kinds) > 1 and "O" in kinds:
            return "texts and numbers"
        if len(kinds) > 1 and (x.ndim > 2 or np.uint8 in (x.dtype, y.dtype)):
            return f"the scale, {x.dtype} and {y.dtype}"
    for name in {LABELS, *first.names} & first.columns.keys():
        if kind_of_values(first.columns[name]) != kind_of_values(part.columns[name]):
            return f"the kind of labels, such as {first.columns[name].flat[0]!r} and {part.columns[name].flat[0]!r}"
    orders = [(order, part.orders.get(name, order)) for name, order in first.orders.items()]
    return "the order of labels" if any(one != other for one, other in orders) else ""


# ---------------------------------------------------------------- forms
def read(data: Any, raw: bool = False, left_out: Collection[str] = ()) -> Frame:
    """The columns of data in any form, except those left out; words of `raw` columns are no texts.

    Raises:
        DataError: If the form is unknown, or its parts do not fit together.
    """
    if hasattr(data, "column_names") and hasattr(data, "features"):
        return _of_hugging_face(data, left_out)
    if isinstance(data, Frame) or is_frame(data):
        frame = frame_of(data)
        for name in left_out:
            check_column(list(frame.columns), name, "leave_out")
        return replace(frame, columns={name: of for name, of in frame.columns.items() if name not in left_out})
    if isinstance(data, Mapping):
        return _of_clients(data, raw, left_out)
    if isinstance(data, Dataset):
        x, y = as_tensor(data.x_test).numpy(), data.y_test.numpy()
        return _named(Frame({INPUTS: x, LABELS: y}, name=data.name), {LABELS: data.classes})
    if isinstance(data, DataLoader):
        return read(data.dataset, raw, left_out)
    if isinstance(data, IterableDataset):
        raise DataError(f"{type_name(data)} has no fixed examples; give a data set whose items have numbers")
    if isinstance(data, TorchDataset):
        return _of_torch(data)
    if isinstance(data, list) and data and all(map(_is_set, data)):
        return _of_clients(dict(enumerate(data)), raw, left_out)
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        return _of_arrays(data, raw)
    raise DataError(f"data must be {FORMS}; got {type_name(data)}")


def _is_set(one: Any) -> bool:
    """True for what can be one client's data in a list of clients."""
    pair = isinstance(one, tuple) and len(one) in (2, 3) and not np.isscalar(one[0]) and np.ndim(one[1]) > 0
    return pair or is_frame(one) or isinstance(one, TorchDataset | DataLoader) or hasattr(one, "column_names")


def _of_clients(data: Mapping[Any, Any], raw: bool, left_out: Collection[str]) -> Frame:
    """One frame of {client: ...}, or of {"train": ..., "test": ...}, as a DatasetDict has them."""
    if not data:
        raise DataError("data is {} and has no client; give {client: (x, y)}")
    if data.keys() <= {"train", "test", "validation"}:
        rows = read(data["train"], raw, left_out)
        return tested(rows, read(data["test"], raw, left_out), CLIENT) if "test" in data else rows
    names: dict[str, Any] = {}
    parts: dict[str, Frame] = {}
    for name in data:
        text = label_name(name)
        if (twin := names.setdefault(text, name)) is not name:
            raise DataError(f"clients {twin!r} and {name!r} have one name when written out; rename one of them")
        try:
            parts[f"client {text}"] = read(data[name], raw, left_out)
        except DataError as error:
            raise DataError(f"client {text}: {error}") from None
    rows = joined(parts)
    whose = np.repeat(np.array([*names, None], object)[:-1], [len(part) for part in parts.values()])
    # Of frames the clients are in the order that a column of them would have.
    ordered = () if any(map(is_frame, data.values())) else tuple(names)
    return replace(rows, columns={**rows.columns, CLIENT: whose}, clients=ordered)


def _of_hugging_face(part: Any, left_out: Collection[str]) -> Frame:
    """The columns of a Hugging Face dataset: its image column, and all others."""
    kept = [name for name in part.column_names if name not in left_out]
    images = [name for name in kept if _holds_images(part, name)]
    if len(images) > 1:
        raise DataError(f"{', '.join(images)} all hold images; leave one, with remove_columns")
    frame = frame_of({name: list(part[name]) for name in kept if name not in images})
    features = getattr(part, "features", None) or {}
    names = {composed(name): getattr(features.get(name), "names", None) for name in kept}
    columns: dict[str, Array] = dict(frame.columns)
    if images:
        values = part[images[0]]
        pillow = hasattr(next(iter(values)), "convert")
        columns[INPUTS] = hub.images(values, None, by_number) if pillow else records(list(map(cells, values)))
    return _named(replace(frame, columns=columns, name="dataset"), names)


def _named(frame: Frame, names: Mapping[str, Sequence[object] | None]) -> Frame:
    """The frame with the names that numbers of a column stand for, whose order is the data set's own, in their place.

    Raises:
        DataError: If a number has no name.
    """
    known = {column: tuple(map(str, of)) for column, of in names.items() if of}
    columns = dict(frame.columns)
    for column, of in known.items():
        codes = columns[column]
        if codes.dtype.kind in "iu" and of != tuple(map(str, range(len(of)))):
            if len(bad := np.flatnonzero((codes < 0) | (codes >= len(of)))):
                raise DataError(f"row {bad[0]} has the label {codes[bad[0]]}, and its classes are {some(of)}")
            columns[column] = np.array(of, object)[codes]
    return replace(frame, columns=columns, names=known)


def _holds_images(part: Any, name: str) -> bool:
    first = next(iter(part[name]), None)
    return hasattr(first, "convert") or (isinstance(first, np.ndarray | torch.Tensor | list) and np.ndim(first) >= 2)


def _of_arrays(arrays: Sequence[Any], raw: bool) -> Frame:
    """The columns of (x, y) or (x, y, patients), of equal lengths."""
    x, given = arrays[0], zip((LABELS, PATIENTS), ("y", "patients"), arrays[1:], strict=False)
    beside = {role: (name, of, cells(of, name)) for role, name, of in given if of is not None}
    frame = frame_of(x, "x") if is_frame(x) else Frame({})
    values = next(iter(frame.columns.values()), None)
    if values is None:
        frame = Frame({INPUTS: _inputs(x, len(beside[LABELS][2]) if LABELS in beside else None)})
    elif not raw and len(frame.columns) == 1 and kind_of_values(values) == "words":
        frame = Frame({INPUTS: values})
    columns = dict(frame.columns)
    for role, (name, of, values) in beside.items():
        if len(values) != len(frame):
            raise DataError(f"x has {len(frame)} examples, {name} has {len(values)}")
        _check_index(x, of, name)
        columns[role] = values
    order = order_of(arrays[1])
    return replace(frame, columns=columns, orders={LABELS: order} if order else {}, name="arrays")


def _inputs(x: Any, n: int | None, what: str = "x") -> Array:
    """Inputs as one array: of numbers, of texts, of sequences, or of records of such parts."""
    named = x if isinstance(x, Mapping) else dict(enumerate(x)) if isinstance(x, tuple) and len(x) != n else {}
    if isinstance(x, Mapping) or (named and all(hasattr(part, "__len__") and len(part) == n for part in x)):
        return packed({str(name): _inputs(part, n, f"{what}[{name!r}]") for name, part in named.items()}, what)
    values = cells(x, what)
    return values.astype(object) if values.dtype.kind == "U" and values.ndim == 1 else values


def _check_index(x: Any, other: Any, name: str) -> None:
    """Refuse what stands beside `x` under other labels of rows: that rows belong together by position is a guess."""
    mine: Any = getattr(x, "index", None)
    its: Any = getattr(other, "index", None)
    if hasattr(mine, "equals") and hasattr(its, "equals") and list(mine) != list(its):
        raise DataError(f"the index of {name} has other labels, or another order, than that of x; reset both")


def _of_torch(data: Any) -> Frame:
    """The columns of a torch Dataset: read once, or as items where they are drawn at random or take much memory."""
    name, n = type(data).__name__, len(data)
    if not n:
        raise DataError(f"{name} holds no examples, at least 1 is needed")
    before, few = global_states(), range(min(n, AGAIN))
    read = [_item(data, i) for i in few]
    draws = not _alike(read, [_item(data, i) for i in few])
    large = n * sum(of.nbytes for of in pytree.tree_leaves(read[0][0])) > IN_MEMORY
    if not (draws or large):
        read += [_item(data, i) for i in range(len(few), n)]
        draws = bool(drawn_since(before)) and not _alike(read, [_item(data, i) for i in range(n)])
    if draws and not drawn_since(before):
        raise DataError(f"{name} draws from a generator of its own; draw from that of PyTorch, NumPy or Python")
    inputs, labels = ([one[k] for one in read] for k in (0, 1))
    if draws or large:
        known = labels_known(data)
        if known is None or not _alike(labels, known[: len(labels)]):
            known = [*labels, *(_item(data, i)[1] for i in range(len(labels), n))]
        x, labels = listed([Item(data, i, draws) for i in range(n)]), known
    else:
        x = records(inputs)
    y = {} if labels[0] is None else {LABELS: cells(labels)}
    names = getattr(data, "classes", getattr(getattr(data, "dataset", None), "classes", None))
    named = {LABELS: names} if y and isinstance(names, list | tuple) else {}
    return _named(Frame({INPUTS: x, **y}, name=name), named)


def _item(data: Any, i: int) -> tuple[Any, Any]:
    """Input and label of an item, which may be read again and changed."""
    given, label = parted(data[i])
    label = cells(label) if isinstance(label, torch.Tensor | np.ndarray | np.generic | list) else label
    return given, label.item() if isinstance(label, np.ndarray) and label.ndim == 0 else label


def _alike(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """True if items are equal, number by number."""
    pairs = zip(pytree.tree_leaves(list(some)), pytree.tree_leaves(list(others)), strict=False)
    return all(np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind == "f") for a, b in pairs)


def labels_known(data: Any) -> list[Any] | None:
    """The labels that a torch Dataset has as an attribute, like torchvision's; None without."""
    if hasattr(data, "indices") and (known := labels_known(data.dataset)) is not None:
        return [known[i] for i in data.indices]
    if hasattr(data, "datasets"):
        parts = [labels_known(part) for part in data.datasets]
        return [label for part in parts for label in part or ()] if None not in parts else None
    held = next((getattr(data, name) for name in ("targets", "labels") if hasattr(data, name)), None)
    return cells(held).tolist() if held is not None else None
