"""Checks of what may not be meant in a user's data: each is a sentence that names the column, the client or the number.

`notes` runs the list once, behind the door: for a run, a deployed client, `us.describe` and the command alike.  What
cannot be meant is refused where it is read.  Checks look at training rows, and at test rows for copies alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import rankdata

from unskew.data.dataset import Dataset
from unskew.data.inputs import Array, gaps_in, value_of, word
from unskew.data.patients import most_frequent, unnamed_patients
from unskew.data.preprocess import ColumnMoments, ColumnSums, agreed
from unskew.data.table import CheckedTable, CheckedTarget, codes_of, table_of
from unskew.data.text import LENGTH
from unskew.errors import warn
from unskew.words import counted, letters, separate_classes, some, spelling_variants

FEW_ROWS = 5
"""Training rows below which a client is named."""

MOST_CLASSES = 20
"""Different values of a target up to which they may be classes however few rows each has."""

ENOUGH = 40
"""Rows of which more tell something of a column."""

FAR = 20
"""Standard deviations of the others' rows from their mean, beyond which a site's mean is hardly in the same unit."""

LARGE = 100.0
"""Root mean square from which on a column of numbers outweighs others that are about 1."""

NINES = tuple(sign * (10.0**digits - 1) for digits in range(2, 10) for sign in (-1, 1))
"""Numbers such as -999, which stand for no value in many tables."""


def have(names: Sequence[object]) -> str:
    """The verb after these names."""
    return "has" if len(names) == 1 else "have"


# ---------------------------------------------------------------- clients
def few_rows(table: CheckedTable) -> Iterable[str]:
    """Clients with too few rows to train on."""
    if table.alone:
        return [f"there are fewer than {FEW_ROWS} training {table.what} here: too few to train on alone"] * (
            table.rows < FEW_ROWS
        )
    few = table.names(table.count() < FEW_ROWS)
    return few and [f"{some(few)} {have(few)} fewer than {FEW_ROWS} training {table.what}: too few to train on alone"]


def untested(table: CheckedTable) -> Iterable[str]:
    """Clients without test rows."""
    none = [name for name, n in zip(table.clients, table.tested or (), strict=False) if n == 0]
    return none and [
        f"{some(none)} {have(none)} no test {table.what}: a result there cannot be measured, so nothing will tell "
        "whether to join"
    ]


def spelt_alike(table: CheckedTable) -> Iterable[str]:
    """Clients, labels and words that differ in case, accents or spaces alone."""
    if alike := spelling_variants(table.clients):
        yield f"clients {alike} differ in case, accents or spaces alone: one client under several names? make them one"
    for target in () if table.declared else table.targets:
        values = np.array(table.labels)[target.values] if table.labels and target.classes else target.values
        if values.dtype.kind in "OU" and (alike := spelling_variants(*_held(values, table))):
            yield target.of(separate_classes(alike))
    for name, values in table.columns.items():
        known = table.rule(name).words or ()
        if values.dtype.kind != "O" or {v for v in values.tolist() if v is not None} <= set(known):
            continue
        if alike := spelling_variants(*_held(values, table, known)):
            yield (
                f"column {name!r} holds words that differ in case, accents or spaces alone, and each counts as "
                f"another one: {alike}; write them alike"
            )


def _held(values: Array, table: CheckedTable, known: Sequence[str] = ()) -> tuple[list[str], Callable[[str], str]]:
    """The different words among values, and who holds one."""

    def held(one: str) -> str:
        rows = np.flatnonzero(values == one)
        who = [] if table.owners is None else [table.clients[i] for i in np.unique(table.owners[rows]) if i >= 0]
        return f"{'only ' * (len(who) == 1 < len(table.clients))}{some(who)}" if who else counted(len(rows), "row")

    return [*known, *sorted({v for v in values.tolist() if isinstance(v, str)} - set(known))], held


def one_class(table: CheckedTable) -> Iterable[str]:
    """Clients whose rows, if they are not few, are of one class."""
    for target in table.targets:
        if not target.classes or target.called == "the event":
            continue
        if table.alone and table.rows >= FEW_ROWS and len(table.labels) != 1 == len(np.unique(target.values)):
            name = table.labels[int(target.values[0])] if table.labels else target.values[0]
            yield f"all training {table.what} here are of one class, {name}"
        codes, enough = codes_of(target.values)[0], table.count() >= FEW_ROWS
        owners = np.full(table.rows, -1) if table.owners is None else table.owners
        kinds = np.unique(np.stack([owners, codes]), axis=1)[0]
        single = table.names(enough & (np.bincount(kinds[kinds >= 0], minlength=len(table.clients)) == 1))
        if single:
            yield target.of(
                f"{some(single)} {have(single)} training {table.what} of one class only: a model trained there alone "
                "learns nothing but to say it"
            )


def no_event(table: CheckedTable) -> Iterable[str]:
    """Clients among whose rows, if they are not few, no event happened."""
    for target in table.targets:
        if target.called == "the event":
            none = table.names((table.count() >= FEW_ROWS) & (table.count(target.values > 0) == 0))
            if none:
                yield f"{some(none)} {have(none)} no event among the training {table.what}: a loss learns nothing there"


def no_such_class(table: CheckedTable) -> Iterable[str]:
    """Classes that no row has, where labels are their numbers and nobody has named them."""
    return table.absent and [
        f"there are classes 0 to {len(table.labels) - 1}, and {some(table.absent)} never occur: number those that do "
        "0, 1, ..., or give words as labels, unless these are classes, too"
    ]


# ---------------------------------------------------------------- numbers
def far_from_others(table: CheckedTable) -> Iterable[str]:
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


def far_from_agreed(table: CheckedTable) -> Iterable[str]:
    """A client's numbers whose unit may not be the one agreed on."""
    for name, values in table.columns.items() if table.alone and table.rules else ():
        rule = table.rule(name)
        if values.dtype.kind != "f" or rule.mean is None or not rule.sd or np.isnan(values).all():
            continue
        middle = float(np.nanmedian(values))
        if abs(middle - rule.mean) > FAR * rule.sd and not table.by_site(name):
            yield (
                f"column {name!r} is about {middle:g} here, and the mean {rule.mean:g} (standard deviation "
                f"{rule.sd:g}) was agreed on: is it in the same unit?"
            )


