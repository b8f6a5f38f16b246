"""Groups of clients that train together, formed by HCCT and other methods, and the value of joining one.

Y. Sun, M. Kountouris, J. Zhang, "How to Collaborate", IEEE TMC 2024 (HCCT), Algorithm 2 and Figs. 3 to 5.  Equation
numbers in brackets are the paper's.

Notation   u_i    client i's utility in its group, -alpha_i / D_C + cos(S_C, g_i)                 (9)
           B      benefit of a merge, the sum of all utilities after it less that before it      (15)
           D_i    client i's training examples, alpha_i what a small group costs it

A group of one agrees with itself, so that its utility is 1 - alpha_i / D_i.  Utility predicts a benefit from gradients;
the gain measures it afterwards: own accuracy less that of local-only training in the same run.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from unskew.errors import ConfigError
from unskew.info import ClientGroups
from unskew.record.reader import Record, method_tables
from unskew.report import charts, stats
from unskew.report.section import Chart, Section, SectionKind, Table, TableRow, columns, table
from unskew.report.sections.group_history import ALONE, Floats, GroupHistory, grouping, places
from unskew.report.worth import alone
from unskew.server.cluster import alphas
from unskew.words import counted

MOST_SHOWN = 4  # methods whose groups are drawn
MOST_CLIENTS = 100  # of a figure with a mark for each client
MOST_ROUNDS = 30  # columns of who trained with whom
MOST_COMPARED = 50  # clients of the matrix, whose squares are many


def section(record: Record, methods: Sequence[str], marks: Mapping[str, str]) -> Section | None:
    """The section on methods that form groups; None if no partition is known.

    Raises:
        RunError: If the info contradicts itself.
    """
    base = alone(record)
    histories = [g for m in methods if (g := grouping(record, m, base)) is not None]
    if not histories:
        return None
    options = method_tables(record)
    drawn: list[Chart | None] = [rand_chart(histories, marks)]
    members = []
    for i, g in enumerate(histories):
        own = {**options.get(g.method, {}), **({} if g.judged.alpha is None else {"alpha": g.judged.alpha})}
        members.append(members_table(record, g, own))
        drawn += [rounds_chart(g)] if i < MOST_SHOWN else []
        if i < MOST_SHOWN and g.clients <= MOST_CLIENTS:
            drawn += [tree_chart(g), similarity_chart(g), gain_chart(g, own, record.partitions[g.seed].sizes)]
    tables = (_summary(histories, marks), *members, *(_pilot(g) for g in histories if g.judged.tried))
    return Section("Groups", " ".join(map(formed, histories)), tuple(filter(None, drawn)), tables)


def formed(g: GroupHistory) -> str:
    """A sentence with the number of groups in the last round and of clients in none."""
    several = sum(n != ALONE for n in g.last.numbers)
    by_itself = len(g.last.numbers) - several
    out = g.clients - len({c for members in g.last.groups for c in members})
    parts = [f"{counted(several, 'group') if several else 'no group'} of two or more"]
    parts += [f"{counted(by_itself, 'client')} alone"] if by_itself else []
    parts += [f"{counted(out, 'client')} in none"] if out else []
    return f"{g.method}: in round {g.last.round} of seed {g.seed}, {', '.join(parts)}."


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


# ---------------------------------------------------------------- figures
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
        for c, numbers in sorted(places(s.groups, s.numbers).items(), key=lambda place: _order(g, place[0]))
    ]
    in_words = [f"clients {', '.join(map(g.called, members))}" for members in g.last.groups if len(members) > 1]
    title = f"Who trained with whom under {g.method}"
    alt_text = f"{title}; round {g.last.round}: {' | '.join(in_words) or 'everybody alone'}."[:1000]
    caption = f"Seed {g.seed}. A colour is a group; grey is alone." + " Of several groups the first." * g.overlapping
    drawn = charts.groups(cells, "round", "client") if g.clients <= MOST_CLIENTS else charts.group_sizes(cells)
    return Chart(title, caption, drawn, alt_text, wide=len(at) > 12)


def _order(g: GroupHistory, client: int) -> tuple[bool, int, int]:
    """Groups by number, then who is alone, then who is in none."""
    number = g.number_of.get(client)
    return number is None or number == ALONE, number if number is not None and number != ALONE else 0, client


def segments(g: GroupHistory) -> list[dict[str, Any]]:
    """The tree of the last partition's merges as lines from x, y to x2, y2; `made` tells those that were made."""
    assert g.cut is not None
    merges, made = (*g.cut[1].history, *g.cut[1].beyond), len(g.cut[1].history)
    trees: dict[int, list[int]] = {c: [c] for c in sorted({c for m in merges for c in m.merge})}
    joined: list[tuple[int, int]] = []
    for m in merges:
        a, b = sorted(next(root for root, leaves in trees.items() if c in leaves) for c in m.merge)
        joined.append((a, b))
        trees[a] = trees[a] + trees.pop(b)
    at = {c: (0.0, float(y)) for y, c in enumerate(c for leaves in trees.values() for c in leaves)}
    lines: list[dict[str, Any]] = []
    for k, ((a, b), m) in enumerate(zip(joined, merges, strict=True), start=1):
        (xa, ya), (xb, yb) = at[a], at[b]
        more = {"made": k <= made, "benefit": m.benefit, "merge": k, "of": f"{g.called(a)} with {g.called(b)}"}
        lines += [
            {"x": x, "y": y, "x2": x2, "y2": y2, **more}
            for x, y, x2, y2 in ((xa, ya, k, ya), (xb, yb, k, yb), (k, ya, k, yb))
        ]
        at[a] = float(k), (ya + yb) / 2
    leaves = [{"x": 0, "y": y, "name": g.called(c)} for y, c in enumerate(c for own in trees.values() for c in own)]
    return [*lines, *leaves]


