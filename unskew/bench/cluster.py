"""The cost of a Ray cluster beside worker processes, and the actors that one driver keeps busy; on this machine alone.

    round     FedAvg by local Ray and by `workers`, one process on each core, taking turns
    driver    CPU seconds and bytes that a client of such a round costs the process that runs it
    actors    a larger cluster, simulated: actors that sleep instead of training, more of them than there are cores;
              clients a second by the number of actors, and of those the share that actors without a driver would do

Each case has processes of its own: one that Ray runs in cannot be forked any more.  Actors, driver and Ray's servers
share the cores here, so the clients a second are a lower bound for a driver with its own machine.  Its CPU seconds per
client give the upper bound.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch

from unskew.algorithms.fedavg import FedAvg
from unskew.bench.engine import CASES, LR, MOMENTUM, WORKLOADS
from unskew.bench.toolkit import (
    BenchRow,
    Rounds,
    Say,
    Workload,
    chosen,
    in_a_process,
    random_clients,
    seconds_row,
    take_turns,
    threads,
)
from unskew.keys import Key
from unskew.local.executor import PoolParts, untrained
from unskew.local.ray import RayPool, imported
from unskew.local.workers.executor import Workers
from unskew.local.workers.worker import WorkerSetup
from unskew.machine import cores
from unskew.protocol import Me, Sgd, SgdConfig

ROUNDS: dict[str, float] = {"W2/b16/c100": 1.25, "W3/b50/c10": 1.1, "W4/b64/c10": 1.1}
"""Cases of `bench engine` that Ray and workers are compared in, and the most that Ray's rounds may take of theirs."""

ACTORS = (2, 4, 8, 16, 32)
SLEEP_S = 0.1
CLIENTS_EACH = 12
"""Seconds that a client's training takes where actors sleep, and clients of a round for each actor."""

STORE_MB = 1000


def measure(
    repeats: int = 5, only: Sequence[str] = (), actors: Sequence[int] = ACTORS, say: Say = print
) -> list[BenchRow]:
    """Measure, as rows of the benchmark's JSON; `only` names cases of `ROUNDS`, or "actors".

    Raises:
        ConfigError: If one in `only` is not measured, or Ray is not installed.
    """
    imported()
    parts: dict[str, Callable[[], list[BenchRow]]] = {
        **{case: partial(_rounds, case, repeats) for case in ROUNDS},
        "actors": lambda: [row for n in actors for row in in_a_process(partial(_sleeping, n, repeats), "actors")],
    }
    rows: list[BenchRow] = []
    for name in chosen(only, dict.fromkeys(parts, ()), "bench cluster"):
        measured = parts[name]() if name == "actors" else in_a_process(parts[name], name)
        say("  ".join(f"{r['case']} {r['what']} {r['value']:.3g} {r['unit']}" for r in measured))
        rows += measured
    return rows


# ---------------------------------------------------------------- a round
@contextmanager
def _actors(setups: Callable[[int], WorkerSetup], count: int, model_bytes: int) -> Iterator[RayPool]:
    """So many actors, each of them at work."""
    pool = RayPool(PoolParts(setups, count, model_bytes), store_mb=STORE_MB)
    try:
        imported().get([worker.started for worker in pool.workers])
        yield pool
    finally:
        pool.close()


def _rounds(case: str, repeats: int) -> list[BenchRow]:
    name, batch, clients = next((w, b, c) for w, b, c, _ in CASES if f"{w}/b{b}/c{c}" == case)
    world = random_clients(WORKLOADS[name], clients, Key(0) / case)
    method = FedAvg(SgdConfig(LR, batch_size=batch, momentum=MOMENTUM, local_epochs=1))
    with (
        threads(1),
        world.workers(method) as forked,  # before Ray: its threads do not survive a fork
        _actors(world.setups(method), cores(), world.model_bytes) as by_ray,
    ):
        local, ray = (Rounds(method, world.population, Workers(pool, 0, method)) for pool in (forked, by_ray))
        times = take_turns({"workers": local, "ray": ray}, repeats)
        handed = by_ray.driver_bytes / (repeats + 1)
    best = {who: min(seconds) for who, seconds in times.items()}
    row = {"case": case, "contender": "ray"}
    more = {"ratio": best["ray"] / best["workers"], "against": "workers", "bar": ROUNDS[case]}
    share = {"ratio": handed / (clients * world.model_bytes), "against": "a model for each client"}
    apart, driver = (best["ray"] - best["workers"]) / clients, min(ray.cpu[1:]) / clients
    return [
        seconds_row(case, "round", times["workers"], contender="workers"),
        seconds_row(case, "round", times["ray"], contender="ray", **more),
        {**row, "what": "more_than_workers_per_client", "value": apart, "unit": "s"},
        {**row, "what": "driver_cpu_per_client", "value": driver, "unit": "s"},
        {**row, "what": "driver_bytes_per_round", "value": handed / 1e6, "unit": "MB", **share},
    ]


# ---------------------------------------------------------------- more actors than cores
class _Sleeper:
    """A trainer that takes its time and changes nothing."""

    device = torch.device("cpu")

    def answer(self, me: Me, index: int, request: object) -> Any:
        assert isinstance(request, Sgd)
        time.sleep(SLEEP_S)
        return untrained(request, me.round)


def _sleeping(actors: int, repeats: int) -> list[BenchRow]:
    clients, sleeper = CLIENTS_EACH * actors, _Sleeper()
    world = random_clients(Workload("fcn", (1, 28, 28), 1), clients, Key(0) / "sleep")
    method, trainer, me = FedAvg(SgdConfig(LR, batch_size=1, local_epochs=1)), cast(Any, sleeper), world.population.me
    with threads(1), _actors(lambda _: WorkerSetup(method, trainer, me), actors, world.model_bytes) as pool:
        rounds = Rounds(method, world.population, Workers(pool, 0, method))
        seconds = take_turns({"ray": rounds}, repeats)["ray"]
    rate, driver = clients / min(seconds), min(rounds.cpu[1:]) / clients
    row = {"case": f"{actors} actors, {SLEEP_S:g} s a client", "actors": actors}
    share = {"ratio": rate * SLEEP_S / actors, "against": "actors that wait for nothing"}
    return [
        {**row, "what": "clients_per_second", "value": rate, "unit": "1/s", **share},
        {**row, "what": "driver_cpu_per_client", "value": driver, "unit": "s"},
    ]
