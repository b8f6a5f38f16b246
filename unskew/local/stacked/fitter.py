"""Local optimisations of several clients at once: in which form, how many side by side, and on which stream."""

import dataclasses
import math
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from unskew.local.optim import STACKED
from unskew.local.stacked.network import NetworkTraits
from unskew.local.stacked.rows import Fit, Form, ModelRows, RowContext, Spec, stream
from unskew.local.stacked.tables import to_host
from unskew.local.trainer import LocalTrainer
from unskew.protocol import Constant, Fitted, Sgd, SgdConfig, Term, sees_features
from unskew.tree import Params, leaves

_STREAMS = 4
# Number of parameters from which a network fills a device by itself.
_LARGE = 2_000_000
# Clients trained side by side where memory does not set a lower number, and how many streams they share.
_WIDEST = {"bmm": 256, "vmap": 64, "streams": 1}
# Share of the device's memory that one stack may take; on a CPU, bytes.
_SHARE, _CPU_BYTES = 0.25, 2**28
# Captured steps that are kept: each holds the memory of its stack.
_KEPT = 8


class Fitter:
    """Answers requests that are equal except for start, aux and data.

    Args:
        trainer: Trainer with the data, network and device.
        traits: Properties of the network.
        chunk: Clients side by side; None leaves it to the rule.
        form: Form in which they are stacked; None leaves it to the rule.
    """

    def __init__(self, trainer: LocalTrainer, traits: NetworkTraits, chunk: int | None, form: Form | None) -> None:
        self.trainer, self.traits, self.chunk, self.form = trainer, traits, chunk, form
        self.cuda = trainer.device.type == "cuda"
        self.context = RowContext(trainer, traits)
        self.singly: str | None = None  # why some requests are left to the trainer
        self.captures = self.cuda  # whether steps are captured and kept
        self._forms: dict[tuple[SgdConfig, tuple[Term, ...]], Form | None] = {}
        self._seen: Params | None = None
        self._kept: dict[Spec, ModelRows] = {}
        self._streams = [stream(trainer.device) for _ in range(_STREAMS)] if self.cuda else []

    # ------------------------------------------------------------------ which form
    def form_of(self, job: Sgd) -> Form | None:
        """Form in which such requests are answered; None is one client at a time, by the trainer."""
        if job.state is not None:
            self.singly = "one client at a time: its optimiser goes on"
            return None
        kind = job.config, job.terms
        if kind not in self._forms:
            self._forms[kind] = self._rule_of(job)
        return self._forms[kind]

    def _rule_of(self, job: Sgd) -> Form | None:
        stacked = {"precision": ("float32",), "optimizer": STACKED, "step_schedule": (Constant(),), "at_once": (None,)}
        for name, values in stacked.items():
            if getattr(job.config, name) not in values:
                self.singly = f"one client at a time: local.{name} is {getattr(job.config, name)}"
                return None
        chosen = self.trainer.task.layout.select(job.config.trainable)
        if self.traits.draws or not chosen.intersection(self.trainer.task.layout.trainable):
            return None
        by_hand = self.context.layers is not None and chosen.issuperset(self.trainer.task.layout.trainable)
        if by_hand and not any(sees_features(t) for t in job.terms) and self.form in (None, "bmm"):
            return "bmm"
        if self.form == "streams" or (self.cuda and (not self.small or self.traits.refuses)):
            return "streams"
        return None if self.traits.refuses else "vmap"

    @cached_property
    def small(self) -> bool:
        """True if stacking helps: a large network uses the device fully by itself."""
        names = (*self.trainer.task.layout.trainable, *self.trainer.task.layout.frozen)
        return sum(self.context.shapes[n].numel() for n in names) < _LARGE

    def fitting(self, start: Params) -> bool:
        """True if a model is the task's."""
        if start is self._seen:  # most rounds send one model to all clients
            return True
        fits = not self.trainer.fault(start)
        self._seen = start if fits else None
        return fits

    def width(self, form: Form, job: Sgd, batch: int) -> int:
        """Most clients side by side: a rule of network, batch and device."""
        if form == "streams":
            return 1
        if self.chunk is not None:
            return self.chunk
        shared = frozenset(self.trainer.task.layout.frozen)  # one copy serves all
        numbers = sum(s.numel() for n, s in self.context.shapes.items() if n not in shared)
        example = self.traits.x[0].numel() + 4 * self.traits.activations
        states = 1 if job.config.optimizer == "sgd" else 2
        each = ((4 + states) * numbers + batch * example) * self.trainer.dtype.itemsize
        if self.cuda:
            room = int(_SHARE * torch.cuda.get_device_properties(self.trainer.device).total_memory)
        else:
            room = _CPU_BYTES
        return max(1, min(room // each, _WIDEST[form]))

    # ------------------------------------------------------------------ all of a group
    def fit(self, fits: Sequence[Fit], form: Form) -> list[Fitted | None]:
        """Train them all; None where a loss or a parameter became NaN or infinite."""
        job = fits[0].job
        longest_first = sorted(range(len(fits)), key=lambda i: -fits[i].steps)
        largest = max(f.n for f in fits)
        most = self.width(form, job, min(largest, job.config.batch_size or largest))
        parts = -(-len(fits) // most)
        width = -(-len(fits) // parts)
        ended: list[tuple[list[int], list[Params], Tensor]] = []
        lanes = self._streams if form == "streams" else []
        for lane in lanes:  # also keeps memory that was freed on the main stream from being written too early
            lane.wait_stream(torch.cuda.current_stream(self.trainer.device))
        for turn, at in enumerate(range(0, len(fits), width)):
            part = longest_first[at : at + width]
            number = turn % len(lanes) if lanes else 0
            with torch.cuda.stream(lanes[number]) if lanes else nullcontext():
                ended.append((part, *self._fit_part([fits[i] for i in part], form, width, number)))
        for lane in lanes:
            torch.cuda.current_stream(self.trainer.device).wait_stream(lane)
        lr = job.config.lr_at(fits[0].me.round)
        fitted: list[Fitted | None] = [None] * len(fits)
        for (part, params, _), losses in zip(ended, to_host([loss for *_, loss in ended]), strict=True):
            for i, model, loss in zip(part, params, losses, strict=True):
                if math.isfinite(loss):
                    sizes = fits[i].batches.sizes
                    fitted[i] = Fitted(model, len(sizes), lr, loss, sum(sizes))
        return fitted

    def _fit_part(self, fits: list[Fit], form: Form, width: int, lane: int) -> tuple[list[Params], Tensor]:
        job = fits[0].job
        sizes = [f.batches.sizes for f in fits]
        steps, batch = max(map(len, sizes)), max(map(max, sizes))
        if self.captures:  # of a few sizes, so that the same captured steps serve many rounds
            steps = 1 << max(3, (steps - 1).bit_length())
            if job.config.batch_size is None and self.traits.padded:
                batch = -(-batch // 16) * 16
        columns = [[leaf for _, leaf in leaves(dict(f.job.aux)) if isinstance(leaf, Tensor)] for f in fits]
        shared = tuple(all(t is column[0] for t in column) for column in zip(*columns, strict=True))
        chosen = self.trainer.task.layout.select(job.config.trainable)
        rest = [n for n in self.trainer.task.layout.trainable if n not in chosen]
        spec = Spec(
            form,
            width,
            batch,
            steps,
            dataclasses.replace(
                job.config, lr=1.0, lr_schedule=Constant(), local_epochs=None, local_steps=None, batch_size=None
            ),
            job.terms,
            aux_key(job),
            shared,
            all(f.job.start[n] is job.start[n] for f in fits for n in rest),
            lane,
        )
        rows = self._kept.pop(spec, None) or ModelRows(self.context, spec, job)
        if self.captures:
            self._kept[spec] = rows
            for old in list(self._kept)[: -_KEPT * (_STREAMS if form == "streams" else 1)]:
                del self._kept[old]
            rows.prepare(sizes)
        rows.load(fits)
        rows.run()
        return rows.take()


def aux_key(job: Sgd) -> tuple[Any, ...]:
    """Key of an aux, equal if two requests can be one call: tensors by shape and type, the rest by value."""
    tensors = leaves(dict(job.aux))
    return tuple((at, t.shape, t.dtype) if isinstance(t, Tensor) else (at, type(t), t) for at, t in tensors)
