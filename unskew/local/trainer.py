"""Answers one client's `Sgd`, `Fold` and `Run` on one device.

The network is built once; its trained tensors are views of one flat vector, which an optimiser changes in place. Inputs
are on the device from the start; an epoch is gathered in one call and sliced.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial, reduce
from operator import add
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import one_hot

from unskew.data.batches import Batches
from unskew.data.rows import Items, Rows, as_tensor, at_once
from unskew.errors import ConfigError, DataError, DivergedError, ProtocolError
from unskew.keys import Key
from unskew.local import dense, imagery
from unskew.local.data import DeviceData, batches_of
from unskew.local.executor import Columns, joined
from unskew.local.kernels import forward_block, tune, wants_channels_last
from unskew.local.optim import State, one_pass, optimiser, solve
from unskew.local.terms import check_gradient, check_value, depends, term_value
from unskew.local.workspace import FeatureNetwork, Workspace, make_workspace, placed
from unskew.protocol import (
    SERVER_ID,
    Batch,
    ClientId,
    Constant,
    Fitted,
    Fold,
    Imagery,
    Me,
    Run,
    Sgd,
    has_gradient,
    refuse_request,
    sees_features,
)
from unskew.tasks.task import Task
from unskew.tree import Params, form_of


def kernels(task: Task, device: torch.device) -> str:
    """Forms of the network's layers on a device, for the record; bits depend on them."""
    if device.type != "cpu":
        return "torch"
    form = "written-out" if dense.kernel(task) else "channels-last" if wants_channels_last(task.module()) else "torch"
    return form + "+onednn" * dense.onednn_is_faster() + "+fused" * one_pass()


class _Loop(NamedTuple):
    """The parts of one optimisation's loop.

    Attributes:
        step: (x, y, weights) -> an answer, changing the parameters in place.  `y` is what `_gather` gives: labels, or
            one-hot rows where gradients are written out by hand.
        losses: Answers -> sum of the steps' mean task losses.
    """

    step: Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
    losses: Callable[[Sequence[tuple[Tensor, Tensor]]], Tensor]


NOTHING_TO_MINIMISE = (
    "neither the loss nor a term depends on the parameters, so there is nothing to minimise; compute them from outputs "
    "and parameters in PyTorch, without detach(), item() and numpy()"
)
NO_PUBLIC = "there are no public data; give them as public=(x, y), or a share or a client of the data"
IGNORED = -100
"""Label of an example that PyTorch's cross-entropy leaves out."""


