"""An experiment as a value, from TOML and back.

    name = "digits"
    rounds = 30
    seeds = [0, 1, 2]
    task = { data = "digits", model = "mlp" }
    split = { name = "dirichlet", num_clients = 20, alpha = 0.1 }
    local = { lr = 0.1, local_epochs = 2, batch_size = 32 }

    [[methods]]
    name = "fedavg"
    [[methods]]
    name = "fedprox"
    mu = 0.1

`methods` may be a list of names.  `[local]` is every method's local optimisation unless the method says otherwise.
TOML has no null: "none" stands for it, as in `batch_size = "none"`.  A resolved configuration spells everything out and
reads back to an equal experiment.
"""

import copy
import dataclasses
import hashlib
import itertools
import math
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from annotated_types import Ge, Gt, Interval, MinLen

from unskew import algorithms, models, priors, schema, tasks
from unskew.algorithms import presets
from unskew.data.batches import AUGMENTS
from unskew.data.preprocess import Preprocess
from unskew.data.sources import DATA, FILES
from unskew.data.split import SPLITS, Dirichlet, Split, record
from unskew.errors import ConfigError
from unskew.files import from_toml
from unskew.local.executor import AUTO, EXECUTORS
from unskew.priors import PRIORS
from unskew.protocol import SgdConfig, hook
from unskew.references import makes
from unskew.registry import Registry
from unskew.server.optimise import RULES, Mean
from unskew.tasks.kind import LOSSES, METRICS, TaskKind, refusal
from unskew.tree import is_record
from unskew.world.attack import ATTACKS, Attack, Honest
from unskew.world.channel import CHANNELS, Channel, Even
from unskew.world.pace import PACES, Outage, Pace

MODELS = ("global", "personal", "personal_on_global")
"""The models that `evaluate` may name."""
BOUNDS = ("independent", "fedavg", "centralised")
LONGEST_LABEL = 60

TRACKERS = Registry(
    "tracker",
    "unskew.trackers",
    {
        "tensorboard": "unskew.run.trackers:TensorBoard",
        "mlflow": "unskew.run.trackers:MLflow",
        "wandb": "unskew.run.trackers:Wandb",
    },
    "a class with log and close, or a function annotated to return one",
    partial(makes, lambda kind: all(callable(getattr(kind, part, None)) for part in ("log", "close"))),
    about={
        "tensorboard": "event files in the run's folder",
        "mlflow": "a run for each method and seed, at MLFLOW_TRACKING_URI",
        "wandb": "a run for each method and seed; offline unless WANDB_MODE says otherwise",
    },
)


