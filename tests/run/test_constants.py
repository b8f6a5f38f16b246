"""Buffers that training does not change are constants of the network, which travel nowhere; the head is found."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unskew as us
from unskew.keys import Key
from unskew.record.logs import rows
from unskew.run.models import load_model

pytestmark = pytest.mark.usefixtures("unreported")
X = torch.randn(60, 8, generator=Key(1).generator())
Y = (X[:, 0] > 0).long()
TURN = torch.polar(torch.ones(8), torch.linspace(0.0, 3.0, 8))
MASK = torch.triu(torch.full((8, 8), float("-inf")), 1)


class Masked(nn.Module):
    """A mask and a scale, which are buffers or plain attributes."""

    def __init__(self, buffers: bool) -> None:
        super().__init__()
        self.body, self.out, self.drop = nn.Linear(8, 6), nn.Linear(6, 2), nn.Dropout(0.0)
        if buffers:
            self.register_buffer("mask", MASK.clone())
            self.register_buffer("allowed", MASK == 0)
            self.register_buffer("scale", torch.linspace(0.5, 1.5, 8), persistent=False)
            self.drop.register_buffer("mask", self.mask)  # shared
            self.register_buffer("ones", torch.ones(1).expand(8))
            self.register_buffer("turn", TURN)
        else:
            self.mask, self.allowed, self.scale, self.turn = MASK.clone(), MASK == 0, torch.linspace(0.5, 1.5, 8), TURN

    def forward(self, x: Tensor) -> Tensor:
        x = (x * self.turn).real
        seen = ((self.mask.to(x).softmax(-1) * self.allowed) @ x[..., None])[..., 0]
        out: Tensor = self.out(self.drop(torch.relu(self.body(seen * self.scale.to(x)))))
        return out


def masked(buffers: bool) -> nn.Module:
    with Key(3).ambient():
        return Masked(buffers)


TRIED = (
    ("fedavg", "sequential"), ("feddyn", "stacked"), ("fedper", "sequential"), ("fedavg+dp_sgd", "stacked"),
    ("fedavg+secure_sum", "sequential"), ("scaffold+dw", "stacked"), ("hcct", "stacked"), ("perfedavg", "sequential"),
)  # fmt: skip
"""A run of each kind of loop, by turns."""


def run(method: Any, model: nn.Module, out: Path, **settings: Any) -> us.History:
    rest = {"split": us.IID(num_clients=4), "local": us.SgdConfig(lr=0.05, batch_size=8), **settings}
    return us.simulate({"it": method}, data=(X, Y), model=model, rounds=2, out=out, progress=False, **rest)


@pytest.mark.filterwarnings("ignore::unskew.errors.DataWarning")
@pytest.mark.parametrize(("method", "executor"), TRIED)
def test_a_constant_buffer_is_as_a_plain_attribute(method: str, executor: str, tmp_path: Path) -> None:
    """Numbers and bytes are the same; a loaded model has the constants, too."""
    for buffers in (True, False):
        run(method, masked(buffers), tmp_path / str(buffers), runtime=us.Runtime(executor=executor))
    there, here = tmp_path / "False", tmp_path / "True"
    ours, theirs = (
        [r for r in rows(folder, "metrics") if not r["name"].startswith("seconds")] for folder in (here, there)
    )
    assert ours == theirs
    assert list(rows(here, "transfers")) == list(rows(there, "transfers"))
    for client in (0, 3):
        model = load_model(here, "it", client, network=masked(True))
        other = load_model(there, "it", client, network=masked(False))
        assert torch.equal(model(X), other(X))
        assert torch.equal(model.mask, MASK)


# ---------------------------------------------------------------- the head
class Swapped(nn.Module):
    """The classifier is registered first, and an unused layer last."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(16, 2)
        self.features = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.proj, self.norm = nn.Linear(16, 4), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.features(x))
        return out


def differing(history: us.History) -> set[str]:
    one, other = (history.model("it", client=c) for c in (0, 1))
    return {n for n, t in one.named_parameters() if not torch.equal(t, other.get_parameter(n))}


@pytest.mark.filterwarnings("ignore::unskew.errors.DataWarning")
@pytest.mark.parametrize("method", ["fedper", "fedrep", us.FedAvg(personal=("head",))])
def test_what_stays_with_clients_is_the_layer_that_makes_the_outputs(method: Any, tmp_path: Path) -> None:
    history = run(method, Swapped(), tmp_path / "r", split=us.Dirichlet(alpha=0.5, num_clients=3))
    assert differing(history) == {"classifier.weight", "classifier.bias"}
    named = run(
        method,
        Swapped(),
        tmp_path / "n",
        task=us.TaskConfig(head="features"),
        split=us.Dirichlet(alpha=0.5, num_clients=3),
    )
    assert differing(named) == {"features.0.weight", "features.0.bias"}


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_what_has_no_gradient_stays_as_it_is(executor: str, optimizer: Any, tmp_path: Path) -> None:
    """As in PyTorch, weight decay leaves it alone."""
    network = Swapped()
    decaying = us.SgdConfig(lr=0.05, weight_decay=0.1, momentum=0.5 * (optimizer == "sgd"), optimizer=optimizer)
    model = run("fedavg", network, tmp_path / "r", local=decaying, runtime=us.Runtime(executor=executor)).model("it")
    moved = {n for n, t in model.named_parameters() if not torch.allclose(t, network.get_parameter(n), rtol=1e-6)}
    assert moved == {n for n, _ in network.named_parameters() if n.startswith(("classifier", "features"))}
