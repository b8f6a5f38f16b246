"""Cost of each method up to a target of the headline metric, under any radio: rounds, training legs, models, MB.

What the same costs on the air is priced by `unskew show RUN --cost --target fedavg-peak`.
"""

import math
from collections.abc import Mapping

from unskew.ledger import DIRECTIONS
from unskew.record.reader import Record, select
from unskew.report import charts, tables
from unskew.report.section import Section, TableRow, table
from unskew.report.stats import Spread
from unskew.run.metrics import first_reached
from unskew.units import MB

Spent = Mapping[tuple[str, int], Mapping[int, float]]
"""(method, seed) -> {round: amount}."""
COUNTS = {
    "iterations": "SELECT method, seed, round, count(DISTINCT hop) FROM work GROUP BY 1, 2, 3",
    "models": "SELECT method, seed, round, count(*) FROM transfers WHERE kind = 'model' GROUP BY 1, 2, 3",
}


def target(record: Record) -> tuple[dict[int, float], str]:
    """The value to reach by seed, and in words: the baseline's best on the test curve, or the worst of all methods'.

    None under a seed where nothing was evaluated, nor where there is neither a baseline nor a second method.
    """
    m, base = record.headline, tables.reference(record)
    bests: dict[int, dict[str, float]] = {}
    for method in record.methods:
        for seed in tables.counted_seeds(record, method):
            curve = record.numbers.curve(method, seed, m.shared)
            if curve and record.cell(method).bound is None and base in (None, method):
                bests.setdefault(seed, {})[method] = m.best(curve.values())
    if base is not None:
        return {seed: of[base] for seed, of in bests.items()}, f"{base}’s best value on the test curve"
    several = len({method for of in bests.values() for method in of}) > 1
    worst = min if m.higher else max
    by_seed = {seed: worst(of.values()) for seed, of in sorted(bests.items()) if several}
    return by_seed, "the worst of the methods’ best values on the test curve"


def reached(record: Record) -> list[dict[str, object]]:
    """Costs of each method but bounds until its first evaluation that reaches the target.

    Returns:
        Rows of method, seeds (that have a target and were evaluated), rounds, iterations, models and mb: a Spread over
        the seeds that reached it, None if none did, or if the amount was not recorded.
    """
    goal, rows = target(record)[0], []
    spent: dict[str, Spent] = {"mb": _sent(record)}
    for name, query in COUNTS.items():
        by_round = spent[name] = dict[tuple[str, int], dict[int, float]]()
        for method, seed, t, count in select(record, query):
            by_round.setdefault((method, seed), {})[t] = count
    for method in (k for k in record.methods if record.cell(k).bound is None):
        curves = {
            s: record.numbers.curve(method, s, record.headline.shared) for s in tables.counted_seeds(record, method)
        }
        when = {s: first_reached(curve, goal[s], record.headline) for s, curve in curves.items() if curve and s in goal}
        first = {s: t for s, t in when.items() if t is not None}
        row: dict[str, object] = {"method": method, "seeds": len(when), "rounds": None}
        row |= {"rounds": Spread(tuple(map(float, first.values())))} if first else {}
        for name, of in spent.items():
            known = first and all((method, s) in of for s in first)
            sums = (math.fsum(v for t, v in of[method, s].items() if t <= end) for s, end in first.items())
            row[name] = Spread(tuple(sums)) if known else None
        rows += [row] if when else []
    return rows


def _sent(record: Record) -> Spent:
    """MB by round."""
    sent = {}
    for c in record.cells:
        rows = [record.numbers.curve(c.method, c.seed, f"bytes.{d}") for d in DIRECTIONS]
        if any(rows):
            sent[c.method, c.seed] = {t: sum(row.get(t, 0.0) for row in rows) / MB for t in set().union(*rows)}
    return sent


def section(record: Record, marks: Mapping[str, str]) -> Section | None:
    """The table of costs to target; None if there is no target."""
    goal, words = target(record)
    if not goal:
        return None
    rows = []
    for row in reached(record):
        spreads = [row[name] for name in ("rounds", "iterations", "models", "mb")]
        cells = ["–" if not isinstance(s, Spread) else tables.quantity(s.mean, s.std) for s in spreads]
        n = len(spreads[0].values) if isinstance(spreads[0], Spread) else 0
        method = str(row["method"])
        rows.append(TableRow(method, (f"{n} of {row['seeds']}", *cells), charts.swatch(marks[method])))
    level = tables.with_spread(Spread(tuple(goal.values())), record.headline)
    lead = f"The target is {words}: {level}{' %' * record.headline.percent}, each seed its own. No method knew it."
    head = ["Method", "Seeds | that reached it", "Rounds", "Iterations | training legs", "Models | sent",
            "Traffic | MB"]  # fmt: skip
    caption = "Spent until the first evaluated round that reaches the target; mean ± standard deviation over seeds"
    note = "Clients that train at the same time are one iteration, one after the other several."
    note += " Costs on the air: unskew show RUN --cost --target fedavg-peak."
    return Section("Cost to target", lead, (), (table(caption, head, rows, note),), "rounds, models, MB")