@dataclass(frozen=True)
class ClientsModel:
    """The network of some clients.

    Attributes:
        model, model_options: The network, as of a task.
        clients: Their names, or numbers where they have none.
    """

    model: str
    model_options: dict[str, Any] = field(default_factory=dict)
    clients: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskConfig:
    """The data and the network.

    Attributes:
        data: digits, npz:PATH, csv:PATH, parquet:PATH, images:PATH, hub:OWNER/NAME, or a known name to
            look up in the data directory.
        model: A name from `unskew list models`, or module:factory for a network of your own; by default mlp, for
            next_token char_lstm.
        model_options: The network's own settings; lora adds low-rank adapters, as in { rank = 8 }.
        models: Several networks with their clients, instead of model.  Clients that no entry names get the first, if it
            names nobody.  Only for methods that average no whole network.
        data_options: Settings of a registered data function; a table's columns target, client, test; for natural data
            without test rows, test: each client's share.
        preprocess: How a table's columns are prepared: scale, missing, columns; true uses every
            default, and without it nothing is done.
        head: Name of the layer, or parameter, that makes the outputs in your own network; by default what a run shows.
        output: Name or place of the outputs in what your own network returns; by default logits or out.
        kind: What is learned, one of `unskew list tasks`: classification, regression, segmentation, ...
        loss: A loss of that kind, as cross_entropy or multi_margin, or module:function; by default the model's own,
            else the kind's first.
        headline: The kind's metric by which models are compared; by default its first, as accuracy or rmse.
        class_weights: Loss weights by class, in order; or balanced: each client weighs its classes alike by its own
            counts, which stay with it.  Classification and binary.
        bins: Edges between bins of a numeric target, or, in a simulation, their number; examples are counted and
            divided by bins as by classes.
        target_scale: Shift and scale of a regression's target, by default mean and standard deviation of training rows
            (0 and the mean with the loss poisson).  The loss uses scaled targets; predictions and other metrics keep
            the target's unit.  A deployment needs the two numbers.  False scales nothing.
        augment: Random change of training examples, redrawn each time: none, crop, flip, crop+flip, module:function.
        data_dir: Folder of named data sets; by default the environment's UNSKEW_DATA.
    """

    data: str = "digits"
    model: str = ""
    model_options: dict[str, Any] = field(default_factory=dict)
    data_options: dict[str, Any] = field(default_factory=dict)
    loss: str | None = None
    augment: str = "none"
    data_dir: str | None = None
    head: str | None = None
    output: str | int | None = None
    kind: str = "classification"
    preprocess: Preprocess | None = None
    class_weights: Literal["balanced"] | Annotated[tuple[Annotated[float, Gt(0.0)], ...], MinLen(2)] | None = None
    bins: Annotated[int, Ge(2)] | Annotated[tuple[float, ...], MinLen(1)] | None = None
    target_scale: bool | tuple[float, Annotated[float, Gt(0.0)]] = True
    headline: str | None = None
    models: tuple[ClientsModel, ...] = ()

    def __post_init__(self) -> None:
        if self.models:
            object.__setattr__(self, "model", self.models[0].model)
            object.__setattr__(self, "model_options", self.models[0].model_options)
        if not self.model:
            known = self.kind in tasks.KINDS.names() or ":" in self.kind
            object.__setattr__(self, "model", tasks.kind_of(self.kind).model if known else "mlp")

    def of(self, at: int) -> "TaskConfig":
        """The same task with one entry of `models` as every client's network."""
        entry = self.models[at] if self.models else self
        return dataclasses.replace(self, model=entry.model, model_options=entry.model_options, models=())

    def check(self) -> TaskKind:
        """The kind of task, after checking these settings against it.

        Raises:
            ConfigError: If one of them does not.
        """
        with schema.errors_at("task.kind"):
            kind = tasks.kind_of(self.kind)
        kind = kind.led_by(self.headline)
        if self.loss is not None and ":" not in self.loss:
            kind.loss(self.loss)
        with schema.errors_at("task.augment"):
            AUGMENTS.check(self.augment)
        if self.class_weights is not None and not kind.targets.classes:
            raise ConfigError(f"task.class_weights goes with classes, and {kind.name} learns {kind.targets.what}")
        if self.bins is not None and kind.targets.name != "number":
            raise ConfigError(f"task.bins goes with numbers as targets, and {kind.name} learns {kind.targets.what}")
        if not isinstance(self.target_scale, bool):
            if kind.targets.name != "number":
                raise ConfigError(
                    f"task.target_scale goes with numbers as targets, and {kind.name} learns {kind.targets.what}"
                )
            if self.loss in kind.links and self.target_scale[0] != 0:
                raise ConfigError(
                    f"task.target_scale must begin with 0 for the loss {self.loss}, got {self.target_scale[0]:g}"
                )
        if isinstance(self.bins, tuple) and any(low >= high for low, high in itertools.pairwise(self.bins)):
            raise ConfigError(f"task.bins must list edges in ascending order, got {list(self.bins)}")
        return kind


@dataclass(frozen=True)
class Stop:
    """Conditions that end a method's training before its last round.

    Attributes:
        metric: The mean headline of clients, weighted by their validation examples, is this good: an accuracy this
            high, an error this low.  The test set decides nothing.
        patience: It has not improved for so many rounds.
        megabytes: Everything sent so far, in 10^6 bytes.
        seconds: Wall-clock time of this method and seed; the round it ends in differs between runs.
    """

    metric: float | None = None
    patience: Annotated[int, Ge(1)] | None = None
    megabytes: Annotated[float, Gt(0.0)] | None = None
    seconds: Annotated[float, Gt(0.0)] | None = None


@dataclass(frozen=True)
class KeepModels:
    """Global models kept from rounds before the last, a file each.

    Attributes:
        every: Rounds between kept models; 0 keeps none.
        best: Keep the model with the best mean headline of clients, weighted by their validation examples.
    """

    every: Annotated[int, Ge(0)] = 0
    best: bool = False


