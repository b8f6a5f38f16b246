"""Every client's final model is kept, is the one that was tested, and can be used."""

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from sklearn.datasets import load_digits
from torch import nn

import unskew as us
from unskew.data.inputs import Inputs
from unskew.errors import ConfigError, DataError, RunError
from unskew.experiment.config import Experiment
from unskew.models import build
from unskew.record.logs import rows
from unskew.run import loop, models
from unskew.run import setup as run_setup
from unskew.run.models import ModelCard, ModelClients, TaskCard, load_model, predict, save_model

METHODS = (
    "fedavg",
    "fedper",
    "ditto",
    "ifca",
    "hcct",
    "fedbabu",
    "perfedavg",
    "gossip",
    "maxfl_hcct",
    "independent",
    "centralised",
)
IMAGES = load_digits().images.astype(np.uint8)


def table(*names: str) -> str:
    return "".join(f'[[methods]]\nname = "{name}"\n' for name in names)


@pytest.fixture(scope="module")
def run(tiny: Callable[..., Experiment], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven methods, global, personal, clustered, fine-tuned and without a server, two rounds each."""
    experiment = tiny("rounds=2", methods=table(*METHODS))
    return loop.start(experiment, tmp_path_factory.mktemp("models") / "run").folder


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((folder / "models").iterdir())}


# ---------------------------------------------------------------- what is kept
@pytest.mark.parametrize("method", METHODS)
def test_a_client_keeps_the_very_model_that_was_tested(method: str, run: Path, tiny: Callable[..., Experiment]) -> None:
    experiment = tiny("rounds=2", methods=table(method))
    setup = run_setup.prepare(experiment)
    fed = run_setup.divide(experiment, setup.dataset, 0)
    tested = {
        r["client"]: r["value"]
        for r in rows(run, "metrics")
        if (r["method"], r["round"], r["name"]) == (method, 2, "personal.accuracy") and "client" in r
    }
    assert sorted(tested) == [0, 1, 2, 3]
    for c, accuracy in tested.items():
        x, y = (values[fed.clients[c].test] for values in (setup.dataset.x_train, setup.dataset.y_train))
        model = load_model(run, method, client=c)
        assert not model.training
        assert float((model(x).argmax(1) == y).double().mean()) == accuracy


def test_tensors_that_clients_share_are_stored_once(run: Path) -> None:
    with closing(sqlite3.connect(run / "models" / "fedper-seed0.clients.sqlite")) as file:
        stored = file.execute("SELECT layer, count(DISTINCT tensor) FROM models WHERE layer > '' GROUP BY 1").fetchall()
    assert {name.partition(".")[0]: count for name, count in stored} == {"body": 1, "head": 4}


# ---------------------------------------------------------------- how it is stored
TASK = TaskCard("mlp", {}, (2,), ("no", "yes"), Inputs(shape=(2,)), ("w", "b"))


def cell(number: int, names: tuple[str, ...] | None = None, task: TaskCard = TASK) -> ModelCard:
    return ModelCard("m", 0, None, None, task, clients=ModelClients(number, names))


def change_card(path: Path, **task: Any) -> None:
    """Change the task that a model file says it is of."""
    tensors = safetensors.torch.load_file(path)
    with safetensors.safe_open(path, "pt") as file:
        card = json.loads(file.metadata()["unskew"])
    card["task"] |= task
    safetensors.torch.save_file(tensors, path, {"unskew": json.dumps(card)})


def test_a_hundred_thousand_clients_of_one_model_take_a_few_bytes(tmp_path: Path) -> None:
    model = {"w": torch.ones(1000), "b": torch.zeros(2)}
    batches = [{c: model for c in range(first, first + 100)} for first in range(0, 100_000, 100)]
    models.save(tmp_path / "models", cell(100_000), model, batches)
    assert list(contents(tmp_path)) == ["m-seed0.safetensors"]
    assert len(contents(tmp_path)["m-seed0.safetensors"]) < 4008 + 2000


# ---------------------------------------------------------------- what it is used for
def test_predict_takes_raw_inputs_and_answers_with_labels(run: Path) -> None:
    model = load_model(run, "hcct", client=2)
    answers = predict(model, IMAGES[:40], batch_size=7)
    prepared = model.unskew.inputs.prepare(IMAGES[:40])
    assert answers == model(prepared).argmax(1).tolist()
    assert set(map(type, answers)) == {int}


@pytest.mark.parametrize("shape", [(8, 9), (8, 9, 3), (3, 8, 9), (1, 8, 9)], ids=str)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_predict_takes_the_very_array_that_was_trained_on(shape: tuple[int, ...], dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 256, (24, *shape), np.uint8)
    x = x if dtype == "uint8" else (x / 255).astype(dtype)
    y = np.arange(24) % 2
    history = us.simulate(
        us.FedAvg(), data={"a": (x[:12], y[:12]), "b": (x[12:], y[12:])}, model="cnn_small", rounds=1, progress=False
    )
    model = history.model("fedavg")
    inputs = model.unskew.inputs
    assert predict(model, x) == model(inputs.prepare(x)).argmax(1).tolist()
    assert sorted(inputs.shape) == sorted(shape if 1 in shape or 3 in shape else (1, *shape))
    assert inputs.are_images


def test_probabilities_are_those_the_network_was_trained_to_give(run: Path) -> None:
    model = load_model(run, "hcct", client=2)
    rows = predict(model, IMAGES[:40], batch_size=7, probabilities=True)
    wanted = model(model.unskew.inputs.prepare(IMAGES[:40])).softmax(1)
    assert [list(row) for row in rows] == [list(range(10))] * 40
    assert torch.allclose(torch.tensor([list(row.values()) for row in rows]), wanted)
    margins = replace(model.unskew, task=replace(model.unskew.task, loss="multi_margin"))
    model.unskew = margins
    with pytest.raises(ConfigError, match="classification with the loss multi_margin, which gives no probabilities"):
        predict(model, IMAGES[:4], probabilities=True)


def test_a_model_is_a_plain_module_that_trains_and_saves(run: Path, tmp_path: Path) -> None:
    model = load_model(run, "fedper", client="1")
    before = {name: t.clone() for name, t in model.state_dict().items()}
    x = model.unskew.inputs.prepare(IMAGES[:64])
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    nn.functional.cross_entropy(model(x), torch.as_tensor(load_digits().target[:64])).backward()
    optimiser.step()
    assert any(not torch.equal(before[name], t) for name, t in model.state_dict().items())
    torch.save(model.state_dict(), tmp_path / "model.pt")
    save_model(model, tmp_path / "model.safetensors")
    again = load_model(tmp_path / "model.safetensors")
    weights = torch.load(tmp_path / "model.pt", weights_only=True)
    assert all(torch.equal(weights[name], t) for name, t in again.state_dict().items())
    assert again.unskew == model.unskew
    assert (again.unskew.method, again.unskew.client, again.unskew.seed) == ("fedper", 1, 0)


WARDS = ("1", "10", "2")


@pytest.mark.parametrize("written", [str, int])
def test_a_client_whose_name_is_a_number_is_called_by_it_and_by_no_other(written: Any, tmp_path: Path) -> None:
    """Ward 1 is client 0 of the run and ward 10 client 1: whoever asks for 1 is never given ward 10's model."""
    weights = {c: {"head.weight": torch.full((2, 2), float(c)), "head.bias": torch.zeros(2)} for c in range(3)}
    task = replace(TASK, model="logistic", layers=("head.weight", "head.bias"))
    models.save(tmp_path / "models", cell(3, WARDS, task), None, [weights])
    for number, name in enumerate(WARDS):
        model = load_model(tmp_path, "m", client=written(name))
        assert (model.unskew.client, model.unskew.client_name) == (number, name)
        assert model.head.weight.eq(number).all()
        x = np.zeros((1, 2), np.float32)
        assert predict(model, x, client=written(name)) == predict(model, x)
        with pytest.raises(DataError, match=f"own model of client '{name}', but the rows are declared to be of"):
            predict(model, x, client=written(0))
    for stranger in (0, 3):
        with pytest.raises(
            RunError,
            match=rf"no client '?{stranger}'? of .*clients: 1, 10, 2",
        ):
            load_model(tmp_path, "m", client=written(stranger))


def test_a_network_of_ones_own_gets_the_weights(run: Path) -> None:
    task = load_model(run, "fedavg").unskew.task
    mine = build(task.model, task.input_shape, 10, **task.model_options)
    assert load_model(run, "fedavg", network=mine) is mine
    again = load_model(run, "fedavg", network=lambda: build(task.model, task.input_shape, 10, hidden=(8,)))
    assert all(torch.equal(t, again.state_dict()[name]) for name, t in mine.state_dict().items())
    with pytest.raises(
        ConfigError, match=r"Linear is not the network that was trained: .* must be \(8, 64\), got None"
    ):
        load_model(run, "fedavg", network=nn.Linear(2, 2))


# ---------------------------------------------------------------- what is refused
def test_files_that_are_damaged_or_no_models_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="has no models"):
        load_model(tmp_path, "fedavg")
    models_in = tmp_path / "run" / "models"
    models_in.mkdir(parents=True)
    for name, data in contents(run).items():
        (models_in / name).write_bytes(data)
    (models_in / "fedavg-seed0.safetensors").write_bytes(b"half")
    with pytest.raises(RunError, match=r"cannot read .*fedavg-seed0\.safetensors"):
        load_model(tmp_path / "run", "fedavg")
    safetensors.torch.save_file({"a": torch.zeros(1)}, models_in / "fedper-seed0.safetensors")
    with pytest.raises(RunError, match=r"fedper-seed0\.safetensors does not say what it is"):
        load_model(tmp_path / "run", "fedper", client=0)
    same = load_model(run / "models" / "centralised-seed0.safetensors")
    assert same.unskew == load_model(run, "centralised").unskew


