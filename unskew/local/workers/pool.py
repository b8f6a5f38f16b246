"""The main process's side: jobs, their assignment to workers, and their answers."""

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import get_all_start_methods
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import torch

from unskew import errors, wire
from unskew.errors import ProtocolError, UnskewError, WorkerError
from unskew.local.workers import process
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
from unskew.local.workers.process import Process
from unskew.local.workers.recipe import Open, Recipe
from unskew.local.workers.worker import serve

_PIPE_BYTES = 16_384  # that a pipe always takes, even if the other end is not being read


@dataclass(eq=False)
class ToWorker:
    """A value on its way to a worker; one that several jobs share is written once, and `shared` says where."""

    value: Any
    shared: dict[str, Any] | None = None

    def write(self, slot: Slot | None, at: int, inline: list[bytes]) -> tuple[dict[str, Any], int]:
        """Put it into the slot from offset `at`, or among the bytes behind the job: its place, and the next offset."""
        if self.shared is not None:
            return self.shared, at
        placed = slot.put(self.value, at) if slot is not None else None
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


@dataclass(frozen=True, eq=False)
class _Packet:
    """A job as it is written into the pipe."""

    job: Job
    parts: list[bytes]


@dataclass(eq=False)
class _Worker:
    """A process, the main process's end of its pipe, where jobs and answers lie, and the jobs it has.

    `waiting` is a job too large for the pipe: it is sent when the worker is idle and so reads.  Sent earlier, main
    process and worker could both be writing and neither reading.
    """

    number: int
    process: Process
    pipe: Connection
    inbox: list[Slot]
    outbox: list[Slot]
    jobs: deque[Job]
    waiting: _Packet | None = None

    @property
    def free(self) -> bool:
        """True if it can be given another job."""
        return len(self.jobs) < JOBS_IN_FLIGHT and self.waiting is None


