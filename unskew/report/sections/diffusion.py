"""FedDif's rounds: how near to IID the data behind its models came, at what price in bandwidth, and where they went.

S. Ahn et al., "Communication-Efficient Diffusion Strategy for Performance Improvement of Federated Learning with
Non-IID Data".

Notation   psi_k  degree of learning (DoL) of a model after k diffusion rounds: class shares of what it was trained on
           u      the distribution that counts as IID
           W      distance between two distributions; the L2 norm of their difference unless the run says otherwise

The run records which client trained which model (its info) and which client holds which examples (partition.json), but
no DoL: the base station never sees one.  Here it is that of the examples along the model's chain of clients, which the
clients' recursion equals by Lemma 2.
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
from unskew.world.wireless import Radio

MOST_SHOWN = 3  # methods whose paths are drawn
MOST_PANELS = 6  # diffusion rounds drawn
MOST_MODELS = 16  # of one panel, and rows of the table of paths
MOST_DEVICES = 200  # of one panel that hold no model
MHZ = 1e6

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


# ---------------------------------------------------------------- degrees of learning
def learned(round: DiffusionRound, histograms: Counts) -> Counts:
    """Examples along the models' chains by class, before the first hop and after each, (hops + 1, models, classes).

    Args:
        round: The models' moves.
        histograms: Class counts of the clients, (clients, classes).
    """
    pools = [histograms[np.array(round.starts, dtype=np.int64)]]
    for hop in round.hops:
        pooled = pools[-1].copy()
        for move in hop.moves:
            pooled[move.model] += histograms[move.dst]
        pools.append(pooled)
    return np.stack(pools)


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

    def between(self, pooled: Counts) -> Floats:
        """W(psi, u) of the class shares of some examples, (..., classes); NaN where there are none."""
        with np.errstate(invalid="ignore"):
            shares = torch.from_numpy(pooled / pooled.sum(axis=-1, keepdims=True))
        return np.asarray(iid_distance(shares, torch.from_numpy(self.target), self.metric).numpy())


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
    efficiency: list[tuple[float, ...]] = field(default_factory=list)
    moves: int = 0
    places: int = 0  # models times diffusion rounds
    stayed: int = 0
    models: int = 0


@dataclass(frozen=True, eq=False)
class DrawnRound:
    """A communication round to draw, and the examples its models learned from."""

    seed: int
    round: int
    info: DiffusionRound
    pooled: Counts


@dataclass(frozen=True, eq=False)
class Diffusion:
    """A FedDif method over a run.

    Attributes:
        distance: Mean IID distance of the models by diffusion round.
        efficiency: Mean diffusion efficiency by diffusion round, 1/(Hz s), over the rounds that got that far.
        rounds: Number of communication rounds, over all seeds.
        hops: Mean number of diffusion rounds per communication round, by seed.
        moved: Share of the models that move in a diffusion round.
        stayed: Share of the models that never leave their first trainer in a round.
        shown: The first round in which a model moved.
    """

    method: str
    ruler: Ruler
    distance: stats.Curve
    efficiency: stats.Curve | None
    rounds: int
    hops: stats.Spread
    moved: float
    stayed: float
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
    shown = None
    for seed, at, round in info_of(record, method, DiffusionRound):
        if seed not in held:
            continue
        tally, pooled = tallies.setdefault(seed, _Tally()), learned(round, held[seed])
        tally.distance.append(_over_models(rulers[seed].between(pooled)))
        tally.efficiency.append(tuple(hop.efficiency for hop in round.hops))
        tally.moves += sum(len(hop.moves) for hop in round.hops)
        tally.places += len(round.starts) * len(round.hops)
        tally.stayed += sum(len(chain) == 1 for chain in round.chains())
        tally.models += len(round.starts)
        if shown is None and any(hop.moves for hop in round.hops):
            shown = DrawnRound(seed, at, round, pooled)
    if not tallies:
        return None
    every = list(tallies.values())
    places, models = sum(t.places for t in every), sum(t.models for t in every)
    return Diffusion(
        method,
        next(iter(rulers.values())),
        _level([t.distance for t in every]),
        _efficiency([t.efficiency for t in every]),
        sum(len(t.distance) for t in every),
        stats.Spread(tuple(statistics.fmean(len(d) - 1 for d in t.distance) for t in every)),
        sum(t.moves for t in every) / places if places else 0.0,
        sum(t.stayed for t in every) / models if models else 0.0,
        shown,
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
    means = [[[row[k] for row in rows if k < len(row)] or [math.nan] for k in range(last)] for rows in seeds]
    by_seed = [np.array([statistics.fmean(values) for values in row]) for row in means]
    return _curve(range(1, last + 1), by_seed) if last else None


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
    near = (f"{d.method}: from {d.distance.mean[0]:.3f} to {d.distance.mean[-1]:.3f}" for d in diffusions)
    return Section(
        "Diffusion",
        f"The models’ mean IID distance. {'; '.join(near)}.",
        (*curve_charts(diffusions, marks), *(cell_chart(record, d, round) for d, round in drawn)),
        (_summary(diffusions, marks), *(_paths(d, round, record.partitions[round.seed]) for d, round in drawn)),
    )


def curve_charts(diffusions: Sequence[Diffusion], marks: Mapping[str, str]) -> list[Chart]:
    """IID distance, and where it was recorded efficiency, by diffusion round."""
    distance = {d.method: d.distance for d in diffusions}
    efficiency = {d.method: d.efficiency for d in diffusions if d.efficiency is not None}
    words = list(dict.fromkeys(d.ruler.words for d in diffusions))
    kinds = [
        ("IID distance", words[0] if len(words) == 1 else "IID distance", distance, 1.0,
         "Mean over models and communication rounds."),
        ("Diffusion efficiency", "efficiency, 1/(MHz s)", efficiency, MHZ,
         "How much nearer to IID the winners’ bids promise to bring their models, for each MHz and second."),
    ]  # fmt: skip
    drawn = []
    for what, y, lines, scale, caption in kinds:
        if lines:
            title, rows = f"{what} by diffusion round", charts.of_curves(lines, scale)
            chart = charts.curves(rows, marks, "diffusion round", y, log=scale != 1.0)
            drawn.append(Chart(title, caption, chart, charts.ends(title, lines, scale)))
    return drawn


def _summary(diffusions: Sequence[Diffusion], marks: Mapping[str, str]) -> Table:
    rows = [
        TableRow(
            d.method,
            (
                f"{d.rounds:,}", tables.count(d.hops.mean) + (f" ± {d.hops.std:.1f}" if d.hops.std is not None else ""),
                f"{100 * d.moved:.0f}", f"{100 * d.stayed:.0f}", f"{d.distance.mean[0]:.3f}",
                f"{d.distance.mean[-1]:.3f}",
            ),
            charts.swatch(marks[d.method]),
        )
        for d in diffusions
    ]  # fmt: skip
    head = ["Method", "Rounds | all seeds", "Diffusion rounds | per round", "Models that move | % of a hop",
            "Models that stay | % of a round", "IID distance | first trainer",
            "IID distance | end of chain"]  # fmt: skip
    return table("Diffusion in numbers", head, rows)


def _paths(d: Diffusion, round: DrawnRound, partition: DataSplit) -> Table:
    distances, sizes = d.ruler.between(round.pooled), round.pooled[-1].sum(axis=-1)
    chains = round.info.chains()
    rows = [
        TableRow(
            str(m),
            (" → ".join(map(partition.client, chain)), f"{sizes[m]:,}", f"{distances[0, m]:.3f}",
             f"{distances[-1, m]:.3f}"),
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
    """Paths of the models in the first diffusion rounds: an arrow is a model on its way, a square one that stays."""
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
