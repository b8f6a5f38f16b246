"""Clients with networks of several kinds, under methods that average no whole network."""

import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import unskew as us
from unskew.errors import ConfigError, DataError
from unskew.keys import Key
from unskew.local.data import DeviceData
from unskew.local.sequential import Sequential
from unskew.local.trainer import LocalTrainer
from unskew.runtime.in_process import Population, Simulator
from unskew.tasks.task import make_task

ALLOW = ("independent", "feddistill", "fedproto", "lgfedavg", "fedmd")
STILL = us.SgdConfig(lr=1e-30, batch_size=None)
"""Training that changes nothing, so that what clients send follows from the initial weights."""


def weighted(*layers: list[list[float]]) -> nn.Sequential:
    """Linear layers without biases, of these weights."""
    parts = [nn.Linear(len(w[0]), len(w), bias=False) for w in layers]
    for part, w in zip(parts, layers, strict=True):
        part.weight.data = torch.tensor(w)
    return nn.Sequential(OrderedDict(body=nn.Sequential(*parts[:-1]), head=parts[-1]))


def narrow() -> nn.Module:
    """Features 2x; logits (r, -r)."""
    return weighted([[2.0]], [[1.0], [-1.0]])


def wide() -> nn.Module:
    """Features x + 3x by way of two hidden numbers; logits (r, 2r)."""
    return weighted([[1.0], [3.0]], [[1.0, 1.0]], [[1.0], [2.0]])


def played(method: Any, rounds: int = 1) -> tuple[Simulator[Any], Any]:
    """Client 0 has the narrow network and x = 1 | 3 of classes 0 | 1, client 1 the wide one and 2 | 5, 7."""
    x, y = torch.tensor([[1.0], [3.0], [2.0], [5.0], [7.0]]), torch.tensor([0, 1, 0, 1, 1])
    rows = (torch.tensor([0, 1]), torch.tensor([2, 3, 4]))
    data = DeviceData(x, y, rows, (rows[0][:0],) * 2, public=(x[[0, 2]], y[[0, 2]]))
    one, two = (make_task(build, 2, examples=x[:4]) for build in (narrow, wide))
    trainer = LocalTrainer(one, data, others={1: LocalTrainer(two, data)})
    starts = [task.init(Key(0)) for task in (one, two)]
    networks = {1: (two.layout, starts[1])}
    population = Population(torch.tensor([[1, 1], [1, 2]]), one.layout, starts[0], one.init, trainer, networks)
    sim: Simulator[Any] = Simulator(method, population, Sequential(trainer), codec=True)
    state = sim.start()
    for t in range(1, rounds + 1):
        state, _ = sim.round(state, t)
    return sim, state


def test_prototypes_of_two_networks_are_averaged() -> None:
    """Class 0: 2 and 8, one example each: 5.  Class 1: 6 of one, (20 + 28) / 2 = 24 of two: (6 + 48) / 3 = 18."""
    _, state = played(us.FedProto(local=STILL))
    assert state.rows.tolist() == [[5.0], [18.0]]
    assert state.counts.tolist() == [2, 3]


def test_outputs_of_two_networks_are_averaged() -> None:
    """Row 0: (2, -2) and (8, 16): (5, 7).  Row 1: (6, -6), and the mean of (20, 40) and (28, 56): (15, 21)."""
    _, state = played(us.FedDistill(local=STILL))
    assert state.z.tolist() == [[5.0, 7.0], [15.0, 21.0]]


def test_scores_of_public_rows_by_two_networks_are_averaged() -> None:
    """Of x = 1: (2, -2) and (4, 8), mean (3, 3); of x = 2 twice that.  In round 2 they are sent to both as well."""
    sim, state = played(us.FedMD(STILL, STILL, STILL))
    assert state.scores.tolist() == [[3.0, 3.0], [6.0, 6.0]]
    again, trace = sim.round(state, 2)
    assert again.scores.tolist() == state.scores.tolist()
    up, down = (sum(t.bytes for t in trace.transfers if t.direction == way) for way in ("up", "down"))
    assert up == down  # the same four floats for each


