"""A client's local epoch in bfloat16 beside the same in float32, in CPU time of one thread.

The two take turns, in another order every time.  "float32 again" has a ratio of 1 by construction.
"""

import time
from functools import partial

from unskew.bench.toolkit import (
    BenchRow,
    Say,
    Workload,
    paired_rows,
    random_clients,
    require_known,
    take_turns,
    threads,
)
from unskew.forecast.measure import timed
from unskew.keys import Key
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


def measure(repeats: int = 20, only: tuple[str, ...] = (), say: Say = print) -> list[BenchRow]:
    """Measure all cases, as rows of the benchmark's JSON.

    Args:
        repeats: Number of epochs of each contender.
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
            by = paired_rows(name, _seconds(workload, batch, repeats), "float32")
            rows += [{**row, "samples_per_second": workload.samples / row["value"]} for row in by.values()]
            say("  ".join(f"{c} {workload.samples / row['value']:,.0f}/s" for c, row in by.items()) + f"  ({name})")
    return rows


def _seconds(workload: Workload, batch: int, repeats: int) -> dict[str, list[float]]:
    key = Key(0) / workload.model
    clients = random_clients(workload, 1, key)
    trainer, me = clients.trainer(), clients.population.me(0, 1, key)
    single, half = SgdConfig(0.01, batch_size=batch), SgdConfig(0.01, batch_size=batch, precision="bfloat16")
    contenders = {
        name: partial(timed, partial(trainer.fit, me, Sgd(clients.population.initial, config), key), time.thread_time)
        for name, config in {"float32": single, "bfloat16": half, "float32 again": single}.items()
    }
    return take_turns(contenders, repeats, shuffled=True)
