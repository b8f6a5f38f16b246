"""Doubts about data of one's own, in sentences: a run warns of them, and `us.describe` tells those of tables before.

They are of the training rows.  Which rows are for testing may not be known yet: then all are.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unskew.data.dataset import Dataset
from unskew.data.inputs import Array, RawTable, are_windows, gaps_in, value_of
from unskew.data.preprocess import (
    ColumnRule,
    Preprocess,
    far_from_agreed,
    far_from_others,
    missing_here,
    moments_of_sites,
    stands_for_none,
    target_for_none,
    unagreed,
)
from unskew.data.variants import column_variants
from unskew.tasks.targets import NUMBER, SURVIVAL
from unskew.words import letters, some, spelling_variants

FEW_ROWS = 5
"""Training rows below which a client is named."""

MOST_CLASSES = 20
"""Different values of a target up to which they may be classes however few rows each has."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """The training rows of a table.

    Attributes:
        columns: Inputs by name, gaps included, each (N,).
        targets: What is to be learnt: words or numbers, each (N,).
        owners: Number of each row's client in `clients`, (N,), -1 where it has none; None if there are no clients.
        clients: Their names.
    """

    columns: RawTable
    targets: Sequence[Array] = ()
    owners: npt.NDArray[np.int64] | None = None
    clients: tuple[str, ...] = ()


def have(names: Collection[object]) -> str:
    """The verb after these names."""
    return "has" if len(names) == 1 else "have"


def of_sites(data: Dataset, alone: bool = False, untested_told: bool = False) -> list[str]:
    """Sentences on the clients that somebody's data name, and on their labels, whatever the inputs are.

    Args:
        data: The data set.
        alone: The examples are those of one client of several.
        untested_told: Clients without test examples have been named.
    """
    train = np.ones(len(data.y_train), bool) if data.own_test is None else ~data.own_test.numpy()
    labels = data.labels.numpy()
    what = "images" if len(data.input_shape) > 1 else "rows"
    if data.inputs.kind == "as given" and are_windows(data.input_shape):
        what = "examples"
    sentences = []
    if alone and train.sum() < FEW_ROWS:
        sentences.append(f"there are fewer than {FEW_ROWS} training {what} here: too few to train on alone")
    elif alone and data.targets.classes and len(data.classes) > 1:
        present = np.unique(labels[train])
        if len(present) == 1:
            sentences.append(f"all training {what} here are of one class, {data.classes[int(present[0])]}")
    owners, clients = None if data.owners is None else data.owners.numpy(), data.client_names
    if data.targets in (NUMBER, SURVIVAL):
        one = data.y_train.numpy().reshape(len(train), -1)[train, 0]
        called = "the target" if data.targets is NUMBER else "the time"
        sentences += of_target(called, one, None if owners is None else owners[train], clients)
    if owners is None:
        return sentences
    trained = np.bincount(owners[train], minlength=len(clients)).tolist()
    tested = None if data.own_test is None else np.bincount(owners[~train], minlength=len(clients)).tolist()
    sentences += of_clients(clients, trained, tested, untested_told, data.patients is not None, what)
    if data.targets.classes:
        sentences += of_one_class(labels[train], owners[train], clients, what)
    if data.targets is SURVIVAL:
        happened = data.y_train[:, 1].numpy() > 0
        events = np.bincount(owners[train & happened], minlength=len(clients)).tolist()
        sentences += of_no_event(clients, trained, events, what)
    return sentences


def of_clients(
    clients: Sequence[str],
    trained: Sequence[int],
    tested: Sequence[int] | None,
    untested_told: bool = False,
    of_patients: bool = False,
    what: str = "rows",
) -> list[str]:
    """Sentences on clients of few rows, on those without test rows, and on names that are spelt alike (`letters`).

    Args:
        clients: Their names.
        trained: Training rows of each.
        tested: Test rows of each; None where each draws some of those for training.
        untested_told: Those without test rows have been named.
        of_patients: It is known who is in each row.
        what: What they have.
    """
    sentences = []
    test_rows = trained if tested is None else tested
    few = {name: n for name, rows, n in zip(clients, trained, test_rows, strict=True) if rows < FEW_ROWS}
    if few:
        little = f", and with few test {what} its results say little" if any(few.values()) else ""
        sentences.append(
            f"{some(list(few))} {have(few)} fewer than {FEW_ROWS} training {what}: too few to train on alone{little}"
        )
    untested = [name for name, n in zip(clients, test_rows, strict=True) if n == 0]
    if untested and not untested_told:
        sentences.append(
            f"{some(untested)} {have(untested)} no test {what}: a result there cannot be measured, so nothing will "
            "tell whether to join"
        )
    if alike := spelling_variants(clients):
        both = ", or a patient who is at both counts as two, and may train and test" if of_patients else ""
        sentences.append(
            f"clients {alike} differ in case, accents or spaces alone: one client under several names? make "
            f"them one{both}"
        )
    return sentences


def of_numbers(labels: npt.NDArray[np.int64]) -> list[str]:
    """A sentence on classes that no row has, where labels are their numbers and nobody has named them.

    Args:
        labels: Class of each row, for training or testing, (N,).
    """
    count = np.bincount(labels)
    absent = list(map(str, np.flatnonzero(count == 0).tolist()))
    verb = "occurs" if len(absent) == 1 else "occur"
    return absent and [
        f"labels are whole numbers up to {len(count) - 1}, so there are {len(count)} classes, and {some(absent)} never "
        f"{verb}: number those that do 0, 1, ..., or give words as labels, unless these are classes, too"
    ]


def of_no_event(clients: Sequence[str], trained: Sequence[int], events: Sequence[int], what: str = "rows") -> list[str]:
    """A sentence on clients among whose training rows, if they are not few, no event happened.

    Args:
        clients: Their names.
        trained: Training rows of each.
        events: Those with an event.
        what: What they have.
    """
    none = [c for c, rows, n in zip(clients, trained, events, strict=True) if rows >= FEW_ROWS and not n]
    return none and [
        f"{some(none)} {have(none)} no event among the training {what}: a loss over events learns nothing there, and "
        "in a mean of models it counts all the same"
    ]


def of_one_class(
    labels: npt.NDArray[np.int64], owners: npt.NDArray[np.int64], clients: Sequence[str], what: str = "rows"
) -> list[str]:
    """A sentence on clients whose training rows, if they are not few, are of one class.

    Args:
        labels: Class of each training row, (N,).
        owners: Number of its client, (N,), -1 where it has none.
        clients: Their names.
        what: What they have.
    """
    held, width = owners >= 0, int(labels.max(initial=0)) + 1
    rows = np.bincount(owners[held], minlength=len(clients))
    kinds = np.bincount(np.unique(owners[held] * width + labels[held]) // width, minlength=len(clients))
    single = [clients[i] for i in np.flatnonzero((rows >= FEW_ROWS) & (kinds == 1)).tolist()]
    return single and [
        f"{some(single)} {have(single)} training {what} of one class only: a model trained there alone learns nothing "
        "but to say it"
    ]


def of_target(what: str, values: Array, owners: npt.NDArray[np.int64] | None, clients: Sequence[str]) -> list[str]:
    """Sentences on a target of numbers, that of a site far from those of others and numbers for no value.

    Args:
        what: The target.
        values: Of each training row, (N,).
        owners: Number of its client, (N,), -1 where it has none; None if there are no clients.
        clients: Their names.
    """
    finite = np.where(np.isfinite(values), values, np.nan)
    far = far_from_others(what, moments_of_sites(finite, owners, clients))
    return [*filter(None, [far, target_for_none(what, values)])]


def of_column(name: str, table: TrainingRows, rules: Preprocess | None = None, one_client: bool = False) -> list[str]:
    """Sentences on a column.

    Args:
        name: The column.
        table: The rows.
        rules: What becomes of the columns, if that is known.
        one_client: The rows are those of one client of several.
    """
    values, owners, clients = table.columns[name], table.owners, table.clients
    rule = (rules.columns.get(name) if rules else None) or ColumnRule()
    own_scale = rules is not None and (rule.scale or rules.scale) == "site"  # which takes a site's unit away
    agreed = rule.words or ()
    strange = unagreed(values, agreed)[0] if agreed else []
    alike = set(map(letters, agreed))  # what is spelt like these is named below
    sentences = []
    if rules is not None and (strange := [one for one in strange if letters(one) not in alike]):
        becomes = "0 in all their columns" if rules.unseen == "none" else "one column of other words"
        sentences.append(
            f"column {name!r} holds words that were not agreed on, and become {becomes}: {some(strange)} "
            f"(agreed: {some(agreed)})"
        )
    far = missing = other = spelt = ""
    if one_client and rules is not None:
        far = "" if own_scale else far_from_agreed(name, values, rule)
        missing = missing_here(name, values) if own_scale else ""
    if not own_scale:
        other = _constant_at(name, table)
        other = other or far_from_others(f"column {name!r}", moments_of_sites(values, owners, clients))
    if values.dtype.kind == "O":
        spelt = column_variants(name, values, owners, clients, agreed) or _codes_beside_words(name, table)
    none = far or stands_for_none(name, values)
    missing = missing or _without_value(name, table)
    return [*sentences, *filter(None, [missing, none, other, spelt])]


def _without_value(name: str, table: TrainingRows) -> str:
    """A sentence on sites at which a column has no value; empty if all have some, or none has."""
    if table.owners is None:
        return ""
    rows, present = (
        np.bincount(table.owners[of & (table.owners >= 0)], minlength=len(table.clients))
        for of in (np.ones(len(table.owners), bool), ~gaps_in(table.columns[name]))
    )
    silent = [table.clients[i] for i in np.flatnonzero((rows > 0) & (present == 0)).tolist()]
    return f"column {name!r} has no value at {some(silent)}" if silent and present.any() else ""


def _constant_at(name: str, table: TrainingRows) -> str:
    """A sentence on sites of 20 rows or more at which a column of many numbers has only one; empty if none does."""
    values = table.columns[name]
    if table.owners is None or values.dtype.kind != "f" or len(np.unique(values)) < 10:
        return ""
    order = np.argsort(table.owners)
    sites, first, rows = np.unique(table.owners[order], return_index=True, return_counts=True)
    low, high = (of.reduceat(values[order], first) for of in (np.minimum, np.maximum))
    constant = np.flatnonzero((sites >= 0) & (rows >= 20) & (low == high)).tolist()
    there = [f"{table.clients[sites[i]]} ({low[i]:g})" for i in constant]
    return f"column {name!r} has one value only at {some(there)}: not measured there?" if there else ""


def _codes_beside_words(name: str, table: TrainingRows) -> str:
    """A sentence on sites that write a column of words in numbers alone; empty if none or all do."""
    if table.owners is None:
        return ""
    sides: dict[bool, list[str]] = {}
    for i, client in enumerate(table.clients):
        held = {word for word in table.columns[name][table.owners == i].tolist() if isinstance(word, str)}
        if len(kinds := {value_of(word) is not None for word in held}) == 1:
            sides.setdefault(kinds.pop(), []).append(client)
    if len(sides) < 2:
        return ""
    return (
        f"column {name!r} holds numbers at {some(sides[True])} and words at {some(sides[False])}, which count as "
        "different: write them alike"
    )
