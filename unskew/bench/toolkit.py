"""Tools that the benchmarks share: clients with random data, contenders that take turns, rows of the JSON."""

import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from unskew import models
from unskew.decide.forecast.measure import threads as threads
from unskew.errors import ConfigError, WorkerError
from unskew.keys import Key
from unskew.local.data import DeviceData
from unskew.local.executor import Executor
from unskew.local.trainer import LocalTrainer
from unskew.local.workers.pool import Pool
from unskew.local.workers.worker import WorkerSetup
from unskew.machine import cores
from unskew.runtime.in_process import Population, Simulator
from unskew.tasks.task import Task, make_task

BenchRow = dict[str, Any]
Say = Callable[[str], None]
"""Is called with a line for each measurement."""


# ---------------------------------------------------------------- clients with random data
@dataclass(frozen=True)
class Workload:
    """A network, the shape of its inputs, and the training examples of each client."""

    model: str
    shape: tuple[int, ...]
    samples: int
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, eq=False)
class RandomClients:
    """Clients with random inputs and labels: their accuracy is meaningless, their speed is not."""

    task: Task
    data: DeviceData
    population: Population

    @property
    def model_bytes(self) -> int:
        """Bytes of the initial model."""
        return sum(t.nbytes for t in self.population.initial.values())

    def trainer(self) -> LocalTrainer:
        """A trainer of its own."""
        return LocalTrainer(self.task, self.data)

    def setups(self, *methods: Any) -> Callable[[int], WorkerSetup]:
        """The setup of each method in a worker, by its place among them."""
        return lambda number: WorkerSetup(methods[number], self.trainer(), self.population.me)

    @contextmanager
    def workers(self, *methods: Any) -> Iterator[Pool]:
        """Worker processes for these methods, one on each core."""
        pool = Pool(self.setups(*methods), cores(), self.model_bytes)
        try:
            yield pool
        finally:
            pool.close()


def random_clients(
    workload: Workload,
    clients: int,
    key: Key,
    device: torch.device | str = "cpu",
) -> RandomClients:
    """Clients of ten classes.

    Args:
        workload: Network and training data.
        clients: Number of clients.
        key: Root of all randomness.
        device: Device of the tensors.
    """
    total, nothing = workload.samples * clients, torch.arange(0, device=device)
    x = torch.randn(total, *workload.shape, generator=(key / "x").generator()).to(device)
    y = torch.randint(10, (total,), generator=(key / "y").generator()).to(device)
    rows = torch.split(torch.arange(total, device=device), workload.samples)
    task = make_task(lambda: models.build(workload.model, workload.shape, 10, **dict(workload.options)), 10)
    histograms = torch.stack([torch.bincount(y[r], minlength=10) for r in rows]).cpu()
    initial = {name: t.to(device) for name, t in task.init(key).items()}
    data = DeviceData(x, y, rows, (nothing,) * clients)
    return RandomClients(task, data, Population(histograms, task.layout, initial, task.init))


class Rounds:
    """Rounds of one method, one a call, which returns its seconds; `cpu` has those that this process was busy in each.

    A GPU's work is waited for with `wait`.
    """

    def __init__(
        self, method: Any, population: Population, executor: Executor, wait: Callable[[], None] = lambda: None
    ) -> None:
        self._sim = Simulator(method, population, executor)
        self._state, self._round, self._wait = self._sim.start(), 0, wait
        self.cpu: list[float] = []

    def __call__(self) -> float:
        """Seconds of one more round."""
        self._round += 1
        self._wait()
        busy, began = time.process_time(), time.perf_counter()
        self._state, _ = self._sim.round(self._state, self._round)
        self._wait()
        seconds = time.perf_counter() - began
        self.cpu.append(time.process_time() - busy)
        return seconds


