"""The parts a report is made of: figures, tables, and sections that hold them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from unskew.info import Info
from unskew.record.reader import Record
from unskew.registry import Registry

PAGE_DIGITS = 125
"""Digits that a line of a table has place for on a page of 1,160 pixels, or on paper."""


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


def in_rows(charts: Sequence[Chart]) -> tuple[Chart, ...]:
    """The charts, with one that would be by itself in its row kept to half the page's width."""
    narrow = [c for c in charts if not c.wide]
    if len(narrow) != 1:
        return tuple(charts)
    held = Markup(str(narrow[0].svg).replace("<svg ", '<svg style="max-width:34rem" ', 1))
    return tuple(replace(c, svg=held) if c is narrow[0] else c for c in charts)


def folding(cell: str) -> str:
    """A cell's text that may break at its spaces, but not inside an interval or after a ±."""
    return re.sub(r"\[[^][]*\]|± ", lambda part: part[0].replace(" ", "\N{NO-BREAK SPACE}"), cell)


def on_pages(table: Table) -> list[Table]:
    """The table, in parts one below the other if its columns, folded where they can be, do not fit a page's width."""
    place = PAGE_DIGITS - min(34, max((len(e.name) for e in table.entries), default=0))
    parts: list[list[int]] = [[]]
    left = place
    for k, (title, unit) in enumerate(table.head[1:]):
        texts = [title, unit, *(e.cells[k] for e in table.entries)]
        pieces = (piece for text in texts for piece in folding(text).split(" "))
        width = 3 + (17 if k + 1 in table.text else max(map(len, pieces)))
        if width > left and parts[-1]:
            parts.append([])
            left = place
        parts[-1].append(k)
        left -= width
    return [
        replace(
            table,
            caption=table.caption + ", continued" * (part is not parts[0]),
            head=(table.head[0], *(table.head[k + 1] for k in part)),
            entries=tuple(replace(e, cells=tuple(e.cells[k] for k in part)) for e in table.entries),
            text=frozenset(i for i, k in enumerate(part, start=1) if k + 1 in table.text),
        )
        for part in parts
    ]


@dataclass(frozen=True, eq=False)
class SectionKind:
    """A section about what methods report of their rounds.

    Attributes:
        about: Description in one line.
        types: The types of info (`unskew.info`) that it draws, subtypes too; the report has the section if a method
            reported one.
        draw: Draws it from the run's record, the labels of those methods and their looks in figures; None if there is
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
