"""The vocabulary: what a server plan and a client step may ask for.  Types only: no I/O, no runtime, no method.

A *plan* is a generator that the server runs for one round; it yields `Ask`, `AsTheyCome`, `Collect` or `Probe`.
A *step* is a generator that a client runs for one ask; it yields `Sgd`, `Fold` or `Run` on its own data.
The code that drives a generator decides how a request is met: in one process, stacked on a GPU, or over a network.

A method is a frozen dataclass whose fields are its hyperparameters:

    @dataclass(frozen=True)
    class Mine:
        local: SgdConfig = SgdConfig()

        def init(self, params: Params, fed: Federation) -> S: ...
        def round(self, state: S, fed: Federation) -> Plan[S]: ...
        def serve(self, state: S, client: ClientId | None) -> Params | None: ...

        @step
        def train(self, me: Me, msg: M, memory: L | None) -> Step[tuple[R, L | None]]: ...

`Hooks` lists what a method may define besides.

`S`, `M`, `R` and `L` are frozen dataclasses (or trees of tensors and scalars).  They are saved and sent, and a message
can only hold what its step's signature names.  `memory` is the client's: `None` at first, then what the step returned
last.  No generator outlives a round: between rounds there are `state`, client memory and the round number, so a run can
be resumed there.

Tensors in messages that are not models name dimensions, as in `Float[Tensor, "classes features"]`.  Over a network
`classes` and `features` must be the run's, and any other name must have one length within a message.  Numbers may
declare bounds, as in `Annotated[float, Interval(ge=0.0, le=1.0)]`, which are checked over a network.
"""

import dataclasses
import functools
import inspect
import itertools
import reprlib
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import GeneratorType
from typing import Annotated, Any, Generic, Literal, NoReturn, Protocol, TypeVar, get_args, overload

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from unskew.errors import ConfigError, ProtocolError
from unskew.info import parts
from unskew.keys import Key
from unskew.reduction import Reduced, Reduction
from unskew.tree import Params

ClientId = int
SampleCount = Annotated[int, Ge(1)]
"""Number of a client's training examples, at least one: the weight of a client in means."""
T = TypeVar("T")
S = TypeVar("S")
M = TypeVar("M")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


# ---------------------------------------------------------------- the model, as far as a method may know it
@dataclass(frozen=True)
class Layout:
    """Names of the model's tensors by role.  Server and clients both know it.

    Attributes:
        trainable: Parameters, in module order.
        buffers: Floating-point state that training changes, BatchNorm's statistics; other buffers are constants of the
            network, which never travel, as integer counters do not.
        head: Tensors of the layers that make the outputs; None if they are not known.
        norm: Parameters and buffers of normalisation layers.
        classifier: Name of the classification layer's weight, (classes, features), or None if the model has none.
        frozen: Tensors that are a part of the network and of no model, and so in no group: `frozen_tensors`.  They have
            the values that the network is made with, everywhere and in every run, and so never travel.
    """

    trainable: tuple[str, ...]
    buffers: tuple[str, ...] = ()
    head: tuple[str, ...] | None = ()
    norm: tuple[str, ...] = ()
    classifier: str | None = None
    frozen: tuple[str, ...] = ()

    def select(self, groups: Sequence[str]) -> frozenset[str]:
        """Names that belong to any of `groups`: all, body, head, norm, buffers, or the name of a layer, with all in it.

        A name that no layer has from its start is that of layers inside others, wherever they are, as `lora_A` is.

        Raises:
            ConfigError: If a group selects nothing and is not one of the five words, the head is asked for and
                not known, or `groups` is a single word.
        """
        if isinstance(groups, str):  # its letters would be taken as the starts of names
            raise ConfigError(f"groups of tensors are a list of words, got {groups!r}; write [{groups!r}]")
        every = (*self.trainable, *self.buffers)
        head = self.head or ()
        if self.head is None and {"head", "body"}.intersection(groups):
            raise ConfigError(NO_HEAD)
        known: dict[str, tuple[str, ...]] = {
            "all": every,
            "body": tuple(n for n in every if n not in head),
            "head": head,
            "norm": self.norm,
            "buffers": self.buffers,
        }
        chosen: set[str] = set()
        for group in groups:
            names = known[group] if group in known else tuple(n for n in every if is_part(n, group))
            names = names or tuple(n for n in every if group not in known and f".{group}." in f".{n}.")
            if not names and group not in known:
                raise ConfigError(
                    f"no tensor of the model is called {group!r}, or in a layer of that name, and not frozen or "
                    f"constant; choose from {', '.join(known)} or a name: {', '.join(every[:6])}, ..."
                )
            chosen.update(names)
        return frozenset(chosen)


NO_HEAD = "this needs the head, and a run of the network did not show what makes its outputs; name it with task.head"


def is_part(name: str, layer: str) -> bool:
    """True if a tensor has this name, or is of the layer of this name or of one inside it; all are of the layer ""."""
    return name == layer or not layer or name.startswith(f"{layer.removesuffix('.')}.")


# ---------------------------------------------------------------- plan -> world
@dataclass(frozen=True)
class Held:
    """A value that stays on `owner` for this round.  To move it, put it into a message; only the move costs bytes."""

    owner: ClientId
    key: str


@dataclass(frozen=True)
class Keep:
    """Wraps a part of a reply that must stay on the client; the plan sees a `Held` in its place."""

    value: Any


@dataclass(frozen=True)
class UploadMark:
    """Mark of a reply's field that holds a trained model, or already the difference from the model sent.

    In a message it marks the model that was sent, where that has more tables of tensors than one.
    """

    kind: Literal["model", "update"]


