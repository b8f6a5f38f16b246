"""Trained models: the global model of each method and seed, and each client's own.

    models/METHOD-seed0.safetensors           the global model, where the method has one, and frozen tensors
    models/METHOD-seed0.clients.sqlite        clients' own tensors, each stored once; `models` says whose they are
    models/METHOD-seed0.round20.safetensors   the global model of an earlier round, where it is kept
    models/METHOD-seed0.shared.safetensors    at a site, the model that the server served it last

Each file has its card in its metadata.  A client's model is the global one with some tensors replaced by its own.
`load_model` reads a run's folder, a deployed client's, or a file that `save_model` or `unskew show --model` wrote.
"""

import dataclasses
import hashlib
import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote

import pydantic
import safetensors
import torch
from torch import Tensor, nn

from unskew import info, models, schema, tasks, wire
from unskew.data import image_folders, tables
from unskew.data.columns import value_of
from unskew.data.dataset import Dataset
from unskew.data.inputs import Inputs
from unskew.data.places import path_of
from unskew.errors import ConfigError, DataError, RunError, WireError, did_you_mean
from unskew.experiment.config import ClientsModel, TaskConfig
from unskew.files import readable, unlinked, user_path, write_atomically
from unskew.keys import Key
from unskew.protocol import ClientId
from unskew.record import database
from unskew.record.logs import unreadable
from unskew.references import IN_PYTHON
from unskew.tasks.kind import Scale, TaskKind
from unskew.tasks.targets import Label, LabelType, labels_of
from unskew.tasks.task import Task, copied_arguments, of_type, outputs_of, tensors_of, trained_type
from unskew.tree import Params, Tree
from unskew.words import composed, counted, some

WHOLE, OWN = ".safetensors", ".clients.sqlite"
LONGEST = 10**9
"""Bytes that a tensor of a client's own may have, which is SQLite's own limit."""
Known = Literal["global", "own", "none"]
Given = nn.Module | Callable[..., nn.Module] | None | Sequence[Any]
"""A network, what builds one, or one of these for each entry of `task.models`."""
Round = int | Literal["best"]
"""A round, or that with the best validation result."""


# ---------------------------------------------------------------- descriptions of models
@dataclass(frozen=True)
class TaskCard:
    """Properties that all models of a seed share.

    Attributes:
        model, model_options: The network, as in a configuration: a name, or module:factory.
        input_shape: Shape of one example, as the network takes it; of several parts the shape of each.
        classes: A name for each class, label or token that outputs stand for; of a number, one name.
        inputs: The way from raw inputs to the network's.
        layers: Names of a model's tensors, parameters first and frozen ones last.
        kind, loss: The kind of task and its loss, as in a configuration; they give outputs their meaning.
        label_type: The type of the labels that classes are named after.
        target_scale: Shift and scale of the targets in the loss; outputs are on that scale.
        models, at: Networks of several kinds, as in a configuration, and the index of this one.
        output: Which part of the network's result is its outputs, as in a configuration.
    """

    model: str
    model_options: dict[str, Any]
    input_shape: tuple[int, ...] | tuple[Any, ...] | dict[str, Any]
    classes: tuple[str, ...]
    inputs: Inputs
    layers: tuple[str, ...]
    kind: str = "classification"
    loss: str | None = None
    label_type: LabelType = "text"
    target_scale: Scale | None = None
    models: tuple[ClientsModel, ...] = ()
    at: int = 0
    output: str | int | None = None

    def of(self, client: str, layers: Iterable[str]) -> "TaskCard":
        """The card of a client's own network, with these tensors; the same card if the network is the server's."""
        at = next((i for i, entry in enumerate(self.models) if client in entry.clients), 0)
        entry, kept = self.models[at] if at else self, tuple(layers) if at else self.layers
        return replace(self, model=entry.model, model_options=entry.model_options, layers=kept, at=at)