@dataclass(frozen=True)
class UntilDecided:
    """Seeds that are added until every comparison with FedAvg is decided: `seeds = { until = 0.5, most = 30 }`.

    A comparison is decided when the interval of its paired differences excludes zero or is narrow.  The interval is a
    confidence sequence, valid after every seed (`unskew.run.decide`).

    Attributes:
        until: Width below which an interval is narrow: in points where the headline is in percent, else in its unit.
        most: The most seeds.
        least: The fewest; there is no interval before the sixth.
        first: The first seed; the others follow it.
        metric: What is compared: the last round's headline, or its mean over the last fifth of evaluations.
    """

    until: Annotated[float, Gt(0.0)]
    most: Annotated[int, Interval(ge=2, le=1000)] = 30
    least: Annotated[int, Ge(2)] = 6
    first: Annotated[int, Ge(0)] = 0
    metric: Literal["last_round", "last_fifth"] = "last_round"

    def __post_init__(self) -> None:
        if self.most < self.least:
            raise ConfigError(f"most must be at least {self.least}, which is least, got {self.most}")

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds that may be run, in order."""
        return tuple(range(self.first, self.first + self.most))


@dataclass(frozen=True)
class Unseen:
    """Clients set aside until training ends: no method trains, counts or evaluates on them before.

    Attributes:
        clients: A share of the clients, drawn under the seed, or a list of names; a file may say `unseen = 0.2`.
            Clients that the data mark so are always set aside.
        adapt_epochs: Epochs in which an unseen client adapts its model to its training data.
        every: Rounds between evaluations of these clients; 0 evaluates only after the last round.
    """

    clients: Annotated[float, Interval(gt=0.0, lt=1.0)] | tuple[str, ...] = ()
    adapt_epochs: Annotated[int, Ge(1)] = 1
    every: Annotated[int, Ge(0)] = 0


@dataclass(frozen=True)
class Runtime:
    """How the work runs; recorded, as other executors or devices agree only within rounding.

    Attributes:
        executor: auto takes stacked on CUDA, and on a CPU workers, or sequential with one core or little to do.  Or a
            name from `unskew list executors`.
        workers: Worker processes; by default one per core.
        device: auto takes a CUDA device if there is one.
        threads: PyTorch threads; by default one, and all cores for networks above five million parameters.
        deterministic: On CUDA, refuse kernels whose sums depend on timing.
        checkpoint_every: Rounds between checkpoints; 0 saves after ten seconds' work, or later where saving is slow.
        codec: Encode and decode every message, as a network would.
        executor_options: The executor's own settings.
    """

    executor: str = AUTO
    workers: Annotated[int, Interval(ge=1, le=256)] | None = None
    device: str = "auto"
    threads: Annotated[int, Interval(ge=1, le=256)] | None = None
    deterministic: bool = False
    checkpoint_every: Annotated[int, Ge(0)] = 0
    codec: bool = False
    executor_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.executor != AUTO:
            EXECUTORS.check(self.executor)


@dataclass(frozen=True)
class World:
    """The world around the clients.

    Attributes:
        outage: Probabilities that a round loses a client.
        channel: Quality of the links, for methods that probe them: a name from `unskew list channels`, its settings.
        attack: Attack by some of the clients: a name from `unskew list attacks`, its settings.
        pace: Speed of the clients, for a simulation's clock: a name from `unskew list paces`, its settings.
    """

    outage: Outage = Outage()
    channel: Annotated[Channel, CHANNELS] = Even()
    attack: Annotated[Attack, ATTACKS] = Honest()
    pace: Annotated[Pace | None, PACES] = None


@dataclass(frozen=True)
class NamedMethod:
    """A method with its settings, and its label in tables and figures."""

    label: str
    name: str
    options: Mapping[str, Any]
    method: Any = field(compare=False)

    @property
    def kind(self) -> str:
        """global, personal or bound."""
        entry = algorithms.TABLE.get(self.name.partition("+")[0])  # an addition leaves a method of its kind
        return entry.kind if entry else "global"

    @property
    def bound(self) -> Literal["pooled", "lower"] | None:
        """The method's bound, if it is one: training on pooled data, or each client alone."""
        if hook(self.method, "pooled"):
            return "pooled"
        return "lower" if self.name == "independent" else None

    @property
    def is_fedavg(self) -> bool:
        """True for FedAvg as published, the baseline of others; not for variants of the same class."""
        a = self.method
        return self.name == "fedavg" and not a.personal and not a.terms and a.server == Mean()


