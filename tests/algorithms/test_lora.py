"""Adapters: what of them travels, by hand and with PEFT's own."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unskew as us
from unskew.errors import ConfigError

peft = pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="the extra [peft] is not installed")


class Adapted(nn.Module):
    """3 x + B A x, the 3 frozen; A is drawn, B begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(1, 1, bias=False).requires_grad_(False)
        self.base.weight.data.fill_(3.0)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(1, 1, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(1, 1, bias=False)})
        self.lora_A["default"].weight.data.fill_(0.5)
        self.lora_B["default"].weight.data.zero_()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + self.lora_B["default"](self.lora_A["default"](x))
        return y


A, B = "lora_A.default.weight", "lora_B.default.weight"
SITES = {"one": ([[1.0]] * 4, [5.0] * 4), "two": ([[2.0]] * 4, [2.0] * 4)}


def run(method: Any, rounds: int = 1) -> us.History:
    """Squared error; client one has rows (x, y) = (1, 5), client two (2, 2)."""
    data = {name: (np.array(x, np.float32), np.array(y, np.float32)) for name, (x, y) in SITES.items()}
    task = us.TaskConfig(kind="regression", target_scale=False, head="lora_B")
    return us.simulate(method, data=data, model=Adapted(), task=task, rounds=rounds, progress=False, test_fraction=0.25)


def weights(model: nn.Module) -> tuple[float, float]:
    named = dict(model.named_parameters())
    assert named["base.weight"].item() == 3.0
    return named[A].item(), named[B].item()


LOCAL = us.SgdConfig(lr=0.1, batch_size=None)


def test_ffa_lora_averages_b_under_the_a_that_was_drawn() -> None:
    """A = .5.  Outputs 3 and 6, errors -2 and 4: dB is error A x, -1 and 4, twice for squared error: .2 and -.8."""
    history = run(us.FFALoRA(local=LOCAL))
    assert weights(history.model("ffalora")) == pytest.approx((0.5, (0.2 - 0.8) / 2))
    assert history.value("ffalora", "bytes.total") < run(us.FedAvg(LOCAL)).value("fedavg", "bytes.total")


def test_fedsa_lora_averages_a_and_each_keeps_its_b() -> None:
    """Round 1: B is zero, so A has no gradient.  Round 2: dA = 2 error B x; client one's output is 3.1, two's 5.2."""
    history = run(us.FedSALoRA(LOCAL), rounds=2)
    a_one, a_two = 0.5 - 0.1 * 2 * (3.1 - 5) * 0.2, 0.5 - 0.1 * 2 * (5.2 - 2) * -0.8 * 2
    b_one, b_two = 0.2 - 0.1 * 2 * (3.1 - 5) * 0.5, -0.8 - 0.1 * 2 * (5.2 - 2) * 0.5 * 2
    for client, b in (("one", b_one), ("two", b_two)):
        assert weights(history.model("fedsalora", client)) == pytest.approx(((a_one + a_two) / 2, b))


def test_a_network_without_adapters_is_refused() -> None:
    data = (np.ones((90, 3), np.float32), np.arange(90) % 2)
    for method in ("ffalora", "fedsalora"):
        with pytest.raises(ConfigError, match="no tensor of the model is called 'lora_"):
            us.simulate(method, data=data, model="mlp", split=us.IID(3), rounds=1, progress=False)


def base() -> nn.Module:
    with us.Key(5).ambient():
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.usefixtures("unreported")
@peft
def test_only_adapters_and_the_head_travel_and_are_kept(tmp_path: Path) -> None:
    """Rank 2 on 6 -> 8: 12 numbers in A, 16 in B; the head 18.  The checkpoint and the ledger hold these 46."""
    x = np.random.default_rng(0).normal(size=(80, 6)).astype("float32")
    every: dict[str, Any] = {"data": (x, (x[:, 0] > 0).astype(int)), "split": us.IID(4), "rounds": 2, "progress": False}
    options = {"lora": {"rank": 2, "trained": ["2"]}}
    task = us.TaskConfig(model_options=options)
    methods = {"FedAvg": us.FedAvg(), "FFA": us.FFALoRA(), "FedSA": us.FedSALoRA()}
    history = us.simulate(methods, model=base, task=task, out=tmp_path / "r", **every)
    for name, numbers in (("FedAvg", 46), ("FFA", 34), ("FedSA", 30)):
        up = history.value(name, "bytes.up") / 8
        assert 4 * numbers < up < 4 * numbers + 500
    model, start = history.model("FedAvg"), base()
    named = dict(model.named_parameters())
    assert torch.equal(named["0.base_layer.weight"], start[0].weight)  # type: ignore[index,arg-type]
    assert {n for n, p in named.items() if p.requires_grad} == {
        "0.lora_A.default.weight", "0.lora_B.default.weight", "2.weight", "2.bias",
    }  # fmt: skip
    assert not torch.equal(named["2.weight"], start[2].weight)  # type: ignore[index,arg-type]
