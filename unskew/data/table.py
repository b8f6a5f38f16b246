"""The one form in which checks see data: the columns of training rows, what is learned, and who has the rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from unskew.data.dataset import Dataset
from unskew.data.images import stored
from unskew.data.inputs import ROWS, Array, RawTable, are_windows
from unskew.data.preprocess import ColumnRule, Preprocess
from unskew.keys import Key
from unskew.tasks.targets import NUMBER, SURVIVAL

Ints = npt.NDArray[np.int64]

MOST_COMPARED = 100
"""Sites up to which each one's numbers are compared with those of the others."""

MOST_COLUMNS = 64
"""Numbers of a row without names up to which they are columns of a table, of few values perhaps."""

FEW_VALUES = 5
"""Entries of an input that differ from its last one, from which on two inputs are hardly equal by chance."""


@dataclass(frozen=True, eq=False)
class CheckedTarget:
    """Targets of the rows: words, numbers of classes, or numbers, (N,), and what they are called."""

    values: Array
    classes: bool
    called: str = "the target"

    def of(self, sentence: str) -> str:
        """A sentence, with the name of one of several targets before it."""
        return f"{self.called}: {sentence}" if self.called.startswith("target ") else sentence


@dataclass(frozen=True, eq=False)
class CheckedTable:
    """Rows for training, and those for testing.

    Attributes:
        columns: Inputs by name, gaps included, each (N,); of images and windows what is `measured` on them.
        targets: What is learned.
        owners: Number of each row's client in `clients`, (N,), -1 where it has none; None if there are no clients.
        clients: Their names.
        tested: Number of test rows of each client; None where each draws some of those for training.
        rules: What becomes of the columns, if that is known.
        what: What the rows are: rows, images, examples.
        measured: The columns are measured on the inputs, and no columns of a table.
        people: It is known who is in a row.
        alone: The rows are those of one client of several.
        labels: Names of the classes 0, 1, ...; empty where labels are words.
        declared: Somebody has named the classes, which are meant.
        absent: Those of them that no row has, where nobody has named them.
        keys: A number of each row for training and each for testing, equal where inputs and targets are, and what
            chance makes of a test row; empty if they are not compared.
    """

    columns: RawTable
    targets: Sequence[CheckedTarget] = ()
    owners: Ints | None = None
    clients: tuple[str, ...] = ()
    tested: Sequence[int] | None = None
    rules: Preprocess | None = None
    what: str = "rows"
    measured: bool = False
    people: bool = False
    alone: bool = False
    labels: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    declared: bool = False
    keys: tuple[Array, Array, Array] | tuple[()] = field(default=())

    @property
    def rows(self) -> int:
        """The number of training rows."""
        values = [*self.columns.values(), *(target.values for target in self.targets)]
        return len(values[0]) if values else 0

    def at(self, client: int) -> npt.NDArray[np.bool_]:
        """True for a client's rows, (N,)."""
        return np.zeros(self.rows, bool) if self.owners is None else self.owners == client

    def count(self, of: npt.NDArray[np.bool_] | None = None) -> Ints:
        """Rows of each client, or those of them that are true here, (clients,)."""
        owners = np.empty(0, np.int64) if self.owners is None else self.owners[slice(None) if of is None else of]
        return np.bincount(owners[owners >= 0], minlength=len(self.clients))

    def names(self, of: npt.NDArray[np.bool_]) -> list[str]:
        """The clients for which it is true, (clients,)."""
        return [self.clients[i] for i in np.flatnonzero(of).tolist()]

    @property
    def compared(self) -> tuple[str, ...]:
        """The clients, if they are few enough to be compared one by one."""
        return self.clients if len(self.clients) <= MOST_COMPARED else ()

    def called(self, name: str) -> str:
        """A column in a sentence."""
        return f"the {name}" if self.measured else f"column {name!r}"

    def by_site(self, name: str) -> bool:
        """True for a column that each client scales with numbers of its own, which takes its unit away."""
        return self.rules is not None and (self.rule(name).scale or self.rules.scale) == "site"

    def rule(self, name: str) -> ColumnRule:
        """The rules for one column."""
        return self.rules.columns.get(name, ColumnRule()) if self.rules else ColumnRule()


