"""Whether memory stays flat: many rounds of one method, RSS and PSS of the whole process tree every so often.

RSS counts a page once for every process that maps it; PSS divides it among them, so PSS is what the run really takes.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from unskew import models
from unskew.algorithms.scaffold import SCAFFOLD
from unskew.errors import ConfigError
from unskew.keys import Key
from unskew.local.data import DeviceData
from unskew.local.trainer import LocalTrainer
from unskew.local.workers.executor import Workers
from unskew.local.workers.pool import Pool
from unskew.local.workers.recipe import WorkerSetup
from unskew.machine import cores
from unskew.protocol import SgdConfig
from unskew.runtime.in_process import Population, Simulator
from unskew.task import make_task


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


def soak(rounds: int = 500, every: int = 50, say: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Rows of the benchmark's JSON: memory after each `every` rounds, and its growth over the second half.

    SCAFFOLD over 100 clients, 20 per round, on a 784-200-200-10 network: client memory is written in every round.

    Raises:
        ConfigError: If there would be fewer than four readings, two in each half.
    """
    if every < 1 or rounds // every < 4:
        raise ConfigError(
            f"growth is told from four readings or more, got {rounds} rounds with one every {every}; lower --every to "
            f"{max(rounds // 4, 1)} or raise --rounds to {4 * max(every, 1)}"
        )
    clients, n, shape = 100, 100, (1, 28, 28)
    x = torch.randn(clients * n, *shape, generator=Key(0).generator())
    y = torch.randint(10, (clients * n,), generator=Key(1).generator())
    task = make_task(lambda: models.build("fcn", shape, 10), 10)
    rows = tuple(torch.split(torch.arange(clients * n), n))
    histograms = torch.stack([torch.bincount(y[r], minlength=10) for r in rows])
    device_data = DeviceData(x, y, rows, rows)
    population = Population(histograms, task.layout, task.init(Key(0)), task.init)
    algorithm = SCAFFOLD(local=SgdConfig(0.01, batch_size=50, local_epochs=1))
    size = sum(t.numel() * 4 for t in population.initial.values())
    torch.set_num_threads(1)
    pool = Pool(lambda _: WorkerSetup(algorithm, LocalTrainer(task, device_data), population.me), cores(), size)
    found: list[dict[str, Any]] = []
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
                    found.append({"case": f"soak/r{t}", "what": what, "value": value, "unit": "MB"})
    finally:
        pool.close()
    half = [r["value"] for r in found if r["what"] == "pss"][len(found) // 4 :]
    growth = half[-1] / half[0]
    found.append(
        {
            "case": "soak",
            "what": "pss_growth_second_half",
            "value": growth,
            "unit": "1",
            "ratio": growth,
            "against": "half",
        }
    )
    return found