class LocalTrainer:
    """Answers one client's requests on `device`.

    `kernels` is "auto" for the fastest equal form of the network (`local/kernels.py`, `local/dense.py`), or "plain" for
    PyTorch's layers.  `others` are the trainers of clients with another network, on the same data.
    """

    # Examples that are evaluated, or handed to a fold, at once.
    CHUNK = 1000

    # Steps whose losses are summed up at once.
    SUMMED = 64

    def __init__(
        self,
        task: Task,
        device_data: DeviceData,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        kernels: Literal["auto", "plain"] = "auto",
        others: Mapping[ClientId, "LocalTrainer"] = MappingProxyType({}),
    ):
        self.others, self.public = others, 0 if device_data.public is None else len(device_data.public[0])
        self.task, self.device_data, self.device, self.dtype = (
            task,
            device_data,
            torch.device(device),
            dtype or task.dtype,
        )
        self._tuned = kernels == "auto" and self.device.type == "cpu"
        plain, dtype = task.module(), self.dtype
        if self.device.type == "cuda":
            # Recurrent weights lie in one vector with all others, and cuDNN makes a copy in its own order.
            warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        self._layers = dense.kernel(task) if self._tuned and device_data.weights is None else None
        self._channels_last = self._tuned and wants_channels_last(plain)
        self._targets = one_hot(device_data.y, task.num_classes).to(dtype) if self._layers else None
        self._loss = task.loss
        self._looked_at: dict[Any, float] = {}  # terms by the last round in which a look told nothing
        self._workspaces: dict[tuple[frozenset[str], bool], Workspace] = {}
        self._reference = FeatureNetwork(placed(plain, self.device, dtype), task.head).eval()
        named = {**dict(plain.named_parameters()), **dict(plain.named_buffers())}
        self._tensors = {n: named[n] for n in (*task.layout.trainable, *task.layout.buffers)}
        # Such a layer changes the rows that it looks up, in evaluation too.
        self._renormed = {f"module.{n}.weight" for n, m in plain.named_modules() if getattr(m, "max_norm", None)}
        self._tuned_reference, self._block = self._reference, None
        if self._tuned:
            module = task.module()
            tune(module)
            self._tuned_reference = FeatureNetwork(placed(module, self.device, dtype), task.head).eval()
            self._block = forward_block(module)

    def answer(self, me: Me, index: int, request: object) -> Any:
        """Answer a request; `index` counts the step's requests of this kind, and keys its randomness."""
        if me.id in self.others:
            return self.others[me.id].answer(me, index, request)
        if isinstance(request, Sgd):
            return self.fit(me, request, request.key(me, index))
        if isinstance(request, Fold):
            return self.fold(me, request)
        if isinstance(request, Run):
            return request.fn(self.local(me, index), *request.args)
        return refuse_request("step", request)

    def of(self, client: ClientId | None) -> "LocalTrainer":
        """The trainer for the client's network; by default, and for the server, this one."""
        return self if client is None else self.others.get(client, self)

    def local(self, me: Me, index: int) -> "_Local":
        """The client's data and tools, for the function of the step's `Run` number `index`."""
        return _Local(self.of(me.id), me, me.key / "run" / index)

    # ------------------------------------------------------------------ Sgd
    def fit(self, me: Me, job: Sgd, key: Key) -> Fitted | None:
        """Minimise task loss plus terms from `job.start`.

        Raises:
            DivergedError: If the loss or a parameter became NaN or infinite and may not; names client and round.
            DataError: If BatchNorm meets a client with a single example.
            ProtocolError: If `job.start` is not a model of the task, the server trains without data, or `check_terms`
                refuses a term.
        """
        self.check_model(job.start)
        if me.id == SERVER_ID and job.examples is None:
            raise ProtocolError("the server has no data of its own to train on; hand it examples")
        self._check_rows(me, job)
        self.check_terms(me, job)
        fitted = self._fit(me, job, key)
        if math.isfinite(fitted.loss):
            return fitted
        if job.may_diverge:
            return None
        raise DivergedError(
            f"round {me.round}, client {me.id}: the loss or a parameter became NaN or infinite within {fitted.steps} "
            f"steps at learning rate {fitted.lr:g}; lower lr or set clip_norm"
        )

    def check_terms(self, me: Me, job: Sgd) -> None:
        """Check each term of the parameters once: in the first round in which its value is not zero.

        Raises:
            ProtocolError: If a written gradient is not that of the value, or a value other than zero does not depend on
                the parameters.
        """
        for term in job.terms:
            if sees_features(term):
                continue
            # A term need not be hashable, and a function may be made anew for each client.
            what = (type(term), getattr(term, "__code__", None) or repr(term))
            if self._looked_at.get(what, 0) < me.round:
                with (Key(0) / "terms").ambient(self.device):  # a term may draw
                    params = {n: job.start[n].to(self.device, self.dtype) for n in self.task.layout.trainable}
                    seen = (check_gradient if has_gradient(term) else check_value)(term, params, job.aux)
                    self._looked_at[what] = math.inf if seen else me.round

    def _check_rows(self, me: Me, job: Sgd) -> None:
        """Refuse classes and rows that do not exist: some losses take any number, and indexing counts from the end.

        Labels may be shares of the classes, which the loss takes, too, and -100, which it leaves out.
        """
        given, classes = job.examples, self.task.num_classes
        if given is not None and self.task.kind.targets.classes and not given.y.is_floating_point():
            odd = given.y[((given.y < 0) | (given.y >= classes)) & (given.y != IGNORED)]
            if len(odd):
                raise ProtocolError(f"Examples.y must be classes 0 to {classes - 1}, got {int(odd[0])}")
        own = len(self.device_data.train[me.id]) if given is None else len(given.x)
        for name, rows in (("Sgd.rows", job.rows), ("Examples.rows", None if given is None else given.rows)):
            if rows is None:
                continue
            known = rows.dim() == 1 and rows.dtype == torch.int64
            if not known or (len(rows) and not 0 <= rows.min() <= rows.max() < own):
                raise ProtocolError(
                    f"{name} must be positions among the examples, int64 (m,), from 0 to one below their number, got "
                    f"{form_of(rows)}; those of a mask are mask.nonzero()[:, 0]"
                )

    def _fit(self, me: Me, job: Sgd, key: Key) -> Fitted:
        config = job.config
        lr = config.lr_at(me.round)
        space = self._workspace(config.trainable, config.buffers == "freeze")
        space.load(job.start)
        x_train: Rows = self.device_data.x
        y_train, augment, weights = self.device_data.y, self.device_data.augment, self.device_data.weights
        if job.examples is None:
            rows = self.device_data.train[me.id]
            if job.rows is not None:
                rows = rows[job.rows.to(self.device)]
        else:
            given = job.examples
            x_train, y_train, augment = given.x.to(self.device, self.dtype), given.y.to(self.device), given.augment
            rows, weights = given.rows.to(self.device), None
        batches = batches_of(config, len(rows), key, self.task.min_batch)
        state = {n: t.clone() for n, t in (job.state or {}).items()}
        loop = self._loop(space, job, lr, state)
        total = torch.zeros((), device=self.device, dtype=self.dtype)
        draws = (key / "augment").generator(self.device) if augment else None
        by_hand = self._by_hand(space, job)
        drawing = not by_hand or job.terms or augment or isinstance(x_train, Items)
        with key.ambient(self.device) if drawing else nullcontext(), torch.set_grad_enabled(not by_hand):
            labels = y_train
            if self._targets is not None and by_hand:
                given_targets = job.examples is not None
                labels = one_hot(y_train, self.task.num_classes).to(self.dtype) if given_targets else self._targets
            answers: list[tuple[Tensor, Tensor]] = []
            for x, y, weight in self._gather(x_train, rows, labels, batches, weights):
                if draws is not None and augment is not None:
                    x = augment(x, draws)
                answers.append(loop.step(x, y, weight))
                if len(answers) == self.SUMMED:
                    total += loop.losses(answers)
                    answers.clear()
            if answers:
                total += loop.losses(answers)
        mean = float(total / len(batches.sizes))
        # A parameter that overflowed in the last step has not reached a loss yet.
        if math.isfinite(mean) and not _all_finite(space.vector):
            mean = math.nan
        after = None if job.state is None else state
        return Fitted(space.take(), len(batches.sizes), lr, mean, sum(batches.sizes), after)

    def _loop(self, space: Workspace, job: Sgd, lr: float, state: State) -> _Loop:
        config = job.config
        update = None if config.solves else optimiser(config, lr, space.vector, space.tensors, state)
        trained = [space.parameters[n] for n in space.names]
        if update is not None and self._by_hand(space, job):
            return self._dense_loop(space, job, lr, update, trained)
        objective = self._objective(space, job)

        unused: list[Tensor] = []

        def differentiate(x: Tensor, y: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
            size, sums = config.at_once or len(y), []
            for at in range(0, len(y), size):
                part = slice(at, at + size)
                loss, value = objective(x[part], y[part], None if weights is None else weights[part])
                if not value.requires_grad:
                    raise ProtocolError(NOTHING_TO_MINIMISE)
                share = len(y[part]) / len(y)
                sums.append((loss, value) if share == 1.0 else (loss * share, value * share))
                torch.autograd.backward(sums[-1][1])  # reentrant checkpoints take it alone, and parts are summed
            unused[:] = [t for t in trained if t.grad is None]
            parts = (torch.zeros_like(t) if t.grad is None else t.grad.to_dense() for t in trained)
            torch.cat([space.flatten(g) for g in parts], out=space.gradient)
            for t in trained:
                t.grad = None
            losses, values = zip(*sums, strict=True)
            return reduce(add, losses), reduce(add, values).detach()

        def step(x: Tensor, y: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
            if update is None:
                solve(config, space.vector, space.gradient, lambda: differentiate(x, y, weights)[1])
                return differentiate(x, y, weights)
            answer = differentiate(x, y, weights)
            # As in PyTorch nothing, no weight decay either, moves what has no gradient.
            before = [t.detach().clone() for t in unused]
            with torch.no_grad():
                update(space.vector, space.gradient)
                for t, value in zip(unused, before, strict=True):
                    t.copy_(value)
            return answer

        return _Loop(step, lambda answers: torch.stack([loss for loss, _ in answers]).sum())

    def _by_hand(self, space: Workspace, job: Sgd) -> bool:
        if (
            self._layers is None
            or job.config.solves
            or job.state is not None
            or any(sees_features(t) for t in job.terms)
            or (job.config.precision, job.config.step_schedule, job.config.at_once) != ("float32", Constant(), None)
        ):
            return False
        if (given := job.examples) is not None and (given.y.is_floating_point() or bool((given.y < 0).any())):
            return False  # shares of the classes, or examples to leave out: the loss takes them, one class each is not
        return {layer.weight for layer in self._layers} <= set(space.names)  # a bias may be held, as FedDW's is

    def _dense_loop(
        self, space: Workspace, job: Sgd, lr: float, update: Callable[[Tensor, Tensor], None], trained: list[Tensor]
    ) -> _Loop:
        assert self._layers is not None
        params = dict(space.parameters)
        terms: list[Any] = list(job.terms)

        def add_terms() -> None:
            with torch.enable_grad():
                value = reduce(add, [term_value(term, params, job.aux) for term in terms])
                if not value.requires_grad:  # a constant, as a method's term may be in its first round
                    return
                gradients = torch.autograd.grad(value, trained, allow_unused=True)
            for name, g in zip(space.names, gradients, strict=True):
                if g is not None:  # a term of one layer costs nothing in the others
                    space.gradients[name].add_(g)

        def add_written_out() -> None:
            for name, g in terms[0].gradient(params, job.aux).items():
                if name in space.gradients:
                    space.gradients[name].add_(g)

        # Autograd sums the values of several terms before it differentiates: other roundings.
        written_out = len(terms) == 1 and has_gradient(terms[0])
        step = dense.stepper(
            self._layers,
            params,
            space.gradients,
            lambda: space.velocities,
            job.config,
            lr,
            lambda: update(space.vector, space.gradient),
            (add_written_out if written_out else add_terms) if terms else None,
        )

        return _Loop(lambda x, y, _: (step(x, y), y), dense.losses)

    def _objective(
        self, space: Workspace, job: Sgd
    ) -> Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]:
        """(mean task loss, the same plus terms) of a batch."""
        params = dict(space.parameters)
        lower = job.config.precision == "bfloat16"
        plain: list[Any] = [t for t in job.terms if not sees_features(t)]
        seeing: list[Any] = [t for t in job.terms if sees_features(t)]

        def objective(x: Tensor, y: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=lower):
                features, logits = space.network(x)
            if lower:
                features, logits = features.to(self.dtype), logits.to(self.dtype)
            each = self._loss(logits, y)
            each = each if weights is None else each * weights
            loss = each.mean()
            value = loss
            for term in plain:
                value = value + term_value(term, params, job.aux)
            if seeing:
                mask = torch.ones_like(each)
                # Copies of what autograd and `refer` need as it is: a term may be anybody's.
                batch = Batch(x.clone(), y.clone(), mask, features, logits, each, partial(self.refer, x))
                for term in seeing:
                    own = term_value(term, params, job.aux, batch)
                    if features.requires_grad:  # a linear model's are its inputs, and a term of them is a constant
                        depends(term, own)
                    value = value + own
            return loss.detach(), value

        return objective

    def _gather(
        self, inputs: Rows, rows: Tensor, labels: Tensor, batches: Batches, weights: Tensor | None
    ) -> Iterator[tuple[Any, Tensor, Tensor | None]]:
        """Batches as views of one gather per epoch; inputs that are no tensor are read a batch at a time."""
        for order, sizes in batches.epochs():
            pick = rows.index_select(0, order.to(self.device))  # a third of indexing's time
            y = labels.index_select(0, pick)
            x: Iterable[Any]
            if isinstance(inputs, Tensor):
                x = torch.split(self._laid_out(inputs.index_select(0, pick)), list(sizes))
            else:
                parts = torch.split(pick, list(sizes))
                read = partial(inputs.read, anew=True) if isinstance(inputs, Items) else inputs.__getitem__
                x = (self._laid_out(read(part)) for part in parts)
            by_batch: Iterable[Tensor | None] = (
                [None] * len(sizes) if weights is None else torch.split(weights.index_select(0, pick), list(sizes))
            )
            yield from zip(x, torch.split(y, list(sizes)), by_batch, strict=True)

    def _laid_out(self, x: Any) -> Any:
        """Inputs in the memory format that suits the network's kernels."""
        last = self._channels_last and isinstance(x, Tensor) and x.dim() == 4
        return x.contiguous(memory_format=torch.channels_last) if last else x

    def _workspace(self, trainable: tuple[str, ...], freeze: bool) -> Workspace:
        chosen = self.task.layout.select(trainable)
        if (chosen, freeze) not in self._workspaces:
            self._workspaces[chosen, freeze] = make_workspace(
                self.task, chosen, freeze, self.device, self.dtype, self._tuned, self._channels_last
            )
        return self._workspaces[chosen, freeze]

    # ------------------------------------------------------------------ Fold, references, evaluation
    def check_model(self, params: Params) -> None:
        """Refuse a model that is not the task's.

        PyTorch would fill gaps, broadcast other shapes and round other types.

        Raises:
            ProtocolError: Saying what is wrong with it.
        """
        if wrong := self.fault(params):
            raise ProtocolError(wrong)

    def fault(self, params: Params) -> str:
        """How a model differs from the task's, in words; empty if it does not."""
        given: object = params  # what a method makes of it
        if not isinstance(given, Mapping):
            return (
                f"a model to be trained or used must be a table of tensors by name, got {type(given).__name__}; give "
                "the field that has the model"
            )
        if missing := [n for n in self._tensors if n not in params]:
            return (
                f"a model lacks {', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}; complete it with what "
                "the client keeps before it is trained or used"
            )
        for name, like in self._tensors.items():
            t = params[name]
            if t.shape != like.shape or t.dtype != like.dtype:
                remedy = "; convert what the method computes: new.to(old)" if t.shape == like.shape else ""
                return (
                    f"{name} of a model to be trained or used must be {like.dtype} {tuple(like.shape)}, got {t.dtype} "
                    f"{tuple(t.shape)}{remedy}"
                )
        return ""

    def refer(self, x: Any, params: Params) -> tuple[Tensor, Tensor]:
        """(features, logits) of a model in evaluation mode, without gradients."""
        self.check_model(params)
        blocks = torch.split(x, self._block) if self._block and isinstance(x, Tensor) else (x,)
        parts = [self._passed(self._tuned_reference, block, params) for block in blocks]
        if len(parts) == 1:
            return parts[0]
        features, logits = (torch.cat(t) for t in zip(*parts, strict=True))
        return features, logits

    def refer_plainly(self, x: Any, params: Params) -> tuple[Tensor, Tensor]:
        """The same by PyTorch's own layers, for which `torch.func.vmap` has rules."""
        self.check_model(params)
        return self._passed(self._reference, x, params)

    def _passed(self, network: FeatureNetwork, x: Any, params: Params) -> tuple[Tensor, Tensor]:
        if network is not self._reference:
            x = self._laid_out(x)
        with torch.no_grad():
            out: tuple[Tensor, Tensor] = functional_call(
                network, {(m := f"module.{k}"): v.clone() if m in self._renormed else v for k, v in params.items()},
                (x,), strict=False,
            )  # fmt: skip
        return out

    @cached_property
    def training_network(self) -> FeatureNetwork:
        """The network by PyTorch's own layers in training mode, for gradients of single examples."""
        return FeatureNetwork(placed(self.task.module(), self.device, self.dtype), self.task.head).train()

    def fold(self, me: Me, job: Fold) -> Any:
        """One pass over a part of the client's data, in order."""
        rows = self.device_data.train[me.id] if job.part == "train" else self.device_data.val[me.id]
        if not len(rows) and job.part == "val":
            raise DataError(f"client {me.id} has no validation data; set val_fraction > 0")
        carry = job.init
        with torch.no_grad():
            for pick in torch.split(rows, self.at_once(len(rows))):
                x, y = self.device_data.x[pick], self.device_data.y[pick]
                features, logits = self.refer(x, job.params)
                each = self.device_data.weighted(self._loss(logits, y), pick)
                carry = job.fn(
                    carry, Batch(x, y, torch.ones_like(each), features, logits, each, partial(self.refer, x))
                )
        return carry

    def at_once(self, n: int) -> int:
        """Examples of `n` whose losses are taken together: all, if they interact."""
        return max(n, 1) if self.task.batchwise else at_once(self.device_data.x, LocalTrainer.CHUNK)

    def evaluate(self, params: Params, part: Literal["test", "train"], rows: Tensor | None = None) -> Columns:
        """The columns of rows (None is all) of the global test set or of the training inputs."""
        x, y = (
            (self.device_data.x, self.device_data.y)
            if part == "train"
            else (self.device_data.x_test, self.device_data.y_test)
        )
        if x is None or y is None:
            raise DataError("there is no global test set to evaluate on")
        return self.evaluate_on(params, x, y, rows)

    def size(self, part: Literal["test", "train"]) -> int:
        """Rows of the global test set or of the training inputs."""
        y = self.device_data.y if part == "train" else self.device_data.y_test
        return 0 if y is None else len(y)

    def evaluate_on(self, params: Params, x: Rows, y: Tensor, rows: Tensor | None = None) -> Columns:
        """The columns of each example or of some rows, in evaluation mode, not augmented."""
        return joined([self.task.columns(logits, y[pick]) for pick, logits in self.predict(params, x, rows)])

    def predict(self, params: Params, x: Rows, rows: Tensor | None = None) -> Iterator[tuple[Any, Tensor]]:
        """Logits of all inputs or of some rows, with their positions, in batches."""
        with torch.no_grad():
            most = at_once(x, LocalTrainer.CHUNK)
            for pick in _slices(len(x), most) if rows is None else torch.split(rows, most):
                yield pick, self.refer(x[pick], params)[1]


class _Local:
    """A client's data and tools, which `Run` hands its function."""

    def __init__(self, trainer: LocalTrainer, me: Me, key: Key) -> None:
        device_data = trainer.device_data
        nothing = torch.empty(0, dtype=torch.int64, device=device_data.y.device)
        rows = nothing if me.id == SERVER_ID else device_data.train[me.id]
        self.y, self.key = device_data.y[rows], key
        self.domains = None if device_data.domains is None else device_data.domains[rows]
        self._trainer, self._rows = trainer, rows

    @cached_property
    def x(self) -> Tensor:
        """Training inputs, read when they are first looked at."""
        return as_tensor(self._trainer.device_data.x[self._rows])

    @property
    def public(self) -> tuple[Any, Tensor | None]:
        """The public rows."""
        if self._trainer.device_data.public is None:
            raise ConfigError(NO_PUBLIC)
        return self._trainer.device_data.public

    def imagery(self, source: str) -> Imagery:
        """The prior called `source`, loaded when it is first asked for."""
        device_data = self._trainer.device_data
        return imagery.of(source, self._trainer.device, tuple(device_data.x.shape[1:]), device_data.levels)

    def forward(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """(features, logits) in evaluation mode, without gradients."""
        return self._trainer.refer(x, params)

    def gradient(self, params: Params) -> Params:
        """Gradient of the mean task loss over all training data, in evaluation mode; buffers have none."""
        self._trainer.check_model(params)
        names = self._trainer.task.layout.trainable
        leaves = {n: params[n].detach().clone().requires_grad_() for n in names}
        every = {f"module.{k}": leaves.get(k, v) for k, v in params.items()}
        total = {n: torch.zeros_like(leaves[n]) for n in names}
        for pick in _slices(len(self.y), self._trainer.at_once(len(self.y))):
            rows, data = self._rows[pick], self._trainer.device_data
            _, logits = functional_call(self._trainer._reference, every, (data.x[rows],), strict=False)
            loss = data.weighted(self._trainer._loss(logits, self.y[pick]), rows).sum() / len(self.y)
            gradients = torch.autograd.grad(loss, [leaves[n] for n in names], materialize_grads=True)
            for n, g in zip(names, gradients, strict=True):
                total[n] += g
        return total

    def example_gradients(self, params: Params, names: Sequence[str], rows: Tensor, key: Key) -> tuple[Params, Tensor]:
        """Gradient of each example's task loss by parameter, (m, ...), and the losses, (m,), in training mode."""
        trainer, data = self._trainer, self._trainer.device_data
        if trainer.task.batchwise or data.weights is not None:
            why = "examples are weighted by the others" if data.weights is not None else "the loss compares examples"
            raise ConfigError(f"gradients of single examples need a loss of each, and here {why}")
        trainer.check_model(params)
        x, y = data.x[self._rows[rows]], self.y[rows]
        if data.augment is not None:
            x = data.augment(x, key.generator(x.device))
        network = trainer.training_network
        network.restore()
        fixed = {f"module.{k}": v for k, v in params.items() if k not in names}

        def loss(leaves: Params, one: Tensor, label: Tensor) -> Tensor:
            every = fixed | {f"module.{k}": v for k, v in leaves.items()}
            _, logits = functional_call(network, every, (one[None],), strict=False)
            return trainer._loss(logits, label[None]).sum()

        try:
            gradients, losses = vmap(grad_and_value(loss), in_dims=(None, 0, 0), randomness="different")(
                {name: params[name] for name in names}, x, y
            )
        except RuntimeError as error:
            raise ConfigError(f"torch.func takes no gradients of single examples in this network: {error}") from None
        return gradients, losses


def _slices(n: int, at_once: int = LocalTrainer.CHUNK) -> list[slice]:
    """Examples 0 .. n - 1, so many at a time as go through a network at once; one slice even of none."""
    return [slice(start, min(start + at_once, n)) for start in range(0, max(n, 1), at_once)]


def _all_finite(vector: Tensor) -> bool:
    # Where the sum is finite all are; where it is not, large numbers may have met.  Faster than looking at each.
    return math.isfinite(float(vector.sum())) or bool(torch.isfinite(vector).all())
