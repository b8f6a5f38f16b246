"""Cost of each method up to a target of the headline metric: rounds, models, MB, and time and energy under a radio."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from unskew.ledger import DIRECTIONS, Direction
from unskew.pricing import traffic
from unskew.pricing.radio import Cost, price
from unskew.record.reader import Record, configured
from unskew.report import charts, tables
from unskew.report.section import Section, Table, TableRow
from unskew.report.stats import Curve, Spread
from unskew.report.tables import amount, count
from unskew.run.metrics import first_reached
from unskew.units import MB
from unskew.world import spectrum as spectra
from unskew.world.energy import Energy

By = Mapping[tuple[str, int], Mapping[int, float]]
"""(method, seed) -> {round: spent in that round}."""


@dataclass(frozen=True)
class Expense:
    """Something that is spent round by round.

    Attributes:
        name, unit: Name and unit in a table's head.
        spent: Amount that each method and seed spent in each round; a missing cell was not recorded.
        write: Formats an amount.
    """

    name: str
    unit: str
    spent: By
    write: Callable[[float], str]


@dataclass(frozen=True)
class Target:
    """The value to reach, by seed, and where it comes from."""

    by_seed: Mapping[int, float]
    words: str


@dataclass(frozen=True)
class Reached:
    """Cost of a method up to its first evaluation that reaches the target.

    Attributes:
        seeds: Seeds that have a target and were evaluated.
        rounds: Rounds of the seeds that reached it; None if none did.
        spent: Expense -> amounts of those seeds; None if it was not recorded.
    """

    method: str
    seeds: int
    rounds: Spread | None
    spent: Mapping[str, Spread | None]


def target(record: Record) -> Target | None:
    """FedAvg's best value on the test curve, seed by seed; without FedAvg the worst of the methods' best values.

    None if nothing was evaluated, or if there is neither FedAvg nor a second method.
    """
    base = tables.reference(record)
    methods = [m for m in record.methods if record.cell(m).bound is None]
    bests = {
        (m, s): record.headline.best(record.series[m, s, record.headline.shared].values())
        for m in methods
        for s in tables.counted_seeds(record, m)
        if record.series.get((m, s, record.headline.shared))
    }
    if base is not None:
        of_base = {s: best for (m, s), best in bests.items() if m == base}
        return Target(of_base, f"{base}’s best value on the test curve") if of_base else None
    if len({m for m, _ in bests}) < 2:
        return None
    worst = min if record.headline.higher else max
    reached_by_all = {
        s: worst(best for (_, at), best in bests.items() if at == s) for s in sorted({s for _, s in bests})
    }
    return Target(reached_by_all, "the worst of the methods’ best values on the test curve")


def quantities(record: Record) -> tuple[Expense, ...]:
    """Quantities a run spends under any radio: local-training legs, models, MB."""
    cells = [(c.method, c.seed) for c in record.cells]
    sent = {
        (m, s): {t: sum(row.get(t, 0.0) for row in rows) / MB for t in set().union(*rows)}
        for m, s in cells
        if any(rows := [record.series.get((m, s, f"bytes.{d}"), {}) for d in DIRECTIONS])
    }
    return (
        Expense("Iterations", "training legs", record.passes, count),
        Expense("Models", "sent", record.models, count),
        Expense("Traffic", "MB", sent, amount),
    )


@dataclass(frozen=True)
class Priced:
    """A run's ledger under a radio: sub-frames, time and energy by round, and which radio it was."""

    quantities: tuple[Expense, ...]
    words: str


def priced(record: Record) -> Priced | None:
    """The run's cost on the air under its own radio; None if it modelled none, or nothing travelled.

    Raises:
        RunError: If the run's folder cannot be priced.
    """
    if not record.flows or configured(record).get("world", {}).get("channel", {}).get("name") != "radio":
        return None
    run, carrier, energy = traffic.read(record.folder), spectra.PAPER, Energy()
    assert run.channel is not None
    costs = price(run.trainings, run.channel, carrier, energy)
    trained = all(c.compute_j is not None for c in costs)
    what = "radio and training" if trained else "radio"

    def by(part: Callable[[Cost], float]) -> By:
        by_cell: dict[tuple[str, int], dict[int, float]] = {}
        for c in costs:
            by_cell.setdefault((c.method, c.seed), {})[c.round] = part(c)
        return by_cell

    return Priced(
        (
            Expense("Sub-frames", f"of {1000 * carrier.subframe_s:g} ms", by(lambda c: _sum(c.subframes)), count),
            Expense("Time", f"s, {what}", by(lambda c: _sum(c.seconds) + (c.compute_s or 0.0)), amount),
            Expense(
                "Energy", f"J, {what}",
                by(lambda c: _sum(c.transmit_j) + _sum(c.receive_j) + (c.compute_j or 0.0)), amount,
            ),
        ),
        f"Priced under this run’s own radio: of {carrier.rbs} resource blocks in a sub-frame {carrier.free_rbs:g} are "
        f"free on average, training takes {energy.cycles_per_example:g} cycles an example at "
        f"{energy.clock_hz / 1e9:g} GHz. “unskew show --cost” sets other prices.",
    )  # fmt: skip