@dataclass(frozen=True)
class Experiment:
    """Methods on one task, split and set of seeds.

    Attributes:
        methods: The methods compared, all on the same split, with the same cohorts and the same initial model.
        rounds: Communication rounds.
        seeds: Each draws its own split, initial model, cohorts and batches.
        until: The rule that stops a run before its last seed; None runs all.  In a file it is
            `seeds = { until = 0.5, most = 30 }`.
        name: Name of the run; one line, not empty.
        task, split: Data and model, and how data are divided among clients; by default the data's own clients, else
            `iid`.
        fraction, clients_per_round: Cohort size as a share or a number; by default all clients.
        test_fraction: Share of each client's data kept for personal tests.
        val_fraction: Share of each client's remaining data kept for choices during training; 0.1 if a choice needs it.
        eval_every: Rounds between evaluations; the last round is always evaluated.
        evaluate: What is evaluated: global, personal, and personal_on_global, each personal model on the global test
            set.  Also further metrics of the task, as balanced_accuracy, or module:attribute.
        evaluate_clients: Clients whose own models are evaluated: all, or so many, drawn once a seed.
        by: Table columns by whose values clients' models are evaluated after the last round, such as sex or age.
        unseen: Clients that do not train and get the trained models: a share of the clients, a list of names, or a
            table.
        public: Rows known to the server and all clients: a share of all training rows, a client's by its name, or data
            as in task.data, as "csv:public.csv".
        stop: Early stopping.
        keep_models: Global models kept beside the last round's.
        world: Losses, channel, and malicious clients.
        runtime: Executor, device, checkpoints.
        track: Trackers that also get the numbers, from `unskew list trackers`; none by default.
        track_options: Settings of trackers, by name.
    """

    methods: tuple[NamedMethod, ...]
    rounds: Annotated[int, Ge(1)]
    seeds: Annotated[tuple[int, ...], MinLen(1)] = (0,)
    until: UntilDecided | None = None
    name: str = "experiment"
    task: TaskConfig = TaskConfig()
    split: Annotated[Split | None, SPLITS] = None
    fraction: Annotated[float, Interval(gt=0.0, le=1.0)] | None = None
    clients_per_round: Annotated[int, Ge(1)] | None = None
    test_fraction: Annotated[float, Interval(ge=0.0, lt=1.0)] = 0.2
    val_fraction: Annotated[float, Interval(ge=0.0, lt=1.0)] = 0.0
    eval_every: Annotated[int, Ge(1)] = 1
    evaluate: tuple[str, ...] = ("global", "personal")
    evaluate_clients: Literal["all"] | Annotated[int, Ge(1)] = "all"
    by: tuple[str, ...] = ()
    unseen: Unseen = Unseen()
    public: Annotated[float, Interval(gt=0.0, lt=1.0)] | str = ""
    stop: Stop = Stop()
    keep_models: KeepModels = KeepModels()
    world: World = World()
    runtime: Runtime = Runtime()
    track: tuple[str, ...] = ()
    track_options: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.methods:
            raise ConfigError("methods must name at least one method, got none")
        if self.fraction is not None and self.clients_per_round is not None:
            got = f"{self.fraction:g} and {self.clients_per_round}"
            raise ConfigError(f"fraction and clients_per_round exclude each other, got {got}; leave one out")
        labels = [m.label for m in self.methods]
        twice = next((label for label in labels if labels.count(label) > 1), None)
        if twice is not None:
            raise ConfigError(f"two methods are called {twice!r}; give one of them another label")
        if self.until is not None:
            if self.seeds not in ((0,), self.until.seeds):
                raise ConfigError(
                    f"seeds and until exclude each other, got {list(self.seeds)} and a rule; leave one out"
                )
            object.__setattr__(self, "seeds", self.until.seeds)
            if self.baseline is None or len(self.compared) < 2:
                way = "it needs plain FedAvg and another method"
                raise ConfigError(f"seeds.until decides comparisons with FedAvg: {way}, got {', '.join(labels)}")
        if min(self.seeds, default=0) < 0:
            raise ConfigError(f"seeds must be >= 0, got {min(self.seeds)}")
        if len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"seeds must differ, got {list(self.seeds)}")
        if not self.name.strip() or not self.name.isprintable():
            raise ConfigError(f"name must be a line that is not empty, got {schema.show(self.name)}")
        for name in self.track:
            with schema.errors_at("track"):
                TRACKERS.check(name)
        for name in self.track_options:
            if name not in self.track:
                raise ConfigError(
                    f"track_options.{name} has settings of a tracker that is not in track ({', '.join(self.track)})"
                )
        if len(set(self.track)) != len(self.track):
            raise ConfigError(f"track must name a tracker once, got {', '.join(self.track)}")
        kind = self.task.check()
        for m in self.methods:
            if why := refusal(m.method, kind, self.task.bins is not None, self.task.class_weights is not None):
                raise ConfigError(f"{m.label} {why}")
        kind.check_evaluate(self.evaluate, MODELS)
        if self.metrics and len(self.metrics) == len(self.evaluate):
            object.__setattr__(self, "evaluate", ("global", "personal", *self.metrics))
        if self.stop.metric is not None and not kind.headline.reachable(self.stop.metric):
            values = f"{kind.headline.label} in {kind.headline.levels}"
            raise ConfigError(f"stop.metric must be a value of {values}, got {self.stop.metric:g}")
        choice = self.by_validation
        if choice is not None or self.until is not None:
            self.check_choice(choice or "seeds.until")
        if choice is not None and self.val_fraction == 0.0:
            object.__setattr__(self, "val_fraction", 0.1)

    def check_choice(self, chooser: str) -> None:
        """Refuse to choose by clients' rows with a method that adds noise: the choice would have none.

        Raises:
            ConfigError: If so.
        """
        noised = next((m.label for m in self.methods if hook(m.method, "has_dp_noise")), None)
        if noised is not None:
            way = f"leave {chooser} out, or {noised}"
            raise ConfigError(f"{chooser} chooses by clients' rows without noise, which {noised} does not cover; {way}")

    @property
    def by_validation(self) -> str | None:
        """The first setting that chooses by validation examples during training; None if none does."""
        asked = {
            "stop.metric": self.stop.metric is not None,
            "stop.patience": self.stop.patience is not None,
            "keep_models.best": self.keep_models.best,
        }
        return next((name for name, is_asked in asked.items() if is_asked), None)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics to report beside the headline and the loss."""
        return tuple(name for name in self.evaluate if name not in MODELS)

    @property
    def baseline(self) -> str | None:
        """Label of the baseline, the first plain FedAvg; None if there is none."""
        return next((m.label for m in self.methods if m.is_fedavg), None)

    @property
    def compared(self) -> tuple[str, ...]:
        """Labels of the methods that are not bounds."""
        return tuple(m.label for m in self.methods if m.bound is None)

    def cohort(self, num_clients: int) -> int:
        """Clients per round: `max(floor(fraction N), 1)`, or the number asked for.

        Raises:
            ConfigError: If more are asked for than there are.
        """
        if self.clients_per_round is not None:
            if self.clients_per_round > num_clients:
                raise ConfigError(
                    f"clients_per_round must be at most the {num_clients} clients, got {self.clients_per_round}"
                )
            return self.clients_per_round
        # 0.29 * 100 is 28.999999999999996, but 29 clients are meant.
        return num_clients if self.fraction is None else max(math.floor(self.fraction * num_clients + 1e-9), 1)


def method(name: str, options: Mapping[str, Any], label: str | None = None, place: str = "method") -> NamedMethod:
    """A method from the table with checked options.

    Raises:
        ConfigError: If the name or an option is not known, or a value is not allowed.
    """
    with schema.errors_at(f"{place}.name"):
        target = algorithms.resolve(name)
    parameters = schema.parameters(target)
    values = schema.checked(target, options, place, owner=name)
    method = schema.construct(target, values, place)
    if lacks := missing_parts(method):
        raise ConfigError(f"{place}.name: {name} makes no method, it lacks {', '.join(lacks)}")
    preset = presets.settings(target, values.get("preset"))
    fields = {key: (hint, preset.get(key, default)) for key, (hint, default) in parameters.items()}
    return NamedMethod(label or name, name, _spelled_out(fields, values), method)


def checked_label(label: object, place: str) -> str:
    """The label of a method in tables and figures: a short line, not empty."""
    if not isinstance(label, str) or not label.strip() or not label.isprintable() or len(label) > LONGEST_LABEL:
        got = schema.show(label)
        raise ConfigError(f"{place} must be a line of at most {LONGEST_LABEL} characters, got {got}")
    return label


def missing_parts(method: object) -> list[str]:
    """Names of the functions that an object lacks to be a method."""
    return [part for part in ("init", "round", "serve") if not callable(getattr(method, part, None))]


def _spelled_out(parameters: Mapping[str, tuple[Any, Any]], values: Mapping[str, Any]) -> dict[str, Any]:
    """All settings with their values, defaults included, as TOML writes them; not a None that is the default."""
    return {
        name: schema.with_name(plain(value), value, hint)
        for name, (hint, default) in parameters.items()
        if (value := values.get(name, default)) is not None or default is not None
    }


def settings_of(record: Any) -> dict[str, Any]:
    """The fields of a dataclass as a file writes them, without functions and classes."""
    parameters = schema.parameters(type(record))
    return _spelled_out(parameters, {name: getattr(record, name) for name in parameters})


def plain(value: Any) -> Any:
    """A value for JSON and TOML; numbers and arrays of NumPy and PyTorch become Python's, None becomes "none"."""
    if value is None:
        return schema.NONE
    if is_record(value):
        return settings_of(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    return value.tolist() if hasattr(value, "tolist") else value


# ---------------------------------------------------------------- reading
def load(path: Path, overrides: Sequence[str] = (), *, allow_code: bool = False) -> Experiment:
    """The experiment in a TOML file, with `key.path=value` overrides.

    Args:
        path: The file.
        overrides: Settings that replace or complete the file's.
        allow_code: Import what `module:attribute` in the file names; otherwise import only unskew and what installed
            packages register.  True for the user's own file.

    Raises:
        ConfigError: If the file is missing or is not TOML, or the experiment is impossible.
    """
    experiment = parse(override(read(path), overrides), str(path), allow_code=allow_code)
    if experiment.task.data.startswith("run:") and experiment.task.data_dir is None:  # beside this very file
        return dataclasses.replace(experiment, task=dataclasses.replace(experiment.task, data_dir=str(path.parent)))
    return experiment


def read(path: Path) -> dict[str, Any]:
    """The table in an experiment's file, with the full path of a manifest beside it.

    Only a bare name is looked up there, so a folder can be moved.  Any other path begins at the working folder.

    Raises:
        ConfigError: If the file is missing or is not TOML.
    """
    table = read_toml(path)
    split = table.get("split")
    if not isinstance(split, Mapping) or split.get("name") != "manifest":
        return table
    name = split.get("path")
    if isinstance(name, str) and Path(name).name == name and os.path.isfile(beside := path.absolute().parent / name):
        table["split"] = {**split, "path": str(beside)}
    return table


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file.

    Raises:
        ConfigError: If the file is missing or is not TOML.
    """
    try:
        text = path.read_text("utf-8-sig")  # Windows' editors begin a file with a byte-order mark
        return from_toml(text)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; unskew list experiments has built-in ones") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None
    except ValueError as error:  # an integer of thousands of digits, too
        raise ConfigError(f"{path} is not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply to be an experiment") from None


def override(raw: Mapping[str, Any], settings: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """`raw` with settings such as `methods.1.mu=0.1`, read as TOML or else as text, or with values by such paths.

    Raises:
        ConfigError: If a setting has another form, or its path leads through something that is not a table.
    """
    out = methods_as_tables(copy.deepcopy(dict(raw)))
    for setting in settings:
        key, sign, text = (setting, "=", "") if isinstance(settings, Mapping) else setting.partition("=")
        *path, last = (part.strip() for part in key.split("."))
        if not sign or not all((*path, last)):
            raise ConfigError(f"--set takes key.path=value, got {setting!r}")
        table: Any = out
        for part in path:
            table = table[_entry(table, part, key)] if isinstance(table, list) else table.setdefault(part, {})
            if not isinstance(table, dict | list):
                raise ConfigError(f"--set {key}: {part} is a value, not a table")
        value = copy.deepcopy(settings[setting]) if isinstance(settings, Mapping) else _value(text)
        table[_entry(table, last, key) if isinstance(table, list) else last] = value
    return out


def methods_as_tables(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`raw` with a table for each method given only by name.

    >>> methods_as_tables({"methods": ["fedavg", {"name": "fedprox", "mu": 0.1}]})
    {'methods': [{'name': 'fedavg'}, {'name': 'fedprox', 'mu': 0.1}]}
    """
    out = dict(raw)
    if isinstance(out.get("methods"), list):
        out["methods"] = [{"name": entry} if isinstance(entry, str) else entry for entry in out["methods"]]
    return out


def _entry(entries: Sequence[Any], part: str, key: str) -> int:
    if not part.isdecimal() or int(part) >= len(entries):
        raise ConfigError(
            f"--set {key}: {part!r} is not an entry of a list of {len(entries)}; say which one, counting from 0"
        )
    return int(part)


def _value(text: str) -> Any:
    try:
        table = tomllib.loads(f"v = {text}")
    except (ValueError, RecursionError):
        return text.strip()
    return table["v"] if len(table) == 1 else text


def parse(raw: Mapping[str, Any], where: str = "", *, allow_code: bool = False) -> Experiment:
    """The experiment in a table of settings; `allow_code` as in `load`.

    Raises:
        ConfigError: If a key is unknown, a value is out of range, or settings contradict each other.
    """
    if "sweep" in raw:
        raise ConfigError(f"a [sweep] table makes many experiments; run them with: unskew run {where or 'FILE'}")
    token = schema.ELSEWHERE.set(ELSEWHERE)
    try:
        with schema.in_file(where):
            return _parsed(methods_as_tables(raw), allow_code)
    finally:
        schema.ELSEWHERE.reset(token)


def _parsed(table: dict[str, Any], allow_code: bool) -> Experiment:
    if not allow_code:  # before anything is imported
        for permit, name, place in _named(table):
            permit(name, place)
    known = (*(k for k in schema.parameters(Experiment) if k != "until"), "local", "bounds")
    for key in table:
        if key not in known:
            raise schema.unknown(key, known, "", "an experiment")
    local = table.pop("local", {})
    schema.build(SgdConfig, local, "local")
    bounds = table.pop("bounds", False)
    if not isinstance(bounds, bool):
        raise ConfigError(f"bounds must be true or false, got {schema.show(bounds)}")
    entries = table.pop("methods", [])
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"methods must be a list of at least one name or table, got {schema.show(entries)}")
    methods = [_method(entry, local, f"methods.{i}") for i, entry in enumerate(entries)]
    for i, made in enumerate(methods):
        _check_prior(made, f"methods.{i}.prior", allow_code)
    if bounds:
        methods = with_bounds(methods, local)
    split: Split | None = SPLITS.build(table.pop("split"), "split") if "split" in table else None
    if "unseen" in table and not isinstance(table["unseen"], Mapping):
        table["unseen"] = {"clients": table["unseen"]}
    task = table.get("task")
    if isinstance(task, Mapping) and isinstance(task.get("preprocess"), bool):
        table["task"] = {**task, "preprocess": {} if task["preprocess"] else None}
    until = until_of(table.pop("seeds")) if isinstance(table.get("seeds"), Mapping) else None
    skip = ("methods", "split", "until")
    kwargs = schema.checked(Experiment, table, "", skip=skip)
    with schema.errors_at(""):
        return Experiment(methods=tuple(methods), split=split, until=until, **kwargs)


