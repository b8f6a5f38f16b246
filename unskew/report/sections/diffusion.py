"""FedDif's rounds: how near to IID the data behind its models came, at what price in bandwidth, and where they went.

S. Ahn et al., "Communication-Efficient Diffusion Strategy for Performance Improvement of Federated Learning with
Non-IID Data".

Notation   d_i    class shares of client i's training examples, D_i their number
           psi_k  degree of learning (DoL) of a model after k diffusion rounds: class shares of what it was trained on
           D_k    examples along its chain of clients
           u      the distribution that counts as IID
           W      distance between two distributions; the L2 norm of their difference unless the run says otherwise

The run records which client trained which model (its info) and which client holds which examples (partition.json),
but no DoL: the base station never sees one.  Here each model's DoL is rebuilt by the recursion that the clients use,

    psi_k = (D_{k-1} psi_{k-1} + D_i d_i) / D_k,   D_k = D_{k-1} + D_i,                          (1)

and compared with Lemma 2's closed form, from the pooled examples of the chain and without recursion,

    W(psi_k, u) = || sum_j D_j (d_j - u) || / D_k.                                                (2)

The two are equal up to rounding, whatever the chain.  The run itself is checked by a third number: a winner's bid,
which the client computed from the DoL it received, against the gain of its move by (2).  They differ where bids are
valued one move behind, and where clients add noise to their DoL, which is neither in (1) nor in (2).
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Circle

from unskew import schema
from unskew.errors import RunError
from unskew.info import DiffusionMove, DiffusionRound
from unskew.keys import Key
from unskew.record.reader import DataSplit, Record, configured, info_of
from unskew.report import figures, stats, tables
from unskew.report.section import Chart, Section, SectionKind, Table, TableRow
from unskew.server.distance import DistanceMetric, iid_distance
from unskew.words import counted
from unskew.world.wireless import Radio

MOST_SHOWN = 3  # methods whose paths are drawn
MOST_PANELS = 6  # diffusion rounds drawn
MOST_MODELS = 16  # of one panel, and rows of the table of paths
MOST_DEVICES = 200  # idle ones, of one panel
MHZ = 1e6

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


# ---------------------------------------------------------------- degrees of learning
@dataclass(frozen=True, eq=False)
class Learning:
    """The data that the models of one round learned from, before the first hop and after each.

    Attributes:
        dol: Degree of learning by the recursion (1), (hops + 1, models, classes).
        pooled: Examples along the chain by class, (hops + 1, models, classes).
    """

    dol: Floats
    pooled: Counts

    @property
    def sizes(self) -> Counts:
        """Examples along the chain, D_k, (hops + 1, models)."""
        return np.asarray(self.pooled.sum(axis=2))


def learning(round: DiffusionRound, histograms: Counts) -> Learning:
    """Follow the models of a round over the clients' class histograms, (clients, classes).

    A model whose chain has no example yet has a DoL of NaN.
    """
    start = np.array(round.starts, dtype=np.int64)
    sizes = histograms.sum(axis=1)
    with np.errstate(invalid="ignore"):
        shares = histograms / sizes[:, None]
        psi, d, pooled = shares[start], sizes[start], histograms[start]
        dols, pools = [psi], [pooled]
        for hop in round.hops:
            models = np.array([m.model for m in hop.moves], dtype=np.int64)
            to = np.array([m.dst for m in hop.moves], dtype=np.int64)
            psi, d, pooled = psi.copy(), d.copy(), pooled.copy()
            # nan_to_num: no examples, no weight
            had, gained = d[models, None] * np.nan_to_num(psi[models]), sizes[to, None] * np.nan_to_num(shares[to])
            psi[models] = (had + gained) / (d[models] + sizes[to])[:, None]
            d[models] += sizes[to]
            pooled[models] += histograms[to]
            dols.append(psi)
            pools.append(pooled)
    return Learning(np.stack(dols), np.stack(pools))


_WORDS: dict[DistanceMetric, tuple[str, str]] = {
    "l2": ("L2", ""),
    "l1": ("L1", ""),
    "tv": ("total-variation", ""),
    "kl": ("Kullback-Leibler", ", nat"),
    "js": ("Jensen-Shannon", ", nat"),
    "w1": ("1-Wasserstein", ", classes"),
}


@dataclass(frozen=True, eq=False)
class Ruler:
    """The distance of a distribution from IID, W(., target), with the target in words."""

    metric: DistanceMetric
    target: Floats
    goal: str

    @property
    def words(self) -> str:
        """The measure, for an axis."""
        name, unit = _WORDS[self.metric]
        return f"{name} distance from {self.goal} class shares{unit}"

    def between(self, p: Floats) -> Floats:
        """W(p, u) of distributions, (..., classes)."""
        return np.asarray(iid_distance(torch.from_numpy(p), torch.from_numpy(self.target), self.metric).numpy())

    def simulated(self, learned: Learning) -> Floats:
        """W(psi_k, u) by the recursion, (hops + 1, models)."""
        return self.between(learned.dol)

    def closed(self, learned: Learning) -> Floats:
        """W(psi_k, u) from the pooled examples, (hops + 1, models): (2), or with another metric W of their shares."""
        d = learned.sizes[..., None]
        with np.errstate(invalid="ignore", divide="ignore"):
            if self.metric == "l2":
                return np.asarray(np.linalg.norm(learned.pooled - d * self.target, axis=-1) / d[..., 0])
            return self.between(learned.pooled / d)


def ruler(options: Mapping[str, Any], histograms: Counts, where: str = "config.toml") -> Ruler:
    """The distance in a method's settings; by default L2 to uniform, as in the method itself.

    Args:
        options: The method's table in config.toml.
        histograms: Class counts of all clients, (clients, classes).
        where: The file the settings are from, for errors.

    Raises:
        RunError: If there is no such metric or target.
    """
    metric, target = options.get("metric", "l2"), options.get("target", "uniform")
    classes = histograms.shape[1]
    if metric not in _WORDS:
        raise RunError(f"{where}: metric must be one of {', '.join(_WORDS)}, got {metric!r}; restore the file")
    if target == "uniform":
        return Ruler(metric, np.full(classes, 1 / classes), "uniform")
    if target == "pooled":
        return Ruler(metric, histograms.sum(axis=0) / histograms.sum(), "pooled")
    if not isinstance(target, list) or len(target) != classes:
        raise RunError(
            f"{where}: target must be uniform, pooled or {classes} class shares, got {target!r:.60}; restore the file"
        )
    return Ruler(metric, np.array(target, dtype=np.float64), "given")


# ---------------------------------------------------------------- one method over a run
@dataclass
class _Tally:
    """Statistics of one seed's rounds: means over the models of a round."""

    distance: list[Floats] = field(default_factory=list)  # of each round, (hops + 1,)
    closed: list[Floats] = field(default_factory=list)
    efficiency: list[tuple[float, ...]] = field(default_factory=list)
    moves: int = 0
    places: int = 0  # models times diffusion rounds
    stayed: int = 0
    models: int = 0


