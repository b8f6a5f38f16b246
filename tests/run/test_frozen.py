"""Frozen parameters are a part of the network: they do not travel, and nothing else is different without them."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unskew as us
from unskew import wire
from unskew.algorithms.fedavg import ModelMessage, ModelReply
from unskew.errors import RunError
from unskew.keys import Key
from unskew.record.logs import rows
from unskew.run.cell import Cell, Observer
from unskew.run.models import load_model

ROWS, FEATURES, CLASSES, CLIENTS = 72, 6, 3, 3
X, Y = torch.randn(ROWS, FEATURES, generator=Key(1).generator()), torch.arange(ROWS) % CLASSES
TEST = X + 0.1, Y
BODY = {"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"}


def network(free: bool = False, body_seed: int = 3) -> nn.Module:
    """A pretrained body with BatchNorm, frozen unless `free`, and a head."""
    with Key(body_seed).ambient():
        net = nn.Sequential(nn.Linear(FEATURES, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, CLASSES))
        for t in (net[1].running_mean, net[1].running_var):
            t.uniform_(0.5, 1.0)
    net[:3].requires_grad_(free)
    return net


BODY_SEED = 3


def frozen() -> nn.Module:
    """The network as a program makes it from a file of weights, which may change."""
    return network(body_seed=BODY_SEED)


def simulate(method: Any, model: Any, out: Path, **settings: Any) -> us.History:
    return us.simulate(
        {"it": method},
        data=(X, Y),
        test=TEST,
        model=model,
        split=us.IID(num_clients=CLIENTS),
        **{"rounds": 2, "runtime": us.Runtime(executor="sequential"), "out": out, **settings},
    )


def local(free: bool) -> us.SgdConfig:
    return us.SgdConfig(lr=0.1, batch_size=8, trainable=("head",) if free else ("all",))


# One of each kind of loop.
METHODS: dict[str, Callable[[us.SgdConfig], Any]] = {
    "own bias": lambda c: us.FedAvg(c, personal=("3.bias",)),
    "feddw": lambda c: us.FedDW(local=c),
    "hcct": lambda c: us.HCCT(local=c),
    "feddif": lambda c: us.FedDif(local=c),
    "scaffold + SecureSum": lambda c: us.wrap(us.SCAFFOLD(local=c), us.SecureSum()),
}


def values(out: Path) -> list[dict[str, Any]]:
    return [r for r in rows(out, "metrics") if not r["name"].startswith(("bytes.", "seconds"))]


def sent(out: Path) -> int:
    return sum(r["bytes"] for r in rows(out, "transfers"))


pytestmark = [
    pytest.mark.filterwarnings("ignore::unskew.errors.DataWarning"),  # that bodies travel, which they are to
    pytest.mark.usefixtures("unreported"),
]


@pytest.mark.parametrize("name", METHODS)
def test_a_run_is_the_same_bits_as_one_whose_body_travels(name: str, tmp_path: Path) -> None:
    """`local.trainable` leaves the same parameters alone; then they and their statistics are in every model."""
    for free in (True, False):
        simulate(METHODS[name](local(free)), network(free), tmp_path / str(free))
    there, here = tmp_path / "True", tmp_path / "False"
    assert values(here) == values(there)
    assert sent(here) < 0.8 * sent(there)
    served = [0, 1, 2] if name in ("own bias", "hcct") else [None, 0, 1, 2]  # which have no global model
    for client in served:
        ours, theirs = (load_model(p, "it", client, network=network()).state_dict() for p in (here, there))
        assert ours.keys() == theirs.keys() >= BODY
        assert all(torch.equal(t, theirs[n]) for n, t in ours.items())
        assert all(torch.equal(ours[n], t) for n, t in network().state_dict().items() if n in BODY)


def test_a_message_is_smaller_by_the_frozen_tensors(tmp_path: Path) -> None:
    simulate(us.FedAvg(local(False)), network(), tmp_path / "r")
    net = network()
    head = {n: t for n, t in net.state_dict().items() if n not in BODY and t.is_floating_point()}
    assert {n: t.numel() for n, t in head.items()} == {"3.weight": 60, "3.bias": 3}
    expected = {"down": wire.nbytes(ModelMessage(head)), "up": wire.nbytes(ModelReply(head, 16))}
    measured = {(r["name"], r["value"]) for r in rows(tmp_path / "r", "metrics") if r["name"][:6] == "bytes."}
    assert measured >= {(f"bytes.{way}", float(CLIENTS * size)) for way, size in expected.items()}


def test_noise_does_not_reach_frozen_parameters(tmp_path: Path) -> None:
    """It would ruin a body that nobody trains; BatchNorm in it keeps its statistics, which noise otherwise refuses."""
    for wrapper in (us.LocalDP(), us.DPSGD()):
        history = simulate(us.wrap(us.FedAvg(local(False)), wrapper), network(), tmp_path / type(wrapper).__name__)
        after, before = history.model("it").state_dict(), network().state_dict()
        assert all(torch.equal(after[n], before[n]) for n in BODY)
        assert not torch.equal(after["3.weight"], before["3.weight"])


def test_an_exported_model_has_the_frozen_tensors_too(tmp_path: Path) -> None:
    simulate(us.FedAvg(local(False), personal=("3.bias",)), network(), tmp_path / "r")
    model = load_model(tmp_path / "r", client=1, network=network(body_seed=4))
    us.save_model(model, tmp_path / "one.safetensors")
    again = load_model(tmp_path / "one.safetensors", network=network(body_seed=5))
    assert all(torch.equal(again.state_dict()[n], t) for n, t in model.state_dict().items())
    assert all(torch.equal(again.state_dict()[n], t) for n, t in network().state_dict().items() if n in BODY)
    assert us.predict(again, TEST[0]) == us.predict(model, TEST[0])


class StopsOnce(Observer):
    def ended_round(self, cell: Cell) -> None:
        if cell.round == 1:
            raise KeyboardInterrupt


def test_a_run_goes_on_with_the_same_frozen_parameters_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = simulate(us.SCAFFOLD(local=local(False)), frozen, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        simulate(us.SCAFFOLD(local=local(False)), frozen, tmp_path / "r", callback=StopsOnce())
    monkeypatch.setattr(sys.modules[__name__], "BODY_SEED", 4)
    with pytest.raises(
        RunError, match=r"the network \S+:frozen of .*, or its weights .* was changed since the run began"
    ):
        us.resume(tmp_path / "r", allow_code=True)
    monkeypatch.undo()
    resumed = us.resume(tmp_path / "r", allow_code=True)
    assert resumed.summary["fingerprint"] == whole.summary["fingerprint"]