def table_of(data: Dataset, alone: bool = False) -> CheckedTable:
    """The rows of a data set; `alone` if they are those of one client of several."""
    train = slice(None) if data.own_test is None else ~data.own_test.numpy()
    x, x_test = stored(data.x_train).numpy()[train], stored(data.x_test).numpy()
    owners = None if data.owners is None else data.owners.numpy()
    y, y_test = data.y_train.numpy()[train], data.y_test.numpy()
    pairs = [*zip(y.reshape(len(y), -1).T, y_test.reshape(len(y_test), -1).T, strict=True)]
    columns: dict[str, Array] = {}
    keys: tuple[Array, ...]
    if data.raw is not None:
        columns = {name: values[train] for name, values in data.raw.train.items()}
        keys = keys_of([*columns.values()], [data.raw.test[name] for name in columns], pairs)
    else:
        keys = keys_of_inputs(x, x_test, y, y_test)
        if data.inputs.kind == "table":
            columns = {column.name: x[:, i].astype(np.float64) for i, column in enumerate(data.inputs.columns)}
        elif data.inputs.kind == "texts":
            columns = {"number of words": (x != 0).sum(1, dtype=np.float64)}
        elif x.ndim > 2:
            columns = measured(x, data.inputs.kind == "images")
            if x.dtype == np.uint8:  # which become standardised floats, batch by batch
                columns = {name: values / 255 for name, values in columns.items()}
    if data.targets.classes and y.ndim == 1:
        targets = [CheckedTarget(y, True)]
    elif data.targets is SURVIVAL:
        targets = [CheckedTarget(y[:, 0], False, "the time"), CheckedTarget(y[:, 1], True, "the event")]
    else:
        targets = [CheckedTarget(y, False)] if data.targets is NUMBER else []
    labels = data.classes if data.targets.classes else ()
    named = data.ordered or data.label_type != "integer" or labels != tuple(map(str, range(len(labels))))
    present = {*data.y_train.flatten().tolist(), *data.y_test.flatten().tolist()} if labels and not named else set()
    what = "texts" if data.inputs.kind == "texts" else "images" if x.ndim > 2 else "rows"
    if data.inputs.kind == "as given" and are_windows(data.input_shape):
        what = "examples"
    return CheckedTable(
        columns,
        targets,
        None if owners is None else owners[train],
        data.client_names,
        None
        if owners is None or data.own_test is None
        else [*np.bincount(owners[data.own_test.numpy()], None, len(data.client_names))],
        None if data.raw is None else data.raw.rules,
        what,
        measured=what != "rows",
        people=data.patients is not None,
        alone=alone,
        labels=labels,
        absent=() if alone or named else tuple(labels[i] for i in range(len(labels)) if i not in present),
        declared=data.ordered,
        keys=keys,  # type: ignore[arg-type]
    )


def measured(x: Array, images: bool = False) -> dict[str, Array]:
    """Brightness and contrast of each image, or mean and spread of each channel of each window."""
    windows = None if images else windows_of(x)
    pictures = x.reshape(len(x), 1, -1) if windows is None else windows
    parts = [pictures[i : i + ROWS] for i in range(0, len(x), ROWS)]
    means, spreads = (np.concatenate([of(part, 2, np.float64) for part in parts]) for of in (np.mean, np.std))
    if windows is None:
        return {"brightness": means[:, 0], "contrast": spreads[:, 0]}
    return {
        f"channel {i} {what}": values
        for i, pair in enumerate(zip(means.T, spreads.T, strict=True))
        for what, values in zip(("mean", "spread"), pair, strict=True)
    }