@dataclass(frozen=True, eq=False)
class DrawnRound:
    """A communication round to draw, and the data its models learned from."""

    seed: int
    round: int
    info: DiffusionRound
    learning: Learning


@dataclass(frozen=True, eq=False)
class Diffusion:
    """A FedDif method over a run.

    Attributes:
        distance, closed: Mean IID distance of the models by diffusion round, from (1) and from (2).
        efficiency: Mean diffusion efficiency by diffusion round, 1/(Hz s), over the rounds that got that far.
        gap: Largest difference between (1) and (2) of any model after any hop.
        overbid: Largest difference between a winner's bid and the gain of its move by (2).
        chains: Number of models followed, over all rounds and seeds.
        rounds: Number of communication rounds, over all seeds.
        hops: Mean number of diffusion rounds per communication round, by seed.
        moved: Share of the models that move in a diffusion round.
        stayed: Share of the models that never leave their first trainer in a round.
        mismatched: Number of rounds whose chain sizes in its info differ from those of partition.json.
        shown: The first round in which a model moved, with the data its models learned from.
    """

    method: str
    ruler: Ruler
    distance: stats.Curve
    closed: stats.Curve
    efficiency: stats.Curve | None
    gap: float
    overbid: float
    chains: int
    rounds: int
    hops: stats.Spread
    moved: float
    stayed: float
    mismatched: int
    shown: DrawnRound | None


