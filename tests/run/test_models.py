"""Every client's final model is kept, is the one that was tested, and can be used."""

import errno
import json
import os
import shutil
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas
import pytest
import safetensors
import safetensors.torch
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import unskew as us
from unskew.data.inputs import Column, Inputs
from unskew.errors import ConfigError, DataError, RunError
from unskew.experiment.config import Experiment
from unskew.models import TABLE, build
from unskew.record.logs import rows
from unskew.run import loop, models, observers
from unskew.run import setup as run_setup
from unskew.run.models import CellCard, TaskCard, load_model, predict, save_model
from unskew.runtime.in_process import Simulator

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
    tensors = safetensors.torch.load_file(run / "models" / "fedper-seed0.clients.safetensors")
    assert {name.partition(".")[0]: len(rows) for name, rows in tensors.items()} == {"body": 1, "head": 4}


def test_what_clients_have_from_the_global_model_is_not_stored_again(run: Path) -> None:
    """FedBABU fine-tunes the head; the body is the global model's."""
    own = safetensors.torch.load_file(run / "models/fedbabu-seed0.clients.safetensors")
    assert not any(name.startswith("body.") for name in own)
    assert not (run / "models" / "fedavg-seed0.clients.safetensors").exists()
    assert json.loads((run / "models" / "fedavg-seed0.json").read_text())["models"] == [{"clients": "all", "own": {}}]


