"""FedDif's rounds: how near to IID the data behind its models came, at what price in bandwidth, and who trained them.

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
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from unskew.errors import RunError
from unskew.info import DiffusionRound
from unskew.record.reader import DataSplit, Record, info_of, method_tables
from unskew.report import charts, stats, tables
from unskew.report.section import Chart, Section, SectionKind, Table, TableRow, table
from unskew.server.distance import DistanceMetric, iid_distance

MOST_SHOWN = 3  # methods whose paths are listed
MOST_MODELS = 16  # rows of the table of paths
MHZ = 1e6

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

METRICS: dict[DistanceMetric, str] = {
    "l2": "L2", "l1": "L1", "tv": "total-variation", "kl": "Kullback-Leibler", "js": "Jensen-Shannon",
    "w1": "1-Wasserstein",
}  # fmt: skip


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


Ruler = Callable[[Counts], Floats]
"""W(psi, u) of the class shares of some examples, (..., classes); NaN where there are none."""


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
    known = {"uniform": np.full(classes, 1 / classes), "pooled": histograms.sum(axis=0) / histograms.sum()}
    if metric not in METRICS:
        raise RunError(f"{where}: metric must be one of {', '.join(METRICS)}, got {metric!r}; restore the file")
    if target not in ("uniform", "pooled") and (not isinstance(target, list) or len(target) != classes):
        raise RunError(
            f"{where}: target must be uniform, pooled or {classes} class shares, got {target!r:.60}; restore the file"
        )
    aim = torch.from_numpy(known[target] if isinstance(target, str) else np.array(target, dtype=np.float64))

    def between(pooled: Counts) -> Floats:
        with np.errstate(invalid="ignore"):
            shares = torch.from_numpy(pooled / pooled.sum(axis=-1, keepdims=True))
        return np.asarray(iid_distance(shares, aim, metric).numpy())

    return between


# ---------------------------------------------------------------- one method over a run
@dataclass(frozen=True, eq=False)
class Diffusion:
    """A FedDif method over a run.

    Attributes:
        measure: The distance, in words.
        distance: Mean IID distance of the models by diffusion round.
        efficiency: Mean diffusion efficiency by diffusion round, 1/(Hz s), over the rounds that got that far.
        rounds: Number of communication rounds, over all seeds.
        hops: Mean number of diffusion rounds per communication round, by seed.
        moved: Share of the models that move in a diffusion round.
        stayed: Share of the models that never leave their first trainer in a round.
        paths: The paths of the models in the first round in which one moved.
    """

    method: str
    measure: str
    distance: stats.Curve
    efficiency: stats.Curve | None
    rounds: int
    hops: stats.Spread
    moved: float
    stayed: float
    paths: Table | None


def diffusion(record: Record, method: str) -> Diffusion | None:
    """Read a method's info; None if there is no round of a seed whose partition is known.

    Raises:
        RunError: If the info contradicts itself.
    """
    options = method_tables(record).get(method, {})
    where = str(record.folder / "config.toml")
    seeds = tables.counted_seeds(record, method)
    held = {s: np.array(p.label_counts, dtype=np.int64) for s, p in record.partitions.items() if s in seeds}
    rulers = {s: ruler(options, h, where) for s, h in held.items()}
    rounds: dict[int, list[tuple[Floats, DiffusionRound]]] = {}
    paths = None
    for seed, at, round in info_of(record, method, DiffusionRound):
        if seed not in held:
            continue
        pooled = learned(round, held[seed])
        distances = rulers[seed](pooled)
        rounds.setdefault(seed, []).append((_over_models(distances), round))
        if paths is None and any(hop.moves for hop in round.hops):
            title = f"Paths of the models of {method}, seed {seed}, round {at}"
            paths = _paths(title, round, distances, pooled[-1].sum(axis=-1), record.partitions[seed])
    if not rounds:
        return None
    every = [round for of in rounds.values() for _, round in of]
    chains = [chain for round in every for chain in round.chains()]
    moves = [len(hop.moves) / len(round.starts) for round in every for hop in round.hops for _ in round.starts]
    goal = target if isinstance(target := options.get("target", "uniform"), str) else "given"
    return Diffusion(
        method,
        f"{METRICS[options.get('metric', 'l2')]} distance from {goal} class shares",
        _level([[distance for distance, _ in of] for of in rounds.values()]),
        _efficiency([[[hop.efficiency for hop in round.hops] for _, round in of] for of in rounds.values()]),
        len(every),
        stats.Spread(tuple(statistics.fmean(len(round.hops) for _, round in of) for of in rounds.values())),
        statistics.fmean(moves) if moves else 0.0,
        statistics.fmean(len(chain) == 1 for chain in chains) if chains else 0.0,
        paths,
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


def _efficiency(seeds: Sequence[Sequence[Sequence[float]]]) -> stats.Curve | None:
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
    diffusions = [d for m in methods if (d := diffusion(record, m)) is not None]
    if not diffusions:
        return None
    near = (f"{d.method}: from {d.distance.mean[0]:.3f} to {d.distance.mean[-1]:.3f}" for d in diffusions)
    lead = f"The models’ mean IID distance. {'; '.join(near)}."
    paths = [d.paths for d in diffusions[:MOST_SHOWN] if d.paths is not None]
    return Section("Diffusion", lead, tuple(curve_charts(diffusions, marks)), (_summary(diffusions, marks), *paths))


def curve_charts(diffusions: Sequence[Diffusion], marks: Mapping[str, str]) -> list[Chart]:
    """IID distance, and where it was recorded efficiency, by diffusion round."""
    distance = {d.method: d.distance for d in diffusions}
    efficiency = {d.method: d.efficiency for d in diffusions if d.efficiency is not None}
    words = list(dict.fromkeys(d.measure for d in diffusions))
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
                f"{d.rounds:,}", tables.quantity(d.hops.mean, d.hops.std),
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


def _paths(title: str, round: DiffusionRound, distances: Floats, sizes: Counts, partition: DataSplit) -> Table:
    chains = round.chains()
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
    return table(title, head, rows, some, [1])


KIND = SectionKind("FedDif's models on their way through the clients", (DiffusionRound,), section)
