"""FedDif's rounds: IID distance of its models, the bandwidth spent, and the models' paths.

S. Ahn et al., "Communication-Efficient Diffusion Strategy for Performance Improvement of Federated Learning with
Non-IID Data".

Notation   psi_k  degree of learning (DoL) of a model after k diffusion rounds: class shares of what it was trained on
           u      the distribution that counts as IID
           W      distance between two distributions; the L2 norm of their difference unless the run says otherwise

The run records which client trained which model (its info) and each client's examples (partition.json).  The DoL is
computed from the examples along a model's chain of clients, which equals the clients' recursion by Lemma 2.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import numpy.typing as npt
import torch

from unskew import schema
from unskew.info import DiffusionRound
from unskew.keys import Key
from unskew.record.reader import Record, configured, method_tables
from unskew.report import charts, stats, tables
from unskew.report.section import Chart, Section, SectionKind, Table, table
from unskew.server.distance import iid_distance
from unskew.world.channel import Radio

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


def ruler(options: Mapping[str, Any], histograms: Counts) -> tuple[str, Callable[[Counts], Floats]]:
    """The distance in a method's table of config.toml, in words and as a function; by default L2 to uniform.

    Args:
        options: The method's table.
        histograms: Class counts of all clients, (clients, classes).

    Returns:
        The function gives W(psi, u) for class counts, (..., classes); NaN without examples.
    """
    metric, target = options.get("metric", "l2"), options.get("target", "uniform")
    even = {"uniform": np.ones(histograms.shape[1]), "pooled": histograms.sum(axis=0)}
    given = np.array(target, dtype=np.float64) if isinstance(target, list) else even[target]

    def between(pooled: Counts) -> Floats:
        with np.errstate(invalid="ignore"):
            psi = torch.from_numpy(pooled / pooled.sum(axis=-1, keepdims=True))
        return np.asarray(iid_distance(psi, torch.from_numpy(given / given.sum()), metric).numpy())

    return f"{metric.upper()} distance from {'given' if isinstance(target, list) else target} class shares", between


# ---------------------------------------------------------------- one method over a run
@dataclass(frozen=True, eq=False)
class Drawn:
    """A communication round to draw: `distances` of its models, (hops + 1, models), and `examples` at the end."""

    seed: int
    round: int
    info: DiffusionRound
    distances: Floats
    examples: Counts


@dataclass(frozen=True, eq=False)
class Diffusion:
    """A FedDif method over a run.

    Attributes:
        words: Name of the distance, for an axis.
        distance: Mean IID distance of the models by diffusion round.
        efficiency: Mean diffusion efficiency by diffusion round, 1/(Hz s), over the rounds that got that far.
        rounds: Number of communication rounds, over all seeds.
        hops: Mean number of diffusion rounds per communication round, by seed.
        moved: Share of the models that move in a diffusion round.
        stayed: Share of the models that never leave their first trainer in a round.
        shown: The first round in which a model moved.
    """

    method: str
    words: str
    distance: stats.Curve
    efficiency: stats.Curve | None
    rounds: int
    hops: stats.Spread
    moved: float
    stayed: float
    shown: Drawn | None


def diffusion(record: Record, method: str) -> Diffusion | None:
    """Read a method's info; None if there is no round of a seed whose partition is known.

    Raises:
        RunError: If the info contradicts itself.
    """
    every = {s: r for s, r in tables.reported(record, method, DiffusionRound).items() if s in record.partitions}
    if not every:
        return None
    options = method_tables(record).get(method, {})
    held = {seed: np.array(record.partitions[seed].label_counts, dtype=np.int64) for seed in every}
    rulers = {seed: ruler(options, counts) for seed, counts in held.items()}
    drawn = []
    for seed, rounds in every.items():
        for at, info in rounds.items():
            pools = learned(info, held[seed])
            drawn.append(Drawn(seed, at, info, rulers[seed][1](pools), pools[-1].sum(axis=-1)))
    distances = [[[_mean(row) for row in d.distances] for d in drawn if d.seed == seed] for seed in every]
    gained = [[[hop.efficiency for hop in d.info.hops] for d in drawn if d.seed == seed] for seed in every]
    hops = [hop for d in drawn for hop in d.info.hops]
    places = sum(len(d.info.starts) * len(d.info.hops) for d in drawn)
    chains = [chain for d in drawn for chain in d.info.chains()]
    return Diffusion(
        method=method,
        words=next(iter(rulers.values()))[0],
        distance=_by_hop(distances, 0, lasting=True),
        efficiency=_by_hop(gained, 1, lasting=False) if hops else None,
        rounds=len(drawn),
        hops=stats.Spread(tuple(statistics.fmean(len(row) for row in rows) for rows in gained)),
        moved=sum(len(hop.moves) for hop in hops) / places if places else 0.0,
        stayed=sum(len(chain) == 1 for chain in chains) / len(chains) if chains else 0.0,
        shown=next((d for d in drawn if any(hop.moves for hop in d.info.hops)), None),
    )


def _mean(values: Sequence[float] | Floats) -> float:
    """The mean of those that are numbers; NaN if none is."""
    known = [float(v) for v in values if not math.isnan(v)]
    return statistics.fmean(known) if known else math.nan


def _by_hop(seeds: Sequence[Sequence[Sequence[float]]], first: int, lasting: bool) -> stats.Curve:
    """Mean over each seed's rounds by diffusion round; a value that lasts stays until the longest round has ended."""
    most = max(len(row) for rows in seeds for row in rows)
    ends = [[[*row, *([row[-1]] * (most - len(row)) if lasting else ())] for row in rows] for rows in seeds]
    means = [[_mean([row[k] for row in rows if k < len(row)]) for rows in ends] for k in range(most)]
    columns = [[v for v in column if not math.isnan(v)] or [math.nan] for column in means]
    return stats.curve(range(first, first + most), columns, len(seeds))


