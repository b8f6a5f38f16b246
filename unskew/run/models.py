"""Trained models: the global one of each method and seed, and the one every client would use.

    models/seed0.task.json                    network, inputs and classes: the same for all models of a seed
    models/METHOD-seed0.safetensors           the global model, where the method has one, and frozen tensors
    models/METHOD-seed0.json                  which client uses which tensors
    models/METHOD-seed0.clients.safetensors   tensors that differ from the global model's, each stored once
    models/METHOD-seed0.clients-0001.safetensors   more of them, where they are too many for one file
    models/METHOD-seed0.round20.safetensors   the global model of an earlier round, where it is kept: a file by itself

A client's model is the global one with some tensors replaced by the client's own.  `load_model` puts it together from
a run's folder, from a deployed client's, or from a single file that `save_model` or `unskew show --model` wrote.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Literal
from urllib.parse import quote, unquote

import pydantic
import safetensors
import safetensors.torch
import torch
from annotated_types import Gt
from torch import Tensor, nn

from unskew import models, tasks, wire
from unskew.data import image_folders, tables
from unskew.data.columns import value_of
from unskew.data.dataset import Dataset
from unskew.data.inputs import Inputs
from unskew.data.places import path_of
from unskew.data.text import FIRST_WORD
from unskew.errors import ConfigError, DataError, RunError, did_you_mean
from unskew.experiment.config import TaskConfig
from unskew.files import read_bytes, readable, unlinked, user_path, write_atomically
from unskew.keys import Key
from unskew.protocol import ClientId
from unskew.record.logs import RunCard, document, unreadable
from unskew.references import IN_PYTHON
from unskew.tasks.targets import Label, LabelType, labels_of, mislabelled
from unskew.tasks.task import Task
from unskew.tree import Params
from unskew.words import composed, counted, some

LARGEST_CARD = 1 << 30
"""Bytes that a description of models may have: each of very many clients may have tensors of its own."""
PIECE = 1 << 24
"""Bytes that are copied at a time."""
MOST_TENSORS = 100_000
"""Tensors of clients in one file: safetensors reads no header above 100 MB, and a tensor may have a long name."""

Round = int | Literal["best"]
"""A round, or that with the best validation result."""


# ---------------------------------------------------------------- descriptions of models
@dataclass(frozen=True)
class TaskCard:
    """Properties that all models of a seed share.

    Attributes:
        model, model_options: The network, as in a configuration: a name, or module:factory.
        input_shape: Shape of one example, as the network takes it.
        classes: A name for each class, label or token that outputs stand for; of a number, one name.
        inputs: The way from raw inputs to the network's.
        layers: Names of a model's tensors, parameters first and frozen ones last.
        kind, loss: The kind of task and its loss, as in a configuration: what outputs mean.
        label_type: The type of the labels that classes are named after; text in files of older versions.
        target_scale: Shift and scale of the targets in the loss; outputs are on that scale.
    """

    model: str
    model_options: dict[str, Any]
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    inputs: Inputs
    layers: tuple[str, ...]
    kind: str = "classification"
    loss: str | None = None
    label_type: LabelType = "text"
    target_scale: tuple[float, Annotated[float, Gt(0.0)]] | None = None
    schema: Literal[1] = 1


@dataclass(frozen=True)
class SharedModel:
    """A model and the clients that use it.

    Attributes:
        clients: Numbers of the clients; "all" if every client uses it.
        own: Layer -> name of its tensor in METHOD-seed0.clients.safetensors; other layers are the global model's.
        part: Number of the file, if it is not that one but METHOD-seed0.clients-0001.safetensors or a later one.
    """

    clients: tuple[ClientId, ...] | Literal["all"]
    own: dict[str, str]
    part: int = 0


@dataclass(frozen=True)
class CellCard:
    """The models of one method and seed.

    Attributes:
        method, seed: Method and seed that trained them.
        num_clients: Clients of the run, those without a model included.
        client_names: A name for each client; None where clients are numbers.
        global_model: True if there is a global model.
        models: The clients' models, each once; empty where clients keep theirs to themselves.
        newcomers: Names, or numbers, of the clients that came after training, which have no model here.
        best_round: The round with the best validation result, if its model is kept.
    """

    method: str
    seed: int
    num_clients: int
    client_names: tuple[str, ...] | None
    global_model: bool = False
    models: tuple[SharedModel, ...] = ()
    newcomers: tuple[str, ...] = ()
    best_round: int | None = None
    schema: Literal[1] = 1


@dataclass(frozen=True)
class ModelCard:
    """Description of a loaded model, stored in its attribute `unskew`.

    Attributes:
        method, seed: Method and seed that trained it.
        client: Number of the client that uses it; None for a global model.
        client_name: Its name; None where clients are numbers.
        task: Network, inputs and classes.
        round: The round after which it was kept; None if training had ended.
    """

    method: str
    seed: int
    client: ClientId | None
    client_name: str | None
    task: TaskCard
    round: int | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """A name for each output of the network."""
        return self.task.classes

    @property
    def labels(self) -> tuple[Label, ...]:
        """Labels that `predict` answers with, one for each output, in the type of those that were trained on."""
        return labels_of(self.task.classes, self.task.label_type)

    @property
    def inputs(self) -> Inputs:
        """The way from raw inputs to the network's: `model(model.unskew.inputs.prepare(x))`."""
        inputs = self.task.inputs  # those of older versions do not say the shape
        known = inputs.shape or inputs.kind not in ("as given", "images")
        return inputs if known else dataclasses.replace(inputs, shape=self.task.input_shape)


