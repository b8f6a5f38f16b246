"""Figures of groups: over the rounds, their tree of merges, how alike their clients are, what joining one was worth.

Notation   u_i    client i's utility in its group, -alpha_i / D_C + cos(S_C, g_i)                 (9)
           B      benefit of a merge, the sum of all utilities after it less that before it      (15)
           D_i    client i's training examples, alpha_i what a small group costs it

A group of one agrees with itself, so that its utility is 1 - alpha_i / D_i: that is the circle beside each bar.
Utility predicts a benefit from gradients; the gain measures it afterwards: own accuracy less that of local-only
training in the same run.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path as Shape
from matplotlib.ticker import FuncFormatter, MaxNLocator

from unskew.errors import ConfigError
from unskew.info import GroupMerge, JudgedGroups
from unskew.report import figures
from unskew.report.figures import BLUE, ORANGE, shade, shades
from unskew.report.section import Chart
from unskew.report.sections.group_history import ALONE, NONE, REST, Floats, GroupHistory, Groups, flows, places
from unskew.server.cluster import alphas
from unskew.tasks.measure import Measure
from unskew.words import counted

MOST_ROUNDS = 16  # columns of the membership figure
MOST_GROUPS = 12  # numbered ones in it
MOST_NAMED = 24  # clients that are named by domain, or whose gains are drawn at half the page's width


def colour_of(number: int) -> str:
    """A numbered group's colour; grey for everything else."""
    return figures.SERIES[number % figures.COLOURS] if number >= 0 else figures.BOUND


def rand_chart(histories: Sequence[GroupHistory], marks: Mapping[str, figures.LineStyle]) -> Chart | None:
    """Agreement of groups with the clients' domains, by round; None if no method's clients have domains."""
    lines = [figures.Line(g.method, marks[g.method], g.rand) for g in histories if g.rand is not None]
    if not lines:
        return None
    title = "Groups against the clients’ domains"
    ends = "; ".join(f"{x.name} from {x.curve.mean[0]:.2f} to {x.curve.mean[-1]:.2f}" for x in lines)
    svg = figures.lines_chart(
        "rand", lines, "round", "adjusted Rand index, no unit", 1.0, f"{title}, adjusted Rand index: {ends}.", log=False
    )
    band = "Band: lowest to highest seed." if max(x.curve.seeds for x in lines) > 1 else "One seed: no band."
    left_out = [g.method for g in histories if g.overlapping]
    caption = (
        "How well the groups agree with the domains that the clients’ data come from, which no method knew: 1 is "
        "the same groups, 0 what chance would give, as when everybody is alone or all are together. "
        f"{_planted(histories[0])}{band}"
        + (f" Not for {', '.join(left_out)}, whose groups overlap." if left_out else "")
    )
    return Chart(title, caption, svg, tuple((x.name, figures.swatch(x.look)) for x in lines))


def _planted(g: GroupHistory) -> str:
    """A sentence on which clients share a domain."""
    members: dict[int, list[str]] = {}
    for c, domain in enumerate(g.planted):
        members.setdefault(domain, []).append(g.called(c))
    if len(members) == len(g.planted):
        return "Every client has a domain of its own. "
    if len(g.planted) > MOST_NAMED:
        return f"The {len(g.planted)} clients are of {len(members)} domains. "
    return f"Clients with a domain in common: {'; '.join(', '.join(same) for same in members.values())}. "


