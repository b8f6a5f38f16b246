"""The library's interface: an experiment in one call, and its history as rows, a table and figures.

history = simulate({"FedAvg": FedAvg(), "FedProx": FedProx(mu=0.1)}, data=(x, y), model=network, rounds=20)
print(history)                      # the table of results; a notebook shows it by itself, with a figure
history.to_frame()                  # every number of every round, a row each
"""

import dataclasses
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import torch
from torch import nn

from unskew import schema, tasks
from unskew.data import own
from unskew.data.archives import save
from unskew.data.batches import Transform
from unskew.data.dataset import Dataset
from unskew.data.inputs import FIRST_WORD
from unskew.data.latest import Latest
from unskew.data.patients import PatientIds
from unskew.data.preprocess import Preprocess, rules_of
from unskew.data.rows import Items
from unskew.data.sources import DATA, RunOptions
from unskew.data.split import IID, Dirichlet, Natural, Split
from unskew.data.tables import ENDINGS, kind_at, unreadable
from unskew.errors import ConfigError, DataError, RunError, noted, warn
from unskew.experiment import config, from_python
from unskew.experiment.config import Experiment, KeepModels, Runtime, Stop, TaskConfig, Unseen, UntilDecided, World
from unskew.files import user_path
from unskew.history import History, Scratch, load_run
from unskew.keys import in_turn
from unskew.models.network import copied
from unskew.protocol import SgdConfig
from unskew.references import IN_PYTHON
from unskew.run import documents, loop
from unskew.run.cell import Cell, Observer, Several
from unskew.run.failing import UNKEPT
from unskew.run.folder import taken
from unskew.run.progress import watching
from unskew.run.setup import Backend, InMemoryInputs, named_dataset, network
from unskew.signals import stop_requests
from unskew.tasks.kind import Loss, TaskKind, as_measure
from unskew.tasks.measure import Measure
from unskew.tasks.task import trained_type

DATA_FILE = "data.npz"
RUN_DATA = f"run:{DATA_FILE}"

Network = str | nn.Module | Callable[..., nn.Module]
"""A network by name, its module, or what makes it."""

P = ParamSpec("P")
R = TypeVar("R")


DESCRIBED = ("methods", "split", "until")
"""Settings of an experiment that are not read as a file's: they are made of arguments that take values as well."""


