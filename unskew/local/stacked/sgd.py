"""Local optimisations of several clients at once: their models are the rows of one matrix.

    w      rows, (clients, P), the tensors being trained end to end
    g, v   gradient and optimiser's state, alike
    pick   row numbers of the data set, (steps, clients, batch); a short batch repeats an example of the client's own
    weight 1 / (size of the batch) where there is an example, 0 where there is padding: the loss is a masked mean
    knobs  what changes from step to step, (steps, clients, 3): -lr, decay factor, bias correction; a client that has
           taken its last step has -lr = 0, and its row stays as it is

Everything a step reads lies in memory of fixed place, so that on CUDA one step is captured once and replayed: a
cursor on the device says which step it is.
"""

import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn.functional import one_hot

from unskew.data.batches import Batches, num_steps, plan
from unskew.keys import Key
from unskew.local import dense
from unskew.local.stacked.network import Nature, scatter, with_keyed_dropout
from unskew.local.trainer import LocalTrainer, _Network
from unskew.protocol import Batch, Constant, Fitted, Me, Sgd, SgdConfig, Term, sees_features
from unskew.tree import Params, leaves, map_leaves

Form = Literal["bmm", "vmap", "streams"]
"""bmm: linear layers by hand; vmap: any network, stacked; streams: one client per stream, several streams."""

_NOTHING = torch.empty(0)
# Clients trained side by side where memory does not set a lower number, and how many streams they share.
_WIDEST = {"bmm": 256, "vmap": 64, "streams": 1}
_STREAMS = 4
# Parameters from which a network fills a device alone.
_LARGE = 2_000_000
# Share of the device's memory that one stack may take; on a CPU, bytes.
_SHARE, _CPU_BYTES = 0.25, 2**28
# Captured steps that are kept: each holds the memory of its stack.
_KEPT = 8
# Steps of one shape before it is captured: a capture costs about as much as this many.
_WORTH = 10


@dataclass(frozen=True, eq=False)
class Fit:
    """One client's optimisation, not yet begun.

    Attributes:
        me, job, key: As in `LocalTrainer.fit`.
        n: Its training examples.
        min_batch: The smallest batch the network can take.
    """

    me: Me
    job: Sgd
    key: Key
    n: int
    min_batch: int

    @cached_property
    def batches(self) -> Batches:
        """Which examples make up which step: the plan that `LocalTrainer` makes."""
        config = self.job.config
        return plan(
            self.n,
            batch_size=config.batch_size,
            epochs=config.epochs,
            steps=config.local_steps,
            key=self.key / "shuffle",
            min_batch=self.min_batch,
            drop_last=config.drop_last,
        )

    @cached_property
    def steps(self) -> int:
        """How many, without planning them.

        Raises:
            DataError, ConfigError: As `plan`.
        """
        config = self.job.config
        return num_steps(
            self.n,
            batch_size=config.batch_size,
            epochs=config.epochs,
            steps=config.local_steps,
            min_batch=self.min_batch,
            drop_last=config.drop_last,
        )


@dataclass(frozen=True)
class _Spec:
    """All that a captured step depends on; equal specifications can use the same one."""

    form: Form
    width: int
    batch: int
    steps: int
    config: SgdConfig
    terms: tuple[Term, ...]
    aux: tuple[Any, ...]
    shared: tuple[bool, ...]
    shared_rest: bool
    stream: int