def task_card(
    config: TaskConfig, dataset: Dataset, task: Task, target_scale: tuple[float, float] | None = None
) -> TaskCard:
    """Describe what the models of an experiment share that are trained on these data, their targets scaled so."""
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
    )


def file_name(label: str) -> str:
    """A method's label as part of a file's name; different labels stay different."""
    return quote(label, safe=" ()=,+")


def stem(label: str, seed: int) -> str:
    """Name of the files of a method and seed, without their endings."""
    return f"{file_name(label)}-seed{seed}"


def _of_task(seed: int) -> str:
    return f"seed{seed}.task.json"  # training rows decide how inputs and targets are scaled


# ---------------------------------------------------------------- writing
def save(
    folder: Path,
    task: TaskCard,
    cell: CellCard,
    global_model: Params | None,
    own: Iterable[Mapping[ClientId, Params]],
    frozen: Params | None = None,
) -> None:
    """Write the models of one method and seed; `own` gives the clients' models, a few clients at a time.

    The `frozen` tensors are the same in all of them, and are written with the global model's, or in its place.
    Every file is whole or not there, the card last; written again, the files have the same bytes.
    """
    folder.mkdir(exist_ok=True)
    path = folder / stem(cell.method, cell.seed)
    write_atomically(folder / _of_task(cell.seed), _json(task))
    common = {**(global_model or {}), **(frozen or {})}
    if common:
        write_atomically(_with(path, ".safetensors"), wire.pieces(common))
    users = _write_own(path, cell.num_clients, global_model or {}, own)
    card = dataclasses.replace(cell, global_model=global_model is not None, models=users)
    write_atomically(_with(path, ".json"), _json(card))


def save_of_round(folder: Path, task: TaskCard, method: str, seed: int, round: int, params: Params) -> None:
    """Write the global model of a round before the last, as `save_model` would."""
    folder.mkdir(exist_ok=True)
    card = ModelCard(method, seed, None, None, task, round)
    _write_file(_with(folder / stem(method, seed), f".round{round}.safetensors"), card, params)


def of_rounds(folder: Path, method: str, seed: int) -> dict[int, Path]:
    """Files of the global models that are kept of rounds before the last, by round, in order."""
    begin = f"{stem(method, seed)}.round"
    files = [p for p in (folder / "models").glob("*.round*.safetensors") if p.name.startswith(begin)]
    rounds = ((p.name.removeprefix(begin).removesuffix(".safetensors"), p) for p in files)
    return dict(sorted((int(t), path) for t, path in rounds if t.isdecimal()))


def _with(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)  # a label may have dots


def _json(value: Any) -> str:
    # An option that JSON cannot hold was made in Python: its network has to be given again, its run goes on.
    return json.dumps(dataclasses.asdict(value), ensure_ascii=False, default=repr)


def _write_own(
    path: Path, num_clients: int, global_model: Params, own: Iterable[Mapping[ClientId, Params]]
) -> tuple[SharedModel, ...]:
    """Write the tensors that are not the global model's; return which client uses which.

    What clients of two files share is in both, so that each reads one.
    """
    users: dict[tuple[int, _Names], list[ClientId]] = {}
    part = 0
    with ExitStack() as files:
        store = _Store(path.parent, files, global_model)
        for batch in itertools.chain.from_iterable(map(_few, own)):
            if store.count and store.count + sum(map(len, batch.values())) > MOST_TENSORS:
                write_atomically(_own_file(path, part), store.file())
                files.close()
                store, part = _Store(path.parent, files, global_model), part + 1
            for client, names in store.add(batch).items():
                users.setdefault((part if names else 0, names), []).append(client)
        if store.count:
            write_atomically(_own_file(path, part), store.file())
            part += 1
    while (other := _own_file(path, part)).exists():  # of an earlier try
        other.unlink()
        part += 1
    return tuple(
        SharedModel("all" if len(clients) == num_clients else tuple(sorted(clients)), dict(names), at)
        for (at, names), clients in users.items()
    )


def _own_file(path: Path, part: int) -> Path:
    return _with(path, f".clients-{part:04}.safetensors" if part else ".clients.safetensors")