def test_public_rows_that_teach_nothing_leave_training_alone() -> None:
    """FedMD with a start and a digest that change nothing is Independent, model by model."""
    local = us.SgdConfig(lr=0.1, local_epochs=2, batch_size=1)
    (md, a), (alone, b) = played(us.FedMD(STILL, STILL, local), 3), played(us.Independent(local), 3)
    for one, other in zip(md.own_models(a, [0, 1], 3).values(), alone.own_models(b, [0, 1], 3).values(), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize("public", [0.25, "2"])
def test_public_rows_are_nobodys(public: float | str) -> None:
    """A share of what each client trains on, or a client's rows: no client has them, and no row is lost."""
    data = us.load("digits")
    plain, fed = (us.federate(data, us.IID(5), us.Key(0), public=p) for p in ("", public))
    assert fed.public is not None
    trained = {*fed.clients.train.values.tolist()}
    assert not trained & {*fed.public.tolist()}
    assert len(fed.public) == pytest.approx(len(plain.clients.train.values) * (0.25 if public == 0.25 else 0.2), abs=5)
    assert trained | {*fed.public.tolist()} == {*plain.clients.train.values.tolist()}


def test_a_method_that_needs_public_rows_says_so() -> None:
    with pytest.raises(ConfigError, match="fedmd: it needs public data; give them as public="):
        run(network(8), "fedmd", public="")


def test_public_rows_may_be_the_servers_own_in_any_form(tmp_path: Path) -> None:
    """Arrays, a torch Dataset and a file of the same rows; without labels nobody begins on them."""
    x = torch.randn(160, 4, generator=us.Key(5).generator()).numpy()
    y = (x[:, 0] > 0).astype(int)
    np.savez(tmp_path / "public.npz", x_train=x[:40], y_train=y[:40])

    def loss(public: object) -> float:
        data, split = (x[40:], y[40:]), us.IID(3)
        history = us.simulate("fedmd", data=data, split=split, public=public, rounds=1, progress=False)
        return history.value("fedmd", "personal.loss.mean")

    arrays = loss((x[:40], y[:40]))
    pairs = torch.utils.data.TensorDataset(torch.from_numpy(x[:40]), torch.from_numpy(y[:40]))
    assert arrays == loss(f"npz:{tmp_path / 'public.npz'}") == loss(pairs)
    assert arrays < loss((x[:40], None))
    with pytest.raises(DataError, match="7 is no class"):
        loss((x[:40], np.full(40, 7)))


def test_the_head_of_two_networks_is_averaged_and_bodies_stay() -> None:
    """Both train from the server's head (1, -1).

    Client 0 alone gets from full batches w - lr g: logits (2x, -2x) for x = 1 | 3 of classes 0 | 1.  With p the second
    class's probability, 1 / (1 + e^4x), the gradient of head (a, b) is the mean of (-p, p) 2 and (1 - p, p - 1) 6.
    """
    p, q = (1 / (1 + math.exp(4 * x)) for x in (1, 3))
    g = (-p * 2 + (1 - q) * 6) / 2
    r, s, t = (1 / (1 + math.exp(8 * x)) for x in (2, 5, 7))
    h = (-r * 8 + (1 - s) * 20 + (1 - t) * 28) / 3
    sim, state = played(us.LGFedAvg(us.SgdConfig(lr=0.1, batch_size=None)))
    mean = 1 - 0.1 * (2 * g + 3 * h) / 5
    assert state.params["head.weight"].flatten().tolist() == pytest.approx([mean, -mean])
    own = sim.own_models(state, [0, 1], 1)
    assert [[*m] for m in own.values()] == [
        ["body.0.weight", "head.weight"],
        ["body.0.weight", "body.1.weight", "head.weight"],
    ]
    assert own[0]["head.weight"] is own[1]["head.weight"]
    assert {name for m in sim.memory.at(1).values() for name in m} == {"body.0.weight", "body.1.weight"}


X = np.random.default_rng(0).normal(size=(200, 6)).astype("float32")
Y = (X[:, :3].sum(1) > 0).astype(int)


def network(width: int, act: type[nn.Module] = nn.ReLU) -> nn.Module:
    torch.manual_seed(width)
    return nn.Sequential(nn.Linear(6, width), act(), nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, 2))


