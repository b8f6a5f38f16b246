"""Checks of a user's data: each looks at one table, and returns an error, or a note on what is perhaps not meant.

`REFUSALS` look at all rows; a run ends with the first.  `NOTES` look at training rows, and at test rows only for
copies.  Both run once, when data are read: for a run, a deployed client, `us.describe` and the command.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from unskew.data.columns import Array, column, gaps_in, is_gap, no_value
from unskew.data.inputs import LENGTH, Column, column_notes, refused_row
from unskew.data.patients import most_frequent, unnamed_patients
from unskew.data.preprocess import LARGEST, LONGEST, ColumnSums, agreed, no_category
from unskew.data.rows import arrays_of
from unskew.data.table import (
    MOST_CLASSES,
    TEST,
    TRAIN,
    UNKNOWN,
    DataTable,
    DataTarget,
    codes_of,
    label_name,
    names_of_numbers,
)
from unskew.errors import DataError, did_you_mean, obeyed, warn, writable
from unskew.tasks.targets import RowError, mislabelled
from unskew.words import counted, some, spelling_variants

FEW_ROWS = 5
"""Training rows below which a client is named."""

ENOUGH = 40
"""Rows of which more tell something of a column."""

FAR = 20
"""Standard deviations of the others' rows from their mean, beyond which a site's mean is hardly in the same unit."""

LARGE = 100.0
"""Root mean square from which on a column of numbers outweighs others that are about 1."""

NINES = tuple(sign * (10.0**digits - 1) for digits in range(2, 10) for sign in (-1, 1))
"""Numbers such as -999, which stand for no value in many tables."""

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".dcm")
"""Endings of files that are given in place of what is in them."""


def have(names: Sequence[object]) -> str:
    """The verb after these names."""
    return "has" if len(names) == 1 else "have"


# ---------------------------------------------------------------- what cannot be meant: the target
def no_class(table: DataTable) -> Iterable[str]:
    """Rows without a target, and targets that are not classes, where classes are learned."""
    called, names = f"column {table.target[0]!r}" if len(table.target) == 1 else "y", table.classes or table.declared
    if table.kind.classes and table.y.ndim > 1 and table.y.shape[1:] != (1,):
        yield f"{called}: classes are one label an example, got shape {table.y.shape}; of one-hot labels give argmax(1)"
        return
    y = table.y.reshape(-1)
    if table.kind.classes and y.dtype.kind in "iu" and not (table.declared and not mislabelled(names or (), "integer")):
        own = not names and names_of_numbers(np.unique(y), table.of_table, table.alone)
        if not own and len(bad := np.flatnonzero((y < 0) | (y >= len(names) if names else False))):
            to = f" to {len(names) - 1}" if names else ": number those that occur 0, 1, ..., or give words"
            yield f"{called}: the label of {table.place(bad[0])} is {y[bad[0]]}, and classes are numbers from 0{to}"
    for target in table.targets:
        labels = target.values.tolist()
        missing = [i for i, v in enumerate(labels) if v is None or v != v]
        values = [v for v in labels if v is not None and v == v]
        known = set(values)
        way = "name another column"
        if not values:
            yield f"{target.called} has no value in any row: {way}"
        elif missing:
            first = f"{counted(len(missing), 'row')}, the first {table.place(missing[0])}"
            yield f"{target.called} has no value in {first} (the label is missing): leave such rows out"
        if not target.classes or not values:
            continue
        words = any(isinstance(v, str) for v in known)
        way = way if words else f"set task.kind = regression or task.data_options.classes, or {way}"
        odd = {v for v in known if not _is_label(v, table.declared or table.classes)}
        if len({isinstance(v, str | bool) for v in values}) > 1:
            yield f"{called}: some labels are words and some are numbers; make them all one or the other"
        elif len(known) > max(MOST_CLASSES, words * len(values) / 2) and not names and table.of_table:
            yield f"{called} has {len(known):,} different values in {len(values):,} rows, such as {values[0]!s}: {way}"
        elif odd:
            row = next(i for i, v in enumerate(labels) if v in odd)
            state = f"none of the {len(names)} classes{did_you_mean(str(labels[row]), names)}" if names else "no class"
            yield f"{called} is {labels[row]!r} in {table.place(row)}, {state}: correct it, or {way}"
        elif len(known) == 1 and table.target and table.owners is not None and not (table.alone or table.classes):
            yield f"{called} is {values[0]!r} in all {len(values):,} rows: name another column"


def _is_label(value: Any, names: Sequence[str] | None) -> bool:
    """True for a word, or a whole number of 64 bits, and one of the names of classes if these are of its type."""
    word = isinstance(value, str | bool)
    if names and (word or not mislabelled(names, "integer")):
        return label_name(value) in names
    return word or (isinstance(value, int | float) and not value % 1 and -(2**63) <= value < 2**63)


def no_number(table: DataTable) -> Iterable[str]:
    """Targets that do not fit another form of task."""
    called = f"column{'s' * (len(table.target) > 1)} {', '.join(map(repr, table.target))}" if table.target else "y"
    try:
        table.kind.read(called, table.y)
    except RowError as error:
        yield f"{called}: the target of {table.place(error.row)} {error.what}"
    except DataError as error:
        yield str(error)


def not_as_learned(table: DataTable) -> Iterable[str]:
    """Targets of another form than the task's."""
    if table.kind.classes or table.kind is UNKNOWN:
        return no_class(table)
    return no_number(table)