# ---------------------------------------------------------------- the section
def section(record: Record, methods: Sequence[str], marks: Mapping[str, str]) -> Section | None:
    """FedDif's section of a report; None if no partition is known.

    Raises:
        RunError: If the info contradicts itself.
    """
    every = [d for m in methods if (d := diffusion(record, m)) is not None]
    if not every:
        return None
    shown = [(d.method, d.shown) for d in every[:MOST_SHOWN] if d.shown is not None]
    rows = [
        (d.method, f"{d.rounds:,}", tables.quantity(d.hops.mean, d.hops.std), f"{100 * d.moved:.0f}",
         f"{100 * d.stayed:.0f}", f"{d.distance.mean[0]:.3f}", f"{d.distance.mean[-1]:.3f}")
        for d in every
    ]  # fmt: skip
    head = ["method", "rounds | all seeds", "diffusion rounds | per round", "models that move | % of a hop",
            "models that stay | % of a round", "IID distance | first trainer",
            "IID distance | end of chain"]  # fmt: skip
    words, hop = {d.words for d in every}, "diffusion round"
    y = words.pop() if len(words) == 1 else "IID distance"
    caption = "Mean over models and communication rounds."
    distance = {d.method: d.distance for d in every}
    drawn = [charts.lines("IID distance by diffusion round", caption, distance, marks, hop, y)]
    if efficiency := {d.method: d.efficiency for d in every if d.efficiency is not None}:
        title, y = "Diffusion efficiency by diffusion round", "efficiency, 1/(MHz s)"
        caption = "How much nearer to IID the winners’ bids promise to bring their models, for each MHz and second."
        drawn.append(charts.lines(title, caption, efficiency, marks, hop, y, MHZ, log=True))
    return Section(
        "Diffusion",
        "",
        (*drawn, *(cell_chart(record, *of) for of in shown)),
        (table("Diffusion in numbers", head, rows), *(_paths(record, *of) for of in shown)),
    )


def _paths(record: Record, method: str, drawn: Drawn) -> Table:
    chains, client, ends = drawn.info.chains(), record.partitions[drawn.seed].client, drawn.distances[[0, -1]]
    rows = [
        (str(m), " → ".join(map(client, chain)), f"{drawn.examples[m]:,}", *(f"{w[m]:.3f}" for w in ends))
        for m, chain in enumerate(chains[:MOST_MODELS])
    ]
    some = f"The first {len(rows)} of {len(chains):,} models." if len(rows) < len(chains) else ""
    head = ["model", "clients that trained it | in order", "examples | along the path",
            "IID distance | first trainer", "IID distance | end of path"]  # fmt: skip
    title = f"Paths of the models of {method}, seed {drawn.seed}, round {drawn.round}"
    return table(title, head, rows, some, [1])


