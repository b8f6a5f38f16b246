"""Builds the task, the clients and the executor from their names."""

import dataclasses
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from unskew import models, references, schema, tasks, version
from unskew.data.batches import Augment, Transform, augmentation
from unskew.data.build import beside
from unskew.data.dataset import Dataset, binned, forms
from unskew.data.federated import ClientIndex, ClientIndices, FederatedData, federate, named_in, pooled
from unskew.data.rows import Rows
from unskew.data.sources import is_data, load, table
from unskew.data.table import UNKNOWN, DataTable
from unskew.data.tables import ENDINGS
from unskew.errors import ConfigError, DataError, ProtocolError
from unskew.experiment.config import Experiment, NamedMethod, Runtime, TaskConfig, World, resolved
from unskew.keys import Key
from unskew.local import imagery
from unskew.local.data import DeviceData, steps_of_job
from unskew.local.executor import AUTO, EXECUTORS, CellParts, ExecutorKind, PoolParts, by_rule
from unskew.local.trainer import NO_PUBLIC, LocalTrainer, kernels
from unskew.local.workers.pool import JobPool
from unskew.local.workers.worker import WorkerSetup
from unskew.local.workspace import FeatureNetwork
from unskew.machine import cores, processor
from unskew.models.network import copied
from unskew.protocol import NO_FEATURES, SgdConfig, hook
from unskew.run import attack
from unskew.run.unseen import served_to
from unskew.runtime.in_process import Population, Simulator
from unskew.runtime.round import Driver
from unskew.tasks.kind import Loss, Scale, needs_of
from unskew.tasks.measure import Measure
from unskew.tasks.task import Task, check_network, make_task, parameter_count
from unskew.tree import Params, form_of, is_record
from unskew.wrappers.malicious import with_attack

THREADS_FROM = 5_000_000
OWN_DATA = "own data"
"""Name of the division where clients keep their examples to themselves."""


@dataclass(frozen=True, eq=False)
class InMemoryInputs:
    """Data and model given as values; the experiment's text can only name them.

    Attributes:
        dataset: The examples; None if `task.data` says where they are.
        networks: Networks, or callables that make them (as `models.build` calls them): one, or one for each entry of
            `task.models`.  None is named by the task.
        files: Functions that write a copy into the run's folder, by file name.
        loss: Loss of each example from (outputs, targets); None if `task.loss` names it.
        transform: Change of one training example's input; None if `task.augment` names it.
        public: Public rows that no client has; None if `public` names them.
        metrics: Metrics by the name that `evaluate` has for them; others are named.
        from_python: True if the run is called from Python, so that messages show Python calls.
        kept: False if the run's folder is removed on failure, so that the run cannot be resumed.
    """

    dataset: Dataset | None = None
    networks: tuple[nn.Module | Callable[..., nn.Module] | None, ...] = (None,)
    files: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)
    loss: Loss | None = None
    transform: Transform | None = None
    public: DataTable | None = None
    metrics: Mapping[str, Measure] = field(default_factory=dict)
    from_python: bool = False
    kept: bool = True

    def of(self, at: int) -> "InMemoryInputs":
        """The same with the network of one entry of `task.models`."""
        return dataclasses.replace(self, networks=self.networks[at : at + 1] or (None,))


@dataclass(frozen=True, eq=False)
class Setup:
    """The parts of a run that all its methods and seeds share.

    Attributes:
        dataset: The examples, on the CPU.
        tasks: Network and loss; where clients have several networks, for each entry of `task.models`.
        device: Device that trains and evaluates.
        executor: Name of the executor.
        parameters: Numbers in the network's parameters, frozen ones included.
        executor_kind: Builds the executor, with its settings.
        inputs: Data and model given as values.
        augment: Change of training batches; None for none.
    """

    dataset: Dataset
    tasks: tuple[Task, ...]
    device: torch.device
    executor: str
    parameters: int
    executor_kind: ExecutorKind
    inputs: InMemoryInputs = InMemoryInputs()
    augment: Augment | None = None

    @property
    def task(self) -> Task:
        """The server's network, and the loss."""
        return self.tasks[0]