@dataclass(frozen=True)
class ModelClients:
    """The clients of a run that trained a model.

    Attributes:
        number: Clients of the run, also those without a model.
        names: A name for each; None where they are numbers.
        unseen: Names, or numbers, of the clients that came after training; they have no model here.
        models: Whether all use the global model, some have tensors of their own, or none has a model.
    """

    number: int
    names: tuple[str, ...] | None = None
    unseen: tuple[str, ...] = ()
    models: Known = "none"


@dataclass(frozen=True)
class ModelCard:
    """Description of a model, stored in its file; a loaded model has it in `unskew`.

    Attributes:
        method, seed: Method and seed that trained it.
        client: Number of the client that uses it; None for a global model.
        client_name: Its name; None where clients are numbers.
        task: Network, inputs and classes.
        round: The round after which it was kept; None if training had ended.
        clients: In a run's folder, the clients that trained it.
        has_global: In a run's folder, false if the method has no global model.
        best_round: In a run's folder, the round with the best validation result, if its model is kept.
    """

    method: str
    seed: int
    client: ClientId | None
    client_name: str | None
    task: TaskCard
    round: int | None = None
    clients: ModelClients | None = None
    has_global: bool = True
    best_round: int | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """A name for each output of the network."""
        return self.task.classes

    @property
    def labels(self) -> tuple[Label, ...]:
        """Labels that `predict` returns, one for each output, in the type of the training labels."""
        return labels_of(self.task.classes, self.task.label_type)

    @property
    def inputs(self) -> Inputs:
        """The way from raw inputs to the network's: `model(model.unskew.inputs.prepare(x))`."""
        return self.task.inputs


def task_card(config: TaskConfig, dataset: Dataset, task: Task, target_scale: Scale | None = None) -> TaskCard:
    """What the models of an experiment share: network, inputs, classes, and the scale of the targets."""
    layers = (*task.layout.trainable, *task.layout.buffers, *task.constants())
    options = dict(config.model_options)
    return TaskCard(
        config.model,
        options,
        dataset.input_shape,
        dataset.outputs,
        dataset.inputs,
        layers,
        config.kind,
        models.loss_of(config.model, config.loss, task.kind),
        dataset.label_type,
        target_scale,
        config.models,
        output=config.output,
    )


def file_name(label: str) -> str:
    """A method's label as part of a file name; different labels stay different."""
    return quote(label, safe=" ()=,+")


def stem(label: str, seed: int) -> str:
    """File name of a method and seed, without its ending."""
    return f"{file_name(label)}-seed{seed}"


# ---------------------------------------------------------------- writing
def save(
    folder: Path,
    card: ModelCard,
    global_model: Params | None,
    own: Iterable[Mapping[ClientId, Params]],
    frozen: Params | None = None,
) -> None:
    """Write the models of one method and seed; `own` gives the clients' models, a few clients at a time.

    The `frozen` tensors are the same for all, and are in the global model's file.  Each file is written atomically,
    that of the global model last.
    """
    assert card.clients is not None
    folder.mkdir(exist_ok=True)
    path = folder / stem(card.method, card.seed)
    known = _save_own(_with(path, OWN), own, global_model or {}, card.clients.number)
    card = replace(card, has_global=global_model is not None, clients=replace(card.clients, models=known))
    _write(_with(path, WHOLE), card, {**(global_model or {}), **(frozen or {})})


_TABLES = """
CREATE TABLE tensors (id INTEGER PRIMARY KEY, sha256 BLOB UNIQUE, content BLOB);
CREATE TABLE models (client INTEGER, layer TEXT, tensor INTEGER, PRIMARY KEY (client, layer)) WITHOUT ROWID;
"""
"""A client that has a model has a row without a layer, and one for each tensor that is not the global model's."""