def diffusion(record: Record, method: str, measure: Callable[[Counts], Ruler]) -> Diffusion | None:
    """Read a method's info; None if there is no round of a seed whose partition is known.

    Args:
        record: The run.
        method: Its label.
        measure: Maps the clients' histograms to the ruler.

    Raises:
        RunError: If the info contradicts itself.
    """
    seeds = tables.counted_seeds(record, method)
    held = {s: np.array(p.label_counts, dtype=np.int64) for s, p in record.partitions.items() if s in seeds}
    rulers = {s: measure(h) for s, h in held.items()}
    tallies: dict[int, _Tally] = {}
    gap, overbid, mismatched, first_drawn = 0.0, 0.0, 0, None
    for seed, at, round in info_of(record, method, DiffusionRound):
        if seed not in held:
            continue
        tally = tallies.setdefault(seed, _Tally())
        learned = learning(round, held[seed])
        simulated, closed = rulers[seed].simulated(learned), rulers[seed].closed(learned)
        known = ~np.isnan(simulated)
        if known.any():
            gap = max(gap, float(np.abs(simulated - closed)[known].max()))
        for k, hop in enumerate(round.hops):
            for move in hop.moves:
                brought = closed[k, move.model] - closed[k + 1, move.model]
                overbid = max(overbid, abs(move.bid - brought)) if math.isfinite(brought) else overbid
        mismatched += tuple(learned.sizes[-1].tolist()) != round.sizes
        tally.distance.append(_over_models(simulated))
        tally.closed.append(_over_models(closed))
        tally.efficiency.append(tuple(hop.efficiency for hop in round.hops))
        tally.moves += sum(len(hop.moves) for hop in round.hops)
        tally.places += len(round.starts) * len(round.hops)
        tally.stayed += sum(len(chain) == 1 for chain in round.chains())
        tally.models += len(round.starts)
        if first_drawn is None and any(hop.moves for hop in round.hops):
            first_drawn = DrawnRound(seed, at, round, learned)
    if not tallies:
        return None
    ruler, all_tallies = next(iter(rulers.values())), list(tallies.values())
    places, models = sum(t.places for t in all_tallies), sum(t.models for t in all_tallies)
    return Diffusion(
        method=method,
        ruler=ruler,
        distance=_level([t.distance for t in all_tallies]),
        closed=_level([t.closed for t in all_tallies]),
        efficiency=_efficiency([t.efficiency for t in all_tallies]),
        gap=gap,
        overbid=float(overbid),
        chains=models,
        rounds=sum(len(t.distance) for t in all_tallies),
        hops=stats.Spread(tuple(statistics.fmean(len(d) - 1 for d in t.distance) for t in all_tallies)),
        moved=sum(t.moves for t in all_tallies) / places if places else 0.0,
        stayed=sum(t.stayed for t in all_tallies) / models if models else 0.0,
        mismatched=mismatched,
        shown=first_drawn,
    )


def _over_models(distances: Floats) -> Floats:
    """Mean over the models that have learned something, (hops + 1,)."""
    known = ~np.isnan(distances)
    total = np.where(known, distances, 0.0).sum(axis=1)
    return np.asarray(np.divide(total, known.sum(axis=1), out=np.full(len(total), math.nan), where=known.any(axis=1)))


