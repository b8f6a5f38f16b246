"""The cost of a Ray cluster beside worker processes, and the actors that one driver keeps busy; on this machine alone.

    round     FedAvg by local Ray and by `workers`, one process on each core, taking turns
    driver    CPU seconds and bytes that a client of such a round costs the process that runs it
    actors    a larger cluster, simulated: actors that sleep instead of training, more of them than there are cores;
              clients a second by the number of actors, and of those the share that actors without a driver would do
    sum       CPU seconds of the driver per reply, if it adds the replies itself, and if actors first add eight of them

Each case has processes of its own: one that Ray runs in cannot be forked any more.  Actors, driver and Ray's servers
share the cores here, so the clients a second are a lower bound of what a driver with a machine of its own hands out;
its own CPU seconds per client give the upper one.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from unskew.algorithms.fedavg import FedAvg
from unskew.bench.engine import CASES, LR, MOMENTUM, WORKLOADS
from unskew.bench.toolkit import (
    BenchRow,
    RandomClients,
    Say,
    Workload,
    in_a_process,
    random_clients,
    require_known,
    seconds_row,
    take_turns,
    threads,
)
from unskew.keys import Key
from unskew.local.executor import PoolParts, untrained
from unskew.local.ray import Packed, RayPool, connect, imported
from unskew.local.trainer import LocalTrainer
from unskew.local.workers.executor import Workers
from unskew.local.workers.pool import JobPool, Pool
from unskew.local.workers.recipe import WorkerSetup
from unskew.machine import cores
from unskew.protocol import Me, Sgd, SgdConfig
from unskew.runtime.in_process import Simulator
from unskew.tree import Params

ROUNDS: dict[str, float] = {"W2/b16/c100": 1.25, "W3/b50/c10": 1.1, "W4/b64/c10": 1.1}
"""Cases of `bench engine` that Ray and workers are compared in, and the most that Ray's rounds may take of theirs."""

ACTORS = (2, 4, 8, 16, 32)
SLEEP_S = 0.1
CLIENTS_EACH = 12
"""Seconds that a client's training takes where actors sleep, and clients of a round for each actor."""

CHUNK, REPLIES = 8, 64
"""Replies that actors add before the driver does, and replies of the comparison."""

STORE_MB = 1000


def measure(
    repeats: int = 5, only: Sequence[str] = (), actors: Sequence[int] = ACTORS, say: Say = print
) -> list[BenchRow]:
    """Measure, as rows of the benchmark's JSON; `only` names cases of `ROUNDS`, "actors" or "sum".

    Raises:
        ConfigError: If one in `only` is not measured, or Ray is not installed.
    """
    imported()
    parts: dict[str, Callable[[], list[BenchRow]]] = {
        **{case: lambda case=case: _rounds(case, repeats) for case in ROUNDS},  # type: ignore[misc]
        "actors": lambda: [row for n in actors for row in in_a_process(lambda n=n: _sleeping(n, repeats), "actors")],  # type: ignore[misc]
        "sum": lambda: _sums(repeats),
    }
    require_known(only, list(parts), "bench cluster")
    rows: list[BenchRow] = []
    for name, part in parts.items():
        if not only or name in only:
            measured = part() if name == "actors" else in_a_process(part, name)
            say("  ".join(f"{r['case']} {r['what']} {r['value']:.3g} {r['unit']}" for r in measured))
            rows += measured
    return rows


# ---------------------------------------------------------------- a round
def _rounds(case: str, repeats: int) -> list[BenchRow]:
    name, batch, clients = next((w, b, c) for w, b, c, _ in CASES if f"{w}/b{b}/c{c}" == case)
    world = random_clients(WORKLOADS[name], clients, Key(0) / case)
    algorithm = FedAvg(SgdConfig(LR, batch_size=batch, momentum=MOMENTUM, local_epochs=1))

    def open_setup(_: int) -> WorkerSetup:
        return WorkerSetup(algorithm, LocalTrainer(world.task, world.data), world.population.me)

    with threads(1):
        forked = Pool(open_setup, cores(), world.model_bytes)  # before Ray: its threads do not survive a fork
        try:
            by_ray = RayPool(PoolParts(open_setup, cores(), world.model_bytes), store_mb=STORE_MB)
            try:
                _started(by_ray)
                ray_round = _Rounds(algorithm, world, by_ray)
                times = take_turns({"workers": _Rounds(algorithm, world, forked), "ray": ray_round}, repeats)
                handed = by_ray.driver_bytes / (repeats + 1)
            finally:
                by_ray.close()
        finally:
            forked.close()
    best = {who: min(seconds) for who, seconds in times.items()}
    driver = min(ray_round.cpu[1:]) / clients
    return [
        seconds_row(case, "round", times["workers"], contender="workers"),
        seconds_row(
            case, "round", times["ray"], contender="ray", ratio=best["ray"] / best["workers"], against="workers",
            bar=ROUNDS[case],
        ),
        {"case": case, "what": "more_than_workers_per_client", "contender": "ray",
         "value": (best["ray"] - best["workers"]) / clients, "unit": "s"},
        {"case": case, "what": "driver_cpu_per_client", "contender": "ray", "value": driver, "unit": "s"},
        {"case": case, "what": "driver_bytes_per_round", "contender": "ray", "value": handed / 1e6, "unit": "MB",
         "ratio": handed / (clients * world.model_bytes), "against": "a model for each client"},
    ]  # fmt: skip