@dataclass(eq=False)
class PreparedRun:
    """What the cells of a run share.

    Attributes:
        experiment, setup: The experiment, and its parts.
        feds: The division of the data, by seed.
        pool: Its worker processes.
    """

    experiment: Experiment
    setup: Setup
    feds: dict[int, FederatedData]
    pool: JobPool | None = field(default=None, kw_only=True)


def prepare(experiment: Experiment, inputs: InMemoryInputs = InMemoryInputs(), one_client: bool = False) -> Setup:
    """Read the data, build the network once, choose device and executor.

    Data or a model given as a value replace those of the experiment.  With `one_client` the data are those of a single
    client, which may lack classes that others have.

    Raises:
        DataError, ConfigError: If data, network or device are not available.
    """
    device = choose_device(experiment.runtime.device)
    threads = experiment.runtime.threads or cores()
    # Not more than there were: a process that forks later must not have begun others.
    torch.set_num_threads(experiment.runtime.threads or min(torch.get_num_threads(), threads))
    dataset = with_bins(experiment.task, inputs.dataset or named_dataset(experiment.task), one_client)
    if inputs.dataset is None and dataset.own_test is not None and experiment.test_fraction != Experiment.test_fraction:
        ignored = f"test_fraction = {experiment.test_fraction:g} would be ignored"
        raise ConfigError(
            f"{ignored}: {dataset.name} has clients' own test rows; leave it out, or set task.data_options.test"
        )
    for column in experiment.by:
        dataset.column(column)
    augment = augmentation(experiment.task.augment if inputs.transform is None else inputs.transform)
    if augment is not None:
        augment(dataset.x_train[:2], Key(0).generator())  # refuses what it cannot change, before any work
    for method in experiment.methods:
        if hook(method.method, "covers_examples") and (scaled := _scaled_by_own(dataset, experiment.task, one_client)):
            way = "give numbers that were agreed on"
            raise ConfigError(f"the noise of {method.label} covers single examples, and {scaled}; {way}")
        told = ":" in experiment.task.data and dataset.classes and dataset.groups is None and not dataset.ordered
        if (
            one_client
            and told
            and hook(method.method, "covers_replies")
            and "classes" not in experiment.task.data_options
        ):
            way = "name all in task.data_options.classes"
            raise ConfigError(f"the noise of {method.label} does not cover which classes a client has; {way}")
    kinds, every = range(max(1, len(experiment.task.models))), list[Task]()
    for i in kinds:
        dataset, task = _fitting(experiment.task.of(i), dataset, inputs.of(i), experiment.metrics)
        _check_ids(task, dataset)
        every.append(task)
    count = max(map(parameter_count, every))
    torch.set_num_threads(threads if experiment.runtime.threads or count >= THREADS_FROM else 1)
    if experiment.runtime.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    share = len(dataset.y_train) / (getattr(experiment.split, "num_clients", None) or len(dataset.client_names) or 10)
    executor, kind = choose_executor(experiment.runtime, device, count, share)
    if inputs.public is None and is_data(str(experiment.public)):
        inputs = dataclasses.replace(inputs, public=named_public(experiment))
    return Setup(dataset, tuple(every), device, executor, count, kind, inputs, augment)


def _fitting(
    config: TaskConfig, dataset: Dataset, inputs: InMemoryInputs, metrics: Sequence[str]
) -> tuple[Dataset, Task]:
    """The data in the first form that the network takes, and the task; if it takes none, the first is refused."""
    refused: list[ConfigError] = []
    for form in forms(dataset):
        try:
            task = make_named_task(config, form, inputs, metrics)
            check_network(task, form.x_train[:2], form.y_train[:2])
        except ConfigError as error:
            refused.append(error)
        else:
            return form, task
    raise refused[0]


