"""Speed of FedDif's auction: weights and matching of a diffusion round against a plain double loop in this process.

The plain loop follows the definition, one model and one client at a time, with NumPy for the sums over classes.
Both compute the same table from the same histograms, and it is checked that they agree.  The loop runs once, the
fast version several times, and ratios are to the fastest.  The last row is a whole auction-only simulation: FedDif's
own plan over the simulator's messages under preset p000, with clients whose training is free.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from unskew.algorithms.feddif import FedDif
from unskew.bench.toolkit import BenchRow, Say, seconds_row
from unskew.decide.forecast.dry_run import untrained_rounds
from unskew.decide.forecast.measure import timed
from unskew.keys import Key
from unskew.server.auction import edge_weights, feasible, match, valuations
from unskew.server.distance import DistanceMetric, shares
from unskew.world.wireless import P000

BITS, GAMMA_MIN = 40e6, 1.0
AT_ONCE = 200
"""Clients and models under the metrics that have no closed form: they look at every class of every pair."""


def labels(clients: int, classes: int, alpha: float, examples: int, key: Key) -> Tensor:
    """Histograms of clients whose share of each class is Dirichlet(alpha), (clients, classes) int64."""
    g = key.numpy()
    parts = g.dirichlet(np.full(clients, alpha), size=classes)
    drawn = np.stack([g.multinomial(examples * clients // classes, p) for p in parts], axis=1)
    return torch.from_numpy(drawn)


def measure(n: int = 1000, classes: int = 100, repeats: int = 5, rounds: int = 300, say: Say = print) -> list[BenchRow]:
    """Measure the auction, as rows of the benchmark's JSON.

    Args:
        n: Number of clients, and of models.
        classes: Classes of the task.
        repeats: Number of measurements of everything except the plain loop and the simulation, which run once.
        rounds: Number of communication rounds of the simulation.
        say: Called with a line for each measurement.
    """
    key = Key(0) / "bench" / "auction"
    histograms = labels(n, classes, 0.3, 500, key / "labels")
    psi, sizes = shares(histograms.double()), histograms.sum(1).double()
    target = torch.full((classes,), 1.0 / classes, dtype=torch.float64)
    gamma = 8.0 * torch.rand((n, n), generator=(key / "gamma").generator(), dtype=torch.float64)
    blocked = torch.eye(n, dtype=torch.bool)

    def weights_of_edges() -> Tensor:
        values = valuations(psi, sizes, histograms, target)
        return edge_weights(values, gamma, BITS, blocked | ~feasible(gamma, GAMMA_MIN, "outage"))

    began = time.perf_counter()
    expected = naive(psi.numpy(), sizes.numpy(), histograms.numpy(), target.numpy())
    loop = time.perf_counter() - began
    _, table = _timed(lambda: valuations(psi, sizes, histograms, target), 1)
    worst = float(np.abs(table.numpy() - expected).max())
    if worst > 1e-7:
        raise AssertionError(f"the vectorised valuations differ from the plain loop by {worst:g}")
    case = f"N{n}/M{n}/c{classes}"
    values_s, _ = _timed(lambda: valuations(psi, sizes, histograms, target), repeats)
    weights_s, weights = _timed(weights_of_edges, repeats)
    match_s, pairs = _timed(lambda: match(weights), repeats)
    round_s = [w + m for w, m in zip(weights_s, match_s, strict=True)]
    rows = [
        seconds_row(case, "naive_valuations", [loop], ratio=1.0, against="naive"),
        seconds_row(case, "l2_valuations", values_s, ratio=loop / min(values_s), against="naive"),
        seconds_row(case, "l2_weights", weights_s, ratio=loop / min(weights_s), against="naive"),
        seconds_row(case, "matching", match_s),
        seconds_row(case, "diffusion_round", round_s),
    ]
    say(
        f"{case}: valuations {loop / min(values_s):,.0f} times the loop, round {min(round_s):.3f} s, {len(pairs)} pairs"
    )
    few = slice(0, AT_ONCE)
    for metric in get_args(DistanceMetric):
        other, _ = _timed(partial(valuations, psi[few], sizes[few], histograms[few], target, metric), repeats)
        rows.append(seconds_row(f"N{AT_ONCE}/M{AT_ONCE}/c{classes}", f"{metric}_valuations", other))
    if rounds:
        seconds, iterations = simulate(rounds)
        say(f"{rounds} communication rounds, 15 models among 100 clients: {seconds:.1f} s, {iterations:.2f} iterations")
        simulated = seconds_row(f"N100/M15/c100/{rounds} rounds", "simulation", [seconds])
        rows.append({**simulated, "iterations": iterations})
    return rows


Array = np.ndarray[Any, Any]


def naive(psi: Array, sizes: Array, histograms: Array, target: Array) -> Array:
    """W(psi_m) - W(psi_m with client n's data), one pair after the other."""
    values = np.empty((len(psi), len(histograms)))
    for m in range(len(psi)):
        before = np.linalg.norm(psi[m] - target)
        for n in range(len(histograms)):
            candidate = (sizes[m] * psi[m] + histograms[n]) / (sizes[m] + histograms[n].sum())
            values[m, n] = before - np.linalg.norm(candidate - target)
    return values


# ---------------------------------------------------------------- a simulation without training
def simulate(rounds: int, epsilon: float = 0.02) -> tuple[float, float]:
    """(seconds, training iterations per round) of FedDif as in P000, on labels like CIFAR-100's at alpha .3."""
    histograms = labels(100, 100, 0.3, 500, Key(0) / "bench" / "simulation")
    algorithm = FedDif(preset="p000", epsilon=epsilon, drift=None)
    began = time.perf_counter()
    iterations = sum(f.iterations or 0 for f, _ in untrained_rounds(algorithm, histograms, rounds, channel=P000))
    return time.perf_counter() - began, iterations / rounds


def _timed(work: Callable[[], Any], repeats: int) -> tuple[list[float], Any]:
    """(seconds of each call, value returned by the last)."""
    values: list[Any] = []
    seconds = [timed(lambda: values.append(work())) for _ in range(repeats)]
    return seconds, values[-1]
