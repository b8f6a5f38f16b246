"""What may not be meant in a user's data, each said in one sentence that names the column, the client or the number.

`notes` runs the list once, behind the door: for a run, a deployed client, `us.describe` and the command alike.  What
cannot be meant is refused where it is read.  Checks look at training rows, and at test rows for copies alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from unskew.data.dataset import Dataset
from unskew.data.images import stored
from unskew.data.inputs import ROWS, Array, RawTable, are_windows, gaps_in, value_of, word
from unskew.data.patients import most_frequent, unnamed_patients
from unskew.data.preprocess import ColumnMoments, ColumnRule, ColumnSums, Preprocess, agreed
from unskew.data.text import LENGTH
from unskew.errors import warn
from unskew.keys import Key
from unskew.tasks.targets import NUMBER, SURVIVAL
from unskew.words import counted, letters, separate_classes, some, spelling_variants

Ints = npt.NDArray[np.int64]

FEW_ROWS = 5
"""Training rows below which a client is named."""

MOST_CLASSES = 20
"""Different values of a target up to which they may be classes however few rows each has."""

ENOUGH = 40
"""Rows of which more tell something of a column."""

FAR = 20
"""Standard deviations of the others' rows from their mean, beyond which a site's mean is hardly in the same unit."""

MOST_COMPARED = 100
"""Sites up to which each one's numbers are compared with those of the others."""

LARGE = 100.0
"""Root mean square from which on a column of numbers outweighs others that are about 1."""

NINES = tuple(sign * (10.0**digits - 1) for digits in range(2, 10) for sign in (-1, 1))
"""Numbers such as -999, which stand for no value in many tables."""

MOST_COLUMNS = 64
"""Numbers of a row without names up to which they are columns of a table, of few values perhaps."""


@dataclass(frozen=True, eq=False)
class Target:
    """What is learned: words, numbers of classes, or numbers, (N,), and what it is called; one of several by name."""

    values: Array
    classes: bool
    called: str = "the target"

    def of(self, sentence: str) -> str:
        """A sentence, with the name of one of several targets before it."""
        return f"{self.called}: {sentence}" if self.called.startswith("target ") else sentence


@dataclass(frozen=True, eq=False)
class Table:
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
    targets: Sequence[Target] = ()
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
        rule = self.rules.columns.get(name, ColumnRule()) if self.rules else ColumnRule()
        return self.rules is not None and (rule.scale or self.rules.scale) == "site"


def have(names: Sequence[object]) -> str:
    """The verb after these names."""
    return "has" if len(names) == 1 else "have"


# ---------------------------------------------------------------- clients
def few_rows(table: Table) -> Iterable[str]:
    """Clients with too few rows to train on."""
    if table.alone:
        return [f"there are fewer than {FEW_ROWS} training {table.what} here: too few to train on alone"] * (
            table.rows < FEW_ROWS
        )
    few = table.names(table.count() < FEW_ROWS)
    return few and [f"{some(few)} {have(few)} fewer than {FEW_ROWS} training {table.what}: too few to train on alone"]


def untested(table: Table) -> Iterable[str]:
    """Clients without test rows."""
    none = [name for name, n in zip(table.clients, table.tested or (), strict=False) if n == 0]
    return none and [
        f"{some(none)} {have(none)} no test {table.what}: a result there cannot be measured, so nothing will tell "
        "whether to join"
    ]


def spelt_alike(table: Table) -> Iterable[str]:
    """Clients, labels and words that differ in case, accents or spaces alone."""
    if alike := spelling_variants(table.clients):
        yield f"clients {alike} differ in case, accents or spaces alone: one client under several names? make them one"
    for target in () if table.declared else table.targets:
        values = np.array(table.labels)[target.values] if table.labels and target.classes else target.values
        if values.dtype.kind in "OU" and (alike := spelling_variants(*_held(values, table))):
            yield target.of(separate_classes(alike))
    for name, values in table.columns.items():
        known = (table.rules.columns.get(name, ColumnRule()).words if table.rules else None) or ()
        if values.dtype.kind != "O" or {v for v in values.tolist() if v is not None} <= set(known):
            continue
        if alike := spelling_variants(*_held(values, table, known)):
            yield (
                f"column {name!r} holds words that differ in case, accents or spaces alone, and each counts as "
                f"another one: {alike}; write them alike"
            )


