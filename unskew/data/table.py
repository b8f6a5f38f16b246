"""One table and its roles, which every form of data becomes; checks, first looks and data sets are made from it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from unskew.data.columns import Array, RawTable, is_gap, listed, value_of
from unskew.data.inputs import Inputs, words
from unskew.data.patients import Bools, Ints, PatientIds, coded
from unskew.data.places import Place, by_number
from unskew.data.preprocess import ColumnRule, Preprocess, looks_like_texts
from unskew.data.rows import are_items, blocks
from unskew.errors import DataError
from unskew.keys import Key
from unskew.tasks.targets import CLASS, SURVIVAL, Targets
from unskew.words import composed

TRAIN, TEST, LEFT_OUT = 0, 1, 2
"""What a row is for."""

UNKNOWN = Targets("unknown", "it is not known what")
"""The form of targets where it is not known what is learned."""

MANY = 100
"""Largest label up to which all integers below are classes, so that a client that lacks some agrees with the others."""

FEW = 1000
"""Classes, domains or clients that any data may have without naming them; more must be plausible for the examples."""

MOST_CLASSES = 20
"""Different values of a target up to which they may be classes however few rows each has."""

MOST_COMPARED = 100
"""Sites up to which each one's numbers are compared with those of the others."""


@dataclass(frozen=True, eq=False)
class DataTable:
    """N rows (training and test) and their roles.

    Attributes:
        name: Name of the data.
        y: Targets as given: (N,), or (N, targets); numbers, or objects with None for a gap.
        inputs: Inputs in one array, (N, ...); texts are objects.  None where they are columns.
        columns: Inputs by name; else empty.
        target: Names of the target's columns; empty without.
        client, patient: Names of these columns; None without.
        owners: Index of each row's client in `clients`, (N,), -1 without one; None if there are no clients.
        clients: Their names.
        patients: Patient of each row, by name, or as codes (N,); None if unknown.
        patient_ids: Whose the names are.
        part: TRAIN, TEST or LEFT_OUT of each row, (N,); None if not yet decided.
        share: Share of each client's rows to be set aside for testing.
        when: Time of each row (N,), if the latest are for testing.
        domains, domain_names: Index of each row's domain, and their names.
        classes: Names of the labels 0, 1, ..., where the data have them.
        order: Labels in the order of a column's type; some may not occur.
        numbers: Number of each row for its owner, (N,); None for files and joined sets.
        place: Describes the place of a row.
        notes: Notes from reading.
        refusals: Errors from reading, which make a run impossible.
        rules: Preprocessing of the columns.
        kind: The form of the targets.
        declared: Names of all classes in a setting; None without.
        alone: The rows are those of one client of several.
        unseen: Clients with test rows are others, who come after training.
        apart: Rows that are set aside are their clients' own; so they are with preprocessing, or with `share`.
        constants: Mean and deviation of each channel that standardise byte images in [0, 1]; by default those of the
            training images.
        own: The data are a user's own: notes are shown, and large images stay bytes.
        testing: All rows are for testing, unless `part` is known; training rows still give their constants.
        way: How raw inputs are read; new ones are read in the same way.
    """

    name: str
    y: Array
    inputs: Array | None = None
    columns: RawTable = field(default_factory=dict)
    target: tuple[str, ...] = ()
    client: str | None = None
    patient: str | None = None
    owners: Ints | None = None
    clients: tuple[str, ...] = ()
    patients: Array | None = None
    patient_ids: PatientIds | None = None
    part: npt.NDArray[np.int8] | None = None
    share: float | None = None
    when: Array | None = None
    domains: Ints | None = None
    domain_names: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    order: tuple[object, ...] = ()
    numbers: Ints | None = None
    place: Place = by_number
    notes: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    rules: Preprocess | None = None
    kind: Targets = CLASS
    declared: tuple[str, ...] | None = None
    alone: bool = False
    unseen: bool = False
    apart: bool = False
    constants: tuple[tuple[float, float], ...] | None = None
    own: bool = True
    testing: bool = False
    way: Inputs = Inputs()

    def __len__(self) -> int:
        return len(self.y)

    # ------------------------------------------------------------ parts
    @property
    def train(self) -> Ints:
        """Rows for training, ascending."""
        return np.flatnonzero(np.ones(len(self), bool) if self.part is None else self.part == TRAIN)

    @property
    def test(self) -> Ints:
        """Rows for testing, ascending."""
        return np.flatnonzero(np.zeros(len(self), bool) if self.part is None else self.part == TEST)

    @property
    def key(self) -> Key:
        """Key of the draw of test rows: the same in every call."""
        return Key(0) / ("npz" if self.own else self.name) / "test"

    @property
    def own_test(self) -> bool:
        """True if test rows are their clients' own."""
        return self.owners is not None and bool((self.owners[self.test] >= 0).any())

    def take(self, rows: Ints) -> "DataTable":
        """The rows of these numbers."""
        if len(rows) == len(self):
            return self
        # A view where rows follow one another, as training rows do before test rows.
        chosen = slice(rows[0], rows[-1] + 1) if len(rows) and rows[-1] - rows[0] == len(rows) - 1 else rows
        given: dict[str, Any] = {of.name: getattr(self, of.name) for of in fields(self)}
        of_rows: dict[str, Any] = {key: of[chosen] for key, of in given.items() if isinstance(of, np.ndarray)}
        columns = {name: values[chosen] for name, values in self.columns.items()}
        return replace(self, **of_rows, columns=columns, place=lambda row: self.place(int(rows[row])))

    @cached_property
    def people(self) -> Ints | None:
        """A code of each row's patient, (N,); None if unknown.

        Raises:
            DataError: As in `unskew.data.patients.coded`.
        """
        of_network = self.patient_ids == "network" or self.owners is None
        if self.patients is None or (self.patients.dtype.kind in "iu" and of_network):
            return self.patients
        whose = None if self.owners is None else [self.clients[i] if i >= 0 else "no client" for i in self.owners]
        return coded([str(one) for one in self.patients.tolist()], whose, self.patient_ids)

    # ------------------------------------------------------------ sites
    def at(self, client: int) -> Bools:
        """Which rows are a client's, bool (N,)."""
        return np.zeros(len(self), bool) if self.owners is None else self.owners == client

    def count(self, rows: Bools | None = None) -> Ints:
        """Rows of each client, or those selected, (clients,)."""
        owners = np.empty(0, np.int64) if self.owners is None else self.owners[slice(None) if rows is None else rows]
        return np.bincount(owners[owners >= 0], minlength=len(self.clients))

    def names(self, clients: Bools) -> list[str]:
        """The selected clients; `clients` is bool (clients,)."""
        return [self.clients[i] for i in np.flatnonzero(clients).tolist()]

    @property
    def compared(self) -> tuple[str, ...]:
        """The clients, if they are few enough to compare one by one."""
        return self.clients if len(self.clients) <= MOST_COMPARED else ()

    # ------------------------------------------------------------ columns
    def rule(self, name: str) -> ColumnRule:
        """The rules for one column."""
        return self.rules.columns.get(name, ColumnRule()) if self.rules else ColumnRule()

    def of_texts(self, name: str) -> bool:
        """True for a column of texts, as declared or as it looks."""
        kind = self.rule(name).kind
        looks = kind is None and looks_like_texts(name, self.columns[name].tolist(), len(self.columns) == 1)
        return kind == "text" or looks

    def by_site(self, name: str) -> bool:
        """True for a column that each client scales by its own numbers, so that units do not matter."""
        return self.rules is not None and (self.rule(name).scale or self.rules.scale) == "site"

    @property
    def what(self) -> str:
        """The kind of the rows."""
        x = self.inputs
        if x is None:
            return "rows"
        if x.dtype.names or are_items(x):
            return "examples"
        if x.ndim < 3:
            return "texts" if x.dtype.kind == "O" else "rows"
        return "images" if x.ndim == 4 or x.dtype.kind in "iu" else "examples"

    @property
    def measured(self) -> bool:
        """True if `features` are measured on inputs that are no columns."""
        return self.what != "rows"

    @cached_property
    def features(self) -> RawTable:
        """The columns, or measures of images, windows and texts; without names only numbers."""
        x = self.inputs
        if x is None:
            return self.columns
        if x.dtype.kind == "O" and not are_items(x):
            return {"number of words": np.array([len(words(text)) for text in x], np.float64)}
        if x.dtype.kind not in "fiub":
            return {}
        if x.ndim > 2:
            return measured(x, ("brightness", "contrast") if self.what == "images" else ("mean", "spread"))
        named = self.kind is UNKNOWN and x.dtype.kind == "f"
        return {f"x{i}": x[:, i].astype(np.float64) for i in range(x.shape[1])} if named else {}

    def called(self, name: str) -> str:
        """The name of a column in a sentence."""
        return f"the {name}" if self.measured else f"column {name!r}"

    # ------------------------------------------------------------ targets
    @property
    def of_table(self) -> bool:
        """True if the labels are in a table, whose whole numbers may be names."""
        return bool(self.columns or (self.target and self.numbers is not None))

    @cached_property
    def targets(self) -> tuple["DataTarget", ...]:
        """Each target alone: words or numbers, (N,); none for sequences of tokens, and for targets without names."""
        y = self.y[:, None] if self.y.ndim == 1 else self.y
        if self.kind.tokens or not y.shape[1]:
            return ()
        if y.shape[1] == 1:
            return (self._target("the target", y[:, 0]),)
        if self.kind is SURVIVAL and y.shape[1] == 2:
            return self._target("the time", y[:, 0]), replace(self._target("the event", y[:, 1]), classes=True)
        named = self.target if len(self.target) == y.shape[1] else ()
        return tuple(self._target(f"target {name!r}", y[:, i]) for i, name in enumerate(named))

    def _target(self, called: str, values: Array) -> "DataTarget":
        names, unknown = self.classes, self.kind is UNKNOWN
        if names is not None and values.dtype.kind in "iu" and values.min() >= 0 and values.max() < len(names):
            values = np.array(names, object)[values]
        given = values.tolist()
        if any(isinstance(v, str) for v in given):
            plain = [None if is_gap(v) else composed(v) if isinstance(v, str) else v for v in given]
            return DataTarget(called, listed(plain), self.kind.classes or unknown)
        if self.kind.classes:
            return DataTarget(called, values, True)
        truths = all(isinstance(v, bool) for v in given)
        if values.dtype.kind == "O" and not truths and all(isinstance(v, int | float | None) for v in given):
            values = np.array([np.nan if v is None else v for v in given], np.float64)
        known = values[np.isfinite(values)] if values.dtype.kind == "f" else values
        few = truths or (known.dtype.kind in "iuf" and not (known % 1).any() and len(np.unique(known)) <= MOST_CLASSES)
        return DataTarget(called, values, unknown and few)