def _save_own(path: Path, own: Iterable[Mapping[ClientId, Params]], shared: Params, number: int) -> Known:
    """Write the tensors of clients' models that are not the `shared` ones, without a journal; say what there is."""
    new = _with(path, ".tmp")
    new.unlink(missing_ok=True)  # of an earlier try
    with closing(sqlite3.connect(new)) as file:
        file.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = {database.SYNCHRONOUS};{_TABLES}")
        for batch in own:
            stored: dict[tuple[str, int], int | None] = {}  # tensors that many clients share are read once
            for client, params in batch.items():
                file.execute("INSERT INTO models VALUES (?, '', NULL)", (client,))
                for layer, tensor in params.items():
                    at = layer, id(tensor)
                    if at not in stored:
                        stored[at] = None if _same(tensor, shared.get(layer)) else _stored(file, tensor)
                    if stored[at] is not None:
                        file.execute("INSERT INTO models VALUES (?, ?, ?)", (client, layer, stored[at]))
        file.commit()
        (users,) = file.execute("SELECT count(*) FROM models WHERE layer = ''").fetchone()
        (tensors,) = file.execute("SELECT count(*) FROM tensors").fetchone()
    if tensors or 0 < users < number:
        new.replace(path)
        return "own"
    new.unlink()
    path.unlink(missing_ok=True)
    return "global" if users else "none"


def _same(tensor: Tensor, other: Tensor | None) -> bool:
    return other is not None and tensor.dtype == other.dtype and torch.equal(tensor, other)


def _stored(file: sqlite3.Connection, tensor: Tensor) -> int:
    """The number of a tensor, which is stored unless one like it is."""
    content = wire.encode(tensor)
    sha256 = hashlib.sha256(content).digest()
    file.execute("INSERT OR IGNORE INTO tensors (sha256, content) VALUES (?, ?)", (sha256, content))
    return int(file.execute("SELECT id FROM tensors WHERE sha256 = ?", (sha256,)).fetchone()[0])


def save_beside(folder: Path, card: ModelCard, params: Params, what: str) -> None:
    """Write a model beside those of a cell, such as "shared" or "round20" (`what`), in the format of `save_model`."""
    folder.mkdir(exist_ok=True)
    _write(_with(folder / stem(card.method, card.seed), f".{what}{WHOLE}"), card, params)


def of_rounds(folder: Path, method: str, seed: int) -> dict[int, Path]:
    """Files of the kept global models of earlier rounds, {round: path}, in order."""
    begin = f"{stem(method, seed)}.round"
    files = [p for p in (folder / "models").glob("*.round*.safetensors") if p.name.startswith(begin)]
    rounds = ((p.name.removeprefix(begin).removesuffix(WHOLE), p) for p in files)
    return dict(sorted((int(t), path) for t, path in rounds if t.isdecimal()))


def _with(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)  # a label may have dots


def _write(path: Path, card: ModelCard, tensors: Params) -> None:
    # An option that JSON cannot hold was made in Python: its network has to be given again, its run goes on.
    text = json.dumps(dataclasses.asdict(card), ensure_ascii=False, default=repr)
    write_atomically(path, wire.file_of(text, tensors))


# ---------------------------------------------------------------- reading
def load_model(
    path: Path | str,
    method: str | None = None,
    client: ClientId | str | None = None,
    seed: int | None = None,
    *,
    round: Round | None = None,
    network: Given = None,
    allow_code: bool = False,
) -> nn.Module:
    """A trained model: a plain module in evaluation mode, on the CPU, that takes prepared inputs.

    Its attribute `unskew` is its description (`ModelCard`); `predict` takes raw inputs.

    Args:
        path: A run's folder, a deployed client's folder, or a file that `save_model` or `unskew show --model` wrote.
        method: Label of the method; not needed if there is only one.
        client: Name or number (from 0) of the client that uses the model.  None is the global one, or a deployed
            client's own.
        seed: Seed of the run; by default the smallest, which must have a model.
        round: A round whose global model was kept, or "best" (by validation result); by default the last.
        network: A module to load the weights into, or a callable that builds one, as in `network=Net`; a list of them
            if clients have several networks.  Needed if the run was given its network as a value.
        allow_code: Import the network if its name is `module:attribute`.  Never for a file from elsewhere whose code
            you would not run.

    Raises:
        RunError: If there is no such model, or its files are damaged.
        ConfigError: If its network cannot be built, or is another.
    """
    path = user_path(path)
    if not path.is_file():
        card, tensors = _read_folder(path, method, client, seed, round)
    elif (method, client, seed, round) == (None, None, None, None):
        card, tensors = _read_file(path)
        card = replace(card, clients=None, best_round=None)
    else:
        raise RunError(f"{path} is one model; leave method, client, seed and round out")
    module = _network(card.task, network, path, allow_code, tensors)
    module = of_type(module, trained_type(module))
    _require_trained(module, card.task.layers, tensors)
    present = tensors_of(module)
    for layer in card.task.layers:
        present[layer].data = tensors[layer].to(present[layer], copy=True)  # a constant may be expanded
    object.__setattr__(module, "unskew", card)  # mypy and nn.Module take an attribute for a tensor or a module
    return module.eval()


