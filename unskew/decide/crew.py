"""Workers for cells: this process, processes of this machine, or actors of a Ray cluster.

A worker gets the cell's input and returns its outcome, as JSON.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from unskew.decide.cells import CellWork, Crew, Outcome
from unskew.errors import ConfigError, WorkerError
from unskew.local import ray as on_ray
from unskew.local.workers.worker import failure

Answer = tuple[Outcome, list[str] | None]
WATCH_S = 0.5
"""How often a worker looks whether the process that began it is still there."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@contextmanager
def crew(work: CellWork, workers: int | None = None, ray: str | None = None) -> Iterator[Crew]:
    """Start workers, and end them: Ray actors if `ray` is an address, else processes, or this one.

    Raises:
        ConfigError, WorkerError: If they cannot be started.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be at least 1, got {workers}")
    if ray is not None:
        begun: Crew = OnRay(work, ray, workers)
    else:
        begun = Here(work) if workers is None or workers == 1 else Processes(work, workers)
    try:
        yield begun
    finally:
        begun.close()


def _answer(work: CellWork, asked: Mapping[str, Any], homes: Collection[str]) -> Answer:
    """An outcome, or the failure that is told instead."""
    try:
        work.keep(homes)
        return work.train(asked), None
    except Exception as error:
        return None, failure(error)


# ---------------------------------------------------------------- this process
@dataclass(eq=False)
class Here(Crew):
    """This process: cells are done at once, and failures are raised."""

    work: CellWork
    count: int = 1
    outcome: Outcome = None

    def send(self, worker: int, asked: Mapping[str, Any], homes: Collection[str]) -> None:
        """Train the cell."""
        self.work.keep(homes)
        self.outcome = self.work.train(asked)

    def receive(self) -> tuple[int, Outcome, None]:
        """The outcome."""
        return 0, self.outcome, None


# ---------------------------------------------------------------- processes
class Processes(Crew):
    """Processes of this machine: forks of this one, or `new` ones, which get the work pickled.

    New ones get requests to stop; lost ones are restarted.

    Raises:
        ConfigError: If the system cannot fork.
        WorkerError: If they could not be started.
    """

    def __init__(self, work: CellWork, count: int, *, new: bool = False, threads: int = 1) -> None:
        if not new and "fork" not in get_all_start_methods():
            raise ConfigError(f"workers = {count} needs a system that can fork; leave it out, or give ray an address")
        self.work, self.count, self.threads, self.stops = work, count, threads, new
        self.pipes: list[Connection] = []
        self.processes: list[BaseProcess] = []
        self.busy: set[int] = set()
        try:
            for number in range(count):
                self._begin(number)
        except OSError as error:
            self.close()
            raise WorkerError(f"{count} worker processes could not be started: {error.strerror}; give fewer") from error

    def _begin(self, number: int) -> None:
        mine, theirs = Pipe()
        others = [] if self.stops else [mine, *self.pipes]  # a fork would keep them open when this process is gone
        context = get_context("spawn") if self.stops else get_context("fork")
        process = context.Process(target=_serve, args=(self.work, theirs, others, self.threads))
        before = {name: os.environ.get(name) for name in THREADS}
        os.environ.update(dict.fromkeys(THREADS, str(self.threads)))
        try:
            process.start()
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                os.environ.update({} if value is None else {name: value})
        theirs.close()
        self.pipes[number : number + 1] = [mine]
        self.processes[number : number + 1] = [process]

    def send(self, worker: int, asked: Mapping[str, Any], homes: Collection[str]) -> None:
        """Write the cell into the worker's pipe; `receive` reports a lost worker."""
        self.busy.add(worker)
        with suppress(OSError):
            self.pipes[worker].send_bytes(json.dumps([asked, sorted(homes)]).encode())

    def receive(self) -> tuple[int, Outcome, list[str] | None]:
        """The first answer; a lost worker is a WorkerError."""
        worker = self.pipes.index(wait([self.pipes[n] for n in sorted(self.busy)])[0])  # type: ignore[arg-type]
        self.busy.discard(worker)
        try:
            outcome, why = json.loads(self.pipes[worker].recv_bytes())
        except (EOFError, OSError):
            self.processes[worker].join(1.0)  # its pipe is closed a moment before it has ended
            code = self.processes[worker].exitcode
            killed = "; the system kills processes if memory runs out" if code == -signal.SIGKILL else ""
            outcome, why = None, ["WorkerError", f"worker {worker} is lost, with exit code {code}{killed}", ""]
            self._end(worker)
            self._begin(worker)
        return worker, outcome, why

    def ask_to_stop(self) -> None:
        """Interrupt busy workers, as Ctrl-C would."""
        for worker in self.busy:
            if self.processes[worker].is_alive():
                os.kill(self.processes[worker].pid or 0, signal.SIGINT)

    def close(self) -> None:
        """End the processes."""
        for worker in range(len(self.processes)):
            self._end(worker)
        self.pipes, self.processes = [], []

    def _end(self, worker: int) -> None:
        self.pipes[worker].close()
        self.processes[worker].kill()
        self.processes[worker].join()


