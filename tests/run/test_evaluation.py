"""The three accuracies, on an example small enough to count."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.independent import Independent
from unskew.data import checked
from unskew.data.federated import ClientIndex, ClientIndices, FederatedData
from unskew.experiment.config import Experiment
from unskew.keys import Key
from unskew.local.data import DeviceData
from unskew.local.sequential import Sequential
from unskew.local.trainer import LocalTrainer
from unskew.record import reader
from unskew.record.logs import rows
from unskew.report.verdict import notes
from unskew.run import evaluation, loop
from unskew.run.evaluation import eval_set, evaluate, evaluated_clients
from unskew.run.metrics import Metric
from unskew.run.models import load_model
from unskew.runtime.in_process import Population, Simulator
from unskew.runtime.memory import Memory
from unskew.tasks.task import make_task
from unskew.tree import Params

ALL = ("global", "personal", "personal_on_global")
CPU = torch.device("cpu")


class Linear(nn.Module):
    """One number in, two logits out: the label is 1 where w x + b of row 1 exceeds that of row 0."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x)
        return out


TASK = make_task(Linear, 2, head="head")


def says(x_above: float | None) -> Params:
    """A model that answers 1 for x > 0 times the sign given, or always 1 for None."""
    slope, shift = (0.0, 1.0) if x_above is None else (x_above, 0.0)
    return {"head.weight": torch.tensor([[0.0], [slope]]), "head.bias": torch.tensor([0.0, shift])}


def world() -> FederatedData:
    """Two clients whose labels contradict each other: for client 0 positive x is 1, for client 1 it is 0.

    Personal tests: client 0 rows 1, 2 (x = -1, 1; y = 0, 1); client 1 rows 4, 5, 6 (x = 1, -1, 1; y = 0, 1, 1).
    Global test: x = 1, 2, -1, -2 with y = 1, 1, 1, 0.
    """
    x = torch.tensor([[1.0], [-1.0], [1.0], [1.0], [1.0], [-1.0], [1.0], [-3.0], [3.0]])
    y = torch.tensor([1, 0, 1, 0, 0, 1, 1, 0, 0])
    data = checked("two", x, y, torch.tensor([[1.0], [2.0], [-1.0], [-2.0]]), torch.tensor([1, 1, 1, 0]))
    rows = torch.tensor
    clients = ClientIndices.of(
        [ClientIndex(rows([0]), rows([7]), rows([1, 2])), ClientIndex(rows([3]), rows([8]), rows([4, 5, 6]))]
    )
    return FederatedData(data, clients, {"name": "by hand"}, 0)


def simulator(method: Any, fed: FederatedData) -> Simulator[Any]:
    device_data = DeviceData(
        fed.dataset.x_train,
        fed.dataset.y_train,
        tuple(c.train for c in fed.clients),
        tuple(c.val for c in fed.clients),
        x_test=fed.dataset.x_test,
        y_test=fed.dataset.y_test,
    )
    people = Population(torch.from_numpy(fed.label_counts), TASK.layout, says(1.0), TASK.init)
    return Simulator(method, people, Sequential(LocalTrainer(TASK, device_data, CPU)))


def values(metrics: list[Metric]) -> dict[str, float]:
    return {m.name: m.value for m in metrics if m.client is None}


def test_one_model_for_all() -> None:
    """Positive means 1.  Global: x = 1, 2 right, -1 wrong, -2 right: 3/4.  Client 0: 2/2.  Client 1: x = 1 (y 0)
    wrong, -1 (y 1) wrong, 1 (y 1) right: 1/3.  Mean (1 + 1/3) / 2 = 2/3, weighted 3/5.  Validation: -3 (y 0) right,
    3 (y 0) wrong: 1/2.
    """
    fed = world()
    sim = simulator(FedAvg(), fed)
    found = values(evaluate(sim, sim.start(), 0, eval_set(TASK, fed, CPU), ALL, last=False))
    assert found["global.accuracy"] == 0.75
    assert found["personal.accuracy.mean"] == pytest.approx(2 / 3)
    assert found["personal.accuracy.weighted"] == pytest.approx(3 / 5)
    assert found["personal.accuracy.worst_decile"] == pytest.approx(1 / 3)
    assert found["personal_on_global.accuracy.mean"] == 0.75
    assert found["personal_on_global.accuracy.std"] == 0.0
    assert found["val.accuracy"] == 0.5


def test_each_client_with_its_own_model() -> None:
    """Client 0 says 1 for positive, client 1 for negative x.  Own data: 2/2 and (right, right, wrong) 2/3.
    On the global test: 3/4 and 1/4 (only x = -1).  There is no model for the world.  Validation: both right.
    """
    fed = world()
    sim = simulator(Independent(), fed)
    sim.memory = Memory(1, {0: says(1.0), 1: says(-1.0)})
    metrics = evaluate(sim, sim.start(), 1, eval_set(TASK, fed, CPU), ALL, last=True)
    found = values(metrics)
    assert "global.accuracy" not in found
    assert found["personal.accuracy.mean"] == pytest.approx(5 / 6)
    assert found["personal.accuracy.weighted"] == pytest.approx(4 / 5)
    assert found["personal_on_global.accuracy.mean"] == 0.5
    assert found["personal_on_global.accuracy.worst_decile"] == 0.25
    assert found["val.accuracy"] == 1.0
    assert {type(m.weight) for m in metrics} == {float}  # 3 and 3.0 are two texts in metrics.jsonl
    own = {(m.name, m.client): (m.value, m.weight) for m in metrics if m.client is not None}
    losses = {key: own.pop(key)[0] for key in [*own] if key[0].endswith("loss")}
    assert [*losses] == [(f"{part}.loss", c) for part in ("personal", "personal_on_global") for c in (0, 1)]
    assert found["personal.loss.mean"] == pytest.approx(sum(losses["personal.loss", c] for c in (0, 1)) / 2)
    assert own == {
        ("personal.accuracy", 0): (1.0, 2.0),
        ("personal.accuracy", 1): (pytest.approx(2 / 3), 3.0),
        ("personal_on_global.accuracy", 0): (0.75, 4.0),
        ("personal_on_global.accuracy", 1): (0.25, 4.0),
    }