# ---------------------------------------------------------------- time and memory
def take_turns(
    contenders: Mapping[str, Callable[[], float]], repeats: int, shuffled: bool = False
) -> dict[str, list[float]]:
    """Seconds of each contender in each turn, after one turn to warm up; each contender returns its own seconds.

    Contenders take turns so that a busy machine slows all of them.  `shuffled` changes their order from turn to turn:
    no contender should always find the cache as the same neighbour left it.
    """
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        contenders[name]()
    for turn in range(repeats):
        drawn = torch.randperm(len(names), generator=(Key(0) / "turn" / turn).generator()).tolist()
        for name in [names[i] for i in drawn] if shuffled else names:
            seconds[name].append(contenders[name]())
    return seconds


def in_a_process(part: Callable[[], Any], what: str) -> Any:
    """Measure a part of a benchmark in a process that ends with it, so that its memory is its own; as JSON has it.

    Args:
        part: Measures; what it prints goes where errors go.
        what: The part as the beginning of a sentence.

    Raises:
        WorkerError: If the process ended without a result.
    """

    def serve(pipe: Connection) -> None:
        os.dup2(2, 1)  # Ray prints its warnings where the rows are to stand alone
        pipe.send_bytes(json.dumps(part()).encode())

    fork = multiprocessing.get_context("fork")
    mine, theirs = fork.Pipe()
    process = fork.Process(target=serve, args=(theirs,))
    process.start()
    theirs.close()
    try:
        return json.loads(mine.recv_bytes())
    except EOFError:
        raise WorkerError(f"{what} ended without a result; its error, if any, stands above") from None
    finally:
        process.join()


# ---------------------------------------------------------------- rows
def seconds_row(case: str, what: str, seconds: Sequence[float], **more: Any) -> BenchRow:
    """A row for something timed several times: the minimum, with median and maximum beside it."""
    row = {"case": case, "what": what, "value": min(seconds), "unit": "s", **more}
    return {**row, "median": statistics.median(seconds), "slowest": max(seconds)}


def speed_row(
    case: str, contender: str, samples: int, seconds: Sequence[float], base: Sequence[float], against: str
) -> BenchRow:
    """Samples per second at the fastest, and times the base's; median and slowest stand beside it."""
    median = statistics.median(seconds)
    return {
        "case": case,
        "what": "samples_per_second",
        "contender": contender,
        "value": samples / min(seconds),
        "unit": "1/s",
        "ratio": min(base) / min(seconds),
        "against": against,
        "median": samples / median,
        "ratio_of_medians": statistics.median(base) / median,
        "slowest": samples / max(seconds),
    }


def paired_rows(case: str, measured: Mapping[str, Sequence[float]], against: str) -> dict[str, BenchRow]:
    """A row for each contender's epoch in CPU time, by its name; a ratio is that of two epochs of one turn.

    Value and `ratio` are medians over the turns, `low` and `high` the quartiles of the ratio.
    """
    base = measured[against]
    rows = {}
    for name, seconds in measured.items():
        ratios = sorted(s / b for s, b in zip(seconds, base, strict=True))
        rows[name] = {
            "case": case,
            "what": "cpu_seconds_per_epoch",
            "contender": name,
            "value": statistics.median(seconds),
            "unit": "s",
            "ratio": statistics.median(ratios),
            "against": against,
            "low": ratios[len(ratios) // 4],
            "high": ratios[-1 - len(ratios) // 4],
            "ratio_of_minima": min(seconds) / min(base),
            "turns": len(ratios),
        }
    return rows


def chosen(only: Sequence[str], cases: Mapping[str, Sequence[str]], command: str) -> list[str]:
    """The cases of which one of the names is in `only`, by default all.

    Args:
        only: Names.
        cases: Further names of each case.
        command: What measures them.

    Raises:
        ConfigError: If there is no such name; it lists those there are.
    """
    names = {case: (*more, case) for case, more in cases.items()}
    known = dict.fromkeys(name for of in names.values() for name in of)
    if unknown := [name for name in only if name not in known]:
        raise ConfigError(f"{command} measures {', '.join(known)}, got {unknown[0]!r}; take one of them")
    return [case for case, of in names.items() if not only or {*of} & {*only}]