def _few(batch: Mapping[ClientId, Params]) -> Iterator[dict[ClientId, Params]]:
    """The models of a batch, no more at a time than go into one file."""
    left, most = iter(batch.items()), MOST_TENSORS // max(1, *map(len, batch.values())) or 1
    while some := dict(itertools.islice(left, most)):
        yield some


@dataclass(frozen=True)
class _Stored:
    """A tensor in a file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


_Names = tuple[tuple[str, str], ...]
"""(layer, name in the file) of the tensors that are not the global model's."""


class _Store:
    """Distinct tensors on their way into one file; memory holds at most those of two batches of clients."""

    def __init__(self, folder: Path, files: ExitStack, global_model: Params) -> None:
        self.folder, self.files = folder, files
        self.names = {_content(layer, tensor)[0]: "" for layer, tensor in global_model.items()}
        # By identity, so that tensors that many clients share are read once.  The tensors are kept beside it: the
        # identity of one that is gone may be another's.
        self.recent: dict[tuple[str, int], tuple[Tensor, str]] = {}
        self.spools: dict[int, IO[bytes]] = {}  # by bytes of an element
        self.stored: dict[int, list[_Stored]] = {}

    @property
    def count(self) -> int:
        """Tensors that are stored."""
        return sum(map(len, self.stored.values()))

    def add(self, batch: Mapping[ClientId, Params]) -> dict[ClientId, _Names]:
        """Store the new tensors of these clients' models; return each client's own tensors by name."""
        before, self.recent = self.recent, {}
        models_of: dict[int, _Names] = {}
        for client, params in batch.items():
            if id(params) not in models_of:
                named = ((layer, self._name(client, layer, t, before)) for layer, t in params.items())
                models_of[id(params)] = tuple((layer, name) for layer, name in named if name)
        return {client: models_of[id(params)] for client, params in batch.items()}

    def _name(
        self, client: ClientId, layer: str, tensor: Tensor, before: Mapping[tuple[str, int], tuple[Tensor, str]]
    ) -> str:
        identity = (layer, id(tensor))
        if identity not in self.recent:
            self.recent[identity] = (
                before[identity] if identity in before else (tensor, self._store(client, layer, tensor))
            )
        return self.recent[identity][1]

    def _store(self, client: ClientId, layer: str, tensor: Tensor) -> str:
        content, octets = _content(layer, tensor)
        if content not in self.names:
            name = self.names[content] = f"{client}/{layer}"
            width = tensor.element_size()
            if width not in self.spools:  # has no name on the disk: nothing is left of it, however this process ends
                spool = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115, closed by `files`
                self.spools[width] = self.files.enter_context(spool)
            self.spools[width].write(octets)
            self.stored.setdefault(width, []).append(_Stored(name, tensor.dtype, tuple(tensor.shape)))
        return self.names[content]

    def file(self) -> Iterator[bytes]:
        """The safetensors file, piece by piece; the widest elements first, so that all are aligned."""
        header: dict[str, Any] = {}
        offset = 0
        for width in sorted(self.stored, reverse=True):
            for t in self.stored[width]:
                end = offset + width * math.prod(t.shape)
                header[t.name] = {"dtype": wire.DTYPES[t.dtype], "shape": t.shape, "data_offsets": [offset, end]}
                offset = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        yield len(text).to_bytes(8, "little") + text
        for width in sorted(self.stored, reverse=True):
            self.spools[width].seek(0)
            while piece := self.spools[width].read(PIECE):
                yield piece


def _content(layer: str, tensor: Tensor) -> tuple[tuple[str, torch.dtype, tuple[int, ...], bytes], memoryview]:
    """A key that is equal for equal tensors of a layer, and the tensor's bytes."""
    octets = wire.octets(tensor)
    return (layer, tensor.dtype, tuple(tensor.shape), hashlib.sha256(octets).digest()), octets


# ---------------------------------------------------------------- reading
def load_model(
    path: Path | str,
    method: str | None = None,
    client: ClientId | str | None = None,
    seed: int | None = None,
    *,
    round: Round | None = None,
    network: nn.Module | Callable[..., nn.Module] | None = None,
    allow_code: bool = False,
) -> nn.Module:
    """A trained model: a plain module in evaluation mode, on the CPU, that takes prepared inputs.

    Its attribute `unskew` says what it is (`ModelCard`); `predict` takes raw inputs.

    Args:
        path: A run's folder, a deployed client's folder, or a file that `save_model` or `unskew show --model` wrote.
        method: Label of the method; not needed where there is one only.
        client: Name of the client that uses the model, or its number, from 0, where no client's name is a number; None
            for the global one, or a deployed client's own.
        seed: Seed of the run; by default the smallest, which must have a model.
        round: A round whose global model was kept, or "best", that with the best validation result; by default the
            last.
        network: A network to load the weights into, or a callable that builds one, as in `network=Net`; needed if the
            run was given its network as a value.  By default the network is built by its name.
        allow_code: Import the network if its name is `module:attribute`; never for a file from elsewhere whose code
            one would not run.

    Raises:
        RunError: If there is no such model, or its files are damaged.
        ConfigError: If its network cannot be built, or is another.
    """
    path = user_path(path)
    card, tensors = _read_file(path) if path.is_file() else _read_folder(path, method, client, seed, round)
    if path.is_file():
        _check_asked(path, card, method, client, seed, round)
    return _with_weights(_network(card.task, network, path, allow_code, tensors), card, tensors)


