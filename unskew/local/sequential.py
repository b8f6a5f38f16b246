"""One client after the other, in this process: the reference that other executors must equal."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from unskew.errors import UnskewError
from unskew.keys import Key
from unskew.local.executor import Columns, EvalJob, ExecutorKind, StepJob, StepResult, Trainer
from unskew.local.trainer import LocalTrainer
from unskew.protocol import SERVER_ID, ClientId, Fitted, Fold, Layout, Me, Run, Sgd, Step, drive, no_device
from unskew.tree import Params


class Sequential:
    """One client after the other, in this process."""

    name = "sequential"

    def __init__(self, trainer: LocalTrainer) -> None:
        self.trainer = trainer

    def window(self, model_bytes: int) -> int:
        """1, as larger windows would be no faster."""
        return 1

    def complete(self, jobs: Mapping[ClientId, StepJob]) -> Iterator[tuple[ClientId, StepResult]]:
        """Run every step to its end, one after the other."""
        for c, job in jobs.items():
            yield c, run_step(self.trainer, job)

    def evaluate(self, jobs: Sequence[EvalJob]) -> list[Columns]:
        """Evaluate one model after the other."""
        return [self.trainer.of(job.client).evaluate(job.params, job.part, job.rows) for job in jobs]


SEQUENTIAL = ExecutorKind(
    "sequential", "one client after the other, in this process", lambda parts: Sequential(parts.trainer)
)


def run_step(trainer: Trainer, job: StepJob) -> StepResult:
    """Run one client's step from its beginning to its end."""
    counts = {kind: itertools.count() for kind in (Sgd, Fold, Run)}
    fits: list[Fitted] = []

    def answer(request: Any) -> Any:
        kind = type(request)
        value = trainer.answer(job.me, next(counts[kind]) if kind in counts else 0, request)
        if isinstance(value, Fitted):
            fits.append(value)
        return value

    try:
        value = drive(job.start(), answer)
    except Exception as error:
        if not isinstance(error, UnskewError):  # of code of the user's own, and it may be this client's data
            error.add_note("on the server" if job.me.id == SERVER_ID else f"in step {job.step!r} of client {job.me.id}")
        raise
    return StepResult(value, tuple(f.loss for f in fits), sum(f.examples for f in fits))


def server_device(
    trainer: Trainer | None, key: Key, round: int, classes: int, layout: Layout, initial: Params
) -> Callable[[Callable[[Me], Step[Any]]], Any]:
    """`Federation.run_on_server`: runs a step with the server's own trainer, without a client's data."""
    if trainer is None:
        return no_device
    own = key / "server" / round / "work"
    me = Me(SERVER_ID, 0, torch.zeros(classes, dtype=torch.int64), round, own, layout, initial, own, own)
    return lambda begin: run_step(trainer, StepJob("work", lambda me, *_: begin(me), me, None, None)).value