def _held(values: Array, table: Table, known: Sequence[str] = ()) -> tuple[list[str], Callable[[str], str]]:
    """The different words among values, and who holds one."""

    def held(one: str) -> str:
        rows = np.flatnonzero(values == one)
        who = [] if table.owners is None else [table.clients[i] for i in np.unique(table.owners[rows]) if i >= 0]
        return f"{'only ' * (len(who) == 1 < len(table.clients))}{some(who)}" if who else counted(len(rows), "row")

    return [*known, *sorted({v for v in values.tolist() if isinstance(v, str)} - set(known))], held


def one_class(table: Table) -> Iterable[str]:
    """Clients whose rows, if they are not few, are of one class."""
    for target in table.targets:
        if not target.classes or target.called == "the event":
            continue
        if table.alone and table.rows >= FEW_ROWS and len(table.labels) != 1 == len(np.unique(target.values)):
            name = table.labels[int(target.values[0])] if table.labels else target.values[0]
            yield f"all training {table.what} here are of one class, {name}"
        codes, enough = _codes(target.values)[0], table.count() >= FEW_ROWS
        owners = np.full(table.rows, -1) if table.owners is None else table.owners
        kinds = np.unique(np.stack([owners, codes]), axis=1)[0]
        single = table.names(enough & (np.bincount(kinds[kinds >= 0], minlength=len(table.clients)) == 1))
        if single:
            yield target.of(
                f"{some(single)} {have(single)} training {table.what} of one class only: a model trained there alone "
                "learns nothing but to say it"
            )


def no_event(table: Table) -> Iterable[str]:
    """Clients among whose rows, if they are not few, no event happened."""
    for target in table.targets:
        if target.called == "the event":
            none = table.names((table.count() >= FEW_ROWS) & (table.count(target.values > 0) == 0))
            if none:
                yield f"{some(none)} {have(none)} no event among the training {table.what}: a loss learns nothing there"


def no_such_class(table: Table) -> Iterable[str]:
    """Classes that no row has, where labels are their numbers and nobody has named them."""
    return table.absent and [
        f"there are classes 0 to {len(table.labels) - 1}, and {some(table.absent)} never occur: number those that do "
        "0, 1, ..., or give words as labels, unless these are classes, too"
    ]


# ---------------------------------------------------------------- numbers
def far_from_others(table: Table) -> Iterable[str]:
    """Sites whose mean of a column or a target is so far from the others' that its unit may be another."""
    of = {table.called(name): values for name, values in table.columns.items() if not table.by_site(name)}
    for target in table.targets:
        if not target.classes:
            of[target.called] = np.where(np.isfinite(target.values), target.values, np.nan)
    for what, values in of.items():
        if values.dtype.kind in "fiu":
            moments = {c: ColumnMoments.of(values[table.at(i)].astype(float)) for i, c in enumerate(table.compared)}
            yield from far_among(what, {name: m for name, m in moments.items() if m.n})


def far_among(what: str, parts: Mapping[str, ColumnMoments]) -> Iterable[str]:
    """A sentence on the site whose mean is furthest from the others', if it is far."""
    apart = {site: _apart(own, [part for other, part in parts.items() if other != site]) for site, own in parts.items()}
    site = max(apart, key=lambda one: apart[one], default="")
    if site and apart[site] > FAR:
        others = agreed([part for other, part in parts.items() if other != site])
        yield (
            f"{what} has the mean {parts[site].mean:g} at {site}, and {others.mean:g} (standard deviation "
            f"{others.sd:g}) at the others: is it in the same unit there?"
        )


