"""Should I join?  The benefit that a method's groups promised each client and the benefit it got, in numbers and words.

The promise is HCCT's utility, (9) of its paper, beside the utility of a group of one; other methods that form groups
promise nothing.  The result is the client's headline on its own test data beside that of local-only training.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from unskew.info import ClientGroups
from unskew.record.reader import Record, method_tables
from unskew.report.sections.group_figures import utility_alone
from unskew.report.sections.group_history import ALONE, GroupHistory, better_and_worse, grouping, places
from unskew.report.sections.groups import formed
from unskew.report.worth import alone
from unskew.tasks.measure import Measure
from unskew.words import of_seeds


@dataclass(frozen=True)
class Member:
    """A client at the end of a run; values are of the headline, on its own test data.

    Attributes:
        name: Its name, or its number if it has none.
        groups: Numbers of its groups of two or more, from 1, as in the report's figures.
        there: True if it was in any group, even a group of one.
        utility, utility_alone: Utility in its group and in a group of one, no unit; None if the method has none.
        value, value_alone: Headline in its group and under local-only training; None if not measured.
        gain: By how much the value is better than alone, whatever the headline's direction; None if not known.
    """

    client: int
    name: str
    groups: tuple[int, ...]
    there: bool
    utility: float | None
    utility_alone: float | None
    value: float | None
    value_alone: float | None
    gain: float | None


@dataclass(frozen=True)
class JoinSummary:
    """The clients of one method.

    Attributes:
        seed, round: Seed and round of `members`.
        base: Label of local-only training; None if the run does not have it.
        gains: Gains over local-only training, seed -> client -> gain; above zero is better.
        words: A sentence or two about all seeds.
        measure: The headline.
    """

    method: str
    seed: int
    round: int
    base: str | None
    members: tuple[Member, ...]
    gains: Mapping[int, Mapping[int, float]]
    words: str
    measure: Measure


def join_summaries(record: Record) -> tuple[JoinSummary, ...]:
    """The clients of every method of a run that forms groups; empty if there is none.

    Raises:
        RunError: If the run's files contradict each other.
    """
    methods = record.reports(ClientGroups)
    base, settings = alone(record), method_tables(record) if methods else {}
    summaries = []
    for method in methods:
        g = grouping(record, method, base)
        if g is not None:
            words = f"{formed(g)} {_gain_in_words(record, g, base)}"
            members = _members(record, g, settings.get(method, {}), base)
            summaries.append(JoinSummary(method, g.seed, g.last.round, base, members, g.gains, words, record.headline))
    return tuple(summaries)


def _members(record: Record, g: GroupHistory, options: Mapping[str, object], base: str | None) -> tuple[Member, ...]:
    where = places(g.last.groups, g.last.numbers)
    apart = utility_alone(options, record.partitions[g.seed].sizes)
    own = record.clients.get((g.method, g.seed), {})
    # Without gains the two have not reached the same round yet, and numbers side by side must be comparable.
    base_values = record.clients.get((base, g.seed), {}) if base is not None and g.seed in g.gains else {}
    return tuple(
        Member(
            client=c,
            name=g.called(c),
            groups=tuple(n + 1 for n in where.get(c, ()) if n != ALONE),
            there=c in where,
            utility=utility,
            utility_alone=apart[c] if apart is not None and utility is not None else None,
            value=own.get(c),
            value_alone=base_values.get(c),
            gain=g.gains.get(g.seed, {}).get(c),
        )
        for c, utility in enumerate(g.judged.utility or (None,) * g.clients)
    )


def _gain_in_words(record: Record, g: GroupHistory, base: str | None) -> str:
    """The gain from joining over all seeds, in words."""
    if base is None:
        return (
            "Whether joining pays off is not known: no method of this run trains every client alone; add “independent”."
        )
    gains = [v for row in g.gains.values() for v in row.values()]
    if not gains:
        those = base if record.finished else f"{base} after the same round yet"
        return f"Whether joining pays off is not known: there are no clients’ results to compare with those of {those}."
    better, worse = better_and_worse(gains)
    unit = "points" if g.measure.percent else f"in {g.measure.label}"
    planned = sum(c.method == g.method for c in record.cells)
    all_seeds = f" (of {planned} seeds together)" if planned > 1 else ""
    together = of_seeds(len(g.gains), planned - len(g.gains)) or all_seeds
    mean = statistics.fmean(statistics.fmean(row.values()) for row in g.gains.values())
    return (
        f"Against {base}, {better} of {len(gains)} clients{together} are ahead and {worse} behind, be it by chance: "
        f"{g.measure.signed(mean)} {unit} on average, {g.measure.signed(min(gains))} at worst."
    )
