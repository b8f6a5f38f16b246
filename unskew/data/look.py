"""A first look at data: sites, sizes, labels, columns, gaps, how much sites disagree, and duplicate rows.

Disagreement is one number for sizes, one for labels, one for columns, each beside what chance alone would give:

    sizes     effective number of clients 1 / sum p_k^2, p_k the client's share of rows (M. O. Hill, "Diversity and
              evenness", Ecology 54, 1973: order 2)
    labels    Cramér's V squared of sites and classes (H. Cramér, "Mathematical Methods of Statistics", 1946); of a
              number the share of its variance that lies between clients, eta^2 (K. Pearson, 1905)
    columns   the same of each column, and their mean

Whether labels and columns differ by more than chance is tested (`unskew.data.differs`), with p corrected for the number
of targets and of columns (`holm`).
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from unskew.data import checks
from unskew.data.checks import MOST_CLASSES
from unskew.data.dataset import Dataset
from unskew.data.differs import differs, holm
from unskew.data.images import stored
from unskew.data.inputs import (
    Array,
    RawTable,
    gaps_in,
    in_words,
    is_category,
    is_clock,
    is_date,
    is_gap,
    kind_of_time,
    numbers_as_words,
    plain_value,
)
from unskew.data.latest import written
from unskew.data.own.frames import categories_in
from unskew.data.patients import (
    PatientIds,
    coded,
    most_frequent,
    names_of_patients,
)
from unskew.data.places import place
from unskew.data.preprocess import LARGEST, Preprocess
from unskew.data.table import CheckedTable, CheckedTarget, codes_of, keys_of, keys_of_inputs, measured
from unskew.data.text import words
from unskew.errors import DataError
from unskew.tasks.targets import Label, labels_of
from unskew.words import composed, counted, some

NO_VALUE = "(none)"
"""Name of the class of rows that have no value in the target's column."""

NAMED = 6
"""Classes that a sentence names."""

MOST_WORDS = 50
"""Words of a column by which sites are compared; the others count as one."""

MOST_NAMED, ALPHA = 3, 0.05
"""Columns that a sentence names, and the level at which they differ, all together."""

Span = tuple[str, str]
"""First and last time."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows as they were found, words and gaps included.

    Attributes:
        name: Name of the data.
        columns: Inputs by name; of images their mean brightness and contrast, of windows mean and spread of each
            channel, of texts their number of words.
        target: Classes as words or numbers, or numbers, (N,); None if no target is known, or there are several.
        clients: Number of each row's client in `client_names`, (N,); -1 where it has none; None if there are no
            clients.
        client_names: A name for each client.
        test: True for test rows, (N,); None if none are known.
        dates: Columns that hold dates; they are not among `columns`.
        measured: True if `columns` were measured on images or texts.
        common_test: The test rows are nobody's own; each client keeps rows of its own for testing.
        rows: Their number.
        keys: As in `unskew.data.checks.Table`.
        patients: Number of who is in each row, (N,); None if they are not known.
        doubts: Sentences on what was found as the rows were read.
        targets: Where there are several, each by its column.
        when: Time of each row, (N,), as `unskew.data.latest.moments`; None if test rows are not the latest.
        categories: Columns that are categories by their type.
    """

    name: str
    columns: RawTable
    target: Array | None
    clients: npt.NDArray[np.int64] | None
    client_names: tuple[str, ...]
    test: npt.NDArray[np.bool_] | None
    rows: int
    dates: tuple[str, ...] = ()
    measured: bool = False
    common_test: bool = False
    patients: npt.NDArray[np.int64] | None = None
    doubts: tuple[str, ...] = ()
    targets: Mapping[str, Array] = field(default_factory=dict)
    when: Array | None = None
    categories: tuple[str, ...] = ()
    keys: tuple[Array, ...] = ()