def predict(
    model: nn.Module,
    x: Any,
    batch_size: int = 256,
    client: ClientId | str | None = None,
    probabilities: bool = False,
    threshold: float | None = None,
) -> list[Any]:
    """Predict with a model from `load_model`, for each raw input.

    Returned is the class, in the type of the training labels.  Of regression it is a number, of survival the log of the
    relative risk, of several labels the names of those that apply, and of sequences the next token.

    Args:
        model: The model.
        x: Raw inputs as given for training; they are resized, filled and scaled in the same way.  Images are (N, H, W),
            (N, H, W, 3), (N, C, H, W), or their files.  A table may be its file (.csv, .parquet) or a row.
        batch_size: Inputs that the network takes at once.
        client: Name of the client whose rows they are, where each client scaled its own.
        probabilities: Return {class: probability} for each input, rows that pandas.DataFrame takes.
        threshold: For two classes, the probability from which on the second is predicted; by default the likelier is.

    Raises:
        ConfigError: If the model has no card, learns no probabilities, or the threshold does not apply.
        DataError: If the inputs are of another kind than in training, or the model has no scale of this client.
        RunError: If the network's outputs are not finite.
    """
    card = card_of(model)
    if card.inputs.kind == "table" and isinstance(x, str | Path):
        x = tables.for_model(path_of(x), card.inputs.notation, card.inputs.columns)[1]
    if card.inputs.kind == "images" and isinstance(x, str | Path):
        x = image_folders.images_below(user_path(x)) if user_path(x).is_dir() else [x]
    if card.inputs.kind == "images" and isinstance(x, list | tuple) and x and isinstance(x[0], str | Path):
        x = image_folders.read_files([user_path(file) for file in x], card.inputs)
    own = None if card.client is None else card.client_name or str(card.client)
    also = str(card.client) if own is not None and value_of(own) is None else own  # a number may be another's name
    if own is not None and client is not None and str(client) not in (own, also):
        raise DataError(f"this is the own model of client {own!r}, but the rows are declared to be of {client!r}")
    whose = card.client_name if own is not None and client is not None else client
    known = whose in (None, *card.inputs.clients)
    inputs, training = card.inputs.prepare(x, whose if known else str(whose)), model.training
    kind, loss = tasks.kind_of(card.task.kind), card.task.loss
    kind = kind.linked(loss)
    kind = kind if card.task.target_scale is None else kind.scaled(card.task.target_scale)
    of_classes = kind.probabilities
    if of_classes is None and (probabilities or threshold is not None):
        what = f"{card.task.kind} with the loss {loss or next(iter(kind.losses))}"
        raise ConfigError(
            f"the model learned {what}, which gives no probabilities of classes; leave probabilities and threshold out"
        )
    two_classes = len(card.labels) == 2 and kind.targets.classes
    if threshold is not None and (probabilities or not two_classes or not 0.0 < threshold < 1.0):
        got = f"{threshold:g} of {counted(len(card.labels), 'output')}"
        raise ConfigError(f"threshold must be above 0 and below 1, of two classes, without probabilities; got {got}")
    device = next((t.device for t in model.parameters()), torch.device("cpu"))
    model.eval()
    try:
        with torch.no_grad():
            starts, width = range(0, max(len(inputs), 1), batch_size), kind.width(len(card.classes))
            outputs = (
                _outputs(model, inputs[i : i + batch_size].to(device), kind, width, card.task.output) for i in starts
            )
            if probabilities and of_classes is not None:
                rows = (row for batch in outputs for row in of_classes(batch).tolist())
                return [dict(zip(card.labels, row, strict=True)) for row in rows]
            if threshold is not None and of_classes is not None:
                second = (p >= threshold for batch in outputs for p in of_classes(batch)[:, 1].tolist())
                return [card.labels[int(one)] for one in second]
            return [one for batch in outputs for one in kind.predict(kind.seen(batch), card.labels)]
    finally:
        model.train(training)


