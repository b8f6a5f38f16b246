"""Models of several clients as the rows of one matrix, and the step that changes them all.

    w      rows, (clients, P), the tensors being trained end to end
    g, v   gradient and optimiser's state, alike
    pick   row numbers of the data set, (steps, clients, batch); a short batch repeats an example of the client's own
    weight 1 / (size of the batch) where there is an example, 0 where there is padding: the loss is a masked mean
    knobs  (steps, clients, 3): -lr, decay factor, bias correction; after its last step a client has -lr = 0

A step reads fixed memory only, so on CUDA it is captured once and replayed; a cursor on the device is the step's index.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn.functional import one_hot

from unskew.data.batches import Batches
from unskew.data.rows import ByteImages
from unskew.keys import Key
from unskew.local import dense
from unskew.local.data import batches_of
from unskew.local.optim import RowOptimiser
from unskew.local.stacked.network import NetworkTraits, scatter, with_keyed_dropout
from unskew.local.stacked.tables import by_name, copies, fill, slots, to_device, to_table
from unskew.local.terms import term_value
from unskew.local.trainer import LocalTrainer
from unskew.local.workspace import FeatureNetwork, placed, set_modes
from unskew.protocol import Batch, Me, Sgd, SgdConfig, Term, sees_features
from unskew.tree import Params, leaves, map_leaves

Form = Literal["bmm", "vmap", "streams"]
"""bmm: linear layers by hand; vmap: any network, stacked; streams: one client per stream, several streams."""
_NOTHING = torch.empty(0)
# Steps of one shape before it is captured: a capture costs about as much as this many.
_WORTH = 10


@dataclass(frozen=True, eq=False)
class Fit:
    """One client's optimisation, before it begins.

    Attributes:
        me, job, key: Arguments of `LocalTrainer.fit`.
        n: Number of its training examples.
        min_batch: The smallest batch the network can take.
    """

    me: Me
    job: Sgd
    key: Key
    n: int
    min_batch: int

    @cached_property
    def batches(self) -> Batches:
        """The batches that `LocalTrainer` would train on.

        Raises:
            DataError, ConfigError: As `plan`.
        """
        return batches_of(self.job.config, self.n, self.key, self.min_batch)

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.batches.sizes)


@dataclass(frozen=True)
class Spec:
    """Specification of a captured step; equal ones share the capture."""

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


class RowContext:
    """What all rows of a trainer share: its network in several modes, labels, captured steps.

    Attributes:
        trainer: Trainer with the data, network and device.
        traits: Properties of the network.
        layers: The network as a stack of linear layers; None if it is anything else.
        labels: Labels of all training examples; one-hot rows where gradients are written out by hand.
        weights: Weight of each training example, on the CPU; None if all weigh the same.
        shapes: Shape of each tensor by name.
        eager: Why steps are no longer captured; empty while they are.
        taken: Steps taken of each specification and batch size.
    """

    def __init__(self, trainer: LocalTrainer, traits: NetworkTraits) -> None:
        self.trainer, self.traits = trainer, traits
        self.layers = dense.kernel(trainer.task)
        labels = trainer.device_data.y
        self.labels = one_hot(labels, trainer.task.num_classes).to(trainer.dtype) if self.layers else labels
        weights = trainer.device_data.weights
        self.weights = None if weights is None else weights.cpu().to(trainer.dtype)
        module = trainer.task.module()
        self.shapes = {n: t.shape for n, t in (*module.named_parameters(), *module.named_buffers())}
        self.eager = ""
        self.taken: Counter[tuple[Spec, int]] = Counter()
        self._rows_of: dict[int, Tensor] = {}
        self._networks: dict[tuple[frozenset[str], bool], tuple[FeatureNetwork, tuple[str, ...]]] = {}

    def network(self, config: SgdConfig) -> tuple[FeatureNetwork, tuple[str, ...]]:
        """The network in the modes for this choice of tensors, and the seeds of its dropout layers."""
        layout = self.trainer.task.layout
        chosen, freeze = layout.select(config.trainable), config.buffers == "freeze"
        if (chosen, freeze) not in self._networks:
            module, seeds = with_keyed_dropout(
                placed(self.trainer.task.module(), self.trainer.device, self.trainer.dtype)
            )
            set_modes(module, layout, chosen, freeze)
            self._networks[chosen, freeze] = FeatureNetwork(module, self.trainer.task.head), seeds
        return self._networks[chosen, freeze]

    def rows_of(self, client: int) -> Tensor:
        """A client's row numbers, on the CPU."""
        if client not in self._rows_of:
            self._rows_of[client] = self.trainer.device_data.train[client].cpu()
        return self._rows_of[client]