@dataclass(frozen=True)
class SiteLook:
    """A client: its rows, and what its target is.

    Attributes:
        name: Its name.
        train, test: Numbers of rows; without known test rows all are training rows.
        missing: Share of its values that are gaps.
        labels: Rows of each class, test rows included, in the order of `Look.classes`; empty for a number.
        mean, sd: Of a target that is a number.
        patients: Number of those who are in its rows; None if they are not known.
        train_span, test_span: Times of the first and the last row of each; None if there is none, or test rows are not
            the latest.
    """

    name: str
    train: int
    test: int
    missing: float
    labels: tuple[int, ...] = ()
    mean: float | None = None
    sd: float | None = None
    patients: int | None = None
    train_span: Span | None = None
    test_span: Span | None = None


@dataclass(frozen=True)
class SiteDifference:
    """Difference between sites in a column or a target.

    Attributes:
        share: Share of the variance that lies between sites; of words Cramér's V squared.
        chance: What it would be of alike sites on average.
        p: Chance that alike sites differ as much (`unskew.data.differs`).
        levels: Mean, or share of a word, at the two sites that differ most, in words.
    """

    share: float
    chance: float
    p: float
    levels: str

    def __str__(self) -> str:
        if self.p < ALPHA:
            return f"differs between sites by more than chance ({shown_p(self.p)}): {self.levels}"
        return f"is not shown to differ between sites ({shown_p(self.p)}; {self.levels})"


def shown_p(p: float) -> str:
    """A p-value in words.

    >>> shown_p(0.0134), shown_p(1e-9)
    ('p = 0.013', 'p < 0.001')
    """
    return f"p = {p:.2g}" if p >= 0.001 else "p < 0.001"


@dataclass(frozen=True)
class ColumnLook:
    """A column: what it holds, its gaps, and how much of its variance lies between sites.

    Attributes:
        name: Its name.
        kind: "number", "words", "dates" or "constant".
        summary: Mean and deviation, or the commonest words.
        missing: Share of rows with a gap.
        missing_by_site: The same for each site.
        lowest, highest, mean, sd: Of numbers; None of others.
        commonest: The commonest words, each with its number of rows; empty of others.
        between: How sites differ in it; None where there is one site, or no variance.
        means: Of each site, in deviations from the mean of all; of words the share of the commonest.  None for a site
            without a value.
    """

    name: str
    kind: str
    summary: str
    missing: float
    missing_by_site: tuple[float, ...] = ()
    between: SiteDifference | None = None
    means: tuple[float | None, ...] = ()
    lowest: float | None = None
    highest: float | None = None
    mean: float | None = None
    sd: float | None = None
    commonest: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class TargetLook:
    """One of several targets.

    Attributes:
        name: Its column.
        classes: Its classes; empty if it is a number.
        sites: The clients, with what this target is there.
    """

    name: str
    classes: tuple[Label, ...]
    sites: tuple[SiteLook, ...]


@dataclass(frozen=True)
class Disagreement:
    """One number for how sites differ, what chance alone would give on average, and what it means.

    `p` is the chance that alike sites differ as much, in columns the smallest by Holm; None of sizes.
    """

    name: str
    value: float
    chance: float
    meaning: str
    p: float | None = None