Model = Annotated[Params, UploadMark("model")]
"""Type of a reply's field with a trained model: wrappers may clip or compress its difference from the one sent.

A message with several tables of tensors marks so the one that is the model sent.
"""
Update = Annotated[Params, UploadMark("update")]
"""Type of a reply's field with a difference of models, or gradients: wrappers may clip or compress it."""

Carried = Params | Held | Keep
"""Parameters, or the handle of parameters that stay where they are."""


@dataclass(frozen=True)
class Ask:
    """Run a step on each client in `to`; answered by {client: reply} in the order of `to`, lost clients absent.

    Attributes:
        step: Name of a method marked with `@step`.
        to: The message for each client.
        at_least: Fewer replies than this raise QuorumError inside the plan, and abandon the round if it is not caught.
        timeout_s: Time that a real network waits, seconds; None leaves it to the deployment.
        reduce: Reductions that replies are folded into as they come; the answer is then a `Reduced`.
    """

    step: str
    to: Mapping[ClientId, Any]
    at_least: int = 1
    timeout_s: float | None = None
    reduce: tuple[Reduction, ...] = ()


@dataclass(frozen=True)
class UnderWay(Generic[T]):
    """A client that was asked and whose reply has not come; a method keeps it in its state.

    In a simulation the reply is there already, and comes in `left_s` simulated seconds; in a deployment it is None.
    `stamp` is the plan's, `n` the client's number of training examples, `losses` those of its optimisations.
    """

    stamp: int
    left_s: float = 0.0
    n: int = 0
    losses: tuple[float, ...] = ()
    reply: T | None = None


@dataclass(frozen=True)
class Came(Generic[T]):
    """A reply that has come, and the plan's stamp of what it answers."""

    stamp: int
    reply: T


@dataclass(frozen=True)
class Arrived(Generic[T]):
    """Answer to `AsTheyCome`: replies in the order in which they came, and the clients still under way."""

    replies: dict[ClientId, Came[T]]
    under_way: dict[ClientId, UnderWay[T]]


@dataclass(frozen=True)
class AsTheyCome:
    """Run a step on clients, and wait for the first replies of all that are under way, longer ones too.

    Replies come in the order of the simulation's clock, those of the same time in a drawn order; in a deployment as
    they really come.  They hold no `Keep`.

    Attributes:
        step, to: As of `Ask`.  A client that is under way is sent its message only if its reply cannot come any more,
            because the server was started again.
        under_way: Clients asked before, as the last answer left them.
        first: Number of replies to wait for; fewer where fewer are under way.
        stamp: Comes back with the replies to `to`, such as the version of the model that is sent.
    """

    step: str
    to: Mapping[ClientId, Any]
    under_way: Mapping[ClientId, UnderWay[Any]]
    first: int
    stamp: int = 0


@dataclass(frozen=True)
class Collect:
    """Bring held values to the server; answered by their values in the same order.

    Attributes:
        held: Values to bring.
        at_least: Fewer than this raise QuorumError inside the plan; otherwise None takes the place of each value that
            did not arrive.  Without a number all are needed.
    """

    held: Sequence[Held]
    at_least: int | None = None


@dataclass(frozen=True)
class Probe:
    """Spectral efficiency of every directed link in hop `hop`; answered by gamma[src, dst] in bit/s/Hz."""

    hop: int


Plan = Generator[Ask | AsTheyCome | Collect | Probe, Any, T]


# ---------------------------------------------------------------- step -> its own device
@dataclass(frozen=True)
class Constant:
    """The same learning rate in every round."""

    name: Literal["constant"] = "constant"

    def __call__(self, round: int) -> float:
        """Return 1: the learning rate does not change."""
        return 1.0


@dataclass(frozen=True)
class Exponential:
    """`decay ** (round - 1)`: 0.998 in FedDC and FedDyn, 0.995 in HCCT."""

    decay: Annotated[float, Interval(gt=0.0, le=1.0)]
    name: Literal["exponential"] = "exponential"

    def __call__(self, round: int) -> float:
        """Factor in round `round`, counted from 1."""
        return float(self.decay ** (round - 1))


@dataclass(frozen=True)
class Scheduler:
    """A scheduler of `torch.optim.lr_scheduler` by its name there, over rounds or local steps.

    Attributes:
        scheduler, options: Its name, such as "OneCycleLR", and arguments beside the optimiser, whose rate is 1.

    Raises:
        ConfigError: If there is no such scheduler, or it needs a metric.
    """

    scheduler: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    name: Literal["torch"] = "torch"

    def __post_init__(self) -> None:
        self(2)

    def __call__(self, round: int) -> float:
        """Factor in round or step `round`, counted from 1."""
        known, more = _stepped(self)
        try:
            known.extend(itertools.islice(more, max(round - len(known), 0)))
            return known[round - 1]
        except (AttributeError, TypeError, ValueError, IndexError) as error:
            raise ConfigError(f"torch.optim.lr_scheduler.{self.scheduler} has no step {round}: {error}") from None


@functools.lru_cache(maxsize=64)
def _stepped(schedule: Scheduler) -> tuple[list[float], Iterator[float]]:
    def factors() -> Iterator[float]:
        optimiser = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        scheduler = getattr(torch.optim.lr_scheduler, schedule.scheduler)(optimiser, **schedule.options)
        while True:
            yield float(optimiser.param_groups[0]["lr"])
            optimiser.step()
            scheduler.step()

    return [], factors()


Schedule = Constant | Exponential | Scheduler | Callable[[int], float]
"""Factors on a learning rate by round or step, from 1: one of ours, PyTorch's, or a function."""

