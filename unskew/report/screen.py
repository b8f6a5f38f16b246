"""What a terminal and Python show of a run: its table, the verdict in a sentence, and notes of a line each."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from unskew.errors import shown
from unskew.record.reader import Record
from unskew.report import render, results, verdict

MOST_NOTES = 3
"""Notes on the screen; the page has the others."""


def screen(
    record: Record, width: int, records: Sequence[Record] = (), names: Sequence[str] = (), more: Sequence[str] = ()
) -> str:
    """The run in at most 25 lines, if it has no more than a dozen methods.

    Args:
        record: The run, or several as one.
        width: Characters in a line.
        records, names: These several, and what they are called.
        more: Notes that come before those of the record.
    """
    table = results.headline(record, brief=True)
    means = [replace(row, cells=tuple(re.sub(r" ± \S+", "", cell) for cell in row.cells)) for row in table.entries]
    lines = [render.text(replace(table, entries=tuple(means)), width, note=False)]
    lines += textwrap.wrap(verdict.verdict(record), width)
    notes = list(dict.fromkeys((*verdict.serious(record), *more, *verdict.notes(record, records, names))))
    lines += [f"- {textwrap.shorten(note, width - 2, placeholder=' …')}" for note in notes[:MOST_NOTES]]
    lines += [f"- {len(notes) - MOST_NOTES} more on the page"] if len(notes) > MOST_NOTES else []
    return shown("\n".join(lines))