# ---------------------------------------------------------------- what cannot be meant: who has the rows
def nobodys(table: DataTable) -> Iterable[str]:
    """Rows without a client."""
    if table.owners is not None:
        rows = np.flatnonzero((table.owners < 0) & ((table.part != TEST) | table.own_test))
        if len(rows):
            first = f"{counted(len(rows), 'row')}, first {table.place(rows[0])}"
            yield f"column {table.client!r} names nobody in {first}: fill it, or leave the row out"


def no_federation(table: DataTable) -> Iterable[str]:
    """Only one client, or as many clients as rows."""
    if table.owners is None or table.alone or not table.target:
        return
    called = f"column {table.client!r}" if table.client else "data"
    if len(table.clients) == 1:
        way = "name another column, or leave client out and choose a split"
        yield f"{called} names only one client ({table.clients[0]}): {way}"
    elif table.part is None and table.patients is None and table.count().max(initial=0) == 1:
        yield f"{called} has {len(table.clients):,} clients with one row each: name the column of sites"


def strangers(table: DataTable) -> Iterable[str]:
    """Clients with test rows and no training rows."""
    if table.own_test and table.part is not None and not table.unseen and not table.refusals:
        trained, tested = table.count(table.part == TRAIN), table.count(table.part == TEST)
        if odd := table.names((tested > 0) & (trained == 0)):
            known = table.names(trained > 0)
            near = did_you_mean(odd[0], known)
            yield f"test rows name client {odd[0]!r}, which has none to train on{near} (clients: {some(known)})"


def no_patient(table: DataTable) -> Iterable[str]:
    """Rows without a patient, and patients in both training and testing."""
    if table.patients is None:
        return
    where = "patients" if table.patient is None else f"column {table.patient!r}"
    for row, who in enumerate(table.patients.tolist()):
        if is_gap(who) or not (isinstance(who, str | int) or float(who).is_integer()):
            yield f"{where} names no patient in {table.place(row)}, got {who!r}: fill it, or leave the row out"
            return
    if table.owners is not None and not table.own_test and table.patient_ids != "network" and len(table.test):
        yield "the test rows name no clients, so it is not known who is in them: name them, or leave test out"
    elif table.part is not None and table.people is not None:
        people, train, test = table.people, table.train, table.test
        both = np.intersect1d(people[train], people[test])
        if len(both):
            one, other = (int(rows[(people[rows] == both[0]).argmax()]) for rows in (train, test))
            yield (
                f"{where}: patient {table.patients[one]} is for training in {table.place(one)} and for testing in "
                f"{table.place(other)}: put all rows of a patient into one part, or leave test out"
            )


# ---------------------------------------------------------------- what cannot be meant: the inputs
def no_input(table: DataTable) -> Iterable[str]:
    """Inputs that are neither finite numbers nor texts."""
    for called, x in () if table.inputs is None else arrays_of(table.inputs):
        texts = x.tolist() if x.dtype.kind == "O" and x.ndim == 1 else []
        words = [isinstance(v, str) for v in texts]
        if texts and words[0] and texts[0].lower().endswith(IMAGES):
            yield f"{called} holds names of image files, such as {texts[0]!r}: give data='images:FOLDER', or pixels"
        elif any(words):
            if not all(words):
                row = words.index(False)
                yield f"{called} holds texts, and {texts[row]!r} in {table.place(row)}; give a text, or leave it out"
        elif x.dtype.kind not in "fiub":
            yield f"{called} must hold numbers, or be a list of texts, got {x.dtype} of shape {x.shape}"
        elif bad := refused_row(x):
            yield f"{called}: {table.place(bad[0])} {bad[1]}"


