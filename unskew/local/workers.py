"""One single-thread process per core, fed from a queue: the default on a CPU.

Workers are forked once, before the run does any parallel work, so data and networks are shared by copy-on-write and a
worker is ready in milliseconds.  What goes to and fro is a client's message, memory and reply, in the wire's own form:
tensors in shared memory, the rest as JSON; nothing is pickled.  A message that many clients share is written once.  A
worker runs a client's whole step with its own `LocalTrainer`, as `Sequential` does, so the bits are the same too.

A job is a few clients, so that small ones do not cost more to hand over than to train: many at first, fewer towards the
end, when workers must become idle together (guided self-scheduling, Polychronopoulos and Kuck, 1987).

Where a system cannot fork, workers are started afresh and build the same things from the same recipe.
"""

import ctypes
import inspect
import json
import math
import mmap
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from multiprocessing import get_all_start_methods
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor

from unskew import errors, wire
from unskew.errors import MemoryShortage, ProtocolError, UnskewError, WorkerError
from unskew.keys import Key
from unskew.local.executor import Done, EvalJob, Work, drive_alone
from unskew.local.trainer import LocalTrainer
from unskew.protocol import ClientId, Held, Keep, Me, map_held, map_keep, steps_of
from unskew.tree import Params

_ALIGN = 64
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
SLOTS = 4  # of a worker: one for the requests and one for the answers of each job in flight
_AHEAD = SLOTS // 2  # jobs in flight per worker: one being done, one waiting, so that no worker waits for the parent
_PIPE = 16_384  # bytes that a pipe takes for sure, whether or not anybody reads at its other end
_MODELS = 8  # room in a slot for messages and memories, or replies, in models
_TOGETHER = 8  # clients in a job at most


@dataclass(frozen=True, eq=False)
class Cell:
    """What a worker needs for one method under one seed.

    Attributes:
        algorithm: Whose steps are run.
        solo: Meets their requests; also grades models.
        me: (client, round, key) -> what the client knows about itself.
    """

    algorithm: Any
    trainer: LocalTrainer
    me: Callable[[ClientId, int, Key], Me]

    # Annotations are read once: it takes as long as a small client's whole training.
    @cached_property
    def steps(self) -> dict[str, Callable[..., Any]]:
        """The algorithm's steps by name."""
        return steps_of(self.algorithm)

    @cached_property
    def messages(self) -> dict[str, Any]:
        """What each step is sent; `personalise` is called like one."""
        sent = {name: s.message for name, s in wire.signatures(self.algorithm).items()}
        return {**sent, "personalise": Params | None}

    @cached_property
    def memory(self) -> Any:
        """What a client remembers."""
        return wire.memory_type(self.algorithm)


Open = Callable[[int], Cell]


@dataclass(frozen=True)
class Recipe:
    """How a worker that could not be forked builds its cells: `module:function` of `arguments` gives `Open`."""

    target: str
    arguments: tuple[str, ...]

    def open(self) -> Open:
        """The function that opens cells."""
        module, _, name = self.target.partition(":")
        opener: Open = getattr(import_module(module), name)(*self.arguments)
        return opener


