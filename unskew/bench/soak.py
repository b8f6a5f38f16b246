"""Memory over many rounds, which should stay flat: one method, RSS and PSS of the whole process tree every so often.

RSS counts a page once for every process that maps it; PSS divides it among them, so PSS is the memory that the run
really takes.
"""

import os
from pathlib import Path

import torch

from unskew.algorithms.scaffold import SCAFFOLD
from unskew.bench.toolkit import BenchRow, Say, Workload, random_clients
from unskew.errors import ConfigError
from unskew.keys import Key
from unskew.local.trainer import LocalTrainer
from unskew.local.workers.executor import Workers
from unskew.local.workers.pool import Pool
from unskew.local.workers.recipe import WorkerSetup
from unskew.machine import cores
from unskew.protocol import SgdConfig
from unskew.runtime.in_process import Simulator


def memory(pids: list[int]) -> tuple[float, float]:
    """(RSS, PSS) of these processes, MB."""
    rss = pss = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in ("Rss", "Pss"):
                kb = int(rest.split()[0])
                rss, pss = rss + kb * (name == "Rss"), pss + kb * (name == "Pss")
    return rss / 1e3, pss / 1e3


def measure(rounds: int = 500, every: int = 50, say: Say = print) -> list[BenchRow]:
    """Measure, as rows of the benchmark's JSON, memory after each `every` rounds, and its growth over the second half.

    SCAFFOLD over 100 clients, 20 per round, on a 784-200-200-10 network: client memory is written in every round.

    Raises:
        ConfigError: If there would be fewer than four readings, two in each half.
    """
    if every < 1 or rounds // every < 4:
        raise ConfigError(
            f"growth needs four readings or more, got {rounds} rounds with one every {every}; lower --every to "
            f"{max(rounds // 4, 1)} or raise --rounds to {4 * max(every, 1)}"
        )
    world = random_clients(Workload("fcn", (1, 28, 28), 100), 100, Key(0))
    population = world.population
    algorithm = SCAFFOLD(local=SgdConfig(0.01, batch_size=50, local_epochs=1))
    torch.set_num_threads(1)

    def open_setup(_: int) -> WorkerSetup:
        return WorkerSetup(algorithm, LocalTrainer(world.task, world.data), population.me)

    pool = Pool(open_setup, cores(), world.model_bytes)
    readings: list[BenchRow] = []
    try:
        sim = Simulator(algorithm, population, Workers(pool, 0, algorithm), clients_per_round=20)
        state = sim.start()
        pids = [os.getpid(), *(w.process.pid for w in pool.workers)]
        for t in range(1, rounds + 1):
            state, _ = sim.round(state, t)
            if t % every == 0:
                rss, pss = memory(pids)
                say(f"round {t:4d}: RSS {rss:7.1f} MB, PSS {pss:7.1f} MB")
                for what, value in (("rss", rss), ("pss", pss)):
                    readings.append({"case": f"soak/r{t}", "what": what, "value": value, "unit": "MB"})
    finally:
        pool.close()
    half = [r["value"] for r in readings if r["what"] == "pss"][len(readings) // 4 :]
    growth = half[-1] / half[0]
    readings.append(
        {
            "case": "soak",
            "what": "pss_growth_second_half",
            "value": growth,
            "unit": "1",
            "ratio": growth,
            "against": "half",
        }
    )
    return readings