def no_name(table: DataTable) -> Iterable[str]:
    """Names that are too long, cannot be written or control a terminal, and two classes of one name."""
    words = [of for of in (*table.columns.values(), table.y) if of.dtype.kind in "OU"]
    named: dict[str, Sequence[Any]] = {
        "data set": (table.name,),
        "client": table.clients,
        "domain": table.domain_names,
        "class": table.classes or table.declared or (),
        "column": tuple(table.columns),
        "patient": () if table.patients is None else table.patients.tolist(),
        "word": [v for of in words for v in of.reshape(-1).tolist()],
    }
    for what, names in named.items():
        known = list(dict.fromkeys(name for name in names if isinstance(name, str)))
        # A vocabulary may have characters that are not printed, and of a data set it is the name of a file.
        printed = what not in ("data set", "class" * table.kind.tokens)
        for name in known:
            if printed and obeyed(name):
                wrong = "has control characters, which terminals obey"
            elif len(name) > LONGEST:
                wrong = f"has {len(name):,} characters, and {LONGEST:,} are the most"
            elif not writable(name):
                wrong = "cannot be written in UTF-8"
            else:
                continue
            yield f"the {what} name {name[:40]!r} {wrong}; rename it"
            break
        if what in ("client", "domain", "class") and len(known) < len(names):
            yield f"{what} names must differ, got {some(sorted(names))}"


def of_column(table: DataTable, name: str) -> str:
    """Why a column cannot be an input; empty if it can."""
    values, rule, known = table.columns[name], table.rule(name), table.kind is not UNKNOWN
    missing, way = gaps_in(values), "" if table.rules else ", which preprocess does"
    if missing.all():
        needed = rule.gaps is None and not table.by_site(name) and not table.alone  # others may have some
        return f"column {name!r} has no value in any row: leave it out" if needed else ""
    if values.dtype.kind == "f":
        if len(beyond := np.flatnonzero(np.abs(values) > LARGEST)):
            state = "infinite" if np.isinf(values[beyond[0]]) else f"{values[beyond[0]]:g}"
            return f"column {name!r} is {state} in {table.place(int(beyond[0]))}: correct it, or leave the row out"
        if known and missing.any() and (table.rules is None or table.rules.of(name)[1] == "refuse"):
            return f"column {name!r} has no value in {table.place(int(missing.argmax()))}: fill it{way}"
        return ""
    if sentence := no_value(name, values, table.place):
        return sentence
    present = values[~missing].tolist()
    agreed = rule.words is not None or rule.mean is not None or (table.rules is not None and table.of_texts(name))
    if not agreed and (sentence := no_category(name, present, rule.kind == "category")):
        return sentence
    if known and table.rules is None:
        first = table.place(int((~missing).argmax()))
        return f"column {name!r} holds words, such as {present[0]!r} in {first}: make numbers of them{way}"
    return ""


REFUSALS: tuple[Callable[[DataTable], Iterable[str]], ...] = (
    lambda table: table.refusals,
    no_name,
    no_input,
    nobodys,
    no_federation,
    no_patient,
    strangers,
    not_as_learned,
    lambda table: filter(None, (of_column(table, name) for name in table.columns)),
)


# ---------------------------------------------------------------- what may not be meant: clients
def few_rows(table: DataTable) -> Iterable[str]:
    """Clients with too few rows to train on."""
    few = ["this client"] if table.alone and len(table) < FEW_ROWS else table.names(table.count() < FEW_ROWS)
    return few and [f"{some(few)} {have(few)} fewer than {FEW_ROWS} training {table.what}: too few to train on alone"]


def untested(table: DataTable) -> Iterable[str]:
    """Clients without test rows; a cut in time reports these itself."""
    if table.own_test and table.part is not None and table.when is None:
        none = table.names(table.count(table.part == TEST) == 0)
        return none and [f"{some(none)} {have(none)} no test {table.what}: a result there cannot be measured"]
    return []