def test_models_are_made_once_where_they_were_tested(
    tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, own_models = list[int](), Simulator.own_models

    def counted(self: Any, state: Any, clients: Any, t: int) -> Any:
        asked.append(t)
        return own_models(self, state, clients, t)

    monkeypatch.setattr(Simulator, "own_models", counted)
    loop.start(tiny("rounds=2", methods=table("fedbabu")), tmp_path / "run")
    assert asked == [0, 1, 2]


def test_models_are_kept_whether_they_are_tested_or_not(
    run: Path, tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observers, "BATCH", 3)
    experiment = tiny("rounds=2", 'evaluate=["global"]', methods=table("fedper", "ifca", "fedbabu", "centralised"))
    untested = contents(loop.start(experiment, tmp_path / "run").folder)
    assert len(untested) > 8
    assert untested == {name: data for name, data in contents(run).items() if name in untested}


def test_a_run_that_ends_early_keeps_its_models(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    experiment = tiny("rounds=5", "stop.megabytes=0.001", "eval_every=5", methods=table("fedper"))
    folder = loop.start(experiment, tmp_path / "run").folder
    one = loop.start(tiny("rounds=1", methods=table("fedper")), tmp_path / "one").folder
    assert contents(folder) == contents(one)


def test_a_disk_that_fills_while_models_are_written_is_survived(
    run: Path, tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, fsync = tiny("rounds=2", methods=table("fedper")), os.fsync

    def failing(fd: int) -> None:
        if "clients.safetensors" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(RunError, match=r"No space left on device.*unskew run"):
            loop.start(experiment, tmp_path / "run")
    assert sorted(contents(tmp_path / "run")) == ["seed0.task.json"]
    resumed = contents(loop.resume(tmp_path / "run").folder)
    assert resumed == {name: contents(run)[name] for name in resumed}
    assert "fedper-seed0.clients.safetensors" in resumed


# ---------------------------------------------------------------- how it is stored
TASK = TaskCard("mlp", {}, (2,), ("no", "yes"), Inputs(), ("w", "b"))


def cell(num_clients: int, names: tuple[str, ...] | None = None) -> CellCard:
    return CellCard("m", 0, num_clients, names)


def test_a_hundred_thousand_clients_of_one_model_take_a_few_bytes(tmp_path: Path) -> None:
    model = {"w": torch.ones(1000), "b": torch.zeros(2)}
    batches = [{c: model for c in range(first, first + 100)} for first in range(0, 100_000, 100)]
    models.save(tmp_path / "models", TASK, cell(100_000), model, batches)
    assert sorted(contents(tmp_path)) == ["m-seed0.json", "m-seed0.safetensors", "seed0.task.json"]
    assert len(contents(tmp_path)["m-seed0.json"]) < 200


def test_no_more_than_two_batches_of_models_are_in_memory(tmp_path: Path) -> None:
    alive = 0
    most = 0

    def gone() -> None:
        nonlocal alive
        alive -= 1

    def batches() -> Iterator[dict[int, dict[str, Tensor]]]:
        nonlocal alive, most
        for c in range(20):
            model = {"w": torch.full((5,), float(c)), "b": torch.zeros(1)}
            weakref.finalize(model["w"], gone)
            alive += 1
            most = max(most, alive)
            yield {c: model}
            del model

    models.save(tmp_path / "models", TASK, cell(20), None, batches())
    assert most <= 2 + 1
    stored = safetensors.torch.load_file(tmp_path / "models" / "m-seed0.clients.safetensors")
    assert torch.equal(stored["w"], torch.arange(20.0)[:, None].expand(20, 5))
    assert stored["b"].shape == (1, 1)


def test_a_layer_that_clients_have_in_several_shapes_comes_back(tmp_path: Path) -> None:
    own = {c: {"weight": torch.full((2, 2), float(c)), "bias": torch.ones(2 if c < 2 else 3)} for c in range(3)}
    card = replace(TASK, layers=("weight", "bias"))
    models.save(tmp_path / "models", card, cell(3), None, [own])
    assert load_model(tmp_path, "m", client=1, network=nn.Linear(2, 2)).state_dict()["weight"].eq(1).all()
    with pytest.raises(ConfigError, match=r"bias must be \(3,\), got \(2,\)"):
        load_model(tmp_path, "m", client=2, network=nn.Linear(2, 2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_tensors_of_every_width_come_back(dtype: torch.dtype, tmp_path: Path) -> None:
    """Mixed widths in one file: each must lie where its type may."""
    own = {c: {"b": torch.arange(3).to(torch.uint8) + c, "w": torch.arange(c, c + 5).to(dtype)} for c in range(3)}
    models.save(tmp_path / "models", TASK, cell(3), None, [own])
    card = json.loads((tmp_path / "models" / "m-seed0.json").read_text())
    stored = safetensors.torch.load_file(tmp_path / "models" / "m-seed0.clients.safetensors")
    for c, params in own.items():
        names = next(m["own"] for m in card["models"] if m["clients"] == "all" or c in m["clients"])
        assert {layer: stored[name][row].tolist() for layer, (name, row) in names.items()} == {
            layer: t.tolist() for layer, t in params.items()
        }


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
    assert inputs.axes == ("channels", "height", "width")


def test_a_file_says_what_shape_and_axes_an_example_has(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).random((24, 8, 9, 3), np.float32), np.arange(24) % 2
    history = us.simulate("fedavg", data=(x, y), split=us.IID(2), rounds=1, progress=False)
    save_model(history.model("fedavg"), tmp_path / "model.safetensors")
    with safetensors.safe_open(tmp_path / "model.safetensors", "pt") as file:
        inputs = json.loads(file.metadata()["unskew"])["task"]["inputs"]
    assert (inputs["shape"], inputs["axes"]) == ([3, 8, 9], ["channels", "height", "width"])


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


def test_a_network_with_a_loss_of_its_own_gives_no_probabilities() -> None:
    """Scores of a margin are no logits, whether the loss was asked for or came with the network."""
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    history = us.simulate("fedavg", data=(x, y), split=us.IID(2), rounds=1, model="svm", progress=False)
    model = history.model("fedavg")
    assert model.unskew.task.loss == "multi_margin"
    for asked in ({"probabilities": True}, {"threshold": 0.3}):
        with pytest.raises(ConfigError, match="with the loss multi_margin, which gives no probabilities"):
            predict(model, x, **asked)


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


def test_loading_draws_no_random_numbers(run: Path) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    load_model(run, "fedavg")
    assert torch.equal(torch.rand(3), expected)


def test_batch_norm_comes_back_with_its_statistics(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    experiment = tiny("rounds=1", methods=table("fedbn"))
    options = {"norm": "batch"}
    experiment = replace(experiment, task=replace(experiment.task, model="cnn_small", model_options=options))
    folder = loop.start(experiment, tmp_path / "run").folder
    means = [load_model(folder, "fedbn", client=c).state_dict()["body.norm1.running_mean"] for c in (0, 1)]
    assert not torch.equal(means[0], means[1])
    assert means[0].any()


def test_clients_are_named_as_the_data_name_them(tmp_path: Path) -> None:
    weights = {c: {"head.weight": torch.full((2, 2), float(c)), "head.bias": torch.zeros(2)} for c in range(2)}
    task = replace(TASK, model="logistic", layers=("head.weight", "head.bias"))
    models.save(tmp_path / "models", task, cell(2, ("Oslo", "Ward 7")), None, [weights])
    for name, number in (("Oslo", 0), ("Ward 7", 1), (1, 1), ("1", 1)):
        model = load_model(tmp_path, "m", client=name)
        assert (model.unskew.client, model.unskew.client_name) == (number, ("Oslo", "Ward 7")[number])
        assert model.head.weight.eq(number).all()
    with pytest.raises(RunError, match=r"no client 'Olso' of .*, seed 0; did you mean Oslo.*clients: Oslo, Ward 7"):
        load_model(tmp_path, "m", client="Olso")


WARDS = ("1", "10", "2")


@pytest.mark.parametrize("written", [str, int])
def test_a_client_whose_name_is_a_number_is_called_by_it_and_by_no_other(written: Any, tmp_path: Path) -> None:
    """Ward 1 is client 0 of the run and ward 10 client 1: whoever asks for 1 is never given ward 10's model."""
    weights = {c: {"head.weight": torch.full((2, 2), float(c)), "head.bias": torch.zeros(2)} for c in range(3)}
    task = replace(TASK, model="logistic", layers=("head.weight", "head.bias"))
    models.save(tmp_path / "models", task, cell(3, WARDS), None, [weights])
    for number, name in enumerate(WARDS):
        model = load_model(tmp_path, "m", client=written(name))
        assert (model.unskew.client, model.unskew.client_name) == (number, name)
        assert model.head.weight.eq(number).all()
        x = np.zeros((1, 2), np.float32)
        assert predict(model, x, client=written(name)) == predict(model, x)
        with pytest.raises(DataError, match=f"own model of client '{name}', and the rows are said to be of client"):
            predict(model, x, client=written(0))
    for stranger in (0, 3):
        with pytest.raises(
            RunError,
            match=rf"no client '?{stranger}'? of .*clients: 1, 10, 2",
        ):
            load_model(tmp_path, "m", client=written(stranger))


def test_rows_are_scaled_as_those_of_the_client_whose_name_is_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"x": rng.normal(size=90), "ward": np.repeat([1, 2, 10], 30)})
    frame["x"] += frame["ward"]
    frame["ill"] = (frame["x"] > frame["ward"]).astype(int)
    history = us.simulate(
        us.FedAvg(), data=frame, target="ill", client="ward", model="logistic", rounds=1, progress=False,
        preprocess=us.Preprocess(scale="site"),
    )  # fmt: skip
    model, rows = history.model("fedavg"), pandas.DataFrame({"x": [1.0, 2.5, 9.0]})
    said = predict(model, rows, client="2", probabilities=True)
    assert predict(model, rows, client=2, probabilities=True) == said
    assert predict(model, rows, client=1, probabilities=True) != said


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


def net(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))


@pytest.mark.parametrize("given", ["a name", "a module", "a function"])
def test_a_history_without_a_folder_has_its_models_whatever_the_network_was(given: str) -> None:
    module = net((1, 8, 8), 10)
    before = {name: t.clone() for name, t in module.state_dict().items()}
    forms = {"a name": "logistic", "a module": module, "a function": lambda shape, classes: net(shape, classes)}
    split = us.Dirichlet(alpha=1.0, num_clients=3)
    history = us.simulate({"own": us.Independent()}, model=forms[given], split=split, rounds=1, progress=False)
    model = history.model("own", client=2)
    assert predict(model, IMAGES[:1])[0] in range(10)
    assert model is not module
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())
    if given == "a function":
        with pytest.raises(ConfigError, match=r"given to its run as a value, [^;]*; give it to load_model, as in net"):
            load_model(history.folder, "own", client=2)


@pytest.mark.parametrize("method", ["FedPer", "fed-per", "fedper"])
def test_a_method_may_be_called_as_in_its_paper(method: str, run: Path) -> None:
    assert models.find(run, method, 1).method == "fedper"


# ---------------------------------------------------------------- what is refused
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "models of several methods; name one of centralised, ditto, "),
        ({"method": "fedpre"}, r"no model of 'fedpre'; did you mean fedper\?"),
        ({"method": "fedavg", "seed": 4}, r"no model of fedavg with seed 4 \(seeds: 0\)"),
        ({"method": "fedper"}, "no global model of fedper, seed 0: say whose, as in client=0"),
        ({"method": "fedper", "client": 4}, "no client 4 of fedper, seed 0; clients are 0 to 3"),
        ({"method": "fedper", "client": -1}, "no client -1 of fedper, seed 0; clients are 0 to 3"),
        ({"method": "fedper", "client": "Oslo"}, "no client 'Oslo' of fedper, seed 0; clients are 0 to 3"),
    ],
)
def test_a_model_that_is_not_there_is_refused_in_words(options: dict[str, Any], text: str, run: Path) -> None:
    with pytest.raises(RunError, match=text):
        load_model(run, **options)


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
    (models_in / "fedper-seed0.json").write_text("{}")
    with pytest.raises(RunError, match=r"fedper-seed0\.json does not describe models"):
        load_model(tmp_path / "run", "fedper", client=0)
    with pytest.raises(RunError, match="does not say what it is"):
        load_model(run / "models" / "centralised-seed0.safetensors")