def _apart(own: ColumnMoments, others: Sequence[ColumnMoments]) -> float:
    """Standard deviations of the others' rows between their mean and a site's own; 0 where they have fewer than two."""
    together = agreed(others)
    if together.n < 2:
        return 0.0
    # Where the others' rows are all equal, there is no deviation to compare with.
    return abs(own.mean - together.mean) / (together.sd or max(abs(together.mean), 1.0))


def far_from_agreed(table: Table) -> Iterable[str]:
    """A client's numbers whose unit may not be the one agreed on."""
    for name, values in table.columns.items() if table.alone and table.rules else ():
        rule = table.rules.columns.get(name, ColumnRule()) if table.rules else ColumnRule()
        if values.dtype.kind != "f" or rule.mean is None or not rule.sd or np.isnan(values).all():
            continue
        middle = float(np.nanmedian(values))
        if abs(middle - rule.mean) > FAR * rule.sd and not table.by_site(name):
            yield (
                f"column {name!r} is about {middle:g} here, and the mean {rule.mean:g} (standard deviation "
                f"{rule.sd:g}) was agreed on: is it in the same unit?"
            )


def stands_for_none(table: Table) -> Iterable[str]:
    """Numbers such as -999 that return, farther from all others than these reach."""
    way = "leave it empty (data_options.gaps names such values of a CSV file)"
    of = [(table.called(name), values, way) for name, values in table.columns.items() if not table.measured]
    of += [(target.called, target.values, "leave such rows out") for target in table.targets if not target.classes]
    for what, values, remedy in of:
        if values.dtype.kind not in "fiu":
            continue
        known, times = np.unique(values[np.isfinite(values)], return_counts=True)
        rest = known[~np.isin(known, NINES)]
        for value, n in zip(known.tolist(), times.tolist(), strict=True) if len(rest) > 1 else ():
            far = max(rest[0] - value, value - rest[-1])
            if value in NINES and n > 2 and far > rest[-1] - rest[0] and far > abs(value) / 10:
                yield (
                    f"{what} is {value:g} in {counted(n, 'row')}, and from {rest[0]:g} to {rest[-1]:g} elsewhere: if "
                    f"that stands for no value, {remedy}"
                )
                break


def unscaled(table: Table) -> Iterable[str]:
    """The column that a network will stumble over."""
    size = {
        name: float(np.sqrt(np.nanmean(values**2)))
        for name, values in (table.columns.items() if table.rules is None and table.what != "texts" else ())
        if values.dtype.kind == "f" and np.isfinite(values).any()
    }
    large = [name for name, of in size.items() if of > (FAR if table.measured else LARGE)]
    if large:
        worst = max(large, key=lambda name: size[name])
        more = f", and {counted(len(large) - 1, 'more column')} {'is' if len(large) == 2 else 'are'} like it"
        way = "divide all by the same number" if table.measured else "scale them, in Python with preprocess=True"
        yield (
            f"{table.called(worst)} has a root mean square of {size[worst]:,.0f}{more * (len(large) > 1)}: most "
            f"networks train badly on such numbers; {way}"
        )


def empty_at(table: Table) -> Iterable[str]:
    """Sites at which a column has no value, or only one where others have many."""
    for name, values in table.columns.items():
        present = ~gaps_in(values)
        silent = table.names((table.count() > 0) & (table.count(present) == 0))
        if table.alone and table.by_site(name) and not present.any():
            yield f"column {name!r} has no value here, so nothing is learnt from it"
        elif silent and present.any():
            yield f"column {name!r} has no value at {some(silent)}"
        elif values.dtype.kind == "f" and not table.by_site(name) and len(np.unique(values)) >= 10:
            held = [(site, values[table.at(i)]) for i, site in enumerate(table.compared)]
            there = [f"{site} ({of[0]:g})" for site, of in held if len(of) >= 10 and (of == of[0]).all()]
            if there:
                yield f"{table.called(name)} has one value only at {some(there)}: not measured there?"


# ---------------------------------------------------------------- words
def cut_texts(table: Table) -> Iterable[str]:
    """Texts of which the end is not read."""
    share = float((table.columns["number of words"] >= LENGTH).mean()) if table.what == "texts" else 0.0
    if share >= 0.05:
        yield (
            f"{share:.0%} of the training texts have {LENGTH} words or more, and only the first {LENGTH} are read: put "
            "first what matters, or divide them"
        )


