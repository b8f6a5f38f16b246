"""A worker's side: answers jobs until the main process hangs up."""

import ctypes
import json
import signal
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from unskew import errors, wire
from unskew.errors import MemoryShortage, ProtocolError, UnskewError, WorkerError
from unskew.keys import Key
from unskew.local.executor import Columns, StepJob
from unskew.local.sequential import run_step
from unskew.local.trainer import LocalTrainer
from unskew.local.workers.memory import JOBS_IN_FLIGHT, SharedBuffer, Slot
from unskew.protocol import ClientId, Held, Keep, Me, map_held, map_keep, steps_of
from unskew.tree import Params


@dataclass(frozen=True, eq=False)
class WorkerSetup:
    """A worker's objects for one method under one seed.

    Attributes:
        method: The method, whose steps are run.
        trainer: Answers the steps' requests, and evaluates models.
        me: (client, round, key, step) -> the client's view of itself.
    """

    method: Any
    trainer: LocalTrainer
    me: Callable[[ClientId, int, Key, str], Me]

    # Annotations are read once: it takes as long as a small client's whole training.
    @cached_property
    def steps(self) -> dict[str, Callable[..., Any]]:
        """The method's steps by name."""
        return steps_of(self.method)

    @cached_property
    def messages(self) -> dict[str, Any]:
        """Type of each step's message; `personalise` is called like a step."""
        message_types = {name: s.message for name, s in wire.signatures(self.method).items()}
        return {**message_types, "personalise": Params | None}

    @cached_property
    def memory(self) -> Any:
        """Type of what a client remembers."""
        return wire.memory_type(self.method)

    @cached_property
    def held(self) -> Any:
        """Type of what a step keeps."""
        return wire.held_type(self.method)


Open = Callable[[int], WorkerSetup]
"""Makes the setup of one method under one seed, by its number in the run."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def keep_freed_memory() -> None:
    """Make glibc keep freed memory; no effect with another C library.

    Otherwise every batch would page memory in again, a fifth of the time of a small convolutional network.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    mallopt(_M_TRIM_THRESHOLD, -1)


def serve(open_setup: Open, pipe: Connection, slots: list[Slot], shared: SharedBuffer) -> None:
    """Answer jobs until the main process hangs up."""
    # The main process decides what Ctrl-C, SIGTERM and SIGHUP mean, which reach a whole group; a worker stops when its
    # pipe closes.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    keep_freed_memory()
    inbox, outbox = slots[:JOBS_IN_FLIGHT], slots[JOBS_IN_FLIGHT:]
    opened, setup = -1, None
    while True:
        try:
            order = json.loads(pipe.recv_bytes())
            inline = [pipe.recv_bytes() for _ in range(order["inline"])]
        except (EOFError, OSError):
            return
        answers = _Answers(outbox[order["slot"]])
        reader = _Reader(inbox[order["slot"]].buffer, shared, inline)
        try:
            for head in order["heads"]:
                if setup is None or head["cell"] != opened:
                    opened, setup = head["cell"], open_setup(head["cell"])
                answers.add(*answer(setup, head, reader))
        except BaseException as error:
            pipe.send_bytes(json.dumps({"error": failure(error), "inline": 0}).encode())
            continue
        answers.send(pipe)


