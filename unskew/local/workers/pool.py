"""The main process's side: jobs, their assignment to workers, and their answers."""

import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Protocol

from unskew import errors, wire
from unskew.errors import UnskewError, WorkerError
from unskew.local.workers.memory import (
    JOBS_IN_FLIGHT,
    SLOTS,
    SharedBuffer,
    Slot,
    clients_per_job,
    common_bytes,
    slot_bytes,
    views,
)
from unskew.local.workers.worker import Open, serve

_PIPE_BYTES = 16_384  # that a pipe always takes, even if the other end is not being read

LOOK_S = 1.0
"""Seconds without an answer after which workers are looked at."""


class Process:
    """A forked process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ending: str | None = None  # the system reports it only once

    def ended(self) -> str | None:
        """Description of how it ended; None while it runs."""
        if self._ending is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self._ending = _in_words(os.waitstatus_to_exitcode(status)) if pid else None
            except ChildProcessError:
                self._ending = "it is gone"
        return self._ending

    def end(self) -> None:
        """End it and wait until it is gone."""
        if self.ended() is None:  # else its number may be another process's by now
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)


def fork(child: Callable[[], object], close: Iterable[Connection]) -> Process:
    """Fork a process that does its work and ends.

    Args:
        child: Its work.
        close: Ends of pipes that are not its own, which would stay open when the parent dies.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Process(pid)
    try:  # the child never returns from here
        for pipe in close:
            pipe.close()
        child()
    finally:
        os._exit(0)


