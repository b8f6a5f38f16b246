"""Turns the user's data into a `Dataset`: arrays, tables, PyTorch's and Hugging Face's data sets.

    (x, y)                      NumPy arrays, tensors or lists; x may be a list or column of texts, or a DataFrame
    (x, y, patients)            the same with who is in each example, in words or whole numbers
    {client: (x, y)}            one of these for each client; the clients' names are kept
    a DataFrame                 of pandas or Polars; `target` names the column of labels, `client` that of clients
    {client: a DataFrame}       the same columns at all clients; `joined` makes one table of them
    a torch Dataset             of (input, label) pairs, read once from its first item to its last
    a Hugging Face dataset      or a DatasetDict with "train" and "test"; columns as of a DataFrame
    a `Dataset`                 what `unskew.load` returns, as it is

Everything is brought into the plain layout of `unskew.data.sources`, whose rules for files hold here too: images of
whole numbers 0..255 are standardised per channel with constants of the training part, floats stay as they are, whole
numbers in two dimensions are token ids, labels may be words.  Columns of a table are measurements: they become floats
and are not scaled, unless a preprocessing (`unskew.data.preprocess`) says what becomes of them.  No library but PyTorch
is imported here but the one whose frames were given: tables are recognised by their methods.
"""

import importlib
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from unskew.data import doubts, hub
from unskew.data.arrays import TEST_FRACTION, from_arrays
from unskew.data.columns import composed_names, composed_test, with_composed_columns
from unskew.data.copies import copies
from unskew.data.dataset import Dataset
from unskew.data.image_folders import check_no_files
from unskew.data.images import as_tensor
from unskew.data.inputs import (
    Column,
    Inputs,
    RawTable,
    check_values,
    column_values,
    is_category,
    is_clock,
    is_date,
    is_gap,
    is_lazy,
    kind_of_time,
    no_number,
    plain_value,
    raw_column,
    several_values,
)
from unskew.data.latest import Cut, Latest, cut, moments
from unskew.data.lengths import check_words, names_array
from unskew.data.patients import coded, names_of_patients, part_of, patients_spelt_alike, unnamed_patients
from unskew.data.places import Place, by_number, place, rows_at
from unskew.data.preprocess import (
    Preprocess,
    check_gaps,
    check_size,
    unscaled,
)
from unskew.errors import ConfigError, DataError, did_you_mean, warn
from unskew.keys import Key
from unskew.tasks.targets import CLASS, LabelType, RowError, Targets, mislabelled
from unskew.words import composed, some, with_article

FORMS = (
    "(x, y) or (x, y, patients), a pandas or Polars DataFrame, {client: one of these}, a torch Dataset, a Hugging Face "
    "dataset, what us.load returns, or a name"
)

_Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class GivenExamples:
    """Examples as they were given, or as another module has read them.

    Attributes:
        name: Name of the data in tables.
        x: Inputs, (N, ...).
        y: Labels (N,), numbers or words.
        clients: Name of each example's client, (N,); None if the data name no clients.
        client_names: Each client once, in order.
        patients: Name of the patient of each example, (N,); None if the data name none.
        classes: Names of the labels 0, 1, ..., if the data have them.
        columns: The input columns of a table, in order.
        test: The test part, if the data have one.
        table: The input columns as they are, words and gaps included, where they are to be preprocessed; `x` are then
            the rows' numbers.
        files: The examples' files, for sentences; empty if they come from none.
        numbers: Row of each example in the data as they were given, (N,); by default they are all of these, in order.
        truths: The labels were true and false, not words for it.
        order: Labels in the order that a column declares for them, of which not all need occur; empty without.
        when: Time of each example, (N,), as `unskew.data.latest.moments`; None if it is not known.
    """

    name: str
    x: _Array
    y: _Array
    clients: Sequence[str] | None = None
    client_names: tuple[str, ...] = ()
    patients: Sequence[str] | None = None
    classes: tuple[str, ...] | None = None
    columns: tuple[Any, ...] = ()
    test: "GivenExamples | None" = None
    table: RawTable | None = None
    files: Sequence[str] = ()
    numbers: _Array | None = None
    truths: bool = False
    order: tuple[Any, ...] = ()
    when: _Array | None = None

    @property
    def row_numbers(self) -> _Array:
        """Row of each example in the data as they were given, (N,)."""
        return np.arange(len(self.y)) if self.numbers is None else self.numbers

    def take(self, rows: _Array) -> "GivenExamples":
        """The examples of these row numbers."""
        clients, patients = (None if of is None else [of[i] for i in rows] for of in (self.clients, self.patients))
        files = [self.files[i] for i in rows] if self.files else ()
        x, y, numbers = self.x[rows], self.y[rows], self.row_numbers[rows]
        when = None if self.when is None else self.when[rows]
        return replace(self, x=x, y=y, clients=clients, patients=patients, files=files, numbers=numbers, when=when)

    def counted_by_client(self) -> "GivenExamples":
        """The examples numbered within their clients, each of which has its own data."""
        count = Counter[str]()
        numbers = np.empty(len(self.y), np.int64)
        for i, name in enumerate(self.clients or [""] * len(self.y)):
            numbers[i] = count[name]
            count[name] += 1
        return replace(self, numbers=numbers)


@dataclass(frozen=True)
class Roles:
    """Columns of a table by what they are; all others are inputs.

    Attributes:
        target: Column of the labels, or several; None if there is no table.
        client, patient: Columns of the clients and of the patients; None if there are none.
        ignored: Columns that are nothing of these, and no inputs.
        inputs: The input columns, if another table has set them.
        raw: Inputs stay as they are, words and gaps included, to be preprocessed.
    """

    target: Any = None
    client: str | None = None
    patient: str | None = None
    ignored: tuple[str | None, ...] = ()
    inputs: tuple[Any, ...] = ()
    raw: bool = False

    @property
    def targets(self) -> tuple[Any, ...]:
        """The columns of the labels."""
        return tuple(self.target) if isinstance(self.target, list | tuple) else (self.target,)


