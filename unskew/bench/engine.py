"""Speed of training: the executors against plain PyTorch, in one process.

L1 is the code a careful user would write without federated learning: one network, PyTorch's own layers and SGD (default
or fused, the faster of the two, at its best number of threads), tensors ready, the same batches and sample count.  A
ratio above 1 says that a federated round over many clients trains more samples per second than L1.  Contenders take
turns, so that a busy machine slows all of them; bars are judged on the ratio of minima; medians and spreads are
reported beside it.

    W1  logistic regression, 28x28            W4  four-convolution CNN, 32x32x3
    W2  784-200-200-10                        W5  ResNet-18 with group norm, 32x32x3
    W3  two 5x5 convolutions, 512, 32x32x3

On W1, whose rounds are the shortest, the share of time taken by tests after every round is also measured: the global
model on 10,000 examples and each client's own on a fifth of its data, where clients share one model (FedAvg) and where
each has its own (local-only training).
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.independent import Independent
from unskew.bench.toolkit import BenchRow, Say, Workload, random_clients, require_known, take_turns, threads
from unskew.data.images import as_tensor
from unskew.data.ragged import Ragged
from unskew.keys import Key
from unskew.local.executor import Executor
from unskew.local.sequential import Sequential
from unskew.local.trainer import LocalTrainer
from unskew.local.workers.executor import Workers
from unskew.local.workers.pool import Pool
from unskew.local.workers.recipe import WorkerSetup
from unskew.local.workers.worker import keep_freed_memory
from unskew.machine import cores
from unskew.protocol import Sgd, SgdConfig
from unskew.run.evaluation import EvalSet, evaluate
from unskew.runtime.in_process import Population, Simulator
from unskew.tasks.task import Task

MOMENTUM, LR = 0.9, 0.01
TESTED, HELD_OUT = 10_000, 0.2
"""Examples of the global test set, and the part of a client's data that it is tested on."""


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


@dataclass(frozen=True)
class Measured:
    """Seconds per repeat of one contender."""

    case: str
    contender: str
    samples: int
    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        """Samples per second at its fastest."""
        return self.samples / min(self.seconds)

    @property
    def median(self) -> float:
        """Samples per second at its median."""
        return self.samples / statistics.median(self.seconds)


def measure(repeats: int = 5, only: tuple[str, ...] = (), say: Say = print) -> list[BenchRow]:
    """Measure all cases, as rows of the benchmark's JSON; `only` names workloads or whole cases such as W2/b50/c100.

    Raises:
        ConfigError: If one in `only` is not measured.
    """
    cases = {f"{name}/b{batch}/c{clients}": (name, f"{name}/b{batch}") for name, batch, clients, _ in CASES}
    require_known(only, [*WORKLOADS, *cases, *(short for _, short in cases.values())], "bench engine")
    rows: list[BenchRow] = []
    for (case, names), (name, batch, clients, bar) in zip(cases.items(), CASES, strict=True):
        if only and not {case, *names} & set(only):
            continue
        measured = _case(case, WORKLOADS[name], batch, clients, repeats)
        rows += _rows(measured, bar)
        say("  ".join(f"{m.contender} {m.best:,.0f}/s" for m in measured.values()) + f"  ({case})")
        if name == "W1":
            tests = _tests(case, WORKLOADS[name], batch, clients, repeats)
            say("  ".join(f"tests, {r['contender']}: {r['value']:.0%} of a round" for r in tests) + f"  ({case})")
            rows += tests
    return rows


def _tests(case: str, workload: Workload, batch: int, clients: int, repeats: int) -> list[BenchRow]:
    """The share of tests in the time of a round and the tests after it, with workers."""
    held_out = round(workload.samples * HELD_OUT / (1 - HELD_OUT))
    world = random_clients(workload, clients, Key(0) / case / "tests", held_out=held_out, tested=TESTED)
    population, test = world.population, Ragged.of(world.data.val)
    local = SgdConfig(LR, batch_size=batch, momentum=MOMENTUM, local_epochs=1)
    algorithms: dict[str, Any] = {"one model": FedAvg(local), "own models": Independent(local)}
    examples = EvalSet(world.task, test, Ragged.of([rows[:0] for rows in test]), validates=False)
    shares = []

    def open_setup(number: int) -> WorkerSetup:
        algorithm = list(algorithms.values())[number]
        return WorkerSetup(algorithm, LocalTrainer(world.task, world.data), population.me)

    with threads(1):
        pool = Pool(open_setup, cores(), world.model_bytes)
        try:
            for number, (name, algorithm) in enumerate(algorithms.items()):
                sim = Simulator(algorithm, population, Workers(pool, number, algorithm))
                state = sim.start()
                rounds, tests = [], []
                for t in range(1, repeats + 2):
                    began = time.perf_counter()
                    state, _ = sim.round(state, t)
                    between = time.perf_counter()
                    evaluate(sim, state, t, examples, ("global", "personal"), last=False)
                    if t > 1:  # the first is for warming up
                        rounds.append(between - began)
                        tests.append(time.perf_counter() - between)
                shares.append(_share(case, name, rounds, tests))
        finally:
            pool.close()
    return shares


def _share(case: str, name: str, rounds: Sequence[float], tests: Sequence[float]) -> BenchRow:
    share = min(tests) / (min(rounds) + min(tests))
    median = statistics.median(tests) / (statistics.median(rounds) + statistics.median(tests))
    return {
        "case": case,
        "what": "tests_over_round_and_tests",
        "contender": name,
        "value": share,
        "unit": "1",
        "ratio": share,
        "against": "a round and the tests after it",
        "median": median,
        "bar": 0.5,
    }