def run(model: Any, method: Any = "fedproto", **settings: Any) -> us.History:
    local = us.SgdConfig(lr=0.3, local_epochs=3)
    every: dict[str, Any] = {
        "data": (X, Y),
        "split": us.IID(4),
        "rounds": 2,
        "local": local,
        "progress": False,
        "public": 0.2,
    }
    return us.simulate(method, model=model, **{**every, **settings})


def rows(history: us.History) -> list[Any]:
    return [(r["round"], r["name"], r.get("client"), r["value"]) for r in history.rows if "seconds" not in r["name"]]


@pytest.mark.parametrize("method", ALLOW)
def test_one_network_given_to_each_client_is_one_network(method: str) -> None:
    """To the bit: as one model, as a list, and as a dictionary."""
    net = network(8)
    one = run(net, method)
    assert rows(one) == rows(run([net] * 4, method)) == rows(run({str(c): net for c in range(4)}, method))


@pytest.mark.parametrize("executor", ["stacked", "workers"])
def test_executors_agree_on_two_networks(executor: str) -> None:
    """Of equal shapes, too: whose network it is decides, not what its tensors look like."""
    nets = [network(8), network(8, nn.Tanh), network(12), network(8)]
    one, other = (run(nets, runtime=us.Runtime(executor=name, workers=1)) for name in ("sequential", executor))
    for c in range(4):
        for a, b in zip(one.model("fedproto", c).parameters(), other.model("fedproto", c).parameters(), strict=True):
            assert torch.allclose(a, b, atol=1e-5)
    assert [v for *_, v in rows(one)] == pytest.approx([v for *_, v in rows(other)], abs=1e-5)


def test_each_client_is_tested_under_its_own_network() -> None:
    nets = [network(8), network(8, nn.Tanh), network(12), network(8)]
    history = run(nets, "independent", evaluate=("personal_on_global",), test=(X[:50], Y[:50]))
    tested = history.client_values("independent", "personal_on_global.accuracy")
    for c, net in enumerate(nets):
        model = history.model("independent", c)
        assert type(model[1]) is type(net[1])  # type: ignore[index]
        assert float((model(torch.from_numpy(X[:50])).argmax(1).numpy() == Y[:50]).mean()) == tested[c]


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "ditto", "fedrep", "gossip", "ifca", "fedprox+clip_norm"])
def test_whole_networks_that_are_averaged_must_be_one(method: str) -> None:
    with pytest.raises(ConfigError, match="it averages whole networks; give all clients one"):
        run([network(8), network(8), network(12), network(12)], method)


@pytest.mark.parametrize(
    ("models", "method", "why"),
    [
        ([network(8)] * 3, "fedproto", "task.models must name every client once, or in the first entry nobody"),
        ({"0": network(8), "4": network(4)}, "fedproto", "task.models: there is no client '4'"),
        (
            [network(8)] * 3 + [nn.Linear(6, 2)],
            "fedproto",
            r"have the same features, got float32 \(4,\) and float32 \(6,\)",
        ),
        ([network(8)] * 3 + [nn.Linear(6, 2)], "lgfedavg", r"have the same 4.weight, got float32 \(2, 4\) and none"),
    ],
)
def test_networks_that_do_not_go_together_are_refused(models: Any, method: str, why: str) -> None:
    with pytest.raises((ConfigError, DataError), match=why):
        run(models, method)


@pytest.mark.usefixtures("unreported")
def test_a_run_of_two_networks_ends_as_one_that_was_never_stopped(tmp_path: Path) -> None:
    nets = [network(8), network(8, nn.Tanh), network(12), network(8)]
    whole = run(nets, "lgfedavg", rounds=3)

    def stop(cell: Any) -> None:
        if cell.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(nets, "lgfedavg", rounds=3, out=tmp_path / "r", callback=stop, runtime=us.Runtime(checkpoint_every=1))
    again = us.resume(tmp_path / "r", model=nets, progress=False)
    assert rows(again) == rows(whole)
    assert again.model("lgfedavg", 2)[0].weight.shape == (12, 6)  # type: ignore[index,union-attr]