def _level(seeds: Sequence[Sequence[Floats]]) -> stats.Curve:
    """Mean over rounds, by diffusion round; a round that ended earlier keeps its last value."""
    last = max(len(row) for rows in seeds for row in rows)
    means = [np.mean([np.pad(row, (0, last - len(row)), mode="edge") for row in rows], axis=0) for rows in seeds]
    return _curve(range(last), means)


def _efficiency(seeds: Sequence[Sequence[tuple[float, ...]]]) -> stats.Curve | None:
    """Mean over the rounds that got that far, by diffusion round from 1; None if no round had one."""
    last = max(len(row) for rows in seeds for row in rows)
    if not last:
        return None
    means = np.full((len(seeds), last), math.nan)
    for i, rows in enumerate(seeds):
        for k in range(last):
            values = [row[k] for row in rows if k < len(row)]
            means[i, k] = statistics.fmean(values) if values else math.nan
    return _curve(range(1, last + 1), list(means))


def _curve(x: Sequence[int], seeds: Sequence[Floats]) -> stats.Curve:
    """A curve of the seeds that have a number at each `x`; NaN where none has."""
    columns = [[float(v) for v in column if not math.isnan(v)] or [math.nan] for column in zip(*seeds, strict=True)]
    return stats.curve(x, columns, len(seeds))


# ---------------------------------------------------------------- the section
def section(record: Record, methods: Sequence[str], marks: Mapping[str, figures.LineStyle]) -> Section | None:
    """FedDif's section of a report; None if no partition is known.

    Raises:
        RunError: If the info contradicts itself.
    """
    options = {str(m.get("label")): m for m in configured(record).get("methods", [])}
    where = str(record.folder / "config.toml")
    measures = {m: partial(ruler, options.get(m, {}), where=where) for m in methods}
    diffusions = [d for m in methods if (d := diffusion(record, m, measures[m])) is not None]
    if not diffusions:
        return None
    charts = [_distance_chart(diffusions, marks), _efficiency_chart(diffusions, marks)]
    drawn = [(d, d.shown) for d in diffusions[:MOST_SHOWN] if d.shown is not None]
    paths = [_cell_chart(record, d, round, f"cell{i}") for i, (d, round) in enumerate(drawn)]
    return Section(
        "Diffusion",
        lead(diffusions)
        + ("" if len(diffusions) <= MOST_SHOWN else f" Paths are those of the first {MOST_SHOWN} methods."),
        (*(c for c in charts if c is not None), *paths),
        (_summary(diffusions, marks), *(_paths(d, round, record.partitions[round.seed]) for d, round in drawn)),
    )


def lead(diffusions: Sequence[Diffusion]) -> str:
    """Summarise the diffusion in a sentence for each method."""
    sentences = [
        f"{d.method}: {tables.count(d.hops.mean)} diffusion round{'' if d.hops.mean == 1 else 's'} per communication "
        f"round on average; the models’ mean IID distance goes from {d.distance.mean[0]:.3f} to "
        f"{d.distance.mean[-1]:.3f}."
        for d in diffusions
    ]
    sentences += [
        f"In {counted(d.mismatched, 'round')} of {d.method} the chains’ examples in its info are not those of "
        "partition.json, so its distances here are not what its clients saw."
        for d in diffusions
        if d.mismatched
    ]
    return " ".join(sentences)