class Fitter:
    """Meets requests that are equal but for start, aux and data.

    Args:
        solo: Whose data, network and device these are.
        nature: What is known of the network.
        chunk: Clients side by side; None for the rule.
        form: How; None for the rule.
    """

    def __init__(self, trainer: LocalTrainer, nature: Nature, chunk: int | None, form: Form | None) -> None:
        self.trainer, self.nature, self.chunk, self.form = trainer, nature, chunk, form
        self.cuda = trainer.device.type == "cuda"
        self.layers = dense.kernel(trainer.task)
        self.labels = (
            one_hot(trainer.device_data.y, trainer.task.num_classes).to(trainer.dtype)
            if self.layers
            else trainer.device_data.y
        )
        # Whether steps are captured and kept, and why they no longer are.
        self.captures, self.eager = self.cuda, ""
        self._rows_of: dict[int, Tensor] = {}
        self._modules: dict[tuple[frozenset[str], bool], tuple[_Network, tuple[str, ...]]] = {}
        self._forms: dict[tuple[SgdConfig, tuple[Term, ...]], Form | None] = {}
        self._seen: Params | None = None
        self._kept: dict[_Spec, Rows] = {}
        self.taken: Counter[tuple[_Spec, int]] = Counter()
        self._streams = [_stream(trainer.device) for _ in range(_STREAMS)] if self.cuda else []

    # ------------------------------------------------------------------ which form
    def form_of(self, job: Sgd) -> Form | None:
        """How such requests are met; None is one client at a time, by the solo."""
        kind = job.config, job.terms
        if kind not in self._forms:
            self._forms[kind] = self._rule_of(job)
        return self._forms[kind]

    def _rule_of(self, job: Sgd) -> Form | None:
        chosen = self.trainer.task.layout.select(job.config.trainable)
        if self.nature.draws or not chosen.intersection(self.trainer.task.layout.trainable):
            return None
        by_hand = self.layers is not None and chosen.issuperset(self.trainer.task.layout.trainable)
        if by_hand and not any(sees_features(t) for t in job.terms) and self.form in (None, "bmm"):
            return "bmm"
        if self.form == "streams" or (self.cuda and (not self.small or self.nature.refuses)):
            return "streams"
        return None if self.nature.refuses else "vmap"

    @cached_property
    def small(self) -> bool:
        """Whether stacking gains anything: a large network fills the device by itself."""
        return sum(self._shapes[n].numel() for n in self.trainer.task.layout.trainable) < _LARGE

    @cached_property
    def _shapes(self) -> dict[str, torch.Size]:
        module = self.trainer.task.module()
        return {n: t.shape for n, t in (*module.named_parameters(), *module.named_buffers())}

    def fitting(self, start: Params) -> bool:
        """Whether a model has the network's shapes."""
        if start is self._seen:  # most rounds send one model to everybody
            return True
        layout = self.trainer.task.layout
        names = (*layout.trainable, *layout.buffers)
        fits = all(n in start and start[n].shape == self._shapes[n] for n in names)
        self._seen = start if fits else None
        return fits

    def width(self, form: Form, job: Sgd, batch: int) -> int:
        """Most clients side by side: a rule of network, batch and device."""
        if form == "streams":
            return 1
        if self.chunk is not None:
            return self.chunk
        numbers = sum(s.numel() for s in self._shapes.values())
        example = self.nature.x[0].numel() + 4 * self.nature.activations
        states = {"sgd": 1, "adam": 2, "adamw": 2}[job.config.optimizer]
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
        for (part, params, _), losses in zip(ended, _to_host([loss for *_, loss in ended]), strict=True):
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
            if job.config.batch_size is None and self.nature.padded:
                batch = -(-batch // 16) * 16
        columns = [[leaf for _, leaf in leaves(dict(f.job.aux)) if isinstance(leaf, Tensor)] for f in fits]
        shared = tuple(all(t is column[0] for t in column) for column in zip(*columns, strict=True))
        chosen = self.trainer.task.layout.select(job.config.trainable)
        rest = [n for n in self.trainer.task.layout.trainable if n not in chosen]
        spec = _Spec(
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
        rows = self._kept.pop(spec, None) or Rows(self, spec, job)
        if self.captures:
            self._kept[spec] = rows
            for old in list(self._kept)[: -_KEPT * (_STREAMS if form == "streams" else 1)]:
                del self._kept[old]
            rows.prepare(sizes)
        rows.load(fits)
        rows.run()
        return rows.take()

    # ------------------------------------------------------------------ shared by the rows
    def module(self, config: SgdConfig) -> tuple[_Network, tuple[str, ...]]:
        """The network in the modes that this choice of tensors asks for, and the seeds of its dropout layers."""
        layout = self.trainer.task.layout
        chosen, freeze = layout.select(config.trainable), config.buffers == "freeze"
        if (chosen, freeze) not in self._modules:
            module, seeds = with_keyed_dropout(
                self.trainer.task.module().to(self.trainer.device, self.trainer.dtype).train()
            )
            for name, m in module.named_modules():
                mine = [b for b in layout.buffers if b.rpartition(".")[0] == name]
                if mine and (freeze or not chosen.intersection(mine)):
                    m.eval()
            self._modules[chosen, freeze] = _Network(module, self.trainer.task.head), seeds
        return self._modules[chosen, freeze]

    def rows_of(self, client: int) -> Tensor:
        """A client's row numbers, on the CPU."""
        if client not in self._rows_of:
            self._rows_of[client] = self.trainer.device_data.train[client].cpu()
        return self._rows_of[client]


def aux_key(job: Sgd) -> tuple[Any, ...]:
    """What of an aux must be equal for two requests to be one call: tensors by shape and type, the rest by value."""
    found = leaves(dict(job.aux))
    return tuple((at, t.shape, t.dtype) if isinstance(t, Tensor) else (at, type(t), t) for at, t in found)


# ---------------------------------------------------------------- rows
class Rows:
    """Models of several clients side by side, and the step that changes them in place."""

    def __init__(self, fitter: Fitter, spec: _Spec, like: Sgd) -> None:
        self._fitter, self._spec, self._solo = fitter, spec, fitter.trainer
        self._network, self._seed_names = fitter.module(spec.config)
        layout, shapes, width = self._solo.task.layout, fitter._shapes, spec.width
        make = partial(torch.zeros, device=self._solo.device, dtype=self._solo.dtype)
        integers = partial(torch.zeros, device=self._solo.device, dtype=torch.int64)
        chosen = layout.select(spec.config.trainable)
        self._names = tuple(n for n in layout.trainable if n in chosen)
        sizes = [shapes[n].numel() for n in self._names]
        self._w, self._g = make(width, sum(sizes)), make(width, sum(sizes))
        self._trained = _views(self._w, self._names, shapes)
        self._gradient = _views(self._g, self._names, shapes)
        lead = () if spec.shared_rest else (width,)
        self._rest = {n: make(*lead, *shapes[n]) for n in layout.trainable if n not in chosen}
        self._buffers = {n: make(width, *shapes[n]) for n in layout.buffers}
        self._total = make(width)
        self._rule = _Rule(spec.config, self._w)
        self._velocity = _views(self._rule.velocity, self._names, shapes) if len(self._rule.velocity) else {}
        # A request's aux, its tensors replaced in order of appearance.
        tensors = [t for _, t in leaves(dict(like.aux)) if isinstance(t, Tensor)]
        self._aux = map_leaves(lambda leaf: _NOTHING if isinstance(leaf, Tensor) else leaf, dict(like.aux))
        self._aux_tensors = [
            torch.zeros((*(() if one else (width,)), *t.shape), device=self._solo.device, dtype=t.dtype)
            for t, one in zip(tensors, spec.shared, strict=True)
        ]
        self._pick = integers(spec.steps, width, spec.batch)
        self._weight = make(spec.steps, width, spec.batch)
        self._knobs = make(spec.steps, width, 3)
        self._seeds = integers(spec.steps, width, len(self._seed_names))
        self._cursor = integers(1)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._fits: list[Fit] = []
        self._step = self._dense_step if spec.form == "bmm" else self._autograd_step

    # ------------------------------------------------------------------ begin and end
    @torch.no_grad()
    def load(self, fits: list[Fit]) -> None:
        """Fill the rows with these clients' starts, and the tables with what they will do."""
        self._fits, k = fits, len(fits)
        for n, stack in (*self._trained.items(), *self._buffers.items()):
            _fill(stack, [f.job.start[n] for f in fits])
        for n, stack in self._rest.items():
            if self._spec.shared_rest:
                stack.copy_(fits[0].job.start[n])
            else:
                _fill(stack, [f.job.start[n] for f in fits])
        columns = zip(*([t for _, t in leaves(dict(f.job.aux)) if isinstance(t, Tensor)] for f in fits), strict=True)
        for stack, column, one in zip(self._aux_tensors, columns, self._spec.shared, strict=True):
            if one:
                stack.copy_(column[0])
            else:
                _fill(stack, list(column))
        self._rule.reset()
        self._total.zero_()
        self._cursor.zero_()
        steps = len(fits[0].batches.sizes)
        pick, weight = self._table(steps)
        _send(self._pick[:steps, :k], pick)
        _send(self._weight[:steps, :k], weight)
        _send(self._knobs[:steps, :k], self._knob_table(steps))
        if self._seed_names:
            _send(self._seeds[:steps, :k], self._seed_table(steps))
        if k < self._spec.width:  # rows of nobody
            self._weight[:, k:].zero_()
            self._knobs[:, k:, 0].zero_()

    def take(self) -> tuple[list[Params], Tensor]:
        """The models at the end, and each client's mean loss; not finite where something overflowed."""
        k, layout = len(self._fits), self._solo.task.layout
        held = {**self._trained, **self._buffers, **self._rest}
        lists: dict[str, tuple[Tensor, ...]] = {}
        for n in (*layout.trainable, *layout.buffers):
            alike = n in self._rest and self._spec.shared_rest
            # Copies one by one: a client that remembers its head must not keep everybody's rows alive.
            lists[n] = _copies(held[n].expand(k, *held[n].shape) if alike else held[n][:k])
        steps = [len(f.batches.sizes) for f in self._fits]
        count = _on(self._solo.device, torch.tensor(steps, dtype=self._solo.dtype))
        # A parameter that overflowed in the last step has not reached a loss yet; 0 * inf is NaN, 0 * finite is 0.
        loss = self._total[:k] / count + 0.0 * self._w[:k].abs().amax(1)
        self._fits = []
        return [{n: parts[i] for n, parts in lists.items()} for i in range(k)], loss

    def _table(self, steps: int) -> tuple[Tensor, Tensor]:
        batch = self._spec.batch
        pick = torch.empty(len(self._fits), steps * batch, dtype=torch.int64)
        weight = torch.zeros(len(self._fits), steps * batch, dtype=self._solo.dtype)
        for i, f in enumerate(self._fits):
            rows = self._fitter.rows_of(f.me.id)
            places, shares = _slots(f.batches.sizes, batch)
            if len(places) < steps * batch:
                pick[i] = rows[0]
            pick[i, places] = rows[f.batches.order]
            weight[i, places] = shares.to(weight.dtype)
        return pick.view(-1, steps, batch), weight.view(-1, steps, batch)

    def _knob_table(self, steps: int) -> Tensor:
        config = self._fits[0].job.config
        lr = config.lr_at(self._fits[0].me.round)
        t = torch.arange(1, steps + 1, dtype=torch.float64)
        beta1, beta2 = config.betas
        rate = -lr / (1.0 - beta1**t) if config.optimizer != "sgd" else torch.full_like(t, -lr)
        shrink = torch.full_like(t, 1.0 - lr * config.weight_decay)
        active = torch.tensor([[f.steps] for f in self._fits]) >= t
        each = (rate * active, shrink.where(active, torch.ones_like(t)), (1.0 - beta2**t).sqrt().expand(active.shape))
        table = torch.stack(each, 2)
        return table.to(self._solo.dtype)

    def _seed_table(self, steps: int) -> Tensor:
        own = torch.tensor([(f.key / "dropout").number() for f in self._fits])
        layers = len(self._seed_names)
        return scatter(own[:, None] + torch.arange(steps * layers)).view(-1, steps, layers)

    # ------------------------------------------------------------------ steps
    def run(self) -> None:
        """All steps of all clients."""
        sizes = [f.batches.sizes for f in self._fits]
        augment = self._solo.device_data.augment
        draws = [(f.key / "augment").generator(self._solo.device) for f in self._fits] if augment else []
        k = len(sizes)
        for t in range(len(sizes[0])):
            graph = self._graphs.get(self._size(sizes, t))
            if graph is not None:
                graph.replay()
                continue
            while len(sizes[k - 1]) <= t:
                k -= 1
            size = max(s[t] for s in sizes[:k])
            x, y = self._gather(self._pick[t, :k, :size])
            if augment:
                for i in range(k):
                    x[i, : sizes[i][t]] = augment(x[i, : sizes[i][t]], draws[i])
            self._step(x, y, self._weight[t, :k, :size], self._knobs[t, :k], self._seeds[t, :k])
            self._cursor.add_(1)

    def prepare(self, sizes: Sequence[tuple[int, ...]]) -> None:
        """Capture the step, unless that was done before, cannot be, or would not pay."""
        if self._fitter.eager or self._solo.device_data.augment:  # augmentations draw from generators of the host
            return
        for size, times in Counter(self._size(sizes, t) for t in range(max(map(len, sizes)))).items():
            self._fitter.taken[self._spec, size] += times
            if size in self._graphs or self._fitter.taken[self._spec, size] < _WORTH:
                continue
            try:
                self._graphs[size] = self._capture(size)
            except RuntimeError as error:
                self._graphs.clear()
                self._fitter.eager = f"a step cannot be captured: {str(error).strip().partition(chr(10))[0][:200]}"
                return

    def _size(self, sizes: Sequence[tuple[int, ...]], t: int) -> int:
        """Batch size of a captured step: padding costs less than another capture, where there may be padding."""
        return self._spec.batch if self._fitter.nature.padded else sizes[0][t]

    def _next_step(self, size: int) -> Callable[[], None]:
        """The step that the cursor is at, of batches of `size`, and the cursor moved on: nothing of it on the host."""

        def step() -> None:
            tables = (self._pick, self._weight, self._knobs, self._seeds)
            pick, weight, knobs, seeds = (t.index_select(0, self._cursor)[0] for t in tables)
            self._step(*self._gather(pick[:, :size]), weight[:, :size], knobs, seeds)
            self._cursor.add_(1)

        return step

    def _capture(self, size: int) -> "torch.cuda.CUDAGraph":
        step = self._next_step(size)
        device = self._solo.device
        aside = _stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            for _ in range(2):  # libraries set themselves up in their first calls, which must not be captured
                self._cursor.zero_()
                step()
        torch.cuda.current_stream(device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph

    def _gather(self, pick: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels of every client's batch."""
        labels = self._fitter.labels if self._spec.form == "bmm" else self._solo.device_data.y
        flat = pick.reshape(-1)
        x, y = (t.index_select(0, flat) for t in (self._solo.device_data.x, labels))
        return x.view(*pick.shape, *x.shape[1:]), y.view(*pick.shape, *y.shape[1:])

    # ------------------------------------------------------------------ by autograd
    def _autograd_step(self, x: Tensor, y: Tensor, weight: Tensor, knobs: Tensor, seeds: Tensor) -> None:
        k = len(x)
        trained = {n: t[:k].detach().requires_grad_() for n, t in self._trained.items()}
        rest = self._rest if self._spec.shared_rest else {n: t[:k] for n, t in self._rest.items()}
        buffers = {n: t[:k] for n, t in self._buffers.items()}
        aux = [t if one else t[:k] for t, one in zip(self._aux_tensors, self._spec.shared, strict=True)]
        given: tuple[Any, ...] = (trained, rest, buffers, aux, x, y, weight, seeds)
        dims = (
            0,
            None if self._spec.shared_rest else 0,
            0,
            [None if one else 0 for one in self._spec.shared],
            0,
            0,
            0,
            0,
        )
        if self._spec.form == "vmap":
            # vmap refuses an in_dims with nothing under it.
            tidy = tuple(d if held is None or len(held) else None for d, held in zip(dims, given, strict=True))
            value, loss, moved = vmap(self._objective, in_dims=tidy)(*given)
        else:
            value, loss, moved = self._objective(*(_first(held, d) for held, d in zip(given, dims, strict=True)))
        gradients = torch.autograd.grad(value.sum(), list(trained.values()), materialize_grads=True)
        with torch.no_grad():
            torch.cat([g.reshape(k, -1) for g in gradients], 1, out=self._g[:k])
            for n, t in moved.items():
                if t.data_ptr() != buffers[n].data_ptr():  # a layer may have changed it in place
                    buffers[n].copy_(t)
            self._rule(self._w[:k], self._g[:k], knobs)
            self._total[:k].add_(loss)

    def _objective(
        self,
        trained: Params,
        rest: Params,
        buffers: Params,
        aux_tensors: list[Tensor],
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        seeds: Tensor,
    ) -> tuple[Tensor, Tensor, Params]:
        """Of one client: task loss plus terms, the task loss alone, and the buffers afterwards."""
        task, terms = self._solo.task, self._spec.terms
        of_layers = {n: seeds[i] for i, n in enumerate(self._seed_names)}
        held = {f"module.{n}": t for n, t in {**trained, **rest, **buffers, **of_layers}.items()}
        features, logits = functional_call(self._network, held, (x,), strict=False)
        each = task.loss(logits, y)
        loss = (each * weight).sum()
        value = loss
        if terms:
            aux = self._rebuilt(aux_tensors)
            every = {**trained, **rest}
            params = {n: every[n] for n in task.layout.trainable}
            mask = (weight > 0).to(each.dtype)
            batch = Batch(x, y, mask, features, logits, each, partial(self._solo._refer_plainly, x))
            value = value + _sum_of(terms, params, aux, batch)
        return value, loss.detach(), {n: held[f"module.{n}"].detach() for n in buffers}

    def _rebuilt(self, tensors: Sequence[Tensor]) -> Any:
        """The aux again, with these tensors in their places."""
        new: Iterator[Tensor] = iter(tensors)
        return map_leaves(lambda leaf: next(new) if isinstance(leaf, Tensor) else leaf, self._aux)

    # ------------------------------------------------------------------ by hand, unskew/local/dense.py
    @torch.no_grad()
    def _dense_step(self, x: Tensor, targets: Tensor, weight: Tensor, knobs: Tensor, seeds: Tensor) -> None:
        layers = self._fitter.layers
        assert layers is not None
        k, n = x.shape[:2]
        config, rate = self._spec.config, knobs[:, :1]
        simple = config.optimizer == "sgd" and config.clip_norm is None and not config.weight_decay
        simple = simple and not self._spec.terms
        straight, rolling = simple and not config.momentum, simple and config.momentum > 0.0 and not config.nesterov
        into = self._trained if straight else self._velocity if rolling else self._gradient
        keep = 1.0 if straight else config.momentum if rolling else 0.0
        weights = [self._trained[layer.weight][:k] for layer in layers]
        a, inputs = x.reshape(k, n, -1), []
        for layer, w in zip(layers, weights, strict=True):  # (1)
            inputs.append(a)
            if layer.bias is None:
                a = torch.bmm(a, w.transpose(1, 2))
            else:
                a = torch.baddbmm(self._trained[layer.bias][:k, None, :], a, w.transpose(1, 2))
            if layer.relu:
                a.relu_()
        log_p = torch.log_softmax(a, 2)
        self._total[:k].sub_((log_p * targets * weight[:, :, None]).sum((1, 2)))
        # (2); under plain SGD the learning rate is carried along from the top, and (3) lands in the weights
        g = log_p.exp_().sub_(targets).mul_((weight * rate if straight else weight)[:, :, None])
        for i in range(len(layers) - 1, -1, -1):
            layer, a = layers[i], inputs[i]
            below = torch.bmm(g, weights[i]).mul_(a > 0) if i else None  # (4), before the weights move
            into[layer.weight][:k].baddbmm_(g.transpose(1, 2), a, beta=keep)  # (3)
            if layer.bias is not None:
                b = into[layer.bias][:k]
                torch.add(b.mul(keep), g.sum(1), out=b) if keep else b.copy_(g.sum(1))
            g = below if below is not None else g
        if straight:
            return
        if self._spec.terms:
            self._add_terms(k)
        if rolling:
            self._w[:k].addcmul_(self._rule.velocity[:k], rate)
        else:
            self._rule(self._w[:k], self._g[:k], knobs)

    def _add_terms(self, k: int) -> None:
        shared = self._spec.shared
        aux = [t if one else t[:k] for t, one in zip(self._aux_tensors, shared, strict=True)]

        def terms(params: Params, tensors: list[Tensor]) -> Tensor:
            return _sum_of(self._spec.terms, params, self._rebuilt(tensors), None)

        with torch.enable_grad():
            leaves_ = {n: t[:k].detach().requires_grad_() for n, t in self._trained.items()}
            dims = (0, [None if one else 0 for one in shared] if shared else None)
            value = vmap(terms, in_dims=dims)(leaves_, aux).sum()
            if not value.requires_grad:  # a constant, as a method's term may be in its first round
                return
            gradients = torch.autograd.grad(value, list(leaves_.values()), materialize_grads=True)
        for n, g in zip(leaves_, gradients, strict=True):
            self._gradient[n][:k].add_(g)


# ---------------------------------------------------------------- optimisers of rows
class _Rule:
    """SGD, Adam and AdamW on rows, (clients, P): the arithmetic of `unskew.local.optim`, clipped row by row."""

    def __init__(self, config: SgdConfig, like: Tensor) -> None:
        self._config = config
        adam = config.optimizer != "sgd"
        self.velocity = torch.zeros_like(like if config.momentum or adam else like[:0])
        self._square = torch.zeros_like(like if adam else like[:0])

    def reset(self) -> None:
        """A fresh optimiser: a velocity belongs to weights."""
        self.velocity.zero_()
        self._square.zero_()

    def __call__(self, w: Tensor, g: Tensor, knobs: Tensor) -> None:
        """Change the first rows `w` by one step; `g` is overwritten."""
        config, k = self._config, len(w)
        rate, shrink, root = knobs[:, 0:1], knobs[:, 1:2], knobs[:, 2:3]
        if config.clip_norm is not None:
            norm = torch.linalg.vector_norm(g, dim=1, keepdim=True)
            g.mul_((config.clip_norm / (norm + 1e-6)).clamp_(max=1.0))
        if config.weight_decay and config.optimizer == "adamw":
            w.mul_(shrink)
        elif config.weight_decay:
            g.add_(w, alpha=config.weight_decay)
        v = self.velocity[:k]
        if config.optimizer == "sgd":
            if config.momentum:
                v.mul_(config.momentum).add_(g)
                g = g.add_(v, alpha=config.momentum) if config.nesterov else v
            w.addcmul_(g, rate)
            return
        square = self._square[:k]
        v.lerp_(g, 1.0 - config.betas[0])
        square.mul_(config.betas[1]).addcmul_(g, g, value=1.0 - config.betas[1])
        w.addcmul_(v / square.sqrt().div_(root).add_(config.eps), rate)


# ---------------------------------------------------------------- small parts
def _sum_of(terms: Sequence[Any], params: Params, aux: Any, batch: Batch | None) -> Tensor:
    return torch.stack([t(params, aux, batch) if sees_features(t) else t(params, aux) for t in terms]).sum()


def _views(rows: Tensor, names: Sequence[str], shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """The columns of each tensor, (clients, *shape)."""
    parts = torch.split(rows, [shapes[n].numel() for n in names], 1)
    return {n: part.view(len(rows), *shapes[n]) for n, part in zip(names, parts, strict=True)}


def _fill(stack: Tensor, tensors: Sequence[Tensor]) -> None:
    """The first places of a stack from one tensor each; a tensor that all share is sent once."""
    into = stack[: len(tensors)]
    if all(t is tensors[0] for t in tensors):
        into.copy_(tensors[0])
    else:
        into.copy_(torch.stack(list(tensors)))


def _send(table: Tensor, host: Tensor) -> None:
    """From (clients, steps, ...) on the CPU to (steps, clients, ...) where the table is."""
    table.copy_(_on(table.device, host).transpose(0, 1))


def _on(device: torch.device, host: Tensor) -> Tensor:
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def _to_host(vectors: Sequence[Tensor]) -> list[list[float]]:
    """Their numbers, in one transfer."""
    numbers: list[float] = torch.cat(list(vectors)).tolist()
    ends = list(itertools.accumulate(len(v) for v in vectors))
    return [numbers[end - len(v) : end] for end, v in zip(ends, vectors, strict=True)]


def _copies(stack: Tensor) -> tuple[Tensor, ...]:
    parts: Any = torch.unbind_copy  # its stub says that it returns nothing
    out: tuple[Tensor, ...] = parts(stack)
    return out


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _first(held: Any, dim: Any) -> Any:
    """The only client's share of what vmap would be given."""
    if isinstance(held, dict):
        return held if dim is None else {n: t[0] for n, t in held.items()}
    if isinstance(held, list):
        return [t if d is None else t[0] for t, d in zip(held, dim, strict=True)]
    return held[0]


@functools.lru_cache(maxsize=1024)
def _slots(sizes: tuple[int, ...], batch: int) -> tuple[Tensor, Tensor]:
    """Where the examples of batches of these sizes go in rows of `batch`, and the weight of each in its mean."""
    places = torch.cat([torch.arange(n) + t * batch for t, n in enumerate(sizes)])
    counts = torch.tensor(sizes)
    return places, (1.0 / counts.double()).repeat_interleave(counts)