def _check_ids(task: Task, dataset: Dataset) -> None:
    """Refuse a token id for which the network has no vector: one rare example may have it, amid a run."""
    for x, y in ((dataset.x_train, dataset.y_train), (dataset.x_test, dataset.y_test)):
        for ids in (t.flatten(1) for t in pytree.tree_leaves(x) if isinstance(t, torch.Tensor) and t.dim() > 1):
            if ids.dtype == torch.int64 and ids.numel():
                least, most = int(ids.amin(1).argmin()), int(ids.amax(1).argmax())
                try:
                    check_network(task, x[[least, most]], y[[least, most]])
                except ConfigError as error:
                    odd, name = int(ids.min() if ids.min() < 0 else ids.max()), type(task.module()).__name__
                    raise ConfigError(f"{name} cannot take token id {odd}; correct it, or give it a vector") from error


def _scaled_by_own(dataset: Dataset, task: TaskConfig, one_client: bool) -> str:
    """Say which of a client's inputs are scaled or filled by numbers of its own examples; empty if none are."""
    if one_client and dataset.inputs.kind == "images" and "mean" not in task.data_options:
        way = "name task.data_options.mean and std, as in [0.5] and [0.25]"
        return f"a client's byte images are standardised by their own mean and deviation ({way})"
    if dataset.raw is None:
        return ""
    for name, values in dataset.raw.columns.items():
        scale, missing = dataset.raw.rules.of(name)
        if values.dtype.kind == "f" and (scale == "site" or (missing.startswith("site") and np.isnan(values).any())):
            return f"preprocess scales or fills column {name!r} by each site's own numbers"
    return ""


def named_dataset(task: TaskConfig) -> Dataset:
    """Read the data that a task names, with targets of the form that its kind learns.

    Raises:
        DataError, ConfigError: As `unskew.data.load`.
    """
    folder = Path(task.data_dir) if task.data_dir else None
    return load(task.data, folder, task.data_options or None, task.preprocess, tasks.kind_of(task.kind).targets)


def named_public(experiment: Experiment) -> DataTable:
    """Read the public rows that an experiment names.

    Raises:
        DataError, ConfigError: If they cannot be read, or were given as values.
    """
    config, source = experiment.task, str(experiment.public)
    target = config.data_options.get("target") if source.partition(":")[0] in ENDINGS else None
    options = {} if target is None else {"target": target}
    rows = table(source, Path(config.data_dir) if config.data_dir else None, options, UNKNOWN)
    if rows is None:
        raise ConfigError("this run's public data were given as values; give them again: resume(FOLDER, public=...)")
    return rows


def with_bins(config: TaskConfig, dataset: Dataset, one_client: bool = False) -> Dataset:
    """The data set, with its examples in the bins that the configuration asks for.

    Raises:
        ConfigError: If its targets are not what the kind of task learns.
        DataError: If they cannot be divided into such bins.
    """
    kind = tasks.kind_of(config.kind)
    if dataset.targets.name != kind.targets.name:
        its = f"the targets of {dataset.name} are {dataset.targets.what}"
        raise ConfigError(f"task.kind = {kind.name!r} learns {kind.targets.what}, and {its}")
    loss = config.loss or next(iter(kind.losses))
    skipped = one_client and kind.needs_all_clients
    names = dataset.outputs
    if kind.ordered and (dataset.ordered or "classes" in config.data_options):
        names = tuple(map(str, range(len(names))))
    wrong = "" if skipped else kind.check(dataset.y_train.clone().numpy(), names, loss)
    if wrong and one_client and kind.targets.classes and "classes" not in config.data_options:
        wrong = f"{wrong.partition(';')[0]}; a client may lack a class: name all in task.data_options.classes"
    if wrong:
        raise ConfigError(f"task.kind = {kind.name!r} {wrong} ({dataset.name})")
    weights = config.class_weights
    if isinstance(weights, tuple) and len(weights) != len(dataset.outputs):
        classes = f"{len(dataset.outputs)} classes ({', '.join(dataset.outputs[:5])})"
        raise ConfigError(f"task.class_weights must have a weight for each of {classes}, got {len(weights)}")
    if config.bins is None:
        return dataset
    if one_client and isinstance(config.bins, int):
        raise ConfigError(f"task.bins must list the edges, as sites have no common quantiles, got {config.bins}")
    return binned(dataset, config.bins, allow_empty=one_client)


