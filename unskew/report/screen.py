"""A run in a terminal: its table, the verdict in a sentence, and notes of a line each."""

import textwrap
from dataclasses import replace

from unskew.errors import shown
from unskew.record.reader import Record
from unskew.report import render, results, verdict


def screen(record: Record, width: int, most: int = 1) -> str:
    """The run in at most 25 lines (for up to a dozen methods).

    Args:
        record: The run, or several as one.
        width: Characters in a line.
        most: Notes beside the serious ones; the page has the others.  A single one is cut to a line.
    """
    table = results.headline(record, brief=True)
    means = [replace(row, cells=tuple(cell.replace(" ± ", "±") for cell in row.cells)) for row in table.entries]
    lines = [render.text(replace(table, entries=tuple(means)), width, note=False)]
    lines += textwrap.wrap(verdict.verdict(record), width)
    serious, notes = verdict.serious(record), verdict.notes(record)
    for i, note in enumerate((*serious, *notes[:most])):
        cut = note if most > 1 or i < len(serious) else textwrap.shorten(note, min(width, 80) - 2, placeholder=" …")
        lines += textwrap.wrap(cut, width, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    lines += [f"- {len(notes) - most} more on the page"] if len(notes) > most else []
    return shown("\n".join(lines))