@dataclass(frozen=True, eq=False)
class DataTarget:
    """Targets of the rows: words, class numbers, or numbers, (N,), and their name."""

    called: str
    values: Array
    classes: bool

    def sentence(self, text: str) -> str:
        """A sentence, beginning with the target's name if there are several."""
        return f"{self.called}: {text}" if self.called.startswith("target ") else text


# ---------------------------------------------------------------- labels
def names_of_numbers(known: Ints, of_table: bool, alone: bool = False) -> bool:
    """True if labels that are these whole numbers are names, and not positions in a list of classes.

    In a table, any but 0, 1, ... are names.  In arrays, numbers are names if fewer than half of those up to the largest
    occur and it is beyond `MANY`: {1, 999} are two classes.  For one client of several, only a negative number decides.
    """
    if of_table:
        return bool(known[0] < 0 if alone else (known != np.arange(len(known))).any())
    return bool(known[0] >= 0 and known[-1] >= max(MANY, 2 * len(known)))


def names_to(largest: int, examples: int, where: str) -> tuple[str, ...]:
    """Names for the numbers from 0 to `largest`.

    Raises:
        DataError: If so many classes are implausible for this number of examples, as after a corrupt label.
    """
    if largest >= max(FEW, 2 * examples):
        raise DataError(f"{where} has the number {largest}, and {examples} examples have fewer kinds; correct it")
    return tuple(map(str, range(largest + 1)))