def _distance_chart(diffusions: Sequence[Diffusion], marks: Mapping[str, figures.LineStyle]) -> Chart:
    lines = [figures.Line(d.method, marks[d.method], d.distance) for d in diffusions]
    words = list(dict.fromkeys(d.ruler.words for d in diffusions))
    chains, gap = sum(d.chains for d in diffusions), max(d.gap for d in diffusions)
    title = "IID distance by diffusion round"
    alt = "; ".join(f"{d.method} from {d.distance.mean[0]:.3f} to {d.distance.mean[-1]:.3f}" for d in diffusions)
    svg = figures.lines_chart(
        "iid", lines, "diffusion round", words[0] if len(words) == 1 else "IID distance", 1.0,
        f"{title}, mean over models, rounds and seeds: {alt}; Lemma 2 differs by at most {_tiny(gap)}.",
        rings=[d.closed for d in diffusions],
    )  # fmt: skip
    caption = (
        "How far the data a model has seen are from IID, before the first transfer (0) and after each diffusion round: "
        "mean over models and communication rounds; rounds that end earlier stay where they ended. "
        f"{_band(lines)} Circles: Lemma 2’s closed form, from the pooled examples of each model’s clients; over "
        f"{chains:,} chains it is never further from the simulated distance than {_tiny(gap)}."
    )
    legend = (*((line.name, figures.swatch(line.look)) for line in lines), ("Lemma 2, closed form", figures.RING))
    return Chart(title, caption, svg, legend)


def _band(lines: Sequence[figures.Line]) -> str:
    return "Band: lowest to highest seed." if max(line.curve.seeds for line in lines) > 1 else "One seed: no band."


def _efficiency_chart(diffusions: Sequence[Diffusion], marks: Mapping[str, figures.LineStyle]) -> Chart | None:
    drawn = [(d, d.efficiency) for d in diffusions if d.efficiency is not None]
    if not drawn:
        return None
    lines = [figures.Line(d.method, marks[d.method], _per_mhz(curve)) for d, curve in drawn]
    title = "Diffusion efficiency by diffusion round"
    alt = "; ".join(f"{line.name} from {line.curve.mean[0]:.3g} to {line.curve.mean[-1]:.3g}" for line in lines)
    svg = figures.lines_chart(
        "efficiency", lines, "diffusion round", "efficiency, 1/(MHz s)", 1.0, f"{title}, mean over rounds: {alt}.",
    )  # fmt: skip
    caption = (
        "How much nearer to IID the winners’ bids promise to bring their models, for each MHz that a transfer occupies "
        "for one second: the mean over all models, as the base station worked it out. Mean over the communication "
        f"rounds that came so far. {_band(lines)}"
    )
    return Chart(title, caption, svg, tuple((line.name, figures.swatch(line.look)) for line in lines))


def _per_mhz(curve: stats.Curve) -> stats.Curve:
    mean, low, high = (tuple(MHZ * v for v in side) for side in (curve.mean, curve.low, curve.high))
    return stats.Curve(curve.x, mean, low, high, curve.seeds)


def _summary(diffusions: Sequence[Diffusion], marks: Mapping[str, figures.LineStyle]) -> Table:
    entries = tuple(
        TableRow(
            d.method,
            (
                f"{d.rounds:,}",
                tables.count(d.hops.mean) + (f" ± {d.hops.std:.1f}" if d.hops.std is not None else ""),
                tables.percent(d.moved, 0),
                tables.percent(d.stayed, 0),
                f"{d.distance.mean[0]:.3f}",
                f"{d.distance.mean[-1]:.3f}",
                _tiny(d.gap),
                _tiny(d.overbid),
            ),
            figures.swatch(marks[d.method]),
        )
        for d in diffusions
    )
    head = (
        ("Method", ""), ("Rounds", "all seeds"), ("Diffusion rounds", "per round"), ("Models that move", "% of a hop"),
        ("Models that stay", "% of a round"), ("IID distance", "first trainer"), ("IID distance", "end of chain"),
        ("Recursion and Lemma 2", "apart, at most"), ("Bids and Lemma 2", "apart, at most"),
    )  # fmt: skip
    return Table(
        "Diffusion in numbers", head, entries,
        "Distances are means over models, communication rounds and seeds. A bid says by how much the winner’s data "
        "bring the model nearer to IID; lagged valuation and noise on what clients show of their data set it apart "
        "from what Lemma 2 says of the same move.",
    )  # fmt: skip