@dataclass(frozen=True, repr=False)
class Look:
    """Summary of a data set; `print` says it in sentences.

    Attributes:
        name: Name of the data.
        rows, test_rows: Numbers of rows, and of test rows among them; None where none are known.
        sites: The clients, in order; empty if the data have none.
        classes: The target's classes; empty if it is a number or not known, or there are several targets.
        columns: What is known of each column.
        disagreement: Numbers for sizes, labels and columns.
        notes: Sentences on what a run would warn of, or refuse.
        patients: Number of those who are in the rows; None if they are not known.
        targets: Where there are several, each of them.
        train_span, test_span: As of a site.
    """

    name: str
    rows: int
    test_rows: int | None
    sites: tuple[SiteLook, ...]
    classes: tuple[Label, ...]
    columns: tuple[ColumnLook, ...]
    disagreement: tuple[Disagreement, ...]
    notes: tuple[str, ...]
    patients: int | None = None
    targets: tuple[TargetLook, ...] = ()
    train_span: Span | None = None
    test_span: Span | None = None

    @property
    def size(self) -> str:
        """Rows, columns, sites and classes, in one phrase."""
        sites = f"{len(self.sites):,} sites" if self.sites else "no sites named"
        test = "" if self.test_rows is None else f", {self.test_rows:,} of them for testing"
        if self.train_span and self.test_span:
            train, later = (f"from {first} to {last}" for first, last in (self.train_span, self.test_span))
            test += f" ({later}; the others {train})"
        target = f"; the target has {_some_classes(self.classes)}" if self.classes else ""
        if self.targets:
            each = [f"{of.name} has {_some_classes(of.classes) or 'numbers'}" for of in self.targets]
            target = f"; of {len(each)} targets, {', '.join(each[:-1])} and {each[-1]}"
        who = "" if self.patients is None else f", {counted(self.patients, 'patient')}"
        return f"{self.rows:,} rows{test}{who}, {counted(len(self.columns), 'column')}, {sites}{target}"

    @property
    def lead(self) -> str:
        """A few sentences on what there is and how sites differ."""
        return " ".join([f"{self.size}.", *(_sentence(number.meaning) for number in self.disagreement)])

    @property
    def warnings(self) -> list[str]:
        """Sentences on things to mend before a run."""
        return [_sentence(text) for text in self.notes]

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: {self.lead}", *(f"- {warning}" for warning in self.warnings)])

    def __repr__(self) -> str:
        return f"<Look at {self.name}: {self.size}; print() says more>"


def _some_classes(classes: Sequence[Label]) -> str:
    classes = [one for one in classes if one != NO_VALUE]
    names = ", ".join(map(str, classes[:NAMED])) + (", ..." if len(classes) > NAMED else "")
    return f"{len(classes)} classes ({names})" if classes else ""


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('?') else '.'}"


# ---------------------------------------------------------------- rows
def of_frame(
    frame: Any,
    name: str,
    targets: Sequence[str] = (),
    client: str | None = None,
    test: Array | None = None,
    patient: str | None = None,
    patient_ids: PatientIds | None = None,
) -> Rows:
    """The rows of a DataFrame; `targets` are the columns of what is learned, and `test` says which are test rows.

    Raises:
        DataError: If a row names no patient where there is a column of patients, or as in `unskew.data.patients.coded`.
    """
    raw = {str(column): _plain(frame[column]) for column in frame.columns if column not in (*targets, client, patient)}
    dates = tuple(column for column, values in raw.items() if values is None)
    columns = {column: values for column, values in raw.items() if values is not None}
    owners, names = (None, ()) if client is None else _numbered(frame[client])
    wanted = {name: _target(frame[name]) for name in targets}
    target = wanted[targets[0]] if len(targets) == 1 else None
    several = wanted if len(targets) > 1 else {}
    is_test = None if test is None else np.asarray(test, bool)
    patients = None
    if patient is not None:
        of_rows = names_of_patients(_listed(frame[patient]), f"column {patient!r}")
        clients = None if owners is None else [names[owner] if owner >= 0 else "no client" for owner in owners]
        (patients,) = coded((of_rows, clients), ids=patient_ids)
    keys: tuple[Array, ...] = ()
    if is_test is not None and wanted and columns:
        train, later = ([of[part] for of in columns.values()] for part in (~is_test, is_test))
        keys = keys_of(train, later, [(of[~is_test], of[is_test]) for of in wanted.values()])
    return Rows(
        name,
        columns,
        target,
        owners,
        names,
        is_test,
        len(frame),
        dates,
        patients=patients,
        targets=several,
        categories=tuple(categories_in(frame)),
        keys=keys,
    )


