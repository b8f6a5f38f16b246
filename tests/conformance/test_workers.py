"""Worker processes: every method ends with the bits of the sequential executor."""

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import recipe
import torch
from grid import GRID, one_network_each
from recipe import CASES, SEED, bits, make, recorded, rounds, simulator, world
from torch import Tensor

from unskew.errors import DivergedError, WorkerError
from unskew.keys import Key
from unskew.local.data import DeviceData
from unskew.local.executor import EvalJob
from unskew.local.sequential import Sequential
from unskew.local.trainer import LocalTrainer
from unskew.local.workers import pool as pool_module
from unskew.local.workers.executor import Workers
from unskew.local.workers.pool import Pool, jobs_of
from unskew.local.workers.worker import WorkerSetup
from unskew.protocol import ClientId, Federation, Me, Plan, SgdConfig, Step, ask, step
from unskew.runtime.in_process import Population, Simulator
from unskew.tree import Params


def open_cell(index: int) -> WorkerSetup:
    case, network = GRID[index]
    method = make(case)
    population, trainer = world(network, bool(getattr(method, "pooled", False)))
    return WorkerSetup(method, trainer, population.me)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(open_cell, workers=2, model_bytes=1 << 12)
    yield made
    made.close()


@one_network_each(CASES, turn=(2, 3))
def test_workers_end_with_the_bits_of_the_sequential_executor(case: str, network: str, pool: Pool) -> None:
    many = simulator(case, network, seed=SEED)
    many.clients.executor = Workers(pool, GRID.index((case, network)), many.method)
    for (moment, trace), (_, state, same) in zip(recorded(case, network).rounds, rounds(many), strict=True):
        assert bits(many, state) == moment.bits
        assert trace == same


def test_personal_models_that_need_work_are_made_in_workers(pool: Pool) -> None:
    case = ("fedavg, own head", "perceptron")
    sim = simulator(*case)
    state, _ = sim.round(sim.start(), 1)
    expected = sim.own_models(state, sim.population.clients, 1)
    sim.clients.executor = Workers(pool, GRID.index(case), sim.method)
    got = sim.own_models(state, sim.population.clients, 1)
    assert {c: {n: t.tolist() for n, t in m.items()} for c, m in got.items()} == {
        c: {n: t.tolist() for n, t in m.items()} for c, m in expected.items()
    }


