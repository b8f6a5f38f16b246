"""`simulate` with data and models that are values: what is trained, what is kept, what can go on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import unskew as us
from unskew import api
from unskew.errors import WorkerError
from unskew.experiment import config
from unskew.run import loop

# Their towns have one class each, which is warned of.
pytestmark = [pytest.mark.usefixtures("unreported"), pytest.mark.filterwarnings("ignore::unskew.errors.DataWarning")]
RNG = np.random.default_rng(5)
CENTRES = RNG.normal(size=(3, 6)).astype(np.float32) * 2
Y = np.arange(240) % 3
X = (CENTRES[Y] + RNG.normal(size=(240, 6))).astype(np.float32)
FAST = us.SgdConfig(lr=0.1, local_epochs=1, batch_size=16)
FEW: dict[str, Any] = {"rounds": 2, "progress": False}


class Net(nn.Module):
    """A network of one's own, of fixed sizes."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(6, width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.hidden(x).relu())
        return out


def made(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Linear(input_shape[0], num_classes)


def test_arrays_and_a_module_are_all_that_is_needed() -> None:
    history = us.simulate(
        us.FedAvg(FAST), data=(X, Y), model=Net(), split=us.IID(num_clients=4), **{**FEW, "rounds": 5}
    )
    assert history.value("fedavg") > 0.6


def test_a_modules_weights_are_the_start_of_every_method_and_seed_and_stay_what_they_were() -> None:
    net = Net().eval()
    before = {n: t.clone() for n, t in net.state_dict().items()}
    with torch.no_grad():
        right = (net(torch.from_numpy(X)).argmax(1) == torch.from_numpy(Y)).float().mean().item()
    history = us.simulate(
        {"a": us.FedAvg(FAST), "b": us.SCAFFOLD(local=FAST)}, data=(X, Y), test=(X, Y), model=net, seeds=(0, 1), **FEW
    )
    starts = [row["value"] for row in history.rows if (row["round"], row["name"]) == (0, "global.accuracy")]
    assert starts == pytest.approx([right] * 4)
    assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items())


@pytest.mark.parametrize("factory", [Net, lambda: Net(4), made, lambda shape, classes: nn.Linear(*shape, classes)])
def test_a_function_or_class_makes_a_model_of_its_own_for_every_seed(factory: Any) -> None:
    history = us.simulate(us.FedAvg(FAST), data=(X, Y), model=factory, seeds=(0, 1), **FEW)
    losses = {row["value"] for row in history.rows if (row["round"], row["name"]) == (0, "global.loss")}
    assert len(losses) == 2


def test_a_run_of_arrays_and_an_importable_model_goes_on_from_its_folder_wherever_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "an_importable_net.py").write_text(
        "from torch import nn\ndef net(input_shape, num_classes):\n    return nn.Linear(input_shape[0], num_classes)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from importlib import import_module

    net = import_module("an_importable_net").net
    kept = us.simulate(us.FedAvg(FAST), data=(X, Y), model=net, split=us.IID(num_clients=4), out=tmp_path / "r", **FEW)
    assert config.load(tmp_path / "r" / "config.toml", allow_code=True).task.model == "an_importable_net:net"
    (tmp_path / "r" / "summary.json").unlink()
    moved = (tmp_path / "r").rename(tmp_path / "moved")
    assert loop.resume(moved, allow_code=True).summary["fingerprint"] == kept.summary["fingerprint"]


@pytest.fixture
def pictures(tmp_path: Path) -> str:
    """Grey pictures of two classes at three sites, as a name of data."""
    for site in ("Basel", "Bern", "Chur"):
        for i in range(16):
            folder = tmp_path / "pictures" / site / ("dark", "light")[i % 2]
            folder.mkdir(parents=True, exist_ok=True)
            levels = RNG.integers(0, 100, (12, 12), dtype=np.uint8) + np.uint8(100 * (i % 2))
            Image.fromarray(levels).save(folder / f"{i}.png")
    return f"images:{tmp_path / 'pictures'}"


def simulated(folder: Path, **given: Any) -> None:
    us.simulate(us.FedAvg(FAST), out=folder, rounds=1, progress=False, **given)


def advised(folder: Path, **given: Any) -> None:
    experiment, _ = api.asked("advise", us.FedAvg(FAST), given, "advice")
    folder.mkdir()
    (folder / "advised.toml").write_text(config.to_toml(experiment))


def tuned(folder: Path, **given: Any) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed (extra [tune])")
    us.tune(us.FedAvg(FAST), out=folder, rounds=1, trials=1, final_seeds=1, progress=False, **given)


ENTRIES = {simulated: "config.toml", advised: "advised.toml", tuned: "tuned.toml"}
BALANCED = us.TaskConfig(class_weights="balanced", data_options={"size": 16})


@pytest.mark.parametrize("entry", ENTRIES)
def test_data_and_a_model_that_are_given_are_taken_whatever_else_the_task_says(
    entry: Any, pictures: str, tmp_path: Path
) -> None:
    """A TaskConfig has "digits" and "mlp" from birth, and its maker said neither."""
    entry(tmp_path / "out", data=pictures, model="cnn_small", task=BALANCED)
    learned = config.load(tmp_path / "out" / ENTRIES[entry]).task
    assert (learned.data, learned.model, learned.class_weights) == (pictures, "cnn_small", "balanced")
    assert learned.data_options == {"size": 16}


def test_what_only_the_task_says_is_taken() -> None:
    """So are the columns of a table that the task names, and a model that is the usual one of another kind."""
    said: tuple[Any, ...] = (us.TaskConfig(data="heart", model="logistic"), {"data": "heart", "model": "logistic"})
    for task in said:
        experiment, _ = api.described("fedavg", {"rounds": 1}, task=task)
        assert (experiment.task.data, experiment.task.model) == ("heart", "logistic")
    table = us.TaskConfig(data="csv:examples/hospitals.csv", kind="binary", preprocess=us.Preprocess())
    columns: dict[str, Any] = {"target": "diagnosis", "client": "hospital", "test": 0.25}
    experiment, _ = api.described("fedavg", {"rounds": 1}, task=table, model="logistic", **columns)
    assert experiment.task.data_options == columns
    assert experiment.task.model == "logistic"
    experiment, _ = api.described("fedavg", {"rounds": 1}, data=(X, Y), model="resnet18", task=us.TaskConfig())
    assert experiment.task.model == "resnet18"


# ---------------------------------------------------------------- a table for each client
class Fails(Net):
    """A network that cannot take what Bern has."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and bool((x > 500.0).any()):
            raise RuntimeError("bad sensor")
        return super().forward(x)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_ones_own_code_says_at_which_client_and_that_nothing_is_kept(workers: int) -> None:
    """In a worker all of it is the error's one sentence; in this process its notes, beside the code's own trace."""
    executor = us.Runtime(executor="workers", workers=1) if workers else us.Runtime(executor="sequential")
    data = {"Chur": (X[:120], Y[:120]), "Bern": (X[120:] + np.float32(1000.0), Y[120:])}
    with pytest.raises(WorkerError if workers else RuntimeError, match="bad sensor") as caught:
        us.simulate("fedavg", data=data, model=Fails(), runtime=executor, **FEW)
    text = " ".join([str(caught.value), *([] if workers else caught.value.__notes__)])
    assert "in step 'train' of client 1 (Bern)" in text
    assert "fedavg, seed 0, round 1" in text
    assert text.endswith("; nothing is kept of a run without out=FOLDER")