def until_of(raw: Mapping[str, Any]) -> UntilDecided:
    """The rule given instead of seeds, from its table.

    Raises:
        ConfigError: If a setting is unknown, missing or not allowed.
    """
    rule: UntilDecided = schema.build(UntilDecided, raw, "seeds", owner="seeds")
    return rule


def own_modules(experiment: "Experiment") -> tuple[str, ...]:
    """Modules that an experiment names but neither unskew nor an installed package registers, in its order."""
    modules: dict[str, None] = {}
    for permit, name, place in _named(resolved(experiment)):
        try:
            permit(name, place)
        except ConfigError:
            modules[name.partition(":")[0]] = None
    return tuple(modules)


_CODE: dict[str, Registry] = {
    "methods": algorithms.METHODS,
    "with": algorithms.WRAPPERS,
    "prior": PRIORS,
    "track": TRACKERS,
    "evaluate": METRICS,
    "model": models.MODELS,
    "kind": tasks.KINDS,
    "loss": LOSSES,
    "augment": AUGMENTS,
    "data": DATA,
    "executor": EXECUTORS,
    "split": SPLITS,
    "channel": CHANNELS,
    "attack": ATTACKS,
    "pace": PACES,
}
"""Settings, in whatever table, that name a piece by which code can be imported; another table's `name` is a rule's."""


