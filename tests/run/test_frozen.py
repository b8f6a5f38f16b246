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
from unskew.decide.forecast.plan import plan
from unskew.errors import ConfigError, RunError
from unskew.experiment import config
from unskew.experiment.config import Experiment
from unskew.keys import Key
from unskew.record.logs import rows
from unskew.run import loop
from unskew.run.callbacks import NoCallback, Progress
from unskew.run.folder import read_json
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


METHODS: dict[str, Callable[[us.SgdConfig], Any]] = {
    "fedavg": us.FedAvg,
    "fedprox": lambda c: us.FedProx(local=c),
    "fedadam": lambda c: us.FedAdam(local=c),
    "scaffold": lambda c: us.SCAFFOLD(local=c),
    "feddyn": lambda c: us.FedDyn(local=c),
    "own bias": lambda c: us.FedAvg(c, personal=("3.bias",)),
    "ditto": lambda c: us.Ditto(local=c),
    "feddw": lambda c: us.FedDW(local=c),
    "hcct": lambda c: us.HCCT(local=c),
    "feddif": lambda c: us.FedDif(local=c),
    "moon": lambda c: us.MOON(local=c),
    "fedavg + TopK": lambda c: us.wrap(us.FedAvg(c), us.TopK(0.5)),
    "scaffold + SecureSum": lambda c: us.wrap(us.SCAFFOLD(local=c), us.SecureSum()),
    "fedavg + Median": lambda c: us.wrap(us.FedAvg(c), us.Median()),
}


def values(out: Path) -> list[dict[str, Any]]:
    return [r for r in rows(out, "metrics") if not r["name"].startswith(("bytes.", "seconds"))]


def sent(out: Path) -> int:
    return sum(r["bytes"] for r in rows(out, "transfers"))


pytestmark = pytest.mark.filterwarnings("ignore::unskew.errors.DataWarning")  # that bodies travel, which they are to


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


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "moon", "hcct"])
def test_a_method_stands_all_checks_on_a_frozen_network(name: str) -> None:
    """In both executors, resumed, through bytes, with clients lost."""

    def small() -> nn.Module:
        with Key(3).ambient():
            body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU()).requires_grad_(False)
        return nn.Sequential(body, nn.Linear(6, 3))

    us.check_method(METHODS[name](us.SgdConfig(lr=0.1, batch_size=4)), network=small)


def test_clients_that_come_after_training_get_the_whole_model(tmp_path: Path) -> None:
    for free in (True, False):
        unseen = {"unseen": 0.4}
        simulate(us.FedAvg(local(free)), network(free), tmp_path / str(free), **unseen)
    assert any(r["name"].startswith("unseen") for r in values(tmp_path / "False"))
    assert values(tmp_path / "False") == values(tmp_path / "True")


def test_an_exported_model_has_the_frozen_tensors_too(tmp_path: Path) -> None:
    simulate(us.FedAvg(local(False), personal=("3.bias",)), network(), tmp_path / "r")
    model = load_model(tmp_path / "r", client=1, network=network(body_seed=4))
    us.save_model(model, tmp_path / "one.safetensors")
    again = load_model(tmp_path / "one.safetensors", network=network(body_seed=5))
    assert all(torch.equal(again.state_dict()[n], t) for n, t in model.state_dict().items())
    assert all(torch.equal(again.state_dict()[n], t) for n, t in network().state_dict().items() if n in BODY)
    assert us.predict(again, TEST[0]) == us.predict(model, TEST[0])


class StopsOnce(NoCallback):
    def progress(self, progress: Progress) -> None:
        if progress.round == 1:
            raise KeyboardInterrupt


def test_a_model_of_an_earlier_round_has_the_frozen_tensors_too(tmp_path: Path) -> None:
    simulate(us.FedAvg(local(False)), network(), tmp_path / "r", keep_models=us.KeepModels(every=1))
    first, last = (load_model(tmp_path / "r", network=network(body_seed=4), round=t).state_dict() for t in (1, None))
    assert all(torch.equal(of[n], t) for of in (first, last) for n, t in network().state_dict().items() if n in BODY)
    assert not torch.equal(first["3.weight"], last["3.weight"])


def test_a_run_goes_on_with_the_same_frozen_parameters_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = simulate(us.SCAFFOLD(local=local(False)), frozen, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        simulate(us.SCAFFOLD(local=local(False)), frozen, tmp_path / "r", callback=StopsOnce())
    monkeypatch.setattr(sys.modules[__name__], "BODY_SEED", 4)
    with pytest.raises(RunError, match=r"begun with another network, or other weights .*, than \S+:frozen has now"):
        us.resume(tmp_path / "r", allow_code=True)
    monkeypatch.undo()
    resumed = us.resume(tmp_path / "r", allow_code=True)
    assert resumed.summary["fingerprint"] == whole.summary["fingerprint"]


@pytest.fixture
def experiment() -> Experiment:
    return config.parse(
        {
            "name": "frozen",
            "rounds": 2,
            "task": {"data": "digits", "model": f"{__name__}:of_digits", "head": "1"},
            "split": {"name": "iid", "num_clients": 3},
            "local": {"lr": 0.1, "trainable": ["head"]},
            "runtime": {"executor": "sequential"},
            "methods": [
                {"name": "fedavg"},
                {"name": "scaffold"},
                {"name": "fedavg", "label": "coded", "with": ["top_k"]},
            ],
        },
        allow_code=True,
    )


FREE = False


def of_digits() -> nn.Module:
    with Key(3).ambient():
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU()).requires_grad_(FREE)
    return nn.Sequential(body, nn.Linear(32, 10))


def test_what_is_forecast_is_what_is_sent(experiment: Experiment, tmp_path: Path) -> None:
    forecast = plan(experiment)
    run = loop.start(experiment, tmp_path / "r").folder
    for cost in forecast.costs:
        assert cost.bytes is not None
        ledger = sum(r["bytes"] for r in rows(run, "transfers") if r["method"] == cost.method)
        assert sum(cost.bytes.values()) == ledger


def test_parts_that_are_frozen_are_said_to_be_so_where_they_are_named(tmp_path: Path) -> None:
    for groups in (("body",), ("norm",)):
        with pytest.raises(
            ConfigError, match=r"selects no parameter \(what is frozen, with requires_grad=False, is in no"
        ):
            simulate(us.FedAvg(local=us.SgdConfig(trainable=groups)), frozen, tmp_path / "r")
    with pytest.raises(ConfigError, match=r"called '1\.weight', or in a layer of that name, and not frozen"):
        simulate(us.FedPer(personal=("1.weight",)), frozen, tmp_path / "r")
    simulate(us.FedBN(local=local(False)), frozen, tmp_path / "r")
    (said,) = read_json(tmp_path / "r" / "run.json")["remarks"]
    assert (
        "['norm'] selects no tensor of the network (what is frozen, with requires_grad=False, is in no group)" in said
    )