def codes_beside_words(table: Table) -> Iterable[str]:
    """Columns of words that some sites write in numbers alone."""
    for name, values in table.columns.items():
        sides: dict[bool, list[str]] = {}
        for i, client in enumerate(table.compared if values.dtype.kind == "O" else ()):
            kinds = {value_of(one) is not None for one in set(values[table.at(i)].tolist()) if isinstance(one, str)}
            if len(kinds) == 1:
                sides.setdefault(kinds.pop(), []).append(client)
        if len(sides) == 2:
            yield (
                f"column {name!r} holds numbers at {some(sides[True])} and words at {some(sides[False])}, which count "
                "as different: write them alike"
            )


def not_agreed(table: Table) -> Iterable[str]:
    """Words that were not agreed on; those spelt like one of these are named for that."""
    for name, values in table.columns.items() if table.rules else ():
        known = (table.rules.columns.get(name, ColumnRule()).words if table.rules else None) or ()
        present = {word(v) if isinstance(v, float) else v for v in values[~gaps_in(values)].tolist()}
        alike = set(map(letters, known))
        if known and (strange := sorted(one for one in present if one not in known and letters(one) not in alike)):
            yield f"column {name!r} holds words that were not agreed on: {some(strange)} (agreed: {some(known)})"


# ---------------------------------------------------------------- columns that say too much
def identifies(table: Table) -> Iterable[str]:
    """Columns that number or name the rows: words most of which differ, and whole numbers that never return."""
    yield from _named(
        [name for name, values in _columns(table) if _never_return(values, table)],
        "numbers or names the rows: nothing learnt from it holds for new ones",
    )


def _never_return(values: Array, table: Table) -> bool:
    present = ~gaps_in(values)
    values = values[present]
    if values.dtype.kind == "O":
        return len(set(values.tolist())) > max(MOST_CLASSES, len(values) / 2)
    if len(values) <= ENOUGH or (values % 1 != 0).any():
        return False
    sites = np.zeros(len(values)) if table.owners is None else table.owners[present]
    width = values.max() - values.min() + 1
    dense = width < 10 * len(values) or np.abs(values).min() > 1e6  # numbers drawn so densely would return
    return bool(dense and len(np.unique(np.stack([values, sites]), axis=1).T) == len(values))


def names_the_site(table: Table) -> Iterable[str]:
    """Columns of values that return, nearly each at one site alone."""
    if table.owners is not None:
        here, owners = table.owners >= 0, table.owners
        yield from _named(
            [name for name, of in _columns(table) if _tells(of[here], owners[here])],
            "tells the site by itself: nothing learnt from it holds at other sites",
        )


def gives_the_answer(table: Table) -> Iterable[str]:
    """Columns that tell a target: two classes by an AUROC above .99, more by their values, numbers by their order."""
    for target in table.targets:
        yield from _named(
            [name for name, of in _columns(table) if _gives(of, target)],
            f"tells {target.called} by itself: is it known only afterwards?",
        )


def _columns(table: Table) -> Iterator[tuple[str, Array]]:
    return iter(table.columns.items() if table.rows > ENOUGH and not table.measured else ())


def _named(columns: Sequence[str], what: str) -> Iterator[str]:
    if columns:
        yield f"column {some([repr(name) for name in columns])} {what}; leave it out by leave_out"


def _tells(values: Array, kinds: Array) -> bool:
    """True if rows are of the kind that most rows of their value are, but 1 %, and values return."""
    present = ~gaps_in(values)
    code, times = _codes(values[present])
    kind = _codes(kinds[present])[0]
    if len(kind) <= ENOUGH or (times[code] == 1).mean() > 0.1:
        return False
    wrong, most = int((most_frequent(code, kind)[code] != kind).sum()), int(np.bincount(kind).max())
    return wrong <= len(kind) / 100 and len(kind) - most >= max(ENOUGH, 10 * wrong)