def dataset(
    data: object,
    *,
    target: str | Sequence[str] | None = None,
    client: str | None = None,
    patient: str | None = None,
    test: object = None,
    test_fraction: float = 0.2,
    preprocess: Preprocess | None = None,
    name: str | None = None,
    own_test: bool = False,
    classes: tuple[str, ...] | None = None,
    targets: Targets = CLASS,
    test_rows_at: Place = by_number,
    one_client: bool = False,
    constants: Sequence[tuple[float, float]] | None = None,
    by_client: Collection[str] = (),
    testing: bool = False,
) -> Dataset:
    """The data set that `data` holds.

    Args:
        data: One of the forms above.
        target: Column of the labels; tables and Hugging Face's data sets need it.  Several columns of a table where an
            example's target has several, as time and event.
        client: Column of the clients; without it the data name no clients.
        patient: Column of the patients, or whoever has several rows; without it, or patients in `data`, they are not
            known.  Nobody's rows are in training and in testing then, and shares are shares of each client's patients.
            Two clients' patients are two people, even if they have one name.
        test: The global test part, in any of the forms; where it names its clients, its rows are their own test rows,
            too.  Or the column of a table that says which rows are test rows (true and false, 1 and 0, or
            "test" and "train"), or the share of each client's rows, or that they are the latest: then every client's
            own test rows are those of them that it holds, and nobody trains on them.
        test_fraction: Share of the rows that becomes the global test part if there is none: of each client's rows if
            clients are known, else of each class.  The same rows in every call; no client trains on them.
        preprocess: What becomes of a table's columns.  Clients' own test rows are then fixed, too: they are set aside
            before any number is taken from the data.
        name: Name of the data in tables and manifests.
        own_test: Test rows are their clients' own, too, so that those that are given name their clients.
        classes: Names of all classes, in order; by default those that occur, in alphabetical order or in that of an
            ordered category.  Where all are whole numbers, labels that are numbers go by their names, otherwise by
            their order.
        targets: The form of the labels; by default they are classes.
        test_rows_at: The places of the rows of `test`, where that is a table.
        one_client: The data are those of one client of several, which may lack a class.
        constants: Mean and deviation of each channel by which byte images are standardised, as for `from_arrays`.
        by_client: Those of train and test that are joined of a table for each client, in which rows are counted.
        testing: Nobody trains on them, so that no client is doubted.

    Raises:
        ConfigError: If the preprocessing does not fit the columns.
        DataError: If the form is unknown, a column is missing or not named, a label is not a class, an input is not a
            number, or the data do not pass `unskew.data.dataset.checked`.
    """
    if isinstance(data, Dataset):
        if any(of is not None for of in (test, target, client, patient, preprocess)):
            raise DataError(
                f"{data.name} is a data set with its own labels and test part; leave test, target, client, patient and "
                "preprocess out"
            )
        if classes not in (None, data.outputs):
            raise DataError(
                f"{data.name} is a data set with its own classes, {some(data.outputs)}; leave "
                "task.data_options.classes out, or list these in their order to say that it is meant"
            )
        return data if classes is None else replace(data, ordered=True)
    target, client, patient = map(composed_names, (target, client, patient))
    data, test = with_composed_columns(data), composed_test(test)
    check_names(target, client, patient, test)
    classes = None if classes is None else tuple(map(composed, classes))
    if targets.classes and isinstance(target, list | tuple) and len(target) == 1:
        target = str(target[0])
    if targets.classes and not (target is None or isinstance(target, str)):
        raise DataError(f"target must name one column, whose values are classes, got {', '.join(target)}")
    share = share_of(test)
    rule = test if isinstance(test, Latest) else None
    column = test if isinstance(test, str) else None
    roles = Roles(target, client, patient, (column if rule is None else rule.column,), raw=preprocess is not None)
    if rule is not None and rule.column is not None and (_is_frame(data) or hasattr(data, "column_names")):
        column_of(data, rule.column, "test.latest", "dates")  # before another column is refused
    rows = _rows(data, roles)
    if classes is not None and rows.classes not in (None, classes):
        raise DataError(
            f"{rows.name} names its classes, {some(rows.classes)}, in the order of their numbers, and "
            f"task.data_options.classes others, {some(classes)}; leave those out"
        )
    rows = replace(rows, name=name or rows.name, classes=classes or rows.classes)
    if rows.columns and isinstance(target, str):
        _check_target(rows, target, targets)
    called = f"column {target!r}" if isinstance(target, str) else f"columns {', '.join(target or ())}"
    check = partial(
        _checked, where=rows.name if target is None else called, targets=targets, rules=preprocess, classes=classes
    )
    if isinstance(data, Mapping) and preprocess is None:
        _check_finite(rows, "")
    with _counted_there(data, rows, ""):
        rows = check(rows.counted_by_client() if "train" in by_client else rows)
    set_apart = share is not None or column is not None or rule is not None
    own_test = rows.clients is not None and (own_test or roles.raw or set_apart)
    held_out = rows.test
    of_time: tuple[str, ...] = ()
    if rule is not None:
        rows, held_out, of_time = _cut_in_time(data, rows, rule, test_fraction)
    elif column is not None:
        is_test = truths(column_of(data, column, "test"), column)
        check_parts(rows, is_test, patient)
        held_out, rows = rows.take(np.flatnonzero(is_test)), rows.take(np.flatnonzero(~is_test))
    else:
        with rows_at(test_rows_at):
            if test is not None and share is None:
                held_out = _test_part(test, rows, roles, own_test)
            if held_out is not None:
                if isinstance(test, Mapping) and preprocess is None:
                    _check_finite(held_out, ", test")
                with _counted_there(test, held_out, ", test"):
                    held_out = check(held_out.counted_by_client() if "test" in by_client else held_out)
                if rows.clients is not None and held_out.clients is not None:
                    own_test = True
                    if strangers := strangers_of(held_out.client_names, rows.client_names, client):
                        raise DataError(strangers)
    fraction = test_fraction if share is None else share
    if held_out is None and not 0 < fraction < 1:
        raise DataError(
            f"the data have no test part and test_fraction is {fraction:g}; give test=(x, y) or a test_fraction "
            "above 0 and below 1"
        )
    if rows.clients is not None:
        _check_clients(rows, client, fraction if held_out is None and rows.patients is None else None)
    if rows.patients is not None and held_out is None:
        _check_patients(rows, patient, fraction)
    parts = {"train": rows, **({} if held_out is None else {"test": held_out})}
    declared = classes
    if rows.classes is None and targets.classes:
        its = {f"in the {'training' if key == 'train' else key} part": (of.order, of.y) for key, of in parts.items()}
        if order := _one_order("y" if target is None else called, its):
            occurring = {str(label) for part in parts.values() for label in np.unique(part.y).tolist()}
            declared = tuple(name for name in map(_name, order) if name in occurring)
            rows = parts["train"] = replace(rows, classes=declared)
    code_names = (
        _code_names([part.y for part in parts.values()], rows, declared, one_client) if targets.classes else None
    )
    apart = column is not None or rule is not None
    arrays = _arrays_of(parts, roles, bool(code_names), own_test, None if apart else test_rows_at)
    if (names := code_names or rows.classes or _label_names(target, targets)) is not None:
        arrays["classes"] = names_array(names, "classes")
    named = rows.x.dtype.kind == "f" and rows.columns
    given = from_arrays(
        rows.name,
        arrays,
        Key(0) / "npz" / "test",
        test_fraction=fraction,
        own=True,
        own_test=own_test,
        rules=preprocess,
        tables=None if rows.table is None else {key: of.table for key, of in parts.items() if of.table is not None},
        inputs=Inputs("table", columns=tuple(Column(str(c)) for c in rows.columns))
        if named and not roles.raw
        else None,
        targets=targets,
        files={key: part.files for key, part in parts.items()} if rows.files else None,
        rows={key: part.row_numbers for key, part in parts.items()},
        when=_ranks(parts) if rule is not None else None,
        one_client=one_client,
        constants=constants,
        label_type=_label_type(code_names, declared, all(of.truths for of in parts.values()))
        if targets.classes
        else None,
    )
    few = [] if rows.patients is None or held_out is not None else _untested(rows, fraction, own_test)
    alike = filter(None, [_patients_alike(list(parts.values()))])
    sentences = [*of_time, *few, *alike]
    if not testing:
        sentences += _doubts(given, rows, preprocess, one_client, untested_told=bool(few) or rule is not None)
    for sentence in sentences:
        warn(sentence)
    return replace(given, doubts=(*given.doubts, *sentences), ordered=declared is not None)


def names_of_classes(names: object, targets: Targets) -> tuple[str, ...] | None:
    """The names of all classes as `task.data_options.classes` lists them for data that are values; None without.

    Raises:
        ConfigError: If it is no list of different words, or targets are no classes.
    """
    if names is None:
        return None
    if not targets.classes:
        raise ConfigError(f"task.data_options.classes names classes, and the task learns {targets.what}; leave it out")
    words = tuple(names) if isinstance(names, list | tuple) else ()
    if not words or not all(isinstance(word, str) and word for word in words) or len(set(words)) < len(words):
        raise ConfigError(f"task.data_options.classes must list the classes as different words, got {names!r}")
    return words


def check_names(target: object, client: object, patient: object = None, test: object = None) -> None:
    """Refuse names of columns that are no words, and those that `check_roles` refuses.

    Raises:
        DataError: If there is such a name.
    """
    several = list(target) if isinstance(target, list | tuple) else [target]
    for setting, name in (*(("target", one) for one in several), ("client", client), ("patient", patient)):
        if name is not None and not isinstance(name, str):
            raise DataError(
                f"{setting} must name a column by a word, got {name!r}; rename the columns, in pandas with "
                "table.columns = table.columns.astype(str)"
            )
    check_roles(several, client, patient, test.column if isinstance(test, Latest) else test)


def check_roles(targets: Sequence[object], client: object, patient: object, test: object) -> None:
    """Refuse no target, a target twice, and one column for two of targets, clients, patients and test rows.

    Raises:
        DataError: If there is such a column.
    """
    if twice := [name for name in targets if targets.count(name) > 1]:
        raise DataError(f"target names column {twice[0]!r} twice; name every column once")
    if not targets:
        raise DataError("target names no column; name one, as in target='diagnosis'")
    if client is not None and client in targets:
        raise DataError(
            f"column {client!r} is both the target and that of the clients; name as client who holds a row, and as "
            "target what is to be learnt of it"
        )
    if patient is not None and patient in (*targets, client):
        raise DataError(
            f"patient: column {patient!r} is that of the target or of the clients, too; where every client is one "
            "patient, leave patient out"
        )
    if isinstance(test, str) and test in (*targets, client, patient):
        raise DataError(
            f"test: column {test!r} is that of the target, of the clients or of the patients, too; name one that says "
            "test or train, or when a row was, or leave test out"
        )


def share_of(test: object) -> float | None:
    """The share of the rows that `test` says; None if it says something else.

    Raises:
        DataError: If it is a number that is no share.
    """
    share = float(test) if isinstance(test, int | float) and not isinstance(test, bool) else None
    if share is not None and not 0 < share < 1:
        raise DataError(f"test, as a share of the rows, must be above 0 and below 1, got {share:g}")
    return share


CLIENT = "client"
"""Column of the clients' names in a table that is joined of theirs."""


def is_frames(data: object) -> TypeGuard[Mapping[Any, Any]]:
    """True for {client: DataFrame}."""
    return isinstance(data, Mapping) and bool(data) and all(_is_frame(of) for of in data.values())


def _is_frame(data: object) -> bool:
    return hasattr(data, "columns") and hasattr(data, "to_numpy")