def spelt_alike(table: DataTable) -> Iterable[str]:
    """Clients, labels and words that differ only in case, accents or spaces."""
    named = {"clients": list(table.clients)}
    named |= {target.sentence("labels"): target.values.tolist() for target in table.targets if not table.declared}
    named |= {f"words of column {name!r}": of.tolist() for name, of in table.features.items() if of.dtype.kind == "O"}
    for what, values in named.items():
        if alike := spelling_variants(sorted({v for v in values if isinstance(v, str)})):
            yield f"{what} differ in case, accents or spaces alone, and count as different: {alike}; write them alike"


def one_class(table: DataTable) -> Iterable[str]:
    """Clients with enough rows that are all of one class, or without an event."""
    whole, table = table, table.take(table.train)
    enough, owners = table.count() >= FEW_ROWS, np.full(len(table), -1) if table.owners is None else table.owners
    for target, of_all in zip(table.targets, whole.targets, strict=True):
        if target.called == "the event":
            if none := table.names(enough & (table.count(target.values > 0) == 0)):
                yield f"{some(none)} {have(none)} no event among the training {table.what}: a loss learns nothing there"
        elif target.classes and len(table.declared or codes_of(of_all.values)[1]) > 1:
            codes = codes_of(target.values)[0]
            kinds = np.unique(np.stack([owners, codes]), axis=1)[0]
            single = table.names(enough & (np.bincount(kinds[kinds >= 0], minlength=len(table.clients)) == 1))
            single += ["this client"] * bool(table.alone and len(table) >= FEW_ROWS and not codes.any())
            if single:
                rows = f"training {table.what} of one class only"
                yield target.sentence(f"{some(single)} {have(single)} {rows}: trained alone, a model learns nothing")


# ---------------------------------------------------------------- numbers
def far_from_others(table: DataTable) -> Iterable[str]:
    """Sites whose mean of a column or target is so far from the others' that the unit may differ."""
    of = {table.called(name): values for name, values in table.features.items() if not table.by_site(name)}
    of |= {target.called: target.values for target in table.targets if not target.classes}
    for what, values in of.items():
        if values.dtype.kind in "fiu":
            known = np.where(np.isfinite(values), values, np.nan)
            moments = {c: ColumnSums.of(known[table.at(i)]) for i, c in enumerate(table.compared)}
            yield from far_among(what, {name: m for name, m in moments.items() if m.n})


def far_among(what: str, parts: Mapping[str, ColumnSums]) -> Iterable[str]:
    """A sentence on the site whose mean is furthest from the others', if it is far."""
    others = {site: agreed([part for other, part in parts.items() if other != site]) for site in parts}
    # Where the others' rows are all equal, there is no deviation to compare with.
    apart = {
        site: abs(own.mean - others[site].mean) / (others[site].sd or max(abs(others[site].mean), 1.0))
        for site, own in parts.items()
        if others[site].n > 1
    }
    site = max(apart, key=lambda one: apart[one], default="")
    if site and apart[site] > FAR:
        yield (
            f"{what} has the mean {parts[site].mean:g} at {site}, and {others[site].mean:g} (standard deviation "
            f"{others[site].sd:g}) at the others: is it in the same unit there?"
        )


def not_as_agreed(table: DataTable) -> Iterable[str]:
    """Numbers of a client whose unit may differ from the agreed one, and words that were not agreed on."""
    for name, values in table.features.items() if table.rules else ():
        rule, words = table.rule(name), values.dtype.kind == "O"
        if rule.words is None and (rule.mean is None or words or not table.alone or table.by_site(name)):
            continue
        given = column(values, category=True) if rule.words is not None else values
        kind, (mean, sd) = "number", [() if of is None else (of,) for of in (rule.mean, rule.sd)]
        agreed_on = Column(name, "category" if rule.words else kind, mean=mean, sd=sd, values=rule.words or ())  # type: ignore[arg-type]
        yield from column_notes(agreed_on, given[~gaps_in(given)], "agreed on")


def stands_for_none(table: DataTable) -> Iterable[str]:
    """Repeated numbers such as -999, far from all others."""
    way = "leave it empty (data_options.gaps names such values of a CSV file)"
    of = [(table.called(name), values, way) for name, values in table.features.items() if not table.measured]
    of += [(target.called, target.values, "leave such rows out") for target in table.targets if not target.classes]
    for what, values, remedy in of:
        if values.dtype.kind not in "fiu":
            continue
        known, times = np.unique(values[np.isfinite(values)], return_counts=True)
        rest = known[~np.isin(known, NINES)]
        for value, n in zip(known.tolist(), times.tolist(), strict=True) if len(rest) > 1 else ():
            far = max(rest[0] - value, value - rest[-1])
            if value in NINES and n > 2 and far > rest[-1] - rest[0] and far > abs(value) / 10:
                others = f"from {rest[0]:g} to {rest[-1]:g} elsewhere"
                yield f"{what} is {value:g} in {counted(n, 'row')}, and {others}: if it stands for no value, {remedy}"
                break


