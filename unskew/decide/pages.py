"""Parts that the pages of advice and of a tuning have in common: their folder, tables, and gains drawn."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from unskew.errors import RunError
from unskew.report import charts, section
from unskew.report.section import Chart, Table
from unskew.report.worth import Gain, bracket
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


def table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = (-1,)
) -> tuple[Table, ...]:
    """A table, as `section.table` makes it; none without rows."""
    return (section.table(caption, head, rows, words=words),) if rows else ()


def gains(title: str, rows: Sequence[tuple[str, Gain]], m: Measure) -> tuple[Chart, ...]:
    """A figure with a gain in each row, its mark and its interval; none without rows."""
    if not rows:
        return ()
    data = [charts.interval(name, gain, m.scale, kind=gain.verdict) for name, gain in rows]
    drawn = charts.forest(data, f"gain in {m.label}{', ' * bool(m.points)}{m.points}")
    return (Chart(title, "Mean and 95 % interval.", drawn, "; ".join(f"{x} {bracket(g, m)}" for x, g in rows)),)
