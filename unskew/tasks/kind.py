"""The kind of a task, apart from any network."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.errors import ConfigError, did_you_mean
from unskew.info import Info
from unskew.protocol import hook
from unskew.registry import Registry
from unskew.tasks.measure import Array, Measure
from unskew.tasks.targets import Targets
from unskew.tree import is_record

Loss = Callable[[Tensor, Tensor], Tensor]
Scale = tuple[float, float] | tuple[tuple[float, ...], tuple[float, ...]]
"""Shift and scale of targets, or those of each of several numbers."""


@dataclass(frozen=True, eq=False)
class TaskKind:
    """The meaning of a network's outputs; see `unskew.tasks`.

    Attributes:
        name: Its name in an experiment.
        targets: The form of its labels.
        width: Number of outputs for so many output names.
        losses: Losses of each example from (outputs, targets), (batch,); the first is the default.
        measures: What can be reported; the first is the headline.
        predict: Predictions, one an example, from outputs and their labels or names.
        predicted: Name of the column of predictions in a written table.
        meaning: The meaning of a prediction that is neither a label nor a number like the target.
        probabilities: Class probabilities, (n, classes), from outputs trained by the first loss; None if there are
            none.
        model: Name of the network that is trained if none is named.
        gives: What it offers methods (`NEEDS`): "classes", a label from 0 for each example; "classifier",
            a last linear layer with a row for each class.
        links: By loss, a function of outputs that measures and predictions see; by default the outputs themselves.
        scale: Scaling of targets for a loss, (shift, scale), from (training targets, name of the loss); None if
            unscaled.
        correct: True where an example's class is found, (n,) bool, from (outputs, targets); None without classes.
        family: Makes the measure for a name with a number in it; None for other names.
        check: Says what is wrong with (training targets, names of outputs, name of the loss); empty if nothing.
        report: Makes what a report draws from the global test set's outputs and targets after the last round; None if
            nothing.
        positions: True if an example's outputs have a row for each position, (n, positions, width).
        maps: True if they do, and the network returns them like images, (n, width, ...).
        needs_all_clients: True if `check` judges all clients' targets together, not one client's alone.
        constant: Constant outputs that a model has to beat, (width,), from (training targets, width), before any link;
            None if unknown.
        ordered: True if the order of classes matters; where declared, `check` gets 0, 1, ... as their names.
        link: The function of outputs that all measures and predictions see, chosen by `linked` and applied by `seen`;
            None if they see the outputs.
    """

    name: str
    targets: Targets
    width: Callable[[int], int]
    losses: Mapping[str, Loss]
    measures: tuple[Measure, ...]
    predict: Callable[[Tensor, Sequence[Any]], list[Any]]
    predicted: str = "predicted"
    meaning: str = ""
    probabilities: Callable[[Tensor], Tensor] | None = None
    model: str = "mlp"
    gives: frozenset[str] = frozenset()
    links: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    scale: Callable[[Tensor, str], Scale] | None = None
    correct: Callable[[Tensor, Tensor], Tensor] | None = None
    family: Callable[[str], Measure | None] = lambda name: None
    check: Callable[[Array, Sequence[str], str], str] = lambda targets, names, loss: ""
    positions: bool = False
    maps: bool = False
    report: Callable[[Array, Array], Info | None] | None = None
    needs_all_clients: bool = False
    link: Callable[[Tensor], Tensor] | None = None
    constant: Callable[[Tensor, int], Tensor] | None = None
    ordered: bool = False

    def __post_init__(self) -> None:
        for what, given in (("loss", self.losses), ("measure", self.measures)):
            if not given:
                raise ConfigError(
                    f"the kind of task {self.name!r} has no {what}: give one at least, the first is the default"
                )
        for measure in self.measures:
            measure.check()

    @property
    def headline(self) -> Measure:
        """The measure by which models are compared."""
        return self.measures[0]

    def led_by(self, name: str | None) -> "TaskKind":
        """The kind with the measure of that name as its headline; by default the first.

        Raises:
            ConfigError: If it has none of that name.
        """
        if name is None:
            return self
        known = [m.name for m in self.measures]
        first = next((m for m in self.measures if m.name == name), None) or self.family(name)
        if first is None:
            raise self._lacks("task.headline", name, known)
        return dataclasses.replace(self, measures=(first, *(m for m in self.measures if m.name != name)))

    def loss(self, name: str | None) -> Loss:
        """The loss of that name, by default the first; it may be module:function or an installed package's.

        Raises:
            ConfigError: If there is none.
        """
        if name is None:
            return next(iter(self.losses.values()))
        if name in self.losses:
            return self.losses[name]
        if ":" in name or name in LOSSES.names():
            own: Loss = LOSSES.resolve(name)
            return own
        raise self._lacks("task.loss", name, [*self.losses, *LOSSES.names()])

    def _lacks(self, setting: str, name: str, known: Sequence[str]) -> ConfigError:
        near = did_you_mean(name, known)
        return ConfigError(f"{setting}: {self.name} has no {name!r}{near} (it has {', '.join(known)})")

    def linked(self, loss: str | None) -> "TaskKind":
        """The kind whose measures see outputs through this loss's link; only those of the first loss tell chances."""
        chances = self.probabilities if loss in (None, next(iter(self.losses))) else None
        return dataclasses.replace(self, link=self.links.get(loss or "", self.link), probabilities=chances)

    def scaled(self, scale: Scale) -> "TaskKind":
        """The kind with outputs for targets (y - shift) / scale, seen in the target's own unit."""
        return dataclasses.replace(self, link=lambda outputs: unscaled(self.seen(outputs), scale))

    def seen(self, outputs: Tensor) -> Tensor:
        """Outputs as measures and predictions see them."""
        return outputs if self.link is None else self.link(outputs)

    def measure(self, name: str) -> Measure:
        """The measure of that name; it may be module:attribute or an installed package's.

        Raises:
            ConfigError: If there is none.
        """
        known = {m.name: m for m in self.measures}
        measure = known.get(name) or self.family(name)
        if measure is None and (":" in name or name in METRICS.names()):
            return as_measure(METRICS.resolve(name))
        if measure is None:
            raise self._lacks("evaluate", name, [*known, *METRICS.names()])
        return measure

    def reported(self, asked: Sequence[str | Measure], loss: Loss) -> tuple[Measure, ...]:
        """The measures of a run: the headline, the loss, and those asked for.

        Raises:
            ConfigError: If there is no such measure, or two have one name.
        """
        further = [one for one in dict.fromkeys(asked) if one != self.headline.name]
        wanted = [self.measure(one) if isinstance(one, str) else one for one in further]
        measures = (self.headline, loss_measure(loss), *wanted)
        names = [m.name for m in measures]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"evaluate: two metrics are called {twice[0]!r}; give one of them another name")
        return measures

    def check_evaluate(self, names: Sequence[str], models: Sequence[str]) -> None:
        """Refuse names that are neither models to evaluate nor measures; custom ones are not checked.

        Raises:
            ConfigError: If there is one.
        """
        known = [*models, *(m.name for m in self.measures), *METRICS.names()]
        for name in names:
            if name not in known and ":" not in name and self.family(name) is None:
                raise self._lacks("evaluate", name, known)


