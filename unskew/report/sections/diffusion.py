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

import altair as alt
import numpy as np
import numpy.typing as npt
import torch

from unskew import schema
from unskew.errors import RunError
from unskew.info import DiffusionRound
from unskew.keys import Key
from unskew.record.reader import DataSplit, Record, configured, info_of
from unskew.report import charts, stats, tables
from unskew.report.section import Chart, Section, SectionKind, Table, TableRow, table
from unskew.server.distance import DistanceMetric, iid_distance
from unskew.words import counted
from unskew.world.wireless import Radio

MOST_SHOWN = 3  # methods whose paths are drawn
MOST_PANELS = 6  # diffusion rounds drawn
MOST_MODELS = 16  # of one panel, and rows of the table of paths
MOST_DEVICES = 200  # of one panel that hold no model
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
def section(record: Record, methods: Sequence[str], marks: Mapping[str, str]) -> Section | None:
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
    drawn = [(d, d.shown) for d in diffusions[:MOST_SHOWN] if d.shown is not None]
    return Section(
        "Diffusion",
        lead(diffusions),
        (*curve_charts(diffusions, marks), *(cell_chart(record, d, round) for d, round in drawn)),
        (_summary(diffusions, marks), *(_paths(d, round, record.partitions[round.seed]) for d, round in drawn)),
    )


def lead(diffusions: Sequence[Diffusion]) -> str:
    """How near to IID the models came, in a sentence for each method."""
    near = (
        f"{d.method}: the models’ mean IID distance goes from {d.distance.mean[0]:.3f} to {d.distance.mean[-1]:.3f}."
        for d in diffusions
    )
    wrong = (
        f"{counted(d.mismatched, 'round')} of {d.method} name other numbers of examples than the partition has."
        for d in diffusions
        if d.mismatched
    )
    return " ".join([*near, *wrong])


def curve_charts(diffusions: Sequence[Diffusion], marks: Mapping[str, str]) -> list[Chart]:
    """IID distance, and where it was recorded efficiency, by diffusion round."""
    distance = {d.method: d.distance for d in diffusions}
    words = list(dict.fromkeys(d.ruler.words for d in diffusions))
    y = words[0] if len(words) == 1 else "IID distance"
    gap, chains = max(d.gap for d in diffusions), sum(d.chains for d in diffusions)
    title = "IID distance by diffusion round"
    caption = (
        "Mean over models and communication rounds. "
        f"Lemma 2’s closed form differs by at most {_tiny(gap)} over {chains:,} chains."
    )
    drawn = charts.curves(charts.of_curves(distance), marks, "diffusion round", y)
    both = [Chart(title, caption, drawn, charts.ends(title, distance))]
    efficiency = {d.method: d.efficiency for d in diffusions if d.efficiency is not None}
    if efficiency:
        title = "Diffusion efficiency by diffusion round"
        caption = "How much nearer to IID the winners’ bids promise to bring their models, for each MHz and second."
        rows = charts.of_curves(efficiency, MHZ)
        drawn = charts.curves(rows, marks, "diffusion round", "efficiency, 1/(MHz s)", log=True)
        both.append(Chart(title, caption, drawn, charts.ends(title, efficiency, MHZ)))
    return both


def _summary(diffusions: Sequence[Diffusion], marks: Mapping[str, str]) -> Table:
    rows = [
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
            charts.swatch(marks[d.method]),
        )
        for d in diffusions
    ]
    head = ["Method", "Rounds | all seeds", "Diffusion rounds | per round", "Models that move | % of a hop",
            "Models that stay | % of a round", "IID distance | first trainer", "IID distance | end of chain",
            "Recursion and Lemma 2 | apart, at most", "Bids and Lemma 2 | apart, at most"]  # fmt: skip
    note = "Bids differ from Lemma 2 where they are valued a move behind, or clients add noise to what they show."
    return table("Diffusion in numbers", head, rows, note)


def _tiny(value: float) -> str:
    """A difference as text, short whether or not it is only rounding.

    >>> _tiny(2.3e-16), _tiny(0.0123), _tiny(0.0)
    ('2e-16', '0.01', '0')
    """
    return f"{value:.1g}"


def _paths(d: Diffusion, round: DrawnRound, partition: DataSplit) -> Table:
    distances, sizes = d.ruler.simulated(round.learning), round.learning.sizes[-1]
    chains = round.info.chains()
    rows = [
        TableRow(
            str(m),
            (
                " → ".join(map(partition.client, chain)), f"{sizes[m]:,}", f"{distances[0, m]:.3f}",
                f"{distances[-1, m]:.3f}",
            ),
        )
        for m, chain in enumerate(chains[:MOST_MODELS])
    ]  # fmt: skip
    some = f"The first {len(rows)} of {len(chains):,} models." if len(rows) < len(chains) else ""
    head = ["Model", "Clients that trained it | in order", "Examples | along the path",
            "IID distance | first trainer", "IID distance | end of path"]  # fmt: skip
    title = f"Paths of the models of {d.method}, seed {round.seed}, round {round.round}"
    return table(title, head, rows, some, [1])