# ---------------------------------------------------------------- the cell
def ground(record: Record, drawn: Drawn) -> tuple[Callable[[int], Floats], float | None]:
    """The clients' positions, (clients, 2), by diffusion round from 1, and the radius of the cell, m.

    They come from the run's channel; without one clients stand on a circle, and there is no radius.
    """
    clients = len(record.partitions[drawn.seed].sizes)
    table = configured(record).get("world", {}).get("channel", {})
    if table.get("name") != "radio":
        turn = 2 * math.pi * np.arange(clients) / clients
        circle = np.stack([np.sin(turn), np.cos(turn)], axis=1)
        return lambda hop: circle, None
    radio: Radio = schema.build(Radio, table, "world.channel", str(record.folder / "config.toml"))
    key = Key(drawn.seed) / "channel"
    # The channel counts diffusion rounds from 0, and node 0 is the base station.
    return lambda hop: radio.positions(key, drawn.round, hop - 1, clients + 1)[1:], radio.cell_radius_m


def steps(drawn: Drawn, places: Callable[[int], Floats]) -> list[dict[str, Any]]:
    """Rows of the drawing: the place of each model in each diffusion round, and its next place."""
    holders, rows = list(drawn.info.starts), []
    for k, hop in enumerate(drawn.info.hops[:MOST_PANELS], start=1):
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


def cell_chart(record: Record, method: str, drawn: Drawn) -> Chart:
    """Paths of the models in the first diffusion rounds: an arrow is a move, a square a model that stays."""
    places, radius = ground(record, drawn)
    rows = steps(drawn, places)
    panels = list(dict.fromkeys(str(row["panel"]) for row in rows))
    scale = alt.Scale(domain=[-1.1 * (radius or 1.0), 1.1 * (radius or 1.0)])
    base = alt.Chart(charts.rows(rows)).encode(x=charts.bare("x", scale=scale), y=charts.bare("y", scale=scale))
    models = charts.colours([str(m) for m in range(min(len(drawn.info.starts), MOST_MODELS))])
    tip = [alt.Tooltip(f"{field}:N") for field in ("model", "from", "to")]
    one = base.transform_filter("isValid(datum.model)").encode(color=charts.by_name(models, "model"), tooltip=tip)
    to = {"x": charts.bare("x2", scale=scale), "y": charts.bare("y2", scale=scale)}
    moving, staying = one.transform_filter("datum.moves"), one.transform_filter("!datum.moves")
    device = base.transform_filter("!isValid(datum.model)").mark_point(filled=True, size=12, color=charts.BOUND)
    head = moving.mark_point(shape="triangle", filled=True, size=70, opacity=1)
    layers = (
        device.encode(tooltip=alt.Tooltip("client:N")),
        moving.mark_rule(strokeWidth=1.8).encode(x2=alt.X2("x2:Q"), y2=alt.Y2("y2:Q")),
        head.encode(**to, angle=alt.Angle("turn:Q", scale=None)),
        staying.mark_point(shape="square", size=60, strokeWidth=1.8),
        one.mark_text(dx=9, dy=-8, fontSize=11).encode(**to, text=alt.Text("model:N")),
    )
    words = [
        f"diffusion round {k}: " + ", ".join(f"model {m.model} from client {m.src} to {m.dst}" for m in hop.moves)
        for k, hop in enumerate(drawn.info.hops[:2], start=1)
    ]
    title = f"Where the models of {method} went"
    stand = "Devices stand where the channel had them" if radius else "No radio was modelled: clients stand on a circle"
    caption = f"Seed {drawn.seed}, round {drawn.round}. An arrow is a model, a square one that stays. {stand}."
    picture = charts.faceted(alt.layer(*layers), panels, 3, height=240)
    return Chart(title, caption, picture, f"{title}: {'; '.join(words)}."[:1000], wide=True)


KIND = SectionKind("FedDif's models on their way through the clients", (DiffusionRound,), section)