Optimizer = Literal[
    "sgd", "adam", "adamw", "lbfgs", "adadelta", "adafactor", "adagrad", "adamax", "asgd", "muon", "nadam", "radam",
    "rmsprop", "rprop", "sparseadam",
]  # fmt: skip


@dataclass(frozen=True)
class SgdConfig:
    """One client's local optimisation.

    The optimiser's state is fresh in every call, as momentum belongs to one model; `KeepOptimizer` keeps it.

    Attributes:
        lr: Learning rate of round 1.
        local_epochs: Passes over the client's training data, or `local_steps`; 0.3 of b batches is 0.3 b, rounded up.
        local_steps: Mini-batch steps, whatever the client's size; of lbfgs most iterations, by default 100.
        batch_size: None takes all of the client's data in every step.
        optimizer: One of PyTorch's, by name or class, which make steps.  Or lbfgs, which has no learning rate: it
            minimises the mean loss of all of the client's data, plus terms, to within `tolerance`.  Muon takes only
            matrices, which `trainable` chooses; SparseAdam leaves rows without a gradient.  Clients are stacked
            under sgd, adam and adamw only.
        momentum, nesterov: Momentum of SGD and RMSprop, and whether SGD's is Nesterov's.
        weight_decay: Added to the gradient, or decoupled (AdamW).
        betas, eps: Decay rates of the moments, and constant in the denominator, by default PyTorch's own.
        clip_norm: Largest L2 norm of the gradient of loss plus terms.
        lr_schedule, step_schedule: Factors on `lr` by round, and by local step from an optimisation's first on.
        trainable: Parameters that may change: all, body, head, norm, buffers, or a layer's name; the others travel too.
        buffers: "update" lets BatchNorm statistics follow the batches, "freeze" normalises by the received ones.
        drop_last: Leave out a last batch that is not full.
        at_once: Most examples that pass the network together; a larger batch's gradients are sums over its parts.
        tolerance: Largest entry of the gradient at which lbfgs ends.
        precision: Numbers that a training step's pass through the network computes with.  bfloat16 is PyTorch's
            autocast: parameters, gradients, losses and terms are float32, and so are evaluation, `Fold` and `Run`.
    """

    lr: Annotated[float, Gt(0.0)] = 0.1
    local_epochs: Annotated[int, Ge(1)] | Annotated[float, Gt(0.0)] | None = None
    local_steps: Annotated[int, Ge(1)] | None = None
    batch_size: Annotated[int, Ge(1)] | None = 32
    optimizer: Optimizer = "sgd"
    momentum: Annotated[float, Interval(ge=0.0, lt=1.0)] = 0.0
    nesterov: bool = False
    weight_decay: Annotated[float, Ge(0.0)] = 0.0
    betas: tuple[Annotated[float, Interval(ge=0.0, lt=1.0)], Annotated[float, Interval(ge=0.0, lt=1.0)]] = (0.9, 0.999)
    eps: Annotated[float, Gt(0.0)] | None = None
    clip_norm: Annotated[float, Gt(0.0)] | None = None
    lr_schedule: Schedule = Constant()
    step_schedule: Schedule = Constant()
    at_once: Annotated[int, Ge(1)] | None = None
    trainable: tuple[str, ...] = ("all",)
    buffers: Literal["update", "freeze"] = "update"
    drop_last: bool = False
    precision: Literal["float32", "bfloat16"] = "float32"
    tolerance: Annotated[float, Gt(0.0)] = 1e-5

    def __post_init__(self) -> None:
        name = getattr(self.optimizer, "__name__", self.optimizer)  # torch.optim.Adam is "adam"
        object.__setattr__(self, "optimizer", str(name).lower())
        if self.optimizer not in get_args(Optimizer):
            raise ConfigError(f"optimizer must be one of {', '.join(get_args(Optimizer))}, got {name!r}")
        if self.local_epochs is not None and self.local_steps is not None:
            raise ConfigError("local_epochs and local_steps exclude each other; leave one out")
        if classes := [s for s in (self.lr_schedule, self.step_schedule) if isinstance(s, type)]:
            raise ConfigError(f"a schedule is a value, got {classes[0]}; write Scheduler({classes[0].__name__!r}, ...)")
        if self.nesterov and not self.momentum > 0.0:
            raise ConfigError("nesterov needs momentum > 0, got 0; set momentum or leave nesterov out")
        kind = next((kind for name, kind in vars(torch.optim).items() if name.lower() == self.optimizer), SgdConfig)
        lacks = {"momentum", "nesterov", "weight_decay", "betas", "eps", "tolerance"}
        lacks -= {*inspect.signature(kind).parameters}
        if self.solves:
            if self.batch_size == SgdConfig.batch_size:
                object.__setattr__(self, "batch_size", None)
            lacks = {f.name for f in fields(self)} - {"optimizer", "local_steps", "trainable", "buffers", "tolerance"}
        plain = {f.name: f.default for f in fields(self)} | ({"batch_size": None} if self.solves else {})
        if odd := [name for name, default in plain.items() if name in lacks and getattr(self, name) != default]:
            raise ConfigError(f"optimizer = {self.optimizer!r} would ignore what is given; leave out {', '.join(odd)}")

    @property
    def solves(self) -> bool:
        """True if training ends at a tolerance, not after steps at a learning rate."""
        return self.optimizer == "lbfgs"

    @property
    def steps(self) -> int | None:
        """Number of mini-batch steps in force, if they were set."""
        return None if self.solves else self.local_steps

    @property
    def epochs(self) -> float | None:
        """Number of local epochs in force: 1 unless epochs or steps were set."""
        return 1 if self.solves or (self.local_epochs is None and self.local_steps is None) else self.local_epochs

    def lr_at(self, round: int) -> float:
        """Return the learning rate in round `round`, counted from 1."""
        return self.lr * self.lr_schedule(round)


