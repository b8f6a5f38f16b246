"""Groups of clients that train together, formed by HCCT and other methods, and the gain of joining one.

Y. Sun, M. Kountouris, J. Zhang, "How to Collaborate", IEEE TMC 2024 (HCCT), Algorithm 2 and Figs. 3 to 5.  Equation
numbers in brackets are the paper's.

Notation   u_i    client i's utility in its group, -alpha_i / D_C + cos(S_C, g_i)                 (9)
           B      benefit of a merge, the sum of all utilities after it less that before it      (15)
           D_i    client i's training examples, alpha_i what a small group costs it

The utility of a group of one is 1 - alpha_i / D_i.  Utility predicts a benefit from gradients; the gain measures it
afterwards: own accuracy less that of training alone in the same run.

Each group gets a number, which it keeps from round to round.  A round's groups are assigned to earlier numbers by the
largest sum of overlaps (common members over members in either).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from unskew.info import ClientGroups, JudgedGroups
from unskew.record.reader import Record, method_tables
from unskew.report import charts, stats, tables
from unskew.report.section import Chart, Section, SectionKind, Table, table
from unskew.report.worth import alone
from unskew.server.cluster import alphas

MOST_SHOWN = 4  # methods whose groups are drawn
MOST_CLIENTS = 100  # of a figure with a mark for each client
MOST_ROUNDS = 30  # columns of who trained with whom
MOST_COMPARED = 50  # clients of the matrix, whose squares are many

ALONE = -1
"""The number of a group of one."""

Groups = tuple[tuple[int, ...], ...]


def members(info: ClientGroups) -> Groups:
    """The groups of a round with members, each ascending."""
    return tuple(tuple(sorted(group)) for group in info.groups if group)


def adjusted_rand(groups: Groups, planted: Sequence[int]) -> float:
    """Adjusted Rand index of disjoint groups and domains, over clients in a group: 1 is equal, 0 is chance."""
    from sklearn.metrics import adjusted_rand_score  # an import of seconds that few reports need

    group_of = {c: k for k, members in enumerate(groups) for c in members}
    return float(adjusted_rand_score([planted[c] for c in group_of], list(group_of.values())))


def numbers(rounds: Sequence[Groups]) -> list[tuple[int, ...]]:
    """A number for every group of each round, kept with its members; `ALONE` for a single client."""
    known: list[set[int]] = []  # the last members of each number
    before: set[int] = set()  # numbers of the round before
    every = []
    for groups in rounds:
        given = [ALONE] * len(groups)
        several = [i for i, g in enumerate(groups) if len(g) > 1]
        common = np.array([[len(m & {*groups[i]}) / len(m | {*groups[i]}) for m in known] for i in several])
        if common.size:
            # Of two equal overlaps the one with a group that was there a round ago.
            common[:, sorted(before)] += 1e-9 * (common[:, sorted(before)] > 0)
            for row, number in zip(*linear_sum_assignment(common, maximize=True), strict=True):
                given[several[row]] = int(number) if common[row, number] > 0 else ALONE
        for i in several:
            if given[i] == ALONE:
                given[i] = len(known)
                known.append(set())
            known[given[i]] = {*groups[i]}
        before = {given[i] for i in several}
        every.append(tuple(given))
    return every


# ---------------------------------------------------------------- one method over a run
@dataclass(frozen=True, eq=False)
class GroupHistory:
    """A method that forms groups, over a run.

    Attributes:
        seed: Seed that is drawn.
        clients: Names of its clients, or their numbers.
        places: {round: {client: numbers of its groups}}, without clients in no group.
        judged: Criteria of that seed's groups by round, if the method reports them.
        last: The last round's groups, by seed.
        rand: Adjusted Rand index with the clients' domains by round, None without domains.
        gains: A client's own headline minus that of training alone.
    """

    method: str
    seed: int
    clients: tuple[str, ...]
    places: Mapping[int, Mapping[int, tuple[int, ...]]]
    judged: Mapping[int, JudgedGroups]
    last: Mapping[int, Groups]
    rand: stats.Curve | None
    gains: Mapping[int, float]

    def number(self, client: int) -> int:
        """The first group of a client in the last round; ALONE without one."""
        return self.places[max(self.places)].get(client, (ALONE,))[0]

    @property
    def order(self) -> list[int]:
        """Clients by the number of their group, then those alone or in none."""
        return sorted(range(len(self.clients)), key=lambda c: (self.number(c) == ALONE, self.number(c), c))

    @property
    def end(self) -> JudgedGroups:
        """Criteria of the last round's groups."""
        return self.judged[max(self.judged)] if self.judged else JudgedGroups(groups=())


