"""The examples of one part of the user's data, and what the columns or arrays beside them are for."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from unskew.data.inputs import RawTable
from unskew.data.latest import Latest
from unskew.data.own.values import Array
from unskew.data.patients import PatientIds, coded
from unskew.errors import ConfigError, DataError
from unskew.tasks.targets import Targets


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
        patient_ids: Whose the names of patients are; None if that was not said.
        when: Time of each example, (N,), as `unskew.data.latest.moments`; None if it is not known.
    """

    name: str
    x: Array
    y: Array
    clients: Sequence[str] | None = None
    client_names: tuple[str, ...] = ()
    patients: Sequence[str] | None = None
    classes: tuple[str, ...] | None = None
    columns: tuple[Any, ...] = ()
    test: "GivenExamples | None" = None
    table: RawTable | None = None
    files: Sequence[str] = ()
    numbers: Array | None = None
    truths: bool = False
    order: tuple[Any, ...] = ()
    when: Array | None = None
    patient_ids: PatientIds | None = None

    @property
    def patient_codes(self) -> Array | None:
        """The code of each example's patient, (N,); None if the data name none."""
        return None if self.patients is None else coded((self.patients, self.clients), ids=self.patient_ids)[0]

    @property
    def row_numbers(self) -> Array:
        """Row of each example in the data as they were given, (N,)."""
        return np.arange(len(self.y)) if self.numbers is None else self.numbers

    def take(self, rows: Array) -> "GivenExamples":
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