def _rows(measured: dict[str, Measured], bar: float | None) -> list[BenchRow]:
    base = max((m for m in measured.values() if m.contender.startswith("L1")), key=lambda m: m.best)
    rows = []
    for m in measured.values():
        if m.contender.startswith("L1") and m is not base:
            continue
        row: BenchRow = {
            "case": m.case,
            "what": "samples_per_second",
            "contender": "L1" if m is base else m.contender,
            "value": m.best,
            "unit": "1/s",
            "ratio": m.best / base.best,
            "against": "L1",
            "median": m.median,
            "ratio_of_medians": m.median / max(x.median for x in measured.values() if x.contender.startswith("L1")),
            "slowest": m.samples / max(m.seconds),
        }
        rows.append(row if bar is None or m.contender != "workers" else {**row, "bar": bar})
    if "workers" in measured and "local work" in measured:
        local_work, workers = measured["local work"], measured["workers"]
        rows.append(
            {
                "case": local_work.case,
                "what": "round_over_local_work",
                "contender": "workers",
                "value": min(workers.seconds) / min(local_work.seconds),
                "unit": "1",
                "ratio": min(workers.seconds) / min(local_work.seconds),
                "against": "sum of local work / workers",
                "median": statistics.median(workers.seconds) / statistics.median(local_work.seconds),
                "bar": 1.05,
            }
        )
    return rows


def _case(case: str, workload: Workload, batch: int, clients: int, repeats: int) -> dict[str, Measured]:
    world = random_clients(workload, clients, Key(0) / case)
    task, data, population = world.task, world.data, world.population
    algorithm = FedAvg(SgdConfig(LR, batch_size=batch, momentum=MOMENTUM, local_epochs=1))
    count = cores()
    with (
        threads(1),
        _trainers(lambda: _local_work(algorithm, population, LocalTrainer(task, data)), count) as local_work,
    ):
        pool = Pool(lambda _: WorkerSetup(algorithm, LocalTrainer(task, data), population.me), count, world.model_bytes)
        try:
            contenders: dict[str, Callable[[], float]] = {
                "workers": _federated(algorithm, population, Workers(pool, 0, algorithm)),
                "sequential": _federated(algorithm, population, Sequential(LocalTrainer(task, data))),
                # What the workers would need if nothing but their clients' training cost anything: of one process
                # by itself, divided; and of as many at once, which share caches, memory and perhaps a physical core.
                "local work": lambda: local_work(1) / count,
                "local work, at once": lambda: local_work(count),
                **_plain(task, as_tensor(data.x), data.y, batch),
            }
            times = take_turns(contenders, repeats)
        finally:
            pool.close()
    return {name: Measured(case, name, len(data.y), tuple(t)) for name, t in times.items()}


def _federated(algorithm: FedAvg, population: Population, executor: Executor) -> Callable[[], float]:
    sim = Simulator(algorithm, population, executor)
    state, t = sim.start(), 0

    def once() -> float:
        nonlocal state, t
        t += 1
        torch.set_num_threads(1)
        began = time.perf_counter()
        state, _ = sim.round(state, t)
        return time.perf_counter() - began

    return once


def _local_work(algorithm: FedAvg, population: Population, trainer: LocalTrainer) -> Callable[[int, int], None]:
    """(i, n) -> the bare optimisations of every n-th client, starting with client i."""
    jobs = [(population.me(c, 1, Key(0) / c), Sgd(population.initial, algorithm.local)) for c in population.clients]

    def once(which: int, of: int) -> None:
        for me, job in jobs[which::of]:
            trainer.fit(me, job, me.key)

    return once


@contextmanager
def _trainers(make: Callable[[], Callable[[int, int], None]], count: int) -> Iterator[Callable[[int], float]]:
    """Processes like workers: number of them at once -> seconds until each has done its share."""

    def serve(pipe: Connection) -> None:
        keep_freed_memory()
        once = make()
        while order := pipe.recv_bytes():
            which, of = map(int, order.split())
            once(which, of)
            pipe.send_bytes(b"done")

    fork = multiprocessing.get_context("fork")
    pipes = [multiprocessing.Pipe() for _ in range(count)]
    processes = [fork.Process(target=serve, args=(theirs,), daemon=True) for _, theirs in pipes]
    ours = [mine for mine, _ in pipes]

    def call(of: int) -> float:
        began = time.perf_counter()
        for which, pipe in enumerate(ours[:of]):
            pipe.send_bytes(f"{which} {of}".encode())
        for pipe in ours[:of]:
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


def _plain(task: Task, x: Tensor, y: Tensor, batch: int) -> dict[str, Callable[[], float]]:
    """L1: plain training on all samples, at one thread and at all, with PyTorch's default and fused SGD."""

    def trainer(threads: int, fused: bool) -> Callable[[], float]:
        network = task.module()
        optimizer = torch.optim.SGD(network.parameters(), LR, MOMENTUM, fused=fused)
        order = torch.randperm(len(y), generator=Key(1).generator())
        xs, ys = x[order], y[order]

        def once() -> float:
            torch.set_num_threads(threads)
            began = time.perf_counter()
            for xb, yb in zip(torch.split(xs, batch), torch.split(ys, batch), strict=True):
                optimizer.zero_grad()
                F.cross_entropy(network(xb), yb).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            return time.perf_counter() - began

        return once

    settings = [(t, fused) for t in sorted({1, cores()}) for fused in (False, True)]
    return {f"L1, {t} threads{', fused' * fused}": trainer(t, fused) for t, fused in settings}
