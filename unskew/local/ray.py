"""Worker processes on the machines of a Ray cluster, in the place of those of `unskew.local.workers`.

The driver puts the run's `Open` (data and network) into Ray's object store once; every actor takes it from there, and
whatever an actor holds it can make again, so Ray may restart it anywhere.  Draws are keyed: work done twice has the
same bits.  Messages and replies are the wire's bytes, and one that many clients share is put once for an exchange.

A value that a step keeps stays in the object store.  The driver knows its size and where it lies; the actor of the
client it hops to fetches it from there.
"""

import os
import platform
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from annotated_types import Gt

from unskew import version, wire
from unskew.errors import ConfigError, WorkerError
from unskew.local.executor import ExecutorKind, PoolParts, Stored, room_for
from unskew.local.workers.executor import make_workers
from unskew.local.workers.memory import JOBS_IN_FLIGHT, clients_per_job
from unskew.local.workers.pool import Job, ToWorker, exception, jobs_of
from unskew.local.workers.recipe import Open, WorkerSetup
from unskew.local.workers.worker import answer, failure, keep_freed_memory

RETRIES = 8
"""Times that Ray runs a job again after its actor died, before the run ends: a job may be what kills it."""

STARTING_S = 120.0
"""Time in which the first actor must be at work, seconds."""