def unscaled(table: DataTable) -> Iterable[str]:
    """The column whose scale makes training hard."""
    size = {
        name: float(np.sqrt(np.nanmean(values**2)))
        for name, values in (table.features.items() if table.rules is None and table.what != "texts" else ())
        if values.dtype.kind == "f" and np.isfinite(values).any()
    }
    worst = max(size, key=lambda name: size[name], default="")
    if worst and size[worst] > (FAR if table.measured else LARGE):
        way = "divide all by the same number" if table.measured else "use preprocess=True"
        yield f"{table.called(worst)} has a root mean square of {size[worst]:,.0f}, and networks want about 1; {way}"


def empty_at(table: DataTable) -> Iterable[str]:
    """Sites at which a column has no value, or only one where others have many."""
    for name, values in table.features.items():
        present = ~gaps_in(values)
        silent = table.names((table.count() > 0) & (table.count(present) == 0))
        if silent and present.any():
            yield f"column {name!r} has no value at {some(silent)}"
        elif values.dtype.kind == "f" and not table.by_site(name) and len(np.unique(values)) >= 10:
            held = [(site, values[table.at(i)]) for i, site in enumerate(table.compared)]
            there = [f"{site} ({of[0]:g})" for site, of in held if len(of) >= 10 and (of == of[0]).all()]
            if there:
                yield f"{table.called(name)} has one value only at {some(there)}: not measured?"


# ---------------------------------------------------------------- columns that say too much
def identifies(table: DataTable) -> Iterable[str]:
    """Columns that number or name the rows: words that mostly differ, and whole numbers that do not repeat."""
    yield from _named(
        [name for name, values in _columns(table) if _never_return(values, table)],
        "numbers or names the rows: nothing learnt from it holds for new ones",
    )


def _never_return(values: Array, table: DataTable) -> bool:
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


def names_the_site(table: DataTable) -> Iterable[str]:
    """Columns with repeated values that occur nearly all at one site only."""
    if table.owners is not None:
        here, owners = table.owners >= 0, table.owners
        yield from _named(
            [name for name, of in _columns(table) if _tells(of[here], owners[here])],
            "tells the site by itself: nothing learnt from it holds at other sites",
        )


def gives_the_answer(table: DataTable) -> Iterable[str]:
    """Columns that give the target away: classes by an AUROC above .99 or by values, numbers by their order."""
    columns = dict(_columns(table))
    for target in table.targets:
        givers = [n for n, v in columns.items() if _gives(v, target) or _gives(gaps_in(v) * 1.0, target)]
        yield from _named(givers, f"tells {target.called} by itself, with its gaps, and may be known only afterwards")


def _columns(table: DataTable) -> Iterator[tuple[str, Array]]:
    looked_at = table.columns if len(table) > ENOUGH and not table.measured else ()
    return ((name, table.columns[name]) for name in looked_at if not table.of_texts(name))


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


def _gives(values: Array, target: DataTarget) -> bool:
    present = ~gaps_in(values) & ~gaps_in(target.values)
    numbers, kind = values[present], codes_of(target.values[present])[0]
    if len(kind) <= ENOUGH or not kind.any():
        return False
    if values.dtype.kind == "O":
        return target.classes and _tells(numbers, kind)
    from scipy.stats import rankdata  # takes half a second, in every process, and is needed for few columns

    ranks = rankdata(numbers)
    if not target.classes:
        return bool(np.ptp(ranks) and abs(np.corrcoef(ranks, rankdata(kind))[0, 1]) > 0.999)
    if kind.max() > 1:
        return _tells(numbers, kind)
    n = int(kind.sum())
    auroc = (ranks[kind == 1].sum() - n * (n + 1) / 2) / (n * (len(kind) - n))
    return min(n, len(kind) - n) >= FEW_ROWS and max(auroc, 1 - auroc) > 0.99