def class_weights(
    config: TaskConfig, dataset: Dataset, train: FederatedData, unseen: FederatedData | None
) -> torch.Tensor | None:
    """Weight of each training example in the loss, (N,); None if all weigh the same.

    With "balanced" a client's examples of class c weigh n / (k n_c), for n training examples in k classes.  It uses
    only the client's labels, so no count leaves it.

    Args:
        config: Says how classes weigh.
        dataset: All examples.
        train: The clients that train, or the one that holds all their examples.
        unseen: Clients that come later and adapt on their own examples.
    """
    if config.class_weights is None:
        return None
    labels = dataset.labels
    if config.class_weights != "balanced":
        return torch.tensor(config.class_weights)[labels]
    weights = torch.ones(len(labels))
    for fed in (train, unseen) if unseen is not None else (train,):
        for own, rows in zip(torch.from_numpy(fed.label_counts), fed.clients.train, strict=True):
            weights[rows] = (own.sum() / (own.count_nonzero() * own.clamp(min=1))).float()[labels[rows]]
    return weights


def choose_executor(
    runtime: Runtime, device: torch.device, parameters: int, examples_per_client: float
) -> tuple[str, ExecutorKind]:
    """Name of the executor that the runtime names or the rule chooses, and its kind with the runtime's options.

    Raises:
        ConfigError: If there is none of that name, it cannot use the device, or an option is not one of its own.
    """
    wanted = runtime.executor
    name = by_rule(device.type, cores(), parameters, examples_per_client) if wanted == AUTO else wanted
    kind: ExecutorKind = EXECUTORS.resolve(name)
    if kind.cpu_only and device.type != "cpu":
        raise ConfigError(f"runtime.executor = {name!r} needs the CPU, got {device}; leave it at auto")
    place = "runtime.executor_options"
    configured = kind.start or kind.make
    options = schema.checked(configured, runtime.executor_options, place, skip=("parts",), owner=name)
    changed: dict[str, Any] = {"start" if kind.start else "make": partial(configured, **options)}
    return name, dataclasses.replace(kind, **changed)


