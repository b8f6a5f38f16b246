"""The executor that puts the steps of one exchange into a pool of workers."""

import dataclasses
import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor

from unskew import wire
from unskew.local.executor import (
    CellParts,
    Columns,
    EvalJob,
    ExecutorKind,
    PoolParts,
    StepJob,
    StepResult,
    Stored,
    joined,
    room_for,
)
from unskew.local.trainer import LocalTrainer
from unskew.local.workers.pool import JobPool, Pool, ToWorker
from unskew.machine import cores
from unskew.protocol import ClientId, Keep, map_held
from unskew.tree import Params


class Workers:
    """Runs one method under one seed, index `cell` of the pool's setups."""

    name = "workers"

    def __init__(self, pool: JobPool, cell: int, method: Any) -> None:
        self._pool, self._cell = pool, cell
        self._memory, self._held = wire.memory_type(method), wire.held_type(method)
        self._replies = {name: s.reply for name, s in wire.signatures(method).items()}

    def window(self, model_bytes: int) -> int:
        """Number of clients whose models fit into memory together, at least four for each worker."""
        return room_for(model_bytes, 4 * len(self._pool.workers))

    def complete(self, jobs: Mapping[ClientId, StepJob]) -> Iterator[tuple[ClientId, StepResult]]:
        """Run every step to its end, the largest clients first so that workers end together."""
        if not jobs:
            return
        called = _called(jobs)
        if called is not None:
            yield from called.items()
            return
        shared = self._share([job.message for job in jobs.values()])
        requests = {
            c: {
                "do": "step",
                "cell": self._cell,
                "step": job.step,
                "client": c,
                "round": job.me.round,
                "seed": job.me.key.seed,
                "key": list(job.me.key.path),
                "message": ToWorker(job.message, shared.get(id(job.message))),
                "memory": ToWorker(job.memory),
                "watched": job.watched,
                "held": [[h.owner, h.key] for h in job.stored],
                **{f"held{i}": ToWorker(value) for i, value in enumerate(job.stored.values())},
            }
            for c, job in sorted(jobs.items(), key=lambda item: -item[1].me.n)
        }
        first = next(iter(jobs.values()))
        for c, answer in self._pool.run(requests, f"round {first.me.round}, step {first.step!r}"):
            yield c, self._result(jobs[c], answer)

    def _share(self, values: Sequence[Any]) -> dict[int, dict[str, Any]]:
        """Write messages for several clients into memory that all workers see; return their places by id."""
        buffer, at = self._pool.shared, 0
        places: dict[int, dict[str, Any]] = {}
        if buffer is None:
            return places
        counts = Counter(map(id, values))
        for value in values:
            if counts[id(value)] > 1 and id(value) not in places:
                body, tensors = wire.flatten(value)
                placed = buffer.put(tensors, at, buffer.size)
                if placed is not None:
                    places[id(value)] = {"shared": True, "body": body, "index": placed[0]}
                    at = placed[1]
        return places

    def _result(self, job: StepJob, answer: dict[str, Any]) -> StepResult:
        losses, examples, parts = tuple(answer["losses"]), answer["examples"], answer["parts"]
        if job.step == "personalise":
            return StepResult(_read(parts["reply"], Params | None), losses, examples)
        reply = _read(parts["reply"], self._replies[job.step])
        if answer["kept"]:
            kept = {path: self._kept(parts[path]) for path in answer["kept"]}
            reply = map_held(lambda h: Keep(kept[h.key]) if h.key in kept else h, reply)
        memory = job.memory if answer["same"] else _read(parts["memory"], self._memory)
        return StepResult((reply, memory), losses, examples)

    def _kept(self, part: Any) -> Any:
        if isinstance(part, Stored):
            return dataclasses.replace(part, value_type=self._held)
        return _read(part, self._held)

    def evaluate(self, jobs: Sequence[EvalJob]) -> list[Columns]:
        """Evaluate models in the workers; a large job is cut like in `LocalTrainer`, with the same bits."""
        if not jobs:
            return []
        shared = self._share([job.params for job in jobs for _ in (0, 1)])
        requests = {
            (i, j): {
                "do": "evaluate",
                "cell": self._cell,
                "part": job.part,
                "client": job.client,
                "params": ToWorker(job.params, shared.get(id(job.params))),
                "rows": ToWorker(rows),
            }
            for i, job in enumerate(jobs)
            for j, rows in enumerate(self._pieces(job))
        }
        answers = dict(self._pool.run(requests, "an evaluation"))
        results: list[list[Columns]] = [[] for _ in jobs]
        for i, j in sorted(answers):
            results[i].append(_read(answers[i, j]["parts"]["evaluated"], Columns))
        return [joined(parts) for parts in results]

    def _pieces(self, job: EvalJob) -> list[Any]:
        """Divide rows into pieces of whole chunks, about one per worker; [piece, pieces] if all rows are meant."""
        workers = len(self._pool.workers)
        if job.rows is None:
            return [[piece, workers] for piece in range(workers)]
        n = len(job.rows)
        chunks = -(-n // LocalTrainer.CHUNK)
        size = LocalTrainer.CHUNK * max(1, -(-chunks // workers))
        return list(torch.split(job.rows.cpu(), size)) if n else [job.rows.cpu()]


def make_workers(parts: CellParts) -> Workers:
    """Make the executor of one method under one seed."""
    return Workers(parts.pool, parts.cell, parts.method)


def _start(parts: PoolParts) -> Pool:
    return Pool(parts.open_setup, parts.workers or cores(), parts.model_bytes)


WORKERS = ExecutorKind(
    "workers",
    "clients spread over worker processes, one on each core",
    make_workers,
    start=_start,
    cpu_only=True,
    window=lambda model_bytes, workers, device: room_for(model_bytes, 4 * workers),
)


def _called(jobs: Mapping[ClientId, StepJob]) -> dict[ClientId, StepResult] | None:
    """Results of steps that are plain functions; None if a step asks something of a trainer.

    Called here they cost less than their way to a worker.
    """
    results = {}
    for c, job in jobs.items():
        if job.stored or inspect.isgeneratorfunction(job.begin):
            return None
        value = job.start()
        if isinstance(value, GeneratorType):  # of a function that hands on another's generator; nothing has run yet
            value.close()
            return None
        results[c] = StepResult(value)
    return results


def _read(part: bytes | tuple[Any, dict[str, Tensor]], value_type: Any) -> Any:
    """A value of an answer: whole messages where it did not fit into shared memory, else JSON and tensors."""
    return wire.decode(part, value_type) if isinstance(part, bytes) else wire.build(value_type, *part)