class _Rounds:
    """Rounds of one method, one a call: its seconds; `cpu` has those that this process was busy in each."""

    def __init__(self, algorithm: FedAvg, world: RandomClients, pool: JobPool) -> None:
        self._sim = Simulator(algorithm, world.population, Workers(pool, 0, algorithm))
        self._state, self._round = self._sim.start(), 0
        self.cpu: list[float] = []

    def __call__(self) -> float:
        self._round += 1
        busy, began = time.process_time(), time.perf_counter()
        self._state, _ = self._sim.round(self._state, self._round)
        seconds = time.perf_counter() - began
        self.cpu.append(time.process_time() - busy)
        return seconds


def _started(pool: RayPool) -> None:
    """Wait until every actor is at work."""
    imported().get([worker.started for worker in pool.workers])


# ---------------------------------------------------------------- more actors than cores
class _Sleeper:
    """A trainer that takes its time and changes nothing."""

    device = torch.device("cpu")

    def answer(self, me: Me, index: int, request: object) -> Any:
        assert isinstance(request, Sgd)
        time.sleep(SLEEP_S)
        return untrained(request, me.round)


def _sleeping(actors: int, repeats: int) -> list[BenchRow]:
    clients = CLIENTS_EACH * actors
    world = random_clients(Workload("fcn", (1, 28, 28), 1), clients, Key(0) / "sleep")
    algorithm = FedAvg(SgdConfig(LR, batch_size=1, local_epochs=1))

    def open_setup(_: int) -> WorkerSetup:
        trainer: Any = _Sleeper()
        return WorkerSetup(algorithm, trainer, world.population.me)

    with threads(1):
        pool = RayPool(PoolParts(open_setup, actors, world.model_bytes), store_mb=STORE_MB)
        try:
            _started(pool)
            rounds = _Rounds(algorithm, world, pool)
            seconds = take_turns({"ray": rounds}, repeats)["ray"]
        finally:
            pool.close()
    a_second = clients / min(seconds)
    case = f"{actors} actors, {SLEEP_S:g} s a client"
    return [
        {"case": case, "what": "clients_per_second", "actors": actors, "value": a_second, "unit": "1/s",
         "ratio": a_second * SLEEP_S / actors, "against": "actors that wait for nothing"},
        {"case": case, "what": "driver_cpu_per_client", "actors": actors, "value": min(rounds.cpu[1:]) / clients,
         "unit": "s"},
    ]  # fmt: skip


# ---------------------------------------------------------------- sums
class _Adder:
    """Makes replies, and adds some."""

    def reply(self, model: Packed) -> Packed:
        return Packed.of(model.read(Params))

    def add(self, *replies: Packed) -> Packed:
        return Packed.of(_sum(replies))


def _sum(replies: Sequence[Packed]) -> Params:
    total: Params = {}
    for reply in replies:
        for name, tensor in reply.read(Params).items():
            total[name] = total[name].add_(tensor) if name in total else tensor
    return total


def _sums(repeats: int) -> list[BenchRow]:
    ray = imported()
    world = random_clients(WORKLOADS["W2"], 2, Key(0) / "sum")
    model = Packed.of(world.population.initial)
    with threads(1):
        connect("local", cores(), STORE_MB)
        try:
            adders = [ray.remote(_Adder).remote() for _ in range(cores())]
            cpu: dict[str, list[float]] = {"driver": [], "actors": []}

            def replies() -> list[Any]:
                made = [adders[i % len(adders)].reply.remote(model) for i in range(REPLIES)]
                ray.wait(made, num_returns=len(made), fetch_local=False)
                return made

            def by_driver() -> float:
                made = replies()
                busy, began = time.process_time(), time.perf_counter()
                _sum([ray.get(one) for one in made])
                cpu["driver"].append(time.process_time() - busy)
                return time.perf_counter() - began

            def by_actors() -> float:
                made = replies()
                busy, began = time.process_time(), time.perf_counter()
                chunks = [made[i : i + CHUNK] for i in range(0, REPLIES, CHUNK)]
                added = [adders[i % len(adders)].add.remote(*chunk) for i, chunk in enumerate(chunks)]
                _sum([ray.get(one) for one in added])
                cpu["actors"].append(time.process_time() - busy)
                return time.perf_counter() - began

            times = take_turns({"driver": by_driver, "actors": by_actors}, repeats)
        finally:
            ray.shutdown()
    case = f"{REPLIES} replies of {world.model_bytes / 1e6:.1f} MB"
    rows: list[BenchRow] = []
    for who, what in (("driver", "added by the driver"), ("actors", f"actors add {CHUNK} each first")):
        least = min(cpu[who][1:])
        rows += [
            seconds_row(case, "sum", times[who], contender=what),
            {"case": case, "what": "driver_cpu_per_reply", "contender": what, "value": least / REPLIES, "unit": "s",
             "ratio": least / min(cpu["driver"][1:]), "against": "added by the driver"},
        ]  # fmt: skip
    return rows