def test_the_loss_is_the_mean_over_examples() -> None:
    """Logits (0, 1) whatever x: the loss is log(1 + e) - y; global labels 1, 1, 1, 0 give log(1 + e) - 3/4."""
    fed = world()
    sim = simulator(Independent(), fed)
    sim.memory = Memory(1, {0: says(None), 1: says(None)})
    found = values(evaluate(sim, sim.start(), 1, eval_set(TASK, fed, CPU), ("personal_on_global",), last=False))
    assert found["personal_on_global.loss.mean"] == pytest.approx(1.3132617 - 0.75)
    assert found["personal_on_global.accuracy.mean"] == 0.75


def test_a_client_without_test_data_is_left_out() -> None:
    fed = world()
    first, second = fed.clients
    clients = ClientIndices.of([first, ClientIndex(second.train, second.val, second.test[:0])])
    fed = FederatedData(fed.dataset, clients, fed.split, 0)
    sim = simulator(FedAvg(), fed)
    metrics = evaluate(sim, sim.start(), 0, eval_set(TASK, fed, CPU), ("personal",), last=True)
    assert values(metrics)["personal.accuracy.mean"] == 1.0
    assert {m.client for m in metrics if m.client is not None} == {0}


def test_parts_that_are_averaged_together_have_the_bits_of_parts_averaged_alone() -> None:
    """Sizes around vectors, blocks and threads' shares; 1,500 parts of 24 sizes, in any order."""
    g = Key(2).generator()
    sizes = [*range(1, 20), 63, 64, 65, 1000, 40_000, *torch.randint(1, 20, (1500,), generator=g).tolist()]
    correct, loss = torch.rand(sum(sizes), generator=g) < 0.7, torch.rand(sum(sizes), generator=g) * 3
    alone = [
        [float(c.double().mean()), float(v.double().mean())]
        for c, v in zip(correct.split(sizes), loss.split(sizes), strict=True)
    ]
    assert evaluation._segments((correct, loss), np.array(sizes)).tolist() == alone


# ---------------------------------------------------------------- who is evaluated
def clients_of(folder: Path, method: str, round: int) -> set[int]:
    return {
        r["client"] for r in rows(folder, "metrics") if (r["method"], r["round"]) == (method, round) and "client" in r
    }


def test_a_number_of_clients_is_drawn_once_for_rounds_and_methods() -> None:
    first, again, other = (evaluated_clients(5, 100, seed) for seed in (0, 0, 1))
    assert len(set(first)) == 5
    assert first == again == sorted(first) != other
    assert list(evaluated_clients(101, 100, 0)) == list(evaluated_clients("all", 100, 0))


def test_a_run_evaluates_the_clients_it_is_told_to(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    """The last round names clients; a number weighs as much as the test examples of those evaluated."""
    methods = "[[methods]]\nname = 'fedavg'\n[[methods]]\nname = 'fedper'"
    drawn = loop.start(tiny("rounds=2", "evaluate_clients=2", methods=methods), tmp_path / "drawn").folder
    seen = clients_of(drawn, "fedavg", 2)
    assert len(seen) == 2
    assert seen == clients_of(drawn, "fedper", 2)
    held = reader.part_of(drawn, "test")[1].sizes
    weights = {r["weight"] for r in rows(drawn, "metrics") if r["name"] == "personal.accuracy.mean"}
    assert weights == {float(sum(held[c] for c in seen))}
    kept = [load_model(drawn, "fedper", client=c) for c in range(4)]
    assert len(kept) == 4, "all clients' models are kept"
    assert any(note.endswith(" are of 2 clients, drawn once for each seed.") for note in notes(reader.read(drawn)))


def test_every_method_is_evaluated_on_the_same_honest_clients(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    """That of pooled data, too, or its own mean and its difference would be over other clients."""
    methods = "[[methods]]\nname = 'fedavg'\n[[methods]]\nname = 'centralised'"
    attack = "world.attack={ name = 'sign_flip', fraction = 0.25 }"
    run = loop.start(tiny("rounds=1", attack, methods=methods), tmp_path / "run").folder
    assert len(clients_of(run, "fedavg", 1)) == 3
    assert clients_of(run, "fedavg", 1) == clients_of(run, "centralised", 1)


def test_an_early_end_survives_a_crash(
    tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """About 11 kB a round: 30 kB are reached in round 3."""
    drawn = ("evaluate_clients=2", "clients_per_round=2", "runtime.checkpoint_every=1")
    experiment = tiny("rounds=6", "eval_every=2", "stop.megabytes=0.03", *drawn)
    whole = loop.start(experiment, tmp_path / "whole")
    assert whole.summary["stopped"]["fedavg/0"].endswith("after round 3")
    assert clients_of(whole.folder, "fedavg", 3)
    with monkeypatch.context() as patched:
        patched.setattr(loop._Loop, "end_early", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loop.start(experiment, tmp_path / "run")
    assert loop.resume(tmp_path / "run").summary["fingerprint"] == whole.summary["fingerprint"]