def choose_device(name: str) -> torch.device:
    """The device of that name; auto prefers CUDA.

    Raises:
        ConfigError: If PyTorch does not know the device or cannot use it.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"runtime.device must be auto, cpu or cuda[:n], got {name!r}") from None
    if device.type == "cuda" and not (torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()):
        raise ConfigError(
            f"runtime.device {name} is not there: PyTorch sees {torch.cuda.device_count()} CUDA devices; use cpu"
        )
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"runtime.device must be auto, cpu or cuda[:n], got {name!r}")
    return device


def network(
    config: TaskConfig, input_shape: tuple[int, ...], num_classes: int, inputs: InMemoryInputs = InMemoryInputs()
) -> nn.Module:
    """A network for such examples: a copy of the given module, or made by the given or named factory."""
    given = inputs.networks[0]
    if isinstance(given, nn.Module):
        return copied(given)
    return models.build(given or config.model, input_shape, num_classes, **config.model_options)


def make_named_task(
    config: TaskConfig, dataset: Dataset, inputs: InMemoryInputs = InMemoryInputs(), asked: Sequence[str] = ()
) -> Task:
    """Network and loss that a configuration names, in the data's shape; a network given as a value comes first.

    `asked` are metrics to report beside the headline and the loss.
    """
    kind = tasks.kind_of(config.kind).led_by(config.headline)
    outputs = len(dataset.outputs)
    x, few = dataset.x_train, torch.arange(4) % max(len(dataset.x_train), 1)  # BatchNorm takes no single example
    task = make_task(
        partial(network, config, dataset.input_shape, kind.width(outputs), inputs),
        dataset.num_classes,
        loss=inputs.loss or models.loss_of(config.model, config.loss, kind),
        examples=x[few] if len(x) else torch.zeros(4, *dataset.input_shape).to(x.dtype),
        head=config.head or ("head" if config.model in models.TABLE else None),
        kind=kind,
        asked=[inputs.metrics.get(name, name) for name in asked],
        outputs=outputs,
        target_scale=None if isinstance(config.target_scale, bool) else config.target_scale,
        output=config.output,
    )
    return dataclasses.replace(task, measures=tuple(measure.of_classes(dataset.outputs) for measure in task.measures))


def divide(experiment: Experiment, dataset: Dataset, seed: int) -> FederatedData:
    """Divide the examples among the clients under this seed.

    Raises:
        DataError, ConfigError: If the data cannot be divided as asked, or no client has the validation data needed.
    """
    key = Key(seed) / "data"
    shares = experiment.test_fraction, experiment.val_fraction
    public = "" if isinstance(experiment.public, str) and is_data(experiment.public) else experiment.public
    fed = federate(dataset, experiment.split, key, *shares, experiment.unseen.clients, public)
    choice = experiment.by_validation
    if choice is not None and not fed.clients.val.sizes.any():
        raise DataError(
            f"{choice} needs validation data, and no client has any; raise val_fraction or the clients' sizes"
        )
    experiment.cohort(fed.num_clients)
    return fed


def target_scale(config: TaskConfig, setup: Setup, fed: FederatedData) -> Scale | None:
    """Shift and scale of the targets in the loss: as configured, or from the training rows; None for none.

    Clients with data of their own must agree on the numbers.
    """
    if not isinstance(config.target_scale, bool):
        return config.target_scale
    rows, kind = fed.clients.train.values, setup.task.kind
    own_loss = setup.inputs.loss is not None or config.loss not in (None, *kind.losses)  # sees targets as they are
    if kind.scale is None or own_loss or not config.target_scale or fed.split["name"] == OWN_DATA or not len(rows):
        return None
    return kind.scale(fed.dataset.y_train[rows], config.loss or next(iter(kind.losses)))


def clients(run: PreparedRun, method: NamedMethod, seed: int) -> tuple[LocalTrainer, Population, FederatedData]:
    """Objects that answer the clients' requests, the clients' metadata, and the clients a method trains.

    With pooled data one client holds everything.
    """
    experiment, setup, fed = run.experiment, run.setup, run.feds[seed]
    train = pooled(fed) if hook(method.method, "pooled") else fed
    device, dataset = setup.device, fed.dataset
    weights = class_weights(experiment.task, dataset, train, fed.unseen)
    x, y = (dataset.x_train, dataset.y_train) if train is not fed else attack.poisoned(experiment.world.attack, fed)
    # Whoever trains on wrong labels counts them, too: its means by class are over examples that it takes for the class.
    counts = train.label_counts if y is dataset.y_train else fed.counted(y)
    device_data = DeviceData(
        x.to(device),
        y.to(device),
        train.clients.train.to(device),
        train.clients.val.to(device),
        setup.augment,
        dataset.x_test.to(device),
        dataset.y_test.to(device),
        None if dataset.domains is None else dataset.domains.to(device),
        dataset.inputs.levels,
        None if weights is None else weights.to(device),
        _public(setup, fed),
    )
    scale = target_scale(experiment.task, setup, fed)
    every = setup.tasks
    if scale is not None and scale != experiment.task.target_scale:
        every = tuple(task.scaled(scale) for task in every)
    whose = named_in(train, [of.clients for of in experiment.task.models], "task.models")
    own = [LocalTrainer(task, device_data, device) for task in every[1:]]
    others = {c: own[i - 1] for c, i in whose.items() if i}
    trainer = LocalTrainer(every[0], device_data, device, others=others)
    starts = [{n: t.to(device) for n, t in task.init(Key(seed) / "init").items()} for task in every]
    population = Population(
        torch.from_numpy(counts),
        setup.task.layout,
        starts[0],
        lambda key: {n: t.to(device) for n, t in _drawn(setup, key).items()},
        trainer,
        {c: (every[i].layout, starts[i]) for c, i in whose.items() if i},
    )
    return trainer, population, train


def _public(setup: Setup, fed: FederatedData) -> tuple[Rows, torch.Tensor | None] | None:
    """Inputs and labels of public rows, on the device: those set aside, or a data set of the server's own."""
    data, rows, given = fed.dataset, fed.public, setup.inputs.public
    if rows is None and given is None:
        return None
    x, y = beside(given, data) if given is not None else (data.x_train[rows], data.y_train[rows])
    return x.to(setup.device), None if y is None else y.to(setup.device)