def _gives(values: Array, target: Target) -> bool:
    present = ~gaps_in(values) & ~gaps_in(target.values)
    numbers, kind = values[present], _codes(target.values[present])[0]
    if len(kind) <= ENOUGH or not kind.any():
        return False
    if values.dtype.kind == "O":
        return target.classes and _tells(numbers, kind)
    ranks = rankdata(numbers)
    if not target.classes:
        return bool(np.ptp(ranks) and abs(np.corrcoef(ranks, rankdata(kind))[0, 1]) > 0.999)
    if kind.max() > 1:
        return _tells(numbers, kind)
    n = int(kind.sum())
    auroc = (ranks[kind == 1].sum() - n * (n + 1) / 2) / (n * (len(kind) - n))
    return min(n, len(kind) - n) >= FEW_ROWS and max(auroc, 1 - auroc) > 0.99


def _codes(values: Array) -> tuple[Ints, Ints]:
    """A number for each different value, and how often each occurs; gaps are one."""
    words = np.array(["" if v is None else str(v) for v in values]) if values.dtype.kind == "O" else values
    _, code, times = np.unique(words, return_inverse=True, return_counts=True)
    return code, times


def names_people(table: Table) -> Iterable[str]:
    """A column that seems to say who is in a row, where that is not known."""
    return [] if table.people or table.measured else unnamed_patients(table.columns)


# ---------------------------------------------------------------- copies
def copies(table: Table) -> Iterable[str]:
    """Test rows that stand in training although chance hardly makes them equal."""
    if table.keys:
        train, test, chance = table.keys
        improbable = chance < 0.01
        seen, expected = int((np.isin(test, train) & improbable).sum()), float(chance[improbable].sum())
        if seen > max(2, 5 * expected):
            yield (
                f"{seen:,} of {len(test):,} test {table.what} stand in training, too, where chance makes hardly any: "
                f"results on them are too good; give every {table.what.removesuffix('s')} to one part"
            )


def keys_of(train: Sequence[Array], test: Sequence[Array], more: Sequence[tuple[Array, Array]]) -> tuple[Array, ...]:
    """Keys of the rows of a table, as `Table.keys`: chance makes n f_a f_b f_c rows equal in the three rarest values.

    More columns are not multiplied, because real ones depend on each other.  Frequencies f are taken over different
    rows, so that copies do not vouch for each other; those of values that occur once are estimated (I. J. Good, 1953).

    Args:
        train, test: The columns of both, in one order.
        more: The targets of both.
    """
    n = len(more[0][0])
    codes = [_codes(np.concatenate([*map(_plain, pair)]))[0] for pair in zip(train, test, strict=True)]
    targets = [_codes(np.concatenate([*map(_plain, pair)]))[0] for pair in more]
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


def keys_of_inputs(train: Array, test: Array, more: Sequence[tuple[Array, Array]]) -> tuple[Array, ...]:
    """Keys of images, texts and long rows, which copying alone makes equal, unless nearly all of one is one value."""
    if train.ndim == 2 and train.dtype.kind == "f" and train.shape[1] <= MOST_COLUMNS:
        return keys_of([*train.T], [*test.T], more)
    both = []
    for x, y in ((train, [of[0] for of in more]), (test, [of[1] for of in more])):
        keys = np.empty(len(x), object)
        for i in range(0, len(x), ROWS):
            rows = np.ascontiguousarray(x[i : i + ROWS]).reshape(len(x[i : i + ROWS]), -1)
            some_differ = (rows != rows[:, -1:]).sum(1) >= FEW_ROWS
            for k, row in enumerate(rows):
                label = b"".join(of[i + k].tobytes() for of in y)
                keys[i + k] = blake2b(row.tobytes() + label, digest_size=16).digest() if some_differ[k] else i + k
        both.append(keys)
    held = np.array([isinstance(key, bytes) for key in both[1]])
    train_keys = np.array([key for key in both[0] if isinstance(key, bytes)])
    test_keys = np.where(held, both[1], b"").astype("S16")
    return train_keys.astype("S16"), test_keys, np.where(held, 0.0, 1.0)


