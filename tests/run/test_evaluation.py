"""The three accuracies, on an example small enough to count."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.independent import Independent
from unskew.data.dataset import checked
from unskew.data.federated import ClientIndex, ClientIndices, FederatedData
from unskew.experiment.config import Experiment
from unskew.keys import Key
from unskew.local.data import DeviceData
from unskew.local.executor import EvalJob
from unskew.local.sequential import Sequential
from unskew.local.trainer import LocalTrainer
from unskew.run import evaluation
from unskew.run import setup as run_setup
from unskew.run.evaluation import eval_set, evaluate
from unskew.run.metrics import Metric
from unskew.runtime.in_process import Population, Simulator
from unskew.runtime.memory import Memory
from unskew.task import make_task
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
    return FederatedData(data, clients, {"name": "by hand"}, 0, "")


def simulator(algorithm: Any, fed: FederatedData) -> Simulator[Any]:
    task = make_task(Linear, 2, head="head")
    device_data = DeviceData(
        fed.dataset.x_train,
        fed.dataset.y_train,
        tuple(c.train for c in fed.clients),
        tuple(c.val for c in fed.clients),
        x_test=fed.dataset.x_test,
        y_test=fed.dataset.y_test,
    )
    people = Population(torch.from_numpy(fed.label_counts), task.layout, says(1.0), task.init)
    return Simulator(algorithm, people, Sequential(LocalTrainer(task, device_data, CPU)))


def values(metrics: list[Metric]) -> dict[str, float]:
    return {m.name: m.value for m in metrics if m.client is None}


def test_one_model_for_all() -> None:
    """Positive means 1.  Global: x = 1, 2 right, -1 wrong, -2 right: 3/4.  Client 0: 2/2.  Client 1: x = 1 (y 0)
    wrong, -1 (y 1) wrong, 1 (y 1) right: 1/3.  Mean (1 + 1/3) / 2 = 2/3, weighted 3/5.  Validation: -3 (y 0) right,
    3 (y 0) wrong: 1/2.
    """
    fed = world()
    sim = simulator(FedAvg(), fed)
    found = values(evaluate(sim, sim.start(), 0, eval_set(fed, CPU), ALL, last=False))
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
    metrics = evaluate(sim, sim.start(), 1, eval_set(fed, CPU), ALL, last=True)
    found = values(metrics)
    assert "global.accuracy" not in found
    assert found["personal.accuracy.mean"] == pytest.approx(5 / 6)
    assert found["personal.accuracy.weighted"] == pytest.approx(4 / 5)
    assert found["personal_on_global.accuracy.mean"] == 0.5
    assert found["personal_on_global.accuracy.worst_decile"] == 0.25
    assert found["val.accuracy"] == 1.0
    own = {(m.name, m.client): (m.value, m.weight) for m in metrics if m.client is not None}
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
    found = values(evaluate(sim, sim.start(), 1, eval_set(fed, CPU), ("personal_on_global",), last=False))
    assert found["personal_on_global.loss.mean"] == pytest.approx(1.3132617 - 0.75)
    assert found["personal_on_global.accuracy.mean"] == 0.75


def test_nothing_is_measured_that_was_not_asked_for() -> None:
    fed = world()
    sim = simulator(FedAvg(), fed)
    names = {m.name for m in evaluate(sim, sim.start(), 0, eval_set(fed, CPU), ("global",), last=True)}
    assert names == {"global.accuracy", "global.loss", "val.accuracy"}


def test_a_client_without_test_data_is_left_out() -> None:
    fed = world()
    first, second = fed.clients
    clients = ClientIndices.of([first, ClientIndex(second.train, second.val, second.test[:0])])
    fed = FederatedData(fed.dataset, clients, fed.split, 0, "")
    sim = simulator(FedAvg(), fed)
    metrics = evaluate(sim, sim.start(), 0, eval_set(fed, CPU), ("personal",), last=True)
    assert values(metrics)["personal.accuracy.mean"] == 1.0
    assert [m.client for m in metrics if m.client is not None] == [0]


def test_a_shared_model_is_tested_in_one_pass_with_the_same_result(
    tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedAvg serves one object to everybody; served as copies, each client is tested by itself."""
    experiment = tiny("val_fraction=0.2")
    setup = run_setup.prepare(experiment)
    fed = run_setup.divide(experiment, setup.dataset, 0)
    sim, _ = run_setup.simulator(experiment, experiment.methods[0], setup, fed, 0)
    state, _ = sim.round(sim.start(), 1)
    sizes_evaluated: list[int] = []
    genuine = Sequential.evaluate

    def counted(self: Sequential, given: Sequence[EvalJob]) -> list[tuple[Tensor, Tensor]]:
        graded = genuine(self, given)
        sizes_evaluated.extend(len(correct) for correct, _ in graded)
        return graded

    monkeypatch.setattr(Sequential, "evaluate", counted)
    together = evaluate(sim, state, 1, eval_set(fed, CPU), ALL, last=True)
    everything = len(fed.dataset.y_test)
    sizes = [sum(len(getattr(c, part)) for c in fed.clients) for part in ("test", "val")]
    assert sorted(sizes_evaluated) == sorted([everything, *sizes, everything])
    sizes_evaluated.clear()
    serve = FedAvg.serve
    monkeypatch.setattr(FedAvg, "serve", lambda self, s, c: dict(serve(self, s, c) or {}))
    apart = evaluate(sim, state, 1, eval_set(fed, CPU), ALL, last=True)
    assert len(sizes_evaluated) == 1 + 3 * fed.num_clients
    for one, other in zip(together, apart, strict=True):
        assert (one.name, one.client, one.weight) == (other.name, other.client, other.weight)
        assert one.value == pytest.approx(other.value, rel=1e-6)


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


def test_clients_that_share_model_and_data_are_averaged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand clients of one model on one test set once took as many means."""
    means: list[int] = []
    score = evaluation._score
    monkeypatch.setattr(evaluation, "_score", lambda scores: means.append(1) or score(scores))
    scores = (torch.tensor([True, False]), torch.ones(2))
    by_client = evaluation._on_all_rows({("global", 0): scores}, "global", {0: np.arange(50)})
    assert by_client.clients.tolist() == list(range(50))
    assert [set(column.tolist()) for column in (by_client.accuracy, by_client.loss, by_client.n)] == [{0.5}, {1.0}, {2}]
    assert len(means) == 1