def predict(
    model: nn.Module,
    x: Any,
    batch_size: int = 256,
    client: ClientId | str | None = None,
    probabilities: bool = False,
    threshold: float | None = None,
) -> list[Any]:
    """Predict what the model has learned of each raw input, with a model from `load_model`.

    That is the class, in the type of the labels that were trained on: a whole number where these are whole numbers,
    true or false where they are, and else the class's name.  Of regression it is a number, of survival the log of the
    relative risk, of several labels the names of those that apply, of sequences the token that follows.

    Args:
        model: The model.
        x: Inputs as they were given for training: images (N, H, W), (N, H, W, 3) or (N, C, H, W), or a list of their
            files, or one of them, which are resized as in training; texts, numbers (N, ...), or a table, its file
            (.csv, .parquet) or a row of it, with the columns that were trained on, which are filled and scaled as in
            training.
        batch_size: Inputs that the network takes at once.
        client: Name of the client whose rows they are, for a global model whose clients scaled their rows each by its
            own numbers.  A client's own model takes no rows as another's.
        probabilities: Give for each input the probability of every class, {class: probability}, instead, classes as
            they are predicted; a DataFrame of them has a column for each.
        threshold: Of two classes: the probability of the second one from which on it is predicted; by default the
            likelier class is.

    Raises:
        ConfigError: If the model has no card that says how inputs are prepared, or does not learn probabilities, or if
            the threshold is no probability or there are not two classes.
        DataError: If the inputs are not of the kind it was trained on, or the model has no numbers of the client.
        RunError: If the network's outputs are no numbers.
    """
    card = card_of(model)
    if card.inputs.kind == "table" and isinstance(x, str | Path):
        x = tables.columns_at(path_of(x), notation(card.inputs), card.inputs.columns)
    if card.inputs.kind == "images" and isinstance(x, str | Path):
        x = image_folders.images_below(user_path(x)) if user_path(x).is_dir() else [x]
    if card.inputs.kind == "images" and isinstance(x, list | tuple) and x and isinstance(x[0], str | Path):
        x = image_folders.read_files([user_path(file) for file in x], card.inputs)
    inputs, training = card.inputs.prepare(x, _whose(card, client)), model.training
    kind = tasks.kind_of(card.task.kind)
    loss = models.loss_of(card.task.model, card.task.loss, kind)  # older files do not say a network's own
    kind = kind.linked(loss)
    kind = kind if card.task.target_scale is None else kind.scaled(card.task.target_scale)
    of_classes = kind.probabilities if loss in (None, next(iter(kind.losses))) else None
    if probabilities and of_classes is None:
        raise ConfigError(
            f"the model learned {card.task.kind} with the loss {loss or next(iter(kind.losses))}, which "
            "gives no probabilities of classes; leave probabilities out"
        )
    if threshold is not None:
        if probabilities:
            raise ConfigError("threshold says which class is predicted, and probabilities asks for none; leave one out")
        two_classes = of_classes is not None and kind.targets.classes and len(card.labels) == 2
        _check_threshold(threshold, two_classes, card)
    device = next((t.device for t in model.parameters()), torch.device("cpu"))
    model.eval()
    try:
        with torch.no_grad():
            outputs = (_finite(_outputs(model, batch.to(device))) for batch in torch.split(inputs, batch_size))
            if probabilities and of_classes is not None:
                rows = (row for batch in outputs for row in of_classes(batch).tolist())
                return [dict(zip(card.labels, row, strict=True)) for row in rows]
            if threshold is not None and of_classes is not None:
                second = (p >= threshold for batch in outputs for p in of_classes(batch)[:, 1].tolist())
                return [card.labels[int(one)] for one in second]
            return [one for batch in outputs for one in kind.predict(kind.seen(batch), card.labels)]
    finally:
        model.train(training)


def _check_threshold(threshold: float, two_classes: bool, card: ModelCard) -> None:
    if not two_classes:
        of = f" of {len(card.labels)} classes" if tasks.kind_of(card.task.kind).targets.classes else ""
        raise ConfigError(
            f"threshold is for a model that gives probabilities of two classes, and this one learned {card.task.kind}"
            f"{of}; leave it out"
        )
    if not 0.0 < threshold < 1.0:
        raise ConfigError(f"threshold must be a probability, above 0 and below 1, got {threshold:g}")


