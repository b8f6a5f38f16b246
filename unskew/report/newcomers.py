"""Clients that came after training: each method for newcomers, as served and adapted, beside the clients that trained.

Two intervals of a gap are given: over seeds, as everywhere in a report, and over clients, which says how far the mean
of so few newcomers can be trusted: Welch's, of the clients' values in each seed, averaged over the seeds.  Clients that
have names are the same people under another seed, so that more seeds do not make it narrower.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unskew.errors import RunError
from unskew.record.logs import ADAPTED, SERVED, gap_name
from unskew.record.reader import Record, configured
from unskew.report import figures, tables
from unskew.report.section import Chart, Section, Table, TableRow
from unskew.report.stats import Spread, interval, welch
from unskew.tasks.measure import Measure
from unskew.words import beginning, counted


@dataclass(frozen=True)
class Gap:
    """The clients that trained minus newcomers, fractions for accuracies.

    Attributes:
        spread: The gap of each seed.
        seeds, clients: 95 % intervals over seeds and over clients; None where there are too few.
    """

    spread: Spread
    seeds: tuple[float, float] | None
    clients: tuple[float, float] | None


@dataclass(frozen=True)
class NewcomerRow:
    """A method's numbers; the spreads are over seeds, each a mean over clients."""

    method: str
    seen: Spread | None
    served: Spread
    adapted: Spread
    served_gap: Gap | None
    adapted_gap: Gap | None
    count: int


def rows(record: Record) -> tuple[NewcomerRow, ...]:
    """A row for each method that newcomers met; empty for a run without any."""
    of_methods = []
    for row in tables.headline(record):
        if row.unseen is None or row.adapted is None:
            continue
        of = [record.newcomers.get((row.method, seed, SERVED), {}) for seed in row.seeds]
        served, adapted = (_gap(record, row.method, row.seeds, part) for part in (SERVED, ADAPTED))
        count = max(map(len, of), default=0)
        of_methods.append(NewcomerRow(row.method, row.personal, row.unseen, row.adapted, served, adapted, count))
    return tuple(of_methods)


def _gap(record: Record, method: str, seeds: Sequence[int], part: str) -> Gap | None:
    name = gap_name(part, record.headline.name)
    last = tables.results(record, method, seeds, name)
    if last is None:
        return None
    client_values = [(record.clients.get((method, s), {}), record.newcomers.get((method, s, part), {})) for s in seeds]
    pairs = [(tuple(trained.values()), tuple(later.values())) for trained, later in client_values]
    named = any(of.client_names for of in record.partitions.values())
    over_clients = welch(pairs, drawn_anew=not named or len(pairs) < 2)
    return Gap(last, interval(last.values, sequential=record.until is not None), over_clients)


def section(record: Record, marks: Mapping[str, figures.LineStyle]) -> Section | None:
    """The section of a run with newcomers."""
    of, m = rows(record), record.headline
    if not of:
        return None
    lead = (
        f"{counted(of[0].count, 'client')}{' of each seed' if len(record.seeds) > 1 else ''} took no part in training. "
        "“As served” is what a method gives to a client it has never met; “adapted” is that after training on its own "
        f"data{_epochs(record)}. The gap is the {m.label} of the clients that trained minus that of unseen clients, "
        "each on its own test data; clients that trained were not adapted once more."
    )
    points = m.points
    head = (
        ("Method", ""),
        ("Trained", m.unit),
        ("Unseen clients, as served", m.unit),
        ("Unseen clients, adapted", m.unit),
        ("Gap as served", f"{points} [over seeds]".strip()),
        ("", "[over clients]"),
        ("Gap adapted", f"{points} [over seeds]".strip()),
        ("", "[over clients]"),
    )
    entries = tuple(
        TableRow(
            row.method,
            (
                tables.with_spread(row.seen, m),
                tables.with_spread(row.served, m),
                tables.with_spread(row.adapted, m),
                *(cell for gap in (row.served_gap, row.adapted_gap) for cell in _cells(gap, m)),
            ),
            figures.swatch(marks[row.method]),
        )
        for row in of
    )
    better = "Above" if m.higher else "Below"
    note = f"Intervals of 95 %. {better} zero the clients that trained are better off than the unseen ones."
    table = Table(f"{beginning(m.label)} on clients’ own test data, mean over clients", head, entries, note)
    return Section("Unseen clients", lead, (_chart(of, marks, m),), (table,))


def _epochs(record: Record) -> str:
    try:
        epochs = configured(record).get("unseen", {}).get("adapt_epochs")
    except RunError:
        return ""
    return "" if epochs is None else f" for {counted(epochs, 'epoch')}, or by the method’s own rule"


def _cells(gap: Gap | None, m: Measure) -> tuple[str, str]:
    if gap is None:
        return "–", "–"
    return f"{m.signed(gap.spread.mean)} {_brackets(gap.seeds, m)}".strip(), _brackets(gap.clients, m) or "–"


def _brackets(ends: tuple[float, float] | None, m: Measure) -> str:
    return "" if ends is None else m.interval(*ends)


def _chart(of: Sequence[NewcomerRow], marks: Mapping[str, figures.LineStyle], m: Measure) -> Chart:
    title = f"{beginning(m.label)} of clients that trained and of unseen ones"
    alt = f"{title}: " + "; ".join(
        f"{row.method} {m.show(row.seen.mean) if row.seen else 'not measured'}, unseen "
        f"{m.show(row.served.mean)} as served and {m.show(row.adapted.mean)} adapted"
        for row in of
    )
    svg = figures.newcomers_chart(
        "newcomers",
        [(r.method, marks[r.method], r.seen.mean if r.seen else None, r.served.mean, r.adapted.mean) for r in of],
        alt,
        m,
    )
    caption = (
        "Filled: clients that trained. Hollow: unseen clients as served. Bar: the same after adapting. Means over "
        "seeds."
    )
    return Chart(title, caption, svg)