def _tiny(value: float) -> str:
    """A difference as text, short whether or not it is only rounding.

    >>> _tiny(2.3e-16), _tiny(0.0123), _tiny(0.0)
    ('2e-16', '0.01', '0')
    """
    return f"{value:.1g}"


def _paths(d: Diffusion, round: DrawnRound, partition: DataSplit) -> Table:
    distances, sizes = d.ruler.simulated(round.learning), round.learning.sizes[-1]
    chains = round.info.chains()
    entries = tuple(
        TableRow(
            str(m),
            (
                " → ".join(map(partition.client, chains[m])),
                f"{sizes[m]:,}",
                f"{distances[0, m]:.3f}",
                f"{distances[-1, m]:.3f}",
            ),
        )
        for m in range(min(len(chains), MOST_MODELS))
    )
    some = f" The first {len(entries)} of {len(chains):,} models." if len(entries) < len(chains) else ""
    return Table(
        f"Paths of the models of {d.method}, seed {round.seed}, round {round.round}",
        (("Model", ""), ("Clients that trained it", "in order"), ("Examples", "along the path"),
         ("IID distance", "first trainer"), ("IID distance", "end of path")),
        entries,
        f"One client alone: the model stayed where it began.{some}",
        frozenset({1}),
    )  # fmt: skip


# ---------------------------------------------------------------- the cell
@dataclass(frozen=True, eq=False)
class Ground:
    """Positions of the devices in each diffusion round, (clients, 2), metres from the base station.

    Attributes:
        at: Positions by diffusion round, counted from 1.
        radius: Radius of the cell, metres; None if no radio was modelled and the devices are drawn on a circle.
        words: Origin of the positions, in words.
    """

    at: Callable[[int], Floats]
    radius: float | None
    words: str


def ground(record: Record, round: DrawnRound, clients: int) -> Ground:
    """The clients' positions under the run's own channel, or on a circle if it had none."""
    table = configured(record).get("world", {}).get("channel", {})
    if table.get("name") != "radio":
        return _on_a_circle(clients)
    radio: Radio = schema.build(Radio, table, "world.channel", str(record.folder / "config.toml"))
    key = Key(round.seed) / "channel"
    when = {"never": "and stay there", "round": "anew each round", "hop": "anew in each diffusion round"}
    return Ground(
        # The channel counts diffusion rounds from 0, and node 0 is the base station.
        lambda hop: radio.positions(key, round.round, hop - 1, clients + 1)[1:],
        radio.cell_radius_m,
        f"The triangle is the base station, the circle the edge of the cell, {radio.cell_radius_m:g} m from it; "
        f"devices are placed at random {when[radio.redeploy]}.",
    )


def _on_a_circle(clients: int) -> Ground:
    turn = 2 * math.pi * np.arange(clients) / clients
    places = np.stack([np.sin(turn), np.cos(turn)], axis=1)
    return Ground(
        lambda hop: places,
        None,
        "No radio was modelled in this run, so there are no places: clients stand on a circle, client 0 at the top and "
        "the others clockwise.",
    )


def _cell_chart(record: Record, d: Diffusion, round: DrawnRound, name: str) -> Chart:
    clients = len(record.partitions[round.seed].label_counts)
    places = ground(record, round, clients)
    panels = [hop.moves for hop in round.info.hops[:MOST_PANELS]]
    columns = min(3, len(panels))
    rows, hops = math.ceil(len(panels) / columns), len(round.info.hops)
    with figures.style(name):
        width = figures.WIDE if columns > 1 else figures.WIDE / 2
        figure = figures.sheet(rows * (width / columns + 18), width)
        holders = list(round.info.starts)
        for i, axes in enumerate(np.atleast_1d(figure.subplots(rows, columns)).flat):
            axes.set_axis_off()
            if i < len(panels):
                holders = _panel(axes, panels[i], holders, places.at(i + 1), places.radius)
                axes.set_title(f"diffusion round {i + 1}: {len(panels[i])} of {len(holders)} move", fontsize=11)
        svg = figures.markup(figure, name, _alt(d, round))
    some = [f"the first {MOST_PANELS} of {hops} diffusion rounds"] if len(panels) < hops else []
    some += [f"the first {MOST_MODELS} of {len(holders):,} models"] if len(holders) > MOST_MODELS else []
    some += [f"{MOST_DEVICES} of the clients that take no part"] if clients > MOST_DEVICES + len(holders) else []
    caption = (
        f"{d.method}, seed {round.seed}, round {round.round}, the first round in which a model moved. Grey dots are "
        "clients; an arrow is a model, with its number, on its way from the client that trained it to the next; an "
        f"open square is a model that stays. {places.words}" + (f" Drawn: {', '.join(some)}." if some else "")
    )
    return Chart(f"Where the models of {d.method} went", caption, svg, wide=columns > 1)


