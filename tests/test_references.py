"""What a file names is looked at before it is called; nothing of it is imported where it may come from elsewhere."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import unskew as us
from unskew import models
from unskew.algorithms import presets, resolve
from unskew.cli.audit import audit
from unskew.data.inputs import Inputs
from unskew.deploy.client import open_client
from unskew.errors import ConfigError, RunError
from unskew.experiment import config
from unskew.run import loop
from unskew.run.models import ModelCard, ModelClients, TaskCard, load_model, save


# ---------------------------------------------------------------- the attacks
def test_a_method_that_starts_a_shell_or_deletes_a_folder_is_not_called(tmp_path: Path) -> None:
    """The worker's entry point takes the name of a function and its arguments, and calls it."""
    (tmp_path / "precious").mkdir()
    order = json.dumps({"target": "os:system", "arguments": [f"touch {tmp_path / 'ran'}"], "fd": -1})
    shell = {"name": "unskew.local.workers.worker:started", "order": order}
    for method in (shell, {"name": "unskew.run.folder:remove", "path": str(tmp_path / "precious")}):
        with pytest.raises(ConfigError, match="must be a class with init, round, serve"):
            config.parse({"rounds": 1, "methods": [method]})
    assert [p.name for p in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize("model", ["os:system", "pathlib:Path", "subprocess:Popen", "torch:os.system", "torch:load"])
def test_a_model_that_is_none_is_not_called(model: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must be a torch\.nn\.Module class, or a function annotated to return one"):
        models.build(model, (1, 8, 8), 10, command=f"touch {tmp_path / 'ran'}")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["this:s", "unskew.__main__:main", "unskew.run.folder:remove"])
def test_what_cannot_be_meant_is_not_even_imported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(module: str) -> None:
        raise AssertionError(f"{module} was imported")

    monkeypatch.setattr("unskew.references.importlib.import_module", never)
    with pytest.raises(ConfigError, match=r"is part of Python itself|is inside unskew and not in its table"):
        resolve(name)


# ---------------------------------------------------------------- what counts as a method
@dataclass(frozen=True)
class Mine(us.FedAvg):
    mu: float = 0.1


def annotated(mu: float = 0.2) -> Mine:
    return Mine(mu=mu)


lighter = presets.variant(Mine, "Lighter", "Mine with less.", mu=0.01)
decorated = presets.presets({"paper": {"mu": 0.5}})(annotated)


def one_of_two(mu: float = 0.2) -> Mine | us.FedAvg:
    return Mine(mu=mu)


bound = partial(annotated, mu=0.3)


@pytest.mark.parametrize("name", ["Mine", "annotated", "lighter", "decorated", "bound", "one_of_two"])
def test_a_method_is_a_class_or_a_function_annotated_to_return_one(name: str) -> None:
    assert isinstance(resolve(f"{__name__}:{name}")(), Mine)


# ---------------------------------------------------------------- what counts as a network
def unannotated(input_shape, num_classes, width=3):  # type: ignore[no-untyped-def]
    return nn.Linear(input_shape[0], num_classes)


def saying_otherwise(input_shape: Any, num_classes: Any) -> str:
    raise AssertionError


class Net(nn.Module):
    @classmethod
    def small(cls, input_shape: Any, num_classes: Any) -> "Net":
        return cls()


@pytest.mark.parametrize("name", ["unannotated", "Net", "Net.small"])
def test_a_network_is_a_class_an_annotated_function_or_one_of_our_parameters(name: str) -> None:
    assert isinstance(models.build(f"{__name__}:{name}", (4,), 2), nn.Module)


def test_a_function_without_annotation_counts_only_in_a_file_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "installed_net.py").write_text("def net(input_shape, num_classes):\n    raise AssertionError\n")
    monkeypatch.syspath_prepend(str(site))
    with pytest.raises(ConfigError, match="net without a return annotation"):
        models.build("installed_net:net", (4,), 2)


def test_a_function_that_says_it_returns_something_else_is_no_network() -> None:
    with pytest.raises(ConfigError, match="annotated to return one"):
        models.build(f"{__name__}:saying_otherwise", (4,), 2)


# ---------------------------------------------------------------- who may import what a file names
CODE = """
from pathlib import Path
from torch import nn
import unskew as us

Path(__file__).with_name("ran").touch()

def net(input_shape, num_classes):
    return nn.Linear(input_shape[0], num_classes)

class Mine(us.FedAvg):
    pass
"""
EXPERIMENT = """
rounds = 1
task = { model = "%s" }
[[methods]]
name = "%s"
"""
ITS_MODEL, ITS_METHOD = EXPERIMENT % ("foreign_code:net", "fedavg"), EXPERIMENT % ("logistic", "foreign_code:Mine")
ITS_ADDITION = EXPERIMENT % ("logistic", "foreign_code:Mine+dw")


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that `foreign_code`, which can be imported, writes when it is."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "foreign_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    monkeypatch.delitem(sys.modules, "foreign_code", raising=False)
    return tmp_path / "code" / "ran"


def load(folder: Path) -> None:
    config.load(folder / "config.toml")


def resume(folder: Path) -> None:
    (folder / "run.json").write_text("{}")
    loop.resume(folder)


def attack(folder: Path) -> None:
    audit(str(folder))


def take_part(folder: Path) -> None:
    (folder / "experiment.toml").write_text((folder / "config.toml").read_text())
    open_client(folder, 0, 4)


@pytest.mark.parametrize("text", [ITS_MODEL, ITS_METHOD, ITS_ADDITION], ids=["model", "method", "addition"])
@pytest.mark.parametrize("read", [load, resume, take_part, attack])
def test_what_comes_from_elsewhere_imports_nothing(
    read: Callable[[Path], object], text: str, ran: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(
        ConfigError,
        match=r"(model|methods\.0\.name) names code \(foreign_code:(net|Mine)\) .* --allow-code, .*\.toml\)$",
    ):
        read(tmp_path)
    assert not ran.exists()


@pytest.mark.parametrize("text", [ITS_MODEL, ITS_METHOD], ids=["model", "method"])
def test_what_is_ones_own_is_imported_when_asked_for(text: str, ran: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(text)
    experiment = config.load(tmp_path / "config.toml", allow_code=True)
    models.build(experiment.task.model, (4,), 2)
    assert ran.exists()
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(RunError, match="was changed since the run began"):  # it was read, code and all
        loop.resume(tmp_path, allow_code=True)


def test_a_model_from_elsewhere_imports_nothing_unless_asked_to(ran: Path, tmp_path: Path) -> None:
    network = nn.Linear(4, 2)
    weights = {name: t.detach() for name, t in network.named_parameters()}
    task = TaskCard("foreign_code:net", {}, (4,), ("a", "b"), Inputs(), tuple(weights))
    save(tmp_path / "models", ModelCard("fedavg", 0, None, None, task, clients=ModelClients(1)), weights, [])
    with pytest.raises(ConfigError, match=r"model names code .foreign_code:net. .* as in network=Net"):
        load_model(tmp_path)
    assert load_model(tmp_path, network=network) is network
    assert not ran.exists()
    assert isinstance(load_model(tmp_path, allow_code=True), nn.Linear)


def test_installed_registries_need_no_permission(ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point's name, its target, our tables' targets and classes."""
    about = tmp_path / "code" / "foreign-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[unskew.algorithms]\nforeign = foreign_code:Mine\n")
    for name in ("unskew:FedAvg", "unskew.algorithms.fedavg:FedAvg", "foreign", "foreign_code:Mine"):
        assert config.parse({"rounds": 1, "methods": [{"name": name}]}).methods[0].name == name