def joined(data: Any, client: str | None, target: object = None) -> tuple[Any, str | None]:
    """One DataFrame of {client: DataFrame}, and its column of clients; anything else as it is, with its column.

    Raises:
        DataError: If the frames are of several libraries, differ in columns or have one of clients, or one is empty,
            or those whose target is an ordered category differ in its order.
    """
    if not is_frames(data):
        return data, client
    libraries = {_library(frame) for frame in data.values()}
    if len(libraries) > 1:
        raise DataError(f"clients' tables are of {' and '.join(sorted(libraries))}; give all of one")
    if empty := [str(name) for name, frame in data.items() if len(frame) == 0]:
        raise DataError(f"client {empty[0]} has no rows; leave it out")
    first, *others = data
    columns = list(data[first].columns)
    for name, frame in data.items():
        known = list(frame.columns)
        if twice := [column for column in known if known.count(column) > 1]:
            raise DataError(f"the table of client {name} has {known.count(twice[0])} columns {twice[0]!r}; rename one")
    for name in others:
        if odd := sorted(map(str, set(columns) ^ set(data[name].columns))):
            raise DataError(f"the tables of clients {first} and {name} differ in columns: {', '.join(odd)}")
    if client not in (None, CLIENT) or CLIENT in columns:
        raise DataError(
            f"every client has a table of its own, so no column names the clients; leave client out, and rename a "
            f"column {CLIENT!r}"
        )
    names = _different(data)
    library = importlib.import_module(libraries.pop())
    order = _order_at_clients(
        f"column {target!r}", {i: frame[target] for i, frame in data.items()} if target in columns else {}
    )
    if library.__name__ == "polars":
        table = stacked(library, {names[i]: frame for i, frame in data.items()}, columns, CLIENT)
        return (table.with_columns(table[target].cast(library.Enum(order))) if order else table), CLIENT
    parts = [frame[columns].assign(**{CLIENT: names[i]}) for i, frame in data.items()]
    table = library.concat(parts, ignore_index=True)
    coded = {c: "category" for c in columns if any(is_category(frame[c]) for frame in data.values())}
    table = table.astype(coded)  # as numbers they would count where clients' categories differ
    if order:
        table[target] = library.Categorical(table[target], order, ordered=True)
    return table, CLIENT


def order_of(labels: Any) -> tuple[Any, ...]:
    """The labels in the order of an ordered category of pandas, or of an Enum of Polars; empty of anything else.

    They are words, truths or whole numbers: other numbers are no classes.
    """
    dtype: Any = getattr(labels, "dtype", None)
    if not getattr(dtype, "ordered", type(dtype).__name__ == "Enum"):
        return ()
    known = dtype.categories.to_list()
    whole = all(isinstance(one, str | int) or (isinstance(one, float) and one.is_integer()) for one in known)
    return tuple(known) if whole else ()


def _name(label: Any) -> str:
    """A label as the name of its class."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def _declares(order: Sequence[Any]) -> bool:
    """True for an order of labels that they do not have anyhow, as rising numbers do."""
    return any(isinstance(label, str) for label in order) or list(order) != sorted(order)


def _one_order(what: str, labels: Mapping[str, tuple[Sequence[Any], Any]]) -> tuple[Any, ...]:
    """The order of labels that places declare, each by its order and its labels; empty if none does.

    Raises:
        DataError: If two declare another order, or a place has a label that is not in it.
    """
    orders = {where: order for where, (order, _) in labels.items() if order}
    if not any(map(_declares, orders.values())):
        return ()
    first = max(orders, key=lambda where: len(orders[where]))
    known, way = list(map(_name, orders[first])), "give all the same categories in one order"
    for where, (order, of) in labels.items():
        own = list(map(_name, order)) or known
        if own != [name for name in known if name in own]:
            raise DataError(
                f"{what} is an ordered category of {', '.join(known)} {first}, and of {', '.join(own)} {where}; {way}"
            )
        strange = next((one for one in column_values(of).tolist() if not is_gap(one) and _name(one) not in known), None)
        if strange is not None:
            raise DataError(
                f"{what} is {strange!r} {where}, none of the ordered categories {first} ({', '.join(known)}); {way}"
            )
    return tuple(orders[first])


def _order_at_clients(what: str, labels: Mapping[Any, Any]) -> tuple[Any, ...]:
    """The order that clients' labels declare, as `_one_order`."""
    return _one_order(what, {f"at client {name}": (order_of(of), of) for name, of in labels.items()})


def check_test_of(data: Mapping[Any, Any], test: object) -> None:
    """Refuse one table as the test part of clients that have a table each.

    Raises:
        DataError: If it is one.
    """
    if _is_frame(test):
        first = next(iter(data))
        raise DataError(
            "every client has a table of its own, and the test part is one table for all: give each client's, as in "
            f"test={{{first!r}: ...}}, the name of a column that says which rows are for testing, or a share"
        )


def _library(frame: Any) -> str:
    """The library of a DataFrame, of which a user's may be a subclass."""
    known = [of.__module__.partition(".")[0] for of in type(frame).__mro__]
    return next((name for name in known if name in ("pandas", "polars")), known[0])


def stacked(polars: Any, frames: Mapping[str, Any], columns: Sequence[str], client: str) -> Any:
    """One table of several of Polars', each one's name in a column of clients.

    Args:
        polars: The library.
        frames: By name.
        columns: Those of all.
        client: Name of the new column.

    Raises:
        DataError: If a column is of kinds that do not go together.
    """
    for column in columns:
        kinds = {name: f[column].dtype for name, f in frames.items() if f[column].null_count() < f.height}
        dates = [name for name, kind in kinds.items() if kind.is_temporal()]
        numbers = [name for name, kind in kinds.items() if kind.is_numeric()]
        if dates and numbers:  # Polars would count days
            raise DataError(
                f"column {column!r} holds dates in {dates[0]}, and numbers in {numbers[0]}, such as "
                f"{frames[numbers[0]][column].drop_nulls()[0]!r}; make numbers of all, or leave the column out"
            )
    # A column without a value has no kind, whatever its reader says.
    void = {n: [c for c in columns if f[c].null_count() == f.height] for n, f in frames.items()}
    coded = polars.selectors.by_dtype(polars.Categorical, polars.Enum)  # whose lists of words may differ
    named = [
        frame.select(columns)
        .with_columns(coded.cast(polars.String))
        .with_columns(*(polars.lit(None).alias(column) for column in void[name]), polars.lit(name).alias(client))
        for name, frame in frames.items()
    ]
    try:
        return polars.concat(named, how="vertical_relaxed")
    except polars.exceptions.PolarsError:
        for column in columns:
            kinds = {name: str(frame[column].dtype) for name, frame in frames.items()}
            words = [name for name, kind in kinds.items() if kind == "String"]
            if words and len(words) < len(kinds):
                word = frames[words[0]][column].drop_nulls()
                raise DataError(
                    f"column {column!r} holds numbers, and words in {words[0]}, such as {word[0]!r}; correct it there"
                ) from None
        raise DataError(f"the columns of {', '.join(frames)} are not of the same kinds") from None


def row_of_client(frames: Mapping[Any, Any], part: str = "") -> Place:
    """The places of the rows of {client: DataFrame}, of the part named, in the table that is joined of them."""

    def of(row: int) -> str:
        for name, frame in frames.items():
            if row < len(frame):
                return f"{by_number(row)} of {name}{part and f', {part}'}"
            row -= len(frame)
        return by_number(row)

    return of


def _test_part(test: object, rows: GivenExamples, roles: Roles, own_test: bool) -> GivenExamples:
    """The examples of a test part that is given by itself, of the same columns as these rows."""
    known = getattr(test, "columns", getattr(test, "column_names", ()))
    whose, who = (column if column in known else None for column in (roles.client, roles.patient))
    whose = roles.client if own_test else whose
    if rows.columns and known is not None and len(known):
        for one in roles.targets:
            check_column(known, one, "test", "labels")
    held_out = _rows(test, replace(roles, client=whose, patient=who, ignored=(), inputs=rows.columns), ", test")
    _check_named_alike(rows, held_out)
    return held_out


def _cut_in_time(
    data: Any, rows: GivenExamples, rule: Latest, fraction: float
) -> tuple[GivenExamples, GivenExamples, tuple[str, ...]]:
    """The rows before and after a cut in time, and sentences on it.

    Raises:
        DataError: If there are test rows already, times are missing or none, or as in `unskew.data.latest.cut`.
    """
    if rows.test is not None:
        raise DataError("the data have a test part of their own, so none is cut off by time; leave test out")
    when = rows.when if rows.when is not None else _times(data, rows, rule)
    patients = None if rows.patients is None else coded((rows.patients, rows.clients))[0]
    parts = cut(rule, when, fraction, rows.clients, patients)
    if parts.refusal:
        raise DataError(parts.refusal)
    rows = replace(rows, when=when)
    return rows.take(np.flatnonzero(parts.train)), rows.take(np.flatnonzero(parts.test)), parts.doubts


def cut_of(frame: Any, rule: Latest, client: str | None, patient: str | None, fraction: float = TEST_FRACTION) -> Cut:
    """The rows of a table before and after a cut in time; one without a client is of a client of its own.

    Raises:
        DataError: If there is no such column, or a row has no time or names no patient.
    """
    when = moments(column_of(frame, rule.column or "", "test.latest", "dates"), rule.where)
    clients = None
    if client is not None:
        clients = ["no client" if is_gap(v) else _client_name(v) for v in column_of(frame, client, "client")]
    patients = None if patient is None else coded((_patients(frame, patient), clients))[0]
    return cut(rule, when, fraction, clients, patients)


