"""`unskew show --model`, called as from a shell."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from sklearn.datasets import load_digits

import unskew as us

from .conftest import Unskew

FEDPER = '[[methods]]\nname = "fedper"\nlabel = "FedPer (heads)"\npersonal = ["head.bias"]\n'


@pytest.fixture
def run(here: Path, unskew: Unskew) -> Path:
    (here / "tiny.toml").write_text((here / "tiny.toml").read_text() + FEDPER)
    assert unskew("run", "tiny.toml", "--set", "rounds=1", "--out", "r", "--no-report", "-q").code == 0
    return here / "r"


def test_an_exported_model_is_the_runs_and_says_what_it_is(run: Path, unskew: Unskew) -> None:
    said = unskew("show", "r", "--model", "m.safetensors", "--method", "FedPer (heads)", "--client", "3", "--seed", "1")
    assert said.code == 0
    file = Path("m.safetensors")
    assert said.out.startswith(f"{file}: model of client 3 of FedPer (heads), seed 1; network logistic\n")
    assert f"unskew.load_model('{file}')" in said.out
    model = us.load_model(file)
    expected = us.load_model("r", "FedPer (heads)", client=3, seed=1)
    assert model.unskew == expected.unskew
    assert all(torch.equal(t, expected.state_dict()[name]) for name, t in model.state_dict().items())
    assert set(us.predict(model, load_digits().images[:9])) <= set(range(10))


def test_a_file_needs_no_unskew_to_be_read(run: Path, unskew: Unskew) -> None:
    """It is a state dict by the network's own names; the scaling stands in its metadata."""
    assert unskew("show", "r", "--method", "fedavg", "--model", "m.safetensors").code == 0
    plain = torch.nn.Sequential()
    plain.add_module("body", torch.nn.Flatten())
    plain.add_module("head", torch.nn.Linear(64, 10))
    plain.load_state_dict(safetensors.torch.load_file("m.safetensors"))
    with safetensors.safe_open("m.safetensors", "pt") as file:
        card = json.loads(file.metadata()["unskew"])
    (mean,), (std,) = card["task"]["inputs"]["mean"], card["task"]["inputs"]["std"]
    x = torch.tensor(load_digits().images[:50])
    labels = plain(((x / 255 - mean) / std).float()[:, None]).argmax(1)
    assert labels.tolist() == us.predict(us.load_model("m.safetensors"), x)
    assert [card["task"][key] for key in ("classes", "label_type")] == [list("0123456789"), "integer"]
    assert (card["client"], card["method"], card["seed"]) == (None, "fedavg", 0)


@pytest.mark.usefixtures("unreported")
@pytest.mark.parametrize("scaled", [True, False])
def test_an_exported_regression_says_how_outputs_become_the_target_s_unit(
    scaled: bool, here: Path, unskew: Unskew
) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    task = us.TaskConfig(kind="regression", target_scale=(35000, 25000) if scaled else False)
    y = x[:, 0] if not scaled else 35000 + 25000 * x[:, 0]
    us.simulate(us.FedAvg(), data=(x, y), split=us.IID(2), task=task, rounds=1, out=here / "r", progress=False)
    said = unskew("show", "r", "--model", "m.safetensors").out
    assert ("y = out * 25000 + 35000" in said) == scaled
    assert "classes" not in said
    model = us.load_model("m.safetensors")
    with safetensors.safe_open("m.safetensors", "pt") as file:
        known = json.loads(file.metadata()["unskew"])["task"]["target_scale"]
    mean, spread = known or (0.0, 1.0)
    assert known == (list(model.unskew.task.target_scale) if scaled else None)
    with torch.no_grad():
        outputs = model(model.unskew.inputs.prepare(x[:5]))[:, 0] * spread + mean
    assert us.predict(model, x[:5]) == pytest.approx(outputs.tolist())


@pytest.mark.usefixtures("unreported")
def test_several_numbers_have_a_scale_each(here: Path, unskew: Unskew) -> None:
    y = np.stack([np.tile([0.0, 2.0], 30), np.tile([1.0, 5.0], 30)], 1)
    us.simulate(us.FedAvg(), data=(y, y), split=us.IID(2), task="regression", rounds=1, out=here / "r", progress=False)
    said = unskew("show", "r", "--model", "m.safetensors")
    assert said.code == 0
    shift, spread = us.load_model("m.safetensors").unskew.task.target_scale
    assert f"y = out * {list(spread)} + {list(shift)}" in said.out