def _outputs(model: nn.Module, batch: Tensor) -> Any:
    """Outputs of a network for prepared inputs.

    Raises:
        DataError: If they are token ids that it cannot take, as one for which it has no vector.
    """
    try:
        return model(batch.clone())  # it may work in place, and the rows are the caller's
    except (ConfigError, IndexError, RuntimeError) as error:
        if batch.dtype != torch.int64 or isinstance(error, torch.OutOfMemoryError):
            raise
        raise DataError(
            f"the model cannot take these token ids, {batch.shape[1]} in a row and up to {int(batch.max())}: "
            f"{type(error).__name__}: {' '.join(str(error).split())}; give ids as it was trained on"
        ) from error


def _finite(outputs: Tensor) -> Tensor:
    """Refuse outputs that are no numbers: the largest of them is still a class."""
    if not bool(torch.isfinite(outputs).all()):
        raise RunError(
            "the model's outputs are not finite: its weights are damaged, or its training diverged; take another file"
        )
    return outputs


def card_of(model: nn.Module) -> ModelCard:
    """The description of a model.

    Raises:
        ConfigError: If it has none.
    """
    card = getattr(model, "unskew", None)
    if not isinstance(card, ModelCard):
        raise ConfigError(
            "predict needs a model of unskew.load_model or history.model, which knows how to prepare inputs"
        )
    return card


def notation(inputs: Inputs) -> tables.TableOptions:
    """Read how the CSV file that a model was trained on is written, as far as it was said."""
    return tables.TableOptions(
        "", gaps=inputs.gaps, thousands=inputs.thousands, decimal=inputs.decimal, encoding=inputs.encoding
    )


def _names(card: ModelCard) -> tuple[str, ...]:
    """The words by which the client of a model may be called; none of a global model."""
    if card.client is None:
        return ()
    name = card.client_name or str(card.client)
    return (name, str(card.client)) if value_of(name) is None else (name,)


def _check_asked(
    path: Path,
    card: ModelCard,
    method: str | None,
    client: ClientId | str | None,
    seed: int | None,
    round: Round | None,
) -> None:
    """Refuse a file that is the model of another method, client, seed or round than was asked for."""
    of = "all clients" if card.client is None else card.client_name or str(card.client)
    for what, asked, held, right in (
        ("method", method, card.method, method == card.method),
        ("client", client, of, str(client) in _names(card)),
        ("seed", seed, card.seed, seed == card.seed),
        ("round", round, "the last" if card.round is None else card.round, round == card.round),
    ):
        if asked is not None and not right:
            raise RunError(f"{path} is one model, with {what} {held}, and {asked} was asked for; leave {what} out")


def _whose(card: ModelCard, client: ClientId | str | None) -> ClientId | str | None:
    """Name of the client whose rows are given; a client's own model takes its own alone."""
    if client is None:
        return None
    if card.client is None:
        return str(client) if str(client) in card.task.inputs.clients else client
    name = card.client_name or str(card.client)
    if str(client) not in _names(card):
        raise DataError(
            f"this is the own model of client {name!r}, and the rows are said to be of client {client!r}: load a model "
            f"with load_model(..., client={client!r}), or leave client out"
        )
    return card.client_name


def save_model(model: nn.Module, path: Path | str) -> None:
    """Write a model from `load_model`, with its present weights, as one self-describing file.

    The file is safetensors: tensors by layer, and under `unskew` in its metadata the card as JSON.

    Raises:
        ConfigError: If the model has no card.
    """
    card = getattr(model, "unskew", None)
    if not isinstance(card, ModelCard):
        raise ConfigError("save_model needs a model of load_model or history.model, which says what it is")
    tensors = _tensors(model)
    _write_file(user_path(path), card, {layer: tensors[layer].detach().cpu() for layer in card.task.layers})


def export(
    folder: Path | str,
    path: Path | str,
    method: str | None,
    client: ClientId | str | None,
    seed: int | None,
    round: Round | None = None,
) -> ModelCard:
    """Write a model of a run or of a deployed client as `save_model` does, without building its network.

    Args:
        folder, method, client, seed, round: The same as for `load_model`.
        path: The file, replaced if it is there.

    Raises:
        RunError: If there is no such model, or its files are damaged.
    """
    card, tensors = _read_folder(user_path(folder), method, client, seed, round)
    _write_file(user_path(path), card, tensors)
    return card


def _write_file(path: Path, card: ModelCard, tensors: Params) -> None:
    contiguous = {layer: tensors[layer].contiguous() for layer in card.task.layers}
    write_atomically(path, safetensors.torch.save(contiguous, {"format": "pt", "unskew": _json(card)}))


