"""Cost of each method up to a target of the headline metric: rounds, models, MB, and time and energy under a radio."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from unskew.ledger import DIRECTIONS
from unskew.pricing import traffic
from unskew.pricing.radio import Cost, price
from unskew.record.reader import Record, configured
from unskew.report import charts, tables
from unskew.report.section import Section, TableRow, table
from unskew.report.stats import Spread
from unskew.run.metrics import first_reached
from unskew.units import MB
from unskew.world import spectrum as spectra
from unskew.world.energy import Energy


@dataclass(frozen=True)
class Expense:
    """Something that is spent round by round: its name and unit, and (method, seed) -> {round: amount}."""

    name: str
    unit: str
    spent: Mapping[tuple[str, int], Mapping[int, float]]


@dataclass(frozen=True)
class Target:
    """The value to reach, by seed, and where it comes from."""

    by_seed: Mapping[int, float]
    words: str


@dataclass(frozen=True)
class Reached:
    """Spent by a method up to its first evaluation that reaches the target, over the seeds that reached it.

    `seeds` have a target and were evaluated; `rounds` is None if none reached it, an amount if it was not recorded.
    """

    method: str
    seeds: int
    rounds: Spread | None
    spent: Mapping[str, Spread | None]


def target(record: Record) -> Target | None:
    """The baseline's best value on the test curve, seed by seed; without one the worst of the methods' best values.

    None if nothing was evaluated, or if there is neither a baseline nor a second method.
    """
    m, base = record.headline, tables.reference(record)
    bests = {
        (method, s): m.best(curve.values())
        for method in record.methods
        for s in tables.counted_seeds(record, method)
        if record.cell(method).bound is None and (curve := record.series.get((method, s, m.shared)))
    }
    if base is not None:
        of_base = {s: best for (method, s), best in bests.items() if method == base}
        return Target(of_base, f"{base}’s best value on the test curve") if of_base else None
    if len({method for method, _ in bests}) < 2:
        return None
    worst = min if m.higher else max
    seeds = sorted({s for _, s in bests})
    by_all = {s: worst(best for (_, at), best in bests.items() if at == s) for s in seeds}
    return Target(by_all, "the worst of the methods’ best values on the test curve")


def quantities(record: Record) -> tuple[Expense, ...]:
    """Quantities a run spends under any radio: local-training legs, models, MB."""
    sent = {
        (c.method, c.seed): {t: sum(row.get(t, 0.0) for row in rows) / MB for t in set().union(*rows)}
        for c in record.cells
        if any(rows := [record.series.get((c.method, c.seed, f"bytes.{d}"), {}) for d in DIRECTIONS])
    }
    return (
        Expense("Iterations", "training legs", record.passes),
        Expense("Models", "sent", record.models),
        Expense("Traffic", "MB", sent),
    )


def priced(record: Record) -> tuple[tuple[Expense, ...], str]:
    """Airtime and energy of the run under its own radio, and in words which that is; nothing if it modelled none.

    Raises:
        RunError: If the run's folder cannot be priced.
    """
    if not record.flows or configured(record).get("world", {}).get("channel", {}).get("name") != "radio":
        return (), ""
    run, carrier, energy = traffic.read(record.folder), spectra.PAPER, Energy()
    assert run.channel is not None
    costs = price(run.trainings, run.channel, carrier, energy)
    what = "radio and training" if all("compute_j" in c.numbers for c in costs) else "radio"

    def expense(name: str, unit: str, part: Callable[[Cost], float]) -> Expense:
        spent: dict[tuple[str, int], dict[int, float]] = {}
        for c in costs:
            spent.setdefault((c.method, c.seed), {})[c.round] = part(c)
        return Expense(name, unit, spent)

    return (
        expense("Sub-frames", f"of {1000 * carrier.subframe_s:g} ms", lambda c: c.whole("subframes")),
        expense("Time", f"s, {what}", lambda c: c.whole("seconds") + c.numbers.get("compute_s", 0.0)),
        expense(
            "Energy",
            f"J, {what}",
            lambda c: sum(map(c.whole, ("transmit_j", "receive_j"))) + c.numbers.get("compute_j", 0.0),
        ),
    ), (
        f"Priced under this run’s own radio: of {carrier.rbs} resource blocks in a sub-frame {carrier.free_rbs:g} are "
        f"free on average, training takes {energy.cycles_per_example:g} cycles an example at "
        f"{energy.clock_hz / 1e9:g} GHz. “unskew show --cost” sets other prices."
    )


def reached(record: Record, aim: Target, spent: tuple[Expense, ...]) -> tuple[Reached, ...]:
    """A row for each method that is not a bound, in the order of the run."""
    m, rows = record.headline, []
    for method in (k for k in record.methods if record.cell(k).bound is None):
        curves = {
            s: curve
            for s in tables.counted_seeds(record, method)
            if s in aim.by_seed and (curve := record.series.get((method, s, m.shared)))
        }
        when = {s: first_reached(curve, aim.by_seed[s], m) for s, curve in curves.items()}
        first = {s: t for s, t in when.items() if t is not None}
        until = {
            q.name: Spread(
                tuple(math.fsum(v for t, v in q.spent[method, s].items() if t <= end) for s, end in first.items())
            )
            if first and all((method, s) in q.spent for s in first)
            else None
            for q in spent
        }
        rounds = Spread(tuple(map(float, first.values()))) if first else None
        rows.append(Reached(method, len(curves), rounds, until))
    return tuple(rows)


def section(record: Record, marks: Mapping[str, str]) -> Section | None:
    """The table of costs to target; None if there is no target."""
    aim = target(record)
    if aim is None:
        return None
    on_air, words = priced(record)
    spent = (*quantities(record), *on_air)
    rows = [
        TableRow(
            row.method,
            (
                f"{len(row.rounds.values) if row.rounds else 0} of {row.seeds}",
                "not reached" if row.rounds is None else tables.quantity(row.rounds.mean, row.rounds.std),
                *("–" if (s := row.spent[q.name]) is None else tables.quantity(s.mean, s.std) for q in spent),
            ),
            charts.swatch(marks[row.method]),
        )
        for row in reached(record, aim, spent)
        if row.seeds
    ]
    level = tables.with_spread(Spread(tuple(aim.by_seed.values())), record.headline)
    lead = f"The target is {aim.words}: {level}{' %' * record.headline.percent}, each seed its own. No method knew it."
    head = ["Method", "Seeds | that reached it", "Rounds", *(f"{q.name} | {q.unit}" for q in spent)]
    caption = "Spent until the first evaluated round that reaches the target; mean ± standard deviation over seeds"
    note = f"Clients that train at the same time are one iteration, one after the other several. {words}"
    return Section("Cost to target", lead, (), (table(caption, head, rows, note.strip()),), "rounds, models, MB")