def _times(data: Any, rows: GivenExamples, rule: Latest) -> _Array:
    """The time of each row: of a table's column, of an array beside (x, y), or of one for each client."""
    if rule.column is not None:
        return moments(column_of(data, rule.column, "test.latest", "dates"), rule.where)
    each = {"": (rule.latest, len(rows.y))}
    if isinstance(data, Mapping):
        sizes, names = Counter(rows.clients), _different(data)
        given = (
            {_client_name(name): times for name, times in rule.latest.items()}
            if isinstance(rule.latest, Mapping)
            else {}
        )
        if odd := sorted(set(given) ^ set(names.values())):
            raise DataError(f"latest must have the times of every client, as a dict like data; see {some(odd)}")
        each = {name: (given[name], sizes[name]) for name in names.values()}
    read = []
    for name, (times, n) in each.items():
        with rows_at(_row_of(name)) if name else nullcontext():
            read.append(moments(times, f"latest of client {name}" if name else "latest"))
        if len(read[-1]) != n:
            raise DataError(f"latest has {len(read[-1])} times for {n} examples{name and f' of client {name}'}")
    if len({one.dtype.kind for one in read}) > 1:
        raise DataError("latest holds dates of some clients and numbers of others; give all alike")
    return np.concatenate(read)


def _ranks(parts: Mapping[str, GivenExamples]) -> dict[str, _Array]:
    """The times of the parts' rows by their order: 0 for the earliest of all."""
    times = [of.when for of in parts.values() if of.when is not None]
    ranks = np.unique(np.concatenate(times), return_inverse=True)[1]
    return dict(zip(parts, np.split(ranks, np.cumsum([len(of) for of in times])[:-1]), strict=True))


def strangers_of(test: Sequence[str], clients: Sequence[str], column: str | None) -> str:
    """A sentence on clients whom test rows name and who have none to train on; empty if there are none.

    Args:
        test: Names of the clients that have test rows.
        clients: Of those that have training rows.
        column: Column of the clients; None if the data are no table.
    """
    known = set(clients)
    strangers = [name for name in test if name not in known]
    if not strangers:
        return ""
    more = f" ({len(strangers):,} such clients in all)" if len(strangers) > 1 else ""
    unnamed = "test=(x, y)" if column is None else f"a table without the column {column!r}"
    return (
        f"test names client {strangers[0]!r}, which has no rows to train on{more}"
        f"{did_you_mean(strangers[0], clients)} (clients: {some(clients)}); give it some, leave it out, or, if the "
        f"rows are nobody's own, give {unnamed}"
    )


def _arrays_of(
    parts: Mapping[str, GivenExamples], roles: Roles, as_words: bool, own_test: bool, test_rows_at: Place | None
) -> dict[str, _Array]:
    """The parts in the plain layout, numbers of classes as words if asked for, but for the classes' names."""
    rows, held_out = parts["train"], parts.get("test")
    arrays: dict[str, _Array] = {}
    for key, part in parts.items():
        arrays |= {f"x_{key}": part.x, f"y_{key}": part.y.astype(np.str_) if as_words else part.y}
    if rows.patients is None and held_out is not None and held_out.patients is not None:
        raise DataError("the test part names its patients and the training part does not; name them in both or in none")
    if rows.patients is not None:
        arrays |= _patients_of_parts(parts, roles.patient, roles.client, test_rows_at)
    if rows.clients is not None:
        # A client with test rows only is known by name, so that it can be refused by it.
        later = held_out.client_names if held_out is not None and own_test else ()
        clients = (*rows.client_names, *(c for c in later if c not in rows.client_names))
        number = {client_name: i for i, client_name in enumerate(clients)}
        arrays["client_train"] = np.array([number[c] for c in rows.clients], np.int64)
        arrays["clients"] = names_array(clients, "clients")
        if held_out is not None and own_test:
            if held_out.clients is None:
                lacking = "as {client: (x, y)}" if roles.client is None else f"the column {roles.client!r}"
                raise DataError(
                    "every client's own test rows are set aside before any number is taken from the data: give the "
                    f"test part {lacking}, too, or leave test out"
                )
            arrays["client_test"] = np.array([number[c] for c in held_out.clients], np.int64)
    return arrays


def _checked(
    rows: GivenExamples, where: str, targets: Targets, rules: Preprocess | None, classes: Sequence[str] | None
) -> GivenExamples:
    """The examples with labels as classes, where they are; what is refused is named by its place in the whole table."""
    if rules is not None and rows.table is not None:
        check_gaps(rules, rows.table)
    if targets.classes:
        given = replace(rows, y=_classes_of(where, rows.y), truths=_are_truths(rows.y))
        _check_named(given, classes, where)
        return given
    try:
        targets.read(where, rows.y)
    except RowError as error:
        raise DataError(f"{where}: the target of {place(error.row)} {error.what}") from None
    except DataError:
        pass  # of all targets; said as they are stored
    return rows


def _check_clients(rows: GivenExamples, column: str | None, fraction: float | None) -> None:
    """Refuse a column that is not a column of clients."""
    if column is None:
        return
    if len(rows.client_names) == 1:
        raise DataError(
            f"column {column!r} names only one client ({rows.client_names[0]}); a federation needs at least two: name "
            "another column, or leave client out and choose a split"
        )
    most = max(Counter(rows.clients or ()).values())
    if fraction is not None and (most == 1 or int(fraction * most + 0.5) == 0):
        rows_each = "one row each" if most == 1 else f"at most {most} rows each"
        raise DataError(
            f"column {column!r} has {len(rows.client_names):,} clients with {rows_each}, so none can keep a row for "
            "testing: if it numbers rows or patients, name the column of who holds them"
        )


def check_parts(rows: GivenExamples, is_test: npt.NDArray[np.bool_], column: str | None) -> None:
    """Refuse a patient who has rows for training and for testing; the places are those of these rows.

    Raises:
        DataError: Naming the first.
    """
    if rows.patients is None:
        return
    (codes,) = coded((rows.patients, rows.clients))
    both = np.flatnonzero(~is_test & np.isin(codes, codes[is_test]))
    if len(both):
        other = int(np.flatnonzero(is_test & (codes == codes[both[0]]))[0])
        raise _in_both(rows.patients[both[0]], column, place(both[0]), place(other), len(np.unique(codes[both])))


def _where_patients(column: str | None) -> str:
    """Words for what names the patients: a column, or else the last of (x, y, patients)."""
    return "the third array" if column is None else f"column {column!r}"


def _in_both(name: str, column: str | None, train: str, test: str, count: int) -> DataError:
    more = f" ({count:,} such patients in all)" if count > 1 else ""
    return DataError(
        f"{_where_patients(column)}: patient {name} is for training in {train} and for testing in {test}{more}, and a "
        "model that has seen somebody knows more of him or her than of others; put all rows of a patient into one "
        "part, or leave test out, and it is drawn by patient"
    )


def _patients_of_parts(
    parts: Mapping[str, GivenExamples], column: str | None, client: str | None, test_rows_at: Place | None
) -> dict[str, _Array]:
    """The codes of the patients of each part.

    Args:
        parts: The parts, by name.
        column: Column of the patients; None if there is none.
        client: Column of the clients; None if there is none.
        test_rows_at: The places of the rows of the test part; None where it is known to share no patient.

    Raises:
        DataError: If patients of the test part are not known, or are in both parts.
    """
    for part in parts.values():
        if part.patients is None or (part.clients is None and parts["train"].clients is not None):
            missing, array = (column, "patients") if part.patients is None else (client, "clients")
            raise DataError(
                f"the test rows have no {array if missing is None else f'column {missing!r}'}, so it is not known who "
                f"is in them; add {'them' if missing is None else 'it'}, or leave test out, and it is drawn by patient"
            )
    codes = coded(*((part.patients or (), part.clients) for part in parts.values()))
    if len(codes) == 2 and test_rows_at is not None:
        both = np.flatnonzero(np.isin(codes[0], codes[1]))
        if len(both):
            row = int(np.flatnonzero(codes[1] == codes[0][both[0]])[0])
            with rows_at(test_rows_at):
                where = f"{place(row)} of the test rows"
            name = (parts["test"].patients or ())[row]
            raise _in_both(name, column, place(both[0]), where, len(np.unique(codes[0][both])))
    return {f"patient_{key}": of for key, of in zip(parts, codes, strict=True)}


def _patients_alike(parts: Sequence[GivenExamples]) -> str:
    """A sentence on patients of these parts who are one but for case, accents and spaces; empty if there are none."""
    names = [name for part in parts for name in part.patients or ()]
    clients = [client for part in parts if part.patients is not None for client in part.clients or ()]
    return patients_spelt_alike(names, clients or None)


def _patients_at(rows: GivenExamples) -> dict[str, int]:
    """The number of patients of each client; of all under "", where there are no clients."""
    pairs = set(zip(rows.clients or [""] * len(rows.y), rows.patients or (), strict=True))
    return dict(Counter(client for client, _ in pairs))


