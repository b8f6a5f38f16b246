"""Turns the user's data into a `Dataset`: arrays, tables, PyTorch's and Hugging Face's data sets.

    (x, y)                      NumPy arrays, tensors or lists; x may be a list or column of texts, or a DataFrame
    (x, y, patients)            the same with who is in each example, in words or whole numbers
    {client: (x, y)}            one of these for each client; the clients' names are kept
    a DataFrame                 of pandas or Polars; `target` names the column of labels, `client` that of clients
    {client: a DataFrame}       the same columns at all clients; one table is made of them
    a torch Dataset             of (input, label) pairs, the same whenever they are read
    a Hugging Face dataset      or a DatasetDict with "train" and "test"; columns as of a DataFrame
    a `Dataset`                 what `unskew.load` returns, as it is

Everything is brought into the plain layout of `unskew.data.sources`, whose rules for files hold here too: images of
whole numbers 0..255 are standardised per channel with constants of the training part, floats stay as they are, whole
numbers in two dimensions are token ids, labels may be words.  Columns of a table are measurements: they become floats
and are not scaled, unless a preprocessing (`unskew.data.preprocess`) says what becomes of them.  No library but PyTorch
is imported here but the one whose frames were given: tables are recognised by their methods.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from unskew.data import checks
from unskew.data.arrays import from_arrays
from unskew.data.columns import composed_names, composed_test, with_composed_columns
from unskew.data.dataset import Dataset
from unskew.data.images import as_tensor
from unskew.data.inputs import Column, Inputs, check_values, is_lazy
from unskew.data.latest import Latest, check_gap
from unskew.data.own.arrays import of_arrays
from unskew.data.own.classes import (
    are_truths,
    by_name,
    check_named,
    check_named_alike,
    check_target,
    classes_of,
    label_name,
    label_names,
    names_of_codes,
    one_order,
    type_of_labels,
)
from unskew.data.own.clients import of_clients
from unskew.data.own.frames import categories_in, check_column, column_of, is_frame, of_table
from unskew.data.own.given import GivenExamples, Roles, check_names, share_of
from unskew.data.own.libraries import of_hugging_face, of_parts, of_torch
from unskew.data.own.parts import (
    check_clients,
    check_parts,
    check_patients,
    cut_in_time,
    patients_of_parts,
    ranks_in_time,
    strangers_of,
    untested_clients,
)
from unskew.data.own.values import Array, truths, type_name
from unskew.data.patients import PatientIds
from unskew.data.places import Place, by_number, place, rows_at
from unskew.data.preprocess import Preprocess, check_gaps
from unskew.errors import DataError
from unskew.keys import Key
from unskew.tasks.targets import CLASS, RowError, Targets
from unskew.words import composed, some

FORMS = (
    "(x, y) or (x, y, patients), a pandas or Polars DataFrame, {client: one of these}, a torch Dataset, a Hugging Face "
    "dataset, what us.load returns, or a name"
)


def dataset(
    data: object,
    *,
    target: str | Sequence[str] | None = None,
    client: str | None = None,
    patient: str | None = None,
    patient_ids: PatientIds | None = None,
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
        patient_ids: Whose the patients' names are, the "network"'s, each one person, or each "site"'s own; asked for
            where a name occurs at several clients.
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
        DataError: If the form is unknown, a column is missing or not named, a patient's name occurs at several clients
            and nobody said whose it is, a label is not a class, an input is not a number, or the data do not pass
            `unskew.data.dataset.checked`.
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
    if rule is not None and rule.column is not None and (is_frame(data) or hasattr(data, "column_names")):
        column_of(data, rule.column, "test.latest", "dates")  # before another column is refused
    rows = _rows(data, roles)
    if classes is not None and rows.classes not in (None, classes):
        raise DataError(
            f"{rows.name} names its classes, {some(rows.classes)}, in the order of their numbers, and "
            f"task.data_options.classes others, {some(classes)}; leave those out"
        )
    ids = patient_ids or rows.patient_ids
    rows = replace(rows, name=name or rows.name, classes=classes or rows.classes, patient_ids=ids)
    if preprocess is not None and rows.table is not None:
        preprocess = preprocess.with_categories(column for column in categories_in(data) if column in rows.table)
    if rows.columns and isinstance(target, str):
        check_target(rows, target, targets)
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
        check_gap(rule, one_client or rows.clients is not None)
        rows, held_out, of_time = cut_in_time(data, rows, rule, test_fraction)
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
                    if targets.classes:
                        held_out = by_name(rows, held_out, classes)
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
        check_clients(rows, client, fraction if held_out is None and rows.patients is None else None)
    if rows.patients is not None and held_out is None:
        check_patients(rows, patient, fraction)
    parts = {"train": rows, **({} if held_out is None else {"test": held_out})}
    declared = classes
    if rows.classes is None and targets.classes:
        its = {f"in the {'training' if key == 'train' else key} part": (of.order, of.y) for key, of in parts.items()}
        if order := one_order("y" if target is None else called, its):
            occurring = {str(label) for part in parts.values() for label in np.unique(part.y).tolist()}
            declared = tuple(name for name in map(label_name, order) if name in occurring)
            rows = parts["train"] = replace(rows, classes=declared)
    code_names = (
        names_of_codes([part.y for part in parts.values()], rows, declared, one_client) if targets.classes else None
    )
    apart = column is not None or rule is not None
    arrays = _arrays_of(parts, roles, bool(code_names), own_test, None if apart else test_rows_at)
    if (names := code_names or rows.classes or label_names(target, targets)) is not None:
        arrays["classes"] = np.array(names, np.str_)
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
        when=ranks_in_time(parts) if rule is not None else None,
        one_client=one_client,
        constants=constants,
        label_type=type_of_labels(code_names, declared, all(of.truths for of in parts.values()))
        if targets.classes
        else None,
    )
    few = [] if rows.patients is None or held_out is not None else untested_clients(rows, fraction, own_test)
    given = replace(given, ordered=declared is not None)
    return given if testing else checks.noted(given, one_client, [*of_time, *few])


def _test_part(test: object, rows: GivenExamples, roles: Roles, own_test: bool) -> GivenExamples:
    """The examples of a test part that is given by itself, of the same columns as these rows."""
    known = getattr(test, "columns", getattr(test, "column_names", ()))
    whose, who = (column if column in known else None for column in (roles.client, roles.patient))
    whose = roles.client if own_test else whose
    if rows.columns and known is not None and len(known):
        for one in roles.targets:
            check_column(known, one, "test", "labels")
    held_out = _rows(test, replace(roles, client=whose, patient=who, ignored=(), inputs=rows.columns), ", test")
    check_named_alike(rows, held_out)
    return held_out


def _arrays_of(
    parts: Mapping[str, GivenExamples], roles: Roles, as_words: bool, own_test: bool, test_rows_at: Place | None
) -> dict[str, Array]:
    """The parts in the plain layout, numbers of classes as words if asked for, but for the classes' names."""
    rows, held_out = parts["train"], parts.get("test")
    arrays: dict[str, Array] = {}
    for key, part in parts.items():
        arrays |= {f"x_{key}": part.x, f"y_{key}": part.y.astype(np.str_) if as_words else part.y}
    if rows.patients is None and held_out is not None and held_out.patients is not None:
        raise DataError("the test part names its patients and the training part does not; name them in both or in none")
    if rows.patients is not None:
        arrays |= patients_of_parts(parts, roles.patient, roles.client, test_rows_at)
    if rows.clients is not None:
        # A client with test rows only is known by name, so that it can be refused by it.
        later = held_out.client_names if held_out is not None and own_test else ()
        clients = (*rows.client_names, *(c for c in later if c not in rows.client_names))
        number = {client_name: i for i, client_name in enumerate(clients)}
        arrays["client_train"] = np.array([number[c] for c in rows.clients], np.int64)
        arrays["clients"] = np.array(clients, np.str_)
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
        given = replace(rows, y=classes_of(where, rows.y), truths=are_truths(rows.y))
        check_named(given, classes, where)
        return given
    try:
        targets.read(where, rows.y)
    except RowError as error:
        raise DataError(f"{where}: the target of {place(error.row)} {error.what}") from None
    except DataError:
        pass  # of all targets; said as they are stored
    return rows


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
        return of_parts(data, roles)
    if hasattr(data, "column_names") and hasattr(data, "features"):
        return of_hugging_face(data, roles)
    if is_lazy(data):
        raise DataError("data is a lazy frame; collect() it first")
    if is_frame(data):
        return of_table(data, roles)
    if any(of is not None for of in (roles.target, roles.client, roles.patient, *roles.ignored)):
        raise DataError(
            f"target, client, patient and test name columns of a table, and {type_name(data)} has none; leave them "
            "out, and for clients give {client: (x, y)}, for patients (x, y, patients), for times test=us.Latest(times)"
        )
    if isinstance(data, Dataset):
        return GivenExamples(data.name, as_tensor(data.x_test).numpy(), data.y_test.numpy(), classes=data.classes)
    if isinstance(data, Mapping):
        return of_clients(data, roles, part)
    if isinstance(data, DataLoader | IterableDataset):
        raise DataError(
            f"{type_name(data)} has no fixed examples; give a data set with a length, such as the loader's .dataset"
        )
    if isinstance(data, TorchDataset):
        return of_torch(data)
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        return of_arrays(data, "data", roles)
    call = f"; call it, data={data.__name__}(...)" if callable(data) and hasattr(data, "__name__") else ""
    raise DataError(f"data must be {FORMS}; got {type_name(data)}{call}")
