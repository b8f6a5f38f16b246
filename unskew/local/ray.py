"""Worker processes on the machines of a Ray cluster, instead of those of `unskew.local.workers`.

The driver puts the run's `Open` (data and network) into Ray's object store once, from which Ray may restart an actor
anywhere.  Draws are keyed, so repeated work has the same bits.  The tensors of a message lie in one array, which Ray
passes without a copy; a message for many clients is stored once for an exchange.

A value that a step keeps stays in the object store, where the next client's actor fetches it.  Ray keeps values below
100 kB in the driver, whose bytes are counted.

Actors start from objects pickled by Ray; messages, memories, replies and kept values are JSON and arrays of bytes.
"""

import functools
import hashlib
import itertools
import os
import pickle
import platform
import secrets
import signal
import socket
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from unskew import version, wire
from unskew.errors import ConfigError, WorkerError
from unskew.local.executor import ExecutorKind, PoolParts, Stored, room_for
from unskew.local.workers.executor import make_workers
from unskew.local.workers.memory import JOBS_IN_FLIGHT, MOST_CLIENTS, places, views, write
from unskew.local.workers.pool import Job, ToWorker, exception, jobs_of
from unskew.local.workers.worker import Open, WorkerSetup, answer, failure, keep_freed_memory
from unskew.signals import handled

RETRIES = 8
"""Times that Ray runs a job again after its actor died, before the run ends: a job may be what kills it."""

JOB_BYTES = 1 << 26
"""Most bytes of a job's messages, memories and replies, at four models for each of its clients."""

PIECE_BYTES = 1 << 20
"""Most bytes of an array: Ray starts six threads to copy a larger one, which wait for cores that are training."""

INLINE_BYTES = 100 << 10
"""Size of a value from which on Ray leaves it in an object store; smaller ones come with an actor's answer."""

LEAST_STORE_MB = 75
"""Smallest object store that Ray starts with, megabytes of 2**20 bytes."""

STARTING_S = 120.0
"""Time in which a cluster must have a core, and a node answer a question, seconds."""


