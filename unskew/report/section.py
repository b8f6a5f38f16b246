"""The parts of a report: figures, tables and sections."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from unskew.info import Info, Privacy
from unskew.record.reader import Record
from unskew.registry import Registry
from unskew.words import sentence

Columns = Mapping[str, Sequence[Any]]
"""Columns of equal length by their names, as `pandas.DataFrame`, `polars.DataFrame` and narwhals take them."""


@dataclass(frozen=True)
class Chart:
    """A figure with its words.

    Attributes:
        title, caption: What it shows, and how it is read.
        drawing: An Altair chart, drawn when a page needs it; None if `html` is the figure.
        described: Alternative text, by default title and caption.
        wide: True if it takes the page's width.
        html: A figure that is no chart, such as a table of images.
    """

    title: str
    caption: str
    drawing: Any
    described: str = ""
    wide: bool = False
    html: Markup = Markup()

    def __post_init__(self) -> None:
        object.__setattr__(self, "described", self.described or f"{self.title}. {self.caption}")


@dataclass(frozen=True)
class TableRow:
    """A row of a table: its name, its cells, the note below the name, and the indices of bold cells."""

    name: str
    cells: tuple[str, ...]
    below: str = ""
    bold: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Table:
    """A table, which `unskew.report.render` writes; in rows of methods the first column names them.

    Attributes:
        caption: What the table shows.
        head: (title, unit) of each column, the first for the rows' names.
        entries: The rows.
        note: How the numbers are read.
        text: Indices of columns of words; the others are of numbers.
        data: The same unrounded; empty if the cells are all there is.
    """

    caption: str
    head: tuple[tuple[str, str], ...]
    entries: tuple[TableRow, ...]
    note: str = ""
    text: frozenset[int] = frozenset()
    data: Columns = field(default_factory=dict)


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[TableRow | Sequence[str]],
    note: str = "",
    words: Sequence[int] = (),
    data: Columns | None = None,
) -> Table:
    """Make a table.  In its head `rows | tested` is a title and its unit; `words` are indices of columns of words.

    A row may be its name and its cells.
    """
    titles = tuple((title.strip(), unit.strip()) for title, _, unit in (name.partition("|") for name in head))
    entries = tuple(row if isinstance(row, TableRow) else TableRow(row[0], tuple(row[1:])) for row in rows)
    return Table(caption, titles, entries, note, frozenset(k % len(head) for k in words), data or {})


def columns(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Rows as columns."""
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


def seen(privacy: Privacy) -> tuple[str, str, str]:
    """Cells on what is guaranteed, and what the server and clients saw."""
    return privacy.guarantee, sentence(privacy.server), sentence(privacy.clients)


@dataclass(frozen=True)
class Section:
    """A folded part of a page: a paragraph, figures side by side, wide figures, tables, then text.

    `about` is a line on its content; by default its pictures and tables are counted.
    """

    title: str
    lead: str = ""
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    about: str = ""
    code: str = ""

    @classmethod
    def of(
        cls, title: str, lead: str, charts: Iterable[Chart | None], tables: Iterable[Table | None], about: str = ""
    ) -> "Section":
        """A section of the given charts and of tables with rows; None is left out."""
        return cls(title, lead, tuple(filter(None, charts)), tuple(t for t in tables if t and t.entries), about)

    @property
    def empty(self) -> bool:
        """True if there is nothing in it."""
        return not (self.charts or self.tables or self.lead or self.code)


@dataclass(frozen=True, eq=False)
class SectionKind:
    """A section on what methods report of their rounds.

    Attributes:
        about: Description in one line.
        types: The types of info (`unskew.info`) that it draws, with subtypes; the report has the section if a method
            reported one.
        draw: Draws it from the run's record, the labels of those methods and all methods' colours; None if there is
            nothing to show.
    """

    about: str
    types: tuple[type[Info], ...]
    draw: Callable[[Record, Sequence[str], Mapping[str, Any]], Section | None]


SECTIONS = Registry(
    "section",
    "unskew.sections",
    {
        "predictions": "unskew.report.sections.predictions:KIND",
        "effects": "unskew.report.sections.effects:KIND",
        "subgroups": "unskew.report.sections.subgroups:KIND",
        "embeddings": "unskew.report.sections.embeddings:KIND",
        "diffusion": "unskew.report.sections.diffusion:KIND",
        "groups": "unskew.report.sections.groups:KIND",
        "class_relations": "unskew.report.sections.class_relations:KIND",
        "privacy": "unskew.report.sections.privacy:KIND",
    },
    "a SectionKind",
    lambda target: isinstance(target, SectionKind),
)
"""Sections of reports, in the order they are drawn in; a file names none, so others are those of installed packages."""