def stands_for_none(table: CheckedTable) -> Iterable[str]:
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


def unscaled(table: CheckedTable) -> Iterable[str]:
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


def empty_at(table: CheckedTable) -> Iterable[str]:
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
def cut_texts(table: CheckedTable) -> Iterable[str]:
    """Texts of which the end is not read."""
    share = float((table.columns["number of words"] >= LENGTH).mean()) if table.what == "texts" else 0.0
    if share >= 0.05:
        yield (
            f"{share:.0%} of the training texts have {LENGTH} words or more, and only the first {LENGTH} are read: put "
            "first what matters, or divide them"
        )


def codes_beside_words(table: CheckedTable) -> Iterable[str]:
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


def not_agreed(table: CheckedTable) -> Iterable[str]:
    """Words that were not agreed on; those spelt like one of these are named for that."""
    for name, values in table.columns.items() if table.rules else ():
        known = table.rule(name).words or ()
        present = {word(v) if isinstance(v, float) else v for v in values[~gaps_in(values)].tolist()}
        alike = set(map(letters, known))
        if known and (strange := sorted(one for one in present if one not in known and letters(one) not in alike)):
            yield f"column {name!r} holds words that were not agreed on: {some(strange)} (agreed: {some(known)})"


# ---------------------------------------------------------------- columns that say too much
def identifies(table: CheckedTable) -> Iterable[str]:
    """Columns that number or name the rows: words most of which differ, and whole numbers that never return."""
    yield from _named(
        [name for name, values in _columns(table) if _never_return(values, table)],
        "numbers or names the rows: nothing learnt from it holds for new ones",
    )


def _never_return(values: Array, table: CheckedTable) -> bool:
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


def names_the_site(table: CheckedTable) -> Iterable[str]:
    """Columns of values that return, nearly each at one site alone."""
    if table.owners is not None:
        here, owners = table.owners >= 0, table.owners
        yield from _named(
            [name for name, of in _columns(table) if _tells(of[here], owners[here])],
            "tells the site by itself: nothing learnt from it holds at other sites",
        )


def gives_the_answer(table: CheckedTable) -> Iterable[str]:
    """Columns that tell a target: two classes by an AUROC above .99, more by their values, numbers by their order."""
    for target in table.targets:
        yield from _named(
            [name for name, of in _columns(table) if _gives(of, target) or _gives(gaps_in(of) * 1.0, target)],
            f"tells {target.called} by itself, with its gaps: is it known only afterwards?",
        )


def _columns(table: CheckedTable) -> Iterator[tuple[str, Array]]:
    return iter(table.columns.items() if table.rows > ENOUGH and not table.measured else ())


def _named(columns: Sequence[str], what: str) -> Iterator[str]:
    if columns:
        yield f"column {some([repr(name) for name in columns])} {what}; leave it out by leave_out"


def _tells(values: Array, kinds: Array) -> bool:
    """True if rows are of the kind that most rows of their value are, but 1 %, and values return."""
    present = ~gaps_in(values)
    code, times = codes_of(values[present])
    kind = codes_of(kinds[present])[0]
    if len(kind) <= ENOUGH or (times[code] == 1).mean() > 0.1:
        return False
    wrong, most = int((most_frequent(code, kind)[code] != kind).sum()), int(np.bincount(kind).max())
    return wrong <= len(kind) / 100 and len(kind) - most >= max(ENOUGH, 10 * wrong)


def _gives(values: Array, target: CheckedTarget) -> bool:
    present = ~gaps_in(values) & ~gaps_in(target.values)
    numbers, kind = values[present], codes_of(target.values[present])[0]
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


def names_people(table: CheckedTable) -> Iterable[str]:
    """A column that seems to say who is in a row, where that is not known."""
    return [] if table.people or table.measured else unnamed_patients(table.columns)


# ---------------------------------------------------------------- copies
def copies(table: CheckedTable) -> Iterable[str]:
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


# ---------------------------------------------------------------- the list
CHECKS: tuple[Callable[[CheckedTable], Iterable[str]], ...] = (
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


def notes(table: CheckedTable) -> list[str]:
    """The sentences of all checks."""
    return [sentence for check in CHECKS for sentence in check(table)]


def noted(data: Dataset, alone: bool = False, more: Sequence[str] = ()) -> Dataset:
    """The data set with what may not be meant in it, which is warned of, and `more` that is known of its test rows."""
    table = table_of(data, alone)
    sentences = [*more, *notes(replace(table, tested=None) if more else table)]
    for sentence in sentences:
        warn(sentence, stacklevel=3)
    return replace(data, doubts=(*data.doubts, *sentences))


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
        sentences += spelt_alike(CheckedTable({name: words}, owners=owners, clients=tuple(sites)))
    return sentences