def _outputs(model: nn.Module, batch: Tensor | Tree, kind: TaskKind, width: int, output: str | int | None) -> Tensor:
    """Outputs of a network for prepared inputs; that they are numbers is seen here, since NaN has a largest, too."""
    try:
        # It may work in place, and the rows are the caller's.
        given, named = copied_arguments(next(model.parameters(), torch.empty(0)), model, (batch,), {})
        outputs: Tensor = outputs_of(model(*given, **named), kind, width, output)
    except (IndexError, RuntimeError) as error:
        if isinstance(batch, Tree) or batch.dtype != torch.int64 or isinstance(error, torch.OutOfMemoryError):
            raise
        what = " ".join(str(error).split())
        raise DataError(
            f"the model cannot take token ids up to {int(batch.max())}: {what}; give ids as in training"
        ) from error
    if not bool(torch.isfinite(outputs).all()):
        raise RunError("the model's outputs are not finite: its weights are damaged, or its training diverged")
    return outputs


def card_of(model: nn.Module) -> ModelCard:
    """The description of a model.

    Raises:
        ConfigError: If it has none.
    """
    card = getattr(model, "unskew", None)
    if not isinstance(card, ModelCard):
        raise ConfigError("expected a model of load_model or history.model, which describes its inputs")
    return card


def save_model(model: nn.Module, path: Path | str) -> None:
    """Write a model from `load_model`, with its present weights, as one self-describing file.

    The file is safetensors: tensors by layer, and the card as JSON under `unskew` in its metadata.

    Raises:
        ConfigError: If the model has no card.
    """
    card, tensors = card_of(model), tensors_of(model)
    _write(user_path(path), card, {layer: tensors[layer] for layer in card.task.layers})


def export(
    folder: Path | str,
    path: Path | str,
    method: str | None,
    client: ClientId | str | None,
    seed: int | None,
    round: Round | None = None,
) -> ModelCard:
    """Write a model of a run or of a deployed client like `save_model`, without building its network.

    Args:
        folder, method, client, seed, round: As in `load_model`.
        path: The file; it is replaced if it exists.

    Raises:
        RunError: If there is no such model, or its files are damaged.
    """
    card, tensors = _read_folder(user_path(folder), method, client, seed, round)
    _write(user_path(path), card, {layer: tensors[layer] for layer in card.task.layers})
    return card


def cells(folder: Path) -> list[tuple[str, int]]:
    """Method and seed of every model in a run's folder, methods in alphabetical order.

    Raises:
        RunError: If there is none.
    """
    if not folder.exists():
        raise RunError(f"{folder} is neither a model file nor a run folder; name one that exists")
    try:
        names = [path.name for path in unlinked(folder / "models").iterdir()]
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise unreadable(folder / "models", error) from None
    found = filter(None, (re.fullmatch(r"(.+)-seed(\d+)\.safetensors", name) for name in names))
    named = sorted((unquote(match[1]), int(match[2])) for match in found)
    if not named:
        raise RunError(f"{folder} has no models yet: a method writes one when it finishes a seed")
    return named