def flow_chart(g: GroupHistory, name: str) -> Chart | None:
    """Groups over the rounds: a column of blocks for each round, bands of clients between them."""
    if len(g.seen) < 2:
        return None
    at = sorted({round(i) for i in np.linspace(0, len(g.seen) - 1, min(len(g.seen), MOST_ROUNDS))})
    columns = [g.seen[i] for i in at]
    weight: dict[int, float] = {}
    for column in columns:
        for members, number in zip(column.groups, column.numbers, strict=True):
            weight[number] = weight.get(number, 0.0) + len(members)
    apart = sorted((n for n in weight if n >= 0), key=lambda n: (-weight[n], n))[:MOST_GROUPS]
    order = [*sorted(apart), REST, ALONE, NONE]
    where = [places(c.groups, [n if n == ALONE or n in apart else REST for n in c.numbers]) for c in columns]
    # Between a column and itself no client moves, which gives its blocks.
    heights = [{a: v for (a, _), v in flows(w, w, g.clients).items()} for w in where]
    gap = 0.02 * g.clients
    tops = [_stacked(h, order, gap) for h in heights]
    reach = max(t[n] + h[n] for t, h in zip(tops, heights, strict=True) for n in h)
    with figures.style(name):
        figure, axes = figures.chart(300, figures.WIDE)
        half = 0.15
        bands: dict[int, list[Shape]] = {}
        for k in range(len(columns) - 1):
            moved = flows(where[k], where[k + 1], g.clients)
            out, into = dict(tops[k]), dict(tops[k + 1])
            for a in order:
                for b in order:
                    if (v := moved.get((a, b), 0.0)) > 0:
                        bands.setdefault(a, []).append(_band(k + half, k + 1 - half, out[a], into[b], v))
                        out[a] += v
                        into[b] += v
        for a, shapes in bands.items():
            path = Shape.make_compound_path(*shapes)
            axes.add_patch(PathPatch(path, facecolor=colour_of(a), alpha=0.3 if a >= 0 else 0.18, linewidth=0))
        for k, (top, height) in enumerate(zip(tops, heights, strict=True)):
            for n, v in height.items():
                hollow = n in (NONE, REST)
                axes.add_patch(
                    Rectangle(
                        (k - half, top[n]), 2 * half, v, facecolor="none" if hollow else colour_of(n),
                        edgecolor=colour_of(n), linewidth=0.9, linestyle=(0, (1.5, 1.2)) if n == NONE else "-",
                    )
                )  # fmt: skip
                if v > 0.045 * reach and n >= 0:
                    axes.text(k, top[n] + v / 2, str(n + 1), ha="center", va="center", fontsize=10, color=figures.PAGE)
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(1.01 * reach, -0.01 * reach)
        axes.set_xticks(range(len(columns)), [str(c.round) for c in columns])
        axes.set_yticks([])
        axes.grid(visible=False)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("round")
        description = "; ".join(f"round {c.round}: {_groups_in_words(c.groups)}" for c in (columns[0], columns[-1]))
        svg = figures.markup(figure, name, f"Groups of {g.method}, seed {g.seed}. {description}."[:1000])
    marked = {n for h in heights for n in h}
    caption = (
        f"{g.method}, seed {g.seed}, {g.clients:,} clients. Each column is a round, each block a group of two or more "
        "with its number, as high as it has members; bands are the clients on their way from a round’s group to the "
        "next round’s."
        + (" Solid grey: clients alone." if ALONE in marked else "")
        + (f" Hollow: the groups beyond the {MOST_GROUPS} largest, together." if REST in marked else "")
        + (" Dashed: clients in no group, not yet or no longer there or not heard of." if NONE in marked else "")
        + (" A client in several groups counts in equal parts." if g.overlapping else "")
        + (f" Colours return after {figures.COLOURS} groups; numbers do not." if max(marked) >= figures.COLOURS else "")
        + (f" Drawn are {len(columns)} of {len(g.seen):,} rounds." if len(columns) < len(g.seen) else "")
    )
    return Chart(f"Who was in which group of {g.method}", caption, svg, wide=True)


def _stacked(height: Mapping[int, float], order: Sequence[int], gap: float) -> dict[int, float]:
    top, tops = 0.0, {}
    for n in order:
        if n in height:
            tops[n] = top
            top += height[n] + gap
    return tops


def _band(x0: float, x1: float, y0: float, y1: float, v: float) -> Shape:
    """A ribbon of height v from (x0, y0) to (x1, y1)."""
    mid = (x0 + x1) / 2
    corners = [(x0, y0), (mid, y0), (mid, y1), (x1, y1), (x1, y1 + v), (mid, y1 + v), (mid, y0 + v), (x0, y0 + v),
               (x0, y0)]  # fmt: skip
    codes = [Shape.MOVETO, *[Shape.CURVE4] * 3, Shape.LINETO, *[Shape.CURVE4] * 3, Shape.CLOSEPOLY]
    return Shape(corners, codes)


def _groups_in_words(groups: Groups) -> str:
    several = ["clients " + ", ".join(map(str, members)) for members in groups if len(members) > 1]
    return " | ".join(several) if several else "everybody alone"