def _check_patients(rows: GivenExamples, column: str | None, fraction: float) -> None:
    """Refuse a share of patients that is nobody."""
    most = max(_patients_at(rows).values(), default=0)
    if not part_of(most, fraction):
        of, share = "" if rows.clients is None else " of one client", f"{100 * fraction:g} %"
        raise DataError(
            f"{_where_patients(column)} names at most {most} patients{of}, of whom "
            f"{'a fifth' if fraction == 0.2 else share} is nobody; say which rows are for testing, as test"
        )


def _untested(rows: GivenExamples, fraction: float, own_test: bool) -> list[str]:
    """A sentence on clients that have too few patients for a test part.

    Where it is not the part that is set aside now, it is drawn later from the patients that are left.
    """

    def tested(n: int) -> int:
        return part_of(n if own_test else n - part_of(n, fraction), fraction)

    few = sorted(client for client, n in _patients_at(rows).items() if not tested(n))
    if not few or rows.clients is None:
        return []
    enough = next(n for n in itertools.count(2) if tested(n))
    have = "has" if len(few) == 1 else "have"
    return [f"{some(few)} {have} fewer than {enough} patients, so nobody is tested there"]


def _doubts(
    data: Dataset, rows: GivenExamples, rules: Preprocess | None, one_client: bool, untested_told: bool
) -> list[str]:
    """Sentences on what may not be meant, in data that a user gave: on sites and labels and, of a table, its columns.

    Clients without test rows are not named again where `untested_told`.
    """
    of_sites = doubts.of_sites(data, one_client, untested_told)
    if not rows.columns or data.inputs.kind != "table":
        return of_sites
    x, x_test = as_tensor(data.x_train).numpy(), as_tensor(data.x_test).numpy()
    train = np.ones(len(x), bool) if data.own_test is None else ~data.own_test.numpy()
    table = _table_of(rows)
    sentences = [*filter(None, [unscaled(table.columns) if rules is None else ""]), *of_sites]
    for name in table.columns:
        sentences += doubts.of_column(name, table, rules, one_client)
    if rows.patients is None:
        sentences += unnamed_patients(table.columns)
    of_train = [*x[train].T] if data.raw is None else [values[train] for values in data.raw.train.values()]
    of_test = [*x_test.T] if data.raw is None else [data.raw.test[name] for name in data.raw.train]
    repeated = copies(of_train, of_test, data.y_train.numpy()[train], data.y_test.numpy())
    return [*sentences, *filter(None, [repeated.doubt("row", len(x_test))])]


def _table_of(rows: GivenExamples) -> doubts.TrainingRows:
    """The rows as doubts are raised on them."""
    columns = (
        {str(column): rows.x[:, i] for i, column in enumerate(rows.columns)}
        if rows.table is None
        else {name: values[rows.x] for name, values in rows.table.items()}
    )
    number = {name: i for i, name in enumerate(rows.client_names)}
    owners = None if rows.clients is None else np.array([number[name] for name in rows.clients], np.int64)
    return doubts.TrainingRows(columns, [*rows.y.reshape(len(rows.y), -1).T], owners, rows.client_names)


def _counted_there(data: object, rows: GivenExamples, part: str) -> AbstractContextManager[None]:
    """A context that counts rows in their client's own arrays, where each has its own; else as before."""
    clients, numbers = rows.clients, rows.numbers
    if not isinstance(data, Mapping) or clients is None or numbers is None:
        return nullcontext()
    return rows_at(lambda row: f"{by_number(numbers[row])} of {clients[row]}{part}")


def _check_finite(rows: GivenExamples, part: str) -> None:
    """Refuse floats that are not finite, by their place at their client."""
    if rows.x.dtype.kind != "f" or rows.clients is None or rows.numbers is None:
        return
    start = 0
    for name, n in Counter(rows.clients).items():
        check_values(f"client {name}{part}", "x", rows.x[start : start + n])
        start += n


def _rows(data: Any, roles: Roles, part: str = "") -> GivenExamples:
    """The examples in `data`, one of the forms that `dataset` takes; `part` follows clients' names in messages."""
    if isinstance(data, GivenExamples):
        return data
    if isinstance(data, Mapping) and data and all(hasattr(part, "column_names") for part in data.values()):
        return _of_parts(data, roles)
    if hasattr(data, "column_names") and hasattr(data, "features"):
        return _of_hugging_face(data, roles)
    if is_lazy(data):
        raise DataError("data is a lazy frame; collect() it first")
    if _is_frame(data):
        return _of_table(data, roles)
    if any(of is not None for of in (roles.target, roles.client, roles.patient, *roles.ignored)):
        raise DataError(
            f"target, client, patient and test name columns of a table, and {_kind(data)} has none; leave them out, "
            "and for clients give {client: (x, y)}, for patients (x, y, patients), for times test=us.Latest(times)"
        )
    if isinstance(data, Dataset):
        return GivenExamples(data.name, as_tensor(data.x_test).numpy(), data.y_test.numpy(), classes=data.classes)
    if isinstance(data, Mapping):
        return _of_clients(data, roles, part)
    if isinstance(data, DataLoader | IterableDataset):
        raise DataError(
            f"{_kind(data)} has no fixed examples; give a data set with a length, such as the loader's .dataset"
        )
    if isinstance(data, TorchDataset):
        return _of_torch(data)
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        return _of_arrays(data, "data", roles)
    call = f"; call it, data={data.__name__}(...)" if callable(data) and hasattr(data, "__name__") else ""
    raise DataError(f"data must be {FORMS}; got {_kind(data)}{call}")


def _kind(data: object) -> str:
    if isinstance(data, np.ndarray | torch.Tensor):
        return f"one array of shape {tuple(data.shape)}"
    if isinstance(data, tuple | list):
        return f"{with_article(type(data).__name__)} of {len(data)}"
    return with_article(type(data).__name__)


# ---------------------------------------------------------------- arrays
def _of_arrays(arrays: Any, place: str, roles: Roles) -> GivenExamples:
    """Examples from (x, y) or (x, y, patients), of equal lengths; a DataFrame's columns as in `_of_table`."""
    if not isinstance(arrays, tuple | list) or len(arrays) not in (2, 3):
        raise DataError(f"{place} must be (x, y), or (x, y, patients), got {_kind(arrays)}")
    table, frame, columns = None, arrays[0], ()
    check_frame(frame, f"x of {place}")
    if hasattr(frame, "columns") and (roles.raw or not _is_text(frame)):
        columns = _found(frame, roles.inputs or tuple(frame.columns))
        x, table = _read_columns(frame, columns, roles.raw)
    else:
        x = _inputs(frame[frame.columns[0]] if hasattr(frame, "columns") else frame, f"x of {place}")
    y = _labels(arrays[1], f"y of {place}")
    if x.ndim == 0 or len(x) != len(y):
        raise DataError(f"{place}: x has {len(x) if x.ndim else 0} examples, y has {len(y)} labels")
    for name, other in zip(("y", "patients"), arrays[1:], strict=False):
        _check_index(frame, other, name, place)
    given = GivenExamples("arrays", x, y, columns=columns, table=table, order=order_of(arrays[1]))
    if len(arrays) == 2:
        return given
    where = f"the third array of {place}"
    patients = _labels(arrays[2], where)
    if patients.shape != (len(y),):
        raise DataError(f"{where} must name one patient for each of {len(y)} examples, got shape {patients.shape}")
    return replace(given, patients=names_of_patients(patients.tolist(), where))


def _check_index(x: Any, other: Any, name: str, place: str) -> None:
    """Refuse what stands beside `x` under other labels of rows: that rows belong together by position is a guess then.

    Rows that are numbered from 0 have no labels, unless the other's are these numbers in another order, or numbers in
    equal steps: those are rather two slices of one table than rows that were numbered anew.

    Raises:
        DataError: If the labels differ.
    """
    mine: Any = getattr(x, "index", None)
    its: Any = getattr(other, "index", None)
    if not (hasattr(mine, "equals") and hasattr(its, "equals")) or len(mine) != len(its) or mine.equals(its):
        return
    same = set(mine) == set(its)
    numbered = any(np.array_equal(np.asarray(index), np.arange(len(index))) for index in (mine, its))
    if numbered and not same and not (_in_steps(mine) and _in_steps(its)):
        return
    one_of = next((tuple(map(plain_value, two)) for two in zip(mine, its, strict=True) if two[0] != two[1]), None)
    if one_of is None:  # alike but for their types
        return
    differ = "the labels of that of x in another order" if same else "other labels than that of x"
    way = f"{name}.loc[x.index], or both with" if same else "both with"
    raise DataError(
        f"{place}: the index of {name} has {differ} ({one_of[1]!r} beside {one_of[0]!r}), and rows are paired by "
        f"position; give {way} .reset_index(drop=True) if they are in one order"
    )


def _in_steps(index: Any) -> bool:
    """True for the labels of a slice of a table whose rows are numbered: whole numbers, each as far from the next."""
    labels = np.asarray(index)
    return labels.dtype.kind in "iu" and len(np.unique(np.diff(labels))) <= 1


def _is_text(frame: Any) -> bool:
    """True for one column alone, of texts."""
    return len(frame.columns) == 1 and _begins_with_text(frame[frame.columns[0]])