def _read_folder(
    folder: Path, method: str | None, client: ClientId | str | None, seed: int | None, round: Round | None
) -> tuple[ModelCard, Params]:
    """A model's card and its tensors."""
    path = _cell_of(folder, method, seed)
    card, tensors = _read_file(_with(path, WHOLE), theirs=True)
    clients, where = card.clients or ModelClients(0), f"of {card.method}, seed {card.seed}"
    if round is not None:
        kept = of_rounds(folder, card.method, card.seed)
        wanted = card.best_round if round == "best" else round
        if client is not None or wanted not in kept:
            has = some(list(map(str, kept))) if kept else "none"
            raise RunError(f"{folder} has no such model {where} and round {round}; keep_models kept rounds: {has}")
        return _read_file(kept[wanted], theirs=True)
    own = _with(path, OWN) if clients.models == "own" else None
    number = None if client is None else number_of(clients, client, where)
    if client is None and not card.has_global:
        users = _users(own)
        if len(users) != 1:
            raise RunError(f"there is no global model {where}: say whose, as in client=0; {KEPT}")
        number = users[0]  # a deployed client's folder has one alone
    task, name = card.task, None if number is None or clients.names is None else clients.names[number]
    if name is not None and name in task.inputs.clients:  # what others' rows were scaled with is theirs
        task = replace(task, inputs=task.inputs.of(name))
    if number is not None:
        if clients.models == "none" or (own is not None and number not in _users(own)):
            raise RunError(f"there is no model of client {number} {where}; {KEPT}")
        tensors |= (mine := {} if own is None else read_own(own, number))
        task = task.of(name or str(number), mine)
    return ModelCard(card.method, card.seed, number, name, task), tensors


def _cell_of(folder: Path, method: str | None, seed: int | None) -> Path:
    """The beginning of the names of the files of a method and seed."""
    known = cells(folder)
    labels = list(dict.fromkeys(label for label, _ in known))
    if method is None and len(labels) > 1:
        raise RunError(f"{folder} has models of several methods; name one of {', '.join(labels)}")
    label = labels[0] if method is None else method
    alike = [
        known for known in labels if known.lower() == label.lower()
    ]  # methods are called as in papers, `us.FedAvg`
    label = alike[0] if len(alike) == 1 else label
    seeds = [s for one, s in known if one == label]
    if not seeds or seed not in (None, *seeds):
        if seeds:
            raise RunError(f"{folder} has no model of {label} with seed {seed} (seeds: {', '.join(map(str, seeds))})")
        raise RunError(
            f"{folder} has no model of {label!r}{did_you_mean(label, labels)} (methods: {', '.join(labels)})"
        )
    return folder / "models" / stem(label, min(seeds) if seed is None else seed)


KEPT = "clients that keep theirs to themselves have it in their own folders: give one of these, as in client-0"


def number_of(clients: ModelClients, client: ClientId | str, where: str = "") -> ClientId:
    """The number of a client given by name or number.

    Raises:
        RunError: If there is no such client.
    """
    names, written = tuple(map(composed, clients.names or ())), composed(str(client))
    if written in names:
        return names.index(written)
    # Client 1 of sites called 1, 2 and 10 is nobody's second: a number that may be meant as a name is no position.
    called = any(value_of(name) is not None for name in names)
    if not called and written.isdecimal() and int(written) < clients.number:
        return int(written)
    known = f"clients: {some(names)}" if names else f"clients are 0 to {clients.number - 1}"
    late = "; it came when training had ended, and took no part" * (written in map(composed, clients.unseen))
    raise RunError(f"there is no client {client!r} {where}{did_you_mean(written, names)}{late}; {known}")