class _Forest:
    """Clients and the groups they have been merged into, each with its members in drawing order."""

    def __init__(self, clients: Iterable[int]) -> None:
        self.root = {c: c for c in clients}
        self.members = {c: [c] for c in self.root}

    def find(self, client: int) -> int:
        """The smallest member of a client's group; an unknown client is a group of its own."""
        if client not in self.root:
            self.root[client], self.members[client] = client, [client]
        return self.root[client]

    def join(self, a: int, b: int) -> bool:
        """Merge two clients' groups; False if they are one already."""
        a, b = sorted((self.find(a), self.find(b)))
        if a == b:
            return False
        self.members[a] += self.members.pop(b)
        for c in self.members[a]:
            self.root[c] = a
        return True


def tree_chart(g: GroupHistory, options: Mapping[str, Any], name: str) -> Chart | None:
    """The merges of the last partition from left to right, the cut, and below each merge its benefit."""
    if g.cut is None:
        return None
    at, judged = g.cut
    seen = next(s for s in g.seen if s.round == at)
    merges, num_made = (*judged.history, *judged.beyond), len(judged.history)
    leaves = sorted({c for m in merges for c in m.merge})
    forest = _Forest(leaves)
    for m in merges:
        forest.join(*m.merge)
    row = {c: i for i, c in enumerate(c for root in sorted(forest.members) for c in forest.members[root])}
    number = {c: ns[0] for c, ns in places(seen.groups, seen.numbers).items()}
    with figures.style(name):
        high = (11.0 if len(row) > 30 else 15.0) * len(row)
        figure = figures.sheet(high + 150, figures.WIDE)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(max(high, 60), 90))
        _branches(above, merges, num_made, row, number)
        figures.name_ticks(above.yaxis, range(len(row)), lambda k: g.called(list(row)[k]), 10 if len(row) <= 30 else 8)
        above.set_ylim(len(row) - 0.4, -0.6)
        above.set_ylabel("client")
        above.tick_params(axis="both", length=0, labelbottom=False)
        above.grid(visible=False)
        above.spines["left"].set_visible(False)
        above.spines["bottom"].set_visible(False)
        benefits = [m.benefit for m in merges]
        known = [(k, b) for k, b in enumerate(benefits, start=1) if b is not None]
        below.bar(
            [k for k, _ in known], [b for _, b in known], width=0.6,
            color=[figures.INK if k <= num_made else figures.BOUND for k, _ in known],
            alpha=0.8,
        )  # fmt: skip
        below.axhline(0, color=figures.INK, linewidth=0.8)
        # The first merges bring many times what the last ones do, and the cut is among the last.
        below.set_yscale("symlog", linthresh=0.1)
        below.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}".replace("-", "−")))
        below.set_yticks(_ticks([b for _, b in known], -1))
        below.minorticks_off()
        below.set_ylabel("benefit")
        below.set_xlabel("merge, in the order of the algorithm")
        below.set_xticks(range(1, len(merges) + 1, max(1, math.ceil(len(merges) / 25))))
        below.set_axisbelow(True)
        below.grid(axis="x", visible=False)
        for axes in (above, below):
            axes.axvline(num_made + 0.5, color=figures.INK, linewidth=1.1, linestyle=(0, (4, 2)))
        below.set_xlim(0, len(merges) + 0.6)
        svg = figures.markup(
            figure, name, f"Merges of {g.method}, seed {g.seed}, round {at}: {_merges_in_words(judged)}"[:1000]
        )
    fixed = options.get("groups") is not None
    last = benefits[num_made - 1] if num_made else None
    following = benefits[num_made] if num_made < len(benefits) else None
    cut = "The dashed line is the cut: merges to its left were made, those to its right, in grey, would have come next."
    why = (
        " It is where the requested number of groups was reached, whatever the benefit."
        if fixed
        else " Merges are made while their benefit is positive."
    )
    sides = [
        *([f"the benefit of the last merge was {_signed(last)}"] if last is not None else []),
        *([f"that of the next would have been {_signed(following)}"] if following is not None else []),
    ]
    lone = len({c for s in seen.groups for c in s} - set(row))
    caption = (
        f"{g.method}, seed {g.seed}, round {at}. Clients begin alone on the left; where two lines meet, two groups "
        f"become one. {cut}{why}" + (f" Here {' and '.join(sides)}." if sides else "")
        + " Below: each merge’s benefit, the sum of all clients’ utilities after it less before it (no unit; linear up "
        "to ±0.1, logarithmic beyond)."
        + (f" Not in the tree: {counted(lone, 'client')} not compared in that partition." if lone else "")
    )  # fmt: skip
    return Chart(f"How the groups of {g.method} formed", caption, svg, wide=True)