# ---------------------------------------------------------------- losses
def is_ours(value: Any) -> bool:
    """True for unskew's own functions and objects, which do not change their inputs."""
    return str(getattr(value, "__module__", "")).startswith("unskew.")


def own_loss(loss: Loss) -> Loss:
    """A custom loss, given copies of outputs and targets, as it may change them; one of ours as it is."""
    if is_ours(loss):
        return loss

    of_copies: Loss = functools.wraps(loss)(lambda outputs, y: loss(outputs.clone(), y.clone()))
    return batchwise(of_copies) if is_batchwise(loss) else of_copies


def _of_each(numbers: float | tuple[float, ...], like: Tensor) -> float | Tensor:
    return like.new_tensor(numbers) if isinstance(numbers, tuple) else numbers


def scaled(y: Tensor, scale: Scale) -> Tensor:
    """(y - shift) / scale."""
    shift, by = (_of_each(numbers, y) for numbers in scale)
    return (y - shift) / by


def unscaled(y: Tensor, scale: Scale) -> Tensor:
    """The inverse of `scaled`: y * scale + shift."""
    shift, by = (_of_each(numbers, y) for numbers in scale)
    return y * by + shift


def batchwise(loss: Loss) -> Loss:
    """Mark a loss whose value for an example depends on the rest of its batch, as Cox's does."""
    loss.__dict__["batchwise"] = True
    return loss


