"""One client's `Sgd`, `Fold` and `Run`, met on one device.

The network is built once; the tensors being trained are views of one flat vector, which a request fills and an
optimiser changes in place.  Inputs lie on the device from the start; an epoch is gathered in one call and sliced.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from operator import add
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import one_hot

from unskew.data.batches import Batches, plan
from unskew.errors import ConfigError, DataError, DivergedError, ProtocolError
from unskew.keys import Key
from unskew.local import dense, imagery
from unskew.local.kernels import forward_block, tune, wants_channels_last
from unskew.local.optim import one_pass, optimiser
from unskew.protocol import NOBODY, Batch, Fitted, Fold, Imagery, Me, Run, Sgd, refuse_request, sees_features
from unskew.task import Task, accuracy
from unskew.tree import Params

Augment = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True, eq=False)
class DeviceData:
    """The data set on the device, and which of it each client may see.

    Attributes:
        x: All training inputs, (N, ...).
        y: Their labels, (N,).
        train: Row numbers of each client's training examples, (n,) int64.
        val: Row numbers kept aside from training, (m,) int64.
        augment: Applied to training batches only, with a keyed generator; None leaves them as they are.
        x_test, y_test: The global test set; None where nothing is graded on it.
        groups: Domain of each training example, (N,) int64; None where the data has no domains.
        levels: What black, and the brightest value of the training part, have become in each channel of images; None
            where that is not known.
    """

    x: Tensor
    y: Tensor
    train: tuple[Tensor, ...]
    val: tuple[Tensor, ...]
    augment: Augment | None = None
    x_test: Tensor | None = None
    y_test: Tensor | None = None
    groups: Tensor | None = None
    levels: tuple[tuple[float, float], ...] | None = None


def kernels(task: Task, device: torch.device) -> str:
    """Which forms of the network's layers are used there, for the record: bits depend on it."""
    if device.type != "cpu":
        return "torch"
    form = "written-out" if dense.kernel(task) else "channels-last" if wants_channels_last(task.module()) else "torch"
    return form + "+onednn" * dense.onednn_is_faster() + "+fused" * one_pass()