def require_rate(local: SgdConfig, who: str) -> None:
    """Check that clients make steps at a learning rate, where a method computes with them.

    Raises:
        ConfigError: If they do not.
    """
    if local.solves:
        raise ConfigError(f"{who} needs local steps at a learning rate, which {local.optimizer} does not make; use sgd")


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch as passed to a fold, or to a term that sees features.

    Where clients train together, short batches are padded to one length.  Padding has inputs, labels, features, logits
    and losses too, which mean nothing: a mean over the batch is `(each * batch.mask).sum() / batch.mask.sum()`.

    Attributes:
        x: Inputs, (batch, ...).
        y: Labels, (batch,).
        mask: 1 for examples, 0 for padding, (batch,), of the losses' type.
        features: Input of the classification layer, (batch, features); ConfigError where it is not known.
        logits: (batch, classes).
        loss: The task's loss of each example, times its class's weight if classes have weights, (batch,).
        forward: (features, logits) of `x` under other parameters, in evaluation mode and without gradients; for
            reference models, such as MOON's.
    """

    x: Tensor
    y: Tensor
    mask: Tensor
    features: Tensor
    logits: Tensor
    loss: Tensor
    forward: Callable[[Params], tuple[Tensor, Tensor]]

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == "features" and value.shape[1:] == (0,):
            raise ConfigError(NO_FEATURES)
        return value


NO_FEATURES = "this needs what enters the last layer, and the network calls none as one layer; name it with task.head"

Aux = Mapping[str, Any]


class Penalty(Protocol):
    """A term that a method adds to the task's loss: a hashable value, compared by equality.

    `params` holds every trainable parameter, including those that this optimisation does not change, and no buffers.
    A class or function with the attribute `sees = "features"` is called with the batch as a third argument.  A penalty
    may also have a method `gradient(params, aux)` that returns, by name, the gradient of its value where that is not
    zero.  Training that is written out by hand uses it instead of autograd.  It is checked once that the two agree,
    and that the value depends on the parameters, unless it is zero.
    """

    def __call__(self, params: Params, aux: Aux) -> Tensor:
        """Return the value of the term, a scalar."""
        ...


class FeaturePenalty(Protocol):
    """A penalty that also sees the batch's features and logits."""

    @property
    def sees(self) -> Literal["features"]:
        """Marker of a term that receives the batch."""
        ...

    def __call__(self, params: Params, aux: Aux, batch: Batch) -> Tensor:
        """A scalar; a mean over the batch must be weighted by `batch.mask`, which is checked once."""
        ...


Term = Penalty | FeaturePenalty


def sees_features(term: Term) -> bool:
    """True if the term asks for the batch."""
    return getattr(term, "sees", "parameters") == "features"


def has_gradient(term: Term) -> bool:
    """True if the term writes its gradient out."""
    return callable(getattr(term, "gradient", None))


def refuse_terms(who: str, terms: object) -> None:
    """Refuse what `who` is given as `terms`, unless it is a sequence of things that can be called.

    Raises:
        ConfigError: Saying how it is written; one term without a comma is no tuple.
    """
    several = terms if isinstance(terms, tuple | list) else [None]
    if wrong := [t for t in several if inspect.isclass(t) or not callable(t)]:
        got = reprlib.repr(wrong[0] if several is terms else terms)
        raise ConfigError(f"{who}.terms must be a tuple of terms, got {got}; write terms=(my_term,), with the comma")


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples to train on instead of the client's own.

    Attributes:
        x: Inputs as the task has them, (n, ...).
        y: Labels, (n,).
        rows: Indices of the examples of an epoch, with repetitions, int64 (m,).
        augment: Applied to batches instead of the task's augmentation; None leaves them as they are.
    """

    x: Tensor
    y: Tensor
    rows: Tensor
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None


@dataclass(frozen=True)
class Sgd:
    """Minimise the task's loss plus `terms` from `start`; answered by a `Fitted`.

    Terms are compared by value: clients whose requests differ only in `start` and `aux` can be trained in one call.

    Attributes:
        start: Parameters and buffers to begin with, complete.
        config: Settings of the optimisation.
        terms: Terms added to the task's loss.
        aux: Arguments of the terms besides the parameters.
        draw: Index of its random stream within this ask; None is its number among the step's optimisations,
            from 0.  Two with the same draw and the same numbers of batches see the same batches, augmentation and
            dropout.
        examples: Examples to train on; None is the client's own training data.
        rows: Positions, among the client's own training data, of the examples of an epoch, int64 (m,), m >= 1; None is
            all of them.
        may_diverge: True to answer None, instead of ending the run, if a loss or parameter becomes NaN or infinite.
        state: State of the optimiser to begin with, as an earlier `Fitted` had it, empty for a fresh one that is wanted
            afterwards; None is a fresh one.
    """

    start: Params
    config: SgdConfig
    terms: tuple[Term, ...] = ()
    aux: Aux = field(default_factory=dict)
    draw: int | str | None = None
    examples: Examples | None = None
    rows: Tensor | None = None
    may_diverge: bool = False
    state: Params | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.config, SgdConfig):
            raise ProtocolError(
                f"local training takes its settings from an SgdConfig, got {reprlib.repr(self.config)}; write "
                "SgdConfig(lr=0.1), and annotate the method's field as SgdConfig"
            )

    def key(self, me: "Me", index: int) -> Key:
        """Return the root of its randomness as the step's optimisation number `index`."""
        return me.key / "sgd" / (index if self.draw is None else self.draw)


