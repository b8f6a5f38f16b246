"""A first look at data: sites, sizes, labels, columns, gaps, differences between sites, and duplicate rows.

Differences are one number for sizes, one for labels and one for columns, each beside its mean under chance:

    sizes     effective number of clients 1 / sum p_k^2, p_k the client's share of rows (M. O. Hill, "Diversity and
              evenness", Ecology 54, 1973: order 2)
    labels    Cramér's V squared of sites and classes (H. Cramér, "Mathematical Methods of Statistics", 1946); of a
              number the share of its variance that lies between clients, eta^2 (K. Pearson, 1905)
    columns   the same of each column, and their mean

Differences of labels and columns are tested, with p corrected for their number (`holm`); sites weigh by size:

    classes   X2 = sum (O - E)^2 / E, O rows of a class at a site, E the expected number (K. Pearson, 1900)
    numbers   SSB = sum n_k (mean_k - mean)^2 within F of one-way analysis of variance (R. A. Fisher, 1925)

Both are sum S_k^2 / n_k of sums S_k over a site's rows of standardised values.  p is the larger of that of the tests
and of one by permutations of the rows, as the former is far too small for a rare class or a long tail at small sites.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import special

from unskew.data import checks, own, sources, tables
from unskew.data.columns import Array, gaps_in, is_date, is_gap
from unskew.data.dataset import Dataset
from unskew.data.latest import Latest, written
from unskew.data.patients import Ints, PatientIds, most_frequent
from unskew.data.preprocess import LARGEST, Preprocess, rules_of
from unskew.data.rows import stored
from unskew.data.table import LEFT_OUT, TEST, TRAIN, UNKNOWN, DataTable, DataTarget, numbered
from unskew.errors import ConfigError
from unskew.tasks.targets import CLASS, SURVIVAL, Label, labels_of
from unskew.words import counted, listed, sentence, some

# ---------------------------------------------------------------- how sites differ
TINY = 0.05
"""Share of the rows that the smallest sites have together which count as one: each has a degree of freedom."""

ALPHA = 0.05
"""Level at which sites are said to differ."""


@dataclass(frozen=True)
class SiteDifference:
    """Difference between sites in a column or a target.

    Attributes:
        share: SSB over the total sum of squares; for classes Cramér's V squared, X2 / (n (min(sites, classes) - 1)).
        chance: Mean of this share over all permutations of the rows.
        p: P-value.
        levels: Mean, or share of a class, at the sites with the most and the least for their size.
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


def differs(
    values: npt.NDArray[Any], site: Ints, sites: Sequence[str], classes: Sequence[object] = ()
) -> SiteDifference | None:
    """How far sites differ; None if fewer than two have a value, or all values are equal.

    Values are indices into `classes` (-1 for a gap), or without classes floats (NaN for a gap).  `site` are indices
    into `sites` (-1 for none), (N,).
    """
    here = (site >= 0) & (values >= 0 if classes else ~np.isnan(values))
    values, (numbers, owner) = values[here], np.unique(site[here], return_inverse=True)
    if len(numbers) < 2 or (values == values[0]).all():
        return None
    smallest_first = np.argsort(np.bincount(owner), kind="stable")
    tiny = smallest_first[np.cumsum(np.bincount(owner)[smallest_first]) <= TINY * len(values)]
    if len(tiny) > 1 and len(numbers) - len(tiny) > 1:
        kept, owner = np.unique(np.where(np.isin(owner, tiny), tiny[0], owner), return_inverse=True)
        numbers = np.where(kept == tiny[0], -1, numbers[kept])
    rows, n, k = np.bincount(owner), len(values), len(numbers)

    # Sums of standardised values over each site's rows, (sites, classes).
    if classes:
        kinds = np.unique(values)
        kinds = kinds[np.argsort([(values == kind).sum() for kind in kinds], kind="stable")]  # a rarer one is named
        place = np.zeros(len(classes), np.int64)
        place[kinds] = np.arange(len(kinds))
        coded, c = place[values], len(kinds)
        level = np.bincount(coded) / n
        sums = (np.bincount(owner * c + coded, minlength=k * c).reshape(k, c) - np.outer(rows, level)) / np.sqrt(level)
        seen, residual = float((sums**2 / rows[:, None]).sum()), np.sqrt(1 - level)
        p, tail = special.chdtrc((k - 1) * (c - 1), seen), float((1 / level).sum())
    else:
        coded, c, residual = (values - values.mean()) / values.std(), 1, np.ones(1)
        sums = np.asarray(np.bincount(owner, coded)[:, None], np.float64)
        seen = float((sums**2 / rows[:, None]).sum())
        within = max(n - seen, 0.0)
        f = np.inf if within <= 1e-12 * n else seen / within * (n - k) / (k - 1)
        p, tail = special.fdtrc(k - 1, n - k, f) if n > k else 1.0, float((coded**4).mean()) + 3

    named = np.flatnonzero(numbers >= 0)
    residuals = (sums / np.sqrt(rows * (1 - rows / n))[:, None] / residual)[named]
    at = int(np.ptp(residuals, axis=0).round(9).argmax())
    most, least = named[[residuals[:, at].argmax(), residuals[:, at].argmin()]].tolist()
    levels = np.bincount(owner, coded == at if classes else values) / rows
    what, form = (f"{classes[kinds[at]]} ", ".0%") if classes else ("", ".3g")
    apart = what + ", ".join(f"{levels[i]:{form}} at {sites[numbers[i]]}" for i in (most, least))
    apart = "alike everywhere" if most == least else apart
    share, chance, other = _beyond_chance(seen, rows, c, tail)
    return SiteDifference(share, chance, max(float(p), other), apart)