def _serve(work: CellWork, pipe: Connection, others: Sequence[Connection], threads: int) -> None:
    """Answer cells until the other end is closed, or the process that began this one is gone."""
    os.setsid()  # Ctrl-C in a terminal reaches the whole group at once; these get it from us, once
    torch.set_num_threads(threads)
    for other in others:
        other.close()
    parent = os.getppid()

    def watch() -> None:  # a cell may take hours, and nobody waits for it any longer
        while os.getppid() == parent:
            time.sleep(WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        while True:
            pipe.send_bytes(json.dumps(_answer(work, *json.loads(pipe.recv_bytes()))).encode())
    except (EOFError, OSError, KeyboardInterrupt):
        pass


# ---------------------------------------------------------------- Ray
class _Actor:
    """A worker on a core of the cluster."""

    def __init__(self, path: list[str], work: list[Any], expected: dict[str, str]) -> None:
        torch.set_num_threads(1)
        sys.path.extend(p for p in path if p not in sys.path)  # methods and data of the user's own are found there
        # A reference in a list is not resolved, so the constructor does not fail when an actor begins again.
        self._put, self._expected = work[0], expected
        self._work: CellWork | None = None

    def answer(self, asked: dict[str, Any], homes: list[str]) -> Answer:
        try:
            if apart := on_ray.differences(self._expected):
                raise WorkerError(f"a node of the Ray cluster is not like this one ({'; '.join(apart)}); take it out")
            if self._work is None:
                self._work = on_ray.imported().get(self._put)
        except Exception as error:
            return None, failure(error)
        return _answer(self._work, asked, homes)


class OnRay(Crew):
    """Actors of a Ray cluster, one a core, restarted when lost.

    Raises:
        ConfigError: If Ray is not installed.
        WorkerError: If there is no cluster at the address.
    """

    def __init__(self, work: CellWork, address: str, count: int | None) -> None:
        try:
            self._ray = on_ray.imported()
        except ConfigError:
            raise ConfigError("workers on a cluster need Ray: pip install 'unskew[ray]'") from None
        self._owned = not self._ray.is_initialized()
        if self._owned:
            on_ray.connect(address, count)
        self.count = count or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        put = self._ray.put(work)
        kind = self._ray.remote(_Actor).options(num_cpus=1, max_restarts=-1, max_task_retries=on_ray.RETRIES)
        self._actors = [kind.remote(sys.path, [put], on_ray.machine_kind()) for _ in range(self.count)]
        self._sent: dict[Any, int] = {}

    def send(self, worker: int, asked: Mapping[str, Any], homes: Collection[str]) -> None:
        """Call the actor."""
        self._sent[self._actors[worker].answer.remote(dict(asked), sorted(homes))] = worker

    def receive(self) -> tuple[int, Outcome, list[str] | None]:
        """Wait for the first actor that is done; one that died repeatedly is a WorkerError."""
        (done,), _ = self._ray.wait([*self._sent], num_returns=1)
        worker = self._sent.pop(done)
        try:
            return worker, *self._ray.get(done)
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().partition("\n")[0]
            return worker, None, ["WorkerError", f"Ray gave up after {on_ray.RETRIES} retries: {reason}", ""]

    def close(self) -> None:
        """End the actors, and Ray if it was started here."""
        for actor in self._actors:
            self._ray.kill(actor)
        if self._owned:
            self._ray.shutdown()