def machine_kind() -> dict[str, str]:
    """Return what the last bits of training depend on: versions, processor family, vector instructions of PyTorch."""
    return {
        "unskew": version.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


# ---------------------------------------------------------------- an actor's side
@dataclass(frozen=True, eq=False)
class _Arguments:
    """Values of a job, each in an argument of the call; a kept value is one of those in its argument."""

    values: Sequence[Any]

    def read(self, place: dict[str, Any], value_type: Any) -> Any:
        value = self.values[place["argument"]]
        return wire.decode(value[place["path"]] if "path" in place else value, value_type)


class _Actor:
    """Answers jobs on one core of the cluster."""

    def __init__(self, path: list[str], opener: list[Any], expected: dict[str, str] | None) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        sys.path.extend(p for p in path if p not in sys.path)  # methods and data of the user's own are found there
        # A reference in a list is not resolved, so the constructor does not fail when an actor begins again.
        self._opener, self._expected = opener[0], expected
        self._open: Open | None = None
        self._cell = -1
        self._setup: WorkerSetup | None = None

    def pid(self) -> int:
        """Return the number of its process, once it has started."""
        return os.getpid()

    def answer(self, heads: list[dict[str, Any]], *values: Any) -> Any:
        """Answer the requests of a job: all answers or a failure, then what each client's step kept, by path."""
        answers, kept = [], []
        try:
            self._check_machine()
            for head in heads:
                given, parts = answer(self._setup_of(head["cell"]), head, _Arguments(values))
                data = {key: wire.encode(value) for key, value in parts.items()}
                stays = {path: data.pop(path) for path in given.get("kept", ())}
                given["sizes"] = {path: (len(stays[path]), wire.kind(parts[path])) for path in stays}
                answers.append({**given, "parts": data})
                kept.append(stays)
        except BaseException as error:
            return [failure(error), *({} for _ in heads)]
        return [answers, *kept]

    def _setup_of(self, cell: int) -> WorkerSetup:
        if self._open is None:
            self._open = imported().get(self._opener)
        if self._setup is None or cell != self._cell:
            self._cell, self._setup = cell, self._open(cell)
        return self._setup

    def _check_machine(self) -> None:
        here = machine_kind()
        differences = [f"{k} {here[k]} here, {v} there" for k, v in (self._expected or {}).items() if here[k] != v]
        if differences:
            raise WorkerError(
                f"node {platform.node()} is not like the one the run began on ({'; '.join(differences)}), and would "
                "not give the same bits; take it out of the cluster, or set mixed = true in runtime.executor_options"
            )


# ---------------------------------------------------------------- the driver's side
@dataclass(eq=False)
class _Worker:
    """An actor, the reference that is ready when it has started, and the number of jobs it has."""

    actor: Any
    started: Any
    jobs: int = 0


@dataclass(frozen=True, eq=False)
class _Sent:
    """A job that an actor has, and the references to what its clients keep."""

    worker: _Worker
    job: Job
    kept: Sequence[Any]


@dataclass(eq=False)
class RayPool:
    """The actors of a run, one on each of `parts.workers` cores; by default on every core of the cluster.

    An actor that no node has room for begins when one joins.  Attributes are the settings in
    `runtime.executor_options`.

    Attributes:
        parts: What the actors are to run.
        address: "local" for this machine alone, "auto" for the cluster this process is on, or HOST:PORT.
        store_mb: Size of the object store of a local Ray, megabytes of 2**20 bytes; None leaves it to Ray.
        mixed: Accept nodes of another processor or other versions, whose bits may differ.

    Raises:
        ConfigError: If Ray is not installed.
        WorkerError: If there is no cluster at the address, or no actor could start.
    """

    parts: PoolParts
    address: str = "local"
    store_mb: int | None = None
    mixed: bool = False
    shared: None = field(default=None, init=False)
    workers: list[_Worker] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._ray = imported()
        self._owned = not self._ray.is_initialized()
        if self._owned:
            self._connect()
        try:
            count = self.parts.workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
            self._open = self._ray.put(self.parts.open_setup)
            kind = self._ray.remote(_Actor).options(num_cpus=1, max_restarts=-1, max_task_retries=RETRIES)
            for _ in range(count):
                actor = kind.remote(sys.path, [self._open], None if self.mixed else machine_kind())
                self.workers.append(_Worker(actor, actor.pid.remote()))
            if not self._ray.wait([w.started for w in self.workers], timeout=STARTING_S)[0]:
                raise WorkerError(
                    f"no node of the Ray cluster had a free core within {STARTING_S:.0f} s; see: ray status"
                )
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        local = {"num_cpus": self.parts.workers, "object_store_memory": self.store_mb and self.store_mb << 20}
        try:
            self._ray.init(
                address=self.address,
                include_dashboard=False if self.address == "local" else None,
                log_to_driver=False,
                **(local if self.address == "local" else {}),
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise WorkerError(
                f"no Ray cluster at {self.address!r}: {error}; begin one with: ray start --head"
            ) from error

    def close(self) -> None:
        """End the actors, and Ray where it was begun here."""
        for worker in self.workers:
            self._ray.kill(worker.actor)
        self.workers = []
        if self._owned:
            self._ray.shutdown()

    def run(self, requests: Mapping[Any, dict[str, Any]], where: str) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Have requests answered by whichever actor is free; (name, answer) of each as they end.

        Raises:
            WorkerError: If an actor died again and again of the same work, or its node is not like this one.
        """
        queue = deque(jobs_of(requests, len(self.workers), clients_per_job(self.parts.model_bytes)))
        common = self._put_common(requests)
        sent: dict[Any, _Sent] = {}
        try:
            while queue or sent:
                starting = self._send(queue, sent, common)
                done, _ = self._ray.wait([*sent, *starting], num_returns=1)
                if done[0] in sent:
                    ended = sent.pop(done[0])
                    ended.worker.jobs -= 1
                    yield from self._answers(done[0], ended, where)
        except BaseException:
            self.close()  # answers still on their way are not wanted
            raise

    def _put_common(self, requests: Mapping[Any, dict[str, Any]]) -> dict[int, Any]:
        """Put each value that several requests share into the object store; return references by the value's id."""
        values = [v.value for r in requests.values() for v in r.values() if isinstance(v, ToWorker)]
        times = Counter(map(id, values))
        return {
            i: self._ray.put(wire.encode(value))
            for i, value in {id(v): v for v in values if not isinstance(v, Stored)}.items()
            if times[i] > 1
        }

    def _send(self, queue: deque[Job], sent: dict[Any, _Sent], common: Mapping[int, Any]) -> list[Any]:
        """Give jobs to the actors that have room, fairly; return the references of actors that have not started."""
        starting = self._starting()
        ready = [w for w in self.workers if w.started not in starting]
        for most in range(JOBS_IN_FLIGHT):
            for worker in ready:
                if queue and worker.jobs <= most:
                    job = queue.popleft()
                    heads, arguments = _written(job, common)
                    call = worker.actor.answer.options(num_returns=1 + len(heads))
                    answers, *kept = call.remote(heads, *arguments)
                    sent[answers] = _Sent(worker, job, kept)
                    worker.jobs += 1
        return starting if queue else []

    def _starting(self) -> list[Any]:
        started = [w.started for w in self.workers]
        return self._ray.wait(started, num_returns=len(started), timeout=0)[1] if started else []

    def _answers(self, reference: Any, sent: _Sent, where: str) -> Iterator[tuple[Any, dict[str, Any]]]:
        answers = self._get(reference, f"{where}, at work on {', '.join(map(str, sent.job.names))}")
        if answers and isinstance(answers[0], str):  # a failure: its kind, text and trace
            raise exception(*answers)
        for name, given, kept in zip(sent.job.names, answers, sent.kept, strict=True):
            for path, (nbytes, kind) in given["sizes"].items():
                given["parts"][path] = Stored(nbytes, kind, (kept, path), self._bring(kept, path))
            yield name, given

    def _bring(self, kept: Any, path: str) -> Callable[[], bytes]:
        def bring() -> bytes:
            data: bytes = self._get(kept, "a kept value")[path]
            return data

        return bring

    def _get(self, reference: Any, where: str) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().partition("\n")[0]
            raise WorkerError(f"{where}: Ray gave up after {RETRIES} retries: {reason}") from error


def _written(job: Job, common: Mapping[int, Any]) -> tuple[list[dict[str, Any]], list[Any]]:
    """The heads of a job's requests, and the arguments their values are in; Ray fetches those that are references."""
    arguments: list[Any] = []
    places: dict[Any, int] = {}

    def place(value: Any) -> dict[str, Any]:
        if isinstance(value, Stored):
            reference, path = value.place
            return {"argument": index(reference, reference), "path": path}
        return {"argument": index(id(value), common.get(id(value)) or wire.encode(value))}

    def index(name: Any, argument: Any) -> int:
        if name not in places:
            places[name] = len(arguments)
            arguments.append(argument)
        return places[name]

    heads = [{k: place(v.value) if isinstance(v, ToWorker) else v for k, v in r.items()} for r in job.requests]
    return heads, arguments


def imported() -> Any:
    """Import Ray, which sends no usage statistics then."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray starts
    try:
        import ray
    except ImportError:
        raise ConfigError("runtime.executor = 'ray' needs Ray: pip install 'unskew[ray]'") from None
    return ray


def _start(
    parts: PoolParts, *, address: str = "local", store_mb: Annotated[int, Gt(0)] | None = None, mixed: bool = False
) -> RayPool:
    if address.startswith("ray://"):
        raise ConfigError(
            f"runtime.executor_options.address = {address!r} is Ray Client's, which carries every byte twice; run "
            "unskew on the cluster (ray job submit) with address = 'auto'"
        )
    return RayPool(parts, address, store_mb, mixed)


RAY = ExecutorKind(
    "ray",
    "clients spread over the cores of a Ray cluster",
    make_workers,
    start=_start,
    cpu_only=True,
    window=lambda model_bytes, workers, device: room_for(model_bytes, 4 * workers),
)
