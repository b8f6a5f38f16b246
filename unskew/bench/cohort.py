"""Peak memory of a round by the number of clients in it: where replies are folded, it should hardly grow.

Each round runs in a process of its own, forked from one that has everything loaded; what counts is the largest sum of
PSS (shared pages divided among those who map them) over that process and its workers, read every few milliseconds.
"""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.fedfa import FedFA
from unskew.bench.soak import memory
from unskew.bench.toolkit import BenchRow, RandomClients, Say, Workload, in_a_process, random_clients
from unskew.keys import Key
from unskew.local.executor import Executor
from unskew.local.sequential import Sequential
from unskew.local.stacked.executor import Stacked
from unskew.local.trainer import LocalTrainer
from unskew.local.workers.executor import Workers
from unskew.local.workers.pool import Pool
from unskew.local.workers.recipe import WorkerSetup
from unskew.machine import cores
from unskew.protocol import SgdConfig
from unskew.runtime.in_process import Simulator

EVERY_S = 0.005
LOCAL = SgdConfig(0.01, batch_size=10, local_epochs=1)
METHODS: dict[str, Callable[[], Any]] = {"FedAvg": lambda: FedAvg(local=LOCAL), "FedFA": lambda: FedFA(local=LOCAL)}
"""A method that folds replies, and one that needs all of them at once."""
PAIRS = (("FedAvg", "sequential"), ("FedAvg", "workers"), ("FedAvg", "stacked"), ("FedFA", "sequential"))


@dataclass(frozen=True)
class CohortCase:
    """One round to measure."""

    method: str
    executor: str
    cohort: int

    def __str__(self) -> str:
        return f"{self.method}/{self.executor}/m{self.cohort}"


def measure(cohorts: Sequence[int], width: int = 2800, say: Say = print) -> list[BenchRow]:
    """Measure, as rows of the benchmark's JSON, the peak memory of one round of each case.

    Args:
        cohorts: Numbers of clients in a round, ascending; `ratio` is against the first.
        width: Units of both hidden layers of the network; 2800 makes ten million parameters.
        say: Called with a line for each case.
    """
    torch.set_num_threads(1)
    workload = Workload("fcn", (1, 28, 28), 10, (("hidden", (width, width)),))
    clients = random_clients(workload, max(cohorts), Key(0))
    rows: list[BenchRow] = []
    for method, executor in PAIRS:
        cases = [CohortCase(method, executor, cohort) for cohort in cohorts]
        first = 0.0
        for case in cases:
            peak = in_a_process(partial(_peak, case, clients), f"a round of {case.cohort} clients with {case.method}")
            first = first or peak
            say(f"{case}: {peak:,.0f} MB, {peak / first:.2f} times {cases[0]}")
            row = {"case": str(case), "what": "peak_pss", "value": peak, "unit": "MB"}
            rows.append({**row, "ratio": peak / first, "against": str(cases[0])})
    return rows


def _peak(case: CohortCase, clients: RandomClients) -> float:
    """Megabytes of one round in this process."""
    algorithm = METHODS[case.method]()
    trainer = LocalTrainer(clients.task, clients.data)
    pool = None
    if case.executor == "workers":
        setup = WorkerSetup(algorithm, trainer, clients.population.me)
        pool = Pool(lambda _: setup, cores(), clients.model_bytes)
        executor: Executor = Workers(pool, 0, algorithm)
    else:
        executor = Stacked(trainer) if case.executor == "stacked" else Sequential(trainer)
    sim = Simulator(algorithm, clients.population, executor, clients_per_round=case.cohort)
    pids = [os.getpid(), *(w.process.pid for w in (pool.workers if pool else ()))]
    peak, ended = [0.0], threading.Event()

    def watch() -> None:
        while True:
            peak[0] = max(peak[0], memory(pids)[1])
            if ended.wait(EVERY_S):
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        sim.round(sim.start(), 1)
    finally:
        ended.set()
        watcher.join()
        if pool is not None:
            pool.close()
    return peak[0]
