"""Groups of clients that train together, formed by HCCT and other methods, and the value of joining one.

Y. Sun, M. Kountouris, J. Zhang, "How to Collaborate", IEEE TMC 2024 (HCCT), Algorithm 2 and Figs. 3 to 5.  Equation
numbers in brackets are the paper's.

Notation   u_i    client i's utility in its group, -alpha_i / D_C + cos(S_C, g_i)                 (9)
           B      benefit of a merge, the sum of all utilities after it less that before it      (15)
           D_i    client i's training examples, alpha_i what a small group costs it

A group of one agrees with itself, so that its utility is 1 - alpha_i / D_i.  Utility predicts a benefit from gradients;
the gain measures it afterwards: own accuracy less that of local-only training in the same run.

Groups have no names of their own.  Each gets a number, which it keeps from round to round by its members: the
assignment of a round's groups to the numbers so far has the largest sum of overlaps (members in common over members in
either), so that colours stay.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from unskew.errors import ConfigError
from unskew.info import ClientGroups, JudgedGroups
from unskew.record.reader import Record, info_of, method_tables
from unskew.report import charts, stats, tables
from unskew.report.section import Chart, Section, SectionKind, Table, TableRow, columns, table
from unskew.report.worth import alone
from unskew.server.cluster import alphas
from unskew.words import counted

MOST_SHOWN = 4  # methods whose groups are drawn
MOST_CLIENTS = 100  # of a figure with a mark for each client
MOST_ROUNDS = 30  # columns of who trained with whom
MOST_COMPARED = 50  # clients of the matrix, whose squares are many

ALONE = -1
"""The number of a group of one."""

Floats = npt.NDArray[np.float64]
Groups = tuple[tuple[int, ...], ...]


def members(info: ClientGroups) -> Groups:
    """The groups of a round that have members, each ascending."""
    return tuple(tuple(sorted(group)) for group in info.groups if group)


def adjusted_rand(groups: Groups, planted: Sequence[int]) -> float:
    """Agreement of disjoint groups with the domains, of the clients in a group: 1 is the same, 0 what chance gives."""
    from sklearn.metrics import adjusted_rand_score  # an import of seconds that few reports need

    group_of = {c: k for k, members in enumerate(groups) for c in members}
    return float(adjusted_rand_score([planted[c] for c in group_of], list(group_of.values())))


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


@dataclass(frozen=True)
class Seen:
    """The groups of a round and their numbers."""

    round: int
    groups: Groups
    numbers: tuple[int, ...]

    @property
    def places(self) -> dict[int, tuple[int, ...]]:
        """The numbers of each client's groups; a client in no group is not there."""
        places: dict[int, tuple[int, ...]] = {}
        for members, number in zip(self.groups, self.numbers, strict=True):
            for c in members:
                places[c] = (*places.get(c, ()), number)
        return places


