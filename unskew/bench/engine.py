"""Speed of training: the executors against plain PyTorch, in one process.

L1 is plain PyTorch without federated learning: one network, PyTorch's layers and SGD, the same batches and sample
count.  SGD is the faster of default and fused, at its best number of threads.  With a ratio above 1 a federated round
over many clients trains more samples per second than L1.  Contenders take turns, so that a busy machine slows all of
them; bars are judged on the ratio of minima; medians and spreads are reported beside it.

    W1  logistic regression, 28x28            W4  four-convolution CNN, 32x32x3
    W2  784-200-200-10                        W5  ResNet-18 with group norm, 32x32x3
    W3  two 5x5 convolutions, 512, 32x32x3
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection

import torch
import torch.nn.functional as F

from unskew.algorithms.fedavg import FedAvg
from unskew.bench.toolkit import (
    BenchRow,
    RandomClients,
    Rounds,
    Say,
    Workload,
    chosen,
    random_clients,
    speed_row,
    take_turns,
    threads,
)
from unskew.data.rows import as_tensor
from unskew.decide.forecast.measure import timed
from unskew.keys import Key
from unskew.local.sequential import Sequential
from unskew.local.workers.executor import Workers
from unskew.local.workers.worker import keep_freed_memory
from unskew.machine import cores
from unskew.protocol import Sgd, SgdConfig

MOMENTUM, LR = 0.9, 0.01

WORKLOADS = {
    "W1": Workload("logistic", (1, 28, 28), 400),
    "W2": Workload("fcn", (1, 28, 28), 400),
    "W3": Workload("cnn_w3", (3, 32, 32), 200),
    "W4": Workload("cnn_w4", (3, 32, 32), 192),
    "W5": Workload("resnet18", (3, 32, 32), 50, (("norm", "group"),)),
}

# workload, batch, clients, bar (None: nothing is promised)
CASES: tuple[tuple[str, int, int, float | None], ...] = (
    ("W1", 16, 100, 3.0),
    ("W1", 50, 100, 2.0),
    ("W2", 16, 10, 1.8),
    ("W2", 16, 100, 1.8),
    ("W2", 50, 10, 1.7),
    ("W2", 50, 100, 1.7),
    ("W3", 50, 10, 1.4),
    ("W4", 64, 10, 1.25),
    ("W5", 50, 2, 0.95),
)

Seconds = dict[str, list[float]]
"""Seconds of each contender in each turn."""


def measure(
    repeats: int = 5, only: tuple[str, ...] = (), device: torch.device | str = "cpu", say: Say = print
) -> list[BenchRow]:
    """Measure all cases, as rows of the benchmark's JSON; `only` names workloads or whole cases such as W2/b50/c100.

    On a CUDA device the stacked executor is measured (`unskew.bench.gpu`).

    Raises:
        ConfigError: If one in `only` is not measured.
    """
    if device != "cpu":
        from unskew.bench import gpu
        from unskew.run.setup import choose_device

        return gpu.measure(choose_device(str(device)), repeats, only, say)
    cases = {f"{name}/b{batch}/c{clients}": (name, batch, clients, bar) for name, batch, clients, bar in CASES}
    rows: list[BenchRow] = []
    for case in chosen(only, {case: [name, f"{name}/b{b}"] for case, (name, b, *_) in cases.items()}, "bench engine"):
        name, batch, clients, bar = cases[case]
        samples = WORKLOADS[name].samples * clients
        seconds = _case(case, WORKLOADS[name], batch, clients, repeats)
        rows += _rows(case, samples, seconds, bar)
        say("  ".join(f"{who} {samples / min(s):,.0f}/s" for who, s in seconds.items()) + f"  ({case})")
    return rows


def _rows(case: str, samples: int, seconds: Seconds, bar: float | None) -> list[BenchRow]:
    """A row for each contender; of plain PyTorch the fastest, with which all are compared."""
    plain = min((name for name in seconds if name.startswith("L1")), key=lambda name: min(seconds[name]))
    rows = []
    for name, times in seconds.items():
        if name == plain or not name.startswith("L1"):
            row = speed_row(case, "L1" if name == plain else name, samples, times, seconds[plain], "L1")
            rows.append({**row, "bar": bar} if bar is not None and name == "workers" else row)
    over = min(seconds["workers"]) / min(seconds["local work"])
    median = statistics.median(seconds["workers"]) / statistics.median(seconds["local work"])
    row = {"case": case, "what": "round_over_local_work", "contender": "workers", "value": over, "unit": "1"}
    more = {"ratio": over, "against": "sum of local work / workers", "median": median, "bar": 1.05}
    return [*rows, {**row, **more}]


def _case(case: str, workload: Workload, batch: int, clients: int, repeats: int) -> Seconds:
    world, count = random_clients(workload, clients, Key(0) / case), cores()
    method = FedAvg(SgdConfig(LR, batch_size=batch, momentum=MOMENTUM, local_epochs=1))
    with (
        threads(1),
        _trainers(partial(_local_work, method, world), count) as local_work,
        world.workers(method) as pool,
    ):
        contenders: dict[str, Callable[[], float]] = {
            "workers": _with_threads(1, Rounds(method, world.population, Workers(pool, 0, method))),
            "sequential": _with_threads(1, Rounds(method, world.population, Sequential(world.trainer()))),
            # What the workers would need if nothing but their clients' training cost anything: of one process
            # by itself, divided; and of as many at once, which share caches, memory and perhaps a physical core.
            "local work": lambda: local_work(1) / count,
            "local work, at once": lambda: local_work(count),
            **_plain(world, batch),
        }
        return take_turns(contenders, repeats)


def _with_threads(count: int, once: Callable[[], float]) -> Callable[[], float]:
    """The same with so many threads, whatever the contender before it had."""

    def fixed() -> float:
        torch.set_num_threads(count)
        return once()

    return fixed


def _local_work(method: FedAvg, world: RandomClients) -> Callable[[int, int], None]:
    """(i, n) -> the bare optimisations of every n-th client, starting with client i."""
    people, trainer = world.population, world.trainer()
    jobs = [(people.me(c, 1, Key(0) / c), Sgd(people.initial, method.local)) for c in people.clients]

    def once(which: int, step: int) -> None:
        for me, job in jobs[which::step]:
            trainer.fit(me, job, me.key)

    return once


@contextmanager
def _trainers(make: Callable[[], Callable[[int, int], None]], count: int) -> Iterator[Callable[[int], float]]:
    """Processes like workers: number of them at once -> seconds until each has done its share."""

    def serve(pipe: Connection) -> None:
        keep_freed_memory()
        once = make()
        while order := pipe.recv_bytes():
            once(*map(int, order.split()))
            pipe.send_bytes(b"done")

    fork = multiprocessing.get_context("fork")
    pipes = [multiprocessing.Pipe() for _ in range(count)]
    processes = [fork.Process(target=serve, args=(theirs,), daemon=True) for _, theirs in pipes]
    ours = [mine for mine, _ in pipes]

    def call(at_once: int) -> float:
        began = time.perf_counter()
        for which, pipe in enumerate(ours[:at_once]):
            pipe.send_bytes(f"{which} {at_once}".encode())
        for pipe in ours[:at_once]:
            pipe.recv_bytes()
        return time.perf_counter() - began

    for process in processes:
        process.start()
    try:
        yield call
    finally:
        for pipe in ours:
            pipe.send_bytes(b"")
        for process in processes:
            process.join()


def _plain(world: RandomClients, batch: int) -> dict[str, Callable[[], float]]:
    """L1: plain training on all samples, at one thread and at all, with PyTorch's default and fused SGD."""
    x, y = as_tensor(world.data.x), world.data.y

    def trainer(count: int, fused: bool) -> Callable[[], float]:
        network = world.task.module()
        optimizer = torch.optim.SGD(network.parameters(), LR, MOMENTUM, fused=fused)
        order = torch.randperm(len(y), generator=Key(1).generator())
        xs, ys = x[order], y[order]

        def epoch() -> None:
            for xb, yb in zip(torch.split(xs, batch), torch.split(ys, batch), strict=True):
                optimizer.zero_grad()
                F.cross_entropy(network(xb), yb).backward()  # type: ignore[no-untyped-call]
                optimizer.step()

        return _with_threads(count, partial(timed, epoch))

    settings = [(count, fused) for count in sorted({1, cores()}) for fused in (False, True)]
    return {f"L1, {count} threads{', fused' * fused}": trainer(count, fused) for count, fused in settings}
