"""Preprocessing of a table's columns by training rows alone: gaps filled, numbers standardised, words as 0/1 columns.

Statistics are each client's own ("site"), or agreed over all clients ("agreed").  To agree, a client sends count, mean
and sum of squared deviations of a column, its words, and whether it has gaps.  From these everybody gets the mean and
deviation over all rows together (T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample
variance", The American Statistician 37, 1983, eq. 1.5).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unskew.data.columns import WRITTEN, Array, RawTable, column, gaps_in, is_date, natural, numbers_as_words, value_of
from unskew.data.inputs import FIRST_WORD, OF_COLUMN, Column, Inputs, prepared, vocabulary
from unskew.errors import ConfigError, DataError, did_you_mean, obeyed
from unskew.words import composed, some

Scale = Literal["agreed", "site", "none"]
Missing = Literal["agreed mean", "site mean", "site median", "refuse"]
Ints = npt.NDArray[np.int64]

MANY_WORDS = 100
"""Different words from which on a column is no category; a category of more is better grouped by who knows it."""


LARGEST = float(np.finfo(np.float32).max)
"""Size of a number above which a network cannot hold it, nor double precision its square's sum."""

MOST_ROWS = 10**12
"""Training rows that no site has."""

LONGEST = 1000
"""Characters that a label, a category or the name of a client or class has at most."""


@dataclass(frozen=True)
class ColumnRule:
    """Rules for one column where they differ from those for all, and numbers agreed on before.

    Attributes:
        kind: "category" for numeric codes, "text" for texts, which become a 0/1 column for each of their 500 commonest
            words, otherwise "number"; by default as the column looks.
        scale, missing: As in `Preprocess`.
        mean, sd: Agreed numbers, used instead of those of the rows at hand.
        words: Agreed words of a category, in order.
        gaps: Whether the column has gaps, as agreed; it then gets a 0/1 column for them.
    """

    kind: Literal["number", "category", "text"] | None = None
    scale: Scale | None = None
    missing: Missing | None = None
    mean: float | None = None
    sd: float | None = None
    words: tuple[str, ...] | None = None
    gaps: bool | None = None