def _beyond_chance(seen: float, rows: Ints, c: int, tail: float) -> tuple[float, float, float]:
    """The share of variance between sites, its mean over all permutations of the rows, and the chance of one so large.

    That is a beta variable's with the mean and variance over permutations (J. B. S. Haldane, Biometrika 31, 1940), and
    at least that of a single division of the rows.  `tail` is the sum over classes of 1 / share, or of a number its
    kurtosis and 3.
    """
    n, k, free, width = int(rows.sum()), len(rows), max(c - 1, 1), max(min(len(rows), c) - 1, 1)
    share, chance = min(seen / n / width, 1.0), free * (k - 1) / (n - 1) / width

    def spread(d: int, unevenness: float) -> tuple[float, float]:
        return d * (n - d - 1) / (n - 1), (unevenness - (d + 1) ** 2) / max(n - 2, 1)

    (v, w), (of_v, of_w) = spread(k - 1, float((n / rows).sum())), spread(free, tail)
    variance = (2 * n / max(n - 3, 1) * (v - w) * (of_v - of_w) + n**2 / (n - 1) * w * of_w) / (n * width) ** 2
    if variance <= 1e-9 * chance**2:  # all divisions are alike
        return share, chance, 1.0
    size = chance * (1 - chance) / variance - 1
    one = float(np.exp(special.gammaln(rows + 1).sum() - special.gammaln(n + 1)))
    return share, chance, max(one, float(special.betaincc(chance * size, (1 - chance) * size, share)))


Name = TypeVar("Name")


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """P-values corrected for their number (S. Holm, Scandinavian Journal of Statistics 6, 1979), by name.

    Of k values the smallest counts k times, the next k - 1 times, and so on, never less than the one before.  The
    probability of any false difference at 0.05 is at most 5 %, however the tests depend.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    corrected: dict[Name, float] = {}
    largest = 0.0
    for i, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, (len(p_values) - i) * p_values[name]))
        corrected[name] = largest
    return corrected


NO_VALUE = "(none)"
"""Name of the class of rows that have no value in the target's column."""

MOST_WORDS = 50
"""Words of a column by which sites are compared; the others count as one."""

MOST_NAMED = 3
"""Columns that a sentence names."""

Span = tuple[str, str]
"""First and last time."""


@dataclass(frozen=True)
class SiteLook:
    """A client and its rows.

    Attributes:
        name: Its name.
        train, test: Numbers of rows; without known test rows all are training rows.
        missing: Share of its values that are gaps.
        patients: Number of patients; None if unknown.
        train_span, test_span: Times of the first and the last row of each part; None if unknown, or if test rows are
            not the latest.
    """

    name: str
    train: int
    test: int
    missing: float
    patients: int | None = None
    train_span: Span | None = None
    test_span: Span | None = None