HOSTILE = {
    "a wide layer": ({"model_options": {"hidden": [1 << 17, 1 << 17]}}, "is not the network that was trained"),
    "a wide input": ({"input_shape": [1 << 40]}, "is not the network that was trained"),
    "sizes nobody can count": ({"model_options": {"hidden": [1 << 62]}, "input_shape": [1 << 62]}, "cannot be built"),
    "a number beyond 64 bits": ({"model_options": {"hidden": [10**30]}}, "cannot be built"),
    "many layers": (
        {"model_options": {"hidden": [1] * 200_000}},
        "200,000 layers or sizes and holds 4 tensors",
    ),
    "many dimensions": ({"input_shape": [1] * 200_000}, "200,000 layers or sizes and holds 4 tensors"),
    "a layer in a loop": (
        {"model": "char_lstm", "model_options": {"layers": 10**9}, "input_shape": [4]},
        "1,000,000,000 layers or sizes and holds 4 tensors",
    ),
    "tensors that the file lacks": (
        {"layers": ["head.weight", "head.bias"]},
        "is not the network that was trained: body",
    ),
}


@pytest.mark.parametrize(("changes", "text"), HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("form", ["file", "folder"])
def test_a_network_larger_than_its_file_is_never_built(
    form: str, changes: dict[str, Any], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known from names and shapes alone, which need no memory."""
    network = build("mlp", (4,), 2)
    weights = {name: t.detach() for name, t in network.named_parameters()}
    task = TaskCard("mlp", {}, (4,), ("a", "b"), Inputs(), tuple(weights))
    models.save(tmp_path / "models", cell(1, task=task), weights, [])
    path = tmp_path if form == "folder" else tmp_path / "model.safetensors"
    if form == "file":
        models.export(tmp_path, path, "m", None, None)
    change_card(tmp_path / "models" / "m-seed0.safetensors" if form == "folder" else path, **changes)
    made: list[torch.device] = []
    real = models.models.build

    def watched(*args: Any, **options: Any) -> nn.Module:
        module = real(*args, **options)
        made.extend(t.device for t in module.parameters())
        return module

    monkeypatch.setattr(models.models, "build", watched)
    with pytest.raises(ConfigError, match=text):
        load_model(path)
    assert all(device.type == "meta" for device in made)


# ---------------------------------------------------------------- files from elsewhere
@pytest.mark.parametrize("name", ["fedper-seed0.safetensors", "fedper-seed0.clients.sqlite", ""])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_and_pipes_among_the_models_of_a_run_are_refused(name: str, kind: str, run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    path = copy / "models" / name
    path.rename(tmp_path / "elsewhere")
    if kind == "link" or not name:
        path.symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(path)
    with pytest.raises(RunError, match=r"read.* (symbolic links are not followed|not a file)|symbolic links"):
        load_model(copy, "fedper", client=0)


def test_a_model_whose_outputs_are_no_numbers_predicts_nothing(run: Path) -> None:
    """The largest of three NaN is the first, which is a class."""
    model = load_model(run, "fedavg")
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    for probabilities in (False, True):
        with pytest.raises(RunError, match="the model's outputs are not finite"):
            predict(model, IMAGES[:2], probabilities=probabilities)