def label_name(label: object) -> str:
    """A label, or a client, as its name; 3.0, which pandas makes in a column with gaps, is "3"."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else composed(str(label))


# ---------------------------------------------------------------- what is measured
def measured(x: Array, names: tuple[str, str]) -> dict[str, Array]:
    """Mean and standard deviation of each example, under these names; for bytes in units of 255."""
    parts = [x[rows].reshape(len(x[rows]), -1) for rows in blocks(x)]
    largest = 255 if x.dtype.kind in "iu" else 1  # what networks take is about 1
    both = [np.concatenate([of(part, 1, np.float64) for part in parts]) / largest for of in (np.mean, np.std)]
    return dict(zip(names, both, strict=True))


# ---------------------------------------------------------------- names
def codes_of(values: Array) -> tuple[Ints, Ints]:
    """A code for each different value, and how often each occurs; all gaps are one value."""
    plain = np.array(["" if v is None else str(v) for v in values]) if values.dtype.kind == "O" else values
    _, code, times = np.unique(plain, return_inverse=True, return_counts=True)
    return code, times


def numbered(names: Sequence[object], given: Sequence[str] = ()) -> tuple[Ints, tuple[str, ...]]:
    """The index of each name (-1 for none), and all names: those `given`, numbers by size, others alphabetically.

    A number is its own name; 1.0 is named 1.
    """
    texts = [None if is_gap(name) else label_name(name) for name in names]
    known = {name for name in texts if name is not None} - set(given)
    by_size = all(value_of(name) is not None for name in known)
    ordered = (*given, *sorted(known, key=lambda name: (value_of(name) or 0.0 if by_size else 0.0, name)))
    number = {name: i for i, name in enumerate(ordered)}
    return np.array([-1 if name is None else number[name] for name in texts], np.int64), ordered