def _check_networks(method: NamedMethod, setup: Setup) -> None:
    """Refuse clients' own networks where the method averages what they do not have alike."""
    common = hook(method.method, "common")
    parts = [common and common(task.init(Key(0)), task.layout) for task in setup.tasks]
    if len(parts) > 1 and parts[0] is None:
        raise ConfigError("it averages whole networks; give all clients one, or take fedproto, fedmd or lgfedavg")
    forms = [{name: form_of(t) for name, t in (part or {}).items()} for part in parts]
    for name in {name: None for form in forms for name in form}:
        if len(several := {form.get(name, "none") for form in forms}) > 1:
            raise ConfigError(f"clients' networks must have the same {name}, got {' and '.join(sorted(several))}")


def played(experiment: Experiment, method: NamedMethod, seed: int, num_clients: int, simulated: bool = True) -> Any:
    """The method under a seed, with malicious clients among its clients if the world has an attack.

    Raises:
        ConfigError: If a deployment cannot have the attack or the pace.
    """
    if not simulated and experiment.world.pace is not None:
        raise ConfigError("world.pace is for simulations; leave it out")
    if hook(method.method, "pooled"):
        return method.method
    return with_attack(method.method, experiment.world.attack, num_clients, Key(seed), simulated)


def _drawn(setup: Setup, key: Key) -> Params:
    """A model drawn under this key, apart from the one that every client starts from."""
    if isinstance(setup.inputs.networks[0], nn.Module):
        raise ConfigError("this method needs several initial models: give the model as a function that makes it")
    return setup.task.init(key)


def simulator(
    run: PreparedRun, method: NamedMethod, seed: int, workers: tuple[JobPool, int] | None = None
) -> tuple[Simulator[Any], FederatedData]:
    """The simulator of one method and seed, and the clients it trains; `workers` is a pool and the cell's number."""
    experiment, (trainer, population, train) = run.experiment, clients(run, method, seed)
    playing = played(experiment, method, seed, run.feds[seed].num_clients)
    alone = hook(method.method, "pooled")
    world = World() if alone else experiment.world  # no messages, and no clients that they could be late from
    sim = Simulator(
        playing,
        population,
        run.setup.executor_kind.make(CellParts(trainer, playing, *(workers or ()))),
        seed=seed,
        clients_per_round=1 if alone else experiment.cohort(train.num_clients),
        outage=world.outage,
        channel=world.channel,
        pace=world.pace,
        codec=experiment.runtime.codec,
    )
    return sim, train