@contextmanager
def _own(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with database.refusing(path), closing(database.connect(path, "query_only = ON", longest=LONGEST)) as file:
            yield file
    except WireError as error:
        raise RunError(f"cannot read {path}: {error}") from None


def _users(path: Path | None) -> list[ClientId]:
    """The clients that have a model."""
    if path is None:
        return []
    with _own(path) as file:
        return [client for (client,) in file.execute("SELECT client FROM models WHERE layer = ''")]


def read_own(path: Path, client: ClientId) -> Params:
    """A client's own tensors by layer."""
    query = "SELECT layer, content FROM models JOIN tensors ON tensor = id WHERE client = ?"
    with _own(path) as file:
        return {layer: wire.decode(content, Tensor) for layer, content in file.execute(query, (client,))}


def _read_file(path: Path, theirs: bool = False) -> tuple[ModelCard, Params]:
    """The card and the tensors of a file; `theirs` if its folder may be somebody else's."""
    with _opened(path, theirs) as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no dictionary
    try:
        card: ModelCard = info.adapter(ModelCard).validate_json(metadata.get("unskew", ""))
    except pydantic.ValidationError as error:
        what = error.errors()[0]["msg"]
        raise RunError(
            f"{path} does not say what it is ({what}); give the run's folder, or a file that unskew show --model wrote"
        ) from None
    return card, tensors


@contextmanager
def _opened(path: Path, theirs: bool) -> Iterator[Any]:
    try:
        if theirs:
            readable(path).close()  # safetensors would follow a link, and wait for a pipe
        with safetensors.safe_open(path, "pt") as file:
            yield file
    except (OSError, IndexError, safetensors.SafetensorError) as error:
        raise RunError(f"cannot read {path}: {error}") from None


def _network(task: TaskCard, network: Given, path: Path, allow_code: bool, tensors: Params) -> nn.Module:
    given: Any = network[task.at] if isinstance(network, Sequence) else network
    if not allow_code:
        with schema.in_file(str(path)):
            tasks.KINDS.permit(task.kind, "task.kind")
    if isinstance(given, nn.Module):
        return given
    with Key(0).ambient():  # the weights are about to be replaced, and nobody else's draws shall change
        width = tasks.kind_of(task.kind).width(len(task.classes))
        if given is not None:
            sizes: tuple[Any, ...] = (task.input_shape, width) if models.takes_sizes(given) else ()
            made: nn.Module = given(*sizes)
            return made
        if task.model.startswith(IN_PYTHON):
            name = task.model.removeprefix(IN_PYTHON)
            raise ConfigError(f"the network of {path}, {name}, was a value: give it to load_model, as in network=Net")
        try:
            if not allow_code:
                with schema.in_file(str(path)):
                    models.MODELS.permit(task.model, "model")
            if task.model in models.TABLE:
                _check_size(task, width, path, tensors)
            return models.build(task.model, task.input_shape, width, **task.model_options)
        except ConfigError as error:
            raise ConfigError(f"{error}; or give load_model the network, as in network=Net") from None


MOST_PARTS = 8
"""Dimensions of an example, or layers, up to which a model file is believed whatever it holds."""


def _check_size(task: TaskCard, width: int, path: Path, tensors: Params) -> None:
    """Refuse a network that is larger than its file, before memory is taken for it.

    Raises:
        ConfigError: If an option is out of range, or a tensor is missing in the file or has another shape there.
    """
    options = task.model_options
    lists = [task.input_shape, *(value for value in options.values() if isinstance(value, list | tuple))]
    layers = options.get("layers")
    parts = max([*map(len, lists), layers if isinstance(layers, int) else 0])
    if parts > max(len(tensors), MOST_PARTS):
        raise ConfigError(f"{path} describes {parts:,} layers or sizes and holds {counted(len(tensors), 'tensor')}")
    try:
        with torch.device("meta"):
            network = models.build(task.model, task.input_shape, width, **options)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:  # sizes that PyTorch cannot count
        raise ConfigError(f"{path} describes a network that cannot be built: {str(error)[:120]}") from None
    # Counters of batches never travel, and the file has none.
    has = [name for name, t in tensors_of(network).items() if name in task.layers or t.numel() > 1]
    _require_trained(network, [*task.layers, *has], {n: tensors[n] for n in task.layers if n in tensors})


def _require_trained(module: nn.Module, layers: Iterable[str], tensors: Params) -> None:
    """Refuse a network whose tensors are not those that were trained."""
    present = tensors_of(module)
    for layer in layers:
        shape, has = (tuple(of[layer].shape) if layer in of else None for of in (tensors, present))
        if shape is None or shape != has:
            raise ConfigError(
                f"{type(module).__name__} is not the network that was trained: {layer} must be {shape}, got {has}"
            )