def test_predict_and_save_need_a_model_that_says_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"load_model or history\.model"):
        predict(nn.Linear(2, 2), np.zeros((1, 2)))
    with pytest.raises(ConfigError, match=r"load_model or history\.model"):
        save_model(nn.Linear(2, 2), tmp_path / "x.safetensors")


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
    models.save(tmp_path / "models", task, CellCard("fedavg", 0, 1, None), weights, [])
    path = tmp_path if form == "folder" else tmp_path / "model.safetensors"
    if form == "folder":
        card = tmp_path / "models" / "seed0.task.json"
        card.write_text(json.dumps(json.loads(card.read_text()) | changes))
    else:
        models.export(tmp_path, path, "fedavg", None, None)
        with safetensors.safe_open(path, "pt") as file:
            about = json.loads(file.metadata()["unskew"])
        about["task"] |= changes
        safetensors.torch.save_file(weights, path, {"unskew": json.dumps(about)})
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


@pytest.mark.parametrize("name", TABLE)
def test_every_network_can_be_measured_without_memory(name: str) -> None:
    for shape in ((3, 32, 32), (784,)):
        try:
            expected = build(name, shape, 10)
        except ConfigError:
            continue
        with torch.device("meta"):
            measured = build(name, shape, 10)
        assert {k: t.shape for k, t in measured.named_parameters()} == {
            k: t.shape for k, t in expected.named_parameters()
        }
        return
    raise AssertionError(f"no shape fits {name}")