def _named(value: Any, *path: str) -> Iterator[tuple[Callable[[str, str], None], str, str]]:
    """Each piece that a table names: the `permit` of its registry, its name and its dotted path."""
    if isinstance(value, Mapping | list):
        for key, held in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _named(held, *path, str(key))
    elif isinstance(value, str):
        *above, key = [part for part in path if not part.isdecimal()]
        registry = _CODE.get(key) if key != "name" else _CODE.get(above[-1], RULES) if above else None
        pieces = value.split("+") if registry is algorithms.METHODS else [value]
        for one, piece in zip([registry, *[algorithms.WRAPPERS] * len(pieces)], pieces, strict=False):
            if one is not None:
                yield one.permit, piece, ".".join(path)


def _check_prior(method: NamedMethod, place: str, allow_code: bool) -> None:
    """Refuse code that is no prior; whatever the method's setting is called, it needs the permission of other code."""
    prior = hook(method.method, "prior")
    if isinstance(prior, str):
        if not allow_code:
            PRIORS.permit(prior, place)
        with schema.errors_at(place):
            priors.check(prior)


TABLES: dict[str, type] = {
    "task": TaskConfig,
    "split": Dirichlet,
    "local": SgdConfig,
    "stop": Stop,
    "keep_models": KeepModels,
    "runtime": Runtime,
}
"""The tables of an experiment whose settings are looked for where somebody writes one in the wrong place."""
ABOVE = "is a setting of the experiment: write it above the first [table] of the file"  # TOML takes it for the table's
PATHS = {f.name: f"{table}.{f.name}" for table, kind in TABLES.items() for f in dataclasses.fields(kind)}
PATHS |= {name: name for name in (*schema.parameters(Experiment), "bounds")}
ELSEWHERE = {name: f"did you mean {path}?" if "." in path else f"{name} {ABOVE}" for name, path in PATHS.items()}


