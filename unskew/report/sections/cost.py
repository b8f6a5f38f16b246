"""Cost of each method up to a target of the headline metric, under any radio: rounds, training legs, models, MB.

What the same costs on the air is priced by `unskew show RUN --cost --target fedavg-peak`.
"""

import math

from unskew.record.reader import Record, select
from unskew.report import tables
from unskew.report.section import Section, table
from unskew.report.stats import Spread
from unskew.run.metrics import Curves, peaks, rounds_to

SPENT = (
    "SELECT method, seed, round, count(DISTINCT hop), 0, 0.0 FROM work GROUP BY 1, 2, 3 UNION ALL "
    "SELECT method, seed, round, 0, sum(kind = 'model'), sum(bytes) / 1e6 FROM transfers GROUP BY 1, 2, 3"
)
"""Iterations, models and MB by round."""


def target(record: Record) -> tuple[dict[int, float], str]:
    """The value to reach by seed, and in words: the baseline's best on the test curve, or the worst of all methods'.

    Empty if nothing was evaluated, or if there is neither a baseline nor a second method.
    """
    m, curves = record.headline, _curves(record)
    if record.baseline is not None:
        return peaks(curves, record.baseline, m), f"{record.baseline}’s best value on the test curve"
    bests = [best for best in (peaks(curves, method, m) for method in record.methods) if best]
    worst = min if m.higher else max
    seeds = sorted({seed for best in bests for seed in best} if len(bests) > 1 else ())
    by_seed = {seed: worst(best[seed] for best in bests if seed in best) for seed in seeds}
    return by_seed, "the worst of the methods’ best values on the test curve"


def _curves(record: Record) -> Curves:
    """Curves of the global model, over the counted seeds of each method but bounds."""
    methods = [method for method in record.methods if record.cell(method).bound is None]
    cells = [(method, seed) for method in methods for seed in tables.counted_seeds(record, method)]
    return {cell: record.numbers.curve(*cell, record.headline.shared) for cell in cells}


def reached(record: Record) -> dict[str, tuple[int, tuple[Spread | None, ...]]]:
    """Costs of each method but bounds until its first evaluation that reaches the target.

    Returns:
        By method the number of seeds that have a target and were evaluated, and rounds, iterations, models and MB over
        those of them that reached it: None if none did, or the run recorded none of these.
    """
    rows: dict[str, tuple[int, tuple[Spread | None, ...]]] = {}
    spent: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    for method, seed, *row in select(record, SPENT):
        spent.setdefault((method, seed), []).append(tuple(row))
    when = rounds_to(target(record)[0], _curves(record), record.headline)
    for method in dict.fromkeys(method for method, _ in when):
        of_seeds = {cell: t for cell, t in when.items() if cell[0] == method}
        first = {cell: t for cell, t in of_seeds.items() if t is not None}
        amounts: list[Spread | None] = [Spread(tuple(map(float, first.values()))) if first else None]
        for k in (1, 2, 3):
            known = first and all(any(row[k] for row in spent.get(cell, ())) for cell in first)
            sums = (math.fsum(row[k] for row in spent.get(cell, ()) if row[0] <= t) for cell, t in first.items())
            amounts.append(Spread(tuple(sums)) if known else None)
        rows[method] = len(of_seeds), tuple(amounts)
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