# ---------------------------------------------------------------- files from elsewhere
@pytest.mark.parametrize("name", ["seed0.task.json", "fedavg-seed0.json", "fedavg-seed0.safetensors", ""])
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
        load_model(copy, "fedavg")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_clients": 6 * 10**7, "global_model": False}, "there is no global model of fedavg"),
        ({"client_names": ["a"]}, "it has 1 name for 4 clients"),
        ({"models": [{"clients": [4], "own": {}}]}, "client 4 is none of its 4 clients"),
        ({"models": [{"clients": [-1], "own": {}}]}, "client -1 is none of its 4 clients"),
    ],
    ids=["many", "names", "beyond", "negative"],
)
def test_clients_that_no_run_has_are_refused(changes: dict[str, Any], said: str, run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    path = copy / "models" / "fedavg-seed0.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    tracemalloc.start()
    try:
        with pytest.raises(RunError, match=said):
            models.find(copy, "fedavg", None if "num_clients" in changes else 3)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


AGE = {"name": "age", "mean": [1.0], "sd": [1.0]}


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (
            {"kind": "images", "mean": [0.5], "std": []},
            "images have 1 means and 0 deviations, not one for each channel",
        ),
        ({"kind": "images", "mean": [0.5] * 3, "std": [0.2] * 3}, "images have 3 means and 3 deviations"),
        ({"kind": "table", "columns": []}, "a table has no columns"),
        ({"kind": "table", "columns": [AGE | {"sd": []}]}, "column 'age' has 1 means and 0 deviations"),
        (
            {"kind": "table", "columns": [AGE | {"fill": [1.0, 2.0]}], "clients": ["a"]},
            "column 'age' has 2 numbers of fill for 1 clients",
        ),
    ],
)
def test_inputs_that_contradict_each_other_are_refused(
    inputs: dict[str, Any], said: str, run: Path, tmp_path: Path
) -> None:
    """In a run's folder and in a file: predicting would fail in the middle."""
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    path = copy / "models" / "seed0.task.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"inputs": inputs}))
    with pytest.raises((RunError, ConfigError), match=said):
        load_model(copy, "fedavg")
    save_model(load_model(run, "fedavg"), tmp_path / "model")
    tensors = safetensors.torch.load_file(tmp_path / "model")
    with safetensors.safe_open(tmp_path / "model", "pt") as file:
        card = json.loads(file.metadata()["unskew"])
    card["task"]["inputs"] = inputs
    safetensors.torch.save_file(tensors, tmp_path / "model", {"unskew": json.dumps(card)})
    with pytest.raises((RunError, ConfigError), match=said):
        load_model(tmp_path / "model")


