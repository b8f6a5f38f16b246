"""Prints "Should I join?": the benefit that groups promised each client and the benefit it got."""

from rich.box import SIMPLE
from rich.table import Table

from unskew.cli.text import escape
from unskew.report import Record
from unskew.report.members import JoinSummary, Member, join_summaries
from unskew.tasks.measure import Measure

MOST_ROWS = 40
"""Rows of all methods together up to which clients are printed one by one; beyond, the report's figures have them."""


def should_join(record: Record) -> list[Table | str]:
    """Lay out a table of its clients for each method that forms groups, or just a sentence if they are many."""
    methods = join_summaries(record)
    small = sum(len(j.members) for j in methods) <= MOST_ROWS
    return [part for j in methods for part in ((clients(j), j.words) if small else (j.words,))]


def clients(j: JoinSummary) -> Table:
    """The clients of a method in the last round of a seed; columns without a number are left out."""
    columns = [
        ("client", [escape(m.name) for m in j.members]),
        ("group", [_groups(m) for m in j.members]),
        ("utility", [_utility(m.utility) for m in j.members]),
        ("alone", [_utility(m.utility_alone) for m in j.members]),
        (j.measure.label, [_value(m.value, j.measure) for m in j.members]),
    ]
    notes = []
    if any(m.utility is not None for m in j.members):
        notes.append("utility: agreement with the group less what a small group costs, and that of being alone")
    unit = "percent, " if j.measure.percent else ""
    notes.append(f"{j.measure.label}: {unit}on the client's own test data")
    title = f"Should I join? {escape(j.method)}, seed {j.seed}, round {j.round}"
    table = Table(
        title=title,
        min_width=min(len(title), 72),
        caption=escape("; ".join(notes)),
        box=SIMPLE,
        padding=(0, 1),
        pad_edge=False,
        collapse_padding=True,
    )
    visible = [(head, cells) for head, cells in columns if any(cell != "–" for cell in cells)]
    table.add_column("client", justify="right", overflow="fold")
    for head, _ in visible[1:]:
        table.add_column(head, justify="right", no_wrap=True)
    for row in zip(*(cells for _, cells in visible), strict=True):
        table.add_row(*row)
    return table


def _groups(m: Member) -> str:
    return ", ".join(map(str, m.groups)) or ("alone" if m.there else "–")


def _utility(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".replace("-", "−")


def _value(value: float | None, measure: Measure) -> str:
    return "–" if value is None else measure.show(value)