def setting_named(word: str) -> str | None:
    """The dotted path of the setting that a word names, here or in another tool; None if there is none.

    >>> setting_named("epochs"), setting_named("rounds"), setting_named("verbose")
    ('local.local_epochs', 'rounds', None)
    """
    return PATHS.get(word) or PATHS.get(schema.ALIASES.get(word, ""))


def _method(entry: Any, local: Mapping[str, Any], place: str) -> NamedMethod:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise ConfigError(f"{place} must be a name or a table with one, got {schema.show(entry)}")
    name, options = _with_wrappers(entry, place)
    label = checked_label(entry.get("label", name), f"{place}.label")
    with schema.errors_at(f"{place}.name"):
        options = with_local(name, options, local)
    return method(name, options, label, place)


def _with_wrappers(entry: Mapping[str, Any], place: str) -> tuple[str, dict[str, Any]]:
    """Name and options of an entry; each wrapper of `with = ["dw", { name = "top_k", share = 0.1 }]` is NAME+WRAPPER.

    Raises:
        ConfigError: If `with` is no list of names and tables with a name, or a wrapper occurs twice.
    """
    name = entry["name"]
    options = {k: v for k, v in entry.items() if k not in ("name", "label", "with")}
    wrappers = entry.get("with", [])
    if not isinstance(wrappers, list):
        raise ConfigError(f"{place}.with must be a list of wrappers, as in ['dw'], got {schema.show(wrappers)}")
    for i, by in enumerate(wrappers):
        table = {"name": by} if isinstance(by, str) else by
        word = table.get("name") if isinstance(table, Mapping) else None
        if not isinstance(word, str):
            raise ConfigError(
                f"{place}.with.{i} must be the name of a wrapper or a table with one, got {schema.show(by)}"
            )
        option = word.rpartition(":")[2]
        if option in options:
            raise ConfigError(f"{place}.with.{i}: {option} is there already; leave one out")
        settings = {k: v for k, v in table.items() if k != "name"}
        options |= {option: settings} if settings else {}
        name += f"+{word}"
    return name, options


