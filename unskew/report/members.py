"""Clients in their groups: what these promised each, and what it got.

The promise is HCCT's utility, (9) of its paper, beside that of a group of one; other methods promise nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from unskew.info import ClientGroups
from unskew.record.reader import Record, method_tables
from unskew.report.sections.group_figures import utility_alone
from unskew.report.sections.group_history import ALONE, GroupHistory, grouping, places
from unskew.report.sections.groups import formed
from unskew.tasks.measure import Measure


@dataclass(frozen=True)
class Member:
    """A client at the end of a run; values are of the headline, on its own test data.

    Attributes:
        name: Its name, or its number if it has none.
        groups: Numbers of its groups of two or more, from 1, as in the report's figures.
        there: True if it was in any group, even a group of one.
        utility, utility_alone: Utility in its group and in a group of one, no unit; None if the method has none.
        value: Headline in its group; None if not measured.
    """

    client: int
    name: str
    groups: tuple[int, ...]
    there: bool
    utility: float | None
    utility_alone: float | None
    value: float | None


@dataclass(frozen=True)
class JoinSummary:
    """The clients of one method.

    Attributes:
        seed, round: Seed and round of `members`.
        words: A sentence on the groups.
        measure: The headline.
    """

    method: str
    seed: int
    round: int
    members: tuple[Member, ...]
    words: str
    measure: Measure


def join_summaries(record: Record) -> tuple[JoinSummary, ...]:
    """The clients of every method of a run that forms groups; empty if there is none.

    Raises:
        RunError: If the run's files contradict each other.
    """
    methods = record.reports(ClientGroups)
    settings = method_tables(record) if methods else {}
    summaries = []
    for method in methods:
        g = grouping(record, method, None)
        if g is not None:
            members = _members(record, g, settings.get(method, {}))
            summaries.append(JoinSummary(method, g.seed, g.last.round, members, formed(g), record.headline))
    return tuple(summaries)


def _members(record: Record, g: GroupHistory, options: Mapping[str, object]) -> tuple[Member, ...]:
    where = places(g.last.groups, g.last.numbers)
    apart = utility_alone(options, record.partitions[g.seed].sizes)
    own = record.clients.get((g.method, g.seed), {})
    return tuple(
        Member(
            client=c,
            name=g.called(c),
            groups=tuple(n + 1 for n in where.get(c, ()) if n != ALONE),
            there=c in where,
            utility=utility,
            utility_alone=apart[c] if apart is not None and utility is not None else None,
            value=own.get(c),
        )
        for c, utility in enumerate(g.judged.utility or (None,) * g.clients)
    )