def tree_chart(g: GroupHistory) -> Chart | None:
    """The merges of the last partition from left to right, and the cut; None if there are none."""
    if g.cut is None:
        return None
    rows, (round, judged) = segments(g), g.cut
    made, leaves = len(judged.history), [row for row in rows if "name" in row]
    up = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[-0.7, len(leaves) - 0.3], reverse=True))
    across = alt.X("x:Q", title="merge", axis=alt.Axis(grid=False, tickMinStep=1, format="d"),
                   scale=alt.Scale(domain=[0, len(judged.history) + len(judged.beyond) + 0.6], nice=False))  # fmt: skip
    lines = alt.Chart(charts.rows([row for row in rows if "merge" in row])).mark_rule(strokeWidth=1.8).encode(
        x=across, y=up, x2="x2:Q", y2="y2:Q",
        color=alt.condition("datum.made", alt.value(charts.COLOURS[0]), alt.value(charts.BOUND)),
        strokeDash=alt.condition("datum.made", alt.value([1, 0]), alt.value([4, 3])),
        tooltip=["of:N", alt.Tooltip("benefit:Q", format="+.3~g")],
    )  # fmt: skip
    names = alt.Chart(charts.rows(leaves)).mark_text(align="right", dx=-6, fontSize=11, clip=False)
    layers = (charts.rule(made + 0.5), lines, names.encode(x="x:Q", y=up, text="name:N"))
    left = 12 + 7 * min(16, max(len(str(leaf["name"])) for leaf in leaves))
    drawn = charts.themed(alt.layer(*layers).properties(height=max(90, 16 * len(leaves))), left=left)

    def benefit(merges: Sequence[Any], at: int) -> str:
        known = bool(merges) and merges[at].benefit is not None
        return f"{merges[at].benefit:+.3g}".replace("-", "−") if known else "not known"

    last, following = benefit(judged.history, -1), benefit(judged.beyond, 0)
    said = f"{counted(made, 'merge')} made, the last with benefit {last}; the next one’s would be {following}"
    caption = f"Seed {g.seed}, round {round}. Right of the line: merges that were not made. Benefits: {said}."
    return Chart(f"How the groups of {g.method} formed", caption, drawn, f"Merges of {g.method}: {said}.")