class ModelRows:
    """Models of several clients side by side, and the step that changes them in place."""

    def __init__(self, context: RowContext, spec: Spec, like: Sgd) -> None:
        self._context, self._spec, self._trainer = context, spec, context.trainer
        self._network, self._seed_names = context.network(spec.config)
        layout, shapes, width = self._trainer.task.layout, context.shapes, spec.width
        make = partial(torch.zeros, device=self._trainer.device, dtype=self._trainer.dtype)
        integers = partial(torch.zeros, device=self._trainer.device, dtype=torch.int64)
        chosen = layout.select(spec.config.trainable)
        self._names = tuple(n for n in layout.trainable if n in chosen)
        sizes = [shapes[n].numel() for n in self._names]
        self._w, self._g = make(width, sum(sizes)), make(width, sum(sizes))
        self._trained = by_name(self._w, self._names, shapes)
        self._gradient = by_name(self._g, self._names, shapes)
        lead = () if spec.shared_rest else (width,)
        self._rest = {n: make(*lead, *shapes[n]) for n in layout.trainable if n not in chosen}
        self._buffers = {n: make(width, *shapes[n]) for n in layout.buffers}
        self._total = make(width)
        self._optimiser = RowOptimiser(spec.config, self._w)
        self._velocity = by_name(self._optimiser.velocity, self._names, shapes) if len(self._optimiser.velocity) else {}
        # A request's aux, its tensors replaced in order of appearance.
        tensors = [t for _, t in leaves(dict(like.aux)) if isinstance(t, Tensor)]
        self._aux = map_leaves(lambda leaf: _NOTHING if isinstance(leaf, Tensor) else leaf, dict(like.aux))
        self._aux_tensors = [
            torch.zeros((*(() if one else (width,)), *t.shape), device=self._trainer.device, dtype=t.dtype)
            for t, one in zip(tensors, spec.shared, strict=True)
        ]
        self._pick = integers(spec.steps, width, spec.batch)
        self._weight = make(spec.steps, width, spec.batch)
        self._knobs = make(spec.steps, width, 3)
        self._seeds = integers(spec.steps, width, len(self._seed_names))
        self._cursor = integers(1)
        # Augmentations draw from generators of the host, so captured steps find their batches here, already changed.
        x, self._augment = self._trainer.device_data.x, self._trainer.device_data.augment
        self._augmented = make(width, spec.batch, *x.shape[1:], dtype=x.dtype) if self._augment else None
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._fits: list[Fit] = []

    @property
    def _step(self) -> Callable[..., None]:
        """The step of this form.  Not an attribute: a cycle would keep all rows alive until Python looks for cycles."""
        return self._dense_step if self._spec.form == "bmm" else self._autograd_step

    # ------------------------------------------------------------------ begin and end
    @torch.no_grad()
    def load(self, fits: list[Fit]) -> None:
        """Fill the rows with these clients' starts, and the tables with their steps."""
        self._fits, k = fits, len(fits)
        for n, stack in (*self._trained.items(), *self._buffers.items()):
            fill(stack, [f.job.start[n] for f in fits])
        for n, stack in self._rest.items():
            if self._spec.shared_rest:
                stack.copy_(fits[0].job.start[n])
            else:
                fill(stack, [f.job.start[n] for f in fits])
        columns = zip(*([t for _, t in leaves(dict(f.job.aux)) if isinstance(t, Tensor)] for f in fits), strict=True)
        for stack, column, one in zip(self._aux_tensors, columns, self._spec.shared, strict=True):
            if one:
                stack.copy_(column[0])
            else:
                fill(stack, list(column))
        self._optimiser.reset()
        self._total.zero_()
        self._cursor.zero_()
        steps = len(fits[0].batches.sizes)
        pick, weight = self._table(steps)
        to_table(self._pick[:steps, :k], pick)
        to_table(self._weight[:steps, :k], weight)
        to_table(self._knobs[:steps, :k], self._knob_table(steps))
        if self._seed_names:
            to_table(self._seeds[:steps, :k], self._seed_table(steps))
        if k < self._spec.width:  # unused rows
            self._weight[:, k:].zero_()
            self._knobs[:, k:, 0].zero_()

    def take(self) -> tuple[list[Params], Tensor]:
        """The final models, and each client's mean loss; not finite after an overflow."""
        k, layout = len(self._fits), self._trainer.task.layout
        stacks = {**self._trained, **self._buffers, **self._rest}
        lists: dict[str, tuple[Tensor, ...]] = {}
        for n in (*layout.trainable, *layout.buffers):
            alike = n in self._rest and self._spec.shared_rest
            # Copies one by one: a client that remembers its head must not keep all rows alive.
            lists[n] = copies(stacks[n].expand(k, *stacks[n].shape) if alike else stacks[n][:k])
        steps = [len(f.batches.sizes) for f in self._fits]
        count = to_device(self._trainer.device, torch.tensor(steps, dtype=self._trainer.dtype))
        # A parameter that overflowed in the last step has not reached a loss yet; 0 * inf is NaN, 0 * finite is 0.
        loss = self._total[:k] / count + 0.0 * self._w[:k].abs().amax(1)
        self._fits = []
        return [{n: parts[i] for n, parts in lists.items()} for i in range(k)], loss

    def _table(self, steps: int) -> tuple[Tensor, Tensor]:
        batch = self._spec.batch
        pick = torch.empty(len(self._fits), steps * batch, dtype=torch.int64)
        weight = torch.zeros(len(self._fits), steps * batch, dtype=self._trainer.dtype)
        for i, f in enumerate(self._fits):
            rows = self._context.rows_of(f.me.id)
            places, shares = slots(f.batches.sizes, batch)
            if len(places) < steps * batch:
                pick[i] = rows[0]
            drawn = rows[f.batches.order]
            pick[i, places] = drawn
            weight[i, places] = shares.to(weight.dtype)
            if self._context.weights is not None:
                weight[i, places] *= self._context.weights[drawn]
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
        return table.to(self._trainer.dtype)

    def _seed_table(self, steps: int) -> Tensor:
        own = torch.tensor([(f.key / "dropout").number() for f in self._fits])
        layers = len(self._seed_names)
        return scatter(own[:, None] + torch.arange(steps * layers)).view(-1, steps, layers)

    # ------------------------------------------------------------------ steps
    def run(self) -> None:
        """Take all steps of all clients."""
        sizes = [f.batches.sizes for f in self._fits]
        draws = [(f.key / "augment").generator(self._trainer.device) for f in self._fits] if self._augment else []
        k = len(sizes)
        for t in range(len(sizes[0])):
            while len(sizes[k - 1]) <= t:
                k -= 1
            size = self._size(sizes, t)
            graph = self._graphs.get(size)
            if graph is not None:
                if self._augmented is not None:
                    x = self._inputs(self._pick[t, :k, :size])
                    self._augmented[:k, :size] = self._change(x, [s[t] for s in sizes[:k]], draws)
                graph.replay()
                continue
            size = max(s[t] for s in sizes[:k])
            pick = self._pick[t, :k, :size]
            x = self._change(self._inputs(pick), [s[t] for s in sizes[:k]], draws)
            self._step(x, self._labels(pick), self._weight[t, :k, :size], self._knobs[t, :k], self._seeds[t, :k])
            self._cursor.add_(1)

    def _change(self, x: Tensor, sizes: Sequence[int], draws: Sequence[torch.Generator]) -> Tensor:
        """Augment every client's batch of so many examples in place, by its own draws; return it."""
        if self._augment:
            for i, (n, generator) in enumerate(zip(sizes, draws, strict=False)):  # those that have steps left
                x[i, :n] = self._augment(x[i, :n], generator)
        return x

    def prepare(self, sizes: Sequence[tuple[int, ...]]) -> None:
        """Capture the step, unless that was done, is impossible, or would not pay."""
        if self._context.eager:
            return
        for size, times in Counter(self._size(sizes, t) for t in range(max(map(len, sizes)))).items():
            self._context.taken[self._spec, size] += times
            if size in self._graphs or self._context.taken[self._spec, size] < _WORTH:
                continue
            try:
                self._graphs[size] = self._capture(size)
            except RuntimeError as error:
                self._graphs.clear()
                self._context.eager = f"a step cannot be captured: {str(error).strip().partition(chr(10))[0][:200]}"
                return

    def _size(self, sizes: Sequence[tuple[int, ...]], t: int) -> int:
        """Batch size of a captured step: padding costs less than another capture, where there may be padding."""
        return self._spec.batch if self._context.traits.padded else sizes[0][t]

    def _next_step(self, size: int) -> Callable[[], None]:
        """The step that the cursor is at, of batches of `size`, and the cursor moved on: nothing of it on the host."""

        def step() -> None:
            tables = (self._pick, self._weight, self._knobs, self._seeds)
            pick, weight, knobs, seeds = (t.index_select(0, self._cursor)[0] for t in tables)
            pick = pick[:, :size]
            x = self._inputs(pick) if self._augmented is None else self._augmented[:, :size]
            self._step(x, self._labels(pick), weight[:, :size], knobs, seeds)
            self._cursor.add_(1)

        return step

    def _capture(self, size: int) -> "torch.cuda.CUDAGraph":
        step = self._next_step(size)
        device = self._trainer.device
        aside = stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            for _ in range(2):  # libraries set themselves up in their first calls, which must not be captured
                self._cursor.zero_()
                step()
        torch.cuda.current_stream(device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # cuBLAS has a workspace for each stream: steps that are replayed side by side must not share one.
        lane = torch.cuda.current_stream(device) if self._spec.form == "streams" else None
        with _collector_off(), torch.cuda.graph(graph, stream=lane):
            step()
        return graph

    def _inputs(self, pick: Tensor) -> Tensor:
        """Inputs of every client's batch."""
        return _rows_at(self._trainer.device_data.x, pick)

    def _labels(self, pick: Tensor) -> Tensor:
        """Labels of every client's batch."""
        labels = self._context.labels if self._spec.form == "bmm" else self._trainer.device_data.y
        return _rows_at(labels, pick)

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
            tidy = tuple(d if part is None or len(part) else None for d, part in zip(dims, given, strict=True))
            value, loss, moved = vmap(self._objective, in_dims=tidy)(*given)
        else:
            value, loss, moved = self._objective(*(_first(part, d) for part, d in zip(given, dims, strict=True)))
        gradients = torch.autograd.grad(value.sum(), list(trained.values()), allow_unused=True)
        pairs = list(zip(trained.values(), gradients, strict=True))
        unused = [(t, t.detach().clone()) for t, g in pairs if g is None]
        with torch.no_grad():
            torch.cat([(torch.zeros_like(t) if g is None else g).reshape(k, -1) for t, g in pairs], 1, out=self._g[:k])
            for n, t in moved.items():
                if t.data_ptr() != buffers[n].data_ptr():  # a layer may have changed it in place
                    buffers[n].copy_(t)
            self._optimiser(self._w[:k], self._g[:k], knobs)
            for t, before in unused:
                t.detach().copy_(before)
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
        """One client's task loss plus terms, the task loss alone, and the buffers afterwards."""
        task, terms = self._trainer.task, self._spec.terms
        of_layers = {n: seeds[i] for i, n in enumerate(self._seed_names)}
        tensors = {f"module.{n}": t for n, t in {**trained, **rest, **buffers, **of_layers}.items()}
        features, logits = functional_call(self._network, tensors, (x,), strict=False)
        each = task.loss(logits, y)
        loss = (each * weight).sum()
        value = loss
        if terms:
            aux = self._rebuilt(aux_tensors)
            every = {**trained, **rest}
            params = {n: every[n] for n in task.layout.trainable}
            mask = (weight > 0).to(each.dtype)
            # `weight` is a class's weight over the size of the batch.
            weighted = each if self._context.weights is None else each * weight * mask.sum()
            forward = partial(self._trainer.refer_plainly, x)
            batch = Batch(x.clone(), y.clone(), mask, features, logits, weighted, forward)
            value = value + _sum_of(terms, params, aux, batch)
        return value, loss.detach(), {n: tensors[f"module.{n}"].detach() for n in buffers}

    def _rebuilt(self, tensors: Sequence[Tensor]) -> Any:
        """The aux again, with these tensors in their places."""
        new: Iterator[Tensor] = iter(tensors)
        return map_leaves(lambda leaf: next(new) if isinstance(leaf, Tensor) else leaf, self._aux)

    # ------------------------------------------------------------------ by hand, unskew/local/dense.py
    @torch.no_grad()
    def _dense_step(self, x: Tensor, targets: Tensor, weight: Tensor, knobs: Tensor, seeds: Tensor) -> None:
        layers = self._context.layers
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
            self._w[:k].addcmul_(self._optimiser.velocity[:k], rate)
        else:
            self._optimiser(self._w[:k], self._g[:k], knobs)

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


def _rows_at(of: Tensor | ByteImages, pick: Tensor) -> Tensor:
    """The picked rows, in the shape of `pick` before their own."""
    rows = of.index_select(0, pick.reshape(-1))
    return rows.view(*pick.shape, *rows.shape[1:])


def _sum_of(terms: Sequence[Any], params: Params, aux: Any, batch: Batch | None) -> Tensor:
    return torch.stack([term_value(t, params, aux, batch if sees_features(t) else None) for t in terms]).sum()


def _first(part: Any, dim: Any) -> Any:
    """The only client's part of an argument that vmap would map over."""
    if isinstance(part, dict):
        return part if dim is None else {n: t[0] for n, t in part.items()}
    if isinstance(part, list):
        return [t if d is None else t[0] for t, d in zip(part, dim, strict=True)]
    return part[0]


@contextmanager
def _collector_off() -> Iterator[None]:
    """Keep Python from collecting cycles: to delete an old graph while one is captured spoils the capture."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def stream(device: torch.device) -> torch.cuda.Stream:
    """A new stream of a CUDA device."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