def _branches(
    axes: Axes, merges: Sequence[GroupMerge], num_made: int, row: Mapping[int, int], number: Mapping[int, int]
) -> None:
    """The tree: merges that were made in their groups' colours, the groups' numbers on the cut, the others in grey."""
    forest, place, edge = _Forest(row), {c: (0.0, float(y)) for c, y in row.items()}, num_made + 0.5
    solid: dict[int, list[tuple[float, float]]] = {}
    dashed: list[tuple[float, float]] = []
    gap = (math.nan, math.nan)

    def merge(k: int, m: GroupMerge, into: list[tuple[float, float]]) -> None:
        a, b = map(forest.find, m.merge)
        (xa, ya), (xb, yb) = place[a], place[b]
        into += [(xa, ya), (k, ya), (k, yb), (xb, yb), gap]
        forest.join(a, b)
        place[forest.find(a)] = (float(k), (ya + yb) / 2)

    for k, m in enumerate(merges[:num_made], start=1):
        merge(k, m, solid.setdefault(number.get(m.merge[0], ALONE), []))
    for root in forest.members:
        (x, y), n = place[root], number.get(root, ALONE)
        solid.setdefault(n, []).extend([(x, y), (edge, y), gap])
        place[root] = (edge, y)
        if n >= 0:
            axes.annotate(
                str(n + 1), (edge, y), ha="center", va="center", fontsize=10, color=colour_of(n),
                bbox={"facecolor": figures.PAGE, "edgecolor": "none", "pad": 1.2},
            )  # fmt: skip
    for k, m in enumerate(merges[num_made:], start=num_made + 1):
        merge(k, m, dashed)
    for n, points in solid.items():
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, color=colour_of(n), linewidth=1.8 if n >= 0 else 1.2, solid_capstyle="projecting")
    if dashed:
        xs, ys = zip(*dashed, strict=True)
        axes.plot(xs, ys, color=figures.BOUND, linewidth=1.2, linestyle=(0, (3, 1.5)))


def _ticks(values: Sequence[float], smallest: int) -> list[float]:
    """0 and powers of ten from 10^smallest on, as far as the values reach on each side; at most four a side."""
    low, high = min(values, default=0.0), max(values, default=0.0)

    def side(most: float) -> list[float]:
        powers = [10.0**e for e in range(smallest, 12) if 10.0**e <= most]
        return powers[:: max(1, math.ceil(len(powers) / 3))]

    return sorted([0.0, *side(high), *(-p for p in side(-low))])


def _merges_in_words(judged: JudgedGroups) -> str:
    def in_words(merges: Sequence[GroupMerge]) -> str:
        return ", ".join(
            f"{m.merge[0]} with {m.merge[1]}" + ("" if m.benefit is None else f" ({_signed(m.benefit)})")
            for m in merges
        )

    merged = f"made: {in_words(judged.history)}" if judged.history else "none made"
    return f"{merged}; not made: {in_words(judged.beyond)}." if judged.beyond else f"{merged}."


def _signed(value: float) -> str:
    return f"{value:+.3g}".replace("-", "−")