def similarity_chart(g: GroupHistory) -> Chart | None:
    """Cosines between what the server compared of two clients, sorted by group; None if it compared nothing."""
    if not g.judged.similarity:
        return None
    at = {c: i for i, c in enumerate(g.judged.compared)}
    order = sorted(at, key=lambda c: _order(g, c))[:MOST_COMPARED]
    rows = [at[c] for c in order]
    cosines = np.array(g.judged.similarity, dtype=np.float64)[np.ix_(rows, rows)]  # None becomes NaN
    cells = [
        {"column": g.called(order[j]), "row": g.called(order[i]), "value": float(v)}
        for (i, j), v in np.ndenumerate(cosines)
    ]
    means = _in_and_out(cosines, [g.number_of.get(c, ALONE) for c in order])
    said = "; ".join(
        f"{what} {v:.2f}" for what, v in zip(("inside groups", "across"), means, strict=True) if v is not None
    )
    title = f"How alike the clients of {g.method} are"
    caption = f"Cosine of two clients’ updates before round {g.last.round}, by group. Mean: {said or 'not known'}."
    drawn = charts.matrix(cells, "client", "client", "cosine")
    return Chart(title, caption, drawn, f"{title}: mean cosine {said}.")


def _in_and_out(cosines: Floats, numbers: Sequence[int]) -> tuple[float | None, float | None]:
    """Mean cosine of two clients in the same group, and of two that share none."""
    k = np.array(numbers)
    same = (k[:, None] == k) & (k[:, None] >= 0)
    known = ~np.isnan(cosines) & ~np.eye(len(k), dtype=bool)
    inside, across = cosines[same & known], cosines[~same & known]
    return (float(inside.mean()) if inside.size else None, float(across.mean()) if across.size else None)