def _inputs(values: Any, place: str) -> _Array:
    """Inputs of one client or of all: texts as objects, or numbers."""
    listed = values.to_list() if hasattr(values, "to_list") else values
    if isinstance(listed, np.ndarray) and listed.dtype.kind in "OU" and listed.ndim == 1:
        listed = listed.tolist()
    if isinstance(listed, list | tuple):
        check_no_files(listed, place)
    if not isinstance(listed, list | tuple) or not _begins_with_text(listed):
        return _array(values, place)
    for i, text in enumerate(listed):
        if not isinstance(text, str):
            raise DataError(f"{place} holds texts, and {text!r} in row {i}; give a text, or leave the row out")
    texts = np.empty(len(listed), object)
    texts[:] = listed
    return texts


def _begins_with_text(values: Iterable[Any]) -> bool:
    """True if the first value that is there is a text."""
    return isinstance(next((value for value in values if not is_gap(value)), None), str)


def _array(values: Any, place: str) -> _Array:
    """An array of numbers."""
    if isinstance(values, torch.Tensor):
        plain = values.detach().cpu()
        return np.asarray((plain.float() if plain.dtype == torch.bfloat16 else plain).numpy())
    if hasattr(values, "toarray"):
        raise DataError(f"{place} is a sparse matrix; give {place}.toarray()")
    try:
        array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    except (TypeError, ValueError) as error:
        raise DataError(f"{place} is not an array of numbers: {' '.join(str(error).split())}") from None
    if array.dtype.kind not in "fiub":
        check_no_files(array.reshape(-1).tolist(), place)
        raise DataError(f"{place} must hold numbers, got {array.dtype} of shape {array.shape}")
    return array


def _labels(values: Any, place: str) -> _Array:
    """Labels (N,), numbers or words; or a row of several numbers for each example."""
    if isinstance(values, torch.Tensor):
        labels = _array(values, place)
    else:
        if isinstance(values, list | tuple):
            check_words(values, place)
            if any(isinstance(value, str) for value in values):  # an array of words would make a word of a gap
                for i, value in enumerate(values):
                    if is_gap(value):
                        raise DataError(f"{place}: the label of row {i} is missing; leave the row out")
        labels = column_values(values)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    return labels


def _classes_of(name: str, labels: _Array) -> _Array:
    """Labels as words or whole numbers, as in the plain layout: booleans are words, whole floats are numbers."""
    if labels.ndim != 1:
        raise DataError(
            f"{name}: y must hold one label per example, got shape {labels.shape}; for one-hot labels give argmax(1), "
            "for several labels an example task.kind = 'multi_label'"
        )
    if labels.dtype.kind == "i":
        return labels.astype(np.int64)
    plain = labels.tolist()
    for i, label in enumerate(plain):
        if label is None or not isinstance(label, str | bool | int | float) or label != label:
            if kind := kind_of_time(label)[0]:
                raise DataError(f"{name}: the label of {place(i)} is a {kind}; labels are words or whole numbers")
            raise DataError(f"{name}: the label of {place(i)} is missing; leave the row out")
        if isinstance(label, float) and not label.is_integer():
            raise DataError(
                f"{name}: the label of {place(i)} is {label:g}; labels are classes: words or whole numbers, unless the "
                "task is regression"
            )
    words = [isinstance(label, str | bool) for label in plain]
    check_words(plain, name)
    if any(words) and not all(words):
        raise DataError(f"{name}: some labels are words and some are numbers; make them all one or the other")
    if any(words):
        return np.array([composed(str(label)) for label in plain])
    for i, label in enumerate(plain):
        if not -(2**63) <= label < 2**63:
            raise DataError(
                f"{name}: the label of {place(i)} is {label}, which no 64-bit whole number holds; give such labels as "
                "words, in pandas with astype(str)"
            )
    return np.array([int(v) for v in plain], np.int64)


def _check_named(rows: GivenExamples, classes: Sequence[str] | None, where: str) -> None:
    """Refuse a word that is none of the classes that are named, by its row.

    Raises:
        DataError: If there is one.
    """
    if classes is None or rows.y.dtype.kind != "U":
        return
    unknown = np.flatnonzero(~np.isin(rows.y, classes))
    if len(unknown):
        word = str(rows.y[unknown[0]])
        nearest = did_you_mean(word, classes)
        raise DataError(f"{where} is {word!r} in {place(unknown[0])}, none of the {len(classes)} classes{nearest}")


def _check_target(rows: GivenExamples, column: str, targets: Targets) -> None:
    """Refuse a column of a table that cannot be the target.

    Raises:
        DataError: If it has no value, dates or times; or, for classes, text or one value; or, for numbers, words.
    """
    values = [value for value in rows.y.tolist() if not is_gap(value)]
    called = f"column {column!r}, the target,"
    if not values:
        raise DataError(f"{called} has no value in any row; name another column")
    if all(kind_of_time(value)[0] for value in values):
        kind, numbers = kind_of_time(values[0])
        first = values[0].astype("timedelta64[us]").item() if isinstance(values[0], np.timedelta64) else values[0]
        several = "dates" if kind == "date" else kind.replace(" ", "s ", 1)
        raise DataError(
            f"{called} holds {several}, such as {str(first)!r}; make numbers of them, {numbers}, or name another column"
        )
    known = set(values)
    many = len(known) > doubts.MOST_CLASSES and 2 * len(known) > len(values) and rows.classes is None
    if (many or not targets.classes) and all(map(is_clock, values)):
        raise DataError(
            f"{called} holds spans of time or times of day in words, such as {values[0]!r}; make numbers of them, such "
            "as hours, or name another column"
        )
    if not targets.classes:
        spoken = next((value for value in values if isinstance(value, str)), None)
        if spoken is None:
            return
        raise DataError(
            f"{called} holds words, such as {spoken!r}, and the task learns {targets.what}; correct them, name another "
            "column, or choose classification"
        )
    if many:
        words = any(isinstance(value, str) for value in known)
        raise DataError(
            f"{called} holds {len(known):,} different {'words' if words else 'numbers'} in {len(values):,} rows, such "
            f"as {values[0]!r}, and a class is what many rows share; "
            f"{'' if words else 'set task.kind = regression, '}group them, or name another column"
        )
    if len(known) == 1 and rows.classes is None and rows.clients is not None:
        raise DataError(
            f"{called} is {values[0]!r} in all {len(values):,} rows, so there is nothing to learn; name another column"
        )


def _code_names(
    labels: Sequence[_Array], rows: GivenExamples, classes: tuple[str, ...] | None, one_client: bool
) -> tuple[str, ...] | None:
    """Names of classes that are numbers other than 0, 1, ..., of a table or listed; None where numbers are an order.

    One client's numbers need not be all: only a negative one tells for sure that they are names.
    """
    if (not rows.columns and classes is None) or any(y.dtype.kind == "U" for y in labels):
        return None
    if classes is not None:
        return classes if all(re.fullmatch("0|-?[1-9][0-9]*", name) for name in classes) else None
    known = np.unique(np.concatenate(labels))
    if rows.classes is not None or (known == np.arange(len(known))).all() or (one_client and known[0] >= 0):
        return None
    return tuple(map(str, known.tolist()))


def _are_truths(labels: _Array) -> bool:
    """True if all labels are true or false, not words for it."""
    return labels.dtype.kind == "b" or (
        labels.dtype.kind == "O" and labels.ndim == 1 and all(isinstance(label, bool) for label in labels.tolist())
    )


def _label_type(code_names: Sequence[str] | None, declared: Sequence[str] | None, truths: bool) -> LabelType | None:
    """The type of labels that are written as `code_names` or are truths; None leaves it to how they are kept.

    Classes that are declared may have other names than the labels that are there: all are words then.
    """
    label_type: LabelType | None = "integer" if code_names else "boolean" if truths else None
    names = code_names or declared or ()
    return label_type if label_type is None or not mislabelled(names, label_type) else None


def _label_names(target: str | Sequence[str] | None, targets: Targets) -> tuple[str, ...] | None:
    """The columns of the target as names of a network's outputs, where it has one for each; None elsewhere."""
    several = () if target is None or isinstance(target, str) else tuple(target)
    return several if len(several) > 1 and len(targets.outputs(len(several))) == len(several) else None


def _row_of(client: str) -> Place:
    return lambda row: f"{by_number(row)} of {client}"