def of_arrays(name: str, arrays: Mapping[str, Array], pictures: bool = False) -> Rows:
    """The rows of arrays in the plain layout; `pictures` says that floats are such whatever their shape.

    Raises:
        DataError: If examples are no numbers and no texts, which are objects.
    """
    parts = [part for part in ("train", "test") if f"x_{part}" in arrays]
    for part in parts:
        x = arrays[f"x_{part}"]
        if x.dtype.kind not in "fiubO":
            raise DataError(f"{name}: x_{part} must hold numbers or texts, got {x.dtype} of shape {x.shape}")
    x = np.concatenate([arrays[f"x_{part}"] for part in parts]) if len(parts) > 1 else arrays["x_train"]
    y = np.concatenate([arrays[f"y_{part}"] for part in parts])
    classes = arrays.get("classes")
    named = np.array([str(classes[int(v)]) for v in y], object) if classes is not None and y.dtype.kind in "iu" else y
    owners = None
    names: tuple[str, ...] = ()
    if "client_train" in arrays:
        unknown = [np.full(len(arrays[f"y_{part}"]), -1) for part in parts]
        owners = np.concatenate([arrays.get(f"client_{part}", u) for part, u in zip(parts, unknown, strict=True)])
        given = arrays.get("clients")
        names = tuple(map(str, given if given is not None else range(int(owners.max()) + 1)))
    test = np.arange(len(y)) >= len(arrays["y_train"]) if len(parts) > 1 else None
    columns, are_measured = _columns_of(x, arrays.get("features"), pictures)
    keys: tuple[Array, ...] = ()
    if test is not None and x.dtype.kind != "O":
        labels = codes_of(y)[0]
        keys = keys_of_inputs(x[~test], x[test], labels[~test], labels[test])
    common = owners is not None and test is not None and "client_test" not in arrays
    known = all(f"patient_{part}" in arrays for part in parts)
    patients = np.concatenate([arrays[f"patient_{part}"] for part in parts]) if known else None
    return Rows(name, columns, named, owners, names, test, len(x), (), are_measured, common, patients, keys=keys)


def of_dataset(dataset: Dataset) -> Rows:
    """The rows of a data set, as it is after it was read; of several targets a row their group, if there are groups."""
    several = dataset.y_train.dim() > 1
    y, y_test = (
        dataset.targets.counted(of.numpy()) if several else of.numpy() for of in (dataset.y_train, dataset.y_test)
    )
    arrays: dict[str, Array] = {"x_train": stored(dataset.x_train).numpy(), "y_train": y}
    if dataset.own_test is None:
        arrays |= {"x_test": stored(dataset.x_test).numpy(), "y_test": y_test}
        if dataset.test_patients is not None:
            arrays["patient_test"] = dataset.test_patients.numpy()
    if dataset.patients is not None:
        arrays["patient_train"] = dataset.patients.numpy()
    if dataset.label_type != "text" and dataset.targets.classes:
        labels = np.array(labels_of(dataset.classes, dataset.label_type))
        arrays |= {key: labels[of] for key, of in arrays.items() if key.startswith("y_")}
    elif dataset.classes:
        arrays["classes"] = np.array(dataset.classes)
    if dataset.owners is not None:
        arrays |= {"client_train": dataset.owners.numpy(), "clients": np.array(dataset.client_names)}
    names = [feature for column in dataset.inputs.columns for feature in column.features]
    if names:
        arrays["features"] = np.array(names)
    rows = of_arrays(dataset.name, arrays, dataset.inputs.kind == "images")
    if several and len(dataset.targets.groups) == 1:
        rows = replace(rows, target=None)
    if dataset.own_test is None:
        return rows
    own = dataset.own_test.numpy()
    return replace(rows, test=own, common_test=False)


def _columns_of(x: Array, names: Array | None, pictures: bool) -> tuple[dict[str, Array], bool]:
    if x.ndim == 2 and x.dtype.kind == "f":
        labels = names if names is not None else [f"x{i}" for i in range(x.shape[1])]
        return {str(label): x[:, i].astype(np.float64) for i, label in enumerate(labels)}, False
    if x.dtype.kind == "O":
        return {"number of words": np.array([len(words(text)) for text in x], np.float64)}, True
    if x.ndim < 3:
        return {}, False
    return measured(x, pictures), True


def _plain(values: Any) -> Array | None:
    """A column as numbers with NaN, or words with None; None if it holds dates or spans of time."""
    if hasattr(values, "to_numpy") and not is_category(values):
        numbers = np.asarray(values.to_numpy())
        if numbers.dtype.kind in "fiub" and numbers.ndim == 1:
            return numbers.astype(np.float64)
    plain = list(map(in_words, _listed(values))) if is_category(values) else _listed(values)
    if set(map(type, plain)) <= {bool, int, float}:
        return np.array(plain, np.float64)
    present = [v for v in plain if not is_gap(v)]
    if present and (all(map(is_date, present)) or any(kind_of_time(v)[0] for v in present if not isinstance(v, str))):
        return None
    if all(isinstance(v, bool | int | float) for v in present):
        return np.array([np.nan if is_gap(v) else float(v) for v in plain], np.float64)
    return np.array([None if is_gap(v) else str(in_words(v)) for v in plain], object)


