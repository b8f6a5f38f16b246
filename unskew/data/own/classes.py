"""Classes and targets: the labels' order, their names, and labels that the task does not take."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unskew.data.checks import MOST_CLASSES
from unskew.data.inputs import column_values, is_clock, is_gap, kind_of_time
from unskew.data.lengths import check_words
from unskew.data.own.given import GivenExamples
from unskew.data.own.values import Array
from unskew.data.places import place
from unskew.errors import DataError, did_you_mean
from unskew.tasks.targets import LabelType, Targets, mislabelled
from unskew.words import composed, some


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


def label_name(label: Any) -> str:
    """A label as the name of its class."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def _declares(order: Sequence[Any]) -> bool:
    """True for an order of labels that they do not have anyhow, as rising numbers do."""
    return any(isinstance(label, str) for label in order) or list(order) != sorted(order)


def one_order(what: str, labels: Mapping[str, tuple[Sequence[Any], Any]]) -> tuple[Any, ...]:
    """The order of labels that places declare, each by its order and its labels; empty if none does.

    Raises:
        DataError: If two declare another order, or a place has a label that is not in it.
    """
    orders = {where: order for where, (order, _) in labels.items() if order}
    if not any(map(_declares, orders.values())):
        return ()
    first = max(orders, key=lambda where: len(orders[where]))
    known, way = list(map(label_name, orders[first])), "give all the same categories in one order"
    for where, (order, of) in labels.items():
        own = list(map(label_name, order)) or known
        if own != [name for name in known if name in own]:
            raise DataError(
                f"{what} is an ordered category of {', '.join(known)} {first}, and of {', '.join(own)} {where}; {way}"
            )
        strange = next(
            (one for one in column_values(of).tolist() if not is_gap(one) and label_name(one) not in known), None
        )
        if strange is not None:
            raise DataError(
                f"{what} is {strange!r} {where}, none of the ordered categories {first} ({', '.join(known)}); {way}"
            )
    return tuple(orders[first])


def order_at_clients(what: str, labels: Mapping[Any, Any]) -> tuple[Any, ...]:
    """The order that clients' labels declare, as `one_order`."""
    return one_order(what, {f"at client {name}": (order_of(of), of) for name, of in labels.items()})


def classes_of(name: str, labels: Array) -> Array:
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
        if is_gap(label) or not isinstance(label, str | bool | int | float):
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


def by_name(rows: GivenExamples, held_out: GivenExamples, declared: Sequence[str] | None) -> GivenExamples:
    """The test part with labels of the same names as those of the training part, where both name their classes.

    Raises:
        DataError: If it names another class, or has a number without a name.
    """
    own, words = held_out.classes, rows.y.dtype.kind == "U"
    names = own if words and rows.classes is None else rows.classes
    if own is None or names is None or held_out.y.dtype.kind == "U" or own == tuple(map(str, range(len(own)))):
        return held_out  # numbers that are called 0, 1, ... have no names
    if not set(own) <= set(names):
        raise DataError(
            f"the test part names its classes {some(own)}, and the training part {some(names)}; give both the same "
            "names, of which the test part may lack some"
        )
    strange = np.flatnonzero((held_out.y < 0) | (held_out.y >= len(own)))
    if len(strange):
        raise DataError(
            f"the label of {place(strange[0])} of the test part is {held_out.y[strange[0]]}, and its {len(own)} "
            f"classes ({some(own)}) are numbered from 0; correct it, or leave the row out"
        )
    codes = declared is not None and names_of_codes([rows.y], rows, tuple(declared), False) is not None
    labels = np.array(own) if words else np.array([int(name) if codes else names.index(name) for name in own])
    return replace(held_out, y=labels[held_out.y], classes=names)


def check_named(rows: GivenExamples, classes: Sequence[str] | None, where: str) -> None:
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


def check_target(rows: GivenExamples, column: str, targets: Targets) -> None:
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
    many = len(known) > MOST_CLASSES and 2 * len(known) > len(values) and rows.classes is None
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


def names_of_codes(
    labels: Sequence[Array], rows: GivenExamples, classes: tuple[str, ...] | None, one_client: bool
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


def are_truths(labels: Array) -> bool:
    """True if all labels are true or false, not words for it."""
    return labels.dtype.kind == "b" or (
        labels.dtype.kind == "O" and labels.ndim == 1 and all(isinstance(label, bool) for label in labels.tolist())
    )


def type_of_labels(code_names: Sequence[str] | None, declared: Sequence[str] | None, truths: bool) -> LabelType | None:
    """The type of labels that are written as `code_names` or are truths; None leaves it to how they are kept.

    Classes that are declared may have other names than the labels that are there: all are words then.
    """
    label_type: LabelType | None = "integer" if code_names else "boolean" if truths else None
    names = code_names or declared or ()
    return label_type if label_type is None or not mislabelled(names, label_type) else None


def label_names(target: str | Sequence[str] | None, targets: Targets) -> tuple[str, ...] | None:
    """The columns of the target as names of a network's outputs, where it has one for each; None elsewhere."""
    several = () if target is None or isinstance(target, str) else tuple(target)
    return several if len(several) > 1 and len(targets.outputs(len(several))) == len(several) else None


def kinds_of_labels(labels: Array) -> set[str]:
    """The kinds of labels, missing ones left out."""
    if labels.dtype.kind != "O":
        return {{"b": "true or false", "U": "words"}.get(labels.dtype.kind, "numbers")}
    return {
        "words" if isinstance(label, str) else "true or false" if isinstance(label, bool | np.bool_) else "numbers"
        for label in labels.flat
        if not is_gap(label)
    }


def check_named_alike(rows: GivenExamples, held_out: GivenExamples) -> None:
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