def _known_arguments_only(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse an argument that `function` does not have, saying where it belongs; Python's TypeError would not."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                raise _unknown_argument(name, known, function.__name__)
        return function(*args, **kwargs)

    return checked


@_known_arguments_only
def simulate(
    methods: object | Sequence[object] | Mapping[str, object],
    *,
    data: object = ...,
    model: "Network | Sequence[Network] | Mapping[str, Network] | None" = None,
    target: str | Sequence[str] | None = None,
    client: str | None = None,
    patient: str | None = None,
    patient_ids: PatientIds | None = None,
    test: object = None,
    preprocess: Preprocess | bool | None = None,
    split: Split | None = None,
    local: SgdConfig | None = None,
    rounds: int = 20,
    seeds: Iterable[int] | UntilDecided | Mapping[str, Any] = (0,),
    task: TaskConfig | str | None = None,
    loss: str | Loss | None = None,
    transform: Transform | None = None,
    bounds: bool = False,
    out: str | Path | None = None,
    progress: bool = True,
    track: Sequence[str] = (),
    track_options: Mapping[str, Mapping[str, Any]] | None = None,
    callback: Observer | Callable[[Cell], object] | None = None,
    fraction: float | None = None,
    clients_per_round: int | None = None,
    test_fraction: float = Experiment.test_fraction,
    val_fraction: float = 0.0,
    eval_every: int = 1,
    evaluate: Sequence[str | Measure | Callable[[Any, Any], float]] = ("global", "personal"),
    evaluate_clients: Literal["all"] | int = "all",
    by: str | Sequence[str] = (),
    unseen: float | Sequence[str] | Unseen = (),
    public: object = "",
    stop: Stop = Stop(),
    keep_models: KeepModels = KeepModels(),
    world: World = World(),
    runtime: Runtime = Runtime(),
) -> History:
    """Run methods on the same data, splits, cohorts and initial models.

    `global.*` is measured on the global test set, on which no client trains: `test`, else the test part of the data,
    else rows set aside first, always the same.  Those are `test_fraction` of each class, and where data come with their
    clients, of each client's classes (or events).  `personal.*` is measured on each client's own test part: the rows of
    `test` that name it, else `test_fraction` of its remaining rows.

    Images of whole numbers 0..255 are scaled to [0, 1] and standardised per channel by the training part.  Floats are
    not changed, nor are the columns of a table without `preprocess`.

    Networks, losses and metrics that cannot be imported must be given to `resume` again.  PyTorch's settings in this
    process, such as its number of threads, are restored on return.

    Args:
        methods: A method, several, or {label: method}; a string is a name from the table.  A run whose method holds
            functions or classes of your own cannot be resumed.
        data: One of these; by default what `task` names, else digits.

            * arrays or tensors (x, y), or (x, y, patients); x may be a list of texts, and labels may be words
            * a pandas or Polars DataFrame, or a Hugging Face dataset, with `target` and perhaps `client`
            * {client: any of these}
            * the path of a table, .csv or .parquet
            * a torch Dataset of (input, label) pairs
            * the result of `unskew.load`, or a name

            Inputs of several parts are a tuple, the network's positional arguments, or a dictionary, its keyword
            arguments.  With `out`, the run's folder keeps all rows given as values, in data.npz.
        model: A module, whose weights every method and seed starts from; or a name; or a function or class that makes
            one, called with (input_shape, num_classes) or nothing.  By default that of the task, of texts bag_of_words.
            Under methods that average no whole network clients may have several: {client: network}, or a list.
        target, client: Columns of a table: the labels, and the client that holds the row.  A target of several columns
            names them all, as in target=["days", "died"].
        patient: Column of a table with the patient of each row.  All rows of a patient are in one part: training,
            validation or test.  Shares are then of patients.
        patient_ids: Whose ids these are: the "network"'s, where an id is one person, or each "site"'s own.  Needed if
            an id occurs at several clients.
        test: The global test set, in any form of `data`.  Where it names its clients, its rows are their own test rows,
            too.  Of a table also the column of test rows, the share of each client's, or Latest("admitted",
            after="2024-06-30"), the latest; Latest takes times beside arrays, too.
        preprocess: How a table's columns are prepared: gaps filled, numbers scaled, words as 0/1 columns, all by
            training rows.  True is Preprocess().
        split: Division of the data among clients; by default that of the data, else Dirichlet(0.1) over 20 clients, or
            IID where targets are no classes.
        local: Local optimisation of methods given by name, or with their default one.
        rounds, eval_every: Communication rounds, and rounds between evaluations.
        seeds: The seeds to repeat the run with.  UntilDecided(until=0.5) adds seeds until every comparison with FedAvg
            is decided, or its interval narrower than half a point.
        task: What is learned, such as "regression", or settings of data and model, as in
            TaskConfig(class_weights="balanced").  It must not contradict other arguments.
        loss: A loss of that kind of task by name, or a function from (outputs, targets) to the loss of each example.
        transform: A function from an example's input, as the network takes it, to another of its shape.  It is applied
            to training examples in each epoch, and may draw from global generators.
        bounds: Add training alone, FedAvg, and training on pooled data.
        out: Keep the run's folder there, with report.html, for `resume`; by default it is removed with the history.
        progress: Show a bar in a terminal or a notebook, and a few lines in a log, on stderr.
        track, track_options: Trackers that get the numbers too, such as mlflow, and their settings; they need `out`.
        callback: A function called after every round with the run so far: its `round`, `method`, `seed` and `metrics`.
            Or an `unskew.run.cell.Observer`, which sees every evaluation and may add numbers to the record.
        fraction, clients_per_round: Cohort size.
        test_fraction, val_fraction: Parts of each client's data kept from training.
        evaluate: Models to evaluate, global, personal and personal_on_global, and metrics to report beside the
            headline, such as balanced_accuracy, macro_f1, auroc, lowest_recall.  A metric of your own is a `Measure`,
            or a function from (outputs, targets) of all examples to a number of which more is better.
        evaluate_clients: Clients whose own models are evaluated: all, or a number, drawn once for each seed.
        by: Columns of a table by whose values the clients' own models are evaluated after the last round, as "sex".
        unseen: Clients that do not train and get the trained models: a share of the clients, or their names; `Unseen`
            also says how they adapt.
        public: Rows known to the server and all clients: a share of all training rows, a client's by its name, or other
            rows in any form of `data`.
        stop, keep_models, world, runtime: The same as in a configuration file.

    Raises:
        ConfigError, DataError: If the experiment is impossible.
        RunError: If `out` exists or cannot be written.
        KeyboardInterrupt: At Ctrl-C or a signal to end, after the round in training; its text says what is kept.
        QuorumError: If training fails, naming method, seed and round.
        DivergedError: If every method diverged under every seed; else the history's `diverged` names those that did.
    """
    given = dict(locals())
    out = None if out is None else user_path(out)
    settings = {name: given[name] for name in schema.parameters(Experiment, skip=DESCRIBED) if name in given}
    settings |= {
        "name": out.name if out is not None else "simulation",
        "seeds": list(seeds) if isinstance(seeds, Iterable) and not isinstance(seeds, Mapping) else seeds,
        "unseen": unseen if isinstance(unseen, Unseen) else {"clients": unseen},
        "track": list(track) if isinstance(track, tuple) else track,
        "track_options": {} if track_options is None else track_options,
    }
    with stopped_as_python(out) as halt, torch_left_alone(), watching(not progress) as watcher:
        if out is not None and taken(out):
            again = f"; unskew.resume({str(out)!r}) goes on with the run in it, and" * (out / "run.json").exists()
            raise RunError(f"out = {str(out)!r} exists already{again or ';'} a new run needs another folder")
        if track and out is None:
            raise ConfigError("track needs the run's folder, which is not kept without one; add out=FOLDER")
        with noted() as notes:
            experiment, inputs = described(methods, settings, **{name: given[name] for name in GIVEN})
        assert inputs.dataset is not None
        dataset = dataclasses.replace(inputs.dataset, notes=tuple(dict.fromkeys((*inputs.dataset.notes, *notes))))
        inputs = dataclasses.replace(inputs, dataset=dataset)
        for note in notes:
            watcher.note(note) if progress else warn(note, 1)
        # The history keeps the network's factory, and not the data.
        of_run, config = dataclasses.replace(inputs, dataset=None), experiment.task
        kinds = range(max(1, len(config.models)))
        fresh = [partial(network, config.of(i), inputs=of_run.of(i)) for i in kinds]
        keeps = out is not None and experiment.task.data == RUN_DATA and not isinstance(dataset.x_train, Items)
        files = {DATA_FILE: partial(save, dataset)} if keeps else {}
        backend = Backend(dataclasses.replace(inputs, files=files, kept=out is not None))
        listening = watcher if callback is None else Several(watcher, callback)
        if out is not None:
            from unskew.report import write_report

            outcome = loop.start(experiment, out, listening, backend=backend, stop=halt)
            write_report(outcome.folder)
            if keeps:
                at = outcome.folder / DATA_FILE
                watcher.note(
                    f"{at} holds all rows of the data, for unskew.resume: remove it before you share the folder"
                )
            return load_run(outcome.folder, network=fresh, allow_code=True)
        scratch = Scratch()
        try:
            outcome = loop.start(experiment, scratch.folder, listening, backend=backend, stop=halt)
        except BaseException:
            scratch.remove()
            raise
        kept = load_run(outcome.folder, network=fresh, allow_code=True)
        return dataclasses.replace(kept, path=None, _scratch=scratch)


def resume(
    folder: str | Path,
    *,
    model: "Network | Sequence[Network] | Mapping[str, Network] | None" = None,
    loss: Loss | None = None,
    transform: Transform | None = None,
    metrics: Sequence[Measure | Callable[[Any, Any], float]] = (),
    public: object = None,
    progress: bool = True,
    callback: Observer | Callable[[Cell], object] | None = None,
    force: bool = False,
    allow_code: bool = False,
) -> History:
    """Resume a stopped run from its last checkpoint; for a finished run, return its history.

    It ends with the bits of a run that was never stopped.

    Args:
        folder: The folder that `simulate(out=...)` or `unskew run` wrote to.
        model: The network, if the run was given one as a value: the same, with its initial weights.
        loss, transform, metrics, public: The same as in the run, if they were values that cannot be imported; metrics
            are those of `evaluate`.
        progress, callback: As in `simulate`.
        force: Resume although versions, device or executor have changed; the bits may then differ.
        allow_code: Import methods or a network of your own that the folder names as `module:attribute`.  Never for a
            folder from elsewhere whose code you would not run.

    Raises:
        ConfigError: If a method was a value, a value is missing or not the run's, or the run names code and
            `allow_code` is not given.
        RunError: If the folder is not a run, was changed, or has another network or environment.
        DivergedError, QuorumError, KeyboardInterrupt: As in `simulate`.
    """
    folder = user_path(folder)
    with stopped_as_python(folder) as stop, torch_left_alone(), watching(not progress) as watcher:
        documents.require_run(folder)
        rows = None if public is None else own.beside(public)
        inputs = dataclasses.replace(_given_again(folder, model, loss, transform, metrics), public=rows)
        listening = watcher if callback is None else Several(watcher, callback)
        backend = Backend(inputs)
        from unskew.report import write_report

        outcome = loop.resume(folder, listening, force, backend, allow_code=allow_code, stop=stop)
        write_report(outcome.folder)
        again = [partial(copied, net) if isinstance(net, nn.Module) else net for net in _kinds(model)]
        return load_run(outcome.folder, network=again, allow_code=allow_code)


def _given_again(
    folder: Path,
    model: "Network | Sequence[Network] | Mapping[str, Network] | None",
    loss: Loss | None,
    transform: Transform | None,
    metrics: Sequence[Measure | Callable[[Any, Any], float]],
) -> InMemoryInputs:
    """The values that a run was given, and is given again; nothing that its folder names is imported.

    Raises:
        ConfigError: If the run names one of them.
    """
    again = [as_measure(metric) for metric in metrics]
    values: dict[str, str] = {}
    if model is not None or loss is not None or transform is not None or again:
        written = config.read_toml(folder / "config.toml")
        for name, given in (("model", model), ("loss", loss), ("transform", transform)):
            key = "augment" if name == "transform" else name
            named = str(written.get("task", {}).get(key, "the default"))
            if given is not None and not named.startswith(IN_PYTHON):
                raise ConfigError(
                    f"the run in {folder} names its {name}, {named}, so {name}= would not be used; leave it out"
                )
        # A function of the same name may stand elsewhere by now: in a function, or outside it.
        asked = (name for name in written.get("evaluate", ()) if name.startswith(IN_PYTHON))
        values = {name.removeprefix(IN_PYTHON).rpartition(".")[2]: name for name in asked}
    if strangers := [metric.name for metric in again if metric.name not in values]:
        raise ConfigError(f"the run in {folder} was given no metric {strangers[0]} as a value; leave it out of metrics")
    return InMemoryInputs(
        networks=_values(model),
        loss=loss,
        transform=transform,
        metrics={values[metric.name]: metric for metric in again},
        from_python=True,
    )


def asked(owner: str, methods: object, given: Mapping[str, Any], name: str) -> tuple[Experiment, InMemoryInputs]:
    """The experiment called `name` that further arguments of a function describe, which are those of `simulate`.

    Raises:
        ConfigError: Naming the first that an experiment does not have.
    """
    ours = [key for key in given if key in GIVEN and key not in ("transform", "bounds")]
    settings = {key: value for key, value in given.items() if key not in ours}
    known = schema.parameters(Experiment, skip=DESCRIBED)
    if strangers := [key for key in settings if key not in known]:
        raise _unknown_argument(strangers[0], known, owner)
    return described(methods, {"name": name, "rounds": 20, **settings}, **{key: given[key] for key in ours})


def _unknown_argument(name: str, known: Iterable[str], owner: str) -> ConfigError:
    return schema.unknown(name, known, "", owner, elsewhere=from_python.arguments(), noun="argument")


def described(
    methods: object,
    settings: Mapping[str, Any],
    *,
    data: object = ...,
    model: "Network | Sequence[Network] | Mapping[str, Network] | None" = None,
    target: str | Sequence[str] | None = None,
    client: str | None = None,
    patient: str | None = None,
    patient_ids: PatientIds | None = None,
    test: object = None,
    preprocess: Preprocess | bool | None = None,
    split: Split | None = None,
    local: SgdConfig | None = None,
    task: TaskConfig | str | None = None,
    loss: str | Loss | None = None,
    transform: Transform | None = None,
    bounds: bool = False,
) -> tuple[Experiment, InMemoryInputs]:
    """The experiment that `simulate`'s arguments describe, and data, model, loss and metrics given as values.

    Args:
        methods: As in `simulate`, and so are all that have its arguments' names.
        settings: The experiment's other settings; `evaluate` may hold metrics as values.

    Raises:
        ConfigError, DataError: If the experiment is impossible.
    """
    chosen = from_python.methods_of(methods, local)
    rules = rules_of(preprocess)
    data, test = (str(given) if isinstance(given, Path) else given for given in (data, test))
    if isinstance(data, str) and ":" not in data and (kind := kind_at(data)) is not None and data not in DATA.names():
        data = f"{kind}:{data}"
    test_fraction = settings.get("test_fraction", Experiment.test_fraction)
    table = {"target": target, "client": client, "patient": patient, "patient_ids": patient_ids, "test": test}
    table["test_fraction"] = test_fraction
    evaluate: Any = settings.get("evaluate", ("global", "personal"))
    metrics = {} if isinstance(evaluate, str) else _metrics(evaluate)
    seeds = settings.get("seeds")
    rule = isinstance(seeds, UntilDecided | Mapping)
    until = config.until_of(config.plain(seeds)) if rule else None
    kinds: dict[str, type] = {"stop": Stop, "keep_models": KeepModels, "world": World, "runtime": Runtime}
    for name, wanted in kinds.items():
        if not isinstance(given := settings.get(name, {}), wanted | Mapping):
            raise ConfigError(f"{name} must be {wanted.__name__}(...), got {given!r:.80}")
    by, public = settings.get("by", ()), settings.get("public", "")
    plain = {
        **settings,
        "by": [by] if isinstance(by, str) else by,
        **({} if until is None else {"seeds": list(until.seeds)}),
        "task": _task(task, data, {"model": model, "loss": loss, "augment": transform}, table, rules),
        "evaluate": evaluate if isinstance(evaluate, str) else list(metrics),
        "public": public if isinstance(public, str | float) else "run:public",
    }
    experiment = Experiment(
        methods=tuple(config.with_bounds(chosen, from_python.local_of(chosen)) if bounds else chosen),
        split=Natural() if split is None else from_python.split_of(split),
        until=until,
        **schema.checked(Experiment, config.plain(plain), "", skip=DESCRIBED),
    )
    networks = _values(model)
    rows = None if isinstance(public, str | float) else own.beside(public, target)
    dataset = _dataset(experiment.task, data, table)
    if experiment.task.data == RUN_DATA and dataset.ordered:
        of_values = dataclasses.replace(experiment.task, data_options={"classes": list(dataset.classes)})
        experiment = dataclasses.replace(experiment, task=of_values)
    if dataset.inputs.kind == "texts" and model is None and (task is None or isinstance(task, str)):
        vectors = {"words": FIRST_WORD + len(dataset.inputs.vocabulary)}
        of_texts = dataclasses.replace(experiment.task, model=OF_TEXTS, model_options=vectors)
        experiment = dataclasses.replace(experiment, task=of_texts)
    if split is None and dataset.owners is None:
        by_class = dataset.targets.classes or experiment.task.bins is not None
        split = Dirichlet(alpha=0.1, num_clients=20) if by_class else IID(num_clients=20)
        experiment = dataclasses.replace(experiment, split=split)
    inputs = InMemoryInputs(
        dataset=dataset,
        networks=networks,
        loss=loss if callable(loss) else None,
        transform=transform,
        public=rows,
        metrics={name: metric for name, metric in metrics.items() if metric is not None},
        from_python=True,
    )
    return experiment, inputs


GIVEN = tuple(name for name, p in inspect.signature(described).parameters.items() if p.kind is p.KEYWORD_ONLY)
"""Arguments of `simulate` that say what is learned, on which data and how they are divided."""


def _kinds(model: Any) -> dict[Any, tuple[str, ...]]:
    """Each network that is given, with its clients where several are."""
    if not isinstance(model, Mapping | list):
        return {model: ()}
    kinds: dict[Any, tuple[str, ...]] = {}
    for client, net in model.items() if isinstance(model, Mapping) else enumerate(model):
        kinds[net] = (*kinds.get(net, ()), str(client))
    return kinds


def _values(model: Any) -> tuple[Any, ...]:
    """Networks as `InMemoryInputs` has them: copies of modules, functions that make one, and None for those by name."""
    return tuple(map(_value, _kinds(model)))


def _value(network: Any) -> Any:
    if not isinstance(network, nn.Module):
        return None if isinstance(network, str) else network
    trained_type(network)
    return copied(network).cpu()


def _task(
    task: object, data: object, pieces: Mapping[str, Any], table: Mapping[str, Any], rules: Preprocess | None
) -> Any:
    """The task as a file writes it; data, a model or a loss passed as values get a name that says so.

    Raises:
        ConfigError: If an argument and the task say different things, or the task has settings that nothing would read.
    """
    given = task.kind if isinstance(task, TaskConfig) else task
    if isinstance(given, TaskKind):
        raise ConfigError(
            f"task must be the name of a kind of task, got the TaskKind {given.name!r} itself; put it into a module "
            'and name that, as in task="mine:KIND"'
        )
    settings = {} if task is None else {"kind": task} if isinstance(task, str) else config.plain(task)
    if not isinstance(settings, dict):
        return settings
    # A TaskConfig has data, a model and no augmentation in any case: these need not be what its maker chose.
    defaults = (TaskConfig.data, TaskConfig(kind=task.kind).model, "none") if isinstance(task, TaskConfig) else ()
    if data is not ...:
        _set(settings, "data", data if isinstance(data, str) else RUN_DATA, "task.data", defaults)
    pieces = dict(pieces)
    if isinstance(pieces["model"], Mapping | list):
        several = [{"model": _model_name(net), "clients": list(of)} for net, of in _kinds(pieces.pop("model")).items()]
        _set(settings, "models", several, "task.models", ([],))
    for name, piece in pieces.items():
        if piece is not None:
            of_piece = _model_name(piece) if name == "model" else _address(piece)
            _set(settings, name, of_piece, f"task.{name}", defaults)
    if rules is not None:
        _set(settings, "preprocess", config.plain(rules), "task.preprocess")
    source = settings.setdefault("data", TaskConfig.data)
    if source == RUN_DATA and (others := [key for key in settings.get("data_options") or {} if key != "classes"]):
        raise ConfigError(
            f"task.data_options ({', '.join(others)}) are for data that are named, and these are given as values; "
            "leave them out: of values only classes can be named, as in data_options={'classes': ['control', 'case']}"
        )
    if isinstance(source, str) and source.partition(":")[0] in ENDINGS:
        columns = {key: value for key, value in table.items() if value is not None and key != "test_fraction"}
        if isinstance(columns.get("target"), tuple):
            columns["target"] = list(columns["target"])
        if isinstance(columns.get("test"), Latest):
            columns["test"] = config.plain(columns["test"])
        if not isinstance(given := columns.get("test", ""), str | int | float) and "latest" not in given:
            raise ConfigError("test of a file is a column, another file, a share of the rows, or that they are latest")
        if table["test_fraction"] != Experiment.test_fraction:
            raise ConfigError(
                f"the share of a file's rows that is set aside is test={table['test_fraction']:g}, not test_fraction"
            )
        options = settings["data_options"] = dict(settings.get("data_options", {}))
        for key, column in columns.items():
            _set(options, key, column, f"task.data_options.{key}")
    if isinstance(source, str) and _names_times(source, table["test"]):
        options = settings["data_options"] = dict(settings.get("data_options", {}))
        _set(options, "test", config.plain(table["test"]), "task.data_options.test")
    return settings


def _names_times(source: str, test: object) -> bool:
    return source.startswith("npz:") and isinstance(test, Latest) and test.column is not None


def _set(settings: dict[str, Any], key: str, value: Any, place: str, defaults: tuple[Any, ...] = ()) -> None:
    """Set what an argument says.

    Raises:
        ConfigError: If the settings say something else, which is none of `defaults`.
    """
    current = settings.get(key, schema.NONE)
    if current not in (schema.NONE, value, *defaults):
        given = "of values" if value == RUN_DATA else f"= {schema.show(value)}"
        raise ConfigError(
            f"the argument {key} {given} and {place} = {schema.show(current)} exclude each other; leave one out"
        )
    settings[key] = value


def _metrics(evaluate: Iterable[Any]) -> dict[str, Measure | None]:
    return {_address(one): None if isinstance(one, str) else as_measure(one) for one in evaluate}


def _address(piece: Any) -> str:
    """The import path of a function, or a name that marks a value no file can describe; a name stays as it is."""
    if isinstance(piece, str):
        return piece
    name = piece.name if isinstance(piece, Measure) else getattr(piece, "__qualname__", type(piece).__qualname__)
    module = getattr(piece, "__module__", "")
    known = module != "__main__" and getattr(sys.modules.get(module), name, None) is piece
    return f"{module}:{name}" if known else f"{IN_PYTHON}{name}"


OF_TEXTS = "bag_of_words"
"""Name of the network that is trained on texts if none is named."""


def _model_name(model: object) -> str:
    """The name of a model: its import path if it can be imported, or one that marks a value no file can describe."""
    if isinstance(model, str):
        return model
    if isinstance(model, nn.Module):
        return f"{IN_PYTHON}{type(model).__qualname__}"
    if not callable(model):
        raise ConfigError(f"model must be a name, a module, or a function that makes one, got {model!r}")
    return _address(model)


def _dataset(task: TaskConfig, data: object, table: Mapping[str, Any]) -> Dataset:
    """The data set passed as a value, or named by the task."""
    if data is not ... and not isinstance(data, str):
        targets = tasks.kind_of(task.kind).targets
        options = schema.build(RunOptions, task.data_options, "task.data_options", owner="data given as values")
        return own.dataset(data, **table, preprocess=task.preprocess, targets=targets, classes=options.classes)
    named = task.data.partition(":")[0] in ENDINGS
    if _names_times(task.data, table["test"]):  # which are in data_options
        table = {**table, "test": None}
    if not named and any(table[key] is not None for key in ("test", "target", "client", "patient")):
        if sentence := unreadable(task.data):
            raise DataError(sentence)
        if task.data.startswith("images:"):
            raise ConfigError(
                "test, target, client and patient go with a table; images have them in a table beside them, as in "
                f"task=us.TaskConfig({task.data!r}, data_options={{'labels': 'labels.csv', 'image': 'file', 'target': "
                "'ill'}). Test images are in SITE/test/CLASS, or the column test names them"
            )
        raise ConfigError(
            "test, target, client and patient go with a table, which is a .csv or .parquet file or a folder of them, "
            f"and not with a name; got {task.data!r}"
        )
    return named_dataset(task)


@contextmanager
def stopped_as_python(folder: str | Path | None) -> Iterator[threading.Event]:
    """Raise KeyboardInterrupt whenever a request to stop came, so that no `except Exception` around a run hides it.

    In a run its loop takes requests, and sets the event; before and after it a request stops this at once.
    """
    stop, said = threading.Event(), ""

    def at_once(_times: int) -> None:
        stop.set()
        raise KeyboardInterrupt

    try:
        with stop_requests(at_once):
            yield stop
    except (loop.Interrupted, KeyboardInterrupt) as stopped:
        stop.set()
        said = str(stopped)
    except Exception as error:
        if not stop.is_set():
            raise
        said = f"stopped by request, and then: {error}"
    if stop.is_set():
        kept = f"unskew.resume({str(folder)!r}) goes on with a run that had begun" if folder else UNKEPT
        raise KeyboardInterrupt(said or f"stopped by request; {kept}") from None


@contextmanager
def torch_left_alone() -> Iterator[None]:
    """Hold the process's generators and settings during a run, and restore PyTorch's settings afterwards."""
    with in_turn(), torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
        warns, dtype = torch.is_deterministic_algorithms_warn_only_enabled(), torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            torch.set_num_threads(threads)
            now = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
            if now != (strict, warns):  # setting it imports PyTorch's compiler, more than a second's work
                torch.use_deterministic_algorithms(strict, warn_only=warns)