@pytest.mark.parametrize("rows", [None, torch.arange(3, 30), torch.arange(0)])
def test_grading_in_pieces_gives_the_bits_of_grading_at_once(
    rows: torch.Tensor | None, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = GRID.index(("fedavg", "perceptron"))
    population, trainer = world("perceptron")
    graded = Workers(pool, cell, make("fedavg")).evaluate([EvalJob(population.initial, "train", rows)] * 2)
    whole = torch.arange(trainer.size("train")) if rows is None else rows
    correct, loss = (
        trainer.evaluate(population.initial, "train", whole) if len(whole) else (torch.empty(0), torch.empty(0))
    )
    for right, each in graded:
        assert right.tolist() == correct.tolist()
        assert each.tolist() == loss.tolist()


def test_what_does_not_fit_into_shared_memory_goes_through_the_pipe() -> None:
    case = ("scaffold", "perceptron")
    sim = simulator(*case)
    reference = [bits(sim, state) for _, state, _ in rounds(sim)]
    tight = Pool(open_cell, workers=2, model_bytes=0)
    for buffer in [w.inbox[0].buffer for w in tight.workers]:
        assert buffer is not None
    for worker in tight.workers:
        for slot in worker.inbox:
            slot.size = 64
    try:
        again = simulator(*case)
        again.clients.executor = Workers(tight, GRID.index(case), again.method)
        assert [bits(again, state) for _, state, _ in rounds(again)] == reference
    finally:
        tight.close()


# ---------------------------------------------------------------- several clients in a job
@pytest.fixture
def crowd() -> Callable[[], tuple[Population, LocalTrainer]]:
    """Twenty clients of 1 to 20 examples, the conformance clients' network."""

    def make_crowd() -> tuple[Population, LocalTrainer]:
        task, sizes = recipe.task_of("perceptron"), list(range(1, 21))
        g = Key(5).generator()
        x, y = torch.randn(sum(sizes), 4, generator=g), torch.randint(recipe.CLASSES, (sum(sizes),), generator=g)
        rows = torch.split(torch.arange(len(y)), sizes)
        histograms = torch.stack([torch.bincount(y[r], minlength=recipe.CLASSES) for r in rows])
        return Population(histograms, task.layout, task.init(Key(3)), task.init), LocalTrainer(
            task, DeviceData(x, y, rows, rows)
        )

    return make_crowd


@pytest.mark.parametrize("case", [pytest.param("scaffold", marks=pytest.mark.slow), "relay"])
def test_many_clients_share_jobs_and_end_with_the_same_bits(
    case: str, crowd: Callable[[], tuple[Population, LocalTrainer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scaffold's clients remember, the relay's keep values; a job of several is what makes this another test."""
    population, trainer = crowd()
    alone = Simulator(make(case), population, Sequential(trainer))
    pool = Pool(lambda _: WorkerSetup(make(case), trainer, population.me), 2, 1 << 12)
    together: list[int] = []
    jobs = jobs_of
    monkeypatch.setattr(pool_module, "jobs_of", lambda *args: [together.append(len(j.names)) or j for j in jobs(*args)])
    try:
        many = Simulator(make(case), population, Workers(pool, 0, make(case)))
        for (_, one, trace), (_, other, same) in zip(rounds(alone), rounds(many), strict=True):
            assert bits(alone, one) == bits(many, other)
            assert trace == same
    finally:
        pool.close()
    assert max(together) > 1


@dataclass(frozen=True)
class Bulk:
    """Messages and replies of megabytes, another one for each client."""

    big: Tensor


@dataclass(frozen=True)
class Bulky:
    def init(self, params: Params, fed: Federation) -> Bulk:
        return Bulk(torch.zeros(1))

    def round(self, state: Bulk, fed: Federation) -> Plan[Bulk]:
        replies = yield from ask(self.turn, {c: Bulk(torch.full((600_000,), float(c))) for c in fed.clients})
        return Bulk(torch.stack([r.big.sum() for r in replies.values()]))

    @step
    def turn(self, me: Me, msg: Bulk, memory: None) -> Step[tuple[Bulk, None]]:
        yield from ()  # a step that cannot ask for anything would not be sent to a worker
        return Bulk(msg.big + 1.0), None

    def serve(self, state: Bulk, client: ClientId | None) -> Params | None:
        return None


@pytest.mark.timeout(60)
def test_large_messages_and_replies_do_not_wait_for_each_other() -> None:
    """Neither fits into its slot, so both go through the pipe, which holds 64 kB: once parent and worker both wrote."""
    population, trainer = world("perceptron", False)
    pool = Pool(lambda _: WorkerSetup(Bulky(), trainer, population.me), 2, 64)
    try:
        sim = Simulator(Bulky(), population, Workers(pool, 0, Bulky()))
        for t in (1, 2):
            state, _ = sim.round(sim.start(), t)
            assert state.big.tolist() == [600_000.0 * (c + 1) for c in population.clients]
    finally:
        pool.close()


def test_a_worker_that_is_killed_is_named(pool: Pool) -> None:
    own = Pool(open_cell, workers=2, model_bytes=1 << 12)
    sim = simulator("fedavg", "perceptron")
    sim.clients.executor = Workers(own, GRID.index(("fedavg", "perceptron")), sim.method)
    state, _ = sim.round(sim.start(), 1)
    victim = own.workers[1].process.pid
    os.kill(victim, signal.SIGKILL)
    said = rf"worker 1 \(process {victim}\) is gone .*round 2, step 'train': it was ended by SIGKILL"
    with pytest.raises(WorkerError, match=said):
        sim.round(state, 2)
    assert own.workers == []


def test_a_system_that_allows_no_more_processes_is_one_sentence_and_leaves_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fork, starts = os.fork, []

    def only_two() -> int:
        if len(starts) == 2:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        starts.append(fork())
        return starts[-1]

    monkeypatch.setattr(os, "fork", only_two)
    with pytest.raises(WorkerError) as caught:
        Pool(open_cell, workers=3, model_bytes=1 << 12)
    assert str(caught.value) == (
        "worker 2 of 3 could not be started: Resource temporarily unavailable; lower runtime.workers or take "
        "runtime.executor = 'sequential'"
    )
    for pid in starts:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_workers_end_when_their_parent_is_killed() -> None:
    """The parent of these workers is a child of ours that is killed: its pipes close, and they go."""
    out, into = os.pipe()
    child = os.fork()
    if not child:
        try:
            own = Pool(open_cell, workers=2, model_bytes=1 << 12)
            os.write(into, " ".join(str(w.process.pid) for w in own.workers).encode())
            time.sleep(60)
        finally:
            os._exit(0)
    pids = [int(p) for p in os.read(out, 100).split()]
    assert len(pids) == 2
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    until = time.monotonic() + 10
    while any(_lives(p) for p in pids) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(_lives(p) for p in pids)


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_failure_in_a_worker_is_the_failure_it_was() -> None:
    own = Pool(lambda _: _diverging(), workers=1, model_bytes=1 << 12)
    try:
        cell = _diverging()
        sim = simulator("fedavg", "perceptron", method=cell.method)
        sim.clients.executor = Workers(own, 0, cell.method)
        with pytest.raises(DivergedError, match=r"round 1, client \d: the loss "):
            sim.round(sim.start(), 1)
    finally:
        own.close()


def _diverging() -> WorkerSetup:
    method: Any = make("fedavg", local=SgdConfig(1e30, batch_size=4, local_epochs=5))
    population, trainer = world("perceptron")
    return WorkerSetup(method, trainer, population.me)