def _in_words(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"


@dataclass(eq=False)
class ToWorker:
    """A value on its way to a worker; `shared` is its place if several jobs share it."""

    value: Any
    shared: dict[str, Any] | None = None

    def write(self, slot: Slot, at: int, inline: list[bytes]) -> tuple[dict[str, Any], int]:
        """Write it into the slot from offset `at`, or behind the job: its place, and the next offset."""
        if self.shared is not None:
            return self.shared, at
        placed = slot.put(self.value, at)
        if placed is None:
            inline.append(wire.encode(self.value))
            return {"inline": len(inline) - 1}, at
        body, index, end = placed
        return {"body": body, "index": index}, end


@dataclass(eq=False)
class Job:
    """Requests on their way to a worker, a name for each, and the pair of slots they use."""

    requests: list[dict[str, Any]]
    names: list[Any]
    slot: int = 0


@dataclass(eq=False)
class _Worker:
    """A process, the main process's end of its pipe, where jobs and answers lie, and the jobs it has.

    `waiting` is a job too large for the pipe, with what is written of it: it is sent when the worker is idle and so
    reads.  Sent earlier, main process and worker could both be writing and neither reading.
    """

    number: int
    process: Process
    pipe: Connection
    inbox: list[Slot]
    outbox: list[Slot]
    jobs: deque[Job] = field(default_factory=deque)
    waiting: tuple[Job, list[bytes]] | None = None

    @property
    def free(self) -> bool:
        """True if it can be given another job."""
        return len(self.jobs) < JOBS_IN_FLIGHT and self.waiting is None

    def __str__(self) -> str:
        return f"worker {self.number} (process {self.process.pid})"

    @property
    def doing(self) -> str:
        """Names of the requests it has: clients, or pieces of an evaluation."""
        names = [name for job in list(self.jobs) for name in job.names]
        clients = all(isinstance(name, int) for name in names)
        return f"{'client ' if clients else ''}{', '.join(map(str, names))}" if names else "nothing"


class JobPool(Protocol):
    """The processes of a run, for the executor: `Pool`, or `RayPool` on a cluster."""

    @property
    def workers(self) -> Sequence[Any]:
        """The processes."""
        ...

    @property
    def shared(self) -> SharedBuffer | None:
        """Memory shared by all of them, if there is any."""
        ...

    def run(self, requests: Mapping[Any, dict[str, Any]], where: str) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Run requests; yields (name, answer) of each as they end."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...


class Pool:
    """The worker processes of a run.

    Args:
        open_setup: Makes a setup by its number; called inside the workers.
        workers: Number of workers.
        model_bytes: Size of a model; sets how much memory is shared.

    Raises:
        WorkerError: If the system allows no more processes, pipes or memory.
    """

    def __init__(self, open_setup: Open, workers: int, model_bytes: int) -> None:
        self.model_bytes, self.shared = model_bytes, SharedBuffer(common_bytes(model_bytes))
        self.workers: list[_Worker] = []
        self._open, self._where = open_setup, ""
        try:
            for number in range(workers):
                self.workers.append(self._begin(number))
        except BaseException as error:
            begun = len(self.workers)
            self.close()
            if isinstance(error, OSError):
                raise WorkerError(
                    f"worker {begun} of {workers} could not be started: {error.strerror}; "
                    "lower runtime.workers or take runtime.executor = 'sequential'"
                ) from None
            raise

    def _begin(self, number: int) -> _Worker:
        """Fork a worker."""
        size = slot_bytes(self.model_bytes)
        buffer = SharedBuffer(SLOTS * size)
        slots = [Slot(buffer, i * size, size) for i in range(SLOTS)]
        mine, theirs = Pipe()
        sisters = (mine, *(other.pipe for other in self.workers))
        child = fork(lambda: serve(self._open, theirs, slots, self.shared), sisters)
        theirs.close()
        return _Worker(number, child, mine, slots[:JOBS_IN_FLIGHT], slots[JOBS_IN_FLIGHT:])

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.pipe.close()
        for worker in self.workers:
            worker.process.end()
        self.workers = []

    # ------------------------------------------------------------------ jobs
    def run(self, requests: Mapping[Any, dict[str, Any]], where: str) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Run requests on free workers; yields (name, answer) of each as they end.

        Args:
            requests: By name.
            where: The exchange or evaluation they belong to, for messages about failures.

        Raises:
            WorkerError: If a worker dies.
        """
        queue = deque(jobs_of(requests, len(self.workers), clients_per_job(self.model_bytes)))
        missing, self._where = len(queue), where
        try:
            while missing:
                for _ in range(JOBS_IN_FLIGHT):
                    for worker in self.workers:
                        if queue and worker.free:
                            self._send(worker, queue.popleft())
                busy = {w.pipe: w for w in self.workers if w.jobs}
                ready = wait(list(busy), timeout=LOOK_S)
                if not ready:
                    self._require_alive()
                for pipe in ready:
                    worker = busy[pipe]  # type: ignore[index]
                    try:
                        head = json.loads(worker.pipe.recv_bytes())
                        answers = self._receive(worker, worker.jobs[0], head)
                    except (EOFError, OSError):
                        raise self._died(worker) from None
                    job = worker.jobs.popleft()
                    if worker.waiting is not None and not worker.jobs:
                        waiting, worker.waiting = worker.waiting, None
                        self._write(worker, *waiting)
                    if queue and worker.free:
                        self._send(worker, queue.popleft())
                    missing -= 1
                    yield from zip(job.names, answers, strict=True)
        except BaseException:
            self.close()  # answers still on their way are not wanted
            raise

    def _send(self, worker: _Worker, job: Job) -> None:
        used = {other.slot for other in worker.jobs}
        job.slot = next(i for i in range(JOBS_IN_FLIGHT) if i not in used)
        slot = worker.inbox[job.slot]
        at = slot.start
        heads: list[dict[str, Any]] = []
        inline: list[bytes] = []
        for request in job.requests:
            head = {}
            for key, value in request.items():
                if isinstance(value, ToWorker):
                    head[key], at = value.write(slot, at, inline)
                else:
                    head[key] = value
            heads.append(head)
        order = {"slot": job.slot, "heads": heads, "inline": len(inline)}
        parts = [json.dumps(order).encode(), *inline]
        if worker.jobs and sum(map(len, parts)) > _PIPE_BYTES:
            worker.waiting = job, parts
        else:
            self._write(worker, job, parts)

    def _write(self, worker: _Worker, job: Job, parts: list[bytes]) -> None:
        worker.jobs.append(job)
        try:
            for part in parts:
                worker.pipe.send_bytes(part)
        except OSError:
            raise self._died(worker) from None

    def _receive(self, worker: _Worker, job: Job, head: dict[str, Any]) -> list[dict[str, Any]]:
        inline = [worker.pipe.recv_bytes() for _ in range(head["inline"])]
        if "error" in head:
            raise exception(*head["error"])
        buffer = worker.outbox[job.slot].buffer
        answers: list[dict[str, Any]] = head["answers"]
        for answer in answers:
            parts: dict[str, Any] = {}
            for key, part in answer["parts"].items():
                if "inline" in part:
                    parts[key] = inline[part["inline"]]
                else:  # each value in memory of its own: what a client remembers must not keep its reply alive
                    start, end = part["at"]
                    parts[key] = (part["body"], views(buffer.copy(start, end), part["index"], start))
            answer["parts"] = parts
        return answers

    def _require_alive(self) -> None:
        """Look for workers that died without closing their pipe; called when none has answered for a while."""
        for worker in self.workers:
            if worker.jobs and worker.process.ended() is not None and not worker.pipe.poll():
                raise self._died(worker)

    def _died(self, worker: _Worker) -> WorkerError:
        until = time.monotonic() + 1.0  # its pipe closes a moment before the system reports how it ended
        while (ending := worker.process.ended()) is None and time.monotonic() < until:
            time.sleep(0.01)
        ending = ending or "it closed its pipe"
        return WorkerError(f"{worker} is gone while at work on {worker.doing} of {self._where}: {ending}")


def jobs_of(requests: Mapping[Any, dict[str, Any]], workers: int, most: int) -> Iterator[Job]:
    """Group requests, at most `most` in a job, so that every worker gets several jobs."""
    left, parts = deque(requests.items()), 4 * workers
    while left:
        several = [left.popleft() for _ in range(max(1, min(most, len(left) // parts)))]
        yield Job([request for _, request in several], [name for name, _ in several])


def exception(kind: str, text: str, trace: str) -> Exception:
    """A worker's failure as the exception it was; the trace of an unexpected one is a note on it."""
    error_type = getattr(errors, kind, None)
    assert isinstance(error_type, type)
    assert issubclass(error_type, UnskewError)
    error = error_type(text)
    if error_type is WorkerError:
        error.add_note(f"in a worker:\n{trace}")
    return error