def windows_of(x: Array) -> Array | None:
    """Inputs as windows (N, channels, steps), the shorter dimension for channels; None if they are none."""
    if x.dtype.kind != "f" or not are_windows(x.shape[1:]):
        return None
    flat = x.reshape(len(x), *x.shape[-2:])
    return flat if flat.shape[1] < flat.shape[2] else np.moveaxis(flat, 2, 1)


# ---------------------------------------------------------------- equal rows
def keys_of(train: Sequence[Array], test: Sequence[Array], more: Sequence[tuple[Array, Array]]) -> tuple[Array, ...]:
    """Keys of rows, as `CheckedTable.keys`: chance makes n f_a f_b f_c rows equal in the three rarest values.

    More columns are not multiplied, because real ones depend on each other.  Frequencies f are taken over different
    rows, so that copies do not vouch for each other; those of values that occur once are estimated (I. J. Good, 1953).

    Args:
        train, test: The columns of both, in one order.
        more: The targets of both.
    """
    n = len(more[0][0])
    codes = [codes_of(np.concatenate([*map(_plain, pair)]))[0] for pair in zip(train, test, strict=True)]
    targets = [codes_of(np.concatenate([*map(_plain, pair)]))[0] for pair in more]
    drawn = (Key(0) / "copies").numpy().integers(1 << 63, size=len(codes) + len(targets), dtype=np.uint64)
    keys = np.zeros(len(targets[0]), np.uint64)
    for code, factor in zip([*codes, *targets], drawn * np.uint64(2) + np.uint64(1), strict=True):
        keys += code.astype(np.uint64) * factor
    first = np.unique(keys, return_index=True)[1]
    rarest = np.ones((len(keys) - n, 3))
    for code in codes:
        times = np.bincount(code[first], minlength=int(code.max()) + 1)
        once, twice = int((times == 1).sum()), int((times == 2).sum())
        share = times / len(first) * np.where(times == 1, min(1.0, 2 * (twice + 1) / (once + 1)), 1.0)
        rarest = np.sort(np.column_stack([rarest, share[code[n:]]]))[:, :3]
    return keys[:n], keys[n:], n * rarest.prod(1)


def _plain(values: Array) -> Array:
    return np.array(["" if v is None else str(v) for v in values]) if values.dtype.kind == "O" else values


def keys_of_inputs(train: Array, test: Array, y: Array, y_test: Array) -> tuple[Array, ...]:
    """Keys of images, texts and long rows, which copying alone makes equal, unless nearly all of one is one value."""
    y, y_test = (np.ascontiguousarray(of.reshape(len(of), -1)) for of in (y, y_test))
    if train.ndim == 2 and train.dtype.kind == "f" and train.shape[1] <= MOST_COLUMNS:
        return keys_of([*train.T], [*test.T], [*zip(y.T, y_test.T, strict=True)])
    both = []
    for x, labels in ((train, y), (test, y_test)):
        keys: list[bytes] = []
        for i in range(0, len(x), ROWS):
            rows = np.ascontiguousarray(x[i : i + ROWS]).reshape(len(x[i : i + ROWS]), -1)
            differ = (rows != rows[:, -1:]).sum(1) >= FEW_VALUES
            for row, label, varied in zip(rows, labels[i : i + ROWS], differ, strict=True):
                keys.append(blake2b(row.tobytes() + label.tobytes()).hexdigest().encode() if varied else b"")
        both.append(np.array(keys))
    return both[0][both[0] != b""], both[1], np.where(both[1] == b"", 1.0, 0.0)


def codes_of(values: Array) -> tuple[Ints, Ints]:
    """A number for each different value, and how often each occurs; gaps are one."""
    words = np.array(["" if v is None else str(v) for v in values]) if values.dtype.kind == "O" else values
    _, code, times = np.unique(words, return_inverse=True, return_counts=True)
    return code, times
