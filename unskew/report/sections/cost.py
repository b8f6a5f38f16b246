"""Cost of each method up to a target of the headline metric, under any radio: rounds, training legs, models, MB.

What the same costs on the air is priced by `unskew show RUN --cost --target fedavg-peak`.
"""

import math

from unskew.record.reader import Record, select
from unskew.report import tables
from unskew.report.section import Section, table
from unskew.report.stats import Spread
from unskew.run.metrics import first_reached

SPENT = (
    "SELECT method, seed, round, count(DISTINCT hop), 0, 0.0 FROM work GROUP BY 1, 2, 3 UNION ALL "
    "SELECT method, seed, round, 0, sum(kind = 'model'), sum(bytes) / 1e6 FROM transfers GROUP BY 1, 2, 3"
)
"""Iterations, models and MB by round."""


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


def reached(record: Record) -> dict[str, tuple[int, tuple[Spread | None, ...]]]:
    """Costs of each method but bounds until its first evaluation that reaches the target.

    Returns:
        By method the number of seeds that have a target and were evaluated, and rounds, iterations, models and MB over
        those of them that reached it: None if none did, or the run recorded none of these.
    """
    goal, m, rows = target(record)[0], record.headline, dict[str, tuple[int, tuple[Spread | None, ...]]]()
    spent: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    for method, seed, *row in select(record, SPENT):
        spent.setdefault((method, seed), []).append(tuple(row))
    for method in (k for k in record.methods if record.cell(k).bound is None):
        curves = {
            s: record.numbers.curve(method, s, m.shared) for s in tables.counted_seeds(record, method) if s in goal
        }
        first = {s: t for s, curve in curves.items() if (t := first_reached(curve, goal[s], m)) is not None}
        amounts: list[Spread | None] = [Spread(tuple(map(float, first.values()))) if first else None]
        for k in (1, 2, 3):
            known = first and all(any(row[k] for row in spent.get((method, s), ())) for s in first)
            sums = (math.fsum(row[k] for row in spent.get((method, s), ()) if row[0] <= t) for s, t in first.items())
            amounts.append(Spread(tuple(sums)) if known else None)
        if evaluated := sum(map(bool, curves.values())):
            rows[method] = evaluated, tuple(amounts)
    return rows


def section(record: Record) -> Section | None:
    """The table of costs to target; None if there is no target."""
    goal, words = target(record)
    if not goal:
        return None
    rows = []
    for method, (seeds, spreads) in reached(record).items():
        cells = ["–" if s is None else tables.quantity(s.mean, s.std) for s in spreads]
        rows.append((method, f"{len(spreads[0].values) if spreads[0] else 0} of {seeds}", *cells))
    level = tables.with_spread(Spread(tuple(goal.values())), record.headline)
    lead = f"The target is {words}: {level}{' %' * record.headline.percent}, each seed its own. No method knew it."
    head = ["method", "seeds | that reached it", "rounds", "iterations | training legs", "models | sent",
            "traffic | MB"]  # fmt: skip
    caption = "Spent until the first evaluated round that reaches the target; mean ± standard deviation over seeds"
    note = "Clients that train at the same time are one iteration, one after the other several."
    note += " Costs on the air: unskew show RUN --cost --target fedavg-peak."
    return Section("Cost to target", lead, (), (table(caption, head, rows, note),), "rounds, models, MB")