def _listed(values: Any) -> list[Any]:
    return list(map(plain_value, values.to_list() if hasattr(values, "to_list") else values))


def _target(values: Any) -> Array:
    plain = _listed(values)
    present = [v for v in plain if not is_gap(v)]
    if len(present) == len(plain) and all(isinstance(v, bool | int | float) for v in plain):
        return np.array(plain)
    if present and all(isinstance(v, int | float) and not isinstance(v, bool) for v in present):
        return np.array([math.nan if is_gap(v) else v for v in plain], np.float64)
    return np.array([NO_VALUE if is_gap(v) else composed(str(v)) for v in plain], object)


def _numbered(values: Any) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    plain = [composed(v) if isinstance(v, str) else v for v in _listed(values)]
    present = {v for v in plain if not is_gap(v)}
    ordered = sorted(present, key=lambda v: (isinstance(v, str), v))
    number = {value: i for i, value in enumerate(ordered)}
    return np.array([-1 if is_gap(v) else number[v] for v in plain], np.int64), tuple(str(v) for v in ordered)


# ---------------------------------------------------------------- the look
def look(rows: Rows, rules: Preprocess | None = None) -> Look:
    """Sum up rows: numbers that are shown as tables and figures, and sentences.

    What `rules` does to the columns is not advised.
    """
    n = rows.rows
    classes = _classes(rows.target)[0]
    groups = [] if rows.clients is None else [np.flatnonzero(rows.clients == i) for i in range(len(rows.client_names))]
    missing = {name: gaps_in(values) for name, values in rows.columns.items()}
    share = np.mean(list(missing.values()), axis=0) if missing else np.zeros(n)
    test = np.zeros(n, bool) if rows.test is None else rows.test
    patients = rows.patients

    def spans(group: npt.NDArray[np.int64]) -> dict[str, Any]:
        when = rows.when
        if when is None:
            return {}
        parts = {"train_span": when[group[~test[group]]], "test_span": when[group[test[group]]]}
        return {key: (written(of.min()), written(of.max())) if len(of) else None for key, of in parts.items()}

    def sites_of(target: Array | None) -> tuple[SiteLook, ...]:
        known, numbers = _classes(target)
        return tuple(
            replace(
                _site(name, group, target, numbers, len(known), share, test),
                patients=None if patients is None else len(np.unique(patients[group])),
                **spans(group),
            )
            for name, group in zip(rows.client_names, groups, strict=True)
        )

    sites = sites_of(rows.target)
    targets = tuple(TargetLook(name, _classes(of)[0], sites_of(of)) for name, of in rows.targets.items())
    columns = (
        *(_column(name, values, missing[name], groups, rows) for name, values in rows.columns.items()),
        *(ColumnLook(name, "dates", "make numbers of them, or leave the column out", 0.0) for name in rows.dates),
    )
    return Look(
        rows.name,
        n,
        None if rows.test is None else int(test.sum()),
        sites,
        classes,
        columns,
        _disagreement(rows, groups, columns),
        (
            *rows.doubts,
            *_notes(rows, sites, columns, test, rules),
        ),
        None if patients is None else len(np.unique(patients)),
        targets,
        **spans(np.arange(n)),
    )


def _classes(target: Array | None) -> tuple[tuple[Label, ...], npt.NDArray[np.int64] | None]:
    """Names of the classes, and the class of each row; none where the target is a number.

    Rows without a finite number are of a last class, if the others' numbers are classes.
    """
    if target is None:
        return (), None
    present = _finite(target)
    if target.dtype.kind == "f" and not np.array_equal(target[present], np.round(target[present])):
        return (), None
    words = target.astype(str) if target.dtype.kind == "O" else target
    known, number = np.unique(words[present], return_inverse=True)
    if target.dtype.kind in "iuf" and len(known) > MOST_CLASSES:
        return (), None
    label: Callable[[Any], Label] = {"b": bool, "i": int, "u": int, "f": int}.get(target.dtype.kind, str)
    labels = np.full(len(target), len(known), np.int64)
    labels[present] = number
    return (*map(label, known), *([] if present.all() else [NO_VALUE])), labels