def with_local(name: str, options: Mapping[str, Any], local: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `[local]` into the method's own `local`, which wins; its steps override epochs."""
    own = options.get("local", {})
    if not local or not isinstance(own, Mapping) or "local" not in schema.parameters(algorithms.resolve(name)):
        return dict(options)
    work = {"local_epochs", "local_steps"}
    common = {k: v for k, v in local.items() if k not in work or not work & own.keys()}
    return {**options, "local": {**common, **own}}


def with_bounds(methods: Sequence[NamedMethod], local: Mapping[str, Any]) -> list[NamedMethod]:
    """Add the reference runs: local training, FedAvg and training on pooled data."""
    have = {m.name for m in methods if m.name != "fedavg" or m.is_fedavg}
    more = [method(name, with_local(name, {}, local)) for name in BOUNDS if name not in have]
    return [*methods, *more]


# ---------------------------------------------------------------- writing
def resolved(experiment: Experiment) -> dict[str, Any]:
    """The experiment as a dictionary, with all defaults; `parse` reads it back to an equal experiment."""
    table: dict[str, Any] = {
        f.name: plain(getattr(experiment, f.name))
        for f in dataclasses.fields(experiment)
        if f.name not in ("methods", "split") and getattr(experiment, f.name) is not None
    }
    if experiment.until is not None:
        table["seeds"] = table.pop("until")
    if experiment.split is not None:
        table["split"] = {k: v for k, v in record(experiment.split).items() if v is not None}
    methods: list[dict[str, Any]] = [{"name": m.name, "label": m.label, **m.options} for m in experiment.methods]
    return {**table, "methods": methods}


def to_toml(experiment: Experiment) -> str:
    """The resolved experiment as TOML."""
    return tomli_w.dumps(resolved(experiment))


def fingerprint(experiment: Experiment | Path, portable: bool = False) -> str:
    """SHA-256 of the resolved experiment, without its name and the settings that do not change the numbers.

    Args:
        experiment: The experiment, or the file that `to_toml` wrote; nothing that it names is imported.
        portable: Also leave out the path in `task.data`, which differs between machines: for use where the data
            themselves are compared, or are known to differ.

    Raises:
        ConfigError: If the file is missing or is not TOML.
    """
    table = read_toml(experiment) if isinstance(experiment, Path) else resolved(experiment)
    ignored = {
        "": ("name", "track", "track_options", "keep_models"),
        "runtime": ("checkpoint_every", "codec"),
        "task": ("data_dir",),
    }
    kept = {key: _without(value, ignored.get(key, ())) for key, value in _without(table, ignored[""]).items()}
    task = kept.get("task")
    if portable and isinstance(task, Mapping) and (kind := str(task.get("data")).partition(":")[0]) in FILES:
        kept["task"] = {**task, "data": f"{kind}:"}
    return hashlib.sha256(tomli_w.dumps(kept).encode()).hexdigest()


def _without(table: Any, keys: Sequence[str]) -> Any:
    return {k: v for k, v in table.items() if k not in keys} if isinstance(table, Mapping) else table