# ---------------------------------------------------------------- where the clients are
class Backend:
    """The place where clients run; the base class is this process and its workers.

    Attributes:
        remote: True if clients have data of their own, elsewhere.
    """

    remote: ClassVar[bool] = False

    def __init__(self, inputs: InMemoryInputs = InMemoryInputs()) -> None:
        self.inputs = inputs

    def prepare(self, experiment: Experiment) -> Setup:
        """Prepare the parts that all methods and seeds share."""
        return prepare(experiment, self.inputs)

    def divide(self, experiment: Experiment, setup: Setup, seed: int) -> FederatedData:
        """Divide the data; clients that keep their examples to themselves have none in the result."""
        return divide(experiment, setup.dataset, seed)

    def check_method(self, run: PreparedRun, method: NamedMethod) -> None:
        """Raise the errors that the first round would raise."""
        check_method(run, method)

    def runtime(self, run: PreparedRun, cell: int) -> tuple[Driver[Any], FederatedData]:
        """The runtime of a cell, by its number, and the clients the method trains."""
        seed, method = cells(run.experiment)[cell]
        return simulator(run, method, seed, (run.pool, cell) if run.pool else None)


IN_PROCESS = Backend()


def prepared(experiment: Experiment, backend: Backend) -> PreparedRun:
    """Prepare a run, divide the examples among the clients, by seed, and check every method on them.

    Raises:
        ConfigError, DataError: If the experiment is impossible.
    """
    setup = backend.prepare(experiment)
    run = PreparedRun(experiment, setup, {seed: backend.divide(experiment, setup, seed) for seed in experiment.seeds})
    for method in experiment.methods:
        backend.check_method(run, method)
    return run


# ---------------------------------------------------------------- workers
def cells(experiment: Experiment) -> list[tuple[int, NamedMethod]]:
    """Seed and method of each cell of a run, in the run's order."""
    return [(seed, method) for seed in experiment.seeds for method in experiment.methods]


class Opener(PreparedRun):
    """Opens a cell of a run in a worker; called with the cell's number."""

    def __call__(self, index: int) -> WorkerSetup:
        """Build the method, the data on their device, and the clients' metadata."""
        seed, method = cells(self.experiment)[index]
        trainer, population, _ = clients(self, method, seed)
        clients_of_all = self.feds[seed].num_clients
        return WorkerSetup(played(self.experiment, method, seed, clients_of_all), trainer, population.me)

    def on(self, device: torch.device) -> "Opener":
        """The same on another device."""
        return dataclasses.replace(self, setup=dataclasses.replace(self.setup, device=device))


def pool(run: PreparedRun, note: Callable[[str], None]) -> JobPool | None:
    """The run's worker processes, if its executor has any; call it before any thread starts."""
    start, opener = run.setup.executor_kind.start, Opener(run.experiment, run.setup, run.feds)
    if start is None:
        return None
    model_bytes = sum(t.numel() * t.element_size() for t in run.setup.task.init(Key(0)).values())
    processes: JobPool = start(PoolParts(opener, run.experiment.runtime.workers, model_bytes, note))
    return processes


def check_method(run: PreparedRun, method: NamedMethod) -> None:
    """Raise the errors that the first round would raise; with remote examples those that do not depend on them.

    Raises:
        ConfigError, DataError, ProtocolError: As in a run, naming the method.
    """
    setup = run.setup
    try:
        check_prior(method, setup)
        _check_networks(method, setup)
        known = any(fed.split["name"] != OWN_DATA for fed in run.feds.values())
        if known:
            _check_inputs(method, setup)
        if hook(method.method, "needs_public") and not run.experiment.public:
            raise ConfigError(f"it needs public data; {NO_PUBLIC.partition('; ')[2]}")
        for i, (seed, fed) in enumerate(run.feds.items()):
            sim, train = simulator(run, method, seed)
            if known and (check_examples := hook(method.method, "check_examples")) is not None:
                check_examples(int(train.label_counts.sum(1).max()))
            if i == 0:
                state = sim.start()
                if fed.unseen is not None:
                    served_to(method.method, state, fed.num_clients)
            for local in (record for record in records(method.method) if isinstance(record, SgdConfig)):
                _check_local(local, setup)
                if known:
                    steps_of_job(local, int(train.label_counts.sum(1).min()), setup.task.min_batch)  # or refuses
    except (ConfigError, DataError, ProtocolError) as error:
        raise type(error)(f"{method.label}: {error}") from error


