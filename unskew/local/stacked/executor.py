"""Many clients at once: their steps advance together, and similar requests become one batched call.

    while any client waits:
        for each group of waiting clients whose requests are alike:  answer them in one call, hand each its value
        for each single request:                                     answer it as `LocalTrainer` would

Two `Sgd` are alike if configuration, terms (by value), learning rate and index are equal, and starts and auxiliary
tensors have equal shapes.  With BatchNorm, or any network in which the examples of a batch interact, batch sizes must
be equal, too; elsewhere a short batch is padded and masked.  `Fold` shares the network's pass, and gives each client's
function that client's examples without padding.  `Run` is shared only if its function says how (`together`).

Equal to `Sequential` within rounding, with the same batch orders and augmentation.  Only dropout has other masks
(unskew/local/stacked/network.py).
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import GeneratorType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import vmap

from unskew.data.rows import ByteImages
from unskew.errors import UnskewError
from unskew.local.executor import CellParts, Columns, EvalJob, ExecutorKind, StepJob, StepResult, joined, room_for
from unskew.local.sequential import Sequential
from unskew.local.stacked.fitter import Fitter, aux_key
from unskew.local.stacked.network import NetworkTraits, probe
from unskew.local.stacked.rows import Fit, Form
from unskew.local.trainer import LocalTrainer
from unskew.protocol import Batch, ClientId, Fitted, Fold, Run, Sgd
from unskew.tree import Params

# Bytes of activations that models evaluated side by side may take.
_ROOM = {"cpu": 2**27, "cuda": 2**32}


class Stacked:
    """Runs the steps of all clients in lockstep, on the device of `trainer`.

    Args:
        trainer: Answers single requests.  Clients with one network are stacked, each network's by themselves.
        chunk: Most clients trained side by side; None leaves it to a rule of network, batch and device memory.
        form: Form of stacked optimisations; None leaves it to a rule (`Fitter.form_of`).
    """

    name = "stacked"

    def __init__(self, trainer: LocalTrainer, chunk: int | None = None, form: Form | None = None) -> None:
        self.trainer = trainer
        self._traits: NetworkTraits = probe(trainer.task, trainer.device_data.x, trainer.device_data.y)
        self._fitter = Fitter(trainer, self._traits, chunk, form)
        self._refused: dict[Hashable, str] = {}
        self._others = {id(t): Stacked(t, chunk, form) for t in trainer.others.values()}

    def _by_network(self, clients: Iterable[ClientId | None]) -> dict["Stacked", list[int]]:
        """Positions of the clients, of each network's executor."""
        groups: dict[Stacked, list[int]] = {}
        for i, client in enumerate(clients):
            groups.setdefault(self._others.get(id(self.trainer.of(client)), self), []).append(i)
        return groups

    @property
    def notes(self) -> tuple[str, ...]:
        """Reasons why something could not be stacked; empty if everything was."""
        refuses = self._traits.refuses if "refuses" in vars(self._traits) else None  # never asked of a large network
        reasons = (self._traits.draws, self._traits.draws or refuses, self._fitter.context.eager, self._fitter.singly)
        theirs = (why for other in self._others.values() for why in other.notes)
        return tuple(dict.fromkeys(why for why in (*reasons, *self._refused.values(), *theirs) if why))

    # ------------------------------------------------------------------ how much at once
    def width(self, job: Sgd, batch: int, clients: int) -> int:
        """Number of clients, at most `clients`, that are trained side by side in batches of this size."""
        form = self._fitter.form_of(job)
        if form is None:
            return 1
        most = self._fitter.width(form, job, batch)
        return -(-clients // -(-clients // most))

    def examples_at_once(self, sizes: Sequence[int]) -> int:
        """Examples in one pass when models are evaluated on `sizes` examples each."""
        most = min(max(sizes), LocalTrainer.CHUNK)
        return most if not self._stackable else most * min(len(sizes), max(1, self._room // most))

    def window(self, model_bytes: int) -> int:
        """Number of clients whose models fit into memory together."""
        return room_for(model_bytes, device=self.trainer.device.type)

    # ------------------------------------------------------------------ lockstep
    def complete(self, jobs: Mapping[ClientId, StepJob]) -> Iterator[tuple[ClientId, StepResult]]:
        """Run every step to its end, all together.

        Raises:
            Exception: An error of a step; if several fail in the same request, the first in the order given.
        """
        for executor, at in self._by_network(jobs).items():
            yield from executor._complete({c: jobs[c] for c in map([*jobs].__getitem__, at)})

    def _complete(self, jobs: Mapping[ClientId, StepJob]) -> Iterator[tuple[ClientId, StepResult]]:
        steps = {c: _ActiveStep(job) for c, job in jobs.items()}
        try:
            for step in steps.values():
                step.begin()
            while waiting := {c: s for c, s in steps.items() if not s.ended}:
                answers = self._answer(waiting)
                for c, step in waiting.items():
                    step.advance(answers[c])
        finally:
            for step in steps.values():
                step.close()
        for c, s in steps.items():
            yield c, StepResult(s.value, tuple(s.losses), s.examples)

    def _answer(self, waiting: Mapping[ClientId, "_ActiveStep"]) -> dict[ClientId, Any]:
        """Answer every client's request; a failure is an answer too."""
        groups: dict[Hashable, list[ClientId]] = {}
        for c, step in waiting.items():
            groups.setdefault(self._key(c, step), []).append(c)
        answers: dict[ClientId, Any] = {}
        for key, clients in groups.items():
            together = {c: waiting[c] for c in clients}
            if isinstance(key, _Group):
                answers.update(self._together(key, together))
            for c in clients:
                if c not in answers:
                    answers[c] = self._alone(waiting[c])
        return answers

    def _alone(self, step: "_ActiveStep") -> Any:
        try:
            return self.trainer.answer(step.job.me, step.index, step.request)
        except Exception as error:
            return _Failure(error)

    def _key(self, client: ClientId, step: "_ActiveStep") -> Hashable:
        """Equal for requests that can be met in one call; a `_Group`, or the client of one that stands alone."""
        request, me = step.request, step.job.me
        try:
            if (
                isinstance(request, Sgd)
                and request.examples is None
                and request.rows is None
                and (form := self._fitter.form_of(request))
                and self._fitter.fitting(request.start)
            ):
                n, least = len(self._rows(client, "train")), self.trainer.task.min_batch
                fit = step.fit = Fit(me, request, request.key(me, step.index), n, least)
                sizes = fit.batches.sizes
                alike = None if self._traits.padded else sizes
                lr = request.config.lr_at(me.round)
                key = _Group("Sgd", (request.config, request.terms, form), (step.index, lr, aux_key(request), alike))
            elif (
                isinstance(request, Fold)
                and self._fitter.fitting(request.params)
                and len(self._rows(client, request.part))
            ):
                key = _Group("Fold", (request.part,), ())
            elif isinstance(request, Run) and hasattr(request.fn, "together"):
                key = _Group("Run", (request.fn,), (step.index,))
            else:
                return client
            return client if key.what in self._refused or not hash(key) else key
        except (TypeError, UnskewError):  # not hashable, or refused by the plan: the trainer says why
            return client

    def _rows(self, client: ClientId, part: str) -> Tensor:
        return (self.trainer.device_data.train if part == "train" else self.trainer.device_data.val)[client]

    def _together(self, group: "_Group", steps: Mapping[ClientId, "_ActiveStep"]) -> dict[ClientId, Any]:
        """Answer a group's requests together; missing clients must be answered separately."""
        # The trainer has neither captured graphs nor dropout that is keyed by client.
        own = group.kind == "Sgd" and (self._fitter.captures or self._traits.drops)
        if len(steps) == 1 and not own:
            return {}
        try:
            if group.kind == "Run":
                calls = [(self.trainer.local(s.job.me, s.index), s.request.args) for s in steps.values()]
                return dict(zip(steps, group.what[0].together(calls), strict=True))
            return self._fit(group, steps) if group.kind == "Sgd" else self._fold(steps)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            # Separately it either works, and then stacking was the cause, or it fails in its own client's step.
            self._refused[group.what] = f"one client at a time: {str(error).strip().partition(chr(10))[0][:200]}"
            return {}

    # ------------------------------------------------------------------ Sgd, Fold
    def _fit(self, group: "_Group", steps: Mapping[ClientId, "_ActiveStep"]) -> dict[ClientId, Any]:
        fits = [s.fit for s in steps.values() if s.fit is not None]
        self.trainer.check_terms(fits[0].me, fits[0].job)
        done = self._fitter.fit(fits, group.what[-1])
        return {c: fitted for c, fitted in zip(steps, done, strict=True) if fitted is not None}

    @torch.no_grad()
    def _fold(self, steps: Mapping[ClientId, "_ActiveStep"]) -> dict[ClientId, Any]:
        device_data, answers = self.trainer.device_data, {c: s.request.init for c, s in steps.items()}
        own = {c: self._rows(c, s.request.part) for c, s in steps.items()}
        rows = {c: torch.split(of, self.trainer.at_once(len(of))) for c, of in own.items()}
        for block in range(max(map(len, rows.values()))):
            now = [c for c in steps if block < len(rows[c]) and not isinstance(answers[c], _Failure)]
            picks = [rows[c][block] for c in now]
            passes = self._passes([steps[c].request.params for c in now], device_data.x, picks)
            for c, pick, (features, logits) in zip(now, picks, passes, strict=True):
                x, y = device_data.x.index_select(0, pick), device_data.y.index_select(0, pick)
                each = device_data.weighted(self.trainer.task.loss(logits, y), pick)
                batch = Batch(x, y, torch.ones_like(each), features, logits, each, partial(self.trainer.refer, x))
                try:
                    answers[c] = steps[c].request.fn(answers[c], batch)
                except Exception as error:
                    answers[c] = _Failure(error)
        return answers

    # ------------------------------------------------------------------ evaluation
    def evaluate(self, jobs: Sequence[EvalJob]) -> list[Columns]:
        """Evaluate models side by side, those of one part of the data together.

        Raises:
            DataError: If there is no global test set to evaluate on.
            ProtocolError: If a model lacks a tensor.
        """
        values: dict[int, Columns] = {}
        for executor, at in self._by_network(job.client for job in jobs).items():
            values |= zip(at, executor._evaluate_all([jobs[i] for i in at]), strict=True)
        return [values[i] for i in range(len(jobs))]

    def _evaluate_all(self, jobs: Sequence[EvalJob]) -> list[Columns]:
        results: list[Columns | None] = [None] * len(jobs)
        groups: dict[tuple[str, bool], list[int]] = {}
        for i, job in enumerate(jobs):
            if self._stackable and self._fitter.fitting(job.params) and self.trainer.device_data.x_test is not None:
                groups.setdefault((job.part, job.rows is None), []).append(i)
        for (part, _), numbers in groups.items():
            if len(numbers) > 1:
                together = self._evaluate([jobs[i] for i in numbers], part)
                for i, result in zip(numbers, together, strict=True):
                    results[i] = result
        return [
            self.trainer.evaluate(job.params, job.part, job.rows) if result is None else result
            for job, result in zip(jobs, results, strict=True)
        ]

    @torch.no_grad()
    def _evaluate(self, jobs: Sequence[EvalJob], part: str) -> list[Columns]:
        device_data, device = self.trainer.device_data, self.trainer.device
        x, y = (device_data.x, device_data.y) if part == "train" else (device_data.x_test, device_data.y_test)
        assert x is not None
        assert y is not None
        everything = torch.split(torch.arange(len(x), device=device), LocalTrainer.CHUNK)
        blocks = [everything if p.rows is None else torch.split(p.rows.to(device), LocalTrainer.CHUNK) for p in jobs]
        results: list[list[Columns]] = [[] for _ in jobs]
        for block in range(max(map(len, blocks))):
            now = [i for i in range(len(jobs)) if block < len(blocks[i])]
            picks = [blocks[i][block] for i in now]
            for i, pick, (_, logits) in zip(
                now, picks, self._passes([jobs[i].params for i in now], x, picks), strict=True
            ):
                results[i].append(self.trainer.task.columns(logits, y[pick]))
        return [joined(parts) for parts in results]

    @property
    def _stackable(self) -> bool:
        return self._fitter.small and self._traits.apart and self._traits.refuses is None

    @property
    def _room(self) -> int:
        """Examples that may go through the network at once."""
        bytes_: int = self.trainer.device_data.x.dtype.itemsize * max(self._traits.activations, 1)
        return _ROOM[self.trainer.device.type] // bytes_

    def _passes(
        self, models: Sequence[Params], x: Tensor | ByteImages, picks: Sequence[Tensor]
    ) -> list[tuple[Tensor, Tensor]]:
        """(features, logits) of each model on its own rows, in evaluation mode."""
        refer = self.trainer.refer
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
        outputs: list[tuple[Tensor, Tensor]] = []
        width = max(1, room // most)
        for at in range(0, len(models), width):
            outputs += self._side_by_side(models[at : at + width], x, picks[at : at + width])
        return outputs

    def _side_by_side(
        self, models: Sequence[Params], x: Tensor | ByteImages, picks: Sequence[Tensor]
    ) -> list[tuple[Tensor, Tensor]]:
        one = all(p is picks[0] for p in picks)  # all models on the same rows: they are not copied
        names = (*self.trainer.task.layout.trainable, *self.trainer.task.layout.buffers)
        stack = {n: torch.stack([m[n] for m in models]) for n in names}
        rows = picks[0] if one else torch.nn.utils.rnn.pad_sequence(list(picks), batch_first=True)
        features, logits = vmap(self.trainer.refer_plainly, in_dims=(None if one else 0, 0))(x[rows], stack)
        return [(f[: len(p)], z[: len(p)]) for f, z, p in zip(features, logits, picks, strict=True)]


# ---------------------------------------------------------------- one client on its way
@dataclass(frozen=True)
class _Group:
    """Properties that a group of requests shares: `what` may turn out not to be stackable, `rest` only divides."""

    kind: Literal["Sgd", "Fold", "Run"]
    what: tuple[Any, ...]
    rest: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class _Failure:
    """An answer that is to be thrown into the step."""

    error: Exception


class _ActiveStep:
    """A client's step, the request it waits on, and how often it has asked."""

    def __init__(self, job: StepJob) -> None:
        self.job = job
        self.request: Any = None
        self.fit: Fit | None = None
        self.value: Any = None
        self.ended = False
        self.losses: list[float] = []
        self.examples = 0
        self._asked: Counter[type] = Counter()
        self._step: Any = None

    @property
    def index(self) -> int:
        """Number, from 0, of the request it waits on among the step's requests of its kind."""
        return self._asked[type(self.request)] - 1 if isinstance(self.request, Sgd | Fold | Run) else 0

    def begin(self) -> None:
        """Run up to the first request, or to the end of a step that has none."""
        self._step = self.job.start()
        if isinstance(self._step, GeneratorType):
            self._go(lambda: next(self._step))
        else:
            self.value, self.ended = self._step, True

    def advance(self, answer: Any) -> None:
        """Run on to the next request, or to the end; a failure is thrown at the step's own `yield`."""
        if isinstance(answer, _Failure):
            self._go(lambda: self._step.throw(answer.error))
        else:
            if isinstance(answer, Fitted):
                self.losses.append(answer.loss)
                self.examples += answer.examples
            self._go(lambda: self._step.send(answer))

    def close(self) -> None:
        """Leave a step that another client's failure has interrupted."""
        if isinstance(self._step, GeneratorType):
            self._step.close()

    def _go(self, resume: Callable[[], Any]) -> None:
        try:
            self.request = resume()
        except StopIteration as stop:
            self.value, self.ended = stop.value, True
        else:
            self._asked[type(self.request)] += 1


def _stacked(parts: CellParts) -> Stacked | Sequential:
    """Inputs of several parts, and those read by item, go one client after the other."""
    plain = isinstance(parts.trainer.device_data.x, Tensor | ByteImages)
    return Stacked(parts.trainer) if plain else Sequential(parts.trainer)


STACKED = ExecutorKind(
    "stacked",
    "many clients at once in one computation, for CUDA",
    _stacked,
    together=True,
    window=lambda model_bytes, workers, device: room_for(model_bytes, device=device),
)