def _sum(flow: Mapping[Direction, float] | None) -> float:
    return 0.0 if flow is None else math.fsum(flow.values())


def reached(record: Record, aim: Target, spent: tuple[Expense, ...]) -> tuple[Reached, ...]:
    """A row for each method that is not a bound, in the order of the run."""
    return tuple(_reached(record, m, aim, spent) for m in record.methods if record.cell(m).bound is None)


def _reached(record: Record, method: str, aim: Target, quantities: tuple[Expense, ...]) -> Reached:
    curves = {
        s: curve
        for s in tables.counted_seeds(record, method)
        if s in aim.by_seed and (curve := record.series.get((method, s, record.headline.shared)))
    }
    when = {s: first_reached(curve, aim.by_seed[s], record.headline) for s, curve in curves.items()}
    first = {s: t for s, t in when.items() if t is not None}

    def upto(q: Expense) -> Spread | None:
        if not first or not all((method, s) in q.spent for s in first):
            return None
        return Spread(
            tuple(math.fsum(v for t, v in q.spent[method, s].items() if t <= end) for s, end in first.items())
        )

    rounds = Spread(tuple(map(float, first.values()))) if first else None
    return Reached(method, len(curves), rounds, {q.name: upto(q) for q in quantities})


def section(
    record: Record, marks: Mapping[str, str], spent: tuple[Expense, ...], priced: Priced | None
) -> Section | None:
    """The table of costs to target; None if there is no target.

    Args:
        record: The run.
        marks: Colours of the methods.
        spent: Its columns after the rounds.
        priced: The run's cost under its radio, for further columns.
    """
    spent = (*spent, *(priced.quantities if priced is not None else ()))
    aim = target(record)
    if aim is None:
        return None
    rows = [row for row in reached(record, aim, spent) if row.seeds]
    head = (
        ("Method", ""), ("Seeds", "that reached it"), ("Rounds", ""),
        *((q.name, q.unit) for q in spent),
    )  # fmt: skip
    entries = tuple(
        TableRow(
            row.method,
            (
                f"{len(row.rounds.values) if row.rounds else 0} of {row.seeds}",
                *(["not reached"] if row.rounds is None else [_mean_and_spread(row.rounds, count)]),
                *(_mean_and_spread(row.spent[q.name], q.write) for q in spent),
            ),
            charts.swatch(marks[row.method]),
        )
        for row in rows
    )
    level = tables.with_spread(Spread(tuple(aim.by_seed.values())), record.headline)
    unit = " %" if record.headline.percent else ""
    lead = (
        f"The target is {aim.words}: {level}{unit}, each seed its own. That is a reporting choice, as the papers do: "
        "it is picked on the test data and no method knew of it."
    )
    return Section("Cost to target", lead, (), (Table(
        "Spent up to and including the first evaluated round that reaches the target; mean ± standard deviation over "
        "the seeds that reached it",
        head, entries,
        "An iteration is one leg of local training: clients that train at the same time count once, clients that train "
        f"one after the other each time. {'' if priced is None else priced.words}",
    ),))  # fmt: skip


def _mean_and_spread(spread: Spread | None, write: Callable[[float], str]) -> str:
    if spread is None:
        return "–"
    mean = write(spread.mean)
    if spread.std is None:
        return mean
    # As many decimals as the mean has, but a count below a hundred has one when it is a mean.
    digits = max(len(mean.partition(".")[2]), int(write is count and spread.mean < 100))
    digits = 0 if write is count and spread.mean >= 100 else digits
    return f"{spread.mean:,.{digits}f} ± {spread.std:,.{digits}f}"


def curve(record: Record, method: str, spent: Expense) -> Curve | None:
    """The headline by the amount spent so far, the mean over the counted seeds; None if it was not recorded."""
    rows = [spent.spent.get((method, s)) for s in tables.counted_seeds(record, method)]
    spent_rows = [row for row in rows if row is not None]
    return tables.against(record, method, record.headline.shared, spent_rows, 1.0) if all(rows) else None