def _of_clients(data: Mapping[Any, Any], roles: Roles, part: str = "") -> GivenExamples:
    """Examples from {client: (x, y)} or {client: (x, y, patients)}, clients in the order given; `part` as for `_rows`.

    Raises:
        DataError: If a client has none, or they do not go together.
    """
    if not data:
        raise DataError("data is {} and has no client; give {client: (x, y)}")
    names = _different(data)
    of = {}
    for name, arrays in data.items():
        with rows_at(_row_of(f"{names[name]}{part}")):
            of[names[name]] = _of_arrays(arrays, f"client {name}{part}", roles)
    first, *_ = of
    for name, its in of.items():
        shape, shape_of_first = its.x.shape[1:], of[first].x.shape[1:]
        if shape != shape_of_first:
            raise DataError(f"examples of client {name} have shape {shape}, those of client {first} {shape_of_first}")
        if len(its.y) == 0:
            raise DataError(f"client {name}{part} has no examples; leave it out")
        if (its.patients is None) != (of[first].patients is None):
            with_them, without = (name, first) if of[first].patients is None else (first, name)
            raise DataError(f"client {with_them} names its patients and client {without} does not; name all or none")
        if bool(its.columns) != bool(of[first].columns):
            with_them, without = (name, first) if its.columns else (first, name)
            raise DataError(
                f"the columns of client {with_them} have names and those of client {without} have none; give both as "
                "DataFrames"
            )
        _check_alike(first, of[first], name, its)
    _check_columns({name: its.columns for name, its in of.items() if its.columns})
    clients = [name for name, its in of.items() for _ in range(len(its.y))]
    patients = [who for its in of.values() for who in its.patients or ()]
    x, y = (np.concatenate(part) for part in ([its.x for its in of.values()], [its.y for its in of.values()]))
    table = None
    if tables := [its.table for its in of.values() if its.table is not None]:
        table = {c: raw_column(np.concatenate([t[c].astype(object) for t in tables]), c) for c in tables[0]}
        x = np.arange(len(y))
    numbers = np.concatenate([np.arange(len(its.y)) for its in of.values()])
    return GivenExamples(
        "arrays",
        x,
        y,
        clients,
        tuple(of),
        patients or None,
        columns=of[first].columns,
        table=table,
        numbers=numbers,
        order=_order_at_clients("y", {names[name]: arrays[1] for name, arrays in data.items()}),
    )


def _different(data: Mapping[Any, Any]) -> dict[Any, str]:
    """The clients' names as text; two that are written alike are refused."""
    names: dict[str, Any] = {}
    for name in data:
        if (twin := names.setdefault(_client_name(name), name)) is not name:
            raise DataError(f"clients {twin!r} and {name!r} have one name when written out; rename one of them")
    return {name: text for text, name in names.items()}


def _check_columns(columns: Mapping[str, Any]) -> None:
    """Refuse clients' frames whose columns are others, or stand in another order."""
    named = {client: [str(column) for column in of] for client, of in columns.items()}
    first = next(iter(named), "")
    for client, of in named.items():
        if odd := sorted(set(of) ^ set(named[first])):
            raise DataError(f"the tables of clients {first} and {client} differ in columns: {', '.join(odd)}")
        for i, (one, other) in enumerate(zip(of, named[first], strict=True)):
            if one != other:
                raise DataError(
                    f"column {i} of client {client} is {one!r}, and of client {first} {other!r}; give all clients the "
                    "same columns in one order"
                )


def client_arrays(data: Mapping[Any, Any]) -> dict[str, _Array] | None:
    """All rows of {client: (x, y)} in the plain layout, none set aside; None if they are of another form.

    Raises:
        DataError: If a client has no examples, or clients do not go together.
    """
    if not all(isinstance(pair, tuple | list) for pair in data.values()):
        return None
    rows = _of_clients(data, Roles())
    if rows.y.ndim != 1:
        return None
    number = {name: i for i, name in enumerate(rows.client_names)}
    owners = np.array([number[name] for name in rows.clients or ()], np.int64)
    plain = rows.y.dtype.kind in "biu"
    y = rows.y if plain or rows.y.dtype.kind == "f" else _classes_of(rows.name, rows.y)
    return {
        "x_train": rows.x,
        "y_train": y,
        "client_train": owners,
        "clients": names_array(rows.client_names, "clients"),
        **({} if rows.patients is None else {"patient_train": coded((rows.patients, rows.clients))[0]}),
        **({"features": names_array(tuple(map(str, rows.columns)), "features")} if rows.columns else {}),
    }


def _check_alike(first: str, of_first: GivenExamples, name: str, of_name: GivenExamples) -> None:
    """Refuse two clients whose inputs or labels are of different kinds, which one array would hide.

    Whole numbers beside others are refused where they are bytes or images: one client's pixels then reach from 0 to
    255 and another's, in all likelihood, from 0 to 1.
    """
    x, y, x_name, y_name = of_first.x, of_first.y, of_name.x, of_name.y
    if (x.dtype.kind == "O") != (x_name.dtype.kind == "O"):
        raise DataError(f"one of the clients {first} and {name} has texts and the other numbers; give all the same")
    if (x.dtype.kind == "f") != (x_name.dtype.kind == "f") and (x.ndim > 2 or np.uint8 in (x.dtype, x_name.dtype)):
        raise DataError(
            f"examples of client {first} are {_range(x)}, those of client {name} {_range(x_name)}; bring "
            "all to one scale"
        )
    kinds, kinds_name = _kinds(y), _kinds(y_name)
    if len(kinds) == len(kinds_name) == 1 and kinds != kinds_name:
        (one,), (other,) = kinds, kinds_name
        raise DataError(
            f"labels of client {first} are {one}, such as {y.flat[0]}, those of client {name} {other}, such as "
            f"{y_name.flat[0]}; write them alike"
        )


def _range(x: _Array) -> str:
    what = "numbers" if x.dtype.kind == "f" else "whole numbers"
    return f"{what} ({x.dtype}) from {x.min():g} to {x.max():g}" if x.size else f"{what} ({x.dtype})"


def _kinds(labels: _Array) -> set[str]:
    """The kinds of labels, missing ones left out."""
    if labels.dtype.kind != "O":
        return {{"b": "true or false", "U": "words"}.get(labels.dtype.kind, "numbers")}
    return {
        "words" if isinstance(label, str) else "true or false" if isinstance(label, bool | np.bool_) else "numbers"
        for label in labels.flat
        if not is_gap(label)
    }


# ---------------------------------------------------------------- tables
def _of_table(frame: Any, roles: Roles) -> GivenExamples:
    """Examples from a DataFrame: every column except labels, clients and patients is a measurement."""
    patients, left = _beside(frame, frame.columns, roles)
    columns = _found(frame, roles.inputs or left)
    client, several = roles.client, list(roles.targets)
    clients, names = (None, ()) if client is None else owners_of(column_values(frame[client]).tolist(), client)
    labels = _labels(frame[several if len(several) > 1 else several[0]], f"column {roles.target!r}")
    x, table = _read_columns(frame, columns, roles.raw)
    order = () if len(several) > 1 else order_of(frame[several[0]])
    return GivenExamples("dataframe", x, labels, clients, names, patients, columns=columns, table=table, order=order)


def _beside(data: Any, columns: Any, roles: Roles) -> tuple[list[str] | None, tuple[Any, ...]]:
    """The patient of each row, if that is known, and the columns that are left to be inputs.

    Raises:
        DataError: If a column is missing, or none is left.
    """
    for name in roles.targets:
        check_column(columns, name, "target", "labels")
    if roles.client is not None:
        check_column(columns, roles.client, "client", "clients")
    patients = None if roles.patient is None else _patients(data, roles.patient)
    taken = (*roles.targets, roles.client, roles.patient, *roles.ignored)
    left = tuple(column for column in columns if column not in taken)
    if not left and not roles.inputs:
        also = f" and {roles.client!r}" if roles.client else ""
        raise DataError(f"no column is left to learn from beside {roles.target!r}{also}")
    return patients, left


def check_frame(frame: Any, what: str) -> None:
    """Refuse a table of which nothing can be read; anything else than a table passes.

    Raises:
        DataError: If it is lazy, has no columns or no rows, or has two columns of one name.
    """
    if is_lazy(frame):
        raise DataError(f"{what} is a lazy frame; collect() it first")
    if not _is_frame(frame):
        return
    times = Counter(map(str, frame.columns))
    if not times or len(frame) == 0:
        raise DataError(f"{what} has no {'rows' if times else 'columns'}")
    name, count = times.most_common(1)[0]
    if count > 1:
        raise DataError(f"{what}: there are {count} columns {name!r}; rename or remove all but one")


def _found(frame: Any, columns: tuple[Any, ...]) -> tuple[Any, ...]:
    """These columns, all of which the table has, each once.

    Raises:
        DataError: If it lacks one, or has two of one name.
    """
    known, times = set(frame.columns), Counter(map(str, frame.columns))
    for column in columns:
        if column not in known:
            check_column(frame.columns, column, "test", "a measurement")
        if times[str(column)] > 1:
            raise DataError(f"there are {times[str(column)]} columns {str(column)!r}; rename or remove all but one")
    return columns


def _read_columns(frame: Any, columns: tuple[Any, ...], raw: bool) -> tuple[_Array, RawTable | None]:
    """Columns as floats (N, columns); or, `raw`, the rows' numbers, and the columns as they are."""
    if not raw:
        return _measurements(frame, columns), None
    table = {str(column): raw_column(frame[column], column) for column in columns}
    for column, values in table.items():
        check_words(values, f"column {column!r}")
        check_size(values, column)
    return np.arange(len(frame)), table


def _check_named_alike(rows: GivenExamples, held_out: GivenExamples) -> None:
    """Refuse test inputs whose columns have names where those of training have none, or the other way.

    Raises:
        DataError: If one has and the other has not.
    """
    if bool(rows.columns) != bool(held_out.columns):
        one, other = ("data", "test") if rows.columns else ("test", "data")
        raise DataError(
            f"the columns of {one} have names and those of {other} have none, so that they cannot be matched; give "
            "both as DataFrames, or neither"
        )