@dataclass(frozen=True, eq=False)
class Fitted:
    """Result of an `Sgd` request.

    Attributes:
        params: Parameters and buffers at the end.
        steps: Mini-batch steps taken.
        lr: Learning rate in force.
        loss: Mean of the task's loss over the batches seen, without terms.
        examples: Number of examples processed in those steps, repetitions included.
        state: State of the optimiser at the end by name, if the request had one.
    """

    params: Params
    steps: int
    lr: float
    loss: float
    examples: int = 0
    state: Params | None = None


@dataclass(frozen=True)
class Fold:
    """A pass over part of the client's data in evaluation mode, `carry = fn(carry, batch)`; answered by the last."""

    fn: Callable[[Any, Batch], Any]
    params: Params
    init: Any
    part: Literal["train", "val"] = "train"

    def __post_init__(self) -> None:
        if self.part not in ("train", "val"):
            raise ProtocolError(
                f"a step folds over the client's part 'train' or 'val', got {self.part!r}; no step sees test data"
            )


class Imagery(Protocol):
    """A latent diffusion model as a step sees it: images go in and come out as the task's inputs.

    Attributes:
        width: Length of an embedding.
        latent_shape: Shape of a latent.
        changes: Description of what is done to images on the way in; None if nothing is.
    """

    @property
    def width(self) -> int: ...  # noqa: D102
    @property
    def latent_shape(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def changes(self) -> str | None: ...  # noqa: D102

    def start(self) -> Tensor:
        """Return the starting point of every embedding, (width,)."""
        ...

    def encode(self, x: Tensor) -> Tensor:
        """Return the latents of inputs, (n, ...).

        Raises:
            DataError: If they are not images, or their values of black and white are not known.
        """
        ...

    def decode(self, latents: Tensor) -> Tensor:
        """Return the inputs that latents stand for, (n, ...)."""
        ...

    def invert(
        self, clusters: Sequence[Tensor], key: Key, *, steps: int, batch_size: int, lr: float | None = None
    ) -> Tensor:
        """Return the embedding of each cluster of latents, (K, width); equal keys give equal noise."""
        ...

    def sample(
        self, embeddings: Tensor, count: int, key: Key, guidance: float | None = None, steps: int | None = None
    ) -> Tensor:
        """Draw `count` inputs for each embedding, (K, count, ...); those of embedding k depend on it, the key and k."""
        ...

    def distances(self, embeddings: Tensor, key: Key) -> Tensor:
        """Measure the difference between the noise predicted under each pair of embeddings, (K, K)."""
        ...


class Local(Protocol):
    """Argument that `Run` passes to its function: the client's own data and model, nothing of the network.

    Attributes:
        y: Training labels, (n,).
        domains: Domain of each training example, (n,); None if the data has no domains.
        key: Root of this call's randomness.
    """

    y: Tensor
    domains: Tensor | None
    key: Key

    @property
    def x(self) -> Tensor:
        """Training inputs, (n, ...)."""
        ...

    @property
    def public(self) -> tuple[Tensor, Tensor | None]:
        """Inputs, (m, ...), and labels, (m,), if any, of the public data, which every client and the server have."""
        ...

    def imagery(self, source: str) -> Imagery:
        """Return the prior called `source`, loaded at the first request.

        Raises:
            ConfigError, DataError: If it is not available.
        """
        ...

    def forward(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute (features, logits) in evaluation mode, without gradients."""
        ...

    def gradient(self, params: Params) -> Params:
        """Compute the gradient of the mean task loss over all of the client's training data, in evaluation mode."""
        ...

    def example_gradients(self, params: Params, names: Sequence[str], rows: Tensor, key: Key) -> tuple[Params, Tensor]:
        """Compute the gradient of each example's task loss, in training mode.

        Args:
            params: A model.
            names: Parameters to differentiate by.
            rows: Positions among the client's training examples, int64 (m,), m >= 1.
            key: Source of randomness of the augmentation; layers that draw use PyTorch's global generator.

        Returns:
            Gradients by parameter, (m, ...), and losses, (m,).

        Raises:
            ConfigError: If examples have no loss of their own, or the network's layers allow no such gradients.
        """
        ...


@dataclass(frozen=True)
class Run:
    """Arbitrary local code, `fn(local, *args)`.

    It runs for one client at a time.  If `fn` has an attribute `together`, that takes (local, args) of several clients
    and returns their values in the same order.  Such functions are compared by value.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class Me:
    """A client's view of itself in one ask.

    Attributes:
        id: Its number.
        n: Its training examples.
        histogram: Training examples of each class, (classes,) int64.
        round: Number of the round, from 1.
        key: Root of this ask's randomness: seed, round, client, and number of earlier asks of the step this round.
        layout: The model's tensor names.
        initial: The model every client can build for itself from the run's seed; it never needs to travel.
        private: Root of draws of this ask that no one else may repeat, such as noise; draw by `Key.normal` and
            `Key.bits`.  In a deployment it follows from a secret of the client's, as the server knows the run's seed;
            in a simulation from `key` and the step's name.
        private_fixed: The same for draws that must stay fixed from ask to ask: one key per client and run.
    """

    id: ClientId
    n: int
    histogram: Tensor
    round: int
    key: Key
    layout: Layout
    initial: Params
    private: Key = field(repr=False)
    private_fixed: Key = field(repr=False)


@dataclass(frozen=True)
class Spending:
    """Privacy that a reply costs, as Gaussian mechanisms.

    Attributes:
        purpose: Name of what is uploaded with noise.
        multiplier: Standard deviation of the noise over the sensitivity.
        mechanisms: Number of mechanisms of that multiplier in the reply.
        most: Number of them that a client may make in a run; None is no limit.
        share: Probability that an example is in what a mechanism is about, drawn in secret by the client.
    """

    purpose: str
    multiplier: float
    mechanisms: int
    most: int | None
    share: float = 1.0


Step = Generator[Sgd | Fold | Run, Any, T]


SERVER_ID: ClientId = -1
"""`Me.id` while the server runs a step on its own device, and the owner of values held there; no client has it."""


# ---------------------------------------------------------------- the server's view
def no_device(work: Callable[[Me], Step[Any]]) -> Any:
    """Stand in for the server's own device where it has none.

    Raises:
        ConfigError: Always.
    """
    raise ConfigError("this server has no device for local work of its own; the method must leave it to the clients")


@dataclass(frozen=True, eq=False)
class Federation:
    """A plan's view of the federation in one round.

    Attributes:
        clients: All clients, ascending.
        num_classes: Classes of the task.
        layout: The model's tensor names.
        round: Number of the round, from 1; 0 during `init`.
        key: Root of the server's randomness in this round.
        clients_per_round: Cohort size M.
        initialise: Makes a fresh model from a key, for methods that start from several.
        run_on_server: Runs a step on the server's own device, which has the network and the prior but no data; no
            message is sent for it.
        secret: Root of draws that no one else may repeat; see `private`.
        rounds_begun: Rounds begun in a deployment, with this one and those that a crash or a divergence undid.  0 in a
            simulation, where a round that is run again is the same.
        choose: Given this view, the clients from which `sample` draws; None for all of them.
    """

    clients: tuple[ClientId, ...]
    num_classes: int
    layout: Layout
    round: int
    key: Key
    clients_per_round: int
    initialise: Callable[[Key], Params]
    run_on_server: Callable[[Callable[[Me], Step[Any]]], Any] = no_device
    secret: Key | None = field(default=None, repr=False)
    rounds_begun: int = 0
    choose: Callable[["Federation"], Collection[ClientId]] | None = None

    @property
    def private(self) -> Key:
        """Root of the server's noise in this round: in a deployment from a secret that only it has, otherwise `key`.

        Clients know the run's seed, and all that follows from it.
        """
        return self.key if self.secret is None else self.secret

    def sample(self, n: int | None = None, weights: Sequence[float] | None = None) -> tuple[ClientId, ...]:
        """Draw `n` clients (default M) without replacement, ascending; uniform or in proportion to `weights`.

        A round has one draw: called again it gives the same clients, or with another `n` more or fewer of them, so
        that all methods have the same cohorts.  For a second, independent cohort draw by `key`.

        Raises:
            ProtocolError: If `weights` are not one finite number >= 0 for each client.
        """
        chosen = None if self.choose is None else self.choose(self)
        if n is None:
            n = self.clients_per_round if chosen is None else len(chosen)
        p = torch.tensor([1.0] * len(self.clients) if weights is None else weights, dtype=torch.float64)
        if p.shape != (len(self.clients),) or not bool((p.isfinite() & (p >= 0)).all()):
            raise ProtocolError(
                f"sample() needs a finite weight >= 0 for each of {len(self.clients)} clients, got {weights}"
            )
        if chosen is not None:
            p *= torch.tensor([c in chosen for c in self.clients])
        # Efraimidis-Spirakis: the n largest of u ** (1 / p) are a weighted draw without replacement.
        u = torch.rand(len(self.clients), dtype=torch.float64, generator=(self.key / "sample").generator())
        best = torch.topk(u.log() / p, min(n, int((p > 0).sum()))).indices
        return tuple(sorted(self.clients[i] for i in best.tolist()))


class Method(Protocol[S]):
    """The server's half of a method, and its marked steps; see the module's docstring."""

    def init(self, params: Params, fed: Federation) -> S:
        """Return the state before round 1."""
        ...

    def round(self, state: S, fed: Federation) -> Plan[S]:
        """Run one round: a generator that returns the next state."""
        ...

    def serve(self, state: S, client: ClientId | None) -> Params | None:
        """Return the parameters this client would be sent for use; `client=None` asks for the global model.

        The result is None if there is no such model.
        """
        ...


class Hooks:
    """Optional hooks of a method, with their defaults; `hook` looks them up here, also through wrappers.

    Attributes:
        local: The clients' optimisation, with which unseen clients adapt a model.
        pooled: True for a bound that trains on the data of all clients in one place.
        personalise: `personalise(me, params, memory) -> Step[Params]`, the model that a client uses after training.  It
            is no step, as a personal model must not be reachable from the network.
        personalises: False if clients change nothing in the model they are served, so that it is evaluated once.
        common: `common(params, layout)`, tensors by name that clients' networks must have alike; None if all must have
            one network.
        unseen_models: `unseen_models(state)`, models from which an unseen client takes the one with the lowest training
            loss; other methods `serve` it.
        unseen_memberships: Number of those models that it averages.
        adapt: `adapt(me, params, epochs) -> Step[Params]`, how an unseen client adapts its model; by default it trains
            as in `local`.
        info: `info(state) -> Info`, the report of the round that led to `state`: types of `unskew.info`, or a dataclass
            or dictionary of its own.  It is kept in the record, and sections of the report draw it.
        validate_reply: `validate_reply(step, reply, model, layout)`, which raises WireError for a reply of the right
            type that the plan could not use; over a network that client then counts as lost.
        amend: `amend(step, me, msg, reply, sent, memory) -> L`, for methods whose clients remember what they sent.  A
            wrapper that changes `reply` to `sent` calls it; it returns the memory that belongs to `sent`.
        uses_private_randomness: True if results depend on `Me.private` or `Me.private_fixed`, so that no simulation can
            reproduce a deployed run.
        has_dp_noise: True if its noise is differentially private; then clients report no metrics.
        spending: `spending(step, msg) -> tuple[Spending, ...]`, the privacy cost of the reply, of which each client
            keeps its own account.
        covers_examples: True if the noise covers single examples, not whole clients.  It is then refused where a
            client's inputs are scaled by its own examples.
        covers_replies: True if clients' own noise covers all of their replies but the number of examples.
        check_examples: `check_examples(most)`, which refuses settings that do not allow a client of `most` examples.
        binding: `binding(step, msg) -> str | None`, what a reply binds a client to.  In a deployment it gives no reply
            of the same round that binds it to something else.
        as_they_come: True if its plan asks for `AsTheyCome`.
        planned: `planned(rounds, clients, cohort)`, the privacy that a run will spend, in words.
        training_noise: `training_noise(seed, rounds, clients, cohort)`, a `Training` of `unskew.server.privacy`, which
            add up over a run's trainings.
        expected_losses: `expected_losses(lost, cohort)`, in words, if more is lost than replies with this probability.
        counts_steps: True if it counts a client's steps from its setting `local`; a wrapper that changes their number
            puts it there.
        weighting: "uniform" if no mean of it is weighted by numbers of examples.
        needs: What it requires of a task, in words of `unskew.tasks.kind`: "classes" (labels), "classifier" (a row of
            outputs or weights for each class), "groups" (counts by class or group), "images".
        needs_domains: Name of the setting that needs data with domains; empty if none does.
        needs_public: True if it needs public data.
        prior: Name of the diffusion prior that it uses.
    """

    local: Any = None
    pooled: bool = False
    personalise: Any = None
    personalises: bool = True
    common: Any = None
    unseen_models: Any = None
    unseen_memberships: int = 1
    adapt: Any = None
    info: Any = None
    validate_reply: Any = None
    amend: Any = None
    uses_private_randomness: bool = False
    has_dp_noise: bool = False
    covers_examples: bool = False
    covers_replies: bool = False
    check_examples: Any = None
    spending: Any = None
    binding: Any = None
    as_they_come: bool = False
    planned: Any = None
    training_noise: Any = None
    expected_losses: Any = None
    counts_steps: bool = False
    weighting: str | None = None
    needs: tuple[str, ...] = ()
    needs_domains: str = ""
    needs_public: bool = False
    prior: Any = None


def hook(method: object, name: str) -> Any:
    """Return a method's hook by name, or its default."""
    return getattr(method, name, getattr(Hooks, name))


def report_of(method: object, state: Any) -> tuple[object, ...]:
    """Return the parts of a method's report on the round that led to `state`."""
    info = hook(method, "info")
    return () if info is None else parts(info(state))


# ---------------------------------------------------------------- requests, for use with `yield from`
@overload
def ask(
    step: Callable[[Me, M, Any], Step[tuple[R, Any]] | tuple[R, Any]],
    to: Mapping[ClientId, M],
    at_least: int = 1,
    timeout_s: float | None = None,
) -> Plan[dict[ClientId, R]]: ...
@overload
def ask(
    step: Callable[[Me, M, Any], Step[tuple[R, Any]] | tuple[R, Any]],
    to: Mapping[ClientId, M],
    at_least: int = 1,
    timeout_s: float | None = None,
    *,
    reduce: Reduction | tuple[Reduction, ...],
) -> Plan[Reduced[R]]: ...
def ask(
    step: Callable[[Me, M, Any], Any],
    to: Mapping[ClientId, M],
    at_least: int = 1,
    timeout_s: float | None = None,
    reduce: Reduction | tuple[Reduction, ...] = (),
) -> Plan[Any]:
    """Send each client its message and wait for the replies: see `Ask`; types follow from the step's signature.

    Returns:
        Replies by client, in the order of `to`; a `Reduced` if there are reductions (`reduction.py`).

    Raises:
        ProtocolError: If `step` is a name, or `to` is no mapping.
    """
    if not callable(step):
        raise ProtocolError(f"ask takes the step itself, as in ask(self.train, ...), got {reprlib.repr(step)}")
    if not isinstance(to, Mapping):
        raise ProtocolError(
            f"ask takes a message for each client, {{client: message}}, got {type(to).__name__}; to send one message "
            "to the cohort: ask(self.train, {c: message for c in fed.sample()})"
        )
    reductions = reduce if isinstance(reduce, tuple) else (reduce,)
    return (yield Ask(step.__name__, to, at_least, timeout_s, reductions))


def collect(held: Sequence[Carried], at_least: int | None = None) -> Plan[list[Any]]:
    """Bring held values to the server; with `at_least`, None stands for those that did not come."""
    handles = [h for h in held if isinstance(h, Held)]
    if len(handles) != len(held):
        raise ProtocolError("collect() takes Held values only; wrap what must stay on the client in Keep(...)")
    values: list[Any] = yield Collect(handles, at_least)
    return values


def probe(hop: int = 0) -> Plan[Tensor]:
    """Measure the spectral efficiency of every link, [src, dst], bit/s/Hz."""
    gamma: Tensor = yield Probe(hop)
    return gamma


def fit(start: Params, config: SgdConfig, *terms: Term, **aux: Any) -> Step[Fitted]:
    """Minimise the task's loss plus `terms`; return parameters, steps taken and learning rate."""
    fitted: Fitted = yield Sgd(start, config, terms, aux)
    return fitted


def sgd(start: Params, config: SgdConfig, *terms: Term, **aux: Any) -> Step[Params]:
    """Minimise as `fit` does and return the parameters only."""
    return (yield from fit(start, config, *terms, **aux)).params


def fold(fn: Callable[[T, Batch], T], params: Params, init: T, part: Literal["train", "val"] = "train") -> Step[T]:
    """Make one pass over the client's data: `carry = fn(carry, batch)`."""
    carry: T = yield Fold(fn, params, init, part)
    return carry


def run(fn: Callable[..., T], *args: Any) -> Step[T]:
    """Run arbitrary local code: `fn(local, *args)`."""
    value: T = yield Run(fn, args)
    return value


# ---------------------------------------------------------------- steps and how they are driven
def step(fn: F) -> F:
    """Mark a method as callable by the plan.  Nothing unmarked can be reached from the network."""
    fn.__step__ = True  # type: ignore[attr-defined]
    return fn


def steps_of(method: object) -> dict[str, Callable[..., Any]]:
    """Return the method's bound steps by name; of a wrapped method those that its wrapper makes of them."""
    wrapped: dict[str, Callable[..., Any]] | None = getattr(method, "wrapped_steps", None)
    if wrapped is not None:
        return wrapped
    cls = type(method)
    return {n: getattr(method, n) for n in dir(cls) if getattr(getattr(cls, n, None), "__step__", False)}


def personalise_of(method: object) -> Callable[..., Any] | None:
    """Return the method's `personalise`; None if its clients use the models they are served.

    A subclass that defines `personalise` alone has not said that it changes nothing.
    """
    nearest: Mapping[str, Any] = next((vars(kind) for kind in type(method).__mro__ if "personalise" in vars(kind)), {})
    says_so = "personalises" in nearest and not method.personalises  # type: ignore[attr-defined]
    return None if says_so else hook(method, "personalise")


def drive(gen: Any, answer: Callable[[Any], Any]) -> Any:
    """Run a plan or a step to its end, answering each request with `answer`; a plain value is returned as it is.

    A failure of `answer` is thrown into the generator at its own `yield`, so the traceback ends in the author's line.
    """
    if not isinstance(gen, GeneratorType):
        return gen
    try:
        request = next(gen)
        while True:
            try:
                reply = answer(request)
            except Exception as error:
                request = gen.throw(error)
            else:
                request = gen.send(reply)
    except StopIteration as stop:
        return stop.value


def refuse_request(who: Literal["plan", "step"], request: object) -> NoReturn:
    """Raise an error that says what may be yielded, and the likely mistake."""
    legal = "Ask, AsTheyCome, Collect or Probe" if who == "plan" else "Sgd, Fold or Run"
    hint = ': write "yield from"' if isinstance(request, GeneratorType) else ""
    raise ProtocolError(f"a {who} may yield {legal}, not {type(request).__name__}{hint}")


def field_names(value: object) -> tuple[str, ...] | None:
    """Return the names of a record's fields; None if the value is not a record."""
    of: Any = type(value)
    return _names(of)


@functools.cache
def _names(of: Any) -> tuple[str, ...] | None:
    return tuple(f.name for f in dataclasses.fields(of)) if dataclasses.is_dataclass(of) else None


def map_held(fn: Callable[[Held], Any], tree: Any) -> Any:
    """Replace every `Held` in a message, at any depth."""
    return _map_marked(Held, fn, tree)


def held_in(tree: Any) -> tuple[Held, ...]:
    """Find the held values that a message refers to, each once."""
    return tuple(dict.fromkeys(held_at(tree).values()))


def held_at(tree: Any) -> dict[str, Held]:
    """Find every `Held` in a reply by its path, as `map_keep` writes it."""
    by_path: dict[str, Held] = {}

    def note(held: Held, path: str) -> Held:
        by_path[path] = held
        return held

    _map_marked(Held, note, tree, path="")
    return by_path


def map_keep(fn: Callable[[Keep, str], Held], tree: Any) -> Any:
    """Replace every `Keep` in a reply, at any depth; `fn` also gets its path."""
    return _map_marked(Keep, fn, tree, path="")


def _map_marked(kind: type, fn: Callable[..., Any], tree: Any, path: str | None = None) -> Any:
    if isinstance(tree, kind):
        return fn(tree) if path is None else fn(tree, path)
    # Most messages are tables of tensors, which cannot contain one.
    if tree is None or isinstance(tree, Tensor | str | int | float | bytes):
        return tree
    if isinstance(tree, dict) and all(isinstance(v, Tensor) for v in tree.values()):
        return tree

    def down(value: Any, name: object) -> Any:
        return _map_marked(kind, fn, value, None if path is None else f"{path}/{name}")

    fields = field_names(tree)
    if fields is not None:
        new = {name: down(getattr(tree, name), name) for name in fields}
        changed = {k: v for k, v in new.items() if v is not getattr(tree, k)}
        return dataclasses.replace(tree, **changed) if changed else tree
    if isinstance(tree, tuple | list):
        parts = type(tree)(down(v, i) for i, v in enumerate(tree))
        return parts if any(a is not b for a, b in zip(parts, tree, strict=True)) else tree
    if isinstance(tree, dict):
        values = {k: down(v, k) for k, v in tree.items()}
        return values if any(values[k] is not tree[k] for k in tree) else tree
    return tree