# ---------------------------------------------------------------- values in shared memory
class _Arena:
    """A piece of memory that parent and worker both see."""

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self._bytes)

    def put(self, tensors: Mapping[str, Tensor], at: int, end: int) -> tuple[list[Any], int] | None:
        """Write tensors from offset `at`: their index and their end; nothing, and None, if that is beyond `end`."""
        index: list[Any] = []
        for name, t in tensors.items():
            index.append([name, wire.DTYPES[t.dtype], list(t.shape), at])
            at += -(-t.numel() * t.element_size() // _ALIGN) * _ALIGN
        if at > end:  # what lies there belongs to another job
            return None
        for t, (_, _, _, start) in zip(tensors.values(), index, strict=True):
            if n := t.numel() * t.element_size():
                self._bytes[start : start + n].view(t.dtype).view(t.shape).copy_(t.detach())
        return index, at

    def views(self, index: Sequence[Any]) -> dict[str, Tensor]:
        """The tensors of an index, without copying."""
        return _views(self._bytes, index, 0)

    def copy(self, start: int, end: int) -> Tensor:
        """A part of the memory, taken in one go."""
        return self._bytes[start:end].clone()


def _views(octets: Tensor, index: Sequence[Any], start: int) -> dict[str, Tensor]:
    out = {}
    for name, dtype, shape, at in index:
        kind = wire.BY_NAME[dtype]
        n = math.prod(shape) * kind.itemsize
        out[name] = octets[at - start : at - start + n].view(kind).view(shape) if n else torch.empty(shape, dtype=kind)
    return out


@dataclass(eq=False)
class _Slot:
    """A part of an arena that holds the values of one job."""

    arena: _Arena
    start: int
    size: int

    def put(self, value: Any, at: int) -> tuple[Any, list[Any], int] | None:
        """Write a value's tensors from offset `at`: its JSON part, their index and their end; None if too large."""
        body, tensors = wire.flatten(value)
        placed = self.arena.put(tensors, at, self.start + self.size)
        return None if placed is None else (body, *placed)


@dataclass(eq=False)
class _Worker:
    """A process, the parent's end of its pipe, where jobs and answers lie, and what it has to do.

    `held` is a job too large for the pipe: it is sent when the worker is idle and so reads.  Sent earlier, parent and
    worker could both be writing and neither reading.
    """

    number: int
    process: "_Process"
    pipe: Connection
    inbox: list[_Slot]
    outbox: list[_Slot]
    doing: deque["_Job"]
    held: "_Packet | None" = None

    @property
    def free(self) -> bool:
        """Whether it can be given another job."""
        return len(self.doing) < _AHEAD and self.held is None


@dataclass(eq=False)
class _Job:
    """Requests on their way, what to call each, and the slot pair they use."""

    what: list[dict[str, Any]]
    names: list[Any]
    slot: int = 0


@dataclass(frozen=True, eq=False)
class _Packet:
    """A job as it is written into the pipe."""

    job: _Job
    parts: list[bytes]


class _Process:
    """A child process, forked or started."""

    def __init__(self, pid: int, popen: subprocess.Popen[bytes] | None = None) -> None:
        self.pid, self._popen = pid, popen
        self._how: str | None = None  # the system tells it once

    def ended(self) -> str | None:
        """How it ended, in words; None while it runs."""
        if self._how is None:
            self._how = self._look()
        return self._how

    def _look(self) -> str | None:
        if self._popen is not None:
            code = self._popen.poll()
            return None if code is None else _how(code)
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return "it is gone"
        return _how(os.waitstatus_to_exitcode(status)) if pid else None

    def end(self) -> None:
        """Stop it and wait until it is gone."""
        if self.ended() is not None:  # its number may be another process's by now
            return
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait()
            return
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def _how(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"


# ---------------------------------------------------------------- the parent's side
class Pool:
    """The worker processes of a run.

    Args:
        open_cell: Makes a cell by its number; called inside the workers.
        workers: How many.
        model_bytes: Size of a model; sets how much memory is shared.
        recipe: For systems that cannot fork.
        fork: Fork if the system can.

    Raises:
        WorkerError: If the system allows no more processes, pipes or memory; what was begun is ended.
    """

    def __init__(
        self, open_cell: Open, workers: int, model_bytes: int, recipe: Recipe | None = None, fork: bool = True
    ) -> None:
        can_fork = fork and "fork" in get_all_start_methods()
        if not can_fork and recipe is None:
            raise ProtocolError("workers that cannot be forked need a recipe to build their cells from")
        self.forked, self.model_bytes = can_fork, model_bytes
        self.shared = _Arena(common_bytes(model_bytes)) if can_fork else None
        self.workers: list[_Worker] = []
        try:
            for number in range(workers):
                self.workers.append(
                    self._begin(number, open_cell, slot_bytes(model_bytes), None if can_fork else recipe)
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

    def _begin(self, number: int, open_cell: Open, size: int, recipe: Recipe | None) -> _Worker:
        """Fork a worker, or start it by a recipe."""
        arena = _Arena(SLOTS * size) if recipe is None else None
        slots = [_Slot(arena, i * size, size) for i in range(SLOTS)] if arena else []
        mine, theirs = Pipe()
        process = self._fork(open_cell, mine, theirs, slots) if recipe is None else _start(recipe, theirs)
        theirs.close()
        return _Worker(number, process, mine, slots[:_AHEAD], slots[_AHEAD:], deque())

    def _fork(self, open_cell: Open, mine: Connection, theirs: Connection, slots: list[_Slot]) -> _Process:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return _Process(pid)
        try:  # the child never returns from here
            mine.close()
            for other in self.workers:  # an inherited end would keep a sister's pipe open when the parent dies
                other.pipe.close()
            _serve(open_cell, theirs, slots, self.shared)
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
    def run(self, what: Mapping[Any, dict[str, Any]], where: str) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Bring requests to their end on whichever worker is free; (name, answer) of each as they end."""
        queue = deque(_jobs(what, len(self.workers), _together(self.model_bytes)))
        missing = len(queue)
        try:
            for _ in range(_AHEAD):
                for worker in self.workers:
                    if queue and worker.free:
                        self._send(worker, queue.popleft(), where)
            while missing:
                busy = {w.pipe: w for w in self.workers if w.doing}
                for pipe in wait(list(busy), timeout=1.0) or self._check(where):
                    worker = busy[pipe]  # type: ignore[index]
                    try:
                        answers = json.loads(worker.pipe.recv_bytes())
                        job = worker.doing.popleft()
                        taken = self._take(worker, job, answers)
                    except (EOFError, OSError):
                        raise self._died(worker, where) from None
                    if worker.held is not None and not worker.doing:
                        packet, worker.held = worker.held, None
                        self._write(worker, packet, where)
                    if queue and worker.free:
                        self._send(worker, queue.popleft(), where)
                    missing -= 1
                    yield from zip(job.names, taken, strict=True)
        except BaseException:
            self.close()  # answers still on their way belong to nobody
            raise

    def _send(self, worker: _Worker, job: _Job, where: str) -> None:
        used = {other.slot for other in worker.doing}
        job.slot = next(i for i in range(_AHEAD) if i not in used)
        slot = worker.inbox[job.slot] if worker.inbox else None
        at = slot.start if slot else 0
        heads: list[dict[str, Any]] = []
        inline: list[bytes] = []
        for what in job.what:
            head = {}
            for key, value in what.items():
                if isinstance(value, _Value):
                    head[key], at = value.write(slot, at, inline)
                else:
                    head[key] = value
            heads.append(head)
        order = {"slot": job.slot, "heads": heads, "inline": len(inline)}
        packet = _Packet(job, [json.dumps(order).encode(), *inline])
        if worker.doing and sum(map(len, packet.parts)) > _PIPE:
            worker.held = packet
        else:
            self._write(worker, packet, where)

    def _write(self, worker: _Worker, packet: _Packet, where: str) -> None:
        worker.doing.append(packet.job)
        try:
            for part in packet.parts:
                worker.pipe.send_bytes(part)
        except OSError:
            raise self._died(worker, where) from None

    def _take(self, worker: _Worker, job: _Job, said: dict[str, Any]) -> list[dict[str, Any]]:
        inline = [worker.pipe.recv_bytes() for _ in range(said["inline"])]
        if "error" in said:
            raise _revived(*said["error"])
        slot = worker.outbox[job.slot] if worker.outbox else None
        for answer in said["answers"]:
            parts: dict[str, Any] = {}
            for key, part in answer["parts"].items():
                if "inline" in part:
                    parts[key] = inline[part["inline"]]
                else:  # each value in memory of its own: what a client remembers must not keep its reply alive
                    start, end = part["at"]
                    octets = slot.arena.copy(start, end) if slot else torch.empty(0, dtype=torch.uint8)
                    parts[key] = (part["body"], _views(octets, part["index"], start))
            answer["parts"] = parts
        answers: list[dict[str, Any]] = said["answers"]
        return answers

    def _check(self, where: str) -> list[Any]:
        """Nobody has answered for a second: is everybody alive?"""
        for worker in self.workers:
            if worker.doing and worker.process.ended() is not None and not worker.pipe.poll():
                raise self._died(worker, where)
        return []

    def _died(self, worker: _Worker, where: str) -> WorkerError:
        until = time.monotonic() + 1.0  # its pipe closes a moment before it can be asked how it ended
        while (how := worker.process.ended()) is None and time.monotonic() < until:
            time.sleep(0.01)
        how = how or "it closed its pipe"
        doing = ", ".join(str(name) for job in worker.doing for name in job.names) or "nothing"
        return WorkerError(
            f"worker {worker.number} (process {worker.process.pid}) is gone while doing {doing} of {where}: {how}"
        )


def _jobs(what: Mapping[Any, dict[str, Any]], workers: int, most: int) -> Iterator[_Job]:
    """Requests put together, `most` at most and so many that every worker still gets several jobs."""
    left, parts = deque(what.items()), 4 * workers
    while left:
        several = [left.popleft() for _ in range(max(1, min(most, len(left) // parts)))]
        yield _Job([w for _, w in several], [name for name, _ in several])


def slot_bytes(model_bytes: int) -> int:
    """Room for the values of one job."""
    return -(-(_MODELS * model_bytes + (1 << 20)) // _ALIGN) * _ALIGN


def written_bytes(model_bytes: int, parcel: int) -> int:
    """Of a worker's slots, what is written at most if no client is sent, remembers and answers more than `parcel`."""
    return SLOTS * min(slot_bytes(model_bytes), _together(model_bytes) * parcel)


def common_bytes(model_bytes: int) -> int:
    """Room for what several clients are sent, seen by all workers."""
    return _MODELS * model_bytes + (8 << 20)


def _together(model_bytes: int) -> int:
    """How many clients of a job at most a slot has room for, at four models each."""
    return min(_TOGETHER, slot_bytes(model_bytes) // (4 * max(model_bytes, 1)))


def _failure(error: BaseException) -> list[str]:
    """A failure on its way to the parent: kind, text and trace."""
    trace = "".join(traceback.format_exception(error))
    if (short := errors.shortage(error)) is not None:
        return [MemoryShortage.__name__, short, trace]
    if isinstance(error, UnskewError) and type(error).__name__ in vars(errors):
        return [type(error).__name__, str(error), trace]
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno})"
    return [WorkerError.__name__, text, trace]


def _revived(kind: str, text: str, trace: str) -> Exception:
    """A worker's failure as the exception it was; where one nobody foresaw came from is a note, for a traceback."""
    of = getattr(errors, kind, None)
    assert isinstance(of, type)
    assert issubclass(of, UnskewError)
    error = of(text)
    if of is WorkerError:
        error.add_note(f"in a worker:\n{trace}")
    return error


def _start(recipe: Recipe, theirs: Connection) -> _Process:
    """Start a worker anew, where forking is not to be had."""
    os.set_inheritable(theirs.fileno(), True)
    order = json.dumps({"fd": theirs.fileno(), "target": recipe.target, "arguments": recipe.arguments})
    code = "import sys; from unskew.local.workers import started; started(sys.argv[1])"
    child = subprocess.Popen([sys.executable, "-c", code, order], pass_fds=[theirs.fileno()])
    return _Process(child.pid, child)


@dataclass(eq=False)
class _Value:
    """A value on its way to a worker; one that several jobs share is written once."""

    value: Any
    shared: dict[str, Any] | None = None

    def write(self, slot: _Slot | None, at: int, inline: list[bytes]) -> tuple[dict[str, Any], int]:
        if self.shared is not None:
            return self.shared, at
        placed = slot.put(self.value, at) if slot is not None else None
        if placed is None:
            inline.append(wire.encode(self.value))
            return {"inline": len(inline) - 1}, at
        body, index, end = placed
        return {"body": body, "index": index}, end


class Workers:
    """The executor: cell `cell` of a pool."""

    name = "workers"

    def __init__(self, pool: Pool, cell: int, algorithm: Any) -> None:
        self._pool, self._cell = pool, cell
        self._memory, self._held = wire.memory_type(algorithm), wire.held_type(algorithm)
        self._replies = {name: s.reply for name, s in wire.signatures(algorithm).items()}

    def complete(self, work: Mapping[ClientId, Work]) -> Iterator[tuple[ClientId, Done]]:
        """Drive every step to its end, the largest clients first so that none is left over at the end."""
        if not work:
            return
        called = _called(work)
        if called is not None:
            yield from called.items()
            return
        shared = self._share([w.message for w in work.values()])
        what = {
            c: {
                "do": "step",
                "cell": self._cell,
                "step": w.step,
                "client": c,
                "round": w.me.round,
                "seed": w.me.key.seed,
                "key": list(w.me.key.path),
                "message": _Value(w.message, shared.get(id(w.message))),
                "memory": _Value(w.memory),
            }
            for c, w in sorted(work.items(), key=lambda item: -item[1].me.n)
        }
        first = next(iter(work.values()))
        for c, answer in self._pool.run(what, f"round {first.me.round}, step {first.step!r}"):
            yield c, self._done(work[c], answer)

    def _share(self, values: Sequence[Any]) -> dict[int, dict[str, Any]]:
        """Write what several clients are sent into memory all workers see; id -> where it lies."""
        arena, at = self._pool.shared, 0
        out: dict[int, dict[str, Any]] = {}
        if arena is None:
            return out
        counts = Counter(map(id, values))
        for value in values:
            if counts[id(value)] > 1 and id(value) not in out:
                body, tensors = wire.flatten(value)
                placed = arena.put(tensors, at, arena.size)
                if placed is not None:
                    out[id(value)] = {"shared": True, "body": body, "index": placed[0]}
                    at = placed[1]
        return out

    def _done(self, work: Work, answer: dict[str, Any]) -> Done:
        losses, examples, parts = tuple(answer["losses"]), answer["examples"], answer["parts"]
        if work.step == "personalise":
            return Done(_read(parts["reply"], Params | None), losses, examples)
        reply = _read(parts["reply"], self._replies[work.step])
        if answer["kept"]:
            kept = {path: _read(parts[path], self._held) for path in answer["kept"]}
            reply = map_held(lambda h: Keep(kept[h.key]) if h.key in kept else h, reply)
        memory = work.memory if answer["same"] else _read(parts["memory"], self._memory)
        return Done((reply, memory), losses, examples)

    def evaluate(self, papers: Sequence[EvalJob]) -> list[tuple[Tensor, Tensor]]:
        """Grade models in the workers; one large paper is cut where `LocalTrainer` would cut it, so the bits stay."""
        if not papers:
            return []
        shared = self._share([p.params for p in papers for _ in (0, 1)])
        what = {
            (i, j): {
                "do": "grade",
                "cell": self._cell,
                "part": p.part,
                "params": _Value(p.params, shared.get(id(p.params))),
                "rows": _Value(rows),
            }
            for i, p in enumerate(papers)
            for j, rows in enumerate(self._cut(p))
        }
        answers = dict(self._pool.run(what, "an evaluation"))
        graded: list[list[tuple[Tensor, Tensor]]] = [[] for _ in papers]
        for i, j in sorted(answers):
            correct, loss = _read(answers[i, j]["parts"]["graded"], tuple[Tensor, Tensor])
            graded[i].append((correct, loss))
        return [(torch.cat([c for c, _ in parts]), torch.cat([v for _, v in parts])) for parts in graded]

    def _cut(self, paper: EvalJob) -> list[Any]:
        """Rows in pieces of whole chunks, about as many as there are workers; [start, end] where all rows are meant."""
        n = len(paper.rows) if paper.rows is not None else None
        if n is None:
            return [[w, len(self._pool.workers)] for w in range(len(self._pool.workers))]
        chunks = -(-n // LocalTrainer.CHUNK)
        size = LocalTrainer.CHUNK * max(1, -(-chunks // len(self._pool.workers)))
        assert paper.rows is not None
        return list(torch.split(paper.rows.cpu(), size)) if n else [paper.rows.cpu()]


def _called(work: Mapping[ClientId, Work]) -> dict[ClientId, Done] | None:
    """Steps that are plain functions ask nothing of a device: called here they cost less than their way to a worker."""
    done = {}
    for c, w in work.items():
        if inspect.isgeneratorfunction(w.begin):
            return None
        value = w.begin(w.me, w.message, w.memory)
        if isinstance(value, GeneratorType):  # of a function that hands on another's generator; nothing has run yet
            value.close()
            return None
        done[c] = Done(value)
    return done


def _read(part: bytes | tuple[Any, dict[str, Tensor]], of: Any) -> Any:
    """A value of an answer: whole messages where it did not fit into shared memory, else JSON and tensors."""
    return wire.decode(part, of) if isinstance(part, bytes) else wire.build(of, *part)


# ---------------------------------------------------------------- the worker's side
def started(order: str) -> None:
    """Where a worker that was not forked begins."""
    said = json.loads(order)
    _serve(Recipe(said["target"], tuple(said["arguments"])).open(), Connection(said["fd"]), [], None)


def keep_freed_memory() -> None:
    """Tell glibc to keep what this process frees; elsewhere, nothing.

    Large blocks would go back to the system with every batch and be paged in anew for the next: a fifth of the time of
    a small convolutional network.  A worker's batches are all alike, so its peak stays what it is.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return
    mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    mallopt(_M_TRIM_THRESHOLD, -1)


def _serve(open_cell: Open, pipe: Connection, slots: list[_Slot], shared: _Arena | None) -> None:
    """Answer jobs until the parent hangs up."""
    # The parent decides what Ctrl-C and SIGTERM mean, which reach a whole group; a worker stops when its pipe closes.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    keep_freed_memory()
    inbox, outbox = slots[:_AHEAD], slots[_AHEAD:]
    open_number, cell = -1, None
    while True:
        try:
            order = json.loads(pipe.recv_bytes())
            inline = [pipe.recv_bytes() for _ in range(order["inline"])]
        except (EOFError, OSError):
            return
        answers = _Answers(outbox[order["slot"]] if outbox else None)
        reader = _Reader(inbox[order["slot"]] if inbox else None, shared, inline)
        try:
            for head in order["heads"]:
                if cell is None or head["cell"] != open_number:
                    open_number, cell = head["cell"], open_cell(head["cell"])
                answers.add(*_answer(cell, head, reader))
        except BaseException as error:
            pipe.send_bytes(json.dumps({"error": _failure(error), "inline": 0}).encode())
            continue
        answers.send(pipe)


@dataclass(eq=False)
class _Reader:
    """Values of a job, from wherever they lie."""

    slot: _Slot | None
    shared: _Arena | None
    inline: list[bytes]

    def read(self, ref: dict[str, Any], of: Any) -> Any:
        if "inline" in ref:
            return wire.decode(self.inline[ref["inline"]], of)
        arena = self.shared if "shared" in ref else self.slot.arena if self.slot else None
        return wire.build(of, ref["body"], arena.views(ref["index"]) if arena is not None else {})


def _answer(cell: Cell, head: dict[str, Any], reader: _Reader) -> tuple[dict[str, Any], dict[str, Any]]:
    if head["do"] == "grade":
        return {}, {"graded": _grade(cell, head, reader)}
    algorithm, name = cell.algorithm, head["step"]
    me = cell.me(head["client"], head["round"], Key(head["seed"], tuple(head["key"])))
    memory = reader.read(head["memory"], cell.memory)
    message = reader.read(head["message"], cell.messages[name])
    begin = algorithm.personalise if name == "personalise" else cell.steps[name]
    done = drive_alone(cell.trainer, Work(name, begin, me, message, memory))
    trained = {"losses": list(done.losses), "examples": done.examples}
    if name == "personalise":
        return {**trained, "kept": [], "same": True}, {"reply": done.value}
    if not isinstance(done.value, tuple) or len(done.value) != 2:
        raise ProtocolError(f"step {name!r} must return (reply, memory), got {type(done.value).__name__}")
    reply, after = done.value
    kept: dict[str, Any] = {}

    def keep(value: Keep, path: str) -> Held:
        kept[f"kept{path}"] = value.value
        return Held(me.id, f"kept{path}")

    reply = map_keep(keep, reply)
    same = after is memory
    return (
        {**trained, "kept": list(kept), "same": same},
        {"reply": reply, **kept, **({} if same else {"memory": after})},
    )


def _grade(cell: Cell, head: dict[str, Any], reader: _Reader) -> tuple[Tensor, Tensor]:
    params = reader.read(head["params"], Params)
    rows = reader.read(head["rows"], Tensor | list[int])
    if not isinstance(rows, Tensor):  # the w-th of so many pieces of everything, in whole chunks
        piece, pieces = rows
        n = cell.trainer.size(head["part"])
        size = LocalTrainer.CHUNK * -(-n // (LocalTrainer.CHUNK * pieces))
        rows = torch.arange(min(piece * size, n), min((piece + 1) * size, n))
    if not len(rows):
        return torch.empty(0, dtype=torch.bool), torch.empty(0, dtype=cell.trainer.dtype)
    return cell.trainer.evaluate(params, head["part"], rows)


class _Answers:
    """The answers to one job, their values in a slot or, where that is full, behind the message."""

    def __init__(self, slot: _Slot | None) -> None:
        self._slot, self._at = slot, slot.start if slot else 0
        self._answers: list[dict[str, Any]] = []
        self._inline: list[bytes] = []

    def add(self, answer: dict[str, Any], values: Mapping[str, Any]) -> None:
        """One more; what its values are made of may change afterwards."""
        parts = {key: self._put(value) for key, value in values.items()}
        self._answers.append({**answer, "parts": parts})

    def _put(self, value: Any) -> dict[str, Any]:
        at = self._at
        placed = self._slot.put(value, at) if self._slot is not None else None
        if placed is None:
            self._inline.append(wire.encode(value))
            return {"inline": len(self._inline) - 1}
        body, index, self._at = placed
        return {"body": body, "index": index, "at": [at, self._at]}

    def send(self, pipe: Connection) -> None:
        """To the parent."""
        pipe.send_bytes(json.dumps({"answers": self._answers, "inline": len(self._inline)}).encode())
        for data in self._inline:
            pipe.send_bytes(data)