def answer(setup: WorkerSetup, head: dict[str, Any], reader: "JobReader") -> tuple[dict[str, Any], dict[str, Any]]:
    """Answer one request: its JSON part, and its values by name."""
    if head["do"] == "evaluate":
        return {}, {"evaluated": _evaluate(setup, head, reader)}
    method, name = setup.method, head["step"]
    me = setup.me(head["client"], head["round"], Key(head["seed"], tuple(head["key"])), name)
    memory = reader.read(head["memory"], setup.memory)
    message = reader.read(head["message"], setup.messages[name])
    if head["held"]:
        places = {Held(owner, key): head[f"held{i}"] for i, (owner, key) in enumerate(head["held"])}
        message = map_held(lambda h: reader.read(places[h], setup.held) if h in places else h, message)
    begin = method.personalise if name == "personalise" else setup.steps[name]
    result = run_step(setup.trainer, StepJob(name, begin, me, message, memory, watched=head["watched"]))
    trained = {"losses": list(result.losses), "examples": result.examples}
    if name == "personalise":
        return {**trained, "kept": [], "same": True}, {"reply": result.value}
    if not isinstance(result.value, tuple) or len(result.value) != 2:
        raise ProtocolError(f"step {name!r} must return (reply, memory), got {type(result.value).__name__}")
    reply, after = result.value
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


def _evaluate(setup: WorkerSetup, head: dict[str, Any], reader: "JobReader") -> Columns:
    params = reader.read(head["params"], Params)
    rows = reader.read(head["rows"], Tensor | list[int])
    if not isinstance(rows, Tensor):  # (piece, pieces): that piece of all rows, in whole chunks
        piece, pieces = rows
        n = setup.trainer.size(head["part"])
        size = LocalTrainer.CHUNK * -(-n // (LocalTrainer.CHUNK * pieces))
        rows = torch.arange(min(piece * size, n), min((piece + 1) * size, n))
    rows = rows.to(setup.trainer.device)
    if not len(rows):
        return torch.empty(0, dtype=torch.bool), torch.empty(0, dtype=setup.trainer.dtype)
    return setup.trainer.of(head["client"]).evaluate(params, head["part"], rows)


class JobReader(Protocol):
    """Reads the values of a job."""

    def read(self, place: dict[str, Any], value_type: Any) -> Any:
        """The value at a place in the job."""
        ...


@dataclass(eq=False)
class _Reader:
    """Values of a job, from wherever they lie."""

    buffer: SharedBuffer
    shared: SharedBuffer
    inline: list[bytes]

    def read(self, place: dict[str, Any], value_type: Any) -> Any:
        if "inline" in place:
            return wire.decode(self.inline[place["inline"]], value_type)
        buffer = self.shared if "shared" in place else self.buffer
        return wire.build(value_type, place["body"], buffer.views(place["index"]))


class _Answers:
    """The answers to one job, their values in a slot or, where that is full, behind the message."""

    def __init__(self, slot: Slot) -> None:
        self._slot, self._at = slot, slot.start
        self._answers: list[dict[str, Any]] = []
        self._inline: list[bytes] = []

    def add(self, answer: dict[str, Any], values: Mapping[str, Any]) -> None:
        """Add an answer and write its values at once: their tensors may change afterwards."""
        parts = {key: self._put(value) for key, value in values.items()}
        self._answers.append({**answer, "parts": parts})

    def _put(self, value: Any) -> dict[str, Any]:
        at = self._at
        placed = self._slot.put(value, at)
        if placed is None:
            self._inline.append(wire.encode(value))
            return {"inline": len(self._inline) - 1}
        body, index, self._at = placed
        return {"body": body, "index": index, "at": [at, self._at]}

    def send(self, pipe: Connection) -> None:
        """Send all of them to the main process."""
        pipe.send_bytes(json.dumps({"answers": self._answers, "inline": len(self._inline)}).encode())
        for data in self._inline:
            pipe.send_bytes(data)


def failure(error: BaseException) -> list[str]:
    """A failure for the main process: kind, text and trace."""
    trace = "".join(traceback.format_exception(error))
    if (short := errors.shortage(error)) is not None:
        return [MemoryShortage.__name__, short, trace]
    if isinstance(error, UnskewError) and type(error).__name__ in vars(errors):
        return [type(error).__name__, str(error), trace]
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = ", ".join([f"{Path(frame.filename).name}, line {frame.lineno}", *getattr(error, "__notes__", [])])
    text = f"{type(error).__name__}: {error} ({where})"
    return [WorkerError.__name__, text, trace]