class OfIds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(60, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.words(x))
        return logits


def test_a_token_id_without_a_vector_is_refused_before_any_work() -> None:
    (ids, others), y = np.random.default_rng(0).integers(0, 60, (2, 80, 10)), np.arange(80) % 2
    rare = others.copy()
    rare[:, 3] = np.where(np.arange(80) == 30, 5000, rare[:, 3])

    def run(x: Any, test: Any = None) -> us.History:
        data = {"A": (ids, y), "B": (x, y)}
        return us.simulate(us.FedAvg(), data=data, test=test, model=OfIds(), rounds=1, progress=False)

    message = "OfIds cannot take token id 5000 of {}: .*give it vectors for 5001 ids, or correct that one"
    with pytest.raises(ConfigError, match=message.format("row 30 of client B")):
        run(rare, test=(ids[:2], y[:2]))
    with pytest.raises(ConfigError, match=message.format("a test example")):
        run(others, test=(rare[29:31], y[29:31]))
    model = run(others).model("fedavg")
    with pytest.raises(DataError, match=r"cannot take these token ids, 10 in a row and up to 700: .*as it was trained"):
        predict(model, np.full((1, 10), 700))
    with pytest.raises(DataError, match="got lists of different lengths; give rows of one length"):
        predict(model, [[1, 2], [3]])


def test_a_model_whose_outputs_are_no_numbers_predicts_nothing(run: Path) -> None:
    """The largest of three NaN is the first, which is a class."""
    model = load_model(run, "fedavg")
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    for probabilities in (False, True):
        with pytest.raises(RunError, match="the model's outputs are not finite: its weights are damaged, or its tra"):
            predict(model, IMAGES[:2], probabilities=probabilities)


def test_a_path_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"there is no model's file and no run's folder .*nosuch\.safetensors"):
        load_model(tmp_path / "nosuch.safetensors")


@pytest.mark.parametrize("kept", ["Z\u00fcrich", "Zu\u0308rich"])
def test_a_client_goes_by_its_name_in_any_form_of_unicode(kept: str) -> None:
    """Runs of older versions have kept names as they were written."""
    cell: Any = SimpleNamespace(method="fedper", seed=0, client_names=("Bern", kept), newcomers=())
    inputs = Inputs("table", columns=(Column("age", mean=(1.0, 2.0), sd=(1.0, 1.0)),), clients=("Bern", kept))
    for asked in ("Z\u00fcrich", "Zu\u0308rich"):
        assert models._client(cell, asked) == 1
        own = inputs.of(asked)
        assert (own.clients, own.columns[0].mean) == ((kept,), (2.0,))
    with pytest.raises(RunError, match="there is no client 'Zurich'"):
        models._client(cell, "Zurich")