def joined(g: GroupHistory, options: Mapping[str, Any], sizes: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each client and number: its utility, that alone, and its gain over training alone."""
    unit = "points" if g.measure.percent else g.measure.label
    alone_is = utility_alone(options, sizes)
    rows: list[dict[str, Any]] = []
    for c in range(g.clients):
        number = g.number_of.get(c)
        group = "none" if number is None else "alone" if number == ALONE else str(number + 1)
        utility = g.judged.utility[c] if c < len(g.judged.utility) else None
        client = {"client": g.called(c), "group": group}
        if utility is not None:
            rows.append({**client, "panel": "utility, and alone as a line", "value": utility,
                         "alone": None if alone_is is None else alone_is[c]})  # fmt: skip
        if (gain := g.gains.get(g.seed, {}).get(c)) is not None:
            rows.append({**client, "panel": f"gain, {unit}", "value": g.measure.scale * gain, "alone": None})
    return rows


def gain_chart(g: GroupHistory, options: Mapping[str, Any], sizes: Sequence[int]) -> Chart | None:
    """Should I join?  For each client, the utility its group promised and the gain it brought."""
    rows = joined(g, options, sizes)
    if not rows:
        return None
    groups = sorted({str(r["group"]) for r in rows}, key=lambda k: (not k.isdigit(), len(k), k))
    of = {k: charts.COLOURS[(int(k) - 1) % len(charts.COLOURS)] if k.isdigit() else charts.BOUND for k in groups}
    order = [g.called(c) for c in range(g.clients)]
    base = alt.Chart(charts.rows(rows)).encode(
        y=alt.Y("client:N", sort=order, title=None, axis=alt.Axis(labelOverlap=True, grid=False)),
        tooltip=["client:N", "group:N", alt.Tooltip("value:Q", format="+.3~g"), alt.Tooltip("alone:Q", format="+.3~g")],
    )
    bars = base.mark_bar().encode(x=alt.X("value:Q", title=None), color=charts.by_name(of, "group", legend=len(of) > 1))
    ticks = base.mark_tick(thickness=2, color=charts.INK).encode(x=alt.X("alone:Q", title=None))
    panels = list(dict.fromkeys(str(r["panel"]) for r in rows))
    height = max(60, min(16, 900 // g.clients) * g.clients)
    drawn = charts.faceted(alt.layer(bars, ticks), panels, 2, height=height, free="x")
    ranges = [
        f"{panel.partition(',')[0]} from {min(held):.3g} to {max(held):.3g}"
        for panel in panels
        if (held := [r["value"] for r in rows if r["panel"] == panel])
    ]
    caption = (
        f"Seed {g.seed}, round {g.last.round}. A bar right of its line says join; the gain is over training alone."
    )
    title = f"Should I join? The clients of {g.method}"
    return Chart(title, caption, drawn, f"{title}: {'; '.join(ranges)}.", wide=True)


# ---------------------------------------------------------------- tables
def members_table(record: Record, g: GroupHistory, options: Mapping[str, Any]) -> Table:
    """Groups in the last round of a seed: what the group promised each client, and what it got."""
    where, m = places(g.last.groups, g.last.numbers), record.headline
    own, utilities = record.clients.get((g.method, g.seed), {}), g.judged.utility or None
    apart = None if utilities is None else utility_alone(options, record.partitions[g.seed].sizes)
    data: list[dict[str, Any]] = []
    for c in range(g.clients):
        groups = [n + 1 for n in where.get(c, ()) if n != ALONE]
        utility = None if utilities is None else utilities[c]
        data.append(
            {"client": g.called(c), "groups": ", ".join(map(str, groups)) or ("alone" if c in where else None),
             "utility": utility, "utility_alone": None if apart is None or utility is None else apart[c],
             m.name: own.get(c)}
        )  # fmt: skip
    rows = []
    for row in data:
        promised = (row["utility"], row["utility_alone"]) if utilities else ()
        cells = ("–" if v is None else f"{v:.2f}".replace("-", "−") for v in promised)
        value = row[m.name]
        got = "–" if value is None else m.show(value)
        rows.append(TableRow(row["client"], (row["groups"] or "–", *cells, got)))
    head = [
        "client",
        "group",
        *["utility | in its group", "utility | alone"] * bool(utilities),
        f"{m.label} | {m.unit}",
    ]
    note = "Utility: agreement with the group less what a small group costs." * bool(utilities)
    return table(f"{g.method}, seed {g.seed}, round {g.last.round}", head, rows, note, [1], columns(data))


def _summary(histories: Sequence[GroupHistory], marks: Mapping[str, str]) -> Table:
    known = any(g.rand for g in histories)
    rows = [
        TableRow(
            g.method,
            (*map(_mean, (g.several, g.alone)), *[f"{g.rand.mean[-1]:.2f}" if g.rand else "–"] * known),
            charts.swatch(marks[g.method]),
        )
        for g in histories
    ]
    head = ["Method", "Groups | of two or more", "Alone | clients", *["Adjusted Rand | index"] * known]
    return table("Groups in the last round; mean ± standard deviation over seeds", head, rows)


def _mean(spread: stats.Spread) -> str:
    return f"{spread.mean:.1f}" + ("" if spread.std is None else f" ± {spread.std:.1f}")


def _pilot(g: GroupHistory) -> Table:
    """Table of what HCCT's pilot measured for each alpha."""
    by_class = all(t.accuracy is not None for t in g.judged.tried)
    measured = "Accuracy | % of held-out examples" if by_class else "Loss | mean on held-out examples"

    def value(accuracy: float | None, loss: float | None) -> str:
        if by_class and accuracy is not None:
            return f"{100 * accuracy:.1f}"
        return "–" if loss is None else f"{loss:.4g}"

    rows = [
        TableRow(
            f"{t.alpha:.4g}", (str(t.groups), value(t.accuracy, t.loss), "chosen" if t.alpha == g.judged.alpha else "")
        )
        for t in g.judged.tried
    ]
    caption = f"{g.method}: the alphas tried in a pilot under seed {g.seed}"
    head = ["Alpha | examples", "Groups | at the pilot's end", measured, ""]
    return table(caption, head, rows, "A larger alpha makes larger groups; at 0 every client trains alone.")


KIND = SectionKind("groups of clients that train together", (ClientGroups,), section)
