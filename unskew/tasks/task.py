"""A task: its kind, a network, and the roles of its tensors.  No data, no device, no optimiser."""

import functools
import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils import _pytree as pytree

from unskew.errors import ConfigError, UnskewError
from unskew.keys import Key
from unskew.protocol import Layout, is_part
from unskew.tasks.classification import CLASSIFICATION
from unskew.tasks.kind import Loss, Scale, TaskKind, is_batchwise, is_ours, loss_measure, own_loss, scaled
from unskew.tasks.measure import Measure
from unskew.tasks.probe import head_of, same_values, statistics_of
from unskew.tree import Params, Tree, form_of
from unskew.words import some

LOSS = 1
"""Place of the loss among a task's measures, after the headline."""

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
COUNTER = "num_batches_tracked"
"""Whole number of a BatchNorm whose momentum is None, which begins anew in each local training."""


@dataclass(frozen=True, eq=False)
class Task:
    """A network to train.

    Attributes:
        build: Makes a fresh network, drawing its initial values from PyTorch's ambient generator.
        loss: Loss of each example from (outputs, targets), (batch,).
        num_classes: Classes of the data, or groups by which its examples are counted.
        head: Names of the layers, or parameters, that make the outputs; none if unknown.
        layout: The tensors' names by role.
        batch_norm: True if a layer takes statistics over the batch, which then needs two examples.
        kind: What the outputs mean.
        measures: What an evaluation reports: the headline, the loss, and other measures asked for.
        width: Outputs of the network, per position if there are positions.
        output: Where the outputs are in what the network returns; see `outputs_of`.
        dtype: Type of all floating tensors: the widest of its trained parameters.
    """

    build: Callable[[], nn.Module]
    loss: Loss
    num_classes: int
    head: tuple[str, ...]
    layout: Layout
    batch_norm: bool
    kind: TaskKind
    measures: tuple[Measure, ...]
    width: int
    output: str | int | None = None
    dtype: torch.dtype = torch.float32

    @property
    def headline(self) -> Measure:
        """The measure by which models are compared."""
        return self.kind.headline

    @property
    def batchwise(self) -> bool:
        """True if an example's loss depends on the rest of its batch."""
        return is_batchwise(self.loss)

    @property
    def keeps_outputs(self) -> bool:
        """True if an evaluation keeps outputs and targets: a measure or a report needs all examples at once.

        So does the warning of models that find one class only, if no measure shows which classes are found.
        """
        known = self.kind.correct in (None, self.measures[0].each)  # which classes are found
        ranks = self.num_classes == 2 and self.kind.probabilities is not None  # how probable the second class is
        return (
            not known or ranks or self.kind.report is not None or any(m.each is None or m.by_row for m in self.measures)
        )

    def columns(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """Return what an evaluation keeps of each example: its value in measures that are means over examples.

        If a measure or a report needs all examples at once, outputs, as these see them, and targets follow.
        """
        seen = self.kind.seen(outputs)
        values = tuple(  # of copies, which user code may change
            self.loss(outputs, y) if m is self.measures[LOSS] else m.each(seen.clone(), y.clone())
            for m in self.measures
            if m.each is not None
        )
        if not self.keeps_outputs:
            return values
        # A rate that is far off may be beyond single precision.
        return (*values, outputs if self.kind.link is None else self.kind.seen(outputs.double()), y)

    def values(self, columns: Sequence[Tensor]) -> tuple[float, ...]:
        """The value of each measure from the columns of all examples; NaN where undefined.

        Raises:
            ConfigError: If one is outside its measure's range: a client's would be refused, and drawn wrongly.
        """
        each = iter(columns)
        values = tuple(
            m.of_mean(float(next(each).double().mean())) if m.each is not None else self.whole(m, columns)
            for m in self.measures
        )
        for m, value in zip(self.measures, values, strict=True):
            near = 1e-6 * max(1.0, abs(value)) if math.isfinite(value) else 0.0
            if math.isfinite(value) and not (m.allows(value) or m.allows(value - near) or m.allows(value + near)):
                raise ConfigError(
                    f"evaluate: {m.name} is {value:g}, and its measure says that it is {m.range}; correct low and high"
                )
        return values

    def whole(self, measure: Measure, columns: Sequence[Tensor]) -> float:
        """The value of a measure that needs all examples at once, from their columns.

        Raises:
            ConfigError: If it fails, or is no number.
        """
        assert measure.whole is not None
        outputs, y = (column.cpu().numpy() for column in columns[-2:])
        try:  # a function of somebody's own may do whatever it likes
            value: Any = measure.whole(outputs.astype(np.float64), y.copy())
            if np.ndim(value) or not isinstance(value, numbers.Real | np.bool_ | np.ndarray | Tensor):
                raise TypeError("it must return one number for all of them: take their mean, or give `each`")
            return float(value)
        except UnskewError:
            raise
        except Exception as error:
            raise ConfigError(
                f"evaluate: {measure.name} cannot take NumPy arrays of outputs, {outputs.shape}, and of targets of "
                f"{y.dtype}, {y.shape}: {type(error).__name__}: {' '.join(str(error).split())}"
            ) from error

    def scaled(self, scale: Scale) -> "Task":
        """The task with a loss of targets (y - shift) / scale; measures and predictions keep the target's unit."""
        own = self.loss
        loss: Loss = functools.wraps(own)(lambda outputs, y: own(outputs, scaled(y, scale)))
        of_seen: Loss = functools.wraps(loss)(lambda outputs, y: loss(scaled(outputs, scale), y))
        measures = (*self.measures[:LOSS], loss_measure(of_seen), *self.measures[LOSS + 1 :])
        return replace(self, loss=loss, kind=self.kind.scaled(scale), measures=measures)

    @property
    def min_batch(self) -> int:
        """Smallest number of examples that a batch may have."""
        return 2 if self.batch_norm else 1

    def module(self) -> nn.Module:
        """A network whose values will be replaced; a user's network gets copies of its inputs."""
        with Key(0).ambient():
            module = of_type(_without_counters(self.build()), self.dtype)
        if not is_ours(module) or self.dtype != torch.float32:
            one = next(module.parameters(), torch.empty(0))
            module.register_forward_pre_hook(functools.partial(copied_arguments, one), with_kwargs=True)
            module.register_forward_hook(
                lambda _module, _inputs, given: outputs_of(given, self.kind, self.width, self.output)
            )
        frozen = frozenset(self.layout.frozen)
        for layer in {n.rpartition(".")[0] for n, _ in module.named_buffers() if n in frozen}:
            _keep_statistics(module.get_submodule(layer))
        return module

    def constants(self, frozen: bool = False) -> Params:
        """Values of a model's constants, or of `frozen` tensors alone, the same whoever trained it."""
        module = self.module()
        rest = () if frozen else (n for n, b in module.named_buffers() if b.is_floating_point())
        names = dict.fromkeys((*self.layout.frozen, *(n for n in rest if n not in self.layout.buffers)))
        tensors = tensors_of(module)
        return {n: tensors[n].detach().clone() for n in names}

    def init(self, key: Key) -> Params:
        """Initial parameters and buffers for a key, in module order."""
        with key.ambient():
            tensors = tensors_of(of_type(self.build(), self.dtype))
        return {n: tensors[n].detach().clone() for n in (*self.layout.trainable, *self.layout.buffers)}


def make_task(
    build: Callable[[], nn.Module],
    num_classes: int,
    *,
    loss: str | Loss | None = None,
    examples: Tensor | Tree | None = None,
    head: str | None = None,
    kind: TaskKind = CLASSIFICATION,
    asked: Sequence[str | Measure] = (),
    outputs: int | None = None,
    target_scale: Scale | None = None,
    output: str | int | None = None,
) -> Task:
    """Read a network's parts.

    Args:
        build: Makes a fresh network; called under a keyed generator.
        num_classes: Classes of the data, or groups by which its examples are counted.
        loss: A name in the kind's losses, by default the first, or a function from (outputs, targets) to the loss of
            each example.
        examples: A few examples; a run on them shows the network's head and statistics.  Without any the head is
            unknown, and all buffers count as statistics.
        head: Name of the layer, or parameter, that makes the outputs; by default what a run shows.
        kind: What the outputs mean.
        asked: Measures, or their names, to report beside the headline and the loss.
        outputs: Number of output names; by default the classes.
        target_scale: As `Task.scaled` takes it.
        output: As in `Task`.

    Raises:
        ConfigError: If the loss, the head or a measure is unknown, two layers share a buffer that training changes, or
            as in `trained_type` and `check_frozen`.
    """
    function = own_loss(loss if callable(loss) else kind.loss(loss))
    kind = kind.linked("a function" if callable(loss) else loss)
    with Key(0).ambient():
        module = _without_counters(build())
    dtype = trained_type(module)
    modules = dict(module.named_modules())
    if head is not None and head not in {**modules, **dict(module.named_parameters())}:
        raise ConfigError(
            f"task.head: {type(module).__name__} has no layer {head!r}; it has {', '.join(filter(None, modules))}"
        )
    trainable = tuple(n for n, p in module.named_parameters() if p.requires_grad)
    frozen = frozen_tensors(module)
    if frozen:
        check_frozen(build, module, frozen)
    norm_layers = [n for n, m in modules.items() if isinstance(m, _NORMS)]
    task = Task(
        build,
        function,
        num_classes,
        () if head is None else (head,),
        Layout(trainable, frozen=frozen),
        batch_norm=any(
            isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training and f"{n}.running_mean" not in frozen
            for n, m in module.train().named_modules()
        ),
        kind=kind,
        measures=kind.reported(asked, function),
        width=kind.width(num_classes if outputs is None else outputs),
        output=output,
        dtype=dtype,
    )
    tensors = dict(module.named_buffers())
    buffers = tuple(n for n, b in tensors.items() if b.is_floating_point() and n not in frozen)
    if examples is not None:
        network = task.module()
        task = replace(task, head=task.head or head_of(network, examples, task.width))
        statistics = statistics_of(network, examples)
        if whole := [n for n in statistics if not tensors[n].is_floating_point() and not n.endswith(COUNTER)]:
            raise ConfigError(
                f"training changes the buffer {min(whole)} of {type(module).__name__}, and whole numbers cannot be "
                "averaged over clients; make it a floating buffer"
            )
        # What is another each time the network is made must travel, or each process would have its own.
        moving = {*statistics, *_drawn(build, module, buffers, Key(0))} if buffers else ()
        buffers = tuple(n for n in buffers if n in moving)
    owners: dict[int, tuple[str, nn.Module]] = {}
    moved = {id(tensors[n]) for n in buffers}
    for n, b in module.named_buffers(remove_duplicate=False):
        layer = module.get_submodule(n.rpartition(".")[0])
        if id(b) in moved and owners.setdefault(id(b), (n, layer))[1] is not layer:
            raise ConfigError(
                f"{owners[id(b)][0]} and {n} are one buffer of two layers of {type(module).__name__}, and training "
                "changes it; give each layer its own"
            )
    every = (*trainable, *buffers)
    parts = (*task.head, *(f"{part}.weight".lstrip(".") for part in task.head))
    layout = replace(
        task.layout,
        buffers=buffers,
        head=tuple(n for n in every if any(is_part(n, part) for part in task.head)) if task.head else None,
        norm=tuple(n for n in every if n.rpartition(".")[0] in norm_layers),
        classifier=next((n for n in parts if n in trainable), None) if len(task.head) == 1 else None,
    )
    task = replace(task, layout=layout)
    return task if target_scale is None else task.scaled(target_scale)


def _drawn(build: Callable[[], nn.Module], module: nn.Module, names: Sequence[str], key: Key) -> list[str]:
    """Select the tensors that differ when the network is made again under this key."""
    with key.ambient():
        here, again = tensors_of(module), tensors_of(build())
    return [n for n in names if n not in again or not same_values(here[n], again[n])]


def copied_arguments(
    one: Tensor, _module: object, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copies of a network's inputs, as a layer may work in place; floating ones in the type of `one` parameter."""

    def copy(x: Any) -> Any:
        cast = isinstance(x, Tensor) and x.dtype != one.dtype and x.is_floating_point()
        return x.to(one.dtype) if cast else x.clone() if isinstance(x, Tensor) else x

    parts = inputs[0].parts if inputs and isinstance(inputs[0], Tree) else inputs
    copies = pytree.tree_map(copy, parts)
    return ((), copies) if isinstance(copies, dict) else (copies, named)


def outputs_of(given: Any, kind: TaskKind, width: int, output: str | int | None = None) -> Any:
    """The outputs in what a network returns, (n, width) or (n, positions, width).

    Of several parts, `output` gives the name or place; by default `logits`, as in Hugging Face, or `out`, as in
    torchvision.  (n,) becomes (n, 1).  If a map has one logit for two classes, the first class has the logit 0.
    """
    if not isinstance(given, Tensor):
        parts = given if isinstance(given, Mapping) else dict(getattr(given, "__dict__", {}))
        if isinstance(given, list | tuple):
            parts = {**dict(enumerate(given)), **dict(zip(getattr(given, "_fields", ()), given, strict=False))}
        names = ("logits", "out") if output is None else (output,)
        given = next((parts[name] for name in names if parts.get(name) is not None), given)
    if not isinstance(given, Tensor):
        return given
    if kind.maps and given.dim() > 2:
        both = torch.cat([torch.zeros_like(given), given], 1) if width == 2 and given.shape[1] == 1 else given
        return both.movedim(1, -1)
    return given[:, None] if given.dim() == 1 else given if kind.positions else given.flatten(1)


def frozen_tensors(module: nn.Module) -> tuple[str, ...]:
    """Names of tensors that training cannot change: parameters with `requires_grad=False`, and their buffers.

    A buffer belongs to the parameters of its layer, or of the closest layer around it that has any.  Integer counters
    are left out.
    """
    parameters = tuple(n for n, p in module.named_parameters() if not p.requires_grad)
    if not parameters:
        return ()
    buffers = (n for n, b in module.named_buffers() if b.is_floating_point() and _is_beside_frozen(module, n))
    return (*parameters, *buffers)


def _is_beside_frozen(module: nn.Module, buffer: str) -> bool:
    layer, _, _ = buffer.rpartition(".")
    while layer and not any(True for _ in module.get_submodule(layer).parameters()):
        layer, _, _ = layer.rpartition(".")
    return not any(p.requires_grad for p in module.get_submodule(layer).parameters())


def check_frozen(build: Callable[[], nn.Module], module: nn.Module, frozen: Sequence[str]) -> None:
    """Refuse a network with nothing to train, or whose frozen tensors change when it is made again.

    Raises:
        ConfigError: Naming some of them.
    """
    name = type(module).__name__
    if not any(p.requires_grad for p in module.parameters()):
        raise ConfigError(
            f"{name} has requires_grad=False in all its parameters, and there would be nothing to train; leave those "
            "of its head free"
        )
    if drawn := _drawn(build, module, frozen, Key(1)):
        raise ConfigError(
            f"{name} has requires_grad=False in {some(drawn)}, with other values each time it is made. Load these "
            "where it is made, or leave them free and choose what is trained with local.trainable"
        )


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """A network's parameters and buffers by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _keep_statistics(layer: nn.Module) -> None:
    """Leave a layer in evaluation mode whatever mode the network around it is put into."""
    layer.training = False
    layer.train = functools.partial(_train_parts, layer)  # type: ignore[method-assign]


def _train_parts(layer: nn.Module, mode: bool = True) -> nn.Module:
    for part in layer.children():
        part.train(mode)
    return layer


def trained_type(module: nn.Module) -> torch.dtype:
    """The type in which a network is trained: the widest of its trained parameters.

    Raises:
        ConfigError: If a tensor has no size yet, or a parameter is complex.
    """
    name = type(module).__name__
    for key, t in (*module.named_parameters(), *module.named_buffers()):
        if isinstance(t, UninitializedParameter | UninitializedBuffer):
            raise ConfigError(f"{key} of {name} has no size before data have passed; give nn.Linear for nn.LazyLinear")
        if isinstance(t, nn.Parameter) and t.is_complex():
            raise ConfigError(f"{key} of {name} is complex; keep its real and its imaginary part as two parameters")
    types = [p.dtype for p in module.parameters() if p.requires_grad]
    return functools.reduce(torch.promote_types, types) if types else torch.float32


def of_type(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module with floats of this type; PyTorch's `to` would also turn complex numbers real."""
    module._apply(lambda t: t.to(dtype) if t.is_floating_point() else t)  # type: ignore[no-untyped-call]
    return module


@torch.no_grad()
def ends_in(task: Task, examples: Tensor | Tree) -> str | None:
    """Name the function, softmax or sigmoid, that the network ends in; None if in neither.

    Tested by two or more examples' outputs under large random weights: only such a function's all lie in [0, 1].
    """
    module, names = task.module().eval(), set[str]()
    for draw in range(5):
        with (Key(0) / draw).ambient():
            for p in module.parameters():
                p.normal_(0.0, 3.0 / math.sqrt(max(1, p[0].numel())) if p.dim() > 1 else 1.0)
            try:
                outputs = module(examples)
            except Exception:  # anybody's code, which may refuse such weights
                return None
        if not bool(((outputs >= 0) & (outputs <= 1)).all()):
            return None
        ones = outputs.shape[-1] > 1 and bool(((outputs.sum(-1) - 1).abs() < 1e-4).all())
        names.add("softmax" if ones else "sigmoid")
    return names.pop() if len(names) == 1 else None


def check_network(
    task: Task,
    examples: Tensor | Tree,
    targets: Tensor | None = None,
    precision: Literal["float32", "bfloat16"] = "float32",
) -> None:
    """Refuse a network that cannot take the data or returns no logits, by a forward pass in each mode.

    Args:
        task: The network, as `make_task` has read it.
        examples: One or two examples as training sees them, (batch, *input_shape).
        targets: Their targets, on which the loss is tried; without them it is not.
        precision: As `SgdConfig.precision`.

    Raises:
        ConfigError: If so; names the network, the examples' shape, and what the network did instead.
    """
    module = task.module().eval()
    positions = tuple(targets.shape[1:]) if task.kind.positions and targets is not None else ()
    name, wanted = type(module).__name__, (len(examples), *positions, task.width)
    asked = (len(examples), task.width, *positions) if task.kind.maps else wanted
    tensor = None if isinstance(examples, Tree) else examples
    shapes = f"examples of shape {examples.shapes if isinstance(examples, Tree) else tuple(examples.shape[1:])}"
    try:
        with torch.no_grad(), Key(0).ambient(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            logits = module(examples)
            # Two at least, for batch norm.
            trained = module.train()(examples[torch.arange(max(2, len(examples))) % len(examples)])
    except Exception as error:  # the network may be user code
        remedy = "give its first layer the width of the data, or reshape in its forward"
        if precision != "float32":
            remedy = "leave local.precision out, or let its forward take the type of its layers' outputs"
        elif tensor is None:
            remedy = "give its forward a parameter for each part, by name or in order"
        elif tensor.dim() == 2 and not tensor.is_floating_point():
            remedy = "token ids, as of texts, need a network that reads them, such as bag_of_words or bilstm"
        kind = "" if tensor is None else f" and {tensor.dtype}"
        raise ConfigError(
            f"{name} cannot take {shapes}{kind}: {type(error).__name__}: {' '.join(str(error).split())}; {remedy}"
        ) from error
    shape: tuple[int, ...] = tuple(getattr(logits, "shape", ()))
    fits = shape == wanted
    if positions and len(shape) == len(wanted):  # a network may read further back than targets go
        fits = (shape[0], *shape[2:]) == (wanted[0], *wanted[2:]) and shape[1] >= wanted[1]
    if not isinstance(logits, Tensor) or not fits or not logits.is_floating_point():
        raise ConfigError(
            f"{name} must return floating logits {asked} for {len(examples)} {shapes}, got {form_of(logits)}; give its "
            f"last layer {task.width} {'output' if task.width == 1 else 'outputs'}, or name a part with task.output"
        )
    if not isinstance(trained, Tensor) or trained.shape[1:] != logits.shape[1:]:
        raise ConfigError(
            f"{name} returns {form_of(logits)} in evaluation, and {form_of(trained)} in training; return the same"
        )
    if targets is None:
        return
    logits = logits.to(task.dtype)  # as in training, whatever the precision
    loss = inspect.unwrap(task.loss)
    name = f"task.loss {getattr(loss, '__name__', type(loss).__name__)}"
    _check_by_example(name, task.loss, logits, targets, 'leave out the mean, as with reduction="none"')
    for measure in task.measures:  # of batches' means none would be right
        if measure.each is not None:
            remedy = "leave out the mean, or make it the measure's `whole`"
            _check_by_example(
                f"evaluate: `each` of {measure.name}", measure.each, task.kind.seen(logits), targets, remedy
            )


def _check_by_example(
    name: str, function: Callable[[Tensor, Tensor], Any], outputs: Tensor, targets: Tensor, remedy: str
) -> None:
    """Refuse a function that fails, or does not return a value for each of these examples."""
    try:
        with torch.no_grad():
            each = function(outputs.clone(), targets.clone())
    except Exception as error:  # may be user code
        raise ConfigError(
            f"{name} cannot take outputs of shape {tuple(outputs.shape)} and targets of {targets.dtype} of shape "
            f"{tuple(targets.shape)}: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(each, Tensor) or tuple(each.shape) != (len(targets),):
        raise ConfigError(
            f"{name} must return a value for each of {len(targets)} examples, got {form_of(each)}; {remedy}"
        )


def _without_counters(module: nn.Module) -> nn.Module:
    """Drop BatchNorm's integer counters: nothing reads them at a fixed momentum, and averages of them mean nothing."""
    for m in module.modules():
        if isinstance(m, nn.modules.batchnorm._NormBase) and m.momentum is not None:
            m.num_batches_tracked = None
    return module


def parameter_count(task: Task) -> int:
    """Number of parameters of the network, frozen ones included."""
    return sum(p.numel() for p in task.module().parameters())