def _panel(
    axes: Axes, moves: Sequence[DiffusionMove], holders: Sequence[int], places: Floats, radius: float | None
) -> list[int]:
    """Draw one diffusion round; return the client that holds each model after it."""
    reach = radius or 1.0
    busy = {*holders, *(m.dst for m in moves)}
    idle = [c for c in range(len(places)) if c not in busy][:MOST_DEVICES]
    visible = places[sorted([*idle, *(m.dst for m in moves), *holders])]
    if radius is not None:
        axes.add_patch(Circle((0, 0), radius, fill=False, edgecolor=figures.BOUND, linewidth=0.8))
        axes.plot([0], [0], "^", color=figures.INK, markersize=7)
    axes.plot(visible[:, 0], visible[:, 1], "o", color=figures.BOUND, markersize=3.2, mew=0, alpha=0.75)
    after, moving = list(holders), {m.model: m for m in moves}
    for model, holder in enumerate(holders):
        colour = figures.SERIES[model % figures.COLOURS]
        move = moving.get(model)
        if move is not None:
            after[model] = move.dst
        if model >= MOST_MODELS:
            continue
        if move is None:
            axes.plot(*places[holder], "s", markersize=7, markerfacecolor="none", markeredgecolor=colour, mew=1.4)
            _number(axes, model, places[holder], (7.0, 5.0))
        else:
            src, dst = places[move.src], places[move.dst]
            axes.annotate(
                "", tuple(dst), tuple(src),
                # Bent, so that two models that change places are two arrows.
                arrowprops={"arrowstyle": "-|>", "connectionstyle": "arc3,rad=0.1", "color": colour, "linewidth": 1.5,
                            "shrinkA": 1, "shrinkB": 1, "mutation_scale": 11},
            )  # fmt: skip
            step = (dst - src) / max(float(np.linalg.norm(dst - src)), 1e-9)
            _number(axes, model, dst, (8 * float(step[0]), 8 * float(step[1])))
    axes.set_xlim(-1.13 * reach, 1.13 * reach)
    axes.set_ylim(-1.13 * reach, 1.13 * reach)
    axes.set_aspect("equal")
    return after


def _number(axes: Axes, model: int, place: Floats, offset: tuple[float, float]) -> None:
    axes.annotate(
        str(model), tuple(place), offset, textcoords="offset points", ha="center", va="center", fontsize=10.5,
        bbox={"facecolor": figures.PAGE, "edgecolor": "none", "pad": 0.6, "alpha": 0.8},
    )  # fmt: skip


def _alt(d: Diffusion, round: DrawnRound) -> str:
    hops = [
        f"diffusion round {k}: " + ", ".join(f"model {m.model} from client {m.src} to {m.dst}" for m in hop.moves)
        for k, hop in enumerate(round.info.hops[:2], start=1)
    ]
    return f"Moves of {d.method}, seed {round.seed}, round {round.round}. {'; '.join(hops)}."[:1000]


KIND = SectionKind("FedDif's models on their way through the clients", (DiffusionRound,), section)