def _patients(table: Any, column: str) -> list[str]:
    """The patient of each row of a table or of a Hugging Face dataset.

    Raises:
        DataError: If there is no such column, or a row names nobody.
    """
    values = column_of(table, column, "patient", "patients")
    return names_of_patients(values, f"column {column!r}")


def column_of(data: Any, name: str, setting: str, holds: str = "test rows") -> list[Any]:
    """The values of a column of a table or of a Hugging Face dataset.

    Raises:
        DataError: If there is no such column.
    """
    known = list(data.column_names if hasattr(data, "column_names") else getattr(data, "columns", ()))
    check_column(known, name, setting, holds)
    column = data[name]
    return list(column.to_list() if hasattr(column, "to_list") else column)


_WORDS = {True: True, False: False, "true": True, "false": False, "test": True, "train": False, "1": True, "0": False}
_WORDS |= dict.fromkeys(("yes", "oui", "vrai", "ja", "wahr"), True)  # as Excel writes truths elsewhere
_WORDS |= dict.fromkeys(("no", "non", "faux", "nein", "falsch"), False)


def truths(values: Sequence[Any], column: str) -> npt.NDArray[np.bool_]:
    """True for test rows, by a column that says so.

    Raises:
        DataError: If a value is neither true nor false, or all are the same.
    """
    flags = []
    for i, value in enumerate(values):
        key = value.strip().lower() if isinstance(value, str) else value
        if not isinstance(key, bool | int | float | str | np.bool_) or key not in _WORDS:
            raise DataError(
                f"column {column!r} must say test or train, true or false, yes or no, or 1 or 0, got {value!r} in "
                f"{place(i)}"
            )
        flags.append(_WORDS[key])
    is_test = np.array(flags, bool)
    if is_test.all() or not is_test.any():
        raise DataError(f"column {column!r} calls {'all' if is_test.all() else 'none'} of the rows test rows")
    return is_test


def check_column(columns: Any, name: object, setting: str, holds: str = "values") -> None:
    """Refuse a setting that does not name a column.

    Raises:
        DataError: If it is missing, or there is no such column.
    """
    known = [str(column) for column in columns]
    some = f"columns: {', '.join(known[:8])}" + (f" and {len(known) - 8} more" if len(known) > 8 else "")
    if name is None:
        raise DataError(f"{setting} must name the column of the {holds}, as in {setting}={known[-1]!r} ({some})")
    if name not in list(columns):
        if name in known:
            raise DataError(
                f"{setting}: column {name} is called by a number and not by a word; rename the columns, in pandas with "
                "table.columns = table.columns.astype(str)"
            )
        raise DataError(f"{setting}: there is no column {name!r}{did_you_mean(str(name), known)} ({some})")


def owners_of(values: Sequence[Any], column: str) -> tuple[list[str], tuple[str, ...]]:
    """The client of each row as a name, and all of them in order: numbers by size, others by name.

    A number is its own name, 1.0 that of 1, which a column with gaps has made of it.
    """
    for i, value in enumerate(values):
        if is_gap(value) or not isinstance(value, str | int | float) or not str(value).strip():
            if kind := kind_of_time(value)[0]:
                raise DataError(
                    f"column {column!r} must name clients by words or numbers, and holds a {kind} in {place(i)}; name "
                    "another column"
                )
            raise DataError(f"column {column!r} names no client in {place(i)}; fill it, or leave the row out")
    check_words(values, f"column {column!r}")
    names = list(map(_client_name, values))
    numbers = all(re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", name) for name in set(names))
    return names, tuple(sorted(set(names), key=lambda name: (float(name) if numbers else 0, name)))


def _client_name(value: Any) -> str:
    return composed(str(int(value) if isinstance(value, float) and value.is_integer() else value))


def _measurements(frame: Any, columns: tuple[Any, ...]) -> _Array:
    """Columns of numbers as floats (N, columns)."""
    if coded := [str(column) for column in columns if is_category(frame[column]) and _all_numbers(frame[column])]:
        are, them = ("is a category", "it") if len(coded) == 1 else ("are categories", "them")
        warn(
            f"column{'s' * (len(coded) > 1)} {some(coded)} {are} of numbers, and taken as numbers: preprocess makes "
            f"0/1 columns of {them}",
        )
    return np.column_stack([_measurement(column_values(frame[column]), column) for column in columns])


def _all_numbers(column: Any) -> bool:
    return all(isinstance(value, int | float) for value in column.cat.categories.tolist())


def _measurement(values: Any, column: object) -> _Array:
    array = np.asarray(values)
    if array.ndim != 1:
        raise several_values(column)
    if array.dtype.kind not in "fiub":
        for i, value in enumerate(array.tolist()):
            if isinstance(value, str) and not is_date(value):
                raise DataError(
                    f"column {column!r} holds words, such as {str(value)!r} in {place(i)}; make numbers of them, "
                    "which preprocess does, or leave the column out"
                )
            if not is_gap(value) and not isinstance(value, bool | int | float):
                raise no_number(column, i, value)
        array = np.array([v if isinstance(v, bool | int | float) else np.nan for v in array.tolist()], np.float64)
    array = array.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(array))
    if np.isnan(array).all():
        raise DataError(f"column {column!r} has no value in any row; leave it out")
    if len(bad):
        wrong = "is infinite" if np.isinf(array[bad[0]]) else "has no value"
        way = "correct it" if np.isinf(array[bad[0]]) else "fill it, which preprocess does"
        raise DataError(f"column {column!r} {wrong} in {place(bad[0])}; {way}, or leave the row out")
    return array


# ---------------------------------------------------------------- data sets of other libraries
def _of_torch(data: Any) -> GivenExamples:
    """Examples from a torch Dataset of (input, label) pairs; each item is read, and any transform drawn, once."""
    inputs, labels = [], []
    for i in range(len(data)):
        item = data[i]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"item {i} of {type(data).__name__} must be a pair (input, label), got {_kind(item)}")
        inputs.append(np.asarray(item[0]) if hasattr(item[0], "convert") else _array(item[0], f"the input of item {i}"))
        labels.append(item[1].item() if isinstance(item[1], torch.Tensor | np.generic) else item[1])
        if inputs[i].shape != inputs[0].shape:
            raise DataError(
                f"item {i} of {type(data).__name__} has shape {inputs[i].shape}, item 0 has {inputs[0].shape}; bring "
                "all to one size"
            )
    if not inputs:
        raise DataError(f"{type(data).__name__} holds no examples, at least 1 is needed")
    check_words(labels, type(data).__name__)
    names = getattr(data, "classes", getattr(getattr(data, "dataset", None), "classes", None))
    classes = tuple(map(str, names)) if isinstance(names, list | tuple) and names else None
    return GivenExamples(type(data).__name__, np.stack(inputs), np.array(labels), classes=classes)


def _of_parts(parts: Mapping[str, Any], roles: Roles) -> GivenExamples:
    """Examples from the parts "train" and "test" of a DatasetDict."""
    if "train" not in parts:
        raise DataError(
            f'the data have the parts {", ".join(parts)}; give one of them, or a dict with "train" and "test"'
        )
    rows = _of_hugging_face(parts["train"], roles)
    if "test" not in parts:
        return rows
    if not roles.raw and roles.patient is None and roles.client not in parts["test"].column_names:
        roles = replace(roles, client=None)
    return replace(rows, test=_of_hugging_face(parts["test"], roles))


def _of_hugging_face(part: Any, roles: Roles) -> GivenExamples:
    """Examples from a Hugging Face dataset: its image column, or else all its columns of numbers."""
    target, client = roles.target, roles.client
    check_column(part.column_names, target, "target", "labels")
    patients, left = _beside(part, part.column_names, roles)
    images = [name for name in left if _holds_images(part, name)]
    if len(images) > 1:
        raise DataError(f"{', '.join(images)} all hold images; leave one, with remove_columns")
    table = None
    if images:
        x: _Array = hub.images(part[images[0]], None, "data", images[0])
    elif roles.raw:
        table = {name: raw_column(np.array(list(part[name]), object), name) for name in left}
        for name, values in table.items():
            check_words(values, f"column {name!r}")
        x = np.arange(len(part[left[0]]))
    else:
        x = np.column_stack([_measurement(np.array(list(part[name]), object), name) for name in left])
    clients, known = (None, ()) if client is None else owners_of(_values(part, client), str(client))
    own = getattr((getattr(part, "features", None) or {}).get(target), "names", None)
    labels = np.array(_values(part, target), dtype=object)
    classes = None if own is None else tuple(map(str, own))
    columns = () if images else left
    return GivenExamples("dataset", x, labels, clients, known, patients, classes, columns, table=table)


def _values(part: Any, name: str | None) -> list[Any]:
    return [value.item() if hasattr(value, "item") else value for value in part[name]]


def _holds_images(part: Any, name: str) -> bool:
    first = next(iter(part[name]), None)
    return hasattr(first, "convert") or (isinstance(first, np.ndarray | torch.Tensor | list) and np.ndim(first) >= 2)