# ---------------------------------------------------------------- the list
CHECKS: tuple[Callable[[Table], Iterable[str]], ...] = (
    few_rows,
    untested,
    spelt_alike,
    one_class,
    no_event,
    no_such_class,
    far_from_others,
    far_from_agreed,
    stands_for_none,
    unscaled,
    empty_at,
    cut_texts,
    codes_beside_words,
    not_agreed,
    identifies,
    names_the_site,
    gives_the_answer,
    names_people,
    copies,
)


def notes(table: Table) -> list[str]:
    """The sentences of all checks."""
    return [sentence for check in CHECKS for sentence in check(table)]


def noted(data: Dataset, alone: bool = False, more: Sequence[str] = ()) -> Dataset:
    """The data set with what may not be meant in it, which is warned of, and `more` that is known of its test rows."""
    table = table_of(data, alone)
    sentences = [*more, *notes(replace(table, tested=None) if more else table)]
    for sentence in sentences:
        warn(sentence)
    return replace(data, doubts=(*data.doubts, *sentences))


def table_of(data: Dataset, alone: bool = False) -> Table:
    """The rows of a data set; `alone` if they are those of one client of several."""
    train = np.ones(len(data.y_train), bool) if data.own_test is None else ~data.own_test.numpy()
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
        keys = keys_of_inputs(x, x_test, pairs)
        if data.inputs.kind == "table":
            columns = {column.name: x[:, i].astype(np.float64) for i, column in enumerate(data.inputs.columns)}
        elif data.inputs.kind == "texts":
            columns = {"number of words": (x != 0).sum(1, dtype=np.float64)}
        elif x.ndim > 2:
            columns = measured(x, data.inputs.kind == "images")
    if data.targets.classes and y.ndim == 1:
        targets = [Target(y, True)]
    elif data.targets is SURVIVAL:
        targets = [Target(y[:, 0], False, "the time"), Target(y[:, 1], True, "the event")]
    else:
        targets = [Target(y, False)] if data.targets is NUMBER else []
    labels = data.classes if data.targets.classes else ()
    named = data.ordered or data.label_type != "integer" or labels != tuple(map(str, range(len(labels))))
    present = {*data.y_train.flatten().tolist(), *data.y_test.flatten().tolist()} if labels and not named else set()
    what = "texts" if data.inputs.kind == "texts" else "images" if x.ndim > 2 else "rows"
    if data.inputs.kind == "as given" and are_windows(data.input_shape):
        what = "examples"
    return Table(
        columns,
        targets,
        None if owners is None else owners[train],
        data.client_names,
        None
        if owners is None or data.own_test is None
        else [*np.bincount(owners[~train], None, len(data.client_names))],
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


# ---------------------------------------------------------------- sums of sites
def of_sums(sites: Mapping[str, Mapping[str, ColumnSums]]) -> list[str]:
    """Sentences on what sites disclosed: one that decides, a mean far from the others', and spellings."""
    rows = {site: max((of.n for of in by_name.values()), default=0) for site, by_name in sites.items()}
    most = max(rows, key=lambda site: rows[site])
    sentences = []
    if len(sites) > 1 and rows[most] > (0.9 if len(sites) == 2 else 0.5) * sum(rows.values()):
        sentences.append(
            f"{most} says that it has {rows[most]:,} of all {sum(rows.values()):,} rows, so the agreed numbers are "
            "nearly its own: ask there whether that is right"
        )
    for name in next(iter(sites.values())):
        parts = {s: ColumnMoments(of.n, of.mean, of.m2) for s, by_name in sites.items() if (of := by_name[name]).n}
        sentences += far_among(f"column {name!r}", parts)
    for name in next(iter(sites.values())):
        held = [(i, one) for i, by_name in enumerate(sites.values()) for one in by_name[name].words or ()]
        words, owners = np.array([one for _, one in held], object), np.array([i for i, _ in held], np.int64)
        sentences += spelt_alike(Table({name: words}, owners=owners, clients=tuple(sites)))
    return sentences