def similarity_chart(g: GroupHistory, name: str) -> Chart | None:
    """Cosines between what the server compared of two clients, sorted by group; None if it compared nothing."""
    if not g.judged.similarity:
        return None
    number = g.number_of
    compared = [c for c in range(g.clients) if c in set(g.judged.compared)]
    # Groups by number, then groups of one, then clients in none.
    order = sorted(compared, key=lambda c: (number.get(c, NONE) < 0, -number.get(c, NONE) if number.get(c, NONE) < 0
                                         else number[c], c))  # fmt: skip
    at = {c: i for i, c in enumerate(g.judged.compared)}
    rows = [at[c] for c in order]
    cosines = np.array(g.judged.similarity, dtype=np.float64)[np.ix_(rows, rows)]  # None becomes NaN
    n = len(order)
    with figures.style(name):
        figure, axes = figures.chart(360)
        axes.imshow(
            shades(np.sign(cosines) * figures.opacity(np.abs(cosines))), aspect="equal", interpolation="none",
            origin="upper",
        )  # fmt: skip
        axes.grid(visible=False)
        for k, members in _runs([number.get(c, NONE) for c in order]):
            if k >= 0:
                start, width = members
                axes.add_patch(
                    Rectangle((start - 0.5, start - 0.5), width, width, fill=False, edgecolor=colour_of(k), linewidth=2)
                )
                axes.annotate(
                    str(k + 1), (n - 0.35, start + (width - 1) / 2), ha="left", va="center", fontsize=10,
                    color=colour_of(k), annotation_clip=False,
                )  # fmt: skip
        every = max(1, math.ceil(n / 25))
        for axis in (axes.xaxis, axes.yaxis):
            figures.name_ticks(axis, range(0, n, every), lambda k: g.called(order[k]))
        for spine in axes.spines.values():
            spine.set_visible(True)
        axes.set_xlabel("client")
        axes.set_ylabel("client")
        inside, across = _in_and_out(cosines, [number.get(c, NONE) for c in order])
        means = " ".join(
            f"{what} {v:.2f}." for what, v in (("Mean inside groups", inside), ("Mean across", across)) if v is not None
        )
        svg = figures.markup(
            figure, name, f"Cosine of every two clients’ updates, {g.method}, seed {g.seed}, ordered by groups. {means}"
        )
    blank = bool(np.isnan(cosines).any())
    caption = (
        f"{g.method}, seed {g.seed}: cosine of every two clients’ updates of the round before round {g.last.round}, "
        "which its groups follow from. 1 is the same direction, 0 nothing in common, −1 opposite. Squares are the "
        f"groups with their numbers, then clients alone. {means}"
        + (" Blank rows: clients whose update has no direction." if blank else "")
        + (f" Every {every}th client is named." if every > 1 else "")
    )
    legend = (
        *((f"−{v:g}", shade(ORANGE, float(figures.opacity(v)))) for v in (1.0, 0.25)),
        *((f"{v:g}", shade(BLUE, float(figures.opacity(v)))) for v in (0.0, 0.05, 0.25, 0.5, 1.0)),
    )
    return Chart(f"How alike the clients of {g.method} are", caption, svg, legend)


def _runs(values: Sequence[int]) -> list[tuple[int, tuple[int, int]]]:
    """Stretches of equal values: value, (where it begins, how long it is)."""
    runs: list[tuple[int, tuple[int, int]]] = []
    for i, v in enumerate(values):
        if runs and runs[-1][0] == v:
            runs[-1] = (v, (runs[-1][1][0], runs[-1][1][1] + 1))
        else:
            runs.append((v, (i, 1)))
    return runs


def _in_and_out(cosines: Floats, numbers: Sequence[int]) -> tuple[float | None, float | None]:
    """Mean cosine of two clients in the same group, and of two that share none."""
    k = np.array(numbers)
    same = (k[:, None] == k) & (k[:, None] >= 0)
    known = ~np.isnan(cosines) & ~np.eye(len(k), dtype=bool)
    inside, across = cosines[same & known], cosines[~same & known]
    return (float(inside.mean()) if inside.size else None, float(across.mean()) if across.size else None)


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


def _name_groups(axes: Axes, numbers: Sequence[int]) -> None:
    """Label each client with the number of its group, a dash for a group of one, nothing for none."""
    above = axes.secondary_xaxis("top")
    above.set_xticks(
        range(len(numbers)),
        ["" if n == NONE else str(n + 1) if n >= 0 else "–" for n in numbers],
        fontsize=9 if len(numbers) <= 60 else 7,
    )
    for text, n in zip(above.get_xticklabels(), numbers, strict=True):
        text.set_color(colour_of(n))
    above.tick_params(length=0)
    above.spines["top"].set_visible(False)
    above.set_xlabel("group")


