"""What the pages of advice and of a tuning have in common: their folder, tables, and gains drawn."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from unskew.errors import RunError
from unskew.report import figures
from unskew.report.gain import Gain
from unskew.report.section import Chart, Table, TableRow
from unskew.report.worth import bracket
from unskew.tasks.measure import Measure


@contextmanager
def own_folder(folder: Path) -> Iterator[Path]:
    """A folder to write to, made if it is missing.

    Raises:
        RunError: If it, or what is written there, cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror or error}; give another --out") from error


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[Table, ...]:
    """A table, or none without rows; of its head `Rows | tested` is a title with its unit, the last column is words."""
    titles = tuple((title.strip(), unit.strip()) for title, _, unit in (cell.partition("|") for cell in head))
    entries = tuple(TableRow(label, tuple(cells)) for label, *cells in rows)
    return (Table(caption, titles, entries, "", frozenset({len(head) - 1})),) if entries else ()


def gains(name: str, title: str, rows: Sequence[tuple[str, Gain]], m: Measure) -> tuple[Chart, ...]:
    """A figure with a gain in each row, its marker and its interval; none without rows."""
    if not rows:
        return ()
    with figures.style(name):
        figure, axes = figures.chart(54 + 24 * len(rows), 430)
        axes.axvline(0, color=figures.INK, linewidth=0.9)
        for i, (_, gain) in enumerate(rows):
            look = figures.looks([False] * 3)[{"gains": 2, "loses": 1, "open": 0}[gain.verdict]]
            if gain.low is not None and gain.high is not None:
                axes.plot([m.scale * gain.low, m.scale * gain.high], [i, i], color=look.colour, linewidth=2.2)
            axes.plot([m.scale * gain.mean], [i], **{**figures.drawn(look), "markersize": 8})
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_yticks(range(len(rows)), [x if len(x) <= 28 else f"{x[:27]}…" for x, _ in rows], fontsize=9)
        axes.set_xlabel(f"gain in {m.label}{', ' * bool(m.points)}{m.points}")
        said = "; ".join(f"{label} {bracket(gain, m)}" for label, gain in rows)
        return (Chart(title, "Marker: mean; bar: 95 % interval.", figures.markup(figure, name, said)),)
