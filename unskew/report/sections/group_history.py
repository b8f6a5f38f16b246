"""The groups that a method formed over a run, as its record has them, each under a number that it keeps.

Groups have no names of their own.  Here each gets a number, which it keeps from round to round by its members:
the assignment of a round's groups to the numbers so far has the largest sum of overlaps (members in common over members
in either), so that colours stay.  A group of one has no number.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from unskew.info import ClientGroups, JudgedGroups
from unskew.record.reader import Record, info_of
from unskew.report import stats, tables
from unskew.tasks.measure import ACCURACY, Measure

Floats = npt.NDArray[np.float64]
Groups = tuple[tuple[int, ...], ...]

ALONE = -1
"""The number of a group of one."""


def members(info: ClientGroups) -> Groups:
    """The groups of a round that have members, each ascending."""
    return tuple(tuple(sorted(group)) for group in info.groups if group)


# ---------------------------------------------------------------- numbers for groups
@dataclass
class Tracks:
    """Numbers of the groups: the last members of each number, and whether it was used in the last round."""

    members: list[frozenset[int]] = field(default_factory=list)
    last: set[int] = field(default_factory=set)

    def number(self, groups: Groups) -> tuple[int, ...]:
        """A number for every group of the next round, `ALONE` for one of a single client."""
        numbers = [ALONE] * len(groups)
        several = [i for i, g in enumerate(groups) if len(g) > 1]
        overlap = np.array([[_overlap(groups[i], m) for m in self.members] for i in several])
        if overlap.size:
            # Of two equal overlaps the one with a group that was there a round ago.
            overlap[:, sorted(self.last)] += 1e-9 * (overlap[:, sorted(self.last)] > 0)
            for row, track in zip(*linear_sum_assignment(overlap, maximize=True), strict=True):
                if overlap[row, track] > 0:
                    numbers[several[row]] = int(track)
        for i in several:
            if numbers[i] == ALONE:
                numbers[i] = len(self.members)
                self.members.append(frozenset())
            self.members[numbers[i]] = frozenset(groups[i])
        self.last = {numbers[i] for i in several}
        return tuple(numbers)


def _overlap(a: Iterable[int], b: frozenset[int]) -> float:
    mine = set(a)
    return len(mine & b) / len(mine | b)


Place = Mapping[int, tuple[int, ...]]
"""Client -> the numbers of its groups, `ALONE` for one by itself; a client in no group is not there."""


def places(groups: Groups, numbers: Sequence[int]) -> Place:
    """The groups of each client, by number."""
    numbers_of: dict[int, tuple[int, ...]] = {}
    for members, number in zip(groups, numbers, strict=True):
        for c in members:
            numbers_of[c] = (*numbers_of.get(c, ()), number)
    return numbers_of


# ---------------------------------------------------------------- one method over a run
@dataclass(frozen=True)
class Seen:
    """The groups of a round and their numbers."""

    round: int
    groups: Groups
    numbers: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class GroupHistory:
    """A method that forms groups, over a run.

    Attributes:
        seed: Seed that is drawn.
        clients: Number of clients under that seed.
        seen: Its rounds.
        judged: Criteria of the last round's groups, as far as the method reports them.
        cut: The round of the last partition that has merges to show, and its criteria.
        several: Number of groups of two or more in the last round, by seed.
        alone: Number of groups of one in the last round, by seed.
        overlapping: True if a client was in two groups at once.
        planted: The domain of each client; empty unless each client has just one.
        rand: Adjusted Rand index against the clients' domains by round, None without domains.
        gains: By how much the client's own headline is better than under local-only training, seed -> client -> gain.
        measure: The headline.
        called: Names of clients by their numbers.
    """

    method: str
    seed: int
    clients: int
    seen: tuple[Seen, ...]
    judged: JudgedGroups
    cut: tuple[int, JudgedGroups] | None
    several: stats.Spread
    alone: stats.Spread
    overlapping: bool
    planted: tuple[int, ...]
    rand: stats.Curve | None
    gains: Mapping[int, Mapping[int, float]]
    measure: Measure = ACCURACY
    called: Callable[[int], str] = str

    @property
    def last(self) -> Seen:
        """The last round."""
        return self.seen[-1]

    @property
    def number_of(self) -> dict[int, int]:
        """The number of each client's group in the last round, the first if it has several."""
        return {c: numbers[0] for c, numbers in places(self.last.groups, self.last.numbers).items()}


def grouping(record: Record, method: str, base: str | None) -> GroupHistory | None:
    """Read a method's info; None if there is no round of a seed whose partition is known.

    Args:
        record: The run.
        method: Its label.
        base: Label of local-only training.

    Raises:
        RunError: If the info contradicts itself.
    """
    seeds = [s for s in tables.counted_seeds(record, method) if s in record.partitions]
    clients = {s: len(record.partitions[s].sizes) for s in seeds}
    planted = {s: record.partitions[s].domains for s in seeds}
    rand: dict[int, dict[int, float]] = {}
    ends: dict[int, Groups] = {}
    seen: list[Seen] = []
    tracks, judged, cut, overlapping = Tracks(), JudgedGroups(groups=()), None, False
    for seed, at, info in info_of(record, method, ClientGroups):
        if seed not in clients:
            continue
        groups = ends[seed] = members(info)
        overlapping |= len({c for g in groups for c in g}) < sum(map(len, groups))
        where = planted[seed]
        if len(set(where)) > 1 and groups and not overlapping:
            rand.setdefault(seed, {})[at] = adjusted_rand(groups, where)
        if seed == seeds[0]:
            seen.append(Seen(at, groups, tracks.number(groups)))
            judged = info if isinstance(info, JudgedGroups) else judged
            cut = (at, judged) if judged.history or judged.beyond else cut
    if not seen:
        return None
    sign = 1.0 if record.headline.higher else -1.0
    return GroupHistory(
        method=method,
        seed=seeds[0],
        clients=clients[seeds[0]],
        seen=tuple(seen),
        judged=judged,
        cut=cut,
        several=stats.Spread(tuple(float(sum(len(g) > 1 for g in groups)) for groups in ends.values())),
        alone=stats.Spread(tuple(float(sum(len(g) == 1 for g in groups)) for groups in ends.values())),
        overlapping=overlapping,
        planted=planted[seeds[0]],
        rand=None if overlapping else stats.curve_by_round(list(rand.values())),
        gains={
            seed: {c: sign * (mine - theirs) for c, (mine, theirs) in pairs.items()}
            for seed, pairs in ({} if base is None else tables.client_pairs(record, method, base)).items()
        },
        measure=record.headline,
        called=record.partitions[seeds[0]].client,
    )


def adjusted_rand(groups: Groups, planted: Sequence[int]) -> float:
    """Agreement of disjoint groups with the domains, of the clients in a group: 1 is the same, 0 what chance gives."""
    from sklearn.metrics import adjusted_rand_score  # an import of seconds that few reports need

    group_of = {c: k for k, members in enumerate(groups) for c in members}
    return float(adjusted_rand_score([planted[c] for c in group_of], list(group_of.values())))
