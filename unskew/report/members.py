"""Clients in their groups: what these promised each, and what it got.

The promise is HCCT's utility, (9) of its paper, beside that of a group of one; other methods promise nothing.
"""

from collections.abc import Mapping

from unskew.info import ClientGroups
from unskew.record.reader import Record, method_tables
from unskew.report.section import Section, Table, TableRow
from unskew.report.sections.group_history import ALONE, GroupHistory, grouping, places
from unskew.report.sections.groups import formed, utility_alone


def section(record: Record) -> Section | None:
    """A table of the clients of every method that forms groups, at its end; None if there is none.

    Raises:
        RunError: If the run's files contradict each other.
    """
    methods = record.reports(ClientGroups)
    settings = method_tables(record) if methods else {}
    histories = [g for method in methods if (g := grouping(record, method, None)) is not None]
    tables = tuple(_table(record, g, settings.get(g.method, {})) for g in histories)
    lead = " ".join(formed(g) for g in histories)
    return Section("Who is with whom", lead, (), tables, "each client’s group and utility") if tables else None


def _table(record: Record, g: GroupHistory, options: Mapping[str, object]) -> Table:
    """The clients of a method in the last round of a seed; utilities only where the method has some."""
    where, m = places(g.last.groups, g.last.numbers), record.headline
    own = record.clients.get((g.method, g.seed), {})
    utilities = g.judged.utility or None
    apart = None if utilities is None else utility_alone(options, record.partitions[g.seed].sizes)
    rows = []
    for c in range(g.clients):
        groups = [n + 1 for n in where.get(c, ()) if n != ALONE]
        row = {
            "client": g.called(c),
            "groups": ", ".join(map(str, groups)) or ("alone" if c in where else None),
            "utility": None if utilities is None else utilities[c],
            "utility_alone": None if apart is None or utilities is None or utilities[c] is None else apart[c],
            m.name: own.get(c),
        }
        rows.append(row)
    head = (
        ("client", ""), ("group", ""), *((("utility", "in its group"), ("utility", "alone")) if utilities else ()),
        (m.label, m.unit),
    )  # fmt: skip
    entries = []
    for row in rows:
        promised = [row["utility"], row["utility_alone"]] if utilities else []
        cells = [str(row["groups"] or "–"), *("–" if v is None else f"{v:.2f}".replace("-", "−") for v in promised)]
        value = row[m.name]
        entries.append(TableRow(str(row["client"]), (*cells, "–" if value is None else m.show(float(str(value))))))
    note = "Utility: agreement with the group less what a small group costs." if utilities else ""
    data = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    caption = f"{g.method}, seed {g.seed}, round {g.last.round}"
    return Table(caption, head, tuple(entries), note, frozenset({1}), data)