def cells(folder: Path) -> list[tuple[str, int]]:
    """Method and seed of every model in a run's folder, methods in alphabetical order.

    Raises:
        RunError: If it has none.
    """
    if not folder.exists():
        raise RunError(f"there is no model's file and no run's folder {folder}; name one that exists")
    try:
        files = list(unlinked(folder / "models").glob("*-seed*.json"))
    except OSError as error:
        raise unreadable(folder / "models", error) from None
    parts = (p.name.removesuffix(".json").rpartition("-seed") for p in files)
    named = sorted((unquote(label), int(seed)) for label, _, seed in parts if seed.isdecimal())
    if not named:
        inside = next((p for p in (folder / "run", folder / "server" / "run") if (p / "models").is_dir()), None)
        where = f"; those of the deployment's server are in {inside}" if inside is not None else ""
        if (folder / "client.toml").is_file():  # a client that was away in the last exchange never gets one
            where = "; if the run has ended, ask the coordinator for the global model"
        raise RunError(f"{folder} has no models: they are written when a method is done with a seed{where}")
    return named


def find(
    folder: Path | str,
    method: str | None = None,
    client: ClientId | str | None = None,
    seed: int | None = None,
    round: Round | None = None,
) -> ModelCard:
    """The card of a model in a folder; the arguments are those of `load_model`.

    Raises:
        RunError: If there is no such model.
    """
    if round is not None:
        return _read_file(_path_of_round(user_path(folder), method, client, seed, round))[0]
    return _find(user_path(folder), method, client, seed)[0]


def _find(
    folder: Path, method: str | None, client: ClientId | str | None, seed: int | None
) -> tuple[ModelCard, SharedModel]:
    """A model's card, and where its tensors are that are not the global model's."""
    known = cells(folder)
    labels = list(dict.fromkeys(label for label, _ in known))
    if method is None and len(labels) > 1:
        raise RunError(f"{folder} has models of several methods; name one of {', '.join(labels)}")
    label = labels[0] if method is None else _label(method, labels)
    if label not in labels:
        raise RunError(
            f"{folder} has no model of {label!r}{did_you_mean(label, labels)} (methods: {', '.join(labels)})"
        )
    seeds = [s for of, s in known if of == label]
    if seed is not None and seed not in seeds:
        raise RunError(f"{folder} has no model of {label} with seed {seed} (seeds: {', '.join(map(str, seeds))})")
    path = folder / "models" / stem(label, _smallest(folder, label, seeds) if seed is None else seed)
    cell: CellCard = _read_card(_with(path, ".json"), CellCard)
    task: TaskCard = _read_card(folder / "models" / _of_task(cell.seed), TaskCard)
    number = _client(cell, client)
    name = None if number is None or cell.client_names is None else cell.client_names[number]
    if name is not None and name in task.inputs.clients:  # what others' rows were scaled with is theirs
        task = dataclasses.replace(task, inputs=task.inputs.of(name))
    own = SharedModel((), {}) if number is None else _own_of(cell, number)
    return ModelCard(cell.method, cell.seed, number, name, task), own


def _smallest(folder: Path, label: str, seeds: Sequence[int]) -> int:
    """The smallest seed of the run, of which there must be a model; a client's folder has no run, only models."""
    card = folder / "run.json"
    of_run = document(card, RunCard)["cells"] if card.is_file() else []
    smallest = min((cell["seed"] for cell in of_run if cell["method"] == label), default=min(seeds))
    if smallest not in seeds:
        raise RunError(
            f"{folder} has no model of {label} with seed {smallest}, the smallest of the run and so the default; "
            f"restore its files in {folder / 'models'}, or name another seed (seeds: {', '.join(map(str, seeds))})"
        )
    return smallest


def _label(method: str, labels: Sequence[str]) -> str:
    """The label that is meant: labels are lower case, and methods are called as in their papers, `us.FedAvg`."""
    alike = [label for label in labels if _plain(label) == _plain(method)]
    return alike[0] if len(alike) == 1 and method not in labels else method


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _read_folder(
    folder: Path, method: str | None, client: ClientId | str | None, seed: int | None, round: Round | None = None
) -> tuple[ModelCard, Params]:
    if round is not None:
        return _read_file(_path_of_round(folder, method, client, seed, round))
    card, model = _find(folder, method, client, seed)
    path = folder / "models" / stem(card.method, card.seed)
    shared = {layer: layer for layer in card.task.layers if layer not in model.own}
    return card, {
        **_read_tensors(_with(path, ".safetensors"), shared),
        **_read_tensors(_own_file(path, model.part), model.own),
    }


def _path_of_round(
    folder: Path, method: str | None, client: ClientId | str | None, seed: int | None, round: Round
) -> Path:
    if client is not None:
        raise RunError("of rounds before the last only global models are kept; leave client or round out")
    card = find(folder, method, None, seed)
    kept = of_rounds(folder, card.method, card.seed)
    cell: CellCard = _read_card(_with(folder / "models" / stem(card.method, card.seed), ".json"), CellCard)
    wanted = cell.best_round if round == "best" else round
    if wanted not in kept:
        which = "of the best round" if round == "best" else f"of round {round}"
        have = f"those of rounds {some(list(map(str, kept)))}" if kept else "none of any round but the last"
        raise RunError(
            f"{folder} has no model {which} of {card.method}, seed {card.seed}: it has {have}; keep_models of an "
            "experiment says which are kept"
        )
    return kept[wanted]