def _check_inputs(method: NamedMethod, setup: Setup) -> None:
    """Refuse data without the domains, or a network without the features, that a method uses."""
    setting = hook(method.method, "needs_domains")
    if setting and setup.dataset.domains is None:
        raise ConfigError(f"{setting} needs data with domains, and {setup.dataset.name} has none; leave it out")
    if "features" in needs_of(method.method):
        network = FeatureNetwork(setup.task.module().eval(), setup.task.head)
        with torch.no_grad(), Key(0).ambient():
            if not network(setup.dataset.x_train[:2])[0].numel():
                raise ConfigError(NO_FEATURES)


def check_prior(method: NamedMethod, setup: Setup) -> None:
    """Load the prior that a method uses, if any, and check that it fits the data.

    Raises:
        ConfigError, DataError: If there is no such prior, or the data are no images for it.
    """
    prior = hook(method.method, "prior")
    if isinstance(prior, str):
        data = setup.dataset
        imagery.of(prior, setup.device, data.input_shape, data.inputs.levels).check(data.x_train)


def with_own_data(dataset: Dataset, num_clients: int, seed: int, names: tuple[str, ...] = ()) -> FederatedData:
    """A division for remote clients, which has none of their examples."""
    nothing = torch.empty(0, dtype=torch.int64)
    clients = ClientIndices.of([ClientIndex(nothing, nothing, nothing)] * num_clients)
    return FederatedData(dataset, clients, {"name": OWN_DATA}, seed, names=names)


def _check_local(local: SgdConfig, setup: Setup) -> None:
    layout = setup.task.layout
    if not layout.select(local.trainable).intersection(layout.trainable):
        none = f"selects no parameter{FROZEN if layout.frozen else ''}"
        raise ConfigError(f"local.trainable = {list(local.trainable)} {none}; there would be nothing to train")
    if local.precision != "float32":
        check_network(setup.task, setup.dataset.x_train[:2], setup.dataset.y_train[:2], precision=local.precision)


FROZEN = " (what is frozen, with requires_grad=False, is in no group)"


def records(value: Any) -> Iterator[Any]:
    """A dataclass, and every dataclass in its fields, recursively."""
    if is_record(value):
        yield value
        for f in dataclasses.fields(value):
            yield from records(getattr(value, f.name))


CODE_OF = "code of "
"""Beginning of an environment's names that stand for modules of one's own."""


BUILD = "build"
"""Key of `environment` that tells builds of one version apart: resume notes another one and goes on."""


def environment(experiment: Experiment, setup: Setup) -> dict[str, str]:
    """Versions, device, executor and own code that the bits of a run depend on; `resume` compares them."""
    code = references.sources(resolved(experiment))
    return {
        **{f"{CODE_OF}{module}": sha256[:12] for module, sha256 in code.items()},
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "unskew": version.__version__,
        BUILD: version.build(),
        "platform": f"{sys.platform} {platform.machine()}",
        "cpu": processor(),
        "cores": str(cores()),
        "threads": str(torch.get_num_threads()),
        "device": torch.cuda.get_device_name(setup.device) if setup.device.type == "cuda" else "cpu",
        "executor": _executor(experiment, setup),
        "kernels": kernels(setup.task, setup.device),
    }


def _executor(experiment: Experiment, setup: Setup) -> str:
    """The executor, and its settings that change the bits: Ray's actors on GPUs, or on machines of other kinds."""
    options = experiment.runtime.executor_options
    telling = [
        f"{key}={options[key]:g}" for key in ("num_gpus", "mixed") if setup.executor == "ray" and options.get(key)
    ]
    return f"{setup.executor} ({', '.join(telling)})" if telling else setup.executor


def differences(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Changes between two environments, as in `torch 2.12 -> 2.13`."""
    return [f"{k} {then.get(k)} -> {now[k]}" for k in now if then.get(k) != now[k]]