def gain_chart(
    g: GroupHistory, options: Mapping[str, Any], sizes: Sequence[int], base: str | None, name: str
) -> Chart | None:
    """Should I join?  For each client, the utility its group promised and the gain it brought."""
    utility = {c: u for c, u in enumerate(g.judged.utility) if u is not None}
    gain = {c: g.measure.scale * v for c, v in g.gains.get(g.seed, {}).items()}
    unit = "points" if g.measure.percent else g.measure.label
    panels = [p for p, by_client in (("utility", utility), ("gain", gain)) if by_client]
    if not panels:
        return None
    number = g.number_of
    apart = utility_alone(options, sizes) if utility else None
    wide = g.clients > MOST_NAMED
    with figures.style(name):
        figure = figures.sheet(50 + 155 * len(panels), *[figures.WIDE] * wide)
        grid = np.atleast_1d(figure.subplots(len(panels), 1, sharex=True))
        for axes, panel in zip(grid, panels, strict=True):
            values = utility if panel == "utility" else gain
            inside = [c for c in values if c in number]
            axes.bar(inside, [values[c] for c in inside], width=0.7, color=[colour_of(number[c]) for c in inside])
            outside = [c for c in values if c not in number]
            axes.bar(
                outside, [values[c] for c in outside], width=0.7, facecolor="none",
                edgecolor=colour_of(NONE), linewidth=0.9, linestyle=(0, (1.5, 1.2)),
            )  # fmt: skip
            axes.axhline(0, color=figures.INK, linewidth=0.8)
            axes.set_axisbelow(True)
            axes.grid(axis="x", visible=False)
            axes.set_ylabel("utility" if panel == "utility" else f"gain, {unit}")
            if panel == "utility" and apart is not None:
                axes.plot(
                    list(utility), [apart[c] for c in utility], "o", markersize=min(6.0, 300 / g.clients),
                    markerfacecolor="none",
                    markeredgecolor=figures.INK, mew=1.0,
                )  # fmt: skip
                if min(apart[c] for c in utility) < -3:
                    axes.set_yscale("symlog", linthresh=1.0)
                    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}".replace("-", "−")))
                    axes.set_yticks(_ticks([*utility.values(), *(apart[c] for c in utility)], 0))
                    axes.minorticks_off()
        bottom = grid[-1]
        bottom.set_xlim(-0.7, g.clients - 0.3)
        _name_groups(grid[0], [number.get(c, NONE) for c in range(g.clients)])
        if g.called(0) != "0":
            figures.name_ticks(bottom.xaxis, range(0, g.clients, math.ceil(g.clients / 50)), g.called)
        else:
            bottom.xaxis.set_major_locator(MaxNLocator(16, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
        bottom.set_xlabel("client")
        ranges = [f"utility {min(utility.values()):.2f} to {max(utility.values()):.2f}"] if utility else []
        ranges += [f"gain {min(gain.values()):.3g} to {max(gain.values()):.3g} {unit}"] if gain else []
        svg = figures.markup(figure, name, f"By client of {g.method}, seed {g.seed}: {'; '.join(ranges)}.")
    upper = (
        "Utility (no unit): how well a client’s update agrees with its group’s, less what a small group costs; from "
        "it the method decides."
        + (" Circle: the utility it would have alone; a bar above its circle says join." if apart is not None else "")
        if utility
        else ""
    )
    lower = (
        f"Gain{', in percentage points' if g.measure.percent else ''}: {_gain_on_own(g.measure, base)}; no bar, no "
        "difference."
        if gain
        else "The run has no results of local training beside these, so the gain is not drawn."
    )
    caption = (
        f"{g.method}, seed {g.seed}, round {g.last.round}. Colours are those of the groups, grey is alone"
        + (", dashed is in no group" if any(c not in number for c in (*utility, *gain)) else "")
        + (", of several groups it is the first’s" if g.overlapping else "")
        + "; the groups’ numbers stand above. "
        + " ".join(part for part in (upper, lower) if part)
    )
    return Chart(f"Should I join? The clients of {g.method}", caption, svg, wide=wide)


def _gain_on_own(measure: Measure, base: str | None) -> str:
    here, there = ("in the last round", f"under {base}") if measure.higher else (f"under {base}", "in the last round")
    return f"{measure.label} on the client’s own test data {here}, less that {there}"
