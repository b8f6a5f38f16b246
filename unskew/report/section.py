"""The parts a report is made of: figures, tables, and sections that hold them."""

from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True)
class Chart:
    """A drawn figure and the words around it; `legend` is (name, swatch)."""

    title: str
    caption: str
    svg: Markup
    legend: tuple[tuple[str, Markup], ...] = ()
    wide: bool = False


@dataclass(frozen=True)
class TableRow:
    """A row of a table: its name, its swatch in figures (empty if it has none), the note below it, its cells."""

    name: str
    cells: tuple[str, ...]
    swatch: Markup = Markup()
    below: str = ""


@dataclass(frozen=True)
class Table:
    """Numbers side by side; `head` is (title, unit), the first for the names.  `text` are columns of words."""

    caption: str
    head: tuple[tuple[str, str], ...]
    entries: tuple[TableRow, ...]
    note: str = ""
    text: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Section:
    """A part of the page under its own heading: a paragraph, figures side by side, wide figures, tables."""

    title: str
    lead: str = ""
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