# ---------------------------------------------------------------- the cell
def ground(record: Record, round: DrawnRound, clients: int) -> tuple[Callable[[int], Floats], float | None]:
    """The clients' positions, (clients, 2), by diffusion round from 1, and the radius of the cell, in metres.

    They are those of the run's own channel; without one clients stand on a circle, and there is no radius.
    """
    table = configured(record).get("world", {}).get("channel", {})
    if table.get("name") != "radio":
        turn = 2 * math.pi * np.arange(clients) / clients
        circle = np.stack([np.sin(turn), np.cos(turn)], axis=1)
        return lambda hop: circle, None
    radio: Radio = schema.build(Radio, table, "world.channel", str(record.folder / "config.toml"))
    key = Key(round.seed) / "channel"
    # The channel counts diffusion rounds from 0, and node 0 is the base station.
    return lambda hop: radio.positions(key, round.round, hop - 1, clients + 1)[1:], radio.cell_radius_m


def steps(round: DrawnRound, places: Callable[[int], Floats]) -> list[dict[str, Any]]:
    """Rows of the drawing: in each diffusion round where each model is, and where it goes."""
    holders, rows = list(round.info.starts), []
    for k, hop in enumerate(round.info.hops[:MOST_PANELS], start=1):
        at, moves = places(k), {m.model: m.dst for m in hop.moves}
        panel = f"diffusion round {k}: {len(moves)} of {len(holders)} move"
        busy = {*holders, *moves.values()}
        idle = [c for c in range(len(at)) if c not in busy][:MOST_DEVICES]
        rows += [{"panel": panel, "x": at[c, 0], "y": at[c, 1], "client": c} for c in (*sorted(busy), *idle)]
        for model, holder in enumerate(holders):
            to = moves.get(model, holder)
            holders[model] = to
            if model < MOST_MODELS:
                (x, y), (x2, y2) = at[holder], at[to]
                turn = math.degrees(math.atan2(x2 - x, y2 - y))
                where = {"x": x, "y": y, "x2": x2, "y2": y2, "turn": turn, "from": holder, "to": to}
                rows.append({"panel": panel, "model": str(model), "moves": to != holder, **where})
    return rows


def cell_chart(record: Record, d: Diffusion, round: DrawnRound) -> Chart:
    """Where the models went in the first diffusion rounds: an arrow is a model on its way, a square one that stays."""
    places, radius = ground(record, round, len(record.partitions[round.seed].label_counts))
    rows = steps(round, places)
    panels = list(dict.fromkeys(str(row["panel"]) for row in rows))
    reach = 1.1 * (radius or 1.0)
    scale = alt.Scale(domain=[-reach, reach])
    base = alt.Chart(charts.rows(rows)).encode(x=charts.bare("x", scale=scale), y=charts.bare("y", scale=scale))
    models = {str(m): charts.COLOURS[m % len(charts.COLOURS)] for m in range(min(len(round.info.starts), MOST_MODELS))}
    tip = [alt.Tooltip(f"{field}:N") for field in ("model", "from", "to")]
    one = base.transform_filter("isValid(datum.model)").encode(color=charts.by_name(models, "model"), tooltip=tip)
    to = {"x": charts.bare("x2", scale=scale), "y": charts.bare("y2", scale=scale)}
    moving, staying = one.transform_filter("datum.moves"), one.transform_filter("!datum.moves")
    head = moving.mark_point(shape="triangle", filled=True, size=70, opacity=1)
    layers = (
        base.transform_filter("!isValid(datum.model)").mark_point(filled=True, size=12, color=charts.BOUND).encode(
            tooltip="client:N"
        ),
        moving.mark_rule(strokeWidth=1.8).encode(x2="x2:Q", y2="y2:Q"),
        head.encode(**to, angle=alt.Angle("turn:Q", scale=None)),
        staying.mark_point(shape="square", size=60, strokeWidth=1.8),
        one.mark_text(dx=9, dy=-8, fontSize=11).encode(**to, text="model:N"),
    )  # fmt: skip
    drawn = charts.faceted(alt.layer(*layers), panels, 3, height=240)
    words = [
        f"diffusion round {k}: " + ", ".join(f"model {m.model} from client {m.src} to {m.dst}" for m in hop.moves)
        for k, hop in enumerate(round.info.hops[:2], start=1)
    ]
    title = f"Where the models of {d.method} went"
    ground_is = (
        "Devices stand where the channel had them" if radius else "No radio was modelled: clients stand on a circle"
    )
    caption = f"Seed {round.seed}, round {round.round}. An arrow is a model, a square one that stays. {ground_is}."
    return Chart(title, caption, drawn, f"{title}: {'; '.join(words)}."[:1000], wide=True)


KIND = SectionKind("FedDif's models on their way through the clients", (DiffusionRound,), section)