@dataclass(frozen=True)
class TargetLook:
    """A target: its name, its classes (empty if it is a number), and its values at each client.

    `by_site` are rows of each class, test rows included; for a number its mean and deviation, empty without values.
    """

    name: str
    classes: tuple[Label, ...]
    by_site: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class ColumnLook:
    """A column: its content, its gaps, and how much of its variance lies between sites.

    Attributes:
        name: Its name.
        kind: "number", "words", "dates" or "constant".
        summary: Mean and deviation, or the commonest words.
        missing: Share of rows with a gap.
        missing_by_site: The same for each site.
        lowest, highest, mean, sd: Of numbers; else None.
        between: How sites differ in it; None with one site, or no variance.
        means: Of each site, in deviations from the mean of all; for words the share of the commonest.  None for a site
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


@dataclass(frozen=True)
class Disagreement:
    """How sites differ, in one number, its mean under chance, and its meaning in words.

    `p` is the p-value, for columns the smallest after Holm; None for sizes.
    """

    name: str
    value: float
    chance: float
    meaning: str
    p: float | None = None


@dataclass(frozen=True, repr=False)
class Look:
    """Summary of a data set; `print` shows it.

    Attributes:
        name: Name of the data.
        rows, test_rows: Numbers of rows, and of test rows among them; None where unknown.
        sites: The clients, in order; empty if the data have none.
        targets: The targets; empty if unknown.
        columns: The columns.
        disagreement: Numbers for sizes, labels and columns.
        notes: Notes and errors of a run on these data.
        patients: Number of patients; None if unknown.
        train_span, test_span: As in `SiteLook`.
    """

    name: str
    rows: int
    test_rows: int | None
    sites: tuple[SiteLook, ...]
    targets: tuple[TargetLook, ...]
    columns: tuple[ColumnLook, ...]
    disagreement: tuple[Disagreement, ...]
    notes: tuple[str, ...]
    patients: int | None = None
    train_span: Span | None = None
    test_span: Span | None = None

    @property
    def size(self) -> str:
        """Rows, columns, sites and classes, in one phrase."""
        sites = f"{len(self.sites):,} sites" if self.sites else "no sites named"
        test = "" if self.test_rows is None else f", {self.test_rows:,} for testing"
        if self.train_span and self.test_span:
            train, later = (f"from {first} to {last}" for first, last in (self.train_span, self.test_span))
            test += f" ({later}; the others {train})"
        known = {target.name: [str(one) for one in target.classes if one != NO_VALUE] for target in self.targets}
        held = {name: f"{len(of)} classes ({some(of)})" if of else "numbers" for name, of in known.items()}
        each = "".join(f"; {name} has {of}" for name, of in held.items())
        who = "" if self.patients is None else f", {counted(self.patients, 'patient')}"
        return f"{self.rows:,} rows{test}{who}, {counted(len(self.columns), 'column')}, {sites}{each}"

    @property
    def verdict(self) -> str:
        """A sentence on whether sites differ by more than chance."""
        differ = [d.name for d in self.disagreement if d.p is not None and d.p < ALPHA]
        return f"Sites differ by more than chance in {listed(differ)}." if differ else "Sites are not shown to differ."

    @property
    def lead(self) -> str:
        """A few sentences on the data and on how sites differ."""
        return " ".join(map(sentence, (self.size, *(d.meaning for d in self.disagreement))))

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: {self.lead}", *(f"- {note}" for note in self.notes)])

    def __repr__(self) -> str:
        return f"<Look at {self.name}: {self.size}; print() says more>"


# ---------------------------------------------------------------- the door
def describe(
    data: object,
    *,
    target: str | Sequence[str] | None = None,
    client: str | None = None,
    patient: str | None = None,
    patient_ids: PatientIds | None = None,
    test: object = None,
    leave_out: str | Sequence[str] = (),
    preprocess: Preprocess | bool | None = None,
    data_dir: Path | str | None = None,
    data_options: Mapping[str, Any] | None = None,
) -> Look:
    """Look at data: sites, sizes, labels, columns, gaps, differences between sites, and duplicate rows.

    Args:
        data: A DataFrame, the path of a table, (x, y), (x, y, patients), {client: one of these but a path}, the result
            of `unskew.load`, or a name.
        target, client: Columns of a table, both optional; several targets are a list.
        patient: Column of a table with the patient of each row; patients in two parts are named.
        patient_ids: Whose the patients' names are, as in `simulate`.
        test: Column that says which rows are test rows, a table of them, or `Latest`.
        leave_out: Columns of a table to ignore.
        preprocess: Planned preprocessing, as in `simulate`; notes then do not advise it.
        data_dir: Folder of named data sets.
        data_options: Settings of the data, as in `simulate`, such as the format of a CSV file or the columns above.

    Raises:
        ConfigError: If a setting is unknown, given twice, or does not apply to such data.
        DataError: If the data cannot be read, or a column is missing.
    """
    rules, left_out = rules_of(preprocess), [leave_out] if isinstance(leave_out, str) else list(leave_out)
    roles = {"target": target, "client": client, "patient": patient, "patient_ids": patient_ids, "test": test}
    if isinstance(data, str | Path):
        if isinstance(test, Latest):
            roles["test"] = {key: of for key, of in vars(test).items() if of is not None}
        elif isinstance(test, Path):
            roles["test"] = str(test)
        given = {key: of for key, of in {**roles, "leave_out": left_out or None}.items() if of is not None}
        source, options = str(data), {**(data_options or {}), **given}
        if (kind := tables.kind_at(source)) is not None:
            source, options = f"{kind}:{source.removeprefix(f'{kind}:')}", {"target": (), **options}
        rows = sources.table(source, data_dir, options, UNKNOWN, rules)
        return look(of_dataset(sources.load(source, data_dir, options)) if rows is None else rows)
    if data_options:
        raise ConfigError("data_options are for data that are named, and these are given as values; leave it out")
    if isinstance(data, Dataset):
        return look(of_dataset(data))
    return look(own.table(data, **roles, leave_out=left_out, rules=rules, kind=UNKNOWN))  # type: ignore[arg-type]


def of_dataset(data: Dataset) -> DataTable:
    """The table of a data set."""
    x, y, n = stored(data.x_train).numpy(), data.y_train.numpy(), len(data.y_train)
    owners = None if data.owners is None else data.owners.numpy()
    people = [of.numpy() for of in (data.patients, data.test_patients) if of is not None]
    if data.own_test is not None:
        part, people = np.where(data.own_test.numpy(), TEST, TRAIN), people[:1]
    else:
        x, y = np.concatenate([x, stored(data.x_test).numpy()]), np.concatenate([y, data.y_test.numpy()])
        part = np.repeat([TRAIN, TEST], [n, len(y) - n])
        owners = None if owners is None else np.concatenate([owners, np.full(len(y) - n, -1)])
    if data.targets is CLASS:
        y = np.array(labels_of(data.classes, data.label_type), object)[y]
        y = y.astype(np.int64) if data.label_type == "integer" else y
    elif data.targets is not SURVIVAL and y.ndim == 2 and len(data.outputs) != y.shape[1]:
        y = np.empty((len(y), 0))
    columns = [feature for column in data.inputs.columns for feature in column.features]
    named = len(columns) == x.shape[1] and x.ndim == 2
    return DataTable(
        data.name,
        y,
        None if named else x,
        {name: x[:, i].astype(np.float64) for i, name in enumerate(columns)} if named else {},
        target=data.outputs if y.ndim == 2 else (),
        owners=owners,
        clients=data.client_names,
        patients=np.concatenate(people) if people else None,
        patient_ids="network",
        part=part.astype(np.int8),
        kind=data.targets if data.targets is SURVIVAL else UNKNOWN,
        rules=Preprocess(),
    )


# ---------------------------------------------------------------- the look
def look(table: DataTable) -> Look:
    """Summary of a table: numbers for tables and figures, and notes."""
    if table.part is not None and (table.part == LEFT_OUT).any():
        table = table.take(np.flatnonzero(table.part != LEFT_OUT))
    test = np.zeros(len(table), bool) if table.part is None else table.part == TEST
    groups = [np.flatnonzero(table.at(i)) for i in range(len(table.clients))]
    missing = {name: gaps_in(values) for name, values in table.features.items()}
    share = np.mean(list(missing.values()), axis=0) if missing else np.zeros(len(table))

    def known(group: Ints) -> dict[str, Any]:
        seen: dict[str, Any] = {"patients": None if table.people is None else len(np.unique(table.people[group]))}
        for key, rows in (("train_span", group[~test[group]]), ("test_span", group[test[group]])):
            if table.when is not None and len(rows):
                seen[key] = written(table.when[rows].min()), written(table.when[rows].max())
        return seen

    sites = tuple(
        SiteLook(
            name,
            int((~test[group]).sum()),
            int(test[group].sum()),
            float(share[group].mean()) if len(group) else 0.0,
            **known(group),
        )
        for name, group in zip(table.clients, groups, strict=True)
    )
    coded = [(target, *_coded(target)) for target in table.targets]

    def at_site(classes: Sequence[Label], values: Array) -> tuple[float, ...]:
        if classes:
            return tuple(np.bincount(values, minlength=len(classes)).tolist())
        values = values[np.isfinite(values)]
        return (float(values.mean()), float(values.std())) if len(values) else ()

    targets = tuple(
        TargetLook(_name_of(target), classes, tuple(at_site(classes, values[group]) for group in groups))
        for target, classes, values in coded
    )
    columns = tuple(_column(name, values, missing[name], groups, table) for name, values in table.features.items())
    differ = _sizes(table.clients, list(map(len, groups)))
    if differ:
        of = {target: one for target, known, v in coded if (one := _difference(v, table, known)) is not None}
        for target, p in holm({target: one.p for target, one in of.items()}).items():
            one, name = replace(of[target], p=p), "labels" if len(coded) == 1 else f"labels of {_name_of(target)}"
            differ.append(Disagreement(name, one.share, one.chance, f"{target.called} {one}", p))
        differ += _in_columns({column.name: column.between for column in columns if column.between is not None})
    return Look(
        table.name,
        len(table),
        None if table.part is None else int(test.sum()),
        sites,
        targets,
        columns,
        tuple(differ),
        tuple(_notes(table)),
        **known(np.arange(len(table))),
    )


def _notes(table: DataTable) -> list[str]:
    """Sentences on what a run would refuse, and on what may not be meant in all else."""
    sentences = [sentence for check in checks.REFUSALS for sentence in check(table)]
    if len(table.clients) == 1 and not table.client:
        sentences.append(f"there is only one site ({table.clients[0]}); a federation needs at least two")
    kept = {name: of for name, of in table.columns.items() if not checks.of_column(table, name)}
    sentences += checks.notes(replace(table, columns=kept))
    if gaps := [name for name, values in kept.items() if table.rules is None and gaps_in(values).any()]:
        sentences.append(f"column{'s' * (len(gaps) > 1)} {some(gaps)} {checks.have(gaps)} gaps: fill with preprocess")
    return list(dict.fromkeys(sentences))


def _name_of(target: DataTarget) -> str:
    return target.called.removeprefix("target ").strip("'")


def _coded(target: DataTarget) -> tuple[tuple[Label, ...], Array]:
    """Names of a target's classes, and the class of each row; of a number none, and the numbers, NaN for all else.

    Rows without a value are of a last class.
    """
    values = target.values
    if not target.classes:
        numbers = values.astype(np.float64) if values.dtype.kind in "fiub" else np.full(len(values), np.nan)
        return (), np.where(np.isfinite(numbers), numbers, np.nan)
    codes, names = numbered(values.tolist())
    kinds = {type(v) for v in values.tolist() if not is_gap(v)}
    typed = names if str in kinds else [name == "True" for name in names] if kinds == {bool} else map(int, names)
    return (*typed, *[NO_VALUE] * bool((codes < 0).any())), np.where(codes < 0, len(names), codes)


def _column(
    name: str, values: Array, missing: npt.NDArray[np.bool_], groups: Sequence[Ints], table: DataTable
) -> ColumnLook:
    present = ~missing
    by_site = tuple(float(missing[group].mean()) if len(group) else 0.0 for group in groups)
    gaps = float(missing.mean()), by_site
    held = values[present]
    if values.dtype.kind == "O" and (
        not all(isinstance(v, str) for v in held) or (len(held) and all(map(is_date, held)))
    ):
        return ColumnLook(name, "dates", "make numbers of them, or leave the column out", *gaps)
    shown: tuple[str, ...] = ()
    if values.dtype.kind == "f":
        kind, present = "number", present & (np.abs(values) <= LARGEST)
        held = values[present] if present.any() else np.zeros(1)
        mean, sd = float(held.mean()), float(held.std())
        summary = f"{mean:.4g} ± {sd:.4g}"
        facts: dict[str, Any] = {"lowest": float(held.min()), "highest": float(held.max()), "mean": mean, "sd": sd}
        compared = np.where(present, values, np.nan)
        measured = (compared - mean) / (sd or 1.0)
    else:
        kind = "words"
        words, code, counts = np.unique(held.astype(str), return_inverse=True, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        facts = {}
        summary = ", ".join(f"{words[i]} {counts[i] / len(held):.0%}" for i in order[:3])
        summary += f", {len(words) - 3} more" if len(words) > 3 else ""
        compared = np.full(len(values), -1)
        compared[present] = np.minimum(np.argsort(order)[code], MOST_WORDS)
        shown = (*map(str, words[order[:MOST_WORDS]]), "other words")
        measured = (compared == 0).astype(np.float64)
    if (compared[present] == compared[present][:1]).all():
        return ColumnLook(name, "constant", summary if present.any() else "no value at all", *gaps, **facts)
    rows = [group[present[group]] for group in groups]
    means = tuple(float(measured[group].mean()) if len(group) else None for group in rows)
    return ColumnLook(name, kind, summary, *gaps, _difference(compared, table, shown), means, **facts)


def _difference(values: Array, table: DataTable, classes: Sequence[Label] = ()) -> SiteDifference | None:
    """Describe how sites differ in a column or a target; None where nothing can differ.

    A patient's rows may all be alike, so each counts as one: with the mean of its numbers, or its commonest class.
    """
    if table.owners is None:
        return None
    site = np.where(values < 0 if classes else np.isnan(values), -1, table.owners)
    if table.people is not None:
        values, both = values[site >= 0], np.stack([site, table.people])[:, site >= 0]
        pairs, of_row, n = np.unique(both, axis=1, return_inverse=True, return_counts=True)
        of_row, site = of_row.reshape(-1), pairs[0]
        values = most_frequent(of_row, values) if classes else np.bincount(of_row, values) / n
    return differs(values, site, table.clients, classes)


def _sizes(clients: Sequence[str], rows: Sequence[int]) -> list[Disagreement]:
    k, n = sum(map(bool, rows)), sum(rows)
    if k < 2:
        return []
    effective, largest = n**2 / sum(of**2 for of in rows), int(np.argmax(rows))
    reading = (
        f"by number of rows, the {k} sites are equivalent to {effective:.1f} of equal size; the largest, "
        f"{clients[largest]}, has {rows[largest] / n:.0%} of the rows"
    )
    return [Disagreement("sizes", effective, float(k), reading)]


def _in_columns(between: Mapping[str, SiteDifference]) -> list[Disagreement]:
    if not between:
        return []
    adjusted = holm({name: of.p for name, of in between.items()})
    order = sorted(between, key=lambda name: (adjusted[name], -between[name].share))
    m, differ = counted(len(order), "column"), [name for name in order if adjusted[name] < ALPHA]
    most = "; ".join(f"{name} {between[name].levels}" for name in differ[:MOST_NAMED])
    reading = f"no column is shown to differ between sites ({m}, {shown_p(adjusted[order[0]])})"
    if differ:
        reading = f"{len(differ)} of {m} differ{'s' * (len(order) == 1)} by more than chance: {most}"
    share, chance = (float(np.mean([getattr(of, what) for of in between.values()])) for what in ("share", "chance"))
    return [Disagreement("columns", share, chance, reading, adjusted[order[0]])]