def machine_kind() -> dict[str, str]:
    """What the last bits of training depend on: versions, processor family, vector instructions of PyTorch."""
    return {
        "unskew": f"{version.__version__} ({code_hash(Path(version.__file__).parent)})",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def differences(expected: Mapping[str, str]) -> list[str]:
    """How this machine differs from the expected kind, in words."""
    kind = machine_kind()
    return [f"{k} {kind[k]} on it, {expected[k]} there" for k in expected if kind[k] != expected[k]]


@functools.cache
def code_hash(package: Path) -> str:
    """A short hash of a package's modules, as two checkouts of one version may differ."""
    modules = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        modules.update(f"{file.relative_to(package)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return modules.hexdigest()[:8]


# ---------------------------------------------------------------- values on their way
@dataclass(frozen=True, eq=False)
class Packed:
    """A value as JSON and its tensors' bytes, which Ray stores and passes without a copy.

    Attributes:
        body: The JSON part.
        index: Name, element type, shape and first byte of each tensor.
        pieces: The bytes, in arrays (n,) of at most `PIECE_BYTES`.
    """

    body: Any
    index: Sequence[Any]
    pieces: Sequence[np.ndarray]

    @classmethod
    def of(cls, value: Any) -> "Packed":
        """A value packed, its tensors side by side."""
        body, tensors = wire.flatten(value)
        index, size = places(tensors, 0)
        octets = np.empty(size, np.uint8)
        write(torch.from_numpy(octets), tensors, index)
        return cls(body, index, [octets[at : at + PIECE_BYTES] for at in range(0, size, PIECE_BYTES)])

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(map(len, self.pieces))

    def tensors(self, device: torch.device = torch.device("cpu")) -> dict[str, Tensor]:
        """The tensors on a device, copied: Ray's memory is shared and must not be written."""
        octets = np.concatenate(self.pieces) if self.pieces else np.empty(0, np.uint8)
        return {name: t.to(device) for name, t in views(torch.from_numpy(octets), self.index, 0).items()}

    def read(self, value_type: Any, device: torch.device = torch.device("cpu")) -> Any:
        """The value, with its tensors on a device."""
        return wire.build(value_type, self.body, self.tensors(device))


# ---------------------------------------------------------------- an actor's side
_Common = dict[int, dict[str, Tensor]]
"""Tensors of what several clients are sent, by its number, once one of them has read it."""


@dataclass(frozen=True, eq=False)
class _Arguments:
    """Values of a job: in the request if without tensors, else in an argument of the call, a kept one by its path."""

    values: Sequence[Any]
    device: torch.device
    common: _Common

    def read(self, place: dict[str, Any], value_type: Any) -> Any:
        if "body" in place:
            return wire.build(value_type, place["body"], {})
        given = self.values[place["argument"]]
        packed: Packed = given[place["path"]] if "path" in place else given
        if "common" not in place:
            return packed.read(value_type, self.device)
        number = place["common"]
        if number not in self.common:
            self.common[number] = packed.tensors(self.device)
        return wire.build(value_type, packed.body, self.common[number])


def _still_used(common: _Common, heads: Sequence[dict[str, Any]]) -> _Common:
    """Keep those of the values that several clients are sent which these requests name."""
    named = [v["common"] for head in heads for v in head.values() if isinstance(v, dict) and "common" in v]
    return {number: common[number] for number in named if number in common}


class _Actor:
    """Answers jobs on one core of the cluster, or on its share of a GPU."""

    def __init__(self, path: list[str], opener: list[Any], expected: dict[str, str] | None) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        sys.path.extend(p for p in path if p not in sys.path)  # methods and data of the user's own are found there
        # A reference in a list is not resolved, so the constructor does not fail when an actor begins again.
        self._opener, self._expected = opener[0], expected
        self._open: Open | None = None
        self._cell = -1
        self._setup: WorkerSetup | None = None
        self._common: _Common = {}

    def pid(self) -> int:
        """Return the number of its process, once it has started."""
        return os.getpid()

    def gpus(self) -> list[int]:
        """Return the numbers of the GPUs of its node that it has a share of."""
        return list(imported().get_gpu_ids())

    def answer(self, heads: list[dict[str, Any]], *values: Any) -> Any:
        """Answer the requests of a job: all answers or a failure, then what each client's step kept, by path."""
        answers, kept = [], []
        self._common = _still_used(self._common, heads)
        try:
            self._check_machine()
            for head in heads:
                setup = self._setup_of(head["cell"])
                given, parts = answer(setup, head, _Arguments(values, setup.trainer.device, self._common))
                data = {key: Packed.of(value) for key, value in parts.items()}
                stays = {path: data.pop(path) for path in given.get("kept", ())}
                given["sizes"] = {path: (wire.nbytes(parts[path]), wire.kind(parts[path])) for path in stays}
                given["octets"] = sum(value.nbytes for value in stays.values())
                answers.append({**given, "parts": data})
                kept.append(stays)
        except BaseException as error:
            return [failure(error), *({} for _ in heads)]
        return [answers, *kept]

    def _setup_of(self, cell: int) -> WorkerSetup:
        if self._open is None:
            self._open = _read(self._opener)
            if self.gpus():
                self._open = self._on_gpu(self._open)
        if self._setup is None or cell != self._cell:
            self._cell, self._setup = cell, self._open(cell)
        return self._setup

    def _on_gpu(self, opener: Any) -> Open:
        if not torch.cuda.is_available():
            raise WorkerError(
                f"node {platform.node()} has a GPU by Ray's account, and PyTorch finds none there; install a CUDA "
                "build of PyTorch there, or leave num_gpus out of runtime.executor_options"
            )
        on_gpu: Open = opener.on(torch.device("cuda"))  # of those that Ray lets this process see, the first
        return on_gpu

    def _check_machine(self) -> None:
        apart = differences(self._expected or {})
        if apart:
            raise WorkerError(
                f"node {platform.node()} is not like the one the run began on ({'; '.join(apart)}), and would "
                "not give the same bits. Take it out of the cluster, or set mixed = true in runtime.executor_options"
            )
        self._expected = None  # a process stays on its machine


def _read(opener: Any) -> Any:
    """Fetch what the actors begin with.

    Raises:
        WorkerError: If it has something of a module that cannot be imported here.
    """
    ray = imported()
    try:
        return ray.get(opener)
    except ray.exceptions.RaySystemError as error:
        reason = str(error).partition("\n")[0].removeprefix("System error: ")
        raise WorkerError(
            f"node {platform.node()} cannot read what this run hands to it: {reason}. A module of your own must be "
            "importable on every node: install it there, or name its folder in PYTHONPATH before ray start"
        ) from None


# ---------------------------------------------------------------- the driver's side
@dataclass(eq=False)
class _Worker:
    """An actor, the reference that is ready when it has started, whether it was seen to be, and its number of jobs."""

    actor: Any
    started: Any
    at_work: bool = False
    jobs: int = 0


@dataclass(frozen=True, eq=False)
class _Sent:
    """A job that an actor has, and the references to what its clients keep."""

    worker: _Worker
    job: Job
    kept: Sequence[Any]


@dataclass(frozen=True, eq=False)
class _Kept:
    """A value that a client's step kept: its reference, and how many of its bytes Ray keeps in this process."""

    reference: Any
    here: int


@dataclass(eq=False)
class RayPool:
    """The actors of a run, one on each of `parts.workers` cores; by default on each core, or GPU share.

    Actors without a node start when one joins.  Attributes are the settings in `runtime.executor_options`.

    Attributes:
        parts: What the actors run.
        address: "local" for this machine alone, "auto" for the cluster this process is on, or HOST:PORT.
        store_mb: Size of the object store of a local Ray, megabytes of 2**20 bytes; None leaves it to Ray.
        mixed: Accept nodes of another processor or other versions, whose bits may differ.
        num_gpus: GPUs of an actor, which trains there; below 1 several actors share one.
        driver_bytes: Bytes of values that passed this process so far, sent or received.

    Raises:
        ConfigError: If Ray is not installed, or something that the actors need cannot be pickled.
        WorkerError: If there is no cluster at the address, no GPU where some are wanted, or it has no core.
    """

    parts: PoolParts
    address: str = "local"
    store_mb: int | None = None
    mixed: bool = False
    num_gpus: float = 0.0
    driver_bytes: int = field(default=0, init=False)
    shared: None = field(default=None, init=False)
    workers: list[_Worker] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._ray = imported()
        self._numbers = itertools.count()  # of values that several requests share
        self._owned = not self._ray.is_initialized()
        if self._owned:
            connect(self.address, self.parts.workers, self.store_mb)
        try:
            self._open = self._put_open()
            kind = self._ray.remote(_Actor).options(
                num_cpus=1, num_gpus=self.num_gpus, max_restarts=-1, max_task_retries=RETRIES
            )
            for _ in range(self.parts.workers or self._room()):
                actor = kind.remote(sys.path, [self._open], None if self.mixed else machine_kind())
                self.workers.append(_Worker(actor, actor.pid.remote()))
            self._await_first()
        except BaseException:
            self.close()
            raise

    def _put_open(self) -> Any:
        """Put what the actors begin with into the object store."""
        try:
            return self._ray.put(self.parts.open_setup)
        except (TypeError, AttributeError, ValueError, pickle.PicklingError) as error:
            reason = str(error.__cause__ or error).partition("\n")[0]  # Ray's own text has all data in it
            raise ConfigError(
                f"runtime.executor = 'ray' pickles the network, the losses and the methods, and cannot: {reason}; make "
                "that object where it is used, not outside it, or take runtime.executor = 'workers'"
            ) from None

    def _await_first(self) -> None:
        """Wait until an actor is at work, for as long as other runs have the cores."""
        started, noted = [w.started for w in self.workers], False
        while not self._ray.wait(started, timeout=STARTING_S)[0]:
            there = self._ray.cluster_resources()
            if there.get("CPU", 0) < 1 or there.get("GPU", 0) < self.num_gpus:
                raise WorkerError(f"no node of the Ray cluster had a core within {STARTING_S:.0f} s; see: ray status")
            if not noted:
                self.parts.note("no core of the Ray cluster is free; this run begins when one is (see: ray status)")
                noted = True

    def _room(self) -> int:
        """The number of actors that the cluster as it is has room for."""
        there = self._ray.cluster_resources()
        cores = max(1, int(there.get("CPU", 1)))
        if not self.num_gpus:
            return cores
        gpus = int(there.get("GPU", 0))
        room = int(gpus // self.num_gpus) if self.num_gpus >= 1 else gpus * int(1 / self.num_gpus)
        if not room:
            raise WorkerError(
                f"runtime.executor_options.num_gpus is {self.num_gpus:g}, and the Ray cluster has {gpus} GPUs; leave "
                "it out, or set runtime.workers where nodes with GPUs will join"
            )
        return min(cores, room)

    def close(self) -> None:
        """End the actors, and Ray if it was started here."""
        for worker in self.workers:
            self._ray.kill(worker.actor)
        self.workers = []
        if self._owned:
            self._ray.shutdown()

    def run(self, requests: Mapping[Any, dict[str, Any]], where: str) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Run requests on free actors; yields (name, answer) of each as they end.

        Raises:
            WorkerError: If an actor died repeatedly of the same work, or its node is not like this one.
        """
        most = min(MOST_CLIENTS, max(1, JOB_BYTES // (4 * self.parts.model_bytes)))
        queue = deque(jobs_of(requests, len(self.workers), most))
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

    def _put_common(self, requests: Mapping[Any, dict[str, Any]]) -> dict[int, tuple[int, Any]]:
        """Put each value that several requests share into the object store; return number and reference by its id."""
        values = [v.value for r in requests.values() for v in r.values() if isinstance(v, ToWorker)]
        times = Counter(map(id, values))
        common = {i: v for i, v in {id(v): v for v in values}.items() if times[i] > 1 and not isinstance(v, Stored)}
        packed = {i: Packed.of(value) for i, value in common.items()}
        return {i: (next(self._numbers), self._ray.put(self._counted(p))) for i, p in packed.items() if p.nbytes}

    def _counted(self, value: Any) -> Any:
        """The value as Ray is given it, its bytes added to those that passed this process."""
        if isinstance(value, Packed):
            self.driver_bytes += value.nbytes
        elif isinstance(value, _Kept):
            self.driver_bytes += value.here
            return value.reference
        return value

    def _send(self, queue: deque[Job], sent: dict[Any, _Sent], common: Mapping[int, tuple[int, Any]]) -> list[Any]:
        """Give jobs to the actors that have room, fairly; return the references of actors that have not started."""
        starting = self._starting()
        ready = [w for w in self.workers if w.at_work]
        for most in range(JOBS_IN_FLIGHT):
            for worker in ready:
                if queue and worker.jobs <= most:
                    job = queue.popleft()
                    heads, arguments = _written(job, common)
                    call = worker.actor.answer.options(num_returns=1 + len(heads))
                    answers, *kept = call.remote(heads, *map(self._counted, arguments))
                    sent[answers] = _Sent(worker, job, kept)
                    worker.jobs += 1
        return starting if queue else []

    def _starting(self) -> list[Any]:
        """The references of actors that have not started; Ray is not asked again for those that have."""
        waiting = {w.started: w for w in self.workers if not w.at_work}
        if not waiting:
            return []
        done, starting = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
        for reference in done:
            waiting[reference].at_work = True
        return list(starting)

    def _answers(self, reference: Any, sent: _Sent, where: str) -> Iterator[tuple[Any, dict[str, Any]]]:
        answers = self._get(reference, f"{where}, at work on {', '.join(map(str, sent.job.names))}")
        if answers and isinstance(answers[0], str):  # a failure: its kind, text and trace
            raise exception(*answers)
        for name, given, reference in zip(sent.job.names, answers, sent.kept, strict=True):
            for key, packed in given["parts"].items():
                given["parts"][key] = packed.body, self._counted(packed).tensors()
            kept = _Kept(reference, given["octets"] if given["octets"] < INLINE_BYTES else 0)
            self.driver_bytes += kept.here
            for path, (nbytes, kind) in given["sizes"].items():
                given["parts"][path] = Stored(nbytes, kind, (kept, path), self._bring(kept, path))
            yield name, given

    def _bring(self, kept: _Kept, path: str) -> Callable[[Any], Any]:
        def bring(value_type: Any) -> Any:
            packed: Packed = self._get(kept.reference, "a kept value")[path]
            return (packed if kept.here else self._counted(packed)).read(value_type)

        return bring

    def _get(self, reference: Any, where: str) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            raise WorkerError(f"{where}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Say why Ray has no answer."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if getattr(error, "actor_init_failed", False):
        return f"an actor could not begin: {lines[-1]}"
    if "all references to the actor were removed" in str(error):  # what a cluster makes of a driver that refuses it
        return (
            "the Ray cluster dropped the actors: it was begun without the token that this process has; begin it again, "
            "or set RAY_AUTH_MODE=disabled here"
        )
    return f"Ray gave up after up to {RETRIES} retries: {lines[0]}"


def _written(job: Job, common: Mapping[int, tuple[int, Any]]) -> tuple[list[dict[str, Any]], list[Any]]:
    """The heads of a job's requests, and the arguments their values are in; Ray fetches those that are references."""
    arguments: list[Any] = []
    places: dict[Any, int] = {}

    def place(value: Any) -> dict[str, Any]:
        if isinstance(value, Stored):
            kept, path = value.place
            return {"argument": index(kept, kept), "path": path}
        if id(value) in common:
            number, reference = common[id(value)]
            return {"argument": index(id(value), reference), "common": number}
        packed = Packed.of(value)
        return {"argument": index(id(value), packed)} if packed.nbytes else {"body": packed.body}

    def index(name: Any, argument: Any) -> int:
        if name not in places:
            places[name] = len(arguments)
            arguments.append(argument)
        return places[name]

    heads = [{k: place(v.value) if isinstance(v, ToWorker) else v for k, v in r.items()} for r in job.requests]
    return heads, arguments


# ---------------------------------------------------------------- the cluster
def connect(address: str, cores: int | None = None, store_mb: int | None = None) -> None:
    """Start Ray on this machine, or join the cluster at an address; a handler of SIGTERM stays in place.

    Args:
        address: "local", "auto" or HOST:PORT.
        cores, store_mb: Cores and object store of a local Ray; None leaves them to Ray.

    Raises:
        WorkerError: If there is no cluster at the address, or it refuses this process.
    """
    if address not in ("local", "auto"):
        _require_listening(address)
    ray = imported()
    if address == "local" and not os.environ.keys() & {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}:
        # Ray would leave one in the home folder, and from then on clusters begun there would ask for it.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    local = {"num_cpus": cores, "object_store_memory": store_mb and store_mb << 20, "include_dashboard": False}
    try:
        with handled([signal.SIGTERM], signal.getsignal(signal.SIGTERM) or signal.SIG_DFL):  # Ray puts its own there
            ray.init(address=address, log_to_driver=False, **(local if address == "local" else {}))
    except Exception as error:  # of a node that does not start in time Ray raises that class itself
        reason = str(error).strip().partition("\n")[0]
        if address == "local":  # nobody asks for a token here
            raise WorkerError(f"no Ray starts on this machine: {reason}; see runtime.executor_options") from error
        raise WorkerError(
            f"no Ray cluster lets this process in at {address!r}: {reason}; begin one with: ray start --head; where "
            "Ray says InvalidAuthToken, set RAY_AUTH_MODE=token and copy ~/.ray/auth_token of the first machine here"
        ) from error


def _require_listening(address: str) -> None:
    """Refuse an address at which nothing listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=10):
            pass
    except (OSError, ValueError, OverflowError) as error:
        raise WorkerError(
            f"no Ray cluster at {address!r}: {error}; begin one with: ray start --head, and give HOST:PORT or auto"
        ) from error


def imported() -> Any:
    """The module Ray, with usage statistics off."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray starts
    try:
        import ray
    except ImportError:
        raise ConfigError("runtime.executor = 'ray' needs Ray: pip install 'unskew[ray]'") from None
    return ray


def _start(
    parts: PoolParts,
    *,
    address: str = "local",
    store_mb: Annotated[int, Ge(LEAST_STORE_MB)] | None = None,
    mixed: bool = False,
    num_gpus: Annotated[float, Ge(0)] = 0.0,
) -> RayPool:
    if address.startswith("ray://"):
        raise ConfigError(
            f"runtime.executor_options.address = {address!r} is Ray Client's, which carries every byte twice; run "
            "unskew on the cluster (ray job submit) with address = 'auto'"
        )
    return RayPool(parts, address, store_mb, mixed, num_gpus)


RAY = ExecutorKind(
    "ray",
    "clients spread over the cores of a Ray cluster",
    make_workers,
    start=_start,
    cpu_only=True,
    apart=True,
    handover_s=1e-3,
    window=lambda model_bytes, workers, device: room_for(model_bytes, 4 * workers),
)