# ---------------------------------------------------------------- one method over a run
@dataclass(frozen=True, eq=False)
class GroupHistory:
    """A method that forms groups, over a run.

    Attributes:
        seed, clients: Seed that is drawn, and its number of clients.
        seen: Its rounds.
        judged: Criteria of the last round's groups, as far as the method reports them.
        cut: The round of the last partition that has merges to show, and its criteria.
        several, alone: Number of groups of two or more, and of one, in the last round, by seed.
        rand: Adjusted Rand index against the clients' domains by round, None without domains.
        gains: By how much a client's own headline is better than under local-only training.
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
    rand: stats.Curve | None
    gains: Mapping[int, float]
    called: Callable[[int], str] = str

    @property
    def last(self) -> Seen:
        """The last round."""
        return self.seen[-1]


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
    rand: dict[int, dict[int, float]] = {}
    ends: dict[int, Groups] = {}
    seen: list[Seen] = []
    tracks, judged, cut, overlapping = Tracks(), JudgedGroups(groups=()), None, False
    for seed, at, info in info_of(record, method, ClientGroups):
        if seed not in seeds:
            continue
        groups, planted = members(info), record.partitions[seed].domains
        ends[seed] = groups
        overlapping |= len({c for g in groups for c in g}) < sum(map(len, groups))
        if len(set(planted)) > 1 and groups and not overlapping:
            rand.setdefault(seed, {})[at] = adjusted_rand(groups, planted)
        if seed == seeds[0]:
            seen.append(Seen(at, groups, tracks.number(groups)))
            judged = info if isinstance(info, JudgedGroups) else judged
            cut = (at, judged) if judged.history or judged.beyond else cut
    if not seen:
        return None
    sign = 1.0 if record.headline.higher else -1.0
    pairs = {} if base is None else tables.client_pairs(record, method, base).get(seeds[0], {})
    several, single = (
        stats.Spread(tuple(float(sum((len(g) > 1) == many for g in groups)) for groups in ends.values()))
        for many in (True, False)
    )
    return GroupHistory(
        method=method,
        seed=seeds[0],
        clients=len(record.partitions[seeds[0]].sizes),
        seen=tuple(seen),
        judged=judged,
        cut=cut,
        several=several,
        alone=single,
        rand=None if overlapping else stats.curve_by_round(list(rand.values())),
        gains={c: sign * (mine - theirs) for c, (mine, theirs) in pairs.items()},
        called=record.partitions[seeds[0]].client,
    )


# ---------------------------------------------------------------- the section
def section(record: Record, methods: Sequence[str], marks: Mapping[str, str]) -> Section | None:
    """The section on methods that form groups; None if no partition is known.

    Raises:
        RunError: If the info contradicts itself.
    """
    base, options = alone(record), method_tables(record)
    histories = [g for m in methods if (g := grouping(record, m, base)) is not None]
    if not histories:
        return None
    drawn: list[Chart | None] = [rand_chart(histories, marks)]
    parts: list[Table | None] = [_summary(histories, marks)]
    for i, g in enumerate(histories):
        if i < MOST_SHOWN:
            drawn += [rounds_chart(g), similarity_chart(g)]
        own = {**options.get(g.method, {}), **({} if g.judged.alpha is None else {"alpha": g.judged.alpha})}
        parts += [members_table(record, g, own), merges_table(g), _pilot(g)]
    return Section("Groups", " ".join(map(formed, histories)), tuple(filter(None, drawn)), tuple(filter(None, parts)))


def formed(g: GroupHistory) -> str:
    """A sentence with the number of groups in the last round and of clients in none."""
    several = sum(n != ALONE for n in g.last.numbers)
    by_itself, out = len(g.last.numbers) - several, g.clients - len(g.last.places)
    parts = [f"{counted(several, 'group') if several else 'no group'} of two or more"]
    parts += [f"{counted(by_itself, 'client')} alone"] if by_itself else []
    parts += [f"{counted(out, 'client')} in none"] if out else []
    return f"{g.method}: in round {g.last.round} of seed {g.seed}, {', '.join(parts)}."


def rand_chart(histories: Sequence[GroupHistory], marks: Mapping[str, str]) -> Chart | None:
    """Agreement of groups with the clients' domains, by round; None if no method's clients have domains."""
    lines = {g.method: g.rand for g in histories if g.rand is not None}
    if not lines:
        return None
    title = "Groups against the clients’ domains"
    drawn = charts.curves(charts.of_curves(lines), marks, "round", "adjusted Rand index")
    caption = "1: the groups are the domains, which no method knew; 0: what chance gives."
    return Chart(title, caption, drawn, charts.ends(title, lines))


def rounds_chart(g: GroupHistory) -> Chart:
    """Groups: a square for each client and round; of many clients the sizes of the groups."""
    at = [g.seen[i] for i in charts.thin(len(g.seen), MOST_ROUNDS)]
    cells = [
        {"column": s.round, "row": g.called(c), "group": "alone" if numbers[0] == ALONE else str(numbers[0] + 1)}
        for s in at
        for c, numbers in sorted(s.places.items(), key=lambda place: _order(g, place[0]))
    ]
    in_words = [f"clients {', '.join(map(g.called, members))}" for members in g.last.groups if len(members) > 1]
    title = f"Who trained with whom under {g.method}"
    text = f"{title}; round {g.last.round}: {' | '.join(in_words) or 'everybody alone'}."[:1000]
    caption = f"Seed {g.seed}. A colour is a group, of several the first; grey is alone."
    drawn = charts.groups(cells, "round", "client") if g.clients <= MOST_CLIENTS else charts.group_sizes(cells)
    return Chart(title, caption, drawn, text, wide=len(at) > 12)


def _order(g: GroupHistory, client: int) -> tuple[bool, int, int]:
    """Groups by number, then who is alone or in none."""
    number = g.last.places.get(client, (ALONE,))[0]
    return number == ALONE, number, client


def similarity_chart(g: GroupHistory) -> Chart | None:
    """Cosines between what the server compared of two clients, sorted by group; None if it compared nothing."""
    if not g.judged.similarity or g.clients > MOST_CLIENTS:
        return None
    at = {c: i for i, c in enumerate(g.judged.compared)}
    order = sorted(at, key=lambda c: _order(g, c))[:MOST_COMPARED]
    rows = [at[c] for c in order]
    cosines = np.array(g.judged.similarity, dtype=np.float64)[np.ix_(rows, rows)]  # None becomes NaN
    cells = [
        {"column": g.called(order[j]), "row": g.called(order[i]), "value": float(v)}
        for (i, j), v in np.ndenumerate(cosines)
    ]
    k = np.array([g.last.places.get(c, (ALONE,))[0] for c in order])
    same, known = (k[:, None] == k) & (k[:, None] >= 0), ~np.isnan(cosines) & ~np.eye(len(k), dtype=bool)
    parts = {"inside groups": cosines[same & known], "across": cosines[~same & known]}
    said = "; ".join(f"{what} {v.mean():.2f}" for what, v in parts.items() if v.size) or "not known"
    title = f"How alike the clients of {g.method} are"
    caption = f"Cosine of two clients’ updates before round {g.last.round}, by group. Mean: {said}."
    return Chart(title, caption, charts.matrix(cells, "client", "client", "cosine"), f"{title}: mean cosine {said}.")


# ---------------------------------------------------------------- tables
def utility_alone(options: Mapping[str, Any], sizes: Sequence[int]) -> tuple[float, ...] | None:
    """1 - alpha_i / D_i of each client, from a method's table in config.toml; None if it has no alpha of (9)."""
    alpha = options.get("alpha")
    if alpha is None or not all(sizes):
        return None
    try:
        costs = alphas(tuple(alpha) if isinstance(alpha, list) else alpha, sizes)
    except (ConfigError, TypeError):
        return None
    return tuple(1.0 - float(a) / d for a, d in zip(costs, sizes, strict=True))