class _Network(nn.Module):
    """The network, returning the input of its head beside its output."""

    def __init__(self, module: nn.Module, head: str) -> None:
        super().__init__()
        self.module = module
        self._features: Tensor | None = None
        module.get_submodule(head).register_forward_pre_hook(self._catch)

    def _catch(self, _layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._features = inputs[0]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits: Tensor = self.module(x)
        features, self._features = self._features, None
        if features is None:
            raise ConfigError(
                "the network's head was not called in its forward pass; name the layer that makes the logits"
            )
        return features, logits


@dataclass(eq=False)
class _Workspace:
    """A network whose trained tensors are views of `vector`; one per choice of tensors that may change."""

    network: _Network
    names: tuple[str, ...]
    vector: Tensor
    gradient: Tensor
    parameters: dict[str, Tensor]
    # Buffers by owner and name: a forward pass may put a new tensor in the place of the old.
    buffers: dict[str, tuple[nn.Module, str]]
    counters: tuple[tuple[nn.Module, str, Tensor], ...]
    flatten: Callable[[Tensor], Tensor]

    @cached_property
    def gradients(self) -> dict[str, Tensor]:
        """`gradient` by name, of a network without convolutions."""
        return self._by_name(self.gradient)

    @cached_property
    def velocities(self) -> dict[str, Tensor]:
        """Memory of SGD with momentum by name, of one optimisation at a time; as `gradients`."""
        return self._by_name(torch.empty_like(self.gradient))

    def _by_name(self, vector: Tensor) -> dict[str, Tensor]:
        trained = [self.parameters[n] for n in self.names]
        assert all(t.dim() < 4 for t in trained)  # those may lie channels last
        parts = torch.split(vector, [t.numel() for t in trained])
        return {n: part.view(t.shape) for n, part, t in zip(self.names, parts, trained, strict=True)}

    @torch.no_grad()
    def load(self, start: Params) -> None:
        for name, t in self.parameters.items():
            t.copy_(start[name])
        for name, (owner, last) in self.buffers.items():
            getattr(owner, last).copy_(start[name])
        for owner, last, value in self.counters:
            getattr(owner, last).copy_(value)

    @torch.no_grad()
    def take(self) -> Params:
        held = {**self.parameters, **{name: getattr(*place) for name, place in self.buffers.items()}}
        return {name: t.detach().clone(memory_format=torch.contiguous_format) for name, t in held.items()}


def _all_finite(vector: Tensor) -> bool:
    # Where the sum is finite all are; where it is not, large numbers may have met.  Faster than looking at each.
    return math.isfinite(float(vector.sum())) or bool(torch.isfinite(vector).all())


def _as_it_is(t: Tensor) -> Tensor:
    return t.reshape(-1)


def _channels_last_order(t: Tensor) -> Tensor:
    """As `_as_it_is`, but convolutions channels last."""
    return (t.permute(0, 2, 3, 1) if t.dim() == 4 else t).reshape(-1)


class _Walk(NamedTuple):
    """How one optimisation goes.

    Attributes:
        step: (x, y) -> an answer, changing the parameters in place.  `y` is what `_gather` gives: labels, or one-hot
            rows where gradients are written out by hand.
        losses: Answers -> sum of the steps' mean task losses.
        value: An answer -> the step's mean loss, with terms where they were added to it.
    """

    step: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    losses: Callable[[Sequence[tuple[Tensor, Tensor]]], Tensor]
    value: Callable[[tuple[Tensor, Tensor]], Tensor]


class LocalTrainer:
    """Meets one client's requests on `device`.

    `kernels` is "auto" for the fastest equal form of the network (`local/kernels.py`, `local/dense.py`), or "plain" for
    PyTorch's layers as they are.
    """

    # Examples that are graded, or handed to a fold, at once.
    CHUNK = 1000

    # Steps whose losses are summed up at once.
    SUMMED = 64

    def __init__(
        self,
        task: Task,
        device_data: DeviceData,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        kernels: Literal["auto", "plain"] = "auto",
    ):
        self.task, self.device_data, self.device, self.dtype = task, device_data, torch.device(device), dtype
        self._tuned = kernels == "auto" and self.device.type == "cpu"
        self._layers = dense.kernel(task) if self._tuned else None
        self._channels_last = self._tuned and wants_channels_last(task.module())
        self._targets = one_hot(device_data.y, task.num_classes).to(dtype) if self._layers else None
        self._loss = task.loss
        self._min_batch = 2 if task.batch_norm else 1
        self._names = frozenset((*task.layout.trainable, *task.layout.buffers))
        self._workspaces: dict[tuple[frozenset[str], bool], _Workspace] = {}
        self._reference = _Network(task.module(), task.head).to(self.device, dtype).eval()
        self._tuned_reference, self._block = self._reference, None
        if self._tuned:
            module = task.module()
            tune(module)
            self._tuned_reference, self._block = _Network(module, task.head).to(dtype).eval(), forward_block(module)

    def answer(self, me: Me, index: int, request: object) -> Any:
        """Meet a request; `index` counts the step's requests of this kind, so that each has its own randomness."""
        if isinstance(request, Sgd):
            return self.fit(me, request, request.key(me, index))
        if isinstance(request, Fold):
            return self.fold(me, request)
        if isinstance(request, Run):
            return request.fn(self.local(me, index), *request.args)
        return refuse_request("step", request)

    def local(self, me: Me, index: int) -> "_Local":
        """What the function of the step's `Run` number `index` is handed."""
        return _Local(self, me, me.key / "run" / index)

    # ------------------------------------------------------------------ Sgd
    def fit(self, me: Me, job: Sgd, key: Key) -> Fitted | None:
        """Minimise task loss plus terms from `job.start`.

        Raises:
            DivergedError: If the loss or a parameter became NaN or infinite and may not; names client, round and step.
            DataError: If BatchNorm meets a client with a single example.
            ProtocolError: If a tensor is missing from `job.start`, or the server is to train on data of its own.
        """
        self._whole(job.start)
        if me.id == NOBODY and job.examples is None:
            raise ProtocolError("the server has no data of its own to train on; hand it examples")
        fitted = self._fit(me, job, key, watch=False)
        if not math.isfinite(fitted.loss):
            if job.may_diverge:
                return None
            self._fit(me, job, key, watch=True)  # once more, to name the step: draws are keyed, so it goes the same way
            raise DivergedError(
                f"round {me.round}, client {me.id}: the sum of losses over {fitted.steps} steps became {fitted.loss} "
                f"at learning rate {fitted.lr:g}; lower lr or set clip_norm"
            )
        return fitted

    def _fit(self, me: Me, job: Sgd, key: Key, watch: bool) -> Fitted:
        config = job.config
        lr = config.lr_at(me.round)
        space = self._workspace(config.trainable, config.buffers == "freeze")
        space.load(job.start)
        x_train, y_train, augment = self.device_data.x, self.device_data.y, self.device_data.augment
        if job.examples is None:
            rows = self.device_data.train[me.id]
        else:
            given = job.examples
            x_train, y_train, augment = given.x.to(self.device, self.dtype), given.y.to(self.device), given.augment
            rows = given.rows.to(self.device)
        batches = plan(
            len(rows),
            batch_size=config.batch_size,
            epochs=config.epochs,
            steps=config.local_steps,
            key=key / "shuffle",
            min_batch=self._min_batch,
            drop_last=config.drop_last,
        )
        walk = self._walk(space, job, lr)
        total = torch.zeros((), device=self.device, dtype=self.dtype)
        draws = (key / "augment").generator(self.device) if augment else None
        by_hand = self._by_hand(space, job)
        # Whatever `task.random` says: a forward pass may draw without a layer that shows it.
        drawing = key.ambient(self.device) if not by_hand or job.terms or augment else nullcontext()
        with drawing, torch.set_grad_enabled(not by_hand):
            labels = y_train
            if self._targets is not None and by_hand:
                given_targets = job.examples is not None
                labels = one_hot(y_train, self.task.num_classes).to(self.dtype) if given_targets else self._targets
            taken: list[tuple[Tensor, Tensor]] = []
            for i, (x, y) in enumerate(self._gather(x_train, rows, labels, batches)):
                if draws is not None and augment is not None:
                    x = augment(x, draws)
                one = walk.step(x, y)
                taken.append(one)
                if len(taken) == self.SUMMED:
                    total += walk.losses(taken)
                    taken.clear()
                if watch and not bool(torch.isfinite(walk.value(one)) & torch.isfinite(space.vector).all()):
                    at = walk.value(one).item()
                    late = f"a parameter became NaN or infinite after a loss of {at:g}"
                    what = late if math.isfinite(at) else f"the loss became {at}"
                    raise DivergedError(
                        f"round {me.round}, client {me.id}, step {i + 1} of {len(batches.sizes)}: {what} at learning "
                        f"rate {lr:g}; lower lr or set clip_norm"
                    )
            if taken:
                total += walk.losses(taken)
        mean = float(total / len(batches.sizes))
        # A parameter that overflowed in the last step has not reached a loss yet.
        if math.isfinite(mean) and not _all_finite(space.vector):
            mean = math.nan
        return Fitted(space.take(), len(batches.sizes), lr, mean, sum(batches.sizes))

    def _walk(self, space: _Workspace, job: Sgd, lr: float) -> _Walk:
        update = optimiser(job.config, lr, space.vector)
        trained = [space.parameters[n] for n in space.names]
        if self._by_hand(space, job):
            return self._dense_walk(space, job, lr, update, trained)
        objective = self._objective(space, job)

        def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            loss, value = objective(x, y)
            gradients = torch.autograd.grad(value, trained, materialize_grads=True)
            torch.cat([space.flatten(g) for g in gradients], out=space.gradient)
            with torch.no_grad():
                update(space.vector, space.gradient)
            return loss, value.detach()

        return _Walk(step, lambda taken: torch.stack([loss for loss, _ in taken]).sum(), lambda one: one[1])

    def _by_hand(self, space: _Workspace, job: Sgd) -> bool:
        if self._layers is None or any(sees_features(t) for t in job.terms):
            return False
        return {layer.weight for layer in self._layers} <= set(space.names)  # a bias may be held, as FedDW's is

    def _dense_walk(
        self, space: _Workspace, job: Sgd, lr: float, update: Callable[[Tensor, Tensor], None], trained: list[Tensor]
    ) -> _Walk:
        assert self._layers is not None
        params = dict(space.parameters)
        terms: list[Any] = list(job.terms)

        def add_terms() -> None:
            with torch.enable_grad():
                value = reduce(add, [term(params, job.aux) for term in terms])
                if not value.requires_grad:  # a constant, as a method's term may be in its first round
                    return
                gradients = torch.autograd.grad(value, trained, allow_unused=True)
            for name, g in zip(space.names, gradients, strict=True):
                if g is not None:  # a term of one layer costs nothing in the others
                    space.gradients[name].add_(g)

        step = dense.stepper(
            self._layers,
            params,
            space.gradients,
            lambda: space.velocities,
            job.config,
            lr,
            lambda: update(space.vector, space.gradient),
            add_terms if terms else None,
        )

        return _Walk(lambda x, y: (step(x, y), y), dense.losses, lambda one: dense.losses([one]))

    def _objective(self, space: _Workspace, job: Sgd) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """(mean task loss, the same plus terms) of a batch."""
        params = dict(space.parameters)
        plain: list[Any] = [t for t in job.terms if not sees_features(t)]
        seeing: list[Any] = [t for t in job.terms if sees_features(t)]

        def objective(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            features, logits = space.network(x)
            each = self._loss(logits, y)
            loss = each.mean()
            value = loss
            for term in plain:
                value = value + term(params, job.aux)
            if seeing:
                mask = torch.ones_like(each)
                batch = Batch(x, y, mask, features, logits, each, partial(self._refer, x))
                for term in seeing:
                    value = value + term(params, job.aux, batch)
            return loss.detach(), value

        return objective

    def _gather(
        self, inputs: Tensor, rows: Tensor, labels: Tensor, batches: Batches
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches as views of one gather per epoch."""
        for order, sizes in batches.epochs():
            pick = rows.index_select(0, order.to(self.device))  # a third of indexing's time
            x, y = inputs.index_select(0, pick), labels.index_select(0, pick)
            if self._channels_last and x.dim() == 4:
                x = x.contiguous(memory_format=torch.channels_last)
            yield from zip(torch.split(x, list(sizes)), torch.split(y, list(sizes)), strict=True)

    def _workspace(self, trainable: tuple[str, ...], freeze: bool) -> _Workspace:
        chosen = self.task.layout.select(trainable)
        if (chosen, freeze) not in self._workspaces:
            self._workspaces[chosen, freeze] = self._make_workspace(chosen, freeze)
        return self._workspaces[chosen, freeze]

    def _make_workspace(self, chosen: frozenset[str], freeze: bool) -> _Workspace:
        layout = self.task.layout
        names = tuple(n for n in layout.trainable if n in chosen)
        if not names:
            raise ConfigError("local.trainable selects no parameter; there would be nothing to train")
        module = self.task.module().to(self.device, self.dtype)
        if self._tuned:
            tune(module)
        old = dict(module.named_parameters())
        flatten = _channels_last_order if self._channels_last else _as_it_is
        vector = torch.cat([flatten(old[n].detach()) for n in names])
        views = torch.split(vector, [old[n].numel() for n in names])
        for n, view in zip(names, views, strict=True):
            shape = old[n].shape
            if self._channels_last and len(shape) == 4:
                view = view.view(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)
            setattr(*_place_of(module, n), nn.Parameter(view.view(shape)))
        for n in layout.trainable:
            if n not in chosen:
                setattr(*_place_of(module, n), nn.Parameter(old[n].detach(), requires_grad=False))
        module.train()
        for name, m in module.named_modules():
            # Statistics follow the batches only where the layer itself may change: a frozen body keeps its own.
            mine = [b for b in layout.buffers if b.rpartition(".")[0] == name]
            if mine and (freeze or not chosen.intersection(mine)):
                m.eval()
        held = dict(module.named_parameters())
        places = {n: _place_of(module, n) for n, _ in module.named_buffers()}
        return _Workspace(
            _Network(module, self.task.head),
            names,
            vector,
            torch.empty_like(vector),
            {n: held[n] for n in layout.trainable},
            {n: places[n] for n in layout.buffers},
            tuple((*places[n], b.clone()) for n, b in module.named_buffers() if n not in layout.buffers),
            flatten,
        )

    # ------------------------------------------------------------------ Fold, references, evaluation
    def _whole(self, params: Params) -> None:
        """Refuse a model with gaps: the reference network would fill them with values of its own."""
        if not self._names <= params.keys():
            missing = [n for n in (*self.task.layout.trainable, *self.task.layout.buffers) if n not in params]
            raise ProtocolError(
                f"a model lacks {', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}; complete it with what "
                "the client keeps before it is trained or used"
            )

    def _refer(self, x: Tensor, params: Params) -> tuple[Tensor, Tensor]:
        """(features, logits) of a model in evaluation mode, without gradients."""
        self._whole(params)
        parts = [self._passed(self._tuned_reference, b, params) for b in torch.split(x, self._block or max(len(x), 1))]
        if len(parts) == 1:
            return parts[0]
        features, logits = (torch.cat(t) for t in zip(*parts, strict=True))
        return features, logits

    def _refer_plainly(self, x: Tensor, params: Params) -> tuple[Tensor, Tensor]:
        """As `_refer`, by PyTorch's own layers: what `torch.func.vmap` has rules for."""
        self._whole(params)
        return self._passed(self._reference, x, params)

    def _passed(self, network: _Network, x: Tensor, params: Params) -> tuple[Tensor, Tensor]:
        if network is not self._reference and self._channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            out: tuple[Tensor, Tensor] = functional_call(
                network, {f"module.{k}": v for k, v in params.items()}, (x,), strict=False
            )
        return out

    def fold(self, me: Me, job: Fold) -> Any:
        """One pass over a part of the client's data, in order."""
        rows = self.device_data.train[me.id] if job.part == "train" else self.device_data.val[me.id]
        if not len(rows) and job.part == "val":
            raise DataError(f"client {me.id} has no validation data; set val_fraction > 0")
        carry = job.init
        with torch.no_grad():
            for pick in torch.split(rows, LocalTrainer.CHUNK):
                x, y = self.device_data.x.index_select(0, pick), self.device_data.y.index_select(0, pick)
                features, logits = self._refer(x, job.params)
                each = self._loss(logits, y)
                carry = job.fn(
                    carry, Batch(x, y, torch.ones_like(each), features, logits, each, partial(self._refer, x))
                )
        return carry

    def evaluate(
        self, params: Params, part: Literal["test", "train"], rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(correct, loss) on rows (None is all) of the global test set or of the training inputs."""
        x, y = (
            (self.device_data.x, self.device_data.y)
            if part == "train"
            else (self.device_data.x_test, self.device_data.y_test)
        )
        if x is None or y is None:
            raise DataError("there is no global test set to grade on")
        return self.evaluate_on(params, x, y) if rows is None else self.evaluate_on(params, x[rows], y[rows])

    def size(self, part: Literal["test", "train"]) -> int:
        """Rows of the global test set or of the training inputs."""
        y = self.device_data.y if part == "train" else self.device_data.y_test
        return 0 if y is None else len(y)

    def evaluate_on(self, params: Params, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(correct, loss) of each example, (n,) bool and (n,), in evaluation mode and without augmentation."""
        correct, losses = [], []
        with torch.no_grad():
            for xs, ys in zip(torch.split(x, LocalTrainer.CHUNK), torch.split(y, LocalTrainer.CHUNK), strict=True):
                _, logits = self._refer(xs, params)
                correct.append(accuracy(logits, ys))
                losses.append(self._loss(logits, ys))
        return torch.cat(correct), torch.cat(losses)


class _Local:
    """What `Run` hands its function."""

    def __init__(self, trainer: LocalTrainer, me: Me, key: Key) -> None:
        device_data = trainer.device_data
        rows = device_data.y.new_empty(0) if me.id == NOBODY else device_data.train[me.id]
        self.x, self.y, self.key = device_data.x[rows], device_data.y[rows], key
        self.groups = None if device_data.groups is None else device_data.groups[rows]
        self._solo = trainer

    def imagery(self, source: str) -> Imagery:
        """The prior called `source`, loaded when it is first asked for."""
        device_data = self._solo.device_data
        return imagery.of(source, self._solo.device, tuple(device_data.x.shape[1:]), device_data.levels)

    def forward(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """(features, logits) in evaluation mode, without gradients."""
        return self._solo._refer(x, params)

    def gradient(self, params: Params) -> Params:
        """Gradient of the mean task loss over all training data, in evaluation mode; buffers have none."""
        self._solo._whole(params)
        names = self._solo.task.layout.trainable
        leaves = {n: params[n].detach().clone().requires_grad_() for n in names}
        every = {f"module.{k}": leaves.get(k, v) for k, v in params.items()}
        total = {n: torch.zeros_like(leaves[n]) for n in names}
        for xs, ys in zip(
            torch.split(self.x, LocalTrainer.CHUNK), torch.split(self.y, LocalTrainer.CHUNK), strict=True
        ):
            _, logits = functional_call(self._solo._reference, every, (xs,), strict=False)
            loss = self._solo._loss(logits, ys).sum() / len(self.y)
            gradients = torch.autograd.grad(loss, [leaves[n] for n in names], materialize_grads=True)
            for n, g in zip(names, gradients, strict=True):
                total[n] += g
        return total


def _place_of(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The layer that holds the tensor `name`, and what it calls it."""
    path, _, last = name.rpartition(".")
    return module.get_submodule(path), last