def cut_texts(table: DataTable) -> Iterable[str]:
    """Texts whose end is not read."""
    share = float((table.features["number of words"] >= LENGTH).mean()) if table.what == "texts" else 0.0
    if share >= 0.05:
        yield f"{share:.0%} of the training texts have {LENGTH} words or more, and only the first {LENGTH} are read"


# ---------------------------------------------------------------- copies
def copies(table: DataTable) -> Iterable[str]:
    """Test rows that are also in training, of one patient if these are known, and too rich to be equal by chance."""
    x, train, test = table.inputs, table.train, table.test
    if x is None:
        codes = [np.where(gaps_in(v), np.nan, codes_of(v)[0]) for v in table.columns.values()]
        x = np.stack(codes or [np.zeros(len(table))], 1)
    if not len(test) or x.dtype.kind in "OV":
        return
    if x.ndim == 2 and x.shape[1] < 2 * MOST_CLASSES:
        different = np.unique(x[:2000], axis=0)  # copies do not vouch for each other
        kinds = np.array([len(np.unique(column)) for column in different.T]) / max(len(different), 1)
        several = len(kinds) > 1 and ((kinds > 0.5).sum() > 2 or (kinds > 0.9).any())
        if len(different) < 20 or not (several or len(different) > 0.9 * len(x[:2000])):
            return
    y = table.y.reshape(len(table), -1).astype(str)
    rows, people = x.reshape(len(x), -1), [None] * len(x) if table.patients is None else table.patients.tolist()

    def marks(chosen: Array) -> Iterator[int]:
        for row in chosen.tolist():
            flat = rows[row]
            empty = (x.ndim > 2 and (flat != flat[-1]).sum() < FEW_ROWS) or not (flat == flat).any()  # gaps alone
            if not empty:
                yield hash((flat.tobytes(), *y[row], people[row]))

    known = set(marks(train))
    seen = sum(mark in known for mark in marks(test))
    if seen > 2:
        yield f"{seen:,} of {len(test):,} test {table.what} stand in training, too: results on them are too good"


# ---------------------------------------------------------------- the list
NOTES: tuple[Callable[[DataTable], Iterable[str]], ...] = (  # what makes results mean nothing first, as few are shown
    gives_the_answer,
    identifies,
    names_the_site,
    lambda table: [] if table.patients is not None or table.measured else unnamed_patients(table.features),
    copies,
    lambda table: table.notes,
    few_rows,
    untested,
    spelt_alike,
    one_class,
    far_from_others,
    not_as_agreed,
    stands_for_none,
    unscaled,
    empty_at,
    cut_texts,
)


def refuse(table: DataTable) -> None:
    """Raise the first error of the table.

    Raises:
        DataError: If there is one.
    """
    if not len(table):
        raise DataError(f"{table.name} holds no examples, at least 1 is needed")
    for check in REFUSALS:
        for sentence in check(table):
            raise DataError(f"{table.name}: {sentence}")


def notes(table: DataTable) -> list[str]:
    """Notes on the table."""
    whole, training = (untested, one_class, copies), table.take(table.train)
    return list(dict.fromkeys(one for check in NOTES for one in check(table if check in whole else training)))


def warned(table: DataTable) -> tuple[str, ...]:
    """Notes on the table, each also given as a warning."""
    sentences = notes(table)
    for sentence in sentences:
        warn(sentence, stacklevel=3)
    return tuple(sentences)


# ---------------------------------------------------------------- sums of sites
def of_sums(sites: Mapping[str, Mapping[str, ColumnSums]]) -> list[str]:
    """Sentences on the sums that sites disclosed: an error, a mean far from the others', and spellings."""
    rows = {site: max((of.n for of in by_name.values()), default=0) for site, by_name in sites.items()}
    most, of_all = max(rows, key=lambda site: rows[site]), sum(rows.values())
    sentences = []
    if len(sites) > 1 and rows[most] > (0.9 if len(sites) == 2 else 0.5) * of_all:
        sentences.append(f"{most} says it has {rows[most]:,} of all {of_all:,} rows, and nearly decides: ask there")
    for name in next(iter(sites.values())):
        parts = {site: by_name[name] for site, by_name in sites.items() if by_name[name].n}
        sentences += far_among(f"column {name!r}", parts)
        words = [word for by_name in sites.values() for word in by_name[name].words or ()]
        sentences += spelt_alike(DataTable("", np.empty((len(words), 0)), columns={name: np.array(words, object)}))
    return sentences