def is_batchwise(loss: Loss) -> bool:
    """True for a loss marked by `batchwise`."""
    return bool(getattr(loss, "batchwise", False))


def loss_measure(loss: Loss) -> Measure:
    """The mean loss as a measure."""
    if not is_batchwise(loss):
        return Measure("loss", "loss", "lower", None, None, percent=False, each=loss)

    def whole(outputs: Array, y: Array) -> float:
        return float(loss(torch.from_numpy(outputs), torch.from_numpy(np.ascontiguousarray(y))).mean())

    return Measure("loss", "loss", "lower", None, None, percent=False, whole=whole)


# ---------------------------------------------------------------- measures of somebody's own
def as_measure(piece: Any) -> Measure:
    """A measure as it is; a function of (outputs, targets), arrays of all examples, as one where higher is better.

    Raises:
        ConfigError: If its name cannot stand in metrics, or its direction or range is invalid.
    """
    name = piece.name if isinstance(piece, Measure) else getattr(piece, "__name__", type(piece).__name__)
    if not name.isidentifier():
        raise ConfigError(f"evaluate: a metric's name must be letters, digits and _, got {name!r}; name the function")
    if isinstance(piece, Measure):
        piece.check()
        return piece
    return Measure(name, name.replace("_", " "), low=None, high=None, percent=False, whole=piece)


def _takes_two(piece: Any) -> bool:
    """True for a function that can be called with outputs and targets, and needs no more and no less."""
    if not inspect.isfunction(piece):
        return False
    parameters = inspect.signature(piece).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return len(needed) == 2 and all(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in needed)


METRICS = Registry(
    "metric",
    "unskew.metrics",
    {},
    "a unskew.tasks.Measure, or a function of (outputs, targets)",
    lambda piece: isinstance(piece, Measure) or _takes_two(piece),
)

LOSSES = Registry(
    "loss",
    "unskew.losses",
    {},
    "a function of (outputs, targets) that returns the loss of each example",
    _takes_two,
)


# ---------------------------------------------------------------- what a method needs of a task
NEEDS: dict[str, str] = {
    "classes": "a class for each example",
    "classifier": "a last layer with a row for each class",
    "features": "what enters the last layer",
    "groups": "examples that are counted by class or group",
    "images": "images as inputs",
    "apart": "a loss of each example by itself",
}
"""Every need, in words.

A method, a loss term or a wrapper declares its needs in a class attribute, `needs: ClassVar[tuple[str, ...]] =
("classes", "classifier")`; a kind of task says what it gives (`TaskKind.gives`).  Without `needs` it suits every task.
"""


def needs_of(method: Any) -> tuple[str, ...]:
    """Return what a method needs, with its terms, rules and wrappers, in the order of `NEEDS`."""
    declared = _declared(method)
    return tuple(need for need in NEEDS if need in declared)


def _declared(value: Any) -> set[str]:
    if isinstance(value, tuple | list):
        return set().union(*map(_declared, value))
    if isinstance(value, Mapping):
        return set().union(*map(_declared, value.values()))
    own = set(hook(type(value), "needs"))
    return (
        own.union(*(_declared(getattr(value, f.name)) for f in dataclasses.fields(value))) if is_record(value) else own
    )


def given(kind: TaskKind, binned: bool = False, weighted: bool = False) -> frozenset[str]:
    """Return what tasks of a kind give without class weights; only the data say if inputs are images."""
    counted = kind.targets.classes or len(kind.targets.groups) > 1 or binned
    apart = not weighted and not is_batchwise(next(iter(kind.losses.values())))
    always = {"features", "images"}
    return kind.gives | always | ({"groups"} if counted else set()) | ({"apart"} if apart else set())


def refusal(method: Any, kind: TaskKind, binned: bool = False, weighted: bool = False) -> str:
    """Why a method cannot learn such a task, as the end of a sentence; empty if it can."""
    lacking = [need for need in needs_of(method) if need not in given(kind, binned, weighted)]
    if not lacking:
        return ""
    if weighted and lacking == ["apart"]:
        return f"needs {NEEDS['apart']}, which task.class_weights take away; leave them out"
    remedy = "; set task.bins" if lacking == ["groups"] and kind.targets.name == "number" else ""
    return f"needs {' and '.join(NEEDS[need] for need in lacking)}, which task.kind = {kind.name!r} has not{remedy}"
