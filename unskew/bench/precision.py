"""A client's local epoch in bfloat16 beside the same in float32, in CPU time of one thread.

The two take turns, in another order every time.  A ratio is that of two epochs of one turn; stated are the median over
turns, their middle half, and the ratio of the minima.  "float32 again" has a ratio of 1 by construction.
"""

import statistics
import time
from functools import partial

from unskew.bench.toolkit import BenchRow, Say, Workload, random_clients, require_known, take_turns, threads
from unskew.decide.forecast.measure import timed
from unskew.keys import Key
from unskew.local.trainer import LocalTrainer
from unskew.protocol import Sgd, SgdConfig

# The reproductions' networks, with their batches: what half precision brings depends on how wide they are.
CASES = {
    "mlp/b32": (Workload("mlp", (1, 28, 28), 512), 32),
    "fcn/b50": (Workload("fcn", (1, 28, 28), 500), 50),
    "cnn_cifar10/b128": (Workload("cnn_cifar10", (3, 32, 32), 512), 128),
    "feddif_cnn/b16": (Workload("feddif_cnn", (3, 32, 32), 64), 16),
    "cnn_4/b64": (Workload("cnn_4", (3, 32, 32), 128), 64),
    "resnet18/b32": (Workload("resnet18", (3, 32, 32), 32), 32),
}


def measure(turns: int = 20, only: tuple[str, ...] = (), say: Say = print) -> list[BenchRow]:
    """Measure all cases, as rows of the benchmark's JSON.

    Args:
        turns: Number of epochs of each contender.
        only: Names of the networks that are measured; all by default.
        say: Called with a line for each case.

    Raises:
        ConfigError: If a network in `only` is not measured.
    """
    require_known(only, [workload.model for workload, _ in CASES.values()], "bench precision")
    rows: list[BenchRow] = []
    with threads(1):
        for name, (workload, batch) in CASES.items():
            if only and workload.model not in only:
                continue
            seconds = _seconds(workload, batch, turns)
            rows += [_row(name, contender, workload.samples, s, seconds["float32"]) for contender, s in seconds.items()]
            say(
                "  ".join(f"{c} {workload.samples / statistics.median(s):,.0f}/s" for c, s in seconds.items())
                + f"  ({name})"
            )
    return rows


def _seconds(workload: Workload, batch: int, turns: int) -> dict[str, list[float]]:
    key = Key(0) / workload.model
    clients = random_clients(workload, 1, key)
    trainer, me = LocalTrainer(clients.task, clients.data), clients.population.me(0, 1, key)
    config = SgdConfig(0.01, batch_size=batch)
    jobs = {
        "float32": Sgd(clients.population.initial, config),
        "bfloat16": Sgd(clients.population.initial, SgdConfig(0.01, batch_size=batch, precision="bfloat16")),
        "float32 again": Sgd(clients.population.initial, config),
    }
    epochs = {name: partial(trainer.fit, me, job, key) for name, job in jobs.items()}
    return take_turns({n: partial(timed, once, time.thread_time) for n, once in epochs.items()}, turns, shuffled=True)


def _row(case: str, contender: str, samples: int, seconds: list[float], base: list[float]) -> BenchRow:
    ratios = sorted(s / b for s, b in zip(seconds, base, strict=True))
    return {
        "case": case,
        "what": "cpu_seconds_per_epoch",
        "contender": contender,
        "value": statistics.median(seconds),
        "unit": "s",
        "samples_per_second": samples / statistics.median(seconds),
        "ratio": statistics.median(ratios),
        "against": "float32",
        "low": ratios[len(ratios) // 4],
        "high": ratios[-1 - len(ratios) // 4],
        "ratio_of_minima": min(seconds) / min(base),
        "turns": len(ratios),
    }