def members_table(record: Record, g: GroupHistory, options: Mapping[str, Any]) -> Table:
    """Should I join?  What its group promised each client in the last round of a seed, and what it got and gained."""
    m, where = record.headline, g.last.places
    own, utilities = record.clients.get((g.method, g.seed), {}), g.judged.utility or ()
    apart = utility_alone(options, record.partitions[g.seed].sizes) if utilities else None
    data: list[dict[str, Any]] = []
    rows = []
    for c in range(g.clients):
        groups = [n + 1 for n in where.get(c, ()) if n != ALONE]
        utility, got, gain = utilities[c] if utilities else None, own.get(c), g.gains.get(c)
        row = {
            "client": g.called(c), "groups": ", ".join(map(str, groups)) or ("alone" if c in where else None),
            "utility": utility, "utility_alone": None if apart is None or utility is None else apart[c],
            m.name: got, "gain": gain,
        }  # fmt: skip
        data.append(row)
        promised = [row["utility"], row["utility_alone"]] * bool(utilities)
        cells = ["–" if v is None else f"{v:.2f}".replace("-", "−") for v in promised]
        cells += ["–" if got is None else m.show(got)] + ["–" if gain is None else m.signed(gain)] * bool(g.gains)
        rows.append(TableRow(str(row["client"]), (str(row["groups"] or "–"), *cells)))
    head = ["client", "group", *["utility | in its group", "utility | alone"] * bool(utilities)]
    head += [f"{m.label} | {m.unit}", *[f"gain over alone | {m.points}"] * bool(g.gains)]
    note = "Utility: agreement with the group less what a small group costs; above that alone it says join."
    caption = f"{g.method}, seed {g.seed}, round {g.last.round}"
    return table(caption, head, rows, note * bool(utilities), [1], columns(data))


def merges_table(g: GroupHistory) -> Table | None:
    """The merges of the last partition in their order, those that were made first; None if there are none."""
    if g.cut is None:
        return None
    round, judged = g.cut
    rows = [
        TableRow(
            str(k),
            (" and ".join(map(g.called, m.merge)), "–" if m.benefit is None else f"{m.benefit:+.3g}".replace("-", "−"),
             "made" if k <= len(judged.history) else "not made"),
        )
        for k, m in enumerate((*judged.history, *judged.beyond), start=1)
    ]  # fmt: skip
    head = ["Merge", "The groups of", "Benefit", ""]
    return table(f"How the groups of {g.method} formed, seed {g.seed}, round {round}", head, rows, "", [1, 3])


def _summary(histories: Sequence[GroupHistory], marks: Mapping[str, str]) -> Table:
    known = any(g.rand for g in histories)
    rows = [
        TableRow(
            g.method,
            (
                *(tables.quantity(n.mean, n.std) for n in (g.several, g.alone)),
                *[f"{g.rand.mean[-1]:.2f}" if g.rand else "–"] * known,
            ),
            charts.swatch(marks[g.method]),
        )
        for g in histories
    ]
    head = ["Method", "Groups | of two or more", "Alone | clients", *["Adjusted Rand | index"] * known]
    return table("Groups in the last round; mean ± standard deviation over seeds", head, rows)


def _pilot(g: GroupHistory) -> Table | None:
    """Measurements of HCCT's pilot for each alpha; None without one."""
    if not g.judged.tried:
        return None
    rows = [
        TableRow(
            f"{t.alpha:.4g}",
            (str(t.groups), "–" if t.accuracy is None else f"{100 * t.accuracy:.1f}",
             "–" if t.loss is None else f"{t.loss:.4g}", "chosen" if t.alpha == g.judged.alpha else ""),
        )
        for t in g.judged.tried
    ]  # fmt: skip
    caption = f"{g.method}: the alphas tried in a pilot under seed {g.seed}, on held-out examples"
    head = ["Alpha | examples", "Groups | at the pilot's end", "Accuracy | %", "Loss", ""]
    return table(caption, head, rows, "A larger alpha makes larger groups; at 0 every client trains alone.")


KIND = SectionKind("groups of clients that train together", (ClientGroups,), section)