def _client(cell: CellCard, client: ClientId | str | None) -> ClientId | None:
    """Number of the client whose model is wanted; None for the global model."""
    where = f"of {cell.method}, seed {cell.seed}"
    if client is None:
        if cell.global_model:
            return None
        several = (range(cell.num_clients) if m.clients == "all" else m.clients for m in cell.models)
        users = list(itertools.islice(itertools.chain.from_iterable(several), 2))
        if len(users) == 1:  # a deployed client's folder
            return users[0]
        if not cell.models:
            raise RunError(f"there is no global model {where}, and {KEPT}")
        raise RunError(f"there is no global model {where}: say whose, as in client=0")
    names, written = cell.client_names or (), str(client)
    for known_as, name in ((names, written), (tuple(map(composed, names)), composed(written))):
        if name in known_as:
            return known_as.index(name)
    if composed(written) in map(composed, cell.newcomers):
        instead = "a member's model, or have it take part"
        if cell.global_model:
            instead = "the global model, by leaving client out, and train that further on its rows"
        raise RunError(
            f"client {client!r} took no part in {cell.method}, seed {cell.seed}: it came when training had ended "
            f"(unseen), and no model of its own is kept, not even the one that unseen_adapted is of; take {instead}"
        )
    # Client 1 of sites called 1, 2 and 10 is nobody's second: a number that may be meant as a name is no position.
    called, position = any(value_of(name) is not None for name in names), written.isdecimal()
    if called or not position:
        near = "" if position else did_you_mean(written, names)
        known = f" (clients: {some(names)})" if names else f"; clients are 0 to {cell.num_clients - 1}"
        why = "; where names are numbers, a client is called by its name" if position else ""
        raise RunError(f"there is no client {client!r} {where}{near}{known}{why}")
    if int(written) >= cell.num_clients:
        raise RunError(f"there is no client {written} {where}; clients are 0 to {cell.num_clients - 1}")
    return int(written)


KEPT = "clients keep theirs to themselves, in their own folders: give one of these, as in client-0, and no client"


def _own_of(cell: CellCard, client: ClientId) -> SharedModel:
    for model in cell.models:
        if model.clients == "all" or client in model.clients:
            return model
    have = list(
        itertools.islice(itertools.chain.from_iterable(m.clients for m in cell.models if m.clients != "all"), 2)
    )
    why = KEPT if not cell.models else f"this folder has that of client {have[0]}" if len(have) == 1 else "it has none"
    raise RunError(f"there is no model of client {client} of {cell.method}, seed {cell.seed}: {why}")


def _read_card(path: Path, of: type) -> Any:
    try:
        card: Any = pydantic.TypeAdapter(of).validate_json(read_bytes(path, LARGEST_CARD))
    except OSError as error:
        raise unreadable(path, error) from None
    except pydantic.ValidationError as error:
        raise RunError(f"{path} does not describe models: {error.errors()[0]['msg']}") from None
    wrong = _wrong_clients(card) if isinstance(card, CellCard) else _wrong_task(card)
    if wrong:
        raise RunError(f"{path} does not describe models: {wrong}; restore it or run again")
    return card


def _wrong_clients(cell: CellCard) -> str:
    """Name what is impossible in the clients of a card; empty if nothing is."""
    if cell.client_names is not None and len(cell.client_names) != cell.num_clients:
        return f"it has {counted(len(cell.client_names), 'name')} for {counted(cell.num_clients, 'client')}"
    for client in itertools.chain.from_iterable(m.clients for m in cell.models if m.clients != "all"):
        if not 0 <= client < cell.num_clients:
            return f"client {client} is none of its {counted(cell.num_clients, 'client')}"
    return ""


def _wrong_task(task: TaskCard) -> str:
    """Name what is impossible in the inputs or labels of a card; empty if nothing is."""
    return task.inputs.contradiction(task.input_shape) or mislabelled(task.classes, task.label_type)


def _read_tensors(path: Path, names: Mapping[str, str]) -> Params:
    """Tensors of a file, under other names: layer -> name in the file."""
    if not names:
        return {}
    try:
        readable(path).close()  # safetensors would follow a link, and wait for a pipe
        with safetensors.safe_open(path, "pt") as file:
            return {layer: file.get_tensor(name) for layer, name in names.items()}
    except (OSError, safetensors.SafetensorError) as error:
        raise RunError(f"cannot read {path}: {error}") from None


