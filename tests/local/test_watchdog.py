"""Workers that make no progress are reported, and those that stay stopped are replaced."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import recipe
import torch
from torch import Tensor

from unskew import wire
from unskew.local.sequential import Sequential
from unskew.local.workers.executor import Workers
from unskew.local.workers.pool import Pool
from unskew.local.workers.process import Process
from unskew.local.workers.recipe import WorkerSetup
from unskew.local.workers.watchdog import Patience, Watch
from unskew.protocol import ClientId, Federation, Me, Plan, Step, ask, run, step
from unskew.runtime.in_process import Simulator
from unskew.tree import Params

pytestmark = [
    pytest.mark.timeout(30),
    pytest.mark.skipif(not hasattr(os, "waitid"), reason="this system cannot say that a process is stopped"),
    # From Python 3.12 on: a replacement is forked beside the watchdog's thread, which holds no lock that matters.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
HASTE = Patience(every_s=0.01, stopped_s=0.02, replace_s=0.1, idle_s=1e9, again_s=1e9)


@dataclass(frozen=True)
class Numbers:
    """Any numbers."""

    values: Tensor


@dataclass(frozen=True)
class Drawing:
    """Every client adds draws of its own to what it is sent; client 1 first does what the test wants."""

    incident: Callable[[], None] = lambda: None
    length: int = 4

    def init(self, params: Params, fed: Federation) -> Numbers:
        return Numbers(torch.zeros(self.length))

    def round(self, state: Numbers, fed: Federation) -> Plan[Numbers]:
        replies = yield from ask(self.turn, {c: Numbers(state.values + c) for c in fed.clients})
        return Numbers(torch.stack([r.values for r in replies.values()]).sum(0))

    @step
    def turn(self, me: Me, msg: Numbers, mine: Numbers | None) -> Step[tuple[Numbers, Numbers]]:
        if me.id == 1:
            yield from run(lambda _: self.incident())
        yield from ()
        drawn = torch.randn(self.length, generator=(me.key / "draw").generator())
        before = torch.zeros(self.length) if mine is None else mine.values
        return Numbers(msg.values + drawn + before), Numbers(drawn)

    def serve(self, state: Numbers, client: ClientId | None) -> Params | None:
        return None


def states(method: Any, executor: Callable[[Any], Any], rounds: int = 2) -> Iterator[bytes]:
    population, trainer = recipe.world("perceptron")
    sim: Simulator[Any] = Simulator(method, population, executor(trainer))
    state = sim.start()
    for t in range(1, rounds + 1):
        state, _ = sim.round(state, t)
        yield wire.encode(state)


def pool_of(method: Any, workers: int, patience: Patience, notes: list[str]) -> Pool:
    population, trainer = recipe.world("perceptron")
    setup = WorkerSetup(method, trainer, population.me)
    return Pool(lambda _: setup, workers, 1 << 12, note=notes.append, patience=patience)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_stays_stopped_is_named_and_replaced_and_the_bits_are_the_same(
    workers: int, tmp_path: Path
) -> None:
    def stop_once() -> None:
        try:
            (tmp_path / "stopped").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGSTOP)

    notes: list[str] = []
    method = Drawing(stop_once)
    pool = pool_of(method, workers, HASTE, notes)
    before = [w.process.pid for w in pool.workers]
    try:
        ends = list(states(method, lambda _: Workers(pool, 0, method)))
        after = [w.process.pid for w in pool.workers]
    finally:
        pool.close()
    assert ends == list(states(Drawing(), Sequential))
    (lost,) = set(before) - set(after)
    with pytest.raises(ProcessLookupError):
        os.kill(lost, 0)
    first, second = notes
    who = f"worker {before.index(lost)} (process {lost}), at work on client "
    assert first.startswith(who)
    assert second.startswith(who)
    assert "1" in first.split("client ")[1].split(" of ")[0].split(", ")
    assert first.endswith(
        f"of round 1, step 'turn', has been stopped for 0.02 s; kill -CONT {lost} lets it go on, else it is replaced "
        "after 0.1 s"
    )
    assert second.endswith("has been stopped for 0.1 s and is replaced; its work is done again")


def test_a_main_process_in_the_middle_of_a_large_message_is_freed_as_well() -> None:
    """More than a megabyte does not fit into the slots or the pipe: the main process is writing when nobody reads."""
    notes: list[str] = []
    method = Drawing(length=400_000)
    pool = pool_of(method, 1, HASTE, notes)
    try:
        sim = states(method, lambda _: Workers(pool, 0, method))
        first = next(sim)
        os.kill(pool.workers[0].process.pid, signal.SIGSTOP)
        assert [first, next(sim)] == list(states(method, Sequential))
    finally:
        pool.close()
    assert len(notes) == 2


def test_a_stopped_worker_that_goes_on_in_time_keeps_its_work() -> None:
    notes: list[str] = []

    def go_on(text: str) -> None:
        notes.append(text)
        os.kill(pool.workers[0].process.pid, signal.SIGCONT)

    method = Drawing(lambda: os.kill(os.getpid(), signal.SIGSTOP))
    population, trainer = recipe.world("perceptron")
    setup, patience = WorkerSetup(method, trainer, population.me), Patience(0.01, 0.02, 1e9, 1e9, 1e9)
    pool = Pool(lambda _: setup, 1, 1 << 12, note=go_on, patience=patience)
    pid = pool.workers[0].process.pid
    try:
        assert next(states(method, lambda _: Workers(pool, 0, method))) == next(states(Drawing(), Sequential))
        assert pool.workers[0].process.pid == pid
    finally:
        pool.close()
    assert len(notes) == 1


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc to know what a process uses")
def test_a_worker_that_waits_is_reported_and_never_replaced() -> None:
    notes: list[str] = []
    method = Drawing(lambda: time.sleep(0.4))
    patience = Patience(every_s=0.01, stopped_s=0.01, replace_s=0.01, idle_s=0.1, again_s=1e9)
    pool = pool_of(method, 1, patience, notes)
    pid = pool.workers[0].process.pid
    try:
        next(states(method, lambda _: Workers(pool, 0, method)))
        assert pool.workers[0].process.pid == pid
    finally:
        pool.close()
    assert notes
    assert all(f"(process {pid})" in n and "has used no processor time for 0.1 s" in n for n in notes)


class Scripted(Process):
    """A process whose state is told look by look."""

    def __init__(self) -> None:
        super().__init__(7)
        self.is_stopped, self.used = False, 0.0

    def stopped(self) -> bool:
        return self.is_stopped

    def cpu_s(self) -> float:
        return self.used


def test_a_slow_worker_is_never_reported_and_a_silent_one_rarely() -> None:
    """By looks of one second: reports at 3 s and then every 10 s; anything the worker does begins the count again."""
    watch, process = Watch(Patience(1.0, 2.0, 1e9, 3.0, 10.0)), Scripted()
    for _ in range(100):
        process.used += 0.01
        assert watch.look(process, busy=True) == ""
    reports = [watch.look(process, busy=True) for _ in range(30)]
    assert [i + 1 for i, text in enumerate(reports) if text] == [3, 13, 23]
    process.used += 0.01
    assert [bool(watch.look(process, busy=True)) for _ in range(4)] == [False, False, False, True]
    assert not any(watch.look(process, busy=False) for _ in range(30)), "one without work has nothing to do"
    process.is_stopped = True
    assert [bool(watch.look(process, busy=True)) for _ in range(13)] == [False, True, *[False] * 9, True, False]
    assert not watch.given_up
