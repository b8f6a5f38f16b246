"""Speed at which a prior learns embeddings and makes images: all clusters in one batch against one at a time.

Ten clusters of scikit-learn's digits, one of each digit, as ten clients with one label each would have them.  Batched
and one at a time take turns in one process on one thread, in CPU time, so that other load on the machine counts for
little; both get the same key, and their results are checked to be equal.  Ratios are to the best of one at a time.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from unskew import priors
from unskew.bench.toolkit import BenchRow, Say, take_turns, threads
from unskew.data.images import as_tensor
from unskew.data.sources import load
from unskew.decide.forecast.measure import timed
from unskew.errors import DivergedError
from unskew.keys import Key
from unskew.priors.prior import Inversion, Prior, invert

BAR = 1.8
"""Least number of times that a batch of ten must be faster per embedding."""


def measure(
    source: str = priors.BUILT_IN,
    steps: int = 20,
    images: int = 8,
    repeats: int = 5,
    digits: int = 10,
    say: Say = print,
) -> list[BenchRow]:
    """Measure a prior, as rows of the benchmark's JSON.

    Args:
        source: Name of the prior, as `unskew.priors.load` takes it.
        steps: Steps of the inversions that are timed; `seconds_per_embedding` is for the default number of steps.
        images: Number of images generated from each embedding.
        repeats: Number of turns of each contender, after one to warm up.
        digits: Number of clusters, one of each digit from 0 on.
        say: Called with a line for each measurement.

    Raises:
        DivergedError: If batched and one at a time do not find the same embeddings.
    """
    prior = priors.load(source)
    key = Key(0) / "bench" / "prior"
    clusters = [prior.encode(x) for x in _digits(digits)]
    config = Inversion(steps=steps)
    with threads(1):
        # A few steps only: rounding grows from step to step.
        few = Inversion(steps=5)
        together = invert(prior, clusters, key, config=few).embeddings
        apart = torch.cat([invert(prior, [c], key, config=few).embeddings for c in clusters])
        if not torch.allclose(together, apart, rtol=1e-2, atol=1e-2):
            raise DivergedError(
                f"{len(clusters)} clusters in one batch found embeddings {float((together - apart).abs().max()):.3g} "
                "from those that they find one at a time; the prior mixes up the entries of a batch"
            )
        inversion = _turns(
            {
                "batched": lambda: invert(prior, clusters, key, config=config).embeddings,
                "one at a time": lambda: torch.cat(
                    [invert(prior, [c], key, config=config).embeddings for c in clusters]
                ),
            },
            repeats,
        )
        sampling = _turns(
            {
                "batched": lambda: prior.sample(together, images, key),
                "one at a time": lambda: torch.cat(
                    [prior.sample(v[None], 1, key / i) for v in together for i in range(images)]
                ),
            },
            repeats,
        )
    full = Inversion().steps / steps / len(clusters)
    count = images * len(clusters)
    rows = _rows(prior, "seconds_per_embedding", "s", {k: [s * full for s in v] for k, v in inversion.items()}, BAR)
    rows += _rows(prior, "images_per_second", "1/s", {k: [count / s for s in v] for k, v in sampling.items()}, None)
    for row in rows:
        say(f"{row['what']} {row['contender']}: {row['value']:.4g} {row['unit']}, {row['ratio']:.2f} times")
    return rows


def _digits(count: int) -> list[Tensor]:
    """Forty images of each digit, (40, 1, 8, 8) in [0, 1]."""
    data = load("digits")
    x = as_tensor(data.x_train)
    unit = (x - x.min()) / (x.max() - x.min())
    return [unit[data.y_train == digit][:40] for digit in range(count)]


def _turns(contenders: dict[str, Callable[[], Tensor]], repeats: int) -> dict[str, list[float]]:
    """CPU seconds of each contender in each turn."""
    return take_turns({name: partial(timed, once, time.thread_time) for name, once in contenders.items()}, repeats)


def _rows(prior: Prior, what: str, unit: str, measured: dict[str, list[float]], bar: float | None) -> list[BenchRow]:
    """A row per contender; its ratio is its speed relative to one at a time."""
    best = (lambda v: 1 / min(v)) if unit == "s" else max
    base = measured["one at a time"]
    rows = []
    for name, values in measured.items():
        ratios = sorted((b / v if unit == "s" else v / b) for v, b in zip(values, base, strict=True))
        row = {
            "case": prior.name,
            "what": what,
            "contender": name,
            "value": min(values) if unit == "s" else max(values),
            "unit": unit,
            "ratio": best(values) / best(base),
            "against": "one at a time",
            "low": ratios[0],
            "high": ratios[-1],
            "ratio_of_medians": statistics.median(ratios),
            "turns": len(values),
        }
        rows.append(row if bar is None or name != "batched" else {**row, "bar": bar})
    return rows
