"""How many clients' steps are brought to their end.

Every executor answers the same requests with the same values; `Sequential` is the reference the others must equal.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from unskew.keys import Key
from unskew.local.trainer import LocalTrainer
from unskew.protocol import NOBODY, ClientId, Fitted, Fold, Layout, Me, Run, Sgd, Step, drive, no_device
from unskew.tree import Params


@dataclass(frozen=True, eq=False)
class Work:
    """One client's step, not yet begun.

    Attributes:
        step: Its name; "personalise" is the one that answers with a model instead of (reply, memory).
        begin: The bound method.
        me, message, memory: What it is called with.
    """

    step: str
    begin: Callable[[Me, Any, Any], Any]
    me: Me
    message: Any
    memory: Any


@dataclass(frozen=True, eq=False)
class Done:
    """A step at its end.

    Attributes:
        value: What it returned.
        losses: Mean training loss of each optimisation on the way.
        examples: Examples that went through those optimisations, repeated ones counted again.
    """

    value: Any
    losses: tuple[float, ...] = ()
    examples: int = 0


@dataclass(frozen=True, eq=False)
class EvalJob:
    """A model to be graded on rows of the global test set or of the training inputs; None is all rows."""

    params: Params
    part: Literal["test", "train"]
    rows: Tensor | None = None


class Executor(Protocol):
    """Runs the steps of the clients asked in one exchange, and grades models."""

    name: str

    def complete(self, work: Mapping[ClientId, Work]) -> Iterator[tuple[ClientId, Done]]:
        """Drive every step to its end; each client once, as it ends, in any order.

        An executor that has begun owns its clients until the iterator is exhausted: who stops earlier stops the run.
        """
        ...

    def evaluate(self, papers: Sequence[EvalJob]) -> list[tuple[Tensor, Tensor]]:
        """(correct, loss) of each example of each paper, (n,) bool and (n,)."""
        ...


class Desk(Protocol):
    """A device that meets one step's requests, as `LocalTrainer` does."""

    def answer(self, me: Me, index: int, request: object) -> Any:
        """Meet a request; `index` counts the step's requests of this kind."""
        ...


class Sequential:
    """One client after the other, in this process."""

    name = "sequential"

    def __init__(self, trainer: LocalTrainer) -> None:
        self._solo = trainer

    def complete(self, work: Mapping[ClientId, Work]) -> Iterator[tuple[ClientId, Done]]:
        """Drive every step to its end, one after the other."""
        for c, w in work.items():
            yield c, drive_alone(self._solo, w)

    def evaluate(self, papers: Sequence[EvalJob]) -> list[tuple[Tensor, Tensor]]:
        """Grade one paper after the other."""
        return [self._solo.evaluate(p.params, p.part, p.rows) for p in papers]


def drive_alone(trainer: Desk, work: Work) -> Done:
    """One client's step from its beginning to its end."""
    counts = {kind: itertools.count() for kind in (Sgd, Fold, Run)}
    fits: list[Fitted] = []

    def answer(request: Any) -> Any:
        kind = type(request)
        value = trainer.answer(work.me, next(counts[kind]) if kind in counts else 0, request)
        if isinstance(value, Fitted):
            fits.append(value)
        return value

    value = drive(work.begin(work.me, work.message, work.memory), answer)
    return Done(value, tuple(f.loss for f in fits), sum(f.examples for f in fits))


def at_server(
    desk: Desk | None, key: Key, round: int, classes: int, layout: Layout, initial: Params
) -> Callable[[Callable[[Me], Step[Any]]], Any]:
    """What does a step on the server's own device in a round, without data: `Federation.work`."""
    if desk is None:
        return no_device
    own = key / "server" / round / "work"
    me = Me(NOBODY, 0, torch.zeros(classes, dtype=torch.int64), round, own, layout, initial, own, own)
    return lambda begin: drive_alone(desk, Work("work", lambda me, *_: begin(me), me, None, None)).value
