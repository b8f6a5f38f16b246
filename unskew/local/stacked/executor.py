"""Many clients at once: their steps advance together, and requests that are alike become one batched call.

    while somebody waits:
        for each group of waiting clients whose requests are alike:  answer them in one call, hand each its value
        for each that stands alone:                                  answer it as `LocalTrainer` would

Alike are two `Sgd` of equal configuration, terms (by value), learning rate in force and place in their steps, whose
starts and auxiliary tensors have equal shapes.  With BatchNorm, or any network in which the examples of a batch see
each other, batch sizes must be equal too; elsewhere a short batch is filled up and masked.  `Fold` shares the network's
pass, and hands each client's function that client's own examples, never padding.  `Run` is shared where its function
says how (`together`), and never otherwise.

Equal to `Sequential` within rounding, batch orders and augmentation included.  Dropout alone differs: its masks are
keyed by client too, but they are other masks (unskew/local/stacked/network.py).
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import GeneratorType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import vmap

from unskew.errors import UnskewError
from unskew.local.executor import Done, EvalJob, Work
from unskew.local.stacked.network import Nature, study
from unskew.local.stacked.sgd import Fit, Fitter, Form, aux_key
from unskew.local.trainer import LocalTrainer
from unskew.protocol import Batch, ClientId, Fitted, Fold, Run, Sgd
from unskew.task import accuracy
from unskew.tree import Params

# Bytes of activations that models evaluated side by side may take.
_ROOM = {"cpu": 2**27, "cuda": 2**32}


class Stacked:
    """Runs the steps of all clients asked in lockstep, on the device of `solo`.

    Args:
        solo: Meets the requests that stand alone; its task, data, device and type are everybody's.
        chunk: Most clients trained side by side; None leaves it to a rule of network, batch and device memory.
        form: How optimisations are stacked; None leaves it to a rule (`Fitter.form_of`).
    """

    name = "stacked"

    def __init__(self, trainer: LocalTrainer, chunk: int | None = None, form: Form | None = None) -> None:
        self._solo = trainer
        self._nature: Nature = study(trainer.task, trainer.device_data.x, trainer.device_data.y)
        self._fitter = Fitter(trainer, self._nature, chunk, form)
        self._refused: dict[Hashable, str] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be done together, and why; empty when everything could."""
        refuses = self._nature.refuses if "refuses" in vars(self._nature) else None  # never asked of a large network
        found = (self._nature.draws, self._nature.draws or refuses, self._fitter.eager, *self._refused.values())
        return tuple(dict.fromkeys(why for why in found if why))

    # ------------------------------------------------------------------ how much at once
    def width(self, job: Sgd, batch: int, clients: int) -> int:
        """How many of so many clients are trained side by side in batches of this size."""
        form = self._fitter.form_of(job)
        if form is None:
            return 1
        most = self._fitter.width(form, job, batch)
        return -(-clients // -(-clients // most))

    def examples_at_once(self, papers: Sequence[int]) -> int:
        """How many examples go through models side by side when so many of each are graded."""
        most = min(max(papers), LocalTrainer.CHUNK)
        return most if not self._stackable else most * min(len(papers), max(1, self._room // most))

    # ------------------------------------------------------------------ lockstep
    def complete(self, work: Mapping[ClientId, Work]) -> Iterator[tuple[ClientId, Done]]:
        """Drive every step to its end, all together.

        Raises:
            Exception: What escapes a step; where several fail in the same request, the first in the order given.
        """
        walkers = {c: _Walker(w) for c, w in work.items()}
        try:
            for walker in walkers.values():
                walker.begin()
            while waiting := {c: w for c, w in walkers.items() if not w.ended}:
                answers = self._answer(waiting)
                for c, walker in waiting.items():
                    walker.advance(answers[c])
        finally:
            for walker in walkers.values():
                walker.close()
        for c, w in walkers.items():
            yield c, Done(w.value, tuple(w.losses), w.examples)

    def _answer(self, waiting: Mapping[ClientId, "_Walker"]) -> dict[ClientId, Any]:
        """Meet everybody's request; a failure is an answer too."""
        groups: dict[Hashable, list[ClientId]] = {}
        for c, walker in waiting.items():
            groups.setdefault(self._key(c, walker), []).append(c)
        answers: dict[ClientId, Any] = {}
        for key, clients in groups.items():
            together = {c: waiting[c] for c in clients}
            if isinstance(key, _Group):
                answers.update(self._together(key, together))
            for c in clients:
                if c not in answers:
                    answers[c] = self._alone(waiting[c])
        return answers

    def _alone(self, walker: "_Walker") -> Any:
        try:
            return self._solo.answer(walker.work.me, walker.index, walker.want)
        except Exception as error:
            return _Failure(error)

    def _key(self, client: ClientId, walker: "_Walker") -> Hashable:
        """Equal for requests that can be met in one call; a `_Group`, unless this one stands alone."""
        want, me = walker.want, walker.work.me
        try:
            if (
                isinstance(want, Sgd)
                and want.examples is None
                and (form := self._fitter.form_of(want))
                and self._fitter.fitting(want.start)
            ):
                fit = walker.fit = Fit(me, want, want.key(me, walker.index), *self._size(client))
                alike = None if self._nature.padded else fit.batches.sizes
                lr = want.config.lr_at(me.round) if fit.steps else 0.0
                key = _Group("Sgd", (want.config, want.terms, form), (walker.index, lr, aux_key(want), alike))
            elif isinstance(want, Fold) and self._fitter.fitting(want.params) and len(self._rows(client, want.part)):
                key = _Group("Fold", (want.part,), ())
            elif isinstance(want, Run) and hasattr(want.fn, "together"):
                key = _Group("Run", (want.fn,), (walker.index,))
            else:
                return _Alone(client)
            return _Alone(client) if key.what in self._refused or not hash(key) else key
        except (TypeError, UnskewError):  # not hashable, or refused by the plan: the solo says why
            return _Alone(client)

    def _size(self, client: ClientId) -> tuple[int, int]:
        """Training examples, and the smallest batch."""
        return len(self._solo.device_data.train[client]), 2 if self._solo.task.batch_norm else 1

    def _rows(self, client: ClientId, part: str) -> Tensor:
        return (self._solo.device_data.train if part == "train" else self._solo.device_data.val)[client]

    def _together(self, group: "_Group", walkers: Mapping[ClientId, "_Walker"]) -> dict[ClientId, Any]:
        """Answers of a group; who is missing must be met alone."""
        # The solo has neither captured graphs nor dropout that is keyed by client.
        own = group.kind == "Sgd" and (self._fitter.captures or self._nature.drops)
        if len(walkers) == 1 and not own:
            return {}
        try:
            if group.kind == "Run":
                calls = [(self._solo.local(w.work.me, w.index), w.want.args) for w in walkers.values()]
                return dict(zip(walkers, group.what[0].together(calls), strict=True))
            return self._fit(group, walkers) if group.kind == "Sgd" else self._fold(walkers)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            # Alone it either works, and then it was the stacking, or fails with its reason in its own client's step.
            self._refused[group.what] = f"one client at a time: {str(error).strip().partition(chr(10))[0][:200]}"
            return {}

    # ------------------------------------------------------------------ Sgd, Fold
    def _fit(self, group: "_Group", walkers: Mapping[ClientId, "_Walker"]) -> dict[ClientId, Any]:
        fits = [w.fit for w in walkers.values() if w.fit is not None]
        done = self._fitter.fit(fits, group.what[-1])
        return {c: fitted for c, fitted in zip(walkers, done, strict=True) if fitted is not None}

    @torch.no_grad()
    def _fold(self, walkers: Mapping[ClientId, "_Walker"]) -> dict[ClientId, Any]:
        device_data, answers = self._solo.device_data, {c: w.want.init for c, w in walkers.items()}
        rows = {c: torch.split(self._rows(c, w.want.part), LocalTrainer.CHUNK) for c, w in walkers.items()}
        for block in range(max(map(len, rows.values()))):
            now = [c for c in walkers if block < len(rows[c]) and not isinstance(answers[c], _Failure)]
            picks = [rows[c][block] for c in now]
            passes = self._passes([walkers[c].want.params for c in now], device_data.x, picks)
            for c, pick, (features, logits) in zip(now, picks, passes, strict=True):
                x, y = device_data.x.index_select(0, pick), device_data.y.index_select(0, pick)
                each = self._solo.task.loss(logits, y)
                batch = Batch(x, y, torch.ones_like(each), features, logits, each, partial(self._solo._refer, x))
                try:
                    answers[c] = walkers[c].want.fn(answers[c], batch)
                except Exception as error:
                    answers[c] = _Failure(error)
        return answers

    # ------------------------------------------------------------------ grading
    def evaluate(self, papers: Sequence[EvalJob]) -> list[tuple[Tensor, Tensor]]:
        """Grade models side by side, those of one part of the data together.

        Raises:
            DataError: If there is no global test set to grade on.
            ProtocolError: If a model lacks a tensor.
        """
        graded: list[tuple[Tensor, Tensor] | None] = [None] * len(papers)
        groups: dict[tuple[str, bool], list[int]] = {}
        for i, paper in enumerate(papers):
            if self._stackable and self._fitter.fitting(paper.params) and self._solo.device_data.x_test is not None:
                groups.setdefault((paper.part, paper.rows is None), []).append(i)
        for (part, whole), numbers in groups.items():
            if len(numbers) > 1:
                found = self._grade([papers[i] for i in numbers], part, whole)
                for i, result in zip(numbers, found, strict=True):
                    graded[i] = result
        return [
            self._solo.evaluate(p.params, p.part, p.rows) if done is None else done
            for p, done in zip(papers, graded, strict=True)
        ]

    @torch.no_grad()
    def _grade(self, papers: Sequence[EvalJob], part: str, whole: bool) -> list[tuple[Tensor, Tensor]]:
        device_data, device = self._solo.device_data, self._solo.device
        x, y = (device_data.x, device_data.y) if part == "train" else (device_data.x_test, device_data.y_test)
        assert x is not None
        assert y is not None
        everything = torch.split(torch.arange(len(x), device=device), LocalTrainer.CHUNK)
        blocks = [everything if p.rows is None else torch.split(p.rows.to(device), LocalTrainer.CHUNK) for p in papers]
        found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in papers]
        for block in range(max(map(len, blocks))):
            now = [i for i in range(len(papers)) if block < len(blocks[i])]
            picks = [blocks[i][block] for i in now]
            for i, pick, (_, logits) in zip(
                now, picks, self._passes([papers[i].params for i in now], x, picks), strict=True
            ):
                found[i].append((accuracy(logits, y[pick]), self._solo.task.loss(logits, y[pick])))
        return [(torch.cat([c for c, _ in parts]), torch.cat([loss for _, loss in parts])) for parts in found]

    @property
    def _stackable(self) -> bool:
        return self._fitter.small and self._nature.apart and self._nature.refuses is None

    @property
    def _room(self) -> int:
        """Examples that may go through the network at once."""
        bytes_ = self._solo.device_data.x.element_size() * max(self._nature.activations, 1)
        return _ROOM[self._solo.device.type] // bytes_

    def _passes(self, models: Sequence[Params], x: Tensor, picks: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """(features, logits) of each model on its own rows, in evaluation mode."""
        refer = self._solo._refer
        if not self._stackable:
            return [refer(x[pick], model) for model, pick in zip(models, picks, strict=True)]
        most = max(map(len, picks))
        room = self._room
        if all(m is models[0] for m in models):
            parts = [
                refer(x[rows], models[0]) for rows in torch.split(torch.cat(list(picks)), max(LocalTrainer.CHUNK, room))
            ]
            sizes = [len(p) for p in picks]
            features, logits = (torch.cat(t).split_with_sizes(sizes) for t in zip(*parts, strict=True))
            return list(zip(features, logits, strict=True))
        found: list[tuple[Tensor, Tensor]] = []
        width = max(1, room // most)
        for at in range(0, len(models), width):
            found += self._side_by_side(models[at : at + width], x, picks[at : at + width])
        return found

    def _side_by_side(
        self, models: Sequence[Params], x: Tensor, picks: Sequence[Tensor]
    ) -> list[tuple[Tensor, Tensor]]:
        one = all(p is picks[0] for p in picks)  # everybody on the same rows: they are not copied
        names = (*self._solo.task.layout.trainable, *self._solo.task.layout.buffers)
        stack = {n: torch.stack([m[n] for m in models]) for n in names}
        rows = picks[0] if one else torch.nn.utils.rnn.pad_sequence(list(picks), batch_first=True)
        features, logits = vmap(self._solo._refer_plainly, in_dims=(None if one else 0, 0))(x[rows], stack)
        return [(f[: len(p)], z[: len(p)]) for f, z, p in zip(features, logits, picks, strict=True)]


# ---------------------------------------------------------------- one client on its way
@dataclass(frozen=True)
class _Alone:
    """A request that nobody shares."""

    client: ClientId


@dataclass(frozen=True)
class _Group:
    """What a group of requests has in common: `what` it is that may turn out not to be stackable, and the rest."""

    kind: Literal["Sgd", "Fold", "Run"]
    what: tuple[Any, ...]
    rest: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class _Failure:
    """An answer that is to be thrown into the step."""

    error: Exception


class _Walker:
    """A client's step, the request it waits on, and how often it asked."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.want: Any = None
        self.fit: Fit | None = None
        self.value: Any = None
        self.ended = False
        self.losses: list[float] = []
        self.examples = 0
        self._asked: Counter[type] = Counter()
        self._step: Any = None

    @property
    def index(self) -> int:
        """Which of the step's requests of this kind it waits on, from 0."""
        return self._asked[type(self.want)] - 1 if isinstance(self.want, Sgd | Fold | Run) else 0

    def begin(self) -> None:
        """Up to the first request, or to the end of a step that has none."""
        self._step = self.work.begin(self.work.me, self.work.message, self.work.memory)
        if isinstance(self._step, GeneratorType):
            self._go(lambda: next(self._step))
        else:
            self.value, self.ended = self._step, True

    def advance(self, answer: Any) -> None:
        """On to the next request, or to the end; a failure is thrown at the step's own `yield`."""
        if isinstance(answer, _Failure):
            self._go(lambda: self._step.throw(answer.error))
        else:
            if isinstance(answer, Fitted):
                self.losses.append(answer.loss)
                self.examples += answer.examples
            self._go(lambda: self._step.send(answer))

    def close(self) -> None:
        """Leave a step that somebody else's failure has interrupted."""
        if isinstance(self._step, GeneratorType):
            self._step.close()

    def _go(self, on: Callable[[], Any]) -> None:
        try:
            self.want = on()
        except StopIteration as stop:
            self.value, self.ended = stop.value, True
        else:
            self._asked[type(self.want)] += 1