def grouping(record: Record, method: str, base: str | None) -> GroupHistory | None:
    """A method's groups; None without a round of its first seed, or if that seed's partition is unknown.

    Args:
        record: The run.
        method: Its label.
        base: Label of training alone.

    Raises:
        RunError: If the info contradicts itself.
    """
    every = {s: r for s, r in tables.reported(record, method, ClientGroups).items() if s in record.partitions}
    if not every:
        return None
    groups = {seed: {t: members(info) for t, info in rounds.items()} for seed, rounds in every.items()}
    overlap = any(len({*sum(of, ())}) < len(sum(of, ())) for rounds in groups.values() for of in rounds.values())
    rand = {
        seed: {t: adjusted_rand(of, record.partitions[seed].domains) for t, of in rounds.items() if of}
        for seed, rounds in groups.items()
        if len(set(record.partitions[seed].domains)) > 1 and not overlap
    }
    seed, rounds = next(iter(groups.items()))
    places: dict[int, dict[int, tuple[int, ...]]] = {t: {} for t in rounds}
    for (t, of), given in zip(rounds.items(), numbers(list(rounds.values())), strict=True):
        for clients, number in zip(of, given, strict=True):
            places[t] |= {c: (*places[t].get(c, ()), number) for c in clients}
    sign = 1.0 if record.headline.higher else -1.0
    pairs = {} if base is None else tables.client_pairs(record, method, base).get(seed, {})
    return GroupHistory(
        method=method,
        seed=seed,
        clients=tuple(map(record.partitions[seed].client, range(len(record.partitions[seed].sizes)))),
        places=places,
        judged={t: info for t, info in every[seed].items() if isinstance(info, JudgedGroups)},
        last={s: of[max(of)] for s, of in groups.items()},
        rand=stats.curve_by_round(list(rand.values())),
        gains={c: sign * (mine - theirs) for c, (mine, theirs) in pairs.items()},
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
    drawn: list[Chart | None] = []
    if lines := {g.method: g.rand for g in histories if g.rand is not None}:
        title = "Groups against the clients’ domains"
        caption = "1: the groups are the domains, which no method knew; 0: what chance gives."
        drawn.append(charts.lines(title, caption, lines, marks, "round", "adjusted Rand index"))
    parts = [_summary(histories)]
    for i, g in enumerate(histories):
        drawn += [rounds_chart(g), similarity_chart(g)] if i < MOST_SHOWN else []
        alpha = options.get(g.method, {}).get("alpha") if g.end.alpha is None else g.end.alpha
        parts += [members_table(record, g, alpha), merges_table(g), _pilot(g)]
    return Section.of("Groups", "", drawn, parts)


def rounds_chart(g: GroupHistory) -> Chart:
    """Groups: a square for each client and round; with many clients the sizes of groups."""
    rounds = list(g.places)
    at = [rounds[i] for i in charts.thin(len(rounds), MOST_ROUNDS)]
    cells = [
        {"column": t, "row": g.clients[c], "group": "alone" if n == ALONE else str(n + 1)}
        for t in at
        for c in g.order
        for n in g.places[t].get(c, ())[:1]
    ]
    in_words = [f"clients {', '.join(g.clients[c] for c in of)}" for of in g.last[g.seed] if len(of) > 1]
    title = f"Who trained with whom under {g.method}"
    text = f"{title}; round {max(rounds)}: {' | '.join(in_words) or 'everybody alone'}."[:1000]
    caption = f"Seed {g.seed}. A colour is a group, of several the first; grey is alone."
    many = len(g.clients) > MOST_CLIENTS
    drawn = charts.group_sizes(cells) if many else charts.groups(cells, "round", "client")
    return Chart(title, caption, drawn, text, wide=len(at) > 12)


def similarity_chart(g: GroupHistory) -> Chart | None:
    """Cosines between what the server compared of two clients, sorted by group; None without."""
    if not g.end.similarity or len(g.clients) > MOST_CLIENTS:
        return None
    at = {c: i for i, c in enumerate(g.end.compared)}
    order = [c for c in g.order if c in at][:MOST_COMPARED]
    rows, k = [at[c] for c in order], np.array([g.number(c) for c in order])
    cosines = np.array(g.end.similarity, dtype=np.float64)[np.ix_(rows, rows)]  # None becomes NaN
    cells = [
        {"column": g.clients[order[j]], "row": g.clients[order[i]], "value": float(v)}
        for (i, j), v in np.ndenumerate(cosines)
    ]
    same, known = (k[:, None] == k) & (k[:, None] >= 0), ~np.isnan(cosines) & ~np.eye(len(k), dtype=bool)
    parts = {"inside groups": cosines[same & known], "across": cosines[~same & known]}
    means = "; ".join(f"{what} {v.mean():.2f}" for what, v in parts.items() if v.size) or "not known"
    caption = f"Cosine of two clients’ updates before round {max(g.places)}, by group. Mean: {means}."
    return Chart(
        f"How alike the clients of {g.method} are", caption, charts.matrix(cells, "client", "client", "cosine")
    )


# ---------------------------------------------------------------- tables
def utility_alone(alpha: Any, sizes: Sequence[int]) -> list[float]:
    """1 - alpha_i / D_i of each client, with alpha as in config.toml."""
    costs = alphas(tuple(alpha) if isinstance(alpha, list) else alpha, sizes)
    return [1.0 - float(a) / d for a, d in zip(costs, sizes, strict=True)]


def members_table(record: Record, g: GroupHistory, alpha: Any) -> Table:
    """The utility each client's group promised in the last round of a seed, and the client's result and gain."""
    m, where, utilities = record.headline, g.places[max(g.places)], g.end.utility or ()
    own, sizes = record.clients(g.method, g.seed), record.partitions[g.seed].sizes
    apart = utility_alone(alpha, sizes) if utilities and alpha is not None and all(sizes) else None
    rows = []
    for c, name in enumerate(g.clients):
        groups = ", ".join(str(n + 1) for n in where.get(c, ()) if n != ALONE) or ("alone" if c in where else "–")
        utility, got, gain = utilities[c] if utilities else None, own.get(c), g.gains.get(c)
        by_itself = None if apart is None or utility is None else apart[c]
        cells = ["–" if v is None else f"{v:.2f}".replace("-", "−") for v in (utility, by_itself) if utilities]
        cells += ["–" if got is None else m.show(got)] + ["–" if gain is None else m.signed(gain)] * bool(g.gains)
        rows.append((name, groups, *cells))
    head = ["client", "group", *["utility | in its group", "utility | alone"] * bool(utilities)]
    head += [f"{m.label} | {m.unit}", *[f"gain over alone | {m.points}"] * bool(g.gains)]
    note = "Utility: agreement with the group less what a small group costs; above that alone it says join."
    return table(f"{g.method}, seed {g.seed}, round {max(g.places)}", head, rows, note * bool(utilities), [1])


def merges_table(g: GroupHistory) -> Table:
    """The merges of the last partition that has some, in order."""
    cuts = [(t, judged) for t, judged in g.judged.items() if judged.history or judged.beyond]
    round, judged = cuts[-1] if cuts else (0, g.end)
    rows = []
    merges = [(m, "made") for m in judged.history] + [(m, "not made") for m in judged.beyond]
    for k, (m, state) in enumerate(merges, start=1):
        benefit = "–" if m.benefit is None else f"{m.benefit:+.3g}".replace("-", "−")
        rows.append((str(k), " and ".join(g.clients[c] for c in m.merge), benefit, state))
    head = ["merge", "the groups of", "benefit", "result"]
    return table(f"How the groups of {g.method} formed, seed {g.seed}, round {round}", head, rows, "", [1, 3])


def _summary(histories: Sequence[GroupHistory]) -> Table:
    rows = []
    for g in histories:
        sizes = [[len(of) for of in groups] for groups in g.last.values()]
        counts = [[float(sum((n > 1) == several for n in of)) for of in sizes] for several in (True, False)]
        cells = [tables.quantity(n.mean, n.std) for n in (stats.Spread(tuple(of)) for of in counts)]
        out = len(g.clients) - len(g.places[max(g.places)])
        rand = f"{g.rand.mean[-1]:.2f}" if g.rand else "–"
        rows.append((g.method, *cells, str(out), str(len(g.end.restless)), rand))
    head = ["method", "groups | of two or more", "alone | clients", "in none | clients, first seed"]
    head += ["better off elsewhere | clients, first seed", "adjusted Rand | index"]
    return table("Groups in the last round; mean ± standard deviation over seeds", head, rows)


def _pilot(g: GroupHistory) -> Table:
    """Measurements of HCCT's pilot for each alpha."""
    rows = [
        (f"{t.alpha:.4g}", str(t.groups), "–" if t.accuracy is None else f"{100 * t.accuracy:.1f}",
         "–" if t.loss is None else f"{t.loss:.4g}", "chosen" if t.alpha == g.end.alpha else "")
        for t in g.end.tried
    ]  # fmt: skip
    caption = f"{g.method}: the alphas tried in a pilot under seed {g.seed}, on held-out examples"
    head = ["alpha | examples", "groups | at the pilot's end", "accuracy | %", "loss", "choice"]
    note = "A larger alpha makes larger groups; at 0 every client trains alone."
    return table(caption, head, rows, note)


KIND = SectionKind("groups of clients that train together", (ClientGroups,), section)