def _read_file(path: Path) -> tuple[ModelCard, Params]:
    try:
        with safetensors.safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no dictionary
    except (OSError, safetensors.SafetensorError) as error:
        raise RunError(f"cannot read {path}: {error}") from None
    try:
        card: ModelCard = pydantic.TypeAdapter(ModelCard).validate_json(metadata.get("unskew", ""))
    except pydantic.ValidationError:
        raise RunError(
            f"{path} does not say what it is; give the run's folder, or a file that unskew show --model wrote"
        ) from None
    if wrong := _wrong_task(card.task):
        raise RunError(f"{path} does not describe a model: {wrong}; export it again")
    return card, tensors


def _network(
    task: TaskCard, given: nn.Module | Callable[..., nn.Module] | None, path: Path, allow_code: bool, tensors: Params
) -> nn.Module:
    if not allow_code:
        tasks.KINDS.permit(task.kind, "task.kind", str(path))
    if isinstance(given, nn.Module):
        return given
    with Key(0).ambient():  # the weights are about to be replaced, and nobody else's draws shall change
        width = tasks.kind_of(task.kind).width(len(task.classes))
        if given is not None:
            sizes: tuple[Any, ...] = (task.input_shape, width) if models.takes_sizes(given) else ()
            return given(*sizes)
        if task.model.startswith(IN_PYTHON):
            raise ConfigError(
                f"the network of {path}, {task.model.removeprefix(IN_PYTHON)}, was given to its run as a value, and no "
                "file says how to make it again; give it to load_model, as in network=Net"
            )
        try:
            if not allow_code:
                models.MODELS.permit(task.model, "model", str(path))
            if task.model in models.TABLE:
                _check_size(task, width, path, tensors)
            return models.build(task.model, task.input_shape, width, **task.model_options)
        except ConfigError as error:
            raise ConfigError(f"{error}; or give load_model the network, as in network=Net") from None


MOST_DIMENSIONS = 8
"""Dimensions of an example up to which a model file is believed whatever it holds."""


def _check_size(task: TaskCard, width: int, path: Path, tensors: Params) -> None:
    """Refuse a network that is larger than its file, before memory is taken for it.

    Raises:
        ConfigError: If an option is out of range, the network takes other inputs than the file prepares, or a tensor
            is missing in the file or has another shape there.
    """
    most = max(len(tensors), MOST_DIMENSIONS)
    counts = {"sizes of an example": len(task.input_shape)}
    for key, value in task.model_options.items():
        if isinstance(value, list | tuple):
            counts[f"values of option {key}"] = len(value)
        elif key == "layers" and isinstance(value, int):
            counts["layers"] = value
    for name, count in counts.items():
        if count > most:
            raise ConfigError(f"{path} names {count:,} {name} and holds {counted(len(tensors), 'tensor')}")
    try:
        with torch.device("meta"):
            network = models.build(task.model, task.input_shape, width, **task.model_options)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:  # sizes that PyTorch cannot count
        raise ConfigError(f"{path} describes a network that cannot be built: {_first_line(error)}") from None
    words = [m.num_embeddings for m in network.modules() if isinstance(m, nn.Embedding)]
    inputs = task.inputs
    if inputs.kind == "texts" and FIRST_WORD + len(inputs.vocabulary) > min(words, default=0):
        takes = f"{min(words):,} of them" if words else "none"
        raise ConfigError(f"{path} makes {FIRST_WORD + len(inputs.vocabulary):,} words, and its network takes {takes}")
    if words and inputs.kind in ("images", "table"):
        raise ConfigError(f"{path} prepares inputs of kind {inputs.kind}, and its network takes words")
    _check_tensors(network, task, tensors)
    # Counters of batches never travel, and the file has none.
    extra = [name for name, t in _tensors(network).items() if name not in task.layers and t.numel() > 1]
    if extra:
        raise ConfigError(f"{path} lacks {some(extra)}, which model {task.model} has")


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split("\n")[0].split())[:120]


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _check_tensors(module: nn.Module, task: TaskCard, tensors: Params) -> None:
    """Refuse a network whose tensors are not those that were trained."""
    present = _tensors(module)
    for layer in task.layers:
        shape = tuple(tensors[layer].shape) if layer in tensors else None
        if layer not in present or shape != tuple(present[layer].shape):
            has = tuple(present[layer].shape) if layer in present else "no such tensor"
            raise ConfigError(
                f"{type(module).__name__} is not the network that was trained: {layer} must be {shape}, got {has}"
            )


def _with_weights(module: nn.Module, card: ModelCard, tensors: Params) -> nn.Module:
    _check_tensors(module, card.task, tensors)
    present = _tensors(module)
    for layer in card.task.layers:
        present[layer].data = tensors[layer].to(present[layer], copy=True)  # a constant may be expanded
    object.__setattr__(module, "unskew", card)  # mypy and nn.Module take an attribute for a tensor or a module
    return module.eval()