@dataclass(frozen=True)
class Preprocess:
    """Preprocessing of a table's columns before training; all numbers come from training rows.

    Attributes:
        scale: Numbers become (value - mean) / standard deviation (n - 1): "agreed" over all clients, or each "site" by
            its own; "none" leaves them.  A constant column becomes 0.
        missing: A gap in a column of numbers becomes the "agreed mean", the "site mean" or the "site median"; "refuse"
            allows none.  By default the site's mean if `scale` is by site, else the agreed mean.  A column with a gap
            in a training row also gets a 0/1 column for gaps.  A gap among words, or a word that no client had in
            training, is 0 in all their columns.
        columns: Rules for single columns, by name.  If they name all columns of a table, inputs come in their order.
    """

    scale: Scale = "agreed"
    missing: Missing | None = None
    columns: dict[str, ColumnRule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Normalise names of columns to one form of Unicode (NFC)."""
        object.__setattr__(self, "columns", {composed(name): rule for name, rule in self.columns.items()})

    def of(self, name: str) -> tuple[Scale, Missing]:
        """How a column is scaled and its gaps are filled."""
        own = self.columns.get(name, ColumnRule())
        scale = own.scale or self.scale
        return scale, own.missing or self.missing or ("site mean" if self.scale == "site" else "agreed mean")

    def ordered(self, names: Iterable[str]) -> list[str]:
        """A table's columns in the order of `columns`, if that names all of them."""
        found = list(names)
        return list(self.columns) if self.columns.keys() == set(found) else found

    def with_categories(self, names: Iterable[str]) -> "Preprocess":
        """The same with these columns as categories, unless their kind is declared."""
        new = {name: self.columns.get(name, ColumnRule()) for name in names}
        coded = {name: replace(of, kind=of.kind or "category") for name, of in new.items()}
        return replace(self, columns=self.columns | coded)

    def disclosed(self, columns: Sequence[str]) -> str:
        """What each client discloses of these columns to agree on numbers, in words; empty if nothing."""
        numbers = [name for name in columns if any(how.startswith("agreed") for how in self.of(name))]
        moments = "counts, means and deviations, " if numbers else ""
        return f"{moments}words of categories, and gaps of its columns" if columns else ""


def rules_of(preprocess: Preprocess | bool | None) -> Preprocess | None:
    """The preprocessing for an argument: True is the default, False and None are none."""
    return (Preprocess() if preprocess else None) if isinstance(preprocess, bool) else preprocess


@dataclass(frozen=True)
class ColumnSums:
    """Statistics of one column that a site discloses to agree on numbers; never a row.

    Attributes:
        n, mean, m2: Count, mean, and sum of squared deviations from the mean; zeros for words.
        gaps: True if a value is missing.
        words: Its different words, in order; None for numbers.
    """

    n: int
    mean: float
    m2: float
    gaps: bool = False
    words: tuple[str, ...] | None = None

    @staticmethod
    def of(values: Array, coded: bool = False) -> "ColumnSums":
        """The statistics of these values; if `coded`, numbers are words."""
        missing = gaps_in(values)
        if values.dtype.kind == "O" or coded:
            words = {v for v in column(values, category=True).tolist() if v is not None}
            return ColumnSums(0, 0.0, 0.0, bool(missing.any()), tuple(sorted(words, key=natural)))
        present = values[~missing]
        mean = float(present.mean()) if len(present) else 0.0
        return ColumnSums(len(present), mean, float(((present - mean) ** 2).sum()), bool(missing.any()))

    @property
    def sd(self) -> float:
        """Standard deviation (n - 1); 0 for a constant column, up to rounding."""
        sd = float(np.sqrt(self.m2 / (self.n - 1))) if self.n > 1 else 0.0
        return 0.0 if sd <= 1e-12 * abs(self.mean) else sd


def agreed(parts: Sequence[ColumnSums]) -> ColumnSums:
    """Statistics of all rows together.

    >>> agreed([ColumnSums.of(np.array([1.0, 3.0])), ColumnSums.of(np.array([5.0, np.nan]))])
    ColumnSums(n=3, mean=3.0, m2=8.0, gaps=True, words=None)
    """
    n, gaps = sum(part.n for part in parts), any(part.gaps for part in parts)
    if words := {word for part in parts for word in part.words or ()}:
        return ColumnSums(0, 0.0, 0.0, gaps, tuple(sorted(words, key=natural)))
    mean = sum(part.n * part.mean for part in parts) / (n or 1)
    return ColumnSums(n, mean, sum((part.m2 + part.n * (part.mean - mean) ** 2 for part in parts), 0.0), gaps)


@dataclass(frozen=True, eq=False)
class RawRows:
    """The columns of a data set before preprocessing, which is fitted again to the rows that train.

    Attributes:
        rules: Preprocessing rules of the columns.
        columns: Training rows of the data set, followed by its test rows.
        owners: Client of each row, an index into `clients`; all 0 where the data name no clients.
        clients: Names of the clients.
        train: Number of training rows.
    """

    rules: Preprocess
    columns: RawTable
    owners: Ints
    clients: tuple[str, ...]
    train: int

    def inputs(self, train: Ints, later: Ints, before: Inputs = Inputs()) -> Inputs:
        """Inputs fitted to these rows only.

        Agreed numbers come from the rows that train; `later` rows of unseen clients only give these clients' own
        numbers.  With inputs fitted `before` to more rows, number and order of the network's inputs stay.

        Raises:
            ConfigError: If a rule is for a column that is not there.
            DataError: If a column has no value at all, or other words than agreed.
        """
        if odd := [name for name in self.rules.columns if name not in self.columns]:
            near = did_you_mean(odd[0], list(self.columns))
            raise ConfigError(f"preprocess.columns: there is no column {odd[0]!r}{near}")
        both = np.concatenate([train, later])
        clients = range(len(self.clients))
        training, by_client = ([rows[self.owners[rows] == client] for client in clients] for rows in (train, both))
        columns = [self._fitted(name, training, by_client) for name in self.rules.ordered(self.columns)]
        if before.columns:
            columns = [_as_wide(column, old) for column, old in zip(columns, before.columns, strict=True)]
        own = self.clients if any(column.by_client for column in columns) else ()
        return Inputs("table", columns=tuple(columns), clients=own).read_as(before)

    def _fitted(self, name: str, training: Sequence[Ints], by_client: Sequence[Ints]) -> Column:
        """A column with numbers of these rows of each client: of those that train, and of all."""
        rules, values, alone = self.rules, self.columns[name], len(self.columns) == 1
        rule, (scale, instead) = rules.columns.get(name, ColumnRule()), rules.of(name)
        words = values.dtype.kind == "O"
        held = [value for rows in training for value in values[rows].tolist() if isinstance(value, str)]
        undeclared = rule.kind is None and rule.words is None
        text = rule.kind == "text" or (undeclared and looks_like_texts(name, held, alone))
        category = not text and (rule.kind == "category" or (rule.kind is None and words))
        if words and not text and (not category or rule.mean is not None):
            odd = next(
                (v for rows in by_client for v in values[rows] if v is not None and value_of(v) is None), "words"
            )
            raise DataError(f"column {name!r} is to hold numbers and holds {odd!r}; correct it, or set {WRITTEN}")
        here = agreed([ColumnSums.of(values[rows], category) for rows in training])
        if not here.n and not here.words and rule.gaps is None:
            raise DataError(f"column {name!r} has no value in any training row; leave it out")
        gaps = here.gaps if rule.gaps is None else rule.gaps
        if text:
            common = tuple(vocabulary(held, OF_COLUMN + FIRST_WORD)) if rule.words is None else rule.words
            return Column(name, "text", gaps=gaps, values=common)
        if category:
            kept = (here.words or ()) if rule.words is None else rule.words
            if here.words and not set(here.words) & set(kept):
                raise DataError(
                    f"column {name!r} holds none of the words agreed on ({some(kept)}), but {some(here.words)}"
                )
            return Column(name, "category", gaps=gaps, values=kept)
        own = [ColumnSums.of(values[rows]) for rows in by_client]
        mean = (here.mean if rule.mean is None else rule.mean,)
        sd = (here.sd if rule.sd is None else rule.sd,)
        means, of_rows = tuple(of.mean for of in own), zip(by_client, own, strict=True)
        medians = tuple(float(np.nanmedian(values[rows])) if of.n else 0.0 for rows, of in of_rows)
        centre, spread = {"agreed": (mean, sd), "site": (means, tuple(of.sd for of in own)), "none": ((), ())}[scale]
        fill = {"agreed mean": mean, "site mean": means, "site median": medians, "refuse": ()}[instead]
        empty = [client for client, of in zip(self.clients, own, strict=True) if of.n == 0]
        if empty and instead.startswith("site") and scale != "site":
            raise DataError(f"column {name!r} has no value at {some(empty)}, so no {instead}; choose 'agreed mean'")
        return Column(name, "number", fill, centre, spread, gaps)

    def tensors(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The network's inputs for training and test rows."""
        x = torch.from_numpy(prepared(inputs.columns, self.columns, self.owners))
        return x[: self.train], x[self.train :]


def _as_wide(column: Column, before: Column) -> Column:
    """The column with the inputs that it had; those of words and gaps that are not among the training rows stay 0."""
    return replace(
        column,
        values=before.values,
        unlearnt=tuple(value for value in before.values if value not in column.values),
        gaps=before.gaps,
        gaps_unlearnt=before.gaps and not column.gaps,
    )


def no_category(name: str, words: Sequence[str], declared: bool) -> str:
    """Why a column's words are no categories; empty if they are.

    Words `declared` to be categories may look like numbers.
    """
    known = sorted(set(words))
    if known and all(map(is_date, known)):
        return f"column {name!r} holds dates, such as {known[0]!r}: make numbers of them, or leave the column out"
    if not declared and (odd := numbers_as_words(known)):
        way = f"preprocess.columns.{name}.kind = 'category'"
        return f"column {name!r} holds numbers as words, such as {odd!r}: set {way}, or set {WRITTEN}"
    if len(known) > MANY_WORDS or (len(known) > 20 and 2 * len(known) > len(words)):
        what = f"{len(known)} different words in {len(words)} rows, such as {known[0][:30]!r}"
        way = f"leave it out, group them, or make numbers of them; if it says who is in a row, patient = {name!r}"
        return f"column {name!r} holds {what}: {way}"
    return ""


def looks_like_texts(name: str, values: Sequence[object], alone: bool) -> bool:
    """True for words that are no categories, mostly of two words or more; beside other columns, of four or more."""
    held = [value for value in values if isinstance(value, str) and not is_date(value)]
    several = sum(value.strip().count(" ") >= (1 if alone else 3) for value in held)
    return 2 * several > len(held) and bool(no_category(name, held, False))


# ---------------------------------------------------------------- agreeing without rows
def lacking(rules: Preprocess, name: str, words: bool) -> set[str]:
    """Settings of a column, of `words` or of numbers, that clients with only their own rows must agree on."""
    own, (scale, instead) = rules.columns.get(name, ColumnRule()), rules.of(name)
    agreed_on = {
        "words": words,
        "mean": not words and (scale == "agreed" or instead.startswith("agreed")),
        "sd": not words and scale == "agreed",
        "gaps": True,
    }
    return {setting for setting, needed in agreed_on.items() if needed and getattr(own, setting) is None}


def agree(rules: Preprocess, sites: Mapping[str, Mapping[str, ColumnSums]]) -> Preprocess:
    """The rules, with missing numbers filled in from the sums of all sites.

    Raises:
        DataError: If a column has words at one site and numbers at another.
    """
    columns: dict[str, ColumnRule] = {}
    for name in rules.ordered(next(iter(sites.values()))):
        # A column that a site never measured has no words, and counts for either.
        words, numbers = ([site for site, of in sites.items() if getattr(of[name], what)] for what in ("words", "n"))
        if words and numbers:
            raise DataError(f"column {name!r} holds words at {words[0]} and numbers at {numbers[0]}")
        rule, of = rules.columns.get(name, ColumnRule()), agreed([by_name[name] for by_name in sites.values()])
        settings: dict[str, Any] = {"gaps": of.gaps}
        if words or rule.words is not None or rule.kind in ("category", "text"):
            settings |= {"kind": "category", "words": of.words or ()}
        else:
            settings |= {"mean": of.mean, "sd": of.sd}
        columns[name] = replace(rule, **{key: at for key, at in settings.items() if getattr(rule, key) is None})
    return replace(rules, columns=columns)


def declared(rules: Preprocess | None) -> Inputs:
    """Inputs by rules that say all of every column; as given without, or where sites have numbers of their own."""
    if rules is None or any(how.startswith("site") for name in rules.columns for how in rules.of(name)):
        return Inputs()
    nobody, of = np.empty(0, np.int64), rules.columns.items()
    held = {name: np.empty(0, np.float64 if rule.words is None else object) for name, rule in of}
    return RawRows(rules, held, nobody, (), 0).inputs(nobody, nobody)


def impossible(by_name: Mapping[str, ColumnSums]) -> str:
    """Why sums cannot be of any rows; empty if they can."""
    rows = max((of.n for of in by_name.values() if of.words is None and not of.gaps), default=None)  # words have n = 0
    for name, of in by_name.items():
        words = of.words or ()
        fits = rows is None or not of.n or (of.n < rows if of.gaps else of.n == rows)
        holds = (
            fits
            and not any(obeyed(text) or len(text) > LONGEST for text in (name, *words))
            and 0 <= of.n <= MOST_ROWS
            and of.n != 1  # the mean of one value is that value
            and abs(of.mean) <= LARGEST
            and 0 <= of.m2 <= 4 * MOST_ROWS * LARGEST**2
            and (not words if of.n else of.mean == of.m2 == 0)
            and len(words) == len(set(words)) <= MANY_WORDS
        )
        if not holds:
            return f"the sums of column {name[:40]!r} are those of no rows"
    return ""


def record(inputs: Inputs) -> dict[str, Any] | None:
    """The preprocessing as JSON with all numbers; None for nothing."""
    if all(column == Column(column.name) for column in inputs.columns):
        return None
    columns = [{key: of for key, of in asdict(column).items() if of or key == "name"} for column in inputs.columns]
    return {"columns": columns, "clients": list(inputs.clients)}
