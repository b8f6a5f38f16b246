"""Peak memory of a round by the number of clients in it: where replies are folded, it should hardly grow.

Each round runs in a process forked from one that has everything loaded.  Measured is the largest sum of PSS (shared
pages divided among processes) over that process and its workers, read every few milliseconds.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.fedfa import FedFA
from unskew.bench.toolkit import BenchRow, RandomClients, Say, Workload, in_a_process, random_clients
from unskew.keys import Key
from unskew.local.sequential import Sequential
from unskew.local.stacked.executor import Stacked
from unskew.local.workers.executor import Workers
from unskew.protocol import SgdConfig
from unskew.runtime.in_process import Simulator

EVERY_S = 0.005
LOCAL = SgdConfig(0.01, batch_size=10, local_epochs=1)
METHODS: dict[str, Callable[[], Any]] = {"FedAvg": lambda: FedAvg(local=LOCAL), "FedFA": lambda: FedFA(local=LOCAL)}
"""A method that folds replies, and one that needs all of them at once."""
PAIRS = (("FedAvg", "sequential"), ("FedAvg", "workers"), ("FedAvg", "stacked"), ("FedFA", "sequential"))
WIDTH = 2800
"""Units of both hidden layers of the network whose round is measured: ten million parameters."""


def memory(pids: Iterable[int]) -> tuple[float, float]:
    """(RSS, PSS) of these processes, MB."""
    total = {"Rss": 0, "Pss": 0}
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in total:
                total[name] += int(rest.split()[0])
    return total["Rss"] / 1e3, total["Pss"] / 1e3


def measure(cohort: Sequence[int] = (10, 50, 200), width: int = WIDTH, say: Say = print) -> list[BenchRow]:
    """Measure, as rows of the benchmark's JSON, the peak memory of one round of each case.

    Args:
        cohort: Numbers of clients in a round, ascending; `ratio` is against the first.
        width: Units of both hidden layers of the network.
        say: Called with a line for each case.
    """
    torch.set_num_threads(1)
    workload = Workload("fcn", (1, 28, 28), 10, (("hidden", (width, width)),))
    world = random_clients(workload, max(cohort), Key(0))
    rows: list[BenchRow] = []
    for method, executor in PAIRS:
        first, least = f"{method}/{executor}/m{cohort[0]}", 0.0
        for m in cohort:
            case, what = f"{method}/{executor}/m{m}", f"a round of {m} clients with {method}"
            peak = in_a_process(partial(_peak, world, method, executor, m), what)
            least = least or peak
            say(f"{case}: {peak:,.0f} MB, {peak / least:.2f} times {first}")
            row = {"case": case, "what": "peak_pss", "value": peak, "unit": "MB"}
            rows.append({**row, "ratio": peak / least, "against": first})
    return rows


def _peak(world: RandomClients, name: str, executor: str, cohort: int) -> float:
    """Megabytes of one round in this process."""
    method = METHODS[name]()
    with world.workers(method) if executor == "workers" else nullcontext() as pool:
        trainer = world.trainer()
        alone = Stacked(trainer) if executor == "stacked" else Sequential(trainer)
        by = alone if pool is None else Workers(pool, 0, method)
        sim = Simulator(method, world.population, by, clients_per_round=cohort)
        with _watched([os.getpid(), *(w.process.pid for w in (pool.workers if pool else ()))]) as peak:
            sim.round(sim.start(), 1)
    return peak[0]


@contextmanager
def _watched(pids: Sequence[int]) -> Iterator[list[float]]:
    """The largest PSS of these processes, MB, once the block is done."""
    peak, ended = [0.0], threading.Event()

    def watch() -> None:
        while True:
            peak[0] = max(peak[0], memory(pids)[1])
            if ended.wait(EVERY_S):
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()
