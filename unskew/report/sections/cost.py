"""Cost of each method up to a target of the headline metric, under any radio: rounds, training legs, models, MB.

What the same costs on the air is priced by `unskew show RUN --cost --target fedavg-peak`.
"""

import math
from typing import Any

from unskew.ledger import DIRECTIONS
from unskew.record.reader import Record, select
from unskew.report import tables
from unskew.report.section import Section, table
from unskew.report.stats import Spread
from unskew.run.metrics import first_reached
from unskew.units import MB

COUNTS = {
    "iterations": "SELECT method, seed, round, count(DISTINCT hop) FROM work GROUP BY 1, 2, 3",
    "models": "SELECT method, seed, round, count(*) FROM transfers WHERE kind = 'model' GROUP BY 1, 2, 3",
}
"""Amounts by round."""


def target(record: Record) -> tuple[dict[int, float], str]:
    """The value to reach by seed, and in words: the baseline's best on the test curve, or the worst of all methods'.

    None under a seed where nothing was evaluated, nor where there is neither a baseline nor a second method.
    """
    m, base = record.headline, record.baseline
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


def reached(record: Record) -> list[dict[str, Any]]:
    """Costs of each method but bounds until its first evaluation that reaches the target.

    Returns:
        Rows of method, seeds (that have a target and were evaluated), rounds, iterations, models and mb: a Spread over
        the seeds that reached it, None if none did, or if the amount was not recorded.
    """
    goal, numbers, rows = target(record)[0], record.numbers, []
    spent: dict[tuple[str, str, int], dict[int, float]] = {}
    for name, query in COUNTS.items():
        for method, seed, t, count in select(record, query):
            spent.setdefault((name, method, seed), {})[t] = count
    for method in (k for k in record.methods if record.cell(k).bound is None):
        seeds = tables.counted_seeds(record, method)
        curves = {s: numbers.curve(method, s, record.headline.shared) for s in seeds if s in goal}
        when = {s: first_reached(curve, goal[s], record.headline) for s, curve in curves.items() if curve}
        first = {s: t for s, t in when.items() if t is not None}
        for seed in first:
            sent = [numbers.curve(method, seed, f"bytes.{d}") for d in DIRECTIONS]
            if any(sent):
                rounds = set().union(*sent)
                spent["mb", method, seed] = {t: sum(row.get(t, 0.0) for row in sent) / MB for t in rounds}
        row: dict[str, Any] = {"method": method, "seeds": len(when)}
        row["rounds"] = Spread(tuple(map(float, first.values()))) if first else None
        for name in (*COUNTS, "mb"):
            of = {s: spent.get((name, method, s)) for s in first}
            sums = (math.fsum(v for t, v in (of[s] or {}).items() if t <= end) for s, end in first.items())
            row[name] = Spread(tuple(sums)) if first and None not in of.values() else None
        rows += [row] if when else []
    return rows


def section(record: Record) -> Section | None:
    """The table of costs to target; None if there is no target."""
    goal, words = target(record)
    if not goal:
        return None
    rows = []
    for row in reached(record):
        spreads = [row[name] for name in ("rounds", *COUNTS, "mb")]
        cells = ["–" if s is None else tables.quantity(s.mean, s.std) for s in spreads]
        rows.append((row["method"], f"{len(spreads[0].values) if spreads[0] else 0} of {row['seeds']}", *cells))
    level = tables.with_spread(Spread(tuple(goal.values())), record.headline)
    lead = f"The target is {words}: {level}{' %' * record.headline.percent}, each seed its own. No method knew it."
    head = ["Method", "Seeds | that reached it", "Rounds", "Iterations | training legs", "Models | sent",
            "Traffic | MB"]  # fmt: skip
    caption = "Spent until the first evaluated round that reaches the target; mean ± standard deviation over seeds"
    note = "Clients that train at the same time are one iteration, one after the other several."
    note += " Costs on the air: unskew show RUN --cost --target fedavg-peak."
    return Section("Cost to target", lead, (), (table(caption, head, rows, note),), "rounds, models, MB")