def _finite(target: Array) -> npt.NDArray[np.bool_]:
    """True for rows in which the target is a word or a finite number, (N,)."""
    return np.isfinite(target) if target.dtype.kind == "f" else np.ones(len(target), bool)


def _site(
    name: str,
    group: npt.NDArray[np.int64],
    target: Array | None,
    labels: npt.NDArray[np.int64] | None,
    classes: int,
    missing: npt.NDArray[np.floating[Any]],
    test: npt.NDArray[np.bool_],
) -> SiteLook:
    tested = int(test[group].sum())
    counts = () if labels is None else tuple(np.bincount(labels[group], minlength=classes).tolist())
    gaps = float(missing[group].mean()) if len(group) else 0.0
    if target is None or labels is not None or not len(group):
        return SiteLook(name, len(group) - tested, tested, gaps, counts)
    values = target[group[_finite(target[group])]].astype(np.float64)
    moments = (float(values.mean()), float(values.std())) if len(values) else (None, None)
    return SiteLook(name, len(group) - tested, tested, gaps, (), *moments)


def _column(
    name: str, values: Array, missing: npt.NDArray[np.bool_], groups: Sequence[npt.NDArray[np.int64]], rows: Rows
) -> ColumnLook:
    present = ~missing
    by_site = tuple(float(missing[group].mean()) if len(group) else 0.0 for group in groups)
    kind = "number" if values.dtype.kind == "f" else "words"
    known: dict[str, Any] = {}
    if not present.any():
        return ColumnLook(name, "constant", "no value at all", 1.0, by_site)
    shown: tuple[str, ...] = ()
    if kind == "number":
        present &= np.abs(values) <= LARGEST
        mean, sd = (float(values[present].mean()), float(values[present].std())) if present.any() else (0.0, 0.0)
        summary = f"{mean:.4g} ± {sd:.4g}"
        compared = np.where(present, values, np.nan)
        measured = (compared - mean) / sd if sd > 0 else np.zeros(len(values))
        if present.any():
            known = {
                "lowest": float(values[present].min()),
                "highest": float(values[present].max()),
                "mean": mean,
                "sd": sd,
            }
    else:
        words, code, counts = np.unique(values[present].astype(str), return_inverse=True, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        known = {"commonest": tuple((str(words[i]), int(counts[i])) for i in order[:3])}
        summary = ", ".join(f"{word} {count / present.sum():.0%}" for word, count in known["commonest"])
        summary += f", {len(words) - 3} more" if len(words) > 3 else ""
        compared = np.full(len(values), -1)
        compared[present] = np.minimum(np.argsort(order)[code], MOST_WORDS)
        shown = (*map(str, words[order[:MOST_WORDS]]), "other words")
        measured = (compared == 0).astype(np.float64)
    if (compared[present] == compared[present][:1]).all():
        return ColumnLook(name, "constant", summary, float(missing.mean()), by_site, **known)
    held = [group[present[group]] for group in groups]
    means = tuple(float(measured[group].mean()) if len(group) else None for group in held)
    return ColumnLook(
        name, kind, summary, float(missing.mean()), by_site, _difference(compared, rows, shown), means, **known
    )


def _difference(values: Array, rows: Rows, classes: Sequence[Label] = ()) -> SiteDifference | None:
    """Describe how sites differ in a column or a target; None where nothing can differ.

    A patient's rows may all be alike, so each counts as one: with the mean of its numbers, or its commonest class.

    Args:
        values: Numbers with NaN for a gap, or numbers of `classes`, -1 for a gap, (N,).
        rows: The rows.
        classes: Their names.
    """
    if rows.clients is None:
        return None
    of_numbers = values.dtype.kind == "f"
    site = np.where(np.isnan(values) if of_numbers else values < 0, -1, rows.clients)
    if rows.patients is not None:
        values, site = values[site >= 0], np.stack([site, rows.patients])[:, site >= 0]
        pairs, of_row, n = np.unique(site, axis=1, return_inverse=True, return_counts=True)
        of_row, site = of_row.reshape(-1), pairs[0]
        values = np.bincount(of_row, values) / n if of_numbers else most_frequent(of_row, values)
    seen = differs(values, site, len(rows.columns) + 1)
    if seen is None:
        return None
    names = [rows.client_names[i] for i in seen.pair]
    what = "" if seen.kind is None else f"{classes[seen.kind]} "
    levels = [f"{of:.3g}" if seen.kind is None else f"{of:.0%}" for of in seen.levels]
    return SiteDifference(
        seen.share, seen.chance, seen.p, f"{what}{levels[0]} at {names[0]}, {levels[1]} at {names[1]}"
    )


def _disagreement(
    rows: Rows,
    groups: Sequence[npt.NDArray[np.int64]],
    columns: Sequence[ColumnLook],
) -> tuple[Disagreement, ...]:
    held = [group for group in groups if len(group)]
    names = [name for name, group in zip(rows.client_names, groups, strict=False) if len(group)]
    if len(held) < 2:
        return ()
    sizes = np.array([len(group) for group in held])
    n, k = int(sizes.sum()), len(held)
    effective = float(n**2 / (sizes**2).sum())
    numbers = [
        Disagreement(
            "sizes",
            effective,
            float(k),
            f"by number of rows, the {k} sites are equivalent to {effective:.1f} of equal size; the largest, "
            f"{names[int(sizes.argmax())]}, has {sizes.max() / n:.0%} of the rows",
        )
    ]
    of_targets: dict[str, tuple[str, SiteDifference]] = {}
    several = [(f"labels of {name}", f"target {name} ", target) for name, target in rows.targets.items()]
    for name, what, target in [*several, *([] if rows.target is None else [("labels", "the target ", rows.target)])]:
        classes, labels = _classes(target)
        values = np.where(_finite(target), target, np.nan).astype(np.float64) if labels is None else labels
        if (one := _difference(values, rows, classes)) is not None:
            of_targets[name] = (what, one)
    for name, p in holm({name: one.p for name, (_, one) in of_targets.items()}).items():
        what, one = of_targets[name]
        numbers.append(Disagreement(name, one.share, one.chance, f"{what}{replace(one, p=p)}", p))
    between = {column.name: column.between for column in columns if column.between is not None}
    if between:
        adjusted = holm({name: of.p for name, of in between.items()})
        order = sorted(between, key=lambda name: (adjusted[name], -between[name].share))
        m, differ = len(order), [(name, between[name]) for name in order if adjusted[name] < ALPHA]
        most = "; ".join(f"{name} {of.levels}" for name, of in differ[:MOST_NAMED])
        reading = f"{len(differ)} of {counted(m, 'column')} differ{'s' * (m == 1)} by more than chance: {most}"
        if not differ:
            reading = (
                f"no column is shown to differ between sites ({counted(m, 'column')}, {shown_p(adjusted[order[0]])})"
            )
        numbers.append(
            Disagreement(
                "columns",
                float(np.mean([of.share for of in between.values()])),
                float(np.mean([of.chance for of in between.values()])),
                reading,
                adjusted[order[0]],
            )
        )
    return tuple(numbers)


def _notes(
    rows: Rows,
    sites: Sequence[SiteLook],
    columns: Sequence[ColumnLook],
    test: npt.NDArray[np.bool_],
    rules: Preprocess | None,
) -> tuple[str, ...]:
    sentences: list[str] = []
    train = ~test
    if len(sites) == 1:
        sentences.append(f"there is only one site ({sites[0].name}); a federation needs at least two")
    several = {f"target {name!r}": of for name, of in rows.targets.items()}
    targets = several or ({} if rows.target is None else {"the target": rows.target})
    for called, target in targets.items():
        sentences += _of_target(called, target)
    if rows.clients is not None and (nobodys := (rows.clients < 0) & ~(test & rows.common_test)).any():
        sentences.append(f"{int(nobodys.sum()):,} rows name no site")
    if rows.patients is not None and (both := np.intersect1d(rows.patients[train], rows.patients[test])).size:
        of_one = rows.patients == both[0]
        first, other = (place(int(np.flatnonzero(of_one & part)[0])) for part in (train, test))
        sentences.append(
            f"{counted(len(both), 'patient')} {'has' if len(both) == 1 else 'have'} rows for training and for testing "
            f"({first} and {other}): put all of a patient into one part"
        )
    categories = (*rows.categories, *(rules.categories if rules else ()))
    refused = {column.name: _refused(column, rows.columns.get(column.name), categories) for column in columns}
    sentences += filter(None, refused.values())
    kept = {called: CheckedTarget(of[train], _classes(of)[1] is not None, called) for called, of in targets.items()}
    table = CheckedTable(
        {name: values[train] for name, values in rows.columns.items() if not refused[name]},
        list(kept.values()),
        None if rows.clients is None else rows.clients[train],
        rows.client_names,
        [site.test for site in sites] if rows.test is not None and not rows.common_test and rows.when is None else None,
        rules,
        _what(rows),
        rows.measured,
        rows.patients is not None,
        keys=rows.keys,  # type: ignore[arg-type]
    )
    sentences += checks.notes(table)
    gaps = [column.name for column in columns if 0 < column.missing < 1]
    if gaps and rules is None:
        sentences.append(f"column{'s' * (len(gaps) > 1)} {some(gaps)} {checks.have(gaps)} gaps: fill with preprocess")
    return tuple(sentences)


def _refused(column: ColumnLook, values: Array | None, categories: Collection[str]) -> str:
    """A sentence on a column that a run would refuse as it is; empty for any other."""
    if values is None:
        return (
            f"column {column.name!r} holds dates or spans of time: make numbers of them, leave it out, or test on the "
            f"latest rows by latest = {column.name!r}"
        )
    if column.missing == 1:
        return f"column {column.name!r} has no value at all: leave it out"
    if values.dtype.kind == "f":
        beyond = np.flatnonzero(np.abs(values) > LARGEST)
        return (
            f"column {column.name!r} is {values[beyond[0]]:g} in {place(beyond[0])}: correct it" if len(beyond) else ""
        )
    words = [v for v in values if v is not None]
    return "" if column.name in categories else numbers_as_words(column.name, words)


def _what(rows: Rows) -> str:
    if not rows.measured:
        return "rows"
    of = {"brightness": "images", "channel 0 mean": "examples", "number of words": "texts"}
    return next((what for name, what in of.items() if name in rows.columns), "rows")


def _of_target(called: str, target: Array) -> list[str]:
    """Sentences on a target that a run would refuse."""
    if target.dtype.kind not in "Of":
        return []
    if target.dtype.kind == "f":
        missing, endless = np.isnan(target), np.isinf(target)
        sentences = [_valueless(called, int(missing.sum()))] if missing.any() else []
        if endless.any():
            sentences.append(f"{called} is infinite in {place(int(endless.argmax()))}: correct it")
        return sentences
    words = [word for word in target.tolist() if word != NO_VALUE]
    if not words:
        return [f"{called} has no value at all: name another column"]
    if all(map(is_date, words)):
        return [f"{called} holds dates, such as {words[0]}: make numbers of them, or name another column"]
    known = len(set(words))
    many = known > MOST_CLASSES and 2 * known > len(words)
    of_time = all(map(is_clock, words)) and (many or all(word.count(":") == 2 for word in words))
    sentences = []
    if of_time:
        sentences.append(
            f"{called} holds spans of time or times of day, such as {words[0]}: make numbers of them, such as hours, "
            "or name another column"
        )
    if len(words) < len(target):
        sentences.append(_valueless(called, len(target) - len(words)))
    if many and not of_time:
        sentences.append(f"{called} holds {known:,} different words in {len(words):,} rows: group them")
    return sentences


def _valueless(called: str, rows: int) -> str:
    return f"{called} has no value in {counted(rows, 'row')}: leave {'it' if rows == 1 else 'them'} out"