class Pool:
    """The worker processes of a run.

    Args:
        open_setup: Makes a setup by its number; called inside the workers.
        workers: Number of workers.
        model_bytes: Size of a model; sets how much memory is shared.
        recipe: For systems that cannot fork.
        fork: Fork if the system can.

    Raises:
        WorkerError: If the system allows no more processes, pipes or memory; the workers begun so far are ended.
    """

    def __init__(
        self, open_setup: Open, workers: int, model_bytes: int, recipe: Recipe | None = None, fork: bool = True
    ) -> None:
        can_fork = fork and "fork" in get_all_start_methods()
        if not can_fork and recipe is None:
            raise ProtocolError("workers that cannot be forked need a recipe to build their setups from")
        self.forked, self.model_bytes = can_fork, model_bytes
        self.shared = SharedBuffer(common_bytes(model_bytes)) if can_fork else None
        self.workers: list[_Worker] = []
        try:
            for number in range(workers):
                self.workers.append(
                    self._begin(number, open_setup, slot_bytes(model_bytes), None if can_fork else recipe)
                )
        except BaseException as error:
            begun = len(self.workers)
            self.close()
            if isinstance(error, OSError):
                raise WorkerError(
                    f"worker {begun} of {workers} could not be started: {error.strerror}; "
                    "lower runtime.workers or take runtime.executor = 'sequential'"
                ) from None
            raise

    def _begin(self, number: int, open_setup: Open, size: int, recipe: Recipe | None) -> _Worker:
        """Fork a worker, or start it by a recipe."""
        buffer = SharedBuffer(SLOTS * size) if recipe is None else None
        slots = [Slot(buffer, i * size, size) for i in range(SLOTS)] if buffer else []
        mine, theirs = Pipe()
        child = self._fork(open_setup, mine, theirs, slots) if recipe is None else process.start(recipe, theirs)
        theirs.close()
        return _Worker(number, child, mine, slots[:JOBS_IN_FLIGHT], slots[JOBS_IN_FLIGHT:], deque())

    def _fork(self, open_setup: Open, mine: Connection, theirs: Connection, slots: list[Slot]) -> Process:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return Process(pid)
        try:  # the child never returns from here
            mine.close()
            for other in self.workers:  # an inherited end would keep a sister's pipe open when the parent dies
                other.pipe.close()
            serve(open_setup, theirs, slots, self.shared)
        finally:
            os._exit(0)

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.pipe.close()
        for worker in self.workers:
            worker.process.end()
        self.workers = []

    # ------------------------------------------------------------------ jobs
    def run(self, requests: Mapping[Any, dict[str, Any]], where: str) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Have requests answered by whichever worker is free; (name, answer) of each as they end.

        Args:
            requests: By name.
            where: The exchange or evaluation they belong to, for messages about failures.
        """
        queue = deque(jobs_of(requests, len(self.workers), clients_per_job(self.model_bytes)))
        missing = len(queue)
        try:
            for _ in range(JOBS_IN_FLIGHT):
                for worker in self.workers:
                    if queue and worker.free:
                        self._send(worker, queue.popleft(), where)
            while missing:
                busy = {w.pipe: w for w in self.workers if w.jobs}
                for pipe in wait(list(busy), timeout=1.0) or self._check(where):
                    worker = busy[pipe]  # type: ignore[index]
                    try:
                        head = json.loads(worker.pipe.recv_bytes())
                        job = worker.jobs.popleft()
                        answers = self._receive(worker, job, head)
                    except (EOFError, OSError):
                        raise self._died(worker, where) from None
                    if worker.waiting is not None and not worker.jobs:
                        packet, worker.waiting = worker.waiting, None
                        self._write(worker, packet, where)
                    if queue and worker.free:
                        self._send(worker, queue.popleft(), where)
                    missing -= 1
                    yield from zip(job.names, answers, strict=True)
        except BaseException:
            self.close()  # answers still on their way are not wanted
            raise

    def _send(self, worker: _Worker, job: Job, where: str) -> None:
        used = {other.slot for other in worker.jobs}
        job.slot = next(i for i in range(JOBS_IN_FLIGHT) if i not in used)
        slot = worker.inbox[job.slot] if worker.inbox else None
        at = slot.start if slot else 0
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
        packet = _Packet(job, [json.dumps(order).encode(), *inline])
        if worker.jobs and sum(map(len, packet.parts)) > _PIPE_BYTES:
            worker.waiting = packet
        else:
            self._write(worker, packet, where)

    def _write(self, worker: _Worker, packet: _Packet, where: str) -> None:
        worker.jobs.append(packet.job)
        try:
            for part in packet.parts:
                worker.pipe.send_bytes(part)
        except OSError:
            raise self._died(worker, where) from None

    def _receive(self, worker: _Worker, job: Job, head: dict[str, Any]) -> list[dict[str, Any]]:
        inline = [worker.pipe.recv_bytes() for _ in range(head["inline"])]
        if "error" in head:
            raise _exception(*head["error"])
        slot = worker.outbox[job.slot] if worker.outbox else None
        answers: list[dict[str, Any]] = head["answers"]
        for answer in answers:
            parts: dict[str, Any] = {}
            for key, part in answer["parts"].items():
                if "inline" in part:
                    parts[key] = inline[part["inline"]]
                else:  # each value in memory of its own: what a client remembers must not keep its reply alive
                    start, end = part["at"]
                    octets = slot.buffer.copy(start, end) if slot else torch.empty(0, dtype=torch.uint8)
                    parts[key] = (part["body"], views(octets, part["index"], start))
            answer["parts"] = parts
        return answers

    def _check(self, where: str) -> list[Any]:
        """Raise if a worker has died; called when none has answered for a second."""
        for worker in self.workers:
            if worker.jobs and worker.process.ended() is not None and not worker.pipe.poll():
                raise self._died(worker, where)
        return []

    def _died(self, worker: _Worker, where: str) -> WorkerError:
        until = time.monotonic() + 1.0  # its pipe closes a moment before the system reports how it ended
        while (ending := worker.process.ended()) is None and time.monotonic() < until:
            time.sleep(0.01)
        ending = ending or "it closed its pipe"
        doing = ", ".join(str(name) for job in worker.jobs for name in job.names) or "nothing"
        return WorkerError(
            f"worker {worker.number} (process {worker.process.pid}) is gone while doing {doing} of {where}: {ending}"
        )


def jobs_of(requests: Mapping[Any, dict[str, Any]], workers: int, most: int) -> Iterator[Job]:
    """Group requests, at most `most` in a job and so few that every worker still gets several jobs."""
    left, parts = deque(requests.items()), 4 * workers
    while left:
        several = [left.popleft() for _ in range(max(1, min(most, len(left) // parts)))]
        yield Job([request for _, request in several], [name for name, _ in several])


def _exception(kind: str, text: str, trace: str) -> Exception:
    """Return a worker's failure as the exception it was; the trace of an unexpected one is added as a note."""
    error_type = getattr(errors, kind, None)
    assert isinstance(error_type, type)
    assert issubclass(error_type, UnskewError)
    error = error_type(text)
    if error_type is WorkerError:
        error.add_note(f"in a worker:\n{trace}")
    return error
